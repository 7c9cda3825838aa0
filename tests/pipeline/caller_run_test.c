/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that do the work of short transfers themselves: which thread queues the copies, ends that no call asks for, blocks that
 * go back, failures that are the transfer's and not the call's, and calls beside each other, beside bulk, cancel and destroy.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/soft.h"
#include "pipeline/state/state.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { SHORT = 4096, LONGEST = 1 << 20, MANY = 300, SUBMITTERS = 4, AHEAD = 8 };

/* --- who copies --------------------------------------------------------------------------------------------------- */

static lade_runtime_ops noting_ops;
static const lade_runtime_ops *true_ops;
static _Thread_local bool is_caller;
static atomic_uint by_calls, by_threads;
static atomic_bool calls_are_kept; /* in a copy, until threads have queued one */

static lade_status noting_copy(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                               const ladei_stream *stream) {
  atomic_fetch_add(is_caller ? &by_calls : &by_threads, 1);
  for (int i = 0; is_caller && calls_are_kept && by_threads == 0 && i < 10000; i++) usleep(1000);
  return true_ops->copy(self, direction, dst, src, bytes, stream);
}

static atomic_bool only_calls_see;

static lade_status noting_event_query(void *self, lade_event event) {
  return only_calls_see && !is_caller ? LADE_NOT_READY : true_ops->event_query(self, event);
}

typedef struct scene {
  fixture f;
  char *host;   /* LONGEST bytes, */
  char *pinned; /* ... and as many */
} scene;

static bool scene_open(scene *s) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = 64 << 10;
  options.depth = 32;
  *s = (scene){.host = NULL};
  if (!fixture_open(&s->f, "cpu", LONGEST, &options)) return false;
  s->host = malloc(LONGEST);
  if (lade_pinned_alloc(s->f.pool, LONGEST, (void **)&s->pinned) != LADE_OK || s->host == NULL) return false;
  support_pattern_fill(s->host, LONGEST, 1, 0);
  support_pattern_fill(s->pinned, LONGEST, 1, 0);
  true_ops = s->f.runtime->ops;
  noting_ops = *true_ops;
  noting_ops.copy = noting_copy;
  noting_ops.event_query = noting_event_query;
  ladei_lock_acquire(&s->f.pipeline->lock);
  s->f.runtime->ops = &noting_ops; /* to its end: threads of the pipeline read it */
  ladei_lock_release(&s->f.pipeline->lock);
  is_caller = true;
  by_calls = by_threads = 0;
  return true;
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(lade_pinned_free(s->f.pool, s->pinned));
  free(s->host);
  fixture_close(&s->f);
}

static unsigned one_by_one(scene *s, lade_direction direction, char *memory, size_t bytes) {
  lade_transfer transfer = fixture_transfer(&s->f, direction, lade_endpoint_memory(memory), bytes);
  unsigned in_submits = 0;
  for (unsigned i = 0; i < MANY && !lade_test_has_failed(); i++) {
    lade_ticket *ticket;
    unsigned before = by_calls;
    if (lade_pipeline_submit(s->f.pipeline, &transfer, &ticket) != LADE_OK) return 0;
    in_submits += by_calls > before ? 1 : 0;
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(ticket);
  }
  return in_submits;
}

/* Where a thread naps it may come first now and then, and blocks are asked for by threads, and
 * go back where this machine lets the test rest for some milliseconds. */
LADE_TEST(CallerRun, SubmitsQueueTheCopiesOfShortTransfers) {
  scene s;
  if (!scene_open(&s)) return;
  LADE_EXPECT_GT_UINT(one_by_one(&s, LADE_TO_DEVICE, s.host, SHORT), MANY / 8);
  fixture_expect_device_pattern(&s.f, 0, SHORT, 1, 0);
  LADE_EXPECT_GT_UINT(one_by_one(&s, LADE_TO_DEVICE, s.pinned, SHORT), MANY / 2);
  LADE_EXPECT_GT_UINT(one_by_one(&s, LADE_TO_DEVICE, s.pinned, LONGEST), MANY / 2);
  fixture_expect_device_pattern(&s.f, 0, LONGEST, 1, 0);
  memset(s.host, 0, LONGEST);
  memset(s.pinned, 0, LONGEST);
  LADE_EXPECT_GT_UINT(one_by_one(&s, LADE_TO_HOST, s.host, SHORT), MANY / 8);
  LADE_EXPECT_GT_UINT(one_by_one(&s, LADE_TO_HOST, s.pinned, LONGEST), MANY / 2);
  LADE_EXPECT_PATTERN(s.host, SHORT, 1, 0);
  LADE_EXPECT_PATTERN(s.pinned, LONGEST, 1, 0);
  scene_close(&s);
}

/* A call does nothing else while it queues a chunk: eight of 128 KiB took 20 us of 102 on an H200. */
LADE_TEST(CallerRun, MemoryThatCallsCopyIsFourChunks) {
  fixture f;
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = 0;
  char *host = calloc(1, LONGEST);
  if (host == NULL || !fixture_open(&f, "cpu", LONGEST, &options)) return;
  for (int i = 0; i < 2; i++)
    LADE_EXPECT_OK(fixture_move(&f, i == 0 ? LADE_TO_DEVICE : LADE_TO_HOST, lade_endpoint_memory(host), LONGEST));
  LADE_EXPECT_EQ_UINT(fixture_info(&f).copies, 2 * 4);
  free(host);
  fixture_close(&f);
}

/* A page that does not come, or a driver that is busy: the other chunks do not wait for it. */
LADE_TEST(CallerRun, AThreadTakesWhatACallThatIsKeptLeaves) {
  scene s;
  if (!scene_open(&s)) return;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.host), LONGEST);
  (void)one_by_one(&s, LADE_TO_DEVICE, s.host, LONGEST); /* blocks are there */
  by_threads = 0;
  calls_are_kept = true;
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  LADE_EXPECT_GT_UINT(by_threads, 0);
  calls_are_kept = false;
  fixture_expect_device_pattern(&s.f, 0, LONGEST, 1, 0);
  scene_close(&s);
}

/* Those after a stream that still has work are the threads', until it has none. */
LADE_TEST(CallerRun, ThreadsQueueTheCopiesAfterAStreamWithWork) {
  scene s;
  lade_stream stream;
  if (!scene_open(&s)) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  lade_transfer after = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned), SHORT);
  after.after_stream = 1;
  after.stream = stream;
  for (unsigned i = 0; i < MANY / 10; i++) {
    lade_ticket *ticket;
    LADE_ASSERT_OK(lade_soft_stream_hold(s.f.runtime, stream, true));
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &after, &ticket));
    LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, 1000));
    LADE_ASSERT_OK(lade_soft_stream_hold(s.f.runtime, stream, false));
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(ticket);
  }
  LADE_EXPECT_EQ_UINT(by_calls, 0);
  LADE_EXPECT_EQ_UINT(by_threads, MANY / 10);
  for (unsigned i = 0; i < MANY; i++) LADE_EXPECT_OK(fixture_run(&s.f, &after));
  LADE_EXPECT_GT_UINT(by_calls, MANY / 2);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  scene_close(&s);
}

/* A capture of the same thread, in the strictest mode, goes on. */
LADE_TEST(CallerRun, SubmitsAndWaitsInACapture) {
  scene s;
  lade_stream stream;
  ladei_stream resolved;
  ladei_graph graph = NULL;
  if (!scene_open(&s)) return;
  const lade_runtime *runtime = s.f.runtime;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  LADE_ASSERT_OK(runtime->ops->stream_resolve(runtime->self, stream, &resolved));
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.host), SHORT));
  LADE_ASSERT_OK(runtime->ops->capture_begin(runtime->self, &resolved, LADEI_CAPTURE_GLOBAL));
  for (unsigned i = 0; i < MANY / 10; i++) {
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(i % 2 == 0 ? s.host : s.pinned), SHORT));
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_memory(i % 2 == 0 ? s.host : s.pinned), SHORT));
  }
  LADE_EXPECT_OK(runtime->ops->capture_end(runtime->self, &resolved, &graph));
  LADE_EXPECT_OK(runtime->ops->graph_destroy(runtime->self, graph));
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  scene_close(&s);
}

/* --- ends that no call asks for, and blocks ----------------------------------------------------------------------- */

static bool all_completed(void *user) {
  const scene *s = user;
  lade_pipeline_info info = fixture_info(&s->f);
  return info.transfers_completed == info.transfers_submitted;
}

static bool blocks_are_back(void *user) {
  const scene *s = user;
  return fixture_info(&s->f).blocks == 0;
}

LADE_TEST(CallerRun, TransfersEndAndGiveTheirBlocksBackWithoutACall) {
  scene s;
  if (!scene_open(&s)) return;
  for (unsigned round = 0; round < 20 && !lade_test_has_failed(); round++) {
    lade_direction direction = round % 2 == 0 ? LADE_TO_DEVICE : LADE_TO_HOST;
    lade_transfer transfer = fixture_transfer(&s.f, direction, lade_endpoint_memory(s.host), SHORT);
    lade_ticket *ticket;
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
    if (round % 3 == 0) {
      lade_ticket_release(ticket);
      LADE_EXPECT(support_wait(s.f.runtime, all_completed, &s));
    } else {
      LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
      lade_ticket_release(ticket);
    }
    LADE_EXPECT(support_wait(s.f.runtime, blocks_are_back, &s));
  }
  scene_close(&s);
}

/* They ask the device themselves; a thread that looks now and then would find the end all the same. */
static bool query_says(void *user) { return lade_ticket_query(user, NULL) == LADE_OK; }
static bool wait_says(void *user) { return lade_ticket_wait(user, 0) == LADE_OK; }

LADE_TEST(CallerRun, QueriesAndWaitsWithoutTimeFindTheEnd) {
  scene s;
  if (!scene_open(&s)) return;
  only_calls_see = true;
  for (unsigned round = 0; round < 20 && !lade_test_has_failed(); round++) {
    lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned), SHORT);
    lade_ticket *ticket;
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
    LADE_EXPECT(support_wait(s.f.runtime, round % 2 == 0 ? query_says : wait_says, ticket));
    lade_ticket_release(ticket);
  }
  only_calls_see = false;
  scene_close(&s);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Once the submit has its ticket a failure is the transfer's: the call succeeds, and leaves the thread's error as it was. */
static void fail_once(scene *s, const char *op, lade_direction direction, char *memory) {
  lade_transfer transfer = fixture_transfer(&s->f, direction, lade_endpoint_memory(memory), SHORT);
  lade_error before;
  lade_ticket *ticket;
  LADE_EXPECT_OK(fixture_run(&s->f, &transfer));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_ticket_wait(NULL, 0));
  before = *lade_last_error();
  LADE_ASSERT_OK(lade_soft_fault_add(s->f.runtime, op, 1, LADE_ERR_DRIVER));
  LADE_ASSERT_OK(lade_pipeline_submit(s->f.pipeline, &transfer, &ticket));
  LADE_EXPECT_EQ_STR(lade_last_error()->text, before.text);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, op);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_soft_fault_clear(s->f.runtime));
  LADE_EXPECT_OK(fixture_run(&s->f, &transfer));
}

LADE_TEST(CallerRun, AFailureIsTheTransfers) {
  static const char *const ops[] = {"copy", "event_record", "event_query"};
  scene s;
  if (!scene_open(&s)) return;
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    fail_once(&s, ops[i], LADE_TO_DEVICE, s.pinned);
    fail_once(&s, ops[i], LADE_TO_DEVICE, s.host);
    fail_once(&s, ops[i], LADE_TO_HOST, s.host);
  }
  scene_close(&s);
}

LADE_TEST(CallerRun, ALostDeviceEndsTransfersAndCalls) {
  scene s;
  if (!scene_open(&s)) return;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.host), SHORT);
  lade_ticket *tickets[AHEAD];
  for (unsigned i = 0; i < AHEAD; i++) {
    if (i == AHEAD / 2) LADE_EXPECT_OK(lade_soft_device_lose(s.f.runtime, 0, 0));
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &tickets[i]));
  }
  for (unsigned i = 0; i < AHEAD; i++) {
    lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
    LADE_EXPECT(status == LADE_ERR_DEVICE_LOST || (status == LADE_OK && i < AHEAD / 2));
    lade_ticket_release(tickets[i]);
  }
  scene_close(&s);
}

/* --- beside others ------------------------------------------------------------------------------------------------ */

typedef struct submitter {
  pthread_t thread;
  scene *s;
  unsigned number;
  char memory[LONGEST / 8];
} submitter;

enum { PART = LONGEST / 8 };

/* Its own part of the device memory there and back, many ahead, some of them cancelled or asked about. */
static void *submitter_main(void *user) {
  submitter *self = user;
  lade_ticket *tickets[AHEAD];
  is_caller = true;
  lade_transfer transfer = fixture_transfer(&self->s->f, LADE_TO_DEVICE, lade_endpoint_memory(self->memory), PART);
  transfer.device_memory = self->s->f.device + (size_t)self->number * PART;
  for (unsigned round = 0; round < MANY / 10 && !lade_test_has_failed(); round++) {
    support_pattern_fill(self->memory, PART, self->number + round, 0);
    transfer.direction = LADE_TO_DEVICE;
    transfer.bytes = round % 3 == 0 ? PART : SHORT;
    for (unsigned i = 0; i < AHEAD; i++) {
      LADE_EXPECT_OK(lade_pipeline_submit(self->s->f.pipeline, &transfer, &tickets[i]));
      if (i % 4 == 1) LADE_EXPECT_OK(lade_ticket_cancel(tickets[i]));
      if (i % 4 == 2) (void)lade_ticket_query(tickets[i], NULL);
    }
    for (unsigned i = 0; i < AHEAD; i++) {
      lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
      LADE_EXPECT(status == LADE_OK || (i % 4 == 1 && status == LADE_ERR_CANCELLED));
      lade_ticket_release(tickets[i]);
    }
    memset(self->memory, 0, PART);
    transfer.direction = LADE_TO_HOST;
    LADE_EXPECT_OK(fixture_run(&self->s->f, &transfer));
    LADE_EXPECT_PATTERN(self->memory, (size_t)transfer.bytes, self->number + round, 0);
  }
  return NULL;
}

static void submitters_run(scene *s) {
  submitter *all = calloc(SUBMITTERS, sizeof *all);
  LADE_ASSERT(all != NULL);
  for (unsigned i = 0; i < SUBMITTERS; i++) {
    all[i].s = s;
    all[i].number = i;
    LADE_ASSERT_EQ_INT(pthread_create(&all[i].thread, NULL, submitter_main, &all[i]), 0);
  }
  for (unsigned i = 0; i < SUBMITTERS; i++) pthread_join(all[i].thread, NULL);
  free(all);
}

LADE_TEST(CallerRun, SubmittersDoNotDisturbEachOther) {
  scene s;
  if (!scene_open(&s)) return;
  submitters_run(&s);
  scene_close(&s);
}

static lade_status bulk_read(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  support_pattern_fill(buffer, bytes, 9, offset);
  return LADE_OK;
}

/* Bulk comes and goes meanwhile, so that transfers change hands between calls and threads. */
static void *bulk_main(void *user) {
  scene *s = user;
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, lade_endpoint_callback(bulk_read, NULL), 3 * PART);
  transfer.device_memory = s->f.device + (size_t)SUBMITTERS * PART;
  for (unsigned i = 0; i < MANY / 5 && !lade_test_has_failed(); i++) LADE_EXPECT_OK(fixture_run(&s->f, &transfer));
  return NULL;
}

LADE_TEST(CallerRun, BulkDoesNotDisturbSubmitters) {
  scene s;
  pthread_t bulk;
  if (!scene_open(&s)) return;
  LADE_ASSERT_EQ_INT(pthread_create(&bulk, NULL, bulk_main, &s), 0);
  submitters_run(&s);
  pthread_join(bulk, NULL);
  fixture_expect_device_pattern(&s.f, (size_t)SUBMITTERS * PART, (size_t)3 * PART, 9, 0);
  scene_close(&s);
}

/* More than max_transfers of them: a submit that waits for a place ends those that hold it. */
LADE_TEST(CallerRun, SubmitsMakeTheirOwnPlace) {
  enum { FLOOD = 200 };
  scene s;
  static lade_ticket *tickets[FLOOD];
  if (!scene_open(&s)) return;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned), SHORT);
  for (unsigned i = 0; i < FLOOD; i++) LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &tickets[i]));
  for (unsigned i = 0; i < FLOOD; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  scene_close(&s);
}

/* A submit in a callback works on its thread of the pipeline. */
static lade_status submit_more(void *user, lade_ticket *ticket, const lade_error *outcome) {
  scene *s = user;
  lade_ticket *more;
  (void)ticket;
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, lade_endpoint_memory(s->pinned), SHORT);
  lade_status status = lade_pipeline_submit(s->f.pipeline, &transfer, &more);
  if (status == LADE_OK) lade_ticket_release(more);
  return status == LADE_OK ? outcome->status : status;
}

LADE_TEST(CallerRun, CallbacksSubmit) {
  scene s;
  if (!scene_open(&s)) return;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned), SHORT);
  transfer.on_complete = submit_more;
  transfer.on_complete_user = &s;
  for (unsigned i = 0; i < MANY && !lade_test_has_failed(); i++) LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  LADE_EXPECT(support_wait(s.f.runtime, all_completed, &s));
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).transfers_completed, 2 * MANY);
  scene_close(&s);
}

/* --- those that call back ----------------------------------------------------------------------------------------- */

static atomic_uint completed_by_calls, completed_by_threads;

static lade_status note_completion(void *user, lade_ticket *ticket, const lade_error *outcome) {
  (void)user;
  (void)ticket;
  atomic_fetch_add(is_caller ? &completed_by_calls : &completed_by_threads, 1);
  return outcome->status;
}

static bool all_called_back(void *user) {
  const unsigned *expected = user;
  return completed_by_calls + completed_by_threads == *expected;
}

/* Every transfer of Python's had a function, and each woke two threads. */
LADE_TEST(CallerRun, CallsRunCompletionsThatMayRunThere) {
  scene s;
  if (!scene_open(&s)) return;
  completed_by_calls = completed_by_threads = 0;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned), SHORT);
  transfer.on_complete = note_completion;
  for (unsigned i = 0; i < MANY / 10; i++) LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  LADE_EXPECT_EQ_UINT(completed_by_threads, MANY / 10);
  LADE_EXPECT_EQ_UINT(by_calls, 0);
  transfer.on_complete_in_calls = 1;
  for (unsigned i = 0; i < MANY; i++) LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  LADE_EXPECT_EQ_UINT(completed_by_calls + completed_by_threads, MANY + MANY / 10);
  LADE_EXPECT_GT_UINT(completed_by_calls, MANY / 16); /* where this machine rests in waits, threads end them */
  LADE_EXPECT_GT_UINT(by_calls, MANY / 2);
  scene_close(&s);
}

/* The ends of transfers that were left, which is not to be heard of in a nap. */
LADE_TEST(CallerRun, ThreadsEndTransfersThatAreLeft) {
  scene s;
  if (!scene_open(&s)) return;
  completed_by_calls = completed_by_threads = 0;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned), LONGEST);
  transfer.on_complete = note_completion;
  transfer.on_complete_in_calls = 1;
  for (unsigned i = 1; i <= MANY && !lade_test_has_failed(); i++) {
    lade_ticket *ticket;
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
    LADE_EXPECT_OK(lade_ticket_leave(ticket));
    LADE_EXPECT_OK(lade_ticket_leave(ticket)); /* again: nothing is left to do */
    if (i % 3 == 0) LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    if (i % 3 == 1) LADE_EXPECT(support_wait(s.f.runtime, all_called_back, &i));
    lade_ticket_release(ticket);
    LADE_EXPECT(support_wait(s.f.runtime, all_called_back, &i));
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_ticket_leave(NULL));
  LADE_EXPECT_EQ_UINT(s.f.pipeline->sides[0].others, 0);
  scene_close(&s);
}
