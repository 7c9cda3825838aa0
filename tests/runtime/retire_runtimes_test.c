/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Retirement over real runtimes: copies, holds, captures and graphs, on virtual time, on real time and
 * through CUDA.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lade/soft.h"
#include "runtime/retire/retire.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

static const unsigned CLOSE = LADEI_POLL_CLOSE;

enum { BLOCKS = 64, SCRATCH_STEP = 256, SCRATCH_COUNT = 16 };

typedef struct bench {
  lade_runtime *runtime;
  ladei_retire *retire;
  ladei_retire_ticket tickets[BLOCKS];
  _Atomic(int) done;
  void *scratch; /* device memory */
  int scratch_used;
} bench;

static void bench_done(void *owner, ladei_retire_ticket *list) {
  bench *own = owner;
  while (ladei_retire_ticket_take(&list) != NULL) atomic_fetch_add(&own->done, 1);
}

static bool bench_open(bench *own, const char *name) {
  memset(own, 0, sizeof *own);
  own->runtime = support_runtime_open(name);
  if (own->runtime == NULL) return false;
  LADE_EXPECT_OK(own->runtime->ops->device_alloc(own->runtime->self, 0, SCRATCH_STEP * SCRATCH_COUNT, &own->scratch));
  const ladei_retire_options options = {.owner = own, .done = bench_done};
  return ladei_retire_create(own->runtime, &options, &own->retire) == LADE_OK;
}

/* Everything comes back, and a software device saw no stale handle, freed memory or unordered reuse. */
static void bench_close(bench *own) {
  LADE_EXPECT_OK(ladei_retire_destroy(own->retire, true));
  if (own->runtime->software_device != NULL) {
    lade_soft_report report;
    lade_soft_report_init(&report);
    LADE_EXPECT_OK(lade_soft_report_get(own->runtime, &report));
    LADE_EXPECT_EQ_UINT(report.stale_handles, 0);
    LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
    LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  }
  if (own->scratch != NULL) LADE_EXPECT_OK(own->runtime->ops->device_free(own->runtime->self, 0, own->scratch));
  support_runtime_close(own->runtime);
}

static void bench_use(bench *own, int block, lade_stream stream) {
  LADE_EXPECT_OK(ladei_retire_note(own->retire, &own->tickets[block], stream, 0));
  LADE_EXPECT(ladei_retire_add(own->retire, &own->tickets[block], false));
}

static int bench_poll(bench *own, unsigned flags) {
  LADE_EXPECT_OK(ladei_retire_poll(own->retire, flags, NULL));
  LADE_EXPECT_OK(ladei_retire_check(own->retire));
  return atomic_load(&own->done);
}

static lade_stream stream_open(bench *own) {
  lade_stream stream = NULL;
  LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &stream));
  return stream;
}

/* Something for a stream to do; a place of its own each time, or it would be an unordered use of memory. */
static void stream_work(bench *own, lade_stream handle) {
  ladei_stream stream;
  unsigned char *place = (unsigned char *)own->scratch + SCRATCH_STEP * own->scratch_used++;
  LADE_ASSERT(own->scratch_used <= SCRATCH_COUNT);
  LADE_EXPECT_OK(own->runtime->ops->stream_resolve(own->runtime->self, handle, &stream));
  LADE_EXPECT_OK(own->runtime->ops->fill(own->runtime->self, place, 1, SCRATCH_STEP, &stream));
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(RetireRuntimes, BlockWaitsForTheStreamAndForNoOther, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  lade_stream held = stream_open(&own), idle = stream_open(&own);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, held));
  stream_work(&own, held);
  stream_work(&own, idle);
  bench_use(&own, 0, held);
  bench_use(&own, 1, idle);
  LADE_EXPECT(support_wait_stream(own.runtime, idle));
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 1);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, held));
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 2);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, held));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, idle));
  bench_close(&own);
}

LADE_TEST_P(RetireRuntimes, FreeSynchroniseAllocHits, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  const lade_stream handles[] = {stream_open(&own), NULL, LADE_STREAM_LEGACY, LADE_STREAM_PER_THREAD};
  LADE_EXPECT_OK(lade_runtime_set_device(own.runtime, 0));
  for (int i = 0; i < 4; i++) {
    stream_work(&own, handles[i]);
    bench_use(&own, i, handles[i]);
    LADE_EXPECT(support_wait_stream(own.runtime, handles[i]));
    LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), i + 1);
  }
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, handles[0]));
  bench_close(&own);
}

/* What the rule is for: a block is written again only when the copy that reads it has read it. */
LADE_TEST_P(RetireRuntimes, CopiesReadWhatTheBlockHeld, SUPPORT_RUNTIMES, name) {
  enum { BYTES = 256 * 1024, COPIES = 24 };
  bench own;
  if (!bench_open(&own, name)) return;
  const lade_runtime_ops *ops = own.runtime->ops;
  void *staging = NULL, *device[COPIES], *back = malloc(BYTES);
  LADE_EXPECT_OK(ops->host_alloc(own.runtime->self, 0, BYTES, 0, &staging));
  for (int i = 0; i < COPIES; i++) LADE_EXPECT_OK(ops->device_alloc(own.runtime->self, 0, BYTES, &device[i]));
  lade_stream streams[2] = {stream_open(&own), stream_open(&own)};
  for (int i = 0; i < COPIES; i++) {
    support_pattern_fill(staging, BYTES, (uint64_t)i, 0);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, device[i], staging, BYTES, streams[i % 2]));
    bench_use(&own, 0, streams[i % 2]);
    LADE_EXPECT_OK(ladei_retire_wait(own.retire, UINT64_MAX));
  }
  for (int i = 0; i < COPIES; i++) {
    LADE_EXPECT_OK(ops->copy_sync(own.runtime->self, 0, LADEI_COPY_D2H, back, device[i], BYTES));
    LADE_EXPECT_PATTERN(back, BYTES, (uint64_t)i, 0);
    LADE_EXPECT_OK(ops->device_free(own.runtime->self, 0, device[i]));
  }
  LADE_EXPECT_OK(ops->host_free(own.runtime->self, staging));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_destroy(own.runtime, streams[i]));
  free(back);
  bench_close(&own);
}

LADE_TEST_P(RetireRuntimes, RetiredStreamIsNeverNamedAgain, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  for (int round = 0; round < 20; round++) { /* handles come back */
    lade_stream stream = stream_open(&own);
    for (int i = 0; i < 20; i++) bench_use(&own, i, stream);
    LADE_EXPECT_OK(ladei_retire_note(own.retire, &own.tickets[20], stream, 0)); /* in use beyond the stream's life */
    LADE_EXPECT_OK(ladei_retire_stream_retire(own.retire, stream));
    LADE_EXPECT_OK(lade_stream_destroy(own.runtime, stream));
    bool pending = ladei_retire_add(own.retire, &own.tickets[20], false);
    LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
    LADE_EXPECT_EQ_INT(atomic_exchange(&own.done, 0), pending ? 21 : 20);
  }
  bench_close(&own);
}

LADE_TEST_P(RetireRuntimes, WaitEndsAtTheDeadlineOfTheRuntimesClock, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  lade_stream stream = stream_open(&own);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, stream));
  stream_work(&own, stream);
  bench_use(&own, 0, stream);
  uint64_t deadline = lade_runtime_now_ns(own.runtime) + 2000000;
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_wait(own.retire, deadline));
  if (support_is_virtual(own.runtime))
    LADE_EXPECT_EQ_UINT(lade_runtime_now_ns(own.runtime), deadline);
  else
    LADE_EXPECT_GE_UINT(lade_runtime_now_ns(own.runtime), deadline);
  if (support_is_virtual(own.runtime)) { /* nothing will happen: no wait without end */
    LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, ladei_retire_wait(own.retire, UINT64_MAX));
    LADE_EXPECT_EQ_UINT(lade_runtime_now_ns(own.runtime), deadline);
  }
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(ladei_retire_wait(own.retire, UINT64_MAX));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, stream));
  bench_close(&own);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static lade_status capture(bench *own, lade_stream handle, bool begin, ladei_graph *graph) {
  ladei_stream stream;
  lade_status status = own->runtime->ops->stream_resolve(own->runtime->self, handle, &stream);
  if (status != LADE_OK) return status;
  return begin ? own->runtime->ops->capture_begin(own->runtime->self, &stream, LADEI_CAPTURE_RELAXED)
               : own->runtime->ops->capture_end(own->runtime->self, &stream, graph);
}

typedef struct done_wait {
  bench *own;
  int count;
} done_wait;

static bool done_reached(void *user) {
  const done_wait *wait = user;
  return bench_poll(wait->own, CLOSE) >= wait->count;
}

/* Nobody but the graph, its executable and a launch in flight hold the block; it comes back after the last of them. */
LADE_TEST_P(RetireRuntimes, CapturedBlockReturnsAfterGraphExecAndLaunch, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  const lade_runtime_ops *ops = own.runtime->ops;
  void *self = own.runtime->self, *device = NULL;
  LADE_EXPECT_OK(ops->device_alloc(self, 0, 4096, &device));
  lade_stream handle = stream_open(&own);
  ladei_stream stream;
  ladei_graph graph;
  ladei_graph_exec exec;
  LADE_EXPECT_OK(ops->stream_resolve(self, handle, &stream));
  LADE_ASSERT_OK(capture(&own, handle, true, NULL));
  LADE_EXPECT_OK(ops->fill(self, device, 7, 4096, &stream));
  bench_use(&own, 0, handle);
  LADE_ASSERT_OK(capture(&own, handle, false, &graph));
  LADE_EXPECT_OK(ops->graph_instantiate(self, graph, &exec));
  LADE_EXPECT_OK(ops->graph_destroy(self, graph));
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 0); /* the executable holds it */
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_synchronize(own.retire));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, handle));
  LADE_EXPECT_OK(ops->graph_launch(self, exec, &stream));
  LADE_EXPECT_OK(ops->graph_exec_destroy(self, exec));
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 0); /* the launch holds it */
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, handle));
  done_wait wait = {&own, 1};
  LADE_EXPECT(support_wait(own.runtime, done_reached, &wait));
  LADE_EXPECT_OK(ops->device_free(self, 0, device));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, handle));
  bench_close(&own);
}

/* Regression: the first of several graphs whose end was reported ended the wait for all. */
LADE_TEST_P(RetireRuntimes, SynchronizeHearsOfEveryDestroyedGraph, SUPPORT_RUNTIMES, name) {
  enum { GRAPHS = 16 };
  bench own;
  ladei_graph graphs[GRAPHS];
  if (!bench_open(&own, name)) return;
  lade_stream stream = stream_open(&own);
  for (int i = 0; i < GRAPHS; i++) {
    LADE_ASSERT_OK(capture(&own, stream, true, NULL));
    bench_use(&own, i, stream);
    LADE_ASSERT_OK(capture(&own, stream, false, &graphs[i]));
  }
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_synchronize(own.retire)); /* nobody can wait for a graph */
  for (int i = 0; i < GRAPHS; i++) LADE_EXPECT_OK(own.runtime->ops->graph_destroy(own.runtime->self, graphs[i]));
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  LADE_EXPECT_EQ_INT(atomic_load(&own.done), GRAPHS);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, stream));
  bench_close(&own);
}

LADE_TEST_P(RetireRuntimes, CaptureBegunBetweenNoteAndFreeIsNotDisturbed, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  lade_stream stream = stream_open(&own);
  ladei_graph graph = NULL;
  for (int i = 0; i < 20; i++) LADE_EXPECT_OK(ladei_retire_note(own.retire, &own.tickets[i], stream, 0));
  LADE_ASSERT_OK(capture(&own, stream, true, NULL));
  for (int i = 0; i < 20; i++) LADE_EXPECT(ladei_retire_add(own.retire, &own.tickets[i], false));
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 0);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_synchronize(own.retire));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ladei_retire_stream_retire(own.retire, stream));
  LADE_ASSERT_OK(capture(&own, stream, false, &graph)); /* still valid */
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 20);
  LADE_EXPECT_OK(own.runtime->ops->graph_destroy(own.runtime->self, graph));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, stream));
  bench_close(&own);
}

LADE_TEST_P(RetireRuntimes, LegacyStreamIsLeftAloneWhileABlockingStreamCaptures, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  lade_stream blocking = NULL;
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(lade_runtime_set_device(own.runtime, 0));
  LADE_EXPECT_OK(own.runtime->ops->stream_create(own.runtime->self, 0, 0, 0, &blocking));
  LADE_EXPECT_OK(ladei_retire_note(own.retire, &own.tickets[0], NULL, 0));
  LADE_ASSERT_OK(capture(&own, blocking, true, NULL));
  LADE_EXPECT(ladei_retire_add(own.retire, &own.tickets[0], false));
  bench_use(&own, 1, LADE_STREAM_LEGACY);
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 0);
  LADE_ASSERT_OK(capture(&own, blocking, false, &graph)); /* still valid */
  LADE_EXPECT_EQ_INT(bench_poll(&own, CLOSE), 2);
  LADE_EXPECT_OK(own.runtime->ops->graph_destroy(own.runtime->self, graph));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, blocking));
  bench_close(&own);
}

/* A capture that ends badly lets go of its blocks. */
LADE_TEST_P(RetireRuntimes, InvalidatedCaptureGivesItsBlocksBack, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  lade_stream stream = stream_open(&own);
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(capture(&own, stream, true, NULL));
  bench_use(&own, 0, stream);
  ladei_stream resolved;
  LADE_ASSERT_OK(own.runtime->ops->stream_resolve(own.runtime->self, stream, &resolved));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, own.runtime->ops->stream_synchronize(own.runtime->self, &resolved));
  bench_use(&own, 1, stream);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, capture(&own, stream, false, &graph));
  done_wait wait = {&own, 2};
  LADE_EXPECT(support_wait(own.runtime, done_reached, &wait));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, stream));
  bench_close(&own);
}

#ifndef LADE_TEST_ON_CUDA
LADE_TEST_P(RetireRuntimes, LostDeviceLetsDestroyFinish, SUPPORT_RUNTIMES, name) {
  bench own;
  if (!bench_open(&own, name)) return;
  lade_stream stream = stream_open(&own);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, stream));
  stream_work(&own, stream);
  for (int i = 0; i < 20; i++) bench_use(&own, i, stream);
  LADE_EXPECT_OK(lade_soft_device_lose(own.runtime, 0, 0));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, ladei_retire_poll(own.retire, CLOSE, NULL));
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_retire_destroy(own.retire, false));
  LADE_EXPECT_OK(ladei_retire_destroy(own.retire, true));
  LADE_EXPECT_EQ_INT(atomic_load(&own.done), 20);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, stream));
  LADE_EXPECT_OK(own.runtime->ops->device_free(own.runtime->self, 0, own.scratch));
  support_runtime_close(own.runtime);
}
#endif

#ifndef LADE_TEST_ON_CUDA
/* ---- A stream that goes ------------------------------------------------------------------------------------------ */

typedef struct going {
  bench *own;
  lade_stream stream;
  int calls_left; /* before the stream is destroyed */
} going;

static void going_call(void *user, const char *op) {
  going *g = user;
  (void)op;
  if (g->calls_left > 0 && --g->calls_left == 0) LADE_EXPECT_OK(lade_stream_destroy(g->own->runtime, g->stream));
}

/* One block; its stream is destroyed before the given call of a wait. Returns whether there was such a call. */
static bool wait_beside_destroy(const char *name, int call, unsigned event_batch, bool record_fails) {
  bench own;
  memset(&own, 0, sizeof own);
  own.runtime = support_interposer_open(name, NULL);
  const lade_runtime_ops *ops = own.runtime->ops;
  const ladei_retire_options options = {.owner = &own, .done = bench_done, .event_batch = event_batch};
  LADE_EXPECT_OK(ops->device_alloc(own.runtime->self, 0, SCRATCH_STEP * SCRATCH_COUNT, &own.scratch));
  LADE_EXPECT_OK(ladei_retire_create(own.runtime, &options, &own.retire));
  going g = {.own = &own, .stream = stream_open(&own)};
  stream_work(&own, g.stream);
  if (event_batch == 1) support_fail(own.runtime, "event_record", 1, 1); /* the add's: the block stays open */
  bench_use(&own, 0, g.stream);
  support_fail(own.runtime, "event_record", 1, record_fails);
  support_on_call(own.runtime, going_call, &g);
  g.calls_left = call;
  LADE_EXPECT_OK(ladei_retire_synchronize(own.retire));
  bool reached = g.calls_left == 0;
  g.calls_left = 0;
  LADE_EXPECT_EQ_INT(atomic_load(&own.done), 1);
  if (!reached) LADE_EXPECT_OK(lade_stream_destroy(own.runtime, g.stream));
  LADE_EXPECT_OK(ladei_retire_destroy(own.retire, true));
  LADE_EXPECT_OK(ops->device_free(own.runtime->self, 0, own.scratch));
  support_runtime_close(own.runtime);
  return reached;
}

/* Regression: a stream that another thread destroyed after the question whether it was there was taken for one that fails. */
LADE_TEST_P(RetireRuntimes, StreamDestroyedBeforeAnyCallOfAWaitIsWaitedForByItsDevice, support_soft_runtimes, name) {
  static const struct {
    unsigned event_batch;
    bool record_fails;
  } ways[] = {{1, false}, {1, true}, {16, false}};
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    int call = 1;
    while (wait_beside_destroy(name, call, ways[i].event_batch, ways[i].record_fails)) call++;
    LADE_EXPECT(call > 2);
  }
}

/* ---- Every call failing ------------------------------------------------------------------------------------------ */

static void scenario_capture(bench *own, lade_stream stream) {
  ladei_graph graph = NULL;
  if (capture(own, stream, true, NULL) != LADE_OK) return;
  if (ladei_retire_note(own->retire, &own->tickets[40], stream, 0) == LADE_OK)
    (void)ladei_retire_add(own->retire, &own->tickets[40], false);
  while (capture(own, stream, false, &graph) == LADE_ERR_DRIVER) continue; /* the failing call was this one */
  if (graph != NULL) LADE_EXPECT_OK(own->runtime->ops->graph_destroy(own->runtime->self, graph));
}

/* One of everything. Errors of single calls are looked over: what counts is that nothing is lost. */
static lade_status scenario(lade_runtime *runtime, void *user) {
  (void)user;
  bench own;
  memset(&own, 0, sizeof own);
  own.runtime = runtime;
  const ladei_retire_options options = {.owner = &own, .done = bench_done};
  lade_status status = ladei_retire_create(runtime, &options, &own.retire);
  if (status != LADE_OK) return status;
  lade_stream stream;
  status = lade_stream_create(runtime, 0, &stream);
  (void)lade_runtime_set_device(runtime, 0);
  if (status == LADE_OK) {
    for (int i = 0; i < 40; i++) {
      lade_stream handle = i % 10 == 0 ? NULL : i % 10 == 1 ? LADE_STREAM_PER_THREAD : stream;
      (void)ladei_retire_note(own.retire, &own.tickets[i], handle, i % 7 == 0 ? LADEI_NOTE_NOW : 0);
      (void)ladei_retire_add(own.retire, &own.tickets[i], false);
      if (i % 13 == 0) (void)ladei_retire_poll(own.retire, CLOSE, NULL);
      LADE_EXPECT_OK(ladei_retire_check(own.retire));
    }
    scenario_capture(&own, stream);
    (void)ladei_retire_stream_retire(own.retire, stream);
    (void)ladei_retire_synchronize(own.retire);
  }
  lade_status destroyed = ladei_retire_destroy(own.retire, true);
  if (destroyed != LADE_OK) destroyed = ladei_retire_destroy(own.retire, true); /* the failing call was in the first */
  LADE_EXPECT_OK(destroyed);
  if (status == LADE_OK) LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  return status;
}

LADE_TEST(RetireRuntimes, LosesNothingWhenAnyCallFails) { support_for_each_failure("sim", scenario, NULL, NULL); }
#endif

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { WORKERS = 3, ADDS = 400, OWN_BLOCKS = 8, COPY_BYTES = 16 * 1024 };

typedef struct worker {
  bench *all;
  int index;
  unsigned char *host, *device;
} worker;

typedef struct worker_block {
  ladei_retire_ticket ticket;
  _Atomic(bool) pending;
} worker_block;

static void worker_done(void *owner, ladei_retire_ticket *list) {
  (void)owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;)
    LADE_EXPECT(atomic_exchange(&((worker_block *)(void *)ticket)->pending, false));
}

static worker_block worker_blocks[WORKERS][OWN_BLOCKS];

/* Writes blocks again and again, as a data loader would, with a stream of its own that it replaces now and then. */
static void *work(void *argument) {
  worker *own = argument;
  lade_runtime *runtime = own->all->runtime;
  lade_stream stream = NULL;
  for (int i = 0; i < ADDS; i++) {
    worker_block *block = &worker_blocks[own->index][i % OWN_BLOCKS];
    size_t place = (size_t)(i % OWN_BLOCKS) * COPY_BYTES;
    while (atomic_load(&block->pending)) LADE_EXPECT_OK(ladei_retire_poll(own->all->retire, LADEI_POLL_CLOSE, NULL));
    if (i % 50 == 0) {
      if (stream != NULL) {
        LADE_EXPECT_OK(ladei_retire_stream_retire(own->all->retire, stream));
        LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
      }
      LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream));
    }
    memset(own->host + place, i, COPY_BYTES); /* the thread sanitiser sees a copy that still reads it */
    LADE_EXPECT_OK(lade_copy_async(runtime, own->device + place, own->host + place, COPY_BYTES, stream));
    LADE_EXPECT_OK(ladei_retire_note(own->all->retire, &block->ticket, stream, i % 3 == 0 ? LADEI_NOTE_NOW : 0));
    atomic_store(&block->pending, true);
    if (!ladei_retire_add(own->all->retire, &block->ticket, false)) atomic_store(&block->pending, false);
  }
  LADE_EXPECT_OK(ladei_retire_stream_retire(own->all->retire, stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  return NULL;
}

LADE_TEST_P(RetireRuntimes, ThreadsOverwriteBlocksOnlyAfterTheirCopies, SUPPORT_THREADED_RUNTIMES, name) {
  static bench all;
  memset(&all, 0, sizeof all);
  memset(worker_blocks, 0, sizeof worker_blocks);
  all.runtime = support_runtime_open(name);
  if (all.runtime == NULL) return;
  const ladei_retire_options options = {.owner = &all, .done = worker_done};
  LADE_ASSERT_OK(ladei_retire_create(all.runtime, &options, &all.retire));
  const lade_runtime_ops *ops = all.runtime->ops;
  const size_t bytes = (size_t)OWN_BLOCKS * COPY_BYTES;
  worker workers[WORKERS];
  pthread_t threads[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    void *host = NULL, *device = NULL;
    LADE_EXPECT_OK(ops->host_alloc(all.runtime->self, 0, bytes, 0, &host));
    LADE_EXPECT_OK(ops->device_alloc(all.runtime->self, 0, bytes, &device));
    workers[i] = (worker){&all, i, host, device};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(ladei_retire_synchronize(all.retire));
  for (int i = 0; i < WORKERS; i++) {
    for (int b = 0; b < OWN_BLOCKS; b++) LADE_EXPECT(!atomic_load(&worker_blocks[i][b].pending));
    LADE_EXPECT_OK(ops->host_free(all.runtime->self, workers[i].host));
    LADE_EXPECT_OK(ops->device_free(all.runtime->self, 0, workers[i].device));
  }
  bench_close(&all);
}
