/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History of one allocator: the ring of its last events, the contexts that go with events and blocks, and the queue of
 * events that trackers have still to be told of.
 *
 *   ring, 8 places, 11 events so far     8   9  10 | 3   4   5   6   7       place of an event: sequence % capacity
 *                                           newest   oldest
 *
 * The history is the heap's listener (heap.h) while it is on or there are trackers. Calls of the program announce themselves (an operation), so that what they
 * cause, in whatever function it happens, is put down to the context captured for them.
 *
 * Note [Contexts]. A context is captured by the program without any lock, and released by it without any. Between the
 * two it has a counted record. Under the allocator's lock counts only fall to 0: the record is then put on the list of
 * dead ones, and the operation that ends next releases it. Copies of events and blocks count references of their own
 * and may outlive the allocator.
 *
 * H1  The ring holds the events [sequence - count, sequence), count <= capacity.
 * H2  While history is off: the ring is empty, and no block and no segment has a context.
 * H3  Exactly ALLOCATED, PENDING and DEFERRED blocks may have a context.
 * H4  heap->listener is set exactly while history is on or there are trackers.
 * Locks: the allocator's lock guards everything but the counts of references, which are atomic.
 */
#ifndef LADE_DEVICE_OBSERVE_HISTORY_H
#define LADE_DEVICE_OBSERVE_HISTORY_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/heap/heap.h"

/* What was captured, or the label of an annotation. */
typedef struct ladei_device_context {
  atomic_uint references;
  void *handle;
  void (*release)(void *user, void *handle); /* NULL: nothing to do */
  void *user;
  struct ladei_device_context *next_dead;
  bool is_label;
  char label[]; /* if is_label */
} ladei_device_context;

/* One call of the program, while somebody listens. Lives on its stack. */
typedef struct ladei_device_operation {
  struct ladei_device_operation *outer; /* the next one in the list of all threads' */
  pthread_t thread;
  ladei_device_context *context; /* NULL: none; touched by its own thread only */
} ladei_device_operation;

/* An event that trackers have not been told of. */
typedef struct ladei_device_tracked_event {
  lade_device_event event; /* context: the record */
  lade_device_event_totals totals;
} ladei_device_tracked_event;

typedef struct ladei_device_history {
  int device;
  bool enabled;
  bool tracked; /* there are trackers */
  lade_device_history_options options;

  lade_device_event *events; /* the ring; `context` points to the record, label is not set */
  size_t capacity;
  size_t count;
  uint64_t sequence; /* of the next event */
  uint64_t started;  /* `sequence` when history was turned on */
  uint64_t now_ns;   /* latest look at the clock */

  ladei_device_operation *operations;
  ladei_device_context *dead;

  ladei_device_tracked_event *queue; /* [queue_begin, queue_end) wait */
  size_t queue_room;
  size_t queue_begin;
  size_t queue_end;
  bool delivering; /* a thread is telling trackers */
} ladei_device_history;

/* Records an event without block or segment; somebody listens. Lock held. */
void ladei_device_history_event(ladei_device_heap *heap, lade_device_action action, uint64_t address, uint64_t bytes,
                                lade_stream stream, lade_device_pool_id pool);

/* ---- Copies -------------------------------------------------------------------------------------------------------- */

typedef struct ladei_device_history_copy {
  lade_device_event *events;
  ladei_device_context **contexts; /* records behind the events, each counted; parallel to them */
  size_t count;
  uint64_t lost_count;
} ladei_device_history_copy;

void ladei_device_history_copy_destroy(ladei_device_history_copy *copy);

/* Memory for a copy, not cleared, every page of it touched: under the lock the first touch would be the longest part.
 * NULL when there is none; for free(). */
void *ladei_device_history_memory(size_t count, size_t bytes);

/* One more reference; NULL is allowed. Atomic. */
static inline void ladei_device_context_retain(ladei_device_context *context) {
  if (context != NULL) atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}
/* One less; releases the last. NULL is allowed. No lock held. */
void ladei_device_context_release(ladei_device_context *context);

#endif /* LADE_DEVICE_OBSERVE_HISTORY_H */
