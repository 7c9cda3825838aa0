/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: One thread captures graph after graph into private pools; others allocate, note uses by other
 * streams, free, and give the cache back. The software device judges: memory is never reused without an order between
 * the uses, and no capture is broken.
 *
 *   capturer  fresh streams C, D:  begin .. blocks of the pool used on C and D, and one from outside .. end, launch, destroy
 *   worker    streams s, t:        alloc on s, fill on s, t after s, fill on t, record t, free; now and then empty_cache
 *
 * Blocks that wait for the streams of a capture would let lade ask those just when the capture begins, a race that is
 * documented; so the streams are made for the capture. Memory cached on them is no matter, as the pool's begin names them.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "lade/device.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"

#define MIB ((size_t)1 << 20)

enum { WORKERS = 2, BLOCKS = 4, FILLED = 512, SEED = 20260, ROUND_NS = 700000000 };

typedef struct stress {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  support_soak soak;
  atomic_bool stop;
  atomic_ulong captures, blocks, shortages;
} stress;

typedef struct thread_state {
  stress *own;
  uint64_t seed;
  pthread_t thread;
} thread_state;

#define OP(own, name, ...) ((own)->runtime->ops->name((own)->runtime->self, ##__VA_ARGS__))

static bool going(stress *own) {
  if (!support_soak_goes_on(&own->soak) || lade_test_has_failed()) atomic_store(&own->stop, true);
  return !atomic_load(&own->stop);
}

static ladei_stream stream_open(stress *own) {
  lade_stream handle = NULL;
  ladei_stream stream = {0};
  LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &handle));
  LADE_EXPECT_OK(OP(own, stream_resolve, handle, &stream));
  return stream;
}

static void stream_close(stress *own, const ladei_stream *stream) {
  LADE_EXPECT_OK(lade_device_stream_retire(own->allocator, stream->handle));
  LADE_EXPECT_OK(lade_stream_destroy(own->runtime, stream->handle));
}

static void stream_follow(stress *own, lade_event event, const ladei_stream *before, const ladei_stream *after) {
  LADE_EXPECT_OK(OP(own, event_record, event, before));
  LADE_EXPECT_OK(OP(own, stream_wait_event, after, event));
}

/* NULL where memory is short, which others' blocks may well make it. */
static char *block_alloc(stress *own, size_t bytes, const ladei_stream *stream) {
  void *block = NULL;
  lade_status status = lade_device_alloc(own->allocator, bytes, stream->handle, &block);
  if (status == LADE_ERR_LIMIT || status == LADE_ERR_OUT_OF_DEVICE_MEMORY)
    atomic_fetch_add(&own->shortages, 1);
  else
    LADE_EXPECT_OK(status);
  atomic_fetch_add(&own->blocks, block != NULL);
  return block;
}

static void block_use(stress *own, char *block, const ladei_stream *stream) {
  LADE_EXPECT_OK(OP(own, fill, block, 1, FILLED, stream));
}

/* ---- The capturer -------------------------------------------------------------------------------------------------- */

typedef struct capturing {
  stress *own;
  support_random random;
  ladei_stream outside, origin, side;
  lade_event events[2];
  lade_device_pool_id pool;
} capturing;

/* Blocks of the pool, used on both streams and freed at once: what comes next must not get their memory unordered. */
static void capture_blocks(capturing *c) {
  stress *own = c->own;
  for (int i = 0; i < BLOCKS; i++) {
    char *block = block_alloc(own, MIB * (1 + support_random_below(&c->random, 3)) / 2, &c->origin);
    if (block == NULL) continue;
    block_use(own, block, &c->origin);
    stream_follow(own, c->events[0], &c->origin, &c->side);
    block_use(own, block, &c->side);
    LADE_EXPECT_OK(lade_device_record_stream(own->allocator, block, c->side.handle));
    LADE_EXPECT_OK(lade_device_free(own->allocator, block));
  }
}

/* A block of a stream outside: the graph uses it as long as it lives, though it is freed now. */
static void capture_outside(capturing *c, char *block) {
  if (block == NULL) return;
  block_use(c->own, block, &c->origin);
  LADE_EXPECT_OK(lade_device_record_stream(c->own->allocator, block, c->origin.handle));
  LADE_EXPECT_OK(lade_device_free(c->own->allocator, block));
}

static void graph_use(capturing *c, ladei_graph graph) {
  stress *own = c->own;
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(OP(own, graph_instantiate, graph, &exec));
  for (int i = 0; i < 2 && exec != NULL; i++) {
    LADE_EXPECT_OK(OP(own, graph_launch, exec, &c->origin));
    char *next = block_alloc(own, 3 * MIB, &c->outside); /* would be the block that the graph uses */
    if (next != NULL) {
      block_use(own, next, &c->outside);
      LADE_EXPECT_OK(lade_device_free(own->allocator, next));
    }
    LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, c->origin.handle));
    LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, c->outside.handle));
  }
  if (exec != NULL) LADE_EXPECT_OK(OP(own, graph_exec_destroy, exec));
  LADE_EXPECT_OK(OP(own, graph_destroy, graph));
}

static void capture_once(capturing *c) {
  stress *own = c->own;
  ladei_graph graph = NULL;
  c->origin = stream_open(own);
  c->side = stream_open(own);
  char *cached = block_alloc(own, MIB, &c->origin); /* others want to give it back */
  if (cached != NULL) LADE_EXPECT_OK(lade_device_free(own->allocator, cached));
  char *outside = block_alloc(own, 3 * MIB, &c->outside);
  LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, c->outside.handle));
  LADE_EXPECT_OK(lade_device_pool_begin(own->allocator, c->pool, &c->origin.handle, 1));
  LADE_EXPECT_OK(OP(own, capture_begin, &c->origin, LADEI_CAPTURE_GLOBAL));
  stream_follow(own, c->events[0], &c->origin, &c->side);
  capture_outside(c, outside);
  capture_blocks(c);
  stream_follow(own, c->events[1], &c->side, &c->origin);
  LADE_EXPECT_OK(OP(own, capture_end, &c->origin, &graph)); /* nobody has broken it */
  LADE_EXPECT_OK(lade_device_pool_end(own->allocator, c->pool));
  if (graph != NULL) graph_use(c, graph);
  LADE_EXPECT_OK(lade_device_pool_release(own->allocator, c->pool));
  stream_close(own, &c->origin);
  stream_close(own, &c->side);
  c->pool.first++;
  atomic_fetch_add(&own->captures, 1);
}

static void *capturer_run(void *user) {
  thread_state *t = user;
  stress *own = t->own;
  capturing c = {.own = own, .outside = stream_open(own), .pool = {1, 0}};
  support_random_start_quietly(&c.random, t->seed);
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_event_create(own->runtime, 0, &c.events[i]));
  do {
    capture_once(&c);
  } while (going(own)); /* once at least: a busy machine may begin the thread late */
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_event_destroy(own->runtime, c.events[i]));
  stream_close(own, &c.outside);
  return NULL;
}

/* ---- The workers --------------------------------------------------------------------------------------------------- */

static void *worker_run(void *user) {
  thread_state *t = user;
  stress *own = t->own;
  support_random random;
  support_random_start_quietly(&random, t->seed);
  ladei_stream first = stream_open(own), second = stream_open(own);
  lade_event event = NULL;
  LADE_EXPECT_OK(lade_event_create(own->runtime, 0, &event));
  while (going(own)) {
    char *block = block_alloc(own, MIB * (1 + support_random_below(&random, 6)) / 2, &first);
    if (block != NULL) {
      block_use(own, block, &first);
      stream_follow(own, event, &first, &second);
      block_use(own, block, &second);
      LADE_EXPECT_OK(lade_device_record_stream(own->allocator, block, second.handle));
      LADE_EXPECT_OK(lade_device_free(own->allocator, block));
    }
    if (support_random_below(&random, 12) == 0) LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  }
  LADE_EXPECT_OK(lade_event_destroy(own->runtime, event));
  stream_close(own, &first);
  stream_close(own, &second);
  return NULL;
}

static void judge(stress *own) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(own->runtime, &report));
  lade_test_context("%s", report.last_finding);
  LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
  LADE_EXPECT_EQ_UINT(report.stale_handles, 0);
  lade_test_context("%s", "");
}

/* On a runtime of its own: a software device hands out no address twice, and those that a sanitiser allows come to an end. */
static void round_run(bool expandable) {
  stress own = {.runtime = support_runtime_open("cpu")};
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = 60 * MIB; /* so that memory runs short, in captures too */
  options.expandable_segments = expandable;
  options.flags = expandable ? LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  if (own.runtime == NULL) return;
  LADE_ASSERT_OK(lade_device_allocator_create(own.runtime, 0, &options, &own.allocator));
  own.soak = support_soak_begin(0.7);
  if (own.soak.length_ns > ROUND_NS) own.soak.length_ns = ROUND_NS;
  thread_state threads[1 + WORKERS];
  for (int i = 0; i <= WORKERS; i++) {
    threads[i] = (thread_state){.own = &own, .seed = SEED + (uint64_t)i};
    void *(*run)(void *) = i == 0 ? capturer_run : worker_run;
    LADE_ASSERT(pthread_create(&threads[i].thread, NULL, run, &threads[i]) == 0);
  }
  for (int i = 0; i <= WORKERS; i++) pthread_join(threads[i].thread, NULL);
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(own.allocator, &stats));
  printf("%lu captures, %lu blocks, %lu shortages, %llu times memory was kept for a capture\n", own.captures,
         own.blocks, own.shortages, (unsigned long long)stats.capture_kept);
  LADE_EXPECT(own.captures > 0);
  LADE_EXPECT_OK(lade_device_allocator_destroy(own.allocator, true));
  judge(&own);
  support_runtime_close(own.runtime);
}

static void stress_run(bool expandable) {
  support_soak soak = support_soak_begin(0.7);
  do {
    round_run(expandable);
  } while (support_soak_goes_on(&soak) && !lade_test_has_failed());
}

LADE_TEST(DeviceCapturesStress, NoBlockComesBackEarlyAndNoCaptureIsBroken) { stress_run(false); }

LADE_TEST(DeviceCapturesStress, NorWithExpandableSegments) { stress_run(true); }
