/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owner lookup: address -> segment (page map) -> page record -> block, or run -> small block.
 *
 * Note [Stale lookups]
 *   A pointer that its owner may use leads through records that no thread changes: its block is in use, so its segment
 *   has memory, its run exists, its record's word stays. For any other pointer the records on the way may change under
 *   the reader. All of them are type-stable (segment metadata and run records live as long as the pool) and all that is
 *   read is atomic, so the reader gets some block record, perhaps of other memory. A pointer to a run says that it is
 *   one, as the same field holds a link of a list at other times. The reader believes a record only if the block covers
 *   the address and its word is the same before and after that look. A thread that then changes the block does so by
 *   compare-and-swap of that word. Words of blocks that were handed out do not come again: generations never fall.
 *
 * Locks: none.
 */
#include "host/caches/pointer_lookup.h"

#include "base/switch.h"

static ladei_pinned_block *block_at(const ladei_pinned_segment *segment, uintptr_t address) {
  ladei_pinned_block *block = ladei_pinned_segment_find(segment, address);
  if (block == NULL || ladei_pinned_word_state(ladei_pinned_block_word(block)) != LADEI_PINNED_BLOCK_RUN) return block;
  ladei_switch_point("find the run", 0);
  ladei_pinned_run *run = ladei_pinned_block_run(block); /* NULL: coalesced with other free memory meanwhile */
  return run == NULL ? NULL : ladei_pinned_run_find(run, address);
}

ladei_pinned_lookup ladei_pinned_lookup_find(const ladei_pagemap *map, const void *pointer) {
  ladei_pinned_lookup found = {ladei_pagemap_get(map, pointer), NULL, 0, 0};
  if (found.segment == NULL) return found;
  if ((uintptr_t)pointer - ladei_pinned_segment_base(found.segment) >= ladei_pinned_segment_bytes(found.segment)) {
    found.segment = NULL; /* after a segment that ends within the page, or the segment is another one by now */
    return found;
  }
  ladei_switch_point("find the block", 0);
  ladei_pinned_block *block = block_at(found.segment, (uintptr_t)pointer);
  if (block == NULL) return found;
  uint64_t word = ladei_pinned_block_word(block);
  /* Acquire: both come before the second look at the word. */
  uintptr_t address = atomic_load_explicit(&block->address, memory_order_acquire);
  size_t bytes = ladei_pinned_block_bytes(block, word);
  ladei_switch_point("find again", 0);
  bool same = ladei_pinned_word_is_same(atomic_load_explicit(&block->word, memory_order_relaxed), word);
  if (same && (uintptr_t)pointer - address < bytes) {
    found.block = block;
    found.word = word;
    found.address = address;
  }
  return found;
}
