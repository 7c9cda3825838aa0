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
 *   A free counts with its thread alone, or every free of every thread would meet in one word. The thread tells the node
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

static void told_change(ladei_pinned_published_use *told, const ladei_pinned_thread_use *before,
                        const ladei_pinned_thread_use *now) {
  ladei_pinned_published_change(&told->blocks, before->blocks, now->blocks);
  ladei_pinned_published_change(&told->bytes, before->bytes, now->bytes);
  ladei_pinned_published_change(&told->requested, before->requested, now->requested);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_peaks_raise(lade_pinned_pool *pool) {
  ladei_pinned_thread_use sum = {0, 0, 0};
  uint32_t count = ladei_pinned_pool_node_count(pool);
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    const ladei_pinned_published_use *told = &ladei_pinned_pool_node(pool, i)->counters.level.in_use;
    sum.blocks += ladei_pinned_counter_read(&told->blocks.current);
    sum.bytes += ladei_pinned_counter_read(&told->bytes.current);
    sum.requested += ladei_pinned_counter_read(&told->requested.current);
  }
  if (count > 1 && (int64_t)sum.blocks > 0 && (int64_t)sum.bytes > 0 && (int64_t)sum.requested > 0) {
    ladei_pinned_peak_raise(&pool->counters.in_use.blocks.peak, sum.blocks);
    ladei_pinned_peak_raise(&pool->counters.in_use.bytes.peak, sum.bytes);
    ladei_pinned_peak_raise(&pool->counters.in_use.requested.peak, sum.requested);
  }
}

void ladei_pinned_in_use_tell(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                              const ladei_pinned_thread_use *before, const ladei_pinned_thread_use *now) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  told_change(&counters->level.in_use, before, now);
  told_change(&counters->classes[class_index].level.in_use, before, now);
  pool_peaks_raise(pool);
}

/* ---- Pending ----------------------------------------------------------------------------------------------------- */

/* Less than nothing: what came back was not told before. */
static void pending_peak_raise(ladei_pinned_pending *pending, uint64_t blocks, uint64_t bytes) {
  if ((int64_t)blocks > 0) ladei_pinned_peak_raise(&pending->peak_blocks, blocks);
  if ((int64_t)bytes > 0) ladei_pinned_peak_raise(&pending->peak_bytes, bytes);
}

/* `told` was told last: so never more than what was pending at that moment. */
static ladei_pinned_amount pending_told(ladei_pinned_pending *pending) {
  ladei_pinned_amount told = ladei_pinned_counter_pair_read(&pending->told),
                      retired = ladei_pinned_counter_pair_read(&pending->retired);
  return (ladei_pinned_amount){told.blocks - retired.blocks, told.bytes - retired.bytes};
}

static void level_pending_tell(ladei_pinned_pending *pending, uint64_t blocks, uint64_t bytes) {
  ladei_pinned_counter_pair_add(&pending->told, blocks, bytes);
  ladei_pinned_amount now = pending_told(pending);
  pending_peak_raise(pending, now.blocks, now.bytes);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_pending_raise(lade_pinned_pool *pool) {
  uint32_t count = ladei_pinned_pool_node_count(pool);
  ladei_pinned_amount sum = {0, 0};
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    ladei_pinned_amount now = pending_told(&ladei_pinned_pool_node(pool, i)->counters.level.pending);
    sum.blocks += now.blocks;
    sum.bytes += now.bytes;
  }
  if (count > 1) pending_peak_raise(&pool->counters.pending, sum.blocks, sum.bytes);
}

static void node_pending_tell(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t blocks,
                              uint64_t bytes) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level_pending_tell(&counters->level.pending, blocks, bytes);
  level_pending_tell(&counters->classes[class_index].level.pending, blocks, bytes);
  pool_pending_raise(pool);
}

void ladei_pinned_pending_tell(lade_pinned_pool *pool, ladei_pinned_thread_counters *tallies, unsigned class_index) {
  ladei_pinned_amount now = ladei_pinned_counter_pair_read(&tallies->class_pending[class_index]),
                      *told = &tallies->pending_told[class_index];
  if (now.blocks != told->blocks) {
    node_pending_tell(pool, tallies->node, class_index, now.blocks - told->blocks, now.bytes - told->bytes);
    *told = now;
  }
}

void ladei_pinned_pending_add(lade_pinned_pool *pool, ladei_pinned_thread_counters *tallies, unsigned node,
                              unsigned class_index, uint64_t bytes) {
  enum { BATCH = 16 };
  if (tallies == NULL) {
    ladei_pinned_thread_counters *departed = ladei_pinned_pool_exited(pool, node); /* of several threads */
    ladei_pinned_counter_pair_add(&departed->pending, 1, bytes);
    ladei_pinned_counter_pair_add(&departed->class_pending[class_index], 1, bytes);
    node_pending_tell(pool, node, class_index, 1, bytes);
    return;
  }
  ladei_pinned_counter_pair *own = &tallies->class_pending[class_index];
  ladei_pinned_class_counts_add(&tallies->pending.blocks, 1);
  ladei_pinned_class_counts_add(&tallies->pending.bytes, bytes);
  ladei_pinned_class_counts_add(&own->blocks, 1);
  ladei_pinned_class_counts_add(&own->bytes, bytes);
  uint64_t untold = ladei_pinned_counter_read(&own->blocks) - tallies->pending_told[class_index].blocks;
  if (untold >= BATCH) ladei_pinned_pending_tell(pool, tallies, class_index);
}

void ladei_pinned_pending_sub(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_pinned_amount amount) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  const ladei_pinned_thread_cache *cache = ladei_pinned_thread_cache_fast(pool->id);
  ladei_pinned_thread_counters *tallies = cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, node);
  if (tallies != NULL) ladei_pinned_pending_tell(pool, tallies, class_index); /* while its blocks are pending yet */
  ladei_pinned_counter_pair_add(&counters->level.pending.retired, amount.blocks, amount.bytes);
  ladei_pinned_counter_pair_add(&counters->classes[class_index].level.pending.retired, amount.blocks, amount.bytes);
}

/* ---- Thread counters ----------------------------------------------------------------------------------------------- */

static uint64_t difference(const _Atomic(uint64_t) *more, const _Atomic(uint64_t) *less) {
  return atomic_load_explicit(more, memory_order_relaxed) - atomic_load_explicit(less, memory_order_relaxed);
}

void ladei_pinned_class_counts_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *tallies,
                                       unsigned class_index) {
  ladei_pinned_class_counts *tally = &tallies->classes[class_index];
  ladei_pinned_thread_use before = {tally->published_blocks, 0, tally->published_requested};
  ladei_pinned_thread_use now = {difference(&tally->allocs, &tally->frees), 0,
                                 difference(&tally->requested_allocated, &tally->requested_freed)};
  if (class_index < LADEI_PINNED_MAGAZINE_CLASSES) {
    before.bytes = before.blocks * tally->block_bytes;
    now.bytes = now.blocks * tally->block_bytes;
  } else {
    before.bytes = tallies->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES];
    now.bytes = difference(&tally->bytes_allocated, &tally->bytes_freed);
    tallies->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES] = now.bytes;
  }
  ladei_pinned_in_use_tell(pool, tallies->node, class_index, &before, &now);
  tally->published_blocks = now.blocks;
  tally->published_requested = now.requested;
}

void ladei_pinned_class_counts_publish_frees(lade_pinned_pool *pool, ladei_pinned_thread_counters *tallies,
                                             unsigned class_index) {
  const ladei_pinned_class_counts *tally = &tallies->classes[class_index];
  uint64_t untold = tally->published_blocks - difference(&tally->allocs, &tally->frees);
  if ((int64_t)untold >= (class_index < LADEI_PINNED_MAGAZINE_CLASSES ? LADEI_PINNED_MAGAZINE_MAX_BLOCKS : 1))
    ladei_pinned_class_counts_publish(pool, tallies, class_index);
}

/* ---- Sums over the threads --------------------------------------------------------------------------------------- */

/* All that ever became pending on a node. Under pool->threads_lock. */
static ladei_pinned_amount node_pending_allocated(const lade_pinned_pool *pool, unsigned node) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_amount sum = {0, 0};
  ladei_pinned_counter_pair_sum(&sum, &ladei_pinned_pool_exited(pool, node)->pending);
  for (const ladei_pinned_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *tallies = ladei_pinned_thread_counters_of(cache, node);
    if (tallies != NULL) ladei_pinned_counter_pair_sum(&sum, &tallies->pending);
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

static void tally_sum(const lade_pinned_pool *pool, const ladei_pinned_thread_counters *tallies, unsigned class_index,
                      ladei_pinned_usage *sum) {
  const ladei_pinned_class_counts *tally = &tallies->classes[class_index];
  uint64_t allocs = ladei_pinned_counter_read(&tally->allocs), frees = ladei_pinned_counter_read(&tally->frees);
  bool fixed = !ladei_pinned_pool_counts_bytes(pool, class_index);
  sum->allocs += allocs;
  sum->frees += frees;
  sum->requested_allocated += ladei_pinned_counter_read(&tally->requested_allocated);
  sum->requested_freed += ladei_pinned_counter_read(&tally->requested_freed);
  sum->bytes_allocated += fixed ? allocs * tally->block_bytes : ladei_pinned_counter_read(&tally->bytes_allocated);
  sum->bytes_freed += fixed ? frees * tally->block_bytes : ladei_pinned_counter_read(&tally->bytes_freed);
  ladei_pinned_counter_pair_sum(&sum->pending_allocated, &tallies->class_pending[class_index]);
}

ladei_pinned_usage ladei_pinned_class_usage_read(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_usage sum = {0};
  tally_sum(pool, ladei_pinned_pool_exited(pool, node), class_index, &sum);
  for (const ladei_pinned_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *tallies = ladei_pinned_thread_counters_of(cache, node);
    if (tallies != NULL) tally_sum(pool, tallies, class_index, &sum);
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
