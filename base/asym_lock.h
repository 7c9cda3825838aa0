/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exclusion between one thread that passes often and others that come rarely, paid for by the others.
 *
 *   owner                                  visitor (visitors exclude each other by a lock of theirs)
 *     enter:  active = 1                     wanted = CLOSED
 *             if wanted: active = 0, no      heavy barrier: every owner sees wanted, or its active = 1 is seen
 *     ... use what is guarded ...            wait until active = 0
 *     leave:  active = 0                     ... use what is guarded ...
 *                                            wanted = OPEN
 *
 * The owner's store to `active` and load of `wanted` must not be swapped by the processor. Instead of a fence in every
 * pass, the visitor makes the kernel run one on all processors that run the process (membarrier, Linux 4.14). A lock
 * whose owner pays, by a full barrier in each pass, is *heavy* and needs nothing of the kernel.
 *
 * The kernel may have no such call, or refuse it: from the start, or to a process or thread that enters a sandbox later.
 * From then on new locks are heavy. A lock from before is not, and its owner may be anywhere: the visitor has to leave it
 * alone. It calls the owner instead (wanted = CALLED). The owner cannot enter any more, sees in its next call why, does
 * for the visitor what that wanted, and makes its lock heavy (ladei_asym_lock_answer).
 *
 * What a visitor may rely on
 *   G1  After ladei_asym_lock_wait() said true the owner is not inside, and does not get in before ladei_asym_lock_open(). All that
 *       the owner did inside is seen by the visitor, and all that the visitor does by the owner when it gets in again.
 *   G2  After false nothing is known of the owner, and the visitor touches nothing that the lock guards. It does not open
 *       the lock. The owner answers in its next call; a later visitor may come first, whose wait begins anew.
 *   G3  Without the lock, and whatever the kernel does: what is guarded belongs to whoever has made sure by other means
 *       that the owner makes no call meanwhile, as at the end of a pool; and to the owner itself outside of its lock
 *       while it holds the visitors' lock.
 */
#ifndef LADE_BASE_ASYM_LOCK_H
#define LADE_BASE_ASYM_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/switch.h"

/* Of `wanted`. */
enum { LADEI_ASYM_LOCK_OPEN, LADEI_ASYM_LOCK_CLOSED, LADEI_ASYM_LOCK_CALLED };

typedef struct ladei_asym_lock {
  _Atomic(uint32_t) active; /* the owner is inside */
  _Atomic(uint32_t) wanted; /* a visitor wants in, or wants the owner to do something. Guard: the visitors' lock */
  _Atomic(bool) heavy;      /* the owner needs no help from the kernel; never false again. Written by the owner */
} ladei_asym_lock;

void ladei_asym_lock_init(ladei_asym_lock *lock);

/* Owner. False: a visitor is there, or has called; do without. */
static inline bool ladei_asym_lock_enter(ladei_asym_lock *lock) {
  if (atomic_load_explicit(&lock->heavy, memory_order_relaxed)) {
    atomic_store_explicit(&lock->active, 1, memory_order_seq_cst);
  } else {
    atomic_store_explicit(&lock->active, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* holds the compiler back; the visitor holds the processor back */
  }
  ladei_switch_point("asym_lock", 0);
  /* seq_cst costs the load nothing more than acquire, and pairs with the store above where that is seq_cst. */
  if (atomic_load_explicit(&lock->wanted, memory_order_seq_cst) == LADEI_ASYM_LOCK_OPEN) return true;
  atomic_store_explicit(&lock->active, 0, memory_order_release);
  return false;
}

static inline void ladei_asym_lock_leave(ladei_asym_lock *lock) {
  ladei_switch_point("leave lock", 0);
  atomic_store_explicit(&lock->active, 0, memory_order_release);
}

/* Owner, after enter said false: whether it is called, and has to answer. */
static inline bool ladei_asym_lock_is_called(const ladei_asym_lock *lock) {
  return atomic_load_explicit(&lock->wanted, memory_order_relaxed) == LADEI_ASYM_LOCK_CALLED;
}

/* Owner, outside, with the visitors' lock held, after it did what visitors do: the lock is open, and heavy. */
void ladei_asym_lock_answer(ladei_asym_lock *lock);

/* Visitor: closes any number of locks, one barrier for all; then waits at each, and opens those where it got in. */
/* Whether this one needs the barrier: not where it is heavy. */
bool ladei_asym_lock_close(ladei_asym_lock *lock);
/* A system call. False: the kernel refuses. */
bool ladei_asym_lock_barrier(void);
/* `fenced`: what the barrier said. False: the owner was called instead (G2). */
bool ladei_asym_lock_wait(ladei_asym_lock *lock, bool fenced);
void ladei_asym_lock_open(ladei_asym_lock *lock);

#endif /* LADE_BASE_ASYM_LOCK_H */
