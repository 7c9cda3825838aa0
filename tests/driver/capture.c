/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions on captures: which call fails while a stream captures, and which capture it takes along.
 *
 * A row is a call; for each, a capture begins, the call is made, the capture's status is asked, the capture ends.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/probe.h"

#define ANSWER_CODE(number, call) probe_answer(number, "%s", probe_name(call))

/* What the calls are made with. */
static struct {
  CUstream captured, idle, extra;
  CUevent done, timed, fresh;
  CUdeviceptr memory, spare, pool_memory, reserved, made;
  char *pinned, *pageable, *registered;
  CUmemoryPool pool, default_pool;
  CUgraph graph;
  CUgraphExec exec, spare_exec;
  CUmodule module;
  CUuserObject object;
  CUmemGenericAllocationHandle handle;
} t;

static void CUDA_CB nothing(void *unused) { (void)unused; }

static const char source[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
static const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static CUgraph graph_of_a_fill(void) {
  CUgraph graph = NULL;
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  PROBE_MUST(D.cuMemsetD8Async(t.memory, 1, 64, stream));
  PROBE_MUST(D.cuStreamEndCapture(stream, &graph));
  return graph;
}

static void things_make(void) {
  t.captured = probe_stream(CU_STREAM_NON_BLOCKING);
  t.idle = probe_stream(CU_STREAM_NON_BLOCKING);
  t.extra = probe_stream(CU_STREAM_NON_BLOCKING);
  t.done = probe_event(CU_EVENT_DISABLE_TIMING);
  t.timed = probe_event(CU_EVENT_DEFAULT);
  t.fresh = probe_event(CU_EVENT_DISABLE_TIMING);
  t.memory = probe_memory(PROBE_MIB);
  t.spare = probe_memory(PROBE_MIB);
  t.pool_memory = probe_pool_memory(PROBE_MIB);
  t.pinned = probe_pinned(PROBE_MIB);
  t.pageable = probe_pageable(PROBE_MIB);
  t.registered = probe_pageable(PROBE_MIB);
  PROBE_MUST(D.cuMemHostRegister(t.registered, PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE));
  PROBE_MUST(D.cuDeviceGetDefaultMemPool(&t.default_pool, probe_device));
  PROBE_MUST(D.cuMemPoolCreate(&t.pool, &pool_properties));
  PROBE_MUST(D.cuMemAddressReserve(&t.reserved, 2 * PROBE_MIB, 0, 0, 0));
  PROBE_MUST(D.cuMemCreate(&t.handle, 2 * PROBE_MIB, &properties, 0));
  PROBE_MUST(D.cuModuleLoadData(&t.module, source));
  PROBE_MUST(D.cuUserObjectCreate(&t.object, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  t.graph = graph_of_a_fill();
  PROBE_MUST(D.cuGraphInstantiateWithFlags(&t.exec, t.graph, 0));
  PROBE_MUST(D.cuGraphInstantiateWithFlags(&t.spare_exec, t.graph, 0));
  PROBE_MUST(D.cuEventRecord(t.done, t.idle));
  PROBE_MUST(D.cuEventRecord(t.timed, t.idle));
  PROBE_MUST(D.cuCtxSynchronize());
}

/* X(name, call). The order matters where one call uses what another has made or ends. */
#define CALLS_BESIDE(X)                                                                                                \
  X(cuMemGetInfo, (D.cuMemGetInfo(&size, &more)))                                                                      \
  X(cuPointerGetAttribute, (D.cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t.memory)))             \
  X(cuIpcGetMemHandle, (D.cuIpcGetMemHandle(&ipc, t.memory)))                                                          \
  X(cuDevicePrimaryCtxRetain, (D.cuDevicePrimaryCtxRetain(&context, probe_device)))                                    \
  X(cuDevicePrimaryCtxRelease, (D.cuDevicePrimaryCtxRelease(probe_device)))                                            \
  X(cuDeviceGetDefaultMemPool, (D.cuDeviceGetDefaultMemPool(&pool, probe_device)))                                     \
  X(cuDeviceGetMemPool, (D.cuDeviceGetMemPool(&pool, probe_device)))                                                   \
  X(cuMemMap, (D.cuMemMap(t.reserved, 2 * PROBE_MIB, 0, t.handle, 0)))                                                 \
  X(cuMemSetAccess, (D.cuMemSetAccess(t.reserved, 2 * PROBE_MIB, &access, 1)))                                         \
  X(cuMemUnmap, (D.cuMemUnmap(t.reserved, 2 * PROBE_MIB)))                                                             \
  X(cuMemRelease, (D.cuMemRelease(t.handle)))                                                                          \
  X(cuMemCreate, (D.cuMemCreate(&t.handle, 2 * PROBE_MIB, &properties, 0)))                                            \
  X(cuMemAddressFree, (D.cuMemAddressFree(t.reserved, 2 * PROBE_MIB)))                                                 \
  X(cuMemAddressReserve, (D.cuMemAddressReserve(&t.reserved, 2 * PROBE_MIB, 0, 0, 0)))                                 \
  X(cuStreamCreate, (D.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)))                                               \
  X(cuStreamDestroy, (D.cuStreamDestroy(t.extra)))                                                                     \
  X(cuEventCreate, (D.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)))                                                 \
  X(cuEventRecord, (D.cuEventRecord(t.fresh, t.idle)))                                                                 \
  X(cuEventDestroy, (D.cuEventDestroy(t.fresh)))                                                                       \
  X(cuEventElapsedTime, (D.cuEventElapsedTime(&ms, t.timed, t.timed)))                                                 \
  X(cuMemcpyHtoDAsync, (D.cuMemcpyHtoDAsync(t.memory, t.pinned, 64, t.idle)))                                          \
  X(cuMemcpyHtoD, (D.cuMemcpyHtoD(t.memory, t.pinned, 64)))                                                            \
  X(cuMemcpyDtoH, (D.cuMemcpyDtoH(t.pinned, t.memory, 64)))                                                            \
  X(cuMemsetD8Async, (D.cuMemsetD8Async(t.memory, 0, 64, t.idle)))                                                     \
  X(cuLaunchHostFunc, (D.cuLaunchHostFunc(t.idle, nothing, NULL)))                                                     \
  X(cuGraphLaunch, (D.cuGraphLaunch(t.exec, t.idle)))                                                                  \
  X(cuGraphExecUpdate, (D.cuGraphExecUpdate(t.exec, t.graph, &update)))                                                \
  X(cuGraphUpload, (D.cuGraphUpload(t.exec, t.idle)))                                                                  \
  X(cuGraphGetNodes, (D.cuGraphGetNodes(t.graph, NULL, &size)))                                                        \
  X(cuUserObjectRelease, (D.cuUserObjectRelease(t.object, 1)))                                                         \
  X(cuUserObjectCreate, (D.cuUserObjectCreate(&object, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)))          \
  X(cuModuleLoadData, (D.cuModuleLoadData(&module, source)))                                                           \
  X(cuModuleUnload, (D.cuModuleUnload(t.module)))                                                                      \
  X(cuEventQuery, (D.cuEventQuery(t.done)))                                                                            \
  X(cuEventSynchronize, (D.cuEventSynchronize(t.done)))                                                                \
  X(cuStreamQuery, (D.cuStreamQuery(t.idle)))                                                                          \
  X(cuStreamSynchronize, (D.cuStreamSynchronize(t.idle)))                                                              \
  X(cuCtxSynchronize, (D.cuCtxSynchronize()))                                                                          \
  X(cuCtxRecordEvent, (D.cuCtxRecordEvent(probe_context, t.done)))                                                     \
  X(cuMemAlloc, (D.cuMemAlloc(&address, PROBE_MIB)))                                                                   \
  X(cuMemFree, (D.cuMemFree(t.spare)))                                                                                 \
  X(cuMemHostAlloc, (D.cuMemHostAlloc(&pinned, PROBE_MIB, CU_MEMHOSTALLOC_PORTABLE)))                                  \
  X(cuMemFreeHost, (D.cuMemFreeHost(t.pinned)))                                                                        \
  X(cuMemHostRegister, (D.cuMemHostRegister(t.pageable, PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE)))                      \
  X(cuMemHostUnregister, (D.cuMemHostUnregister(t.registered)))                                                        \
  X(cuDeviceSetMemPool, (D.cuDeviceSetMemPool(probe_device, t.default_pool)))                                          \
  X(cuMemPoolCreate, (D.cuMemPoolCreate(&pool, &pool_properties)))                                                     \
  X(cuMemPoolSetAccess, (D.cuMemPoolSetAccess(t.pool, &access, 1)))                                                    \
  X(cuMemPoolGetAccess, (D.cuMemPoolGetAccess(&flags, t.pool, &location)))                                             \
  X(cuMemPoolGetAttribute, (D.cuMemPoolGetAttribute(t.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value)))                \
  X(cuMemPoolSetAttribute, (D.cuMemPoolSetAttribute(t.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value)))               \
  X(cuMemPoolTrimTo, (D.cuMemPoolTrimTo(t.pool, 0)))                                                                   \
  X(cuMemAllocAsync, (D.cuMemAllocAsync(&address, PROBE_MIB, t.idle)))                                                 \
  X(cuMemAllocFromPoolAsync, (D.cuMemAllocFromPoolAsync(&address, PROBE_MIB, t.pool, t.idle)))                         \
  X(cuMemFreeAsync, (D.cuMemFreeAsync(t.pool_memory, t.idle)))                                                         \
  X(cuMemPoolDestroy, (D.cuMemPoolDestroy(t.pool)))                                                                    \
  X(cuGraphInstantiateWithFlags, (D.cuGraphInstantiateWithFlags(&exec, t.graph, 0)))                                   \
  X(cuGraphExecDestroy, (D.cuGraphExecDestroy(t.spare_exec)))

/* On the capturing stream, or beside it, while it captures in the relaxed mode. */
#define CALLS_RELAXED(X)                                                                                               \
  X(cuStreamGetId, (D.cuStreamGetId(t.captured, &id)))                                                                 \
  X(cuStreamGetCtx, (D.cuStreamGetCtx(t.captured, &context)))                                                          \
  X(cuStreamGetFlags, (D.cuStreamGetFlags(t.captured, &number)))                                                       \
  X(cuStreamGetPriority, (D.cuStreamGetPriority(t.captured, &priority)))                                               \
  X(cuStreamQuery, (D.cuStreamQuery(t.captured)))                                                                      \
  X(cuMemcpyHtoDAsync, (D.cuMemcpyHtoDAsync(t.memory, t.pageable, PROBE_MIB, t.captured)))                             \
  X(cuMemcpyDtoHAsync, (D.cuMemcpyDtoHAsync(t.pageable, t.memory, PROBE_MIB, t.captured)))                             \
  X(cuStreamWaitEvent, (D.cuStreamWaitEvent(t.captured, t.fresh, 0)))                                                  \
  X(cuMemcpyHtoD, (D.cuMemcpyHtoD(t.memory, t.pageable, 64)))                                                          \
  X(cuMemcpyDtoH, (D.cuMemcpyDtoH(t.pageable, t.memory, 64)))                                                          \
  X(cuMemAlloc, (D.cuMemAlloc(&address, PROBE_MIB)))                                                                   \
  X(cuMemFree, (D.cuMemFree(t.spare)))                                                                                 \
  X(cuMemGetInfo, (D.cuMemGetInfo(&size, &more)))                                                                      \
  X(cuMemHostAlloc, (D.cuMemHostAlloc(&pinned, PROBE_MIB, CU_MEMHOSTALLOC_PORTABLE)))                                  \
  X(cuStreamDestroy, (D.cuStreamDestroy(t.extra)))                                                                     \
  X(cuGraphExecUpdate, (D.cuGraphExecUpdate(t.exec, t.graph, &update)))                                                \
  X(cuCtxRecordEvent, (D.cuCtxRecordEvent(probe_context, t.done)))                                                     \
  X(cuCtxSynchronize, (D.cuCtxSynchronize()))                                                                          \
  X(cuGraphLaunch, (D.cuGraphLaunch(t.exec, t.captured)))

enum {
#define CALL_ENUMERATE(name, call) BESIDE_##name,
  CALLS_BESIDE(CALL_ENUMERATE)
#undef CALL_ENUMERATE
#define CALL_ENUMERATE(name, call) RELAXED_##name,
      CALLS_RELAXED(CALL_ENUMERATE)
#undef CALL_ENUMERATE
          CALL_COUNT
};

static const char *const call_names[CALL_COUNT] = {
#define CALL_NAME(name, call) #name,
    CALLS_BESIDE(CALL_NAME) CALLS_RELAXED(CALL_NAME)
#undef CALL_NAME
};

static CUresult call_make(int which) {
  size_t size = 0, more = 0;
  unsigned number = 0;
  int priority = 0;
  float ms = 0;
  cuuint64_t value = 0;
  unsigned long long id = 0;
  void *pinned = NULL;
  CUcontext context = NULL;
  CUmemoryPool pool = NULL;
  CUstream stream = NULL;
  CUevent event = NULL;
  CUdeviceptr address = 0;
  CUgraphExec exec = NULL;
  CUmodule module = NULL;
  CUuserObject object = NULL;
  CUipcMemHandle ipc;
  CUgraphExecUpdateResultInfo update;
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  switch (which) {
#define CALL_CASE(name, call)                                                                                          \
  case BESIDE_##name: return call;
    CALLS_BESIDE(CALL_CASE)
#undef CALL_CASE
#define CALL_CASE(name, call)                                                                                          \
  case RELAXED_##name: return call;
    CALLS_RELAXED(CALL_CASE)
#undef CALL_CASE
  default: return CUDA_ERROR_UNKNOWN;
  }
}

/* Names of calls, one after another, by what came of them. */
typedef struct names {
  char allowed[1600], forbidden[1600], other[1600];
} names;

static void name_add(char *list, size_t room, const char *name) {
  size_t used = strlen(list);
  snprintf(list + used, room - used, "%s%s", used == 0 ? "" : ", ", name);
}

static void outcome_add(names *out, int which, CUresult code, CUstreamCaptureStatus status) {
  bool active = status == CU_STREAM_CAPTURE_STATUS_ACTIVE, invalid = status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (code == CUDA_SUCCESS && active)
    name_add(out->allowed, sizeof out->allowed, call_names[which]);
  else if (code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && invalid)
    name_add(out->forbidden, sizeof out->forbidden, call_names[which]);
  else {
    char text[128];
    snprintf(text, sizeof text, "%s: %s, %s", call_names[which], probe_name(code), active ? "ACTIVE" : "INVALIDATED");
    name_add(out->other, sizeof out->other, text);
  }
}

/* ---- captures of another thread ----------------------------------------------------------------------------------- */

static sem_t begin, began, finish, finished;

static void *capturing_thread(void *unused) {
  CUgraph graph = NULL;
  (void)unused;
  PROBE_MUST(D.cuCtxSetCurrent(probe_context));
  for (;;) {
    sem_wait(&begin);
    PROBE_MUST(D.cuStreamBeginCapture(t.captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    sem_post(&began);
    sem_wait(&finish);
    (void)D.cuStreamEndCapture(t.captured, &graph);
    sem_post(&finished);
  }
  return NULL;
}

static names outcomes;

static void calls_beside(void) {
  probe_begin();
  things_make();
  pthread_t thread;
  sem_t *all[] = {&begin, &began, &finish, &finished};
  for (int i = 0; i < 4; i++) sem_init(all[i], 0, 0);
  if (pthread_create(&thread, NULL, capturing_thread, NULL) != 0) exit(1);
  for (int i = 0; i < RELAXED_cuStreamGetId; i++) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    sem_post(&begin);
    sem_wait(&began);
    CUresult code = call_make(i);
    PROBE_MUST(D.cuStreamIsCapturing(t.captured, &status));
    outcome_add(&outcomes, i, code, status);
    sem_post(&finish);
    sem_wait(&finished);
  }
  probe_answer("32 (a)", "%s", outcomes.forbidden);
  probe_answer("32 (b)", "%s", outcomes.allowed);
  probe_answer("32 (c)", "%s", outcomes.other[0] == '\0' ? "none" : outcomes.other);
}

/* ---- a relaxed capture of the own thread ---------------------------------------------------------------------------- */

static void calls_relaxed(void) {
  probe_begin();
  things_make();
  for (int i = RELAXED_cuStreamGetId; i < CALL_COUNT; i++) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    PROBE_MUST(D.cuStreamBeginCapture(t.captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult code = call_make(i);
    PROBE_MUST(D.cuStreamIsCapturing(t.captured, &status));
    outcome_add(&outcomes, i, code, status);
    (void)D.cuStreamEndCapture(t.captured, &graph);
  }
  probe_answer("34 (a)", "%s", outcomes.forbidden);
  probe_answer("34 (b)", "%s", outcomes.allowed);
  probe_answer("34 (c)", "%s", outcomes.other[0] == '\0' ? "none" : outcomes.other);
}

static void memory_in_captures(void) {
  probe_begin();
  things_make();
  CUdeviceptr memory = 0;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  PROBE_MUST(D.cuStreamBeginCapture(t.captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUresult code = D.cuMemFreeAsync(t.pool_memory, t.captured);
  PROBE_MUST(D.cuStreamIsCapturing(t.captured, &status));
  probe_answer("34 (i)", "%s, %s", probe_name(code),
               status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "ACTIVE" : "INVALIDATED");
  ANSWER_CODE("34 (s)", D.cuMemAllocAsync(&memory, PROBE_MIB, t.captured));
  ANSWER_CODE("34 (j)", D.cuStreamDestroy(t.captured));
}

const probe_question probe_capture_questions[] = {{"calls_beside", calls_beside},
                                                  {"calls_relaxed", calls_relaxed},
                                                  {"memory_in_captures", memory_in_captures},
                                                  {NULL, NULL}};
