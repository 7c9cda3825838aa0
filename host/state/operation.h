/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of the calls that histories and latencies count: alloc and free. */
#ifndef LADE_HOST_STATE_OPERATION_H
#define LADE_HOST_STATE_OPERATION_H

#include "host/state/latency.h"

typedef struct ladei_pinned_operation {
  ladei_pinned_latency_mark mark;
  ladei_pinned_history_call history; /* its `history` is NULL where the pool records none */
} ladei_pinned_operation;

/* `level`: from which on the history captures a context (LADE_CONTEXT_...). */
static inline void ladei_pinned_operation_begin(const lade_pinned_pool *pool, unsigned level,
                                                ladei_pinned_operation *out) {
  ladei_pinned_history *history = ladei_pinned_pool_recording(pool);
  out->mark = ladei_pinned_latency_begin(pool);
  out->history.history = NULL;
  if (history != NULL) ladei_pinned_history_begin(history, level, &out->history);
}

static inline void ladei_pinned_operation_end(lade_pinned_pool *pool, ladei_pinned_operation *own,
                                              ladei_latency_kind kind) {
  if (own->history.history != NULL) ladei_pinned_history_end(&own->history);
  ladei_pinned_latency_end(pool, own->mark, kind);
}

#endif /* LADE_HOST_STATE_OPERATION_H */
