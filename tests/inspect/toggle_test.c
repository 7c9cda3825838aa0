/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History, publishing and snapshots are turned on and off while four threads allocate and free in both caches: for the thread sanitiser,
 * and for what is left over.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "lade/inspect.h"
#include "lade/stacks.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

enum { THREADS = 4, BLOCKS = 8, ROUNDS = 30 };

typedef struct scene {
  device_fixture f;
  lade_pinned_pool *pool;
  lade_stacks *stacks;
  atomic_bool over;
} scene;

static void pair(scene *s, size_t thread, size_t bytes) {
  void *device[BLOCKS], *pinned[BLOCKS];
  for (size_t i = 0; i < BLOCKS; i++) {
    LADE_EXPECT_OK(lade_device_alloc(s->f.allocator, bytes << i, s->f.streams[thread], &device[i]));
    LADE_EXPECT_OK(lade_pinned_alloc(s->pool, bytes << i, &pinned[i]));
  }
  LADE_EXPECT_OK(lade_device_annotate(s->f.allocator, device[0], "note"));
  for (size_t i = 0; i < BLOCKS; i++) {
    LADE_EXPECT_OK(lade_device_free(s->f.allocator, device[i]));
    LADE_EXPECT_OK(lade_pinned_free(s->pool, pinned[i]));
  }
}

typedef struct worker {
  scene *s;
  size_t number;
} worker;

static void *worker_main(void *user) {
  worker *w = user;
  LADE_EXPECT_OK(lade_history_label_set("worker"));
  for (size_t i = 0; !atomic_load(&w->s->over); i++) {
    LADE_EXPECT_OK(lade_history_scope_push("round"));
    pair(w->s, w->number, 100 + i % 1000);
    LADE_EXPECT_OK(lade_history_scope_pop());
  }
  LADE_EXPECT_OK(lade_history_label_set(NULL));
  return NULL;
}

/* --- what is turned on and off ------------------------------------------------------------------------------------ */

static void history_set(scene *s, lade_device_context_level level) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = (uint32_t)level;
  options.max_entries = 200;
  lade_stacks_use(s->stacks, &options);
  LADE_EXPECT_OK(lade_device_history_set(s->f.allocator, &options));
  LADE_EXPECT_OK(lade_pinned_history_set(s->pool, &options));
}

static void history_clear(scene *s) {
  LADE_EXPECT_OK(lade_device_history_set(s->f.allocator, NULL));
  LADE_EXPECT_OK(lade_pinned_history_set(s->pool, NULL));
}

static void snapshot_take(scene *s, const lade_part *parts) {
  lade_snapshot *snapshot = NULL;
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = LADE_SNAPSHOT_NO_SYMBOLS;
  LADE_EXPECT_OK(lade_snapshot_take(parts, 2, &options, &snapshot));
  lade_snapshot_destroy(snapshot);
  (void)s;
}

static void rounds_run(scene *s) {
  const lade_part parts[] = {lade_part_device(s->f.allocator), lade_part_pinned(s->pool)};
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.interval_ms = 10;
  for (int i = 0; i < ROUNDS; i++) {
    lade_publisher *publisher = NULL;
    history_set(s, (lade_device_context_level)(i % 4));
    LADE_EXPECT_OK(lade_publish(parts, 2, &options, &publisher));
    snapshot_take(s, parts);
    if (i % 3 == 0) history_set(s, LADE_CONTEXT_ALL);
    lade_status status = lade_publish_update(publisher);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_BUSY);
    if (i % 2 == 0) history_clear(s);
    snapshot_take(s, parts);
    lade_publisher_destroy(publisher);
    history_clear(s);
  }
}

LADE_TEST(InspectToggle, HistoryAndPublishingWhileFourThreadsAllocate) {
  scene s = {.pool = NULL};
  pthread_t threads[THREADS];
  worker workers[THREADS];
  if (!device_fixture_open_bytes(&s.f, "cpu", NULL)) return;
  LADE_ASSERT_OK(lade_pinned_pool_create(s.f.runtime, NULL, &s.pool));
  lade_stacks_options walk;
  lade_stacks_options_init(&walk);
  walk.method =
      LADE_STACKS_FRAME_POINTERS; /* what libunwind does at a thread's end the thread sanitiser does not survive */
  LADE_ASSERT_OK(lade_stacks_create(&walk, &s.stacks));
  for (size_t i = 0; i < THREADS; i++) {
    workers[i] = (worker){&s, i};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
  }
  rounds_run(&s);
  atomic_store(&s.over, true);
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s.pool, false));
  LADE_EXPECT_OK(lade_stacks_destroy(s.stacks)); /* nothing refers to a stack any more */
  device_fixture_close(&s.f);
}
