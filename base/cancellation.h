/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that delay a thread's cancellation (pthread_cancel).
 *
 * Drivers, files, sleeps and joins are cancellation points. A thread that ended at one inside a library call would
 * leave that call half done: a lock or a claim held, memory counted that has no owner. So calls that reach such points
 * hold cancellation off; it takes effect at the first cancellation point after the call. Asynchronous cancellation is
 * only for code that makes no calls.
 */
#ifndef LADE_BASE_CANCELLATION_H
#define LADE_BASE_CANCELLATION_H

#include <pthread.h>

#include "lade/status.h"

static inline int ladei_cancellation_hold(void) {
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}

/* `before`: result of hold. */
static inline void ladei_cancellation_resume(int before) { (void)pthread_setcancelstate(before, NULL); }

/* The value of a call during which cancellation is held off. */
#define LADEI_UNCANCELLED(call)                                                                                        \
  __extension__({                                                                                                      \
    int ladei_cancellation = ladei_cancellation_hold();                                                                \
    lade_status ladei_call_status = (call);                                                                            \
    ladei_cancellation_resume(ladei_cancellation);                                                                     \
    ladei_call_status;                                                                                                 \
  })

#endif /* LADE_BASE_CANCELLATION_H */
