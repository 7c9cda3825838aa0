/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of a graph: the nodes of one launch go to their engines when their dependencies have ended.
 *
 *   launch at the head of its stream -> body_begin: nodes without dependencies go to their engines
 *                                    -> each end releases its dependents -> last end finishes the launch
 *
 * I2  While a launch runs, remaining = its nodes that have not ended; a node is at an engine once its pending is 0.
 * I3  Addresses are those of the capture; their memory is looked up when a node starts, so that memory freed since is
 *     detected and not touched.
 * I4  A body that its exec no longer names (destroyed or updated) is freed, and drops its user objects, after its last
 *     launch.
 * Locks: rt->lock.
 */
#include "runtime/soft/run/replay.h"

#include <assert.h>
#include <stdlib.h>

#include "runtime/soft/run/objects.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/address.h"

void ladei_soft_body_free(soft_runtime *rt, soft_body *body) {
  assert(body->launches == 0 && body->running == NULL); /* I4 */
  *body->place = body->next;
  if (body->next != NULL) body->next->place = body->place;
  for (uint32_t i = 0; i < body->count; i++) ladei_soft_work_dispose(&body->nodes[i].node.work);
  free(body->nodes);
  free(body->dependents);
  ladei_soft_memory_uncharge(&rt->devices[body->device], body->charged);
  if (body->late != NULL)
    ladei_soft_late_objects_end(rt, body->late, &body->objects, body->launched);
  else
    ladei_soft_objects_release(rt, &body->objects);
  free(body);
}

void ladei_soft_body_retire(soft_runtime *rt, soft_body *body) {
  assert(!body->retired);
  body->retired = true;
  if (body->launched) ladei_soft_late_objects_count(&body->objects);
  if (body->launches == 0) ladei_soft_body_free(rt, body);
}

static void node_start(soft_runtime *rt, soft_exec_node *node) {
  soft_work *work = &node->node.work;
  soft_piece *pieces = ladei_soft_work_pieces(work);
  for (uint32_t i = 0; i < work->piece_count; i++) ladei_soft_piece_find_ranges(rt, &pieces[i]);
  ladei_soft_work_bind(work);
  ladei_soft_engine_push(rt, &node->node);
}

static void launch_finish(soft_runtime *rt, soft_body *body) {
  soft_stream *stream = body->running->stream;
  body->running = NULL;
  assert(body->launches > 0 && body->remaining == 0);
  body->launches--;
  ladei_soft_stream_finish_head(rt, stream);
  if (body->retired && body->launches == 0) ladei_soft_body_free(rt, body);
}

void ladei_soft_body_begin(soft_runtime *rt, soft_node *launch) {
  soft_body *body = launch->work.body;
  assert(body->running == NULL && body->launches > 0); /* one launch at a time: I1 of exec.c */
  body->running = launch;
  body->remaining = body->count;
  for (uint32_t i = 0; i < body->count; i++) body->nodes[i].pending = body->nodes[i].dependency_count;
  for (uint32_t i = 0; i < body->count; i++)
    if (body->nodes[i].dependency_count == 0) node_start(rt, &body->nodes[i]);
  if (body->count == 0) launch_finish(rt, body);
}

void ladei_soft_body_node_done(soft_runtime *rt, soft_body *body, soft_node *node) {
  const soft_exec_node *done = (const soft_exec_node *)node;
  for (uint32_t i = 0; i < done->dependent_count; i++) {
    soft_exec_node *dependent = &body->nodes[body->dependents[done->first_dependent + i]];
    assert(dependent->pending > 0); /* I2 */
    if (--dependent->pending == 0) node_start(rt, dependent);
  }
  assert(body->running != NULL && body->remaining > 0); /* I2 */
  if (--body->remaining == 0) launch_finish(rt, body);
}
