/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of allocation traces: splits a line into fields and checks them against the table of operations. Lines in
 * plain form, most of a long trace, are read where they lie, by a shorter way without errors.
 *
 * T1  Nothing is read after an error was noted (R1 of tools/common/reader_frame.h).
 * T2  `streams` holds the declared streams and 0.
 * T3  A line that the shorter way accepts is read equally by the other.
 */
#include "tools/replay/trace.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/size.h"
#include "base/utf8.h"
#include "tools/replay/number_map.h"

/* Kinds of fields of an operation. */
typedef enum field_kind {
  FIELD_NONE,
  FIELD_NUMBER,     /* 64 bits */
  FIELD_CAPACITY,   /* 1 to 2^60 - 1 */
  FIELD_BYTES,      /* 64 bits; the replay refuses sizes that are too large */
  FIELD_HOST_BYTES, /* below 1 TiB, as a pinned pool has them */
  FIELD_NEW_STREAM, /* any number but 0 */
  FIELD_STREAM,     /* declared */
  FIELD_STREAMS,    /* one or more of them */
  FIELD_POOL_FLAGS, /* words, or none */
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
    [TRACE_POOL_CREATE] = {"pool_create", {FIELD_POOL, FIELD_POOL_FLAGS}},
    [TRACE_POOL_BEGIN] = {"pool_begin", {FIELD_POOL, FIELD_STREAMS}},
    [TRACE_POOL_END] = {"pool_end", {FIELD_POOL}},
    [TRACE_POOL_RELEASE] = {"pool_release", {FIELD_POOL}},
    [TRACE_POOL_TRIM] = {"pool_trim", {FIELD_POOL}},
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
  reader_frame frame;
  uint64_t *stream_list; /* of a pool_begin */
  size_t stream_room;
  number_map streams; /* declared */
  unsigned version;   /* 0: the first line was not read yet */
  bool device_seen;
  bool conf_seen;
  bool operation_seen;
  uint64_t known_stream; /* one of `streams` */
  uint64_t at;           /* of the next alloc; 0: none */
  uint64_t at_line;
};

const char *trace_kind_name(trace_kind kind) { return operations[kind].name; }

unsigned trace_version(const trace_reader *reader) { return reader->version; }

const char *trace_error(const trace_reader *reader) { return reader_frame_error(&reader->frame); }
reader_frame *trace_frame(trace_reader *reader) { return &reader->frame; }

trace_reader *trace_reader_create(FILE *file, const char *name) {
  trace_reader *reader = calloc(1, sizeof *reader);
  if (reader == NULL) return NULL;
  if (reader_frame_open(&reader->frame, file, name) && number_map_set(&reader->streams, 0, 1)) return reader;
  trace_reader_destroy(reader);
  return NULL;
}

void trace_reader_destroy(trace_reader *reader) {
  if (reader == NULL) return;
  number_map_destroy(&reader->streams);
  reader_frame_close(&reader->frame);
  free(reader->stream_list);
  free(reader);
}

#define REFUSE(reader, ...) READER_REFUSE(&(reader)->frame, __VA_ARGS__)
#define FAIL(reader, ...)   READER_FAIL(&(reader)->frame, __VA_ARGS__)

/* ---- Lines and fields -------------------------------------------------------------------------------------------- */

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

/* ---- Fields of operations ---------------------------------------------------------------------------------------- */

static bool stream_known(trace_reader *reader, uint64_t stream) {
  if (stream == reader->known_stream) return true;
  if (number_map_get(&reader->streams, stream) == NULL) return false;
  reader->known_stream = stream;
  return true;
}

static read_result stream_check(trace_reader *reader, uint64_t stream) {
  if (stream_known(reader, stream)) return READ_ITEM;
  return REFUSE(reader, "unknown stream %llu", (unsigned long long)stream);
}

static bool number_in_range(field_kind kind, uint64_t value) {
  switch (kind) {
  case FIELD_CAPACITY: return value >= 1 && value < LADEI_SIZE_LIMIT;
  case FIELD_HOST_BYTES: return value < UINT64_C(1) << 40;
  case FIELD_NEW_STREAM:
  case FIELD_POOL: return value >= 1;
  case FIELD_ADDRESS: return value > 0 && value % TRACE_ADDRESS_ALIGN == 0;
  default: return true;
  }
}

static read_result number_read(trace_reader *reader, field_kind kind, const char *text, uint64_t *out) {
  if (!line_number_parse(text, out)) return REFUSE(reader, "malformed number \"%s\"", text);
  if (kind == FIELD_ADDRESS && !number_in_range(kind, *out)) {
    return REFUSE(reader, "value out of range: %s; an address is a multiple of %llu and not 0", text,
                  (unsigned long long)TRACE_ADDRESS_ALIGN);
  }
  if (!number_in_range(kind, *out)) return REFUSE(reader, "value out of range: %s", text);
  return kind == FIELD_STREAM ? stream_check(reader, *out) : READ_ITEM;
}

static read_result streams_read(trace_reader *reader, size_t first, trace_op *op) {
  size_t count = reader->frame.fields.count - first;
  if (!LADEI_ARRAY_ROOM(reader->stream_list, reader->stream_room, count))
    return FAIL(reader, "no memory for %zu streams", count);
  for (size_t i = 0; i < count; i++) {
    read_result result =
        number_read(reader, FIELD_STREAM, reader->frame.fields.list[first + i], &reader->stream_list[i]);
    if (result != READ_ITEM) return result;
  }
  op->streams = reader->stream_list;
  op->stream_count = count;
  return READ_ITEM;
}

static read_result pool_flags_read(trace_reader *reader, size_t first, uint64_t *out) {
  static const struct {
    const char *word;
    trace_pool_flag flag;
  } words[] = {{"no_split", TRACE_POOL_NO_SPLIT}, {"use_on_oom", TRACE_POOL_USE_ON_OOM}};
  for (size_t i = first; i < reader->frame.fields.count; i++) {
    const char *text = reader->frame.fields.list[i];
    size_t word = 0;
    while (word < 2 && strcmp(text, words[word].word) != 0) word++;
    if (word == 2) return REFUSE(reader, "unknown flag \"%s\"; expected no_split, use_on_oom", text);
    *out |= words[word].flag;
  }
  return READ_ITEM;
}

static read_result field_read(trace_reader *reader, field_kind kind, size_t index, trace_op *op) {
  const char *text = reader->frame.fields.list[index + 1];
  switch (kind) {
  case FIELD_STREAMS: return streams_read(reader, index + 1, op);
  case FIELD_POOL_FLAGS: return pool_flags_read(reader, index + 1, &op->number[index]);
  case FIELD_LABEL:
    if (!ladei_utf8_is_text(text)) return REFUSE(reader, "malformed label: it is not UTF-8");
    op->text = text;
    return READ_ITEM;
  case FIELD_TEXT: op->text = text; return READ_ITEM;
  case FIELD_FRACTION:
    if (!fraction_parse(text, &op->fraction)) return REFUSE(reader, "malformed number \"%s\"", text);
    return op->fraction <= 1.0 ? READ_ITEM : REFUSE(reader, "value out of range: %s", text);
  default: return number_read(reader, kind, text, &op->number[index]);
  }
}

static read_result fields_read(trace_reader *reader, trace_op *op) {
  const field_kind *kinds = operations[op->kind].fields;
  size_t expected = 0;
  while (expected < FIELDS_MAX && kinds[expected] != FIELD_NONE) expected++;
  size_t given = reader->frame.fields.count - 1;
  bool flags = expected > 0 && kinds[expected - 1] == FIELD_POOL_FLAGS;
  bool list = flags || (expected > 0 && kinds[expected - 1] == FIELD_STREAMS);
  size_t least = expected - flags;
  if (list ? given < least : given != least) {
    return REFUSE(reader, "wrong number of fields: \"%s\" takes %zu%s, here are %zu", operations[op->kind].name, least,
                  list ? " or more" : "", given);
  }
  for (size_t i = 0; i < expected; i++) {
    read_result result = field_read(reader, kinds[i], i, op);
    if (result != READ_ITEM) return result;
  }
  return READ_ITEM;
}

/* ---- Declarations ------------------------------------------------------------------------------------------------ */

static read_result once_before_operations(trace_reader *reader, const char *what, bool *seen) {
  if (reader->operation_seen) return REFUSE(reader, "\"%s\" after the first operation", what);
  if (*seen) return REFUSE(reader, "\"%s\" a second time", what);
  *seen = true;
  return READ_ITEM;
}

static read_result declaration_check(trace_reader *reader, const trace_op *op) {
  switch (op->kind) {
  case TRACE_DEVICE: return once_before_operations(reader, "device", &reader->device_seen);
  case TRACE_CONF: return once_before_operations(reader, "conf", &reader->conf_seen);
  case TRACE_STREAM:
    if (number_map_get(&reader->streams, op->number[0]) != NULL)
      return REFUSE(reader, "stream %llu a second time", (unsigned long long)op->number[0]);
    return number_map_set(&reader->streams, op->number[0], 1) ? READ_ITEM : FAIL(reader, "no memory for the stream");
  case TRACE_AT: return READ_ITEM;
  default: reader->operation_seen = true; return READ_ITEM;
  }
}

/* The version of the format that brought an operation. */
static unsigned kind_since(trace_kind kind) { return kind == TRACE_POOL_CREATE || kind == TRACE_POOL_TRIM ? 2 : 1; }

static bool kind_find(const char *name, unsigned version, trace_kind *out) {
  for (int kind = 0; kind < TRACE_KIND_COUNT; kind++) {
    if (kind_since((trace_kind)kind) <= version && strcmp(operations[kind].name, name) == 0) {
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

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of eight characters is the lowest byte");

/* Every byte of a word is `byte`. */
static inline uint64_t bytes_of(uint8_t byte) { return UINT64_MAX / 255 * byte; }

/* Eight digits, the first one in the lowest byte: neighbours are added up, by twos, fours, and all. */
static inline uint64_t digits_sum(uint64_t digits) {
  uint64_t twos = (10 * digits + (digits >> 8)) & UINT64_C(0x00FF00FF00FF00FF);
  uint64_t fours = (100 * twos + (twos >> 16)) & UINT64_C(0x0000FFFF0000FFFF);
  return (10000 * fours + (fours >> 32)) & UINT32_MAX;
}

/* At most 19 digits, which 64 bits hold. */
static __attribute__((noinline)) const char *long_number(const char *at, uint64_t *out) {
  const char *begin = at;
  uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; at++) value = 10 * value + (uint64_t)(*at - '0');
  *out = value;
  return at > begin && at - begin <= 19 ? at : NULL;
}

/*
 * Returns the text after the number; NULL: it is none, or is too large. Up to seven digits come at once, since a loop
 * over digits ends where the processor does not expect it. The line is padded: LINES_PADDING.
 */
static inline const char *plain_number(const char *at, uint64_t *out) {
  uint64_t text;
  memcpy(&text, at, sizeof text);
  uint64_t digits = text ^ bytes_of('0'); /* a digit is now 0 to 9 */
  /* The highest bit of each byte beyond 9; a carry changes only bytes after the first one, which are not looked at. */
  uint64_t others = (digits | (digits + bytes_of(0x80 - 10))) & bytes_of(0x80);
  if (others == 0) return long_number(at, out);
  unsigned bits = (unsigned)__builtin_ctzll(others) & ~7u; /* of the digits in front */
  if (bits == 0) return NULL;
  *out = digits_sum(digits << (64 - bits));
  return at + bits / 8;
}

/*
 * Takes a plain line out of the buffer, without splitting it. False, and the line stays, if it is not plain, has any
 * error, or is cut off at the end of the bytes read: then it is read properly, and so gets its error.
 */
static bool plain_take(trace_reader *reader, trace_op *op) {
  const char *line = line_source_peek(&reader->frame.lines);
  const plain_form *form = plain_form_find(line);
  if (form == NULL) return false;
  const char *at = line + form->length;
  *op = (trace_op){.kind = form->kind, .line = reader->frame.line_number + 1};
  for (unsigned i = 0; i < form->numbers; i++) {
    if (i > 0 && *at++ != ' ') return false;
    at = plain_number(at, &op->number[i]);
    if (at == NULL) return false;
  }
  if (*at != '\n') return false; /* also at the end: L2 of lines.h */
  if (form->kind == TRACE_HALLOC && !number_in_range(FIELD_HOST_BYTES, op->number[1])) return false;
  if (form->stream && !stream_known(reader, op->number[form->numbers - 1])) return false;
  line_source_skip(&reader->frame.lines, (size_t)(at + 1 - line));
  reader->frame.line_number++;
  reader->operation_seen = true;
  return true;
}

/* ---- All lines --------------------------------------------------------------------------------------------------- */

/* Any line that has fields. */
static read_result fields_interpret(trace_reader *reader, trace_op *out) {
  *out = (trace_op){.line = reader->frame.line_number};
  if (!kind_find(reader->frame.fields.list[0], reader->version, &out->kind))
    return REFUSE(reader, "unknown operation \"%s\"", reader->frame.fields.list[0]);
  read_result result = fields_read(reader, out);
  return result == READ_ITEM ? declaration_check(reader, out) : result;
}

/* The next line that says something, an `at` included; READ_END after the last. */
static read_result line_interpret(trace_reader *reader, trace_op *out) {
  for (;;) {
    if (plain_take(reader, out)) return READ_ITEM;
    char *line;
    size_t length;
    read_result result = reader_frame_line(&reader->frame, &line, &length);
    if (result == READ_ITEM) result = reader_frame_cut(&reader->frame, line, length);
    if (result != READ_ITEM) return result;
    if (reader->frame.fields.count > 0) return fields_interpret(reader, out);
  }
}

/* After an `at`: the alloc takes its address, other operations are errors. */
static read_result at_take(trace_reader *reader, read_result result, trace_op *out) {
  uint64_t at = reader->at;
  reader->at = 0;
  if (result == READ_BAD || result == READ_FAILED) return result;
  if (result == READ_END || out->kind != TRACE_ALLOC)
    return READER_REFUSE_AT(&reader->frame, reader->at_line, "at: no \"alloc\" follows directly");
  out->at = at;
  return READ_ITEM;
}

read_result trace_read(trace_reader *reader, trace_op *out) {
  if (reader->frame.outcome != READ_ITEM) return reader->frame.outcome;
  read_result result = READ_ITEM;
  if (reader->frame.line_number == 0)
    result = reader_frame_header(&reader->frame, "lade-trace", TRACE_VERSION, &reader->version);
  while (result == READ_ITEM) {
    result = line_interpret(reader, out);
    if (reader->at != 0) return at_take(reader, result, out);
    if (result != READ_ITEM || out->kind != TRACE_AT) return result;
    reader->at = out->number[0];
    reader->at_line = out->line;
  }
  return result;
}
