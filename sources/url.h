/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs of sources: from the text that a program gives to the request that is sent.
 *
 *   https://host:port/path?query   asked for as it is
 *   s3://bucket/key                https://bucket.s3.REGION.amazonaws.com/KEY, or ENDPOINT/bucket/KEY; signed
 *
 * U1  The URL of a target consists of printable ASCII. It has no user and no fragment, and its authority is in lower
 *     case, without the scheme's own port: as libcurl writes the header Host, which is signed.
 * U2  Of an s3 key every byte except letters, digits, "-_.~/" is written as %XX, in upper case: there is one way to write
 *     a key, and the signature is of the path as it is sent.
 * U3  `shown` has no query: that of a presigned URL is a secret.
 * Pure. Threads: any.
 */
#ifndef LADE_SOURCES_URL_H
#define LADE_SOURCES_URL_H

#include <stdbool.h>
#include <stddef.h>

#include "lade/status.h"

typedef struct ladei_source_span {
  const char *at;
  size_t bytes;
} ladei_source_span;

/* The parts of a URL; they lie in its text. */
typedef struct ladei_source_url {
  bool s3;
  bool tls;
  ladei_source_span authority; /* host and port; the bucket */
  ladei_source_span path;      /* from the slash on, or empty; the key, as the program writes it */
  ladei_source_span query;     /* with its question mark, or empty */
} ladei_source_url;

/* Whether a text is a URL of a source, and no path; it may be refused all the same. */
bool ladei_source_url_is(const char *text);

/* Bytes of the URL in front of its query. */
size_t ladei_source_url_path_bytes(const char *url);

/* That of the object `name` in the same folder or below, with the same query; the caller's to free. NULL: no memory. */
char *ladei_source_url_beside(const char *url, const char *name);

/* NULL: taken apart. Else the words for the part that was expected at *out_at bytes of the text. */
const char *ladei_source_url_parse(const char *text, ladei_source_url *out, size_t *out_at);

typedef struct ladei_source_target {
  char *url;                         /* to be asked for */
  char *shown;                       /* for messages */
  ladei_source_span authority, path; /* of `url` */
  bool tls;
  bool is_signed;
} ladei_source_target;

/* `endpoint`: URL of the service, for s3; NULL: that of AWS in the region. LADE_ERR_INVALID_ARGUMENT: one of these two is
 * not usable; LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_source_target_make(const ladei_source_url *url, const char *endpoint, const char *region,
                                     ladei_source_target *out);
void ladei_source_target_free(ladei_source_target *target);

#endif /* LADE_SOURCES_URL_H */
