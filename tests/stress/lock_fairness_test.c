/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Locks are fair after a bound, judged by how often others took the lock meanwhile.
 *
 * A hot thread gives the lock and takes it again at once, before those who were woken for it can run: all are on one
 * processor, and a thread of the batch class keeps no other from running. So in each round somebody is woken in vain, and
 * the round ends when all sleep again.
 *
 * One waiter only: of a crowd one is woken after the other, and served without any claim too. tests/stress/lock_schedule_test.c goes
 * through the orders of several.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "tests/shim/lade_test.h"
#include "tests/support/asleep.h"
#include "tests/support/soak.h"

typedef struct waiter {
  ladei_lock *lock;
  pthread_t thread;
  _Atomic(int) id; /* of the thread, for the system; 0: not yet there */
  _Atomic(bool) served;
} waiter;

/* The calling thread, and those that it makes, run where it is now. */
static void stay_on_this_processor(void) {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET((unsigned)sched_getcpu(), &here);
  LADE_EXPECT_EQ_INT(sched_setaffinity(0, sizeof here, &here), 0);
}

static void *wait_once(void *user) {
  const struct sched_param none = {.sched_priority = 0};
  waiter *own = user;
  LADE_EXPECT_EQ_INT(pthread_setschedparam(pthread_self(), SCHED_BATCH, &none), 0);
  atomic_store(&own->id, (int)syscall(SYS_gettid));
  ladei_lock_acquire(own->lock);
  atomic_store(&own->served, true);
  ladei_lock_release(own->lock);
  return NULL;
}

static bool settled(const waiter *own) {
  int thread = atomic_load(&own->id);
  return atomic_load(&own->served) || (thread != 0 && support_thread_sleeps(thread));
}

/* It has the lock behind it, or sleeps for it. */
static void settle(const waiter *own) {
  const struct timespec pause = {.tv_nsec = 20 * 1000};
  while (!settled(own)) nanosleep(&pause, NULL);
}

/* Times that the hot thread took the lock before the other one; it holds the lock at first and gives it in the end. */
static int rounds_until_served(ladei_lock *lock, const waiter *waiting, int most) {
  int rounds = 0;
  while (!atomic_load(&waiting->served) && rounds < most) {
    settle(waiting);
    ladei_lock_release(lock);
    ladei_lock_acquire(lock);
    rounds++;
  }
  ladei_lock_release(lock);
  return rounds;
}

static void *expect_fair(void *user) {
  enum { ROUNDS_MOST = LADEI_LOCK_VAIN_MOST + 2 };
  static waiter waiting;
  ladei_lock lock;
  (void)user;
  stay_on_this_processor();
  ladei_lock_init(&lock, LADEI_RANK_LEAF);
  ladei_lock_acquire(&lock);
  waiting = (waiter){.lock = &lock};
  LADE_EXPECT_EQ_INT(pthread_create(&waiting.thread, NULL, wait_once, &waiting), 0);
  LADE_EXPECT_LE_INT(rounds_until_served(&lock, &waiting, ROUNDS_MOST + 1), ROUNDS_MOST);
  pthread_join(waiting.thread, NULL);
  LADE_EXPECT_EQ_INT(atomic_load(&lock.word), LADEI_LOCK_FREE);
  return NULL;
}

static void run(void) {
  pthread_t hot; /* not the test's own thread, which may run anywhere */
  LADE_ASSERT_EQ_INT(pthread_create(&hot, NULL, expect_fair, NULL), 0);
  pthread_join(hot, NULL);
}

/* The bug: nothing bounded how often a thread was woken in vain. Some of 100 hot threads on two processors waited for
 * seven seconds, while others took the lock millions of times. Repeated, as by chance a thread may run in time. */
LADE_TEST(LockFairness, ThreadWokenInVainGetsTheLockAfterABound) {
  enum { REPEATS = 20 };
  for (int i = 0; i < REPEATS; i++) run();
}

/* ---- At work ----------------------------------------------------------------------------------------------------- */

enum { MANY = 100 };

typedef struct crowd {
  ladei_lock lock;
  ladei_condition changed;
  uint64_t turns; /* guard: lock */
  _Atomic(bool) stop;
} crowd;

static void *hurry(void *user) {
  crowd *own = user;
  while (!atomic_load_explicit(&own->stop, memory_order_relaxed)) {
    ladei_lock_acquire(&own->lock);
    own->turns++;
    if (own->turns % 1000 == 0)
      ladei_condition_broadcast(&own->changed);
    else if (own->turns % 1000 == 1)
      (void)ladei_condition_wait_for(&own->changed, &own->lock, 1000 * 1000);
    ladei_lock_release(&own->lock);
  }
  return NULL;
}

/* With claims and without: one holder at a time (which the thread sanitiser sees), and nobody sleeps for ever. */
LADE_TEST(LockFairness, HundredThreadsHurryAndAllEnd) {
  static crowd own;
  pthread_t threads[MANY];
  ladei_lock_init(&own.lock, LADEI_RANK_LEAF);
  ladei_condition_init(&own.changed);
  for (int i = 0; i < MANY; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, hurry, &own), 0);
  support_soak soak = support_soak_begin(0.4);
  const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
  while (support_soak_goes_on(&soak)) nanosleep(&pause, NULL);
  atomic_store(&own.stop, true);
  for (int i = 0; i < MANY; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_GT_UINT(own.turns, 0);
  LADE_EXPECT_EQ_INT(atomic_load(&own.lock.word), LADEI_LOCK_FREE);
}
