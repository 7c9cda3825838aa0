/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks of the program: reclaimers, which may free blocks when the cache has none that fits, and observers of
 * allocations that fail, trackers of events.
 *
 * K1  A list holds each pair of function and user at most once.
 * Locks: the lists are guarded by the allocator's lock; callbacks run without it, from a copy of the list.
 */
#include "device/observe/callbacks.h"

#include <string.h>

#include "base/error.h"
#include "device/observe/history.h"
#include "device/state/checks.h"

static size_t callback_find(const ladei_device_callbacks *callbacks, void (*function)(void), const void *user) {
  size_t at = 0;
  while (at < callbacks->count && (callbacks->list[at].function != function || callbacks->list[at].user != user)) at++;
  return at;
}

static lade_status callback_add(lade_device_allocator *allocator, ladei_device_callbacks *callbacks,
                                void (*function)(void), void *user, const char *call) {
  if (function == NULL) return ladei_error_null(call, "function");
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  if (callback_find(callbacks, function, user) < callbacks->count) {
    status = ladei_error_argument(call, "function", "a pair of function and user that is not", "added already");
  } else if (callbacks->count == LADEI_DEVICE_CALLBACKS_MAX) {
    status = ladei_error(LADE_ERR_LIMIT, 0, "%s: %d callbacks are added already, the most there can be", call,
                         LADEI_DEVICE_CALLBACKS_MAX);
  } else {
    callbacks->list[callbacks->count++] = (ladei_device_callback){function, user};
    ladei_device_history_watch(allocator);
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

static lade_status callback_remove(lade_device_allocator *allocator, ladei_device_callbacks *callbacks,
                                   void (*function)(void), const void *user, const char *call) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  size_t at = callback_find(callbacks, function, user);
  if (at == callbacks->count) {
    status = ladei_error_argument(call, "function", "a pair of function and user that is", "not added");
  } else {
    callbacks->count--;
    memmove(&callbacks->list[at], &callbacks->list[at + 1], (callbacks->count - at) * sizeof callbacks->list[0]);
    ladei_device_history_watch(allocator);
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

lade_status lade_device_reclaimer_add(lade_device_allocator *allocator, lade_device_reclaimer function, void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  return callback_add(allocator, &allocator->reclaimers, (void (*)(void))function, user, __func__);
}

lade_status lade_device_reclaimer_remove(lade_device_allocator *allocator, lade_device_reclaimer function, void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  return callback_remove(allocator, &allocator->reclaimers, (void (*)(void))function, user, __func__);
}

lade_status lade_device_oom_observer_add(lade_device_allocator *allocator, lade_device_oom_observer function,
                                         void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  return callback_add(allocator, &allocator->oom_observers, (void (*)(void))function, user, __func__);
}

lade_status lade_device_oom_observer_remove(lade_device_allocator *allocator, lade_device_oom_observer function,
                                            void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  return callback_remove(allocator, &allocator->oom_observers, (void (*)(void))function, user, __func__);
}

lade_status lade_device_tracker_add(lade_device_allocator *allocator, lade_device_tracker function, void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, __func__);
  if (status != LADE_OK) return status;
  return callback_add(allocator, &allocator->trackers, (void (*)(void))function, user, __func__);
}

lade_status lade_device_tracker_remove(lade_device_allocator *allocator, lade_device_tracker function, void *user) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK) return status;
  return callback_remove(allocator, &allocator->trackers, (void (*)(void))function, user, __func__);
}

bool ladei_device_callbacks_reclaim(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  if (allocator->reclaimers.count == 0) return false;
  ladei_device_callbacks callbacks = allocator->reclaimers;
  bool freed = false;
  ladei_lock_release(&allocator->lock);
  ladei_lock_assert_none_held();
  for (size_t i = 0; i < callbacks.count; i++) {
    lade_device_reclaimer function = (lade_device_reclaimer)callbacks.list[i].function;
    freed = function(callbacks.list[i].user) == LADE_OK || freed;
  }
  ladei_lock_acquire(&allocator->lock);
  return freed;
}

void ladei_device_callbacks_report_oom(lade_device_allocator *allocator, const lade_device_oom *oom) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_callbacks callbacks = allocator->oom_observers;
  ladei_lock_release(&allocator->lock);
  ladei_lock_assert_none_held();
  for (size_t i = 0; i < callbacks.count; i++)
    ((lade_device_oom_observer)callbacks.list[i].function)(callbacks.list[i].user, oom);
}
