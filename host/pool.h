/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pinned pool, as the files of host/ share it.
 *
 *   pinned.c   the public calls: alloc, free, record, find ...        memory.c   growing, giving back, the cap
 *   pool.c     create, destroy, nodes and devices, check              stats.c    counters
 *   room.c     who waits at the cap, and for what
 *   node.c     free blocks of one node       retire   pending blocks  pointer_lookup.c    address -> block
 *   thread_cache.c, bins.c   ready blocks    reference.c, debug.c, background.c, snapshot.c   as they say
 *   stakes.c   pipelines at the cap
 *
 * Locks, outermost first: pool->threads_lock, pool->lock, node->lock, those of base/ and runtime/retire. No driver call under any of them.
 */
#ifndef LADE_HOST_POOL_H
#define LADE_HOST_POOL_H

#include <stdatomic.h>

#include "base/lock.h"
#include "base/pagemap.h"
#include "host/background.h"
#include "host/debug.h"
#include "host/node.h"
#include "host/reference.h"
#include "host/room.h"
#include "host/source.h"
#include "host/stakes.h"
#include "host/stats.h"
#include "host/thread_cache.h"
#include "host/topology.h"
#include "lade/pinned.h"
#include "runtime/retire/retire.h"

/* Node index of a device before it was looked up. */
enum { LADEI_PINNED_NODE_UNRESOLVED = -1 };

/* For tests: what a pool takes the machine to be. All zero: what it is. */
typedef struct ladei_pinned_hooks {
  ladei_topology_kind topology_kind;
  const char *topology; /* borrowed for the pool's life */
  const char *root;     /* before /proc and /sys, for the default cap; NULL: "" */
} ladei_pinned_hooks;

struct lade_pinned_pool {
  /* Constant. */
  uint64_t id;      /* no other pool of the process has or gets it */
  uint64_t fast_id; /* the same; in debug mode and under the reference policy one that no thread-local ever names */
  ladei_pinned_debug *debug; /* NULL: off */
  lade_runtime *runtime;
  ladei_pinned_source_settings source;
  ladei_pinned_hooks hooks;
  uint64_t max_bytes;
  uint32_t event_batch;
  uint64_t wait_ns;
  uint64_t max_idle_ns; /* 0: no age-out */
  size_t segment_bytes;
  size_t magazine_bytes; /* in the magazines of all threads */
  int device;            /* that lade_pinned_alloc is near to */
  int device_count;

  ladei_retire *retire;
  ladei_pagemap map; /* address -> segment */

  /* Nodes are added, never removed; the first `node_count` are there. */
  _Atomic(ladei_pinned_node *) nodes[LADEI_PINNED_MAX_NODES];
  _Atomic(uint32_t) node_count;
  _Atomic(int32_t) *device_nodes; /* [device_count] index of the node's cache, or LADEI_PINNED_NODE_UNRESOLVED */
  _Atomic(int32_t) home_node;     /* the same for `device` */
  _Atomic(ladei_pinned_thread_counters *)
      departed[LADEI_PINNED_MAX_NODES]; /* by node: what threads without cache counted */

  ladei_lock threads_lock;              /* keeps `threads` still for readers: it is changed under both locks */
  ladei_lock lock;                      /* guards: adding nodes, spare_segments, births, threads, node->growing */
  ladei_condition grown;                /* some node->growing went back to false */
  ladei_pinned_segment *spare_segments; /* metadata without memory, linked by next */
  uint64_t births;
  ladei_pinned_thread_cache *threads;
  ladei_pinned_thread_cache *steal_next; /* where the next look for idle threads begins; NULL: at the first */
  bool lanes_closed;                     /* runtime/retire is going, or gone */
  _Atomic(size_t) magazine_quota_bytes;  /* sum of the threads' quotas */
  _Atomic(uint32_t) last_thread;         /* ids given to thread caches */
  _Atomic(bool) large_kept;              /* some thread may keep a block above the magazines' sizes */
  _Atomic(bool) unreached;               /* the last drain had to leave some thread's cache alone */
  _Atomic(uint32_t) leaving;             /* exiting threads that still hand over their blocks */

  ladei_lock topology_lock;
  ladei_topology *topology; /* guard: topology_lock while NULL; constant afterwards */
  bool topology_tried;

  ladei_pinned_room room; /* at the cap */

  ladei_pinned_background background;
  ladei_pinned_reference reference;
  ladei_pinned_driver_pools driver_pools;
  _Atomic(uint64_t) aged_ns; /* when free segments were last looked at for their age */
  ladei_pinned_pool_counters counters;
  ladei_pinned_stakes stakes; /* of pipelines in the pool */
};

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */

lade_status ladei_pinned_pool_create(lade_runtime *runtime, const lade_pinned_options *options,
                                     const ladei_pinned_hooks *hooks, lade_pinned_pool **out);

/* The node's cache that requests near a device go to. Looks at the topology the first time. */
lade_status ladei_pinned_pool_node_of_device(lade_pinned_pool *pool, int device, ladei_pinned_node **out);

/* OS index of the NUMA node that a device is near to, whether the pool may use it or not; -1: unknown, or none in
 * particular. */
lade_status ladei_pinned_pool_nearest_node(lade_pinned_pool *pool, int device, int *out);

/* The cache of an OS node, -1 for memory bound to none. LADE_ERR_INVALID_ARGUMENT: no node with memory for this
 * process. */
lade_status ladei_pinned_pool_node_of_os(lade_pinned_pool *pool, int os_node, ladei_pinned_node **out);

/* Recounts all invariants; LADE_ERR_INTERNAL names the one broken. For tests, when no other thread is inside. */
lade_status ladei_pinned_pool_check(lade_pinned_pool *pool);

static inline uint32_t ladei_pinned_pool_node_count(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->node_count, memory_order_acquire);
}
static inline ladei_pinned_node *ladei_pinned_pool_node(const lade_pinned_pool *pool, uint32_t index) {
  return atomic_load_explicit(&pool->nodes[index], memory_order_acquire);
}
/* What threads that have no cache, or none any more, counted on a node that is there. */
static inline ladei_pinned_thread_counters *ladei_pinned_pool_exited(const lade_pinned_pool *pool, uint32_t index) {
  return atomic_load_explicit(&pool->departed[index], memory_order_acquire);
}
/* Usable bytes of a block that is the caller's, or in use, and its word. */
static inline size_t ladei_pinned_pool_block_bytes(const lade_pinned_pool *pool, const ladei_pinned_block *block,
                                                   uint64_t word) {
  return pool->reference.on ? ladei_pinned_reference_block_bytes(pool, block) : ladei_pinned_block_bytes(block, word);
}
/* The class under which a block is counted: its own; under the reference policy that of its size, which may be less than
 * the page that its record stands for. */
static inline unsigned ladei_pinned_pool_counted_class(const lade_pinned_pool *pool, uint64_t word, size_t bytes) {
  return pool->reference.on ? ladei_pinned_class_of(bytes) : ladei_pinned_word_class(word);
}
/* Whether the bytes of a class's blocks are counted, and do not follow from their number. */
static inline bool ladei_pinned_pool_counts_bytes(const lade_pinned_pool *pool, unsigned class_index) {
  return class_index >= LADEI_PINNED_MAGAZINE_CLASSES || pool->reference.on;
}
static inline uint64_t ladei_pinned_pool_now_ns(const lade_pinned_pool *pool) {
  return pool->runtime->ops->now_ns(pool->runtime->self);
}

/* The machine's topology, loaded at the first call; NULL where it cannot be loaded. */
const ladei_topology *ladei_pinned_pool_topology(lade_pinned_pool *pool);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

/* A request on its way. */
typedef struct ladei_pinned_request {
  size_t bytes;
  unsigned class_index;
  size_t pages;   /* that a block for it has at least; 0 for small ones */
  bool exact;     /* larger than a segment: gets one of its own, without rounding to a class */
  unsigned count; /* blocks wanted; one is enough */
  ladei_pinned_node *node;
  ladei_pinned_thread_cache
      *cache; /* of the calling thread, and its tallies for the node; both NULL where there is none */
  ladei_pinned_thread_counters *tallies;
} ladei_pinned_request;

/* CACHED blocks, one or more, linked by next, from the cache or from new memory. More than one are in transit
 * (room.h): the caller puts those that it does not hand out into their places, and then ends a transit of blocks. */
lade_status ladei_pinned_pool_seek(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                   ladei_pinned_block **out);

/* A CACHED block of new memory, one segment of `bytes` for itself. */
lade_status ladei_pinned_pool_pin_block(lade_pinned_pool *pool, ladei_pinned_node *node, size_t bytes,
                                        ladei_pinned_block **out);

/* As runtime/retire's, and what then depends on the policy. */
lade_status ladei_pinned_pool_poll(lade_pinned_pool *pool, unsigned flags, uint64_t *out_done);
lade_status ladei_pinned_pool_synchronize(lade_pinned_pool *pool);

/* All ready blocks of all threads and bins go back to their nodes, and join there. */
void ladei_pinned_pool_drain(lade_pinned_pool *pool);

/* Gives wholly free segments back, oldest first, until at least `bytes` are given back; only those seen free at
 * `free_before_ns` or before (UINT64_MAX: all). Stops at the first failure of the driver. */
lade_status ladei_pinned_pool_release(lade_pinned_pool *pool, uint64_t bytes, uint64_t free_before_ns,
                                      uint64_t *out_released);

/* Drains, and gives back until at most `keep_bytes` are reserved, as far as wholly free segments go. */
lade_status ladei_pinned_pool_trim(lade_pinned_pool *pool, uint64_t keep_bytes);

/* Gives back what was wholly free for longer than the pool's option says; costs a look at the clock most times. */
lade_status ladei_pinned_pool_age(lade_pinned_pool *pool);

/* Pins what the node lacks to `bytes` of free memory; all of it, or nothing. */
lade_status ladei_pinned_pool_reserve(lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes);

/* CACHED blocks of any nodes, linked by next, go back to their nodes, and who waits for some is told. */
void ladei_pinned_pool_put(lade_pinned_pool *pool, ladei_pinned_block *list);
void ladei_pinned_pool_put_one(lade_pinned_pool *pool, ladei_pinned_block *block);

/* A block was lodged in a bin by the owner of a cache: a waiter is told. */
void ladei_pinned_pool_lodged(const ladei_pinned_thread_cache *cache);

/* ---- pinned.c ---------------------------------------------------------------------------------------------------- */

/* runtime/retire's callback. */
void ladei_pinned_pool_retired(void *pool, ladei_retire_ticket *list);

/* ---- snapshot.c -------------------------------------------------------------------------------------------------- */

lade_pinned_state ladei_pinned_public_state(ladei_pinned_block_state state);

#endif /* LADE_HOST_POOL_H */
