/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a snapshot's JSON: the column and form of each field of a row. For its writer and its reader. */
#ifndef LADE_INSPECT_FORMATS_JSON_COLUMNS_H
#define LADE_INSPECT_FORMATS_JSON_COLUMNS_H

#include <string.h>

#include "inspect/snapshot.h"

typedef enum ladei_json_form {
  LADEI_JSON_UINT,
  LADEI_JSON_INT,
  LADEI_JSON_HEX,    /* text "0x..." */
  LADEI_JSON_INDEX,  /* of another table; -1: none */
  LADEI_JSON_TEXT,   /* number of a text */
  LADEI_JSON_STREAM, /* number of a stream */
  LADEI_JSON_POOL,   /* number of a pool's id */
  LADEI_JSON_ELAPSED /* difference to the row before */
} ladei_json_form;

/* A column all of whose values are `otherwise` is left out, unless it is `always` there. */
typedef struct ladei_json_column {
  const char *name;
  uint16_t offset, bytes; /* of the field: 4 or 8; a pool's id: 16 */
  uint16_t form;          /* ladei_json_form */
  bool always;
  uint64_t otherwise;
} ladei_json_column;

/* Columns end at a name of NULL. */
extern const ladei_json_column ladei_json_segment_columns[];
extern const ladei_json_column ladei_json_block_columns[];
extern const ladei_json_column ladei_json_event_columns[];
extern const ladei_json_column ladei_json_stack_columns[];
extern const ladei_json_column ladei_json_frame_columns[];
extern const ladei_json_column ladei_json_module_columns[];

static inline uint64_t ladei_json_field(const ladei_json_column *column, const void *row) {
  const char *field = (const char *)row + column->offset;
  uint32_t small;
  uint64_t large;
  if (column->bytes == sizeof small) {
    memcpy(&small, field, sizeof small);
    return small;
  }
  memcpy(&large, field, sizeof large);
  return large;
}

static inline void ladei_json_field_set(const ladei_json_column *column, void *row, uint64_t value) {
  char *field = (char *)row + column->offset;
  uint32_t small = (uint32_t)value;
  if (column->bytes == sizeof small)
    memcpy(field, &small, sizeof small);
  else
    memcpy(field, &value, sizeof value);
}

#endif /* LADE_INSPECT_FORMATS_JSON_COLUMNS_H */
