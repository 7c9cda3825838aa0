/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: memory for captures into graphs. A graph keeps the addresses of its capture, so what was allocated
 * during the capture must serve nothing else as long as the graph lives; inside the pool blocks are reused as usual.
 *
 *   begin (new: use_count 1) .. allocations of the streams named .. end      again, for another graph: begin .. end
 *   release, once per begin: use_count 0 -> a full flush gives back what is free; the pool goes with its last segment
 *
 * P1  use_count is begins less releases. A pool with use_count 0 is never begun again; under its id a new one is, when
 *     it is gone.
 * P2  A pool appears at most once among the captures under way, and then has use_count > 0 unless it was released
 *     during its capture. `capturing` says whether it does. As long as it does, the pool is there.
 * P3  When begin returns, no thread that gives memory back asks the streams that it names, and none will before the end.
 * Locks: the allocator's lock. No driver call, except resolving the streams named, before the lock.
 */
#include "device/native/private_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/native/give_back.h"
#include "device/native/native.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

ladei_device_private_pool *ladei_device_private_pool_find(const ladei_device_heap *heap, lade_device_pool_id id) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_private_pool *pool = heap->private_pools;
  while (pool != NULL && (pool->id.first != id.first || pool->id.second != id.second)) pool = pool->next;
  return pool;
}

static ladei_device_private_pool *pool_create(lade_device_pool_id id) {
  ladei_device_private_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL) return NULL;
  pool->id = id;
  pool->small_pool.is_small = true;
  pool->small_pool.private_pool = pool;
  pool->large_pool.private_pool = pool;
  return pool;
}

static ladei_device_route **route_find(lade_device_allocator *allocator, const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_route **link = &allocator->routes;
  while (*link != NULL && (*link)->pool != pool) link = &(*link)->next;
  return link;
}

/* The filter, with its streams resolved; no lock held. */
static lade_status route_create(lade_device_allocator *allocator, const lade_stream *streams, size_t count,
                                ladei_device_route **out) {
  ladei_lock_assert_none_held();
  size_t bytes;
  if (!ladei_size_mul(count, sizeof(uint64_t), &bytes) || !ladei_size_add(bytes, sizeof(ladei_device_route), &bytes))
    return ladei_error_argument("lade_device_pool_begin", "stream_count", "a count that fits into memory", "%zu",
                                count);
  ladei_device_route *capture = calloc(1, bytes);
  if (capture == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_pool_begin: no memory for %zu bytes", bytes);
  capture->stream_count = count;
  for (size_t i = 0; i < count; i++) {
    ladei_stream stream;
    lade_status status = allocator->runtime->ops->stream_resolve(allocator->runtime->self, streams[i], &stream);
    if (status != LADE_OK) {
      free(capture);
      return status;
    }
    capture->stream_keys[i] = ladei_device_stream_key(&stream);
  }
  *out = capture;
  return LADE_OK;
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
    if (*route_find(allocator, pool) != NULL) {
      return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, "lade_device_pool_begin", id,
                                     "a capture into it is under way");
    }
  } else {
    pool = pool_create(id);
    if (pool == NULL)
      return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, "lade_device_pool_begin", id, "no memory");
    ladei_device_private_pool **end = &heap->private_pools;
    while (*end != NULL) end = &(*end)->next;
    *end = pool;
  }
  pool->use_count++;
  *out = pool;
  return LADE_OK;
}

lade_status ladei_device_native_pool_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                           const lade_stream *streams, size_t stream_count) {
  ladei_device_route *capture = NULL;
  lade_status status = route_create(allocator, streams, stream_count, &capture);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  status = pool_enter(allocator, id, &capture->pool);
  if (status == LADE_OK) {
    ladei_device_route **end = &allocator->routes;
    while (*end != NULL) end = &(*end)->next;
    *end = capture;
    ladei_device_thread_caches_pause(allocator);
    atomic_fetch_add_explicit(&allocator->capture_count, 1, memory_order_relaxed);
    capture->pool->capture++;
    atomic_store(&capture->pool->capturing, true);
    if (stream_count > 0) ladei_device_await_idle(allocator); /* questions under way may be about these streams */
  }
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) free(capture);
  return status;
}

lade_status ladei_device_native_pool_end(lade_device_allocator *allocator, lade_device_pool_id id) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  ladei_device_route **link = pool == NULL ? NULL : route_find(allocator, pool);
  if (link == NULL || *link == NULL) {
    status = ladei_device_pool_refused("lade_device_pool_end", id, "which no capture is under way into",
                                       "a pool between its begin and its end");
  } else {
    ladei_device_route *capture = *link;
    *link = capture->next;
    free(capture);
    ladei_device_thread_caches_resume(allocator);
    atomic_fetch_sub_explicit(&allocator->capture_count, 1, memory_order_relaxed);
    atomic_store(&pool->capturing, false);
  }
  ladei_lock_release(&allocator->lock);
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
  } else {
    pool->use_count--;
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

/* ---- Live allocations -------------------------------------------------------------------------------------------- */

static int address_compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Whether the blocks handed out of the pool are exactly those at the addresses, which ascend. */
static bool pool_live_equals(const ladei_device_heap *heap, const ladei_device_private_pool *pool,
                             const uint64_t *addresses, size_t count) {
  ladei_device_heap_assert_locked(heap);
  size_t found = 0;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next) {
      if (block->state != LADEI_DEVICE_HEAP_ALLOCATED) continue;
      if (found == count || addresses[found] != block->address) return false;
      found++;
    }
  }
  return found == count;
}

/* Sorts, and drops what appears twice: the caller means a set. */
static size_t addresses_unique(uint64_t *addresses, size_t count) {
  size_t kept = 0;
  qsort(addresses, count, sizeof *addresses, address_compare);
  for (size_t i = 0; i < count; i++)
    if (kept == 0 || addresses[kept - 1] != addresses[i]) addresses[kept++] = addresses[i];
  return kept;
}

lade_status ladei_device_native_pool_live_equals(lade_device_allocator *allocator, lade_device_pool_id id,
                                                 void *const *pointers, size_t count, bool *out_equal) {
  uint64_t *addresses = calloc(count + 1, sizeof *addresses);
  if (addresses == NULL) {
    return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, "lade_device_pool_live_equals", id,
                                   "no memory");
  }
  for (size_t i = 0; i < count; i++) addresses[i] = (uint64_t)(uintptr_t)pointers[i];
  size_t unique = addresses_unique(addresses, count);
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  bool equal = pool != NULL && pool_live_equals(&allocator->heap, pool, addresses, unique);
  ladei_lock_release(&allocator->lock);
  free(addresses);
  if (pool == NULL)
    return ladei_device_pool_refused("lade_device_pool_live_equals", id, "which is unknown", "a pool that was begun");
  *out_equal = equal;
  return LADE_OK;
}
