/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The object of a lade_snapshot: tables, filled by the calls that take or read a snapshot, and constant afterwards.
 *
 *   parts --> segments --> blocks --.
 *     |                             +--> stacks --> frames --> modules
 *     '-----> events ---------------'         every name: a text, by number
 *
 * S1  Rows of parts, segments and blocks are ranges: those of one part follow each other, and those of the parts do.
 * S2  The blocks of a segment cover it, in the order of addresses; segments of a part do not overlap and ascend.
 * S3  Every index is below the count of its table, or LADEI_SNAPSHOT_NONE where the field may have none.
 * S4  Text 0 is "". Texts and stacks are interned: equal ones have one number. Texts are UTF-8 without NUL.
 * S5  Sums of a segment are those of its blocks.
 * Threads: one while it is filled; then any, since nothing changes but `named`.
 */
#ifndef LADE_INSPECT_SNAPSHOT_H
#define LADE_INSPECT_SNAPSHOT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "inspect/rows.h"

/* A table that grows. Its rows are zeroed memory of malloc(). */
#define LADEI_INSPECT_TABLE(type)                                                                                      \
  struct {                                                                                                             \
    type *rows;                                                                                                        \
    size_t count, room;                                                                                                \
  }

/* Open addressing: numbers + 1 of texts or stacks, 0 for a free place. */
typedef struct ladei_inspect_index {
  uint32_t *places;
  size_t room; /* power of two, or 0 */
  size_t used;
} ladei_inspect_index;

struct lade_snapshot {
  LADEI_INSPECT_TABLE(ladei_snapshot_part) parts;
  LADEI_INSPECT_TABLE(ladei_snapshot_segment) segments;
  LADEI_INSPECT_TABLE(ladei_snapshot_block) blocks;
  LADEI_INSPECT_TABLE(ladei_snapshot_event) events;
  LADEI_INSPECT_TABLE(ladei_snapshot_stack) stacks;
  LADEI_INSPECT_TABLE(ladei_snapshot_frame) frames;
  LADEI_INSPECT_TABLE(ladei_snapshot_module) modules;
  LADEI_INSPECT_TABLE(ladei_snapshot_counter) counters;
  LADEI_INSPECT_TABLE(ladei_snapshot_setting) settings;
  LADEI_INSPECT_TABLE(char) characters;     /* of all texts, each with its NUL */
  LADEI_INSPECT_TABLE(size_t) text_offsets; /* of each text in them */
  ladei_inspect_index text_index;
  ladei_inspect_index stack_index;
  uint64_t time_ns;
  uint64_t process_id;
  char command[32], host[72];          /* of a process of this machine; "": not known */
  bool is_own;                         /* taken here: its modules are files of this machine */
  bool keeps_addresses;                /* and yet it is written without names */
  struct lade_snapshot *_Atomic named; /* symbols.h; NULL: not needed yet */
};

/* The names of the process and of this machine. */
void ladei_inspect_process_name(lade_snapshot *snapshot, uint64_t process_id);

/* An empty snapshot. LADE_ERR_OUT_OF_HOST_MEMORY. lade_snapshot_destroy() frees it, filled or not. */
lade_status ladei_inspect_create(lade_snapshot **out);

/* Frees a snapshot made by symbols.h: it owns its texts, stacks and frames, all else is another's. NULL is allowed. */
void ladei_inspect_named_destroy(lade_snapshot *named);

/* A new row, zero; NULL, with the error recorded (LADE_ERR_OUT_OF_HOST_MEMORY, or LADE_ERR_LIMIT beyond 2^32 - 2 rows).
 * Valid until the next row of the table. */
#define LADEI_INSPECT_ADD(table)                                                                                       \
  ((__typeof__((table)->rows))ladei_inspect_add((void **)&(table)->rows, &(table)->count, &(table)->room,              \
                                                sizeof *(table)->rows))
void *ladei_inspect_add(void **rows, size_t *count, size_t *room, size_t row_bytes);
/* Room for `more` rows at once. Errors as above. */
#define LADEI_INSPECT_RESERVE(table, more)                                                                             \
  ladei_inspect_reserve((void **)&(table)->rows, (table)->count, &(table)->room, sizeof *(table)->rows, more)
lade_status ladei_inspect_reserve(void **rows, size_t count, size_t *room, size_t row_bytes, size_t more);

/* The number of a text; invalid UTF-8, and NUL, become '?'. NULL is "". */
lade_status ladei_inspect_text(lade_snapshot *snapshot, const char *text, uint32_t *out);
lade_status ladei_inspect_text_bytes(lade_snapshot *snapshot, const char *text, size_t bytes, uint32_t *out);

/* The number of a stack; LADEI_SNAPSHOT_NONE for one without frames. */
lade_status ladei_inspect_stack(lade_snapshot *snapshot, const ladei_snapshot_frame *frames, size_t count,
                                uint32_t *out);

lade_status ladei_inspect_counter(lade_snapshot *snapshot, const char *key, int64_t value); /* of the last part */
/* The same of the snapshot that `user` is: a lade_stat_visit. */
lade_status ladei_inspect_counter_visit(const char *key, int64_t value, void *user);
lade_status ladei_inspect_integer(lade_snapshot *snapshot, const char *key, int64_t value); /* settings of it */
lade_status ladei_inspect_bool(lade_snapshot *snapshot, const char *key, bool value);
lade_status ladei_inspect_real(lade_snapshot *snapshot, const char *key, double value);
lade_status ladei_inspect_setting_text(lade_snapshot *snapshot, const char *key, const char *value);

/* A new part: its rows are those added to the tables from now on, until the next part or ladei_inspect_finish(). */
lade_status ladei_inspect_part_begin(lade_snapshot *snapshot, lade_part_kind kind, int device, const char *name);
ladei_snapshot_part *ladei_inspect_part(lade_snapshot *snapshot); /* the last one; NULL before the first */

/* Sets counts of ranges and sums of segments (S1, S5). Then checks S1 to S3, for tables read from a file:
 * LADE_ERR_INVALID_ARGUMENT names the row and its error. */
lade_status ladei_inspect_finish(lade_snapshot *snapshot);

/* Names of numbers, in their order; NULL after the last. */
extern const char *const ladei_inspect_actions[]; /* lade_device_action */
extern const char *const ladei_inspect_states[];  /* lade_device_block_state */
extern const char *const ladei_inspect_kinds[];   /* lade_part_kind, from 1 on */
/* "part" and "?" for numbers that are none. */
const char *ladei_inspect_kind_name(uint32_t kind);
const char *ladei_inspect_action_name(uint32_t action);

/* A counter of a part by its key; `otherwise` where it has none. */
int64_t ladei_inspect_counter_find(const lade_snapshot *snapshot, uint32_t part, const char *key, int64_t otherwise);

static inline const char *ladei_inspect_string(const lade_snapshot *snapshot, uint32_t text) {
  return text < snapshot->text_offsets.count ? snapshot->characters.rows + snapshot->text_offsets.rows[text] : "";
}

#endif /* LADE_INSPECT_SNAPSHOT_H */
