/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking snapshots. Each part is copied at a moment of its own; a later one is rolled back to the moment of the first,
 * if the histories of all allow that:
 *
 *   part 0   ----|copied                 moment of the snapshot: the first part's
 *   part 1   ----'~~~~~|copied           events after it are undone, and taken out
 *   part 2   ----'~~~~~~~~~|copied
 *
 * T1  A part is rolled back only if its history was on and still holds all events since the moment; otherwise its skew
 *     says how much later it is.
 * T2  Counters are those of the copy: they count all until then, and are not rolled back.
 * Locks: none here; those of the parts, one after the other.
 */
#include <assert.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "inspect/contexts.h"
#include "inspect/layout.h"
#include "inspect/pair_map.h"
#include "inspect/part.h"

enum { MOST_PARTS = 1000 };

/* Replaces the part's segments and blocks, which are the last rows of their tables, with the layout's. Recalled blocks
 * go into the map, by address. */
static lade_status layout_store(const ladei_inspect_layout *layout, lade_snapshot *snapshot, ladei_pair_map *recalled) {
  const ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  assert(part->first_segment <= snapshot->segments.count && part->first_block <= snapshot->blocks.count);
  snapshot->segments.count = part->first_segment;
  snapshot->blocks.count = part->first_block;
  const ladei_inspect_layout_block *block = ladei_inspect_layout_next_block(layout, NULL);
  const ladei_inspect_layout_segment *segment = NULL;
  while ((segment = ladei_inspect_layout_next_segment(layout, segment)) != NULL) {
    ladei_snapshot_segment *row = LADEI_INSPECT_ADD(&snapshot->segments);
    if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *row = segment->row;
    row->first_block = snapshot->blocks.count;
    row->block_count = 0;
    uint64_t end = segment->row.address + segment->row.total_bytes;
    for (; block != NULL && block->row.address < end; block = ladei_inspect_layout_next_block(layout, block)) {
      ladei_snapshot_block *to = LADEI_INSPECT_ADD(&snapshot->blocks);
      if (to == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
      *to = block->row;
      row->block_count++;
      if (!block->recalled) continue;
      uint32_t *value = ladei_pair_map_value(recalled, to->address, 0);
      if (value == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
      *value = (uint32_t)(snapshot->blocks.count - 1);
    }
  }
  return LADE_OK;
}

/* The first event of the last part that is later than `time_ns`. */
static size_t event_after(const lade_snapshot *snapshot, const ladei_snapshot_part *part, uint64_t time_ns) {
  size_t first = snapshot->events.count;
  while (first > part->first_event && snapshot->events.rows[first - 1].time_ns > time_ns) first--;
  return first;
}

/* Takes the last note and the alloc's stack of the blocks in the map from the part's remaining events. */
static void blocks_recall(lade_snapshot *snapshot, const ladei_pair_map *recalled) {
  size_t first = ladei_inspect_part(snapshot)->first_event, left = recalled->count;
  for (size_t i = snapshot->events.count; i > first && left > 0; i--) {
    const ladei_snapshot_event *event = &snapshot->events.rows[i - 1];
    if (event->action != LADE_DEVICE_ALLOC && event->action != LADE_DEVICE_ANNOTATE) continue;
    uint32_t *value = ladei_pair_map_find(recalled, event->address, 0);
    if (value == NULL || *value == LADEI_SNAPSHOT_NONE) continue;
    ladei_snapshot_block *block = &snapshot->blocks.rows[*value];
    if (event->action == LADE_DEVICE_ANNOTATE) {
      if (block->note == 0) block->note = event->label;
      continue;
    }
    if (event->stack != LADEI_SNAPSHOT_NONE) block->stack = event->stack;
    *value = LADEI_SNAPSHOT_NONE; /* earlier events belong to other blocks */
    left--;
  }
}

static lade_status layout_take_over(const ladei_inspect_layout *layout, lade_snapshot *snapshot, size_t events) {
  ladei_pair_map recalled = {.room = 0};
  lade_status status = layout_store(layout, snapshot, &recalled);
  assert(events <= snapshot->events.count); /* T1: undone events are taken out */
  snapshot->events.count = events;
  if (status == LADE_OK) blocks_recall(snapshot, &recalled);
  ladei_pair_map_clear(&recalled);
  return status;
}

/* The last part as it was at `time_ns`. */
static lade_status part_roll_back(lade_snapshot *snapshot, uint64_t time_ns) {
  ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  size_t first = event_after(snapshot, part, time_ns);
  bool lost = first == part->first_event && part->lost_count > 0; /* T1 */
  if (lost) return LADE_OK;
  ladei_inspect_layout layout;
  part->segment_count = snapshot->segments.count - part->first_segment;
  LADEI_TRY(ladei_inspect_layout_create(snapshot, (uint32_t)(snapshot->parts.count - 1), &layout));
  lade_status status = LADE_OK;
  for (size_t i = snapshot->events.count; status == LADE_OK && i > first; i--)
    status = ladei_inspect_layout_undo(&layout, &snapshot->events.rows[i - 1]);
  if (status == LADE_OK && layout.unfit == 0) {
    assert(part->time_ns >= time_ns);
    status = layout_take_over(&layout, snapshot, first);
    ladei_inspect_part(snapshot)->time_ns = time_ns;
  }
  ladei_inspect_layout_destroy(&layout);
  return status;
}

static bool part_has_memory(const ladei_snapshot_part *part) { return part->kind != LADE_PART_PIPELINE; }

static bool part_is_first_with_memory(const lade_snapshot *snapshot) {
  size_t first = 0;
  while (!part_has_memory(&snapshot->parts.rows[first])) first++;
  return first == snapshot->parts.count - 1;
}

/* Brings the last part to the snapshot's moment, which is that of the first part with memory. */
static lade_status part_place(lade_snapshot *snapshot, uint32_t flags) {
  ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  if (!part_has_memory(part)) return LADE_OK;
  if (part_is_first_with_memory(snapshot)) snapshot->time_ns = part->time_ns;
  if (part->events && part->time_ns > snapshot->time_ns && (flags & LADE_SNAPSHOT_NO_ROLL_BACK) == 0)
    LADEI_TRY(part_roll_back(snapshot, snapshot->time_ns));
  part = ladei_inspect_part(snapshot);
  part->skew_ns = part->time_ns > snapshot->time_ns ? part->time_ns - snapshot->time_ns : 0;
  return LADE_OK;
}

static lade_status part_take(const lade_part *part, size_t index, const ladei_inspect_wanted *wanted,
                             lade_snapshot *snapshot) {
  const ladei_inspect_part_ops *ops = ladei_inspect_part_ops_of(part->kind);
  int device = ops->device(part->object);
  bool one_device = (wanted->options.flags & LADE_SNAPSHOT_ONE_DEVICE) != 0;
  if (one_device && device >= 0 && device != wanted->options.device) return LADE_OK;
  char room[64];
  const char *name = ladei_inspect_part_name(part, index, room);
  LADEI_TRY(ladei_inspect_part_begin(snapshot, (lade_part_kind)part->kind, device, name));
  ladei_inspect_contexts_clear(wanted->contexts);
  LADEI_TRY(ops->copy(part->object, wanted, snapshot));
  return part_place(snapshot, wanted->options.flags);
}

static lade_status parts_take(const lade_part *parts, size_t count, ladei_inspect_wanted *wanted,
                              lade_snapshot *snapshot) {
  ladei_inspect_contexts contexts = {.options = &wanted->options};
  wanted->contexts = &contexts;
  lade_status status = LADE_OK;
  for (size_t i = 0; status == LADE_OK && i < count; i++) status = part_take(&parts[i], i, wanted, snapshot);
  ladei_inspect_contexts_clear(&contexts);
  return status == LADE_OK ? ladei_inspect_finish(snapshot) : status;
}

static lade_status options_check(const lade_snapshot_options *options) {
  const uint32_t known = LADE_SNAPSHOT_NO_ROLL_BACK * 2 - 1;
  if ((options->flags & ~known) == 0) return LADE_OK;
  return ladei_error_argument("lade_snapshot_take", "options.flags", "a set of lade_snapshot_flag", "0x%x",
                              options->flags);
}

static lade_status snapshot_take(const lade_part *parts, size_t count, const lade_snapshot_options *options,
                                 lade_snapshot **out) {
  ladei_inspect_wanted wanted;
  if (parts == NULL && count > 0) return ladei_error_null("lade_snapshot_take", "parts");
  if (out == NULL) return ladei_error_null("lade_snapshot_take", "out");
  if (count > MOST_PARTS) return ladei_error_argument("lade_snapshot_take", "count", "at most 1,000", "%zu", count);
  LADEI_TRY(ladei_options_read("lade_snapshot_options", options, &wanted.options, sizeof wanted.options));
  LADEI_TRY(options_check(&wanted.options));
  for (size_t i = 0; i < count; i++) LADEI_TRY(ladei_inspect_part_check("lade_snapshot_take", i, &parts[i]));
  lade_snapshot *snapshot;
  LADEI_TRY(ladei_inspect_create(&snapshot));
  snapshot->process_id = (uint64_t)getpid();
  ladei_inspect_process_name(snapshot, snapshot->process_id);
  snapshot->is_own = true;
  snapshot->keeps_addresses = (wanted.options.flags & LADE_SNAPSHOT_NO_SYMBOLS) != 0;
  lade_status status = parts_take(parts, count, &wanted, snapshot);
  if (status == LADE_OK)
    *out = snapshot;
  else
    lade_snapshot_destroy(snapshot);
  return status;
}

lade_status lade_snapshot_take(const lade_part *parts, size_t count, const lade_snapshot_options *options,
                               lade_snapshot **out) {
  return LADEI_UNCANCELLED(snapshot_take(parts, count, options, out));
}
