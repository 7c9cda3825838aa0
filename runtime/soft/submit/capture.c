/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures: streams that queue nothing and build a graph instead.
 *
 *   stream (origin)  [copy a] [record E]  [wait F] [copy c]        graph:  a --> b --> c    origin's frontier: {c}
 *   stream (joined)        [wait E] [fill b] [record F]
 *
 * Each op of a capturing stream adds a node that depends on the stream's frontier and becomes the new one. An event
 * recorded there carries the frontier; a wait for it brings the waiting stream into the capture.
 *
 * I1  A graph node depends only on earlier nodes in the array.
 * I2  A capture is in rt->captures, and its streams name it, until its origin ends it, valid or not.
 * I3  A graph under construction has a capture; the program owns it only after capture_end.
 * Locks: rt->lock.
 */
#include "runtime/soft/submit/capture.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/thread.h"
#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/mappings.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/races.h"

static bool frontier_add(soft_stream *stream, uint32_t node) {
  for (uint32_t i = 0; i < stream->frontier_count; i++)
    if (stream->frontier[i] == node) return true;
  if (!LADEI_ARRAY_ROOM(stream->frontier, stream->frontier_capacity, (size_t)stream->frontier_count + 1)) return false;
  stream->frontier[stream->frontier_count++] = node;
  return true;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

ladei_graph ladei_soft_graph_handle(const soft_runtime *rt, const soft_graph *graph) {
  return (ladei_graph)(uintptr_t)ladei_soft_table_handle(&rt->graph_table, graph);
}

enum { NODE_HANDLE_SHIFT = 32 };

ladei_graph_node ladei_soft_graph_node_handle(const soft_runtime *rt, const soft_graph *graph, uint32_t number) {
  assert(number < SOFT_NODE_HANDLES);
  uint64_t name = ladei_soft_table_handle(&rt->graph_table, graph) | ((uint64_t)number + 1) << NODE_HANDLE_SHIFT;
  return (ladei_graph_node)(uintptr_t)name;
}

const soft_graph_node *ladei_soft_graph_node_find(const soft_runtime *rt, ladei_graph_node handle, soft_graph **out) {
  uint64_t name = (uint64_t)(uintptr_t)handle, mask = (uint64_t)SOFT_NODE_HANDLES << NODE_HANDLE_SHIFT;
  uint64_t number = (name & mask) >> NODE_HANDLE_SHIFT;
  soft_graph *graph = ladei_soft_table_find(&rt->graph_table, name & ~mask);
  if (graph == NULL || number == 0 || number > graph->count) return NULL;
  *out = graph;
  return &graph->nodes[number - 1];
}

static soft_graph *graph_new(soft_runtime *rt) {
  soft_graph *graph = ladei_soft_table_take(&rt->graph_table);
  if (graph == NULL) return NULL;
  graph->nodes = NULL;
  graph->count = 0;
  graph->capacity = 0;
  graph->objects = (soft_object_list){NULL, 0, 0};
  graph->capture = NULL;
  ladei_soft_table_publish(&rt->graph_table, graph);
  return graph;
}

void ladei_soft_graph_free(soft_runtime *rt, soft_graph *graph) {
  ladei_soft_table_hide(&rt->graph_table, graph);
  for (uint32_t i = 0; i < graph->count; i++) {
    ladei_soft_work_dispose(&graph->nodes[i].work);
    free(graph->nodes[i].dependencies);
  }
  free(graph->nodes);
  ladei_soft_objects_release(rt, &graph->objects);
  ladei_soft_table_put(&rt->graph_table, graph);
}

/* ---- operations that a capture forbids --------------------------------------------------------------------------- */

lade_status ladei_soft_capture_break(soft_runtime *rt, soft_op op, soft_capture *capture, int native) {
  (void)rt;
  capture->valid = false;
  return ladei_error(LADE_ERR_CAPTURE, native, "%s: not allowed now; capture %llu is invalid from here on",
                     ladei_soft_op_name(op), (unsigned long long)capture->id);
}

soft_capture *ladei_soft_capture_implicit(const soft_runtime *rt, const soft_device *device) {
  if (rt->captures == NULL) return NULL;
  for (soft_stream *stream = device->blocking_streams; stream != NULL; stream = stream->blocking_next)
    if (stream->capture != NULL) return stream->capture;
  return NULL;
}

lade_status ladei_soft_capture_check_legacy(soft_runtime *rt, soft_op op, const soft_stream *stream) {
  lade_status status = LADE_OK;
  if (rt->captures == NULL || stream->kind != LADEI_STREAM_LEGACY) return LADE_OK;
  for (soft_stream *other = rt->devices[stream->device].blocking_streams; other != NULL; other = other->blocking_next) {
    if (other->capture == NULL) continue;
    status = ladei_soft_capture_break(rt, op, other->capture, LADEI_SOFT_NATIVE_CAPTURE_IMPLICIT);
  }
  return status;
}

/* CUDA's rule on potentially unsafe calls (cuThreadExchangeStreamCaptureMode). */
static bool unsafe_forbidden(const soft_capture *capture, ladei_capture_mode thread_mode, uint64_t identity) {
  if (thread_mode == LADEI_CAPTURE_RELAXED || capture->mode == LADEI_CAPTURE_RELAXED) return false;
  if (capture->thread == identity) return true;
  return thread_mode == LADEI_CAPTURE_GLOBAL && capture->mode == LADEI_CAPTURE_GLOBAL;
}

lade_status ladei_soft_unsafe(soft_runtime *rt, const char *what) {
  if (rt->captures == NULL) return LADE_OK;
  const soft_thread *thread = ladei_soft_thread(rt, false);
  ladei_capture_mode mode = thread == NULL ? LADEI_CAPTURE_GLOBAL : thread->mode;
  lade_status status = LADE_OK;
  for (soft_capture *capture = rt->captures; capture != NULL; capture = capture->next) {
    if (!unsafe_forbidden(capture, mode, ladei_thread_number())) continue;
    capture->valid = false;
    status = ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED,
                         "%s: the thread's capture mode forbids it while capture %llu is under way", what,
                         (unsigned long long)capture->id);
  }
  return status;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static void stream_enter(soft_stream *stream, soft_capture *capture) {
  assert((stream->capture == NULL) != (capture == NULL)); /* I2: into a capture, or out of it */
  stream->capture = capture;
  stream->frontier_count = 0;
}

/* Detaches the capture from its streams and the runtime. The caller then owns its graph. */
static soft_graph *capture_close(soft_runtime *rt, soft_capture *capture) {
  for (uint32_t i = 1; i < rt->stream_count; i++) {
    soft_stream *stream = ladei_soft_stream_by_index(rt, i);
    if (stream->capture == capture) stream_enter(stream, NULL);
  }
  soft_capture **place = &rt->captures;
  while (*place != capture) place = &(*place)->next;
  *place = capture->next;
  soft_graph *graph = capture->graph;
  graph->capture = NULL;
  free(capture);
  return graph;
}

void ladei_soft_capture_stream_gone(soft_runtime *rt, soft_stream *stream) {
  soft_capture *capture = stream->capture;
  if (capture == NULL) return;
  capture->valid = false;
  if (capture->origin == stream)
    ladei_soft_graph_free(rt, capture_close(rt, capture));
  else
    stream_enter(stream, NULL);
}

lade_status ladei_soft_capture_start(soft_runtime *rt, soft_stream *stream, ladei_capture_mode mode) {
  if ((unsigned)mode > LADEI_CAPTURE_RELAXED) {
    return ladei_soft_refuse(SOFT_OP_capture_begin, LADEI_SOFT_NATIVE_INVALID_VALUE, "mode", "a ladei_capture_mode",
                             "%d", (int)mode);
  }
  if (stream->kind == LADEI_STREAM_LEGACY) {
    return ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED,
                       "capture_begin: the legacy stream cannot capture");
  }
  if (stream->capture != NULL)
    return ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_ILLEGAL_STATE, "capture_begin: the stream captures already");
  soft_capture *capture = calloc(1, sizeof *capture);
  soft_graph *graph = capture == NULL ? NULL : graph_new(rt);
  if (graph == NULL) {
    free(capture);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "capture_begin: no memory for one more capture");
  }
  *capture = (soft_capture){.id = ++rt->next_capture_id,
                            .mode = mode,
                            .thread = ladei_thread_number(),
                            .valid = true,
                            .origin = stream,
                            .graph = graph,
                            .next = rt->captures};
  rt->captures = capture;
  graph->capture = capture;
  stream_enter(stream, capture);
  return LADE_OK;
}

/* Every node without dependents must be in the origin's frontier: otherwise a stream's work was not joined back. */
static bool capture_is_joined(const soft_capture *capture) {
  const soft_graph *graph = capture->graph;
  uint32_t leaves = graph->count;
  bool *depended = calloc((size_t)graph->count + 1, sizeof *depended);
  if (depended == NULL) return false;
  for (uint32_t i = 0; i < graph->count; i++) {
    for (uint32_t j = 0; j < graph->nodes[i].dependency_count; j++) {
      leaves -= !depended[graph->nodes[i].dependencies[j]];
      depended[graph->nodes[i].dependencies[j]] = true;
    }
  }
  for (uint32_t i = 0; i < capture->origin->frontier_count; i++) leaves -= !depended[capture->origin->frontier[i]];
  free(depended);
  return leaves == 0;
}

static lade_status end_error(int native, const char *why) {
  return ladei_error(LADE_ERR_CAPTURE, native, "capture_end: %s", why);
}

lade_status ladei_soft_capture_finish(soft_runtime *rt, soft_stream *stream, ladei_graph *out_graph) {
  soft_capture *capture = stream->capture;
  if (capture == NULL) return end_error(LADEI_SOFT_NATIVE_ILLEGAL_STATE, "the stream does not capture");
  if (capture->origin != stream) {
    capture->valid = false;
    return end_error(LADEI_SOFT_NATIVE_CAPTURE_UNMATCHED, "another stream began this capture");
  }
  if (capture->mode != LADEI_CAPTURE_RELAXED && capture->thread != ladei_thread_number())
    return end_error(LADEI_SOFT_NATIVE_CAPTURE_WRONG_THREAD, "another thread began this capture");
  bool valid = capture->valid, joined = valid && capture_is_joined(capture);
  soft_graph *graph = capture_close(rt, capture);
  if (joined) {
    ladei_soft_graph_races(rt, graph);
    *out_graph = ladei_soft_graph_handle(rt, graph);
    return LADE_OK;
  }
  ladei_soft_graph_free(rt, graph);
  return valid ? end_error(LADEI_SOFT_NATIVE_CAPTURE_UNJOINED, "a joined stream's work was not joined back")
               : end_error(LADEI_SOFT_NATIVE_CAPTURE_INVALIDATED, "the capture had become invalid");
}

/* ---- operations of capturing streams ----------------------------------------------------------------------------- */

static lade_status no_memory(soft_op op) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the capture", ladei_soft_op_name(op));
}

static lade_status invalid_capture(soft_op op) {
  return ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_CAPTURE_INVALIDATED, "%s: the capture is invalid",
                     ladei_soft_op_name(op));
}

static soft_graph_node *graph_node_new(soft_graph *graph) {
  bool room = LADEI_ARRAY_ROOM(graph->nodes, graph->capacity, (size_t)graph->count + 1);
  return room ? &graph->nodes[graph->count] : NULL;
}

static bool range_is_mapped(const soft_range *range) {
  return range != NULL && !range->host && range->kind != SOFT_RANGE_DEVICE;
}

lade_status ladei_soft_capture_append(soft_runtime *rt, soft_op op, soft_stream *stream, soft_work *work) {
  if (!stream->capture->valid) return invalid_capture(op);
  soft_graph *graph = stream->capture->graph;
  soft_graph_node *node = graph_node_new(graph);
  uint32_t *dependencies = calloc((size_t)stream->frontier_count + 1, sizeof *dependencies);
  if (node == NULL || dependencies == NULL ||
      !LADEI_ARRAY_ROOM(stream->frontier, stream->frontier_capacity, (size_t)1)) {
    free(dependencies);
    return no_memory(op);
  }
  if (stream->frontier_count != 0)
    memcpy(dependencies, stream->frontier, stream->frontier_count * sizeof *dependencies);
  for (uint32_t i = 0; i < stream->frontier_count; i++) assert(stream->frontier[i] < graph->count); /* I1 */
  *node = (soft_graph_node){*work, dependencies, stream->frontier_count, stream->index};
  soft_piece *pieces = ladei_soft_work_pieces(&node->work);
  for (uint32_t i = 0; i < node->work.piece_count; i++) {
    pieces[i].dst_tracked = pieces[i].dst_range != NULL;
    pieces[i].src_tracked = pieces[i].src_range != NULL;
    pieces[i].dst_mapped = range_is_mapped(pieces[i].dst_range);
    pieces[i].src_mapped = range_is_mapped(pieces[i].src_range);
    pieces[i].dst_device = ladei_soft_memory_device(rt, pieces[i].dst_range, pieces[i].dst);
    pieces[i].src_device = ladei_soft_memory_device(rt, pieces[i].src_range, pieces[i].src);
    pieces[i].dst_range = pieces[i].src_range = NULL; /* looked up again at each launch */
  }
  stream->frontier[0] = graph->count++;
  stream->frontier_count = 1;
  return LADE_OK;
}

lade_status ladei_soft_capture_record(soft_runtime *rt, soft_op op, soft_stream *stream, soft_event *event) {
  (void)rt;
  if (!stream->capture->valid) return invalid_capture(op);
  if (!LADEI_ARRAY_ROOM(event->frontier, event->frontier_capacity, (size_t)stream->frontier_count))
    return no_memory(op);
  if (stream->frontier_count != 0)
    memcpy(event->frontier, stream->frontier, stream->frontier_count * sizeof *event->frontier);
  event->frontier_count = stream->frontier_count;
  event->capture_id = stream->capture->id;
  event->order.count = 0;
  atomic_store(&event->has_order, false);
  atomic_store(&event->word, SOFT_EVENT_CAPTURED);
  return LADE_OK;
}

soft_capture *ladei_soft_capture_by_id(const soft_runtime *rt, uint64_t id) {
  soft_capture *capture = rt->captures;
  while (capture != NULL && capture->id != id) capture = capture->next;
  return capture;
}

/* Whether a wait for an event may bring the stream into, or keep it in, the event's capture. */
static lade_status wait_check(soft_runtime *rt, soft_op op, soft_stream *stream, soft_capture *capture) {
  if (capture == NULL) { /* the event was captured, and that capture is over; or it was not captured at all */
    if (stream->capture != NULL)
      return ladei_soft_capture_break(rt, op, stream->capture, LADEI_SOFT_NATIVE_CAPTURE_ISOLATION);
    return ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_INVALID_VALUE,
                       "%s: the event was last recorded in a capture that is over", ladei_soft_op_name(op));
  }
  if (!capture->valid || (stream->capture != NULL && !stream->capture->valid)) return invalid_capture(op);
  if (stream->capture != NULL && stream->capture != capture) {
    stream->capture->valid = false;
    return ladei_soft_capture_break(rt, op, capture, LADEI_SOFT_NATIVE_CAPTURE_MERGE);
  }
  if (stream->kind == LADEI_STREAM_LEGACY)
    return ladei_soft_capture_break(rt, op, capture, LADEI_SOFT_NATIVE_CAPTURE_IMPLICIT);
  return LADE_OK;
}

lade_status ladei_soft_capture_wait(soft_runtime *rt, soft_op op, soft_stream *stream, soft_event *event) {
  bool captured = atomic_load(&event->word) == SOFT_EVENT_CAPTURED;
  soft_capture *capture = captured ? ladei_soft_capture_by_id(rt, event->capture_id) : NULL;
  LADEI_TRY(wait_check(rt, op, stream, capture));
  if (stream->capture == NULL) stream_enter(stream, capture);
  for (uint32_t i = 0; i < event->frontier_count; i++) {
    if (!frontier_add(stream, event->frontier[i])) {
      capture->valid = false; /* an order is missing in the graph */
      return no_memory(op);
    }
  }
  return LADE_OK;
}
