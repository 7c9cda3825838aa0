/* SPDX-License-Identifier: Apache-2.0 */
/* Records that a loader left out of its batches, because they cannot be read. */
#ifndef LADE_LOADERS_SKIPS_H
#define LADE_LOADERS_SKIPS_H

#include "loaders/index.h"

typedef struct ladei_loader_skip {
  uint64_t record;
  uint64_t count; /* times that it was left out */
  char *text;     /* the first cause: error, byte and file; NULL: no memory */
} ladei_loader_skip;

/* The first LADE_LOADER_SKIPS_LISTED different ones, in the order in which they were found. All zero: none. */
typedef struct ladei_loader_skips {
  ladei_loader_skip *list;
  size_t count, capacity;
} ladei_loader_skips;

/* Notes that a record was left out. Without memory it is not listed. */
void ladei_loader_skips_add(ladei_loader_skips *skips, uint64_t record, const char *text);
void ladei_loader_skips_dispose(ladei_loader_skips *skips);

/* Reads a record, to find out whether it can be read. An error with *out_bad: it cannot, and others may; without: that is
 * not known, or is of its server. Waits for the file system, or for the server. */
lade_status ladei_loader_record_probe(const lade_record_index *index, uint64_t record, bool *out_bad);

#endif /* LADE_LOADERS_SKIPS_H */
