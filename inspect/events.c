/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/events.h"

#include "base/error.h"

/* Texts of the tags that the last event had: a thread's events share theirs. */
typedef struct tag_texts {
  const ladei_history_tags *tags;
  uint32_t label, scopes;
} tag_texts;

static lade_status tags_read(lade_snapshot *snapshot, const ladei_history_tags *tags, tag_texts *texts) {
  if (tags == texts->tags) return LADE_OK;
  LADEI_TRY(ladei_inspect_text(snapshot, tags == NULL ? NULL : tags->label, &texts->label));
  LADEI_TRY(ladei_inspect_text(snapshot, tags == NULL ? NULL : tags->scopes, &texts->scopes));
  texts->tags = tags;
  return LADE_OK;
}

uint64_t ladei_inspect_events_time_ns(const ladei_history_copy *history, bool simulated, uint64_t ticks) {
  return simulated ? ladei_history_time_ns(&history->scale, ticks) : ladei_history_wall_ns(&history->scale, ticks);
}

static uint32_t flags_of(uint64_t what) {
  if ((what & LADEI_HISTORY_LARGE) != 0) return LADE_SNAPSHOT_SEGMENT_LARGE;
  return (what & LADEI_HISTORY_SMALL) != 0 ? LADE_SNAPSHOT_SEGMENT_SMALL : 0;
}

static lade_status event_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts, const ladei_history_event *from,
                             uint64_t time_ns, tag_texts *texts) {
  uint32_t stack;
  LADEI_TRY(ladei_inspect_context_stack(contexts, snapshot, from->context, &stack));
  LADEI_TRY(tags_read(snapshot, from->tags, texts));
  uint32_t label = texts->label;
  const char *note = ladei_history_event_text(from);
  if (note != NULL) LADEI_TRY(ladei_inspect_text(snapshot, note, &label));
  lade_snapshot_event *to = LADEI_INSPECT_ADD(&snapshot->events);
  if (to == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *to = (lade_snapshot_event){.time_ns = time_ns,
                              .address = from->address,
                              .bytes = from->bytes,
                              .block_bytes = ladei_history_what_block_bytes(from->what),
                              .stream = (uint64_t)(uintptr_t)from->stream,
                              .pool = from->pool,
                              .stack = stack,
                              .label = label,
                              .scopes = texts->scopes,
                              .action = ladei_history_what_action(from->what),
                              .flags = flags_of(from->what)};
  return LADE_OK;
}

lade_status ladei_inspect_events_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                                     const ladei_history_copy *history, bool simulated,
                                     const lade_device_pool_id *pool) {
  lade_snapshot_part *part = ladei_inspect_part(snapshot);
  tag_texts texts = {NULL, 0, 0};
  part->lost_count = history->lost_count;
  part->max_entries = history->capacity;
  part->events = 1;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&snapshot->events, history->count));
  for (size_t i = 0; i < history->count; i++) {
    const ladei_history_event *event = &history->events[i];
    if (pool != NULL && (event->pool.first != pool->first || event->pool.second != pool->second)) continue;
    uint64_t time_ns = ladei_inspect_events_time_ns(history, simulated, event->ticks);
    LADEI_TRY(event_add(snapshot, contexts, event, time_ns, &texts));
  }
  return LADE_OK;
}
