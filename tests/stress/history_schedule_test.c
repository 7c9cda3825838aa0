/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads in a pinned pool with history on "sim": what one thread frees, the other one may have at
 * once. Of each address the events must be alloc, free_requested, free_completed, and then the next alloc; also while the
 * history is turned off and on, and copied.
 */
#include <string.h>

#include "base/size.h"
#include "host/api/history_api.h"
#include "host/api/pool.h"
#include "lade/pinned.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { ADDRESSES = 16, TOGGLE = 2 /* among the operations */ };

typedef struct bench {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  void *own[SCHEDULER_THREADS]; /* in use, and in a slot of a bin: free for all with the change of its word */
  int operations[SCHEDULER_THREADS];
} bench;

static const size_t LARGE = 2 << 20;

static void history_set(bench *own, bool on) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = on;
  options.max_entries = 100;
  LADE_EXPECT_OK(lade_pinned_history_set(own->pool, &options));
}

static void op_free_alloc(bench *own, int thread) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_free(own->pool, own->own[thread]));
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, LARGE, &block));
  own->own[thread] = block;
}

static void op_alloc_free(bench *own, int thread) {
  void *block = NULL;
  (void)thread;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, LARGE, &block));
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
}

static void op_toggle(bench *own, int thread) {
  (void)thread;
  history_set(own, false);
  history_set(own, true);
}

static void history_expect(bench *own) {
  static const int before[] = {LADE_DEVICE_FREE_COMPLETED, LADE_DEVICE_ALLOC, LADE_DEVICE_FREE_REQUESTED};
  lade_history *history = NULL;
  struct {
    uint64_t address;
    int action;
  } last[ADDRESSES] = {{0, 0}};
  LADE_EXPECT_OK(lade_pinned_history_take(own->pool, &history));
  bool whole = own->operations[0] != TOGGLE && own->operations[1] != TOGGLE; /* else calls under way may be missing */
  for (size_t i = 0; history != NULL && whole && i < history->event_count; i++) {
    const lade_history_event *event = &history->events[i];
    if (event->action > LADE_DEVICE_FREE_COMPLETED) continue;
    int at = 0;
    while (last[at].address != 0 && last[at].address != event->address) at++;
    if (last[at].address != 0) LADE_EXPECT_EQ_INT(last[at].action, before[event->action]);
    last[at].address = event->address;
    last[at].action = (int)event->action;
  }
  lade_history_destroy(history);
}

static void op_copy(bench *own, int thread) {
  (void)thread;
  history_expect(own);
}

static const struct {
  const char *name;
  void (*run)(bench *own, int thread);
} operations[] = {
    {"free, alloc", op_free_alloc}, {"alloc, free", op_alloc_free}, {"off, on", op_toggle}, {"copy", op_copy}};
static const char *const names[] = {"free, alloc", "alloc, free", "off, on", "copy", NULL};

static void prepare(void *user) {
  static const ladei_pinned_hooks machine = {LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:1 pu:1", "/nonexistent", 0, 0};
  bench *own = user;
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = 4 * LADEI_MIB;
  options.max_bytes = 16 * LADEI_MIB;
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, &options, &machine, &own->pool));
  history_set(own, true);
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_pinned_alloc(own->pool, LARGE, &own->own[i]));
}

/* Freed by another thread than took it, a block gets into a bin, and stays in its slot when it is taken again. */
static void warm(void *user, int thread) {
  bench *own = user;
  op_free_alloc(own, thread);
}

static void body(void *user, int thread) {
  bench *own = user;
  operations[own->operations[thread]].run(own, thread);
}

static void judge(void *user) {
  bench *own = user;
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_pinned_free(own->pool, own->own[i]));
  history_expect(own);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, false));
}

static void choose(void *user, int thread, int number) { ((bench *)user)->operations[thread] = number; }

LADE_TEST_P(HistorySchedule, Pairs, names, name) {
  bench own = {.runtime = NULL};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  own.runtime = support_interposer_open("sim", NULL);
  if (own.runtime == NULL) return;
  const scheduler_plan plan = {.preemptions = scheduler_preemptions(1),
                               .prepare = prepare,
                               .warm = warm,
                               .body = body,
                               .judge = judge,
                               .names = names,
                               .choose = choose};
  scheduler_explore_pairs(&plan, &own, name);
  support_expect_nothing_live(own.runtime);
  support_runtime_close(own.runtime);
}
