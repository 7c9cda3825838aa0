/* SPDX-License-Identifier: Apache-2.0 */
/* What retire_buffer.h promises: what threads note and add without a lock is found by all who must know of it. */
#include "runtime/retire/retire_buffer.h"

#include <pthread.h>
#include <sched.h>

#include "runtime/retire/retire_queue.h"
#include "tests/runtime/retire_fixture.h"

static const unsigned CLOSE = LADEI_POLL_CLOSE;

static uint64_t records(const fixture *own) { return fake_calls(own->fake, "event_record"); }

LADE_TEST(RetireBuffer, AFullBatchGetsOneEvent) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  for (int i = 0; i < 64; i++) {
    fixture_work_and_use(&own, i, stream);
    LADE_EXPECT_EQ_UINT(records(&own), (uint64_t)(i + 1) / 16);
  }
  fake_run(own.fake, stream, 40);
  uint64_t done = 0;
  LADE_EXPECT_OK(ladei_retire_buffer_poll(own.retire, &own.buffer, &done));
  LADE_EXPECT_EQ_UINT(done, 32); /* two batches; of the third 8 are not done */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 32);
  fixture_close(&own);
}

/* Else reading statistics would make batches larger. */
LADE_TEST(RetireBuffer, WhatWasPublishedCountsForTheBatch) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fake_work(own.fake, stream, 1);
  for (int i = 0; i < 16; i++) {
    LADE_EXPECT_EQ_UINT(records(&own), 0);
    fixture_use(&own, i, stream);
    LADE_EXPECT_EQ_UINT(fixture_counters(&own).pending_tickets, (uint64_t)i + 1); /* empties the buffer */
  }
  LADE_EXPECT_EQ_UINT(records(&own), 1);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 16);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, FreeSynchroniseAllocHitsWithoutAnEvent) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fixture_work_and_use(&own, 0, stream);
  fake_run_all(own.fake);
  uint64_t done = 0;
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, 0, &done));
  LADE_EXPECT_EQ_UINT(done, 0); /* open */
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, &done));
  LADE_EXPECT_EQ_UINT(done, 1);
  LADE_EXPECT_EQ_UINT(records(&own), 0);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, ABlockWaitsForWorkQueuedBeforeTheAdd) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fixture_note(&own, 0, stream);
  fake_work(own.fake, stream, 2);
  LADE_EXPECT(fixture_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run(own.fake, stream, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run(own.fake, stream, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, ASecondStreamUnfoldsTheNote) {
  static fixture own;
  lade_stream first = fixture_open_laned(&own), second = fake_stream_create(own.fake);
  fake_work(own.fake, first, 1);
  fake_work(own.fake, second, 1);
  fixture_note(&own, 0, first);
  fixture_note(&own, 0, first);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).noted_uses, 1);
  fixture_note(&own, 0, second);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).noted_uses, 2);
  LADE_EXPECT(fixture_add(&own, 0));
  fake_run(own.fake, second, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run(own.fake, first, 1);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, ANoteCanBeTakenBack) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fixture_note(&own, 0, stream);
  ladei_retire_forget(own.retire, &own.blocks[0].ticket);
  LADE_EXPECT(!ladei_retire_ticket_noted(&own.blocks[0].ticket));
  LADE_EXPECT(!fixture_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).noted_uses, 0);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, MoreStreamsThanSlotsLoseNothing) {
  static fixture own;
  enum { STREAMS = 3 * LADEI_RETIRE_BUFFER_SLOTS, USES = 240 };
  lade_stream streams[STREAMS];
  fixture_open_laned(&own);
  for (int i = 0; i < STREAMS; i++) streams[i] = fake_stream_create(own.fake);
  for (int i = 0; i < USES; i++) {
    fake_work(own.fake, streams[i % STREAMS], 1);
    fixture_use(&own, i, streams[i % STREAMS]);
  }
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), USES);
  fixture_close(&own);
}

/* ---- Streams in turn: one use of each, hundreds of them ---------------------------------------------------------- */

enum { MANY = 400, ROUNDS = 3 };

static uint64_t asked(const fixture *own) { return fake_calls(own->fake, "stream_query"); }

/* One use of each stream, behind an item of work if `works`; blocks that are pending at their turn are waited for. */
static void turns_take(fixture *own, lade_stream *streams, int count, bool works) {
  for (int i = 0; i < count; i++) {
    int block = i % FIXTURE_BLOCKS;
    while (own->blocks[block].pending) {
      fake_run_all(own->fake);
      LADE_EXPECT(fixture_poll(own, CLOSE) > 0);
    }
    if (works) fake_work(own->fake, streams[i], 1);
    fixture_use(own, block, streams[i]);
  }
}

static void turns_open(fixture *own, lade_stream *streams, int count) {
  fixture_open_laned(own);
  for (int i = 0; i < count; i++) streams[i] = fake_stream_create(own->fake);
}

/* They were left open, one batch for each stream, until memory ran out. */
LADE_TEST(RetireBuffer, BlocksOfHundredsOfStreamsComeBackAsTheStreamsLeave) {
  static fixture own;
  lade_stream streams[MANY];
  turns_open(&own, streams, MANY);
  turns_take(&own, streams, MANY, false);
  for (int round = 0; round < ROUNDS; round++) {
    LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, NULL));
    uint64_t before = asked(&own);
    own.done_count = 0;
    for (int i = 0; i < FIXTURE_BLOCKS; i++) fixture_use(&own, i, streams[i]);
    LADE_EXPECT(own.done_count >= FIXTURE_BLOCKS - LADEI_RETIRE_BUFFER_SLOTS);
    LADE_EXPECT(asked(&own) - before <= FIXTURE_BLOCKS);
    turns_take(&own, streams, MANY, false);
  }
  LADE_EXPECT_EQ_UINT(records(&own), 0);
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, StreamsThatLeaveBusyAreSeldomAskedAndKeepTheirBlocks) {
  static fixture own;
  lade_stream streams[MANY];
  turns_open(&own, streams, MANY);
  turns_take(&own, streams, MANY, true);
  turns_take(&own, streams, MANY, true);
  fake_run_all(own.fake);
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, NULL));
  uint64_t before = asked(&own);
  own.done_count = 0;
  for (int i = 0; i < FIXTURE_BLOCKS; i++) fixture_work_and_use(&own, i, streams[i]);
  LADE_EXPECT_EQ_INT(own.done_count, 0);
  LADE_EXPECT(asked(&own) - before <= FIXTURE_BLOCKS / 4);
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), FIXTURE_BLOCKS);
  fixture_close(&own);
}

static int block_at_hand(const fixture *own) {
  int block = 0;
  while (block < FIXTURE_BLOCKS - 1 && own->blocks[block].pending) block++;
  return block;
}

LADE_TEST(RetireBuffer, WhatAStreamLeftPendingComesBackWithItsNextTurn) {
  static fixture own;
  enum { BUSY = 32 };
  lade_stream streams[MANY];
  turns_open(&own, streams, MANY);
  turns_take(&own, streams, MANY, false);
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, NULL));
  own.done_count = 0;
  for (int i = 0; i < BUSY; i++) fixture_work_and_use(&own, block_at_hand(&own), streams[i]);
  LADE_EXPECT_EQ_INT(own.done_count, 0);
  fake_run_all(own.fake);
  for (int i = BUSY; i < MANY + BUSY + LADEI_RETIRE_BUFFER_SLOTS; i++)
    fixture_use(&own, block_at_hand(&own), streams[i % MANY]);
  for (int i = 0; i < BUSY - LADEI_RETIRE_BUFFER_SLOTS; i++) LADE_EXPECT(fixture_is_done(&own, i));
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  fixture_close(&own);
}

/* Their uses come to share an event. */
LADE_TEST(RetireBuffer, DozensOfStreamsAreNotAskedAsTheyLeave) {
  static fixture own;
  enum { DOZENS = 48 };
  lade_stream streams[DOZENS];
  turns_open(&own, streams, DOZENS);
  for (int i = 0; i < FIXTURE_BLOCKS; i++) fixture_use(&own, i, streams[i % DOZENS]);
  LADE_EXPECT_EQ_UINT(asked(&own), 0);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), FIXTURE_BLOCKS);
  fixture_close(&own);
}

typedef struct meanwhile {
  fixture *own;
  int pending;
} meanwhile;

static void check_meanwhile(void *user) {
  meanwhile *seen = user;
  seen->pending = (int)fixture_counters(seen->own).pending_tickets; /* takes the batches out of the slots */
}

static void poll_meanwhile(void *user) {
  const meanwhile *seen = user;
  LADE_EXPECT_OK(ladei_retire_poll(seen->own->retire, CLOSE, NULL)); /* tells the batches, and leaves the slots */
}

/* What is asked about lies in the slot, for whoever needs to know of it. */
LADE_TEST(RetireBuffer, BatchesPublishedWhileTheirStreamIsAskedAreNotLost) {
  static fixture own;
  lade_stream streams[MANY];
  turns_open(&own, streams, MANY);
  turns_take(&own, streams, MANY, false);
  turns_take(&own, streams, MANY, false);
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, NULL));
  meanwhile seen = {.own = &own};
  own.done_count = 0;
  for (int i = 0; i < FIXTURE_BLOCKS; i++) {
    if (i % 8 == 0) fake_hook(own.fake, "stream_query", i % 16 == 0 ? check_meanwhile : poll_meanwhile, &seen);
    fixture_use(&own, i, streams[i]);
  }
  LADE_EXPECT(seen.pending > 0);
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_INT(own.done_count, FIXTURE_BLOCKS);
  fixture_close(&own);
}

/* The note of one stream succeeds whatever the question about others made of it. */
LADE_TEST(RetireBuffer, StreamsThatFailAsTheyLeaveAreAQuarantine) {
  static fixture own;
  lade_stream streams[MANY];
  turns_open(&own, streams, MANY);
  turns_take(&own, streams, MANY, false);
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, NULL));
  uint64_t before = fixture_counters(&own).quarantines;
  own.done_count = 0;
  fake_fail(own.fake, "stream_query", LADE_ERR_DRIVER, 0, 1);
  for (int i = 0; i < FIXTURE_BLOCKS; i++) fixture_use(&own, i, streams[i]);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantines, before + 1);
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  LADE_EXPECT_OK(ladei_retire_poll(own.retire, CLOSE, NULL));
  LADE_EXPECT_EQ_INT(own.done_count, FIXTURE_BLOCKS);
  fixture_close(&own);
}

/* A slot's credit is for 64 notes; more of them at once need more room. */
LADE_TEST(RetireBuffer, ManyNotesBeforeTheFirstAdd) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own), other = fake_stream_create(own.fake);
  for (int i = 0; i < FIXTURE_BLOCKS; i++) fixture_note(&own, i, stream);
  for (int i = 0; i < FIXTURE_BLOCKS; i += 2) fixture_note(&own, i, other); /* unfolds every other one */
  LADE_EXPECT_OK(ladei_retire_check(own.retire));
  for (int i = 0; i < FIXTURE_BLOCKS; i++) LADE_EXPECT(fixture_add(&own, i));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), FIXTURE_BLOCKS);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, StreamRetireReachesOpenBatchesAndNotes) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fixture_work_and_use(&own, 0, stream);
  fixture_note(&own, 1, stream);
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, stream));
  ladei_retire_ticket *fresh = &own.blocks[2].ticket;
  LADE_EXPECT_STATUS(LADE_ERR_STREAM_RETIRED, ladei_retire_buffer_note(own.retire, &own.buffer, fresh, stream));
  LADE_EXPECT(fixture_add(&own, 1));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_run_all(own.fake);
  fake_stream_forbid(own.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 2);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, AFailedRecordIsAQuarantineThatAPollEnds) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fake_work(own.fake, stream, 1);
  fake_fail(own.fake, "event_record", LADE_ERR_DRIVER, 0, 1);
  for (int i = 0; i < 16; i++) fixture_use(&own, i, stream);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 16);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 16);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, ACaptureIsNoCaseForABuffer) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fixture_note(&own, 0, stream);
  (void)fake_capture_begin(own.fake, stream);
  fixture_note(&own, 1, stream);
  LADE_EXPECT(fixture_add(&own, 1));
  ladei_graph graph = fake_capture_end(own.fake, stream);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 0);
  fake_graph_destroy(own.fake, graph);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  LADE_EXPECT(fixture_add(&own, 0));
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  fixture_close(&own);
}

LADE_TEST(RetireBuffer, ClosingABufferPublishesItsBatches) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fixture_work_and_use(&own, 0, stream);
  ladei_retire_buffer_close(own.retire, &own.buffer);
  uint64_t before = fake_calls(own.fake, NULL);
  LADE_EXPECT(ladei_retire_pending(own.retire));
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, NULL), before);
  fixture_use(&own, 1, stream); /* opens it again */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 2);
  fixture_close(&own);
}

/* ---- Two threads ------------------------------------------------------------------------------------------------- */

typedef struct other {
  fixture *own;
  lade_stream stream;
  pthread_barrier_t reached, go_on;
  ladei_retire_buffer buffer;
} other;

static void *other_uses_and_sleeps(void *argument) {
  other *they = argument;
  fixture_use(they->own, 0, they->stream);
  fixture_note(they->own, 1, they->stream);
  pthread_barrier_wait(&they->reached);
  pthread_barrier_wait(&they->go_on);
  return NULL;
}

static void other_start(other *they, fixture *own, pthread_t *out, void *(*run)(void *)) {
  they->own = own;
  they->stream = fake_stream_create(own->fake);
  fake_work(own->fake, they->stream, 1);
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

LADE_TEST(RetireBuffer, BuffersOfSleepingThreadsAreReached) {
  static fixture own;
  static other they;
  pthread_t thread;
  fixture_open_laned(&own);
  other_start(&they, &own, &thread, other_uses_and_sleeps);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 1);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).noted_uses, 1);
  LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, they.stream));
  other_end(&they, thread);
  own.buffered = false;
  LADE_EXPECT(!fixture_add(&own, 1)); /* the stream was done when it was retired */
  fixture_close(&own);
}

static void *other_notes(void *argument) {
  other *they = argument;
  for (int i = 0; i < 40; i++) fixture_note(they->own, i, they->stream);
  pthread_barrier_wait(&they->reached);
  pthread_barrier_wait(&they->go_on);
  return NULL;
}

LADE_TEST(RetireBuffer, NotedByOneThreadAddedByAnother) {
  static fixture own;
  static other they;
  pthread_t thread;
  fixture_open_laned(&own);
  other_start(&they, &own, &thread, other_notes);
  ladei_retire_buffer_init(&they.buffer);
  for (int i = 0; i < 40; i++) {
    own.blocks[i].pending = true;
    LADE_EXPECT(ladei_retire_buffer_add(own.retire, &they.buffer, &own.blocks[i].ticket) == LADEI_RETIRE_ADDED_PENDING);
  }
  LADE_EXPECT_EQ_UINT(records(&own), 2); /* 40 uses: two batches are full */
  ladei_retire_counters counters = fixture_counters(&own);
  LADE_EXPECT_EQ_UINT(counters.noted_uses, 0);
  LADE_EXPECT_EQ_UINT(counters.pending_uses, 40);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(fixture_poll(&own, CLOSE), 40);
  other_end(&they, thread);
  ladei_retire_buffer_close(own.retire, &they.buffer);
  fixture_close(&own);
}

/* ---- Streams in turn, with threads ------------------------------------------------------------------------------- */

enum { CROWD = 2, CROWD_BLOCKS = 16 };

typedef struct crowd_block {
  ladei_retire_ticket ticket;
  _Atomic(bool) pending;
} crowd_block;

typedef struct crowd {
  fixture *own;
  ladei_retire *retire;
  lade_stream streams[MANY];
  _Atomic(int) at_work;
} crowd;

static void crowd_done(void *owner, ladei_retire_ticket *list) {
  (void)owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;)
    atomic_store(&((crowd_block *)(void *)ticket)->pending, false);
}

static void crowd_use(crowd *all, ladei_retire_buffer *buffer, crowd_block *block, lade_stream stream) {
  while (atomic_load(&block->pending)) LADE_EXPECT_OK(ladei_retire_synchronize(all->retire));
  LADE_EXPECT_OK(ladei_retire_buffer_note(all->retire, buffer, &block->ticket, stream));
  atomic_store(&block->pending, true);
  LADE_EXPECT(ladei_retire_buffer_add(all->retire, buffer, &block->ticket) == LADEI_RETIRE_ADDED_PENDING);
}

static void *crowd_run(void *argument) {
  crowd *all = argument;
  static _Thread_local ladei_retire_buffer buffer;
  crowd_block blocks[CROWD_BLOCKS] = {{.pending = false}};
  ladei_retire_buffer_init(&buffer);
  for (int i = 0; i < 4 * MANY; i++) crowd_use(all, &buffer, &blocks[i % CROWD_BLOCKS], all->streams[i % MANY]);
  ladei_retire_buffer_close(all->retire, &buffer);
  for (int i = 0; i < CROWD_BLOCKS; i++)
    while (atomic_load(&blocks[i].pending)) LADE_EXPECT_OK(ladei_retire_synchronize(all->retire));
  atomic_fetch_sub(&all->at_work, 1);
  return NULL;
}

/* Others empty the buffers, wait for all, and close batches of the same streams while these are asked. */
LADE_TEST(RetireBuffer, ThreadsShareStreamsInTurn) {
  static fixture own;
  static crowd all;
  pthread_t threads[CROWD];
  ladei_retire_options options = {.owner = &all, .done = crowd_done};
  turns_open(&own, all.streams, MANY);
  all.own = &own;
  LADE_ASSERT_OK(ladei_retire_create(own.runtime, &options, &all.retire));
  atomic_store(&all.at_work, CROWD);
  for (int i = 0; i < CROWD; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, crowd_run, &all), 0);
  while (atomic_load(&all.at_work) > 0) {
    LADE_EXPECT_OK(ladei_retire_check(all.retire));
    LADE_EXPECT_OK(ladei_retire_poll(all.retire, CLOSE, NULL));
    sched_yield();
  }
  for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(ladei_retire_check(all.retire));
  LADE_EXPECT(!ladei_retire_pending(all.retire));
  LADE_EXPECT_OK(ladei_retire_destroy(all.retire, true));
  fixture_close(&own);
}

/* ---- A stream that was taken for destroyed ----------------------------------------------------------------------- */

/* Bug: a handle that was refused once, by a stream that lives, was left alone for good by threads that noted it by a
 * buffer: all that they freed from then on stayed pending. */
LADE_TEST(RetireBuffer, AStreamThatAnswersAgainIsLostNoLonger) {
  static fixture own;
  enum { BATCH = LADEI_EVENT_BATCH_DEFAULT };
  lade_stream stream = fixture_open_laned(&own);
  fake_work(own.fake, stream, 1);
  for (int i = 0; i < BATCH; i++) {
    if (i == BATCH - 1) fake_fail(own.fake, "stream_resolve", LADE_ERR_INVALID_ARGUMENT, 1, 1); /* when it is closed */
    fixture_use(&own, i, stream);
  }
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, BATCH);
  for (int i = BATCH; i < FIXTURE_BLOCKS; i++) fixture_use(&own, i, stream);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 0);
  fake_run_all(own.fake);
  fixture_poll(&own, LADEI_POLL_CLOSE);
  LADE_EXPECT_EQ_INT(own.done_count, FIXTURE_BLOCKS);
  fixture_close(&own);
}

/* The same where the buffer first takes a block that another thread noted. */
LADE_TEST(RetireBuffer, AddingToALostStreamDoesNotHideTheNextNote) {
  static fixture own;
  lade_stream stream = fixture_open_laned(&own);
  fake_work(own.fake, stream, 1);
  for (int i = 0; i < 3; i++) fixture_note(&own, i, stream);
  LADE_EXPECT(fixture_add(&own, 0));
  fake_fail(own.fake, "stream_resolve", LADE_ERR_INVALID_ARGUMENT, 0, 1);
  fixture_poll(&own, LADEI_POLL_CLOSE);
  LADE_EXPECT_EQ_UINT(fixture_counters(&own).quarantined_uses, 1);
  LADE_EXPECT(fixture_add(&own, 1));
  fixture_use(&own, 3, stream);
  LADE_EXPECT(fixture_add(&own, 2));
  fake_run_all(own.fake);
  fixture_poll(&own, LADEI_POLL_CLOSE);
  LADE_EXPECT_EQ_INT(own.done_count, 4);
  fixture_close(&own);
}

enum { RARE_STREAMS = 400, RARE_TICKETS = 1024, RARE_USES = 60000 };

typedef struct looked_at {
  ladei_retire *retire;
  ladei_retire_ticket tickets[RARE_TICKETS], *idle[RARE_TICKETS];
  unsigned idle_count;
  _Atomic(uint64_t) added, delivered;
  _Atomic(uint64_t) unseen; /* looks that found nothing while something was pending */
  _Atomic(bool) stop;
} looked_at;

static void looked_at_done(void *owner, ladei_retire_ticket *list) {
  looked_at *own = owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) {
    own->idle[own->idle_count++] = ticket;
    atomic_fetch_add(&own->delivered, 1);
  }
}

/* As a poll that closes batches looks, without the lock. */
static void *look_along(void *user) {
  looked_at *own = user;
  while (!atomic_load(&own->stop)) {
    uint64_t added = atomic_load(&own->added);
    bool nothing = atomic_load_explicit(&own->retire->slots_used, memory_order_acquire) == 0 &&
                   atomic_load_explicit(&own->retire->pending_tickets, memory_order_acquire) == 0;
    if (nothing && atomic_load(&own->delivered) < added) atomic_fetch_add(&own->unseen, 1);
  }
  return NULL;
}

/* What the streams of a buffer were found done with was in no slot, and not counted as pending, for some moments: a request for
 * memory was refused while it came back. */
LADE_TEST(RetireBuffer, WhatLeavesASlotIsPendingBefore) {
  static looked_at own;
  static ladei_retire_buffer buffer;
  static lade_stream streams[RARE_STREAMS];
  const ladei_retire_options options = {.owner = &own, .done = looked_at_done};
  lade_runtime *runtime;
  pthread_t thread;
  fake_driver *fake = fake_open(&runtime);
  LADE_ASSERT_OK(ladei_retire_create(runtime, &options, &own.retire));
  ladei_retire_buffer_init(&buffer);
  for (int i = 0; i < RARE_STREAMS; i++) streams[i] = fake_stream_create(fake);
  for (int i = 0; i < RARE_TICKETS; i++) own.idle[own.idle_count++] = &own.tickets[i];
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, look_along, &own), 0);
  for (uint64_t i = 0; i < RARE_USES; i++) {
    if (own.idle_count == 0) LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
    ladei_retire_ticket *ticket = own.idle[--own.idle_count];
    LADE_EXPECT_OK(ladei_retire_buffer_note(own.retire, &buffer, ticket, streams[i % RARE_STREAMS]));
    atomic_fetch_add(&own.added, 1);
    LADE_EXPECT(ladei_retire_buffer_add(own.retire, &buffer, ticket) == LADEI_RETIRE_ADDED_PENDING);
  }
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  atomic_store(&own.stop, true);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_UINT(atomic_load(&own.unseen), 0);
  LADE_EXPECT_EQ_UINT(atomic_load(&own.delivered), RARE_USES);
  ladei_retire_buffer_close(own.retire, &buffer);
  LADE_EXPECT_OK(ladei_retire_destroy(own.retire, true));
  fake_close(fake, runtime);
}
