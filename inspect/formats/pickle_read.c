/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the rows that the machine has folded to a snapshot: which part each belongs to.
 *
 *   with the map `lade`   its parts say how many segments and events each takes of the lists, in their order
 *   without               a part for each device that has any, and one for pinned memory
 *
 * Events stay where they were folded if they are there in the order of the parts, which is so unless a file has its
 * lists in another order; they are the bulk of a file.
 */
#include "inspect/formats/pickle_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "inspect/formats/pickle_reader.h"

enum { MOST_DEVICE = 1023, MOST_PARTS = 1000, OWN_VERSION = 1 };

/* Where the reading of a list of rows is. */
typedef struct cursor {
  uint32_t run;  /* index + 1; 0: at the end */
  uint32_t used; /* rows of it */
} cursor;

/* Events of a part. */
typedef struct piece {
  uint32_t part;
  uint32_t first, count;
} piece;

typedef LADEI_INSPECT_TABLE(uint32_t) row_numbers;

typedef struct assembly {
  ladei_pickle_reader *reader;
  lade_snapshot *snapshot;
  const ladei_pickle_value *top; /* NULL: the file is a list of segments */
  row_numbers segments;          /* rows, in the order of the file */
  row_numbers hosts;
  row_numbers notes;
  LADEI_INSPECT_TABLE(cursor) traces; /* of each ordinal */
  LADEI_INSPECT_TABLE(piece) pieces;
  cursor host_trace;
  size_t segment_at, host_at; /* number of them that the parts have taken */
} assembly;

static lade_status refuse(const assembly *all, const char *what) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: %s", all->reader->name, what);
}

static lade_status refuse_part(const assembly *all, size_t part, const char *what) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: lade: part %zu: %s", all->reader->name, part, what);
}

/* --- lists of rows ------------------------------------------------------------------------------------------------------ */

static lade_status list_begin(const assembly *all, const ladei_pickle_value *list, const char *name, cursor *out) {
  *out = (cursor){0, 0};
  if (list == NULL || list->tag == LADEI_PICKLE_NONE) return LADE_OK;
  if (list->tag != LADEI_PICKLE_LIST)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: %s is no list", all->reader->name, name);
  out->run = all->reader->lists.rows[list->integer].first_run;
  return LADE_OK;
}

/* At most `most` rows that follow each other; false: the list has no more. */
static bool list_next(const assembly *all, cursor *at, uint32_t most, ladei_pickle_run *out) {
  if (at->run == 0) return false;
  const ladei_pickle_run *run = &all->reader->runs.rows[at->run - 1];
  uint32_t left = run->count - at->used;
  *out = (ladei_pickle_run){.kind = run->kind, .first = run->first + at->used, .count = left < most ? left : most};
  at->used += out->count;
  if (at->used == run->count) *at = (cursor){run->next, 0};
  return true;
}

/* All rows of a list of one kind. */
static lade_status rows_collect(assembly *all, const ladei_pickle_value *list, const char *name, ladei_pickle_kind kind,
                                row_numbers *rows) {
  cursor at;
  ladei_pickle_run run;
  LADEI_TRY(list_begin(all, list, name, &at));
  while (list_next(all, &at, UINT32_MAX, &run)) {
    if (run.kind != kind)
      return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: %s has an element that is none, or without its keys",
                         all->reader->name, name);
    LADEI_TRY(ladei_pickle_row_memory(all->reader, run.count * sizeof(uint32_t)));
    for (uint32_t i = 0; i < run.count; i++) {
      uint32_t *row = LADEI_INSPECT_ADD(rows);
      if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
      *row = run.first + i;
    }
  }
  return LADE_OK;
}

static lade_status trace_add(assembly *all, uint32_t list) {
  if (all->traces.count > MOST_DEVICE) return refuse(all, "device_traces has more than 1,024 lists");
  cursor *trace = LADEI_INSPECT_ADD(&all->traces);
  if (trace == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  trace->run = all->reader->lists.rows[list].first_run;
  return LADE_OK;
}

static lade_status traces_collect(assembly *all) {
  cursor at;
  ladei_pickle_run run;
  LADEI_TRY(
      list_begin(all, ladei_pickle_find(all->reader, all->top, LADEI_PICKLE_DEVICE_TRACES), "device_traces", &at));
  while (list_next(all, &at, 1, &run)) {
    if (run.kind != LADEI_PICKLE_KIND_LIST) return refuse(all, "device_traces has an element that is no list");
    LADEI_TRY(trace_add(all, run.first));
  }
  return list_begin(all, ladei_pickle_find(all->reader, all->top, LADEI_PICKLE_HOST_TRACES), "host_traces",
                    &all->host_trace);
}

/* --- events ------------------------------------------------------------------------------------------------------------- */

/* Gives a part the next events of a trace; UINT64_MAX: all. */
static lade_status events_take(assembly *all, cursor *trace, uint64_t count) {
  ladei_pickle_run run;
  uint32_t part = (uint32_t)(all->snapshot->parts.count - 1);
  bool wants_all = count == UINT64_MAX;
  while (count > 0 && list_next(all, trace, count > UINT32_MAX ? UINT32_MAX : (uint32_t)count, &run)) {
    if (run.kind != LADEI_PICKLE_KIND_EVENT) return refuse(all, "a trace has an element without the key 'action'");
    piece *added = LADEI_INSPECT_ADD(&all->pieces);
    if (added == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *added = (piece){.part = part, .first = run.first, .count = run.count};
    if (!wants_all) count -= run.count;
  }
  return wants_all || count == 0 ? LADE_OK : refuse_part(all, part, "fewer events are there than it says");
}

static bool events_in_place(const assembly *all) {
  uint32_t next = 0;
  for (size_t i = 0; i < all->pieces.count; i++) {
    if (all->pieces.rows[i].first != next) return false;
    next += all->pieces.rows[i].count;
  }
  return all->notes.count == 0;
}

/* The table changes hands. */
static void events_keep(assembly *all) {
  ladei_pickle_reader *reader = all->reader;
  all->snapshot->events.rows = reader->events.rows;
  all->snapshot->events.room = reader->events.room;
  reader->events.rows = NULL;
  reader->events.count = reader->events.room = 0;
  size_t first = 0, p = 0;
  for (size_t part = 0; part < all->snapshot->parts.count; part++) {
    all->snapshot->parts.rows[part].first_event = first;
    for (; p < all->pieces.count && all->pieces.rows[p].part == part; p++) first += all->pieces.rows[p].count;
    all->snapshot->parts.rows[part].event_count = first - all->snapshot->parts.rows[part].first_event;
  }
  all->snapshot->events.count = first;
}

static lade_status event_copy(assembly *all, const ladei_snapshot_event *event) {
  LADEI_TRY(ladei_pickle_row_memory(all->reader, sizeof *event));
  ladei_snapshot_event *copy = LADEI_INSPECT_ADD(&all->snapshot->events);
  if (copy == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *copy = *event;
  return LADE_OK;
}

static lade_status note_label(assembly *all, const ladei_pickle_note *note, uint32_t *out) {
  char text[512];
  *out = note->name;
  if (note->stage == 0) return LADE_OK;
  snprintf(text, sizeof text, "%s %s", ladei_inspect_string(all->snapshot, note->name),
           ladei_inspect_string(all->snapshot, note->stage));
  return ladei_inspect_text(all->snapshot, text, out);
}

/* Notes of a device up to a time, from the `at`-th of the sorted ones on. */
static lade_status notes_copy(assembly *all, int32_t device, uint64_t time_ns, size_t *at) {
  for (; *at < all->notes.count; ++*at) {
    const ladei_pickle_note *note = &all->reader->notes.rows[all->notes.rows[*at]];
    if (note->time_ns > time_ns) break;
    if (note->device != device) continue;
    ladei_snapshot_event event = {
        .time_ns = note->time_ns, .action = LADE_DEVICE_USER_DEFINED, .stack = LADEI_SNAPSHOT_NONE};
    LADEI_TRY(note_label(all, note, &event.label));
    LADEI_TRY(event_copy(all, &event));
  }
  return LADE_OK;
}

static lade_status part_events_copy(assembly *all, size_t part, size_t *piece_at) {
  ladei_snapshot_part *row = &all->snapshot->parts.rows[part];
  int32_t device = row->kind == LADE_PART_DEVICE ? row->device : -1;
  size_t note_at = 0;
  row->first_event = all->snapshot->events.count;
  for (; *piece_at < all->pieces.count && all->pieces.rows[*piece_at].part == part; ++*piece_at) {
    const piece *from = &all->pieces.rows[*piece_at];
    for (uint32_t i = 0; i < from->count; i++) {
      const ladei_snapshot_event *event = &all->reader->events.rows[from->first + i];
      LADEI_TRY(notes_copy(all, device, event->time_ns, &note_at));
      LADEI_TRY(event_copy(all, event));
    }
  }
  LADEI_TRY(notes_copy(all, device, UINT64_MAX, &note_at));
  row->event_count = all->snapshot->events.count - row->first_event;
  return LADE_OK;
}

static int note_compare(const void *a, const void *b, void *reader) {
  const ladei_pickle_note *rows = ((ladei_pickle_reader *)reader)->notes.rows;
  uint32_t in_a = *(const uint32_t *)a, in_b = *(const uint32_t *)b;
  if (rows[in_a].time_ns != rows[in_b].time_ns) return rows[in_a].time_ns < rows[in_b].time_ns ? -1 : 1;
  return in_a < in_b ? -1 : in_a > in_b;
}

static lade_status events_place(assembly *all) {
  size_t piece_at = 0;
  if (events_in_place(all)) {
    events_keep(all);
    return LADE_OK;
  }
  if (all->notes.count > 0) qsort_r(all->notes.rows, all->notes.count, sizeof(uint32_t), note_compare, all->reader);
  for (size_t part = 0; part < all->snapshot->parts.count; part++) LADEI_TRY(part_events_copy(all, part, &piece_at));
  return LADE_OK;
}

/* --- segments ------------------------------------------------------------------------------------------------------------- */

static lade_status block_add(assembly *all, const ladei_snapshot_block *from, uint64_t *address) {
  LADEI_TRY(ladei_pickle_row_memory(all->reader, sizeof *from));
  ladei_snapshot_block *block = LADEI_INSPECT_ADD(&all->snapshot->blocks);
  if (block == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *block = *from;
  block->reserved = 0;
  if ((from->reserved & LADEI_PICKLE_HAS_ADDRESS) == 0) block->address = *address;
  if ((from->reserved & LADEI_PICKLE_HAS_REQUESTED) == 0) block->requested_bytes = block->bytes;
  if (block->state == LADE_DEVICE_BLOCK_INACTIVE) block->requested_bytes = 0;
  *address = block->address + block->bytes;
  return LADE_OK;
}

static lade_status segment_add(assembly *all, const ladei_snapshot_segment *row, ladei_snapshot_segment **out) {
  LADEI_TRY(ladei_pickle_row_memory(all->reader, sizeof *row));
  ladei_snapshot_segment *segment = LADEI_INSPECT_ADD(&all->snapshot->segments);
  if (segment == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *segment = *row;
  segment->first_block = all->snapshot->blocks.count;
  *out = segment;
  return LADE_OK;
}

static lade_status device_segment_add(assembly *all, const ladei_pickle_segment *from) {
  ladei_snapshot_segment *segment;
  ladei_pickle_run run;
  uint64_t address = from->row.address;
  LADEI_TRY(segment_add(all, &from->row, &segment));
  cursor at = {from->blocks == 0 ? 0 : all->reader->lists.rows[from->blocks - 1].first_run, 0};
  while (list_next(all, &at, UINT32_MAX, &run)) {
    if (run.kind != LADEI_PICKLE_KIND_BLOCK)
      return refuse(all, "blocks of a segment: an element without the keys 'size' and 'state'");
    for (uint32_t i = 0; i < run.count; i++)
      LADEI_TRY(block_add(all, &all->reader->blocks.rows[run.first + i], &address));
  }
  segment->block_count = all->snapshot->blocks.count - segment->first_block;
  return LADE_OK;
}

static lade_status host_block_add(assembly *all, const ladei_pickle_host *host) {
  ladei_snapshot_block block = host->row;
  block.reserved |= LADEI_PICKLE_HAS_ADDRESS;
  block.state = host->allocated ? LADE_DEVICE_BLOCK_ALLOCATED
                : host->active  ? LADE_DEVICE_BLOCK_PENDING_FREE
                                : LADE_DEVICE_BLOCK_INACTIVE;
  return block_add(all, &block, &block.address);
}

/* --- maps ----------------------------------------------------------------------------------------------------------------- */

/* First item of a map, + 1; 0: it has none, or is none. */
static uint32_t map_first(const assembly *all, const ladei_pickle_value *map) {
  if (map == NULL || map->tag != LADEI_PICKLE_DICT) return 0;
  const ladei_pickle_dict *dict = &all->reader->dicts.rows[map->integer];
  return dict->kind == LADEI_PICKLE_KIND_MAP ? all->reader->maps.rows[dict->row].first_item : 0;
}

static lade_status counters_add(assembly *all, const ladei_pickle_value *map) {
  ladei_pickle_reader *reader = all->reader;
  for (uint32_t i = map_first(all, map); i != 0; i = reader->items.rows[i - 1].next) {
    const ladei_pickle_item *item = &reader->items.rows[i - 1];
    if (item->value.tag != LADEI_PICKLE_INT) continue;
    uint32_t key;
    LADEI_TRY(ladei_pickle_text(reader, &item->key, &key));
    ladei_snapshot_counter *counter = LADEI_INSPECT_ADD(&all->snapshot->counters);
    if (counter == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *counter = (ladei_snapshot_counter){
        .value = (int64_t)item->value.integer, .key = key, .part = (uint32_t)(all->snapshot->parts.count - 1)};
  }
  return LADE_OK;
}

/* Values that are no setting are left out. */
static lade_status setting_add(assembly *all, uint32_t key, const ladei_pickle_value *value) {
  static const uint32_t kinds[] = {[LADEI_PICKLE_BOOL] = LADEI_SNAPSHOT_SETTING_BOOL,
                                   [LADEI_PICKLE_INT] = LADEI_SNAPSHOT_SETTING_INTEGER,
                                   [LADEI_PICKLE_REAL] = LADEI_SNAPSHOT_SETTING_REAL,
                                   [LADEI_PICKLE_TEXT] = LADEI_SNAPSHOT_SETTING_TEXT,
                                   [LADEI_PICKLE_DICT] = 0};
  uint32_t text = 0;
  if (kinds[value->tag] == 0) return LADE_OK;
  if (value->tag == LADEI_PICKLE_TEXT) LADEI_TRY(ladei_pickle_text(all->reader, value, &text));
  ladei_snapshot_setting *setting = LADEI_INSPECT_ADD(&all->snapshot->settings);
  if (setting == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *setting = (ladei_snapshot_setting){
      .key = key, .kind = kinds[value->tag], .text = text, .part = (uint32_t)(all->snapshot->parts.count - 1)};
  if (value->tag == LADEI_PICKLE_REAL) setting->real = value->real;
  if (value->tag == LADEI_PICKLE_BOOL || value->tag == LADEI_PICKLE_INT) setting->integer = (int64_t)value->integer;
  return LADE_OK;
}

/* An entry of a map within the settings: "outer.inner". */
static lade_status nested_add(assembly *all, const ladei_pickle_value *outer, const ladei_pickle_item *inner) {
  enum { MOST = 255 };
  char key[2 * MOST + 2];
  const char *data = (const char *)all->reader->data;
  uint32_t number;
  if (outer->length > MOST || inner->key.length > MOST)
    return refuse(all, "a setting whose name is longer than 255 bytes");
  memcpy(key, data + outer->integer, outer->length);
  key[outer->length] = '.';
  memcpy(key + outer->length + 1, data + inner->key.integer, inner->key.length);
  LADEI_TRY(ladei_inspect_text_bytes(all->snapshot, key, outer->length + 1 + inner->key.length, &number));
  return setting_add(all, number, &inner->value);
}

static lade_status settings_add(assembly *all, const ladei_pickle_value *map) {
  ladei_pickle_reader *reader = all->reader;
  for (uint32_t i = map_first(all, map); i != 0; i = reader->items.rows[i - 1].next) {
    const ladei_pickle_item *item = &reader->items.rows[i - 1];
    uint32_t key, inner = map_first(all, &item->value);
    for (; inner != 0; inner = reader->items.rows[inner - 1].next)
      LADEI_TRY(nested_add(all, &item->key, &reader->items.rows[inner - 1]));
    if (item->key.word == LADEI_PICKLE_TRACE_ALLOC_OVERFLOWED || item->key.word == LADEI_PICKLE_TRACE_ALLOC_MAX_ENTRIES)
      continue;
    LADEI_TRY(ladei_pickle_text(reader, &item->key, &key));
    LADEI_TRY(setting_add(all, key, &item->value));
  }
  return LADE_OK;
}

/* An integer of a map; 0 where it has none. */
static uint64_t uint_of(const assembly *all, const ladei_pickle_value *map, ladei_pickle_word key) {
  const ladei_pickle_value *value = ladei_pickle_find(all->reader, map, key);
  bool number = value != NULL && (value->tag == LADEI_PICKLE_INT || value->tag == LADEI_PICKLE_BOOL);
  return number ? value->integer : 0;
}

static uint8_t word_of(const assembly *all, const ladei_pickle_value *map, ladei_pickle_word key) {
  const ladei_pickle_value *value = ladei_pickle_find(all->reader, map, key);
  return value != NULL && value->tag == LADEI_PICKLE_TEXT ? value->word : LADEI_PICKLE_WORD_COUNT;
}

static lade_status text_of(const assembly *all, const ladei_pickle_value *map, ladei_pickle_word key, uint32_t *out) {
  const ladei_pickle_value *value = ladei_pickle_find(all->reader, map, key);
  *out = 0;
  return value == NULL || value->tag != LADEI_PICKLE_TEXT ? LADE_OK : ladei_pickle_text(all->reader, value, out);
}

/* --- files of lade's ---------------------------------------------------------------------------------------------------- */

static lade_status module_add(assembly *all, const ladei_pickle_value *map) {
  ladei_snapshot_module module = {.base = uint_of(all, map, LADEI_PICKLE_BASE),
                                  .bytes = uint_of(all, map, LADEI_PICKLE_BYTES)};
  LADEI_TRY(text_of(all, map, LADEI_PICKLE_PATH, &module.path));
  LADEI_TRY(text_of(all, map, LADEI_PICKLE_BUILD_ID, &module.build_id));
  ladei_snapshot_module *row = LADEI_INSPECT_ADD(&all->snapshot->modules);
  if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *row = module;
  return LADE_OK;
}

/* Calls `use` with each map of a list. */
static lade_status maps_each(assembly *all, const ladei_pickle_value *list, const char *name,
                             lade_status (*use)(assembly *, const ladei_pickle_value *)) {
  cursor at;
  ladei_pickle_run run;
  LADEI_TRY(list_begin(all, list, name, &at));
  while (list_next(all, &at, 1, &run)) {
    if (run.kind != LADEI_PICKLE_KIND_MAP)
      return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: lade: %s has an element that is no map", all->reader->name,
                         name);
    /* ladei_pickle_find() takes the number of a map's record in `dicts`; the run has that in `maps`. */
    const ladei_pickle_dict dict = {.kind = run.kind, .row = run.first};
    ladei_pickle_dict *record = LADEI_INSPECT_ADD(&all->reader->dicts);
    if (record == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *record = dict;
    const ladei_pickle_value map = {.tag = LADEI_PICKLE_DICT, .integer = all->reader->dicts.count - 1};
    LADEI_TRY(use(all, &map));
  }
  return LADE_OK;
}

static lade_status own_segments_take(assembly *all, size_t part, uint64_t count) {
  ladei_snapshot_part *row = &all->snapshot->parts.rows[part];
  int32_t device = row->device < 0 ? 0 : row->device;
  if (count > all->segments.count - all->segment_at)
    return refuse_part(all, part, "fewer segments are there than it says");
  for (uint64_t i = 0; i < count; i++) {
    const ladei_pickle_segment *segment = &all->reader->segments.rows[all->segments.rows[all->segment_at++]];
    if (segment->device != device)
      return refuse_part(all, part, "a segment of another device is where its own should be");
    LADEI_TRY(device_segment_add(all, segment));
  }
  return LADE_OK;
}

static lade_status range_add(assembly *all, size_t part, const ladei_snapshot_segment *range) {
  ladei_snapshot_segment *segment;
  LADEI_TRY(segment_add(all, range, &segment));
  if (range->block_count > all->hosts.count - all->host_at)
    return refuse_part(all, part, "fewer host_segments are there than it says");
  for (uint64_t i = 0; i < range->block_count; i++)
    LADEI_TRY(host_block_add(all, &all->reader->hosts.rows[all->hosts.rows[all->host_at++]]));
  return LADE_OK;
}

static lade_status ranges_add(assembly *all, size_t part, const ladei_pickle_value *list) {
  cursor at;
  ladei_pickle_run run;
  LADEI_TRY(list_begin(all, list, "pinned_segments", &at));
  while (list_next(all, &at, UINT32_MAX, &run)) {
    if (run.kind != LADEI_PICKLE_KIND_RANGE)
      return refuse_part(all, part, "pinned_segments has an element that is none");
    for (uint32_t i = 0; i < run.count; i++) LADEI_TRY(range_add(all, part, &all->reader->ranges.rows[run.first + i]));
  }
  return LADE_OK;
}

static lade_status own_memory_take(assembly *all, const ladei_pickle_value *map) {
  size_t part = all->snapshot->parts.count - 1;
  const ladei_snapshot_part *row = &all->snapshot->parts.rows[part];
  uint64_t events = uint_of(all, map, LADEI_PICKLE_EVENT_COUNT);
  if (events > UINT32_MAX) return refuse_part(all, part, "more events than a file can have");
  if (row->kind != LADE_PART_DEVICE) {
    LADEI_TRY(ranges_add(all, part, ladei_pickle_find(all->reader, map, LADEI_PICKLE_PINNED_SEGMENTS)));
    return events_take(all, &all->host_trace, events);
  }
  LADEI_TRY(own_segments_take(all, part, uint_of(all, map, LADEI_PICKLE_SEGMENT_COUNT)));
  size_t device = row->device < 0 ? 0 : (size_t)row->device;
  cursor none = {0, 0};
  return events_take(all, device < all->traces.count ? &all->traces.rows[device] : &none, events);
}

static lade_status own_part_begin(assembly *all, const ladei_pickle_value *map) {
  size_t part = all->snapshot->parts.count;
  uint8_t kind = word_of(all, map, LADEI_PICKLE_KIND);
  int64_t device = (int64_t)uint_of(all, map, LADEI_PICKLE_DEVICE);
  uint32_t name;
  if (part == MOST_PARTS) return refuse(all, "lade: more than 1,000 parts");
  if (kind < LADEI_PICKLE_DEVICE || kind > LADEI_PICKLE_PIPELINE)
    return refuse_part(all, part, "its kind is none of device, pinned, pipeline");
  if (device < -1 || device > MOST_DEVICE) return refuse_part(all, part, "its device is not from -1 to 1023");
  LADEI_TRY(text_of(all, map, LADEI_PICKLE_NAME, &name));
  return ladei_inspect_part_begin(all->snapshot, (lade_part_kind)(kind - LADEI_PICKLE_DEVICE + LADE_PART_DEVICE),
                                  (int)device, ladei_inspect_string(all->snapshot, name));
}

static lade_status own_part_add(assembly *all, const ladei_pickle_value *map) {
  LADEI_TRY(own_part_begin(all, map));
  ladei_snapshot_part *part = ladei_inspect_part(all->snapshot);
  part->events = uint_of(all, map, LADEI_PICKLE_HISTORY_ON) != 0;
  part->lost_count = uint_of(all, map, LADEI_PICKLE_LOST_COUNT);
  part->capacity_bytes = uint_of(all, map, LADEI_PICKLE_CAPACITY_BYTES);
  part->max_entries = uint_of(all, map, LADEI_PICKLE_MAX_ENTRIES);
  part->time_ns = uint_of(all, map, LADEI_PICKLE_TIME_NS);
  part->skew_ns = uint_of(all, map, LADEI_PICKLE_SKEW_NS);
  LADEI_TRY(counters_add(all, ladei_pickle_find(all->reader, map, LADEI_PICKLE_COUNTERS)));
  LADEI_TRY(settings_add(all, ladei_pickle_find(all->reader, map, LADEI_PICKLE_SETTINGS)));
  return own_memory_take(all, map);
}

static lade_status own_assemble(assembly *all, const ladei_pickle_value *own) {
  if (uint_of(all, own, LADEI_PICKLE_VERSION) != OWN_VERSION)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: lade: version %" PRIu64 "; this library reads version %d",
                       all->reader->name, uint_of(all, own, LADEI_PICKLE_VERSION), OWN_VERSION);
  all->snapshot->time_ns = uint_of(all, own, LADEI_PICKLE_TIME_NS);
  all->snapshot->process_id = uint_of(all, own, LADEI_PICKLE_PROCESS_ID);
  LADEI_TRY(maps_each(all, ladei_pickle_find(all->reader, own, LADEI_PICKLE_MODULES), "modules", module_add));
  return maps_each(all, ladei_pickle_find(all->reader, own, LADEI_PICKLE_PARTS), "parts", own_part_add);
}

/* --- files of others ---------------------------------------------------------------------------------------------------- */

static int segment_compare(const void *a, const void *b, void *reader) {
  const ladei_pickle_segment *rows = ((ladei_pickle_reader *)reader)->segments.rows;
  uint32_t in_a = *(const uint32_t *)a, in_b = *(const uint32_t *)b;
  const ladei_pickle_segment *of_a = &rows[in_a], *of_b = &rows[in_b];
  if (of_a->device != of_b->device) return of_a->device < of_b->device ? -1 : 1;
  if (of_a->row.address != of_b->row.address) return of_a->row.address < of_b->row.address ? -1 : 1;
  return in_a < in_b ? -1 : in_a > in_b;
}

static int host_compare(const void *a, const void *b, void *reader) {
  const ladei_pickle_host *rows = ((ladei_pickle_reader *)reader)->hosts.rows;
  uint32_t in_a = *(const uint32_t *)a, in_b = *(const uint32_t *)b;
  if (rows[in_a].row.address != rows[in_b].row.address) return rows[in_a].row.address < rows[in_b].row.address ? -1 : 1;
  return in_a < in_b ? -1 : in_a > in_b;
}

static uint64_t latest_time(const assembly *all) {
  uint64_t latest = 0;
  for (size_t i = 0; i < all->reader->events.count; i++)
    if (all->reader->events.rows[i].time_ns > latest) latest = all->reader->events.rows[i].time_ns;
  return latest;
}

static lade_status other_part_begin(assembly *all, lade_part_kind kind, int device, uint64_t time_ns) {
  char name[32];
  snprintf(name, sizeof name, kind == LADE_PART_DEVICE ? "device %d" : "pinned 0", device);
  LADEI_TRY(ladei_inspect_part_begin(all->snapshot, kind, device, name));
  ladei_inspect_part(all->snapshot)->time_ns = time_ns;
  return LADE_OK;
}

static lade_status other_device_add(assembly *all, int device, uint64_t time_ns, const ladei_pickle_value **settings) {
  cursor none = {0, 0};
  cursor *trace = (size_t)device < all->traces.count ? &all->traces.rows[device] : &none;
  LADEI_TRY(other_part_begin(all, LADE_PART_DEVICE, device, time_ns));
  ladei_snapshot_part *part = ladei_inspect_part(all->snapshot);
  part->events = trace->run != 0;
  if (*settings != NULL) {
    part->max_entries = uint_of(all, *settings, LADEI_PICKLE_TRACE_ALLOC_MAX_ENTRIES);
    part->lost_count = uint_of(all, *settings, LADEI_PICKLE_TRACE_ALLOC_OVERFLOWED);
    LADEI_TRY(settings_add(all, *settings));
    *settings = NULL;
  }
  for (; all->segment_at < all->segments.count; all->segment_at++) {
    const ladei_pickle_segment *segment = &all->reader->segments.rows[all->segments.rows[all->segment_at]];
    if (segment->device != device) break;
    LADEI_TRY(device_segment_add(all, segment));
  }
  return events_take(all, trace, UINT64_MAX);
}

/* PyTorch splits no pinned segment: each is one block. */
static lade_status other_pinned_add(assembly *all, uint64_t time_ns) {
  LADEI_TRY(other_part_begin(all, LADE_PART_PINNED, -1, time_ns));
  ladei_inspect_part(all->snapshot)->events = all->host_trace.run != 0;
  if (all->hosts.count > 0) qsort_r(all->hosts.rows, all->hosts.count, sizeof(uint32_t), host_compare, all->reader);
  for (size_t i = 0; i < all->hosts.count; i++) {
    const ladei_pickle_host *host = &all->reader->hosts.rows[all->hosts.rows[i]];
    const ladei_snapshot_segment row = {.address = host->row.address,
                                        .total_bytes = host->row.bytes,
                                        .pool = host->pool,
                                        .block_count = 1,
                                        .stack = host->row.stack,
                                        .numa_node = -1};
    ladei_snapshot_segment *segment;
    LADEI_TRY(segment_add(all, &row, &segment));
    LADEI_TRY(host_block_add(all, host));
  }
  return events_take(all, &all->host_trace, UINT64_MAX);
}

static bool device_has_rows(const assembly *all, int64_t device) {
  bool trace = (size_t)device < all->traces.count && all->traces.rows[device].run != 0;
  bool segments = all->segment_at < all->segments.count &&
                  all->reader->segments.rows[all->segments.rows[all->segment_at]].device == device;
  return trace || segments;
}

static lade_status devices_check(const assembly *all) {
  for (size_t i = 0; i < all->segments.count; i++) {
    int64_t device = all->reader->segments.rows[all->segments.rows[i]].device;
    if (device < 0 || device > MOST_DEVICE)
      return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: a segment of device %" PRId64 "; expected 0 to %d",
                         all->reader->name, device, MOST_DEVICE);
  }
  return LADE_OK;
}

static lade_status other_assemble(assembly *all) {
  const ladei_pickle_value *settings = ladei_pickle_find(all->reader, all->top, LADEI_PICKLE_ALLOCATOR_SETTINGS);
  const ladei_pickle_value *notes = ladei_pickle_find(all->reader, all->top, LADEI_PICKLE_EXTERNAL_ANNOTATIONS);
  uint64_t time_ns = latest_time(all);
  all->snapshot->time_ns = time_ns;
  LADEI_TRY(devices_check(all));
  LADEI_TRY(rows_collect(all, notes, "external_annotations", LADEI_PICKLE_KIND_NOTE, &all->notes));
  if (all->segments.count > 0)
    qsort_r(all->segments.rows, all->segments.count, sizeof(uint32_t), segment_compare, all->reader);
  for (int device = 0; device <= MOST_DEVICE; device++)
    if (device_has_rows(all, device)) LADEI_TRY(other_device_add(all, device, time_ns, &settings));
  if (all->hosts.count > 0 || all->host_trace.run != 0) LADEI_TRY(other_pinned_add(all, time_ns));
  bool empty = all->snapshot->parts.count == 0; /* a snapshot nevertheless, with settings perhaps */
  return empty ? other_device_add(all, 0, time_ns, &settings) : LADE_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------------- */

/* Frames name modules that the file has. */
static lade_status frames_check(const assembly *all) {
  for (size_t i = 0; i < all->snapshot->frames.count; i++) {
    uint32_t module = all->snapshot->frames.rows[i].module;
    if (module != LADEI_SNAPSHOT_NONE && module >= all->snapshot->modules.count)
      return refuse(all, "a frame names a module that is not there");
  }
  return LADE_OK;
}

static lade_status top_find(assembly *all, const ladei_pickle_value *result, const ladei_pickle_value **segments) {
  *segments = result;
  if (result->tag == LADEI_PICKLE_LIST) return LADE_OK; /* of segments */
  all->top = result;
  *segments = ladei_pickle_find(all->reader, result, LADEI_PICKLE_SEGMENTS);
  if (*segments != NULL || ladei_pickle_find(all->reader, result, LADEI_PICKLE_DEVICE_TRACES) != NULL) return LADE_OK;
  return refuse(all, "is no snapshot: it has neither 'segments' nor 'device_traces'");
}

static lade_status assemble(assembly *all, const ladei_pickle_value *result) {
  const ladei_pickle_value *segments;
  LADEI_TRY(top_find(all, result, &segments));
  LADEI_TRY(rows_collect(all, segments, "segments", LADEI_PICKLE_KIND_SEGMENT, &all->segments));
  LADEI_TRY(rows_collect(all, ladei_pickle_find(all->reader, all->top, LADEI_PICKLE_HOST_SEGMENTS), "host_segments",
                         LADEI_PICKLE_KIND_HOST, &all->hosts));
  LADEI_TRY(traces_collect(all));
  const ladei_pickle_value *own = ladei_pickle_find(all->reader, all->top, LADEI_PICKLE_LADE);
  LADEI_TRY(own != NULL ? own_assemble(all, own) : other_assemble(all));
  LADEI_TRY(frames_check(all));
  LADEI_TRY(events_place(all));
  lade_status status = ladei_inspect_finish(all->snapshot);
  return status == LADE_OK ? status : ladei_error_prefix(status, "%s: ", all->reader->name);
}

static lade_status pickle_read(ladei_pickle_reader *reader) {
  ladei_pickle_value result;
  LADEI_TRY(ladei_pickle_run_all(reader, &result));
  assembly all = {.reader = reader, .snapshot = reader->snapshot};
  lade_status status = assemble(&all, &result);
  free(all.segments.rows);
  free(all.hosts.rows);
  free(all.notes.rows);
  free(all.traces.rows);
  free(all.pieces.rows);
  return status;
}

lade_status ladei_inspect_read_pickle(const void *data, size_t bytes, const char *name, lade_snapshot **out) {
  ladei_pickle_reader *reader = calloc(1, sizeof *reader);
  if (reader == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory to read it", name);
  reader->data = data;
  reader->bytes = bytes;
  reader->name = name;
  lade_status status = ladei_inspect_create(&reader->snapshot);
  if (status == LADE_OK) status = pickle_read(reader);
  if (status == LADE_OK)
    *out = reader->snapshot;
  else
    lade_snapshot_destroy(reader->snapshot);
  ladei_pickle_reader_dispose(reader);
  free(reader);
  return status;
}
