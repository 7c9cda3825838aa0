/* SPDX-License-Identifier: Apache-2.0 */
/* Bars of lade and its baselines: of the run, or of a report that an earlier one wrote. */
#ifndef LADE_BENCHMARKS_STAGING_PLOT_H
#define LADE_BENCHMARKS_STAGING_PLOT_H

#include "benchmarks/staging.h"

/* GB/s; a median of 0: not measured. */
typedef struct staging_plot_bar {
  double median, least, most;
} staging_plot_bar;

typedef struct staging_plot {
  char title[256];
  staging_plot_bar bars[STAGING_LOOP][STAGING_DIRECTIONS];
} staging_plot;

void staging_plot_of_run(const staging *s, staging_plot *out);
/* Of a report of --json. False: said why. */
bool staging_plot_of_report(const char *path, staging_plot *out);
/* Draws it as SVG. False: said why. */
bool staging_plot_write(const staging_plot *plot, const char *path);

#endif /* LADE_BENCHMARKS_STAGING_PLOT_H */
