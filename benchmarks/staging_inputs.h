/* SPDX-License-Identifier: Apache-2.0 */
/* The files to stage, and the pieces in which they pass through the window. */
#ifndef LADE_BENCHMARKS_STAGING_INPUTS_H
#define LADE_BENCHMARKS_STAGING_INPUTS_H

#include "benchmarks/staging.h"

/* Opens the files named, and those in the folders named, or makes a file of random data without a name in $TMPDIR.
 * False: said why on stderr. */
bool staging_inputs_open(staging *s);
void staging_inputs_close(staging_inputs *inputs);

/* Makes a file without a name in $TMPDIR, so that nothing can be left over; -1: said why. */
int staging_temporary_file(void);
/* Opens the same file with O_DIRECT; -1: said why. */
int staging_reopen_direct(int fd, int flags, const char *path);

/* A range of a file and its place in the window. */
typedef struct staging_piece {
  const staging_file *file;
  uint64_t offset; /* in the file */
  uint64_t bytes;
  uint64_t place;  /* in the window */
  bool last_place; /* no further piece fits into this window: the next one begins at its start again */
} staging_piece;

typedef struct staging_cursor {
  size_t file;
  uint64_t offset;
  uint64_t place;
} staging_cursor;

/* Gives the pieces of all inputs in order; a cursor of zeros begins. False at the end. */
bool staging_piece_next(const staging *s, staging_cursor *cursor, staging_piece *out);

#endif /* LADE_BENCHMARKS_STAGING_INPUTS_H */
