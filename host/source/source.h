/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where pinned memory comes from: pieces of memory for segments, from the first source that has some.
 *
 *   register   mapped by lade, bound to the wanted NUMA node, prefaulted by threads, then registered with the driver,
 *              at once or in chunks
 *   driver     the driver's own pinned allocation, placed as the driver pleases
 *   pool       from a driver pool of host memory, on the wanted node where the driver can do that
 *   pageable   mapped by lade and not pinned at all; only where the user allows it
 *
 * Note [Chunks]
 *   A driver that refuses one large registration, or holds its locks for too long in it, may be given chunks. It then
 *   refuses copies and fills over the border of two (Note [Copies end with registrations] in runtime/ops.h). So no
 *   block that is as long as a chunk or shorter lies across a border: ordinary segments are one chunk at most, and
 *   segments of several chunks are never split. A block longer than a chunk begins at a border, and its copies are made
 *   chunk by chunk: pipeline/endpoints/copy.c and lade_copy_async do so, other users ask lade_pinned_find how far they
 *   may go.
 *
 * Called without locks; acquire and release call the driver and may take long.
 */
#ifndef LADE_HOST_SOURCE_SOURCE_H
#define LADE_HOST_SOURCE_SOURCE_H

#include <stdatomic.h>

#include "host/source/driver_pools.h"
#include "host/source/prefault.h"
#include "host/source/topology.h"
#include "lade/pinned.h"
#include "runtime/ops.h"

/* Of the kernel's, on x86-64. */
#define LADEI_PINNED_HUGE_PAGE_BYTES ((size_t)2 << 20)

/*
 * Note [Registration refused for good]
 *   Where memory is encrypted (confidential computing), and in some containers, the driver registers nothing, and says
 *   that it does not support it. Each segment would be mapped, touched, refused and unmapped again. So a pool on
 *   hardware first has one page registered, and keeps such a refusal: source register then answers at once, with the
 *   driver's first words. A refusal for want of memory is none of that kind. The page stays registered as long as the
 *   pool lives: giving it back would wait for all work of the device (docs/driver-behaviour.md, 20).
 */
typedef struct ladei_pinned_registration {
  _Atomic(int) state;   /* of the pool's device; source.c */
  lade_error refusal;   /* constant once the state says so */
  _Atomic(void *) page; /* registered; NULL: none */
} ladei_pinned_registration;

/* The sources of a pool. */
typedef struct ladei_pinned_sources {
  /* Constant. */
  lade_runtime *runtime;
  int device;                  /* whose context pins; the memory is pinned for all devices */
  uint32_t sources;            /* set of lade_pinned_source bits */
  bool strict;                 /* memory for a node lies on it, or the source has none */
  const char *root;            /* before /sys; "" for this machine */
  uint32_t prefault_threads;   /* 0: no prefault of our own; the registration touches the pages */
  bool prefault_chosen;        /* by lade: fewer touch small areas */
  size_t register_chunk_bytes; /* register: chunks of this length, whole pages; 0: all at once */

  ladei_pinned_registration registration; /* zero at first */
  ladei_pinned_driver_pools driver_pools;
  ladei_topologies topologies;
} ladei_pinned_sources;

typedef struct ladei_pinned_memory {
  void *base; /* page aligned */
  size_t bytes;
  void *mapped; /* for the source to give back: the mapping around it, or the driver's own address */
  size_t mapped_bytes;
  size_t registered_bytes; /* from the start of it; less than all only where giving back failed half way */
  lade_pinned_source source;
} ladei_pinned_memory;

/* Cost of pinning or unpinning. */
typedef struct ladei_pinned_source_cost {
  uint64_t calls; /* successful ones: one at most in a call of acquire or release */
  uint64_t ns;    /* in them */
} ladei_pinned_source_cost;

/* Whether copies must end at borders inside the memory: at each multiple of the chunks' length. Note [Chunks] */
static inline bool ladei_pinned_source_is_in_chunks(const ladei_pinned_sources *sources,
                                                    const ladei_pinned_memory *memory) {
  return memory->source == LADE_PINNED_SOURCE_REGISTER && sources->register_chunk_bytes != 0 &&
         memory->bytes > sources->register_chunk_bytes;
}

/* Bytes of a described block that one copy from `offset` of it may take. */
static inline uint64_t ladei_pinned_source_contiguous(const lade_pinned_info *info, uint64_t offset) {
  uint64_t rest = offset < info->bytes ? info->bytes - offset : 0; /* a segment may be given back meanwhile */
  uint64_t chunk = info->chunk_bytes == 0 ? rest : info->chunk_bytes - offset % info->chunk_bytes;
  return chunk < rest ? chunk : rest;
}

/*
 * Pins `bytes`, in whole pages where a source works so. `node` is the memory's place, -1 anywhere; `topology` may be
 * NULL then. LADE_ERR_OUT_OF_PINNED_MEMORY, or the error of the last source that the runtime has; LADE_ERR_UNSUPPORTED
 * if it has none of them; nothing is held then. LADE_ERR_DEVICE_LOST ends the search at once.
 * Memory that may come from some NUMA nodes only is not asked for where they have too little of it.
 */
lade_status ladei_pinned_memory_acquire(ladei_pinned_sources *sources, const ladei_topology *topology, int node,
                                        size_t bytes, ladei_pinned_memory *out, ladei_pinned_source_cost *cost);

/*
 * Memory of several segments, mapped at once for source register, touched ahead of its registrations.
 *
 *   |-- taken: segments' own --|-- allowed: being touched --|-- mapped --|
 *
 * A region without an area is no failure: each segment is then acquired by itself.
 */
typedef struct ladei_pinned_region {
  const ladei_topology *topology;
  int node;
  ladei_pinned_memory area; /* mapped NULL: none */
  size_t taken, allowed;
  ladei_prefault prefault;
} ladei_pinned_region;

/* For `bytes`, a multiple of the page size, of which pieces will be asked for that are multiples of a huge page except
 * for the last; 0: no area. */
void ladei_pinned_region_open(ladei_pinned_sources *sources, const ladei_topology *topology, int node, size_t bytes,
                              ladei_pinned_region *out);
/* The next `bytes` may be touched: they count as used. Without threads that touch, not before the last ones are
 * acquired. LADE_ERR_OUT_OF_PINNED_MEMORY where the nodes have too little. */
lade_status ladei_pinned_region_allow(ladei_pinned_sources *sources, ladei_pinned_region *region, size_t bytes);
/* As ladei_pinned_memory_acquire, of the next `bytes`, which are allowed. Memory from other sources in their place is
 * not part of the area. */
lade_status ladei_pinned_region_acquire(ladei_pinned_sources *sources, ladei_pinned_region *region, size_t bytes,
                                        ladei_pinned_memory *out, ladei_pinned_source_cost *cost);
/* Gives back the rest that was not taken. */
void ladei_pinned_region_close(ladei_pinned_region *region);

/* Gives back memory registered to ask the driver; no other thread uses the sources. On failure it is still held. */
lade_status ladei_pinned_registration_close(ladei_pinned_sources *sources);

/* Gives it back. On failure it is still held, and pinned too as far as that can be: otherwise its source is pageable
 * from then on. */
lade_status ladei_pinned_memory_release(ladei_pinned_sources *sources, ladei_pinned_memory *memory,
                                        ladei_pinned_source_cost *cost);

#endif /* LADE_HOST_SOURCE_SOURCE_H */
