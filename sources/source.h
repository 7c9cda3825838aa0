/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of objects that URLs name, read into the caller's memory; and requests that send.
 *
 *   ladei_source_client   one per pipeline that reads URLs: libcurl, a thread, connections, credentials
 *   ladei_source_object   one per URL of a transfer: the request to send, and the version that all answers must be of
 *   ladei_source_read     one range, into memory; or one request that sends, of an upload (upload.h)
 *
 * Threads: any, unless said otherwise.
 */
#ifndef LADE_SOURCES_SOURCE_H
#define LADE_SOURCES_SOURCE_H

#include "sources/answer.h"
#include "sources/read.h"

/* LADE_ERR_UNSUPPORTED without libcurl, LADE_ERR_OUT_OF_HOST_MEMORY. Reads the environment. */
lade_status ladei_source_client_create(const ladei_source_options *options, ladei_source_client **out);
/* All reads are over and all objects closed. */
void ladei_source_client_destroy(ladei_source_client *client);
/* Requests that were sent again. */
uint64_t ladei_source_client_retries(const ladei_source_client *client);
/* Lets reads of cancelled objects end now. */
void ladei_source_client_push(ladei_source_client *client);

/* Sends nothing. `version`: the one to read, NULL: the one that the first answer is of. LADE_ERR_INVALID_ARGUMENT: the URL, the
 * endpoint or the region is not usable. */
lade_status ladei_source_object_open(ladei_source_client *client, const char *url, const ladei_source_version *version,
                                     ladei_source_object **out);
/* The URL for messages: without its query. The object's. */
const char *ladei_source_object_shown(const ladei_source_object *object);
/* That of all answers so far; while none of its reads is under way. */
const ladei_source_version *ladei_source_object_version(const ladei_source_object *object);
/* Its reads are over. */
void ladei_source_object_close(ladei_source_object *object);
/* Makes no system call: ladei_source_client_push() is due. Reads that begin later end, too. */
void ladei_source_object_cancel(ladei_source_object *object);

/* Asked ten times a second while a call waits; any status except LADE_OK ends the call with it. */
typedef struct ladei_source_look {
  lade_status (*call)(void *user);
  void *user;
} ladei_source_look;

void ladei_source_read_begin(ladei_source_read *read);
/* Waits for the end. `complete` and `user` are the call's. `look`, which may be NULL, cancels the whole object; a read that is
 * good by then stays so. */
lade_status ladei_source_read_run(ladei_source_read *read, const ladei_source_look *look);

#endif /* LADE_SOURCES_SOURCE_H */
