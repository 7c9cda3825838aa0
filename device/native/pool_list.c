/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of private pools: which there are, and what a call may not do with one. Model and invariants in
 * private_pool.c.
 *
 * Locks: the allocator's lock.
 */
#include "device/native/pool_list.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/native/suspension.h"
#include "device/state/checks.h"

ladei_device_private_pool *ladei_device_private_pool_find(const ladei_device_heap *heap, lade_device_pool_id id) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_private_pool *pool = heap->private_pools;
  while (pool != NULL && (pool->id.first != id.first || pool->id.second != id.second)) pool = pool->next;
  return pool;
}

lade_status ladei_device_private_pool_in_use(const ladei_device_heap *heap, const char *call, lade_device_pool_id id,
                                             ladei_device_private_pool **out) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(heap, id);
  if (pool == NULL || pool->use_count == 0)
    return ladei_device_pool_refused(call, id, pool == NULL ? "which is unknown" : "which is released",
                                     "a pool in use");
  *out = pool;
  return LADE_OK;
}

/* P7 */
lade_status ladei_device_tree_refuse(const lade_device_allocator *allocator, const char *call,
                                     const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  if (!pool->has_tree || atomic_load_explicit(&pool->tree_thread, memory_order_relaxed) == ladei_thread_number())
    return LADE_OK;
  return ladei_device_pool_error(allocator, LADE_ERR_BUSY, call, pool->id, "a graph tree has it to itself");
}

lade_status ladei_device_suspended_refuse(const lade_device_allocator *allocator, const char *call,
                                          const ladei_device_private_pool *pool) {
  if (pool->suspension == NULL) return LADE_OK;
  return ladei_device_pool_error(allocator, LADE_ERR_BUSY, call, pool->id,
                                 pool->suspension->phase == LADEI_DEVICE_AWAY ? "it is suspended"
                                                                              : "it is being suspended or resumed");
}

void ladei_device_private_pools_forget(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_private_pool **link = &allocator->heap.private_pools;
  while (*link != NULL) {
    ladei_device_private_pool *pool = *link;
    /* One that was released in its capture stays until the end of that: the capture names it. */
    bool named = atomic_load(&pool->capturing) || pool->visitors > 0 || pool->suspension != NULL;
    if (pool->use_count == 0 && pool->segment_count == 0 && !named) {
      *link = pool->next;
      ladei_device_heap_private_pool_drop(&allocator->heap);
      allocator->pools.lending -= (pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
      free(pool);
    } else {
      link = &pool->next;
    }
  }
}
