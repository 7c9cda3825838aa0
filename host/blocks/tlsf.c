/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-level segregated fit over block records.
 *
 *   size in pages   1 2 .. 7 | 8 9 .. 15 | 16,17 18,19 .. | 32..35 ..        level 0: lists 1..7, one size each
 *   level           0        | 1         | 2              | 3                level k: step 2^(k-1)
 *
 * I1  List [k][j] holds exactly the inserted blocks whose size maps to (k, j), doubly linked, newest first.
 * I2  A bit is set if and only if its list, or for level_bitmap one of its level's lists, is not empty.
 * Locks: the owner's.
 */
#include "host/blocks/tlsf.h"

#include <stddef.h>

typedef struct tlsf_slot {
  unsigned level;
  unsigned step;
} tlsf_slot;

/* The list whose sizes include `pages`. */
static tlsf_slot slot_of(size_t pages) {
  if (pages < LADEI_PINNED_TLSF_STEPS) return (tlsf_slot){0, (unsigned)pages};
  unsigned log2 = ladei_log2_floor(pages);
  return (tlsf_slot){log2 - 2, (unsigned)(pages >> (log2 - 3)) & (LADEI_PINNED_TLSF_STEPS - 1)};
}

/* The first list all of whose sizes are at least `pages`. */
static tlsf_slot slot_from(size_t pages) {
  if (pages < LADEI_PINNED_TLSF_STEPS) return slot_of(pages);
  return slot_of(pages + ((size_t)1 << (ladei_log2_floor(pages) - 3)) - 1);
}

void ladei_tlsf_insert(ladei_tlsf *index, ladei_pinned_block *block) {
  tlsf_slot at = slot_of(ladei_pinned_block_pages(block));
  ladei_pinned_block **list = &index->lists[at.level][at.step];
  ladei_pinned_block_prev_set(block, NULL);
  ladei_pinned_block_next_set(block, *list);
  if (*list != NULL) ladei_pinned_block_prev_set(*list, block);
  *list = block;
  index->step_bitmap[at.level] = (uint8_t)(index->step_bitmap[at.level] | 1u << at.step);
  index->level_bitmap |= 1u << at.level;
  index->block_count++;
  index->page_count += ladei_pinned_block_pages(block);
}

void ladei_tlsf_remove(ladei_tlsf *index, ladei_pinned_block *block) {
  tlsf_slot at = slot_of(ladei_pinned_block_pages(block));
  ladei_pinned_block **list = &index->lists[at.level][at.step];
  ladei_pinned_block *prev = ladei_pinned_block_prev(block), *next = ladei_pinned_block_next(block);
  if (next != NULL) ladei_pinned_block_prev_set(next, prev);
  if (prev != NULL)
    ladei_pinned_block_next_set(prev, next);
  else
    *list = next;
  if (*list == NULL) {
    index->step_bitmap[at.level] = (uint8_t)(index->step_bitmap[at.level] & ~(1u << at.step));
    if (index->step_bitmap[at.level] == 0) index->level_bitmap &= ~(1u << at.level);
  }
  index->block_count--;
  index->page_count -= ladei_pinned_block_pages(block);
}

/* The first list at or after `at` that holds a block. False: none. */
static bool slot_full(const ladei_tlsf *index, tlsf_slot *at) {
  if (at->level >= LADEI_PINNED_TLSF_LEVELS) return false;
  unsigned steps = index->step_bitmap[at->level] & (0xffu << at->step);
  if (steps == 0) {
    uint32_t levels = index->level_bitmap & (uint32_t)(~(uint64_t)0 << (at->level + 1));
    if (levels == 0) return false;
    at->level = (unsigned)__builtin_ctz(levels);
    steps = index->step_bitmap[at->level];
  }
  at->step = (unsigned)__builtin_ctz(steps);
  return true;
}

ladei_pinned_block *ladei_tlsf_find(const ladei_tlsf *index, size_t pages) {
  tlsf_slot at = slot_from(pages);
  return slot_full(index, &at) ? index->lists[at.level][at.step] : NULL;
}

static ladei_pinned_block *list_find(ladei_pinned_block *block, size_t pages, size_t max_pages) {
  while (block != NULL && (ladei_pinned_block_pages(block) < pages || ladei_pinned_block_pages(block) > max_pages))
    block = ladei_pinned_block_next(block);
  return block;
}

static tlsf_slot slot_next(tlsf_slot at) {
  return at.step + 1 < LADEI_PINNED_TLSF_STEPS ? (tlsf_slot){at.level, at.step + 1} : (tlsf_slot){at.level + 1, 0};
}

/* The smallest size of a list. */
static size_t slot_least(tlsf_slot at) {
  return at.level == 0 ? at.step : ((size_t)LADEI_PINNED_TLSF_STEPS + at.step) << (at.level - 1);
}

/* Blocks to look at: each may be a cache miss, and a bad choice of a small block costs little. */
static unsigned looks_for(size_t pages) { return pages < 8 ? 4 : pages < 32 ? 8 : 32; }

ladei_pinned_block *ladei_tlsf_find_least(const ladei_tlsf *index, size_t pages, ladei_tlsf_cost placement_cost,
                                          const void *user) {
  ladei_pinned_block *best = NULL;
  uint64_t least = UINT64_MAX;
  unsigned looks = looks_for(pages);
  for (tlsf_slot at = slot_of(pages); looks > 0 && least > 0 && slot_full(index, &at); at = slot_next(at)) {
    if (slot_least(at) > pages && (slot_least(at) - pages) * LADEI_PINNED_TLSF_PAGE_PARTS >= least)
      break; /* all that follow exceed it by more */
    ladei_pinned_block *block = index->lists[at.level][at.step];
    for (; block != NULL && looks > 0 && least > 0; block = ladei_pinned_block_next(block), looks--) {
      if (ladei_pinned_block_pages(block) < pages) continue;
      uint64_t cost =
          (ladei_pinned_block_pages(block) - pages) * LADEI_PINNED_TLSF_PAGE_PARTS + placement_cost(user, block);
      if (cost < least) {
        least = cost;
        best = block;
      }
    }
  }
  return best != NULL ? best : ladei_tlsf_find(index, pages);
}

ladei_pinned_block *ladei_tlsf_find_close(const ladei_tlsf *index, size_t pages, size_t max_pages) {
  tlsf_slot last = slot_of(max_pages);
  for (tlsf_slot at = slot_of(pages); at.level < LADEI_PINNED_TLSF_LEVELS; at = slot_next(at)) {
    ladei_pinned_block *found = list_find(index->lists[at.level][at.step], pages, max_pages);
    if (found != NULL || (at.level == last.level && at.step == last.step)) return found;
  }
  return NULL;
}
