/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshot: a copy of an allocator's segments and blocks at one moment, for reports.
 *
 * A segment here is a contiguous run of memory: a plain segment, or a mapped part of an expandable one between holes.
 * Memory for the copy is taken before the allocator's lock, which is held for the copying alone. The public snapshot is
 * this one and the history before it.
 */
#ifndef LADE_DEVICE_API_SNAPSHOT_H
#define LADE_DEVICE_API_SNAPSHOT_H

#include "device/state/allocator.h"
#include "history/copy.h"

typedef lade_device_snapshot_block ladei_device_snapshot_block;
typedef lade_device_snapshot_segment ladei_device_snapshot_segment;

/* A text of the program on a live block; counted. */
typedef struct ladei_device_snapshot_note {
  uint64_t address;
  ladei_history_context *note;
} ladei_device_snapshot_note;

typedef struct ladei_device_snapshot {
  ladei_device_snapshot_segment *segments; /* by ascending address; `context` is a ladei_history_context, counted */
  size_t segment_count;
  ladei_device_snapshot_block *blocks; /* as they */
  size_t block_count;
  ladei_device_snapshot_note *notes; /* by ascending address */
  size_t note_count;
  size_t note_room;
  lade_device_stats stats; /* of the same moment; without the counters of runtime/retire */
  uint64_t events_end;     /* of the history: for ladei_device_history_read */
  uint64_t ticks;          /* of the moment; 0: nothing listened */
} ladei_device_snapshot;

/* Of one private pool, or with NULL of all memory; the counters are the allocator's. LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_UNSUPPORTED where the backend has no segments. The caller owns the snapshot's arrays until destroy. */
lade_status ladei_device_snapshot_take(lade_device_allocator *allocator, const lade_device_pool_id *only,
                                       ladei_device_snapshot *out);
void ladei_device_snapshot_destroy(ladei_device_snapshot *snapshot);

/* The context of a block or segment; NULL: none. */
static inline ladei_history_context *ladei_device_snapshot_context(const void *context) {
  return (ladei_history_context *)(uintptr_t)context;
}

/* A snapshot and the history up to its own event. */
typedef struct ladei_device_moment {
  ladei_device_snapshot memory; /* with all counters */
  ladei_history_copy history;   /* empty where it is off */
} ladei_device_moment;

/* As a call of the program, with the event of a snapshot; errors as above. Without `events` the copy of the history has
 * none. Destroy: no lock held. */
lade_status ladei_device_moment_take(lade_device_allocator *allocator, const lade_device_pool_id *only, bool events,
                                     ladei_device_moment *out);
void ladei_device_moment_destroy(ladei_device_moment *moment);

/* The state of a mapped block as users are told it, after a flush of the thread caches. Lock held. */
lade_device_block_state ladei_device_snapshot_state(const ladei_device_block *block);

#endif /* LADE_DEVICE_API_SNAPSHOT_H */
