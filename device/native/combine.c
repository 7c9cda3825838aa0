/* SPDX-License-Identifier: Apache-2.0 */
/* Combining: model and invariants in combine.h. */
#include "device/native/combine.h"

#include <assert.h>

#include "base/backoff.h"

enum { BATCH = 64 }; /* some microseconds */

#ifdef LADEI_SCHEDULED
enum { SPINS = 1, LOOK_EVERY = 1 }; /* a test's threads take turns: more would only be more schedules */
#else
/* As many as a thread spins for a lock (base/lock.c); between two looks at the lock's word, which all share. */
enum { SPINS = 400, LOOK_EVERY = 16 };
#endif

static void call_publish(lade_device_allocator *allocator, ladei_device_call *call) {
  ladei_device_call *newest = atomic_load_explicit(&allocator->published, memory_order_relaxed);
  do {
    call->next = newest;
    ladei_switch_point("publish", 0);
  } while (!atomic_compare_exchange_weak_explicit(&allocator->published, &newest, call, memory_order_release,
                                                  memory_order_relaxed));
}

/* Moves what was published to `taken`, which is empty: oldest first. */
static void calls_take(lade_device_allocator *allocator) {
  assert(allocator->taken == NULL);
  if (atomic_load_explicit(&allocator->published, memory_order_relaxed) == NULL) return;
  ladei_switch_point("take", 0);
  ladei_device_call *call = atomic_exchange_explicit(&allocator->published, NULL, memory_order_acquire);
  while (call != NULL) {
    ladei_device_call *newer = call;
    call = call->next;
    newer->next = allocator->taken;
    allocator->taken = newer;
  }
}

void ladei_device_combine(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  for (int left = BATCH; left > 0; left--) {
    if (allocator->taken == NULL) calls_take(allocator);
    ladei_device_call *call = allocator->taken;
    if (call == NULL) return;
    allocator->taken = call->next;
    if (call->next != NULL) __builtin_prefetch(call->next, 1);
    call->served = ladei_device_call_execute(allocator, call);
    allocator->combined += call->served;
    ladei_switch_point("done", 0);
    atomic_store_explicit(&call->done, true, memory_order_release); /* its thread may go on: it is gone (W1) */
  }
}

static bool call_done(const ladei_device_call *call) { return atomic_load_explicit(&call->done, memory_order_acquire); }

/* Spins. True: the call is done; else the lock is taken. */
static bool call_spin(lade_device_allocator *allocator, const ladei_device_call *call) {
  for (int i = 1; i <= SPINS; i++) {
    if (call_done(call)) return true;
    if (i % LOOK_EVERY == 0 && ladei_lock_is_free(&allocator->lock) && ladei_lock_try_acquire(&allocator->lock))
      return false;
    ladei_spin_pause();
    ladei_switch_spin();
  }
  ladei_lock_acquire(&allocator->lock);
  return false;
}

bool ladei_device_call_combine(lade_device_allocator *allocator, ladei_device_call *call) {
  call->thread = pthread_self();
  call->served = false;
  atomic_init(&call->done, false);
  call_publish(allocator, call);
  while (!call_spin(allocator, call)) {
    ladei_device_combine(allocator);
    ladei_lock_release(&allocator->lock);
  }
  return call->served;
}
