/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of work: a stream's, in the order of submission, and an engine's, in the order of readiness.
 *
 *   push -> [stream queue] -> head and not held: ready -> run.c starts it -> [engine queue] -> taken -> finish_head
 *
 * I1  Streams that may go on are in rt->ready_streams: finishing a head starts nothing, so chains of waits need no
 *     recursion.
 * I2  A started node is out of its stream's control until it is finished; a held stream starts none, and an engine that
 *     finds a held stream's node in its queue gives it back.
 * Locks: rt->lock.
 */
#include "runtime/soft/run/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/soft/run/work.h"

enum { NODES_PER_SLAB = 64 };

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static bool slab_add(soft_runtime *rt) {
  soft_node **slabs = realloc(rt->node_slabs, (rt->node_slab_count + 1) * sizeof(soft_node *));
  if (slabs == NULL) return false;
  rt->node_slabs = slabs;
  soft_node *slab = calloc(NODES_PER_SLAB, sizeof *slab);
  if (slab == NULL) return false;
  slabs[rt->node_slab_count++] = slab;
  for (int i = 0; i < NODES_PER_SLAB; i++) ladei_soft_node_free(rt, &slab[i]);
  return true;
}

soft_node *ladei_soft_node_new(soft_runtime *rt) {
  if (rt->free_nodes == NULL && !slab_add(rt)) return NULL;
  soft_node *node = rt->free_nodes;
  rt->free_nodes = node->next;
  return node;
}

void ladei_soft_node_free(soft_runtime *rt, soft_node *node) {
  memset(node, 0, sizeof *node);
  node->next = rt->free_nodes;
  rt->free_nodes = node;
}

void ladei_soft_nodes_close(soft_runtime *rt) {
  for (size_t i = 0; i < rt->node_slab_count; i++) free(rt->node_slabs[i]);
  free(rt->node_slabs);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

void ladei_soft_stream_make_ready(soft_runtime *rt, soft_stream *stream) {
  if (stream->ready) return;
  stream->ready = true;
  stream->ready_next = NULL;
  if (rt->ready_streams_tail != NULL)
    rt->ready_streams_tail->ready_next = stream;
  else
    rt->ready_streams = stream;
  rt->ready_streams_tail = stream;
}

void ladei_soft_stream_push(soft_runtime *rt, soft_stream *stream, soft_node *node) {
  uint64_t number = atomic_load_explicit(&stream->submitted, memory_order_relaxed) + 1;
  assert(!node->started && node->body == NULL && (stream->tail == NULL || stream->tail->number + 1 == number));
  assert(stream->capture == NULL); /* a capturing stream queues nothing */
  node->stream = stream;
  node->number = number;
  node->next = NULL;
  if (stream->tail != NULL) {
    stream->tail->next = node;
  } else {
    stream->head = node;
    ladei_soft_stream_make_ready(rt, stream);
  }
  stream->tail = node;
  atomic_store_explicit(&stream->submitted, number, memory_order_release);
}

/* Streams that waited for this number go on. */
static void waiters_wake(soft_runtime *rt, soft_stream *stream, uint64_t completed) {
  soft_stream **place = &stream->waiters;
  while (*place != NULL) {
    soft_stream *waiter = *place;
    if (waiter->head->work.point.number <= completed) {
      *place = waiter->waiter_next;
      ladei_soft_node_started_set(waiter->head, false);
      ladei_soft_stream_make_ready(rt, waiter);
    } else {
      place = &waiter->waiter_next;
    }
  }
}

static void host_waiters_wake(soft_stream *stream, uint64_t completed) {
  for (soft_host_waiter *waiter = stream->host_waiters; waiter != NULL; waiter = waiter->next)
    if (waiter->number <= completed) pthread_cond_signal(&waiter->cond);
}

void ladei_soft_stream_finish_head(soft_runtime *rt, soft_stream *stream) {
  soft_node *node = stream->head;
  uint64_t number = node->number;
  assert(number == atomic_load_explicit(&stream->completed, memory_order_relaxed) + 1); /* I1 of model.h */
  assert(number <= atomic_load_explicit(&stream->submitted, memory_order_relaxed));
  stream->head = node->next;
  if (stream->head == NULL) stream->tail = NULL;
  ladei_soft_work_dispose(&node->work);
  ladei_soft_node_free(rt, node);
  atomic_store_explicit(&stream->completed, number, memory_order_release);
  if (stream->head != NULL) ladei_soft_stream_make_ready(rt, stream);
  if (stream->waiters != NULL) waiters_wake(rt, stream, number);
  if (stream->host_waiters != NULL) host_waiters_wake(stream, number);
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

/* CUDA's driver on an H200: copies of 4 and 16 KiB to the device do not wait for 1 GiB of another stream; of 32 KiB,
 * and of 4 KiB to the host, they do. Batches were not tested. */
static bool goes_by(const soft_work *work) {
  enum { GOES_BY_BYTES = 16 << 10 };
  return work->kind == SOFT_WORK_COPY && work->engine == SOFT_ENGINE_H2D && work->pieces == NULL &&
         work->piece.bytes <= GOES_BY_BYTES;
}

void ladei_soft_engine_push(soft_runtime *rt, soft_node *node) {
  soft_device *device = &rt->devices[node->work.device];
  soft_engine_kind kind =
      !device->description.half_duplex && goes_by(&node->work) ? SOFT_ENGINE_SMALL : node->work.engine;
  if (kind == SOFT_ENGINE_D2H && device->description.half_duplex) kind = SOFT_ENGINE_H2D;
  soft_engine *engine = &device->engines[kind];
  assert(node->started || node->stream == NULL); /* I3 of model.h: out of its stream's control */
  bool first = device->description.engine_stays && node->stream != NULL && node->stream == engine->last_stream;
  node->engine_next = first ? engine->head : NULL;
  if (first || engine->head == NULL)
    engine->head = node;
  else
    engine->tail->engine_next = node;
  if (!first || engine->tail == NULL) engine->tail = node;
  atomic_fetch_add_explicit(&engine->queued, 1, memory_order_relaxed);
  rt->clock->engine_kick(rt, engine);
}

static soft_node *engine_pop(soft_engine *engine) {
  soft_node *node = engine->head;
  if (node == NULL) return NULL;
  engine->head = node->engine_next;
  if (engine->head == NULL) engine->tail = NULL;
  atomic_fetch_sub_explicit(&engine->queued, 1, memory_order_relaxed);
  return node;
}

soft_node *ladei_soft_engine_take(soft_runtime *rt, soft_engine *engine) {
  (void)rt;
  assert(engine->current == NULL); /* one piece of work at a time */
  soft_node *node;
  while ((node = engine_pop(engine)) != NULL) {
    if (node->stream == NULL || !node->stream->held) break;
    ladei_soft_node_started_set(node, false); /* the stream, once released, starts it again */
  }
  engine->current = node;
  engine->last_stream = node != NULL ? node->stream : engine->last_stream;
  return node;
}

void ladei_soft_post(soft_runtime *rt, soft_node *node, ladei_host_function function, void *user) {
  node->work = (soft_work){.kind = SOFT_WORK_HOST, .engine = SOFT_ENGINE_HOST, .detached = true};
  node->work.function = function;
  node->work.user = user;
  ladei_soft_engine_push(rt, node);
}
