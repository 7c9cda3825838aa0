/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: No memory for what a thread needs for itself: its cache in a pool, and its tallies. */
#include <pthread.h>
#include <stdlib.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"

/* Of the calling thread: of so many calls one succeeds; 0: all do. */
static _Thread_local unsigned one_succeeds_in;
static _Thread_local unsigned calls;

/* In the place of the system's: caches and tallies are all that host/ aligns. */
void *aligned_alloc(size_t alignment, size_t bytes) {
  void *memory = NULL;
  if (one_succeeds_in != 0 && ++calls % one_succeeds_in != 0) return NULL;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void pair(lade_pinned_pool *pool) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &block));
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
}

static lade_pinned_pool *pool_open(lade_runtime *runtime) {
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_pinned_options_init(&options);
  options.segment_bytes = 2 * LADEI_MIB;
  options.max_bytes = 64 * LADEI_MIB;
  LADE_EXPECT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  pair(pool); /* the cache of the node is there */
  return pool;
}

typedef struct outliving {
  lade_pinned_pool *first, *second;
  pthread_barrier_t step;
} outliving;

static void *use_two_pools(void *user) {
  outliving *own = user;
  pair(own->first);
  pthread_barrier_wait(&own->step);
  pthread_barrier_wait(&own->step); /* the first pool has ended */
  one_succeeds_in = 1000;
  pair(own->second);
  return NULL;
}

/* The bug: the thread's exit began at a cache that was freed when the thread found its pool ended and got no memory for
 * another. */
LADE_TEST(ThreadMemory, ThreadWithoutMemoryForACacheEndsAfterItsPool) {
  static outliving own;
  pthread_t thread;
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL) return;
  own.first = pool_open(runtime);
  own.second = pool_open(runtime);
  pthread_barrier_init(&own.step, NULL, 2);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, use_two_pools, &own), 0);
  pthread_barrier_wait(&own.step);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own.first, true));
  pthread_barrier_wait(&own.step);
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own.second));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own.second, true));
  support_runtime_close(runtime);
}

/* ---- Threads that mostly have no memory -------------------------------------------------------------------------- */

typedef struct worker {
  lade_pinned_pool *pool;
  lade_stream stream;
  unsigned number;
} worker;

static void *work(void *user) {
  enum { PAIRS = 400, HELD = 6 };
  const worker *own = user;
  support_random random;
  void *held[HELD] = {NULL};
  support_random_start_quietly(&random, support_seed(3) + own->number);
  one_succeeds_in = 1 + own->number % 4; /* 1: never without */
  for (int i = 0; i < PAIRS; i++) {
    void **slot = &held[i % HELD];
    if (*slot != NULL && i % 3 == 0) {
      lade_status noted = lade_pinned_record_event(own->pool, *slot, own->stream);
      LADE_EXPECT(noted == LADE_OK || (one_succeeds_in > 1 && noted == LADE_ERR_OUT_OF_HOST_MEMORY));
    }
    LADE_EXPECT_OK(lade_pinned_free(own->pool, *slot));
    LADE_EXPECT_OK(lade_pinned_alloc(own->pool, support_random_size(&random, 2 * LADEI_MIB), slot));
  }
  for (int i = 0; i < HELD; i++) LADE_EXPECT_OK(lade_pinned_free(own->pool, held[i]));
  return NULL;
}

LADE_TEST(ThreadMemory, ThreadsWithAndWithoutMemoryShareAPool) {
  enum { THREADS = 4 };
  worker workers[THREADS];
  pthread_t threads[THREADS];
  lade_stream stream = NULL;
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL) return;
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream));
  support_soak soak = support_soak_begin(0.3);
  while (support_soak_goes_on(&soak) && !lade_test_has_failed()) {
    lade_pinned_pool *pool = pool_open(runtime);
    void *block = NULL;
    LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &block));
    LADE_EXPECT_OK(lade_pinned_record_event(pool, block, stream)); /* the pool's first sight of a stream takes memory */
    LADE_EXPECT_OK(lade_pinned_free(pool, block));
    for (unsigned i = 0; i < THREADS; i++) {
      workers[i] = (worker){pool, stream, i};
      LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    LADE_EXPECT_OK(lade_stream_synchronize(runtime, stream));
    LADE_EXPECT_OK(lade_pinned_empty_cache(pool));
    LADE_EXPECT_EQ_UINT(ladei_pinned_gauge_current(&pool->counters.reserved_bytes), 0);
    LADE_EXPECT_OK(ladei_pinned_pool_check(pool));
    LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  }
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  support_runtime_close(runtime);
}
