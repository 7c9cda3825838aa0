/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks in use and pending in a pool.
 *
 * Every alloc and free counts with its thread alone (thread_cache.h). Threads publish to the nodes now and then, for
 * the peaks; a reader sums over the threads.
 */
#ifndef LADE_HOST_STATE_USAGE_H
#define LADE_HOST_STATE_USAGE_H

#include "host/caches/counters.h"
#include "host/caches/thread_cache.h"
#include "lade/pinned.h"

/* Pending blocks: U3 and Note [Peak of pending]. The caller counts in its own counters of the node, or, where it has
 * none (NULL), in those of threads without. */
void ladei_pinned_pending_add_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t bytes);
void ladei_pinned_pending_look(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index);
enum { LADEI_PINNED_PENDING_LOOK = 16 };

/* A block becomes pending. */
static inline void ladei_pinned_pending_add(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                            unsigned node, unsigned class_index, uint64_t bytes) {
  if (counters == NULL) {
    ladei_pinned_pending_add_shared(pool, node, class_index, bytes);
    return;
  }
  ladei_pinned_thread_pending *own = &counters->class_pending[class_index];
  ladei_pinned_class_counts_add(&counters->pending.freed.blocks, 1);
  ladei_pinned_class_counts_add(&counters->pending.freed.bytes, bytes);
  ladei_pinned_class_counts_add(&own->flow.freed.blocks, 1);
  ladei_pinned_class_counts_add(&own->flow.freed.bytes, bytes);
  uint64_t unpublished = ladei_pinned_counter_read(&own->flow.freed.blocks) -
                         ladei_pinned_counter_read(&own->flow.retired.blocks) - own->published.blocks;
  if (unpublished % LADEI_PINNED_PENDING_LOOK == 0) ladei_pinned_pending_look(pool, counters, class_index);
}

/* Blocks of one class are pending no longer. */
void ladei_pinned_pending_sub(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned node,
                              unsigned class_index, ladei_pinned_amount amount);
/* All that a thread has counted is published. By the owner of the counters, or after it. */
void ladei_pinned_pending_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index);
ladei_pinned_amount ladei_pinned_pending_read(lade_pinned_pool *pool);
/* Blocks that are pending no longer, ever: differs where some have come back meanwhile. */
uint64_t ladei_pinned_retired_blocks(lade_pinned_pool *pool);
/* The same with their bytes, of the pool, of a node, and of one class there. Under pool->threads.lock. */
ladei_pinned_amount ladei_pinned_retired_read(const lade_pinned_pool *pool);
ladei_pinned_amount ladei_pinned_node_retired_read(const lade_pinned_pool *pool, unsigned node);
ladei_pinned_amount ladei_pinned_class_retired_read(const lade_pinned_pool *pool, unsigned node, unsigned class_index);

/* A block is in use, or no longer. Counted as pending ones are: in the caller's counters of the node, or (NULL) in
 * those of threads without. */
void ladei_pinned_in_use_add_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t requested,
                                    uint64_t bytes);
void ladei_pinned_in_use_sub_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t requested,
                                    uint64_t bytes);
static inline void ladei_pinned_in_use_add(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                           unsigned node, unsigned class_index, size_t requested, size_t bytes) {
  if (counters != NULL)
    ladei_pinned_class_counts_alloc(&counters->classes[class_index], class_index, requested, bytes);
  else
    ladei_pinned_in_use_add_shared(pool, node, class_index, requested, bytes);
}
static inline void ladei_pinned_in_use_sub(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                           unsigned node, unsigned class_index, size_t requested, size_t bytes) {
  if (counters != NULL)
    ladei_pinned_class_counts_free(&counters->classes[class_index], class_index, requested, bytes);
  else
    ladei_pinned_in_use_sub_shared(pool, node, class_index, requested, bytes);
}

/* Publishes the thread's changes of a class since the last time to the pool's peaks, after its frees of all others: at
 * refill and flush. */
void ladei_pinned_class_counts_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                       unsigned class_index);
/* The same after a free of a block that did not become ready, if 16 frees were not shown yet; larger blocks at once. */
void ladei_pinned_class_counts_publish_frees(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                             unsigned class_index);

/* The node learns all of the thread's part: at the thread's end. */
void ladei_pinned_in_use_publish_rest(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters);

/* Sums over all threads. */
typedef struct ladei_pinned_usage {
  uint64_t allocs, frees, requested_allocated, requested_freed, bytes_allocated, bytes_freed;
  ladei_pinned_amount pending_allocated;
  ladei_pinned_amount pending_retired; /* read before: nothing is in it that is not in the others */
} ladei_pinned_usage;

void ladei_pinned_usage_add(ladei_pinned_usage *sum, const ladei_pinned_usage *usage);

/* Of one class on one node. Caller holds pool->threads.lock. */
ladei_pinned_usage ladei_pinned_class_usage_read(const lade_pinned_pool *pool, unsigned node, unsigned class_index);
/* Of all nodes and classes. */
void ladei_pinned_usage_read(lade_pinned_pool *pool, ladei_pinned_usage *out);

#endif /* LADE_HOST_STATE_USAGE_H */
