/* SPDX-License-Identifier: Apache-2.0 */
/* Recent blocks: model and invariants in recent.h. */
#include "device/heap/recent.h"

/* The rest of M; NULL: L is all of it (K2). */
static ladei_device_block *rest_of(const ladei_device_block *block) {
  ladei_device_block *above = block->next;
  return above != NULL && above->state == LADEI_DEVICE_HEAP_FREE ? above : NULL;
}

/* Whether M is a part of its segment. */
static bool whole_is_split(const ladei_device_block *block, const ladei_device_block *rest) {
  return block->previous != NULL || (rest != NULL ? rest : block)->next != NULL;
}

/* ---- Settling ---------------------------------------------------------------------------------------------------- */

void ladei_device_recent_settle_slot(ladei_device_heap *heap, ladei_device_recent *slot) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_block *block = slot->block;
  ladei_device_block *rest = rest_of(block);
  uint64_t age_base = (rest != NULL ? rest : block)->age_base; /* what enters the set has a new one (K4) */
  assert(block->state == LADEI_DEVICE_HEAP_RECENT && heap->recent_count > 0);
  *slot = (ladei_device_recent){.block = NULL};
  heap->recent_count--;
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
  ladei_device_block_insert(heap, block)->age_base = age_base;
}

void ladei_device_recent_settle_some(ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  for (ladei_device_recent *slot = heap->recent; slot < heap->recent + LADEI_DEVICE_RECENT_SLOTS; slot++)
    if (slot->freed) ladei_device_recent_settle_slot(heap, slot);
}

void ladei_device_recent_forget_all(ladei_device_heap *heap) {
  ladei_device_recent_settle(heap);
  for (size_t i = 0; i < LADEI_DEVICE_RECENT_SLOTS; i++) heap->recent[i].block = NULL;
}

/* ---- Keeping and handing out ------------------------------------------------------------------------------------- */

/* inactive_split when M becomes FREE again: one net step, as everywhere. */
static void split_gauges_on_give(ladei_device_counters *counters, bool small, const ladei_device_block *block,
                                 const ladei_device_block *rest) {
  if (whole_is_split(block, rest)) {
    ladei_device_gauges_raise(counters, LADEI_DEVICE_INACTIVE_SPLIT_BYTES, small, block->size);
    if (rest == NULL) ladei_device_gauges_raise(counters, LADEI_DEVICE_INACTIVE_SPLIT, small, 1);
  } else if (rest != NULL) {
    ladei_device_gauges_lower(counters, LADEI_DEVICE_INACTIVE_SPLIT, small, 1);
    ladei_device_gauges_lower(counters, LADEI_DEVICE_INACTIVE_SPLIT_BYTES, small, rest->size);
  }
}

void ladei_device_recent_keep(ladei_device_heap *heap, ladei_device_recent *slot) {
  ladei_device_block *block = slot->block;
  ladei_device_heap_assert_locked(heap);
  assert(block->previous == NULL || block->previous->state != LADEI_DEVICE_HEAP_FREE); /* K2 */
  ladei_device_block *rest = rest_of(block);
  const ladei_device_heap_segment *segment = block->segment;
  ladei_device_counters *counters = &heap->counters;
  bool small = segment->pool->is_small;
  if (rest == NULL)
    block->age_base = segment->pool->searches;
  else if (heap->ages_tick)
    rest->age_base = segment->pool->searches; /* else the clock stands since the rest became one */
  ladei_device_gauges_lower(counters, LADEI_DEVICE_ACTIVE, small, 1);
  ladei_device_gauges_lower(counters, LADEI_DEVICE_ACTIVE_BYTES, small, block->size);
  ladei_device_gauges_lower(counters, LADEI_DEVICE_REQUESTED_BYTES, small, block->requested);
  if (!ladei_device_heap_segment_expandable(segment)) split_gauges_on_give(counters, small, block, rest);
  block->requested = 0;
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_RECENT);
  slot->freed = true;
  heap->recent_count++;
}

ladei_device_block *ladei_device_recent_hand_out(ladei_device_heap *heap, ladei_device_recent *slot, size_t requested) {
  ladei_device_block *block = slot->block;
  ladei_device_heap_assert_locked(heap);
  ladei_device_block *rest = rest_of(block);
  const ladei_device_heap_segment *segment = block->segment;
  assert(block->state == LADEI_DEVICE_HEAP_RECENT && heap->recent_count > 0);
  heap->recent_count--;
  slot->freed = false;
  if (heap->ages_tick) {
    segment->pool->searches++; /* of the search that need not be */
    if (rest != NULL) rest->age_base = segment->pool->searches;
  }
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
  if (!ladei_device_heap_segment_expandable(segment)) {
    ladei_device_split_gauges_on_take(&heap->counters, segment->pool->is_small, whole_is_split(block, rest),
                                      block->size, rest != NULL ? rest->size : 0);
  }
  ladei_device_block_hand_out_whole(heap, block, requested);
  return block;
}
