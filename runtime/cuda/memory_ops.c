/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on device memory, pinned host memory and pointers.
 *
 * I1  Pinned memory is always portable, and gets a device address only on request: that charges page tables. (With
 *     unified addressing, which all current devices have, the driver maps its own memory nevertheless.)
 * I2  Pinning, unpinning and asking about pointers run in the relaxed capture mode (R9).
 * I3  Memory that the system refuses to pin is LADE_ERR_OUT_OF_PINNED_MEMORY, whichever code the driver chooses.
 * Locks: none.
 */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

/* ---- Device memory ----------------------------------------------------------------------------------------------- */

static lade_status device_alloc(void *self, int device, size_t bytes, void **out) {
  cuda_call call = {.runtime = self, .op = "device_alloc"};
  CUdeviceptr address = 0;
  if (!ladei_cuda_bytes_check(&call, bytes) || !ladei_cuda_enter_device(&call, device)) return call.status;
  CUresult code = call.runtime->api.mem_alloc(&address, bytes);
  if (ladei_cuda_leave(&call, code, "%zu bytes on device %d", bytes, device) == LADE_OK)
    *out = (void *)(uintptr_t)address;
  return call.status;
}

static lade_status device_free(void *self, int device, void *pointer) {
  cuda_call call = {.runtime = self, .op = "device_free", .releases = true};
  if (!ladei_cuda_range_check(&call, pointer, 1) || !ladei_cuda_enter_device(&call, device)) return call.status;
  CUresult code = call.runtime->api.mem_free(cuda_address(pointer));
  return ladei_cuda_leave(&call, code, "%p on device %d", pointer, device);
}

/* ---- Pinned host memory ------------------------------------------------------------------------------------------ */

static unsigned host_alloc_flags(unsigned flags) {
  unsigned native = CU_MEMHOSTALLOC_PORTABLE;
  native |= (flags & LADEI_HOST_WRITE_COMBINED) != 0 ? CU_MEMHOSTALLOC_WRITECOMBINED : 0u;
  return native;
}

static unsigned host_register_flags(unsigned flags) {
  unsigned native = CU_MEMHOSTREGISTER_PORTABLE;
  native |= (flags & LADEI_HOST_READ_ONLY) != 0 ? CU_MEMHOSTREGISTER_READ_ONLY : 0u;
  return native;
}

static lade_status host_alloc(void *self, int device, size_t bytes, unsigned flags, void **out) {
  cuda_call call = {
      .runtime = self, .op = "host_alloc", .relaxed = true, .out_of_memory = LADE_ERR_OUT_OF_PINNED_MEMORY};
  void *pointer = NULL;
  if ((flags & ~(unsigned)LADEI_HOST_WRITE_COMBINED) != 0)
    return ladei_error_argument("host_alloc", "flags", "LADEI_HOST_WRITE_COMBINED", "%#x", flags);
  if (!ladei_cuda_bytes_check(&call, bytes) || !ladei_cuda_enter_device(&call, device)) return call.status;
  assert((host_alloc_flags(flags) & CU_MEMHOSTALLOC_PORTABLE) != 0 && call.switched); /* I1, I2 */
  CUresult code = call.runtime->api.mem_host_alloc(&pointer, bytes, host_alloc_flags(flags));
  if (ladei_cuda_leave(&call, code, "%zu bytes by device %d", bytes, device) == LADE_OK) *out = pointer;
  return call.status;
}

static lade_status host_free(void *self, void *pointer) {
  cuda_call call = {.runtime = self, .op = "host_free", .relaxed = true, .releases = true};
  if (!ladei_cuda_range_check(&call, pointer, 1) || !ladei_cuda_enter_any(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.mem_free_host(pointer), "%p", pointer);
}

static lade_status host_register(void *self, int device, void *pointer, size_t bytes, unsigned flags) {
  cuda_call call = {
      .runtime = self, .op = "host_register", .relaxed = true, .out_of_memory = LADE_ERR_OUT_OF_PINNED_MEMORY};
  if ((flags & ~(unsigned)LADEI_HOST_READ_ONLY) != 0)
    return ladei_error_argument("host_register", "flags", "LADEI_HOST_READ_ONLY", "%#x", flags);
  /* The driver would take the exact bytes, and two ranges in one page; the table's ranges are whole pages. */
  if (((uintptr_t)pointer | bytes) % (size_t)sysconf(_SC_PAGESIZE) != 0)
    return ladei_error_argument("host_register", "memory", "whole pages", "%zu bytes at %p", bytes, pointer);
  if (!ladei_cuda_range_check(&call, pointer, bytes) || !ladei_cuda_enter_device(&call, device)) return call.status;
  CUresult code = call.runtime->api.mem_host_register(pointer, bytes, host_register_flags(flags));
  if (code == CUDA_ERROR_INVALID_VALUE) /* the arguments are valid: the driver does not give the reason */
    return ladei_cuda_leave(&call, code,
                            "memory is %zu bytes at %p; expected pages without a hole that may be read and, unless "
                            "pinned for reading alone, written, of no shared mapping of a file on a disk",
                            bytes, pointer);
  return ladei_cuda_leave(&call, code, "%p, %zu bytes by device %d", pointer, bytes, device);
}

static lade_status host_unregister(void *self, void *pointer) {
  cuda_call call = {.runtime = self, .op = "host_unregister", .relaxed = true, .releases = true};
  if (!ladei_cuda_range_check(&call, pointer, 1) || !ladei_cuda_enter_any(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.mem_host_unregister(pointer), "%p", pointer);
}

/* ---- Pointers ---------------------------------------------------------------------------------------------------- */

typedef struct pointer_answers {
  unsigned memory_type;
  unsigned managed;
  int ordinal;
  CUdeviceptr range_start;
  size_t range_bytes;
  CUdeviceptr device_pointer;
} pointer_answers;

/* Never fails for an unknown pointer: the answers stay 0, also without any context that could know it. */
static CUresult pointer_ask(const cuda_api *api, const void *pointer, pointer_answers *out) {
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
  };
  void *data[] = {&out->memory_type, &out->managed,     &out->ordinal,
                  &out->range_start, &out->range_bytes, &out->device_pointer};
  memset(out, 0, sizeof *out);
  CUresult code = api->pointer_get_attributes((unsigned)(sizeof attributes / sizeof attributes[0]), attributes, data,
                                              cuda_address(pointer));
  if (code == CUDA_ERROR_INVALID_CONTEXT) {
    memset(out, 0, sizeof *out);
    return CUDA_SUCCESS;
  }
  return code;
}

static ladei_memory_kind pointer_kind(const pointer_answers *answers) {
  if (answers->managed != 0) return LADEI_MEMORY_MANAGED;
  switch (answers->memory_type) {
  case CU_MEMORYTYPE_HOST: return LADEI_MEMORY_PINNED;
  case CU_MEMORYTYPE_DEVICE: return LADEI_MEMORY_DEVICE;
  default: return LADEI_MEMORY_UNKNOWN;
  }
}

static bool range_holds(CUdeviceptr base, size_t bytes, const void *pointer) {
  return cuda_address(pointer) - base < bytes;
}

/*
 * The attributes name the reservation of mapped virtual memory; for a host-memory pool they name the place in the pool,
 * which is no address (driver of CUDA 13.0 on an H200). The older call names the mapping, and the block of such a pool
 * once a device may access it; it does not know other pinned memory. False: no range contains the pointer.
 */
static bool pointer_range(const cuda_api *api, const void *pointer, ladei_memory_kind kind,
                          const pointer_answers *answers, ladei_pointer_attributes *out) {
  CUdeviceptr base = answers->range_start;
  size_t bytes = answers->range_bytes;
  CUdeviceptr older = 0;
  size_t older_bytes = 0;
  bool told = range_holds(base, bytes, pointer);
  if ((kind == LADEI_MEMORY_DEVICE || !told) &&
      api->mem_get_address_range(&older, &older_bytes, cuda_address(pointer)) == CUDA_SUCCESS) {
    base = older;
    bytes = older_bytes;
    told = range_holds(base, bytes, pointer);
  }
  out->base = base;
  out->bytes = bytes;
  return told;
}

/* Pinned memory without a range is a pool's that no device may access: for copies it is ordinary host memory. */
static void pointer_found(const cuda_api *api, const void *pointer, const pointer_answers *answers,
                          ladei_pointer_attributes *out) {
  ladei_pointer_attributes found = {.kind = pointer_kind(answers), .device = answers->ordinal};
  if (found.kind == LADEI_MEMORY_UNKNOWN) return;
  if (!pointer_range(api, pointer, found.kind, answers, &found) && found.kind == LADEI_MEMORY_PINNED) return;
  if (found.kind == LADEI_MEMORY_MANAGED) found.device = -1;
  if (found.kind == LADEI_MEMORY_PINNED) found.device_alias = (void *)(uintptr_t)answers->device_pointer;
  *out = found;
}

static lade_status pointer_attributes(void *self, const void *pointer, ladei_pointer_attributes *out) {
  cuda_call call = {.runtime = self, .op = "pointer_attributes", .relaxed = true};
  const cuda_api *api = &call.runtime->api;
  ladei_pointer_attributes found = {.kind = LADEI_MEMORY_UNKNOWN, .device = -1};
  pointer_answers answers;
  if (!ladei_cuda_enter_any(&call)) return call.status;
  assert(call.switched); /* I2 */
  CUresult code = pointer_ask(api, pointer, &answers);
  if (code == CUDA_SUCCESS) pointer_found(api, pointer, &answers, &found);
  if (ladei_cuda_leave(&call, code, "%p", pointer) == LADE_OK) *out = found;
  return call.status;
}

void ladei_cuda_fill_memory_ops(lade_runtime_ops *ops) {
  ops->device_alloc = device_alloc;
  ops->device_free = device_free;
  ops->host_alloc = host_alloc;
  ops->host_free = host_free;
  ops->host_register = host_register;
  ops->host_unregister = host_unregister;
  ops->pointer_attributes = pointer_attributes;
}
