/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of a replay at a snapshot, as plain numbers, and how it is written. The replay fills it from lade's
 * allocators; tests fill it from a model of their own and compare.
 */
#ifndef LADE_TOOLS_REPLAY_REPORT_H
#define LADE_TOOLS_REPLAY_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lade/device.h"

typedef enum report_state { REPORT_INACTIVE, REPORT_ALLOCATED, REPORT_PENDING_FREE } report_state;

typedef struct report_block {
  uint64_t offset; /* in its segment */
  uint64_t size;
  uint64_t requested_size; /* 0 while inactive */
  report_state state;
  uint64_t id; /* while allocated */
} report_block;

typedef struct report_segment {
  uint64_t address;
  uint64_t total_size;
  uint64_t stream;
  uint64_t pool; /* 0: default */
  bool is_large;
  bool is_expandable;
  uint64_t allocated_size;
  uint64_t active_size;
  uint64_t requested_size;
  size_t first_block;
  size_t block_count;
} report_segment;

typedef struct report_pinned {
  uint64_t in_use_blocks;
  uint64_t requested_bytes;
  uint64_t reserved_bytes;
  uint64_t driver_allocs;
  uint64_t driver_frees;
  uint64_t events_recorded;
  uint64_t pending_blocks;
} report_pinned;

typedef struct report_entry {
  const char *label;
  uint64_t line;
  const uint64_t *oom;
  size_t oom_count;
  const lade_device_stats *stats;
  const report_segment *segments; /* by ascending address; NULL: totals only */
  size_t segment_count;
  const report_block *blocks; /* as segments */
  report_pinned pinned;
} report_entry;

/* The JSON object of one entry. */
void report_write_json(FILE *out, const report_entry *entry);

/* At most one screen for people. */
void report_write_summary(FILE *out, const report_entry *entry);

#endif /* LADE_TOOLS_REPLAY_REPORT_H */
