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

/* Between two questions while a thread waits: about what a copy of 1 MiB takes. */
enum { PRELOAD_POLL_NS = 20000 };
/* How long the end of a context waits, in all a second, for its work, and as long for other work that uses its memory: a kernel that never
 * ends must not keep a process from ending. */
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
