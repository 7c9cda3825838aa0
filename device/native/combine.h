/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combining: many threads on one allocator. A lock that goes from thread to thread takes the heap's lines of cache with it,
 * twice for a pair. So a thread that finds the lock taken publishes what it wants, and who holds the lock does it for all.
 *
 *   lock free    take it, decide, look at `published`, release                            as without combining
 *   lock taken   publish the call; wait                                                   [ call ] -> [ call ] -> ...
 *   holder       behind its own call: take the list, decide for each in order of coming, tell it, release
 *   waiter       told: it returns.  Not for some time, or the lock is free: it takes the lock, and is the holder
 *
 * What is done for others is a decision of the heap that finds what it needs there: an allocation that hits, a free of a
 * block that no other stream used. No driver call, no callback, no error text, nothing of the executing thread; listeners
 * are told whose call it is (`acting`). All else is a miss: nothing has changed, and the call's own thread does it by
 * itself, with the lock, as ever. So decisions are those for the order in which the calls are executed.
 *
 * W1  A published call is in `published` (newest first) or in `taken` (oldest first) until it is executed, by a thread that
 *     holds the lock. It lies on its thread's stack, which waits for `done`; nobody touches it behind that.
 * W2  A holder executes at most BATCH calls of others, so its own waits for no more than those.
 * W3  A free is executed before it returns, as an allocation: what a thread did before a call is in order before it.
 *
 * Who wakes the waiter: nobody needs to. It spins on its own line, then sleeps for the lock itself, whose release wakes it;
 * holders that combine nothing release as ever. So no wake can be missed, and nobody is lost where a holder is taken off its
 * processor, or ends its batch: each waiter becomes the holder in its turn, as the lock's claims are fair (base/lock.h).
 * Cancellation: none takes place while a thread waits here; there is no cancellation point. A thread that is ended in
 * another way breaks the allocator, as one that holds the lock does.
 * Fork: the child's calls are refused before they come here; the parent's threads go on.
 * Ranks: a call is published only behind a try of the lock, which checks the caller's locks as taking it does.
 *
 * Locks: the allocator's lock guards `taken` and `combined`; `published` is atomic.
 */
#ifndef LADE_DEVICE_NATIVE_COMBINE_H
#define LADE_DEVICE_NATIVE_COMBINE_H

#include <pthread.h>

#include "device/state/allocator.h"

/* A call that was published. On a line of cache of its own. */
typedef struct ladei_device_call {
  _Alignas(64) struct ladei_device_call *next;
  pthread_t thread;
  void *pointer;       /* of a free; of an allocation the result */
  size_t requested;    /* of an allocation; 0: a free */
  uint64_t stream_key; /* of an allocation, and below */
  uint64_t stream_id;
  bool served; /* else a miss */
  _Atomic(bool) done;
} ladei_device_call;

/* The lock is taken: publishes the call and waits until it is executed. Whether it was served. No lock held. */
bool ladei_device_call_combine(lade_device_allocator *allocator, ladei_device_call *call);

/* Executes calls of others. Lock held. */
void ladei_device_combine(lade_device_allocator *allocator);

/* Releases the lock behind a call that others may have waited for. */
static inline void ladei_device_combine_release(lade_device_allocator *allocator) {
  ladei_switch_point("held", 0); /* while others find the lock taken */
  if (__builtin_expect(atomic_load_explicit(&allocator->published, memory_order_relaxed) != NULL, false))
    ladei_device_combine(allocator);
  ladei_lock_release(&allocator->lock);
}

/* allocator.c: a decision for another thread. False: a miss, and nothing has changed. Lock held. */
bool ladei_device_call_execute(lade_device_allocator *allocator, ladei_device_call *call);

#endif /* LADE_DEVICE_NATIVE_COMBINE_H */
