/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime with the copies left out: what the pipeline's reads (or writes) alone take, into the same pinned blocks, by
 * the same threads. Every other operation is the runtime's own.
 *
 * A pipeline learns nothing about its link from copies that take no time. So this one gets the chunk size that lade's has
 * chosen: it is made when that has run once.
 *
 * I1  The table is the runtime's, except for the copies, which succeed and move nothing.
 * Locks: none; the table is constant after it was made.
 */
#include "benchmarks/staging_copyless.h"

#include <stdlib.h>

#include "benchmarks/staging_messages.h"

typedef struct copyless {
  lade_runtime_ops ops;
  lade_runtime *below;
} copyless;

static lade_status copy_nothing(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                                const ladei_stream *stream) {
  (void)self, (void)direction, (void)dst, (void)src, (void)bytes, (void)stream;
  return LADE_OK;
}

/* The table's object is the one below's: it is not ours to close. */
static lade_status close_nothing(void *self) {
  (void)self;
  return LADE_OK;
}

bool staging_copyless_open(staging *s) {
  copyless *table = malloc(sizeof *table);
  if (table == NULL) {
    staging_error("no memory for the runtime without copies");
    return false;
  }
  table->ops = *s->runtime->ops;
  table->ops.copy = copy_nothing;
  table->ops.copy_batch = NULL;
  table->ops.close = close_nothing;
  if (ladei_runtime_adopt(&table->ops, s->runtime->self, s->runtime->software_device, &s->copyless) != LADE_OK) {
    staging_lade_error("the runtime without copies");
    free(table);
    return false;
  }
  s->copyless_table = table;
  return true;
}

bool staging_reads_alone_open(staging *s) {
  lade_pipeline_options options;
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  lade_pipeline_options_init(&options);
  if (s->reads_alone != NULL) return true;
  (void)lade_pipeline_info_get(lade_pair_pipeline(s->pair), &info);
  options.device = s->settings.device;
  options.chunk_bytes = info.chunk_bytes;
  options.depth = s->settings.depth;
  options.readers = info.readers;
  options.storage = (int32_t)s->settings.storage;
  if (lade_pipeline_create(s->copyless, lade_pair_pinned_pool(s->pair), &options, &s->reads_alone) != LADE_OK) {
    staging_lade_error("the pipeline without copies");
    return false;
  }
  return true;
}

bool staging_copyless_close(staging *s) {
  bool good = lade_pipeline_destroy(s->reads_alone, true) == LADE_OK;
  good = (s->copyless == NULL || lade_runtime_close(s->copyless) == LADE_OK) && good;
  free(s->copyless_table);
  return good;
}
