/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model checker of graph trees: random programs of functions, called through a tree on `sim`, against the same calls made eagerly on
 * numbers alone. All bytes that are alive are compared after every call, the tree verifies itself and the device reports what it
 * finds (tests/graph/trees/session.h).
 *
 * A program is a graph-tree trace. One that fails is run again with fewer and fewer lines, and printed.
 */
#ifndef LADE_TESTS_GRAPH_CHECKER_H
#define LADE_TESTS_GRAPH_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/graph/trees/session.h"

typedef struct checker_counts {
  uint64_t programs, calls;
  session_counts runs;
} checker_counts;

/* Makes and runs one program of about `calls` calls. False: something was wrong, and `*out_text` has the program; to be freed. */
bool checker_program(uint64_t seed, size_t calls, checker_counts *counts, char **out_text);

/* Runs a program that is text, as that of the seed. True: nothing is wrong, or it is no trace. `*out_whole`, if not NULL: it is one. */
bool checker_text_right(const char *text, uint64_t seed, bool *out_whole);

/* The text with as few lines as still fail; it and `*out` are to be freed. NULL: no memory. */
char *checker_shrink(const char *text, uint64_t seed);

#endif /* LADE_TESTS_GRAPH_CHECKER_H */
