/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream objects (model in streams.c). All under the lock, unless said otherwise.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_STREAMS_H
#define LADE_RUNTIME_SOFT_STATE_STREAMS_H

#include "runtime/soft/state/model.h"

soft_stream *ladei_soft_stream_new(soft_runtime *rt, soft_device *device, ladei_stream_kind kind, bool blocking);

/* The program destroyed the stream: removes it from the blocking ones; it is recycled when idle and observed. */
void ladei_soft_stream_discard(soft_runtime *rt, soft_stream *stream);

/* The live stream of an ordinary handle, or NULL. */
static inline soft_stream *ladei_soft_stream_of_handle(const soft_runtime *rt, lade_stream handle) {
  const soft_stream_slot *slot = ladei_soft_table_find(&rt->stream_table, (uint64_t)(uintptr_t)handle);
  return slot == NULL ? NULL : slot->stream;
}

/* The stream of a resolved handle, or NULL with an error recorded. Under the lock. */
soft_stream *ladei_soft_stream_find(soft_runtime *rt, soft_op op, const ladei_stream *stream, lade_status *out_status);

static inline soft_stream *ladei_soft_stream_by_index(const soft_runtime *rt, uint64_t index) {
  return atomic_load_explicit(&rt->streams[index], memory_order_acquire);
}

bool ladei_soft_streams_open(soft_runtime *rt);
void ladei_soft_streams_close(soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_STATE_STREAMS_H */
