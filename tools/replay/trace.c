/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of allocation traces: splits a line into fields and checks them against the table of operations. Lines in plain
 * form, which long traces are made of, are read on a shorter way that knows no errors.
 *
 * T1  `outcome` is TRACE_OP until an error is noted; nothing is read after it.
 * T2  `streams` holds the declared streams and 0.
 * T3  What the shorter way accepts, the other would read the same.
 */
#include "tools/replay/trace.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "tools/common/lines.h"
#include "tools/replay/number_map.h"

/* What a field of an operation is. */
typedef enum field_kind {
  FIELD_NONE,
  FIELD_NUMBER,     /* 64 bits */
  FIELD_CAPACITY,   /* 1 to 2^60 - 1 */
  FIELD_BYTES,      /* 64 bits; the replay refuses what is too much */
  FIELD_HOST_BYTES, /* below 2^60 */
  FIELD_NEW_STREAM, /* any number but 0 */
  FIELD_STREAM,     /* declared */
  FIELD_STREAMS,    /* one or more of them */
  FIELD_POOL,       /* from 1 */
  FIELD_ADDRESS,    /* a multiple of 2 MiB, not 0 */
  FIELD_FRACTION,   /* 0 to 1 */
  FIELD_TEXT,
  FIELD_LABEL, /* UTF-8 */
} field_kind;

enum { FIELDS_MAX = 3 };

typedef struct operation {
  const char *name;
  field_kind fields[FIELDS_MAX];
} operation;

static const operation operations[TRACE_KIND_COUNT] = {
    [TRACE_DEVICE] = {"device", {FIELD_CAPACITY}},
    [TRACE_CONF] = {"conf", {FIELD_TEXT}},
    [TRACE_STREAM] = {"stream", {FIELD_NEW_STREAM}},
    [TRACE_ALLOC] = {"alloc", {FIELD_NUMBER, FIELD_BYTES, FIELD_STREAM}},
    [TRACE_FREE] = {"free", {FIELD_NUMBER}},
    [TRACE_RECORD] = {"record", {FIELD_NUMBER, FIELD_STREAM}},
    [TRACE_COMPLETE] = {"complete", {FIELD_STREAM}},
    [TRACE_EMPTY_CACHE] = {"empty_cache", {FIELD_NONE}},
    [TRACE_FRACTION] = {"fraction", {FIELD_FRACTION}},
    [TRACE_POOL_BEGIN] = {"pool_begin", {FIELD_POOL, FIELD_STREAMS}},
    [TRACE_POOL_END] = {"pool_end", {FIELD_POOL}},
    [TRACE_POOL_RELEASE] = {"pool_release", {FIELD_POOL}},
    [TRACE_CHECKPOINT] = {"checkpoint", {FIELD_POOL, FIELD_NUMBER}},
    [TRACE_RESTORE] = {"restore", {FIELD_POOL, FIELD_NUMBER}},
    [TRACE_RESET_PEAK] = {"reset_peak", {FIELD_NONE}},
    [TRACE_RESET_ACCUMULATED] = {"reset_accumulated", {FIELD_NONE}},
    [TRACE_HALLOC] = {"halloc", {FIELD_NUMBER, FIELD_HOST_BYTES}},
    [TRACE_HFREE] = {"hfree", {FIELD_NUMBER}},
    [TRACE_HRECORD] = {"hrecord", {FIELD_NUMBER, FIELD_STREAM}},
    [TRACE_HEMPTY] = {"hempty", {FIELD_NONE}},
    [TRACE_SNAPSHOT] = {"snapshot", {FIELD_LABEL}},
    [TRACE_AT] = {"at", {FIELD_ADDRESS}},
};

struct trace_reader {
  line_source lines;
  char *name;
  uint64_t line_number;
  line_fields fields;
  uint64_t *stream_list; /* of a pool_begin */
  size_t stream_room;
  number_map streams; /* declared */
  bool device_seen;
  bool conf_seen;
  bool operation_seen;
  uint64_t known_stream; /* one of `streams` */
  uint64_t at;           /* of the next alloc; 0: none */
  uint64_t at_line;
  trace_result outcome; /* TRACE_BAD, TRACE_FAILED: for good; else TRACE_OP */
  char *error;
};

const char *trace_kind_name(trace_kind kind) { return operations[kind].name; }

const char *trace_error(const trace_reader *reader) {
  return reader->error != NULL ? reader->error : "no memory for an error message";
}

trace_reader *trace_reader_create(FILE *file, const char *name) {
  trace_reader *reader = calloc(1, sizeof *reader);
  if (reader == NULL) return NULL;
  reader->lines.file = file;
  reader->name = strdup(name);
  if (reader->name != NULL && number_map_set(&reader->streams, 0, 1)) return reader;
  trace_reader_destroy(reader);
  return NULL;
}

void trace_reader_destroy(trace_reader *reader) {
  if (reader == NULL) return;
  number_map_destroy(&reader->streams);
  free(reader->name);
  line_source_destroy(&reader->lines);
  line_fields_destroy(&reader->fields);
  free(reader->stream_list);
  free(reader->error);
  free(reader);
}

static trace_result end_with(trace_reader *reader, trace_result outcome, uint64_t line, const char *format,
                             va_list arguments) {
  char what[512];
  vsnprintf(what, sizeof what, format, arguments);
  free(reader->error);
  if (asprintf(&reader->error, "%s:%llu: %s", reader->name, (unsigned long long)line, what) < 0) reader->error = NULL;
  reader->outcome = outcome;
  return outcome;
}

trace_result trace_refuse(trace_reader *reader, uint64_t line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  trace_result outcome = end_with(reader, TRACE_BAD, line, format, arguments);
  va_end(arguments);
  return outcome;
}

trace_result trace_fail(trace_reader *reader, uint64_t line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  trace_result outcome = end_with(reader, TRACE_FAILED, line, format, arguments);
  va_end(arguments);
  return outcome;
}

#define REFUSE(reader, ...) trace_refuse(reader, (reader)->line_number, __VA_ARGS__)
#define FAIL(reader, ...)   trace_fail(reader, (reader)->line_number, __VA_ARGS__)

/* ---- Lines and fields -------------------------------------------------------------------------------------------- */

/* The next line; TRACE_END after the last. */
static trace_result line_next(trace_reader *reader, char **out, size_t *out_length) {
  line_result result = line_source_next(&reader->lines, out, out_length);
  reader->line_number++;
  if (result == LINE_FAILED) return FAIL(reader, "reading failed: %s", strerror(errno));
  return result == LINE_END ? TRACE_END : TRACE_OP;
}

/* Splits a line into the reader's fields. */
static trace_result line_cut(trace_reader *reader, char *line, size_t length) {
  if (strlen(line) != length) return REFUSE(reader, "malformed line: it holds a zero byte");
  return line_fields_cut(&reader->fields, line) ? TRACE_OP : FAIL(reader, "no memory for the fields of the line");
}

/* Digits, optionally a point and digits. */
static bool fraction_parse(const char *text, double *out) {
  const char *at = text;
  if (!isdigit((unsigned char)*at)) return false;
  while (isdigit((unsigned char)*at)) at++;
  if (*at == '.') {
    at++;
    if (!isdigit((unsigned char)*at)) return false;
    while (isdigit((unsigned char)*at)) at++;
  }
  if (*at != '\0') return false;
  *out = strtod(text, NULL);
  return true;
}

/* Bytes of the UTF-8 character that begins here; 0 if none does. */
static size_t utf8_length(const unsigned char *at) {
  if (at[0] < 0x80) return 1;
  if (at[0] < 0xC2 || at[0] > 0xF4) return 0; /* a later byte, a longer form than needed, beyond U+10FFFF */
  size_t length = at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; i++)
    if ((at[i] & 0xC0) != 0x80) return 0; /* also at the closing zero */
  bool longer = (at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xF0 && at[1] < 0x90);
  bool surrogate = at[0] == 0xED && at[1] >= 0xA0;
  bool beyond = at[0] == 0xF4 && at[1] >= 0x90;
  return longer || surrogate || beyond ? 0 : length;
}

static bool text_is_utf8(const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  while (*at != 0) {
    size_t length = utf8_length(at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

/* ---- Fields of operations ---------------------------------------------------------------------------------------- */

static bool stream_known(trace_reader *reader, uint64_t stream) {
  if (stream == reader->known_stream) return true;
  if (number_map_get(&reader->streams, stream) == NULL) return false;
  reader->known_stream = stream;
  return true;
}

static trace_result stream_check(trace_reader *reader, uint64_t stream) {
  if (stream_known(reader, stream)) return TRACE_OP;
  return REFUSE(reader, "unknown stream %llu", (unsigned long long)stream);
}

static bool number_in_range(field_kind kind, uint64_t value) {
  switch (kind) {
  case FIELD_CAPACITY: return value >= 1 && value < LADEI_SIZE_LIMIT;
  case FIELD_HOST_BYTES: return value < LADEI_SIZE_LIMIT;
  case FIELD_NEW_STREAM:
  case FIELD_POOL: return value >= 1;
  case FIELD_ADDRESS: return value > 0 && value % TRACE_ADDRESS_ALIGN == 0;
  default: return true;
  }
}

static trace_result number_read(trace_reader *reader, field_kind kind, const char *text, uint64_t *out) {
  if (!line_number_parse(text, out)) return REFUSE(reader, "malformed number \"%s\"", text);
  if (kind == FIELD_ADDRESS && !number_in_range(kind, *out)) {
    return REFUSE(reader, "value out of range: %s; an address is a multiple of %llu and not 0", text,
                  (unsigned long long)TRACE_ADDRESS_ALIGN);
  }
  if (!number_in_range(kind, *out)) return REFUSE(reader, "value out of range: %s", text);
  return kind == FIELD_STREAM ? stream_check(reader, *out) : TRACE_OP;
}

static trace_result streams_read(trace_reader *reader, size_t first, trace_op *op) {
  size_t count = reader->fields.count - first;
  if (count > reader->stream_room) {
    uint64_t *larger = realloc(reader->stream_list, count * sizeof *larger);
    if (larger == NULL) return FAIL(reader, "no memory for %zu streams", count);
    reader->stream_list = larger;
    reader->stream_room = count;
  }
  for (size_t i = 0; i < count; i++) {
    trace_result result = number_read(reader, FIELD_STREAM, reader->fields.list[first + i], &reader->stream_list[i]);
    if (result != TRACE_OP) return result;
  }
  op->streams = reader->stream_list;
  op->stream_count = count;
  return TRACE_OP;
}

static trace_result field_read(trace_reader *reader, field_kind kind, size_t index, trace_op *op) {
  const char *text = reader->fields.list[index + 1];
  switch (kind) {
  case FIELD_STREAMS: return streams_read(reader, index + 1, op);
  case FIELD_LABEL:
    if (!text_is_utf8(text)) return REFUSE(reader, "malformed label: it is not UTF-8");
    op->text = text;
    return TRACE_OP;
  case FIELD_TEXT: op->text = text; return TRACE_OP;
  case FIELD_FRACTION:
    if (!fraction_parse(text, &op->fraction)) return REFUSE(reader, "malformed number \"%s\"", text);
    return op->fraction <= 1.0 ? TRACE_OP : REFUSE(reader, "value out of range: %s", text);
  default: return number_read(reader, kind, text, &op->number[index]);
  }
}

static trace_result fields_read(trace_reader *reader, trace_op *op) {
  const field_kind *kinds = operations[op->kind].fields;
  size_t expected = 0;
  while (expected < FIELDS_MAX && kinds[expected] != FIELD_NONE) expected++;
  size_t given = reader->fields.count - 1;
  bool list = expected > 0 && kinds[expected - 1] == FIELD_STREAMS;
  if (list ? given < expected : given != expected) {
    return REFUSE(reader, "wrong number of fields: \"%s\" takes %zu%s, here are %zu", operations[op->kind].name,
                  expected, list ? " or more" : "", given);
  }
  for (size_t i = 0; i < expected; i++) {
    trace_result result = field_read(reader, kinds[i], i, op);
    if (result != TRACE_OP) return result;
  }
  return TRACE_OP;
}

/* ---- Declarations ------------------------------------------------------------------------------------------------ */

static trace_result once_before_operations(trace_reader *reader, const char *what, bool *seen) {
  if (reader->operation_seen) return REFUSE(reader, "\"%s\" after the first operation", what);
  if (*seen) return REFUSE(reader, "\"%s\" a second time", what);
  *seen = true;
  return TRACE_OP;
}

static trace_result declaration_check(trace_reader *reader, const trace_op *op) {
  switch (op->kind) {
  case TRACE_DEVICE: return once_before_operations(reader, "device", &reader->device_seen);
  case TRACE_CONF: return once_before_operations(reader, "conf", &reader->conf_seen);
  case TRACE_STREAM:
    if (number_map_get(&reader->streams, op->number[0]) != NULL)
      return REFUSE(reader, "stream %llu a second time", (unsigned long long)op->number[0]);
    return number_map_set(&reader->streams, op->number[0], 1) ? TRACE_OP : FAIL(reader, "no memory for the stream");
  case TRACE_AT: return TRACE_OP;
  default: reader->operation_seen = true; return TRACE_OP;
  }
}

static bool kind_find(const char *name, trace_kind *out) {
  for (int kind = 0; kind < TRACE_KIND_COUNT; kind++) {
    if (strcmp(operations[kind].name, name) == 0) {
      *out = (trace_kind)kind;
      return true;
    }
  }
  return false;
}

/* ---- Plain lines ------------------------------------------------------------------------------------------------- */

/* Nearly all lines of a long trace look like "alloc 7 512 0": a word and numbers, one blank between. */
typedef struct plain_form {
  trace_kind kind;
  unsigned char length; /* of the word and its blank */
  unsigned char numbers;
  bool stream; /* the last number is a stream */
} plain_form;

static const plain_form *plain_form_find(const char *line) {
  static const plain_form forms[] = {{TRACE_ALLOC, 6, 3, true},  {TRACE_FREE, 5, 1, false},
                                     {TRACE_RECORD, 7, 2, true}, {TRACE_HALLOC, 7, 2, false},
                                     {TRACE_HFREE, 6, 1, false}, {TRACE_HRECORD, 8, 2, true}};
  /* Lengths that are constants compare in an instruction or two. The line is padded: LINES_PADDING. */
  switch (line[0]) {
  case 'a': return memcmp(line, "alloc ", 6) == 0 ? &forms[0] : NULL;
  case 'f': return memcmp(line, "free ", 5) == 0 ? &forms[1] : NULL;
  case 'r': return memcmp(line, "record ", 7) == 0 ? &forms[2] : NULL;
  case 'h':
    if (memcmp(line, "halloc ", 7) == 0) return &forms[3];
    if (memcmp(line, "hfree ", 6) == 0) return &forms[4];
    return memcmp(line, "hrecord ", 8) == 0 ? &forms[5] : NULL;
  default: return NULL;
  }
}

/* At most 19 digits, which 64 bits hold. */
static const char *plain_number(const char *at, uint64_t *out) {
  const char *begin = at;
  uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; at++) value = 10 * value + (uint64_t)(*at - '0');
  *out = value;
  return at > begin && at - begin <= 19 ? at : NULL;
}

/* Reads a plain line without splitting it. False where it is not one, or is wrong in any way: then it is read properly,
 * and so gets its error. */
static bool plain_read(trace_reader *reader, const char *line, size_t length, trace_op *op) {
  const plain_form *form = plain_form_find(line);
  if (form == NULL) return false;
  const char *at = line + form->length;
  *op = (trace_op){.kind = form->kind, .line = reader->line_number};
  for (unsigned i = 0; i < form->numbers; i++) {
    if (i > 0 && *at++ != ' ') return false;
    at = plain_number(at, &op->number[i]);
    if (at == NULL) return false;
  }
  if (at != line + length) return false;
  if (form->kind == TRACE_HALLOC && !number_in_range(FIELD_HOST_BYTES, op->number[1])) return false;
  if (form->stream && !stream_known(reader, op->number[form->numbers - 1])) return false;
  reader->operation_seen = true;
  return true;
}

/* ---- All lines --------------------------------------------------------------------------------------------------- */

static trace_result header_read(trace_reader *reader) {
  char *line;
  size_t length;
  trace_result result = line_next(reader, &line, &length);
  if (result == TRACE_OP) result = line_cut(reader, line, length);
  if (result == TRACE_BAD || result == TRACE_FAILED) return result;
  bool right = result == TRACE_OP && reader->fields.count == 2 && strcmp(reader->fields.list[0], "lade-trace") == 0 &&
               strcmp(reader->fields.list[1], "1") == 0;
  return right ? TRACE_OP : REFUSE(reader, "the first line is not \"lade-trace 1\"");
}

/* Any line that has fields. */
static trace_result fields_interpret(trace_reader *reader, trace_op *out) {
  *out = (trace_op){.line = reader->line_number};
  if (!kind_find(reader->fields.list[0], &out->kind))
    return REFUSE(reader, "unknown operation \"%s\"", reader->fields.list[0]);
  trace_result result = fields_read(reader, out);
  return result == TRACE_OP ? declaration_check(reader, out) : result;
}

/* The next line that says something, an `at` included; TRACE_END after the last. */
static trace_result line_interpret(trace_reader *reader, trace_op *out) {
  for (;;) {
    char *line;
    size_t length;
    trace_result result = line_next(reader, &line, &length);
    if (result != TRACE_OP || plain_read(reader, line, length, out)) return result;
    result = line_cut(reader, line, length);
    if (result != TRACE_OP) return result;
    if (reader->fields.count > 0) return fields_interpret(reader, out);
  }
}

/* What follows an `at`: the alloc takes its address, anything else is an error. */
static trace_result at_take(trace_reader *reader, trace_result result, trace_op *out) {
  uint64_t at = reader->at;
  reader->at = 0;
  if (result == TRACE_BAD || result == TRACE_FAILED) return result;
  if (result == TRACE_END || out->kind != TRACE_ALLOC)
    return trace_refuse(reader, reader->at_line, "at: no \"alloc\" follows directly");
  out->at = at;
  return TRACE_OP;
}

trace_result trace_read(trace_reader *reader, trace_op *out) {
  if (reader->outcome != TRACE_OP) return reader->outcome;
  trace_result result = reader->line_number == 0 ? header_read(reader) : TRACE_OP;
  while (result == TRACE_OP) {
    result = line_interpret(reader, out);
    if (reader->at != 0) return at_take(reader, result, out);
    if (result != TRACE_OP || out->kind != TRACE_AT) return result;
    reader->at = out->number[0];
    reader->at_line = out->line;
  }
  return result;
}
