/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads in runtime/retire, on "sim": every pair of its operations, each also with
 * itself, in one shard and in two.
 *
 * Work is a host function that counts how much of a stream is done. The model knows, of each block, how much of each
 * stream must be done before the block may come back: what was queued when a NOW note began; of a stream noted until
 * the free, what was queued when the free began. A block that comes back earlier, never or twice, an event or a use that
 * is left over, a count that is wrong: each fails the test with the schedule that led there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/soft.h"
#include "runtime/retire/retire_shards.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/model_stream.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum {
  THREADS = 3,
  STREAMS = 3, /* the last one is for captures: no work is queued on it but in a graph */
  CAPTURING = STREAMS - 1,
  PER_THREAD = 4,
};

/* Blocks of all threads. */
enum {
  SHARED,       /* in use */
  COVERED,      /* freed behind work on stream 0, covered by an event */
  COVERED_NOW,  /* the same, noted NOW */
  UNCOVERED,    /* freed behind that work, in an open batch */
  DONE_UNKNOWN, /* freed, covered by an event on stream 1, which is done though nobody has asked */
  FOREIGN,      /* freed, waits for an event of the caller's on stream 0 */
  CAPTURED,     /* freed, used in a graph */
  SHARED_BLOCKS,
  BLOCKS = SHARED_BLOCKS + THREADS * PER_THREAD,
};

/* A thread's own blocks. */
enum {
  FRESH,    /* in use, nothing noted */
  NOTED,    /* noted on stream 0 before, not by a buffer */
  BUFFERED, /* noted on stream 0 before, by the thread's buffer */
  BEHIND,   /* freed before, behind work on stream 0 */
};

typedef enum block_state { IN_USE, FREED, BACK } block_state;

typedef struct model_block {
  ladei_retire_ticket ticket;
  block_state state;
  bool adding;            /* the free is under way */
  bool noted[STREAMS];    /* until the free */
  uint64_t must[STREAMS]; /* items that must be done */
  bool graph;             /* a graph that uses it is alive */
  bool graph_going;       /* ... is being destroyed */
} model_block;

typedef struct bench bench;

typedef struct operation {
  const char *name;
  void (*run)(bench *own, int thread);
} operation;

struct bench {
  lade_runtime *runtime;
  uint32_t shards; /* so many */
  ladei_retire_shards *retire;
  ladei_retire_buffer buffers[THREADS];
  model_stream streams[STREAMS];
  model_block blocks[BLOCKS];
  lade_event events[THREADS + 1];  /* for note_event; the last one is that of FOREIGN */
  ladei_graph graphs[THREADS + 1]; /* of `capture`; the last one is that of CAPTURED */
  const operation *operations[THREADS];
};

static model_block *block_of(bench *own, int thread, int which) {
  return &own->blocks[SHARED_BLOCKS + thread * PER_THREAD + which];
}

static const lade_runtime_ops *driver(const bench *own) { return own->runtime->ops; }

/* The shard of a thread, and of the one that prepares and judges. */
static ladei_retire *shard_of(const bench *own, int thread) {
  return ladei_retire_shard(own->retire, (uint32_t)thread);
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void work(bench *own, int s) { model_stream_work(own->runtime, &own->streams[s]); }

static void must_at_least(model_block *block, int s, uint64_t items) {
  if (block->must[s] < items) block->must[s] = items;
}

static void done(void *owner, ladei_retire_ticket *list) {
  bench *own = owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) {
    model_block *block = (model_block *)(void *)((char *)ticket - offsetof(model_block, ticket));
    if (block->state != FREED) LADE_FAIL("block %d came back in state %d", (int)(block - own->blocks), block->state);
    if (block->graph) LADE_FAIL("block %d came back while a graph that uses it is alive", (int)(block - own->blocks));
    for (int s = 0; s < STREAMS; s++) {
      if (own->streams[s].done >= block->must[s]) continue;
      LADE_FAIL("block %d came back early: %" PRIu64 " of the %" PRIu64 " items of stream %d that use it are done",
                (int)(block - own->blocks), own->streams[s].done, block->must[s], s);
    }
    block->state = BACK;
  }
}

/* Of a note that returned `status`, for which `queued` items had been queued when it began. */
static void model_note(bench *own, model_block *block, int s, lade_status status, uint64_t queued, bool now) {
  if (status == LADE_ERR_STREAM_RETIRED && own->streams[s].retired) return; /* refused: the program knows */
  if (status != LADE_OK) {
    LADE_FAIL("a note ended with %s: %s", lade_status_name(status), lade_last_error()->text);
  } else if (now) {
    must_at_least(block, s, queued);
  } else {
    block->noted[s] = true;
    must_at_least(block, s, queued);
  }
}

/* Before the free. Work queued on a stream behind the call of stream_retire is the program's mistake. */
static void model_free(bench *own, model_block *block) {
  for (int s = 0; s < STREAMS; s++)
    if (block->noted[s] && !own->streams[s].retired) must_at_least(block, s, own->streams[s].queued);
  block->state = FREED;
  block->adding = true;
}

static void note(bench *own, int thread, model_block *block, int s, unsigned flags) {
  uint64_t queued = own->streams[s].queued;
  lade_status status =
      ladei_retire_shards_note(own->retire, shard_of(own, thread), NULL, &block->ticket, own->streams[s].handle, flags);
  model_note(own, block, s, status, queued, (flags & LADEI_NOTE_NOW) != 0);
}

static void buffer_note(bench *own, int thread, model_block *block, int s) {
  uint64_t queued = own->streams[s].queued;
  lade_status status = ladei_retire_shards_note(own->retire, shard_of(own, thread), &own->buffers[thread],
                                                &block->ticket, own->streams[s].handle, 0);
  model_note(own, block, s, status, queued, false);
}

/* An idle ticket: its block is its owner's again. */
static void not_pending(bench *own, model_block *block) {
  ladei_retire_ticket *list = &block->ticket;
  list->next = NULL;
  done(own, list);
}

static void add(bench *own, int thread, model_block *block) {
  model_free(own, block);
  if (!ladei_retire_shards_add(own->retire, shard_of(own, thread), NULL, &block->ticket, false))
    not_pending(own, block);
  block->adding = false;
}

static void buffer_add(bench *own, int thread, model_block *block) {
  model_free(own, block);
  if (!ladei_retire_shards_add(own->retire, shard_of(own, thread), &own->buffers[thread], &block->ticket, false))
    not_pending(own, block);
  block->adding = false;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void op_note(bench *own, int thread) {
  work(own, 0);
  note(own, thread, &own->blocks[SHARED], 0, 0);
}

static void op_note_now(bench *own, int thread) {
  work(own, 0);
  note(own, thread, &own->blocks[SHARED], 0, LADEI_NOTE_NOW);
}

static void op_buffer_note(bench *own, int thread) {
  work(own, 0);
  buffer_note(own, thread, &own->blocks[SHARED], 0);
}

static void op_note_other(bench *own, int thread) {
  work(own, 1);
  note(own, thread, &own->blocks[SHARED], 1, 0);
}

static void op_note_event(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  work(own, 1);
  LADE_EXPECT_OK(driver(own)->event_record(own->runtime->self, own->events[thread], &own->streams[1].resolved));
  must_at_least(block, 1, own->streams[1].queued);
  LADE_EXPECT_OK(
      ladei_retire_shards_note_event(own->retire, shard_of(own, thread), &block->ticket, own->events[thread]));
  add(own, thread, block);
}

static void op_use(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  work(own, 0);
  note(own, thread, block, 0, 0);
  add(own, thread, block);
}

static void op_buffer_use(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  work(own, 0);
  buffer_note(own, thread, block, 0);
  buffer_add(own, thread, block);
}

static void op_use_now(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  work(own, 0);
  note(own, thread, block, 0, LADEI_NOTE_NOW);
  add(own, thread, block);
}

/* One thread captures; another one that comes meanwhile goes away. */
static void capture(bench *own, int thread, model_block *block, ladei_graph *out) {
  const lade_runtime_ops *ops = driver(own);
  const ladei_stream *stream = &own->streams[CAPTURING].resolved;
  if (ops->capture_begin(own->runtime->self, stream, LADEI_CAPTURE_RELAXED) != LADE_OK) return;
  block->graph = true;
  LADE_EXPECT_OK(ladei_retire_shards_note(own->retire, shard_of(own, thread), NULL, &block->ticket,
                                          own->streams[CAPTURING].handle, 0));
  LADE_EXPECT_OK(ops->capture_end(own->runtime->self, stream, out));
  add(own, thread, block);
}

static void graph_destroy(bench *own, model_block *block, ladei_graph *graph) {
  if (*graph == NULL) return;
  block->graph = false;
  block->graph_going = true;
  LADE_EXPECT_OK(driver(own)->graph_destroy(own->runtime->self, *graph));
  block->graph_going = false;
  *graph = NULL;
}

static void op_capture(bench *own, int thread) {
  capture(own, thread, block_of(own, thread, FRESH), &own->graphs[thread]);
}

static void op_graph_destroy(bench *own, int thread) {
  (void)thread;
  ladei_graph graph = own->graphs[THREADS];
  own->graphs[THREADS] = NULL;
  graph_destroy(own, &own->blocks[CAPTURED], &graph);
}

/* Whether the stream captures or not: the block comes back in the end. */
static void op_note_capturing(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  lade_status status = ladei_retire_shards_note(own->retire, shard_of(own, thread), &own->buffers[thread],
                                                &block->ticket, own->streams[CAPTURING].handle, 0);
  if (status != LADE_OK && status != LADE_ERR_CAPTURE) LADE_FAIL("a note ended with %s", lade_status_name(status));
  buffer_add(own, thread, block);
}

static void op_add(bench *own, int thread) { add(own, thread, block_of(own, thread, NOTED)); }

static void op_buffer_add(bench *own, int thread) { buffer_add(own, thread, block_of(own, thread, BUFFERED)); }

static void op_forget(bench *own, int thread) {
  model_block *block = block_of(own, thread, NOTED);
  ladei_retire_shards_forget(own->retire, &block->ticket);
  memset(block->noted, 0, sizeof block->noted);
  memset(block->must, 0, sizeof block->must);
}

static void op_forget_marked(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  work(own, 1);
  note(own, thread, block, 0, LADEI_NOTE_PLAIN | LADEI_NOTE_MARK);
  note(own, thread, block, 1, LADEI_NOTE_NOW | LADEI_NOTE_PLAIN);
  ladei_retire_forget_marked(shard_of(own, thread), &block->ticket);
  block->noted[0] = false;
  block->must[0] = 0;
  add(own, thread, block);
}

static void op_poll(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(ladei_retire_shards_poll(own->retire, 0, NULL));
}

static void op_poll_close(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(ladei_retire_shards_poll(own->retire, LADEI_POLL_CLOSE, NULL));
}

static void op_buffer_poll(bench *own, int thread) {
  uint64_t found;
  LADE_EXPECT_OK(ladei_retire_shards_buffer_poll(own->retire, shard_of(own, thread), &own->buffers[thread], &found));
}

static void op_close(bench *own, int thread) { LADE_EXPECT_OK(ladei_retire_close(shard_of(own, thread))); }

/* What was freed before is back, also where another thread found it done. */
static void op_synchronize(bench *own, int thread) {
  bool due[BLOCKS], graph = false;
  (void)thread;
  for (int i = 0; i < BLOCKS; i++) {
    const model_block *block = &own->blocks[i];
    bool freed = block->state == FREED && !block->adding;
    due[i] = freed && !block->graph && !block->graph_going;
    graph = graph || block->graph || block->graph_going;
  }
  lade_status status = ladei_retire_shards_synchronize(own->retire);
  for (int i = 0; i < BLOCKS; i++) {
    graph = graph || own->blocks[i].graph;
    if (due[i] && own->blocks[i].state != BACK) LADE_FAIL("block %d is not back after synchronize", i);
  }
  if (status != LADE_OK && !(graph && status == LADE_NOT_READY)) LADE_FAIL("synchronize: %s", lade_status_name(status));
}

static void op_end_quarantine(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(ladei_retire_shards_end_quarantine(own->retire));
}

static void op_stream_retire(bench *own, int thread) {
  (void)thread;
  own->streams[0].retired = true;
  LADE_EXPECT_OK(ladei_retire_shards_stream_retire(own->retire, own->streams[0].handle));
}

static void op_counters(bench *own, int thread) {
  ladei_retire_counters counters;
  (void)thread;
  ladei_retire_shards_counters_get(own->retire, &counters);
}

static void op_buffer_close(bench *own, int thread) {
  ladei_retire_buffer_close(shard_of(own, thread), &own->buffers[thread]);
}

/* The device goes on. */
static void op_step(bench *own, int thread) {
  (void)thread;
  for (int i = 0; i < 2; i++) (void)driver(own)->step(own->runtime->self);
}

#define OPERATIONS_LIST(X)                                                                                             \
  X("note", op_note)                                                                                                   \
  X("note_now", op_note_now)                                                                                           \
  X("note_by_buffer", op_buffer_note)                                                                                  \
  X("note_another_stream", op_note_other)                                                                              \
  X("note_an_event_and_add", op_note_event)                                                                            \
  X("note_and_add", op_use)                                                                                            \
  X("note_and_add_by_buffer", op_buffer_use)                                                                           \
  X("note_now_and_add", op_use_now)                                                                                    \
  X("capture", op_capture)                                                                                             \
  X("graph_destroy", op_graph_destroy)                                                                                 \
  X("note_capturing", op_note_capturing)                                                                               \
  X("forget_marked", op_forget_marked)                                                                                 \
  X("add", op_add)                                                                                                     \
  X("add_by_buffer", op_buffer_add)                                                                                    \
  X("forget", op_forget)                                                                                               \
  X("poll", op_poll)                                                                                                   \
  X("poll_and_close", op_poll_close)                                                                                   \
  X("poll_by_buffer", op_buffer_poll)                                                                                  \
  X("close", op_close)                                                                                                 \
  X("synchronize", op_synchronize)                                                                                     \
  X("end_quarantine", op_end_quarantine)                                                                               \
  X("stream_retire", op_stream_retire)                                                                                 \
  X("counters", op_counters)                                                                                           \
  X("close_the_buffer", op_buffer_close)                                                                               \
  X("step", op_step)

static const operation operations[] = {
#define OPERATION_ENTRY(name, function) {name, function},
    OPERATIONS_LIST(OPERATION_ENTRY)
#undef OPERATION_ENTRY
};

/* ---- A schedule -------------------------------------------------------------------------------------------------- */

/* Before: work on stream 0, and blocks of each thread behind it, noted and freed in each way. */
static void prepare(void *user) {
  bench *own = user;
  const ladei_retire_options options = {.owner = own, .done = done, .event_batch = 3};
  memset(own->blocks, 0, sizeof own->blocks);
  model_streams_reset(own->streams, STREAMS);
  LADE_EXPECT_OK(ladei_retire_shards_create(own->runtime, &options, own->shards, &own->retire));
  for (int t = 0; t < THREADS; t++) ladei_retire_buffer_init(&own->buffers[t]);
  work(own, 0);
  note(own, 0, &own->blocks[COVERED], 0, 0);
  note(own, 0, &own->blocks[COVERED_NOW], 0, LADEI_NOTE_NOW);
  note(own, 0, &own->blocks[UNCOVERED], 0, 0);
  work(own, 1);
  note(own, 0, &own->blocks[DONE_UNKNOWN], 1, 0);
  add(own, 0, &own->blocks[COVERED]);
  add(own, 0, &own->blocks[COVERED_NOW]);
  add(own, 0, &own->blocks[DONE_UNKNOWN]);
  LADE_EXPECT_OK(ladei_retire_close(shard_of(own, 0)));
  LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, own->streams[1].handle));
  work(own, 0);
  add(own, 0, &own->blocks[UNCOVERED]);
  LADE_EXPECT_OK(driver(own)->event_record(own->runtime->self, own->events[THREADS], &own->streams[0].resolved));
  must_at_least(&own->blocks[FOREIGN], 0, own->streams[0].queued);
  LADE_EXPECT_OK(ladei_retire_shards_note_event(own->retire, shard_of(own, 0), &own->blocks[FOREIGN].ticket,
                                                own->events[THREADS]));
  add(own, 0, &own->blocks[FOREIGN]);
  capture(own, 0, &own->blocks[CAPTURED], &own->graphs[THREADS]);
}

static void warm(void *user, int thread) {
  bench *own = user;
  note(own, thread, block_of(own, thread, NOTED), 0, 0);
  buffer_note(own, thread, block_of(own, thread, BUFFERED), 0);
  buffer_note(own, thread, block_of(own, thread, BEHIND), 0);
  buffer_add(own, thread, block_of(own, thread, BEHIND));
}

static void body(void *user, int thread) {
  bench *own = user;
  own->operations[thread]->run(own, thread);
}

/* After: a retired stream is destroyed, everything is freed; the device goes on item by item, and nothing comes back before it may. */
static void judge(void *user) {
  bench *own = user;
  ladei_retire_counters counters;
  LADE_EXPECT_OK(ladei_retire_shards_check(own->retire));
  if (own->streams[0].retired) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[0].handle));
  for (int i = 0; i < BLOCKS; i++)
    if (own->blocks[i].state == IN_USE) add(own, 0, &own->blocks[i]);
  for (int t = 0; t <= THREADS; t++)
    graph_destroy(own, t == THREADS ? &own->blocks[CAPTURED] : block_of(own, t, FRESH), &own->graphs[t]);
  do {
    LADE_EXPECT_OK(ladei_retire_shards_poll(own->retire, LADEI_POLL_CLOSE, NULL));
  } while (driver(own)->step(own->runtime->self) == LADE_OK);
  LADE_EXPECT_OK(ladei_retire_shards_poll(own->retire, LADEI_POLL_CLOSE, NULL));
  for (int i = 0; i < BLOCKS; i++)
    if (own->blocks[i].state != BACK) LADE_FAIL("block %d is lost", i);
  ladei_retire_shards_counters_get(own->retire, &counters);
  LADE_EXPECT_OK(ladei_retire_shards_check(own->retire));
  LADE_EXPECT_EQ_UINT(counters.pending_tickets, 0);
  LADE_EXPECT_EQ_UINT(counters.pending_uses, 0);
  LADE_EXPECT_EQ_UINT(counters.noted_uses, 0);
  LADE_EXPECT_EQ_UINT(counters.quarantines, 0);
  int64_t own_events = THREADS + 1;
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_EVENTS), own_events + (int64_t)counters.events_created);
  LADE_EXPECT_OK(ladei_retire_shards_destroy(own->retire, false));
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_EVENTS), own_events);
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(own->runtime, &report));
  LADE_EXPECT_EQ_UINT(report.stale_handles, 0);
  if (own->streams[0].retired) model_stream_open(own->runtime, &own->streams[0]);
}

static bool bench_open(bench *own, uint32_t shards) {
  memset(own, 0, sizeof *own);
  own->shards = shards;
  own->runtime = support_interposer_open("sim", NULL);
  if (own->runtime == NULL) return false;
  for (int s = 0; s < STREAMS; s++) model_stream_open(own->runtime, &own->streams[s]);
  for (int t = 0; t <= THREADS; t++)
    LADE_EXPECT_OK(driver(own)->event_create(own->runtime->self, own->streams[0].resolved.context, 0, &own->events[t]));
  model_calls_switch(own->runtime, true);
  return true;
}

static void bench_close(bench *own) {
  model_calls_switch(own->runtime, false);
  for (int t = 0; t <= THREADS; t++) LADE_EXPECT_OK(driver(own)->event_destroy(own->runtime->self, own->events[t]));
  for (int s = 0; s < STREAMS; s++) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[s].handle));
  support_expect_nothing_live(own->runtime);
  support_runtime_close(own->runtime);
}

static void choose(void *user, int thread, int number) {
  bench *own = user;
  own->operations[thread] = &operations[number];
}

/* For LADE_TEST_P. */
static const char *const names[] = {
#define OPERATION_NAME(name, function) name,
    OPERATIONS_LIST(OPERATION_NAME) NULL
#undef OPERATION_NAME
};

static scheduler_plan plan_of(int threads, int preemptions) {
  return (scheduler_plan){.threads = threads,
                          .preemptions = preemptions,
                          .prepare = prepare,
                          .warm = warm,
                          .body = body,
                          .judge = judge,
                          .names = names,
                          .choose = choose};
}

/* The named operation with itself and all behind it in the list. */
static void pairs_explore(const char *name, uint32_t shards) {
  bench own;
  if (!bench_open(&own, shards)) return;
  const scheduler_plan plan = plan_of(2, scheduler_preemptions(2));
  scheduler_explore_pairs(&plan, &own, name);
  bench_close(&own);
}

LADE_TEST_P(RetireSchedule, Pairs, names, name) {
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  pairs_explore(name, 1);
}

/* Each thread in a shard of its own. */
LADE_TEST_P(RetireSchedule, PairsInTwoShards, names, name) {
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  pairs_explore(name, 2);
}

/* Every three of those that meet most often: one switch besides those at the ends, or two where there is time. */
LADE_TEST(RetireSchedule, Triples) {
  static const char *const often[] = {"note_now",       "note_by_buffer", "note_and_add", "note_and_add_by_buffer",
                                      "poll_by_buffer", "poll_and_close", "synchronize",  "stream_retire"};
  enum { OFTEN = sizeof often / sizeof often[0] };
  bench own;
  uint64_t count = 0;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!bench_open(&own, 1)) return;
  const scheduler_plan plan = plan_of(3, scheduler_preemptions(1));
  for (int a = 0; a < OFTEN; a++) {
    for (int b = a; b < OFTEN; b++) {
      for (int c = b; c < OFTEN && !lade_test_has_failed(); c++) {
        const int three[] = {scheduler_place_of(names, often[a]), scheduler_place_of(names, often[b]),
                             scheduler_place_of(names, often[c])};
        count += scheduler_explore_operations(&plan, &own, three);
      }
    }
  }
  printf("threes of %d operations: %" PRIu64 " schedules of up to %d switches\n", (int)OFTEN, count, plan.preemptions);
  bench_close(&own);
}
