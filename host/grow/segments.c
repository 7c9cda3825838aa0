/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of a pool: their records, their memory, the cap.
 *
 * I1  reserved_bytes counts a segment from before its memory is asked for until after it was given back, and never
 *     exceeds max_bytes.
 * I2  A segment is in the page map from before its first block can be taken until its memory is given back; so an
 *     address of the pool's memory always leads to its segment.
 * I3  What is counted in reserved_bytes is charged to the budget of all pools (budget.h), or is about to be, or was
 *     given back to it a moment ago: charged after it was counted, credited before it is not.
 * I4  A segment that is counted in reserved_bytes and in no node is in transit (cap_wait.h), and so are blocks that are
 *     CACHED and in no list, magazine or slot, except for those of a free or an alloc that is going on.
 * Locks: pool->lock for spare metadata. The driver is called without it.
 */
#include "host/grow/segments.h"

#include <assert.h>

#include "base/error.h"
#include "base/log.h"
#include "base/static_probe.h"
#include "host/state/latency.h"
#include "host/state/nodes.h"

/* Metadata for a segment, spare one first: the smallest that fits. */
static ladei_pinned_segment *metadata_acquire(lade_pinned_pool *pool, size_t pages) {
  size_t capacity = ladei_pinned_segment_capacity(pages);
  ladei_lock_acquire(&pool->lock);
  ladei_pinned_segment **link = &pool->growth.spare;
  while (*link != NULL && (*link)->capacity_pages != capacity) link = &(*link)->next;
  ladei_pinned_segment *segment = *link;
  if (segment != NULL) {
    *link = segment->next;
    segment->next = NULL;
  }
  uint64_t birth = pool->growth.births++;
  ladei_lock_release(&pool->lock);
  segment = segment != NULL ? segment : ladei_pinned_segment_create(pages);
  if (segment != NULL) segment->birth = birth;
  return segment;
}

static void spare_put(lade_pinned_pool *pool, ladei_pinned_segment *segment) {
  ladei_lock_acquire(&pool->lock);
  segment->next = pool->growth.spare;
  pool->growth.spare = segment;
  ladei_lock_release(&pool->lock);
}

static void metadata_release(lade_pinned_pool *pool, ladei_pinned_segment *segment) {
  ladei_pinned_segment_reset(segment);
  spare_put(pool, segment);
}

/* Makes spare records for `count` segments of that length. Fewer where the system has no memory: the next request for
 * one reports that. */
static void metadata_prepare(lade_pinned_pool *pool, size_t pages, uint64_t count) {
  size_t capacity = ladei_pinned_segment_capacity(pages);
  ladei_pinned_segment *segment;
  uint64_t spare = 0;
  ladei_lock_acquire(&pool->lock);
  for (segment = pool->growth.spare; segment != NULL; segment = segment->next)
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
    ladei_latency_add(&pool->fast.latencies->kinds[LADEI_LATENCY_DRIVER], cost->ns);
}

/* From `region`, or where that is NULL by itself. */
static lade_status memory_pin(lade_pinned_pool *pool, int os_node, size_t bytes, ladei_pinned_region *region,
                              ladei_pinned_memory *out) {
  ladei_pinned_source_cost cost = {0, 0};
  lade_status status = region != NULL ? ladei_pinned_region_acquire(&pool->sources, region, bytes, out, &cost)
                                      : ladei_pinned_memory_acquire(&pool->sources, topology_for(pool, os_node),
                                                                    os_node, bytes, out, &cost);
  cost_count(pool, &pool->counters.driver_allocs, &cost);
  return status;
}

static lade_status memory_unpin(lade_pinned_pool *pool, ladei_pinned_memory *memory) {
  ladei_pinned_source_cost cost = {0, 0};
  lade_status status = ladei_pinned_memory_release(&pool->sources, memory, &cost);
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

/* I1, I3: bytes no longer held, or not to be had. */
static void cap_give(lade_pinned_pool *pool, uint64_t bytes) {
  assert(bytes <= ladei_pinned_gauge_current(&pool->counters.reserved_bytes)); /* I1: they are counted still */
  ladei_pinned_budget_credit(&pool->budget, bytes);
  ladei_pinned_gauge_sub(&pool->counters.reserved_bytes, bytes);
}

/* I3: the same to the budget that all pools share. */
static lade_status budget_take(lade_pinned_pool *pool, size_t bytes) {
  bool fault;
  lade_status status = ladei_pinned_budget_charge(&pool->budget, bytes, &fault);
  assert(ladei_pinned_gauge_current(&pool->counters.reserved_bytes) >= bytes); /* I3: charged after it was counted */
  if (fault) ladei_pinned_count(&pool->counters.budget_faults, 1);
  if (status == LADE_OK) return LADE_OK;
  if (!fault) ladei_pinned_count(&pool->counters.budget_refusals, 1);
  ladei_pinned_gauge_sub(&pool->counters.reserved_bytes, bytes);
  return status;
}

/* I1: counts memory that is about to be asked for. */
static lade_status cap_take(lade_pinned_pool *pool, size_t bytes) {
  if (ladei_pinned_gauge_add_below(&pool->counters.reserved_bytes, bytes, pool->settings.max_bytes))
    return budget_take(pool, bytes);
  ladei_pinned_budget_set_aside(&pool->budget);
  return ladei_error(LADE_ERR_LIMIT, 0, "pinned pool: %zu bytes more would exceed the cap: %llu of %llu reserved",
                     bytes, (unsigned long long)ladei_pinned_gauge_current(&pool->counters.reserved_bytes),
                     (unsigned long long)pool->settings.max_bytes);
}

/* A segment of `bytes` that are counted: pinned, opened, in the page map; in no node yet. On failure the count is the
 * caller's still. */
static lade_status segment_pin_counted(lade_pinned_pool *pool, const ladei_pinned_request *request, size_t bytes,
                                       ladei_pinned_region *region, ladei_pinned_segment **out) {
  ladei_pinned_memory memory;
  lade_status status;
  assert(bytes <= ladei_pinned_gauge_current(&pool->counters.reserved_bytes)); /* I1: counted before it is asked for */
  assert(ladei_pinned_gauge_current(&pool->counters.reserved_bytes) <= pool->settings.max_bytes);
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
  atomic_store_explicit(&segment->in_chunks, ladei_pinned_source_is_in_chunks(&pool->sources, &memory),
                        memory_order_relaxed);
  segment->huge = request->exact;
  segment->divided = false;
  ladei_pinned_segment_open(segment, request->node->index);
  if (!request->exact) ladei_pinned_segment_populate(segment);
  assert(ladei_pagemap_get(&pool->map, memory.base) == NULL); /* I2: what was there before was taken out */
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
  if (pool->debug != NULL) ladei_pinned_debug_give_back(memory.base, memory.bytes);
  (void)memory_unpin(pool, &memory); /* just pinned and never used: a driver that refuses has the memory for good */
  ladei_error_restore(&saved);
}
fail_memory:
  metadata_release(pool, segment);
  return status;
}

/* A segment of `bytes` that fits under the cap. */
lade_status ladei_pinned_segment_pin(lade_pinned_pool *pool, const ladei_pinned_request *request, size_t bytes,
                                     ladei_pinned_segment **out) {
  LADEI_TRY(cap_take(pool, bytes));
  lade_status status = segment_pin_counted(pool, request, bytes, NULL, out);
  if (status != LADE_OK) cap_give(pool, bytes);
  return status;
}

/* Gives a segment back that was taken out of its node. On failure it is in its node again. */
lade_status ladei_pinned_segment_unpin(lade_pinned_pool *pool, ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_pinned_memory memory = segment_memory(segment);
  assert(ladei_pagemap_get(&pool->map, memory.base) == segment);                      /* I2 */
  assert(memory.bytes <= ladei_pinned_gauge_current(&pool->counters.reserved_bytes)); /* I1 */
  /* Out of the map first: the driver may hand the same addresses to another thread at once. */
  map_clear(pool, segment);
  ladei_pinned_history_event(ladei_pinned_pool_recording(pool), LADE_DEVICE_SEGMENT_FREE, (uintptr_t)memory.base,
                             memory.bytes);
  if (pool->debug != NULL) ladei_pinned_debug_give_back(memory.base, memory.bytes);
  lade_status status = memory_unpin(pool, &memory);
  if (status != LADE_OK) {
    if (pool->debug != NULL) ladei_pinned_debug_poison(memory.base, memory.bytes);
    ladei_pinned_history_event(ladei_pinned_pool_recording(pool), LADE_DEVICE_SEGMENT_ALLOC, (uintptr_t)memory.base,
                               memory.bytes);
    /* Cannot fail: the map's nodes for these addresses are still there. */
    segment_memory_set(segment, &memory);
    lade_status restored = map_set(pool, segment);
    assert(restored == LADE_OK); /* I2 */
    (void)restored;
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

/* ---- Several segments -------------------------------------------------------------------------------------------- */

/*
 * Note [Several segments]
 *   Touching memory takes processors, and registering it the driver, one thread at a time. So segments that are pinned
 *   together are mapped as one region, and threads touch the next ones while one is registered; each has a registration
 *   of its own, since each is given back by itself. Segments touched ahead are counted and checked as if requested one
 *   after the other. Only segments of whole huge pages lie in a region: others would share pages that cannot be given
 *   back by one alone. All of it waits for registering. So between two registrations no other step waits for
 *   the touching threads: the records of all segments and the nodes of the page map are mapped first. To map is to
 *   wait for the kernel's lock of the address space, which touching threads hold for each step, and take again at once:
 *   on an H200 machine one map beside four of them lasted 3 to 6 ms, and three of the four waited for it.
 */
enum { AHEAD_BYTES = 256 << 20 };

/* The segment that begins there. */
static size_t series_part(const ladei_pinned_series *own, uint64_t from) {
  uint64_t usual = ladei_size_min(ladei_size_max(from, own->first_bytes), own->pool->settings.segment_bytes);
  return (size_t)ladei_size_min(own->bytes - from, usual);
}

/* Records for all segments. */
static void series_prepare(const ladei_pinned_series *own) {
  uint64_t counts[64] = {0}; /* by the binary logarithm of their capacity */
  for (uint64_t from = 0; from < own->bytes; from += series_part(own, from))
    counts[ladei_log2_ceil(ladei_pinned_pages(series_part(own, from)))]++;
  for (unsigned i = 0; i < 64; i++)
    if (counts[i] > 0) metadata_prepare(own->pool, (size_t)1 << i, counts[i]);
}

void ladei_pinned_series_open(ladei_pinned_series *own, lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                              size_t first_bytes) {
  *own = (ladei_pinned_series){.pool = pool, .request = {.node = node}, .bytes = bytes, .first_bytes = first_bytes};
  bool whole_pages = (pool->settings.segment_bytes | first_bytes) % LADEI_PINNED_HUGE_PAGE_BYTES == 0;
  bool several = series_part(own, 0) < bytes;
  series_prepare(own);
  ladei_pinned_region_open(&pool->sources, topology_for(pool, node->os_index), node->os_index,
                           whole_pages && several ? (size_t)bytes : 0, &own->region);
  if (own->region.area.mapped != NULL) ladei_pagemap_prepare(&pool->map, own->region.area.base, own->region.area.bytes);
}

/* Counts and lets touch the next segments, at least one that is not pinned. */
static lade_status series_allow(ladei_pinned_series *own) {
  bool touches = own->region.area.mapped != NULL && ladei_prefault_is_on(&own->region.prefault);
  assert(own->pinned <= own->counted && own->counted <= own->bytes); /* Note [Several segments] */
  uint64_t ahead = touches ? AHEAD_BYTES : 0;
  lade_status status = LADE_OK;
  while (own->counted < own->bytes && own->counted - own->pinned <= ahead && status == LADE_OK) {
    size_t part = series_part(own, own->counted);
    status = cap_take(own->pool, part);
    if (status != LADE_OK) break;
    own->counted += part;
    status = ladei_pinned_region_allow(&own->pool->sources, &own->region, part);
    if (status != LADE_OK) ladei_error_prefix(status, "pinned pool: %zu bytes: ", part);
  }
  return status;
}

/* The next segment, in no node yet. */
lade_status ladei_pinned_series_next(ladei_pinned_series *own, ladei_pinned_segment **out) {
  LADEI_TRY(series_allow(own));
  size_t part = series_part(own, own->pinned);
  lade_status status = segment_pin_counted(own->pool, &own->request, part, &own->region, out);
  own->pinned += status == LADE_OK ? part : 0;
  assert(own->pinned <= own->counted); /* I1 */
  return status;
}

/* Counted bytes that are not pinned are no longer counted. Keeps the last error. */
void ladei_pinned_series_close(ladei_pinned_series *own) {
  lade_error saved;
  ladei_error_save(&saved);
  ladei_pinned_region_close(&own->region);
  if (own->counted > own->pinned) cap_give(own->pool, own->counted - own->pinned);
  ladei_error_restore(&saved);
}
