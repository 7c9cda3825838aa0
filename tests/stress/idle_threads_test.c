/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: A thousand threads that have used a pool and sleep: they keep nothing from those that work. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/state/stats.h"
#include "host/state/thread_caches.h"
#include "host/state/usage.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { IDLE = 1000, PAIRS = 2000 };

typedef struct crowd {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  pthread_t threads[IDLE];
  pthread_barrier_t asleep, end;
  _Atomic(unsigned) failed;
} crowd;

/* Keeps as much ready as it may. */
static void *fill_and_sleep(void *user) {
  enum { BLOCKS = 24 };
  crowd *own = user;
  void *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++)
    if (lade_pinned_alloc(own->pool, 4096, &blocks[i]) != LADE_OK) atomic_fetch_add(&own->failed, 1);
  for (int i = 0; i < BLOCKS; i++)
    if (lade_pinned_free(own->pool, blocks[i]) != LADE_OK) atomic_fetch_add(&own->failed, 1);
  pthread_barrier_wait(&own->asleep);
  pthread_barrier_wait(&own->end);
  return NULL;
}

static bool threads_start(crowd *own) {
  pthread_attr_t small;
  int started = 0;
  pthread_attr_init(&small);
  LADE_EXPECT_EQ_INT(pthread_attr_setstacksize(&small, 128 << 10), 0);
  while (started < IDLE && pthread_create(&own->threads[started], &small, fill_and_sleep, own) == 0) started++;
  pthread_attr_destroy(&small);
  LADE_EXPECT_EQ_INT(started, IDLE); /* else those that are there wait for ever: the test's time runs out */
  pthread_barrier_wait(&own->asleep);
  return started == IDLE;
}

static bool crowd_open(crowd *own) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.max_bytes = 512 * LADEI_MIB;
  options.magazine_bytes = 16 * LADEI_MIB; /* a sixth of what they would keep */
  own->runtime = support_runtime_open("cpu");
  if (own->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_pinned_pool_create(own->runtime, &options, &own->pool));
  LADE_EXPECT_OK(lade_pinned_reserve(own->pool, 256 * LADEI_MIB, 0)); /* growing would empty the magazines */
  pthread_barrier_init(&own->asleep, NULL, IDLE + 1);
  pthread_barrier_init(&own->end, NULL, IDLE + 1);
  return threads_start(own);
}

static void crowd_close(crowd *own) {
  pthread_barrier_wait(&own->end);
  for (int i = 0; i < IDLE; i++) pthread_join(own->threads[i], NULL);
  LADE_EXPECT_EQ_UINT(atomic_load(&own->failed), 0);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  support_runtime_close(own->runtime);
}

/* Blocks that went from the node to threads and back. */
static uint64_t node_moves(const crowd *own, unsigned class_index) {
  ladei_pinned_amount taken = {0, 0}, returned = {0, 0};
  ladei_pinned_node_supply(ladei_pinned_pool_node(own->pool, 0), class_index, &taken, &returned);
  return taken.blocks + returned.blocks;
}

static void pairs_make(const crowd *own, size_t bytes) {
  void *block = NULL;
  for (int i = 0; i < PAIRS; i++) {
    LADE_EXPECT_OK(lade_pinned_alloc(own->pool, bytes, &block));
    LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
  }
}

/* The bug: the first threads had the whole budget of what may be kept ready, for good. Each alloc of the others took 16
 * blocks from the node, and each put 15 of them back. */
LADE_TEST(IdleThreads, OneThatWorksHasItsBlocksReady) {
  static crowd own;
  if (!crowd_open(&own)) return;
  LADE_EXPECT_LE_UINT(ladei_pinned_thread_caches_bytes(own.pool), 16 * LADEI_MIB);
  LADE_EXPECT_LE_UINT(own.pool->threads.quota_bytes, 16 * LADEI_MIB);
  static const size_t sizes[] = {4096, 65536, LADEI_MIB};
  for (int i = 0; i < 3; i++) {
    pairs_make(&own, sizes[i]); /* until it has found who is idle */
    uint64_t before = node_moves(&own, ladei_pinned_class_of(sizes[i]));
    pairs_make(&own, sizes[i]);
    LADE_EXPECT_EQ_UINT(node_moves(&own, ladei_pinned_class_of(sizes[i])), before);
  }
  crowd_close(&own);
}

/* ---- Blocks that come back --------------------------------------------------------------------------------------- */

typedef struct cycles {
  crowd *crowd;
  lade_stream stream;
  pthread_barrier_t warm;
  _Atomic(bool) done;
} cycles;

static void cycle(const cycles *own) {
  enum { BLOCKS = 8 };
  void *blocks[BLOCKS];
  lade_pinned_pool *pool = own->crowd->pool;
  for (int i = 0; i < BLOCKS; i++) {
    LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &blocks[i]));
    LADE_EXPECT_OK(lade_pinned_record_event(pool, blocks[i], own->stream));
  }
  LADE_EXPECT_OK(lade_stream_synchronize(own->crowd->runtime, own->stream));
  for (int i = 0; i < BLOCKS; i++) LADE_EXPECT_OK(lade_pinned_free(pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_process_events(pool));
}

static void *cycles_make(void *user) {
  enum { CYCLES = 20 };
  cycles *own = user;
  for (int i = 0; i < CYCLES; i++) cycle(own);
  pthread_barrier_wait(&own->warm);
  pthread_barrier_wait(&own->warm); /* the lock is held */
  for (int i = 0; i < CYCLES; i++) cycle(own);
  atomic_store(&own->done, true);
  return NULL;
}

/* The bug: each batch of blocks that came back added up the counters of all threads, under the lock that keeps their list,
 * 57 us with 1,000 of them. */
LADE_TEST(IdleThreads, BlocksComeBackWithoutALookAtAllThreads) {
  enum { LOOKS = 40000 }; /* 40 s: on a machine that does much else they may take long */
  static crowd own;
  static cycles work;
  pthread_t thread;
  const struct timespec pause = {.tv_nsec = 1000 * 1000};
  if (!crowd_open(&own)) return;
  work = (cycles){.crowd = &own};
  pthread_barrier_init(&work.warm, NULL, 2);
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &work.stream));
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, cycles_make, &work), 0);
  pthread_barrier_wait(&work.warm);
  ladei_lock_acquire(&own.pool->lock);
  pthread_barrier_wait(&work.warm);
  for (int i = 0; i < LOOKS && !atomic_load(&work.done); i++) nanosleep(&pause, NULL);
  LADE_EXPECT(atomic_load(&work.done));
  ladei_lock_release(&own.pool->lock);
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(lade_pinned_stream_retire(own.pool, work.stream));
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, work.stream));
  crowd_close(&own);
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

static lade_status class_seen(const lade_pinned_class_stats *stats, void *user) {
  (void)stats, (void)user;
  return LADE_OK;
}

static lade_status node_seen(const lade_pinned_node_stats *stats, void *user) {
  (void)stats, (void)user;
  return LADE_OK;
}

static bool pool_open(crowd *own) {
  own->runtime = support_runtime_open("cpu");
  if (own->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_pinned_pool_create(own->runtime, NULL, &own->pool));
  return own->pool != NULL;
}

static void pool_close(crowd *own) {
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  support_runtime_close(own->runtime);
}

static void *read_all(void *user) {
  cycles *own = user;
  lade_pinned_pool *pool = own->crowd->pool;
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, 0);
  LADE_EXPECT_OK(lade_pinned_class_stats_each(pool, class_seen, NULL));
  LADE_EXPECT_OK(lade_pinned_node_stats_each(pool, node_seen, NULL));
  LADE_EXPECT_EQ_UINT(ladei_pinned_pending_read(pool).blocks, 0);
  ladei_pinned_cached_note(pool);
  atomic_store(&own->done, true);
  return NULL;
}

/* The bug: whoever read the counters added up those of all threads under the lock that threads take for quota, room and
 * segments, and they waited for it. */
LADE_TEST(IdleThreads, CountersAreReadWithoutTheLockOfThoseWhoWork) {
  static crowd own;
  static cycles work;
  pthread_t thread;
  if (!pool_open(&own)) return;
  work = (cycles){.crowd = &own};
  ladei_lock_acquire(&own.pool->lock);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, read_all, &work), 0);
  while (!atomic_load(&work.done) && !ladei_lock_is_awaited(&own.pool->lock)) sched_yield();
  LADE_EXPECT(atomic_load(&work.done));
  ladei_lock_release(&own.pool->lock);
  pthread_join(thread, NULL);
  pool_close(&own);
}

static void *come_and_go(void *user) {
  cycles *own = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->crowd->pool, 4096, &block));
  LADE_EXPECT_OK(lade_pinned_free(own->crowd->pool, block));
  return NULL;
}

static void *read_while_they_come_and_go(void *user) {
  cycles *own = user;
  lade_pinned_stats stats;
  uint64_t seen = 0;
  lade_pinned_stats_init(&stats);
  while (!atomic_load(&own->done)) {
    LADE_EXPECT_OK(lade_pinned_stats_get(own->crowd->pool, &stats));
    LADE_EXPECT_GE_UINT(stats.in_use_blocks.allocated, seen);
    seen = stats.in_use_blocks.allocated;
  }
  return NULL;
}

/* What a thread has counted is found once: with the thread, or with those that are gone. */
LADE_TEST(IdleThreads, CountersNeverFallWhileThreadsComeAndGo) {
  enum { ROUNDS = 200, THREADS = 4 };
  static crowd own;
  static cycles work;
  pthread_t reader, threads[THREADS];
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  if (!pool_open(&own)) return;
  work = (cycles){.crowd = &own};
  LADE_ASSERT_EQ_INT(pthread_create(&reader, NULL, read_while_they_come_and_go, &work), 0);
  for (int i = 0; i < ROUNDS; i++) {
    for (int t = 0; t < THREADS; t++) LADE_ASSERT_EQ_INT(pthread_create(&threads[t], NULL, come_and_go, &work), 0);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  }
  atomic_store(&work.done, true);
  pthread_join(reader, NULL);
  LADE_EXPECT_OK(lade_pinned_stats_get(own.pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, ROUNDS * THREADS);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.freed, ROUNDS * THREADS);
  pool_close(&own);
}
