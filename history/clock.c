/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of events.
 *
 * Locks: none.
 */
#include "history/clock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
/* The kernel uses the counter for time only after it found all processors' counters in step. */
static bool kernel_keeps_time_by_tsc(void) {
  char name[8] = "";
  int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t length = read(file, name, sizeof name - 1);
  (void)close(file);
  return length >= 4 && memcmp(name, "tsc\n", 4) == 0;
}

static bool tsc_is_usable(void) {
  unsigned a, b, c, d;
  int may_read = PR_TSC_ENABLE;
  bool invariant = __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1u) != 0;
  bool forbidden = prctl(PR_GET_TSC, &may_read, 0, 0, 0) == 0 && may_read != PR_TSC_ENABLE;
  return invariant && !forbidden && kernel_keeps_time_by_tsc();
}
#else
static bool tsc_is_usable(void) { return false; }
#endif

ladei_history_clock ladei_history_clock_choose(bool runtime_is_virtual) {
  if (runtime_is_virtual) return LADEI_HISTORY_CLOCK_VIRTUAL;
  return tsc_is_usable() ? LADEI_HISTORY_CLOCK_TSC : LADEI_HISTORY_CLOCK_SYSTEM;
}

ladei_history_mark ladei_history_mark_now(ladei_history_clock clock, uint64_t (*now_ns)(void *self), void *self) {
  enum { LOOKS = 5 }; /* so that one is without an interruption */
  ladei_history_mark best = {0, now_ns(self), ladei_clock_ns(CLOCK_REALTIME)};
  uint64_t shortest = UINT64_MAX;
  best.ticks = best.time_ns;
  if (clock == LADEI_HISTORY_CLOCK_VIRTUAL) return best;
  for (int i = 0; i < LOOKS; i++) {
    uint64_t before = ladei_history_ticks(clock);
    uint64_t time_ns = now_ns(self);
    uint64_t wall_ns = ladei_clock_ns(CLOCK_REALTIME);
    uint64_t took = ladei_history_ticks(clock) - before;
    if (took >= shortest) continue;
    shortest = took;
    best = (ladei_history_mark){before + took / 2, time_ns, wall_ns};
  }
  return best;
}

ladei_history_scale ladei_history_scale_of(const ladei_history_mark *first, const ladei_history_mark *last) {
  uint64_t ticks = last->ticks - first->ticks;
  ladei_history_scale scale = {.from = *first, .ns_per_tick = 1.0};
  if (ticks == 0 || last->ticks < first->ticks) return scale;
  scale.ns_per_tick = (double)(last->time_ns - first->time_ns) / (double)ticks;
  int64_t gained = (int64_t)(last->wall_ns - first->wall_ns) - (int64_t)(last->time_ns - first->time_ns);
  bool is_virtual = first->ticks == first->time_ns && last->ticks == last->time_ns;
  if (!is_virtual) scale.wall_offset_ns = (double)gained / (double)ticks;
  return scale;
}
