/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/upload.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "sources/md5.h"
#include "sources/sign.h"
#include "sources/url.h"

enum { REPLY_BYTES = 16 << 10, ETAG_BYTES = 96, ID_ROOM = 3 * LADEI_SOURCE_UPLOAD_ID_MOST + 1 };

struct ladei_source_upload {
  ladei_source_client *client;
  ladei_source_object *object; /* for all except the abort, which a cancellation must not end */
  ladei_source_object *last;
  unsigned parts;
  bool begun;                /* it has an id that is not ended */
  char id[ID_ROOM];          /* as a query has it */
  char (*etags)[ETAG_BYTES]; /* of the parts; of each the client's thread's until it is over */
  char reply[REPLY_BYTES];
};

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for an upload"); }

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Of 16 bytes: 24 characters. */
static void base64_print(const unsigned char md5[LADEI_MD5_BYTES], char out[25]) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  unsigned char padded[LADEI_MD5_BYTES + 2] = {0};
  memcpy(padded, md5, LADEI_MD5_BYTES);
  for (unsigned i = 0; i < 6; i++) {
    unsigned group = (unsigned)padded[3 * i] << 16 | (unsigned)padded[3 * i + 1] << 8 | padded[3 * i + 2];
    for (unsigned j = 0; j < 4; j++) out[4 * i + j] = digits[group >> (18 - 6 * j) & 63];
  }
  strcpy(out + 22, "==");
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* The body is where it is until the request is over; `md5` has room for 25 bytes. */
static void body_set(ladei_source_sending *sending, const void *body, size_t bytes, char *md5) {
  unsigned char sum[LADEI_MD5_BYTES];
  ladei_md5(body, bytes, sum);
  ladei_source_hex(sum, sizeof sum, sending->md5);
  base64_print(sum, md5);
  sending->body = body;
  sending->bytes = bytes;
  sending->wording.md5 = md5;
}

static lade_status request_run(ladei_source_upload *upload, ladei_source_object *object, ladei_source_sending *sending,
                               const ladei_source_look *look) {
  ladei_source_read read = {.object = object, .buffer = upload->reply, .bytes = sizeof upload->reply, .sends = sending};
  upload->reply[0] = '\0';
  return ladei_source_read_run(&read, look);
}

lade_status ladei_source_upload_create(ladei_source_client *client, const char *url, unsigned parts,
                                       ladei_source_upload **out) {
  ladei_source_url taken;
  size_t at;
  assert(parts > 0 && parts <= LADEI_SOURCE_PARTS_MOST);
  if (ladei_source_url_parse(url, &taken, &at) == NULL && !taken.s3)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "objects are written to s3:// URLs alone");
  ladei_source_upload *upload = calloc(1, sizeof *upload);
  if (upload == NULL) return memory_error();
  upload->client = client;
  upload->parts = parts;
  upload->etags = calloc(parts, sizeof *upload->etags);
  lade_status status = upload->etags != NULL ? LADE_OK : memory_error();
  if (status == LADE_OK) status = ladei_source_object_open(client, url, NULL, &upload->object);
  if (status == LADE_OK) status = ladei_source_object_open(client, url, NULL, &upload->last);
  if (status == LADE_OK)
    *out = upload;
  else
    ladei_source_upload_destroy(upload);
  return status;
}

lade_status ladei_source_upload_begin(ladei_source_upload *upload, const ladei_source_look *look) {
  ladei_source_sending sending = {.what = "the begin",
                                  .wording = {.method = "POST", .query = "uploads="},
                                  .begins = true,
                                  .expects = "</UploadId>"};
  assert(upload->parts > 1 && !upload->begun);
  LADEI_TRY(request_run(upload, upload->object, &sending, look));
  upload->begun = ladei_source_upload_id(upload->reply, upload->id, sizeof upload->id);
  return upload->begun ? LADE_OK
                       : ladei_error(LADE_ERR_IO, EPROTO,
                                     "writing %.200s: the server's id of the upload cannot be used; expected 1 to %d "
                                     "characters of ASCII",
                                     ladei_source_object_shown(upload->object), LADEI_SOURCE_UPLOAD_ID_MOST);
}

static void part_ended(ladei_source_read *read, lade_status status) {
  ladei_source_part *part = read->user;
  if (status == LADE_OK) strcpy(part->upload->etags[part->number - 1], part->sending.etag);
  part->complete(part, status);
}

void ladei_source_part_send(ladei_source_upload *upload, ladei_source_part *part) {
  assert(part->number > 0 && part->number <= upload->parts && part->bytes > 0);
  assert(upload->begun || upload->parts == 1);
  part->upload = upload;
  part->query[0] = '\0';
  (void)snprintf(part->what, sizeof part->what, "part %u", part->number);
  if (upload->parts > 1)
    (void)snprintf(part->query, sizeof part->query, "partNumber=%u&uploadId=%s", part->number, upload->id);
  else
    strcpy(part->what, "all of it");
  part->sending = (ladei_source_sending){.what = part->what, .wording = {.method = "PUT", .query = part->query}};
  body_set(&part->sending, part->body, part->bytes, part->md5);
  part->read = (ladei_source_read){.object = upload->object,
                                   .buffer = part->reply,
                                   .bytes = sizeof part->reply,
                                   .sends = &part->sending,
                                   .complete = part_ended,
                                   .user = part};
  ladei_source_read_begin(&part->read);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* The ETag of an object of the parts, "<MD5 of the MD5s>-<how many>". False: an ETag of theirs is no MD5. */
static bool whole_etag(const ladei_source_upload *upload, char out[64]) {
  unsigned char *all = malloc((size_t)upload->parts * LADEI_MD5_BYTES), sum[LADEI_MD5_BYTES];
  bool good = all != NULL;
  char hex[33];
  for (unsigned i = 0; i < upload->parts && good; i++) {
    const char *digits = upload->etags[i] + 1;
    good = strlen(upload->etags[i]) == 34 && strspn(digits, "0123456789abcdefABCDEF") == 32;
    for (unsigned j = 0; j < LADEI_MD5_BYTES && good; j++)
      (void)sscanf(digits + (size_t)2 * j, "%2hhx", &all[(size_t)i * LADEI_MD5_BYTES + j]);
  }
  if (good) ladei_md5(all, (size_t)upload->parts * LADEI_MD5_BYTES, sum);
  free(all);
  if (!good) return false;
  ladei_source_hex(sum, sizeof sum, hex);
  (void)snprintf(out, 64, "\"%s-%u\"", hex, upload->parts);
  return true;
}

/* P3. The record has the reason why it was asked. */
static bool is_there(ladei_source_upload *upload, uint64_t bytes, const ladei_source_look *look) {
  char expected[64];
  lade_error reason;
  ladei_source_read read = {.object = upload->object, .buffer = upload->reply, .bytes = 1};
  ladei_error_save(&reason);
  bool there = whole_etag(upload, expected) && ladei_source_read_run(&read, look) == LADE_OK;
  const ladei_source_version *version = ladei_source_object_version(upload->object);
  there = there && version->total == bytes && strcmp(version->etag, expected) == 0;
  ladei_error_restore(&reason);
  return there;
}

/* The list of parts. The caller frees it; NULL without memory. */
static char *list_make(const ladei_source_upload *upload) {
  static const char part[] = "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>";
  size_t room = 64 + upload->parts * (sizeof part + 16 + ETAG_BYTES);
  char *list = malloc(room), *at = list;
  if (list == NULL) return NULL;
  at = stpcpy(at, "<CompleteMultipartUpload>");
  for (unsigned i = 0; i < upload->parts; i++) {
    assert(upload->etags[i][0] != '\0'); /* the part is there */
    at += sprintf(at, part, i + 1, upload->etags[i]);
  }
  (void)stpcpy(at, "</CompleteMultipartUpload>");
  return list;
}

lade_status ladei_source_upload_finish(ladei_source_upload *upload, uint64_t bytes, const ladei_source_look *look) {
  char query[sizeof upload->id + 16], md5[25];
  if (upload->parts == 1) return LADE_OK;
  char *list = list_make(upload);
  if (list == NULL) return memory_error();
  (void)snprintf(query, sizeof query, "uploadId=%s", upload->id);
  ladei_source_sending sending = {.what = "the end",
                                  .wording = {.method = "POST", .query = query},
                                  .patient = true,
                                  .expects = "</CompleteMultipartUploadResult>"};
  body_set(&sending, list, strlen(list), md5);
  lade_status status = request_run(upload, upload->object, &sending, look);
  free(list);
  bool lost = status != LADE_OK && lade_last_error()->native_code == ENOENT;
  if (lost && is_there(upload, bytes, look)) status = LADE_OK;
  upload->begun = upload->begun && status != LADE_OK;
  return status;
}

static void abort_it(ladei_source_upload *upload) {
  char query[sizeof upload->id + 16];
  lade_error before;
  (void)snprintf(query, sizeof query, "uploadId=%s", upload->id);
  ladei_source_sending sending = {
      .what = "giving it up", .wording = {.method = "DELETE", .query = query}, .expects = ""};
  ladei_error_save(&before);
  lade_status status = request_run(upload, upload->last, &sending, NULL);
  if (status != LADE_OK && lade_last_error()->native_code != ENOENT) /* else it is gone */
    ladei_log(LADE_LOG_WARN, "sources: an upload stays in the store, with its parts: %s", lade_last_error()->text);
  ladei_error_restore(&before);
  upload->begun = false;
}

lade_status ladei_source_upload_remove(ladei_source_upload *upload) {
  ladei_source_sending sending = {.what = "removing it", .wording = {.method = "DELETE", .query = ""}, .expects = ""};
  if (upload->begun) abort_it(upload);
  return request_run(upload, upload->last, &sending, NULL);
}

void ladei_source_upload_cancel(ladei_source_upload *upload) {
  ladei_source_object_cancel(upload->object);
  ladei_source_client_push(upload->client);
}

void ladei_source_upload_destroy(ladei_source_upload *upload) {
  if (upload == NULL) return;
  if (upload->begun) abort_it(upload);
  if (upload->object != NULL) ladei_source_object_close(upload->object);
  if (upload->last != NULL) ladei_source_object_close(upload->last);
  free(upload->etags);
  free(upload);
}
