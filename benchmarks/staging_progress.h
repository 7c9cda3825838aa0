/* SPDX-License-Identifier: Apache-2.0 */
/* A bar with rate and time left, on a terminal only. */
#ifndef LADE_BENCHMARKS_STAGING_PROGRESS_H
#define LADE_BENCHMARKS_STAGING_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct staging_progress {
  bool shown; /* a terminal */
  uint64_t total_bytes;
  uint64_t done_bytes;
  double begun;   /* seconds */
  double printed; /* the last time */
} staging_progress;

void staging_progress_start(staging_progress *progress, uint64_t total_bytes);
void staging_progress_add(staging_progress *progress, uint64_t bytes);
void staging_progress_end(staging_progress *progress);

#endif /* LADE_BENCHMARKS_STAGING_PROGRESS_H */
