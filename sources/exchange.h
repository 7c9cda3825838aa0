/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request for a range, or one that sends, and its answer, on a handle of libcurl.
 *
 *   begin --> head of the answer, line by line --> verdict: accepted    --> body into the read's memory --> end
 *                                                  anything else       --> its first KiB is looked at  --> end
 *
 * X1  No byte of a body reaches the read's memory before the head was accepted (A1), nor beyond its last one, nor between
 *     its places.
 * X2  Bytes that are there count, whatever ends the exchange: the next attempt asks for the rest.
 * X3  Redirections are not followed: a header with a token would go to another host.
 * X4  No message has a header, a query or credentials.
 * X5  What is sent is taken when the answer says so: by an ETag that is the body's, or by words in its body. A status of 200 may
 *     bring an error of S3, which says it where it has begun to answer before it was done.
 * Locks: none; the client's thread.
 */
#ifndef LADE_SOURCES_EXCHANGE_H
#define LADE_SOURCES_EXCHANGE_H

#include <stdatomic.h>

#include "sources/answer.h"
#include "sources/libcurl.h"
#include "sources/read.h"
#include "sources/settings.h"
#include "sources/sign.h"

/* A server, for the client: reads that it may have next, and those that it has. */
typedef struct ladei_source_host {
  SLIST_ENTRY(ladei_source_host) link;
  struct ladei_source_reads ready; /* due, in the order in which they became so */
  unsigned under_way;
  bool tls;
  char authority[]; /* with the port */
} ladei_source_host;

struct ladei_source_object {
  ladei_source_client *client;
  ladei_source_target target;
  ladei_source_version version; /* the client's thread's while reads are under way */
  ladei_source_host *host;      /* that thread's; NULL: no read was begun */
  _Atomic(bool) cancelled;
};

enum { LADEI_SOURCE_BODY_MOST = 1024 };

struct ladei_source_exchange {
  const ladei_libcurl *curl;
  ladei_curl *easy;
  ladei_curl_list *headers;
  ladei_source_read *read; /* NULL: idle */
  uint32_t stall_s;
  unsigned credentials; /* number of those it was signed with; the client's */
  ladei_source_answer answer;
  bool accepted;
  lade_error refusal;                 /* of the head; status LADE_OK: none */
  char body[LADEI_SOURCE_BODY_MOST];  /* of an answer that is an error, ... */
  size_t body_bytes;                  /* ... bytes of it so far */
  char error[LADEI_CURL_ERROR_BYTES]; /* libcurl's */
  TAILQ_ENTRY(ladei_source_exchange) link;
};

/* LADE_ERR_OUT_OF_HOST_MEMORY. `curl` and `settings` stay the caller's, and outlive it. */
lade_status ladei_source_exchange_create(const ladei_libcurl *curl, const ladei_source_settings *settings,
                                         const ladei_source_options *limits, ladei_source_exchange **out);
void ladei_source_exchange_destroy(ladei_source_exchange *exchange);

/* Makes the handle ready for the read's rest, or to send. `credentials`: of a signed target. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_source_exchange_begin(ladei_source_exchange *exchange, ladei_source_read *read,
                                        const ladei_source_settings *settings,
                                        const ladei_source_credentials *credentials, time_t now);

/* The outcome. LADE_OK: all bytes are there. LADE_NOT_READY: another attempt may do better. Errors are those of a
 * read. The record has the reason in either case. */
lade_status ladei_source_exchange_end(const ladei_source_exchange *exchange, int result);

/* Whether the server may have all that was to be sent, so that the answer alone says what became of it. */
bool ladei_source_exchange_is_sent(const ladei_source_exchange *exchange);

/* Whether the server's error has this code: "ExpiredToken". */
bool ladei_source_exchange_says(const ladei_source_exchange *exchange, const char *code);

#endif /* LADE_SOURCES_EXCHANGE_H */
