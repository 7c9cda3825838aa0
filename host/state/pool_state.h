/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pinned pool, as the files of host/ share it. Its folders, each of which uses those before it:
 *
 *   budget     limits, pressure                        memory that the system leaves
 *              ledger, budget                          memory that all processes hold
 *   blocks     segment, run, tlsf                      memory and its free blocks
 *   source     topology, source, driver_pools, prefault   where it comes from
 *   parts      background, cap_wait, debug, history, ring_share   parts of a pool
 *   caches     node, depot, bins, counters             free blocks of one NUMA node
 *              pointer_lookup                          address -> block
 *              thread_cache, ready                     ready blocks of one thread
 *   state      usage, stats, latency                   blocks in use and pending, statistics for users
 *              nodes, thread_caches                    nodes and devices, blocks that go back, caches of all threads
 *   grow                                               growing, giving back, the cap
 *   policies   policy_default, policy_pytorch          the choices
 *   api        pinned, pool, snapshot, history_api     the public calls
 *
 * Locks, outermost first: pool->threads.lock, pool->lock, arena->lock, those of base/ and runtime/retire. No driver call
 * under any of them.
 */
#ifndef LADE_HOST_STATE_POOL_STATE_H
#define LADE_HOST_STATE_POOL_STATE_H

#include <stdatomic.h>

#include "base/living.h"
#include "base/lock.h"
#include "base/pagemap.h"
#include "host/budget/budget.h"
#include "host/budget/pressure.h"
#include "host/caches/counters.h"
#include "host/caches/node.h"
#include "host/caches/thread_cache.h"
#include "host/parts/background.h"
#include "host/parts/cap_wait.h"
#include "host/parts/debug.h"
#include "host/parts/fast_path.h"
#include "host/parts/history.h"
#include "host/parts/ring_share.h"
#include "host/source/source.h"
#include "host/source/topology.h"
#include "host/state/policy.h"
#include "lade/pinned.h"
#include "runtime/retire/retire_shards.h"

/* Choices that are no options: a machine for the pool, in tests, and how often its thread looks. All zero: the real one,
 * as often as a program's. */
typedef struct ladei_pinned_hooks {
  ladei_topology_kind topology_kind;
  const char *topology;     /* borrowed for the pool's life */
  const char *root;         /* before /proc and /sys, for the default cap; NULL: "" */
  uint32_t shards;          /* of retirement, a power of two; 0: as Note [Shards] in pool.c says */
  uint64_t longest_wait_ns; /* of the background thread, between two looks; 0: 5 ms */
} ladei_pinned_hooks;

/* Choices of the program, or of lade for it. Constant. */
typedef struct ladei_pinned_settings {
  int device; /* that lade_pinned_alloc is near to */
  uint32_t event_batch;
  uint64_t max_bytes;
  uint64_t wait_ns;
  uint64_t max_idle_ns; /* 0: no age-out */
  size_t segment_bytes;
  size_t first_segment_bytes; /* at most segment_bytes: Note [The first segments] in grow.c */
  bool segments_chosen;       /* by lade: the program named no size */
  size_t magazine_bytes;      /* in the magazines of all threads */
} ladei_pinned_settings;

/* State of growing and giving back besides the nodes. Guard: the pool's lock. */
typedef struct ladei_pinned_growth {
  ladei_condition grown;       /* some node->growing went back to false */
  ladei_pinned_segment *spare; /* metadata without memory, linked by next */
  uint64_t births;
  _Atomic(uint64_t) aged_ns; /* when free segments were last looked at for their age; no guard */
} ladei_pinned_growth;

struct lade_pinned_pool {
  uint64_t id; /* no other pool of the process has or gets it. Constant, as all up to `retire` */
  lade_runtime *runtime;
  ladei_pinned_settings settings;
  const ladei_pinned_policy *policy;
  void *policy_state;          /* the policy's own */
  ladei_pinned_debug *debug;   /* NULL: off */
  ladei_retire_shards *retire; /* a thread's shard: ladei_pinned_retire_shard() */
  ladei_pinned_sources sources;
  ladei_pagemap map; /* address -> segment */
  ladei_pinned_nodes nodes;
  ladei_pinned_threads threads;
  ladei_lock lock; /* guards: adding nodes, node->growing, `growth`, and fields of `threads` as said there */
  ladei_pinned_growth growth;
  struct ladei_pinned_adopted *adopted; /* api/adopt.c; guard: lock */
  ladei_pinned_cap_wait cap_wait;       /* at the cap */
  ladei_pinned_history_use history;
  ladei_pinned_fast_path fast;
  ladei_living living; /* base/living: its own */
  ladei_pinned_background background;
  ladei_pressure pressure; /* the background thread's own */
  ladei_pinned_budget budget;
  ladei_pinned_pool_counters counters;
  ladei_pinned_ring_shares ring_shares; /* of rings of pipelines in the pool */
};

static inline uint32_t ladei_pinned_pool_node_count(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->nodes.count, memory_order_acquire);
}
static inline ladei_pinned_node *ladei_pinned_pool_node(const lade_pinned_pool *pool, uint32_t index) {
  return atomic_load_explicit(&pool->nodes.list[index], memory_order_acquire);
}
/* Counts of threads without a cache, or without one any more, on a node that is there. */
static inline ladei_pinned_thread_counters *ladei_pinned_pool_exited(const lade_pinned_pool *pool, uint32_t index) {
  return atomic_load_explicit(&pool->threads.exited[index], memory_order_acquire);
}
/* Whether the bytes of a class's blocks are counted, and do not follow from their number. */
static inline bool ladei_pinned_pool_counts_bytes(const lade_pinned_pool *pool, unsigned class_index) {
  return class_index >= LADEI_PINNED_MAGAZINE_CLASSES || !pool->policy->uses_thread_caches;
}
/* Whether threads refill their magazines with several blocks, nodes have depots, and blocks above 1 MiB are kept ready:
 * not where there is little room for them. */
static inline bool ladei_pinned_pool_keeps_lists(const lade_pinned_pool *pool) {
  return pool->settings.magazine_bytes >= LADEI_MIB;
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

/* The history that records; NULL: its history is off. */
static inline ladei_pinned_history *ladei_pinned_pool_recording(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->history.recording, memory_order_acquire);
}

static inline lade_pinned_state ladei_pinned_public_state(ladei_pinned_block_state state) {
  return state == LADEI_PINNED_BLOCK_IN_USE    ? LADE_PINNED_IN_USE
         : state == LADEI_PINNED_BLOCK_PENDING ? LADE_PINNED_PENDING
                                               : LADE_PINNED_CACHED;
}

#endif /* LADE_HOST_STATE_POOL_STATE_H */
