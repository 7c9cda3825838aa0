/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/chrome_trace.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "inspect/frames.h"
#include "inspect/lives.h"
#include "inspect/totals.h"

/* One trace in writing. */
typedef struct trace {
  const lade_snapshot *snapshot;
  ladei_output *output;
  const char *between; /* "" before the first event, then "," */
  uint64_t start_ns;
  size_t part; /* index: the process */
} trace;

/* {"ph":"X","pid":1,"tid":0,"ts":2.000. Process 0 is the idle one to Perfetto. */
static void event_open(trace *t, char phase, uint64_t time_ns) {
  uint64_t ns = time_ns > t->start_ns ? time_ns - t->start_ns : 0;
  ladei_output_format(t->output, "%s\n{\"ph\":\"%c\",\"pid\":%zu,\"tid\":0,\"ts\":%" PRIu64 ".%03u", t->between, phase,
                      t->part + 1, ns / 1000, (unsigned)(ns % 1000));
  t->between = ",";
}

static void event_close(trace *t) { ladei_output_byte(t->output, '}'); }

static void name_write(trace *t, const char *name) {
  ladei_output_text(t->output, ",\"name\":");
  ladei_output_plain_json(t->output, name);
}

static void process_write(trace *t, const ladei_snapshot_part *part) {
  event_open(t, 'M', t->start_ns);
  ladei_output_text(t->output, ",\"name\":\"process_name\",\"args\":{\"name\":");
  const char *name = ladei_inspect_string(t->snapshot, part->name);
  ladei_output_plain_json(t->output, name[0] != '\0' ? name : "without a name"); /* Perfetto refuses the empty one */
  ladei_output_byte(t->output, '}');
  event_close(t);
}

static void totals_write(trace *t, uint64_t time_ns, const ladei_inspect_totals *totals) {
  event_open(t, 'C', time_ns);
  ladei_output_format(t->output, ",\"name\":\"memory\",\"args\":{\"allocated\":%lld,\"active\":%lld,\"reserved\":%lld}",
                      (long long)totals->allocated_bytes, (long long)totals->active_bytes,
                      (long long)totals->reserved_bytes);
  event_close(t);
}

static void stack_write(trace *t, uint32_t number) {
  if (number == LADEI_SNAPSHOT_NONE) return;
  assert(number < t->snapshot->stacks.count &&
         t->snapshot->stacks.rows[number].frame_count > 0); /* S3, S4 in snapshot.h */
  const ladei_snapshot_stack *stack = &t->snapshot->stacks.rows[number];
  const ladei_snapshot_frame *frame = &t->snapshot->frames.rows[stack->first_frame];
  char room[LADEI_INSPECT_FRAME_ROOM];
  ladei_output_text(t->output, ",\"at\":");
  ladei_output_plain_json(t->output, ladei_inspect_frame_function(t->snapshot, frame, room));
  ladei_output_text(t->output, ",\"file\":");
  ladei_output_plain_json(t->output, ladei_inspect_frame_file(t->snapshot, frame));
  ladei_output_format(t->output, ",\"line\":%u", frame->line);
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* Begin or end of a span; equal process, category and id put it into the span that is open. */
static void span_open(trace *t, char phase, const ladei_inspect_life *life, uint64_t time_ns, const char *name) {
  event_open(t, phase, time_ns);
  ladei_output_format(t->output, ",\"cat\":\"block\",\"id2\":{\"local\":\"0x%" PRIx64 "\"}", life->address);
  name_write(t, name);
}

static void span_write(trace *t, char phase, const ladei_inspect_life *life, uint64_t time_ns, const char *name) {
  span_open(t, phase, life, time_ns, name);
  event_close(t);
}

static void text_write(trace *t, const char *key, uint32_t text) {
  if (text == 0) return;
  ladei_output_text(t->output, key);
  ladei_output_plain_json(t->output, ladei_inspect_string(t->snapshot, text));
}

static void handed_out_begin(trace *t, const ladei_inspect_life *life, uint64_t time_ns, const char *name) {
  span_open(t, 'b', life, time_ns, name);
  ladei_output_format(t->output, ",\"args\":{\"address\":\"0x%" PRIx64 "\",\"block_bytes\":%" PRIu64, life->address,
                      life->bytes);
  stack_write(t, life->stack);
  text_write(t, ",\"label\":", life->label);
  text_write(t, ",\"scopes\":", life->scopes);
  ladei_output_byte(t->output, '}');
  event_close(t);
}

static void life_write(trace *t, const ladei_inspect_life *life, uint64_t history_ns) {
  assert(life->start_ns <= life->freed_ns && life->freed_ns <= life->end_ns); /* V3 in lives.h: so W1 holds */
  char lane[32], size[32];
  uint64_t start_ns = life->start_ns > history_ns ? life->start_ns : history_ns;
  uint64_t freed_ns = life->freed_ns > start_ns ? life->freed_ns : start_ns;
  uint64_t end_ns = life->end_ns > freed_ns ? life->end_ns : freed_ns;
  snprintf(lane, sizeof lane, "stream 0x%" PRIx64, life->stream);
  snprintf(size, sizeof size, "%" PRIu64 " bytes", life->requested_bytes);
  span_write(t, 'b', life, start_ns, lane);
  handed_out_begin(t, life, start_ns, size);
  if (freed_ns == UINT64_MAX) return;
  span_write(t, 'e', life, freed_ns, size);
  if (freed_ns != end_ns) span_write(t, 'b', life, freed_ns, "pending");
  if (end_ns == UINT64_MAX) return;
  if (freed_ns != end_ns) span_write(t, 'e', life, end_ns, "pending");
  span_write(t, 'e', life, end_ns, lane);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static void instant_write(trace *t, const ladei_snapshot_event *event, const char *name) {
  event_open(t, 'i', event->time_ns);
  name_write(t, name);
  ladei_output_format(t->output, ",\"s\":\"p\",\"args\":{\"bytes\":%llu}", (unsigned long long)event->bytes);
  event_close(t);
}

static void event_write(trace *t, const ladei_snapshot_event *event) {
  const char *text = ladei_inspect_string(t->snapshot, event->label);
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_OOM: instant_write(t, event, "out of memory"); break;
  case LADE_DEVICE_SNAPSHOT: instant_write(t, event, "snapshot"); break;
  case LADE_DEVICE_USER_DEFINED:
  case LADE_DEVICE_ANNOTATE: instant_write(t, event, event->label != 0 ? text : "note"); break;
  default: break; /* blocks are spans, segments show in the counters */
  }
}

static void part_write(trace *t, const ladei_snapshot_part *part) {
  ladei_inspect_totals totals = ladei_inspect_totals_before(t->snapshot, part);
  process_write(t, part);
  for (uint64_t i = part->first_event; i < part->first_event + part->event_count; i++) {
    const ladei_snapshot_event *event = &t->snapshot->events.rows[i];
    if (i == part->first_event) totals_write(t, event->time_ns, &totals);
    event_write(t, event);
    if (ladei_inspect_totals_add(&totals, event)) totals_write(t, event->time_ns, &totals);
  }
  if (part->event_count == 0) totals_write(t, part->time_ns, &totals);
}

/* When the history of a part begins; without one, the moment that it shows. */
static uint64_t history_of(const lade_snapshot *snapshot, const ladei_snapshot_part *part) {
  return part->event_count > 0 ? snapshot->events.rows[part->first_event].time_ns : part->time_ns;
}

static void lives_write(trace *t, const ladei_inspect_lives *lives) {
  for (size_t i = 0; i < lives->blocks.count; i++) {
    const ladei_inspect_life *life = &lives->blocks.rows[i];
    t->part = life->part;
    life_write(t, life, history_of(t->snapshot, &t->snapshot->parts.rows[life->part]));
  }
}

static uint64_t start_of(const lade_snapshot *snapshot) {
  uint64_t start = UINT64_MAX;
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    uint64_t first = history_of(snapshot, &snapshot->parts.rows[i]);
    if (first < start) start = first;
  }
  return start == UINT64_MAX ? 0 : start;
}

lade_status ladei_inspect_write_chrome_trace(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                             ladei_output *output) {
  (void)options;
  trace t = {.snapshot = snapshot, .output = output, .between = "", .start_ns = start_of(snapshot)};
  ladei_inspect_lives lives;
  LADEI_TRY(ladei_inspect_lives_create(snapshot, &lives));
  ladei_output_text(output, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    t.part = i;
    if (snapshot->parts.rows[i].kind != LADE_PART_PIPELINE) part_write(&t, &snapshot->parts.rows[i]);
  }
  lives_write(&t, &lives);
  ladei_inspect_lives_destroy(&lives);
  ladei_output_text(output, "\n]}\n");
  return LADE_OK;
}
