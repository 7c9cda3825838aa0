/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on virtual memory: addresses and physical memory are separate.
 *
 *   vm_reserve  [ ........................... ]      addresses, no memory
 *   vm_create       (handle)                         memory, no address
 *   vm_map      [ ... |  handle  | .......... ]      vm_set_access then gives a device access
 *
 * None of these driver calls needs a context, so none is made.
 * Locks: none.
 */
#include <assert.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

static CUmemAllocationProp allocation_properties(const cuda_runtime *runtime, int device) {
  assert(device >= 0 && device < runtime->device_count);
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  properties.location.id = runtime->devices[device].native;
  return properties;
}

static lade_status vm_granularity(void *self, int device, size_t *out_minimum_bytes, size_t *out_recommended_bytes) {
  cuda_call call = {.runtime = self, .op = "vm_granularity"};
  const cuda_api *api = &call.runtime->api;
  size_t minimum = 0;
  size_t recommended = 0;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUmemAllocationProp properties = allocation_properties(call.runtime, device);
  CUresult code = api->mem_get_allocation_granularity(&minimum, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (code == CUDA_SUCCESS)
    code = api->mem_get_allocation_granularity(&recommended, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (ladei_cuda_leave(&call, code, "device %d", device) == LADE_OK) {
    *out_minimum_bytes = minimum;
    *out_recommended_bytes = recommended;
  }
  return call.status;
}

static lade_status vm_reserve(void *self, int device, size_t bytes, size_t align, void **out_address) {
  cuda_call call = {.runtime = self, .op = "vm_reserve"};
  CUdeviceptr address = 0;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_address_reserve(&address, bytes, align, 0, 0);
  if (ladei_cuda_leave(&call, code, "%zu bytes aligned to %zu", bytes, align) == LADE_OK)
    *out_address = (void *)(uintptr_t)address;
  return call.status;
}

static lade_status vm_address_free(void *self, void *address, size_t bytes) {
  cuda_call call = {.runtime = self, .op = "vm_address_free", .releases = true};
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_address_free(cuda_address(address), bytes);
  return ladei_cuda_leave(&call, code, "%p, %zu bytes", address, bytes);
}

/* Network cards can always reach device_alloc memory if the device allows it; mapped memory must be asked for it. */
static CUresult rdma_wish(const cuda_call *call, int device, CUmemAllocationProp *properties) {
  int supported = 0;
  CUresult code = call->runtime->api.device_get_attribute(
      &supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, call->runtime->devices[device].native);
  properties->allocFlags.gpuDirectRDMACapable = supported != 0 ? 1 : 0;
  return code;
}

static lade_status vm_create(void *self, int device, size_t bytes, bool exportable, ladei_vm_handle *out_handle) {
  cuda_call call = {.runtime = self, .op = "vm_create"};
  CUmemGenericAllocationHandle handle = 0;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUmemAllocationProp properties = allocation_properties(call.runtime, device);
  properties.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
  CUresult code = rdma_wish(&call, device, &properties);
  if (code == CUDA_SUCCESS) code = call.runtime->api.mem_create(&handle, bytes, &properties, 0);
  if (ladei_cuda_leave(&call, code, "%zu bytes on device %d", bytes, device) == LADE_OK) *out_handle = handle;
  return call.status;
}

static lade_status vm_release(void *self, ladei_vm_handle handle) {
  cuda_call call = {.runtime = self, .op = "vm_release", .releases = true};
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_release(handle);
  return ladei_cuda_leave(&call, code, "handle %#llx", (unsigned long long)handle);
}

static lade_status vm_map(void *self, void *address, size_t bytes, ladei_vm_handle handle) {
  cuda_call call = {.runtime = self, .op = "vm_map"};
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_map(cuda_address(address), bytes, 0, handle, 0);
  if (code == CUDA_ERROR_NOT_SUPPORTED)
    code = CUDA_ERROR_INVALID_VALUE; /* the driver's answer for a part of a handle */
  return ladei_cuda_leave(&call, code, "%p, %zu bytes", address, bytes);
}

static lade_status vm_unmap(void *self, void *address, size_t bytes) {
  cuda_call call = {.runtime = self, .op = "vm_unmap", .releases = true};
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_unmap(cuda_address(address), bytes);
  return ladei_cuda_leave(&call, code, "%p, %zu bytes", address, bytes);
}

static lade_status vm_set_access(void *self, void *address, size_t bytes, int device, bool writable) {
  cuda_call call = {.runtime = self, .op = "vm_set_access"};
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUmemAccessDesc access = {.location = allocation_properties(call.runtime, device).location,
                            .flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  CUresult code = call.runtime->api.mem_set_access(cuda_address(address), bytes, &access, 1);
  return ladei_cuda_leave(&call, code, "%p, %zu bytes for device %d", address, bytes, device);
}

static lade_status vm_export(void *self, ladei_vm_handle handle, int *out_fd) {
  cuda_call call = {.runtime = self, .op = "vm_export"};
  int fd = -1;
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (ladei_cuda_leave(&call, code, "handle %#llx", (unsigned long long)handle) == LADE_OK) *out_fd = fd;
  return call.status;
}

static lade_status vm_import(void *self, int device, int fd, ladei_vm_handle *out_handle) {
  cuda_call call = {.runtime = self, .op = "vm_import"};
  CUmemGenericAllocationHandle handle = 0;
  if (!ladei_cuda_device_check(&call, device)) return call.status;
  if (fd < 0) /* the driver says "unknown error", which is final elsewhere */
    return ladei_error_argument("vm_import", "fd", "a descriptor from vm_export", "%d", fd);
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (ladei_cuda_leave(&call, code, "file descriptor %d", fd) == LADE_OK) *out_handle = handle;
  return call.status;
}

void ladei_cuda_fill_virtual_memory_ops(lade_runtime_ops *ops) {
  ops->vm_granularity = vm_granularity;
  ops->vm_reserve = vm_reserve;
  ops->vm_address_free = vm_address_free;
  ops->vm_create = vm_create;
  ops->vm_release = vm_release;
  ops->vm_map = vm_map;
  ops->vm_unmap = vm_unmap;
  ops->vm_set_access = vm_set_access;
  ops->vm_export = vm_export;
  ops->vm_import = vm_import;
}
