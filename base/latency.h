/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Call times, counted in buckets that double, and the names of the counts.
 *
 * Locks: none; each counter is an atomic of its own.
 */
#ifndef LADE_BASE_LATENCY_H
#define LADE_BASE_LATENCY_H

#include <stdatomic.h>

#include "lade/runtime.h"

typedef enum ladei_latency_kind {
  LADEI_LATENCY_ALLOC,
  LADEI_LATENCY_FREE,
  LADEI_LATENCY_DRIVER,
  LADEI_LATENCY_KINDS
} ladei_latency_kind;

typedef struct ladei_latency {
  _Atomic(uint64_t) count, total_ns, min_ns, max_ns; /* min_ns: UINT64_MAX before the first */
  _Atomic(uint64_t) buckets[LADE_DEVICE_LATENCY_BUCKETS];
} ladei_latency;

/* The latencies of one cache. */
typedef struct ladei_latencies {
  ladei_latency kinds[LADEI_LATENCY_KINDS];
} ladei_latencies;

void ladei_latencies_clear(ladei_latencies *latencies);
void ladei_latency_add(ladei_latency *latency, uint64_t ns);
void ladei_latency_read(const ladei_latency *latency, lade_device_latency *out);

/* All figures by name, in code-point order. `kinds`: alloc, driver, free, in the order of their names. */
lade_status ladei_latency_each(const lade_device_latency *const kinds[LADEI_LATENCY_KINDS], lade_stat_visit visit,
                               void *user);

#endif /* LADE_BASE_LATENCY_H */
