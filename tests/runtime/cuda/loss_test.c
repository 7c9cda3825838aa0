/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Devices that fail, devices that are reset, drivers that are going: R7 of runtime/ops.h.
 *
 * Locks: none; one thread.
 */
#include <string.h>

#include "base/log.h"
#include "runtime/cuda/driver.h"
#include "tests/runtime/cuda/fixture.h"
#include "tests/support/heard.h"

/* The test as a program of its own beside lade. */
#define ENTRY(f, symbol, version) ((PFN_##symbol##_v##version)(f)->hooks->entry_point(#symbol, version))

static const CUresult final_codes[] = {
    CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUDA_ERROR_EXTERNAL_DEVICE,
    (CUresult)CUDA_CODE_CONTAINED,
    (CUresult)CUDA_CODE_TENSOR_MEMORY_LEAK,
};

LADE_TEST(CudaLoss, EveryFinalCodeIsALostDeviceAndNoOtherIs) {
  size_t final_count = sizeof final_codes / sizeof final_codes[0];
  for (int code = 0; code < CUDA_CODE_COUNT; code++) {
    bool final = false;
    for (size_t i = 0; i < final_count; i++) final = final || (int)final_codes[i] == code;
    lade_test_context("code %d", code);
    LADE_EXPECT_EQ_INT(ladei_cuda_is_final((CUresult)code), final);
    lade_status status = ladei_cuda_status((CUresult)code, LADE_ERR_OUT_OF_DEVICE_MEMORY);
    LADE_EXPECT_EQ_INT(status == LADE_ERR_DEVICE_LOST, final);
    LADE_EXPECT_EQ_INT(status == LADE_OK, code == 0);
    LADE_EXPECT_EQ_INT(status == LADE_NOT_READY, code == CUDA_ERROR_NOT_READY);
  }
  lade_test_context("%s", "");
}

/* Lade has let go of everything, but the loopback's failing driver did nothing: a new runtime frees it there. */
static void recover(cuda_fixture *f, const cuda_fixture *before) {
  uint64_t context = 0;
  f->hooks->fail_clear();
  LADE_EXPECT_OK(f->ops->close(f->self));
  for (int device = 0; device < 2; device++)
    while (f->hooks->retained(device) > 0) ENTRY(f, cuDevicePrimaryCtxRelease, 11000)(device);
  *f = *before;
  LADE_ASSERT_OK(cuda_fixture_open_runtime(f));
  LADE_EXPECT_OK(f->ops->device_context(f->self, 0, &context));
  cuda_fixture_close(f);
}

/* Ops that need no context work on after a fault of the device, as the driver's own do. */
static bool works_on(const cuda_case *c, CUresult code) {
  return code != CUDA_ERROR_DEINITIALIZED && (strncmp(c->op, "vm_", 3) == 0 || strcmp(c->op, "pool_destroy") == 0);
}

static bool lose(cuda_fixture *f, const cuda_case *c, CUresult code) {
  lade_test_context("%s %s after code %d", c->op, c->variant, (int)code);
  if (!cuda_fixture_open(f) || !cuda_fixture_fill(f) || (c->prepare != NULL && !c->prepare(f))) return false;
  f->hooks->break_all(code);
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f->ops->event_query(f->self, f->event));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, (int)code);
  return !lade_test_has_failed();
}

/* Loses the device through one op, then runs the case on the lost runtime. */
static void run_on_lost(const cuda_case *c, CUresult code) {
  cuda_fixture f;
  if (!lose(&f, c, code)) return;
  const cuda_fixture before = f;
  uint64_t calls = f.hooks->calls(NULL) - f.hooks->calls("cuGetErrorName") - f.hooks->calls("cuGetErrorString");
  lade_status status = c->run(&f);
  if (c->releases) {
    LADE_EXPECT_OK(status);
  } else {
    LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, status);
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, (int)code);
    LADE_EXPECT(strncmp(lade_last_error()->text, c->op, strlen(c->op)) == 0);
  }
  if (!c->releases || code == CUDA_ERROR_DEINITIALIZED) {
    LADE_EXPECT_EQ_UINT(f.hooks->calls(NULL) - f.hooks->calls("cuGetErrorName") - f.hooks->calls("cuGetErrorString"),
                        calls);
  }
  const cuda_fixture after = f;
  recover(&f, c->releases && works_on(c, code) ? &after : &before);
}

static void every_case_on_lost(CUresult code) {
  size_t count;
  const cuda_case *cases = cuda_cases(&count);
  for (size_t i = 0; i < count && !lade_test_has_failed(); i++) run_on_lost(&cases[i], code);
  lade_test_context("%s", "");
}

LADE_TEST(CudaLoss, IsOneLineOfTheLog) {
  support_heard heard;
  cuda_fixture f;
  size_t count;
  support_heard_begin(&heard, LADE_LOG_ERROR);
  if (!lose(&f, &cuda_cases(&count)[0], CUDA_ERROR_ILLEGAL_ADDRESS)) return;
  const cuda_fixture before = f;
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f.ops->event_query(f.self, f.event));
  ladei_log_flush();
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_ERROR, "runtime cuda: the device is lost: event_query: "), 1);
  LADE_EXPECT_EQ_INT(heard.count, 1);
  recover(&f, &before);
  lade_test_context("%s", "");
}

LADE_TEST(CudaLoss, AfterAFaultOnlyReleasingSucceeds) { every_case_on_lost(CUDA_ERROR_ILLEGAL_ADDRESS); }

/* The driver is being torn down at the end of the process: not even a release may call into it. */
LADE_TEST(CudaLoss, ADriverThatIsGoingIsLeftAlone) { every_case_on_lost(CUDA_ERROR_DEINITIALIZED); }

/* A release is the first call to meet the fault: it succeeds, and the runtime is lost all the same. */
static void release_meets(const cuda_case *c, CUresult code) {
  cuda_fixture f;
  lade_test_context("%s %s meets code %d", c->op, c->variant, (int)code);
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f) || (c->prepare != NULL && !c->prepare(&f))) return;
  const cuda_fixture before = f;
  f.hooks->break_all(code);
  LADE_EXPECT_OK(c->run(&f));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f.ops->event_query(f.self, f.event));
  recover(&f, &before);
}

LADE_TEST(CudaLoss, AReleaseThatMeetsTheFaultSucceeds) {
  size_t count;
  const cuda_case *cases = cuda_cases(&count);
  for (size_t i = 0; i < count && !lade_test_has_failed(); i++) {
    if (!cases[i].releases) continue;
    release_meets(&cases[i], CUDA_ERROR_DEINITIALIZED);
    if (!works_on(&cases[i], CUDA_ERROR_ECC_UNCORRECTABLE)) release_meets(&cases[i], CUDA_ERROR_ECC_UNCORRECTABLE);
  }
  lade_test_context("%s", "");
}

LADE_TEST(CudaLoss, AnErrorThatIsNotFinalPasses) {
  cuda_fixture f;
  void *pointer = NULL;
  if (!cuda_fixture_open(&f)) return;
  f.hooks->fail("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->device_alloc(f.self, 0, 4096, &pointer));
  f.hooks->fail("cuMemAlloc", 1, CUDA_ERROR_UNKNOWN);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, f.ops->device_alloc(f.self, 0, 4096, &pointer));
  LADE_EXPECT_OK(f.ops->device_alloc(f.self, 0, 4096, &pointer));
  LADE_EXPECT_OK(f.ops->device_free(f.self, 0, pointer));
  cuda_fixture_close(&f);
}

/* ---- Resets ------------------------------------------------------------------------------------------------------ */

LADE_TEST(CudaLoss, AResetDeviceIsLost) {
  cuda_fixture f;
  void *pointer = NULL;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  const cuda_fixture before = f;
  f.hooks->reset_device(0);
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f.ops->device_alloc(f.self, 0, 4096, &pointer));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f.ops->device_alloc(f.self, 1, 4096, &pointer));
  LADE_EXPECT_OK(f.ops->device_free(f.self, 0, f.device));
  recover(&f, &before);
}

/* The program leaves a dead context of its own current in the thread, on a device that lade does not use. */
static void leave_dead_context(cuda_fixture *f) {
  CUcontext mine = NULL;
  LADE_EXPECT_EQ_INT(ENTRY(f, cuDevicePrimaryCtxRetain, 7000)(&mine, 1), CUDA_SUCCESS);
  ENTRY(f, cuCtxPushCurrent, 4000)(mine);
  f->hooks->reset_device(1);
}

static void take_dead_context(cuda_fixture *f) {
  ENTRY(f, cuCtxSetCurrent, 4000)(NULL);
  ENTRY(f, cuDevicePrimaryCtxRelease, 11000)(1);
}

LADE_TEST(CudaLoss, ADeadContextOfTheProgramIsInNobodysWay) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  leave_dead_context(&f);
  LADE_EXPECT_OK(f.ops->event_query(f.self, f.event));
  cuda_disown(&f, CUDA_OWN_HOST, (uintptr_t)f.pinned);
  LADE_EXPECT_OK(f.ops->host_free(f.self, f.pinned));
  take_dead_context(&f);
  cuda_fixture_close(&f); /* finds what the free did not */
}

/* Without a context of its own the runtime can only say so: it is not lost, and nothing was freed. */
LADE_TEST(CudaLoss, ADeadContextOfTheProgramLosesNothing) {
  cuda_fixture f;
  int here = 0;
  ladei_pointer_attributes attributes;
  if (!cuda_fixture_open(&f)) return;
  leave_dead_context(&f);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->pointer_attributes(f.self, &here, &attributes));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_free(f.self, &here));
  take_dead_context(&f);
  LADE_EXPECT_OK(f.ops->pointer_attributes(f.self, &here, &attributes));
  LADE_EXPECT_EQ_INT(attributes.kind, LADEI_MEMORY_UNKNOWN);
  cuda_fixture_close(&f);
}
