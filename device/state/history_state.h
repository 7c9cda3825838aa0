/* SPDX-License-Identifier: Apache-2.0 */
/* The part of an allocator that its history keeps; model and invariants in device/observe/history.h. */
#ifndef LADE_DEVICE_STATE_HISTORY_STATE_H
#define LADE_DEVICE_STATE_HISTORY_STATE_H

#include <stdatomic.h>

#include "device/heap/heap.h"
#include "history/clock.h"
#include "history/event.h"

/* Settings of a history; constant. Kept until the allocator ends, since a call may look at them for as long as it
 * takes; equal ones are kept once. */
typedef struct ladei_device_history_settings {
  struct ladei_device_history_settings *next;
  lade_history_options options;
} ladei_device_history_settings;

/* One call of the program, while there is a listener. Lives on its stack. */
typedef struct ladei_device_operation {
  ladei_history_call call;
  bool entered; /* the thread knows the call */
} ladei_device_operation;

/* An event that is not delivered to trackers yet. */
typedef struct ladei_device_tracked_event {
  lade_device_event event; /* context: the record */
  lade_device_event_totals totals;
} ladei_device_tracked_event;

typedef struct ladei_device_history {
  const ladei_lock *lock; /* the allocator's */
  int device;
  ladei_history_clock clock;                         /* constant */
  _Atomic(ladei_device_history_settings *) settings; /* in force; NULL: history is off. Written under the lock */
  ladei_device_history_settings *all_settings;
  atomic_bool tracked;          /* there are trackers; written under the lock */
  _Atomic(uint64_t) call_ticks; /* when the last call began, or its driver call ended; written by any thread */
  _Atomic(uint64_t) call_ns;    /* the same on the runtime's clock; while tracked */
  atomic_bool work;             /* contexts are unreferenced, or events wait for trackers; set under the lock */
  atomic_ullong lost_contexts;  /* that there was no memory to keep */

  bool enabled;
  ladei_history_mark first;    /* when history was turned on */
  ladei_history_event *events; /* the ring */
  size_t capacity;
  size_t count;
  size_t next;       /* place of the next event: appended % capacity */
  uint64_t appended; /* events ever put into the ring */
  uint64_t started;  /* `appended` when history was turned on */
  uint64_t sequence; /* of the next event */
  uint64_t ticks;    /* of the last event */
  uint64_t now_ns;   /* of the last event for trackers */
  size_t note_count; /* blocks with a note */

  ladei_history_context *unreferenced;

  ladei_device_tracked_event *queue; /* [queue_begin, queue_end) wait */
  size_t queue_room;
  size_t queue_begin;
  size_t queue_end;
  bool delivering; /* a thread calls trackers */
} ladei_device_history;

#endif /* LADE_DEVICE_STATE_HISTORY_STATE_H */
