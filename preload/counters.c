/* SPDX-License-Identifier: Apache-2.0 */
/* The counters: any thread, without a lock. */
#include "preload/counters.h"

#include <stdatomic.h>

static _Atomic(uint64_t) counters[PRELOAD_COUNTER_COUNT];

void ladei_preload_count(preload_counter counter, uint64_t by) {
  atomic_fetch_add_explicit(&counters[counter], by, memory_order_relaxed);
}

uint64_t ladei_preload_counted(preload_counter counter) {
  return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}
