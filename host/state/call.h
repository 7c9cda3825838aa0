/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of the public calls on a pool. The fast path (Note [Fast path] in pinned.c) has none of it.
 *
 *   enter       the arguments that must be there; a forked child has no pools
 *   LADEI_HELD  driver calls (base/call.h)
 *   aside       work of a call for others on its way
 */
#ifndef LADE_HOST_STATE_CALL_H
#define LADE_HOST_STATE_CALL_H

#include "base/call.h"
#include "base/error.h"
#include "host/state/pool_state.h"

/* `call` is the public function, for messages, here and below. In a forked child the thread-local names no pool. */
static inline lade_status ladei_pinned_enter(const lade_pinned_pool *pool, const char *call) {
  if (pool == NULL) return ladei_error_null(call, "pool");
  bool known = ladei_pinned_thread_cache_fast(pool->fast.cache_id) != NULL;
  return known ? LADE_OK : ladei_runtime_check_process(pool->runtime);
}

/* With an argument of that name that must be there, too. */
static inline lade_status ladei_pinned_enter_with(const lade_pinned_pool *pool, bool given, const char *name,
                                                  const char *call) {
  return pool != NULL && !given ? ladei_error_null(call, name) : ladei_pinned_enter(pool, call);
}

/* Held, and in the middle of a call that does not need it: a failure is none of the call's, and leaves the thread's
 * error record alone. */
#define LADEI_PINNED_ASIDE(expression)                                                                                 \
  do {                                                                                                                 \
    lade_error saved;                                                                                                  \
    ladei_error_save(&saved);                                                                                          \
    int cancellation = ladei_cancellation_hold();                                                                      \
    if ((expression) != LADE_OK) ladei_error_restore(&saved);                                                          \
    ladei_cancellation_resume(cancellation);                                                                           \
  } while (0)

#endif /* LADE_HOST_STATE_CALL_H */
