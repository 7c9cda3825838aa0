/* SPDX-License-Identifier: Apache-2.0 */
/* Where the records of a data set are. */
#ifndef LADE_LOADERS_INDEX_H
#define LADE_LOADERS_INDEX_H

#include "lade/loader.h"
#include "loaders/remote.h"
#include "pipeline/storage/open_files.h"

enum { LADEI_LOADER_INDEX_MAX_FIELDS = 64 };

typedef struct ladei_loader_index_file {
  char *path;                   /* of a URL for messages alone */
  char *url;                    /* NULL: it is none; otherwise ... */
  ladei_source_version version; /* ... all records are of this one, and `identity` does not count */
  int fd;                       /* -1: more files than may be open; its path is absolute then */
  uint64_t bytes;               /* when it was added, ... */
  uint64_t modified_ns;         /* ... of a file */
  uint64_t name_hash;           /* of the last component of the path it was added by */
  ladei_pipe_file_identity identity;
} ladei_loader_index_file;

/*
 * Records are rows of `field_count` ranges. Keys lie one after the other in one text; a record's entry says where, or
 * SIZE_MAX for none.
 */
struct lade_record_index {
  char *names;         /* the fields' text, split into terminated names */
  char **alternatives; /* pointers into it */
  size_t *field_of;    /* field of each alternative */
  size_t alternative_count;
  size_t field_count;
  ladei_loader_index_file *files;
  size_t file_count, file_capacity;
  size_t files_most; /* files that stay open: the first ones */
  lade_range *ranges;
  size_t *keys;
  size_t count, capacity, range_capacity;
  char *key_text;
  size_t key_length, key_capacity;
  lade_index_info info; /* of members that were left out; the rest is filled in when it is read */
};

/* The counts before an addition, to which a failed one returns. */
typedef struct ladei_loader_index_mark {
  size_t file_count, count, key_length;
} ladei_loader_index_mark;

ladei_loader_index_mark ladei_loader_index_mark_get(const lade_record_index *index);
void ladei_loader_index_rewind(lade_record_index *index, ladei_loader_index_mark mark);

/* Opens the file at `path`, which stays open where `keep`. LADE_ERR_IO, LADE_ERR_INVALID_ARGUMENT,
 * LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_loader_index_file_open(const char *path, bool keep, ladei_loader_index_file *out);
/* Of a path or a URL without its query. */
uint64_t ladei_loader_index_name_hash(const char *path);

/* Adds the object at a URL, which is open then: as lade_index_add_file(), and LADE_ERR_UNSUPPORTED. */
lade_status ladei_loader_index_add_remote(lade_record_index *index, const char *url, uint64_t *out_file,
                                          ladei_loader_lone *out);

/* Hashes by which another process knows whether it has the same index: none is 0. Folders do not count. */
typedef struct ladei_loader_index_identity {
  uint64_t files;              /* names and sizes, in their order */
  uint64_t files_in_any_order; /* the same, whatever their order */
  uint64_t records;            /* all ranges and keys */
} ladei_loader_index_identity;

ladei_loader_index_identity ladei_loader_index_identity_of(const lade_record_index *index);

#endif /* LADE_LOADERS_INDEX_H */
