/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a graph-tree trace, as JSON (README.md). */
#ifndef LADE_TESTS_GRAPH_TREES_REPORT_H
#define LADE_TESTS_GRAPH_TREES_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lade/graph.h"

/* An address of the pool: the number of its segment, in order of allocation, and the place there. */
typedef struct trees_place {
  bool inside; /* false: outside of the pool */
  uint64_t segment;
  uint64_t offset;
} trees_place;

typedef struct trees_report_output {
  uint32_t kind; /* lade_graph_output_kind */
  trees_place at;
} trees_report_output;

typedef struct trees_report_block {
  trees_place at;
  uint64_t bytes;
} trees_report_block;

/* Borrowed lists. */
typedef struct trees_report_run {
  uint64_t line;
  const char *name, *function;
  uint64_t key;
  lade_status status;
  uint32_t did;   /* lade_graph_did */
  uint32_t ended; /* lade_graph_ended */
  uint32_t state; /* lade_graph_state */
  bool restored;
  int64_t node; /* LADE_GRAPH_NO_NODE */
  const uint32_t *why;
  size_t why_count;
  const uint32_t *carried;
  size_t carried_count;
  const uint32_t *classes;
  size_t class_count;
  const trees_report_output *outputs;
  size_t output_count;
  const char *const *lost; /* "R.O" */
  size_t lost_count;
  const trees_report_block *live;
  size_t live_count;
} trees_report_run;

typedef struct trees_report_read {
  uint64_t line;
  const char *name; /* "R.O" */
  bool lost;
  uint64_t value;
} trees_report_read;

typedef struct trees_report_snapshot {
  uint64_t line;
  const char *label;
  lade_graph_tree *tree; /* its recordings */
  const uint64_t *segments;
  size_t segment_count;
} trees_report_snapshot;

/* Where entries go. */
typedef struct trees_report {
  FILE *out;
  bool first; /* no entry so far */
} trees_report;

void trees_report_begin(trees_report *report, FILE *out);
void trees_report_end(trees_report *report);

void trees_report_run_write(trees_report *report, const trees_report_run *run);
void trees_report_read_write(trees_report *report, const trees_report_read *read);
void trees_report_snapshot_write(trees_report *report, const trees_report_snapshot *snapshot);

#endif /* LADE_TESTS_GRAPH_TREES_REPORT_H */
