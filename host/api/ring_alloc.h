/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a pool for the rings of pipelines, which share it fairly at its cap (ring_share.h). */
#ifndef LADE_HOST_API_RING_ALLOC_H
#define LADE_HOST_API_RING_ALLOC_H

#include "host/parts/ring_share.h"
#include "host/source/topology.h"
#include "lade/pinned.h"

/* The pool's. */
ladei_pinned_ring_shares *ladei_pinned_ring_shares_of(lade_pinned_pool *pool);

/*
 * Where threads that fill blocks near `device` shall run: the OS index of its NUMA node, with the topology in *out,
 * which is the pool's and lives as long; -1 and NULL: anywhere. The pool then knows all of the machine that
 * its first segment needs, which takes milliseconds. No lock held; touches no error record.
 */
int ladei_pinned_ring_place(lade_pinned_pool *pool, int device, const ladei_topology **out);

typedef struct ladei_pinned_ring_request {
  size_t bytes;
  uint64_t ahead; /* bytes that the ring will ask for soon, with this block; they may be pinned with it */
  int device;     /* near which */
  bool only;      /* the ring has no other block, and waits for one */
  bool smallest;  /* a smaller block would be of no use */
} ladei_pinned_ring_request;

/*
 * A block for a ring. LADE_NOT_READY while its only one has to be waited for: ask again; where it is not the smallest,
 * LADE_ERR_LIMIT comes at once where only a ring's last block could be waited for. Errors as lade_pinned_alloc_near().
 * No lock held.
 */
lade_status ladei_pinned_ring_alloc(lade_pinned_pool *pool, ladei_pinned_ring_share *share,
                                    const ladei_pinned_ring_request *request, void **out);
/* Gives such a block back. No lock held. */
lade_status ladei_pinned_ring_free(lade_pinned_pool *pool, ladei_pinned_ring_share *share, void *block);

#endif /* LADE_HOST_API_RING_ALLOC_H */
