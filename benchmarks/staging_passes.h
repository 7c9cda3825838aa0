/* SPDX-License-Identifier: Apache-2.0 */
/* The timed passes: lade and its baselines. */
#ifndef LADE_BENCHMARKS_STAGING_PASSES_H
#define LADE_BENCHMARKS_STAGING_PASSES_H

#include "benchmarks/staging_inputs.h"

/* Fills the samples of a direction. False: interrupted, or said why. */
bool staging_measure(staging *s, int direction);
/* Stages everything once through lade. False: interrupted, or said why. */
bool staging_pass(staging *s, int direction);
/* Stages one piece through lade and waits for it. */
bool staging_transfer_piece(staging *s, int direction, const staging_piece *piece);

/* Kept of a pass for --timeline: its events, in the order of their ends. */
typedef struct staging_recorded {
  int direction;
  uint64_t begin_ns, end_ns;
  lade_timeline_event *events;
  size_t count;
  uint32_t threads;
} staging_recorded;

/* How many events the pipeline keeps for it. */
uint64_t staging_recorded_most(const staging_settings *settings);
/* Reads the events of the pass that ended last, shortened to it. False: said why. */
bool staging_recorded_read(staging *s, staging_recorded *pass);
/* Those that were kept for --timeline-first. */
void staging_recorded_drop(staging *s);

#endif /* LADE_BENCHMARKS_STAGING_PASSES_H */
