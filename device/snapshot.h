/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshot: a copy of an allocator's segments and blocks at one moment, for reports.
 *
 * A segment here is a contiguous run of memory: a plain segment, or a mapped part of an expandable one between holes.
 * Memory for the copy is taken before the allocator's lock, which is held for the copying alone.
 */
#ifndef LADE_DEVICE_SNAPSHOT_H
#define LADE_DEVICE_SNAPSHOT_H

#include "device/allocator.h"

typedef enum ladei_snapshot_state {
  LADEI_SNAPSHOT_INACTIVE,
  LADEI_SNAPSHOT_ALLOCATED,
  LADEI_SNAPSHOT_PENDING_FREE, /* freed; other streams use it */
} ladei_snapshot_state;

typedef struct ladei_snapshot_block {
  uint64_t address;
  uint64_t bytes;
  uint64_t requested_bytes; /* 0 while inactive */
  ladei_snapshot_state state;
} ladei_snapshot_block;

typedef struct ladei_snapshot_segment {
  uint64_t address;
  uint64_t total_bytes;
  uint64_t allocated_bytes;
  uint64_t active_bytes;
  uint64_t requested_bytes; /* of active blocks */
  ladei_stream stream;
  lade_device_pool_id pool; /* {0, 0}: the default pools */
  bool is_large;
  bool is_expandable;
  size_t first_block; /* in snapshot->blocks */
  size_t block_count;
} ladei_snapshot_segment;

typedef struct ladei_snapshot {
  ladei_snapshot_segment *segments; /* by ascending address */
  size_t segment_count;
  ladei_snapshot_block *blocks; /* by ascending address */
  size_t block_count;
  lade_device_stats stats; /* of the same moment; without the counters of runtime/retire */
} ladei_snapshot;

/* LADE_ERR_OUT_OF_HOST_MEMORY. The caller owns the snapshot's arrays until destroy. */
lade_status ladei_device_snapshot_take(lade_device_allocator *allocator, ladei_snapshot *out);
void ladei_device_snapshot_destroy(ladei_snapshot *snapshot);

#endif /* LADE_DEVICE_SNAPSHOT_H */
