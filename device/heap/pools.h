/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: a default one, or one of the two of a private pool (native/private_pool.c); model in heap.h. */
#ifndef LADE_DEVICE_HEAP_POOLS_H
#define LADE_DEVICE_HEAP_POOLS_H

#include <stdatomic.h>

#include "device/heap/free_set.h"
#include "device/heap/gauges.h"
#include "lade/device.h"

struct ladei_device_private_pool;
struct ladei_device_suspension;                                     /* suspend.c */
typedef struct ladei_device_capture_walk ladei_device_capture_walk; /* capture_reuse.c */

typedef struct ladei_device_block_pool {
  ladei_device_free_set free;    /* by (stream, size, address) */
  ladei_device_sorted_set holes; /* by (stream, address), its leaves in free.slab */
  uint64_t searches;             /* clock of block ages; ticks only while collection by threshold is on */
  struct ladei_device_private_pool *private_pool; /* NULL: a default pool */
  bool is_small;
  bool no_split; /* blocks are handed out whole, to requests that nearly fill them */
  bool provided; /* segments come from the pool's own provider */
} ladei_device_block_pool;

typedef struct ladei_device_private_pool {
  struct ladei_device_private_pool *next;
  lade_device_pool_id id;
  uint64_t use_count; /* creation, captures, scopes, retains, less releases; at 0 its memory goes at the next flush */
  uint64_t segment_count;
  ladei_device_gauge reserved_bytes;  /* of its segments */
  ladei_device_gauge allocated_bytes; /* of its blocks */
  uint64_t visitors;                  /* threads that hold the pool while the lock is dropped, and graphs */
  atomic_size_t launching;            /* calls under way that queue work of graphs on its memory (native/suspend.c) */
  uint32_t capture;                   /* number of the last capture into it */
  atomic_bool capturing;              /* a capture into it is under way; written under the lock */
  bool has_tree;                      /* a graph tree has it to itself, ... */
  _Atomic(uint64_t) tree_thread;      /* ... and this thread is in a call of the tree's; 0: none */
  uint64_t scope_count;               /* open scopes that lead to it */
  uint64_t served;                    /* requests that routes have led here, each search of one counted */
  uint32_t flags;                     /* lade_device_pool_flag; constant, as the next one */
  lade_device_plugin provider;        /* of its segments, if alloc is not NULL */
  struct ladei_device_suspension *suspension; /* its memory is away, or on its way; NULL: it is there */
  ladei_device_block_pool small_pool;
  ladei_device_block_pool large_pool;
  ladei_device_capture_walk *walks; /* of streams of the capture under way (native/capture_reuse.c) */
} ladei_device_private_pool;

#endif /* LADE_DEVICE_HEAP_POOLS_H */
