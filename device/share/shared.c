/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of one process in another. A driver allocation goes by the driver's name for it; memory of an expandable segment
 * by file descriptors of its granules:
 *
 *   here    granules  | g0 | g1 | g2 | g3 |     export of the block: fds of g1 and g2, offset of the block in g1
 *                          |-block-|
 *   there   a reservation of two pieces, the same memory mapped into it
 *
 *   OPENING --driver calls--> OPEN, counted --last close--> CLOSING --driver calls--> gone
 *    |   |                     ^                             |
 *    |   +--refused--> gone    +----------refused------------+
 *    +--refused, and not all of it taken back--> ABANDONED --> gone   (no caller has its address; destroy tries again)
 *
 * A driver allocation whose close is refused while no caller knows of it, since an offset was bad, is ABANDONED, too, and
 * OPEN again with the next open of it: the driver would not open it twice.
 *
 * V1  While descriptors are made, `grants` keeps the granules mapped.
 * V2  A mapping is in the list while any of its addresses are taken; what the driver did not take back of it stays noted,
 *     and the next close goes on from there.
 * V3  A driver allocation has at most one mapping, since a driver opens each only once in a process. While its driver call
 *     is in flight, others that open it wait. Each open of descriptors is a mapping of its own.
 * V4  An OPEN mapping has count > 0, others have 0.
 * Locks: the allocator's lock guards the list, and the reading of granules. No driver call under it.
 */
#include "device/share/shared.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
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

typedef enum shared_state { SHARED_OPENING, SHARED_OPEN, SHARED_CLOSING, SHARED_ABANDONED, SHARED_GONE } shared_state;

struct ladei_device_shared_mapping {
  struct ladei_device_shared_mapping *next;
  shared_state state;
  uint64_t count; /* opens less closes */
  void *base;
  bool sized; /* else the driver did not say `bytes`: it reaches as far as addresses were given */
  size_t bytes;
  ladei_ipc_handle handle;
  size_t piece_bytes;
  size_t piece_count; /* 0: a driver allocation */
  shared_piece pieces[];
};

/* ---- Export ------------------------------------------------------------------------------------------------------ */

typedef struct export_plan {
  ladei_vm_handle *handles;
  size_t count;
  size_t piece_bytes;
  size_t offset; /* of the pointer, in the first handle's memory or the segment */
  void *base;    /* of a plain segment */
} export_plan;

static lade_status export_refused(const lade_device_allocator *allocator, const void *pointer, const char *why) {
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_device_shared_export: %p of device %d %s", pointer,
                     allocator->device, why);
}

/* The handles under a block of an expandable segment, else its segment. Lock held. */
static lade_status plan_make(lade_device_allocator *allocator, const void *pointer, export_plan *out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block *block = NULL;
  LADEI_TRY(ladei_device_block_lookup(allocator, pointer, false, "lade_device_shared_export", &block));
  const ladei_device_heap_segment *segment = block->segment;
  if (!ladei_device_heap_segment_expandable(segment)) {
    out->base = (void *)(uintptr_t)segment->address;
    out->offset = (size_t)((uint64_t)(uintptr_t)pointer - segment->address);
    return LADE_OK;
  }
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

static lade_status pieces_export(lade_device_allocator *allocator, const export_plan *plan, lade_device_shared *out) {
  out->fd_count = plan->count;
  out->piece_bytes = plan->piece_bytes;
  out->offset = plan->offset;
  return descriptors_make(allocator, plan, &out->fds);
}

static lade_status driver_supported(const lade_device_allocator *allocator, const char *call) {
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  if (ops->ipc_open != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime \"%s\" shares no memory between processes", call, ops->name);
}

static lade_status driver_export(lade_device_allocator *allocator, const export_plan *plan, lade_device_shared *out) {
  ladei_ipc_handle handle;
  LADEI_TRY(driver_supported(allocator, "lade_device_shared_export"));
  LADEI_TRY(ladei_device_ops(allocator)->ipc_export(allocator->runtime->self, plan->base, &handle));
  memcpy(out->handle, handle.bytes, sizeof handle.bytes);
  out->offset = plan->offset;
  return LADE_OK;
}

lade_status ladei_device_native_shared_export(lade_device_allocator *allocator, const void *pointer,
                                              lade_device_shared *out) {
  export_plan plan = {.handles = NULL};
  lade_device_shared own = {.struct_size = sizeof own};
  ladei_lock_acquire(&allocator->lock);
  lade_status status = plan_make(allocator, pointer, &plan);
  if (status == LADE_OK) allocator->heap.grants++; /* V1 */
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) return status;
  status = plan.count > 0 ? pieces_export(allocator, &plan, &own) : driver_export(allocator, &plan, &own);
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.grants--;
  ladei_condition_broadcast(&allocator->returns.changed);
  ladei_lock_release(&allocator->lock);
  free(plan.handles);
  if (status != LADE_OK) return status;
  status = ladei_stats_write("lade_device_shared", &own, sizeof own, out);
  if (status != LADE_OK) lade_device_shared_release(&own);
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
  case SHARED_OPENING: return to == SHARED_OPEN || to == SHARED_ABANDONED || to == SHARED_GONE;
  case SHARED_OPEN: return to == SHARED_CLOSING;
  case SHARED_CLOSING: return to == SHARED_OPEN || to == SHARED_ABANDONED || to == SHARED_GONE;
  case SHARED_ABANDONED: return to == SHARED_OPEN || to == SHARED_GONE;
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
  mapping->count = state == SHARED_OPEN; /* V4 */
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

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

static bool mapping_has(const ladei_device_shared_mapping *mapping, const void *pointer) {
  return mapping->state == SHARED_OPEN && (uintptr_t)pointer - (uintptr_t)mapping->base < mapping->bytes;
}

/* The open mapping of an address, or NULL. */
static ladei_device_shared_mapping *mapping_of(const lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_shared_mapping *mapping = allocator->imports.shared;
  while (mapping != NULL && !mapping_has(mapping, pointer)) mapping = mapping->next;
  return mapping;
}

/* The open or abandoned mapping of a driver allocation, or NULL; waits while its driver call is in flight (V3). */
static ladei_device_shared_mapping *mapping_of_handle(lade_device_allocator *allocator,
                                                      const lade_device_shared *shared) {
  ladei_lock_assert_held(&allocator->lock);
  for (;;) {
    ladei_device_shared_mapping *mapping = allocator->imports.shared;
    while (mapping != NULL &&
           (mapping->piece_count > 0 || memcmp(mapping->handle.bytes, shared->handle, sizeof shared->handle) != 0))
      mapping = mapping->next;
    if (mapping == NULL || mapping->state == SHARED_OPEN || mapping->state == SHARED_ABANDONED) return mapping;
    ladei_condition_wait(&allocator->imports.changed, &allocator->lock);
  }
}

static ladei_device_shared_mapping *mapping_create(lade_device_allocator *allocator, const lade_device_shared *shared) {
  ladei_lock_assert_held(&allocator->lock);
  size_t count = (size_t)shared->fd_count;
  ladei_device_shared_mapping *mapping = calloc(1, sizeof *mapping + count * sizeof mapping->pieces[0]);
  if (mapping == NULL) return NULL;
  memcpy(mapping->handle.bytes, shared->handle, sizeof shared->handle);
  mapping->piece_bytes = (size_t)shared->piece_bytes;
  mapping->piece_count = count;
  mapping->next = allocator->imports.shared;
  allocator->imports.shared = mapping;
  atomic_fetch_add_explicit(&allocator->imports.count, 1, memory_order_relaxed);
  return mapping;
}

/* The driver calls of a mapping have ended. */
static void mapping_settle(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping, shared_state state) {
  ladei_lock_assert_held(&allocator->lock);
  mapping_state_set(allocator, mapping, state);
  if (state == SHARED_GONE) {
    ladei_device_shared_mapping **link = &allocator->imports.shared;
    while (*link != mapping) link = &(*link)->next;
    *link = mapping->next;
    free(mapping);
    atomic_fetch_sub_explicit(&allocator->imports.count, 1, memory_order_relaxed);
  }
  ladei_condition_broadcast(&allocator->imports.changed);
}

static void *piece_address(const ladei_device_shared_mapping *mapping, size_t index) {
  return (char *)mapping->base + index * mapping->piece_bytes;
}

static lade_status pieces_unmap(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping) {
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  void *self = allocator->runtime->self;
  lade_status status = LADE_OK;
  for (size_t i = 0; status == LADE_OK && i < mapping->piece_count; i++) {
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
  if (status == LADE_OK && mapping->base != NULL) status = ops->vm_address_free(self, mapping->base, mapping->bytes);
  return status;
}

static lade_status pieces_map(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping, const int *fds) {
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  void *self = allocator->runtime->self;
  mapping->bytes = mapping->piece_count * mapping->piece_bytes;
  mapping->sized = true;
  lade_status status = ops->vm_reserve(self, allocator->device, mapping->bytes, 0, &mapping->base);
  for (size_t i = 0; status == LADE_OK && i < mapping->piece_count; i++) {
    shared_piece *piece = &mapping->pieces[i];
    ladei_vm_handle handle = 0;
    status = ops->vm_import(self, allocator->device, fds[i], &handle);
    if (status != LADE_OK) break;
    piece_set(piece, handle, false);
    status = ops->vm_map(self, piece_address(mapping, i), mapping->piece_bytes, handle);
    if (status == LADE_OK) piece_set(piece, handle, true);
  }
  if (status == LADE_OK) status = ops->vm_set_access(self, mapping->base, mapping->bytes, allocator->device, true);
  size_t peers = atomic_load(&allocator->peers.count);
  for (size_t i = 0; status == LADE_OK && i < peers; i++)
    status = ops->vm_set_access(self, mapping->base, mapping->bytes, allocator->peers.list[i], true);
  return status;
}

static lade_status driver_map(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping) {
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  ladei_pointer_attributes attributes = {.bytes = 0};
  LADEI_TRY(ops->ipc_open(allocator->runtime->self, allocator->device, &mapping->handle, &mapping->base));
  lade_error before;
  ladei_error_save(&before);
  if (ops->pointer_attributes(allocator->runtime->self, mapping->base, &attributes) == LADE_OK)
    mapping->bytes = attributes.bytes;
  mapping->sized = mapping->bytes > 0;
  ladei_error_restore(&before);
  return LADE_OK;
}

/* Gives back what of the mapping there is; the first refusal leaves the rest for another try (V2). */
static lade_status mapping_release(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping) {
  if (mapping->piece_count > 0) return pieces_unmap(allocator, mapping);
  if (mapping->base == NULL) return LADE_OK;
  return ladei_device_ops(allocator)->ipc_close(allocator->runtime->self, mapping->base);
}

/* ---- Open -------------------------------------------------------------------------------------------------------- */

/* With the lock, which is released meanwhile. On error the mapping is gone or abandoned. */
static lade_status mapping_open(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping,
                                const int *fds) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_lock_release(&allocator->lock);
  lade_error error;
  shared_state state = SHARED_OPEN;
  lade_status status = mapping->piece_count > 0 ? pieces_map(allocator, mapping, fds) : driver_map(allocator, mapping);
  if (status != LADE_OK) {
    ladei_error_save(&error);
    state = mapping_release(allocator, mapping) == LADE_OK ? SHARED_GONE : SHARED_ABANDONED;
    ladei_error_restore(&error);
  }
  ladei_lock_acquire(&allocator->lock);
  mapping_settle(allocator, mapping, state);
  return status;
}

/* Takes an open back. With the lock, which is released meanwhile. Refused by the driver, the last one leaves the mapping in
 * the state `refused`. */
static lade_status mapping_close(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping,
                                 shared_state refused) {
  ladei_lock_assert_held(&allocator->lock);
  if (mapping->count > 1) {
    mapping->count--;
    return LADE_OK;
  }
  mapping_state_set(allocator, mapping, SHARED_CLOSING);
  ladei_lock_release(&allocator->lock);
  lade_status status = mapping_release(allocator, mapping);
  ladei_lock_acquire(&allocator->lock);
  mapping_settle(allocator, mapping, status == LADE_OK ? SHARED_GONE : refused);
  return status;
}

static const char open_call[] = "lade_device_shared_open";

static lade_status offset_check(uint64_t offset, uint64_t bytes, const char *of) {
  if (offset < bytes) return LADE_OK;
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: shared.offset is %llu; expected less than %s, which is %llu",
                     open_call, (unsigned long long)offset, of, (unsigned long long)bytes);
}

static lade_status pieces_check(const lade_device_allocator *allocator, const lade_device_shared *shared) {
  size_t bytes;
  if (ladei_device_ops(allocator)->vm_import == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime \"%s\" has no virtual memory", open_call,
                       ladei_device_ops(allocator)->name);
  if (shared->fds == NULL) return ladei_error_null(open_call, "shared.fds");
  if (shared->piece_bytes == 0) return ladei_error_argument(open_call, "shared.piece_bytes", "more than 0", "0");
  if (!ladei_size_mul((size_t)shared->fd_count, (size_t)shared->piece_bytes, &bytes) || bytes >= LADEI_SIZE_LIMIT)
    return ladei_error_argument(open_call, "shared.fd_count", "together less than 2^60 bytes", "%llu of %llu bytes",
                                (unsigned long long)shared->fd_count, (unsigned long long)shared->piece_bytes);
  return offset_check(shared->offset, shared->piece_bytes, "shared.piece_bytes");
}

/* An offset that lies outside takes the open back. */
static lade_status offset_take(lade_device_allocator *allocator, ladei_device_shared_mapping *mapping,
                               uint64_t offset) {
  ladei_lock_assert_held(&allocator->lock);
  if (!mapping->sized && mapping->bytes <= offset) mapping->bytes = (size_t)offset + 1;
  lade_error error;
  lade_status status = offset_check(offset, mapping->bytes, "the allocation");
  if (status == LADE_OK) return LADE_OK;
  ladei_error_save(&error);
  (void)mapping_close(allocator, mapping, SHARED_ABANDONED);
  ladei_error_restore(&error);
  return status;
}

static lade_status memory_open(lade_device_allocator *allocator, const lade_device_shared *shared, void **out) {
  lade_status status = ladei_device_check_call(allocator, open_call);
  if (status == LADE_OK && shared == NULL) status = ladei_error_null(open_call, "shared");
  if (status == LADE_OK && out == NULL) status = ladei_error_null(open_call, "out");
  lade_device_shared own;
  if (status == LADE_OK) status = ladei_options_read("lade_device_shared", shared, &own, sizeof own);
  if (status == LADE_OK)
    status = own.fd_count > 0 ? pieces_check(allocator, &own) : driver_supported(allocator, open_call);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_shared_mapping *mapping = own.fd_count > 0 ? NULL : mapping_of_handle(allocator, &own);
  if (mapping != NULL && mapping->state == SHARED_ABANDONED) {
    mapping_state_set(allocator, mapping, SHARED_OPEN);
  } else if (mapping != NULL) {
    mapping->count++;
  } else {
    mapping = mapping_create(allocator, &own);
    status = mapping != NULL ? mapping_open(allocator, mapping, own.fds)
                             : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", open_call);
  }
  if (status == LADE_OK) status = offset_take(allocator, mapping, own.offset);
  if (status == LADE_OK) *out = (char *)mapping->base + own.offset;
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status lade_device_shared_open(lade_device_allocator *allocator, const lade_device_shared *shared, void **out) {
  return LADEI_UNCANCELLED(memory_open(allocator, shared, out));
}

/* ---- Close ------------------------------------------------------------------------------------------------------- */

bool ladei_device_shared_open(const lade_device_allocator *allocator) {
  const ladei_device_shared_mapping *mapping = allocator->imports.shared;
  while (mapping != NULL && mapping->state == SHARED_ABANDONED) mapping = mapping->next;
  return mapping != NULL;
}

bool ladei_device_shared_has(const lade_device_allocator *allocator, const void *pointer) {
  return mapping_of(allocator, pointer) != NULL;
}

lade_status ladei_device_shared_finish(lade_device_allocator *allocator) {
  lade_status status = LADE_OK;
  while (allocator->imports.shared != NULL && status == LADE_OK) {
    status = mapping_release(allocator, allocator->imports.shared);
    ladei_lock_acquire(&allocator->lock);
    if (status == LADE_OK) mapping_settle(allocator, allocator->imports.shared, SHARED_GONE);
    ladei_lock_release(&allocator->lock);
  }
  return status;
}

static lade_status memory_close(lade_device_allocator *allocator, void *pointer) {
  static const char call[] = "lade_device_shared_close";
  LADEI_TRY(ladei_device_check_call(allocator, call));
  ladei_lock_acquire(&allocator->lock);
  ladei_device_shared_mapping *mapping = mapping_of(allocator, pointer);
  lade_status status = mapping != NULL
                           ? mapping_close(allocator, mapping, SHARED_OPEN)
                           : ladei_error(LADE_ERR_FOREIGN_POINTER, 0,
                                         "%s: pointer is %p; expected what %s gave, still open, on device %d", call,
                                         pointer, open_call, allocator->device);
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status lade_device_shared_close(lade_device_allocator *allocator, void *pointer) {
  return LADEI_UNCANCELLED(memory_close(allocator, pointer));
}
