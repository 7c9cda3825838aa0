/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the readers of text formats: their place in a file, the fields of the line, and the error that ends them.
 *
 *   reader_frame frame;
 *   unsigned version;
 *   if (!reader_frame_open(&frame, file, "run.trace")) ...
 *   if (reader_frame_header(&frame, "lade-trace", 2, &version) == READ_ITEM &&
 *       reader_frame_line(&frame, &line, &length) == READ_ITEM && reader_frame_cut(&frame, line, length) == READ_ITEM)
 *     if (frame.fields.count != 2) return READER_REFUSE(&frame, "wrong fields");   // "run.trace:2: wrong fields"
 *
 * R1  `outcome` is READ_ITEM until an error is noted; a reader reads nothing after it, and returns it again.
 * Locks: none; one thread reads.
 */
#ifndef LADE_TOOLS_COMMON_READER_FRAME_H
#define LADE_TOOLS_COMMON_READER_FRAME_H

#include "tools/common/lines.h"

typedef enum read_result {
  READ_ITEM,
  READ_END,
  READ_BAD,    /* the text is wrong */
  READ_FAILED, /* reading or memory failed: says nothing about the text */
} read_result;

typedef struct reader_frame {
  line_source lines;
  uint64_t line_number; /* of the line that was read last; from 1 */
  line_fields fields;   /* of a line that was cut */
  read_result outcome;  /* READ_BAD, READ_FAILED: for good; otherwise READ_ITEM */
  char *name;
  char *error;
} reader_frame;

/* Borrows the file; copies the name, which error messages begin with. False: no memory, and nothing is open. */
bool reader_frame_open(reader_frame *frame, FILE *file, const char *name);
/* Of one that is all zero, too. */
void reader_frame_close(reader_frame *frame);

/* "FILE:LINE: what". */
const char *reader_frame_error(const reader_frame *frame);

/* Notes "FILE:LINE: what" and returns `outcome`, which is READ_BAD or READ_FAILED. */
read_result reader_frame_end(reader_frame *frame, read_result outcome, uint64_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define READER_REFUSE_AT(frame, line, ...) reader_frame_end(frame, READ_BAD, line, __VA_ARGS__)
#define READER_FAIL_AT(frame, line, ...)   reader_frame_end(frame, READ_FAILED, line, __VA_ARGS__)
#define READER_REFUSE(frame, ...)          READER_REFUSE_AT(frame, (frame)->line_number, __VA_ARGS__)
#define READER_FAIL(frame, ...)            READER_FAIL_AT(frame, (frame)->line_number, __VA_ARGS__)

/* The next line; READ_END after the last. */
read_result reader_frame_line(reader_frame *frame, char **out, size_t *out_length);
/* Cuts a line into the fields. */
read_result reader_frame_cut(reader_frame *frame, char *line, size_t length);
/* The first line: the word of the format and its version, from 1 to `newest`, one digit. */
read_result reader_frame_header(reader_frame *frame, const char *word, unsigned newest, unsigned *out_version);

#endif /* LADE_TOOLS_COMMON_READER_FRAME_H */
