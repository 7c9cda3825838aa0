/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One object of a store on its way there: complete or absent.
 *
 *   one part       PUT                                               the object is there with its answer
 *   several        POST ?uploads -> id   PUT of each part, in any    ... with that of the last POST
 *                  order, several at once   POST ?uploadId=id
 *   given up       DELETE ?uploadId=id, once no part is under way    a part that came later would stay in the store
 *
 * P1  Between its first answer with an id and its end an upload that is not finished is aborted by destroy, however often that
 *     fails for a while. One whose first answer is lost has an id that no client knows: it has no parts.
 * P2  Each part is sent with its MD5, which the server compares; its ETag is that MD5, or says nothing of the bytes (X5).
 * P3  A last POST whose answer is lost may have been carried out, so that the next one, which libcurl may send by itself, finds no
 *     upload: then the object is looked at. It is this one if its size is, and its ETag the MD5 of the parts' MD5s.
 * Threads: one at a time, and destroy after the last part is over; cancel: any.
 */
#ifndef LADE_SOURCES_UPLOAD_H
#define LADE_SOURCES_UPLOAD_H

#include "sources/source.h"
#include "sources/upload_id.h"

enum { LADEI_SOURCE_PARTS_MOST = 10000, LADEI_SOURCE_PART_LEAST = 5 << 20 };

typedef struct ladei_source_upload ladei_source_upload;
typedef struct ladei_source_part ladei_source_part;

struct ladei_source_part {
  /* Set by the caller; the rest is zero. */
  unsigned number; /* from 1 on */
  const void *body;
  size_t bytes;
  /* The end, on the client's thread with no lock held, as of a read: the part and its body are the callee's again. */
  void (*complete)(ladei_source_part *part, lade_status status);
  void *user;

  ladei_source_upload *upload;
  ladei_source_read read;
  ladei_source_sending sending;
  char what[24], md5[25], reply[1];
  char query[3 * LADEI_SOURCE_UPLOAD_ID_MOST + 48];
};

/* Sends nothing. LADE_ERR_INVALID_ARGUMENT; LADE_ERR_UNSUPPORTED: no s3:// URL. */
lade_status ladei_source_upload_create(ladei_source_client *client, const char *url, unsigned parts,
                                       ladei_source_upload **out);
/* Begins one of several parts, before the first of them; waits for the answer. `look`: as ladei_source_read_run(). */
lade_status ladei_source_upload_begin(ladei_source_upload *upload, const ladei_source_look *look);
/* Sends a part: all parts except the last have at least LADEI_SOURCE_PART_LEAST bytes. Sums the body first. */
void ladei_source_part_send(ladei_source_upload *upload, ladei_source_part *part);
/* After all parts: the object of `bytes` bytes is there. */
lade_status ladei_source_upload_finish(ladei_source_upload *upload, uint64_t bytes, const ladei_source_look *look);
/* Removes the object again, which is there or may be; what is not finished is aborted first, so that it is not there later. */
lade_status ladei_source_upload_remove(ladei_source_upload *upload);
/* Ends parts that are under way, with LADE_ERR_CANCELLED. */
void ladei_source_upload_cancel(ladei_source_upload *upload);
/* Aborts what is not finished (P1), and waits for that. NULL: nothing. */
void ladei_source_upload_destroy(ladei_source_upload *upload);

#endif /* LADE_SOURCES_UPLOAD_H */
