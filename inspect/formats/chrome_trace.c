/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/chrome_trace.h"

#include "inspect/frames.h"
#include "inspect/totals.h"

/* One trace in writing. */
typedef struct trace {
  const lade_snapshot *snapshot;
  ladei_output *output;
  const char *between; /* "" before the first event, then "," */
  uint64_t start_ns;
  size_t part; /* index: the process */
} trace;

/* {"ph":"X","pid":0,"tid":1,"ts":2.000 */
static void event_open(trace *t, char phase, uint64_t thread, uint64_t time_ns) {
  uint64_t ns = time_ns > t->start_ns ? time_ns - t->start_ns : 0;
  ladei_output_format(t->output, "%s\n{\"ph\":\"%c\",\"pid\":%zu,\"tid\":%llu,\"ts\":%llu.%03u", t->between, phase,
                      t->part, (unsigned long long)thread, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
  t->between = ",";
}

static void event_close(trace *t) { ladei_output_byte(t->output, '}'); }

static void name_write(trace *t, const char *name) {
  ladei_output_text(t->output, ",\"name\":");
  ladei_output_json(t->output, name);
}

/* Thread numbers are below 2^31: streams by their order of appearance would need a table, so a hash does. */
static uint64_t thread_of(uint64_t stream) {
  if (stream < 1 << 16) return stream;
  return (1 << 16) + (stream * UINT64_C(0x9E3779B97F4A7C15) >> 34);
}

static void process_write(trace *t, const lade_snapshot_part *part) {
  event_open(t, 'M', 0, t->start_ns);
  ladei_output_text(t->output, ",\"name\":\"process_name\",\"args\":{\"name\":");
  ladei_output_json(t->output, ladei_inspect_string(t->snapshot, part->name));
  ladei_output_byte(t->output, '}');
  event_close(t);
}

static void totals_write(trace *t, uint64_t time_ns, const ladei_inspect_totals *totals) {
  event_open(t, 'C', 0, time_ns);
  ladei_output_format(t->output, ",\"name\":\"memory\",\"args\":{\"allocated\":%lld,\"active\":%lld,\"reserved\":%lld}",
                      (long long)totals->allocated_bytes, (long long)totals->active_bytes,
                      (long long)totals->reserved_bytes);
  event_close(t);
}

static void stack_write(trace *t, uint32_t number) {
  if (number == LADE_SNAPSHOT_NONE) return;
  const lade_snapshot_stack *stack = &t->snapshot->stacks.rows[number];
  const lade_snapshot_frame *frame = &t->snapshot->frames.rows[stack->first_frame];
  char room[LADEI_INSPECT_FRAME_ROOM];
  ladei_output_text(t->output, ",\"at\":");
  ladei_output_json(t->output, ladei_inspect_frame_function(t->snapshot, frame, room));
  ladei_output_text(t->output, ",\"file\":");
  ladei_output_json(t->output, ladei_inspect_frame_file(t->snapshot, frame));
  ladei_output_format(t->output, ",\"line\":%u", frame->line);
}

/* Begin, instant or end of a block's span: equal category, name and id make them one. */
static void block_write(trace *t, char phase, const lade_snapshot_event *event) {
  event_open(t, phase, thread_of(event->stream), event->time_ns);
  ladei_output_format(t->output, ",\"cat\":\"block\",\"id\":\"0x%llx\",\"name\":\"%llu bytes\"",
                      (unsigned long long)event->address, (unsigned long long)event->bytes);
  if (phase == 'b') {
    ladei_output_format(t->output, ",\"args\":{\"stream\":\"0x%llx\"", (unsigned long long)event->stream);
    stack_write(t, event->stack);
    if (event->label != 0) {
      ladei_output_text(t->output, ",\"label\":");
      ladei_output_json(t->output, ladei_inspect_string(t->snapshot, event->label));
    }
    if (event->scopes != 0) {
      ladei_output_text(t->output, ",\"scopes\":");
      ladei_output_json(t->output, ladei_inspect_string(t->snapshot, event->scopes));
    }
    ladei_output_byte(t->output, '}');
  }
  event_close(t);
}

static void instant_write(trace *t, const lade_snapshot_event *event, const char *name) {
  event_open(t, 'i', thread_of(event->stream), event->time_ns);
  name_write(t, name);
  ladei_output_format(t->output, ",\"s\":\"p\",\"args\":{\"bytes\":%llu}", (unsigned long long)event->bytes);
  event_close(t);
}

static void event_write(trace *t, const lade_snapshot_event *event) {
  const char *text = ladei_inspect_string(t->snapshot, event->label);
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_ALLOC: block_write(t, 'b', event); break;
  case LADE_DEVICE_FREE_REQUESTED: block_write(t, 'n', event); break;
  case LADE_DEVICE_FREE_COMPLETED: block_write(t, 'e', event); break;
  case LADE_DEVICE_OOM: instant_write(t, event, "out of memory"); break;
  case LADE_DEVICE_SNAPSHOT: instant_write(t, event, "snapshot"); break;
  case LADE_DEVICE_USER_DEFINED:
  case LADE_DEVICE_ANNOTATE: instant_write(t, event, event->label != 0 ? text : "note"); break;
  default: break; /* segments show in the counters */
  }
}

static void part_write(trace *t, const lade_snapshot_part *part) {
  ladei_inspect_totals totals = ladei_inspect_totals_before(t->snapshot, part);
  process_write(t, part);
  for (uint64_t i = part->first_event; i < part->first_event + part->event_count; i++) {
    const lade_snapshot_event *event = &t->snapshot->events.rows[i];
    if (i == part->first_event) totals_write(t, event->time_ns, &totals);
    event_write(t, event);
    if (ladei_inspect_totals_add(&totals, event)) totals_write(t, event->time_ns, &totals);
  }
  if (part->event_count == 0) totals_write(t, part->time_ns, &totals);
}

static uint64_t start_of(const lade_snapshot *snapshot) {
  uint64_t start = UINT64_MAX;
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const lade_snapshot_part *part = &snapshot->parts.rows[i];
    uint64_t first = part->event_count > 0 ? snapshot->events.rows[part->first_event].time_ns : part->time_ns;
    if (first < start) start = first;
  }
  return start == UINT64_MAX ? 0 : start;
}

lade_status ladei_inspect_write_chrome_trace(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                             ladei_output *output) {
  (void)options;
  trace t = {.snapshot = snapshot, .output = output, .between = "", .start_ns = start_of(snapshot)};
  ladei_output_text(output, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    t.part = i;
    if (snapshot->parts.rows[i].kind != LADE_PART_PIPELINE) part_write(&t, &snapshot->parts.rows[i]);
  }
  ladei_output_text(output, "\n]}\n");
  return LADE_OK;
}
