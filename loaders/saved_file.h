/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a checkpoint that is being saved: it has its name when it is complete. */
#ifndef LADE_LOADERS_SAVED_FILE_H
#define LADE_LOADERS_SAVED_FILE_H

#include <stdint.h>

#include "base/save.h"

/* Creates it in an open folder, with room for `bytes` if the file system promises it. `like`: ladei_save_begin_in(). */
lade_status ladei_loader_saved_file_create(int folder, const char *path, const char *like, uint64_t bytes,
                                           ladei_save **out);

#endif /* LADE_LOADERS_SAVED_FILE_H */
