/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool.
 *
 * What every alloc and free counts is counted by the threads (thread_cache.h) and summed when it is read; the pool's
 * own counters are of what happens less often.
 */
#ifndef LADE_HOST_STATS_H
#define LADE_HOST_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "lade/pinned.h"

/* A quantity that goes up and down. */
typedef struct ladei_gauge {
  _Atomic(uint64_t) current;
  _Atomic(uint64_t) allocated; /* sum of all increases; less `current`: sum of all decreases */
  _Atomic(uint64_t) peak;
} ladei_gauge;

void ladei_gauge_sub(ladei_gauge *gauge, uint64_t amount);
/* Adds unless that would take the gauge above `max`. */
bool ladei_gauge_add_below(ladei_gauge *gauge, uint64_t amount, uint64_t max);

static inline uint64_t ladei_gauge_current(const ladei_gauge *gauge) {
  return atomic_load_explicit(&gauge->current, memory_order_relaxed);
}

/* A current value as far as the threads have told, and its peak. */
typedef struct ladei_published {
  _Atomic(uint64_t) current; /* modulo 2^64: a thread may tell its frees before another tells the allocs */
  _Atomic(uint64_t) peak;
} ladei_published;

void ladei_published_change(ladei_published *published, uint64_t before, uint64_t now);

/* Blocks and their bytes. */
typedef struct ladei_amount {
  uint64_t blocks, bytes;
} ladei_amount;

struct ladei_thread_cache;

/* Pending blocks. What becomes pending is counted by the thread that frees it, what no longer is by the pool. */
void ladei_pending_add(lade_pinned_pool *pool, struct ladei_thread_cache *cache, uint64_t bytes);
void ladei_pending_sub(lade_pinned_pool *pool, uint64_t blocks, uint64_t bytes);
ladei_amount ladei_pending_read(lade_pinned_pool *pool);

typedef struct ladei_pool_counters {
  ladei_gauge reserved_bytes;
  ladei_amount pending_retired, pending_peak;                          /* guard: pool->lock */
  _Atomic(uint64_t) pending_blocks_allocated, pending_bytes_allocated; /* told by threads that have no cache any more */
  ladei_published in_use_blocks, in_use_bytes, requested_bytes;
  _Atomic(uint64_t) misses, limit_waits, other_node_takes;
  _Atomic(uint64_t) driver_allocs, driver_frees, driver_alloc_ns, driver_free_ns;
} ladei_pool_counters;

static inline void ladei_count(_Atomic(uint64_t) *counter, uint64_t amount) {
  atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

/* Sums over all threads and classes. */
typedef struct ladei_usage {
  uint64_t allocs, frees, requested_allocated, requested_freed, bytes_allocated, bytes_freed;
  ladei_amount pending_allocated, pending_retired, pending_peak;
} ladei_usage;

void ladei_usage_read(lade_pinned_pool *pool, ladei_usage *out);

#endif /* LADE_HOST_STATS_H */
