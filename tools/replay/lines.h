/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of a file of any length, read in blocks and given out where they lie.
 *
 *   buffer   | given out ...  | begin: "alloc 7 512 0\nfree 3\nal" end |   free   | PADDING |
 *
 * A line ends with a zero in the place of its newline. What is left at the end of a block moves to the
 * front and the next block is read behind it; a line longer than the buffer makes it grow.
 *
 * L1  Behind `end` there are always PADDING readable bytes, so short words may be compared without a look at the end.
 */
#ifndef LADE_TOOLS_REPLAY_LINES_H
#define LADE_TOOLS_REPLAY_LINES_H

#include <stdbool.h>
#include <stddef.h>
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

void line_source_destroy(line_source *source);

#endif /* LADE_TOOLS_REPLAY_LINES_H */
