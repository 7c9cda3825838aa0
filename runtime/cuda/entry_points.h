/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every entry point of the driver that lade calls, in one table.
 *
 *   X(need, field, symbol, version)
 *     need     REQUIRED: opening the runtime fails without it. OPTIONAL: its pointer may be NULL.
 *     field    name in struct cuda_api
 *     symbol   name for cuGetProcAddress, without a suffix such as _v2
 *     version  CUDA version, as 1000 * major + 10 * minor, whose prototype lade was written for
 *
 * The version names a prototype: the function type is PFN_<symbol>_v<version> of cudaTypedefs.h, and the driver
 * is asked for the same number. It is never CUDA_VERSION of the header in use: a newer header
 * asks for newer prototypes (cuCtxGetDevice, cuCtxSynchronize and cuEventElapsedTime all changed after 12.0), which a
 * call through the old type would give wrong arguments. CUDA 12.0, the oldest supported driver, has all required ones.
 */
#ifndef LADE_RUNTIME_CUDA_ENTRY_POINTS_H
#define LADE_RUNTIME_CUDA_ENTRY_POINTS_H

#include <cudaTypedefs.h>
#include <stdbool.h>
#include <stddef.h>

#include "runtime/cuda/newer_types.h"

/* clang-format off */
#define CUDA_ENTRY_POINTS(X) \
  X(REQUIRED, init, cuInit, 2000) \
  X(REQUIRED, driver_get_version, cuDriverGetVersion, 2020) \
  X(REQUIRED, get_error_name, cuGetErrorName, 6000) \
  X(REQUIRED, get_error_string, cuGetErrorString, 6000) \
  X(REQUIRED, device_get_count, cuDeviceGetCount, 2000) \
  X(REQUIRED, device_get, cuDeviceGet, 2000) \
  X(REQUIRED, device_get_name, cuDeviceGetName, 2000) \
  X(REQUIRED, device_get_uuid, cuDeviceGetUuid, 11040) \
  X(REQUIRED, device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010) \
  X(REQUIRED, device_total_mem, cuDeviceTotalMem, 3020) \
  X(REQUIRED, device_get_attribute, cuDeviceGetAttribute, 2000) \
  X(REQUIRED, device_can_access_peer, cuDeviceCanAccessPeer, 4000) \
  X(REQUIRED, device_get_default_mem_pool, cuDeviceGetDefaultMemPool, 11020) \
  X(REQUIRED, primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000) \
  X(REQUIRED, primary_ctx_release, cuDevicePrimaryCtxRelease, 11000) \
  X(REQUIRED, primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000) \
  X(REQUIRED, ctx_get_current, cuCtxGetCurrent, 4000) \
  X(REQUIRED, ctx_set_current, cuCtxSetCurrent, 4000) \
  X(REQUIRED, ctx_push_current, cuCtxPushCurrent, 4000) \
  X(REQUIRED, ctx_pop_current, cuCtxPopCurrent, 4000) \
  X(REQUIRED, ctx_get_device, cuCtxGetDevice, 2000) \
  X(REQUIRED, ctx_synchronize, cuCtxSynchronize, 2000) \
  X(REQUIRED, ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, 5050) \
  X(REQUIRED, ctx_enable_peer_access, cuCtxEnablePeerAccess, 4000) \
  X(REQUIRED, ctx_disable_peer_access, cuCtxDisablePeerAccess, 4000) \
  X(REQUIRED, thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010) \
  X(REQUIRED, mem_get_info, cuMemGetInfo, 3020) \
  X(REQUIRED, mem_alloc, cuMemAlloc, 3020) \
  X(REQUIRED, mem_free, cuMemFree, 3020) \
  X(REQUIRED, mem_get_address_range, cuMemGetAddressRange, 3020) \
  X(REQUIRED, mem_host_alloc, cuMemHostAlloc, 2020) \
  X(REQUIRED, mem_free_host, cuMemFreeHost, 2000) \
  X(REQUIRED, mem_host_register, cuMemHostRegister, 6050) \
  X(REQUIRED, mem_host_unregister, cuMemHostUnregister, 4000) \
  X(REQUIRED, pointer_get_attributes, cuPointerGetAttributes, 7000) \
  X(REQUIRED, mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020) \
  X(REQUIRED, mem_address_reserve, cuMemAddressReserve, 10020) \
  X(REQUIRED, mem_address_free, cuMemAddressFree, 10020) \
  X(REQUIRED, mem_create, cuMemCreate, 10020) \
  X(REQUIRED, mem_release, cuMemRelease, 10020) \
  X(REQUIRED, mem_map, cuMemMap, 10020) \
  X(REQUIRED, mem_unmap, cuMemUnmap, 10020) \
  X(REQUIRED, mem_set_access, cuMemSetAccess, 10020) \
  X(REQUIRED, mem_export, cuMemExportToShareableHandle, 10020) \
  X(REQUIRED, mem_import, cuMemImportFromShareableHandle, 10020) \
  X(REQUIRED, mem_pool_create, cuMemPoolCreate, 11020) \
  X(REQUIRED, mem_pool_destroy, cuMemPoolDestroy, 11020) \
  X(REQUIRED, mem_pool_set_access, cuMemPoolSetAccess, 11020) \
  X(REQUIRED, mem_pool_get_access, cuMemPoolGetAccess, 11020) \
  X(REQUIRED, mem_pool_get_attribute, cuMemPoolGetAttribute, 11020) \
  X(REQUIRED, mem_pool_set_attribute, cuMemPoolSetAttribute, 11020) \
  X(REQUIRED, mem_pool_trim_to, cuMemPoolTrimTo, 11020) \
  X(REQUIRED, mem_alloc_from_pool, cuMemAllocFromPoolAsync, 11020) \
  X(REQUIRED, mem_free_async, cuMemFreeAsync, 11020) \
  X(REQUIRED, stream_create, cuStreamCreateWithPriority, 5050) \
  X(REQUIRED, stream_destroy, cuStreamDestroy, 4000) \
  X(REQUIRED, stream_get_ctx, cuStreamGetCtx, 9020) \
  X(REQUIRED, stream_get_id, cuStreamGetId, 12000) \
  X(REQUIRED, stream_wait_event, cuStreamWaitEvent, 3020) \
  X(REQUIRED, stream_query, cuStreamQuery, 2000) \
  X(REQUIRED, stream_synchronize, cuStreamSynchronize, 2000) \
  X(REQUIRED, stream_is_capturing, cuStreamIsCapturing, 10000) \
  X(REQUIRED, stream_get_capture_info, cuStreamGetCaptureInfo, 11030) \
  X(REQUIRED, stream_begin_capture, cuStreamBeginCapture, 10010) \
  X(REQUIRED, stream_end_capture, cuStreamEndCapture, 10000) \
  X(REQUIRED, stream_write_value_32, cuStreamWriteValue32, 11070) \
  X(REQUIRED, stream_write_value_64, cuStreamWriteValue64, 11070) \
  X(REQUIRED, event_create, cuEventCreate, 2000) \
  X(REQUIRED, event_destroy, cuEventDestroy, 4000) \
  X(REQUIRED, event_record, cuEventRecord, 2000) \
  X(REQUIRED, event_query, cuEventQuery, 2000) \
  X(REQUIRED, event_synchronize, cuEventSynchronize, 2000) \
  X(REQUIRED, event_elapsed_time, cuEventElapsedTime, 2000) \
  X(REQUIRED, memcpy_h2d, cuMemcpyHtoD, 3020) \
  X(REQUIRED, memcpy_d2h, cuMemcpyDtoH, 3020) \
  X(REQUIRED, memcpy_any, cuMemcpy, 4000) \
  X(REQUIRED, memcpy_h2d_async, cuMemcpyHtoDAsync, 3020) \
  X(REQUIRED, memcpy_d2h_async, cuMemcpyDtoHAsync, 3020) \
  X(REQUIRED, memcpy_any_async, cuMemcpyAsync, 4000) \
  X(REQUIRED, memcpy_peer_async, cuMemcpyPeerAsync, 4000) \
  X(REQUIRED, memcpy_2d_async, cuMemcpy2DAsync, 3020) \
  X(OPTIONAL, memcpy_batch_12, cuMemcpyBatchAsync, 12080) \
  X(OPTIONAL, memcpy_batch_13, cuMemcpyBatchAsync, 13000) \
  X(REQUIRED, memset_d8_async, cuMemsetD8Async, 3020) \
  X(REQUIRED, launch_host_func, cuLaunchHostFunc, 10000) \
  X(REQUIRED, module_load_data, cuModuleLoadData, 2000) \
  X(REQUIRED, module_unload, cuModuleUnload, 2000) \
  X(REQUIRED, module_get_function, cuModuleGetFunction, 2000) \
  X(REQUIRED, launch_kernel, cuLaunchKernel, 4000) \
  X(REQUIRED, graph_instantiate, cuGraphInstantiateWithFlags, 11040) \
  X(REQUIRED, graph_instantiate_with, cuGraphInstantiateWithParams, 12000) \
  X(REQUIRED, graph_exec_update, cuGraphExecUpdate, 12000) \
  X(REQUIRED, graph_upload, cuGraphUpload, 11010) \
  X(REQUIRED, graph_get_nodes, cuGraphGetNodes, 10000) \
  X(REQUIRED, graph_get_edges, cuGraphGetEdges, 10000) \
  X(REQUIRED, graph_node_get_type, cuGraphNodeGetType, 10000) \
  X(REQUIRED, graph_node_get_dependencies, cuGraphNodeGetDependencies, 10000) \
  X(REQUIRED, device_get_graph_mem, cuDeviceGetGraphMemAttribute, 11040) \
  X(REQUIRED, device_graph_mem_trim, cuDeviceGraphMemTrim, 11040) \
  X(REQUIRED, graph_launch, cuGraphLaunch, 10000) \
  X(REQUIRED, graph_destroy, cuGraphDestroy, 10000) \
  X(REQUIRED, graph_exec_destroy, cuGraphExecDestroy, 10000) \
  X(REQUIRED, user_object_create, cuUserObjectCreate, 11030) \
  X(REQUIRED, user_object_release, cuUserObjectRelease, 11030) \
  X(REQUIRED, graph_retain_user_object, cuGraphRetainUserObject, 11030) \
  X(REQUIRED, ipc_get_mem_handle, cuIpcGetMemHandle, 4010) \
  X(REQUIRED, ipc_open_mem_handle, cuIpcOpenMemHandle, 11000) \
  X(REQUIRED, ipc_close_mem_handle, cuIpcCloseMemHandle, 4010)
/* clang-format on */

/* One pointer per row. */
typedef struct cuda_api {
#define CUDA_API_FIELD(need, field, symbol, version) PFN_##symbol##_v##version field;
  CUDA_ENTRY_POINTS(CUDA_API_FIELD)
#undef CUDA_API_FIELD
} cuda_api;

/* A row as data, for the loader and the tests. */
typedef struct cuda_entry_point {
  const char *symbol;
  int version;
  bool required;
  size_t offset; /* of the pointer in struct cuda_api */
} cuda_entry_point;

const cuda_entry_point *ladei_cuda_entry_points(size_t *out_count);

#endif /* LADE_RUNTIME_CUDA_ENTRY_POINTS_H */
