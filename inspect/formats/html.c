/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of the page, as page.html reads it:
 *
 *   "LADEPAGE"  u32 bytes of the header  u32 0  header (JSON), to a multiple of 8  columns, each to a multiple of 8
 *
 * H1  The header's `columns` names the columns of each table in their order, with types; `rows` its number of rows.
 * H2  Numbers of streams and pools in columns are indices into the header's lists.
 * H3  A piece of base64 has at most PIECE_BYTES and what one call brings: browsers refuse texts of 2^29 characters.
 */
#include "inspect/formats/html.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/error.h"
#include "inspect/deflate.h"
#include "inspect/frames.h"
#include "inspect/lives.h"
#include "inspect/page/page.h"
#include "inspect/pair_map.h"
#include "inspect/totals.h"

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for a page");
}

/* --- base64 ------------------------------------------------------------------------------------------------------- */

enum { PIECE_BYTES = 48 << 20 };

typedef struct base64 {
  ladei_output *to;
  uint64_t piece_bytes; /* of the piece so far */
  unsigned char rest[3];
  size_t rest_count;
} base64;

static void base64_group(ladei_output *to, const unsigned char *bytes, size_t count) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  uint32_t bits = (uint32_t)bytes[0] << 16 | (uint32_t)(count > 1 ? bytes[1] : 0) << 8 | (count > 2 ? bytes[2] : 0);
  char *out = ladei_output_room(to, 4);
  out[0] = digits[bits >> 18];
  out[1] = digits[bits >> 12 & 63];
  out[2] = count > 1 ? digits[bits >> 6 & 63] : '=';
  out[3] = count > 2 ? digits[bits & 63] : '=';
  to->used += 4;
}

static lade_status base64_write(void *user, const void *data, size_t bytes) {
  base64 *b = user;
  const unsigned char *at = data;
  assert(b->rest_count < 3 && b->piece_bytes < PIECE_BYTES); /* H3 */
  b->piece_bytes += bytes;
  while (b->rest_count > 0 && bytes > 0) {
    b->rest[b->rest_count++] = *at++;
    bytes--;
    if (b->rest_count < 3) continue;
    base64_group(b->to, b->rest, 3);
    b->rest_count = 0;
  }
  for (; bytes >= 3; bytes -= 3, at += 3) base64_group(b->to, at, 3);
  if (b->piece_bytes >= PIECE_BYTES) { /* H3: between groups */
    ladei_output_text(b->to, "</script>\n<script type=\"text/plain\">");
    b->piece_bytes = 0;
  }
  for (; bytes > 0; bytes--) b->rest[b->rest_count++] = *at++;
  return b->to->status;
}

static lade_status base64_end(base64 *b, ladei_output *output) {
  LADEI_TRY(ladei_output_flush(output));
  if (b->rest_count > 0) base64_group(b->to, b->rest, b->rest_count);
  return LADE_OK;
}

/* --- what the page gets ------------------------------------------------------------------------------------------- */

/* Addresses of segments, without the holes between them: [low, high) of a part stands from `at` on. */
typedef struct axis_range {
  uint32_t part;
  uint64_t low, high;
  double at;
} axis_range;

typedef struct page_data {
  const lade_snapshot *snapshot;
  ladei_inspect_lives lives;
  uint32_t *order;                   /* events by time */
  ladei_pair_numbers streams, pools; /* H2 */
  uint64_t start_ns;                 /* the first event's */
  axis_range *axis;
  size_t axis_count;
  double axis_bytes;
} page_data;

static lade_status names_build(page_data *p, const ladei_inspect_life *lives, size_t count) {
  for (size_t i = 0; i < count; i++) {
    LADEI_TRY(ladei_pair_numbers_add(&p->streams, (lade_device_pool_id){lives[i].stream, 0}));
    LADEI_TRY(ladei_pair_numbers_add(&p->pools, lives[i].pool));
  }
  return LADE_OK;
}

typedef struct timed {
  uint64_t time_ns;
  uint32_t event;
} timed;

static int timed_compare(const void *a, const void *b) {
  const timed *x = a, *y = b;
  if (x->time_ns != y->time_ns) return x->time_ns < y->time_ns ? -1 : 1;
  return (x->event > y->event) - (x->event < y->event);
}

static lade_status order_build(page_data *p) {
  size_t count = p->snapshot->events.count;
  timed *events = malloc((count + 1) * sizeof *events);
  p->order = malloc((count + 1) * sizeof *p->order);
  if (events == NULL || p->order == NULL) {
    free(events);
    return no_memory();
  }
  bool sorted = true;
  for (size_t i = 0; i < count; i++) {
    events[i] = (timed){p->snapshot->events.rows[i].time_ns, (uint32_t)i};
    sorted = sorted && (i == 0 || events[i].time_ns >= events[i - 1].time_ns);
  }
  if (!sorted) qsort(events, count, sizeof *events, timed_compare);
  for (size_t i = 0; i < count; i++) p->order[i] = events[i].event;
  p->start_ns = count > 0 ? events[0].time_ns : p->snapshot->time_ns;
  free(events);
  return LADE_OK;
}

static int range_compare(const void *a, const void *b) {
  const axis_range *x = a, *y = b;
  if (x->part != y->part) return x->part < y->part ? -1 : 1;
  return (x->low > y->low) - (x->low < y->low);
}

static lade_status axis_build(page_data *p) {
  size_t count = p->lives.segments.count;
  p->axis = malloc((count + 1) * sizeof *p->axis);
  if (p->axis == NULL) return no_memory();
  for (size_t i = 0; i < count; i++) {
    const ladei_inspect_life *segment = &p->lives.segments.rows[i];
    uint64_t most = UINT64_MAX - segment->address;
    uint64_t bytes = segment->bytes < most ? segment->bytes : most;
    p->axis[i] = (axis_range){segment->part, segment->address, segment->address + bytes, 0.0};
  }
  qsort(p->axis, count, sizeof *p->axis, range_compare);
  for (size_t i = 0; i < count; i++) { /* those that touch are one */
    axis_range *last = p->axis_count == 0 ? NULL : &p->axis[p->axis_count - 1];
    if (last == NULL || last->part != p->axis[i].part || last->high < p->axis[i].low)
      p->axis[p->axis_count++] = p->axis[i];
    else if (last->high < p->axis[i].high)
      last->high = p->axis[i].high;
  }
  for (size_t i = 0; i < p->axis_count; i++) {
    assert(p->axis[i].low <= p->axis[i].high);
    p->axis[i].at = p->axis_bytes;
    p->axis_bytes += (double)(p->axis[i].high - p->axis[i].low);
  }
  return LADE_OK;
}

/* -1: in no segment. */
static double axis_place(const page_data *p, const ladei_inspect_life *life) {
  size_t low = 0, high = p->axis_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    const axis_range *range = &p->axis[middle];
    bool before = range->part < life->part || (range->part == life->part && range->low <= life->address);
    if (before)
      low = middle + 1;
    else
      high = middle;
  }
  const axis_range *range = low == 0 ? NULL : &p->axis[low - 1];
  bool inside = range != NULL && range->part == life->part && life->address < range->high;
  return inside ? range->at + (double)(life->address - range->low) : -1.0;
}

static void page_data_free(page_data *p) {
  ladei_inspect_lives_destroy(&p->lives);
  ladei_pair_numbers_clear(&p->streams);
  ladei_pair_numbers_clear(&p->pools);
  free(p->order);
  free(p->axis);
}

static lade_status page_data_build(const lade_snapshot *snapshot, page_data *p) {
  *p = (page_data){.snapshot = snapshot};
  LADEI_TRY(ladei_inspect_lives_create(snapshot, &p->lives));
  lade_status status = names_build(p, p->lives.segments.rows, p->lives.segments.count);
  if (status == LADE_OK) status = names_build(p, p->lives.blocks.rows, p->lives.blocks.count);
  if (status == LADE_OK) status = order_build(p);
  if (status == LADE_OK) status = axis_build(p);
  if (status != LADE_OK) page_data_free(p);
  return status;
}

/* --- the header --------------------------------------------------------------------------------------------------- */

static double microseconds(const page_data *p, uint64_t time_ns) {
  return (double)(int64_t)(time_ns - p->start_ns) / 1000.0;
}

static void parts_write(const page_data *p, ladei_output *output) {
  for (size_t i = 0; i < p->snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &p->snapshot->parts.rows[i];
    ladei_inspect_totals before = ladei_inspect_totals_before(p->snapshot, part);
    ladei_output_text(output, i == 0 ? "{\"name\":" : ",{\"name\":");
    ladei_output_json(output, ladei_inspect_string(p->snapshot, part->name));
    ladei_output_format(output, ",\"kind\":\"%s\",\"before\":{\"reserved\":%lld,\"active\":%lld,\"requested\":%lld}}",
                        ladei_inspect_kind_name(part->kind), (long long)before.reserved_bytes,
                        (long long)before.active_bytes, (long long)before.allocated_bytes);
  }
}

static void texts_write(const page_data *p, ladei_output *output) {
  for (size_t i = 0; i < p->snapshot->text_offsets.count; i++) {
    if (i > 0) ladei_output_byte(output, ',');
    ladei_output_json(output, ladei_inspect_string(p->snapshot, (uint32_t)i));
  }
}

/* [function, file, line], and a name for a frame without a function. */
static void frames_write(const page_data *p, ladei_output *output) {
  for (size_t i = 0; i < p->snapshot->frames.count; i++) {
    const ladei_snapshot_frame *frame = &p->snapshot->frames.rows[i];
    ladei_output_format(output, "%s[%u,%u,%u", i == 0 ? "" : ",", frame->function, frame->file, frame->line);
    if (frame->function == 0) {
      char room[LADEI_INSPECT_FRAME_ROOM];
      ladei_output_byte(output, ',');
      ladei_output_json(output, ladei_inspect_frame_function(p->snapshot, frame, room));
    }
    ladei_output_byte(output, ']');
  }
}

static void stacks_write(const page_data *p, ladei_output *output) {
  for (size_t i = 0; i < p->snapshot->stacks.count; i++) {
    const ladei_snapshot_stack *stack = &p->snapshot->stacks.rows[i];
    ladei_output_text(output, i == 0 ? "[" : ",[");
    for (uint64_t k = 0; k < stack->frame_count; k++) {
      if (k > 0) ladei_output_byte(output, ',');
      ladei_output_uint(output, stack->first_frame + k);
    }
    ladei_output_byte(output, ']');
  }
}

static void names_write(const page_data *p, ladei_output *output) {
  ladei_output_text(output, "],\"streams\":[");
  for (size_t i = 0; i < p->streams.pairs.count; i++)
    ladei_output_format(output, "%s\"0x%llx\"", i == 0 ? "" : ",", (unsigned long long)p->streams.pairs.rows[i].first);
  ladei_output_text(output, "],\"pools\":[");
  for (size_t i = 0; i < p->pools.pairs.count; i++) {
    ladei_output_format(output, "%s\"%llu, %llu\"", i == 0 ? "" : ",", (unsigned long long)p->pools.pairs.rows[i].first,
                        (unsigned long long)p->pools.pairs.rows[i].second);
  }
}

static size_t live_count(const lade_snapshot *snapshot) {
  size_t count = 0;
  for (size_t i = 0; i < snapshot->blocks.count; i++)
    count += snapshot->blocks.rows[i].state != LADE_DEVICE_BLOCK_INACTIVE;
  return count;
}

static void header_write(const page_data *p, ladei_output *output) {
  const lade_snapshot *s = p->snapshot;
  ladei_output_text(output, "{\"parts\":[");
  parts_write(p, output);
  ladei_output_text(output, "],\"texts\":[");
  texts_write(p, output);
  ladei_output_text(output, "],\"frames\":[");
  frames_write(p, output);
  ladei_output_text(output, "],\"stacks\":[");
  stacks_write(p, output);
  names_write(p, output);
  char moment[64];
  ladei_decimal_print(moment, sizeof moment, "%.3f", s->time_ns == 0 ? 0.0 : microseconds(p, s->time_ns));
  ladei_output_format(
      output, "],\"axis\":%.0f,\"moment\":%s,\"counts\":{\"parts\":%zu,\"segments\":%zu,\"blocks\":%zu,\"live\":%zu,",
      p->axis_bytes, moment, s->parts.count, s->segments.count, s->blocks.count, live_count(s));
  ladei_output_format(
      output, "\"events\":%zu,\"stacks\":%zu},\"rows\":{\"events\":%zu,\"blocks\":%zu,\"segments\":%zu},",
      s->events.count, s->stacks.count, s->events.count, p->lives.blocks.count, p->lives.segments.count);
  ladei_output_text(
      output,
      "\"columns\":{"
      "\"events\":[[\"time\",\"f64\"],[\"bytes\",\"f64\"],[\"part\",\"u32\"],[\"text\",\"u32\"],[\"action\",\"u8\"]],"
      "\"blocks\":[[\"address\",\"u64\"],[\"at\",\"f64\"],[\"bytes\",\"f64\"],[\"requested\",\"f64\"],[\"start\","
      "\"f64\"],"
      "[\"freed\",\"f64\"],[\"end\",\"f64\"],[\"stack\",\"u32\"],[\"stream\",\"u32\"],[\"pool\",\"u32\"],"
      "[\"part\",\"u32\"],[\"label\",\"u32\"],[\"scopes\",\"u32\"]],"
      "\"segments\":[[\"address\",\"u64\"],[\"at\",\"f64\"],[\"bytes\",\"f64\"],[\"start\",\"f64\"],[\"end\",\"f64\"],"
      "[\"stack\",\"u32\"],[\"stream\",\"u32\"],[\"pool\",\"u32\"],[\"part\",\"u32\"]]}}");
}

/* --- the columns -------------------------------------------------------------------------------------------------- */

static void padding_write(ladei_output *output, uint64_t bytes) {
  for (; bytes % 8 != 0; bytes++) ladei_output_byte(output, 0);
}

static void f64_write(ladei_output *output, double value) { ladei_output_bytes(output, &value, sizeof value); }
static void u64_write(ladei_output *output, uint64_t value) { ladei_output_bytes(output, &value, sizeof value); }
static void u32_write(ladei_output *output, uint32_t value) { ladei_output_bytes(output, &value, sizeof value); }

static double start_time(const page_data *p, uint64_t time_ns) {
  return time_ns == 0 ? -INFINITY : microseconds(p, time_ns);
}

static double end_time(const page_data *p, uint64_t time_ns) {
  return time_ns == UINT64_MAX ? INFINITY : microseconds(p, time_ns);
}

#define COLUMN_U32(rows, count, value)                                                                                 \
  do {                                                                                                                 \
    for (size_t i = 0; i < (count); i++) u32_write(output, value);                                                     \
    padding_write(output, (count)*4);                                                                                  \
  } while (0)

static void events_write(const page_data *p, ladei_output *output) {
  const ladei_snapshot_event *rows = p->snapshot->events.rows;
  size_t count = p->snapshot->events.count;
  for (size_t i = 0; i < count; i++) f64_write(output, microseconds(p, rows[p->order[i]].time_ns));
  for (size_t i = 0; i < count; i++) f64_write(output, (double)rows[p->order[i]].bytes);
  COLUMN_U32(rows, count, rows[p->order[i]].part);
  COLUMN_U32(rows, count, rows[p->order[i]].label);
  for (size_t i = 0; i < count; i++) ladei_output_byte(output, (char)rows[p->order[i]].action);
  padding_write(output, count);
}

static uint32_t stream_of(page_data *p, const ladei_inspect_life *life) {
  return ladei_pair_number(&p->streams, (lade_device_pool_id){life->stream, 0});
}

static uint32_t pool_of(page_data *p, const ladei_inspect_life *life) {
  return ladei_pair_number(&p->pools, life->pool);
}

static void blocks_write(page_data *p, ladei_output *output) {
  const ladei_inspect_life *rows = p->lives.blocks.rows;
  size_t count = p->lives.blocks.count;
  for (size_t i = 0; i < count; i++) u64_write(output, rows[i].address);
  for (size_t i = 0; i < count; i++) f64_write(output, axis_place(p, &rows[i]));
  for (size_t i = 0; i < count; i++) f64_write(output, (double)rows[i].bytes);
  for (size_t i = 0; i < count; i++) f64_write(output, (double)rows[i].requested_bytes);
  for (size_t i = 0; i < count; i++) f64_write(output, start_time(p, rows[i].start_ns));
  for (size_t i = 0; i < count; i++) f64_write(output, end_time(p, rows[i].freed_ns));
  for (size_t i = 0; i < count; i++) f64_write(output, end_time(p, rows[i].end_ns));
  COLUMN_U32(rows, count, rows[i].stack);
  COLUMN_U32(rows, count, stream_of(p, &rows[i]));
  COLUMN_U32(rows, count, pool_of(p, &rows[i]));
  COLUMN_U32(rows, count, rows[i].part);
  COLUMN_U32(rows, count, rows[i].label);
  COLUMN_U32(rows, count, rows[i].scopes);
}

static void segments_write(page_data *p, ladei_output *output) {
  const ladei_inspect_life *rows = p->lives.segments.rows;
  size_t count = p->lives.segments.count;
  for (size_t i = 0; i < count; i++) u64_write(output, rows[i].address);
  for (size_t i = 0; i < count; i++) f64_write(output, axis_place(p, &rows[i]));
  for (size_t i = 0; i < count; i++) f64_write(output, (double)rows[i].bytes);
  for (size_t i = 0; i < count; i++) f64_write(output, start_time(p, rows[i].start_ns));
  for (size_t i = 0; i < count; i++) f64_write(output, end_time(p, rows[i].end_ns));
  COLUMN_U32(rows, count, rows[i].stack);
  COLUMN_U32(rows, count, stream_of(p, &rows[i]));
  COLUMN_U32(rows, count, pool_of(p, &rows[i]));
  COLUMN_U32(rows, count, rows[i].part);
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

/* Counts the bytes to write. */
static lade_status bytes_count(void *user, const void *data, size_t bytes) {
  (void)data;
  *(uint64_t *)user += bytes;
  return LADE_OK;
}

/* The header is written twice, to know its length first. */
static lade_status columns_write(page_data *p, ladei_output *output) {
  uint64_t header_bytes = 0;
  ladei_output *counter = malloc(sizeof *counter);
  if (counter == NULL) return no_memory();
  ladei_output_init(counter, bytes_count, &header_bytes);
  header_write(p, counter);
  ladei_output_flush(counter);
  free(counter);
  ladei_output_bytes(output, "LADEPAGE", 8);
  u32_write(output, (uint32_t)header_bytes);
  u32_write(output, 0);
  header_write(p, output);
  padding_write(output, header_bytes);
  events_write(p, output);
  blocks_write(p, output);
  segments_write(p, output);
  return LADE_OK;
}

/* gzip:BASE64, or plain:BASE64 where nothing compresses. */
static lade_status packed_write(page_data *p, ladei_output *plain, ladei_output *packed, ladei_output *output) {
  base64 b = {.to = output};
  ladei_output_init(packed, base64_write, &b);
  ladei_deflate *deflate;
  lade_status status = ladei_deflate_begin(&deflate, plain, packed);
  if (status == LADE_OK) {
    ladei_output_text(output, "gzip:");
    status = ladei_deflate_end(deflate, columns_write(p, plain));
  } else if (status == LADE_ERR_UNSUPPORTED) {
    ladei_output_text(output, "plain:");
    status = columns_write(p, packed);
  }
  return status == LADE_OK ? base64_end(&b, packed) : status;
}

static lade_status data_write(const lade_snapshot *snapshot, ladei_output *output) {
  page_data p;
  if (snapshot == NULL) return LADE_OK;
  LADEI_TRY(page_data_build(snapshot, &p));
  ladei_output *outputs = malloc(2 * sizeof *outputs);
  lade_status status = outputs == NULL ? no_memory() : packed_write(&p, &outputs[0], &outputs[1], output);
  free(outputs);
  page_data_free(&p);
  return status;
}

/* The text before the next place to fill in; "" after the last one. */
static lade_status place_fill(const char *name, const lade_snapshot *snapshot,
                              const lade_snapshot_write_options *options, ladei_output *output) {
  if (strcmp(name, "DATA") == 0) return data_write(snapshot, output);
  if (strcmp(name, "BEFORE") == 0) return data_write(options->before, output);
  ladei_output_xml(output, options->title != NULL ? options->title : "Memory, as lade saw it");
  return LADE_OK;
}

static lade_status line_write(const char *line, const lade_snapshot *snapshot,
                              const lade_snapshot_write_options *options, ladei_output *output) {
  static const char *const places[] = {"TITLE", "DATA", "BEFORE"};
  while (*line != '\0') {
    const char *at = strchr(line, '@');
    size_t found = sizeof places / sizeof *places;
    for (size_t i = 0; at != NULL && i < sizeof places / sizeof *places; i++) {
      size_t bytes = strlen(places[i]);
      if (strncmp(at + 1, places[i], bytes) == 0 && at[1 + bytes] == '@') found = i;
    }
    if (at == NULL || found == sizeof places / sizeof *places) break;
    ladei_output_bytes(output, line, (size_t)(at - line));
    LADEI_TRY(place_fill(places[found], snapshot, options, output));
    line = at + strlen(places[found]) + 2;
  }
  ladei_output_text(output, line);
  return LADE_OK;
}

lade_status ladei_inspect_write_html(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                     ladei_output *output) {
  for (size_t i = 0; ladei_inspect_page[i] != NULL; i++)
    LADEI_TRY(line_write(ladei_inspect_page[i], snapshot, options, output));
  return LADE_OK;
}
