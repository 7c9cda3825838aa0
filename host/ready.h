/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ready blocks: those that an alloc can have without a lock. Up to 1 MiB they lie in the thread's magazines, above in
 * the node's bins.
 */
#ifndef LADE_HOST_READY_H
#define LADE_HOST_READY_H

#include "host/node.h"
#include "host/thread_cache.h"

/* A block for a request of the class that needs `pages` (above the magazines' sizes only), IN_USE now; NULL: none. */
static inline ladei_block *ladei_ready_take(ladei_thread_cache *cache, ladei_tallies *tallies, ladei_node *node,
                                            unsigned class_index, size_t pages, size_t requested) {
  ladei_block *block;
  if (class_index < LADEI_MAGAZINE_CLASSES) {
    block = ladei_magazine_take(cache, &tallies->classes[class_index]);
    if (block != NULL) {
      ladei_block_hand_out(block, requested);
    }
  } else {
    block = ladei_bins_take(&node->bins, class_index, pages);
    if (block != NULL) {
      ladei_block_requested_set(block, requested);
    }
  }
  return block;
}

/* A CACHED block, not lodged, becomes ready. False: no place for it. */
static inline bool ladei_ready_put(ladei_thread_cache *cache, ladei_tallies *tallies, ladei_node *node,
                                   ladei_block *block, unsigned class_index) {
  if (class_index < LADEI_MAGAZINE_CLASSES) {
    return ladei_magazine_put(cache, &tallies->classes[class_index], block);
  }
  return ladei_bins_lodge(&node->bins, block, class_index);
}

static inline void ladei_tally_alloc(ladei_tally *tally, unsigned class_index, size_t requested, size_t block_bytes) {
  ladei_tally_add(&tally->allocs, 1);
  ladei_tally_add(&tally->requested_allocated, requested);
  if (class_index >= LADEI_MAGAZINE_CLASSES) {
    ladei_tally_add(&tally->bytes_allocated, block_bytes);
  }
}

static inline void ladei_tally_free(ladei_tally *tally, unsigned class_index, size_t requested, size_t block_bytes) {
  ladei_tally_add(&tally->frees, 1);
  ladei_tally_add(&tally->requested_freed, requested);
  if (class_index >= LADEI_MAGAZINE_CLASSES) {
    ladei_tally_add(&tally->bytes_freed, block_bytes);
  }
}

#endif /* LADE_HOST_READY_H */
