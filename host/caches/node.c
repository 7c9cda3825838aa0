/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one NUMA node.
 *
 * I1  Arenas [0, arena_count) have segments, or had some; the others never had. The number changes under the lock of the
 *     first one.
 * I2  A segment stays in its arena, and each of its free blocks with it, until it is given back.
 * I3  `reserved` is the sum over the arenas.
 * Locks: those of the arenas, of several in the order of their index.
 *
 * Note [Arenas]
 *   Threads that replace blocks of random sizes waited for the lock of all free memory of their node. Blocks coalesce
 *   within their segment only, so segments are divided among arenas, with a lock each. A thread takes from the arena of
 *   its stripe first, or from the next one whose lock is free, and asks for new memory when none has anything; what it
 *   frees goes back to the arena of its segment. New segments go to the arena of the thread that needs them, and one
 *   arena after the other comes into use so: a pool of one thread has one.
 *   On an H200 machine 16 threads took 1.4 to 1.9 us for a block of the list `token` in place of 4.5, and 1.1 in place of
 *   6 of `dali`, for up to a third more reserved, as each arena fits the best of its own. With eight arenas it is the same
 *   (benchmarks/results/h200/crowd_arenas.txt).
 *   A call that must see all free memory at one moment holds all locks: the last look before a request is told that
 *   there is nothing, and what gives segments back or tells of them.
 */
#include "host/caches/node.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

ladei_pinned_node *ladei_pinned_node_create(ladei_pagemap *map, ladei_retire_shards *retire, unsigned index,
                                            int32_t os_index, size_t depot_bytes) {
  ladei_pinned_node *node = aligned_alloc(_Alignof(ladei_pinned_node), sizeof *node);
  if (node == NULL) return NULL;
  memset(node, 0, sizeof *node);
  node->depot = ladei_pinned_depot_create(depot_bytes);
  if (node->depot == NULL) {
    free(node);
    return NULL;
  }
  for (unsigned i = 0; i < LADEI_PINNED_ARENAS; i++) ladei_pinned_arena_open(&node->arenas[i], map, retire, index, i);
  atomic_init(&node->arena_count, 1);
  node->map = map;
  node->index = index;
  node->os_index = os_index;
  return node;
}

void ladei_pinned_node_destroy(ladei_pinned_node *node) {
  for (unsigned i = 0; i < LADEI_PINNED_ARENAS; i++) ladei_pinned_arena_close(&node->arenas[i]);
  ladei_pinned_depot_destroy(node->depot);
  free(node);
}

/* ---- All arenas -------------------------------------------------------------------------------------------------- */

/* Takes all locks before the returned blocks are put away: what is free when the last lock is taken is found in one of
 * the arenas then. How many they are: no other one comes into use meanwhile (I1). */
static unsigned arenas_acquire(ladei_pinned_node *node) {
  ladei_lock_acquire(&node->arenas[0].lock);
  unsigned arenas = ladei_pinned_node_arenas(node);
  for (unsigned i = 1; i < arenas; i++) ladei_lock_acquire(&node->arenas[i].lock);
  for (unsigned i = 0; i < arenas; i++) ladei_pinned_arena_settle(&node->arenas[i]);
  return arenas;
}

static void arenas_release(ladei_pinned_node *node, unsigned arenas) {
  while (arenas-- > 0) ladei_pinned_arena_release(&node->arenas[arenas]);
}

/* The segments of arenas whose locks are held, oldest first. */
typedef struct segment_walk {
  ladei_pinned_segment *next[LADEI_PINNED_ARENAS];
  unsigned arenas;
} segment_walk;

static segment_walk segment_walk_begin(const ladei_pinned_node *node, unsigned arenas) {
  segment_walk walk = {.arenas = arenas};
  for (unsigned i = 0; i < arenas; i++) walk.next[i] = node->arenas[i].first;
  return walk;
}

/* NULL at the end. */
static ladei_pinned_segment *segment_walk_next(segment_walk *walk) {
  ladei_pinned_segment **oldest = &walk->next[0], *found;
  for (unsigned i = 1; i < walk->arenas; i++)
    if (*oldest == NULL || (walk->next[i] != NULL && walk->next[i]->birth < (*oldest)->birth)) oldest = &walk->next[i];
  found = *oldest;
  if (found != NULL) *oldest = found->next;
  return found;
}

/* ---- Take and put ------------------------------------------------------------------------------------------------ */

/* From the arenas in turn that are busy, or from those that are not; a list or NULL. One whose lock changes hands
 * meanwhile may be passed over both times: the last look in ladei_pinned_node_take sees it. */
static ladei_pinned_block *take_in_turn(ladei_pinned_node *node, unsigned stripe, unsigned arenas, bool busy,
                                        size_t bytes, bool exact, unsigned count) {
  ladei_pinned_block *list = NULL;
  for (unsigned i = 0; i < arenas && list == NULL; i++) {
    ladei_pinned_arena *arena = &node->arenas[(stripe + i) % arenas];
    if (ladei_lock_is_busy(&arena->lock) != busy) continue;
    ladei_pinned_arena_acquire(arena);
    list = ladei_pinned_arena_take(arena, bytes, exact, count);
    ladei_pinned_arena_release(arena);
  }
  return list;
}

ladei_pinned_block *ladei_pinned_node_take(ladei_pinned_node *node, unsigned stripe, size_t bytes, bool exact,
                                           unsigned count) {
  ladei_pinned_block *list = NULL;
  unsigned arenas = ladei_pinned_node_arenas(node);
  if (arenas > 1) list = take_in_turn(node, stripe, arenas, false, bytes, exact, count);
  if (arenas > 1 && list == NULL) list = take_in_turn(node, stripe, arenas, true, bytes, exact, count);
  if (list != NULL) return list;
  arenas = arenas_acquire(node);
  for (unsigned i = 0; i < arenas && list == NULL; i++)
    list = ladei_pinned_arena_take(&node->arenas[(stripe + i) % arenas], bytes, exact, count);
  arenas_release(node, arenas);
  return list;
}

ladei_pinned_block *ladei_pinned_node_take_from_whole(ladei_pinned_node *node, size_t bytes) {
  ladei_pinned_block *block = NULL;
  unsigned arenas = arenas_acquire(node);
  for (unsigned i = 0; i < arenas && block == NULL; i++)
    block = ladei_pinned_arena_take(&node->arenas[i], bytes, false, 1);
  for (unsigned i = 0; i < arenas && block == NULL; i++)
    if (ladei_pinned_arena_divide(&node->arenas[i], bytes))
      block = ladei_pinned_arena_take(&node->arenas[i], bytes, false, 1);
  arenas_release(node, arenas);
  return block;
}

ladei_pinned_block *ladei_pinned_node_take_just(ladei_pinned_node *node, size_t bytes) {
  ladei_pinned_block *block = NULL;
  unsigned arenas = arenas_acquire(node);
  for (unsigned i = 0; i < arenas && block == NULL; i++) block = ladei_pinned_arena_take_just(&node->arenas[i], bytes);
  arenas_release(node, arenas);
  return block;
}

/* Whether `a` serves a request better than `b`, which may be NULL. */
static bool segment_is_better(const ladei_pinned_segment *a, const ladei_pinned_segment *b) {
  return b == NULL || ladei_pinned_segment_bytes(a) < ladei_pinned_segment_bytes(b) ||
         (ladei_pinned_segment_bytes(a) == ladei_pinned_segment_bytes(b) &&
          ladei_pinned_segment_base(a) < ladei_pinned_segment_base(b));
}

ladei_pinned_block *ladei_pinned_node_take_best(ladei_pinned_node *node, size_t bytes) {
  ladei_pinned_segment *best = NULL, *segment;
  unsigned arenas = arenas_acquire(node);
  segment_walk walk = segment_walk_begin(node, arenas);
  while ((segment = segment_walk_next(&walk)) != NULL)
    if (ladei_pinned_segment_bytes(segment) >= bytes && ladei_pinned_segment_is_free(segment) &&
        segment_is_better(segment, best))
      best = segment;
  ladei_pinned_block *block = best == NULL ? NULL : ladei_pinned_arena_take_segment(&node->arenas[best->arena], best);
  arenas_release(node, arenas);
  return block;
}

static ladei_pinned_arena *arena_of(ladei_pinned_node *node, const ladei_pinned_block *block) {
  const ladei_pinned_segment *segment = ladei_pagemap_get(node->map, (const void *)ladei_pinned_block_address(block));
  return &node->arenas[segment->arena];
}

void ladei_pinned_node_put(ladei_pinned_node *node, ladei_pinned_block *list) {
  ladei_pinned_block *lists[LADEI_PINNED_ARENAS] = {NULL}, *next;
  if (list == NULL) return;
  if (ladei_pinned_node_arenas(node) == 1) {
    ladei_pinned_arena_put(&node->arenas[0], list);
    return;
  }
  for (; list != NULL; list = next) {
    ladei_pinned_block **own = &lists[arena_of(node, list)->index];
    next = ladei_pinned_block_next(list);
    ladei_pinned_block_next_set(list, *own);
    *own = list;
  }
  for (unsigned i = 0; i < LADEI_PINNED_ARENAS; i++)
    if (lists[i] != NULL) ladei_pinned_arena_put(&node->arenas[i], lists[i]);
}

void ladei_pinned_node_put_one(ladei_pinned_node *node, ladei_pinned_block *block) {
  ladei_pinned_block_next_set(block, NULL);
  ladei_pinned_arena_put(arena_of(node, block), block);
}

/* The locks of all arenas are held. */
static void put_held(ladei_pinned_node *node, ladei_pinned_block *list) {
  while (list != NULL) {
    ladei_pinned_block *block = list;
    list = ladei_pinned_block_next(block);
    ladei_pinned_block_next_set(block, NULL);
    ladei_pinned_arena_put_held(arena_of(node, block), block);
  }
}

void ladei_pinned_node_collect(ladei_pinned_node *node) {
  unsigned arenas = arenas_acquire(node);
  put_held(node, ladei_pinned_bins_empty(&node->bins));
  put_held(node, ladei_pinned_depot_empty(node->depot));
  for (unsigned i = 0; i < arenas; i++) ladei_pinned_arena_put_idle_runs(&node->arenas[i]);
  arenas_release(node, arenas);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* The arena of a new segment, its lock held. At most one arena more comes into use: I1. */
static ladei_pinned_arena *arena_for_segment(ladei_pinned_node *node, unsigned stripe, ladei_pinned_segment *segment) {
  unsigned arenas = ladei_pinned_node_arenas(node);
  unsigned index = stripe % (arenas < LADEI_PINNED_ARENAS ? arenas + 1 : arenas);
  bool opens = index == arenas;
  segment->arena = index;
  if (opens) {
    ladei_lock_acquire(&node->arenas[0].lock);
    if (ladei_pinned_node_arenas(node) == index)
      atomic_store_explicit(&node->arena_count, index + 1, memory_order_release);
  }
  ladei_pinned_arena_acquire(&node->arenas[index]);
  if (opens) ladei_lock_release(&node->arenas[0].lock);
  return &node->arenas[index];
}

/* I3. Under the lock of the segment's arena, so that all of them keep it still. */
static void reserved_add(ladei_pinned_node *node, uint64_t bytes) {
  uint64_t before = atomic_fetch_add_explicit(&node->reserved.current, bytes, memory_order_relaxed);
  ladei_pinned_peak_raise(&node->reserved.peak, before + bytes);
}

ladei_pinned_block *ladei_pinned_node_add_segment(ladei_pinned_node *node, unsigned stripe,
                                                  ladei_pinned_segment *segment, size_t bytes, bool exact) {
  ladei_pinned_arena *arena = arena_for_segment(node, stripe, segment);
  ladei_pinned_arena_add(arena, segment);
  reserved_add(node, ladei_pinned_segment_bytes(segment));
  ladei_pinned_count(&node->reserved.allocated, ladei_pinned_segment_bytes(segment));
  ladei_pinned_block *block = bytes == 0 ? NULL : ladei_pinned_arena_take(arena, bytes, exact, 1);
  ladei_pinned_arena_release(arena);
  return block;
}

ladei_pinned_block *ladei_pinned_node_add_taken_segment(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_pinned_arena *arena = arena_for_segment(node, 0, segment);
  ladei_pinned_block *block = ladei_pinned_arena_add_taken(arena, segment);
  reserved_add(node, ladei_pinned_segment_bytes(segment));
  ladei_pinned_count(&node->reserved.allocated, ladei_pinned_segment_bytes(segment));
  ladei_pinned_arena_release(arena);
  return block;
}

void ladei_pinned_node_count_reserved(ladei_pinned_node *node, uint64_t bytes) {
  ladei_pinned_count(&node->reserved.allocated, bytes);
}

void ladei_pinned_node_restore_segment(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_pinned_arena *arena = &node->arenas[segment->arena]; /* I2 */
  ladei_pinned_arena_acquire(arena);
  ladei_pinned_arena_add(arena, segment);
  reserved_add(node, ladei_pinned_segment_bytes(segment));
  ladei_pinned_arena_release(arena);
}

void ladei_pinned_node_stamp_free_segments(ladei_pinned_node *node, uint64_t now_ns) {
  ladei_pinned_segment *segment;
  unsigned arenas = arenas_acquire(node);
  segment_walk walk = segment_walk_begin(node, arenas);
  while ((segment = segment_walk_next(&walk)) != NULL)
    if (segment->free_since_ns == 0 && ladei_pinned_segment_is_free(segment)) segment->free_since_ns = now_ns;
  arenas_release(node, arenas);
}

/* Free, and seen free at that time or before; at any time for UINT64_MAX. */
static bool segment_is_free_since(const ladei_pinned_segment *segment, uint64_t free_before_ns) {
  bool old = free_before_ns == UINT64_MAX || (segment->free_since_ns != 0 && segment->free_since_ns <= free_before_ns);
  return old && ladei_pinned_segment_is_free(segment);
}

ladei_pinned_segment *ladei_pinned_node_remove_free_segment(ladei_pinned_node *node, uint64_t free_before_ns,
                                                            uint64_t born_before, uint64_t *out_birth) {
  ladei_pinned_segment *segment;
  unsigned arenas = arenas_acquire(node);
  segment_walk walk = segment_walk_begin(node, arenas);
  do {
    segment = segment_walk_next(&walk);
  } while (segment != NULL && !segment_is_free_since(segment, free_before_ns));
  *out_birth = segment == NULL ? UINT64_MAX : segment->birth;
  if (segment != NULL && segment->birth >= born_before) segment = NULL;
  if (segment != NULL) {
    ladei_pinned_arena_remove(&node->arenas[segment->arena], segment);
    atomic_fetch_sub_explicit(&node->reserved.current, ladei_pinned_segment_bytes(segment), memory_order_relaxed);
  }
  arenas_release(node, arenas);
  return segment;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

uint64_t ladei_pinned_node_free_bytes(ladei_pinned_node *node) {
  const ladei_pinned_segment *segment;
  uint64_t pages = 0, free_bytes = 0;
  unsigned arenas = arenas_acquire(node);
  segment_walk walk = segment_walk_begin(node, arenas);
  while ((segment = segment_walk_next(&walk)) != NULL) {
    if (!ladei_pinned_segment_is_free(segment)) continue;
    pages -= ladei_pinned_segment_page_count(segment); /* by its bytes, which may be below a page */
    free_bytes += ladei_pinned_segment_bytes(segment);
  }
  for (unsigned i = 0; i < arenas; i++) {
    pages += node->arenas[i].split.page_count + node->arenas[i].whole.page_count;
    free_bytes += node->arenas[i].free_small_bytes;
  }
  arenas_release(node, arenas);
  return free_bytes + (pages << LADEI_PINNED_PAGE_SHIFT);
}

void ladei_pinned_node_settle(ladei_pinned_node *node) { arenas_release(node, arenas_acquire(node)); }

void ladei_pinned_node_supply(const ladei_pinned_node *node, unsigned class_index, ladei_pinned_amount *taken,
                              ladei_pinned_amount *returned) {
  for (unsigned i = 0; i < ladei_pinned_node_arenas(node); i++) {
    ladei_pinned_counter_pair_sum(taken, &node->arenas[i].supply[class_index].taken);
    ladei_pinned_counter_pair_sum(returned, &node->arenas[i].supply[class_index].returned);
  }
}

void ladei_pinned_node_reserved(ladei_pinned_node *node, lade_pinned_gauge *out) {
  unsigned arenas = arenas_acquire(node);
  out->current = ladei_pinned_gauge_current(&node->reserved);
  out->peak = ladei_pinned_counter_read(&node->reserved.peak);
  out->allocated = ladei_pinned_counter_read(&node->reserved.allocated);
  out->freed = out->allocated - out->current;
  arenas_release(node, arenas);
}

void ladei_pinned_node_reserved_peak_reset(ladei_pinned_node *node) {
  unsigned arenas = arenas_acquire(node);
  atomic_store_explicit(&node->reserved.peak, ladei_pinned_gauge_current(&node->reserved), memory_order_relaxed);
  arenas_release(node, arenas);
}

/* ---- Snapshot ---------------------------------------------------------------------------------------------------- */

typedef struct view_list {
  ladei_pinned_block_view *views;
  size_t count, capacity;
} view_list;

static void view_add(view_list *list, const ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  if (list->count < list->capacity) {
    /* Under its arena's lock a block keeps its place and size, not its state: threads hand it out and take it back. */
    size_t bytes = ladei_pinned_segment_block_bytes(segment, block, word), requested;
    for (uint64_t before = ~word; !ladei_pinned_word_is_same(before, word); word = ladei_pinned_block_word(block)) {
      before = word;
      requested = ladei_pinned_block_requested_by(block, word, bytes);
    }
    ladei_pinned_block_state state = ladei_pinned_word_state(word);
    if (state == LADEI_PINNED_BLOCK_IN_USE && requested == 0) state = LADEI_PINNED_BLOCK_CACHED;
    list->views[list->count] = (ladei_pinned_block_view){
        .address = ladei_pinned_block_address(block),
        .bytes = bytes,
        .requested_bytes = requested,
        .state = state,
        .source = atomic_load_explicit(&segment->source, memory_order_relaxed),
        .in_chunks = ladei_pinned_segment_in_chunks(segment),
        .segment_address = ladei_pinned_segment_base(segment),
        .segment_bytes = ladei_pinned_segment_bytes(segment),
    };
  }
  list->count++;
}

static void view_segment(view_list *list, const ladei_pinned_segment *segment) {
  size_t page_count = ladei_pinned_segment_page_count(segment);
  for (size_t page = 0; page < page_count; page += ladei_pinned_block_pages(&segment->blocks[page])) {
    const ladei_pinned_block *block = &segment->blocks[page];
    if (ladei_pinned_word_state(ladei_pinned_block_word(block)) != LADEI_PINNED_BLOCK_RUN) {
      view_add(list, segment, block);
      continue;
    }
    const ladei_pinned_run *run = ladei_pinned_block_run(block);
    unsigned class_index = atomic_load_explicit(&run->class_index, memory_order_relaxed);
    for (unsigned i = 0; i < ladei_pinned_run_blocks(class_index); i++) view_add(list, segment, &run->blocks[i]);
  }
}

size_t ladei_pinned_node_view(ladei_pinned_node *node, ladei_pinned_block_view *out, size_t capacity) {
  view_list list = {out, 0, capacity};
  const ladei_pinned_segment *segment;
  unsigned arenas = arenas_acquire(node);
  segment_walk walk = segment_walk_begin(node, arenas);
  while ((segment = segment_walk_next(&walk)) != NULL) view_segment(&list, segment);
  arenas_release(node, arenas);
  return list.count;
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

static lade_status check_held(ladei_pinned_node *node, unsigned arenas) {
  uint64_t sum = 0, reserved = ladei_pinned_gauge_current(&node->reserved);
  for (unsigned i = 0; i < LADEI_PINNED_ARENAS; i++) {
    ladei_pinned_arena *arena = &node->arenas[i];
    if (i >= arenas && arena->first != NULL)
      return ladei_error(LADE_ERR_INTERNAL, 0, "pinned node %u: I1 (arenas in use): arena %u of %u has a segment",
                         node->index, i, arenas);
    if (i < arenas) LADEI_TRY(ladei_pinned_arena_check(arena));
    sum += arena->reserved_bytes;
  }
  return sum == reserved
             ? LADE_OK
             : ladei_error(LADE_ERR_INTERNAL, 0, "pinned node %u: I3 (reserved bytes): %llu instead of %llu",
                           node->index, (unsigned long long)reserved, (unsigned long long)sum);
}

lade_status ladei_pinned_node_check(ladei_pinned_node *node) {
  unsigned arenas = arenas_acquire(node);
  lade_status status = check_held(node, arenas);
  arenas_release(node, arenas);
  return status;
}
