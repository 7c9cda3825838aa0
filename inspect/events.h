/* SPDX-License-Identifier: Apache-2.0 */
/* The history of either cache as events of a snapshot. */
#ifndef LADE_INSPECT_EVENTS_H
#define LADE_INSPECT_EVENTS_H

#include "history/copy.h"
#include "inspect/contexts.h"

/*
 * Adds the events of a history to the last part; with `pool`, those of that pool alone. Times are wall clock, or on a
 * simulated device its own, so that the same program gives the same file. The copy's events are taken, also after a
 * failure. No lock held.
 */
lade_status ladei_inspect_events_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                                     ladei_history_copy *history, bool simulated, const lade_device_pool_id *pool);

/* When something happened, as its event would tell. */
uint64_t ladei_inspect_events_time_ns(const ladei_history_copy *history, bool simulated, uint64_t ticks);

#endif /* LADE_INSPECT_EVENTS_H */
