/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index of free blocks by size: two-level segregated fit.
 *
 * First level: the power of two of the size in pages; second level: eight steps within it. Sizes below eight pages have
 * a list each. Two bitmaps tell which lists hold blocks, so insert, remove and search take constant time, however many
 * blocks there are. (Method: Masmano, Ripoll, Crespo, Real, "TLSF: a new dynamic memory allocator for real-time
 * systems", ECRTS 2004.)
 *
 * No lock of its own: the owner's lock guards it and the links of the blocks in it.
 */
#ifndef LADE_HOST_BLOCKS_TLSF_H
#define LADE_HOST_BLOCKS_TLSF_H

#include "host/blocks/block.h"

enum {
  LADEI_PINNED_TLSF_STEPS = 8,
  LADEI_PINNED_TLSF_LEVELS = LADEI_PINNED_MAX_PAGES_LOG2 - 1, /* level 0: 1..7 pages; level k: from 2^(k+2) pages on */
};

typedef struct ladei_tlsf {
  uint32_t level_bitmap;                         /* bit k: level k has a block */
  uint8_t step_bitmap[LADEI_PINNED_TLSF_LEVELS]; /* bit j: list [k][j] has a block */
  ladei_pinned_block *lists[LADEI_PINNED_TLSF_LEVELS][LADEI_PINNED_TLSF_STEPS];
  uint64_t block_count;
  uint64_t page_count; /* sum over the blocks in it */
} ladei_tlsf;

/* The block's size must not change while it is in the index. */
void ladei_tlsf_insert(ladei_tlsf *index, ladei_pinned_block *block);
void ladei_tlsf_remove(ladei_tlsf *index, ladei_pinned_block *block);

/* A block of at least `pages`, from the smallest step all of whose sizes are large enough (for the size of a class: its
 * own step); NULL: none. Stays inside. */
ladei_pinned_block *ladei_tlsf_find(const ladei_tlsf *index, size_t pages);

/*
 * Of the blocks of at least `pages` the one whose excess and placement cost together are least, among the first few
 * that are looked at (at most 32), from the smallest on; if none of those is large enough, as ladei_tlsf_find. The cost
 * is in parts of a page, LADEI_PINNED_TLSF_PAGE_PARTS to a page.
 */
#define LADEI_PINNED_TLSF_PAGE_PARTS ((uint64_t)1 << 16)
typedef uint64_t (*ladei_tlsf_cost)(const void *user, const ladei_pinned_block *block);
ladei_pinned_block *ladei_tlsf_find_least(const ladei_tlsf *index, size_t pages, ladei_tlsf_cost placement_cost,
                                          const void *user);

/* A block of `pages` to `max_pages`, max_pages being at most pages * 9/8; looks at every block of that size. */
ladei_pinned_block *ladei_tlsf_find_close(const ladei_tlsf *index, size_t pages, size_t max_pages);

#endif /* LADE_HOST_BLOCKS_TLSF_H */
