/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of RMM's log.
 *
 *   allocate           alloc
 *   free               free_requested and free_completed: the log knows no uses by other streams
 *   allocate failure   oom; the device's free bytes are not known: 0
 *
 * The number of the thread is the label of its events. Times are those of a day, "HH:MM:SS.ffffff" (or seconds with a fraction);
 * when they fall by more than half a day, the next day has begun.
 *
 * RMM ends each row with a line end, and writes when its buffer is full: the log of a process that was killed is cut within a row. What of
 * its numbers is missing cannot be known, so a last line without its end is none.
 */
#include "inspect/formats/rmm_csv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "inspect/snapshot.h"

const char ladei_rmm_csv_header[] = "Thread,Time,Action,Pointer,Size,Stream";

enum { FIELDS = 6 };
static const uint64_t second_ns = 1000000000u, day_ns = 86400u * 1000000000ull;

typedef struct slice {
  const char *text;
  size_t bytes;
} slice;

typedef struct csv {
  slice left; /* what is not read yet */
  size_t line;
  const char *name;
  lade_snapshot *snapshot;
  uint64_t day, time_ns; /* of the last row */
} csv;

static lade_status refuse(const csv *from, const char *format, ...) __attribute__((format(printf, 2, 3)));
static lade_status refuse(const csv *from, const char *format, ...) {
  char text[200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: line %zu: %s", from->name, from->line, text);
}

/* The text before the next `end`, or all of it; `rest` is the text after it. False: there is no `end`. */
static bool slice_split(slice from, char end, slice *out, slice *rest) {
  const char *at = from.bytes == 0 ? NULL : memchr(from.text, end, from.bytes);
  out->text = from.text;
  out->bytes = at == NULL ? from.bytes : (size_t)(at - from.text);
  rest->text = from.text + out->bytes + (at != NULL);
  rest->bytes = from.bytes - out->bytes - (at != NULL);
  return at != NULL;
}

static bool slice_is(slice text, const char *other) {
  return text.bytes == strlen(other) && memcmp(text.text, other, text.bytes) == 0;
}

/* Digits of a base, at least one. */
static bool number_of(slice text, unsigned base, uint64_t *out) {
  uint64_t value = 0;
  if (text.bytes == 0) return false;
  for (size_t i = 0; i < text.bytes; i++) {
    char c = text.text[i];
    unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                            : base;
    if (digit >= base || __builtin_mul_overflow(value, (uint64_t)base, &value) ||
        __builtin_add_overflow(value, (uint64_t)digit, &value))
      return false;
  }
  *out = value;
  return true;
}

/* Hexadecimal, with or without "0x"; "(nil)" is what some libraries print for NULL. */
static bool pointer_of(slice text, uint64_t *out) {
  *out = 0;
  if (slice_is(text, "(nil)")) return true;
  if (text.bytes > 2 && text.text[0] == '0' && (text.text[1] | 0x20) == 'x')
    text = (slice){text.text + 2, text.bytes - 2};
  return number_of(text, 16, out);
}

/* Nanoseconds of a fraction's digits. */
static bool fraction_of(slice text, uint64_t *out) {
  uint64_t unit = second_ns / 10;
  *out = 0;
  for (size_t i = 0; i < text.bytes; i++, unit /= 10) {
    if (text.text[i] < '0' || text.text[i] > '9') return false;
    *out += (uint64_t)(text.text[i] - '0') * unit;
  }
  return text.bytes > 0;
}

static bool time_of(slice text, uint64_t *out) {
  slice parts[3] = {{NULL, 0}}, last = text, rest;
  uint64_t hours = 0, minutes = 0, seconds, fraction = 0;
  size_t count = 0;
  while (count < 3 && slice_split(last, ':', &parts[count], &rest)) {
    count++;
    last = rest;
  }
  if (count != 0 && count != 2 && count != 3) return false;
  if (count == 3) { /* a third colon before the fraction */
    if (!number_of(parts[2], 10, &seconds) || !fraction_of(last, &fraction)) return false;
  } else {
    slice whole;
    bool has_fraction = slice_split(last, '.', &whole, &rest);
    if (!number_of(whole, 10, &seconds) || (has_fraction && !fraction_of(rest, &fraction))) return false;
  }
  if (count >= 2 && (!number_of(parts[0], 10, &hours) || !number_of(parts[1], 10, &minutes))) return false;
  if (hours > 23 || minutes > 59 || seconds > (count >= 2 ? 60 : UINT64_MAX / second_ns - 1)) return false;
  *out = ((hours * 60 + minutes) * 60 + seconds) * second_ns + fraction;
  return true;
}

/* --- rows --------------------------------------------------------------------------------------------------------------- */

static lade_status event_add(csv *from, const lade_snapshot_event *event, lade_device_action action) {
  lade_snapshot_event *row = LADEI_INSPECT_ADD(&from->snapshot->events);
  if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *row = *event;
  row->action = action;
  return LADE_OK;
}

static lade_status action_add(csv *from, slice action, const lade_snapshot_event *event) {
  if (slice_is(action, "allocate")) return event_add(from, event, LADE_DEVICE_ALLOC);
  if (slice_is(action, "allocate failure")) return event_add(from, event, LADE_DEVICE_OOM);
  if (!slice_is(action, "free"))
    return refuse(from, "action '%.*s'; expected allocate, free or allocate failure",
                  (int)(action.bytes < 40 ? action.bytes : 40), action.text);
  LADEI_TRY(event_add(from, event, LADE_DEVICE_FREE_REQUESTED));
  return event_add(from, event, LADE_DEVICE_FREE_COMPLETED);
}

static lade_status fields_split(const csv *from, slice line, slice fields[FIELDS]) {
  size_t count = 0;
  bool more = true;
  for (; more && count < FIELDS; count++) more = slice_split(line, ',', &fields[count], &line);
  if (count < FIELDS || more) return refuse(from, "expected %d fields: %s", FIELDS, ladei_rmm_csv_header);
  return LADE_OK;
}

/* Rows of threads that log at once may lie in another order than their times. */
static void day_settle(csv *from, uint64_t *time_ns) {
  *time_ns += from->day;
  if (*time_ns + day_ns / 2 < from->time_ns) {
    from->day += day_ns;
    *time_ns += day_ns;
  }
  from->time_ns = *time_ns;
}

static lade_status row_read(csv *from, slice line) {
  slice fields[FIELDS];
  uint64_t thread;
  lade_snapshot_event event = {.stack = LADE_SNAPSHOT_NONE};
  LADEI_TRY(fields_split(from, line, fields));
  if (!number_of(fields[0], 10, &thread)) return refuse(from, "the thread is no number");
  if (!time_of(fields[1], &event.time_ns)) return refuse(from, "the time is not of the form HH:MM:SS.ffffff");
  if (!pointer_of(fields[3], &event.address)) return refuse(from, "the pointer is no hexadecimal number");
  if (!number_of(fields[4], 10, &event.bytes)) return refuse(from, "the size is no number");
  if (!pointer_of(fields[5], &event.stream)) return refuse(from, "the stream is no hexadecimal number");
  LADEI_TRY(ladei_inspect_text_bytes(from->snapshot, fields[0].text, fields[0].bytes, &event.label));
  day_settle(from, &event.time_ns);
  return action_add(from, fields[2], &event);
}

/* The next line without its end, which a cut one has not; false after the last. */
static bool line_next(csv *from, slice *out, bool *ended) {
  if (from->left.bytes == 0) return false;
  *ended = slice_split(from->left, '\n', out, &from->left);
  if (out->bytes > 0 && out->text[out->bytes - 1] == '\r') out->bytes--;
  from->line++;
  return true;
}

static lade_status log_read(csv *from) {
  slice line;
  bool ended = false;
  if (!line_next(from, &line, &ended) || !slice_is(line, ladei_rmm_csv_header))
    return refuse(from, "expected %s", ladei_rmm_csv_header);
  LADEI_TRY(ladei_inspect_part_begin(from->snapshot, LADE_PART_DEVICE, 0, "RMM log"));
  while (line_next(from, &line, &ended))
    if (ended && line.bytes > 0) LADEI_TRY(row_read(from, line));
  if (!ended && from->line > 1)
    ladei_log(LADE_LOG_WARN, "%s: line %zu has no end and is passed over: the log is cut there", from->name,
              from->line);
  lade_snapshot_part *part = ladei_inspect_part(from->snapshot);
  part->events = 1;
  part->max_entries = from->snapshot->events.count;
  part->time_ns = from->time_ns;
  from->snapshot->time_ns = from->time_ns;
  return ladei_inspect_finish(from->snapshot);
}

lade_status ladei_inspect_read_rmm_csv(const void *data, size_t bytes, const char *name, lade_snapshot **out) {
  csv from = {.left = {data, bytes}, .name = name};
  LADEI_TRY(ladei_inspect_create(&from.snapshot));
  lade_status status = log_read(&from);
  if (status == LADE_OK)
    *out = from.snapshot;
  else
    lade_snapshot_destroy(from.snapshot);
  return status;
}
