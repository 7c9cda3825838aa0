/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording: operations, the ring, and what the heap reports. Model and invariants in history.h; settings, reading and
 * annotations in device/api/history_api.c.
 *
 * Locks: the allocator's lock. No callback is called under it: contexts that nothing refers to any more wait in a
 * list.
 */
#include "device/observe/history.h"

#include "device/observe/trackers.h"
#include "device/state/thread_caches.h"
#include "history/contexts.h"

/* ---- Operations -------------------------------------------------------------------------------------------------- */

void ladei_device_history_begin(lade_device_allocator *allocator, unsigned level, ladei_device_operation *op) {
  ladei_device_history *history = &allocator->history;
  *op = (ladei_device_operation){.thread = pthread_self()};
  ladei_device_history_lock(allocator);
  lade_device_history_options options = history->options;
  bool wanted = history->enabled && options.level >= level;
  op->outer = history->operations;
  history->operations = op;
  ladei_lock_release(&allocator->lock);
  if (wanted) op->context = ladei_history_context_capture(options.capture, options.release, options.user);
}

void ladei_device_history_end(lade_device_allocator *allocator, ladei_device_operation *op) {
  ladei_device_history *history = &allocator->history;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_operation **link = &history->operations;
  while (*link != op) link = &(*link)->outer;
  *link = op->outer;
  ladei_history_context_drop(&history->unreferenced, op->context);
  ladei_device_trackers_deliver(allocator);
  ladei_history_context *dead = history->unreferenced;
  history->unreferenced = NULL;
  ladei_lock_release(&allocator->lock);
  ladei_history_contexts_destroy(dead);
}

/* The context of what this thread does: of its innermost operation. */
static ladei_history_context *operation_context(const ladei_device_history *history) {
  ladei_lock_assert_held(history->lock);
  const ladei_device_operation *op = history->operations;
  while (op != NULL && !pthread_equal(op->thread, pthread_self())) op = op->outer;
  return op == NULL ? NULL : op->context;
}

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

/* Puts the event behind the others; it keeps a reference of its own. */
static void ring_append(ladei_device_history *history, const lade_device_event *event) {
  ladei_lock_assert_held(history->lock);
  lade_device_event *place = &history->events[event->sequence % history->capacity];
  if (history->count == history->capacity)
    ladei_history_context_drop(&history->unreferenced, (ladei_history_context *)(uintptr_t)place->context);
  else
    history->count++;
  *place = *event;
  ladei_history_context_retain((ladei_history_context *)(uintptr_t)place->context);
}

/* Completes the event and gives it to the ring and to the trackers' queue. `context` stays the caller's. */
static void event_add(ladei_device_heap *heap, lade_device_event event, ladei_history_context *context,
                      uint64_t block_bytes) {
  ladei_device_history *history = heap->listener_state;
  event.sequence = history->sequence++;
  event.time_ns = history->now_ns;
  event.device = history->device;
  if (history->options.level >= LADE_CONTEXT_ALLOC) event.context = context;
  if (history->enabled) ring_append(history, &event);
  if (!history->tracked) return;
  lade_device_event_totals totals = {.struct_size = sizeof totals,
                                     .block_bytes = block_bytes,
                                     .allocated_bytes = ladei_device_gauges_current(&heap->counters.allocated_bytes),
                                     .reserved_bytes = ladei_device_gauges_current(&heap->counters.reserved_bytes)};
  ladei_device_trackers_queue(history, &event, &totals);
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static lade_device_pool_id pool_of(const ladei_device_heap_segment *segment) {
  const ladei_device_private_pool *private_pool = segment->pool->private_pool;
  return private_pool == NULL ? (lade_device_pool_id){0, 0} : private_pool->id;
}

static lade_device_event block_event(const ladei_device_block *block, lade_device_action action) {
  return (lade_device_event){.address = block->address,
                             .bytes = block->requested,
                             .stream = block->segment->stream.handle,
                             .pool = pool_of(block->segment),
                             .action = action};
}

static void block_alloc_record(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  ladei_device_history *history = heap->listener_state;
  ladei_history_context *context = operation_context(history);
  if (history->enabled) {
    ladei_history_context_retain(context);
    block->context = context;
  }
  event_add(heap, block_event(block, LADE_DEVICE_ALLOC), context, block->size);
}

/* The free's own context, or that of the allocation. */
static ladei_history_context *free_context(const ladei_device_history *history, const ladei_device_block *block) {
  ladei_history_context *context = operation_context(history);
  return context != NULL ? context : block->context;
}

static void block_free_record(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  event_add(heap, block_event(block, LADE_DEVICE_FREE_REQUESTED), free_context(heap->listener_state, block),
            block->size);
}

static void block_done_record(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_heap_assert_locked(heap);
  event_add(heap, block_event(block, LADE_DEVICE_FREE_COMPLETED), free_context(heap->listener_state, block),
            block->size);
  ladei_history_context_drop(&((ladei_device_history *)heap->listener_state)->unreferenced, block->context);
  block->context = NULL;
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
  lade_device_event event = {
      .address = address, .bytes = bytes, .stream = segment->stream.handle, .pool = pool_of(segment), .action = action};
  event_add(heap, event, context == NULL && !comes ? segment->context : context, bytes);
}

static void segment_gone_record(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  ladei_device_heap_assert_locked(heap);
  ladei_history_context_drop(&((ladei_device_history *)heap->listener_state)->unreferenced, segment->context);
  segment->context = NULL;
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
  history->tracked = allocator->trackers.count > 0;
  bool watched = history->enabled || history->tracked;
  bool before = allocator->heap.listener != NULL;
  if (watched && !before) ladei_device_thread_caches_pause(allocator); /* with no listener yet: no event of it */
  allocator->heap.listener = watched ? &listener : NULL;
  allocator->heap.listener_state = history;
  atomic_store_explicit(&allocator->watched, watched, memory_order_relaxed);
  if (before && !watched) ladei_device_thread_caches_resume(allocator);
}

void ladei_device_history_event(ladei_device_heap *heap, lade_device_action action, uint64_t address, uint64_t bytes,
                                lade_stream stream, lade_device_pool_id pool) {
  ladei_device_heap_assert_locked(heap);
  lade_device_event event = {.address = address, .bytes = bytes, .stream = stream, .pool = pool, .action = action};
  ladei_history_context *context = action == LADE_DEVICE_SNAPSHOT ? NULL : operation_context(heap->listener_state);
  event_add(heap, event, context, 0);
}
