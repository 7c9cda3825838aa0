/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that appears under its name all at once: written under no name or a temporary one in the same folder, then
 * renamed. Given up, nothing of it is left, and what was under the name before is untouched.
 *
 *   ladei_save *save;
 *   status = ladei_save_begin(path, &save);
 *   ... write to ladei_save_fd(save) ...
 *   status = ladei_save_commit(save, true);      // or ladei_save_abort(save)
 */
#ifndef LADE_PIPELINE_STORAGE_SAVE_H
#define LADE_PIPELINE_STORAGE_SAVE_H

#include <stdbool.h>

#include "lade/status.h"

typedef struct ladei_save ladei_save;

/* `path` is copied. LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_save_begin(const char *path, ladei_save **out);

/* Open for reading and writing, and the save's. */
int ladei_save_fd(const ladei_save *save);

/*
 * Gives the file its name; with `sync` the bytes are on the disk before that, and the new entry of the folder after it.
 * Takes the save. When it fails nothing is left but in one case: the folder that cannot be flushed, with the file whole
 * and under its name. LADE_ERR_IO.
 */
lade_status ladei_save_commit(ladei_save *save, bool sync);

/* Takes the save. NULL does nothing. */
void ladei_save_abort(ladei_save *save);

#endif /* LADE_PIPELINE_STORAGE_SAVE_H */
