/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Executable graphs: updates, flags of their instantiation, uploads; what graphs consist of, order in captures, memory. */
#include <stdatomic.h>
#include <string.h>

#include "lade/soft.h"
#include "tests/conformance/conformance.h"

#define NEEDS_GRAPHS() NEEDS_OP(graph_exec_update)

enum { BYTES = 4096 };

/* A stream that captures, another one for forks, memory to work on. */
typedef struct stage {
  lade_runtime *runtime;
  ladei_stream stream, side;
  lade_event forked, joined;
  char *pinned, *device;
} stage;

#define STAGE_OP(s, name, ...) ((s)->runtime->ops->name((s)->runtime->self, ##__VA_ARGS__))

static stage stage_open(lade_runtime *runtime) {
  stage s = {.runtime = runtime};
  s.stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  s.side = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  s.forked = conformance_event(runtime, 0);
  s.joined = conformance_event(runtime, 0);
  s.pinned = conformance_pinned(runtime, 4 * BYTES);
  s.device = conformance_device_memory(runtime, 0, 4 * BYTES);
  return s;
}

static void stage_close(stage *s) {
  LADE_EXPECT_OK(STAGE_OP(s, stream_synchronize, &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, device_free, 0, s->device));
  LADE_EXPECT_OK(STAGE_OP(s, host_free, s->pinned));
  LADE_EXPECT_OK(STAGE_OP(s, event_destroy, s->forked));
  LADE_EXPECT_OK(STAGE_OP(s, event_destroy, s->joined));
  LADE_EXPECT_OK(STAGE_OP(s, stream_destroy, s->side.handle));
  LADE_EXPECT_OK(STAGE_OP(s, stream_destroy, s->stream.handle));
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

typedef void (*body)(stage *s);

static void nothing(void *user) { (void)user; }

static void fill_one(stage *s) { LADE_EXPECT_OK(STAGE_OP(s, fill, s->pinned, 1, BYTES, &s->stream)); }
static void fill_two(stage *s) { LADE_EXPECT_OK(STAGE_OP(s, fill, s->pinned + 100, 2, 50, &s->stream)); }
static void write_value(stage *s) { LADE_EXPECT_OK(STAGE_OP(s, stream_write_value, &s->stream, s->device, 7, 32)); }
static void copy_in(stage *s) {
  LADE_EXPECT_OK(STAGE_OP(s, copy, LADEI_COPY_H2D, s->device, s->pinned, BYTES, &s->stream));
}
static void copy_out(stage *s) {
  LADE_EXPECT_OK(STAGE_OP(s, copy, LADEI_COPY_D2H, s->pinned, s->device, BYTES, &s->stream));
}
static void host(stage *s) { LADE_EXPECT_OK(STAGE_OP(s, host_function, &s->stream, nothing, NULL)); }
static void empty(stage *s) { (void)s; }
static void chain(stage *s) {
  fill_one(s);
  fill_two(s);
  LADE_EXPECT_OK(STAGE_OP(s, fill, s->device, 3, BYTES, &s->stream));
}
/* As many nodes as the chain, two of them side by side. */
static void fork_and_join(stage *s) {
  fill_one(s);
  LADE_EXPECT_OK(STAGE_OP(s, event_record, s->forked, &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, stream_wait_event, &s->side, s->forked));
  LADE_EXPECT_OK(STAGE_OP(s, fill, s->device, 3, BYTES, &s->side));
  LADE_EXPECT_OK(STAGE_OP(s, fill, s->device + BYTES, 3, BYTES, &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, event_record, s->joined, &s->side));
  LADE_EXPECT_OK(STAGE_OP(s, stream_wait_event, &s->stream, s->joined));
}

static ladei_graph capture(stage *s, body b) {
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(STAGE_OP(s, capture_begin, &s->stream, LADEI_CAPTURE_THREAD_LOCAL));
  b(s);
  LADE_EXPECT_OK(STAGE_OP(s, capture_end, &s->stream, &graph));
  return graph;
}

static ladei_graph_exec instantiate(stage *s, ladei_graph graph) {
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(STAGE_OP(s, graph_instantiate, graph, &exec));
  return exec;
}

static void graph_destroy(stage *s, ladei_graph graph) { LADE_EXPECT_OK(STAGE_OP(s, graph_destroy, graph)); }

static void exec_destroy(stage *s, ladei_graph_exec exec) { LADE_EXPECT_OK(STAGE_OP(s, graph_exec_destroy, exec)); }

static void launch(stage *s, ladei_graph_exec exec) {
  LADE_EXPECT_OK(STAGE_OP(s, graph_launch, exec, &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, stream_synchronize, &s->stream));
}

static ladei_graph_update update(stage *s, ladei_graph_exec exec, ladei_graph graph) {
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  LADE_EXPECT_OK(STAGE_OP(s, graph_exec_update, exec, graph, &result));
  return result;
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

/* The new graph may go at once; the first one went before. */
CONFORMANCE_TEST(GraphUpdate, GivesTheExecWhatAnotherGraphDoes) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph one = capture(&s, fill_one), two = capture(&s, fill_two);
  ladei_graph_exec exec = instantiate(&s, one);
  graph_destroy(&s, one);
  LADE_EXPECT_EQ_INT(update(&s, exec, two), LADEI_GRAPH_UPDATED);
  graph_destroy(&s, two);
  for (int i = 0; i < 2; i++) {
    memset(s.pinned, 0, BYTES);
    launch(&s, exec);
    EXPECT_BYTES(s.pinned, 100, 0);
    EXPECT_BYTES(s.pinned + 100, 50, 2);
    EXPECT_BYTES(s.pinned + 150, BYTES - 150, 0);
  }
  exec_destroy(&s, exec);
  stage_close(&s);
}

CONFORMANCE_TEST(GraphUpdate, SaysWhyNotAndLeavesTheExecAsItWas) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  static const struct {
    body from, to;
    ladei_graph_update expected;
  } cases[] = {
      {fill_one, empty, LADEI_GRAPH_TOPOLOGY_CHANGED},      {fill_one, chain, LADEI_GRAPH_TOPOLOGY_CHANGED},
      {fork_and_join, chain, LADEI_GRAPH_TOPOLOGY_CHANGED}, {fill_one, host, LADEI_GRAPH_KIND_CHANGED},
      {fill_one, copy_out, LADEI_GRAPH_KIND_CHANGED},       {copy_in, copy_out, LADEI_GRAPH_PARAMETERS_CHANGED},
      {chain, fork_and_join, LADEI_GRAPH_TOPOLOGY_CHANGED}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_test_context("case %zu", i);
    ladei_graph from = capture(&s, cases[i].from), to = capture(&s, cases[i].to), same = capture(&s, cases[i].from);
    ladei_graph_exec exec = instantiate(&s, from);
    LADE_EXPECT_EQ_INT(update(&s, exec, to), cases[i].expected);
    memset(s.pinned, 0, BYTES);
    launch(&s, exec);
    EXPECT_BYTES(s.pinned, 1, cases[i].from == fill_one || cases[i].from == fork_and_join || cases[i].from == chain);
    LADE_EXPECT_EQ_INT(update(&s, exec, same), LADEI_GRAPH_UPDATED);
    launch(&s, exec);
    exec_destroy(&s, exec);
    graph_destroy(&s, from);
    graph_destroy(&s, to);
    graph_destroy(&s, same);
  }
  lade_test_context("%s", "");
  stage_close(&s);
}

/* ---- updates between kinds of memory: what the driver of CUDA 13.0 takes on an H200 ---------------------------------- */

enum { PLAIN, PLAIN_TOO, MAPPED, POOL, HOST, HOST_TOO, MEMORIES };

/* Memory of each kind, the granule of the mapped one. */
typedef struct memories {
  void *of[MEMORIES];
  size_t granule;
  ladei_vm_handle handle;
} memories;

static memories memories_make(stage *s) {
  memories m = {.of = {[PLAIN] = s->device,
                       [PLAIN_TOO] = s->device + 2 * BYTES,
                       [HOST] = s->pinned,
                       [HOST_TOO] = s->pinned + 2 * BYTES}};
  size_t recommended = 0;
  ladei_driver_pool pool = NULL;
  LADE_EXPECT_OK(STAGE_OP(s, vm_granularity, 0, &m.granule, &recommended));
  LADE_EXPECT_OK(STAGE_OP(s, vm_reserve, 0, m.granule, 0, &m.of[MAPPED]));
  LADE_EXPECT_OK(STAGE_OP(s, vm_create, 0, m.granule, false, &m.handle));
  LADE_EXPECT_OK(STAGE_OP(s, vm_map, m.of[MAPPED], m.granule, m.handle));
  LADE_EXPECT_OK(STAGE_OP(s, vm_set_access, m.of[MAPPED], m.granule, 0, true));
  LADE_EXPECT_OK(STAGE_OP(s, pool_default, 0, &pool));
  LADE_EXPECT_OK(STAGE_OP(s, pool_alloc, pool, BYTES, &s->stream, &m.of[POOL]));
  return m;
}

static void memories_end(stage *s, const memories *m) {
  LADE_EXPECT_OK(STAGE_OP(s, pool_free, m->of[POOL], &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, stream_synchronize, &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, vm_unmap, m->of[MAPPED], m->granule));
  LADE_EXPECT_OK(STAGE_OP(s, vm_release, m->handle));
  LADE_EXPECT_OK(STAGE_OP(s, vm_address_free, m->of[MAPPED], m->granule));
}

static ladei_graph graph_of_copy(stage *s, const memories *m, int to, int from) {
  bool to_host = to == HOST || to == HOST_TOO, from_host = from == HOST || from == HOST_TOO;
  ladei_copy_direction direction =
      to_host ? (from_host ? LADEI_COPY_H2H : LADEI_COPY_D2H) : (from_host ? LADEI_COPY_H2D : LADEI_COPY_D2D);
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(STAGE_OP(s, capture_begin, &s->stream, LADEI_CAPTURE_THREAD_LOCAL));
  LADE_EXPECT_OK(STAGE_OP(s, copy, direction, m->of[to], m->of[from], BYTES, &s->stream));
  LADE_EXPECT_OK(STAGE_OP(s, capture_end, &s->stream, &graph));
  return graph;
}

CONFORMANCE_TEST(GraphUpdate, OfACopyKeepsTheKindOfDeviceMemory) {
  NEEDS_GRAPHS();
  NEEDS_OP(vm_reserve);
  NEEDS_OP(pool_alloc);
  stage s = stage_open(runtime);
  memories m = memories_make(&s);
  static const struct {
    int to, from, next_to, next_from;
    ladei_graph_update expected;
  } cases[] = {{PLAIN, HOST, PLAIN_TOO, HOST_TOO, LADEI_GRAPH_UPDATED},
               {PLAIN, HOST, MAPPED, HOST, LADEI_GRAPH_PARAMETERS_CHANGED},
               {PLAIN, HOST, POOL, HOST, LADEI_GRAPH_PARAMETERS_CHANGED},
               {MAPPED, HOST, PLAIN, HOST, LADEI_GRAPH_PARAMETERS_CHANGED},
               {POOL, HOST, MAPPED, HOST, LADEI_GRAPH_UPDATED},
               {PLAIN, PLAIN_TOO, MAPPED, POOL, LADEI_GRAPH_PARAMETERS_CHANGED},
               {HOST, HOST_TOO, PLAIN, PLAIN_TOO, LADEI_GRAPH_UPDATED},
               {PLAIN, HOST, PLAIN, PLAIN_TOO, LADEI_GRAPH_PARAMETERS_CHANGED}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_test_context("case %zu", i);
    ladei_graph from = graph_of_copy(&s, &m, cases[i].to, cases[i].from);
    ladei_graph to = graph_of_copy(&s, &m, cases[i].next_to, cases[i].next_from);
    ladei_graph_exec exec = instantiate(&s, from);
    LADE_EXPECT_EQ_INT(update(&s, exec, to), cases[i].expected);
    launch(&s, exec);
    exec_destroy(&s, exec);
    graph_destroy(&s, from);
    graph_destroy(&s, to);
  }
  lade_test_context("%s", "");
  memories_end(&s, &m);
  stage_close(&s);
}

/* One node on a stream of either device: a copy, or without a source a fill. */
typedef struct device_node {
  char *to;
  const char *from;
  int on;
} device_node;

static ladei_graph node_capture(lade_runtime *runtime, const ladei_stream *streams, const device_node *node) {
  ladei_graph graph = NULL;
  const ladei_stream *stream = &streams[node->on];
  LADE_EXPECT_OK(OP(capture_begin, stream, LADEI_CAPTURE_THREAD_LOCAL));
  if (node->from == NULL)
    LADE_EXPECT_OK(OP(fill, node->to, 1, BYTES, stream));
  else
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, node->to, node->from, BYTES, stream));
  LADE_EXPECT_OK(OP(capture_end, stream, &graph));
  return graph;
}

static ladei_graph_update node_update(lade_runtime *runtime, const ladei_stream *streams, device_node from,
                                      device_node to) {
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  ladei_graph_exec exec = NULL;
  ladei_graph before = node_capture(runtime, streams, &from), after = node_capture(runtime, streams, &to);
  LADE_EXPECT_OK(OP(graph_instantiate, before, &exec));
  LADE_EXPECT_OK(OP(graph_exec_update, exec, after, &result));
  LADE_EXPECT_OK(OP(graph_exec_destroy, exec));
  LADE_EXPECT_OK(OP(graph_destroy, before));
  LADE_EXPECT_OK(OP(graph_destroy, after));
  return result;
}

/* Where memory lies counts, not the stream that captured, except for a fill of other memory; without access between the devices, too. */
CONFORMANCE_TEST(GraphUpdate, KeepsTheDevicesOfMemory) {
  NEEDS_GRAPHS();
  NEEDS_TWO_DEVICES();
  ladei_stream streams[2];
  char *m[2][2];
  for (int d = 0; d < 2; d++) {
    streams[d] = conformance_stream(runtime, d, LADEI_STREAM_NON_BLOCKING);
    for (int i = 0; i < 2; i++) m[d][i] = conformance_device_memory(runtime, d, BYTES);
  }
  const device_node across = {m[0][0], m[1][0], 0}, within = {m[0][0], m[0][1], 0}, filled = {m[0][0], NULL, 0};
  const struct {
    device_node from, to;
    ladei_graph_update result;
  } cases[] = {{across, {m[0][1], m[1][1], 0}, LADEI_GRAPH_UPDATED},
               {across, {m[0][0], m[1][0], 1}, LADEI_GRAPH_UPDATED},
               {across, {m[1][0], m[0][0], 0}, LADEI_GRAPH_PARAMETERS_CHANGED},
               {across, {m[0][0], m[0][1], 0}, LADEI_GRAPH_PARAMETERS_CHANGED},
               {across, {m[1][1], m[1][0], 0}, LADEI_GRAPH_PARAMETERS_CHANGED},
               {within, {m[1][0], m[1][1], 0}, LADEI_GRAPH_PARAMETERS_CHANGED},
               {filled, {m[0][1], NULL, 0}, LADEI_GRAPH_UPDATED},
               {filled, {m[0][0], NULL, 1}, LADEI_GRAPH_UPDATED},
               {filled, {m[0][1], NULL, 1}, LADEI_GRAPH_PARAMETERS_CHANGED},
               {filled, {m[1][0], NULL, 1}, LADEI_GRAPH_PARAMETERS_CHANGED}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_test_context("case %zu", i);
    LADE_EXPECT_EQ_INT(node_update(runtime, streams, cases[i].from, cases[i].to), cases[i].result);
  }
  for (int d = 0; d < 2; d++) {
    for (int i = 0; i < 2; i++) LADE_EXPECT_OK(OP(device_free, d, m[d][i]));
    LADE_EXPECT_OK(OP(stream_destroy, streams[d].handle));
  }
}

CONFORMANCE_TEST(GraphUpdate, LeavesLaunchesThatWereQueuedBefore) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph one = capture(&s, fill_one), two = capture(&s, fill_two);
  ladei_graph_exec exec = instantiate(&s, one);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, s.stream.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &s.stream));
  LADE_EXPECT_EQ_INT(update(&s, exec, two), LADEI_GRAPH_UPDATED);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &s.stream));
  EXPECT_BYTES(s.pinned, BYTES, 1);
  launch(&s, exec);
  EXPECT_BYTES(s.pinned, 100, 1);
  EXPECT_BYTES(s.pinned + 100, 50, 2);
  EXPECT_BYTES(s.pinned + 150, BYTES - 150, 1);
  exec_destroy(&s, exec);
  graph_destroy(&s, one);
  graph_destroy(&s, two);
  stage_close(&s);
}

/* Launches before and after it are one order, on whatever streams. */
CONFORMANCE_TEST(GraphUpdate, KeepsTheOrderOfLaunches) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph one = capture(&s, fill_one), two = capture(&s, fill_two);
  ladei_graph_exec exec = instantiate(&s, one);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, s.stream.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &s.stream));
  LADE_EXPECT_EQ_INT(update(&s, exec, two), LADEI_GRAPH_UPDATED);
  LADE_EXPECT_OK(OP(graph_launch, exec, &s.side));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &s.side));
  EXPECT_BYTES(s.pinned, BYTES, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &s.side));
  EXPECT_BYTES(s.pinned, 100, 1);
  EXPECT_BYTES(s.pinned + 100, 50, 2);
  exec_destroy(&s, exec);
  graph_destroy(&s, one);
  graph_destroy(&s, two);
  stage_close(&s);
}

static ladei_graph capture_with_object(stage *s, body b, _Atomic(int) *destroyed) {
  ladei_graph graph = capture(s, b);
  ladei_user_object object = NULL;
  LADE_EXPECT_OK(STAGE_OP(s, user_object_create, conformance_count, destroyed, &object));
  LADE_EXPECT_OK(STAGE_OP(s, graph_retain_user_object, graph, object));
  return graph;
}

CONFORMANCE_TEST(GraphUpdate, TakesTheUserObjectsOfTheNewGraphForItsOwn) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  _Atomic(int) first = 0, second = 0, refused = 0;
  ladei_graph one = capture_with_object(&s, fill_one, &first), two = capture_with_object(&s, fill_two, &second),
              other = capture_with_object(&s, chain, &refused);
  ladei_graph_exec exec = instantiate(&s, one);
  graph_destroy(&s, one);
  LADE_EXPECT_EQ_INT(update(&s, exec, other), LADEI_GRAPH_TOPOLOGY_CHANGED);
  graph_destroy(&s, other);
  LADE_EXPECT(conformance_wait_count(runtime, &refused, 1));
  LADE_EXPECT_EQ_INT(first, 0);
  LADE_EXPECT_EQ_INT(update(&s, exec, two), LADEI_GRAPH_UPDATED);
  LADE_EXPECT(conformance_wait_count(runtime, &first, 1));
  graph_destroy(&s, two);
  launch(&s, exec);
  support_let_run(runtime);
  LADE_EXPECT_EQ_INT(second, 0);
  exec_destroy(&s, exec);
  LADE_EXPECT(conformance_wait_count(runtime, &second, 1));
  stage_close(&s);
}

/* What a queued launch needs stays until it has run. */
CONFORMANCE_TEST(GraphUpdate, KeepsTheUserObjectsOfLaunchesInFlight) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  _Atomic(int) first = 0, second = 0;
  ladei_graph one = capture_with_object(&s, fill_one, &first), two = capture_with_object(&s, fill_two, &second);
  ladei_graph_exec exec = instantiate(&s, one);
  graph_destroy(&s, one);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, s.stream.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &s.stream));
  LADE_EXPECT_EQ_INT(update(&s, exec, two), LADEI_GRAPH_UPDATED);
  support_let_run(runtime);
  LADE_EXPECT_EQ_INT(first, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &s.stream));
  LADE_EXPECT(conformance_wait_count(runtime, &first, 1));
  LADE_EXPECT_EQ_INT(second, 0);
  graph_destroy(&s, two);
  exec_destroy(&s, exec);
  LADE_EXPECT(conformance_wait_count(runtime, &second, 1));
  stage_close(&s);
}

CONFORMANCE_TEST(GraphUpdate, ThatFailsChangesNothing) {
  NEEDS_GRAPHS();
  NEEDS(runtime->software_device != NULL, "not a software device of this process");
  stage s = stage_open(runtime);
  ladei_graph one = capture(&s, fill_one), two = capture(&s, fill_two);
  ladei_graph_exec exec = instantiate(&s, one), none = NULL;
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  LADE_EXPECT_OK(lade_soft_fault_add(runtime, "graph_exec_update", 1, LADE_ERR_DRIVER));
  EXPECT_REFUSED(LADE_ERR_DRIVER, "graph_exec_update", NULL, OP(graph_exec_update, exec, two, &result));
  LADE_EXPECT_OK(lade_soft_fault_add(runtime, "graph_instantiate_with", 1, LADE_ERR_DRIVER));
  EXPECT_REFUSED(LADE_ERR_DRIVER, "graph_instantiate_with", NULL, OP(graph_instantiate_with, one, 0, NULL, &none));
  LADE_EXPECT_EQ_INT(result, LADEI_GRAPH_NOT_UPDATABLE);
  LADE_EXPECT_EQ_PTR(none, NULL);
  launch(&s, exec);
  EXPECT_BYTES(s.pinned, BYTES, 1);
  exec_destroy(&s, exec);
  graph_destroy(&s, one);
  graph_destroy(&s, two);
  stage_close(&s);
}

/* ---- captures under way ------------------------------------------------------------------------------------------ */

CONFORMANCE_TEST(GraphUpdate, HarmsNoCaptureInAnyModeNorDoUploadsAndCounts) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph one = capture(&s, fill_one), captured = NULL;
  ladei_graph_exec exec = instantiate(&s, one);
  for (int mode = LADEI_CAPTURE_GLOBAL; mode <= LADEI_CAPTURE_RELAXED; mode++) {
    lade_test_context("mode %d", mode);
    ladei_graph_counts counts;
    ladei_graph_memory memory;
    LADE_ASSERT_OK(OP(capture_begin, &s.stream, (ladei_capture_mode)mode));
    fill_two(&s);
    LADE_EXPECT_EQ_INT(update(&s, exec, one), LADEI_GRAPH_UPDATED);
    LADE_EXPECT_OK(OP(graph_upload, exec, &s.side));
    LADE_EXPECT_OK(OP(graph_launch, exec, &s.side));
    LADE_EXPECT_OK(OP(graph_counts, one, &counts));
    LADE_EXPECT_OK(OP(graph_memory_get, 0, &memory));
    LADE_EXPECT_OK(OP(graph_memory_trim, 0));
    LADE_ASSERT_OK(OP(capture_end, &s.stream, &captured));
    LADE_EXPECT_OK(OP(stream_synchronize, &s.side));
    graph_destroy(&s, captured);
  }
  lade_test_context("%s", "");
  exec_destroy(&s, exec);
  graph_destroy(&s, one);
  stage_close(&s);
}

CONFORMANCE_TEST(GraphUpload, OrLaunchOnACapturingStreamBreaksItsCapture) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph one = capture(&s, fill_one), captured = NULL;
  ladei_graph_exec exec = instantiate(&s, one);
  for (int upload = 0; upload < 2; upload++) {
    LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
    if (upload)
      EXPECT_REFUSED(LADE_ERR_CAPTURE, "graph_upload", NULL, OP(graph_upload, exec, &s.stream));
    else
      EXPECT_REFUSED(LADE_ERR_CAPTURE, "graph_launch", NULL, OP(graph_launch, exec, &s.stream));
    EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_end", NULL, OP(capture_end, &s.stream, &captured));
    LADE_EXPECT_EQ_PTR(captured, NULL);
  }
  launch(&s, exec);
  EXPECT_BYTES(s.pinned, BYTES, 1);
  exec_destroy(&s, exec);
  exec = NULL;
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "graph_instantiate_with", NULL,
                 OP(graph_instantiate_with, one, LADEI_GRAPH_UPLOAD, &s.stream, &exec));
  LADE_EXPECT_EQ_PTR(exec, NULL);
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_end", NULL, OP(capture_end, &s.stream, &captured));
  graph_destroy(&s, one);
  stage_close(&s);
}

/* ---- instantiation, upload --------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(GraphFlags, GiveExecsThatDoTheSameWork) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  static const unsigned flags[] = {0,
                                   LADEI_GRAPH_AUTO_FREE,
                                   LADEI_GRAPH_UPLOAD,
                                   LADEI_GRAPH_DEVICE_LAUNCH,
                                   LADEI_GRAPH_UPLOAD | LADEI_GRAPH_DEVICE_LAUNCH,
                                   LADEI_GRAPH_UPLOAD | LADEI_GRAPH_AUTO_FREE};
  ladei_graph graph = capture(&s, chain);
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    lade_test_context("flags %#x", flags[i]);
    ladei_graph_exec exec = NULL;
    bool upload = (flags[i] & LADEI_GRAPH_UPLOAD) != 0;
    memset(s.pinned, 0, BYTES);
    LADE_ASSERT_OK(OP(graph_instantiate_with, graph, flags[i], upload ? &s.side : NULL, &exec));
    if (upload) LADE_EXPECT_OK(OP(stream_synchronize, &s.side));
    EXPECT_BYTES(s.pinned, BYTES, 0);
    launch(&s, exec);
    EXPECT_BYTES(s.pinned, 100, 1);
    EXPECT_BYTES(s.pinned + 100, 50, 2);
    exec_destroy(&s, exec);
  }
  lade_test_context("%s", "");
  graph_destroy(&s, graph);
  stage_close(&s);
}

CONFORMANCE_TEST(GraphFlags, ThatAreUnknownOrDoNotGoTogetherAreRefused) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph graph = capture(&s, fill_one);
  ladei_graph_exec exec = NULL;
  static const unsigned flags[] = {8, 1u << 31, LADEI_GRAPH_AUTO_FREE | LADEI_GRAPH_DEVICE_LAUNCH, LADEI_GRAPH_UPLOAD};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "graph_instantiate_with", NULL,
                   OP(graph_instantiate_with, graph, flags[i], NULL, &exec));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "graph_instantiate_with", "upload",
                 OP(graph_instantiate_with, graph, 0, &s.stream, &exec));
  static const body unfit[] = {empty, host, write_value};
  for (size_t i = 0; i < sizeof unfit / sizeof unfit[0]; i++) {
    if (unfit[i] == write_value && runtime->ops->stream_write_value == NULL) continue;
    ladei_graph other = capture(&s, unfit[i]);
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "graph_instantiate_with", NULL,
                   OP(graph_instantiate_with, other, LADEI_GRAPH_DEVICE_LAUNCH, NULL, &exec));
    graph_destroy(&s, other);
  }
  LADE_EXPECT_EQ_PTR(exec, NULL);
  graph_destroy(&s, graph);
  stage_close(&s);
}

CONFORMANCE_TEST(GraphUpload, RunsNothingAndWaitsForEarlierLaunches) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_graph graph = capture(&s, fill_one);
  ladei_graph_exec exec = instantiate(&s, graph);
  LADE_EXPECT_OK(OP(graph_upload, exec, &s.stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &s.stream));
  EXPECT_BYTES(s.pinned, BYTES, 0);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, s.stream.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &s.stream));
  LADE_EXPECT_OK(OP(graph_upload, exec, &s.side));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &s.side));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &s.side));
  EXPECT_BYTES(s.pinned, BYTES, 1);
  exec_destroy(&s, exec);
  graph_destroy(&s, graph);
  stage_close(&s);
}

/* ---- what graphs consist of -------------------------------------------------------------------------------------- */

static void expect_counts(stage *s, body b, size_t edges, size_t copies, size_t fills, size_t hosts, size_t writes) {
  ladei_graph graph = capture(s, b);
  ladei_graph_counts counts;
  LADE_EXPECT_OK(STAGE_OP(s, graph_counts, graph, &counts));
  LADE_EXPECT_EQ_SIZE(counts.nodes, copies + fills + hosts + writes);
  LADE_EXPECT_EQ_SIZE(counts.edges, edges);
  size_t sum = 0;
  for (int i = 0; i < LADEI_NODE_KINDS; i++) sum += counts.of_kind[i];
  LADE_EXPECT_EQ_SIZE(sum, counts.nodes);
  LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_COPY], copies);
  LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_FILL], fills);
  LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_HOST], hosts);
  LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_WRITE], writes);
  graph_destroy(s, graph);
}

static void one_of_each(stage *s) {
  copy_in(s);
  fill_one(s);
  host(s);
  write_value(s);
  copy_out(s);
}

CONFORMANCE_TEST(GraphCounts, NameNodesByKindAndEdges) {
  NEEDS_GRAPHS();
  NEEDS_OP(stream_write_value);
  stage s = stage_open(runtime);
  expect_counts(&s, empty, 0, 0, 0, 0, 0);
  expect_counts(&s, chain, 2, 0, 3, 0, 0);
  expect_counts(&s, fork_and_join, 2, 0, 3, 0, 0);
  expect_counts(&s, one_of_each, 4, 2, 1, 1, 1);
  stage_close(&s);
}

CONFORMANCE_TEST(GraphCounts, AreToldOfAGraphUnderConstruction) {
  NEEDS_GRAPHS();
  stage s = stage_open(runtime);
  ladei_capture_info info;
  ladei_graph_counts counts;
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_GLOBAL));
  fill_one(&s);
  copy_in(&s);
  LADE_ASSERT_OK(OP(stream_capture_info, &s.stream, &info));
  LADE_EXPECT_OK(OP(graph_counts, info.graph, &counts));
  LADE_EXPECT_EQ_SIZE(counts.nodes, 2);
  LADE_EXPECT_EQ_SIZE(counts.edges, 1);
  fill_two(&s);
  LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
  LADE_EXPECT_OK(OP(graph_counts, graph, &counts));
  LADE_EXPECT_EQ_SIZE(counts.nodes, 3);
  graph_destroy(&s, graph);
  stage_close(&s);
}

/* ---- order in a capture ------------------------------------------------------------------------------------------ */

enum { NODES = 8 };

/* The frontier of a stream in the capture; its nodes, of which there is room for `NODES`. */
static size_t frontier(stage *s, const ladei_stream *stream, ladei_graph_node *nodes) {
  ladei_capture_info plain, info;
  size_t count = 0;
  LADE_EXPECT_OK(STAGE_OP(s, stream_capture_info, stream, &plain));
  LADE_EXPECT_OK(STAGE_OP(s, capture_frontier, stream, &info, nodes, NODES, &count));
  LADE_EXPECT_EQ_INT(info.status, plain.status);
  LADE_EXPECT_EQ_UINT(info.id, plain.id);
  LADE_EXPECT_EQ_PTR(info.graph, plain.graph);
  return count;
}

static size_t dependencies(stage *s, ladei_graph_node node, ladei_graph_node *nodes) {
  size_t count = 99;
  LADE_EXPECT_OK(STAGE_OP(s, graph_node_dependencies, node, nodes, NODES, &count));
  return count;
}

CONFORMANCE_TEST(CaptureOrder, IsEmptyOutsideOfCapturesAndBeforeTheFirstWork) {
  NEEDS_OP(capture_frontier);
  stage s = stage_open(runtime);
  ladei_graph_node nodes[NODES];
  ladei_graph graph = NULL;
  LADE_EXPECT_EQ_SIZE(frontier(&s, &s.stream, nodes), 0);
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_EQ_SIZE(frontier(&s, &s.stream, nodes), 0);
  LADE_EXPECT_EQ_SIZE(frontier(&s, &s.side, nodes), 0);
  fill_one(&s);
  LADE_EXPECT_EQ_SIZE(frontier(&s, &s.stream, nodes), 1);
  LADE_EXPECT_EQ_SIZE(dependencies(&s, nodes[0], nodes), 0);
  LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
  LADE_EXPECT_EQ_SIZE(frontier(&s, &s.stream, nodes), 0);
  graph_destroy(&s, graph);
  stage_close(&s);
}

/*
 *   stream:  first ---------> own ----> last     the side stream's node is seen from the stream after the wait alone
 *              \                       /
 *   side:       +---> beside ---------+
 */
CONFORMANCE_TEST(CaptureOrder, FollowsForksAndJoins) {
  NEEDS_OP(capture_frontier);
  stage s = stage_open(runtime);
  ladei_graph_node first[NODES], beside[NODES], own[NODES], joined[NODES], last[NODES], seen[NODES];
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
  fill_one(&s);
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, first), 1);
  LADE_EXPECT_OK(OP(event_record, s.forked, &s.stream));
  LADE_EXPECT_OK(OP(stream_wait_event, &s.side, s.forked));
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.side, seen), 1);
  LADE_EXPECT_EQ_PTR(seen[0], first[0]);
  LADE_EXPECT_OK(OP(fill, s.device, 3, BYTES, &s.side));
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.side, beside), 1);
  LADE_EXPECT_OK(OP(fill, s.device + BYTES, 3, BYTES, &s.stream));
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, own), 1);
  LADE_EXPECT_NE_PTR(own[0], beside[0]);
  LADE_EXPECT_OK(OP(event_record, s.joined, &s.side));
  LADE_EXPECT_OK(OP(stream_wait_event, &s.stream, s.joined));
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, joined), 2);
  LADE_EXPECT_EQ_INT(joined[0] == own[0] || joined[1] == own[0], true);
  LADE_EXPECT_EQ_INT(joined[0] == beside[0] || joined[1] == beside[0], true);
  fill_two(&s);
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, last), 1);

  LADE_ASSERT_EQ_SIZE(dependencies(&s, last[0], seen), 2);
  LADE_EXPECT_EQ_INT(seen[0] == own[0] || seen[1] == own[0], true);
  LADE_EXPECT_EQ_INT(seen[0] == beside[0] || seen[1] == beside[0], true);
  LADE_ASSERT_EQ_SIZE(dependencies(&s, beside[0], seen), 1);
  LADE_EXPECT_EQ_PTR(seen[0], first[0]);
  LADE_ASSERT_EQ_SIZE(dependencies(&s, own[0], seen), 1);
  LADE_EXPECT_EQ_PTR(seen[0], first[0]);
  LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
  LADE_EXPECT_EQ_SIZE(dependencies(&s, last[0], seen), 2); /* nodes live as long as their graph */
  graph_destroy(&s, graph);
  stage_close(&s);
}

CONFORMANCE_TEST(CaptureOrder, TellsTheCountWhereThereIsNoRoomAndWritesNoMore) {
  NEEDS_OP(capture_frontier);
  stage s = stage_open(runtime);
  ladei_capture_info info;
  ladei_graph_node all[NODES], last[NODES], some[2] = {NULL, NULL};
  ladei_graph graph = NULL;
  size_t count = 0;
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
  fork_and_join(&s);
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, all), 2);
  LADE_EXPECT_OK(OP(capture_frontier, &s.stream, &info, NULL, 0, &count));
  LADE_EXPECT_EQ_SIZE(count, 2);
  LADE_EXPECT_OK(OP(capture_frontier, &s.stream, &info, some, 1, &count));
  LADE_EXPECT_EQ_SIZE(count, 2);
  LADE_EXPECT_EQ_PTR(some[0], all[0]);
  LADE_EXPECT_EQ_PTR(some[1], NULL);
  fill_two(&s);
  LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, last), 1);
  LADE_EXPECT_OK(OP(graph_node_dependencies, last[0], NULL, 0, &count));
  LADE_EXPECT_EQ_SIZE(count, 2);
  some[0] = NULL;
  LADE_EXPECT_OK(OP(graph_node_dependencies, last[0], some, 1, &count));
  LADE_EXPECT_EQ_SIZE(count, 2);
  LADE_EXPECT_NE_PTR(some[0], NULL);
  LADE_EXPECT_EQ_PTR(some[1], NULL);
  LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
  graph_destroy(&s, graph);
  stage_close(&s);
}

CONFORMANCE_TEST(CaptureOrder, HarmsNoCaptureAndIsNotToldOfAnInvalidOne) {
  NEEDS_OP(capture_frontier);
  stage s = stage_open(runtime);
  ladei_graph_node nodes[NODES];
  ladei_graph graph = NULL;
  for (int mode = LADEI_CAPTURE_GLOBAL; mode <= LADEI_CAPTURE_RELAXED; mode++) {
    lade_test_context("mode %d", mode);
    LADE_ASSERT_OK(OP(capture_begin, &s.stream, (ladei_capture_mode)mode));
    chain(&s);
    LADE_ASSERT_EQ_SIZE(frontier(&s, &s.stream, nodes), 1);
    LADE_EXPECT_EQ_SIZE(dependencies(&s, nodes[0], nodes), 1);
    LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
    graph_destroy(&s, graph);
  }
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
  chain(&s);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(stream_query, &s.stream));
  LADE_EXPECT_EQ_SIZE(frontier(&s, &s.stream, nodes), 0);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(capture_end, &s.stream, &graph));
  stage_close(&s);
}

/* ---- memory of graphs -------------------------------------------------------------------------------------------- */

static void expect_memory_sane(const ladei_graph_memory *memory) {
  LADE_EXPECT_GE_UINT(memory->reserved_bytes, memory->used_bytes);
  LADE_EXPECT_GE_UINT(memory->used_high_bytes, memory->used_bytes);
  LADE_EXPECT_GE_UINT(memory->reserved_high_bytes, memory->reserved_bytes);
}

/* Where captures may allocate: the memory is there from the first launch until a trim after the exec. */
CONFORMANCE_TEST(GraphMemory, IsReservedByLaunchesAndGivenBackByATrim) {
  NEEDS_GRAPHS();
  NEEDS_OP(pool_alloc);
  enum { ALLOCATED = 1 << 20 };
  stage s = stage_open(runtime);
  ladei_driver_pool pool = NULL;
  ladei_graph_memory before, during, after;
  LADE_EXPECT_OK(OP(graph_memory_trim, 0));
  LADE_EXPECT_OK(OP(graph_memory_get, 0, &before));
  expect_memory_sane(&before);
  LADE_EXPECT_OK(OP(pool_default, 0, &pool));
  ladei_graph graph = NULL;
  void *memory = NULL;
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
  lade_status allocated = OP(pool_alloc, pool, ALLOCATED, &s.stream, &memory);
  if (allocated == LADE_OK) {
    LADE_EXPECT_OK(OP(fill, memory, 1, ALLOCATED, &s.stream));
    LADE_EXPECT_OK(OP(pool_free, memory, &s.stream));
  }
  LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
  if (allocated == LADE_OK) {
    ladei_graph_counts counts;
    LADE_EXPECT_OK(OP(graph_counts, graph, &counts));
    LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_ALLOCATION], 1);
    LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_FREE], 1);
  } else {
    LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, allocated);
  }
  ladei_graph_exec exec = instantiate(&s, graph);
  launch(&s, exec);
  LADE_EXPECT_OK(OP(graph_memory_get, 0, &during));
  expect_memory_sane(&during);
  LADE_EXPECT_GE_UINT(during.reserved_bytes, before.reserved_bytes + (allocated == LADE_OK ? ALLOCATED : 0));
  exec_destroy(&s, exec);
  graph_destroy(&s, graph);
  LADE_EXPECT_OK(OP(graph_memory_trim, 0));
  LADE_EXPECT_OK(OP(graph_memory_get, 0, &after));
  expect_memory_sane(&after);
  LADE_EXPECT_EQ_UINT(after.reserved_bytes, before.reserved_bytes);
  LADE_EXPECT_GE_UINT(after.reserved_high_bytes, during.reserved_bytes);
  EXPECT_REFUSED(LADE_ERR_NO_DEVICE, "graph_memory_get", NULL, OP(graph_memory_get, 99, &after));
  EXPECT_REFUSED(LADE_ERR_NO_DEVICE, "graph_memory_trim", NULL, OP(graph_memory_trim, -1));
  stage_close(&s);
}
