/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of a summary of memory: a table of 77 columns.
 *
 *   |===========================================================================|
 *   |                  title                                                    |
 *   |---------------------------------------------------------------------------|
 *   |            left: 0            |              right: 0                     |
 *   |===========================================================================|
 *   |        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
 *   |---------------------------------------------------------------------------|    a group: its rows share one unit
 *   | label                 |   3072 KiB |     20 MiB |     41 MiB |     38 MiB |    in each column
 *   |===========================================================================|
 *
 * Threads: one.
 */
#ifndef LADE_BASE_SUMMARY_H
#define LADE_BASE_SUMMARY_H

#include <stdint.h>

#include "base/bounded_text.h"

typedef enum ladei_summary_unit { LADEI_SUMMARY_BYTES, LADEI_SUMMARY_COUNT } ladei_summary_unit;

enum { LADEI_SUMMARY_COLUMNS = 4 };

/* Current, peak, sum of increases, sum of decreases. */
typedef struct ladei_summary_values {
  uint64_t column[LADEI_SUMMARY_COLUMNS];
} ladei_summary_values;

/* Title: at most 37 characters, and the device's number; below it a count on the left and one on the right. */
typedef struct ladei_summary_head {
  const char *title;
  int device;
  const char *left, *right; /* at most 19 and 25 characters, the colon included */
  uint64_t left_count, right_count;
} ladei_summary_head;

/* Begins every call that writes a summary: checks flags, reads the caller's stats into `own` as options are read,
 * begins the text. `call` is the public function. LADE_ERR_INVALID_ARGUMENT; errors of ladei_options_read(). */
lade_status ladei_summary_enter(const char *call, const void *stats, void *own, size_t own_bytes, uint32_t flags,
                                char *buffer, size_t bytes, ladei_bounded_text *out);

void ladei_summary_begin(ladei_bounded_text *text, const ladei_summary_head *head);
/* A rule; the next rows are of one group. */
void ladei_summary_group(ladei_bounded_text *text);
/* `scale` is the value by which the group's unit is chosen: that of its first row. */
void ladei_summary_row(ladei_bounded_text *text, const char *label, ladei_summary_unit unit,
                       const ladei_summary_values *values, const ladei_summary_values *scale);
void ladei_summary_end(ladei_bounded_text *text);

#endif /* LADE_BASE_SUMMARY_H */
