/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a pool for the rings of pipelines, which share it fairly at its cap (ring_share.h). */
#ifndef LADE_HOST_RING_ALLOC_H
#define LADE_HOST_RING_ALLOC_H

#include "host/ring_share.h"
#include "host/topology.h"
#include "lade/pinned.h"

/* The pool's. */
ladei_pinned_ring_shares *ladei_pinned_ring_shares_of(lade_pinned_pool *pool);

/*
 * Where threads that fill blocks near `device` shall run: the OS index of its NUMA node, with the topology in *out, which is
 * the pool's and lives as long; -1 and NULL: anywhere. What the pool has to know of the machine before its first segment,
 * which takes it milliseconds, it knows then. No lock held; touches no error record.
 */
int ladei_pinned_ring_place(lade_pinned_pool *pool, int device, const ladei_topology **out);

/*
 * A block for a ring, near `device`. `only`: the ring has no other, and waits for one: LADE_NOT_READY while it does, ask
 * again. `smallest`: a smaller block would be of no use; else LADE_ERR_LIMIT comes at once where only a ring's last block
 * could be waited for. Errors as lade_pinned_alloc_near(). No lock held.
 */
lade_status ladei_pinned_ring_alloc(lade_pinned_pool *pool, ladei_pinned_ring_share *share, size_t bytes, int device,
                                    bool only, bool smallest, void **out);
/* Gives such a block back. No lock held. */
lade_status ladei_pinned_ring_free(lade_pinned_pool *pool, ladei_pinned_ring_share *share, void *block);

#endif /* LADE_HOST_RING_ALLOC_H */
