/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: memory apart from the default pools. Two ways lead to one, and a pool may know both:
 *
 *   capture   begin .. allocations of the streams named .. end .. release     a graph keeps the addresses of its capture, so
 *                                                                             nothing else may use them while it lives
 *   object    create .. scopes (routes.c), retain .. release                  the program's own reasons
 *
 *   new: use_count 1 --begin, retain, scope: +1--> ... --release, end of a scope: -1--> 0: released
 *   released --full flush: what is free goes back--> gone with its last segment
 *
 * Inside a pool blocks are reused as usual. The rules of captures (uses.c, finish.c) hold while one is under way, and
 * of scopes there are none, except in the reference: events are polled, frees complete, the cache goes back as without
 * them.
 *
 * P1  use_count is creations, begins, retains and scopes begun, less releases and scopes ended. A pool with use_count 0
 *     is never used again; under its id a new one is, when it is gone.
 * P2  A pool appears at most once among the captures under way, and then has use_count > 0 unless it was released
 *     during its capture. `capturing` says whether it does. As long as it does, the pool is there.
 * P3  When begin returns, no thread that gives memory back asks the streams that it names, and none will before the
 *     end.
 * P4  Memory that graphs may use serves nothing else: a pool that was ever captured into (`capture` > 0) lends nothing
 *     (LADE_DEVICE_POOL_USE_ON_OOM), and gives back no oversize block for a request while it is in use. Not so in the
 *     reference: PyTorch's use_mem_pool begins a capture.
 * P5  Segments of a pool that splits nothing, or has a provider, are plain; in the reference, of one with a provider.
 * P6  `pools.lending` counts the pools with LADE_DEVICE_POOL_USE_ON_OOM.
 * P7  A pool that a graph tree has to itself is used by calls of the tree alone: the tree frees what it does not know,
 *     and its recordings touch what is free. The last use of it is the tree's.
 * Locks: the allocator's lock. No driver call, except resolving the streams named, before the lock.
 */
#include "device/native/private_pool.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/error.h"
#include "device/native/capture_reuse.h"
#include "device/native/give_back.h"
#include "device/native/native.h"
#include "device/native/pool_list.h"
#include "device/native/provider.h"
#include "device/native/routes.h"
#include "device/native/suspension.h"
#include "device/state/checks.h"

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static void flags_set(ladei_device_private_pool *pool, uint32_t flags) {
  pool->flags = flags;
  pool->small_pool.no_split = pool->large_pool.no_split = (flags & LADE_DEVICE_POOL_NO_SPLIT) != 0;
}

/* In no list yet. */
static ladei_device_private_pool *pool_create(lade_device_pool_id id, uint32_t flags) {
  ladei_device_private_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL) return NULL;
  pool->id = id;
  pool->small_pool.is_small = true;
  pool->small_pool.private_pool = pool;
  pool->large_pool.private_pool = pool;
  flags_set(pool, flags);
  return pool;
}

/* False: there is no memory, and it is in no list. */
static bool pool_add(lade_device_allocator *allocator, ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  if (!ladei_device_heap_private_pool_add(&allocator->heap, pool)) return false;
  LL_APPEND(allocator->heap.private_pools, pool);
  pool->use_count = 1;
  allocator->pools.lending += (pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
  return true;
}

/* One that no pool has. Lock held. */
static lade_device_pool_id id_choose(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  lade_device_pool_id id = {0, 0};
  do id.second = ++allocator->pools.named;
  while (ladei_device_private_pool_find(&allocator->heap, id) != NULL);
  return id;
}

static lade_status flags_check(const char *call, const char *name, uint32_t flags) {
  const uint32_t known = LADE_DEVICE_POOL_USE_ON_OOM | LADE_DEVICE_POOL_NO_SPLIT;
  if ((flags & ~known) == 0) return LADE_OK;
  return ladei_error_argument(call, name, "LADE_DEVICE_POOL_... flags only", "0x%x", (unsigned)flags);
}

static lade_status pool_missing(const char *call) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", call,
                     sizeof(ladei_device_private_pool));
}

lade_status ladei_device_native_pool_create(lade_device_allocator *allocator, const lade_device_pool_options *options,
                                            lade_device_pool_id *out_id) {
  static const char call[] = "lade_device_pool_create";
  lade_device_plugin provider = {0};
  lade_status status = flags_check(call, "options.flags", options->flags);
  if (status == LADE_OK && options->provider != NULL)
    status = ladei_device_provider_read(call, options->provider, &provider);
  if (status != LADE_OK) return status;
  ladei_device_private_pool *pool = pool_create(options->id, options->flags);
  if (pool == NULL) return pool_missing(call);
  pool->provider = provider;
  pool->small_pool.provided = pool->large_pool.provided = provider.alloc != NULL;
  ladei_lock_acquire(&allocator->lock);
  if (pool->id.first == 0 && pool->id.second == 0) pool->id = id_choose(allocator);
  if (ladei_device_private_pool_find(&allocator->heap, pool->id) != NULL)
    status = ladei_device_pool_refused(call, pool->id, "which a pool has", "an id of no pool, or (0, 0)");
  if (status == LADE_OK && !pool_add(allocator, pool)) status = pool_missing(call);
  if (status == LADE_OK) *out_id = pool->id;
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) free(pool);
  return status;
}

lade_status ladei_device_native_pool_retain(lade_device_allocator *allocator, lade_device_pool_id id) {
  ladei_device_private_pool *pool = NULL;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_private_pool_in_use(&allocator->heap, "lade_device_pool_retain", id, &pool);
  if (status == LADE_OK) pool->use_count++;
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status ladei_device_native_pool_flags_set(lade_device_allocator *allocator, lade_device_pool_id id,
                                               uint32_t flags) {
  static const char call[] = "lade_device_pool_flags_set";
  ladei_device_private_pool *pool = NULL;
  LADEI_TRY(flags_check(call, "flags", flags));
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_private_pool_in_use(&allocator->heap, call, id, &pool);
  if (status == LADE_OK) status = ladei_device_suspended_refuse(allocator, call, pool);
  if (status == LADE_OK && ((flags ^ pool->flags) & LADE_DEVICE_POOL_NO_SPLIT) != 0 && pool->segment_count > 0) /* P5 */
    status = ladei_device_pool_error(allocator, LADE_ERR_BUSY, call, id,
                                     "it has memory; expected LADE_DEVICE_POOL_NO_SPLIT as it is");
  if (status == LADE_OK) { /* P6 */
    allocator->pools.lending -= (pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
    allocator->pools.lending += (flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
    flags_set(pool, flags);
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status ladei_device_private_pool_hold(lade_device_allocator *allocator, const char *call, lade_device_pool_id id) {
  ladei_device_private_pool *pool = NULL;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_private_pool_in_use(&allocator->heap, call, id, &pool);
  if (status == LADE_OK && (pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0)
    status = ladei_device_pool_refused(call, id, "with LADE_DEVICE_POOL_USE_ON_OOM",
                                       "a pool that lends nothing: graphs keep its memory");
  if (status == LADE_OK) {
    pool->use_count++;
    if (pool->capture == 0) pool->capture = 1;
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

/* Adds the mapped memory of a segment of the pool. */
static void segment_sum(const ladei_device_heap *heap, const ladei_device_heap_segment *segment,
                        lade_device_pool_info *info) {
  ladei_device_heap_assert_locked(heap);
  for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
       block = block->next) {
    if (!block->mapped) continue;
    info->reserved_bytes += block->size;
    switch ((ladei_device_block_state)block->state) {
    case LADEI_DEVICE_HEAP_ALLOCATED:
    case LADEI_DEVICE_HEAP_THREAD: info->allocated_bytes += block->size; /* fall through */
    case LADEI_DEVICE_HEAP_PENDING:
    case LADEI_DEVICE_HEAP_DEFERRED: info->active_bytes += block->size; break;
    default: break;
    }
  }
}

lade_status ladei_device_native_pool_info_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                              lade_device_pool_info *info) {
  const ladei_device_heap *heap = &allocator->heap;
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(heap, id);
  if (pool != NULL) {
    info->use_count = pool->use_count;
    info->scope_count = pool->scope_count;
    info->segment_count = pool->segment_count;
    info->flags = pool->flags;
    info->capturing = atomic_load(&pool->capturing);
    if (pool->suspension != NULL) {
      info->suspended = 1;
      info->suspended_bytes = pool->suspension->bytes;
    }
    for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(heap); segment != NULL;
         segment = ladei_device_heap_counted_next(heap, segment))
      if (segment->pool->private_pool == pool) segment_sum(heap, segment, info);
  }
  ladei_lock_release(&allocator->lock);
  if (pool != NULL) return LADE_OK;
  return ladei_device_pool_refused("lade_device_pool_info_get", id, "which is unknown", "a pool that is there");
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static ladei_device_route *capture_find(lade_device_allocator *allocator, const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_route *route = allocator->routes.first;
  while (route != NULL && (route->kind != LADEI_DEVICE_ROUTE_CAPTURE || route->pool != pool)) route = route->next;
  return route;
}

/* With the lock: the pool to capture into, made if need be. */
static lade_status pool_enter(lade_device_allocator *allocator, lade_device_pool_id id,
                              ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_private_pool *pool = ladei_device_private_pool_find(heap, id);
  if (pool != NULL) {
    if (pool->use_count == 0)
      return ladei_device_pool_refused("lade_device_pool_begin", id, "which is released",
                                       "a pool in use, or a new one");
    if (capture_find(allocator, pool) != NULL) {
      return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, "lade_device_pool_begin", id,
                                     "a capture into it is under way");
    }
    if ((pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0 && !heap->settings.reference)
      return ladei_device_pool_refused("lade_device_pool_begin", id, "with LADE_DEVICE_POOL_USE_ON_OOM",
                                       "a pool that lends nothing: graphs keep its memory");
    LADEI_TRY(ladei_device_suspended_refuse(allocator, "lade_device_pool_begin", pool));
    LADEI_TRY(ladei_device_tree_refuse(allocator, "lade_device_pool_begin", pool));
    pool->use_count++;
  } else {
    pool = pool_create(id, 0);
    if (pool == NULL || !pool_add(allocator, pool)) {
      free(pool);
      return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, "lade_device_pool_begin", id, "no memory");
    }
  }
  *out = pool;
  return LADE_OK;
}

lade_status ladei_device_native_pool_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                           const lade_stream *streams, size_t stream_count) {
  ladei_device_route *route = NULL;
  lade_status status = ladei_device_route_create(allocator, "lade_device_pool_begin", LADEI_DEVICE_ROUTE_CAPTURE,
                                                 streams, stream_count, &route);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  if (stream_count > 0) status = ladei_device_provider_refuse(allocator, "lade_device_pool_begin"); /* it waits below */
  if (status == LADE_OK) status = pool_enter(allocator, id, &route->pool);
  if (status == LADE_OK) {
    ladei_device_route_add(allocator, route);
    route->pool->capture++;
    atomic_store(&route->pool->capturing, true);
    if (stream_count > 0) ladei_device_await_idle(allocator); /* questions under way may be about these streams */
  }
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) free(route);
  return status;
}

lade_status ladei_device_native_pool_end(lade_device_allocator *allocator, lade_device_pool_id id) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  ladei_device_route *route = pool == NULL ? NULL : capture_find(allocator, pool);
  if (route == NULL) {
    status = ladei_device_pool_refused("lade_device_pool_end", id, "which no capture is under way into",
                                       "a pool between its begin and its end");
  } else {
    ladei_device_route_remove(allocator, route);
    atomic_store(&pool->capturing, false);
    ladei_device_capture_walks_drop(pool);
  }
  ladei_lock_release(&allocator->lock);
  free(route);
  return status;
}

lade_status ladei_device_native_pool_release(lade_device_allocator *allocator, lade_device_pool_id id) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  if (pool == NULL || pool->use_count == 0) {
    status =
        ladei_device_pool_refused("lade_device_pool_release", id,
                                  pool == NULL ? "which is unknown" : "which is released already", "a pool in use");
  } else if (pool->use_count <= pool->scope_count + pool->has_tree) { /* P7, R1 in routes.c */
    status =
        ladei_device_pool_refused("lade_device_pool_release", id,
                                  pool->has_tree ? "whose last use is a graph tree's" : "whose uses are open scopes",
                                  "a pool with a use of the caller's");
  } else {
    pool->use_count--;
  }
  ladei_lock_release(&allocator->lock);
  return status;
}
