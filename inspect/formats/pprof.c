/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protocol buffers by hand: a message is fields (number, type, value), a nested one is length and bytes. Numbers of
 * fields are those of pprof's profile.proto.
 *
 *   Profile: sample_type 1, sample 2, mapping 3, location 4, function 5, string_table 6, time_nanos 9, default_sample_type 14
 *
 * G1  Number 0 of the string table is "". Texts of the snapshot keep their numbers; the writer's own follow.
 * G2  Frame i of the snapshot is location i + 1 and function i + 1; module i is mapping i + 1.
 */
#include "inspect/formats/pprof.h"

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "inspect/deflate.h"
#include "inspect/frames.h"

enum { VARINT = 0, BYTES = 2 };

/* The writer's own texts, after those of the snapshot. */
typedef enum own_text {
  TEXT_ALLOC_OBJECTS,
  TEXT_ALLOC_SPACE,
  TEXT_INUSE_OBJECTS,
  TEXT_INUSE_SPACE,
  TEXT_COUNT,
  TEXT_BYTES,
  TEXT_PART,
  TEXT_UNKNOWN,
  OWN_TEXTS
} own_text;
static const char *const own_texts[OWN_TEXTS] = {"alloc_objects", "alloc_space", "inuse_objects", "inuse_space",
                                                 "count",         "bytes",       "part",          "(no stack)"};

/* A message that is built before its length is known. */
typedef struct message {
  unsigned char *bytes;
  size_t used, room;
  bool failed; /* no memory */
} message;

static void message_byte(message *m, unsigned char byte) {
  if (LADEI_ARRAY_ROOM(m->bytes, m->room, m->used + 1))
    m->bytes[m->used++] = byte;
  else
    m->failed = true;
}

static void message_varint(message *m, uint64_t value) {
  for (; value >= 0x80; value >>= 7) message_byte(m, (unsigned char)(value | 0x80));
  message_byte(m, (unsigned char)value);
}

static void message_uint(message *m, unsigned field, uint64_t value) {
  if (value == 0) return;
  message_varint(m, field << 3 | VARINT);
  message_varint(m, value);
}

static void output_varint(ladei_output *output, uint64_t value) {
  for (; value >= 0x80; value >>= 7) ladei_output_byte(output, (char)(value | 0x80));
  ladei_output_byte(output, (char)value);
}

static void output_bytes(ladei_output *output, unsigned field, const void *bytes, size_t count) {
  output_varint(output, field << 3 | BYTES);
  output_varint(output, count);
  ladei_output_bytes(output, bytes, count);
}

static void output_message(ladei_output *output, unsigned field, message *m) {
  output_bytes(output, field, m->used == 0 ? (const void *)"" : m->bytes, m->used);
  m->used = 0;
}

/* One profile in writing. */
typedef struct profile {
  const lade_snapshot *snapshot;
  ladei_output *output;
  message message, nested;
  uint64_t (*values)[4]; /* by stack; the last one for none */
} profile;

static uint64_t own_text_number(const profile *p, own_text text) {
  return p->snapshot->text_offsets.count + (uint64_t)text;
}

static void sample_type_write(profile *p, own_text type, own_text unit) {
  message_uint(&p->message, 1, own_text_number(p, type));
  message_uint(&p->message, 2, own_text_number(p, unit));
  output_message(p->output, 1, &p->message);
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

static size_t stack_row(const profile *p, uint32_t stack) {
  assert(stack == LADEI_SNAPSHOT_NONE || stack < p->snapshot->stacks.count); /* S3 in snapshot.h */
  return stack == LADEI_SNAPSHOT_NONE ? p->snapshot->stacks.count : stack;
}

static void part_sum(profile *p, const ladei_snapshot_part *part) {
  const lade_snapshot *snapshot = p->snapshot;
  memset(p->values, 0, (snapshot->stacks.count + 1) * sizeof *p->values);
  for (uint64_t i = part->first_block; i < part->first_block + part->block_count; i++) {
    const ladei_snapshot_block *block = &snapshot->blocks.rows[i];
    if (block->state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
    uint64_t *row = p->values[stack_row(p, block->stack)];
    row[2]++;
    row[3] += block->requested_bytes;
    if (part->events) continue;
    row[0]++; /* without a history only the blocks in use are known to have been allocated */
    row[1] += block->requested_bytes;
  }
  for (uint64_t i = part->first_event; i < part->first_event + part->event_count; i++) {
    const ladei_snapshot_event *event = &snapshot->events.rows[i];
    if (event->action != LADE_DEVICE_ALLOC) continue;
    uint64_t *row = p->values[stack_row(p, event->stack)];
    row[0]++;
    row[1] += event->bytes;
  }
}

/* Packed fields: location_id 1, value 2; label 3. */
static void sample_write(profile *p, const ladei_snapshot_part *part, size_t stack) {
  const lade_snapshot *snapshot = p->snapshot;
  if (stack < snapshot->stacks.count) {
    const ladei_snapshot_stack *row = &snapshot->stacks.rows[stack];
    assert(row->first_frame + row->frame_count <= snapshot->frames.count); /* G2: the locations are there */
    for (uint64_t i = 0; i < row->frame_count; i++) message_uint(&p->message, 1, row->first_frame + i + 1);
  } else {
    message_uint(&p->message, 1, snapshot->frames.count + 1);
  }
  for (size_t i = 0; i < 4; i++) {
    message_varint(&p->message, 2 << 3 | VARINT);
    message_varint(&p->message, p->values[stack][i]);
  }
  message_uint(&p->nested, 1, own_text_number(p, TEXT_PART));
  message_uint(&p->nested, 2, part->name);
  message_varint(&p->message, 3 << 3 | BYTES);
  message_varint(&p->message, p->nested.used);
  for (size_t i = 0; i < p->nested.used; i++) message_byte(&p->message, p->nested.bytes[i]);
  p->nested.used = 0;
  output_message(p->output, 2, &p->message);
}

static void samples_write(profile *p) {
  for (size_t i = 0; i < p->snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &p->snapshot->parts.rows[i];
    part_sum(p, part);
    for (size_t stack = 0; stack <= p->snapshot->stacks.count; stack++)
      if (p->values[stack][0] > 0 || p->values[stack][2] > 0) sample_write(p, part, stack);
  }
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static void mappings_write(profile *p) {
  for (size_t i = 0; i < p->snapshot->modules.count; i++) {
    const ladei_snapshot_module *module = &p->snapshot->modules.rows[i];
    message_uint(&p->message, 1, i + 1);
    message_uint(&p->message, 2, module->base);
    message_uint(&p->message, 3, module->base + module->bytes);
    message_uint(&p->message, 5, module->path);
    message_uint(&p->message, 6, module->build_id);
    message_uint(&p->message, 7, 1); /* functions are there */
    output_message(p->output, 3, &p->message);
  }
}

static void location_write(profile *p, uint64_t id, uint64_t mapping, uint64_t address, uint32_t line, bool named) {
  assert(id > 0 && id <= p->snapshot->frames.count + 1 && mapping <= p->snapshot->modules.count); /* G2 */
  message_uint(&p->message, 1, id);
  message_uint(&p->message, 2, mapping);
  message_uint(&p->message, 3, address);
  if (named) {
    message_uint(&p->nested, 1, id);
    message_uint(&p->nested, 2, line);
    message_varint(&p->message, 4 << 3 | BYTES);
    message_varint(&p->message, p->nested.used);
    for (size_t i = 0; i < p->nested.used; i++) message_byte(&p->message, p->nested.bytes[i]);
    p->nested.used = 0;
  }
  output_message(p->output, 4, &p->message);
}

static void function_write(profile *p, uint64_t id, uint64_t name, uint64_t file) {
  message_uint(&p->message, 1, id);
  message_uint(&p->message, 2, name);
  message_uint(&p->message, 3, name);
  message_uint(&p->message, 4, file);
  output_message(p->output, 5, &p->message);
}

static void frames_write(profile *p) {
  const lade_snapshot *snapshot = p->snapshot;
  for (size_t i = 0; i < snapshot->frames.count; i++) {
    const ladei_snapshot_frame *frame = &snapshot->frames.rows[i];
    uint64_t mapping = frame->module < snapshot->modules.count ? (uint64_t)frame->module + 1 : 0;
    bool named = frame->function != 0 || frame->file != 0;
    location_write(p, i + 1, mapping, frame->address, frame->line, named);
    if (named) function_write(p, i + 1, frame->function != 0 ? frame->function : frame->file, frame->file);
  }
  location_write(p, snapshot->frames.count + 1, 0, 0, 0, true);
  function_write(p, snapshot->frames.count + 1, own_text_number(p, TEXT_UNKNOWN), 0);
}

static void texts_write(profile *p) {
  assert(p->snapshot->text_offsets.count > 0 && ladei_inspect_string(p->snapshot, 0)[0] == '\0'); /* G1 */
  for (size_t i = 0; i < p->snapshot->text_offsets.count; i++) {
    const char *text = ladei_inspect_string(p->snapshot, (uint32_t)i);
    output_bytes(p->output, 6, text, strlen(text));
  }
  for (size_t i = 0; i < OWN_TEXTS; i++) output_bytes(p->output, 6, own_texts[i], strlen(own_texts[i]));
}

static lade_status profile_write(const lade_snapshot *snapshot, ladei_output *output) {
  profile p = {.snapshot = snapshot, .output = output};
  p.values = calloc(snapshot->stacks.count + 1, sizeof *p.values);
  if (p.values != NULL) {
    sample_type_write(&p, TEXT_ALLOC_OBJECTS, TEXT_COUNT);
    sample_type_write(&p, TEXT_ALLOC_SPACE, TEXT_BYTES);
    sample_type_write(&p, TEXT_INUSE_OBJECTS, TEXT_COUNT);
    sample_type_write(&p, TEXT_INUSE_SPACE, TEXT_BYTES);
    samples_write(&p);
    mappings_write(&p);
    frames_write(&p);
    texts_write(&p);
    output_varint(output, 9 << 3 | VARINT);
    output_varint(output, snapshot->time_ns);
    output_varint(output, 14 << 3 | VARINT);
    output_varint(output, own_text_number(&p, TEXT_INUSE_SPACE));
  }
  bool failed = p.values == NULL || p.message.failed || p.nested.failed;
  free(p.values);
  free(p.message.bytes);
  free(p.nested.bytes);
  return failed ? ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory to write a profile") : LADE_OK;
}

lade_status ladei_inspect_write_pprof(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                      ladei_output *output) {
  (void)options;
  ladei_output *plain = malloc(sizeof *plain);
  if (plain == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory to write a profile");
  ladei_deflate *deflate;
  lade_status status = ladei_deflate_begin(&deflate, plain, output);
  if (status == LADE_OK)
    status = ladei_deflate_end(deflate, profile_write(snapshot, plain));
  else if (status == LADE_ERR_UNSUPPORTED)
    status = profile_write(snapshot, output); /* pprof reads it plain, too */
  free(plain);
  return status;
}
