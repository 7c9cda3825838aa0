/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bins: emptying them. The model and its invariants are in bins.h.
 *
 * Locks: none here; the caller of ladei_pinned_bins_empty holds the node's.
 */
#include "host/caches/bins.h"

bool ladei_pinned_bins_unmark(ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  while (!ladei_pinned_block_word_swap(block, word, word & ~LADEI_PINNED_BLOCK_IN_SLOT))
    word = ladei_pinned_block_word(block); /* taken, given back or retired meanwhile */
  return ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_CACHED;
}

/* Empties the slots of one class. */
static ladei_pinned_block *class_empty(_Atomic(ladei_pinned_block *) *slots, ladei_pinned_block *list) {
  for (unsigned i = 0; i < LADEI_PINNED_BIN_SLOTS; i++) {
    ladei_pinned_block *block = atomic_load(&slots[i]);
    if (block == NULL) continue;
    atomic_store_explicit(&slots[i], NULL, memory_order_release);
    if (ladei_pinned_bins_unmark(block)) {
      ladei_pinned_block_next_set(block, list);
      list = block;
    }
  }
  return list;
}

ladei_pinned_block *ladei_pinned_bins_empty(ladei_pinned_bins *bins) {
  ladei_pinned_block *list = NULL;
  for (unsigned word = 0; word < LADEI_PINNED_BIN_WORDS; word++) {
    uint64_t occupied = atomic_load(&bins->occupied[word]);
    if (occupied != 0) occupied = atomic_exchange(&bins->occupied[word], 0);
    for (; occupied != 0; occupied &= occupied - 1)
      list = class_empty(bins->classes[word * 64 + (unsigned)__builtin_ctzl(occupied)].slots, list);
  }
  return list;
}

uint64_t ladei_pinned_bins_bytes(const ladei_pinned_bins *bins) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < LADEI_PINNED_BIN_CLASSES * LADEI_PINNED_BIN_SLOTS; i++) {
    const ladei_pinned_block *block = atomic_load_explicit(
        &bins->classes[i / LADEI_PINNED_BIN_SLOTS].slots[i % LADEI_PINNED_BIN_SLOTS], memory_order_acquire);
    if (block != NULL && ladei_pinned_word_state(ladei_pinned_block_word(block)) == LADEI_PINNED_BLOCK_CACHED)
      bytes += ladei_pinned_block_pages(block) << LADEI_PINNED_PAGE_SHIFT;
  }
  return bytes;
}
