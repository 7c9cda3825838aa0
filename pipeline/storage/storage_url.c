/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: none. The client is made by the first thread that opens a URL; one that comes second gives its own back. */
#include "pipeline/storage/storage_url.h"

static lade_status client_get(ladei_pipe_storage *storage, ladei_source_client **out) {
  ladei_source_client *mine, *there = atomic_load(&storage->sources);
  if (there == NULL) {
    lade_status status = ladei_source_client_create(&storage->url_limits, &mine);
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
  if (status != LADE_OK) return status;
  return ladei_source_object_open(client, file->source.name, file->source.version, &file->object);
}
