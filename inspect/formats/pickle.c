/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer of pickles.
 *
 *   {lade: {words, modules, parts}, segments: [...], device_traces: [[...], ...], allocator_settings: {...},
 *    external_annotations: [...], host_segments: [...], host_traces: [...]}
 *
 * P1  Only opcodes that PyTorch's web viewer reads: no FRAME either, which a reader may do without.
 * P2  A batch of APPENDS or SETITEMS has at most 1,000 items (the viewer passes them as arguments of a call).
 * P3  Integers are exact: from 2^63 on they take 9 bytes, of which viewers make big integers.
 * P4  The memo has the words below, the pair (0, 0) and an empty list, then each text and each stack where
 *     it is first used. No event, block or segment is in it: viewers write into those.
 */
#include "inspect/formats/pickle.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "inspect/frames.h"
#include "inspect/snapshot.h"

enum {
  OP_MARK = '(',
  OP_STOP = '.',
  OP_BINFLOAT = 'G',
  OP_BININT = 'J',
  OP_BININT1 = 'K',
  OP_BININT2 = 'M',
  OP_BINUNICODE = 'X',
  OP_EMPTY_LIST = ']',
  OP_APPENDS = 'e',
  OP_BINGET = 'h',
  OP_LONG_BINGET = 'j',
  OP_SETITEMS = 'u',
  OP_EMPTY_DICT = '}',
  OP_PROTO = 0x80,
  OP_TUPLE2 = 0x86,
  OP_NEWTRUE = 0x88,
  OP_NEWFALSE = 0x89,
  OP_LONG1 = 0x8a,
  OP_SHORT_BINUNICODE = 0x8c,
  OP_MEMOIZE = 0x94,
};

/* Keys and values that stand in every file: a word's number is its memo number (P4). */
/* clang-format off */
#define PICKLE_WORDS(word)                                                                                             \
  word(EMPTY, "")                                                                                                      \
  /* lade_device_action, in its order */                                                                               \
  word(ALLOC, "alloc") word(FREE_REQUESTED, "free_requested") word(FREE_COMPLETED, "free_completed")                   \
  word(SEGMENT_ALLOC, "segment_alloc") word(SEGMENT_FREE, "segment_free") word(SEGMENT_MAP, "segment_map")             \
  word(SEGMENT_UNMAP, "segment_unmap") word(SNAPSHOT, "snapshot") word(OOM, "oom") word(USER_DEFINED, "user_defined")  \
  word(ANNOTATE, "annotate")                                                                                           \
  /* lade_device_block_state, in its order */                                                                          \
  word(INACTIVE, "inactive") word(ACTIVE_ALLOCATED, "active_allocated")                                                \
  word(ACTIVE_PENDING_FREE, "active_pending_free")                                                                     \
  /* lade_part_kind, in its order */                                                                                   \
  word(DEVICE, "device") word(PINNED, "pinned") word(PIPELINE, "pipeline")                                             \
  word(LARGE, "large") word(SMALL, "small")                                                                            \
  /* events */                                                                                                         \
  word(ACTION, "action") word(ADDR, "addr") word(DEVICE_FREE, "device_free") word(SIZE, "size")                        \
  word(STREAM, "stream") word(TIME_US, "time_us") word(FRAMES, "frames") word(POOL_ID, "pool_id")                      \
  word(USER_METADATA, "user_metadata") word(COMPILE_CONTEXT, "compile_context") word(STAGE, "stage")                   \
  /* segments, blocks, frames */                                                                                       \
  word(ADDRESS, "address") word(TOTAL_SIZE, "total_size") word(ALLOCATED_SIZE, "allocated_size")                       \
  word(ACTIVE_SIZE, "active_size") word(REQUESTED_SIZE, "requested_size") word(SEGMENT_TYPE, "segment_type")           \
  word(SEGMENT_POOL_ID, "segment_pool_id") word(IS_EXPANDABLE, "is_expandable") word(BLOCKS, "blocks")                 \
  word(STATE, "state") word(ALLOCATED, "allocated") word(ACTIVE, "active") word(FILENAME, "filename")                  \
  word(LINE, "line") word(NAME, "name") word(MODULE, "module") word(UNNAMED, "unnamed")           \
  /* the whole */                                                                                                      \
  word(SEGMENTS, "segments") word(DEVICE_TRACES, "device_traces") word(ALLOCATOR_SETTINGS, "allocator_settings")       \
  word(EXTERNAL_ANNOTATIONS, "external_annotations") word(HOST_SEGMENTS, "host_segments")                              \
  word(HOST_TRACES, "host_traces") word(TRACE_ALLOC_OVERFLOWED, "trace_alloc_overflowed")                              \
  word(TRACE_ALLOC_MAX_ENTRIES, "trace_alloc_max_entries")                                                             \
  /* what lade adds */                                                                                                 \
  word(LADE, "lade") word(VERSION, "version") word(WORDS, "words") word(TIME_NS, "time_ns")                            \
  word(PROCESS_ID, "process_id") word(MODULES, "modules") word(PATH, "path") word(BASE, "base") word(BYTES, "bytes")   \
  word(BUILD_ID, "build_id") word(PARTS, "parts") word(KIND, "kind") word(HISTORY_ON, "history_on")                    \
  word(SEGMENT_COUNT, "segment_count") word(EVENT_COUNT, "event_count") word(LOST_COUNT, "lost_count")                 \
  word(CAPACITY_BYTES, "capacity_bytes") word(MAX_ENTRIES, "max_entries") word(SKEW_NS, "skew_ns")                     \
  word(SETTINGS, "settings") word(COUNTERS, "counters") word(PINNED_SEGMENTS, "pinned_segments")                       \
  word(BLOCK_COUNT, "block_count") word(NUMA_NODE, "numa_node")
/* clang-format on */

#define PICKLE_WORD_NUMBER(name, text) PICKLE_##name,
typedef enum pickle_word { PICKLE_WORDS(PICKLE_WORD_NUMBER) WORD_COUNT } pickle_word;
#undef PICKLE_WORD_NUMBER

enum { BATCH = 1000, MOST_DEVICE = 1023 };
enum { MEMO_NO_POOL = WORD_COUNT, MEMO_NO_FRAMES, MEMO_FIRST_FREE };
_Static_assert(MEMO_FIRST_FREE <= 256, "what stands in every event has a memo number of one byte");

typedef struct pickle {
  ladei_output *output;
  const lade_snapshot *snapshot;
  uint32_t *texts;  /* memo number of each text; 0: not in the memo */
  uint32_t *stacks; /* ... of each stack */
  uint32_t memo_count;
} pickle;

#define PICKLE_WORD_TEXT(name, text) text,
static const char *const words[] = {PICKLE_WORDS(PICKLE_WORD_TEXT)};
#undef PICKLE_WORD_TEXT

/* --- opcodes into a room that is large enough ----------------------------------------------------------------------- */

static char *op_put(char *at, int op) {
  *at = (char)op;
  return at + 1;
}

static char *little_put(char *at, uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; i++) at[i] = (char)(value >> (8 * i));
  return at + bytes;
}

/* At most 11 bytes. P3 */
static char *uint_put(char *at, uint64_t value) {
  if (value <= UINT8_MAX) return little_put(op_put(at, OP_BININT1), value, 1);
  if (value <= UINT16_MAX) return little_put(op_put(at, OP_BININT2), value, 2);
  if (value <= INT32_MAX) return little_put(op_put(at, OP_BININT), value, 4);
  if (value > INT64_MAX) return little_put(little_put(little_put(op_put(at, OP_LONG1), 9, 1), value, 8), 0, 1);
  unsigned bytes = 8 - (unsigned)(__builtin_clzll(value) - 1) / 8; /* with a bit for the sign */
  return little_put(little_put(op_put(at, OP_LONG1), bytes, 1), value, bytes);
}

static char *int_put(char *at, int64_t value) {
  if (value >= 0) return uint_put(at, (uint64_t)value);
  if (value >= INT32_MIN) return little_put(op_put(at, OP_BININT), (uint64_t)value, 4);
  return little_put(little_put(op_put(at, OP_LONG1), 8, 1), (uint64_t)value, 8);
}

/* At most 5 bytes. */
static char *get_put(char *at, uint32_t memo) {
  if (memo <= UINT8_MAX) return little_put(op_put(at, OP_BINGET), memo, 1);
  return little_put(op_put(at, OP_LONG_BINGET), memo, 4);
}

static char *key_uint_put(char *at, pickle_word key, uint64_t value) { return uint_put(get_put(at, key), value); }

static char *key_word_put(char *at, pickle_word key, pickle_word value) { return get_put(get_put(at, key), value); }

static char *pool_put(char *at, pickle_word key, lade_device_pool_id pool) {
  at = get_put(at, key);
  if (pool.first == 0 && pool.second == 0) return get_put(at, MEMO_NO_POOL);
  return op_put(uint_put(uint_put(at, pool.first), pool.second), OP_TUPLE2);
}

static char *room(pickle *to, size_t bytes) { return ladei_output_room(to->output, bytes); }
static void room_end(pickle *to, const char *end) { to->output->used = (size_t)(end - to->output->buffer); }

/* --- values --------------------------------------------------------------------------------------------------------- */

static void op(pickle *to, int code) { ladei_output_byte(to->output, (char)code); }
static void word(pickle *to, pickle_word key) { room_end(to, get_put(room(to, 5), key)); }
static void uint_value(pickle *to, uint64_t value) { room_end(to, uint_put(room(to, 11), value)); }
static void bool_value(pickle *to, bool value) { op(to, value ? OP_NEWTRUE : OP_NEWFALSE); }

static void real_value(pickle *to, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = __builtin_bswap64(bits);
  room_end(to, little_put(op_put(room(to, 9), OP_BINFLOAT), bits, 8));
}

static void memoize(pickle *to, uint32_t *number) {
  op(to, OP_MEMOIZE);
  *number = to->memo_count++;
}

static void string(pickle *to, const char *text, size_t bytes) {
  if (bytes <= UINT8_MAX)
    room_end(to, little_put(op_put(room(to, 2), OP_SHORT_BINUNICODE), bytes, 1));
  else
    room_end(to, little_put(op_put(room(to, 5), OP_BINUNICODE), bytes, 4));
  ladei_output_bytes(to->output, text, bytes);
}

static void text_value(pickle *to, uint32_t text) {
  if (text == 0 || text >= to->snapshot->text_offsets.count) {
    word(to, PICKLE_EMPTY);
  } else if (to->texts[text] != 0) {
    room_end(to, get_put(room(to, 5), to->texts[text]));
  } else {
    const char *characters = ladei_inspect_string(to->snapshot, text);
    string(to, characters, strlen(characters));
    memoize(to, &to->texts[text]);
  }
}

static void key_uint(pickle *to, pickle_word key, uint64_t value) {
  word(to, key);
  uint_value(to, value);
}

static void key_text(pickle *to, pickle_word key, uint32_t text) {
  word(to, key);
  text_value(to, text);
}

/* P2: a list or map in batches of items. */
typedef struct batches {
  pickle *to;
  int end_op; /* OP_APPENDS or OP_SETITEMS */
  unsigned count;
} batches;

static batches batches_begin(pickle *to, int begin_op, int end_op) {
  op(to, begin_op);
  return (batches){.to = to, .end_op = end_op};
}

static void batches_next(batches *items) {
  if (items->count == BATCH) {
    op(items->to, items->end_op);
    items->count = 0;
  }
  if (items->count++ == 0) op(items->to, OP_MARK);
}

static void batches_end(batches *items) {
  if (items->count > 0) op(items->to, items->end_op);
}

static batches list_begin(pickle *to) { return batches_begin(to, OP_EMPTY_LIST, OP_APPENDS); }
static batches map_begin(pickle *to) { return batches_begin(to, OP_EMPTY_DICT, OP_SETITEMS); }

/* --- stacks --------------------------------------------------------------------------------------------------------- */

/* The unknown of a frame: bits of the key "unnamed". The texts beside it name module and place instead. */
enum { NO_FILE = 1, NO_FUNCTION = 2 };

static void characters_value(pickle *to, const char *characters) { string(to, characters, strlen(characters)); }

static void frame_write(pickle *to, const ladei_snapshot_frame *frame) {
  char place[LADEI_INSPECT_FRAME_ROOM];
  unsigned unnamed = 0;
  if (frame->address != 0) unnamed = (frame->file == 0 ? NO_FILE : 0) | (frame->function == 0 ? NO_FUNCTION : 0);
  op(to, OP_EMPTY_DICT);
  op(to, OP_MARK);
  word(to, PICKLE_FILENAME);
  if ((unnamed & NO_FILE) != 0)
    characters_value(to, ladei_inspect_frame_file(to->snapshot, frame));
  else
    text_value(to, frame->file);
  word(to, PICKLE_NAME);
  if ((unnamed & NO_FUNCTION) != 0)
    characters_value(to, ladei_inspect_frame_function(to->snapshot, frame, place));
  else
    text_value(to, frame->function);
  key_uint(to, PICKLE_LINE, frame->line);
  if (frame->address != 0) key_uint(to, PICKLE_ADDRESS, frame->address);
  if (frame->module < to->snapshot->modules.count) key_uint(to, PICKLE_MODULE, frame->module);
  if (unnamed != 0) key_uint(to, PICKLE_UNNAMED, unnamed);
  op(to, OP_SETITEMS);
}

static void stack_value(pickle *to, uint32_t stack) {
  if (stack == LADEI_SNAPSHOT_NONE) {
    room_end(to, get_put(room(to, 5), MEMO_NO_FRAMES));
    return;
  }
  if (to->stacks[stack] != 0) {
    room_end(to, get_put(room(to, 5), to->stacks[stack]));
    return;
  }
  const ladei_snapshot_stack *row = &to->snapshot->stacks.rows[stack];
  batches frames = list_begin(to);
  memoize(to, &to->stacks[stack]);
  for (size_t i = 0; i < row->frame_count; i++) {
    batches_next(&frames);
    frame_write(to, &to->snapshot->frames.rows[row->first_frame + i]);
  }
  batches_end(&frames);
}

/* --- events --------------------------------------------------------------------------------------------------------- */

static pickle_word action_word(uint32_t action) {
  bool known = action <= PICKLE_ANNOTATE - PICKLE_ALLOC;
  return known ? (pickle_word)(PICKLE_ALLOC + action) : PICKLE_USER_DEFINED;
}

static void event_write(pickle *to, const ladei_snapshot_event *event) {
  pickle_word where = event->action == LADE_DEVICE_OOM ? PICKLE_DEVICE_FREE : PICKLE_ADDR;
  char *at = room(to, 128);
  at = op_put(op_put(at, OP_EMPTY_DICT), OP_MARK);
  at = key_word_put(at, PICKLE_ACTION, action_word(event->action));
  at = key_uint_put(at, where, event->address);
  at = key_uint_put(at, PICKLE_SIZE, event->bytes);
  at = key_uint_put(at, PICKLE_STREAM, event->stream);
  at = key_uint_put(at, PICKLE_TIME_US, event->time_ns / 1000);
  at = pool_put(at, PICKLE_POOL_ID, event->pool);
  room_end(to, at);
  key_text(to, PICKLE_USER_METADATA, event->label);
  key_text(to, PICKLE_COMPILE_CONTEXT, event->scopes);
  if (event->stack != LADEI_SNAPSHOT_NONE) {
    word(to, PICKLE_FRAMES);
    stack_value(to, event->stack);
  }
  op(to, OP_SETITEMS);
}

static void part_events_write(batches *list, const ladei_snapshot_part *part) {
  for (uint64_t i = part->first_event; i < part->first_event + part->event_count; i++) {
    batches_next(list);
    event_write(list->to, &list->to->snapshot->events.rows[i]);
  }
}

/* --- parts ---------------------------------------------------------------------------------------------------------- */

static bool is_device(const ladei_snapshot_part *part) { return part->kind == LADE_PART_DEVICE; }
static uint32_t ordinal(const ladei_snapshot_part *part) { return part->device < 0 ? 0 : (uint32_t)part->device; }

/* Number of lists of events: one for each ordinal up to the greatest. */
static uint32_t ordinal_count(const lade_snapshot *snapshot) {
  uint32_t count = 0;
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    if (is_device(part) && ordinal(part) >= count) count = ordinal(part) + 1;
  }
  return count;
}

static void device_traces_write(pickle *to) {
  batches lists = list_begin(to);
  for (uint32_t device = 0; device < ordinal_count(to->snapshot); device++) {
    batches_next(&lists);
    batches events = list_begin(to);
    for (size_t i = 0; i < to->snapshot->parts.count; i++) {
      const ladei_snapshot_part *part = &to->snapshot->parts.rows[i];
      if (is_device(part) && ordinal(part) == device) part_events_write(&events, part);
    }
    batches_end(&events);
  }
  batches_end(&lists);
}

static void host_traces_write(pickle *to) {
  batches events = list_begin(to);
  for (size_t i = 0; i < to->snapshot->parts.count; i++)
    if (!is_device(&to->snapshot->parts.rows[i])) part_events_write(&events, &to->snapshot->parts.rows[i]);
  batches_end(&events);
}

static void block_write(pickle *to, const ladei_snapshot_block *block) {
  char *at = room(to, 64);
  at = op_put(op_put(at, OP_EMPTY_DICT), OP_MARK);
  at = key_uint_put(at, PICKLE_ADDRESS, block->address);
  at = key_uint_put(at, PICKLE_SIZE, block->bytes);
  at = key_uint_put(at, PICKLE_REQUESTED_SIZE, block->requested_bytes);
  at = key_word_put(at, PICKLE_STATE, (pickle_word)(PICKLE_INACTIVE + block->state));
  at = get_put(at, PICKLE_FRAMES);
  room_end(to, at);
  stack_value(to, block->stack);
  if (block->note != 0) key_text(to, PICKLE_USER_METADATA, block->note);
  op(to, OP_SETITEMS);
}

static void segment_write(pickle *to, const ladei_snapshot_segment *segment, uint32_t device) {
  bool large = (segment->flags & LADEI_SNAPSHOT_SEGMENT_LARGE) != 0;
  char *at = room(to, 256);
  at = op_put(op_put(at, OP_EMPTY_DICT), OP_MARK);
  at = key_uint_put(at, PICKLE_DEVICE, device);
  at = key_uint_put(at, PICKLE_ADDRESS, segment->address);
  at = key_uint_put(at, PICKLE_TOTAL_SIZE, segment->total_bytes);
  at = key_uint_put(at, PICKLE_ALLOCATED_SIZE, segment->allocated_bytes);
  at = key_uint_put(at, PICKLE_ACTIVE_SIZE, segment->active_bytes);
  at = key_uint_put(at, PICKLE_REQUESTED_SIZE, segment->requested_bytes);
  at = key_uint_put(at, PICKLE_STREAM, segment->stream);
  at = key_word_put(at, PICKLE_SEGMENT_TYPE, large ? PICKLE_LARGE : PICKLE_SMALL);
  at = pool_put(at, PICKLE_SEGMENT_POOL_ID, segment->pool);
  at = get_put(at, PICKLE_IS_EXPANDABLE);
  at = op_put(at, (segment->flags & LADEI_SNAPSHOT_SEGMENT_EXPANDABLE) != 0 ? OP_NEWTRUE : OP_NEWFALSE);
  at = get_put(at, PICKLE_FRAMES);
  room_end(to, at);
  stack_value(to, segment->stack);
  word(to, PICKLE_BLOCKS);
  batches blocks = list_begin(to);
  for (uint64_t i = 0; i < segment->block_count; i++) {
    batches_next(&blocks);
    block_write(to, &to->snapshot->blocks.rows[segment->first_block + i]);
  }
  batches_end(&blocks);
  op(to, OP_SETITEMS);
}

static void segments_write(pickle *to) {
  batches list = list_begin(to);
  for (size_t p = 0; p < to->snapshot->parts.count; p++) {
    const ladei_snapshot_part *part = &to->snapshot->parts.rows[p];
    if (!is_device(part)) continue;
    for (uint64_t i = part->first_segment; i < part->first_segment + part->segment_count; i++) {
      batches_next(&list);
      segment_write(to, &to->snapshot->segments.rows[i], ordinal(part));
    }
  }
  batches_end(&list);
}

/* A block of pinned memory is a segment to PyTorch, which splits none. */
static void host_block_write(pickle *to, const ladei_snapshot_segment *segment, const ladei_snapshot_block *block) {
  char *at = room(to, 128);
  at = op_put(op_put(at, OP_EMPTY_DICT), OP_MARK);
  at = key_uint_put(at, PICKLE_ADDRESS, block->address);
  at = key_uint_put(at, PICKLE_SIZE, block->bytes);
  at = key_uint_put(at, PICKLE_REQUESTED_SIZE, block->requested_bytes);
  at = get_put(at, PICKLE_ALLOCATED);
  at = op_put(at, block->state == LADE_DEVICE_BLOCK_ALLOCATED ? OP_NEWTRUE : OP_NEWFALSE);
  at = get_put(at, PICKLE_ACTIVE);
  at = op_put(at, block->state != LADE_DEVICE_BLOCK_INACTIVE ? OP_NEWTRUE : OP_NEWFALSE);
  at = pool_put(at, PICKLE_SEGMENT_POOL_ID, segment->pool);
  at = get_put(at, PICKLE_FRAMES);
  room_end(to, at);
  stack_value(to, block->stack);
  if (block->note != 0) key_text(to, PICKLE_USER_METADATA, block->note);
  op(to, OP_SETITEMS);
}

static void host_segments_write(pickle *to) {
  batches list = list_begin(to);
  for (size_t i = 0; i < to->snapshot->segments.count; i++) {
    const ladei_snapshot_segment *segment = &to->snapshot->segments.rows[i];
    if (is_device(&to->snapshot->parts.rows[segment->part])) continue;
    for (uint64_t b = 0; b < segment->block_count; b++) {
      batches_next(&list);
      host_block_write(to, segment, &to->snapshot->blocks.rows[segment->first_block + b]);
    }
  }
  batches_end(&list);
}

/* --- notes, settings ------------------------------------------------------------------------------------------------ */

static void annotation_write(pickle *to, const ladei_snapshot_event *event) {
  const ladei_snapshot_part *part = &to->snapshot->parts.rows[event->part];
  op(to, OP_EMPTY_DICT);
  op(to, OP_MARK);
  key_text(to, PICKLE_NAME, event->label);
  key_uint(to, PICKLE_DEVICE, ordinal(part));
  key_uint(to, PICKLE_TIME_US, event->time_ns / 1000);
  op(to, OP_SETITEMS);
}

static void annotations_write(pickle *to) {
  batches list = list_begin(to);
  for (size_t i = 0; i < to->snapshot->events.count; i++) {
    const ladei_snapshot_event *event = &to->snapshot->events.rows[i];
    if (event->action != LADE_DEVICE_USER_DEFINED) continue;
    batches_next(&list);
    annotation_write(to, event);
  }
  batches_end(&list);
}

static void setting_value(pickle *to, const ladei_snapshot_setting *setting) {
  switch (setting->kind) {
  case LADEI_SNAPSHOT_SETTING_BOOL: bool_value(to, setting->integer != 0); break;
  case LADEI_SNAPSHOT_SETTING_REAL: real_value(to, setting->real); break;
  case LADEI_SNAPSHOT_SETTING_TEXT: text_value(to, setting->text); break;
  default: room_end(to, int_put(room(to, 10), setting->integer)); break;
  }
}

/* Bytes of the part of a key before its dot; 0: it has none. */
static size_t map_bytes(const pickle *to, const ladei_snapshot_setting *setting) {
  const char *key = ladei_inspect_string(to->snapshot, setting->key);
  const char *dot = strchr(key, '.');
  return dot == NULL ? 0 : (size_t)(dot - key);
}

static bool same_map(const pickle *to, const ladei_snapshot_setting *a, const ladei_snapshot_setting *b) {
  size_t bytes = map_bytes(to, a);
  return bytes == map_bytes(to, b) &&
         memcmp(ladei_inspect_string(to->snapshot, a->key), ladei_inspect_string(to->snapshot, b->key), bytes) == 0;
}

/* Settings [first, end) of one map, without their first `prefix` bytes: {"256": 1, "512": 2}. */
static void nested_write(pickle *to, const ladei_snapshot_setting *first, const ladei_snapshot_setting *end,
                         size_t prefix) {
  batches items = map_begin(to);
  for (const ladei_snapshot_setting *setting = first; setting < end; setting++) {
    const char *key = ladei_inspect_string(to->snapshot, setting->key);
    size_t bytes = strlen(key);
    assert(bytes >= prefix);
    batches_next(&items);
    string(to, key + prefix, bytes - prefix);
    setting_value(to, setting);
  }
  batches_end(&items);
}

static void settings_items_write(batches *items, const ladei_snapshot_part *part) {
  pickle *to = items->to;
  if (part->setting_count == 0) return;
  const ladei_snapshot_setting *at = to->snapshot->settings.rows + part->first_setting, *end = at + part->setting_count;
  while (at < end) {
    const ladei_snapshot_setting *next = at + 1;
    size_t bytes = map_bytes(to, at);
    batches_next(items);
    if (bytes > 0)
      while (next < end && same_map(to, at, next)) next++;
    if (bytes == 0) {
      text_value(to, at->key);
      setting_value(to, at);
    } else {
      string(to, ladei_inspect_string(to->snapshot, at->key), bytes);
      nested_write(to, at, next, bytes + 1);
    }
    at = next;
  }
}

/* Those of the first device, as PyTorch has one set of them. */
static void allocator_settings_write(pickle *to) {
  batches items = map_begin(to);
  for (size_t i = 0; i < to->snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &to->snapshot->parts.rows[i];
    if (!is_device(part)) continue;
    settings_items_write(&items, part);
    batches_next(&items);
    word(to, PICKLE_TRACE_ALLOC_OVERFLOWED);
    bool_value(to, part->lost_count > 0);
    batches_next(&items);
    key_uint(to, PICKLE_TRACE_ALLOC_MAX_ENTRIES, part->max_entries);
    break;
  }
  batches_end(&items);
}

/* --- what lade adds ------------------------------------------------------------------------------------------------- */

static void words_write(pickle *to) {
  batches list = list_begin(to);
  for (size_t i = 0; i < WORD_COUNT; i++) {
    uint32_t number;
    batches_next(&list);
    string(to, words[i], strlen(words[i]));
    memoize(to, &number);
    assert(number == i); /* P4 */
  }
  batches_next(&list);
  room_end(to, op_put(uint_put(uint_put(room(to, 5), 0), 0), OP_TUPLE2));
  op(to, OP_MEMOIZE);
  batches_next(&list);
  op(to, OP_EMPTY_LIST);
  op(to, OP_MEMOIZE);
  batches_end(&list);
  to->memo_count = MEMO_FIRST_FREE;
}

static void modules_write(pickle *to) {
  batches list = list_begin(to);
  for (size_t i = 0; i < to->snapshot->modules.count; i++) {
    const ladei_snapshot_module *module = &to->snapshot->modules.rows[i];
    batches_next(&list);
    op(to, OP_EMPTY_DICT);
    op(to, OP_MARK);
    key_text(to, PICKLE_PATH, module->path);
    key_uint(to, PICKLE_BASE, module->base);
    key_uint(to, PICKLE_BYTES, module->bytes);
    key_text(to, PICKLE_BUILD_ID, module->build_id);
    op(to, OP_SETITEMS);
  }
  batches_end(&list);
}

static void counters_write(pickle *to, const ladei_snapshot_part *part) {
  batches items = map_begin(to);
  for (uint64_t i = part->first_counter; i < part->first_counter + part->counter_count; i++) {
    batches_next(&items);
    text_value(to, to->snapshot->counters.rows[i].key);
    room_end(to, int_put(room(to, 10), to->snapshot->counters.rows[i].value));
  }
  batches_end(&items);
}

static void settings_write(pickle *to, const ladei_snapshot_part *part) {
  batches items = map_begin(to);
  settings_items_write(&items, part);
  batches_end(&items);
}

/* Segments of pinned memory: PyTorch has only their blocks. */
static void pinned_segments_write(pickle *to, const ladei_snapshot_part *part) {
  batches list = list_begin(to);
  for (uint64_t i = part->first_segment; i < part->first_segment + part->segment_count; i++) {
    const ladei_snapshot_segment *segment = &to->snapshot->segments.rows[i];
    batches_next(&list);
    char *at = room(to, 128);
    at = op_put(op_put(at, OP_EMPTY_DICT), OP_MARK);
    at = key_uint_put(at, PICKLE_ADDRESS, segment->address);
    at = key_uint_put(at, PICKLE_BYTES, segment->total_bytes);
    at = key_uint_put(at, PICKLE_BLOCK_COUNT, segment->block_count);
    at = int_put(get_put(at, PICKLE_NUMA_NODE), segment->numa_node);
    at = pool_put(at, PICKLE_SEGMENT_POOL_ID, segment->pool);
    at = get_put(at, PICKLE_FRAMES);
    room_end(to, at);
    stack_value(to, segment->stack);
    op(to, OP_SETITEMS);
  }
  batches_end(&list);
}

static pickle_word kind_word(uint32_t kind) {
  switch (kind) {
  case LADE_PART_DEVICE: return PICKLE_DEVICE;
  case LADE_PART_PINNED: return PICKLE_PINNED;
  default: return PICKLE_PIPELINE;
  }
}

static void part_write(pickle *to, const ladei_snapshot_part *part) {
  op(to, OP_EMPTY_DICT);
  op(to, OP_MARK);
  room_end(to, key_word_put(room(to, 10), PICKLE_KIND, kind_word(part->kind)));
  room_end(to, int_put(get_put(room(to, 15), PICKLE_DEVICE), part->device));
  key_text(to, PICKLE_NAME, part->name);
  word(to, PICKLE_HISTORY_ON);
  bool_value(to, part->events != 0);
  key_uint(to, PICKLE_SEGMENT_COUNT, part->segment_count);
  key_uint(to, PICKLE_EVENT_COUNT, part->event_count);
  key_uint(to, PICKLE_LOST_COUNT, part->lost_count);
  key_uint(to, PICKLE_CAPACITY_BYTES, part->capacity_bytes);
  key_uint(to, PICKLE_MAX_ENTRIES, part->max_entries);
  key_uint(to, PICKLE_TIME_NS, part->time_ns);
  key_uint(to, PICKLE_SKEW_NS, part->skew_ns);
  word(to, PICKLE_SETTINGS);
  settings_write(to, part);
  word(to, PICKLE_COUNTERS);
  counters_write(to, part);
  if (!is_device(part)) {
    word(to, PICKLE_PINNED_SEGMENTS);
    pinned_segments_write(to, part);
  }
  op(to, OP_SETITEMS);
}

static void parts_write(pickle *to) {
  batches list = list_begin(to);
  for (size_t i = 0; i < to->snapshot->parts.count; i++) {
    batches_next(&list);
    part_write(to, &to->snapshot->parts.rows[i]);
  }
  batches_end(&list);
}

/* Comes first: its words are the first of the memo. */
static void additions_write(pickle *to) {
  op(to, OP_EMPTY_DICT);
  op(to, OP_MARK);
  string(to, "words", strlen("words"));
  words_write(to);
  key_uint(to, PICKLE_VERSION, 1);
  key_uint(to, PICKLE_TIME_NS, to->snapshot->time_ns);
  key_uint(to, PICKLE_PROCESS_ID, to->snapshot->process_id);
  word(to, PICKLE_MODULES);
  modules_write(to);
  word(to, PICKLE_PARTS);
  parts_write(to);
  op(to, OP_SETITEMS);
}

static void snapshot_write(pickle *to) {
  op(to, OP_PROTO);
  op(to, 4);
  op(to, OP_EMPTY_DICT);
  op(to, OP_MARK);
  string(to, "lade", strlen("lade"));
  additions_write(to);
  word(to, PICKLE_SEGMENTS);
  segments_write(to);
  word(to, PICKLE_DEVICE_TRACES);
  device_traces_write(to);
  word(to, PICKLE_ALLOCATOR_SETTINGS);
  allocator_settings_write(to);
  word(to, PICKLE_EXTERNAL_ANNOTATIONS);
  annotations_write(to);
  word(to, PICKLE_HOST_SEGMENTS);
  host_segments_write(to);
  word(to, PICKLE_HOST_TRACES);
  host_traces_write(to);
  op(to, OP_SETITEMS);
  op(to, OP_STOP);
}

static lade_status limits_check(const lade_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->parts.count; i++)
    if (is_device(&snapshot->parts.rows[i]) && ordinal(&snapshot->parts.rows[i]) > MOST_DEVICE)
      return ladei_error(LADE_ERR_LIMIT, 0, "pickle: part %zu is of device %d; a pickle has at most device %d", i,
                         snapshot->parts.rows[i].device, MOST_DEVICE);
  return LADE_OK;
}

lade_status ladei_inspect_write_pickle(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                       ladei_output *output) {
  (void)options;
  LADEI_TRY(limits_check(snapshot));
  pickle to = {.output = output, .snapshot = snapshot};
  to.texts = calloc(snapshot->text_offsets.count + 1, sizeof *to.texts);
  to.stacks = calloc(snapshot->stacks.count + 1, sizeof *to.stacks);
  lade_status status = LADE_OK;
  if (to.texts == NULL || to.stacks == NULL)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pickle: no memory for a memo of %zu texts and %zu stacks",
                         snapshot->text_offsets.count, snapshot->stacks.count);
  else
    snapshot_write(&to);
  free(to.texts);
  free(to.stacks);
  return status;
}
