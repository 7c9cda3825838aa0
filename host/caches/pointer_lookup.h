/* SPDX-License-Identifier: Apache-2.0 */
/* From an address to the block that it lies in. */
#ifndef LADE_HOST_CACHES_POINTER_LOOKUP_H
#define LADE_HOST_CACHES_POINTER_LOOKUP_H

#include "base/pagemap.h"
#include "host/blocks/block.h"
#include "host/blocks/run.h"
#include "host/blocks/segment.h"

typedef struct ladei_pinned_lookup {
  ladei_pinned_segment *segment; /* NULL: the address is in no memory of the pool */
  ladei_pinned_block *block;     /* NULL: in free memory at which no block starts any more */
  uint64_t word;                 /* the block's, at some moment during the call */
  uintptr_t address;             /* where the block starts, by that word */
} ladei_pinned_lookup;

/*
 * Any address, any thread, any time. Certain for a block that is in use, by that word, and stays so until it is freed;
 * for other addresses the state at some moment during the call, or nothing (no block).
 */
ladei_pinned_lookup ladei_pinned_lookup_find(const ladei_pagemap *map, const void *pointer);

/* Whether two looks at one address found the same: the block's values read in between held all the while, since words
 * of blocks that are handed out do not come again. */
static inline bool ladei_pinned_lookup_is_same(const ladei_pinned_lookup *a, const ladei_pinned_lookup *b) {
  return a->segment == b->segment && a->block == b->block && a->address == b->address &&
         ladei_pinned_word_is_same(a->word, b->word);
}

/*
 * The same for the start of a block in use only, in a segment that probably covers the address (any, or NULL): the
 * block and its word, or NULL: the caller then uses the above. The word's content is certain once the word was swapped.
 */
static inline ladei_pinned_block *ladei_pinned_lookup_find_start(const ladei_pinned_segment *segment, uintptr_t address,
                                                                 uint64_t *out_word) {
  if (segment == NULL) return NULL;
  size_t page = (address - ladei_pinned_segment_base(segment)) >> LADEI_PINNED_PAGE_SHIFT;
  if (page >= ladei_pinned_segment_page_count(segment)) return NULL;
  ladei_pinned_block *block = &segment->blocks[page]; /* a segment's page_count never exceeds its capacity */
  uint64_t word = ladei_pinned_block_word(block);
  if (ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_RUN) {
    ladei_pinned_run *run = ladei_pinned_block_run(block);
    block = run == NULL ? NULL : ladei_pinned_run_find(run, address);
    if (block == NULL) return NULL;
    word = ladei_pinned_block_word(block);
  }
  *out_word = word;
  return ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_IN_USE && ladei_pinned_block_address(block) == address
             ? block
             : NULL;
}

#endif /* LADE_HOST_CACHES_POINTER_LOOKUP_H */
