/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver pools: memory allocated and freed in stream order.
 *
 *   block: in use (in rt->ranges) --pool_free on stream A, number n--> free (pool's list) --reuse--> in use
 *                                                                          `--release--> gone
 *
 * A free block is reused at once on stream A and on streams that wait for n, and on others once A has reached n. What is over the release
 * threshold goes back to the device when the program synchronises.
 *
 * I1  reserved = bytes of all blocks of the pool, used = bytes of those in use. Both count whole granules.
 * I2  A free block is released only when its stream has reached its number.
 * I3  A destroyed pool lives, without a handle, until its last block is gone.
 * Locks: rt->lock.
 */
#include "runtime/soft/state/pools.h"

#include <assert.h>

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
  pool->reserved = pool->reserved_high = pool->used = pool->used_high = 0;
  pool->used_count = 0;
  pool->free_list = NULL;
  ladei_soft_table_publish(&rt->pool_table, pool);
  return pool;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static bool block_is_settled(const soft_range *block) {
  return atomic_load(&block->free_owner->completed) >= block->free_number;
}

static void block_uncharge(soft_runtime *rt, soft_pool *pool, const soft_range *block) {
  if (ladei_soft_pool_is_host(pool))
    rt->pinned_bytes -= block->bytes;
  else
    ladei_soft_memory_uncharge(ladei_soft_pool_device(rt, pool), block->bytes);
  assert(pool->reserved >= block->bytes && pool->used <= pool->reserved); /* I1 */
  pool->reserved -= block->bytes;
}

/* Releases settled free blocks until at most `keep_bytes` are reserved. */
void ladei_soft_pool_release(soft_runtime *rt, soft_pool *pool, uint64_t keep_bytes) {
  soft_range **place = &pool->free_list;
  while (*place != NULL && pool->reserved > keep_bytes) {
    soft_range *block = *place;
    if (!block_is_settled(block)) {
      place = &block->next;
      continue;
    }
    *place = block->next;
    block_uncharge(rt, pool, block);
    ladei_soft_range_discard(rt, block);
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

/* Smallest free block that the stream may have now and that wastes at most a quarter of itself; taken out. */
soft_range *ladei_soft_pool_reuse(soft_pool *pool, const soft_stream *stream, size_t bytes) {
  soft_range **best = NULL;
  for (soft_range **place = &pool->free_list; *place != NULL; place = &(*place)->next) {
    const soft_range *block = *place;
    bool usable = block->free_owner == stream || block_is_settled(block) ||
                  ladei_soft_order_has(&stream->order, block->free_owner, block->free_number);
    bool fits = block->bytes >= bytes && block->bytes - bytes <= block->bytes / 4;
    if (usable && fits && (best == NULL || block->bytes < (*best)->bytes)) best = place;
  }
  if (best == NULL) return NULL;
  soft_range *block = *best;
  *best = block->next;
  return block;
}

static bool block_charge(soft_runtime *rt, soft_pool *pool, size_t bytes) {
  uint64_t limit = pool->properties.max_bytes;
  if (limit != 0 && (pool->reserved > limit || bytes > limit - pool->reserved)) return false;
  return ladei_soft_pool_is_host(pool) ? ladei_soft_pinned_charge(rt, bytes)
                                       : ladei_soft_memory_charge(ladei_soft_pool_device(rt, pool), bytes);
}

soft_range *ladei_soft_pool_grow(soft_runtime *rt, soft_pool *pool, size_t bytes) {
  if (!block_charge(rt, pool, bytes)) {
    ladei_soft_pool_release(rt, pool, 0);
    if (!block_charge(rt, pool, bytes)) return NULL;
  }
  int32_t node = pool->properties.location == LADEI_POOL_HOST_NUMA ? pool->properties.id : -1;
  soft_range *block = ladei_soft_range_new(rt, SOFT_RANGE_POOL, ladei_soft_pool_device(rt, pool),
                                           ladei_soft_pool_is_host(pool), bytes, 0, node);
  pool->reserved += bytes;
  if (block == NULL) {
    soft_range refused = {.bytes = bytes};
    block_uncharge(rt, pool, &refused);
    return NULL;
  }
  block->pool = pool;
  pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
  return block;
}
