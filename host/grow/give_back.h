/* SPDX-License-Identifier: Apache-2.0 */
/* Ready blocks of a pool go to its nodes, and free segments of its nodes go back. */
#ifndef LADE_HOST_GROW_GIVE_BACK_H
#define LADE_HOST_GROW_GIVE_BACK_H

#include "host/state/pool_state.h"

/* All ready blocks of all threads, depots and bins go back to their nodes and coalesce there. */
void ladei_pinned_pool_drain(lade_pinned_pool *pool);

/* The same for a caller that is in transit, or has stopped it; and below, the ready blocks of the nodes alone. */
void ladei_pinned_pool_empty_caches(lade_pinned_pool *pool);
void ladei_pinned_pool_collect(lade_pinned_pool *pool);

/* Whether a segment may be given back. */
bool ladei_pinned_pool_has_free_segment(lade_pinned_pool *pool);

/* Gives wholly free segments back, oldest first, until at least `bytes` are given back; only those seen free at
 * `free_before_ns` or before (UINT64_MAX: all). Stops at the first failure of the driver. */
lade_status ladei_pinned_pool_release(lade_pinned_pool *pool, uint64_t bytes, uint64_t free_before_ns,
                                      uint64_t *out_released);

/* Drains, and gives back until at most `keep_bytes` are reserved, as far as wholly free segments go. */
lade_status ladei_pinned_pool_trim(lade_pinned_pool *pool, uint64_t keep_bytes);

/* Gives back segments wholly free for longer than the pool's option says; mostly costs a look at the clock. */
lade_status ladei_pinned_pool_age(lade_pinned_pool *pool);

/* Gives back free segments until `bytes` are given back, and counts that in `counter` if any are. */
lade_status ladei_pinned_pool_return(lade_pinned_pool *pool, uint64_t bytes, _Atomic(uint64_t) *counter);

/* Gives back free segments that other pools of the budget ask for; mostly costs a small read. */
lade_status ladei_pinned_pool_answer(lade_pinned_pool *pool);

#endif /* LADE_HOST_GROW_GIVE_BACK_H */
