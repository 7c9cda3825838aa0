/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signature version 4, as S3 asks for it: of a GET without query, and of what an upload sends.
 *
 * Note [A signature of lade's own]
 * libcurl can sign, but in a way that changed between 7.88 and 8.x: header x-amz-content-sha256, access keys with a
 * colon, headers that are taken away. 8.x also refuses to sign where it must leave a path as it is, so that a key with
 * ".." would name another object. Here one request is always signed in one way, and libcurl is told headers alone.
 *
 * The text that is signed names the host, so libcurl must send the header Host as url.h writes it. The range and the
 * conditions are not signed. S3 takes a path as it is sent: it is encoded once. A body is signed by its MD5, which the
 * server compares with it; its SHA-256 would cost twice as much.
 * Source: AWS documentation, "Create a signed AWS API request". Pure. Threads: any.
 */
#ifndef LADE_SOURCES_SIGN_H
#define LADE_SOURCES_SIGN_H

#include <time.h>

#include "sources/url.h"

typedef struct ladei_source_credentials {
  char *key;    /* NULL: there are none */
  char *secret; /* of the three, `key` alone is not secret */
  char *token;  /* NULL: they are not temporary */
  time_t until; /* 0: not known */
} ladei_source_credentials;

enum { LADEI_SOURCE_KEY_MOST = 256, LADEI_SOURCE_SIGNED_HEADERS = 3 };

/* Headers to send, beside x-amz-security-token, if there is a token. Each has room for a region that url.h
 * takes and a key of LADEI_SOURCE_KEY_MOST bytes. */
typedef struct ladei_source_signature {
  char headers[LADEI_SOURCE_SIGNED_HEADERS][640];
} ladei_source_signature;

/* Of a request, beside its target. */
typedef struct ladei_source_wording {
  const char *method; /* "PUT" */
  const char *query;  /* without question mark; sorted, each name with '=', encoded as a key is, '/' too. "": none */
  const char *md5;    /* of the body, as header Content-MD5 has it; NULL: there is no body */
} ladei_source_wording;

/* Two digits for each byte, and a zero. */
void ladei_source_hex(const unsigned char *bytes, size_t count, char *out);

void ladei_source_sign(const ladei_source_target *target, const ladei_source_wording *wording,
                       const ladei_source_credentials *credentials, const char *region, time_t now,
                       ladei_source_signature *out);

#endif /* LADE_SOURCES_SIGN_H */
