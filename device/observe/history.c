/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording: trackers, operations, the ring, and what the heap reports. Model and invariants in history.h; settings,
 * reading and annotations in device/api/history_api.c.
 *
 * Locks: the allocator's lock. No callback is called under it: contexts that nothing refers to any more wait in a
 * list, events for trackers in a queue. Trackers get them from a copy of their own list.
 */
#include "device/observe/history.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "device/state/thread_caches.h"
#include "history/capture.h"
#include "history/contexts.h"

/* ---- Trackers ---------------------------------------------------------------------------------------------------- */

/* Room for one more at the end of the queue; false when there is no memory. */
static bool queue_make_room(ladei_device_history *history) {
  if (history->queue_end < history->queue_room) return true;
  if (history->queue_begin > 0) {
    size_t waiting = history->queue_end - history->queue_begin;
    memmove(history->queue, &history->queue[history->queue_begin], waiting * sizeof history->queue[0]);
    history->queue_begin = 0;
    history->queue_end = waiting;
    return true;
  }
  return LADEI_ARRAY_ROOM(history->queue, history->queue_room, history->queue_end + 1);
}

static void event_queue(ladei_device_history *history, const lade_device_event *event,
                        const lade_device_event_totals *totals) {
  ladei_lock_assert_held(history->lock);
  if (!queue_make_room(history)) return; /* the gap in the sequence shows it */
  ladei_history_context_retain((ladei_history_context *)(uintptr_t)event->context);
  history->queue[history->queue_end++] = (ladei_device_tracked_event){*event, *totals};
}

/* No lock held. */
static void event_deliver(const ladei_device_listeners *listeners, ladei_device_tracked_event *tracked) {
  ladei_lock_assert_none_held();
  ladei_history_context *context = (ladei_history_context *)(uintptr_t)tracked->event.context;
  ladei_device_event_show(&tracked->event);
  for (size_t i = 0; i < listeners->count; i++) {
    const lade_device_listener *listener = &listeners->list[i];
    if (listener->track != NULL) listener->track(listener->user, &tracked->event, &tracked->totals);
  }
  ladei_history_context_release(context);
}

void ladei_device_trackers_deliver(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_history *history = &allocator->history;
  if (history->delivering || history->queue_begin == history->queue_end) return;
  lade_error error;
  ladei_error_save(&error);
  history->delivering = true;
  while (history->queue_begin < history->queue_end) {
    ladei_device_tracked_event tracked = history->queue[history->queue_begin++];
    if (history->queue_begin == history->queue_end) history->queue_begin = history->queue_end = 0;
    ladei_device_listeners listeners = allocator->listeners;
    ladei_lock_release(&allocator->lock);
    event_deliver(&listeners, &tracked);
    ladei_lock_acquire(&allocator->lock);
  }
  history->delivering = false;
  ladei_error_restore(&error);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

void ladei_device_history_begin(lade_device_allocator *allocator, unsigned level, ladei_device_operation *op) {
  ladei_device_history *history = &allocator->history;
  op->entered = false;
  ladei_device_history_look(allocator);
  const ladei_device_history_settings *settings = atomic_load_explicit(&history->settings, memory_order_acquire);
  if (settings == NULL || settings->options.level == LADE_CONTEXT_NEVER) return;
  const lade_history_options *options = &settings->options;
  ladei_history_context *context = NULL;
  if (options->level >= level) context = ladei_history_context_capture(options, &history->lost_contexts);
  op->entered = ladei_history_call_begin(&op->call, &allocator->lock, context);
  if (op->entered || context == NULL) return;
  atomic_fetch_add_explicit(&history->lost_contexts, 1, memory_order_relaxed);
  ladei_history_context_release(context);
}

/* Work that waits for the lock to be free. */
static void work_do(lade_device_allocator *allocator) {
  ladei_device_history *history = &allocator->history;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_trackers_deliver(allocator);
  ladei_history_context *dead = history->unreferenced;
  history->unreferenced = NULL;
  atomic_store_explicit(&history->work, history->queue_begin != history->queue_end, memory_order_relaxed);
  ladei_lock_release(&allocator->lock);
  ladei_history_contexts_destroy(dead);
}

void ladei_device_history_end(lade_device_allocator *allocator, ladei_device_operation *op) {
  if (op->entered) {
    ladei_history_call_end(&op->call);
    ladei_history_context_release(op->call.context);
  }
  if (atomic_load_explicit(&allocator->history.work, memory_order_relaxed)) work_do(allocator);
}

/* The context of what this thread does. */
static ladei_history_context *operation_context(const ladei_device_history *history) {
  ladei_lock_assert_held(history->lock);
  const ladei_device_history_settings *settings = atomic_load_explicit(&history->settings, memory_order_relaxed);
  if (settings == NULL || settings->options.level == LADE_CONTEXT_NEVER) return NULL;
  return ladei_history_call_context(history->lock);
}

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

static bool action_is_skipped(const ladei_device_history *history, uint32_t action) {
  const ladei_device_history_settings *settings = atomic_load_explicit(&history->settings, memory_order_relaxed);
  return (settings->options.skip_actions >> action & 1u) != 0;
}

/* An event before it has a place. */
typedef struct event_facts {
  uint64_t what; /* history/event.h */
  uint64_t address, bytes;
  lade_stream stream;
  lade_device_pool_id pool;
  ladei_history_context *context; /* the caller's */
} event_facts;

/* The place of the next event: after the others, or that of the oldest one, which is in no near cache. So the place of
 * some events later is asked for now; beyond the ring a prefetch does no harm. */
enum { AHEAD = 6 * 64 };
static inline __attribute__((always_inline)) ladei_history_event *ring_place(ladei_device_history *history) {
  ladei_lock_assert_held(history->lock);
  ladei_history_event *place = &history->events[history->next];
  if (history->count == history->capacity) {
    if (place->context != NULL) {
      ladei_history_context_drop(&history->unreferenced, place->context);
      ladei_device_history_work_note(history);
    }
    ladei_history_tags_release(place->tags);
  } else {
    history->count++;
  }
  if (++history->next == history->capacity) history->next = 0;
  history->appended++;
  __builtin_prefetch((char *)place + AHEAD, 1);
  __builtin_prefetch((char *)place + AHEAD + 64, 1);
  return place;
}

/* The event keeps references of its own. It is written where it stays: a copy of what was just written by words makes
 * the processor wait, which costs more than all else here. */
static inline __attribute__((always_inline)) void ring_append(ladei_device_history *history, uint64_t sequence,
                                                              const event_facts *facts) {
  ladei_history_event *place = ring_place(history);
  place->order = sequence;
  place->ticks = ladei_device_history_ticks(history);
  place->address = facts->address;
  place->bytes = facts->bytes;
  place->stream = facts->stream;
  place->pool.first = facts->pool.first;
  place->pool.second = facts->pool.second;
  place->context = facts->context;
  place->tags = ladei_history_tags_take(&history->lost_contexts);
  place->what = facts->what;
  ladei_history_context_retain(facts->context);
}

/* For trackers: times of theirs do not wait for a conversion. */
static __attribute__((noinline)) void event_track(ladei_device_heap *heap, uint64_t sequence, const event_facts *facts,
                                                  uint64_t block_bytes) {
  ladei_device_history *history = heap->listener_state;
  uint64_t now_ns = atomic_load_explicit(&history->call_ns, memory_order_relaxed);
  if (now_ns > history->now_ns) history->now_ns = now_ns;
  lade_device_event event = {.sequence = sequence,
                             .time_ns = history->now_ns,
                             .address = facts->address,
                             .bytes = facts->bytes,
                             .stream = facts->stream,
                             .pool = facts->pool,
                             .context = facts->context,
                             .device = history->device,
                             .action = ladei_history_what_action(facts->what)};
  lade_device_event_totals totals = {
      .struct_size = sizeof totals,
      .block_bytes = block_bytes,
      .allocated_bytes = ladei_device_gauges_current(&heap->counters, LADEI_DEVICE_ALLOCATED_BYTES),
      .reserved_bytes = ladei_device_gauges_current(&heap->counters, LADEI_DEVICE_RESERVED_BYTES)};
  event_queue(history, &event, &totals);
  atomic_store_explicit(&history->work, true, memory_order_relaxed);
}

/* Gives the event to the ring and to the trackers' queue. */
static inline __attribute__((always_inline)) void event_add(ladei_device_heap *heap, event_facts facts,
                                                            uint64_t block_bytes) {
  ladei_device_history *history = heap->listener_state;
  bool kept = history->enabled && !action_is_skipped(history, ladei_history_what_action(facts.what));
  bool tracked = atomic_load_explicit(&history->tracked, memory_order_relaxed);
  if (!kept && !tracked) return;
  uint64_t sequence = history->sequence++;
  if (kept) ring_append(history, sequence, &facts);
  if (tracked) event_track(heap, sequence, &facts, block_bytes);
}

/* The context as events show it: none below LADE_CONTEXT_ALLOC. */
static ladei_history_context *event_context(const ladei_device_history *history, ladei_history_context *context) {
  const ladei_device_history_settings *settings = atomic_load_explicit(&history->settings, memory_order_relaxed);
  return settings != NULL && settings->options.level >= LADE_CONTEXT_ALLOC ? context : NULL;
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static lade_device_pool_id pool_of(const ladei_device_heap_segment *segment) {
  const ladei_device_private_pool *private_pool = segment->pool->private_pool;
  return private_pool == NULL ? (lade_device_pool_id){0, 0} : private_pool->id;
}

static inline __attribute__((always_inline)) event_facts
block_event(const ladei_device_block *block, lade_device_action action, ladei_history_context *context) {
  const ladei_device_heap_segment *segment = block->segment;
  uint64_t what = ladei_history_what_block(action, block->size);
  return (event_facts){what, block->address, block->requested, segment->stream.handle, pool_of(segment), context};
}

static void block_alloc_record(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_history *history = heap->listener_state;
  ladei_history_context *context = operation_context(history);
  if (history->enabled) {
    ladei_history_context_retain(context);
    block->context = context;
  }
  event_add(heap, block_event(block, LADE_DEVICE_ALLOC, event_context(history, context)), block->size);
}

/* The free's own context, or that of the allocation. */
static ladei_history_context *free_context(const ladei_device_heap *heap, const ladei_device_block *block) {
  ladei_history_context *context = operation_context(heap->listener_state);
  return event_context(heap->listener_state, context != NULL ? context : block->context);
}

static void block_free_record(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  event_add(heap, block_event(block, LADE_DEVICE_FREE_REQUESTED, free_context(heap, block)), block->size);
}

static void block_done_record(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  event_add(heap, block_event(block, LADE_DEVICE_FREE_COMPLETED, free_context(heap, block)), block->size);
  ladei_device_history *history = heap->listener_state;
  ladei_history_context_drop(&history->unreferenced, block->context);
  block->context = NULL;
  ladei_device_history_note_drop(history, block);
  ladei_device_history_work_note(history);
}

/* Memory that comes gives a segment without context the operation's. */
static void segment_change_record(ladei_device_heap *heap, ladei_device_heap_segment *segment,
                                  lade_device_action action, uint64_t address, uint64_t bytes) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_history *history = heap->listener_state;
  bool comes = action == LADE_DEVICE_SEGMENT_ALLOC || action == LADE_DEVICE_SEGMENT_MAP;
  ladei_history_context *context = operation_context(history);
  if (comes && history->enabled && segment->context == NULL) {
    ladei_history_context_retain(context);
    segment->context = context;
  }
  if (context == NULL && !comes) context = segment->context;
  uint64_t what = ladei_history_what_segment(action, !segment->pool->is_small);
  context = event_context(history, context);
  event_add(heap, (event_facts){what, address, bytes, segment->stream.handle, pool_of(segment), context}, bytes);
}

static void segment_gone_record(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_history *history = heap->listener_state;
  ladei_history_context_drop(&history->unreferenced, segment->context);
  segment->context = NULL;
  ladei_device_history_work_note(history);
}

static const ladei_device_heap_listener listener = {
    .block_alloc = block_alloc_record,
    .block_free = block_free_record,
    .block_done = block_done_record,
    .segment_change = segment_change_record,
    .segment_gone = segment_gone_record,
};

void ladei_device_history_watch(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_history *history = &allocator->history;
  bool tracked = allocator->listeners.tracker_count > 0;
  bool watched = history->enabled || tracked;
  atomic_store_explicit(&history->tracked, tracked, memory_order_relaxed);
  bool before = allocator->heap.listener != NULL;
  if (watched && !before) ladei_device_thread_caches_pause(allocator); /* with no listener yet: no event of it */
  allocator->heap.listener = watched ? &listener : NULL;
  allocator->heap.listener_state = history;
  atomic_store_explicit(&allocator->attention.watched, watched, memory_order_relaxed);
  ladei_device_attended_update(allocator);
  if (before && !watched) ladei_device_thread_caches_resume(allocator);
}

void ladei_device_history_event(ladei_device_heap *heap, lade_device_action action, uint64_t address, uint64_t bytes,
                                lade_stream stream, lade_device_pool_id pool) {
  ladei_device_heap_assert_locked(heap);
  ladei_history_context *context = action == LADE_DEVICE_SNAPSHOT ? NULL : operation_context(heap->listener_state);
  event_add(heap, (event_facts){action, address, bytes, stream, pool, event_context(heap->listener_state, context)}, 0);
}

void ladei_device_history_note_drop(ladei_device_history *history, ladei_device_block *block) {
  if (block->note == NULL) return;
  ladei_history_context_drop(&history->unreferenced, block->note);
  block->note = NULL;
  history->note_count--;
}

void ladei_device_history_note(ladei_device_heap *heap, ladei_device_block *block, ladei_history_context *note) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_history *history = heap->listener_state;
  if (block == NULL) {
    event_add(heap, (event_facts){.what = LADE_DEVICE_USER_DEFINED, .context = event_context(history, note)}, 0);
  } else {
    event_add(heap, block_event(block, LADE_DEVICE_ANNOTATE, note), block->size);
    ladei_device_history_note_drop(history, block);
  }
  if (block != NULL && history->enabled) {
    block->note = note;
    history->note_count++;
  } else {
    ladei_history_context_drop(&history->unreferenced, note);
  }
  ladei_device_history_work_note(history);
}
