/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pinned pool, as the files of host/ share it. Its folders, each of which uses those before it:
 *
 *   budget     limits, pressure                        what the system leaves
 *              ledger, budget                          what all processes hold
 *   blocks     segment, run, tlsf                      memory and its free blocks
 *   source     topology, source, driver_pools, prefault   where it comes from
 *   parts      background, cap_wait, debug, history, ring_share   parts of a pool
 *   caches     node, depot, bins, counters             free blocks of one NUMA node
 *              pointer_lookup                          address -> block
 *              thread_cache, ready                     ready blocks of one thread
 *   state      usage, stats, latency                   what is in use and pending, what users read
 *              nodes, thread_caches                    nodes and devices, blocks that go back, caches of all threads
 *   grow                                               growing, giving back, the cap
 *   policies   policy_default, policy_pytorch          the choices
 *   api        pinned, pool, snapshot, history_api     the public calls
 *
 * Locks, outermost first: pool->threads_lock, pool->lock, node->lock, those of base/ and runtime/retire. No driver call under
 * any of them.
 */
#ifndef LADE_HOST_STATE_POOL_STATE_H
#define LADE_HOST_STATE_POOL_STATE_H

#include <stdatomic.h>

#include "base/lock.h"

#include "base/living.h"
#include "base/pagemap.h"
#include "host/budget/budget.h"
#include "host/budget/pressure.h"
#include "host/caches/counters.h"
#include "host/caches/node.h"
#include "host/caches/thread_cache.h"
#include "host/parts/background.h"
#include "host/parts/cap_wait.h"
#include "host/parts/debug.h"
#include "host/parts/history.h"
#include "host/parts/ring_share.h"
#include "host/source/source.h"
#include "host/source/topology.h"
#include "host/state/policy.h"
#include "lade/pinned.h"
#include "runtime/retire/retire_shards.h"

/* Node index of a device before it was looked up. */
enum { LADEI_PINNED_NODE_UNRESOLVED = -1 };

/* For tests: what a pool takes the machine to be. All zero: what it is. */
typedef struct ladei_pinned_hooks {
  ladei_topology_kind topology_kind;
  const char *topology; /* borrowed for the pool's life */
  const char *root;     /* before /proc and /sys, for the default cap; NULL: "" */
  uint32_t shards;      /* of retirement, a power of two; 0: as Note [Shards] in pool.c says */
} ladei_pinned_hooks;

/* Guard: topology_lock until it is tried; constant afterwards. */
typedef struct ladei_pinned_topology {
  ladei_topology *loaded; /* NULL: it cannot be */
  bool tried;
} ladei_pinned_topology;

struct lade_pinned_pool {
  /* Constant. */
  uint64_t id; /* no other pool of the process has or gets it */
  uint64_t
      cache_id; /* the same; in debug mode and under a policy without thread caches one that no thread-local ever names */
  const ladei_pinned_policy *policy;
  void *policy_state;        /* the policy's own */
  ladei_pinned_debug *debug; /* NULL: off */
  lade_runtime *runtime;
  ladei_pinned_source_settings source;
  ladei_pinned_registration registration; /* source.h; changes once */
  ladei_pinned_hooks hooks;
  uint64_t max_bytes;
  unsigned processors; /* that the process may use; 0: not read. Constant after create */
  bool looks_often;    /* for pending blocks of all threads: Note [Shards] in pool.c */
  uint32_t event_batch;
  uint64_t wait_ns;
  uint64_t max_idle_ns; /* 0: no age-out */
  bool segments_chosen; /* by lade: the program named no size */
  size_t segment_bytes;
  size_t first_segment_bytes; /* at most segment_bytes: Note [The first segments] in grow.c */
  size_t magazine_bytes;      /* in the magazines of all threads */
  int device;                 /* that lade_pinned_alloc is near to */
  int device_count;

  ladei_retire_shards *retire; /* a thread's shard: ladei_pinned_retire_shard() */
  ladei_pagemap map;           /* address -> segment */

  /* Nodes are added, never removed; the first `node_count` are there. */
  _Atomic(ladei_pinned_node *) nodes[LADEI_PINNED_MAX_NODES];
  _Atomic(uint32_t) node_count;
  _Atomic(int32_t) *device_nodes; /* [device_count] index of the node's cache, or LADEI_PINNED_NODE_UNRESOLVED */
  _Atomic(int32_t) home_node;     /* the same for `device` */
  _Atomic(ladei_pinned_thread_counters *)
      exited[LADEI_PINNED_MAX_NODES]; /* by node: what threads without cache counted */

  ladei_lock threads_lock;              /* keeps `threads` still for readers: it is changed under both locks */
  ladei_lock lock;                      /* guards: adding nodes, spare_segments, births, threads, node->growing */
  ladei_condition grown;                /* some node->growing went back to false */
  ladei_pinned_segment *spare_segments; /* metadata without memory, linked by next */
  uint64_t births;
  ladei_pinned_thread_cache *threads;
  ladei_pinned_thread_cache *steal_next;         /* where the next look for idle threads begins; NULL: at the first */
  bool retire_buffers_closed;                    /* runtime/retire is going, or gone */
  _Atomic(size_t) magazine_quota_bytes;          /* sum of the threads' quotas */
  _Atomic(uint32_t) last_thread;                 /* ids given to thread caches */
  uint32_t stripe_threads[LADEI_PINNED_STRIPES]; /* of `threads`, so many are in each stripe */
  _Atomic(bool) large_kept;                      /* some thread may keep a block above the magazines' sizes */
  _Atomic(bool) unreached;                       /* the last drain had to leave some thread's cache alone */
  _Atomic(uint32_t) leaving;                     /* exiting threads that still hand over their blocks */

  ladei_lock topology_lock;
  ladei_pinned_topology topologies[2]; /* without and with devices */

  ladei_pinned_cap_wait cap_wait; /* at the cap */

  /* History, once it was turned on; and the same while it is on, NULL while it is off. Both change in changes of the history. */
  _Atomic(ladei_pinned_history *) history, recording;
  _Atomic(uint64_t)
      fast_id; /* cache_id; while calls are attended one that no thread-local names: no call is on the fast path */
  ladei_lock fast_lock; /* a leaf: fast_id, `attended`, and turning latencies on and off */
  unsigned attended;    /* ladei_pinned_attended */
  _Atomic(bool) timed;  /* latency.h */
  struct ladei_latencies *latencies;

  ladei_living living;           /* base/living: its own */
  lade_status background_status; /* the background thread's own: its last failure, LADE_OK: none since */
  ladei_pinned_background background;
  ladei_pressure pressure; /* the background thread's own */
  uint64_t relieved_ns;    /* the same: when memory was last given back for it */
  ladei_pinned_driver_pools driver_pools;
  ladei_pinned_budget budget;
  _Atomic(uint64_t) aged_ns; /* when free segments were last looked at for their age */
  ladei_pinned_pool_counters counters;
  lade_pinned_stats stats_base;         /* the sums at their last reset; guard: threads_lock */
  ladei_pinned_ring_shares ring_shares; /* of rings of pipelines in the pool */
};

static inline uint32_t ladei_pinned_pool_node_count(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->node_count, memory_order_acquire);
}
static inline ladei_pinned_node *ladei_pinned_pool_node(const lade_pinned_pool *pool, uint32_t index) {
  return atomic_load_explicit(&pool->nodes[index], memory_order_acquire);
}
/* What threads that have no cache, or none any more, counted on a node that is there. */
static inline ladei_pinned_thread_counters *ladei_pinned_pool_exited(const lade_pinned_pool *pool, uint32_t index) {
  return atomic_load_explicit(&pool->exited[index], memory_order_acquire);
}
/* Whether the bytes of a class's blocks are counted, and do not follow from their number. */
static inline bool ladei_pinned_pool_counts_bytes(const lade_pinned_pool *pool, unsigned class_index) {
  return class_index >= LADEI_PINNED_MAGAZINE_CLASSES || !pool->policy->uses_thread_caches;
}
/* Whether threads refill their magazines with several blocks, nodes have depots, and blocks above 1 MiB are kept ready: not where there
 * is little room for them. */
static inline bool ladei_pinned_pool_keeps_lists(const lade_pinned_pool *pool) {
  return pool->magazine_bytes >= LADEI_MIB;
}
static inline uint64_t ladei_pinned_pool_now_ns(const lade_pinned_pool *pool) {
  return pool->runtime->ops->now_ns(pool->runtime->self);
}

/* The shard of a thread in runtime/retire; the first one for a thread without a cache. */
static inline ladei_retire *ladei_pinned_retire_shard(const lade_pinned_pool *pool,
                                                      const ladei_pinned_thread_cache *cache) {
  return cache == NULL ? ladei_retire_shard(pool->retire, 0) : cache->retire;
}

/* For blocks that a thread moves, with its cache or NULL. */
static inline ladei_pinned_transit *ladei_pinned_pool_transit(lade_pinned_pool *pool,
                                                              const ladei_pinned_thread_cache *cache) {
  return &pool->cap_wait.blocks[cache == NULL ? 0 : cache->stripe];
}

/* Why calls are kept off the fast path: bits. */
typedef enum ladei_pinned_attended {
  LADEI_PINNED_ATTENDED_HISTORY = 1,
  LADEI_PINNED_ATTENDED_LATENCY = 2
} ladei_pinned_attended;
void ladei_pinned_pool_attend(lade_pinned_pool *pool, unsigned reason, bool on);

/* What the pool records to; NULL: its history is off. */
static inline ladei_pinned_history *ladei_pinned_pool_recording(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->recording, memory_order_acquire);
}

static inline lade_pinned_state ladei_pinned_public_state(ladei_pinned_block_state state) {
  return state == LADEI_PINNED_BLOCK_IN_USE    ? LADE_PINNED_IN_USE
         : state == LADEI_PINNED_BLOCK_PENDING ? LADE_PINNED_PENDING
                                               : LADE_PINNED_CACHED;
}

#endif /* LADE_HOST_STATE_POOL_STATE_H */
