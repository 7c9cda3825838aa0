/* SPDX-License-Identifier: Apache-2.0 */
/* Latencies of calls: turning them on, counting, reading; model and invariants in latency.h. */
#include "device/state/latency.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "device/state/checks.h"

static void latency_clear(ladei_latency *latency) {
  atomic_store_explicit(&latency->count, 0, memory_order_relaxed);
  atomic_store_explicit(&latency->total_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&latency->min_ns, UINT64_MAX, memory_order_relaxed);
  atomic_store_explicit(&latency->max_ns, 0, memory_order_relaxed);
  for (size_t i = 0; i < LADE_DEVICE_LATENCY_BUCKETS; i++)
    atomic_store_explicit(&latency->buckets[i], 0, memory_order_relaxed);
}

static void counter_add(_Atomic(uint64_t) *counter, uint64_t amount) {
  atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

void ladei_latency_add(lade_device_allocator *allocator, ladei_latency_kind kind, uint64_t ns) {
  ladei_latency *latency = &allocator->latencies->kinds[kind];
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

lade_status lade_device_latency_set(lade_device_allocator *allocator, bool enabled) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  struct ladei_device_latencies *fresh = enabled ? calloc(1, sizeof *fresh) : NULL;
  if (enabled && fresh == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", __func__, sizeof *fresh);
  ladei_lock_acquire(&allocator->lock);
  bool before = atomic_load_explicit(&allocator->timed, memory_order_relaxed);
  if (enabled && !before) {
    if (allocator->latencies == NULL) {
      allocator->latencies = fresh;
      fresh = NULL;
    }
    for (size_t i = 0; i < LADEI_LATENCY_KINDS; i++) latency_clear(&allocator->latencies->kinds[i]);
  }
  atomic_store_explicit(&allocator->timed, enabled, memory_order_release);
  ladei_device_attended_update(allocator);
  ladei_lock_release(&allocator->lock);
  free(fresh);
  return LADE_OK;
}

static uint64_t counter_read(const _Atomic(uint64_t) *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void latency_read(const ladei_latency *latency, lade_device_latency *out) {
  out->count = counter_read(&latency->count);
  out->total_ns = counter_read(&latency->total_ns);
  out->min_ns = counter_read(&latency->min_ns);
  if (out->min_ns == UINT64_MAX) out->min_ns = 0;
  out->max_ns = counter_read(&latency->max_ns);
  for (size_t i = 0; i < LADE_DEVICE_LATENCY_BUCKETS; i++) out->buckets[i] = counter_read(&latency->buckets[i]);
}

lade_status lade_device_latency_get(lade_device_allocator *allocator, lade_device_latencies *latencies) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  lade_device_latencies own;
  lade_device_latencies_init(&own);
  ladei_lock_acquire(&allocator->lock);
  const struct ladei_device_latencies *kept = allocator->latencies;
  ladei_lock_release(&allocator->lock);
  if (kept != NULL) {
    latency_read(&kept->kinds[LADEI_LATENCY_ALLOC], &own.alloc);
    latency_read(&kept->kinds[LADEI_LATENCY_FREE], &own.free);
    latency_read(&kept->kinds[LADEI_LATENCY_DRIVER], &own.driver);
  }
  return ladei_stats_write("lade_device_latencies", &own, sizeof own, latencies);
}
