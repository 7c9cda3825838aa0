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

typedef struct snapshot_facts {
  ladei_inspect_layout start; /* memory at the begin */
  lade_device_pool_id *pools; /* of each event */
  uint64_t capacity_bytes;    /* where allocations fail as they did; 0: none says so, or no number does */
  replay_differences found;   /* those that the events alone show */
} snapshot_facts;

/* LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status snapshot_facts_find(const lade_snapshot *snapshot, uint32_t part, snapshot_facts *out);
void snapshot_facts_destroy(snapshot_facts *facts);

#endif /* LADE_TOOLS_REPLAY_SNAPSHOT_FACTS_H */
