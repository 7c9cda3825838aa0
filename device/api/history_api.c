/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History as the program sees it: turning it on and off, annotations, copies of the ring. Model in history.h.
 *
 * Note [Copying the ring]. The ring may be large, and no thread may wait while all of it is copied. So it is copied some
 * thousand events at a time, oldest first, up to the end that it had at the call. Events that were overwritten before
 * they were copied are lost; then the ones copied before them are dropped too, so that a copy never has a gap.
 *
 * Locks: the allocator's lock; memory for rings and copies is taken without it.
 */
#include "device/api/history_api.h"

#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "device/observe/history.h"
#include "device/observe/trackers.h"
#include "device/state/checks.h"
#include "history/contexts.h"

enum { COPY_CHUNK = 2048 }; /* 160 KiB: some tens of microseconds under the lock */

static ladei_history_context *record_of(const lade_device_event *event) {
  return (ladei_history_context *)(uintptr_t)event->context;
}

/* ---- On and off -------------------------------------------------------------------------------------------------- */

/* Takes the contexts from all blocks and segments (H2). */
static void heap_forget_contexts(ladei_device_history *history, const ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  for (ladei_device_heap_segment *segment = ladei_device_heap_counted_first(heap); segment != NULL;
       segment = ladei_device_heap_counted_next(heap, segment)) {
    ladei_history_context_drop(&history->unreferenced, segment->context);
    segment->context = NULL;
    for (ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next) {
      ladei_history_context_drop(&history->unreferenced, block->context);
      block->context = NULL;
    }
  }
}

/* Moves the newest events into another ring, which may be empty; returns the former one's memory. */
static lade_device_event *ring_replace(ladei_device_history *history, lade_device_event *events, size_t capacity) {
  ladei_lock_assert_held(history->lock);
  lade_device_event *former = history->events;
  uint64_t oldest = history->sequence - history->count;
  size_t kept = ladei_size_min(history->count, capacity);
  for (uint64_t at = oldest; at < history->sequence; at++) {
    const lade_device_event *event = &former[at % history->capacity];
    if (history->sequence - at > kept)
      ladei_history_context_drop(&history->unreferenced, record_of(event));
    else
      events[at % capacity] = *event;
  }
  history->events = events;
  history->capacity = capacity;
  history->count = kept;
  return former;
}

static lade_status options_check(const lade_device_history_options *options) {
  static const char call[] = "lade_device_history_set";
  if (options->enabled > 1) return ladei_error_argument(call, "options.enabled", "0 or 1", "%u", options->enabled);
  if (options->level > LADE_CONTEXT_ALL)
    return ladei_error_argument(call, "options.level", "at most LADE_CONTEXT_ALL", "%u", options->level);
  if (options->enabled && options->level != LADE_CONTEXT_NEVER && options->capture == NULL)
    return ladei_error_argument(call, "options.capture", "a function, or options.level LADE_CONTEXT_NEVER", "NULL");
  return LADE_OK;
}

/* Memory of a ring; NULL with LADE_OK for none. */
static lade_status ring_create(const lade_device_history_options *options, size_t *out_capacity,
                               lade_device_event **out) {
  *out_capacity = 0;
  *out = NULL;
  if (!options->enabled) return LADE_OK;
  size_t bytes;
  *out_capacity = options->max_entries == 0 ? 1 : (size_t)options->max_entries;
  if (ladei_size_mul(*out_capacity, sizeof **out, &bytes)) *out = calloc(*out_capacity, sizeof **out);
  if (*out != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_history_set: no memory for %zu events",
                     *out_capacity);
}

static void options_apply(lade_device_allocator *allocator, const lade_device_history_options *options) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_history *history = &allocator->history;
  bool was_enabled = history->enabled;
  history->enabled = options->enabled != 0;
  history->options = *options;
  if (!history->enabled) {
    history->options.level = LADE_CONTEXT_NEVER;
    heap_forget_contexts(history, &allocator->heap);
  } else if (!was_enabled) {
    history->started = history->sequence;
  }
  ladei_device_history_watch(allocator);
}

static lade_status history_change(lade_device_allocator *allocator, const lade_device_history_options *options) {
  lade_status status = ladei_device_check_call(allocator, "lade_device_history_set");
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, "lade_device_history_set");
  if (status != LADE_OK) return status;
  lade_device_history_options own;
  status = ladei_options_read("lade_device_history_options", options, &own, sizeof own);
  if (status == LADE_OK) status = options_check(&own);
  size_t capacity = 0;
  lade_device_event *events = NULL;
  if (status == LADE_OK) status = ring_create(&own, &capacity, &events);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  lade_device_event *former = ring_replace(&allocator->history, events, capacity);
  options_apply(allocator, &own);
  ladei_history_context *dead = allocator->history.unreferenced;
  allocator->history.unreferenced = NULL;
  ladei_lock_release(&allocator->lock);
  free(former);
  ladei_history_contexts_destroy(dead);
  return LADE_OK;
}

lade_status lade_device_history_set(lade_device_allocator *allocator, const lade_device_history_options *options) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = history_change(allocator, options);
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status lade_device_history_enabled(lade_device_allocator *allocator, bool *out_enabled) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, __func__);
  if (status != LADE_OK) return status;
  if (out_enabled == NULL) return ladei_error_null(__func__, "out_enabled");
  ladei_lock_acquire(&allocator->lock);
  *out_enabled = allocator->history.enabled;
  ladei_lock_release(&allocator->lock);
  return LADE_OK;
}

void ladei_device_history_destroy(lade_device_allocator *allocator) {
  const lade_device_history_options off = {.struct_size = sizeof off};
  ladei_device_history *history = &allocator->history;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_trackers_deliver(allocator);
  lade_device_event *events = ring_replace(history, NULL, 0);
  options_apply(allocator, &off);
  ladei_lock_release(&allocator->lock);
  ladei_history_contexts_destroy(history->unreferenced);
  free(events);
  free(history->queue);
}

/* ---- Annotations ------------------------------------------------------------------------------------------------- */

static lade_status label_note(lade_device_allocator *allocator, const char *label) {
  lade_status status = ladei_device_check_call(allocator, "lade_device_annotate");
  if (status != LADE_OK) return status;
  if (label == NULL) return ladei_error_null("lade_device_annotate", "label");
  if (!ladei_device_history_watched(allocator)) return LADE_OK;
  size_t length = strlen(label);
  ladei_history_context *context = calloc(1, sizeof *context + length + 1);
  if (context == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_annotate: no memory for %zu bytes", length);
  atomic_init(&context->references, 1);
  context->is_label = true;
  memcpy(context->label, label, length + 1);
  ladei_device_operation op;
  ladei_device_history_begin(allocator, LADEI_DEVICE_CONTEXT_NOT_WANTED, &op);
  op.context = context; /* the label is the context of its event */
  ladei_lock_acquire(&allocator->lock);
  if (allocator->heap.listener != NULL)
    ladei_device_history_event(&allocator->heap, LADE_DEVICE_USER_DEFINED, 0, 0, NULL, (lade_device_pool_id){0, 0});
  ladei_lock_release(&allocator->lock);
  ladei_device_history_end(allocator, &op);
  return LADE_OK;
}

lade_status lade_device_annotate(lade_device_allocator *allocator, const char *label) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = label_note(allocator, label);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

void ladei_device_history_copy_destroy(ladei_device_history_copy *copy) {
  for (size_t i = 0; i < copy->count; i++) ladei_history_context_release(copy->contexts[i]);
  free(copy->contexts);
  free(copy->events);
}

void *ladei_device_history_memory(size_t count, size_t bytes) {
  enum { PAGE = 4096 };
  size_t total;
  if (!ladei_size_mul(count, bytes, &total)) return NULL;
  volatile char *memory = malloc(total);
  for (size_t at = 0; memory != NULL && at < total; at += PAGE) memory[at] = 0;
  return (void *)(uintptr_t)memory;
}

/* Copies from *next on, up to COPY_CHUNK events before `end`. Where older ones are lost, *next moves behind the gap and
 * true is returned. Lock held. */
static bool chunk_copy(const ladei_device_history *history, uint64_t *next, uint64_t end,
                       ladei_device_history_copy *copy) {
  ladei_lock_assert_held(history->lock);
  uint64_t oldest = history->sequence - history->count;
  if (oldest > *next) {
    *next = oldest < end ? oldest : end;
    return true;
  }
  for (size_t i = 0; i < COPY_CHUNK && *next < end; i++, *next += 1) {
    const lade_device_event *event = &history->events[*next % history->capacity];
    ladei_history_context_retain(record_of(event));
    copy->events[copy->count++] = *event;
  }
  return false;
}

static void copy_drop(ladei_device_history_copy *copy) {
  for (size_t i = 0; i < copy->count; i++) ladei_history_context_release(copy->contexts[i]);
  copy->count = 0;
}

/* Moves the records of the events from `begin` on into `contexts`; what the program captured takes their place. This is the
 * time in which others get the lock. */
static void copy_show(ladei_device_history_copy *copy, size_t begin) {
  for (size_t i = begin; i < copy->count; i++) {
    copy->contexts[i] = record_of(&copy->events[i]);
    ladei_device_event_show(&copy->events[i]);
  }
}

lade_status ladei_device_history_copy_take(lade_device_allocator *allocator, uint64_t end,
                                           ladei_device_history_copy *out) {
  const ladei_device_history *history = &allocator->history;
  ladei_lock_acquire(&allocator->lock);
  if (end > history->sequence) end = history->sequence;
  uint64_t next = history->sequence - history->count;
  uint64_t started = history->started;
  ladei_lock_release(&allocator->lock);
  size_t room = next < end ? (size_t)(end - next) : 0;
  ladei_device_history_copy copy = {.events = ladei_device_history_memory(room + 1, sizeof *copy.events),
                                    .contexts = ladei_device_history_memory(room + 1, sizeof *copy.contexts)};
  if (copy.events == NULL || copy.contexts == NULL) {
    ladei_device_history_copy_destroy(&copy);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "history of a device: no memory for a copy of %zu events", room);
  }
  while (next < end) {
    size_t before = copy.count;
    ladei_lock_acquire(&allocator->lock);
    bool gap = chunk_copy(history, &next, end, &copy);
    ladei_lock_release(&allocator->lock);
    copy_show(&copy, before);
    if (gap) copy_drop(&copy);
  }
  uint64_t first = end - copy.count;
  copy.lost_count = room > 0 && first > started ? first - started : 0;
  *out = copy;
  return LADE_OK;
}

/* What the program gets: the public view, and what it borrows from. */
typedef struct history_view {
  lade_device_history public;
  ladei_device_history_copy copy;
} history_view;

lade_status lade_device_history_get(lade_device_allocator *allocator, lade_device_history **out) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, __func__);
  if (status != LADE_OK) return status;
  if (out == NULL) return ladei_error_null(__func__, "out");
  history_view *view = calloc(1, sizeof *view);
  if (view == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_history_get: no memory for a copy");
  status = ladei_device_history_copy_take(allocator, UINT64_MAX, &view->copy);
  if (status != LADE_OK) {
    free(view);
    return status;
  }
  view->public = (lade_device_history){view->copy.events, view->copy.count, view->copy.lost_count};
  *out = &view->public;
  return LADE_OK;
}

void lade_device_history_destroy(lade_device_history *history) {
  if (history == NULL) return;
  history_view *view = (history_view *)(void *)history;
  ladei_device_history_copy_destroy(&view->copy);
  free(view);
}
