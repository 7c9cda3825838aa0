/* SPDX-License-Identifier: Apache-2.0 */
/* A bar with rate and time left, on a terminal only. */
#include "benchmarks/staging_progress.h"

#include <stdio.h>
#include <unistd.h>

#include "benchmarks/frame.h"

enum { BAR_WIDTH = 30 };
static const double interval_s = 0.2;

void staging_progress_start(staging_progress *progress, uint64_t total_bytes) {
  *progress = (staging_progress){.shown = isatty(STDERR_FILENO) != 0, .total_bytes = total_bytes};
  progress->begun = bench_seconds();
  progress->printed = progress->begun;
}

void staging_progress_add(staging_progress *progress, uint64_t bytes) {
  progress->done_bytes += bytes;
  if (!progress->shown) return;
  double now = bench_seconds();
  if (now - progress->printed < interval_s || progress->done_bytes == 0) return;
  progress->printed = now;
  double part = (double)progress->done_bytes / (double)progress->total_bytes;
  double elapsed = now - progress->begun;
  int filled = part < 1 ? (int)(part * (double)BAR_WIDTH) : BAR_WIDTH;
  fprintf(stderr, "\r[%.*s%*s] %3.0f %%  %.2f GB/s  %.0f s left \033[K", filled, "##############################",
          BAR_WIDTH - filled, "", 100 * part, (double)progress->done_bytes / elapsed * 1e-9,
          part < 1 ? elapsed / part - elapsed : 0.0);
}

void staging_progress_end(staging_progress *progress) {
  if (progress->shown) fprintf(stderr, "\r\033[K");
  progress->shown = false;
}
