/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the machine, or a control group of the process, is short of memory: for pools with a background thread, which
 * then give back unused memory.
 *
 * Reads the time that some task waited for memory, of /proc/pressure/memory and of the group's memory.pressure; and
 * how often the group was above memory.high or at memory.max, of its memory.events.
 *
 * These files can be polled for triggers, too, which would bring nothing. The thread wakes two hundred times a second
 * for pending blocks anyway, so no wake-up would be saved: only the look, ten times a second, of 32 us of processor
 * time each, a thirtieth of an idle thread's time (benchmarks/micro/pinned_budget, "pressure"). Without
 * CAP_SYS_RESOURCE the kernel takes windows of multiples of two seconds alone, and tells once a window: up to twenty
 * times later than a look. And each group above the process's would take a descriptor, which programs close, and
 * children of a fork inherit.
 */
#ifndef LADE_HOST_BUDGET_PRESSURE_H
#define LADE_HOST_BUDGET_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ladei_pressure {
  const char *root; /* before /proc and /sys; borrowed */
  uint64_t looked_ns;
  uint64_t stalled_us, group_stalled_us, group_events; /* as read last */
  bool has_looked;
  uint64_t relieved_ns; /* when memory was last given back for it; the caller's */
} ladei_pressure;

void ladei_pressure_init(ladei_pressure *pressure, const char *root);

/* True: since the last look a tenth of the time was waited for memory, or a group was at its limit. Looks every 100 ms;
 * in between, and where the kernel does not say, false. */
bool ladei_pressure_look(ladei_pressure *pressure, uint64_t now_ns);

#endif /* LADE_HOST_BUDGET_PRESSURE_H */
