/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing a pool by segments, for a request or ahead of requests.
 *
 * I1  At most one thread at a time grows a node by an ordinary segment; others that miss meanwhile wait for it and look
 *     again, and so does one that missed before the node grew (node->growths), so that a burst of misses pins one
 *     segment and not many.
 * Locks: pool->lock for `growing`. The driver is called without it.
 */
#include "host/grow/grow.h"

#include <assert.h>

#include "base/error.h"
#include "host/grow/give_back.h"
#include "host/grow/segments.h"
#include "host/state/stats.h"

static uint64_t cap_left(const lade_pinned_pool *pool) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  uint64_t own = reserved < pool->settings.max_bytes ? pool->settings.max_bytes - reserved : 0;
  return ladei_size_min(own, ladei_pinned_budget_left(&pool->budget));
}

/*
 * Note [The first segments]
 *   A request waits until its segment is touched and registered, and a program of a few blocks needs no more than them.
 *   So if the program names no size, a pool begins with a segment of one huge page, or as long as the request, and each
 *   further one is as large as all before together, until there are 16 MiB; then segments have their usual size: the
 *   unused ends of segments cost more, the smaller they are.
 */
enum { FIRST_ONES_BYTES = 16 << 20 };

static size_t usual_bytes(lade_pinned_pool *pool, size_t least) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  if (reserved >= FIRST_ONES_BYTES) return ladei_size_max(pool->settings.segment_bytes, least);
  size_t grown = ladei_size_round_down((size_t)reserved, LADEI_PINNED_HUGE_PAGE_BYTES);
  grown = ladei_size_max(ladei_size_min(grown, pool->settings.segment_bytes), pool->settings.first_segment_bytes);
  return ladei_size_max(grown, least); /* rounded up, a block may be longer than the size that the program names */
}

/* A segment of the usual size; if that is refused, of the cap's rest, or just large enough. The pool's own cap refuses
 * before the budget is asked, which may leave less still. */
static lade_status segment_pin_any(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                   ladei_pinned_segment **out) {
  size_t least = ladei_pinned_request_least_bytes(request);
  size_t usual = request->exact ? least : usual_bytes(pool, least);
  lade_status status = ladei_pinned_segment_pin(pool, request, usual, out);
  for (int refusals = 1; status == LADE_ERR_LIMIT && least < usual && refusals <= 2; refusals++) {
    size_t left = (size_t)ladei_size_min(cap_left(pool), usual);
    usual = ladei_size_max(ladei_size_round_down(left, LADEI_PINNED_PAGE_BYTES), least);
    status = ladei_pinned_segment_pin(pool, request, usual, out);
  }
  if (status == LADE_ERR_OUT_OF_PINNED_MEMORY && least < usual)
    status = ladei_pinned_segment_pin(pool, request, least, out);
  return status;
}

/* False: another thread has grown the node since there were `seen` growths, or tried to. */
static bool growth_begin(lade_pinned_pool *pool, ladei_pinned_node *node, uint32_t seen) {
  ladei_lock_acquire(&pool->lock);
  bool late = node->growing || ladei_pinned_growths(node) != seen;
  while (node->growing && ladei_pinned_growths(node) == seen) ladei_condition_wait(&pool->growth.grown, &pool->lock);
  assert(late || !node->growing); /* I1 */
  if (!late) node->growing = true;
  ladei_lock_release(&pool->lock);
  return !late;
}

/* The node has a new segment: waiting threads look again. */
static void growth_tell(lade_pinned_pool *pool, ladei_pinned_node *node) {
  ladei_lock_acquire(&pool->lock);
  assert(node->growing); /* I1: by this thread */
  atomic_fetch_add_explicit(&node->growths, 1, memory_order_release);
  ladei_condition_broadcast(&pool->growth.grown);
  ladei_lock_release(&pool->lock);
}

static void growth_end(lade_pinned_pool *pool, ladei_pinned_node *node) {
  ladei_lock_acquire(&pool->lock);
  assert(node->growing); /* I1 */
  node->growing = false;
  ladei_condition_broadcast(&pool->growth.grown);
  ladei_lock_release(&pool->lock);
}

/* The node gets the segment, and the request a block of it, unless it has one. */
static lade_status segment_add(lade_pinned_pool *pool, const ladei_pinned_request *request,
                               ladei_pinned_segment *segment, ladei_pinned_block **out) {
  bool wants = *out == NULL;
  ladei_pinned_block *block = ladei_pinned_node_add_segment(request->node, ladei_pinned_request_stripe(request),
                                                            segment, wants ? request->bytes : 0, request->exact);
  if (!request->exact) growth_tell(pool, request->node);
  if (!wants) return LADE_OK;
  *out = block;
  return block != NULL ? LADE_OK
                       : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for block records");
}

/*
 * Note [Growing ahead]
 *   The threads of a ring (ring_alloc.h) ask for its first blocks together, and grew the pool one after the other, each
 *   segment mapped, touched and registered before the next one. So a request may say how much will be asked for soon.
 *   The thread that grows the node for it pins all that the node lacks as one series, and the others get each segment
 *   as soon as it is there. On an H200 machine the last of 24 threads had its block after 7 ms in place of 22, and 8
 *   GiB of a file were loaded at 51.2 GB/s in place of 48.7 (benchmarks/results/h200/load_ahead.txt). It is no promise:
 *   if the cap, the budget or the system leaves less, the pool grows as for one request.
 */
enum { AHEAD_FIRST_BYTES = 8 << 20 };

/* Bytes to pin for the request and those to come, in whole huge pages; 0: for the request alone. */
static uint64_t ahead_bytes(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  if (request->ahead == 0 || request->exact) return 0;
  uint64_t free_bytes = ladei_pinned_node_free_bytes(request->node), least = ladei_pinned_request_least_bytes(request);
  uint64_t missing = request->ahead > free_bytes ? request->ahead - free_bytes : 0;
  missing += LADEI_PINNED_HUGE_PAGE_BYTES - 1;
  uint64_t bytes = ladei_size_round_down(ladei_size_min(missing, cap_left(pool)), LADEI_PINNED_HUGE_PAGE_BYTES);
  bool useful = bytes >= least && least <= pool->settings.segment_bytes &&
                bytes > ladei_size_min(usual_bytes(pool, least), FIRST_ONES_BYTES);
  return useful ? bytes : 0;
}

/* LADE_OK without a block: nothing was pinned. A failure after the first segment is no failure of the request. */
static lade_status grow_ahead(lade_pinned_pool *pool, const ladei_pinned_request *request, uint64_t bytes,
                              ladei_pinned_block **out) {
  ladei_pinned_series own;
  ladei_pinned_segment *segment;
  lade_error saved;
  lade_status status = LADE_OK;
  ladei_error_save(&saved);
  size_t first = ladei_size_min(pool->settings.segment_bytes, AHEAD_FIRST_BYTES);
  ladei_pinned_series_open(&own, pool, request->node, bytes,
                           ladei_size_max(first, ladei_pinned_request_least_bytes(request)));
  while (own.pinned < bytes && status == LADE_OK) {
    status = ladei_pinned_series_next(&own, &segment);
    if (status == LADE_OK) status = segment_add(pool, request, segment, out);
  }
  ladei_pinned_series_close(&own);
  bool ends = *out == NULL && status != LADE_ERR_LIMIT && status != LADE_ERR_OUT_OF_PINNED_MEMORY;
  if (!ends) ladei_error_restore(&saved);
  return ends ? status : LADE_OK;
}

/* For the request alone. */
static lade_status grow_once(lade_pinned_pool *pool, const ladei_pinned_request *request, ladei_pinned_block **out) {
  ladei_pinned_segment *segment = NULL;
  lade_status status = segment_pin_any(pool, request, &segment);
  return status == LADE_OK ? segment_add(pool, request, segment, out) : status;
}

lade_status ladei_pinned_pool_grow(lade_pinned_pool *pool, const ladei_pinned_request *request, uint32_t seen,
                                   ladei_pinned_block **out) {
  if (!request->exact && !growth_begin(pool, request->node, seen)) return LADE_OK;
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  uint64_t ahead = ahead_bytes(pool, request);
  lade_status status = ahead > 0 ? grow_ahead(pool, request, ahead, out) : LADE_OK;
  if (status == LADE_OK && *out == NULL) status = grow_once(pool, request, out);
  ladei_pinned_transit_end(&pool->cap_wait.segments);
  if (!request->exact) growth_end(pool, request->node);
  ladei_pinned_memory_returned(
      &pool->cap_wait); /* the memory that the request leaves; after a refusal, the part of the cap not taken */
  return status;
}

/* ---- Reserving --------------------------------------------------------------------------------------------------- */

/* Gives back segments that no node has yet; keeps the failure. */
static void segments_unpin(lade_pinned_pool *pool, ladei_pinned_node *node, ladei_pinned_segment **list) {
  lade_error saved;
  ladei_pinned_segment *segment;
  ladei_error_save(&saved);
  while ((segment = *list) != NULL) {
    *list = segment->next;
    segment->next = NULL;
    ladei_pinned_node_count_reserved(node, ladei_pinned_segment_bytes(segment));
    (void)ladei_pinned_segment_unpin(pool, node, segment); /* refused: it is the node's then, free */
  }
  ladei_error_restore(&saved);
}

/* Pins segments of `bytes` together, linked by next; none on failure. */
static lade_status segments_pin(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                                ladei_pinned_segment **out) {
  ladei_pinned_series own;
  ladei_pinned_segment *segment;
  lade_status status = LADE_OK;
  ladei_pinned_series_open(&own, pool, node, bytes, pool->settings.segment_bytes);
  while (own.pinned < bytes && status == LADE_OK) {
    status = ladei_pinned_series_next(&own, &segment);
    if (status != LADE_OK) break;
    segment->next = *out;
    *out = segment;
  }
  ladei_pinned_series_close(&own);
  if (status != LADE_OK) segments_unpin(pool, node, out);
  return status;
}

/* Bytes that a node lacks to `bytes` of free memory, in whole pages. */
static uint64_t missing_bytes(ladei_pinned_node *node, uint64_t bytes) {
  uint64_t free_bytes = ladei_pinned_node_free_bytes(node);
  return free_bytes >= bytes ? 0 : (uint64_t)ladei_pinned_pages(bytes - free_bytes) << LADEI_PINNED_PAGE_SHIFT;
}

/* Plans the bytes to pin, looked at with nothing in transit. Nothing is, where it would not be enough. */
static lade_status reserve_plan(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                                uint64_t *out_missing) {
  ladei_pinned_transits_stop(&pool->cap_wait);
  ladei_pinned_pool_empty_caches(pool);
  uint64_t missing = missing_bytes(node, bytes);
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  ladei_pinned_transits_resume(&pool->cap_wait);
  uint64_t left = reserved < pool->settings.max_bytes ? pool->settings.max_bytes - reserved : 0;
  *out_missing = missing;
  return missing <= left
             ? LADE_OK
             : ladei_error(LADE_ERR_LIMIT, 0,
                           "pinned pool: reserve of %llu bytes near one node: %llu of them are not free there, "
                           "and the cap of %llu leaves %llu",
                           (unsigned long long)bytes, (unsigned long long)missing,
                           (unsigned long long)pool->settings.max_bytes, (unsigned long long)left);
}

lade_status ladei_pinned_pool_reserve(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes) {
  uint64_t missing;
  ladei_pinned_segment *list = NULL, *segment;
  if (missing_bytes(node, bytes) == 0) return LADE_OK;
  LADEI_TRY(reserve_plan(pool, node, bytes, &missing));
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  lade_status status = segments_pin(pool, node, missing, &list);
  while ((segment = list) != NULL) {
    list = segment->next;
    segment->next = NULL;
    (void)ladei_pinned_node_add_segment(node, 0, segment, 0, false);
  }
  ladei_pinned_transit_end(&pool->cap_wait.segments);
  ladei_pinned_memory_returned(&pool->cap_wait);
  ladei_pinned_cached_note(pool);
  return status;
}

lade_status ladei_pinned_pool_pin_block(lade_pinned_pool *pool, ladei_pinned_node *node, size_t bytes,
                                        ladei_pinned_block **out) {
  ladei_pinned_request request = {.node = node, .bytes = bytes, .exact = true};
  ladei_pinned_segment *segment;
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  lade_status status = ladei_pinned_segment_pin(pool, &request, bytes, &segment);
  if (status == LADE_OK) *out = ladei_pinned_node_add_taken_segment(node, segment);
  ladei_pinned_transit_end(&pool->cap_wait.segments);
  return status;
}
