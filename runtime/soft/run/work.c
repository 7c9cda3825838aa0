/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A piece of work: bound to its memory, started, performed, disposed of.
 *
 * I3  Work is bound while it may still touch its ranges: each range counts it in `inflight`.
 * Locks: rt->lock, except for perform, call_out and in_callback.
 */
#include "runtime/soft/run/work.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/thread.h"
#include "runtime/soft/run/move.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/mappings.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void ladei_soft_work_bind(soft_work *work) {
  assert(!work->bound && !work->runs);
  soft_piece *pieces = ladei_soft_work_pieces(work);
  for (uint32_t i = 0; i < work->piece_count; i++) {
    if (pieces[i].dst_range != NULL) pieces[i].dst_range->inflight++;
    if (pieces[i].src_range != NULL) pieces[i].src_range->inflight++;
  }
  work->bound = true;
}

static void range_unbind(soft_runtime *rt, soft_range *range, bool runs) {
  if (range == NULL) return;
  assert(!runs || range->running > 0);
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

/* Whether one side of a piece is still live; counts a finding if not. */
static bool side_is_live(soft_runtime *rt, const soft_range *range, bool tracked, const void *address, size_t bytes) {
  if (range == NULL && !tracked) return true;
  bool live = range != NULL && range->live;
  if (live && range->kind == SOFT_RANGE_RESERVED) live = ladei_soft_mapping_accessible(rt, address, bytes, -1);
  if (!live) {
    ladei_soft_finding(rt, &rt->findings.freed_memory_used, "%zu bytes at %p were freed before the work on them ended",
                       bytes, address);
  }
  return live;
}

static soft_range *range_covering(const soft_runtime *rt, bool tracked, const void *address, size_t bytes) {
  soft_range *range = tracked ? ladei_soft_range_at(rt, address) : NULL;
  return range != NULL && ladei_soft_range_covers(range, address, bytes) ? range : NULL;
}

void ladei_soft_piece_find_ranges(const soft_runtime *rt, soft_piece *piece) {
  piece->dst_range = range_covering(rt, piece->dst_tracked, piece->dst, piece->bytes);
  piece->src_range = range_covering(rt, piece->src_tracked, piece->src, piece->bytes);
}

/* ---- effect ------------------------------------------------------------------------------------------------------ */

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

static bool callback_begin(soft_runtime *rt) {
  bool before = ladei_thread.in_callback;
  atomic_fetch_add(&rt->attention, SOFT_ATTENTION_CALLBACK);
  ladei_thread.in_callback = true;
  return before;
}

static void callback_end(soft_runtime *rt, bool before) {
  ladei_thread.in_callback = before;
  atomic_fetch_sub(&rt->attention, SOFT_ATTENTION_CALLBACK);
}

void ladei_soft_call_out(soft_runtime *rt, ladei_host_function function, void *user) {
  bool before = callback_begin(rt);
  function(user);
  callback_end(rt, before);
}

static void kernel_run(soft_runtime *rt, const soft_work *work) {
  bool before = callback_begin(rt);
  work->kernel(work->staged);
  callback_end(rt, before);
}

static void fill_perform(const soft_work *work) {
  const soft_piece *piece = &work->piece;
  if (work->width_bytes == 1) {
    memset(piece->dst, (int)work->value, piece->bytes);
    return;
  }
  for (size_t at = 0; at + work->width_bytes <= piece->bytes; at += work->width_bytes)
    memcpy((char *)piece->dst + at, &work->value, work->width_bytes); /* little-endian, as the devices are */
}

bool ladei_soft_in_callback(void) { return ladei_thread.in_callback; }

void ladei_soft_work_perform(soft_runtime *rt, soft_work *work) {
  if (!work->moves) return;
  soft_piece *pieces = ladei_soft_work_pieces(work);
  switch (work->kind) {
  case SOFT_WORK_COPY:
    for (uint32_t i = 0; i < work->piece_count; i++) piece_move(&pieces[i]);
    break;
  case SOFT_WORK_FILL: fill_perform(work); break;
  case SOFT_WORK_WRITE: /* little-endian, as the devices are */
    memcpy(work->piece.dst, &work->value, work->piece.bytes);
    break;
  case SOFT_WORK_HOST: ladei_soft_call_out(rt, work->function, work->user); break;
  case SOFT_WORK_KERNEL: kernel_run(rt, work); break;
  case SOFT_WORK_EMPTY:
  case SOFT_WORK_STAMP:
  case SOFT_WORK_WAIT:
  case SOFT_WORK_CALLER:
  case SOFT_WORK_LAUNCH: break;
  }
}

bool ladei_soft_work_tells(const soft_work *work) {
  return work->kind == SOFT_WORK_HOST || work->kind == SOFT_WORK_WRITE ||
         (work->kind == SOFT_WORK_KERNEL && work->tells);
}

static bool bytes_clone(const void *from, size_t bytes, void **out) {
  *out = NULL;
  if (from == NULL) return true;
  *out = malloc(bytes);
  if (*out != NULL) memcpy(*out, from, bytes);
  return *out != NULL;
}

bool ladei_soft_work_clone(const soft_work *work, soft_work *out) {
  void *pieces = NULL, *staged = NULL;
  bool owns = work->kind == SOFT_WORK_KERNEL || work->pieces != NULL; /* rows */
  assert(owns || work->staged == NULL);
  if (owns && !bytes_clone(work->pieces, work->piece_count * sizeof *work->pieces, &pieces)) return false;
  if (work->kind == SOFT_WORK_KERNEL && !bytes_clone(work->staged, work->argument_bytes, &staged)) {
    free(pieces);
    return false;
  }
  *out = *work;
  out->pieces = pieces;
  out->staged = staged;
  return true;
}

void ladei_soft_work_dispose(soft_work *work) {
  free(work->pieces);
  free(work->staged);
  work->pieces = NULL;
  work->staged = NULL;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_s) {
  unsigned __int128 scaled = (unsigned __int128)bytes * 1000000000u;
  return (uint64_t)((scaled + bytes_per_s - 1) / bytes_per_s);
}

/* Each range at the rate of its memory; twice if it is read and written. */
static uint64_t kernel_ns(const soft_work *work, const lade_soft_device *device) {
  const soft_piece *pieces = work->pieces;
  uint64_t ns = 0;
  for (uint32_t i = 0; i < work->piece_count; i++) {
    const soft_range *range = pieces[i].dst != NULL ? pieces[i].dst_range : pieces[i].src_range;
    bool host = range != NULL && range->host;
    uint64_t times = pieces[i].dst != NULL && pieces[i].src != NULL ? 2 : 1;
    uint64_t bytes = work->blind_bytes != 0 ? ladei_size_min(work->blind_bytes, pieces[i].bytes) : pieces[i].bytes;
    ns += transfer_ns(bytes * times, host ? device->link_bytes_per_s : device->memory_bytes_per_s);
  }
  return ns;
}

uint64_t ladei_soft_work_duration_ns(const soft_runtime *rt, const soft_work *work) {
  const lade_soft_device *device = &rt->devices[work->device].description;
  if (work->kind == SOFT_WORK_KERNEL) return kernel_ns(work, device);
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
