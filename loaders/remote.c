/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading objects that URLs name, outside of pipelines.
 *
 *   open   first 64 KiB of object 0, 1, 2, ... at once      most headers are shorter: one request for each shard
 *   read   | from those bytes | by a request of its own |
 *
 * R1  The first that fails has the others cancelled; its error is the call's.
 * Locks: that of an opening, while its reads are under way.
 */
#include "loaders/remote.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"

enum { BEGIN_BYTES = 64 << 10 };

typedef struct opening {
  ladei_lock lock;
  ladei_condition over;
  size_t left;
  lade_error error; /* status LADE_OK: none */
  ladei_loader_remote *remotes;
  size_t count;
  ladei_source_client *client;
} opening;

static void begin_ended(ladei_source_read *read, lade_status status) {
  opening *o = read->user;
  ladei_lock_acquire(&o->lock);
  bool first = status != LADE_OK && o->error.status == LADE_OK;
  if (first) ladei_error_save(&o->error);
  for (size_t i = 0; i < o->count && first; i++) ladei_source_object_cancel(o->remotes[i].object); /* R1 */
  if (first) ladei_source_client_push(o->client);
  if (--o->left == 0) ladei_condition_broadcast(&o->over);
  ladei_lock_release(&o->lock);
}

static void begins_read(opening *o, ladei_source_read *reads) {
  for (size_t i = 0; i < o->count; i++) {
    reads[i] = (ladei_source_read){.object = o->remotes[i].object,
                                   .buffer = o->remotes[i].begin,
                                   .bytes = BEGIN_BYTES,
                                   .may_end = true,
                                   .complete = begin_ended,
                                   .user = o};
    ladei_source_read_begin(&reads[i]);
  }
  ladei_lock_acquire(&o->lock);
  while (o->left > 0) ladei_condition_wait(&o->over, &o->lock);
  ladei_lock_release(&o->lock);
  for (size_t i = 0; i < o->count; i++) o->remotes[i].begin_bytes = reads[i].done;
}

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for URLs"); }

static lade_status objects_open(ladei_source_client *client, const char *const *urls, size_t count,
                                ladei_loader_remote *out) {
  for (size_t i = 0; i < count; i++) {
    LADEI_TRY(ladei_source_object_open(client, urls[i], NULL, &out[i].object));
    out[i].begin = malloc(BEGIN_BYTES);
    if (out[i].begin == NULL) return memory_error();
  }
  return LADE_OK;
}

static lade_status remotes_open(ladei_source_client *client, const char *const *urls, size_t count,
                                ladei_loader_remote *out, ladei_source_read *reads) {
  opening o = {.left = count, .remotes = out, .count = count, .client = client};
  LADEI_TRY(objects_open(client, urls, count, out));
  ladei_lock_init(&o.lock, LADEI_RANK_LEAF);
  ladei_condition_init(&o.over);
  begins_read(&o, reads);
  ladei_condition_destroy(&o.over);
  ladei_lock_destroy(&o.lock);
  if (o.error.status != LADE_OK) ladei_error_restore(&o.error);
  return o.error.status;
}

lade_status ladei_loader_remotes_open(ladei_source_client *client, const char *const *urls, size_t count,
                                      ladei_loader_remote *out) {
  ladei_source_read *reads = calloc(count + 1, sizeof *reads);
  memset(out, 0, count * sizeof *out);
  if (reads == NULL) return memory_error();
  lade_status status = remotes_open(client, urls, count, out, reads);
  free(reads);
  if (status != LADE_OK) ladei_loader_remotes_close(out, count);
  return status;
}

void ladei_loader_remotes_close(ladei_loader_remote *remotes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (remotes[i].object != NULL) ladei_source_object_close(remotes[i].object);
    free(remotes[i].begin);
    remotes[i] = (ladei_loader_remote){.object = NULL};
  }
}

lade_status ladei_loader_remote_read(const ladei_loader_remote *remote, uint64_t offset, void *out, size_t bytes) {
  size_t there = offset < remote->begin_bytes ? ladei_size_min(bytes, remote->begin_bytes - (size_t)offset) : 0;
  memcpy(out, remote->begin + (there > 0 ? offset : 0), there);
  if (there == bytes) return LADE_OK;
  ladei_source_read read = {
      .object = remote->object, .offset = offset + there, .buffer = (char *)out + there, .bytes = bytes - there};
  return ladei_source_read_run(&read, NULL);
}

lade_status ladei_loader_lone_open(const char *url, ladei_loader_lone *out) {
  static const ladei_source_options choices = {.attempts = 0};
  LADEI_TRY(ladei_source_client_create(&choices, &out->client));
  lade_status status = ladei_loader_remotes_open(out->client, &url, 1, &out->remote);
  if (status != LADE_OK) ladei_source_client_destroy(out->client);
  return status;
}

void ladei_loader_lone_close(ladei_loader_lone *lone) {
  ladei_loader_remotes_close(&lone->remote, 1);
  ladei_source_client_destroy(lone->client);
}
