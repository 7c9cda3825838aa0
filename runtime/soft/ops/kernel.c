/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Software kernels: functions of the program that run as work of a device.
 *
 *   kernel(function, arguments, ranges) -> a piece per range (src: read, dst: written) and a copy of the arguments
 *                                       -> submit, as a fill: queued, or captured into a graph
 *
 * I1  The function runs only if each of its ranges is live memory with bytes: at the end of its virtual time on "sim",
 *     on the thread of the compute engine on "cpu".
 * I2  The work owns its pieces and arguments: a graph has its own, and so has each exec made from it.
 * I3  A refused kernel has copied, queued and captured nothing.
 * Locks: rt->lock; the function runs without it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/ops/reach.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/submit.h"

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static lade_status range_refuse(size_t index, const char *field, const char *expected, unsigned long long value) {
  char name[48];
  snprintf(name, sizeof name, "ranges[%zu].%s", index, field);
  return ladei_soft_refuse(SOFT_OP_kernel, LADEI_SOFT_NATIVE_INVALID_VALUE, name, expected, "%llu", value);
}

static lade_status range_check(size_t index, const lade_soft_range *range) {
  if (range->address == NULL) return range_refuse(index, "address", "an address", 0);
  if (range->bytes == 0 || range->bytes >= LADEI_SIZE_LIMIT)
    return range_refuse(index, "bytes", "1 to 2^60 - 1", range->bytes);
  if (range->access == 0 || range->access > (LADE_SOFT_READ | LADE_SOFT_WRITE))
    return range_refuse(index, "access", "LADE_SOFT_READ, LADE_SOFT_WRITE or both", range->access);
  return range->reserved == 0 ? LADE_OK : range_refuse(index, "reserved", "0", range->reserved);
}

static lade_status kernel_check(lade_soft_function function, const void *arguments, size_t bytes,
                                const lade_soft_range *ranges, size_t count) {
  const int native = LADEI_SOFT_NATIVE_INVALID_VALUE;
  if (function == NULL) return ladei_soft_refuse(SOFT_OP_kernel, native, "function", "a function", "NULL");
  if (bytes >= LADEI_SIZE_LIMIT)
    return ladei_soft_refuse(SOFT_OP_kernel, native, "bytes", "less than 2^60", "%zu", bytes);
  if (arguments == NULL && bytes != 0)
    return ladei_soft_refuse(SOFT_OP_kernel, native, "arguments", "an address", "NULL");
  if (count > UINT32_MAX) return ladei_soft_refuse(SOFT_OP_kernel, native, "count", "less than 2^32", "%zu", count);
  if (ranges == NULL && count != 0) return ladei_soft_refuse(SOFT_OP_kernel, native, "ranges", "an address", "NULL");
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) status = range_check(i, &ranges[i]);
  return status;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static bool kernel_copy(soft_work *work, const void *arguments, const lade_soft_range *ranges) {
  if (work->piece_count != 0) work->pieces = calloc(work->piece_count, sizeof *work->pieces);
  if (work->argument_bytes != 0) work->staged = malloc(work->argument_bytes);
  bool copied = (work->piece_count == 0 || work->pieces != NULL) && (work->argument_bytes == 0 || work->staged != NULL);
  if (!copied) return false;
  if (work->argument_bytes != 0) memcpy(work->staged, arguments, work->argument_bytes);
  for (uint32_t i = 0; i < work->piece_count; i++) {
    void *address = (void *)(uintptr_t)ranges[i].address;
    work->pieces[i] = (soft_piece){.dst = ranges[i].access & LADE_SOFT_WRITE ? address : NULL,
                                   .src = ranges[i].access & LADE_SOFT_READ ? address : NULL,
                                   .bytes = ranges[i].bytes};
  }
  return true;
}

static lade_status kernel_find_memory(soft_runtime *rt, soft_op op, const soft_stream *stream, soft_work *work) {
  for (uint32_t i = 0; i < work->piece_count; i++) {
    soft_piece *piece = &work->pieces[i];
    const void *address = piece->dst != NULL ? piece->dst : piece->src;
    soft_range *range = ladei_soft_reach(rt, stream, address, piece->bytes);
    if (range == NULL) return ladei_soft_bad_memory(rt, op, address, piece->bytes);
    if (piece->dst != NULL) piece->dst_range = range;
    if (piece->src != NULL) piece->src_range = range;
    work->tells = work->tells || (piece->dst != NULL && range->host);
  }
  return LADE_OK;
}

/* Takes all that the work owns. */
static lade_status kernel_submit(soft_runtime *rt, soft_op op, soft_work *work, const ladei_stream *resolved) {
  lade_status status = LADE_OK;
  ladei_soft_lock(rt);
  soft_stream *stream = ladei_soft_stream_find(rt, op, resolved, &status);
  if (stream != NULL) {
    work->device = stream->device;
    status = kernel_find_memory(rt, op, stream, work);
  }
  if (status == LADE_OK)
    status = ladei_soft_submit(rt, op, stream, work);
  else
    ladei_soft_work_dispose(work);
  return ladei_soft_unlock_with(rt, status);
}

lade_status ladei_soft_kernel_queue(soft_runtime *rt, soft_op op, const ladei_stream *resolved,
                                    lade_soft_function function, const void *arguments, size_t bytes,
                                    const lade_soft_range *ranges, size_t count, uint64_t blind_bytes) {
  soft_work work = {.kind = SOFT_WORK_KERNEL, .engine = SOFT_ENGINE_COMPUTE, .piece_count = (uint32_t)count};
  work.kernel = function;
  work.argument_bytes = bytes;
  work.blind_bytes = blind_bytes;
  work.tells = false;
  if (kernel_copy(&work, arguments, ranges)) return kernel_submit(rt, op, &work, resolved);
  ladei_soft_work_dispose(&work);
  return ladei_soft_no_memory_to_queue(op);
}

static lade_status kernel(void *self, const ladei_stream *resolved, lade_soft_function function, const void *arguments,
                          size_t bytes, const lade_soft_range *ranges, size_t count) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_kernel);
  if (status == LADE_OK) status = kernel_check(function, arguments, bytes, ranges, count);
  if (status != LADE_OK) return status;
  return ladei_soft_kernel_queue(rt, SOFT_OP_kernel, resolved, function, arguments, bytes, ranges, count, 0);
}

void ladei_soft_kernel_ops(lade_runtime_ops *ops) { ops->kernel = kernel; }
