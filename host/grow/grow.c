/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's memory: seeking a block, growing by a segment, giving segments back, the cap.
 *
 *   seek:  node's cache -> look at pending blocks -> empty all magazines, depots and bins, node's cache again -> grow
 *   grow:  under the cap    a segment, smaller where that is all the cap or the system leaves
 *          at the cap       split a segment that was kept whole; else give free segments back and grow; else stop what is in
 *                           transit (cap_wait.h) and look again, also for blocks of other sizes than the class has; else wait
 *                           for a block to come back, if the pool waits and blocks are pending or in caches that only their
 *                           owners can empty; else LADE_ERR_LIMIT
 *          beyond the       the same; the other pools of the budget are asked to give back, and the wait is for them, too
 *          budget
 *          refused          give all free segments back and try once more; else stop what is in transit and look again;
 *                           else LADE_ERR_OUT_OF_PINNED_MEMORY
 *
 * Note [What a refusal means]
 *   LADE_ERR_LIMIT for a request says that at some moment of the call what was in use or pending exceeded the cap less the
 *   request, or what all pools of the budget held the budget less the request, when it was charged; or that what was free lay in
 *   pieces shorter than the request (of a page to 1 MiB: than a block of its class), in segments other parts of which were in use
 *   or pending, or on other nodes where the pool is strict. What other threads keep ready, what is between two lists, a
 *   segment that is being pinned for another request or unpinned, what another thread's poll has found done: all of that
 *   is collected or waited for first. The wait is for driver calls that are under way, and not for streams. Three cases are
 *   left: what threads keep ready that cannot be fenced (base/asym_lock.h) and make no call; a stream in quarantine that
 *   another thread waits for, which nobody else can ask; and 32 looks in a row, after each of which blocks came back and
 *   others took them.
 *
 * I1  reserved_bytes counts a segment from before its memory is asked for until after it was given back, and never
 *     exceeds max_bytes.
 * I2  A segment is in the page map from before its first block can be taken until its memory is given back; so an
 *     address of the pool's memory always leads to its segment.
 * I3  At most one thread at a time grows a node by an ordinary segment; others that miss meanwhile wait for it and look
 *     again, and so does one that missed before the node grew (node->growths), so that a burst of misses pins one segment and
 *     not many.
 * I4  A segment that is counted in reserved_bytes and in no node is in transit (cap_wait.h), and so are blocks that are CACHED
 *     and in no list, magazine or slot, but for those of a free or an alloc that is going on.
 * I5  What is counted in reserved_bytes is charged to the budget of all pools (budget.h), or is about to be, or was given back to it
 *     a moment ago: charged after it was counted, credited before it is not.
 * Locks: pool->lock for spare metadata and `growing`; node->lock inside node.c. The driver is called under neither.
 */
#include "host/grow/grow.h"

#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "base/static_probe.h"
#include "host/state/latency.h"
#include "host/state/nodes.h"
#include "host/state/stats.h"
#include "host/state/thread_caches.h"
#include "host/state/usage.h"

/* What nodes keep ready goes to their free memory. */
static void nodes_collect(lade_pinned_pool *pool) {
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    ladei_pinned_node_collect(ladei_pinned_pool_node(pool, i));
  ladei_switch_point("collected", 0);
}

/* What is ready goes back to its nodes. The caller is in transit, or has stopped it. */
static void drain(lade_pinned_pool *pool) {
  ladei_pinned_pool_put(pool, ladei_pinned_thread_caches_drain(pool));
  nodes_collect(pool);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* Metadata for a segment, spare one first: the smallest that fits. */
static ladei_pinned_segment *metadata_acquire(lade_pinned_pool *pool, size_t pages) {
  size_t capacity = ladei_pinned_segment_capacity(pages);
  ladei_lock_acquire(&pool->lock);
  ladei_pinned_segment **link = &pool->spare_segments;
  while (*link != NULL && (*link)->capacity_pages != capacity) link = &(*link)->next;
  ladei_pinned_segment *segment = *link;
  if (segment != NULL) {
    *link = segment->next;
    segment->next = NULL;
  }
  uint64_t birth = pool->births++;
  ladei_lock_release(&pool->lock);
  segment = segment != NULL ? segment : ladei_pinned_segment_create(pages);
  if (segment != NULL) segment->birth = birth;
  return segment;
}

static void spare_put(lade_pinned_pool *pool, ladei_pinned_segment *segment) {
  ladei_lock_acquire(&pool->lock);
  segment->next = pool->spare_segments;
  pool->spare_segments = segment;
  ladei_lock_release(&pool->lock);
}

static void metadata_release(lade_pinned_pool *pool, ladei_pinned_segment *segment) {
  ladei_pinned_segment_reset(segment);
  spare_put(pool, segment);
}

/* Makes spare records for `count` segments of that length. Fewer where the system has no memory: who asks for one is told. */
static void metadata_prepare(lade_pinned_pool *pool, size_t pages, uint64_t count) {
  size_t capacity = ladei_pinned_segment_capacity(pages);
  ladei_pinned_segment *segment;
  uint64_t spare = 0;
  ladei_lock_acquire(&pool->lock);
  for (segment = pool->spare_segments; segment != NULL; segment = segment->next)
    spare += segment->capacity_pages == capacity;
  ladei_lock_release(&pool->lock);
  for (; spare < count && (segment = ladei_pinned_segment_create(pages)) != NULL; spare++) spare_put(pool, segment);
}

static lade_status map_set(lade_pinned_pool *pool, ladei_pinned_segment *segment) {
  return ladei_pagemap_set(&pool->map, (const void *)ladei_pinned_segment_base(segment),
                           ladei_pinned_segment_bytes(segment), segment);
}

static void map_clear(lade_pinned_pool *pool, const ladei_pinned_segment *segment) {
  ladei_pagemap_clear(&pool->map, (const void *)ladei_pinned_segment_base(segment),
                      ladei_pinned_segment_bytes(segment));
}

/* The machine's topology, where the node matters. */
static const ladei_topology *topology_for(lade_pinned_pool *pool, int os_node) {
  return os_node < 0 ? NULL : ladei_pinned_pool_topology(pool);
}

/* The calls for one segment are one latency. */
static void cost_count(lade_pinned_pool *pool, ladei_pinned_timer *timer, const ladei_pinned_source_cost *cost) {
  ladei_pinned_timer_add(timer, cost->calls, cost->ns);
  if (cost->calls > 0 && ladei_pinned_timed(pool))
    ladei_latency_add(&pool->latencies->kinds[LADEI_LATENCY_DRIVER], cost->ns);
}

/* From `region`, or where that is NULL by itself. */
static lade_status memory_pin(lade_pinned_pool *pool, int os_node, size_t bytes, ladei_pinned_region *region,
                              ladei_pinned_memory *out) {
  ladei_pinned_source_cost cost = {0, 0};
  lade_status status = region != NULL ? ladei_pinned_region_acquire(&pool->source, region, bytes, out, &cost)
                                      : ladei_pinned_memory_acquire(&pool->source, topology_for(pool, os_node), os_node,
                                                                    bytes, out, &cost);
  cost_count(pool, &pool->counters.driver_allocs, &cost);
  return status;
}

static lade_status memory_unpin(lade_pinned_pool *pool, ladei_pinned_memory *memory) {
  ladei_pinned_source_cost cost = {0, 0};
  lade_status status = ladei_pinned_memory_release(&pool->source, memory, &cost);
  cost_count(pool, &pool->counters.driver_frees, &cost);
  return status;
}

/* The segment's memory as its source knows it. */
static ladei_pinned_memory segment_memory(const ladei_pinned_segment *segment) {
  return (ladei_pinned_memory){
      .base = (void *)ladei_pinned_segment_base(segment),
      .bytes = ladei_pinned_segment_bytes(segment),
      .mapped = segment->mapped,
      .mapped_bytes = segment->mapped_bytes,
      .registered_bytes = segment->registered_bytes,
      .source = (lade_pinned_source)atomic_load_explicit(&segment->source, memory_order_relaxed),
  };
}

static void segment_memory_set(ladei_pinned_segment *segment, const ladei_pinned_memory *memory) {
  atomic_store_explicit(&segment->page_count, ladei_pinned_pages(memory->bytes), memory_order_relaxed);
  atomic_store_explicit(&segment->bytes, memory->bytes, memory_order_relaxed);
  atomic_store_explicit(&segment->source, (int32_t)memory->source, memory_order_relaxed);
  atomic_store_explicit(&segment->base, (uintptr_t)memory->base, memory_order_relaxed);
  segment->mapped = memory->mapped;
  segment->mapped_bytes = memory->mapped_bytes;
  segment->registered_bytes = memory->registered_bytes;
}

/* I1, I5: what is no longer held, or was not to be had. */
static void cap_give(lade_pinned_pool *pool, uint64_t bytes) {
  ladei_pinned_budget_credit(&pool->budget, bytes);
  ladei_pinned_gauge_sub(&pool->counters.reserved_bytes, bytes);
}

/* I5: the same to the budget that all pools share. */
static lade_status budget_take(lade_pinned_pool *pool, size_t bytes) {
  bool fault;
  lade_status status = ladei_pinned_budget_charge(&pool->budget, bytes, &fault);
  if (fault) ladei_pinned_count(&pool->counters.budget_faults, 1);
  if (status == LADE_OK) return LADE_OK;
  if (!fault) ladei_pinned_count(&pool->counters.budget_refusals, 1);
  ladei_pinned_gauge_sub(&pool->counters.reserved_bytes, bytes);
  return status;
}

/* I1: counts memory that is about to be asked for. */
static lade_status cap_take(lade_pinned_pool *pool, size_t bytes) {
  if (ladei_pinned_gauge_add_below(&pool->counters.reserved_bytes, bytes, pool->max_bytes))
    return budget_take(pool, bytes);
  ladei_pinned_budget_set_aside(&pool->budget);
  return ladei_error(LADE_ERR_LIMIT, 0, "pinned pool: %zu bytes more would exceed the cap: %llu of %llu reserved",
                     bytes, (unsigned long long)ladei_pinned_gauge_current(&pool->counters.reserved_bytes),
                     (unsigned long long)pool->max_bytes);
}

/* A segment of `bytes` that are counted: pinned, opened, in the page map; in no node yet. On failure the count is the
 * caller's still. */
static lade_status segment_pin_counted(lade_pinned_pool *pool, const ladei_pinned_request *request, size_t bytes,
                                       ladei_pinned_region *region, ladei_pinned_segment **out) {
  ladei_pinned_memory memory;
  lade_status status;
  ladei_pinned_segment *segment = metadata_acquire(pool, ladei_pinned_pages(bytes));
  if (segment == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for the records of %zu bytes", bytes);
  status = memory_pin(pool, request->node->os_index, bytes, region, &memory);
  if (status != LADE_OK) {
    ladei_error_prefix(status, "pinned pool: %zu bytes: ", bytes);
    goto fail_memory;
  }
  if (pool->debug != NULL) ladei_pinned_debug_poison(memory.base, memory.bytes);
  segment_memory_set(segment, &memory);
  atomic_store_explicit(&segment->in_chunks, ladei_pinned_source_is_in_chunks(&pool->source, &memory),
                        memory_order_relaxed);
  segment->huge = request->exact;
  segment->divided = false;
  ladei_pinned_segment_open(segment, request->node->index);
  status = map_set(pool, segment);
  if (status != LADE_OK) goto fail_map;
  ladei_log_later(LADE_LOG_INFO, "pinned pool %llu: segment of %zu bytes at %p, NUMA node %d, source %d",
                  (unsigned long long)pool->id, bytes, memory.base, request->node->os_index, (int)memory.source);
  (void)ladei_pinned_gauge_add_below(&pool->counters.segments, 1, UINT64_MAX);
  LADEI_PROBE3(pinned_segment_alloc, memory.base, bytes, request->node->os_index);
  ladei_pinned_history_event(ladei_pinned_pool_recording(pool), LADE_DEVICE_SEGMENT_ALLOC, (uintptr_t)memory.base,
                             bytes);
  *out = segment;
  return LADE_OK;

fail_map : {
  lade_error saved;
  ladei_error_save(&saved);
  (void)memory_unpin(pool, &memory); /* just pinned and never used: a driver that refuses has the memory for good */
  ladei_error_restore(&saved);
}
fail_memory:
  metadata_release(pool, segment);
  return status;
}

/* A segment of `bytes` that fits under the cap. */
static lade_status segment_pin(lade_pinned_pool *pool, const ladei_pinned_request *request, size_t bytes,
                               ladei_pinned_segment **out) {
  lade_status status = cap_take(pool, bytes);
  if (status != LADE_OK) return status;
  status = segment_pin_counted(pool, request, bytes, NULL, out);
  if (status != LADE_OK) cap_give(pool, bytes);
  return status;
}

/* Gives a segment back that was taken out of its node. On failure it is in its node again. */
static lade_status segment_unpin(lade_pinned_pool *pool, ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_pinned_memory memory = segment_memory(segment);
  /* Out of the map first: the driver may hand the same addresses to another thread at once. */
  map_clear(pool, segment);
  ladei_pinned_history_event(ladei_pinned_pool_recording(pool), LADE_DEVICE_SEGMENT_FREE, (uintptr_t)memory.base,
                             memory.bytes);
  lade_status status = memory_unpin(pool, &memory);
  if (status != LADE_OK) {
    ladei_pinned_history_event(ladei_pinned_pool_recording(pool), LADE_DEVICE_SEGMENT_ALLOC, (uintptr_t)memory.base,
                               memory.bytes);
    /* Cannot fail: what the map needs for these addresses is still there. */
    segment_memory_set(segment, &memory);
    (void)map_set(pool, segment);
    ladei_pinned_node_restore_segment(node, segment);
    return status;
  }
  uint64_t reserved_bytes = ladei_pinned_segment_bytes(segment);
  LADEI_PROBE3(pinned_segment_free, memory.base, reserved_bytes, node->os_index);
  ladei_log_later(LADE_LOG_INFO, "pinned pool %llu: segment of %llu bytes at %p given back",
                  (unsigned long long)pool->id, (unsigned long long)reserved_bytes, memory.base);
  metadata_release(pool, segment);
  ladei_pinned_gauge_sub(&pool->counters.segments, 1);
  cap_give(pool, reserved_bytes);
  return LADE_OK;
}

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

/* Gives back the oldest segment that may be; LADE_OK and no bytes: there is none. */
static lade_status segment_release(lade_pinned_pool *pool, uint64_t free_before_ns, uint64_t *out_released) {
  ladei_pinned_node *node;
  lade_status status = LADE_OK;
  *out_released = 0;
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  ladei_pinned_segment *segment = oldest_free_segment(pool, free_before_ns, &node);
  if (segment != NULL) {
    uint64_t segment_bytes = ladei_pinned_segment_bytes(segment);
    status = segment_unpin(pool, node, segment);
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
 *   What others have in their hands, the pool's own thread above all, is nowhere where it is found: blocks that they take out of
 *   caches, segments that they pin or unpin. So a trim begins when nothing is in transit, and ends when the segments that others
 *   took out meanwhile are gone, or back in their node.
 */
lade_status ladei_pinned_pool_trim(lade_pinned_pool *pool, uint64_t keep_bytes) {
  uint64_t released = 0;
  lade_status status = LADE_OK;
  ladei_pinned_transits_stop(&pool->cap_wait);
  drain(pool);
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
  if (pool->max_idle_ns == 0) return LADE_OK;
  uint64_t now_ns = ladei_pinned_pool_now_ns(pool);
  uint64_t last_ns = atomic_load_explicit(&pool->aged_ns, memory_order_relaxed);
  /* Often enough that nothing stays a quarter longer than asked, and by one thread only. */
  if (now_ns - last_ns < pool->max_idle_ns / 4 ||
      !atomic_compare_exchange_strong_explicit(&pool->aged_ns, &last_ns, now_ns, memory_order_relaxed,
                                               memory_order_relaxed))
    return LADE_OK;
  ladei_pinned_pool_drain(pool);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    ladei_pinned_node_stamp_free_segments(ladei_pinned_pool_node(pool, i), now_ns);
  return now_ns < pool->max_idle_ns
             ? LADE_OK
             : ladei_pinned_pool_release(pool, UINT64_MAX, now_ns - pool->max_idle_ns, &released);
}

/* ---- Several segments -------------------------------------------------------------------------------------------- */

/*
 * Note [Several segments]
 *   Touching memory takes processors, and registering it the driver, one thread at a time. So segments that are pinned together
 *   are mapped as one region, and threads touch the next ones while one is registered; each has a registration of its own, since
 *   each is given back by itself. What is touched ahead is counted and checked as if it were asked for one after the other. Only
 *   segments of whole huge pages lie in a region: others would share pages that cannot be given back by one alone.
 *   Registering is what all of it waits for. So nothing else is done between two registrations that waits for those who touch:
 *   the records of all segments and the nodes of the page map are mapped first. To map is to wait for the kernel's lock of the
 *   address space, which those who touch hold for each step, and take again at once: on an H200 machine one map beside four of them
 *   lasted 3 to 6 ms, and three of the four waited behind it.
 */
enum { AHEAD_BYTES = 256 << 20 };

typedef struct series {
  lade_pinned_pool *pool;
  ladei_pinned_request request;
  ladei_pinned_region region;
  uint64_t bytes;           /* wanted */
  size_t first_bytes;       /* the first segment; each further one is as long as all before, up to the pool's length */
  uint64_t counted, pinned; /* of `bytes`; counted ones are under the cap, and may be touched */
} series;

/* The segment that begins there. */
static size_t series_part(const series *own, uint64_t from) {
  uint64_t usual = ladei_size_min(ladei_size_max(from, own->first_bytes), own->pool->segment_bytes);
  return (size_t)ladei_size_min(own->bytes - from, usual);
}

/* Records for all segments. */
static void series_prepare(const series *own) {
  uint64_t counts[64] = {0}; /* by the binary logarithm of their capacity */
  for (uint64_t from = 0; from < own->bytes; from += series_part(own, from))
    counts[ladei_log2_ceil(ladei_pinned_pages(series_part(own, from)))]++;
  for (unsigned i = 0; i < 64; i++)
    if (counts[i] > 0) metadata_prepare(own->pool, (size_t)1 << i, counts[i]);
}

static void series_open(series *own, lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                        size_t first_bytes) {
  *own = (series){.pool = pool, .request = {.node = node}, .bytes = bytes, .first_bytes = first_bytes};
  bool whole_pages = (pool->segment_bytes | first_bytes) % LADEI_PINNED_HUGE_PAGE_BYTES == 0;
  bool several = series_part(own, 0) < bytes;
  series_prepare(own);
  ladei_pinned_region_open(&pool->source, topology_for(pool, node->os_index), node->os_index,
                           whole_pages && several ? (size_t)bytes : 0, &own->region);
  if (own->region.area.mapped != NULL) ladei_pagemap_prepare(&pool->map, own->region.area.base, own->region.area.bytes);
}

/* Counts and lets touch the next segments, at least one that is not pinned. */
static lade_status series_allow(series *own) {
  bool touches = own->region.area.mapped != NULL && ladei_prefault_is_on(&own->region.prefault);
  uint64_t ahead = touches ? AHEAD_BYTES : 0;
  lade_status status = LADE_OK;
  while (own->counted < own->bytes && own->counted - own->pinned <= ahead && status == LADE_OK) {
    size_t part = series_part(own, own->counted);
    status = cap_take(own->pool, part);
    if (status != LADE_OK) break;
    own->counted += part;
    status = ladei_pinned_region_allow(&own->pool->source, &own->region, part);
    if (status != LADE_OK) ladei_error_prefix(status, "pinned pool: %zu bytes: ", part);
  }
  return status;
}

/* The next segment, in no node yet. */
static lade_status series_next(series *own, ladei_pinned_segment **out) {
  lade_status status = series_allow(own);
  if (status != LADE_OK) return status;
  size_t part = series_part(own, own->pinned);
  status = segment_pin_counted(own->pool, &own->request, part, &own->region, out);
  own->pinned += status == LADE_OK ? part : 0;
  return status;
}

/* What was counted and is not pinned is no longer counted. Keeps the last error. */
static void series_close(series *own) {
  lade_error saved;
  ladei_error_save(&saved);
  ladei_pinned_region_close(&own->region);
  if (own->counted > own->pinned) cap_give(own->pool, own->counted - own->pinned);
  ladei_error_restore(&saved);
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

/* What the request needs at least, as a segment of its own. */
static size_t least_bytes(const ladei_pinned_request *request) {
  bool small = request->class_index < LADEI_PINNED_SMALL_CLASSES;
  return (small ? ladei_pinned_run_pages(request->class_index) : request->pages) << LADEI_PINNED_PAGE_SHIFT;
}

static uint64_t cap_left(const lade_pinned_pool *pool) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  uint64_t own = reserved < pool->max_bytes ? pool->max_bytes - reserved : 0;
  return ladei_size_min(own, ladei_pinned_budget_left(&pool->budget));
}

/*
 * Note [The first segments]
 *   A request waits until its segment is touched and registered, and a program of a few blocks needs no more than them. So where
 *   the program names no size, a pool begins with a segment of one huge page, or as long as the request, and each further one
 *   is as large as all before together, until there are 16 MiB; then segments have their usual size: what is left over at the
 *   ends of segments counts the more, the smaller they are.
 */
enum { FIRST_ONES_BYTES = 16 << 20 };

static size_t usual_bytes(lade_pinned_pool *pool, size_t least) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  if (reserved >= FIRST_ONES_BYTES) return ladei_size_max(pool->segment_bytes, least);
  size_t grown = ladei_size_round_down((size_t)reserved, LADEI_PINNED_HUGE_PAGE_BYTES);
  grown = ladei_size_max(ladei_size_min(grown, pool->segment_bytes), pool->first_segment_bytes);
  return ladei_size_max(grown, least); /* rounded up, a block may be longer than the size that the program names */
}

/* A segment of the usual size; else of what the cap leaves, or just large enough, where the usual one is refused. The pool's own
 * cap refuses before the budget is asked, which may leave less still. */
static lade_status segment_pin_any(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                   ladei_pinned_segment **out) {
  size_t least = least_bytes(request);
  size_t usual = request->exact ? least : usual_bytes(pool, least);
  lade_status status = segment_pin(pool, request, usual, out);
  for (int refusals = 1; status == LADE_ERR_LIMIT && least < usual && refusals <= 2; refusals++) {
    size_t left = (size_t)ladei_size_min(cap_left(pool), usual);
    usual = ladei_size_max(ladei_size_round_down(left, LADEI_PINNED_PAGE_BYTES), least);
    status = segment_pin(pool, request, usual, out);
  }
  if (status == LADE_ERR_OUT_OF_PINNED_MEMORY && least < usual) status = segment_pin(pool, request, least, out);
  return status;
}

static uint32_t growths_now(const ladei_pinned_node *node) {
  return atomic_load_explicit(&node->growths, memory_order_acquire);
}

/* False: another thread has grown the node since there were `seen` growths, or tried to. */
static bool growth_begin(lade_pinned_pool *pool, ladei_pinned_node *node, uint32_t seen) {
  ladei_lock_acquire(&pool->lock);
  bool late = node->growing || growths_now(node) != seen;
  while (node->growing && growths_now(node) == seen) ladei_condition_wait(&pool->grown, &pool->lock);
  if (!late) node->growing = true;
  ladei_lock_release(&pool->lock);
  return !late;
}

/* The node has a new segment: who waits looks again. */
static void growth_tell(lade_pinned_pool *pool, ladei_pinned_node *node) {
  ladei_lock_acquire(&pool->lock);
  atomic_fetch_add_explicit(&node->growths, 1, memory_order_release);
  ladei_condition_broadcast(&pool->grown);
  ladei_lock_release(&pool->lock);
}

static void growth_end(lade_pinned_pool *pool, ladei_pinned_node *node) {
  ladei_lock_acquire(&pool->lock);
  node->growing = false;
  ladei_condition_broadcast(&pool->grown);
  ladei_lock_release(&pool->lock);
}

/* The node gets the segment, and the request a block of it, unless it has one. */
static lade_status segment_add(lade_pinned_pool *pool, const ladei_pinned_request *request,
                               ladei_pinned_segment *segment, ladei_pinned_block **out) {
  bool wants = *out == NULL;
  ladei_pinned_block *block =
      ladei_pinned_node_add_segment(request->node, segment, wants ? request->bytes : 0, request->exact);
  if (!request->exact) growth_tell(pool, request->node);
  if (!wants) return LADE_OK;
  *out = block;
  return block != NULL ? LADE_OK
                       : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for block records");
}

/*
 * Note [Growing ahead]
 *   The threads of a ring (ring_alloc.h) ask for its first blocks at the same time, and grew the pool one after the other, each
 *   segment mapped, touched and registered before the next one. So a request may say how much will be asked for soon. Who grows the
 *   node for it pins all that the node lacks to that as one series, and the others have each segment as soon as it is there. On an
 *   H200 machine the last of 24 threads had its block after 7 ms in place of 22, and 8 GiB of a file were loaded at 51.2 GB/s in
 *   place of 48.7 (benchmarks/results/h200/load_ahead.txt).
 *   It is no promise: where the cap, the budget or the system leave less, the pool grows as for one request.
 */
enum { AHEAD_FIRST_BYTES = 8 << 20 };

/* What to pin for the request and those to come, in whole huge pages; 0: for the request alone. */
static uint64_t ahead_bytes(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  if (request->ahead == 0 || request->exact) return 0;
  uint64_t free_bytes = ladei_pinned_node_free_bytes(request->node), least = least_bytes(request);
  uint64_t missing = request->ahead > free_bytes ? request->ahead - free_bytes : 0;
  missing += LADEI_PINNED_HUGE_PAGE_BYTES - 1;
  uint64_t bytes = ladei_size_round_down(ladei_size_min(missing, cap_left(pool)), LADEI_PINNED_HUGE_PAGE_BYTES);
  bool useful = bytes >= least && least <= pool->segment_bytes &&
                bytes > ladei_size_min(usual_bytes(pool, least), FIRST_ONES_BYTES);
  return useful ? bytes : 0;
}

/* LADE_OK without a block: nothing was pinned. What fails behind the first segment is nobody's failure. */
static lade_status grow_ahead(lade_pinned_pool *pool, const ladei_pinned_request *request, uint64_t bytes,
                              ladei_pinned_block **out) {
  series own;
  ladei_pinned_segment *segment;
  lade_error saved;
  lade_status status = LADE_OK;
  ladei_error_save(&saved);
  size_t first = ladei_size_min(pool->segment_bytes, AHEAD_FIRST_BYTES);
  series_open(&own, pool, request->node, bytes, ladei_size_max(first, least_bytes(request)));
  while (own.pinned < bytes && status == LADE_OK) {
    status = series_next(&own, &segment);
    if (status == LADE_OK) status = segment_add(pool, request, segment, out);
  }
  series_close(&own);
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

/* The request missed after `seen` growths. LADE_OK without a block: another thread grew the node; look again. */
static lade_status grow(lade_pinned_pool *pool, const ladei_pinned_request *request, uint32_t seen,
                        ladei_pinned_block **out) {
  if (!request->exact && !growth_begin(pool, request->node, seen)) return LADE_OK;
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  uint64_t ahead = ahead_bytes(pool, request);
  lade_status status = ahead > 0 ? grow_ahead(pool, request, ahead, out) : LADE_OK;
  if (status == LADE_OK && *out == NULL) status = grow_once(pool, request, out);
  ladei_pinned_transit_end(&pool->cap_wait.segments);
  if (!request->exact) growth_end(pool, request->node);
  ladei_pinned_memory_returned(
      &pool->cap_wait); /* what the request leaves of it; refused, what it would have taken of the cap */
  return status;
}

/* ---- Reserving --------------------------------------------------------------------------------------------------- */

/* Gives back what no node has yet; keeps the failure. */
static void segments_unpin(lade_pinned_pool *pool, ladei_pinned_node *node, ladei_pinned_segment **list) {
  lade_error saved;
  ladei_pinned_segment *segment;
  ladei_error_save(&saved);
  while ((segment = *list) != NULL) {
    *list = segment->next;
    segment->next = NULL;
    ladei_pinned_node_count_reserved(node, ladei_pinned_segment_bytes(segment));
    (void)segment_unpin(pool, node, segment); /* refused: it is the node's then, free */
  }
  ladei_error_restore(&saved);
}

/* Pins segments of `bytes` together, linked by next; none on failure. */
static lade_status segments_pin(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                                ladei_pinned_segment **out) {
  series own;
  ladei_pinned_segment *segment;
  lade_status status = LADE_OK;
  series_open(&own, pool, node, bytes, pool->segment_bytes);
  while (own.pinned < bytes && status == LADE_OK) {
    status = series_next(&own, &segment);
    if (status != LADE_OK) break;
    segment->next = *out;
    *out = segment;
  }
  series_close(&own);
  if (status != LADE_OK) segments_unpin(pool, node, out);
  return status;
}

/* What a node lacks to `bytes` of free memory, in whole pages. */
static uint64_t missing_bytes(ladei_pinned_node *node, uint64_t bytes) {
  uint64_t free_bytes = ladei_pinned_node_free_bytes(node);
  return free_bytes >= bytes ? 0 : (uint64_t)ladei_pinned_pages(bytes - free_bytes) << LADEI_PINNED_PAGE_SHIFT;
}

/* What is to be pinned, looked at with nothing in transit. Nothing is, where it would not be enough. */
static lade_status reserve_plan(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                                uint64_t *out_missing) {
  ladei_pinned_transits_stop(&pool->cap_wait);
  drain(pool);
  uint64_t missing = missing_bytes(node, bytes);
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  ladei_pinned_transits_resume(&pool->cap_wait);
  uint64_t left = reserved < pool->max_bytes ? pool->max_bytes - reserved : 0;
  *out_missing = missing;
  return missing <= left
             ? LADE_OK
             : ladei_error(LADE_ERR_LIMIT, 0,
                           "pinned pool: reserve of %llu bytes near one node: %llu of them are not free there, "
                           "and the cap of %llu leaves %llu",
                           (unsigned long long)bytes, (unsigned long long)missing, (unsigned long long)pool->max_bytes,
                           (unsigned long long)left);
}

lade_status ladei_pinned_pool_reserve(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes) {
  uint64_t missing;
  ladei_pinned_segment *list = NULL, *segment;
  if (missing_bytes(node, bytes) == 0) return LADE_OK;
  lade_status status = reserve_plan(pool, node, bytes, &missing);
  if (status != LADE_OK) return status;
  ladei_pinned_transit_begin(&pool->cap_wait.segments);
  status = segments_pin(pool, node, missing, &list);
  while ((segment = list) != NULL) {
    list = segment->next;
    segment->next = NULL;
    (void)ladei_pinned_node_add_segment(node, segment, 0, false);
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
  lade_status status = segment_pin(pool, &request, bytes, &segment);
  if (status == LADE_OK) *out = ladei_pinned_node_add_taken_segment(node, segment);
  ladei_pinned_transit_end(&pool->cap_wait.segments);
  return status;
}

/* ---- Seeking ----------------------------------------------------------------------------------------------------- */

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

/* Ready for all threads, or in free memory. More than one block are in transit until the caller has put the rest away. */
static ladei_pinned_block *cache_take(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  bool shared = request->counters != NULL && request->class_index < LADEI_PINNED_MAGAZINE_CLASSES &&
                request->node->depot->slot_counts[request->class_index] > 0;
  bool lists = request->count > 1 || (shared && ladei_pinned_batch(request->bytes) > 1);
  bool several = lists && !ladei_pinned_cap_has_waiters(&pool->cap_wait) && /* they would come back at once */
                 ladei_pinned_transit_try_begin(ladei_pinned_pool_transit(pool, request->cache));
  ladei_pinned_block *list = shared && several == lists ? depot_take(pool, request) : NULL;
  if (list == NULL)
    list = ladei_pinned_node_take(request->node, request->bytes, request->exact, several ? request->count : 1);
  if (several && (list == NULL || ladei_pinned_block_next(list) == NULL))
    ladei_pinned_transit_end(ladei_pinned_pool_transit(pool, request->cache));
  return list;
}

void ladei_pinned_pool_drain(lade_pinned_pool *pool) {
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, NULL);
  ladei_pinned_transit_begin(transit);
  drain(pool);
  ladei_pinned_transit_end(transit);
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

/* What a request may have of one node. */
typedef ladei_pinned_block *node_taker(ladei_pinned_node *node, const ladei_pinned_request *request);

static ladei_pinned_block *usual_take(ladei_pinned_node *node, const ladei_pinned_request *request) {
  return ladei_pinned_node_take(node, request->bytes, request->exact, 1);
}

/* A block of another size than those of the request's class: above 1 MiB, where blocks of a class need not be alike, one just as long as
 * the request; for a small request a page. */
static ladei_pinned_block *odd_take(ladei_pinned_node *node, const ladei_pinned_request *request) {
  if (request->class_index < LADEI_PINNED_SMALL_CLASSES)
    return ladei_pinned_node_take(node, LADEI_PINNED_PAGE_BYTES, false, 1);
  return request->class_index < LADEI_PINNED_MAGAZINE_CLASSES ? NULL
                                                              : ladei_pinned_node_take_just(node, request->bytes);
}

/* Memory of other nodes is better than none, unless the pool is strict. */
static ladei_pinned_block *other_node_take(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                           node_taker *take) {
  ladei_switch_point("other nodes", 0);
  for (uint32_t i = 0; !pool->source.strict && i < ladei_pinned_pool_node_count(pool); i++) {
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
  const char *reason = bytes > pool->max_bytes       ? "; the cap is less than the request"
                       : reserved > in_use + pending ? "; the rest lies free in shorter pieces"
                                                     : "";
  return ladei_error(
      LADE_ERR_LIMIT, 0,
      "pinned pool: no room for %zu bytes under the cap of %llu: %llu reserved, %llu of them in use, %llu "
      "pending, with %llu uses in quarantine%s",
      bytes, (unsigned long long)pool->max_bytes, reserved, in_use, pending, (unsigned long long)uses.quarantined_uses,
      reason);
}

/* In the node's cache, or in a segment that was kept whole. */
static ladei_pinned_block *node_take_any(lade_pinned_pool *pool, const ladei_pinned_request *request) {
  ladei_pinned_block *block = cache_take(pool, request);
  return block != NULL || request->exact ? block : ladei_pinned_node_take_from_whole(request->node, request->bytes);
}

static bool cap_leaves(lade_pinned_pool *pool, uint64_t bytes) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  return reserved <= pool->max_bytes && bytes <= pool->max_bytes - reserved &&
         ladei_pinned_budget_leaves(&pool->budget, bytes);
}

enum { LOOKS = 32 }; /* where others bring back and take all the time, somebody has to end */

/* Once in each place. True: a block was found, or what makes it worth while to look again: a segment to be given back, or,
 * where new memory is not refused, room under the cap. */
static bool look_once(lade_pinned_pool *pool, const ladei_pinned_request *request, bool may_grow,
                      ladei_pinned_block **out) {
  *out = node_take_any(pool, request);
  return *out != NULL || oldest_free_node(pool, UINT64_MAX) != NULL ||
         (may_grow && cap_leaves(pool, least_bytes(request))) ||
         (*out = other_node_take(pool, request, usual_take)) != NULL ||
         (*out = odd_take(request->node, request)) != NULL || (*out = other_node_take(pool, request, odd_take)) != NULL;
}

/* With nothing in transit; what is not seen here was not there, or pending (cap_wait.c). True: as look_once. */
static bool look_stopped(lade_pinned_pool *pool, const ladei_pinned_request *request, bool may_grow, uint64_t *retired,
                         ladei_pinned_block **out) {
  bool found = false, returned = true;
  *retired = ladei_pinned_retired_blocks(pool); /* before: it waits for readers of statistics, as no transit is to */
  ladei_pinned_transits_stop(&pool->cap_wait);
  ladei_pinned_pool_put(pool, ladei_pinned_thread_caches_drain(pool));
  for (unsigned i = 0; i < LOOKS && !found && returned; i++) {
    uint32_t seen = ladei_pinned_cap_wait_returns(&pool->cap_wait);
    nodes_collect(pool); /* each time: a run whose last block came back lies idle */
    found = look_once(pool, request, may_grow, out);
    ladei_switch_point("looked", 0);
    returned = ladei_pinned_cap_wait_is_over(&pool->cap_wait, seen);
  }
  ladei_pinned_transits_resume(&pool->cap_wait);
  return found;
}

/* Note [What a refusal means]. What was pending at the look and is so after every stream was asked, was so at the look;
 * blocks that came back meanwhile were perhaps there then, in the hands of another thread's poll: look again. */
static bool look_at_rest(lade_pinned_pool *pool, const ladei_pinned_request *request, bool may_grow,
                         ladei_pinned_block **out) {
  lade_error saved;
  uint64_t retired;
  bool found = false, returned = true;
  ladei_error_save(&saved);
  for (unsigned i = 0; i < LOOKS && !found && returned; i++) {
    found = look_stopped(pool, request, may_grow, &retired, out);
    if (!found) {
      (void)ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE | LADEI_POLL_ALL, NULL); /* what fails stays pending */
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

/* Whether there is something to wait for: what other pools of the budget were asked for; what streams use, or what is in caches that only their owners can empty, who
 * were called, and bring it in their next calls. */
static bool comes_back(lade_pinned_pool *pool) {
  if (budget_may_leave(pool)) return true;
  return atomic_load_explicit(&pool->unreached, memory_order_relaxed) || ladei_pinned_pending_read(pool).blocks > 0;
}

/* Until something came back to the pool, whoever brought it; on virtual time, until a stream did. LADE_ERR_TIMEOUT:
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
    if (done > 0 || ladei_pinned_cap_wait_is_over(&pool->cap_wait, seen) || !comes_back(pool)) return LADE_OK;
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

/* The budget may leave room at each look, and be full at each charge: somebody has to end. */
static bool search_may_grow(search *own, const lade_pinned_pool *pool) {
  return !ladei_pinned_budget_is_short(&pool->budget) || own->short_looks++ < LOOKS;
}

/* Announced: what comes back after the look wakes this thread. */
static lade_status look_and_wait(lade_pinned_pool *pool, const ladei_pinned_request *request, search *own,
                                 ladei_pinned_block **out) {
  lade_status status = LADE_OK;
  uint32_t seen = ladei_pinned_cap_wait_begin(&pool->cap_wait);
  if (own->deadline_ns == 0) {
    own->deadline_ns = ladei_pinned_pool_now_ns(pool) + pool->wait_ns;
    ladei_pinned_count(&pool->counters.limit_waits, 1);
  }
  if (!look_at_rest(pool, request, search_may_grow(own, pool), out))
    status = room_wait(pool, least_bytes(request), seen, own->deadline_ns);
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
  lade_status status = ladei_pinned_pool_release(pool, least_bytes(request), UINT64_MAX, &released);
  if (released > 0 || (*out = other_node_take(pool, request, usual_take)) != NULL) return LADE_OK;
  if (status != LADE_OK)
    return status; /* a segment that the driver does not take back would be found again and again */
  ladei_log_later(LADE_LOG_DEBUG, "pinned pool %llu: %zu bytes: no room under the cap of %llu bytes",
                  (unsigned long long)pool->id, request->bytes, (unsigned long long)pool->max_bytes);
  if (pool->wait_ns > 0 && comes_back(pool)) return look_and_wait(pool, request, own, out);
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

/* `seen`: the node's growths before it was found to have nothing. */
static lade_status seek_in_new_memory(lade_pinned_pool *pool, const ladei_pinned_request *request, uint32_t seen,
                                      ladei_pinned_block **out) {
  search own = {.deadline_ns = 0};
  lade_error saved;
  ladei_error_save(&saved);
  for (;;) {
    lade_status status = grow(pool, request, seen, out);
    seen = growths_now(request->node);
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
  lade_status status = reclaim(pool);
  if (status != LADE_OK) return status;
  /* What lies ready may be neighbours: together they are cheaper than new memory. First what costs little to get. */
  ladei_pinned_node_collect(request->node);
  *out = cache_take(pool, request);
  if (*out == NULL && ladei_pinned_thread_caches_keep(pool)) {
    ladei_pinned_pool_drain(pool);
    *out = cache_take(pool, request);
  }
  return LADE_OK;
}

/* Before it grows, a pool gives others what they ask for. A driver that refuses to take memory back is no failure of the
 * request. */
static void others_serve(lade_pinned_pool *pool) {
  lade_error saved;
  if (pool->budget.ledger == NULL) return;
  ladei_error_save(&saved);
  if (ladei_pinned_pool_answer(pool) != LADE_OK) ladei_error_restore(&saved);
}

static lade_status seek_further(lade_pinned_pool *pool, const ladei_pinned_request *request, ladei_pinned_block **out) {
  uint32_t seen = growths_now(request->node);
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
