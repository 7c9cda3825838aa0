/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies, fills, host functions, written values.
 *
 *   op -> work -> check memory (direction, bounds, life) -> submit
 *
 * I1  When a piece is queued, its device side is in one live range, or in mapped and accessible virtual memory. A host
 *     side that begins in a pinned range ends in it; one that begins elsewhere is pageable, whatever it reaches into,
 *     as in CUDA's driver.
 * I2  Pageable sources are copied at the call, so that they may be reused when it returns. A pageable destination is
 *     written when the copy runs, as hardware may do.
 * Locks: rt->lock, except in copy_sync while the calling thread moves the bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/ops/reach.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/mappings.h"
#include "runtime/soft/state/order.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/access.h"
#include "runtime/soft/submit/capture.h"
#include "runtime/soft/submit/submit.h"

/* ---- memory of a piece ------------------------------------------------------------------------------------------- */

/*
 * The range of device memory that holds these bytes and that a copy of `device` reaches; NULL if there is none. Memory
 * of device_alloc is reached from every device, over the host if needed; mapped memory and pool memory are not.
 */
static soft_range *device_side(soft_runtime *rt, const void *address, size_t bytes, int device) {
  soft_range *range = ladei_soft_range_at(rt, address);
  if (range == NULL || range->host || !ladei_soft_range_covers(range, address, bytes)) return NULL;
  return range->kind == SOFT_RANGE_DEVICE || ladei_soft_range_accessible(rt, range, address, bytes, device) ? range
                                                                                                            : NULL;
}

static bool between_devices(const soft_runtime *rt, const soft_piece *piece) {
  return ladei_soft_memory_device(rt, piece->dst_range, piece->dst) !=
         ladei_soft_memory_device(rt, piece->src_range, piece->src);
}

static bool host_side(soft_runtime *rt, const void *address, size_t bytes, soft_range **out_range) {
  soft_range *range = ladei_soft_range_at(rt, address);
  *out_range = range;
  if (range == NULL) return !ladei_soft_address_was_used(rt, address);
  return range->host && ladei_soft_range_covers(range, address, bytes);
}

static bool piece_find_side(soft_runtime *rt, const void *address, size_t bytes, bool device_memory, int device,
                            soft_range **out_range) {
  if (!device_memory) return host_side(rt, address, bytes, out_range);
  *out_range = device_side(rt, address, bytes, device);
  return *out_range != NULL;
}

static bool writes_device(ladei_copy_direction direction) {
  return direction == LADEI_COPY_H2D || direction == LADEI_COPY_D2D;
}

static bool reads_device(ladei_copy_direction direction) {
  return direction == LADEI_COPY_D2H || direction == LADEI_COPY_D2D;
}

static lade_status piece_find_memory(soft_runtime *rt, soft_op op, ladei_copy_direction direction, int device,
                                     soft_piece *piece) {
  if (!piece_find_side(rt, piece->dst, piece->bytes, writes_device(direction), device, &piece->dst_range))
    return ladei_soft_bad_memory(rt, op, piece->dst, piece->bytes);
  if (!piece_find_side(rt, piece->src, piece->bytes, reads_device(direction), device, &piece->src_range))
    return ladei_soft_bad_memory(rt, op, piece->src, piece->bytes);
  return LADE_OK;
}

static lade_status copy_arguments(soft_op op, ladei_copy_direction direction, const soft_piece *piece) {
  const int native = LADEI_SOFT_NATIVE_INVALID_VALUE;
  if ((unsigned)direction > LADEI_COPY_H2H)
    return ladei_soft_refuse(op, native, "direction", "a ladei_copy_direction", "%d", (int)direction);
  if (piece->bytes == 0 || piece->bytes >= LADEI_SIZE_LIMIT)
    return ladei_soft_refuse(op, native, "bytes", "1 to 2^60 - 1", "%zu", piece->bytes);
  if (piece->dst == NULL || piece->src == NULL)
    return ladei_soft_refuse(op, native, piece->dst == NULL ? "dst" : "src", "an address", "NULL");
  return LADE_OK;
}

static soft_engine_kind engine_of(ladei_copy_direction direction) {
  switch (direction) {
  case LADEI_COPY_H2D: return SOFT_ENGINE_H2D;
  case LADEI_COPY_D2H: return SOFT_ENGINE_D2H;
  case LADEI_COPY_D2D: return SOFT_ENGINE_COMPUTE;
  case LADEI_COPY_H2H: break;
  }
  return SOFT_ENGINE_HOST;
}

static bool piece_is_pageable(ladei_copy_direction direction, const soft_piece *piece) {
  return (!writes_device(direction) && piece->dst_range == NULL) ||
         (!reads_device(direction) && piece->src_range == NULL);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Copies pageable sources now. False: no memory. */
static bool stage_sources(soft_work *work, ladei_copy_direction direction) {
  soft_piece *pieces = ladei_soft_work_pieces(work);
  size_t total = 0;
  for (uint32_t i = 0; i < work->piece_count; i++) {
    bool stage = !reads_device(direction) && pieces[i].src_range == NULL;
    bool moves = pieces[i].dst_range == NULL || pieces[i].dst_range->has_bytes;
    if (stage && moves && !ladei_size_add(total, pieces[i].bytes, &total)) return false;
  }
  if (total == 0) return true;
  unsigned char *staged = malloc(total);
  if (staged == NULL) return false;
  work->staged = staged;
  for (uint32_t i = 0; i < work->piece_count; i++) {
    if (pieces[i].src_range != NULL || (pieces[i].dst_range != NULL && !pieces[i].dst_range->has_bytes)) continue;
    memcpy(staged, pieces[i].src, pieces[i].bytes);
    pieces[i].src = staged;
    staged += pieces[i].bytes;
  }
  return true;
}

static lade_status copy_prepare(soft_runtime *rt, soft_op op, const soft_stream *stream, ladei_copy_direction direction,
                                soft_work *work) {
  soft_piece *pieces = ladei_soft_work_pieces(work);
  bool pageable = false;
  for (uint32_t i = 0; i < work->piece_count; i++) {
    LADEI_TRY(piece_find_memory(rt, op, direction, stream->device, &pieces[i]));
    pageable = pageable || piece_is_pageable(direction, &pieces[i]);
    if (direction == LADEI_COPY_D2D && between_devices(rt, &pieces[i])) work->engine = SOFT_ENGINE_PEER;
  }
  if (!pageable || direction == LADEI_COPY_H2H) return LADE_OK;
  ladei_soft_finding(rt, &rt->findings.unpinned_copies, "%s: %zu bytes from %p to %p: the host side is pageable",
                     ladei_soft_op_name(op), pieces[0].bytes, pieces[0].src, pieces[0].dst);
  /* A graph reads its pageable sources each time it runs. */
  return stream->capture != NULL || stage_sources(work, direction) ? LADE_OK : ladei_soft_no_memory_to_queue(op);
}

/* Takes the pieces of `work`. */
static lade_status copy_submit(soft_runtime *rt, soft_op op, ladei_copy_direction direction, soft_work *work,
                               const ladei_stream *resolved) {
  lade_status status = LADE_OK;
  ladei_soft_lock(rt);
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  if (stream != NULL) {
    work->device = stream->device;
    status = copy_prepare(rt, op, stream, direction, work);
    if (status == LADE_OK) {
      status = ladei_soft_submit(rt, op, stream, work);
      work = NULL;
    }
  }
  ladei_soft_unlock(rt);
  if (work != NULL) ladei_soft_work_dispose(work);
  return status;
}

static lade_status copy(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                        const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_copy));
  soft_work work = {.kind = SOFT_WORK_COPY, .piece_count = 1, .piece = {.dst = dst, .src = src, .bytes = bytes}};
  LADEI_TRY(copy_arguments(SOFT_OP_copy, direction, &work.piece));
  work.engine = engine_of(direction);
  return copy_submit(rt, SOFT_OP_copy, direction, &work, resolved);
}

static bool no_batches(const soft_runtime *rt, const ladei_stream *resolved) {
  bool known = resolved->device >= 0 && resolved->device < rt->device_count;
  return known && rt->devices[resolved->device].description.no_copy_batch;
}

static bool stream_captures(soft_runtime *rt, const ladei_stream *resolved) {
  lade_status status;
  ladei_soft_lock(rt);
  const soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_copy_batch, resolved, &status);
  bool captures = stream != NULL && stream->capture != NULL;
  ladei_soft_unlock(rt);
  return captures;
}

static lade_status copy_batch(void *self, ladei_copy_direction direction, size_t count, void *const *dsts,
                              const void *const *srcs, const size_t *sizes, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_copy_batch);
  if (status != LADE_OK) return status;
  bool captures = stream_captures(rt, resolved);
  if (resolved->kind == LADEI_STREAM_LEGACY || no_batches(rt, resolved) || captures) {
    return ladei_error(LADE_ERR_UNSUPPORTED,
                       captures ? LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED : LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                       "copy_batch: not on this device, or not on a legacy or capturing stream");
  }
  if (count == 0 || count > UINT32_MAX)
    return ladei_soft_refuse(SOFT_OP_copy_batch, LADEI_SOFT_NATIVE_INVALID_VALUE, "count", "1 to 2^32 - 1", "%zu",
                             count);
  soft_work work = {
      .kind = SOFT_WORK_COPY, .piece_count = (uint32_t)count, .pieces = calloc(count, sizeof(soft_piece))};
  if (work.pieces == NULL) return ladei_soft_no_memory_to_queue(SOFT_OP_copy_batch);
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    work.pieces[i] = (soft_piece){.dst = dsts[i], .src = srcs[i], .bytes = sizes[i]};
    status = copy_arguments(SOFT_OP_copy_batch, direction, &work.pieces[i]);
  }
  if (status != LADE_OK) {
    free(work.pieces);
    return status;
  }
  work.engine = engine_of(direction);
  return copy_submit(rt, SOFT_OP_copy_batch, direction, &work, resolved);
}

/* One piece for each row. */
static lade_status copy_2d(void *self, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                           size_t rows, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_copy_2d));
  const soft_piece first = {.dst = dst, .src = src, .bytes = width};
  LADEI_TRY(ladei_copy_2d_check(dst_pitch, src_pitch, width, rows));
  LADEI_TRY(copy_arguments(SOFT_OP_copy_2d, LADEI_COPY_D2D, &first));
  soft_work work = {.kind = SOFT_WORK_COPY,
                    .engine = SOFT_ENGINE_COMPUTE,
                    .piece_count = (uint32_t)rows,
                    .pieces = calloc(rows, sizeof(soft_piece))};
  if (work.pieces == NULL) return ladei_soft_no_memory_to_queue(SOFT_OP_copy_2d);
  for (size_t i = 0; i < rows; i++)
    work.pieces[i] =
        (soft_piece){.dst = (char *)dst + i * dst_pitch, .src = (const char *)src + i * src_pitch, .bytes = width};
  return copy_submit(rt, SOFT_OP_copy_2d, LADEI_COPY_D2D, &work, resolved);
}

/* Each end is reached from the device that is named for it. Not in a capture, as in CUDA's driver. */
static lade_status copy_peer_locked(soft_runtime *rt, soft_work *work, int dst_device, int src_device,
                                    const ladei_stream *resolved) {
  lade_status status = LADE_OK;
  soft_piece *piece = &work->piece;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_copy_peer, resolved, &status);
  if (stream == NULL) return status;
  if (stream->capture != NULL)
    return ladei_soft_capture_break(rt, SOFT_OP_copy_peer, stream->capture, LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED);
  piece->dst_range = device_side(rt, piece->dst, piece->bytes, dst_device);
  piece->src_range = device_side(rt, piece->src, piece->bytes, src_device);
  if (piece->dst_range == NULL) return ladei_soft_bad_memory(rt, SOFT_OP_copy_peer, piece->dst, piece->bytes);
  if (piece->src_range == NULL) return ladei_soft_bad_memory(rt, SOFT_OP_copy_peer, piece->src, piece->bytes);
  work->device = stream->device;
  work->engine = between_devices(rt, piece) ? SOFT_ENGINE_PEER : SOFT_ENGINE_COMPUTE;
  return ladei_soft_submit(rt, SOFT_OP_copy_peer, stream, work);
}

static lade_status copy_peer(void *self, void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                             const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_copy_peer);
  if (status != LADE_OK) return status;
  if (ladei_soft_device_use(rt, SOFT_OP_copy_peer, dst_device, &status) == NULL) return status;
  if (ladei_soft_device_use(rt, SOFT_OP_copy_peer, src_device, &status) == NULL) return status;
  soft_work work = {.kind = SOFT_WORK_COPY, .piece_count = 1, .piece = {.dst = dst, .src = src, .bytes = bytes}};
  status = copy_arguments(SOFT_OP_copy_peer, LADEI_COPY_D2D, &work.piece);
  if (status != LADE_OK) return status;
  ladei_soft_lock(rt);
  status = copy_peer_locked(rt, &work, dst_device, src_device, resolved);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- synchronous copies ------------------------------------------------------------------------------------------ */

/*
 * Queues the copy on the legacy stream. On "sim" an engine does it in its virtual time; on "cpu" the calling thread
 * does it, once the copy is at the head of the stream: no engine is woken.
 */
static lade_status sync_queue(soft_runtime *rt, soft_stream *legacy, const soft_work *work, soft_caller *caller,
                              uint64_t *out_number) {
  LADEI_TRY(ladei_soft_stream_join_legacy(rt, SOFT_OP_copy_sync, legacy));
  soft_node *node = ladei_soft_node_new(rt);
  if (node == NULL) return ladei_soft_no_memory_to_queue(SOFT_OP_copy_sync);
  node->work = *work;
  ladei_soft_work_bind(&node->work);
  if (!rt->virtual_time) {
    node->work.kind = SOFT_WORK_CALLER;
    node->work.caller = caller;
  }
  *out_number = atomic_load(&legacy->submitted) + 1;
  ladei_soft_hazard_work(rt, legacy, *out_number, &node->work);
  ladei_soft_stream_push(rt, legacy, node);
  ladei_soft_run_ready(rt);
  return LADE_OK;
}

/* Under the lock, which it drops while the bytes move. */
static void sync_perform(soft_runtime *rt, soft_stream *legacy, soft_caller *caller) {
  while (!caller->ready) pthread_cond_wait(&caller->cond, &rt->lock);
  soft_work *work = &legacy->head->work;
  ladei_soft_work_start(rt, work);
  soft_work copying = *work;
  copying.kind = SOFT_WORK_COPY;
  ladei_soft_unlock(rt);
  ladei_soft_work_perform(rt, &copying);
  ladei_soft_lock(rt);
  ladei_soft_work_unbind(rt, work);
  ladei_soft_stream_finish_head(rt, legacy);
  ladei_soft_run_ready(rt);
}

/* A copy that cannot end must not run after its failure was reported. */
static void sync_cancel(soft_runtime *rt, soft_stream *legacy, uint64_t number) {
  for (soft_node *node = legacy->head; node != NULL; node = node->next) {
    if (node->number != number) continue;
    ladei_soft_work_unbind(rt, &node->work);
    node->work.piece_count = 0;
    if (!node->started) node->work.kind = SOFT_WORK_EMPTY;
  }
}

static lade_status sync_locked(soft_runtime *rt, soft_device *device, ladei_copy_direction direction, soft_work *work) {
  soft_stream *legacy = device->legacy;
  lade_status status = ladei_soft_device_start(rt, SOFT_OP_copy_sync, device);
  if (status == LADE_OK) status = ladei_soft_capture_check_legacy(rt, SOFT_OP_copy_sync, legacy);
  if (status == LADE_OK) status = piece_find_memory(rt, SOFT_OP_copy_sync, direction, device->ordinal, &work->piece);
  if (status != LADE_OK) return status;
  soft_caller caller = {.ready = false};
  uint64_t number = 0;
  pthread_cond_init(&caller.cond, NULL);
  status = sync_queue(rt, legacy, work, &caller, &number);
  if (status == LADE_OK && !rt->virtual_time) sync_perform(rt, legacy, &caller);
  if (status == LADE_OK && rt->virtual_time) {
    status = rt->clock->wait(rt, legacy, number, "copy_sync");
    if (status != LADE_OK) sync_cancel(rt, legacy, number);
  }
  pthread_cond_destroy(&caller.cond);
  if (status != LADE_OK) return status;
  ladei_soft_observe(legacy, number);
  return atomic_load(&device->lost) ? ladei_soft_lost(SOFT_OP_copy_sync, device->ordinal) : LADE_OK;
}

static lade_status copy_sync(void *self, int ordinal, ladei_copy_direction direction, void *dst, const void *src,
                             size_t bytes) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_copy_sync);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_copy_sync, ordinal, &status);
  if (device == NULL) return status;
  soft_work work = {.kind = SOFT_WORK_COPY, .piece_count = 1, .piece = {.dst = dst, .src = src, .bytes = bytes}};
  status = copy_arguments(SOFT_OP_copy_sync, direction, &work.piece);
  if (status != LADE_OK) return status;
  work.device = ordinal;
  work.engine = engine_of(direction);
  ladei_soft_lock(rt);
  status = sync_locked(rt, device, direction, &work);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- fills, host functions, written values ----------------------------------------------------------------------- */

/* Memory that a fill or a written value sets. As CUDA's driver, a capture fills device_alloc memory without access. */
static soft_range *destination_find(soft_runtime *rt, const soft_stream *stream, const soft_work *work) {
  const soft_piece *piece = &work->piece;
  soft_range *range = ladei_soft_reach(rt, stream, piece->dst, piece->bytes);
  if (range != NULL || stream->capture == NULL || work->kind != SOFT_WORK_FILL) return range;
  range = device_side(rt, piece->dst, piece->bytes, stream->device);
  return range != NULL && range->kind == SOFT_RANGE_DEVICE ? range : NULL;
}

/* Work whose only check is that its destination, if any, can be written. */
static lade_status simple_submit(soft_runtime *rt, soft_op op, soft_work *work, const ladei_stream *resolved) {
  lade_status status = LADE_OK;
  ladei_soft_lock(rt);
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  if (stream != NULL) {
    work->device = stream->device;
    soft_piece *piece = &work->piece;
    if (work->piece_count != 0) piece->dst_range = destination_find(rt, stream, work);
    if (work->piece_count != 0 && piece->dst_range == NULL)
      status = ladei_soft_bad_memory(rt, op, work->piece.dst, work->piece.bytes);
    else if (work->kind == SOFT_WORK_WRITE && piece->dst_range->kind == SOFT_RANGE_POOL && stream->capture == NULL)
      status = ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "address", "in no memory of a driver pool", "%p",
                                 piece->dst); /* as CUDA's driver, except in captures */
    else
      status = ladei_soft_submit(rt, op, stream, work);
  }
  return ladei_soft_unlock_with(rt, status);
}

/* With words of `width` bytes. */
static lade_status fill_words(void *self, void *dst, uint64_t value, unsigned width, size_t bytes,
                              const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_fill));
  if (bytes == 0 || bytes >= LADEI_SIZE_LIMIT)
    return ladei_soft_refuse(SOFT_OP_fill, LADEI_SOFT_NATIVE_INVALID_VALUE, "bytes", "1 to 2^60 - 1", "%zu", bytes);
  soft_work work = {.kind = SOFT_WORK_FILL, .engine = SOFT_ENGINE_COMPUTE, .piece_count = 1};
  work.piece = (soft_piece){.dst = dst, .bytes = bytes};
  work.value = value;
  work.width_bytes = width;
  return simple_submit(rt, SOFT_OP_fill, &work, resolved);
}

static lade_status fill(void *self, void *dst, unsigned char value, size_t bytes, const ladei_stream *resolved) {
  return fill_words(self, dst, value, 1, bytes, resolved);
}

lade_status ladei_soft_fill_words(void *self, void *dst, uint32_t value, size_t count, const ladei_stream *resolved) {
  return fill_words(self, dst, value, sizeof value, count * sizeof value, resolved);
}

static lade_status stream_write_value(void *self, const ladei_stream *resolved, void *address, uint64_t value,
                                      unsigned width_bits) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_stream_write_value));
  const soft_op op = SOFT_OP_stream_write_value;
  if (width_bits != 32 && width_bits != 64)
    return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "width_bits", "32 or 64", "%u", width_bits);
  if ((uintptr_t)address % (width_bits / 8) != 0)
    return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "address", "a multiple of the width", "%p", address);
  soft_work work = {.kind = SOFT_WORK_WRITE, .engine = SOFT_ENGINE_COMPUTE, .piece_count = 1};
  work.piece = (soft_piece){.dst = address, .bytes = width_bits / 8};
  work.value = value;
  return simple_submit(rt, SOFT_OP_stream_write_value, &work, resolved);
}

static lade_status host_function(void *self, const ladei_stream *resolved, ladei_host_function function, void *user) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_host_function));
  if (function == NULL)
    return ladei_soft_refuse(SOFT_OP_host_function, LADEI_SOFT_NATIVE_INVALID_VALUE, "function", "a function", "NULL");
  soft_work work = {.kind = SOFT_WORK_HOST, .engine = SOFT_ENGINE_HOST};
  work.function = function;
  work.user = user;
  return simple_submit(rt, SOFT_OP_host_function, &work, resolved);
}

void ladei_soft_copy_ops(lade_runtime_ops *ops) {
  ops->copy = copy;
  ops->copy_sync = copy_sync;
  ops->copy_batch = copy_batch;
  ops->copy_peer = copy_peer;
  ops->copy_2d = copy_2d;
  ops->fill = fill;
  ops->host_function = host_function;
  ops->stream_write_value = stream_write_value;
}
