/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the text formats of `lade`: lines, their fields, numbers.
 *
 * Lines of a file of any length, read in blocks and given out where they lie.
 *
 *   buffer   | given out ...  | begin: "alloc 7 512 0\nfree 3\nal" end |   free   | PADDING |
 *
 * A line ends with a zero in the place of its newline. The rest at the end of a block moves to the front and the next
 * block is read after it; a line longer than the buffer makes it grow.
 *
 * L1  After `end` there are always PADDING readable bytes, so short words may be compared without a look at the end.
 * L2  A zero lies at `end`, so a search for anything but a zero stops there. Bytes after it are old.
 * L3  A line with a zero byte may be given out before its end was read. Every reader refuses it, and a binary file, a
 *     sparse one or /dev/zero, may have no newline for as long as there is memory.
 */
#ifndef LADE_TOOLS_COMMON_LINES_H
#define LADE_TOOLS_COMMON_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { LINES_PADDING = 16 };

typedef struct line_source {
  FILE *file; /* borrowed */
  char *buffer;
  size_t room; /* without the padding */
  char *begin;
  char *end;
  bool ended; /* the file has no more */
} line_source;

typedef enum line_result { LINE_READ, LINE_END, LINE_FAILED } line_result;

/* The next line, without its newline, closed by a zero; valid until the next call, and the caller may write into it.
 * LINE_FAILED: errno says why. */
line_result line_source_next(line_source *source, char **out_line, size_t *out_length);

/*
 * The bytes read and not given out yet, for a caller that recognizes its lines in place (L1, L2): it skips past the
 * newline of a line that it has read, and leaves any other line to line_source_next. Empty before the first call of
 * that.
 */
static inline const char *line_source_peek(const line_source *source) {
  return source->buffer != NULL ? source->begin : "";
}
static inline void line_source_skip(line_source *source, size_t length) { source->begin += length; }

void line_source_destroy(line_source *source);

/* Fields of one line. */
typedef struct line_fields {
  char **list; /* they point into the line */
  size_t count;
  size_t room;
} line_fields;

/* Cuts a line into the fields between blanks and tabs; '#' begins a comment. Writes into the line. False: no memory. */
bool line_fields_cut(line_fields *fields, char *line);

void line_fields_destroy(line_fields *fields);

/* Decimal digits only, at most 64 bits. */
bool line_number_parse(const char *text, uint64_t *out);

#endif /* LADE_TOOLS_COMMON_LINES_H */
