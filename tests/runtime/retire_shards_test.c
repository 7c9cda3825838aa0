/* SPDX-License-Identifier: Apache-2.0 */
/* What retire_shards.h promises: several retire objects behave as one. Races between them: tests/stress/retire_schedule_test.c. */
#include "runtime/retire/retire_shards.h"

#include <string.h>

#include "base/error.h"
#include "tests/runtime/fake_driver.h"
#include "tests/shim/lade_test.h"

enum { SHARDS = 4, BLOCKS = 64 };

typedef struct shards_block {
  ladei_retire_ticket ticket;
  bool pending;
} shards_block;

/* Threads 0 to SHARDS - 1, each with a shard and a buffer of its own; the test plays all of them. */
typedef struct bench {
  fake_driver *fake;
  lade_runtime *runtime;
  ladei_retire_shards *shards;
  ladei_retire_buffer buffers[SHARDS];
  shards_block blocks[BLOCKS];
  int back; /* blocks given to done() */
} bench;

static void blocks_done(void *owner, ladei_retire_ticket *list) {
  bench *own = owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) {
    shards_block *block = (shards_block *)(void *)ticket; /* its first member */
    LADE_EXPECT(block->pending);
    block->pending = false;
    own->back++;
  }
}

static lade_stream bench_open(bench *own) {
  const ladei_retire_options options = {.owner = own, .done = blocks_done};
  memset(own, 0, sizeof *own);
  own->fake = fake_open(&own->runtime);
  LADE_EXPECT_OK(ladei_retire_shards_create(own->runtime, &options, SHARDS, &own->shards));
  for (int i = 0; i < SHARDS; i++) ladei_retire_buffer_init(&own->buffers[i]);
  return fake_stream_create(own->fake);
}

static ladei_retire *shard_of(const bench *own, int thread) {
  return ladei_retire_shard(own->shards, (uint32_t)thread);
}

static void bench_close(bench *own) {
  for (int i = 0; i < SHARDS; i++) ladei_retire_buffer_close(shard_of(own, i), &own->buffers[i]);
  LADE_EXPECT_OK(ladei_retire_shards_check(own->shards));
  LADE_EXPECT_OK(ladei_retire_shards_destroy(own->shards, true));
  fake_close(own->fake, own->runtime);
}

static lade_status note(bench *own, int thread, int block, lade_stream stream) {
  return ladei_retire_shards_note(own->shards, shard_of(own, thread), &own->buffers[thread], &own->blocks[block].ticket,
                                  stream, 0);
}

static bool add(bench *own, int thread, int block) {
  own->blocks[block].pending = true;
  own->blocks[block].pending = ladei_retire_shards_add(own->shards, shard_of(own, thread), &own->buffers[thread],
                                                       &own->blocks[block].ticket, false);
  return own->blocks[block].pending;
}

static void use(bench *own, int thread, int block, lade_stream stream) {
  fake_work(own->fake, stream, 1);
  LADE_EXPECT_OK(note(own, thread, block, stream));
  LADE_EXPECT(add(own, thread, block));
}

static ladei_retire_counters counters_of(ladei_retire *shard) {
  ladei_retire_counters counters;
  ladei_retire_counters_get(shard, &counters);
  return counters;
}

static uint64_t poll(bench *own, unsigned flags) {
  uint64_t done = 0;
  LADE_EXPECT_OK(ladei_retire_shards_poll(own->shards, flags, &done));
  return done;
}

LADE_TEST(RetireShards, ATicketStaysWhereItWasNotedFirst) {
  static bench own;
  lade_stream first = bench_open(&own), second = fake_stream_create(own.fake);
  fake_work(own.fake, first, 1);
  fake_work(own.fake, second, 1);
  LADE_EXPECT_OK(note(&own, 1, 0, first));
  LADE_EXPECT_OK(note(&own, 2, 0, second));
  LADE_EXPECT_OK(note(&own, 2, 0, first)); /* noted already */
  LADE_EXPECT_EQ_UINT(counters_of(shard_of(&own, 1)).noted_uses, 2);
  LADE_EXPECT_EQ_UINT(counters_of(shard_of(&own, 2)).noted_uses, 0);
  LADE_EXPECT(add(&own, 3, 0));
  LADE_EXPECT_EQ_UINT(counters_of(shard_of(&own, 1)).pending_tickets, 1);
  fake_run(own.fake, first, 1);
  LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 0);
  fake_run(own.fake, second, 1);
  LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 1);
  bench_close(&own);
}

LADE_TEST(RetireShards, AnIdleTicketGoesToTheNextOneWhoNotesIt) {
  static bench own;
  lade_stream stream = bench_open(&own);
  for (int thread = 0; thread < SHARDS; thread++) {
    use(&own, thread, 0, stream);
    LADE_EXPECT_EQ_UINT(counters_of(shard_of(&own, thread)).pending_tickets, 1);
    fake_run_all(own.fake);
    LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 1);
  }
  bench_close(&own);
}

LADE_TEST(RetireShards, ANoteIsTakenBackWhereverItIs) {
  static bench own;
  lade_stream stream = bench_open(&own);
  for (int thread = 0; thread < SHARDS; thread++) {
    LADE_EXPECT_OK(note(&own, thread, thread, stream));
    ladei_retire_shards_forget(own.shards, &own.blocks[thread].ticket);
    LADE_EXPECT(!ladei_retire_ticket_noted(&own.blocks[thread].ticket));
    LADE_EXPECT(!add(&own, 0, thread));
  }
  bench_close(&own);
}

LADE_TEST(RetireShards, EventsOfCallersAndNotesUntilNowGoToTheTicketsShard) {
  static bench own;
  lade_stream stream = bench_open(&own), other = fake_stream_create(own.fake);
  lade_event event = fake_event_create(own.fake);
  fake_work(own.fake, stream, 1);
  fake_work(own.fake, other, 1);
  fake_event_record(own.fake, event, other);
  LADE_EXPECT_OK(note(&own, 2, 0, stream));
  LADE_EXPECT_OK(ladei_retire_shards_note_event(own.shards, shard_of(&own, 0), &own.blocks[0].ticket, event));
  LADE_EXPECT_OK(ladei_retire_shards_note(own.shards, shard_of(&own, 1), &own.buffers[1], &own.blocks[0].ticket, other,
                                          LADEI_NOTE_NOW));
  LADE_EXPECT_EQ_UINT(counters_of(shard_of(&own, 2)).noted_uses, 3);
  LADE_EXPECT(add(&own, 0, 0));
  fake_run(own.fake, stream, 1);
  LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 0);
  fake_run(own.fake, other, 1);
  LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 1);
  fake_event_destroy(own.fake, event);
  bench_close(&own);
}

LADE_TEST(RetireShards, CountersAreSums) {
  static bench own;
  lade_stream stream = bench_open(&own);
  for (int i = 0; i < BLOCKS; i++) use(&own, i % SHARDS, i, stream);
  ladei_retire_counters counters;
  ladei_retire_shards_counters_get(own.shards, &counters);
  LADE_EXPECT_EQ_UINT(counters.pending_tickets, BLOCKS);
  LADE_EXPECT_EQ_UINT(counters.events_recorded, SHARDS); /* 16 uses each share one */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(poll(&own, 0), BLOCKS);
  LADE_EXPECT_EQ_INT(own.back, BLOCKS);
  bench_close(&own);
}

/* Its own streams only; all where it has none: a thread that allocates what others free. */
LADE_TEST(RetireShards, AThreadWithoutStreamsFindsWhatOthersFreed) {
  static bench own;
  lade_stream stream = bench_open(&own);
  for (int i = 0; i < 16; i++) use(&own, 1, i, stream);
  fake_run_all(own.fake);
  uint64_t done = 0;
  LADE_EXPECT(ladei_retire_shards_pending(own.shards, shard_of(&own, 2)));
  LADE_EXPECT_OK(ladei_retire_shards_buffer_poll(own.shards, shard_of(&own, 2), &own.buffers[2], &done));
  LADE_EXPECT_EQ_UINT(done, 16);
  LADE_EXPECT(!ladei_retire_shards_pending(own.shards, shard_of(&own, 2)));
  for (int i = 0; i < 32; i++) use(&own, i < 16 ? 1 : 2, i, stream);
  fake_run_all(own.fake);
  LADE_EXPECT_OK(ladei_retire_shards_buffer_poll(own.shards, shard_of(&own, 2), &own.buffers[2], &done));
  LADE_EXPECT_EQ_UINT(done, 16);
  LADE_EXPECT(own.blocks[0].pending);
  LADE_EXPECT_OK(ladei_retire_shards_buffer_poll(own.shards, shard_of(&own, 2), &own.buffers[2], &done));
  LADE_EXPECT_EQ_UINT(done, 0); /* also where nothing of its own is pending */
  LADE_EXPECT_EQ_UINT(poll(&own, 0), 16);
  bench_close(&own);
}

LADE_TEST(RetireShards, ARetiredStreamIsRefusedInAllOfThem) {
  static bench own;
  lade_stream stream = bench_open(&own);
  use(&own, 0, 0, stream);
  use(&own, 3, 1, stream);
  LADE_EXPECT_OK(note(&own, 2, 2, stream));
  LADE_EXPECT_OK(ladei_retire_shards_stream_retire(own.shards, stream));
  LADE_EXPECT_OK(ladei_retire_shards_stream_retire(own.shards, stream)); /* again */
  for (int thread = 0; thread < SHARDS; thread++)
    LADE_EXPECT_STATUS(LADE_ERR_STREAM_RETIRED, note(&own, thread, 3, stream));
  LADE_EXPECT(add(&own, 0, 2));
  uint64_t resolved = fake_calls(own.fake, "stream_query");
  LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 0);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "stream_query"), resolved); /* no call on its handle */
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(poll(&own, 0), 3);
  bench_close(&own);
}

/* Each shard has a stream that fails, and the others go on; the first failure is told. */
LADE_TEST(RetireShards, AFailureInOneLeavesTheOthers) {
  static bench own;
  lade_stream streams[SHARDS] = {bench_open(&own)};
  for (int i = 1; i < SHARDS; i++) streams[i] = fake_stream_create(own.fake);
  for (int i = 0; i < BLOCKS; i++) use(&own, i % SHARDS, i, streams[i % SHARDS]);
  fake_run_all(own.fake);
  uint64_t done = 0;
  fake_fail(own.fake, "event_query", LADE_ERR_DRIVER, 1, 1); /* that of shard 1 */
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_retire_shards_poll(own.shards, 0, &done));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_last_error()->status);
  LADE_EXPECT_EQ_UINT(done, BLOCKS - BLOCKS / SHARDS);
  ladei_retire_counters counters;
  ladei_retire_shards_counters_get(own.shards, &counters);
  LADE_EXPECT_EQ_UINT(counters.quarantined_uses, BLOCKS / SHARDS);
  LADE_EXPECT_OK(ladei_retire_shards_end_quarantine(own.shards));
  LADE_EXPECT_EQ_INT(own.back, BLOCKS);
  bench_close(&own);
}

static void fail_first(void *user);

static void fail_second(void *user) { fake_fail(((bench *)user)->fake, "event_query", LADE_ERR_DEVICE_LOST, 0, 1); }

static void fail_first(void *user) {
  fake_fail(((bench *)user)->fake, "event_query", LADE_ERR_DRIVER, 0, 1);
  fake_hook(((bench *)user)->fake, "event_query", fail_second, user);
}

/* The status was that of the first, the last error that of the second. */
LADE_TEST(RetireShards, FailuresInTheOwnOneAndAnotherAreToldAsTheFirst) {
  static bench own;
  lade_stream streams[2] = {bench_open(&own), fake_stream_create(own.fake)};
  for (int i = 0; i < 32; i++) { /* without buffers: the thread polls all shards */
    fake_work(own.fake, streams[i % 2], 1);
    ladei_retire_ticket *ticket = &own.blocks[i].ticket;
    LADE_EXPECT_OK(ladei_retire_shards_note(own.shards, shard_of(&own, i % 2), NULL, ticket, streams[i % 2], 0));
    own.blocks[i].pending = ladei_retire_shards_add(own.shards, shard_of(&own, i % 2), NULL, ticket, false);
  }
  fake_run_all(own.fake);
  uint64_t done = 0;
  fake_hook(own.fake, "event_query", fail_first, &own);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER,
                     ladei_retire_shards_buffer_poll(own.shards, shard_of(&own, 0), &own.buffers[0], &done));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_last_error()->status);
  LADE_EXPECT_EQ_UINT(fake_calls(own.fake, "event_query"), 3); /* of the own one in both polls */
  LADE_EXPECT_OK(ladei_retire_shards_end_quarantine(own.shards));
  poll(&own, 0);
  LADE_EXPECT_EQ_INT(own.back, 32);
  bench_close(&own);
}

LADE_TEST(RetireShards, SynchronizeWaitsForAll) {
  static bench own;
  lade_stream stream = bench_open(&own);
  for (int thread = 0; thread < SHARDS; thread++) use(&own, thread, thread, stream);
  LADE_EXPECT_OK(ladei_retire_shards_synchronize(own.shards));
  LADE_EXPECT_EQ_INT(own.back, SHARDS);
  bench_close(&own);
}

/* None is destroyed where one holds something. */
LADE_TEST(RetireShards, DestroyRefusesForAllOfThem) {
  static bench own;
  lade_stream stream = bench_open(&own);
  use(&own, 1, 0, stream);
  use(&own, 3, 1, stream);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_shards_destroy(own.shards, false));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "2 freed blocks");
  use(&own, 0, 2, stream);
  fake_run_all(own.fake);
  LADE_EXPECT_EQ_UINT(poll(&own, LADEI_POLL_CLOSE), 3);
  bench_close(&own);
}

LADE_TEST(RetireShards, OneIsEnoughOnAVirtualClockAndWithAnEventForEachFree) {
  static bench own;
  bench_open(&own);
  const ladei_retire_options batches = {.event_batch = 16}, each = {.event_batch = 1};
  LADE_EXPECT(ladei_retire_shards_allowed(own.runtime, &batches));
  LADE_EXPECT(!ladei_retire_shards_allowed(own.runtime, &each));
  lade_runtime_ops ops = *own.runtime->ops;
  lade_runtime virtual_clock = *own.runtime;
  ops.step = (lade_status(*)(void *))ops.close;
  virtual_clock.ops = &ops;
  LADE_EXPECT(!ladei_retire_shards_allowed(&virtual_clock, &batches));
  bench_close(&own);
}

LADE_TEST(RetireShards, AreAPowerOfTwoForTheProcessors) {
  LADE_EXPECT_EQ_UINT(ladei_retire_shards_useful(1), 1);
  for (unsigned processors = 1; processors <= 4096; processors++) {
    uint32_t useful = ladei_retire_shards_useful(processors);
    LADE_EXPECT(useful >= 1 && useful <= LADEI_RETIRE_SHARDS_MOST && (useful & (useful - 1)) == 0);
    LADE_EXPECT(useful >= processors || useful == ladei_retire_shards_useful(4096));
  }
}
