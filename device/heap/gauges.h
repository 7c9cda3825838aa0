/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of one device allocator, as cheap to keep as they can be while every figure stays exact.
 *
 * A gauge stores what cannot be computed from the rest, and no more:
 *
 *   stored     current and freed of the small and of the large pool; three peaks: of either pool, and of their sum
 *   computed   all = small + large;   allocated = current - start + freed
 *
 * so taking a block moves two words and compares two peaks, and giving it back moves two words.
 *
 * G1  peak of a pool >= its current; sum_peak >= the sum of both currents.
 * G2  `start` is what `current` was when the sums were last reset.
 * Locks: the allocator's lock.
 */
#ifndef LADE_DEVICE_HEAP_GAUGES_H
#define LADE_DEVICE_HEAP_GAUGES_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "lade/device.h"

typedef struct ladei_device_gauge {
  uint64_t current;
  uint64_t peak;
  uint64_t freed; /* since the last reset of the sums */
  uint64_t start;
} ladei_device_gauge;

typedef struct ladei_device_gauges {
  ladei_device_gauge pool[2]; /* of the large pool, of the small pool */
  uint64_t sum_peak;
} ladei_device_gauges;

typedef struct ladei_device_counters {
  ladei_device_gauges allocation;
  ladei_device_gauges allocated_bytes;
  ladei_device_gauges active;
  ladei_device_gauges active_bytes;
  ladei_device_gauges requested_bytes;
  ladei_device_gauges inactive_split;
  ladei_device_gauges inactive_split_bytes;
  ladei_device_gauges segment;
  ladei_device_gauges reserved_bytes;
  ladei_device_gauge oversize_allocations;
  ladei_device_gauge oversize_segments;
  uint64_t max_split_bytes; /* at creation; 0: unlimited */
  uint64_t alloc_retries;
  uint64_t ooms;
  uint64_t oom_rejections;
  uint64_t sync_all_streams;
  uint64_t device_allocs;
  uint64_t device_frees;
  uint64_t capture_kept;
} ladei_device_counters;

static inline void ladei_device_gauge_raise(ladei_device_gauge *gauge, uint64_t amount) {
  gauge->current += amount;
  if (gauge->current > gauge->peak) gauge->peak = gauge->current;
}

static inline void ladei_device_gauge_lower(ladei_device_gauge *gauge, uint64_t amount) {
  assert(gauge->current >= amount);
  gauge->current -= amount;
  gauge->freed += amount;
}

/* Both pools together. */
static inline uint64_t ladei_device_gauges_current(const ladei_device_gauges *gauges) {
  return gauges->pool[false].current + gauges->pool[true].current;
}

static inline void ladei_device_gauges_raise(ladei_device_gauges *gauges, bool small_pool, uint64_t amount) {
  ladei_device_gauge_raise(&gauges->pool[small_pool], amount);
  uint64_t sum = ladei_device_gauges_current(gauges);
  if (sum > gauges->sum_peak) gauges->sum_peak = sum;
}

static inline void ladei_device_gauges_lower(ladei_device_gauges *gauges, bool small_pool, uint64_t amount) {
  ladei_device_gauge_lower(&gauges->pool[small_pool], amount);
}

/* What was lowered and raised again, with nothing between, moved no gauge: the sums alone have to know of it. */
static inline void ladei_device_gauges_repeat(ladei_device_gauges *gauges, bool small_pool, uint64_t amount) {
  gauges->pool[small_pool].freed += amount; /* and allocated, which follows from it */
}

/* inactive_split when a block of a plain segment that was split, or was not, is taken and `remaining` bytes of it stay
 * free. */
static inline void ladei_device_split_gauges_on_take(ladei_device_counters *counters, bool small, bool was_split,
                                                     uint64_t taken, uint64_t remaining) {
  if (was_split) {
    ladei_device_gauges_lower(&counters->inactive_split_bytes, small, taken);
    if (remaining == 0) ladei_device_gauges_lower(&counters->inactive_split, small, 1);
  } else if (remaining != 0) {
    ladei_device_gauges_raise(&counters->inactive_split_bytes, small, remaining);
    ladei_device_gauges_raise(&counters->inactive_split, small, 1);
  }
}

/* As users see them. The caller fills in what is not counted here. */
void ladei_device_counters_read(const ladei_device_counters *counters, lade_device_stats *out);

/* Peaks start anew from what is there now; sums, and the plain counters, from 0. */
void ladei_device_gauge_reset_peak(ladei_device_gauge *gauge);
void ladei_device_gauge_reset_sums(ladei_device_gauge *gauge);
void ladei_device_counters_reset_peaks(ladei_device_counters *counters);
void ladei_device_counters_reset_sums(ladei_device_counters *counters);

#endif /* LADE_DEVICE_HEAP_GAUGES_H */
