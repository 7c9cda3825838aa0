/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks and segments of one device; model and invariants in heap.h. Here: records, the two sets, cutting and merging,
 * and the two ends of a block's life.
 */
#include "device/heap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "device/history.h"

void ladei_heap_init(ladei_heap *heap) {
  memset(heap, 0, sizeof *heap);
  ladei_slab_init(&heap->blocks, sizeof(ladei_block));
  ladei_slab_init(&heap->segments, sizeof(ladei_heap_segment));
  heap->small_pool.is_small = true;
  heap->settings.max_split_bytes = LADEI_SPLIT_UNLIMITED;
  heap->settings.max_unsplit_slack = LADEI_LARGE_SEGMENT;
}

void ladei_heap_destroy(ladei_heap *heap) {
  assert(heap->by_address.count == 0);
  ladei_block_map_destroy(&heap->starts);
  ladei_slab_destroy(&heap->blocks);
  ladei_slab_destroy(&heap->segments);
}

bool ladei_heap_reserve(ladei_heap *heap, size_t blocks) {
  return ladei_slab_reserve(&heap->blocks, blocks) && ladei_block_map_reserve(&heap->starts, blocks);
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

static size_t start_granule(const ladei_heap_segment *segment, uint64_t address) {
  return (size_t)(address - segment->address) / LADEI_BLOCK_QUANTUM;
}

/* A BUSY block over a range of the segment, findable, not linked. Room was reserved. */
static ladei_block *block_create(ladei_heap *heap, ladei_heap_segment *segment, uint64_t address, size_t size,
                                 bool mapped) {
  ladei_block *block = ladei_slab_alloc(&heap->blocks);
  assert(block != NULL);
  /* All but the head and the ticket: a note that came too late for the last tenant may be on it, and another may come
   * at any moment. It counts for this one. */
  char *bytes = (char *)block, *ticket = (char *)&block->ticket, *behind = ticket + sizeof block->ticket;
  memset(bytes + sizeof block->head, 0, (size_t)(ticket - bytes) - sizeof block->head);
  memset(behind, 0, (size_t)(bytes + sizeof *block - behind));
  block->address = address;
  block->size = size;
  block->segment = segment;
  block->state = LADEI_HEAP_BUSY;
  block->mapped = mapped;
  ladei_block_map_put(&heap->starts, address, block);
  if (segment->starts.words != NULL) ladei_start_bits_set(&segment->starts, start_granule(segment, address));
  return block;
}

static void block_discard(ladei_heap *heap, ladei_block *block) {
  ladei_heap_segment *segment = block->segment;
  ladei_block_map_remove(&heap->starts, block->address);
  if (segment->starts.words != NULL) ladei_start_bits_clear(&segment->starts, start_granule(segment, block->address));
  ladei_slab_free(&heap->blocks, block);
}

ladei_heap_segment *ladei_heap_segment_create(ladei_heap *heap, size_t size) {
  ladei_heap_segment *segment = ladei_slab_alloc(&heap->segments);
  if (segment == NULL) return NULL;
  memset((char *)segment + sizeof segment->head, 0, sizeof *segment - sizeof segment->head);
  segment->size = size;
  size_t granules = size / LADEI_BLOCK_QUANTUM;
  if (granules <= LADEI_START_GRANULES_MAX && !ladei_start_bits_create(&segment->starts, granules)) {
    ladei_slab_free(&heap->segments, segment);
    return NULL;
  }
  return segment;
}

void ladei_heap_segment_discard(ladei_heap *heap, ladei_heap_segment *segment) {
  if (heap->history != NULL) ladei_history_segment_gone(heap, segment);
  ladei_start_bits_destroy(&segment->starts);
  ladei_granule_table_destroy(segment->granules);
  ladei_slab_free(&heap->segments, segment);
}

ladei_block *ladei_heap_segment_insert(ladei_heap *heap, ladei_heap_segment *segment, uint64_t address, bool mapped) {
  segment->address = address;
  segment->order.key = (ladei_order_key){{address, 0, 0}};
  ladei_ordered_set_insert(&heap->by_address, &segment->order);
  return block_create(heap, segment, address, segment->size, mapped);
}

void ladei_heap_segment_remove(ladei_heap *heap, ladei_heap_segment *segment) {
  ladei_block *block = ladei_heap_segment_block(heap, segment);
  assert(block->state == LADEI_HEAP_BUSY && block->size == segment->size);
  block_discard(heap, block);
  ladei_ordered_set_remove(&heap->by_address, &segment->order);
  ladei_heap_segment_discard(heap, segment);
}

void ladei_heap_segment_count_up(ladei_heap *heap, ladei_heap_segment *segment) {
  ladei_block_pool *pool = segment->pool;
  ladei_gauges_raise(&heap->stats.segment, pool->is_small, 1);
  ladei_gauges_raise(&heap->stats.reserved_bytes, pool->is_small, segment->size);
  segment->oversize_counted = segment->size >= heap->settings.max_split_bytes;
  if (segment->oversize_counted) ladei_gauge_raise(&heap->stats.oversize_segments, 1);
  if (pool->owner != NULL) pool->owner->segment_count++;
  heap->stats.device_allocs++;
  if (heap->history != NULL) {
    ladei_history_segment(heap, segment, LADE_DEVICE_SEGMENT_ALLOC, segment->address, segment->size);
  }
}

void ladei_heap_segment_count_down(ladei_heap *heap, ladei_heap_segment *segment) {
  ladei_block_pool *pool = segment->pool;
  heap->stats.device_frees++;
  if (pool->owner != NULL) {
    assert(pool->owner->segment_count > 0);
    pool->owner->segment_count--;
  }
  ladei_gauges_lower(&heap->stats.segment, pool->is_small, 1);
  ladei_gauges_lower(&heap->stats.reserved_bytes, pool->is_small, segment->size);
  if (segment->oversize_counted) ladei_gauge_lower(&heap->stats.oversize_segments, 1);
  if (heap->history != NULL) {
    ladei_history_segment(heap, segment, LADE_DEVICE_SEGMENT_FREE, segment->address, segment->size);
  }
}

static ladei_heap_segment *segment_of(ladei_order_node *node) {
  return LADEI_ORDER_RECORD(node, ladei_heap_segment, order);
}

ladei_heap_segment *ladei_heap_segment_first(const ladei_heap *heap) {
  return segment_of(ladei_ordered_set_first(&heap->by_address));
}

ladei_heap_segment *ladei_heap_segment_next(const ladei_heap_segment *segment) {
  return segment_of(ladei_order_next(&segment->order));
}

ladei_block *ladei_heap_segment_block(const ladei_heap *heap, const ladei_heap_segment *segment) {
  return ladei_block_map_get(&heap->starts, segment->address);
}

ladei_block *ladei_heap_find(const ladei_heap *heap, uint64_t address) {
  ladei_block *block = ladei_block_map_get(&heap->starts, address);
  if (block != NULL) return block;
  ladei_order_key key = {{address, 0, 0}};
  const ladei_heap_segment *segment = segment_of(ladei_ordered_set_at_most(&heap->by_address, key));
  if (segment == NULL || address - segment->address >= segment->size) return NULL;
  if (segment->starts.words == NULL) {
    block = ladei_heap_segment_block(heap, segment);
    while (address - block->address >= block->size) block = block->next;
    return block;
  }
  size_t start = ladei_start_bits_at_most(&segment->starts, start_granule(segment, address));
  return ladei_block_map_get(&heap->starts, segment->address + start * LADEI_BLOCK_QUANTUM);
}

/* ---- Granules ---------------------------------------------------------------------------------------------------- */

ladei_granule_table *ladei_granule_table_create(size_t bytes, size_t limit) {
  ladei_granule_table *table = calloc(1, sizeof *table);
  if (table == NULL) return NULL;
  table->bytes = bytes;
  table->limit = limit;
  return table;
}

void ladei_granule_table_destroy(ladei_granule_table *table) {
  if (table == NULL) return;
  for (size_t k = 0; k < LADEI_GRANULE_CHUNKS; k++) free(table->chunks[k]);
  free(table);
}

bool ladei_granule_table_reserve(ladei_granule_table *table, size_t count) {
  assert(count <= table->limit);
  while (table->count < count) {
    size_t chunk = ladei_log2_floor(table->count / LADEI_GRANULES_FIRST + 1);
    size_t length = (size_t)LADEI_GRANULES_FIRST << chunk;
    table->chunks[chunk] = calloc(length, sizeof *table->chunks[chunk]);
    if (table->chunks[chunk] == NULL) return false;
    table->count += length;
  }
  return true;
}

ladei_granule *ladei_granule_at(const ladei_granule_table *table, size_t index) {
  size_t chunk = ladei_log2_floor(index / LADEI_GRANULES_FIRST + 1);
  return &table->chunks[chunk][index - (size_t)LADEI_GRANULES_FIRST * (((size_t)1 << chunk) - 1)];
}

/* ---- The two sets ------------------------------------------------------------------------------------------------ */

void ladei_block_detach(ladei_block *block) {
  assert(block->state == LADEI_HEAP_FREE || block->state == LADEI_HEAP_HOLE);
  ladei_block_pool *pool = block->segment->pool;
  ladei_ordered_set_remove(block->state == LADEI_HEAP_FREE ? &pool->free : &pool->holes, &block->order);
  block->state = LADEI_HEAP_BUSY;
}

static void block_enter_set(ladei_block *block) {
  ladei_heap_segment *segment = block->segment;
  ladei_block_pool *pool = segment->pool;
  if (block->mapped) {
    block->order.key = (ladei_order_key){{segment->stream_key, block->size, block->address}};
    block->age_base = pool->searches;
    block->state = LADEI_HEAP_FREE;
    ladei_ordered_set_insert(&pool->free, &block->order);
  } else {
    block->order.key = (ladei_order_key){{segment->stream_key, block->address, 0}};
    block->state = LADEI_HEAP_HOLE;
    ladei_ordered_set_insert(&pool->holes, &block->order);
  }
}

/* ---- Cutting and merging ----------------------------------------------------------------------------------------- */

ladei_block *ladei_block_cut(ladei_heap *heap, ladei_block *block, size_t low_bytes) {
  assert(block->state == LADEI_HEAP_BUSY && low_bytes > 0 && low_bytes < block->size);
  ladei_block *upper =
      block_create(heap, block->segment, block->address + low_bytes, block->size - low_bytes, block->mapped);
  block->size = low_bytes;
  upper->previous = block;
  upper->next = block->next;
  if (upper->next != NULL) upper->next->previous = upper;
  block->next = upper;
  return upper;
}

void ladei_block_swallow_next(ladei_heap *heap, ladei_block *block) {
  ladei_block *gone = block->next;
  assert(block->state == LADEI_HEAP_BUSY && gone->state == LADEI_HEAP_BUSY && gone->mapped == block->mapped);
  block->size += gone->size;
  block->next = gone->next;
  if (block->next != NULL) block->next->previous = block;
  block_discard(heap, gone);
}

/* Whether a BUSY block may merge with a neighbour as it is. */
static bool block_mergeable(const ladei_block *block, const ladei_block *neighbour) {
  return neighbour != NULL && neighbour->state == (block->mapped ? LADEI_HEAP_FREE : LADEI_HEAP_HOLE);
}

/* Merges a BUSY block with its equal neighbours; counts the neighbours and their bytes. Returns the union, BUSY. */
static ladei_block *block_merge(ladei_heap *heap, ladei_block *block, uint64_t *merged_count, uint64_t *merged_bytes) {
  ladei_block *previous = block->previous;
  ladei_block *next = block->next;
  if (block_mergeable(block, next)) {
    *merged_count += 1;
    *merged_bytes += next->size;
    ladei_block_detach(next);
    ladei_block_swallow_next(heap, block);
  }
  if (block_mergeable(block, previous)) {
    *merged_count += 1;
    *merged_bytes += previous->size;
    ladei_block_detach(previous);
    ladei_block_swallow_next(heap, previous);
    block = previous;
  }
  return block;
}

ladei_block *ladei_block_attach(ladei_heap *heap, ladei_block *block) {
  assert(block->state == LADEI_HEAP_BUSY);
  uint64_t merged_count = 0;
  uint64_t merged_bytes = 0;
  block = block_merge(heap, block, &merged_count, &merged_bytes);
  block_enter_set(block);
  return block;
}

/* ---- Handing out ------------------------------------------------------------------------------------------------- */

/* inactive_split when a free block of a plain segment is taken and `remaining` bytes of it stay free. */
static void split_gauges_on_take(ladei_heap *heap, const ladei_block *block, bool was_split, size_t remaining) {
  lade_device_stats *stats = &heap->stats;
  bool small = block->segment->pool->is_small;
  if (was_split) {
    ladei_gauges_lower(&stats->inactive_split_bytes, small, block->size);
    if (remaining == 0) ladei_gauges_lower(&stats->inactive_split, small, 1);
  } else if (remaining != 0) {
    ladei_gauges_raise(&stats->inactive_split_bytes, small, remaining);
    ladei_gauges_raise(&stats->inactive_split, small, 1);
  }
}

void ladei_block_hand_out(ladei_heap *heap, ladei_block *block, size_t rounded, size_t requested, bool split) {
  assert(block->state == LADEI_HEAP_BUSY && block->mapped && block->size >= rounded);
  bool was_split = ladei_block_is_split(block);
  size_t remaining = 0;
  if (split) {
    remaining = block->size - rounded;
    block_enter_set(ladei_block_cut(heap, block, rounded));
  }
  if (!ladei_heap_segment_expandable(block->segment)) split_gauges_on_take(heap, block, was_split, remaining);
  block->state = LADEI_HEAP_ALLOCATED;
  block->requested = requested;
  lade_device_stats *stats = &heap->stats;
  bool small = block->segment->pool->is_small;
  ladei_gauges_raise(&stats->allocation, small, 1);
  ladei_gauges_raise(&stats->allocated_bytes, small, block->size);
  ladei_gauges_raise(&stats->active, small, 1);
  ladei_gauges_raise(&stats->active_bytes, small, block->size);
  ladei_gauges_raise(&stats->requested_bytes, small, requested);
  block->oversize_counted = block->size >= heap->settings.max_split_bytes;
  if (block->oversize_counted) ladei_gauge_raise(&stats->oversize_allocations, 1);
  if (heap->history != NULL) ladei_history_block_alloc(heap, block);
}

/* ---- Taking back ------------------------------------------------------------------------------------------------- */

void ladei_block_free_begin(ladei_heap *heap, ladei_block *block) {
  assert(block->state == LADEI_HEAP_ALLOCATED);
  bool small = block->segment->pool->is_small;
  block->state = LADEI_HEAP_BUSY;
  ladei_gauges_lower(&heap->stats.allocation, small, 1);
  ladei_gauges_lower(&heap->stats.allocated_bytes, small, block->size);
  if (block->oversize_counted) ladei_gauge_lower(&heap->stats.oversize_allocations, 1);
  block->oversize_counted = false;
  if (heap->history != NULL) ladei_history_block_free(heap, block);
}

/* One net step up or down, as peaks and sums want it. */
static void gauges_move(lade_device_gauges *gauges, bool small, uint64_t plus, uint64_t minus) {
  if (plus > minus) ladei_gauges_raise(gauges, small, plus - minus);
  if (minus > plus) ladei_gauges_lower(gauges, small, minus - plus);
}

void ladei_block_free_complete(ladei_heap *heap, ladei_block *block) {
  if (heap->history != NULL) ladei_history_block_done(heap, block);
  bool small = block->segment->pool->is_small;
  size_t size = block->size;
  size_t requested = block->requested;
  block->state = LADEI_HEAP_BUSY;
  block->requested = 0;
  uint64_t merged_count = 0;
  uint64_t merged_bytes = 0;
  block = block_merge(heap, block, &merged_count, &merged_bytes);
  block_enter_set(block);
  if (!ladei_heap_segment_expandable(block->segment)) {
    bool is_split = ladei_block_is_split(block);
    gauges_move(&heap->stats.inactive_split, small, is_split ? 1 : 0, merged_count);
    gauges_move(&heap->stats.inactive_split_bytes, small, is_split ? block->size : 0, merged_bytes);
  }
  ladei_gauges_lower(&heap->stats.active, small, 1);
  ladei_gauges_lower(&heap->stats.active_bytes, small, size);
  ladei_gauges_lower(&heap->stats.requested_bytes, small, requested);
}
