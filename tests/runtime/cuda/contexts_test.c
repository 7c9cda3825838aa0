/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Contexts and capture modes: what an op makes current, and what it leaves.
 *
 * Locks: none; threads meet in pthread_join only.
 */
#include <cudaTypedefs.h>
#include <pthread.h>

#include "tests/runtime/cuda/fixture.h"

/* The test as a program of its own beside lade. */
#define ENTRY(f, symbol, version) ((PFN_##symbol##_v##version)(f)->hooks->entry_point(#symbol, version))

LADE_TEST(CudaContexts, NoneIsMadeOnADeviceThatNobodyAskedFor) {
  size_t count;
  const cuda_case *cases = cuda_cases(&count);
  for (size_t i = 0; i < count && !lade_test_has_failed(); i++) {
    cuda_fixture f;
    lade_test_context("%s %s", cases[i].op, cases[i].variant);
    if (!cuda_fixture_open(&f)) return;
    if (cuda_fixture_fill(&f) && (cases[i].prepare == NULL || cases[i].prepare(&f))) LADE_EXPECT_OK(cases[i].run(&f));
    bool asks_for_peer = cases[i].op[0] == 'p' && cases[i].op[1] == 'e' && cases[i].op[5] != 'c';
    LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(0), 1u);
    LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(1), asks_for_peer ? 1u : 0u);
    cuda_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

/* Whatever is current before an op is current after it, be it nothing, the same context or another. */
static void with_current(int device) {
  size_t count;
  const cuda_case *cases = cuda_cases(&count);
  for (size_t i = 0; i < count && !lade_test_has_failed(); i++) {
    cuda_fixture f;
    CUcontext mine = NULL;
    CUcontext after = NULL;
    lade_test_context("%s %s, device %d current", cases[i].op, cases[i].variant, device);
    if (cases[i].sets_current) continue;
    if (!cuda_fixture_open(&f)) return;
    if (device >= 0) LADE_EXPECT_EQ_INT(ENTRY(&f, cuDevicePrimaryCtxRetain, 7000)(&mine, device), CUDA_SUCCESS);
    if (cuda_fixture_fill(&f) && (cases[i].prepare == NULL || cases[i].prepare(&f))) {
      if (device >= 0) LADE_EXPECT_EQ_INT(ENTRY(&f, cuCtxPushCurrent, 4000)(mine), CUDA_SUCCESS);
      LADE_EXPECT_OK(cases[i].run(&f));
      ENTRY(&f, cuCtxGetCurrent, 4000)(&after);
      LADE_EXPECT_EQ_PTR(after, mine);
      LADE_EXPECT_EQ_INT(f.hooks->stack_depth(), device >= 0 ? 1 : 0);
    }
    cuda_fixture_drop(&f);
    if (device >= 0) {
      ENTRY(&f, cuCtxPopCurrent, 4000)(&after);
      ENTRY(&f, cuDevicePrimaryCtxRelease, 11000)(device);
    }
    cuda_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(CudaContexts, NothingCurrentStaysNothing) { with_current(-1); }
LADE_TEST(CudaContexts, TheSameContextStaysCurrent) { with_current(0); }
LADE_TEST(CudaContexts, AnotherContextStaysCurrent) { with_current(1); }

LADE_TEST(CudaContexts, NothingIsPushedWhereTheContextIsCurrent) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  uint64_t pushes = f.hooks->calls("cuCtxPushCurrent");
  LADE_EXPECT_OK(f.ops->event_record(f.self, f.event, &f.stream));
  LADE_EXPECT_OK(f.ops->event_synchronize(f.self, f.event));
  LADE_EXPECT_OK(f.ops->fill(f.self, f.device, 1, 64, &f.stream));
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuCtxPushCurrent"), pushes);
  cuda_fixture_close(&f);
}

/* ---- Retaining --------------------------------------------------------------------------------------------------- */

static void *use_device(void *argument) {
  cuda_fixture *f = argument;
  uint64_t context = 0;
  lade_status status = f->ops->device_context(f->self, 0, &context);
  LADE_EXPECT_OK(status);
  return (void *)(uintptr_t)context;
}

LADE_TEST(CudaContexts, FirstUseByManyThreadsRetainsOnce) {
  enum { THREADS = 8, ROUNDS = 20 };
  for (int round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    cuda_fixture f;
    pthread_t threads[THREADS];
    void *contexts[THREADS];
    if (!cuda_fixture_open(&f)) return;
    for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, use_device, &f), 0);
    for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_join(threads[i], &contexts[i]), 0);
    for (int i = 1; i < THREADS; i++) LADE_EXPECT_EQ_PTR(contexts[i], contexts[0]);
    LADE_EXPECT_EQ_UINT(f.hooks->retained(0), 1u);
    cuda_fixture_close(&f);
  }
}

static void use_device_meanwhile(void *user) { (void)use_device(user); }

/* While this call retains the context, another one finishes doing so. */
LADE_TEST(CudaContexts, WhoLosesTheRaceForTheFirstUseGivesHisReferenceBack) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  f.hooks->interrupt("cuDevicePrimaryCtxRetain", use_device_meanwhile, &f);
  (void)use_device(&f);
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuDevicePrimaryCtxRetain"), 2u);
  LADE_EXPECT_EQ_UINT(f.hooks->retained(0), 1u);
  cuda_fixture_close(&f);
}

/* A destroyed context that stays current would break the thread's next calls. */
LADE_TEST(CudaContexts, ClosingTakesItsDeadContextFromTheThread) {
  cuda_fixture f;
  CUcontext current = NULL;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  LADE_EXPECT_OK(f.ops->close(f.self));
  f.open = false;
  ENTRY(&f, cuCtxGetCurrent, 4000)(&current);
  LADE_EXPECT_EQ_PTR(current, NULL);
  cuda_fixture_close(&f);
}

LADE_TEST(CudaContexts, ClosingLeavesAContextThatOthersUse) {
  cuda_fixture f;
  CUcontext mine = NULL;
  CUcontext current = NULL;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_EQ_INT(ENTRY(&f, cuDevicePrimaryCtxRetain, 7000)(&mine, 0), CUDA_SUCCESS);
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  LADE_EXPECT_OK(f.ops->close(f.self));
  f.open = false;
  ENTRY(&f, cuCtxGetCurrent, 4000)(&current);
  LADE_EXPECT_EQ_PTR(current, mine);
  ENTRY(&f, cuCtxSetCurrent, 4000)(NULL);
  ENTRY(&f, cuDevicePrimaryCtxRelease, 11000)(0);
  cuda_fixture_close(&f);
}

/* ---- Streams of the program -------------------------------------------------------------------------------------- */

/* The program made its stream on a device that lade was never asked for. */
LADE_TEST(CudaContexts, AStreamOfAForeignContextIsResolvedUnderIt) {
  cuda_fixture f;
  CUcontext mine = NULL;
  CUcontext popped = NULL;
  CUstream handle = NULL;
  ladei_stream stream;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_EQ_INT(ENTRY(&f, cuDevicePrimaryCtxRetain, 7000)(&mine, 1), CUDA_SUCCESS);
  ENTRY(&f, cuCtxPushCurrent, 4000)(mine);
  LADE_EXPECT_EQ_INT(ENTRY(&f, cuStreamCreateWithPriority, 5050)(&handle, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  ENTRY(&f, cuCtxPopCurrent, 4000)(&popped);
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, handle, &stream));
  LADE_EXPECT_EQ_INT(stream.device, 1);
  LADE_EXPECT_EQ_UINT(stream.context, (uintptr_t)mine);
  LADE_EXPECT_EQ_INT(stream.kind, LADEI_STREAM_ORDINARY);
  LADE_EXPECT_OK(f.ops->stream_synchronize(f.self, &stream));
  LADE_EXPECT_EQ_UINT(f.hooks->retained(1), 1u);
  LADE_EXPECT_OK(f.ops->stream_destroy(f.self, handle));
  ENTRY(&f, cuDevicePrimaryCtxRelease, 11000)(1);
  cuda_fixture_close(&f);
}

/* The program destroyed its stream, and the driver gave the handle to a stream of another context. */
LADE_TEST(CudaContexts, AHandleThatIsUsedAgainIsAnotherStream) {
  cuda_fixture f;
  CUcontext contexts[2] = {NULL, NULL};
  CUcontext popped = NULL;
  CUstream handles[2] = {NULL, NULL};
  ladei_stream first, second;
  if (!cuda_fixture_open(&f)) return;
  for (int i = 0; i < 2; i++) {
    LADE_EXPECT_EQ_INT(ENTRY(&f, cuDevicePrimaryCtxRetain, 7000)(&contexts[i], i), CUDA_SUCCESS);
    ENTRY(&f, cuCtxPushCurrent, 4000)(contexts[i]);
    LADE_EXPECT_EQ_INT(ENTRY(&f, cuStreamCreateWithPriority, 5050)(&handles[i], CU_STREAM_NON_BLOCKING, 0),
                       CUDA_SUCCESS);
    ENTRY(&f, cuCtxPopCurrent, 4000)(&popped);
  }
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, handles[0], &first));
  ENTRY(&f, cuCtxPushCurrent, 4000)(contexts[0]);
  LADE_EXPECT_EQ_INT(ENTRY(&f, cuStreamDestroy, 4000)(handles[0]), CUDA_SUCCESS);
  ENTRY(&f, cuCtxPopCurrent, 4000)(&popped);
  f.hooks->recycle(handles[0], handles[1]);
  uint64_t asked = f.hooks->calls("cuStreamGetCtx");
  for (int i = 0; i < 2; i++) {
    LADE_EXPECT_OK(f.ops->stream_resolve(f.self, handles[0], &second));
    LADE_EXPECT_EQ_INT(second.device, 1);
    LADE_EXPECT_EQ_UINT(second.context, (uintptr_t)contexts[1]);
    LADE_EXPECT(second.id != first.id);
  }
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuStreamGetCtx"), asked + 1); /* the first time */
  LADE_EXPECT_OK(f.ops->stream_destroy(f.self, handles[1]));
  for (int i = 0; i < 2; i++) ENTRY(&f, cuDevicePrimaryCtxRelease, 11000)(i);
  cuda_fixture_close(&f);
}

LADE_TEST(CudaContexts, SpecialStreamsAreThoseOfTheCurrentContext) {
  cuda_fixture f;
  ladei_stream null_stream;
  ladei_stream legacy;
  ladei_stream other;
  ladei_stream per_thread;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->stream_resolve(f.self, NULL, &legacy));
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 1));
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, LADE_STREAM_LEGACY, &other));
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, NULL, &null_stream));
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, LADE_STREAM_LEGACY, &legacy));
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, LADE_STREAM_PER_THREAD, &per_thread));
  LADE_EXPECT_EQ_PTR(null_stream.handle, LADE_STREAM_LEGACY);
  LADE_EXPECT_EQ_UINT(null_stream.id, legacy.id);
  LADE_EXPECT_EQ_INT(legacy.kind, LADEI_STREAM_LEGACY);
  LADE_EXPECT_EQ_INT(per_thread.kind, LADEI_STREAM_PER_THREAD);
  LADE_EXPECT_EQ_INT(other.device, 1);
  LADE_EXPECT_NE_INT(other.context == legacy.context, 1);
  cuda_fixture_close(&f);
}

/* ---- Capture modes ----------------------------------------------------------------------------------------------- */

/* R9: the thread captures in global mode, in which the driver forbids these; the capture stays valid. */
LADE_TEST(CudaContexts, QueriesRecordsAndPinningSpareACapture) {
  cuda_fixture f;
  void *pointer = NULL;
  lade_event event = NULL;
  ladei_capture_info info;
  ladei_pointer_attributes attributes;
  lade_stream handle = NULL;
  ladei_stream other;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  LADE_ASSERT_OK(f.ops->stream_create(f.self, 0, 0, LADEI_STREAM_NON_BLOCKING, &handle));
  cuda_own(&f, CUDA_OWN_STREAM, (uintptr_t)handle);
  LADE_ASSERT_OK(f.ops->stream_resolve(f.self, handle, &other));
  LADE_ASSERT_OK(f.ops->capture_begin(f.self, &f.stream, LADEI_CAPTURE_GLOBAL));
  f.capturing = true;
  LADE_EXPECT_OK(f.ops->event_query(f.self, f.event));
  LADE_EXPECT_OK(f.ops->stream_query(f.self, &other));
  LADE_EXPECT_OK(f.ops->event_create(f.self, f.stream.context, 0, &event));
  LADE_EXPECT_OK(f.ops->event_record(f.self, event, &other));
  LADE_EXPECT_OK(f.ops->event_destroy(f.self, event));
  LADE_EXPECT_OK(f.ops->host_alloc(f.self, 0, 4096, 0, &pointer));
  LADE_EXPECT_OK(f.ops->host_free(f.self, pointer));
  LADE_EXPECT_OK(f.ops->host_register(f.self, 0, f.pages, CUDA_FIXTURE_BYTES, 0));
  LADE_EXPECT_OK(f.ops->host_unregister(f.self, f.pages));
  LADE_EXPECT_OK(f.ops->pointer_attributes(f.self, f.device, &attributes));
  LADE_EXPECT_OK(f.ops->stream_capture_info(f.self, &f.stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_ACTIVE);
  /* The loopback does forbid them: an op that R9 does not name fails, and ends the capture. */
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, f.ops->device_alloc(f.self, 0, 4096, &pointer));
  LADE_EXPECT_OK(f.ops->stream_capture_info(f.self, &f.stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_INVALIDATED);
  cuda_fixture_close(&f);
}

static void *first_use_elsewhere(void *argument) {
  cuda_fixture *f = argument;
  uint64_t context;
  LADE_EXPECT_OK(f->ops->device_context(f->self, 1, &context));
  return NULL;
}

/* Making a primary context is unsafe too, and another thread's capture must survive it. */
LADE_TEST(CudaContexts, AFirstUseSparesAnotherThreadsCapture) {
  cuda_fixture f;
  pthread_t thread;
  ladei_capture_info info;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  LADE_ASSERT_OK(f.ops->capture_begin(f.self, &f.stream, LADEI_CAPTURE_GLOBAL));
  f.capturing = true;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, first_use_elsewhere, &f), 0);
  LADE_ASSERT_EQ_INT(pthread_join(thread, NULL), 0);
  LADE_EXPECT_OK(f.ops->stream_capture_info(f.self, &f.stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_ACTIVE);
  cuda_fixture_close(&f);
}

LADE_TEST(CudaContexts, CapturesBeginOnceAndEndWhereTheyBegan) {
  cuda_fixture f;
  ladei_stream legacy;
  ladei_graph graph = NULL;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, NULL, &legacy));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, f.ops->capture_begin(f.self, &legacy, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, f.ops->capture_end(f.self, &f.stream, &graph));
  LADE_EXPECT_EQ_PTR(graph, NULL);
  LADE_EXPECT_OK(f.ops->capture_begin(f.self, &f.stream, LADEI_CAPTURE_GLOBAL));
  f.capturing = true;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, f.ops->capture_begin(f.self, &f.stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuStreamBeginCapture"), 1u);
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuStreamEndCapture"), 0u);
  LADE_EXPECT_OK(f.ops->capture_end(f.self, &f.stream, &graph));
  f.capturing = false;
  cuda_own(&f, CUDA_OWN_GRAPH, (uintptr_t)graph);
  cuda_fixture_close(&f);
}

/* The driver takes no batch on either, and may spoil the capture. */
LADE_TEST(CudaContexts, BatchesOnLegacyAndCapturingStreamsAreUnsupported) {
  cuda_fixture f;
  ladei_stream legacy;
  ladei_capture_info info;
  size_t bytes = 512;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  const void *src = f.pinned;
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  LADE_EXPECT_OK(f.ops->stream_resolve(f.self, NULL, &legacy));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED,
                     f.ops->copy_batch(f.self, LADEI_COPY_H2D, 1, &f.device, &src, &bytes, &legacy));
  LADE_ASSERT_OK(f.ops->capture_begin(f.self, &f.stream, LADEI_CAPTURE_GLOBAL));
  f.capturing = true;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED,
                     f.ops->copy_batch(f.self, LADEI_COPY_H2D, 1, &f.device, &src, &bytes, &f.stream));
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuMemcpyBatchAsync"), 0u);
  LADE_EXPECT_OK(f.ops->stream_capture_info(f.self, &f.stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_ACTIVE);
  cuda_fixture_close(&f);
}
