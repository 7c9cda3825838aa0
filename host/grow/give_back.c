/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving back: ready blocks to the nodes, where they coalesce; wholly free segments to the system, the oldest first.
 *
 * Locks: none here; those of the nodes and of the caches of threads. The driver is called under none.
 */
#include "host/grow/give_back.h"

#include <assert.h>

#include "host/grow/segments.h"
#include "host/state/nodes.h"
#include "host/state/stats.h"
#include "host/state/thread_caches.h"

/* ---- Caches ------------------------------------------------------------------------------------------------------ */

void ladei_pinned_pool_collect(lade_pinned_pool *pool) {
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    ladei_pinned_node_collect(ladei_pinned_pool_node(pool, i));
  ladei_switch_point("collected", 0);
}

void ladei_pinned_pool_empty_caches(lade_pinned_pool *pool) {
  ladei_pinned_pool_put(pool, ladei_pinned_thread_caches_drain(pool));
  ladei_pinned_pool_collect(pool);
}

void ladei_pinned_pool_drain(lade_pinned_pool *pool) {
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, NULL);
  ladei_pinned_transit_begin(transit);
  ladei_pinned_pool_empty_caches(pool);
  ladei_pinned_transit_end(transit);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* The node whose oldest segment that may be given back is the oldest of all; NULL: there is none. */
static ladei_pinned_node *oldest_free_node(lade_pinned_pool *pool, uint64_t free_before_ns) {
  ladei_pinned_node *found = NULL;
  uint64_t oldest = UINT64_MAX, birth;
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    (void)ladei_pinned_node_remove_free_segment(ladei_pinned_pool_node(pool, i), free_before_ns, 0, &birth);
    if (birth < oldest) {
      oldest = birth;
      found = ladei_pinned_pool_node(pool, i);
    }
  }
  return found;
}

/* The oldest segment of all nodes that may be given back, taken out of its node; NULL: none. */
static ladei_pinned_segment *oldest_free_segment(lade_pinned_pool *pool, uint64_t free_before_ns,
                                                 ladei_pinned_node **out_node) {
  uint64_t birth;
  *out_node = oldest_free_node(pool, free_before_ns);
  /* Taken by an alloc meanwhile: then whichever is the node's oldest now. */
  return *out_node == NULL ? NULL
                           : ladei_pinned_node_remove_free_segment(*out_node, free_before_ns, UINT64_MAX, &birth);
}

bool ladei_pinned_pool_has_free_segment(lade_pinned_pool *pool) { return oldest_free_node(pool, UINT64_MAX) != NULL; }

/* Gives back the oldest segment that may be; LADE_OK and no bytes: there is none. */
static lade_status segment_release(lade_pinned_pool *pool, uint64_t free_before_ns, uint64_t *out_released) {
  ladei_pinned_node *node;
  lade_status status = LADE_OK;
  *out_released = 0;
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  ladei_pinned_segment *segment = oldest_free_segment(pool, free_before_ns, &node);
  if (segment != NULL) {
    uint64_t segment_bytes = ladei_pinned_segment_bytes(segment);
    assert(segment_bytes > 0 && segment->next == NULL); /* taken out of its node: no other thread has it */
    status = ladei_pinned_segment_unpin(pool, node, segment);
    *out_released = status == LADE_OK ? segment_bytes : 0;
  }
  ladei_pinned_transit_end(&pool->cap_wait.segments);
  if (segment != NULL) ladei_pinned_memory_returned(&pool->cap_wait);
  return status;
}

lade_status ladei_pinned_pool_release(lade_pinned_pool *pool, uint64_t bytes, uint64_t free_before_ns,
                                      uint64_t *out_released) {
  uint64_t released = 1;
  lade_status status = LADE_OK;
  *out_released = 0;
  if (oldest_free_node(pool, free_before_ns) == NULL) return LADE_OK; /* at the cap each miss comes here */
  ladei_pinned_cached_note(pool);                                     /* reads the counters of all threads */
  while (status == LADE_OK && released > 0 && *out_released < bytes) {
    status = segment_release(pool, free_before_ns, &released);
    *out_released += released;
  }
  return status;
}

/*
 * Note [Giving back beside others]
 *   Memory in transit in other threads, the pool's own thread above all, cannot be found: blocks that they take out of
 *   caches, segments that they pin or unpin. So a trim begins when nothing is in transit, and ends when the segments
 *   that others took out meanwhile are gone, or back in their node.
 */
lade_status ladei_pinned_pool_trim(lade_pinned_pool *pool, uint64_t keep_bytes) {
  uint64_t released = 0;
  lade_status status = LADE_OK;
  ladei_pinned_transits_stop(&pool->cap_wait);
  ladei_pinned_pool_empty_caches(pool);
  ladei_pinned_transits_resume(&pool->cap_wait);
  do {
    uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
    if (reserved <= keep_bytes) break;
    status = ladei_pinned_pool_release(pool, reserved - keep_bytes, UINT64_MAX, &released);
    if (status == LADE_OK && released == 0) ladei_pinned_transit_wait(&pool->cap_wait.segments);
  } while (status == LADE_OK && released > 0);
  return status;
}

lade_status ladei_pinned_pool_return(lade_pinned_pool *pool, uint64_t bytes, _Atomic(uint64_t) *counter) {
  uint64_t released;
  ladei_pinned_pool_drain(pool);
  lade_status status = ladei_pinned_pool_release(pool, bytes, UINT64_MAX, &released);
  if (released > 0) ladei_pinned_count(counter, 1);
  return status;
}

lade_status ladei_pinned_pool_answer(lade_pinned_pool *pool) {
  uint64_t asked = ladei_pinned_budget_asked(&pool->budget);
  return asked == 0 ? LADE_OK : ladei_pinned_pool_return(pool, asked, &pool->counters.budget_returns);
}

lade_status ladei_pinned_pool_age(lade_pinned_pool *pool) {
  uint64_t released;
  if (pool->settings.max_idle_ns == 0) return LADE_OK;
  uint64_t now_ns = ladei_pinned_pool_now_ns(pool);
  uint64_t last_ns = atomic_load_explicit(&pool->growth.aged_ns, memory_order_relaxed);
  /* Often enough that nothing stays a quarter longer than asked, and by one thread only. */
  if (now_ns - last_ns < pool->settings.max_idle_ns / 4 ||
      !atomic_compare_exchange_strong_explicit(&pool->growth.aged_ns, &last_ns, now_ns, memory_order_relaxed,
                                               memory_order_relaxed))
    return LADE_OK;
  ladei_pinned_pool_drain(pool);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    ladei_pinned_node_stamp_free_segments(ladei_pinned_pool_node(pool, i), now_ns);
  return now_ns < pool->settings.max_idle_ns
             ? LADE_OK
             : ladei_pinned_pool_release(pool, UINT64_MAX, now_ns - pool->settings.max_idle_ns, &released);
}
