/* SPDX-License-Identifier: Apache-2.0 */
/* The report of an allocation that found no memory: its fields, in order, and the processes on the device. */
#include <string.h>
#include <unistd.h>

#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/nvml/nvml_fake.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

/* The text holds the parts one after the other; the list ends with NULL. */
static void expect_in_order(const char *text, const char *const *parts) {
  const char *at = text;
  for (size_t i = 0; parts[i] != NULL; i++) {
    const char *found = strstr(at, parts[i]);
    if (found == NULL) {
      LADE_FAIL("\"%s\" is missing, or out of order, in: %s", parts[i], text);
      return;
    }
    at = found + strlen(parts[i]);
  }
}

#ifndef LADE_TEST_ON_CUDA

LADE_TEST(DeviceOom, TheTextHasItsFieldsInOrder) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE; /* which gives nothing back while anybody captures */
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, &options)) return;
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.5));
  lade_device_pool_id id = {1, 0};
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, &f.streams[0], 1));
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
  char *plain = device_fixture_alloc(&f, 5 * MIB, 1); /* in a segment of 20 MiB */
  char *whole = device_fixture_alloc(&f, 40 * MIB, 1);
  device_fixture_free(&f, whole);
  void *out = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 40 * MIB, f.streams[2], &out));
  static const char *const parts[] = {"CUDA out of memory. Device 0: ",
                                      "41943040 bytes asked for, needing 40.00 MiB",
                                      "total 256.00 MiB",
                                      "free 166.00 MiB",
                                      "limit 128.00 MiB",
                                      "allocated 35.00 MiB, 30.00 MiB of it cached in private pools",
                                      "reserved but unallocated 55.00 MiB, for which expandable_segments:True",
                                      "a capture forbids giving the cache back",
                                      "the memory fraction is used up",
                                      NULL};
  expect_in_order(lade_last_error()->text, parts);
  LADE_EXPECT(strstr(lade_last_error()->text, "process") == NULL);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_free(&f, plain);
  device_fixture_close(&f);
}

static void expect_known(lade_status expected, lade_status status) {
  static const char known[] = "CUDA out of memory. ";
  LADE_EXPECT_STATUS(expected, status);
  if (strncmp(lade_last_error()->text, known, sizeof known - 1) != 0) LADE_FAIL("%s", lade_last_error()->text);
}

/* Programs that know PyTorch look for these words, and try again with less: whatever has no memory, and for what. */
LADE_TEST(DeviceOom, EveryTextBeginsAsProgramsKnowIt) {
  lade_device_options options;
  device_fixture f;
  void *out = NULL;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!device_fixture_open(&f, "sim", 64 * MIB, &options)) return;
  lade_device_pool_id pool;
  uint64_t scope = 0;
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  char *kept = device_fixture_alloc(&f, 4 * MIB, 0);
  LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scope));
  expect_known(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 100 * MIB, f.streams[0], &out));
  LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, pool, NULL, NULL));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.0));
  expect_known(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[0], &out));
  expect_known(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_pool_resume(f.allocator, pool));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 1.0));
  LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, pool));
  device_fixture_free(&f, kept);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_close(&f);
}

/* Of every backend. */
LADE_TEST(DeviceOom, EveryBackendBeginsAsProgramsKnowIt) {
  static const struct {
    uint32_t backend, flags;
    uint64_t max_bytes;
    lade_status status;
  } rows[] = {{LADE_DEVICE_NATIVE, 0, 20 * MIB, LADE_ERR_LIMIT},
              {LADE_DEVICE_NATIVE, LADE_DEVICE_UNCACHED, 0, LADE_ERR_OUT_OF_DEVICE_MEMORY},
              {LADE_DEVICE_NATIVE, LADE_DEVICE_REFUSE_BEYOND_LIMIT, 0, LADE_ERR_OUT_OF_DEVICE_MEMORY},
              {LADE_DEVICE_NATIVE, LADE_DEVICE_THREAD_CACHES, 0, LADE_ERR_OUT_OF_DEVICE_MEMORY},
              {LADE_DEVICE_CUDA_MALLOC_ASYNC, 0, 0, LADE_ERR_OUT_OF_DEVICE_MEMORY},
              {LADE_DEVICE_CUDA_MALLOC_ASYNC, 0, 20 * MIB, LADE_ERR_LIMIT}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    lade_device_options options;
    device_fixture f;
    void *out = NULL;
    lade_test_context("row %zu", i);
    lade_device_options_init(&options);
    options.backend = rows[i].backend;
    options.flags = rows[i].flags;
    options.max_bytes = rows[i].max_bytes;
    if (!device_fixture_open(&f, "sim", 64 * MIB, &options)) return;
    expect_known(rows[i].status, lade_device_alloc(f.allocator, 100 * MIB, f.streams[0], &out));
    device_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

/* The report looks at so many free blocks of private pools under the lock, and at no more. */
LADE_TEST(DeviceOom, WhatPrivatePoolsCacheIsSummedUpToABound) {
  enum { BLOCKS = 3000 };
  device_fixture f;
  char *blocks[BLOCKS];
  void *out = NULL;
  lade_device_pool_id id = {1, 0};
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, &f.streams[0], 1));
  for (int i = 0; i < BLOCKS; i++)
    LADE_EXPECT_OK(lade_device_alloc(f.allocator, 512, f.streams[0], (void **)&blocks[i]));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  for (int i = 0; i < BLOCKS; i += 2) LADE_EXPECT_OK(lade_device_free(f.allocator, blocks[i]));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 64 * MIB, f.streams[1], &out));
  LADE_EXPECT(strstr(lade_last_error()->text, ", at least 512.00 KiB of it cached in private pools") != NULL);
  for (int i = 1; i < BLOCKS; i += 2) LADE_EXPECT_OK(lade_device_free(f.allocator, blocks[i]));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 64 * MIB, f.streams[1], &out));
  LADE_EXPECT(strstr(lade_last_error()->text, ", 2.00 MiB of it cached in private pools") != NULL);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_close(&f);
}

/* What says nothing is left out: no limit, no private pools, too little cached for the hint. */
LADE_TEST(DeviceOom, FieldsWithoutMeaningAreAbsent) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 40 * MIB, 0);
  void *out = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[0], &out));
  static const char *const absent[] = {"limit", "private", "expandable", "capture", "other streams", "uses", NULL};
  for (size_t i = 0; absent[i] != NULL; i++) {
    lade_test_context("%s", absent[i]);
    LADE_EXPECT(strstr(lade_last_error()->text, absent[i]) == NULL);
  }
  lade_test_context("%s", "");
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

#else /* where the runtime "cuda" is found, on the loopback driver */

static nvml_fake *fake_for(lade_runtime *runtime, const nvml_fake_process *processes, size_t count) {
  static ladei_device_properties properties;
  nvml_fake *fake = nvml_fake_get();
  if (fake == NULL) {
    LADE_FAIL("the fake library was not found");
    return NULL;
  }
  memset(fake, 0, sizeof *fake);
  LADE_EXPECT_OK(runtime->ops->device_properties(runtime->self, 0, &properties));
  fake->pci_bus_id = properties.pci_bus_id;
  fake->processes = processes;
  fake->count = count;
  return fake;
}

static void fail_to_allocate(lade_device_allocator *allocator, lade_stream stream) {
  void *out = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(allocator, 100 * GIB, stream, &out));
}

LADE_TEST(DeviceOom, ProcessesOfTheDeviceAreNamed) {
  lade_runtime *runtime = support_interposer_open("cuda", NULL);
  if (runtime == NULL) return;
  const nvml_fake_process processes[] = {{100007, 1 << 20}, {100008, 3ull << 30}, {(unsigned)getpid(), 2ull << 30},
                                         {100009, 5 << 20}, {100011, ~0ull},      {100012, 2 << 20},
                                         {100013, 1 << 20}, {100014, 1 << 20}};
  nvml_fake *fake = fake_for(runtime, processes, sizeof processes / sizeof processes[0]);
  if (fake == NULL) return;
  lade_device_allocator *allocator = NULL;
  lade_stream stream = NULL;
  LADE_EXPECT_OK(lade_runtime_set_device(runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_ASSERT_OK(lade_device_allocator_create(runtime, 0, NULL, &allocator));
  fail_to_allocate(allocator, stream);
  static const char *const parts[] = {"free ",
                                      "; this process uses 2.00 GiB, other memory included",
                                      "; process 100008 uses 3.00 GiB",
                                      "; process 100009 uses 5.00 MiB",
                                      "; process 100012 uses 2.00 MiB",
                                      "; 4 more use 3.00 MiB",
                                      "; allocated ",
                                      NULL};
  expect_in_order(lade_last_error()->text, parts);
  LADE_EXPECT_EQ_INT(fake->running, 0);
  /* One whose memory is not known; and a library that fails leaves the field out. */
  fake->processes = &processes[4];
  fake->count = 1;
  fail_to_allocate(allocator, stream);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "process 100011 uses an unknown amount");
  fake->init_code = 9;
  fail_to_allocate(allocator, stream);
  LADE_EXPECT(strstr(lade_last_error()->text, "uses") == NULL);
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  support_runtime_close(runtime);
}

#endif
