/* SPDX-License-Identifier: Apache-2.0 */
/* How a public call of an allocator goes to its backend's function, and what comes after it. */
#ifndef LADE_DEVICE_API_CALL_H
#define LADE_DEVICE_API_CALL_H

#include "base/call.h"
#include "base/error.h"
#include "device/native/native.h"
#include "device/observe/history.h"
#include "device/state/backend.h"
#include "device/state/checks.h"

/*
 * Builds without NDEBUG recount the invariants after each call that changes blocks, and stop the program where one is
 * broken, near its cause. With many blocks and events they do so after every so many calls, such that a call pays for
 * sixteen of them.
 */
static inline lade_status ladei_device_recounted(lade_device_allocator *allocator, lade_status status) {
#ifndef NDEBUG
  enum { RECORDS_PER_CALL = 16 };
  if (allocator->backend->recount == NULL) return status;
  if (atomic_fetch_add_explicit(&allocator->recounts.calls, 1, memory_order_relaxed) <
      atomic_load_explicit(&allocator->recounts.calls_per, memory_order_relaxed))
    return status;
  atomic_store_explicit(&allocator->recounts.calls, 0, memory_order_relaxed);
  size_t looked_at = 0;
  if (allocator->backend->recount(allocator, &looked_at) != LADE_OK) ladei_error_stop();
  atomic_store_explicit(&allocator->recounts.calls_per, looked_at / RECORDS_PER_CALL, memory_order_relaxed);
#else
  (void)allocator;
#endif
  return status;
}

/* The end of a public call: the backend's function, if it has one, with these arguments. */
#define LADEI_DEVICE_CALL(function, ...)                                                                               \
  (allocator->backend->function == NULL ? ladei_device_backend_lacks(allocator, "lade_device_" #function)              \
                                        : allocator->backend->function(__VA_ARGS__))
/* The same for what the native backend alone has. */
#define LADEI_DEVICE_NATIVE(function, ...)                                                                             \
  (allocator->backend->has_heap ? ladei_device_native_##function(__VA_ARGS__)                                          \
                                : ladei_device_backend_lacks(allocator, "lade_device_" #function))

/* LADEI_HELD for calls that may cause events, as an operation that captures a context from `level` on. */
#define LADEI_DEVICE_OPERATION(level, call)                                                                            \
  do {                                                                                                                 \
    int cancellation = ladei_cancellation_hold();                                                                      \
    bool watched = ladei_device_history_watched(allocator);                                                            \
    ladei_device_operation operation;                                                                                  \
    if (watched) ladei_device_history_begin(allocator, level, &operation);                                             \
    lade_status done = (call);                                                                                         \
    if (watched) ladei_device_history_end(allocator, &operation);                                                      \
    ladei_cancellation_resume(cancellation);                                                                           \
    ladei_log_flush();                                                                                                 \
    return ladei_device_recounted(allocator, done);                                                                    \
  } while (0)

#endif /* LADE_DEVICE_API_CALL_H */
