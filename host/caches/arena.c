/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena of a NUMA node's cache.
 *
 * I1  Every FREE page block of the arena's segments is in exactly one index: in `whole` if it is all of a segment made
 *     for one large request and not divided since, otherwise in `split`.
 * I2  A run is in the list of its class if and only if it has a free block; a run without a block in use does not
 *     exist.
 * I3  reserved_bytes is the sum over the segments; free_small_bytes the sum of the free small blocks.
 * I4  The ticket of a block that is FREE is idle (except for a note that raced with a free, a mistake of the user's;
 *     such notes are dropped when the block's record stops being that of a block).
 * I5  A block that is put while another thread has the lock waits in `returned`, and is free memory for every function here:
 *     each that takes the lock puts these blocks where they belong first (Note [Returned blocks]).
 * Locks: arena->lock guards all of it, except `returned`. Nothing is called under it but base/ and
 * ladei_retire_shards_forget.
 */
#include "host/caches/arena.h"

#include <assert.h>

#include "base/error.h"
#include "host/caches/bins.h"

void ladei_pinned_arena_open(ladei_pinned_arena *arena, ladei_pagemap *map, ladei_retire_shards *retire, unsigned node,
                             unsigned index) {
  ladei_lock_init(&arena->lock, LADEI_RANK_ARENA);
  ladei_slab_init(&arena->run_records, sizeof(ladei_pinned_run));
  arena->map = map;
  arena->retire = retire;
  arena->node = node;
  arena->index = index;
}

void ladei_pinned_arena_close(ladei_pinned_arena *arena) {
  assert(arena->first == NULL);
  ladei_slab_destroy(&arena->run_records);
  ladei_lock_destroy(&arena->lock);
}

/* ---- Before a change ----------------------------------------------------------------------------------------------- */

/*
 * Note [Returned blocks]
 *   A thread that puts blocks needs no answer. Where threads take and put blocks of random sizes, two in five of those that
 *   came for the lock did so to put some. So while the lock is busy they leave their blocks here, by a compare-and-swap, and
 *   the next thread that has the lock puts them away, with the arena's memory in its processor's cache. The thread that holds
 *   the lock meanwhile need not look again when it gives the lock: a request that finds nothing takes the lock once more.
 */
static void returned_push(ladei_pinned_arena *arena, ladei_pinned_block *list) {
  ladei_pinned_block *last = list, *first = atomic_load_explicit(&arena->returned, memory_order_relaxed);
  while (ladei_pinned_block_next(last) != NULL) last = ladei_pinned_block_next(last);
  do {
    ladei_pinned_block_next_set(last, first);
  } while (!atomic_compare_exchange_weak_explicit(&arena->returned, &first, list, memory_order_release,
                                                  memory_order_relaxed));
}

void ladei_pinned_arena_settle(ladei_pinned_arena *arena) {
  ladei_lock_assert_held(&arena->lock);
  if (atomic_load_explicit(&arena->returned, memory_order_relaxed) != NULL)
    ladei_pinned_arena_put_held(arena, atomic_exchange_explicit(&arena->returned, NULL, memory_order_acquire));
}

void ladei_pinned_arena_acquire(ladei_pinned_arena *arena) {
  ladei_lock_acquire(&arena->lock);
  ladei_pinned_arena_settle(arena); /* I5 */
}

/* ---- After a change ---------------------------------------------------------------------------------------------- */

/*
 * The end of a change. Builds without NDEBUG recount the invariants here, of segments and runs too, and stop the
 * program if one is broken, near its cause: after a number of changes such that each pays for sixteen pages.
 */
void ladei_pinned_arena_release(ladei_pinned_arena *arena) {
#ifndef NDEBUG
  enum { PAGES_PER_CHANGE = 16 };
  if (++arena->changes_since_recount > arena->changes_per_recount) {
    arena->changes_since_recount = 0;
    arena->changes_per_recount = (arena->reserved_bytes >> LADEI_PINNED_PAGE_SHIFT) / PAGES_PER_CHANGE;
    if (ladei_pinned_arena_check(arena) != LADE_OK) ladei_error_stop();
  }
#endif
  ladei_lock_release(&arena->lock);
}

/* ---- Page blocks ------------------------------------------------------------------------------------------------- */

static ladei_pinned_segment *segment_of(const ladei_pinned_arena *arena, const ladei_pinned_block *block) {
  return ladei_pagemap_get(arena->map, (const void *)ladei_pinned_block_address(block));
}

static ladei_tlsf *index_of(ladei_pinned_arena *arena, const ladei_pinned_segment *segment,
                            const ladei_pinned_block *block) {
  return ladei_pinned_segment_is_kept_whole(segment, block) ? &arena->whole : &arena->split;
}

static void stray_note_drop(ladei_pinned_arena *arena, ladei_pinned_block *block) {
  ladei_lock_assert_held(&arena->lock);
  if (ladei_retire_ticket_noted(&block->ticket)) ladei_retire_shards_forget(arena->retire, &block->ticket);
}

/* Removed from its index and split to size; the rest goes into the index. Still FREE. */
static void block_split(ladei_pinned_arena *arena, ladei_tlsf *index, ladei_pinned_block *block, size_t pages) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_segment *segment = segment_of(arena, block);
  ladei_tlsf_remove(index, block);
  ladei_pinned_block *rest = ladei_pinned_segment_split(segment, block, pages);
  if (rest != NULL) ladei_tlsf_insert(&arena->split, rest);
}

/* Cost of a block beside its excess, in parts of a page: the more, the younger its segment and the higher it lies. */
typedef struct placement_cost {
  const ladei_pinned_arena *arena;
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

static placement_cost placement_cost_make(const ladei_pinned_arena *arena) {
  uint64_t births = arena->first == NULL ? 1 : arena->last->birth - arena->first->birth + 1;
  uint64_t pages = arena->reserved_bytes >> LADEI_PINNED_PAGE_SHIFT;
  uint64_t parts = pages == 0 ? 0 : arena->split.page_count * PLACEMENT_ALL / pages;
  uint64_t most = parts <= PLACEMENT_FREE || births == 1 ? 0 : ladei_size_min(parts - PLACEMENT_FREE, PLACEMENT_MOST);
  return (placement_cost){arena, most * LADEI_PINNED_TLSF_PAGE_PARTS / births};
}

static uint64_t placement_cost_of(const void *user, const ladei_pinned_block *block) {
  const placement_cost *own = user;
  const ladei_pinned_segment *segment = segment_of(own->arena, block);
  size_t page = (ladei_pinned_block_address(block) - ladei_pinned_segment_base(segment)) >> LADEI_PINNED_PAGE_SHIFT;
  return (segment->birth - own->arena->first->birth) * own->weight +
         page * own->weight / ladei_pinned_segment_page_count(segment);
}

static ladei_pinned_block *pages_find(const ladei_pinned_arena *arena, size_t pages) {
  ladei_lock_assert_held(&arena->lock);
  const placement_cost ages = placement_cost_make(arena);
  return ladei_tlsf_find_least(&arena->split, pages, placement_cost_of, &ages);
}

/* A FREE block of exactly `pages`, in no list. */
static ladei_pinned_block *pages_take(ladei_pinned_arena *arena, size_t pages) {
  ladei_pinned_block *block = pages_find(arena, pages);
  if (block != NULL) block_split(arena, &arena->split, block, pages);
  return block;
}

/* A free segment made for one request serves another of at least 8/9 of its size. */
static ladei_pinned_block *whole_take(ladei_pinned_arena *arena, size_t bytes) {
  ladei_lock_assert_held(&arena->lock);
  size_t pages = ladei_pinned_pages(bytes), most_pages = (bytes + bytes / 8) >> LADEI_PINNED_PAGE_SHIFT;
  ladei_pinned_block *block = ladei_tlsf_find_close(&arena->whole, pages, ladei_size_max(pages, most_pages));
  if (block != NULL) ladei_tlsf_remove(&arena->whole, block);
  return block;
}

static ladei_pinned_block *blocks_coalesce(ladei_pinned_arena *arena, ladei_pinned_segment *segment,
                                           ladei_pinned_block *first, ladei_pinned_block *second) {
  stray_note_drop(arena, second);
  ladei_pinned_segment_coalesce(segment, first, second);
  return first;
}

/* A FREE block in no list coalesces with its neighbours and goes into its index. */
static void pages_put(ladei_pinned_arena *arena, ladei_pinned_segment *segment, ladei_pinned_block *block) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_block *after = ladei_pinned_segment_after(segment, block);
  if (after != NULL) {
    ladei_tlsf_remove(&arena->split, after);
    block = blocks_coalesce(arena, segment, block, after);
  }
  ladei_pinned_block *before = ladei_pinned_segment_before(segment, block);
  if (before != NULL) {
    ladei_tlsf_remove(&arena->split, before);
    block = blocks_coalesce(arena, segment, before, block);
  }
  if (ladei_pinned_segment_is_whole(segment, block)) {
    segment->free_since_ns = 0;
    segment->divided = false;
  }
  ladei_tlsf_insert(index_of(arena, segment, block), block);
}

/* ---- Small blocks ------------------------------------------------------------------------------------------------ */

static void run_link(ladei_pinned_arena *arena, ladei_pinned_run *run, unsigned class_index) {
  ladei_lock_assert_held(&arena->lock);
  run->prev = NULL;
  run->next = arena->runs[class_index];
  if (run->next != NULL) run->next->prev = run;
  arena->runs[class_index] = run;
}

static void run_unlink(ladei_pinned_arena *arena, ladei_pinned_run *run, unsigned class_index) {
  ladei_lock_assert_held(&arena->lock);
  if (run->next != NULL) run->next->prev = run->prev;
  if (run->prev != NULL)
    run->prev->next = run->next;
  else
    arena->runs[class_index] = run->next;
}

static uint64_t run_bytes(unsigned class_index) {
  return (uint64_t)ladei_pinned_run_blocks(class_index) * ladei_pinned_class_bytes(class_index);
}

static ladei_pinned_run *run_create(ladei_pinned_arena *arena, unsigned class_index) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_run *run = ladei_slab_alloc(&arena->run_records);
  if (run == NULL) return NULL;
  ladei_pinned_block *pages = pages_take(arena, ladei_pinned_run_pages(class_index));
  if (pages == NULL) {
    ladei_slab_free(&arena->run_records, run);
    return NULL;
  }
  ladei_pinned_run_open(run, segment_of(arena, pages), pages, class_index);
  run_link(arena, run, class_index);
  arena->free_small_bytes += run_bytes(class_index);
  return run;
}

static void run_destroy(ladei_pinned_arena *arena, ladei_pinned_run *run, unsigned class_index) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_block *pages = run->pages;
  for (unsigned i = 0; i < ladei_pinned_run_blocks(class_index); i++) stray_note_drop(arena, &run->blocks[i]);
  run_unlink(arena, run, class_index);
  ladei_pinned_run_close(run);
  ladei_slab_free(&arena->run_records, run);
  arena->free_small_bytes -= run_bytes(class_index);
  pages_put(arena, segment_of(arena, pages), pages);
}

static ladei_pinned_block *small_take(ladei_pinned_arena *arena, unsigned class_index) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_run *run = arena->runs[class_index];
  if (run == NULL) run = run_create(arena, class_index);
  if (run == NULL) return NULL;
  ladei_pinned_block *block = ladei_pinned_run_take(run);
  if (arena->idle_runs[class_index] == run) arena->idle_runs[class_index] = NULL;
  arena->free_small_bytes -= ladei_pinned_class_bytes(class_index);
  if (ladei_pinned_run_is_full(run)) run_unlink(arena, run, class_index);
  return block;
}

static ladei_pinned_run *run_of(ladei_pinned_arena *arena, const ladei_pinned_block *block) {
  ladei_pinned_segment *segment = segment_of(arena, block);
  size_t page = (ladei_pinned_block_address(block) - ladei_pinned_segment_base(segment)) >> LADEI_PINNED_PAGE_SHIFT;
  return ladei_pinned_block_run(&segment->blocks[page]);
}

static void small_put(ladei_pinned_arena *arena, ladei_pinned_block *block, unsigned class_index) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_run *run = run_of(arena, block);
  if (ladei_pinned_run_is_full(run)) run_link(arena, run, class_index);
  ladei_pinned_run_put(run, block);
  arena->free_small_bytes += ladei_pinned_class_bytes(class_index);
  if (!ladei_pinned_run_is_empty(run)) return;
  if (arena->idle_runs[class_index] == NULL)
    arena->idle_runs[class_index] = run;
  else
    run_destroy(arena, run, class_index);
}

/* ---- Blocks taken from free memory and returned to it ------------------------------------------------------------ */

static void counter_pair_add(ladei_pinned_counter_pair *pair, uint64_t bytes) {
  uint64_t blocks = atomic_load_explicit(&pair->blocks, memory_order_relaxed);
  uint64_t sum = atomic_load_explicit(&pair->bytes, memory_order_relaxed);
  atomic_store_explicit(&pair->blocks, blocks + 1, memory_order_relaxed);
  atomic_store_explicit(&pair->bytes, sum + bytes, memory_order_relaxed);
}

static void taken_count(ladei_pinned_arena *arena, const ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  counter_pair_add(&arena->supply[ladei_pinned_word_class(word)].taken, ladei_pinned_block_bytes(block, word));
}

/* A block that is a whole segment, under PyTorch's policy: counted by its size, which may be below a page. */
static void segment_taken_count(ladei_pinned_arena *arena, const ladei_pinned_segment *segment) {
  size_t bytes = ladei_pinned_segment_bytes(segment);
  counter_pair_add(&arena->supply[ladei_pinned_class_of(bytes)].taken, bytes);
}

static void returned_count(ladei_pinned_arena *arena, const ladei_pinned_segment *segment,
                           const ladei_pinned_block *block, uint64_t word) {
  size_t bytes = ladei_pinned_segment_block_bytes(segment, block, word);
  bool short_page = bytes < LADEI_PINNED_PAGE_BYTES;
  counter_pair_add(&arena->supply[short_page ? ladei_pinned_class_of(bytes) : ladei_pinned_word_class(word)].returned,
                   bytes);
}

/* ---- Take and put ------------------------------------------------------------------------------------------------ */

static size_t pages_for(size_t bytes, bool exact) {
  return exact ? ladei_pinned_pages(bytes) : ladei_pinned_pages_per_block(bytes);
}

/* A FREE block in no list is about to be the caller's. */
static ladei_pinned_block *block_taken(ladei_pinned_arena *arena, ladei_pinned_block *block) {
  if (block != NULL) {
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    ladei_pinned_block_next_set(block, NULL);
    taken_count(arena, block);
  }
  return block;
}

static ladei_pinned_block *one_take(ladei_pinned_arena *arena, size_t bytes, bool exact) {
  ladei_lock_assert_held(&arena->lock);
  unsigned class_index = ladei_pinned_class_of(bytes);
  if (class_index < LADEI_PINNED_SMALL_CLASSES) {
    ladei_pinned_block *small = small_take(arena, class_index);
    if (small != NULL) {
      ladei_pinned_block_next_set(small, NULL);
      taken_count(arena, small);
    }
    return small;
  }
  ladei_pinned_block *block = exact ? NULL : pages_take(arena, pages_for(bytes, exact));
  return block_taken(arena, block != NULL ? block : whole_take(arena, bytes));
}

ladei_pinned_block *ladei_pinned_arena_take_just(ladei_pinned_arena *arena, size_t bytes) {
  assert(bytes > LADEI_PINNED_MAGAZINE_MAX_BYTES); /* below, blocks of a class are alike */
  return block_taken(arena, pages_take(arena, ladei_pinned_pages(bytes)));
}

/* Side by side, from the beginning of a free block, onto a list. */
static void blocks_carve(ladei_pinned_arena *arena, ladei_pinned_segment *segment, ladei_pinned_block *block,
                         size_t pages, unsigned count, ladei_pinned_block **list) {
  ladei_lock_assert_held(&arena->lock);
  ladei_tlsf_remove(&arena->split, block);
  for (; count > 0; count--) {
    ladei_pinned_block *rest = ladei_pinned_segment_split(segment, block, pages);
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    ladei_pinned_block_next_set(block, *list);
    taken_count(arena, block);
    *list = block;
    block = rest;
  }
  if (block != NULL) ladei_tlsf_insert(&arena->split, block);
}

/*
 * Blocks above the small ones: each free block that fits best is cut into as many as it has. Its rest would mostly fit
 * the next request best, too, so these are the blocks that requests of one each would get, for one change of the index.
 * Of single pages the last one is odd, if need be for one less: the records of an even page and the next one are a pair
 * of cache lines, which processors fetch together, and so are mostly one thread's.
 */
static ladei_pinned_block *several_take(ladei_pinned_arena *arena, size_t bytes, unsigned count) {
  ladei_pinned_block *list = NULL, *block;
  const size_t pages = pages_for(bytes, false);
  while (count > 0 && (block = pages_find(arena, pages)) != NULL) {
    ladei_pinned_segment *segment = segment_of(arena, block);
    unsigned most = (unsigned)ladei_size_min(ladei_pinned_block_pages(block) / pages, count);
    bool splits_pair = pages == 1 && most > 1 && (ladei_pinned_segment_page_of(segment, block) + most) % 2 != 0;
    blocks_carve(arena, segment, block, pages, splits_pair ? most - 1 : most, &list);
    count -= most;
  }
  return list;
}

ladei_pinned_block *ladei_pinned_arena_take(ladei_pinned_arena *arena, size_t bytes, bool exact, unsigned count) {
  ladei_pinned_block *list = NULL, *block;
  if (!exact && count > 1 && ladei_pinned_class_of(bytes) >= LADEI_PINNED_SMALL_CLASSES) {
    list = several_take(arena, bytes, count);
    count = list == NULL ? 1 : 0;
  }
  for (; count > 0 && (block = one_take(arena, bytes, exact)) != NULL; count--) {
    ladei_pinned_block_next_set(block, list);
    list = block;
  }
  return list;
}

/* Its memory is in `split` until it is wholly free again. */
bool ladei_pinned_arena_divide(ladei_pinned_arena *arena, size_t bytes) {
  ladei_lock_assert_held(&arena->lock);
  unsigned class_index = ladei_pinned_class_of(bytes);
  bool small = class_index < LADEI_PINNED_SMALL_CLASSES;
  size_t pages = small ? ladei_pinned_run_pages(class_index) : pages_for(bytes, false);
  ladei_pinned_block *block = ladei_tlsf_find(&arena->whole, pages);
  if (block == NULL || ladei_pinned_segment_in_chunks(segment_of(arena, block))) return false;
  ladei_tlsf_remove(&arena->whole, block);
  segment_of(arena, block)->divided = true;
  ladei_tlsf_insert(&arena->split, block);
  return true;
}

void ladei_pinned_arena_put_held(ladei_pinned_arena *arena, ladei_pinned_block *list) {
  ladei_lock_assert_held(&arena->lock);
  while (list != NULL) {
    ladei_pinned_block *block = list;
    uint64_t word = ladei_pinned_block_word(block);
    list = ladei_pinned_block_next(block);
    if (ladei_pinned_word_is_small(word)) {
      counter_pair_add(&arena->supply[ladei_pinned_word_class(word)].returned, ladei_pinned_block_bytes(block, word));
      small_put(arena, block, ladei_pinned_word_class(word));
    } else {
      ladei_pinned_segment *segment = segment_of(arena, block);
      returned_count(arena, segment, block, word);
      ladei_pinned_segment_take_back(segment, block);
      pages_put(arena, segment, block);
    }
  }
}

void ladei_pinned_arena_put(ladei_pinned_arena *arena, ladei_pinned_block *list) {
  if (ladei_lock_is_busy(&arena->lock)) {
    returned_push(arena, list);
    return;
  }
  ladei_pinned_arena_acquire(arena);
  ladei_pinned_arena_put_held(arena, list);
  ladei_pinned_arena_release(arena);
}

void ladei_pinned_arena_put_idle_runs(ladei_pinned_arena *arena) {
  for (unsigned class_index = 0; class_index < LADEI_PINNED_SMALL_CLASSES; class_index++) {
    ladei_pinned_run *run = arena->idle_runs[class_index];
    if (run != NULL) {
      arena->idle_runs[class_index] = NULL;
      run_destroy(arena, run, class_index);
    }
  }
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

/* Links by age, so that the list stays oldest first when a segment comes back. */
static void segment_link(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  ladei_lock_assert_held(&arena->lock);
  ladei_pinned_segment *before = arena->last;
  while (before != NULL && before->birth > segment->birth) before = before->prev;
  segment->prev = before;
  segment->next = before == NULL ? arena->first : before->next;
  *(segment->next == NULL ? &arena->last : &segment->next->prev) = segment;
  *(before == NULL ? &arena->first : &before->next) = segment;
  arena->reserved_bytes += ladei_pinned_segment_bytes(segment);
}

static void segment_unlink(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  ladei_lock_assert_held(&arena->lock);
  *(segment->next == NULL ? &arena->last : &segment->next->prev) = segment->prev;
  *(segment->prev == NULL ? &arena->first : &segment->prev->next) = segment->next;
  segment->next = segment->prev = NULL;
  arena->reserved_bytes -= ladei_pinned_segment_bytes(segment);
}

void ladei_pinned_arena_add(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  segment_link(arena, segment);
  ladei_tlsf_insert(index_of(arena, segment, &segment->blocks[0]), &segment->blocks[0]);
}

static ladei_pinned_block *segment_taken(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  ladei_pinned_block *block = &segment->blocks[0];
  ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
  ladei_pinned_block_next_set(block, NULL);
  segment_taken_count(arena, segment);
  return block;
}

ladei_pinned_block *ladei_pinned_arena_add_taken(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  segment_link(arena, segment);
  return segment_taken(arena, segment);
}

bool ladei_pinned_segment_is_free(const ladei_pinned_segment *segment) {
  const ladei_pinned_block *first = &segment->blocks[0];
  return ladei_pinned_word_state(ladei_pinned_block_word(first)) == LADEI_PINNED_BLOCK_FREE &&
         ladei_pinned_segment_is_whole(segment, first);
}

static void segment_unindex(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  ladei_lock_assert_held(&arena->lock);
  assert(ladei_pinned_segment_is_free(segment));
  ladei_tlsf_remove(index_of(arena, segment, &segment->blocks[0]), &segment->blocks[0]);
}

ladei_pinned_block *ladei_pinned_arena_take_segment(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  segment_unindex(arena, segment);
  return segment_taken(arena, segment);
}

void ladei_pinned_arena_remove(ladei_pinned_arena *arena, ladei_pinned_segment *segment) {
  segment_unindex(arena, segment);
  stray_note_drop(arena, &segment->blocks[0]);
  segment_unlink(arena, segment);
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

static lade_status broken(const ladei_pinned_arena *arena, const char *invariant, uint64_t found, uint64_t expected) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "pinned node %u, arena %u: %s: %llu instead of %llu", arena->node,
                     arena->index, invariant, (unsigned long long)found, (unsigned long long)expected);
}

typedef struct arena_recount {
  uint64_t bytes, free_blocks, free_pages, whole_blocks, whole_pages;
} arena_recount;

static void recount_segment(const ladei_pinned_segment *segment, arena_recount *sum) {
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

static lade_status check_segments(ladei_pinned_arena *arena) {
  ladei_lock_assert_held(&arena->lock);
  arena_recount sum = {0};
  for (ladei_pinned_segment *segment = arena->first; segment != NULL; segment = segment->next) {
    LADEI_TRY(ladei_pinned_segment_check(segment));
    recount_segment(segment, &sum);
  }
  if (sum.bytes != arena->reserved_bytes) return broken(arena, "I3 (reserved bytes)", arena->reserved_bytes, sum.bytes);
  if (sum.free_blocks != arena->split.block_count || sum.free_pages != arena->split.page_count)
    return broken(arena, "I1 (free pages in `split`)", arena->split.page_count, sum.free_pages);
  if (sum.whole_blocks != arena->whole.block_count || sum.whole_pages != arena->whole.page_count)
    return broken(arena, "I1 (free pages in `whole`)", arena->whole.page_count, sum.whole_pages);
  return LADE_OK;
}

static lade_status check_runs(const ladei_pinned_arena *arena) {
  ladei_lock_assert_held(&arena->lock);
  uint64_t bytes = 0;
  for (unsigned class_index = 0; class_index < LADEI_PINNED_SMALL_CLASSES; class_index++) {
    for (const ladei_pinned_run *run = arena->runs[class_index]; run != NULL; run = run->next) {
      LADEI_TRY(ladei_pinned_run_check(run));
      if (ladei_pinned_run_is_full(run) || ladei_pinned_run_is_empty(run) != (run == arena->idle_runs[class_index]))
        return broken(arena, "I2 (runs with a free block), mask", run->free_mask, class_index);
      bytes += (unsigned)__builtin_popcount(run->free_mask) * ladei_pinned_class_bytes(class_index);
    }
  }
  return bytes == arena->free_small_bytes ? LADE_OK
                                          : broken(arena, "I3 (free small bytes)", arena->free_small_bytes, bytes);
}

lade_status ladei_pinned_arena_check(ladei_pinned_arena *arena) {
  LADEI_TRY(check_segments(arena));
  return check_runs(arena);
}
