/* SPDX-License-Identifier: Apache-2.0 */
/* What retire_lane.h promises: what threads note and add without a lock is found by all who must know of it. */
#include "runtime/retire_lane.h"

#include <pthread.h>

#include "tests/runtime/retire_fixture.h"

static const unsigned CLOSE = LADEI_POLL_CLOSE;

typedef struct laned {
  fixture base;
  ladei_lane lane;
} laned;

static void laned_open(laned *own) {
  fixture_open(&own->base, NULL);
  ladei_lane_init(&own->lane);
}

static void laned_close(laned *own) {
  ladei_lane_close(own->base.retire, &own->lane);
  fixture_close(&own->base);
}

static void laned_note(laned *own, int block, lade_stream stream) {
  LADE_EXPECT_OK(ladei_lane_note(own->base.retire, &own->lane, &own->base.blocks[block].ticket, stream));
}

static bool laned_add(laned *own, int block) {
  own->base.blocks[block].pending = true;
  bool pending = ladei_lane_add(own->base.retire, &own->lane, &own->base.blocks[block].ticket);
  if (!pending) own->base.blocks[block].pending = false;
  return pending;
}

static void laned_use(laned *own, int block, lade_stream stream) {
  laned_note(own, block, stream);
  LADE_EXPECT(laned_add(own, block));
}

static uint64_t records(laned *own) { return fake_calls(own->base.fake, "event_record"); }

LADE_TEST(RetireLane, AFullBatchGetsOneEvent) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  for (int i = 0; i < 64; i++) {
    fake_work(own.base.fake, stream, 1);
    laned_use(&own, i, stream);
    LADE_EXPECT_EQ_UINT(records(&own), (uint64_t)(i + 1) / 16);
  }
  fake_run(own.base.fake, stream, 40);
  uint64_t done = 0;
  LADE_EXPECT_OK(ladei_lane_poll(own.base.retire, &own.lane, &done));
  LADE_EXPECT_EQ_UINT(done, 32); /* two batches; of the third 8 are not done */
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, 0), 32);
  laned_close(&own);
}

/* Else reading statistics would make batches larger. */
LADE_TEST(RetireLane, WhatWasToldCountsForTheBatch) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  fake_work(own.base.fake, stream, 1);
  for (int i = 0; i < 16; i++) {
    LADE_EXPECT_EQ_UINT(records(&own), 0);
    laned_use(&own, i, stream);
    LADE_EXPECT_EQ_UINT(fixture_counters(&own.base).pending_tickets, (uint64_t)i + 1); /* empties the lane */
  }
  LADE_EXPECT_EQ_UINT(records(&own), 1);
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, 0), 16);
  laned_close(&own);
}

LADE_TEST(RetireLane, FreeSynchroniseAllocHitsWithoutAnEvent) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  fake_work(own.base.fake, stream, 1);
  laned_use(&own, 0, stream);
  fake_run_all(own.base.fake);
  uint64_t done = 0;
  LADE_EXPECT_OK(ladei_retire_poll(own.base.retire, 0, &done));
  LADE_EXPECT_EQ_UINT(done, 0); /* open */
  LADE_EXPECT_OK(ladei_retire_poll(own.base.retire, CLOSE, &done));
  LADE_EXPECT_EQ_UINT(done, 1);
  LADE_EXPECT_EQ_UINT(records(&own), 0);
  laned_close(&own);
}

LADE_TEST(RetireLane, ABlockWaitsForWorkQueuedBeforeTheAdd) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  laned_note(&own, 0, stream);
  fake_work(own.base.fake, stream, 2);
  LADE_EXPECT(laned_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 0);
  fake_run(own.base.fake, stream, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 0);
  fake_run(own.base.fake, stream, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 1);
  laned_close(&own);
}

LADE_TEST(RetireLane, ASecondStreamUnfoldsTheNote) {
  static laned own;
  laned_open(&own);
  lade_stream first = fake_stream_create(own.base.fake), second = fake_stream_create(own.base.fake);
  fake_work(own.base.fake, first, 1);
  fake_work(own.base.fake, second, 1);
  laned_note(&own, 0, first);
  laned_note(&own, 0, first);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own.base).noted_uses, 1);
  laned_note(&own, 0, second);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own.base).noted_uses, 2);
  LADE_EXPECT(laned_add(&own, 0));
  fake_run(own.base.fake, second, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 0);
  fake_run(own.base.fake, first, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 1);
  laned_close(&own);
}

LADE_TEST(RetireLane, ANoteCanBeTakenBack) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  laned_note(&own, 0, stream);
  ladei_retire_forget(own.base.retire, &own.base.blocks[0].ticket);
  LADE_EXPECT(!ladei_ticket_noted(&own.base.blocks[0].ticket));
  LADE_EXPECT(!laned_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own.base).noted_uses, 0);
  laned_close(&own);
}

LADE_TEST(RetireLane, MoreStreamsThanSlotsLoseNothing) {
  static laned own;
  enum { STREAMS = 3 * LADEI_LANE_SLOTS, USES = 240 };
  lade_stream streams[STREAMS];
  laned_open(&own);
  for (int i = 0; i < STREAMS; i++) streams[i] = fake_stream_create(own.base.fake);
  for (int i = 0; i < USES; i++) {
    fake_work(own.base.fake, streams[i % STREAMS], 1);
    laned_use(&own, i, streams[i % STREAMS]);
  }
  LADE_EXPECT_OK(ladei_retire_check(own.base.retire));
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), USES);
  laned_close(&own);
}

/* A slot's credit is for 64 notes; more of them at once need more room. */
LADE_TEST(RetireLane, ManyNotesBeforeTheFirstAdd) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake), other = fake_stream_create(own.base.fake);
  for (int i = 0; i < FIXTURE_BLOCKS; i++) laned_note(&own, i, stream);
  for (int i = 0; i < FIXTURE_BLOCKS; i += 2) laned_note(&own, i, other); /* unfolds every other one */
  LADE_EXPECT_OK(ladei_retire_check(own.base.retire));
  for (int i = 0; i < FIXTURE_BLOCKS; i++) LADE_EXPECT(laned_add(&own, i));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), FIXTURE_BLOCKS);
  laned_close(&own);
}

LADE_TEST(RetireLane, StreamRetireReachesOpenBatchesAndNotes) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  fake_work(own.base.fake, stream, 1);
  laned_use(&own, 0, stream);
  laned_note(&own, 1, stream);
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.base.retire, stream));
  ladei_ticket *fresh = &own.base.blocks[2].ticket;
  LADE_EXPECT_EQ_INT(ladei_lane_note(own.base.retire, &own.lane, fresh, stream), LADE_ERR_STREAM_RETIRED);
  LADE_EXPECT(laned_add(&own, 1));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 0);
  fake_run_all(own.base.fake);
  fake_stream_forbid(own.base.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 2);
  laned_close(&own);
}

LADE_TEST(RetireLane, AFailedRecordIsAQuarantineThatAPollEnds) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  fake_work(own.base.fake, stream, 1);
  fake_fail(own.base.fake, "event_record", LADE_ERR_DRIVER, 0, 1);
  for (int i = 0; i < 16; i++) laned_use(&own, i, stream);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own.base).quarantined_uses, 16);
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, 0), 16);
  laned_close(&own);
}

LADE_TEST(RetireLane, ACaptureIsNoCaseForALane) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  laned_note(&own, 0, stream);
  (void)fake_capture_begin(own.base.fake, stream);
  laned_note(&own, 1, stream);
  LADE_EXPECT(laned_add(&own, 1));
  ladei_graph graph = fake_capture_end(own.base.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 0);
  fake_graph_destroy(own.base.fake, graph);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 1);
  LADE_EXPECT(laned_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 1);
  laned_close(&own);
}

LADE_TEST(RetireLane, ClosingALaneTellsItsBatches) {
  static laned own;
  laned_open(&own);
  lade_stream stream = fake_stream_create(own.base.fake);
  fake_work(own.base.fake, stream, 1);
  laned_use(&own, 0, stream);
  ladei_lane_close(own.base.retire, &own.lane);
  uint64_t before = fake_calls(own.base.fake, NULL);
  LADE_EXPECT(ladei_retire_pending(own.base.retire));
  LADE_EXPECT_EQ_UINT(fake_calls(own.base.fake, NULL), before);
  laned_use(&own, 1, stream); /* opens it again */
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 2);
  laned_close(&own);
}

/* ---- Two threads ------------------------------------------------------------------------------------------------- */

typedef struct other {
  laned *own;
  lade_stream stream;
  pthread_barrier_t reached, go_on;
  ladei_lane lane;
} other;

static void *other_uses_and_sleeps(void *argument) {
  other *they = argument;
  laned_use(they->own, 0, they->stream);
  laned_note(they->own, 1, they->stream);
  pthread_barrier_wait(&they->reached);
  pthread_barrier_wait(&they->go_on);
  return NULL;
}

static void other_start(other *they, laned *own, pthread_t *out, void *(*run)(void *)) {
  they->own = own;
  they->stream = fake_stream_create(own->base.fake);
  fake_work(own->base.fake, they->stream, 1);
  pthread_barrier_init(&they->reached, NULL, 2);
  pthread_barrier_init(&they->go_on, NULL, 2);
  LADE_ASSERT_EQ_INT(pthread_create(out, NULL, run, they), 0);
  pthread_barrier_wait(&they->reached);
}

static void other_end(other *they, pthread_t thread) {
  pthread_barrier_wait(&they->go_on);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&they->reached);
  pthread_barrier_destroy(&they->go_on);
}

LADE_TEST(RetireLane, LanesOfSleepingThreadsAreReached) {
  static laned own;
  static other they;
  pthread_t thread;
  laned_open(&own);
  other_start(&they, &own, &thread, other_uses_and_sleeps);
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 1);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own.base).noted_uses, 1);
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.base.retire, they.stream));
  other_end(&they, thread);
  LADE_EXPECT(!fixture_add(&own.base, 1)); /* the stream was done when it was retired */
  laned_close(&own);
}

static void *other_notes(void *argument) {
  other *they = argument;
  for (int i = 0; i < 40; i++) laned_note(they->own, i, they->stream);
  pthread_barrier_wait(&they->reached);
  pthread_barrier_wait(&they->go_on);
  return NULL;
}

LADE_TEST(RetireLane, NotedByOneThreadAddedByAnother) {
  static laned own;
  static other they;
  pthread_t thread;
  laned_open(&own);
  other_start(&they, &own, &thread, other_notes);
  ladei_lane_init(&they.lane);
  for (int i = 0; i < 40; i++) {
    own.base.blocks[i].pending = true;
    LADE_EXPECT(ladei_lane_add(own.base.retire, &they.lane, &own.base.blocks[i].ticket));
  }
  LADE_EXPECT_EQ_UINT(records(&own), 2); /* 40 uses: two batches are full */
  ladei_retire_counters counters = fixture_counters(&own.base);
  LADE_EXPECT_EQ_UINT(counters.noted_uses, 0);
  LADE_EXPECT_EQ_UINT(counters.pending_uses, 40);
  fake_run_all(own.base.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own.base, CLOSE), 40);
  other_end(&they, thread);
  ladei_lane_close(own.base.retire, &they.lane);
  laned_close(&own);
}
