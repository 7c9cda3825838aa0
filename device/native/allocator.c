/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native backend: lade's own cache. Its calls, and the slow path of an allocation.
 *
 *   poll finished uses -> best fit -> poll again, closing batches -> reclaimers -> old cached segments (if asked for) ->
 *   new memory -> pools that lend -> oversize blocks back, new memory -> everything cached back, new memory ->
 *   pools that lend again, what is free in them back, new memory -> error
 *
 * Each step stops at the first block. Nothing is changed for the request itself before it has its block, so a step that
 * fails leaves only what it gave back or found finished.
 *
 * A1  A block is handed out, and taken back, under one hold of the lock; so its state is that of the pointer.
 * A2  A block that is handed out changes neither its record nor its address, so a call finds it without the lock
 *     (ladei_device_heap_peek). Where that fails, the search under the lock says why.
 * A3  The static probes device_alloc and device_free (docs/inspect.md) are passed in the order of the changes.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/native/native.h"

#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "base/static_probe.h"
#include "device/heap/recent.h"
#include "device/native/caching.h"
#include "device/native/capture_reuse.h"
#include "device/native/driver.h"
#include "device/native/expandable.h"
#include "device/native/finish.h"
#include "device/native/give_back.h"
#include "device/native/pool_list.h"
#include "device/native/provider.h"
#include "device/native/refused.h"
#include "device/native/routes.h"
#include "device/native/slow_path.h"
#include "device/native/suspend.h"
#include "device/native/uses.h"
#include "device/observe/callbacks.h"
#include "device/observe/oom.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static inline ladei_device_block_pool *pool_choose(lade_device_allocator *allocator, ladei_device_request *request) {
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_private_pool *chosen = NULL;
  if (allocator->routes.leading > 0) chosen = ladei_device_route_choose(allocator, request->stream_key);
  if (chosen != NULL) {
    chosen->served++;
    if (chosen == &allocator->caching.uncached) request->stream_key = LADEI_DEVICE_NO_STREAM_KEY; /* N1 in caching.c */
    return ladei_device_is_small(request->rounded) ? &chosen->small_pool : &chosen->large_pool;
  }
  return ladei_device_is_small(request->rounded) ? &heap->small_pool : &heap->large_pool;
}

/* ---- Giving the cache back --------------------------------------------------------------------------------------- */

/* Reservations of a released pool that never got memory: nothing else would find them. */
static void holes_mark(lade_device_allocator *allocator, const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  if (pool->segment_count == 0 || atomic_load(&allocator->expandable_count) == 0) return;
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment))
    if (segment->pool->private_pool == pool && ladei_device_heap_segment_expandable(segment)) segment->emptied = true;
}

static bool pool_stays(const ladei_device_private_pool *pool, bool closing) { return pool->use_count > 0 && !closing; }

/* Whether anything of the pools of a kind may go. Where all that is free in them are rests of plain segments, as
 * `inactive_split` says (I9 in heap.h), nothing has to be looked at: a program that is out of memory, and asks again
 * and again, has thousands of them. */
static bool pools_have_whole(const lade_device_allocator *allocator, bool small, bool closing) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  ladei_device_recent_settle(heap);
  uint64_t rests = heap->counters.moved[small][LADEI_DEVICE_INACTIVE_SPLIT].current;
  uint64_t blocks = (small ? &heap->small_pool : &heap->large_pool)->free.count;
  blocks += (small ? &allocator->caching.uncached.small_pool : &allocator->caching.uncached.large_pool)->free.count;
  for (const ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    const ladei_device_block_pool *own = small ? &pool->small_pool : &pool->large_pool;
    if (pool_stays(pool, closing))
      rests -= ladei_device_pool_rests(heap, own); /* it keeps what it has */
    else
      blocks += own->free.count;
  }
  return blocks > rests;
}

/* Of private pools, those in use too if `closing`; of kinds that have anything. */
static void private_pools_pick(lade_device_allocator *allocator, bool closing, bool small, bool large,
                               ladei_device_block_list *leaving) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  for (ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    if (pool_stays(pool, closing)) continue;
    ladei_device_suspension_abandon(allocator, pool);
    holes_mark(allocator, pool);
    if (small) ladei_device_pool_pick_all(heap, &pool->small_pool, leaving);
    if (large) ladei_device_pool_pick_all(heap, &pool->large_pool, leaving);
  }
}

/* `closing`: also of pools in use. */
static void pools_pick_all(lade_device_allocator *allocator, bool closing, ladei_device_block_list *leaving) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  bool large = pools_have_whole(allocator, false, closing), small = pools_have_whole(allocator, true, closing);
  if (large) ladei_device_pool_pick_all(heap, &heap->large_pool, leaving);
  if (small) ladei_device_pool_pick_all(heap, &heap->small_pool, leaving);
  if (small) ladei_device_pool_pick_all(heap, &allocator->caching.uncached.small_pool, leaving);
  if (large) ladei_device_pool_pick_all(heap, &allocator->caching.uncached.large_pool, leaving);
  private_pools_pick(allocator, closing, small, large, leaving);
}

/* Waits for all pending blocks that may be waited for. No lock held. */
static lade_status pending_wait(lade_device_allocator *allocator) {
  ladei_lock_assert_none_held();
  ladei_device_uses_settle_deferred(allocator);
  bool capturing = atomic_load(&allocator->routes.captures) > 0;
  lade_status status =
      capturing ? ladei_retire_synchronize_streams(allocator->retire) : ladei_retire_synchronize(allocator->retire);
  /* Left: freed by other threads meanwhile, or held by graphs or captures. */
  return status == LADE_NOT_READY || status == LADE_ERR_CAPTURE ? LADE_OK : status;
}

/* Everything cached goes back, or that of released pools alone, except what would break a capture: *out_kept bytes. Lock
 * held, released in between. */
static lade_status cached_give_back(lade_device_allocator *allocator, bool released_alone, uint64_t *out_kept) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_await_grants(allocator);
  (void)ladei_device_thread_caches_flush(allocator);
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  if (released_alone)
    private_pools_pick(allocator, false, true, true, &leaving);
  else
    pools_pick_all(allocator, false, &leaving);
  lade_status given = ladei_device_give_back(allocator, &leaving);
  *out_kept = leaving.kept_bytes;
  if (given == LADE_ERR_CAPTURE) given = LADE_OK;
  if (given == LADE_OK) given = ladei_device_expandable_retry(allocator);
  if (given == LADE_OK) given = ladei_device_give_back_emptied(allocator);
  ladei_device_private_pools_forget(allocator);
  return given;
}

/*
 * Waits for all pending blocks and gives everything cached back. Goes on after a failed wait: what is cached can go all
 * the same. Returns the first failure. Lock held, released in between.
 */
static lade_status cache_flush(lade_device_allocator *allocator, uint64_t *out_kept) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->heap.counters.sync_all_streams++;
  ladei_lock_release(&allocator->lock);
  lade_status waited = pending_wait(allocator);
  lade_error error;
  if (waited != LADE_OK) ladei_error_save(&error);
  ladei_lock_acquire(&allocator->lock);
  lade_status given = cached_give_back(allocator, false, out_kept);
  if (waited == LADE_OK) return given;
  ladei_error_restore(&error);
  return waited;
}

/* Old cached segments go when reserved memory exceeds the threshold's share of the limit. */
static void cache_collect(lade_device_allocator *allocator, ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  if (!heap->ages_tick) return;
  uint64_t limit = (uint64_t)(heap->settings.collection_threshold * (double)allocator->limits.fraction_bytes);
  uint64_t reserved = ladei_device_gauges_current(&heap->counters, LADEI_DEVICE_RESERVED_BYTES);
  if (reserved <= limit) return;
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  ladei_device_heap_pick_aged(heap, reserved - limit, &leaving);
  (void)ladei_device_give_back(allocator, &leaving); /* what is refused stays cached */
  request->kept_bytes += leaving.kept_bytes;
}

/* ---- Slow path --------------------------------------------------------------------------------------------------- */

/* Memory of a suspended pool neither serves nor grows: LADE_ERR_BUSY. */
static lade_status request_suspended(const lade_device_allocator *allocator, const ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *pool = request->pool->private_pool;
  return pool == NULL ? LADE_OK : ladei_device_suspended_refuse(allocator, "lade_device_alloc", pool);
}

static lade_status request_grow_once(lade_device_allocator *allocator, const ladei_device_request *request,
                                     ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_settings *settings = &allocator->heap.settings;
  LADEI_TRY(request_suspended(allocator, request));
  bool pool_may = request->pool->private_pool == NULL || settings->expandable_private_pools;
  bool plain = (request->pool->no_split && !settings->reference) || /* P5 in private_pool.c */
               request->pool->private_pool == &allocator->caching.uncached ||
               ladei_device_provider_of(allocator, request->pool) != NULL;
  if (settings->expandable_segments && pool_may && !plain)
    return ladei_device_expandable_alloc(allocator, request, out);
  return ladei_device_driver_segment_alloc(allocator, request, out);
}

/* New memory. Where it ran out while other threads gave some back, once more. */
static lade_status request_grow(lade_device_allocator *allocator, const ladei_device_request *request,
                                ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  for (;;) {
    uint64_t seen = allocator->returns.count;
    lade_status status = request_grow_once(allocator, request, out);
    if (!ladei_device_is_exhausted(status) || !ladei_device_await_returns(allocator, seen)) return status;
  }
}

/* Whether graphs may use what is free in the pool: they keep the addresses of their capture. (P4 in private_pool.c) */
static bool pool_has_graphs(const ladei_device_block_pool *pool) {
  return pool->private_pool != NULL && pool->private_pool->use_count > 0 && pool->private_pool->capture > 0;
}

static bool oversize_release(lade_device_allocator *allocator, ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  if (pool_has_graphs(request->pool) && !allocator->heap.settings.reference) return false;
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  bool enough =
      ladei_device_pool_pick_oversize(&allocator->heap, request->pool, request->stream_key, request->rounded, &leaving);
  lade_status status = ladei_device_give_back(allocator, &leaving);
  request->kept_bytes += leaving.kept_bytes;
  return enough && status == LADE_OK;
}

/* P4 in private_pool.c */
static bool pool_lends(const lade_device_allocator *allocator, const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  bool flagged = (pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
  return flagged && (pool->capture == 0 || allocator->heap.settings.reference);
}

/* A graph keeps the address, so a capture takes none. PyTorch's pools lend to the default pools alone. */
static bool request_may_borrow(const lade_device_allocator *allocator, const ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *pool = request->pool->private_pool;
  if (allocator->pools.lending == 0) return false;
  return pool == NULL || (!allocator->heap.settings.reference && !atomic_load(&pool->capturing));
}

/* A block of the request's stream in a pool that lends, which becomes the request's. */
static ladei_device_block *request_borrow(lade_device_allocator *allocator, ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  bool plain = heap->settings.reference;
  if (!request_may_borrow(allocator, request)) return NULL;
  for (ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) {
    if (!pool_lends(allocator, pool)) continue;
    ladei_device_block_pool *blocks = request->pool->is_small ? &pool->small_pool : &pool->large_pool;
    ladei_device_block *block = (plain ? ladei_device_pool_search_plain
                                       : ladei_device_pool_search)(heap, blocks, request->stream_key, request->rounded);
    if (block == NULL) continue;
    request->pool = blocks;
    request->lent = true;
    return block;
  }
  return NULL;
}

/* Gives back what is free in pools that lend. */
static lade_status lending_pools_flush(lade_device_allocator *allocator, ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  ladei_device_await_grants(allocator);
  for (ladei_device_private_pool *pool = allocator->heap.private_pools; pool != NULL; pool = pool->next) {
    if (!pool_lends(allocator, pool)) continue;
    ladei_device_pool_pick_all(&allocator->heap, &pool->small_pool, &leaving);
    ladei_device_pool_pick_all(&allocator->heap, &pool->large_pool, &leaving);
  }
  if (leaving.first == NULL) return LADE_NOT_READY;
  lade_status status = ladei_device_give_back(allocator, &leaving);
  request->kept_bytes += leaving.kept_bytes;
  return status == LADE_ERR_CAPTURE ? LADE_OK : status;
}

/* The last resort: pools that lend have more since the flush waited, and what is free in them goes back for the request.
 * PyTorch's are not asked again. */
static lade_status request_lend(lade_device_allocator *allocator, ladei_device_request *request, lade_status exhausted,
                                ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  lade_error refusal;
  ladei_error_save(&refusal);
  *out = request_borrow(allocator, request);
  if (*out != NULL) return LADE_OK;
  lade_status flushed = lending_pools_flush(allocator, request);
  if (flushed != LADE_OK && flushed != LADE_NOT_READY) ladei_error_save(&refusal);
  lade_status status = flushed == LADE_NOT_READY ? exhausted : request_grow(allocator, request, out);
  if (ladei_device_is_exhausted(status) && flushed != LADE_OK) ladei_error_restore(&refusal); /* the deeper cause */
  return status;
}

/* Whether growing is refused by an estimate: the segment that the request would need is held against the limit. */
static lade_status request_estimate(lade_device_allocator *allocator, const ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_settings *settings = &allocator->heap.settings;
  if (!settings->refuse_beyond_limit) return LADE_OK;
  uint64_t limit = ladei_device_fraction_limit(allocator);
  if (limit == UINT64_MAX) limit = allocator->total_bytes;
  uint64_t needed = settings->expandable_segments ? request->rounded : request->segment_bytes;
  uint64_t reserved = ladei_device_gauges_current(&allocator->heap.counters, LADEI_DEVICE_RESERVED_BYTES) +
                      allocator->limits.growing_bytes + allocator->limits.held_bytes;
  if (reserved + needed <= limit) return LADE_OK;
  allocator->heap.counters.oom_rejections++;
  return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0,
                     "refused by LADE_DEVICE_REFUSE_BEYOND_LIMIT: %llu bytes are reserved, %llu more would exceed %llu",
                     (unsigned long long)reserved, (unsigned long long)needed, (unsigned long long)limit);
}

static lade_status request_slow_path(lade_device_allocator *allocator, ladei_device_request *request,
                                     ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  request->kept_bytes = 0;
  cache_collect(allocator, request);
  lade_status status = request_grow(allocator, request, out);
  if (ladei_device_is_exhausted(status) && (*out = request_borrow(allocator, request)) != NULL) return LADE_OK;
  if (ladei_device_is_exhausted(status) && oversize_release(allocator, request))
    status = request_grow(allocator, request, out);
  if (ladei_device_is_exhausted(status) && !ladei_device_reference_captures(allocator)) {
    lade_error refusal;
    uint64_t kept = 0;
    lade_status flushed = cache_flush(allocator, &kept);
    request->kept_bytes += kept;
    if (flushed == LADE_ERR_DEVICE_LOST) return flushed;
    if (flushed != LADE_OK) ladei_error_save(&refusal);
    allocator->heap.counters.alloc_retries++;
    ladei_log_later(LADE_LOG_DEBUG, "device allocator %p: %zu bytes: no memory, the cache was given back",
                    (void *)allocator, request->requested);
    status = request_grow(allocator, request, out);
    if (ladei_device_is_exhausted(status) && flushed != LADE_OK) ladei_error_restore(&refusal); /* the deeper cause */
  }
  if (ladei_device_is_exhausted(status) && allocator->pools.lending > 0 && !allocator->heap.settings.reference)
    status = request_lend(allocator, request, status, out);
  return status;
}

/* Again, alone, after other threads moved memory meanwhile. */
static lade_status request_slow_path_alone(lade_device_allocator *allocator, ladei_device_request *request,
                                           ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_slow_path_begin_alone(allocator);
  (void)ladei_device_thread_caches_flush(allocator);
  *out = ladei_device_pool_search(&allocator->heap, request->pool, request->stream_key, request->rounded);
  lade_status status = *out != NULL ? LADE_OK : request_slow_path(allocator, request, out);
  ladei_device_slow_path_end_alone(allocator);
  return status;
}

/* Everything below the cache, unless an estimate refuses it. Steps that failed on the way to success leave no trace in
 * the thread's error record. */
static lade_status request_acquire(lade_device_allocator *allocator, ladei_device_request *request,
                                   ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  lade_error before;
  ladei_error_save(&before);
  ladei_device_slow_path entry;
  LADEI_TRY(request_estimate(allocator, request));
  ladei_device_slow_path_begin(allocator, &entry);
  lade_status status = request_slow_path(allocator, request, out);
  bool beside = ladei_device_slow_path_end(allocator, &entry);
  if (beside && ladei_device_is_exhausted(status)) status = request_slow_path_alone(allocator, request, out);
  if (status == LADE_OK) ladei_error_restore(&before);
  return status;
}

/* After a miss: closes the open batches of events and, where that finished any, looks again; then takes what threads
 * have ready; then asks the program's reclaimers and, if they freed anything, looks a last time; then grows or gives
 * back. */
static lade_status request_seek(lade_device_allocator *allocator, ladei_device_request *request,
                                ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  bool uncached = ladei_device_uncached_any(allocator);
  ladei_lock_release(&allocator->lock);
  uint64_t done = 0;
  lade_status status = ladei_device_uses_process(allocator, LADEI_POLL_CLOSE, &done);
  if (uncached) ladei_device_uncached_give_back(allocator);
  ladei_lock_acquire(&allocator->lock);
  if (status != LADE_OK) return status;
  if (done > 0) *out = ladei_device_pool_search(heap, request->pool, request->stream_key, request->rounded);
  if (*out == NULL && ladei_device_thread_caches_flush(allocator) > 0)
    *out = ladei_device_pool_search(heap, request->pool, request->stream_key, request->rounded);
  if (*out == NULL && ladei_device_callbacks_reclaim(allocator)) {
    (void)ladei_device_thread_caches_flush(allocator); /* a reclaimer's frees, too, may be in a cache */
    *out = ladei_device_pool_search(heap, request->pool, request->stream_key, request->rounded);
  }
  return *out != NULL ? LADE_OK : request_acquire(allocator, request, out);
}

/* The same for a request that holds its pool. */
static lade_status request_miss(lade_device_allocator *allocator, ladei_device_request *request,
                                ladei_device_block **out) {
  ladei_device_private_pool *visited = request->pool->private_pool;
  lade_status status = ladei_device_provider_refuse(allocator, "lade_device_alloc");
  if (status == LADE_OK) status = request_suspended(allocator, request);
  if (status != LADE_OK) return status;
  int cancellation = ladei_cancellation_hold();
  bool uncached = visited == &allocator->caching.uncached;
  request->segment_bytes =
      uncached ? request->rounded : ladei_device_heap_segment_bytes(&allocator->heap.settings, request->rounded);
  if (visited != NULL) visited->visitors++;
  status = request_seek(allocator, request, out);
  if (visited != NULL) visited->visitors--;
  if (ladei_device_is_exhausted(status)) allocator->heap.counters.ooms++;
  if (status != LADE_OK && visited != NULL) request->pool_id = visited->id;
  ladei_cancellation_resume(cancellation);
  return status;
}

static lade_status records_missing(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for the record of a block");
}

/* Whether a block is cut for the request. In PyTorch's allocator memory of providers, and what is lent, is so as in plain
 * segments. */
static inline bool request_splits(const ladei_device_settings *settings, const ladei_device_request *request,
                                  size_t remaining, bool found) {
  const ladei_device_block_pool *pool = request->pool;
  if (pool->no_split) return false;
  if (settings->reference && (pool->provided || (!found && request->lent)))
    return ladei_device_split_plain(settings, pool->is_small, request->rounded, remaining);
  return ladei_device_split_wanted(settings, pool->is_small, request->rounded, remaining);
}

/* Hands the block out, or the part of it that is wanted. `found`: by a search, just now. False: there is no memory for
 * a record, and the block is cached. */
static inline __attribute__((always_inline)) bool block_serve(ladei_device_heap *heap,
                                                              const ladei_device_request *request,
                                                              ladei_device_block *block, bool found, void **out) {
  size_t remaining = block->size - request->rounded;
  bool split = request_splits(&heap->settings, request, remaining, found);
  if (split && !ladei_device_heap_reserve(heap, 1)) {
    if (block->state == LADEI_DEVICE_HEAP_BUSY) ladei_device_block_insert(heap, block);
    return false;
  }
  block = ladei_device_block_hand_out(heap, block, request->rounded, request->requested, split);
  if (found) ladei_device_recent_note(heap, block, request->rounded);
  *out = (void *)(uintptr_t)block->address;
  return true;
}

/* Serves the request from the cache. False: nothing there fits, request->found is false; or there is no memory for a
 * record. Inlined by force, as all of the way of a hot allocation. */
static inline __attribute__((always_inline)) bool request_hit(lade_device_allocator *allocator,
                                                              ladei_device_request *request, void **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  request->rounded = ladei_device_round_request(&heap->settings, request->requested);
  request->pool = pool_choose(allocator, request);
  ladei_device_recent *recent = ladei_device_recent_find(heap, request->pool, request->stream_key, request->rounded);
  if (recent != NULL) {
    *out = (void *)(uintptr_t)ladei_device_recent_hand_out(heap, recent, request->requested)->address;
    return true;
  }
  ladei_device_block *block = ladei_device_pool_search(heap, request->pool, request->stream_key, request->rounded);
  request->found = block != NULL;
  return block != NULL && block_serve(heap, request, block, true, out);
}

/* Apart, so that a hit pays nothing for it. */
static lade_status request_serve_missed(lade_device_allocator *allocator, ladei_device_request *request, void **out) {
  ladei_device_block *block = NULL;
  LADEI_TRY(request_miss(allocator, request, &block));
  return block_serve(&allocator->heap, request, block, false, out) ? LADE_OK : records_missing();
}

static __attribute__((noinline)) lade_status request_missed(lade_device_allocator *allocator,
                                                            ladei_device_request *request, void **out) {
  request->pool_id = (lade_device_pool_id){0, 0};
  request->kept_bytes = 0;
  request->lent = false;
  if (request->found) return records_missing();
  ladei_log_later(LADE_LOG_DEBUG, "device allocator %p: %zu bytes: no block cached", (void *)allocator,
                  request->requested);
  lade_status status = request_serve_missed(allocator, request, out);
  if (atomic_load_explicit(&ladei_log_waiting_count, memory_order_relaxed) == 0) return status;
  ladei_lock_release(&allocator->lock); /* all that the call needs the lock for is done */
  ladei_log_flush();
  ladei_lock_acquire(&allocator->lock);
  return status;
}

/* Serves the request under the lock. */
static inline lade_status request_serve(lade_device_allocator *allocator, ladei_device_request *request, void **out) {
  return request_hit(allocator, request, out) ? LADE_OK : request_missed(allocator, request, out);
}

static lade_status stream_resolve(lade_device_allocator *allocator, lade_stream stream, ladei_stream *out) {
  ladei_lock_assert_none_held();
  return allocator->runtime->ops->stream_resolve(allocator->runtime->self, stream, out);
}

static lade_status request_prepare(lade_device_allocator *allocator, ladei_device_request *request,
                                   lade_stream stream) {
  LADEI_TRY(ladei_device_stream_resolve(allocator, stream, &request->stream));
  request->stream_key = ladei_device_stream_key(&request->stream);
  return LADE_OK;
}

lade_status ladei_device_native_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  ladei_device_request request;
  request.requested = bytes;
  lade_status status = request_prepare(allocator, &request, stream);
  if (status == LADE_OK && ladei_device_uses_waiting(allocator)) {
    uint64_t done;
    ladei_device_capture_reuse(allocator, &request.stream);
    status = ladei_device_uses_process(allocator, 0, &done);
  }
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  status = request_serve(allocator, &request, out);
  if (status == LADE_OK) LADEI_PROBE4(device_alloc, *out, allocator->device, bytes, request.stream.id);
  ladei_lock_release(&allocator->lock);
  return ladei_device_is_exhausted(status) ? ladei_device_report_exhausted(allocator, &request, status) : status;
}

/* The cache as it is: a look at the uses that freed blocks wait for would be calls of the driver. A search that misses
 * is followed by another one for the same request, so there is none where searches are counted. */
lade_status ladei_device_native_alloc_ready(lade_device_allocator *allocator, size_t bytes, lade_stream stream,
                                            void **out) {
  ladei_device_request request;
  request.requested = bytes;
  if (ladei_device_uses_waiting(allocator)) return LADE_NOT_READY;
  LADEI_TRY(request_prepare(allocator, &request, stream));
  ladei_lock_acquire(&allocator->lock);
  bool counted = allocator->heap.ages_tick || allocator->routes.leading > 0;
  bool hit = !counted && request_hit(allocator, &request, out);
  if (hit) LADEI_PROBE4(device_alloc, *out, allocator->device, bytes, request.stream.id);
  ladei_lock_release(&allocator->lock);
  return hit ? LADE_OK : LADE_NOT_READY;
}

/* ---- Free, record ------------------------------------------------------------------------------------------------ */

/* Takes a block back. Returns it if it is still to be handed to ladei_device_uses_add, without the lock. Inlined by
 * force, or a second caller costs each free 18 instructions. */
static inline __attribute__((always_inline)) ladei_device_block *block_free(lade_device_allocator *allocator,
                                                                            ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_free_begin(&allocator->heap, block);
  if (!ladei_retire_ticket_noted(&block->ticket)) {
    ladei_device_recent_free_complete(&allocator->heap, block);
    return NULL;
  }
  if (ladei_device_uses_deferrable(allocator, block)) {
    ladei_device_block_free_wait(&allocator->heap, block, LADEI_DEVICE_HEAP_DEFERRED);
    ladei_device_block_list_append(&allocator->deferred.list, block);
    atomic_fetch_add_explicit(&allocator->deferred.count, 1, memory_order_relaxed);
    block->markers = NULL;
    block->marking = allocator->heap.settings.capture_reuse;
    return block->marking ? block : NULL;
  }
  ladei_device_block_free_wait(&allocator->heap, block, LADEI_DEVICE_HEAP_PENDING);
  return block;
}

/* Memory that is not cached goes back where it is free. Lock held, released in between. */
static __attribute__((noinline)) void uncached_leave(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_lock_release(&allocator->lock);
  ladei_device_uncached_give_back(allocator);
  ladei_log_flush();
  ladei_lock_acquire(&allocator->lock);
}

lade_status ladei_device_native_free(lade_device_allocator *allocator, void *pointer) {
  ladei_device_block *block = NULL;
  ladei_lock_acquire(&allocator->lock);
  block = ladei_device_block_map_get(&allocator->heap.starts, (uint64_t)(uintptr_t)pointer);
  lade_status status = LADE_OK;
  if (block == NULL || block->state != LADEI_DEVICE_HEAP_ALLOCATED)
    status =
        ladei_device_block_lookup(allocator, pointer, true, "lade_device_free", &block); /* what is wrong with it */
  if (status == LADE_OK) {
    LADEI_PROBE1(device_free, pointer);
    block = block_free(allocator, block);
  }
  if (__builtin_expect(ladei_device_uncached_any(allocator), false)) uncached_leave(allocator);
  ladei_lock_release(&allocator->lock);
  if (status == LADE_OK && block != NULL) {
    ladei_device_uses_add(allocator, block);
    ladei_log_flush();
  }
  return status;
}

void ladei_device_native_free_found(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  LADEI_PROBE1(device_free, (void *)(uintptr_t)block->address);
  block = block_free(allocator, block);
  if (__builtin_expect(ladei_device_uncached_any(allocator), false)) uncached_leave(allocator);
  ladei_lock_release(&allocator->lock);
  if (block != NULL) ladei_device_uses_add(allocator, block);
}

/* ---- Record ------------------------------------------------------------------------------------------------------ */

lade_status ladei_device_native_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream) {
  ladei_stream use;
  lade_status status = stream_resolve(allocator, stream, &use);
  if (status != LADE_OK) return status;
  ladei_device_block *block = ladei_device_heap_peek(&allocator->heap, (uint64_t)(uintptr_t)pointer);
  if (block == NULL) {
    ladei_lock_acquire(&allocator->lock);
    status = ladei_device_block_lookup(allocator, pointer, false, "lade_device_record_stream", &block);
    ladei_lock_release(&allocator->lock);
    if (status != LADE_OK) return status;
  }
  const ladei_stream *own = &block->segment->stream;
  if (own->context == use.context && own->id == use.id) return LADE_OK;
  unsigned flags = ladei_device_uses_flags(allocator, block, &use);
  /* A free of the same block by another thread from here on is a mistake of the program: the use may then count for the
   * block's next tenant, which does no harm. */
  return ladei_retire_note_resolved(allocator->retire, &block->ticket, &use, flags);
}

/* ---- Cache, streams ---------------------------------------------------------------------------------------------- */

static lade_status capture_refusal(const lade_device_allocator *allocator, const char *call) {
  return ladei_error(LADE_ERR_CAPTURE, 0, "%s: a capture into a private pool of device %d is under way", call,
                     allocator->device);
}

static lade_status cache_flush_slow_path(lade_device_allocator *allocator, bool released_alone) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_slow_path entry;
  LADEI_TRY(ladei_device_provider_refuse(allocator, "lade_device_empty_cache"));
  ladei_device_slow_path_begin(allocator, &entry);
  uint64_t kept = 0; /* counted in stats.capture_kept */
  lade_status status = released_alone ? cached_give_back(allocator, true, &kept) : cache_flush(allocator, &kept);
  (void)ladei_device_slow_path_end(allocator, &entry);
  return status;
}

/* Device memory alone. PyTorch's allocator waits for nothing during captures, and gives back what released pools have; older versions
 * fail. */
static lade_status cache_empty(lade_device_allocator *allocator) {
  lade_status status = LADE_OK;
  lade_error before;
  ladei_error_save(&before);
  ladei_lock_acquire(&allocator->lock);
  bool whole = !ladei_device_reference_captures(allocator),
       refused = !whole && allocator->heap.settings.older_reference;
  if (!refused) status = cache_flush_slow_path(allocator, !whole);
  ladei_lock_release(&allocator->lock);
  if (refused) return capture_refusal(allocator, "lade_device_empty_cache");
  ladei_device_suspensions_drop(allocator);
  if (status == LADE_OK) ladei_error_restore(&before); /* what captures kept is no failure */
  return status;
}

lade_status ladei_device_native_empty_cache(lade_device_allocator *allocator) {
  lade_status status = cache_empty(allocator), backup = ladei_device_backup_empty(allocator);
  return status != LADE_OK ? status : backup;
}

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

lade_status ladei_device_native_pool_resume(lade_device_allocator *allocator, lade_device_pool_id id) {
  lade_error before;
  ladei_error_save(&before);
  ladei_device_suspensions_drop(allocator);
  lade_status status = ladei_device_pool_resume_once(allocator, id);
  if (!ladei_device_is_exhausted(status)) return status;
  LADEI_ASIDE((void)cache_empty(allocator)); /* once more without what is cached */
  status = ladei_device_pool_resume_once(allocator, id);
  if (status == LADE_OK) ladei_error_restore(&before);
  return status;
}

/* ---- Streams that go --------------------------------------------------------------------------------------------- */

static bool stream_is_of(const ladei_device_heap_segment *segment, const ladei_stream *stream) {
  return segment->last == NULL && segment->stream.context == stream->context && segment->stream.id == stream->id;
}

static bool stream_has_segments(lade_device_allocator *allocator, const ladei_stream *stream) {
  bool found = false;
  ladei_lock_acquire(&allocator->lock);
  for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(&allocator->heap);
       segment != NULL && !found; segment = ladei_device_heap_counted_next(&allocator->heap, segment))
    found = stream_is_of(segment, stream);
  ladei_lock_release(&allocator->lock);
  return found;
}

/* Lets the stream's segments refer to its last event; false: there are none any more. */
static bool segments_retire(lade_device_allocator *allocator, const ladei_stream *stream,
                            ladei_device_last_event *last) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_await_idle(allocator); /* calls under way may name the stream */
  for (ladei_device_heap_segment *segment = ladei_device_heap_counted_first(&allocator->heap); segment != NULL;
       segment = ladei_device_heap_counted_next(&allocator->heap, segment)) {
    if (!stream_is_of(segment, stream)) continue;
    segment->last = last;
    last->segments++;
  }
  (void)ladei_device_thread_caches_flush(allocator);
  bool any = last->segments > 0;
  ladei_lock_release(&allocator->lock);
  return any;
}

lade_status ladei_device_native_stream_retire(lade_device_allocator *allocator, lade_stream stream) {
  ladei_stream resolved;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_provider_refuse(allocator, "lade_device_stream_retire");
  ladei_lock_release(&allocator->lock);
  if (status == LADE_OK) status = stream_resolve(allocator, stream, &resolved);
  if (status == LADE_OK) status = ladei_retire_stream_retire(allocator->retire, stream);
  if (status != LADE_OK || resolved.kind != LADEI_STREAM_ORDINARY) return status;
  ladei_device_last_events_drop(allocator);
  if (!stream_has_segments(allocator, &resolved)) return LADE_OK;
  ladei_device_last_event *last = NULL;
  status = ladei_device_last_event_make(allocator, &resolved, &last);
  if (status == LADE_OK && !segments_retire(allocator, &resolved, last))
    ladei_device_last_event_destroy(allocator, last);
  return status;
}

/* ---- Open, close ------------------------------------------------------------------------------------------------- */

lade_status ladei_device_native_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup) {
  ladei_retire_options retire = {
      .owner = allocator,
      .done = ladei_device_uses_done,
      .event_batch = setup->options->event_batch,
      .events_only = setup->events_only,
      .order = ladei_device_uses_order,
  };
  ladei_device_uncached_init(allocator);
  return ladei_retire_create(allocator->runtime, &retire, &allocator->retire);
}

static lade_status pending_finish(lade_device_allocator *allocator, bool wait) {
  ladei_device_uses_settle_deferred(allocator);
  lade_status status =
      wait ? ladei_retire_synchronize(allocator->retire) : ladei_retire_poll(allocator->retire, LADEI_POLL_CLOSE, NULL);
  /* A lost device has given its blocks back: they are freed like others. */
  if (ladei_device_active_count(allocator) == 0) return LADE_OK;
  return status != LADE_OK && status != LADE_NOT_READY ? status : ladei_device_check_active(allocator);
}

/* Gives everything back: what a flush leaves are reservations that never were mapped. Lock held. */
static lade_status memory_release(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_block_list leaving;
  ladei_device_block_list_init(&leaving);
  pools_pick_all(allocator, true, &leaving);
  lade_status status = ladei_device_give_back(allocator, &leaving);
  for (ladei_device_heap_segment *segment;
       status == LADE_OK && (segment = ladei_device_heap_segment_first(heap)) != NULL;) {
    ladei_device_block_remove(ladei_device_heap_segment_block(heap, segment));
    status = ladei_device_expandable_release(allocator, segment);
  }
  if (status != LADE_OK) return status; /* the allocator lives on, and pools in use with it */
  for (ladei_device_private_pool *pool = heap->private_pools; pool != NULL; pool = pool->next) pool->use_count = 0;
  ladei_device_private_pools_forget(allocator);
  return LADE_OK;
}

lade_status ladei_device_native_close(lade_device_allocator *allocator, bool wait) {
  lade_status status = pending_finish(allocator, wait);
  if (status == LADE_OK) status = ladei_device_refused_offer(allocator);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  status = memory_release(allocator);
  ladei_lock_release(&allocator->lock);
  ladei_device_last_events_drop(allocator);
  ladei_device_suspensions_drop(allocator);
  if (status == LADE_OK && allocator->heap.spent_events != NULL) /* F1 in finish.c */
    status = ladei_error(LADE_ERR_DRIVER, 0,
                         "lade_device_allocator_destroy: device %d: event_destroy: the driver kept an event",
                         allocator->device);
  if (status == LADE_OK) status = ladei_device_backup_close(allocator);
  return status == LADE_OK ? ladei_retire_destroy(allocator->retire, wait) : status;
}
