/* SPDX-License-Identifier: Apache-2.0 */
/* Latencies of pinned pools: turning them on and off, reading, by name; model and invariants in latency.h. */
#include "host/state/latency.h"

#include <stdlib.h>

#include "base/options.h"
#include "host/state/call.h"

/* PL1. Returns the unneeded one. */
static ladei_latencies *latencies_begin(lade_pinned_pool *pool, ladei_latencies *fresh) {
  ladei_lock_assert_held(&pool->fast.lock);
  if (atomic_load_explicit(&pool->fast.timed, memory_order_relaxed)) return fresh;
  if (pool->fast.latencies == NULL) {
    pool->fast.latencies = fresh;
    fresh = NULL;
  }
  ladei_latencies_clear(pool->fast.latencies);
  return fresh;
}

lade_status lade_pinned_latency_set(lade_pinned_pool *pool, bool enabled) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  ladei_latencies *fresh = enabled ? calloc(1, sizeof *fresh) : NULL;
  if (enabled && fresh == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", __func__, sizeof *fresh);
  ladei_lock_acquire(&pool->fast.lock);
  if (enabled) fresh = latencies_begin(pool, fresh);
  atomic_store_explicit(&pool->fast.timed, enabled, memory_order_release);
  ladei_pinned_fast_path_set(&pool->fast, LADEI_PINNED_ATTENDED_LATENCY, enabled);
  ladei_lock_release(&pool->fast.lock);
  free(fresh);
  return LADE_OK;
}

lade_status lade_pinned_latency_each(lade_pinned_pool *pool, lade_stat_visit visit, void *user) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  ladei_lock_acquire(&pool->fast.lock);
  const ladei_latencies *kept = pool->fast.latencies; /* lives as long as the pool */
  ladei_lock_release(&pool->fast.lock);
  return ladei_latencies_each(__func__, kept, visit, user);
}
