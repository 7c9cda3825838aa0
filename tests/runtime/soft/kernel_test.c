/* SPDX-License-Identifier: Apache-2.0 */
/* Software kernels: their arguments and bytes, time, capture and replay, what is found out about their ranges, threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

#define BYTES ((size_t)4096)

typedef struct scene {
  soft_fixture f;
  ladei_stream a, b;
  lade_event event;
  unsigned char *device, *host;
} scene;

static _Atomic(int) runs;

/* to[i] = from[i] * factor + addend */
typedef struct affine {
  unsigned char *to;
  const unsigned char *from;
  size_t bytes;
  unsigned char factor, addend;
} affine;

static void affine_run(const void *arguments) {
  const affine *own = arguments;
  for (size_t i = 0; i < own->bytes; i++) own->to[i] = (unsigned char)(own->from[i] * own->factor + own->addend);
  atomic_fetch_add(&runs, 1);
}

static void count_run(const void *arguments) {
  LADE_EXPECT_EQ_PTR(arguments, NULL);
  atomic_fetch_add(&runs, 1);
}

static scene scene_open_with(const char *clock, const lade_soft_device *description) {
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = description;
  options.device_count = description != NULL;
  scene s = {.f = soft_fixture_open(clock, &options)};
  s.a = soft_fixture_stream(&s.f, 0);
  s.b = soft_fixture_stream(&s.f, 0);
  s.event = soft_fixture_event(&s.f, 0, 0);
  s.device = soft_fixture_device_memory(&s.f, 0, 8 * BYTES);
  s.host = soft_fixture_pinned(&s.f, 8 * BYTES);
  atomic_store(&runs, 0);
  return s;
}

static scene scene_open(const char *clock) { return scene_open_with(clock, NULL); }

static lade_soft_range reads(const void *address, size_t bytes) {
  return (lade_soft_range){address, bytes, LADE_SOFT_READ, 0};
}
static lade_soft_range writes(const void *address, size_t bytes) {
  return (lade_soft_range){address, bytes, LADE_SOFT_WRITE, 0};
}

static lade_status affine_queue(scene *s, const ladei_stream *stream, unsigned char *to, const unsigned char *from,
                                unsigned char factor, unsigned char addend) {
  affine arguments = {to, from, BYTES, factor, addend};
  lade_soft_range ranges[] = {reads(from, BYTES), writes(to, BYTES)};
  lade_status status = s->f.ops->kernel(s->f.self, stream, affine_run, &arguments, sizeof arguments, ranges, 2);
  memset(&arguments, 0xff, sizeof arguments); /* copied by now */
  memset(ranges, 0xff, sizeof ranges);
  return status;
}

/* A kernel that does nothing to the ranges that it names. */
static void touch(scene *s, const ladei_stream *stream, size_t at, size_t bytes, uint32_t access) {
  lade_soft_range range = {s->device + at, bytes, access, 0};
  LADE_EXPECT_OK(s->f.ops->kernel(s->f.self, stream, count_run, NULL, 0, &range, 1));
}

static void expect_bytes(const unsigned char *memory, size_t bytes, unsigned value) {
  for (size_t i = 0; i < bytes; i++)
    if (memory[i] != value) LADE_FAIL("byte %zu is %u, not %u", i, memory[i], value);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(Kernel, RunsInStreamOrderWithACopyOfItsArguments, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
  LADE_EXPECT_OK(s.f.ops->fill(s.f.self, s.device, 5, BYTES, &s.a));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device + BYTES, s.device, 3, 1));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device, s.device + BYTES, 2, 0));
  LADE_EXPECT_OK(s.f.ops->copy(s.f.self, LADEI_COPY_D2H, s.host, s.device, 2 * BYTES, &s.a));
  if (s.f.virtual_time) LADE_EXPECT_OK(ladei_soft_advance(s.f.self, 1000000));
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 0);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, false));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 2);
  expect_bytes(s.host, BYTES, 32);
  expect_bytes(s.host + BYTES, BYTES, 16);
  soft_fixture_expect_no_finding(&s.f);
  soft_fixture_close(&s.f);
}

LADE_TEST(Kernel, TakesTheTimeOfItsRanges) {
  static const lade_soft_device description = {
      .link_bytes_per_s = 1000000000, .memory_bytes_per_s = 500000000, .copy_launch_ns = 100};
  scene s = scene_open_with("sim", &description);
  const lade_soft_range ranges[] = {{s.device, 1000, LADE_SOFT_READ, 0},
                                    {s.device, 100, LADE_SOFT_READ | LADE_SOFT_WRITE, 0},
                                    {s.host, 50, LADE_SOFT_WRITE, 0}};
  LADE_EXPECT_OK(s.f.ops->kernel(s.f.self, &s.a, count_run, NULL, 0, ranges, 3));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&s.f), 2000 + 400 + 50);
  LADE_EXPECT_OK(s.f.ops->kernel(s.f.self, &s.a, count_run, NULL, 0, NULL, 0));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&s.f), 2450);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 2);
  soft_fixture_close(&s.f);
}

LADE_TEST(Kernel, TakesItsEffectAtTheEndOfItsTime) {
  static const lade_soft_device description = {.memory_bytes_per_s = 1000000000};
  scene s = scene_open_with("sim", &description);
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device + BYTES, s.device, 0, 9)); /* 8192 ns */
  LADE_EXPECT_OK(ladei_soft_advance(s.f.self, 8191));
  LADE_EXPECT_EQ_INT(s.device[BYTES], 0);
  LADE_EXPECT_OK(ladei_soft_advance(s.f.self, 1));
  LADE_EXPECT_EQ_INT(s.device[BYTES], 9);
  soft_fixture_close(&s.f);
}

static void *calling_self;
static const lade_runtime_ops *calling_ops;
static _Atomic(int) call_status;

static void call_run(const void *arguments) {
  (void)arguments;
  size_t free_bytes = 0, total_bytes = 0;
  atomic_store(&call_status, calling_ops->memory_info(calling_self, 0, &free_bytes, &total_bytes));
}

LADE_TEST_P(Kernel, MayMakeNoRuntimeCall, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  calling_self = s.f.self;
  calling_ops = s.f.ops;
  LADE_EXPECT_OK(s.f.ops->kernel(s.f.self, &s.a, call_run, NULL, 0, NULL, 0));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(atomic_load(&call_status), LADE_ERR_DRIVER);
  soft_fixture_close(&s.f);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static ladei_graph affine_capture(scene *s, unsigned char addend) {
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(s->f.ops->capture_begin(s->f.self, &s->a, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(affine_queue(s, &s->a, s->device + BYTES, s->device, 2, addend));
  LADE_EXPECT_OK(affine_queue(s, &s->a, s->device, s->device + BYTES, 1, 1));
  LADE_EXPECT_OK(s->f.ops->capture_end(s->f.self, &s->a, &graph));
  return graph;
}

static ladei_graph_exec instantiate(scene *s, ladei_graph graph) {
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(s->f.ops->graph_instantiate(s->f.self, graph, &exec));
  return exec;
}

/* Each exec has arguments and ranges of its own, whatever becomes of the graph and of its other execs. */
LADE_TEST_P(Kernel, IsReplayedWithTheArgumentsOfItsCapture, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_graph graph = affine_capture(&s, 3);
  ladei_graph_exec first = instantiate(&s, graph), second = instantiate(&s, graph);
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 0);
  unsigned expected = 0;
  for (int launch = 0; launch < 4; launch++) {
    if (launch == 2) LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, first));
    LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, launch < 2 ? first : second, &s.b));
    soft_fixture_synchronize(&s.f, &s.b);
    expected = expected * 2 + 4;
    expect_bytes(s.device, BYTES, expected);
    expect_bytes(s.device + BYTES, BYTES, expected - 1);
  }
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 8);
  soft_fixture_expect_no_finding(&s.f);
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, second));
  soft_fixture_close(&s.f);
}

/* The launch that is under way keeps its memory bound while the next one is judged. */
LADE_TEST_P(Kernel, LaunchesInFlightAreJudgedAndEnd, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_graph graph = affine_capture(&s, 0);
  ladei_graph_exec exec = instantiate(&s, graph);
  for (int launch = 0; launch < 5; launch++) LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  LADE_EXPECT_OK(ladei_soft_check(s.f.self));
  soft_fixture_synchronize(&s.f, &s.a);
  expect_bytes(s.device, BYTES, 31);
  LADE_EXPECT_OK(ladei_soft_check(s.f.self));
  soft_fixture_expect_no_finding(&s.f);
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_close(&s.f);
}

/* An update brings the arguments and ranges of the other graph, a copy of its own. */
LADE_TEST_P(Kernel, OfAnUpdatedExecHasTheNewArguments, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_graph graph = affine_capture(&s, 3), other = affine_capture(&s, 10);
  ladei_graph_exec exec = instantiate(&s, graph);
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  LADE_EXPECT_OK(s.f.ops->graph_exec_update(s.f.self, exec, other, &result));
  LADE_EXPECT_EQ_INT(result, LADEI_GRAPH_UPDATED);
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, other));
  LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
  soft_fixture_synchronize(&s.f, &s.a);
  expect_bytes(s.device, BYTES, 11);
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Kernel, RefusedInACaptureLeavesTheCaptureAsItWas, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(s.f.ops->capture_begin(s.f.self, &s.a, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, affine_queue(&s, &s.a, (unsigned char *)&runs, s.device, 1, 1));
  LADE_EXPECT_OK(ladei_soft_fault_add(s.f.self, "kernel", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, affine_queue(&s, &s.a, s.device + BYTES, s.device, 1, 1));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device + BYTES, s.device, 1, 7));
  LADE_EXPECT_OK(s.f.ops->capture_end(s.f.self, &s.a, &graph));
  ladei_graph_exec exec = instantiate(&s, graph);
  LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 1);
  expect_bytes(s.device + BYTES, BYTES, 7);
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_close(&s.f);
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static void expect_races(scene *s, uint64_t count) {
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s->f).unordered_reuse, count);
}

LADE_TEST_P(Kernel, RacesOfItsRangesAreFound, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
  touch(&s, &s.a, 0, BYTES, LADE_SOFT_READ);
  touch(&s, &s.b, 0, BYTES, LADE_SOFT_READ);
  touch(&s, &s.b, BYTES, BYTES, LADE_SOFT_WRITE); /* beside it */
  expect_races(&s, 0);
  touch(&s, &s.b, BYTES - 1, 2, LADE_SOFT_WRITE); /* one byte in common with what stream a reads */
  expect_races(&s, 1);
  touch(&s, &s.a, 4 * BYTES, BYTES, LADE_SOFT_READ | LADE_SOFT_WRITE);
  touch(&s, &s.b, 4 * BYTES, BYTES, LADE_SOFT_READ);
  expect_races(&s, 2);
  touch(&s, &s.a, 6 * BYTES, BYTES, LADE_SOFT_WRITE);
  LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, s.event, &s.a));
  LADE_EXPECT_OK(s.f.ops->stream_wait_event(s.f.self, &s.b, s.event));
  touch(&s, &s.b, 6 * BYTES, BYTES, LADE_SOFT_WRITE);
  expect_races(&s, 2);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, false));
  soft_fixture_close(&s.f);
}

/* All ranges of a replayed kernel are judged, at the launch. */
LADE_TEST_P(Kernel, RacesOfAReplayAreFound, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(s.f.ops->capture_begin(s.f.self, &s.a, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device + BYTES, s.device, 1, 1));
  LADE_EXPECT_OK(s.f.ops->capture_end(s.f.self, &s.a, &graph));
  ladei_graph_exec exec = instantiate(&s, graph);
  for (size_t other = 0; other < 3; other++) { /* what it reads, what it writes, what is not in it */
    uint64_t before = soft_fixture_report(&s.f).unordered_reuse;
    touch(&s, &s.b, other * BYTES, BYTES, LADE_SOFT_WRITE);
    LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
    LADE_EXPECT_EQ_INT(soft_fixture_report(&s.f).unordered_reuse > before, other < 2);
    soft_fixture_synchronize(&s.f, &s.a);
    soft_fixture_synchronize(&s.f, &s.b);
  }
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_close(&s.f);
}

/* What a kernel writes to pinned memory may tell the program of its end; what it writes to the device does not. */
LADE_TEST(Kernel, OrdersTheProgramOnlyByPinnedMemory) {
  for (int pinned = 0; pinned < 2; pinned++) {
    scene s = scene_open("sim");
    LADE_EXPECT_OK(s.f.ops->fill(s.f.self, s.device, 1, BYTES, &s.a));
    lade_soft_range range = writes(pinned ? s.host : s.device + 2 * BYTES, BYTES);
    LADE_EXPECT_OK(s.f.ops->kernel(s.f.self, &s.a, count_run, NULL, 0, &range, 1));
    LADE_EXPECT_OK(ladei_soft_advance(s.f.self, 1000000));
    LADE_EXPECT_EQ_INT(atomic_load(&runs), 1);
    LADE_EXPECT_OK(s.f.ops->fill(s.f.self, s.device, 2, BYTES, &s.b));
    expect_races(&s, pinned ? 0 : 1);
    soft_fixture_close(&s.f);
  }
}

LADE_TEST_P(Kernel, FreedRangeIsFoundAndNotTouched, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *gone = NULL;
  LADE_EXPECT_OK(s.f.ops->device_alloc(s.f.self, 0, BYTES, &gone));
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device, gone, 1, 1));
  LADE_EXPECT_OK(s.f.ops->device_free(s.f.self, 0, gone));
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, false));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, 1);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 0);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, affine_queue(&s, &s.a, s.device, gone, 1, 1));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, 2);
  soft_fixture_close(&s.f);
}

/* The range that is freed is the last of the last node: each is looked up at each launch. */
LADE_TEST_P(Kernel, FreedRangeOfAReplayIsFound, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *gone = NULL;
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(s.f.ops->device_alloc(s.f.self, 0, BYTES, &gone));
  LADE_EXPECT_OK(s.f.ops->capture_begin(s.f.self, &s.a, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, s.device, s.device + BYTES, 1, 1));
  LADE_EXPECT_OK(affine_queue(&s, &s.a, gone, s.device, 1, 1));
  LADE_EXPECT_OK(s.f.ops->capture_end(s.f.self, &s.a, &graph));
  ladei_graph_exec exec = instantiate(&s, graph);
  for (int launch = 1; launch <= 3; launch++) {
    if (launch == 2) LADE_EXPECT_OK(s.f.ops->device_free(s.f.self, 0, gone));
    LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
    soft_fixture_synchronize(&s.f, &s.a);
    LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, (uint64_t)launch - 1);
    LADE_EXPECT_EQ_INT(atomic_load(&runs), launch + 1);
  }
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_close(&s.f);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void expect_refusal(scene *s, lade_soft_function function, const void *arguments, size_t bytes,
                           const lade_soft_range *ranges, size_t count, const char *text) {
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     s->f.ops->kernel(s->f.self, &s->a, function, arguments, bytes, ranges, count));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, text);
  LADE_EXPECT_OK(s->f.ops->stream_query(s->f.self, &s->a)); /* nothing is queued */
}

LADE_TEST_P(Kernel, NamesTheArgumentThatItRefuses, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  int on_stack = 0;
  const lade_soft_range good = writes(s.device, BYTES), null = writes(NULL, BYTES), empty = writes(s.device, 0),
                        huge = writes(s.device, SIZE_MAX), over = writes(s.device, 8 * BYTES + 1),
                        pageable = writes(&on_stack, 4), idle = {s.device, 1, 0, 0}, unknown = {s.device, 1, 4, 0},
                        reserved = {s.device, 1, LADE_SOFT_READ, 1};
  expect_refusal(&s, NULL, NULL, 0, &good, 1, "kernel: function is NULL");
  expect_refusal(&s, count_run, NULL, 1, &good, 1, "kernel: arguments is NULL");
  expect_refusal(&s, count_run, &on_stack, SIZE_MAX, &good, 1, "kernel: bytes is ");
  expect_refusal(&s, count_run, NULL, 0, NULL, 1, "kernel: ranges is NULL");
  expect_refusal(&s, count_run, NULL, 0, &good, (size_t)UINT32_MAX + 1, "kernel: count is 4294967296");
  static const char *const texts[] = {"ranges[1].address", "ranges[1].bytes",   "ranges[1].bytes",
                                      "memory is 32769",   "memory is 4",       "ranges[1].access is 0",
                                      "ranges[1].access",  "ranges[1].reserved"};
  const lade_soft_range bad[] = {null, empty, huge, over, pageable, idle, unknown, reserved};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const lade_soft_range ranges[] = {good, bad[i]};
    expect_refusal(&s, count_run, NULL, 0, ranges, 2, texts[i]);
  }
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 0);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Kernel, DoesNotRunWithoutBytesOrOnALostDevice, soft_fixture_clocks, clock) {
  static const lade_soft_device description = {.addresses_only = 1};
  scene s = scene_open_with(clock, &description);
  touch(&s, &s.a, 0, BYTES, LADE_SOFT_WRITE);
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 0);
  soft_fixture_close(&s.f);
  s = scene_open(clock);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
  touch(&s, &s.a, 0, BYTES, LADE_SOFT_WRITE);
  LADE_EXPECT_OK(ladei_soft_device_lose(s.f.self, 0, 0));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, affine_queue(&s, &s.a, s.device, s.device, 1, 1));
  soft_fixture_close(&s.f);
  LADE_EXPECT_EQ_INT(atomic_load(&runs), 0);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200 };

static scene shared;

typedef struct step {
  uint32_t *counter;
  uint32_t by;
} step;

static void step_run(const void *arguments) {
  const step *own = arguments;
  *own->counter += own->by;
}

/* Each thread counts in memory of its own by kernels, some of them in a graph, and reads the count back. */
static void *thread_main(void *argument) {
  size_t thread = (size_t)(uintptr_t)argument;
  const lade_runtime_ops *ops = shared.f.ops;
  void *self = shared.f.self;
  uint32_t *counter = (uint32_t *)(void *)(shared.device + thread * 64);
  const uint32_t *back = (uint32_t *)(void *)(shared.host + thread * 64);
  lade_stream handle = NULL;
  ladei_stream stream;
  LADE_EXPECT_OK(ops->stream_create(self, 0, 0, LADEI_STREAM_NON_BLOCKING, &handle));
  LADE_EXPECT_OK(ops->stream_resolve(self, handle, &stream));
  lade_soft_range range = {counter, 4, LADE_SOFT_READ | LADE_SOFT_WRITE, 0};
  for (uint32_t round = 0; round < ROUNDS; round++) {
    step once = {counter, 1}, ten = {counter, 10};
    ladei_graph graph = NULL;
    ladei_graph_exec exec = NULL;
    LADE_EXPECT_OK(ops->kernel(self, &stream, step_run, &once, sizeof once, &range, 1));
    LADE_EXPECT_OK(ops->capture_begin(self, &stream, LADEI_CAPTURE_RELAXED));
    LADE_EXPECT_OK(ops->kernel(self, &stream, step_run, &ten, sizeof ten, &range, 1));
    LADE_EXPECT_OK(ops->capture_end(self, &stream, &graph));
    LADE_EXPECT_OK(ops->graph_instantiate(self, graph, &exec));
    LADE_EXPECT_OK(ops->graph_launch(self, exec, &stream));
    LADE_EXPECT_OK(ops->graph_exec_destroy(self, exec));
    LADE_EXPECT_OK(ops->graph_destroy(self, graph));
    LADE_EXPECT_OK(ops->copy(self, LADEI_COPY_D2H, (void *)(uintptr_t)back, counter, 4, &stream));
    LADE_EXPECT_OK(ops->stream_synchronize(self, &stream));
    if (*back != (round + 1) * 11) LADE_FAIL("thread %zu counted %u in round %u", thread, *back, round);
  }
  LADE_EXPECT_OK(ops->stream_destroy(self, handle));
  return NULL;
}

LADE_TEST(Kernel, OfManyThreadsKeepTheirOrders) {
  pthread_t threads[THREADS];
  shared = scene_open("cpu");
  for (size_t i = 0; i < THREADS; i++)
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, thread_main, (void *)(uintptr_t)i), 0);
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  soft_fixture_expect_no_finding(&shared.f);
  soft_fixture_close(&shared.f);
}
