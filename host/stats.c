/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool.
 *
 * I1  A gauge's current value and sums are exact whenever no thread is inside the pool; its peak is the largest current
 *     value that it ever had.
 * Locks: none; every counter is an atomic of its own.
 */
#include "host/stats.h"

#include "base/error.h"
#include "base/options.h"
#include "host/pool.h"

static void peak_raise(ladei_gauge *gauge, uint64_t current) {
  uint64_t peak = atomic_load_explicit(&gauge->peak, memory_order_relaxed);
  while (peak < current && !atomic_compare_exchange_weak_explicit(&gauge->peak, &peak, current, memory_order_relaxed,
                                                                  memory_order_relaxed)) {
  }
}

void ladei_gauge_add(ladei_gauge *gauge, uint64_t amount) {
  ladei_count(&gauge->allocated, amount);
  peak_raise(gauge, atomic_fetch_add_explicit(&gauge->current, amount, memory_order_relaxed) + amount);
}

void ladei_gauge_sub(ladei_gauge *gauge, uint64_t amount) {
  atomic_fetch_sub_explicit(&gauge->current, amount, memory_order_relaxed);
}

bool ladei_gauge_add_below(ladei_gauge *gauge, uint64_t amount, uint64_t max) {
  uint64_t current = ladei_gauge_current(gauge);
  do {
    if (current > max || amount > max - current) {
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&gauge->current, &current, current + amount, memory_order_relaxed,
                                                  memory_order_relaxed));
  ladei_count(&gauge->allocated, amount);
  peak_raise(gauge, current + amount);
  return true;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static uint64_t counter_read(const _Atomic(uint64_t) *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static lade_pinned_gauge gauge_read(const ladei_gauge *gauge) {
  lade_pinned_gauge out;
  out.current = ladei_gauge_current(gauge);
  out.peak = counter_read(&gauge->peak);
  out.allocated = counter_read(&gauge->allocated);
  out.freed = out.allocated - out.current;
  return out;
}

static void counters_read(const ladei_pool_counters *counters, lade_pinned_stats *out) {
  out->requested_bytes = gauge_read(&counters->requested_bytes);
  out->in_use_bytes = gauge_read(&counters->in_use_bytes);
  out->pending_bytes = gauge_read(&counters->pending_bytes);
  out->reserved_bytes = gauge_read(&counters->reserved_bytes);
  out->in_use_blocks = gauge_read(&counters->in_use_blocks);
  out->pending_blocks = gauge_read(&counters->pending_blocks);
  out->hits = counter_read(&counters->hits);
  out->misses = counter_read(&counters->misses);
  out->driver_allocs = counter_read(&counters->driver_allocs);
  out->driver_frees = counter_read(&counters->driver_frees);
  out->driver_alloc_ns = counter_read(&counters->driver_alloc_ns);
  out->driver_free_ns = counter_read(&counters->driver_free_ns);
  out->limit_waits = counter_read(&counters->limit_waits);
}

lade_status lade_pinned_stats_get(lade_pinned_pool *pool, lade_pinned_stats *stats) {
  if (pool == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: pool is NULL", __func__);
  }
  lade_status status = ladei_runtime_check_process(pool->runtime);
  if (status != LADE_OK) {
    return status;
  }
  lade_pinned_stats own;
  ladei_retire_counters retire;
  lade_pinned_stats_init(&own);
  counters_read(&pool->counters, &own);
  ladei_retire_counters_get(pool->retire, &retire);
  own.events_recorded = retire.events_recorded;
  own.events_queried = retire.events_queried;
  own.streams_queried = retire.streams_queried;
  own.quarantined_uses = retire.quarantined_uses;
  return ladei_stats_write("lade_pinned_stats", &own, sizeof own, stats);
}
