/* SPDX-License-Identifier: Apache-2.0 */
/* One of several files that get their names when all of them are complete. */
#ifndef LADE_PIPELINE_LOADERS_PART_FILE_H
#define LADE_PIPELINE_LOADERS_PART_FILE_H

#include "lade/status.h"
#include "pipeline/storage_save.h"

/* All zero: none. */
typedef struct ladei_part_file {
  char *path;
  ladei_save *save; /* NULL once it has its name */
  bool named;
} ladei_part_file;

/* Creates it, with room for `bytes` where the file system can promise that. */
lade_status ladei_part_file_create(const char *path, uint64_t bytes, ladei_part_file *out);
static inline int ladei_part_file_fd(const ladei_part_file *file) { return ladei_save_fd(file->save); }
/* All of the buffer, at the offset. */
lade_status ladei_part_file_write(const ladei_part_file *file, uint64_t offset, const void *buffer, size_t bytes);
/* What was written is on stable storage. */
lade_status ladei_part_file_sync(const ladei_part_file *file);
/* Gives it its name, in place of any file of that name, and closes it. */
lade_status ladei_part_file_name(ladei_part_file *file);
/* Writes the folder's new entries to stable storage. */
lade_status ladei_part_file_sync_folder(const ladei_part_file *file);
/* Lets go of it. `remove`: takes the file away, also from under its name. */
void ladei_part_file_dispose(ladei_part_file *file, bool remove);

#endif /* LADE_PIPELINE_LOADERS_PART_FILE_H */
