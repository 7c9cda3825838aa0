/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/inspect/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const sample_shape sample_small = {
    .seed = 1, .segments = 5, .blocks = 37, .events = 90, .stacks = 9, .frames = 4, .devices = 3, .pools = 2};
const sample_shape sample_long = {
    .seed = 3, .segments = 1500, .blocks = 4000, .events = 4000, .stacks = 300, .frames = 8, .devices = 2, .pools = 1};
const sample_shape sample_big = {
    .seed = 2, .segments = 2000, .blocks = 100000, .events = 1000000, .stacks = 2000, .frames = 16, .devices = 1};

static const char *const awkward[] = {
    "",
    "plain",
    "with \"quotes\" and \\ and / and \t and \n",
    "</script><script>alert(1)</script> & more",
    "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
    "\x1b[31mred\x1b[0m",
    ("0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
     "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
     "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"),
};
enum { AWKWARD = sizeof awkward / sizeof *awkward };

typedef struct maker {
  lade_snapshot *snapshot;
  const sample_shape *shape;
  uint64_t random;
  uint64_t time_ns;
  lade_status status;
} maker;

static uint64_t draw(maker *make) { /* splitmix64 */
  uint64_t z = make->random += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static uint64_t below(maker *make, uint64_t limit) { return draw(make) % limit; }

static void note_status(maker *make, lade_status status) {
  if (make->status == LADE_OK) make->status = status;
}

static uint32_t text(maker *make, const char *characters) {
  uint32_t number = 0;
  note_status(make, ladei_inspect_text(make->snapshot, characters, &number));
  return number;
}

/* Mostly none, as in programs. */
static uint32_t rare_text(maker *make) { return below(make, 8) == 0 ? text(make, awkward[below(make, AWKWARD)]) : 0; }

static uint32_t any_stack(maker *make) {
  bool none = make->snapshot->stacks.count == 0 || below(make, 10) == 0;
  return none ? LADEI_SNAPSHOT_NONE : (uint32_t)below(make, make->snapshot->stacks.count);
}

static lade_device_pool_id any_pool(maker *make) {
  lade_device_pool_id pool = {0, 0};
  if (below(make, 10) == 0) pool.first = below(make, 1 << 20), pool.second = below(make, 3) << 33;
  return pool;
}

static uint64_t any_stream(maker *make) {
  static const uint64_t streams[] = {0, 0, 0, 1, 2, 0x7f1234567000, 0x55aa00112230};
  return streams[below(make, sizeof streams / sizeof *streams)];
}

static void modules_make(maker *make) {
  static const char *const paths[] = {"/usr/bin/train", "/usr/lib/libtorch.so", "/opt/app/lib \"x\".so"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    uint32_t path = text(make, paths[i]), build_id = text(make, i == 2 ? "" : "0123456789abcdef");
    ladei_snapshot_module *module = LADEI_INSPECT_ADD(&make->snapshot->modules);
    if (module == NULL) return note_status(make, LADE_ERR_OUT_OF_HOST_MEMORY);
    *module = (ladei_snapshot_module){
        .base = 0x7f0000000000 + i * 0x10000000, .bytes = 0x400000 * (i + 1), .path = path, .build_id = build_id};
  }
}

static void stacks_make(maker *make) {
  ladei_snapshot_frame *frames = calloc(make->shape->frames + 1, sizeof *frames);
  if (frames == NULL) return note_status(make, LADE_ERR_OUT_OF_HOST_MEMORY);
  for (uint32_t i = 0; i < make->shape->stacks; i++) {
    for (uint32_t f = 0; f < make->shape->frames; f++) {
      char function[64], file[64];
      snprintf(function, sizeof function, "layer_%" PRIu64 "::forward", below(make, 3000));
      snprintf(file, sizeof file, "/src/model/part_%" PRIu64 ".cpp", below(make, 300));
      frames[f] = (ladei_snapshot_frame){.function = text(make, function),
                                         .file = text(make, file),
                                         .line = (uint32_t)below(make, 5000),
                                         .module = LADEI_SNAPSHOT_NONE};
      if (make->shape->devices < 2) continue;
      frames[f].module = (uint32_t)below(make, make->snapshot->modules.count);
      frames[f].address = make->snapshot->modules.rows[frames[f].module].base + below(make, 0x400000);
      if (below(make, 4) == 0) frames[f].file = frames[f].line = 0;
      if (below(make, 4) == 0) frames[f].function = 0;
      if (below(make, 6) == 0) frames[f].module = LADEI_SNAPSHOT_NONE;
    }
    uint32_t stack;
    note_status(make, ladei_inspect_stack(make->snapshot, frames, make->shape->frames, &stack));
  }
  free(frames);
}

static void block_make(maker *make, uint64_t address, uint64_t bytes) {
  uint32_t note = rare_text(make);
  ladei_snapshot_block *block = LADEI_INSPECT_ADD(&make->snapshot->blocks);
  if (block == NULL) return note_status(make, LADE_ERR_OUT_OF_HOST_MEMORY);
  *block = (ladei_snapshot_block){.address = address, .bytes = bytes, .state = (uint32_t)below(make, 3)};
  block->stack = any_stack(make);
  if (block->state == LADE_DEVICE_BLOCK_INACTIVE) return;
  block->requested_bytes = bytes - below(make, 256);
  block->note = note;
}

static void segment_make(maker *make, uint64_t address, uint32_t blocks, bool device) {
  uint64_t first = make->snapshot->blocks.count, at = address;
  for (uint32_t i = 0; i < blocks; i++) {
    uint64_t bytes = 512 * (1 + below(make, 5000));
    block_make(make, at, bytes);
    at += bytes;
  }
  ladei_snapshot_segment *segment = LADEI_INSPECT_ADD(&make->snapshot->segments);
  if (segment == NULL) return note_status(make, LADE_ERR_OUT_OF_HOST_MEMORY);
  *segment = (ladei_snapshot_segment){.address = address,
                                      .total_bytes = at - address,
                                      .first_block = first,
                                      .block_count = blocks,
                                      .numa_node = device ? -1 : (int32_t)below(make, 3) - 1};
  segment->stack = any_stack(make);
  if (!device) return;
  segment->stream = any_stream(make);
  segment->pool = any_pool(make);
  segment->flags = (uint32_t)below(make, 4);
}

static void memory_make(maker *make, uint32_t segments, uint32_t blocks, bool device) {
  for (uint32_t i = 0; i < segments; i++) {
    uint32_t own = blocks / segments + (i < blocks % segments ? 1 : 0);
    segment_make(make, 0x700000000000u + i * (uint64_t)0x100000000, own == 0 ? 1 : own, device);
  }
}

static void event_make(maker *make, uint32_t action) {
  uint32_t label = rare_text(make), scopes = rare_text(make);
  ladei_snapshot_event *event = LADEI_INSPECT_ADD(&make->snapshot->events);
  if (event == NULL) return note_status(make, LADE_ERR_OUT_OF_HOST_MEMORY);
  make->time_ns += below(make, 20000);
  *event = (ladei_snapshot_event){.time_ns = make->time_ns, .action = action, .label = label, .scopes = scopes};
  event->stack = any_stack(make);
  if (action == LADE_DEVICE_USER_DEFINED) return;
  event->address = 0x700000000000 + 512 * below(make, 1 << 24);
  event->bytes = 1 + below(make, 1 << 24);
  event->stream = any_stream(make);
  event->pool = any_pool(make);
}

static void events_make(maker *make, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    event_make(make, i % 16 < 11 ? i % 16 : i % 3); /* all of them, and most of all those of blocks */
}

static void counters_make(maker *make) {
  note_status(make, ladei_inspect_counter(make->snapshot, "allocated_bytes.all.current", (int64_t)(1ull << 40)));
  note_status(make, ladei_inspect_counter(make->snapshot, "max_split_size", -1));
  note_status(make, ladei_inspect_counter(make->snapshot, "num_ooms", INT64_MAX));
  note_status(make, ladei_inspect_counter(make->snapshot, "lowest", INT64_MIN));
}

static void settings_make(maker *make) {
  note_status(make, ladei_inspect_setting_text(make->snapshot, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"));
  note_status(make, ladei_inspect_integer(make->snapshot, "max_split_size", -1));
  note_status(make, ladei_inspect_real(make->snapshot, "garbage_collection_threshold", 0.1));
  note_status(make, ladei_inspect_bool(make->snapshot, "expandable_segments", true));
  note_status(make, ladei_inspect_integer(make->snapshot, "roundup_power2_divisions.256", 1));
  note_status(make, ladei_inspect_integer(make->snapshot, "roundup_power2_divisions.512", 4));
  note_status(make, ladei_inspect_bool(make->snapshot, "release_lock_on_cudamalloc", false));
}

static void part_make(maker *make, lade_part_kind kind, int device, const char *name) {
  note_status(make, ladei_inspect_part_begin(make->snapshot, kind, device, name));
  if (make->status != LADE_OK) return;
  counters_make(make);
  settings_make(make);
  ladei_snapshot_part *part = ladei_inspect_part(make->snapshot);
  part->time_ns = make->time_ns + 5000;
  part->skew_ns = kind == LADE_PART_DEVICE ? 0 : 12000;
  if (kind == LADE_PART_PIPELINE) return;
  const sample_shape *shape = make->shape;
  uint32_t share = make->snapshot->parts.count == 1 ? 1 : 2;
  part->events = 1;
  part->capacity_bytes = 80ull << 30;
  part->max_entries = shape->events;
  part->lost_count = below(make, 3);
  memory_make(make, shape->segments / share, shape->blocks / share, kind == LADE_PART_DEVICE);
  events_make(make, shape->events / share);
}

lade_snapshot *sample_create(const sample_shape *shape) {
  maker make = {.shape = shape, .random = shape->seed, .time_ns = 1700000000000000000, .status = LADE_OK};
  if (ladei_inspect_create(&make.snapshot) != LADE_OK) return NULL;
  make.snapshot->process_id = 4711;
  modules_make(&make);
  stacks_make(&make);
  for (uint32_t i = 0; i < shape->devices && make.status == LADE_OK; i++)
    part_make(&make, LADE_PART_DEVICE, i > 0 && i + 1 == shape->devices ? 0 : (int)i, "device");
  for (uint32_t i = 0; i < shape->pools && make.status == LADE_OK; i++)
    part_make(&make, LADE_PART_PINNED, -1, awkward[i % AWKWARD]);
  if (shape->pools > 0 && make.status == LADE_OK) part_make(&make, LADE_PART_PIPELINE, -1, "pipeline");
  make.snapshot->time_ns = make.time_ns;
  if (make.status == LADE_OK) make.status = ladei_inspect_finish(make.snapshot);
  if (make.status == LADE_OK) return make.snapshot;
  fprintf(stderr, "sample: %s\n", lade_last_error()->text);
  lade_snapshot_destroy(make.snapshot);
  return NULL;
}

/* --- comparison ----------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  const lade_snapshot *a, *b;
  uint64_t unit;
  char *room;
} comparison;

/* True, with the words written, where the values differ. */
static bool differs(const comparison *pair, const char *table, size_t row, const char *field, uint64_t a, uint64_t b) {
  if (a == b) return false;
  snprintf(pair->room, 256, "%s %zu: %s is %" PRIu64 " and %" PRIu64, table, row, field, a, b);
  return true;
}

static bool text_differs(const comparison *pair, const char *table, size_t row, const char *field, uint32_t a,
                         uint32_t b) {
  const char *in_a = ladei_inspect_string(pair->a, a), *in_b = ladei_inspect_string(pair->b, b);
  if (strcmp(in_a, in_b) == 0) return false;
  snprintf(pair->room, 256, "%s %zu: %s is '%.80s' and '%.80s'", table, row, field, in_a, in_b);
  return true;
}

static bool frame_differs(const comparison *pair, size_t row, const ladei_snapshot_frame *a,
                          const ladei_snapshot_frame *b) {
  return text_differs(pair, "frame", row, "function", a->function, b->function) ||
         text_differs(pair, "frame", row, "file", a->file, b->file) ||
         differs(pair, "frame", row, "line", a->line, b->line) ||
         differs(pair, "frame", row, "address", a->address, b->address) ||
         differs(pair, "frame", row, "module", a->module, b->module);
}

static bool stack_differs(const comparison *pair, const char *table, size_t row, uint32_t a, uint32_t b) {
  if (a == LADEI_SNAPSHOT_NONE || b == LADEI_SNAPSHOT_NONE) return differs(pair, table, row, "stack", a, b);
  const ladei_snapshot_stack *in_a = &pair->a->stacks.rows[a], *in_b = &pair->b->stacks.rows[b];
  if (differs(pair, table, row, "frames of its stack", in_a->frame_count, in_b->frame_count)) return true;
  for (size_t i = 0; i < in_a->frame_count; i++)
    if (frame_differs(pair, i, &pair->a->frames.rows[in_a->first_frame + i],
                      &pair->b->frames.rows[in_b->first_frame + i]))
      return true;
  return false;
}

static bool pool_differs(const comparison *pair, const char *table, size_t row, lade_device_pool_id a,
                         lade_device_pool_id b) {
  return differs(pair, table, row, "pool.first", a.first, b.first) ||
         differs(pair, table, row, "pool.second", a.second, b.second);
}

static bool part_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_part *a = &pair->a->parts.rows[row], *b = &pair->b->parts.rows[row];
  return differs(pair, "part", row, "kind", a->kind, b->kind) ||
         differs(pair, "part", row, "device", (uint64_t)a->device, (uint64_t)b->device) ||
         text_differs(pair, "part", row, "name", a->name, b->name) ||
         differs(pair, "part", row, "events", a->events, b->events) ||
         differs(pair, "part", row, "first_segment", a->first_segment, b->first_segment) ||
         differs(pair, "part", row, "segment_count", a->segment_count, b->segment_count) ||
         differs(pair, "part", row, "first_block", a->first_block, b->first_block) ||
         differs(pair, "part", row, "block_count", a->block_count, b->block_count) ||
         differs(pair, "part", row, "first_event", a->first_event, b->first_event) ||
         differs(pair, "part", row, "event_count", a->event_count, b->event_count) ||
         differs(pair, "part", row, "counter_count", a->counter_count, b->counter_count) ||
         differs(pair, "part", row, "setting_count", a->setting_count, b->setting_count) ||
         differs(pair, "part", row, "lost_count", a->lost_count, b->lost_count) ||
         differs(pair, "part", row, "capacity_bytes", a->capacity_bytes, b->capacity_bytes) ||
         differs(pair, "part", row, "max_entries", a->max_entries, b->max_entries) ||
         differs(pair, "part", row, "time_ns", a->time_ns, b->time_ns) ||
         differs(pair, "part", row, "skew_ns", a->skew_ns, b->skew_ns);
}

static bool segment_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_segment *a = &pair->a->segments.rows[row], *b = &pair->b->segments.rows[row];
  return differs(pair, "segment", row, "address", a->address, b->address) ||
         differs(pair, "segment", row, "total_bytes", a->total_bytes, b->total_bytes) ||
         differs(pair, "segment", row, "allocated_bytes", a->allocated_bytes, b->allocated_bytes) ||
         differs(pair, "segment", row, "active_bytes", a->active_bytes, b->active_bytes) ||
         differs(pair, "segment", row, "requested_bytes", a->requested_bytes, b->requested_bytes) ||
         differs(pair, "segment", row, "stream", a->stream, b->stream) ||
         pool_differs(pair, "segment", row, a->pool, b->pool) ||
         differs(pair, "segment", row, "first_block", a->first_block, b->first_block) ||
         differs(pair, "segment", row, "block_count", a->block_count, b->block_count) ||
         differs(pair, "segment", row, "part", a->part, b->part) ||
         stack_differs(pair, "segment", row, a->stack, b->stack) ||
         differs(pair, "segment", row, "flags", a->flags, b->flags) ||
         differs(pair, "segment", row, "numa_node", (uint64_t)a->numa_node, (uint64_t)b->numa_node);
}

static bool block_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_block *a = &pair->a->blocks.rows[row], *b = &pair->b->blocks.rows[row];
  return differs(pair, "block", row, "address", a->address, b->address) ||
         differs(pair, "block", row, "bytes", a->bytes, b->bytes) ||
         differs(pair, "block", row, "requested_bytes", a->requested_bytes, b->requested_bytes) ||
         differs(pair, "block", row, "state", a->state, b->state) ||
         stack_differs(pair, "block", row, a->stack, b->stack) ||
         text_differs(pair, "block", row, "note", a->note, b->note);
}

static bool event_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_event *a = &pair->a->events.rows[row], *b = &pair->b->events.rows[row];
  return differs(pair, "event", row, "time", a->time_ns / pair->unit, b->time_ns / pair->unit) ||
         differs(pair, "event", row, "address", a->address, b->address) ||
         differs(pair, "event", row, "bytes", a->bytes, b->bytes) ||
         differs(pair, "event", row, "block_bytes", a->block_bytes, b->block_bytes) ||
         differs(pair, "event", row, "flags", a->flags, b->flags) ||
         differs(pair, "event", row, "stream", a->stream, b->stream) ||
         pool_differs(pair, "event", row, a->pool, b->pool) || stack_differs(pair, "event", row, a->stack, b->stack) ||
         text_differs(pair, "event", row, "label", a->label, b->label) ||
         text_differs(pair, "event", row, "scopes", a->scopes, b->scopes) ||
         differs(pair, "event", row, "part", a->part, b->part) ||
         differs(pair, "event", row, "action", a->action, b->action);
}

static bool module_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_module *a = &pair->a->modules.rows[row], *b = &pair->b->modules.rows[row];
  return differs(pair, "module", row, "base", a->base, b->base) ||
         differs(pair, "module", row, "bytes", a->bytes, b->bytes) ||
         text_differs(pair, "module", row, "path", a->path, b->path) ||
         text_differs(pair, "module", row, "build_id", a->build_id, b->build_id);
}

static bool counter_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_counter *a = &pair->a->counters.rows[row], *b = &pair->b->counters.rows[row];
  return text_differs(pair, "counter", row, "key", a->key, b->key) ||
         differs(pair, "counter", row, "value", (uint64_t)a->value, (uint64_t)b->value) ||
         differs(pair, "counter", row, "part", a->part, b->part);
}

static bool setting_differs(const comparison *pair, size_t row) {
  const ladei_snapshot_setting *a = &pair->a->settings.rows[row], *b = &pair->b->settings.rows[row];
  uint64_t real_a, real_b;
  memcpy(&real_a, &a->real, sizeof real_a);
  memcpy(&real_b, &b->real, sizeof real_b);
  return text_differs(pair, "setting", row, "key", a->key, b->key) ||
         differs(pair, "setting", row, "kind", a->kind, b->kind) ||
         differs(pair, "setting", row, "integer", (uint64_t)a->integer, (uint64_t)b->integer) ||
         (!(isnan(a->real) && isnan(b->real)) && differs(pair, "setting", row, "real", real_a, real_b)) ||
         text_differs(pair, "setting", row, "text", a->text, b->text) ||
         differs(pair, "setting", row, "part", a->part, b->part);
}

static bool table_differs(const comparison *pair, const char *table, size_t a, size_t b,
                          bool (*row_differs)(const comparison *, size_t)) {
  if (differs(pair, table, 0, "count", a, b)) return true;
  for (size_t i = 0; i < a; i++)
    if (row_differs(pair, i)) return true;
  return false;
}

const char *sample_difference(const lade_snapshot *a, const lade_snapshot *b, uint64_t time_unit_ns, char room[256]) {
  const comparison pair = {.a = a, .b = b, .unit = time_unit_ns, .room = room};
  room[0] = '\0';
  (void)(differs(&pair, "snapshot", 0, "time_ns", a->time_ns, b->time_ns) ||
         differs(&pair, "snapshot", 0, "process_id", a->process_id, b->process_id) ||
         table_differs(&pair, "parts", a->parts.count, b->parts.count, part_differs) ||
         table_differs(&pair, "modules", a->modules.count, b->modules.count, module_differs) ||
         table_differs(&pair, "segments", a->segments.count, b->segments.count, segment_differs) ||
         table_differs(&pair, "blocks", a->blocks.count, b->blocks.count, block_differs) ||
         table_differs(&pair, "events", a->events.count, b->events.count, event_differs) ||
         table_differs(&pair, "counters", a->counters.count, b->counters.count, counter_differs) ||
         table_differs(&pair, "settings", a->settings.count, b->settings.count, setting_differs));
  return room;
}

/* --- files in memory -------------------------------------------------------------------------------------------------- */

typedef struct memory_file {
  char *data;
  size_t bytes, room;
} memory_file;

static lade_status memory_write(void *user, const void *data, size_t bytes) {
  memory_file *file = user;
  if (file->room - file->bytes < bytes) {
    size_t wanted = (file->bytes + bytes) * 2;
    char *grown = realloc(file->data, wanted);
    if (grown == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "sample: no memory for %zu bytes", wanted);
    file->data = grown;
    file->room = wanted;
  }
  memcpy(file->data + file->bytes, data, bytes);
  file->bytes += bytes;
  return LADE_OK;
}

char *sample_write(const lade_snapshot *snapshot, sample_format format, size_t *out_bytes) {
  memory_file file = {NULL, 0, 0};
  ladei_output *output = malloc(sizeof *output);
  if (output == NULL) return NULL;
  ladei_output_init(output, memory_write, &file);
  lade_snapshot_write_options options;
  lade_snapshot_write_options_init(&options);
  lade_status status = format(snapshot, &options, output);
  if (status == LADE_OK) status = ladei_output_flush(output);
  free(output);
  if (status != LADE_OK) {
    free(file.data);
    return NULL;
  }
  *out_bytes = file.bytes;
  return file.data;
}

const char *sample_round_trip(const lade_snapshot *before, sample_format format, sample_reader reader,
                              uint64_t time_unit_ns, char room[256]) {
  lade_snapshot *after = NULL;
  size_t bytes = 0;
  char *data = sample_write(before, format, &bytes);
  lade_status status = data == NULL ? lade_last_error()->status : reader(data, bytes, "round trip", &after);
  snprintf(room, 256, "%.255s", lade_last_error()->text);
  const char *difference = status == LADE_OK ? sample_difference(before, after, time_unit_ns, room) : room;
  lade_snapshot_destroy(after);
  free(data);
  return difference;
}

static const sample_shape few = {.seed = 9, .segments = 1, .blocks = 1, .events = 0, .devices = 1};
static const sample_shape pinned = {
    .seed = 4, .segments = 6, .blocks = 50, .events = 300, .stacks = 20, .frames = 70, .pools = 3};
static const sample_shape nothing = {.seed = 5};
const sample_shape *const sample_shapes[] = {&sample_small, &sample_long, &few, &pinned, &nothing, NULL};
