/* SPDX-License-Identifier: Apache-2.0 */
/* The work of each thread and of the link in a pass, as a Chrome trace. */
#ifndef LADE_BENCHMARKS_STAGING_TIMELINE_H
#define LADE_BENCHMARKS_STAGING_TIMELINE_H

#include "benchmarks/staging.h"

/* Stages one more pass in each direction, or takes those kept; writes what was done when, and prints a line. False: said
 * why. */
bool staging_timeline_write(staging *s);

#endif /* LADE_BENCHMARKS_STAGING_TIMELINE_H */
