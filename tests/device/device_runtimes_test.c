/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The device allocator on devices with bytes, with real work on real streams: software devices,
 * runtime/cuda on the loopback driver, and a GPU where there is one.
 */
#include <string.h>

#include "base/file_number.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/loopback/hooks.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

LADE_TEST_P(DeviceRuntimes, BlocksAreUsableMemory, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, NULL)) return;
  char *small = device_fixture_alloc(&f, 1000, 0);
  char *large = device_fixture_alloc(&f, 3 * MIB, 0);
  LADE_EXPECT_EQ_UINT((uintptr_t)small % 512, 0);
  device_fixture_fill(&f, small, 3, 1000, 0);
  device_fixture_fill(&f, large, 5, 3 * MIB, 0);
  device_fixture_expect_bytes(&f, small, 3, 1000, 0);
  device_fixture_expect_bytes(&f, large, 5, 3 * MIB, 0);
  device_fixture_free(&f, small);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 900, 0), small);
  device_fixture_free(&f, small);
  device_fixture_free(&f, large);
  device_fixture_empty_cache(&f);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceRuntimes, AnotherStreamsUseDelaysReuse, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, b);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, f.streams[1]));
  device_fixture_fill(&f, a, 1, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, a, f.streams[1]));
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), b);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(f.runtime, f.streams[1]));
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), a);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceRuntimes, ExpandableSegmentsKeepTheirBytes, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  char *a = device_fixture_alloc(&f, 30 * MIB, 0);
  char *b = device_fixture_alloc(&f, 25 * MIB, 0);
  LADE_EXPECT_EQ_PTR(b, a + 30 * MIB);
  device_fixture_fill(&f, b, 9, 25 * MIB, 0);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f); /* takes the first granule out from under a */
  char *c = device_fixture_alloc(&f, 30 * MIB, 0);
  LADE_EXPECT_EQ_PTR(c, a);
  device_fixture_fill(&f, c, 7, 30 * MIB, 0);
  device_fixture_expect_bytes(&f, b, 9, 25 * MIB, 0);
  device_fixture_expect_bytes(&f, c, 7, 30 * MIB, 0);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceRuntimes, CacheGoesBackBeforeMemoryRunsOut, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, NULL)) return;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  LADE_EXPECT_OK(f.runtime->ops->memory_info(f.runtime->self, 0, &free_bytes, &total_bytes));
  char *a = device_fixture_alloc(&f, free_bytes / 5 * 3, 0);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, free_bytes / 10 * 7, 1); /* more than is left beside a */
  device_fixture_free(&f, b);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     lade_device_alloc(f.allocator, total_bytes + MIB, f.streams[0], &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "CUDA out of memory. Device 0: ");
  device_fixture_close(&f);
}

/* On such a machine what the driver calls free is less: it counts the page cache as used. */
LADE_TEST_P(DeviceRuntimes, AnIntegratedDeviceHasFreeWhatTheSystemHas, SUPPORT_RUNTIMES, name) {
  const loopback_hooks *hooks = strcmp(name, "cuda") == 0 ? loopback_hooks_get() : NULL;
  device_fixture f;
  if (hooks == NULL || !device_fixture_open_bytes(&f, name, NULL)) return;
  char *block = device_fixture_alloc(&f, 30 * MIB, 0);
  size_t free_bytes = 0, total_bytes = 0, of_driver = 0, total = 0;
  LADE_EXPECT_OK(lade_device_memory_get(f.allocator, &of_driver, &total_bytes));
  LADE_EXPECT_LE_SIZE(of_driver, total_bytes - 30 * MIB);
  hooks->set_attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED, 1);
  uint64_t before = 0, after = 0;
  LADE_ASSERT(ladei_file_number("/proc/meminfo", "MemAvailable:", &before));
  LADE_EXPECT_OK(lade_device_memory_get(f.allocator, &free_bytes, &total));
  LADE_ASSERT(ladei_file_number("/proc/meminfo", "MemAvailable:", &after));
  size_t available_bytes = (size_t)(before < after ? before : after) << 10;
  LADE_EXPECT_EQ_SIZE(total, total_bytes);
  LADE_EXPECT_LE_SIZE(free_bytes, total_bytes);
  if (available_bytes > total_bytes + GIB)
    LADE_EXPECT_EQ_SIZE(free_bytes, total_bytes); /* whatever others do meanwhile */
  hooks->set_attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED, 0);
  LADE_EXPECT_OK(lade_device_memory_get(f.allocator, &free_bytes, &total));
  LADE_EXPECT_EQ_SIZE(free_bytes, of_driver);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceRuntimes, CapturesAllocateFromTheirPool, SUPPORT_RUNTIMES, name) {
  static const lade_device_pool_id pool = {1, 0};
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, NULL)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  ladei_stream on = device_fixture_resolve(&f, 0), launched_on = device_fixture_resolve(&f, 1);
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  LADE_ASSERT_OK(ops->capture_begin(f.runtime->self, &on, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool, &f.streams[0], 1));
  char *a = device_fixture_alloc(&f, 3 * MIB, 0); /* new memory, in the middle of a capture */
  device_fixture_fill(&f, a, 6, 3 * MIB, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool));
  LADE_ASSERT_OK(ops->capture_end(f.runtime->self, &on, &graph));
  LADE_ASSERT_OK(ops->graph_instantiate(f.runtime->self, graph, &exec));
  LADE_EXPECT_OK(ops->graph_launch(f.runtime->self, exec, &launched_on));
  device_fixture_expect_bytes(&f, a, 6, 3 * MIB, 1);
  LADE_EXPECT_OK(ops->graph_exec_destroy(f.runtime->self, exec));
  LADE_EXPECT_OK(ops->graph_destroy(f.runtime->self, graph));
  device_fixture_free(&f, a);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_empty_cache(&f);
  device_fixture_close(&f);
}

/* ---- Hazard H9: uses noted in a capture, and uses noted outside --------------------------------------------------- */

static const lade_device_pool_id pool_one = {1, 0};
static const lade_device_pool_id pool_two = {2, 0};

static void pool_leave(device_fixture *f, lade_device_pool_id pool) {
  LADE_EXPECT_OK(lade_device_pool_end(f->allocator, pool));
  LADE_EXPECT_OK(lade_device_pool_release(f->allocator, pool));
}

/* One stream, noted on one block both before and during a capture. */
LADE_TEST_P(hazard_H09, UseOutsideTheCaptureIsHonoured, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  support_stream_hold hold;
  char *used, *other;
  if (!device_fixture_use_open(&f, name, &hold, &used, &other)) return;
  device_fixture_fill(&f, used, 1, 1000, 1); /* outside: runs when the hold ends */
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, used, f.streams[1]));
  const lade_runtime_ops *ops = f.runtime->ops;
  ladei_stream on = device_fixture_resolve(&f, 0);
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(ops->capture_begin(f.runtime->self, &on, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, used, f.streams[1]));
  device_fixture_free(&f, used); /* deferred */
  pool_leave(&f, pool_one);
  LADE_ASSERT_OK(ops->capture_end(f.runtime->self, &on, &graph));
  if (graph != NULL) LADE_EXPECT_OK(ops->graph_destroy(f.runtime->self, graph));
  device_fixture_use_close(&f, &hold, used, other);
}

/* The other way round in time, and for the block's next owner: what a capture noted once must not excuse a use later. */
LADE_TEST_P(hazard_H09, NoteOfAFormerCaptureExcusesNothing, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  support_stream_hold hold;
  char *used, *other;
  if (!device_fixture_use_open(&f, name, &hold, &used, &other)) return;
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(f.runtime, f.streams[1]));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, used, f.streams[1]));
  pool_leave(&f, pool_one);
  device_fixture_free(&f, used); /* after the capture: nothing is deferred */
  LADE_EXPECT(support_wait_stream(f.runtime, f.streams[1]));
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), used);

  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, f.streams[1]));
  device_fixture_fill(&f, used, 2, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, used, f.streams[1]));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_two, &f.streams[0], 1));
  device_fixture_free(&f, used); /* deferred */
  pool_leave(&f, pool_two);
  device_fixture_use_close(&f, &hold, used, other);
}

/* Memory of an expandable segment through descriptors; the receiver is this process again. */
LADE_TEST_P(DeviceRuntimes, ExpandableMemoryIsShared, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_IPC;
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  int64_t exports = 0;
  LADE_EXPECT_OK(f.runtime->ops->device_attribute(f.runtime->self, 0, LADEI_ATTR_HANDLE_TYPE_POSIX_FD, &exports));
  if (exports != 0) {
    char *a = device_fixture_alloc(&f, 30 * MIB, 0);
    device_fixture_fill(&f, a, 6, 30 * MIB, 0);
    lade_device_shared shared;
    lade_device_shared_init(&shared);
    void *there = NULL;
    LADE_EXPECT_OK(lade_device_shared_export(f.allocator, a, &shared));
    LADE_EXPECT_OK(lade_device_shared_open(f.allocator, &shared, &there));
    lade_device_shared_release(&shared);
    device_fixture_expect_bytes(&f, there, 6, 30 * MIB, 0);
    LADE_EXPECT_OK(lade_device_shared_close(f.allocator, there));
    device_fixture_free(&f, a);
  }
  device_fixture_close(&f);
}

/* A graph's memory in one growing range; it is captured and launched while the pool has grown beyond it. */
LADE_TEST_P(DeviceRuntimes, ExpandablePoolsServeCaptures, SUPPORT_RUNTIMES, name) {
  static const lade_device_pool_id pool = {2, 0};
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  ladei_stream on = device_fixture_resolve(&f, 0);
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool, &f.streams[0], 1));
  LADE_ASSERT_OK(ops->capture_begin(f.runtime->self, &on, LADEI_CAPTURE_GLOBAL));
  char *a = device_fixture_alloc(&f, 3 * MIB, 0); /* maps memory during the capture */
  device_fixture_fill(&f, a, 4, 3 * MIB, 0);
  LADE_ASSERT_OK(ops->capture_end(f.runtime->self, &on, &graph));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool));
  LADE_EXPECT_OK(ops->graph_instantiate(f.runtime->self, graph, &exec));
  LADE_EXPECT_OK(ops->graph_launch(f.runtime->self, exec, &on));
  device_fixture_expect_bytes(&f, a, 4, 3 * MIB, 0);
  LADE_EXPECT_OK(ops->graph_exec_destroy(f.runtime->self, exec));
  LADE_EXPECT_OK(ops->graph_destroy(f.runtime->self, graph));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* ---- Streams that are not retired -------------------------------------------------------------------------------- */

#ifndef LADE_TEST_ON_GPU /* whose driver may crash on a handle that names no stream */
typedef struct successor {
  lade_runtime *runtime;
  lade_stream stream;
  const char *at; /* NULL: made */
} successor;

/* As a thread that destroys the stream beside that call, and makes one that gets its handle. */
static void successor_make(void *user, const char *op) {
  successor *s = user;
  lade_stream next = NULL;
  if (s->at == NULL || strcmp(op, s->at) != 0) return;
  s->at = NULL;
  LADE_EXPECT_OK(s->runtime->ops->stream_destroy(s->runtime->self, s->stream));
  LADE_EXPECT_OK(s->runtime->ops->stream_create(s->runtime->self, 0, 0, 0, &next));
  LADE_EXPECT_EQ_PTR(next, s->stream);
}

/* Bug: the answer of the idle successor counted, and memory went back that the stream's work might still have used. */
LADE_TEST_P(DeviceRuntimes, SuccessorMadeBesideACallDoesNotAnswerForTheStream, SUPPORT_RUNTIMES, name) {
  static const char *const calls[] = {"stream_capture_info", "event_create", "event_record"};
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    device_fixture f;
    void *block = NULL;
    lade_test_context("at %s", calls[i]);
    if (!device_fixture_open_bytes(&f, name, NULL)) return;
    successor s = {.runtime = f.runtime, .at = calls[i]};
    LADE_ASSERT_OK(f.runtime->ops->stream_create(f.runtime->self, 0, 0, 0, &s.stream));
    LADE_ASSERT_OK(lade_device_alloc(f.allocator, 1000, s.stream, &block));
    device_fixture_free(&f, block);
    support_on_call(f.runtime, successor_make, &s);
    device_fixture_empty_cache(&f);
    support_on_call(f.runtime, NULL, NULL);
    LADE_EXPECT(s.at == NULL);
    LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_synchronize"), 1);
    LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
    LADE_EXPECT_OK(lade_stream_destroy(f.runtime, s.stream));
    device_fixture_close(&f);
  }
  lade_test_context("%s", "");
}
#endif
