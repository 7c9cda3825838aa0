/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics and snapshots: what is counted for the pool, its nodes and its size classes, and that they
 * agree.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pinned.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

typedef struct block_sums {
  uint64_t blocks[4], bytes[4], requested;
} block_sums;

static lade_status block_sum(const lade_pinned_info *info, void *user) {
  block_sums *own = user;
  own->blocks[info->state]++;
  own->bytes[info->state] += info->bytes;
  own->requested += info->requested_bytes;
  return LADE_OK;
}

static lade_status block_refuse(const lade_pinned_info *info, void *user) {
  (void)info;
  ++*(int *)user;
  return LADE_ERR_CALLBACK;
}

typedef struct level_sums {
  lade_pinned_gauge requested, in_use, pending, cached, reserved, in_use_blocks, pending_blocks, cached_blocks;
} level_sums;

/* Sums; peaks are of different moments, and only bound the peak of the whole. */
static void gauge_add(lade_pinned_gauge *sum, const lade_pinned_gauge *gauge) {
  LADE_EXPECT_EQ_UINT(gauge->allocated - gauge->freed, gauge->current);
  LADE_EXPECT_GE_UINT(gauge->peak, gauge->current);
  sum->current += gauge->current;
  sum->peak += gauge->peak;
  sum->allocated += gauge->allocated;
  sum->freed += gauge->freed;
}

static void expect_gauge(const lade_pinned_gauge *sum, const lade_pinned_gauge *whole) {
  LADE_EXPECT_EQ_UINT(sum->current, whole->current);
  LADE_EXPECT_GE_UINT(sum->peak, whole->peak);
  LADE_EXPECT_EQ_UINT(sum->allocated, whole->allocated);
  LADE_EXPECT_EQ_UINT(sum->freed, whole->freed);
}

static lade_status class_sum(const lade_pinned_class_stats *stats, void *user) {
  level_sums *own = user;
  LADE_EXPECT_GE_UINT(stats->in_use_bytes.allocated, stats->requested_bytes.allocated);
  LADE_EXPECT_LE_UINT(stats->in_use_bytes.allocated, stats->in_use_blocks.allocated * stats->block_bytes);
  gauge_add(&own->requested, &stats->requested_bytes);
  gauge_add(&own->in_use, &stats->in_use_bytes);
  gauge_add(&own->pending, &stats->pending_bytes);
  gauge_add(&own->in_use_blocks, &stats->in_use_blocks);
  gauge_add(&own->pending_blocks, &stats->pending_blocks);
  gauge_add(&own->cached_blocks, &stats->cached_blocks);
  return LADE_OK;
}

static lade_status node_sum(const lade_pinned_node_stats *stats, void *user) {
  level_sums *own = user;
  LADE_EXPECT_EQ_UINT(stats->in_use_bytes.current + stats->pending_bytes.current + stats->cached_bytes.current,
                      stats->reserved_bytes.current);
  gauge_add(&own->requested, &stats->requested_bytes);
  gauge_add(&own->in_use, &stats->in_use_bytes);
  gauge_add(&own->pending, &stats->pending_bytes);
  gauge_add(&own->cached, &stats->cached_bytes);
  gauge_add(&own->reserved, &stats->reserved_bytes);
  gauge_add(&own->in_use_blocks, &stats->in_use_blocks);
  gauge_add(&own->pending_blocks, &stats->pending_blocks);
  gauge_add(&own->cached_blocks, &stats->cached_blocks);
  return LADE_OK;
}

/* The pool's counters are the sums of its nodes' and of its classes'. */
static void expect_levels_agree(const pinned_fixture *own) {
  lade_pinned_stats stats = pinned_fixture_stats(own);
  level_sums classes, nodes;
  memset(&classes, 0, sizeof classes);
  memset(&nodes, 0, sizeof nodes);
  LADE_EXPECT_OK(lade_pinned_class_stats_each(own->pool, class_sum, &classes));
  LADE_EXPECT_OK(lade_pinned_node_stats_each(own->pool, node_sum, &nodes));
  expect_gauge(&nodes.cached, &stats.cached_bytes);
  expect_gauge(&nodes.reserved, &stats.reserved_bytes);
  for (int i = 0; i < 2; i++) {
    const level_sums *sums = i == 0 ? &classes : &nodes;
    expect_gauge(&sums->requested, &stats.requested_bytes);
    expect_gauge(&sums->in_use, &stats.in_use_bytes);
    expect_gauge(&sums->pending, &stats.pending_bytes);
    expect_gauge(&sums->in_use_blocks, &stats.in_use_blocks);
    expect_gauge(&sums->pending_blocks, &stats.pending_blocks);
    expect_gauge(&sums->cached_blocks, &stats.cached_blocks);
  }
}

LADE_TEST_P(PinnedSnapshot, AddsUpToTheStatistics, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {
      1, 600, 3500, 4096, 70000, LADEI_MIB, PINNED_FIXTURE_SEGMENT_BYTES - 4096, PINNED_FIXTURE_SEGMENT_BYTES + 1};
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  support_stream_hold hold;
  void *kept[8], *freed[8];
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0]));
  for (int i = 0; i < 8; i++) {
    kept[i] = pinned_fixture_alloc(&own, sizes[i]);
    freed[i] = pinned_fixture_alloc(&own, sizes[i]);
    if (i == 4) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, freed[i], own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, freed[i]));
  }
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  block_sums blocks = {0};
  LADE_EXPECT_OK(lade_pinned_blocks_each(own.pool, block_sum, &blocks));
  LADE_EXPECT_EQ_UINT(blocks.blocks[LADE_PINNED_IN_USE], stats.in_use_blocks.current);
  LADE_EXPECT_EQ_UINT(blocks.bytes[LADE_PINNED_IN_USE], stats.in_use_bytes.current);
  LADE_EXPECT_EQ_UINT(blocks.bytes[LADE_PINNED_PENDING], stats.pending_bytes.current);
  LADE_EXPECT_EQ_UINT(blocks.blocks[LADE_PINNED_PENDING], 1);
  LADE_EXPECT_EQ_UINT(blocks.requested, stats.requested_bytes.current);
  LADE_EXPECT_EQ_UINT(blocks.bytes[1] + blocks.bytes[2] + blocks.bytes[3], stats.reserved_bytes.current);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, 16);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.freed, 8);
  LADE_EXPECT_GE_UINT(stats.cached_blocks.current, 1);
  LADE_EXPECT_EQ_UINT(blocks.bytes[LADE_PINNED_CACHED], stats.cached_bytes.current);
  expect_levels_agree(&own);
  int calls = 0;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_pinned_blocks_each(own.pool, block_refuse, &calls));
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_blocks_each(own.pool, NULL, NULL));
  support_stream_hold_end(&hold);
  for (int i = 0; i < 8; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, kept[i]));
  pinned_fixture_close(&own);
}

/* ---- Levels of the statistics ------------------------------------------------------------------------------------ */

typedef struct class_wanted {
  uint64_t block_bytes;
  lade_pinned_class_stats found;
} class_wanted;

static lade_status class_find(const lade_pinned_class_stats *stats, void *user) {
  class_wanted *own = user;
  if (stats->block_bytes == own->block_bytes && stats->in_use_blocks.allocated > 0) own->found = *stats;
  return LADE_OK;
}

static lade_pinned_class_stats class_of(const pinned_fixture *own, uint64_t block_bytes) {
  class_wanted wanted = {.block_bytes = block_bytes};
  LADE_EXPECT_OK(lade_pinned_class_stats_each(own->pool, class_find, &wanted));
  LADE_EXPECT_EQ_UINT(wanted.found.block_bytes, block_bytes);
  return wanted.found;
}

/* Each class keeps peaks of its own, at different moments. Without magazines each call counts, under either policy. */
LADE_TEST(PinnedLevels, PeaksOfClassesAreTheirOwn) {
  static const uint32_t flags[] = {0, LADE_PINNED_DEBUG, LADE_PINNED_REFERENCE};
  for (int i = 0; i < 3; i++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    support_stream_hold hold;
    void *blocks[10];
    options.flags = flags[i];
    options.magazine_bytes = 1; /* none */
    size_t guard = (flags[i] & LADE_PINNED_DEBUG) != 0 ? LADEI_PINNED_DEBUG_GUARD_BYTES : 0;
    if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
    LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
    for (int round = 0; round < 2; round++) {
      for (int k = 0; k < 10; k++) blocks[k] = pinned_fixture_alloc(&own, (round == 0 ? 8192 : 32768) - guard);
      for (int k = 0; k < 10; k++) {
        if (k < 6 - round * 2) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, blocks[k], own.streams[0]));
        LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[k]));
      }
      expect_levels_agree(&own);
      if (round == 0) {
        support_stream_hold_end(&hold);
        LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
        LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
        LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
      }
    }
    lade_pinned_class_stats small = class_of(&own, 8192), large = class_of(&own, 32768);
    LADE_EXPECT_EQ_UINT(small.in_use_blocks.peak, 10);
    LADE_EXPECT_EQ_UINT(small.in_use_bytes.peak, 81920);
    LADE_EXPECT_EQ_UINT(small.requested_bytes.peak, 10 * (8192 - guard));
    LADE_EXPECT_EQ_UINT(small.pending_blocks.peak, 6);
    LADE_EXPECT_EQ_UINT(small.pending_bytes.peak, 6 * 8192);
    LADE_EXPECT_EQ_UINT(small.pending_blocks.current, 0);
    LADE_EXPECT_EQ_UINT(large.in_use_blocks.peak, 10);
    LADE_EXPECT_EQ_UINT(large.pending_blocks.peak, 4);
    LADE_EXPECT_EQ_UINT(large.pending_blocks.current, 4);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).in_use_blocks.peak, 10);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.peak, 6);
    support_stream_hold_end(&hold);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    pinned_fixture_close(&own);
  }
}

/* Where nothing stays with the thread, its frees are published all the same, before its allocs. */
LADE_TEST(PinnedLevels, PeakOfAThreadThatFreesItsOwnIsExact) {
  enum { COUNT = 200 };
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *blocks[COUNT];
  options.magazine_bytes = 1; /* none */
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < COUNT; i++) blocks[i] = pinned_fixture_alloc(&own, (size_t)8192 << round);
    for (int i = 0; i < COUNT; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).in_use_blocks.peak, COUNT);
  LADE_EXPECT_EQ_UINT(class_of(&own, 8192).in_use_blocks.peak, COUNT);
  LADE_EXPECT_EQ_UINT(class_of(&own, 32768).in_use_blocks.peak, COUNT);
  pinned_fixture_close(&own);
}

/* A thread that has one block at a time, of many sizes, each pending or free when the next one comes: the peak was one block of each
 * class, 39.3 MiB, and beyond the cap. */
LADE_TEST(PinnedLevels, PeakOfOneBlockAtATimeIsThatBlock) {
  enum { ROUNDS = 400, MOST = 4 * LADEI_MIB };
  for (int recorded = 0; recorded < 2; recorded++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    support_random random;
    support_random_start(&random, 1);
    lade_test_context("%s", recorded ? "recorded" : "not recorded");
    if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
    for (int i = 0; i < ROUNDS; i++) {
      void *block = pinned_fixture_alloc(&own, 1 + support_random_below(&random, MOST));
      if (recorded) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
      LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    }
    lade_pinned_stats stats = pinned_fixture_stats(&own);
    LADE_EXPECT_EQ_UINT(stats.in_use_blocks.peak, 1);
    LADE_EXPECT_LE_UINT(stats.in_use_bytes.peak, MOST);
    LADE_EXPECT_LE_UINT(stats.requested_bytes.peak, stats.in_use_bytes.peak);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    pinned_fixture_close(&own);
  }
  lade_test_context("%s", "");
}

enum { HANDED_OVER = 8, HANDED_OVER_ROUNDS = 100 };

typedef struct handed_over {
  const pinned_fixture *own;
  void *blocks[HANDED_OVER];
  pthread_barrier_t given, freed;
} handed_over;

static void *blocks_free(void *user) {
  handed_over *all = user;
  for (int round = 0; round < HANDED_OVER_ROUNDS; round++) {
    pthread_barrier_wait(&all->given);
    for (int i = 0; i < HANDED_OVER; i++) {
      LADE_EXPECT_OK(lade_pinned_record_event(all->own->pool, all->blocks[i], all->own->streams[0]));
      LADE_EXPECT_OK(lade_pinned_free(all->own->pool, all->blocks[i]));
    }
    pthread_barrier_wait(&all->freed);
  }
  return NULL;
}

/* Where another thread frees, the peak may be too high by some blocks of each class, but is never what the pool did not have. */
LADE_TEST(PinnedLevels, PeakIsNeverMoreThanWasReserved) {
  lade_pinned_options options = pinned_fixture_options();
  handed_over all;
  pinned_fixture own;
  support_random random;
  pthread_t thread;
  support_random_start(&random, 1);
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  all.own = &own;
  pthread_barrier_init(&all.given, NULL, 2);
  pthread_barrier_init(&all.freed, NULL, 2);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, blocks_free, &all), 0);
  for (int round = 0; round < HANDED_OVER_ROUNDS; round++) {
    for (int i = 0; i < HANDED_OVER; i++)
      all.blocks[i] = pinned_fixture_alloc(&own, 1 + support_random_below(&random, 4 * LADEI_MIB));
    pthread_barrier_wait(&all.given);
    pthread_barrier_wait(&all.freed);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  }
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_GE_UINT(stats.in_use_blocks.peak, HANDED_OVER);
  LADE_EXPECT_LE_UINT(stats.in_use_bytes.peak, stats.reserved_bytes.peak);
  LADE_EXPECT_LE_UINT(stats.requested_bytes.peak, stats.in_use_bytes.peak);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&all.given);
  pthread_barrier_destroy(&all.freed);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLevels, NodesAddUpToThePool) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *blocks[2][6];
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
  for (int node = 0; node < 2; node++) {
    for (int i = 0; i < 6; i++) LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 300000, node, &blocks[node][i]));
    expect_levels_agree(&own);
  }
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.peak, 12);
  LADE_EXPECT_EQ_UINT(stats.cached_bytes.current, stats.reserved_bytes.current - stats.in_use_bytes.current);
  for (int i = 0; i < 6; i++) {
    LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[0][i]));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[1][i]));
  }
  expect_levels_agree(&own);
  uint64_t cached = pinned_fixture_stats(&own).cached_bytes.current;
  LADE_EXPECT_EQ_UINT(cached, stats.reserved_bytes.current);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).cached_bytes.current, 0);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).cached_bytes.peak, cached);
  expect_levels_agree(&own);
  pinned_fixture_close(&own);
}

/* The pool's highest sum over its nodes, though nobody reads it then. */
LADE_TEST(PinnedLevels, PeaksOfThePoolAreThoseOfAllNodesTogether) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *blocks[2][6];
  options.magazine_bytes = 1; /* none */
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
  for (int i = 0; i < 12; i++) LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 300000, i / 6, &blocks[i / 6][i % 6]));
  for (int i = 0; i < 12; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i / 6][i % 6]));
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.peak, 12);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.peak, 12 * 300000);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.current, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.peak, 2 * PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_EQ_UINT(stats.cached_bytes.peak, 2 * PINNED_FIXTURE_SEGMENT_BYTES);
  pinned_fixture_close(&own);
}

/* Nobody reads in between: the peak is seen where memory comes, and before it goes. */
LADE_TEST(PinnedLevels, PeakOfCachedIsSeenWhereMemoryComesAndGoes) {
  enum { BYTES = 2 * PINNED_FIXTURE_SEGMENT_BYTES };
  lade_pinned_options options = pinned_fixture_options();
  for (int reserved = 0; reserved < 2; reserved++) {
    pinned_fixture own;
    if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
    void *halves[2];
    if (reserved) LADE_EXPECT_OK(lade_pinned_reserve(own.pool, BYTES, 0));
    for (int i = 0; i < 2; i++) halves[i] = pinned_fixture_alloc(&own, BYTES / 2);
    if (reserved) LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).cached_bytes.peak, BYTES);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).cached_bytes.current, 0);
    for (int i = 0; i < 2; i++) pinned_fixture_free(&own, halves[i]);
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).cached_bytes.current, 0);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).cached_bytes.peak, BYTES);
    pinned_fixture_close(&own);
  }
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, STEPS = 400, SHARED = 32 };

/* What one thread did, by its own count. */
typedef struct did {
  uint64_t allocs, requested, frees, requested_freed, pending;
} did;

typedef struct counting {
  const pinned_fixture *own;
  _Atomic(void *) *shared; /* [SHARED] on their way from thread to thread; their first bytes tell what was asked for */
  uint64_t seed;
  did did;
} counting;

static void count_free(counting *self, size_t *block, bool used) {
  self->did.frees++;
  self->did.requested_freed += *block;
  self->did.pending += used;
  if (used) LADE_EXPECT_OK(lade_pinned_record_event(self->own->pool, block, self->own->streams[0]));
  LADE_EXPECT_OK(lade_pinned_free(self->own->pool, block));
}

static void *count_along(void *user) {
  counting *self = user;
  support_random random;
  support_random_start_quietly(&random, self->seed);
  for (int i = 0; i < STEPS; i++) {
    void *block = NULL;
    size_t bytes = sizeof(size_t) + support_random_size(&random, 128 * LADEI_KIB);
    int node = (int)support_random_below(&random, 2);
    LADE_EXPECT_OK(ladei_pinned_alloc_on(self->own->pool, bytes, node, &block));
    *(size_t *)block = bytes;
    self->did.allocs++;
    self->did.requested += bytes;
    size_t *other = atomic_exchange(&self->shared[support_random_below(&random, SHARED)], block);
    if (other != NULL) count_free(self, other, support_random_one_in(&random, 8));
  }
  return NULL;
}

static did count_all(const pinned_fixture *own, _Atomic(void *) *shared) {
  counting threads[THREADS];
  pthread_t ids[THREADS];
  did sum = {0, 0, 0, 0, 0};
  for (int i = 0; i < THREADS; i++) {
    threads[i] = (counting){own, shared, support_seed(31) + (uint64_t)i, {0, 0, 0, 0, 0}};
    LADE_EXPECT_EQ_INT(pthread_create(&ids[i], NULL, count_along, &threads[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(ids[i], NULL);
    sum.allocs += threads[i].did.allocs;
    sum.requested += threads[i].did.requested;
    sum.frees += threads[i].did.frees;
    sum.requested_freed += threads[i].did.requested_freed;
    sum.pending += threads[i].did.pending;
  }
  return sum;
}

static void expect_did(const pinned_fixture *own, const did *sum) {
  lade_pinned_stats stats = pinned_fixture_stats(own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, sum->allocs);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.freed, sum->frees);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.allocated, sum->requested);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.freed, sum->requested_freed);
  LADE_EXPECT_EQ_UINT(stats.pending_blocks.allocated, sum->pending);
  LADE_EXPECT_EQ_UINT(stats.pending_blocks.peak, sum->pending); /* none came back before the end */
  LADE_EXPECT_EQ_UINT(stats.hits + stats.misses, sum->allocs);
  expect_levels_agree(own);
}

/* Each thread counts for itself, and its counters outlive it. */
LADE_TEST(PinnedThreadStats, AreExactAfterThreadsThatShareBlocksAndExit) {
  static _Atomic(void *) shared[SHARED];
  pinned_fixture own;
  support_stream_hold hold;
  counting last = {.own = &own};
  lade_pinned_options options = pinned_fixture_options();
  options.max_bytes = 256 * LADEI_MIB;
  if (!pinned_fixture_open_on(&own, support_runtime_open("cpu"), &options, &pinned_fixture_two_nodes)) return;
  LADE_ASSERT(
      support_stream_hold_begin(&hold, own.runtime, own.streams[0])); /* what is freed with a use stays pending */
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0]));
  did sum = count_all(&own, shared);
  expect_did(&own, &sum);
  for (int i = 0; i < SHARED; i++) {
    size_t *block = atomic_exchange(&shared[i], NULL);
    if (block != NULL) count_free(&last, block, false);
  }
  sum.frees += last.did.frees;
  sum.requested_freed += last.did.requested_freed;
  expect_did(&own, &sum);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  expect_did(&own, &sum);
  LADE_EXPECT_EQ_UINT(sum.allocs, sum.frees);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.freed, sum.pending);
  pinned_fixture_close(&own);
}

enum { FEW = 8 };

typedef struct short_life {
  const pinned_fixture *own;
  void *blocks[FEW];
} short_life;

/* The first comes with others, which then need no look at anything shared. */
static void *alloc_few(void *user) {
  short_life *self = user;
  for (int i = 0; i < FEW; i++) LADE_EXPECT_OK(lade_pinned_alloc(self->own->pool, 8192, &self->blocks[i]));
  return NULL;
}

/* What a thread has not published yet it publishes at its end, or the error of the peak would grow with each thread. */
LADE_TEST(PinnedThreadStats, PeakKnowsOfThreadsThatExited) {
  enum { COUNT = 40 };
  static short_life lives[COUNT];
  pinned_fixture own;
  pthread_t thread;
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  for (int i = 0; i < COUNT; i++) {
    lives[i] = (short_life){.own = &own};
    LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, alloc_few, &lives[i]), 0);
    pthread_join(thread, NULL);
  }
  for (int i = 0; i < COUNT * FEW; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, lives[i / FEW].blocks[i % FEW]));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).in_use_blocks.peak, COUNT * FEW);
  LADE_EXPECT_EQ_UINT(class_of(&own, 8192).in_use_blocks.peak, COUNT * FEW);
  pinned_fixture_close(&own);
}

enum { TOGETHER = 4, EACH = 400 };

typedef struct together {
  const pinned_fixture *own;
  pthread_barrier_t all_have;
} together;

static void *hold_together(void *user) {
  together *self = user;
  void *blocks[EACH];
  for (int i = 0; i < EACH; i++) LADE_EXPECT_OK(lade_pinned_alloc(self->own->pool, 4096, &blocks[i]));
  pthread_barrier_wait(&self->all_have);
  for (int i = 0; i < EACH; i++) LADE_EXPECT_OK(lade_pinned_free(self->own->pool, blocks[i]));
  return NULL;
}

/* U2, U4: without a read meanwhile. The last refill of each thread shows what it has then. */
LADE_TEST(PinnedThreadStats, PeakOfThreadsTogetherIsASixteenthTooLowAtMost) {
  enum { ALL = TOGETHER * EACH, SHOWN = ALL - TOGETHER * LADEI_PINNED_MAGAZINE_MAX_BLOCKS };
  pinned_fixture own;
  pthread_t threads[TOGETHER];
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  together all = {.own = &own};
  pthread_barrier_init(&all.all_have, NULL, TOGETHER);
  for (int i = 0; i < TOGETHER; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, hold_together, &all), 0);
  for (int i = 0; i < TOGETHER; i++) pthread_join(threads[i], NULL);
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_GE_UINT(stats.in_use_blocks.peak, SHOWN - SHOWN / 16);
  LADE_EXPECT_LE_UINT(stats.in_use_blocks.peak, ALL);
  LADE_EXPECT_GE_UINT(stats.requested_bytes.peak, (SHOWN - SHOWN / 16) * 4096);
  LADE_EXPECT_LE_UINT(stats.requested_bytes.peak, ALL * 4096);
  LADE_EXPECT_GE_UINT(class_of(&own, 4096).in_use_blocks.peak, SHOWN);
  pthread_barrier_destroy(&all.all_have);
  pinned_fixture_close(&own);
}

/* A thread alone sees its peak as it is, also one that is lower than what it had before a reset. */
LADE_TEST(PinnedThreadStats, PeakAfterAFallAndAResetIsExact) {
  enum { MANY = 2000, FEWER = 500, AGAIN = 700 };
  static void *blocks[MANY];
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.magazine_bytes = 1; /* each call shows what it does */
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  for (int i = 0; i < MANY; i++) LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 4096, &blocks[i]));
  for (int i = FEWER; i < MANY; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_PEAKS));
  for (int i = FEWER; i < AGAIN; i++) LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 4096, &blocks[i]));
  for (int i = 0; i < AGAIN; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.peak, AGAIN);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.peak, AGAIN * 4096);
  pinned_fixture_close(&own);
}

enum { OWN_BLOCKS = 200 };

typedef struct pending_part {
  const pinned_fixture *own;
  pthread_barrier_t *step; /* of two threads and the test */
  unsigned comes_back;     /* the thread in whose call all comes back, 0 or 1 */
  unsigned number;
} pending_part;

static void pending_step(const pending_part *self) { pthread_barrier_wait(self->step); }

/* One thread after the other frees blocks that a stream uses; they come back in the call of one. */
static void *pending_along(void *user) {
  const pending_part *self = user;
  void *blocks[OWN_BLOCKS];
  for (unsigned turn = 0; turn < 2; turn++) {
    for (int i = 0; turn == self->number && i < OWN_BLOCKS; i++) {
      LADE_EXPECT_OK(lade_pinned_alloc(self->own->pool, 8192, &blocks[i]));
      LADE_EXPECT_OK(lade_pinned_record_event(self->own->pool, blocks[i], self->own->streams[0]));
    }
    for (int i = 0; turn == self->number && i < OWN_BLOCKS; i++)
      LADE_EXPECT_OK(lade_pinned_free(self->own->pool, blocks[i]));
    pending_step(self);
  }
  pending_step(self);
  if (self->number == self->comes_back) LADE_EXPECT_OK(lade_pinned_process_events(self->own->pool));
  pending_step(self);
  return NULL;
}

/* What a thread has not published is missing in the peak of pending at most, and never too much in it: the sums of
 * threads whose blocks come back in their own calls, and in those of others. */
LADE_TEST(PinnedThreadStats, PeakOfPendingIsNeverTooHighAndMissesTheSlackOfThreadsAtMost) {
  for (unsigned round = 0; round < 2; round++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    pthread_barrier_t step;
    pthread_t threads[2];
    support_stream_hold hold;
    if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
    pthread_barrier_init(&step, NULL, 3);
    for (unsigned again = 0; again < 3; again++) { /* others each time: what they leave behind is right, too */
      pending_part parts[2] = {{&own, &step, round, 0}, {&own, &step, round, 1}};
      LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
      LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0]));
      for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, pending_along, &parts[i]);
      for (int turn = 0; turn < 2; turn++) pthread_barrier_wait(&step);
      support_stream_hold_end(&hold);
      LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
      for (int turn = 0; turn < 2; turn++) pthread_barrier_wait(&step);
      for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
      lade_pinned_class_stats stats = class_of(&own, 8192);
      LADE_EXPECT_LE_UINT(stats.pending_blocks.peak, 2 * OWN_BLOCKS);
      LADE_EXPECT_GE_UINT(stats.pending_blocks.peak, 2 * OWN_BLOCKS - 63);
      LADE_EXPECT_EQ_UINT(stats.pending_bytes.peak, 8192 * stats.pending_blocks.peak);
      LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.peak, stats.pending_blocks.peak);
      LADE_EXPECT_EQ_UINT(stats.pending_blocks.current, 0);
      LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_PEAKS));
    }
    pthread_barrier_destroy(&step);
    pinned_fixture_close(&own);
  }
}

/* One node after the other: the pool never has more pending than one of them. */
LADE_TEST(PinnedLevels, PeakOfPendingOfThePoolIsNotTheSumOfNodesInTurn) {
  enum { COUNT = 20 };
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  support_stream_hold hold;
  void *blocks[COUNT];
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
  for (int round = 0; round < 4; round++) {
    LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0]));
    for (int i = 0; i < COUNT; i++) {
      LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 8192, round % 2, &blocks[i]));
      LADE_EXPECT_OK(lade_pinned_record_event(own.pool, blocks[i], own.streams[0]));
    }
    for (int i = 0; i < COUNT; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
    support_stream_hold_end(&hold);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.peak, COUNT);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.allocated, 4 * COUNT);
  pinned_fixture_close(&own);
}

/* One after the other, they never have more pending than one alone. */
LADE_TEST(PinnedThreadStats, PeakOfPendingIsNotTheSumOfThreadsInTurn) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  support_stream_hold hold;
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  for (int i = 0; i < 10; i++) {
    pthread_barrier_t step;
    pthread_t thread;
    pthread_barrier_init(&step, NULL, 2);
    pending_part part = {&own, &step, (unsigned)i % 2, 0};
    LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0]));
    pthread_create(&thread, NULL, pending_along, &part);
    for (int turn = 0; turn < 2; turn++) pthread_barrier_wait(&step);
    support_stream_hold_end(&hold);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    for (int turn = 0; turn < 2; turn++) pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    LADE_EXPECT_OK(lade_pinned_process_events(own.pool)); /* in the other rounds they come back here */
    pthread_barrier_destroy(&step);
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.peak, OWN_BLOCKS);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.allocated, 10 * OWN_BLOCKS);
  pinned_fixture_close(&own);
}

/* ---- Time in the driver ------------------------------------------------------------------------------------------ */

LADE_TEST(PinnedLevels, DriverCallsAreTimed) {
  support_description description;
  support_description_init(&description);
  description.soft.costs.host_pin_bytes_per_s = 1000000000;
  lade_pinned_options options = pinned_fixture_options();
  lade_pinned_pool *pool = NULL;
  lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
  if (runtime == NULL) return;
  void *small = NULL, *large = NULL;
  pinned_fixture own = {.runtime = runtime};
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  own.pool = pool;
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_alloc_min_ns, 0);
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &small));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4 * PINNED_FIXTURE_SEGMENT_BYTES, &large));
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.driver_allocs, 2);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_min_ns, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_max_ns, 4 * PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_ns, 5 * PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(pool, small));
  LADE_EXPECT_OK(lade_pinned_free(pool, large));
  LADE_EXPECT_OK(lade_pinned_empty_cache(pool));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_frees, 2);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  support_runtime_close(runtime);
}

/* The bug: hits were allocs less misses, and an alloc that found no memory had counted as a miss. */
LADE_TEST(PinnedStats, HitsDoNotFallWhenAnAllocFails) {
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.max_bytes = 2 * PINNED_FIXTURE_SEGMENT_BYTES;
  void *block = NULL;
  for (uint32_t reference = 0; reference < 2; reference++) {
    options.flags = reference == 0 ? 0 : (uint32_t)LADE_PINNED_REFERENCE;
    if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
    for (int i = 0; i < 3; i++) pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096));
    lade_pinned_stats before = pinned_fixture_stats(&own);
    LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, 8 * LADEI_MIB, &block));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).hits, before.hits);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).misses, before.misses);
    LADE_EXPECT_EQ_UINT(before.hits + before.misses, 3);
    pinned_fixture_close(&own);
  }
}
