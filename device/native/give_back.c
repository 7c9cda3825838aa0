/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory goes back to the driver: whole plain segments, and granules of expandable ones.
 *
 * B1  A block that the driver refused to take is free again, with nothing counted.
 * B2  A plain segment is hidden (heap.h) while the driver is asked to take it back: once it has, it may give the same
 *     addresses to another thread, before this one commits.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/native/give_back.h"

#include "base/error.h"
#include "device/native/driver.h"
#include "device/native/expandable.h"
#include "device/native/finish.h"
#include "device/observe/callbacks.h"
#include "device/observe/history.h"

static lade_status segment_return(lade_device_allocator *allocator, const ladei_device_heap_segment *segment) {
  LADEI_TRY(ladei_device_segment_finish(allocator, segment, false));
  ladei_device_callbacks_leave(allocator, segment, LADE_DEVICE_SEGMENT_FREE, segment->address, segment->size);
  return ladei_device_driver_segment_free(allocator, segment, segment->address);
}

/* Calls the driver for each block, without the lock. Returns the first refusal, its record in *out_error; one for the
 * sake of a capture only where there is no other. */
static lade_status blocks_call(lade_device_allocator *allocator, ladei_device_block *first, lade_error *out_error) {
  ladei_lock_assert_none_held();
  lade_status result = LADE_OK;
  for (ladei_device_block *block = first; block != NULL; block = block->chain) {
    lade_status status;
    if (block->kept) {
      status = ladei_error(LADE_ERR_CAPTURE, 0,
                           "device allocator of device %d: a capture into a private pool names stream id "
                           "%llu, whose memory stays meanwhile",
                           allocator->device, (unsigned long long)block->segment->stream.id);
      block->gone = false;
    } else if (ladei_device_heap_segment_expandable(block->segment)) {
      status = ladei_device_expandable_unmap(allocator, block, &block->gone);
    } else {
      status = segment_return(allocator, block->segment);
      block->gone = status == LADE_OK;
    }
    block->kept = status == LADE_ERR_CAPTURE;
    if (status != LADE_OK && (result == LADE_OK || (result == LADE_ERR_CAPTURE && !block->kept))) {
      result = status;
      ladei_error_save(out_error);
    }
  }
  return result;
}

static void block_commit(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  if (!block->gone)
    ladei_device_block_insert(heap, block);
  else if (ladei_device_heap_segment_expandable(block->segment))
    ladei_device_expandable_unmapped(allocator, block);
  else
    ladei_device_heap_segment_remove(heap, block);
}

/* Whether a capture under way names the stream of a segment. */
static bool segment_named(const lade_device_allocator *allocator, const ladei_device_heap_segment *segment) {
  ladei_lock_assert_held(&allocator->lock);
  for (const ladei_device_route *route = allocator->routes.first; route != NULL; route = route->next) {
    if (route->kind != LADEI_DEVICE_ROUTE_CAPTURE) continue;
    for (size_t i = 0; i < route->stream_count; i++)
      if (route->stream_keys[i] == segment->stream_key) return true;
  }
  return false;
}

/* Memory of streams that captures name stays without a question: begin has seen to it that none is under way either. */
static void blocks_keep(lade_device_allocator *allocator, ladei_device_block *first) {
  ladei_lock_assert_held(&allocator->lock);
  for (ladei_device_block *block = first; block != NULL; block = block->chain)
    block->kept = !allocator->heap.settings.reference && segment_named(allocator, block->segment);
}

static void blocks_hide(lade_device_allocator *allocator, ladei_device_block *first) {
  ladei_lock_assert_held(&allocator->lock);
  for (ladei_device_block *block = first; block != NULL; block = block->chain)
    if (!ladei_device_heap_segment_expandable(block->segment)) ladei_device_heap_segment_hide(&allocator->heap, block);
}

/* Blocks that the driver did not take. Whatever it said, memory that it has handed out again is gone. */
static void blocks_show(lade_device_allocator *allocator, ladei_device_block *first) {
  ladei_lock_assert_held(&allocator->lock);
  for (ladei_device_block *block = first; block != NULL; block = block->chain) {
    if (ladei_device_heap_segment_expandable(block->segment)) continue;
    block->gone = block->gone || block->segment->counted_out;
    if (block->gone) continue;
    ladei_device_heap_segment_show(&allocator->heap, block);
  }
}

/* Until none is left. */
static lade_status emptied_release(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  lade_status result = LADE_OK;
  ladei_device_heap_segment *next;
  if (atomic_load(&allocator->expandable_count) == 0) return LADE_OK;
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(&allocator->heap); segment != NULL;
       segment = next) {
    next = ladei_device_heap_segment_next(segment);
    if (!segment->emptied) continue;
    segment->emptied = false;
    ladei_device_block *hole = ladei_device_heap_segment_block(&allocator->heap, segment);
    if (hole->state != LADEI_DEVICE_HEAP_HOLE || hole->size != segment->size) continue;
    ladei_device_block_remove(hole);
    lade_status status = ladei_device_expandable_release(allocator, segment);
    if (result == LADE_OK) result = status;
    next = ladei_device_heap_segment_first(&allocator->heap); /* the lock was released: begin again */
  }
  return result;
}

lade_status ladei_device_give_back_emptied(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  if (allocator->caching.frees_held > 0) {
    allocator->caching.frees_kept = true;
    return LADE_OK;
  }
  allocator->returns.in_flight++;
  lade_status status = emptied_release(allocator);
  allocator->returns.in_flight--;
  ladei_condition_broadcast(&allocator->returns.changed);
  return status;
}

static bool blocks_expandable(const ladei_device_block *first) {
  const ladei_device_block *block = first;
  while (block != NULL && !ladei_device_heap_segment_expandable(block->segment)) block = block->chain;
  return block != NULL;
}

/* While frees are held (caching.c): the blocks of the list are free again, and go back at the resume. */
static bool frees_keep(lade_device_allocator *allocator, ladei_device_block_list *leaving) {
  ladei_lock_assert_held(&allocator->lock);
  if (allocator->caching.frees_held == 0) return false;
  ladei_device_block *next;
  for (ladei_device_block *block = leaving->first; block != NULL; block = next) {
    next = block->chain;
    block->segment->wanted_back = true;
    (void)ladei_device_block_insert(&allocator->heap, block);
  }
  allocator->caching.frees_kept = true;
  ladei_device_block_list_init(leaving);
  return true;
}

lade_status ladei_device_give_back(lade_device_allocator *allocator, ladei_device_block_list *leaving) {
  ladei_lock_assert_held(&allocator->lock);
  if (leaving->first == NULL || frees_keep(allocator, leaving)) return LADE_OK;
  lade_error error;
  uint64_t kept_bytes = 0;
  uint64_t gone_bytes = 0;
  bool expandable = blocks_expandable(leaving->first);
  allocator->returns.in_flight++;
  allocator->returns.unmappings += expandable;
  blocks_keep(allocator, leaving->first);
  blocks_hide(allocator, leaving->first);
  ladei_lock_release(&allocator->lock);
  ladei_device_last_events_drop(allocator);
  lade_status status = blocks_call(allocator, leaving->first, &error);
  ladei_device_history_lock(allocator);
  blocks_show(allocator, leaving->first);
  ladei_device_block *next;
  for (ladei_device_block *block = leaving->first; block != NULL; block = next) {
    next = block->chain;
    if (block->kept && !block->gone) {
      allocator->heap.counters.capture_kept++;
      kept_bytes += block->size;
    }
    if (block->gone) gone_bytes += block->size;
    block_commit(allocator, block);
  }
  lade_status holes = expandable ? emptied_release(allocator) : LADE_OK;
  allocator->returns.in_flight--;
  allocator->returns.unmappings -= expandable;
  allocator->returns.count++;
  ladei_condition_broadcast(&allocator->returns.changed);
  ladei_device_block_list_init(leaving);
  leaving->kept_bytes = kept_bytes;
  leaving->gone_bytes = gone_bytes;
  if (status == LADE_OK) return holes;
  ladei_error_restore(&error);
  return status;
}

void ladei_device_await_grants(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->heap.grants > 0) ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
}

void ladei_device_await_idle(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->returns.in_flight > 0) ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
}

bool ladei_device_await_returns(lade_device_allocator *allocator, uint64_t seen) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_await_idle(allocator);
  return allocator->returns.count != seen;
}
