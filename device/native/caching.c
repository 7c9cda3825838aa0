/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two switches between the cache and the driver.
 *
 * Caching off (LADE_DEVICE_UNCACHED): requests that no route takes are served by segments of their own, in a pool that
 * is never in use; what is free in it goes back at once. All else is as ever, so counters, history and snapshots know
 * these blocks.
 *
 *   on    alloc --> default pools          free --> default pools
 *   off   alloc --> driver --> uncached    free --> uncached --> driver, of blocks of that pool; others into their pools
 *
 * Frees held: nothing goes back to the driver. A hold is a count, no lock: no thread waits for its end, so a thread
 * that exits with one, or a callback that meets one, blocks none.
 *
 *   hold      waits for what is on its way back; from then on give_back puts its blocks into the cache again: wanted back
 *   resume    the last one: of segments wanted back, what is free now goes back
 *
 * N1  `uncached` has a block free only until the thread that freed it has offered it to the driver, or where that
 *     refused, or frees are held; and its use count is 0, so a flush takes it too. Such a block serves no request: the
 *     driver was asked for no more bytes than the former one. So requests of the pool search with a key of no stream.
 * N2  While `frees_held` is not 0, no thread is in a call that gives memory back, except those that begin() found: hold
 *     waits for them (`returns.in_flight`). Memory that a growth just got and cannot keep is the exception: it goes
 *     back even then.
 * N3  Memory of a pool that was captured into since, and is in use, does not go back at a resume (P4 in
 *     private_pool.c).
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/native/caching.h"

#include "base/cancellation.h"
#include "base/error.h"
#include "device/native/expandable.h"
#include "device/native/give_back.h"
#include "device/native/native.h"
#include "device/native/pool_list.h"
#include "device/native/provider.h"
#include "device/state/thread_caches.h"

/* ---- Caching ----------------------------------------------------------------------------------------------------- */

void ladei_device_uncached_init(lade_device_allocator *allocator) {
  ladei_device_private_pool *pool = &allocator->caching.uncached;
  pool->small_pool.is_small = true;
  pool->small_pool.private_pool = pool->large_pool.private_pool = pool;
  pool->small_pool.no_split = pool->large_pool.no_split = true;
  ladei_lock_acquire(&allocator->lock);
  (void)ladei_device_heap_private_pool_add(&allocator->heap, pool); /* there is no block yet that takes room */
  ladei_lock_release(&allocator->lock);
}

void ladei_device_uncached_give_back(lade_device_allocator *allocator) {
  lade_error before;
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  ladei_error_save(&before);
  int cancellation = ladei_cancellation_hold(); /* the blocks have no owner in between */
  ladei_lock_acquire(&allocator->lock);
  ladei_device_await_grants(allocator);
  ladei_device_pool_pick_all(&allocator->heap, &allocator->caching.uncached.small_pool, &leaving);
  ladei_device_pool_pick_all(&allocator->heap, &allocator->caching.uncached.large_pool, &leaving);
  (void)ladei_device_give_back(allocator, &leaving);
  ladei_lock_release(&allocator->lock);
  ladei_cancellation_resume(cancellation);
  ladei_error_restore(&before);
}

void ladei_device_caching_set(lade_device_allocator *allocator, bool enabled) {
  ladei_lock_assert_held(&allocator->lock);
  if (!enabled && !allocator->caching.off) {
    allocator->routes.leading++;
    ladei_device_thread_caches_pause(allocator);
  }
  if (enabled && allocator->caching.off) {
    allocator->routes.leading--;
    ladei_device_thread_caches_resume(allocator);
  }
  allocator->caching.off = !enabled;
}

/* ---- Holds ------------------------------------------------------------------------------------------------------- */

lade_status ladei_device_native_frees_hold(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_provider_refuse(allocator, "lade_device_frees_hold");
  if (status == LADE_OK) {
    allocator->caching.frees_held++;
    ladei_device_await_idle(allocator); /* N2 */
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

static void pools_pick_wanted(lade_device_allocator *allocator, ladei_device_block_list *leaving) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_pool_pick_wanted(heap, &heap->small_pool, leaving);
  ladei_device_pool_pick_wanted(heap, &heap->large_pool, leaving);
  ladei_device_pool_pick_wanted(heap, &allocator->caching.uncached.small_pool, leaving);
  ladei_device_pool_pick_wanted(heap, &allocator->caching.uncached.large_pool, leaving);
  for (ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    if (pool->use_count > 0 && pool->capture > 0) continue; /* N3 */
    ladei_device_pool_pick_wanted(heap, &pool->small_pool, leaving);
    ladei_device_pool_pick_wanted(heap, &pool->large_pool, leaving);
  }
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment))
    segment->wanted_back = false;
}

/* Memory that was kept goes back, unless another hold has begun. Lock held, released in between. */
static lade_status kept_give_back(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  ladei_device_await_grants(allocator);
  if (allocator->caching.frees_held > 0 || !allocator->caching.frees_kept) return LADE_OK;
  allocator->caching.frees_kept = false;
  pools_pick_wanted(allocator, &leaving);
  lade_status status = ladei_device_give_back(allocator, &leaving);
  if (status == LADE_ERR_CAPTURE) status = LADE_OK;
  if (status == LADE_OK) status = ladei_device_expandable_retry(allocator);
  if (status == LADE_OK) status = ladei_device_give_back_emptied(allocator);
  ladei_device_private_pools_forget(allocator);
  return status;
}

lade_status ladei_device_native_frees_resume(lade_device_allocator *allocator) {
  lade_error before;
  ladei_error_save(&before);
  ladei_lock_acquire(&allocator->lock);
  bool held = allocator->caching.frees_held > 0;
  allocator->caching.frees_held -= held;
  lade_status status = held && allocator->caching.frees_held == 0 ? kept_give_back(allocator) : LADE_OK;
  ladei_lock_release(&allocator->lock);
  if (!held) return ladei_error_argument("lade_device_frees_hold", "allocator", "one whose frees are held", "not held");
  if (status == LADE_OK) ladei_error_restore(&before);
  return status;
}
