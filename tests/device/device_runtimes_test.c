/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device allocator on devices with bytes, with real work on real streams: software devices, runtime/cuda on the
 * loopback driver, and a GPU where there is one.
 */
#include <stdlib.h>
#include <string.h>

#include "device/allocator.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

#define MIB ((size_t)1 << 20)

enum { STREAMS = 2 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream streams[STREAMS];
  ladei_stream resolved[STREAMS];
} rig;

static bool rig_open(rig *r, const char *name, const lade_device_options *options) {
  r->runtime = support_runtime_open(name);
  if (r->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(r->runtime, 0));
  for (int i = 0; i < STREAMS; i++) {
    LADE_EXPECT_OK(lade_stream_create(r->runtime, 0, &r->streams[i]));
    LADE_EXPECT_OK(r->runtime->ops->stream_resolve(r->runtime->self, r->streams[i], &r->resolved[i]));
  }
  LADE_EXPECT_OK(lade_device_allocator_create(r->runtime, 0, options, &r->allocator));
  return !lade_test_has_failed();
}

static void rig_close(rig *r) {
  LADE_EXPECT_OK(ladei_device_allocator_check(r->allocator));
  LADE_EXPECT_OK(lade_device_allocator_destroy(r->allocator, true));
  for (int i = 0; i < STREAMS; i++) LADE_EXPECT_OK(lade_stream_destroy(r->runtime, r->streams[i]));
  support_runtime_close(r->runtime);
}

static char *block_alloc(rig *r, size_t bytes, int stream) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(r->allocator, bytes, r->streams[stream], &block));
  return block;
}

static void block_fill(rig *r, void *block, unsigned char value, size_t bytes, int stream) {
  LADE_EXPECT_OK(r->runtime->ops->fill(r->runtime->self, block, value, bytes, &r->resolved[stream]));
}

/* Every byte is `value`, once the stream has finished. */
static void block_expect(rig *r, const void *block, unsigned char value, size_t bytes, int stream) {
  unsigned char *host = malloc(bytes);
  unsigned char *expected = malloc(bytes);
  LADE_ASSERT(host != NULL && expected != NULL);
  memset(expected, value, bytes);
  LADE_EXPECT_OK(lade_stream_synchronize(r->runtime, r->streams[stream]));
  LADE_EXPECT_OK(r->runtime->ops->copy_sync(r->runtime->self, 0, LADEI_COPY_D2H, host, block, bytes));
  LADE_EXPECT_EQ_MEM(host, expected, bytes);
  free(host);
  free(expected);
}

LADE_TEST_P(DeviceRuntimes, BlocksAreUsableMemory, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  char *small = block_alloc(&r, 1000, 0);
  char *large = block_alloc(&r, 3 * MIB, 0);
  LADE_EXPECT_EQ_UINT((uintptr_t)small % 512, 0);
  block_fill(&r, small, 3, 1000, 0);
  block_fill(&r, large, 5, 3 * MIB, 0);
  block_expect(&r, small, 3, 1000, 0);
  block_expect(&r, large, 5, 3 * MIB, 0);
  LADE_EXPECT_OK(lade_device_free(r.allocator, small));
  LADE_EXPECT_EQ_PTR(block_alloc(&r, 900, 0), small);
  LADE_EXPECT_OK(lade_device_free(r.allocator, small));
  LADE_EXPECT_OK(lade_device_free(r.allocator, large));
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator));
  rig_close(&r);
}

LADE_TEST_P(DeviceRuntimes, AnotherStreamsUseDelaysReuse, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  rig r;
  if (!rig_open(&r, name, &options)) return;
  char *a = block_alloc(&r, 1000, 0);
  char *b = block_alloc(&r, 1000, 0);
  LADE_EXPECT_OK(lade_device_free(r.allocator, b));
  LADE_EXPECT_OK(lade_stream_synchronize(r.runtime, r.streams[1]));
  support_gate gate;
  LADE_ASSERT(support_gate_close(&gate, r.runtime, r.streams[1]));
  block_fill(&r, a, 1, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, a, r.streams[1]));
  LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  LADE_EXPECT_EQ_PTR(block_alloc(&r, 1000, 0), b);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(r.runtime, r.streams[1]));
  LADE_EXPECT_EQ_PTR(block_alloc(&r, 1000, 0), a);
  LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  LADE_EXPECT_OK(lade_device_free(r.allocator, b));
  rig_close(&r);
}

LADE_TEST_P(DeviceRuntimes, ExpandableSegmentsKeepTheirBytes, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  rig r;
  if (!rig_open(&r, name, &options)) return;
  char *a = block_alloc(&r, 30 * MIB, 0);
  char *b = block_alloc(&r, 25 * MIB, 0);
  LADE_EXPECT_EQ_PTR(b, a + 30 * MIB);
  block_fill(&r, b, 9, 25 * MIB, 0);
  LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator)); /* takes the first granule out from under a */
  char *c = block_alloc(&r, 30 * MIB, 0);
  LADE_EXPECT_EQ_PTR(c, a);
  block_fill(&r, c, 7, 30 * MIB, 0);
  block_expect(&r, b, 9, 25 * MIB, 0);
  block_expect(&r, c, 7, 30 * MIB, 0);
  LADE_EXPECT_OK(lade_device_free(r.allocator, b));
  LADE_EXPECT_OK(lade_device_free(r.allocator, c));
  rig_close(&r);
}

LADE_TEST_P(DeviceRuntimes, CacheGoesBackBeforeMemoryRunsOut, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  LADE_EXPECT_OK(r.runtime->ops->memory_info(r.runtime->self, 0, &free_bytes, &total_bytes));
  char *a = block_alloc(&r, free_bytes / 5 * 3, 0);
  LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  char *b = block_alloc(&r, free_bytes / 10 * 7, 1); /* more than is left beside a */
  LADE_EXPECT_OK(lade_device_free(r.allocator, b));
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     lade_device_alloc(r.allocator, total_bytes + MIB, r.streams[0], &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "is out of memory");
  rig_close(&r);
}

LADE_TEST_P(DeviceRuntimes, CapturesAllocateFromTheirPool, SUPPORT_RUNTIMES, name) {
  static const lade_device_pool_id pool = {1, 0};
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  const lade_runtime_ops *ops = r.runtime->ops;
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  LADE_ASSERT_OK(ops->capture_begin(r.runtime->self, &r.resolved[0], LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(lade_device_pool_begin(r.allocator, pool, &r.streams[0], 1));
  char *a = block_alloc(&r, 3 * MIB, 0); /* new memory, in the middle of a capture */
  block_fill(&r, a, 6, 3 * MIB, 0);
  LADE_EXPECT_OK(lade_device_pool_end(r.allocator, pool));
  LADE_ASSERT_OK(ops->capture_end(r.runtime->self, &r.resolved[0], &graph));
  LADE_ASSERT_OK(ops->graph_instantiate(r.runtime->self, graph, &exec));
  LADE_EXPECT_OK(ops->graph_launch(r.runtime->self, exec, &r.resolved[1]));
  block_expect(&r, a, 6, 3 * MIB, 1);
  LADE_EXPECT_OK(ops->graph_exec_destroy(r.runtime->self, exec));
  LADE_EXPECT_OK(ops->graph_destroy(r.runtime->self, graph));
  LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  LADE_EXPECT_OK(lade_device_pool_release(r.allocator, pool));
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator));
  rig_close(&r);
}

/* ---- Hazard H9 of the reference: uses noted in a capture, and uses noted outside ---------------------------------- */

static const lade_device_pool_id pool_one = {1, 0};
static const lade_device_pool_id pool_two = {2, 0};

/* Two blocks of stream 0 in one segment, the second one free; work on stream 1 that waits for the gate. */
static bool hazard_open(rig *r, const char *name, support_gate *gate, char **out_used, char **out_free) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  if (!rig_open(r, name, &options)) return false;
  *out_used = block_alloc(r, 1000, 0);
  *out_free = block_alloc(r, 1000, 0);
  LADE_EXPECT_OK(lade_device_free(r->allocator, *out_free));
  LADE_EXPECT_OK(lade_stream_synchronize(r->runtime, r->streams[1]));
  return support_gate_close(gate, r->runtime, r->streams[1]);
}

/* While stream 1 is held, the block that it uses must not come back; afterwards it must. */
static void hazard_close(rig *r, support_gate *gate, char *used, char *other) {
  LADE_EXPECT_EQ_PTR(block_alloc(r, 1000, 0), other);
  support_gate_open(gate);
  LADE_EXPECT(support_wait_stream(r->runtime, r->streams[1]));
  LADE_EXPECT_EQ_PTR(block_alloc(r, 1000, 0), used);
  LADE_EXPECT_OK(lade_device_free(r->allocator, used));
  LADE_EXPECT_OK(lade_device_free(r->allocator, other));
  rig_close(r);
}

static void pool_leave(rig *r, lade_device_pool_id pool) {
  LADE_EXPECT_OK(lade_device_pool_end(r->allocator, pool));
  LADE_EXPECT_OK(lade_device_pool_release(r->allocator, pool));
}

/* One stream, noted on one block both before and during a capture. */
LADE_TEST_P(hazard_H09, UseOutsideTheCaptureIsHonoured, SUPPORT_RUNTIMES, name) {
  rig r;
  support_gate gate;
  char *used, *other;
  if (!hazard_open(&r, name, &gate, &used, &other)) return;
  block_fill(&r, used, 1, 1000, 1); /* outside: runs when the gate opens */
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, used, r.streams[1]));
  const lade_runtime_ops *ops = r.runtime->ops;
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(ops->capture_begin(r.runtime->self, &r.resolved[0], LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(lade_device_pool_begin(r.allocator, pool_one, &r.streams[0], 1));
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, used, r.streams[1]));
  LADE_EXPECT_OK(lade_device_free(r.allocator, used)); /* deferred */
  pool_leave(&r, pool_one);
  LADE_ASSERT_OK(ops->capture_end(r.runtime->self, &r.resolved[0], &graph));
  if (graph != NULL) LADE_EXPECT_OK(ops->graph_destroy(r.runtime->self, graph));
  hazard_close(&r, &gate, used, other);
}

/* The other way round in time, and for the block's next owner: what a capture noted once must not excuse a use later. */
LADE_TEST_P(hazard_H09, NoteOfAFormerCaptureExcusesNothing, SUPPORT_RUNTIMES, name) {
  rig r;
  support_gate gate;
  char *used, *other;
  if (!hazard_open(&r, name, &gate, &used, &other)) return;
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(r.runtime, r.streams[1]));
  LADE_EXPECT_OK(lade_device_pool_begin(r.allocator, pool_one, &r.streams[0], 1));
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, used, r.streams[1]));
  pool_leave(&r, pool_one);
  LADE_EXPECT_OK(lade_device_free(r.allocator, used)); /* after the capture: nothing is put off */
  LADE_EXPECT(support_wait_stream(r.runtime, r.streams[1]));
  LADE_EXPECT_EQ_PTR(block_alloc(&r, 1000, 0), used);

  LADE_EXPECT_OK(lade_stream_synchronize(r.runtime, r.streams[1]));
  LADE_ASSERT(support_gate_close(&gate, r.runtime, r.streams[1]));
  block_fill(&r, used, 2, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, used, r.streams[1]));
  LADE_EXPECT_OK(lade_device_pool_begin(r.allocator, pool_two, &r.streams[0], 1));
  LADE_EXPECT_OK(lade_device_free(r.allocator, used)); /* deferred */
  pool_leave(&r, pool_two);
  hazard_close(&r, &gate, used, other);
}

/* Memory of an expandable segment through descriptors; the receiver is this process again. */
LADE_TEST_P(DeviceRuntimes, ExpandableMemoryIsShared, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_IPC;
  rig r;
  if (!rig_open(&r, name, &options)) return;
  int64_t exports = 0;
  LADE_EXPECT_OK(r.runtime->ops->device_attribute(r.runtime->self, 0, LADEI_ATTR_HANDLE_TYPE_POSIX_FD, &exports));
  if (exports != 0) {
    char *a = block_alloc(&r, 30 * MIB, 0);
    block_fill(&r, a, 6, 30 * MIB, 0);
    lade_device_shared shared;
    lade_device_shared_init(&shared);
    void *there = NULL;
    LADE_EXPECT_OK(lade_device_shared_export(r.allocator, a, &shared));
    LADE_EXPECT_OK(lade_device_shared_open(r.allocator, &shared, &there));
    lade_device_shared_release(&shared);
    block_expect(&r, there, 6, 30 * MIB, 0);
    LADE_EXPECT_OK(lade_device_shared_close(r.allocator, there));
    LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  }
  rig_close(&r);
}

/* A graph's memory in one growing range; it is captured and launched while the pool has grown beyond it. */
LADE_TEST_P(DeviceRuntimes, ExpandablePoolsServeCaptures, SUPPORT_RUNTIMES, name) {
  static const lade_device_pool_id pool = {2, 0};
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  rig r;
  if (!rig_open(&r, name, &options)) return;
  const lade_runtime_ops *ops = r.runtime->ops;
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(lade_device_pool_begin(r.allocator, pool, &r.streams[0], 1));
  LADE_ASSERT_OK(ops->capture_begin(r.runtime->self, &r.resolved[0], LADEI_CAPTURE_GLOBAL));
  char *a = block_alloc(&r, 3 * MIB, 0); /* maps memory during the capture */
  block_fill(&r, a, 4, 3 * MIB, 0);
  LADE_ASSERT_OK(ops->capture_end(r.runtime->self, &r.resolved[0], &graph));
  LADE_EXPECT_OK(lade_device_pool_end(r.allocator, pool));
  LADE_EXPECT_OK(ops->graph_instantiate(r.runtime->self, graph, &exec));
  LADE_EXPECT_OK(ops->graph_launch(r.runtime->self, exec, &r.resolved[0]));
  block_expect(&r, a, 4, 3 * MIB, 0);
  LADE_EXPECT_OK(ops->graph_exec_destroy(r.runtime->self, exec));
  LADE_EXPECT_OK(ops->graph_destroy(r.runtime->self, graph));
  LADE_EXPECT_OK(lade_device_pool_release(r.allocator, pool));
  LADE_EXPECT_OK(lade_device_free(r.allocator, a));
  rig_close(&r);
}
