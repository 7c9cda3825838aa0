/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of a few threads in combining (device/native/combine.h), on "sim": pairs of alloc and free that
 * one executes for others, with switch points where a call is published, where published calls are taken, and where one is
 * told that it is done. No call is lost, no thread waits for ever, no block is handed out twice; a call that misses is made by
 * its own thread; and an event carries the context of the thread that made the call, whoever executed it.
 */
#include <stdio.h>

#include "device/api/device.h"
#include "device/native/combine.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"

enum { PAIRS = 2, SMALL = 4096 };

typedef enum scene_kind {
  SHARED_STREAM, /* all on one */
  OWN_STREAMS,
  ONE_MISSES,   /* the first thread wants what is not cached */
  ONE_RECORDED, /* the first thread's block is used by another stream: its free is no decision of the heap alone */
  CONTEXTS,     /* own streams; the history has a context for each thread */
  SCENES
} scene_kind;

typedef struct bench {
  device_fixture f;
  scene_kind scene;
  int threads;
  _Atomic(uintptr_t) live[SCHEDULER_THREADS]; /* what each has now */
  uint64_t combined;                          /* over all schedules */
} bench;

/* Contexts are the addresses of these. */
static char marks[SCHEDULER_THREADS + 1];
static _Thread_local int thread_number = SCHEDULER_THREADS;

static void *context_capture(void *user) {
  (void)user;
  return &marks[thread_number];
}

static void history_switch(bench *own, bool on) {
  lade_device_history_options options;
  lade_device_history_options_init(&options);
  options.enabled = on;
  options.level = LADE_CONTEXT_ALL;
  options.max_entries = 256;
  options.capture = context_capture;
  LADE_EXPECT_OK(lade_device_history_set(own->f.allocator, &options));
}

/* ---- A schedule -------------------------------------------------------------------------------------------------- */

static int stream_of(const bench *own, int thread) { return own->scene == SHARED_STREAM ? 0 : thread; }

/* One free block of 2 MiB and one of 20 for each stream. */
static void prepare(void *user) {
  bench *own = user;
  lade_device_options options;
  lade_device_options_init(&options);
  options.collection_threshold = 0.9; /* with the fraction: searches are counted */
  options.memory_fraction = 1.0;
  LADE_EXPECT_OK(lade_device_allocator_create(own->f.runtime, 0, &options, &own->f.allocator));
  for (int s = 0; s < SCHEDULER_THREADS; s++) {
    device_fixture_free(&own->f, device_fixture_alloc(&own->f, SMALL, s));
    device_fixture_free(&own->f, device_fixture_alloc(&own->f, 2 * MIB, s));
  }
  if (own->scene == CONTEXTS) history_switch(own, true);
}

static void live_add(bench *own, int thread, void *block) {
  for (int i = 0; i < own->threads; i++) LADE_EXPECT(atomic_load(&own->live[i]) != (uintptr_t)block);
  atomic_store(&own->live[thread], (uintptr_t)block);
}

static void body(void *user, int thread) {
  bench *own = user;
  int stream = stream_of(own, thread);
  thread_number = thread;
  for (int i = 0; i < PAIRS; i++) {
    void *block = NULL;
    bool misses = own->scene == ONE_MISSES && thread == 0;
    LADE_EXPECT_OK(lade_device_alloc(own->f.allocator, misses ? (size_t)(30 + 10 * i) * MIB : SMALL,
                                     own->f.streams[stream], &block));
    live_add(own, thread, block);
    if (own->scene == ONE_RECORDED && thread == 0)
      LADE_EXPECT_OK(lade_device_record_stream(own->f.allocator, block, own->f.streams[3]));
    atomic_store(&own->live[thread], 0);
    LADE_EXPECT_OK(lade_device_free(own->f.allocator, block));
  }
}

static void contexts_expect(bench *own) {
  lade_device_history *history = NULL;
  LADE_ASSERT_OK(lade_device_history_get(own->f.allocator, &history));
  for (size_t i = 0; i < history->event_count; i++) {
    const lade_device_event *event = &history->events[i];
    int thread = 0;
    while (own->f.streams[thread] != event->stream) thread++;
    LADE_EXPECT_EQ_PTR(event->context, &marks[thread]);
  }
  LADE_EXPECT_EQ_SIZE(history->event_count, (size_t)own->threads * PAIRS * 3);
  lade_device_history_destroy(history);
  history_switch(own, false);
}

static void judge(void *user) {
  bench *own = user;
  const lade_device_allocator *allocator = own->f.allocator;
  LADE_EXPECT(atomic_load(&allocator->published) == NULL && allocator->taken == NULL);
  if (own->scene == CONTEXTS) contexts_expect(own);
  lade_device_stats stats = device_fixture_stats(&own->f);
  uint64_t prepared = 2 * SCHEDULER_THREADS;
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.allocated, prepared + (uint64_t)own->threads * PAIRS);
  uint64_t searches = own->scene == ONE_MISSES ? PAIRS : 0; /* a miss counts once, whoever noticed it */
  LADE_EXPECT_EQ_UINT(allocator->heap.large_pool.searches, SCHEDULER_THREADS + searches);
  own->combined += allocator->combined;
  LADE_EXPECT_OK(ladei_device_allocator_check(own->f.allocator));
  LADE_EXPECT_OK(lade_device_allocator_destroy(own->f.allocator, true));
  own->f.allocator = NULL;
}

/* ---- The tests --------------------------------------------------------------------------------------------------- */

static void scene_run(scene_kind scene, int threads, int preemptions) {
  bench own = {.scene = scene, .threads = threads};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!device_fixture_open(&own.f, "sim", 400 * MIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_allocator_destroy(own.f.allocator, true));
  own.f.allocator = NULL;
  const scheduler_plan plan = {.threads = threads,
                               .preemptions = scheduler_preemptions(preemptions),
                               .prepare = prepare,
                               .body = body,
                               .judge = judge};
  uint64_t schedules = scheduler_explore(&plan, &own);
  printf("%llu schedules, %llu calls combined\n", (unsigned long long)schedules, (unsigned long long)own.combined);
  if (plan.preemptions > 0) LADE_EXPECT_GT_UINT(own.combined, 0);
  LADE_EXPECT_OK(lade_device_allocator_create(own.f.runtime, 0, NULL, &own.f.allocator)); /* the fixture closes one */
  device_fixture_close(&own.f);
}

LADE_TEST(CombineSchedule, TwoThreadsOnOneStream) { scene_run(SHARED_STREAM, 2, 3); }
LADE_TEST(CombineSchedule, ThreeThreadsOnOneStream) { scene_run(SHARED_STREAM, 3, 2); }
LADE_TEST(CombineSchedule, TwoThreadsOnTheirOwn) { scene_run(OWN_STREAMS, 2, 2); }
LADE_TEST(CombineSchedule, BesideOneThatMisses) { scene_run(ONE_MISSES, 2, 2); }
LADE_TEST(CombineSchedule, BesideOneWhoseBlockIsRecorded) { scene_run(ONE_RECORDED, 2, 2); }
LADE_TEST(CombineSchedule, EventsCarryTheCallersContext) { scene_run(CONTEXTS, 2, 2); }
