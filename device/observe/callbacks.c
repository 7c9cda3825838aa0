/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners, callbacks of the program: reclaimers, which may free blocks when the cache has none that fits, observers of
 * allocations that fail, trackers of events (history.c calls them), and what hears of memory before it goes.
 *
 * K1  The list holds each set of callbacks and user at most once.
 * K2  tracker_count is the number of listeners with a tracker.
 * Locks: the list is guarded by the allocator's lock; callbacks run without it, from a copy of the list.
 */
#include "device/observe/callbacks.h"

#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "device/observe/history.h"
#include "device/state/checks.h"

static bool listeners_equal(const lade_device_listener *a, const lade_device_listener *b) {
  return a->user == b->user && a->reclaim == b->reclaim && a->observe_oom == b->observe_oom && a->track == b->track &&
         a->leave == b->leave;
}

static size_t listener_find(const ladei_device_listeners *listeners, const lade_device_listener *listener) {
  size_t at = 0;
  while (at < listeners->count && !listeners_equal(&listeners->list[at], listener)) at++;
  return at;
}

static lade_status listener_read(const char *call, const lade_device_listener *listener, lade_device_listener *out) {
  if (listener == NULL) return ladei_error_null(call, "listener");
  LADEI_TRY(ladei_options_read("lade_device_listener", listener, out, sizeof *out));
  if (out->reclaim != NULL || out->observe_oom != NULL || out->track != NULL || out->leave != NULL) return LADE_OK;
  return ladei_error_argument(call, "listener", "one with a callback", "without any");
}

static lade_status listener_append(lade_device_allocator *allocator, const lade_device_listener *listener,
                                   const char *call) {
  ladei_device_listeners *listeners = &allocator->listeners;
  ladei_lock_assert_held(&allocator->lock);
  if (listener_find(listeners, listener) < listeners->count)
    return ladei_error_argument(call, "listener", "one that is not", "added already");
  if (listeners->count == LADEI_DEVICE_LISTENERS_MAX)
    return ladei_error(LADE_ERR_LIMIT, 0, "%s: %d listeners are added already, the most there can be", call,
                       LADEI_DEVICE_LISTENERS_MAX);
  listeners->list[listeners->count++] = *listener;
  listeners->tracker_count += listener->track != NULL;
  return LADE_OK;
}

lade_status lade_device_listener_add(lade_device_allocator *allocator, const lade_device_listener *listener) {
  lade_device_listener own;
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  LADEI_TRY(listener_read(__func__, listener, &own));
  if (own.track != NULL || own.leave != NULL) LADEI_TRY(ladei_device_check_heap(allocator, __func__));
  ladei_lock_acquire(&allocator->lock);
  lade_status status = listener_append(allocator, &own, __func__);
  if (status == LADE_OK) ladei_device_history_watch(allocator);
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status lade_device_listener_remove(lade_device_allocator *allocator, const lade_device_listener *listener) {
  lade_device_listener own;
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  LADEI_TRY(listener_read(__func__, listener, &own));
  ladei_device_listeners *listeners = &allocator->listeners;
  ladei_lock_acquire(&allocator->lock);
  size_t at = listener_find(listeners, &own);
  bool found = at < listeners->count;
  if (found) {
    listeners->count--;
    listeners->tracker_count -= own.track != NULL;
    memmove(&listeners->list[at], &listeners->list[at + 1], (listeners->count - at) * sizeof listeners->list[0]);
    ladei_device_history_watch(allocator);
  }
  ladei_lock_release(&allocator->lock);
  return found ? LADE_OK : ladei_error_argument(__func__, "listener", "one that is", "not added");
}

static bool reclaimer_any(const ladei_device_listeners *listeners) {
  size_t at = 0;
  while (at < listeners->count && listeners->list[at].reclaim == NULL) at++;
  return at < listeners->count;
}

bool ladei_device_callbacks_reclaim(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  if (!reclaimer_any(&allocator->listeners)) return false;
  ladei_device_listeners listeners = allocator->listeners;
  bool freed = false;
  ladei_lock_release(&allocator->lock);
  ladei_lock_assert_none_held();
  for (size_t i = 0; i < listeners.count; i++) {
    const lade_device_listener *listener = &listeners.list[i];
    if (listener->reclaim != NULL) freed = listener->reclaim(listener->user) == LADE_OK || freed;
  }
  ladei_lock_acquire(&allocator->lock);
  return freed;
}

void ladei_device_callbacks_report_oom(lade_device_allocator *allocator, const lade_device_oom *oom) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_listeners listeners = allocator->listeners;
  ladei_lock_release(&allocator->lock);
  ladei_lock_assert_none_held();
  for (size_t i = 0; i < listeners.count; i++)
    if (listeners.list[i].observe_oom != NULL) listeners.list[i].observe_oom(listeners.list[i].user, oom);
}

void ladei_device_callbacks_leave(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                  lade_device_action action, uint64_t address, uint64_t bytes) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_listeners listeners = allocator->listeners;
  const ladei_device_private_pool *pool = segment->pool->private_pool;
  lade_device_event event = {.address = address,
                             .bytes = bytes,
                             .stream = segment->stream.handle,
                             .device = allocator->device,
                             .action = action};
  if (pool != NULL) event.pool = pool->id;
  ladei_lock_release(&allocator->lock);
  ladei_lock_assert_none_held();
  for (size_t i = 0; i < listeners.count; i++)
    if (listeners.list[i].leave != NULL) listeners.list[i].leave(listeners.list[i].user, &event);
}
