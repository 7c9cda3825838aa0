/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies of a pinned pool's calls, counted while the program asks for it.
 *
 *   off   the fast path is as it is; the other calls look at `timed`
 *   on    no call is on the fast path (pool->fast.id), as with a history: begin reads the runtime's clock, end reads it
 *         again
 *
 * PL1  latencies is NULL until they are turned on for the first time, and there until the pool is destroyed.
 * PL2  A call that began while they were off is not counted.
 * Locks: pool->fast.lock (a leaf) for turning on and off.
 */
#ifndef LADE_HOST_STATE_LATENCY_H
#define LADE_HOST_STATE_LATENCY_H

#include "base/latency.h"
#include "host/state/pool_state.h"

/* A call that may be counted. */
typedef struct ladei_pinned_latency_mark {
  bool counted;
  uint64_t begin_ns;
} ladei_pinned_latency_mark;

static inline bool ladei_pinned_timed(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->fast.timed, memory_order_acquire);
}

static inline ladei_pinned_latency_mark ladei_pinned_latency_begin(const lade_pinned_pool *pool) {
  if (!ladei_pinned_timed(pool)) return (ladei_pinned_latency_mark){false, 0};
  return (ladei_pinned_latency_mark){true, ladei_pinned_pool_now_ns(pool)};
}

static inline void ladei_pinned_latency_end(lade_pinned_pool *pool, ladei_pinned_latency_mark mark,
                                            ladei_latency_kind kind) {
  if (mark.counted)
    ladei_latency_add(&pool->fast.latencies->kinds[kind], ladei_pinned_pool_now_ns(pool) - mark.begin_ns);
}

#endif /* LADE_HOST_STATE_LATENCY_H */
