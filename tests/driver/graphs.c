/* SPDX-License-Identifier: Apache-2.0 */
/* Questions on graphs: what waits, what an update takes, when user objects end. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "tests/driver/probe.h"

#define ANSWER_CODE(number, call) probe_answer(number, "%s", probe_name(call))
#define ANSWER_YES(number, truth) probe_answer(number, "%s", probe_yes(truth))

static CUstream capturing;

static void capture_begin(void) {
  if (capturing == NULL) capturing = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUgraph capture_end(void) {
  CUgraph graph = NULL;
  PROBE_MUST(D.cuStreamEndCapture(capturing, &graph));
  return graph;
}

static CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec = NULL;
  PROBE_MUST(D.cuGraphInstantiateWithFlags(&exec, graph, 0));
  return exec;
}

static CUgraph graph_of_fill(CUdeviceptr memory, size_t bytes) {
  capture_begin();
  PROBE_MUST(D.cuMemsetD8Async(memory, 1, bytes, capturing));
  return capture_end();
}

static CUgraph graph_of_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  capture_begin();
  PROBE_MUST(D.cuMemcpyAsync(to, from, bytes, capturing));
  return capture_end();
}

/* Of the calls that name the direction. */
static CUgraph graph_to_device(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  capture_begin();
  PROBE_MUST(D.cuMemcpyHtoDAsync(to, (void *)(uintptr_t)from, bytes, capturing));
  return capture_end();
}

static CUgraph graph_to_host(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  capture_begin();
  PROBE_MUST(D.cuMemcpyDtoHAsync((void *)(uintptr_t)to, from, bytes, capturing));
  return capture_end();
}

/* ---- what waits ----------------------------------------------------------------------------------------------------- */

static void graph_waits(void) {
  probe_begin();
  CUstream busy = probe_stream(CU_STREAM_NON_BLOCKING), idle = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr memory = probe_memory(PROBE_MIB);
  CUgraph graph = graph_of_fill(memory, 64), other = graph_of_fill(memory, 64), made = graph_of_fill(memory, 64);
  CUgraphExec exec = instantiate(graph), other_exec = instantiate(other), made_exec = NULL;
  CUgraphExecUpdateResultInfo result;
#define BESIDE_A_LAUNCH(number, call)                                                                                  \
  do {                                                                                                                 \
    probe_gate_close(busy);                                                                                            \
    PROBE_MUST(D.cuGraphLaunch(exec, busy));                                                                           \
    PROBE_MUST(call);                                                                                                  \
    ANSWER_YES(number, probe_gate_open());                                                                             \
  } while (0)
  BESIDE_A_LAUNCH("22 (a)", D.cuGraphInstantiateWithFlags(&made_exec, made, 0));
  BESIDE_A_LAUNCH("22 (b)", D.cuGraphUpload(other_exec, idle));
  BESIDE_A_LAUNCH("22 (c)", D.cuGraphLaunch(exec, idle));
  BESIDE_A_LAUNCH("22 (d)", D.cuGraphExecUpdate(exec, other, &result));
  BESIDE_A_LAUNCH("22 (e)", D.cuGraphDestroy(graph));
  BESIDE_A_LAUNCH("22 (f)", D.cuGraphExecDestroy(exec));
#undef BESIDE_A_LAUNCH
}

/* ---- updates -------------------------------------------------------------------------------------------------------- */

static const char *update_name(CUgraphExecUpdateResult result) {
  switch ((int)result) {
  case CU_GRAPH_EXEC_UPDATE_SUCCESS: return "SUCCESS";
  case CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED: return "TOPOLOGY_CHANGED";
  case CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED: return "NODE_TYPE_CHANGED";
  case CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED: return "PARAMETERS_CHANGED";
  case CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED: return "NOT_SUPPORTED";
  default: return "ERROR";
  }
}

/* Of an exec of one graph from another; both go. */
static void update_answer(const char *number, CUgraph from, CUgraph to) {
  CUgraphExec exec = instantiate(from);
  CUgraphExecUpdateResultInfo result = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  (void)D.cuGraphExecUpdate(exec, to, &result);
  probe_answer(number, "%s", update_name(result.result));
  PROBE_MUST(D.cuGraphExecDestroy(exec));
  PROBE_MUST(D.cuGraphDestroy(from));
  PROBE_MUST(D.cuGraphDestroy(to));
}

static void updates_of_copies(void) {
  probe_begin();
  enum { BYTES = 4096 };
  CUdeviceptr plain = probe_memory(PROBE_MIB), plain_too = probe_memory(PROBE_MIB);
  CUdeviceptr mapped = probe_mapped_memory(2 * PROBE_MIB), mapped_too = probe_mapped_memory(2 * PROBE_MIB);
  CUdeviceptr pool = probe_pool_memory(PROBE_MIB), pool_too = probe_pool_memory(PROBE_MIB);
  CUdeviceptr pinned = probe_address(probe_pinned(PROBE_MIB)), pinned_too = probe_address(probe_pinned(PROBE_MIB));
  CUdeviceptr pageable = probe_address(probe_pageable(PROBE_MIB));
  char *memory = probe_pageable(PROBE_MIB);
  PROBE_MUST(D.cuMemHostRegister(memory, PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE));
  CUdeviceptr registered = probe_address(memory);
#define COPY(to, from)      graph_of_copy(to, from, BYTES)
#define TO_DEVICE(to, from) graph_to_device(to, from, BYTES)
  update_answer("35 (a)", TO_DEVICE(plain, pinned), graph_to_device(plain, pinned, 2 * (size_t)BYTES));
  update_answer("35 (b)", TO_DEVICE(plain, pinned), TO_DEVICE(plain, pageable));
  update_answer("35 (c)", TO_DEVICE(plain, pinned), TO_DEVICE(pool, pinned));
  update_answer("35 (d)", TO_DEVICE(plain, pinned), graph_to_host(pinned, plain, BYTES));
  update_answer("35 (e)", TO_DEVICE(plain, pinned), COPY(plain, plain_too));
  update_answer("X15 (a)", COPY(plain, pinned), COPY(pinned, plain));
  update_answer("X15 (b)", COPY(plain, pinned), COPY(plain, plain_too));
  update_answer("X15 (c)", COPY(plain, pinned), TO_DEVICE(plain, pageable));
  update_answer("X8 (a)", COPY(plain, pinned), COPY(mapped, pinned));
  update_answer("X8 (b)", COPY(mapped, pinned), COPY(plain, pinned));
  update_answer("X8 (c)", COPY(mapped, pinned), COPY(mapped_too, pinned));
  update_answer("X8 (d)", COPY(pool, pinned), COPY(pool_too, pinned));
  update_answer("X8 (e)", COPY(pool, pinned), COPY(mapped, pinned));
  update_answer("X8 (f)", COPY(plain, pinned), COPY(plain, registered));
  update_answer("X8 (g)", COPY(pinned, pinned_too), COPY(plain, plain_too));
#undef TO_DEVICE
#undef COPY
}

static CUgraph graph_of_value(CUdeviceptr memory, bool wide) {
  capture_begin();
  PROBE_MUST(wide ? D.cuStreamWriteValue64(capturing, memory, 1, 0) : D.cuStreamWriteValue32(capturing, memory, 1, 0));
  return capture_end();
}

static CUgraph graph_of_words(CUdeviceptr memory, size_t count) {
  capture_begin();
  PROBE_MUST(D.cuMemsetD32Async(memory, 1, count, capturing));
  return capture_end();
}

static void CUDA_CB nothing(void *unused) { (void)unused; }
static void CUDA_CB nothing_too(void *unused) { (void)unused; }

static CUgraph graph_of_function(CUhostFn function, void *user) {
  capture_begin();
  PROBE_MUST(D.cuLaunchHostFunc(capturing, function, user));
  return capture_end();
}

static void updates_of_others(void) {
  probe_begin();
  CUdeviceptr plain = probe_memory(PROBE_MIB), plain_too = probe_memory(PROBE_MIB);
  CUdeviceptr mapped = probe_mapped_memory(2 * PROBE_MIB), pool = probe_pool_memory(PROBE_MIB);
  update_answer("35 (f)", graph_of_fill(plain, 1024), graph_of_fill(plain, 2048));
  update_answer("35 (g)", graph_of_fill(plain, 1024), graph_of_words(plain, 256));
  update_answer("35 (h)", graph_of_fill(plain, 1024), graph_of_fill(plain_too, 1024));
  update_answer("35 (i)", graph_of_function(nothing, NULL), graph_of_function(nothing_too, &plain));
  update_answer("X8 (h)", graph_of_fill(plain, 1024), graph_of_fill(mapped, 1024));
  update_answer("X8 (i)", graph_of_fill(plain, 1024), graph_of_fill(pool, 1024));
  update_answer("X8 (j)", graph_of_value(plain, false), graph_of_value(plain, true));
}

/* ---- user objects --------------------------------------------------------------------------------------------------- */

/* The end of one: in which thread, and whether it has come. */
static struct {
  _Atomic(bool) came;
  pthread_t thread;
} end;

static void CUDA_CB destructor(void *unused) {
  (void)unused;
  end.thread = pthread_self();
  atomic_store(&end.came, true);
}

static CUgraph graph_with_object(void) {
  CUuserObject object = NULL;
  CUgraph graph = graph_of_fill(probe_memory(64), 64);
  atomic_store(&end.came, false);
  PROBE_MUST(D.cuUserObjectCreate(&object, NULL, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  PROBE_MUST(D.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  return graph;
}

/* After the call that drops the last reference. */
static void end_answer(const char *number) {
  bool at_once = atomic_load(&end.came);
  while (!atomic_load(&end.came)) nanosleep(&(struct timespec){0, 100000}, NULL);
  bool own = pthread_equal(end.thread, pthread_self()) != 0;
  probe_answer(number, "%s",
               own ? (at_once ? "within the call, its thread" : "later, its thread") : "a thread of the driver");
}

static void user_objects(void) {
  probe_begin();
  CUuserObject object = NULL;
  CUgraphExecUpdateResultInfo result;
  CUgraph graph = NULL;
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuUserObjectCreate(&object, NULL, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  PROBE_MUST(D.cuUserObjectRelease(object, 1));
  end_answer("X10 (a)");
  PROBE_MUST(D.cuGraphDestroy(graph_with_object()));
  end_answer("X10 (b)");
  graph = graph_with_object();
  CUgraphExec exec = instantiate(graph);
  PROBE_MUST(D.cuGraphDestroy(graph));
  PROBE_MUST(D.cuGraphExecDestroy(exec));
  end_answer("X10 (c)");
  graph = graph_with_object();
  exec = instantiate(graph);
  PROBE_MUST(D.cuGraphDestroy(graph));
  PROBE_MUST(D.cuGraphExecUpdate(exec, graph_of_fill(probe_memory(64), 64), &result));
  end_answer("X10 (d)");
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  const CUgraphNode *nodes = NULL;
  size_t count = 0;
  atomic_store(&end.came, false);
  PROBE_MUST(D.cuUserObjectCreate(&object, NULL, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  capture_begin();
  PROBE_MUST(D.cuStreamGetCaptureInfo(capturing, &status, &id, &graph, &nodes, &count));
  PROBE_MUST(D.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  (void)D.cuStreamQuery(capturing);
  (void)D.cuStreamEndCapture(capturing, &graph);
  end_answer("X10 (e)");
  graph = graph_with_object();
  exec = instantiate(graph);
  PROBE_MUST(D.cuGraphDestroy(graph));
  PROBE_MUST(D.cuGraphLaunch(exec, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  PROBE_MUST(D.cuGraphExecDestroy(exec));
  end_answer("X10 (f)");
}

const probe_question probe_graph_questions[] = {{"graph_waits", graph_waits},
                                                {"updates_of_copies", updates_of_copies},
                                                {"updates_of_others", updates_of_others},
                                                {"user_objects", user_objects},
                                                {NULL, NULL}};
