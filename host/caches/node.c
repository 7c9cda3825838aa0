/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one NUMA node.
 *
 * I1  Every FREE page block of the node's segments is in exactly one index: in `whole` if it is all of a segment made
 *     for one large request and not divided since, otherwise in `split`.
 * I2  A run is in the list of its class if and only if it has a free block; a run without a block in use does not
 *     exist.
 * I3  reserved_bytes is the sum over the segments; free_small_bytes the sum of the free small blocks.
 * I4  The ticket of a block that is FREE is idle (except for a note that raced with a free, a mistake of the user's;
 *     such notes are dropped when the block's record stops being that of a block).
 * I5  A block that is put while another thread has the lock waits in `returned`, and is free memory for every function here:
 *     each that takes the lock puts these blocks where they belong first (Note [Returned blocks]).
 * Locks: node->lock guards all of it, except `returned`. Nothing is called under it but base/ and ladei_retire_shards_forget.
 */
#include "host/caches/node.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

ladei_pinned_node *ladei_pinned_node_create(ladei_pagemap *map, ladei_retire_shards *retire, unsigned index,
                                            int32_t os_index, size_t depot_bytes) {
  ladei_pinned_node *node = calloc(1, sizeof *node);
  if (node != NULL) node->depot = ladei_pinned_depot_create(depot_bytes);
  if (node == NULL || node->depot == NULL) {
    free(node);
    return NULL;
  }
  ladei_lock_init(&node->lock, LADEI_RANK_NODE);
  ladei_slab_init(&node->run_records, sizeof(ladei_pinned_run));
  node->map = map;
  node->retire = retire;
  node->index = index;
  node->os_index = os_index;
  return node;
}

void ladei_pinned_node_destroy(ladei_pinned_node *node) {
  ladei_slab_destroy(&node->run_records);
  ladei_pinned_depot_destroy(node->depot);
  ladei_lock_destroy(&node->lock);
  free(node);
}

/* ---- Before a change ----------------------------------------------------------------------------------------------- */

/*
 * Note [Returned blocks]
 *   A thread that puts blocks needs no answer. Where threads take and put blocks of random sizes, two in five of those that
 *   came for the lock did so to put some. So while the lock is busy they leave their blocks here, by a compare-and-swap, and
 *   the next thread that has the lock puts them away, with the node's memory in its processor's cache. The thread that holds
 *   the lock meanwhile need not look again when it gives the lock: a request that finds nothing takes the lock once more.
 */
static void put_locked(ladei_pinned_node *node, ladei_pinned_block *list);

static void returned_push(ladei_pinned_node *node, ladei_pinned_block *list) {
  ladei_pinned_block *last = list, *first = atomic_load_explicit(&node->returned, memory_order_relaxed);
  while (ladei_pinned_block_next(last) != NULL) last = ladei_pinned_block_next(last);
  do {
    ladei_pinned_block_next_set(last, first);
  } while (!atomic_compare_exchange_weak_explicit(&node->returned, &first, list, memory_order_release,
                                                  memory_order_relaxed));
}

static __attribute__((noinline)) void returned_put(ladei_pinned_node *node) {
  put_locked(node, atomic_exchange_explicit(&node->returned, NULL, memory_order_acquire));
}

static inline void node_acquire(ladei_pinned_node *node) {
  ladei_lock_acquire(&node->lock);
  if (atomic_load_explicit(&node->returned, memory_order_relaxed) != NULL) returned_put(node); /* I5 */
}

/* ---- After a change ---------------------------------------------------------------------------------------------- */

#ifndef NDEBUG
static lade_status node_recount_all(ladei_pinned_node *node);
#endif

/*
 * The end of a change. Builds without NDEBUG recount the invariants here, of segments and runs too, and stop the
 * program if one is broken, near its cause: after a number of changes such that each pays for sixteen pages.
 */
static void lock_release_recounted(ladei_pinned_node *node) {
#ifndef NDEBUG
  enum { PAGES_PER_CHANGE = 16 };
  if (++node->changes_since_recount > node->changes_per_recount) {
    node->changes_since_recount = 0;
    node->changes_per_recount = (node->reserved_bytes >> LADEI_PINNED_PAGE_SHIFT) / PAGES_PER_CHANGE;
    if (node_recount_all(node) != LADE_OK) ladei_error_stop();
  }
#endif
  ladei_lock_release(&node->lock);
}

/* ---- Page blocks ------------------------------------------------------------------------------------------------- */

static ladei_pinned_segment *segment_of(const ladei_pinned_node *node, const ladei_pinned_block *block) {
  return ladei_pagemap_get(node->map, (const void *)ladei_pinned_block_address(block));
}

static ladei_tlsf *index_of(ladei_pinned_node *node, const ladei_pinned_segment *segment,
                            const ladei_pinned_block *block) {
  return ladei_pinned_segment_is_kept_whole(segment, block) ? &node->whole : &node->split;
}

static void stray_note_drop(ladei_pinned_node *node, ladei_pinned_block *block) {
  ladei_lock_assert_held(&node->lock);
  if (ladei_retire_ticket_noted(&block->ticket)) ladei_retire_shards_forget(node->retire, &block->ticket);
}

/* Removed from its index and split to size; the rest goes into the index. Still FREE. */
static void block_split(ladei_pinned_node *node, ladei_tlsf *index, ladei_pinned_block *block, size_t pages) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_segment *segment = segment_of(node, block);
  ladei_tlsf_remove(index, block);
  ladei_pinned_block *rest = ladei_pinned_segment_split(segment, block, pages);
  if (rest != NULL) ladei_tlsf_insert(&node->split, rest);
}

/* Cost of a block beside its excess, in parts of a page: the more, the younger its segment and the higher it lies. */
typedef struct placement_cost {
  const ladei_pinned_node *node;
  uint64_t weight; /* from one birth to the next */
} placement_cost;

/*
 * Note [Old segments first]
 *   If nothing is allocated from the youngest segments, they become wholly free and can be given back. So of
 *   two free blocks the one in the older segment is better, and in one segment the lower one, even if it fits worse.
 *   How much worse depends on how much is free. If little is free, a bad fit costs a new segment soon: best fit then.
 *   If more is free than random replacement leaves anyhow, from PLACEMENT_FREE parts of PLACEMENT_ALL on, there is
 *   something to be given back: one page for each further part, up to PLACEMENT_MOST, from the lowest block to the
 *   highest. Not with one segment, which nothing can empty.
 *   Simulated with the lists of benchmarks/micro/sizes.h in 64 segments: reserved by requested bytes after 20 turnovers,
 *   median and largest of 30 and 80 runs:     token 1.124, 1.159    dali 1.187, 1.295
 *   with a weight of the request's size:            1.148, 1.176         1.190, 1.311
 *   Neither finer nor coarser sizes, nor a look at more blocks, nor the fullest segment first did better. The rest is
 *   mostly the swing of the requested bytes: their highest sum was 6 to 15 % above the last one.
 */
enum { PLACEMENT_ALL = 2048, PLACEMENT_FREE = 164, PLACEMENT_MOST = 256 };

static placement_cost placement_cost_make(const ladei_pinned_node *node) {
  uint64_t births = node->first == NULL ? 1 : node->last->birth - node->first->birth + 1;
  uint64_t pages = node->reserved_bytes >> LADEI_PINNED_PAGE_SHIFT;
  uint64_t parts = pages == 0 ? 0 : node->split.page_count * PLACEMENT_ALL / pages;
  uint64_t most = parts <= PLACEMENT_FREE || births == 1 ? 0 : ladei_size_min(parts - PLACEMENT_FREE, PLACEMENT_MOST);
  return (placement_cost){node, most * LADEI_PINNED_TLSF_PAGE_PARTS / births};
}

static uint64_t placement_cost_of(const void *user, const ladei_pinned_block *block) {
  const placement_cost *own = user;
  const ladei_pinned_segment *segment = segment_of(own->node, block);
  size_t page = (ladei_pinned_block_address(block) - ladei_pinned_segment_base(segment)) >> LADEI_PINNED_PAGE_SHIFT;
  return (segment->birth - own->node->first->birth) * own->weight +
         page * own->weight / ladei_pinned_segment_page_count(segment);
}

static ladei_pinned_block *pages_find(const ladei_pinned_node *node, size_t pages) {
  ladei_lock_assert_held(&node->lock);
  const placement_cost ages = placement_cost_make(node);
  return ladei_tlsf_find_least(&node->split, pages, placement_cost_of, &ages);
}

/* A FREE block of exactly `pages`, in no list. */
static ladei_pinned_block *pages_take(ladei_pinned_node *node, size_t pages) {
  ladei_pinned_block *block = pages_find(node, pages);
  if (block != NULL) block_split(node, &node->split, block, pages);
  return block;
}

/* A free segment made for one request serves another of at least 8/9 of its size. */
static ladei_pinned_block *whole_take(ladei_pinned_node *node, size_t bytes) {
  ladei_lock_assert_held(&node->lock);
  size_t pages = ladei_pinned_pages(bytes), most_pages = (bytes + bytes / 8) >> LADEI_PINNED_PAGE_SHIFT;
  ladei_pinned_block *block = ladei_tlsf_find_close(&node->whole, pages, ladei_size_max(pages, most_pages));
  if (block != NULL) ladei_tlsf_remove(&node->whole, block);
  return block;
}

static ladei_pinned_block *blocks_coalesce(ladei_pinned_node *node, ladei_pinned_segment *segment,
                                           ladei_pinned_block *first, ladei_pinned_block *second) {
  stray_note_drop(node, second);
  ladei_pinned_segment_coalesce(segment, first, second);
  return first;
}

/* A FREE block in no list coalesces with its neighbours and goes into its index. */
static void pages_put(ladei_pinned_node *node, ladei_pinned_segment *segment, ladei_pinned_block *block) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_block *after = ladei_pinned_segment_after(segment, block);
  if (after != NULL) {
    ladei_tlsf_remove(&node->split, after);
    block = blocks_coalesce(node, segment, block, after);
  }
  ladei_pinned_block *before = ladei_pinned_segment_before(segment, block);
  if (before != NULL) {
    ladei_tlsf_remove(&node->split, before);
    block = blocks_coalesce(node, segment, before, block);
  }
  if (ladei_pinned_segment_is_whole(segment, block)) {
    segment->free_since_ns = 0;
    segment->divided = false;
  }
  ladei_tlsf_insert(index_of(node, segment, block), block);
}

/* ---- Small blocks ------------------------------------------------------------------------------------------------ */

static void run_link(ladei_pinned_node *node, ladei_pinned_run *run, unsigned class_index) {
  ladei_lock_assert_held(&node->lock);
  run->prev = NULL;
  run->next = node->runs[class_index];
  if (run->next != NULL) run->next->prev = run;
  node->runs[class_index] = run;
}

static void run_unlink(ladei_pinned_node *node, ladei_pinned_run *run, unsigned class_index) {
  ladei_lock_assert_held(&node->lock);
  if (run->next != NULL) run->next->prev = run->prev;
  if (run->prev != NULL)
    run->prev->next = run->next;
  else
    node->runs[class_index] = run->next;
}

static uint64_t run_bytes(unsigned class_index) {
  return (uint64_t)ladei_pinned_run_blocks(class_index) * ladei_pinned_class_bytes(class_index);
}

static ladei_pinned_run *run_create(ladei_pinned_node *node, unsigned class_index) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_run *run = ladei_slab_alloc(&node->run_records);
  if (run == NULL) return NULL;
  ladei_pinned_block *pages = pages_take(node, ladei_pinned_run_pages(class_index));
  if (pages == NULL) {
    ladei_slab_free(&node->run_records, run);
    return NULL;
  }
  ladei_pinned_run_open(run, segment_of(node, pages), pages, class_index);
  run_link(node, run, class_index);
  node->free_small_bytes += run_bytes(class_index);
  return run;
}

static void run_destroy(ladei_pinned_node *node, ladei_pinned_run *run, unsigned class_index) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_block *pages = run->pages;
  for (unsigned i = 0; i < ladei_pinned_run_blocks(class_index); i++) stray_note_drop(node, &run->blocks[i]);
  run_unlink(node, run, class_index);
  ladei_pinned_run_close(run);
  ladei_slab_free(&node->run_records, run);
  node->free_small_bytes -= run_bytes(class_index);
  pages_put(node, segment_of(node, pages), pages);
}

static ladei_pinned_block *small_take(ladei_pinned_node *node, unsigned class_index) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_run *run = node->runs[class_index];
  if (run == NULL) run = run_create(node, class_index);
  if (run == NULL) return NULL;
  ladei_pinned_block *block = ladei_pinned_run_take(run);
  if (node->idle_runs[class_index] == run) node->idle_runs[class_index] = NULL;
  node->free_small_bytes -= ladei_pinned_class_bytes(class_index);
  if (ladei_pinned_run_is_full(run)) run_unlink(node, run, class_index);
  return block;
}

static ladei_pinned_run *run_of(ladei_pinned_node *node, const ladei_pinned_block *block) {
  ladei_pinned_segment *segment = segment_of(node, block);
  size_t page = (ladei_pinned_block_address(block) - ladei_pinned_segment_base(segment)) >> LADEI_PINNED_PAGE_SHIFT;
  return ladei_pinned_block_run(&segment->blocks[page]);
}

static void small_put(ladei_pinned_node *node, ladei_pinned_block *block, unsigned class_index) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_run *run = run_of(node, block);
  if (ladei_pinned_run_is_full(run)) run_link(node, run, class_index);
  ladei_pinned_run_put(run, block);
  node->free_small_bytes += ladei_pinned_class_bytes(class_index);
  if (!ladei_pinned_run_is_empty(run)) return;
  if (node->idle_runs[class_index] == NULL)
    node->idle_runs[class_index] = run;
  else
    run_destroy(node, run, class_index);
}

/* ---- Blocks taken from free memory and returned to it ------------------------------------------------------------ */

static void counter_pair_add(ladei_pinned_counter_pair *pair, uint64_t bytes) {
  uint64_t blocks = atomic_load_explicit(&pair->blocks, memory_order_relaxed);
  uint64_t sum = atomic_load_explicit(&pair->bytes, memory_order_relaxed);
  atomic_store_explicit(&pair->blocks, blocks + 1, memory_order_relaxed);
  atomic_store_explicit(&pair->bytes, sum + bytes, memory_order_relaxed);
}

static void taken_count(ladei_pinned_node *node, const ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  counter_pair_add(&node->counters.classes[ladei_pinned_word_class(word)].taken, ladei_pinned_block_bytes(block, word));
}

/* A block that is a whole segment, under PyTorch's policy: counted by its size, which may be below a page. */
static void segment_taken_count(ladei_pinned_node *node, const ladei_pinned_segment *segment) {
  size_t bytes = ladei_pinned_segment_bytes(segment);
  counter_pair_add(&node->counters.classes[ladei_pinned_class_of(bytes)].taken, bytes);
}

static void returned_count(ladei_pinned_node *node, const ladei_pinned_segment *segment,
                           const ladei_pinned_block *block, uint64_t word) {
  size_t bytes = ladei_pinned_segment_block_bytes(segment, block, word);
  bool short_page = bytes < LADEI_PINNED_PAGE_BYTES;
  counter_pair_add(
      &node->counters.classes[short_page ? ladei_pinned_class_of(bytes) : ladei_pinned_word_class(word)].returned,
      bytes);
}

/* ---- Take and put ------------------------------------------------------------------------------------------------ */

static size_t pages_for(size_t bytes, bool exact) {
  return exact ? ladei_pinned_pages(bytes) : ladei_pinned_pages_per_block(bytes);
}

/* A FREE block in no list is about to be the caller's. */
static ladei_pinned_block *block_taken(ladei_pinned_node *node, ladei_pinned_block *block) {
  if (block != NULL) {
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    ladei_pinned_block_next_set(block, NULL);
    taken_count(node, block);
  }
  return block;
}

static ladei_pinned_block *take_locked(ladei_pinned_node *node, size_t bytes, bool exact) {
  ladei_lock_assert_held(&node->lock);
  unsigned class_index = ladei_pinned_class_of(bytes);
  if (class_index < LADEI_PINNED_SMALL_CLASSES) {
    ladei_pinned_block *small = small_take(node, class_index);
    if (small != NULL) {
      ladei_pinned_block_next_set(small, NULL);
      taken_count(node, small);
    }
    return small;
  }
  ladei_pinned_block *block = exact ? NULL : pages_take(node, pages_for(bytes, exact));
  return block_taken(node, block != NULL ? block : whole_take(node, bytes));
}

ladei_pinned_block *ladei_pinned_node_take_just(ladei_pinned_node *node, size_t bytes) {
  assert(bytes > LADEI_PINNED_MAGAZINE_MAX_BYTES); /* below, blocks of a class are alike */
  node_acquire(node);
  ladei_pinned_block *block = block_taken(node, pages_take(node, ladei_pinned_pages(bytes)));
  lock_release_recounted(node);
  return block;
}

/* Side by side, from the beginning of a free block, onto a list. */
static void blocks_carve(ladei_pinned_node *node, ladei_pinned_segment *segment, ladei_pinned_block *block,
                         size_t pages, unsigned count, ladei_pinned_block **list) {
  ladei_lock_assert_held(&node->lock);
  ladei_tlsf_remove(&node->split, block);
  for (; count > 0; count--) {
    ladei_pinned_block *rest = ladei_pinned_segment_split(segment, block, pages);
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    ladei_pinned_block_next_set(block, *list);
    taken_count(node, block);
    *list = block;
    block = rest;
  }
  if (block != NULL) ladei_tlsf_insert(&node->split, block);
}

/*
 * Blocks above the small ones: each free block that fits best is cut into as many as it has. Its rest would mostly fit
 * the next request best, too, so these are the blocks that requests of one each would get, for one change of the index.
 * Of single pages the last one is odd, if need be for one less: the records of an even page and the next one are a pair
 * of cache lines, which processors fetch together, and so are mostly one thread's.
 */
static ladei_pinned_block *several_take(ladei_pinned_node *node, size_t bytes, unsigned count) {
  ladei_pinned_block *list = NULL, *block;
  const size_t pages = pages_for(bytes, false);
  while (count > 0 && (block = pages_find(node, pages)) != NULL) {
    ladei_pinned_segment *segment = segment_of(node, block);
    unsigned most = (unsigned)ladei_size_min(ladei_pinned_block_pages(block) / pages, count);
    bool splits_pair = pages == 1 && most > 1 && (ladei_pinned_segment_page_of(segment, block) + most) % 2 != 0;
    blocks_carve(node, segment, block, pages, splits_pair ? most - 1 : most, &list);
    count -= most;
  }
  return list;
}

ladei_pinned_block *ladei_pinned_node_take(ladei_pinned_node *node, size_t bytes, bool exact, unsigned count) {
  ladei_pinned_block *list = NULL, *block;
  node_acquire(node);
  if (!exact && count > 1 && ladei_pinned_class_of(bytes) >= LADEI_PINNED_SMALL_CLASSES) {
    list = several_take(node, bytes, count);
    count = list == NULL ? 1 : 0;
  }
  for (; count > 0 && (block = take_locked(node, bytes, exact)) != NULL; count--) {
    ladei_pinned_block_next_set(block, list);
    list = block;
  }
  lock_release_recounted(node);
  return list;
}

/* Makes one whole segment of at least `pages` divisible: its memory is in `split` until it is wholly free again. One in
 * chunks is not: the caller gives it back then, and pins anew. */
static bool whole_divide(ladei_pinned_node *node, size_t pages) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_block *block = ladei_tlsf_find(&node->whole, pages);
  if (block == NULL || ladei_pinned_segment_in_chunks(segment_of(node, block))) return false;
  ladei_tlsf_remove(&node->whole, block);
  segment_of(node, block)->divided = true;
  ladei_tlsf_insert(&node->split, block);
  return true;
}

ladei_pinned_block *ladei_pinned_node_take_from_whole(ladei_pinned_node *node, size_t bytes) {
  unsigned class_index = ladei_pinned_class_of(bytes);
  bool small = class_index < LADEI_PINNED_SMALL_CLASSES;
  size_t pages = small ? ladei_pinned_run_pages(class_index) : pages_for(bytes, false);
  node_acquire(node);
  ladei_pinned_block *block = take_locked(node, bytes, false);
  if (block == NULL && whole_divide(node, pages)) block = take_locked(node, bytes, false);
  lock_release_recounted(node);
  return block;
}

static void put_locked(ladei_pinned_node *node, ladei_pinned_block *list) {
  ladei_lock_assert_held(&node->lock);
  while (list != NULL) {
    ladei_pinned_block *block = list;
    uint64_t word = ladei_pinned_block_word(block);
    list = ladei_pinned_block_next(block);
    if (ladei_pinned_word_is_small(word)) {
      counter_pair_add(&node->counters.classes[ladei_pinned_word_class(word)].returned,
                       ladei_pinned_block_bytes(block, word));
      small_put(node, block, ladei_pinned_word_class(word));
    } else {
      ladei_pinned_segment *segment = segment_of(node, block);
      returned_count(node, segment, block, word);
      ladei_pinned_segment_take_back(segment, block);
      pages_put(node, segment, block);
    }
  }
}

void ladei_pinned_node_put(ladei_pinned_node *node, ladei_pinned_block *list) {
  if (list == NULL) return;
  if (ladei_lock_is_busy(&node->lock)) {
    returned_push(node, list);
    return;
  }
  node_acquire(node);
  put_locked(node, list);
  lock_release_recounted(node);
}

void ladei_pinned_node_collect(ladei_pinned_node *node) {
  node_acquire(node);
  put_locked(node, ladei_pinned_bins_empty(&node->bins));
  put_locked(node, ladei_pinned_depot_empty(node->depot));
  for (unsigned class_index = 0; class_index < LADEI_PINNED_SMALL_CLASSES; class_index++) {
    ladei_pinned_run *run = node->idle_runs[class_index];
    if (run != NULL) {
      node->idle_runs[class_index] = NULL;
      run_destroy(node, run, class_index);
    }
  }
  lock_release_recounted(node);
}

void ladei_pinned_node_put_one(ladei_pinned_node *node, ladei_pinned_block *block) {
  ladei_pinned_block_next_set(block, NULL);
  ladei_pinned_node_put(node, block);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* Links by age, so that the list stays oldest first when a segment comes back. */
static void segment_link(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_lock_assert_held(&node->lock);
  ladei_pinned_segment *before = node->last;
  while (before != NULL && before->birth > segment->birth) before = before->prev;
  segment->prev = before;
  segment->next = before == NULL ? node->first : before->next;
  *(segment->next == NULL ? &node->last : &segment->next->prev) = segment;
  *(before == NULL ? &node->first : &before->next) = segment;
  node->reserved_bytes += ladei_pinned_segment_bytes(segment);
  node->reserved_peak = node->reserved_bytes > node->reserved_peak ? node->reserved_bytes : node->reserved_peak;
}

static void segment_unlink(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_lock_assert_held(&node->lock);
  *(segment->next == NULL ? &node->last : &segment->next->prev) = segment->prev;
  *(segment->prev == NULL ? &node->first : &segment->prev->next) = segment->next;
  segment->next = segment->prev = NULL;
  node->reserved_bytes -= ladei_pinned_segment_bytes(segment);
}

/* Under the lock. */
static void segment_enter(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  ladei_lock_assert_held(&node->lock);
  segment_link(node, segment);
  ladei_tlsf_insert(index_of(node, segment, &segment->blocks[0]), &segment->blocks[0]);
}

ladei_pinned_block *ladei_pinned_node_add_segment(ladei_pinned_node *node, ladei_pinned_segment *segment, size_t bytes,
                                                  bool exact) {
  node_acquire(node);
  segment_enter(node, segment);
  node->reserved_allocated += ladei_pinned_segment_bytes(segment);
  ladei_pinned_block *block = bytes == 0 ? NULL : take_locked(node, bytes, exact);
  lock_release_recounted(node);
  return block;
}

ladei_pinned_block *ladei_pinned_node_add_taken_segment(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  node_acquire(node);
  segment_link(node, segment);
  ladei_pinned_block_state_set(&segment->blocks[0], LADEI_PINNED_BLOCK_CACHED);
  ladei_pinned_block_next_set(&segment->blocks[0], NULL);
  node->reserved_allocated += ladei_pinned_segment_bytes(segment);
  segment_taken_count(node, segment);
  lock_release_recounted(node);
  return &segment->blocks[0];
}

void ladei_pinned_node_count_reserved(ladei_pinned_node *node, uint64_t bytes) {
  node_acquire(node);
  node->reserved_allocated += bytes;
  ladei_lock_release(&node->lock);
}

void ladei_pinned_node_restore_segment(ladei_pinned_node *node, ladei_pinned_segment *segment) {
  node_acquire(node);
  segment_enter(node, segment);
  lock_release_recounted(node);
}

static bool segment_is_free(const ladei_pinned_segment *segment) {
  const ladei_pinned_block *first = &segment->blocks[0];
  return ladei_pinned_word_state(ladei_pinned_block_word(first)) == LADEI_PINNED_BLOCK_FREE &&
         ladei_pinned_segment_is_whole(segment, first);
}

void ladei_pinned_node_stamp_free_segments(ladei_pinned_node *node, uint64_t now_ns) {
  node_acquire(node);
  for (ladei_pinned_segment *segment = node->first; segment != NULL; segment = segment->next)
    if (segment->free_since_ns == 0 && segment_is_free(segment)) segment->free_since_ns = now_ns;
  ladei_lock_release(&node->lock);
}

/* Whether `a` serves a request better than `b`, which may be NULL. */
static bool segment_is_better(const ladei_pinned_segment *a, const ladei_pinned_segment *b) {
  return b == NULL || ladei_pinned_segment_bytes(a) < ladei_pinned_segment_bytes(b) ||
         (ladei_pinned_segment_bytes(a) == ladei_pinned_segment_bytes(b) &&
          ladei_pinned_segment_base(a) < ladei_pinned_segment_base(b));
}

ladei_pinned_block *ladei_pinned_node_take_best(ladei_pinned_node *node, size_t bytes) {
  ladei_pinned_segment *best = NULL;
  node_acquire(node);
  for (ladei_pinned_segment *segment = node->first; segment != NULL; segment = segment->next)
    if (ladei_pinned_segment_bytes(segment) >= bytes && segment_is_free(segment) && segment_is_better(segment, best))
      best = segment;
  ladei_pinned_block *block = best == NULL ? NULL : &best->blocks[0];
  if (block != NULL) {
    ladei_tlsf_remove(index_of(node, best, block), block);
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    ladei_pinned_block_next_set(block, NULL);
    segment_taken_count(node, best);
  }
  lock_release_recounted(node);
  return block;
}

/* Free, and seen free at that time or before; at any time for UINT64_MAX. */
static bool segment_is_free_since(const ladei_pinned_segment *segment, uint64_t free_before_ns) {
  bool old = free_before_ns == UINT64_MAX || (segment->free_since_ns != 0 && segment->free_since_ns <= free_before_ns);
  return old && segment_is_free(segment);
}

ladei_pinned_segment *ladei_pinned_node_remove_free_segment(ladei_pinned_node *node, uint64_t free_before_ns,
                                                            uint64_t born_before, uint64_t *out_birth) {
  node_acquire(node);
  ladei_pinned_segment *segment = node->first;
  while (segment != NULL && !segment_is_free_since(segment, free_before_ns)) segment = segment->next;
  *out_birth = segment == NULL ? UINT64_MAX : segment->birth;
  if (segment != NULL && segment->birth >= born_before) segment = NULL;
  if (segment != NULL) {
    ladei_pinned_block *block = &segment->blocks[0];
    ladei_tlsf_remove(index_of(node, segment, block), block);
    stray_note_drop(node, block);
    segment_unlink(node, segment);
  }
  lock_release_recounted(node);
  return segment;
}

uint64_t ladei_pinned_node_free_bytes(ladei_pinned_node *node) {
  node_acquire(node);
  uint64_t whole_pages = 0, whole_bytes = 0;
  for (const ladei_pinned_segment *segment = node->first; segment != NULL; segment = segment->next) {
    if (segment_is_free(segment)) {
      whole_pages += ladei_pinned_segment_page_count(segment);
      whole_bytes += ladei_pinned_segment_bytes(segment);
    }
  }
  uint64_t split_pages = node->split.page_count + node->whole.page_count - whole_pages;
  uint64_t free_bytes = (split_pages << LADEI_PINNED_PAGE_SHIFT) + node->free_small_bytes + whole_bytes;
  ladei_lock_release(&node->lock);
  return free_bytes;
}

void ladei_pinned_node_settle(ladei_pinned_node *node) {
  node_acquire(node);
  lock_release_recounted(node);
}

void ladei_pinned_node_reserved(ladei_pinned_node *node, lade_pinned_gauge *out) {
  node_acquire(node);
  out->current = node->reserved_bytes;
  out->peak = node->reserved_peak;
  out->allocated = node->reserved_allocated;
  out->freed = node->reserved_allocated - node->reserved_bytes;
  ladei_lock_release(&node->lock);
}

void ladei_pinned_node_reserved_peak_reset(ladei_pinned_node *node) {
  node_acquire(node);
  node->reserved_peak = node->reserved_bytes;
  ladei_lock_release(&node->lock);
}

/* ---- Snapshot ---------------------------------------------------------------------------------------------------- */

typedef struct view_list {
  ladei_pinned_block_view *views;
  size_t count, capacity;
} view_list;

static void view_add(view_list *list, const ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  if (list->count < list->capacity) {
    /* Under the node's lock a block keeps its place and size, not its state: threads hand it out and take it back. */
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
  node_acquire(node);
  for (const ladei_pinned_segment *segment = node->first; segment != NULL; segment = segment->next)
    view_segment(&list, segment);
  ladei_lock_release(&node->lock);
  return list.count;
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

static lade_status broken(const ladei_pinned_node *node, const char *invariant, uint64_t found, uint64_t expected) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "pinned node %u: %s: %llu instead of %llu", node->index, invariant,
                     (unsigned long long)found, (unsigned long long)expected);
}

typedef struct node_recount {
  uint64_t bytes, free_blocks, free_pages, whole_blocks, whole_pages;
} node_recount;

static void recount_segment(const ladei_pinned_segment *segment, node_recount *sum) {
  size_t page_count = ladei_pinned_segment_page_count(segment);
  sum->bytes += ladei_pinned_segment_bytes(segment);
  for (size_t page = 0; page < page_count; page += ladei_pinned_block_pages(&segment->blocks[page])) {
    const ladei_pinned_block *block = &segment->blocks[page];
    if (ladei_pinned_word_state(ladei_pinned_block_word(block)) == LADEI_PINNED_BLOCK_FREE) {
      bool whole = ladei_pinned_segment_is_kept_whole(segment, block);
      *(whole ? &sum->whole_blocks : &sum->free_blocks) += 1;
      *(whole ? &sum->whole_pages : &sum->free_pages) += ladei_pinned_block_pages(block);
    }
  }
}

static lade_status check_segments(ladei_pinned_node *node) {
  ladei_lock_assert_held(&node->lock);
  node_recount sum = {0};
  for (ladei_pinned_segment *segment = node->first; segment != NULL; segment = segment->next) {
    LADEI_TRY(ladei_pinned_segment_check(segment));
    recount_segment(segment, &sum);
  }
  if (sum.bytes != node->reserved_bytes) return broken(node, "I3 (reserved bytes)", node->reserved_bytes, sum.bytes);
  if (sum.free_blocks != node->split.block_count || sum.free_pages != node->split.page_count)
    return broken(node, "I1 (free pages in `split`)", node->split.page_count, sum.free_pages);
  if (sum.whole_blocks != node->whole.block_count || sum.whole_pages != node->whole.page_count)
    return broken(node, "I1 (free pages in `whole`)", node->whole.page_count, sum.whole_pages);
  return LADE_OK;
}

static lade_status check_runs(const ladei_pinned_node *node) {
  ladei_lock_assert_held(&node->lock);
  uint64_t bytes = 0;
  for (unsigned class_index = 0; class_index < LADEI_PINNED_SMALL_CLASSES; class_index++) {
    for (const ladei_pinned_run *run = node->runs[class_index]; run != NULL; run = run->next) {
      LADEI_TRY(ladei_pinned_run_check(run));
      if (ladei_pinned_run_is_full(run) || ladei_pinned_run_is_empty(run) != (run == node->idle_runs[class_index]))
        return broken(node, "I2 (runs with a free block), mask", run->free_mask, class_index);
      bytes += (unsigned)__builtin_popcount(run->free_mask) * ladei_pinned_class_bytes(class_index);
    }
  }
  return bytes == node->free_small_bytes ? LADE_OK
                                         : broken(node, "I3 (free small bytes)", node->free_small_bytes, bytes);
}

static lade_status node_recount_all(ladei_pinned_node *node) {
  lade_status status = check_segments(node);
  return status == LADE_OK ? check_runs(node) : status;
}

lade_status ladei_pinned_node_check(ladei_pinned_node *node) {
  node_acquire(node);
  lade_status status = node_recount_all(node);
  ladei_lock_release(&node->lock);
  return status;
}
