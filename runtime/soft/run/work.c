/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work: nodes, stream queues, engines; what both clocks do alike.
 *
 *   push -> [stream queue] -> head and not held -> step:  wait, stamp, empty       done on the spot
 *                                                         copy, fill, write, host  engine queue -> taken -> finished
 *                                                         launch                   exec_begin -> its nodes to engines
 *                                                         caller                   the thread that submitted it
 *
 * I1  A stream is stepped only from rt->ready_streams, so chains of waits need no recursion.
 * I2  A started node is out of its stream's hands until it is finished; a held stream starts none, and an engine that
 *     finds a node of a held stream in its queue gives it back.
 * I3  Work is bound while it may still touch its ranges: each range counts it in `inflight`.
 * Locks: rt->lock, but for perform.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/soft/state/model.h"

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

/* ---- work -------------------------------------------------------------------------------------------------------- */

void ladei_soft_work_bind(soft_work *work) {
  soft_piece *pieces = ladei_soft_work_pieces(work);
  for (uint32_t i = 0; i < work->piece_count; i++) {
    if (pieces[i].dst_range != NULL) pieces[i].dst_range->inflight++;
    if (pieces[i].src_range != NULL) pieces[i].src_range->inflight++;
  }
  work->bound = true;
}

static void range_unbind(soft_runtime *rt, soft_range *range, bool runs) {
  if (range == NULL) return;
  if (runs) range->running--;
  ladei_soft_range_unpin(rt, range);
}

void ladei_soft_work_unbind(soft_runtime *rt, soft_work *work) {
  if (!work->bound) return;
  soft_piece *pieces = ladei_soft_work_pieces(work);
  for (uint32_t i = 0; i < work->piece_count; i++) {
    range_unbind(rt, pieces[i].dst_range, work->runs);
    range_unbind(rt, pieces[i].src_range, work->runs);
  }
  if (work->runs && !rt->virtual_time) pthread_cond_broadcast(&rt->idle_cond);
  work->bound = work->runs = false;
}

/* Whether one side of a piece is still there; counts a finding where it is not. */
static bool side_is_live(soft_runtime *rt, const soft_range *range, bool tracked, const void *address, size_t bytes) {
  if (range == NULL && !tracked) return true;
  bool live = range != NULL && range->live;
  if (live && range->kind == SOFT_RANGE_RESERVED) live = ladei_soft_vm_accessible(rt, address, bytes, -1);
  if (!live) {
    ladei_soft_finding(rt, &rt->findings.freed_memory_used, "%zu bytes at %p were freed before the work on them ended",
                       bytes, address);
  }
  return live;
}

void ladei_soft_work_start(soft_runtime *rt, soft_work *work) {
  bool moves = work->detached || !rt->devices[work->device].losing;
  soft_piece *pieces = ladei_soft_work_pieces(work);
  for (uint32_t i = 0; i < work->piece_count && moves; i++) {
    const soft_piece *piece = &pieces[i];
    bool live = side_is_live(rt, piece->dst_range, piece->dst_tracked, piece->dst, piece->bytes);
    live = side_is_live(rt, piece->src_range, piece->src_tracked, piece->src, piece->bytes) && live;
    bool bytes = (piece->dst_range == NULL || piece->dst_range->has_bytes) &&
                 (piece->src_range == NULL || piece->src_range->has_bytes);
    moves = live && bytes;
  }
  work->moves = moves;
  work->runs = work->bound && !rt->virtual_time;
  for (uint32_t i = 0; i < work->piece_count && work->runs; i++) {
    if (pieces[i].dst_range != NULL) pieces[i].dst_range->running++;
    if (pieces[i].src_range != NULL) pieces[i].src_range->running++;
  }
}

static void piece_move(const soft_piece *piece) {
  bool to_device = piece->dst_range != NULL && !piece->dst_range->host;
  if (to_device)
    ladei_soft_stream_bytes(piece->dst, piece->src, piece->bytes);
  else
    memmove(piece->dst, piece->src, piece->bytes);
}

void ladei_soft_work_perform(soft_runtime *rt, soft_work *work) {
  if (!work->moves) return;
  soft_piece *pieces = ladei_soft_work_pieces(work);
  switch (work->kind) {
  case SOFT_WORK_COPY:
    for (uint32_t i = 0; i < work->piece_count; i++) piece_move(&pieces[i]);
    break;
  case SOFT_WORK_FILL: memset(work->piece.dst, (int)work->value, work->piece.bytes); break;
  case SOFT_WORK_WRITE: /* little-endian, as the devices are */
    memcpy(work->piece.dst, &work->value, work->piece.bytes);
    break;
  case SOFT_WORK_HOST: ladei_soft_call_out(rt, work->function, work->user); break;
  case SOFT_WORK_EMPTY:
  case SOFT_WORK_STAMP:
  case SOFT_WORK_WAIT:
  case SOFT_WORK_CALLER:
  case SOFT_WORK_LAUNCH: break;
  }
}

void ladei_soft_work_dispose(soft_work *work) {
  free(work->pieces);
  free(work->staged);
  work->pieces = NULL;
  work->staged = NULL;
}

static uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_s) {
  unsigned __int128 scaled = (unsigned __int128)bytes * 1000000000u;
  return (uint64_t)((scaled + bytes_per_s - 1) / bytes_per_s);
}

uint64_t ladei_soft_work_duration_ns(const soft_runtime *rt, const soft_work *work) {
  const lade_soft_device *device = &rt->devices[work->device].description;
  uint64_t bytes = 0;
  const soft_piece *pieces = work->pieces != NULL ? work->pieces : &work->piece;
  for (uint32_t i = 0; i < work->piece_count; i++) bytes += pieces[i].bytes;
  if (work->kind == SOFT_WORK_FILL) return transfer_ns(bytes, device->memory_bytes_per_s);
  if (work->kind != SOFT_WORK_COPY) return 0;
  uint64_t rate = device->link_bytes_per_s;
  if (work->engine == SOFT_ENGINE_COMPUTE) rate = device->memory_bytes_per_s;
  if (work->engine == SOFT_ENGINE_PEER) rate = device->peer_bytes_per_s;
  return device->copy_launch_ns + transfer_ns(bytes, rate);
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

void ladei_soft_engine_push(soft_runtime *rt, soft_node *node) {
  soft_device *device = &rt->devices[node->work.device];
  soft_engine_kind kind = node->work.engine;
  if (kind == SOFT_ENGINE_D2H && device->description.half_duplex) kind = SOFT_ENGINE_H2D;
  soft_engine *engine = &device->engines[kind];
  node->engine_next = NULL;
  if (engine->tail != NULL)
    engine->tail->engine_next = node;
  else
    engine->head = node;
  engine->tail = node;
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
  soft_node *node;
  while ((node = engine_pop(engine)) != NULL) {
    if (node->stream == NULL || !node->stream->held) break;
    node->started = false; /* the stream starts it again when it is released */
  }
  engine->current = node;
  return node;
}

/*
 * A host function or a written value may have told the program that everything before it has finished. (In a graph also
 * what lies before it there, which has the number of the launch.)
 */
static void host_learns(soft_stream *stream, uint64_t number, soft_work_kind kind) {
  if (kind == SOFT_WORK_HOST || kind == SOFT_WORK_WRITE) ladei_soft_observe(stream, number);
}

void ladei_soft_engine_finish(soft_runtime *rt, soft_engine *engine) {
  soft_node *node = engine->current;
  soft_work_kind kind = node->work.kind;
  engine->current = NULL;
  ladei_soft_work_unbind(rt, &node->work);
  if (node->exec != NULL) {
    host_learns(node->exec->running->stream, node->exec->running->number, kind);
    ladei_soft_exec_node_done(rt, node->exec, node);
  } else if (node->stream != NULL) {
    soft_stream *stream = node->stream;
    uint64_t number = node->number;
    ladei_soft_stream_finish_head(rt, stream);
    host_learns(stream, number, kind);
  } else {
    ladei_soft_work_dispose(&node->work);
    ladei_soft_node_free(rt, node);
  }
}

void ladei_soft_post(soft_runtime *rt, soft_node *node, ladei_host_function function, void *user) {
  node->work = (soft_work){.kind = SOFT_WORK_HOST, .engine = SOFT_ENGINE_HOST, .detached = true};
  node->work.function = function;
  node->work.user = user;
  ladei_soft_engine_push(rt, node);
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

/* Streams whose awaited number has come go on. */
static void waiters_wake(soft_runtime *rt, soft_stream *stream, uint64_t completed) {
  soft_stream **place = &stream->waiters;
  while (*place != NULL) {
    soft_stream *waiter = *place;
    if (waiter->head->work.point.number <= completed) {
      *place = waiter->waiter_next;
      waiter->head->started = false;
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
  stream->head = node->next;
  if (stream->head == NULL) stream->tail = NULL;
  ladei_soft_work_dispose(&node->work);
  ladei_soft_node_free(rt, node);
  atomic_store_explicit(&stream->completed, number, memory_order_release);
  if (stream->head != NULL) ladei_soft_stream_make_ready(rt, stream);
  if (stream->waiters != NULL) waiters_wake(rt, stream, number);
  if (stream->host_waiters != NULL) host_waiters_wake(stream, number);
}

/* Starts a head that waits for another stream. True: the wait is over. */
static bool wait_start(soft_stream *stream, soft_node *node) {
  soft_stream *awaited = node->work.point.stream;
  if (atomic_load_explicit(&awaited->completed, memory_order_acquire) >= node->work.point.number) return true;
  node->started = true;
  stream->waiter_next = awaited->waiters;
  awaited->waiters = stream;
  return false;
}

static void stamp(soft_runtime *rt, const soft_work *work) {
  if (atomic_load(&work->event->word) != work->event_word) return; /* recorded anew, or another event by now */
  work->event->time_ns = rt->clock->now_ns(rt);
  work->event->time_word = work->event_word;
}

/* Starts the stream's head. True: it is finished already. */
static bool head_start(soft_runtime *rt, soft_stream *stream, soft_node *node) {
  switch (node->work.kind) {
  case SOFT_WORK_EMPTY: return true;
  case SOFT_WORK_STAMP: stamp(rt, &node->work); return true;
  case SOFT_WORK_WAIT: return wait_start(stream, node);
  case SOFT_WORK_CALLER:
    node->started = true;
    node->work.caller->ready = true;
    pthread_cond_signal(&node->work.caller->cond);
    return false;
  case SOFT_WORK_LAUNCH:
    node->started = true;
    ladei_soft_exec_begin(rt, node);
    return false;
  case SOFT_WORK_COPY:
  case SOFT_WORK_FILL:
  case SOFT_WORK_WRITE:
  case SOFT_WORK_HOST:
    node->started = true;
    ladei_soft_engine_push(rt, node);
    return false;
  }
  return true;
}

void ladei_soft_run_ready(soft_runtime *rt) {
  if (rt->running_ready) return;
  rt->running_ready = true;
  while (rt->ready_streams != NULL) {
    soft_stream *stream = rt->ready_streams;
    rt->ready_streams = stream->ready_next;
    if (rt->ready_streams == NULL) rt->ready_streams_tail = NULL;
    stream->ready = false;
    while (stream->head != NULL && !stream->held && !stream->head->started) {
      if (!head_start(rt, stream, stream->head)) break;
      ladei_soft_stream_finish_head(rt, stream);
    }
  }
  rt->running_ready = false;
}

/* Under the lock, let go meanwhile: until what the engines have in hand is over. */
static void engines_settle(soft_runtime *rt, const soft_device *device) {
  for (int i = 0; i < SOFT_ENGINE_COUNT; i++)
    while (device->engines[i].moving) pthread_cond_wait(&rt->idle_cond, &rt->lock);
}

/* From the first LADE_ERR_DEVICE_LOST on, memory that was in use by the device belongs to the host alone. */
void ladei_soft_device_drop(soft_runtime *rt, soft_device *device) {
  device->losing = true;
  engines_settle(rt, device);
  atomic_store_explicit(&device->lost, true, memory_order_release);
  device->lose_at_ns = UINT64_MAX;
  for (uint32_t i = 1; i < rt->stream_count; i++) {
    soft_stream *stream = ladei_soft_stream_by_index(rt, i);
    if (stream->device != device->ordinal) continue;
    stream->held = false;
    ladei_soft_stream_make_ready(rt, stream);
  }
}
