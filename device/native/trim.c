/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trimming a private pool: what is wholly free in it goes back now, whatever its use count, except for what the caller
 * wants to keep: graphs know the addresses of their capture, and lade does not know which graphs live.
 *
 *   pool   | plain: free |  | plain: used, free |  | expandable: free ... kept ... free |
 *            goes back        stays                   goes back       stays    goes back
 *
 * T1  A pool that is captured into is not trimmed: what is free in it now may be in the graph already.
 * T2  As for every growth and flush, it is a slow path: others that find no memory meanwhile try again after it.
 * Locks: Note [Calls without the lock] in allocator.h. `visitors` keeps the pool while the lock is released.
 */
#include <stdlib.h>

#include "base/error.h"
#include "device/native/give_back.h"
#include "device/native/native.h"
#include "device/native/pool_list.h"
#include "device/native/provider.h"
#include "device/native/slow_path.h"
#include "device/native/uses.h"
#include "device/state/checks.h"

static const char call[] = "lade_device_pool_trim";

/* ---- What is kept ------------------------------------------------------------------------------------------------ */

static int range_compare(const void *a, const void *b) {
  const ladei_device_range *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* In ascending order; those that touch are one. */
static size_t ranges_merge(ladei_device_range *ranges, size_t count) {
  size_t merged = 0;
  qsort(ranges, count, sizeof *ranges, range_compare);
  for (size_t i = 0; i < count; i++) {
    if (ranges[i].begin == ranges[i].end) continue;
    if (merged == 0 || ranges[merged - 1].end < ranges[i].begin)
      ranges[merged++] = ranges[i];
    else if (ranges[merged - 1].end < ranges[i].end)
      ranges[merged - 1].end = ranges[i].end;
  }
  return merged;
}

static lade_status ranges_read(const lade_device_range *keep, size_t *count, ladei_device_range **out) {
  ladei_device_range *ranges = calloc(*count + 1, sizeof *ranges);
  if (ranges == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu ranges", call, *count);
  for (size_t i = 0; i < *count; i++) {
    uint64_t begin = (uint64_t)(uintptr_t)keep[i].address;
    if (keep[i].bytes > UINT64_MAX - begin) {
      free(ranges);
      return ladei_error_argument(call, "keep", "ranges of addresses", "%zu bytes at %p in place %zu", keep[i].bytes,
                                  keep[i].address, i);
    }
    ranges[i] = (ladei_device_range){begin, begin + keep[i].bytes};
  }
  *count = ranges_merge(ranges, *count);
  *out = ranges;
  return LADE_OK;
}

/* ---- Trimming ---------------------------------------------------------------------------------------------------- */

static lade_status pool_ready(lade_device_allocator *allocator, lade_device_pool_id id,
                              ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  LADEI_TRY(ladei_device_provider_refuse(allocator, call));
  *out = ladei_device_private_pool_find(&allocator->heap, id);
  return *out != NULL ? LADE_OK : ladei_device_pool_refused(call, id, "which is unknown", "a pool that is there");
}

/* The pool is visited, so it stays. Lock held, released in between. */
static lade_status pool_trim(lade_device_allocator *allocator, ladei_device_private_pool *pool,
                             const ladei_device_range *ranges, size_t count, uint64_t *out_bytes) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  ladei_device_await_grants(allocator);
  if (allocator->caching.frees_held > 0) return ladei_error(LADE_ERR_BUSY, 0, "%s: frees to the driver are held", call);
  if (atomic_load(&pool->capturing)) /* T1; nothing was released since */
    return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, call, pool->id, "a capture into it is under way");
  lade_status status = ladei_device_suspended_refuse(allocator, call, pool);
  if (status == LADE_OK) status = ladei_device_tree_refuse(allocator, call, pool);
  if (status != LADE_OK) return status;
  ladei_device_pool_pick_outside(&allocator->heap, &pool->small_pool, ranges, count, &leaving);
  ladei_device_pool_pick_outside(&allocator->heap, &pool->large_pool, ranges, count, &leaving);
  status = ladei_device_give_back(allocator, &leaving);
  *out_bytes = leaving.gone_bytes;
  return status == LADE_ERR_CAPTURE ? LADE_OK : status;
}

static lade_status pool_trim_slow_path(lade_device_allocator *allocator, lade_device_pool_id id,
                                       const ladei_device_range *ranges, size_t count, uint64_t *out_bytes) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_private_pool *pool = NULL;
  ladei_device_slow_path entry;
  LADEI_TRY(pool_ready(allocator, id, &pool));
  pool->visitors++;
  ladei_device_slow_path_begin(allocator, &entry);
  lade_status status = pool_trim(allocator, pool, ranges, count, out_bytes);
  (void)ladei_device_slow_path_end(allocator, &entry);
  pool->visitors--;
  ladei_device_private_pools_forget(allocator);
  return status;
}

lade_status ladei_device_native_pool_trim(lade_device_allocator *allocator, lade_device_pool_id id,
                                          const lade_device_range *keep, size_t keep_count, uint64_t *out_bytes) {
  ladei_device_range *ranges = NULL;
  uint64_t done = 0, bytes = 0;
  lade_error before;
  ladei_error_save(&before);
  lade_status status = ranges_read(keep, &keep_count, &ranges);
  if (status == LADE_OK) status = ladei_device_uses_process(allocator, LADEI_POLL_CLOSE, &done);
  if (status == LADE_OK) {
    ladei_lock_acquire(&allocator->lock);
    status = pool_trim_slow_path(allocator, id, ranges, keep_count, &bytes);
    ladei_lock_release(&allocator->lock);
  }
  free(ranges);
  if (status != LADE_OK) return status;
  ladei_error_restore(&before); /* what captures kept is no failure */
  if (out_bytes != NULL) *out_bytes = bytes;
  return LADE_OK;
}
