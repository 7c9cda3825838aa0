/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of work: nodes, streams, engines (model in queue.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_RUN_QUEUE_H
#define LADE_RUNTIME_SOFT_RUN_QUEUE_H

#include <assert.h>

#include "runtime/soft/state/model.h"

soft_node *ladei_soft_node_new(soft_runtime *rt);
void ladei_soft_node_free(soft_runtime *rt, soft_node *node);
void ladei_soft_nodes_close(soft_runtime *rt);

/* The only transition from queued to ready or running (I3 of model.h), and back. */
static inline void ladei_soft_node_started_set(soft_node *node, bool started) {
  assert(node->started != started);
  node->started = started;
}

/* Queues a node after the stream's work and gives it its number. The caller runs ladei_soft_run_ready() afterwards. */
void ladei_soft_stream_push(soft_runtime *rt, soft_stream *stream, soft_node *node);
void ladei_soft_stream_make_ready(soft_runtime *rt, soft_stream *stream);

/* The head of the stream has ended. */
void ladei_soft_stream_finish_head(soft_runtime *rt, soft_stream *stream);
void ladei_soft_engine_push(soft_runtime *rt, soft_node *node);

/* Takes the engine's next piece of work that may run. NULL: none. */
soft_node *ladei_soft_engine_take(soft_runtime *rt, soft_engine *engine);

/* Runs `function` on the host engine of device 0, after no other work. Takes the node. */
void ladei_soft_post(soft_runtime *rt, soft_node *node, ladei_host_function function, void *user);

#endif /* LADE_RUNTIME_SOFT_RUN_QUEUE_H */
