/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about an allocator that change nothing: how much it uses, what its private pools hold, what an address is.
 *
 * Figures that one call gives are of one moment: they are read under one hold of the lock.
 * Locks: the allocator's lock; no callback and no driver call under it.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "device/api/call.h"
#include "device/api/snapshot.h"
#include "device/heap/recent.h"
#include "device/state/checks.h"
#include "device/state/memory_info.h"
#include "device/state/thread_caches.h"

/* ---- Usage ------------------------------------------------------------------------------------------------------- */

static uint64_t pools_largest(const ladei_device_block_pool *small_pool, const ladei_device_block_pool *large_pool) {
  uint64_t small = ladei_device_free_set_largest_size(&small_pool->free);
  uint64_t large = ladei_device_free_set_largest_size(&large_pool->free);
  return small > large ? small : large;
}

static uint64_t heap_largest(const ladei_device_heap *heap) {
  ladei_device_recent_settle(heap);
  uint64_t largest = pools_largest(&heap->small_pool, &heap->large_pool);
  for (const ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    uint64_t own = pools_largest(&pool->small_pool, &pool->large_pool);
    if (own > largest) largest = own;
  }
  return largest;
}

static void usage_read(lade_device_allocator *allocator, lade_device_usage *out) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  const ladei_device_counters *counters = &heap->counters;
  out->allocated_bytes = ladei_device_gauges_current(counters, LADEI_DEVICE_ALLOCATED_BYTES);
  out->allocated_peak_bytes = counters->sum_peak[LADEI_DEVICE_ALLOCATED_BYTES];
  out->reserved_bytes = ladei_device_gauges_current(counters, LADEI_DEVICE_RESERVED_BYTES);
  out->reserved_peak_bytes = counters->sum_peak[LADEI_DEVICE_RESERVED_BYTES];
  out->active_bytes = ladei_device_gauges_current(counters, LADEI_DEVICE_ACTIVE_BYTES);
  out->active_peak_bytes = counters->sum_peak[LADEI_DEVICE_ACTIVE_BYTES];
  out->requested_bytes = ladei_device_gauges_current(counters, LADEI_DEVICE_REQUESTED_BYTES);
  out->requested_peak_bytes = counters->sum_peak[LADEI_DEVICE_REQUESTED_BYTES];
  if (!allocator->backend->has_heap) return;
  out->free_bytes = out->reserved_bytes - out->active_bytes;
  out->largest_free_bytes = heap_largest(heap);
}

/* Where the driver keeps figures of its own: not of the same moment. */
static lade_status usage_complete(lade_device_allocator *allocator, lade_device_usage *out) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  stats.reserved_bytes.all.current = out->reserved_bytes;
  stats.reserved_bytes.all.peak = out->reserved_peak_bytes;
  lade_status status = allocator->backend->stats_complete(allocator, &stats);
  out->reserved_bytes = stats.reserved_bytes.all.current;
  out->reserved_peak_bytes = stats.reserved_bytes.all.peak;
  return status;
}

lade_status lade_device_usage_get(lade_device_allocator *allocator, lade_device_usage *usage) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  lade_device_usage own = {.struct_size = sizeof own};
  ladei_lock_acquire(&allocator->lock);
  (void)ladei_device_thread_caches_flush(allocator);
  usage_read(allocator, &own);
  ladei_lock_release(&allocator->lock);
  if (allocator->backend->stats_complete != NULL) status = usage_complete(allocator, &own);
  if (status != LADE_OK) return status;
  if (own.free_bytes > own.largest_free_bytes)
    own.fragmentation = 1.0 - (double)own.largest_free_bytes / (double)own.free_bytes;
  return ladei_stats_write("lade_device_usage", &own, sizeof own, usage);
}

lade_status lade_device_memory_get(lade_device_allocator *allocator, size_t *out_free_bytes, size_t *out_total_bytes) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (out_free_bytes == NULL || out_total_bytes == NULL)
    return ladei_error_null(__func__, out_free_bytes == NULL ? "out_free_bytes" : "out_total_bytes");
  size_t free_bytes = 0, total_bytes = 0;
  LADEI_TRY(LADEI_UNCANCELLED(ladei_device_memory_info(allocator, &free_bytes, &total_bytes)));
  *out_free_bytes = free_bytes;
  *out_total_bytes = total_bytes;
  return LADE_OK;
}

/* ---- Private pools by name --------------------------------------------------------------------------------------- */

static const char pool_prefix[] = "reserved_bytes_by_private_pools.";
enum { POOL_KEY_BYTES = sizeof pool_prefix + 2 * 20 + 1 + 10 };
static const char *const pool_cells[] = {".allocated", ".current", ".freed", ".peak"};

typedef struct pool_key {
  char text[POOL_KEY_BYTES];
} pool_key;

static pool_key pool_key_of(lade_device_pool_id id, const char *cell) {
  pool_key key;
  snprintf(key.text, sizeof key.text, "%s%llu_%llu%s", pool_prefix, (unsigned long long)id.first,
           (unsigned long long)id.second, cell);
  return key;
}

static uint64_t pool_cell(const ladei_device_gauge *gauge, size_t cell) {
  const uint64_t values[] = {gauge->current - gauge->start + gauge->freed, gauge->current, gauge->freed, gauge->peak};
  return values[cell];
}

/* The pool whose key follows `after` in code-point order. Lock held; the pool may go with its release. */
static const ladei_device_private_pool *pool_following(const ladei_device_heap *heap, const pool_key *after,
                                                       pool_key *out_key) {
  const ladei_device_private_pool *next = NULL;
  for (const ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    pool_key key = pool_key_of(pool->id, ".");
    if (strcmp(key.text, after->text) <= 0 || (next != NULL && strcmp(key.text, out_key->text) >= 0)) continue;
    next = pool;
    *out_key = key;
  }
  return next;
}

lade_status lade_device_pool_stats_each(lade_device_allocator *allocator, lade_stat_visit visit, void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  if (visit == NULL) return ladei_error_null(__func__, "visit");
  pool_key last = {""};
  for (;;) {
    pool_key key = {""};
    ladei_device_gauge gauge = {0, 0, 0, 0};
    lade_device_pool_id id = {0, 0};
    ladei_lock_acquire(&allocator->lock);
    const ladei_device_private_pool *pool = pool_following(&allocator->heap, &last, &key);
    bool found = pool != NULL;
    if (found) {
      gauge = pool->reserved_bytes;
      id = pool->id;
    }
    ladei_lock_release(&allocator->lock);
    if (!found) return LADE_OK;
    for (size_t cell = 0; status == LADE_OK && cell < 4; cell++)
      status = visit(pool_key_of(id, pool_cells[cell]).text, (int64_t)pool_cell(&gauge, cell), user);
    if (status != LADE_OK) return status;
    last = key;
  }
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static void block_describe(const ladei_device_block *block, lade_device_block_info *out) {
  const ladei_device_heap_segment *segment = block->segment;
  const ladei_device_private_pool *private_pool = segment->pool->private_pool;
  lade_device_block_state state = ladei_device_snapshot_state(block);
  out->address = block->address;
  out->bytes = block->size;
  out->requested_bytes = state == LADE_DEVICE_BLOCK_INACTIVE ? 0 : block->requested;
  out->segment_address = segment->address;
  out->segment_bytes = segment->size;
  out->stream = segment->stream.handle;
  if (private_pool != NULL) out->pool = private_pool->id;
  out->context = block->context == NULL ? NULL : block->context->handle;
  out->state = (uint32_t)state;
  out->is_large = !segment->pool->is_small;
  out->is_expandable = ladei_device_heap_segment_expandable(segment);
}

/* Only for a block that a thread cache may have are the caches emptied: a find is quick in all other cases. */
static const ladei_device_block *block_find(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  const ladei_device_block *block = ladei_device_heap_find(&allocator->heap, address);
  if (block == NULL || block->state != LADEI_DEVICE_HEAP_THREAD) return block;
  (void)ladei_device_thread_caches_flush(allocator);
  return ladei_device_heap_find(&allocator->heap, address);
}

lade_status lade_device_find(lade_device_allocator *allocator, const void *pointer, lade_device_block_info *info) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  LADEI_TRY(ladei_device_check_heap(allocator, __func__));
  if (info == NULL) return ladei_error_null(__func__, "info");
  lade_device_block_info own = {.struct_size = sizeof own, .device = allocator->device};
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_block *block = block_find(allocator, pointer);
  bool found = block != NULL && block->mapped;
  if (found) block_describe(block, &own);
  ladei_lock_release(&allocator->lock);
  if (!found) return ladei_device_pointer_foreign(allocator, __func__, pointer);
  return ladei_stats_write("lade_device_block_info", &own, sizeof own, info);
}
