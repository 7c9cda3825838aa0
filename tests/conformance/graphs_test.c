/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Graphs: launching what was captured, life of graphs and execs in any order, user objects. */
#include <stdatomic.h>
#include <string.h>

#include "base/thread.h"
#include "tests/conformance/conformance.h"

#define NEEDS_GRAPHS() NEEDS_OP(graph_launch)

static ladei_graph_exec instantiate(lade_runtime *runtime, ladei_graph graph) {
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(OP(graph_instantiate, graph, &exec));
  return exec;
}

/* Ends the capture on `stream` and turns it into an exec, the graph being gone already. */
static ladei_graph_exec end_into_exec(lade_runtime *runtime, const ladei_stream *stream) {
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(OP(capture_end, stream, &graph));
  ladei_graph_exec exec = instantiate(runtime, graph);
  LADE_EXPECT_OK(OP(graph_destroy, graph));
  return exec;
}

/* --- Launching ---------------------------------------------------------------------------------------------------- */

/* Also: a graph reads its sources anew at each launch. */
CONFORMANCE_TEST(Graphs, EachLaunchDoesTheWorkAgain) {
  NEEDS_GRAPHS();
  enum { BYTES = 70000, LAUNCHES = 5 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  void *a = conformance_device_memory(runtime, 0, BYTES), *b = conformance_device_memory(runtime, 0, BYTES);
  _Atomic(int) calls = 0;
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_THREAD_LOCAL));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, a, in, BYTES, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, b, a, BYTES, &stream));
  LADE_EXPECT_OK(OP(fill, b, 0x77, 10, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, b, BYTES, &stream));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  ladei_graph_exec exec = end_into_exec(runtime, &stream);
  for (int i = 0; i < LAUNCHES; i++) {
    support_pattern_fill(in, BYTES, (uint64_t)i, 0);
    LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
    LADE_ASSERT_OK(OP(stream_synchronize, &stream));
    LADE_EXPECT_EQ_INT(calls, i + 1);
    EXPECT_BYTES(out, 10, 0x77);
    LADE_EXPECT_PATTERN(out + 10, BYTES - 10, (uint64_t)i, 10);
  }
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(device_free, 0, a));
  LADE_ASSERT_OK(OP(device_free, 0, b));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Graphs, LaunchIsInStreamOrder) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  conformance_log log = {0};
  conformance_log_entry entries[4];
  for (int i = 0; i < 4; i++) entries[i] = (conformance_log_entry){&log, i};
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_log_append, &entries[1]));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_log_append, &entries[2]));
  ladei_graph_exec exec = end_into_exec(runtime, &stream);
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_log_append, &entries[0]));
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_log_append, &entries[3]));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  static const int expected[] = {0, 1, 2, 1, 2, 3};
  LADE_ASSERT_EQ_INT(log.count, 6);
  for (int i = 0; i < 6; i++) LADE_EXPECT_EQ_INT(log.numbers[i], expected[i]);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* Work of a joined stream runs between fork and join of the graph. */
CONFORMANCE_TEST(Graphs, KeepTheOrderOfForksAndJoins) {
  NEEDS_GRAPHS();
  enum { BYTES = 50000 };
  ladei_stream origin = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream side = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event forked = conformance_event(runtime, 0), joined = conformance_event(runtime, 0);
  char *out = conformance_pinned(runtime, 2 * BYTES), *memory = conformance_device_memory(runtime, 0, 2 * BYTES);
  LADE_ASSERT_OK(OP(capture_begin, &origin, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(fill, memory, 1, 2 * BYTES, &origin));
  LADE_EXPECT_OK(OP(event_record, forked, &origin));
  LADE_EXPECT_OK(OP(stream_wait_event, &side, forked));
  LADE_EXPECT_OK(OP(fill, memory, 2, BYTES, &side));
  LADE_EXPECT_OK(OP(fill, memory + BYTES, 3, BYTES, &origin));
  LADE_EXPECT_OK(OP(event_record, joined, &side));
  LADE_EXPECT_OK(OP(stream_wait_event, &origin, joined));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, 2 * BYTES, &origin));
  ladei_graph_exec exec = end_into_exec(runtime, &origin);
  for (int launch = 0; launch < 3; launch++) {
    memset(out, 0, 2 * BYTES);
    LADE_EXPECT_OK(OP(graph_launch, exec, &side));
    LADE_ASSERT_OK(OP(stream_synchronize, &side));
    EXPECT_BYTES(out, BYTES, 2);
    EXPECT_BYTES(out + BYTES, BYTES, 3);
  }
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(event_destroy, forked));
  LADE_ASSERT_OK(OP(event_destroy, joined));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, origin.handle));
  LADE_ASSERT_OK(OP(stream_destroy, side.handle));
}

CONFORMANCE_TEST(Graphs, LaunchesOfOneExecOnTwoStreamsDoNotOverlap) {
  NEEDS_GRAPHS();
  ladei_stream held = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(int) calls = 0;
  LADE_ASSERT_OK(OP(capture_begin, &other, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(host_function, &other, conformance_count, &calls));
  ladei_graph_exec exec = end_into_exec(runtime, &other);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, held.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &held));
  LADE_EXPECT_OK(OP(graph_launch, exec, &other));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &other));
  LADE_EXPECT_EQ_INT(calls, 0);
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &other));
  LADE_EXPECT_EQ_INT(calls, 2);
  LADE_ASSERT_OK(OP(stream_synchronize, &held));
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(stream_destroy, held.handle));
  LADE_ASSERT_OK(OP(stream_destroy, other.handle));
}

CONFORMANCE_TEST(Graphs, LaunchOnTheLegacyStreamIsOrderedWithBlockingOnes) {
  NEEDS_GRAPHS();
  ladei_stream blocking = conformance_stream(runtime, 0, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  LADE_ASSERT_OK(OP(capture_begin, &blocking, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(fill, pinned, 2, 4096, &blocking));
  ladei_graph_exec exec = end_into_exec(runtime, &blocking);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, blocking.handle));
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &blocking));
  LADE_EXPECT_OK(OP(graph_launch, exec, &legacy));
  support_let_run(runtime);
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &legacy));
  LADE_EXPECT_EQ_INT(pinned[0], 2);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
}

CONFORMANCE_TEST(Graphs, EmptyOnesLaunch) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  ladei_graph_exec exec = end_into_exec(runtime, &stream);
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Graphs, LaunchInFlightOutlivesItsExec) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(fill, pinned, 8, 4096, &stream));
  ladei_graph_exec exec = end_into_exec(runtime, &stream);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(graph_exec_destroy, exec));
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_INT(pinned[4095], 8);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- User objects ------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(UserObjects, AreDestroyedOnceWhenTheLastReferenceGoes) {
  NEEDS_GRAPHS();
  LADE_ASSERT_OK(OP(current_device_set, 0));
  _Atomic(int) destroyed = 0;
  ladei_user_object object = NULL;
  LADE_ASSERT_OK(OP(user_object_create, conformance_count, &destroyed, &object));
  LADE_EXPECT(object != NULL);
  LADE_EXPECT_EQ_INT(destroyed, 0);
  LADE_ASSERT_OK(OP(user_object_release, object));
  LADE_EXPECT(conformance_wait_count(runtime, &destroyed, 1));
  LADE_EXPECT_EQ_INT(destroyed, 1);
}

/* How the pinned pool learns that a graph which holds its blocks has gone: after the graph and every exec, whatever the
 * order, and never before. */
CONFORMANCE_TEST(UserObjects, GoWithTheLastOfGraphAndExecsInAnyOrder) {
  NEEDS_GRAPHS();
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  for (int order = 0; order < 6; order++) {
    lade_test_context("order %d", order);
    _Atomic(int) destroyed = 0;
    ladei_graph graph = NULL;
    ladei_user_object object = NULL;
    LADE_ASSERT_OK(OP(user_object_create, conformance_count, &destroyed, &object));
    LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
    LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
    LADE_ASSERT_OK(OP(graph_retain_user_object, graph, object));
    ladei_graph_exec execs[2] = {instantiate(runtime, graph), instantiate(runtime, graph)};
    for (int i = 0; i < 3; i++) {
      LADE_EXPECT_EQ_INT(destroyed, 0);
      int which = orders[order][i];
      if (which == 2) LADE_ASSERT_OK(OP(graph_destroy, graph));
      if (which < 2) LADE_ASSERT_OK(OP(graph_launch, execs[which], &stream));
      LADE_ASSERT_OK(OP(stream_synchronize, &stream));
      if (which < 2) LADE_ASSERT_OK(OP(graph_exec_destroy, execs[which]));
    }
    LADE_ASSERT(conformance_wait_count(runtime, &destroyed, 1));
    LADE_EXPECT_EQ_INT(destroyed, 1);
  }
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The thread that ran a destructor; 0: none has yet. */
static void note_thread(void *user) { atomic_store((_Atomic(uint64_t) *)user, ladei_thread_number()); }

/* A graph with a user object that tells its end. */
static ladei_graph graph_with_object(lade_runtime *runtime, const ladei_stream *stream, _Atomic(uint64_t) *ended) {
  ladei_graph graph = NULL;
  ladei_user_object object = NULL;
  atomic_store(ended, 0);
  LADE_EXPECT_OK(OP(user_object_create, note_thread, ended, &object));
  LADE_EXPECT_OK(OP(capture_begin, stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(capture_end, stream, &graph));
  LADE_EXPECT_OK(OP(graph_retain_user_object, graph, object));
  return graph;
}

CONFORMANCE_TEST(UserObjects, EndInTheCallThatDropsTheLastReference) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(uint64_t) ended = 0;
  ladei_user_object object = NULL;
  LADE_ASSERT_OK(OP(user_object_create, note_thread, &ended, &object));
  LADE_ASSERT_OK(OP(user_object_release, object));
  LADE_EXPECT_EQ_UINT(atomic_load(&ended), ladei_thread_number()); /* by a release */

  LADE_ASSERT_OK(OP(graph_destroy, graph_with_object(runtime, &stream, &ended)));
  LADE_EXPECT_EQ_UINT(atomic_load(&ended), ladei_thread_number()); /* by the destroy of a graph */

  ladei_graph graph = graph_with_object(runtime, &stream, &ended);
  ladei_graph_exec exec = instantiate(runtime, graph);
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_EXPECT_EQ_UINT(atomic_load(&ended), ladei_thread_number()); /* by that of an exec that was never launched */

  graph = graph_with_object(runtime, &stream, &ended);
  exec = instantiate(runtime, graph);
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  _Atomic(uint64_t) other = 0;
  graph = graph_with_object(runtime, &stream, &other);
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  LADE_ASSERT_OK(OP(graph_exec_update, exec, graph, &result));
  LADE_EXPECT_EQ_UINT(atomic_load(&ended), ladei_thread_number()); /* by an update, which drops the old graph's */
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));

  ladei_capture_info info;
  atomic_store(&ended, 0);
  LADE_ASSERT_OK(OP(user_object_create, note_thread, &ended, &object));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_ASSERT_OK(OP(stream_capture_info, &stream, &info));
  LADE_ASSERT_OK(OP(graph_retain_user_object, info.graph, object));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(stream_query, &stream));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(capture_end, &stream, &graph));
  LADE_EXPECT_EQ_UINT(atomic_load(&ended), ladei_thread_number()); /* by the end of a capture that had become invalid */
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* However long ago the launch ended. */
CONFORMANCE_TEST(UserObjects, OfAnExecThatWasLaunchedEndInAThreadOfTheDriver) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(uint64_t) ended = 0;
  ladei_graph graph = graph_with_object(runtime, &stream, &ended);
  ladei_graph_exec exec = instantiate(runtime, graph);
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(graph_launch, exec, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  while (atomic_load(&ended) == 0)
    if (runtime->ops->step != NULL) LADE_ASSERT_OK(OP(step)); /* else the driver's thread needs no help */
  if (runtime->ops->step == NULL) LADE_EXPECT(atomic_load(&ended) != ladei_thread_number());
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(UserObjects, AreRetainedByAGraphUnderConstruction) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(int) destroyed = 0;
  ladei_user_object object = NULL;
  ladei_capture_info info;
  LADE_ASSERT_OK(OP(user_object_create, conformance_count, &destroyed, &object));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_ASSERT_OK(OP(stream_capture_info, &stream, &info));
  LADE_ASSERT_OK(OP(graph_retain_user_object, info.graph, object));
  ladei_graph_exec exec = end_into_exec(runtime, &stream);
  LADE_EXPECT_EQ_INT(destroyed, 0);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT(conformance_wait_count(runtime, &destroyed, 1));
  LADE_EXPECT_EQ_INT(destroyed, 1);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(UserObjects, GoWithACaptureThatFailed) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(int) destroyed = 0;
  ladei_user_object object = NULL;
  ladei_capture_info info;
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(OP(user_object_create, conformance_count, &destroyed, &object));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_ASSERT_OK(OP(stream_capture_info, &stream, &info));
  LADE_ASSERT_OK(OP(graph_retain_user_object, info.graph, object));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(stream_synchronize, &stream));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(capture_end, &stream, &graph));
  LADE_ASSERT(conformance_wait_count(runtime, &destroyed, 1));
  LADE_EXPECT_EQ_INT(destroyed, 1);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* A launch in flight holds them too, also when nothing else does any more. */
CONFORMANCE_TEST(UserObjects, OutliveALaunchInFlight) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(int) destroyed = 0, calls = 0;
  ladei_user_object object = NULL;
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(OP(user_object_create, conformance_count, &destroyed, &object));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
  LADE_ASSERT_OK(OP(graph_retain_user_object, graph, object));
  ladei_graph_exec exec = instantiate(runtime, graph);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(graph_destroy, graph));
  LADE_EXPECT_OK(OP(graph_exec_destroy, exec));
  LADE_EXPECT_EQ_INT(destroyed, 0);
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_ASSERT(conformance_wait_count(runtime, &destroyed, 1));
  LADE_EXPECT_EQ_INT(destroyed, 1);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The bug: the software device's graph had the first row alone, and went over memory behind it for the others. */
CONFORMANCE_TEST(Graphs, RowsAreCaptured) {
  NEEDS_GRAPHS();
  enum { BYTES = 70000 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *out = conformance_pinned(runtime, BYTES);
  char *a = conformance_device_memory(runtime, 0, BYTES), *b = conformance_device_memory(runtime, 0, BYTES);
  LADE_EXPECT_OK(OP(fill, a, 7, BYTES, &stream));
  LADE_EXPECT_OK(OP(fill, b, 0, BYTES, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_THREAD_LOCAL));
  LADE_EXPECT_OK(OP(copy_2d, b, 100, a, 200, 100, 300, &stream));
  ladei_graph_exec exec = end_into_exec(runtime, &stream);
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, b, BYTES, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(out, 30000, 7);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(device_free, 0, a));
  LADE_ASSERT_OK(OP(device_free, 0, b));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
