/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a pool: seeking a block, growing, giving segments back. */
#ifndef LADE_HOST_GROW_GROW_H
#define LADE_HOST_GROW_GROW_H

#include "host/state/pool_state.h"

/* A request on its way. */
typedef struct ladei_pinned_request {
  size_t bytes;
  unsigned class_index;
  size_t pages;   /* that a block for it has at least; 0 for small ones */
  bool exact;     /* larger than a segment: gets one of its own, without rounding to a class */
  unsigned count; /* blocks wanted; one is enough */
  uint64_t ahead; /* bytes asked for soon, these included: Note [Growing ahead] in grow.c; 0: not known */
  ladei_pinned_node *node;
  ladei_pinned_thread_cache
      *cache; /* of the calling thread, and its counters for the node; both NULL where there is none */
  ladei_pinned_thread_counters *counters;
} ladei_pinned_request;

/* CACHED blocks, one or more, linked by next, from the cache or from new memory. More than one are in transit
 * (cap_wait.h): the caller puts away those that it does not hand out, and then ends a transit of blocks. */
lade_status ladei_pinned_pool_seek(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                   ladei_pinned_block **out);

/* A CACHED block of new memory, one segment of `bytes` for itself. */
lade_status ladei_pinned_pool_pin_block(lade_pinned_pool *pool, ladei_pinned_node *node, size_t bytes,
                                        ladei_pinned_block **out);

/* As runtime/retire's, and what then depends on the policy. */
lade_status ladei_pinned_pool_poll(lade_pinned_pool *pool, unsigned flags, uint64_t *out_done);
lade_status ladei_pinned_pool_synchronize(lade_pinned_pool *pool);

/* All ready blocks of all threads, depots and bins go back to their nodes and coalesce there. */
void ladei_pinned_pool_drain(lade_pinned_pool *pool);

/* Gives wholly free segments back, oldest first, until at least `bytes` are given back; only those seen free at
 * `free_before_ns` or before (UINT64_MAX: all). Stops at the first failure of the driver. */
lade_status ladei_pinned_pool_release(lade_pinned_pool *pool, uint64_t bytes, uint64_t free_before_ns,
                                      uint64_t *out_released);

/* Drains, and gives back until at most `keep_bytes` are reserved, as far as wholly free segments go. */
lade_status ladei_pinned_pool_trim(lade_pinned_pool *pool, uint64_t keep_bytes);

/* Gives back what was wholly free for longer than the pool's option says; costs a look at the clock most times. */
lade_status ladei_pinned_pool_age(lade_pinned_pool *pool);

/* Gives back free segments until `bytes` are given back, and counts that in `counter` if any are. */
lade_status ladei_pinned_pool_return(lade_pinned_pool *pool, uint64_t bytes, _Atomic(uint64_t) *counter);

/* Gives back what other pools of the budget ask for, as far as free segments go; costs a small read most times. */
lade_status ladei_pinned_pool_answer(lade_pinned_pool *pool);

/* Pins what the node lacks to `bytes` of free memory; all of it, or nothing. */
lade_status ladei_pinned_pool_reserve(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes);

#endif /* LADE_HOST_GROW_GROW_H */
