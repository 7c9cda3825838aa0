/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that appears under its name all at once: written under no name or a temporary one in the same folder, then
 * renamed. A save that is given up changes nothing. A file that replaces another, or a link to one, has its rights and
 * attributes (file_rights.h); any other has those of a new file (umask, folder).
 *
 *   ladei_save *save;
 *   status = ladei_save_begin(path, &save);
 *   ... ladei_save_write(save, 0, data, bytes), or write to ladei_save_fd(save) ...
 *   status = ladei_save_prepare(save, true);
 *   if (status == LADE_OK) status = ladei_save_name(save);
 *   ended = ladei_save_end(save, true); // without a name: given up
 *
 * Several files that belong together take these steps side by side: all are prepared before the first gets its name.
 */
#ifndef LADE_BASE_SAVE_H
#define LADE_BASE_SAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_save ladei_save;

/*
 * `path` is copied. Mistakes that would show at the end are found now: a folder or another non-regular file under the
 * name, a file that must not be replaced, a folder without right to write. LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_save_begin(const char *path, ladei_save **out);
/* The same in an open folder, borrowed until the end: the last component of `path` is looked up there. `like` (or NULL)
 * is another name in it, copied: a new file that replaces none gets the rights of that file. */
lade_status ladei_save_begin_in(int folder, const char *path, const char *like, ladei_save **out);

/* Open for reading and writing; owned by the save. */
int ladei_save_fd(const ladei_save *save);
/* Writes all bytes, from the offset on. LADE_ERR_IO. */
lade_status ladei_save_write(const ladei_save *save, uint64_t offset, const void *data, size_t bytes);
/* The path as it was given. */
const char *ladei_save_path(const ladei_save *save);

/* All steps but the name. With `sync` the bytes are on the disk, else the file system has them. LADE_ERR_IO. */
lade_status ladei_save_prepare(ladei_save *save, bool sync);
/* Gives a prepared file its name, in place of any other. LADE_ERR_IO: it has it not, as far as can be known. */
lade_status ladei_save_name(ladei_save *save);
/*
 * Takes the save; NULL does nothing. A save without its name is given up. A file that has its name keeps it, whatever
 * fails: with `sync` the new entry of the folder is on the disk. LADE_ERR_IO.
 */
lade_status ladei_save_end(ladei_save *save, bool sync);

/* Opens the folder of a path's last component. -1 with errno. */
int ladei_folder_open(const char *path);
/* The last component. */
const char *ladei_file_name(const char *path);
/* Writes a folder's new entries to stable storage. A file system without that is no error. False with errno
 * otherwise. */
bool ladei_folder_flush(int folder);

/* Whether an open file's system has its pages in memory alone. */
bool ladei_file_is_in_memory(int fd);

/*
 * Sets room aside for bytes [begin, end) of an open file; `mode` as of fallocate(). File systems in memory would touch all pages for
 * it, in one thread (0.6 s for a GiB): these are only asked whether they have as much. 0; ENOSPC; another errno where nothing
 * is promised.
 */
int ladei_file_reserve(int fd, int mode, uint64_t begin, uint64_t end);

/* Locks an open file (flock), also if signals interrupt the call. False with errno; EWOULDBLOCK: it is locked. */
bool ladei_file_lock(int fd);

/*
 * Length of NAME in ".NAME.lade-N", the temporary name of a save; 0: it is not one. Names of more than 200 bytes are
 * shortened.
 */
size_t ladei_save_temporary_name(const char *entry);
/* Removes the file of a temporary name if a killed process left it. A living process's file stays. */
void ladei_save_temporary_remove(int folder, const char *entry);

#endif /* LADE_BASE_SAVE_H */
