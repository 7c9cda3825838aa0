/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver allocations of other processes, mapped here: one mapping per handle, counted.
 *
 *   OPENING --driver opens--> OPEN, counted --last close--> CLOSING --driver closes--> gone
 *      |                       ^                              |
 *      +--refused--> gone      +-----------refused------------+
 *
 * M1  A handle has at most one entry. While an entry is OPENING or CLOSING, its driver call is in flight and others
 *     wait for it; so the driver is never asked to open what is open, nor to close what another thread has just opened
 *     again.
 * M2  An OPEN entry has count > 0, others have 0.
 * Locks: the allocator's lock, never during a driver call.
 */
#include "device/share/ipc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "device/state/checks.h"

typedef enum ipc_state { IPC_OPENING, IPC_OPEN, IPC_CLOSING, IPC_GONE } ipc_state;

struct ladei_device_ipc_mapping {
  struct ladei_device_ipc_mapping *next;
  lade_device_ipc_handle handle;
  void *base;
  size_t bytes;   /* 0 if the driver did not say */
  uint64_t count; /* opens less closes */
  ipc_state state;
};

_Static_assert(sizeof(lade_device_ipc_handle) == sizeof(ladei_ipc_handle), "handles are the driver's bytes");

static lade_status ipc_supported(const lade_device_allocator *allocator, const char *call) {
  if (allocator->runtime->ops->ipc_open != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime \"%s\" shares no memory between processes", call,
                     allocator->runtime->ops->name);
}

lade_status ladei_device_native_ipc_export(lade_device_allocator *allocator, const void *pointer,
                                           lade_device_ipc_handle *out_handle, size_t *out_offset) {
  void *base = NULL;
  size_t bytes = 0;
  lade_status status = allocator->backend->base_get(allocator, pointer, &base, &bytes);
  if (status == LADE_OK) status = ipc_supported(allocator, "lade_device_ipc_export");
  if (status != LADE_OK) return status;
  ladei_ipc_handle handle;
  status = allocator->runtime->ops->ipc_export(allocator->runtime->self, base, &handle);
  if (status != LADE_OK) return status;
  memcpy(out_handle->bytes, handle.bytes, sizeof handle.bytes);
  *out_offset = (size_t)((const char *)pointer - (const char *)base);
  return LADE_OK;
}

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

/* Whether an entry may go from one state to another: the steps drawn above. */
static bool mapping_state_follows(ipc_state from, ipc_state to) {
  switch (from) {
  case IPC_OPENING: return to == IPC_OPEN || to == IPC_GONE;
  case IPC_OPEN: return to == IPC_CLOSING;
  case IPC_CLOSING: return to == IPC_OPEN || to == IPC_GONE;
  case IPC_GONE: return false;
  }
  return false;
}

/* The only way from one state to another. */
static void mapping_state_set(ladei_device_ipc_mapping *mapping, ipc_state state) {
  assert(mapping_state_follows(mapping->state, state));
  assert((state == IPC_OPEN) == (mapping->count > 0)); /* M2 */
  (void)mapping_state_follows;
  mapping->state = state;
}

/* Link to the entry of a handle, waiting while its driver call is in flight; the link's target is NULL if there is
 * none. */
static ladei_device_ipc_mapping **mapping_find(lade_device_allocator *allocator, const lade_device_ipc_handle *handle) {
  ladei_lock_assert_held(&allocator->lock);
  for (;;) {
    ladei_device_ipc_mapping **link = &allocator->imports.ipc;
    while (*link != NULL && memcmp((*link)->handle.bytes, handle->bytes, sizeof handle->bytes) != 0)
      link = &(*link)->next;
    if (*link == NULL || (*link)->state == IPC_OPEN) return link;
    ladei_condition_wait(&allocator->imports.ipc_changed, &allocator->lock);
  }
}

static void mapping_remove(lade_device_allocator *allocator, ladei_device_ipc_mapping *mapping) {
  ladei_lock_assert_held(&allocator->lock);
  assert(mapping->state == IPC_GONE);
  ladei_device_ipc_mapping **link = &allocator->imports.ipc;
  while (*link != mapping) link = &(*link)->next;
  *link = mapping->next;
  free(mapping);
  atomic_fetch_sub_explicit(&allocator->imports.count, 1, memory_order_relaxed);
}

static ladei_device_ipc_mapping *mapping_create(lade_device_allocator *allocator,
                                                const lade_device_ipc_handle *handle) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_ipc_mapping *mapping = calloc(1, sizeof *mapping);
  if (mapping == NULL) return NULL;
  mapping->handle = *handle;
  mapping->state = IPC_OPENING;
  mapping->next = allocator->imports.ipc;
  allocator->imports.ipc = mapping;
  atomic_fetch_add_explicit(&allocator->imports.count, 1, memory_order_relaxed);
  return mapping;
}

/* An entry's driver call has ended: it is open once, or gone. */
static void mapping_settle(lade_device_allocator *allocator, ladei_device_ipc_mapping *mapping, bool open) {
  ladei_lock_assert_held(&allocator->lock);
  mapping->count = open;
  mapping_state_set(mapping, open ? IPC_OPEN : IPC_GONE);
  if (!open) mapping_remove(allocator, mapping);
  ladei_condition_broadcast(&allocator->imports.ipc_changed);
}

/* Asks the driver to open a new entry. Lock held, released in between. */
static lade_status mapping_open(lade_device_allocator *allocator, ladei_device_ipc_mapping *mapping) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_ipc_handle handle;
  memcpy(handle.bytes, mapping->handle.bytes, sizeof handle.bytes);
  void *base = NULL;
  ladei_lock_release(&allocator->lock);
  const lade_runtime_ops *ops = allocator->runtime->ops;
  ladei_pointer_attributes attributes = {.bytes = 0};
  lade_status status = ops->ipc_open(allocator->runtime->self, allocator->device, &handle, &base);
  if (status == LADE_OK && ops->pointer_attributes(allocator->runtime->self, base, &attributes) != LADE_OK)
    attributes.bytes = 0; /* then its addresses are not recognised, and nothing else */
  ladei_lock_acquire(&allocator->lock);
  mapping->base = base;
  mapping->bytes = attributes.bytes;
  mapping_settle(allocator, mapping, status == LADE_OK);
  return status;
}

static lade_status handle_open(lade_device_allocator *allocator, const lade_device_ipc_handle *handle,
                               void **out_base) {
  static const char call[] = "lade_device_ipc_open";
  lade_status status = ladei_device_check_call(allocator, call);
  if (status == LADE_OK && handle == NULL) status = ladei_error_null(call, "handle");
  if (status == LADE_OK && out_base == NULL) status = ladei_error_null(call, "out_base");
  if (status == LADE_OK) status = ipc_supported(allocator, call);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_ipc_mapping *mapping = *mapping_find(allocator, handle);
  if (mapping != NULL) {
    mapping->count++;
  } else {
    mapping = mapping_create(allocator, handle);
    status = mapping != NULL ? mapping_open(allocator, mapping)
                             : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", call);
  }
  if (status == LADE_OK) *out_base = mapping->base;
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status lade_device_ipc_open(lade_device_allocator *allocator, const lade_device_ipc_handle *handle,
                                 void **out_base) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = handle_open(allocator, handle, out_base);
  ladei_cancellation_resume(cancellation);
  return status;
}

bool ladei_device_ipc_has(const lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  for (const ladei_device_ipc_mapping *mapping = allocator->imports.ipc; mapping != NULL; mapping = mapping->next)
    if (mapping->state == IPC_OPEN && (uintptr_t)pointer - (uintptr_t)mapping->base < mapping->bytes) return true;
  return false;
}

/* Asks the driver to close an entry; refused, it keeps its last open. Lock as above. */
static lade_status mapping_close(lade_device_allocator *allocator, ladei_device_ipc_mapping *mapping) {
  ladei_lock_assert_held(&allocator->lock);
  mapping->count = 0;
  mapping_state_set(mapping, IPC_CLOSING);
  ladei_lock_release(&allocator->lock);
  lade_status status = allocator->runtime->ops->ipc_close(allocator->runtime->self, mapping->base);
  ladei_lock_acquire(&allocator->lock);
  mapping_settle(allocator, mapping, status != LADE_OK);
  return status;
}

static lade_status base_close(lade_device_allocator *allocator, void *base) {
  lade_status status = ladei_device_check_call(allocator, "lade_device_ipc_close");
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_ipc_mapping *mapping = allocator->imports.ipc;
  while (mapping != NULL && (mapping->state != IPC_OPEN || mapping->base != base)) mapping = mapping->next;
  if (mapping == NULL) {
    status = ladei_error(
        LADE_ERR_FOREIGN_POINTER, 0,
        "lade_device_ipc_close: base is %p; expected what lade_device_ipc_open gave, still open, on device %d", base,
        allocator->device);
  } else if (mapping->count == 1) {
    status = mapping_close(allocator, mapping);
  } else {
    mapping->count--;
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status lade_device_ipc_close(lade_device_allocator *allocator, void *base) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = base_close(allocator, base);
  ladei_cancellation_resume(cancellation);
  return status;
}
