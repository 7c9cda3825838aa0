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
 *   segment free     empty_cache, of a private pool pool_trim, once for those that follow each other; nothing where the
 *                    memory of the device is known and they went back for memory that came next: so it does in the replay
 *   out of memory    the alloc that failed
 *
 * With the program's own settings that replays exactly what the file tells; replay_differences says what it does
 * not.
 */
#ifndef LADE_TOOLS_REPLAY_FROM_SNAPSHOT_H
#define LADE_TOOLS_REPLAY_FROM_SNAPSHOT_H

#include <stdbool.h>
#include <stdio.h>

#include "lade/inspect.h"
#include "tools/replay/differences.h"

/* Whether a file that begins with these bytes is a snapshot. */
bool from_snapshot_is_one(const char *bytes, size_t count);

/* Writes the trace of the first device allocator that has events. LADE_ERR_INVALID_ARGUMENT where none has;
 * LADE_ERR_OUT_OF_HOST_MEMORY. Errors of `out` stay in it. */
lade_status from_snapshot_write(const lade_snapshot *snapshot, FILE *out, replay_differences *differences);

#endif /* LADE_TOOLS_REPLAY_FROM_SNAPSHOT_H */
