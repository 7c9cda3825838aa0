/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Every driver call of every op failing, one at a time: what comes out, and what is left behind.
 *
 * Locks: none; one thread.
 */
#include <string.h>

#include "runtime/cuda/entry_points.h"
#include "runtime/ops_list.h"
#include "tests/runtime/cuda/fixture.h"

/* Calls that put the thread back; when one fails, the thread stays as it is. */
static bool call_restores(const char *op, const char *symbol, uint64_t nth) {
  return strcmp(symbol, "cuCtxPopCurrent") == 0 || (strcmp(symbol, "cuThreadExchangeStreamCaptureMode") == 0 &&
                                                    nth % 2 == 0 && strcmp(op, "capture_mode_exchange") != 0);
}

/* Calls whose failure an op can do without: it has done its work, or has another way. */
static bool failure_is_harmless(const char *op, const char *symbol, uint64_t nth) {
  /* Of a peer's context that is made, the reference goes back when the thread cannot be put back. */
  bool makes_context = strcmp(op, "peer_enable") == 0 && nth == 2;
  bool another_way = strcmp(symbol, "cuMemGetAddressRange") == 0 ||
                     (strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0 && strcmp(op, "device_active") != 0);
  return (call_restores(op, symbol, nth) && !(makes_context && strcmp(symbol, "cuCtxPopCurrent") != 0)) || another_way;
}

static bool begin_case(cuda_fixture *f, const cuda_case *c) {
  lade_test_context("%s %s", c->op, c->variant);
  return cuda_fixture_open(f) && cuda_fixture_fill(f) && (c->prepare == NULL || c->prepare(f));
}

LADE_TEST(CudaFaults, EveryOpHasACase) {
  size_t count;
  const cuda_case *cases = cuda_cases(&count);
#define EXPECT_CASE(op_name, group)                                                                                    \
  do {                                                                                                                 \
    bool found = strcmp(#group, "VIRTUAL_TIME") == 0 || strcmp(#group, "KERNELS") == 0 ||                              \
                 strcmp(#op_name, "close") == 0 || strcmp(#op_name, "now_ns") == 0 ||                                  \
                 strcmp(#op_name, "native_error_text") == 0;                                                           \
    for (size_t i = 0; i < count; i++) found = found || strcmp(cases[i].op, #op_name) == 0;                            \
    if (!found) LADE_FAIL("no case for %s", #op_name);                                                                 \
  } while (0);
  LADEI_OPS_LIST(EXPECT_CASE)
#undef EXPECT_CASE
}

/* ---- One call fails ---------------------------------------------------------------------------------------------- */

typedef struct thread_state {
  int depth;
  ladei_capture_mode mode;
  int device;
} thread_state;

static thread_state thread_state_get(cuda_fixture *f) {
  thread_state now = {.depth = f->hooks->stack_depth(), .mode = LADEI_CAPTURE_RELAXED};
  LADE_EXPECT_OK(f->ops->capture_mode_exchange(f->self, &now.mode));
  ladei_capture_mode back = now.mode;
  LADE_EXPECT_OK(f->ops->capture_mode_exchange(f->self, &back));
  LADE_EXPECT_OK(f->ops->current_device(f->self, &now.device));
  return now;
}

static void expect_same_thread_state(const thread_state *before, const thread_state *after) {
  LADE_EXPECT_EQ_INT(before->depth, after->depth);
  LADE_EXPECT_EQ_INT(before->mode, after->mode);
  LADE_EXPECT_EQ_INT(before->device, after->device);
}

/* Runs the case with the symbol's nth call failing. False when the op makes fewer calls of it. */
static bool run_with_fault(const cuda_case *c, const char *symbol, uint64_t nth) {
  cuda_fixture f;
  if (!begin_case(&f, c)) return false;
  thread_state before = thread_state_get(&f);
  uint64_t calls = f.hooks->calls(symbol);
  f.hooks->fail(symbol, nth, CUDA_ERROR_UNKNOWN);
  lade_status status = c->run(&f);
  f.hooks->fail_clear();
  bool reached = f.hooks->calls(symbol) - calls >= nth;
  lade_test_context("%s %s: call %d of %s", c->op, c->variant, (int)nth, symbol);
  if (!reached || failure_is_harmless(c->op, symbol, nth)) {
    LADE_EXPECT_OK(status);
  } else {
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, status);
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, CUDA_ERROR_UNKNOWN);
    LADE_EXPECT(strncmp(lade_last_error()->text, c->op, strlen(c->op)) == 0);
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "CUDA_ERROR_UNKNOWN: unknown error (999)");
  }
  thread_state after = thread_state_get(&f);
  if (!call_restores(c->op, symbol, nth)) expect_same_thread_state(&before, &after);
  while (f.hooks->stack_depth() > before.depth) { /* the failing call was the one that restores */
    CUcontext popped;
    ((PFN_cuCtxPopCurrent_v4000)f.hooks->entry_point("cuCtxPopCurrent", 4000))(&popped);
  }
  cuda_fixture_close(&f);
  return reached;
}

LADE_TEST(CudaFaults, AnyFailingCallIsReportedAndLeavesTheThreadAsItWas) {
  size_t case_count;
  size_t entry_count;
  const cuda_case *cases = cuda_cases(&case_count);
  const cuda_entry_point *entries = ladei_cuda_entry_points(&entry_count);
  for (size_t i = 0; i < case_count && !lade_test_has_failed(); i++) {
    cuda_fixture f;
    uint64_t calls[256];
    if (!begin_case(&f, &cases[i])) break;
    for (size_t k = 0; k < entry_count; k++) calls[k] = f.hooks->calls(entries[k].symbol);
    LADE_EXPECT_OK(cases[i].run(&f));
    for (size_t k = 0; k < entry_count; k++) calls[k] = f.hooks->calls(entries[k].symbol) - calls[k];
    cuda_fixture_close(&f);
    for (size_t k = 0; k < entry_count && !lade_test_has_failed(); k++)
      for (uint64_t nth = 1; nth <= calls[k]; nth++) LADE_EXPECT(run_with_fault(&cases[i], entries[k].symbol, nth));
  }
  lade_test_context("%s", "");
}

/* ---- What codes mean --------------------------------------------------------------------------------------------- */

static const cuda_case *case_find(const char *op) {
  size_t count;
  const cuda_case *cases = cuda_cases(&count);
  for (size_t i = 0; i < count; i++)
    if (strcmp(cases[i].op, op) == 0) return &cases[i];
  return NULL;
}

static void expect_code(const char *op, const char *symbol, CUresult code, lade_status expected) {
  cuda_fixture f;
  const cuda_case *c = case_find(op);
  if (!begin_case(&f, c)) return;
  f.hooks->fail(symbol, 1, code);
  LADE_EXPECT_STATUS(expected, c->run(&f));
  f.hooks->fail_clear();
  cuda_fixture_close(&f);
  lade_test_context("%s", "");
}

LADE_TEST(CudaFaults, CodesBecomeTheStatusThatSaysWhatToDo) {
  expect_code("device_alloc", "cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, LADE_ERR_OUT_OF_DEVICE_MEMORY);
  expect_code("vm_create", "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, LADE_ERR_OUT_OF_DEVICE_MEMORY);
  expect_code("pool_alloc", "cuMemAllocFromPoolAsync", CUDA_ERROR_OUT_OF_MEMORY, LADE_ERR_OUT_OF_DEVICE_MEMORY);
  expect_code("host_alloc", "cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, LADE_ERR_OUT_OF_PINNED_MEMORY);
  expect_code("host_register", "cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, LADE_ERR_OUT_OF_PINNED_MEMORY);
  expect_code("host_register", "cuMemHostRegister", CUDA_ERROR_OPERATING_SYSTEM, LADE_ERR_OUT_OF_PINNED_MEMORY);
  expect_code("host_register", "cuMemHostRegister", CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
              LADE_ERR_INVALID_ARGUMENT);
  expect_code("host_register", "cuMemHostRegister", CUDA_ERROR_NOT_SUPPORTED, LADE_ERR_UNSUPPORTED);
  expect_code("device_alloc", "cuMemAlloc", CUDA_ERROR_OPERATING_SYSTEM, LADE_ERR_DRIVER);
  expect_code("copy", "cuMemcpyHtoDAsync", CUDA_ERROR_INVALID_VALUE, LADE_ERR_INVALID_ARGUMENT);
  expect_code("event_record", "cuEventRecord", CUDA_ERROR_INVALID_HANDLE, LADE_ERR_INVALID_ARGUMENT);
  expect_code("event_query", "cuEventQuery", CUDA_ERROR_NOT_READY, LADE_NOT_READY);
  /* The bug: LADE_ERR_TIMEOUT as a transfer's outcome, which of a ticket means that it goes on; waits for it never ended. */
  expect_code("copy", "cuMemcpyHtoDAsync", CUDA_ERROR_TIMEOUT, LADE_ERR_DRIVER);
  expect_code("event_query", "cuEventQuery", CUDA_ERROR_CAPTURED_EVENT, LADE_ERR_CAPTURE);
  expect_code("capture_begin", "cuStreamBeginCapture", CUDA_ERROR_ILLEGAL_STATE, LADE_ERR_CAPTURE);
  expect_code("peer_enable", "cuCtxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, LADE_ERR_UNSUPPORTED);
  expect_code("peer_enable", "cuCtxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, LADE_OK);
  expect_code("device_context", "cuDevicePrimaryCtxRetain", CUDA_SUCCESS, LADE_OK);
}

/* A pool of host memory that is full has no device memory to report. */
LADE_TEST(CudaFaults, AFullHostPoolIsOutOfPinnedMemory) {
  cuda_fixture f;
  ladei_pool_properties host = {.location = LADEI_POOL_HOST};
  ladei_driver_pool pool = NULL;
  void *pointer = NULL;
  if (!cuda_fixture_open(&f)) return;
  if (cuda_fixture_fill(&f) && f.ops->pool_create(f.self, &host, &pool) == LADE_OK) {
    cuda_own(&f, CUDA_OWN_POOL, (uintptr_t)pool);
    f.hooks->fail("cuMemAllocFromPoolAsync", 1, CUDA_ERROR_OUT_OF_MEMORY);
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, f.ops->pool_alloc(f.self, pool, 4096, &f.stream, &pointer));
  }
  LADE_EXPECT_NE_PTR(pool, NULL);
  cuda_fixture_close(&f);
}

LADE_TEST(CudaFaults, TextsNameCodeAndWords) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  const char *text = f.ops->native_error_text(f.self, CUDA_ERROR_OUT_OF_MEMORY);
  LADE_EXPECT_EQ_STR(text, "CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  LADE_EXPECT_EQ_PTR(f.ops->native_error_text(f.self, CUDA_ERROR_OUT_OF_MEMORY), text);
  LADE_EXPECT_CONTAINS_STR(f.ops->native_error_text(f.self, 998), "unknown CUDA error");
  LADE_EXPECT_CONTAINS_STR(f.ops->native_error_text(f.self, -1), "not a CUDA error code");
  LADE_EXPECT_CONTAINS_STR(f.ops->native_error_text(f.self, INT64_MAX), "not a CUDA error code");
  cuda_fixture_close(&f);
}

/* R8: found out before the driver is asked, which takes some of these for granted. */
LADE_TEST(CudaFaults, EmptyRangesAndUnknownFlagsAreRefused) {
  cuda_fixture f;
  void *pointer = NULL;
  lade_stream stream = NULL;
  lade_event event = NULL;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  uint64_t calls = f.hooks->calls(NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->copy(f.self, LADEI_COPY_H2D, f.device, f.pinned, 0, &f.stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->copy(f.self, LADEI_COPY_H2D, NULL, f.pinned, 1, &f.stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->copy_sync(f.self, 0, LADEI_COPY_D2H, f.pages, NULL, 1));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->fill(f.self, f.device, 0, 0, &f.stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->device_alloc(f.self, 0, 0, &pointer));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_alloc(f.self, 0, 0, 0, &pointer));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->device_free(f.self, 0, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_free(f.self, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_register(f.self, 0, f.pages, 0, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_alloc(f.self, 0, 4096, 1u << 9, &pointer));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->stream_create(f.self, 0, 0, 1u << 9, &stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->event_create(f.self, f.stream.context, 1u << 9, &event));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->stream_destroy(f.self, LADE_STREAM_PER_THREAD));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->stream_write_value(f.self, &f.stream, f.device, 1, 16));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, f.ops->device_alloc(f.self, 2, 4096, &pointer));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, f.ops->device_alloc(f.self, -1, 4096, &pointer));
  LADE_EXPECT_EQ_UINT(f.hooks->calls(NULL), calls);
  LADE_EXPECT_EQ_PTR(pointer, NULL);
  cuda_fixture_close(&f);
}
