/* SPDX-License-Identifier: Apache-2.0 */
/* Uses inside and around captures: no early reuse, no leak, no broken capture. (The fake driver fails the test when a
 * call would break one.) */
#include "tests/runtime/retire_fixture.h"

static const unsigned CLOSE = LADEI_POLL_CLOSE;

LADE_TEST(RetireCapture, BlockReturnsWhenTheGraphIsGone) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  fixture_note(&own, 0, stream);
  fixture_note(&own, 1, stream);
  fixture_note(&own, 1, stream);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "user_object_create"), 1);
  LADE_EXPECT(fixture_add(&own, 0)); /* while it captures */
  ladei_graph graph = fake_capture_end(own.fake, stream);
  LADE_EXPECT(fixture_add(&own, 1)); /* after */
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).captured_uses, 2);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_synchronize(own.retire)); /* nobody can wait for a graph */
  fake_graph_destroy(own.fake, graph);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 2);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "event_record"), 0);
  fixture_close(&own);
}

/* Regression: synchronize gave the driver's thread 4 ms to report the end of a graph, which on a busy machine is too short,
 * and took one end for all: LADE_NOT_READY though every graph was destroyed. */
LADE_TEST(RetireCapture, SynchronizeWaitsUntilTheDriverHasReportedDestroyedGraphs) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  ladei_graph graphs[2];
  for (int i = 0; i < 2; i++) {
    fake_capture_begin(own.fake, stream);
    fixture_use(&own, i, stream);
    graphs[i] = fake_capture_end(own.fake, stream);
  }
  fake_objects_late(own.fake, 40);
  for (int i = 0; i < 2; i++) fake_graph_destroy(own.fake, graphs[i]);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).pending_tickets, 0);
  fixture_close(&own);
}

/* The driver's thread may be busy with a host function that waits for the caller: no wait for ever. */
LADE_TEST(RetireCapture, SynchronizeGivesUpWhereTheDriverReportsNothing) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  fixture_use(&own, 0, stream);
  ladei_graph graph = fake_capture_end(own.fake, stream);
  fake_objects_late(own.fake, UINT64_MAX);
  fake_graph_destroy(own.fake, graph);
  fake_clock(own.fake, 0, 300 * 1000 * 1000);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_synchronize(own.retire));
  fake_objects_late(own.fake, 1);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire)); /* the first fence passes too, with no owner left */
  fixture_close(&own);
}

/* What was made for it goes, too, wherever the driver stops it. */
LADE_TEST(RetireCapture, FenceThatFailsLeavesNothingBehind) {
  static const char *const ops[] = {
      "capture_mode_exchange", "stream_create",      "stream_resolve",           "capture_begin",     "host_function",
      "capture_end",           "user_object_create", "graph_retain_user_object", "graph_instantiate", "graph_launch"};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    static fixture own;
    lade_stream stream = fixture_open(&own, NULL);
    lade_test_context("%s", ops[i]);
    fake_capture_begin(own.fake, stream);
    fixture_use(&own, 0, stream);
    ladei_graph graph = fake_capture_end(own.fake, stream);
    fake_fail(own.fake, ops[i], LADE_ERR_DRIVER, 0, 1);
    fake_objects_late(own.fake, 5);
    fake_graph_destroy(own.fake, graph);
    LADE_EXPECT_OK(ladei_retire_synchronize(own.retire)); /* by its rounds */
    fixture_close(&own);
  }
  lade_test_context("%s", "");
}

LADE_TEST(RetireCapture, SynchronizeDoesWithoutAFenceWhereTheDriverMakesNone) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  fixture_use(&own, 0, stream);
  ladei_graph graph = fake_capture_end(own.fake, stream);
  fake_fail(own.fake, "user_object_create", LADE_ERR_DRIVER, 0, UINT64_MAX);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_synchronize(own.retire)); /* the graph lives */
  fake_objects_late(own.fake, 5);
  fake_graph_destroy(own.fake, graph);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  fixture_close(&own);
}

LADE_TEST(RetireCapture, BlockFreedAfterTheGraphIsGoneHasNothingToWaitFor) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  fixture_note(&own, 0, stream);
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, stream));
  fixture_poll(&own, 0); /* hears of it */
  LADE_EXPECT(!fixture_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).streams, 0);
  fixture_close(&own);
}

LADE_TEST(RetireCapture, InvalidatedCaptureGivesItsBlocksBack) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  fixture_use(&own, 0, stream);
  fake_capture_invalidate(own.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  LADE_EXPECT(fake_capture_end(own.fake, stream) == NULL);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

/* Noted in a capture that is already broken: what the stream did before still counts, and is asked after the end. */
LADE_TEST(RetireCapture, NoteInAnInvalidatedCaptureWaitsForTheStream) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_work(own.fake, stream, 1);
  fake_capture_begin(own.fake, stream);
  fake_capture_invalidate(own.fake, stream);
  fixture_use(&own, 0, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  LADE_EXPECT(fake_capture_end(own.fake, stream) == NULL);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

LADE_TEST(RetireCapture, CaptureBegunBetweenNoteAndAddKeepsTheBatchOpen) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_work(own.fake, stream, 1);
  for (int i = 0; i < 40; i++) fixture_note(&own, i, stream);
  fake_capture_begin(own.fake, stream);
  for (int i = 0; i < 40; i++) LADE_EXPECT(fixture_add(&own, i)); /* fills two batches */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0); /* no error */
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).open_uses, 40);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 0);
  ladei_graph graph = fake_capture_end(own.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 40); /* whether or not the graph lives */
  fake_graph_destroy(own.fake, graph);
  fixture_close(&own);
}

/* During a long capture, adds do not ask the driver one by one whether it is over. */
LADE_TEST(RetireCapture, AddsDuringACaptureAskOncePerBatch) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  for (int i = 0; i < 160; i++) fixture_note(&own, i, stream);
  fake_capture_begin(own.fake, stream);
  uint64_t before = fake_calls(own.fake, "stream_capture_info");
  for (int i = 0; i < 160; i++) LADE_EXPECT(fixture_add(&own, i));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_capture_info") - before, 10);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_query"), 0);
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, stream));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 160);
  fixture_close(&own);
}

LADE_TEST(RetireCapture, LegacyStreamWaitsWhileAnotherStreamCaptures) {
  static fixture own;
  for (uint32_t batch = 1; batch <= 16; batch += 15) {
    fixture_open(&own, &(ladei_retire_options){.event_batch = batch});
    fake_work(own.fake, NULL, 1);
    fixture_note(&own, 0, NULL);
    fake_legacy_implicit(own.fake, true);
    LADE_EXPECT(fixture_add(&own, 0));
    fixture_use(&own, 1, NULL); /* noted and freed meanwhile */
    fake_run_all(own.fake);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_synchronize(own.retire));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "captures");
    fake_legacy_implicit(own.fake, false);
    LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 2);
    fixture_close(&own);
  }
}

/* Hazard of the reference: a use outside the capture is not forgotten because there was one inside too. */
LADE_TEST(RetireCapture, UseOutsideIsHonouredBesideTheOneInside) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_work(own.fake, stream, 1);
  for (int i = 0; i < 2; i++) fixture_note(&own, i, stream);
  fake_capture_begin(own.fake, stream);
  for (int i = 0; i < 2; i++) fixture_note(&own, i, stream);
  ladei_graph graph = fake_capture_end(own.fake, stream);
  LADE_EXPECT(fixture_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_graph_destroy(own.fake, graph);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0); /* the stream still works */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).noted_uses, 2); /* of block 1 */
  ladei_retire_forget(own.retire, &own.blocks[1].ticket);
  fixture_close(&own);
}

/* Another thread begins a capture at the worst moment. */
typedef struct capture_race {
  fake_driver *fake;
  lade_stream stream;
} capture_race;

static void race_begin(void *user) {
  capture_race *race = user;
  fake_capture_begin(race->fake, race->stream);
}

static void race_end(capture_race *race) { fake_graph_destroy(race->fake, fake_capture_end(race->fake, race->stream)); }

/* Between the question and the record: the event is in the capture and never gets done, and asking about it would break the
 * capture. A second question to the stream finds it out, and the event is recorded anew after the capture. */
LADE_TEST(RetireCapture, EventThatGotIntoACaptureIsRecordedAgain) {
  static fixture own;
  fixture_open(&own, NULL);
  capture_race race = {own.fake, fake_stream_create(own.fake)};
  fake_work(own.fake, race.stream, 1);
  fixture_use(&own, 0, race.stream);
  fake_hook(own.fake, "event_record", race_begin, &race);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_synchronize(own.retire));
  race_end(&race);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

static void graph_gone(void *user) {
  capture_race *race = user;
  race_end(race);
}

static void race_begin_and_end(void *user) {
  capture_race *race = user;
  race_begin(race);
  fake_hook(race->fake, "stream_capture_info", graph_gone, race);
}

/* The capture is over before the second question: the next poll finds out that the event never gets done. */
LADE_TEST(RetireCapture, EventOfACaptureThatIsOverIsRecordedAgain) {
  static fixture own;
  fixture_open(&own, NULL);
  capture_race race = {own.fake, fake_stream_create(own.fake)};
  fake_work(own.fake, race.stream, 1);
  fixture_use(&own, 0, race.stream);
  fake_hook(own.fake, "event_record", race_begin_and_end, &race);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0); /* recorded anew */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantines, 0);
  fixture_close(&own);
}

LADE_TEST(RetireCapture, SynchroniseNeverWaitsForAnEventInACapture) {
  static fixture own;
  fixture_open(&own, NULL);
  capture_race race = {own.fake, fake_stream_create(own.fake)};
  fake_work(own.fake, race.stream, 1);
  fixture_use(&own, 0, race.stream);
  fake_hook(own.fake, "event_record", race_begin, &race);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_synchronize(own.retire));
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  race_end(&race);
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT(fixture_is_done(&own, 0));
  fixture_close(&own);
}

LADE_TEST(RetireCapture, NoteOfAPreciseUseThatGotIntoACaptureFails) {
  static fixture own;
  fixture_open(&own, NULL);
  capture_race race = {own.fake, fake_stream_create(own.fake)};
  fake_hook(own.fake, "event_record", race_begin, &race);
  ladei_retire_ticket *ticket = &own.blocks[0].ticket;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_note(own.retire, ticket, race.stream, LADEI_NOTE_NOW));
  LADE_EXPECT(!ladei_retire_ticket_noted(ticket));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE,
                     ladei_retire_note(own.retire, ticket, race.stream, LADEI_NOTE_NOW | LADEI_NOTE_PLAIN));
  LADE_EXPECT_OK(ladei_retire_note(own.retire, ticket, race.stream, LADEI_NOTE_NOW)); /* hangs on the capture */
  LADE_EXPECT(fixture_add(&own, 0));
  race_end(&race);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

LADE_TEST(RetireCapture, PlainNoteLeavesCapturesToTheOwner) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  LADE_EXPECT_OK(ladei_retire_note(own.retire, &own.blocks[0].ticket, stream, LADEI_NOTE_PLAIN));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "user_object_create"), 0);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_capture_info"), 0);
  ladei_retire_forget(own.retire, &own.blocks[0].ticket);
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, stream));
  fixture_close(&own);
}

/* Only the device could tell of a stream that is gone, and waiting for it breaks every capture on it. */
LADE_TEST(RetireCapture, DeviceIsNotWaitedForBesideCaptures) {
  static fixture own;
  lade_stream gone = fixture_open(&own, NULL), capturing = fake_stream_create(own.fake),
              other = fake_stream_create(own.fake);
  fixture_work_and_use(&own, 0, gone);
  fixture_work_and_use(&own, 1, other);
  fake_stream_destroy(own.fake, gone);
  fake_capture_begin(own.fake, capturing);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_synchronize_streams(own.retire));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "would break captures");
  LADE_EXPECT(fixture_is_done(&own, 1) && !fixture_is_done(&own, 0));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "device_synchronize"), 0);
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, capturing));
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT(fixture_is_done(&own, 0));
  fixture_close(&own);
}

/* ---- Retiring streams -------------------------------------------------------------------------------------------- */

LADE_TEST(RetireCapture, CapturingStreamIsNotRetired) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fixture_work_and_use(&own, 0, stream);
  fake_capture_begin(own.fake, stream);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_stream_retire(own.retire, stream));
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, stream));
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, stream));
  fake_stream_forbid(own.fake, stream);
  fixture_close(&own);
  LADE_EXPECT(fixture_is_done(&own, 0));
}

LADE_TEST(RetireCapture, CaptureBegunDuringStreamRetireIsNoticed) {
  static fixture own;
  fixture_open(&own, NULL);
  capture_race race = {own.fake, fake_stream_create(own.fake)};
  fake_work(own.fake, race.stream, 1);
  fixture_use(&own, 0, race.stream);
  fake_hook(own.fake, "event_record", race_begin, &race);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_stream_retire(own.retire, race.stream));
  race_end(&race);
  fixture_close(&own);
  LADE_EXPECT(fixture_is_done(&own, 0));
}

/* ---- The user object --------------------------------------------------------------------------------------------- */

LADE_TEST(RetireCapture, FailingUserObjectNotesNothingAndLeavesNothing) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  ladei_retire_ticket *ticket = &own.blocks[0].ticket;
  fake_capture_begin(own.fake, stream);
  fake_fail(own.fake, "user_object_create", LADE_ERR_DRIVER, 0, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_note(own.retire, ticket, stream, 0));
  fake_fail(own.fake, "graph_retain_user_object", LADE_ERR_DRIVER, 0, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_note(own.retire, ticket, stream, 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "graph_retain_user_object");
  LADE_EXPECT(!ladei_retire_ticket_noted(ticket));
  fixture_poll(&own, 0);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).streams, 0);
  fixture_use(&own, 0, stream); /* and works at the next attempt */
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, stream));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 1);
  fixture_close(&own);
}

typedef struct note_race {
  fixture *own;
  lade_stream stream;
} note_race;

static void note_block_one(void *user) {
  note_race *race = user;
  fixture_note(race->own, 1, race->stream);
}

/* Two threads meet a new capture at once. */
LADE_TEST(RetireCapture, TwoFirstNotesOfACaptureBothCount) {
  static fixture own;
  fixture_open(&own, NULL);
  note_race race = {&own, fake_stream_create(own.fake)};
  fake_capture_begin(own.fake, race.stream);
  fake_hook(own.fake, "user_object_create", note_block_one, &race);
  fixture_note(&own, 0, race.stream);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "user_object_create"), 2);
  fixture_use(&own, 2, race.stream);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "user_object_create"), 2);
  for (int i = 0; i < 2; i++) LADE_EXPECT(fixture_add(&own, i));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_graph_destroy(own.fake, fake_capture_end(own.fake, race.stream));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 3);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).streams, 0);
  fixture_close(&own);
}

/* The graph is gone before its note has returned. */
LADE_TEST(RetireCapture, GraphGoneDuringTheNoteIsNotMissed) {
  static fixture own;
  fixture_open(&own, NULL);
  capture_race race = {own.fake, fake_stream_create(own.fake)};
  fake_capture_begin(own.fake, race.stream);
  fixture_use(&own, 0, race.stream);
  fake_hook(own.fake, "stream_resolve", graph_gone, &race);
  fixture_use(&own, 1, race.stream); /* an ordinary use by now */
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 2);
  fixture_close(&own);
}

LADE_TEST(RetireCapture, GraphMayOutliveTheRetireObject) {
  static fixture own;
  lade_stream stream = fixture_open(&own, NULL);
  fake_capture_begin(own.fake, stream);
  fixture_use(&own, 1, stream);
  ladei_graph graph = fake_capture_end(own.fake, stream);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_destroy(own.retire, true)); /* block 1 waits for the graph */
  fake_graph_destroy(own.fake, graph);
  fixture_poll(&own, 0);

  fake_capture_begin(own.fake, stream);
  fixture_note(&own, 0, stream);
  graph = fake_capture_end(own.fake, stream);
  LADE_EXPECT_OK(ladei_retire_destroy(own.retire, true)); /* nothing waits for this one */
  fake_graph_destroy(own.fake, graph);
  fake_close(own.fake, own.runtime);
}
