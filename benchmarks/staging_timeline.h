/* SPDX-License-Identifier: Apache-2.0 */
/* What each thread and the link do in a pass, as a Chrome trace. */
#ifndef LADE_BENCHMARKS_STAGING_TIMELINE_H
#define LADE_BENCHMARKS_STAGING_TIMELINE_H

#include "benchmarks/staging.h"

/* How many events the pipeline keeps for it. */
uint64_t staging_timeline_events(const staging_settings *settings);
/* Keeps the events of the pass that ended just now, for --timeline-first. False: said why. */
bool staging_timeline_keep(staging *s, int direction, uint64_t begin_ns, uint64_t end_ns);
void staging_timeline_drop(staging *s);
/* Stages one more pass in each direction, or takes those kept; writes what was done when, and prints a line. False: said
 * why. */
bool staging_timeline_write(staging *s);

#endif /* LADE_BENCHMARKS_STAGING_TIMELINE_H */
