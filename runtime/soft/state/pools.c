/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver pools: memory allocated and freed in stream order.
 *
 *   block: in use (in rt->ranges) --pool_free on stream A, number n--> free (pool's list) --reuse--> in use
 *                                                                          `--release--> gone
 *
 * A free block is reused at once on stream A and on streams that wait for n, and on others once A has reached n. Memory
 * over the release threshold goes back to the device when the program synchronises.
 *
 * I1  held = bytes of all blocks of the pool, in granules; used = requested bytes of those in use. reserved is in whole
 *     pieces of 32 MiB, as CUDA's driver counts, or less if the device has no more.
 * I2  A free block is released only when its stream has reached its number.
 * I3  A destroyed pool lives, without a handle, until its last block is gone.
 * Locks: rt->lock.
 */
#include "runtime/soft/state/pools.h"

#include <assert.h>
#include <sys/mman.h>

#include "runtime/soft/state/address.h"
#include "runtime/soft/state/order.h"

/* ---- pools ------------------------------------------------------------------------------------------------------- */

soft_pool *ladei_soft_pool_new(soft_runtime *rt, const ladei_pool_properties *properties) {
  soft_pool *pool = ladei_soft_table_take(&rt->pool_table);
  if (pool == NULL) return NULL;
  pool->properties = *properties;
  pool->is_default = pool->destroyed = false;
  pool->access = 0;
  pool->release_threshold = 0;
  pool->held = pool->reserved = pool->reserved_high = pool->used = pool->used_high = 0;
  pool->used_count = 0;
  pool->free_list = NULL;
  ladei_soft_table_publish(&rt->pool_table, pool);
  return pool;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

#define BLOCK_PAGE_BYTES ((uint64_t)4096)

static bool block_is_settled(const soft_range *block) {
  return atomic_load(&block->free_owner->completed) >= block->free_number;
}

#define PIECE_BYTES ((uint64_t)32 << 20)

static uint64_t whole_pieces(uint64_t bytes) { return (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES; }

static bool pool_charge(soft_runtime *rt, soft_pool *pool, uint64_t bytes) {
  bool charged = ladei_soft_pool_is_host(pool) ? ladei_soft_pinned_charge(rt, bytes)
                                               : ladei_soft_memory_charge(ladei_soft_pool_device(rt, pool), bytes);
  if (charged) pool->reserved += bytes;
  return charged;
}

/* A block, or a part of one, is gone: returns pieces that hold nothing any more. */
static void pool_uncharge(soft_runtime *rt, soft_pool *pool, uint64_t bytes) {
  assert(pool->held >= bytes); /* I1 */
  pool->held -= bytes;
  uint64_t needed = whole_pieces(pool->held), spare = pool->reserved > needed ? pool->reserved - needed : 0;
  if (ladei_soft_pool_is_host(pool))
    rt->pinned_bytes -= spare;
  else
    ladei_soft_memory_uncharge(ladei_soft_pool_device(rt, pool), spare);
  pool->reserved -= spare;
  assert(pool->held <= pool->reserved && pool->used <= pool->reserved); /* I1 */
}

/* Cuts the end of a block that no work names, if the pool holds more than it should keep. */
static void block_cut(soft_runtime *rt, soft_pool *pool, soft_range *block, uint64_t keep_bytes) {
  uint64_t cut = (pool->held - keep_bytes) / BLOCK_PAGE_BYTES * BLOCK_PAGE_BYTES;
  if (block->inflight != 0 || cut == 0 || cut >= block->held_bytes) return;
  block->held_bytes -= cut;
  if (block->mapped_bytes != 0) {
    munmap((void *)(uintptr_t)(soft_tree_key(&block->node) + block->mapped_bytes - cut), cut);
    block->mapped_bytes -= cut;
  }
  pool_uncharge(rt, pool, cut);
}

/* Releases settled free blocks until at most `keep_bytes`, in whole pieces, are reserved; cuts the last one. */
void ladei_soft_pool_release(soft_runtime *rt, soft_pool *pool, uint64_t keep_bytes) {
  uint64_t keep = keep_bytes > UINT64_MAX - PIECE_BYTES ? UINT64_MAX : whole_pieces(keep_bytes);
  soft_range **place = &pool->free_list;
  while (*place != NULL && pool->held > keep) {
    soft_range *block = *place;
    if (!block_is_settled(block)) {
      place = &block->next;
    } else if (pool->held - block->held_bytes < keep) {
      block_cut(rt, pool, block, keep);
      place = &block->next;
    } else {
      *place = block->next;
      pool_uncharge(rt, pool, block->held_bytes);
      ladei_soft_range_discard(rt, block);
    }
  }
  if (pool->destroyed && pool->used_count == 0 && pool->free_list == NULL) {
    pool->destroyed = false; /* the record is free from here on */
    ladei_soft_table_put(&rt->pool_table, pool);
  }
}

static soft_pool *pool_at(const soft_runtime *rt, uint32_t index) {
  soft_pool *pool = ladei_soft_table_at(&rt->pool_table, index);
  return atomic_load(&pool->slot.live) || pool->destroyed ? pool : NULL;
}

void ladei_soft_pools_synchronized(soft_runtime *rt) {
  for (uint32_t i = 0; i < atomic_load(&rt->pool_table.count); i++) {
    soft_pool *pool = pool_at(rt, i);
    if (pool != NULL) ladei_soft_pool_release(rt, pool, pool->destroyed ? 0 : pool->release_threshold);
  }
}

void ladei_soft_pools_close(soft_runtime *rt) {
  for (uint32_t i = 0; i < atomic_load(&rt->pool_table.count); i++) {
    soft_pool *pool = pool_at(rt, i);
    if (pool != NULL) ladei_soft_pool_release(rt, pool, 0);
  }
}

/* Takes out the smallest free block that the stream may have now and that wastes at most a quarter of itself. */
soft_range *ladei_soft_pool_reuse(soft_pool *pool, const soft_stream *stream, size_t bytes) {
  soft_range **best = NULL;
  for (soft_range **place = &pool->free_list; *place != NULL; place = &(*place)->next) {
    const soft_range *block = *place;
    bool usable = block->free_owner == stream || block_is_settled(block) ||
                  ladei_soft_order_has(&stream->order, block->free_owner, block->free_number);
    bool fits = block->held_bytes >= bytes && block->held_bytes - bytes <= block->held_bytes / 4;
    if (usable && fits && (best == NULL || block->held_bytes < (*best)->held_bytes)) best = place;
  }
  if (best == NULL) return NULL;
  soft_range *block = *best;
  *best = block->next;
  return block;
}

/* In whole pieces if the device has them. */
static bool block_charge(soft_runtime *rt, soft_pool *pool, size_t bytes) {
  uint64_t limit = pool->properties.max_bytes, held = pool->held + bytes;
  if (limit != 0 && held > limit) return false;
  return held <= pool->reserved || pool_charge(rt, pool, whole_pieces(held) - pool->reserved) ||
         pool_charge(rt, pool, held - pool->reserved);
}

soft_range *ladei_soft_pool_grow(soft_runtime *rt, soft_pool *pool, size_t bytes) {
  if (!block_charge(rt, pool, bytes)) {
    ladei_soft_pool_release(rt, pool, 0);
    if (!block_charge(rt, pool, bytes)) return NULL;
  }
  int32_t node = pool->properties.location == LADEI_POOL_HOST_NUMA ? pool->properties.id : -1;
  soft_range *block = ladei_soft_range_new(rt, SOFT_RANGE_POOL, ladei_soft_pool_device(rt, pool),
                                           ladei_soft_pool_is_host(pool), bytes, 0, node);
  pool->held += bytes;
  if (block == NULL) {
    pool_uncharge(rt, pool, bytes);
    return NULL;
  }
  block->pool = pool;
  block->held_bytes = bytes;
  pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
  return block;
}
