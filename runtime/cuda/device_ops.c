/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on devices: their attributes, the current one, their primary contexts.
 *
 * I1  Only current_device_set, device_context, memory_info, device_synchronize and the two priority attributes create a
 *     context, and only on the device they name; the others ask the driver about the device alone.
 * Locks: none.
 */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

static lade_status device_count(void *self, int *out_count) {
  cuda_call call = {.runtime = self, .op = "device_count"};
  if (!ladei_cuda_enter(&call)) return call.status;
  *out_count = call.runtime->device_count;
  return LADE_OK;
}

/* ---- Attributes of a device -------------------------------------------------------------------------------------- */

/* An attribute that an older driver does not know counts as `unknown`. */
static CUresult attribute_get(const cuda_call *call, int device, int attribute, int unknown, int *out) {
  assert(device >= 0 && device < call->runtime->device_count && !call->pushed); /* I1: of the device alone */
  CUdevice native = call->runtime->devices[device].native;
  CUresult code = call->runtime->api.device_get_attribute(out, (CUdevice_attribute)attribute, native);
  if (code == CUDA_ERROR_INVALID_VALUE) {
    *out = unknown;
    return CUDA_SUCCESS;
  }
  return code;
}

/* The driver's numbers for the plain attributes; 0: not a plain one. */
static int attribute_native(ladei_device_attribute attribute) {
  switch (attribute) {
  case LADEI_ATTR_ASYNC_ENGINE_COUNT: return CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
  case LADEI_ATTR_UNIFIED_ADDRESSING: return CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
  case LADEI_ATTR_INTEGRATED: return CU_DEVICE_ATTRIBUTE_INTEGRATED;
  case LADEI_ATTR_CAN_MAP_HOST_MEMORY: return CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
  case LADEI_ATTR_HOST_REGISTER_SUPPORTED: return CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
  case LADEI_ATTR_HOST_REGISTER_READ_ONLY_SUPPORTED: return CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
  case LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED: return CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  case LADEI_ATTR_DRIVER_POOLS_SUPPORTED: return CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
  case LADEI_ATTR_HOST_POOLS_SUPPORTED: return CUDA_ATTRIBUTE_HOST_POOLS_SUPPORTED;
  case LADEI_ATTR_HOST_NUMA_POOLS_SUPPORTED: return CUDA_ATTRIBUTE_HOST_NUMA_POOLS_SUPPORTED;
  case LADEI_ATTR_STREAM_WRITE_VALUE_64: return CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
  case LADEI_ATTR_PAGEABLE_MEMORY_ACCESS: return CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
  case LADEI_ATTR_HANDLE_TYPE_POSIX_FD: return CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  case LADEI_ATTR_GPU_DIRECT_RDMA: return CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED;
  case LADEI_ATTR_HOST_PAGE_TABLES: return CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
  case LADEI_ATTR_CONCURRENT_MANAGED_ACCESS: return CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
  case LADEI_ATTR_STREAM_PRIORITY_LOWEST:
  case LADEI_ATTR_STREAM_PRIORITY_HIGHEST:
  case LADEI_ATTR_COUNT: break;
  }
  return 0;
}

/* The driver gives priorities only of the current context. */
static lade_status attribute_priority(cuda_call *call, int device, bool lowest, int64_t *out_value) {
  int least = 0;
  int greatest = 0;
  if (!ladei_cuda_enter_device(call, device)) return call->status;
  CUresult code = call->runtime->api.ctx_get_stream_priority_range(&least, &greatest);
  if (ladei_cuda_leave(call, code, "stream priorities of device %d", device) == LADE_OK)
    *out_value = lowest ? least : greatest;
  return call->status;
}

static lade_status device_attribute(void *self, int device, ladei_device_attribute attribute, int64_t *out_value) {
  cuda_call call = {.runtime = self, .op = "device_attribute"};
  if (attribute == LADEI_ATTR_STREAM_PRIORITY_LOWEST || attribute == LADEI_ATTR_STREAM_PRIORITY_HIGHEST)
    return attribute_priority(&call, device, attribute == LADEI_ATTR_STREAM_PRIORITY_LOWEST, out_value);
  int native = attribute_native(attribute);
  if (native == 0)
    return ladei_error_argument("device_attribute", "attribute", "a ladei_device_attribute", "%d", (int)attribute);
  int value = 0;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = attribute_get(&call, device, native, 0, &value);
  if (ladei_cuda_leave(&call, code, "attribute %d of device %d", native, device) == LADE_OK) *out_value = value;
  return call.status;
}

static CUresult properties_read(const cuda_call *call, int device, ladei_device_properties *out) {
  const cuda_api *api = &call->runtime->api;
  CUdevice native = call->runtime->devices[device].native;
  CUuuid uuid;
  CUresult code = api->device_get_name(out->name, (int)sizeof out->name, native);
  if (code == CUDA_SUCCESS) code = api->device_get_pci_bus_id(out->pci_bus_id, (int)sizeof out->pci_bus_id, native);
  if (code == CUDA_SUCCESS) code = api->device_get_uuid(&uuid, native);
  if (code == CUDA_SUCCESS) {
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    code = api->device_total_mem(&out->total_bytes, native);
  }
  if (code == CUDA_SUCCESS) code = attribute_get(call, device, CUDA_ATTRIBUTE_HOST_NUMA_ID, -1, &out->numa_node);
  if (code == CUDA_SUCCESS)
    code = attribute_get(call, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0, &out->compute_major);
  if (code == CUDA_SUCCESS)
    code = attribute_get(call, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0, &out->compute_minor);
  if (code == CUDA_SUCCESS)
    code = attribute_get(call, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0, &out->multiprocessor_count);
  return code;
}

static lade_status device_properties(void *self, int device, ladei_device_properties *out) {
  cuda_call call = {.runtime = self, .op = "device_properties"};
  ladei_device_properties properties = {0};
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = properties_read(&call, device, &properties);
  if (ladei_cuda_leave(&call, code, "device %d", device) == LADE_OK) *out = properties;
  return call.status;
}

static lade_status memory_info(void *self, int device, size_t *out_free_bytes, size_t *out_total_bytes) {
  cuda_call call = {.runtime = self, .op = "memory_info", .relaxed = true};
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (!ladei_cuda_enter_device(&call, device)) return call.status;
  CUresult code = call.runtime->api.mem_get_info(&free_bytes, &total_bytes);
  if (ladei_cuda_leave(&call, code, "device %d", device) == LADE_OK) {
    *out_free_bytes = free_bytes;
    *out_total_bytes = total_bytes;
  }
  return call.status;
}

/* ---- Current device, contexts ------------------------------------------------------------------------------------ */

static lade_status current_device(void *self, int *out_device) {
  cuda_call call = {.runtime = self, .op = "current_device"};
  const cuda_api *api = &call.runtime->api;
  CUcontext current = NULL;
  CUdevice native = 0;
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = api->ctx_get_current(&current);
  if (code == CUDA_SUCCESS && current != NULL) code = api->ctx_get_device(&native);
  if (ladei_cuda_leave(&call, code, "asking for the current context") == LADE_OK)
    *out_device = current != NULL ? ladei_cuda_device_ordinal(call.runtime, native) : -1;
  return call.status;
}

static lade_status current_device_set(void *self, int device) {
  cuda_call call = {.runtime = self, .op = "current_device_set"};
  CUcontext context;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call) ||
      !ladei_cuda_context(&call, device, &context))
    return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.ctx_set_current(context), "device %d", device);
}

static lade_status device_context(void *self, int device, uint64_t *out_context) {
  cuda_call call = {.runtime = self, .op = "device_context"};
  CUcontext context;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call) ||
      !ladei_cuda_context(&call, device, &context))
    return call.status;
  *out_context = cuda_context_identity(context);
  return LADE_OK;
}

static lade_status device_active(void *self, int device, bool *out_active) {
  cuda_call call = {.runtime = self, .op = "device_active"};
  unsigned flags = 0;
  int active = 0;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.primary_ctx_get_state(call.runtime->devices[device].native, &flags, &active);
  if (ladei_cuda_leave(&call, code, "device %d", device) == LADE_OK) *out_active = active != 0;
  return call.status;
}

static lade_status device_synchronize(void *self, int device) {
  cuda_call call = {.runtime = self, .op = "device_synchronize"};
  if (!ladei_cuda_enter_device(&call, device)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.ctx_synchronize(), "device %d", device);
}

void ladei_cuda_fill_device_ops(lade_runtime_ops *ops) {
  ops->device_count = device_count;
  ops->device_properties = device_properties;
  ops->device_attribute = device_attribute;
  ops->memory_info = memory_info;
  ops->current_device = current_device;
  ops->current_device_set = current_device_set;
  ops->device_context = device_context;
  ops->device_active = device_active;
  ops->device_synchronize = device_synchronize;
}
