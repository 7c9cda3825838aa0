/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Events: what a record captures, pending and done, time between two, life. */
#include <pthread.h>

#include "tests/conformance/conformance.h"

CONFORMANCE_TEST(Events, NeverRecordedIsDone) {
  lade_event event = conformance_event(runtime, 0);
  LADE_EXPECT_OK(OP(event_query, event));
  LADE_EXPECT_OK(OP(event_synchronize, event));
  LADE_ASSERT_OK(OP(event_destroy, event));
}

CONFORMANCE_TEST(Events, PendingUntilTheWorkBeforeItIsDone) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  _Atomic(int) calls = 0;
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, event));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(event_synchronize, event));
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_EXPECT_OK(OP(event_query, event));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Events, WorkQueuedAfterTheRecordDoesNotCount) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event before = conformance_event(runtime, 0), after = conformance_event(runtime, 0);
  _Atomic(int) calls = 0;
  support_stream_hold hold;
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_EXPECT_OK(OP(event_record, before, &stream));
  LADE_ASSERT_OK(OP(event_synchronize, before));
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_EXPECT_OK(OP(event_record, after, &stream));
  LADE_EXPECT_OK(OP(event_query, before));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, after));
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_event(runtime, after));
  LADE_EXPECT_EQ_INT(calls, 2);
  LADE_ASSERT_OK(OP(event_destroy, before));
  LADE_ASSERT_OK(OP(event_destroy, after));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Events, ANewRecordReplacesTheFormer) {
  ladei_stream held = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream idle = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  support_stream_hold hold;
  LADE_EXPECT_OK(OP(event_record, event, &idle));
  LADE_EXPECT(support_wait_event(runtime, event));
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, held.handle));
  LADE_EXPECT_OK(OP(event_record, event, &held));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, event));
  LADE_EXPECT_OK(OP(event_record, event, &idle));
  LADE_EXPECT(support_wait_event(runtime, event));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &held));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &held));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, held.handle));
  LADE_ASSERT_OK(OP(stream_destroy, idle.handle));
}

CONFORMANCE_TEST(Events, DestroyedWhilePendingTheWorkGoesOn) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  _Atomic(int) calls = 0;
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  LADE_EXPECT_OK(OP(event_destroy, event));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The event pool creates thousands: handles come back, and a new event starts as never recorded. */
CONFORMANCE_TEST(Events, RecycledHandlesStartAfresh) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  for (int i = 0; i < 200; i++) {
    lade_event event = conformance_event(runtime, 0);
    LADE_ASSERT_OK(OP(event_query, event));
    LADE_ASSERT_OK(OP(event_record, event, &stream));
    LADE_ASSERT_OK(OP(event_destroy, event));
  }
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

typedef struct query_elsewhere {
  lade_event event;
  lade_status expected;
} query_elsewhere;

static void query_event(lade_runtime *runtime, void *user) {
  query_elsewhere *query = user;
  int current = 99;
  LADE_EXPECT_STATUS(query->expected, OP(event_query, query->event));
  LADE_EXPECT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, -1);
}

CONFORMANCE_TEST(Events, AnyThreadMayAskWithoutADevice) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  query_elsewhere query = {conformance_event(runtime, 0), LADE_NOT_READY};
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(event_record, query.event, &stream));
  conformance_in_thread(query_event, runtime, &query);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(event_synchronize, query.event));
  query.expected = LADE_OK;
  conformance_in_thread(query_event, runtime, &query);
  LADE_ASSERT_OK(OP(event_destroy, query.event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Events, LegacyAndPerThreadStreamsRecordToo) {
  static const lade_stream handles[] = {NULL, LADE_STREAM_LEGACY, LADE_STREAM_PER_THREAD};
  LADE_ASSERT_OK(OP(current_device_set, 0));
  lade_event event = conformance_event(runtime, 0);
  char *pinned = conformance_pinned(runtime, 3 * 4096);
  for (int i = 0; i < 3; i++) {
    ladei_stream stream;
    LADE_ASSERT_OK(OP(stream_resolve, handles[i], &stream));
    LADE_EXPECT_OK(OP(fill, pinned + i * 4096, 7, 4096, &stream));
    LADE_EXPECT_OK(OP(event_record, event, &stream));
    LADE_EXPECT(support_wait_event(runtime, event));
    LADE_EXPECT_EQ_INT(pinned[i * 4096 + 4095], 7);
  }
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(host_free, pinned));
}

CONFORMANCE_TEST(Events, BelongToAContext) {
  NEEDS_TWO_DEVICES();
  ladei_stream there = conformance_stream(runtime, 1, 0);
  lade_event here = conformance_event(runtime, 0);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "event_record", NULL, OP(event_record, here, &there));
  LADE_EXPECT_OK(OP(event_query, here));
  LADE_ASSERT_OK(OP(event_destroy, here));
  LADE_ASSERT_OK(OP(stream_destroy, there.handle));
}

CONFORMANCE_TEST(Events, FlagsMakeTimedAndInterprocessOnes) {
  static const unsigned flags[] = {0, LADEI_EVENT_TIMING, LADEI_EVENT_INTERPROCESS};
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    lade_event event = NULL;
    LADE_ASSERT_OK(OP(event_create, stream.context, flags[i], &event));
    LADE_EXPECT_OK(OP(event_record, event, &stream));
    LADE_EXPECT_OK(OP(event_synchronize, event));
    LADE_ASSERT_OK(OP(event_destroy, event));
  }
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Events, BadContextsAndFlagsAreRefused) {
  uint64_t context;
  lade_event event = (lade_event)(void *)&context;
  LADE_ASSERT_OK(OP(device_context, 0, &context));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "event_create", NULL, OP(event_create, 0, 0, &event));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "event_create", NULL, OP(event_create, context, 1u << 10, &event));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "event_create", NULL,
                 OP(event_create, context, LADEI_EVENT_TIMING | LADEI_EVENT_INTERPROCESS, &event));
  LADE_EXPECT_EQ_PTR(event, &context);
}

/* --- Time between events ------------------------------------------------------------------------------------------ */

typedef struct timed {
  ladei_stream stream;
  lade_event start, end;
} timed;

static timed timed_create(lade_runtime *runtime) {
  timed t = {.stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING)};
  LADE_EXPECT_OK(OP(event_create, t.stream.context, LADEI_EVENT_TIMING, &t.start));
  LADE_EXPECT_OK(OP(event_create, t.stream.context, LADEI_EVENT_TIMING, &t.end));
  return t;
}

static void timed_destroy(lade_runtime *runtime, const timed *t) {
  LADE_EXPECT_OK(OP(event_destroy, t->start));
  LADE_EXPECT_OK(OP(event_destroy, t->end));
  LADE_EXPECT_OK(OP(stream_destroy, t->stream.handle));
}

CONFORMANCE_TEST(Events, ElapsedTimeIsThatOfTheWorkBetween) {
  enum { BYTES = 8 << 20 };
  timed t = timed_create(runtime);
  void *memory = conformance_device_memory(runtime, 0, BYTES);
  char *pinned = conformance_pinned(runtime, BYTES);
  uint64_t elapsed = UINT64_MAX;
  uint64_t before = runtime->ops->now_ns(runtime->self);
  LADE_EXPECT_OK(OP(event_record, t.start, &t.stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, pinned, BYTES, &t.stream));
  LADE_EXPECT_OK(OP(event_record, t.end, &t.stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &t.stream));
  LADE_ASSERT_OK(OP(event_elapsed_ns, t.start, t.end, &elapsed));
  LADE_EXPECT_GT_UINT(elapsed, 0);
  /* On virtual time this is exact; on a GPU two clocks that run alike, hence a second of slack. */
  LADE_EXPECT_LE_UINT(elapsed, runtime->ops->now_ns(runtime->self) - before + 1000000000u);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  timed_destroy(runtime, &t);
}

CONFORMANCE_TEST(Events, ElapsedTimeNeedsTwoFinishedTimedRecords) {
  timed t = timed_create(runtime);
  lade_event untimed = conformance_event(runtime, 0);
  uint64_t elapsed = 77;
  support_stream_hold hold;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "event_elapsed_ns", NULL, OP(event_elapsed_ns, t.start, t.end, &elapsed));
  LADE_ASSERT_OK(OP(event_record, t.start, &t.stream));
  LADE_ASSERT_OK(OP(event_record, untimed, &t.stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &t.stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "event_elapsed_ns", NULL, OP(event_elapsed_ns, t.start, untimed, &elapsed));
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, t.stream.handle));
  LADE_ASSERT_OK(OP(event_record, t.end, &t.stream));
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_elapsed_ns, t.start, t.end, &elapsed));
  LADE_EXPECT_EQ_UINT(elapsed, 77);
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &t.stream));
  LADE_EXPECT_OK(OP(event_elapsed_ns, t.start, t.end, &elapsed));
  LADE_ASSERT_OK(OP(event_destroy, untimed));
  timed_destroy(runtime, &t);
}

/* --- Threads ------------------------------------------------------------------------------------------------------ */

typedef struct waiter {
  lade_runtime *runtime;
  lade_event event;
} waiter;

static void *wait_for_event(void *user) {
  waiter *w = user;
  lade_runtime *runtime = w->runtime;
  LADE_EXPECT_OK(OP(event_synchronize, w->event));
  return NULL;
}

CONFORMANCE_TEST(Events, SeveralThreadsWaitForOneEvent) {
  NEEDS(!support_is_virtual(runtime), "sim belongs to one thread at a time");
  enum { COUNT = 3 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  waiter w = {runtime, conformance_event(runtime, 0)};
  pthread_t threads[COUNT];
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(event_record, w.event, &stream));
  for (int i = 0; i < COUNT; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, wait_for_event, &w), 0);
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, w.event));
  support_stream_hold_end(&hold);
  for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
  LADE_ASSERT_OK(OP(event_destroy, w.event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
