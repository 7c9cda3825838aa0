/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The pinned pool with real copies on real streams: when blocks come back from streams, captures and
 * graphs, and memory of every source. For software devices, runtime/cuda on the loopback driver, and a GPU where there
 * is one.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/thread.h"
#include "host/api/pool.h"
#include "host/grow/seek.h"
#include "host/policies/policy_default.h"
#include "tests/host/fixture.h"
#include "tests/loopback/hooks.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { BLOCK_BYTES = PINNED_FIXTURE_SEGMENT_BYTES }; /* one segment each: a hit is the same address */

#define OP(own, name, ...) ((own)->runtime->ops->name((own)->runtime->self, __VA_ARGS__))

/* NULL: the options of a pool as users make it. */
static bool open_with(pinned_fixture *own, const char *name, const lade_pinned_options *options) {
  if (!pinned_fixture_open(own, support_interposer_open(name, NULL), options)) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(own->runtime, 0));
  return !lade_test_has_failed();
}

static bool open_batch(pinned_fixture *own, const char *name, uint32_t event_batch) {
  lade_pinned_options options = pinned_fixture_options();
  options.event_batch = event_batch;
  return open_with(own, name, &options);
}

static ladei_stream resolved(const pinned_fixture *own, int stream) {
  ladei_stream out;
  memset(&out, 0, sizeof out);
  LADE_EXPECT_OK(OP(own, stream_resolve, own->streams[stream], &out));
  return out;
}

static uint64_t pending_bytes(const pinned_fixture *own) { return pinned_fixture_stats(own).pending_bytes.current; }

static uint64_t reserved_bytes(const pinned_fixture *own) { return pinned_fixture_stats(own).reserved_bytes.current; }

static bool nothing_pending(void *user) {
  const pinned_fixture *own = user;
  LADE_EXPECT_OK(lade_pinned_process_events(own->pool));
  return pending_bytes(own) == 0;
}

static int state_of(const pinned_fixture *own, const void *block) { return pinned_fixture_info(own, block).state; }

typedef struct wait {
  const pinned_fixture *own;
  const void *block;
} wait;

static bool is_cached(void *user) {
  const wait *wanted = user;
  LADE_EXPECT_OK(lade_pinned_process_events(wanted->own->pool));
  return state_of(wanted->own, wanted->block) == LADE_PINNED_CACHED;
}

static bool comes_back(const pinned_fixture *own, const void *block) {
  wait wanted = {own, block};
  return support_wait(own->runtime, is_cached, &wanted);
}

/* ---- Reuse ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedRuntimes, BlockIsNotReusedBeforeItsCopyIsDone, SUPPORT_RUNTIMES, name) {
  enum { BYTES = 1 << 20 };
  pinned_fixture own;
  support_stream_hold hold;
  if (!open_with(&own, name, NULL)) return;
  char *first = pinned_fixture_alloc(&own, BYTES);
  char *second = pinned_fixture_alloc(&own, BYTES); /* so that the next one need not be pinned in the hold */
  pinned_fixture_free(&own, second);
  support_pattern_fill(first, BYTES, 7, 0);
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, first, BYTES, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, first, own.streams[0]));
  pinned_fixture_free(&own, first);
  second = pinned_fixture_alloc(&own, BYTES);
  LADE_EXPECT_NE_PTR(second, first);
  LADE_EXPECT_EQ_UINT(pending_bytes(&own), BYTES);
  support_pattern_fill(second, BYTES, 8, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  LADE_EXPECT_OK(OP(&own, copy_sync, 0, LADEI_COPY_D2H, second, own.device, BYTES));
  LADE_EXPECT_PATTERN(second, BYTES, 7, 0);
  char *third = pinned_fixture_alloc(&own, BYTES);
  LADE_EXPECT_EQ_PTR(third, first);
  pinned_fixture_free(&own, second);
  pinned_fixture_free(&own, third);
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedRuntimes, PreciseUseAndCallersEventEndWhereTheySay, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  uint64_t context = 0;
  lade_event event = NULL;
  support_stream_hold hold;
  if (!open_with(&own, name, NULL)) return;
  ladei_stream stream = resolved(&own, 0);
  LADE_ASSERT_OK(OP(&own, device_context, 0, &context));
  LADE_ASSERT_OK(OP(&own, event_create, context, 0, &event));
  void *used = pinned_fixture_alloc(&own, LADEI_MIB), *after = pinned_fixture_alloc(&own, LADEI_MIB);
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, used, LADEI_MIB, own.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device + LADEI_MIB, after, LADEI_MIB, own.streams[0]));
  LADE_ASSERT_OK(lade_pinned_record_use(own.pool, used, own.streams[0]));
  LADE_ASSERT_OK(OP(&own, event_record, event, &stream));
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0])); /* later work, which delays neither */
  LADE_ASSERT_OK(lade_pinned_free(own.pool, used));
  LADE_ASSERT_OK(lade_pinned_free_after(own.pool, after, event));
  LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(OP(&own, event_destroy, event));
  pinned_fixture_close(&own);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedRuntimes, FreeSynchroniseAllocHits, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  if (!open_batch(&own, name, 0)) return;
  char *block = pinned_fixture_alloc(&own, BLOCK_BYTES);
  for (int round = 0; round < 3; round++) {
    pinned_fixture_use(&own, block, 0);
    pinned_fixture_free(&own, block);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, BLOCK_BYTES), block);
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).misses, 1);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

/* Once its batch has its event, a block waits for nothing that is queued later. */
LADE_TEST_P(PinnedRuntimes, WorkQueuedAfterTheFreeDelaysNoBlockBeyondItsBatch, SUPPORT_RUNTIMES, name) {
  static const uint32_t batches[] = {1, 16};
  for (int i = 0; i < 2; i++) {
    pinned_fixture own;
    support_stream_hold hold;
    if (!open_batch(&own, name, batches[i])) return;
    char *block = pinned_fixture_alloc(&own, BLOCK_BYTES);
    pinned_fixture_use(&own, block, 0);
    pinned_fixture_free(&own, block);
    if (batches[i] > 1) LADE_EXPECT_OK(lade_pinned_process_events(own.pool)); /* whoever looks for memory closes it */
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
    LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_CACHED);
    support_stream_hold_end(&hold);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    pinned_fixture_close(&own);
  }
}

/* A new stream may get the handle of one that was retired: neither's work is taken for the other's. */
LADE_TEST_P(PinnedRuntimes, RecycledStreamHandleNeverCoversAnothersWork, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  support_stream_hold hold;
  if (!open_batch(&own, name, 0)) return;
  char *first = pinned_fixture_alloc(&own, BLOCK_BYTES), *second = pinned_fixture_alloc(&own, BLOCK_BYTES);
  pinned_fixture_use(&own, first, 0);
  pinned_fixture_free(&own, first);
  LADE_EXPECT_OK(lade_pinned_stream_retire(own.pool, own.streams[0]));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.streams[0]));
  LADE_EXPECT(comes_back(&own, first));
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  pinned_fixture_use(&own, second, 0);
  pinned_fixture_free(&own, second);
  support_let_run(own.runtime);
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, second), LADE_PINNED_PENDING);
  support_stream_hold_end(&hold);
  LADE_EXPECT(comes_back(&own, second));
  pinned_fixture_close(&own);
}

#ifndef LADE_TEST_ON_GPU /* whose driver may take a stale handle for anything */
/* The program destroys a stream that a block was freed on. Its work goes on and nobody can be asked when it ends: the block
 * stays away, no call fails for it, and whoever may wait brings it back. */
static void stream_is_destroyed(const char *name, const lade_pinned_options *options, bool before_free) {
  pinned_fixture own;
  unsigned char bytes[64];
  if (!open_with(&own, name, options)) return;
  char *block = pinned_fixture_alloc(&own, BLOCK_BYTES);
  support_pattern_fill(block, sizeof bytes, 5, 0);
  pinned_fixture_use(&own, block, 0);
  if (!before_free) pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.streams[0]));
  if (before_free) pinned_fixture_free(&own, block);
  for (int round = 0; round < 2; round++) {
    LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
    LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).quarantined_uses, 1);
    char *other = pinned_fixture_alloc(&own, BLOCK_BYTES);
    LADE_EXPECT_NE_PTR(other, block);
    memset(other, round, BLOCK_BYTES);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device + sizeof bytes, other, sizeof bytes, own.streams[1]));
    LADE_EXPECT_OK(lade_pinned_record_event(own.pool, other, own.streams[1]));
    pinned_fixture_free(&own, other);
    if (own.pool->policy == &ladei_pinned_policy_default)
      LADE_EXPECT(comes_back(&own, other)); /* its queue stops at the first block in it */
    support_let_run(own.runtime);
  }
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[1]));
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).quarantined_uses, 0);
  LADE_EXPECT_EQ_UINT(reserved_bytes(&own), 0);
  LADE_EXPECT_OK(OP(&own, copy_sync, 0, LADEI_COPY_D2H, bytes, own.device, sizeof bytes));
  LADE_EXPECT_PATTERN(bytes, sizeof bytes, 5, 0);
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.streams[0]));
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedRuntimes, BlocksOfAStreamDestroyedWithoutRetireWaitForEmptyCache, SUPPORT_RUNTIMES, name) {
  static const bool before_free[] = {false, true, true, true};
  static const uint32_t batches[] = {16, 16, 1, 0}, flags[] = {0, 0, 0, LADE_PINNED_REFERENCE};
  for (int i = 0; i < 4; i++) {
    lade_pinned_options options = pinned_fixture_options();
    options.event_batch = batches[i];
    options.flags = flags[i];
    lade_test_context("batch %u, flags %u, destroyed %s the free", batches[i], flags[i],
                      before_free[i] ? "before" : "after");
    stream_is_destroyed(name, &options, before_free[i]);
  }
  lade_test_context("%s", "");
}
#endif

/* With its event recorded a block needs nothing of its stream. */
LADE_TEST_P(PinnedRuntimes, StreamMayBeDestroyedOnceItsEventsAreRecorded, SUPPORT_RUNTIMES, name) {
  static const uint32_t batches[] = {1, 0}, flags[] = {0, LADE_PINNED_REFERENCE};
  for (int i = 0; i < 2; i++) {
    pinned_fixture own;
    lade_pinned_options options = pinned_fixture_options();
    options.event_batch = batches[i];
    options.flags = flags[i];
    if (!open_with(&own, name, &options)) return;
    char *block = pinned_fixture_alloc(&own, BLOCK_BYTES);
    pinned_fixture_use(&own, block, 0);
    pinned_fixture_free(&own, block);
    LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.streams[0]));
    LADE_EXPECT(comes_back(&own, block));
    LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.streams[0]));
    pinned_fixture_close(&own);
  }
}

typedef struct thread_use {
  const pinned_fixture *own;
  void *block;
} thread_use;

static void *use_per_thread(void *user) {
  const thread_use *use = user;
  LADE_EXPECT_OK(lade_runtime_set_device(use->own->runtime, 0));
  LADE_EXPECT_OK(lade_copy_async(use->own->runtime, use->own->device, use->block, 64, LADE_STREAM_PER_THREAD));
  LADE_EXPECT_OK(lade_pinned_record_event(use->own->pool, use->block, LADE_STREAM_PER_THREAD));
  LADE_EXPECT_OK(lade_stream_synchronize(use->own->runtime, LADE_STREAM_PER_THREAD)); /* it ends with the thread */
  return NULL;
}

/* The handle means a stream of its own in each thread, and only there: each use gets its event in its thread. */
LADE_TEST_P(PinnedRuntimes, PerThreadHandleIsAStreamOfEachThread, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  if (!open_batch(&own, name, 0)) return;
  thread_use use = {&own, pinned_fixture_alloc(&own, BLOCK_BYTES)};
  pthread_t thread;
  uint64_t recorded = support_call_count(own.runtime, "event_record");
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, use_per_thread, &use), 0);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "event_record"), recorded + 1);
  use_per_thread(&use);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "event_record"), recorded + 2);
  pinned_fixture_free(&own, use.block);
  LADE_EXPECT(comes_back(&own, use.block));
  pinned_fixture_close(&own);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static bool capture_begin(const pinned_fixture *own, const ladei_stream *stream) {
  lade_status status = own->runtime->ops->capture_begin(own->runtime->self, stream, LADEI_CAPTURE_RELAXED);
  LADE_EXPECT_OK(status);
  return status == LADE_OK;
}

/* NULL where the capture was broken meanwhile. */
static ladei_graph capture_end(const pinned_fixture *own, const ladei_stream *stream) {
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(own->runtime->ops->capture_end(own->runtime->self, stream, &graph));
  return graph;
}

LADE_TEST_P(PinnedRuntimes, CaptureBegunBetweenFreeAndEventIsNotBroken, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  if (!open_batch(&own, name, 0)) return;
  char *before = pinned_fixture_alloc(&own, BLOCK_BYTES), *during = pinned_fixture_alloc(&own, BLOCK_BYTES);
  ladei_stream stream = resolved(&own, 0);
  pinned_fixture_use(&own, before, 0);
  pinned_fixture_use(&own, during, 0);
  pinned_fixture_free(&own, before); /* its batch has no event yet */
  LADE_ASSERT(capture_begin(&own, &stream));
  pinned_fixture_free(&own, during);
  char *other = pinned_fixture_alloc(&own, BLOCK_BYTES); /* would like an event, and does without */
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, before), LADE_PINNED_PENDING);
  LADE_EXPECT_EQ_INT(state_of(&own, during), LADE_PINNED_PENDING);
  ladei_graph graph = capture_end(&own, &stream);
  LADE_EXPECT(comes_back(&own, before));
  LADE_EXPECT(comes_back(&own, during));
  LADE_EXPECT_OK(own.runtime->ops->graph_destroy(own.runtime->self, graph));
  pinned_fixture_free(&own, other);
  pinned_fixture_close(&own);
}

/* A host function that runs until it is told to end, and what ends beside it. */
typedef struct gate {
  lade_runtime *runtime;
  uint64_t launches; /* before the pool waits */
  atomic_bool entered, open;
  _Atomic(uint64_t) function_thread, end_thread;
} gate;

static void gate_pass(void *user) {
  gate *own = user;
  atomic_store(&own->function_thread, ladei_thread_number());
  atomic_store(&own->entered, true);
  while (!atomic_load(&own->open)) sched_yield();
}

static void gate_end(void *user) { atomic_store(&((gate *)user)->end_thread, ladei_thread_number()); }

/* Opens once the pool waits for the driver's reports: it has launched a graph of its own for that. */
static void *gate_open_later(void *user) {
  gate *own = user;
  while (support_call_count(own->runtime, "graph_launch") == own->launches && !atomic_load(&own->open)) sched_yield();
  atomic_store(&own->open, true);
  return NULL;
}

/* The end of a graph that was launched is reported by a thread of the driver, which a host function may hold up: the pool did not
 * wait for the report then, and was not destroyed. On a GPU this shows which thread that is. */
LADE_TEST_P(PinnedRuntimes, ReportsBehindAHostFunctionAreWaitedFor, SUPPORT_THREADED_RUNTIMES, name) {
  pinned_fixture own;
  pthread_t opening;
  if (!open_batch(&own, name, 0)) return;
  gate shut = {.runtime = own.runtime};
  char *block = pinned_fixture_alloc(&own, BLOCK_BYTES);
  ladei_stream stream = resolved(&own, 0), busy = resolved(&own, 1);
  ladei_user_object object = NULL;
  ladei_graph_exec exec = NULL;
  LADE_ASSERT(capture_begin(&own, &stream));
  pinned_fixture_use(&own, block, 0);
  ladei_graph graph = capture_end(&own, &stream);
  LADE_ASSERT_OK(OP(&own, user_object_create, gate_end, &shut, &object));
  LADE_ASSERT_OK(OP(&own, graph_retain_user_object, graph, object));
  LADE_ASSERT_OK(OP(&own, graph_instantiate, graph, &exec));
  LADE_EXPECT_OK(OP(&own, graph_destroy, graph));
  LADE_EXPECT_OK(OP(&own, graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(&own, stream_synchronize, &stream));
  pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(OP(&own, host_function, &busy, gate_pass, &shut));
  while (!atomic_load(&shut.entered)) sched_yield();
  LADE_EXPECT_OK(OP(&own, graph_exec_destroy, exec));
  shut.launches = support_call_count(own.runtime, "graph_launch");
  LADE_ASSERT(pthread_create(&opening, NULL, gate_open_later, &shut) == 0);
  LADE_EXPECT_OK(ladei_pinned_pool_synchronize(own.pool));
  LADE_EXPECT_EQ_UINT(pending_bytes(&own), 0);
  atomic_store(&shut.open, true);
  pthread_join(opening, NULL);
  LADE_EXPECT_OK(OP(&own, stream_synchronize, &busy));
  while (atomic_load(&shut.end_thread) == 0) sched_yield();
  printf("  ends of launched graphs and host functions: %s\n",
         shut.end_thread == shut.function_thread ? "one thread of the driver" : "threads of their own");
  pinned_fixture_close(&own);
}

/* A graph may read the block at every launch: it stays until the graph is gone, and comes back then. */
LADE_TEST_P(PinnedRuntimes, GraphDestroyedThenItsBlocksReturn, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  unsigned char bytes[64];
  if (!open_batch(&own, name, 0)) return;
  const lade_runtime_ops *ops = own.runtime->ops;
  char *block = pinned_fixture_alloc(&own, BLOCK_BYTES);
  ladei_stream stream = resolved(&own, 0);
  ladei_graph_exec exec = NULL;
  support_pattern_fill(block, 64, 5, 0);
  LADE_ASSERT(capture_begin(&own, &stream));
  pinned_fixture_use(&own, block, 0);
  ladei_graph graph = capture_end(&own, &stream);
  LADE_EXPECT_OK(ops->graph_instantiate(own.runtime->self, graph, &exec));
  pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(ops->graph_destroy(own.runtime->self, graph));
  for (int launch = 0; launch < 2; launch++) {
    char *other = pinned_fixture_alloc(&own, BLOCK_BYTES);
    LADE_EXPECT_NE_PTR(other, block);
    memset(other, 0xff, BLOCK_BYTES);
    LADE_EXPECT_OK(ops->graph_launch(own.runtime->self, exec, &stream));
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_EXPECT_OK(ops->copy_sync(own.runtime->self, 0, LADEI_COPY_D2H, bytes, own.device, 64));
    LADE_EXPECT_PATTERN(bytes, 64, 5, 0);
    pinned_fixture_free(&own, other);
  }
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  LADE_EXPECT_OK(ops->graph_exec_destroy(own.runtime->self, exec));
  LADE_EXPECT(comes_back(&own, block));
  pinned_fixture_close(&own);
}

/* One that never became executable. */
LADE_TEST_P(PinnedRuntimes, BlockOfAGraphComesBackWithTheGraph, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  ladei_graph graph = NULL;
  if (!open_with(&own, name, NULL)) return;
  void *block = pinned_fixture_alloc(&own, LADEI_MIB);
  ladei_stream stream = resolved(&own, 0);
  LADE_ASSERT_OK(OP(&own, capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(OP(&own, copy, LADEI_COPY_H2D, own.device, block, LADEI_MIB, &stream));
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_ASSERT_OK(OP(&own, capture_end, &stream, &graph));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_UINT(pending_bytes(&own), LADEI_MIB);
  LADE_EXPECT_OK(OP(&own, graph_destroy, graph));
  LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  pinned_fixture_close(&own);
}

/* ---- Where memory comes from ------------------------------------------------------------------------------------- */

static void expect_round_trip(const pinned_fixture *own, void *block, size_t bytes, uint64_t seed) {
  support_pattern_fill(block, bytes, seed, 0);
  LADE_EXPECT_OK(lade_copy_async(own->runtime, own->device, block, bytes, own->streams[0]));
  LADE_EXPECT(support_wait_stream(own->runtime, own->streams[0]));
  support_pattern_fill(block, bytes, seed + 1, 0);
  LADE_EXPECT_OK(lade_copy_async(own->runtime, block, own->device, bytes, own->streams[0]));
  LADE_EXPECT(support_wait_stream(own->runtime, own->streams[0]));
  LADE_EXPECT_PATTERN(block, bytes, seed, 0);
}

static void expect_source_serves(const char *name, uint32_t source, lade_pinned_options options) {
  enum { BYTES = (3 << 20) + 512 };
  pinned_fixture own;
  void *block = NULL;
  options.sources = source;
  if (!open_with(&own, name, &options)) return;
  lade_status status = lade_pinned_alloc(own.pool, BYTES, &block);
  if (status != LADE_ERR_UNSUPPORTED) { /* a driver without pools of host memory */
    LADE_EXPECT_OK(status);
    LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, block).source, (int)source);
    expect_round_trip(&own, block, BYTES, source);
    pinned_fixture_free(&own, block);
  }
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(reserved_bytes(&own), 0);
  pinned_fixture_close(&own);
}

/* In segments of the pool's choice, and in small ones that are registered piece by piece. */
LADE_TEST_P(PinnedRuntimes, EverySourceGivesMemoryThatTheDeviceReaches, SUPPORT_RUNTIMES, name) {
  static const uint32_t sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_DRIVER, LADE_PINNED_SOURCE_POOL,
                                     LADE_PINNED_SOURCE_PAGEABLE};
  lade_pinned_options whole, pieces = pinned_fixture_options();
  lade_pinned_options_init(&whole);
  pieces.register_chunk_bytes = LADEI_MIB;
  for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
    lade_test_context("source %u", sources[i]);
    expect_source_serves(name, sources[i], whole);
    expect_source_serves(name, sources[i], pieces);
  }
  lade_test_context("%s", "");
}

/* The driver packs small requests into common pages. */
static void driver_misaligns(size_t below_bytes) {
  const loopback_hooks *hooks = loopback_hooks_get();
  if (hooks != NULL) hooks->misalign(below_bytes);
}

/* Powers of two below a page, each in a page of its own, whatever the driver makes of them. What began within a page was given
 * back, which waits for the device on an H200, and 2 MiB were asked for in its place. */
LADE_TEST_P(PinnedRuntimes, ReferencePolicyServesSmallBlocks, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  void *blocks[8];
  lade_pinned_options options = pinned_fixture_options();
  options.flags = LADE_PINNED_REFERENCE;
  if (!open_with(&own, name, &options)) return;
  driver_misaligns(1 << 20);
  const loopback_hooks *hooks = strcmp(name, "cuda") == 0 ? loopback_hooks_get() : NULL;
  uint64_t driver_allocs = hooks != NULL ? hooks->calls("cuMemHostAlloc") : 0;
  for (int i = 0; i < 8; i++) {
    blocks[i] = pinned_fixture_alloc(&own, 1000);
    memset(blocks[i], i, 1000);
    LADE_EXPECT_EQ_UINT((uintptr_t)blocks[i] % LADEI_PINNED_PAGE_BYTES, 0);
  }
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_alloc"), 8);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 0);
  if (hooks != NULL) LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostAlloc") - driver_allocs, 8);
  for (int i = 0; i < 8; i++) {
    LADE_EXPECT_EQ_INT(((char *)blocks[i])[999], i);
    LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, blocks[i]).bytes, 1024);
    pinned_fixture_use(&own, blocks[i], i % 2);
    pinned_fixture_free(&own, blocks[i]);
  }
  LADE_EXPECT(comes_back(&own, blocks[7]));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_alloc"), 8);
  pinned_fixture_close(&own);
  driver_misaligns(0);
}

/* Also where no request of any size begins on a page: one is given back then, and a page more asked for. */
LADE_TEST_P(PinnedRuntimes, DriverMemoryMayBeginAnywhere, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.sources = LADE_PINNED_SOURCE_DRIVER;
  if (!open_with(&own, name, &options)) return;
  driver_misaligns(SIZE_MAX);
  char *block = pinned_fixture_alloc(&own, 2 * BLOCK_BYTES);
  LADE_EXPECT_EQ_UINT((uintptr_t)block % LADEI_PINNED_PAGE_BYTES, 0);
  expect_round_trip(&own, block, 2 * BLOCK_BYTES, 5);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
  driver_misaligns(0);
}

LADE_TEST_P(PinnedRuntimes, PinsAheadAndGivesBack, SUPPORT_RUNTIMES, name) {
  pinned_fixture own;
  if (!open_with(&own, name, NULL)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 100 * LADEI_MIB, 0));
  LADE_EXPECT_GE_UINT(reserved_bytes(&own), 100 * LADEI_MIB);
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 64 * LADEI_MIB));
  LADE_EXPECT_LE_UINT(reserved_bytes(&own), 64 * LADEI_MIB);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(reserved_bytes(&own), 0);
  pinned_fixture_close(&own);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200, PIECE = 96 * 1024, RING = 4 };

typedef struct worker {
  const pinned_fixture *own;
  int index;
  pthread_t thread;
} worker;

static uint64_t piece_seed(const worker *self, unsigned round, unsigned piece) {
  return (uint64_t)self->index << 32 | (round * RING + piece);
}

static void ring_send(const worker *self, lade_stream stream, char *to, unsigned round) {
  lade_pinned_pool *pool = self->own->pool;
  for (unsigned i = 0; i < RING; i++) {
    void *block = NULL;
    LADE_ASSERT_OK(lade_pinned_alloc(pool, PIECE, &block));
    support_pattern_fill(block, PIECE, piece_seed(self, round, i), 0);
    LADE_EXPECT_OK(lade_copy_async(self->own->runtime, to + i * PIECE, block, PIECE, stream));
    LADE_EXPECT_OK(lade_pinned_record_event(pool, block, stream));
    LADE_EXPECT_OK(lade_pinned_free(pool, block));
  }
}

static void ring_expect(const worker *self, lade_stream stream, const char *from, unsigned round) {
  char *back = malloc(PIECE);
  LADE_ASSERT(back != NULL);
  LADE_EXPECT_OK(lade_stream_synchronize(self->own->runtime, stream));
  for (unsigned i = 0; i < RING; i++) {
    LADE_EXPECT_OK(OP(self->own, copy_sync, 0, LADEI_COPY_D2H, back, from + i * PIECE, PIECE));
    LADE_EXPECT_PATTERN(back, PIECE, piece_seed(self, round, i), 0);
  }
  free(back);
}

/* Each block is written again as soon as the pool hands it out: a copy that had not read it would carry wrong bytes. */
static void *worker_run(void *user) {
  const worker *self = user;
  lade_runtime *runtime = self->own->runtime;
  char *ring = self->own->device + (size_t)self->index * RING * PIECE;
  lade_stream stream = NULL;
  LADE_EXPECT_OK(lade_runtime_set_device(runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream));
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    ring_send(self, stream, ring, round);
    if (round % 50 == 49) ring_expect(self, stream, ring, round);
  }
  LADE_EXPECT_OK(lade_stream_synchronize(runtime, stream));
  LADE_EXPECT_OK(lade_pinned_stream_retire(self->own->pool, stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  return NULL;
}

LADE_TEST_P(PinnedRuntimes, ThreadsWithStreamsOfTheirOwnNeverOverwriteEachOther, SUPPORT_THREADED_RUNTIMES, name) {
  pinned_fixture own;
  worker workers[THREADS];
  if (!open_with(&own, name, NULL)) return;
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.own = &own, .index = i};
    LADE_ASSERT_EQ_INT(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  pinned_fixture_close(&own);
}
