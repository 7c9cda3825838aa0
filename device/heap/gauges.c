/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as users see them, and their resets; the model is in gauges.h. */
#include "device/heap/gauges.h"

#include <stddef.h>

/* Where gauges are shown. */
#define SHOWN(kind, name) [LADEI_DEVICE_##kind] = offsetof(lade_device_stats, name)

static const size_t shown[LADEI_DEVICE_GAUGE_KINDS] = {
    SHOWN(ALLOCATION, allocation),
    SHOWN(ALLOCATED_BYTES, allocated_bytes),
    SHOWN(ACTIVE, active),
    SHOWN(ACTIVE_BYTES, active_bytes),
    SHOWN(REQUESTED_BYTES, requested_bytes),
    SHOWN(INACTIVE_SPLIT, inactive_split),
    SHOWN(INACTIVE_SPLIT_BYTES, inactive_split_bytes),
    SHOWN(SEGMENT, segment),
    SHOWN(RESERVED_BYTES, reserved_bytes),
};

static lade_device_gauge gauge_read(const ladei_device_gauge *gauge) {
  return (lade_device_gauge){.current = gauge->current,
                             .peak = gauge->peak,
                             .allocated = gauge->current - gauge->start + gauge->freed,
                             .freed = gauge->freed};
}

static lade_device_gauge pool_read(const ladei_device_counters *counters, size_t kind, bool small) {
  ladei_device_gauge gauge = {counters->moved[small][kind].current, counters->peak[kind][small],
                              counters->moved[small][kind].freed, counters->start[kind][small]};
  return gauge_read(&gauge);
}

static lade_device_gauges gauges_read(const ladei_device_counters *counters, size_t kind) {
  lade_device_gauge small = pool_read(counters, kind, true);
  lade_device_gauge large = pool_read(counters, kind, false);
  lade_device_gauge all = {.current = small.current + large.current,
                           .peak = counters->sum_peak[kind],
                           .allocated = small.allocated + large.allocated,
                           .freed = small.freed + large.freed};
  return (lade_device_gauges){.all = all, .small_pool = small, .large_pool = large};
}

void ladei_device_counters_read(const ladei_device_counters *counters, lade_device_stats *out) {
  for (size_t kind = 0; kind < LADEI_DEVICE_GAUGE_KINDS; kind++)
    *(lade_device_gauges *)(void *)((char *)out + shown[kind]) = gauges_read(counters, kind);
  out->oversize_allocations = gauge_read(&counters->oversize_allocations);
  out->oversize_segments = gauge_read(&counters->oversize_segments);
  out->max_split_bytes = counters->max_split_bytes;
  out->alloc_retries = counters->alloc_retries;
  out->ooms = counters->ooms;
  out->oom_rejections = counters->oom_rejections;
  out->sync_all_streams = counters->sync_all_streams;
  out->device_allocs = counters->device_allocs;
  out->device_frees = counters->device_frees;
  out->capture_kept = counters->capture_kept;
}

void ladei_device_gauge_reset_peak(ladei_device_gauge *gauge) { gauge->peak = gauge->current; }

void ladei_device_counters_reset_peaks(ladei_device_counters *counters) {
  for (size_t kind = 0; kind < LADEI_DEVICE_GAUGE_KINDS; kind++) {
    for (int small = 0; small < 2; small++) counters->peak[kind][small] = counters->moved[small][kind].current;
    counters->sum_peak[kind] = ladei_device_gauges_current(counters, (ladei_device_gauge_kind)kind);
  }
  ladei_device_gauge_reset_peak(&counters->oversize_allocations);
  ladei_device_gauge_reset_peak(&counters->oversize_segments);
}

void ladei_device_gauge_reset_sums(ladei_device_gauge *gauge) {
  gauge->freed = 0;
  gauge->start = gauge->current;
}

void ladei_device_counters_reset_sums(ladei_device_counters *counters) {
  for (size_t kind = 0; kind < LADEI_DEVICE_GAUGE_KINDS; kind++) {
    for (int small = 0; small < 2; small++) {
      counters->moved[small][kind].freed = 0;
      counters->start[kind][small] = counters->moved[small][kind].current;
    }
  }
  ladei_device_gauge_reset_sums(&counters->oversize_allocations);
  ladei_device_gauge_reset_sums(&counters->oversize_segments);
  counters->alloc_retries = counters->ooms = counters->oom_rejections = counters->sync_all_streams = 0;
  counters->device_allocs = counters->device_frees = counters->capture_kept = 0;
}
