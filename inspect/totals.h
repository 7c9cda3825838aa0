/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a part over its history: those at its end are known, those before follow from the events. */
#ifndef LADE_INSPECT_TOTALS_H
#define LADE_INSPECT_TOTALS_H

#include "inspect/snapshot.h"

typedef struct ladei_inspect_totals {
  int64_t allocated_bytes; /* asked for, in blocks handed out */
  int64_t active_bytes;    /* ... and pending */
  int64_t reserved_bytes;
} ladei_inspect_totals;

/* Sums of a file's claims may exceed 2^63: they wrap, and are wrong, without other harm. */
static inline void ladei_inspect_totals_sum(int64_t *sum, uint64_t bytes) { *sum = (int64_t)((uint64_t)*sum + bytes); }

/* Applies an event to the totals. True: they changed. */
static inline bool ladei_inspect_totals_add(ladei_inspect_totals *totals, const ladei_snapshot_event *event) {
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_ALLOC:
    ladei_inspect_totals_sum(&totals->allocated_bytes, event->bytes);
    ladei_inspect_totals_sum(&totals->active_bytes, event->bytes);
    return true;
  case LADE_DEVICE_FREE_REQUESTED: ladei_inspect_totals_sum(&totals->allocated_bytes, -event->bytes); return true;
  case LADE_DEVICE_FREE_COMPLETED: ladei_inspect_totals_sum(&totals->active_bytes, -event->bytes); return true;
  case LADE_DEVICE_SEGMENT_ALLOC:
  case LADE_DEVICE_SEGMENT_MAP: ladei_inspect_totals_sum(&totals->reserved_bytes, event->bytes); return true;
  case LADE_DEVICE_SEGMENT_FREE:
  case LADE_DEVICE_SEGMENT_UNMAP: ladei_inspect_totals_sum(&totals->reserved_bytes, -event->bytes); return true;
  default: return false;
  }
}

/* At the part's end: those of its segments. */
static inline ladei_inspect_totals ladei_inspect_totals_after(const lade_snapshot *snapshot,
                                                              const ladei_snapshot_part *part) {
  ladei_inspect_totals totals = {0, 0, 0};
  for (uint64_t i = part->first_segment; i < part->first_segment + part->segment_count; i++)
    ladei_inspect_totals_sum(&totals.reserved_bytes, snapshot->segments.rows[i].total_bytes);
  for (uint64_t i = part->first_block; i < part->first_block + part->block_count; i++) {
    const ladei_snapshot_block *block = &snapshot->blocks.rows[i];
    if (block->state == LADE_DEVICE_BLOCK_ALLOCATED)
      ladei_inspect_totals_sum(&totals.allocated_bytes, block->requested_bytes);
    if (block->state != LADE_DEVICE_BLOCK_INACTIVE)
      ladei_inspect_totals_sum(&totals.active_bytes, block->requested_bytes);
  }
  return totals;
}

/* Before the part's first event. */
static inline ladei_inspect_totals ladei_inspect_totals_before(const lade_snapshot *snapshot,
                                                               const ladei_snapshot_part *part) {
  ladei_inspect_totals totals = ladei_inspect_totals_after(snapshot, part), change = {0, 0, 0};
  for (uint64_t i = part->first_event; i < part->first_event + part->event_count; i++)
    ladei_inspect_totals_add(&change, &snapshot->events.rows[i]);
  ladei_inspect_totals_sum(&totals.allocated_bytes, -(uint64_t)change.allocated_bytes);
  ladei_inspect_totals_sum(&totals.active_bytes, -(uint64_t)change.active_bytes);
  ladei_inspect_totals_sum(&totals.reserved_bytes, -(uint64_t)change.reserved_bytes);
  return totals;
}

#endif /* LADE_INSPECT_TOTALS_H */
