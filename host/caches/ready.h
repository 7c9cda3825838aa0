/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ready blocks: those that an alloc can have without a lock. Up to 1 MiB they lie in the thread's magazines, and next
 * in the node's depot (depot.h); above, the one that the thread used last lies with it, others in the node's bins, but
 * in pools that keep little ready (keeps_large). A block of the thread's own leaves the
 * compare-and-swap of free as the only locked instruction of a pair: 17 ns, with two 27 ns.
 */
#ifndef LADE_HOST_CACHES_READY_H
#define LADE_HOST_CACHES_READY_H

#include "host/caches/node.h"
#include "host/caches/thread_cache.h"

/* A large block was handed out to the thread. */
static inline void ladei_pinned_ready_taken(ladei_pinned_thread_cache *cache, ladei_pinned_thread_counters *counters,
                                            ladei_pinned_block *block, unsigned class_index) {
  unsigned bin = class_index - LADEI_PINNED_MAGAZINE_CLASSES;
  uint32_t pages = (uint32_t)ladei_pinned_block_pages(block);
  counters->repeats[bin] = pages == counters->last_pages[bin] ? counters->repeats[bin] + 1 : 0;
  counters->last_pages[bin] = pages;
  counters->last[bin] = block;
  block->ticket.spare = cache->id;
}

/* Blocks of a class differ, so that every other one is too short for a request of random size; all of the next one are
 * long enough. Of these serve those that are at most an eighth longer, as lade_pinned_alloc() promises. 16
 * threads that replace blocks of up to 16 MiB take a sixth less so, and have a tenth less reserved, as what the next class
 * keeps serves as well (benchmarks/results/h200/crowd_next_class.txt). */
enum { LADEI_PINNED_NEXT_CLASS_PAGES = 16 * LADEI_MIB >> LADEI_PINNED_PAGE_SHIFT };

/* A block for a request of the class that needs `pages` (above the magazines' sizes only), IN_USE now; NULL: none. */
static inline ladei_pinned_block *ladei_pinned_ready_take(ladei_pinned_thread_cache *cache,
                                                          ladei_pinned_thread_counters *counters,
                                                          ladei_pinned_node *node, unsigned class_index, size_t pages,
                                                          size_t requested) {
  unsigned bin = class_index - LADEI_PINNED_MAGAZINE_CLASSES;
  bool large = class_index >= LADEI_PINNED_MAGAZINE_CLASSES;
  ladei_pinned_block *block = large ? ladei_pinned_kept_take(cache, counters, bin, pages)
                                    : ladei_pinned_magazine_take(cache, &counters->classes[class_index]);
  if (block != NULL) {
    ladei_pinned_block_hand_out(block, requested);
  } else if (large && !ladei_asym_lock_is_called(&cache->asym_lock)) { /* a call is answered by the slow path */
    block = ladei_pinned_bins_take(&node->bins, class_index, pages, SIZE_MAX);
    if (block == NULL && pages <= LADEI_PINNED_NEXT_CLASS_PAGES)
      block = ladei_pinned_bins_take(&node->bins, class_index + 1, pages,
                                     (requested + requested / 8) >> LADEI_PINNED_PAGE_SHIFT);
    if (block != NULL) {
      ladei_pinned_block_requested_set(block, requested);
      ladei_pinned_ready_taken(cache, counters, block, ladei_pinned_word_class(ladei_pinned_block_word(block)));
    }
  }
  return block;
}

/* Owner. A CACHED block, in no slot, goes to a bin. False: there is no room, a thread waits, or a drain is going on.
 * Inside the asymmetric lock: a thread that looks for memory announces that, waits in its drain for those inside, and
 * then empties the bins. */
static inline bool ladei_pinned_bins_offer(ladei_pinned_thread_cache *cache, ladei_pinned_node *node,
                                           ladei_pinned_block *block, unsigned class_index) {
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return false;
  bool put = !ladei_pinned_cap_has_waiters(cache->cap_wait) && ladei_pinned_bins_put(&node->bins, block, class_index);
  ladei_asym_lock_leave(&cache->asym_lock);
  if (put) ladei_pinned_memory_returned(cache->cap_wait); /* of an owner that could not be fenced */
  return put;
}

/* A CACHED block, in no slot, becomes ready. False: it is to go to its node: there is no room for it, or it is a large
 * one that the thread itself took, unless it takes one size all the time. Among the free blocks of the node that can
 * coalesce with its neighbours and be split to fit; in a bin it waits for a request of its class. */
static inline __attribute__((always_inline)) bool
ladei_pinned_ready_put(ladei_pinned_thread_cache *cache, ladei_pinned_thread_counters *counters,
                       ladei_pinned_node *node, ladei_pinned_block *block, unsigned class_index) {
  if (class_index < LADEI_PINNED_MAGAZINE_CLASSES)
    return ladei_pinned_magazine_put(cache, &counters->classes[class_index], block);
  unsigned bin = class_index - LADEI_PINNED_MAGAZINE_CLASSES;
  if (ladei_pinned_kept_put(cache, counters, bin, block)) return true;
  /* Random sizes rarely repeat so often, since a class has eight of them. Where others are at the node's free memory, a
   * bin is better than to wait for them: 16 threads that replace large blocks take a fourth less so. */
  bool wanted =
      block->ticket.spare != cache->id || counters->repeats[bin] >= 4 || ladei_pinned_node_is_busy(node, cache->stripe);
  return wanted && cache->keeps_large && ladei_pinned_bins_offer(cache, node, block, class_index);
}

#endif /* LADE_HOST_CACHES_READY_H */
