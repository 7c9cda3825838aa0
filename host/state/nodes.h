/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a pool: which one is near a device, and blocks that go back to theirs. */
#ifndef LADE_HOST_STATE_NODES_H
#define LADE_HOST_STATE_NODES_H

#include "host/state/pool_state.h"

/* The machine's topology, loaded at the first call; NULL where it cannot be loaded. */
const ladei_topology *ladei_pinned_pool_topology(lade_pinned_pool *pool);

/* The node's cache that requests near a device go to. Looks at the topology the first time. `call` is the public
 * function, for messages, here and below. */
lade_status ladei_pinned_pool_node_of_device(lade_pinned_pool *pool, int device, const char *call,
                                             ladei_pinned_node **out);

/* OS index of the NUMA node that a device is near to, whether the pool may use it or not; -1: unknown, or none in
 * particular. */
lade_status ladei_pinned_pool_nearest_node(lade_pinned_pool *pool, int device, int *out);

/* The cache of an OS node, -1 for memory bound to none. LADE_ERR_INVALID_ARGUMENT: no node with memory for this
 * process. */
lade_status ladei_pinned_pool_node_of_os(lade_pinned_pool *pool, int os_node, const char *call,
                                         ladei_pinned_node **out);

/* CACHED blocks of any nodes, linked by next, go back to their nodes, and threads that wait for some are woken. */
void ladei_pinned_pool_put(lade_pinned_pool *pool, ladei_pinned_block *list);
void ladei_pinned_pool_put_one(lade_pinned_pool *pool, ladei_pinned_block *block);
/* The same, but those up to 1 MiB become ready for all threads, as far as the depots have room. In a transit: a thread
 * that looks for memory with transits stopped empties the depots once. */
void ladei_pinned_pool_share(lade_pinned_pool *pool, ladei_pinned_block *list);

#endif /* LADE_HOST_STATE_NODES_H */
