/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bins: emptying them. The model and its invariants are in bins.h.
 *
 * Locks: none here; the caller of dislodge holds the node's.
 */
#include "host/bins.h"

bool ladei_bins_unmark(ladei_block *block) {
  uint64_t word = ladei_block_word(block);
  while (!ladei_block_word_swap(block, word, word & ~LADEI_BLOCK_LODGED)) {
    word = ladei_block_word(block); /* taken, given back or retired meanwhile */
  }
  return ladei_word_state(word) == LADEI_BLOCK_CACHED;
}

ladei_block *ladei_bins_dislodge(ladei_bins *bins) {
  ladei_block *list = NULL;
  for (unsigned i = 0; i < LADEI_BIN_CLASSES * LADEI_BIN_PLACES; i++) {
    _Atomic(ladei_block *) *place = &bins->classes[i / LADEI_BIN_PLACES].places[i % LADEI_BIN_PLACES];
    ladei_block *block = atomic_load_explicit(place, memory_order_acquire);
    if (block == NULL) {
      continue;
    }
    atomic_store_explicit(place, NULL, memory_order_release);
    if (ladei_bins_unmark(block)) {
      ladei_block_next_set(block, list);
      list = block;
    }
  }
  return list;
}

uint64_t ladei_bins_cached(const ladei_bins *bins, unsigned class_index) {
  uint64_t count = 0;
  for (unsigned i = 0; i < LADEI_BIN_PLACES; i++) {
    const ladei_block *block =
        atomic_load_explicit(&bins->classes[class_index - LADEI_MAGAZINE_CLASSES].places[i], memory_order_acquire);
    count += block != NULL && ladei_word_state(ladei_block_word(block)) == LADEI_BLOCK_CACHED ? 1 : 0;
  }
  return count;
}

uint64_t ladei_bins_bytes(const ladei_bins *bins) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < LADEI_BIN_CLASSES * LADEI_BIN_PLACES; i++) {
    const ladei_block *block =
        atomic_load_explicit(&bins->classes[i / LADEI_BIN_PLACES].places[i % LADEI_BIN_PLACES], memory_order_acquire);
    if (block != NULL && ladei_word_state(ladei_block_word(block)) == LADEI_BLOCK_CACHED) {
      bytes += ladei_block_pages(block) << LADEI_PINNED_PAGE_SHIFT;
    }
  }
  return bytes;
}
