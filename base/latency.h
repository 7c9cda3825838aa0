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

/* Bucket i counts calls of 2^i ns and more, below 2^(i + 1); the first one also those of 0 ns, the last one also longer ones. */
enum { LADEI_LATENCY_BUCKETS = 48 };

typedef struct ladei_latency {
  _Atomic(uint64_t) count, total_ns, min_ns, max_ns; /* min_ns: UINT64_MAX before the first */
  _Atomic(uint64_t) buckets[LADEI_LATENCY_BUCKETS];
} ladei_latency;

/* The latencies of one cache. */
typedef struct ladei_latencies {
  ladei_latency kinds[LADEI_LATENCY_KINDS];
} ladei_latencies;

void ladei_latencies_clear(ladei_latencies *latencies);
void ladei_latency_add(ladei_latency *latency, uint64_t ns);

/* The public calls, `call`, of both caches: shows all figures by name, in code-point order, as they are at the call. NULL: all 0. */
lade_status ladei_latencies_each(const char *call, const ladei_latencies *latencies, lade_stat_visit visit, void *user);

#endif /* LADE_BASE_LATENCY_H */
