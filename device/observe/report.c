/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics of an allocator.
 *
 * Locks: the counters are copied under the lock; the backend is asked without it.
 */
#include "device/observe/report.h"

#include "base/options.h"
#include "base/stat_keys.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

void ladei_device_report_retire_counters(lade_device_allocator *allocator, lade_device_stats *stats) {
  ladei_lock_assert_none_held();
  stats->struct_size = sizeof *stats;
  if (allocator->retire == NULL) return;
  ladei_retire_counters uses;
  ladei_retire_counters_get(allocator->retire, &uses);
  stats->events_recorded = uses.events_recorded;
  stats->events_queried = uses.events_queried;
  stats->quarantined_uses = uses.quarantined_uses;
}

/* The figures of the pinned pool of suspended pools, not of the same moment. */
static lade_status backup_read(lade_device_allocator *allocator, lade_device_stats *stats) {
  lade_pinned_stats pinned;
  lade_pinned_stats_init(&pinned);
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_backup backup = allocator->pools.backup;
  ladei_lock_release(&allocator->lock);
  stats->backup_refusals = backup.refusals;
  if (backup.pool == NULL) return LADE_OK;
  LADEI_TRY(backup.calls->stats_get(backup.pool, &pinned));
  stats->backup_bytes = pinned.reserved_bytes.current;
  stats->backup_used_bytes = pinned.in_use_bytes.current;
  return LADE_OK;
}

lade_status lade_device_stats_get(lade_device_allocator *allocator, lade_device_stats *stats) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  ladei_lock_acquire(&allocator->lock);
  (void)ladei_device_thread_caches_flush(allocator);
  lade_device_stats own = ladei_device_heap_stats(&allocator->heap);
  ladei_lock_release(&allocator->lock);
  ladei_device_report_retire_counters(allocator, &own);
  lade_status status = backup_read(allocator, &own);
  if (status == LADE_OK && allocator->backend->stats_complete != NULL)
    status = allocator->backend->stats_complete(allocator, &own);
  if (status != LADE_OK) return status;
  return ladei_stats_write("lade_device_stats", &own, sizeof own, stats);
}

lade_status lade_device_stats_reset(lade_device_allocator *allocator, uint32_t what) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  LADEI_TRY(ladei_stats_reset_check(__func__, what));
  const bool peaks = (what & LADE_STATS_RESET_PEAKS) != 0, sums = (what & LADE_STATS_RESET_SUMS) != 0;
  ladei_lock_acquire(&allocator->lock);
  (void)ladei_device_thread_caches_flush(allocator);
  if (peaks) ladei_device_counters_reset_peaks(&allocator->heap.counters);
  if (sums) ladei_device_counters_reset_sums(&allocator->heap.counters);
  for (ladei_device_private_pool *pool = allocator->heap.private_pools; pool != NULL; pool = pool->next) {
    if (peaks) ladei_device_gauge_reset_peak(&pool->reserved_bytes);
    if (sums) ladei_device_gauge_reset_sums(&pool->reserved_bytes);
  }
  ladei_lock_release(&allocator->lock);
  return peaks && allocator->backend->peaks_reset != NULL ? allocator->backend->peaks_reset(allocator) : LADE_OK;
}
