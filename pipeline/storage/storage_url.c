/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: none. The client is made by the first thread that opens a URL; one that comes second gives its own back. */
#include "pipeline/storage/storage_url.h"

static lade_status client_get(ladei_pipe_storage *storage, ladei_source_client **out) {
  static const ladei_source_options choices = {.attempts = 0};
  ladei_source_client *mine, *there = atomic_load(&storage->sources);
  if (there == NULL) {
    lade_status status = ladei_source_client_create(&choices, &mine);
    if (status != LADE_OK) return status;
    if (atomic_compare_exchange_strong(&storage->sources, &there, mine))
      there = mine;
    else
      ladei_source_client_destroy(mine);
  }
  *out = there;
  return LADE_OK;
}

lade_status ladei_pipe_storage_url_open(ladei_pipe_storage_file *file) {
  ladei_source_client *client;
  lade_status status = client_get(file->storage, &client);
  file->async = true;
  return status == LADE_OK ? ladei_source_object_open(client, file->source.name, &file->object) : status;
}

static void read_fill(ladei_pipe_storage_request *request) {
  request->read = (ladei_source_read){.object = request->file->object,
                                      .offset = request->offset,
                                      .buffer = request->buffer,
                                      .bytes = request->bytes,
                                      .user = request};
}

static void bytes_note(ladei_pipe_storage_request *request) {
  request->done = request->read.done;
  atomic_fetch_add_explicit(&request->file->storage->bytes_url, request->done, memory_order_relaxed);
}

static void read_ended(ladei_source_read *read, lade_status status) {
  ladei_pipe_storage_request *request = read->user;
  bytes_note(request);
  request->complete(request, status);
}

void ladei_pipe_storage_url_submit(ladei_pipe_storage_request *request) {
  read_fill(request);
  request->read.complete = read_ended;
  ladei_source_read_begin(&request->read);
}

lade_status ladei_pipe_storage_url_run(ladei_pipe_storage_request *request) {
  read_fill(request);
  lade_status status = ladei_source_read_run(&request->read);
  bytes_note(request);
  return status;
}
