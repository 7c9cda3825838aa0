/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where pinned memory comes from: pieces of memory for segments, from the first source that has some.
 *
 *   register   mapped by lade, bound to the wanted NUMA node, prefaulted by threads, then registered with the driver
 *   driver     the driver's own pinned allocation, placed as the driver pleases
 *   pageable   mapped by lade and not pinned at all; only where the user allows it
 *
 * Called without locks; both functions call the driver and may take long.
 */
#ifndef LADE_HOST_SOURCE_H
#define LADE_HOST_SOURCE_H

#include "host/topology.h"
#include "lade/pinned.h"
#include "runtime/ops.h"

/* Settings of a pool that concern its sources; constant. */
typedef struct ladei_source_settings {
  lade_runtime *runtime;
  int device;                /* whose context pins; the memory is pinned for all devices */
  uint32_t sources;          /* set of lade_pinned_source bits */
  bool strict;               /* memory for a node lies on it, or the source has none */
  uint32_t prefault_threads; /* 0: no prefault of our own; the registration touches the pages */
} ladei_source_settings;

typedef struct ladei_memory {
  void *base; /* page aligned */
  size_t bytes;
  void *mapped; /* the mapping around it, where lade made it */
  size_t mapped_bytes;
  lade_pinned_source source;
} ladei_memory;

/* Time and number of the calls that pin or unpin. */
typedef struct ladei_source_cost {
  uint64_t calls; /* successful ones */
  uint64_t ns;
} ladei_source_cost;

/*
 * Pins `bytes`, a multiple of 4 KiB. `node` is where the memory should lie, -1 anywhere; `topology` may be NULL then.
 * LADE_ERR_OUT_OF_PINNED_MEMORY, or what the last source tried answers; nothing is held then. LADE_ERR_DEVICE_LOST ends
 * the search at once.
 */
lade_status ladei_memory_acquire(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                                 size_t bytes, ladei_memory *out, ladei_source_cost *cost);

/* Gives it back. On failure it is still held and pinned. */
lade_status ladei_memory_release(const ladei_source_settings *settings, const ladei_memory *memory,
                                 ladei_source_cost *cost);

#endif /* LADE_HOST_SOURCE_H */
