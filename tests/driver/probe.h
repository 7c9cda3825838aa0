/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to the CUDA driver, and what they are asked with.
 *
 *   static void fills(void) {                                       a question, in a process of its own
 *     probe_begin();                                                opens the driver, makes a context current
 *     CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
 *     probe_gate_close(stream);                                     the stream goes on at probe_gate_open
 *     CUresult code = D.cuMemsetD8Async(memory, 0, 0, stream);
 *     probe_answer("24 (c)", "%s", probe_name(code));               goes to the test, which knows the expected answer
 *   }
 *
 * The numbers of answers are those of docs/driver-behaviour.md, whose tables are what is expected.
 *
 * I1  A call that a question needs and the driver refuses ends the question (PROBE_MUST); what it had answered counts.
 * I2  Nothing here depends on how long something takes but probe_gate_open, for calls that wait on a GPU.
 * Locks: none.
 */
#ifndef LADE_TESTS_DRIVER_PROBE_H
#define LADE_TESTS_DRIVER_PROBE_H

#include <cudaTypedefs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cuda/newer_types.h"

#if CUDA_VERSION < 12050
typedef CUresult(CUDAAPI *PFN_cuCtxRecordEvent_v12050)(CUcontext context, CUevent event);
#endif

/* clang-format off */
#define PROBE_CALLS(X) \
  X(cuInit, 2000) X(cuGetErrorName, 6000) X(cuDriverGetVersion, 2020) X(cuDeviceGet, 2000) X(cuDeviceGetCount, 2000) \
  X(cuDeviceGetAttribute, 2000) X(cuDevicePrimaryCtxRetain, 7000) X(cuDevicePrimaryCtxRelease, 11000) \
  X(cuDevicePrimaryCtxGetState, 7000) X(cuCtxSetCurrent, 4000) X(cuCtxGetCurrent, 4000) X(cuCtxPopCurrent, 4000) \
  X(cuCtxCreate, 3020) X(cuCtxSynchronize, 2000) X(cuCtxGetStreamPriorityRange, 5050) X(cuCtxRecordEvent, 12050) \
  X(cuMemGetInfo, 3020) X(cuMemAlloc, 3020) X(cuMemFree, 3020) X(cuMemGetAddressRange, 3020) X(cuMemHostAlloc, 2020) \
  X(cuMemFreeHost, 2000) X(cuMemHostRegister, 6050) X(cuMemHostUnregister, 4000) X(cuMemHostGetFlags, 2030) \
  X(cuMemHostGetDevicePointer, 3020) X(cuPointerGetAttribute, 4000) X(cuPointerGetAttributes, 7000) \
  X(cuMemGetAllocationGranularity, 10020) X(cuMemAddressReserve, 10020) X(cuMemAddressFree, 10020) X(cuMemCreate, 10020) \
  X(cuMemRelease, 10020) X(cuMemMap, 10020) X(cuMemUnmap, 10020) X(cuMemSetAccess, 10020) \
  X(cuDeviceGetDefaultMemPool, 11020) X(cuDeviceGetMemPool, 11020) X(cuDeviceSetMemPool, 11020) X(cuMemPoolCreate, 11020) \
  X(cuMemPoolDestroy, 11020) X(cuMemPoolSetAccess, 11020) X(cuMemPoolGetAccess, 11020) X(cuMemPoolGetAttribute, 11020) \
  X(cuMemPoolSetAttribute, 11020) X(cuMemPoolTrimTo, 11020) X(cuMemAllocFromPoolAsync, 11020) X(cuMemAllocAsync, 11020) \
  X(cuMemFreeAsync, 11020) X(cuStreamCreate, 2000) X(cuStreamCreateWithPriority, 5050) X(cuStreamDestroy, 4000) \
  X(cuStreamGetCtx, 9020) X(cuStreamGetId, 12000) X(cuStreamGetFlags, 5050) X(cuStreamGetPriority, 5050) \
  X(cuStreamWaitEvent, 3020) X(cuStreamQuery, 2000) X(cuStreamSynchronize, 2000) X(cuStreamIsCapturing, 10000) \
  X(cuStreamBeginCapture, 10010) X(cuStreamEndCapture, 10000) X(cuStreamGetCaptureInfo, 11030) \
  X(cuStreamWriteValue32, 11070) X(cuStreamWriteValue64, 11070) X(cuStreamWaitValue32, 11070) X(cuEventCreate, 2000) \
  X(cuEventDestroy, 4000) X(cuEventRecord, 2000) X(cuEventQuery, 2000) X(cuEventSynchronize, 2000) \
  X(cuEventElapsedTime, 2000) X(cuMemcpyHtoD, 3020) X(cuMemcpyDtoH, 3020) X(cuMemcpy, 4000) X(cuMemcpyHtoDAsync, 3020) \
  X(cuMemcpyDtoHAsync, 3020) X(cuMemcpyAsync, 4000) X(cuMemcpyBatchAsync, 13000) X(cuMemsetD8Async, 3020) \
  X(cuMemsetD32Async, 3020) X(cuLaunchHostFunc, 10000) X(cuModuleLoadData, 2000) X(cuModuleUnload, 2000) \
  X(cuGraphInstantiateWithFlags, 11040) X(cuGraphExecUpdate, 12000) X(cuGraphUpload, 11010) X(cuGraphLaunch, 10000) \
  X(cuGraphDestroy, 10000) X(cuGraphExecDestroy, 10000) X(cuGraphGetNodes, 10000) X(cuUserObjectCreate, 11030) \
  X(cuUserObjectRelease, 11030) X(cuGraphRetainUserObject, 11030) X(cuIpcGetMemHandle, 4010) \
  X(cuDeviceCanAccessPeer, 4000) X(cuCtxEnablePeerAccess, 4000) X(cuCtxDisablePeerAccess, 4000) \
  X(cuMemcpyPeerAsync, 4000) X(cuMemExportToShareableHandle, 10020) X(cuMemImportFromShareableHandle, 10020)
/* clang-format on */

typedef struct probe_calls {
#define PROBE_FIELD(symbol, version) PFN_##symbol##_v##version symbol;
  PROBE_CALLS(PROBE_FIELD)
#undef PROBE_FIELD
} probe_calls;

#undef cuGetErrorName
extern probe_calls D;
extern CUdevice probe_device;
extern CUcontext probe_context;

#define PROBE_PAGE ((size_t)4096)
#define PROBE_MIB  ((size_t)1 << 20)

/* A question: its name, and what asks it. */
typedef struct probe_question {
  const char *name;
  void (*ask)(void);
} probe_question;

extern const probe_question probe_memory_questions[], probe_order_questions[], probe_capture_questions[],
    probe_graph_questions[], probe_two_device_questions[]; /* each ends with a name of NULL */

/* First in each question: opens the driver, retains the primary context of device 0 and makes it current. */
void probe_begin(void);
/* Opens the driver alone. */
void probe_open(void);

/* Says what the driver did. */
void probe_answer(const char *number, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The name of a status without CUDA_ERROR_; "SUCCESS". */
const char *probe_name(CUresult code);
const char *probe_yes(bool truth);

/* Ends the question where a call that it needs fails. */
#define PROBE_MUST(call) probe_must(call, #call)
void probe_must(CUresult code, const char *call);

/* ---- things to ask with; of the process, which ends soon ---------------------------------------------------------- */

CUstream probe_stream(unsigned flags);
CUevent probe_event(unsigned flags);
CUdeviceptr probe_memory(size_t bytes);
char *probe_pinned(size_t bytes);
/* Anonymous memory, touched. */
char *probe_pageable(size_t bytes);
CUdeviceptr probe_address(const void *pointer);
/* Memory of the default pool, synchronised. */
CUdeviceptr probe_pool_memory(size_t bytes);
/* Memory of cuMemCreate, mapped, with access. */
CUdeviceptr probe_mapped_memory(size_t bytes);
/* Whether the driver knows the address. */
bool probe_known(CUdeviceptr address);
uint64_t probe_pointer_u64(CUpointer_attribute attribute, CUdeviceptr address);

/* ---- a busy stream ------------------------------------------------------------------------------------------------ */

/* The stream's next work waits for probe_gate_open. One at a time. */
void probe_gate_close(CUstream stream);
/* Lets the stream go on. True: a call had waited for it since probe_gate_close. (Where the driver does not tell that a
 * thread waits in it, one that has not returned within a second waits.) Then waits for the device. */
bool probe_gate_open(void);

#endif /* LADE_TESTS_DRIVER_PROBE_H */
