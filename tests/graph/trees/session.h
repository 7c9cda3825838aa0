/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph-tree trace at work: one tree on one software device with a virtual clock, memories and handles by the trace's names.
 *
 *   session_create(&session, reader, "decode.trees", &report);
 *   while ((result = trees_read(reader, &item)) == READ_ITEM && session_item(session, &item) == READ_ITEM) {}
 *   session_end(session);                                   // gives all back; session->wrong: something was not as it must be
 *
 * Beside the tree the session keeps what each handle must hold: the calls one after another, on numbers alone. After each run it
 * compares all bytes that are alive, asks the tree to verify itself, and the device for findings. Each difference is a message
 * on standard error with file and line.
 */
#ifndef LADE_TESTS_GRAPH_TREES_SESSION_H
#define LADE_TESTS_GRAPH_TREES_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/graph/trees/report.h"
#include "tests/graph/trees/trace.h"

typedef struct session session;

/* Borrows all. Messages begin with `name`; NULL: none are printed. NULL, with a message printed, where there is no memory. */
session *session_create(trees_reader *reader, const char *name, trees_report *report);

/* Before the first item: runs alternate between so many streams, at most SESSION_STREAMS, and what is queued is waited for, and memory
 * compared, after every fourth run alone, so that work overlaps as far as the tree lets it. Without it: one stream, every run. */
enum { SESSION_STREAMS = 2 };
void session_overlap(session *s, size_t streams);

/* The next item of the trace. READ_BAD, READ_FAILED: see trees_error(). */
read_result session_item(session *s, const trees_item *item);

/* Results of the runs so far. */
typedef struct session_counts {
  uint64_t did[5];                              /* by lade_graph_did */
  uint64_t mismatches[LADE_GRAPH_REASON_COUNT]; /* by reason, also of eager runs */
  uint64_t ended, restored, carried;
} session_counts;
const session_counts *session_counts_get(const session *s);

/* An output of a run; of runs that failed, and beyond a run's outputs, nothing. */
typedef struct session_seen {
  bool handle, memory;
  bool lost;
  uint64_t count; /* of a handle */
} session_seen;
session_seen session_look(const session *s, size_t run, size_t output);

/* Something was not as it must be, and a message was printed. */
bool session_wrong(const session *s);

/* Gives back all handles and memories that are left, and the tree. A failure is a message, too. True: nothing was ever wrong. */
bool session_end(session *s);

#endif /* LADE_TESTS_GRAPH_TREES_SESSION_H */
