/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A room fills this in so that its objects can be parts of snapshots and of published memory. A new room adds a
 * lade_part_kind, a file in inspect/parts/ and a line in inspect/api/parts.c.
 */
#ifndef LADE_INSPECT_PART_H
#define LADE_INSPECT_PART_H

#include "inspect/snapshot.h"

/* The data to copy. */
typedef struct ladei_inspect_wanted {
  lade_snapshot_options options;
  struct ladei_inspect_contexts *contexts; /* contexts.h */
} ladei_inspect_wanted;

typedef struct ladei_inspect_part_ops {
  int (*device)(const void *object); /* its ordinal; -1: none */
  lade_runtime *(*runtime)(const void *object);
  /*
   * Fills the part that was begun: counters, settings, and unless options say otherwise segments, blocks, events, and
   * the fields of the part's row. Segments by address. Calls by others on the object go on.
   */
  lade_status (*copy)(void *object, const ladei_inspect_wanted *wanted, lade_snapshot *snapshot);
  /* The counters alone, by name. */
  lade_status (*counters)(void *object, lade_stat_visit visit, void *user);
  /* Its history: both, or none for a part without memory. Options in force live as long as the object; NULL: off. */
  lade_status (*history_set)(void *object, const lade_history_options *options);
  const lade_history_options *(*history_options)(const void *object);
} ladei_inspect_part_ops;

/* NULL for an unknown kind. */
const ladei_inspect_part_ops *ladei_inspect_part_ops_of(uint32_t kind);
/* Refuses a kind that is not there and an object that is NULL; `index` is its place in the caller's array. */
lade_status ladei_inspect_part_check(const char *call, size_t index, const lade_part *part);
/* The part's name, or its kind and number, written to `room`. */
const char *ladei_inspect_part_name(const lade_part *part, size_t index, char room[64]);

extern const ladei_inspect_part_ops ladei_inspect_part_device;
extern const ladei_inspect_part_ops ladei_inspect_part_pinned;
extern const ladei_inspect_part_ops ladei_inspect_part_pipeline;

#endif /* LADE_INSPECT_PART_H */
