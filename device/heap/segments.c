/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: how they come and go, in which order they are, which of their blocks an address lies in. Model and
 * invariants in heap.h.
 *
 * Locks: the allocator's lock.
 */
#include "device/heap/segments.h"

#include <string.h>

#include "device/heap/recent.h"

ladei_device_heap_segment *ladei_device_heap_segment_create(ladei_device_heap *heap, size_t size) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_heap_segment *segment = ladei_slab_alloc(&heap->segments);
  if (segment == NULL) return NULL;
  memset((char *)segment + sizeof segment->head, 0, sizeof *segment - sizeof segment->head);
  segment->size = size;
  return segment;
}

void ladei_device_heap_segment_discard(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  ladei_device_heap_assert_locked(heap);
  assert(segment->context == NULL); /* contexts are those of counted segments */
  ladei_device_start_bits_destroy(&segment->starts);
  ladei_device_granule_table_destroy(segment->granules);
  ladei_slab_free(&heap->segments, segment);
}

static ladei_device_heap_segment *segment_of(ladei_order_node *node) {
  return LADEI_ORDER_RECORD(node, ladei_device_heap_segment, order);
}

/* The driver has it back: gauges, for a plain one, and its pool's count. */
static void segment_count_out(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  ladei_device_block_pool *pool = segment->pool;
  if (pool->private_pool != NULL) {
    assert(pool->private_pool->segment_count > 0);
    pool->private_pool->segment_count--;
  }
  if (ladei_device_heap_segment_expandable(segment)) return;
  heap->counters.device_frees++;
  ladei_device_gauges_lower(&heap->counters, LADEI_DEVICE_SEGMENT, pool->is_small, 1);
  ladei_device_heap_reserved_lower(heap, pool, segment->size);
  if (segment->oversize_counted) ladei_device_gauge_lower(&heap->counters.oversize_segments, 1);
  ladei_device_heap_segment_report(heap, segment, LADE_DEVICE_SEGMENT_FREE, segment->address, segment->size);
}

static void hidden_count_out(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  ladei_device_heap_assert_locked(heap);
  if (segment->counted_out) return;
  ladei_ordered_set_remove(&heap->hidden, &segment->order);
  segment->counted_out = true;
  segment_count_out(heap, segment);
  if (heap->listener != NULL) heap->listener->segment_gone(heap, segment);
}

/* Hidden segments whose addresses the driver has handed out again: it has taken them back, though the call that gave
 * them back has not returned yet. */
static void hidden_expire(ladei_device_heap *heap, uint64_t address, size_t size) {
  ladei_order_key last = {{address + size - 1, UINT64_MAX, UINT64_MAX}};
  for (;;) {
    ladei_device_heap_segment *segment = segment_of(ladei_ordered_set_at_most(&heap->hidden, last));
    if (segment == NULL || segment->address + segment->size <= address) return;
    hidden_count_out(heap, segment);
  }
}

ladei_device_block *ladei_device_heap_segment_insert(ladei_device_heap *heap, ladei_device_heap_segment *segment,
                                                     uint64_t address, bool mapped) {
  ladei_device_heap_assert_locked(heap);
  if (heap->hidden.count > 0) hidden_expire(heap, address, segment->size);
  segment->address = address;
  segment->order.key = (ladei_order_key){{address, 0, 0}};
  ladei_ordered_set_insert(&heap->by_address, &segment->order);
  return ladei_device_block_cover(heap, segment, mapped);
}

void ladei_device_heap_segment_hide(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_heap_segment *segment = block->segment;
  assert(block->state == LADEI_DEVICE_HEAP_BUSY && block->size == segment->size);
  ladei_device_block_map_remove(&heap->starts, block->address);
  ladei_ordered_set_remove(&heap->by_address, &segment->order);
  ladei_ordered_set_insert(&heap->hidden, &segment->order);
  segment->hidden = block;
  segment->counted_out = false;
  heap->hidden_count++;
}

void ladei_device_heap_segment_show(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_heap_segment *segment = block->segment;
  assert(!segment->counted_out);
  heap->hidden_count--;
  segment->hidden = NULL;
  ladei_ordered_set_remove(&heap->hidden, &segment->order);
  ladei_ordered_set_insert(&heap->by_address, &segment->order);
  ladei_device_block_map_put(&heap->starts, block->address, block);
}

void ladei_device_heap_segment_remove(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_heap_segment *segment = block->segment;
  hidden_count_out(heap, segment);
  heap->hidden_count--;
  ladei_device_block_drop(heap, block);
  ladei_device_last_event *last = segment->last;
  if (last != NULL && --last->segments == 0) {
    last->next = heap->spent_events;
    heap->spent_events = last;
  }
  ladei_device_heap_segment_discard(heap, segment);
}

void ladei_device_heap_segment_count_in(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_block_pool *pool = segment->pool;
  if (pool->private_pool != NULL) pool->private_pool->segment_count++;
  if (ladei_device_heap_segment_expandable(segment)) return;
  ladei_device_gauges_raise(&heap->counters, LADEI_DEVICE_SEGMENT, pool->is_small, 1);
  ladei_device_heap_reserved_raise(heap, pool, segment->size);
  segment->oversize_counted = segment->size >= heap->settings.max_split_bytes;
  if (segment->oversize_counted) ladei_device_gauge_raise(&heap->counters.oversize_segments, 1);
  heap->counters.device_allocs++;
  ladei_device_heap_segment_report(heap, segment, LADE_DEVICE_SEGMENT_ALLOC, segment->address, segment->size);
}

ladei_device_heap_segment *ladei_device_heap_segment_first(const ladei_device_heap *heap) {
  return segment_of(ladei_ordered_set_first(&heap->by_address));
}

ladei_device_heap_segment *ladei_device_heap_segment_next(const ladei_device_heap_segment *segment) {
  return segment_of(ladei_order_next(&segment->order));
}

bool ladei_device_heap_segment_overlaps(const ladei_device_heap *heap, uint64_t address, size_t size) {
  ladei_device_heap_assert_locked(heap);
  ladei_order_key last = {{address + (size - 1), 0, 0}};
  const ladei_device_heap_segment *segment = segment_of(ladei_ordered_set_at_most(&heap->by_address, last));
  return segment != NULL && segment->address + segment->size > address;
}

static ladei_device_heap_segment *lower_of(ladei_device_heap_segment *a, ladei_device_heap_segment *b) {
  if (a == NULL || b == NULL) return a == NULL ? b : a;
  return a->address < b->address ? a : b;
}

ladei_device_heap_segment *ladei_device_heap_counted_first(const ladei_device_heap *heap) {
  return lower_of(ladei_device_heap_segment_first(heap), segment_of(ladei_ordered_set_first(&heap->hidden)));
}

/* No two of them have one address. */
ladei_device_heap_segment *ladei_device_heap_counted_next(const ladei_device_heap *heap,
                                                          const ladei_device_heap_segment *segment) {
  if (heap->hidden.count == 0) return ladei_device_heap_segment_next(segment);
  ladei_order_key beyond = {{segment->address + 1, 0, 0}};
  return lower_of(segment_of(ladei_ordered_set_at_least(&heap->by_address, beyond)),
                  segment_of(ladei_ordered_set_at_least(&heap->hidden, beyond)));
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

ladei_device_block *ladei_device_heap_segment_block(const ladei_device_heap *heap,
                                                    const ladei_device_heap_segment *segment) {
  ladei_device_recent_settle(heap);
  if (segment->hidden != NULL) return segment->hidden;
  return ladei_device_block_map_get(&heap->starts, segment->address);
}

/*
 * Note [Start bits on demand]
 * A segment gets its bits with the first question for an address inside one of its blocks, which programs seldom ask:
 * each split and each coalescing would pay for them with a line of cache of their own, and 20 MiB with 5 KiB. The
 * blocks are walked for that question anyway. False: too large, or no memory; then they are walked the next time, too.
 */
static bool start_bits_need(const ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  if (segment->starts.words != NULL) return true;
  size_t granules = segment->size / LADEI_DEVICE_BLOCK_QUANTUM;
  if (granules > LADEI_DEVICE_START_GRANULES_MAX || !ladei_device_start_bits_create(&segment->starts, granules))
    return false;
  const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment);
  for (; block != NULL; block = block->next)
    ladei_device_start_bits_set(&segment->starts, ladei_device_start_granule(segment, block->address));
  return true;
}

ladei_device_block *ladei_device_heap_find(const ladei_device_heap *heap, uint64_t address) {
  ladei_device_recent_settle(heap);
  ladei_device_block *block = ladei_device_block_map_get(&heap->starts, address);
  if (block != NULL) return block;
  ladei_order_key key = {{address, 0, 0}};
  ladei_device_heap_segment *segment = segment_of(ladei_ordered_set_at_most(&heap->by_address, key));
  if (segment == NULL || address - segment->address >= segment->size) return NULL;
  if (!start_bits_need(heap, segment)) {
    block = ladei_device_heap_segment_block(heap, segment);
    while (address - block->address >= block->size) block = block->next;
    return block;
  }
  size_t start = ladei_device_start_bits_at_most(&segment->starts, ladei_device_start_granule(segment, address));
  return ladei_device_block_map_get(&heap->starts, segment->address + start * LADEI_DEVICE_BLOCK_QUANTUM);
}

ladei_device_block *ladei_device_heap_peek(const ladei_device_heap *heap, uint64_t address) {
  ladei_device_block *block = ladei_device_block_map_peek(&heap->starts, address);
  bool right = block != NULL && block->address == address && block->state == LADEI_DEVICE_HEAP_ALLOCATED;
  return right ? block : NULL;
}

/* Both lines of a record. Where there is none, of the addresses from 0 on, which does nothing. Inlined by force: of a
 * function that does nothing but fetch ahead, gcc finds that it has no effect, and takes the call out. */
static inline __attribute__((always_inline)) void record_prefetch(const ladei_device_block *block) {
  enum { LINE = 64 };
  uintptr_t address = (uintptr_t)block;
  for (uintptr_t line = address; line < address + sizeof *block; line += LINE)
    __builtin_prefetch((const void *)line, 1);
}

const ladei_device_block *ladei_device_heap_prefetch_block(const ladei_device_heap *heap, uint64_t address) {
  const ladei_device_block *block = ladei_device_block_map_get(&heap->starts, address);
  if (block != NULL) record_prefetch(block);
  return block;
}

void ladei_device_heap_prefetch_beside(const ladei_device_heap *heap, const ladei_device_block *block) {
  record_prefetch(block->previous);
  record_prefetch(block->next);
  __builtin_prefetch(&block->segment->pool);
  ladei_device_block_map_prefetch(&heap->starts, block->address + block->size);
}
