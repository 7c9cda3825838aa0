/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures, graphs, user objects: the ops. Their work is done in runtime/soft/submit/capture.c.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/capture.h"

/* ---- user objects ------------------------------------------------------------------------------------------------ */

static lade_status user_object_create(void *self, ladei_host_function destroy, void *user, ladei_user_object *out) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_user_object_create));
  if (destroy == NULL)
    return ladei_soft_refuse(SOFT_OP_user_object_create, LADEI_SOFT_NATIVE_INVALID_VALUE, "destroy", "a function",
                             "NULL");
  ladei_soft_lock(rt);
  lade_status status = ladei_soft_device_start(rt, SOFT_OP_user_object_create, &rt->devices[0]);
  soft_node *node = status == LADE_OK ? ladei_soft_node_new(rt) : NULL;
  soft_user_object *object = node == NULL ? NULL : ladei_soft_table_take(&rt->object_table);
  if (object != NULL) {
    object->references = 1;
    object->late = 0;
    object->destroy = destroy;
    object->user = user;
    object->node = node;
    ladei_soft_table_publish(&rt->object_table, object);
    *out = (ladei_user_object)(uintptr_t)ladei_soft_table_handle(&rt->object_table, object);
  } else if (status == LADE_OK) {
    if (node != NULL) ladei_soft_node_free(rt, node);
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "user_object_create: no memory for one more");
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status stale_handle(soft_runtime *rt, soft_op op, const char *what, const void *handle) {
  return ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, what, (uint64_t)(uintptr_t)handle);
}

static lade_status user_object_release(void *self, ladei_user_object handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_user_object_release);
  if (status != LADE_OK) return status;
  soft_user_object *object = ladei_soft_table_find(&rt->object_table, (uint64_t)(uintptr_t)handle);
  if (object == NULL)
    status = stale_handle(rt, SOFT_OP_user_object_release, "user object", handle);
  else
    ladei_soft_object_unreference(rt, object);
  ladei_soft_objects_unlock(rt);
  return status;
}

static lade_status graph_retain_user_object(void *self, ladei_graph graph_handle, ladei_user_object handle) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_retain_user_object;
  lade_status status = ladei_soft_enter_locked(rt, op);
  if (status != LADE_OK) return status;
  soft_graph *graph = ladei_soft_table_find(&rt->graph_table, (uint64_t)(uintptr_t)graph_handle);
  soft_user_object *object = ladei_soft_table_find(&rt->object_table, (uint64_t)(uintptr_t)handle);
  if (graph == NULL)
    status = stale_handle(rt, op, "graph", graph_handle);
  else if (object == NULL)
    status = stale_handle(rt, op, "user object", handle);
  else if (!ladei_soft_objects_add(&graph->objects, object))
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph_retain_user_object: no memory for one more");
  return ladei_soft_unlock_with(rt, status);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static lade_status graph_destroy(void *self, ladei_graph handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_graph_destroy);
  if (status != LADE_OK) return status;
  soft_graph *graph = ladei_soft_table_find(&rt->graph_table, (uint64_t)(uintptr_t)handle);
  if (graph == NULL) {
    status = stale_handle(rt, SOFT_OP_graph_destroy, "graph", handle);
  } else if (graph->capture != NULL) {
    status = ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED,
                         "graph_destroy: the graph is under construction");
  } else {
    ladei_soft_graph_free(rt, graph);
  }
  ladei_soft_objects_unlock(rt);
  return status;
}

/* Software devices have no graph nodes of the other kinds. */
static ladei_node_kind node_kind(soft_work_kind kind) {
  switch (kind) {
  case SOFT_WORK_COPY: return LADEI_NODE_COPY;
  case SOFT_WORK_FILL: return LADEI_NODE_FILL;
  case SOFT_WORK_WRITE: return LADEI_NODE_WRITE;
  case SOFT_WORK_HOST: return LADEI_NODE_HOST;
  case SOFT_WORK_KERNEL: return LADEI_NODE_KERNEL;
  case SOFT_WORK_EMPTY:
  case SOFT_WORK_STAMP:
  case SOFT_WORK_WAIT:
  case SOFT_WORK_CALLER:
  case SOFT_WORK_LAUNCH: break;
  }
  return LADEI_NODE_OTHER;
}

static lade_status graph_counts(void *self, ladei_graph handle, ladei_graph_counts *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_graph_counts);
  if (status != LADE_OK) return status;
  const soft_graph *graph = ladei_soft_table_find(&rt->graph_table, (uint64_t)(uintptr_t)handle);
  if (graph == NULL) {
    status = stale_handle(rt, SOFT_OP_graph_counts, "graph", handle);
  } else {
    *out = (ladei_graph_counts){.nodes = graph->count};
    for (uint32_t i = 0; i < graph->count; i++) {
      out->edges += graph->nodes[i].dependency_count;
      out->of_kind[node_kind(graph->nodes[i].work.kind)]++;
    }
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status nodes_tell(const soft_runtime *rt, soft_op op, const soft_graph *graph, const uint32_t *numbers,
                              uint32_t count, ladei_graph_node *nodes, size_t capacity, size_t *out_count) {
  for (uint32_t i = 0; i < count; i++) {
    if (numbers[i] >= SOFT_NODE_HANDLES) {
      return ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_INVALID_VALUE,
                         "%s: node %u has no handle: software devices name the first %d nodes of a graph",
                         ladei_soft_op_name(op), (unsigned)numbers[i], SOFT_NODE_HANDLES);
    }
  }
  for (uint32_t i = 0; i < count && i < capacity; i++) nodes[i] = ladei_soft_graph_node_handle(rt, graph, numbers[i]);
  *out_count = count;
  return LADE_OK;
}

static lade_status graph_node_dependencies(void *self, ladei_graph_node handle, ladei_graph_node *dependencies,
                                           size_t capacity, size_t *out_count) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_node_dependencies;
  LADEI_TRY(ladei_soft_enter_locked(rt, op));
  soft_graph *graph = NULL;
  const soft_graph_node *node = ladei_soft_graph_node_find(rt, handle, &graph);
  lade_status status = node == NULL ? ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "node",
                                                        "a node of a graph that is there", "%p", (const void *)handle)
                                    : nodes_tell(rt, op, graph, node->dependencies, node->dependency_count,
                                                 dependencies, capacity, out_count);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- memory of graphs -------------------------------------------------------------------------------------------- */

/* No graph of a software device allocates: pool_alloc is refused in captures. */
static lade_status graph_memory_get(void *self, int device, ladei_graph_memory *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_graph_memory_get);
  if (status != LADE_OK || ladei_soft_device_use(rt, SOFT_OP_graph_memory_get, device, &status) == NULL) return status;
  *out = (ladei_graph_memory){0};
  return LADE_OK;
}

static lade_status graph_memory_trim(void *self, int device) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_graph_memory_trim);
  if (status == LADE_OK) ladei_soft_device_use(rt, SOFT_OP_graph_memory_trim, device, &status);
  return status;
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

static lade_status capture_begin(void *self, const ladei_stream *resolved, ladei_capture_mode mode) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_capture_begin);
  if (status != LADE_OK) return status;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_capture_begin, resolved, &status);
  if (stream != NULL) status = ladei_soft_capture_start(rt, stream, mode);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status capture_end(void *self, const ladei_stream *resolved, ladei_graph *out_graph) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_capture_end);
  if (status != LADE_OK) return status;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_capture_end, resolved, &status);
  if (stream != NULL) status = ladei_soft_capture_finish(rt, stream, out_graph);
  ladei_soft_objects_unlock(rt);
  return status;
}

static ladei_capture_info capture_tell(const soft_runtime *rt, const soft_stream *stream) {
  const soft_capture *capture = stream->capture;
  if (capture == NULL) {
    bool implicit =
        stream->kind == LADEI_STREAM_LEGACY && ladei_soft_capture_implicit(rt, &rt->devices[stream->device]) != NULL;
    return (ladei_capture_info){.status = implicit ? LADEI_CAPTURE_IMPLICIT : LADEI_CAPTURE_NONE};
  }
  if (!capture->valid) return (ladei_capture_info){.status = LADEI_CAPTURE_INVALIDATED};
  return (ladei_capture_info){LADEI_CAPTURE_ACTIVE, capture->id, ladei_soft_graph_handle(rt, capture->graph)};
}

static lade_status stream_capture_info(void *self, const ladei_stream *resolved, ladei_capture_info *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_stream_capture_info);
  if (status != LADE_OK) return status;
  const soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_stream_capture_info, resolved, &status);
  if (stream != NULL) *out = capture_tell(rt, stream);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status capture_frontier(void *self, const ladei_stream *resolved, ladei_capture_info *out_info,
                                    ladei_graph_node *nodes, size_t capacity, size_t *out_count) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_capture_frontier;
  lade_status status = ladei_soft_enter_locked(rt, op);
  if (status != LADE_OK) return status;
  const soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  if (stream != NULL) {
    ladei_capture_info info = capture_tell(rt, stream);
    bool active = info.status == LADEI_CAPTURE_ACTIVE;
    status = nodes_tell(rt, op, active ? stream->capture->graph : NULL, stream->frontier,
                        active ? stream->frontier_count : 0, nodes, capacity, out_count);
    if (status == LADE_OK) *out_info = info;
  }
  return ladei_soft_unlock_with(rt, status);
}

/* ---- ops of capturing streams ------------------------------------------------------------------------------------ */

void ladei_soft_graph_ops(lade_runtime_ops *ops) {
  ops->capture_begin = capture_begin;
  ops->capture_end = capture_end;
  ops->graph_destroy = graph_destroy;
  ops->graph_counts = graph_counts;
  ops->graph_node_dependencies = graph_node_dependencies;
  ops->stream_capture_info = stream_capture_info;
  ops->capture_frontier = capture_frontier;
  ops->graph_memory_get = graph_memory_get;
  ops->graph_memory_trim = graph_memory_trim;
  ops->user_object_create = user_object_create;
  ops->user_object_release = user_object_release;
  ops->graph_retain_user_object = graph_retain_user_object;
}
