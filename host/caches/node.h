/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one NUMA node: its segments, and the free blocks in them. Ready blocks lie in its bins (bins.h) and its
 * depot (depot.h).
 *
 *   take    free blocks by size (tlsf.h) -> split -> CACHED block        small ones from runs (run.h)
 *   put     CACHED block -> coalesced with free neighbours -> free blocks by size
 *
 * Two indexes: `split` holds the free blocks that may be split; `whole` the free segments that were made for one large
 * request each, kept whole for the next such request until memory is so short that they are split too.
 * The functions take the node's lock themselves and make no driver call.
 */
#ifndef LADE_HOST_CACHES_NODE_H
#define LADE_HOST_CACHES_NODE_H

#include "base/lock.h"
#include "base/pagemap.h"
#include "base/slab.h"
#include "host/blocks/run.h"
#include "host/blocks/segment.h"
#include "host/blocks/tlsf.h"
#include "host/caches/bins.h"
#include "host/caches/counters.h"
#include "host/caches/depot.h"
#include "lade/pinned.h"
#include "runtime/retire/retire_shards.h"

typedef struct ladei_pinned_node {
  ladei_lock lock;             /* guards everything below that is not constant */
  ladei_pagemap *map;          /* the pool's; constant */
  ladei_retire_shards *retire; /* the pool's; constant */
  unsigned index;              /* in the pool; constant */
  int32_t os_index;            /* of the NUMA node; -1: memory bound to no node; constant */
  ladei_tlsf split;
  ladei_tlsf whole;
  ladei_pinned_run *runs[LADEI_PINNED_SMALL_CLASSES]; /* with a free block, by class */
  ladei_pinned_run
      *idle_runs[LADEI_PINNED_SMALL_CLASSES]; /* one without a block in use, kept for the next request; or NULL */
  ladei_slab run_records;
  ladei_pinned_segment *first, *last; /* all segments, oldest first */
  uint64_t free_small_bytes;          /* in runs */
  uint64_t reserved_bytes;            /* sum over the segments */
  uint64_t reserved_allocated;        /* bytes of all segments that ever came */
  uint64_t reserved_peak;
  bool growing;                        /* guard: the pool's lock. A thread is pinning a segment for this node */
  _Atomic(uint32_t) growths;           /* changed under the pool's lock: segments that came by growing */
  ladei_pinned_bins bins;              /* no guard, except for emptying them */
  ladei_pinned_depot *depot;           /* no guard; constant */
  ladei_pinned_node_counters counters; /* guards: see there */
  uint64_t changes_since_recount;      /* in builds without NDEBUG: see lock_release_recounted in node.c */
  uint64_t changes_per_recount;
  _Atomic(ladei_pinned_block *) returned; /* put while the lock was busy, linked by next; no guard */
} ladei_pinned_node;

/* `depot_bytes`: the depot's bytes at most. NULL when there is no memory. */
ladei_pinned_node *ladei_pinned_node_create(ladei_pagemap *map, ladei_retire_shards *retire, unsigned index,
                                            int32_t os_index, size_t depot_bytes);
/* All segments have been taken out. */
void ladei_pinned_node_destroy(ladei_pinned_node *node);

/* Up to `count` CACHED blocks for requests of `bytes`, linked by next; NULL: nothing fits. `exact`: blocks as long as
 * asked, in whole pages, not of the request's class (for requests that get a segment of their own). */
ladei_pinned_block *ladei_pinned_node_take(ladei_pinned_node *node, size_t bytes, bool exact, unsigned count);

/* The same, splitting a segment that is kept whole if need be, unless it is registered in chunks: for a pool that has
 * reached its cap. */
ladei_pinned_block *ladei_pinned_node_take_from_whole(ladei_pinned_node *node, size_t bytes);

/* A CACHED block as long as asked, in whole pages, of a range that may be split; for more than 1 MiB. */
ladei_pinned_block *ladei_pinned_node_take_just(ladei_pinned_node *node, size_t bytes);

/* The smallest wholly free segment of at least `bytes`, of equal ones the lowest, as one CACHED block; looks at all. */
ladei_pinned_block *ladei_pinned_node_take_best(ladei_pinned_node *node, size_t bytes);

/* Takes back a list of CACHED blocks of this node, linked by next; or one. */
void ladei_pinned_node_put(ladei_pinned_node *node, ladei_pinned_block *list);
void ladei_pinned_node_put_one(ladei_pinned_node *node, ladei_pinned_block *block);

/* Takes back all ready memory: the blocks in the depot and in bins, and idle runs. */
void ladei_pinned_node_collect(ladei_pinned_node *node);

/* Adds a segment, opened by the caller, and takes a block for `bytes` from it before other threads can. */
ladei_pinned_block *ladei_pinned_node_add_segment(ladei_pinned_node *node, ladei_pinned_segment *segment, size_t bytes,
                                                  bool exact);

/* Adds a segment all of which is a CACHED block of the caller's. */
ladei_pinned_block *ladei_pinned_node_add_taken_segment(ladei_pinned_node *node, ladei_pinned_segment *segment);

/* Adds a segment that ladei_pinned_node_remove_free_segment took out, or that was counted and not added: its memory
 * could not be given back. */
void ladei_pinned_node_restore_segment(ladei_pinned_node *node, ladei_pinned_segment *segment);
/* Counts memory that was pinned for the node and never came to be in it. */
void ladei_pinned_node_count_reserved(ladei_pinned_node *node, uint64_t bytes);

/* Wholly free segments that were not seen free before were so from now on. */
void ladei_pinned_node_stamp_free_segments(ladei_pinned_node *node, uint64_t now_ns);

/* The oldest wholly free segment that was seen free at `free_before_ns` or before (UINT64_MAX: that is free) is taken
 * out if it was born before `born_before`; NULL: none. Its birth, or UINT64_MAX, is stored either way. */
ladei_pinned_segment *ladei_pinned_node_remove_free_segment(ladei_pinned_node *node, uint64_t free_before_ns,
                                                            uint64_t born_before, uint64_t *out_birth);

uint64_t ladei_pinned_node_free_bytes(ladei_pinned_node *node);

/* Reserved bytes: allocated and peak; freed is allocated less the bytes reserved now. */
void ladei_pinned_node_reserved(ladei_pinned_node *node, lade_pinned_gauge *out);
/* Blocks that were put while the lock was busy are counted as such from here on. */
void ladei_pinned_node_settle(ladei_pinned_node *node);
void ladei_pinned_node_reserved_peak_reset(ladei_pinned_node *node);

/* ---- All nodes of a pool ----------------------------------------------------------------------------------------- */

/* Node index of a device before it was looked up. */
enum { LADEI_PINNED_NODE_UNRESOLVED = -1 };

/* Nodes are added, never removed; the first `count` are there. */
typedef struct ladei_pinned_nodes {
  _Atomic(ladei_pinned_node *) list[LADEI_PINNED_MAX_NODES];
  _Atomic(uint32_t) count;
  _Atomic(int32_t) *of_devices; /* [device_count] index of the node's cache, or LADEI_PINNED_NODE_UNRESOLVED */
  _Atomic(int32_t) home;        /* the same for the pool's own device */
  int device_count;             /* constant */
} ladei_pinned_nodes;

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

/* A snapshot of a block, or of a piece of free memory. */
typedef struct ladei_pinned_block_view {
  uintptr_t address;
  size_t bytes, requested_bytes; /* the latter 0 unless in use */
  ladei_pinned_block_state state;
  int32_t source; /* lade_pinned_source */
  bool in_chunks; /* its segment is */
  uintptr_t segment_address;
  size_t segment_bytes;
} ladei_pinned_block_view;

/* Writes down the node's blocks, by segment and address, as far as `capacity` goes; how many there are. */
size_t ladei_pinned_node_view(ladei_pinned_node *node, ladei_pinned_block_view *out, size_t capacity);

/* Recounts indexes, runs and segments: invariants in node.c. */
lade_status ladei_pinned_node_check(ladei_pinned_node *node);

#endif /* LADE_HOST_CACHES_NODE_H */
