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
 * What is saved of an expandable segment is its mapped run. As long as its pool is in use it begins with the segment and
 * only grows: it is laid out at the start of the free block that covers it now, and what is beyond stays free. (Only a
 * released pool can have holes in between; it has its runs saved one by one, and cannot be set.)
 *
 * C1  A set either finds all saved segments whole-able (nothing pending, nothing with foreign uses in them) and then
 *     cannot fail, or changes nothing. Notes come without the lock: one that comes after the look changes nothing either.
 * Locks: the allocator's lock throughout get and set; deferred frees are settled before, without it.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/heap/recent.h"
#include "device/native/native.h"
#include "device/native/private_pool.h"
#include "device/native/uses.h"
#include "device/state/checks.h"

typedef struct saved_block {
  size_t size;
  bool allocated;
} saved_block;

/* A plain segment, or a mapped run of an expandable one. */
typedef struct saved_segment {
  uint64_t address;
  size_t size;
  bool expandable;
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

/* The pool that a checkpoint is taken of or set for. Of a released one it may be taken, as long as the pool is there. */
static lade_status pool_ready(const lade_device_allocator *allocator, const char *call, lade_device_pool_id id,
                              bool released_too, const ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  if (atomic_load(&allocator->capture_count) > 0)
    return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, call, id, "a capture is under way");
  if (pool == NULL) return ladei_device_pool_refused(call, id, "which is unknown", "a pool that was begun");
  if (pool->use_count == 0 && !released_too)
    return ladei_device_pool_refused(call, id, "which is released", "a pool in use");
  *out = pool;
  return LADE_OK;
}

/* ---- Get --------------------------------------------------------------------------------------------------------- */

static bool run_begins(const ladei_device_block *block) {
  return block->previous == NULL || block->previous->state == LADEI_DEVICE_HEAP_HOLE;
}

/* Counts the pool's segments and runs, and their blocks. LADE_ERR_BUSY where a freed block still waits for other streams. */
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
      if (block->state == LADEI_DEVICE_HEAP_ALLOCATED || block->state == LADEI_DEVICE_HEAP_FREE) continue;
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
        checkpoint->segments[checkpoint->segment_count++] =
            (saved_segment){block->address, 0, expandable, 0, checkpoint->block_count};
      }
      saved_segment *saved = &checkpoint->segments[checkpoint->segment_count - 1];
      checkpoint->blocks[checkpoint->block_count++] =
          (saved_block){block->size, block->state == LADEI_DEVICE_HEAP_ALLOCATED};
      saved->block_count++;
      saved->size += block->size;
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

/* The block that a saved segment begins in now; NULL where the segment is gone. */
static ladei_device_block *saved_begin(const ladei_device_heap *heap, const ladei_device_private_pool *pool,
                                       const saved_segment *saved) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_block *block = ladei_device_block_map_get(&heap->starts, saved->address);
  if (block == NULL || block->previous != NULL || block->segment->pool->private_pool != pool) return NULL;
  bool expandable = ladei_device_heap_segment_expandable(block->segment);
  if (expandable != saved->expandable) return NULL;
  return expandable || block->segment->size == saved->size ? block : NULL;
}

static lade_status saved_gone(const saved_segment *saved) {
  return ladei_error_argument("lade_device_checkpoint_set", "checkpoint", "one whose segments are all there",
                              "of a segment at %p that is gone", (void *)(uintptr_t)saved->address);
}

/* C1, for one saved segment. */
static lade_status segment_ready(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                                 const saved_segment *saved) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block *block = saved_begin(&allocator->heap, pool, saved);
  if (block == NULL) return saved_gone(saved);
  uint64_t end = saved->address + saved->size; /* within the segment, for runs as for whole segments */
  for (; block != NULL && block->address < end; block = block->next) {
    if (block->state == LADEI_DEVICE_HEAP_HOLE) return saved_gone(saved);
    bool allocated = block->state == LADEI_DEVICE_HEAP_ALLOCATED && !ladei_retire_ticket_noted(&block->ticket);
    if (allocated || block->state == LADEI_DEVICE_HEAP_FREE) continue;
    return ladei_error(LADE_ERR_BUSY, 0, "lade_device_checkpoint_set: other streams use the block at %p, device %d",
                       (void *)(uintptr_t)block->address, allocator->device);
  }
  return LADE_OK;
}

static size_t pool_live_count(const ladei_device_heap *heap, const ladei_device_private_pool *pool) {
  ladei_device_heap_assert_locked(heap);
  size_t live = 0;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next)
      live += block->state == LADEI_DEVICE_HEAP_ALLOCATED;
  }
  return live;
}

/* Whether the address lies in a saved segment. */
static bool saved_covers(const lade_device_checkpoint *checkpoint, uint64_t address) {
  size_t low = 0;
  size_t high = checkpoint->segment_count; /* those from here on begin behind the address */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (checkpoint->segments[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 && address - checkpoint->segments[low - 1].address < checkpoint->segments[low - 1].size;
}

/*
 * Frees a block under the lock. Outside the saved segments one with foreign uses becomes pending, as in any free. Inside
 * there were none (C1); a note that has come since, without the lock, has met a free of its block and counts for a later
 * tenant of the record.
 */
static void block_free(lade_device_allocator *allocator, const lade_device_checkpoint *checkpoint,
                       ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_free_begin(&allocator->heap, block);
  if (ladei_retire_ticket_noted(&block->ticket) && !saved_covers(checkpoint, block->address)) {
    ladei_device_block_free_wait(&allocator->heap, block, LADEI_DEVICE_HEAP_PENDING);
    if (ladei_retire_add(allocator->retire, &block->ticket, true)) return;
  }
  ladei_device_block_free_complete(&allocator->heap, block);
}

/* Frees everything handed out from the pool, by ascending address. The addresses were counted. */
static void pool_free_all(lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                          const lade_device_checkpoint *checkpoint, void **out_freed) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  size_t count = 0;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next)
      if (block->state == LADEI_DEVICE_HEAP_ALLOCATED) out_freed[count++] = (void *)(uintptr_t)block->address;
  }
  for (size_t i = 0; i < count; i++)
    block_free(allocator, checkpoint, ladei_device_block_map_get(&heap->starts, (uint64_t)(uintptr_t)out_freed[i]));
}

static void segment_restore(lade_device_allocator *allocator, const lade_device_checkpoint *checkpoint,
                            const saved_segment *saved, lade_device_restored *restored) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  const saved_block *blocks = &checkpoint->blocks[saved->first_block];
  ladei_device_block *block = ladei_device_block_map_get(&heap->starts, saved->address);
  for (size_t i = 0; i < saved->block_count; i++, block = block->next) {
    block = ladei_device_block_hand_out(heap, block, blocks[i].size, blocks[i].size, block->size > blocks[i].size);
    assert(block->size == blocks[i].size);
  }
  uint64_t address = saved->address;
  for (size_t i = 0; i < saved->block_count; address += blocks[i].size, i++)
    if (blocks[i].allocated)
      restored->created[restored->created_count++] = (void *)(uintptr_t)address;
    else
      block_free(allocator, checkpoint, ladei_device_block_map_get(&heap->starts, address));
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

/* With the lock. */
static lade_status checkpoint_set(lade_device_allocator *allocator, const lade_device_checkpoint *checkpoint,
                                  lade_device_restored **out) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *pool = NULL;
  ladei_device_recent_settle(&allocator->heap);
  lade_status status = pool_ready(allocator, "lade_device_checkpoint_set", checkpoint->id, false, &pool);
  for (size_t i = 0; status == LADE_OK && i < checkpoint->segment_count; i++)
    status = segment_ready(allocator, pool, &checkpoint->segments[i]);
  if (status != LADE_OK) return status;
  lade_device_restored *restored =
      restored_create(pool_live_count(&allocator->heap, pool), saved_live_count(checkpoint));
  if (restored == NULL || !ladei_device_heap_reserve(&allocator->heap, checkpoint->block_count)) {
    lade_device_restored_destroy(restored);
    return ladei_device_pool_error(allocator, LADE_ERR_OUT_OF_HOST_MEMORY, "lade_device_checkpoint_set", checkpoint->id,
                                   "no memory");
  }
  pool_free_all(allocator, pool, checkpoint, restored->freed);
  for (size_t i = 0; i < checkpoint->segment_count; i++)
    segment_restore(allocator, checkpoint, &checkpoint->segments[i], restored);
  *out = restored;
  return LADE_OK;
}

lade_status ladei_device_native_checkpoint_set(lade_device_allocator *allocator,
                                               const lade_device_checkpoint *checkpoint, lade_device_restored **out) {
  ladei_lock_acquire(&allocator->lock);
  lade_status status = checkpoint_set(allocator, checkpoint, out);
  ladei_lock_release(&allocator->lock);
  return status;
}
