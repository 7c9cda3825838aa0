/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory, pinned host memory, pointer attributes, IPC handles.
 *
 * I1  Only the first address of a live range of the right kind can be freed, unregistered, closed.
 * I2  A device-mapped pinned range charges its device eight bytes per page: its page table.
 * I3  Memory is charged before it is mapped, and uncharged when the program frees it, even while queued work still
 *     keeps its mapping.
 * I4  host_alloc memory is shared with children of fork(), as with CUDA's driver; "cpu" registers only what the system
 *     pins.
 * Locks: rt->lock. Pages of pinned memory are checked and faulted in without it.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/populate.h"
#include "base/size.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/ops/pages.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/mappings.h"
#include "runtime/soft/submit/capture.h"

#define PAGE_BYTES ((size_t)4096)

static bool size_is_sane(size_t bytes) { return bytes != 0 && bytes < LADEI_SIZE_LIMIT; }

static lade_status bad_size(soft_op op, size_t bytes) {
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "bytes", "more than 0, and a place for the address",
                           "%zu", bytes);
}

static lade_status not_a_start(soft_op op, const void *pointer) {
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "pointer", "the start of live memory of this kind",
                           "%p", pointer);
}

/* As CUDA's driver: an address outside its memory is not registered; any other is an invalid value. */
static lade_status not_registered(const soft_runtime *rt, const void *pointer) {
  if (ladei_soft_range_at(rt, pointer) != NULL) return not_a_start(SOFT_OP_host_unregister, pointer);
  return ladei_soft_refuse(SOFT_OP_host_unregister, LADEI_SOFT_NATIVE_NOT_REGISTERED, "pointer",
                           "the start of a registered range", "%p", pointer);
}

/* The live range that starts at `pointer` and has this kind, or NULL. */
static soft_range *range_starting(const soft_runtime *rt, const void *pointer, soft_range_kind kind) {
  soft_range *range = ladei_soft_range_at(rt, pointer);
  bool found = range != NULL && soft_tree_key(&range->node) == (uint64_t)(uintptr_t)pointer && range->kind == kind;
  return found ? range : NULL;
}

/* ---- device memory ----------------------------------------------------------------------------------------------- */

static lade_status device_alloc(void *self, int device_ordinal, size_t bytes, void **out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_device_alloc);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_device_alloc, device_ordinal, &status);
  if (device == NULL) return status;
  if (bytes == 0 || out == NULL) return bad_size(SOFT_OP_device_alloc, bytes);
  ladei_soft_lock(rt);
  device->active = true;
  status = ladei_soft_unsafe(rt, "device_alloc");
  soft_range *range = NULL;
  if (status == LADE_OK && ladei_soft_memory_charge(device, bytes)) {
    range = ladei_soft_range_new(rt, SOFT_RANGE_DEVICE, device, false, bytes, 0, -1);
    if (range == NULL) ladei_soft_memory_uncharge(device, bytes);
  }
  if (range != NULL) {
    range->charged = bytes;
    *out = (void *)(uintptr_t)soft_tree_key(&range->node);
  } else if (status == LADE_OK) {
    status = ladei_soft_out_of_device_memory(SOFT_OP_device_alloc, device, bytes);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status device_free(void *self, int device_ordinal, void *pointer) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_device_free));
  lade_status status = ladei_soft_unsafe(rt, "device_free");
  soft_range *range = range_starting(rt, pointer, SOFT_RANGE_DEVICE);
  if (status == LADE_OK && (range == NULL || range->device != device_ordinal))
    status = not_a_start(SOFT_OP_device_free, pointer);
  if (status == LADE_OK) {
    ladei_soft_memory_uncharge(&rt->devices[range->device], range->charged);
    rt->ipc_opens -= range->ipc_opens; /* opens by other users end with it */
    ladei_soft_range_end(rt, range);
  }
  return ladei_soft_unlock_with(rt, status);
}

/* ---- pinned host memory ------------------------------------------------------------------------------------------ */

static uint64_t pin_cost_ns(const soft_runtime *rt, size_t bytes) {
  uint64_t rate = rt->costs.host_pin_bytes_per_s;
  return rate == 0 ? 0 : (uint64_t)((unsigned __int128)bytes * 1000000000u / rate);
}

/* Charges a pinned range; false with the status if refused. */
static bool pin_charge(soft_runtime *rt, soft_op op, size_t bytes, lade_status *out_status) {
  if (ladei_soft_pinned_charge(rt, bytes)) return true;
  *out_status = ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, LADEI_SOFT_NATIVE_OUT_OF_MEMORY,
                            "%s: %zu bytes asked, %zu of %zu pinned", ladei_soft_op_name(op), bytes,
                            (size_t)rt->pinned_bytes, (size_t)rt->pinned_limit_bytes);
  return false;
}

/*
 * Pinned memory is resident: on "cpu" the pages are faulted in now, as by pinning. On "sim" nothing is measured, and
 * untouched memory costs nothing. A failure does no harm: the pages are then faulted in at the first access.
 */
static void pages_bring_in(const soft_runtime *rt, void *address, size_t bytes, bool read_only) {
  if (!rt->virtual_time) madvise(address, bytes, read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
}

/* Also locks the runtime's own pages, as far as the limit on locked memory allows an ordinary process. */
static void pages_lock(const soft_runtime *rt, void *address, size_t bytes) {
  bool locked = !rt->virtual_time && mlock(address, bytes) == 0;
  if (!locked) pages_bring_in(rt, address, bytes, false);
}

static lade_status host_alloc(void *self, int device_ordinal, size_t bytes, unsigned flags, void **out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_host_alloc);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_host_alloc, device_ordinal, &status);
  if (device == NULL) return status;
  if (!size_is_sane(bytes)) {
    return bytes == 0 ? bad_size(SOFT_OP_host_alloc, bytes)
                      : ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, LADEI_SOFT_NATIVE_OUT_OF_MEMORY,
                                    "host_alloc: %zu bytes asked", bytes);
  }
  status = ladei_soft_flags(SOFT_OP_host_alloc, flags, LADEI_HOST_WRITE_COMBINED);
  if (status != LADE_OK) return status;
  ladei_soft_charge(rt, pin_cost_ns(rt, bytes));
  soft_range *range = NULL;
  ladei_soft_lock(rt);
  device->active = true;
  if (pin_charge(rt, SOFT_OP_host_alloc, bytes, &status)) {
    range = bytes < LADEI_HOST_OWN_BYTES ? ladei_soft_range_place(rt, device, bytes) /* exact, as the driver */
                                         : ladei_soft_range_new(rt, SOFT_RANGE_HOST, device, true, bytes, 0, -1);
    if (range == NULL) {
      rt->pinned_bytes -= bytes;
      status = ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, LADEI_SOFT_NATIVE_OUT_OF_MEMORY,
                           "host_alloc: the system refuses %zu bytes", bytes);
    }
  }
  void *address = NULL;
  if (range != NULL) {
    rt->pinned_ranges++;
    address = (void *)(uintptr_t)soft_tree_key(&range->node);
  }
  ladei_soft_unlock(rt);
  if (address == NULL) return status;
  char *first = (char *)address - (uintptr_t)address % PAGE_BYTES;
  pages_lock(rt, first, ((size_t)((char *)address + bytes - first) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
  *out = address;
  return LADE_OK;
}

/*
 * Running work still accesses registered memory, which its owner may unmap once we return, so this waits. (Memory from
 * host_alloc stays mapped until that work has ended.)
 */
static void registered_end(soft_runtime *rt, soft_range *range) {
  range->inflight++;
  ladei_soft_range_end(rt, range);
  while (range->running != 0) pthread_cond_wait(&rt->idle_cond, &rt->lock);
  ladei_soft_range_unpin(rt, range);
}

static lade_status host_end(void *self, soft_op op, void *pointer, soft_range_kind kind) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, op);
  if (status != LADE_OK) return status;
  soft_range *range = range_starting(rt, pointer, kind);
  if (range == NULL) {
    status = kind == SOFT_RANGE_REGISTERED ? not_registered(rt, pointer) : not_a_start(op, pointer);
  } else {
    rt->pinned_bytes -= range->bytes;
    rt->pinned_ranges--;
    if (kind == SOFT_RANGE_REGISTERED)
      registered_end(rt, range);
    else
      ladei_soft_range_end(rt, range);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status host_free(void *self, void *pointer) {
  return host_end(self, SOFT_OP_host_free, pointer, SOFT_RANGE_HOST);
}

static lade_status host_unregister(void *self, void *pointer) {
  return host_end(self, SOFT_OP_host_unregister, pointer, SOFT_RANGE_REGISTERED);
}

/* CUDA's driver answers "already registered" for registered memory and for unused parts of its own pages, and "invalid
 * value" for its own memory. */
static int overlap_native(const soft_range *range) {
  return range->kind == SOFT_RANGE_REGISTERED ? LADEI_SOFT_NATIVE_ALREADY_REGISTERED : LADEI_SOFT_NATIVE_INVALID_VALUE;
}

static lade_status register_check(const soft_runtime *rt, void *pointer, size_t bytes, bool whole_pages) {
  bool aligned = !whole_pages || ((uintptr_t)pointer % PAGE_BYTES == 0 && bytes % PAGE_BYTES == 0);
  if (pointer == NULL || !size_is_sane(bytes) || !aligned) {
    return ladei_soft_refuse(SOFT_OP_host_register, LADEI_SOFT_NATIVE_INVALID_VALUE, "memory", "whole pages",
                             "%zu bytes at %p", bytes, pointer);
  }
  const soft_range *range = ladei_soft_range_overlapping(rt, pointer, bytes);
  bool in_chunk = ladei_soft_in_chunk(rt, pointer);
  if (range != NULL || in_chunk) {
    int native = range != NULL ? overlap_native(range) : LADEI_SOFT_NATIVE_ALREADY_REGISTERED;
    return ladei_soft_refuse(SOFT_OP_host_register, native, "memory", "memory of which nothing is pinned yet",
                             "%zu bytes at %p", bytes, pointer);
  }
  return LADE_OK;
}

static lade_status host_register_some(void *self, int device_ordinal, void *pointer, size_t bytes, unsigned flags,
                                      bool whole_pages) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_host_register);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_host_register, device_ordinal, &status);
  if (device == NULL) return status;
  status = ladei_soft_flags(SOFT_OP_host_register, flags, LADEI_HOST_READ_ONLY);
  if (status != LADE_OK) return status;
  ladei_soft_charge(rt, size_is_sane(bytes) ? pin_cost_ns(rt, bytes) : 0);
  bool looks = !rt->virtual_time && pointer != NULL && size_is_sane(bytes);
  const char *expected = looks ? ladei_soft_pages_refused(pointer, bytes, flags & LADEI_HOST_READ_ONLY) : NULL;
  ladei_soft_lock(rt);
  device->active = true;
  status = register_check(rt, pointer, bytes, whole_pages);
  if (status == LADE_OK && expected != NULL) {
    status = ladei_soft_refuse(SOFT_OP_host_register, LADEI_SOFT_NATIVE_INVALID_VALUE, "memory", expected,
                               "%zu bytes at %p", bytes, pointer);
  }
  if (status == LADE_OK && pin_charge(rt, SOFT_OP_host_register, bytes, &status)) {
    soft_range *range = ladei_soft_range_register(rt, device, pointer, bytes);
    if (range != NULL) {
      rt->pinned_ranges++;
    } else {
      rt->pinned_bytes -= bytes;
      status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "host_register: no memory for a record");
    }
  }
  ladei_soft_unlock(rt);
  if (status != LADE_OK) return status;
  char *first = (char *)pointer - (uintptr_t)pointer % PAGE_BYTES;
  pages_bring_in(rt, first, (size_t)((char *)pointer + bytes - first), flags & LADEI_HOST_READ_ONLY);
  return LADE_OK;
}

static lade_status host_register(void *self, int device_ordinal, void *pointer, size_t bytes, unsigned flags) {
  return host_register_some(self, device_ordinal, pointer, bytes, flags, true);
}

lade_status ladei_soft_register_bytes(void *self, int device_ordinal, void *pointer, size_t bytes, unsigned flags) {
  return host_register_some(self, device_ordinal, pointer, bytes, flags, false);
}

/* ---- pointers ---------------------------------------------------------------------------------------------------- */

static void attributes_of(const soft_runtime *rt, const void *pointer, ladei_pointer_attributes *out) {
  *out = (ladei_pointer_attributes){.kind = LADEI_MEMORY_UNKNOWN, .device = -1};
  const soft_range *range = ladei_soft_range_at(rt, pointer);
  if (range == NULL) return;
  if (range->kind == SOFT_RANGE_RESERVED) {
    const soft_mapping *mapping = ladei_soft_mapping_at(rt, pointer);
    if (mapping == NULL) return;
    *out = (ladei_pointer_attributes){LADEI_MEMORY_DEVICE, mapping->vm->device, soft_tree_key(&mapping->node),
                                      mapping->bytes, NULL};
    return;
  }
  out->kind = range->host ? LADEI_MEMORY_PINNED : LADEI_MEMORY_DEVICE;
  out->device = range->device;
  out->base = soft_tree_key(&range->node);
  out->bytes = range->bytes;
  if (range->host) out->device_alias = (void *)(uintptr_t)pointer;
}

static lade_status pointer_attributes(void *self, const void *pointer, ladei_pointer_attributes *out) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_pointer_attributes));
  attributes_of(rt, pointer, out);
  ladei_soft_unlock(rt);
  return LADE_OK;
}

/* ---- IPC: within the process that owns the devices --------------------------------------------------------------- */

typedef struct ipc_content {
  char magic[16];
  uint64_t base, bytes, runtime;
  int32_t device;
} ipc_content;

static const char ipc_magic[16] = "lade soft ipc 1";

static lade_status ipc_export(void *self, void *pointer, ladei_ipc_handle *out_handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_ipc_export);
  if (status != LADE_OK) return status;
  const soft_range *range = ladei_soft_range_at(rt, pointer);
  if (range == NULL || range->kind != SOFT_RANGE_DEVICE) {
    status = ladei_soft_refuse(SOFT_OP_ipc_export, LADEI_SOFT_NATIVE_INVALID_VALUE, "pointer",
                               "an address in memory from device_alloc", "%p", pointer);
  } else {
    ipc_content content;
    memset(&content, 0, sizeof content); /* equal memory must give equal handles, padding included */
    memcpy(content.magic, ipc_magic, sizeof content.magic);
    content.base = soft_tree_key(&range->node);
    content.bytes = range->bytes;
    content.runtime = (uint64_t)(uintptr_t)rt;
    content.device = range->device;
    memset(out_handle, 0, sizeof *out_handle);
    memcpy(out_handle->bytes, &content, sizeof content);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status ipc_open(void *self, int device_ordinal, const ladei_ipc_handle *handle, void **out_base) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_ipc_open);
  if (status != LADE_OK) return status;
  if (ladei_soft_device_use(rt, SOFT_OP_ipc_open, device_ordinal, &status) == NULL) return status;
  ipc_content content;
  memcpy(&content, handle->bytes, sizeof content);
  void *base = (void *)(uintptr_t)content.base;
  ladei_soft_lock(rt);
  soft_range *range = NULL;
  if (memcmp(content.magic, ipc_magic, sizeof ipc_magic) == 0 && content.runtime == (uint64_t)(uintptr_t)rt)
    range = range_starting(rt, base, SOFT_RANGE_DEVICE);
  if (range == NULL || range->device != device_ordinal) {
    status =
        ladei_soft_refuse(SOFT_OP_ipc_open, LADEI_SOFT_NATIVE_INVALID_HANDLE, "handle",
                          "one of live memory of this process and of `device`", "of none on device %d", device_ordinal);
  } else {
    range->ipc_opens++;
    rt->ipc_opens++;
    *out_base = base;
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status ipc_close(void *self, void *base) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_ipc_close);
  if (status != LADE_OK) return status;
  soft_range *range = range_starting(rt, base, SOFT_RANGE_DEVICE);
  if (range == NULL || range->ipc_opens == 0) {
    status = not_a_start(SOFT_OP_ipc_close, base);
  } else {
    range->ipc_opens--;
    rt->ipc_opens--;
  }
  return ladei_soft_unlock_with(rt, status);
}

void ladei_soft_memory_ops(lade_runtime_ops *ops) {
  ops->device_alloc = device_alloc;
  ops->device_free = device_free;
  ops->host_alloc = host_alloc;
  ops->host_free = host_free;
  ops->host_register = host_register;
  ops->host_unregister = host_unregister;
  ops->pointer_attributes = pointer_attributes;
  ops->ipc_export = ipc_export;
  ops->ipc_open = ipc_open;
  ops->ipc_close = ipc_close;
}
