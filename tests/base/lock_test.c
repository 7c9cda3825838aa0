/* SPDX-License-Identifier: Apache-2.0 */
/* Ranked locks: exclusion, the order rule in builds that check it, conditions. */
#include "base/lock.h"

#include <pthread.h>
#include <time.h>

#include "tests/shim/lade_test.h"
#include "tests/support/stopped.h"

/* ---- The order rule ---------------------------------------------------------------------------------------------- */

static ladei_lock outer, inner;

static void locks_init(void) {
  ladei_lock_init(&outer, LADEI_RANK_ARENA);
  ladei_lock_init(&inner, LADEI_RANK_RETIRE);
}

static void body_run(void *user) {
  locks_init();
  (*(void (**)(void))user)();
}

/* Whether the check stops the program. */
static bool stopped(void (*body)(void)) { return support_stopped(body_run, (void *)&body); }

static void ascending(void) {
  ladei_lock_acquire(&outer);
  ladei_lock_acquire(&inner);
  ladei_lock_assert_held(&outer);
  ladei_lock_release(&outer);
  ladei_lock_assert_held(&inner);
  ladei_lock_release(&inner);
  ladei_lock_assert_none_held();
}
static void descending(void) {
  ladei_lock_acquire(&inner);
  ladei_lock_acquire(&outer);
}
static void twice(void) {
  ladei_lock_acquire(&inner);
  ladei_lock_acquire(&inner);
}
static void release_of_another(void) {
  ladei_lock_acquire(&inner);
  ladei_lock_release(&outer);
}
static void driver_call_under_a_lock(void) {
  ladei_lock_acquire(&outer);
  ladei_lock_assert_none_held();
}
/* One lock of each rank, outermost first. */
static void every_rank(void) {
#define RANK(name, rank) name,
  static const ladei_lock_rank ranks[] = {LADEI_LOCK_RANKS(RANK)};
#undef RANK
  enum { RANKS = sizeof ranks / sizeof ranks[0] };
  static ladei_lock locks[RANKS];
  for (int i = 0; i < RANKS; i++) {
    ladei_lock_init(&locks[i], ranks[i]);
    ladei_lock_acquire(&locks[i]);
  }
  for (int i = 0; i < RANKS; i++) ladei_lock_release(&locks[i]);
  ladei_lock_assert_none_held();
}
static ladei_lock arenas[2];
static void arenas_take(int first) {
  for (int i = 0; i < 2; i++) ladei_lock_init(&arenas[i], LADEI_RANK_ARENA);
  ladei_lock_acquire(&arenas[first]);
  ladei_lock_acquire(&arenas[1 - first]);
  ladei_lock_release(&arenas[0]);
  ladei_lock_release(&arenas[1]);
  ladei_lock_assert_none_held();
}
static void arenas_in_order(void) { arenas_take(0); }
static void arenas_backwards(void) { arenas_take(1); }
static void not_held(void) { ladei_lock_assert_held(&outer); }

LADE_TEST(Lock, AscendingRanksAreAllowedAndReleasedInAnyOrder) { LADE_EXPECT(!stopped(ascending)); }

LADE_TEST(Lock, AThreadMayHoldALockOfEachRank) { LADE_EXPECT(!stopped(every_rank)); }

LADE_TEST(Lock, AThreadMayHoldTheLocksOfSeveralArenas) { LADE_EXPECT(!stopped(arenas_in_order)); }

LADE_TEST(Lock, BrokenOrderStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check lock order");
#endif
  LADE_EXPECT(stopped(descending));
  LADE_EXPECT(stopped(twice));
  LADE_EXPECT(stopped(release_of_another));
  LADE_EXPECT(stopped(arenas_backwards));
}

LADE_TEST(Lock, DriverCallUnderALockStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check lock order");
#endif
  LADE_EXPECT(stopped(driver_call_under_a_lock));
  LADE_EXPECT(stopped(not_held));
}

/* ---- Exclusion --------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 20000 };

typedef struct shared_count {
  ladei_lock lock;
  uint64_t value;
} shared_count;

static void *count_up(void *argument) {
  shared_count *count = argument;
  for (int i = 0; i < ROUNDS; i++) {
    ladei_lock_acquire(&count->lock);
    count->value++;
    ladei_lock_release(&count->lock);
  }
  return NULL;
}

LADE_TEST(Lock, ExcludesOtherThreads) {
  shared_count count = {.value = 0};
  ladei_lock_init(&count.lock, LADEI_RANK_LEAF);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, count_up, &count), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_EQ_UINT(count.value, (uint64_t)THREADS * ROUNDS);
  ladei_lock_destroy(&count.lock);
}

static void *count_slowly(void *argument) {
  const struct timespec moment = {.tv_nsec = 300 * 1000};
  shared_count *count = argument;
  for (int i = 0; i < 20; i++) {
    ladei_lock_acquire(&count->lock);
    uint64_t before = count->value;
    nanosleep(&moment, NULL);
    count->value = before + 1;
    ladei_lock_release(&count->lock);
  }
  return NULL;
}

/* Held so long that the others sleep: each release wakes one of them, until none is left. The lock is taken and given
 * also while there is one thread only, and by plain words then. */
LADE_TEST(Lock, WakesWhoSleepsForIt) {
  shared_count count = {.value = 0};
  ladei_lock_init(&count.lock, LADEI_RANK_LEAF);
  pthread_t threads[THREADS];
  ladei_lock_acquire(&count.lock);
  for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, count_slowly, &count), 0);
  const struct timespec moment = {.tv_nsec = 2 * 1000 * 1000};
  nanosleep(&moment, NULL);
  LADE_EXPECT_EQ_UINT(count.value, 0);
  ladei_lock_release(&count.lock);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_EQ_UINT(count.value, (uint64_t)THREADS * 20);
  LADE_EXPECT_EQ_UINT(atomic_load(&count.lock.word), LADEI_LOCK_FREE);
  ladei_lock_destroy(&count.lock);
}

/* ---- Conditions -------------------------------------------------------------------------------------------------- */

typedef struct mailbox {
  ladei_lock lock;
  ladei_condition changed;
  int turn; /* 0: the test's, 1: the other thread's */
  int passes;
} mailbox;

static void mailbox_pass(mailbox *box, int from, int to) {
  ladei_lock_acquire(&box->lock);
  while (box->turn != from) {
    ladei_condition_wait(&box->changed, &box->lock);
    ladei_lock_assert_held(&box->lock);
  }
  box->turn = to;
  box->passes++;
  ladei_condition_broadcast(&box->changed);
  ladei_lock_release(&box->lock);
}

enum { PASSES = 500 };

static void *mailbox_other(void *argument) {
  for (int i = 0; i < PASSES; i++) mailbox_pass(argument, 1, 0);
  return NULL;
}

LADE_TEST(Condition, PassesTheTurnBetweenThreads) {
  mailbox box = {.turn = 0};
  ladei_lock_init(&box.lock, LADEI_RANK_LEAF);
  ladei_condition_init(&box.changed);
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, mailbox_other, &box), 0);
  for (int i = 0; i < PASSES; i++) mailbox_pass(&box, 0, 1);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_INT(box.passes, 2 * PASSES);
  ladei_condition_destroy(&box.changed);
  ladei_lock_destroy(&box.lock);
}

LADE_TEST(Condition, TimesOutWithTheLockHeld) {
  mailbox box = {.turn = 0};
  ladei_lock_init(&box.lock, LADEI_RANK_LEAF);
  ladei_condition_init(&box.changed);
  ladei_lock_acquire(&box.lock);
  while (ladei_condition_wait_for(&box.changed, &box.lock, 1000)) {
  }
  ladei_lock_assert_held(&box.lock);
  ladei_lock_release(&box.lock);
  ladei_condition_destroy(&box.changed);
  ladei_lock_destroy(&box.lock);
}
