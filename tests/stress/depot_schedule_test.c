/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All orders of two threads at one depot: lists are put, taken, and all of them taken at once. Each block is one thread's or in the
 * depot, and comes out once.
 */
#include <stdlib.h>

#include "host/caches/depot.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"

enum { CLASS = 7, LISTS = 3, LENGTH = 2, EACH = LISTS * LENGTH, BEFORE = 2 /* threads, and what lies there before */ };

typedef struct bench {
  ladei_pinned_depot *depot;
  ladei_pinned_block blocks[BEFORE + 1][EACH];
  bool inside[BEFORE + 1][EACH];
  int operations[BEFORE];
} bench;

static ladei_pinned_block *list_make(bench *own, int row, int i) {
  ladei_pinned_block *first = &own->blocks[row][i * LENGTH];
  for (int k = 0; k < LENGTH; k++) {
    own->inside[row][i * LENGTH + k] = true;
    ladei_pinned_block_next_set(first + k, k + 1 < LENGTH ? first + k + 1 : NULL);
  }
  return first;
}

/* One thread runs at a time, so plain words tell who has a block. */
static void came_out(bench *own, ladei_pinned_block *list) {
  for (; list != NULL; list = ladei_pinned_block_next(list)) {
    size_t i = (size_t)(list - &own->blocks[0][0]);
    bool *inside = &own->inside[i / EACH][i % EACH];
    if (!*inside) LADE_FAIL("block %zu came out twice", i);
    *inside = false;
  }
}

static void put(bench *own, int row, int i) {
  ladei_pinned_block *list = list_make(own, row, i);
  if (!ladei_pinned_depot_put(own->depot, CLASS, list, LENGTH)) came_out(own, list);
}

static void op_put(bench *own, int thread) {
  for (int i = 0; i < LISTS; i++) put(own, thread, i);
}

static void op_take(bench *own, int thread) {
  (void)thread;
  for (int i = 0; i < LISTS; i++) came_out(own, ladei_pinned_depot_take(own->depot, CLASS));
}

static void op_empty(bench *own, int thread) {
  (void)thread;
  came_out(own, ladei_pinned_depot_empty(own->depot));
}

static void op_put_and_take(bench *own, int thread) {
  put(own, thread, 0);
  came_out(own, ladei_pinned_depot_take(own->depot, CLASS));
}

static void (*const operations[])(bench *own, int thread) = {op_put, op_take, op_empty, op_put_and_take};
static const char *const names[] = {"put", "take", "empty", "put and take", NULL};

static void choose(void *user, int thread, int operation) { ((bench *)user)->operations[thread] = operation; }

/* Room for four lists, of which two lie there. */
static void prepare(void *user) {
  bench *own = user;
  const size_t list_bytes = ladei_pinned_class_bytes(CLASS) * LADEI_PINNED_BATCH_MOST;
  own->depot = ladei_pinned_depot_create(4 * list_bytes * LADEI_PINNED_MAGAZINE_CLASSES);
  LADE_ASSERT_NE_PTR(own->depot, NULL);
  for (int i = 0; i < 2; i++) put(own, BEFORE, i);
}

static void body(void *user, int thread) {
  bench *own = user;
  operations[own->operations[thread]](own, thread);
}

static void judge(void *user) {
  bench *own = user;
  uint64_t bytes = 0;
  for (int i = 0; i < (BEFORE + 1) * EACH; i++)
    if (own->inside[i / EACH][i % EACH]) bytes += ladei_pinned_class_bytes(CLASS);
  LADE_EXPECT_EQ_UINT(ladei_pinned_depot_bytes(own->depot), bytes);
  came_out(own, ladei_pinned_depot_empty(own->depot));
  for (int i = 0; i < (BEFORE + 1) * EACH; i++)
    if (own->inside[i / EACH][i % EACH]) LADE_FAIL("block %d is lost", i);
  ladei_pinned_depot_destroy(own->depot);
}

LADE_TEST(DepotSchedule, EachBlockComesOutOnceInAllOrders) {
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  static bench own;
  const scheduler_plan plan = {.threads = 2,
                               .preemptions = scheduler_preemptions(3),
                               .prepare = prepare,
                               .body = body,
                               .judge = judge,
                               .names = names,
                               .choose = choose};
  for (int i = 0; names[i] != NULL && !lade_test_has_failed(); i++) scheduler_explore_pairs(&plan, &own, names[i]);
}
