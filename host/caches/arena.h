/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena: some segments of a NUMA node's cache, and the free blocks in them, under one lock.
 *
 *   take    free blocks by size (tlsf.h) -> split -> CACHED block        small ones from runs (run.h)
 *   put     CACHED block -> coalesced with free neighbours -> free blocks by size
 *
 * Two indexes: `split` holds the free blocks that may be split; `whole` the free segments that were made for one large
 * request each, kept whole for the next such request until memory is so short that they are split too.
 * Why a node has several: Note [Arenas] in node.c. No function makes a driver call.
 */
#ifndef LADE_HOST_CACHES_ARENA_H
#define LADE_HOST_CACHES_ARENA_H

#include "base/lock.h"
#include "base/pagemap.h"
#include "base/slab.h"
#include "host/blocks/run.h"
#include "host/blocks/segment.h"
#include "host/blocks/tlsf.h"
#include "host/caches/counters.h"
#include "runtime/retire/retire_shards.h"

/* Blocks of one class that came from free memory, and went back to it, ever. */
typedef struct ladei_pinned_supply {
  ladei_pinned_counter_pair taken, returned;
} ladei_pinned_supply;

typedef struct ladei_pinned_arena {
  _Alignas(128) ladei_lock lock; /* guards everything below that is not constant */
  ladei_pagemap *map;            /* the pool's; constant */
  ladei_retire_shards *retire;   /* the pool's; constant */
  unsigned node, index;          /* of the node in the pool, and in the node; constant */
  ladei_tlsf split;
  ladei_tlsf whole;
  ladei_pinned_run *runs[LADEI_PINNED_SMALL_CLASSES]; /* with a free block, by class */
  ladei_pinned_run
      *idle_runs[LADEI_PINNED_SMALL_CLASSES]; /* one without a block in use, kept for the next request; or NULL */
  ladei_slab run_records;
  ladei_pinned_segment *first, *last;               /* all segments, oldest first */
  uint64_t free_small_bytes;                        /* in runs */
  uint64_t reserved_bytes;                          /* sum over the segments */
  ladei_pinned_supply supply[LADEI_PINNED_CLASSES]; /* read by anyone */
  uint64_t changes_since_recount;                   /* in builds without NDEBUG: see ladei_pinned_arena_release */
  uint64_t changes_per_recount;
  _Atomic(ladei_pinned_block *) returned; /* put while the lock was busy, linked by next; no guard */
} ladei_pinned_arena;

/* Of zeroed memory: no segments. */
void ladei_pinned_arena_open(ladei_pinned_arena *arena, ladei_pagemap *map, ladei_retire_shards *retire, unsigned node,
                             unsigned index);
/* All segments have been taken out. */
void ladei_pinned_arena_close(ladei_pinned_arena *arena);

/* Takes the lock; puts away the blocks that were put while it was busy, as the second function does where the lock is
 * held. */
void ladei_pinned_arena_acquire(ladei_pinned_arena *arena);
void ladei_pinned_arena_settle(ladei_pinned_arena *arena);
/* Gives the lock. The invariants are recounted now and then in builds without NDEBUG. */
void ladei_pinned_arena_release(ladei_pinned_arena *arena);

/* Takes back a list of CACHED blocks of this arena, linked by next. Takes the lock, if it is free. */
void ladei_pinned_arena_put(ladei_pinned_arena *arena, ladei_pinned_block *list);

/* ---- With the lock held ------------------------------------------------------------------------------------------ */

/* Up to `count` CACHED blocks for requests of `bytes`, linked by next; NULL: nothing fits. `exact`: blocks as long as
 * asked, in whole pages, not of the request's class (for requests that get a segment of their own). */
ladei_pinned_block *ladei_pinned_arena_take(ladei_pinned_arena *arena, size_t bytes, bool exact, unsigned count);

/* Makes a segment that is kept whole divisible, if that can serve a request of `bytes`. One in chunks is not: the caller
 * gives it back then, and pins anew. */
bool ladei_pinned_arena_divide(ladei_pinned_arena *arena, size_t bytes);

/* A CACHED block as long as asked, in whole pages, of a range that may be split; for more than 1 MiB. */
ladei_pinned_block *ladei_pinned_arena_take_just(ladei_pinned_arena *arena, size_t bytes);

/* All of a wholly free segment, as one CACHED block. */
ladei_pinned_block *ladei_pinned_arena_take_segment(ladei_pinned_arena *arena, ladei_pinned_segment *segment);

/* As ladei_pinned_arena_put. */
void ladei_pinned_arena_put_held(ladei_pinned_arena *arena, ladei_pinned_block *list);
/* Idle runs become free pages. */
void ladei_pinned_arena_put_idle_runs(ladei_pinned_arena *arena);

/* Adds a segment of one FREE block; or of one CACHED block, the caller's. */
void ladei_pinned_arena_add(ladei_pinned_arena *arena, ladei_pinned_segment *segment);
ladei_pinned_block *ladei_pinned_arena_add_taken(ladei_pinned_arena *arena, ladei_pinned_segment *segment);

/* Takes out a wholly free segment. */
void ladei_pinned_arena_remove(ladei_pinned_arena *arena, ladei_pinned_segment *segment);

/* Whether the segment is wholly free. */
bool ladei_pinned_segment_is_free(const ladei_pinned_segment *segment);

/* Recounts indexes, runs and segments: invariants in arena.c. */
lade_status ladei_pinned_arena_check(ladei_pinned_arena *arena);

#endif /* LADE_HOST_CACHES_ARENA_H */
