/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals of public calls and backends, and the words for them. */
#ifndef LADE_DEVICE_STATE_CHECKS_H
#define LADE_DEVICE_STATE_CHECKS_H

#include "base/error.h"
#include "device/state/backend.h"
#include "runtime/last_stream.h"

/* An allocator that is NULL, or was made by a parent of this process, is refused. In all of these `call` is the name of
 * the public function. */
static inline lade_status ladei_device_check_call(const lade_device_allocator *allocator, const char *call) {
  return allocator == NULL ? ladei_error_null(call, "allocator") : ladei_runtime_check_process(allocator->runtime);
}

/* The error for a stream of another device. */
lade_status ladei_device_stream_elsewhere(int device);
/* Resolves a stream to allocate on: one of the allocator's device, else LADE_ERR_INVALID_ARGUMENT. No lock held. */
static inline lade_status ladei_device_stream_resolve(lade_device_allocator *allocator, lade_stream stream,
                                                      ladei_stream *out) {
  ladei_lock_assert_none_held();
  const lade_runtime *runtime = allocator->runtime;
  bool kept = atomic_load_explicit(&allocator->seen.streams_are_retired, memory_order_relaxed);
  lade_status status =
      kept ? ladei_last_stream_resolve(runtime, stream, out) : runtime->ops->stream_resolve(runtime->self, stream, out);
  if (status != LADE_OK || out->device == allocator->device) return status;
  return ladei_device_stream_elsewhere(out->device);
}

/* Errors of an address: it lies in no block, in memory that is free, or `offset` bytes into a block. */
lade_status ladei_device_pointer_foreign(const lade_device_allocator *allocator, const char *call, const void *pointer);
lade_status ladei_device_pointer_freed(const lade_device_allocator *allocator, const char *call, const void *pointer);
lade_status ladei_device_pointer_interior(const lade_device_allocator *allocator, const char *call, const void *pointer,
                                          uint64_t offset);

/* The block handed out that `pointer` lies in, or what is wrong with the pointer. `exact`, for frees: that it starts, also one
 * of a suspended pool. Lock held. */
lade_status ladei_device_block_lookup(lade_device_allocator *allocator, const void *pointer, bool exact,
                                      const char *call, ladei_device_block **out);

/* LADE_ERR_INVALID_ARGUMENT for the id of a private pool: what it is, and what was expected. */
lade_status ladei_device_pool_refused(const char *call, lade_device_pool_id id, const char *what, const char *expected);
/* Another failure with a private pool. */
lade_status ladei_device_pool_error(const lade_device_allocator *allocator, lade_status status, const char *call,
                                    lade_device_pool_id id, const char *what);

/* LADE_ERR_UNSUPPORTED, naming call and backend. */
lade_status ladei_device_backend_lacks(const lade_device_allocator *allocator, const char *call);
/* LADE_OK where the backend has a heap; else the same. */
lade_status ladei_device_check_heap(const lade_device_allocator *allocator, const char *call);

/* Blocks that the program or another stream has. No lock held. */
uint64_t ladei_device_active_count(lade_device_allocator *allocator);
/* LADE_NOT_READY, with the count, while freed blocks are still in use. No lock held. */
lade_status ladei_device_check_active(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_STATE_CHECKS_H */
