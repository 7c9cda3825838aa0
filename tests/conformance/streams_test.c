/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Streams: identity and special handles, order within and between streams (R6), life. */
#include <pthread.h>
#include <string.h>

#include "tests/conformance/conformance.h"

/* --- Identity ----------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Streams, ResolveTellsWhoseAndWhat) {
  int count = conformance_device_count(runtime);
  for (int device = 0; device < count; device++) {
    uint64_t context = 0;
    LADE_ASSERT_OK(OP(device_context, device, &context));
    ladei_stream stream = conformance_stream(runtime, device, 0), again;
    LADE_EXPECT_EQ_UINT(stream.context, context);
    LADE_EXPECT_EQ_INT(stream.device, device);
    LADE_EXPECT_EQ_INT(stream.kind, LADEI_STREAM_ORDINARY);
    LADE_EXPECT(stream.handle != NULL && stream.handle != LADE_STREAM_LEGACY);
    LADE_EXPECT_NE_PTR(stream.handle, LADE_STREAM_PER_THREAD);
    LADE_ASSERT_OK(OP(stream_resolve, stream.handle, &again));
    LADE_EXPECT_EQ_MEM(&again, &stream, sizeof stream);
    LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  }
}

/* What retirement queues stand on: a recycled handle must not be taken for the stream that had it before. */
CONFORMANCE_TEST(Streams, IdsAreUniqueAlsoWhenHandlesAreRecycled) {
  enum { ROUNDS = 40, EACH = 3 };
  uint64_t ids[ROUNDS * EACH];
  int count = 0;
  for (int round = 0; round < ROUNDS; round++) {
    ladei_stream streams[EACH];
    for (int i = 0; i < EACH; i++) {
      streams[i] = conformance_stream(runtime, 0, 0);
      for (int k = 0; k < count; k++) LADE_ASSERT(ids[k] != streams[i].id);
      ids[count++] = streams[i].id;
    }
    for (int i = 0; i < EACH; i++) LADE_ASSERT_OK(OP(stream_destroy, streams[i].handle));
  }
}

static bool same(const ladei_stream *a, const ladei_stream *b) { return a->context == b->context && a->id == b->id; }

CONFORMANCE_TEST(Streams, NullAndLegacyNameTheLegacyStreamOfTheCurrentDevice) {
  ladei_stream null, legacy, ordinary = conformance_stream(runtime, 0, 0);
  uint64_t context = 0;
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(device_context, 0, &context));
  LADE_ASSERT_OK(OP(stream_resolve, NULL, &null));
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_LEGACY, &legacy));
  LADE_EXPECT(same(&null, &legacy));
  LADE_EXPECT(!same(&null, &ordinary));
  LADE_EXPECT_EQ_PTR(null.handle, LADE_STREAM_LEGACY);
  LADE_EXPECT_EQ_INT(null.kind, LADEI_STREAM_LEGACY);
  LADE_EXPECT_EQ_INT(null.device, 0);
  LADE_EXPECT_EQ_UINT(null.context, context);
  LADE_EXPECT_OK(OP(stream_query, &null));
  LADE_EXPECT_OK(OP(stream_synchronize, &legacy));
  LADE_ASSERT_OK(OP(stream_destroy, ordinary.handle));
}

CONFORMANCE_TEST(Streams, SpecialHandlesFollowTheCurrentDevice) {
  NEEDS_TWO_DEVICES();
  ladei_stream legacy[2], per_thread[2];
  for (int device = 0; device < 2; device++) {
    LADE_ASSERT_OK(OP(current_device_set, device));
    LADE_ASSERT_OK(OP(stream_resolve, NULL, &legacy[device]));
    LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &per_thread[device]));
    LADE_EXPECT_EQ_INT(legacy[device].device, device);
    LADE_EXPECT_EQ_INT(per_thread[device].device, device);
  }
  LADE_EXPECT(!same(&legacy[0], &legacy[1]));
  LADE_EXPECT(!same(&per_thread[0], &per_thread[1]));
}

/* A resolved stream says all: device 0's legacy stream is used while device 1 is current. */
CONFORMANCE_TEST(Streams, ResolvedLegacyStreamNeedsNoCurrentDevice) {
  NEEDS_TWO_DEVICES();
  ladei_stream legacy = conformance_legacy(runtime, 0);
  LADE_ASSERT_OK(OP(current_device_set, 1));
  void *memory = conformance_device_memory(runtime, 0, 4096);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_EXPECT_OK(OP(fill, memory, 5, 4096, &legacy));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned, memory, 4096, &legacy));
  LADE_EXPECT_OK(OP(stream_synchronize, &legacy));
  LADE_EXPECT_EQ_INT(pinned[4095], 5);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
}

CONFORMANCE_TEST(Streams, SpecialHandlesNeedACurrentDeviceToBeResolved) {
  ladei_stream stream;
  memset(&stream, 0x5a, sizeof stream);
  ladei_stream before = stream;
  static const char how[] = "no current device (lade_runtime_set_device)";
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_resolve", how, OP(stream_resolve, NULL, &stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_resolve", how, OP(stream_resolve, LADE_STREAM_LEGACY, &stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_resolve", how, OP(stream_resolve, LADE_STREAM_PER_THREAD, &stream));
  LADE_EXPECT_EQ_MEM(&stream, &before, sizeof stream);
}

static void resolve_per_thread(lade_runtime *runtime, void *user) {
  ladei_stream *out = user, again;
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, out));
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &again));
  LADE_EXPECT(same(out, &again));
  LADE_EXPECT_EQ_PTR(out->handle, LADE_STREAM_PER_THREAD);
  LADE_EXPECT_EQ_INT(out->kind, LADEI_STREAM_PER_THREAD);
}

CONFORMANCE_TEST(Streams, PerThreadStreamIsOneForEachThread) {
  ladei_stream legacy, mine = {0}, first = {0}, second = {0};
  resolve_per_thread(runtime, &mine);
  conformance_in_thread(resolve_per_thread, runtime, &first);
  conformance_in_thread(resolve_per_thread, runtime, &second);
  LADE_ASSERT_OK(OP(stream_resolve, NULL, &legacy));
  LADE_EXPECT(!same(&mine, &first));
  LADE_EXPECT(!same(&mine, &second));
  LADE_EXPECT(!same(&first, &second));
  LADE_EXPECT(!same(&mine, &legacy));
}

static void resolve_ordinary(lade_runtime *runtime, void *user) {
  ladei_stream *stream = user, again;
  LADE_ASSERT_OK(OP(stream_resolve, stream->handle, &again));
  LADE_EXPECT(same(stream, &again));
  LADE_EXPECT_OK(OP(stream_query, &again));
}

CONFORMANCE_TEST(Streams, OrdinaryStreamsAreTheSameFromEveryThread) {
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  conformance_in_thread(resolve_ordinary, runtime, &stream);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Streams, SpecialHandlesAreNotDestroyed) {
  LADE_ASSERT_OK(OP(current_device_set, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_destroy", NULL, OP(stream_destroy, NULL));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_destroy", NULL, OP(stream_destroy, LADE_STREAM_LEGACY));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_destroy", NULL, OP(stream_destroy, LADE_STREAM_PER_THREAD));
}

CONFORMANCE_TEST(Streams, PrioritiesAreClampedToTheRange) {
  static const int priorities[] = {0, -1, 1, -1000000, 1000000};
  for (size_t i = 0; i < sizeof priorities / sizeof priorities[0]; i++) {
    lade_stream stream = NULL;
    LADE_ASSERT_OK(OP(stream_create, 0, priorities[i], LADEI_STREAM_NON_BLOCKING, &stream));
    LADE_EXPECT(stream != NULL);
    LADE_ASSERT_OK(OP(stream_destroy, stream));
  }
}

CONFORMANCE_TEST(Streams, UnknownFlagsAreRefused) {
  lade_stream stream = LADE_STREAM_LEGACY;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_create", NULL, OP(stream_create, 0, 0, 1u << 10, &stream));
  LADE_EXPECT_EQ_PTR(stream, LADE_STREAM_LEGACY);
}

/* --- Order within a stream, and waits between streams ------------------------------------------------------------- */

CONFORMANCE_TEST(Streams, QueryTellsPendingFromDone) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  _Atomic(int) calls = 0;
  support_stream_hold hold;
  LADE_EXPECT_OK(OP(stream_query, &stream));
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &stream));
  LADE_EXPECT_EQ_INT(calls, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_EXPECT_OK(OP(stream_query, &stream));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Streams, WorkRunsInTheOrderItWasQueued) {
  enum { COUNT = 50 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  conformance_log log = {0};
  conformance_log_entry entries[COUNT];
  for (int i = 0; i < COUNT; i++) {
    entries[i] = (conformance_log_entry){&log, i};
    LADE_ASSERT_OK(OP(host_function, &stream, conformance_log_append, &entries[i]));
  }
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_EQ_INT(log.count, COUNT);
  for (int i = 0; i < COUNT; i++) LADE_ASSERT_EQ_INT(log.numbers[i], i);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Streams, WaitHoldsBackLaterWorkUntilTheEvent) {
  ladei_stream first = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream second = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  void *memory = conformance_device_memory(runtime, 0, 4096);
  LADE_ASSERT_OK(OP(fill, memory, 1, 4096, &first));
  LADE_ASSERT_OK(OP(stream_synchronize, &first));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, first.handle));
  LADE_EXPECT_OK(OP(fill, memory, 2, 4096, &first));
  LADE_EXPECT_OK(OP(event_record, event, &first));
  LADE_EXPECT_OK(OP(stream_wait_event, &second, event));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned, memory, 4096, &second));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &second));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &second));
  EXPECT_BYTES(pinned, 4096, 2);
  LADE_ASSERT_OK(OP(stream_synchronize, &first));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, first.handle));
  LADE_ASSERT_OK(OP(stream_destroy, second.handle));
}

/* A wait stands for the record made before it: recording the event anew changes nothing for it. */
CONFORMANCE_TEST(Streams, WaitIsForTheRecordBeforeIt) {
  ladei_stream held = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream idle = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream early = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream late = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, held.handle));
  LADE_EXPECT_OK(OP(event_record, event, &idle));
  LADE_EXPECT_OK(OP(stream_wait_event, &early, event));
  LADE_EXPECT_OK(OP(event_record, event, &held));
  LADE_EXPECT_OK(OP(stream_wait_event, &late, event));
  LADE_EXPECT_OK(OP(event_record, event, &idle));
  LADE_EXPECT(support_wait_stream(runtime, early.handle));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &late));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &late));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_synchronize, &held));
  const ladei_stream *all[] = {&held, &idle, &early, &late};
  for (int i = 0; i < 4; i++) LADE_ASSERT_OK(OP(stream_destroy, all[i]->handle));
}

CONFORMANCE_TEST(Streams, WaitOutlivesItsEvent) {
  ladei_stream held = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream waiting = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, held.handle));
  LADE_EXPECT_OK(OP(event_record, event, &held));
  LADE_EXPECT_OK(OP(stream_wait_event, &waiting, event));
  LADE_EXPECT_OK(OP(event_destroy, event));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &waiting));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &waiting));
  LADE_ASSERT_OK(OP(stream_destroy, held.handle));
  LADE_ASSERT_OK(OP(stream_destroy, waiting.handle));
}

CONFORMANCE_TEST(Streams, WaitForAnEventThatWasNeverRecordedIsNone) {
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  lade_event event = conformance_event(runtime, 0);
  LADE_EXPECT_OK(OP(stream_wait_event, &stream, event));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Streams, WaitCrossesDevices) {
  NEEDS_TWO_DEVICES();
  ladei_stream here = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream there = conformance_stream(runtime, 1, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, here.handle));
  LADE_EXPECT_OK(OP(event_record, event, &here));
  LADE_EXPECT_OK(OP(stream_wait_event, &there, event));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &there));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &there));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, here.handle));
  LADE_ASSERT_OK(OP(stream_destroy, there.handle));
}

/* --- The legacy stream -------------------------------------------------------------------------------------------- */

/* A stream that waits for one that is held: everything queued on it later waits until `hold` ends. */
static void hold_through_event(lade_runtime *runtime, const ladei_stream *stream, const ladei_stream *helper,
                               support_stream_hold *hold) {
  lade_event event = conformance_event(runtime, stream->device);
  LADE_ASSERT(support_stream_hold_begin(hold, runtime, helper->handle));
  LADE_EXPECT_OK(OP(event_record, event, helper));
  LADE_EXPECT_OK(OP(stream_wait_event, stream, event));
  LADE_EXPECT_OK(OP(event_destroy, event));
}

CONFORMANCE_TEST(Streams, LegacyWaitsForBlockingStreamsOnly) {
  ladei_stream blocking = conformance_stream(runtime, 0, 0);
  ladei_stream free_one = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  support_stream_hold hold;
  char *pinned = conformance_pinned(runtime, 4096);
  ladei_stream legacy = conformance_legacy(runtime, 0);

  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, free_one.handle));
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &legacy));
  LADE_EXPECT(support_wait_stream(runtime, LADE_STREAM_LEGACY));
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &free_one));

  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, blocking.handle));
  LADE_EXPECT_OK(OP(fill, pinned, 2, 4096, &blocking));
  LADE_EXPECT_OK(OP(fill, pinned, 3, 4096, &legacy));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &legacy));
  LADE_EXPECT_EQ_INT(pinned[0], 1);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &legacy));
  LADE_EXPECT_EQ_INT(pinned[0], 3);

  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
  LADE_ASSERT_OK(OP(stream_destroy, free_one.handle));
}

CONFORMANCE_TEST(Streams, BlockingStreamsWaitForLegacy) {
  ladei_stream per_thread, blocking = conformance_stream(runtime, 0, 0);
  ladei_stream free_one = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream helper = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &per_thread));
  support_stream_hold hold;
  char *pinned = conformance_pinned(runtime, 4096);
  hold_through_event(runtime, &legacy, &helper, &hold);
  LADE_EXPECT_OK(OP(fill, pinned, 1, 1000, &legacy));
  LADE_EXPECT_OK(OP(fill, pinned + 1000, 2, 1000, &blocking));
  LADE_EXPECT_OK(OP(fill, pinned + 2000, 3, 1000, &per_thread));
  LADE_EXPECT_OK(OP(fill, pinned + 3000, 4, 1000, &free_one));
  LADE_EXPECT(support_wait_stream(runtime, free_one.handle));
  LADE_EXPECT_EQ_INT(pinned[3000], 4);
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &blocking));
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &per_thread));
  LADE_EXPECT_EQ_INT(pinned[1000], 0);
  LADE_EXPECT_EQ_INT(pinned[2000], 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &blocking));
  LADE_EXPECT_EQ_INT(pinned[0], 1);
  LADE_EXPECT_EQ_INT(pinned[1000], 2);
  LADE_EXPECT_OK(OP(stream_synchronize, &per_thread));
  LADE_EXPECT_EQ_INT(pinned[2000], 3);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, blocking.handle));
  LADE_ASSERT_OK(OP(stream_destroy, free_one.handle));
  LADE_ASSERT_OK(OP(stream_destroy, helper.handle));
}

/* Such an event lies behind the legacy stream's work, and its own stream shows nothing of it. */
CONFORMANCE_TEST(Streams, DoNotShowWorkOfTheLegacyOneThatOnlyTheirEventWaitsFor) {
  ladei_stream streams[2] = {conformance_stream(runtime, 0, 0)};
  ladei_stream helper = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  LADE_ASSERT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &streams[1]));
  lade_event event = conformance_event(runtime, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  for (int i = 0; i < 2; i++) {
    lade_test_context("stream %d", i);
    support_stream_hold hold;
    hold_through_event(runtime, &legacy, &helper, &hold);
    LADE_EXPECT_OK(OP(fill, pinned, (unsigned char)(1 + i), 4096, &legacy));
    LADE_EXPECT_OK(OP(event_record, event, &streams[i]));
    LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, event));
    LADE_EXPECT_OK(OP(stream_query, &streams[i]));
    LADE_EXPECT_OK(OP(stream_synchronize, &streams[i])); /* at once */
    LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, event));
    LADE_EXPECT_EQ_INT(pinned[0], i);
    LADE_EXPECT_OK(OP(stream_wait_event, &streams[i], event));
    LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &streams[i])); /* a wait for it shows */
    support_stream_hold_end(&hold);
    LADE_EXPECT_OK(OP(event_synchronize, event));
    LADE_EXPECT_EQ_INT(pinned[0], 1 + i);
    LADE_EXPECT_OK(OP(stream_synchronize, &streams[i]));
  }
  lade_test_context("%s", "");
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, streams[0].handle));
  LADE_ASSERT_OK(OP(stream_destroy, helper.handle));
}

CONFORMANCE_TEST(Streams, LegacyStreamsOfTwoDevicesAreIndependent) {
  NEEDS_TWO_DEVICES();
  ladei_stream blocking_there = conformance_stream(runtime, 1, 0);
  support_stream_hold hold;
  char *pinned = conformance_pinned(runtime, 4096);
  ladei_stream legacy = conformance_legacy(runtime, 0);
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, blocking_there.handle));
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &legacy));
  LADE_EXPECT(support_wait_stream(runtime, LADE_STREAM_LEGACY));
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &blocking_there));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, blocking_there.handle));
}

/* --- Life --------------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Streams, WorkInFlightOutlivesItsStream) {
  ladei_stream held = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream doomed = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event go = conformance_event(runtime, 0), done = conformance_event(runtime, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, held.handle));
  LADE_EXPECT_OK(OP(event_record, go, &held));
  LADE_EXPECT_OK(OP(stream_wait_event, &doomed, go));
  LADE_EXPECT_OK(OP(fill, pinned, 6, 4096, &doomed));
  LADE_EXPECT_OK(OP(event_record, done, &doomed));
  LADE_EXPECT_OK(OP(stream_destroy, doomed.handle));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, done));
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(event_synchronize, done));
  LADE_EXPECT_EQ_INT(pinned[4095], 6);
  LADE_ASSERT_OK(OP(event_destroy, go));
  LADE_ASSERT_OK(OP(event_destroy, done));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, held.handle));
}

/* --- Threads ------------------------------------------------------------------------------------------------------ */

enum { WORKERS = 4, WORKER_ROUNDS = 30, WORKER_BYTES = 20000 };

typedef struct worker {
  lade_runtime *runtime;
  ladei_stream shared;
  int number;
} worker;

/* Fills, copies and reads back on the thread's own default stream, while all threads also use one stream together. */
static void *work(void *user) {
  worker *w = user;
  lade_runtime *runtime = w->runtime;
  ladei_stream own;
  LADE_EXPECT_OK(OP(current_device_set, 0));
  LADE_EXPECT_OK(OP(stream_resolve, LADE_STREAM_PER_THREAD, &own));
  char *in = conformance_pinned(runtime, WORKER_BYTES), *out = conformance_pinned(runtime, WORKER_BYTES);
  void *memory = conformance_device_memory(runtime, 0, WORKER_BYTES);
  for (int round = 0; round < WORKER_ROUNDS && !lade_test_has_failed(); round++) {
    uint64_t seed = (uint64_t)(w->number * WORKER_ROUNDS + round);
    const ladei_stream *stream = round % 2 == 0 ? &own : &w->shared;
    support_pattern_fill(in, WORKER_BYTES, seed, 0);
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, in, WORKER_BYTES, stream));
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, WORKER_BYTES, stream));
    LADE_EXPECT_OK(OP(stream_synchronize, stream));
    LADE_EXPECT_PATTERN(out, WORKER_BYTES, seed, 0);
  }
  LADE_EXPECT_OK(OP(device_free, 0, memory));
  LADE_EXPECT_OK(OP(host_free, in));
  LADE_EXPECT_OK(OP(host_free, out));
  return NULL;
}

CONFORMANCE_TEST(Streams, ManyThreadsUseTheirOwnAndSharedStreams) {
  NEEDS(!support_is_virtual(runtime), "sim belongs to one thread at a time");
  ladei_stream shared = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  pthread_t threads[WORKERS];
  worker workers[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = (worker){runtime, shared, i};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
  LADE_ASSERT_OK(OP(stream_destroy, shared.handle));
}

static void *synchronize_held(void *user) {
  worker *w = user;
  lade_runtime *runtime = w->runtime;
  LADE_EXPECT_OK(OP(stream_synchronize, &w->shared));
  return NULL;
}

CONFORMANCE_TEST(Streams, SynchronizeInOneThreadIsWokenByAnother) {
  NEEDS(!support_is_virtual(runtime), "sim belongs to one thread at a time");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  worker w = {runtime, stream, 0};
  pthread_t thread;
  support_stream_hold hold;
  _Atomic(int) calls = 0;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, synchronize_held, &w), 0);
  support_let_run(runtime);
  LADE_EXPECT_EQ_INT(calls, 0);
  support_stream_hold_end(&hold);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
