/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot with a history as a trace: its program's operations, so that other settings can be tried on it.
 *
 * The memory at the history's begin is the snapshot's, with all events undone: its blocks are allocated first. Then
 * each event that the program caused becomes an operation:
 *
 *   alloc            alloc; within a private pool: pool_begin, alloc, pool_end
 *   free requested   free; where its completion comes later, before it `record` on a stream made for it
 *   free completed   later: complete of that stream
 *   segment alloc    `at` of the alloc that follows, which the segment was for
 *   segment free     empty_cache, of a private pool pool_trim, once for those that follow each other
 *   out of memory    the alloc that failed
 *
 * With the program's own settings that replays exactly what the file tells; from_snapshot_differences says what it does
 * not.
 */
#ifndef LADE_TOOLS_REPLAY_FROM_SNAPSHOT_H
#define LADE_TOOLS_REPLAY_FROM_SNAPSHOT_H

#include <stdbool.h>
#include <stdio.h>

#include "lade/inspect.h"

/* Whether a file that begins with these bytes is a snapshot. */
bool from_snapshot_is_one(const char *bytes, size_t count);

/* Where the replay of a trace differs from what happened; all zero: nowhere that the file shows. */
typedef struct from_snapshot_differences {
  uint64_t earlier_blocks;    /* were there when the history began: they lie elsewhere */
  uint64_t refused_allocs;    /* at a limit that the file does not name: they are served */
  uint64_t nameless_segments; /* had gone when it was taken, their pools are not in it: taken for the default pools' */
  uint64_t misplaced;         /* segments at addresses that a trace cannot name */
  uint64_t pools;             /* private ones, of whose captures and uses the file says neither begin nor end */
  bool partial_flushes;       /* single segments went back: everything cached goes */
  bool fraction_missing;      /* of which the collection threshold is a share */
  uint64_t peak_bytes;        /* no difference: what was reserved at most */
} from_snapshot_differences;

/* Writes the trace of the first device allocator that has events. LADE_ERR_INVALID_ARGUMENT where none has;
 * LADE_ERR_OUT_OF_HOST_MEMORY. Errors of `out` stay in it. */
lade_status from_snapshot_write(const lade_snapshot *snapshot, FILE *out, from_snapshot_differences *differences);

#endif /* LADE_TOOLS_REPLAY_FROM_SNAPSHOT_H */
