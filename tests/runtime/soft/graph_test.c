/* SPDX-License-Identifier: Apache-2.0 */
/* Replay of captured work: exact times of its branches, all kinds of nodes, reuse of its addresses, objects it keeps. */
#include <stdatomic.h>
#include <string.h>

#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

#define BYTES ((size_t)65536)

typedef struct replay {
  soft_fixture f;
  ladei_stream origin, side;
  lade_event forked, joined;
  char *device, *host;
  ladei_graph graph;
  ladei_graph_exec exec;
} replay;

static _Atomic(int) host_calls;

static void count_call(void *user) { atomic_fetch_add(&host_calls, (int)(intptr_t)user); }

/*
 *   origin:  [copy in] --.-- [copy out of the first half] ----.-- [host function] -- [write a value]
 *   side:                 `- [fill the second half] ----------'
 */
static void capture(replay *r) {
  const lade_runtime_ops *ops = r->f.ops;
  void *self = r->f.self;
  LADE_EXPECT_OK(ops->capture_begin(self, &r->origin, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(ops->copy(self, LADEI_COPY_H2D, r->device, r->host, BYTES, &r->origin));
  LADE_EXPECT_OK(ops->event_record(self, r->forked, &r->origin));
  LADE_EXPECT_OK(ops->stream_wait_event(self, &r->side, r->forked));
  LADE_EXPECT_OK(ops->fill(self, r->device + BYTES, 7, BYTES, &r->side));
  LADE_EXPECT_OK(ops->event_record(self, r->joined, &r->side));
  LADE_EXPECT_OK(ops->copy(self, LADEI_COPY_D2H, r->host + BYTES, r->device, BYTES, &r->origin));
  LADE_EXPECT_OK(ops->stream_wait_event(self, &r->origin, r->joined));
  LADE_EXPECT_OK(ops->host_function(self, &r->origin, count_call, (void *)(intptr_t)1));
  LADE_EXPECT_OK(ops->stream_write_value(self, &r->origin, r->device + 2 * BYTES, 0x0102030405060708, 64));
  LADE_EXPECT_OK(ops->capture_end(self, &r->origin, &r->graph));
  LADE_EXPECT_OK(ops->graph_instantiate(self, r->graph, &r->exec));
}

static replay replay_open(const char *clock) {
  static const lade_soft_device description = {
      .link_bytes_per_s = 1000000000, .memory_bytes_per_s = 500000000, .copy_launch_ns = 100};
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = &description;
  options.device_count = 1;
  replay r = {.f = soft_fixture_open(clock, &options)};
  r.origin = soft_fixture_stream(&r.f, 0);
  r.side = soft_fixture_stream(&r.f, 0);
  r.forked = soft_fixture_event(&r.f, 0, 0);
  r.joined = soft_fixture_event(&r.f, 0, 0);
  r.device = soft_fixture_device_memory(&r.f, 0, 4 * BYTES);
  r.host = soft_fixture_pinned(&r.f, 4 * BYTES);
  atomic_store(&host_calls, 0);
  capture(&r);
  return r;
}

static void replay_close(replay *r) {
  LADE_EXPECT_OK(r->f.ops->graph_exec_destroy(r->f.self, r->exec));
  LADE_EXPECT_OK(r->f.ops->graph_destroy(r->f.self, r->graph));
  soft_fixture_close(&r->f);
}

LADE_TEST_P(Replay, DoesAllItsWorkAtEachLaunchAndNoneAtCapture, soft_fixture_clocks, clock) {
  replay r = replay_open(clock);
  soft_fixture_synchronize(&r.f, &r.origin);
  LADE_EXPECT_EQ_INT(r.device[BYTES], 0);
  for (int launch = 1; launch <= 3; launch++) {
    memset(r.host, launch, BYTES);
    memset(r.device + BYTES, 0, 2 * BYTES);
    LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.side));
    soft_fixture_synchronize(&r.f, &r.side);
    LADE_EXPECT_EQ_INT(r.host[2 * BYTES - 1], launch);
    LADE_EXPECT_EQ_INT(r.device[2 * BYTES - 1], 7);
    LADE_EXPECT_EQ_INT(r.device[2 * BYTES], 8);
    LADE_EXPECT_EQ_INT(r.device[2 * BYTES + 7], 1);
    LADE_EXPECT_EQ_INT(atomic_load(&host_calls), launch);
  }
  soft_fixture_expect_no_finding(&r.f);
  replay_close(&r);
}

LADE_TEST(Replay, BranchesOverlapInVirtualTime) {
  replay r = replay_open("sim");
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.origin));
  soft_fixture_synchronize(&r.f, &r.origin);
  /* copy in: 100 + 65536; then the longer of copy out, 100 + 65536, and fill, 131072 */
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&r.f), 65636 + 131072);
  replay_close(&r);
}

LADE_TEST_P(Replay, LaunchesOfOneExecRunInTheOrderOfTheirSubmission, soft_fixture_clocks, clock) {
  replay r = replay_open(clock);
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, true));
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.origin));
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.side));
  if (r.f.virtual_time) LADE_EXPECT_OK(ladei_soft_advance(r.f.self, 10000000));
  LADE_EXPECT_STATUS(LADE_NOT_READY, r.f.ops->stream_query(r.f.self, &r.side));
  LADE_EXPECT_EQ_INT(atomic_load(&host_calls), 0);
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, false));
  soft_fixture_synchronize(&r.f, &r.side);
  LADE_EXPECT_EQ_INT(atomic_load(&host_calls), 2);
  soft_fixture_expect_no_finding(&r.f);
  replay_close(&r);
}

LADE_TEST_P(Replay, ExecsOutliveTheirGraphAndEndTheirLaunchesWhenDestroyed, soft_fixture_clocks, clock) {
  replay r = replay_open(clock);
  LADE_EXPECT_OK(r.f.ops->graph_destroy(r.f.self, r.graph));
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, true));
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.origin));
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.origin));
  LADE_EXPECT_OK(r.f.ops->graph_exec_destroy(r.f.self, r.exec));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, r.f.ops->graph_launch(r.f.self, r.exec, &r.origin));
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, false));
  soft_fixture_synchronize(&r.f, &r.origin);
  LADE_EXPECT_EQ_INT(atomic_load(&host_calls), 2);
  soft_fixture_close(&r.f);
}

LADE_TEST_P(UserObjects, GoWithTheLastGraphAndLaunchThatKeepThem, soft_fixture_clocks, clock) {
  replay r = replay_open(clock);
  ladei_user_object object = NULL;
  LADE_EXPECT_OK(r.f.ops->user_object_create(r.f.self, count_call, (void *)(intptr_t)100, &object));
  LADE_EXPECT_OK(r.f.ops->graph_retain_user_object(r.f.self, r.graph, object));
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(r.f.ops->graph_instantiate(r.f.self, r.graph, &exec));
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, true));
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, exec, &r.origin));
  LADE_EXPECT_OK(r.f.ops->graph_destroy(r.f.self, r.graph));
  LADE_EXPECT_OK(r.f.ops->graph_exec_destroy(r.f.self, exec));
  if (r.f.virtual_time) LADE_EXPECT_OK(ladei_soft_advance(r.f.self, 1000000));
  LADE_EXPECT_EQ_INT(atomic_load(&host_calls), 0);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&r.f).user_objects, 0); /* none of the program's: the launch keeps it */
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, false));
  soft_fixture_synchronize(&r.f, &r.origin);
  while (atomic_load(&host_calls) != 101)
    if (r.f.virtual_time) LADE_ASSERT_OK(r.f.ops->step(r.f.self));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&r.f).user_objects, 0);
  LADE_EXPECT_OK(r.f.ops->graph_exec_destroy(r.f.self, r.exec));
  soft_fixture_close(&r.f);
}

LADE_TEST_P(Captures, OfWorkThatIsNotJoinedGiveNoGraph, soft_fixture_clocks, clock) {
  replay r = replay_open(clock);
  ladei_graph graph = NULL;
  uint64_t graphs = soft_fixture_report(&r.f).graphs;
  LADE_EXPECT_OK(r.f.ops->capture_begin(r.f.self, &r.origin, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(r.f.ops->event_record(r.f.self, r.forked, &r.origin));
  LADE_EXPECT_OK(r.f.ops->stream_wait_event(r.f.self, &r.side, r.forked));
  LADE_EXPECT_OK(r.f.ops->fill(r.f.self, r.device, 1, BYTES, &r.side));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, r.f.ops->capture_end(r.f.self, &r.origin, &graph));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, LADEI_SOFT_NATIVE_CAPTURE_UNJOINED);
  LADE_EXPECT_EQ_PTR(graph, NULL);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&r.f).graphs, graphs);
  LADE_EXPECT_OK(r.f.ops->fill(r.f.self, r.device, 1, BYTES, &r.side)); /* both streams are free again */
  soft_fixture_synchronize(&r.f, &r.side);
  replay_close(&r);
}

LADE_TEST_P(Captures, EndWithTheirOriginStream, soft_fixture_clocks, clock) {
  replay r = replay_open(clock);
  lade_stream handle = NULL;
  uint64_t graphs = soft_fixture_report(&r.f).graphs;
  LADE_EXPECT_OK(r.f.ops->stream_create(r.f.self, 0, 0, LADEI_STREAM_NON_BLOCKING, &handle));
  ladei_stream gone = soft_fixture_resolve(&r.f, handle);
  LADE_EXPECT_OK(r.f.ops->capture_begin(r.f.self, &gone, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(r.f.ops->event_record(r.f.self, r.forked, &gone));
  LADE_EXPECT_OK(r.f.ops->stream_wait_event(r.f.self, &r.side, r.forked));
  LADE_EXPECT_OK(r.f.ops->stream_destroy(r.f.self, handle));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&r.f).graphs, graphs);
  LADE_EXPECT_OK(r.f.ops->stream_query(r.f.self, &r.side));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, r.f.ops->stream_wait_event(r.f.self, &r.side, r.forked));
  replay_close(&r);
}

/* ---- device memory of execs -------------------------------------------------------------------------------------- */

static uint64_t device_bytes(const soft_fixture *f) { return soft_fixture_report(f).device_bytes; }

static ladei_graph fills_capture(soft_fixture *f, const ladei_stream *stream, void *memory, int count) {
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(f->ops->capture_begin(f->self, stream, LADEI_CAPTURE_GLOBAL));
  for (int i = 0; i < count; i++) LADE_EXPECT_OK(f->ops->fill(f->self, memory, 1, 64, stream));
  LADE_EXPECT_OK(f->ops->capture_end(f->self, stream, &graph));
  return graph;
}

/* From instantiation until exec and launches are gone; an update that is refused or fails gives back what it took. */
LADE_TEST_P(Exec, TakesDeviceMemoryByNode, soft_fixture_clocks, clock) {
  static const lade_soft_device description = {.memory_bytes = 100000};
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = &description;
  options.device_count = 1;
  options.graph_node_bytes = 10000;
  soft_fixture f = soft_fixture_open(clock, &options);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  void *memory = soft_fixture_device_memory(&f, 0, 64);
  ladei_graph three = fills_capture(&f, &stream, memory, 3), four = fills_capture(&f, &stream, memory, 4),
              ten = fills_capture(&f, &stream, memory, 10);
  uint64_t before = device_bytes(&f);
  ladei_graph_exec exec = NULL, none = NULL;
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  LADE_EXPECT_OK(f.ops->graph_instantiate(f.self, three, &exec));
  LADE_EXPECT_EQ_UINT(device_bytes(&f), before + 30000);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->graph_instantiate(f.self, ten, &none));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->graph_exec_update(f.self, exec, ten, &result));
  LADE_EXPECT_OK(f.ops->graph_exec_update(f.self, exec, four, &result));
  LADE_EXPECT_EQ_INT(result, LADEI_GRAPH_TOPOLOGY_CHANGED);
  LADE_EXPECT_EQ_UINT(device_bytes(&f), before + 30000);
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, true));
  LADE_EXPECT_OK(f.ops->graph_launch(f.self, exec, &stream));
  LADE_EXPECT_OK(f.ops->graph_exec_update(f.self, exec, three, &result));
  LADE_EXPECT_EQ_INT(result, LADEI_GRAPH_UPDATED);
  LADE_EXPECT_OK(f.ops->graph_launch(f.self, exec, &stream));
  LADE_EXPECT_EQ_UINT(device_bytes(&f), before + 60000);
  LADE_EXPECT_OK(f.ops->graph_exec_destroy(f.self, exec));
  LADE_EXPECT_EQ_UINT(device_bytes(&f), before + 60000);
  LADE_EXPECT_OK(ladei_soft_check(f.self));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, false));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(device_bytes(&f), before);
  LADE_EXPECT_OK(ladei_soft_check(f.self));
  LADE_EXPECT_OK(f.ops->graph_destroy(f.self, three));
  LADE_EXPECT_OK(f.ops->graph_destroy(f.self, four));
  LADE_EXPECT_OK(f.ops->graph_destroy(f.self, ten));
  soft_fixture_close(&f);
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

/* Two chains of two fills, side by side; `crossed`: the second chain's end is captured before the first one's. */
static ladei_graph chains_capture(replay *r, bool crossed) {
  const lade_runtime_ops *ops = r->f.ops;
  void *self = r->f.self;
  ladei_graph graph = NULL;
  const ladei_stream *order[4] = {&r->origin, &r->side, crossed ? &r->side : &r->origin,
                                  crossed ? &r->origin : &r->side};
  LADE_EXPECT_OK(ops->capture_begin(self, &r->origin, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(ops->event_record(self, r->forked, &r->origin));
  LADE_EXPECT_OK(ops->stream_wait_event(self, &r->side, r->forked));
  for (size_t i = 0; i < 4; i++) LADE_EXPECT_OK(ops->fill(self, r->device + i * 64, 1, 64, order[i]));
  LADE_EXPECT_OK(ops->event_record(self, r->joined, &r->side));
  LADE_EXPECT_OK(ops->stream_wait_event(self, &r->origin, r->joined));
  LADE_EXPECT_OK(ops->capture_end(self, &r->origin, &graph));
  return graph;
}

LADE_TEST(Exec, IsUpdatedFromAGraphOfTheSameEdgesOnly) {
  replay r = replay_open("sim");
  ladei_graph straight = chains_capture(&r, false), crossed = chains_capture(&r, true);
  ladei_graph_exec exec = NULL;
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  LADE_EXPECT_OK(r.f.ops->graph_instantiate(r.f.self, straight, &exec));
  LADE_EXPECT_OK(r.f.ops->graph_exec_update(r.f.self, exec, crossed, &result));
  LADE_EXPECT_EQ_INT(result, LADEI_GRAPH_TOPOLOGY_CHANGED);
  LADE_EXPECT_OK(r.f.ops->graph_exec_update(r.f.self, exec, straight, &result));
  LADE_EXPECT_EQ_INT(result, LADEI_GRAPH_UPDATED);
  LADE_EXPECT_OK(r.f.ops->graph_exec_destroy(r.f.self, exec));
  LADE_EXPECT_OK(r.f.ops->graph_destroy(r.f.self, straight));
  LADE_EXPECT_OK(r.f.ops->graph_destroy(r.f.self, crossed));
  replay_close(&r);
}

/* A new exec with the handle of one that is gone has launched nothing yet. */
LADE_TEST(Exec, WaitsForNoLaunchOfAnotherWithItsHandle) {
  replay r = replay_open("sim");
  ladei_graph_exec first = r.exec;
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, true));
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.origin));
  LADE_EXPECT_OK(r.f.ops->graph_exec_destroy(r.f.self, r.exec));
  LADE_EXPECT_OK(r.f.ops->graph_instantiate(r.f.self, r.graph, &r.exec));
  LADE_EXPECT_EQ_PTR(r.exec, first);
  LADE_EXPECT_OK(r.f.ops->graph_launch(r.f.self, r.exec, &r.side));
  LADE_EXPECT_OK(ladei_soft_advance(r.f.self, 10000000));
  LADE_EXPECT_OK(r.f.ops->stream_query(r.f.self, &r.side));
  LADE_EXPECT_EQ_INT(atomic_load(&host_calls), 1);
  LADE_EXPECT_OK(ladei_soft_stream_hold(r.f.self, r.origin.handle, false));
  soft_fixture_synchronize(&r.f, &r.origin);
  LADE_EXPECT_EQ_INT(atomic_load(&host_calls), 2);
  replay_close(&r);
}
