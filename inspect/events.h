/* SPDX-License-Identifier: Apache-2.0 */
/* The history of either cache as events of a snapshot. */
#ifndef LADE_INSPECT_EVENTS_H
#define LADE_INSPECT_EVENTS_H

#include "inspect/contexts.h"

/*
 * Adds the events of a history up to number `last` (UINT64_MAX: all) to the last part; with `pool`, those of that pool alone. Times
 * are wall clock, or on a simulated device its own, so that the same program gives the same file.
 */
lade_status ladei_inspect_events_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                                     const lade_history *history, bool simulated, uint64_t last,
                                     const lade_device_pool_id *pool);

/* The contexts and notes of blocks that are live at the end, where the cache does not tell them: those of their last alloc and
 * annotate. For the blocks of the last part, whose events are there. */
lade_status ladei_inspect_events_mark_blocks(lade_snapshot *snapshot);

#endif /* LADE_INSPECT_EVENTS_H */
