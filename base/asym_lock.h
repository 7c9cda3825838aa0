/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exclusion between one thread that enters often (the owner) and others that enter rarely and pay for it (visitors).
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
 * The kernel may lack this call, or refuse it: from the start, or to a process or thread that enters a sandbox later.
 * New locks are heavy from then on. An older lock is not, and its owner may be anywhere, so the visitor must leave its
 * data alone. Instead it calls the owner (wanted = CALLED). The owner can no longer enter; its next call sees why, does
 * the visitor's work for it, and makes the lock heavy (ladei_asym_lock_answer).
 *
 * Guarantees to a visitor
 *   G1  After ladei_asym_lock_wait() returned true the owner is outside until ladei_asym_lock_open(). The visitor sees
 *       all that the owner did inside; the owner, when it enters again, sees all that the visitor did.
 *   G2  After false nothing is known about the owner. The visitor touches nothing that the lock guards, and does not
 *       open the lock. The owner answers in its next call; a later visitor may come first, and begins a new wait.
 *   G3  Without the lock, and whatever the kernel does, the guarded data may be used by a thread that knows by other
 *       means that the owner makes no call meanwhile (at the end of a pool, for example), and by the owner itself
 *       outside its lock while it holds the visitors' lock.
 */
#ifndef LADE_BASE_ASYM_LOCK_H
#define LADE_BASE_ASYM_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/switch.h"

/* Values of `wanted`. */
enum { LADEI_ASYM_LOCK_OPEN, LADEI_ASYM_LOCK_CLOSED, LADEI_ASYM_LOCK_CALLED };

typedef struct ladei_asym_lock {
  _Atomic(uint32_t) active; /* the owner is inside */
  _Atomic(uint32_t) wanted; /* a visitor wants to enter, or wants the owner to act. Guard: the visitors' lock */
  _Atomic(bool) heavy;      /* the owner needs no help from the kernel; never reset. Written by the owner */
} ladei_asym_lock;

void ladei_asym_lock_init(ladei_asym_lock *lock);

/* Owner. False: a visitor is inside, or has called; the owner goes on without the lock. */
static inline bool ladei_asym_lock_enter(ladei_asym_lock *lock) {
  if (atomic_load_explicit(&lock->heavy, memory_order_relaxed)) {
    atomic_store_explicit(&lock->active, 1, memory_order_seq_cst);
  } else {
    atomic_store_explicit(&lock->active, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* orders the compiler; the visitor's barrier orders the processor */
  }
  ladei_switch_point("asym_lock", 0);
  /* A seq_cst load costs no more than acquire, and pairs with the store above where that is seq_cst. */
  if (atomic_load_explicit(&lock->wanted, memory_order_seq_cst) == LADEI_ASYM_LOCK_OPEN) return true;
  atomic_store_explicit(&lock->active, 0, memory_order_release);
  return false;
}

static inline void ladei_asym_lock_leave(ladei_asym_lock *lock) {
  ladei_switch_point("leave lock", 0);
  atomic_store_explicit(&lock->active, 0, memory_order_release);
}

/* Owner, after enter returned false: whether a visitor has called it, so that it must answer. */
static inline bool ladei_asym_lock_is_called(const ladei_asym_lock *lock) {
  return atomic_load_explicit(&lock->wanted, memory_order_relaxed) == LADEI_ASYM_LOCK_CALLED;
}

/* Owner, outside, with the visitors' lock held, after it did the visitor's work: opens the lock and makes it heavy. */
void ladei_asym_lock_answer(ladei_asym_lock *lock);

/* Visitor: close any number of locks, run one barrier for all, wait at each, open those where wait returned true. */
/* Returns whether this lock needs the barrier; a heavy one does not. */
bool ladei_asym_lock_close(ladei_asym_lock *lock);
/* A system call. False: the kernel refuses. */
bool ladei_asym_lock_barrier(void);
/* `fenced`: result of the barrier. False: the owner was called instead (G2). */
bool ladei_asym_lock_wait(ladei_asym_lock *lock, bool fenced);
void ladei_asym_lock_open(ladei_asym_lock *lock);

#endif /* LADE_BASE_ASYM_LOCK_H */
