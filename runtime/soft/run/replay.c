/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of a graph: the nodes of one launch go to their engines as what they depend on ends.
 *
 *   launch at the head of its stream -> exec_begin: nodes without dependencies go to their engines
 *                                    -> each end releases its dependents -> last end finishes the launch
 *
 * I2  While a launch runs, remaining = its nodes that have not ended; a node is at an engine once its pending is 0.
 * I3  Addresses are those of the capture; which memory they lie in is found when a node starts, so that memory freed
 *     since is found out and not touched.
 * I4  An exec that the program destroyed is freed, and lets its user objects go, after its last launch.
 * Locks: rt->lock.
 */
#include "runtime/soft/run/replay.h"

#include <assert.h>
#include <stdlib.h>

#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/work.h"

void ladei_soft_exec_clear(soft_runtime *rt, soft_exec *exec) {
  for (uint32_t i = 0; exec->nodes != NULL && i < exec->count; i++) ladei_soft_work_dispose(&exec->nodes[i].node.work);
  free(exec->nodes);
  free(exec->dependents);
  ladei_soft_objects_release(rt, &exec->objects);
  exec->nodes = NULL;
  exec->dependents = NULL;
  exec->count = 0;
}

void ladei_soft_exec_free(soft_runtime *rt, soft_exec *exec) {
  ladei_soft_exec_clear(rt, exec);
  ladei_soft_table_put(&rt->exec_table, exec);
}

static void node_start(soft_runtime *rt, soft_exec_node *node) {
  soft_work *work = &node->node.work;
  soft_piece *pieces = ladei_soft_work_pieces(work);
  for (uint32_t i = 0; i < work->piece_count; i++) ladei_soft_piece_find_ranges(rt, &pieces[i]);
  ladei_soft_work_bind(work);
  ladei_soft_engine_push(rt, &node->node);
}

static void launch_finish(soft_runtime *rt, soft_exec *exec) {
  soft_stream *stream = exec->running->stream;
  exec->running = NULL;
  assert(exec->launches > 0 && exec->remaining == 0);
  exec->launches--;
  ladei_soft_stream_finish_head(rt, stream);
  if (exec->destroyed && exec->launches == 0) ladei_soft_exec_free(rt, exec);
}

void ladei_soft_exec_begin(soft_runtime *rt, soft_node *launch) {
  soft_exec *exec = launch->work.exec;
  assert(exec->running == NULL && exec->launches > 0); /* one launch at a time: I1 of exec.c */
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
    assert(dependent->pending > 0); /* I2 */
    if (--dependent->pending == 0) node_start(rt, dependent);
  }
  assert(exec->running != NULL && exec->remaining > 0); /* I2 */
  if (--exec->remaining == 0) launch_finish(rt, exec);
}
