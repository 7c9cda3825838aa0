/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting without a signal. Locks: none. errno is preserved: calls that wait do not promise to set it. */
#include "base/backoff.h"

#include <errno.h>
#include <time.h>

#include "base/switch.h"

#include "base/switch.h"

#ifdef LADEI_SCHEDULED

void ladei_backoff_wait(ladei_backoff *backoff) {
  backoff->rounds++;
  ladei_switch_spin();
}

#else

/* Some microseconds of spinning; then sleeps of 20 us, doubled each time up to 1.28 ms. */
enum { SPIN_ROUNDS = 100, SHORTEST_NS = 20 * 1000, DOUBLINGS = 6 };

void ladei_backoff_wait(ladei_backoff *backoff) {
  unsigned round = backoff->rounds++;
  ladei_switch_spin();
  if (round < SPIN_ROUNDS) {
    ladei_spin_pause();
    return;
  }
  int code = errno;
  unsigned doublings = round - SPIN_ROUNDS < DOUBLINGS ? round - SPIN_ROUNDS : DOUBLINGS;
  const struct timespec pause = {.tv_nsec = (long)SHORTEST_NS << doublings};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
  errno = code;
}

#endif
