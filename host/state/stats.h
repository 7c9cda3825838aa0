/* SPDX-License-Identifier: Apache-2.0 */
/* A pool's counters, as users read them. */
#ifndef LADE_HOST_STATE_STATS_H
#define LADE_HOST_STATE_STATS_H

#include "host/caches/counters.h"
#include "lade/pinned.h"

/* Gauges of a class, a node or the pool, as users read them. */
typedef struct ladei_pinned_gauges {
  lade_pinned_gauge requested_bytes, in_use_bytes, pending_bytes, cached_bytes;
  lade_pinned_gauge in_use_blocks, pending_blocks, cached_blocks;
} ladei_pinned_gauges;

typedef struct ladei_pinned_node_gauges {
  ladei_pinned_gauges gauges;
  lade_pinned_gauge reserved_bytes;
} ladei_pinned_node_gauges;

/* `out_classes` has LADEI_PINNED_CLASSES elements, or is NULL. */
void ladei_pinned_node_stats_read(lade_pinned_pool *pool, unsigned node, ladei_pinned_node_gauges *out,
                                  ladei_pinned_gauges *out_classes);

/* Raises the peaks of cached blocks: before memory is given back, after it came. */
void ladei_pinned_cached_note(lade_pinned_pool *pool);

#endif /* LADE_HOST_STATE_STATS_H */
