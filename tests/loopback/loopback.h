/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver of CUDA made of software devices: what the files of tests/loopback share.
 *
 *   runtime/cuda  --cuGetProcAddress_v2-->  loop_cu...()  --ops table-->  runtime/soft ("cpu" clock)
 *
 * The entry points answer as docs/driver-behaviour.md says, with the differences of tests/driver/differences.h. What is asked there
 * of no driver they do as the driver's documentation says, and where it leaves room they are strict: every call that may need a
 * context fails without one, streams are used only under their own context.
 *
 * I1  Each row of LOOPBACK_SYMBOLS is a function loop_<symbol>_v<version> of the type PFN_<symbol>_v<version>.
 * I2  Each function begins with LOOP_ENTER, which counts the call, applies faults and checks what the row demands.
 * I3  A context is usable while its device's primary context is retained and not reset.
 * Locks: the lock of state.c guards faults, counts, contexts and violations; it is never held while calling
 * runtime/soft.
 */
#ifndef LADE_TESTS_LOOPBACK_LOOPBACK_H
#define LADE_TESTS_LOOPBACK_LOOPBACK_H

#include <cudaTypedefs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/soft.h"
#include "runtime/cuda/newer_types.h"
#include "runtime/ops.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/soft.h"

#define LOOP_EXPORT __attribute__((visibility("default")))

/* What programs call and lade does not; headers before CUDA 12.5 lack the type. */
typedef CUresult(CUDAAPI *loop_ctx_record_event)(CUcontext context, CUevent event);
#if CUDA_VERSION < 12050
typedef loop_ctx_record_event PFN_cuCtxRecordEvent_v12050;
#endif

/* The driver has the first form still, headers do not. */
typedef PFN_cuStreamDestroy_v4000 PFN_cuStreamDestroy_v2000;

/* Nodes of graphs in one struct; headers before CUDA 12.2 lack it. */
#if CUDA_VERSION < 12020
typedef struct CUDA_MEMSET_NODE_PARAMS_v2 {
  CUdeviceptr dst;
  size_t pitch;
  unsigned value, elementSize;
  size_t width, height;
  CUcontext ctx;
} CUDA_MEMSET_NODE_PARAMS_v2;
typedef struct CUgraphNodeParams {
  CUgraphNodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    CUDA_MEMSET_NODE_PARAMS_v2 memset;
    CUDA_BATCH_MEM_OP_NODE_PARAMS memOp;
  };
  long long reserved2;
} CUgraphNodeParams;
typedef CUresult(CUDAAPI *PFN_cuGraphAddNode_v12020)(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                                     size_t count, CUgraphNodeParams *parameters);
typedef CUresult(CUDAAPI *PFN_cuGraphNodeSetParams_v12020)(CUgraphNode node, CUgraphNodeParams *parameters);
typedef CUresult(CUDAAPI *PFN_cuGraphExecNodeSetParams_v12020)(CUgraphExec exec, CUgraphNode node,
                                                               CUgraphNodeParams *parameters);
#endif

/* What a row demands of the caller. */
enum {
  LOOP_ANYTIME = 0,      /* also before cuInit */
  LOOP_INIT = 1 << 0,    /* after cuInit */
  LOOP_CONTEXT = 1 << 1, /* a usable context is current; the device has not failed */
  LOOP_UNSAFE = 1 << 2,  /* a capture may forbid it, as the thread's capture mode says: row 32 (a) of the page */
};
#define LOOP_CALL      (LOOP_INIT | LOOP_CONTEXT)
#define LOOP_SAFE_MODE (LOOP_INIT | LOOP_CONTEXT | LOOP_UNSAFE)

/* clang-format off */
/* Those that lade does not call, for tests that play a program. */
#define LOOPBACK_PROGRAM_SYMBOLS(X) \
  X(cuCtxCreate, 3020, LOOP_INIT) \
  X(cuCtxDestroy, 4000, LOOP_INIT) \
  X(cuCtxRecordEvent, 12050, LOOP_INIT | LOOP_UNSAFE) \
  X(cuDeviceGetMemPool, 11020, LOOP_INIT) \
  X(cuDevicePrimaryCtxReset, 11000, LOOP_INIT) \
  X(cuDeviceSetMemPool, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuGraphAddBatchMemOpNode, 11070, LOOP_CALL) \
  X(cuGraphAddMemsetNode, 10000, LOOP_CALL) \
  X(cuGraphAddNode, 12020, LOOP_CALL) \
  X(cuGraphBatchMemOpNodeSetParams, 11070, LOOP_CALL) \
  X(cuGraphCreate, 10000, LOOP_CALL) \
  X(cuGraphExecBatchMemOpNodeSetParams, 11070, LOOP_CALL) \
  X(cuGraphExecMemsetNodeSetParams, 10020, LOOP_CALL) \
  X(cuGraphExecNodeSetParams, 12020, LOOP_CALL) \
  X(cuGraphMemsetNodeSetParams, 10000, LOOP_CALL) \
  X(cuGraphNodeSetParams, 12020, LOOP_CALL) \
  X(cuMemAllocAsync, 11020, LOOP_SAFE_MODE) \
  X(cuMemAllocHost, 3020, LOOP_SAFE_MODE) \
  X(cuMemAllocPitch, 3020, LOOP_CALL) \
  X(cuMemHostGetDevicePointer, 3020, LOOP_CALL) \
  X(cuMemHostGetFlags, 2030, LOOP_CALL) \
  X(cuMemsetD32Async, 3020, LOOP_CALL) \
  X(cuMemsetD8, 3020, LOOP_CALL) \
  X(cuPointerGetAttribute, 4000, LOOP_CALL) \
  X(cuPointerSetAttribute, 6000, LOOP_CALL) \
  X(cuStreamBatchMemOp, 11070, LOOP_CALL) \
  X(cuStreamCreate, 2000, LOOP_CALL) \
  X(cuStreamDestroy, 2000, LOOP_CALL) \
  X(cuStreamGetFlags, 5050, LOOP_CALL) \
  X(cuStreamGetPriority, 5050, LOOP_CALL) \
  X(cuStreamWaitValue32, 11070, LOOP_CALL) \
  X(cuStreamWaitValue64, 11070, LOOP_CALL)

#define LOOPBACK_SYMBOLS(X) \
  X(cuInit, 2000, LOOP_ANYTIME) \
  X(cuDriverGetVersion, 2020, LOOP_ANYTIME) \
  X(cuGetErrorName, 6000, LOOP_ANYTIME) \
  X(cuGetErrorString, 6000, LOOP_ANYTIME) \
  X(cuDeviceGetCount, 2000, LOOP_INIT) \
  X(cuDeviceGet, 2000, LOOP_INIT) \
  X(cuDeviceGetName, 2000, LOOP_INIT) \
  X(cuDeviceGetUuid, 11040, LOOP_INIT) \
  X(cuDeviceGetPCIBusId, 4010, LOOP_INIT) \
  X(cuDeviceTotalMem, 3020, LOOP_INIT) \
  X(cuDeviceGetAttribute, 2000, LOOP_INIT) \
  X(cuDeviceCanAccessPeer, 4000, LOOP_INIT) \
  X(cuDevicePrimaryCtxRetain, 7000, LOOP_INIT) \
  X(cuDevicePrimaryCtxRelease, 11000, LOOP_INIT) \
  X(cuDevicePrimaryCtxGetState, 7000, LOOP_INIT) \
  X(cuCtxGetCurrent, 4000, LOOP_INIT) \
  X(cuCtxSetCurrent, 4000, LOOP_INIT) \
  X(cuCtxPushCurrent, 4000, LOOP_INIT) \
  X(cuCtxPopCurrent, 4000, LOOP_INIT) \
  X(cuCtxGetDevice, 2000, LOOP_INIT) \
  X(cuCtxSynchronize, 2000, LOOP_CALL) \
  X(cuCtxGetStreamPriorityRange, 5050, LOOP_CALL) \
  X(cuCtxEnablePeerAccess, 4000, LOOP_SAFE_MODE) \
  X(cuCtxDisablePeerAccess, 4000, LOOP_SAFE_MODE) \
  X(cuThreadExchangeStreamCaptureMode, 10010, LOOP_INIT) \
  X(cuMemGetInfo, 3020, LOOP_CALL) \
  X(cuMemAlloc, 3020, LOOP_CALL) \
  X(cuMemFree, 3020, LOOP_CALL) \
  X(cuMemGetAddressRange, 3020, LOOP_CALL) \
  X(cuMemHostAlloc, 2020, LOOP_SAFE_MODE) \
  X(cuMemFreeHost, 2000, LOOP_SAFE_MODE) \
  X(cuMemHostRegister, 6050, LOOP_SAFE_MODE) \
  X(cuMemHostUnregister, 4000, LOOP_SAFE_MODE) \
  X(cuPointerGetAttributes, 7000, LOOP_CALL) \
  X(cuMemGetAllocationGranularity, 10020, LOOP_INIT) \
  X(cuMemAddressReserve, 10020, LOOP_INIT) \
  X(cuMemAddressFree, 10020, LOOP_INIT) \
  X(cuMemCreate, 10020, LOOP_INIT) \
  X(cuMemRelease, 10020, LOOP_INIT) \
  X(cuMemMap, 10020, LOOP_INIT) \
  X(cuMemUnmap, 10020, LOOP_INIT) \
  X(cuMemSetAccess, 10020, LOOP_INIT) \
  X(cuMemExportToShareableHandle, 10020, LOOP_INIT) \
  X(cuMemImportFromShareableHandle, 10020, LOOP_INIT) \
  X(cuDeviceGetDefaultMemPool, 11020, LOOP_INIT) \
  X(cuMemPoolCreate, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemPoolDestroy, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemPoolSetAccess, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemPoolGetAccess, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemPoolGetAttribute, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemPoolSetAttribute, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemPoolTrimTo, 11020, LOOP_INIT | LOOP_UNSAFE) \
  X(cuMemAllocFromPoolAsync, 11020, LOOP_SAFE_MODE) \
  X(cuMemFreeAsync, 11020, LOOP_SAFE_MODE) \
  X(cuStreamCreateWithPriority, 5050, LOOP_CALL) \
  X(cuStreamDestroy, 4000, LOOP_CALL) \
  X(cuStreamGetCtx, 9020, LOOP_INIT) \
  X(cuStreamGetId, 12000, LOOP_INIT) \
  X(cuStreamWaitEvent, 3020, LOOP_CALL) \
  X(cuStreamQuery, 2000, LOOP_SAFE_MODE) \
  X(cuStreamSynchronize, 2000, LOOP_SAFE_MODE) \
  X(cuStreamIsCapturing, 10000, LOOP_INIT) \
  X(cuStreamGetCaptureInfo, 11030, LOOP_CALL) \
  X(cuStreamBeginCapture, 10010, LOOP_CALL) \
  X(cuStreamEndCapture, 10000, LOOP_CALL) \
  X(cuStreamWriteValue32, 11070, LOOP_CALL) \
  X(cuStreamWriteValue64, 11070, LOOP_CALL) \
  X(cuEventCreate, 2000, LOOP_CALL) \
  X(cuEventDestroy, 4000, LOOP_CALL) \
  X(cuEventRecord, 2000, LOOP_CALL) \
  X(cuEventQuery, 2000, LOOP_SAFE_MODE) \
  X(cuEventSynchronize, 2000, LOOP_SAFE_MODE) \
  X(cuEventElapsedTime, 2000, LOOP_CALL) \
  X(cuMemcpyHtoD, 3020, LOOP_CALL) \
  X(cuMemcpyDtoH, 3020, LOOP_CALL) \
  X(cuMemcpy, 4000, LOOP_CALL) \
  X(cuMemcpyHtoDAsync, 3020, LOOP_CALL) \
  X(cuMemcpyDtoHAsync, 3020, LOOP_CALL) \
  X(cuMemcpyAsync, 4000, LOOP_CALL) \
  X(cuMemcpyPeerAsync, 4000, LOOP_CALL) \
  X(cuMemcpy2DAsync, 3020, LOOP_CALL) \
  X(cuMemcpyBatchAsync, 12080, LOOP_CALL) \
  X(cuMemcpyBatchAsync, 13000, LOOP_CALL) \
  X(cuMemsetD8Async, 3020, LOOP_CALL) \
  X(cuLaunchHostFunc, 10000, LOOP_CALL) \
  X(cuModuleLoadData, 2000, LOOP_CALL) \
  X(cuModuleUnload, 2000, LOOP_SAFE_MODE) \
  X(cuModuleGetFunction, 2000, LOOP_CALL) \
  X(cuLaunchKernel, 4000, LOOP_CALL) \
  X(cuGraphInstantiateWithFlags, 11040, LOOP_CALL) \
  X(cuGraphInstantiateWithParams, 12000, LOOP_CALL) \
  X(cuGraphExecUpdate, 12000, LOOP_CALL) \
  X(cuGraphUpload, 11010, LOOP_CALL) \
  X(cuGraphGetNodes, 10000, LOOP_CALL) \
  X(cuGraphGetEdges, 10000, LOOP_CALL) \
  X(cuGraphNodeGetType, 10000, LOOP_CALL) \
  X(cuGraphNodeGetDependencies, 10000, LOOP_CALL) \
  X(cuDeviceGetGraphMemAttribute, 11040, LOOP_INIT) \
  X(cuDeviceGraphMemTrim, 11040, LOOP_INIT) \
  X(cuGraphLaunch, 10000, LOOP_CALL) \
  X(cuGraphDestroy, 10000, LOOP_CALL) \
  X(cuGraphExecDestroy, 10000, LOOP_CALL) \
  X(cuUserObjectCreate, 11030, LOOP_CALL) \
  X(cuUserObjectRelease, 11030, LOOP_CALL) \
  X(cuGraphRetainUserObject, 11030, LOOP_CALL) \
  X(cuIpcGetMemHandle, 4010, LOOP_CALL) \
  X(cuIpcOpenMemHandle, 11000, LOOP_SAFE_MODE) \
  X(cuIpcCloseMemHandle, 4010, LOOP_SAFE_MODE) \
  LOOPBACK_PROGRAM_SYMBOLS(X)

/*
 * Prototypes of other versions than lade was written for: found by cuGetProcAddress when asked for by number, and a
 * violation when called.
 */
#define LOOPBACK_OTHER_VERSIONS(X) \
  X(cuMemAlloc, 2000) \
  X(cuMemFree, 2000) \
  X(cuMemGetInfo, 2000) \
  X(cuStreamGetCaptureInfo, 10010) \
  X(cuStreamGetCaptureInfo, 12030) \
  X(cuStreamGetCtx, 12050) \
  X(cuStreamBatchMemOp, 8000) \
  X(cuStreamBeginCapture, 10000) \
  X(cuStreamWaitValue32, 8000) \
  X(cuStreamWaitValue64, 9000) \
  X(cuStreamWriteValue32, 8000) \
  X(cuStreamWriteValue64, 9000) \
  X(cuDeviceGetUuid, 9020) \
  X(cuDevicePrimaryCtxRelease, 7000) \
  X(cuIpcOpenMemHandle, 4010) \
  X(cuMemHostRegister, 4000) \
  X(cuEventElapsedTime, 12080) \
  X(cuGraphExecUpdate, 10020) \
  X(cuGraphGetEdges, 12030) \
  X(cuGraphNodeGetDependencies, 12030) \
  X(cuCtxGetDevice, 13000) \
  X(cuCtxSynchronize, 13000) \
  X(cuMemHostGetFlags, 13000)
/* clang-format on */

/*
 * Functions in which a stream of NULL is the thread's own, for programs that are built so (_ptsz), from version 7000 on.
 *   X(symbol, version of the row, (parameters), (arguments, `own` for the stream))
 */
/* clang-format off */
#define LOOPBACK_PER_THREAD(X) \
  X(cuMemAllocAsync, 11020, (CUdeviceptr *out, size_t bytes, CUstream stream), (out, bytes, own)) \
  X(cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream), (address, own)) \
  X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream), (dst, src, bytes, own)) \
  X(cuMemcpyDtoHAsync, 3020, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), (dst, src, bytes, own)) \
  X(cuMemcpyAsync, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), (dst, src, bytes, own)) \
  X(cuStreamSynchronize, 2000, (CUstream stream), (own)) \
  X(cuStreamBeginCapture, 10010, (CUstream stream, CUstreamCaptureMode mode), (own, mode)) \
  X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph *out), (own, out)) \
  X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags), (own, event, flags)) \
  X(cuEventRecord, 2000, (CUevent event, CUstream stream), (event, own)) \
  X(cuStreamWriteValue32, 11070, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags), \
    (own, address, value, flags)) \
  X(cuStreamWriteValue64, 11070, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags), \
    (own, address, value, flags)) \
  X(cuStreamWaitValue32, 11070, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags), \
    (own, address, value, flags)) \
  X(cuStreamWaitValue64, 11070, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags), \
    (own, address, value, flags)) \
  X(cuStreamBatchMemOp, 11070, (CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags), \
    (own, count, ops, flags)) \
  X(cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn function, void *user), (own, function, user))
/* clang-format on */

/* The functions, with the types of their rows. */
#define LOOP_DECLARE(symbol, version, demands) __typeof__(*(PFN_##symbol##_v##version)0) loop_##symbol##_v##version;
LOOPBACK_SYMBOLS(LOOP_DECLARE)
#undef LOOP_DECLARE

typedef enum loop_row {
#define LOOP_ENUMERATE(symbol, version, demands) LOOP_ROW_##symbol##_v##version,
  LOOPBACK_SYMBOLS(LOOP_ENUMERATE)
#undef LOOP_ENUMERATE
      LOOP_ROW_COUNT
} loop_row;

/* What of a row is data. */
typedef struct loop_row_info {
  const char *symbol;
  int version;
  int demands;
} loop_row_info;
extern const loop_row_info loop_rows[LOOP_ROW_COUNT];

#define LOOP_ENTER(symbol, version)                                                                                    \
  do {                                                                                                                 \
    CUresult loop_entered = loop_enter(LOOP_ROW_##symbol##_v##version);                                                \
    if (loop_entered != CUDA_SUCCESS) return loop_entered;                                                             \
  } while (0)

/* ---- state.c ----------------------------------------------------------------------------------------------------- */

enum { LOOP_MAX_DEVICES = 8 };

/* A device's primary context; its address is the CUcontext. */
typedef struct loop_context {
  int device;
  unsigned retained;                     /* references of the program; 0: not alive */
  unsigned created;                      /* times it came to life */
  bool reset;                            /* destroyed under its users */
  _Atomic(bool) peers[LOOP_MAX_DEVICES]; /* whose memory it may use */
} loop_context;

CUresult loop_enter(loop_row row);
void loop_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether a test plays a program: what lade promises of its own look-ups and of memory is not asked of it. */
bool loop_plays_program(void);

/* Streams that are alive, with what each was made with. */
typedef struct loop_stream_made {
  const loop_context *context;
  int device, priority;
  unsigned flags;
} loop_stream_made;
void loop_stream_note(CUstream stream, const loop_stream_made *made);
bool loop_stream_find(CUstream stream, loop_stream_made *out);
void loop_stream_forget(CUstream stream);
size_t loop_streams_of(int device, CUstream *streams, size_t room);
/* Events that are alive, with the context of each: they end with it, where a test plays a program. */
void loop_event_note(CUevent event, const loop_context *context);
/* Whether the program has made contexts of its own: else events and streams of a device have one. */
bool loop_contexts_made(void);
/* NULL: not known. */
const loop_context *loop_event_context(CUevent event);
/* A program's context has ended, and with it the driver's pinned memory. */
void loop_pinned_end(const loop_context *context);
void loop_event_forget(CUevent event);
/* Waits for the work of all streams of the device that do not capture. */
void loop_streams_wait(int device);

/* The software devices; NULL before cuInit. */
const lade_runtime_ops *loop_ops(void);
void *loop_self(void);
int loop_device_count(void);
int loop_driver_version(void);

/* Opens the software devices, on first use. */
CUresult loop_start(void);

/* Current context of the calling thread; NULL: none. */
loop_context *loop_current(void);
/* Context behind a handle, NULL if it is none. */
loop_context *loop_context_find(CUcontext handle);
loop_context *loop_context_of_device(int device);
static inline CUcontext loop_context_handle(loop_context *context) { return (CUcontext)(void *)context; }
bool loop_context_usable(const loop_context *context);

/* Pinned allocations of fewer bytes do not begin on a page. */
size_t loop_misaligned_below(void);

/* The handle of the stream that `handle` names: another one where it was used again. */
CUstream loop_recycled(CUstream handle);
/* What the driver says of memory that graphs allocate, by CUgraphMem_attribute; on all devices the same. */
uint64_t loop_graph_memory(int attribute);
/* Whether a test has said the attribute. */
bool loop_attribute(int attribute, int *out);
void loop_graph_memory_trim(void);

/* What cuGetProcAddress knows: hidden symbols, versions asked. */
bool loop_symbol_hidden(const char *symbol);
void loop_symbol_asked(const char *symbol, int version);

/* ---- graph_calls.c ----------------------------------------------------------------------------------------------- */

void loop_made_graphs_reset(void);
/* Of graphs that were made by hand. False: it is none. */
bool loop_made_graph_destroy(CUgraph graph);
bool loop_made_graph_instantiate(CUgraph graph, CUgraphExec *out, CUresult *out_code);
/* An instance is about to go, of whatever graph. */
void loop_made_exec_destroyed(CUgraphExec exec);

/* ---- Translating the other way ----------------------------------------------------------------------------------- */

/* The code for a status of runtime/soft: its record's native code, which is CUDA's own number, where there is one. */
CUresult loop_code(lade_status status);

/* A stream argument: special handles in the calling thread's current context, others under their own. */
CUresult loop_stream(CUstream handle, ladei_stream *out);
/* Without the demand that the stream's context be current, for calls that only ask. */
CUresult loop_stream_any(CUstream handle, ladei_stream *out);

static inline void *loop_pointer(CUdeviceptr address) { return (void *)(uintptr_t)address; }
static inline CUdeviceptr loop_address(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

#endif /* LADE_TESTS_LOOPBACK_LOOPBACK_H */
