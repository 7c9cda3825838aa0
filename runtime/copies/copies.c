/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls that copy pieces.
 *
 *   list --plan--> parts --split by length--> copy engines (long ones, those that the kernel does not reach)
 *                                         \-> kernel (the others, unless they are few)
 *
 * I1  Nothing is queued before the whole list is checked.
 * I2  Each part is queued by one way.
 * Locks: none.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/call.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "runtime/copies/copies.h"
#include "runtime/copies/ways.h"

/* So many pieces take the engines no longer than a launch. */
enum { FEW = 4 };

static lade_status copies_enter(lade_runtime *runtime, const char *call, lade_stream stream, ladei_stream *out) {
  if (runtime == NULL) return ladei_error_null(call, "runtime");
  LADEI_TRY(ladei_runtime_check_process(runtime));
  return runtime->ops->stream_resolve(runtime->self, stream, out);
}

/* ---- Which way --------------------------------------------------------------------------------------------------- */

/* Pieces below 2 KiB leave most of a warp's vectors unused, so they need twice the warps. */
static unsigned blocks_for(const ladei_copy_ways *ways, unsigned direction, size_t mean_bytes) {
  unsigned blocks = atomic_load_explicit(&ways->blocks[direction], memory_order_relaxed);
  return mean_bytes < 2048 ? 2 * blocks : blocks;
}

static bool ways_ready(const ladei_copy_ways *ways) {
  return ways != NULL && atomic_load_explicit(&ways->state, memory_order_acquire) == LADEI_COPY_READY;
}

static size_t engine_from(const ladei_copy_ways *ways, unsigned direction) {
  return atomic_load_explicit(&ways->engine_from[direction], memory_order_relaxed);
}

static void count_add(_Atomic(uint64_t) *counter, uint64_t value) {
  if (value != 0) atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

/* Parts on their way: those before `engine` by copy engines, the others by the kernel. */
typedef struct split {
  const lade_copy_piece *parts;
  const ladei_copy_kind *kinds;
  size_t engine, count;
  size_t kernel_bytes;
  unsigned blocks;
} split;

static void split_engines(split *s) {
  s->engine = s->count;
  s->kernel_bytes = 0;
}

/* Of one kind, and all long or all short: nothing is moved. */
static bool split_whole(const ladei_copy_ways *ways, bool ready, const ladei_copy_plan *plan, split *out) {
  unsigned direction = plan->kind.direction;
  size_t from = engine_from(ways, direction);
  bool none = !ready || (plan->kinds == NULL &&
                         (plan->kind.reach != LADEI_COPY_BY_KERNEL || plan->shortest >= from || plan->count <= FEW));
  bool all = !none && plan->kinds == NULL && plan->longest < from;
  *out = (split){.parts = plan->parts, .kinds = plan->kinds, .count = plan->count};
  if (none) split_engines(out);
  if (all) {
    out->kernel_bytes = plan->bytes;
    out->blocks = blocks_for(ways, direction, plan->bytes / plan->count);
  }
  return none || all;
}

/* The kernel copies an order of its own, so the parts of engines go to the front. False: no memory. */
static bool split_parts(const ladei_copy_ways *ways, ladei_copy_plan *plan, split *out) {
  if (!ladei_copy_plan_own(plan)) return false;
  lade_copy_piece *parts = plan->own_parts;
  ladei_copy_kind *kinds = plan->own_kinds;
  size_t engine = 0, kernel_bytes = 0;
  unsigned direction = 0;
  for (size_t i = 0; i < plan->count; i++) {
    if (kinds[i].reach == LADEI_COPY_BY_KERNEL && parts[i].bytes < engine_from(ways, kinds[i].direction)) {
      kernel_bytes += parts[i].bytes;
      direction = kinds[i].direction;
      continue;
    }
    lade_copy_piece part = parts[i];
    ladei_copy_kind kind = kinds[i];
    parts[i] = parts[engine];
    kinds[i] = kinds[engine];
    parts[engine] = part;
    kinds[engine++] = kind;
  }
  *out = (split){.parts = parts, .kinds = kinds, .count = plan->count, .engine = engine, .kernel_bytes = kernel_bytes};
  if (plan->count - engine <= FEW)
    split_engines(out);
  else
    out->blocks = blocks_for(ways, direction, kernel_bytes / (plan->count - engine));
  return true;
}

static size_t bytes_of(const lade_copy_piece *parts, size_t count) {
  size_t sum = 0;
  for (size_t i = 0; i < count; i++) sum += parts[i].bytes;
  return sum;
}

static lade_status split_queue(lade_runtime *runtime, const ladei_copy_plan *plan, split *s,
                               const ladei_stream *stream) {
  lade_status status = LADE_OK;
  if (s->engine < s->count) {
    lade_error before;
    ladei_error_save(&before);
    status = runtime->ops->copy_kernel(runtime->self, s->parts + s->engine, s->count - s->engine, s->blocks, stream);
    if (status == LADE_ERR_UNSUPPORTED) { /* a stream of another context: nothing is queued */
      ladei_error_restore(&before);
      split_engines(s);
      status = LADE_OK;
    }
  }
  if (status != LADE_OK || s->engine == 0) return status;
  return ladei_copy_by_engine(runtime, s->parts, s->kinds, plan->kind, s->engine, stream);
}

static lade_status plan_queue(lade_runtime *runtime, ladei_copy_plan *plan, const ladei_stream *stream) {
  ladei_copy_ways none = {0}, *ways = ladei_copy_ways_of(runtime, stream->device);
  split s = {0};
  if (ways == NULL) ways = &none;
  if (!split_whole(ways, ways_ready(ways), plan, &s) && !split_parts(ways, plan, &s))
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "copies of pieces: no memory for a list of %zu", plan->count);
  LADEI_TRY(split_queue(runtime, plan, &s, stream));
  count_add(&ways->engine_pieces, s.engine);
  count_add(&ways->engine_bytes, bytes_of(s.parts, s.engine));
  count_add(&ways->kernel_pieces, s.count - s.engine);
  count_add(&ways->kernel_bytes, s.kernel_bytes);
  count_add(&ways->merged_pieces, plan->merged);
  return LADE_OK;
}

static lade_status list_copy(lade_runtime *runtime, const ladei_copy_list_name *name, const lade_copy_piece *pieces,
                             size_t count, const ladei_stream *stream) {
  ladei_copy_plan plan;
  LADEI_TRY(ladei_copy_plan_make(runtime, name, pieces, count, stream, &plan));
  ladei_copy_ways_first_use(runtime, stream);
  lade_status status = plan_queue(runtime, &plan, stream);
  ladei_copy_plan_free(&plan);
  return status;
}

bool ladei_copy_kernel_ready(lade_runtime *runtime, const ladei_stream *stream) {
  return ways_ready(ladei_copy_ways_of(runtime, stream->device));
}

bool ladei_copy_kernel_suits(lade_runtime *runtime, ladei_copy_direction direction, size_t count, size_t bytes,
                             const ladei_stream *stream) {
  const ladei_copy_ways *ways = ladei_copy_ways_of(runtime, stream->device);
  return count > FEW && ways_ready(ways) && bytes / count < engine_from(ways, (unsigned)direction);
}

lade_status ladei_copy_short(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count,
                             const ladei_stream *stream) {
  static const ladei_copy_list_name name = {"lade_pipeline_submit", "copies"};
  lade_error before;
  ladei_copy_plan plan;
  ladei_error_save(&before);
  if (ladei_copy_plan_make(runtime, &name, pieces, count, stream, &plan) != LADE_OK) { /* pieces that overlap, say */
    ladei_error_restore(&before);
    return LADE_ERR_UNSUPPORTED;
  }
  lade_status status = plan_queue(runtime, &plan, stream);
  ladei_copy_plan_free(&plan);
  return status;
}

void ladei_copy_expect(lade_runtime *runtime, size_t count, const ladei_stream *stream) {
  if (count > FEW) ladei_copy_ways_first_use(runtime, stream);
}

lade_status ladei_copy_apart(lade_runtime *runtime, ladei_copy_direction direction, const lade_copy_piece *pieces,
                             size_t count, size_t bytes, const ladei_stream *stream) {
  if (ladei_copy_kernel_suits(runtime, direction, count, bytes, stream)) {
    lade_status status = ladei_copy_short(runtime, pieces, count, stream);
    if (status != LADE_ERR_UNSUPPORTED) return status;
  }
  ladei_copy_kind kind = {.direction = (uint8_t)direction, .reach = LADEI_COPY_BY_ENGINE};
  return ladei_copy_by_engine(runtime, pieces, NULL, kind, count, stream);
}

static lade_status pieces_copy(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count, lade_stream stream) {
  static const ladei_copy_list_name name = {"lade_copy_pieces", "pieces"};
  ladei_stream resolved;
  LADEI_TRY(copies_enter(runtime, name.call, stream, &resolved));
  if (count == 0) return LADE_OK;
  if (pieces == NULL) return ladei_error_null(name.call, "pieces");
  if (count > INT32_MAX) return ladei_error_argument(name.call, "count", "less than 2^31", "%zu", count);
  return list_copy(runtime, &name, pieces, count, &resolved);
}

lade_status lade_copy_pieces(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count, lade_stream stream) {
  return LADEI_HELD(pieces_copy(runtime, pieces, count, stream));
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* Memory that the kernel reaches: `known` is the range that was asked for last. */
static lade_status reach_check(lade_runtime *runtime, const void *memory, size_t bytes, const ladei_stream *stream,
                               ladei_copy_end *known) {
  bool pageable;
  for (uint64_t at = (uint64_t)(uintptr_t)memory, end = at + bytes; at < end; at = known->base + known->bytes) {
    if (at - known->base < known->bytes) continue;
    *known = (ladei_copy_end){.bytes = 0};
    LADEI_TRY(ladei_copy_end_ask(runtime, (const void *)(uintptr_t)at, stream, known, &pageable));
    if (!pageable && known->reached) continue;
    known->bytes = 0;
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "conversion: device %d does not reach %p, which is %s", stream->device,
                       (const void *)(uintptr_t)at, pageable ? "pageable" : "memory under another address");
  }
  return LADE_OK;
}

lade_status ladei_copy_convert(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count, lade_dtype from,
                               lade_dtype to, const ladei_stream *stream) {
  /* Enough for the link of an H200, 51 GB/s by a kernel; a warp converts for longer where numbers are short
   * (benchmarks/results, convert_blocks.txt). */
  const size_t from_bytes = lade_dtype_bits(from) / 8, to_bytes = lade_dtype_bits(to) / 8;
  const unsigned blocks = from_bytes == 4 ? 16 : 32;
  ladei_copy_ways *ways = ladei_copy_ways_of(runtime, stream->device);
  ladei_copy_end sources = {.bytes = 0}, targets = {.bytes = 0};
  if (!ways_ready(ways))
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "conversion: the kernel is not loaded on device %d: lade_copy_prepare()", stream->device);
  for (size_t i = 0; i < count; i++) {
    LADEI_TRY(reach_check(runtime, pieces[i].src, pieces[i].bytes, stream, &sources));
    LADEI_TRY(reach_check(runtime, pieces[i].dst, pieces[i].bytes / from_bytes * to_bytes, stream, &targets));
  }
  LADEI_TRY(runtime->ops->copy_kernel_convert(runtime->self, pieces, count, from, to, blocks, stream));
  count_add(&ways->kernel_pieces, count);
  count_add(&ways->kernel_bytes, bytes_of(pieces, count));
  return LADE_OK;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* The table in full: defaults filled in. */
static lade_status table_read(const lade_copy_table *given, lade_copy_table *t) {
  static const char call[] = "lade_copy_blocks";
  if (given == NULL) return ladei_error_null(call, "table");
  LADEI_TRY(ladei_options_read("lade_copy_table", given, t, sizeof *t));
  if (t->count == 0) return LADE_OK;
  if (t->count > INT32_MAX) return ladei_error_argument(call, "table.count", "less than 2^31", "%zu", t->count);
  if (t->bytes == 0 || t->bytes > INT32_MAX)
    return ladei_error_argument(call, "table.bytes", "more than 0 and less than 2^31", "%zu", t->bytes);
  if (t->dst == NULL || t->src == NULL) return ladei_error_null(call, t->dst == NULL ? "table.dst" : "table.src");
  if (t->id_bytes == 0) t->id_bytes = 8;
  if (t->id_bytes != 4 && t->id_bytes != 8)
    return ladei_error_argument(call, "table.id_bytes", "4 or 8", "%zu", t->id_bytes);
  if (t->dst_stride == 0) t->dst_stride = t->bytes;
  if (t->src_stride == 0) t->src_stride = t->bytes;
  for (int i = 0; i < 2; i++) {
    const char *side = i == 0 ? "dst" : "src";
    size_t stride = i == 0 ? t->dst_stride : t->src_stride, count = i == 0 ? t->dst_count : t->src_count, span;
    char field[32];
    (void)snprintf(field, sizeof field, "table.%s_stride", side);
    if (stride < t->bytes) return ladei_error_argument(call, field, "at least the bytes of a block", "%zu", stride);
    (void)snprintf(field, sizeof field, "table.%s_count", side);
    if (count == 0 || !ladei_size_mul(count, stride, &span) || span >= LADEI_SIZE_LIMIT)
      return ladei_error_argument(call, field, "more than 0, and less than 2^60 bytes in all", "%zu", count);
    const void *ids = i == 0 ? t->dst_ids : t->src_ids;
    (void)snprintf(field, sizeof field, "table.%s_ids", side);
    if ((uintptr_t)ids % t->id_bytes != 0)
      return ladei_error_argument(call, field, "an address that is a multiple of id_bytes", "%p", ids);
  }
  return LADE_OK;
}

static uint64_t id_of(const void *ids, size_t index, size_t id_bytes) {
  if (ids == NULL) return index;
  return id_bytes == 8 ? ((const uint64_t *)ids)[index] : ((const uint32_t *)ids)[index];
}

static lade_status id_refuse(const char *side, size_t index, uint64_t id, size_t count, const char *more) {
  char field[48], expected[64];
  (void)snprintf(field, sizeof field, "table.%s_ids[%zu]", side, index);
  (void)snprintf(expected, sizeof expected, "0 to %zu%s", count - 1, more);
  return ladei_error_argument("lade_copy_blocks", field, expected, "%lld", (long long)id);
}

/* *out_follow: some block follows the one before on both sides. `taken`: a bit for each block of the destination, or NULL. */
static lade_status ids_check(const lade_copy_table *t, uint64_t *taken, bool *out_follow) {
  uint64_t last_to = UINT64_MAX - 1, last_from = UINT64_MAX - 1;
  bool follow = false;
  for (size_t i = 0; i < t->count; i++) {
    uint64_t to = id_of(t->dst_ids, i, t->id_bytes), from = id_of(t->src_ids, i, t->id_bytes);
    if (to >= t->dst_count) return id_refuse("dst", i, to, t->dst_count, "");
    if (from >= t->src_count) return id_refuse("src", i, from, t->src_count, "");
    if (taken != NULL && !ladei_copy_bit_take(taken, to)) return id_refuse("dst", i, to, t->dst_count, ", each once");
    follow = follow || (to == last_to + 1 && from == last_from + 1);
    last_to = to;
    last_from = from;
  }
  *out_follow = follow && t->dst_stride == t->bytes && t->src_stride == t->bytes;
  return LADE_OK;
}

/* All blocks of a side. */
typedef struct blocks_side {
  const char *base;
  size_t bytes;
  int device;        /* -1: pinned host memory */
  bool pinned;       /* ... or device memory */
  bool reached;      /* by the stream's device */
  size_t good_bytes; /* before the first that is not */
} blocks_side;

/* Asks for at most `most` ranges of memory; more are not reached. */
static lade_status side_find(lade_runtime *runtime, const void *base, size_t bytes, unsigned most,
                             const ladei_stream *stream, blocks_side *out) {
  *out = (blocks_side){.base = base, .bytes = bytes, .pinned = true, .reached = true};
  for (size_t rest = bytes; rest != 0 && out->pinned && out->reached;) {
    ladei_copy_end end;
    bool pageable;
    const char *at = out->base + out->good_bytes;
    if (most-- == 0) out->reached = false;
    LADEI_TRY(ladei_copy_end_ask(runtime, at, stream, &end, &pageable));
    out->pinned = !pageable;
    out->reached = out->reached && end.reached;
    out->device = end.device;
    size_t part = pageable ? 0 : ladei_size_min(rest, end.base + end.bytes - (uint64_t)(uintptr_t)at);
    out->good_bytes += part;
    rest -= part;
  }
  return LADE_OK;
}

static lade_status sides_find(lade_runtime *runtime, const lade_copy_table *t, unsigned most,
                              const ladei_stream *stream, blocks_side *to, blocks_side *from) {
  LADEI_TRY(side_find(runtime, t->dst, (t->dst_count - 1) * t->dst_stride + t->bytes, most, stream, to));
  return side_find(runtime, t->src, (t->src_count - 1) * t->src_stride + t->bytes, most, stream, from);
}

static unsigned sides_direction(const blocks_side *to, const blocks_side *from) {
  return ladei_copy_direction_of(to->device >= 0, from->device >= 0);
}

static lade_status table_queue(lade_runtime *runtime, ladei_copy_ways *ways, const lade_copy_table *t, bool at_call,
                               unsigned direction, const ladei_stream *stream) {
  const ladei_copy_table table = {.dst = t->dst,
                                  .src = t->src,
                                  .dst_stride = t->dst_stride,
                                  .src_stride = t->src_stride,
                                  .dst_count = t->dst_count,
                                  .src_count = t->src_count,
                                  .dst_ids = t->dst_ids,
                                  .src_ids = t->src_ids,
                                  .at_call = at_call,
                                  .wide = t->id_bytes == 8,
                                  .bytes = t->bytes,
                                  .count = t->count};
  LADEI_TRY(runtime->ops->copy_kernel_table(runtime->self, &table, blocks_for(ways, direction, t->bytes), stream));
  count_add(&ways->kernel_pieces, t->count);
  count_add(&ways->kernel_bytes, t->count * t->bytes);
  return LADE_OK;
}

/* ---- Ids in device memory ---------------------------------------------------------------------------------------- */

static lade_status side_refuse(const char *name, const blocks_side *s, const ladei_stream *stream) {
  char field[32];
  (void)snprintf(field, sizeof field, "table.%s", name);
  if (!s->pinned)
    return ladei_error_argument("lade_copy_blocks", field, "device memory, or pinned host memory, to its end",
                                "%zu of %zu bytes", s->good_bytes, s->bytes);
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_copy_blocks: ids in device memory: device %d does not reach %s",
                     stream->device, field);
}

static lade_status table_on_device(lade_runtime *runtime, const lade_copy_table *t, const ladei_stream *stream) {
  ladei_copy_ways *ways = ladei_copy_ways_of(runtime, stream->device);
  blocks_side to, from;
  LADEI_TRY(sides_find(runtime, t, UINT_MAX, stream, &to, &from));
  if (!to.pinned || !to.reached) return side_refuse("dst", &to, stream);
  if (!from.pinned || !from.reached) return side_refuse("src", &from, stream);
  ladei_copy_ways_first_use(runtime, stream);
  if (!ways_ready(ways))
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "lade_copy_blocks: ids in device memory need the kernel, which device %d has not loaded: "
                       "lade_copy_prepare()",
                       stream->device);
  return table_queue(runtime, ways, t, false, sides_direction(&to, &from), stream);
}

/* Ids in device memory are read by the kernel: all of them must be there, or the device is lost. */
static lade_status ids_place(lade_runtime *runtime, const lade_copy_table *t, const char *name, const void *ids,
                             const ladei_stream *stream, bool *out_on_device) {
  ladei_copy_end end;
  bool pageable;
  blocks_side all;
  *out_on_device = false;
  if (ids == NULL) return LADE_OK;
  LADEI_TRY(ladei_copy_end_ask(runtime, ids, stream, &end, &pageable));
  *out_on_device = !pageable && end.device >= 0;
  if (!*out_on_device) return LADE_OK;
  LADEI_TRY(side_find(runtime, ids, t->count * t->id_bytes, UINT_MAX, stream, &all));
  return all.pinned && all.reached ? LADE_OK : side_refuse(name, &all, stream);
}

/* ---- Ids in host memory ------------------------------------------------------------------------------------------ */

/* As a list of pieces. */
static lade_status table_expand(lade_runtime *runtime, const lade_copy_table *t, const ladei_stream *stream) {
  const ladei_copy_list_name name = {"lade_copy_blocks", "table: block "};
  lade_copy_piece *pieces = malloc(t->count * sizeof *pieces);
  if (pieces == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_copy_blocks: no memory for %zu blocks", t->count);
  for (size_t i = 0; i < t->count; i++) {
    uint64_t to = id_of(t->dst_ids, i, t->id_bytes), from = id_of(t->src_ids, i, t->id_bytes);
    pieces[i] =
        (lade_copy_piece){(char *)t->dst + to * t->dst_stride, (const char *)t->src + from * t->src_stride, t->bytes};
  }
  lade_status status = list_copy(runtime, &name, pieces, t->count, stream);
  free(pieces);
  return status;
}

/* Whether the kernel gets the ids as they are: blocks that are short, many, reached, and apart from each other. */
static lade_status table_suits(lade_runtime *runtime, const ladei_copy_ways *ways, const lade_copy_table *t,
                               const ladei_stream *stream, unsigned *out_direction, bool *out) {
  enum { MOST_RANGES = 16 };
  blocks_side to, from;
  *out = false;
  if (t->dst_ids == NULL || t->src_ids == NULL || t->count <= FEW || t->dst_count > UINT32_MAX ||
      t->src_count > UINT32_MAX)
    return LADE_OK;
  LADEI_TRY(sides_find(runtime, t, MOST_RANGES, stream, &to, &from));
  bool apart = to.base + to.bytes <= from.base || from.base + from.bytes <= to.base;
  bool reached = to.pinned && to.reached && from.pinned && from.reached && (to.device >= 0 || from.device >= 0);
  *out_direction = sides_direction(&to, &from);
  *out = apart && reached && t->bytes < engine_from(ways, *out_direction);
  return LADE_OK;
}

static lade_status table_at_call(lade_runtime *runtime, const lade_copy_table *t, const ladei_stream *stream) {
  ladei_copy_ways *ways = ladei_copy_ways_of(runtime, stream->device);
  bool follow = false, suits = false;
  unsigned direction = 0;
  uint64_t *taken = ladei_copy_bits_take(runtime, t->dst_count, t->count);
  lade_status status = ids_check(t, taken, &follow);
  ladei_copy_memory_give(runtime, taken);
  if (status != LADE_OK) return status;
  ladei_copy_ways_first_use(runtime, stream);
  if (taken != NULL && !follow && ways_ready(ways))
    LADEI_TRY(table_suits(runtime, ways, t, stream, &direction, &suits));
  if (!suits) return table_expand(runtime, t, stream);
  lade_error before;
  ladei_error_save(&before);
  status = table_queue(runtime, ways, t, true, direction, stream);
  if (status != LADE_ERR_UNSUPPORTED) return status;
  ladei_error_restore(&before); /* a stream of another context: nothing is queued */
  return table_expand(runtime, t, stream);
}

static lade_status blocks_copy(lade_runtime *runtime, const lade_copy_table *given, lade_stream stream) {
  static const char call[] = "lade_copy_blocks";
  lade_copy_table table;
  ladei_stream resolved;
  bool dst_ids, src_ids;
  LADEI_TRY(copies_enter(runtime, call, stream, &resolved));
  LADEI_TRY(table_read(given, &table));
  if (table.count == 0) return LADE_OK;
  LADEI_TRY(ids_place(runtime, &table, "dst_ids", table.dst_ids, &resolved, &dst_ids));
  LADEI_TRY(ids_place(runtime, &table, "src_ids", table.src_ids, &resolved, &src_ids));
  if (dst_ids && src_ids) return table_on_device(runtime, &table, &resolved);
  if (!dst_ids && !src_ids) return table_at_call(runtime, &table, &resolved);
  return ladei_error_argument(call, dst_ids ? "table.src_ids" : "table.dst_ids",
                              "ids in device memory, as the other list", "%p", dst_ids ? table.src_ids : table.dst_ids);
}

lade_status lade_copy_blocks(lade_runtime *runtime, const lade_copy_table *given, lade_stream stream) {
  return LADEI_HELD(blocks_copy(runtime, given, stream));
}

/* ---- Other calls ------------------------------------------------------------------------------------------------- */

static lade_status device_enter(lade_runtime *runtime, const char *call, int device) {
  int count = 0;
  if (runtime == NULL) return ladei_error_null(call, "runtime");
  LADEI_TRY(ladei_runtime_check_process(runtime));
  LADEI_TRY(runtime->ops->device_count(runtime->self, &count));
  if (device >= 0 && device < count) return LADE_OK;
  return ladei_error(LADE_ERR_NO_DEVICE, 0, "%s: no device %d: there are %d", call, device, count);
}

lade_status lade_copy_prepare(lade_runtime *runtime, int device) {
  LADEI_TRY(device_enter(runtime, __func__, device));
  return LADEI_HELD(ladei_copy_ways_prepare(runtime, device));
}

lade_status lade_copy_stats_get(lade_runtime *runtime, int device, lade_copy_stats *stats) {
  LADEI_TRY(device_enter(runtime, __func__, device));
  if (stats == NULL) return ladei_error_null(__func__, "stats");
  lade_copy_stats own;
  lade_copy_stats_init(&own);
  const ladei_copy_ways *ways = ladei_copy_ways_of(runtime, device);
  if (ways != NULL) {
    own.kernel_pieces = atomic_load_explicit(&ways->kernel_pieces, memory_order_relaxed);
    own.kernel_bytes = atomic_load_explicit(&ways->kernel_bytes, memory_order_relaxed);
    own.engine_pieces = atomic_load_explicit(&ways->engine_pieces, memory_order_relaxed);
    own.engine_bytes = atomic_load_explicit(&ways->engine_bytes, memory_order_relaxed);
    own.merged_pieces = atomic_load_explicit(&ways->merged_pieces, memory_order_relaxed);
    own.kernel_loaded = atomic_load_explicit(&ways->state, memory_order_acquire);
    for (int i = 0; i < LADEI_COPY_WAYS; i++) {
      own.engine_from_bytes[i] = atomic_load_explicit(&ways->engine_from[i], memory_order_relaxed);
      own.kernel_blocks[i] = atomic_load_explicit(&ways->blocks[i], memory_order_relaxed);
    }
  }
  return ladei_stats_write("lade_copy_stats", &own, sizeof own, stats);
}
