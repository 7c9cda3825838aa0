/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two to four threads on one lock and one condition: with waiters that sleep, wake by a
 * release, and claim the lock after a sleep that took too long. One thread at a time is inside, nobody sleeps through a
 * release or a signal, a claim is kept until its thread has had the lock, and in the end nothing is left in the word.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/lock.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"

typedef enum operation { TAKES, TAKES_TWICE, TAKES_OFTEN, WAITS, WAITS_FOR, SIGNALS, BROADCASTS } operation;

static const char *const names[] = {"takes",   "takes twice", "takes often", "waits", "waits for a time",
                                    "signals", "broadcasts",  NULL};

typedef struct bench {
  operation operations[SCHEDULER_THREADS];
  ladei_lock lock;
  ladei_condition changed;
  int inside;     /* threads between acquire and release */
  int entered;    /* times that a thread came inside */
  int expected;   /* of that */
  bool signalled; /* guard: lock */
  bool lonely;    /* some operation may wait until nobody can go on */
} bench;

static const int ENTERS[] = {
    [TAKES] = 1, [TAKES_TWICE] = 2, [TAKES_OFTEN] = 4, [WAITS] = 1, [WAITS_FOR] = 1, [SIGNALS] = 1, [BROADCASTS] = 1};

static void choose(void *user, int thread, int what) { ((bench *)user)->operations[thread] = (operation)what; }

static void prepare(void *user) {
  bench *own = user;
  ladei_lock_init(&own->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&own->changed);
  own->inside = own->entered = 0;
  own->signalled = false;
}

/* For a moment that another thread may break into. */
static void stay(bench *own) {
  LADE_EXPECT_EQ_INT(++own->inside, 1);
  scheduler_point("inside");
  own->inside--;
}

static void enter(bench *own) {
  ladei_lock_acquire(&own->lock);
  LADE_EXPECT_EQ_UINT(atomic_load(&own->lock.word) & LADEI_LOCK_CLAIMED, 0); /* nobody else's */
  own->entered++;
  stay(own);
}

static void leave(bench *own) {
  stay(own);
  ladei_lock_release(&own->lock);
}

static void wait_for_signal(bench *own) {
  while (!own->signalled) {
    ladei_condition_wait(&own->changed, &own->lock);
    LADE_EXPECT_EQ_UINT(atomic_load(&own->lock.word) & LADEI_LOCK_CLAIMED, 0);
    stay(own);
  }
}

static void body(void *user, int index) {
  bench *own = user;
  operation what = own->operations[index];
  for (int i = 0; i < ENTERS[what]; i++) {
    enter(own);
    if (what == WAITS) wait_for_signal(own);
    if (what == WAITS_FOR) (void)ladei_condition_wait_for(&own->changed, &own->lock, 1);
    if (what == SIGNALS || what == BROADCASTS) own->signalled = true;
    leave(own);
  }
  if (what == SIGNALS) ladei_condition_signal(&own->changed);
  if (what == BROADCASTS) ladei_condition_broadcast(&own->changed);
}

static void judge(void *user) {
  const bench *own = user;
  LADE_EXPECT_EQ_INT(own->entered, own->expected);
  LADE_EXPECT_EQ_UINT(atomic_load(&own->lock.word), LADEI_LOCK_FREE);
  LADE_EXPECT_EQ_UINT(atomic_load(&own->changed.waiters), 0);
  if (!own->lonely) LADE_EXPECT_EQ_INT(scheduler_lonely_timeouts(), 0);
}

static void explore(int threads, int preemptions, int timeouts, const operation *operations) {
  const scheduler_plan plan = {.threads = threads,
                               .preemptions = scheduler_preemptions(preemptions),
                               .timeouts = timeouts,
                               .prepare = prepare,
                               .body = body,
                               .judge = judge,
                               .names = names,
                               .choose = choose};
  int numbers[SCHEDULER_THREADS];
  bench own = {.expected = 0};
  for (int i = 0; i < threads; i++) {
    numbers[i] = (int)operations[i];
    own.expected += ENTERS[operations[i]];
    own.lonely = own.lonely || operations[i] == WAITS_FOR;
  }
  uint64_t count = scheduler_explore_operations(&plan, &own, numbers);
  printf("%d threads, %d preemptions, %d timeouts: %" PRIu64 " schedules\n", threads, plan.preemptions, timeouts,
         count);
}

static void explore_timeouts(int threads, int preemptions, const operation *operations) {
  int most = scheduler_preemptions(2); /* few under the thread sanitiser */
  for (int timeouts = 0; timeouts <= most && !lade_test_has_failed(); timeouts++)
    explore(threads, preemptions, timeouts, operations);
}

LADE_TEST(LockSchedule, TwoThreads) {
  static const operation cases[][2] = {
      {TAKES_TWICE, TAKES_TWICE}, {WAITS, SIGNALS}, {WAITS_FOR, TAKES_TWICE}, {WAITS_FOR, SIGNALS}};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) explore_timeouts(2, 2, cases[i]);
}

LADE_TEST(LockSchedule, ThreeThreadsTakeIt) {
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  explore_timeouts(3, 2, (const operation[]){TAKES, TAKES, TAKES});
  explore_timeouts(3, 2, (const operation[]){TAKES_TWICE, TAKES, TAKES});
  explore_timeouts(3, 1, (const operation[]){TAKES_OFTEN, TAKES_TWICE, TAKES_TWICE});
}

/* One holds it, one is awake, one is woken in its turn, and one sleeps on. */
LADE_TEST(LockSchedule, FourThreadsTakeIt) {
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  explore(4, 1, 0, (const operation[]){TAKES_TWICE, TAKES_TWICE, TAKES, TAKES});
}

LADE_TEST(LockSchedule, ThreeThreadsWithACondition) {
  static const operation cases[][3] = {
      {WAITS, SIGNALS, TAKES}, {WAITS, WAITS, BROADCASTS}, {WAITS, WAITS_FOR, BROADCASTS}};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) explore_timeouts(3, 2, cases[i]);
}
