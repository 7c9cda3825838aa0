/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bins: ready blocks above the magazines' sizes, for all threads of a node, without a lock. Blocks that one thread
 * takes and another one frees come here (ready.h).
 *
 *   bin of a class:  | slot | slot | slot | ... 8          slot: NULL, or a block that is IN_SLOT there
 *
 * A block keeps its slot while it is in use or pending, so that taking it and giving it back is one
 * compare-and-swap of its word each:
 *
 *   take       CACHED + IN_SLOT -> IN_USE + IN_SLOT     the winner has the block
 *   give back  IN_USE + IN_SLOT -> CACHED + IN_SLOT     from then on any thread may take it
 *   put        the holder of a CACHED block marks it, then puts it into an empty slot
 *   empty      empties the slot, then takes the mark off, and the block if it is CACHED
 *
 * B1  A block in a slot is marked IN_SLOT. Only `empty` empties slots, and only one thread at a time does so on a node
 *     (the caller's lock), so a full slot keeps its block meanwhile.
 * B2  A marked block is in a slot, except for the moments between the two steps of `put` and of `empty`. In these
 *     moments a thread that looked at a slot before may still take and give back the block; the second step deals with
 *     that.
 * B3  A word that was CACHED and is the same later was CACHED all the time, with the same size: a block that goes
 *     through the node's free memory comes back only by being handed out, and that changes the generation.
 */
#ifndef LADE_HOST_CACHES_BINS_H
#define LADE_HOST_CACHES_BINS_H

#include "host/blocks/block.h"

enum {
  LADEI_PINNED_MAGAZINE_CLASSES =
      LADEI_PINNED_LINEAR_CLASSES + 8 * 5, /* up to 1 MiB: kept by threads, see thread_cache.h */
  LADEI_PINNED_BIN_CLASSES = LADEI_PINNED_CLASSES - LADEI_PINNED_MAGAZINE_CLASSES,
  LADEI_PINNED_BIN_SLOTS = 8,
};

#define LADEI_PINNED_MAGAZINE_MAX_BYTES LADEI_MIB

enum { LADEI_PINNED_BIN_WORDS = (LADEI_PINNED_BIN_CLASSES + 63) / 64 };

typedef struct ladei_pinned_bins {
  _Atomic(uint64_t) occupied[LADEI_PINNED_BIN_WORDS]; /* bit of a class: some slot may be full; clear: all are empty */
  struct {
    _Atomic(ladei_pinned_block *) slots[LADEI_PINNED_BIN_SLOTS]; /* a cache line */
  } classes[LADEI_PINNED_BIN_CLASSES];
} ladei_pinned_bins;

/* A block of the class with at least `pages` and at most `most`, IN_USE now; NULL: none. Blocks of a class differ where
 * segments made for one request are among them. */
static inline ladei_pinned_block *ladei_pinned_bins_take(ladei_pinned_bins *bins, unsigned class_index, size_t pages,
                                                         size_t most) {
  _Atomic(ladei_pinned_block *) *slots = bins->classes[class_index - LADEI_PINNED_MAGAZINE_CLASSES].slots;
  for (unsigned i = 0; i < LADEI_PINNED_BIN_SLOTS; i++) {
    ladei_pinned_block *block = atomic_load_explicit(&slots[i], memory_order_acquire);
    if (block == NULL) continue;
    uint64_t word = ladei_pinned_block_word(block);
    bool ready = ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_CACHED && ladei_pinned_word_is_in_slot(word);
    size_t own = ladei_pinned_block_pages(block);
    if (ready && own >= pages && own <= most &&
        ladei_pinned_block_word_swap(block, word, ladei_pinned_word_handed_out(word)))
      return block; /* of the size just seen: B3 */
  }
  return NULL;
}

/* Takes the mark off. True: the block is CACHED and the caller's now; false: it is in use or pending. */
bool ladei_pinned_bins_unmark(ladei_pinned_block *block);

/* Puts a CACHED block into a slot; it may be in use again when this returns. False: no slot is empty; the block stays
 * the caller's. */
static inline bool ladei_pinned_bins_put(ladei_pinned_bins *bins, ladei_pinned_block *block, unsigned class_index) {
  unsigned bin = class_index - LADEI_PINNED_MAGAZINE_CLASSES;
  _Atomic(ladei_pinned_block *) *slots = bins->classes[bin].slots;
  for (unsigned i = 0; i < LADEI_PINNED_BIN_SLOTS; i++) {
    ladei_pinned_block *empty = NULL;
    if (atomic_load_explicit(&slots[i], memory_order_relaxed) != NULL) continue;
    uint64_t word = atomic_load_explicit(&block->word, memory_order_relaxed);
    ladei_pinned_block_word_set(block, word | LADEI_PINNED_BLOCK_IN_SLOT);
    if (atomic_compare_exchange_strong(&slots[i], &empty, block)) {
      uint64_t bit = (uint64_t)1 << (bin % 64);
      if ((atomic_load(&bins->occupied[bin / 64]) & bit) == 0) atomic_fetch_or(&bins->occupied[bin / 64], bit);
      return true;
    }
    if (!ladei_pinned_bins_unmark(block)) return true; /* taken by a thread that knew it from an earlier slot (B2) */
  }
  return false;
}

/* Empties all slots. The blocks that were CACHED: a list linked by next. The caller holds a lock that keeps
 * others from emptying slots of this node. */
ladei_pinned_block *ladei_pinned_bins_empty(ladei_pinned_bins *bins);

/* Bytes of the blocks in slots that are CACHED; exact when no other thread is inside. */
uint64_t ladei_pinned_bins_bytes(const ladei_pinned_bins *bins);

#endif /* LADE_HOST_CACHES_BINS_H */
