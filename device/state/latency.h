/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long calls take, counted while the program asks for it: by kind, in buckets that double.
 *
 *   off   `attention.any` is false, and a hot call looks at nothing else (api/device.c)
 *   on    begin reads the runtime's clock, end reads it again and adds one to five counters
 *
 * L1  latencies is NULL until they are turned on for the first time, and there until the allocator is destroyed.
 * L2  A call that began while they were off is not counted.
 * Locks: none; each counter is an atomic of its own. Turning on and off: the allocator's lock.
 */
#ifndef LADE_DEVICE_STATE_LATENCY_H
#define LADE_DEVICE_STATE_LATENCY_H

#include "base/latency.h"
#include "device/state/allocator.h"

/* A call that may be counted. */
typedef struct ladei_latency_mark {
  bool counted;
  uint64_t begin_ns;
} ladei_latency_mark;

static inline ladei_latency_mark ladei_latency_begin(const lade_device_allocator *allocator) {
  if (!atomic_load_explicit(&allocator->attention.timed, memory_order_acquire)) return (ladei_latency_mark){false, 0};
  return (ladei_latency_mark){true, allocator->runtime->ops->now_ns(allocator->runtime->self)};
}

static inline void ladei_latency_end(lade_device_allocator *allocator, ladei_latency_mark mark,
                                     ladei_latency_kind kind) {
  if (mark.counted)
    ladei_latency_add(&allocator->attention.latencies->kinds[kind],
                      allocator->runtime->ops->now_ns(allocator->runtime->self) - mark.begin_ns);
}

#endif /* LADE_DEVICE_STATE_LATENCY_H */
