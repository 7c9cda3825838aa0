/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of one device; model and invariants in heap.h. Here: records, the two sets, splitting and coalescing, and the
 * two ends of a block's life.
 */
#include "device/heap/heap.h"

#include <assert.h>
#include <string.h>

#include "device/heap/recent.h"

void ladei_device_heap_init(ladei_device_heap *heap) {
  memset(heap, 0, sizeof *heap);
  ladei_slab_init(&heap->blocks, sizeof(ladei_device_block));
  ladei_slab_init(&heap->segments, sizeof(ladei_device_heap_segment));
  ladei_slab_init(&heap->leaves, sizeof(ladei_device_sorted_leaf));
  heap->small_pool.free.slab = heap->large_pool.free.slab = &heap->leaves;
  heap->pool_count = 2;
  heap->small_pool.is_small = true;
  heap->settings.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED;
  heap->settings.large_segment_bytes = heap->settings.max_unsplit_slack = LADEI_DEVICE_LARGE_SEGMENT;
}

void ladei_device_heap_destroy(ladei_device_heap *heap) {
  assert(heap->by_address.count == 0 && heap->hidden.count == 0);
  ladei_device_block_map_destroy(&heap->starts);
  ladei_slab_destroy(&heap->blocks);
  ladei_slab_destroy(&heap->segments);
  ladei_slab_destroy(&heap->leaves);
}

/* I12, before the map gets room for so many blocks. */
static bool leaves_reserve(ladei_device_heap *heap, size_t blocks) {
  size_t most = ladei_device_heap_leaves_most(heap, blocks);
  return most <= heap->leaves.live || ladei_slab_reserve(&heap->leaves, most - heap->leaves.live);
}

bool ladei_device_heap_reserve_more(ladei_device_heap *heap, size_t blocks) {
  ladei_device_heap_assert_locked(heap);
  bool records = blocks <= heap->spare_count || ladei_slab_reserve(&heap->blocks, blocks - heap->spare_count);
  size_t starts = blocks + heap->hidden_count;
  return records && leaves_reserve(heap, ladei_device_block_map_room_after(&heap->starts, starts)) &&
         ladei_device_block_map_reserve(&heap->starts, starts);
}

bool ladei_device_heap_private_pool_add(ladei_device_heap *heap, ladei_device_private_pool *pool) {
  ladei_device_heap_assert_locked(heap);
  pool->small_pool.free.slab = pool->large_pool.free.slab = &heap->leaves;
  heap->pool_count += 2;
  bool room = leaves_reserve(heap, heap->starts.room);
  if (!room) heap->pool_count -= 2;
  return room;
}

void ladei_device_heap_private_pool_drop(ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  heap->pool_count -= 2;
}

lade_device_stats ladei_device_heap_stats(const ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  lade_device_stats stats = {.struct_size = sizeof stats};
  ladei_device_counters_read(&heap->counters, &stats);
  return stats;
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

/* Spare records kept for the next splits; what is beyond them goes back to the slab. */
enum { SPARES_MAX = 64 };

/* A record as new, except its head and its ticket: a note that came too late for the last tenant may be on it, and
 * another may come at any moment. It counts for this one. Room was reserved. */
static inline ladei_device_block *record_take(ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_block *block = heap->spares;
  if (block != NULL) {
    heap->spares = block->chain;
    heap->spare_count--;
  } else {
    block = ladei_slab_alloc(&heap->blocks);
    assert(block != NULL);
  }
  block->requested = 0;
  block->previous = block->next = NULL;
  block->chain = NULL;
  block->context = NULL;
  block->note = NULL;
  block->age_base = 0;
  block->gone = block->oversize_counted = false;
  atomic_store_explicit(&block->state, LADEI_DEVICE_HEAP_BUSY, memory_order_relaxed); /* the first one */
  return block;
}

static void record_give(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY); /* a thread that still holds the record sees no block handed out */
  if (heap->spare_count < SPARES_MAX) {
    block->chain = heap->spares;
    heap->spares = block;
    heap->spare_count++;
  } else {
    ladei_slab_free(&heap->blocks, block);
  }
}

static void address_set(ladei_device_block *block, uint64_t address) {
  atomic_store_explicit(&block->address, address, memory_order_relaxed);
}

/* A block starts at the address from now on, or no longer. */
static inline void start_add(ladei_device_heap *heap, ladei_device_heap_segment *segment, uint64_t address,
                             ladei_device_block *block) {
  ladei_device_block_map_put(&heap->starts, address, block);
  if (segment->starts.words != NULL)
    ladei_device_start_bits_set(&segment->starts, ladei_device_start_granule(segment, address));
}

static inline void start_remove(ladei_device_heap *heap, ladei_device_heap_segment *segment, uint64_t address) {
  ladei_device_block_map_remove(&heap->starts, address);
  if (segment->starts.words != NULL)
    ladei_device_start_bits_clear(&segment->starts, ladei_device_start_granule(segment, address));
}

/* A BUSY block over a range of the segment, not linked, no start yet. Room was reserved. */
static inline ladei_device_block *block_create(ladei_device_heap *heap, ladei_device_heap_segment *segment,
                                               uint64_t address, size_t size, bool mapped) {
  ladei_device_block *block = record_take(heap);
  address_set(block, address);
  block->size = size;
  atomic_store_explicit(&block->segment, segment, memory_order_relaxed);
  block->mapped = mapped;
  return block;
}

static void block_discard(ladei_device_heap *heap, ladei_device_block *block) {
  start_remove(heap, block->segment, block->address);
  record_give(heap, block);
}

ladei_device_block *ladei_device_block_cover(ladei_device_heap *heap, ladei_device_heap_segment *segment, bool mapped) {
  ladei_device_block *block = block_create(heap, segment, segment->address, segment->size, mapped);
  start_add(heap, segment, segment->address, block);
  return block;
}

void ladei_device_block_drop(ladei_device_heap *heap, ladei_device_block *block) { record_give(heap, block); }

/* ---- The two sets ------------------------------------------------------------------------------------------------ */

void ladei_device_block_remove(ladei_device_block *block) {
  assert(block->state == LADEI_DEVICE_HEAP_FREE || block->state == LADEI_DEVICE_HEAP_HOLE);
  assert(block->previous == NULL || block->previous->state != LADEI_DEVICE_HEAP_RECENT); /* K3 */
  ladei_device_block_pool *pool = block->segment->pool;
  if (block->state == LADEI_DEVICE_HEAP_FREE) {
    ladei_order_key key = ladei_device_block_free_key(block);
    ladei_device_free_set_remove(&pool->free, &key);
  } else {
    ladei_order_key key = ladei_device_block_hole_key(block);
    ladei_device_sorted_set_remove(&pool->holes, pool->free.slab, &key);
  }
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
}

/* A FREE block whose key was `from` has got another address or size. Inlined by force, as block_settle: each frame less
 * on the way of a hot free is 1 to 2 of its 20 ns. */
static inline __attribute__((always_inline)) void block_move_in_set(ladei_device_block *block,
                                                                    const ladei_order_key *from) {
  ladei_device_heap_segment *segment = block->segment;
  block->age_base = segment->pool->searches;
  ladei_order_key to = ladei_device_block_free_key(block);
  ladei_device_free_set_move(&segment->pool->free, from, &to, block);
}

static void block_enter_set(ladei_device_block *block) {
  ladei_device_block_pool *pool = block->segment->pool;
  if (block->mapped) {
    ladei_order_key key = ladei_device_block_free_key(block);
    block->age_base = pool->searches;
    ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_FREE);
    ladei_device_free_set_insert(&pool->free, &key, block);
  } else {
    ladei_order_key key = ladei_device_block_hole_key(block);
    ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_HOLE);
    ladei_device_sorted_set_insert(&pool->holes, pool->free.slab, &key, block);
  }
}

/* ---- Splitting and coalescing ------------------------------------------------------------------------------------ */

ladei_device_block *ladei_device_block_split(ladei_device_heap *heap, ladei_device_block *block, size_t low_bytes) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY && low_bytes > 0 && low_bytes < block->size);
  ladei_device_heap_segment *segment = block->segment;
  uint64_t address = block->address + low_bytes;
  ladei_device_block *upper = block_create(heap, segment, address, block->size - low_bytes, block->mapped);
  start_add(heap, segment, address, upper);
  block->size = low_bytes;
  upper->previous = block;
  upper->next = block->next;
  if (upper->next != NULL) upper->next->previous = upper;
  block->next = upper;
  return upper;
}

/* A block grows up over its BUSY next neighbour. */
static void block_coalesce_above(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_block *gone = block->next;
  assert(gone->state == LADEI_DEVICE_HEAP_BUSY && gone->mapped == block->mapped);
  block->size += gone->size;
  block->next = gone->next;
  if (block->next != NULL) block->next->previous = block;
  block_discard(heap, gone);
}

void ladei_device_block_coalesce_next(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY);
  block_coalesce_above(heap, block);
}

/* Splits the low bytes off a FREE block, which stays FREE; returns the new, BUSY lower block. Room was reserved. */
static inline ladei_device_block *block_split_low(ladei_device_heap *heap, ladei_device_block *block,
                                                  size_t low_bytes) {
  assert(block->state == LADEI_DEVICE_HEAP_FREE && low_bytes > 0 && low_bytes < block->size);
  ladei_device_heap_segment *segment = block->segment;
  ladei_order_key from = ladei_device_block_free_key(block);
  uint64_t address = block->address;
  ladei_device_block_map_prefetch(&heap->starts, address + low_bytes); /* written last */
  ladei_device_block_map_prefetch(&heap->starts, address);
  ladei_device_block *lower = block_create(heap, segment, address, low_bytes, true);
  ladei_device_block_map_replace(&heap->starts, address, lower);
  lower->previous = block->previous;
  if (lower->previous != NULL) lower->previous->next = lower;
  lower->next = block;
  block->previous = lower;
  block->size -= low_bytes;
  address_set(block, address + low_bytes);
  block_move_in_set(block, &from);
  start_add(heap, segment, address + low_bytes, block);
  return lower;
}

/* A FREE block grows down over its BUSY previous neighbour. */
static inline void block_coalesce_previous(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_segment *segment = block->segment;
  ladei_device_block *gone = block->previous;
  assert(block->state == LADEI_DEVICE_HEAP_FREE && gone->state == LADEI_DEVICE_HEAP_BUSY);
  ladei_order_key from = ladei_device_block_free_key(block);
  uint64_t address = gone->address;
  start_remove(heap, segment, block->address);
  ladei_device_block_map_replace(&heap->starts, address, block);
  address_set(block, address);
  block->size += gone->size;
  block->previous = gone->previous;
  if (block->previous != NULL) block->previous->next = block;
  record_give(heap, gone);
  block_move_in_set(block, &from);
}

/* Whether a neighbour of a block of mapped memory is free memory, or of a hole a hole. */
static bool block_coalescible(const ladei_device_block *block, const ladei_device_block *neighbour) {
  return neighbour != NULL && neighbour->state == (block->mapped ? LADEI_DEVICE_HEAP_FREE : LADEI_DEVICE_HEAP_HOLE);
}

/* Whether a neighbour is cached memory of a suspended pool. */
static bool block_is_away(const ladei_device_block *neighbour) {
  return neighbour != NULL && neighbour->state == LADEI_DEVICE_HEAP_SUSPENDED && neighbour->requested == 0;
}

/* The neighbours that a block was coalesced with. */
typedef struct coalesced {
  uint64_t count;
  uint64_t bytes;
} coalesced;

static coalesced neighbours_count(const ladei_device_block *previous, const ladei_device_block *next) {
  coalesced sum = {0, 0};
  if (previous != NULL) sum = (coalesced){1, previous->size};
  if (next != NULL) sum = (coalesced){sum.count + 1, sum.bytes + next->size};
  return sum;
}

/* Makes a BUSY block FREE or HOLE, one with its equal neighbours. Returns the result. A free neighbour that grows keeps
 * its place in the set: mostly it is the block that this one was split from. */
static inline __attribute__((always_inline)) ladei_device_block *
block_settle(ladei_device_heap *heap, ladei_device_block *block, coalesced *out) {
  ladei_device_block *previous = block_coalescible(block, block->previous) ? block->previous : NULL;
  ladei_device_block *next = block_coalescible(block, block->next) ? block->next : NULL;
  *out = neighbours_count(previous, next);
  if (previous == NULL && next != NULL && block->mapped) {
    block_coalesce_previous(heap, next);
    return next;
  }
  if (next != NULL) {
    ladei_device_block_remove(next);
    block_coalesce_above(heap, block);
  }
  if (previous != NULL && block->mapped) {
    ladei_order_key from = ladei_device_block_free_key(previous);
    block_coalesce_above(heap, previous);
    block_move_in_set(previous, &from);
    return previous;
  }
  if (previous != NULL) {
    ladei_device_block_remove(previous);
    block_coalesce_above(heap, previous);
    block = previous;
  }
  block_enter_set(block);
  return block;
}

/* As block_settle, where the memory is away. */
static ladei_device_block *block_settle_away(ladei_device_heap *heap, ladei_device_block *block) {
  if (block_is_away(block->next)) {
    ladei_device_block_state_set(block->next, LADEI_DEVICE_HEAP_BUSY);
    block_coalesce_above(heap, block);
  }
  if (block_is_away(block->previous)) {
    ladei_device_block *previous = block->previous;
    ladei_device_block_state_set(previous, LADEI_DEVICE_HEAP_BUSY);
    block_coalesce_above(heap, previous);
    block = previous;
  }
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_SUSPENDED);
  return block;
}

ladei_device_block *ladei_device_block_insert(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY);
  ladei_device_recent_forget(heap, block->segment->stream_key, block->segment->pool->is_small);
  coalesced neighbours;
  return block_settle(heap, block, &neighbours);
}

/* ---- Handing out ------------------------------------------------------------------------------------------------- */

/* The BUSY block that is handed out; what is left of it is FREE. */
static ladei_device_block *block_take(ladei_device_heap *heap, ladei_device_block *block, size_t rounded, bool split) {
  if (block->state == LADEI_DEVICE_HEAP_FREE) {
    if (split) return block_split_low(heap, block, rounded);
    ladei_device_block_remove(block);
  } else if (split) {
    block_enter_set(ladei_device_block_split(heap, block, rounded));
  }
  return block;
}

void ladei_device_block_hand_out_whole(ladei_device_heap *heap, ladei_device_block *block, size_t requested) {
  ladei_device_heap_assert_locked(heap);
  const ladei_device_block_pool *pool = block->segment->pool;
  ladei_device_private_pool *owner = pool->private_pool; /* read before what is written, else twice */
  bool small = pool->is_small;
  size_t size = block->size;
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_ALLOCATED);
  block->requested = requested;
  ladei_device_counters *counters = &heap->counters;
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ALLOCATION, small, 1);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ALLOCATED_BYTES, small, size);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ACTIVE, small, 1);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ACTIVE_BYTES, small, size);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_REQUESTED_BYTES, small, requested);
  block->oversize_counted = size >= heap->settings.max_split_bytes;
  if (block->oversize_counted) ladei_device_gauge_raise(&counters->oversize_allocations, 1);
  if (owner != NULL) ladei_device_gauge_raise(&owner->allocated_bytes, size);
  if (heap->listener != NULL) heap->listener->block_alloc(heap, block);
}

ladei_device_block *ladei_device_block_hand_out(ladei_device_heap *heap, ladei_device_block *block, size_t rounded,
                                                size_t requested, bool split) {
  ladei_device_heap_assert_locked(heap);
  assert(block->mapped && block->size >= rounded);
  const ladei_device_heap_segment *segment = block->segment;
  bool small = segment->pool->is_small;
  ladei_device_recent_forget(heap, segment->stream_key, small);
  bool was_split = ladei_device_block_is_split(block);
  size_t remaining = split ? block->size - rounded : 0;
  block = block_take(heap, block, rounded, split);
  if (!ladei_device_heap_segment_expandable(segment))
    ladei_device_split_gauges_on_take(&heap->counters, small, was_split, block->size, remaining);
  ladei_device_block_hand_out_whole(heap, block, requested);
  return block;
}

ladei_device_block *ladei_device_block_hand_out_low(ladei_device_heap *heap, ladei_device_block *block, size_t size) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY && block->mapped && block->size >= size);
  const ladei_device_heap_segment *segment = block->segment;
  bool was_split = ladei_device_block_is_split(block);
  size_t remaining = block->size - size;
  ladei_device_block *rest = remaining == 0 ? NULL : ladei_device_block_split(heap, block, size);
  if (!ladei_device_heap_segment_expandable(segment))
    ladei_device_split_gauges_on_take(&heap->counters, segment->pool->is_small, was_split, size, remaining);
  ladei_device_block_hand_out_whole(heap, block, size);
  return rest;
}

/* ---- Taking back ------------------------------------------------------------------------------------------------- */

void ladei_device_block_free_begin(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_THREAD || ladei_device_block_is_live(block));
  const ladei_device_block_pool *pool = block->segment->pool;
  ladei_device_private_pool *owner = pool->private_pool;
  bool small = pool->is_small;
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
  ladei_device_gauges_lower(&heap->counters, LADEI_DEVICE_ALLOCATION, small, 1);
  ladei_device_gauges_lower(&heap->counters, LADEI_DEVICE_ALLOCATED_BYTES, small, block->size);
  if (block->oversize_counted) ladei_device_gauge_lower(&heap->counters.oversize_allocations, 1);
  block->oversize_counted = false;
  if (owner != NULL) ladei_device_gauge_lower(&owner->allocated_bytes, block->size);
  if (heap->listener != NULL) heap->listener->block_free(heap, block);
}

static void waiting_add(ladei_device_heap *heap, size_t more, size_t less) {
  size_t count = atomic_load_explicit(&heap->waiting_count, memory_order_relaxed);
  atomic_store_explicit(&heap->waiting_count, count + more - less, memory_order_relaxed);
}

void ladei_device_block_free_wait(ladei_device_heap *heap, ladei_device_block *block, ladei_device_block_state state) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY);
  ladei_device_block_state_set(block, state);
  waiting_add(heap, 1, 0);
}

/* One net step up or down, as peaks and sums want it. */
static void gauges_move(ladei_device_counters *counters, ladei_device_gauge_kind kind, bool small, uint64_t plus,
                        uint64_t minus) {
  if (plus > minus) ladei_device_gauges_raise(counters, kind, small, plus - minus);
  if (minus > plus) ladei_device_gauges_lower(counters, kind, small, minus - plus);
}

/* The gauges of a free that made one free block of `freed` bytes and of its free neighbours. */
static void free_gauges(ladei_device_heap *heap, const ladei_device_block *result, coalesced neighbours, size_t freed,
                        size_t requested) {
  const ladei_device_heap_segment *segment = result->segment;
  ladei_device_counters *counters = &heap->counters;
  bool small = segment->pool->is_small;
  if (!ladei_device_heap_segment_expandable(segment)) {
    bool is_split = ladei_device_block_is_split(result);
    gauges_move(counters, LADEI_DEVICE_INACTIVE_SPLIT, small, is_split ? 1 : 0, neighbours.count);
    gauges_move(counters, LADEI_DEVICE_INACTIVE_SPLIT_BYTES, small, is_split ? result->size : 0, neighbours.bytes);
  }
  ladei_device_gauges_lower(counters, LADEI_DEVICE_ACTIVE, small, 1);
  ladei_device_gauges_lower(counters, LADEI_DEVICE_ACTIVE_BYTES, small, freed);
  ladei_device_gauges_lower(counters, LADEI_DEVICE_REQUESTED_BYTES, small, requested);
}

ladei_device_block *ladei_device_block_free_complete_into(ladei_device_heap *heap, ladei_device_block *run,
                                                          ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  assert(block->state == LADEI_DEVICE_HEAP_BUSY && (run == NULL || run == block->previous));
  assert(run != NULL || !block_coalescible(block, block->previous)); /* else I3 would not hold for the result */
  if (heap->listener != NULL) heap->listener->block_done(heap, block);
  size_t size = block->size;
  size_t requested = block->requested;
  block->requested = 0;
  ladei_device_block *next = block_coalescible(block, block->next) ? block->next : NULL;
  coalesced neighbours = neighbours_count(run, next);
  if (next != NULL) {
    ladei_device_block_remove(next);
    block_coalesce_above(heap, block);
  }
  if (run != NULL) {
    block_coalesce_above(heap, run);
    block = run;
  }
  free_gauges(heap, block, neighbours, size, requested);
  return block;
}

void ladei_device_block_free_complete(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  if (heap->listener != NULL) heap->listener->block_done(heap, block);
  const ladei_device_heap_segment *segment = block->segment;
  size_t size = block->size;
  size_t requested = block->requested;
  ladei_device_recent_forget(heap, segment->stream_key, segment->pool->is_small);
  block->requested = 0;
  if (block->state != LADEI_DEVICE_HEAP_BUSY) {
    waiting_add(heap, 0, 1);
    ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
  }
  coalesced neighbours = {0, 0};
  if (__builtin_expect(block->mapped, true))
    block = block_settle(heap, block, &neighbours);
  else
    block = block_settle_away(heap, block);
  free_gauges(heap, block, neighbours, size, requested);
}
