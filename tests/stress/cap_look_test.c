/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A request at the cap that others run ahead of. There is free memory for it at any time, but not always in the same
 * place: at chosen points of its way the others take what it is about to find, after they have freed as much where it has
 * looked before. It may not be refused.
 *
 *   asker:   ... empties caches ....................... looks at free memory ....... looks at other nodes ...
 *   holder:                    frees A, takes B                         frees B, takes C
 *
 * Too many switches for the scheduler to find them: the asker's own switch points let the others act.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pinned.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/runtimes.h"

/* The holder has a block of one of two kinds, and changes it for one of the other kind. */
typedef struct scene {
  const char *name;
  const char *machine;
  size_t bytes[2]; /* of the two kinds; classes differ, so that the holder does not get its own block back */
  int nodes[2];
  int free_kind; /* of what is free at first; the holder begins with one of kind 0 */
  size_t asked_bytes;
  uint64_t cap_bytes;
  unsigned magazine_mib;
  int most_changes;      /* 0: no bound; who is ahead of all looks keeps the block for good */
  bool freed_by_another; /* a thread that did not take the block */
} scene;

#define ONE_NODE  "node:1 core:1 pu:1"
#define TWO_NODES "node:2 core:1 pu:1"

static const scene scenes[] = {
    {.name = "what magazines have room for",
     .machine = ONE_NODE,
     .bytes = {256 * LADEI_KIB, 224 * LADEI_KIB},
     .asked_bytes = 224 * LADEI_KIB,
     .cap_bytes = 640 * LADEI_KIB,
     .magazine_mib = 4},
    {.name = "what the depot has room for",
     .machine = ONE_NODE,
     .bytes = {256 * LADEI_KIB, 224 * LADEI_KIB},
     .asked_bytes = 224 * LADEI_KIB,
     .cap_bytes = 640 * LADEI_KIB,
     .magazine_mib = 64},
    {.name = "what the depot has room for, freed by another thread",
     .machine = ONE_NODE,
     .bytes = {256 * LADEI_KIB, 224 * LADEI_KIB},
     .asked_bytes = 224 * LADEI_KIB,
     .cap_bytes = 640 * LADEI_KIB,
     .magazine_mib = 64,
     .freed_by_another = true},
    {.name = "a large block that its thread keeps",
     .machine = ONE_NODE,
     .bytes = {2 * LADEI_MIB, 1792 * LADEI_KIB},
     .asked_bytes = 1792 * LADEI_KIB,
     .cap_bytes = 4 * LADEI_MIB + 128 * LADEI_KIB,
     .magazine_mib = 4},
    {.name = "a large block for the bins",
     .machine = ONE_NODE,
     .bytes = {2 * LADEI_MIB, 1792 * LADEI_KIB},
     .asked_bytes = 1792 * LADEI_KIB,
     .cap_bytes = 4 * LADEI_MIB + 128 * LADEI_KIB,
     .magazine_mib = 4,
     .freed_by_another = true},
    {.name = "a block of another node",
     .machine = TWO_NODES,
     .bytes = {640 * LADEI_KIB, 640 * LADEI_KIB},
     .nodes = {0, 1},
     .free_kind = 1,
     .most_changes = 3,
     .asked_bytes = 640 * LADEI_KIB,
     .cap_bytes = 2 * LADEI_MIB,
     .magazine_mib = 4},
    {.name = "a page, and a run whose last block is freed",
     .machine = ONE_NODE,
     .bytes = {512, 4 * LADEI_KIB},
     .free_kind = 1,
     .asked_bytes = LADEI_KIB,
     .cap_bytes = 16 * LADEI_KIB,
     .magazine_mib = 4},
};

enum { HOLDER, OTHER, HELPERS };
typedef enum step { ENDS, FREES, TAKES, CHANGES } step;

static struct {
  const scene *now;
  lade_pinned_pool *pool;
  void *block; /* the holder's */
  int kind;    /* its kind, or that of the next one */
  int changes; /* of kind, while the request was on its way */
  sem_t asked[HELPERS], done;
  step steps[HELPERS];
} all;

static _Thread_local bool is_asker;

static void sem_take(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

static void take(int kind, void **out) {
  all.kind = kind;
  LADE_EXPECT_OK(ladei_pinned_alloc_on(all.pool, all.now->bytes[kind], all.now->nodes[kind], out));
}

static void *helper_main(void *user) {
  const int own = *(const int *)user;
  for (;;) {
    sem_take(&all.asked[own]);
    step todo = all.steps[own];
    if (todo == FREES || todo == CHANGES) LADE_EXPECT_OK(lade_pinned_free(all.pool, all.block));
    if (todo == TAKES) take(all.kind, &all.block);
    if (todo == CHANGES) take(1 - all.kind, &all.block);
    sem_post(&all.done);
    if (todo == ENDS) return NULL;
  }
}

static void helper_do(int helper, step todo) {
  all.steps[helper] = todo;
  sem_post(&all.asked[helper]);
  sem_take(&all.done);
}

static void holder_change(void) {
  all.changes++;
  if (all.now->freed_by_another) {
    helper_do(OTHER, FREES);
    all.kind = 1 - all.kind;
    helper_do(HOLDER, TAKES);
  } else {
    helper_do(HOLDER, CHANGES);
  }
}

/* On two nodes the holder has the asker's node where that looks there, and the other one where it looks at that. */
static void asker_at(const char *what) {
  if (!is_asker || (all.now->most_changes > 0 && all.changes == all.now->most_changes)) return;
  bool collected = strcmp(what, "collected") == 0, elsewhere = strcmp(what, "other nodes") == 0;
  bool two_nodes = all.now->nodes[0] != all.now->nodes[1];
  if (two_nodes ? (collected && all.kind == 1) || (elsewhere && all.kind == 0) : collected) holder_change();
}

static lade_status watched_alloc(void **out) {
  is_asker = true;
  scheduler_watch(asker_at);
  lade_status status = ladei_pinned_alloc_on(all.pool, all.now->asked_bytes, 0, out);
  scheduler_watch(NULL);
  is_asker = false;
  return status;
}

static void scene_play(lade_runtime *runtime, const scene *now) {
  static const int numbers[HELPERS] = {HOLDER, OTHER};
  const ladei_pinned_hooks machine = {LADEI_TOPOLOGY_SYNTHETIC, now->machine, "/nonexistent", 0, 0};
  pthread_t threads[HELPERS];
  void *block = NULL, *fillers[2] = {NULL, NULL};
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = now->nodes[1] > 0 ? LADEI_MIB : ladei_size_max(now->cap_bytes, LADEI_MIB);
  options.max_bytes = now->cap_bytes;
  options.magazine_bytes = now->magazine_mib * LADEI_MIB;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  lade_test_context("%s", now->name);
  LADE_EXPECT_OK(ladei_pinned_pool_create(runtime, &options, &machine, &all.pool));
  all.now = now;
  all.kind = all.changes = 0;
  sem_init(&all.done, 0, 0);
  for (int i = 0; i < HELPERS; i++) {
    sem_init(&all.asked[i], 0, 0);
    LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, helper_main, (void *)&numbers[i]), 0);
  }
  for (int i = 0; i < 2; i++) /* no segment is ever wholly free */
    LADE_EXPECT_OK(ladei_pinned_alloc_on(all.pool, LADEI_PINNED_PAGE_BYTES, now->nodes[i], &fillers[i]));
  helper_do(HOLDER, TAKES);
  /* What is free is ready for requests of another class or node: the first steps of a request do not find it. */
  take(now->free_kind, &block);
  all.kind = 0;
  LADE_EXPECT_OK(lade_pinned_free(all.pool, block));
  lade_status status = watched_alloc(&block);
  LADE_EXPECT_OK(status);
  LADE_EXPECT_GE_INT(all.changes, 3); /* one for each place where the others were ahead */
  if (status == LADE_OK) LADE_EXPECT_OK(lade_pinned_free(all.pool, block));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_pinned_free(all.pool, fillers[i]));
  helper_do(HOLDER, FREES);
  for (int i = 0; i < HELPERS; i++) helper_do(i, ENDS);
  for (int i = 0; i < HELPERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < HELPERS; i++) sem_destroy(&all.asked[i]);
  sem_destroy(&all.done);
  LADE_EXPECT_OK(ladei_pinned_pool_check(all.pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(all.pool, false));
}

LADE_TEST(CapLook, WhatIsFreeAllTheTimeIsFoundWhereverItMoves) {
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  lade_runtime *runtime = support_runtime_open("sim");
  for (size_t i = 0; runtime != NULL && i < sizeof scenes / sizeof scenes[0]; i++) scene_play(runtime, &scenes[i]);
  lade_test_context("%s", "");
  if (runtime != NULL) support_runtime_close(runtime);
}
