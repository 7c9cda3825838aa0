/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Note [Open files]
 * A data set or a transfer may name more files than a process may have open. So each room of the library that keeps
 * files open by their paths keeps a quarter of that at most, in descriptors; files beyond are closed once they are
 * identified, and opened again by each read, which then costs some microseconds more, and goes through the page cache.
 * Such a file must be the same by then: one replaced meanwhile is an error, since bytes of two files in one destination
 * are worse.
 */
#ifndef LADE_PIPELINE_STORAGE_OPEN_FILES_H
#define LADE_PIPELINE_STORAGE_OPEN_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lade/status.h"

/* Which file it is, whatever its name. */
typedef struct ladei_pipe_file_identity {
  uint64_t device;
  uint64_t inode;
} ladei_pipe_file_identity;

/* To find out whether a file was written to since. Times are as fine as the file system's: a write within one tick of
 * the last one is not seen, nor one whose time was set back. */
typedef struct ladei_pipe_file_stamp {
  uint64_t bytes;
  uint64_t modified_ns;
} ladei_pipe_file_stamp;

/* Descriptors at once, at most, now: a quarter of the process's limit. */
unsigned ladei_pipe_open_files_most(void);

ladei_pipe_file_identity ladei_pipe_file_identity_of(const struct stat *facts);
ladei_pipe_file_stamp ladei_pipe_file_stamp_of(const struct stat *facts);

/* Opens the file for reading. LADE_ERR_IO, with the path; also where the path means another file by now. */
lade_status ladei_pipe_file_reopen(const char *path, const ladei_pipe_file_identity *identity, int *out_fd);

/* Whether reopening it would find it. LADE_ERR_IO likewise. */
lade_status ladei_pipe_file_recheck(const char *path, const ladei_pipe_file_identity *identity);

#endif /* LADE_PIPELINE_STORAGE_OPEN_FILES_H */
