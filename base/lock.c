/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranked mutexes on the kernel's futexes, and the check of their order.
 *
 *   word   FREE --take--> HELD --somebody sleeps--> AWAITED --give--> FREE, and one sleeper wakes
 *
 *   held stack of a thread (builds without NDEBUG):   [ rank 40 | rank 70 | rank 100 ]   ascending, newest last
 *
 * I1  The held stack lists exactly the locks that this thread holds, in the order of taking them.
 * I2  Ranks on it ascend strictly; whoever would break that stops the program before he can deadlock.
 * I3  While a thread waits on a condition, the lock of the wait is not on its stack.
 * I4  Whoever sleeps has made the word AWAITED before, and whoever was woken takes the lock as AWAITED: he cannot know
 *     whether others sleep. So no release misses a sleeper.
 * Locks: this file is them. The stack is thread-local, and there is none in builds with NDEBUG.
 *
 * Why not pthread's: the device cache takes its lock twice for a pair of alloc and free, and an adaptive pthread mutex
 * was 28 of the 116 ns of such a pair, this one is 24 with several threads and 4 with one (benchmarks/micro/device_cache).
 */
#include "base/lock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* ---- Futexes ----------------------------------------------------------------------------------------------------- */

#ifdef LADEI_SCHEDULED

static bool word_sleep(_Atomic(uint32_t) *word, uint32_t seen, const struct timespec *deadline) {
  return ladei_switch_sleep(word, seen, deadline != NULL);
}

static void word_wake(_Atomic(uint32_t) *word, int count) { ladei_switch_wake(word, count); }

#else

/* Sleeps while *word is `seen`, until `deadline` (NULL: none) by the monotonic clock. False when that is over. Also
 * returns for no reason; callers look again. */
static bool word_sleep(_Atomic(uint32_t) *word, uint32_t seen, const struct timespec *deadline) {
  long result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
  return result == 0 || errno != ETIMEDOUT;
}

static void word_wake(_Atomic(uint32_t) *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count); }

#endif

/* ---- Mutexes ----------------------------------------------------------------------------------------------------- */

/* Some ten microseconds. Who sleeps is woken tens of microseconds later, in a virtual machine hundreds: that is a
 * thousand times what the holder needs, unless he was taken off his processor. */
enum { SPINS = 400 };

static inline void spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void ladei_lock_init(ladei_lock *lock, ladei_lock_rank rank) {
  atomic_init(&lock->word, LADEI_LOCK_FREE);
  lock->rank = rank;
}

void ladei_lock_destroy(ladei_lock *lock) { (void)lock; }

static bool word_try(ladei_lock *lock) {
  uint32_t word = LADEI_LOCK_FREE;
  return atomic_compare_exchange_strong_explicit(&lock->word, &word, LADEI_LOCK_HELD, memory_order_acquire,
                                                 memory_order_relaxed);
}

void ladei_lock_wait(ladei_lock *lock) {
  int code = errno;
  for (int i = 0; i < SPINS; i++) {
    spin_pause();
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) == LADEI_LOCK_FREE && word_try(lock)) return;
  }
  while (atomic_exchange_explicit(&lock->word, LADEI_LOCK_AWAITED, memory_order_acquire) != LADEI_LOCK_FREE) {
    (void)word_sleep(&lock->word, LADEI_LOCK_AWAITED, NULL);
  }
  errno = code;
}

void ladei_lock_wake(ladei_lock *lock) { word_wake(&lock->word, 1); }

bool ladei_lock_try_acquire(ladei_lock *lock) {
  held_check(lock);
  ladei_switch_point("try lock", (int)lock->rank);
  if (!word_try(lock)) return false;
  held_push(lock);
  return true;
}

#ifndef NDEBUG

void ladei_lock_acquire(ladei_lock *lock) {
  held_check(lock);
  ladei_lock_word_take(lock);
  held_push(lock);
}

void ladei_lock_release(ladei_lock *lock) {
  held_remove(lock);
  ladei_lock_word_give(lock);
}

#endif

/* ---- Conditions -------------------------------------------------------------------------------------------------- */

void ladei_condition_init(ladei_condition *condition) {
  atomic_init(&condition->turns, 0);
  atomic_init(&condition->waiters, 0);
}

void ladei_condition_destroy(ladei_condition *condition) { (void)condition; }

/* Who changes what is waited for holds the lock: so he comes before this look at the turns, or he sees the waiter. */
static bool condition_sleep(ladei_condition *condition, ladei_lock *lock, const struct timespec *deadline) {
  int code = errno;
  atomic_fetch_add_explicit(&condition->waiters, 1, memory_order_relaxed);
  uint32_t turn = atomic_load_explicit(&condition->turns, memory_order_relaxed);
  ladei_lock_release(lock);
  bool in_time = word_sleep(&condition->turns, turn, deadline);
  ladei_lock_acquire(lock);
  atomic_fetch_sub_explicit(&condition->waiters, 1, memory_order_relaxed);
  errno = code;
  return in_time;
}

void ladei_condition_wait(ladei_condition *condition, ladei_lock *lock) {
  (void)condition_sleep(condition, lock, NULL);
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
  return condition_sleep(condition, lock, &deadline);
}

static void condition_turn(ladei_condition *condition, int wake_count) {
  if (atomic_load_explicit(&condition->waiters, memory_order_relaxed) == 0) return;
  atomic_fetch_add_explicit(&condition->turns, 1, memory_order_relaxed);
  int code = errno;
  word_wake(&condition->turns, wake_count);
  errno = code;
}

void ladei_condition_signal(ladei_condition *condition) { condition_turn(condition, 1); }

void ladei_condition_broadcast(ladei_condition *condition) { condition_turn(condition, INT_MAX); }
