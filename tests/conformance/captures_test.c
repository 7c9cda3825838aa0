/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Captures: what is captured, who joins, what is forbidden and what that does (R9, R10). */
#include <string.h>

#include "tests/conformance/conformance.h"

#define NEEDS_GRAPHS() NEEDS_OP(capture_begin)

static ladei_capture_info info_of(lade_runtime *runtime, const ladei_stream *stream) {
  ladei_capture_info info;
  memset(&info, 0x5a, sizeof info);
  LADE_EXPECT_OK(OP(stream_capture_info, stream, &info));
  return info;
}

static void expect_capture_status(lade_runtime *runtime, const ladei_stream *stream, ladei_capture_status expected) {
  ladei_capture_info info = info_of(runtime, stream);
  LADE_EXPECT_EQ_INT(info.status, expected);
  LADE_EXPECT_EQ_INT(info.id != 0, expected == LADEI_CAPTURE_ACTIVE);
  LADE_EXPECT_EQ_INT(info.graph != NULL, expected == LADEI_CAPTURE_ACTIVE);
}

static ladei_graph end_capture(lade_runtime *runtime, const ladei_stream *stream) {
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(OP(capture_end, stream, &graph));
  LADE_EXPECT(graph != NULL);
  expect_capture_status(runtime, stream, LADEI_CAPTURE_NONE);
  return graph;
}

/* Ends a capture that something made invalid. */
static void expect_capture_spoilt(lade_runtime *runtime, const ladei_stream *stream) {
  ladei_graph untouched = (ladei_graph)(void *)&untouched, graph = untouched;
  expect_capture_status(runtime, stream, LADEI_CAPTURE_INVALIDATED);
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_end", NULL, OP(capture_end, stream, &graph));
  LADE_EXPECT_EQ_PTR(graph, untouched);
  expect_capture_status(runtime, stream, LADEI_CAPTURE_NONE);
  LADE_EXPECT_OK(OP(stream_synchronize, stream));
}

/* --- A capture's life --------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Captures, RecordWorkInsteadOfRunningIt) {
  NEEDS_GRAPHS();
  static const ladei_capture_mode modes[] = {LADEI_CAPTURE_GLOBAL, LADEI_CAPTURE_THREAD_LOCAL, LADEI_CAPTURE_RELAXED};
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  _Atomic(int) calls = 0;
  for (int i = 0; i < 3; i++) {
    expect_capture_status(runtime, &stream, LADEI_CAPTURE_NONE);
    LADE_ASSERT_OK(OP(capture_begin, &stream, modes[i]));
    expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
    LADE_EXPECT_OK(OP(fill, pinned, 9, 4096, &stream));
    LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
    ladei_graph graph = end_capture(runtime, &stream);
    LADE_ASSERT_OK(OP(stream_synchronize, &stream));
    LADE_EXPECT_EQ_INT(calls, 0);
    LADE_EXPECT_EQ_INT(pinned[0], 0);
    LADE_ASSERT_OK(OP(graph_destroy, graph));
  }
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, EachHasAnIdOfItsOwn) {
  NEEDS_GRAPHS();
  enum { COUNT = 10 };
  ladei_stream streams[2] = {conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING),
                             conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING)};
  uint64_t ids[2 * COUNT];
  for (int i = 0; i < 2 * COUNT; i += 2) {
    for (int k = 0; k < 2; k++) {
      LADE_ASSERT_OK(OP(capture_begin, &streams[k], LADEI_CAPTURE_RELAXED));
      ids[i + k] = info_of(runtime, &streams[k]).id;
      LADE_EXPECT_EQ_UINT(info_of(runtime, &streams[k]).id, ids[i + k]);
      for (int j = 0; j < i + k; j++) LADE_ASSERT(ids[j] != ids[i + k]);
    }
    for (int k = 0; k < 2; k++) LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &streams[k])));
  }
  for (int k = 0; k < 2; k++) LADE_ASSERT_OK(OP(stream_destroy, streams[k].handle));
}

CONFORMANCE_TEST(Captures, PerThreadStreamCanBeCaptured) {
  NEEDS_GRAPHS();
  ladei_stream stream;
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &stream));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_THREAD_LOCAL));
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  /* Resolving works while it captures. */
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &stream));
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
}

/* cuStreamGetId invalidates the capture of the stream that it is asked about, whatever the mode. */
CONFORMANCE_TEST(Captures, ResolvingLeavesThemValidAndKeepsTheId) {
  NEEDS_GRAPHS();
  ladei_stream known = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING), during, after;
  LADE_ASSERT_OK(OP(capture_begin, &known, LADEI_CAPTURE_GLOBAL));
  LADE_ASSERT_OK(OP(stream_resolve, known.handle, &during));
  expect_capture_status(runtime, &known, LADEI_CAPTURE_ACTIVE);
  LADE_EXPECT_EQ_UINT(during.id, known.id);
  LADE_EXPECT_EQ_UINT(during.context, known.context);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &known)));
  LADE_ASSERT_OK(OP(stream_resolve, known.handle, &after));
  LADE_EXPECT_EQ_UINT(after.id, known.id);
  LADE_ASSERT_OK(OP(stream_destroy, known.handle));
}

CONFORMANCE_TEST(Captures, StreamFirstResolvedWhileCapturingKeepsItsIdAfterwards) {
  NEEDS_GRAPHS();
  NEEDS(runtime->software_device == NULL, "software devices capture resolved streams only");
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING), raw = other, during, after, again;
  LADE_ASSERT_OK(OP(stream_create, 0, 0, LADEI_STREAM_NON_BLOCKING, &raw.handle));
  LADE_ASSERT_OK(OP(capture_begin, &raw, LADEI_CAPTURE_GLOBAL));
  LADE_ASSERT_OK(OP(stream_resolve, raw.handle, &during));
  LADE_ASSERT_OK(OP(stream_resolve, raw.handle, &again));
  LADE_EXPECT_EQ_UINT(again.id, during.id);
  LADE_EXPECT(during.id != other.id);
  expect_capture_status(runtime, &during, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &during)));
  LADE_ASSERT_OK(OP(stream_resolve, raw.handle, &after));
  LADE_EXPECT_EQ_UINT(after.id, during.id);
  LADE_ASSERT_OK(OP(stream_destroy, raw.handle));
  /* The next stream may get the same handle, but never the id. */
  LADE_ASSERT_OK(OP(stream_create, 0, 0, LADEI_STREAM_NON_BLOCKING, &raw.handle));
  LADE_ASSERT_OK(OP(stream_resolve, raw.handle, &again));
  LADE_EXPECT(again.id != during.id);
  LADE_ASSERT_OK(OP(stream_destroy, raw.handle));
  LADE_ASSERT_OK(OP(stream_destroy, other.handle));
}

CONFORMANCE_TEST(Captures, LegacyStreamIsResolvedWhileABlockingStreamCaptures) {
  NEEDS_GRAPHS();
  ladei_stream blocking = conformance_stream(runtime, 0, 0), before, during;
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_LEGACY, &before));
  LADE_ASSERT_OK(OP(capture_begin, &blocking, LADEI_CAPTURE_GLOBAL));
  LADE_ASSERT_OK(OP(stream_resolve, NULL, &during));
  LADE_EXPECT_EQ_UINT(during.id, before.id);
  LADE_EXPECT_EQ_UINT(during.context, before.context);
  expect_capture_status(runtime, &blocking, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &blocking)));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
}

CONFORMANCE_TEST(Captures, BeginAndEndInTheWrongPlaceAreRefused) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING), legacy;
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(stream_resolve, NULL, &legacy));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_begin", NULL, OP(capture_begin, &legacy, LADEI_CAPTURE_RELAXED));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_end", NULL, OP(capture_end, &stream, &graph));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "capture_begin", NULL, OP(capture_begin, &stream, (ladei_capture_mode)7));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_begin", NULL, OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_EQ_PTR(graph, NULL);
  (void)OP(capture_end, &stream, &graph);
  if (graph != NULL) LADE_EXPECT_OK(OP(graph_destroy, graph));
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_NONE);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- Streams that join -------------------------------------------------------------------------------------------- */

typedef struct fork_join {
  ladei_stream origin, side;
  lade_event forked, joined;
} fork_join;

/* The side stream has joined the capture of the origin. */
static fork_join fork_begin(lade_runtime *runtime) {
  fork_join f = {conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING),
                 conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING), conformance_event(runtime, 0),
                 conformance_event(runtime, 0)};
  LADE_EXPECT_OK(OP(capture_begin, &f.origin, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(OP(event_record, f.forked, &f.origin));
  LADE_EXPECT_OK(OP(stream_wait_event, &f.side, f.forked));
  return f;
}

static void fork_destroy(lade_runtime *runtime, const fork_join *f) {
  LADE_EXPECT_OK(OP(event_destroy, f->forked));
  LADE_EXPECT_OK(OP(event_destroy, f->joined));
  LADE_EXPECT_OK(OP(stream_destroy, f->origin.handle));
  LADE_EXPECT_OK(OP(stream_destroy, f->side.handle));
}

CONFORMANCE_TEST(Captures, WaitingForACapturedEventJoins) {
  NEEDS_GRAPHS();
  fork_join f = fork_begin(runtime);
  expect_capture_status(runtime, &f.side, LADEI_CAPTURE_ACTIVE);
  LADE_EXPECT_EQ_UINT(info_of(runtime, &f.side).id, info_of(runtime, &f.origin).id);
  LADE_EXPECT_EQ_PTR(info_of(runtime, &f.side).graph, info_of(runtime, &f.origin).graph);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &f.side));
  LADE_EXPECT_OK(OP(event_record, f.joined, &f.side));
  LADE_EXPECT_OK(OP(stream_wait_event, &f.origin, f.joined));
  ladei_graph graph = end_capture(runtime, &f.origin);
  expect_capture_status(runtime, &f.side, LADEI_CAPTURE_NONE);
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(host_free, pinned));
  fork_destroy(runtime, &f);
}

CONFORMANCE_TEST(Captures, StreamsMustBeJoinedBackBeforeTheEnd) {
  NEEDS_GRAPHS();
  fork_join f = fork_begin(runtime);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &f.side));
  ladei_graph graph = NULL;
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_end", NULL, OP(capture_end, &f.origin, &graph));
  LADE_EXPECT_EQ_PTR(graph, NULL);
  expect_capture_status(runtime, &f.origin, LADEI_CAPTURE_NONE);
  expect_capture_status(runtime, &f.side, LADEI_CAPTURE_NONE);
  LADE_EXPECT_OK(OP(stream_synchronize, &f.side));
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  LADE_ASSERT_OK(OP(host_free, pinned));
  fork_destroy(runtime, &f);
}

CONFORMANCE_TEST(Captures, OnlyTheOriginEndsACapture) {
  NEEDS_GRAPHS();
  fork_join f = fork_begin(runtime);
  ladei_graph graph = NULL;
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "capture_end", NULL, OP(capture_end, &f.side, &graph));
  LADE_EXPECT_EQ_PTR(graph, NULL);
  (void)OP(capture_end, &f.origin, &graph);
  if (graph != NULL) LADE_EXPECT_OK(OP(graph_destroy, graph));
  expect_capture_status(runtime, &f.origin, LADEI_CAPTURE_NONE);
  expect_capture_status(runtime, &f.side, LADEI_CAPTURE_NONE);
  fork_destroy(runtime, &f);
}

CONFORMANCE_TEST(Captures, WaitingForAnEventFromOutsideSpoilsThem) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream outside = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  LADE_ASSERT_OK(OP(event_record, event, &outside));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "stream_wait_event", NULL, OP(stream_wait_event, &stream, event));
  expect_capture_spoilt(runtime, &stream);
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(stream_destroy, outside.handle));
}

CONFORMANCE_TEST(Captures, TwoCapturesDoNotMerge) {
  NEEDS_GRAPHS();
  ladei_stream streams[2] = {conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING),
                             conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING)};
  lade_event event = conformance_event(runtime, 0);
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(OP(capture_begin, &streams[i], LADEI_CAPTURE_RELAXED));
  LADE_ASSERT_OK(OP(event_record, event, &streams[0]));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "stream_wait_event", NULL, OP(stream_wait_event, &streams[1], event));
  for (int i = 0; i < 2; i++) {
    ladei_graph graph = NULL;
    (void)OP(capture_end, &streams[i], &graph);
    if (graph != NULL) LADE_EXPECT_OK(OP(graph_destroy, graph));
    expect_capture_status(runtime, &streams[i], LADEI_CAPTURE_NONE);
    LADE_ASSERT_OK(OP(stream_destroy, streams[i].handle));
  }
  LADE_ASSERT_OK(OP(event_destroy, event));
}

/* --- What is allowed (R9) ----------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Captures, RecordsOnTheirStreamsGoOn) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_EXPECT_OK(OP(event_destroy, event));
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, EventsOfBeforeMayBeAsked) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  LADE_ASSERT_OK(OP(event_record, event, &stream));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT(support_wait_event(runtime, event));
  LADE_EXPECT_OK(OP(event_synchronize, event));
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

static void expect_captured_before(lade_runtime *runtime, lade_event event, const ladei_stream *other) {
  uint64_t ns = 0;
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "stream_wait_event", NULL, OP(stream_wait_event, other, event));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "event_elapsed_ns", NULL, OP(event_elapsed_ns, event, event, &ns));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "event_query", NULL, OP(event_query, event));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "event_synchronize", NULL, OP(event_synchronize, event));
}

/* The event of a capture that is over says nothing until it is recorded anew, and harms nothing. */
CONFORMANCE_TEST(Captures, EventsOfThoseThatAreOverAreRefusedAndHarmless) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = NULL;
  LADE_ASSERT_OK(OP(event_create, stream.context, LADEI_EVENT_TIMING, &event));
  for (int spoilt = 0; spoilt < 2; spoilt++) {
    ladei_graph graph = NULL;
    LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
    LADE_EXPECT_OK(OP(event_record, event, &stream));
    if (spoilt) LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(stream_query, &stream));
    LADE_EXPECT_STATUS(spoilt ? LADE_ERR_CAPTURE : LADE_OK, OP(capture_end, &stream, &graph));
    if (graph != NULL) LADE_EXPECT_OK(OP(graph_destroy, graph));
    expect_captured_before(runtime, event, &other);
    LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL)); /* another one */
    expect_captured_before(runtime, event, &other);
    expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
    LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  }
  LADE_EXPECT_OK(OP(event_record, event, &other));
  LADE_EXPECT_OK(OP(event_synchronize, event));
  LADE_EXPECT_OK(OP(event_query, event));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(stream_destroy, other.handle));
}

/* What an allocator with expandable segments does, in the strictest mode. */
static void virtual_memory_calls(lade_runtime *runtime, void *user) {
  const size_t *bytes = user;
  ladei_vm_handle handle = 0;
  void *address = NULL;
  LADE_ASSERT_OK(OP(vm_reserve, 0, *bytes, 0, &address));
  LADE_EXPECT_OK(OP(vm_create, 0, *bytes, false, &handle));
  LADE_EXPECT_OK(OP(vm_map, address, *bytes, handle));
  LADE_EXPECT_OK(OP(vm_set_access, address, *bytes, 0, true));
  LADE_EXPECT_OK(OP(vm_unmap, address, *bytes));
  LADE_EXPECT_OK(OP(vm_release, handle));
  LADE_EXPECT_OK(OP(vm_address_free, address, *bytes));
}

CONFORMANCE_TEST(Captures, VirtualMemoryComesAndGoes) {
  NEEDS_GRAPHS();
  NEEDS_OP(vm_reserve);
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED), "no virtual memory");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  size_t bytes = 0, recommended = 0;
  LADE_ASSERT_OK(OP(vm_granularity, 0, &bytes, &recommended));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  virtual_memory_calls(runtime, &bytes);
  conformance_in_thread(virtual_memory_calls, runtime, &bytes);
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The driver forbids all calls on driver pools in strict modes, questions included; the runtime relaxes them (R9). */
static void driver_pool_life(lade_runtime *runtime, void *user) {
  (void)user;
  ladei_driver_pool pool = NULL;
  uint64_t value = 0;
  LADE_ASSERT_OK(OP(pool_create, &(ladei_pool_properties){LADEI_POOL_DEVICE, 0, 0}, &pool));
  LADE_EXPECT_OK(OP(pool_attribute_set, pool, LADEI_POOL_RELEASE_THRESHOLD, 1 << 20));
  LADE_EXPECT_OK(OP(pool_attribute_get, pool, LADEI_POOL_RESERVED_CURRENT, &value));
  LADE_EXPECT_OK(OP(pool_trim, pool, 0));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
  LADE_EXPECT_OK(OP(pool_default, 0, &pool));
}

CONFORMANCE_TEST(Captures, DriverPoolsComeAndGo) {
  NEEDS_GRAPHS();
  NEEDS_OP(pool_create);
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_DRIVER_POOLS_SUPPORTED), "no driver pools");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  driver_pool_life(runtime, NULL);
  conformance_in_thread(driver_pool_life, runtime, NULL);
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, PeersAndSharedMemoryComeAndGo) {
  NEEDS_GRAPHS();
  NEEDS_TWO_DEVICES();
  bool can = false;
  LADE_ASSERT_OK(OP(peer_can_access, 0, 1, &can));
  NEEDS(can, "the devices cannot access each other");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  void *memory = conformance_device_memory(runtime, 0, 4096);
  ladei_ipc_handle handle;
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(OP(peer_enable, 0, 1));
  LADE_EXPECT_OK(OP(peer_disable, 0, 1));
  if (runtime->ops->ipc_export != NULL) LADE_EXPECT_OK(OP(ipc_export, memory, &handle));
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

static void driver_pool_calls(lade_runtime *runtime, const ladei_stream *stream, ladei_driver_pool pool) {
  void *memory = NULL;
  LADE_EXPECT_OK(OP(pool_alloc, pool, 4096, stream, &memory));
  LADE_EXPECT_OK(OP(stream_synchronize, stream));
  LADE_EXPECT_OK(OP(pool_free, memory, stream));
}

/* What the pinned pool does while somebody captures, in the strictest mode, in the capturing thread. */
static void pool_calls(lade_runtime *runtime, void *user) {
  const ladei_stream *other = user;
  lade_event event = conformance_event(runtime, 0);
  void *pinned = NULL;
  LADE_EXPECT_OK(OP(event_record, event, other));
  LADE_EXPECT(support_wait_event(runtime, event));
  LADE_EXPECT_OK(OP(event_synchronize, event));
  LADE_EXPECT_OK(OP(stream_query, other));
  LADE_EXPECT_OK(OP(host_alloc, 0, 4096, 0, &pinned));
  LADE_EXPECT_OK(OP(host_free, pinned));
  LADE_EXPECT_OK(OP(event_destroy, event));
}

CONFORMANCE_TEST(Captures, RecordsQueriesAndPinningElsewhereGoOn) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_driver_pool pool = NULL;
  if (runtime->ops->pool_default != NULL && conformance_has(runtime, 0, LADEI_ATTR_DRIVER_POOLS_SUPPORTED))
    LADE_ASSERT_OK(OP(pool_default, 0, &pool));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  pool_calls(runtime, &other);
  conformance_in_thread(pool_calls, runtime, &other);
  if (pool != NULL) driver_pool_calls(runtime, &other, pool);
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(stream_destroy, other.handle));
}

static void copy_synchronously(lade_runtime *runtime, void *user) {
  char *const *memory = user; /* device, device, host */
  LADE_EXPECT_OK(OP(copy_sync, 0, LADEI_COPY_H2D, memory[0], memory[2], 4096));
  LADE_EXPECT_OK(OP(copy_sync, 0, LADEI_COPY_D2D, memory[1], memory[0], 4096));
  LADE_EXPECT_OK(OP(copy_sync, 0, LADEI_COPY_D2H, memory[2], memory[1], 4096));
}

/* The wait for their last byte invalidated captures in mode GLOBAL of other threads. */
CONFORMANCE_TEST(Captures, SynchronousCopiesElsewhereGoOn) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *memory[3] = {conformance_device_memory(runtime, 0, 4096), conformance_device_memory(runtime, 0, 4096),
                     conformance_pinned(runtime, 4096)};
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  conformance_in_thread(copy_synchronously, runtime, memory);
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(OP(device_free, 0, memory[i]));
  LADE_ASSERT_OK(OP(host_free, memory[2]));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, LeaveOtherStreamsAlone) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_THREAD_LOCAL));
  expect_capture_status(runtime, &other, LADEI_CAPTURE_NONE);
  LADE_EXPECT_OK(OP(fill, pinned, 3, 4096, &other));
  LADE_EXPECT(support_wait_stream(runtime, other.handle));
  LADE_EXPECT_EQ_INT(pinned[0], 3);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(stream_destroy, other.handle));
}

/* --- What is forbidden (R10) -------------------------------------------------------------------------------------- */

/* A question or wait that spoils a capture whoever asks, in whatever mode. */
typedef struct spoiling_call {
  const ladei_stream *stream;
  lade_event event; /* recorded in the capture */
  int kind;
} spoiling_call;

enum { SPOIL_STREAM_QUERY, SPOIL_STREAM_SYNCHRONIZE, SPOIL_EVENT_QUERY, SPOIL_EVENT_SYNCHRONIZE, SPOIL_DEVICE, SPOILS };

static void spoil(lade_runtime *runtime, void *user) {
  const spoiling_call *call = user;
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  lade_status status = LADE_OK;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  switch (call->kind) {
  case SPOIL_STREAM_QUERY: status = OP(stream_query, call->stream); break;
  case SPOIL_STREAM_SYNCHRONIZE: status = OP(stream_synchronize, call->stream); break;
  case SPOIL_EVENT_QUERY: status = OP(event_query, call->event); break;
  case SPOIL_EVENT_SYNCHRONIZE: status = OP(event_synchronize, call->event); break;
  default: status = OP(device_synchronize, 0);
  }
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, status);
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
}

CONFORMANCE_TEST(Captures, QuestionsAndWaitsSpoilThemInEveryMode) {
  NEEDS_GRAPHS();
  static const ladei_capture_mode modes[] = {LADEI_CAPTURE_GLOBAL, LADEI_CAPTURE_THREAD_LOCAL, LADEI_CAPTURE_RELAXED};
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  for (int i = 0; i < SPOILS * 3 * 2; i++) {
    spoiling_call call = {&stream, event, i / 6};
    bool elsewhere = i % 2 == 1;
    lade_test_context("call %d, capture mode %d, %s thread", call.kind, (int)modes[i / 2 % 3],
                      elsewhere ? "another" : "the capturing");
    LADE_ASSERT_OK(OP(capture_begin, &stream, modes[i / 2 % 3]));
    LADE_ASSERT_OK(OP(event_record, event, &stream));
    if (elsewhere)
      conformance_in_thread(spoil, runtime, &call);
    else
      spoil(runtime, &call);
    expect_capture_spoilt(runtime, &stream);
  }
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The public helpers ask first. */
CONFORMANCE_TEST(Captures, PublicQuestionsAndWaitsAreRefusedAndHarmless) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream blocking = conformance_stream(runtime, 0, 0);
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_ASSERT_OK(OP(capture_begin, &blocking, LADEI_CAPTURE_GLOBAL));
  lade_stream asked[] = {stream.handle, blocking.handle, NULL};
  for (int i = 0; i < 3; i++) {
    EXPECT_REFUSED(LADE_ERR_CAPTURE, "stream_query", NULL, lade_stream_query(runtime, asked[i]));
    EXPECT_REFUSED(LADE_ERR_CAPTURE, "stream_synchronize", NULL, lade_stream_synchronize(runtime, asked[i]));
  }
  expect_capture_status(runtime, &stream, LADEI_CAPTURE_ACTIVE);
  expect_capture_status(runtime, &blocking, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &blocking)));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
}

/* Graphs and their executables are made and destroyed as memory is: as the thread's mode says. */
CONFORMANCE_TEST(Captures, MakingGraphsExecutableIsUnsafe) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_graph_exec exec = NULL;
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  ladei_graph graph = end_capture(runtime, &stream);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "graph_instantiate", NULL, OP(graph_instantiate, graph, &exec));
  expect_capture_spoilt(runtime, &stream);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(graph_instantiate, graph, &exec));
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &stream)));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "graph_exec_destroy", NULL, OP(graph_exec_destroy, exec));
  expect_capture_spoilt(runtime, &stream);
  LADE_EXPECT_OK(OP(graph_exec_destroy, exec));
  LADE_EXPECT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, SynchronisingTheStreamSpoilsThem) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "stream_synchronize", NULL, OP(stream_synchronize, &stream));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "fill", NULL, OP(fill, pinned, 1, 4096, &stream));
  expect_capture_spoilt(runtime, &stream);
  LADE_EXPECT_OK(OP(fill, pinned, 2, 4096, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_INT(pinned[0], 2);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, SynchronisingACapturedEventSpoilsThem) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_ASSERT_OK(OP(event_record, event, &stream));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "event_synchronize", NULL, OP(event_synchronize, event));
  expect_capture_spoilt(runtime, &stream);
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* Allocates in a thread whose mode is `mode`. */
typedef struct unsafe_call {
  ladei_capture_mode mode;
  lade_status expected;
} unsafe_call;

static void make_unsafe_call(lade_runtime *runtime, void *user) {
  const unsafe_call *call = user;
  ladei_capture_mode mode = call->mode;
  void *memory = NULL;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  LADE_EXPECT_STATUS(call->expected, OP(device_alloc, 0, 4096, &memory));
  if (memory != NULL) LADE_EXPECT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
}

/* What a thread with an own capture, or another thread, may do: rows as in the driver's manual for the exchange call.
 */
CONFORMANCE_TEST(Captures, ModesSayWhetherUnsafeCallsAreAllowed) {
  NEEDS_GRAPHS();
  enum { G = LADEI_CAPTURE_GLOBAL, L = LADEI_CAPTURE_THREAD_LOCAL, R = LADEI_CAPTURE_RELAXED };
  static const struct {
    int capture_mode, thread_mode;
    bool other_thread, allowed;
  } rows[] = {
      {G, G, false, false}, {L, G, false, false}, {R, G, false, true}, /* the capturing thread */
      {G, L, false, false}, {L, L, false, false}, {R, L, false, true}, {G, R, false, true}, {L, R, false, true},
      {R, R, false, true},  {G, G, true, false},  {L, G, true, true},  {R, G, true, true}, /* another thread */
      {G, L, true, true},   {L, L, true, true},   {G, R, true, true},
  };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    lade_test_context("capture mode %d, thread mode %d, %s thread", rows[i].capture_mode, rows[i].thread_mode,
                      rows[i].other_thread ? "another" : "the capturing");
    unsafe_call call = {(ladei_capture_mode)rows[i].thread_mode, rows[i].allowed ? LADE_OK : LADE_ERR_CAPTURE};
    LADE_ASSERT_OK(OP(capture_begin, &stream, (ladei_capture_mode)rows[i].capture_mode));
    if (rows[i].other_thread)
      conformance_in_thread(make_unsafe_call, runtime, &call);
    else
      make_unsafe_call(runtime, &call);
    ladei_graph graph = NULL;
    lade_status ended = OP(capture_end, &stream, &graph);
    if (rows[i].allowed) LADE_EXPECT_OK(ended);
    if (!rows[i].allowed && !rows[i].other_thread) LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ended);
    if (graph != NULL) LADE_EXPECT_OK(OP(graph_destroy, graph));
  }
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Captures, DeviceSynchroniseIsForbiddenInTheCapturingThread) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "device_synchronize", NULL, OP(device_synchronize, 0));
  expect_capture_spoilt(runtime, &stream);
  LADE_EXPECT_OK(OP(device_synchronize, 0));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

typedef struct wrong_thread {
  ladei_stream stream;
  lade_status expected;
  ladei_graph graph;
} wrong_thread;

static void end_elsewhere(lade_runtime *runtime, void *user) {
  wrong_thread *w = user;
  LADE_EXPECT_STATUS(w->expected, OP(capture_end, &w->stream, &w->graph));
}

CONFORMANCE_TEST(Captures, OnlyRelaxedOnesMayEndInAnotherThread) {
  NEEDS_GRAPHS();
  wrong_thread w = {conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING), LADE_OK, NULL};
  LADE_ASSERT_OK(OP(capture_begin, &w.stream, LADEI_CAPTURE_RELAXED));
  conformance_in_thread(end_elsewhere, runtime, &w);
  LADE_ASSERT(w.graph != NULL);
  LADE_ASSERT_OK(OP(graph_destroy, w.graph));
  static const ladei_capture_mode strict[] = {LADEI_CAPTURE_GLOBAL, LADEI_CAPTURE_THREAD_LOCAL};
  for (int i = 0; i < 2; i++) {
    w.graph = NULL, w.expected = LADE_ERR_CAPTURE;
    LADE_ASSERT_OK(OP(capture_begin, &w.stream, strict[i]));
    conformance_in_thread(end_elsewhere, runtime, &w);
    LADE_EXPECT_EQ_PTR(w.graph, NULL);
    (void)OP(capture_end, &w.stream, &w.graph);
    if (w.graph != NULL) LADE_ASSERT_OK(OP(graph_destroy, w.graph));
    expect_capture_status(runtime, &w.stream, LADEI_CAPTURE_NONE);
  }
  LADE_ASSERT_OK(OP(stream_destroy, w.stream.handle));
}

/* --- The legacy stream while a blocking stream captures ----------------------------------------------------------- */

CONFORMANCE_TEST(Captures, LegacyIsImplicitWhileABlockingStreamCaptures) {
  NEEDS_GRAPHS();
  ladei_stream blocking = conformance_stream(runtime, 0, 0);
  ladei_stream free_one = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  expect_capture_status(runtime, &legacy, LADEI_CAPTURE_NONE);

  LADE_ASSERT_OK(OP(capture_begin, &free_one, LADEI_CAPTURE_RELAXED));
  expect_capture_status(runtime, &legacy, LADEI_CAPTURE_NONE);
  LADE_EXPECT_OK(OP(stream_query, &legacy));
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &free_one)));

  LADE_ASSERT_OK(OP(capture_begin, &blocking, LADEI_CAPTURE_RELAXED));
  expect_capture_status(runtime, &legacy, LADEI_CAPTURE_IMPLICIT);
  LADE_ASSERT_OK(OP(stream_resolve, NULL, &legacy));
  expect_capture_status(runtime, &blocking, LADEI_CAPTURE_ACTIVE);
  LADE_ASSERT_OK(OP(graph_destroy, end_capture(runtime, &blocking)));
  expect_capture_status(runtime, &legacy, LADEI_CAPTURE_NONE);
  LADE_EXPECT_OK(OP(stream_query, &legacy));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
  LADE_ASSERT_OK(OP(stream_destroy, free_one.handle));
}

CONFORMANCE_TEST(Captures, WorkInAnImplicitLegacyStreamSpoilsThem) {
  NEEDS_GRAPHS();
  ladei_stream blocking = conformance_stream(runtime, 0, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  LADE_ASSERT_OK(OP(capture_begin, &blocking, LADEI_CAPTURE_RELAXED));
  EXPECT_REFUSED(LADE_ERR_CAPTURE, "fill", NULL, OP(fill, pinned, 1, 4096, &legacy));
  expect_capture_spoilt(runtime, &blocking);
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &legacy));
  LADE_EXPECT_OK(OP(stream_synchronize, &legacy));
  LADE_EXPECT_EQ_INT(pinned[0], 1);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
}

CONFORMANCE_TEST(Captures, QuestionsAndWaitsOnAnImplicitLegacyStreamSpoilThem) {
  NEEDS_GRAPHS();
  ladei_stream blocking = conformance_stream(runtime, 0, 0);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  lade_event event = conformance_event(runtime, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  for (int call = 0; call < 4; call++) {
    lade_test_context("call %d", call);
    LADE_ASSERT_OK(OP(capture_begin, &blocking, LADEI_CAPTURE_RELAXED));
    if (call == 0) LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(stream_query, &legacy));
    if (call == 1) LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(stream_synchronize, &legacy));
    if (call == 2) LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(event_record, event, &legacy));
    if (call == 3) LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(copy, LADEI_COPY_H2H, pinned, pinned + 64, 64, &legacy));
    expect_capture_spoilt(runtime, &blocking);
  }
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
}

/* --- The thread's capture mode ------------------------------------------------------------------------------------ */

static void expect_global_mode(lade_runtime *runtime, void *user) {
  (void)user;
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  LADE_EXPECT_EQ_INT(mode, LADEI_CAPTURE_GLOBAL);
}

CONFORMANCE_TEST(Captures, ThreadModeIsExchangedAndBelongsToTheThread) {
  NEEDS_GRAPHS();
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  LADE_EXPECT_EQ_INT(mode, LADEI_CAPTURE_GLOBAL);
  conformance_in_thread(expect_global_mode, runtime, NULL);
  mode = LADEI_CAPTURE_THREAD_LOCAL;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  LADE_EXPECT_EQ_INT(mode, LADEI_CAPTURE_RELAXED);
  mode = (ladei_capture_mode)9;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "capture_mode_exchange", NULL, OP(capture_mode_exchange, &mode));
  mode = LADEI_CAPTURE_GLOBAL;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  LADE_EXPECT_EQ_INT(mode, LADEI_CAPTURE_THREAD_LOCAL);
}

/* R5: ops that switch to relaxed mode inside switch back. */
CONFORMANCE_TEST(Captures, OpsLeaveTheThreadModeAlone) {
  NEEDS_GRAPHS();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_capture_mode mode = LADEI_CAPTURE_THREAD_LOCAL;
  void *memory;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  pool_calls(runtime, &stream);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, OP(host_alloc, 0, (size_t)1 << 50, 0, &memory));
  mode = LADEI_CAPTURE_GLOBAL;
  LADE_ASSERT_OK(OP(capture_mode_exchange, &mode));
  LADE_EXPECT_EQ_INT(mode, LADEI_CAPTURE_THREAD_LOCAL);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
