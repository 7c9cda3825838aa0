/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits on growth, and driver calls for plain segments, or those of a provider.
 *
 * D1  growing_bytes sums what threads may get from the driver with the calls that they make or are about to make. It is
 *     taken under the hold of the lock that compares it with the limits, and given up when the memory is counted or
 *     gone: reserved + growing, and what the driver refused to take (expandable.c, E2), never exceed a limit by
 *     growing. (LADE_DEVICE_REFERENCE compares another figure, as PyTorch.)
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/native/driver.h"

#include "base/error.h"
#include "base/log.h"
#include "device/native/finish.h"
#include "device/native/provider.h"
#include "device/observe/history.h"
#include "device/state/latency.h"

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

lade_status ladei_device_driver_budget(lade_device_allocator *allocator, size_t bytes) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t reserved = ladei_device_gauges_current(&allocator->heap.counters, LADEI_DEVICE_RESERVED_BYTES) +
                      allocator->limits.growing_bytes + allocator->limits.held_bytes;
  if (reserved + bytes > ladei_device_fraction_limit(allocator))
    return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "the memory fraction is used up");
  if (reserved + bytes > allocator->limits.max_bytes)
    return ladei_error(LADE_ERR_LIMIT, 0, "the options' max_bytes are used up");
  return LADE_OK;
}

static lade_status segment_call(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                const ladei_device_request *request, const lade_device_plugin *provider, void **out) {
  bool exact = request->pool->private_pool == &allocator->caching.uncached; /* a tool sees what goes beyond it */
  size_t bytes = exact && provider == NULL ? request->requested : segment->size;
  if (provider != NULL) return ladei_device_provider_alloc(allocator, provider, bytes, &segment->stream, out);
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  ladei_latency_mark mark = ladei_latency_begin(allocator);
  lade_status status = allocator->runtime->ops->device_alloc(allocator->runtime->self, allocator->device, bytes, out);
  ladei_latency_end(allocator, mark, LADEI_LATENCY_DRIVER);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status;
}

static lade_status driver_free(lade_device_allocator *allocator, uint64_t address) {
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  ladei_latency_mark mark = ladei_latency_begin(allocator);
  lade_status status =
      allocator->runtime->ops->device_free(allocator->runtime->self, allocator->device, (void *)(uintptr_t)address);
  ladei_latency_end(allocator, mark, LADEI_LATENCY_DRIVER);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status;
}

lade_status ladei_device_driver_segment_free(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                             uint64_t address) {
  ladei_lock_assert_none_held();
  const lade_device_plugin *provider = ladei_device_provider_of(allocator, segment->pool);
  lade_stream stream = segment->last != NULL ? LADE_STREAM_LEGACY : segment->stream.handle; /* a retired one is gone */
  lade_status status = provider == NULL
                           ? driver_free(allocator, address)
                           : ladei_device_provider_free(allocator, provider, address, segment->size, stream);
  if (status == LADE_OK)
    ladei_log_later(LADE_LOG_INFO, "device allocator %p: segment at 0x%llx given back", (void *)allocator,
                    (unsigned long long)address);
  return status;
}

/* Room for the segment's block and the one that a split makes. */
enum { BLOCKS_PER_SEGMENT = 2 };

static lade_status records_missing(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for the record of a segment");
}

lade_status ladei_device_driver_segment_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                              ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  size_t bytes = request->segment_bytes;
  LADEI_TRY(ladei_device_driver_budget(allocator, bytes));
  ladei_device_heap_segment *segment = ladei_device_heap_segment_create(&allocator->heap, bytes);
  if (segment == NULL) return records_missing();
  segment->stream = request->stream;
  segment->stream_key = ladei_device_stream_key(&request->stream);
  segment->pool = request->pool;

  void *address = NULL;
  const lade_device_plugin *provider = ladei_device_provider_of(allocator, request->pool);
  allocator->limits.growing_bytes += bytes;
  ladei_lock_release(&allocator->lock);
  ladei_device_segment_legacy_resolve(allocator, segment);
  lade_status status = segment_call(allocator, segment, request, provider, &address);
  ladei_device_history_lock(allocator);
  if (status == LADE_OK && provider != NULL)
    status = ladei_device_provider_check(allocator, (uint64_t)(uintptr_t)address, bytes);
  if (status == LADE_OK && !ladei_device_heap_reserve(&allocator->heap, BLOCKS_PER_SEGMENT)) {
    ladei_lock_release(&allocator->lock);
    (void)ladei_device_driver_segment_free(allocator, segment, (uint64_t)(uintptr_t)address);
    ladei_lock_acquire(&allocator->lock);
    status = records_missing();
  }
  allocator->limits.growing_bytes -= bytes;
  if (status != LADE_OK) {
    ladei_device_heap_segment_discard(&allocator->heap, segment);
    return status;
  }
  ladei_log_later(LADE_LOG_INFO, "device allocator %p: segment of %zu bytes at %p", (void *)allocator, bytes, address);
  *out = ladei_device_heap_segment_insert(&allocator->heap, segment, (uint64_t)(uintptr_t)address, true);
  ladei_device_heap_segment_count_in(&allocator->heap, segment);
  return LADE_OK;
}
