/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that copies pieces, as a software kernel: its time is that of the bytes at each end, on the compute engine.
 *
 * I1  A list's pieces are the kernel's ranges: so they are live when it runs, and accesses that no order covers are reported. A table's
 *     ranges are all blocks of both sides, as its ids are read when it runs: of its accesses none is reported.
 * I2  A refused list has copied and queued nothing.
 * Locks: as kernel.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "lade/copy.h"
#include "runtime/convert.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/submit/submit.h"

static const int INVALID = LADEI_SOFT_NATIVE_INVALID_VALUE;

static lade_status copy_kernel_load(void *self, int ordinal) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_copy_kernel_load);
  if (status != LADE_OK || ladei_soft_device_use(rt, SOFT_OP_copy_kernel_load, ordinal, &status) == NULL) return status;
  ladei_soft_lock(rt);
  rt->devices[ordinal].copy_kernel_loaded = true;
  ladei_soft_unlock(rt);
  return LADE_OK;
}

static lade_status kernel_enter(soft_runtime *rt, soft_op op, unsigned blocks, const ladei_stream *stream) {
  LADEI_TRY(ladei_soft_enter(rt, op));
  if (blocks == 0) return ladei_soft_refuse(op, INVALID, "blocks", "more than 0", "0");
  ladei_soft_lock(rt);
  bool loaded =
      stream->device >= 0 && stream->device < rt->device_count && rt->devices[stream->device].copy_kernel_loaded;
  ladei_soft_unlock(rt);
  return loaded ? LADE_OK
                : ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED, "%s: the kernel is not loaded",
                              ladei_soft_op_name(op));
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

typedef struct list {
  const ladei_number_format *from, *to; /* NULL: bytes */
  size_t count;
  lade_copy_piece pieces[];
} list;

static void list_run(const void *arguments) {
  const list *l = arguments;
  for (size_t i = 0; i < l->count; i++) {
    const lade_copy_piece *piece = &l->pieces[i];
    if (l->from != NULL)
      ladei_convert(piece->dst, piece->src, piece->bytes, l->from, l->to);
    else
      memmove(piece->dst, piece->src, piece->bytes);
  }
}

/* Written for `bytes` that are read. */
static size_t written_bytes(const list *l, size_t bytes) {
  return l->from != NULL ? bytes / l->from->bytes * l->to->bytes : bytes;
}

/* Takes the arguments. */
static lade_status list_queue(soft_runtime *rt, soft_op op, list *arguments, const ladei_stream *stream) {
  size_t count = arguments->count;
  lade_soft_range *ranges = calloc(2 * count, sizeof *ranges);
  lade_status status = ranges == NULL ? ladei_soft_no_memory_to_queue(op) : LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    const lade_copy_piece *piece = &arguments->pieces[i];
    ranges[2 * i] = (lade_soft_range){.address = piece->src, .bytes = piece->bytes, .access = LADE_SOFT_READ};
    ranges[2 * i + 1] = (lade_soft_range){
        .address = piece->dst, .bytes = written_bytes(arguments, piece->bytes), .access = LADE_SOFT_WRITE};
  }
  if (status == LADE_OK)
    status = ladei_soft_kernel_queue(rt, op, stream, list_run, arguments,
                                     sizeof(list) + count * sizeof(lade_copy_piece), ranges, 2 * count, 0);
  free(ranges);
  free(arguments);
  return status;
}

/* With room for `count` pieces; NULL: refused, or no memory. */
static list *list_new(soft_op op, size_t count, lade_status *out_status) {
  bool good = count != 0 && count <= UINT32_MAX / 2;
  list *arguments = good ? malloc(sizeof *arguments + count * sizeof arguments->pieces[0]) : NULL;
  if (arguments != NULL)
    *arguments = (list){.count = count};
  else
    *out_status = good ? ladei_soft_no_memory_to_queue(op)
                       : ladei_soft_refuse(op, INVALID, "count", "1 to 2^31 - 1", "%zu", count);
  return arguments;
}

static lade_status pieces_queue(soft_runtime *rt, soft_op op, const lade_copy_piece *pieces, size_t count,
                                const ladei_number_format *from, const ladei_number_format *to,
                                const ladei_stream *stream) {
  lade_status status = LADE_OK;
  list *arguments = list_new(op, count, &status);
  if (arguments == NULL) return status;
  arguments->from = from;
  arguments->to = to;
  memcpy(arguments->pieces, pieces, count * sizeof *pieces);
  return list_queue(rt, op, arguments, stream);
}

static lade_status pieces_check(soft_op op, const lade_copy_piece *pieces, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (pieces[i].dst == NULL || pieces[i].src == NULL)
      return ladei_soft_refuse(op, INVALID, "memory", "an address", "NULL");
    if (pieces[i].bytes == 0 || pieces[i].bytes >= LADEI_SIZE_LIMIT)
      return ladei_soft_refuse(op, INVALID, "bytes", "1 to 2^60 - 1", "%zu", pieces[i].bytes);
  }
  return LADE_OK;
}

static lade_status copy_kernel(void *self, const lade_copy_piece *pieces, size_t count, unsigned blocks,
                               const ladei_stream *stream) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_copy_kernel;
  LADEI_TRY(kernel_enter(rt, op, blocks, stream));
  LADEI_TRY(pieces_check(op, pieces, count));
  return pieces_queue(rt, op, pieces, count, NULL, NULL, stream);
}

static lade_status copy_kernel_convert(void *self, const lade_copy_piece *pieces, size_t count, lade_dtype from,
                                       lade_dtype to, unsigned blocks, const ladei_stream *stream) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_copy_kernel_convert;
  LADEI_TRY(kernel_enter(rt, op, blocks, stream));
  LADEI_TRY(ladei_ops_convert_check(pieces, count, from, to, blocks));
  LADEI_TRY(pieces_check(op, pieces, count));
  return pieces_queue(rt, op, pieces, count, ladei_number_format_of(from), ladei_number_format_of(to), stream);
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static uint64_t table_id(const void *ids, size_t index, bool wide) {
  return wide ? ((const uint64_t *)ids)[index] : ((const uint32_t *)ids)[index];
}

static bool table_piece(const ladei_copy_table *t, size_t index, lade_copy_piece *out) {
  uint64_t to = table_id(t->dst_ids, index, t->wide), from = table_id(t->src_ids, index, t->wide);
  if (to >= t->dst_count || from >= t->src_count) return false;
  *out = (lade_copy_piece){(char *)t->dst + to * t->dst_stride, (const char *)t->src + from * t->src_stride, t->bytes};
  return true;
}

static void table_run(const void *arguments) {
  const ladei_copy_table *t = arguments;
  lade_copy_piece piece;
  for (size_t i = 0; i < t->count; i++)
    if (table_piece(t, i, &piece)) memmove(piece.dst, piece.src, piece.bytes);
}

/* Ids that are read now: a list. */
static lade_status table_at_call(soft_runtime *rt, const ladei_copy_table *t, const ladei_stream *stream) {
  lade_status status = LADE_OK;
  list *arguments = list_new(SOFT_OP_copy_kernel_table, t->count, &status);
  if (arguments == NULL) return status;
  arguments->count = 0;
  for (size_t i = 0; i < t->count; i++) arguments->count += table_piece(t, i, &arguments->pieces[arguments->count]);
  if (arguments->count != 0) return list_queue(rt, SOFT_OP_copy_kernel_table, arguments, stream);
  free(arguments);
  return LADE_OK;
}

static size_t side_bytes(size_t count, size_t stride, size_t bytes) {
  size_t span;
  return ladei_size_mul(count - 1, stride, &span) && ladei_size_add(span, bytes, &span) ? span : LADEI_SIZE_LIMIT;
}

static lade_status copy_kernel_table(void *self, const ladei_copy_table *table, unsigned blocks,
                                     const ladei_stream *stream) {
  soft_runtime *rt = soft_self(self);
  const soft_op op = SOFT_OP_copy_kernel_table;
  LADEI_TRY(kernel_enter(rt, op, blocks, stream));
  if (table->count == 0 || table->bytes == 0 || table->dst_count == 0 || table->src_count == 0)
    return ladei_soft_refuse(op, INVALID, "count, bytes, dst_count, src_count", "more than 0", "0");
  if (table->at_call) return table_at_call(rt, table, stream);
  size_t id_bytes = table->count * (table->wide ? sizeof(uint64_t) : sizeof(uint32_t));
  const lade_soft_range ranges[] = {{.address = table->src,
                                     .bytes = side_bytes(table->src_count, table->src_stride, table->bytes),
                                     .access = LADE_SOFT_READ},
                                    {.address = table->dst,
                                     .bytes = side_bytes(table->dst_count, table->dst_stride, table->bytes),
                                     .access = LADE_SOFT_WRITE},
                                    {.address = table->dst_ids, .bytes = id_bytes, .access = LADE_SOFT_READ},
                                    {.address = table->src_ids, .bytes = id_bytes, .access = LADE_SOFT_READ}};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
    if (ranges[i].address == NULL || ranges[i].bytes >= LADEI_SIZE_LIMIT)
      return ladei_soft_refuse(op, INVALID, "memory", "an address, and less than 2^60 bytes", "%p",
                               (void *)(uintptr_t)ranges[i].address);
  return ladei_soft_kernel_queue(rt, op, stream, table_run, table, sizeof *table, ranges,
                                 sizeof ranges / sizeof ranges[0], (uint64_t)table->count * table->bytes);
}

void ladei_soft_copy_kernel_ops(lade_runtime_ops *ops) {
  ops->copy_kernel_load = copy_kernel_load;
  ops->copy_kernel = copy_kernel;
  ops->copy_kernel_table = copy_kernel_table;
  ops->copy_kernel_convert = copy_kernel_convert;
}
