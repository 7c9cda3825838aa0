/* SPDX-License-Identifier: Apache-2.0 */
/* Folds maps into rows, and lists into runs of rows. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "inspect/formats/pickle_reader.h"

#include <assert.h>

typedef struct fold {
  ladei_pickle_reader *reader;
  const ladei_pickle_value *value; /* of the key */
  unsigned key;                    /* ladei_pickle_word */
} fold;

/* --- values ----------------------------------------------------------------------------------------------------------- */

static const char *const tag_names[] = {"None",   "a bool", "an integer", "a real",
                                        "a text", "a pair", "a list",     "a map"};

static const char *const words[] = {LADEI_PICKLE_WORDS(LADEI_PICKLE_WORD_TEXT)};

static lade_status refuse_value(const fold *at, const char *expected) {
  return ladei_pickle_refuse(at->reader, "key '%s' is %s; expected %s", words[at->key], tag_names[at->value->tag],
                             expected);
}

static lade_status uint_of(const fold *at, uint64_t *out) {
  if (at->value->tag != LADEI_PICKLE_INT) return refuse_value(at, "an integer");
  *out = at->value->integer;
  return LADE_OK;
}

/* Sizes and counts: no sign. */
static lade_status size_of(const fold *at, uint64_t *out) {
  LADEI_TRY(uint_of(at, out));
  if ((int64_t)*out >= 0 || at->value->length != 0) return LADE_OK;
  return ladei_pickle_refuse(at->reader, "key '%s' is %" PRId64 "; expected a size", words[at->key], (int64_t)*out);
}

static lade_status time_of(const fold *at, uint64_t *out) {
  LADEI_TRY(size_of(at, out));
  if (*out > UINT64_MAX / 1000) return refuse_value(at, "microseconds since 1970");
  *out *= 1000;
  return LADE_OK;
}

static lade_status int_of(const fold *at, int64_t *out) {
  uint64_t value = 0;
  LADEI_TRY(uint_of(at, &value));
  if (at->value->length != 0) return refuse_value(at, "one below 2^63");
  *out = (int64_t)value;
  return LADE_OK;
}

static lade_status bool_of(const fold *at, bool *out) {
  if (at->value->tag != LADEI_PICKLE_BOOL && at->value->tag != LADEI_PICKLE_INT) return refuse_value(at, "a bool");
  *out = at->value->integer != 0;
  return LADE_OK;
}

static lade_status pool_of(const fold *at, lade_device_pool_id *out) {
  if (at->value->tag != LADEI_PICKLE_PAIR) return refuse_value(at, "a pair of integers");
  assert(at->value->integer < at->reader->pairs.count); /* M1 */
  *out = at->reader->pairs.rows[at->value->integer];
  return LADE_OK;
}

static lade_status list_of(const fold *at, uint64_t *out) {
  if (at->value->tag != LADEI_PICKLE_LIST) return refuse_value(at, "a list");
  assert(at->value->integer < at->reader->lists.count); /* M1 */
  *out = at->value->integer;
  return LADE_OK;
}

lade_status ladei_pickle_text(ladei_pickle_reader *reader, const ladei_pickle_value *value, uint32_t *out) {
  if (value->length == 0) {
    *out = 0;
    return LADE_OK;
  }
  assert(value->integer <= reader->bytes && value->length <= reader->bytes - value->integer); /* M1: of the file */
  uint64_t offset = value->integer + 1;
  size_t place = (size_t)(offset * 0x9E3779B97F4A7C15u >> 52);
  if (reader->text_cache[place].offset != offset) {
    LADEI_TRY(ladei_pickle_row_memory(reader, 16));
    LADEI_TRY(ladei_inspect_text_bytes(reader->snapshot, (const char *)reader->data + value->integer, value->length,
                                       &reader->text_cache[place].text));
    reader->text_cache[place].offset = offset;
  }
  *out = reader->text_cache[place].text;
  return LADE_OK;
}

static lade_status text_of(const fold *at, uint32_t *out) {
  if (at->value->tag != LADEI_PICKLE_TEXT) return refuse_value(at, "a text");
  return ladei_pickle_text(at->reader, at->value, out);
}

/* --- stacks ----------------------------------------------------------------------------------------------------------- */

static lade_status stack_frame_add(ladei_pickle_reader *reader, const ladei_pickle_frame *from) {
  ladei_snapshot_frame *to = LADEI_INSPECT_ADD(&reader->stack_frames);
  if (to == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *to = from->row;
  if (from->unnamed & 1) to->file = 0;
  if (from->unnamed & 2) to->function = 0;
  return LADE_OK;
}

static lade_status list_stack(const fold *at, ladei_pickle_list *list) {
  ladei_pickle_reader *reader = at->reader;
  assert(!list->used); /* M3 */
  reader->stack_frames.count = 0;
  for (uint32_t r = list->first_run; r != 0; r = reader->runs.rows[r - 1].next) {
    const ladei_pickle_run *run = &reader->runs.rows[r - 1];
    if (run->kind != LADEI_PICKLE_KIND_FRAME) return refuse_value(at, "a list of frames");
    assert(run->first < reader->frames.count && run->count <= reader->frames.count - run->first); /* M1 */
    LADEI_TRY(ladei_pickle_row_memory(reader, run->count * sizeof *reader->stack_frames.rows));
    for (uint32_t i = 0; i < run->count; i++) LADEI_TRY(stack_frame_add(reader, &reader->frames.rows[run->first + i]));
  }
  LADEI_TRY(ladei_inspect_stack(reader->snapshot, reader->stack_frames.rows, reader->stack_frames.count, &list->stack));
  list->used = 1; /* M3 */
  return LADE_OK;
}

static lade_status stack_of(const fold *at, uint32_t *out) {
  uint64_t number = 0;
  LADEI_TRY(list_of(at, &number));
  ladei_pickle_list *list = &at->reader->lists.rows[number];
  if (!list->used) LADEI_TRY(list_stack(at, list));
  *out = list->stack;
  return LADE_OK;
}

/* --- rows ------------------------------------------------------------------------------------------------------------- */

/* An action that is not known, of a later version, is an annotation with its name. */
static lade_status action_of(const fold *at, ladei_snapshot_event *event) {
  unsigned word = at->value->word;
  if (at->value->tag != LADEI_PICKLE_TEXT) return refuse_value(at, "a text");
  if (word == LADEI_PICKLE_FREE) word = LADEI_PICKLE_FREE_COMPLETED;
  event->action = LADE_DEVICE_USER_DEFINED;
  if (word < LADEI_PICKLE_ALLOC || word > LADEI_PICKLE_ANNOTATE) return text_of(at, &event->label);
  event->action = word - LADEI_PICKLE_ALLOC;
  return LADE_OK;
}

static lade_status event_set(const fold *at, uint32_t row) {
  ladei_snapshot_event *event = &at->reader->events.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_ACTION: return action_of(at, event);
  case LADEI_PICKLE_ADDR:
  case LADEI_PICKLE_DEVICE_FREE: return uint_of(at, &event->address);
  case LADEI_PICKLE_SIZE: return size_of(at, &event->bytes);
  case LADEI_PICKLE_STREAM: return uint_of(at, &event->stream);
  case LADEI_PICKLE_TIME_US: return time_of(at, &event->time_ns);
  case LADEI_PICKLE_FRAMES: return stack_of(at, &event->stack);
  case LADEI_PICKLE_POOL_ID: return pool_of(at, &event->pool);
  case LADEI_PICKLE_USER_METADATA:
    return at->value->length == 0 && event->label != 0 ? LADE_OK : text_of(at, &event->label);
  case LADEI_PICKLE_COMPILE_CONTEXT: return text_of(at, &event->scopes);
  default: return LADE_OK;
  }
}

static lade_status state_of(const fold *at, uint32_t *out) {
  switch (at->value->tag == LADEI_PICKLE_TEXT ? at->value->word : LADEI_PICKLE_WORD_COUNT) {
  case LADEI_PICKLE_INACTIVE: *out = LADE_DEVICE_BLOCK_INACTIVE; return LADE_OK;
  case LADEI_PICKLE_ACTIVE_ALLOCATED: *out = LADE_DEVICE_BLOCK_ALLOCATED; return LADE_OK;
  case LADEI_PICKLE_ACTIVE_AWAITING_FREE:
  case LADEI_PICKLE_ACTIVE_PENDING_FREE: *out = LADE_DEVICE_BLOCK_PENDING_FREE; return LADE_OK;
  default: return refuse_value(at, "the text active_allocated, active_pending_free or inactive");
  }
}

/* The history of an old file's block: its first element is of the last allocation. */
static lade_status past_of(const fold *at, ladei_snapshot_block *block) {
  uint64_t number = 0;
  LADEI_TRY(list_of(at, &number));
  uint32_t run = at->reader->lists.rows[number].first_run;
  if (run == 0 || at->reader->runs.rows[run - 1].kind != LADEI_PICKLE_KIND_PAST) return LADE_OK;
  const ladei_pickle_past *past = &at->reader->pasts.rows[at->reader->runs.rows[run - 1].first];
  if ((block->reserved & LADEI_PICKLE_HAS_REQUESTED) == 0) block->requested_bytes = past->bytes;
  if (block->stack == LADEI_SNAPSHOT_NONE) block->stack = past->stack;
  block->reserved |= LADEI_PICKLE_HAS_REQUESTED;
  return LADE_OK;
}

static lade_status block_set(const fold *at, uint32_t row) {
  ladei_snapshot_block *block = &at->reader->blocks.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_ADDRESS: block->reserved |= LADEI_PICKLE_HAS_ADDRESS; return uint_of(at, &block->address);
  case LADEI_PICKLE_SIZE: return size_of(at, &block->bytes);
  case LADEI_PICKLE_REQUESTED_SIZE:
    block->reserved |= LADEI_PICKLE_HAS_REQUESTED;
    return size_of(at, &block->requested_bytes);
  case LADEI_PICKLE_STATE: return state_of(at, &block->state);
  case LADEI_PICKLE_FRAMES: return stack_of(at, &block->stack);
  case LADEI_PICKLE_USER_METADATA: return text_of(at, &block->note);
  case LADEI_PICKLE_HISTORY: return past_of(at, block);
  default: return LADE_OK;
  }
}

static lade_status flag_of(const fold *at, uint32_t flag, uint32_t *flags) {
  bool set = false;
  LADEI_TRY(bool_of(at, &set));
  *flags = set ? *flags | flag : *flags & ~flag;
  return LADE_OK;
}

static lade_status large_of(const fold *at, uint32_t *flags) {
  uint8_t word = at->value->tag == LADEI_PICKLE_TEXT ? at->value->word : LADEI_PICKLE_WORD_COUNT;
  if (word != LADEI_PICKLE_LARGE && word != LADEI_PICKLE_SMALL) return refuse_value(at, "the text large or small");
  if (word == LADEI_PICKLE_LARGE) *flags |= LADEI_SNAPSHOT_SEGMENT_LARGE;
  return LADE_OK;
}

static lade_status blocks_of(const fold *at, uint32_t *out) {
  uint64_t number = 0;
  LADEI_TRY(list_of(at, &number));
  *out = (uint32_t)number + 1;
  return LADE_OK;
}

static lade_status segment_set(const fold *at, uint32_t row) {
  ladei_pickle_segment *segment = &at->reader->segments.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_DEVICE: return int_of(at, &segment->device);
  case LADEI_PICKLE_ADDRESS: return uint_of(at, &segment->row.address);
  case LADEI_PICKLE_TOTAL_SIZE: return size_of(at, &segment->row.total_bytes);
  case LADEI_PICKLE_STREAM: return uint_of(at, &segment->row.stream);
  case LADEI_PICKLE_SEGMENT_TYPE: return large_of(at, &segment->row.flags);
  case LADEI_PICKLE_SEGMENT_POOL_ID: return pool_of(at, &segment->row.pool);
  case LADEI_PICKLE_IS_EXPANDABLE: return flag_of(at, LADEI_SNAPSHOT_SEGMENT_EXPANDABLE, &segment->row.flags);
  case LADEI_PICKLE_FRAMES: return stack_of(at, &segment->row.stack);
  case LADEI_PICKLE_BLOCKS: return blocks_of(at, &segment->blocks);
  default: return LADE_OK;
  }
}

static lade_status host_set(const fold *at, uint32_t row) {
  ladei_pickle_host *host = &at->reader->hosts.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_ADDRESS: return uint_of(at, &host->row.address);
  case LADEI_PICKLE_SIZE: return size_of(at, &host->row.bytes);
  case LADEI_PICKLE_REQUESTED_SIZE:
    host->row.reserved |= LADEI_PICKLE_HAS_REQUESTED;
    return size_of(at, &host->row.requested_bytes);
  case LADEI_PICKLE_ALLOCATED: return bool_of(at, &host->allocated);
  case LADEI_PICKLE_ACTIVE: return bool_of(at, &host->active);
  case LADEI_PICKLE_POOL_ID:
  case LADEI_PICKLE_SEGMENT_POOL_ID: return pool_of(at, &host->pool);
  case LADEI_PICKLE_FRAMES: return stack_of(at, &host->row.stack);
  case LADEI_PICKLE_USER_METADATA: return text_of(at, &host->row.note);
  default: return LADE_OK;
  }
}

static lade_status node_of(const fold *at, int32_t *out) {
  int64_t node = 0;
  LADEI_TRY(int_of(at, &node));
  if (node < -1 || node > INT32_MAX) return refuse_value(at, "a NUMA node or -1");
  *out = (int32_t)node;
  return LADE_OK;
}

static lade_status range_set(const fold *at, uint32_t row) {
  ladei_snapshot_segment *range = &at->reader->ranges.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_ADDRESS: return uint_of(at, &range->address);
  case LADEI_PICKLE_BYTES: return size_of(at, &range->total_bytes);
  case LADEI_PICKLE_BLOCK_COUNT: return size_of(at, &range->block_count);
  case LADEI_PICKLE_NUMA_NODE: return node_of(at, &range->numa_node);
  case LADEI_PICKLE_SEGMENT_POOL_ID: return pool_of(at, &range->pool);
  case LADEI_PICKLE_FRAMES: return stack_of(at, &range->stack);
  default: return LADE_OK;
  }
}

/* A number that does not fit is not known. */
static lade_status small_of(const fold *at, uint32_t otherwise, uint32_t *out) {
  uint64_t value = 0;
  LADEI_TRY(uint_of(at, &value));
  *out = value < UINT32_MAX ? (uint32_t)value : otherwise;
  return LADE_OK;
}

static lade_status frame_set(const fold *at, uint32_t row) {
  ladei_pickle_frame *frame = &at->reader->frames.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_FILENAME: return text_of(at, &frame->row.file);
  case LADEI_PICKLE_NAME: return text_of(at, &frame->row.function);
  case LADEI_PICKLE_LINE: return small_of(at, 0, &frame->row.line);
  case LADEI_PICKLE_ADDRESS: return uint_of(at, &frame->row.address);
  case LADEI_PICKLE_MODULE: return small_of(at, LADEI_SNAPSHOT_NONE, &frame->row.module);
  case LADEI_PICKLE_UNNAMED: return small_of(at, 0, &frame->unnamed);
  default: return LADE_OK;
  }
}

/* A program may add values of any type to a note. */
static lade_status note_text_of(const fold *at, uint32_t *out) {
  return at->value->tag == LADEI_PICKLE_TEXT ? text_of(at, out) : LADE_OK;
}

static lade_status note_set(const fold *at, uint32_t row) {
  ladei_pickle_note *note = &at->reader->notes.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_DEVICE: return int_of(at, &note->device);
  case LADEI_PICKLE_TIME_US: return time_of(at, &note->time_ns);
  case LADEI_PICKLE_NAME: return note_text_of(at, &note->name);
  case LADEI_PICKLE_STAGE: return note_text_of(at, &note->stage);
  default: return LADE_OK;
  }
}

static lade_status past_set(const fold *at, uint32_t row) {
  ladei_pickle_past *past = &at->reader->pasts.rows[row];
  switch (at->key) {
  case LADEI_PICKLE_REAL_SIZE: return size_of(at, &past->bytes);
  case LADEI_PICKLE_FRAMES: return stack_of(at, &past->stack);
  default: return LADE_OK;
  }
}

/* --- kinds ------------------------------------------------------------------------------------------------------------ */

static bool has(const uint64_t seen[2], unsigned word) { return (seen[word / 64] >> word % 64 & 1) != 0; }

static ladei_pickle_kind kind_of(const uint64_t seen[2]) {
  if (has(seen, LADEI_PICKLE_ACTION)) return LADEI_PICKLE_KIND_EVENT;
  if (has(seen, LADEI_PICKLE_REAL_SIZE)) return LADEI_PICKLE_KIND_PAST;
  if (has(seen, LADEI_PICKLE_TOTAL_SIZE)) return LADEI_PICKLE_KIND_SEGMENT;
  if (has(seen, LADEI_PICKLE_BLOCK_COUNT)) return LADEI_PICKLE_KIND_RANGE;
  if (has(seen, LADEI_PICKLE_FILENAME)) return LADEI_PICKLE_KIND_FRAME;
  if (has(seen, LADEI_PICKLE_STATE) && has(seen, LADEI_PICKLE_SIZE)) return LADEI_PICKLE_KIND_BLOCK;
  if (has(seen, LADEI_PICKLE_ALLOCATED) && has(seen, LADEI_PICKLE_SIZE)) return LADEI_PICKLE_KIND_HOST;
  if (has(seen, LADEI_PICKLE_TIME_US)) return LADEI_PICKLE_KIND_NOTE;
  return LADEI_PICKLE_KIND_MAP;
}

static lade_status row_set(const fold *at, ladei_pickle_kind kind, uint32_t row) {
  switch (kind) {
  case LADEI_PICKLE_KIND_EVENT: return event_set(at, row);
  case LADEI_PICKLE_KIND_BLOCK: return block_set(at, row);
  case LADEI_PICKLE_KIND_SEGMENT: return segment_set(at, row);
  case LADEI_PICKLE_KIND_HOST: return host_set(at, row);
  case LADEI_PICKLE_KIND_RANGE: return range_set(at, row);
  case LADEI_PICKLE_KIND_FRAME: return frame_set(at, row);
  case LADEI_PICKLE_KIND_NOTE: return note_set(at, row);
  case LADEI_PICKLE_KIND_PAST: return past_set(at, row);
  default: return LADE_OK;
  }
}

/* A new row of a table, with the values that stand for keys that are not there. */
#define ROW_ADD(table, ...)                                                                                            \
  do {                                                                                                                 \
    LADEI_TRY(ladei_pickle_row_memory(reader, sizeof *(table)->rows));                                                 \
    __typeof__((table)->rows) added = LADEI_INSPECT_ADD(table);                                                        \
    if (added == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;                                                             \
    *added = (__typeof__(*added)){__VA_ARGS__};                                                                        \
    *out = (uint32_t)((table)->count - 1);                                                                             \
    return LADE_OK;                                                                                                    \
  } while (0)

static lade_status row_add(ladei_pickle_reader *reader, ladei_pickle_kind kind, uint32_t *out) {
  switch (kind) {
  case LADEI_PICKLE_KIND_EVENT: ROW_ADD(&reader->events, .stack = LADEI_SNAPSHOT_NONE);
  case LADEI_PICKLE_KIND_BLOCK: ROW_ADD(&reader->blocks, .stack = LADEI_SNAPSHOT_NONE);
  case LADEI_PICKLE_KIND_SEGMENT: ROW_ADD(&reader->segments, .row = {.stack = LADEI_SNAPSHOT_NONE, .numa_node = -1});
  case LADEI_PICKLE_KIND_HOST: ROW_ADD(&reader->hosts, .row = {.stack = LADEI_SNAPSHOT_NONE});
  case LADEI_PICKLE_KIND_RANGE: ROW_ADD(&reader->ranges, .stack = LADEI_SNAPSHOT_NONE, .numa_node = -1);
  case LADEI_PICKLE_KIND_FRAME: ROW_ADD(&reader->frames, .row = {.module = LADEI_SNAPSHOT_NONE});
  case LADEI_PICKLE_KIND_NOTE: ROW_ADD(&reader->notes, .name = 0);
  case LADEI_PICKLE_KIND_PAST: ROW_ADD(&reader->pasts, .stack = LADEI_SNAPSHOT_NONE);
  default: LADEI_TRY(ladei_pickle_machine_memory(reader, sizeof *reader->maps.rows)); break;
  }
  if (LADEI_INSPECT_ADD(&reader->maps) == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *out = (uint32_t)(reader->maps.count - 1);
  return LADE_OK;
}

/* --- maps ------------------------------------------------------------------------------------------------------------- */

static lade_status item_add(ladei_pickle_reader *reader, ladei_pickle_map *map, const ladei_pickle_value *pair) {
  LADEI_TRY(ladei_pickle_machine_memory(reader, sizeof *reader->items.rows));
  ladei_pickle_item *item = LADEI_INSPECT_ADD(&reader->items);
  if (item == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  item->key = pair[0];
  item->value = pair[1];
  uint32_t number = (uint32_t)reader->items.count;
  if (map->last_item == 0)
    map->first_item = number;
  else
    reader->items.rows[map->last_item - 1].next = number;
  map->last_item = number;
  return LADE_OK;
}

/* Keys that are no texts mean nothing here, as those that are unknown. */
static lade_status pair_set(ladei_pickle_reader *reader, const ladei_pickle_dict *dict,
                            const ladei_pickle_value *pair) {
  if (pair[0].tag != LADEI_PICKLE_TEXT) return LADE_OK;
  if (dict->kind == LADEI_PICKLE_KIND_MAP) return item_add(reader, &reader->maps.rows[dict->row], pair);
  if (pair[0].word == LADEI_PICKLE_WORD_COUNT || pair[1].tag == LADEI_PICKLE_NONE) return LADE_OK;
  const fold at = {.reader = reader, .value = &pair[1], .key = pair[0].word};
  return row_set(&at, dict->kind, dict->row);
}

static void words_note(uint64_t seen[2], const ladei_pickle_value *items, size_t pair_count) {
  for (size_t i = 0; i < pair_count; i++)
    if (items[2 * i].tag == LADEI_PICKLE_TEXT && items[2 * i].word < LADEI_PICKLE_WORD_COUNT)
      seen[items[2 * i].word / 64] |= 1ull << items[2 * i].word % 64;
}
_Static_assert(LADEI_PICKLE_WORD_COUNT <= 128, "a bit for each word");

/* A map that now has the keys of a row becomes one. */
static lade_status map_become(ladei_pickle_reader *reader, ladei_pickle_dict *dict, ladei_pickle_kind kind) {
  assert(dict->kind == LADEI_PICKLE_KIND_MAP && kind != LADEI_PICKLE_KIND_MAP); /* M2 */
  uint32_t number = reader->maps.rows[dict->row].first_item;
  LADEI_TRY(row_add(reader, kind, &dict->row));
  dict->kind = kind;
  for (; number != 0; number = reader->items.rows[number - 1].next) {
    const ladei_pickle_value pair[2] = {reader->items.rows[number - 1].key, reader->items.rows[number - 1].value};
    LADEI_TRY(pair_set(reader, dict, pair));
  }
  return LADE_OK;
}

/* M2 */
static lade_status kind_settle(ladei_pickle_reader *reader, ladei_pickle_dict *dict, const ladei_pickle_value *items,
                               size_t pair_count) {
  uint64_t seen[2] = {0, 0};
  if (dict->kind != LADEI_PICKLE_KIND_NEW && dict->kind != LADEI_PICKLE_KIND_MAP) return LADE_OK;
  if (dict->kind == LADEI_PICKLE_KIND_MAP) memcpy(seen, reader->maps.rows[dict->row].words, sizeof seen);
  words_note(seen, items, pair_count);
  ladei_pickle_kind kind = kind_of(seen);
  if (dict->kind == LADEI_PICKLE_KIND_NEW) {
    LADEI_TRY(row_add(reader, kind, &dict->row));
    dict->kind = kind;
  } else if (kind != LADEI_PICKLE_KIND_MAP) {
    return map_become(reader, dict, kind);
  }
  if (kind == LADEI_PICKLE_KIND_MAP) memcpy(reader->maps.rows[dict->row].words, seen, sizeof seen);
  return LADE_OK;
}

lade_status ladei_pickle_dict_set(ladei_pickle_reader *reader, uint64_t number, const ladei_pickle_value *items,
                                  size_t pair_count) {
  assert(number < reader->dicts.count); /* M1 */
  ladei_pickle_dict *dict = &reader->dicts.rows[number];
  if (pair_count == 0) return LADE_OK;
  LADEI_TRY(kind_settle(reader, dict, items, pair_count));
  assert(dict->kind != LADEI_PICKLE_KIND_NEW); /* M2 */
  for (size_t i = 0; i < pair_count; i++) LADEI_TRY(pair_set(reader, dict, items + 2 * i));
  return LADE_OK;
}

const ladei_pickle_value *ladei_pickle_find(const ladei_pickle_reader *reader, const ladei_pickle_value *map,
                                            ladei_pickle_word key) {
  const ladei_pickle_value *found = NULL;
  if (map == NULL || map->tag != LADEI_PICKLE_DICT) return NULL;
  const ladei_pickle_dict *dict = &reader->dicts.rows[map->integer];
  if (dict->kind != LADEI_PICKLE_KIND_MAP) return NULL;
  uint32_t number = reader->maps.rows[dict->row].first_item;
  for (; number != 0; number = reader->items.rows[number - 1].next)
    if (reader->items.rows[number - 1].key.word == key) found = &reader->items.rows[number - 1].value;
  return found;
}

/* --- lists ------------------------------------------------------------------------------------------------------------ */

static lade_status run_add(ladei_pickle_reader *reader, ladei_pickle_list *list, uint32_t kind, uint32_t row) {
  LADEI_TRY(ladei_pickle_machine_memory(reader, sizeof *reader->runs.rows));
  ladei_pickle_run *run = LADEI_INSPECT_ADD(&reader->runs);
  if (run == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *run = (ladei_pickle_run){.kind = kind, .first = row, .count = 1};
  uint32_t number = (uint32_t)reader->runs.count;
  if (list->last_run == 0)
    list->first_run = number;
  else
    reader->runs.rows[list->last_run - 1].next = number;
  list->last_run = number;
  return LADE_OK;
}

lade_status ladei_pickle_list_append(ladei_pickle_reader *reader, uint64_t number, const ladei_pickle_value *value) {
  assert(number < reader->lists.count); /* M1 */
  ladei_pickle_list *list = &reader->lists.rows[number];
  assert((list->first_run == 0) == (list->last_run == 0));
  uint32_t kind = LADEI_PICKLE_KIND_OTHER, row = 0;
  if (list->used) return ladei_pickle_refuse(reader, "a list grows that is a stack already");
  if (value->tag == LADEI_PICKLE_LIST) {
    kind = LADEI_PICKLE_KIND_LIST;
    row = (uint32_t)value->integer;
  } else if (value->tag == LADEI_PICKLE_DICT && reader->dicts.rows[value->integer].kind != LADEI_PICKLE_KIND_NEW) {
    kind = reader->dicts.rows[value->integer].kind;
    row = reader->dicts.rows[value->integer].row;
  }
  ladei_pickle_run *last = list->last_run == 0 ? NULL : &reader->runs.rows[list->last_run - 1];
  bool joins =
      last != NULL && last->kind == kind && (kind == LADEI_PICKLE_KIND_OTHER || last->first + last->count == row);
  if (!joins) return run_add(reader, list, kind, row);
  last->count++;
  return LADE_OK;
}
