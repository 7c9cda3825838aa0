/* SPDX-License-Identifier: Apache-2.0 */
/* Where subcommands get snapshots from, and where they write them to. */
#ifndef LADE_TOOLS_COMMON_SNAPSHOT_SOURCE_H
#define LADE_TOOLS_COMMON_SNAPSHOT_SOURCE_H

#include "lade/inspect.h"

/* Reads the file; where `source` is a number and no file, the counters that this process publishes. NULL with a message printed: `*out_exit` is the exit status then. */
lade_snapshot *snapshot_source_open(const char *command, const char *source, int *out_exit);

/* To a file, or to standard output where `path` is NULL or "-". Returns the exit status, a message printed. */
int snapshot_source_write(const char *command, const lade_snapshot *snapshot, uint32_t format,
                          const lade_snapshot_write_options *options, const char *path);

/* Ends a command: standard output is whole, or the exit status says so. */
int snapshot_source_end(const char *command, int exit_status);

#endif /* LADE_TOOLS_COMMON_SNAPSHOT_SOURCE_H */
