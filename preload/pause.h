/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A short sleep between two polls.
 *
 * Z1  A thread that is cancelled during this sleep goes on, and ends at its next cancellation point: it may hold
 *     blocks, and others wait for it to leave a gate.
 */
#ifndef LADE_PRELOAD_PAUSE_H
#define LADE_PRELOAD_PAUSE_H

#include <pthread.h>
#include <time.h>

/* Between two polls while a thread waits: about the time of a copy of 1 MiB. */
enum { PRELOAD_POLL_NS = 20000 };
/* The end of a context waits a second in all for its work, and as long for other work that uses its memory: a kernel
 * that never ends must not keep a process from ending. */
enum { PRELOAD_END_POLLS = 1000, PRELOAD_END_POLL_NS = 1000000 };

/* `ns`: less than a second. */
static inline void ladei_preload_pause(long ns) {
  const struct timespec pause = {0, ns};
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  nanosleep(&pause, NULL);
  (void)pthread_setcancelstate(before, NULL);
}

#endif /* LADE_PRELOAD_PAUSE_H */
