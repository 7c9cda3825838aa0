/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History of one allocator: the ring of its last events, the contexts of events and blocks, and the queue of events
 * that are not delivered to trackers yet.
 *
 *   ring, 8 places, 11 events so far     8   9  10 | 3   4   5   6   7       place of an event: its number % capacity
 *                                           newest   oldest
 *
 * The history is the heap's listener (heap.h) while it is on or there are trackers. A call of the program is an
 * operation: everything that it causes, in whatever function, gets the context captured for it (V2 in
 * history/threads.h). Contexts are counted records: Note [Contexts] in history/contexts.h.
 *
 * Note [Time of events]. A call looks at the clock when it begins, before the lock, and tells the history; the thread
 * that has the lock then stamps its events with the latest look that the history knows, its own or a later one. So
 * times never fall.
 *
 * H1  The ring holds the events [appended - count, appended), count <= capacity.
 * H2  While history is off: the ring is empty, and no block and no segment has a context.
 * H3  Exactly ALLOCATED, PENDING and DEFERRED blocks may have a context or a note.
 * H4  heap->listener is set exactly while history is on or there are trackers.
 *
 * Trackers are callbacks that get every event:
 *
 *   event under the lock -> queue -> the operation that ends next calls all trackers, one event after the other
 *
 * T1  At most one thread delivers at a time (`delivering`), so each tracker gets the events in their order.
 * T2  Each event in the queue holds a reference to its context.
 * Locks: the allocator's lock guards everything except what is atomic. With it held nothing of the program is called.
 */
#ifndef LADE_DEVICE_OBSERVE_HISTORY_H
#define LADE_DEVICE_OBSERVE_HISTORY_H

#include "device/state/allocator.h"

/* Whether there is history or a tracker. */
static inline bool ladei_device_history_watched(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->attention.watched, memory_order_relaxed);
}

/* Replaces the record of an event's context by what the program captured. */
static inline void ladei_device_event_show(lade_device_event *event) {
  const ladei_history_context *context = (ladei_history_context *)(uintptr_t)event->context;
  if (context == NULL) return;
  event->label = context->is_label ? context->label : NULL;
  event->context = context->handle;
}

/* Note [Time of events]. No lock held. */
static inline void ladei_device_history_look(lade_device_allocator *allocator) {
  ladei_device_history *history = &allocator->history;
  bool is_virtual = history->clock == LADEI_HISTORY_CLOCK_VIRTUAL;
  bool tracked = atomic_load_explicit(&history->tracked, memory_order_relaxed);
  uint64_t now_ns = is_virtual || tracked ? allocator->runtime->ops->now_ns(allocator->runtime->self) : 0;
  uint64_t ticks = is_virtual ? now_ns : ladei_history_ticks(history->clock);
  atomic_store_explicit(&history->call_ticks, ticks, memory_order_relaxed);
  if (tracked) atomic_store_explicit(&history->call_ns, now_ns, memory_order_relaxed);
}

/* The time of what happens now. Lock held. */
static inline uint64_t ladei_device_history_ticks(ladei_device_history *history) {
  uint64_t ticks = atomic_load_explicit(&history->call_ticks, memory_order_relaxed);
  if (ticks > history->ticks) history->ticks = ticks;
  return history->ticks;
}

/* Takes the allocator's lock; looks at the clock before, so that what follows has a time. */
static inline void ladei_device_history_lock(lade_device_allocator *allocator) {
  if (ladei_device_history_watched(allocator)) ladei_device_history_look(allocator);
  ladei_lock_acquire(&allocator->lock);
}

/*
 * A call of the program begins and ends, for calls that found a listener. No lock held. The first captures a
 * context if the history wants one at `level`; the second delivers events to trackers, and keeps the thread's error
 * record.
 */
enum { LADEI_DEVICE_CONTEXT_NOT_WANTED = LADE_CONTEXT_ALL + 1 }; /* a level that is never reached */
void ladei_device_history_begin(lade_device_allocator *allocator, unsigned level, ladei_device_operation *op);
void ladei_device_history_end(lade_device_allocator *allocator, ladei_device_operation *op);

/* Gives trackers what is queued, unless another thread does. Lock held at call and return, released in between. */
void ladei_device_trackers_deliver(lade_device_allocator *allocator);

/* After a change of what is listened to: H4. Lock held. */
void ladei_device_history_watch(lade_device_allocator *allocator);

/* Records an event without block or segment; there is a listener. Lock held. */
void ladei_device_history_event(ladei_device_heap *heap, lade_device_action action, uint64_t address, uint64_t bytes,
                                lade_stream stream, lade_device_pool_id pool);
/* Records a note: on a block that is handed out, which keeps it, or NULL: on nothing. Takes one reference. Lock
 * held. */
void ladei_device_history_note(ladei_device_heap *heap, ladei_device_block *block, ladei_history_context *note);
/* The block loses its note, if it has one. Lock held. */
void ladei_device_history_note_drop(ladei_device_history *history, ladei_device_block *block);

/* Whether contexts are unreferenced, or events wait: the call that ends next is told. Lock held. */
static inline void ladei_device_history_work_note(ladei_device_history *history) {
  if (history->unreferenced != NULL) atomic_store_explicit(&history->work, true, memory_order_relaxed);
}

#endif /* LADE_DEVICE_OBSERVE_HISTORY_H */
