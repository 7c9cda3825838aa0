/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: one piece of pinned memory each, and the records of the blocks that it is split into.
 *
 *   |-- block (in use) --|-- block (free) --|-- run: s s s s s s s s --|-- block (cached) --|     whole pages
 *
 * A segment's metadata is one mapping of its own: this struct, a bitmap of block starts in two levels, and one block
 * record per page. The mapping is made for a number of pages (capacity) and stays until the pool is destroyed; a
 * released segment's metadata serves a later segment. Records of pages at which no block starts are never touched, so
 * they occupy addresses and no memory.
 */
#ifndef LADE_HOST_BLOCKS_SEGMENT_H
#define LADE_HOST_BLOCKS_SEGMENT_H

#include "host/blocks/block.h"
#include "lade/status.h"

typedef struct ladei_pinned_segment {
  /* Constant from creation of the metadata. */
  ladei_pinned_block *blocks;        /* [capacity_pages] */
  _Atomic(uint64_t) *starts;         /* bit per page: a block starts there */
  _Atomic(uint64_t) *starts_summary; /* bit per word of `starts`: it is not 0 */
  size_t capacity_pages;
  size_t metadata_bytes; /* of the whole mapping */

  /* Constant while the segment has memory; read by anyone through a stale pointer. */
  _Atomic(uintptr_t) base; /* 0: no memory */
  _Atomic(size_t) page_count;
  _Atomic(size_t) bytes;   /* whole pages, except for powers of two below a page under PyTorch's policy */
  _Atomic(int32_t) source; /* lade_pinned_source */
  _Atomic(uint32_t) node;  /* index of the node's cache in the pool */
  unsigned arena;          /* index in the node: 0 until it is added there; read by holders of its blocks */
  void *mapped;            /* this and the next two: for the source, to give it back */
  size_t mapped_bytes;
  size_t registered_bytes;
  _Atomic(bool) in_chunks; /* registered in several chunks, at whose borders a copy must end: never split */
  uint64_t birth;          /* number of the segment in its pool: older ones are smaller */

  /* Guard: the arena's lock. */
  struct ladei_pinned_segment *next, *prev; /* the arena's segments, oldest first; or the list of spare metadata */
  uint64_t free_since_ns;                   /* when it was first seen wholly free; 0: not yet */
  bool huge;                                /* made for one large request: kept whole while that can be */
  bool divided;              /* ... and it could not: to be split like any other until wholly free again */
  uint32_t generation_least; /* first of new records: above all before the last reset */
  uint32_t generation_most;  /* of the blocks that came back since */
} ladei_pinned_segment;

/* Metadata for segments of up to `pages`; NULL when there is no memory. Zeroed: no memory, no blocks. */
ladei_pinned_segment *ladei_pinned_segment_create(size_t pages);
void ladei_pinned_segment_destroy(ladei_pinned_segment *segment);
/* Has the kernel make memory of the records now, in one call. It does so else by and by where blocks are split, under the arena's lock,
 * where many threads may wait. */
void ladei_pinned_segment_populate(const ladei_pinned_segment *segment);

/* Forgets all blocks and gives the memory of their records back to the system. All blocks were taken back before.
 * Generations go on from where they were: no stale word comes true again. */
void ladei_pinned_segment_reset(ladei_pinned_segment *segment);
/* Capacity of the metadata made for `pages`; a power of two, so that spare metadata fits again. */
size_t ladei_pinned_segment_capacity(size_t pages);

static inline uintptr_t ladei_pinned_segment_base(const ladei_pinned_segment *segment) {
  return atomic_load_explicit(&segment->base, memory_order_relaxed);
}
static inline size_t ladei_pinned_segment_page_count(const ladei_pinned_segment *segment) {
  return atomic_load_explicit(&segment->page_count, memory_order_relaxed);
}
static inline size_t ladei_pinned_segment_bytes(const ladei_pinned_segment *segment) {
  return atomic_load_explicit(&segment->bytes, memory_order_relaxed);
}
static inline unsigned ladei_pinned_segment_node(const ladei_pinned_segment *segment) {
  return atomic_load_explicit(&segment->node, memory_order_relaxed);
}

/* Usable bytes of a block of the segment whose word is known. */
static inline size_t ladei_pinned_segment_block_bytes(const ladei_pinned_segment *segment,
                                                      const ladei_pinned_block *block, uint64_t word) {
  size_t bytes = ladei_pinned_block_bytes(block, word);
  return block == segment->blocks ? ladei_size_min(bytes, ladei_pinned_segment_bytes(segment)) : bytes;
}

static inline bool ladei_pinned_segment_in_chunks(const ladei_pinned_segment *segment) {
  return atomic_load_explicit(&segment->in_chunks, memory_order_relaxed);
}

/* Makes one free block of the whole segment and returns it. Caller: the thread that made the segment. */
ladei_pinned_block *ladei_pinned_segment_open(ladei_pinned_segment *segment, unsigned node);

/* Caller holds the arena's lock; the blocks are FREE and in no list. */
/* Splits a block to `pages`; the rest, a new FREE block, or NULL if there is none. */
ladei_pinned_block *ladei_pinned_segment_split(ladei_pinned_segment *segment, ladei_pinned_block *block, size_t pages);
/* Neighbours that are FREE, or NULL. */
ladei_pinned_block *ladei_pinned_segment_before(ladei_pinned_segment *segment, ladei_pinned_block *block);
ladei_pinned_block *ladei_pinned_segment_after(ladei_pinned_segment *segment, ladei_pinned_block *block);
/* A CACHED block becomes FREE. */
void ladei_pinned_segment_take_back(ladei_pinned_segment *segment, ladei_pinned_block *block);
/* Makes one block of two neighbours, the first of which stays. */
void ladei_pinned_segment_coalesce(ladei_pinned_segment *segment, ladei_pinned_block *first,
                                   ladei_pinned_block *second);

static inline size_t ladei_pinned_segment_page_of(const ladei_pinned_segment *segment,
                                                  const ladei_pinned_block *block) {
  return (size_t)(block - segment->blocks);
}

/* Whether a FREE block is the whole segment. */
static inline bool ladei_pinned_segment_is_whole(const ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  return ladei_pinned_block_pages(block) == ladei_pinned_segment_page_count(segment);
}

/* Whether it is kept for a request of about its own size. */
static inline bool ladei_pinned_segment_is_kept_whole(const ladei_pinned_segment *segment,
                                                      const ladei_pinned_block *block) {
  return segment->huge && !segment->divided && ladei_pinned_segment_is_whole(segment, block);
}

/*
 * The record of the block or run in whose pages `address` lies, by any thread at any time; NULL: none. Certain for
 * blocks that are in use; for others a guess that the caller must check.
 */
ladei_pinned_block *ladei_pinned_segment_find(const ladei_pinned_segment *segment, uintptr_t address);

/* Recounts a segment: see the invariants in segment.c. Caller holds the arena's lock. Names the first one broken. */
lade_status ladei_pinned_segment_check(const ladei_pinned_segment *segment);

#endif /* LADE_HOST_BLOCKS_SEGMENT_H */
