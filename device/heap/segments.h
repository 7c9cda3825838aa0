/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of the heap, and what lies at an address; model in heap.h. */
#ifndef LADE_DEVICE_HEAP_SEGMENTS_H
#define LADE_DEVICE_HEAP_SEGMENTS_H

#include "base/static_probe.h"
#include "device/heap/heap.h"

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* A record; in no set. NULL when there is no memory. The caller fills in the rest. */
ladei_device_heap_segment *ladei_device_heap_segment_create(ladei_device_heap *heap, size_t size);
/* The opposite, for a segment in no set. */
void ladei_device_heap_segment_discard(ladei_device_heap *heap, ladei_device_heap_segment *segment);

/* Puts the segment at `address` with one BUSY block over all of it; room for one block was reserved. Counts nothing. */
ladei_device_block *ladei_device_heap_segment_insert(ladei_device_heap *heap, ladei_device_heap_segment *segment,
                                                     uint64_t address, bool mapped);
/*
 * Hides a segment whose only block is BUSY from every search by address, before the driver is asked to take it back:
 * from then on the driver may hand out the same addresses to another thread. Then either show it again, as it was, or
 * remove it, which counts it out and frees both records.
 */
void ladei_device_heap_segment_hide(ladei_device_heap *heap, ladei_device_block *block);
void ladei_device_heap_segment_show(ladei_device_heap *heap, ladei_device_block *block);
void ladei_device_heap_segment_remove(ladei_device_heap *heap, ladei_device_block *block);

/* Reports a change of a segment: to a tracer, and to the listener if there is one. */
static inline void ladei_device_heap_segment_report(ladei_device_heap *heap, ladei_device_heap_segment *segment,
                                                    lade_device_action action, uint64_t address, uint64_t bytes) {
  ladei_device_heap_assert_locked(heap);
  if (action == LADE_DEVICE_SEGMENT_ALLOC || action == LADE_DEVICE_SEGMENT_MAP)
    LADEI_PROBE3(device_segment_alloc, address, bytes, segment->stream.id);
  else
    LADEI_PROBE3(device_segment_free, address, bytes, segment->stream.id);
  if (heap->listener != NULL) heap->listener->segment_change(heap, segment, action, address, bytes);
}

/* Memory of a pool has come from the driver, or is back there. */
static inline void ladei_device_heap_reserved_raise(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                                    uint64_t bytes) {
  ladei_device_gauges_raise(&heap->counters, LADEI_DEVICE_RESERVED_BYTES, pool->is_small, bytes);
  if (pool->private_pool != NULL) ladei_device_gauge_raise(&pool->private_pool->reserved_bytes, bytes);
}
static inline void ladei_device_heap_reserved_lower(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                                    uint64_t bytes) {
  ladei_device_gauges_lower(&heap->counters, LADEI_DEVICE_RESERVED_BYTES, pool->is_small, bytes);
  if (pool->private_pool != NULL) ladei_device_gauge_lower(&pool->private_pool->reserved_bytes, bytes);
}

/* A segment has come from the driver: gauges, for a plain one, and its pool's count. */
void ladei_device_heap_segment_count_in(ladei_device_heap *heap, ladei_device_heap_segment *segment);

/* Those that are not hidden, by address. */
ladei_device_heap_segment *ladei_device_heap_segment_first(const ladei_device_heap *heap);
ladei_device_heap_segment *ladei_device_heap_segment_next(const ladei_device_heap_segment *segment);
/* Whether one of them has a byte of the range. */
bool ladei_device_heap_segment_overlaps(const ladei_device_heap *heap, uint64_t address, size_t size);
/* All that are counted, by address. */
ladei_device_heap_segment *ladei_device_heap_counted_first(const ladei_device_heap *heap);
ladei_device_heap_segment *ladei_device_heap_counted_next(const ladei_device_heap *heap,
                                                          const ladei_device_heap_segment *segment);
ladei_device_block *ladei_device_heap_segment_block(const ladei_device_heap *heap,
                                                    const ladei_device_heap_segment *segment); /* the first one */

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* The block that an address lies in, any state; NULL if in none. Exact starts take one probe; the first other address
 * of a segment a walk over its blocks. */
ladei_device_block *ladei_device_heap_find(const ladei_device_heap *heap, uint64_t address);
/* Without the lock: the block that is handed out and starts at the address; NULL if that is uncertain. */
ladei_device_block *ladei_device_heap_peek(const ladei_device_heap *heap, uint64_t address);

/*
 * Brings into the processor's cache all that the free of a block will look at, in three steps, each of which looks at
 * what the one before has brought: for a caller that knows its frees in advance. They change nothing, and any address
 * will do.
 */
static inline void ladei_device_heap_prefetch_start(const ladei_device_heap *heap, uint64_t address) {
  ladei_device_block_map_prefetch(&heap->starts, address);
}
/* The record of the block there, which is returned; NULL: none. */
const ladei_device_block *ladei_device_heap_prefetch_block(const ladei_device_heap *heap, uint64_t address);
/* The records of its neighbours, and where the one above it is among the starts. It may be another block's record by
 * now. */
void ladei_device_heap_prefetch_beside(const ladei_device_heap *heap, const ladei_device_block *block);

#endif /* LADE_DEVICE_HEAP_SEGMENTS_H */
