/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock of a runtime, and its records of threads.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_LOCK_H
#define LADE_RUNTIME_SOFT_STATE_LOCK_H

#include "runtime/soft/state/model.h"

void ladei_soft_lock(soft_runtime *rt);

/* Also wakes engines and unmaps garbage that were noted under the lock. */
void ladei_soft_unlock(soft_runtime *rt);
/* The same at the end of a call; returns its status. */
static inline lade_status ladei_soft_unlock_with(soft_runtime *rt, lade_status status) {
  ladei_soft_unlock(rt);
  return status;
}

/* State of the calling thread; NULL if it has none and `create` is false, or without memory. Under the lock. */
soft_thread *ladei_soft_thread(soft_runtime *rt, bool create);

#endif /* LADE_RUNTIME_SOFT_STATE_LOCK_H */
