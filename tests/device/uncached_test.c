/* SPDX-License-Identifier: Apache-2.0 */
/* Raw allocations, and the mode that caches nothing but them. */
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

static bool open_uncached(device_fixture *f, const char *runtime) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_UNCACHED;
  return device_fixture_open(f, runtime, 256 * MIB, &options);
}

LADE_TEST(DeviceRaw, AllocatesWithAndWithoutStream) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  void *a = NULL;
  void *b = NULL;
  void *nothing = &f;
  LADE_EXPECT_OK(lade_runtime_set_device(f.runtime, 0));
  LADE_EXPECT_OK(lade_device_raw_alloc(f.allocator, 1000, NULL, &a));
  LADE_EXPECT_OK(lade_device_raw_alloc(f.allocator, 1000, f.streams[0], &b));
  LADE_EXPECT_OK(lade_device_raw_alloc(f.allocator, 0, NULL, &nothing));
  LADE_EXPECT_EQ_PTR(nothing, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_raw_alloc(f.allocator, SIZE_MAX, NULL, &nothing));
  LADE_EXPECT_OK(lade_device_free(f.allocator, a));
  LADE_EXPECT_OK(lade_device_free(f.allocator, b));
  LADE_EXPECT_OK(lade_device_free(f.allocator, NULL));
  /* The one without a stream is the legacy stream's. */
  void *again = NULL;
  LADE_EXPECT_OK(lade_device_raw_alloc(f.allocator, 1000, LADE_STREAM_LEGACY, &again));
  LADE_EXPECT_EQ_PTR(again, a);
  LADE_EXPECT_OK(lade_device_free(f.allocator, again));
  device_fixture_close(&f);
}

LADE_TEST(DeviceUncached, EachBlockIsADriverAllocation) {
  device_fixture f;
  if (!open_uncached(&f, "sim")) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_alloc"), 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.current, 0);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, a + 8, f.streams[1]));
  void *base = NULL;
  size_t bytes = 0;
  LADE_EXPECT_OK(lade_device_base_get(f.allocator, a + 8, &base, &bytes));
  LADE_EXPECT_EQ_PTR(base, a);
  LADE_EXPECT_EQ_SIZE(bytes, 1000);
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, a + 8));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "2 uncached blocks");
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_free"), 1);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, a));
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

/* Hazard of PyTorch's allocator: a raw allocation is cached, and its deleter was not. Here a free knows what it frees. */
LADE_TEST(hazard_H22, RawAllocationsStayCachedAndFreesTellThemApart) {
  device_fixture f;
  if (!open_uncached(&f, "sim")) return;
  void *raw = NULL;
  LADE_EXPECT_OK(lade_device_raw_alloc(f.allocator, 1000, f.streams[0], &raw));
  char *direct = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.current, 1);
  LADE_EXPECT_OK(lade_device_free(f.allocator, raw));
  LADE_EXPECT_OK(lade_device_free(f.allocator, direct));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_free"), 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 2 * MIB);
  device_fixture_close(&f);
}

/* A free waits for work of any stream. */
LADE_TEST(DeviceUncached, FreesWaitForTheDevice) {
  device_fixture f;
  if (!open_uncached(&f, "cpu")) return;
  char *a = device_fixture_alloc(&f, MIB, 0);
  ladei_stream on;
  LADE_EXPECT_OK(f.runtime->ops->stream_resolve(f.runtime->self, f.streams[1], &on));
  for (int i = 0; i < 16; i++) LADE_EXPECT_OK(f.runtime->ops->fill(f.runtime->self, a, 1, MIB, &on));
  device_fixture_free(&f, a);
  LADE_EXPECT_OK(lade_stream_query(f.runtime, f.streams[1]));
  device_fixture_close(&f);
}

LADE_TEST(DeviceUncached, AFailedFreeCanBeRepeated) {
  device_fixture f;
  if (!open_uncached(&f, "sim")) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  support_fail(f.runtime, "device_free", 1, 1);
  LADE_EXPECT(lade_device_free(f.allocator, a) != LADE_OK);
  device_fixture_free(&f, a);
  support_fail(f.runtime, "device_alloc", 1, 1);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 1, f.streams[0], &none));
  LADE_EXPECT_EQ_PTR(none, NULL);
  device_fixture_close(&f);
}
