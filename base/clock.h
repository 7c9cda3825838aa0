/* SPDX-License-Identifier: Apache-2.0 */
/* The system's clocks in nanoseconds. The time of a runtime, which may be virtual, is its op now_ns. */
#ifndef LADE_BASE_CLOCK_H
#define LADE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* `clock` is one that cannot fail: CLOCK_MONOTONIC, or CLOCK_REALTIME since 1970. */
static inline uint64_t ladei_clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif /* LADE_BASE_CLOCK_H */
