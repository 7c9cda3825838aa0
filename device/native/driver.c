/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the heap and the driver: new plain segments, and memory given back.
 *
 * I1  growing_bytes sums what threads may get from the driver with the calls that they make or are about to make. It is
 *     taken under the hold of the lock that compares it with the limits, and given up when the memory is counted or gone:
 *     reserved + growing, and what the driver refused to take (expandable.c, E2), never exceed a limit by growing. (LADE_DEVICE_REFERENCE compares another figure, as PyTorch.)
 * I2  A block that the driver refused to take is free again, with nothing counted.
 * I3  A plain segment is hidden (heap.h) while the driver is asked to take it back: once it has, it may give the same
 *     addresses to another thread, before this one commits.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/state/allocator.h"

#include "base/error.h"

ladei_capture_mode ladei_device_driver_relax(const lade_device_allocator *allocator) {
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  ladei_lock_assert_none_held();
  /* Where the exchange fails, so does the call that follows, and says why. */
  if (allocator->runtime->ops->capture_mode_exchange(allocator->runtime->self, &mode) != LADE_OK)
    return LADEI_CAPTURE_RELAXED;
  return mode;
}

void ladei_device_driver_unrelax(const lade_device_allocator *allocator, ladei_capture_mode mode) {
  if (mode == LADEI_CAPTURE_RELAXED) return;
  (void)allocator->runtime->ops->capture_mode_exchange(allocator->runtime->self, &mode);
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

lade_status ladei_device_driver_budget(lade_device_allocator *allocator, size_t bytes) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t reserved = ladei_device_gauges_current(&allocator->heap.counters.reserved_bytes) + allocator->growing_bytes +
                      allocator->held_bytes;
  if (allocator->fraction_set && reserved + bytes > allocator->fraction_bytes)
    return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "the memory fraction is used up");
  if (reserved + bytes > allocator->max_bytes)
    return ladei_error(LADE_ERR_LIMIT, 0, "the options' max_bytes are used up");
  return LADE_OK;
}

static lade_status segment_call(lade_device_allocator *allocator, size_t bytes, void **out) {
  ladei_capture_mode mode = ladei_device_driver_relax(allocator);
  lade_status status = allocator->runtime->ops->device_alloc(allocator->runtime->self, allocator->device, bytes, out);
  ladei_device_driver_unrelax(allocator, mode);
  return status;
}

static lade_status segment_uncall(lade_device_allocator *allocator, uint64_t address) {
  ladei_capture_mode mode = ladei_device_driver_relax(allocator);
  lade_status status =
      allocator->runtime->ops->device_free(allocator->runtime->self, allocator->device, (void *)(uintptr_t)address);
  ladei_device_driver_unrelax(allocator, mode);
  return status;
}

/* Room for the segment's block and the one that a cut makes. */
enum { BLOCKS_PER_SEGMENT = 2 };

static lade_status records_missing(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for the record of a segment");
}

lade_status ladei_device_driver_segment_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                              ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  size_t bytes = request->segment_bytes;
  lade_status status = ladei_device_driver_budget(allocator, bytes);
  if (status != LADE_OK) return status;
  ladei_device_heap_segment *segment = ladei_device_heap_segment_create(&allocator->heap, bytes);
  if (segment == NULL) return records_missing();
  segment->stream = request->stream;
  segment->stream_key = request->stream_key;
  segment->pool = request->pool;

  void *address = NULL;
  allocator->growing_bytes += bytes;
  ladei_lock_release(&allocator->lock);
  ladei_device_segment_legacy_resolve(allocator, segment);
  status = segment_call(allocator, bytes, &address);
  ladei_device_history_lock(allocator);
  if (status == LADE_OK && !ladei_device_heap_reserve(&allocator->heap, BLOCKS_PER_SEGMENT)) {
    ladei_lock_release(&allocator->lock);
    (void)segment_uncall(allocator, (uint64_t)(uintptr_t)address);
    ladei_lock_acquire(&allocator->lock);
    status = records_missing();
  }
  allocator->growing_bytes -= bytes;
  if (status != LADE_OK) {
    ladei_device_heap_segment_discard(&allocator->heap, segment);
    return status;
  }
  *out = ladei_device_heap_segment_insert(&allocator->heap, segment, (uint64_t)(uintptr_t)address, true);
  ladei_device_heap_segment_count_in(&allocator->heap, segment);
  return LADE_OK;
}

/* ---- Giving back ------------------------------------------------------------------------------------------------- */

static lade_status segment_return(lade_device_allocator *allocator, const ladei_device_heap_segment *segment) {
  lade_status status = ladei_device_segment_finish(allocator, segment, false);
  return status == LADE_OK ? segment_uncall(allocator, segment->address) : status;
}

/* Calls the driver for each block, without the lock. Returns the first refusal, its record in *out_error; one for the sake
 * of a capture only where there is no other. */
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
  for (const ladei_device_capture *capture = allocator->captures; capture != NULL; capture = capture->next) {
    for (size_t i = 0; i < capture->stream_count; i++)
      if (capture->stream_keys[i] == segment->stream_key) return true;
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

/* What the driver did not take. Whatever it said, what it has handed out again is gone. */
static void blocks_show(lade_device_allocator *allocator, ladei_device_block *first) {
  ladei_lock_assert_held(&allocator->lock);
  for (ladei_device_block *block = first; block != NULL; block = block->chain) {
    if (ladei_device_heap_segment_expandable(block->segment)) continue;
    block->gone = block->gone || block->segment->counted_out;
    if (block->gone) continue;
    ladei_device_heap_segment_show(&allocator->heap, block);
  }
}

lade_status ladei_device_driver_release_emptied(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  lade_status result = LADE_OK;
  ladei_device_heap_segment *next;
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

static bool blocks_expandable(const ladei_device_block *first) {
  const ladei_device_block *block = first;
  while (block != NULL && !ladei_device_heap_segment_expandable(block->segment)) block = block->chain;
  return block != NULL;
}

lade_status ladei_device_driver_give_back(lade_device_allocator *allocator, ladei_device_block_list *leaving) {
  ladei_lock_assert_held(&allocator->lock);
  if (leaving->first == NULL) return LADE_OK;
  lade_error error;
  uint64_t kept_bytes = 0;
  bool expandable = blocks_expandable(leaving->first);
  allocator->returns_in_flight++;
  allocator->unmappings += expandable;
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
    block_commit(allocator, block);
  }
  lade_status holes = expandable ? ladei_device_driver_release_emptied(allocator) : LADE_OK;
  allocator->returns_in_flight--;
  allocator->unmappings -= expandable;
  allocator->returns++;
  ladei_condition_broadcast(&allocator->returned);
  ladei_device_block_list_init(leaving);
  leaving->kept_bytes = kept_bytes;
  if (status == LADE_OK) return holes;
  ladei_error_restore(&error);
  return status;
}

void ladei_device_driver_await_grants(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->heap.grants > 0) ladei_condition_wait(&allocator->returned, &allocator->lock);
}

void ladei_device_driver_await_idle(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->returns_in_flight > 0) ladei_condition_wait(&allocator->returned, &allocator->lock);
}

bool ladei_device_driver_await_returns(lade_device_allocator *allocator, uint64_t seen) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_driver_await_idle(allocator);
  return allocator->returns != seen;
}
