/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a pool for the rings of pipelines, which share it fairly at its cap (stakes.h). */
#ifndef LADE_HOST_RING_ALLOC_H
#define LADE_HOST_RING_ALLOC_H

#include "host/stakes.h"
#include "lade/pinned.h"

/* The pool's. */
ladei_pinned_stakes *ladei_pinned_stakes_of(lade_pinned_pool *pool);

/*
 * A block for a ring, near `device`. `only`: the ring has no other, and waits for one: LADE_NOT_READY while it does, ask
 * again. `smallest`: a smaller block would be of no use; else LADE_ERR_LIMIT comes at once where only a ring's last block
 * could be waited for. Errors as lade_pinned_alloc_near(). No lock held.
 */
lade_status ladei_pinned_stake_alloc(lade_pinned_pool *pool, ladei_pinned_stake *stake, size_t bytes, int device,
                                     bool only, bool smallest, void **out);
/* Gives such a block back. No lock held. */
lade_status ladei_pinned_stake_free(lade_pinned_pool *pool, ladei_pinned_stake *stake, void *block);

#endif /* LADE_HOST_RING_ALLOC_H */
