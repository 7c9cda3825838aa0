/* SPDX-License-Identifier: Apache-2.0 */
/* What core.c, core_pick.c and core_check.c share. */
#ifndef LADE_PIPELINE_CORE_INTERNAL_H
#define LADE_PIPELINE_CORE_INTERNAL_H

#include "pipeline/core.h"

static inline bool ladei_transfer_failed(const ladei_core_transfer *transfer) {
  return transfer->error.status != LADE_OK;
}

/* Slots that one ordered transfer to the host may hold: a consumer that is slow, or never returns, leaves others room. */
static inline unsigned ladei_ring_ordered_most(const ladei_ring *ring) { return ring->depth < 2 ? 1 : ring->depth / 2; }

/* First transfer of the flow that was served least; NULL: none waits. */
ladei_core_transfer *ladei_level_first(const ladei_level *level);

/* The most useful order, not taken yet. Pure. */
bool ladei_core_pick(const ladei_core *core, unsigned allow, ladei_order *out);

#endif /* LADE_PIPELINE_CORE_INTERNAL_H */
