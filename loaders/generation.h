/* SPDX-License-Identifier: Apache-2.0 */
/* The saves of one checkpoint of several files: which is current, one at a time, and remains of others. */
#ifndef LADE_LOADERS_GENERATION_H
#define LADE_LOADERS_GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

enum { LADEI_LOADER_SAVE_ID_BYTES = 40 };

/* A save under way. All zero is none. */
typedef struct ladei_loader_generation {
  bool begun;
  bool locked; /* false where files cannot be locked: two saves at once are not noticed there */
  bool sync;
  bool pending; /* a killed save has left a journal, not yet carried out */
  int folder;
  int lock;
  const char *path; /* of the checkpoint; borrowed */
  char *index_name; /* in the folder, as the next one */
  char *lock_name;
  char *like;      /* in the folder: the file whose rights new ones get; NULL: there is none to replace */
  uint64_t number; /* of this save, in the names of its files */
  char id[LADEI_LOADER_SAVE_ID_BYTES];     /* of this save, in its files and its index */
  char old_id[LADEI_LOADER_SAVE_ID_BYTES]; /* of the index's save; otherwise "none", "foreign" or "broken" */
} ladei_loader_generation;

/*
 * Locks the checkpoint, removes files of killed saves, chooses number and id. `path` is the checkpoint's, without
 * ".index.json". LADE_ERR_BUSY while another save of it runs; LADE_ERR_IO, also if no higher number is left;
 * LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_loader_generation_begin(const char *path, bool sync, ladei_loader_generation *out);

/* Of a store, whose objects no lock and no journal is for: number and id are random. Everything else is zero. */
lade_status ladei_loader_generation_random(const char *path, ladei_loader_generation *out);

/* Whether a save to `path` could begin, in one file or several; it changes nothing except files that killed saves left.
 * As lade_safetensors_save(). */
lade_status ladei_loader_generation_check(const char *path, bool several);

/* The name of file `number` of `count`, from 0 on, without folder. The caller frees it; NULL without memory. */
char *ladei_loader_generation_file_name(const ladei_loader_generation *generation, size_t number, size_t count);

/*
 * Ends it. If the index on disk is this save's, and `good` (it is there for good), the files of the replaced save are
 * removed; if it is another's, those of this one. The next save removes those that cannot be removed now.
 */
void ladei_loader_generation_end(ladei_loader_generation *generation, bool good);

#endif /* LADE_LOADERS_GENERATION_H */
