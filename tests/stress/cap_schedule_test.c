/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads in a pinned pool at its cap: one asks for memory, the other one brings some
 * back, or moves it about. The request is never refused, as at every moment there is room for it, and no wake-up is
 * missed: a thread that sleeps although memory came back makes a schedule that does not end.
 *
 * The device is "sim" with a clock that stands, but for the pool it runs by itself: so a wait sleeps, as on a GPU.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/runtimes.h"

typedef enum bringer {
  FREES,
  FREES_THE_ONLY_ONE,
  EMPTIES_THE_CACHE,
  TAKES_AND_FREES,
  TAKES_THE_REST_AND_FREES,
  RESERVES,
  POLLS
} bringer;

typedef struct scene {
  const char *name;
  size_t bytes;          /* of a block */
  unsigned cap_blocks;   /* as many as the cap is long */
  bringer other;         /* what the other thread does */
  bool waits;            /* the request may wait, and has to: a block is pending that does not come back, or none is */
  bool taken_by_asker;   /* the block that the other thread frees */
  unsigned magazine_mib; /* 64: the depot has room for what comes back */
} scene;

#define SCENES(X)                                                                                                      \
  X("a free of a small block", 64 * LADEI_KIB, 2, FREES, true, false, 4)                                               \
  X("a free of a small block of the waiter's", 64 * LADEI_KIB, 2, FREES, true, true, 4)                                \
  X("a free of a block that the depot has room for", 256 * LADEI_KIB, 2, FREES, true, false, 64)                       \
  X("a free of such a block of the waiter's", 256 * LADEI_KIB, 2, FREES, true, true, 64)                               \
  X("a free of a large block", 2 * LADEI_MIB, 2, FREES, true, false, 4)                                                \
  X("a free of a large block of the waiter's", 2 * LADEI_MIB, 2, FREES, true, true, 4)                                 \
  X("a free of the only block, a small one", 64 * LADEI_KIB, 1, FREES_THE_ONLY_ONE, true, false, 4)                    \
  X("a free of the only block, the waiter's", 64 * LADEI_KIB, 1, FREES_THE_ONLY_ONE, true, true, 4)                    \
  X("a free of the only block, that the depot has room for", 256 * LADEI_KIB, 1, FREES_THE_ONLY_ONE, true, false, 64)  \
  X("a free of the only block, a large one", 2 * LADEI_MIB, 1, FREES_THE_ONLY_ONE, true, false, 4)                     \
  X("a free of the only block, a large one of the waiter's", 2 * LADEI_MIB, 1, FREES_THE_ONLY_ONE, true, true, 4)      \
  X("a segment that is unpinned", 2 * LADEI_MIB, 1, EMPTIES_THE_CACHE, false, false, 4)                                \
  X("blocks of a segment that is pinned", 4 * LADEI_KIB, 256, TAKES_AND_FREES, false, false, 4)                        \
  X("blocks that are taken together", 4 * LADEI_KIB, 30, TAKES_THE_REST_AND_FREES, false, false, 4)                    \
  X("a segment that is reserved, and let go", 2 * LADEI_MIB, 2, RESERVES, false, false, 4)                             \
  X("a block that another thread's poll delivers", 2 * LADEI_MIB, 1, POLLS, false, false, 4)                           \
  X("a small block that another thread's poll delivers", 64 * LADEI_KIB, 1, POLLS, false, false, 4)

static const scene scenes[] = {
#define SCENE(...) {__VA_ARGS__},
    SCENES(SCENE)
#undef SCENE
};

/* For LADE_TEST_P. */
static const char *const names[] = {
#define SCENE_NAME(name, ...) name,
    SCENES(SCENE_NAME) NULL
#undef SCENE_NAME
};

typedef struct bench {
  const scene *now;
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream stream; /* busy for ever */
  lade_stream idle;   /* has nothing to do */
  void *plain;        /* the block that comes back */
  void *pending;
  void *held[LADEI_PINNED_BATCH_MOST - 1]; /* after so many the next miss takes as many, which is all */
  lade_status status;
} bench;

static lade_runtime_ops standing; /* sim's, without the op that lets time pass */
static lade_status (*register_below)(void *self, int device, void *pointer, size_t bytes, unsigned flags);
static lade_status (*unregister_below)(void *self, void *pointer);

static lade_status point_register(void *self, int device, void *pointer, size_t bytes, unsigned flags) {
  scheduler_point("host_register");
  return register_below(self, device, pointer, bytes, flags);
}

static lade_status point_unregister(void *self, void *pointer) {
  scheduler_point("host_unregister");
  return unregister_below(self, pointer);
}

static lade_status (*query_below)(void *self, const ladei_stream *stream);

static lade_status point_query(void *self, const ladei_stream *stream) {
  scheduler_point("stream_query");
  return query_below(self, stream);
}

static void nothing(void *user) { (void)user; }

static void *alloc(bench *own) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, own->now->bytes, &block));
  return block;
}

static void prepare(void *user) {
  static const ladei_pinned_hooks machine = {LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:1 pu:1", "/nonexistent", 0, 0};
  bench *own = user;
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = LADEI_MIB;
  options.magazine_bytes = own->now->magazine_mib * LADEI_MIB;
  options.max_bytes = own->now->cap_blocks * own->now->bytes;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.wait_ms = own->now->waits ? 1000 : 0;
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, &options, &machine, &own->pool));
  own->plain = own->pending = NULL;
  own->status = LADE_ERR_INTERNAL;
}

/* Thread 0 asks. */
static void warm(void *user, int index) {
  bench *own = user;
  bool takes = own->now->other <= FREES_THE_ONLY_ONE && (index == 0) == own->now->taken_by_asker;
  if (index == 1 && own->now->other == EMPTIES_THE_CACHE) LADE_EXPECT_OK(lade_pinned_free(own->pool, alloc(own)));
  for (size_t i = 0;
       index == 1 && own->now->other == TAKES_THE_REST_AND_FREES && i < sizeof own->held / sizeof own->held[0]; i++)
    own->held[i] = alloc(own);
  if (index == 1 && own->now->other == POLLS) {
    void *block = alloc(own);
    LADE_EXPECT_OK(lade_pinned_record_event(own->pool, block, own->idle));
    LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
  }
  if (!takes) return;
  own->plain = alloc(own);
  if (own->now->other == FREES_THE_ONLY_ONE) return;
  own->pending = alloc(own);
  LADE_EXPECT_OK(lade_pinned_record_event(own->pool, own->pending, own->stream));
  LADE_EXPECT_OK(lade_pinned_free(own->pool, own->pending));
}

static void body(void *user, int index) {
  bench *own = user;
  void *block = NULL;
  if (index == 0) {
    own->status = lade_pinned_alloc(own->pool, own->now->bytes, &block);
    if (own->status == LADE_OK) LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
    return;
  }
  switch (own->now->other) {
  case FREES:
  case FREES_THE_ONLY_ONE: LADE_EXPECT_OK(lade_pinned_free(own->pool, own->plain)); break;
  case EMPTIES_THE_CACHE: LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool)); break;
  case TAKES_AND_FREES:
  case TAKES_THE_REST_AND_FREES: LADE_EXPECT_OK(lade_pinned_free(own->pool, alloc(own))); break;
  case RESERVES:
    LADE_EXPECT_OK(lade_pinned_reserve(own->pool, own->now->bytes, 0));
    LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool));
    break;
  case POLLS: LADE_EXPECT_OK(lade_pinned_process_events(own->pool)); break;
  }
}

static void judge(void *user) {
  bench *own = user;
  if (own->status != LADE_OK) LADE_FAIL("%s: the request ended with %s", own->now->name, lade_status_name(own->status));
  for (size_t i = 0; own->now->other == TAKES_THE_REST_AND_FREES && i < sizeof own->held / sizeof own->held[0]; i++)
    LADE_EXPECT_OK(lade_pinned_free(own->pool, own->held[i]));
  if (own->pending != NULL) LADE_EXPECT_OK(lade_soft_stream_hold(own->runtime, own->stream, false));
  LADE_EXPECT_OK(ladei_retire_shards_synchronize(own->pool->retire));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  if (own->pending != NULL) {
    LADE_EXPECT_OK(lade_soft_stream_hold(own->runtime, own->stream, true));
    ladei_stream stream;
    LADE_EXPECT_OK(own->runtime->ops->stream_resolve(own->runtime->self, own->stream, &stream));
    LADE_EXPECT_OK(own->runtime->ops->host_function(own->runtime->self, &stream, nothing, NULL));
  }
}

/* With switch points in driver calls. */
static lade_runtime *standing_open(void) {
  lade_runtime *runtime = support_runtime_open("sim");
  if (runtime == NULL) return NULL;
  standing = *runtime->ops;
  register_below = standing.host_register;
  unregister_below = standing.host_unregister;
  standing.host_register = point_register;
  standing.host_unregister = point_unregister;
  query_below = standing.stream_query;
  standing.stream_query = point_query;
  standing.step = NULL;
  runtime->ops = &standing;
  return runtime;
}

/* A test for each scene, so that processors share them. */
LADE_TEST_P(CapSchedule, ARequestIsServedInAllOrders, names, name) {
  bench own = {.now = &scenes[scheduler_place_of(names, name)]};
  ladei_stream stream;
  const scheduler_plan plan = {.threads = 2,
                               .preemptions = scheduler_preemptions(2),
                               .prepare = prepare,
                               .warm = warm,
                               .body = body,
                               .judge = judge};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  own.runtime = standing_open();
  if (own.runtime == NULL) return;
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.stream));
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.idle));
  LADE_EXPECT_OK(lade_soft_stream_hold(own.runtime, own.stream, true));
  LADE_EXPECT_OK(standing.stream_resolve(own.runtime->self, own.stream, &stream));
  LADE_EXPECT_OK(standing.host_function(own.runtime->self, &stream, nothing, NULL));
  printf("%s: %" PRIu64 " schedules\n", name, scheduler_explore(&plan, &own));
  LADE_EXPECT_OK(lade_soft_stream_hold(own.runtime, own.stream, false));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.stream));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.idle));
  support_runtime_close(own.runtime);
}

/* ---- A burst of misses ------------------------------------------------------------------------------------------- */

enum { BURST_THREADS = 2 };

typedef struct burst {
  bench bench;
  void *blocks[BURST_THREADS];
} burst;

static void burst_prepare(void *user) {
  static const scene small = {.name = "a burst of misses", .bytes = 64 * LADEI_KIB, .cap_blocks = 256};
  burst *own = user;
  own->bench.now = &small;
  prepare(&own->bench);
}

static void burst_body(void *user, int index) {
  burst *own = user;
  own->blocks[index] = alloc(&own->bench);
}

static void burst_judge(void *user) {
  burst *own = user;
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->bench.pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.driver_allocs, 1);
  for (int i = 0; i < BURST_THREADS; i++) LADE_EXPECT_OK(lade_pinned_free(own->bench.pool, own->blocks[i]));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->bench.pool, true));
}

/* One that missed before the other one's segment was there pinned a second one. */
LADE_TEST(CapSchedule, ABurstOfMissesPinsOneSegmentInAllOrders) {
  burst own = {.blocks = {NULL}};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  own.bench.runtime = standing_open();
  if (own.bench.runtime == NULL) return;
  const scheduler_plan plan = {.threads = BURST_THREADS,
                               .preemptions = scheduler_preemptions(1),
                               .prepare = burst_prepare,
                               .body = burst_body,
                               .judge = burst_judge};
  printf("a burst of misses: %" PRIu64 " schedules\n", scheduler_explore(&plan, &own));
  support_runtime_close(own.bench.runtime);
}
