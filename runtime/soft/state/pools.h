/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver pools and their blocks (model in pools.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_POOLS_H
#define LADE_RUNTIME_SOFT_STATE_POOLS_H

#include "runtime/soft/state/model.h"

static inline bool ladei_soft_pool_is_host(const soft_pool *pool) {
  return pool->properties.location != LADEI_POOL_DEVICE;
}

/* The device that the pool's memory is charged to; for host memory the one that maps it. */
static inline soft_device *ladei_soft_pool_device(soft_runtime *rt, const soft_pool *pool) {
  return &rt->devices[pool->properties.location == LADEI_POOL_DEVICE ? pool->properties.id : 0];
}

/* NULL: no memory. */
soft_pool *ladei_soft_pool_new(soft_runtime *rt, const ladei_pool_properties *properties);

/* Releases settled free blocks until at most `keep_bytes`, in whole pieces, are reserved. */
void ladei_soft_pool_release(soft_runtime *rt, soft_pool *pool, uint64_t keep_bytes);

/* Takes a free block that the stream may have now out of the list; NULL if none fits. */
soft_range *ladei_soft_pool_reuse(soft_pool *pool, const soft_stream *stream, size_t bytes);

/* A new block, live; NULL: no memory. */
soft_range *ladei_soft_pool_grow(soft_runtime *rt, soft_pool *pool, size_t bytes);

/* The program has synchronised: pools return memory over their threshold. Under the lock. */
void ladei_soft_pools_synchronized(soft_runtime *rt);
void ladei_soft_pools_close(soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_STATE_POOLS_H */
