/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executable graphs: instantiation, update, upload, launch. The replay is in runtime/soft/run/replay.c.
 *
 *   graph --instantiate--> exec -> body -> [node] [node] ..     another graph --update--> the exec has another body
 *                                   ^ launches that are queued or run keep the body they were queued with
 *
 * I1  One launch of an exec runs at a time: each waits for the one submitted before it (last), on any stream, also
 *     across an update.
 * I2  An update replaces the body as a whole or leaves it: the new one is complete before the old one retires.
 * I3  Device memory of a body is charged before the exec can be found, and returned with the body.
 * Locks: rt->lock.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/replay.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/capture.h"
#include "runtime/soft/submit/submit.h"

static lade_status no_memory(soft_op op) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the executable graph", ladei_soft_op_name(op));
}

static uint64_t handle_number(const void *handle) { return (uint64_t)(uintptr_t)handle; }

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

/* Reverses the nodes' dependencies. False: no memory. */
static bool dependents_fill(soft_body *body, const soft_graph *graph) {
  size_t total = 0;
  for (uint32_t i = 0; i < graph->count; i++) total += graph->nodes[i].dependency_count;
  body->dependents = calloc(total + 1, sizeof *body->dependents);
  if (body->dependents == NULL) return false;
  for (uint32_t i = 0; i < graph->count; i++)
    for (uint32_t j = 0; j < graph->nodes[i].dependency_count; j++)
      body->nodes[graph->nodes[i].dependencies[j]].dependent_count++;
  uint32_t next = 0;
  for (uint32_t i = 0; i < graph->count; i++) {
    body->nodes[i].first_dependent = next;
    next += body->nodes[i].dependent_count;
    body->nodes[i].dependent_count = 0;
  }
  for (uint32_t i = 0; i < graph->count; i++) {
    for (uint32_t j = 0; j < graph->nodes[i].dependency_count; j++) {
      soft_exec_node *before = &body->nodes[graph->nodes[i].dependencies[j]];
      body->dependents[before->first_dependent + before->dependent_count++] = i;
    }
  }
  return true;
}

static bool body_fill(soft_runtime *rt, soft_body *body, const soft_graph *graph) {
  body->nodes = calloc((size_t)graph->count + 1, sizeof *body->nodes);
  if (body->nodes == NULL) return false;
  body->count = graph->count;
  if (!dependents_fill(body, graph)) return false;
  for (uint32_t i = 0; i < graph->count; i++) {
    if (!ladei_soft_work_clone(&graph->nodes[i].work, &body->nodes[i].node.work)) return false;
    body->nodes[i].node.body = body;
    body->nodes[i].dependency_count = graph->nodes[i].dependency_count;
  }
  if (graph->objects.count != 0 && !ladei_soft_late_objects_make(rt, &body->late)) return false;
  for (uint32_t i = 0; i < graph->objects.count; i++) {
    if (!ladei_soft_objects_add(&body->objects, graph->objects.objects[i])) return false;
    graph->objects.objects[i]->references++;
  }
  return true;
}

/* NULL with the status: no memory. */
static soft_body *body_new(soft_runtime *rt, soft_op op, const soft_graph *graph, lade_status *out_status) {
  soft_body *body = calloc(1, sizeof *body);
  if (body == NULL) {
    *out_status = no_memory(op);
    return NULL;
  }
  body->place = &rt->bodies;
  body->next = rt->bodies;
  if (body->next != NULL) body->next->place = &body->next;
  rt->bodies = body;
  body->device = graph->count != 0 ? graph->nodes[0].work.device : 0;
  uint64_t bytes = graph->count * rt->graph_node_bytes;
  soft_device *device = &rt->devices[body->device];
  if (!ladei_soft_memory_charge(device, bytes)) {
    *out_status = ladei_soft_out_of_device_memory(op, device, bytes);
  } else {
    body->charged = bytes;
    if (body_fill(rt, body, graph)) return body;
    *out_status = no_memory(op);
  }
  ladei_soft_body_free(rt, body);
  return NULL;
}

/* ---- instantiation ----------------------------------------------------------------------------------------------- */

/* The graph of a handle, for an instantiation or an update; NULL with the status. */
static soft_graph *graph_find(soft_runtime *rt, soft_op op, ladei_graph handle, lade_status *out_status) {
  soft_graph *graph = ladei_soft_table_find(&rt->graph_table, handle_number(handle));
  if (graph == NULL) {
    *out_status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "graph", handle_number(handle));
  } else if (graph->capture != NULL) {
    *out_status = ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED,
                              "%s: the graph is under construction", ladei_soft_op_name(op));
    graph = NULL;
  }
  return graph;
}

static soft_exec *exec_find(soft_runtime *rt, soft_op op, ladei_graph_exec handle, lade_status *out_status) {
  soft_exec *exec = ladei_soft_table_find(&rt->exec_table, handle_number(handle));
  if (exec == NULL)
    *out_status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "executable graph", handle_number(handle));
  return exec;
}

static lade_status instantiate_flags(soft_op op, unsigned flags, const ladei_stream *upload) {
  const int native = LADEI_SOFT_NATIVE_INVALID_VALUE;
  lade_status status =
      ladei_soft_flags(op, flags, LADEI_GRAPH_AUTO_FREE | LADEI_GRAPH_UPLOAD | LADEI_GRAPH_DEVICE_LAUNCH);
  if (status != LADE_OK) return status;
  if ((flags & LADEI_GRAPH_AUTO_FREE) != 0 && (flags & LADEI_GRAPH_DEVICE_LAUNCH) != 0)
    return ladei_soft_refuse(op, native, "flags", "not both LADEI_GRAPH_AUTO_FREE and LADEI_GRAPH_DEVICE_LAUNCH", "%#x",
                             flags);
  if ((upload != NULL) != ((flags & LADEI_GRAPH_UPLOAD) != 0))
    return ladei_soft_refuse(op, native, "upload", "a stream with LADEI_GRAPH_UPLOAD, else NULL", "%p",
                             (const void *)upload);
  return LADE_OK;
}

/* Refuses what a device cannot launch: see LADEI_GRAPH_DEVICE_LAUNCH. */
static lade_status device_launch_check(soft_op op, const soft_graph *graph) {
  const char *why = graph->count == 0 ? "the graph is empty" : NULL;
  for (uint32_t i = 0; i < graph->count && why == NULL; i++) {
    const soft_work *work = &graph->nodes[i].work;
    if (work->kind == SOFT_WORK_HOST) why = "the graph has a host function";
    if (work->kind == SOFT_WORK_WRITE) why = "the graph writes a value";
    if (work->device != graph->nodes[0].work.device) why = "the graph has work of two devices";
  }
  return why == NULL ? LADE_OK
                     : ladei_error(LADE_ERR_INVALID_ARGUMENT, LADEI_SOFT_NATIVE_INVALID_VALUE,
                                   "%s: flags are LADEI_GRAPH_DEVICE_LAUNCH, but %s", ladei_soft_op_name(op), why);
}

static soft_exec *exec_new(soft_runtime *rt, soft_op op, const soft_graph *graph, unsigned flags,
                           lade_status *out_status) {
  soft_exec *exec = ladei_soft_table_take(&rt->exec_table);
  if (exec == NULL) {
    *out_status = no_memory(op);
    return NULL;
  }
  exec->flags = flags;
  exec->last = (soft_point){NULL, 0};
  exec->body = body_new(rt, op, graph, out_status);
  if (exec->body == NULL) {
    ladei_soft_table_put(&rt->exec_table, exec);
    return NULL;
  }
  ladei_soft_table_publish(&rt->exec_table, exec);
  return exec;
}

static lade_status upload_locked(soft_runtime *rt, soft_op op, const soft_exec *exec, soft_stream *stream);

static void exec_remove(soft_runtime *rt, soft_exec *exec) {
  ladei_soft_table_hide(&rt->exec_table, exec);
  ladei_soft_body_retire(rt, exec->body);
  exec->body = NULL;
  ladei_soft_table_put(&rt->exec_table, exec);
}

static lade_status instantiate_locked(soft_runtime *rt, soft_op op, ladei_graph handle, unsigned flags,
                                      const ladei_stream *upload, ladei_graph_exec *out_exec) {
  lade_status status = LADE_OK;
  const soft_graph *graph = graph_find(rt, op, handle, &status);
  soft_stream *stream = graph == NULL || upload == NULL ? NULL : ladei_soft_stream_find(rt, op, upload, &status);
  if (status == LADE_OK) status = ladei_soft_unsafe(rt, ladei_soft_op_name(op));
  if (status == LADE_OK && (flags & LADEI_GRAPH_DEVICE_LAUNCH) != 0) status = device_launch_check(op, graph);
  if (status != LADE_OK) return status;
  soft_exec *exec = exec_new(rt, op, graph, flags, &status);
  if (exec != NULL && stream != NULL) status = upload_locked(rt, op, exec, stream);
  if (status == LADE_OK)
    *out_exec = (ladei_graph_exec)(uintptr_t)ladei_soft_table_handle(&rt->exec_table, exec);
  else if (exec != NULL)
    exec_remove(rt, exec);
  return status;
}

static lade_status graph_instantiate(void *self, ladei_graph handle, ladei_graph_exec *out_exec) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_graph_instantiate));
  lade_status status = instantiate_locked(rt, SOFT_OP_graph_instantiate, handle, 0, NULL, out_exec);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status graph_instantiate_with(void *self, ladei_graph handle, unsigned flags, const ladei_stream *upload,
                                          ladei_graph_exec *out_exec) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_instantiate_with;
  lade_status status = ladei_soft_enter(rt, op);
  if (status == LADE_OK) status = instantiate_flags(op, flags, upload);
  if (status != LADE_OK) return status;
  ladei_soft_lock(rt);
  status = instantiate_locked(rt, op, handle, flags, upload, out_exec);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status graph_exec_destroy(void *self, ladei_graph_exec handle) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_exec_destroy;
  lade_status status = ladei_soft_enter_locked(rt, op);
  if (status != LADE_OK) return status;
  soft_exec *exec = exec_find(rt, op, handle, &status);
  if (exec != NULL) status = ladei_soft_unsafe(rt, "graph_exec_destroy");
  if (status == LADE_OK) exec_remove(rt, exec);
  ladei_soft_objects_unlock(rt);
  return status;
}

/* ---- update ------------------------------------------------------------------------------------------------------ */

/* CUDA's driver treats a copy within the host and one within a device as alike. */
static soft_engine_kind copy_place(soft_engine_kind engine) {
  return engine == SOFT_ENGINE_HOST ? SOFT_ENGINE_COMPUTE : engine;
}

static bool devices_alike(int32_t from, int32_t to) { return from < 0 || to < 0 || from == to; }

/* It also treats mapped and pool memory as alike, but not memory from device_alloc and these. Device memory must stay
 * on its device, whichever stream captured the copy. */
static bool copies_alike(const soft_work *from, const soft_work *to) {
  const soft_piece *a = from->pieces != NULL ? from->pieces : &from->piece;
  const soft_piece *b = to->pieces != NULL ? to->pieces : &to->piece;
  return copy_place(from->engine) == copy_place(to->engine) && a->dst_mapped == b->dst_mapped &&
         a->src_mapped == b->src_mapped && devices_alike(a->dst_device, b->dst_device) &&
         devices_alike(a->src_device, b->src_device);
}

static bool fills_alike(const soft_work *from, const soft_work *to) {
  return from->kind != SOFT_WORK_FILL || devices_alike(from->piece.dst_device, to->piece.dst_device);
}

static bool works_alike(const soft_work *from, const soft_work *to) {
  if (from->kind == SOFT_WORK_COPY) return copies_alike(from, to);
  /* A fill of the same memory may come from a stream of another device; a fill of other memory may not. */
  bool same = from->kind == SOFT_WORK_FILL && from->piece.dst == to->piece.dst;
  return (same || from->device == to->device) && from->engine == to->engine && fills_alike(from, to);
}

/* Whether one node can replace another: as on hardware, its parameters may change, its place may not. */
static ladei_graph_update work_compare(const soft_work *from, const soft_work *to) {
  if (from->kind != to->kind) return LADEI_GRAPH_KIND_CHANGED;
  bool same = works_alike(from, to) && (from->kind != SOFT_WORK_WRITE || from->piece.bytes == to->piece.bytes);
  return same ? LADEI_GRAPH_UPDATED : LADEI_GRAPH_PARAMETERS_CHANGED;
}

static bool topology_equal(const soft_body *from, const soft_body *to) {
  if (from->count != to->count) return false;
  size_t edges = 0;
  for (uint32_t i = 0; i < from->count; i++) {
    const soft_exec_node *a = &from->nodes[i], *b = &to->nodes[i];
    if (a->dependency_count != b->dependency_count || a->dependent_count != b->dependent_count) return false;
    edges += a->dependent_count;
  }
  return memcmp(from->dependents, to->dependents, edges * sizeof *from->dependents) == 0;
}

static ladei_graph_update body_compare(const soft_body *from, const soft_body *to) {
  ladei_graph_update result = topology_equal(from, to) ? LADEI_GRAPH_UPDATED : LADEI_GRAPH_TOPOLOGY_CHANGED;
  for (uint32_t i = 0; i < from->count && result == LADEI_GRAPH_UPDATED; i++)
    result = work_compare(&from->nodes[i].node.work, &to->nodes[i].node.work);
  return result;
}

static lade_status update_locked(soft_runtime *rt, ladei_graph_exec exec_handle, ladei_graph handle,
                                 ladei_graph_update *out) {
  const soft_op op = SOFT_OP_graph_exec_update;
  lade_status status = LADE_OK;
  soft_exec *exec = exec_find(rt, op, exec_handle, &status);
  const soft_graph *graph = exec == NULL ? NULL : graph_find(rt, op, handle, &status);
  soft_body *body = graph == NULL ? NULL : body_new(rt, op, graph, &status);
  if (body == NULL) return status;
  *out = body_compare(exec->body, body);
  soft_body *old = body;
  if (*out == LADEI_GRAPH_UPDATED) {
    old = exec->body;
    exec->body = body;
  }
  ladei_soft_body_retire(rt, old);
  return LADE_OK;
}

static lade_status graph_exec_update(void *self, ladei_graph_exec exec, ladei_graph graph, ladei_graph_update *out) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_graph_exec_update));
  lade_status status = update_locked(rt, exec, graph, out);
  ladei_soft_objects_unlock(rt);
  return status;
}

/* ---- upload ------------------------------------------------------------------------------------------------------ */

/* Waits for all launches so far, on any stream. */
static lade_status wait_for_last(soft_runtime *rt, soft_op op, const soft_exec *exec, soft_stream *stream) {
  const soft_point *last = &exec->last;
  if (last->stream == NULL || last->stream == stream) return LADE_OK;
  return ladei_soft_stream_wait_point(rt, op, stream, last->stream, last->number);
}

/* A software device needs no upload: only the order in the stream remains. */
static lade_status upload_locked(soft_runtime *rt, soft_op op, const soft_exec *exec, soft_stream *stream) {
  if (stream->capture != NULL)
    return ladei_soft_capture_break(rt, op, stream->capture, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED);
  lade_status status = wait_for_last(rt, op, exec, stream);
  soft_work work = {.kind = SOFT_WORK_EMPTY, .device = stream->device};
  return status == LADE_OK ? ladei_soft_submit(rt, op, stream, &work) : status;
}

static lade_status graph_upload(void *self, ladei_graph_exec handle, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_upload;
  lade_status status = ladei_soft_enter_locked(rt, op);
  if (status != LADE_OK) return status;
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  const soft_exec *exec = stream == NULL ? NULL : exec_find(rt, op, handle, &status);
  if (exec != NULL) status = upload_locked(rt, op, exec, stream);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

static lade_status launch_locked(soft_runtime *rt, soft_stream *stream, soft_exec *exec) {
  const soft_op op = SOFT_OP_graph_launch;
  LADEI_TRY(wait_for_last(rt, op, exec, stream));
  soft_work work = {.kind = SOFT_WORK_LAUNCH, .device = stream->device};
  work.body = exec->body;
  exec->body->launches++;
  exec->body->launched = true;
  lade_status status = ladei_soft_submit(rt, op, stream, &work);
  if (status != LADE_OK)
    exec->body->launches--;
  else
    exec->last = (soft_point){stream, atomic_load(&stream->submitted)};
  return status;
}

static lade_status graph_launch(void *self, ladei_graph_exec handle, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_launch;
  lade_status status = ladei_soft_enter_locked(rt, op);
  if (status != LADE_OK) return status;
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  soft_exec *exec = stream == NULL ? NULL : exec_find(rt, op, handle, &status);
  if (exec != NULL && stream->capture != NULL)
    status = ladei_soft_capture_break(rt, op, stream->capture, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED);
  else if (exec != NULL)
    status = launch_locked(rt, stream, exec);
  return ladei_soft_unlock_with(rt, status);
}

void ladei_soft_exec_ops(lade_runtime_ops *ops) {
  ops->graph_instantiate = graph_instantiate;
  ops->graph_instantiate_with = graph_instantiate_with;
  ops->graph_exec_destroy = graph_exec_destroy;
  ops->graph_exec_update = graph_exec_update;
  ops->graph_upload = graph_upload;
  ops->graph_launch = graph_launch;
}
