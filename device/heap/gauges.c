/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as users see them, and their resets; the model is in gauges.h. */
#include "device/heap/gauges.h"

#include <stddef.h>

/* Where a gauge is kept, and where it is shown. */
typedef struct gauge_offsets {
  size_t kept;  /* in ladei_device_counters */
  size_t shown; /* in lade_device_stats */
} gauge_offsets;

#define OFFSETS(name)                                                                                                  \
  { offsetof(ladei_device_counters, name), offsetof(lade_device_stats, name) }

static const gauge_offsets divided[] = {
    OFFSETS(allocation),           OFFSETS(allocated_bytes), OFFSETS(active),
    OFFSETS(active_bytes),         OFFSETS(requested_bytes), OFFSETS(inactive_split),
    OFFSETS(inactive_split_bytes), OFFSETS(segment),         OFFSETS(reserved_bytes),
};
static const gauge_offsets single[] = {OFFSETS(oversize_allocations), OFFSETS(oversize_segments)};

enum { DIVIDED = sizeof divided / sizeof divided[0], SINGLE = sizeof single / sizeof single[0] };

static lade_device_gauge gauge_read(const ladei_device_gauge *gauge) {
  return (lade_device_gauge){.current = gauge->current,
                             .peak = gauge->peak,
                             .allocated = gauge->current - gauge->start + gauge->freed,
                             .freed = gauge->freed};
}

static lade_device_gauges gauges_read(const ladei_device_gauges *gauges) {
  lade_device_gauge small = gauge_read(&gauges->pool[true]);
  lade_device_gauge large = gauge_read(&gauges->pool[false]);
  lade_device_gauge all = {.current = small.current + large.current,
                           .peak = gauges->sum_peak,
                           .allocated = small.allocated + large.allocated,
                           .freed = small.freed + large.freed};
  return (lade_device_gauges){.all = all, .small_pool = small, .large_pool = large};
}

void ladei_device_counters_read(const ladei_device_counters *counters, lade_device_stats *out) {
  for (size_t i = 0; i < DIVIDED; i++) {
    const ladei_device_gauges *kept = (const void *)((const char *)counters + divided[i].kept);
    *(lade_device_gauges *)(void *)((char *)out + divided[i].shown) = gauges_read(kept);
  }
  for (size_t i = 0; i < SINGLE; i++) {
    const ladei_device_gauge *kept = (const void *)((const char *)counters + single[i].kept);
    *(lade_device_gauge *)(void *)((char *)out + single[i].shown) = gauge_read(kept);
  }
  out->max_split_bytes = counters->max_split_bytes;
  out->alloc_retries = counters->alloc_retries;
  out->ooms = counters->ooms;
  out->oom_rejections = counters->oom_rejections;
  out->sync_all_streams = counters->sync_all_streams;
  out->device_allocs = counters->device_allocs;
  out->device_frees = counters->device_frees;
  out->capture_kept = counters->capture_kept;
}

static void each_gauge(ladei_device_counters *counters, void (*visit)(ladei_device_gauge *gauge)) {
  for (size_t i = 0; i < DIVIDED; i++) {
    ladei_device_gauges *gauges = (void *)((char *)counters + divided[i].kept);
    visit(&gauges->pool[false]);
    visit(&gauges->pool[true]);
  }
  for (size_t i = 0; i < SINGLE; i++) visit((void *)((char *)counters + single[i].kept));
}

void ladei_device_gauge_reset_peak(ladei_device_gauge *gauge) { gauge->peak = gauge->current; }

void ladei_device_counters_reset_peaks(ladei_device_counters *counters) {
  each_gauge(counters, ladei_device_gauge_reset_peak);
  for (size_t i = 0; i < DIVIDED; i++) {
    ladei_device_gauges *gauges = (void *)((char *)counters + divided[i].kept);
    gauges->sum_peak = ladei_device_gauges_current(gauges);
  }
}

void ladei_device_gauge_reset_sums(ladei_device_gauge *gauge) {
  gauge->freed = 0;
  gauge->start = gauge->current;
}

void ladei_device_counters_reset_sums(ladei_device_counters *counters) {
  each_gauge(counters, ladei_device_gauge_reset_sums);
  counters->alloc_retries = counters->ooms = counters->oom_rejections = counters->sync_all_streams = 0;
  counters->device_allocs = counters->device_frees = counters->capture_kept = 0;
}
