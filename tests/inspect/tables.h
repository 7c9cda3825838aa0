/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a snapshot, for tests that look at its rows. Borrowed: valid until lade_snapshot_destroy(). */
#ifndef LADE_TESTS_INSPECT_TABLES_H
#define LADE_TESTS_INSPECT_TABLES_H

#include "inspect/snapshot.h"

typedef struct inspect_tables {
  const ladei_snapshot_part *parts;
  const ladei_snapshot_segment *segments;
  const ladei_snapshot_block *blocks;
  const ladei_snapshot_event *events;
  const ladei_snapshot_stack *stacks;
  const ladei_snapshot_frame *frames;
  const ladei_snapshot_module *modules;
  const ladei_snapshot_counter *counters;
  const ladei_snapshot_setting *settings;
  uint64_t part_count, segment_count, block_count, event_count, stack_count, frame_count, module_count, counter_count,
      setting_count, text_count, time_ns, process_id;
} inspect_tables;

static inline inspect_tables inspect_tables_of(const lade_snapshot *snapshot) {
  return (inspect_tables){.parts = snapshot->parts.rows,
                          .segments = snapshot->segments.rows,
                          .blocks = snapshot->blocks.rows,
                          .events = snapshot->events.rows,
                          .stacks = snapshot->stacks.rows,
                          .frames = snapshot->frames.rows,
                          .modules = snapshot->modules.rows,
                          .counters = snapshot->counters.rows,
                          .settings = snapshot->settings.rows,
                          .part_count = snapshot->parts.count,
                          .segment_count = snapshot->segments.count,
                          .block_count = snapshot->blocks.count,
                          .event_count = snapshot->events.count,
                          .stack_count = snapshot->stacks.count,
                          .frame_count = snapshot->frames.count,
                          .module_count = snapshot->modules.count,
                          .counter_count = snapshot->counters.count,
                          .setting_count = snapshot->settings.count,
                          .text_count = snapshot->text_offsets.count,
                          .time_ns = snapshot->time_ns,
                          .process_id = snapshot->process_id};
}

#endif /* LADE_TESTS_INSPECT_TABLES_H */
