/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool: the types, and the functions that change one. The counting is in usage.h, the statistics
 * for users in stats.h.
 *
 * A counter is an atomic of its own, without a lock, where its comment names no guard.
 */
#ifndef LADE_HOST_CACHES_COUNTERS_H
#define LADE_HOST_CACHES_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "host/blocks/size_class.h"
#include "host/caches/stat_list.h"
#include "lade/pinned.h"

/* A quantity that goes up and down. */
typedef struct ladei_pinned_gauge {
  _Atomic(uint64_t) current;
  _Atomic(uint64_t) allocated; /* sum of all increases; less `current`: sum of all decreases */
  _Atomic(uint64_t) peak;
} ladei_pinned_gauge;

void ladei_pinned_gauge_sub(ladei_pinned_gauge *gauge, uint64_t amount);
/* Adds unless that would take the gauge above `max`. */
bool ladei_pinned_gauge_add_below(ladei_pinned_gauge *gauge, uint64_t amount, uint64_t max);

static inline uint64_t ladei_pinned_gauge_current(const ladei_pinned_gauge *gauge) {
  return atomic_load_explicit(&gauge->current, memory_order_relaxed);
}

/* A current value as far as the threads have published, and its peak. */
typedef struct ladei_pinned_published {
  _Atomic(uint64_t) current; /* modulo 2^64: a thread may publish its frees before another publishes the allocs */
  _Atomic(uint64_t) peak;
} ladei_pinned_published;

/* Blocks and their bytes. */
typedef struct ladei_pinned_amount {
  uint64_t blocks, bytes;
} ladei_pinned_amount;

/* Blocks in use as far as the threads have published. */
typedef struct ladei_pinned_published_use {
  ladei_pinned_published blocks, bytes, requested;
} ladei_pinned_published_use;

/* One thread's part of them. */
typedef struct ladei_pinned_thread_use {
  uint64_t blocks, bytes, requested;
} ladei_pinned_thread_use;

/* Blocks that go one way, ever. */
typedef struct ladei_pinned_counter_pair {
  _Atomic(uint64_t) blocks, bytes;
} ladei_pinned_counter_pair;

/* Pending blocks, ever: those that were freed while streams used them, and those that are pending no longer. */
typedef struct ladei_pinned_pending_flow {
  ladei_pinned_counter_pair freed, retired;
} ladei_pinned_pending_flow;

/* The same as far as the threads have published, and the most at any time. */
typedef struct ladei_pinned_pending {
  ladei_pinned_counter_pair published; /* freed less retired, modulo 2^64 */
  _Atomic(uint64_t) peak_blocks, peak_bytes;
} ladei_pinned_pending;

/* Of one class on one node, or of the node. Threads write to those of different classes: apart, as processors fetch cache
 * lines in pairs. */
typedef struct ladei_pinned_level_counters {
  _Alignas(128) ladei_pinned_published_use in_use;
  ladei_pinned_pending pending;
  ladei_pinned_amount cached_peak; /* guard: pool->threads.lock */
} ladei_pinned_level_counters;

typedef struct ladei_pinned_node_counters {
  ladei_pinned_level_counters level;
  ladei_pinned_level_counters classes[LADEI_PINNED_CLASSES];
} ladei_pinned_node_counters;

/* Calls of one kind and the time in them. */
typedef struct ladei_pinned_timer {
  _Atomic(uint64_t) count, total_ns, min_ns, max_ns; /* min_ns: UINT64_MAX before the first */
} ladei_pinned_timer;

void ladei_pinned_timer_init(ladei_pinned_timer *timer);
void ladei_pinned_timer_add(ladei_pinned_timer *timer, uint64_t calls, uint64_t ns);
/* The shortest and the longest start anew. */
void ladei_pinned_timer_reset_extremes(ladei_pinned_timer *timer);

#define LADEI_PINNED_COUNTER_FIELD(name) _Atomic(uint64_t) name;

typedef struct ladei_pinned_pool_counters {
  ladei_pinned_gauge reserved_bytes;
  ladei_pinned_gauge segments;       /* pinned, on their way between a node and the driver included */
  ladei_pinned_published_use in_use; /* its peaks; current is the sum of the nodes' */
  ladei_pinned_pending pending;
  ladei_pinned_amount cached_peak; /* guard: pool->threads.lock */
  _Atomic(uint64_t) hits;          /* as read last */
  _Atomic(uint64_t) misses;
  LADEI_PINNED_STATS(LADEI_PINNED_STAT_NONE, LADEI_PINNED_STAT_NONE, LADEI_PINNED_COUNTER_FIELD, LADEI_PINNED_STAT_NONE)
  ladei_pinned_timer driver_allocs, driver_frees;
  lade_pinned_stats base; /* the sums at their last reset; guard: pool->threads.lock */
} ladei_pinned_pool_counters;

static inline void ladei_pinned_count(_Atomic(uint64_t) *counter, uint64_t amount) {
  atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

static inline uint64_t ladei_pinned_counter_read(const _Atomic(uint64_t) *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void ladei_pinned_peak_raise(_Atomic(uint64_t) *peak, uint64_t value) {
  uint64_t old = atomic_load_explicit(peak, memory_order_relaxed);
  while (old < value &&
         !atomic_compare_exchange_weak_explicit(peak, &old, value, memory_order_relaxed, memory_order_relaxed)) {
  }
}

/* A pair that several threads count in. */
static inline void ladei_pinned_counter_pair_add(ladei_pinned_counter_pair *pair, uint64_t blocks, uint64_t bytes) {
  atomic_fetch_add_explicit(&pair->blocks, blocks, memory_order_release);
  atomic_fetch_add_explicit(&pair->bytes, bytes, memory_order_release);
}

/* Acquire: a reader of a pair of returned blocks sees all that happened to those blocks before. */
static inline ladei_pinned_amount ladei_pinned_counter_pair_read(const ladei_pinned_counter_pair *pair) {
  uint64_t blocks = atomic_load_explicit(&pair->blocks, memory_order_acquire);
  return (ladei_pinned_amount){blocks, atomic_load_explicit(&pair->bytes, memory_order_acquire)};
}

/* Adds the pair's sums to those of others. */
static inline void ladei_pinned_counter_pair_sum(ladei_pinned_amount *sum, const ladei_pinned_counter_pair *pair) {
  sum->blocks += ladei_pinned_counter_read(&pair->blocks);
  sum->bytes += ladei_pinned_counter_read(&pair->bytes);
}

static inline void ladei_pinned_amount_add(ladei_pinned_amount *sum, ladei_pinned_amount amount) {
  sum->blocks += amount.blocks;
  sum->bytes += amount.bytes;
}

#endif /* LADE_HOST_CACHES_COUNTERS_H */
