/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rings, and the options of both histories.
 *
 * Locks: none.
 */
#include "history/copy.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/huge_pages.h"
#include "base/size.h"

void ladei_history_copy_drop(ladei_history_copy *copy) {
  for (size_t i = 0; i < copy->count; i++) {
    ladei_history_context_release(copy->events[i].context);
    ladei_history_tags_release(copy->events[i].tags);
  }
  copy->count = 0;
}

void ladei_history_copy_destroy(ladei_history_copy *copy) {
  ladei_history_copy_drop(copy);
  free(copy->events);
  copy->events = NULL;
}

void *ladei_history_memory(size_t count, size_t bytes) {
  enum { PAGE = 4096 };
  size_t total;
  if (!ladei_size_mul(count, bytes, &total)) return NULL;
  volatile char *memory = malloc(total);
  if (memory != NULL) ladei_huge_pages_advise((void *)(uintptr_t)memory, total);
  for (size_t at = 0; memory != NULL && at < total; at += PAGE) memory[at] = 0;
  return (void *)(uintptr_t)memory;
}

/* ---- The public copy --------------------------------------------------------------------------------------------- */

typedef struct shown_history {
  lade_history public;
  ladei_history_copy copy;
  lade_history_event *events;
} shown_history;

static lade_history_event event_show(const ladei_history_copy *copy, const ladei_history_event *event) {
  return (lade_history_event){
      .sequence = event->order,
      .time_ns = ladei_history_time_ns(&copy->scale, event->ticks),
      .wall_ns = ladei_history_wall_ns(&copy->scale, event->ticks),
      .address = event->address,
      .bytes = event->bytes,
      .block_bytes = ladei_history_what_block_bytes(event->what),
      .stream = event->stream,
      .pool = event->pool,
      .context = ladei_history_event_context(event),
      .text = ladei_history_event_text(event),
      .label = event->tags == NULL ? NULL : event->tags->label,
      .scopes = event->tags == NULL ? NULL : event->tags->scopes,
      .device = copy->device,
      .action = ladei_history_what_action(event->what),
  };
}

lade_history *ladei_history_show(ladei_history_copy *copy) {
  shown_history *view = calloc(1, sizeof *view);
  lade_history_event *events = malloc((copy->count + 1) * sizeof *events);
  if (view == NULL || events == NULL) {
    free(view);
    free(events);
    ladei_history_copy_destroy(copy);
    return NULL;
  }
  for (size_t i = 0; i < copy->count; i++) events[i] = event_show(copy, &copy->events[i]);
  view->copy = *copy;
  view->events = events;
  view->public = (lade_history){events, copy->count, copy->lost_count, copy->lost_context_count, copy->capacity};
  return &view->public;
}

void lade_history_destroy(lade_history *history) {
  if (history == NULL) return;
  shown_history *view = (shown_history *)(void *)history;
  ladei_history_copy_destroy(&view->copy);
  free(view->events);
  free(view);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

uint64_t ladei_history_capacity(const lade_history_options *options) {
  if (!options->enabled) return 0;
  uint64_t fit = options->max_bytes == 0 ? UINT64_MAX : options->max_bytes / sizeof(ladei_history_event);
  uint64_t asked = options->max_entries > 0 ? options->max_entries : options->max_bytes == 0 ? 1 : UINT64_MAX;
  uint64_t capacity = asked < fit ? asked : fit;
  return capacity == 0 ? 1 : capacity;
}

lade_status ladei_history_options_check(const lade_history_options *options, const char *call) {
  const uint32_t actions = (2u << LADE_DEVICE_ANNOTATE) - 1;
  if (options->enabled > 1) return ladei_error_argument(call, "options.enabled", "0 or 1", "%u", options->enabled);
  if (options->level > LADE_CONTEXT_ALL)
    return ladei_error_argument(call, "options.level", "at most LADE_CONTEXT_ALL", "%u", options->level);
  if (options->enabled && options->level != LADE_CONTEXT_NEVER && options->capture == NULL)
    return ladei_error_argument(call, "options.capture", "a function, or options.level LADE_CONTEXT_NEVER", "NULL");
  if ((options->skip_actions & ~actions) != 0)
    return ladei_error_argument(call, "options.skip_actions", "bits of lade_device_action", "0x%x",
                                options->skip_actions);
  return options->reserved == 0 ? LADE_OK
                                : ladei_error_argument(call, "options.reserved", "0", "%u", options->reserved);
}
