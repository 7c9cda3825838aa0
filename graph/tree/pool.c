/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree's pool: the routes to it, its blocks, and restores of its state after a path.
 *
 * All requests of the thread that calls a body are routed to the pool, for any stream, so that a block for another
 * stream, which no later recording could reuse, is found (`foreign_segments`).
 * Locks: the allocator's, to read its heap. None of the tree's.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/for_graphs.h"
#include "graph/tree/tree.h"

static const char create_call[] = "lade_graph_tree_create";

/* ---- Owning it --------------------------------------------------------------------------------------------------- */

static lade_status pool_read_empty(lade_graph_tree *tree) {
  ladei_tree_blocks blocks = {0};
  LADEI_TRY(ladei_tree_awake_begin(tree, create_call));
  lade_status status = ladei_tree_pool_read(tree, &blocks);
  ladei_tree_awake_end(tree);
  free(blocks.list);
  if (status != LADE_OK || blocks.count == 0) return status;
  return ladei_error_argument(create_call, "options.pool", "one that nothing else uses",
                              "(%llu, %llu), with %zu blocks handed out", (unsigned long long)tree->pool.first,
                              (unsigned long long)tree->pool.second, blocks.count);
}

lade_status ladei_tree_pool_own(lade_graph_tree *tree) {
  ladei_lock *lock = &tree->allocator->lock;
  ladei_lock_acquire(lock);
  const char *taken = tree->memory->has_tree                  ? "of another graph tree"
                      : tree->memory->scope_count > 0         ? "which a scope leads to"
                      : atomic_load(&tree->memory->capturing) ? "which is captured into"
                                                              : NULL;
  if (taken == NULL) tree->memory->has_tree = true;
  ladei_lock_release(lock);
  if (taken != NULL)
    return ladei_error_argument(create_call, "options.pool", "one that nothing else uses", "(%llu, %llu), %s",
                                (unsigned long long)tree->pool.first, (unsigned long long)tree->pool.second, taken);
  lade_status status = pool_read_empty(tree);
  if (status != LADE_OK) ladei_tree_pool_disown(tree);
  return status;
}

void ladei_tree_pool_disown(lade_graph_tree *tree) {
  ladei_lock_acquire(&tree->allocator->lock);
  assert(tree->memory->has_tree);
  tree->memory->has_tree = false;
  ladei_lock_release(&tree->allocator->lock);
}

void ladei_tree_pool_enter(lade_graph_tree *tree) {
  assert(atomic_load(&tree->memory->tree_thread) == 0); /* not within another */
  atomic_store_explicit(&tree->memory->tree_thread, ladei_thread_number(), memory_order_relaxed);
}

void ladei_tree_pool_leave(lade_graph_tree *tree) {
  assert(atomic_load(&tree->memory->tree_thread) == ladei_thread_number());
  atomic_store_explicit(&tree->memory->tree_thread, 0, memory_order_relaxed);
}

/* ---- Routes ------------------------------------------------------------------------------------------------------ */

lade_status ladei_tree_routes_begin(lade_graph_tree *tree, bool capture, ladei_tree_routes *out) {
  *out = (ladei_tree_routes){0};
  lade_status status = LADE_OK;
  ladei_tree_pool_enter(tree);
  if (capture) {
    status = lade_device_pool_begin(tree->allocator, tree->pool, &tree->stream.handle, 1);
    out->capture = status == LADE_OK;
  } else {
    status = lade_device_scope_begin(tree->allocator, tree->pool, &tree->stream.handle, 1, &out->scopes[0]);
    out->scope_count = status == LADE_OK;
  }
  if (status == LADE_OK) {
    status = lade_device_scope_begin(tree->allocator, tree->pool, NULL, LADE_DEVICE_SCOPE_THREAD,
                                     &out->scopes[out->scope_count]);
    out->scope_count += status == LADE_OK;
  }
  ladei_tree_pool_leave(tree);
  if (status != LADE_OK) ladei_tree_routes_end(tree, out);
  return status;
}

void ladei_tree_routes_end(lade_graph_tree *tree, ladei_tree_routes *routes) {
  while (routes->scope_count > 0) (void)lade_device_scope_end(tree->allocator, routes->scopes[--routes->scope_count]);
  if (!routes->capture) return;
  (void)lade_device_pool_end(tree->allocator, tree->pool);
  (void)lade_device_pool_release(tree->allocator, tree->pool); /* the tree's own use keeps it */
  routes->capture = false;
}

/* ---- Its blocks -------------------------------------------------------------------------------------------------- */

typedef struct reading {
  size_t segment_count, block_count;
  size_t foreign;
} reading;

/* Both lists have room for the numbers counted before; NULL: only count. */
static reading pool_walk(const lade_graph_tree *tree, lade_device_range *segments, lade_device_range *blocks) {
  ladei_lock_assert_held(&tree->allocator->lock);
  const ladei_device_heap *heap = &tree->allocator->heap;
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(heap, tree->pool);
  uint64_t key = ladei_device_stream_key(&tree->stream);
  reading r = {0};
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (pool == NULL || segment->pool->private_pool != pool) continue;
    if (segments != NULL)
      segments[r.segment_count] = (lade_device_range){(void *)(uintptr_t)segment->address, segment->size};
    r.segment_count++;
    r.foreign += segment->stream_key != key;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next) {
      if (block->state != LADEI_DEVICE_HEAP_ALLOCATED) continue;
      if (blocks != NULL) blocks[r.block_count] = (lade_device_range){(void *)(uintptr_t)block->address, block->size};
      r.block_count++;
    }
  }
  return r;
}

lade_status ladei_tree_pool_read(lade_graph_tree *tree, ladei_tree_blocks *out) {
  ladei_lock *lock = &tree->allocator->lock;
  ladei_lock_acquire(lock);
  reading r = pool_walk(tree, NULL, NULL);
  ladei_lock_release(lock);
  /* Only the owner hands out blocks of the pool, and takes them back. */
  lade_device_range *segments = calloc(r.segment_count + 1, sizeof *segments);
  lade_device_range *blocks = calloc(r.block_count + 1, sizeof *blocks);
  if (segments == NULL || blocks == NULL) {
    free(segments);
    free(blocks);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph tree: no memory for a list of %zu blocks", r.block_count);
  }
  ladei_lock_acquire(lock);
  reading again = pool_walk(tree, NULL, NULL);
  bool same = again.segment_count == r.segment_count && again.block_count == r.block_count;
  if (same) (void)pool_walk(tree, segments, blocks);
  ladei_lock_release(lock);
  if (!same) {
    free(segments);
    free(blocks);
    return ladei_error(LADE_ERR_BUSY, 0, "graph tree: another thread allocates from the tree's pool");
  }
  free(tree->segments.list);
  tree->segments = (ladei_tree_segments){segments, r.segment_count};
  tree->foreign_segments = r.foreign;
  *out = (ladei_tree_blocks){blocks, r.block_count};
  return LADE_OK;
}

bool ladei_tree_pool_has(const lade_graph_tree *tree, uint64_t address, uint64_t bytes) {
  const lade_device_range *list = tree->segments.list;
  size_t low = 0, high = tree->segments.count; /* segments from `high` on begin after the range */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if ((uint64_t)(uintptr_t)list[middle].address < address + bytes)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 && (uint64_t)(uintptr_t)list[low - 1].address + list[low - 1].bytes > address;
}

uint64_t ladei_tree_pool_peak(lade_graph_tree *tree) {
  ladei_lock_acquire(&tree->allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&tree->allocator->heap, tree->pool);
  uint64_t peak = pool == NULL ? 0 : pool->reserved_bytes.peak;
  ladei_lock_release(&tree->allocator->lock);
  return peak;
}

void ladei_tree_pool_use_begin(lade_graph_tree *tree, ladei_tree_pool_use *use) {
  ladei_lock_acquire(&tree->allocator->lock);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&tree->allocator->heap, tree->pool);
  assert(pool != NULL && pool->has_tree);
  ladei_device_gauge_reset_peak(&pool->allocated_bytes);
  *use = (ladei_tree_pool_use){.served = pool->served, .bytes = pool->allocated_bytes.current};
  ladei_lock_release(&tree->allocator->lock);
}

void ladei_tree_pool_use_end(lade_graph_tree *tree, ladei_tree_pool_use *use) {
  ladei_lock_acquire(&tree->allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&tree->allocator->heap, tree->pool);
  *use = (ladei_tree_pool_use){pool->served - use->served, pool->allocated_bytes.peak - use->bytes};
  ladei_lock_release(&tree->allocator->lock);
}

bool ladei_tree_block_at(lade_device_allocator *allocator, uint64_t address, lade_device_range *out) {
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_block *block = ladei_device_heap_find(&allocator->heap, address);
  bool found = block != NULL && block->state == LADEI_DEVICE_HEAP_ALLOCATED;
  if (found) *out = (lade_device_range){(void *)(uintptr_t)block->address, block->size};
  ladei_lock_release(&allocator->lock);
  return found;
}

bool ladei_tree_pool_block(const lade_graph_tree *tree, uint64_t address, lade_device_range *out) {
  ladei_device_heap *heap = &tree->allocator->heap;
  bool found = false;
  ladei_lock_acquire(&tree->allocator->lock);
  const ladei_device_block *block = ladei_device_heap_find(heap, address);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(heap, tree->pool);
  if (block != NULL && pool != NULL && block->segment->pool->private_pool == pool &&
      block->state == LADEI_DEVICE_HEAP_ALLOCATED) {
    *out = (lade_device_range){(void *)(uintptr_t)block->address, block->size};
    found = true;
  }
  ladei_lock_release(&tree->allocator->lock);
  return found;
}

/* ---- Blocks of the path ------------------------------------------------------------------------------------------ */

void ladei_tree_block_free(lade_graph_tree *tree, uint64_t address) {
  ladei_lock_assert_none_held();
  (void)ladei_device_free_kept(tree->allocator, (void *)(uintptr_t)address);
}

void ladei_tree_path_free_blocks(lade_graph_tree *tree, ladei_tree_path *path) {
  for (size_t i = 0; i < path->row_count; i++) {
    ladei_tree_storage *storage = path->rows[i];
    if (storage == NULL || storage->outside || !storage->has_block) continue;
    ladei_tree_block_free(tree, storage->address);
    storage->has_block = false;
  }
}

static int storage_compare(const void *a, const void *b) {
  uint64_t x = (*(ladei_tree_storage *const *)a)->address;
  uint64_t y = (*(ladei_tree_storage *const *)b)->address;
  return (x > y) - (x < y);
}

/* The alive storages, by address; one with several places in rows is listed as often. */
static size_t alive_storages(const ladei_tree_path *path, ladei_tree_storage **list) {
  size_t count = 0;
  bool ascend = true; /* usually they do: sorting 10,000 takes longer than the rest of a restore */
  for (size_t i = 0; i < path->row_count; i++) {
    if (!ladei_tree_alive(path->rows[i])) continue;
    ascend = ascend && (count == 0 || list[count - 1]->address <= path->rows[i]->address);
    list[count++] = path->rows[i];
  }
  if (!ascend) qsort(list, count, sizeof(ladei_tree_storage *), storage_compare);
  return count;
}

lade_status ladei_tree_pool_restore(lade_graph_tree *tree, const lade_device_checkpoint *checkpoint) {
  ladei_tree_path *path = &tree->core.path;
  lade_device_restored *restored = NULL;
  ladei_tree_storage **alive = calloc(path->row_count + 1, sizeof(ladei_tree_storage *));
  if (alive == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph tree: no memory for a restore");
  ladei_tree_pool_enter(tree);
  lade_status status = lade_device_checkpoint_set(tree->allocator, checkpoint, &restored);
  ladei_tree_pool_leave(tree);
  if (status != LADE_OK) {
    free(alive);
    return status;
  }
  for (size_t i = 0; i < path->row_count; i++)
    if (path->rows[i] != NULL && !path->rows[i]->outside) path->rows[i]->has_block = false;
  size_t count = alive_storages(path, alive), next = 0;
  for (size_t i = 0; i < restored->created_count; i++) {
    uint64_t address = (uint64_t)(uintptr_t)restored->created[i];
    while (next < count && alive[next]->address < address) next++;
    if (next < count && alive[next]->address == address)
      alive[next]->has_block = true;
    else
      ladei_tree_block_free(tree, address);
  }
  lade_device_restored_destroy(restored);
  free(alive);
  return LADE_OK;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static lade_status blocks_check(const lade_graph_tree *tree, const ladei_tree_blocks *blocks) {
  const ladei_tree_core *core = &tree->core;
  ladei_tree_storage **alive = calloc(core->path.row_count + 1, sizeof(ladei_tree_storage *));
  if (alive == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph tree: no memory for a check");
  size_t places = alive_storages(&core->path, alive), count = 0;
  for (size_t i = 0; i < places; i++)
    if (i == 0 || alive[i] != alive[count - 1]) alive[count++] = alive[i];
  lade_status status = LADE_OK;
  bool owned = core->state == LADE_GRAPH_STATE_WARMUP || core->state == LADE_GRAPH_STATE_RECORDING;
  if (status == LADE_OK && blocks->count != (owned ? count : 0)) /* T2 */
    status = ladei_tree_wrong("the number of blocks handed out of the pool", blocks->count, owned ? count : 0);
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    if (alive[i]->has_block != owned)
      status = ladei_tree_wrong("whether a memory of the path has a block", !owned, owned);
    if (owned && (uint64_t)(uintptr_t)blocks->list[i].address != alive[i]->address)
      status = ladei_tree_wrong("the address of a block of the pool", (uint64_t)(uintptr_t)blocks->list[i].address,
                                alive[i]->address);
  }
  free(alive);
  return status;
}

static lade_status totals_check(const lade_graph_tree *tree) {
  uint64_t metadata = 0, alone = 0, blocks = 0;
  for (const ladei_tree_node *node = tree->core.first_node; node != NULL; node = node->list_next) {
    metadata += node->metadata_bytes;
    alone += node->alone_bytes;
    blocks += node->checkpoint_blocks;
  }
  if (metadata != tree->metadata_bytes)
    return ladei_tree_wrong("the memory of all recordings", tree->metadata_bytes, metadata);
  if (alone != tree->alone_bytes)
    return ladei_tree_wrong("the memory that recordings would take alone", tree->alone_bytes, alone);
  return blocks == tree->checkpoint_blocks
             ? LADE_OK
             : ladei_tree_wrong("the number of blocks in checkpoints", tree->checkpoint_blocks, blocks);
}

lade_status ladei_tree_check(lade_graph_tree *tree) {
  ladei_tree_blocks blocks = {0};
  lade_status status = ladei_tree_core_check(&tree->core);
  if (status == LADE_OK) status = totals_check(tree);
  if (status == LADE_OK) status = ladei_tree_pool_read(tree, &blocks);
  if (status == LADE_OK) status = blocks_check(tree, &blocks);
  free(blocks.list);
  return status;
}
