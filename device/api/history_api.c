/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History as the program sees it: turning it on and off, annotations, copies of the ring. Model in history.h.
 *
 * Note [Copying the ring]. The ring may be large, and no thread may wait while all of it is copied. So it is copied
 * some thousand events at a time, oldest first, up to the end that it had at the call. Events that were overwritten
 * before they were copied are lost; then the ones copied before them are dropped too, so that a copy never has a gap.
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
#include "device/state/checks.h"
#include "device/state/thread_caches.h"
#include "history/copy.h"

enum { COPY_CHUNK = 2048 }; /* 160 KiB: some tens of microseconds under the lock */

/* ---- On and off -------------------------------------------------------------------------------------------------- */

/* Takes contexts and notes from all blocks and segments (H2). */
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
      ladei_device_history_note_drop(history, block);
    }
  }
}

/* Moves the newest events into another ring, which may be empty; returns the former one's memory. Order stays: HZ7. */
static ladei_history_event *ring_replace(ladei_device_history *history, ladei_history_event *events, size_t capacity) {
  ladei_lock_assert_held(history->lock);
  ladei_history_event *former = history->events;
  uint64_t oldest = history->appended - history->count;
  size_t kept = ladei_size_min(history->count, capacity);
  for (uint64_t at = oldest; at < history->appended; at++) {
    const ladei_history_event *event = &former[at % history->capacity];
    if (history->appended - at > kept) {
      ladei_history_context_drop(&history->unreferenced, event->context);
      ladei_history_tags_release(event->tags);
    } else {
      events[at % capacity] = *event;
    }
  }
  history->events = events;
  history->capacity = capacity;
  history->count = kept;
  history->next = capacity == 0 ? 0 : history->appended % capacity;
  return former;
}

/* All that changes with a call of lade_device_history_set; all memory for it is there before the lock. */
typedef struct history_change {
  ladei_device_history_settings *settings; /* NULL: off */
  ladei_history_event *events;
  size_t capacity;
  ladei_history_mark now;
} history_change;

static void change_discard(history_change *change) {
  free(change->settings);
  free(change->events);
}

static lade_status change_prepare(const lade_device_allocator *allocator, const lade_history_options *options,
                                  history_change *out) {
  static const char call[] = "lade_device_history_set";
  *out = (history_change){.settings = NULL};
  if (!options->enabled) return LADE_OK;
  const lade_runtime *runtime = allocator->runtime;
  uint64_t capacity = ladei_history_capacity(options);
  size_t bytes;
  out->settings = calloc(1, sizeof *out->settings);
  if (capacity <= SIZE_MAX && ladei_size_mul((size_t)capacity, sizeof *out->events, &bytes))
    out->events = calloc((size_t)capacity, sizeof *out->events);
  if (out->settings == NULL || out->events == NULL) {
    change_discard(out);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %llu events", call,
                       (unsigned long long)capacity);
  }
  out->settings->options = *options;
  out->capacity = (size_t)capacity;
  out->now = ladei_history_mark_now(allocator->history.clock, runtime->ops->now_ns, runtime->self);
  return LADE_OK;
}

static bool options_equal(const lade_history_options *a, const lade_history_options *b) {
  return a->level == b->level && a->capture == b->capture && a->release == b->release && a->user == b->user &&
         a->describe == b->describe && a->skip_actions == b->skip_actions;
}

/* The settings as they are kept from now on: those from before, where there are equal ones. */
static ladei_device_history_settings *settings_keep(ladei_device_history *history,
                                                    ladei_device_history_settings **settings) {
  ladei_device_history_settings *kept = history->all_settings;
  while (kept != NULL && !options_equal(&kept->options, &(*settings)->options)) kept = kept->next;
  if (kept != NULL) return kept;
  kept = *settings;
  kept->next = history->all_settings;
  history->all_settings = kept;
  *settings = NULL;
  return kept;
}

static void change_apply(lade_device_allocator *allocator, history_change *change) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_history *history = &allocator->history;
  bool was_enabled = history->enabled;
  change->events = ring_replace(history, change->events, change->capacity);
  history->enabled = change->settings != NULL;
  ladei_device_history_settings *settings = change->settings == NULL ? NULL : settings_keep(history, &change->settings);
  atomic_store_explicit(&history->settings, settings, memory_order_release);
  if (!history->enabled) {
    heap_forget_contexts(history, &allocator->heap);
  } else if (!was_enabled) {
    history->first = change->now;
    history->started = history->appended;
    atomic_store_explicit(&history->lost_contexts, 0, memory_order_relaxed);
  }
  ladei_device_history_watch(allocator);
}

static lade_status history_set(lade_device_allocator *allocator, const lade_history_options *options) {
  static const char call[] = "lade_device_history_set";
  lade_status status = ladei_device_check_call(allocator, call);
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, call);
  if (status != LADE_OK) return status;
  lade_history_options own;
  history_change change;
  status = ladei_options_read("lade_history_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_history_options_check(&own, call);
  if (status == LADE_OK) status = change_prepare(allocator, &own, &change);
  if (status != LADE_OK) return status;
  ladei_device_history_look(allocator);
  ladei_lock_acquire(&allocator->lock);
  change_apply(allocator, &change);
  ladei_history_context *dead = allocator->history.unreferenced;
  allocator->history.unreferenced = NULL;
  ladei_lock_release(&allocator->lock);
  change_discard(&change);
  ladei_history_contexts_destroy(dead);
  return LADE_OK;
}

lade_status lade_device_history_set(lade_device_allocator *allocator, const lade_history_options *options) {
  return LADEI_UNCANCELLED(history_set(allocator, options));
}

static void settings_destroy(ladei_device_history *history) {
  while (history->all_settings != NULL) {
    ladei_device_history_settings *settings = history->all_settings;
    history->all_settings = settings->next;
    free(settings);
  }
}

void ladei_device_history_destroy(lade_device_allocator *allocator) {
  ladei_device_history *history = &allocator->history;
  history_change off = {.settings = NULL};
  ladei_lock_acquire(&allocator->lock);
  ladei_device_trackers_deliver(allocator);
  change_apply(allocator, &off);
  ladei_lock_release(&allocator->lock);
  change_discard(&off);
  ladei_history_contexts_destroy(history->unreferenced);
  settings_destroy(history);
  free(history->queue);
}

/* ---- Notes ------------------------------------------------------------------------------------------------------- */

/* Under the lock: the note goes where it belongs, with its reference. */
static lade_status note_put(lade_device_allocator *allocator, const void *pointer, ladei_history_context *note,
                            const char *call) {
  ladei_device_block *block = NULL;
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  if (pointer != NULL) {
    (void)ladei_device_thread_caches_flush(allocator);
    status = ladei_device_block_lookup(allocator, pointer, false, call, &block);
  }
  bool listens = status == LADE_OK && allocator->heap.listener != NULL;
  if (listens) ladei_device_history_note(&allocator->heap, block, note);
  ladei_lock_release(&allocator->lock);
  if (!listens) ladei_history_context_release(note);
  return status;
}

/* `pointer` NULL: a note on nothing in particular. */
static lade_status note_write(lade_device_allocator *allocator, const void *pointer, const char *text,
                              const char *call) {
  if (!ladei_device_history_watched(allocator)) return LADE_OK;
  ladei_history_context *note = ladei_history_note_create(text);
  if (note == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a text of %zu bytes", call, strlen(text));
  ladei_device_operation op;
  ladei_device_history_begin(allocator, LADEI_DEVICE_CONTEXT_NOT_WANTED, &op);
  lade_status status = note_put(allocator, pointer, note, call);
  ladei_device_history_end(allocator, &op);
  return status;
}

lade_status lade_device_annotate(lade_device_allocator *allocator, const void *pointer, const char *text) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status == LADE_OK && pointer != NULL) status = ladei_device_check_heap(allocator, __func__);
  if (status == LADE_OK && text == NULL) status = ladei_error_null(__func__, "text");
  if (status != LADE_OK) return status;
  return LADEI_UNCANCELLED(note_write(allocator, pointer, text, __func__));
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Copies from *next on, up to COPY_CHUNK events before `end`. Where older ones are lost, *next moves beyond the gap and
 * true is returned. Lock held. */
static bool chunk_copy(const ladei_device_history *history, uint64_t *next, uint64_t end, ladei_history_copy *copy) {
  ladei_lock_assert_held(history->lock);
  uint64_t oldest = history->appended - history->count;
  if (oldest > *next) {
    *next = oldest < end ? oldest : end;
    return true;
  }
  size_t place = *next < end ? *next % history->capacity : 0;
  for (size_t i = 0; i < COPY_CHUNK && *next < end; i++, *next += 1) {
    const ladei_history_event *event = &history->events[place];
    if (++place == history->capacity) place = 0;
    ladei_history_context_retain(event->context);
    ladei_history_tags_retain(event->tags);
    copy->events[copy->count++] = *event;
  }
  return false;
}

/* Copies all that does not change while the ring is copied; returns the number of events to copy. */
static size_t copy_begin(lade_device_allocator *allocator, uint64_t *next, uint64_t *end, uint64_t *started,
                         ladei_history_mark *first, ladei_history_copy *copy) {
  ladei_device_history *history = &allocator->history;
  ladei_lock_acquire(&allocator->lock);
  if (*end > history->appended) *end = history->appended;
  *next = history->appended - history->count;
  *started = history->started;
  *first = history->first;
  copy->capacity = history->capacity;
  copy->lost_context_count = atomic_load_explicit(&history->lost_contexts, memory_order_relaxed);
  ladei_lock_release(&allocator->lock);
  return *next < *end ? (size_t)(*end - *next) : 0;
}

lade_status ladei_device_history_read(lade_device_allocator *allocator, uint64_t end, ladei_history_copy *out) {
  const ladei_device_history *history = &allocator->history;
  const lade_runtime *runtime = allocator->runtime;
  uint64_t next, started;
  ladei_history_mark first;
  ladei_history_copy copy = {.device = allocator->device};
  size_t room = copy_begin(allocator, &next, &end, &started, &first, &copy);
  uint64_t oldest = next;
  copy.events = ladei_history_memory(room + 1, sizeof *copy.events);
  if (copy.events == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "history of a device: no memory for a copy of %zu events", room);
  while (next < end) {
    ladei_lock_acquire(&allocator->lock);
    bool gap = chunk_copy(history, &next, end, &copy);
    ladei_lock_release(&allocator->lock);
    if (gap) ladei_history_copy_drop(&copy);
  }
  if (room > 0) oldest = end - copy.count;
  copy.lost_count = copy.capacity > 0 && oldest > started ? oldest - started : 0;
  ladei_history_mark now = ladei_history_mark_now(history->clock, runtime->ops->now_ns, runtime->self);
  copy.scale = ladei_history_scale_of(&first, &now);
  *out = copy;
  return LADE_OK;
}

lade_status ladei_device_history_show(ladei_history_copy *copy, ladei_device_history_shown *out) {
  ladei_device_history_kept *kept = malloc((copy->count + 1) * sizeof *kept);
  if (kept == NULL) {
    size_t count = copy->count;
    ladei_history_copy_destroy(copy);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "history of a device: no memory to show %zu events", count);
  }
  for (size_t i = 0; i < copy->count; i++) {
    ladei_history_event *event = &copy->events[i];
    uint32_t action = ladei_history_what_action(event->what);
    kept[i] = (ladei_device_history_kept){event->context, event->tags};
    event->shown.time_ns = ladei_history_time_ns(&copy->scale, event->ticks);
    event->shown.label = NULL;
    event->shown.device = copy->device;
    event->shown.action = action;
    ladei_device_event_show(&event->shown);
  }
  *out = (ladei_device_history_shown){.copy = *copy, .kept = kept};
  return LADE_OK;
}

void ladei_device_history_shown_destroy(ladei_device_history_shown *shown) {
  for (size_t i = 0; i < shown->copy.count; i++) {
    ladei_history_context_release(shown->kept[i].context);
    ladei_history_tags_release(shown->kept[i].tags);
  }
  free(shown->kept);
  free(shown->copy.events);
}

static lade_status history_enter(lade_device_allocator *allocator, const void *out, const char *call) {
  lade_status status = ladei_device_check_call(allocator, call);
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, call);
  return status == LADE_OK && out == NULL ? ladei_error_null(call, "out") : status;
}

lade_status lade_device_history_take(lade_device_allocator *allocator, lade_history **out) {
  ladei_history_copy copy;
  LADEI_TRY(history_enter(allocator, out, __func__));
  LADEI_TRY(ladei_device_history_read(allocator, UINT64_MAX, &copy));
  lade_history *history = ladei_history_show(&copy);
  if (history == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a copy", __func__);
  *out = history;
  return LADE_OK;
}
