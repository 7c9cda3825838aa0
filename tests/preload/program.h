/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses the driver as the CUDA runtime does that is linked statically: it opens libcuda.so.1, asks dlsym for
 * cuGetProcAddress_v2, asks that for cuGetProcAddress, and that for everything else, at the version that it was written for.
 */
#ifndef LADE_TESTS_PRELOAD_PROGRAM_H
#define LADE_TESTS_PRELOAD_PROGRAM_H

#include <cuda.h>
#include <stdbool.h>

/* X(field, symbol, version, (parameters)): prototypes of their own, since headers give each symbol that of their release */
/* clang-format off */
#define PROGRAM_CALLS(X) \
  X(init, cuInit, 2000, (unsigned)) \
  X(driver_get_version, cuDriverGetVersion, 2020, (int *)) \
  X(primary_retain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice)) \
  X(primary_release, cuDevicePrimaryCtxRelease, 11000, (CUdevice)) \
  X(primary_reset, cuDevicePrimaryCtxReset, 11000, (CUdevice)) \
  X(ctx_set_current, cuCtxSetCurrent, 4000, (CUcontext)) \
  X(ctx_get_current, cuCtxGetCurrent, 4000, (CUcontext *)) \
  X(ctx_create, cuCtxCreate, 3020, (CUcontext *, unsigned, CUdevice)) \
  X(ctx_destroy, cuCtxDestroy, 4000, (CUcontext)) \
  X(ctx_synchronize, cuCtxSynchronize, 2000, (void)) \
  X(host_alloc, cuMemHostAlloc, 2020, (void **, size_t, unsigned)) \
  X(alloc_host, cuMemAllocHost, 3020, (void **, size_t)) \
  X(free_host, cuMemFreeHost, 2000, (void *)) \
  X(host_get_flags, cuMemHostGetFlags, 2030, (unsigned *, void *)) \
  X(host_get_device_pointer, cuMemHostGetDevicePointer, 3020, (CUdeviceptr *, void *, unsigned)) \
  X(host_register, cuMemHostRegister, 6050, (void *, size_t, unsigned)) \
  X(host_unregister, cuMemHostUnregister, 4000, (void *)) \
  X(pointer_get_attribute, cuPointerGetAttribute, 4000, (void *, CUpointer_attribute, CUdeviceptr)) \
  X(pointer_get_attributes, cuPointerGetAttributes, 7000, (unsigned, CUpointer_attribute *, void **, CUdeviceptr)) \
  X(mem_alloc, cuMemAlloc, 3020, (CUdeviceptr *, size_t)) \
  X(mem_free, cuMemFree, 3020, (CUdeviceptr)) \
  X(mem_alloc_async, cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream)) \
  X(mem_free_async, cuMemFreeAsync, 11020, (CUdeviceptr, CUstream)) \
  X(mem_alloc_from_pool, cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
  X(mem_alloc_pitch, cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
  X(mem_get_info, cuMemGetInfo, 3020, (size_t *, size_t *)) \
  X(mem_get_address_range, cuMemGetAddressRange, 3020, (CUdeviceptr *, size_t *, CUdeviceptr)) \
  X(pointer_set_attribute, cuPointerSetAttribute, 6000, (const void *, CUpointer_attribute, CUdeviceptr)) \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr)) \
  X(device_default_pool, cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice)) \
  X(device_set_pool, cuDeviceSetMemPool, 11020, (CUdevice, CUmemoryPool)) \
  X(pool_create, cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *)) \
  X(pool_destroy, cuMemPoolDestroy, 11020, (CUmemoryPool)) \
  X(pool_set_access, cuMemPoolSetAccess, 11020, (CUmemoryPool, const CUmemAccessDesc *, size_t)) \
  X(memset_d8_async, cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, CUstream)) \
  X(stream_write_32, cuStreamWriteValue32, 11070, (CUstream, CUdeviceptr, cuuint32_t, unsigned)) \
  X(stream_write_64, cuStreamWriteValue64, 11070, (CUstream, CUdeviceptr, cuuint64_t, unsigned)) \
  X(stream_wait_32, cuStreamWaitValue32, 11070, (CUstream, CUdeviceptr, cuuint32_t, unsigned)) \
  X(stream_wait_64, cuStreamWaitValue64, 11070, (CUstream, CUdeviceptr, cuuint64_t, unsigned)) \
  X(stream_batch, cuStreamBatchMemOp, 11070, (CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned)) \
  X(stream_create, cuStreamCreate, 2000, (CUstream *, unsigned)) \
  X(stream_destroy, cuStreamDestroy, 4000, (CUstream)) \
  X(stream_synchronize, cuStreamSynchronize, 2000, (CUstream)) \
  X(stream_wait_event, cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned)) \
  X(event_create, cuEventCreate, 2000, (CUevent *, unsigned)) \
  X(event_destroy, cuEventDestroy, 4000, (CUevent)) \
  X(event_record, cuEventRecord, 2000, (CUevent, CUstream)) \
  X(stream_begin_capture, cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode)) \
  X(stream_end_capture, cuStreamEndCapture, 10000, (CUstream, CUgraph *)) \
  X(graph_create, cuGraphCreate, 10000, (CUgraph *, unsigned)) \
  X(graph_add_fill, cuGraphAddMemsetNode, 10000, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)) \
  X(graph_fill_set, cuGraphMemsetNodeSetParams, 10000, (CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *)) \
  X(graph_exec_fill_set, cuGraphExecMemsetNodeSetParams, 10020, \
    (CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)) \
  X(graph_add_values, cuGraphAddBatchMemOpNode, 11070, \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_BATCH_MEM_OP_NODE_PARAMS *)) \
  X(graph_values_set, cuGraphBatchMemOpNodeSetParams, 11070, (CUgraphNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *)) \
  X(graph_exec_values_set, cuGraphExecBatchMemOpNodeSetParams, 11070, \
    (CUgraphExec, CUgraphNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *)) \
  X(graph_instantiate, cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long)) \
  X(graph_launch, cuGraphLaunch, 10000, (CUgraphExec, CUstream)) \
  X(graph_destroy, cuGraphDestroy, 10000, (CUgraph)) \
  X(graph_exec_destroy, cuGraphExecDestroy, 10000, (CUgraphExec)) \
  X(h2d_async, cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream)) \
  X(d2h_async, cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream)) \
  X(copy_async, cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  X(copy_2d_async, cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *, CUstream)) \
  X(d2h, cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t)) \
  X(host_function, cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *))
/* clang-format on */

#define PROGRAM_TYPE(field, symbol, version, parameters) typedef CUresult program_##field parameters;
PROGRAM_CALLS(PROGRAM_TYPE)
#undef PROGRAM_TYPE

typedef CUresult program_look_up(const char *, void **, int, cuuint64_t, void *);

typedef struct program {
#define PROGRAM_FIELD(field, symbol, version, parameters) program_##field *field;
  PROGRAM_CALLS(PROGRAM_FIELD)
#undef PROGRAM_FIELD
} program;

/*
 * Fills the table by a look-up of the form of cuGetProcAddress_v2, which is asked for cuGetProcAddress first. `version`: of
 * the CUDA release that the program is built with, asked for where a symbol has had its prototype since before.
 * NULL, or the symbol that is not there.
 */
const char *program_resolve(program *out, program_look_up *first, int version, cuuint64_t flags);
/* cuGetProcAddress_v2 by dlopen() and dlsym(); NULL: there is no driver. */
program_look_up *program_first_look_up(void);

#endif /* LADE_TESTS_PRELOAD_PROGRAM_H */
