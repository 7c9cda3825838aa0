/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timeline: reserved, active and requested bytes over the operations of a replay, in bounded memory, as a picture; and
 * what a comparison of settings needs of it.
 */
#ifndef LADE_TOOLS_REPLAY_TIMELINE_H
#define LADE_TOOLS_REPLAY_TIMELINE_H

#include <stdio.h>

#include "lade/device.h"

enum { TIMELINE_SERIES = 3, TIMELINE_POINTS = 2048 };

/* A counter that the trace may reset, and its sum over the whole replay. */
typedef struct timeline_counter {
  uint64_t latest;
  uint64_t total;
} timeline_counter;

typedef struct timeline {
  uint64_t points[TIMELINE_SERIES][TIMELINE_POINTS]; /* the largest value among the operations of each point */
  size_t point_count;
  uint64_t per_point; /* operations per point; doubles whenever the points are full */
  uint64_t in_point;  /* operations in the last one */
  uint64_t operations;
  uint64_t peak_reserved;  /* of the whole replay, whatever the trace resets; so are those below */
  uint64_t active_at_peak; /* active bytes when reserved bytes first had their peak */
  uint64_t peak_active;
  timeline_counter device_allocs;
  timeline_counter alloc_retries;
  timeline_counter ooms;
} timeline;

void timeline_init(timeline *t);
void timeline_add(timeline *t, const lade_device_stats *stats);

/* 1 - active / reserved at the peak of reserved bytes; 0 where nothing was reserved. */
double timeline_fragmentation(const timeline *t);

void timeline_write_svg(FILE *out, const timeline *t, const char *title);

#endif /* LADE_TOOLS_REPLAY_TIMELINE_H */
