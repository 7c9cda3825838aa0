/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in use and what is pending: counted by threads, published to nodes, summed when it is read.
 *
 * U1  Current values and sums are exact whenever no thread is inside the pool.
 * U2  The peaks of what is in use are taken when threads refill or flush a magazine, and at each read (stats.c); they are
 *     wrong by at most what magazines and bins hold. Those of pending are taken at each batch of a thread's frees, and at
 *     each read; they are wrong by at most what threads have freed since their last batches.
 *
 * Note [Peak of pending]
 *   A free counts with its thread alone, or every free of every thread would meet in one word. The thread publishes to the node
 *   after 16 frees of a class, and before some of the class come back in its own call. So a
 *   peak misses at most 15 blocks of each class and thread, those of other threads than the one in which blocks come
 *   back. Before, every such moment summed all threads' counters: 57 us for each batch with 1,000 of them.
 *
 * Locks: pool->threads_lock keeps the list of threads still while it is summed; every counter is an atomic of its own. A sum
 * over 1,000 threads takes milliseconds, so it is made without pool->lock: only other readers wait for it, and threads that
 * begin or end.
 */
#include "host/usage.h"

#include "host/pool_state.h"

/* ---- In use ------------------------------------------------------------------------------------------------------ */

static void published_change(ladei_pinned_published *published, uint64_t before, uint64_t now) {
  if (now == before) return;
  uint64_t change = now - before; /* modulo 2^64 */
  uint64_t current = atomic_fetch_add_explicit(&published->current, change, memory_order_relaxed) + change;
  if ((int64_t)current > 0) ladei_pinned_peak_raise(&published->peak, current);
}

static void published_use_change(ladei_pinned_published_use *published, const ladei_pinned_thread_use *before,
                                 const ladei_pinned_thread_use *now) {
  published_change(&published->blocks, before->blocks, now->blocks);
  published_change(&published->bytes, before->bytes, now->bytes);
  published_change(&published->requested, before->requested, now->requested);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_peaks_raise(lade_pinned_pool *pool) {
  ladei_pinned_thread_use sum = {0, 0, 0};
  uint32_t count = ladei_pinned_pool_node_count(pool);
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    const ladei_pinned_published_use *published = &ladei_pinned_pool_node(pool, i)->counters.level.in_use;
    sum.blocks += ladei_pinned_counter_read(&published->blocks.current);
    sum.bytes += ladei_pinned_counter_read(&published->bytes.current);
    sum.requested += ladei_pinned_counter_read(&published->requested.current);
  }
  if (count > 1 && (int64_t)sum.blocks > 0 && (int64_t)sum.bytes > 0 && (int64_t)sum.requested > 0) {
    ladei_pinned_peak_raise(&pool->counters.in_use.blocks.peak, sum.blocks);
    ladei_pinned_peak_raise(&pool->counters.in_use.bytes.peak, sum.bytes);
    ladei_pinned_peak_raise(&pool->counters.in_use.requested.peak, sum.requested);
  }
}

void ladei_pinned_in_use_publish(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                                 const ladei_pinned_thread_use *before, const ladei_pinned_thread_use *now) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  published_use_change(&counters->level.in_use, before, now);
  published_use_change(&counters->classes[class_index].level.in_use, before, now);
  pool_peaks_raise(pool);
}

/* ---- Pending ----------------------------------------------------------------------------------------------------- */

/* Less than nothing: what came back was not published before. */
static void pending_peak_raise(ladei_pinned_pending *pending, uint64_t blocks, uint64_t bytes) {
  if ((int64_t)blocks > 0) ladei_pinned_peak_raise(&pending->peak_blocks, blocks);
  if ((int64_t)bytes > 0) ladei_pinned_peak_raise(&pending->peak_bytes, bytes);
}

/* `published` was published last: so never more than what was pending at that moment. */
static ladei_pinned_amount pending_now(ladei_pinned_pending *pending) {
  ladei_pinned_amount published = ladei_pinned_counter_pair_read(&pending->published),
                      retired = ladei_pinned_counter_pair_read(&pending->retired);
  return (ladei_pinned_amount){published.blocks - retired.blocks, published.bytes - retired.bytes};
}

static void level_pending_publish(ladei_pinned_pending *pending, uint64_t blocks, uint64_t bytes) {
  ladei_pinned_counter_pair_add(&pending->published, blocks, bytes);
  ladei_pinned_amount now = pending_now(pending);
  pending_peak_raise(pending, now.blocks, now.bytes);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_pending_raise(lade_pinned_pool *pool) {
  uint32_t count = ladei_pinned_pool_node_count(pool);
  ladei_pinned_amount sum = {0, 0};
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    ladei_pinned_amount now = pending_now(&ladei_pinned_pool_node(pool, i)->counters.level.pending);
    sum.blocks += now.blocks;
    sum.bytes += now.bytes;
  }
  if (count > 1) pending_peak_raise(&pool->counters.pending, sum.blocks, sum.bytes);
}

static void node_pending_publish(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t blocks,
                                 uint64_t bytes) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level_pending_publish(&counters->level.pending, blocks, bytes);
  level_pending_publish(&counters->classes[class_index].level.pending, blocks, bytes);
  pool_pending_raise(pool);
}

void ladei_pinned_pending_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                  unsigned class_index) {
  ladei_pinned_amount now = ladei_pinned_counter_pair_read(&counters->class_pending[class_index]),
                      *published = &counters->pending_published[class_index];
  if (now.blocks != published->blocks) {
    node_pending_publish(pool, counters->node, class_index, now.blocks - published->blocks,
                         now.bytes - published->bytes);
    *published = now;
  }
}

/* In counters of several threads. Apart, so that the usual way needs no frame. */
static __attribute__((noinline)) void shared_pending_add(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                                                         uint64_t bytes) {
  ladei_pinned_thread_counters *exited = ladei_pinned_pool_exited(pool, node);
  ladei_pinned_counter_pair_add(&exited->pending, 1, bytes);
  ladei_pinned_counter_pair_add(&exited->class_pending[class_index], 1, bytes);
  node_pending_publish(pool, node, class_index, 1, bytes);
}

void ladei_pinned_pending_add(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned node,
                              unsigned class_index, uint64_t bytes) {
  enum { BATCH = 16 };
  if (counters == NULL) {
    shared_pending_add(pool, node, class_index, bytes);
    return;
  }
  ladei_pinned_counter_pair *own = &counters->class_pending[class_index];
  ladei_pinned_class_counts_add(&counters->pending.blocks, 1);
  ladei_pinned_class_counts_add(&counters->pending.bytes, bytes);
  ladei_pinned_class_counts_add(&own->blocks, 1);
  ladei_pinned_class_counts_add(&own->bytes, bytes);
  uint64_t unpublished = ladei_pinned_counter_read(&own->blocks) - counters->pending_published[class_index].blocks;
  if (unpublished >= BATCH) ladei_pinned_pending_publish(pool, counters, class_index);
}

void ladei_pinned_pending_sub(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_pinned_amount amount) {
  ladei_pinned_node_counters *node_counters = &ladei_pinned_pool_node(pool, node)->counters;
  const ladei_pinned_thread_cache *cache = ladei_pinned_thread_cache_fast(pool->id);
  ladei_pinned_thread_counters *counters = cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, node);
  if (counters != NULL)
    ladei_pinned_pending_publish(pool, counters, class_index); /* while its blocks are pending yet */
  ladei_pinned_counter_pair_add(&node_counters->level.pending.retired, amount.blocks, amount.bytes);
  ladei_pinned_counter_pair_add(&node_counters->classes[class_index].level.pending.retired, amount.blocks,
                                amount.bytes);
}

/* ---- Thread counters ----------------------------------------------------------------------------------------------- */

static uint64_t difference(const _Atomic(uint64_t) *more, const _Atomic(uint64_t) *less) {
  return atomic_load_explicit(more, memory_order_relaxed) - atomic_load_explicit(less, memory_order_relaxed);
}

void ladei_pinned_class_counts_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                       unsigned class_index) {
  ladei_pinned_class_counts *counts = &counters->classes[class_index];
  ladei_pinned_thread_use before = {counts->published_blocks, 0, counts->published_requested};
  ladei_pinned_thread_use now = {difference(&counts->allocs, &counts->frees), 0,
                                 difference(&counts->requested_allocated, &counts->requested_freed)};
  if (class_index < LADEI_PINNED_MAGAZINE_CLASSES) {
    before.bytes = before.blocks * counts->block_bytes;
    now.bytes = now.blocks * counts->block_bytes;
  } else {
    before.bytes = counters->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES];
    now.bytes = difference(&counts->bytes_allocated, &counts->bytes_freed);
    counters->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES] = now.bytes;
  }
  ladei_pinned_in_use_publish(pool, counters->node, class_index, &before, &now);
  counts->published_blocks = now.blocks;
  counts->published_requested = now.requested;
}

void ladei_pinned_class_counts_publish_frees(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                             unsigned class_index) {
  const ladei_pinned_class_counts *counts = &counters->classes[class_index];
  uint64_t unpublished = counts->published_blocks - difference(&counts->allocs, &counts->frees);
  if ((int64_t)unpublished >= (class_index < LADEI_PINNED_MAGAZINE_CLASSES ? LADEI_PINNED_MAGAZINE_MAX_BLOCKS : 1))
    ladei_pinned_class_counts_publish(pool, counters, class_index);
}

/* ---- Sums over the threads --------------------------------------------------------------------------------------- */

/* All that ever became pending on a node. Under pool->threads_lock. */
static ladei_pinned_amount node_pending_allocated(const lade_pinned_pool *pool, unsigned node) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_amount sum = {0, 0};
  ladei_pinned_counter_pair_sum(&sum, &ladei_pinned_pool_exited(pool, node)->pending);
  for (const ladei_pinned_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, node);
    if (counters != NULL) ladei_pinned_counter_pair_sum(&sum, &counters->pending);
  }
  return sum;
}

/* What is retired is read first: it was pending before. */
ladei_pinned_amount ladei_pinned_pending_read(lade_pinned_pool *pool) {
  ladei_pinned_amount now = {0, 0};
  ladei_lock_acquire(&pool->threads_lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_pending *pending = &ladei_pinned_pool_node(pool, i)->counters.level.pending;
    ladei_pinned_amount retired = ladei_pinned_counter_pair_read(&pending->retired),
                        allocated = node_pending_allocated(pool, i);
    ladei_pinned_amount own = {allocated.blocks - retired.blocks, allocated.bytes - retired.bytes};
    ladei_pinned_amount_add(&now, own);
  }
  ladei_lock_release(&pool->threads_lock);
  return now;
}

ladei_pinned_amount ladei_pinned_retired_read(const lade_pinned_pool *pool) {
  ladei_pinned_amount sum = {0, 0};
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    ladei_pinned_amount_add(
        &sum, ladei_pinned_counter_pair_read(&ladei_pinned_pool_node(pool, i)->counters.level.pending.retired));
  return sum;
}

static void class_counts_sum(const lade_pinned_pool *pool, const ladei_pinned_thread_counters *counters,
                             unsigned class_index, ladei_pinned_usage *sum) {
  const ladei_pinned_class_counts *counts = &counters->classes[class_index];
  uint64_t allocs = ladei_pinned_counter_read(&counts->allocs), frees = ladei_pinned_counter_read(&counts->frees);
  bool fixed = !ladei_pinned_pool_counts_bytes(pool, class_index);
  sum->allocs += allocs;
  sum->frees += frees;
  sum->requested_allocated += ladei_pinned_counter_read(&counts->requested_allocated);
  sum->requested_freed += ladei_pinned_counter_read(&counts->requested_freed);
  sum->bytes_allocated += fixed ? allocs * counts->block_bytes : ladei_pinned_counter_read(&counts->bytes_allocated);
  sum->bytes_freed += fixed ? frees * counts->block_bytes : ladei_pinned_counter_read(&counts->bytes_freed);
  ladei_pinned_counter_pair_sum(&sum->pending_allocated, &counters->class_pending[class_index]);
}

ladei_pinned_usage ladei_pinned_class_usage_read(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_usage sum = {0};
  class_counts_sum(pool, ladei_pinned_pool_exited(pool, node), class_index, &sum);
  for (const ladei_pinned_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, node);
    if (counters != NULL) class_counts_sum(pool, counters, class_index, &sum);
  }
  return sum;
}

void ladei_pinned_usage_add(ladei_pinned_usage *sum, const ladei_pinned_usage *usage) {
  sum->allocs += usage->allocs;
  sum->frees += usage->frees;
  sum->requested_allocated += usage->requested_allocated;
  sum->requested_freed += usage->requested_freed;
  sum->bytes_allocated += usage->bytes_allocated;
  sum->bytes_freed += usage->bytes_freed;
  ladei_pinned_amount_add(&sum->pending_allocated, usage->pending_allocated);
}

void ladei_pinned_usage_read(lade_pinned_pool *pool, ladei_pinned_usage *out) {
  *out = (ladei_pinned_usage){0};
  ladei_lock_acquire(&pool->threads_lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
      ladei_pinned_usage usage = ladei_pinned_class_usage_read(pool, i, c);
      ladei_pinned_usage_add(out, &usage);
    }
  }
  ladei_lock_release(&pool->threads_lock);
}
