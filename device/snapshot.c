/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of an allocator's segments and blocks.
 *
 * S1  The arrays have room for as many entries as there are blocks: each run has a block, and each block one entry.
 * Locks: the allocator's lock while copying; memory is allocated without it, and again where the heap grew meanwhile.
 */
#include "device/snapshot.h"

#include <stdlib.h>

#include "base/error.h"

void ladei_device_snapshot_destroy(ladei_snapshot *snapshot) {
  free(snapshot->segments);
  free(snapshot->blocks);
  snapshot->segments = NULL;
  snapshot->blocks = NULL;
}

static size_t block_count(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  size_t count = allocator->heap.starts.count;
  ladei_lock_release(&allocator->lock);
  return count;
}

static ladei_snapshot_state state_of(const ladei_block *block) {
  switch ((ladei_block_state)block->state) {
  case LADEI_HEAP_ALLOCATED: return LADEI_SNAPSHOT_ALLOCATED;
  case LADEI_HEAP_PENDING:
  case LADEI_HEAP_DEFERRED: return LADEI_SNAPSHOT_PENDING_FREE;
  default: return LADEI_SNAPSHOT_INACTIVE;
  }
}

static void run_begin(ladei_snapshot *snapshot, const ladei_block *block) {
  const ladei_heap_segment *segment = block->segment;
  const ladei_private_pool *owner = segment->pool->owner;
  ladei_snapshot_segment *run = &snapshot->segments[snapshot->segment_count++];
  *run = (ladei_snapshot_segment){
      .address = block->address,
      .stream = segment->stream,
      .is_large = !segment->pool->is_small,
      .is_expandable = ladei_heap_segment_expandable(segment),
      .first_block = snapshot->block_count,
  };
  if (owner != NULL) run->pool = owner->id;
}

static void block_copy(ladei_snapshot *snapshot, const ladei_block *block) {
  ladei_snapshot_segment *run = &snapshot->segments[snapshot->segment_count - 1];
  ladei_snapshot_state state = state_of(block);
  size_t requested = state == LADEI_SNAPSHOT_INACTIVE ? 0 : block->requested;
  snapshot->blocks[snapshot->block_count++] = (ladei_snapshot_block){block->address, block->size, requested, state};
  run->block_count++;
  run->total_bytes += block->size;
  run->requested_bytes += requested;
  if (state != LADEI_SNAPSHOT_INACTIVE) run->active_bytes += block->size;
  if (state == LADEI_SNAPSHOT_ALLOCATED) run->allocated_bytes += block->size;
}

static void heap_copy(const ladei_heap *heap, ladei_snapshot *snapshot) {
  for (const ladei_heap_segment *segment = ladei_heap_segment_first(heap); segment != NULL;
       segment = ladei_heap_segment_next(segment)) {
    bool in_run = false;
    for (const ladei_block *block = ladei_heap_segment_block(heap, segment); block != NULL; block = block->next) {
      if (block->mapped && !in_run) run_begin(snapshot, block);
      in_run = block->mapped;
      if (in_run) block_copy(snapshot, block);
    }
  }
  snapshot->stats = heap->stats;
}

lade_status ladei_device_snapshot_take(lade_device_allocator *allocator, ladei_snapshot *out) {
  for (;;) {
    size_t room = block_count(allocator);
    ladei_snapshot snapshot = {.segments = calloc(room + 1, sizeof *snapshot.segments),
                               .blocks = calloc(room + 1, sizeof *snapshot.blocks)};
    if (snapshot.segments == NULL || snapshot.blocks == NULL) {
      ladei_device_snapshot_destroy(&snapshot);
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: snapshot: no memory for %zu blocks", room);
    }
    ladei_lock_acquire(&allocator->lock);
    bool fits = allocator->heap.starts.count <= room;
    if (fits) heap_copy(&allocator->heap, &snapshot);
    ladei_lock_release(&allocator->lock);
    if (fits) {
      *out = snapshot;
      return LADE_OK;
    }
    ladei_device_snapshot_destroy(&snapshot);
  }
}
