/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool: those that more than one instruction changes.
 *
 * Locks: none.
 */
#include "host/caches/counters.h"

void ladei_pinned_gauge_sub(ladei_pinned_gauge *gauge, uint64_t amount) {
  atomic_fetch_sub_explicit(&gauge->current, amount, memory_order_relaxed);
}

bool ladei_pinned_gauge_add_below(ladei_pinned_gauge *gauge, uint64_t amount, uint64_t max) {
  uint64_t current = ladei_pinned_gauge_current(gauge);
  do {
    if (current > max || amount > max - current) return false;
  } while (!atomic_compare_exchange_weak_explicit(&gauge->current, &current, current + amount, memory_order_relaxed,
                                                  memory_order_relaxed));
  ladei_pinned_count(&gauge->allocated, amount);
  ladei_pinned_peak_raise(&gauge->peak, current + amount);
  return true;
}

void ladei_pinned_timer_init(ladei_pinned_timer *timer) { atomic_init(&timer->min_ns, UINT64_MAX); }

void ladei_pinned_timer_reset_extremes(ladei_pinned_timer *timer) {
  atomic_store_explicit(&timer->min_ns, UINT64_MAX, memory_order_relaxed);
  atomic_store_explicit(&timer->max_ns, 0, memory_order_relaxed);
}

void ladei_pinned_timer_add(ladei_pinned_timer *timer, uint64_t calls, uint64_t ns) {
  uint64_t shortest = atomic_load_explicit(&timer->min_ns, memory_order_relaxed);
  if (calls == 0) return;
  ladei_pinned_count(&timer->count, calls);
  ladei_pinned_count(&timer->total_ns, ns);
  ladei_pinned_peak_raise(&timer->max_ns, ns);
  while (shortest > ns && !atomic_compare_exchange_weak_explicit(&timer->min_ns, &shortest, ns, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
  }
}
