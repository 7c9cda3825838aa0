/* SPDX-License-Identifier: Apache-2.0 */
/* Totals of a replay. */
#include "tools/replay/totals.h"

#include "base/size.h"

/* Between two operations a counter grows, or a reset sets it to 0. */
static void counter_follow(replay_counter *counter, uint64_t value) {
  counter->total += value < counter->latest ? value : value - counter->latest;
  counter->latest = value;
}

void replay_totals_add(replay_totals *t, const lade_device_stats *stats) {
  t->peak_active = ladei_size_max(t->peak_active, stats->active_bytes.all.peak);
  counter_follow(&t->device_allocs, stats->device_allocs);
  counter_follow(&t->alloc_retries, stats->alloc_retries);
  counter_follow(&t->ooms, stats->ooms);
  if (stats->reserved_bytes.all.current <= t->peak_reserved) return;
  t->peak_reserved = stats->reserved_bytes.all.current;
  t->active_at_peak = stats->active_bytes.all.current;
}

double replay_totals_fragmentation(const replay_totals *t) {
  return t->peak_reserved == 0 ? 0.0 : 1.0 - (double)t->active_at_peak / (double)t->peak_reserved;
}
