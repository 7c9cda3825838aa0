/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts that no event of a history says by itself. They are found by undoing the events, the newest first.
 *
 *   memory now --undo--> ... --undo--> memory at the history's begin       reserved bytes, segments and their pools at each event
 */
#ifndef LADE_TOOLS_REPLAY_SNAPSHOT_FACTS_H
#define LADE_TOOLS_REPLAY_SNAPSHOT_FACTS_H

#include <stdbool.h>

#include "inspect/layout.h"
#include "tools/replay/differences.h"

typedef struct snapshot_event_facts {
  lade_device_pool_id pool;
  /* Of the first event of some that give memory of the default pools back: */
  uint64_t needed_bytes; /* that would have been reserved without them, for what comes next; 0: nothing grows then */
  bool partial;          /* more could have gone */
} snapshot_event_facts;

typedef struct snapshot_facts {
  ladei_inspect_layout start; /* memory at the begin */
  snapshot_event_facts *events;
  uint64_t capacity_bytes;  /* where allocations fail as they did; 0: none says so, or no number does */
  replay_differences found; /* those that the events alone show */
} snapshot_facts;

/* LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status snapshot_facts_find(const lade_snapshot *snapshot, uint32_t part, snapshot_facts *out);
void snapshot_facts_destroy(snapshot_facts *facts);

#endif /* LADE_TOOLS_REPLAY_SNAPSHOT_FACTS_H */
