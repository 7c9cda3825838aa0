/* SPDX-License-Identifier: Apache-2.0 */
/* A file that gets its name only when it is complete. */
#ifndef LADE_PIPELINE_LOADERS_PART_FILE_H
#define LADE_PIPELINE_LOADERS_PART_FILE_H

#include "lade/status.h"

typedef struct ladei_part_file {
  char *path;      /* final */
  char *part_path; /* while it is written */
  int fd;          /* -1: none */
  bool renamed;
} ladei_part_file;

/* Creates `.NAME.XXXXXX.part` beside the path, with room for `bytes` where the file system can promise that. */
lade_status ladei_part_file_create(const char *path, uint64_t bytes, ladei_part_file *out);
/* All of the buffer, at the offset. */
lade_status ladei_part_file_write(const ladei_part_file *file, uint64_t offset, const void *buffer, size_t bytes);
/* What was written is on stable storage. */
lade_status ladei_part_file_sync(const ladei_part_file *file);
/* Gives it its name, in place of any file of that name. */
lade_status ladei_part_file_rename(ladei_part_file *file);
/* Writes the folder's new entry to stable storage. */
lade_status ladei_part_file_sync_folder(const ladei_part_file *file);
/* Closes it. `remove`: takes it away, under either name. Of one that is all zero but fd = -1, does nothing. */
void ladei_part_file_dispose(ladei_part_file *file, bool remove);

#endif /* LADE_PIPELINE_LOADERS_PART_FILE_H */
