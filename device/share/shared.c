/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of expandable segments for other processes, as file descriptors of its granules.
 *
 *   here    granules  | g0 | g1 | g2 | g3 |     export of the block: fds of g1 and g2, offset of the block in g1
 *                          |-block-|
 *   there   a reservation of two pieces, the same memory mapped into it
 *
 * The other side needs nothing but the descriptors and the figures: each open is a mapping of its own.
 *
 *   NEW --made--> OPEN --close--> CLOSING --> gone            NEW --failed, not all taken back--> ABANDONED --> gone
 *                   ^-------refused--|                        (no caller was given its address; destroy tries again)
 *
 * V1  While descriptors are made, `grants` keeps the granules mapped.
 * V2  A mapping is in the list while any of its addresses are reserved; what the driver did not take back of it stays
 *     noted, and the next close goes on from there.
 * Locks: the allocator's lock guards the list and the reading of granules. No driver call under it.
 */
#include "device/share/shared.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "device/state/checks.h"

/* Nothing, a handle, or a handle that is mapped. */
typedef struct shared_piece {
  ladei_vm_handle handle; /* 0: none */
  bool mapped;
} shared_piece;

typedef enum shared_state { SHARED_NEW, SHARED_OPEN, SHARED_CLOSING, SHARED_ABANDONED, SHARED_GONE } shared_state;

struct ladei_device_shared_mapping {
  struct ladei_device_shared_mapping *next;
  void *base;
  size_t piece_bytes;
  size_t count;
  size_t offset;
  shared_state state;
  shared_piece pieces[];
};

/* ---- Export ------------------------------------------------------------------------------------------------------ */

typedef struct export_plan {
  ladei_vm_handle *handles;
  size_t count;
  size_t piece_bytes;
  size_t offset;
} export_plan;

static lade_status export_refused(const lade_device_allocator *allocator, const void *pointer, const char *why) {
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_device_shared_export: %p of device %d %s", pointer,
                     allocator->device, why);
}

/* The handles under a block. Lock held. */
static lade_status plan_make(lade_device_allocator *allocator, const void *pointer, export_plan *out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block *block = NULL;
  lade_status status = ladei_device_block_lookup(allocator, pointer, false, "lade_device_shared_export", &block);
  if (status != LADE_OK) return status;
  const ladei_device_heap_segment *segment = block->segment;
  if (!ladei_device_heap_segment_expandable(segment))
    return export_refused(allocator, pointer, "lies in no expandable segment: export it with lade_device_ipc_export");
  size_t bytes = segment->granules->bytes;
  size_t first = (size_t)(block->address - segment->address) / bytes;
  size_t last = (size_t)(block->address - segment->address + block->size - 1) / bytes;
  *out = (export_plan){.count = last - first + 1, .piece_bytes = bytes};
  out->offset = (size_t)((uint64_t)(uintptr_t)pointer - segment->address) - first * bytes;
  out->handles = calloc(out->count, sizeof *out->handles);
  if (out->handles == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_shared_export: no memory");
  for (size_t i = 0; i < out->count; i++) {
    const ladei_device_granule *granule = ladei_device_granule_at(segment->granules, first + i);
    if (!granule->exportable) {
      free(out->handles);
      return export_refused(allocator, pointer, "lies in memory that was mapped without LADE_DEVICE_EXPANDABLE_IPC");
    }
    out->handles[i] = granule->handle;
  }
  return LADE_OK;
}

static void descriptors_close(int *fds, size_t count) {
  for (size_t i = 0; i < count; i++) close(fds[i]);
  free(fds);
}

static lade_status descriptors_make(lade_device_allocator *allocator, const export_plan *plan, int **out_fds) {
  int *fds = calloc(plan->count, sizeof *fds);
  if (fds == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_shared_export: no memory");
  for (size_t i = 0; i < plan->count; i++) {
    lade_status status = ladei_device_ops(allocator)->vm_export(allocator->runtime->self, plan->handles[i], &fds[i]);
    if (status == LADE_OK) continue;
    descriptors_close(fds, i);
    return status;
  }
  *out_fds = fds;
  return LADE_OK;
}

lade_status ladei_device_native_shared_export(lade_device_allocator *allocator, const void *pointer,
                                              lade_device_shared *out) {
  export_plan plan = {NULL, 0, 0, 0};
  ladei_lock_acquire(&allocator->lock);
  lade_status status = plan_make(allocator, pointer, &plan);
  if (status == LADE_OK) allocator->heap.grants++; /* V1 */
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) return status;
  lade_device_shared own = {
      .struct_size = sizeof own, .fd_count = plan.count, .piece_bytes = plan.piece_bytes, .offset = plan.offset};
  status = descriptors_make(allocator, &plan, &own.fds);
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.grants--;
  ladei_condition_broadcast(&allocator->returns.changed);
  ladei_lock_release(&allocator->lock);
  free(plan.handles);
  if (status != LADE_OK) return status;
  status = ladei_stats_write("lade_device_shared", &own, sizeof own, out);
  if (status != LADE_OK) descriptors_close(own.fds, plan.count);
  return status;
}

void lade_device_shared_release(lade_device_shared *shared) {
  if (shared == NULL || shared->fds == NULL) return;
  descriptors_close(shared->fds, (size_t)shared->fd_count);
  shared->fds = NULL;
  shared->fd_count = 0;
}

/* ---- States ------------------------------------------------------------------------------------------------------ */

/* Whether a mapping may go from one state to another: the steps drawn above. */
static bool mapping_state_follows(shared_state from, shared_state to) {
  switch (from) {
  case SHARED_NEW: return to == SHARED_OPEN || to == SHARED_ABANDONED;
  case SHARED_OPEN: return to == SHARED_CLOSING;
  case SHARED_CLOSING: return to == SHARED_OPEN || to == SHARED_GONE;
  case SHARED_ABANDONED: return to == SHARED_GONE;
  case SHARED_GONE: return false;
  }
  return false;
}

/* The only way from one state to another. */
static void mapping_state_set(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping,
                              shared_state state) {
  ladei_lock_assert_held(&allocator->lock);
  assert(mapping_state_follows(mapping->state, state));
  (void)mapping_state_follows;
  mapping->state = state;
}

/* The same of a piece, whose thread has the mapping alone. */
static void piece_set(shared_piece *piece, ladei_vm_handle handle, bool mapped) {
  bool imported = (piece->handle == 0) != (handle == 0);
  assert(imported ? !piece->mapped && !mapped : piece->handle == handle && piece->mapped != mapped);
  (void)imported;
  piece->handle = handle;
  piece->mapped = mapped;
}

/* ---- Open -------------------------------------------------------------------------------------------------------- */

static void *piece_address(const ladei_device_shared_mapping *mapping, size_t index) {
  return (char *)mapping->base + index * mapping->piece_bytes;
}

/* Gives back what of the mapping there is; the first refusal leaves the rest for another try (V2). */
static lade_status mapping_release(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping) {
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  void *self = allocator->runtime->self;
  lade_status status = LADE_OK;
  for (size_t i = 0; status == LADE_OK && i < mapping->count; i++) {
    shared_piece *piece = &mapping->pieces[i];
    if (piece->mapped) {
      status = ops->vm_unmap(self, piece_address(mapping, i), mapping->piece_bytes);
      if (status != LADE_OK) break;
      piece_set(piece, piece->handle, false);
    }
    if (piece->handle != 0) {
      status = ops->vm_release(self, piece->handle);
      if (status == LADE_OK) piece_set(piece, 0, false);
    }
  }
  if (status == LADE_OK && mapping->base != NULL)
    status = ops->vm_address_free(self, mapping->base, mapping->count * mapping->piece_bytes);
  return status;
}

static lade_status pieces_map(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping, const int *fds) {
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  void *self = allocator->runtime->self;
  size_t bytes = mapping->count * mapping->piece_bytes;
  lade_status status = ops->vm_reserve(self, allocator->device, bytes, 0, &mapping->base);
  for (size_t i = 0; status == LADE_OK && i < mapping->count; i++) {
    shared_piece *piece = &mapping->pieces[i];
    ladei_vm_handle handle = 0;
    status = ops->vm_import(self, allocator->device, fds[i], &handle);
    if (status != LADE_OK) break;
    piece_set(piece, handle, false);
    status = ops->vm_map(self, piece_address(mapping, i), mapping->piece_bytes, handle);
    if (status == LADE_OK) piece_set(piece, handle, true);
  }
  if (status == LADE_OK) status = ops->vm_set_access(self, mapping->base, bytes, allocator->device, true);
  size_t peers = atomic_load(&allocator->peers.count);
  for (size_t i = 0; status == LADE_OK && i < peers; i++)
    status = ops->vm_set_access(self, mapping->base, bytes, allocator->peers.list[i], true);
  return status;
}

static lade_status shared_check(const lade_device_allocator *allocator, const lade_device_shared *shared,
                                const char *call) {
  size_t bytes;
  if (ladei_device_ops(allocator)->vm_import == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime \"%s\" has no virtual memory", call,
                       ladei_device_ops(allocator)->name);
  if (shared->fds == NULL) return ladei_error_null(call, "shared.fds");
  if (shared->piece_bytes == 0) return ladei_error_argument(call, "shared.piece_bytes", "more than 0", "0");
  if (shared->offset >= shared->piece_bytes) {
    return ladei_error_argument(call, "shared.offset", "less than shared.piece_bytes", "%llu of %llu",
                                (unsigned long long)shared->offset, (unsigned long long)shared->piece_bytes);
  }
  if (shared->fd_count > 0 && ladei_size_mul((size_t)shared->fd_count, (size_t)shared->piece_bytes, &bytes) &&
      bytes < LADEI_SIZE_LIMIT)
    return LADE_OK;
  return ladei_error_argument(call, "shared.fd_count", "1 or more, together less than 2^60 bytes", "%llu of %llu bytes",
                              (unsigned long long)shared->fd_count, (unsigned long long)shared->piece_bytes);
}

static void mapping_enter(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping, shared_state state) {
  ladei_lock_acquire(&allocator->lock);
  mapping_state_set(allocator, mapping, state);
  mapping->next = allocator->imports.shared;
  allocator->imports.shared = mapping;
  atomic_fetch_add_explicit(&allocator->imports.count, 1, memory_order_relaxed);
  ladei_lock_release(&allocator->lock);
}

/* A mapping that could not be made. A part that the driver does not take back either is kept, for
 * ladei_device_shared_finish. */
static void mapping_drop(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping) {
  lade_error error;
  ladei_error_save(&error);
  if (mapping_release(allocator, mapping) == LADE_OK)
    free(mapping);
  else
    mapping_enter(allocator, mapping, SHARED_ABANDONED);
  ladei_error_restore(&error);
}

static lade_status memory_open(lade_device_allocator *allocator, const lade_device_shared *shared, void **out) {
  static const char call[] = "lade_device_shared_open";
  lade_status status = ladei_device_check_call(allocator, call);
  if (status == LADE_OK && shared == NULL) status = ladei_error_null(call, "shared");
  if (status == LADE_OK && out == NULL) status = ladei_error_null(call, "out");
  lade_device_shared own;
  if (status == LADE_OK) status = ladei_options_read("lade_device_shared", shared, &own, sizeof own);
  if (status == LADE_OK) status = shared_check(allocator, &own, call);
  if (status != LADE_OK) return status;
  size_t count = (size_t)own.fd_count;
  ladei_device_shared_mapping *mapping = calloc(1, sizeof *mapping + count * sizeof mapping->pieces[0]);
  if (mapping == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", call);
  mapping->piece_bytes = (size_t)own.piece_bytes;
  mapping->count = count;
  mapping->offset = (size_t)own.offset;
  status = pieces_map(allocator, mapping, own.fds);
  if (status != LADE_OK) {
    mapping_drop(allocator, mapping);
    return status;
  }
  *out = (char *)mapping->base + mapping->offset;
  mapping_enter(allocator, mapping, SHARED_OPEN);
  return LADE_OK;
}

lade_status lade_device_shared_open(lade_device_allocator *allocator, const lade_device_shared *shared, void **out) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = memory_open(allocator, shared, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Close ------------------------------------------------------------------------------------------------------- */

/* Claims the mapping of an address. */
static ladei_device_shared_mapping *mapping_claim(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_shared_mapping *mapping = allocator->imports.shared;
  while (mapping != NULL && (mapping->state != SHARED_OPEN || (char *)mapping->base + mapping->offset != pointer))
    mapping = mapping->next;
  if (mapping != NULL) mapping_state_set(allocator, mapping, SHARED_CLOSING);
  ladei_lock_release(&allocator->lock);
  return mapping;
}

/* Its memory is gone, or it is open again. */
static void mapping_settle(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping, bool gone) {
  ladei_lock_acquire(&allocator->lock);
  mapping_state_set(allocator, mapping, gone ? SHARED_GONE : SHARED_OPEN);
  if (gone) {
    ladei_device_shared_mapping **link = &allocator->imports.shared;
    while (*link != mapping) link = &(*link)->next;
    *link = mapping->next;
    atomic_fetch_sub_explicit(&allocator->imports.count, 1, memory_order_relaxed);
  }
  ladei_lock_release(&allocator->lock);
  if (gone) free(mapping);
}

bool ladei_device_shared_open(const lade_device_allocator *allocator) {
  const ladei_device_shared_mapping *mapping = allocator->imports.shared;
  while (mapping != NULL && mapping->state == SHARED_ABANDONED) mapping = mapping->next;
  return mapping != NULL;
}

bool ladei_device_shared_has(const lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  for (const ladei_device_shared_mapping *mapping = allocator->imports.shared; mapping != NULL;
       mapping = mapping->next) {
    size_t offset = (size_t)((uintptr_t)pointer - (uintptr_t)mapping->base);
    if (mapping->state != SHARED_ABANDONED && offset < mapping->count * mapping->piece_bytes) return true;
  }
  return false;
}

lade_status ladei_device_shared_finish(lade_device_allocator *allocator) {
  while (allocator->imports.shared != NULL) {
    ladei_device_shared_mapping *mapping = allocator->imports.shared;
    lade_status status = mapping_release(allocator, mapping);
    if (status != LADE_OK) return status;
    mapping_settle(allocator, mapping, true);
  }
  return LADE_OK;
}

static lade_status memory_close(lade_device_allocator *allocator, void *pointer) {
  lade_status status = ladei_device_check_call(allocator, "lade_device_shared_close");
  if (status != LADE_OK) return status;
  ladei_device_shared_mapping *mapping = mapping_claim(allocator, pointer);
  if (mapping == NULL) {
    return ladei_error(
        LADE_ERR_FOREIGN_POINTER, 0,
        "lade_device_shared_close: pointer is %p; expected what lade_device_shared_open gave, still open, on device %d",
        pointer, allocator->device);
  }
  status = mapping_release(allocator, mapping);
  mapping_settle(allocator, mapping, status == LADE_OK);
  return status;
}

lade_status lade_device_shared_close(lade_device_allocator *allocator, void *pointer) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = memory_close(allocator, pointer);
  ladei_cancellation_resume(cancellation);
  return status;
}
