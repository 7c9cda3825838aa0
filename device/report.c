/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the allocator tells: its counters, and why an allocation failed.
 *
 * Locks: the counters are copied under the lock; the driver is asked without it.
 */
#include "device/allocator.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "device/backend.h"

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

void ladei_report_retire_counters(lade_device_allocator *allocator, lade_device_stats *stats) {
  stats->struct_size = sizeof *stats;
  if (allocator->retire == NULL) return;
  ladei_retire_counters uses;
  ladei_retire_counters_get(allocator->retire, &uses);
  stats->events_recorded = uses.events_recorded;
  stats->events_queried = uses.events_queried;
  stats->quarantined_uses = uses.quarantined_uses;
}

lade_status lade_device_stats_get(lade_device_allocator *allocator, lade_device_stats *stats) {
  lade_status status = ladei_device_check_call(allocator);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  lade_device_stats own = ladei_heap_stats(&allocator->heap);
  ladei_lock_release(&allocator->lock);
  ladei_report_retire_counters(allocator, &own);
  if (allocator->backend->stats_complete != NULL) status = allocator->backend->stats_complete(allocator, &own);
  if (status != LADE_OK) return status;
  return ladei_stats_write("lade_device_stats", &own, sizeof own, stats);
}

lade_status lade_device_stats_reset_peak(lade_device_allocator *allocator) {
  lade_status status = ladei_device_check_call(allocator);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  ladei_counters_reset_peaks(&allocator->heap.counters);
  ladei_lock_release(&allocator->lock);
  return allocator->backend->peaks_reset == NULL ? LADE_OK : allocator->backend->peaks_reset(allocator);
}

lade_status lade_device_stats_reset_accumulated(lade_device_allocator *allocator) {
  lade_status status = ladei_device_check_call(allocator);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  ladei_counters_reset_sums(&allocator->heap.counters);
  ladei_lock_release(&allocator->lock);
  return LADE_OK;
}

/* ---- Out of memory ----------------------------------------------------------------------------------------------- */

typedef struct size_text {
  char text[32];
} size_text;

/* "512 bytes", "1024.00 KiB", "20.00 MiB": the unit grows only beyond a whole of the next one. */
static size_text size_format(uint64_t bytes) {
  size_text out;
  if (bytes <= LADEI_KIB) {
    snprintf(out.text, sizeof out.text, "%llu bytes", (unsigned long long)bytes);
  } else if (bytes <= LADEI_MIB) {
    snprintf(out.text, sizeof out.text, "%.2f KiB", (double)bytes / (double)LADEI_KIB);
  } else if (bytes <= LADEI_GIB) {
    snprintf(out.text, sizeof out.text, "%.2f MiB", (double)bytes / (double)LADEI_MIB);
  } else {
    snprintf(out.text, sizeof out.text, "%.2f GiB", (double)bytes / (double)LADEI_GIB);
  }
  return out;
}

/* Bytes cached in private pools, which only their captures can use. */
static uint64_t private_cached_bytes(const ladei_heap *heap) {
  uint64_t total = 0;
  for (const ladei_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    const ladei_block_pool *const parts[2] = {&pool->small_pool, &pool->large_pool};
    for (int i = 0; i < 2; i++) {
      for (ladei_order_node *node = ladei_ordered_set_first(&parts[i]->free); node != NULL;
           node = ladei_order_next(node)) {
        total += LADEI_ORDER_RECORD(node, ladei_block, order)->size;
      }
    }
  }
  return total;
}

lade_status ladei_report_exhausted(lade_device_allocator *allocator, const ladei_device_request *request,
                                   lade_status status) {
  lade_error cause;
  ladei_error_save(&cause);
  size_t free_bytes = 0;
  size_t total_bytes = (size_t)allocator->total_bytes;
  (void)allocator->runtime->ops->memory_info(allocator->runtime->self, allocator->device, &free_bytes, &total_bytes);
  ladei_lock_acquire(&allocator->lock);
  const ladei_counters *counters = &allocator->heap.counters;
  uint64_t private_bytes = private_cached_bytes(&allocator->heap);
  uint64_t allocated = ladei_gauges_current(&counters->allocated_bytes);
  uint64_t reserved = ladei_gauges_current(&counters->reserved_bytes);
  uint64_t limit = UINT64_MAX;
  if (allocator->fraction_set) limit = allocator->fraction_bytes;
  if (allocator->max_bytes < limit) limit = allocator->max_bytes;
  bool pending = ladei_gauges_current(&counters->active) > ladei_gauges_current(&counters->allocation);
  bool capturing = allocator->captures != NULL;
  if (allocator->heap.history != NULL) {
    ladei_history_event(&allocator->heap, LADE_DEVICE_OOM, free_bytes, request->rounded, request->stream.handle,
                        request->pool_id);
  }
  ladei_lock_release(&allocator->lock);

  uint64_t unallocated = reserved > allocated + private_bytes ? reserved - allocated - private_bytes : 0;
  char limit_text[64] = "";
  if (limit != UINT64_MAX) snprintf(limit_text, sizeof limit_text, ", limit %s", size_format(limit).text);
  char private_text[64] = "";
  if (private_bytes > 0) {
    snprintf(private_text, sizeof private_text, ", %s cached in private pools", size_format(private_bytes).text);
  }
  lade_device_oom oom = {.struct_size = sizeof oom,
                         .device = allocator->device,
                         .requested_bytes = request->requested,
                         .segment_bytes = request->segment_bytes,
                         .limit_bytes = limit != UINT64_MAX ? limit : total_bytes,
                         .free_bytes = free_bytes};
  ladei_callbacks_tell_oom(allocator, &oom);
  return ladei_error(
      status, cause.native_code,
      "device %d is out of memory: %zu bytes asked for, needing %s; device total %s, free %s%s; allocated "
      "%s%s, reserved but unallocated %s%s%s: %s",
      allocator->device, request->requested, size_format(request->segment_bytes).text, size_format(total_bytes).text,
      size_format(free_bytes).text, limit_text, size_format(allocated).text, private_text,
      size_format(unallocated).text, pending ? "; some freed blocks are still in use by other streams" : "",
      capturing ? "; a capture forbids giving the cache back" : "", cause.text);
}
