/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies of pinned pools: what is counted by kind, on every way to a block; that they begin at 0 and end; their names; on and
 * off beside calls and beside a history.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "lade/pinned.h"
#include "tests/shim/lade_test.h"
#include "tests/support/latencies.h"
#include "tests/support/runtimes.h"

#define MIB ((size_t)1 << 20)

typedef struct scene {
  support_description description;
  lade_runtime *runtime;
  lade_pinned_pool *pool;
} scene;

static bool scene_open(scene *s, const char *runtime, uint32_t flags) {
  s->pool = NULL;
  support_description_init(&s->description);
  s->description.soft.costs.host_pin_ns = 5000;
  s->runtime = support_runtime_open_with(runtime, &s->description.options);
  if (s->runtime == NULL) return false;
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.flags = flags;
  options.max_bytes = 256 * MIB;
  LADE_EXPECT_OK(lade_pinned_pool_create(s->runtime, &options, &s->pool));
  return s->pool != NULL;
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s->pool, false));
  support_runtime_close(s->runtime);
}

static void *alloc(const scene *s, size_t bytes) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(s->pool, bytes, &block));
  return block;
}

static support_latencies latencies_of(const scene *s) {
  support_latencies latencies = {.count = 0};
  LADE_EXPECT_OK(lade_pinned_latency_each(s->pool, support_latencies_visit, &latencies));
  LADE_EXPECT_EQ_SIZE(latencies.count, SUPPORT_LATENCY_KEYS);
  LADE_EXPECT_EQ_SIZE(latencies.disorders, 0);
  return latencies;
}

static void expect_counts(const scene *s, uint64_t allocs, uint64_t frees, uint64_t driver) {
  support_latencies latencies = latencies_of(s);
  const support_latency *const kinds[] = {&latencies.alloc, &latencies.free, &latencies.driver};
  const uint64_t wanted[] = {allocs, frees, driver};
  for (size_t i = 0; i < 3; i++) {
    LADE_EXPECT_EQ_UINT(kinds[i]->count, wanted[i]);
    LADE_EXPECT_EQ_UINT(support_latency_buckets_sum(kinds[i]), wanted[i]);
    LADE_EXPECT_LE_UINT(kinds[i]->min_ns, kinds[i]->max_ns);
    LADE_EXPECT_LE_UINT(kinds[i]->max_ns, kinds[i]->total_ns);
  }
}

static const uint32_t pool_flags[] = {0, LADE_PINNED_REFERENCE, LADE_PINNED_DEBUG};

/* On every way to a block: the fast path, the slow one, quiet frees, nodes, with a history beside it. */
LADE_TEST(inspect_hazard_HZ18, PinnedLatenciesAreCountedByKind) {
  for (size_t i = 0; i < sizeof pool_flags / sizeof *pool_flags; i++) {
    scene s;
    if (!scene_open(&s, "sim", pool_flags[i])) return;
    LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000))); /* off: not counted */
    expect_counts(&s, 0, 0, 0);
    LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, true));
    for (uint64_t k = 0; k < 5; k++) LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
    expect_counts(&s, 5, 5, latencies_of(&s).driver.count);
    LADE_EXPECT_OK(lade_pinned_free_quiet(s.pool, alloc(&s, 1000)));
    void *near = NULL;
    LADE_EXPECT_OK(lade_pinned_alloc_near(s.pool, 1000, 0, &near));
    LADE_EXPECT_OK(lade_pinned_free(s.pool, near));
    uint64_t driver = latencies_of(&s).driver.count;
    LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 100 * MIB))); /* a segment of its own */
    expect_counts(&s, 8, 8, driver + 1);
    void *block = NULL;
    LADE_EXPECT(lade_pinned_alloc(s.pool, 257 * MIB, &block) != LADE_OK); /* beyond the cap: counted */
    LADE_EXPECT_EQ_UINT(latencies_of(&s).alloc.count, 9);
    LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, true)); /* they go on */
    LADE_EXPECT_EQ_UINT(latencies_of(&s).alloc.count, 9);
    LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, false));
    LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
    LADE_EXPECT_EQ_UINT(latencies_of(&s).alloc.count, 9);
    LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, true)); /* from 0 */
    expect_counts(&s, 0, 0, 0);
    scene_close(&s);
  }
}

/* The driver's calls take virtual time, so that buckets are known to the call: a segment is one latency. */
LADE_TEST(PinnedLatency, BucketsDouble) {
  scene s;
  if (!scene_open(&s, "sim", 0)) return;
  LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, true));
  void *block = alloc(&s, 100 * MIB);
  support_latencies latencies = latencies_of(&s);
  LADE_EXPECT_EQ_UINT(latencies.driver.count, 1);
  LADE_EXPECT_GE_UINT(latencies.driver.total_ns, 5000);
  LADE_EXPECT_GE_UINT(latencies.alloc.max_ns, latencies.driver.max_ns);
  unsigned bucket = 63u - (unsigned)__builtin_clzll(latencies.driver.total_ns);
  LADE_EXPECT_EQ_UINT(latencies.driver.buckets[bucket], 1);
  LADE_EXPECT_OK(lade_pinned_free(s.pool, block));
  scene_close(&s);
}

LADE_TEST(PinnedLatency, BadArgumentsAreNamed) {
  scene s;
  if (!scene_open(&s, "sim", 0)) return;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_latency_each(s.pool, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_latency_each(NULL, support_latencies_visit, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_latency_set(NULL, true));
  scene_close(&s);
}

static uint64_t events_of(const scene *s) {
  lade_history *history = NULL;
  LADE_EXPECT_OK(lade_pinned_history_take(s->pool, &history));
  uint64_t count = history == NULL ? 0 : history->event_count;
  lade_history_destroy(history);
  return count;
}

/* Both keep calls off the fast path; neither, once it is turned off, takes the other's calls away. */
LADE_TEST(PinnedLatency, AndHistoryDoNotTurnEachOtherOff) {
  scene s;
  if (!scene_open(&s, "sim", 0)) return;
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.max_entries = 1000;
  LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
  LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, true));
  LADE_EXPECT_OK(lade_pinned_history_set(s.pool, &options));
  LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
  expect_counts(&s, 1, 1, 0);
  LADE_EXPECT_EQ_UINT(events_of(&s), 3);
  LADE_EXPECT_OK(lade_pinned_history_set(s.pool, NULL));
  LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
  expect_counts(&s, 2, 2, 0);
  LADE_EXPECT_OK(lade_pinned_history_set(s.pool, &options));
  LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, false));
  LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
  expect_counts(&s, 2, 2, 0);
  LADE_EXPECT_EQ_UINT(events_of(&s), 3);
  LADE_EXPECT_OK(lade_pinned_history_set(s.pool, NULL));
  LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, true));
  LADE_EXPECT_OK(lade_pinned_free(s.pool, alloc(&s, 1000)));
  expect_counts(&s, 1, 1, 0);
  scene_close(&s);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 5000, THREADS = 2 };

typedef struct beside {
  scene *s;
  _Atomic(unsigned) done;
} beside;

static void *beside_run(void *user) {
  beside *b = user;
  for (int i = 0; i < ROUNDS; i++) LADE_EXPECT_OK(lade_pinned_free(b->s->pool, alloc(b->s, 1000)));
  atomic_fetch_add(&b->done, 1);
  return NULL;
}

/* Counting is turned on and off, and read, beside calls, and beside a history that comes and goes. */
LADE_TEST(PinnedLatency, IsTurnedOnAndOffBesideCalls) {
  scene s;
  pthread_t threads[THREADS];
  if (!scene_open(&s, "cpu", 0)) return;
  beside b = {&s, 0};
  lade_history_options options;
  lade_history_options_init(&options);
  options.max_entries = 100;
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, beside_run, &b) == 0);
  for (bool on = true; atomic_load(&b.done) < THREADS; on = !on) {
    LADE_EXPECT_OK(lade_pinned_latency_set(s.pool, on));
    options.enabled = on ? 0 : 1;
    LADE_EXPECT_OK(lade_pinned_history_set(s.pool, &options));
    LADE_EXPECT_LE_UINT(latencies_of(&s).alloc.count, THREADS * ROUNDS);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  scene_close(&s);
}
