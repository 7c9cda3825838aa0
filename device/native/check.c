/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recount of the heap's invariants I1 to I11 (heap.h), K1 and K2 (recent.h), U2 (uses.c), H1 to H4 (history.h), R1 and
 * R2 (routes.c), P2, P5 and P6 (private_pool.c), Z1 and Z2 (suspend.c). Slow and simple
 * on purpose: it shares no shortcut with the code it checks.
 *
 * Locks: the allocator's lock during the whole recount. No driver call.
 */
#include <string.h>

#include "base/error.h"
#include "device/heap/recent.h"
#include "device/native/expandable.h"
#include "device/native/native.h"
#include "device/native/provider.h"
#include "device/native/suspension.h"
#include "device/observe/history.h"

typedef struct heap_recount {
  const ladei_device_heap *heap;
  lade_device_stats sums; /* `current` of each gauge, counted anew */
  size_t blocks;
  size_t free_blocks;
  size_t recent;
  size_t holes;
  size_t deferred;
  size_t contexts;
  size_t notes;
  size_t waiting;
  uint64_t held_bytes;
  uint64_t private_bytes; /* handed out from private pools */
  const char *broken;     /* the invariant, NULL while all is well */
} heap_recount;

static void expect(heap_recount *r, bool holds, const char *invariant) {
  if (!holds && r->broken == NULL) r->broken = invariant;
}

static void gauges_add(lade_device_gauges *gauges, bool small, uint64_t amount) {
  gauges->all.current += amount;
  (small ? &gauges->small_pool : &gauges->large_pool)->current += amount;
}

static bool block_in_set(const ladei_device_block_pool *pool, const ladei_device_block *block, bool is_free) {
  const ladei_device_sorted_set *set =
      is_free ? &pool->free.classes[ladei_device_free_set_class(&pool->free, block->size)] : &pool->holes;
  ladei_order_key key = is_free ? ladei_device_block_free_key(block) : ladei_device_block_hole_key(block);
  const ladei_device_sorted_entry *entry = ladei_device_sorted_set_at_least(set, &key);
  return entry != NULL && entry->block == block && memcmp(&entry->key, &key, sizeof key) == 0;
}

static bool block_is(const ladei_device_block *block, ladei_device_block_state state) {
  return block != NULL && block->state == state;
}

/* I9 (heap.h) of the block that `lowest` and those above it up to `highest` count as. */
static void blocks_recount_split(heap_recount *r, const ladei_device_block *lowest, const ladei_device_block *highest) {
  bool small = lowest->segment->pool->is_small;
  bool split = lowest->previous != NULL || highest->next != NULL;
  if (ladei_device_heap_segment_expandable(lowest->segment) || !split) return;
  gauges_add(&r->sums.inactive_split, small, 1);
  gauges_add(&r->sums.inactive_split_bytes, small, (size_t)(highest->address - lowest->address) + highest->size);
}

/* K1 in plain segments: a search would lead to the block, as no other one of the stream fits better. Mixtures, for
 * which expandable ones have rules of their own (decisions.c), are left out. */
static bool recent_is_best(const ladei_device_block *block, size_t rounded) {
  const ladei_device_free_set *set = &block->segment->pool->free;
  const ladei_device_block *rest = block_is(block->next, LADEI_DEVICE_HEAP_FREE) ? block->next : NULL;
  size_t whole = block->size + (rest != NULL ? rest->size : 0);
  const ladei_device_sorted_entry *found = ladei_device_free_set_find(set, block->segment->stream_key, rounded);
  if (found != NULL && found->block == rest) found = ladei_device_free_set_larger(set, &found->key);
  const ladei_device_block *other = found == NULL ? NULL : found->block;
  if (other == NULL || ladei_device_heap_segment_expandable(other->segment)) return true;
  return other->size > whole || (other->size == whole && other->address > block->address);
}

static void block_recount_recent(heap_recount *r, const ladei_device_block *block) {
  const ladei_device_recent *slot = &r->heap->recent[ladei_device_recent_place_of(block->segment)];
  r->recent++;
  expect(r, slot->block == block && slot->freed, "K2 a recent block is the one that its slot names");
  expect(r, !block_is(block->previous, LADEI_DEVICE_HEAP_FREE), "K2 the block below a recent one is not free");
  expect(r, block->context == NULL && block->note == NULL && block->requested == 0 && block->mapped,
         "H3, I6, I8 a recent block is free");
  if (!block_is(block->next, LADEI_DEVICE_HEAP_FREE)) blocks_recount_split(r, block, block);
  if (r->broken != NULL || ladei_device_heap_segment_expandable(block->segment)) return;
  expect(r, recent_is_best(block, slot->rounded), "K1 a search would lead to a recent block");
}

static void block_recount_free(heap_recount *r, const ladei_device_block *block) {
  const ladei_device_heap_segment *segment = block->segment;
  const ladei_device_block_pool *pool = segment->pool;
  bool is_free = block->state == LADEI_DEVICE_HEAP_FREE;
  expect(r, block_in_set(pool, block, is_free), "I2 free block or hole in its set");
  expect(r, block->context == NULL && block->note == NULL, "H3 a free block has no context");
  expect(r, block->mapped == is_free, "I6 free blocks are mapped, holes are not");
  const ladei_device_block *next = block->next;
  expect(r, next == NULL || next->state != block->state, "I3 equal neighbours are merged");
  if (is_free) {
    r->free_blocks++;
    expect(r, block->age_base <= pool->searches, "I2 age of a free block");
    blocks_recount_split(r, block_is(block->previous, LADEI_DEVICE_HEAP_RECENT) ? block->previous : block, block);
  } else {
    r->holes++;
    r->held_bytes += ladei_device_expandable_held(block);
    expect(r, ladei_device_heap_segment_expandable(segment), "I4 holes only in expandable segments");
    expect(r,
           (block->address - segment->address) % segment->granules->bytes == 0 &&
               block->size % segment->granules->bytes == 0,
           "I4 holes are whole granules");
  }
}

static void block_recount_active(heap_recount *r, const ladei_device_block *block) {
  bool small = block->segment->pool->is_small;
  const ladei_device_private_pool *pool = block->segment->pool->private_pool;
  expect(r, block->mapped != (pool != NULL && pool->suspension != NULL),
         "I6, Z1 active blocks are mapped where they are");
  gauges_add(&r->sums.active, small, 1);
  gauges_add(&r->sums.active_bytes, small, block->size);
  gauges_add(&r->sums.requested_bytes, small, block->requested);
  expect(r, block->requested <= block->size && block->requested > 0, "I8 requested fits into the block");
  uint8_t state = block->state; /* ALLOCATED and THREAD change without the lock */
  if (state == LADEI_DEVICE_HEAP_DEFERRED) r->deferred++;
  bool handed_out =
      state == LADEI_DEVICE_HEAP_ALLOCATED || state == LADEI_DEVICE_HEAP_THREAD || state == LADEI_DEVICE_HEAP_SUSPENDED;
  if (!handed_out) {
    r->waiting++;
    return;
  }
  if (pool != NULL) r->private_bytes += block->size;
  gauges_add(&r->sums.allocation, small, 1);
  gauges_add(&r->sums.allocated_bytes, small, block->size);
  r->sums.oversize_allocations.current += block->oversize_counted;
}

static void block_recount_suspended(heap_recount *r, const ladei_device_block *block) {
  const ladei_device_private_pool *pool = block->segment->pool->private_pool;
  expect(r, pool != NULL && pool->suspension != NULL, "Z1 suspended blocks are those of suspended pools");
  if (block->requested > 0) {
    block_recount_active(r, block);
    return;
  }
  expect(r, !block->mapped && block->context == NULL && block->note == NULL, "H3, I6 a suspended block that is free");
  const ladei_device_block *next = block->next;
  expect(r, !block_is(next, LADEI_DEVICE_HEAP_SUSPENDED) || next->requested > 0, "I3 equal neighbours are merged");
}

static void block_recount(heap_recount *r, const ladei_device_block *block) {
  const ladei_device_heap_segment *segment = block->segment;
  r->blocks++;
  r->contexts += block->context != NULL;
  r->notes += block->note != NULL;
  expect(r, block->size > 0 && block->size % LADEI_DEVICE_BLOCK_QUANTUM == 0, "I4 sizes are multiples of 512");
  expect(r, ladei_device_block_map_get(&r->heap->starts, block->address) == block, "I5 block in the map of starts");
  if (segment->starts.words != NULL) {
    size_t granule = (size_t)(block->address - segment->address) / LADEI_DEVICE_BLOCK_QUANTUM;
    size_t last = (size_t)(block->address + block->size - 1 - segment->address) / LADEI_DEVICE_BLOCK_QUANTUM;
    expect(r, ladei_device_start_bits_get(&segment->starts, granule), "I5 start bit of a block");
    expect(r, ladei_device_start_bits_at_most(&segment->starts, last) == granule, "I5 no start bit inside a block");
  }
  if (ladei_device_heap_segment_expandable(segment) && block->mapped)
    gauges_add(&r->sums.reserved_bytes, segment->pool->is_small, block->size);
  switch ((ladei_device_block_state)block->state) {
  case LADEI_DEVICE_HEAP_FREE:
  case LADEI_DEVICE_HEAP_HOLE: block_recount_free(r, block); break;
  case LADEI_DEVICE_HEAP_ALLOCATED:
  case LADEI_DEVICE_HEAP_THREAD:
  case LADEI_DEVICE_HEAP_PENDING:
  case LADEI_DEVICE_HEAP_DEFERRED: block_recount_active(r, block); break;
  case LADEI_DEVICE_HEAP_RECENT: block_recount_recent(r, block); break;
  case LADEI_DEVICE_HEAP_SUSPENDED: block_recount_suspended(r, block); break;
  case LADEI_DEVICE_HEAP_BUSY: break; /* counted as mapped or not, no more */
  }
}

/* Counts a segment for as long as the driver has not taken it back, hidden or not. */
static void segment_recount_held(heap_recount *r, const ladei_device_heap_segment *segment) {
  if (!ladei_device_heap_segment_expandable(segment)) {
    gauges_add(&r->sums.segment, segment->pool->is_small, 1);
    gauges_add(&r->sums.reserved_bytes, segment->pool->is_small, segment->size);
    r->sums.oversize_segments.current += segment->oversize_counted;
  }
  r->contexts += segment->context != NULL;
}

static void segment_recount(heap_recount *r, const ladei_device_heap_segment *segment) {
  segment_recount_held(r, segment);
  uint64_t end = segment->address;
  const ladei_device_block *previous = NULL;
  /* Not by ladei_device_heap_segment_block, which settles recent blocks. */
  for (const ladei_device_block *block = ladei_device_block_map_get(&r->heap->starts, segment->address); block != NULL;
       block = block->next) {
    expect(r, block->address == end && block->previous == previous && block->segment == segment,
           "I1 blocks cover their segment in order");
    if (r->broken != NULL) return;
    block_recount(r, block);
    end += block->size;
    previous = block;
  }
  expect(r, end == segment->address + segment->size, "I1 blocks end with their segment");
}

static void pool_recount(heap_recount *r, const ladei_device_block_pool *pool, size_t *free_total, size_t *hole_total) {
  size_t holes = 0;
  expect(r, ladei_device_free_set_check(&pool->free) && ladei_device_sorted_set_check(&pool->holes, &holes),
         "I2 order of a set");
  *free_total += pool->free.count;
  *hole_total += holes;
}

/* As I7 counts it. */
static uint64_t segment_reserved(const heap_recount *r, const ladei_device_heap_segment *segment) {
  if (!ladei_device_heap_segment_expandable(segment)) return segment->size;
  uint64_t reserved = 0;
  for (const ladei_device_block *block = ladei_device_block_map_get(&r->heap->starts, segment->address); block != NULL;
       block = block->next)
    reserved += block->mapped ? block->size : 0;
  return reserved;
}

static void private_pool_recount(heap_recount *r, const ladei_device_private_pool *pool, size_t *free_total,
                                 size_t *hole_total) {
  pool_recount(r, &pool->small_pool, free_total, hole_total);
  pool_recount(r, &pool->large_pool, free_total, hole_total);
  uint64_t segments = 0;
  uint64_t reserved = 0;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(r->heap); segment != NULL;
       segment = ladei_device_heap_counted_next(r->heap, segment)) {
    segments += segment->pool->private_pool == pool;
    reserved += segment->pool->private_pool == pool ? segment_reserved(r, segment) : 0;
  }
  if (pool->suspension != NULL) r->held_bytes += ladei_device_suspension_held(pool->suspension); /* Z2 */
  expect(r, segments == pool->segment_count, "I11 segments of a private pool");
  expect(r, reserved == pool->reserved_bytes.current, "I11 reserved bytes of a private pool");
  r->private_bytes -= pool->allocated_bytes.current;
}

static void pools_recount(heap_recount *r, const lade_device_allocator *allocator) {
  size_t free_total = 0;
  size_t hole_total = 0;
  pool_recount(r, &r->heap->small_pool, &free_total, &hole_total);
  pool_recount(r, &r->heap->large_pool, &free_total, &hole_total);
  size_t pools = 2;
  for (const ladei_device_private_pool *pool = r->heap->private_pools; pool != NULL; pool = pool->next, pools += 2)
    private_pool_recount(r, pool, &free_total, &hole_total);
  private_pool_recount(r, &allocator->caching.uncached, &free_total, &hole_total);
  expect(r, r->private_bytes == 0, "I11 allocated bytes of private pools");
  expect(r, pools + 2 == r->heap->pool_count, "I12 pools");
  expect(r, ladei_device_heap_leaves_most(r->heap, r->heap->starts.room) <= r->heap->leaves.capacity,
         "I12 room for leaves");
  expect(r, free_total == r->free_blocks && hole_total == r->holes, "I2 nothing else in the sets");
}

static void segments_recount_plain(heap_recount *r, const lade_device_allocator *allocator) {
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(r->heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    bool plain = ladei_device_provider_of(allocator, segment->pool) != NULL;
    expect(r, !plain || !ladei_device_heap_segment_expandable(segment), "P5 pools whose segments are plain");
  }
}

static void routes_recount(heap_recount *r, const lade_device_allocator *allocator) {
  size_t captures = 0, scopes = 0, lending = 0;
  for (const ladei_device_route *route = allocator->routes.first; route != NULL; route = route->next) {
    bool capture = route->kind == LADEI_DEVICE_ROUTE_CAPTURE;
    captures += capture;
    scopes += !capture;
    expect(r, !capture || atomic_load(&route->pool->capturing), "P2 a pool that is captured into");
    expect(r, capture || route->pool->use_count >= route->pool->scope_count, "R1 a scope keeps its pool");
  }
  expect(r, captures == atomic_load(&allocator->routes.captures) && scopes == atomic_load(&allocator->routes.scopes),
         "R2 numbers of routes");
  expect(r, allocator->routes.leading == captures + scopes + allocator->caching.off, "R2 whether anything is routed");
  for (const ladei_device_private_pool *pool = r->heap->private_pools; pool != NULL; pool = pool->next) {
    scopes -= pool->scope_count;
    lending += (pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
  }
  expect(r, scopes == 0, "R2 scopes of the pools");
  expect(r, lending == allocator->pools.lending, "P6 pools that lend");
  segments_recount_plain(r, allocator);
}

static void gauge_compare(heap_recount *r, const lade_device_gauge *kept, const lade_device_gauge *counted,
                          const char *invariant) {
  expect(r, kept->current == counted->current, invariant);
  expect(r, kept->peak >= kept->current, invariant);
}

static void gauges_compare(heap_recount *r, const lade_device_gauges *kept, const lade_device_gauges *counted,
                           const char *invariant) {
  gauge_compare(r, &kept->all, &counted->all, invariant);
  gauge_compare(r, &kept->small_pool, &counted->small_pool, invariant);
  gauge_compare(r, &kept->large_pool, &counted->large_pool, invariant);
  const lade_device_gauge *small = &kept->small_pool;
  const lade_device_gauge *large = &kept->large_pool;
  expect(r, kept->all.current == small->current + large->current, "I10 all is small and large: current");
  expect(r, kept->all.allocated == small->allocated + large->allocated, "I10 all is small and large: allocated");
  expect(r, kept->all.freed == small->freed + large->freed, "I10 all is small and large: freed");
}

static void stats_compare(heap_recount *r) {
  lade_device_stats stats = ladei_device_heap_stats(r->heap);
  const lade_device_stats *kept = &stats;
  const lade_device_stats *counted = &r->sums;
  gauges_compare(r, &kept->segment, &counted->segment, "I7 segment");
  gauges_compare(r, &kept->reserved_bytes, &counted->reserved_bytes, "I7 reserved_bytes");
  gauges_compare(r, &kept->allocation, &counted->allocation, "I8 allocation");
  gauges_compare(r, &kept->allocated_bytes, &counted->allocated_bytes, "I8 allocated_bytes");
  gauges_compare(r, &kept->active, &counted->active, "I8 active");
  gauges_compare(r, &kept->active_bytes, &counted->active_bytes, "I8 active_bytes");
  gauges_compare(r, &kept->requested_bytes, &counted->requested_bytes, "I8 requested_bytes");
  gauges_compare(r, &kept->inactive_split, &counted->inactive_split, "I9 inactive_split");
  gauges_compare(r, &kept->inactive_split_bytes, &counted->inactive_split_bytes, "I9 inactive_split_bytes");
  gauge_compare(r, &kept->oversize_allocations, &counted->oversize_allocations, "I8 oversize_allocations");
  gauge_compare(r, &kept->oversize_segments, &counted->oversize_segments, "I7 oversize_segments");
}

static void listeners_recount(heap_recount *r, const ladei_device_listeners *listeners) {
  size_t trackers = 0;
  expect(r, listeners->count <= LADEI_DEVICE_LISTENERS_MAX, "K1 number of listeners");
  for (size_t i = 0; r->broken == NULL && i < listeners->count; i++) trackers += listeners->list[i].track != NULL;
  expect(r, trackers == listeners->tracker_count, "K2 listeners with a tracker");
}

static void history_recount(heap_recount *r, const lade_device_allocator *allocator) {
  const ladei_device_history *history = &allocator->history;
  expect(r, history->count <= history->capacity && history->count <= history->appended, "H1 events in the ring");
  expect(r, history->capacity == 0 || history->next == history->appended % history->capacity, "H1 next place");
  for (uint64_t at = history->appended - history->count + 1; history->count > 0 && at < history->appended; at++)
    expect(r, history->events[(at - 1) % history->capacity].order < history->events[at % history->capacity].order,
           "H1 place of an event");
  expect(r, r->notes == history->note_count, "H3 notes of blocks");
  expect(r, history->enabled || (history->count == 0 && r->contexts == 0 && r->notes == 0),
         "H2 nothing is kept while history is off");
  bool watched = history->enabled || allocator->listeners.tracker_count > 0;
  expect(r, watched == (allocator->heap.listener != NULL) && watched == ladei_device_history_watched(allocator),
         "H4 the heap reports exactly while there is a listener");
  listeners_recount(r, &allocator->listeners);
}

lade_status ladei_device_native_check(lade_device_allocator *allocator) {
  size_t looked_at;
  return ladei_device_native_recount(allocator, &looked_at);
}

lade_status ladei_device_native_recount(lade_device_allocator *allocator, size_t *out_looked_at) {
  heap_recount r = {.heap = &allocator->heap};
  ladei_lock_acquire(&allocator->lock);
  expect(&r, ladei_ordered_set_check(&r.heap->by_address) && ladei_ordered_set_check(&r.heap->hidden),
         "I1 order of segments");
  for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(r.heap);
       segment != NULL && r.broken == NULL; segment = ladei_device_heap_counted_next(r.heap, segment))
    if (segment->hidden == NULL)
      segment_recount(&r, segment);
    else
      segment_recount_held(&r, segment);
  if (r.broken == NULL) {
    expect(&r, r.blocks == r.heap->starts.count, "I5 nothing else in the map of starts");
    expect(&r, r.recent == r.heap->recent_count, "K2 number of recent blocks");
    expect(&r, r.waiting == atomic_load(&r.heap->waiting_count), "I8 waiting blocks");
    expect(&r, r.deferred == atomic_load(&allocator->deferred.count), "U2 deferred blocks");
    pools_recount(&r, allocator);
    /* Beside calls that grow or give back, holes of theirs are left out. */
    expect(&r,
           allocator->slow_paths.threads > 0 || allocator->slow_paths.alone ||
               r.held_bytes == allocator->limits.held_bytes,
           "E2, Z2 held granules");
    routes_recount(&r, allocator);
    history_recount(&r, allocator);
    stats_compare(&r);
  }
  *out_looked_at = r.blocks + allocator->history.count;
  ladei_lock_release(&allocator->lock);
  if (r.broken == NULL) return LADE_OK;
  return ladei_error(LADE_ERR_INTERNAL, 0, "device allocator of device %d: broken invariant %s", allocator->device,
                     r.broken);
}
