/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions of the heap that choose among free blocks: which one serves a request, which ones go back to the driver.
 *
 * Free set of a pool, in its order (stream, size, address):
 *   s1: 512 @a  512 @c  4096 @b   s2: 1024 @d ...
 * so the first entry at or after (stream, size, 0) is the smallest block that fits, at the lowest address; one of
 * another stream means that there is none. (free_set.h keeps a set for each class of sizes.)
 *
 * Locks: the allocator's lock.
 */
#include "device/heap/decisions.h"

#include "device/heap/recent.h"

static ladei_device_block *block_of(const ladei_device_sorted_entry *entry) {
  return entry == NULL ? NULL : entry->block;
}

/* Next free block of the same stream; NULL after its last. */
static ladei_device_block *free_next(const ladei_device_block *block) {
  ladei_order_key key = ladei_device_block_free_key(block);
  return block_of(ladei_device_free_set_larger(&block->segment->pool->free, &key));
}

static ladei_device_block *free_previous(const ladei_device_block *block) {
  ladei_order_key key = ladei_device_block_free_key(block);
  return block_of(ladei_device_free_set_smaller(&block->segment->pool->free, &key));
}

static ladei_device_block *free_at_least(const ladei_device_block_pool *pool, uint64_t stream_key, size_t size) {
  return block_of(ladei_device_free_set_find(&pool->free, stream_key, size));
}

/* All free blocks of a pool. */
static ladei_device_block *all_first(const ladei_device_block_pool *pool) {
  return block_of(ladei_device_free_set_first(&pool->free));
}

static ladei_device_block *all_next(const ladei_device_block_pool *pool, const ladei_device_block *block) {
  ladei_order_key key = ladei_device_block_free_key(block);
  return block_of(ladei_device_free_set_next(&pool->free, &key));
}

/* ---- Best fit ---------------------------------------------------------------------------------------------------- */

/* The size that a free block could grow to in place. */
static size_t block_reach(const ladei_device_block *block) {
  const ladei_device_block *next = block->next;
  return block->size + (next != NULL && next->state == LADEI_DEVICE_HEAP_HOLE ? next->size : 0);
}

/* Among expandable blocks: the first whose successor would not be the tighter fit, judged by reach. */
static ladei_device_block *expandable_best(ladei_device_block *block) {
  for (ladei_device_block *next = free_next(block);
       next != NULL && ladei_device_heap_segment_expandable(block->segment) && block_reach(next) < block_reach(block);
       next = free_next(block))
    block = next;
  return block;
}

static inline ladei_device_block *best_fit(const ladei_device_block_pool *pool, uint64_t stream_key, size_t size,
                                           bool expandable) {
  ladei_device_block *block = free_at_least(pool, stream_key, size);
  if (block == NULL || !ladei_device_heap_segment_expandable(block->segment)) return block;
  if (expandable) return expandable_best(block);
  /* Turned off since: such memory is not for requests that were promised plain segments. */
  while (block != NULL && ladei_device_heap_segment_expandable(block->segment)) block = free_next(block);
  return block;
}

static inline ladei_device_block *pool_search(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                              uint64_t stream_key, size_t rounded, bool expandable) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_recent_forget(heap, stream_key, pool->is_small);
  if (heap->ages_tick) pool->searches++;
  ladei_device_block *block = best_fit(pool, stream_key, rounded, expandable);
  if (block == NULL) return NULL;
  /* PyTorch's no_split is about cutting alone. */
  size_t limit = pool->no_split && !heap->settings.reference ? 0 : heap->settings.max_split_bytes;
  /* An oversize block is never split: it may serve oversize requests only, and only those that nearly fill it. */
  if (rounded < limit && block->size >= limit) return NULL;
  if (rounded >= limit && block->size >= rounded + heap->settings.max_unsplit_slack) return NULL;
  return block;
}

ladei_device_block *ladei_device_pool_search(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                             uint64_t stream_key, size_t rounded) {
  return pool_search(heap, pool, stream_key, rounded, heap->settings.expandable_segments);
}

ladei_device_block *ladei_device_pool_search_plain(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                                   uint64_t stream_key, size_t rounded) {
  return pool_search(heap, pool, stream_key, rounded, false);
}

/* ---- What goes back to the driver -------------------------------------------------------------------------------- */

static bool block_is_whole_plain(const ladei_device_block *block) {
  return !ladei_device_block_is_split(block) && !ladei_device_heap_segment_expandable(block->segment);
}

static void block_leave(ladei_device_block *block, ladei_device_block_list *leaving) {
  ladei_device_block_remove(block);
  ladei_device_block_list_append(leaving, block);
}

bool ladei_device_pool_pick_oversize(ladei_device_heap *heap, ladei_device_block_pool *pool, uint64_t stream_key,
                                     size_t rounded, ladei_device_block_list *leaving) {
  ladei_device_heap_assert_locked(heap);
  size_t limit = heap->settings.max_split_bytes;
  if (limit == LADEI_DEVICE_SPLIT_UNLIMITED) return false;
  ladei_device_recent_forget_all(heap);
  size_t wanted = ladei_size_max(rounded, limit);
  for (ladei_device_block *block = free_at_least(pool, stream_key, wanted); block != NULL; block = free_next(block)) {
    if (block_is_whole_plain(block)) {
      block_leave(block, leaving);
      return true;
    }
  }
  size_t leaving_bytes = 0;
  ladei_device_block *smaller;
  for (ladei_device_block *block = block_of(ladei_device_free_set_largest(&pool->free, stream_key));
       block != NULL && block->size >= limit && leaving_bytes < wanted; block = smaller) {
    smaller = free_previous(block);
    if (block_is_whole_plain(block)) {
      leaving_bytes += block->size;
      block_leave(block, leaving);
    }
  }
  return leaving_bytes >= wanted;
}

void ladei_device_heap_pick_aged(ladei_device_heap *heap, uint64_t target, ladei_device_block_list *leaving) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_recent_forget_all(heap);
  const ladei_device_block_pool *pool = &heap->large_pool;
  double age_sum = 0.0;
  uint64_t candidates = 0;
  for (ladei_device_block *block = all_first(pool); block != NULL; block = all_next(pool, block)) {
    if (!block_is_whole_plain(block)) continue;
    age_sum += (double)ladei_device_block_age(block);
    candidates++;
  }
  uint64_t leaving_bytes = 0;
  bool found = true;
  while (leaving_bytes < target && found && candidates > 0) {
    double mean_age = age_sum / (double)candidates;
    found = false;
    ladei_device_block *next;
    for (ladei_device_block *block = all_first(pool); block != NULL; block = next) {
      next = all_next(pool, block);
      double age = (double)ladei_device_block_age(block);
      if (!block_is_whole_plain(block) || age < mean_age) continue;
      found = true;
      leaving_bytes += block->size;
      age_sum -= age;
      candidates--;
      block_leave(block, leaving);
    }
  }
}

/* Removes the granules that lie wholly in [from, to) of a free block; what is left of it at its edges stays free.
 * Returns the upper edge, or the block where nothing is removed; NULL: there is none. */
static ladei_device_block *block_leave_granules(ladei_device_heap *heap, ladei_device_block *block, uint64_t from,
                                                uint64_t to, ladei_device_block_list *leaving) {
  const ladei_device_heap_segment *segment = block->segment;
  size_t granule = segment->granules->bytes;
  size_t start = (size_t)(block->address - segment->address);
  size_t end = ladei_size_round_down((size_t)(to - segment->address), granule);
  size_t begin = ladei_size_round_down((size_t)(from - segment->address) + granule - 1, granule);
  if (begin >= end || !ladei_device_heap_reserve(heap, 2)) return block;
  ladei_device_block *above = NULL;
  ladei_device_block_remove(block);
  if (begin > start) {
    ladei_device_block *covered = ladei_device_block_split(heap, block, begin - start);
    ladei_device_block_insert(heap, block);
    block = covered;
  }
  if (block->size > end - begin)
    above = ladei_device_block_insert(heap, ladei_device_block_split(heap, block, end - begin));
  ladei_device_block_list_append(leaving, block);
  return above;
}

/* The first range that ends after the address; `count`: none. */
static size_t range_after(const ladei_device_range *ranges, size_t count, uint64_t address) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (ranges[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The granules between the ranges. */
static void block_leave_outside(ladei_device_heap *heap, ladei_device_block *block, const ladei_device_range *ranges,
                                size_t count, ladei_device_block_list *leaving) {
  uint64_t at = block->address, end = block->address + block->size;
  for (size_t i = range_after(ranges, count, at); i < count && ranges[i].begin < end && block != NULL; i++) {
    if (ranges[i].begin > at) block = block_leave_granules(heap, block, at, ranges[i].begin, leaving);
    at = ranges[i].end;
  }
  if (block != NULL && at < end) (void)block_leave_granules(heap, block, at, end, leaving);
}

/* `wanted`: of segments that are wanted back alone. */
static void pool_pick(ladei_device_heap *heap, ladei_device_block_pool *pool, const ladei_device_range *ranges,
                      size_t count, bool wanted, ladei_device_block_list *leaving) {
  ladei_device_heap_assert_locked(heap);
  assert(heap->grants == 0);
  ladei_device_recent_forget_all(heap);
  /* Edges that stay are smaller than their block, so they lie before it in the order or are skipped once more: a block
   * without a whole granule is left as it is. */
  ladei_device_block *next;
  for (ladei_device_block *block = all_first(pool); block != NULL; block = next) {
    next = all_next(pool, block);
    if (wanted && !block->segment->wanted_back) continue;
    if (ladei_device_heap_segment_expandable(block->segment)) {
      block_leave_outside(heap, block, ranges, count, leaving);
    } else if (!ladei_device_block_is_split(block)) {
      size_t after = range_after(ranges, count, block->address);
      if (after == count || ranges[after].begin >= block->address + block->size) block_leave(block, leaving);
    }
  }
}

void ladei_device_pool_pick_outside(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                    const ladei_device_range *ranges, size_t count, ladei_device_block_list *leaving) {
  pool_pick(heap, pool, ranges, count, false, leaving);
}

void ladei_device_pool_pick_wanted(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                   ladei_device_block_list *leaving) {
  pool_pick(heap, pool, NULL, 0, true, leaving);
}

void ladei_device_pool_pick_all(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                ladei_device_block_list *leaving) {
  pool_pick(heap, pool, NULL, 0, false, leaving);
}

uint64_t ladei_device_pool_rests(const ladei_device_heap *heap, const ladei_device_block_pool *pool) {
  ladei_device_recent_settle(heap);
  uint64_t rests = 0;
  for (const ladei_device_block *block = all_first(pool); block != NULL; block = all_next(pool, block))
    rests += ladei_device_block_is_split(block) && !ladei_device_heap_segment_expandable(block->segment);
  return rests;
}
