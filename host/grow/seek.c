/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeking a block: in the pool's memory, in new memory, at the cap.
 *
 *   seek:  node's cache -> look at pending blocks -> empty all magazines, depots and bins, node's cache again -> grow
 *   grow:  under the cap    a segment, smaller where that is all the cap or the system leaves
 *          at the cap       split a segment that was kept whole; or give free segments back and grow; or stop transits
 *                           (cap_wait.h) and look again, also for blocks of other sizes than the class has; or wait
 *                           for a block to come back, if the pool waits and blocks are in use, pending or in caches
 *                           that only their owners can empty; or LADE_ERR_LIMIT
 *          beyond the       the same; the other pools of the budget are asked to give back, and the wait is for
 *          budget           them, too
 *          refused          give all free segments back and try once more; or stop transits and look again;
 *                           or LADE_ERR_OUT_OF_PINNED_MEMORY
 *
 * Note [What a refusal means]
 *   LADE_ERR_LIMIT for a request says that at some moment of the call the bytes in use or pending exceeded the cap less
 *   the request, or those held by all pools of the budget exceeded the budget less the request, when it was charged; or
 *   that the free memory lay in pieces shorter than the request (of a page to 1 MiB: than a block of its class), in
 *   segments other parts of which were in use or pending, or on other nodes if the pool is strict. Blocks that other
 *   threads keep ready, that are between two lists, or that another thread's poll has found done, and segments being
 *   pinned for another request or unpinned: all of these are collected or waited for first. The wait is for driver
 *   calls that are under way, and not for streams. Three cases are left: blocks kept ready by threads that cannot be
 *   fenced (base/asym_lock.h) and make no call; a stream in quarantine that another thread waits for, which no other
 *   thread can ask; and 32 looks in a row, after each of which blocks came back and others took them.
 *
 * Locks: none here; those of the parts that are called.
 */
#include "host/grow/seek.h"

#include "host/grow/give_back.h"
#include "host/grow/grow.h"
#include "host/state/call.h"
#include "host/state/nodes.h"
#include "host/state/thread_caches.h"
#include "host/state/usage.h"

/* ---- In the pool's memory ---------------------------------------------------------------------------------------- */

/* A list from the depot, of which no more is kept than the thread has room for. */
static ladei_pinned_block *depot_take(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  ladei_pinned_block *list = ladei_pinned_depot_take(request->node->depot, request->class_index);
  ladei_pinned_block *last = list;
  for (unsigned kept = 1; last != NULL && kept < request->count; kept++) last = ladei_pinned_block_next(last);
  if (last == NULL || ladei_pinned_block_next(last) == NULL) return list;
  ladei_pinned_block *rest = ladei_pinned_block_next(last);
  ladei_pinned_block_next_set(last, NULL);
  ladei_pinned_pool_share(pool, rest);
  return list;
}

/* Ready for all threads, or in free memory. More than one block are in transit until the caller has put the rest
 * away. */
static ladei_pinned_block *cache_take(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  bool shared = request->counters != NULL && request->class_index < LADEI_PINNED_MAGAZINE_CLASSES &&
                request->node->depot->slot_counts[request->class_index] > 0;
  bool lists = request->count > 1 || (shared && ladei_pinned_batch(request->bytes) > 1);
  bool several = lists && !ladei_pinned_cap_has_waiters(&pool->cap_wait) && /* they would come back at once */
                 ladei_pinned_transit_try_begin(ladei_pinned_pool_transit(pool, request->cache));
  ladei_pinned_block *list = shared && several == lists ? depot_take(pool, request) : NULL;
  if (list == NULL)
    list = ladei_pinned_node_take(request->node, ladei_pinned_request_stripe(request), request->bytes, request->exact,
                                  several ? request->count : 1);
  if (several && (list == NULL || ladei_pinned_block_next(list) == NULL))
    ladei_pinned_transit_end(ladei_pinned_pool_transit(pool, request->cache));
  return list;
}

/* Finished pending blocks go back to the cache. A stream that fails leaves its blocks pending, and this call alone. */
lade_status ladei_pinned_pool_poll(lade_pinned_pool *pool, unsigned flags, uint64_t *out_done) {
  lade_status status = ladei_retire_shards_poll(pool->retire, flags, out_done);
  pool->policy->polled(pool);
  return status;
}

lade_status ladei_pinned_pool_synchronize(lade_pinned_pool *pool) {
  lade_status status = ladei_retire_shards_synchronize(pool->retire);
  pool->policy->polled(pool);
  return status;
}

static lade_status reclaim(lade_pinned_pool *pool) {
  lade_error saved;
  ladei_error_save(&saved);
  lade_status status = ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, NULL);
  if (status == LADE_ERR_DEVICE_LOST) return status;
  ladei_error_restore(&saved);
  return LADE_OK;
}

/* ---- At the cap -------------------------------------------------------------------------------------------------- */

/* A block of one node for a request. */
typedef ladei_pinned_block *node_taker(ladei_pinned_node *node, const ladei_pinned_request *request);

static ladei_pinned_block *usual_take(ladei_pinned_node *node, const ladei_pinned_request *request) {
  return ladei_pinned_node_take(node, ladei_pinned_request_stripe(request), request->bytes, request->exact, 1);
}

/* A block of another size than those of the request's class: above 1 MiB, where blocks of a class need not be alike,
 * one just as long as the request; for a small request a page. */
static ladei_pinned_block *odd_take(ladei_pinned_node *node, const ladei_pinned_request *request) {
  if (request->class_index < LADEI_PINNED_SMALL_CLASSES)
    return ladei_pinned_node_take(node, ladei_pinned_request_stripe(request), LADEI_PINNED_PAGE_BYTES, false, 1);
  return request->class_index < LADEI_PINNED_MAGAZINE_CLASSES ? NULL
                                                              : ladei_pinned_node_take_just(node, request->bytes);
}

/* Memory of other nodes is better than none, unless the pool is strict. */
static ladei_pinned_block *other_node_take(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                           node_taker *take) {
  ladei_switch_point("other nodes", 0);
  for (uint32_t i = 0; !pool->sources.strict && i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_node *node = ladei_pinned_pool_node(pool, i);
    ladei_pinned_block *block = node == request->node ? NULL : take(node, request);
    if (block != NULL) {
      ladei_pinned_count(&pool->counters.other_node_takes, 1);
      return block;
    }
  }
  return NULL;
}

/* Quarantined uses are named: lade_pinned_empty_cache() may help where waiting for events does not. */
static lade_status no_room(lade_pinned_pool *pool, size_t bytes, const lade_error *refusal) {
  ladei_retire_counters uses;
  if (ladei_pinned_budget_is_short(&pool->budget)) { /* its own words */
    ladei_error_restore(refusal);
    return LADE_ERR_LIMIT;
  }

  ladei_pinned_usage usage;
  ladei_retire_shards_counters_get(pool->retire, &uses);
  ladei_pinned_usage_read(pool, &usage);
  unsigned long long reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  unsigned long long in_use = usage.bytes_allocated - usage.bytes_freed;
  unsigned long long pending = ladei_pinned_pending_read(pool).bytes;
  const char *reason = bytes > pool->settings.max_bytes ? "; the cap is less than the request"
                       : reserved > in_use + pending    ? "; the rest lies free in shorter pieces"
                                                        : "";
  return ladei_error(
      LADE_ERR_LIMIT, 0,
      "pinned pool: no room for %zu bytes under the cap of %llu: %llu reserved, %llu of them in use, %llu "
      "pending, with %llu uses in quarantine%s",
      bytes, (unsigned long long)pool->settings.max_bytes, reserved, in_use, pending,
      (unsigned long long)uses.quarantined_uses, reason);
}

/* In the node's cache, or in a segment that was kept whole. */
static ladei_pinned_block *node_take_any(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  ladei_pinned_block *block = cache_take(pool, request);
  return block != NULL || request->exact ? block : ladei_pinned_node_take_from_whole(request->node, request->bytes);
}

static bool cap_leaves(lade_pinned_pool *pool, uint64_t bytes) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  return reserved <= pool->settings.max_bytes && bytes <= pool->settings.max_bytes - reserved &&
         ladei_pinned_budget_leaves(&pool->budget, bytes);
}

enum { LOOKS = 32 }; /* where others bring back and take all the time, the search has to end */

/* Once in each place. True: a block was found, or a reason to look again: a segment to be given back, or, if new memory
 * is not refused, room under the cap. */
static bool look_once(lade_pinned_pool *pool, const ladei_pinned_request *request, bool may_grow,
                      ladei_pinned_block **out) {
  *out = node_take_any(pool, request);
  return *out != NULL || ladei_pinned_pool_has_free_segment(pool) ||
         (may_grow && cap_leaves(pool, ladei_pinned_request_least_bytes(request))) ||
         (*out = other_node_take(pool, request, usual_take)) != NULL ||
         (*out = odd_take(request->node, request)) != NULL || (*out = other_node_take(pool, request, odd_take)) != NULL;
}

/* With nothing in transit; blocks not seen here were not there, or pending (cap_wait.c). True: as look_once. */
static bool look_stopped(lade_pinned_pool *pool, const ladei_pinned_request *request, bool may_grow, uint64_t *retired,
                         ladei_pinned_block **out) {
  bool found = false, returned = true;
  *retired = ladei_pinned_retired_blocks(pool); /* before: it waits for readers of statistics, as no transit is to */
  ladei_pinned_transits_stop(&pool->cap_wait);
  ladei_pinned_pool_put(pool, ladei_pinned_thread_caches_drain(pool));
  for (unsigned i = 0; i < LOOKS && !found && returned; i++) {
    uint32_t seen = ladei_pinned_cap_wait_returns(&pool->cap_wait);
    ladei_pinned_pool_collect(pool); /* each time: a run whose last block came back lies idle */
    found = look_once(pool, request, may_grow, out);
    ladei_switch_point("looked", 0);
    returned = ladei_pinned_cap_wait_is_over(&pool->cap_wait, seen);
  }
  ladei_pinned_transits_resume(&pool->cap_wait);
  return found;
}

/* Note [What a refusal means]. Blocks pending at the look and after every stream was asked were used by streams at the
 * look; blocks that came back meanwhile were perhaps ready then, in another thread's poll: look again. */
static bool look_at_rest(lade_pinned_pool *pool, const ladei_pinned_request *request, bool may_grow,
                         ladei_pinned_block **out) {
  lade_error saved;
  uint64_t retired;
  bool found = false, returned = true;
  ladei_error_save(&saved);
  for (unsigned i = 0; i < LOOKS && !found && returned; i++) {
    found = look_stopped(pool, request, may_grow, &retired, out);
    if (!found) {
      (void)ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE | LADEI_POLL_ALL, NULL); /* failed ones stay pending */
      returned = ladei_pinned_retired_blocks(pool) != retired;
      *out = returned ? node_take_any(pool, request) : NULL; /* before others do */
      found = *out != NULL;
    }
  }
  ladei_error_restore(&saved);
  return found;
}

/* Other processes do not wait for virtual time. */
static bool budget_may_leave(const lade_pinned_pool *pool) {
  return pool->runtime->ops->step == NULL && ladei_pinned_budget_is_short(&pool->budget);
}

/* Whether there is something to wait for: memory that other pools of the budget were asked for; pending blocks; blocks
 * in caches that only their owners can empty: these were called and bring them in their next calls; blocks that other
 * threads may free, or are just freeing. Where the cap is long enough, all that a request lacks is one of these. One
 * thread alone moves a virtual clock, and frees nothing while it waits. */
static bool comes_back(lade_pinned_pool *pool, uint64_t least) {
  if (budget_may_leave(pool)) return true;
  if (pool->runtime->ops->step == NULL) return least <= pool->settings.max_bytes;
  return atomic_load_explicit(&pool->threads.unreached, memory_order_relaxed) ||
         ladei_pinned_pending_read(pool).blocks > 0;
}

/* Until something came back to the pool, from any thread; on virtual time, until a stream did. LADE_ERR_TIMEOUT:
 * nothing did. */
static lade_status room_wait(lade_pinned_pool *pool, uint64_t least, uint32_t seen, uint64_t deadline_ns) {
  enum { SHORTEST_NS = 10 * 1000, LONGEST_NS = 1000 * 1000 };
  uint64_t interval_ns = SHORTEST_NS;
  if (pool->runtime->ops->step != NULL) {
    lade_status status = ladei_retire_wait(ladei_retire_shard(pool->retire, 0), deadline_ns);
    return ladei_pinned_cap_wait_is_over(&pool->cap_wait, seen) ? LADE_OK : status;
  }
  for (;;) {
    uint64_t done = 0;
    lade_status status =
        ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, &done); /* nothing reports that an event is done */
    if (status == LADE_ERR_DEVICE_LOST || status == LADE_ERR_FORKED) return status;
    if (done > 0 || ladei_pinned_cap_wait_is_over(&pool->cap_wait, seen) || !comes_back(pool, least)) return LADE_OK;
    uint64_t now_ns = ladei_pinned_pool_now_ns(pool);
    if (now_ns >= deadline_ns) return LADE_ERR_TIMEOUT;
    if (budget_may_leave(pool) && cap_leaves(pool, least)) return LADE_OK;
    ladei_pinned_cap_wait_sleep(&pool->cap_wait, seen, ladei_size_min(interval_ns, deadline_ns - now_ns));
    interval_ns = ladei_size_min(2 * interval_ns, LONGEST_NS);
  }
}

/* A request's way along the cap. */
typedef struct search {
  uint64_t deadline_ns; /* 0: not waited yet */
  unsigned short_looks; /* after refusals of the budget, which other processes fill and empty meanwhile */
  lade_error refusal;   /* the last one */
} search;

/* The budget may leave room at each look, and be full at each charge: the search has to end. */
static bool search_may_grow(search *own, const lade_pinned_pool *pool) {
  return !ladei_pinned_budget_is_short(&pool->budget) || own->short_looks++ < LOOKS;
}

/* Announced: memory that comes back after the look wakes this thread. */
static lade_status look_and_wait(lade_pinned_pool *pool, const ladei_pinned_request *request, search *own,
                                 ladei_pinned_block **out) {
  lade_status status = LADE_OK;
  uint32_t seen = ladei_pinned_cap_wait_begin(&pool->cap_wait);
  if (own->deadline_ns == 0) {
    own->deadline_ns = ladei_pinned_pool_now_ns(pool) + pool->settings.wait_ns;
    ladei_pinned_count(&pool->counters.limit_waits, 1);
  }
  if (!look_at_rest(pool, request, search_may_grow(own, pool), out))
    status = room_wait(pool, ladei_pinned_request_least_bytes(request), seen, own->deadline_ns);
  ladei_pinned_cap_wait_end(&pool->cap_wait);
  return status == LADE_ERR_TIMEOUT ? no_room(pool, request->bytes, &own->refusal) : status;
}

/* At the cap. LADE_OK: look again, something changed, or a block was found. */
static lade_status make_room(lade_pinned_pool *pool, const ladei_pinned_request *request, search *own,
                             ladei_pinned_block **out) {
  uint64_t released;
  ladei_error_save(&own->refusal);
  ladei_pinned_pool_drain(pool);
  if ((*out = node_take_any(pool, request)) != NULL) return LADE_OK;
  lade_status status =
      ladei_pinned_pool_release(pool, ladei_pinned_request_least_bytes(request), UINT64_MAX, &released);
  if (released > 0 || (*out = other_node_take(pool, request, usual_take)) != NULL) return LADE_OK;
  if (status != LADE_OK)
    return status; /* a segment that the driver does not take back would be found again and again */
  ladei_log_later(LADE_LOG_DEBUG, "pinned pool %llu: %zu bytes: no room under the cap of %llu bytes",
                  (unsigned long long)pool->id, request->bytes, (unsigned long long)pool->settings.max_bytes);
  /* A ring, which alone tells what it asks for soon, waits by itself, and holds what it would wait for. */
  if (request->ahead == 0 && pool->settings.wait_ns > 0 && comes_back(pool, ladei_pinned_request_least_bytes(request)))
    return look_and_wait(pool, request, own, out);
  return look_at_rest(pool, request, search_may_grow(own, pool), out) ? LADE_OK
                                                                      : no_room(pool, request->bytes, &own->refusal);
}

/* The system refuses more. LADE_OK: look again. */
static lade_status give_back(lade_pinned_pool *pool, const ladei_pinned_request *request, lade_status refusal,
                             ladei_pinned_block **out) {
  lade_error saved;
  uint64_t released;
  ladei_error_save(&saved);
  ladei_log_later(LADE_LOG_DEBUG, "pinned pool %llu: %zu bytes: no source has them, the cache is given back: %s",
                  (unsigned long long)pool->id, request->bytes, saved.text);
  ladei_pinned_pool_drain(pool);
  lade_status status = ladei_pinned_pool_release(pool, UINT64_MAX, UINT64_MAX, &released);
  ladei_error_restore(&saved);
  if (released > 0 || (*out = other_node_take(pool, request, usual_take)) != NULL) return LADE_OK;
  /* A segment that the driver does not take back would be found again and again. */
  return status == LADE_OK && look_at_rest(pool, request, false, out) ? LADE_OK : refusal;
}

/* ---- The way of a request ---------------------------------------------------------------------------------------- */

/* `seen`: the node's growths before it was found to have nothing. */
static lade_status seek_in_new_memory(lade_pinned_pool *pool, const ladei_pinned_request *request, uint32_t seen,
                                      ladei_pinned_block **out) {
  search own = {.deadline_ns = 0};
  lade_error saved;
  ladei_error_save(&saved);
  for (;;) {
    lade_status status = ladei_pinned_pool_grow(pool, request, seen, out);
    seen = ladei_pinned_growths(request->node);
    if (status == LADE_ERR_LIMIT)
      status = make_room(pool, request, &own, out);
    else if (status == LADE_ERR_OUT_OF_PINNED_MEMORY)
      status = give_back(pool, request, status, out);
    if (status == LADE_OK && *out == NULL) {
      ladei_pinned_pool_drain(pool); /* where a wait's blocks came back to */
      *out = cache_take(pool, request);
    }
    if (status != LADE_OK) return status;
    if (*out != NULL) {
      ladei_error_restore(&saved);
      return LADE_OK;
    }
  }
}

/* In the node's cache, which had nothing, after all that can be done to fill it without new memory. */
static lade_status seek_in_cache(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                 ladei_pinned_block **out) {
  LADEI_TRY(reclaim(pool));
  /* Ready blocks may be neighbours: together they are cheaper than new memory. Those that cost little come first. */
  ladei_pinned_node_collect(request->node);
  *out = cache_take(pool, request);
  if (*out == NULL && ladei_pinned_thread_caches_keep(pool)) {
    ladei_pinned_pool_drain(pool);
    *out = cache_take(pool, request);
  }
  return LADE_OK;
}

/* Before it grows, a pool gives others the memory that they ask for. A driver that refuses to take memory back is no
 * failure of the request. */
static void others_serve(lade_pinned_pool *pool) {
  if (pool->budget.ledger != NULL) LADEI_PINNED_ASIDE(ladei_pinned_pool_answer(pool));
}

static lade_status seek_further(lade_pinned_pool *pool, const ladei_pinned_request *request, ladei_pinned_block **out) {
  uint32_t seen = ladei_pinned_growths(request->node);
  lade_status status = seek_in_cache(pool, request, out);
  if (status == LADE_OK && *out == NULL) others_serve(pool);
  if (status == LADE_OK && *out == NULL) {
    status = seek_in_new_memory(pool, request, seen, out);
    ladei_pinned_count(&pool->counters.misses, status == LADE_OK ? 1 : 0); /* before the alloc is counted: stats.c */
  }
  return status;
}

lade_status ladei_pinned_pool_seek(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                   ladei_pinned_block **out) {
  ladei_pinned_block *list = cache_take(pool, request);
  lade_status status = LADE_OK;
  if (list == NULL) {
    int cancellation = ladei_cancellation_hold();
    status = seek_further(pool, request, &list);
    ladei_cancellation_resume(cancellation);
  }
  if (status == LADE_OK) *out = list;
  return status;
}
