/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that a thread's cancellation (pthread_cancel) waits for.
 *
 * Drivers, files, sleeps and joins are cancellation points. A thread that ended at one inside a call of the library would
 * leave behind what the call has begun: a lock, a claim, memory that is counted and nobody's. So calls that get to such
 * points hold cancellation off, and it takes effect at the first cancellation point after the call. Asynchronous
 * cancellation is for code that calls nothing.
 */
#ifndef LADE_BASE_CANCELLATION_H
#define LADE_BASE_CANCELLATION_H

#include <pthread.h>

static inline int ladei_cancellation_hold(void) {
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}

/* `before`: what hold returned. */
static inline void ladei_cancellation_resume(int before) { (void)pthread_setcancelstate(before, NULL); }

#endif /* LADE_BASE_CANCELLATION_H */
