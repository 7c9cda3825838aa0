/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to both clocks: starting the heads of streams, ending the work of engines, losing a device.
 *
 *   head of a ready stream -> wait, stamp, empty       done on the spot
 *                             copy, fill, write, host, kernel  engine queue -> taken -> engine_finish
 *                             launch                   body_begin -> its nodes to engines
 *                             caller                   the thread that submitted it
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/run/run.h"

#include "base/log.h"

#include <assert.h>

#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/replay.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/order.h"
#include "runtime/soft/state/streams.h"

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* Starts a head that waits for another stream. True: the wait is over. */
static bool wait_start(soft_stream *stream, soft_node *node) {
  soft_stream *awaited = node->work.point.stream;
  assert(awaited != stream && node->work.point.number <= atomic_load(&awaited->submitted)); /* I2 of model.h */
  if (atomic_load_explicit(&awaited->completed, memory_order_acquire) >= node->work.point.number) return true;
  ladei_soft_node_started_set(node, true);
  stream->waiter_next = awaited->waiters;
  awaited->waiters = stream;
  return false;
}

static void stamp(soft_runtime *rt, const soft_work *work) {
  if (atomic_load(&work->event->word) != work->event_word) return; /* recorded anew, or another event in the record */
  work->event->time_ns = rt->clock->now_ns(rt);
  work->event->time_word = work->event_word;
}

/* Starts the stream's head. True: it is finished already. */
static bool head_start(soft_runtime *rt, soft_stream *stream, soft_node *node) {
  switch (node->work.kind) {
  case SOFT_WORK_EMPTY: return true;
  case SOFT_WORK_STAMP: stamp(rt, &node->work); return true;
  case SOFT_WORK_WAIT: return wait_start(stream, node);
  case SOFT_WORK_CALLER:
    ladei_soft_node_started_set(node, true);
    node->work.caller->ready = true;
    pthread_cond_signal(&node->work.caller->cond);
    return false;
  case SOFT_WORK_LAUNCH:
    ladei_soft_node_started_set(node, true);
    ladei_soft_body_begin(rt, node);
    return false;
  case SOFT_WORK_COPY:
  case SOFT_WORK_FILL:
  case SOFT_WORK_WRITE:
  case SOFT_WORK_HOST:
  case SOFT_WORK_KERNEL:
    ladei_soft_node_started_set(node, true);
    ladei_soft_engine_push(rt, node);
    return false;
  }
  return true;
}

void ladei_soft_run_ready(soft_runtime *rt) {
  if (rt->running_ready) return;
  rt->running_ready = true;
  while (rt->ready_streams != NULL) {
    soft_stream *stream = rt->ready_streams;
    rt->ready_streams = stream->ready_next;
    if (rt->ready_streams == NULL) rt->ready_streams_tail = NULL;
    stream->ready = false;
    while (stream->head != NULL && !stream->held && !stream->head->started) {
      if (!head_start(rt, stream, stream->head)) break;
      ladei_soft_stream_finish_head(rt, stream);
    }
  }
  rt->running_ready = false;
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

/*
 * A host function or a written value may show the program that all work before it has finished. (In a graph also the
 * nodes before it there, which have the launch's number.)
 */
static void host_learns(soft_stream *stream, uint64_t number, bool tells) {
  if (tells) ladei_soft_observe(stream, number);
}

void ladei_soft_engine_finish(soft_runtime *rt, soft_engine *engine) {
  soft_node *node = engine->current;
  assert(node != NULL && (node->stream == NULL || node == node->stream->head)); /* I1 of model.h */
  bool tells = ladei_soft_work_tells(&node->work);
  engine->current = NULL;
  ladei_soft_work_unbind(rt, &node->work);
  if (node->body != NULL) {
    host_learns(node->body->running->stream, node->body->running->number, tells);
    ladei_soft_body_node_done(rt, node->body, node);
  } else if (node->stream != NULL) {
    soft_stream *stream = node->stream;
    uint64_t number = node->number;
    ladei_soft_stream_finish_head(rt, stream);
    host_learns(stream, number, tells);
  } else {
    ladei_soft_work_dispose(&node->work);
    ladei_soft_node_free(rt, node);
  }
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

/* Under the lock, which is dropped meanwhile: waits until the engines' current work is over. */
static void engines_settle(soft_runtime *rt, const soft_device *device) {
  for (int i = 0; i < SOFT_ENGINE_COUNT; i++)
    while (device->engines[i].moving) pthread_cond_wait(&rt->idle_cond, &rt->lock);
}

/* From the first LADE_ERR_DEVICE_LOST on, memory that the device was using belongs to the host alone. */
void ladei_soft_device_drop(soft_runtime *rt, soft_device *device) {
  device->losing = true;
  engines_settle(rt, device);
  atomic_store_explicit(&device->lost, true, memory_order_release);
  ladei_log_later(LADE_LOG_ERROR, "runtime %s: software device %d is lost", rt->name, device->ordinal);
  device->lose_at_ns = UINT64_MAX;
  for (uint32_t i = 1; i < rt->stream_count; i++) {
    soft_stream *stream = ladei_soft_stream_by_index(rt, i);
    if (stream->device != device->ordinal) continue;
    stream->held = false;
    ladei_soft_stream_make_ready(rt, stream);
  }
}
