/* SPDX-License-Identifier: Apache-2.0 */
/* What an allocator keeps for its history; model and invariants in device/observe/history.h. */
#ifndef LADE_DEVICE_STATE_HISTORY_STATE_H
#define LADE_DEVICE_STATE_HISTORY_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/heap/heap.h"
#include "history/contexts.h"

/* One call of the program, while somebody listens. Lives on its stack. */
typedef struct ladei_device_operation {
  struct ladei_device_operation *outer; /* the next one in the list of all threads' */
  pthread_t thread;
  ladei_history_context *context; /* NULL: none; touched by its own thread only */
} ladei_device_operation;

/* An event that is not delivered to trackers yet. */
typedef struct ladei_device_tracked_event {
  lade_device_event event; /* context: the record */
  lade_device_event_totals totals;
} ladei_device_tracked_event;

typedef struct ladei_device_history {
  const ladei_lock *lock; /* the allocator's */
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
  ladei_history_context *unreferenced;

  ladei_device_tracked_event *queue; /* [queue_begin, queue_end) wait */
  size_t queue_room;
  size_t queue_begin;
  size_t queue_end;
  bool delivering; /* a thread calls trackers */
} ladei_device_history;

#endif /* LADE_DEVICE_STATE_HISTORY_STATE_H */
