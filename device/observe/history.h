/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History of one allocator: the ring of its last events, the contexts of events and blocks, and the queue of events that
 * are not delivered to trackers yet.
 *
 *   ring, 8 places, 11 events so far     8   9  10 | 3   4   5   6   7       place of an event: sequence % capacity
 *                                           newest   oldest
 *
 * The history is the heap's listener (heap.h) while it is on or there are trackers. A call of the program is an
 * operation: everything that it causes, in whatever function, gets the context captured for it.
 *
 * Contexts are counted records: Note [Contexts] in history/contexts.h.
 *
 * H1  The ring holds the events [sequence - count, sequence), count <= capacity.
 * H2  While history is off: the ring is empty, and no block and no segment has a context.
 * H3  Exactly ALLOCATED, PENDING and DEFERRED blocks may have a context.
 * H4  heap->listener is set exactly while history is on or there are trackers.
 * Locks: the allocator's lock guards everything except the counts of references, which are atomic.
 */
#ifndef LADE_DEVICE_OBSERVE_HISTORY_H
#define LADE_DEVICE_OBSERVE_HISTORY_H

#include "device/state/allocator.h"

/* Whether there is history or a tracker. */
static inline bool ladei_device_history_watched(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->watched, memory_order_relaxed);
}
/* Replaces the record of an event's context by what the program captured. */
static inline void ladei_device_event_show(lade_device_event *event) {
  const ladei_history_context *context = (ladei_history_context *)(uintptr_t)event->context;
  if (context == NULL) return;
  event->label = context->is_label ? context->label : NULL;
  event->context = context->handle;
}

/* Takes the allocator's lock; reads the clock before, so that what follows has a time. */
static inline void ladei_device_history_lock(lade_device_allocator *allocator) {
  uint64_t now_ns = 0;
  if (ladei_device_history_watched(allocator)) now_ns = allocator->runtime->ops->now_ns(allocator->runtime->self);
  ladei_lock_acquire(&allocator->lock);
  if (now_ns > allocator->history.now_ns) allocator->history.now_ns = now_ns;
}

/*
 * A call of the program begins and ends, for calls that found somebody listening. No lock held. The first captures a
 * context if the history wants one at `level`; the second delivers events to trackers, and keeps the thread's error record.
 */
enum { LADEI_DEVICE_CONTEXT_NOT_WANTED = LADE_CONTEXT_ALL + 1 }; /* a level that is never reached */
void ladei_device_history_begin(lade_device_allocator *allocator, unsigned level, ladei_device_operation *op);
void ladei_device_history_end(lade_device_allocator *allocator, ladei_device_operation *op);

/* After a change of what is listened to: H4. Lock held. */
void ladei_device_history_watch(lade_device_allocator *allocator);

/* Records an event without block or segment; somebody listens. Lock held. */
void ladei_device_history_event(ladei_device_heap *heap, lade_device_action action, uint64_t address, uint64_t bytes,
                                lade_stream stream, lade_device_pool_id pool);

#endif /* LADE_DEVICE_OBSERVE_HISTORY_H */
