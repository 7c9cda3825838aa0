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

#include "host/size_class.h"
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

/* A current value as far as the threads have told, and its peak. */
typedef struct ladei_pinned_published {
  _Atomic(uint64_t) current; /* modulo 2^64: a thread may tell its frees before another tells the allocs */
  _Atomic(uint64_t) peak;
} ladei_pinned_published;

void ladei_pinned_published_change(ladei_pinned_published *published, uint64_t before, uint64_t now);

/* Blocks and their bytes. */
typedef struct ladei_pinned_amount {
  uint64_t blocks, bytes;
} ladei_pinned_amount;

/* Blocks in use as far as the threads have told. */
typedef struct ladei_pinned_published_use {
  ladei_pinned_published blocks, bytes, requested;
} ladei_pinned_published_use;

/* What one thread tells of one class: before, and now. */
typedef struct ladei_pinned_thread_use {
  uint64_t blocks, bytes, requested;
} ladei_pinned_thread_use;

/* Blocks that go one way between a node's free memory and the rest, ever. Written under the node's lock. */
typedef struct ladei_pinned_counter_pair {
  _Atomic(uint64_t) blocks, bytes;
} ladei_pinned_counter_pair;

/* The same of pending blocks: what the threads have told, ever; what is pending no longer, ever; the most between. */
typedef struct ladei_pinned_pending {
  ladei_pinned_counter_pair told, retired; /* of several threads */
  _Atomic(uint64_t) peak_blocks, peak_bytes;
} ladei_pinned_pending;

/* Of one class on one node, or of the node. */
typedef struct ladei_pinned_level_counters {
  ladei_pinned_published_use in_use;
  ladei_pinned_pending pending;
  ladei_pinned_amount cached_peak; /* guard: pool->threads_lock */
} ladei_pinned_level_counters;

typedef struct ladei_pinned_class_counters {
  ladei_pinned_level_counters level;
  ladei_pinned_counter_pair cut, joined; /* out of free memory, and back */
} ladei_pinned_class_counters;

typedef struct ladei_pinned_node_counters {
  ladei_pinned_level_counters level;
  ladei_pinned_class_counters classes[LADEI_PINNED_CLASSES];
} ladei_pinned_node_counters;

/* Calls of one kind and the time in them. */
typedef struct ladei_pinned_timer {
  _Atomic(uint64_t) count, total_ns, min_ns, max_ns; /* min_ns: UINT64_MAX before the first */
} ladei_pinned_timer;

void ladei_pinned_timer_init(ladei_pinned_timer *timer);
void ladei_pinned_timer_add(ladei_pinned_timer *timer, uint64_t calls, uint64_t ns);

/* Sums that lade_pinned_stats has under the same names: a new one is a name here, and a field there. */
#define LADEI_PINNED_SUMS(X)         X(limit_waits) X(other_node_takes) X(unreached_caches)
#define LADEI_PINNED_SUM_FIELD(name) _Atomic(uint64_t) name;

typedef struct ladei_pinned_pool_counters {
  ladei_pinned_gauge reserved_bytes;
  ladei_pinned_published_use in_use; /* its peaks; current is the sum of the nodes' */
  ladei_pinned_pending pending;      /* the same */
  ladei_pinned_amount cached_peak;   /* guard: pool->threads_lock */
  _Atomic(uint64_t) hits;            /* as read last */
  _Atomic(uint64_t) misses;
  LADEI_PINNED_SUMS(LADEI_PINNED_SUM_FIELD)
  ladei_pinned_timer driver_allocs, driver_frees;
} ladei_pinned_pool_counters;

static inline void ladei_pinned_count(_Atomic(uint64_t) *counter, uint64_t amount) {
  atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

struct ladei_pinned_thread_counters;

/* Pending blocks. What becomes pending is counted by the thread that frees it (its tallies of the node, or the node's of
 * threads that have none), what no longer is by the node. Note [Peak of pending] */
void ladei_pinned_pending_add(lade_pinned_pool *pool, struct ladei_pinned_thread_counters *tallies, unsigned node,
                              unsigned class_index, uint64_t bytes);
void ladei_pinned_pending_sub(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_pinned_amount amount);
/* A thread shows the node what it has freed of a class since the last time. By the owner of the tallies, or after it. */
void ladei_pinned_pending_tell(lade_pinned_pool *pool, struct ladei_pinned_thread_counters *tallies,
                               unsigned class_index);
ladei_pinned_amount ladei_pinned_pending_read(lade_pinned_pool *pool);
/* What is pending no longer, ever: differs where blocks have come back meanwhile. */
ladei_pinned_amount ladei_pinned_retired_read(const lade_pinned_pool *pool);

/* A thread's use of a class changed: at refill and flush; with every call where threads have no tallies. */
void ladei_pinned_in_use_tell(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                              const ladei_pinned_thread_use *before, const ladei_pinned_thread_use *now);

/* Sums over all threads. */
typedef struct ladei_pinned_usage {
  uint64_t allocs, frees, requested_allocated, requested_freed, bytes_allocated, bytes_freed;
  ladei_pinned_amount pending_allocated;
} ladei_pinned_usage;

/* Of all nodes and classes. */
void ladei_pinned_usage_read(lade_pinned_pool *pool, ladei_pinned_usage *out);

/* What users are told of a class, a node or the pool. */
typedef struct ladei_pinned_gauges {
  lade_pinned_gauge requested_bytes, in_use_bytes, pending_bytes, cached_bytes;
  lade_pinned_gauge in_use_blocks, pending_blocks, cached_blocks;
} ladei_pinned_gauges;

typedef struct ladei_pinned_node_gauges {
  ladei_pinned_gauges gauges;
  lade_pinned_gauge reserved_bytes;
} ladei_pinned_node_gauges;

/* `out_classes` has LADEI_PINNED_CLASSES elements, or is NULL. */
void ladei_pinned_node_stats_read(lade_pinned_pool *pool, unsigned node, ladei_pinned_node_gauges *out,
                                  ladei_pinned_gauges *out_classes);

/* Raises the peaks of cached blocks: before memory is given back, after it came. */
void ladei_pinned_cached_note(lade_pinned_pool *pool);

#endif /* LADE_HOST_STATS_H */
