/* SPDX-License-Identifier: Apache-2.0 */
/* Peaks and sums of a replay, over all of its operations, for a comparison of settings. */
#ifndef LADE_TOOLS_REPLAY_TOTALS_H
#define LADE_TOOLS_REPLAY_TOTALS_H

#include "lade/device.h"

/* A counter that the trace may reset, and its sum over the whole replay. */
typedef struct replay_counter {
  uint64_t latest;
  uint64_t total;
} replay_counter;

/* All zero at first. */
typedef struct replay_totals {
  uint64_t peak_reserved;  /* of the whole replay, whatever the trace resets; so are those below */
  uint64_t active_at_peak; /* active bytes when reserved bytes first had their peak */
  uint64_t peak_active;
  replay_counter device_allocs;
  replay_counter alloc_retries;
  replay_counter ooms;
} replay_totals;

/* After each operation. */
void replay_totals_add(replay_totals *t, const lade_device_stats *stats);

/* 1 - active / reserved at the peak of reserved bytes; 0 where nothing was reserved. */
double replay_totals_fragmentation(const replay_totals *t);

#endif /* LADE_TOOLS_REPLAY_TOTALS_H */
