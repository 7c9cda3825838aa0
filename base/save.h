/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that appears under its name all at once: written under no name or a temporary one in the same folder, then
 * renamed. Given up, nothing of it is left, and what was under the name before is untouched. A file that takes the place of another,
 * or of a link to one, has its rights and attributes (file_rights.h); else it has those that umask and folder give a new file.
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
 * `path` is copied. What would only be found at the end is found now: a folder or no regular file under the name, a file
 * there that must not be replaced, a folder without right to write. LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_save_begin(const char *path, ladei_save **out);
/* The same in a folder that is open already, borrowed until the end: the last component of `path` is looked up there. `like`
 * is another name there, copied: where there is no file under its own name, the new one has the rights of that file. NULL: none. */
lade_status ladei_save_begin_in(int folder, const char *path, const char *like, ladei_save **out);

/* Open for reading and writing, and the save's. */
int ladei_save_fd(const ladei_save *save);
/* All of the bytes, from the offset on. LADE_ERR_IO. */
lade_status ladei_save_write(const ladei_save *save, uint64_t offset, const void *data, size_t bytes);
/* As given. */
const char *ladei_save_path(const ladei_save *save);

/* All but the name: with `sync` the bytes are on the disk, without it the file system has taken them. LADE_ERR_IO. */
lade_status ladei_save_prepare(ladei_save *save, bool sync);
/* Of one that is prepared: the file is under its name, in place of any other. LADE_ERR_IO: it is not, as far as can be
 * known. */
lade_status ladei_save_name(ladei_save *save);
/*
 * Takes the save; NULL does nothing. One without its name is given up. What has its name stays, whatever fails: with
 * `sync` the new entry of the folder is on the disk. LADE_ERR_IO.
 */
lade_status ladei_save_end(ladei_save *save, bool sync);

/* Opens the folder of a path's last component. -1 with errno. */
int ladei_folder_open(const char *path);
/* The last component. */
const char *ladei_file_name(const char *path);
/* Writes a folder's new entries to stable storage. A file system that knows no such thing is no error: false otherwise,
 * with errno. */
bool ladei_folder_flush(int folder);

/* Locks an open file, if nobody else has it locked (flock), also where signals interrupt the call. False with errno, EWOULDBLOCK then. */
bool ladei_file_lock(int fd);

/*
 * Length of the name NAME in ".NAME.lade-N", which a save's temporary name is; 0: it is none. Names of more than 200 bytes
 * are shortened.
 */
size_t ladei_save_temporary_name(const char *entry);
/* Takes away what a killed process left under a temporary name. What a living one writes stays. */
void ladei_save_temporary_remove(int folder, const char *entry);

#endif /* LADE_BASE_SAVE_H */
