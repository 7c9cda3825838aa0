/* SPDX-License-Identifier: Apache-2.0 */
/* From an address to the block that it lies in. */
#ifndef LADE_HOST_POINTER_LOOKUP_H
#define LADE_HOST_POINTER_LOOKUP_H

#include "base/pagemap.h"
#include "host/block.h"
#include "host/run.h"
#include "host/segment.h"

typedef struct ladei_owner {
  ladei_segment *segment; /* NULL: the address is in no memory of the pool */
  ladei_block *block;     /* NULL: in free memory at which no block starts any more */
  uint64_t word;          /* the block's, at some moment during the call */
  uintptr_t address;      /* where the block starts, by that word */
} ladei_owner;

/*
 * Any address, any thread, any time. Certain for a block that is in use, by that word, and stays so for as long as
 * nobody frees it; for other addresses what was true at some moment during the call, or nothing (no block).
 */
ladei_owner ladei_owner_find(const ladei_pagemap *map, const void *pointer);

/*
 * The same for the start of a block in use only, in a segment that probably covers the address (any, or NULL): the
 * block and its word, or NULL, when the caller looks again by the above. What the word says is certain once the word
 * could be swapped.
 */
static inline ladei_block *ladei_owner_find_start(const ladei_segment *segment, uintptr_t address, uint64_t *out_word) {
  if (segment == NULL) {
    return NULL;
  }
  size_t page = (address - ladei_segment_base(segment)) >> LADEI_PINNED_PAGE_SHIFT;
  if (page >= ladei_segment_page_count(segment)) {
    return NULL;
  }
  ladei_block *block = &segment->blocks[page]; /* a segment's page_count never exceeds its capacity */
  uint64_t word = ladei_block_word(block);
  if (ladei_word_state(word) == LADEI_BLOCK_RUN) {
    ladei_run *run = ladei_block_run(block);
    block = run == NULL ? NULL : ladei_run_find(run, address);
    if (block == NULL) {
      return NULL;
    }
    word = ladei_block_word(block);
  }
  *out_word = word;
  return ladei_word_state(word) == LADEI_BLOCK_IN_USE && ladei_block_address(block) == address ? block : NULL;
}

#endif /* LADE_HOST_POINTER_LOOKUP_H */
