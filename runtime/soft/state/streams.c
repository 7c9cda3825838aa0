/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream objects: creation, lookup by handle, recycling.
 *
 *   handle -> slot (recycled at once by the next create) -> stream object (recycled when idle and observed)
 *
 * So a new stream may have the handle of a destroyed one whose work still runs, as with drivers, while ids never
 * repeat.
 *
 * I1  A resolved stream is accepted only while its handle names the stream with its id: a recycled handle never stands
 *     for another stream's work.
 * I2  A stream object is recycled only when all of its work is finished and observed, so a stream's numbers always
 *     belong to the stream that an order names.
 * I3  Blocking streams of a device, per-thread ones included, are in its list; the legacy stream is not.
 * Locks: rt->lock; handles are looked up without it.
 */
#include "runtime/soft/state/streams.h"

#include <assert.h>
#include <stdlib.h>

#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"

enum { MAX_STREAMS = 1 << 18, RECYCLE_TRIES = 4 };

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static bool stream_is_recyclable(const soft_stream *stream) {
  uint64_t submitted = atomic_load(&stream->submitted);
  return stream->head == NULL && stream->waiters == NULL && stream->host_waiters == NULL && stream->capture == NULL &&
         atomic_load(&stream->completed) == submitted && atomic_load(&stream->observed) >= submitted;
}

static void idle_push(soft_runtime *rt, soft_stream *stream) {
  stream->next = NULL;
  if (rt->idle_streams_tail != NULL)
    rt->idle_streams_tail->next = stream;
  else
    rt->idle_streams = stream;
  rt->idle_streams_tail = stream;
}

static soft_stream *idle_pop(soft_runtime *rt) {
  soft_stream *stream = rt->idle_streams;
  if (stream == NULL) return NULL;
  rt->idle_streams = stream->next;
  if (rt->idle_streams == NULL) rt->idle_streams_tail = NULL;
  return stream;
}

static soft_stream *stream_recycle(soft_runtime *rt) {
  for (int i = 0; i < RECYCLE_TRIES; i++) {
    soft_stream *stream = idle_pop(rt);
    if (stream == NULL || stream_is_recyclable(stream)) return stream;
    idle_push(rt, stream);
  }
  return NULL;
}

static soft_stream *stream_object(soft_runtime *rt) {
  soft_stream *stream = stream_recycle(rt);
  if (stream != NULL) return stream;
  if (rt->stream_count == MAX_STREAMS) return NULL;
  stream = calloc(1, sizeof *stream);
  if (stream == NULL) return NULL;
  stream->index = rt->stream_count++;
  atomic_store_explicit(&rt->streams[stream->index], stream, memory_order_release);
  return stream;
}

soft_stream *ladei_soft_stream_new(soft_runtime *rt, soft_device *device, ladei_stream_kind kind, bool blocking) {
  soft_stream *stream = stream_object(rt);
  if (stream == NULL) return NULL;
  assert(stream_is_recyclable(stream)); /* I2; true of a new object */
  stream->blocking = blocking;
  stream->held = stream->destroyed = false;
  stream->device = device->ordinal;
  stream->kind = kind;
  stream->id = ++rt->next_id;
  stream->legacy_seen = 0;
  stream->order.count = 0;
  stream->handle = kind == LADEI_STREAM_LEGACY ? LADE_STREAM_LEGACY : LADE_STREAM_PER_THREAD;
  if (blocking) {
    stream->blocking_previous = NULL;
    stream->blocking_next = device->blocking_streams;
    if (stream->blocking_next != NULL) stream->blocking_next->blocking_previous = stream;
    device->blocking_streams = stream;
  }
  return stream;
}

static void blocking_remove(soft_device *device, soft_stream *stream) {
  if (stream->blocking_previous != NULL)
    stream->blocking_previous->blocking_next = stream->blocking_next;
  else
    device->blocking_streams = stream->blocking_next;
  if (stream->blocking_next != NULL) stream->blocking_next->blocking_previous = stream->blocking_previous;
}

void ladei_soft_stream_discard(soft_runtime *rt, soft_stream *stream) {
  assert(!stream->destroyed && stream->kind == LADEI_STREAM_ORDINARY);
  if (stream->blocking) blocking_remove(&rt->devices[stream->device], stream);
  stream->destroyed = true;
  idle_push(rt, stream);
}

bool ladei_soft_streams_open(soft_runtime *rt) {
  rt->streams = calloc(MAX_STREAMS, sizeof *rt->streams);
  rt->stream_count = 1;
  for (int32_t i = 0; rt->streams != NULL && i < rt->device_count; i++) {
    rt->devices[i].legacy = ladei_soft_stream_new(rt, &rt->devices[i], LADEI_STREAM_LEGACY, false);
    if (rt->devices[i].legacy == NULL) return false;
  }
  return rt->streams != NULL;
}

void ladei_soft_streams_close(soft_runtime *rt) {
  for (uint32_t i = 1; rt->streams != NULL && i < rt->stream_count; i++) {
    soft_stream *stream = ladei_soft_stream_by_index(rt, i);
    free(stream->order.points);
    free(stream->frontier);
    free(stream);
  }
  free(rt->streams);
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static soft_stream *special_find(soft_runtime *rt, const ladei_stream *stream) {
  if (stream->device < 0 || stream->device >= rt->device_count) return NULL;
  if (stream->kind == LADEI_STREAM_LEGACY) return rt->devices[stream->device].legacy;
  const soft_thread *thread = ladei_soft_thread(rt, false);
  return thread == NULL ? NULL : thread->streams[stream->device];
}

soft_stream *ladei_soft_stream_find(soft_runtime *rt, soft_op op, const ladei_stream *stream, lade_status *out_status) {
  soft_stream *found = stream->kind == LADEI_STREAM_ORDINARY ? ladei_soft_stream_of_handle(rt, stream->handle)
                                                             : special_find(rt, stream);
  if (found == NULL || found->id != stream->id) {
    *out_status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "stream", (uint64_t)(uintptr_t)stream->handle);
    return NULL;
  }
  if (atomic_load_explicit(&rt->devices[found->device].lost, memory_order_acquire)) {
    *out_status = ladei_soft_lost(op, found->device);
    return NULL;
  }
  return found;
}
