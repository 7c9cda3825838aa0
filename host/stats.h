/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of a pinned pool. */
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

void ladei_gauge_add(ladei_gauge *gauge, uint64_t amount);
void ladei_gauge_sub(ladei_gauge *gauge, uint64_t amount);
/* Adds unless that would take the gauge above `max`. */
bool ladei_gauge_add_below(ladei_gauge *gauge, uint64_t amount, uint64_t max);

static inline uint64_t ladei_gauge_current(const ladei_gauge *gauge) {
  return atomic_load_explicit(&gauge->current, memory_order_relaxed);
}

/* All atomic; a block in use or pending counts in the gauges from before it becomes so until after. */
typedef struct ladei_pool_counters {
  ladei_gauge requested_bytes, in_use_bytes, in_use_blocks;
  ladei_gauge pending_bytes, pending_blocks;
  ladei_gauge reserved_bytes;
  _Atomic(uint64_t) hits, misses, limit_waits;
  _Atomic(uint64_t) driver_allocs, driver_frees, driver_alloc_ns, driver_free_ns;
} ladei_pool_counters;

static inline void ladei_count(_Atomic(uint64_t) *counter, uint64_t amount) {
  atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

#endif /* LADE_HOST_STATS_H */
