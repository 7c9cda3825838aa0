/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one NUMA node: its segments, and the free blocks in them, divided among arenas (arena.h). Ready blocks lie
 * in its bins (bins.h) and its depot (depot.h).
 *
 * The functions take the locks of the arenas themselves and make no driver call.
 */
#ifndef LADE_HOST_CACHES_NODE_H
#define LADE_HOST_CACHES_NODE_H

#include "base/pagemap.h"
#include "host/caches/arena.h"
#include "host/caches/bins.h"
#include "host/caches/counters.h"
#include "host/caches/depot.h"
#include "lade/pinned.h"
#include "runtime/retire/retire_shards.h"

/* A test that goes through all schedules has as much to go through as there are. */
#ifdef LADEI_SCHEDULED
enum { LADEI_PINNED_ARENAS = 2 };
#else
enum { LADEI_PINNED_ARENAS = 4 };
#endif

typedef struct ladei_pinned_node {
  ladei_pinned_arena arenas[LADEI_PINNED_ARENAS];
  _Atomic(uint32_t) arena_count;       /* in use: Note [Arenas]; only grows */
  ladei_pagemap *map;                  /* the pool's; constant */
  unsigned index;                      /* in the pool; constant */
  int32_t os_index;                    /* of the NUMA node; -1: memory bound to no node; constant */
  ladei_pinned_gauge reserved;         /* changed under the lock of an arena */
  bool growing;                        /* guard: the pool's lock. A thread is pinning a segment for this node */
  _Atomic(uint32_t) growths;           /* changed under the pool's lock: segments that came by growing */
  ladei_pinned_bins bins;              /* no guard, except for emptying them: the arenas' locks */
  ladei_pinned_depot *depot;           /* no guard; constant */
  ladei_pinned_node_counters counters; /* guards: see there */
} ladei_pinned_node;

static inline unsigned ladei_pinned_node_arenas(const ladei_pinned_node *node) {
  return atomic_load_explicit(&node->arena_count, memory_order_acquire);
}

/* Whether another thread is at the free memory that a thread of the stripe takes from: a hint. */
static inline bool ladei_pinned_node_is_busy(const ladei_pinned_node *node, unsigned stripe) {
  return ladei_lock_is_busy(&node->arenas[stripe % ladei_pinned_node_arenas(node)].lock);
}

/* `depot_bytes`: the depot's bytes at most. NULL when there is no memory. */
ladei_pinned_node *ladei_pinned_node_create(ladei_pagemap *map, ladei_retire_shards *retire, unsigned index,
                                            int32_t os_index, size_t depot_bytes);
/* All segments have been taken out. */
void ladei_pinned_node_destroy(ladei_pinned_node *node);

/* Up to `count` CACHED blocks for requests of `bytes`, linked by next, from one arena: the stripe's, or else another one;
 * NULL: nothing fits. `exact`: blocks as long as asked, in whole pages, not of the request's class (for requests that
 * get a segment of their own). `stripe`: the calling thread's; 0 without a thread cache. */
ladei_pinned_block *ladei_pinned_node_take(ladei_pinned_node *node, unsigned stripe, size_t bytes, bool exact,
                                           unsigned count);

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

/* Adds a segment, opened by the caller, to the arena of the stripe, and takes a block for `bytes` from it before other
 * threads can; 0: none. */
ladei_pinned_block *ladei_pinned_node_add_segment(ladei_pinned_node *node, unsigned stripe,
                                                  ladei_pinned_segment *segment, size_t bytes, bool exact);

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
/* Adds blocks and bytes of a class that came from free memory, and went back to it, ever. */
void ladei_pinned_node_supply(const ladei_pinned_node *node, unsigned class_index, ladei_pinned_amount *taken,
                              ladei_pinned_amount *returned);
/* Blocks that were put while a lock was busy are counted as such from here on. */
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

/* Writes down the node's blocks, oldest segments first, by address, as far as `capacity` goes; how many there are. */
size_t ladei_pinned_node_view(ladei_pinned_node *node, ladei_pinned_block_view *out, size_t capacity);

/* Recounts all arenas: invariants in node.c and arena.c. */
lade_status ladei_pinned_node_check(ladei_pinned_node *node);

#endif /* LADE_HOST_CACHES_NODE_H */
