/* SPDX-License-Identifier: Apache-2.0 */
/* For saves to files and to objects: progress, copies from devices, the index. Locks: none. */
#include "loaders/save.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "loaders/text.h"

uint64_t ladei_loader_save_tensor_bytes(const lade_tensor *tensor) {
  uint64_t bytes = 0;
  (void)ladei_loader_tensor_bytes((lade_dtype)tensor->dtype, tensor->shape, tensor->rank, &bytes); /* checked before */
  return bytes;
}

lade_status ladei_loader_save_cancel_check(const ladei_loader_save *s) {
  return atomic_load_explicit(&s->cancelled, memory_order_relaxed)
             ? ladei_error(LADE_ERR_CANCELLED, 0, "save: cancelled")
             : LADE_OK;
}

lade_status ladei_loader_save_look(ladei_loader_save *s) {
  ladei_lock_assert_none_held();
  uint64_t done = 0;
  lade_status cancelled = ladei_loader_save_cancel_check(s);
  if (cancelled != LADE_OK || s->options.progress == NULL) return cancelled;
  lade_status status = s->remote == NULL ? ladei_loader_ticket_list_query(&s->tickets, &done) : LADE_OK;
  if (status != LADE_OK && status != LADE_NOT_READY) return status;
  s->host_bytes_told = s->host_bytes;
  lade_status told = s->options.progress(s->options.user, done + s->host_bytes, s->bytes);
  return told == LADE_OK ? LADE_OK : ladei_error(LADE_ERR_CANCELLED, 0, "save: ended by its progress callback");
}

lade_status ladei_loader_save_ranges_submit(const ladei_loader_save *s, ladei_loader_ticket_list *tickets,
                                            uint32_t target, const lade_piece *ranges, uint64_t count,
                                            bool after_stream) {
  lade_transfer transfer;
  if (count == 0) return LADE_OK;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_HOST;
  transfer.after_stream = after_stream ? 1 : 0;
  transfer.stream = s->targets[target].stream;
  transfer.pieces = ranges;
  transfer.piece_count = count;
  return ladei_loader_ticket_list_submit(tickets, s->targets[target].pipeline, &transfer);
}

/* Which tensor is in which file, by name. */
typedef struct mapping {
  const char *tensor, *file;
} mapping;

static int mapping_compare(const void *a, const void *b) {
  return strcmp(((const mapping *)a)->tensor, ((const mapping *)b)->tensor);
}

static mapping *mappings_list(const ladei_loader_save *s) {
  size_t count = 0;
  mapping *list = calloc(s->tensor_count + 1, sizeof *list);
  for (size_t i = 0; i < s->shard_count && list != NULL; i++)
    for (size_t j = 0; j < s->shards[i].count; j++)
      list[count++] = (mapping){s->shards[i].entries[j].name, s->shards[i].name};
  if (list != NULL) qsort(list, count, sizeof *list, mapping_compare);
  return list;
}

/* As Python's json.dumps(..., indent=2, sort_keys=True) writes it, and a newline. */
static void index_put(const ladei_loader_save *s, const mapping *list, ladei_loader_text *t) {
  ladei_loader_text_put_string(t, "{\n  \"metadata\": {\n    \"" LADEI_LOADER_SAVE_ID_KEY "\": ");
  ladei_loader_text_put_quoted(t, s->generation.id, true);
  ladei_loader_text_put_string(t, ",\n    \"total_size\": ");
  ladei_loader_text_put_number(t, s->bytes);
  ladei_loader_text_put_string(t, "\n  },\n  \"weight_map\": {");
  for (size_t i = 0; i < s->tensor_count; i++) {
    ladei_loader_text_put_string(t, i > 0 ? ",\n    " : "\n    ");
    ladei_loader_text_put_quoted(t, list[i].tensor, true);
    ladei_loader_text_put_string(t, ": ");
    ladei_loader_text_put_quoted(t, list[i].file, true);
  }
  ladei_loader_text_put_string(t, "\n  }\n}\n");
}

lade_status ladei_loader_save_index_text(const ladei_loader_save *s, char **out, size_t *out_bytes) {
  ladei_loader_text text = {0};
  mapping *list = mappings_list(s);
  if (list != NULL) index_put(s, list, &text);
  bool good = list != NULL && !text.failed;
  free(list);
  if (good) {
    *out = text.bytes;
    *out_bytes = text.length;
    return LADE_OK;
  }
  free(text.bytes);
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory");
}
