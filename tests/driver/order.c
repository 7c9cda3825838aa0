/* SPDX-License-Identifier: Apache-2.0 */
/* Questions on order: which calls wait, copies, events, streams, host functions. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/driver/probe.h"

#define ANSWER_CODE(number, call) probe_answer(number, "%s", probe_name(call))
#define ANSWER_YES(number, truth) probe_answer(number, "%s", probe_yes(truth))

/* Whether a call, which has to succeed, waits for work on a stream. */
#define ANSWER_WAITS(number, busy, call)                                                                               \
  do {                                                                                                                 \
    probe_gate_close(busy);                                                                                            \
    PROBE_MUST(call);                                                                                                  \
    ANSWER_YES(number, probe_gate_open());                                                                             \
  } while (0)

/* ---- what waits --------------------------------------------------------------------------------------------------- */

static void memory_waits(void) {
  probe_begin();
  CUstream busy = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr memory = 0;
  void *pinned = NULL, *small = probe_pinned(100);
  char *pageable = probe_pageable(PROBE_MIB);
  ANSWER_WAITS("20 (a)", busy, D.cuMemAlloc(&memory, PROBE_MIB));
  ANSWER_WAITS("20 (b)", busy, D.cuMemAlloc(&memory, 256 * PROBE_MIB));
  ANSWER_WAITS("20 (c)", busy, D.cuMemHostAlloc(&pinned, 64 * PROBE_MIB, CU_MEMHOSTALLOC_PORTABLE));
  ANSWER_WAITS("20 (d)", busy, D.cuMemFreeHost(pinned));
  ANSWER_WAITS("20 (e)", busy, D.cuMemHostRegister(pageable, PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE));
  ANSWER_WAITS("20 (f)", busy, D.cuMemHostUnregister(pageable));
  ANSWER_WAITS("20 (g)", busy, D.cuMemFreeHost(small));
}

static void object_waits(void) {
  probe_begin();
  static const char source[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device}};
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUstream busy = probe_stream(CU_STREAM_NON_BLOCKING), other = NULL;
  CUdeviceptr address = 0;
  const size_t bytes = 64 * PROBE_MIB;
  PROBE_MUST(D.cuMemAddressReserve(&address, bytes, 0, 0, 0));
  ANSWER_WAITS("21 (a)", busy, D.cuMemCreate(&handle, bytes, &properties, 0));
  ANSWER_WAITS("21 (b)", busy, D.cuMemMap(address, bytes, 0, handle, 0));
  ANSWER_WAITS("21 (c)", busy, D.cuMemSetAccess(address, bytes, &access, 1));
  ANSWER_WAITS("21 (d)", busy, D.cuMemUnmap(address, bytes));
  ANSWER_WAITS("21 (e)", busy, D.cuMemRelease(handle));
  ANSWER_WAITS("21 (f)", busy, D.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  ANSWER_WAITS("21 (g)", other, D.cuStreamDestroy(other));
  CUevent event = probe_event(CU_EVENT_DISABLE_TIMING);
  probe_gate_close(busy);
  PROBE_MUST(D.cuEventRecord(event, busy));
  PROBE_MUST(D.cuEventDestroy(event));
  ANSWER_YES("21 (h)", probe_gate_open());
  CUmodule module = NULL;
  ANSWER_WAITS("21 (i)", busy, D.cuModuleLoadData(&module, source));
  ANSWER_WAITS("21 (j)", busy, D.cuModuleUnload(module));
}

/* ---- copies ------------------------------------------------------------------------------------------------------- */

static void pageable_waits(void) {
  probe_begin();
  CUstream busy = probe_stream(CU_STREAM_NON_BLOCKING);
  char *a = probe_pageable(8 * PROBE_MIB), *b = probe_pageable(PROBE_MIB);
  CUdeviceptr memory = probe_memory(8 * PROBE_MIB);
  ANSWER_WAITS("23 (a)", busy, D.cuMemcpyHtoDAsync(memory, a, 4096, busy));
  ANSWER_WAITS("23 (b)", busy, D.cuMemcpyHtoDAsync(memory, a, 65536, busy));
  ANSWER_WAITS("23 (c)", busy, D.cuMemcpyHtoDAsync(memory, a, 65537, busy));
  ANSWER_WAITS("23 (d)", busy, D.cuMemcpyHtoDAsync(memory, a, 8 * PROBE_MIB, busy));
  ANSWER_WAITS("23 (e)", busy, D.cuMemcpyDtoHAsync(a, memory, 4, busy));
  ANSWER_WAITS("23 (f)", busy, D.cuMemcpyAsync(probe_address(a), probe_address(b), PROBE_MIB, busy));
}

static CUresult batch_of(size_t count, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, CUstream stream) {
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t first = 0;
  return D.cuMemcpyBatchAsync(to, from, sizes, count, &attributes, &first, 1, stream);
}

static CUresult batch_of_one(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return batch_of(1, &to, &from, &bytes, stream);
}

static void host_copies(void) {
  probe_begin();
  CUstream busy = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr a = probe_address(probe_pinned(PROBE_MIB)), b = probe_address(probe_pinned(PROBE_MIB));
  char *c = probe_pageable(PROBE_MIB), *d = probe_pageable(PROBE_MIB);
  PROBE_MUST(D.cuMemHostRegister(c, PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE));
  PROBE_MUST(D.cuMemHostRegister(d, PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE));
  ANSWER_WAITS("23 (g)", busy, D.cuMemcpyAsync(a, b, PROBE_MIB, busy));
  ANSWER_WAITS("X11 (a)", busy, D.cuMemcpyAsync(a, b, 64, busy));
  ANSWER_WAITS("X11 (b)", busy, D.cuMemcpyAsync(probe_address(c), probe_address(d), PROBE_MIB, busy));
  ((char *)(uintptr_t)b)[0] = 1;
  probe_gate_close(busy);
  PROBE_MUST(batch_of_one(a, b, PROBE_MIB, busy));
  ((char *)(uintptr_t)b)[0] = 2;
  ANSWER_YES("X11 (c)", probe_gate_open());
  ANSWER_YES("X11 (d)", ((char *)(uintptr_t)a)[0] == 2);
}

static void batches(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr host = probe_address(probe_pinned(PROBE_MIB)), memory = probe_memory(PROBE_MIB);
  CUdeviceptr to[] = {memory, host}, from[] = {host + 4096, memory + 4096};
  size_t sizes[] = {4096, 0}, first = 0;
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = NULL;
  ANSWER_CODE("24 (e)", batch_of(0, to, from, sizes, stream));
  ANSWER_CODE("24 (f)", batch_of(2, to, from, sizes, stream));
  ANSWER_CODE("25 (a)", batch_of_one(memory, host, 4096, NULL));
  ANSWER_CODE("25 (b)", batch_of_one(memory, host, 4096, CU_STREAM_PER_THREAD));
  ANSWER_CODE("25 (e)", D.cuMemcpyBatchAsync(to, from, sizes, 1, NULL, NULL, 0, stream));
  sizes[1] = 4096;
  ANSWER_CODE("25 (f)", D.cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream));
  char *pageable = probe_pageable(PROBE_MIB);
  ANSWER_WAITS("25 (g)", stream, batch_of_one(memory, probe_address(pageable), PROBE_MIB, stream));
  ANSWER_WAITS("25 (i)", stream, batch_of_one(probe_address(pageable), memory, PROBE_MIB, stream));
  PROBE_MUST(D.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ANSWER_CODE("25 (c)", batch_of_one(memory, host, 4096, stream));
  PROBE_MUST(D.cuStreamIsCapturing(stream, &status));
  probe_answer("25 (d)", "%s", status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "ACTIVE" : "INVALIDATED");
  (void)D.cuStreamEndCapture(stream, &graph);
}

static void no_bytes(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr memory = probe_memory(PROBE_MIB);
  char *host = probe_pinned(PROBE_MIB);
  CUgraph graph = NULL;
  size_t nodes = 0;
  ANSWER_CODE("24 (a)", D.cuMemcpyHtoDAsync(memory, host, 0, stream));
  ANSWER_CODE("24 (b)", D.cuMemcpyAsync(0, 0, 0, stream));
  ANSWER_CODE("24 (c)", D.cuMemsetD8Async(memory, 0, 0, stream));
  PROBE_MUST(D.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  (void)D.cuMemcpyHtoDAsync(memory, host, 0, stream);
  (void)D.cuMemsetD8Async(memory, 0, 0, stream);
  PROBE_MUST(D.cuStreamEndCapture(stream, &graph));
  PROBE_MUST(D.cuGraphGetNodes(graph, NULL, &nodes));
  probe_answer("24 (d)", "%zu", nodes);
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static void event_answers(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  CUevent none = probe_event(0), start = probe_event(0), end = probe_event(0);
  CUevent plain = probe_event(CU_EVENT_DISABLE_TIMING);
  float ms = 0;
  ANSWER_CODE("27 (a)", D.cuEventQuery(none));
  PROBE_MUST(D.cuEventRecord(start, stream));
  PROBE_MUST(D.cuEventRecord(plain, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  ANSWER_CODE("27 (b)", D.cuEventElapsedTime(&ms, none, start));
  probe_gate_close(stream);
  PROBE_MUST(D.cuEventRecord(end, stream));
  CUresult code = D.cuEventElapsedTime(&ms, start, end);
  probe_gate_open();
  ANSWER_CODE("27 (c)", code);
  ANSWER_CODE("27 (d)", D.cuEventElapsedTime(&ms, start, plain));
  code = D.cuEventElapsedTime(&ms, end, start);
  probe_answer("27 (e)", "%s, %s", probe_name(code), ms < 0 ? "negative" : "not negative");
}

static void event_contexts(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING), home = NULL;
  CUcontext other = NULL;
  PROBE_MUST(D.cuCtxCreate(&other, 0, probe_device));
  CUevent event = probe_event(CU_EVENT_DISABLE_TIMING);
  home = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuEventRecord(event, home));
  PROBE_MUST(D.cuCtxSetCurrent(probe_context));
  ANSWER_CODE("27 (g)", D.cuStreamWaitEvent(stream, event, 0));
  ANSWER_CODE("27 (f)", D.cuEventRecord(event, stream));
}

static void captured_events(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING), other = probe_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = probe_event(0), plain = probe_event(0);
  CUgraph graph = NULL;
  float ms = 0;
  PROBE_MUST(D.cuEventRecord(plain, other));
  PROBE_MUST(D.cuStreamSynchronize(other));
  PROBE_MUST(D.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  PROBE_MUST(D.cuEventRecord(event, stream));
  PROBE_MUST(D.cuStreamEndCapture(stream, &graph));
  ANSWER_CODE("28 (a)", D.cuEventQuery(event));
  ANSWER_CODE("28 (b)", D.cuEventSynchronize(event));
  ANSWER_CODE("28 (c)", D.cuStreamWaitEvent(other, event, 0));
  ANSWER_CODE("28 (d)", D.cuEventElapsedTime(&ms, event, event));
}

/* ---- streams ------------------------------------------------------------------------------------------------------ */

static void stream_identities(void) {
  probe_begin();
  CUstream first = probe_stream(CU_STREAM_NON_BLOCKING), second = NULL;
  unsigned long long id = 0, next = 0;
  int least = 0, greatest = 0, priority = 0;
  PROBE_MUST(D.cuStreamGetId(first, &id));
  PROBE_MUST(D.cuStreamDestroy(first));
  second = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuStreamGetId(second, &next));
  ANSWER_YES("29 (c)", first == second);
  probe_answer("29 (d)", "%llu", next - id);
  PROBE_MUST(D.cuCtxGetStreamPriorityRange(&least, &greatest));
  probe_answer("29 (e)", "%d, %d", least, greatest);
  CUresult code = D.cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, -100);
  PROBE_MUST(D.cuStreamGetPriority(second, &priority));
  probe_answer("29 (f)", "%s, %d", probe_name(code), priority);
}

static void legacy_order(void) {
  probe_begin();
  CUstream blocking = probe_stream(CU_STREAM_DEFAULT), other = probe_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = probe_event(CU_EVENT_DISABLE_TIMING);
  CUdeviceptr memory = probe_memory(PROBE_MIB);
  const CUstream streams[] = {blocking, CU_STREAM_PER_THREAD};
  static const char *const numbers[] = {"X5 (a)", "X5 (b)"};
  for (int i = 0; i < 2; i++) {
    probe_gate_close(NULL);
    PROBE_MUST(D.cuEventRecord(event, streams[i]));
    CUresult asked = D.cuStreamQuery(streams[i]), waited = D.cuStreamSynchronize(streams[i]);
    CUresult found = D.cuEventQuery(event);
    bool blocked = probe_gate_open();
    probe_answer(numbers[i], "query %s; synchronize %s, %s; event %s", probe_name(asked), probe_name(waited),
                 blocked ? "waits" : "at once", probe_name(found));
  }
  probe_gate_close(NULL);
  PROBE_MUST(D.cuMemsetD8Async(memory, 1, 64, blocking));
  CUresult code = D.cuStreamQuery(blocking);
  probe_gate_open();
  ANSWER_CODE("X5 (c)", code);
  probe_gate_close(other);
  PROBE_MUST(D.cuEventRecord(event, other));
  PROBE_MUST(D.cuStreamWaitEvent(blocking, event, 0));
  code = D.cuStreamQuery(blocking);
  probe_gate_open();
  ANSWER_CODE("X5 (d)", code);
  probe_gate_close(blocking);
  code = D.cuStreamQuery(NULL);
  probe_gate_open();
  ANSWER_CODE("X5 (e)", code);
}

/* ---- written values ----------------------------------------------------------------------------------------------- */

static CUdeviceptr host_pool_memory(CUstream stream) {
  cuda_pool_props properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
  CUmemPoolProps native;
  CUmemoryPool pool = NULL;
  CUdeviceptr memory = 0;
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  properties.location.type = (CUmemLocationType)CUDA_LOCATION_HOST;
  memcpy(&native, &properties, sizeof native);
  PROBE_MUST(D.cuMemPoolCreate(&pool, &native));
  PROBE_MUST(D.cuMemPoolSetAccess(pool, &access, 1));
  PROBE_MUST(D.cuMemAllocFromPoolAsync(&memory, PROBE_MIB, pool, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  return memory;
}

static void written_values(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  char *registered = probe_pageable(PROBE_MIB), *pageable = probe_pageable(PROBE_MIB);
  PROBE_MUST(D.cuMemHostRegister(registered, PROBE_MIB, 0));
  ANSWER_CODE("30 (a)", D.cuStreamWriteValue32(stream, probe_address(probe_pinned(PROBE_MIB)), 7, 0));
  ANSWER_CODE("30 (b)", D.cuStreamWriteValue32(stream, probe_address(registered), 7, 0));
  ANSWER_CODE("30 (c)", D.cuStreamWriteValue32(stream, probe_address(pageable), 7, 0));
  ANSWER_CODE("30 (f)", D.cuStreamWriteValue64(stream, probe_pool_memory(PROBE_MIB), 7, 0));
  ANSWER_CODE("X6 (a)", D.cuStreamWriteValue32(stream, probe_memory(PROBE_MIB), 7, 0));
  ANSWER_CODE("X6 (b)", D.cuStreamWriteValue32(stream, probe_mapped_memory(2 * PROBE_MIB), 7, 0));
  ANSWER_CODE("X6 (c)", D.cuStreamWriteValue32(stream, probe_pool_memory(PROBE_MIB), 7, 0));
  ANSWER_CODE("X6 (d)", D.cuStreamWriteValue32(stream, host_pool_memory(stream), 7, 0));
  probe_gate_close(stream);
  CUresult code = D.cuStreamQuery(probe_stream(CU_STREAM_NON_BLOCKING));
  probe_gate_open();
  ANSWER_CODE("30 (e)", code);
}

/* ---- host functions ----------------------------------------------------------------------------------------------- */

/* What a host function finds. */
typedef struct inside {
  CUevent event; /* recorded and done */
  CUdeviceptr memory;
  CUresult query, alloc, current, count, attribute, info;
  pthread_t thread;
} inside;

static void CUDA_CB inside_call(void *user) {
  inside *found = user;
  void *pinned = NULL;
  CUcontext context = NULL;
  int count = 0;
  unsigned type = 0;
  size_t free_bytes = 0, total = 0;
  found->query = D.cuEventQuery(found->event);
  found->alloc = D.cuMemHostAlloc(&pinned, PROBE_PAGE, 0);
  found->current = D.cuCtxGetCurrent(&context);
  found->count = D.cuDeviceGetCount(&count);
  found->attribute = D.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, found->memory);
  found->info = D.cuMemGetInfo(&free_bytes, &total);
  found->thread = pthread_self();
}

static void CUDA_CB note_thread(void *user) { *(pthread_t *)user = pthread_self(); }

static void host_functions(void) {
  probe_begin();
  CUstream a = probe_stream(CU_STREAM_NON_BLOCKING), b = probe_stream(CU_STREAM_NON_BLOCKING);
  inside found = {.event = probe_event(CU_EVENT_DISABLE_TIMING), .memory = probe_memory(PROBE_MIB)};
  pthread_t other;
  PROBE_MUST(D.cuEventRecord(found.event, a));
  PROBE_MUST(D.cuStreamSynchronize(a));
  PROBE_MUST(D.cuLaunchHostFunc(a, inside_call, &found));
  PROBE_MUST(D.cuLaunchHostFunc(b, note_thread, &other));
  PROBE_MUST(D.cuCtxSynchronize());
  ANSWER_YES("31 (b)", pthread_equal(found.thread, other) != 0);
  ANSWER_CODE("31 (c)", found.query);
  ANSWER_CODE("31 (d)", found.alloc);
  ANSWER_CODE("31 (e)", found.current);
  ANSWER_CODE("31 (f)", found.count);
  ANSWER_CODE("31 (g)", found.attribute);
  ANSWER_CODE("31 (h)", found.info);
}

typedef struct pair {
  atomic_bool began, go_on;
} pair;

static void CUDA_CB first_of_pair(void *user) {
  pair *functions = user;
  while (!atomic_load(&functions->go_on)) nanosleep(&(struct timespec){0, 100000}, NULL);
}

static void CUDA_CB second_of_pair(void *user) { atomic_store(&((pair *)user)->began, true); }

/* One that does not end keeps the other from beginning: looked at for as long as a thousand queries of the device take. */
static void host_functions_in_turn(void) {
  probe_begin();
  CUstream a = probe_stream(CU_STREAM_NON_BLOCKING), b = probe_stream(CU_STREAM_NON_BLOCKING);
  static pair functions;
  PROBE_MUST(D.cuLaunchHostFunc(a, first_of_pair, &functions));
  PROBE_MUST(D.cuLaunchHostFunc(b, second_of_pair, &functions));
  for (int i = 0; i < 1000; i++) (void)D.cuStreamQuery(b);
  bool began = atomic_load(&functions.began);
  atomic_store(&functions.go_on, true);
  PROBE_MUST(D.cuCtxSynchronize());
  ANSWER_YES("31 (a)", !began && atomic_load(&functions.began));
}

const probe_question probe_order_questions[] = {{"memory_waits", memory_waits},
                                                {"object_waits", object_waits},
                                                {"pageable_waits", pageable_waits},
                                                {"host_copies", host_copies},
                                                {"batches", batches},
                                                {"no_bytes", no_bytes},
                                                {"event_answers", event_answers},
                                                {"event_contexts", event_contexts},
                                                {"captured_events", captured_events},
                                                {"stream_identities", stream_identities},
                                                {"legacy_order", legacy_order},
                                                {"written_values", written_values},
                                                {"host_functions", host_functions},
                                                {"host_functions_in_turn", host_functions_in_turn},
                                                {NULL, NULL}};
