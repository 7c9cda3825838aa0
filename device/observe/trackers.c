/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trackers: callbacks that get every event.
 *
 *   event under the lock -> queue -> the operation that ends next calls all trackers, one event after the other
 *
 * T1  At most one thread delivers at a time (`delivering`), so each tracker gets the events in their order.
 * T2  Each event in the queue holds a reference to its context.
 * Locks: the allocator's lock guards the queue; trackers run without it, from a copy of their list.
 */
#include "device/observe/trackers.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/observe/history.h"
#include "history/contexts.h"

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
  size_t room = history->queue_room == 0 ? 64 : 2 * history->queue_room;
  ladei_device_tracked_event *larger = realloc(history->queue, room * sizeof *larger);
  if (larger == NULL) return false;
  history->queue = larger;
  history->queue_room = room;
  return true;
}

void ladei_device_trackers_queue(ladei_device_history *history, const lade_device_event *event,
                                 const lade_device_event_totals *totals) {
  ladei_lock_assert_held(history->lock);
  if (!queue_make_room(history)) return; /* the gap in the sequence shows it */
  ladei_history_context_retain((ladei_history_context *)(uintptr_t)event->context);
  history->queue[history->queue_end++] = (ladei_device_tracked_event){*event, *totals};
}

/* No lock held. */
static void event_deliver(const ladei_device_callbacks *trackers, ladei_device_tracked_event *tracked) {
  ladei_lock_assert_none_held();
  ladei_history_context *context = (ladei_history_context *)(uintptr_t)tracked->event.context;
  ladei_device_event_show(&tracked->event);
  for (size_t i = 0; i < trackers->count; i++)
    ((lade_device_tracker)trackers->list[i].function)(trackers->list[i].user, &tracked->event, &tracked->totals);
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
    ladei_device_callbacks trackers = allocator->trackers;
    ladei_lock_release(&allocator->lock);
    event_deliver(&trackers, &tracked);
    ladei_lock_acquire(&allocator->lock);
  }
  history->delivering = false;
  ladei_error_restore(&error);
}
