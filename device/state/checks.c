/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What public calls and backends refuse, and the words for it.
 *
 * Locks: none is taken; a function that looks at the heap says so.
 */
#include "device/state/checks.h"

#include "base/error.h"

lade_status ladei_device_null(void) { return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "device allocator: NULL"); }

lade_status ladei_device_backend_lacks(const lade_device_allocator *allocator, const char *call) {
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "device allocator of device %d: %s: the backend %s does not support it",
                     allocator->device, call, allocator->backend->name);
}

lade_status ladei_device_check_heap(const lade_device_allocator *allocator, const char *call) {
  return allocator->backend->has_heap ? LADE_OK : ladei_device_backend_lacks(allocator, call);
}

lade_status ladei_device_stream_elsewhere(const lade_device_allocator *allocator, int device) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                     "device allocator of device %d: the stream belongs to device %d; allocate on a stream of the "
                     "device and record the use of the other one",
                     allocator->device, device);
}

lade_status ladei_device_block_lookup(lade_device_allocator *allocator, const void *pointer, bool exact,
                                      const char *call, ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  ladei_device_block *block = ladei_device_heap_find(&allocator->heap, address);
  /* A BUSY block is on its way between the cache and the driver: as little handed out as a hole. */
  if (block == NULL || block->state == LADEI_DEVICE_HEAP_HOLE) {
    return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "device allocator of device %d: %s: %p is not from here",
                       allocator->device, call, pointer);
  }
  if (block->state != LADEI_DEVICE_HEAP_ALLOCATED) {
    return ladei_error(LADE_ERR_DOUBLE_FREE, 0, "device allocator of device %d: %s: %p is free already",
                       allocator->device, call, pointer);
  }
  if (exact && block->address != address) {
    return ladei_error(LADE_ERR_NOT_BLOCK_START, 0, "device allocator of device %d: %s: %p is %llu bytes into a block",
                       allocator->device, call, pointer, (unsigned long long)(address - block->address));
  }
  *out = block;
  return LADE_OK;
}

lade_status ladei_device_private_pool_error(const lade_device_allocator *allocator, lade_status status,
                                            const char *call, lade_device_pool_id id, const char *what) {
  return ladei_error(status, 0, "device allocator of device %d: %s: private pool (%llu, %llu) %s", allocator->device,
                     call, (unsigned long long)id.first, (unsigned long long)id.second, what);
}

lade_status ladei_device_check_active(const lade_device_allocator *allocator) {
  uint64_t active = ladei_device_gauges_current(&allocator->heap.counters.active);
  if (active == 0) return LADE_OK;
  return ladei_error(LADE_NOT_READY, 0, "device allocator of device %d: destroy: %llu freed blocks are still in use",
                     allocator->device, (unsigned long long)active);
}
