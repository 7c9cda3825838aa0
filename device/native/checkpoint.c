/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a private pool. Replaying a graph brings blocks to life without any call of the allocator; before more
 * is captured into the same pool, the allocator must be brought into the state that holds after that replay.
 *
 *   checkpoint     segment |-- used --|-- free --|-- used --|
 *   later          segment |-- free ------------------------|
 *   set            1. everything handed out from the pool is freed: each segment is one free block, or in an expandable
 *                     segment each mapped run
 *                  2. per saved segment: hand out the saved blocks one by one from its start, then free those that
 *                     were free
 *
 * Of an expandable segment each mapped run is saved. Memory that was wholly free may be given back in between
 * (lade_device_pool_trim), which graphs do not miss:
 *
 *   INTACT   all of it is there: laid out from its start. Memory mapped beyond a run since then stays free
 *   HOLED    a run of which parts are not mapped, or which is part of a longer one now: the blocks that were used are cut out of
 *            what is free around them
 *   GONE     a segment or run without memory, in which nothing was used: left out
 *
 * C1  A set either finds every saved segment INTACT, HOLED with memory under all that was used, or GONE, nothing in
 *     them pending and nothing with foreign uses, and then cannot fail; or changes nothing. Notes come without the
 *     lock: one that comes after the look changes nothing either.
 * C2  A set counts, and tells listeners, what freeing block by block and handing out block by block would; but a
 *     segment's free blocks pass through the free set only where they stay there. (A segment that is handed out again
 *     at once is BUSY in between.)
 * C3  Where threads free without the lock (T1 of thread_caches.h) a set claims every block that is handed out from the
 *     pool before it looks at them, and what it hands out for a moment before it frees it. Where one of them came first
 *     the set changes nothing; of what was handed out for a moment it leaves the block to that thread.
 * Locks: the allocator's lock throughout get and set; deferred frees are settled before, without it.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/heap/recent.h"
#include "device/native/native.h"
#include "device/native/pool_list.h"
#include "device/native/uses.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

typedef struct saved_block {
  size_t size;
  bool allocated;
} saved_block;

/* A plain segment, or a mapped run of an expandable one. */
typedef struct saved_segment {
  uint64_t address;
  size_t size;
  uint64_t stream_key;
  bool small;
  bool expandable;
  bool used; /* a block of it was handed out */
  size_t block_count;
  size_t first_block; /* in checkpoint->blocks */
} saved_segment;

struct lade_device_checkpoint {
  lade_device_pool_id id;
  size_t segment_count;
  size_t block_count;
  saved_segment *segments; /* by ascending address */
  saved_block *blocks;
};

/* The pool that a checkpoint is taken of or set for. Of a released one it may be taken, as long as the pool is
 * there. */
static lade_status pool_ready(const lade_device_allocator *allocator, const char *call, lade_device_pool_id id,
                              bool released_too, const ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  bool reference = allocator->heap.settings.reference;
  if (reference && atomic_load(&allocator->routes.captures) > 0)
    return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, call, id, "a capture is under way");
  if (pool == NULL) return ladei_device_pool_refused(call, id, "which is unknown", "a pool that was begun");
  if (atomic_load(&pool->capturing))
    return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, call, id, "a capture into it is under way");
  if (pool->use_count == 0 && !released_too)
    return ladei_device_pool_refused(call, id, "which is released", "a pool in use");
  *out = pool;
  return ladei_device_suspended_refuse(allocator, call, pool);
}

/* ---- Get --------------------------------------------------------------------------------------------------------- */

static bool run_begins(const ladei_device_block *block) {
  return block->previous == NULL || block->previous->state == LADEI_DEVICE_HEAP_HOLE;
}

/* Counts the pool's segments and runs, and their blocks. LADE_ERR_BUSY where a freed block still waits for other
 * streams. */
static lade_status pool_count(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                              size_t *segments, size_t *blocks) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next) {
      if (block->state == LADEI_DEVICE_HEAP_HOLE) continue;
      *segments += run_begins(block);
      *blocks += 1;
      if (ladei_device_block_handed_out(block) || block->state == LADEI_DEVICE_HEAP_FREE) continue;
      return ladei_device_pool_error(allocator, LADE_ERR_BUSY, "lade_device_checkpoint_get", pool->id,
                                     "other streams still use a freed block of it");
    }
  }
  return LADE_OK;
}

static void pool_save(const ladei_device_heap *heap, const ladei_device_private_pool *pool,
                      lade_device_checkpoint *checkpoint) {
  ladei_device_heap_assert_locked(heap);
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    bool expandable = ladei_device_heap_segment_expandable(segment);
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next) {
      if (block->state == LADEI_DEVICE_HEAP_HOLE) continue;
      if (run_begins(block)) {
        checkpoint->segments[checkpoint->segment_count++] = (saved_segment){.address = block->address,
                                                                            .stream_key = segment->stream_key,
                                                                            .small = segment->pool->is_small,
                                                                            .expandable = expandable,
                                                                            .first_block = checkpoint->block_count};
      }
      saved_segment *saved = &checkpoint->segments[checkpoint->segment_count - 1];
      bool allocated = ladei_device_block_handed_out(block);
      checkpoint->blocks[checkpoint->block_count++] = (saved_block){block->size, allocated};
      saved->block_count++;
      saved->size += block->size;
      saved->used = saved->used || allocated;
    }
  }
}

static lade_device_checkpoint *checkpoint_create(lade_device_pool_id id, size_t segments, size_t blocks) {
  lade_device_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
  if (checkpoint == NULL) return NULL;
  checkpoint->id = id;
  checkpoint->segments = calloc(segments + 1, sizeof *checkpoint->segments);
  checkpoint->blocks = calloc(blocks + 1, sizeof *checkpoint->blocks);
  if (checkpoint->segments != NULL && checkpoint->blocks != NULL) return checkpoint;
  lade_device_checkpoint_destroy(checkpoint);
  return NULL;
}

void lade_device_checkpoint_destroy(lade_device_checkpoint *checkpoint) {
  if (checkpoint == NULL) return;
  free(checkpoint->segments);
  free(checkpoint->blocks);
  free(checkpoint);
}

size_t ladei_device_native_checkpoint_bytes(const lade_device_checkpoint *checkpoint, size_t *out_blocks) {
  *out_blocks = checkpoint->block_count;
  return sizeof *checkpoint + (checkpoint->segment_count + 1) * sizeof *checkpoint->segments +
         (checkpoint->block_count + 1) * sizeof *checkpoint->blocks;
}

lade_status ladei_device_native_checkpoint_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                               lade_device_checkpoint **out) {
  ladei_device_uses_settle_deferred(allocator);
  const ladei_device_private_pool *pool = NULL;
  size_t segments = 0;
  size_t blocks = 0;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = pool_ready(allocator, "lade_device_checkpoint_get", id, true, &pool);
  if (status == LADE_OK) status = pool_count(allocator, pool, &segments, &blocks);
  lade_device_checkpoint *checkpoint = status == LADE_OK ? checkpoint_create(id, segments, blocks) : NULL;
  if (checkpoint != NULL) pool_save(&allocator->heap, pool, checkpoint);
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) return status;
  if (checkpoint == NULL) {
    return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, "lade_device_checkpoint_get", id,
                                   "no memory");
  }
  *out = checkpoint;
  return LADE_OK;
}

/* ---- Set --------------------------------------------------------------------------------------------------------- */

static const char set_call[] = "lade_device_checkpoint_set";

typedef enum saved_state { INTACT, HOLED, GONE } saved_state;

/* One set on its way. */
typedef struct restore {
  const lade_device_checkpoint *checkpoint;
  const ladei_device_private_pool *pool;
  uint8_t *states; /* saved_state by saved segment: frees and the restore leave it as it is */
  size_t next;     /* of the saved segments: the first one that begins at the segment that is freed, or above it */
  bool holed;      /* a saved run is */
  lade_device_restored *restored;
} restore;

static lade_status saved_gone(const saved_segment *saved) {
  return ladei_error_argument(set_call, "checkpoint", "one all of whose used memory is there",
                              "of a segment at %p that is gone", (void *)(uintptr_t)saved->address);
}

/* Whether the block lies in the segment that was saved. */
static bool block_fits(const lade_device_allocator *allocator, const ladei_device_block *block,
                       const ladei_device_private_pool *pool, const saved_segment *saved) {
  if (block == NULL || block->segment->pool->private_pool != pool) return false;
  const ladei_device_heap_segment *segment = block->segment;
  if (ladei_device_heap_segment_expandable(segment) != saved->expandable) return false;
  if (allocator->heap.settings.reference) return true; /* PyTorch's looks at addresses alone */
  return segment->stream_key == saved->stream_key && segment->pool->is_small == saved->small;
}

/* The block that a saved segment begins in, if it is there. */
static ladei_device_block *saved_begin(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                                       const saved_segment *saved) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block *block = ladei_device_heap_find(&allocator->heap, saved->address);
  if (!block_fits(allocator, block, pool, saved)) return NULL;
  const ladei_device_heap_segment *segment = block->segment;
  bool there = saved->expandable ? segment->address + segment->size >= saved->address + saved->size
                                 : segment->address == saved->address && segment->size == saved->size;
  return there ? block : NULL;
}

/* Where mapped memory begins and ends, which frees and a restore leave as it is. */
static saved_state saved_state_of(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                                  const saved_segment *saved) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_block *block = saved_begin(allocator, pool, saved);
  uint64_t end = saved->address + saved->size; /* within the segment, for runs as for whole segments */
  if (block == NULL) return GONE;
  if (!saved->expandable) return INTACT;
  if (block->address != saved->address || !run_begins(block)) return HOLED;
  for (; block != NULL && block->address < end; block = block->next)
    if (!block->mapped) return HOLED;
  return INTACT;
}

/* Whether a set may free all blocks of what was saved, where they are not free already. */
static lade_status saved_idle(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                              const saved_segment *saved) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t end = saved->address + saved->size;
  for (ladei_device_block *block = saved_begin(allocator, pool, saved); block != NULL && block->address < end;
       block = block->next) {
    bool allocated = ladei_device_block_handed_out(block) && !ladei_retire_ticket_noted(&block->ticket);
    if (allocated || block->state == LADEI_DEVICE_HEAP_FREE || block->state == LADEI_DEVICE_HEAP_HOLE) continue;
    return ladei_error(LADE_ERR_BUSY, 0, "%s: other streams use the block at %p, device %d", set_call,
                       (void *)(uintptr_t)block->address, allocator->device);
  }
  return LADE_OK;
}

/* Whether there is memory under everything that was used of a holed run. */
static bool run_has_used(const ladei_device_heap *heap, const lade_device_checkpoint *checkpoint,
                         const saved_segment *saved) {
  ladei_device_heap_assert_locked(heap);
  const saved_block *blocks = &checkpoint->blocks[saved->first_block];
  uint64_t address = saved->address;
  for (size_t i = 0; i < saved->block_count; address += blocks[i].size, i++) {
    if (!blocks[i].allocated) continue;
    for (const ladei_device_block *block = ladei_device_heap_find(heap, address);
         block != NULL && block->address < address + blocks[i].size; block = block->next)
      if (!block->mapped) return false;
  }
  return true;
}

/* C1, for one saved segment. */
static lade_status segment_ready(const lade_device_allocator *allocator, size_t index, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  const saved_segment *saved = &r->checkpoint->segments[index];
  saved_state state = saved_state_of(allocator, r->pool, saved);
  r->states[index] = (uint8_t)state;
  if (state != INTACT && allocator->heap.settings.reference) return saved_gone(saved);
  if (state == GONE) return saved->used ? saved_gone(saved) : LADE_OK;
  if (state == HOLED && !run_has_used(&allocator->heap, r->checkpoint, saved)) return saved_gone(saved);
  r->holed = r->holed || state == HOLED;
  return saved_idle(allocator, r->pool, saved);
}

/* The pool's block after this one, by address; NULL: its first one, and at the end. */
static ladei_device_block *pool_block_next(const ladei_device_heap *heap, const ladei_device_private_pool *pool,
                                           const ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  if (block != NULL && block->next != NULL) return block->next;
  ladei_device_heap_segment *segment =
      block == NULL ? ladei_device_heap_segment_first(heap) : ladei_device_heap_segment_next(block->segment);
  while (segment != NULL && segment->pool->private_pool != pool) segment = ladei_device_heap_segment_next(segment);
  return segment == NULL ? NULL : ladei_device_heap_segment_block(heap, segment);
}

/* Gives claims back, of the blocks before `end`, which are all this thread's; NULL: of all. */
static void pool_unclaim(const ladei_device_heap *heap, const ladei_device_private_pool *pool,
                         const ladei_device_block *end) {
  ladei_device_block *block = NULL;
  while ((block = pool_block_next(heap, pool, block)) != end)
    if (block->state == LADEI_DEVICE_HEAP_THREAD) ladei_device_block_unclaim(block);
}

/* C3. False, nothing changed, where another thread is freeing a block of the pool. */
static bool pool_claim(const lade_device_allocator *allocator, const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  ladei_device_block *block = NULL;
  if (allocator->thread_caches == NULL) return true; /* no free comes without the lock */
  while ((block = pool_block_next(heap, pool, block)) != NULL) {
    if (!ladei_device_block_handed_out(block) || ladei_device_block_claim(block)) continue;
    pool_unclaim(heap, pool, block);
    return false;
  }
  return true;
}

static size_t pool_live_count(const ladei_device_heap *heap, const ladei_device_private_pool *pool) {
  ladei_device_heap_assert_locked(heap);
  size_t live = 0;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next)
      live += ladei_device_block_handed_out(block);
  }
  return live;
}

/* Whether the address lies in a saved segment that is there. */
static bool saved_covers(const lade_device_allocator *allocator, const restore *r, uint64_t address) {
  const lade_device_checkpoint *checkpoint = r->checkpoint;
  size_t low = 0;
  size_t high = checkpoint->segment_count; /* those from here on begin after the address */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (checkpoint->segments[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == 0) return false;
  const saved_segment *saved = &checkpoint->segments[low - 1];
  return address - saved->address < saved->size && saved_begin(allocator, r->pool, saved) != NULL;
}

/*
 * Frees a block under the lock. Outside the saved segments one with foreign uses becomes pending, as in any free.
 * Inside there were none (C1); a note that has come since, without the lock, has met a free of its block and counts for
 * a later tenant of the record.
 */
static void block_free(lade_device_allocator *allocator, const restore *r, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_free_begin(&allocator->heap, block);
  if (ladei_retire_ticket_noted(&block->ticket) && !saved_covers(allocator, r, block->address)) {
    ladei_device_block_free_wait(&allocator->heap, block, LADEI_DEVICE_HEAP_PENDING);
    if (ladei_retire_add(allocator->retire, &block->ticket, true)) return;
  }
  ladei_device_block_free_complete(&allocator->heap, block);
}

/* Puts what a segment's frees have made so far, or what is left of a run that was handed out, into the cache. */
static void run_keep(ladei_device_heap *heap, ladei_device_block *run) {
  if (run != NULL) (void)ladei_device_block_insert(heap, run);
}

/* Out of the cache, a free block that a free above will join; NULL: this one stays. */
static ladei_device_block *run_take(ladei_device_block *block) {
  bool joined =
      block->state == LADEI_DEVICE_HEAP_FREE && block->next != NULL && ladei_device_block_handed_out(block->next);
  if (!joined) return NULL;
  ladei_device_block_remove(block);
  return block;
}

/* Whether a block, all of its segment, is handed out again at once: it stays BUSY until then. */
static bool restored_whole(restore *r, const ladei_device_block *block) {
  const lade_device_checkpoint *checkpoint = r->checkpoint;
  if (ladei_device_block_is_split(block)) return false;
  while (r->next < checkpoint->segment_count && checkpoint->segments[r->next].address < block->address) r->next++;
  if (r->next == checkpoint->segment_count || checkpoint->segments[r->next].address != block->address) return false;
  return r->states[r->next] == INTACT;
}

/*
 * Frees everything handed out from a segment, upwards. A block that is free already joins `run`, which enters the free
 * set once, at its end: neither counters nor listeners can tell that from a free of each block.
 */
static void segment_free_all(lade_device_allocator *allocator, restore *r, ladei_device_block *block,
                             size_t *freed_count) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_block *run = NULL;
  ladei_device_recent_forget(heap, block->segment->stream_key, block->segment->pool->is_small);
  for (; block != NULL; block = block->next) {
    uint64_t address = block->address;
    bool allocated = ladei_device_block_handed_out(block);
    if (allocated) r->restored->freed[(*freed_count)++] = (void *)(uintptr_t)address;
    if (allocated && !ladei_retire_ticket_noted(&block->ticket)) {
      ladei_device_block_free_begin(heap, block);
      run = block = ladei_device_block_free_complete_into(heap, run, block);
      continue;
    }
    run_keep(heap, run);
    if (allocated) {
      block_free(allocator, r, block);
      block = ladei_device_heap_find(heap, address); /* itself, or the free block that it is a part of */
    }
    run = run_take(block);
  }
  if (run == NULL || !restored_whole(r, run)) run_keep(heap, run);
}

/* Frees everything handed out from the pool, which is claimed, by ascending address. The addresses were counted. */
static void pool_free_all(lade_device_allocator *allocator, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  size_t count = 0;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment))
    if (segment->pool->private_pool == r->pool)
      segment_free_all(allocator, r, ladei_device_heap_segment_block(heap, segment), &count);
  assert(count == r->restored->freed_count);
}

static void created_add(restore *r, uint64_t address) {
  r->restored->created[r->restored->created_count++] = (void *)(uintptr_t)address;
}

/* An INTACT one. */
static void segment_restore(lade_device_allocator *allocator, const saved_segment *saved, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  const saved_block *blocks = &r->checkpoint->blocks[saved->first_block];
  ladei_device_block *first = ladei_device_block_map_get(&heap->starts, saved->address);
  ladei_device_recent_forget(heap, first->segment->stream_key, first->segment->pool->is_small);
  if (first->state == LADEI_DEVICE_HEAP_FREE) ladei_device_block_remove(first);
  ladei_device_block *rest = first;
  for (size_t i = 0; i < saved->block_count; i++) {
    assert(rest != NULL && rest->size >= blocks[i].size);
    rest = ladei_device_block_hand_out_low(heap, rest, blocks[i].size);
  }
  run_keep(heap, rest);
  ladei_device_block *block = first;
  for (size_t i = 0; i < saved->block_count; i++) {
    ladei_device_block *next = block->next;
    assert(block->size == blocks[i].size);
    assert(i == 0 || blocks[i].allocated || blocks[i - 1].allocated); /* I3 of heap.h: no free changes `next` */
    if (blocks[i].allocated)
      created_add(r, block->address);
    else if (ladei_device_block_claim(block)) /* C3 */
      block_free(allocator, r, block);
    block = next;
  }
}

/* Hands out a part of the free block around it. */
static void block_cut(ladei_device_heap *heap, uint64_t address, size_t size) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_block *block = ladei_device_heap_find(heap, address);
  assert(block->state == LADEI_DEVICE_HEAP_FREE && block->address + block->size >= address + size);
  ladei_device_recent_forget(heap, block->segment->stream_key, block->segment->pool->is_small);
  ladei_device_block_remove(block);
  if (block->address < address) {
    ladei_device_block *upper = ladei_device_block_split(heap, block, (size_t)(address - block->address));
    (void)ladei_device_block_insert(heap, block);
    block = upper;
  }
  (void)ladei_device_block_hand_out(heap, block, size, size, block->size > size);
}

/* A HOLED one. */
static void run_restore(lade_device_allocator *allocator, const saved_segment *saved, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  const saved_block *blocks = &r->checkpoint->blocks[saved->first_block];
  uint64_t address = saved->address;
  for (size_t i = 0; i < saved->block_count; address += blocks[i].size, i++) {
    if (!blocks[i].allocated) continue;
    block_cut(&allocator->heap, address, blocks[i].size);
    created_add(r, address);
  }
}

static size_t saved_live_count(const lade_device_checkpoint *checkpoint) {
  size_t live = 0;
  for (size_t i = 0; i < checkpoint->block_count; i++) live += checkpoint->blocks[i].allocated;
  return live;
}

static lade_device_restored *restored_create(size_t freed, size_t created) {
  lade_device_restored *restored = calloc(1, sizeof *restored);
  if (restored == NULL) return NULL;
  restored->freed = calloc(freed + 1, sizeof *restored->freed);
  restored->created = calloc(created + 1, sizeof *restored->created);
  restored->freed_count = freed;
  if (restored->freed != NULL && restored->created != NULL) return restored;
  lade_device_restored_destroy(restored);
  return NULL;
}

void lade_device_restored_destroy(lade_device_restored *restored) {
  if (restored == NULL) return;
  free(restored->freed);
  free(restored->created);
  free(restored);
}

/* With the lock; all checks are done. */
static void pool_restore(lade_device_allocator *allocator, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  pool_free_all(allocator, r);
  for (size_t i = 0; i < r->checkpoint->segment_count; i++) {
    const saved_segment *saved = &r->checkpoint->segments[i];
    assert(r->states[i] == saved_state_of(allocator, r->pool, saved));
    if (r->states[i] == INTACT) segment_restore(allocator, saved, r);
    if (r->states[i] == HOLED) run_restore(allocator, saved, r);
  }
}

/* For all that a set makes. False: no memory. */
static bool room_make(lade_device_allocator *allocator, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  const lade_device_checkpoint *checkpoint = r->checkpoint;
  /* A block that is cut out leaves a part below and one above. */
  size_t records = r->holed ? 2 * checkpoint->block_count : checkpoint->block_count;
  r->restored = restored_create(pool_live_count(&allocator->heap, r->pool), saved_live_count(checkpoint));
  return r->restored != NULL && ladei_device_heap_reserve(&allocator->heap, records);
}

/* C1, with room for all that a set makes. */
static lade_status restore_ready(lade_device_allocator *allocator, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  const lade_device_checkpoint *checkpoint = r->checkpoint;
  for (size_t i = 0; i < checkpoint->segment_count; i++) LADEI_TRY(segment_ready(allocator, i, r));
  if (room_make(allocator, r)) return LADE_OK;
  lade_device_restored_destroy(r->restored);
  return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, set_call, checkpoint->id, "no memory");
}

/* With the lock. */
static lade_status checkpoint_set(lade_device_allocator *allocator, restore *r) {
  ladei_lock_assert_held(&allocator->lock);
  lade_device_pool_id id = r->checkpoint->id;
  ladei_device_recent_settle(&allocator->heap);
  LADEI_TRY(pool_ready(allocator, set_call, id, false, &r->pool));
  LADEI_TRY(ladei_device_tree_refuse(allocator, set_call, r->pool));
  if (!pool_claim(allocator, r->pool))
    return ladei_device_pool_error(allocator, LADE_ERR_BUSY, set_call, id, "another thread frees a block of it");
  lade_status status = restore_ready(allocator, r);
  if (status == LADE_OK)
    pool_restore(allocator, r);
  else
    pool_unclaim(&allocator->heap, r->pool, NULL);
  return status;
}

lade_status ladei_device_native_checkpoint_set(lade_device_allocator *allocator,
                                               const lade_device_checkpoint *checkpoint, lade_device_restored **out) {
  restore r = {.checkpoint = checkpoint, .states = malloc(checkpoint->segment_count + 1)};
  if (r.states == NULL)
    return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, set_call, checkpoint->id, "no memory");
  ladei_lock_acquire(&allocator->lock);
  lade_status status = checkpoint_set(allocator, &r);
  ladei_lock_release(&allocator->lock);
  free(r.states);
  if (status == LADE_OK) *out = r.restored;
  return status;
}
