/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lives of blocks and segments, from the events and the end of a snapshot together.
 *
 *   history      |  a----f---c   alloc, free requested, free completed: all of a life
 *   f---c        |               it was there before: start is 0
 *   a--------->                  it is there at the end: freed and end are UINT64_MAX
 *
 * V1  Lives of one part at one address do not overlap in time.
 * V2  Each block of the snapshot that is not inactive, and each segment, has one life without an end.
 * V3  start <= freed <= end, also where the times of a file go back.
 */
#ifndef LADE_INSPECT_LIVES_H
#define LADE_INSPECT_LIVES_H

#include "inspect/snapshot.h"

typedef struct ladei_inspect_life {
  uint64_t address, bytes, requested_bytes;
  uint64_t start_ns;         /* wall clock; 0: before the history; an event at 0 ("sim") counts as at 1 */
  uint64_t freed_ns, end_ns; /* UINT64_MAX: not until the end */
  uint64_t stream;
  lade_device_pool_id pool;
  uint32_t part, stack, label, scopes;
} ladei_inspect_life;

typedef struct ladei_inspect_lives {
  LADEI_INSPECT_TABLE(ladei_inspect_life) blocks;
  LADEI_INSPECT_TABLE(ladei_inspect_life) segments;
} ladei_inspect_lives;

/* LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_inspect_lives_create(const lade_snapshot *snapshot, ladei_inspect_lives *out);
void ladei_inspect_lives_destroy(ladei_inspect_lives *lives);

#endif /* LADE_INSPECT_LIVES_H */
