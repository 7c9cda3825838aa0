/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of events: cheap to read. Its ticks become runtime and wall-clock times only when events are read.
 *
 *   TSC       the processor's counter: 10 ns per read, CLOCK_MONOTONIC 24 ns (benchmarks/micro/inspect/history.c); if
 *             the kernel found the counters of all processors in step, and keeps time by them itself
 *   SYSTEM    CLOCK_MONOTONIC, elsewhere
 *   VIRTUAL   the runtime's clock, if it is virtual
 *
 * A mark is one moment on all clocks. A time between two marks is converted by the line through both.
 */
#ifndef LADE_HISTORY_CLOCK_H
#define LADE_HISTORY_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/clock.h"

typedef enum ladei_history_clock {
  LADEI_HISTORY_CLOCK_VIRTUAL,
  LADEI_HISTORY_CLOCK_SYSTEM,
  LADEI_HISTORY_CLOCK_TSC,
} ladei_history_clock;

/* The best clock for a runtime; reads one of the kernel's files. */
ladei_history_clock ladei_history_clock_choose(bool runtime_is_virtual);

/* Not for a virtual clock. */
static inline uint64_t ladei_history_ticks(ladei_history_clock clock) {
#if defined(__x86_64__) /* the builtin: <x86intrin.h> takes longer to compile than the files that would include it */
  if (clock == LADEI_HISTORY_CLOCK_TSC) return __builtin_ia32_rdtsc();
#endif
  (void)clock;
  return ladei_clock_ns(CLOCK_MONOTONIC);
}

typedef struct ladei_history_mark {
  uint64_t ticks;
  uint64_t time_ns; /* the runtime's clock */
  uint64_t wall_ns; /* since 1970 */
} ladei_history_mark;

/* This moment. No lock held: it reads the runtime's clock. */
ladei_history_mark ladei_history_mark_now(ladei_history_clock clock, uint64_t (*now_ns)(void *self), void *self);

/* Converts ticks to the two clocks, by two marks. */
typedef struct ladei_history_scale {
  ladei_history_mark from;
  double ns_per_tick;
  double wall_offset_ns; /* gain of the wall clock over the other between the marks, by tick */
} ladei_history_scale;

ladei_history_scale ladei_history_scale_of(const ladei_history_mark *first, const ladei_history_mark *last);

static inline uint64_t ladei_history_time_ns(const ladei_history_scale *scale, uint64_t ticks) {
  double since = (double)(int64_t)(ticks - scale->from.ticks);
  return scale->from.time_ns + (uint64_t)(int64_t)(since * scale->ns_per_tick);
}
static inline uint64_t ladei_history_wall_ns(const ladei_history_scale *scale, uint64_t ticks) {
  double since = (double)(int64_t)(ticks - scale->from.ticks);
  return scale->from.wall_ns + (uint64_t)(int64_t)(since * scale->ns_per_tick + since * scale->wall_offset_ns);
}

#endif /* LADE_HISTORY_CLOCK_H */
