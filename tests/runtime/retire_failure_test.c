/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Driver calls that fail: no block lost, none given back early, and everything works again afterwards.
 */
#include <string.h>

#include "runtime/ops_list.h"
#include "tests/runtime/retire_fixture.h"

static const unsigned CLOSE = LADEI_POLL_CLOSE;

/* ---- Quarantine -------------------------------------------------------------------------------------------------- */

/* A batch of 16 with work pending, closed under a failure of `op`. */
static void quarantine_by(const char *op, bool events_only) {
  static fixture own;
  lade_test_context("%s fails", op);
  lade_stream stream = fixture_open(&own, &(ladei_retire_options){.events_only = events_only});
  lade_stream other = fake_stream_create(own.fake);
  fake_work(own.fake, stream, 1);
  for (int i = 0; i < 16; i++) fixture_note(&own, i, stream);
  fake_fail(own.fake, op, LADE_ERR_DRIVER, 0, 2);
  for (int i = 0; i < 16; i++) LADE_EXPECT(fixture_add(&own, i)); /* an add does not fail; the first failure */
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 16);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_poll(own.retire, 0, NULL)); /* tries again; the second */
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, op);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantines, 2);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 0); /* closes at last */
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 0);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).open_uses, 0);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 16);
  fixture_use(&own, 20, other);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
  lade_test_context("%s", "");
}

LADE_TEST(RetireQuarantine, FailureToCloseABatchIsTriedAgainByEachPoll) {
  quarantine_by("event_record", false);
  quarantine_by("event_create", false);
  quarantine_by("stream_query", false);
  quarantine_by("event_record", true);
  quarantine_by("stream_capture_info", true);
}

LADE_TEST(RetireQuarantine, FailingQueryIsTriedAgainByEachPoll) {
  static fixture own;
  lade_stream bad = fixture_open(&own, NULL), good = fake_stream_create(own.fake);
  fake_work(own.fake, bad, 1);
  fake_work(own.fake, good, 1);
  fixture_use(&own, 0, bad);
  fixture_use(&own, 1, good);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run_all(own.fake);
  fake_fail(own.fake, "event_query", LADE_ERR_DRIVER, 0, 1);
  uint64_t done = 0;
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_poll(own.retire, 0, &done));
  LADE_EXPECT_EQ_UINT(done, 1); /* the other stream was polled all the same */
  LADE_EXPECT(fixture_is_done(&own, 1));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 1);
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, PollReportsTheFirstOfSeveralFailures) {
  static fixture own;
  fixture_open(&own, NULL);
  for (int i = 0; i < 2; i++) fixture_work_and_use(&own, i, fake_stream_create(own.fake));
  fake_fail(own.fake, "event_record", LADE_ERR_TIMEOUT, 0, 1);
  fake_fail(own.fake, "event_create", LADE_ERR_DRIVER, 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_poll(own.retire, CLOSE, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_last_error()->status);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "event_record");
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantines, 2);
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, OnlySynchroniseWaitsForTheStream) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fixture_work_and_use(&own, 0, stream);
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1000);
  for (int i = 0; i < 5; i++) LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_poll(own.retire, CLOSE, NULL));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_synchronize"), 0);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_synchronize"), 1);
  LADE_EXPECT(fixture_is_done(&own, 0));
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, EndingItWaitsForNoOtherStream) {
  static fixture own;
  lade_stream failing = fixture_open(&own, NULL), stuck = fake_stream_create(own.fake);
  fake_work(own.fake, stuck, 1);
  fake_stick(own.fake, stuck, true);
  fixture_use(&own, 1, stuck);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fixture_work_and_use(&own, 0, failing);
  LADE_EXPECT_OK(ladei_retire_end_quarantine(own.retire)); /* none yet: nothing is waited for */
  LADE_EXPECT_EQ_INT(own.done_count, 0);
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1000);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_poll(own.retire, CLOSE, NULL));
  LADE_EXPECT_OK(ladei_retire_end_quarantine(own.retire));
  LADE_EXPECT(fixture_is_done(&own, 0) && !fixture_is_done(&own, 1));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 0);
  fake_stick(own.fake, stuck, false);
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, SynchroniseDoesWithoutAnEventThatFails) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fixture_work_and_use(&own, 0, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_fail(own.fake, "event_query", LADE_ERR_DRIVER, 0, 1000);
  fake_fail(own.fake, "event_synchronize", LADE_ERR_DRIVER, 0, 1000);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_wait(own.retire, 0));
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_last_error()->status); /* it succeeded: nothing to report */
  LADE_EXPECT(fixture_is_done(&own, 0));
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, WhatCannotBeWaitedForStaysAndIsReported) {
  static fixture own;
  lade_stream stuck = fixture_open(&own, NULL), live = fake_stream_create(own.fake);
  fake_work(own.fake, stuck, 1);
  fake_work(own.fake, live, 1);
  fake_stick(own.fake, stuck, true);
  fixture_use(&own, 0, stuck);
  fixture_use(&own, 1, live);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_synchronize(own.retire));
  LADE_EXPECT(!fixture_is_done(&own, 0) && fixture_is_done(&own, 1));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_destroy(own.retire, true));
  fake_stick(own.fake, stuck, false);
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, WaitIsNotEndedByIt) {
  static fixture own;
  fixture_open(&own, NULL);
  for (int i = 0; i < 2; i++) fixture_work_and_use(&own, i, fake_stream_create(own.fake));
  LADE_EXPECT_OK(ladei_retire_close(own.retire));
  fake_run_all(own.fake);
  fake_fail(own.fake, "event_query", LADE_ERR_DRIVER, 0, 2); /* of both streams, in the first poll */
  LADE_EXPECT_OK(ladei_retire_wait(own.retire, UINT64_MAX));
  LADE_EXPECT_EQ_INT(own.done_count, 2);
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, AddLeavesTheErrorRecordAlone) {
  static fixture own;
  lade_stream stream = fixture_open(&own, &(ladei_retire_options){.event_batch = 1});
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_wait(own.retire, 0));
  char before[sizeof lade_last_error()->text];
  strcpy(before, lade_last_error()->text);
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1);
  fixture_use(&own, 0, stream);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, before);
  fixture_close(&own);
}

/* ---- Streams and devices that are gone --------------------------------------------------------------------------- */

/* The user destroyed the stream without telling, and another got its handle: no event of that one is taken for the
 * work of the first. Only waiting for the device helps. */
LADE_TEST(RetireQuarantine, StreamDestroyedWithoutRetireIsNotMistakenForItsSuccessor) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fixture_work_and_use(&own, 0, stream);
  fake_stream_recycle(own.fake, stream); /* idle: would answer "done" */
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fixture_use(&own, 1, stream); /* the successor is fine */
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  LADE_EXPECT(!fixture_is_done(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "device_synchronize"), 1);
  LADE_EXPECT(fixture_is_done(&own, 0));
  fixture_close(&own);
}

typedef struct successor {
  fake_driver *fake;
  lade_stream stream;
} successor;

static void recycle(void *user) {
  const successor *made = user;
  fake_stream_recycle(made->fake, made->stream);
}

/* Bug: another thread destroyed the stream and made one with its handle after lade had looked whose the handle was and
 * before its next call: the idle successor's answer gave the block back. */
LADE_TEST(RetireQuarantine, SuccessorMadeBesideACallDoesNotAnswerForTheStream) {
  static fixture own;
  static const struct {
    const char *op;
    bool events_only;
  } cases[] = {{"stream_query", false}, {"event_record", true}, {"event_create", true}, {"stream_capture_info", false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_test_context("at %s", cases[i].op);
    successor made = {.stream = fixture_open(&own, &(ladei_retire_options){.events_only = cases[i].events_only})};
    made.fake = own.fake;
    fixture_work_and_use(&own, 0, made.stream);
    fake_hook(own.fake, cases[i].op, recycle, &made);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
    LADE_EXPECT(!fixture_is_done(&own, 0));
    LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
    LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
    LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "device_synchronize"), 1);
    fixture_close(&own);
  }
  lade_test_context("%s", "");
}

/* The same of a thread that waits for a stream on which no event can be recorded. */
LADE_TEST(RetireQuarantine, SuccessorMadeBesideAWaitIsNotWaitedForInstead) {
  static fixture own;
  successor made = {.stream = fixture_open(&own, NULL)};
  made.fake = own.fake;
  fixture_work_and_use(&own, 0, made.stream);
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1000);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_poll(own.retire, CLOSE, NULL));
  fake_hook(own.fake, "stream_synchronize", recycle, &made);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_synchronize"), 1);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "device_synchronize"), 1);
  LADE_EXPECT(fixture_is_done(&own, 0));
  fixture_close(&own);
}

/* Its events say when the batches that they cover are done. What is open has none, and nobody to ask: no poll fails for
 * that or names the stream again, no other stream is held up, and the device is waited for when somebody may wait. */
LADE_TEST(RetireQuarantine, StreamDestroyedWithoutRetireKeepsWhatIsOpenUntilSomebodyWaits) {
  static fixture own;
  lade_stream gone = fixture_open(&own, NULL), other = fake_stream_create(own.fake);
  fake_work(own.fake, gone, 1);
  for (int i = 0; i < 16; i++) fixture_use(&own, i, gone);
  for (int i = 16; i < 20; i++) fixture_use(&own, i, gone);
  fixture_note(&own, 20, gone); /* freed only when its stream is gone */
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).events_recorded, 1);
  fake_stream_destroy(own.fake, gone);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 4);
  fake_run_all(own.fake);
  uint64_t resolved = fake_calls(own.fake, "stream_resolve");
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 16);
  LADE_EXPECT(fixture_add(&own, 20));
  fixture_work_and_use(&own, 21, other);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_resolve"),
                      resolved + 3); /* noted, asked, confirmed: the other one */
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 5);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantines, 1);
  LADE_EXPECT_OK(ladei_retire_end_quarantine(own.retire));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "device_synchronize"), 1);
  LADE_EXPECT_EQ_INT(own.done_count, 22);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 0);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).streams, 1); /* nobody comes back for the other queue */
  fixture_close(&own);
}

LADE_TEST(RetireQuarantine, DestroyWaitsForTheDeviceOfAStreamThatIsGone) {
  static fixture own;
  lade_stream stream = fixture_open(&own, &(ladei_retire_options){.event_batch = 1});
  fake_work(own.fake, stream, 1);
  fixture_note(&own, 0, stream);
  fake_stream_destroy(own.fake, stream); /* between note and add, so the add cannot record */
  LADE_EXPECT(fixture_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_destroy(own.retire, false));
  fixture_close(&own);
  LADE_EXPECT(fixture_is_done(&own, 0));
}

/* Refused once and then not: the stream is there after all, and what was said of it is taken back. */
LADE_TEST(RetireQuarantine, StreamThatAnswersAgainWasNotDestroyed) {
  for (int retires = 0; retires <= 1; retires++) {
    static fixture own;
    fixture_open(&own, NULL);
    lade_stream stream = fake_stream_create(own.fake);
    fake_work(own.fake, stream, 1);
    fixture_use(&own, 0, stream);
    fake_fail(own.fake, "stream_resolve", LADE_ERR_INVALID_ARGUMENT, 0, 1);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
    LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
    if (retires) {
      LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, stream));
      fake_stream_forbid(own.fake, stream);
    } else {
      fixture_use(&own, 1, stream);
    }
    fake_run_all(own.fake);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), retires ? 1 : 2);
    LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "device_synchronize"), 0);
    fixture_close(&own);
  }
}

/* Waiting for a device is waiting for its primary context, not for those that the program made. */
LADE_TEST(RetireQuarantine, StreamDestroyedInAnotherContextIsNotTakenForDone) {
  static fixture own;
  fixture_open(&own, NULL);
  lade_stream stream = fake_stream_create(own.fake);
  fake_work(own.fake, stream, 1);
  fixture_use(&own, 0, stream);
  fake_stream_destroy(own.fake, stream);
  fake_other_context(own.fake, true);
  LADE_EXPECT_STATUS(LADE_ERR_STREAM_RETIRED, ladei_retire_synchronize(own.retire));
  LADE_EXPECT(!fixture_is_done(&own, 0));
  fake_other_context(own.fake, false);
  fixture_close(&own);
  LADE_EXPECT(fixture_is_done(&own, 0));
}

/* Nothing works any more; nothing runs any more either, so destroy gives the blocks back. */
LADE_TEST(RetireDeviceLost, PollKeepsBlocksAndSynchroniseGivesThemBack) {
  static fixture own;
  fixture_open(&own, NULL);
  lade_stream streams[4];
  for (int s = 0; s < 4; s++) {
    streams[s] = fake_stream_create(own.fake);
    fake_work(own.fake, streams[s], 1);
    for (int i = 0; i < 20; i++) fixture_note(&own, 20 * s + i, streams[s]);
    fixture_note_now(&own, 100 + s, streams[s]);
  }
  for (int i = 0; i < 80; i++) LADE_EXPECT(fixture_add(&own, i));
  for (int i = 100; i < 104; i++) LADE_EXPECT(fixture_add(&own, i));
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, streams[3]));
  static const char *const ops[] = {
      "stream_resolve", "stream_query", "stream_capture_info", "stream_synchronize", "event_create",
      "event_record",   "event_query",  "event_synchronize",   "device_synchronize", "capture_mode_exchange"};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
    fake_fail(own.fake, ops[i], LADE_ERR_DEVICE_LOST, 0, UINT64_MAX);
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, ladei_retire_poll(own.retire, CLOSE, NULL));
  LADE_EXPECT_EQ_INT(own.done_count, 0);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_destroy(own.retire, false));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_INT(own.done_count, 84);
  fixture_close(&own);
}

/* ---- Notes and stream_retire ------------------------------------------------------------------------------------- */

LADE_TEST(RetireFailure, FailingNoteNotesNothing) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  ladei_retire_ticket *ticket = &own.blocks[0].ticket;
  static const char *const ops[] = {"stream_resolve", "stream_capture_info", "event_create", "event_record",
                                    "event_query"};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    fake_fail(own.fake, ops[i], LADE_ERR_DRIVER, 0, 1);
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_note(own.retire, ticket, stream, LADEI_NOTE_NOW));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, ops[i]);
    LADE_EXPECT(!ladei_retire_ticket_noted(ticket));
    LADE_EXPECT_OK(ladei_retire_check(own.retire));
  }
  LADE_EXPECT_OK(ladei_retire_note(own.retire, ticket, stream, LADEI_NOTE_NOW));
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_note(own.retire, ticket, stream, LADEI_NOTE_NOW));
  LADE_EXPECT(ladei_retire_ticket_noted(ticket)); /* the earlier note stands */
  LADE_EXPECT(fixture_add(&own, 0));
  fixture_close(&own);
}

LADE_TEST(RetireFailure, StreamRetireThatFailsMayBeRepeated) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fixture_work_and_use(&own, 0, stream);
  static const char *const ops[] = {"stream_resolve", "stream_query", "event_create", "event_record", "event_query"};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    fake_fail(own.fake, ops[i], LADE_ERR_DRIVER, 0, 1);
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_stream_retire(own.retire, stream));
    LADE_EXPECT_OK(ladei_retire_check(own.retire));
  }
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1000);
  fake_run_all(own.fake); /* what its contract says: synchronise, and do without the event */
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, stream));
  fake_stream_forbid(own.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 1);
  fixture_close(&own);
}

/* ---- Every call failing ------------------------------------------------------------------------------------------ */

/* One of everything; whatever fails, no block comes back before its streams are done (checked by their positions). */
enum { SCENARIO_STREAMS = 3, SCENARIO_BLOCKS = 48 };

typedef struct scenario {
  fixture own;
  lade_stream streams[SCENARIO_STREAMS];
  uint64_t until[SCENARIO_BLOCKS][SCENARIO_STREAMS]; /* position that the stream must reach; 0: not noted on it */
  bool captures;                                     /* the last stream: its notes wait for the graph */
} scenario;

static void scenario_check(scenario *run) {
  LADE_EXPECT_OK(ladei_retire_check(run->own.retire));
  for (int d = 0; d < run->own.done_count; d++)
    for (int s = 0; s < SCENARIO_STREAMS; s++)
      LADE_EXPECT_LE_UINT(run->until[run->own.done[d]][s], fake_finished(run->own.fake, run->streams[s]));
}

static void scenario_note(scenario *run, int block, int stream, unsigned flags) {
  lade_status status = ladei_retire_note(run->own.retire, &run->own.blocks[block].ticket, run->streams[stream], flags);
  bool in_capture = run->captures && stream == SCENARIO_STREAMS - 1;
  if (status == LADE_OK && !in_capture) run->until[block][stream] = fake_queued(run->own.fake, run->streams[stream]);
}

static void scenario_capture(scenario *run, bool begin) {
  lade_stream stream = run->streams[SCENARIO_STREAMS - 1];
  run->captures = begin;
  if (begin)
    fake_capture_begin(run->own.fake, stream);
  else
    fake_graph_destroy(run->own.fake, fake_capture_end(run->own.fake, stream));
}

static void scenario_run(scenario *run) {
  fixture *own = &run->own;
  for (int s = 0; s < SCENARIO_STREAMS; s++) run->streams[s] = fake_stream_create(own->fake);
  for (int i = 0; i < SCENARIO_BLOCKS; i++) {
    for (int s = 0; s < SCENARIO_STREAMS; s++) fake_work(own->fake, run->streams[s], 1);
    if (i == 20) scenario_capture(run, true);
    scenario_note(run, i, i % SCENARIO_STREAMS, i % 7 == 0 ? LADEI_NOTE_NOW : 0);
    if (i % 5 == 0) scenario_note(run, i, (i + 1) % SCENARIO_STREAMS, 0);
    if (i == 25) scenario_capture(run, false);
    fixture_add(own, i);
    if (i % 6 == 0) fake_run(own->fake, run->streams[i % SCENARIO_STREAMS], 4);
    if (i % 9 == 0) (void)ladei_retire_poll(own->retire, i % 2 == 0 ? CLOSE : 0, NULL);
    if (i == 30) (void)ladei_retire_synchronize(own->retire);
    scenario_check(run);
  }
  (void)ladei_retire_stream_retire(own->retire, run->streams[1]);
  (void)ladei_retire_poll(own->retire, CLOSE, NULL);
  scenario_check(run);
}

static uint64_t scenario_once(const char *op, uint64_t nth, bool forever) {
  static scenario run;
  memset(&run, 0, sizeof run);
  lade_test_context("call %llu of %s fails%s", (unsigned long long)nth, op, forever ? ", and all later ones" : "");
  fixture_open(&run.own, NULL);
  if (nth > 0) fake_fail(run.own.fake, op, LADE_ERR_DRIVER, nth - 1, forever ? UINT64_MAX : 1);
  scenario_run(&run);
  fake_fail(run.own.fake, op, LADE_OK, 0, 0);
  uint64_t calls = fake_calls(run.own.fake, op);
  fixture_close(&run.own);
  for (int i = 0; i < SCENARIO_BLOCKS; i++) LADE_EXPECT(!run.own.blocks[i].pending);
  lade_test_context("%s", "");
  return calls;
}

LADE_TEST(RetireFailure, EveryOpFailingAtEveryPositionLosesNothing) {
#define OP_NAME(op, group) #op,
  static const char *const ops[] = {LADEI_OPS_LIST(OP_NAME)};
#undef OP_NAME
  for (size_t i = 0; i < sizeof ops / sizeof ops[0] && !lade_test_has_failed(); i++) {
    if (strstr(ops[i], "destroy") != NULL || strstr(ops[i], "release") != NULL) continue; /* ops.h R7: they succeed */
    uint64_t calls = scenario_once(ops[i], 0, false);
    for (uint64_t nth = 1; nth <= calls && !lade_test_has_failed(); nth++) {
      scenario_once(ops[i], nth, false);
      scenario_once(ops[i], nth, true);
    }
  }
}

/* ---- Events of callers ------------------------------------------------------------------------------------------- */

/* Bug: all events of callers share a queue, and one that failed had end_quarantine wait for all of them; or for none,
 * where one that is well was asked after it. */
LADE_TEST(RetireFailure, EventsOfCallersAreInQuarantineEachForItself) {
  static fixture own;
  for (int failing = 0; failing < 2; failing++) {
    lade_stream streams[2] = {fixture_open(&own, NULL), fake_stream_create(own.fake)};
    lade_event events[2];
    for (int i = 0; i < 2; i++) {
      events[i] = fake_event_create(own.fake);
      fake_work(own.fake, streams[i], 1);
      fake_event_record(own.fake, events[i], streams[i]);
      LADE_EXPECT_OK(ladei_retire_note_event(own.retire, &own.blocks[i].ticket, events[i]));
      LADE_EXPECT(fixture_add(&own, i));
    }
    fake_stick(own.fake, streams[1 - failing], true); /* well, and not to be waited for */
    fake_fail(own.fake, "event_query", LADE_ERR_DRIVER, (uint64_t)failing, 1);
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_poll(own.retire, CLOSE, NULL));
    LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
    LADE_EXPECT_OK(ladei_retire_end_quarantine(own.retire));
    LADE_EXPECT(fixture_is_done(&own, failing));
    LADE_EXPECT(!fixture_is_done(&own, 1 - failing));
    LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 0);
    fake_run_all(own.fake);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 1);
    for (int i = 0; i < 2; i++) fake_event_destroy(own.fake, events[i]);
    fixture_close(&own);
  }
}
