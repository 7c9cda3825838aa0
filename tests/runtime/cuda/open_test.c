/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the runtime: the table of entry points, drivers of all ages, drivers that do not work.
 *
 * Locks: none; one thread.
 */
#include <string.h>

#include "runtime/cuda/cuda.h"
#include "runtime/cuda/entry_points.h"
#include "runtime/ops_list.h"
#include "tests/runtime/cuda/fixture.h"

LADE_TEST(CudaOpen, GivesACompleteTable) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_OK(ladei_ops_check(f.ops));
  LADE_EXPECT_EQ_STR(f.ops->name, "cuda");
#define EXPECT_OP(op, group)                                                                                           \
  if (strcmp(#group, "VIRTUAL_TIME") == 0 || strcmp(#group, "KERNELS") == 0)                                           \
    LADE_EXPECT(f.ops->op == NULL);                                                                                    \
  else if (f.ops->op == NULL)                                                                                          \
    LADE_FAIL("no op %s", #op);
  LADEI_OPS_LIST(EXPECT_OP)
#undef EXPECT_OP
  cuda_fixture_close(&f);
}

LADE_TEST(CudaOpen, CreatesNoContext) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(0), 0u);
  LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(1), 0u);
  cuda_fixture_close(&f);
}

/* Each at the version that its function type is of, and no other, whatever the header's CUDA_VERSION. */
LADE_TEST(CudaOpen, AsksForEachEntryPointAtItsOwnVersion) {
  cuda_fixture f;
  size_t count;
  const cuda_entry_point *entries = ladei_cuda_entry_points(&count);
  if (!cuda_fixture_open(&f)) return;
  for (size_t i = 0; i < count; i++) {
    lade_test_context("%s", entries[i].symbol);
    LADE_EXPECT_EQ_INT(f.hooks->asked_version(entries[i].symbol, entries[i].version), entries[i].version);
    LADE_EXPECT_NE_INT(f.hooks->asked_version(entries[i].symbol, 0), 0);
  }
  lade_test_context("%s", "");
  cuda_fixture_close(&f);
}

/* The driver of 13.0 has newer prototypes of these under the same names; a call through them would be a violation. */
LADE_TEST(CudaOpen, TakesOldPrototypesFromANewDriver) {
  static const struct {
    const char *symbol;
    int ours;
    int newer;
  } changed[] = {{"cuCtxGetDevice", 2000, 13000},
                 {"cuCtxSynchronize", 2000, 13000},
                 {"cuEventElapsedTime", 2000, 12080},
                 {"cuStreamGetCaptureInfo", 11030, 12030},
                 {"cuStreamGetCtx", 9020, 12050}};
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
    void *ours = f.hooks->entry_point(changed[i].symbol, changed[i].ours);
    LADE_EXPECT_NE_PTR(ours, NULL);
    LADE_EXPECT_NE_PTR(f.hooks->entry_point(changed[i].symbol, changed[i].newer), ours);
  }
  cuda_fixture_close(&f);
}

/* ---- Older drivers ----------------------------------------------------------------------------------------------- */

LADE_TEST(CudaOpen, NamesTheEntryPointThatIsMissing) {
  cuda_fixture f;
  size_t count;
  const cuda_entry_point *entries = ladei_cuda_entry_points(&count);
  for (size_t i = 0; i < count; i++) {
    if (!cuda_fixture_reset(&f)) return;
    lade_test_context("%s", entries[i].symbol);
    f.hooks->hide(entries[i].symbol);
    lade_status status = cuda_fixture_open_runtime(&f);
    LADE_EXPECT_STATUS(entries[i].required ? LADE_ERR_UNSUPPORTED : LADE_OK, status);
    if (status != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, entries[i].symbol);
    cuda_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(CudaOpen, RefusesDriversBeforeCuda12) {
  cuda_fixture f;
  if (!cuda_fixture_reset(&f)) return;
  f.hooks->set_version(11080);
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, cuda_fixture_open_runtime(&f));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "cuStreamGetId");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "12.0");
  cuda_fixture_close(&f);
}

static lade_status batch_of_one(cuda_fixture *f) {
  void *dst = f->device;
  const void *src = f->pinned;
  size_t bytes = 512;
  return f->ops->copy_batch(f->self, LADEI_COPY_H2D, 1, &dst, &src, &bytes, &f->stream);
}

static void with_driver(int version, lade_status batch, lade_status host_pool, lade_status limited_pool) {
  cuda_fixture f;
  ladei_pool_properties host = {.location = LADEI_POOL_HOST};
  ladei_pool_properties limited = {.location = LADEI_POOL_DEVICE, .max_bytes = 64 << 20};
  ladei_driver_pool pool = NULL;
  if (!cuda_fixture_reset(&f)) return;
  lade_test_context("driver %d", version);
  f.hooks->set_version(version);
  LADE_EXPECT_OK(cuda_fixture_open_runtime(&f));
  if (f.open && cuda_fixture_fill(&f)) {
    LADE_EXPECT_STATUS(batch, batch_of_one(&f));
    lade_status status = f.ops->pool_create(f.self, &host, &pool);
    LADE_EXPECT_STATUS(host_pool, status);
    if (status == LADE_OK) cuda_own(&f, CUDA_OWN_POOL, (uintptr_t)pool);
    status = f.ops->pool_create(f.self, &limited, &pool);
    LADE_EXPECT_STATUS(limited_pool, status);
    if (status == LADE_OK) cuda_own(&f, CUDA_OWN_POOL, (uintptr_t)pool);
    ladei_capture_mode mode = LADEI_CAPTURE_GLOBAL; /* refused, they must leave it as it was */
    LADE_EXPECT_OK(f.ops->capture_mode_exchange(f.self, &mode));
    LADE_EXPECT_EQ_INT(mode, LADEI_CAPTURE_GLOBAL);
  }
  cuda_fixture_close(&f);
  lade_test_context("%s", "");
}

LADE_TEST(CudaOpen, DegradesOnOlderDrivers) {
  with_driver(12000, LADE_ERR_UNSUPPORTED, LADE_ERR_UNSUPPORTED, LADE_ERR_UNSUPPORTED);
  with_driver(12020, LADE_ERR_UNSUPPORTED, LADE_ERR_UNSUPPORTED, LADE_OK);
  with_driver(12080, LADE_OK, LADE_ERR_UNSUPPORTED, LADE_OK);
  with_driver(13000, LADE_OK, LADE_OK, LADE_OK);
}

/* An attribute that the driver has not heard of is 0, and an unknown NUMA node -1. */
LADE_TEST(CudaOpen, OldDriversDoNotKnowNewAttributes) {
  cuda_fixture f;
  int64_t value = -7;
  ladei_device_properties properties;
  if (!cuda_fixture_reset(&f)) return;
  f.hooks->set_version(12000);
  LADE_ASSERT_OK(cuda_fixture_open_runtime(&f));
  LADE_EXPECT_OK(f.ops->device_attribute(f.self, 0, LADEI_ATTR_HOST_POOLS_SUPPORTED, &value));
  LADE_EXPECT_EQ_INT(value, 0);
  LADE_EXPECT_OK(f.ops->device_properties(f.self, 0, &properties));
  LADE_EXPECT_EQ_INT(properties.numa_node, -1);
  cuda_fixture_close(&f);
}

/* ---- Drivers that do not work ------------------------------------------------------------------------------------ */

LADE_TEST(CudaOpen, WithoutADriverThereIsNoDevice) {
  const lade_runtime_ops *ops = NULL;
  void *self = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, ladei_cuda_open_library("libcuda-that-is-not-there.so.1", &ops, &self));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "libcuda-that-is-not-there.so.1");
  LADE_EXPECT_EQ_PTR(ops, NULL);
  LADE_EXPECT_EQ_PTR(self, NULL);
}

LADE_TEST(CudaOpen, ALibraryThatIsNoDriverIsUnsupported) {
  const lade_runtime_ops *ops = NULL;
  void *self = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, ladei_cuda_open_library("libm.so.6", &ops, &self));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "cuGetProcAddress_v2");
}

static void with_failing(const char *symbol, CUresult code, lade_status expected) {
  cuda_fixture f;
  if (!cuda_fixture_reset(&f)) return;
  lade_test_context("%s fails with %d", symbol, (int)code);
  f.hooks->fail(symbol, 1, code);
  LADE_EXPECT_STATUS(expected, cuda_fixture_open_runtime(&f));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, (int)code);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, symbol);
  cuda_fixture_close(&f);
  lade_test_context("%s", "");
}

LADE_TEST(CudaOpen, ADriverThatFailsServesNoDevice) {
  with_failing("cuInit", CUDA_ERROR_NO_DEVICE, LADE_ERR_NO_DEVICE);
  with_failing("cuInit", CUDA_ERROR_UNKNOWN, LADE_ERR_NO_DEVICE);
  with_failing("cuInit", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, LADE_ERR_NO_DEVICE);
  with_failing("cuInit", CUDA_ERROR_OUT_OF_MEMORY, LADE_ERR_OUT_OF_HOST_MEMORY);
  with_failing("cuDriverGetVersion", CUDA_ERROR_INVALID_VALUE, LADE_ERR_NO_DEVICE);
  with_failing("cuDeviceGetCount", CUDA_ERROR_NOT_INITIALIZED, LADE_ERR_NO_DEVICE);
  with_failing("cuDeviceGet", CUDA_ERROR_INVALID_DEVICE, LADE_ERR_NO_DEVICE);
}

LADE_TEST(CudaOpen, MayBeRepeated) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  const lade_runtime_ops *other_ops = NULL;
  void *other = NULL;
  uint64_t one = 0;
  uint64_t two = 0;
  LADE_ASSERT_OK(ladei_cuda_open(&other_ops, &other));
  LADE_EXPECT_OK(f.ops->device_context(f.self, 0, &one));
  LADE_EXPECT_OK(other_ops->device_context(other, 0, &two));
  LADE_EXPECT_EQ_UINT(one, two);
  LADE_EXPECT_EQ_UINT(f.hooks->retained(0), 2u);
  LADE_EXPECT_OK(other_ops->close(other));
  LADE_EXPECT_EQ_UINT(f.hooks->retained(0), 1u);
  cuda_fixture_close(&f);
}
