/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranked mutexes on the kernel's futexes, and the check of their order.
 *
 *   word   FREE --take--> HELD --somebody sleeps--> AWAITED --give--> FREE, and one sleeper wakes
 *                                                    | ^  `--give, while there are claims--> OFFERED, and one wakes
 *                                                    `-+---- a sleeper who was woken takes it ----'
 *
 *   held stack of a thread (builds without NDEBUG):   [ rank 40 | rank 70 | rank 100 ]   ascending, newest last
 *
 * I1  The held stack lists exactly the locks that this thread holds, in the order of taking them.
 * I2  Ranks on it ascend strictly; whoever would break that stops the program before it can deadlock.
 * I3  While a thread waits on a condition, the lock of the wait is not on its stack.
 * I4  Whoever sleeps has made the word AWAITED before, and whoever was woken takes the lock as AWAITED: it cannot know
 *     whether others sleep. So no release misses a sleeper.
 * I5  While there are claims the word is not FREE, and somebody whose claim is counted waits: asleep, or on the way from
 *     one look at the word to the next. So what is OFFERED is taken: by the one who was woken, or by another one who
 *     slept and was still awake.
 * I6  A claim is counted from the change of the word that makes it to the one by which its thread takes the lock.
 * I7  Sleepers are woken in the order in which they fell asleep (those of higher priority before), and while there are
 *     claims each release wakes one, who takes the lock. So at most as many threads as sleep or were awake at the moment
 *     of a claim take the lock before its thread does, or again, where one that was awake takes what was offered to it.
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

#include "base/backoff.h"

/* ---- The held stack ---------------------------------------------------------------------------------------------- */

#ifndef NDEBUG

/* One per rank at most (I2). */
enum { HELD_MAX = 16 };

static _Thread_local struct {
  const ladei_lock *locks[HELD_MAX];
  int count;
} held;

__attribute__((noreturn)) static void violation(const char *what, int rank) {
  fprintf(stderr, "lade: lock order: %s (rank %d); held:", what, rank);
  for (int i = 0; i < held.count; i++) fprintf(stderr, " %d", (int)held.locks[i]->rank);
  fprintf(stderr, "\n");
  abort();
}

static int held_find(const ladei_lock *lock) {
  for (int i = held.count; i-- > 0;)
    if (held.locks[i] == lock) return i;
  return -1;
}

/* Before the mutex is taken: a violation must not end in the deadlock that it warns of. */
static void held_check(const ladei_lock *lock) {
  for (int i = 0; i < held.count; i++)
    if (held.locks[i]->rank >= lock->rank) violation("taking a lock of no higher rank", (int)lock->rank);
  if (held.count == HELD_MAX) violation("more locks held than there are ranks", (int)lock->rank);
}

static void held_push(const ladei_lock *lock) { held.locks[held.count++] = lock; }

static void held_remove(const ladei_lock *lock) {
  int place = held_find(lock);
  if (place < 0) violation("releasing a lock that is not held", (int)lock->rank);
  held.count--;
  for (int i = place; i < held.count; i++) held.locks[i] = held.locks[i + 1];
}

void ladei_lock_assert_held(const ladei_lock *lock) {
  if (held_find(lock) < 0) violation("a lock should be held here", (int)lock->rank);
}

void ladei_lock_assert_none_held(void) {
  if (held.count != 0) violation("a driver call or callback under a lock", 0);
}

#endif

/* ---- Futexes ----------------------------------------------------------------------------------------------------- */

typedef enum sleep_end {
  SLEEP_WOKEN, /* by a wake of the word */
  SLEEP_NOT,   /* the word was another one, or a signal came */
  SLEEP_LATE,  /* the deadline is over */
} sleep_end;

#ifdef LADEI_SCHEDULED

static sleep_end word_sleep(_Atomic(uint32_t) *word, uint32_t seen, const struct timespec *deadline) {
  bool sleeps = atomic_load_explicit(word, memory_order_relaxed) == seen; /* no other thread runs meanwhile */
  if (!ladei_switch_sleep(word, seen, deadline != NULL)) return SLEEP_LATE;
  return sleeps ? SLEEP_WOKEN : SLEEP_NOT;
}

static void word_wake(_Atomic(uint32_t) *word, int count) { ladei_switch_wake(word, count); }

#else

/* Sleeps while *word is `seen`, until `deadline` (NULL: none) by the monotonic clock. */
static sleep_end word_sleep(_Atomic(uint32_t) *word, uint32_t seen, const struct timespec *deadline) {
  long result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
  return result == 0 ? SLEEP_WOKEN : errno == ETIMEDOUT ? SLEEP_LATE : SLEEP_NOT;
}

/* Of equal priority, those first who have slept for longest. */
static void word_wake(_Atomic(uint32_t) *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count); }

#endif

/* ---- Mutexes ----------------------------------------------------------------------------------------------------- */

/* Some ten microseconds. Who sleeps is woken tens of microseconds later, in a virtual machine hundreds: that is a
 * thousand times what the holder needs, unless the holder was taken off its processor. */
enum { SPINS = 400 };

/* A claim costs all who use the lock: while it stands, each taker has to be woken before it goes on. So a thread claims
 * only after this. */
enum { LONGEST_NS = 1000 * 1000 };

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

/* One who waits. */
typedef struct waiter {
  unsigned woken; /* so often; in vain if it still waits. From the first time on the lock may be offered to it */
  bool claims;    /* counted in the word */
  uint64_t since; /* when it first slept, by waiter_clock */
} waiter;

#ifdef LADEI_SCHEDULED
static uint64_t waiter_clock(void) { return 0; } /* a test's threads know no time */
#else
static uint64_t waiter_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#endif

/* Woken in vain: is it time for a claim? */
static bool waiter_starves(const waiter *self) {
  return self->woken >= LADEI_LOCK_VAIN_MOST || (self->woken > 0 && waiter_clock() - self->since >= LONGEST_NS);
}

static uint32_t state_of(uint32_t word) { return word & LADEI_LOCK_STATE; }

/* The word that a waiter makes of the one that it found. */
static uint32_t waiter_word(const waiter *self, uint32_t word, bool takes) {
  uint32_t claims = word & ~(uint32_t)LADEI_LOCK_STATE;
  if (takes) return (claims - (self->claims ? LADEI_LOCK_CLAIM : 0)) | LADEI_LOCK_AWAITED; /* I4, I6 */
  if (state_of(word) == LADEI_LOCK_OFFERED) return word;
  return (claims + (!self->claims && waiter_starves(self) ? LADEI_LOCK_CLAIM : 0)) | LADEI_LOCK_AWAITED;
}

/* True: taken. Else it has slept. */
static bool waiter_turn(waiter *self, ladei_lock *lock) {
  uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);
  bool takes = word == LADEI_LOCK_FREE || (self->woken > 0 && state_of(word) == LADEI_LOCK_OFFERED);
  uint32_t next = waiter_word(self, word, takes);
  if (next != word &&
      !atomic_compare_exchange_strong_explicit(&lock->word, &word, next, memory_order_acquire, memory_order_relaxed))
    return false;
  if (takes) return true;
  self->claims = self->claims || next / LADEI_LOCK_CLAIM > word / LADEI_LOCK_CLAIM;
  if (self->since == 0) self->since = waiter_clock();
  if (word_sleep(&lock->word, next, NULL) == SLEEP_WOKEN) self->woken++;
  return false;
}

/* True: taken while it was free. */
static bool spin_take(ladei_lock *lock) {
  for (int i = 0; i < SPINS; i++) {
    ladei_spin_pause();
    uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);
    if (word == LADEI_LOCK_FREE && word_try(lock)) return true;
    if (word >= LADEI_LOCK_CLAIM) return false; /* it will not be free */
  }
  return false;
}

void ladei_lock_wait(ladei_lock *lock) {
  int code = errno;
  waiter self = {.woken = 0};
  if (!spin_take(lock)) {
    while (!waiter_turn(&self, lock)) {
    }
  }
  errno = code;
}

void ladei_lock_give_awaited(ladei_lock *lock) {
  uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed), next;
  do {
    uint32_t claims = word & ~(uint32_t)LADEI_LOCK_STATE;
    next = claims == 0 ? LADEI_LOCK_FREE : claims | LADEI_LOCK_OFFERED;
  } while (
      !atomic_compare_exchange_weak_explicit(&lock->word, &word, next, memory_order_release, memory_order_relaxed));
  int code = errno;
  word_wake(&lock->word, 1);
  errno = code;
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
  atomic_init(&condition->signals, 0);
  atomic_init(&condition->waiters, 0);
}

void ladei_condition_destroy(ladei_condition *condition) { (void)condition; }

/* Who changes what is waited for holds the lock: so that change comes before this look at the turns, or sees the waiter. */
static bool condition_sleep(ladei_condition *condition, ladei_lock *lock, const struct timespec *deadline) {
  int code = errno;
  atomic_fetch_add_explicit(&condition->waiters, 1, memory_order_relaxed);
  uint32_t seen = atomic_load_explicit(&condition->signals, memory_order_relaxed);
  ladei_lock_release(lock);
  bool in_time = word_sleep(&condition->signals, seen, deadline) != SLEEP_LATE;
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
  atomic_fetch_add_explicit(&condition->signals, 1, memory_order_relaxed);
  int code = errno;
  word_wake(&condition->signals, wake_count);
  errno = code;
}

void ladei_condition_signal(ladei_condition *condition) { condition_turn(condition, 1); }

void ladei_condition_broadcast(ladei_condition *condition) { condition_turn(condition, INT_MAX); }
