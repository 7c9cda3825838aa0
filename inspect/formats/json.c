/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer of JSON. Rows stand in columns, which take a fifth of the size of objects; streams and ids of pools, of which
 * there are few, are numbered in tables of their own.
 *
 * J1  Strings are escaped so that the text may stand in a script of a page (base/output.h).
 * J2  Values that may be 2^53 or more, and are no counts or sizes, are texts: addresses, streams, pools, times.
 */
#include "inspect/formats/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/error.h"
#include "inspect/formats/json_columns.h"
#include "inspect/pair_map.h"

typedef struct json {
  ladei_output *output;
  const lade_snapshot *snapshot;
  ladei_pair_numbers streams, pools;
} json;

/* --- numbering ---------------------------------------------------------------------------------------------------------- */

static lade_status both_add(json *to, uint64_t stream, lade_device_pool_id pool) {
  LADEI_TRY(ladei_pair_numbers_add(&to->streams, (lade_device_pool_id){stream, 0}));
  return ladei_pair_numbers_add(&to->pools, pool);
}

/* Stream 0 and the default pools are number 0, as in a column that is left out. */
static lade_status numbers_make(json *to) {
  const lade_snapshot *snapshot = to->snapshot;
  LADEI_TRY(both_add(to, 0, (lade_device_pool_id){0, 0}));
  for (size_t i = 0; i < snapshot->segments.count; i++)
    LADEI_TRY(both_add(to, snapshot->segments.rows[i].stream, snapshot->segments.rows[i].pool));
  for (size_t i = 0; i < snapshot->events.count; i++)
    LADEI_TRY(both_add(to, snapshot->events.rows[i].stream, snapshot->events.rows[i].pool));
  return LADE_OK;
}

/* --- values ------------------------------------------------------------------------------------------------------------- */

static void text(json *to, const char *characters) { ladei_output_text(to->output, characters); }

static void hex(json *to, uint64_t value) {
  static const char digits[] = "0123456789abcdef";
  unsigned count = value == 0 ? 1 : (67 - (unsigned)__builtin_clzll(value)) / 4;
  assert(count <= 16);
  char *at = ladei_output_room(to->output, 20);
  at[0] = '"';
  at[1] = '0';
  at[2] = 'x';
  for (unsigned i = 0; i < count; i++) at[2 + count - i] = digits[value >> (4 * i) & 15];
  at[3 + count] = '"';
  to->output->used += count + 4;
}

static void quoted(json *to, uint64_t value) {
  ladei_output_byte(to->output, '"');
  ladei_output_uint(to->output, value);
  ladei_output_byte(to->output, '"');
}

/* With a point or an exponent, by which a reader tells it from an integer. If JSON has no such number: one that is too
 * great for a double, or null. */
static void real(json *to, double value) {
  char number[40];
  if (!isfinite(value)) {
    text(to, isnan(value) ? "null" : value > 0 ? "1e999" : "-1e999");
    return;
  }
  ladei_decimal_print(number, sizeof number, "%.17g", value);
  text(to, number);
  if (strpbrk(number, ".e") == NULL) text(to, ".0");
}

/* Opens a member; `first` is '{' for the first one of an object, otherwise ','. */
static void member(json *to, char first, const char *name) {
  ladei_output_byte(to->output, first);
  ladei_output_json(to->output, name);
  ladei_output_byte(to->output, ':');
}

static void member_uint(json *to, char first, const char *name, uint64_t value) {
  member(to, first, name);
  ladei_output_uint(to->output, value);
}

static void member_quoted(json *to, char first, const char *name, uint64_t value) {
  member(to, first, name);
  quoted(to, value);
}

static void member_text(json *to, char first, const char *name, const char *value) {
  member(to, first, name);
  ladei_output_json(to->output, value);
}

static void names_write(json *to, const char *name, const char *const *names) {
  member(to, ',', name);
  for (size_t i = 0; names[i] != NULL; i++) {
    ladei_output_byte(to->output, i == 0 ? '[' : ',');
    ladei_output_json(to->output, names[i]);
  }
  ladei_output_byte(to->output, ']');
}

/* --- tables ------------------------------------------------------------------------------------------------------------- */

typedef struct rows {
  const char *first;
  size_t count, row_bytes;
} rows;

static uint64_t cell(json *to, const ladei_json_column *column, const char *row) {
  lade_device_pool_id pair = {0, 0};
  if (column->form == LADEI_JSON_POOL) {
    memcpy(&pair, row + column->offset, sizeof pair);
    return ladei_pair_number(&to->pools, pair);
  }
  pair.first = ladei_json_field(column, row);
  return column->form == LADEI_JSON_STREAM ? ladei_pair_number(&to->streams, pair) : pair.first;
}

static bool column_is_needed(json *to, const ladei_json_column *column, const rows *table) {
  if (column->always) return true;
  for (size_t i = 0; i < table->count; i++)
    if (cell(to, column, table->first + i * table->row_bytes) != column->otherwise) return true;
  return false;
}

static void cell_write(json *to, const ladei_json_column *column, uint64_t value) {
  switch (column->form) {
  case LADEI_JSON_HEX: hex(to, value); break;
  case LADEI_JSON_INT: ladei_output_int(to->output, (int32_t)(uint32_t)value); break;
  case LADEI_JSON_INDEX: ladei_output_int(to->output, value == LADEI_SNAPSHOT_NONE ? -1 : (int64_t)value); break;
  default: ladei_output_uint(to->output, value); break;
  }
}

static void column_write(json *to, const ladei_json_column *column, const rows *table) {
  uint64_t before = 0;
  ladei_output_byte(to->output, '[');
  for (size_t i = 0; i < table->count; i++) {
    uint64_t value = cell(to, column, table->first + i * table->row_bytes);
    if (i > 0) ladei_output_byte(to->output, ',');
    if (column->form == LADEI_JSON_ELAPSED)
      ladei_output_int(to->output, i == 0 ? 0 : (int64_t)(value - before));
    else
      cell_write(to, column, value);
    before = value;
  }
  ladei_output_byte(to->output, ']');
}

/* An object with its columns. */
static void table_write(json *to, const char *name, const ladei_json_column *columns, rows table) {
  char between = '{';
  member(to, ',', name);
  if (columns == ladei_json_event_columns) {
    uint64_t first = table.count == 0 ? 0 : ((const ladei_snapshot_event *)(const void *)table.first)->time_ns;
    member_quoted(to, between, "first_time_ns", first);
    between = ',';
  }
  for (const ladei_json_column *column = columns; column->name != NULL; column++) {
    if (!column_is_needed(to, column, &table)) continue;
    member(to, between, column->name);
    column_write(to, column, &table);
    between = ',';
  }
  text(to, "}\n");
}

#define ROWS(table, begin, number)                                                                                     \
  (rows) { (number) == 0 ? NULL : (const char *)((table)->rows + (begin)), (size_t)(number), sizeof *(table)->rows }

/* --- the whole ---------------------------------------------------------------------------------------------------------- */

static void numberings_write(json *to) {
  member(to, ',', "streams");
  for (size_t i = 0; i < to->streams.pairs.count; i++) {
    ladei_output_byte(to->output, i == 0 ? '[' : ',');
    hex(to, to->streams.pairs.rows[i].first);
  }
  text(to, "]");
  member(to, ',', "pools");
  for (size_t i = 0; i < to->pools.pairs.count; i++) {
    text(to, i == 0 ? "[[" : ",[");
    hex(to, to->pools.pairs.rows[i].first);
    text(to, ",");
    hex(to, to->pools.pairs.rows[i].second);
    text(to, "]");
  }
  text(to, "]\n");
}

static void texts_write(json *to) {
  member(to, ',', "texts");
  for (size_t i = 0; i < to->snapshot->text_offsets.count; i++) {
    ladei_output_byte(to->output, i == 0 ? '[' : ',');
    ladei_output_json(to->output, ladei_inspect_string(to->snapshot, (uint32_t)i));
  }
  text(to, "]\n");
}

static void counters_write(json *to, const ladei_snapshot_part *part) {
  member(to, ',', "counters");
  for (uint64_t i = 0; i < part->counter_count; i++) {
    const ladei_snapshot_counter *counter = &to->snapshot->counters.rows[part->first_counter + i];
    member(to, i == 0 ? '{' : ',', ladei_inspect_string(to->snapshot, counter->key));
    ladei_output_int(to->output, counter->value);
  }
  text(to, part->counter_count == 0 ? "{}" : "}");
}

static void setting_write(json *to, const ladei_snapshot_setting *setting) {
  switch (setting->kind) {
  case LADEI_SNAPSHOT_SETTING_BOOL: text(to, setting->integer != 0 ? "true" : "false"); break;
  case LADEI_SNAPSHOT_SETTING_REAL: real(to, setting->real); break;
  case LADEI_SNAPSHOT_SETTING_TEXT:
    ladei_output_json(to->output, ladei_inspect_string(to->snapshot, setting->text));
    break;
  default: ladei_output_int(to->output, setting->integer); break;
  }
}

static void settings_write(json *to, const ladei_snapshot_part *part) {
  member(to, ',', "settings");
  for (uint64_t i = 0; i < part->setting_count; i++) {
    const ladei_snapshot_setting *setting = &to->snapshot->settings.rows[part->first_setting + i];
    member(to, i == 0 ? '{' : ',', ladei_inspect_string(to->snapshot, setting->key));
    setting_write(to, setting);
  }
  text(to, part->setting_count == 0 ? "{}" : "}");
}

static void part_write(json *to, const ladei_snapshot_part *part) {
  const lade_snapshot *snapshot = to->snapshot;
  member_text(to, '{', "kind", ladei_inspect_kind_name(part->kind));
  member(to, ',', "device");
  ladei_output_int(to->output, part->device);
  member_text(to, ',', "name", ladei_inspect_string(snapshot, part->name));
  member(to, ',', "history");
  text(to, part->events != 0 ? "true" : "false");
  member_quoted(to, ',', "time_ns", part->time_ns);
  member_uint(to, ',', "skew_ns", part->skew_ns);
  member_uint(to, ',', "capacity_bytes", part->capacity_bytes);
  member_uint(to, ',', "max_entries", part->max_entries);
  member_uint(to, ',', "lost_count", part->lost_count);
  counters_write(to, part);
  settings_write(to, part);
  table_write(to, "segments", ladei_json_segment_columns,
              ROWS(&snapshot->segments, part->first_segment, part->segment_count));
  table_write(to, "blocks", ladei_json_block_columns, ROWS(&snapshot->blocks, part->first_block, part->block_count));
  table_write(to, "events", ladei_json_event_columns, ROWS(&snapshot->events, part->first_event, part->event_count));
  text(to, "}");
}

static void snapshot_write(json *to) {
  const lade_snapshot *snapshot = to->snapshot;
  member_text(to, '{', "format", "lade-snapshot");
  member_uint(to, ',', "version", 1);
  member_quoted(to, ',', "time_ns", snapshot->time_ns);
  member_uint(to, ',', "process_id", snapshot->process_id);
  names_write(to, "actions", ladei_inspect_actions);
  names_write(to, "states", ladei_inspect_states);
  numberings_write(to);
  texts_write(to);
  table_write(to, "modules", ladei_json_module_columns, ROWS(&snapshot->modules, 0, snapshot->modules.count));
  table_write(to, "stacks", ladei_json_stack_columns, ROWS(&snapshot->stacks, 0, snapshot->stacks.count));
  table_write(to, "frames", ladei_json_frame_columns, ROWS(&snapshot->frames, 0, snapshot->frames.count));
  member(to, ',', "parts");
  text(to, "[");
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    if (i > 0) text(to, ",");
    part_write(to, &snapshot->parts.rows[i]);
  }
  text(to, "]}\n");
}

lade_status ladei_inspect_write_json(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                     ladei_output *output) {
  (void)options;
  json to = {.output = output, .snapshot = snapshot};
  lade_status status = numbers_make(&to);
  if (status == LADE_OK) snapshot_write(&to);
  ladei_pair_numbers_clear(&to.streams);
  ladei_pair_numbers_clear(&to.pools);
  return status;
}
