/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusals of public calls and backends, and the words for them.
 *
 * Locks: none is taken; a function that looks at the heap says so.
 */
#include "device/state/checks.h"

#include "base/error.h"

lade_status ladei_device_backend_lacks(const lade_device_allocator *allocator, const char *call) {
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: the backend %s does not support it (allocator of device %d)", call,
                     allocator->backend->name, allocator->device);
}

lade_status ladei_device_check_heap(const lade_device_allocator *allocator, const char *call) {
  return allocator->backend->has_heap ? LADE_OK : ladei_device_backend_lacks(allocator, call);
}

lade_status ladei_device_stream_elsewhere(int device) {
  return ladei_error_argument("lade_device_alloc", "stream",
                              "a stream of the allocator's device; record the use of another one after the call",
                              "of device %d", device);
}

/* ---- Pointers ---------------------------------------------------------------------------------------------------- */

lade_status ladei_device_pointer_foreign(const lade_device_allocator *allocator, const char *call,
                                         const void *pointer) {
  return ladei_error(LADE_ERR_FOREIGN_POINTER, 0,
                     "%s: pointer is %p; expected an address in a block of the allocator "
                     "of device %d",
                     call, pointer, allocator->device);
}

lade_status ladei_device_pointer_freed(const lade_device_allocator *allocator, const char *call, const void *pointer) {
  return ladei_error(LADE_ERR_DOUBLE_FREE, 0,
                     "%s: pointer is %p, in memory that is free already; expected a block "
                     "handed out by the allocator of device %d",
                     call, pointer, allocator->device);
}

lade_status ladei_device_pointer_interior(const lade_device_allocator *allocator, const char *call, const void *pointer,
                                          uint64_t offset) {
  return ladei_error(LADE_ERR_NOT_BLOCK_START, 0,
                     "%s: pointer is %p, %llu bytes into a block; expected the start of a "
                     "block of the allocator of device %d",
                     call, pointer, (unsigned long long)offset, allocator->device);
}

lade_status ladei_device_block_lookup(lade_device_allocator *allocator, const void *pointer, bool exact,
                                      const char *call, ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  ladei_device_block *block = ladei_device_heap_find(&allocator->heap, address);
  /* A BUSY block is on its way between the cache and the driver: no more handed out than a hole. */
  if (block == NULL || block->state == LADEI_DEVICE_HEAP_HOLE)
    return ladei_device_pointer_foreign(allocator, call, pointer);
  if (!ladei_device_block_is_live(block)) return ladei_device_pointer_freed(allocator, call, pointer);
  if (block->state == LADEI_DEVICE_HEAP_SUSPENDED && !exact)
    return ladei_device_pool_error(allocator, LADE_ERR_BUSY, call, block->segment->pool->private_pool->id,
                                   "it is suspended");
  if (exact && block->address != address)
    return ladei_device_pointer_interior(allocator, call, pointer, address - block->address);
  *out = block;
  return LADE_OK;
}

lade_status ladei_device_pool_refused(const char *call, lade_device_pool_id id, const char *what,
                                      const char *expected) {
  return ladei_error_argument(call, "id", expected, "(%llu, %llu), %s", (unsigned long long)id.first,
                              (unsigned long long)id.second, what);
}

lade_status ladei_device_pool_error(const lade_device_allocator *allocator, lade_status status, const char *call,
                                    lade_device_pool_id id, const char *what) {
  return ladei_error(status, 0, "%s: private pool (%llu, %llu) of device %d: %s", call, (unsigned long long)id.first,
                     (unsigned long long)id.second, allocator->device, what);
}

uint64_t ladei_device_active_count(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  uint64_t active = ladei_device_gauges_current(&allocator->heap.counters, LADEI_DEVICE_ACTIVE);
  ladei_lock_release(&allocator->lock);
  return active;
}

lade_status ladei_device_check_active(lade_device_allocator *allocator) {
  uint64_t active = ladei_device_active_count(allocator);
  if (active == 0) return LADE_OK;
  return ladei_error(LADE_NOT_READY, 0, "lade_device_allocator_destroy: device %d: %llu freed blocks are still in use",
                     allocator->device, (unsigned long long)active);
}
