/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranked mutexes on the kernel's futexes, and the check of their order.
 *
 *   state, the lower half:   HELD
 *                            LOOK      the thread that releases the lock looks at the upper half
 *                            CLAIMED   by a starving thread: only it may take the lock
 *   upper half of the word:  SLEEPERS  number of threads that sleep for a permit
 *                            PERMIT    one of them is to get up
 *                            TURN      ... although another waiter is awake
 *                            AWAKE     one waiter is awake on behalf of all
 *                            PARKED    the thread with the claim sleeps
 *
 *   waiter --spins--> takes it                       threads that need not wait change HELD alone; every other change
 *     |  ^                                           is one of the whole word
 *     |  `--permit, or its time is over--.
 *     `--gives up AWAKE, is counted--> sleeps        after a turn, useless wakes or its deadline it starves, and claims
 *
 *   held stack of a thread (builds without NDEBUG):   [ rank 40 | rank 70 | rank 100 ]   ascending, newest last
 *
 * I1  The held stack lists exactly the locks that this thread holds, in the order of taking them.
 * I2  Ranks on it ascend strictly, of arenas the addresses; a violation stops the program before it can deadlock.
 * I3  While a thread waits on a condition, the lock of the wait is not on its stack.
 * I4  Threads that went to sleep for a permit and have not got up: as many as SLEEPERS counts, and one more if PERMIT
 *     is set. So a sleeper that finds no PERMIT may get up by itself: it is one of those counted.
 * I5  AWAKE, while set, belongs to one thread, which will look at the word again, or to the thread that takes the
 *     PERMIT without TURN. The change by which its thread takes the lock or goes to sleep clears it.
 * I6  CLAIMED belongs to one thread; the change by which that thread takes the lock clears it. The thread is not
 *     counted in SLEEPERS: while it sleeps, PARKED is set.
 * I7  If there are SLEEPERS, a waiter is awake or will be woken (AWAKE, PERMIT, CLAIMED), or the holder of the lock has
 *     to LOOK. A lock with PARKED is held. So a release that need not look forgets no waiter; other releases
 *     leave a PERMIT, or clear PARKED, and wake. A thread sleeps only while others hold or claim the lock.
 * I8  While others use the lock, the longest sleeper (of those of highest priority) is woken each TURN_NS, and takes
 *     the lock at the next release, after those that claimed it earlier. A thread claims after it has slept for
 *     LATE_NS, plus LATE_EACH_NS for each sleeper. So newcomers cannot keep a thread off the lock, nor can a thread
 *     that is awake for the others and gets no processor.
 * Locks: this file is them. The stack is thread-local, and there is none in builds with NDEBUG.
 *
 * Why barging: a lock that goes to the longest sleeper lies idle while that thread wakes, a thousand times as long as a
 * holder needs; 16 threads on one device allocator paid 15 us for a pair. Why one awake: if 16 threads spin on a word,
 * it is in 16 caches, and each change goes to all of them. Why newcomers spin a little nevertheless: on an H200 16
 * threads with driver calls in between paid 6.9 to 10.6 us if they slept at once, 5.2 if they look for some 2 us first,
 * 5.8 and 9.9 with four and fifteen times that (benchmarks/micro/device_threads). Why a permit and a count, not a flag:
 * a woken thread must know that it was woken, since AWAKE goes with it; the kernel's wakes may be spurious.
 *
 * Why not pthread's: the device cache takes its lock twice for a pair of alloc and free; an adaptive pthread mutex was
 * 28 of the 116 ns of such a pair, this one is 24 with several threads and 4 with one (benchmarks/micro/device_cache).
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
#include "base/clock.h"

/* ---- The held stack ---------------------------------------------------------------------------------------------- */

#ifndef NDEBUG

/* One of each rank, and several arenas (I2). */
#define RANK_COUNT(name, rank) +1
enum { ARENAS_MOST = 16, HELD_MAX = ARENAS_MOST LADEI_LOCK_RANKS(RANK_COUNT) };
#undef RANK_COUNT

/* Strictly ascending; otherwise the stack might need more. */
#define RANK_BELOW(name, rank) (rank) && (rank) <
_Static_assert(0 < LADEI_LOCK_RANKS(RANK_BELOW) 1000, "ranks are listed outermost first, each once");
#undef RANK_BELOW

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
    if (held.locks[i]->rank > lock->rank ||
        (held.locks[i]->rank == lock->rank && (lock->rank != LADEI_RANK_ARENA || held.locks[i] >= lock)))
      violation("taking a lock of no higher rank", (int)lock->rank);
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
  SLEEP_NOT,   /* the word had changed, or a signal came */
  SLEEP_LATE,  /* the deadline has passed */
} sleep_end;

/* The kinds of sleepers on a word: a wake is for some of them. */
enum { SLEEPS_FOR_PERMIT = 1, SLEEPS_WITH_CLAIM = 2, SLEEPS_ANYHOW = 3 };

#ifdef LADEI_SCHEDULED

static sleep_end word_sleep(_Atomic(uint32_t) *word, uint32_t seen, const struct timespec *deadline, uint32_t who) {
  bool sleeps = atomic_load_explicit(word, memory_order_relaxed) == seen; /* no other thread runs meanwhile */
  if (!ladei_switch_sleep(word, seen, deadline != NULL, who)) return SLEEP_LATE;
  return sleeps ? SLEEP_WOKEN : SLEEP_NOT;
}

static void word_wake(_Atomic(uint32_t) *word, int count, uint32_t who) { ladei_switch_wake(word, count, who); }

#else

/* Sleeps while the word is `seen`, until `deadline` (NULL: none) by the monotonic clock. */
static sleep_end word_sleep(_Atomic(uint32_t) *word, uint32_t seen, const struct timespec *deadline, uint32_t who) {
  long result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline, NULL, who);
  return result == 0 ? SLEEP_WOKEN : errno == ETIMEDOUT ? SLEEP_LATE : SLEEP_NOT;
}

/* Of sleepers of equal priority, the longest ones first. */
static void word_wake(_Atomic(uint32_t) *word, int count, uint32_t who) {
  syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, count, NULL, NULL, who);
}

#endif

/* ---- Mutexes ----------------------------------------------------------------------------------------------------- */

#define HELD     ((uint64_t)LADEI_LOCK_HELD)
#define LOOK     ((uint64_t)LADEI_LOCK_LOOK)
#define CLAIMED  ((uint64_t)LADEI_LOCK_CLAIMED)
#define SLEEPER  ((uint64_t)1 << 32)
#define SLEEPERS (PERMIT - SLEEPER)
#define PERMIT   ((uint64_t)1 << 60)
#define TURN     ((uint64_t)1 << 61)
#define AWAKE    ((uint64_t)1 << 62)
#define PARKED   ((uint64_t)1 << 63)

/* Spin counts, in pause hints: some ten microseconds in all. A sleeper is woken tens of microseconds later, in a
 * virtual machine hundreds: a thousand times what the holder needs, unless the holder was preempted. The pause between
 * two looks at the word doubles, as each look takes the word's cache line from the threads that use it. While another
 * waiter is awake a newcomer spins for a fourth: threads that make driver calls between two holds are back within that.
 * An arena's lock is held for longer, one or two microseconds if its free memory is in other processors' caches, and
 * its holders are soon back, so all waiters there spin four times as long. 16 threads with random sizes paid 13 to 15
 * us for a replaced block before, and 7 to 8.5 now; on four processors 14, and 2.5 to 5.4 (H100 machine). */
#ifdef LADEI_SCHEDULED
enum { SPINS_MOST = 1, SPINS_BESIDE_MOST = 1, SPINS_ARENA_MOST = 1, SPINS_BETWEEN_MOST = 1 };
#else
enum { SPINS_MOST = 400, SPINS_BESIDE_MOST = 100, SPINS_ARENA_MOST = 1600, SPINS_BETWEEN_MOST = 16 };
#endif

/* A turn costs waking one thread, some ten microseconds, each TURN_NS. The other two are for what goes wrong, and well
 * above the time that turns take: sleepers times TURN_NS. */
enum { TURN_NS = 500 * 1000, LATE_NS = 10 * 1000 * 1000, LATE_EACH_NS = 1000 * 1000 };

enum { NS_PER_S = 1000000000 };

void ladei_lock_init(ladei_lock *lock, ladei_lock_rank rank) {
  atomic_init(&lock->word, 0);
  atomic_init(&lock->wakes, 0);
  lock->rank = rank;
  lock->passed = 0;
  lock->turn_ns = 0;
}

void ladei_lock_destroy(ladei_lock *lock) { (void)lock; }

bool ladei_lock_is_awaited(const ladei_lock *lock) {
  return (atomic_load_explicit(&lock->word, memory_order_relaxed) & (SLEEPERS | PERMIT | PARKED)) != 0;
}

static bool word_change(ladei_lock *lock, uint64_t word, uint64_t next) {
  return atomic_compare_exchange_strong_explicit(&lock->word, &word, next, memory_order_acquire, memory_order_relaxed);
}

static uint64_t word_now(ladei_lock *lock) { return atomic_load_explicit(&lock->word, memory_order_relaxed); }

/* A thread that waits. */
typedef struct waiter {
  int spins;      /* since it came, or last got up */
  int between;    /* pause between its last two looks */
  unsigned woken; /* number of wakes */
  bool awake;     /* it owns AWAKE */
  bool claims;    /* it owns CLAIMED */
  bool starves;   /* it is to claim the lock */
} waiter;

/* When to get up without a permit. */
static struct timespec waiter_deadline(uint64_t word) {
  uint64_t ns = ladei_clock_ns(CLOCK_MONOTONIC) + LATE_NS + (word & SLEEPERS) / SLEEPER * LATE_EACH_NS;
  return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

/* Takes the permit. */
static bool permit_take(waiter *self, ladei_lock *lock, uint64_t word) {
  bool turn = (word & TURN) != 0;
  bool awake = !turn || (word & AWAKE) == 0; /* no other thread owns AWAKE */
  if (!word_change(lock, word, (word & ~(PERMIT | TURN)) | AWAKE)) return false;
  self->awake = awake;
  self->starves = turn || self->woken++ >= LADEI_LOCK_VAIN_MOST;
  return true;
}

/* True: it is up, by a permit or by its deadline. */
static bool waiter_gets_up(waiter *self, ladei_lock *lock, uint64_t word, bool late) {
  if ((word & PERMIT) != 0) return permit_take(self, lock, word);
  if (!late || !word_change(lock, word, word - SLEEPER)) return false; /* I4 */
  self->starves = true;
  return true;
}

/* Sleeps until a wake after `seen`. The caller reads that count before the word, so the wake for a later change of the
 * word is not yet counted in it. */
static sleep_end lock_sleep(ladei_lock *lock, uint32_t seen, const struct timespec *deadline, uint32_t who) {
  ladei_switch_point("going to sleep", 0);
  return word_sleep(&lock->wakes, seen, deadline, who);
}

/* Counted as a sleeper until it is up. */
static void waiter_sleep(waiter *self, ladei_lock *lock) {
  const struct timespec deadline = waiter_deadline(word_now(lock));
  for (bool late = false;;) {
    uint32_t seen = atomic_load_explicit(&lock->wakes, memory_order_acquire);
    uint64_t word = word_now(lock);
    if (waiter_gets_up(self, lock, word, late)) return;
    if ((word & PERMIT) == 0 && !late) late = lock_sleep(lock, seen, &deadline, SLEEPS_FOR_PERMIT) == SLEEP_LATE;
  }
}

/* Sleeps with the claim, until a release clears PARKED. */
static void claimant_sleep(ladei_lock *lock) {
  for (;;) {
    uint32_t seen = atomic_load_explicit(&lock->wakes, memory_order_acquire);
    if ((word_now(lock) & PARKED) == 0) return;
    (void)lock_sleep(lock, seen, NULL, SLEEPS_WITH_CLAIM);
  }
}

/* The word, with LOOK if only the holder can wake the sleepers (I7). */
static uint64_t looked_after(uint64_t word) {
  return (word & SLEEPERS) != 0 && (word & (AWAKE | PERMIT)) == 0 ? word | LOOK : word;
}

/* Sleeps: others hold or claim the lock (I7). Does nothing if the word has changed. */
static void waiter_rest(waiter *self, ladei_lock *lock, uint64_t word) {
  uint64_t awake = self->awake ? AWAKE : 0;
  if (!word_change(lock, word, looked_after((word & ~awake) + (self->claims ? PARKED : SLEEPER)))) return;
  self->awake = false;
  if (self->claims)
    claimant_sleep(lock);
  else
    waiter_sleep(self, lock);
  self->spins = self->between = 0;
}

static void waiter_spin(waiter *self) {
  ladei_switch_spin();
  self->between = self->between == 0 ? 1 : self->between < SPINS_BETWEEN_MOST ? 2 * self->between : SPINS_BETWEEN_MOST;
  for (int i = 0; i < self->between; i++) ladei_spin_pause();
  self->spins += self->between;
}

/* Whether it may spin on; takes AWAKE first if others sleep. */
static bool waiter_spins(waiter *self, ladei_lock *lock, uint64_t word) {
  bool arena = lock->rank == LADEI_RANK_ARENA;
  if (self->spins >= (arena ? SPINS_ARENA_MOST : SPINS_MOST)) return false;
  if (self->awake || self->starves || (word & (SLEEPERS | AWAKE)) == 0) return true;
  if ((word & AWAKE) != 0) return arena || self->spins < SPINS_BESIDE_MOST;
  self->awake = word_change(lock, word, word | AWAKE);
  return true;
}

/* True: taken. */
static bool waiter_turn(waiter *self, ladei_lock *lock) {
  uint64_t word = word_now(lock);
  uint64_t own = (self->awake ? AWAKE : 0) | (self->claims ? CLAIMED : 0);
  if ((word & HELD) == 0 && (self->claims || (word & CLAIMED) == 0))
    return word_change(lock, word, looked_after((word & ~own) | HELD)); /* I5, I6 */
  if (self->starves && (word & CLAIMED) == 0)
    self->claims = word_change(lock, word, word | CLAIMED);
  else if (waiter_spins(self, lock, word))
    waiter_spin(self);
  else
    waiter_rest(self, lock, word);
  return false;
}

void ladei_lock_wait(ladei_lock *lock) {
  int code = errno;
  waiter self = {.spins = 0};
  while (!waiter_turn(&self, lock)) {
  }
  errno = code;
}

/* Whether to wake a sleeper although a waiter is awake. Reads the clock every eighth time; a test's threads have no
 * clock. */
static bool turn_is_due(ladei_lock *lock) {
#ifdef LADEI_SCHEDULED
  return ++lock->passed % 2 == 1;
#endif
  if (++lock->passed % 8 != 0) return false;
  uint64_t now = ladei_clock_ns(CLOCK_MONOTONIC);
  if (now - lock->turn_ns < TURN_NS) return false;
  lock->turn_ns = now;
  return true;
}

/* The word with a permit, or without PARKED, if the release must wake a thread, and that thread's kind. */
static uint64_t word_with_wake(uint64_t word, bool turn, uint32_t *who) {
  bool awake = (word & AWAKE) != 0;
  *who = SLEEPS_WITH_CLAIM;
  if ((word & PARKED) != 0) return word - PARKED;
  *who = SLEEPS_FOR_PERMIT;
  if ((word & SLEEPERS) != 0 && (word & (PERMIT | CLAIMED)) == 0 && (turn || !awake))
    return word - SLEEPER + PERMIT + (awake ? TURN : AWAKE);
  *who = 0;
  return word;
}

/* After the change that frees the lock only its address is used: its next holder may be the last. */
void ladei_lock_give_awaited(ladei_lock *lock) {
  uint64_t word = word_now(lock);
  bool turn = (word & AWAKE) != 0 && (word & SLEEPERS) != 0 && turn_is_due(lock);
  uint32_t woken = 0;
  for (;; word = word_now(lock)) {
    uint32_t who;
    uint64_t next = word_with_wake(word, turn, &who);
    if (who == 0 && atomic_compare_exchange_strong_explicit(&lock->word, &word, word & ~(HELD | LOOK),
                                                            memory_order_release, memory_order_relaxed))
      break;
    if (who == 0 || !word_change(lock, word, next)) continue;
    atomic_fetch_add_explicit(&lock->wakes, 1, memory_order_release);
    woken |= who;
    ladei_switch_point("woken soon", 0);
  }
  int code = errno;
  ladei_switch_point("wake", 0);
  for (uint32_t who = SLEEPS_FOR_PERMIT; who <= SLEEPS_WITH_CLAIM; who <<= 1)
    if ((woken & who) != 0) word_wake(&lock->wakes, 1, who);
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

/* Conditions change with the lock held: so a change comes before this look at the signals, or sees the waiter. */
static bool condition_sleep(ladei_condition *condition, ladei_lock *lock, const struct timespec *deadline) {
  int code = errno;
  atomic_fetch_add_explicit(&condition->waiters, 1, memory_order_relaxed);
  uint32_t seen = atomic_load_explicit(&condition->signals, memory_order_relaxed);
  ladei_lock_release(lock);
  bool in_time = word_sleep(&condition->signals, seen, deadline, SLEEPS_ANYHOW) != SLEEP_LATE;
  ladei_lock_acquire(lock);
  atomic_fetch_sub_explicit(&condition->waiters, 1, memory_order_relaxed);
  errno = code;
  return in_time;
}

void ladei_condition_wait(ladei_condition *condition, ladei_lock *lock) {
  (void)condition_sleep(condition, lock, NULL);
}

/* The moment `timeout_ns` from now. */
static struct timespec deadline_after(uint64_t timeout_ns) {
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
  word_wake(&condition->signals, wake_count, SLEEPS_ANYHOW);
  errno = code;
}

void ladei_condition_signal(ladei_condition *condition) { condition_turn(condition, 1); }

void ladei_condition_broadcast(ladei_condition *condition) { condition_turn(condition, INT_MAX); }
