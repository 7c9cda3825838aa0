/* SPDX-License-Identifier: Apache-2.0 */
/* Which private pools there are; model in private_pool.c. */
#ifndef LADE_DEVICE_NATIVE_POOL_LIST_H
#define LADE_DEVICE_NATIVE_POOL_LIST_H

#include "device/state/allocator.h"

/* NULL if there is none. Lock held. */
ladei_device_private_pool *ladei_device_private_pool_find(const ladei_device_heap *heap, lade_device_pool_id id);
/* The same for a call that needs it, not released. Lock held. */
lade_status ladei_device_private_pool_in_use(const ladei_device_heap *heap, const char *call, lade_device_pool_id id,
                                             ladei_device_private_pool **out);

/* LADE_ERR_BUSY for a call that would put blocks into a graph tree's pool, or take memory out of it, and is none of the
 * tree's own (tree_thread). Lock held. */
lade_status ladei_device_tree_refuse(const lade_device_allocator *allocator, const char *call,
                                     const ladei_device_private_pool *pool);
/* LADE_ERR_BUSY for a call that needs the pool's memory while it is away. Lock held. */
lade_status ladei_device_suspended_refuse(const lade_device_allocator *allocator, const char *call,
                                          const ladei_device_private_pool *pool);

/* Pools that nothing uses and that have no memory any more. Lock held. */
void ladei_device_private_pools_forget(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_POOL_LIST_H */
