/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: the ops. Stream objects are in runtime/soft/state/streams.c.
 *
 * Locks: rt->lock; stream_resolve of an ordinary handle reads without it.
 */
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/events.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/order.h"
#include "runtime/soft/state/pools.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/capture.h"
#include "runtime/soft/submit/submit.h"

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static lade_status bad_handle(soft_runtime *rt, soft_op op, lade_stream handle) {
  uint64_t number = (uint64_t)(uintptr_t)handle;
  if (ladei_soft_table_knows(&rt->stream_table, number)) {
    ladei_soft_lock(rt);
    lade_status status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "stream", number);
    ladei_soft_unlock(rt);
    return status;
  }
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_HANDLE, "stream", "a handle from stream_create", "%p",
                           (void *)handle);
}

/* The special stream that a handle names in the calling thread. Under the lock. */
static soft_stream *special_resolve(soft_runtime *rt, lade_stream handle, lade_status *out_status) {
  soft_thread *thread = ladei_soft_thread(rt, false);
  int32_t device = thread == NULL ? -1 : thread->current_device;
  if (device < 0) {
    *out_status = ladei_soft_refuse(SOFT_OP_stream_resolve, LADEI_SOFT_NATIVE_INVALID_CONTEXT, "stream",
                                    "an ordinary stream, as the thread has no current device (lade_runtime_set_device)",
                                    "%p", (void *)handle);
    return NULL;
  }
  if (handle != LADE_STREAM_PER_THREAD) return rt->devices[device].legacy;
  if (thread->streams[device] == NULL)
    thread->streams[device] = ladei_soft_stream_new(rt, &rt->devices[device], LADEI_STREAM_PER_THREAD, true);
  if (thread->streams[device] == NULL)
    *out_status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "stream_resolve: no memory for the thread's stream");
  return thread->streams[device];
}

static bool handle_is_special(lade_stream handle) {
  return handle == NULL || handle == LADE_STREAM_LEGACY || handle == LADE_STREAM_PER_THREAD;
}

/* The stream that a handle names in the calling thread. NULL with LADE_OK: no stream has the handle. Under the lock. */
static soft_stream *stream_named(soft_runtime *rt, lade_stream handle, lade_status *out_status) {
  return handle_is_special(handle) ? special_resolve(rt, handle, out_status) : ladei_soft_stream_of_handle(rt, handle);
}

/* Under the lock also for ordinary handles: the record of a stale one may be that of a stream being made. */
static lade_status stream_resolve(void *self, lade_stream handle, ladei_stream *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_stream_resolve);
  if (status != LADE_OK) return status;
  const soft_stream *stream = stream_named(rt, handle, &status);
  ladei_stream resolved = {0};
  if (stream != NULL)
    resolved = (ladei_stream){rt->devices[stream->device].context, stream->id, stream->handle, stream->device,
                              (int32_t)stream->kind};
  ladei_soft_unlock(rt);
  if (stream == NULL) return status != LADE_OK ? status : bad_handle(rt, SOFT_OP_stream_resolve, handle);
  if (atomic_load_explicit(&rt->devices[resolved.device].lost, memory_order_acquire))
    return ladei_soft_lost(SOFT_OP_stream_resolve, resolved.device);
  *out = resolved;
  return LADE_OK;
}

static lade_status stream_create(void *self, int ordinal, int priority, unsigned flags, lade_stream *out) {
  soft_runtime *rt = soft_self(self);
  (void)priority; /* clamped to the device's range; engines ignore it and serve in order of readiness */
  lade_status status = ladei_soft_enter(rt, SOFT_OP_stream_create);
  if (status == LADE_OK) status = ladei_soft_flags(SOFT_OP_stream_create, flags, LADEI_STREAM_NON_BLOCKING);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_stream_create, ordinal, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  status = ladei_soft_device_start(rt, SOFT_OP_stream_create, device);
  soft_stream_slot *slot = status == LADE_OK ? ladei_soft_table_take(&rt->stream_table) : NULL;
  if (slot != NULL) {
    bool blocking = (flags & LADEI_STREAM_NON_BLOCKING) == 0;
    slot->stream = ladei_soft_stream_new(rt, device, LADEI_STREAM_ORDINARY, blocking);
    if (slot->stream == NULL) {
      ladei_soft_table_put(&rt->stream_table, slot);
      slot = NULL;
    }
  }
  if (slot == NULL && status == LADE_OK) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "stream_create: no memory for one more stream");
  } else if (slot != NULL) {
    slot->stream->handle = (lade_stream)(uintptr_t)ladei_soft_table_handle(&rt->stream_table, slot);
    ladei_soft_table_publish(&rt->stream_table, slot);
    *out = slot->stream->handle;
  }
  return ladei_soft_unlock_with(rt, status);
}

static void hold_end(soft_runtime *rt, soft_stream *stream) {
  stream->held = false;
  ladei_soft_stream_make_ready(rt, stream);
  ladei_soft_run_ready(rt);
}

static lade_status stream_destroy(void *self, lade_stream handle) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_stream_destroy));
  soft_stream_slot *slot = ladei_soft_table_find(&rt->stream_table, (uint64_t)(uintptr_t)handle);
  if (slot != NULL) {
    soft_stream *stream = slot->stream;
    ladei_soft_capture_stream_gone(rt, stream);
    ladei_soft_table_hide(&rt->stream_table, slot);
    ladei_soft_table_put(&rt->stream_table, slot);
    ladei_soft_stream_discard(rt, stream);
    hold_end(rt, stream); /* no later call could release it */
  }
  ladei_soft_objects_unlock(rt);
  return slot != NULL ? LADE_OK : bad_handle(rt, SOFT_OP_stream_destroy, handle);
}

/* ---- waits, queries ---------------------------------------------------------------------------------------------- */

static lade_status wait_event_locked(soft_runtime *rt, const ladei_stream *resolved, soft_event *event) {
  const soft_op op = SOFT_OP_stream_wait_event;
  lade_status status = LADE_OK;
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  if (stream == NULL) return status;
  uint64_t word = atomic_load(&event->word);
  if (stream->capture != NULL || word == SOFT_EVENT_CAPTURED)
    return word == 0 ? LADE_OK : ladei_soft_capture_wait(rt, op, stream, event);
  if (word == 0) return LADE_OK;
  soft_stream *awaited = ladei_soft_stream_by_index(rt, word >> SOFT_EVENT_NUMBER_BITS);
  status = ladei_soft_capture_check_legacy(rt, op, stream);
  if (status == LADE_OK) status = ladei_soft_stream_join_legacy(rt, op, stream);
  if (status != LADE_OK || awaited == stream) return status;
  if (!ladei_soft_order_merge(&stream->order, &event->order)) return ladei_soft_no_memory_to_queue(op);
  return ladei_soft_stream_wait_point(rt, op, stream, awaited, word & SOFT_EVENT_NUMBER_MASK);
}

static lade_status stream_wait_event(void *self, const ladei_stream *resolved, lade_event handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_stream_wait_event);
  if (status != LADE_OK) return status;
  soft_event *event = ladei_soft_event_find(rt, SOFT_OP_stream_wait_event, handle, &status);
  if (event != NULL) {
    status = wait_event_locked(rt, resolved, event);
    ladei_soft_run_ready(rt);
  }
  return ladei_soft_unlock_with(rt, status);
}

static bool stream_is_done(const soft_stream *stream) {
  uint64_t submitted = atomic_load_explicit(&stream->submitted, memory_order_acquire);
  return atomic_load_explicit(&stream->completed, memory_order_acquire) >= submitted;
}

/* A query of a stream, or a wait for it, invalidates its capture, and the captures that forbid use of the legacy stream
 * (R10). */
static lade_status stream_check_capture(soft_runtime *rt, soft_op op, const soft_stream *stream) {
  if (stream->capture == NULL) return ladei_soft_capture_check_legacy(rt, op, stream);
  return ladei_soft_capture_break(rt, op, stream->capture, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED);
}

static lade_status query_locked(soft_runtime *rt, soft_stream *stream) {
  LADEI_TRY(stream_check_capture(rt, SOFT_OP_stream_query, stream));
  if (stream->kind == LADEI_STREAM_LEGACY) {
    const soft_device *device = &rt->devices[stream->device];
    for (soft_stream *other = device->blocking_streams; other != NULL; other = other->blocking_next) {
      if (!stream_is_done(other)) return LADE_NOT_READY;
      ladei_soft_observe(other, atomic_load(&other->submitted));
    }
  }
  if (!stream_is_done(stream)) return LADE_NOT_READY;
  ladei_soft_observe(stream, atomic_load(&stream->submitted));
  return LADE_OK;
}

static lade_status stream_query(void *self, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_stream_query);
  if (status != LADE_OK) return status;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_stream_query, resolved, &status);
  if (stream != NULL) status = query_locked(rt, stream);
  return ladei_soft_unlock_with(rt, status);
}

/* Under the lock. Waits for the work that the stream has now. */
static lade_status stream_wait_idle(soft_runtime *rt, soft_op op, soft_stream *stream) {
  uint64_t number = atomic_load(&stream->submitted);
  LADEI_TRY(rt->clock->wait(rt, stream, number, ladei_soft_op_name(op)));
  ladei_soft_observe(stream, number);
  return atomic_load(&rt->devices[stream->device].lost) ? ladei_soft_lost(op, stream->device) : LADE_OK;
}

static lade_status synchronize_locked(soft_runtime *rt, soft_stream *stream) {
  const soft_op op = SOFT_OP_stream_synchronize;
  lade_status status = stream_check_capture(rt, op, stream);
  /* A blocking stream does not wait for legacy work that it has no work after, as in CUDA's driver. */
  if (status == LADE_OK && stream->kind == LADEI_STREAM_LEGACY) status = ladei_soft_stream_join_legacy(rt, op, stream);
  ladei_soft_run_ready(rt);
  if (status == LADE_OK) status = stream_wait_idle(rt, op, stream);
  if (status == LADE_OK) ladei_soft_pools_synchronized(rt);
  return status;
}

static lade_status stream_synchronize(void *self, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_stream_synchronize);
  if (status != LADE_OK) return status;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_stream_synchronize, resolved, &status);
  if (stream != NULL) status = synchronize_locked(rt, stream);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status device_synchronize_locked(soft_runtime *rt, int32_t device) {
  lade_status status = ladei_soft_unsafe(rt, "device_synchronize");
  /* In any mode of captures and thread. */
  for (soft_capture *capture = rt->captures; capture != NULL; capture = capture->next)
    if (capture->origin->device == device)
      status = ladei_soft_capture_break(rt, SOFT_OP_device_synchronize, capture, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED);
  for (uint32_t i = 1; i < rt->stream_count && status == LADE_OK; i++) {
    soft_stream *stream = ladei_soft_stream_by_index(rt, i);
    if (stream->device == device) status = stream_wait_idle(rt, SOFT_OP_device_synchronize, stream);
  }
  if (status == LADE_OK) ladei_soft_pools_synchronized(rt);
  return status;
}

static lade_status device_synchronize(void *self, int ordinal) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_device_synchronize);
  if (status != LADE_OK) return status;
  if (ladei_soft_device_use(rt, SOFT_OP_device_synchronize, ordinal, &status) == NULL) return status;
  ladei_soft_lock(rt);
  status = device_synchronize_locked(rt, ordinal);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- capture state ----------------------------------------------------------------------------------------------- */

static lade_status capture_mode_exchange(void *self, ladei_capture_mode *mode) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_capture_mode_exchange);
  if (status != LADE_OK) return status;
  if ((unsigned)*mode > LADEI_CAPTURE_RELAXED) {
    return ladei_soft_refuse(SOFT_OP_capture_mode_exchange, LADEI_SOFT_NATIVE_INVALID_VALUE, "mode",
                             "a ladei_capture_mode", "%d", (int)*mode);
  }
  ladei_soft_lock(rt);
  soft_thread *thread = ladei_soft_thread(rt, true);
  if (thread == NULL) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "capture_mode_exchange: no memory for the thread's record");
  } else {
    ladei_capture_mode former = thread->mode;
    thread->mode = *mode;
    *mode = former;
  }
  return ladei_soft_unlock_with(rt, status);
}

/* ---- holds ------------------------------------------------------------------------------------------------------- */

lade_status ladei_soft_stream_set_held(soft_runtime *rt, lade_stream handle, bool hold) {
  lade_status status = LADE_OK;
  ladei_soft_lock(rt);
  soft_stream *stream = stream_named(rt, handle, &status);
  if (stream != NULL) {
    stream->held = hold;
    if (!hold) hold_end(rt, stream);
  }
  ladei_soft_unlock(rt);
  return stream != NULL || status != LADE_OK ? status : bad_handle(rt, SOFT_OP_stream_resolve, handle);
}

void ladei_soft_stream_ops(lade_runtime_ops *ops) {
  ops->stream_create = stream_create;
  ops->stream_destroy = stream_destroy;
  ops->stream_resolve = stream_resolve;
  ops->stream_wait_event = stream_wait_event;
  ops->stream_query = stream_query;
  ops->stream_synchronize = stream_synchronize;
  ops->capture_mode_exchange = capture_mode_exchange;
  ops->device_synchronize = device_synchronize;
}
