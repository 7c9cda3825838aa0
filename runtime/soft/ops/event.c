/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: a number on a stream.
 *
 *   record:  word = (stream, stream->submitted)      query: stream->completed >= number
 *
 * I1  Recording queues nothing, except if the time of the end is needed (timing events) or the end must wait (held
 *     streams): then it takes a number of its own. If the legacy stream has got work since, a record on a blocking
 *     stream goes to the legacy one, after that work, and does not delay the blocking one, as in CUDA's driver.
 * I2  `word` is written under the lock and read without it; a query needs nothing else, except for the first "done" of
 *     an event whose stream waited for others (has_order).
 * I3  Event records stay at their place until close, so work may name an event that was destroyed: it compares words.
 * Locks: rt->lock, except for the query.
 */
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
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

static lade_status event_create(void *self, uint64_t context, unsigned flags, lade_event *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_event_create);
  if (status == LADE_OK)
    status = ladei_soft_flags(SOFT_OP_event_create, flags, LADEI_EVENT_TIMING | LADEI_EVENT_INTERPROCESS);
  if (status != LADE_OK) return status;
  if (flags == (LADEI_EVENT_TIMING | LADEI_EVENT_INTERPROCESS)) {
    return ladei_soft_refuse(SOFT_OP_event_create, LADEI_SOFT_NATIVE_INVALID_VALUE, "flags",
                             "no timing of an event between processes", "%#x", flags);
  }
  if (context == 0 || context > (uint64_t)rt->device_count) {
    return ladei_soft_refuse(SOFT_OP_event_create, LADEI_SOFT_NATIVE_INVALID_CONTEXT, "context",
                             "the context of a device", "%llu", (unsigned long long)context);
  }
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_event_create, (int)context - 1, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  device->active = true;
  soft_event *event = ladei_soft_table_take(&rt->event_table);
  if (event == NULL) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "event_create: no memory for one more event");
  } else {
    event->device = device->ordinal;
    event->flags = flags;
    event->order.count = 0;
    event->time_word = 0;
    atomic_store(&event->word, 0);
    atomic_store(&event->has_order, false);
    ladei_soft_table_publish(&rt->event_table, event);
    *out = (lade_event)(uintptr_t)ladei_soft_table_handle(&rt->event_table, event);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status event_destroy(void *self, lade_event handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_event_destroy);
  if (status != LADE_OK) return status;
  soft_event *event = ladei_soft_table_find(&rt->event_table, (uint64_t)(uintptr_t)handle);
  if (event == NULL) {
    status =
        ladei_soft_stale(rt, SOFT_OP_event_destroy, LADE_ERR_INVALID_ARGUMENT, "event", (uint64_t)(uintptr_t)handle);
  } else {
    ladei_soft_table_hide(&rt->event_table, event);
    ladei_soft_table_put(&rt->event_table, event);
  }
  return ladei_soft_unlock_with(rt, status);
}

/* ---- record ------------------------------------------------------------------------------------------------------ */

/* Queues a node if a plain number is not enough. LADE_OK without a node if it is. */
static lade_status record_node(soft_runtime *rt, soft_event *event, soft_stream *stream) {
  bool timing = (event->flags & LADEI_EVENT_TIMING) != 0;
  if (!timing && !stream->held) return LADE_OK;
  soft_node *node = ladei_soft_node_new(rt);
  if (node == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "event_record: no memory to queue it");
  node->work.kind = timing ? SOFT_WORK_STAMP : SOFT_WORK_EMPTY;
  node->work.device = stream->device;
  if (timing) {
    node->work.event = event;
    node->work.event_word = ladei_soft_event_word(stream, atomic_load(&stream->submitted) + 1);
  }
  ladei_soft_stream_push(rt, stream, node);
  return LADE_OK;
}

/* The stream whose number the record takes: I1. The legacy stream's later work comes after all work of the stream. */
static soft_stream *record_place(soft_runtime *rt, soft_stream *stream) {
  soft_stream *legacy = rt->devices[stream->device].legacy;
  uint64_t submitted = atomic_load(&legacy->submitted);
  bool behind = stream->blocking && !stream->held && stream->legacy_seen < submitted;
  return behind && atomic_load(&legacy->completed) < submitted ? legacy : stream;
}

/* The order before the record, apart from its own place. */
static bool record_order(soft_event *event, soft_stream *stream, soft_stream *place) {
  if (!ladei_soft_order_copy(&event->order, &stream->order)) return false;
  return place == stream || (ladei_soft_order_merge(&event->order, &place->order) &&
                             ladei_soft_order_add(&event->order, stream, atomic_load(&stream->submitted)));
}

static lade_status record_locked(soft_runtime *rt, soft_event *event, const ladei_stream *resolved) {
  const soft_op op = SOFT_OP_event_record;
  lade_status status = LADE_OK;
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  if (stream == NULL) return status;
  if (event->device != stream->device) {
    return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_HANDLE, "event", "one of the stream's device",
                             "of device %d, on a stream of device %d", event->device, stream->device);
  }
  if (stream->capture != NULL) return ladei_soft_capture_record(rt, op, stream, event);
  status = ladei_soft_capture_check_legacy(rt, op, stream);
  soft_stream *place = record_place(rt, stream);
  if (status == LADE_OK && place == stream) status = ladei_soft_stream_join_legacy(rt, op, stream);
  if (status != LADE_OK) return status;
  if (!record_order(event, stream, place))
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "event_record: no memory for what lies before it");
  uint64_t number = atomic_load(&place->submitted);
  status = record_node(rt, event, place);
  if (status != LADE_OK) return status;
  if (atomic_load(&place->submitted) != number) number++;
  atomic_store_explicit(&event->has_order, event->order.count != 0, memory_order_relaxed);
  atomic_store_explicit(&event->word, ladei_soft_event_word(place, number), memory_order_release);
  return LADE_OK;
}

static lade_status event_record(void *self, lade_event handle, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_event_record);
  if (status != LADE_OK) return status;
  soft_event *event = ladei_soft_event_find(rt, SOFT_OP_event_record, handle, &status);
  if (event != NULL) {
    status = record_locked(rt, event, resolved);
    ladei_soft_run_ready(rt);
  }
  return ladei_soft_unlock_with(rt, status);
}

/* ---- query, wait, elapsed time ----------------------------------------------------------------------------------- */

/* For an event of a capture that is over the driver has another code than for one under way. */
static lade_status captured_error(soft_op op) {
  return ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_INVALID_VALUE,
                     "%s: the event was last recorded in a capture that is over", ladei_soft_op_name(op));
}

/* The caller learns that the record with `word` is done. */
static void event_observe(soft_runtime *rt, soft_event *event, uint64_t word) {
  soft_stream *stream = ladei_soft_stream_by_index(rt, word >> SOFT_EVENT_NUMBER_BITS);
  ladei_soft_observe_number(stream, word & SOFT_EVENT_NUMBER_MASK);
  if (!atomic_load_explicit(&event->has_order, memory_order_relaxed)) return;
  ladei_soft_lock(rt);
  if (atomic_load(&event->word) == word) {
    ladei_soft_observe_order(&event->order);
    atomic_store(&event->has_order, false);
  }
  ladei_soft_unlock(rt);
}

/* A query of an event, or a wait for it, invalidates its capture, if that is under way. Under the lock. */
static lade_status captured_asked(soft_runtime *rt, soft_op op, const soft_event *event) {
  soft_capture *capture = ladei_soft_capture_by_id(rt, event->capture_id);
  if (capture == NULL) return captured_error(op);
  return ladei_soft_capture_break(rt, op, capture, LADEI_SOFT_NATIVE_CAPTURED_EVENT);
}

static lade_status captured_query(soft_runtime *rt, const soft_event *event) {
  ladei_soft_lock(rt);
  lade_status status = captured_asked(rt, SOFT_OP_event_query, event);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status event_query(void *self, lade_event handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_event_query);
  if (status != LADE_OK) return status;
  soft_event *event = ladei_soft_table_find(&rt->event_table, (uint64_t)(uintptr_t)handle);
  if (event == NULL || atomic_load_explicit(&rt->devices[event->device].lost, memory_order_acquire)) {
    ladei_soft_lock(rt);
    ladei_soft_event_find(rt, SOFT_OP_event_query, handle, &status);
    ladei_soft_unlock(rt);
    return status;
  }
  uint64_t word = atomic_load_explicit(&event->word, memory_order_acquire);
  if (word == 0) return LADE_OK;
  if (word == SOFT_EVENT_CAPTURED) return captured_query(rt, event);
  const soft_stream *stream = ladei_soft_stream_by_index(rt, word >> SOFT_EVENT_NUMBER_BITS);
  uint64_t completed = atomic_load_explicit(&stream->completed, memory_order_acquire);
  if (completed < (word & SOFT_EVENT_NUMBER_MASK)) return LADE_NOT_READY;
  event_observe(rt, event, word);
  return LADE_OK;
}

static lade_status synchronize_locked(soft_runtime *rt, const soft_event *event, uint64_t *out_word) {
  uint64_t word = atomic_load(&event->word);
  if (word == SOFT_EVENT_CAPTURED) return captured_asked(rt, SOFT_OP_event_synchronize, event);
  if (word == 0) return LADE_OK;
  soft_stream *stream = ladei_soft_stream_by_index(rt, word >> SOFT_EVENT_NUMBER_BITS);
  lade_status status = rt->clock->wait(rt, stream, word & SOFT_EVENT_NUMBER_MASK, "event_synchronize");
  if (status == LADE_OK && atomic_load(&rt->devices[event->device].lost))
    status = ladei_soft_lost(SOFT_OP_event_synchronize, event->device);
  if (status == LADE_OK) {
    *out_word = word;
    ladei_soft_pools_synchronized(rt);
  }
  return status;
}

static lade_status event_synchronize(void *self, lade_event handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_event_synchronize);
  if (status != LADE_OK) return status;
  uint64_t word = 0;
  ladei_soft_lock(rt);
  soft_event *event = ladei_soft_event_find(rt, SOFT_OP_event_synchronize, handle, &status);
  if (event != NULL) status = synchronize_locked(rt, event, &word);
  ladei_soft_unlock(rt);
  if (status == LADE_OK && word != 0) event_observe(rt, event, word);
  return status;
}

/* A timing event whose record is done. Under the lock. */
static lade_status event_time(soft_runtime *rt, lade_event handle, uint64_t *out_ns, int32_t *out_device) {
  const soft_op op = SOFT_OP_event_elapsed_ns;
  lade_status status = LADE_OK;
  const soft_event *event = ladei_soft_event_find(rt, op, handle, &status);
  if (event == NULL) return status;
  uint64_t word = atomic_load(&event->word);
  if (word == SOFT_EVENT_CAPTURED) {
    bool over = ladei_soft_capture_by_id(rt, event->capture_id) == NULL;
    return ladei_error(LADE_ERR_CAPTURE, over ? LADEI_SOFT_NATIVE_INVALID_VALUE : LADEI_SOFT_NATIVE_CAPTURED_EVENT,
                       "event_elapsed_ns: the event was last recorded in a capture");
  }
  if ((event->flags & LADEI_EVENT_TIMING) == 0 || word == 0) {
    return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_HANDLE, "event", "one made with timing and recorded", "%s",
                             word == 0 ? "one that was never recorded" : "one that was made without timing");
  }
  if (event->time_word != word) return LADE_NOT_READY;
  *out_ns = event->time_ns;
  *out_device = event->device;
  return LADE_OK;
}

static lade_status event_elapsed_ns(void *self, lade_event start, lade_event end, uint64_t *out_ns) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_event_elapsed_ns));
  uint64_t start_ns = 0, end_ns = 0;
  int32_t start_device = 0, end_device = 0;
  ladei_soft_lock(rt);
  lade_status status = event_time(rt, start, &start_ns, &start_device);
  if (status == LADE_OK) status = event_time(rt, end, &end_ns, &end_device);
  ladei_soft_unlock(rt);
  if (status != LADE_OK) return status;
  if (start_device != end_device) {
    return ladei_soft_refuse(SOFT_OP_event_elapsed_ns, LADEI_SOFT_NATIVE_INVALID_HANDLE, "end",
                             "an event of the same device", "of device %d", end_device);
  }
  *out_ns = end_ns > start_ns ? end_ns - start_ns : 0;
  return LADE_OK;
}

void ladei_soft_event_ops(lade_runtime_ops *ops) {
  ops->event_create = event_create;
  ops->event_destroy = event_destroy;
  ops->event_record = event_record;
  ops->event_query = event_query;
  ops->event_synchronize = event_synchronize;
  ops->event_elapsed_ns = event_elapsed_ns;
}
