/* SPDX-License-Identifier: Apache-2.0 */
/* Counts latencies, and names them: the name of the kind, then a figure or a bucket, in code-point order. */
#include "base/latency.h"

#include "base/error.h"
#include "base/size.h"

enum { LATENCY_KEYS = LADE_DEVICE_LATENCY_BUCKETS + 4 };

#define LATENCY_LOG2_TEN(kind, ten)                                                                                    \
  kind ".log2_" ten "0", kind ".log2_" ten "1", kind ".log2_" ten "2", kind ".log2_" ten "3", kind ".log2_" ten "4",   \
      kind ".log2_" ten "5", kind ".log2_" ten "6", kind ".log2_" ten "7"
#define LATENCY_LOG2_TENS(kind, ten) LATENCY_LOG2_TEN(kind, ten), kind ".log2_" ten "8", kind ".log2_" ten "9"
#define LATENCY_NAMES(kind)                                                                                            \
  {                                                                                                                    \
    kind ".count", LATENCY_LOG2_TENS(kind, "0"), LATENCY_LOG2_TENS(kind, "1"), LATENCY_LOG2_TENS(kind, "2"),           \
        LATENCY_LOG2_TENS(kind, "3"), LATENCY_LOG2_TEN(kind, "4"), kind ".max", kind ".min", kind ".total"             \
  }

static const char *const names[LADEI_LATENCY_KINDS][LATENCY_KEYS] = {
    LATENCY_NAMES("alloc_ns"), LATENCY_NAMES("driver_ns"), LATENCY_NAMES("free_ns")};

/* --- counting ----------------------------------------------------------------------------------------------------- */

static void latency_clear(ladei_latency *latency) {
  atomic_store_explicit(&latency->count, 0, memory_order_relaxed);
  atomic_store_explicit(&latency->total_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&latency->min_ns, UINT64_MAX, memory_order_relaxed);
  atomic_store_explicit(&latency->max_ns, 0, memory_order_relaxed);
  for (size_t i = 0; i < LADE_DEVICE_LATENCY_BUCKETS; i++)
    atomic_store_explicit(&latency->buckets[i], 0, memory_order_relaxed);
}

void ladei_latencies_clear(ladei_latencies *latencies) {
  for (size_t i = 0; i < LADEI_LATENCY_KINDS; i++) latency_clear(&latencies->kinds[i]);
}

static void counter_add(_Atomic(uint64_t) *counter, uint64_t amount) {
  atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

void ladei_latency_add(ladei_latency *latency, uint64_t ns) {
  size_t bucket = ns == 0 ? 0 : ladei_log2_floor(ns);
  counter_add(&latency->buckets[ladei_size_min(bucket, LADE_DEVICE_LATENCY_BUCKETS - 1)], 1);
  counter_add(&latency->count, 1);
  counter_add(&latency->total_ns, ns);
  uint64_t seen = atomic_load_explicit(&latency->max_ns, memory_order_relaxed);
  while (seen < ns && !atomic_compare_exchange_weak_explicit(&latency->max_ns, &seen, ns, memory_order_relaxed,
                                                             memory_order_relaxed)) {
  }
  seen = atomic_load_explicit(&latency->min_ns, memory_order_relaxed);
  while (seen > ns && !atomic_compare_exchange_weak_explicit(&latency->min_ns, &seen, ns, memory_order_relaxed,
                                                             memory_order_relaxed)) {
  }
}

static uint64_t counter_read(const _Atomic(uint64_t) *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

void ladei_latency_read(const ladei_latency *latency, lade_device_latency *out) {
  out->count = counter_read(&latency->count);
  out->total_ns = counter_read(&latency->total_ns);
  out->min_ns = counter_read(&latency->min_ns);
  if (out->min_ns == UINT64_MAX) out->min_ns = 0;
  out->max_ns = counter_read(&latency->max_ns);
  for (size_t i = 0; i < LADE_DEVICE_LATENCY_BUCKETS; i++) out->buckets[i] = counter_read(&latency->buckets[i]);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static int64_t value_of(const lade_device_latency *kind, size_t key) {
  if (key == 0) return (int64_t)kind->count;
  if (key <= LADE_DEVICE_LATENCY_BUCKETS) return (int64_t)kind->buckets[key - 1];
  const uint64_t figures[] = {kind->max_ns, kind->min_ns, kind->total_ns};
  return (int64_t)figures[key - LADE_DEVICE_LATENCY_BUCKETS - 1];
}

lade_status ladei_latency_each(const lade_device_latency *const kinds[LADEI_LATENCY_KINDS], lade_stat_visit visit,
                               void *user) {
  lade_status status = LADE_OK;
  for (size_t kind = 0; kind < LADEI_LATENCY_KINDS; kind++)
    for (size_t key = 0; status == LADE_OK && key < LATENCY_KEYS; key++)
      status = visit(names[kind][key], value_of(kinds[kind], key), user);
  return status;
}
