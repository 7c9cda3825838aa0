/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/events.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
  if ((what & LADEI_HISTORY_LARGE) != 0) return LADEI_SNAPSHOT_SEGMENT_LARGE;
  return (what & LADEI_HISTORY_SMALL) != 0 ? LADEI_SNAPSHOT_SEGMENT_SMALL : 0;
}

static lade_status event_read(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                              const ladei_history_event *from, uint64_t time_ns, tag_texts *texts,
                              ladei_snapshot_event *out) {
  uint32_t stack;
  LADEI_TRY(ladei_inspect_context_stack(contexts, snapshot, from->context, &stack));
  LADEI_TRY(tags_read(snapshot, from->tags, texts));
  uint32_t label = texts->label;
  const char *note = ladei_history_event_text(from);
  if (note != NULL) LADEI_TRY(ladei_inspect_text(snapshot, note, &label));
  *out = (ladei_snapshot_event){.time_ns = time_ns,
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

static bool pool_is_other(const ladei_history_event *event, const lade_device_pool_id *pool) {
  return pool != NULL && (event->pool.first != pool->first || event->pool.second != pool->second);
}

_Static_assert(sizeof(ladei_snapshot_event) == sizeof(ladei_history_event), "a copy becomes rows in place");

/* Makes rows of the copy's events, in its memory; *out of them. Their references go, also where it fails. */
static lade_status events_convert(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                                  ladei_history_copy *history, bool simulated, const lade_device_pool_id *pool,
                                  size_t *out) {
  ladei_snapshot_event *rows = (ladei_snapshot_event *)(void *)history->events;
  lade_status status = LADE_OK;
  tag_texts texts = {NULL, 0, 0};
  *out = 0;
  for (size_t i = 0; i < history->count; i++) {
    ladei_history_event event = history->events[i]; /* row *out may be in its place */
    ladei_snapshot_event row;
    if (status == LADE_OK && !pool_is_other(&event, pool)) {
      uint64_t time_ns = ladei_inspect_events_time_ns(history, simulated, event.ticks);
      status = event_read(snapshot, contexts, &event, time_ns, &texts, &row);
      assert(*out <= i); /* written rows were read */
      if (status == LADE_OK) rows[(*out)++] = row;
    }
    ladei_history_context_release(event.context);
    ladei_history_tags_release(event.tags); /* others with the same address have references of their own */
  }
  history->count = 0;
  return status;
}

lade_status ladei_inspect_events_add(lade_snapshot *snapshot, ladei_inspect_contexts *contexts,
                                     ladei_history_copy *history, bool simulated, const lade_device_pool_id *pool) {
  ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  size_t room = history->count, count;
  part->lost_count = history->lost_count;
  part->max_entries = history->capacity;
  part->events = 1;
  LADEI_TRY(events_convert(snapshot, contexts, history, simulated, pool, &count));
  if (snapshot->events.count == 0) { /* as they are */
    free(snapshot->events.rows);
    snapshot->events.rows = (ladei_snapshot_event *)(void *)history->events;
    snapshot->events.room = room;
    history->events = NULL;
  } else {
    LADEI_TRY(LADEI_INSPECT_RESERVE(&snapshot->events, count));
    memcpy(snapshot->events.rows + snapshot->events.count, history->events, count * sizeof *snapshot->events.rows);
  }
  assert(snapshot->events.count + count <= snapshot->events.room);
  snapshot->events.count += count;
  return LADE_OK;
}
