/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of JSON: values go from the text into rows. Members may come in any order, so that numbers of texts, stacks,
 * streams and pools stay as they are in the file until its end, and become those of the snapshot then.
 *
 * R1  Rows take less than 8 x the file and 64 MiB: columns that are left out make rows of few bytes.
 * R2  Members beyond the schema are passed by.
 */
#include "inspect/formats/json_read.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/decimal.h"
#include "base/error.h"
#include "inspect/formats/json_columns.h"
#include "inspect/formats/json_parser.h"

enum { VERSION = 1, MOST_COLUMNS = 16, MOST_DEVICE = 1023, MOST_PARTS = 1000, MEMORY_FACTOR = 8 };
static const size_t memory_at_least = 64u << 20;

typedef struct reader {
  ladei_json_parser parser;
  lade_snapshot *snapshot;
  size_t row_bytes; /* R1 */
  char *room;       /* for texts without their escapes */
  size_t room_bytes;
  bool is_snapshot;
  uint64_t version;
  uint64_t first_time_ns;              /* of the events that are read */
  LADEI_INSPECT_TABLE(uint32_t) texts; /* number in the snapshot */
  LADEI_INSPECT_TABLE(uint64_t) streams;
  LADEI_INSPECT_TABLE(lade_device_pool_id) pools;
  LADEI_INSPECT_TABLE(ladei_snapshot_frame) frames;
  LADEI_INSPECT_TABLE(ladei_snapshot_stack) stacks;
  LADEI_INSPECT_TABLE(uint32_t) stack_numbers; /* in the snapshot */
} reader;

typedef ladei_json_token token;

/* A member of an object, and the reader of its value, whose first token is given. */
typedef struct field {
  const char *name;
  lade_status (*read)(reader *from, const token *value);
} field;

static lade_status refuse(const reader *from, const char *what) { return ladei_json_refuse(&from->parser, "%s", what); }

static lade_status no_memory(const reader *from, size_t bytes) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", from->parser.name, bytes);
}

static lade_status next(reader *from, token *out) { return ladei_json_next(&from->parser, out); }

/* R1 */
static lade_status row_memory(reader *from, size_t bytes) {
  size_t size = from->parser.bytes;
  size_t most = size > (SIZE_MAX - memory_at_least) / MEMORY_FACTOR ? SIZE_MAX : size * MEMORY_FACTOR + memory_at_least;
  assert(from->row_bytes <= most); /* R1 */
  if (bytes > most - from->row_bytes)
    return ladei_error(LADE_ERR_LIMIT, 0, "%s: byte %zu: what it says so far takes more than %d x its size of memory",
                       from->parser.name, from->parser.token_at, MEMORY_FACTOR);
  from->row_bytes += bytes;
  return LADE_OK;
}

/* --- values ------------------------------------------------------------------------------------------------------------- */

/* The text of a string; valid until the next one. */
static lade_status characters(reader *from, const token *value, const char **out, size_t *out_bytes) {
  *out = value->text;
  *out_bytes = value->bytes;
  if (!value->escaped) return LADE_OK;
  if (!LADEI_ARRAY_ROOM(from->room, from->room_bytes, value->bytes)) return no_memory(from, value->bytes);
  *out_bytes = ladei_json_unescape(value, from->room);
  *out = from->room;
  return LADE_OK;
}

static lade_status text_of(reader *from, const token *value, uint32_t *out) {
  const char *text;
  size_t bytes;
  if (value->kind != LADEI_JSON_STRING && value->kind != LADEI_JSON_KEY) return refuse(from, "expected a text");
  LADEI_TRY(characters(from, value, &text, &bytes));
  LADEI_TRY(row_memory(from, bytes));
  return ladei_inspect_text_bytes(from->snapshot, text, bytes, out);
}

static lade_status uint_of(reader *from, const token *value, uint64_t most, uint64_t *out) {
  if (!ladei_json_uint(value, out) || *out > most) return refuse(from, "expected a whole number, and none too great");
  return LADE_OK;
}

static lade_status int_of(reader *from, const token *value, int64_t least, int64_t most, int64_t *out) {
  if (!ladei_json_int(value, out) || *out < least || *out > most)
    return refuse(from, "expected a whole number in its range");
  return LADE_OK;
}

/* "0x7f00": 1 to 16 digits. */
static lade_status hex_of(reader *from, const token *value, uint64_t *out) {
  bool right = value->kind == LADEI_JSON_STRING && value->bytes > 2 && value->bytes <= 18 && value->text[0] == '0' &&
               value->text[1] == 'x';
  *out = 0;
  for (size_t i = 2; right && i < value->bytes; i++) {
    char c = value->text[i];
    unsigned digit = c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 16;
    right = digit < 16;
    *out = *out << 4 | digit;
  }
  return right ? LADE_OK : refuse(from, "expected a text such as \"0x7f00\"");
}

/* "1700000000000000000" */
static lade_status quoted_of(reader *from, const token *value, uint64_t *out) {
  token digits = {.kind = LADEI_JSON_INTEGER, .text = value->text, .bytes = value->bytes};
  bool right = value->kind == LADEI_JSON_STRING && value->bytes > 0;
  for (size_t i = 0; right && i < value->bytes; i++) right = value->text[i] >= '0' && value->text[i] <= '9';
  return right && ladei_json_uint(&digits, out) ? LADE_OK : refuse(from, "expected nanoseconds in quotes");
}

static lade_status real_of(reader *from, const token *value, double *out) {
  char number[320];
  if (value->bytes >= sizeof number) return refuse(from, "a number of more than 319 characters");
  memcpy(number, value->text, value->bytes);
  number[value->bytes] = '\0';
  *out = ladei_decimal_read(number);
  return LADE_OK;
}

/* --- structure ---------------------------------------------------------------------------------------------------------- */

static lade_status expect(reader *from, const token *value, ladei_json_kind kind, const char *what) {
  return value->kind == kind ? LADE_OK : refuse(from, what);
}

static const field *field_find(const field *fields, const token *key) {
  for (; fields->name != NULL; fields++)
    if (ladei_json_is(key, fields->name, strlen(fields->name))) return fields;
  return NULL;
}

/* The members of an object: known ones are read, others passed by. R2 */
static lade_status object_read(reader *from, const token *value, const field *fields) {
  token key, inner;
  LADEI_TRY(expect(from, value, LADEI_JSON_OBJECT_BEGIN, "expected an object"));
  while (true) {
    LADEI_TRY(next(from, &key));
    if (key.kind == LADEI_JSON_OBJECT_END) return LADE_OK;
    const field *known = field_find(fields, &key);
    LADEI_TRY(next(from, &inner));
    LADEI_TRY(known != NULL ? known->read(from, &inner) : ladei_json_skip(&from->parser, &inner));
  }
}

/* Calls `read` with the first token of each element. */
static lade_status array_read(reader *from, const token *value, lade_status (*read)(reader *, const token *)) {
  token inner;
  LADEI_TRY(expect(from, value, LADEI_JSON_ARRAY_BEGIN, "expected an array"));
  while (true) {
    LADEI_TRY(next(from, &inner));
    if (inner.kind == LADEI_JSON_ARRAY_END) return LADE_OK;
    LADEI_TRY(read(from, &inner));
  }
}

/* --- tables ------------------------------------------------------------------------------------------------------------- */

typedef struct table {
  const ladei_json_column *columns;
  size_t row_bytes;
  void *(*add)(reader *from);
  void *(*at)(reader *from, size_t row);
  size_t (*count)(const reader *from);
} table;

#define TABLE(name, rows_of, row_columns)                                                                              \
  static void *name##_add(reader *from) { return LADEI_INSPECT_ADD(&from->rows_of); }                                  \
  static void *name##_at(reader *from, size_t row) { return &from->rows_of.rows[row]; }                                \
  static size_t name##_count(const reader *from) { return from->rows_of.count; }                                       \
  static const table name##_table = {row_columns, sizeof *((reader *)NULL)->rows_of.rows, name##_add, name##_at,       \
                                     name##_count};
TABLE(segment, snapshot->segments, ladei_json_segment_columns)
TABLE(block, snapshot->blocks, ladei_json_block_columns)
TABLE(event, snapshot->events, ladei_json_event_columns)
TABLE(module, snapshot->modules, ladei_json_module_columns)
TABLE(stack, stacks, ladei_json_stack_columns)
TABLE(frame, frames, ladei_json_frame_columns)

static lade_status cell_of(reader *from, const ladei_json_column *column, const token *value, uint64_t *out) {
  int64_t number = 0;
  switch (column->form) {
  case LADEI_JSON_HEX: return hex_of(from, value, out);
  case LADEI_JSON_INT: LADEI_TRY(int_of(from, value, INT32_MIN, INT32_MAX, &number)); break;
  case LADEI_JSON_INDEX: LADEI_TRY(int_of(from, value, -1, UINT32_MAX - 1, &number)); break;
  case LADEI_JSON_ELAPSED: LADEI_TRY(int_of(from, value, INT64_MIN, INT64_MAX, &number)); break;
  case LADEI_JSON_UINT: return uint_of(from, value, column->bytes == 4 ? UINT32_MAX : UINT64_MAX, out);
  default: return uint_of(from, value, UINT32_MAX - 1, out);
  }
  *out = (uint64_t)number;
  return LADE_OK;
}

static lade_status row_add(reader *from, const table *to) {
  LADEI_TRY(row_memory(from, to->row_bytes));
  void *row = to->add(from);
  if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  for (const ladei_json_column *column = to->columns; column->name != NULL; column++)
    ladei_json_field_set(column, row, column->otherwise);
  return LADE_OK;
}

static lade_status column_read(reader *from, const table *to, const ladei_json_column *column, size_t first,
                               size_t *out_count) {
  token value;
  *out_count = 0;
  while (true) {
    uint64_t cell = 0;
    LADEI_TRY(next(from, &value));
    if (value.kind == LADEI_JSON_ARRAY_END) return LADE_OK;
    LADEI_TRY(cell_of(from, column, &value, &cell));
    if (first + *out_count == to->count(from)) LADEI_TRY(row_add(from, to));
    ladei_json_field_set(column, to->at(from, first + *out_count), cell);
    ++*out_count;
  }
}

static lade_status first_time_read(reader *from, const token *value) {
  return quoted_of(from, value, &from->first_time_ns);
}

static const ladei_json_column *column_find(const table *to, const token *key) {
  for (const ladei_json_column *column = to->columns; column->name != NULL; column++)
    if (ladei_json_is(key, column->name, strlen(column->name))) return column;
  return NULL;
}

/* One member of a table: a column, or a member that is passed by. */
static lade_status table_member_read(reader *from, const table *to, const token *key, size_t first,
                                     size_t counts[MOST_COLUMNS]) {
  token value;
  const ladei_json_column *column = column_find(to, key);
  bool first_time = to == &event_table && ladei_json_is(key, "first_time_ns", strlen("first_time_ns"));
  LADEI_TRY(next(from, &value));
  if (first_time) return first_time_read(from, &value);
  if (column == NULL) return ladei_json_skip(&from->parser, &value);
  LADEI_TRY(expect(from, &value, LADEI_JSON_ARRAY_BEGIN, "expected a column: an array"));
  return column_read(from, to, column, first, &counts[column - to->columns]);
}

static lade_status columns_check(reader *from, const table *to, size_t rows, const size_t counts[MOST_COLUMNS]) {
  for (const ladei_json_column *column = to->columns; column->name != NULL; column++) {
    size_t count = counts[column - to->columns];
    if (count != rows && (count != SIZE_MAX || (column->always && rows > 0)))
      return ladei_json_refuse(&from->parser, "column '%s' does not have the %zu rows of another", column->name, rows);
  }
  return LADE_OK;
}

static lade_status table_read(reader *from, const token *value, const table *to) {
  size_t counts[MOST_COLUMNS], first = to->count(from);
  token key;
  for (size_t i = 0; i < MOST_COLUMNS; i++) counts[i] = SIZE_MAX; /* not there */
  LADEI_TRY(expect(from, value, LADEI_JSON_OBJECT_BEGIN, "expected a table: an object of columns"));
  while (true) {
    LADEI_TRY(next(from, &key));
    if (key.kind == LADEI_JSON_OBJECT_END) return columns_check(from, to, to->count(from) - first, counts);
    LADEI_TRY(table_member_read(from, to, &key, first, counts));
  }
}

/* --- members of a part -------------------------------------------------------------------------------------------------- */

static ladei_snapshot_part *part(reader *from) { return ladei_inspect_part(from->snapshot); }

static lade_status kind_read(reader *from, const token *value) {
  for (uint32_t i = 0; ladei_inspect_kinds[i] != NULL; i++) {
    if (value->kind != LADEI_JSON_STRING ||
        !ladei_json_is(value, ladei_inspect_kinds[i], strlen(ladei_inspect_kinds[i])))
      continue;
    part(from)->kind = LADE_PART_DEVICE + i;
    return LADE_OK;
  }
  return refuse(from, "expected \"device\", \"pinned\" or \"pipeline\"");
}

static lade_status device_read(reader *from, const token *value) {
  int64_t device = 0;
  LADEI_TRY(int_of(from, value, -1, MOST_DEVICE, &device));
  part(from)->device = (int32_t)device;
  return LADE_OK;
}

static lade_status name_read(reader *from, const token *value) {
  uint32_t name = 0;
  LADEI_TRY(text_of(from, value, &name));
  part(from)->name = name;
  return LADE_OK;
}

static lade_status history_read(reader *from, const token *value) {
  if (value->kind != LADEI_JSON_TRUE && value->kind != LADEI_JSON_FALSE) return refuse(from, "expected true or false");
  part(from)->events = value->kind == LADEI_JSON_TRUE;
  return LADE_OK;
}

static lade_status part_time_read(reader *from, const token *value) {
  return quoted_of(from, value, &part(from)->time_ns);
}
static lade_status skew_read(reader *from, const token *value) {
  return uint_of(from, value, UINT64_MAX, &part(from)->skew_ns);
}
static lade_status capacity_read(reader *from, const token *value) {
  return uint_of(from, value, UINT64_MAX, &part(from)->capacity_bytes);
}
static lade_status max_entries_read(reader *from, const token *value) {
  return uint_of(from, value, UINT64_MAX, &part(from)->max_entries);
}
static lade_status lost_read(reader *from, const token *value) {
  return uint_of(from, value, UINT64_MAX, &part(from)->lost_count);
}

static lade_status counter_add(reader *from, uint32_t key, const token *value) {
  int64_t number = 0;
  LADEI_TRY(int_of(from, value, INT64_MIN, INT64_MAX, &number));
  LADEI_TRY(row_memory(from, sizeof(ladei_snapshot_counter)));
  ladei_snapshot_counter *counter = LADEI_INSPECT_ADD(&from->snapshot->counters);
  if (counter == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *counter = (ladei_snapshot_counter){.value = number, .key = key, .part = (uint32_t)(from->snapshot->parts.count - 1)};
  return LADE_OK;
}

static lade_status setting_of(reader *from, const token *value, ladei_snapshot_setting *out) {
  switch (value->kind) {
  case LADEI_JSON_TRUE:
  case LADEI_JSON_FALSE:
    out->kind = LADEI_SNAPSHOT_SETTING_BOOL;
    out->integer = value->kind == LADEI_JSON_TRUE;
    return LADE_OK;
  case LADEI_JSON_INTEGER:
    out->kind = LADEI_SNAPSHOT_SETTING_INTEGER;
    return int_of(from, value, INT64_MIN, INT64_MAX, &out->integer);
  case LADEI_JSON_REAL: out->kind = LADEI_SNAPSHOT_SETTING_REAL; return real_of(from, value, &out->real);
  case LADEI_JSON_NULL:
    out->kind = LADEI_SNAPSHOT_SETTING_REAL;
    out->real = NAN;
    return LADE_OK;
  default: out->kind = LADEI_SNAPSHOT_SETTING_TEXT; return text_of(from, value, &out->text);
  }
}

static lade_status setting_add(reader *from, uint32_t key, const token *value) {
  ladei_snapshot_setting setting = {.key = key, .part = (uint32_t)(from->snapshot->parts.count - 1)};
  LADEI_TRY(setting_of(from, value, &setting));
  LADEI_TRY(row_memory(from, sizeof setting));
  ladei_snapshot_setting *row = LADEI_INSPECT_ADD(&from->snapshot->settings);
  if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *row = setting;
  return LADE_OK;
}

/* An object whose keys are names. */
static lade_status named_read(reader *from, const token *value, lade_status (*add)(reader *, uint32_t, const token *)) {
  token key, inner;
  LADEI_TRY(expect(from, value, LADEI_JSON_OBJECT_BEGIN, "expected an object"));
  while (true) {
    uint32_t name = 0;
    LADEI_TRY(next(from, &key));
    if (key.kind == LADEI_JSON_OBJECT_END) return LADE_OK;
    LADEI_TRY(text_of(from, &key, &name));
    LADEI_TRY(next(from, &inner));
    LADEI_TRY(add(from, name, &inner));
  }
}

static lade_status counters_read(reader *from, const token *value) { return named_read(from, value, counter_add); }
static lade_status settings_read(reader *from, const token *value) { return named_read(from, value, setting_add); }
static lade_status segments_read(reader *from, const token *value) { return table_read(from, value, &segment_table); }
static lade_status blocks_read(reader *from, const token *value) { return table_read(from, value, &block_table); }

static lade_status events_read(reader *from, const token *value) {
  size_t first = from->snapshot->events.count;
  from->first_time_ns = 0;
  LADEI_TRY(table_read(from, value, &event_table));
  uint64_t time_ns = from->first_time_ns;
  for (size_t i = first; i < from->snapshot->events.count; i++) {
    time_ns += from->snapshot->events.rows[i].time_ns;
    from->snapshot->events.rows[i].time_ns = time_ns;
  }
  return LADE_OK;
}

/* Places of segments' blocks, which the file says in counts and sizes. */
static lade_status blocks_place(reader *from) {
  lade_snapshot *snapshot = from->snapshot;
  size_t at = part(from)->first_block;
  for (size_t i = part(from)->first_segment; i < snapshot->segments.count; i++) {
    ladei_snapshot_segment *segment = &snapshot->segments.rows[i];
    uint64_t address = segment->address;
    if (segment->block_count > snapshot->blocks.count - at)
      return refuse(from, "a segment has more blocks than its part");
    segment->first_block = at;
    for (uint64_t b = 0; b < segment->block_count; b++, at++) {
      snapshot->blocks.rows[at].address = address;
      address += snapshot->blocks.rows[at].bytes;
    }
  }
  return LADE_OK;
}

static lade_status part_read(reader *from, const token *value) {
  static const field fields[] = {{"kind", kind_read},
                                 {"device", device_read},
                                 {"name", name_read},
                                 {"history", history_read},
                                 {"time_ns", part_time_read},
                                 {"skew_ns", skew_read},
                                 {"capacity_bytes", capacity_read},
                                 {"max_entries", max_entries_read},
                                 {"lost_count", lost_read},
                                 {"counters", counters_read},
                                 {"settings", settings_read},
                                 {"segments", segments_read},
                                 {"blocks", blocks_read},
                                 {"events", events_read},
                                 {NULL, NULL}};
  if (from->snapshot->parts.count == MOST_PARTS) return refuse(from, "more than 1,000 parts");
  LADEI_TRY(ladei_inspect_part_begin(from->snapshot, LADE_PART_DEVICE, -1, ""));
  LADEI_TRY(object_read(from, value, fields));
  return blocks_place(from);
}

/* --- members of the whole ------------------------------------------------------------------------------------------------- */

static lade_status format_read(reader *from, const token *value) {
  from->is_snapshot =
      value->kind == LADEI_JSON_STRING && ladei_json_is(value, "lade-snapshot", strlen("lade-snapshot"));
  return from->is_snapshot ? LADE_OK : refuse(from, "expected \"lade-snapshot\"");
}

static lade_status version_read(reader *from, const token *value) {
  LADEI_TRY(uint_of(from, value, UINT64_MAX, &from->version));
  if (from->version == VERSION) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: byte %zu: version %" PRIu64 "; this library reads version %d",
                     from->parser.name, from->parser.token_at, from->version, VERSION);
}

static lade_status time_read(reader *from, const token *value) {
  return quoted_of(from, value, &from->snapshot->time_ns);
}
static lade_status process_read(reader *from, const token *value) {
  return uint_of(from, value, UINT64_MAX, &from->snapshot->process_id);
}

static lade_status stream_read(reader *from, const token *value) {
  LADEI_TRY(row_memory(from, sizeof *from->streams.rows));
  uint64_t *stream = LADEI_INSPECT_ADD(&from->streams);
  return stream == NULL ? LADE_ERR_OUT_OF_HOST_MEMORY : hex_of(from, value, stream);
}

/* ["0x1","0x2"] */
static lade_status pool_read(reader *from, const token *value) {
  token inner;
  LADEI_TRY(row_memory(from, sizeof *from->pools.rows));
  lade_device_pool_id *pool = LADEI_INSPECT_ADD(&from->pools);
  if (pool == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  LADEI_TRY(expect(from, value, LADEI_JSON_ARRAY_BEGIN, "expected a pair"));
  LADEI_TRY(next(from, &inner));
  LADEI_TRY(hex_of(from, &inner, &pool->first));
  LADEI_TRY(next(from, &inner));
  LADEI_TRY(hex_of(from, &inner, &pool->second));
  LADEI_TRY(next(from, &inner));
  return expect(from, &inner, LADEI_JSON_ARRAY_END, "expected a pair");
}

static lade_status text_read(reader *from, const token *value) {
  uint32_t text = 0;
  LADEI_TRY(row_memory(from, sizeof *from->texts.rows));
  LADEI_TRY(text_of(from, value, &text));
  uint32_t *number = LADEI_INSPECT_ADD(&from->texts);
  if (number == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *number = text;
  return LADE_OK;
}

static lade_status streams_read(reader *from, const token *value) { return array_read(from, value, stream_read); }
static lade_status pools_read(reader *from, const token *value) { return array_read(from, value, pool_read); }
static lade_status texts_read(reader *from, const token *value) { return array_read(from, value, text_read); }
static lade_status parts_read(reader *from, const token *value) { return array_read(from, value, part_read); }
static lade_status modules_read(reader *from, const token *value) { return table_read(from, value, &module_table); }
static lade_status stacks_read(reader *from, const token *value) { return table_read(from, value, &stack_table); }
static lade_status frames_read(reader *from, const token *value) { return table_read(from, value, &frame_table); }

static lade_status whole_read(reader *from) {
  static const field fields[] = {{"format", format_read},   {"version", version_read},    {"time_ns", time_read},
                                 {"streams", streams_read}, {"process_id", process_read}, {"pools", pools_read},
                                 {"texts", texts_read},     {"modules", modules_read},    {"stacks", stacks_read},
                                 {"frames", frames_read},   {"parts", parts_read},        {NULL, NULL}};
  token value;
  LADEI_TRY(next(from, &value));
  LADEI_TRY(object_read(from, &value, fields));
  LADEI_TRY(next(from, &value)); /* LADEI_JSON_END */
  if (!from->is_snapshot || from->version != VERSION)
    return refuse(from, "is no snapshot: it has no \"format\":\"lade-snapshot\" or no version");
  return LADE_OK;
}

/* --- numbers of the file to numbers of the snapshot ----------------------------------------------------------------------- */

/* A number that is left out is 0. */
static bool number_is_there(uint64_t number, size_t count) { return number < count || number == 0; }

static bool cell_resolve(const reader *from, const ladei_json_column *column, const table *of, void *row) {
  uint64_t number = ladei_json_field(column, row);
  lade_device_pool_id pool = {0, 0};
  switch (column->form) {
  case LADEI_JSON_TEXT:
    if (number < from->texts.count) ladei_json_field_set(column, row, from->texts.rows[number]);
    return number_is_there(number, from->texts.count);
  case LADEI_JSON_STREAM:
    if (number < from->streams.count) ladei_json_field_set(column, row, from->streams.rows[number]);
    return number_is_there(number, from->streams.count);
  case LADEI_JSON_POOL:
    if (number < from->pools.count) pool = from->pools.rows[number];
    memcpy((char *)row + column->offset, &pool, sizeof pool);
    return number_is_there(number, from->pools.count);
  case LADEI_JSON_INDEX:
    if (number == LADEI_SNAPSHOT_NONE) return true;
    if (of == &frame_table) return number < from->snapshot->modules.count;
    if (number < from->stack_numbers.count) ladei_json_field_set(column, row, from->stack_numbers.rows[number]);
    return number < from->stack_numbers.count;
  default: return true;
  }
}

static lade_status table_resolve(reader *from, const table *of, const char *name) {
  for (size_t i = 0; i < of->count(from); i++)
    for (const ladei_json_column *column = of->columns; column->name != NULL; column++)
      if (!cell_resolve(from, column, of, of->at(from, i)))
        return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: row %zu of all %s: its %s is not there",
                           from->parser.name, i, name, column->name);
  return LADE_OK;
}

static lade_status stacks_resolve(reader *from) {
  size_t first = 0;
  for (size_t i = 0; i < from->stacks.count; i++) {
    uint64_t count = from->stacks.rows[i].frame_count;
    if (count > from->frames.count - first) return refuse(from, "the stacks have more frames than there are");
    LADEI_TRY(row_memory(from, sizeof(uint32_t) + (size_t)count * sizeof(ladei_snapshot_frame)));
    uint32_t *number = LADEI_INSPECT_ADD(&from->stack_numbers);
    if (number == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    const ladei_snapshot_frame *frames = count == 0 ? NULL : from->frames.rows + first;
    LADEI_TRY(ladei_inspect_stack(from->snapshot, frames, (size_t)count, number));
    first += (size_t)count;
  }
  return first == from->frames.count ? LADE_OK : refuse(from, "the stacks have fewer frames than there are");
}

/* An action of a later version is an annotation. */
static void actions_settle(lade_snapshot *snapshot) {
  size_t known = 0;
  while (ladei_inspect_actions[known] != NULL) known++;
  for (size_t i = 0; i < snapshot->events.count; i++)
    if (snapshot->events.rows[i].action >= known) snapshot->events.rows[i].action = LADE_DEVICE_USER_DEFINED;
}

static lade_status numbers_resolve(reader *from) {
  LADEI_TRY(table_resolve(from, &module_table, "modules"));
  LADEI_TRY(table_resolve(from, &frame_table, "frames"));
  LADEI_TRY(stacks_resolve(from));
  LADEI_TRY(table_resolve(from, &segment_table, "segments"));
  LADEI_TRY(table_resolve(from, &block_table, "blocks"));
  LADEI_TRY(table_resolve(from, &event_table, "events"));
  actions_settle(from->snapshot);
  lade_status status = ladei_inspect_finish(from->snapshot);
  return status == LADE_OK ? status : ladei_error_prefix(status, "%s: ", from->parser.name);
}

static void dispose(reader *from) {
  free(from->room);
  free(from->texts.rows);
  free(from->streams.rows);
  free(from->pools.rows);
  free(from->frames.rows);
  free(from->stacks.rows);
  free(from->stack_numbers.rows);
}

lade_status ladei_inspect_read_json(const void *data, size_t bytes, const char *name, lade_snapshot **out) {
  reader from = {.version = 0};
  ladei_json_parser_init(&from.parser, data, bytes, name);
  LADEI_TRY(ladei_inspect_create(&from.snapshot));
  lade_status status = whole_read(&from);
  if (status == LADE_OK) status = numbers_resolve(&from);
  dispose(&from);
  if (status == LADE_OK)
    *out = from.snapshot;
  else
    lade_snapshot_destroy(from.snapshot);
  return status;
}
