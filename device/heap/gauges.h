/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of one device allocator, as cheap to keep as they can be while every figure stays exact.
 *
 * A gauge stores what cannot be computed from the rest, and no more:
 *
 *   stored     current and freed of the small and of the large pool; three peaks: of either pool, and of their sum
 *   computed   all = small + large;   allocated = current - start + freed
 *
 * so taking a block moves one word and compares two peaks, and giving it back moves two words. All that moves with each
 * pair lies side by side, and apart from all that is only compared with: threads that share an allocator take two lines
 * of cache from each other for all gauges, where it would be one for each. (Sixteen on an H200 paid 5.7 us for a pair
 * beyond the driver's calls so; 6.5 with a line for each gauge, 6.6 with two lines for what is current and two for what
 * was freed.)
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

enum { LADEI_DEVICE_GAUGE_PLACES = 16 }; /* a power of two: those of a pool are found by a shift */

/* Gauges of both pools. Those that a pair of alloc and free moves come first. */
typedef enum ladei_device_gauge_kind {
  LADEI_DEVICE_ALLOCATION,
  LADEI_DEVICE_ALLOCATED_BYTES,
  LADEI_DEVICE_ACTIVE,
  LADEI_DEVICE_ACTIVE_BYTES,
  LADEI_DEVICE_REQUESTED_BYTES,
  LADEI_DEVICE_INACTIVE_SPLIT,
  LADEI_DEVICE_INACTIVE_SPLIT_BYTES,
  LADEI_DEVICE_SEGMENT,
  LADEI_DEVICE_RESERVED_BYTES,
  LADEI_DEVICE_GAUGE_KINDS,
} ladei_device_gauge_kind;

/* A gauge by itself. */
typedef struct ladei_device_gauge {
  uint64_t current;
  uint64_t peak;
  uint64_t freed; /* since the last reset of the sums */
  uint64_t start;
} ladei_device_gauge;

typedef struct ladei_device_moved {
  uint64_t current;
  uint64_t freed;
} ladei_device_moved;

_Static_assert((int)LADEI_DEVICE_GAUGE_KINDS <= LADEI_DEVICE_GAUGE_PLACES, "each kind has a place");

/* Of both pools: [false] is the large one, [true] the small one. */
typedef struct ladei_device_counters {
  _Alignas(64) ladei_device_moved moved[2][LADEI_DEVICE_GAUGE_PLACES];
  _Alignas(64) uint64_t peak[LADEI_DEVICE_GAUGE_KINDS][2];
  uint64_t sum_peak[LADEI_DEVICE_GAUGE_KINDS];
  uint64_t start[LADEI_DEVICE_GAUGE_KINDS][2];
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
static inline uint64_t ladei_device_gauges_current(const ladei_device_counters *counters,
                                                   ladei_device_gauge_kind kind) {
  return counters->moved[false][kind].current + counters->moved[true][kind].current;
}

static inline void ladei_device_gauges_raise(ladei_device_counters *counters, ladei_device_gauge_kind kind,
                                             bool small_pool, uint64_t amount) {
  ladei_device_moved *moved = counters->moved[small_pool]; /* computed once where several gauges move */
  uint64_t current = moved[kind].current += amount;
  uint64_t sum = ladei_device_gauges_current(counters, kind);
  if (current > counters->peak[kind][small_pool]) counters->peak[kind][small_pool] = current;
  if (sum > counters->sum_peak[kind]) counters->sum_peak[kind] = sum;
}

static inline void ladei_device_gauges_lower(ladei_device_counters *counters, ladei_device_gauge_kind kind,
                                             bool small_pool, uint64_t amount) {
  ladei_device_moved *moved = counters->moved[small_pool];
  assert(moved[kind].current >= amount);
  moved[kind].current -= amount;
  moved[kind].freed += amount;
}

/* A gauge that was lowered and raised again, with nothing between, has not moved: the sums alone have to know of it. */
static inline void ladei_device_gauges_repeat(ladei_device_counters *counters, ladei_device_gauge_kind kind,
                                              bool small_pool, uint64_t amount) {
  counters->moved[small_pool][kind].freed += amount; /* and allocated, which follows from it */
}

/* inactive_split when a block of a plain segment that was split, or was not, is taken and `remaining` bytes of it stay
 * free. */
static inline void ladei_device_split_gauges_on_take(ladei_device_counters *counters, bool small, bool was_split,
                                                     uint64_t taken, uint64_t remaining) {
  if (was_split) {
    ladei_device_gauges_lower(counters, LADEI_DEVICE_INACTIVE_SPLIT_BYTES, small, taken);
    if (remaining == 0) ladei_device_gauges_lower(counters, LADEI_DEVICE_INACTIVE_SPLIT, small, 1);
  } else if (remaining != 0) {
    ladei_device_gauges_raise(counters, LADEI_DEVICE_INACTIVE_SPLIT_BYTES, small, remaining);
    ladei_device_gauges_raise(counters, LADEI_DEVICE_INACTIVE_SPLIT, small, 1);
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
