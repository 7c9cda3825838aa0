/* SPDX-License-Identifier: Apache-2.0 */
/* Which free blocks serve a request, and which go back to the driver; model in decisions.c. */
#ifndef LADE_DEVICE_HEAP_DECISIONS_H
#define LADE_DEVICE_HEAP_DECISIONS_H

#include "device/heap/heap.h"

/* Best fit for (stream, rounded), still FREE; NULL if there is none. Ticks the pool's clock. In a pool that splits
 * nothing each block counts as an oversize one, except in the reference. */
ladei_device_block *ladei_device_pool_search(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                             uint64_t stream_key, size_t rounded);
/* The same of plain segments alone. */
ladei_device_block *ladei_device_pool_search_plain(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                                   uint64_t stream_key, size_t rounded);

/* Blocks that go back to the driver: removed, linked through `chain` in order. */
typedef struct ladei_device_block_list {
  ladei_device_block *first;
  ladei_device_block **end; /* where the next one is linked in */
  uint64_t kept_bytes;      /* after giving back: what captures kept */
  uint64_t gone_bytes;      /* ... and what the driver took */
} ladei_device_block_list;

static inline void ladei_device_block_list_init(ladei_device_block_list *list) {
  *list = (ladei_device_block_list){NULL, &list->first, 0, 0};
}
static inline void ladei_device_block_list_append(ladei_device_block_list *list, ladei_device_block *block) {
  block->chain = NULL;
  *list->end = block;
  list->end = &block->chain;
}

/* Age of a FREE block: searches of its pool since it became FREE. */
static inline uint64_t ladei_device_block_age(const ladei_device_block *block) {
  return block->segment->pool->searches - block->age_base;
}

/*
 * Oversize blocks of the request's pool and stream that make room for it: the smallest that suffices alone, else from
 * the largest down until they suffice together. Only whole plain segments. False when they do not suffice; what was
 * found leaves all the same.
 */
bool ladei_device_pool_pick_oversize(ladei_device_heap *heap, ladei_device_block_pool *pool, uint64_t stream_key,
                                     size_t rounded, ladei_device_block_list *leaving);

/* Whole free segments of the default large pool, older ones first by rounds of the mean age, until `target` bytes. */
void ladei_device_heap_pick_aged(ladei_device_heap *heap, uint64_t target, ladei_device_block_list *leaving);

/*
 * Everything that a full flush gives back of a pool: whole plain segments, and of each FREE block in an expandable
 * segment the granules that it covers wholly (its edges stay FREE; without memory for their records, it stays). No
 * grant is under way.
 */
void ladei_device_pool_pick_all(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                ladei_device_block_list *leaving);

/* The same of segments that are wanted back. */
void ladei_device_pool_pick_wanted(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                   ladei_device_block_list *leaving);

/* How many FREE blocks of a pool are parts of plain segments, and so stay whatever goes. A walk over all of them. */
uint64_t ladei_device_pool_rests(const ladei_device_heap *heap, const ladei_device_block_pool *pool);

/* Addresses [begin, end). */
typedef struct ladei_device_range {
  uint64_t begin;
  uint64_t end;
} ladei_device_range;

/* The same without what has a byte of the ranges, which ascend and do not touch: plain segments, granules. */
void ladei_device_pool_pick_outside(ladei_device_heap *heap, ladei_device_block_pool *pool,
                                    const ladei_device_range *ranges, size_t count, ladei_device_block_list *leaving);

#endif /* LADE_DEVICE_HEAP_DECISIONS_H */
