/* SPDX-License-Identifier: Apache-2.0 */
/* Counts latencies, and names them: the name of the kind, then a figure or a bucket, in code-point order. */
#include "base/latency.h"

#include "base/error.h"
#include "base/size.h"

enum { LATENCY_KEYS = LADEI_LATENCY_BUCKETS + 4 };

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
  for (size_t i = 0; i < LADEI_LATENCY_BUCKETS; i++)
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
  counter_add(&latency->buckets[ladei_size_min(bucket, LADEI_LATENCY_BUCKETS - 1)], 1);
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

/* --- names -------------------------------------------------------------------------------------------------------- */

/* In the order of the names. */
static void kind_read(const ladei_latency *latency, int64_t values[LATENCY_KEYS]) {
  uint64_t min = atomic_load_explicit(&latency->min_ns, memory_order_relaxed);
  values[0] = (int64_t)atomic_load_explicit(&latency->count, memory_order_relaxed);
  for (size_t i = 0; i < LADEI_LATENCY_BUCKETS; i++)
    values[1 + i] = (int64_t)atomic_load_explicit(&latency->buckets[i], memory_order_relaxed);
  values[LATENCY_KEYS - 3] = (int64_t)atomic_load_explicit(&latency->max_ns, memory_order_relaxed);
  values[LATENCY_KEYS - 2] = min == UINT64_MAX ? 0 : (int64_t)min;
  values[LATENCY_KEYS - 1] = (int64_t)atomic_load_explicit(&latency->total_ns, memory_order_relaxed);
}

lade_status ladei_latencies_each(const char *call, const ladei_latencies *latencies, lade_stat_visit visit,
                                 void *user) {
  static const ladei_latency_kind kinds[] = {LADEI_LATENCY_ALLOC, LADEI_LATENCY_DRIVER, LADEI_LATENCY_FREE};
  int64_t values[LADEI_LATENCY_KINDS][LATENCY_KEYS] = {{0}};
  if (visit == NULL) return ladei_error_null(call, "visit");
  for (size_t kind = 0; latencies != NULL && kind < LADEI_LATENCY_KINDS; kind++)
    kind_read(&latencies->kinds[kinds[kind]], values[kind]);
  lade_status status = LADE_OK;
  for (size_t i = 0; status == LADE_OK && i < (size_t)LADEI_LATENCY_KINDS * LATENCY_KEYS; i++)
    status = visit(names[i / LATENCY_KEYS][i % LATENCY_KEYS], values[i / LATENCY_KEYS][i % LATENCY_KEYS], user);
  return status;
}
