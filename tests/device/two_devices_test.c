/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between allocators of two devices: every kind of memory at each end, access given or not, on a stream of either
 * device, by itself and within a capture. Without a capture each arrives. Within one those arrive whose stream's device may
 * access both ends, and a refusal leaves the capture as it was.
 */
#include <string.h>

#include "lade/device.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { DEVICES = 2, BYTES = 20000 };

typedef enum memory_kind { PLAIN, EXPANDABLE, DRIVER_POOL, UNCACHED, MEMORY_KINDS } memory_kind;

static const char *const kind_names[] = {"plain", "expandable", "cudaMallocAsync", "uncached"};

/* One end for each device. `added` has bit d where the other device was given access to what device d has. */
typedef struct pair {
  lade_runtime *runtime;
  memory_kind kinds[DEVICES];
  unsigned added;
  lade_device_allocator *allocators[DEVICES];
  lade_stream streams[DEVICES];
  char *blocks[DEVICES];
} pair;

/* False where there is only one device, or the two cannot access each other. */
static bool pair_open(pair *p, const char *name) {
  memset(p, 0, sizeof *p);
  p->runtime = support_runtime_open(name);
  if (p->runtime == NULL) return false;
  int count = 0;
  bool can = false;
  LADE_EXPECT_OK(lade_runtime_device_count(p->runtime, &count));
  if (count >= DEVICES) LADE_EXPECT_OK(p->runtime->ops->peer_can_access(p->runtime->self, 0, 1, &can));
  if (!can) {
    ladet_skip(__FILE__, __LINE__, "there are no two devices that can access each other");
    support_runtime_close(p->runtime);
    return false;
  }
  for (int d = 0; d < DEVICES; d++) LADE_EXPECT_OK(lade_stream_create(p->runtime, d, &p->streams[d]));
  return !lade_test_has_failed();
}

static void pair_close(pair *p) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  if (lade_soft_report_get(p->runtime, &report) == LADE_OK) LADE_EXPECT_EQ_STR(report.last_finding, "");
  for (int d = 0; d < DEVICES; d++) LADE_EXPECT_OK(lade_stream_destroy(p->runtime, p->streams[d]));
  support_runtime_close(p->runtime);
}

static void end_open(pair *p, int device) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = p->kinds[device] == EXPANDABLE;
  if (p->kinds[device] == DRIVER_POOL) options.backend = LADE_DEVICE_CUDA_MALLOC_ASYNC;
  if (p->kinds[device] == UNCACHED) options.flags |= LADE_DEVICE_UNCACHED;
  LADE_EXPECT_OK(lade_device_allocator_create(p->runtime, device, &options, &p->allocators[device]));
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(p->allocators[device], BYTES, p->streams[device], &block));
  p->blocks[device] = block;
  if ((p->added >> device & 1) != 0) LADE_EXPECT_OK(lade_device_peer_add(p->allocators[device], 1 - device));
}

static void end_close(pair *p, int device) {
  LADE_EXPECT_OK(lade_device_free(p->allocators[device], p->blocks[device]));
  LADE_EXPECT_OK(lade_device_allocator_destroy(p->allocators[device], true));
}

/* Each combination of two kinds and of access; false when there is no other. */
static bool pair_next(pair *p, int *at) {
  int i = (*at)++;
  if (i > 0)
    for (int d = 0; d < DEVICES; d++) end_close(p, d);
  if (i == MEMORY_KINDS * MEMORY_KINDS * 4 || lade_test_has_failed()) return false;
  p->kinds[0] = (memory_kind)(i / 4 % MEMORY_KINDS);
  p->kinds[1] = (memory_kind)(i / 4 / MEMORY_KINDS);
  p->added = (unsigned)(i % 4);
  for (int d = 0; d < DEVICES; d++) end_open(p, d);
  return !lade_test_has_failed();
}

static void bytes_set(pair *p, int device, int value) {
  LADE_EXPECT_OK(lade_fill_async(p->runtime, p->blocks[device], (uint8_t)value, BYTES, p->streams[device]));
  LADE_EXPECT_OK(lade_stream_synchronize(p->runtime, p->streams[device]));
}

static void expect_bytes(pair *p, int device, int value) {
  static unsigned char found[BYTES], expected[BYTES];
  memset(expected, value, BYTES);
  LADE_EXPECT_OK(p->runtime->ops->copy_sync(p->runtime->self, device, LADEI_COPY_D2H, found, p->blocks[device], BYTES));
  LADE_EXPECT_EQ_MEM(found, expected, BYTES);
}

/* A copy that is tried: between the ends, in one of two calls. */
typedef struct attempt {
  int from, on;
  bool by_address; /* lade_copy_async(), which finds out where the memory lies */
} attempt;

static void attempt_name(const pair *p, const attempt *a) {
  lade_test_context(
      "%s from device %d (%s) to %d (%s), on a stream of device %d, access given to memory of device 0: %s, 1: %s",
      a->by_address ? "lade_copy_async" : "lade_device_copy_async", a->from, kind_names[p->kinds[a->from]], 1 - a->from,
      kind_names[p->kinds[1 - a->from]], a->on, (p->added & 1) != 0 ? "yes" : "no", (p->added & 2) != 0 ? "yes" : "no");
}

static lade_status attempt_copy(pair *p, const attempt *a) {
  int to = 1 - a->from;
  if (a->by_address) return lade_copy_async(p->runtime, p->blocks[to], p->blocks[a->from], BYTES, p->streams[a->on]);
  return lade_device_copy_async(p->allocators[to], p->blocks[to], p->allocators[a->from], p->blocks[a->from], BYTES,
                                p->streams[a->on]);
}

static void for_each_attempt(const char *name, void (*try)(pair *p, const attempt *a)) {
  pair p;
  if (!pair_open(&p, name)) return;
  for (int at = 0; pair_next(&p, &at);) {
    for (int i = 0; i < 8 && !lade_test_has_failed(); i++) {
      attempt a = {.from = i & 1, .on = i >> 1 & 1, .by_address = (i >> 2 & 1) != 0};
      attempt_name(&p, &a);
      for (int d = 0; d < DEVICES; d++) bytes_set(&p, d, d == a.from ? 1 + i : 200);
      try(&p, &a);
    }
  }
  pair_close(&p);
}

/* A failed call is the only one that changes the record. */
static void try_copy(pair *p, const attempt *a) {
  int value = 1 + (a->from | a->on << 1 | (int)a->by_address << 2);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_async(p->runtime, NULL, p->blocks[0], 1, p->streams[0]));
  char before[sizeof lade_last_error()->text];
  memcpy(before, lade_last_error()->text, sizeof before);
  LADE_EXPECT_OK(attempt_copy(p, a));
  LADE_EXPECT_EQ_STR(lade_last_error()->text, before);
  LADE_EXPECT_OK(lade_stream_synchronize(p->runtime, p->streams[a->on]));
  expect_bytes(p, 1 - a->from, value);
}

LADE_TEST_P(TwoDevices, EveryCopyArrives, SUPPORT_RUNTIMES, name) { for_each_attempt(name, try_copy); }

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* As the driver has it: memory of its own allocations is reached from everywhere, other memory where access was given. */
static bool reaches(const pair *p, int device, int end) {
  bool legacy = p->kinds[end] == PLAIN || p->kinds[end] == UNCACHED;
  return legacy || device == end || (p->added >> end & 1) != 0;
}

/* The copy, where it is captured, and a fill of the stream's own end behind it, which shows that the capture went on. */
static void try_captured(pair *p, const attempt *a) {
  const lade_runtime_ops *ops = p->runtime->ops;
  void *self = p->runtime->self;
  ladei_stream on;
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  bool possible = reaches(p, a->on, 0) && reaches(p, a->on, 1);
  int value = 1 + (a->from | a->on << 1 | (int)a->by_address << 2), to = 1 - a->from;
  LADE_ASSERT_OK(ops->stream_resolve(self, p->streams[a->on], &on));
  LADE_ASSERT_OK(ops->capture_begin(self, &on, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_STATUS(possible ? LADE_OK : LADE_ERR_CAPTURE, attempt_copy(p, a));
  if (!possible) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "lade_device_peer_add");
  if (a->from == a->on) LADE_EXPECT_OK(ops->fill(self, p->blocks[a->on], 77, BYTES, &on));
  LADE_EXPECT_OK(ops->capture_end(self, &on, &graph));
  if (graph == NULL) return;
  LADE_EXPECT_OK(ops->graph_instantiate(self, graph, &exec));
  LADE_EXPECT_OK(ops->graph_launch(self, exec, &on));
  LADE_EXPECT_OK(ops->stream_synchronize(self, &on));
  expect_bytes(p, to, possible ? value : 200);
  expect_bytes(p, a->from, a->from == a->on ? 77 : value);
  LADE_EXPECT_OK(ops->graph_exec_destroy(self, exec));
  LADE_EXPECT_OK(ops->graph_destroy(self, graph));
}

LADE_TEST_P(TwoDevices, ACaptureTakesACopyOrIsLeftAlone, SUPPORT_RUNTIMES, name) {
  for_each_attempt(name, try_captured);
}

/* ---- Within a device, and memory of another one ------------------------------------------------------------------- */

/* On a stream of the device that has no access. */
LADE_TEST_P(TwoDevices, ACopyWithinADeviceTakesAStreamOfTheOther, SUPPORT_RUNTIMES, name) {
  pair p;
  if (!pair_open(&p, name)) return;
  for (int at = 0; pair_next(&p, &at);) {
    attempt_name(&p, &(attempt){.from = 1});
    void *twin = NULL;
    LADE_EXPECT_OK(lade_device_alloc(p.allocators[1], BYTES, p.streams[1], &twin));
    bytes_set(&p, 1, 5);
    LADE_EXPECT_OK(lade_device_copy_async(p.allocators[1], twin, p.allocators[1], p.blocks[1], BYTES, p.streams[0]));
    LADE_EXPECT_OK(lade_stream_synchronize(p.runtime, p.streams[0]));
    bytes_set(&p, 1, 0);
    LADE_EXPECT_OK(lade_device_copy_async(p.allocators[1], p.blocks[1], p.allocators[1], twin, BYTES, p.streams[1]));
    LADE_EXPECT_OK(lade_stream_synchronize(p.runtime, p.streams[1]));
    expect_bytes(&p, 1, 5);
    LADE_EXPECT_OK(lade_device_free(p.allocators[1], twin));
  }
  pair_close(&p);
}

/* Exported by device 0 and opened on 1: there it is used like memory of 1, though it lies on 0, which has no access to it. */
LADE_TEST_P(TwoDevices, SharedMemoryIsOpenedOnTheOther, SUPPORT_RUNTIMES, name) {
  pair p;
  void *there = NULL;
  ladei_pointer_attributes attributes;
  lade_device_options options;
  lade_device_shared shared;
  if (!pair_open(&p, name)) return;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_IPC;
  for (int d = 0; d < DEVICES; d++) {
    void *block = NULL;
    LADE_EXPECT_OK(lade_device_allocator_create(p.runtime, d, &options, &p.allocators[d]));
    LADE_EXPECT_OK(lade_device_alloc(p.allocators[d], BYTES, p.streams[d], &block));
    p.blocks[d] = block;
    bytes_set(&p, d, 20 + d);
  }
  lade_device_shared_init(&shared);
  lade_status exported = lade_device_shared_export(p.allocators[0], p.blocks[0], &shared);
  if (exported == LADE_OK) {
    LADE_EXPECT_OK(lade_device_shared_open(p.allocators[1], &shared, &there));
    lade_device_shared_release(&shared);
  }
  for (int by_address = 0; by_address < 2 && there != NULL; by_address++) {
    bytes_set(&p, 1, 0);
    LADE_EXPECT_OK(by_address == 1 ? lade_copy_async(p.runtime, p.blocks[1], there, BYTES, p.streams[1])
                                   : lade_device_copy_async(p.allocators[1], p.blocks[1], p.allocators[1], there, BYTES,
                                                            p.streams[1]));
    LADE_EXPECT_OK(lade_stream_synchronize(p.runtime, p.streams[1]));
    expect_bytes(&p, 1, 20);
  }
  if (there != NULL) {
    LADE_EXPECT_OK(p.runtime->ops->pointer_attributes(p.runtime->self, there, &attributes));
    LADE_EXPECT_EQ_INT(attributes.device, 0);
    LADE_EXPECT_OK(lade_device_copy_async(p.allocators[0], p.blocks[0], p.allocators[1], there, 0, p.streams[0]));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_async(p.runtime, p.blocks[1], there, BYTES, p.streams[0]));
    LADE_EXPECT_OK(lade_fill_async(p.runtime, there, 33, BYTES, p.streams[1]));
    LADE_EXPECT_OK(lade_stream_synchronize(p.runtime, p.streams[1]));
    expect_bytes(&p, 0, 33); /* one memory */
    LADE_EXPECT_OK(lade_device_shared_close(p.allocators[1], there));
  }
  for (int d = 0; d < DEVICES; d++) end_close(&p, d);
  if (exported == LADE_ERR_UNSUPPORTED) ladet_skip(__FILE__, __LINE__, "mapped memory is not shared here");
  if (exported != LADE_ERR_UNSUPPORTED) LADE_EXPECT_OK(exported);
  pair_close(&p);
}
