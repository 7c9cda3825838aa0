/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native backend with LADE_DEVICE_UNCACHED: what lade_device_alloc hands out is a driver allocation each, given
 * back by the free, so that a tool sees every access beyond an end or after a free. Raw allocations are cached as
 * always, and every call knows both kinds by their address.
 *
 *   alloc --> device_alloc --> in `blocks` --free--> device idle --> device_free        raw_alloc --> native
 *
 * N1  blocks holds what is handed out. While a block is given back it is not there: the driver may hand the address out
 *     again before its free returns.
 * N2  No counter moves for it, and a use by another stream of the device need not be noted: the free waits for the
 *     device. Of streams of other devices the device is noted, and waited for as well.
 * Locks: the allocator's lock guards blocks. No driver call under it.
 */
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "device/backends/backends.h"
#include "device/native/native.h"
#include "device/share/peer.h"
#include "device/state/checks.h"

typedef struct direct_block {
  ladei_slab_head head;
  ladei_order_node order; /* by address */
  uint64_t address;
  size_t bytes;
  uint64_t others; /* bit d: a stream of device d was recorded, not of the allocator's; 63: and of those above */
} direct_block;

typedef struct uncached_state {
  ladei_slab records; /* of direct_block */
  ladei_ordered_set blocks;
} uncached_state;

static uncached_state *state_of(lade_device_allocator *allocator) { return allocator->backend_state; }

/* The block that an address lies in; NULL if in none. Lock held. */
static direct_block *block_find(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  ladei_order_node *node = ladei_ordered_set_at_most(&state_of(allocator)->blocks, (ladei_order_key){{address, 0, 0}});
  direct_block *block = LADEI_ORDER_RECORD(node, direct_block, order);
  return block != NULL && address - block->address < block->bytes ? block : NULL;
}

static bool is_direct(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_acquire(&allocator->lock);
  bool found = block_find(allocator, pointer) != NULL;
  ladei_lock_release(&allocator->lock);
  return found;
}

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

static lade_status driver_alloc(lade_device_allocator *allocator, size_t bytes, void **out) {
  const lade_runtime_ops *ops = allocator->runtime->ops;
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = ops->device_alloc(allocator->runtime->self, allocator->device, bytes, out);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return ladei_error_out_of_memory(status);
}

static lade_status direct_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  ladei_stream resolved;
  lade_status status = ladei_device_stream_resolve(allocator, stream, &resolved);
  if (status != LADE_OK) return status;
  uncached_state *state = state_of(allocator);
  ladei_lock_acquire(&allocator->lock);
  direct_block *block = ladei_slab_alloc(&state->records);
  ladei_lock_release(&allocator->lock);
  if (block == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for the record of a block");
  void *pointer = NULL;
  status = driver_alloc(allocator, bytes, &pointer);
  ladei_lock_acquire(&allocator->lock);
  if (status == LADE_OK) {
    block->address = (uint64_t)(uintptr_t)pointer;
    block->bytes = bytes;
    block->others = 0;
    block->order.key = (ladei_order_key){{block->address, 0, 0}};
    ladei_ordered_set_insert(&state->blocks, &block->order);
  } else {
    ladei_slab_free(&state->records, block);
  }
  ladei_lock_release(&allocator->lock);
  if (status == LADE_OK) *out = pointer;
  return status;
}

static lade_status uncached_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = direct_alloc(allocator, bytes, stream, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Free -------------------------------------------------------------------------------------------------------- */

enum { OTHERS_LAST = 63 };

static lade_status device_wait(const lade_device_allocator *allocator, int device) {
  lade_status status = allocator->runtime->ops->device_synchronize(allocator->runtime->self, device);
  return status == LADE_ERR_DEVICE_LOST ? LADE_OK : status; /* nothing runs on it any more */
}

static lade_status devices_wait(const lade_device_allocator *allocator, uint64_t others) {
  int count = 0;
  lade_status status = device_wait(allocator, allocator->device);
  if (status == LADE_OK && others != 0)
    status = allocator->runtime->ops->device_count(allocator->runtime->self, &count);
  for (int device = 0; device < count && status == LADE_OK; device++)
    if ((others >> (device < OTHERS_LAST ? device : OTHERS_LAST) & 1) != 0) status = device_wait(allocator, device);
  return status;
}

/* Waits first: the driver's free need not, and the work of any stream may use the block. */
static lade_status driver_free(lade_device_allocator *allocator, const direct_block *block) {
  const lade_runtime_ops *ops = allocator->runtime->ops;
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = devices_wait(allocator, block->others);
  if (status == LADE_OK)
    status = ops->device_free(allocator->runtime->self, allocator->device, (void *)(uintptr_t)block->address);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status;
}

/* Takes the block at `pointer` out for its free. Lock held. */
static lade_status block_claim(lade_device_allocator *allocator, direct_block *block, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  if (block->address != (uint64_t)(uintptr_t)pointer) {
    return ladei_device_pointer_interior(allocator, "lade_device_free", pointer,
                                         (uint64_t)(uintptr_t)pointer - block->address);
  }
  ladei_ordered_set_remove(&state_of(allocator)->blocks, &block->order);
  return LADE_OK;
}

static lade_status direct_free(lade_device_allocator *allocator, void *pointer) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  direct_block *block = block_find(allocator, pointer);
  if (block != NULL) status = block_claim(allocator, block, pointer);
  ladei_lock_release(&allocator->lock);
  if (block == NULL) return ladei_device_native_free(allocator, pointer);
  if (status != LADE_OK) return status;
  status = driver_free(allocator, block);
  ladei_lock_acquire(&allocator->lock);
  if (status == LADE_OK)
    ladei_slab_free(&state_of(allocator)->records, block);
  else
    ladei_ordered_set_insert(&state_of(allocator)->blocks, &block->order);
  ladei_lock_release(&allocator->lock);
  return status;
}

static lade_status uncached_free(lade_device_allocator *allocator, void *pointer) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = direct_free(allocator, pointer);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Calls on both kinds ----------------------------------------------------------------------------------------- */

/* N2 */
static lade_status uncached_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream) {
  ladei_stream resolved;
  if (!is_direct(allocator, pointer)) return ladei_device_native_record_stream(allocator, pointer, stream);
  lade_status status = allocator->runtime->ops->stream_resolve(allocator->runtime->self, stream, &resolved);
  if (status != LADE_OK || resolved.device == allocator->device) return status;
  ladei_lock_acquire(&allocator->lock);
  direct_block *block = block_find(allocator, pointer);
  if (block != NULL) block->others |= (uint64_t)1 << (resolved.device < OTHERS_LAST ? resolved.device : OTHERS_LAST);
  ladei_lock_release(&allocator->lock);
  return LADE_OK;
}

static lade_status uncached_base_get(lade_device_allocator *allocator, const void *pointer, void **out_base,
                                     size_t *out_bytes) {
  ladei_lock_acquire(&allocator->lock);
  const direct_block *block = block_find(allocator, pointer);
  if (block != NULL) {
    *out_base = (void *)(uintptr_t)block->address;
    *out_bytes = block->bytes;
  }
  ladei_lock_release(&allocator->lock);
  return block != NULL ? LADE_OK : ladei_device_native_base_get(allocator, pointer, out_base, out_bytes);
}

/* ---- Open, close ------------------------------------------------------------------------------------------------- */

static lade_status uncached_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup) {
  uncached_state *state = calloc(1, sizeof *state);
  if (state == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for its backend");
  ladei_slab_init(&state->records, sizeof(direct_block));
  allocator->backend_state = state;
  lade_status status = ladei_device_native_open(allocator, setup);
  if (status == LADE_OK) return LADE_OK;
  free(state);
  return status;
}

static lade_status uncached_close(lade_device_allocator *allocator, bool wait) {
  uncached_state *state = state_of(allocator);
  if (state->blocks.count > 0) {
    return ladei_error(LADE_ERR_BUSY, 0, "lade_device_allocator_destroy: device %d: %zu uncached blocks are handed out",
                       allocator->device, state->blocks.count);
  }
  lade_status status = ladei_device_native_close(allocator, wait);
  if (status != LADE_OK) return status;
  ladei_slab_destroy(&state->records);
  free(state);
  return LADE_OK;
}

const ladei_device_backend ladei_device_backend_uncached = {
    .name = "native",
    .has_heap = true,
    .is_uncached = true,
    .open = uncached_open,
    .close = uncached_close,
    .check = ladei_device_native_check,
    .recount = ladei_device_native_recount,
    .alloc = uncached_alloc,
    .raw_alloc = ladei_device_native_alloc,
    .free = uncached_free,
    .record_stream = uncached_record_stream,
    .empty_cache = ladei_device_native_empty_cache,
    .stream_retire = ladei_device_native_stream_retire,
    .base_get = uncached_base_get,
    .peer_add = ladei_device_native_peer_add,
    .pool_begin = ladei_device_native_pool_begin,
    .pool_end = ladei_device_native_pool_end,
    .pool_release = ladei_device_native_pool_release,
};
