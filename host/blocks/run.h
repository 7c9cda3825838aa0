/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: a few pages split into at most eight small blocks of one class, without a rest.
 *
 *   512 B: 1 page / 8 blocks    1024 B: 1 / 4    1536 B: 3 / 8    2048 B: 1 / 2    2560 B: 5 / 8    3072 B: 3 / 4
 *   3584 B: 7 / 8
 *
 * Powers of two are naturally aligned. A run is a block of its segment in state RUN; it goes back whole when its last
 * small block is free. Run records come from a slab, so those of the small blocks are type-stable as well.
 */
#ifndef LADE_HOST_BLOCKS_RUN_H
#define LADE_HOST_BLOCKS_RUN_H

#include "base/slab.h"
#include "host/blocks/block.h"
#include "host/blocks/segment.h"

enum { LADEI_PINNED_RUN_MAX_BLOCKS = 8, LADEI_PINNED_RUN_MAX_GRANULES = 56 };

typedef struct ladei_pinned_run {
  ladei_slab_head head;
  _Atomic(uintptr_t) base; /* 0: no memory. Read by anyone through a stale pointer */
  _Atomic(uint32_t) class_index;
  uint32_t free_mask;                   /* bit i: small block i is FREE. Guard: the arena's lock, as for the rest */
  ladei_pinned_block *pages;            /* the block that the run is made of */
  struct ladei_pinned_run *next, *prev; /* runs of the class with a free block */
  ladei_pinned_block blocks[LADEI_PINNED_RUN_MAX_BLOCKS];
} ladei_pinned_run;

_Static_assert(sizeof(ladei_pinned_run) % 64 == 0, "the slab lays each record at the beginning of a line of cache");

/* Pages and blocks of a run of a small class. */
size_t ladei_pinned_run_pages(unsigned class_index);
unsigned ladei_pinned_run_blocks(unsigned class_index);

/* Splits a FREE block of ladei_pinned_run_pages(class) that is in no list. Caller holds the arena's lock, here and
 * below. */
void ladei_pinned_run_open(ladei_pinned_run *run, ladei_pinned_segment *segment, ladei_pinned_block *pages,
                           unsigned class_index);
/* All blocks are free: the pages are one FREE block again. */
void ladei_pinned_run_close(ladei_pinned_run *run);

static inline bool ladei_pinned_run_is_full(const ladei_pinned_run *run) { return run->free_mask == 0; }
static inline bool ladei_pinned_run_is_empty(const ladei_pinned_run *run) {
  return run->free_mask ==
         (1u << ladei_pinned_run_blocks(atomic_load_explicit(&run->class_index, memory_order_relaxed))) - 1;
}

/* The lowest free block, made CACHED. The run is not full. */
ladei_pinned_block *ladei_pinned_run_take(ladei_pinned_run *run);
/* A CACHED block of the run becomes FREE. */
void ladei_pinned_run_put(ladei_pinned_run *run, ladei_pinned_block *block);

/* The small block that `address` lies in, by any thread at any time; NULL where the run is another one by now. */
static inline ladei_pinned_block *ladei_pinned_run_find(ladei_pinned_run *run, uintptr_t address) {
  /* ceil(256 / granules per block): exact for the at most 56 granules of a run, and quicker than a division. */
  static const uint8_t reciprocal[LADEI_PINNED_SMALL_CLASSES] = {255, 128, 86, 64, 52, 43, 37};
  uint32_t class_index = atomic_load_explicit(&run->class_index, memory_order_relaxed);
  size_t granule = (address - atomic_load_explicit(&run->base, memory_order_relaxed)) >> LADEI_PINNED_GRANULE_SHIFT;
  if (granule >= LADEI_PINNED_RUN_MAX_GRANULES) return NULL;
  size_t i = class_index == 0 ? granule : granule * reciprocal[class_index] >> 8;
  return i < LADEI_PINNED_RUN_MAX_BLOCKS ? &run->blocks[i] : NULL;
}

/* Recounts: mask and states agree. Caller holds the arena's lock. */
lade_status ladei_pinned_run_check(const ladei_pinned_run *run);

#endif /* LADE_HOST_BLOCKS_RUN_H */
