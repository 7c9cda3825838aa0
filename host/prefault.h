/* SPDX-License-Identifier: Apache-2.0 */
/* Touching all pages of an area with several threads near a NUMA node. */
#ifndef LADE_HOST_PREFAULT_H
#define LADE_HOST_PREFAULT_H

#include "host/topology.h"

/*
 * Touches every page of [address, address + bytes), bytes a multiple of 4 KiB, with up to `threads` threads, the
 * calling one included. The others are bound near `node` where topology is not NULL and node not -1. Fewer threads do
 * it where the system gives no more or the area is small. Contents stay zero.
 */
void ladei_prefault(const ladei_topology *topology, int node, void *address, size_t bytes, unsigned threads);

#endif /* LADE_HOST_PREFAULT_H */
