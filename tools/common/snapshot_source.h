/* SPDX-License-Identifier: Apache-2.0 */
/* Where subcommands get snapshots from, and where they write them to. */
#ifndef LADE_TOOLS_COMMON_SNAPSHOT_SOURCE_H
#define LADE_TOOLS_COMMON_SNAPSHOT_SOURCE_H

#include <stdbool.h>

#include "lade/inspect.h"

/* A number that is no file's name is a process. */
bool snapshot_source_is_process(const char *source, uint64_t *out_process_id);

/* Of a process: its publisher, and the time to wait for it. All zero: the first one, the library's default. */
typedef struct snapshot_wish {
  uint32_t publisher;
  uint32_t wait_ms;
} snapshot_wish;

/* Reads the file, or the counters that a process publishes. NULL, a message printed: `*out_exit` is the exit status. */
lade_snapshot *snapshot_source_open(const char *command, const char *source, int *out_exit);
/* Reads the file, or has the process take a snapshot. Else the same. */
lade_snapshot *snapshot_source_take(const char *command, const char *source, const snapshot_wish *wish, int *out_exit);
/* Turns the histories of a process on or off. Returns the exit status, a message printed. */
int snapshot_source_history_set(const char *command, uint64_t process_id, const snapshot_wish *wish,
                                const lade_published_history_options *options);

/* To a file, a pipe or a device; NULL, "-": standard output. Returns the exit status; prints a failure. */
int snapshot_source_write(const char *command, const lade_snapshot *snapshot, uint32_t format,
                          const lade_snapshot_write_options *options, const char *path);

#endif /* LADE_TOOLS_COMMON_SNAPSHOT_SOURCE_H */
