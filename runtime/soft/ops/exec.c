/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executable graphs: instantiation, launch, replay.
 *
 *   launch at the head of its stream -> exec_begin: nodes without dependencies go to their engines
 *                                    -> each end releases its dependents -> last end finishes the launch
 *
 * I1  One launch of an exec runs at a time: each waits for the one submitted before it (last), on whatever stream.
 * I2  While a launch runs, remaining = its nodes that have not ended; a node is at an engine once its pending is 0.
 * I3  Addresses are those of the capture; which memory they lie in is found when a node starts, so that memory freed
 *     since is found out and not touched.
 * I4  An exec that the program destroyed is freed, and lets its user objects go, after its last launch.
 * Locks: rt->lock.
 */
#include <stdlib.h>

#include "runtime/soft/state/model.h"

static lade_status no_memory(const char *op) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the executable graph", op);
}

/* ---- instantiation ----------------------------------------------------------------------------------------------- */

/* Turns the nodes' dependencies round. False: no memory. */
static bool dependents_fill(soft_exec *exec, const soft_graph *graph) {
  size_t total = 0;
  for (uint32_t i = 0; i < graph->count; i++) total += graph->nodes[i].dependency_count;
  exec->dependents = calloc(total + 1, sizeof *exec->dependents);
  if (exec->dependents == NULL) return false;
  for (uint32_t i = 0; i < graph->count; i++)
    for (uint32_t j = 0; j < graph->nodes[i].dependency_count; j++)
      exec->nodes[graph->nodes[i].dependencies[j]].dependent_count++;
  uint32_t next = 0;
  for (uint32_t i = 0; i < graph->count; i++) {
    exec->nodes[i].first_dependent = next;
    next += exec->nodes[i].dependent_count;
    exec->nodes[i].dependent_count = 0;
  }
  for (uint32_t i = 0; i < graph->count; i++) {
    for (uint32_t j = 0; j < graph->nodes[i].dependency_count; j++) {
      soft_exec_node *before = &exec->nodes[graph->nodes[i].dependencies[j]];
      exec->dependents[before->first_dependent + before->dependent_count++] = i;
    }
  }
  return true;
}

static bool exec_fill(soft_exec *exec, const soft_graph *graph) {
  exec->nodes = calloc((size_t)graph->count + 1, sizeof *exec->nodes);
  if (exec->nodes == NULL || !dependents_fill(exec, graph)) return false;
  exec->count = graph->count;
  for (uint32_t i = 0; i < graph->count; i++) {
    exec->nodes[i].node.work = graph->nodes[i].work;
    exec->nodes[i].node.exec = exec;
    exec->nodes[i].dependency_count = graph->nodes[i].dependency_count;
  }
  for (uint32_t i = 0; i < graph->objects.count; i++) {
    if (!ladei_soft_objects_add(&exec->objects, graph->objects.objects[i])) return false;
    graph->objects.objects[i]->references++;
  }
  return true;
}

static void exec_clear(soft_runtime *rt, soft_exec *exec) {
  free(exec->nodes);
  free(exec->dependents);
  ladei_soft_objects_release(rt, &exec->objects);
  exec->nodes = NULL;
  exec->dependents = NULL;
}

static soft_exec *exec_new(soft_runtime *rt, const soft_graph *graph) {
  soft_exec *exec = ladei_soft_table_take(&rt->exec_table);
  if (exec == NULL) return NULL;
  exec->nodes = NULL;
  exec->dependents = NULL;
  exec->objects = (soft_object_list){NULL, 0, 0};
  exec->remaining = exec->launches = exec->count = 0;
  exec->destroyed = false;
  exec->running = NULL;
  exec->last = (soft_point){NULL, 0};
  if (!exec_fill(exec, graph)) {
    exec_clear(rt, exec);
    ladei_soft_table_put(&rt->exec_table, exec);
    return NULL;
  }
  ladei_soft_table_publish(&rt->exec_table, exec);
  return exec;
}

static lade_status graph_instantiate(void *self, ladei_graph handle, ladei_graph_exec *out_exec) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_instantiate;
  lade_status status = ladei_soft_enter(rt, op);
  if (status != LADE_OK) return status;
  ladei_soft_lock(rt);
  const soft_graph *graph = ladei_soft_table_find(&rt->graph_table, (uint64_t)(uintptr_t)handle);
  if (graph == NULL) {
    status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "graph", (uint64_t)(uintptr_t)handle);
  } else if (graph->capture != NULL) {
    status = ladei_error(LADE_ERR_CAPTURE, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED,
                         "graph_instantiate: the graph is under construction");
  } else if ((status = ladei_soft_unsafe(rt, "graph_instantiate")) == LADE_OK) {
    const soft_exec *exec = exec_new(rt, graph);
    if (exec == NULL) status = no_memory("graph_instantiate");
    if (exec != NULL) *out_exec = (ladei_graph_exec)(uintptr_t)ladei_soft_table_handle(&rt->exec_table, exec);
  }
  ladei_soft_unlock(rt);
  return status;
}

static void exec_free(soft_runtime *rt, soft_exec *exec) {
  exec_clear(rt, exec);
  ladei_soft_table_put(&rt->exec_table, exec);
}

static lade_status graph_exec_destroy(void *self, ladei_graph_exec handle) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_exec_destroy;
  lade_status status = ladei_soft_enter(rt, op);
  if (status != LADE_OK) return status;
  ladei_soft_lock(rt);
  soft_exec *exec = ladei_soft_table_find(&rt->exec_table, (uint64_t)(uintptr_t)handle);
  if (exec == NULL) {
    status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "executable graph", (uint64_t)(uintptr_t)handle);
  } else if ((status = ladei_soft_unsafe(rt, "graph_exec_destroy")) == LADE_OK) {
    ladei_soft_table_hide(&rt->exec_table, exec);
    exec->destroyed = true;
    if (exec->launches == 0) exec_free(rt, exec);
  }
  ladei_soft_unlock(rt);
  return status;
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

static lade_status launch_locked(soft_runtime *rt, soft_stream *stream, soft_exec *exec) {
  const soft_op op = SOFT_OP_graph_launch;
  const soft_point *last = &exec->last;
  if (last->stream != NULL && last->stream != stream) {
    lade_status status = ladei_soft_stream_wait_point(rt, op, stream, last->stream, last->number);
    if (status != LADE_OK) return status;
  }
  soft_work work = {.kind = SOFT_WORK_LAUNCH, .device = stream->device};
  work.exec = exec;
  exec->launches++;
  lade_status status = ladei_soft_submit(rt, op, stream, &work);
  if (status != LADE_OK)
    exec->launches--;
  else
    exec->last = (soft_point){stream, atomic_load(&stream->submitted)};
  return status;
}

static lade_status graph_launch(void *self, ladei_graph_exec handle, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_graph_launch;
  lade_status status = ladei_soft_enter(rt, op);
  if (status != LADE_OK) return status;
  ladei_soft_lock(rt);
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  soft_exec *exec = ladei_soft_table_find(&rt->exec_table, (uint64_t)(uintptr_t)handle);
  if (stream != NULL && exec == NULL) {
    status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "executable graph", (uint64_t)(uintptr_t)handle);
  } else if (stream != NULL && stream->capture != NULL) {
    status = ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                         "graph_launch: software devices capture no launches of graphs");
  } else if (stream != NULL) {
    status = launch_locked(rt, stream, exec);
  }
  ladei_soft_unlock(rt);
  return status;
}

static soft_range *range_covering(const soft_runtime *rt, bool tracked, const void *address, size_t bytes) {
  soft_range *range = tracked ? ladei_soft_range_at(rt, address) : NULL;
  return range != NULL && ladei_soft_range_covers(range, address, bytes) ? range : NULL;
}

static void piece_find_ranges(const soft_runtime *rt, soft_piece *piece) {
  piece->dst_range = range_covering(rt, piece->dst_tracked, piece->dst, piece->bytes);
  piece->src_range = range_covering(rt, piece->src_tracked, piece->src, piece->bytes);
}

void ladei_soft_exec_hazards(soft_runtime *rt, soft_stream *stream, uint64_t number, const soft_exec *exec) {
  for (uint32_t i = 0; i < exec->count; i++) {
    soft_work work = exec->nodes[i].node.work;
    if (work.piece_count != 0) piece_find_ranges(rt, &work.piece);
    ladei_soft_hazard_work(rt, stream, number, &work);
  }
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

static void node_start(soft_runtime *rt, soft_exec_node *node) {
  soft_work *work = &node->node.work;
  if (work->piece_count != 0) piece_find_ranges(rt, &work->piece);
  ladei_soft_work_bind(work);
  ladei_soft_engine_push(rt, &node->node);
}

static void launch_finish(soft_runtime *rt, soft_exec *exec) {
  soft_stream *stream = exec->running->stream;
  exec->running = NULL;
  exec->launches--;
  ladei_soft_stream_finish_head(rt, stream);
  if (exec->destroyed && exec->launches == 0) exec_free(rt, exec);
}

void ladei_soft_exec_begin(soft_runtime *rt, soft_node *launch) {
  soft_exec *exec = launch->work.exec;
  exec->running = launch;
  exec->remaining = exec->count;
  for (uint32_t i = 0; i < exec->count; i++) exec->nodes[i].pending = exec->nodes[i].dependency_count;
  for (uint32_t i = 0; i < exec->count; i++)
    if (exec->nodes[i].dependency_count == 0) node_start(rt, &exec->nodes[i]);
  if (exec->count == 0) launch_finish(rt, exec);
}

void ladei_soft_exec_node_done(soft_runtime *rt, soft_exec *exec, soft_node *node) {
  const soft_exec_node *done = (const soft_exec_node *)node;
  for (uint32_t i = 0; i < done->dependent_count; i++) {
    soft_exec_node *dependent = &exec->nodes[exec->dependents[done->first_dependent + i]];
    if (--dependent->pending == 0) node_start(rt, dependent);
  }
  if (--exec->remaining == 0) launch_finish(rt, exec);
}

void ladei_soft_exec_ops(lade_runtime_ops *ops) {
  ops->graph_instantiate = graph_instantiate;
  ops->graph_launch = graph_launch;
  ops->graph_exec_destroy = graph_exec_destroy;
}
