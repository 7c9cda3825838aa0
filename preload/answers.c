/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks that answer questions about memory: the driver knows lade's segments, the program knows its blocks.
 *
 *   cuMemGetAddressRange, cuPointerGetAttribute(s)   start and size are the block's; the rest is the driver's answer,
 *                           except that device memory has no legacy handle (below), and memory of cuMemAllocAsync is of
 *                           the device's current pool. Outside all blocks: the answer for an address in no allocation
 *   cuPointerSetAttribute   applies to the whole segment: a switch is turned on, and never off, as neighbours may need
 *                           it
 *   cuMemGetInfo            cached whole segments are free: they go back before any request fails for lack of memory.
 *                           The hook waits for freed blocks first, as the driver's cuMemFree would have; pieces of
 *                           segments that hold blocks are not free, since no large request could get them
 *   cuIpcGetMemHandle       refused for lade's blocks: the handle would be the segment's, with its start and its
 *                           neighbours, and the same one for the next block there
 *
 * A1  For lade's memory that the program does not hold, no hook returns the segment's answer.
 * Locks: none.
 */
#include "preload/answers.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pools.h"

static const void *at(CUdeviceptr address) { return (const void *)(uintptr_t)address; }

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* A block may be larger than the requested bytes; the memory after them is of no owner. */
static preload_owner block_owner(preload_blocks *all, const void *start, const void *address, preload_block *out) {
  bool holds = ladei_preload_blocks_find(all, start, out) && (uintptr_t)address - (uintptr_t)start < out->bytes;
  return holds ? PRELOAD_OF_BLOCK : PRELOAD_OF_NONE;
}

preload_owner ladei_preload_pinned_owner(const void *address, preload_block *out) {
  lade_pinned_info info;
  if (ladei_preload_passes() || !ladei_preload_may_own(address)) return PRELOAD_OF_OTHERS;
  preload_device *device = ladei_preload_device_of(address, &info);
  if (device == NULL) return PRELOAD_OF_OTHERS;
  ladei_preload_device_leave(device);
  return info.state == LADE_PINNED_IN_USE ? block_owner(&ladei_preload_pinned_blocks, info.base, address, out)
                                          : PRELOAD_OF_NONE;
}

preload_owner ladei_preload_device_owner(const void *address, preload_block *out) {
  lade_device_block_info info;
  if (ladei_preload_heaps_pass() || !ladei_preload_heap_may_own(address)) return PRELOAD_OF_OTHERS;
  preload_device *device = ladei_preload_heap_of(address, &info);
  if (device == NULL) return PRELOAD_OF_OTHERS;
  ladei_preload_device_leave(device);
  return block_owner(&ladei_preload_device_blocks, (const void *)(uintptr_t)info.address, address, out);
}

static preload_owner owner_of(CUdeviceptr address, preload_block *out, bool *out_on_device) {
  preload_owner owner = ladei_preload_pinned_owner(at(address), out);
  *out_on_device = false;
  if (owner != PRELOAD_OF_OTHERS) return owner;
  owner = ladei_preload_device_owner(at(address), out);
  *out_on_device = owner == PRELOAD_OF_BLOCK;
  return owner;
}

/* An address in no allocation of the driver: the hooks ask about it instead of an address without an owner (A1). */
static CUdeviceptr nowhere(void) {
  static const char byte;
  return (CUdeviceptr)(uintptr_t)&byte;
}

/* ---- Ranges and attributes --------------------------------------------------------------------------------------- */

static CUmemoryPool pool_of(const preload_block *block) {
  CUdevice device;
  CUmemoryPool pool = NULL;
  if (block->is_ordered && DRIVER_CALL(device_get)(&device, block->device) == CUDA_SUCCESS &&
      DRIVER_CALL(device_get_mem_pool)(&pool, device) != CUDA_SUCCESS)
    pool = NULL;
  return pool;
}

static void attribute_mend(CUpointer_attribute attribute, void *data, const preload_block *block, bool on_device) {
  if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *(CUdeviceptr *)data = (CUdeviceptr)(uintptr_t)block->pointer;
  if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *(size_t *)data = block->bytes;
  if (!on_device) return;
  if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) *(int *)data = 0;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) *(CUmemoryPool *)data = pool_of(block);
}

CUresult hook_pointer_get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  preload_block block;
  bool on_device;
  CUresult code = DRIVER_CALL(pointer_get_attribute)(data, attribute, address);
  preload_owner owner = code == CUDA_SUCCESS ? owner_of(address, &block, &on_device) : PRELOAD_OF_OTHERS;
  if (owner == PRELOAD_OF_NONE) return DRIVER_CALL(pointer_get_attribute)(data, attribute, nowhere());
  if (owner == PRELOAD_OF_BLOCK) attribute_mend(attribute, data, &block, on_device);
  return code;
}

CUresult hook_pointer_get_attributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                     CUdeviceptr address) {
  preload_block block;
  bool on_device;
  CUresult code = DRIVER_CALL(pointer_get_attributes)(count, attributes, data, address);
  preload_owner owner = code == CUDA_SUCCESS ? owner_of(address, &block, &on_device) : PRELOAD_OF_OTHERS;
  if (owner == PRELOAD_OF_NONE) return DRIVER_CALL(pointer_get_attributes)(count, attributes, data, nowhere());
  for (unsigned i = 0; i < count && owner == PRELOAD_OF_BLOCK; i++)
    attribute_mend(attributes[i], data[i], &block, on_device);
  return code;
}

CUresult hook_mem_get_address_range(CUdeviceptr *out_base, size_t *out_bytes, CUdeviceptr address) {
  preload_block block;
  bool on_device;
  CUresult code = DRIVER_CALL(mem_get_address_range)(out_base, out_bytes, address);
  preload_owner owner = code == CUDA_SUCCESS ? owner_of(address, &block, &on_device) : PRELOAD_OF_OTHERS;
  if (owner == PRELOAD_OF_NONE) return DRIVER_CALL(mem_get_address_range)(out_base, out_bytes, nowhere());
  if (owner == PRELOAD_OF_BLOCK) {
    if (out_base != NULL) *out_base = (CUdeviceptr)(uintptr_t)block.pointer;
    if (out_bytes != NULL) *out_bytes = block.bytes;
  }
  return code;
}

CUresult hook_pointer_set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  preload_block block;
  preload_owner owner = ladei_preload_device_owner(at(address), &block);
  if (owner == PRELOAD_OF_NONE) address = nowhere();
  if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value != NULL && *(const unsigned *)value == 0 &&
      owner == PRELOAD_OF_BLOCK)
    return CUDA_SUCCESS;
  return DRIVER_CALL(pointer_set_attribute)(value, attribute, address);
}

/* ---- How much there is ------------------------------------------------------------------------------------------- */

/* Bytes of the device's cached segments that hold no block, in use or pending. */
static uint64_t device_cached_bytes(const preload_device *device) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  ladei_preload_begin();
  lade_status status = device->lade->lade_device_stats_get(device->heap, &stats);
  ladei_preload_end();
  uint64_t taken = stats.active_bytes.all.current + stats.inactive_split_bytes.all.current;
  return status == LADE_OK && stats.reserved_bytes.all.current > taken ? stats.reserved_bytes.all.current - taken : 0;
}

/* Enters the current context's device if it has a heap; NULL: there is none. */
static preload_device *current_heap_enter(void) {
  CUdevice native;
  if (ladei_preload_heaps_pass() || !ladei_preload_opened() || DRIVER_CALL(ctx_get_device)(&native) != CUDA_SUCCESS)
    return NULL;
  preload_device *device = ladei_preload_device_enter(ladei_preload_device_ordinal(native), false);
  if (device == NULL || device->heap != NULL) return device;
  ladei_preload_device_leave(device);
  return NULL;
}

CUresult hook_mem_get_info(size_t *out_free, size_t *out_total) {
  size_t free_bytes = 0, total_bytes = 0;
  preload_device *device = out_free == NULL ? NULL : current_heap_enter();
  if (device == NULL) return DRIVER_CALL(mem_get_info)(out_free, out_total);
  ladei_preload_pending_wait(&device->heap_pending, 0);
  CUresult code = DRIVER_CALL(mem_get_info)(&free_bytes, &total_bytes);
  if (code == CUDA_SUCCESS) {
    size_t room = total_bytes - free_bytes;
    uint64_t cached = device_cached_bytes(device);
    *out_free = free_bytes + (cached < room ? cached : room);
    if (out_total != NULL) *out_total = total_bytes;
  }
  ladei_preload_device_leave(device);
  return code;
}

/* ---- Other processes --------------------------------------------------------------------------------------------- */

CUresult hook_ipc_get_mem_handle(CUipcMemHandle *out, CUdeviceptr address) {
  static atomic_bool told;
  preload_block block;
  preload_owner owner = ladei_preload_device_owner(at(address), &block);
  if (owner != PRELOAD_OF_BLOCK)
    return DRIVER_CALL(ipc_get_mem_handle)(out, owner == PRELOAD_OF_NONE ? nowhere() : address);
  ladei_preload_count(PRELOAD_DEVICE_HANDLES_REFUSED, 1);
  if (!atomic_exchange(&told, true))
    fprintf(stderr, "liblade_preload: cuIpcGetMemHandle: memory that lade serves cannot be shared between processes; "
                    "LADE_PRELOAD_DEVICE=off leaves device memory to the driver\n");
  return CUDA_ERROR_NOT_SUPPORTED;
}
