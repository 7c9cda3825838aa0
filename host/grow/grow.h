/* SPDX-License-Identifier: Apache-2.0 */
/* New memory for a pool. */
#ifndef LADE_HOST_GROW_GROW_H
#define LADE_HOST_GROW_GROW_H

#include "host/grow/request.h"

static inline uint32_t ladei_pinned_growths(const ladei_pinned_node *node) {
  return atomic_load_explicit(&node->growths, memory_order_acquire);
}

/* A CACHED block of new memory for a request that missed after `seen` growths of its node. LADE_OK without a block:
 * another thread grew the node; look again. */
lade_status ladei_pinned_pool_grow(lade_pinned_pool *pool, const ladei_pinned_request *request, uint32_t seen,
                                   ladei_pinned_block **out);

/* A CACHED block of new memory, one segment of `bytes` for itself. */
lade_status ladei_pinned_pool_pin_block(lade_pinned_pool *pool, ladei_pinned_node *node, size_t bytes,
                                        ladei_pinned_block **out);

/* Pins the bytes that the node lacks to `bytes` of free memory; all of them, or none. */
lade_status ladei_pinned_pool_reserve(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes);

#endif /* LADE_HOST_GROW_GROW_H */
