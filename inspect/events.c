/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/events.h"

#include "base/error.h"
#include "inspect/pair_map.h"

static lade_status event_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts, const lade_history_event *from,
                             bool simulated) {
  uint32_t stack, label, scopes;
  LADEI_TRY(ladei_inspect_context_stack(contexts, snapshot, from->context, &stack));
  LADEI_TRY(ladei_inspect_text(snapshot, from->text != NULL ? from->text : from->label, &label));
  LADEI_TRY(ladei_inspect_text(snapshot, from->scopes, &scopes));
  lade_snapshot_event *to = LADEI_INSPECT_ADD(&snapshot->events);
  if (to == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *to = (lade_snapshot_event){.time_ns = simulated ? from->time_ns : from->wall_ns,
                              .address = from->address,
                              .bytes = from->bytes,
                              .stream = (uint64_t)(uintptr_t)from->stream,
                              .pool = from->pool,
                              .stack = stack,
                              .label = label,
                              .scopes = scopes,
                              .action = from->action};
  return LADE_OK;
}

lade_status ladei_inspect_events_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                                     const lade_history *history, bool simulated, uint64_t last,
                                     const lade_device_pool_id *pool) {
  lade_snapshot_part *part = ladei_inspect_part(snapshot);
  part->lost_count = history->lost_count;
  part->events = 1;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&snapshot->events, history->event_count));
  for (size_t i = 0; i < history->event_count; i++) {
    const lade_history_event *event = &history->events[i];
    if (event->sequence > last) break;
    if (pool != NULL && (event->pool.first != pool->first || event->pool.second != pool->second)) continue;
    LADEI_TRY(event_add(snapshot, contexts, event, simulated));
  }
  return LADE_OK;
}

/* Address -> the event that marks it last. */
static lade_status marks_collect(const lade_snapshot *snapshot, uint64_t first, lade_device_action action,
                                 ladei_pair_map *marks) {
  for (uint64_t i = first; i < snapshot->events.count; i++) {
    const lade_snapshot_event *event = &snapshot->events.rows[i];
    bool ends = event->action == LADE_DEVICE_FREE_REQUESTED || event->action == LADE_DEVICE_ALLOC;
    if (event->action != (uint32_t)action && !ends) continue;
    uint32_t *value = ladei_pair_map_value(marks, event->address, 0);
    if (value == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *value = event->action == (uint32_t)action ? (uint32_t)i : LADE_SNAPSHOT_NONE;
  }
  return LADE_OK;
}

static lade_status blocks_mark(lade_snapshot *snapshot, ladei_pair_map *allocs, ladei_pair_map *notes) {
  const lade_snapshot_part *part = ladei_inspect_part(snapshot);
  LADEI_TRY(marks_collect(snapshot, part->first_event, LADE_DEVICE_ALLOC, allocs));
  LADEI_TRY(marks_collect(snapshot, part->first_event, LADE_DEVICE_ANNOTATE, notes));
  for (uint64_t i = part->first_block; i < snapshot->blocks.count; i++) {
    lade_snapshot_block *block = &snapshot->blocks.rows[i];
    if (block->state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
    const uint32_t *alloc = ladei_pair_map_value(allocs, block->address, 0);
    if (alloc == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    if (*alloc != LADE_SNAPSHOT_NONE && block->stack == LADE_SNAPSHOT_NONE)
      block->stack = snapshot->events.rows[*alloc].stack;
    const uint32_t *note = ladei_pair_map_value(notes, block->address, 0);
    if (note == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    if (*note != LADE_SNAPSHOT_NONE && block->note == 0) block->note = snapshot->events.rows[*note].label;
  }
  return LADE_OK;
}

lade_status ladei_inspect_events_mark_blocks(lade_snapshot *snapshot) {
  ladei_pair_map allocs = {.room = 0}, notes = {.room = 0};
  lade_status status = blocks_mark(snapshot, &allocs, &notes);
  ladei_pair_map_clear(&allocs);
  ladei_pair_map_clear(&notes);
  return status;
}
