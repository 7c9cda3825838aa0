/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes with ranks, and condition variables.
 *
 * A thread takes locks in ascending rank only: while it holds one, it may take another of a higher rank. And it holds
 * none when it calls the driver or a callback (docs/design.md "Rules that hold everywhere"). Builds without NDEBUG keep
 * the held locks of each thread and stop the program, naming both locks, when a rule is broken. Builds with NDEBUG
 * check nothing and cost nothing beyond the mutex.
 *
 *   ladei_lock lock;
 *   ladei_lock_init(&lock, LADEI_RANK_RETIRE);
 *   ladei_lock_acquire(&lock);
 *   ...
 *   ladei_lock_release(&lock);
 *   ladei_lock_assert_none_held();      // before every call through the ops table
 */
#ifndef LADE_BASE_LOCK_H
#define LADE_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/single_thread.h"
#include "base/switch.h"

/*
 * All ranks of the library, outermost first. Two locks of one rank are never held together by a thread, but those
 * of a NUMA node's arenas are, in the order of their addresses. The locks of
 * runtime/soft and runtime/cuda are the runtime's own: below runtime/ops.h no lock of this list is held.
 */
#define LADEI_LOCK_RANKS(RANK)                                                                                         \
  RANK(LADEI_RANK_LOADER, 5)    /* loaders: slots of one loader */                                                     \
  RANK(LADEI_RANK_MEMBERS, 15)  /* host/parts: pipelines of one pinned pool, while they are woken */                   \
  RANK(LADEI_RANK_PIPELINE, 20) /* pipeline/: state machine of one pipeline */                                         \
  RANK(LADEI_RANK_TREE, 22)     /* graph/: one tree */                                                                 \
  RANK(LADEI_RANK_THREADS, 25)  /* host/: list of the threads of one pinned pool, while it is read or changed */       \
  RANK(LADEI_RANK_POOL, 30)     /* host/: settings, list of nodes, growth of one pinned pool */                        \
  RANK(LADEI_RANK_ARENA, 40)    /* host/: segments and free blocks of one arena of a NUMA node */                      \
  RANK(LADEI_RANK_MAGAZINE, 50) /* host/: the magazines of one thread */                                               \
  RANK(LADEI_RANK_DEVICE, 60)   /* device/: blocks and segments of one allocator */                                    \
  RANK(LADEI_RANK_RETIRE, 70)   /* runtime/retire: queues of one retire object */                                      \
  RANK(LADEI_RANK_EVENTS, 80)   /* runtime/event_pool */                                                               \
  RANK(LADEI_RANK_TOPOLOGY, 85) /* host/: the topology, loaded once */                                                 \
  RANK(LADEI_RANK_PAGEMAP, 100) /* base/pagemap: writers */                                                            \
  RANK(LADEI_RANK_HISTORY, 102) /* host/parts: events of one shard of a history */                                     \
  RANK(LADEI_RANK_HISTORY_CHUNKS, 104) /* host/parts: full chunks of all shards */                                     \
  RANK(LADEI_RANK_LEDGER, 106)         /* host/budget: one pool's part in the ledger, also while its file is asked */  \
  RANK(LADEI_RANK_LEAF, 110)           /* locks under which nothing else is ever taken */

typedef enum ladei_lock_rank {
#define LADEI_LOCK_RANK(name, rank) name = rank,
  LADEI_LOCK_RANKS(LADEI_LOCK_RANK)
#undef LADEI_LOCK_RANK
} ladei_lock_rank;

/*
 * A newcomer may take a free lock before the threads that wait for it: that makes a busy lock quick. While a waiter is
 * awake a release wakes no other, except one each half of a millisecond. That thread, or one that was woken in vain too
 * often, claims the lock, and is the next to have it.
 */
enum {
  LADEI_LOCK_FREE,
  LADEI_LOCK_HELD,
  LADEI_LOCK_LOOK = 2,    /* beside HELD: a release has more to do */
  LADEI_LOCK_CLAIMED = 4, /* only the thread with the claim takes the lock, which clears the bit */
};
enum { LADEI_LOCK_VAIN_MOST = 2 }; /* a thread that is woken once more in vain claims */

typedef struct ladei_lock {
  union {
    _Atomic(uint64_t) word;  /* the whole state; lock.c draws it. 0: free, without waiters */
    _Atomic(uint32_t) state; /* its lower half, with which threads that need not wait take and give the lock */
  };
  _Atomic(uint32_t) wakes; /* number of wakes: sleepers sleep until it changes */
  ladei_lock_rank rank;
  uint32_t passed;  /* releases that looked for sleepers. Guard: the lock */
  uint64_t turn_ns; /* when a sleeper was last woken although a waiter was awake. Guard: the lock */
} ladei_lock;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the state is the lower half of the word");

/* Cannot fail, and owns no memory but the struct. */
void ladei_lock_init(ladei_lock *lock, ladei_lock_rank rank);
/* No thread holds it. */
void ladei_lock_destroy(ladei_lock *lock);
/* Whether a thread holds it at this moment: a hint. */
static inline bool ladei_lock_is_busy(const ladei_lock *lock) {
  return atomic_load_explicit(&lock->state, memory_order_relaxed) != LADEI_LOCK_FREE;
}

/* The word alone, without the check of ranks. For the functions below. */
void ladei_lock_wait(ladei_lock *lock);         /* takes a lock that was not free a moment ago */
void ladei_lock_give_awaited(ladei_lock *lock); /* gives a lock that has waiters */

/* A process with one thread excludes no other: plain words replace the locked instructions. The word is right either
 * way, so a second thread may come at any moment, also while the lock is held. */
static inline void ladei_lock_word_take(ladei_lock *lock) {
  uint32_t state = LADEI_LOCK_FREE;
  ladei_switch_point("lock", (int)lock->rank);
  if (ladei_is_single_thread()) {
    state = atomic_load_explicit(&lock->state, memory_order_relaxed);
    if (state == LADEI_LOCK_FREE) atomic_store_explicit(&lock->state, LADEI_LOCK_HELD, memory_order_relaxed);
  } else {
    (void)atomic_compare_exchange_strong_explicit(&lock->state, &state, LADEI_LOCK_HELD, memory_order_acquire,
                                                  memory_order_relaxed);
  }
  if (state != LADEI_LOCK_FREE) ladei_lock_wait(lock);
}

static inline void ladei_lock_word_give(ladei_lock *lock) {
  uint32_t state = LADEI_LOCK_HELD;
  if (ladei_is_single_thread())
    atomic_store_explicit(&lock->state, LADEI_LOCK_FREE, memory_order_relaxed);
  else if (!atomic_compare_exchange_strong_explicit(&lock->state, &state, LADEI_LOCK_FREE, memory_order_release,
                                                    memory_order_relaxed))
    ladei_lock_give_awaited(lock);
  ladei_switch_point("unlock", (int)lock->rank);
}

/* For tests: a thread sleeps for the lock, or is about to. */
bool ladei_lock_is_awaited(const ladei_lock *lock);

/* Spins for a moment before it sleeps: the library's critical sections are tens of nanoseconds. */
#ifdef NDEBUG
static inline void ladei_lock_acquire(ladei_lock *lock) { ladei_lock_word_take(lock); }
static inline void ladei_lock_release(ladei_lock *lock) { ladei_lock_word_give(lock); }
#else
void ladei_lock_acquire(ladei_lock *lock);
void ladei_lock_release(ladei_lock *lock);
#endif

/* Asserts that the calling thread holds the lock; that it holds no lade lock. Nothing in builds with NDEBUG. */
#ifdef NDEBUG
static inline void ladei_lock_assert_held(const ladei_lock *lock) { (void)lock; }
static inline void ladei_lock_assert_none_held(void) {}
#else
void ladei_lock_assert_held(const ladei_lock *lock);
void ladei_lock_assert_none_held(void);
#endif

/* Waits by the machine's monotonic clock, not by the settable one. */
typedef struct ladei_condition {
  _Atomic(uint32_t) signals; /* number of signals: sleepers sleep until it changes */
  _Atomic(uint32_t) waiters; /* a signal without waiters costs no system call */
} ladei_condition;

/* Cannot fail, as ladei_lock_init. */
void ladei_condition_init(ladei_condition *condition);
/* No thread waits on it. */
void ladei_condition_destroy(ladei_condition *condition);

/* Releases the lock while waiting. Returns also without a signal: wait in a loop around the condition itself. */
void ladei_condition_wait(ladei_condition *condition, ladei_lock *lock);
/* The same for at most `timeout_ns`; false when that time is over. */
bool ladei_condition_wait_for(ladei_condition *condition, ladei_lock *lock, uint64_t timeout_ns);
/* The condition itself was changed with the lock held; the signal may follow the release. */
void ladei_condition_signal(ladei_condition *condition);
void ladei_condition_broadcast(ladei_condition *condition);

#endif /* LADE_BASE_LOCK_H */
