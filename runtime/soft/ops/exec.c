/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executable graphs: instantiation and launch. The replay is in runtime/soft/run/replay.c.
 *
 * I1  One launch of an exec runs at a time: each waits for the one submitted before it (last), on whatever stream.
 * Locks: rt->lock.
 */
#include <stdlib.h>

#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/replay.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/capture.h"
#include "runtime/soft/submit/submit.h"

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
  if (exec->nodes == NULL) return false;
  exec->count = graph->count;
  if (!dependents_fill(exec, graph)) return false;
  for (uint32_t i = 0; i < graph->count; i++) {
    if (!ladei_soft_work_clone(&graph->nodes[i].work, &exec->nodes[i].node.work)) return false;
    exec->nodes[i].node.exec = exec;
    exec->nodes[i].dependency_count = graph->nodes[i].dependency_count;
  }
  for (uint32_t i = 0; i < graph->objects.count; i++) {
    if (!ladei_soft_objects_add(&exec->objects, graph->objects.objects[i])) return false;
    graph->objects.objects[i]->references++;
  }
  return true;
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
    ladei_soft_exec_clear(rt, exec);
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
    if (exec->launches == 0) ladei_soft_exec_free(rt, exec);
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

/* ---- replay ------------------------------------------------------------------------------------------------------ */

void ladei_soft_exec_ops(lade_runtime_ops *ops) {
  ops->graph_instantiate = graph_instantiate;
  ops->graph_launch = graph_launch;
  ops->graph_exec_destroy = graph_exec_destroy;
}
