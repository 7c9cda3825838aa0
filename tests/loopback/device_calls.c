/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points on devices, contexts' properties, peers and other processes.
 *
 * Locks: none.
 */
#include <string.h>

#include "tests/loopback/loopback.h"

static bool device_valid(CUdevice device) { return loop_context_of_device(device) != NULL; }

CUresult loop_cuDeviceGetCount_v2000(int *out_count) {
  LOOP_ENTER(cuDeviceGetCount, 2000);
  return loop_code(loop_ops()->device_count(loop_self(), out_count));
}

CUresult loop_cuDeviceGet_v2000(CUdevice *out, int ordinal) {
  LOOP_ENTER(cuDeviceGet, 2000);
  if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *out = ordinal;
  return CUDA_SUCCESS;
}

/* ---- Properties -------------------------------------------------------------------------------------------------- */

static CUresult properties_get(CUdevice device, ladei_device_properties *out) {
  return loop_code(loop_ops()->device_properties(loop_self(), device, out));
}

static CUresult text_copy(char *out, int room, const char *text) {
  if (room <= 0) return CUDA_ERROR_INVALID_VALUE;
  strncpy(out, text, (size_t)room - 1);
  out[room - 1] = '\0';
  return CUDA_SUCCESS;
}

CUresult loop_cuDeviceGetName_v2000(char *out, int room, CUdevice device) {
  LOOP_ENTER(cuDeviceGetName, 2000);
  ladei_device_properties properties;
  CUresult code = properties_get(device, &properties);
  return code == CUDA_SUCCESS ? text_copy(out, room, properties.name) : code;
}

CUresult loop_cuDeviceGetPCIBusId_v4010(char *out, int room, CUdevice device) {
  LOOP_ENTER(cuDeviceGetPCIBusId, 4010);
  ladei_device_properties properties;
  CUresult code = properties_get(device, &properties);
  return code == CUDA_SUCCESS ? text_copy(out, room, properties.pci_bus_id) : code;
}

CUresult loop_cuDeviceGetUuid_v11040(CUuuid *out, CUdevice device) {
  LOOP_ENTER(cuDeviceGetUuid, 11040);
  ladei_device_properties properties;
  CUresult code = properties_get(device, &properties);
  if (code == CUDA_SUCCESS) memcpy(out->bytes, properties.uuid, sizeof out->bytes);
  return code;
}

CUresult loop_cuDeviceTotalMem_v3020(size_t *out_bytes, CUdevice device) {
  LOOP_ENTER(cuDeviceTotalMem, 3020);
  ladei_device_properties properties;
  CUresult code = properties_get(device, &properties);
  if (code == CUDA_SUCCESS) *out_bytes = properties.total_bytes;
  return code;
}

typedef struct attribute_row {
  int native;
  int since; /* driver version that knows it */
  ladei_device_attribute attribute;
} attribute_row;

static const attribute_row attribute_rows[] = {
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 0, LADEI_ATTR_ASYNC_ENGINE_COUNT},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0, LADEI_ATTR_UNIFIED_ADDRESSING},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0, LADEI_ATTR_INTEGRATED},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0, LADEI_ATTR_CAN_MAP_HOST_MEMORY},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 0, LADEI_ATTR_HOST_REGISTER_SUPPORTED},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0, LADEI_ATTR_HOST_REGISTER_READ_ONLY_SUPPORTED},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0, LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0, LADEI_ATTR_DRIVER_POOLS_SUPPORTED},
    {CUDA_ATTRIBUTE_HOST_POOLS_SUPPORTED, 13000, LADEI_ATTR_HOST_POOLS_SUPPORTED},
    {CUDA_ATTRIBUTE_HOST_NUMA_POOLS_SUPPORTED, 12090, LADEI_ATTR_HOST_NUMA_POOLS_SUPPORTED},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0, LADEI_ATTR_STREAM_WRITE_VALUE_64},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0, LADEI_ATTR_PAGEABLE_MEMORY_ACCESS},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0, LADEI_ATTR_HANDLE_TYPE_POSIX_FD},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0, LADEI_ATTR_GPU_DIRECT_RDMA},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0, LADEI_ATTR_GPU_DIRECT_RDMA},
};

static CUresult attribute_by_row(const attribute_row *row, int *out, CUdevice device) {
  int64_t value = 0;
  if (row->since > loop_driver_version()) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->device_attribute(loop_self(), device, row->attribute, &value));
  if (code == CUDA_SUCCESS) *out = (int)value;
  return code;
}

static CUresult attribute_by_property(int attribute, int *out, CUdevice device) {
  ladei_device_properties properties;
  CUresult code = properties_get(device, &properties);
  if (code != CUDA_SUCCESS) return code;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *out = properties.compute_major; return CUDA_SUCCESS;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *out = properties.compute_minor; return CUDA_SUCCESS;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = properties.multiprocessor_count; return CUDA_SUCCESS;
  case CUDA_ATTRIBUTE_HOST_NUMA_ID:
    *out = properties.numa_node;
    return loop_driver_version() < 12020 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult loop_cuDeviceGetAttribute_v2000(int *out, CUdevice_attribute attribute, CUdevice device) {
  LOOP_ENTER(cuDeviceGetAttribute, 2000);
  if (loop_attribute((int)attribute, out)) return CUDA_SUCCESS;
  for (size_t i = 0; i < sizeof attribute_rows / sizeof attribute_rows[0]; i++)
    if (attribute_rows[i].native == (int)attribute) return attribute_by_row(&attribute_rows[i], out, device);
  return attribute_by_property((int)attribute, out, device);
}

/* ---- The current context's device -------------------------------------------------------------------------------- */

CUresult loop_cuCtxGetDevice_v2000(CUdevice *out) {
  LOOP_ENTER(cuCtxGetDevice, 2000);
  if (loop_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
  *out = loop_current()->device;
  return CUDA_SUCCESS;
}

CUresult loop_cuCtxSynchronize_v2000(void) {
  LOOP_ENTER(cuCtxSynchronize, 2000);
  return loop_code(loop_ops()->device_synchronize(loop_self(), loop_current()->device));
}

CUresult loop_cuCtxGetStreamPriorityRange_v5050(int *out_least, int *out_greatest) {
  LOOP_ENTER(cuCtxGetStreamPriorityRange, 5050);
  const lade_runtime_ops *ops = loop_ops();
  int device = loop_current()->device;
  int64_t least = 0;
  int64_t greatest = 0;
  lade_status status = ops->device_attribute(loop_self(), device, LADEI_ATTR_STREAM_PRIORITY_LOWEST, &least);
  if (status == LADE_OK)
    status = ops->device_attribute(loop_self(), device, LADEI_ATTR_STREAM_PRIORITY_HIGHEST, &greatest);
  *out_least = (int)least;
  *out_greatest = (int)greatest;
  return loop_code(status);
}

CUresult loop_cuMemGetInfo_v3020(size_t *out_free, size_t *out_total) {
  LOOP_ENTER(cuMemGetInfo, 3020);
  return loop_code(loop_ops()->memory_info(loop_self(), loop_current()->device, out_free, out_total));
}

CUresult loop_cuThreadExchangeStreamCaptureMode_v10010(CUstreamCaptureMode *mode) {
  LOOP_ENTER(cuThreadExchangeStreamCaptureMode, 10010);
  ladei_capture_mode soft = (ladei_capture_mode)*mode;
  CUresult code = loop_code(loop_ops()->capture_mode_exchange(loop_self(), &soft));
  *mode = (CUstreamCaptureMode)soft;
  return code;
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

CUresult loop_cuDeviceCanAccessPeer_v4000(int *out_can, CUdevice device, CUdevice peer) {
  LOOP_ENTER(cuDeviceCanAccessPeer, 4000);
  bool can = false;
  CUresult code = loop_code(loop_ops()->peer_can_access(loop_self(), device, peer, &can));
  *out_can = can ? 1 : 0;
  return code;
}

static CUresult peer_find(CUcontext handle, loop_context **out) {
  loop_context *peer = loop_context_find(handle);
  *out = peer;
  if (peer == NULL || !loop_context_usable(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  return peer != loop_current() ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult loop_cuCtxEnablePeerAccess_v4000(CUcontext handle, unsigned int flags) {
  LOOP_ENTER(cuCtxEnablePeerAccess, 4000);
  loop_context *peer;
  loop_context *current = loop_current();
  CUresult code = flags != 0 ? CUDA_ERROR_INVALID_VALUE : peer_find(handle, &peer);
  if (code != CUDA_SUCCESS) return code;
  lade_status status = loop_ops()->peer_enable(loop_self(), current->device, peer->device);
  if (status == LADE_OK && atomic_exchange(&current->peers[peer->device], true))
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED; /* the op does not tell a second time from the first */
  return status == LADE_ERR_UNSUPPORTED ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : loop_code(status);
}

CUresult loop_cuCtxDisablePeerAccess_v4000(CUcontext handle) {
  LOOP_ENTER(cuCtxDisablePeerAccess, 4000);
  loop_context *peer;
  CUresult code = peer_find(handle, &peer);
  if (code != CUDA_SUCCESS) return code;
  if (!atomic_exchange(&loop_current()->peers[peer->device], false)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  return loop_code(loop_ops()->peer_disable(loop_self(), loop_current()->device, peer->device));
}

CUresult loop_cuIpcGetMemHandle_v4010(CUipcMemHandle *out, CUdeviceptr address) {
  LOOP_ENTER(cuIpcGetMemHandle, 4010);
  ladei_ipc_handle handle;
  if (loop_ops()->ipc_export == NULL) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult code = loop_code(loop_ops()->ipc_export(loop_self(), loop_pointer(address), &handle));
  if (code == CUDA_SUCCESS) memcpy(out->reserved, handle.bytes, sizeof out->reserved);
  return code;
}

CUresult loop_cuIpcOpenMemHandle_v11000(CUdeviceptr *out, CUipcMemHandle native, unsigned int flags) {
  LOOP_ENTER(cuIpcOpenMemHandle, 11000);
  ladei_ipc_handle handle;
  void *base = NULL;
  if (loop_ops()->ipc_open == NULL) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  memcpy(handle.bytes, native.reserved, sizeof handle.bytes);
  CUresult code = loop_code(loop_ops()->ipc_open(loop_self(), loop_current()->device, &handle, &base));
  *out = loop_address(base);
  return code;
}

CUresult loop_cuIpcCloseMemHandle_v4010(CUdeviceptr address) {
  LOOP_ENTER(cuIpcCloseMemHandle, 4010);
  return loop_ops()->ipc_close == NULL ? CUDA_ERROR_NOT_SUPPORTED
                                       : loop_code(loop_ops()->ipc_close(loop_self(), loop_pointer(address)));
}
