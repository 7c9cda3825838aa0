/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every driver call that the preload library knows, in two tables.
 *
 *   PRELOAD_CALLS: functions that it calls       X(field, symbol, since, exported, (parameters))
 *   PRELOAD_HOOKS: functions that it replaces    X(field, symbol, since, exported, flavour, group, (parameters))
 *
 *     field     preload_call_<field> is the prototype; for a hook, hook_<field> is the replacing function, known to the
 *               linker by its exported name
 *     symbol    name for cuGetProcAddress; as text, since headers redefine most names by macros
 *     since     first CUDA version, 1000 * major + 10 * minor, for which cuGetProcAddress gives this prototype
 *     exported  name in libcuda, and for a hook also the name under which this library exports it
 *     flavour   LEGACY, or PER_THREAD: a stream of NULL is the calling thread's default stream (_ptsz)
 *     group     when a look-up gives the hook: ALWAYS; WATCH, in mode fast; DEVICE, if LADE_PRELOAD_DEVICE asks for it
 *
 * Numbers and prototypes are the driver's binary interface, which never changes for one exported name.
 */
#ifndef LADE_PRELOAD_CALLS_H
#define LADE_PRELOAD_CALLS_H

#include <cuda.h>
#include <stddef.h>

/* Headers before CUDA 12.8 lack these types; their layout is fixed in the driver's binary interface. */
typedef struct preload_copy_operand {
  int type; /* 1: a pointer */
  union {
    struct {
      CUdeviceptr address;
      size_t row_elements, layer_rows;
      int location[2];
    } pointer;
    struct {
      CUarray array;
      size_t x, y, z;
    } array;
  } at;
} preload_copy_operand;
enum { PRELOAD_OPERAND_POINTER = 1 };

typedef struct preload_copy_3d {
  preload_copy_operand source, destination;
  size_t width, height, depth;
  int access_order;
  unsigned flags;
} preload_copy_3d;
#if CUDA_VERSION >= 12080
_Static_assert(sizeof(preload_copy_3d) == sizeof(CUDA_MEMCPY3D_BATCH_OP), "CUDA_MEMCPY3D_BATCH_OP has another size");
_Static_assert(offsetof(preload_copy_3d, destination) == offsetof(CUDA_MEMCPY3D_BATCH_OP, dst), "dst moved");
#endif

/* A stream operation on a value in memory. */
typedef struct preload_value_op {
  int operation;
  CUdeviceptr address; /* for the operations below */
  cuuint64_t rest[4];
} preload_value_op;
enum {
  PRELOAD_VALUE_WAIT_32 = 1,
  PRELOAD_VALUE_WRITE_32 = 2,
  PRELOAD_VALUE_WAIT_64 = 4,
  PRELOAD_VALUE_WRITE_64 = 5,
};
_Static_assert(sizeof(preload_value_op) == sizeof(CUstreamBatchMemOpParams),
               "CUstreamBatchMemOpParams has another size");
_Static_assert(offsetof(preload_value_op, address) == offsetof(CUstreamBatchMemOpParams, writeValue.address),
               "address moved");

typedef struct preload_value_ops {
  CUcontext context;
  unsigned count;
  preload_value_op *ops;
  unsigned flags;
} preload_value_ops;
_Static_assert(sizeof(preload_value_ops) == sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS), "it has another size");

/* The head of CUgraphNodeParams (12.2), for the nodes that use memory. */
typedef struct preload_node_params {
  CUgraphNodeType type;
  int reserved[3];
  union {
    struct {
      int flags, unused;
      CUcontext context;
      CUDA_MEMCPY3D copy;
    } copy;
    CUDA_MEMSET_NODE_PARAMS fill;
    preload_value_ops values;
  } of;
} preload_node_params;
#if CUDA_VERSION >= 12020
_Static_assert(offsetof(preload_node_params, of.copy.copy) == offsetof(CUgraphNodeParams, memcpy.copyParams),
               "copy moved");
_Static_assert(offsetof(preload_node_params, of.fill.dst) == offsetof(CUgraphNodeParams, memset.dst), "fill moved");
_Static_assert(offsetof(preload_node_params, of.values.ops) == offsetof(CUgraphNodeParams, memOp.paramArray),
               "values moved");
#endif

/* clang-format off */
#define PRELOAD_CALLS(X) \
  X(ctx_get_current, "cuCtxGetCurrent", 4000, "cuCtxGetCurrent", (CUcontext *)) \
  X(ctx_get_device, "cuCtxGetDevice", 2000, "cuCtxGetDevice", (CUdevice *)) \
  X(ctx_push_current, "cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2", (CUcontext)) \
  X(ctx_pop_current, "cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2", (CUcontext *)) \
  X(ctx_synchronize, "cuCtxSynchronize", 2000, "cuCtxSynchronize", (void)) \
  X(ctx_record_event, "cuCtxRecordEvent", 12050, "cuCtxRecordEvent", (CUcontext, CUevent)) \
  X(device_get, "cuDeviceGet", 2000, "cuDeviceGet", (CUdevice *, int)) \
  X(device_get_default_mem_pool, "cuDeviceGetDefaultMemPool", 11020, "cuDeviceGetDefaultMemPool", (CUmemoryPool *, CUdevice)) \
  X(device_get_mem_pool, "cuDeviceGetMemPool", 11020, "cuDeviceGetMemPool", (CUmemoryPool *, CUdevice)) \
  X(device_get_count, "cuDeviceGetCount", 2000, "cuDeviceGetCount", (int *)) \
  X(primary_ctx_get_state, "cuDevicePrimaryCtxGetState", 7000, "cuDevicePrimaryCtxGetState", (CUdevice, unsigned *, int *)) \
  X(thread_exchange_mode, "cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode", \
    (CUstreamCaptureMode *)) \
  X(stream_is_capturing, "cuStreamIsCapturing", 10000, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus *)) \
  X(stream_synchronize, "cuStreamSynchronize", 2000, "cuStreamSynchronize", (CUstream)) \
  X(graph_destroy, "cuGraphDestroy", 10000, "cuGraphDestroy", (CUgraph)) \
  X(stream_get_ctx, "cuStreamGetCtx", 9020, "cuStreamGetCtx", (CUstream, CUcontext *)) \
  X(event_create, "cuEventCreate", 2000, "cuEventCreate", (CUevent *, unsigned)) \
  X(event_destroy, "cuEventDestroy", 4000, "cuEventDestroy_v2", (CUevent)) \
  X(event_record, "cuEventRecord", 2000, "cuEventRecord", (CUevent, CUstream)) \
  X(event_query, "cuEventQuery", 2000, "cuEventQuery", (CUevent)) \
  X(event_synchronize, "cuEventSynchronize", 2000, "cuEventSynchronize", (CUevent))

/* Both flavours of a call whose last parameter is a stream. */
#define PRELOAD_BOTH(X, field, symbol, since, exported, group, parameters) \
  X(field, symbol, since, exported, LEGACY, group, parameters) \
  X(field##_ptsz, symbol, 7000 > since ? 7000 : since, exported "_ptsz", PER_THREAD, group, parameters)

#define PRELOAD_HOOKS(X) \
  X(init, "cuInit", 2000, "cuInit", LEGACY, ALWAYS, (unsigned)) \
  X(get_proc_address, "cuGetProcAddress", 11030, "cuGetProcAddress", LEGACY, ALWAYS, \
    (const char *, void **, int, cuuint64_t)) \
  X(get_proc_address_2, "cuGetProcAddress", 12000, "cuGetProcAddress_v2", LEGACY, ALWAYS, \
    (const char *, void **, int, cuuint64_t, void *)) \
  X(mem_host_alloc, "cuMemHostAlloc", 2020, "cuMemHostAlloc", LEGACY, ALWAYS, (void **, size_t, unsigned)) \
  X(mem_alloc_host, "cuMemAllocHost", 3020, "cuMemAllocHost_v2", LEGACY, ALWAYS, (void **, size_t)) \
  X(mem_alloc_host_1, "cuMemAllocHost", 2000, "cuMemAllocHost", LEGACY, ALWAYS, (void **, unsigned)) \
  X(mem_free_host, "cuMemFreeHost", 2000, "cuMemFreeHost", LEGACY, ALWAYS, (void *)) \
  X(mem_host_get_flags, "cuMemHostGetFlags", 2030, "cuMemHostGetFlags", LEGACY, ALWAYS, (unsigned *, void *)) \
  X(mem_host_get_device_pointer, "cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2", LEGACY, ALWAYS, \
    (CUdeviceptr *, void *, unsigned)) \
  X(mem_host_register, "cuMemHostRegister", 6050, "cuMemHostRegister_v2", LEGACY, ALWAYS, (void *, size_t, unsigned)) \
  X(mem_host_register_1, "cuMemHostRegister", 4000, "cuMemHostRegister", LEGACY, ALWAYS, (void *, size_t, unsigned)) \
  X(mem_host_unregister, "cuMemHostUnregister", 4000, "cuMemHostUnregister", LEGACY, ALWAYS, (void *)) \
  X(mem_get_address_range, "cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2", LEGACY, ALWAYS, \
    (CUdeviceptr *, size_t *, CUdeviceptr)) \
  X(pointer_get_attribute, "cuPointerGetAttribute", 4000, "cuPointerGetAttribute", LEGACY, ALWAYS, \
    (void *, CUpointer_attribute, CUdeviceptr)) \
  X(pointer_get_attributes, "cuPointerGetAttributes", 7000, "cuPointerGetAttributes", LEGACY, ALWAYS, \
    (unsigned, CUpointer_attribute *, void **, CUdeviceptr)) \
  X(mem_alloc, "cuMemAlloc", 3020, "cuMemAlloc_v2", LEGACY, DEVICE, (CUdeviceptr *, size_t)) \
  X(mem_free, "cuMemFree", 3020, "cuMemFree_v2", LEGACY, DEVICE, (CUdeviceptr)) \
  PRELOAD_BOTH(X, mem_alloc_async, "cuMemAllocAsync", 11020, "cuMemAllocAsync", DEVICE, \
    (CUdeviceptr *, size_t, CUstream)) \
  PRELOAD_BOTH(X, mem_free_async, "cuMemFreeAsync", 11020, "cuMemFreeAsync", DEVICE, (CUdeviceptr, CUstream)) \
  PRELOAD_BOTH(X, mem_alloc_from_pool_async, "cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync", DEVICE, \
    (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
  X(mem_alloc_pitch, "cuMemAllocPitch", 3020, "cuMemAllocPitch_v2", LEGACY, DEVICE, \
    (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
  X(mem_alloc_managed, "cuMemAllocManaged", 6000, "cuMemAllocManaged", LEGACY, DEVICE, (CUdeviceptr *, size_t, unsigned)) \
  X(mem_create, "cuMemCreate", 10020, "cuMemCreate", LEGACY, DEVICE, \
    (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
  X(array_create, "cuArrayCreate", 3020, "cuArrayCreate_v2", LEGACY, DEVICE, \
    (CUarray *, const CUDA_ARRAY_DESCRIPTOR *)) \
  X(array_3d_create, "cuArray3DCreate", 3020, "cuArray3DCreate_v2", LEGACY, DEVICE, \
    (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *)) \
  X(mipmapped_array_create, "cuMipmappedArrayCreate", 5000, "cuMipmappedArrayCreate", LEGACY, DEVICE, \
    (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)) \
  X(mem_get_info, "cuMemGetInfo", 3020, "cuMemGetInfo_v2", LEGACY, DEVICE, (size_t *, size_t *)) \
  X(mem_pool_set_access, "cuMemPoolSetAccess", 11020, "cuMemPoolSetAccess", LEGACY, DEVICE, \
    (CUmemoryPool, const CUmemAccessDesc *, size_t)) \
  X(device_set_mem_pool, "cuDeviceSetMemPool", 11020, "cuDeviceSetMemPool", LEGACY, DEVICE, (CUdevice, CUmemoryPool)) \
  X(ipc_get_mem_handle, "cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle", LEGACY, DEVICE, (CUipcMemHandle *, CUdeviceptr)) \
  X(pointer_set_attribute, "cuPointerSetAttribute", 6000, "cuPointerSetAttribute", LEGACY, DEVICE, \
    (const void *, CUpointer_attribute, CUdeviceptr)) \
  X(ctx_create_1, "cuCtxCreate", 2000, "cuCtxCreate", LEGACY, ALWAYS, (CUcontext *, unsigned, CUdevice)) \
  X(ctx_create, "cuCtxCreate", 3020, "cuCtxCreate_v2", LEGACY, ALWAYS, (CUcontext *, unsigned, CUdevice)) \
  X(ctx_create_3, "cuCtxCreate", 11040, "cuCtxCreate_v3", LEGACY, ALWAYS, \
    (CUcontext *, void *, int, unsigned, CUdevice)) \
  X(ctx_create_4, "cuCtxCreate", 12050, "cuCtxCreate_v4", LEGACY, ALWAYS, (CUcontext *, void *, unsigned, CUdevice)) \
  X(ctx_destroy_1, "cuCtxDestroy", 2000, "cuCtxDestroy", LEGACY, ALWAYS, (CUcontext)) \
  X(ctx_detach, "cuCtxDetach", 2000, "cuCtxDetach", LEGACY, ALWAYS, (CUcontext)) \
  X(ctx_destroy, "cuCtxDestroy", 4000, "cuCtxDestroy_v2", LEGACY, ALWAYS, (CUcontext)) \
  X(primary_ctx_retain, "cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain", LEGACY, ALWAYS, \
    (CUcontext *, CUdevice)) \
  X(primary_ctx_release, "cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2", LEGACY, ALWAYS, (CUdevice)) \
  X(primary_ctx_release_1, "cuDevicePrimaryCtxRelease", 7000, "cuDevicePrimaryCtxRelease", LEGACY, ALWAYS, (CUdevice)) \
  X(primary_ctx_reset, "cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2", LEGACY, ALWAYS, (CUdevice)) \
  X(primary_ctx_reset_1, "cuDevicePrimaryCtxReset", 7000, "cuDevicePrimaryCtxReset", LEGACY, ALWAYS, (CUdevice)) \
  X(stream_create, "cuStreamCreate", 2000, "cuStreamCreate", LEGACY, ALWAYS, (CUstream *, unsigned)) \
  X(stream_create_with_priority, "cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority", LEGACY, ALWAYS, \
    (CUstream *, unsigned, int)) \
  X(stream_destroy_1, "cuStreamDestroy", 2000, "cuStreamDestroy", LEGACY, ALWAYS, (CUstream)) \
  X(stream_destroy, "cuStreamDestroy", 4000, "cuStreamDestroy_v2", LEGACY, ALWAYS, (CUstream)) \
  PRELOAD_BOTH(X, stream_wait_event, "cuStreamWaitEvent", 3020, "cuStreamWaitEvent", ALWAYS, (CUstream, CUevent, unsigned)) \
  PRELOAD_BOTH(X, stream_begin_capture_1, "cuStreamBeginCapture", 10000, "cuStreamBeginCapture", ALWAYS, (CUstream)) \
  PRELOAD_BOTH(X, stream_begin_capture, "cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2", ALWAYS, \
    (CUstream, CUstreamCaptureMode)) \
  PRELOAD_BOTH(X, stream_begin_capture_to, "cuStreamBeginCaptureToGraph", 12030, "cuStreamBeginCaptureToGraph", ALWAYS, \
    (CUstream, CUgraph, const CUgraphNode *, const void *, size_t, CUstreamCaptureMode)) \
  PRELOAD_BOTH(X, stream_end_capture, "cuStreamEndCapture", 10000, "cuStreamEndCapture", ALWAYS, (CUstream, CUgraph *)) \
  PRELOAD_BOTH(X, memcpy_async, "cuMemcpyAsync", 4000, "cuMemcpyAsync", WATCH, \
    (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_peer_async, "cuMemcpyPeerAsync", 4000, "cuMemcpyPeerAsync", WATCH, \
    (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_h2d_async, "cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2", WATCH, \
    (CUdeviceptr, const void *, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_d2h_async, "cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2", WATCH, \
    (void *, CUdeviceptr, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_d2d_async, "cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2", WATCH, \
    (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_h2a_async, "cuMemcpyHtoAAsync", 3020, "cuMemcpyHtoAAsync_v2", WATCH, \
    (CUarray, size_t, const void *, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_a2h_async, "cuMemcpyAtoHAsync", 3020, "cuMemcpyAtoHAsync_v2", WATCH, \
    (void *, CUarray, size_t, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_2d_async, "cuMemcpy2DAsync", 3020, "cuMemcpy2DAsync_v2", WATCH, \
    (const CUDA_MEMCPY2D *, CUstream)) \
  PRELOAD_BOTH(X, memcpy_3d_async, "cuMemcpy3DAsync", 3020, "cuMemcpy3DAsync_v2", WATCH, \
    (const CUDA_MEMCPY3D *, CUstream)) \
  PRELOAD_BOTH(X, memcpy_3d_peer_async, "cuMemcpy3DPeerAsync", 4000, "cuMemcpy3DPeerAsync", WATCH, \
    (const CUDA_MEMCPY3D_PEER *, CUstream)) \
  PRELOAD_BOTH(X, memcpy_batch_async, "cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync", WATCH, \
    (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream)) \
  PRELOAD_BOTH(X, memcpy_batch_async_2, "cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2", WATCH, \
    (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream)) \
  PRELOAD_BOTH(X, memcpy_3d_batch_async, "cuMemcpy3DBatchAsync", 12080, "cuMemcpy3DBatchAsync", WATCH, \
    (size_t, preload_copy_3d *, size_t *, unsigned long long, CUstream)) \
  PRELOAD_BOTH(X, memcpy_3d_batch_async_2, "cuMemcpy3DBatchAsync", 13000, "cuMemcpy3DBatchAsync_v2", WATCH, \
    (size_t, preload_copy_3d *, unsigned long long, CUstream)) \
  PRELOAD_BOTH(X, memset_d8_async, "cuMemsetD8Async", 3020, "cuMemsetD8Async", WATCH, \
    (CUdeviceptr, unsigned char, size_t, CUstream)) \
  PRELOAD_BOTH(X, memset_d16_async, "cuMemsetD16Async", 3020, "cuMemsetD16Async", WATCH, \
    (CUdeviceptr, unsigned short, size_t, CUstream)) \
  PRELOAD_BOTH(X, memset_d32_async, "cuMemsetD32Async", 3020, "cuMemsetD32Async", WATCH, \
    (CUdeviceptr, unsigned, size_t, CUstream)) \
  PRELOAD_BOTH(X, memset_2d_d8_async, "cuMemsetD2D8Async", 3020, "cuMemsetD2D8Async", WATCH, \
    (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream)) \
  PRELOAD_BOTH(X, memset_2d_d16_async, "cuMemsetD2D16Async", 3020, "cuMemsetD2D16Async", WATCH, \
    (CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream)) \
  PRELOAD_BOTH(X, memset_2d_d32_async, "cuMemsetD2D32Async", 3020, "cuMemsetD2D32Async", WATCH, \
    (CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream)) \
  PRELOAD_BOTH(X, stream_wait_value_32_1, "cuStreamWaitValue32", 8000, "cuStreamWaitValue32", WATCH, \
    (CUstream, CUdeviceptr, cuuint32_t, unsigned)) \
  PRELOAD_BOTH(X, stream_wait_value_32, "cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2", WATCH, \
    (CUstream, CUdeviceptr, cuuint32_t, unsigned)) \
  PRELOAD_BOTH(X, stream_wait_value_64_1, "cuStreamWaitValue64", 9000, "cuStreamWaitValue64", WATCH, \
    (CUstream, CUdeviceptr, cuuint64_t, unsigned)) \
  PRELOAD_BOTH(X, stream_wait_value_64, "cuStreamWaitValue64", 11070, "cuStreamWaitValue64_v2", WATCH, \
    (CUstream, CUdeviceptr, cuuint64_t, unsigned)) \
  PRELOAD_BOTH(X, stream_write_value_32_1, "cuStreamWriteValue32", 8000, "cuStreamWriteValue32", WATCH, \
    (CUstream, CUdeviceptr, cuuint32_t, unsigned)) \
  PRELOAD_BOTH(X, stream_write_value_32, "cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2", WATCH, \
    (CUstream, CUdeviceptr, cuuint32_t, unsigned)) \
  PRELOAD_BOTH(X, stream_write_value_64_1, "cuStreamWriteValue64", 9000, "cuStreamWriteValue64", WATCH, \
    (CUstream, CUdeviceptr, cuuint64_t, unsigned)) \
  PRELOAD_BOTH(X, stream_write_value_64, "cuStreamWriteValue64", 11070, "cuStreamWriteValue64_v2", WATCH, \
    (CUstream, CUdeviceptr, cuuint64_t, unsigned)) \
  PRELOAD_BOTH(X, stream_batch_mem_op_1, "cuStreamBatchMemOp", 8000, "cuStreamBatchMemOp", WATCH, \
    (CUstream, unsigned, preload_value_op *, unsigned)) \
  PRELOAD_BOTH(X, stream_batch_mem_op, "cuStreamBatchMemOp", 11070, "cuStreamBatchMemOp_v2", WATCH, \
    (CUstream, unsigned, preload_value_op *, unsigned)) \
  X(graph_add_memset_node, "cuGraphAddMemsetNode", 10000, "cuGraphAddMemsetNode", LEGACY, WATCH, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)) \
  X(graph_memset_node_set, "cuGraphMemsetNodeSetParams", 10000, "cuGraphMemsetNodeSetParams", LEGACY, WATCH, \
    (CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *)) \
  X(graph_exec_memset_node_set, "cuGraphExecMemsetNodeSetParams", 10020, "cuGraphExecMemsetNodeSetParams", LEGACY, WATCH, \
    (CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)) \
  X(graph_add_values_node, "cuGraphAddBatchMemOpNode", 11070, "cuGraphAddBatchMemOpNode", LEGACY, WATCH, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const preload_value_ops *)) \
  X(graph_values_node_set, "cuGraphBatchMemOpNodeSetParams", 11070, "cuGraphBatchMemOpNodeSetParams", LEGACY, WATCH, \
    (CUgraphNode, const preload_value_ops *)) \
  X(graph_exec_values_node_set, "cuGraphExecBatchMemOpNodeSetParams", 11070, "cuGraphExecBatchMemOpNodeSetParams", LEGACY, \
    WATCH, (CUgraphExec, CUgraphNode, const preload_value_ops *)) \
  X(graph_add_memcpy_node, "cuGraphAddMemcpyNode", 10000, "cuGraphAddMemcpyNode", LEGACY, WATCH, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMCPY3D *, CUcontext)) \
  X(graph_memcpy_node_set, "cuGraphMemcpyNodeSetParams", 10000, "cuGraphMemcpyNodeSetParams", LEGACY, WATCH, \
    (CUgraphNode, const CUDA_MEMCPY3D *)) \
  X(graph_exec_memcpy_node_set, "cuGraphExecMemcpyNodeSetParams", 10020, "cuGraphExecMemcpyNodeSetParams", LEGACY, WATCH, \
    (CUgraphExec, CUgraphNode, const CUDA_MEMCPY3D *, CUcontext)) \
  X(graph_add_node, "cuGraphAddNode", 12020, "cuGraphAddNode", LEGACY, WATCH, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, preload_node_params *)) \
  X(graph_add_node_2, "cuGraphAddNode", 12030, "cuGraphAddNode_v2", LEGACY, WATCH, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, preload_node_params *)) \
  X(graph_node_set, "cuGraphNodeSetParams", 12020, "cuGraphNodeSetParams", LEGACY, WATCH, \
    (CUgraphNode, preload_node_params *)) \
  X(graph_exec_node_set, "cuGraphExecNodeSetParams", 12020, "cuGraphExecNodeSetParams", LEGACY, WATCH, \
    (CUgraphExec, CUgraphNode, preload_node_params *))
/* clang-format on */

typedef enum preload_row {
#define PRELOAD_CALL_ROW(field, ...) PRELOAD_ROW_##field,
  PRELOAD_CALLS(PRELOAD_CALL_ROW) PRELOAD_HOOKS(PRELOAD_CALL_ROW)
#undef PRELOAD_CALL_ROW
      PRELOAD_ROWS
} preload_row;

#define PRELOAD_CALL_TYPE(field, symbol, since, exported, parameters) typedef CUresult preload_call_##field parameters;
PRELOAD_CALLS(PRELOAD_CALL_TYPE)
#undef PRELOAD_CALL_TYPE
#define PRELOAD_HOOK_TYPE(field, symbol, since, exported, flavour, group, parameters)                                  \
  typedef CUresult preload_call_##field parameters;                                                                    \
  preload_call_##field hook_##field __asm__(exported) __attribute__((visibility("default")));
PRELOAD_HOOKS(PRELOAD_HOOK_TYPE)
#undef PRELOAD_HOOK_TYPE

#endif /* LADE_PRELOAD_CALLS_H */
