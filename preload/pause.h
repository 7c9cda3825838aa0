/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A moment's sleep between two questions.
 *
 * Z1  A thread that is cancelled while it waits here goes on, and ends at its next cancellation point: it has blocks in its hands, and
 *     others wait for it to leave a gate.
 */
#ifndef LADE_PRELOAD_PAUSE_H
#define LADE_PRELOAD_PAUSE_H

#include <pthread.h>
#include <time.h>

/* `ns`: less than a second. */
static inline void ladei_preload_pause(long ns) {
  const struct timespec pause = {0, ns};
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  nanosleep(&pause, NULL);
  (void)pthread_setcancelstate(before, NULL);
}

#endif /* LADE_PRELOAD_PAUSE_H */
