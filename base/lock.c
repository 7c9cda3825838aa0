/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranked mutexes over pthread's, and the check of their order.
 *
 *   held stack of a thread (builds without NDEBUG):   [ rank 40 | rank 70 | rank 100 ]   ascending, newest last
 *
 * I1  The held stack lists exactly the locks that this thread holds, in the order of taking them.
 * I2  Ranks on it ascend strictly; whoever would break that stops the program before he can deadlock.
 * I3  While a thread waits on a condition, the lock of the wait is not on its stack.
 * Locks: this file is them. The stack is thread-local, and there is none in builds with NDEBUG.
 *
 * pthread's return codes are not looked at: with these attributes the calls fail only for mutexes that were never made
 * or are not held, and the held stack tells that first. They are plain mutexes to the thread sanitiser.
 */
#include "base/lock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- The held stack ---------------------------------------------------------------------------------------------- */

#ifdef NDEBUG

static inline void held_check(const ladei_lock *lock) { (void)lock; }
static inline void held_push(const ladei_lock *lock) { (void)lock; }
static inline void held_remove(const ladei_lock *lock) { (void)lock; }

#else

/* One per rank at most (I2). */
enum { HELD_MAX = 16 };

static _Thread_local struct {
  const ladei_lock *locks[HELD_MAX];
  int count;
} held;

__attribute__((noreturn)) static void violation(const char *what, int rank) {
  fprintf(stderr, "lade: lock order: %s (rank %d); held:", what, rank);
  for (int i = 0; i < held.count; i++) {
    fprintf(stderr, " %d", (int)held.locks[i]->rank);
  }
  fprintf(stderr, "\n");
  abort();
}

static int held_find(const ladei_lock *lock) {
  for (int i = held.count; i-- > 0;) {
    if (held.locks[i] == lock) return i;
  }
  return -1;
}

/* Before the mutex is taken: a violation must not end in the deadlock that it warns of. */
static void held_check(const ladei_lock *lock) {
  for (int i = 0; i < held.count; i++) {
    if (held.locks[i]->rank >= lock->rank) violation("taking a lock of no higher rank", (int)lock->rank);
  }
  if (held.count == HELD_MAX) violation("more locks held than there are ranks", (int)lock->rank);
}

static void held_push(const ladei_lock *lock) { held.locks[held.count++] = lock; }

static void held_remove(const ladei_lock *lock) {
  int place = held_find(lock);
  if (place < 0) violation("releasing a lock that is not held", (int)lock->rank);
  held.count--;
  for (int i = place; i < held.count; i++) {
    held.locks[i] = held.locks[i + 1];
  }
}

void ladei_lock_assert_held(const ladei_lock *lock) {
  if (held_find(lock) < 0) violation("a lock should be held here", (int)lock->rank);
}

void ladei_lock_assert_none_held(void) {
  if (held.count != 0) violation("a driver call or callback under a lock", 0);
}

#endif

/* ---- Mutexes ----------------------------------------------------------------------------------------------------- */

void ladei_lock_init(ladei_lock *lock, ladei_lock_rank rank) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
  pthread_mutex_init(&lock->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  lock->rank = rank;
}

void ladei_lock_destroy(ladei_lock *lock) { pthread_mutex_destroy(&lock->mutex); }

void ladei_lock_acquire(ladei_lock *lock) {
  held_check(lock);
  pthread_mutex_lock(&lock->mutex);
  held_push(lock);
}

bool ladei_lock_try_acquire(ladei_lock *lock) {
  held_check(lock);
  if (pthread_mutex_trylock(&lock->mutex) != 0) return false;
  held_push(lock);
  return true;
}

void ladei_lock_release(ladei_lock *lock) {
  held_remove(lock);
  pthread_mutex_unlock(&lock->mutex);
}

/* ---- Conditions -------------------------------------------------------------------------------------------------- */

void ladei_condition_init(ladei_condition *condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&condition->condition, &attributes);
  pthread_condattr_destroy(&attributes);
}

void ladei_condition_destroy(ladei_condition *condition) { pthread_cond_destroy(&condition->condition); }

void ladei_condition_wait(ladei_condition *condition, ladei_lock *lock) {
  held_remove(lock);
  pthread_cond_wait(&condition->condition, &lock->mutex);
  held_push(lock);
}

/* The moment `timeout_ns` from now, or the last one that time_t can say. */
static struct timespec deadline_after(uint64_t timeout_ns) {
  enum { NS_PER_S = 1000000000 };
  struct timespec deadline;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += (time_t)(timeout_ns / NS_PER_S); /* at most 2^64 / 10^9: no overflow */
  deadline.tv_nsec += (long)(timeout_ns % NS_PER_S);
  if (deadline.tv_nsec >= NS_PER_S) {
    deadline.tv_nsec -= NS_PER_S;
    deadline.tv_sec++;
  }
  return deadline;
}

bool ladei_condition_wait_for(ladei_condition *condition, ladei_lock *lock, uint64_t timeout_ns) {
  struct timespec deadline = deadline_after(timeout_ns);
  held_remove(lock);
  int result = pthread_cond_timedwait(&condition->condition, &lock->mutex, &deadline);
  held_push(lock);
  return result != ETIMEDOUT;
}

void ladei_condition_signal(ladei_condition *condition) { pthread_cond_signal(&condition->condition); }

void ladei_condition_broadcast(ladei_condition *condition) { pthread_cond_broadcast(&condition->condition); }
