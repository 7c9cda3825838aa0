/* SPDX-License-Identifier: Apache-2.0 */
/* Latencies of calls: turning them on, reading, by name; model and invariants in latency.h. */
#include "device/state/latency.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "device/state/checks.h"

lade_status lade_device_latency_set(lade_device_allocator *allocator, bool enabled) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  ladei_latencies *fresh = enabled ? calloc(1, sizeof *fresh) : NULL;
  if (enabled && fresh == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", __func__, sizeof *fresh);
  ladei_lock_acquire(&allocator->lock);
  bool before = atomic_load_explicit(&allocator->attention.timed, memory_order_relaxed);
  if (enabled && !before) {
    if (allocator->attention.latencies == NULL) {
      allocator->attention.latencies = fresh;
      fresh = NULL;
    }
    ladei_latencies_clear(allocator->attention.latencies);
  }
  atomic_store_explicit(&allocator->attention.timed, enabled, memory_order_release);
  ladei_device_attended_update(allocator);
  ladei_lock_release(&allocator->lock);
  free(fresh);
  return LADE_OK;
}

lade_status lade_device_latency_each(lade_device_allocator *allocator, lade_stat_visit visit, void *user) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  ladei_lock_acquire(&allocator->lock);
  const ladei_latencies *kept = allocator->attention.latencies; /* lives as long as the allocator */
  ladei_lock_release(&allocator->lock);
  return ladei_latencies_each(__func__, kept, visit, user);
}
