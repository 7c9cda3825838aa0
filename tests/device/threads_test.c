/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one device allocator: each works on its own stream and lets another stream use its blocks too; blocks
 * are freed by any thread that finds them. The software device is the judge: it reports accesses to the same bytes that no
 * stream order and no event separates, and uses of memory that was given back.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "device/state/allocator.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { SLOTS = 64, STEPS = 800, THREADS_MAX = 16 };

typedef struct arena {
  device_fixture f;
  ladei_stream resolved[FIXTURE_STREAMS];
  _Atomic(void *) slots[SLOTS]; /* blocks that any thread may free */
  atomic_size_t served;
  int steps;             /* of each thread */
  atomic_size_t refused; /* out of memory: allowed, the device is small on purpose */
} arena;

typedef struct worker {
  arena *a;
  int stream, number;
  lade_event event;
} worker;

static void fill(arena *a, void *block, size_t bytes, int stream) {
  lade_runtime *runtime = a->f.runtime;
  LADE_EXPECT_OK(runtime->ops->fill(runtime->self, block, 7, bytes, &a->resolved[stream]));
}

/* Uses the block on the worker's stream, then, ordered by an event, on another one, which is recorded. */
static void block_use(worker *w, support_random *random, void *block, size_t bytes) {
  arena *a = w->a;
  fill(a, block, bytes, w->stream);
  if (!support_random_one_in(random, 3)) return;
  int other = (int)support_random_below(random, FIXTURE_STREAMS);
  LADE_EXPECT_OK(lade_event_record(a->f.runtime, w->event, a->f.streams[w->stream]));
  LADE_EXPECT_OK(lade_stream_wait_event(a->f.runtime, a->f.streams[other], w->event));
  fill(a, block, bytes, other);
  LADE_EXPECT_OK(lade_device_record_stream(a->f.allocator, block, a->f.streams[other]));
}

static size_t size_random(support_random *random) {
  if (support_random_one_in(random, 2))
    return ((size_t)1 + support_random_below(random, 4)) * 1000; /* again and again */
  return support_random_one_in(random, 8) ? support_random_size(random, 12 * MIB) : support_random_size(random, MIB);
}

static void step(worker *w, support_random *random) {
  arena *a = w->a;
  void *block = NULL;
  size_t bytes = size_random(random);
  lade_status status = lade_device_alloc(a->f.allocator, bytes, a->f.streams[w->stream], &block);
  if (status == LADE_ERR_OUT_OF_DEVICE_MEMORY)
    atomic_fetch_add(&a->refused, 1);
  else
    LADE_EXPECT_OK(status);
  if (block != NULL) {
    atomic_fetch_add(&a->served, 1);
    block_use(w, random, block, bytes);
  }
  void *former = atomic_exchange(&a->slots[support_random_below(random, SLOTS)], block);
  LADE_EXPECT_OK(lade_device_free(a->f.allocator, former));
  if (support_random_one_in(random, 200)) LADE_EXPECT_OK(lade_device_empty_cache(a->f.allocator));
  if (support_random_one_in(random, 50)) {
    lade_device_stats stats = device_fixture_stats(&a->f);
    LADE_EXPECT_LE_UINT(stats.allocated_bytes.all.current, stats.active_bytes.all.current);
  }
}

static void *worker_run(void *user) {
  worker *w = user;
  support_random random;
  support_random_start_quietly(&random, support_seed(100) + (uint64_t)w->number);
  for (int i = 0; i < w->a->steps; i++) step(w, &random);
  return NULL;
}

static void slots_free(arena *a) {
  for (int i = 0; i < SLOTS; i++) device_fixture_free(&a->f, atomic_exchange(&a->slots[i], NULL));
}

static uint64_t findings(arena *a) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(a->f.runtime, &report));
  uint64_t found = report.freed_memory_used + report.unordered_reuse + report.stale_handles;
  if (found > 0) lade_test_context("%s", report.last_finding);
  return found;
}

static bool arena_open(arena *a, const char *runtime, bool expandable, uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = expandable;
  options.flags = flags;
  if (!device_fixture_open(&a->f, runtime, 128 * MIB, &options)) return false;
  for (int i = 0; i < FIXTURE_STREAMS; i++) {
    lade_runtime *r = a->f.runtime;
    LADE_EXPECT_OK(r->ops->stream_resolve(r->self, a->f.streams[i], &a->resolved[i]));
  }
  return true;
}

static void threads_run(bool expandable, uint32_t flags, int count) {
  static arena a;
  a = (arena){.steps = count > FIXTURE_STREAMS ? STEPS / 8 : STEPS};
  if (!arena_open(&a, "cpu", expandable, flags)) return;
  worker workers[THREADS_MAX];
  pthread_t threads[THREADS_MAX];
  for (int i = 0; i < count; i++) {
    workers[i] = (worker){&a, i % FIXTURE_STREAMS, i, NULL};
    LADE_ASSERT_OK(lade_event_create(a.f.runtime, 0, &workers[i].event));
    LADE_ASSERT(pthread_create(&threads[i], NULL, worker_run, &workers[i]) == 0);
  }
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < count; i++) LADE_EXPECT_OK(lade_event_destroy(a.f.runtime, workers[i].event));
  for (int i = 0; i < FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_synchronize(a.f.runtime, a.f.streams[i]));
  slots_free(&a);
  LADE_EXPECT_GT_UINT(atomic_load(&a.served), count * a.steps / 2);
  LADE_EXPECT_EQ_UINT(findings(&a), 0);
  device_fixture_close(&a.f);
}

LADE_TEST(DeviceThreads, FourThreadsAndStreamsNeverShareMemoryInUse) { threads_run(false, 0, FIXTURE_STREAMS); }

LADE_TEST(DeviceThreads, AlsoInExpandableSegments) { threads_run(true, 0, FIXTURE_STREAMS); }

LADE_TEST(DeviceThreads, AlsoSixteenWithCaches) { threads_run(false, LADE_DEVICE_THREAD_CACHES, THREADS_MAX); }

LADE_TEST(DeviceThreads, AlsoSixteenWithCachesInExpandableSegments) {
  threads_run(true, LADE_DEVICE_THREAD_CACHES, THREADS_MAX);
}

/* The same work in one thread; without the retirement rule the software device must notice. */
static uint64_t sim_findings(bool broken) {
  static arena a;
  a = (arena){.served = 0};
  if (!arena_open(&a, "sim", false, 0)) return UINT64_MAX;
  support_lie_done(a.f.runtime, broken);
  worker workers[FIXTURE_STREAMS];
  support_random random;
  support_random_start(&random, 7);
  for (int i = 0; i < FIXTURE_STREAMS; i++) {
    workers[i] = (worker){&a, i, i, NULL};
    LADE_EXPECT_OK(lade_event_create(a.f.runtime, 0, &workers[i].event));
  }
  for (int i = 0; i < STEPS; i++) {
    step(&workers[support_random_below(&random, FIXTURE_STREAMS)], &random);
    if (support_random_one_in(&random, 4)) LADE_EXPECT_OK(lade_soft_advance(a.f.runtime, 1000));
  }
  for (int i = 0; i < FIXTURE_STREAMS; i++) {
    LADE_EXPECT_OK(lade_stream_synchronize(a.f.runtime, a.f.streams[i]));
    LADE_EXPECT_OK(lade_event_destroy(a.f.runtime, workers[i].event));
  }
  slots_free(&a);
  uint64_t found = findings(&a);
  device_fixture_close(&a.f);
  return found;
}

LADE_TEST(DeviceThreads, BrokenRetirementRuleIsNoticed) {
  LADE_EXPECT_EQ_UINT(sim_findings(false), 0);
  LADE_EXPECT_GT_UINT(sim_findings(true), 0);
}
