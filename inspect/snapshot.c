/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/snapshot.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/huge_pages.h"
#include "base/options.h"
#include "base/utf8.h"

/* --- tables ------------------------------------------------------------------------------------------------------- */

static lade_status no_memory(size_t rows, size_t row_bytes) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu rows of %zu bytes", rows, row_bytes);
}

lade_status ladei_inspect_reserve(void **rows, size_t count, size_t *room, size_t row_bytes, size_t more) {
  assert(count <= *room);
  if (more <= *room - count) return LADE_OK;
  if (more > UINT32_MAX - 1 || count > UINT32_MAX - 1 - more)
    return ladei_error(LADE_ERR_LIMIT, 0, "snapshot: %zu rows of %zu bytes and %zu more; at most 2^32 - 2", count,
                       row_bytes, more);
  size_t wanted = *room + *room / 2;
  if (wanted < count + more) wanted = count + more;
  if (wanted < 16) wanted = 16;
  void *grown = realloc(*rows, wanted * row_bytes);
  if (grown == NULL) return no_memory(wanted, row_bytes);
  if (*rows == NULL)
    ladei_huge_pages_advise(grown, wanted * row_bytes); /* memory reserved at once and not touched yet */
  *rows = grown;
  *room = wanted;
  return LADE_OK;
}

void *ladei_inspect_add(void **rows, size_t *count, size_t *room, size_t row_bytes) {
  if (*count == *room && ladei_inspect_reserve(rows, *count, room, row_bytes, 1) != LADE_OK) return NULL;
  void *row = (char *)*rows + *count * row_bytes;
  memset(row, 0, row_bytes);
  ++*count;
  return row;
}

/* --- interning ---------------------------------------------------------------------------------------------------- */

typedef uint64_t (*hash_of)(const lade_snapshot *, uint32_t number);

static void index_put(ladei_inspect_index *index, uint64_t hash, uint32_t number) {
  assert(index->used < index->room); /* a place is free */
  size_t place = hash & (index->room - 1);
  while (index->places[place] != 0) place = (place + 1) & (index->room - 1);
  index->places[place] = number + 1;
}

/* Room for one more, with a place in two free. */
static lade_status index_grow(const lade_snapshot *snapshot, ladei_inspect_index *index, hash_of hash) {
  if (index->used < index->room / 2) return LADE_OK;
  ladei_inspect_index grown = {NULL, index->room == 0 ? 64 : index->room * 2, index->used};
  grown.places = calloc(grown.room, sizeof *grown.places);
  if (grown.places == NULL) return no_memory(grown.room, sizeof *grown.places);
  assert((grown.room & (grown.room - 1)) == 0);
  for (size_t i = 0; i < index->room; i++)
    if (index->places[i] != 0) index_put(&grown, hash(snapshot, index->places[i] - 1), index->places[i] - 1);
  free(index->places);
  *index = grown;
  return LADE_OK;
}

/* Bytes of the text that are clean. */
static size_t text_clean_bytes(const char *text, size_t bytes) {
  size_t clean = 0;
  while (clean < bytes) {
    size_t character = text[clean] == '\0' ? 0 : ladei_utf8_character(text + clean, bytes - clean);
    if (character == 0) break;
    clean += character;
  }
  return clean;
}

static uint64_t text_hash(const lade_snapshot *snapshot, uint32_t text) {
  const char *characters = ladei_inspect_string(snapshot, text);
  return XXH3_64bits(characters, strlen(characters));
}

static lade_status text_add(lade_snapshot *snapshot, const char *text, size_t bytes, uint32_t *out) {
  size_t offset = snapshot->characters.count;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&snapshot->characters, bytes + 1));
  size_t *place = LADEI_INSPECT_ADD(&snapshot->text_offsets);
  if (place == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *place = offset;
  assert(text_clean_bytes(text, bytes) == bytes); /* UTF-8 without NUL */
  memcpy(snapshot->characters.rows + offset, text, bytes);
  snapshot->characters.rows[offset + bytes] = '\0';
  snapshot->characters.count += bytes + 1;
  *out = (uint32_t)(snapshot->text_offsets.count - 1);
  return LADE_OK;
}

/* Clean text: UTF-8 without NUL. */
static lade_status text_intern(lade_snapshot *snapshot, const char *text, size_t bytes, uint32_t *out) {
  LADEI_TRY(index_grow(snapshot, &snapshot->text_index, text_hash));
  uint64_t hash = XXH3_64bits(text, bytes);
  ladei_inspect_index *index = &snapshot->text_index;
  for (size_t place = hash & (index->room - 1); index->places[place] != 0; place = (place + 1) & (index->room - 1)) {
    const char *known = ladei_inspect_string(snapshot, index->places[place] - 1);
    if (strncmp(known, text, bytes) != 0 || known[bytes] != '\0') continue;
    *out = index->places[place] - 1;
    return LADE_OK;
  }
  LADEI_TRY(text_add(snapshot, text, bytes, out));
  index_put(index, hash, *out);
  index->used++;
  return LADE_OK;
}

lade_status ladei_inspect_text_bytes(lade_snapshot *snapshot, const char *text, size_t bytes, uint32_t *out) {
  size_t clean = text_clean_bytes(text, bytes);
  if (clean == bytes) return text_intern(snapshot, text, bytes, out);
  char *copy = malloc(bytes);
  if (copy == NULL) return no_memory(bytes, 1);
  memcpy(copy, text, bytes);
  while (clean < bytes) {
    copy[clean] = '?';
    clean += text_clean_bytes(copy + clean, bytes - clean);
  }
  lade_status status = text_intern(snapshot, copy, bytes, out);
  free(copy);
  return status;
}

lade_status ladei_inspect_text(lade_snapshot *snapshot, const char *text, uint32_t *out) {
  if (text == NULL) text = "";
  *out = 0;
  if (*text == '\0' && snapshot->text_offsets.count > 0) return LADE_OK; /* S4 */
  return ladei_inspect_text_bytes(snapshot, text, strlen(text), out);
}

static uint64_t stack_hash(const lade_snapshot *snapshot, uint32_t number) {
  const ladei_snapshot_stack *stack = &snapshot->stacks.rows[number];
  return XXH3_64bits(snapshot->frames.rows + stack->first_frame, stack->frame_count * sizeof *snapshot->frames.rows);
}

lade_status ladei_inspect_stack(lade_snapshot *snapshot, const ladei_snapshot_frame *frames, size_t count,
                                uint32_t *out) {
  if (count == 0) {
    *out = LADEI_SNAPSHOT_NONE;
    return LADE_OK;
  }
  LADEI_TRY(index_grow(snapshot, &snapshot->stack_index, stack_hash));
  uint64_t hash = XXH3_64bits(frames, count * sizeof *frames);
  ladei_inspect_index *index = &snapshot->stack_index;
  for (size_t place = hash & (index->room - 1); index->places[place] != 0; place = (place + 1) & (index->room - 1)) {
    const ladei_snapshot_stack *known = &snapshot->stacks.rows[index->places[place] - 1];
    if (known->frame_count != count) continue;
    if (memcmp(snapshot->frames.rows + known->first_frame, frames, count * sizeof *frames) != 0) continue;
    *out = index->places[place] - 1;
    return LADE_OK;
  }
  assert(index->used == snapshot->stacks.count); /* each stack is there once */
  LADEI_TRY(LADEI_INSPECT_RESERVE(&snapshot->frames, count));
  ladei_snapshot_stack *stack = LADEI_INSPECT_ADD(&snapshot->stacks);
  if (stack == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *stack = (ladei_snapshot_stack){.first_frame = snapshot->frames.count, .frame_count = count};
  memcpy(snapshot->frames.rows + snapshot->frames.count, frames, count * sizeof *frames);
  snapshot->frames.count += count;
  *out = (uint32_t)(snapshot->stacks.count - 1);
  index_put(index, hash, *out);
  index->used++;
  return LADE_OK;
}

/* --- filling ------------------------------------------------------------------------------------------------------ */

void ladei_inspect_process_name(lade_snapshot *snapshot, uint64_t process_id) {
  char path[64];
  struct utsname machine;
  snprintf(path, sizeof path, "/proc/%llu/comm", (unsigned long long)process_id);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t bytes = fd < 0 ? 0 : read(fd, snapshot->command, sizeof snapshot->command - 1);
  if (fd >= 0) close(fd);
  snapshot->command[bytes < 0 ? 0 : bytes] = '\0';
  snapshot->command[strcspn(snapshot->command, "\n")] = '\0';
  if (uname(&machine) == 0) snprintf(snapshot->host, sizeof snapshot->host, "%.71s", machine.nodename);
}

lade_status ladei_inspect_create(lade_snapshot **out) {
  lade_snapshot *snapshot = calloc(1, sizeof *snapshot);
  if (snapshot == NULL) return no_memory(1, sizeof *snapshot);
  uint32_t empty;
  lade_status status = ladei_inspect_text(snapshot, "", &empty);
  if (status != LADE_OK) {
    lade_snapshot_destroy(snapshot);
    return status;
  }
  assert(empty == 0); /* S4 */
  *out = snapshot;
  return LADE_OK;
}

void ladei_inspect_named_destroy(lade_snapshot *named) {
  if (named == NULL) return;
  free(named->stacks.rows);
  free(named->frames.rows);
  free(named->characters.rows);
  free(named->text_offsets.rows);
  free(named->text_index.places);
  free(named);
}

void lade_snapshot_destroy(lade_snapshot *snapshot) {
  if (snapshot == NULL) return;
  free(snapshot->parts.rows);
  free(snapshot->segments.rows);
  free(snapshot->blocks.rows);
  free(snapshot->events.rows);
  free(snapshot->stacks.rows);
  free(snapshot->frames.rows);
  free(snapshot->modules.rows);
  free(snapshot->counters.rows);
  free(snapshot->settings.rows);
  free(snapshot->characters.rows);
  free(snapshot->text_offsets.rows);
  free(snapshot->text_index.places);
  free(snapshot->stack_index.places);
  ladei_inspect_named_destroy(atomic_load(&snapshot->named));
  free(snapshot);
}

ladei_snapshot_part *ladei_inspect_part(lade_snapshot *snapshot) {
  return snapshot->parts.count == 0 ? NULL : &snapshot->parts.rows[snapshot->parts.count - 1];
}

/* S1: the last part has the rows since it began. */
static void part_end(lade_snapshot *snapshot) {
  ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  if (part == NULL) return;
  assert(part->first_segment <= snapshot->segments.count && part->first_block <= snapshot->blocks.count);
  assert(part->first_event <= snapshot->events.count && part->first_counter <= snapshot->counters.count);
  part->segment_count = snapshot->segments.count - part->first_segment;
  part->block_count = snapshot->blocks.count - part->first_block;
  part->event_count = snapshot->events.count - part->first_event;
  part->counter_count = snapshot->counters.count - part->first_counter;
  part->setting_count = snapshot->settings.count - part->first_setting;
}

lade_status ladei_inspect_part_begin(lade_snapshot *snapshot, lade_part_kind kind, int device, const char *name) {
  uint32_t text;
  part_end(snapshot);
  LADEI_TRY(ladei_inspect_text(snapshot, name, &text));
  ladei_snapshot_part *part = LADEI_INSPECT_ADD(&snapshot->parts);
  if (part == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  part->kind = kind;
  part->device = device;
  part->name = text;
  part->first_segment = snapshot->segments.count;
  part->first_block = snapshot->blocks.count;
  part->first_event = snapshot->events.count;
  part->first_counter = snapshot->counters.count;
  part->first_setting = snapshot->settings.count;
  return LADE_OK;
}

lade_status ladei_inspect_counter(lade_snapshot *snapshot, const char *key, int64_t value) {
  uint32_t text;
  LADEI_TRY(ladei_inspect_text(snapshot, key, &text));
  ladei_snapshot_counter *counter = LADEI_INSPECT_ADD(&snapshot->counters);
  if (counter == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  assert(snapshot->parts.count > 0);
  *counter = (ladei_snapshot_counter){.value = value, .key = text, .part = (uint32_t)(snapshot->parts.count - 1)};
  return LADE_OK;
}

lade_status ladei_inspect_counter_visit(const char *key, int64_t value, void *user) {
  return ladei_inspect_counter(user, key, value);
}

static lade_status setting_add(lade_snapshot *snapshot, const char *key, ladei_snapshot_setting_kind kind,
                               ladei_snapshot_setting **out) {
  uint32_t text;
  LADEI_TRY(ladei_inspect_text(snapshot, key, &text));
  ladei_snapshot_setting *setting = LADEI_INSPECT_ADD(&snapshot->settings);
  if (setting == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  assert(snapshot->parts.count > 0);
  setting->key = text;
  setting->kind = kind;
  setting->part = (uint32_t)(snapshot->parts.count - 1);
  *out = setting;
  return LADE_OK;
}

lade_status ladei_inspect_integer(lade_snapshot *snapshot, const char *key, int64_t value) {
  ladei_snapshot_setting *setting;
  LADEI_TRY(setting_add(snapshot, key, LADEI_SNAPSHOT_SETTING_INTEGER, &setting));
  setting->integer = value;
  return LADE_OK;
}

lade_status ladei_inspect_bool(lade_snapshot *snapshot, const char *key, bool value) {
  ladei_snapshot_setting *setting;
  LADEI_TRY(setting_add(snapshot, key, LADEI_SNAPSHOT_SETTING_BOOL, &setting));
  setting->integer = value;
  return LADE_OK;
}

lade_status ladei_inspect_real(lade_snapshot *snapshot, const char *key, double value) {
  ladei_snapshot_setting *setting;
  LADEI_TRY(setting_add(snapshot, key, LADEI_SNAPSHOT_SETTING_REAL, &setting));
  setting->real = value;
  return LADE_OK;
}

lade_status ladei_inspect_setting_text(lade_snapshot *snapshot, const char *key, const char *value) {
  uint32_t text;
  LADEI_TRY(ladei_inspect_text(snapshot, value, &text));
  ladei_snapshot_setting *setting;
  LADEI_TRY(setting_add(snapshot, key, LADEI_SNAPSHOT_SETTING_TEXT, &setting));
  setting->text = text;
  return LADE_OK;
}

/* --- checking ----------------------------------------------------------------------------------------------------- */

static lade_status refuse(const char *table, size_t row, const char *what) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "snapshot: %s %zu: %s", table, row, what);
}

static bool stack_is_known(const lade_snapshot *snapshot, uint32_t stack) {
  return stack == LADEI_SNAPSHOT_NONE || stack < snapshot->stacks.count;
}

/* S2, S3, S5 for one segment. */
static lade_status segment_finish(lade_snapshot *snapshot, size_t row) {
  ladei_snapshot_segment *segment = &snapshot->segments.rows[row];
  if (!stack_is_known(snapshot, segment->stack)) return refuse("segment", row, "a stack that is not there");
  if (segment->first_block > snapshot->blocks.count ||
      segment->block_count > snapshot->blocks.count - segment->first_block)
    return refuse("segment", row, "blocks that are not there");
  uint64_t at = segment->address;
  uint64_t allocated = 0, active = 0, requested = 0;
  for (size_t i = segment->first_block; i < segment->first_block + segment->block_count; i++) {
    const ladei_snapshot_block *block = &snapshot->blocks.rows[i];
    if (block->address != at) return refuse("block", i, "does not begin where the block before it ends");
    if (block->bytes == 0 || block->bytes > UINT64_MAX - at)
      return refuse("block", i, "its size is 0, or ends beyond all memory");
    if (block->state > LADE_DEVICE_BLOCK_PENDING_FREE) return refuse("block", i, "an unknown state");
    if (!stack_is_known(snapshot, block->stack)) return refuse("block", i, "a stack that is not there");
    at += block->bytes;
    if (block->state == LADE_DEVICE_BLOCK_ALLOCATED) allocated += block->bytes;
    if (block->state == LADE_DEVICE_BLOCK_INACTIVE) continue;
    active += block->bytes;
    requested += block->requested_bytes;
  }
  if (segment->block_count > 0 && at - segment->address != segment->total_bytes)
    return refuse("segment", row, "its blocks do not add up to its size");
  assert(allocated <= active && active <= at - segment->address); /* S3 */
  segment->allocated_bytes = allocated;
  segment->active_bytes = active;
  segment->requested_bytes = requested;
  return LADE_OK;
}

static lade_status part_finish(lade_snapshot *snapshot, size_t row) {
  const ladei_snapshot_part *part = &snapshot->parts.rows[row];
  uint64_t end = 0, next_block = part->first_block;
  for (size_t i = part->first_segment; i < part->first_segment + part->segment_count; i++) {
    ladei_snapshot_segment *segment = &snapshot->segments.rows[i];
    segment->part = (uint32_t)row;
    LADEI_TRY(segment_finish(snapshot, i));
    if (segment->first_block != next_block)
      return refuse("segment", i, "its blocks do not follow those of the segment before");
    if (segment->address < end) return refuse("segment", i, "begins before the end of the segment before it");
    if (segment->total_bytes > UINT64_MAX - segment->address) return refuse("segment", i, "ends beyond all memory");
    end = segment->address + segment->total_bytes;
    next_block += segment->block_count;
  }
  if (next_block != part->first_block + part->block_count) return refuse("part", row, "blocks without a segment");
  return LADE_OK;
}

static lade_status events_finish(lade_snapshot *snapshot) {
  for (size_t p = 0; p < snapshot->parts.count; p++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[p];
    for (size_t i = part->first_event; i < part->first_event + part->event_count; i++) {
      ladei_snapshot_event *event = &snapshot->events.rows[i];
      event->part = (uint32_t)p;
      if (!stack_is_known(snapshot, event->stack)) return refuse("event", i, "a stack that is not there");
    }
  }
  return LADE_OK;
}

/* S1, S4 and the indices of S3 that no refusal above looks at. */
static void snapshot_recount(const lade_snapshot *snapshot) {
#ifndef NDEBUG
  ladei_snapshot_part next = {.first_segment = 0};
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    assert(part->first_segment == next.first_segment && part->first_block == next.first_block); /* S1 */
    assert(part->first_event == next.first_event);
    assert(part->first_counter == next.first_counter && part->first_setting == next.first_setting);
    next.first_segment += part->segment_count;
    next.first_block += part->block_count;
    next.first_event += part->event_count;
    next.first_counter += part->counter_count;
    next.first_setting += part->setting_count;
  }
  assert(next.first_segment == snapshot->segments.count && next.first_block == snapshot->blocks.count); /* S1 */
  assert(next.first_event == snapshot->events.count && next.first_counter == snapshot->counters.count);
  assert(next.first_setting == snapshot->settings.count);
  for (size_t i = 0; i < snapshot->counters.count; i++) {
    assert(snapshot->counters.rows[i].part < snapshot->parts.count); /* S3 */
    assert(snapshot->counters.rows[i].key < snapshot->text_offsets.count);
  }
  for (size_t i = 0; i < snapshot->stacks.count; i++) {
    const ladei_snapshot_stack *stack = &snapshot->stacks.rows[i];
    assert(stack->frame_count > 0 && stack->first_frame + stack->frame_count <= snapshot->frames.count); /* S3 */
  }
  assert(snapshot->text_offsets.count > 0 &&
         snapshot->characters.rows[snapshot->text_offsets.rows[0]] == '\0'); /* S4 */
  assert(snapshot->characters.rows[snapshot->characters.count - 1] == '\0');
  assert(snapshot->text_index.used == snapshot->text_offsets.count); /* S4: each text once */
#endif
  (void)snapshot;
}

lade_status ladei_inspect_finish(lade_snapshot *snapshot) {
  part_end(snapshot);
  for (size_t i = 0; i < snapshot->parts.count; i++) LADEI_TRY(part_finish(snapshot, i));
  LADEI_TRY(events_finish(snapshot));
  snapshot_recount(snapshot);
  return LADE_OK;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

const char *const ladei_inspect_actions[] = {"alloc",        "free_requested", "free_completed", "segment_alloc",
                                             "segment_free", "segment_map",    "segment_unmap",  "snapshot",
                                             "oom",          "user_defined",   "annotate",       NULL};
const char *const ladei_inspect_states[] = {"inactive", "active_allocated", "active_pending_free", NULL};
const char *const ladei_inspect_kinds[] = {"device", "pinned", "pipeline", NULL};

const char *ladei_inspect_kind_name(uint32_t kind) {
  return kind >= LADE_PART_DEVICE && kind <= LADE_PART_PIPELINE ? ladei_inspect_kinds[kind - LADE_PART_DEVICE] : "part";
}

const char *ladei_inspect_action_name(uint32_t action) {
  return action <= LADE_DEVICE_ANNOTATE ? ladei_inspect_actions[action] : "?";
}

/* --- looking in --------------------------------------------------------------------------------------------------- */

int64_t ladei_inspect_counter_find(const lade_snapshot *snapshot, uint32_t part, const char *key, int64_t otherwise) {
  assert(part < snapshot->parts.count);
  const ladei_snapshot_part *row = &snapshot->parts.rows[part];
  for (size_t i = row->first_counter; i < row->first_counter + row->counter_count; i++) {
    const ladei_snapshot_counter *counter = &snapshot->counters.rows[i];
    if (strcmp(ladei_inspect_string(snapshot, counter->key), key) == 0) return counter->value;
  }
  return otherwise;
}
