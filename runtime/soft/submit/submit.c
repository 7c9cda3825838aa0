/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submission: work of an op -> legacy order -> hazards -> stream queue; or, if the stream captures, its graph.
 *
 * I3  Refused work has queued nothing and is disposed of.
 * Locks: rt->lock.
 */
#include "runtime/soft/submit/submit.h"

#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/order.h"
#include "runtime/soft/submit/access.h"
#include "runtime/soft/submit/capture.h"

lade_status ladei_soft_no_memory_to_queue(soft_op op) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory to queue work", ladei_soft_op_name(op));
}

/* ---- waits for other streams ------------------------------------------------------------------------------------- */

lade_status ladei_soft_stream_wait_point(soft_runtime *rt, soft_op op, soft_stream *stream, soft_stream *awaited,
                                         uint64_t number) {
  if (!ladei_soft_order_add(&stream->order, awaited, number)) return ladei_soft_no_memory_to_queue(op);
  if (atomic_load(&awaited->completed) >= number) return LADE_OK;
  soft_node *node = ladei_soft_node_new(rt);
  if (node == NULL) return ladei_soft_no_memory_to_queue(op);
  node->work = (soft_work){.kind = SOFT_WORK_WAIT, .device = stream->device, .point = {awaited, number}};
  ladei_soft_stream_push(rt, stream, node);
  return LADE_OK;
}

static lade_status stream_wait_stream(soft_runtime *rt, soft_op op, soft_stream *stream, soft_stream *awaited) {
  if (!ladei_soft_order_merge(&stream->order, &awaited->order)) return ladei_soft_no_memory_to_queue(op);
  return ladei_soft_stream_wait_point(rt, op, stream, awaited, atomic_load(&awaited->submitted));
}

lade_status ladei_soft_stream_join_legacy(soft_runtime *rt, soft_op op, soft_stream *stream) {
  soft_device *device = &rt->devices[stream->device];
  lade_status status = LADE_OK;
  if (stream->kind == LADEI_STREAM_LEGACY) {
    soft_stream *other = device->blocking_streams;
    for (; other != NULL && status == LADE_OK; other = other->blocking_next)
      status = stream_wait_stream(rt, op, stream, other);
  } else if (stream->blocking && stream->legacy_seen < atomic_load(&device->legacy->submitted)) {
    status = stream_wait_stream(rt, op, stream, device->legacy);
    if (status == LADE_OK) stream->legacy_seen = atomic_load(&device->legacy->submitted);
  }
  return status;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static lade_status submit_queue(soft_runtime *rt, soft_op op, soft_stream *stream, const soft_work *work) {
  lade_status status = ladei_soft_capture_check_legacy(rt, op, stream);
  if (status == LADE_OK) status = ladei_soft_stream_join_legacy(rt, op, stream);
  if (status != LADE_OK) return status;
  soft_node *node = ladei_soft_node_new(rt);
  if (node == NULL) return ladei_soft_no_memory_to_queue(op);
  node->work = *work;
  ladei_soft_work_bind(&node->work);
  ladei_soft_hazard_work(rt, stream, atomic_load(&stream->submitted) + 1, &node->work);
  ladei_soft_stream_push(rt, stream, node);
  return LADE_OK;
}

lade_status ladei_soft_submit(soft_runtime *rt, soft_op op, soft_stream *stream, soft_work *work) {
  lade_status status =
      stream->capture != NULL ? ladei_soft_capture_append(rt, op, stream, work) : submit_queue(rt, op, stream, work);
  if (status != LADE_OK) ladei_soft_work_dispose(work);
  ladei_soft_run_ready(rt);
  return status;
}
