/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops of the kernel that copies pieces: loads it, and cuts a list into launches.
 *
 *   pieces of one size, whose addresses are within 2^32 steps of a power of two: a table of ids, 8 bytes a piece
 *   otherwise:                                                                   a list, 14 bytes for each 16 KiB of a piece
 *   numbers that are converted:                                                  a list of ranges, 20 bytes each
 *
 * The device copies the first launch's pieces while the next launch is made ready, so the first one is short.
 *
 * Note [Ids in parameters]. 16,384 blocks of 656 bytes, to the device, take 240 us where their ids are on the device before, 266 where
 * five launches bring them, 261 where the first of these is short, and 250 in one launch that reads its ids out of pinned memory, 32 a
 * warp at once (h200/a8b1f731, blocks_parts.txt). That is not done for 4 %: the memory would have to stay until the launch is over, and a
 * capture would need the parameters all the same. The rest of a call is the check of the list, 25 us, and 40 where nothing of it is
 * in the processor's cache.
 *
 * I1  A device's kernels are loaded at most once per runtime: a thread that loses the race to publish them unloads its own.
 * I2  A launch has at most as many entries as its kernel's parameters hold, and at least one.
 * I3  Each byte of the list is in one entry.
 * I4  Pieces of a launch have bytes and addresses, and those of a list addresses for which its entries have room. They are checked
 *     before that launch: a pass over a long list before the first one would be time in which nothing is copied.
 * Locks: none.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "lade/copy.h"
#include "runtime/cuda/copy_kernel.h"
#include "runtime/cuda/copy_kernel_ptx.h"
#include "runtime/cuda/driver.h"

/* An entry is this long, so that warps end together; less if all of them would not keep the warps of a few blocks busy. */
enum { UNIT_BYTES = 16 << 10, SHORT_UNIT_BYTES = 4 << 10, SHORT_TOTAL_BYTES = 4 << 20 };
/* Of a first table: copying them takes the device as long as the next launch takes the processor. */
enum { FIRST_ENTRIES = COPY_SHORT_TABLE_ENTRIES };
_Static_assert(UNIT_BYTES <= UINT16_MAX, "bytes of an entry");
_Static_assert((int)COPY_NUMBERS_ENTRIES == (int)LADEI_CONVERT_LAUNCH_PIECES, "pieces of one launch");

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static CUresult kernels_find(const cuda_api *api, cuda_copy_kernels *kernels) {
  const struct {
    const char *name;
    CUfunction *function;
  } wanted[] = {{"lade_copy_list", &kernels->list},
                {"lade_copy_short_list", &kernels->short_list},
                {"lade_copy_table", &kernels->table},
                {"lade_copy_short_table", &kernels->short_table},
                {"lade_copy_numbers", &kernels->numbers}};
  CUresult code = api->module_load_data(&kernels->module, copy_kernel_ptx);
  if (code != CUDA_SUCCESS) return code;
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && code == CUDA_SUCCESS; i++)
    code = api->module_get_function(wanted[i].function, kernels->module, wanted[i].name);
  if (code != CUDA_SUCCESS) (void)api->module_unload(kernels->module);
  return code;
}

/* The driver or the device cannot take the text: an old one, or one without its compiler. */
static bool text_refused(CUresult code) {
  switch (code) {
  case CUDA_ERROR_NO_BINARY_FOR_GPU:
  case CUDA_ERROR_INVALID_PTX:
  case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
  case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
  case CUDA_ERROR_JIT_COMPILATION_DISABLED: return true;
  default: return false;
  }
}

static lade_status copy_kernel_load(void *self, int device) {
  cuda_call call = {.runtime = self, .op = "copy_kernel_load", .relaxed = true};
  if (!ladei_cuda_enter_device(&call, device)) return call.status;
  _Atomic(cuda_copy_kernels *) *slot = &call.runtime->devices[device].copy_kernels;
  const cuda_api *api = &call.runtime->api;
  cuda_copy_kernels *none = NULL;
  if (atomic_load_explicit(slot, memory_order_acquire) != NULL) return ladei_cuda_leave(&call, CUDA_SUCCESS, "loaded");
  cuda_copy_kernels *kernels = calloc(1, sizeof *kernels);
  CUresult code = kernels == NULL ? CUDA_ERROR_OUT_OF_MEMORY : kernels_find(api, kernels);
  call.out_of_memory = kernels == NULL ? LADE_ERR_OUT_OF_HOST_MEMORY : LADE_ERR_OUT_OF_DEVICE_MEMORY;
  bool published = code == CUDA_SUCCESS && atomic_compare_exchange_strong(slot, &none, kernels);
  if (code == CUDA_SUCCESS && !published) (void)api->module_unload(kernels->module); /* I1 */
  if (!published) free(kernels);
  lade_status status = ladei_cuda_leave(&call, code, "on device %d", device);
  if (!text_refused(code)) return status;
  return ladei_error(LADE_ERR_UNSUPPORTED, code,
                     "copy_kernel_load: device %d, or its driver, does not take the kernel: %s", device,
                     ladei_cuda_error_text(call.runtime, code));
}

void ladei_cuda_copy_kernels_unload(cuda_runtime *runtime) {
  for (int i = 0; i < runtime->device_count; i++) {
    cuda_copy_kernels *kernels = atomic_exchange(&runtime->devices[i].copy_kernels, NULL);
    if (kernels == NULL) continue;
    cuda_call call = {.runtime = runtime, .op = "copy_kernel_unload", .relaxed = true, .releases = true};
    if (ladei_cuda_enter_device(&call, i))
      (void)ladei_cuda_leave(&call, runtime->api.module_unload(kernels->module), "on device %d", i);
    free(kernels);
  }
}

/* The kernels of the stream's context, entered; NULL with call->status set. */
static const cuda_copy_kernels *kernels_enter(cuda_call *call, const ladei_stream *stream) {
  int device = ladei_cuda_context_device(call->runtime, (CUcontext)(uintptr_t)stream->context);
  const cuda_copy_kernels *kernels =
      device < 0 ? NULL : atomic_load_explicit(&call->runtime->devices[device].copy_kernels, memory_order_acquire);
  if (kernels == NULL) {
    call->status = ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: %s", call->op,
                               device < 0 ? "the stream belongs to another context than its device's primary one"
                                          : "the kernel is not loaded");
    return NULL;
  }
  return ladei_cuda_enter_context(call, stream->context) ? kernels : NULL;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* A list on its way to the device. */
typedef struct copy_launcher {
  const cuda_api *api;
  const cuda_copy_kernels *kernels;
  CUstream stream;
  unsigned blocks;
} copy_launcher;

static CUresult launch(const copy_launcher *l, CUfunction function, void *arguments) {
  void *parameters[] = {arguments};
  return l->api->launch_kernel(function, l->blocks, 1, 1, COPY_THREADS, 1, 1, 0, l->stream, parameters, NULL);
}

static uint32_t unit_of(size_t total_bytes) { return total_bytes < SHORT_TOTAL_BYTES ? SHORT_UNIT_BYTES : UNIT_BYTES; }

static CUresult list_launch(const copy_launcher *l, copy_list *list) {
  copy_short_list few;
  assert(list->count > 0 && list->count <= COPY_LIST_ENTRIES); /* I2 */
  if (list->count > COPY_SHORT_LIST_ENTRIES) return launch(l, l->kernels->list, list);
  memcpy(few.dst, list->dst, list->count * sizeof few.dst[0]);
  memcpy(few.src, list->src, list->count * sizeof few.src[0]);
  memcpy(few.dst_high, list->dst_high, list->count * sizeof few.dst_high[0]);
  memcpy(few.src_high, list->src_high, list->count * sizeof few.src_high[0]);
  memcpy(few.bytes, list->bytes, list->count * sizeof few.bytes[0]);
  few.count = list->count;
  return launch(l, l->kernels->short_list, &few);
}

/* Adds a piece, unit by unit; launches what is full. */
static CUresult list_add(const copy_launcher *l, copy_list *list, uint64_t dst, uint64_t src, size_t bytes,
                         uint32_t unit) {
  for (CUresult code; bytes != 0;) {
    uint32_t part = (uint32_t)ladei_size_min(bytes, unit);
    list->dst[list->count] = (uint32_t)dst;
    list->src[list->count] = (uint32_t)src;
    list->dst_high[list->count] = (uint16_t)(dst >> 32);
    list->src_high[list->count] = (uint16_t)(src >> 32);
    list->bytes[list->count++] = (uint16_t)part;
    dst += part;
    src += part;
    bytes -= part;
    if (list->count < COPY_LIST_ENTRIES) continue;
    code = list_launch(l, list);
    list->count = 0;
    if (code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

static CUresult list_queue(const copy_launcher *l, copy_list *list, const lade_copy_piece *pieces, size_t count,
                           uint32_t unit) {
  CUresult code = CUDA_SUCCESS;
  list->count = 0;
  for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++)
    code = list_add(l, list, cuda_address(pieces[i].dst), cuda_address(pieces[i].src), pieces[i].bytes, unit);
  return code == CUDA_SUCCESS && list->count != 0 ? list_launch(l, list) : code;
}

/* One side of a table: ids count steps of 2^shift from the lowest address. */
typedef struct table_side {
  uint64_t low, high, differ; /* addresses; bits in which they differ */
  unsigned shift;
} table_side;

static void side_add(table_side *s, const void *pointer, uint64_t first) {
  uint64_t address = cuda_address(pointer);
  s->low = address < s->low ? address : s->low;
  s->high = address > s->high ? address : s->high;
  s->differ |= address ^ first;
}

/* Whether ids of 32 bits tell the addresses. The lowest address has the common low bits, too. Not those of NULL: I4. */
static bool side_fits(table_side *s) {
  s->shift = s->differ == 0 ? 0 : (unsigned)__builtin_ctzll(s->differ);
  return s->low != 0 && (s->high - s->low) >> s->shift < UINT32_MAX;
}

/* Of ids in the parameters. */
static CUresult table_launch(const copy_launcher *l, copy_table *table) {
  copy_short_table few;
  assert(table->table.count > 0 && table->table.count <= COPY_TABLE_ENTRIES); /* I2 */
  if (table->table.count > COPY_SHORT_TABLE_ENTRIES) return launch(l, l->kernels->table, table);
  few.table = table->table;
  memcpy(few.dst_ids, table->dst_ids, table->table.count * sizeof few.dst_ids[0]);
  memcpy(few.src_ids, table->src_ids, table->table.count * sizeof few.src_ids[0]);
  return launch(l, l->kernels->short_table, &few);
}

/* The next pieces that one table holds; 0: they go by lists. */
static uint32_t table_count(const lade_copy_piece *pieces, size_t count, table_side *to, table_side *from) {
  uint32_t most = (uint32_t)ladei_size_min(count, COPY_TABLE_ENTRIES), n = 0;
  if (pieces[0].bytes == 0 || pieces[0].bytes > UINT32_MAX - UNIT_BYTES) return 0;
  *to = *from = (table_side){.low = UINT64_MAX};
  for (; n < most && pieces[n].bytes == pieces[0].bytes; n++) {
    side_add(to, pieces[n].dst, cuda_address(pieces[0].dst));
    side_add(from, pieces[n].src, cuda_address(pieces[0].src));
  }
  return n == most && side_fits(to) && side_fits(from) ? n : 0;
}

static CUresult table_queue(const copy_launcher *l, copy_table *table, const lade_copy_piece *pieces, uint32_t count,
                            const table_side *to, const table_side *from, uint32_t unit) {
  table->table = (copy_table_head){.dst = to->low,
                                   .src = from->low,
                                   .dst_stride = UINT64_C(1) << to->shift,
                                   .src_stride = UINT64_C(1) << from->shift,
                                   .dst_count = UINT64_MAX,
                                   .src_count = UINT64_MAX,
                                   .bytes = (uint32_t)pieces[0].bytes,
                                   .count = count,
                                   .unit = unit};
  for (uint32_t i = 0; i < count; i++) {
    table->dst_ids[i] = (uint32_t)((cuda_address(pieces[i].dst) - to->low) >> to->shift);
    table->src_ids[i] = (uint32_t)((cuda_address(pieces[i].src) - from->low) >> from->shift);
  }
  return table_launch(l, table);
}

/* I4 */
static bool pieces_check(cuda_call *call, const lade_copy_piece *pieces, size_t count) {
  uint64_t addresses = 0;
  for (size_t i = 0; i < count; i++) {
    if (!ladei_cuda_range_check(call, pieces[i].dst, pieces[i].bytes) ||
        !ladei_cuda_range_check(call, pieces[i].src, pieces[i].bytes))
      return false;
    addresses |= cuda_address(pieces[i].dst) | cuda_address(pieces[i].src);
  }
  if (addresses >> 48 == 0) return true;
  call->status = ladei_error(LADE_ERR_UNSUPPORTED, 0, "copy_kernel: an address of more than 48 bits");
  return false;
}

/* `arguments`: room for both kinds. Ends with the first failure, of the driver or of a check, which sets call->status. */
static CUresult pieces_queue(cuda_call *call, const copy_launcher *l, void *arguments, const lade_copy_piece *pieces,
                             size_t count, uint32_t unit) {
  CUresult code = CUDA_SUCCESS;
  for (size_t n, most = FIRST_ENTRIES; count != 0 && code == CUDA_SUCCESS; count -= n, pieces += n) {
    table_side to, from;
    n = table_count(pieces, ladei_size_min(count, most), &to, &from);
    if (n != 0) {
      code = table_queue(l, arguments, pieces, (uint32_t)n, &to, &from, unit);
    } else {
      n = ladei_size_min(count, COPY_LIST_ENTRIES);
      if (!pieces_check(call, pieces, n)) break;
      code = list_queue(l, arguments, pieces, n, unit);
    }
    most = COPY_TABLE_ENTRIES;
  }
  return code;
}

static uint32_t unit_of_pieces(const lade_copy_piece *pieces, size_t count) {
  size_t sum = 0;
  for (size_t i = 0; i < count && sum < SHORT_TOTAL_BYTES; i++)
    sum += ladei_size_min(pieces[i].bytes, SHORT_TOTAL_BYTES);
  return unit_of(sum);
}

static lade_status copy_kernel(void *self, const lade_copy_piece *pieces, size_t count, unsigned blocks,
                               const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy_kernel"};
  if (count == 0 || blocks == 0)
    return ladei_error_argument("copy_kernel", "count, blocks", "more than 0", "%zu, %u", count, blocks);
  const cuda_copy_kernels *kernels = kernels_enter(&call, stream);
  if (kernels == NULL) return call.status;
  const copy_launcher l = {&call.runtime->api, kernels, stream->handle, blocks};
  void *arguments = malloc(ladei_size_max(sizeof(copy_list), sizeof(copy_table)));
  CUresult code = arguments == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  call.out_of_memory = arguments == NULL ? LADE_ERR_OUT_OF_HOST_MEMORY : LADE_ERR_OUT_OF_DEVICE_MEMORY;
  if (code == CUDA_SUCCESS) code = pieces_queue(&call, &l, arguments, pieces, count, unit_of_pieces(pieces, count));
  free(arguments);
  lade_status checked = call.status;
  lade_status left = ladei_cuda_leave(&call, code, "%zu pieces on stream %p", count, (void *)stream->handle);
  return left == LADE_OK ? checked : left;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static copy_table_head head_of(const ladei_copy_table *t) {
  return (copy_table_head){.dst = cuda_address(t->dst),
                           .src = cuda_address(t->src),
                           .dst_stride = t->dst_stride,
                           .src_stride = t->src_stride,
                           .dst_count = t->dst_count,
                           .src_count = t->src_count,
                           .bytes = (uint32_t)t->bytes,
                           .unit = unit_of(t->count * t->bytes),
                           .wide = t->wide};
}

/* The kernel reads the ids. */
static CUresult ids_on_device(const copy_launcher *l, const ladei_copy_table *t) {
  copy_short_table table = {.table = head_of(t)};
  table.table.dst_ids = cuda_address(t->dst_ids);
  table.table.src_ids = cuda_address(t->src_ids);
  table.table.count = (uint32_t)t->count;
  return launch(l, l->kernels->short_table, &table);
}

static void ids_copy(const ladei_copy_table *t, const void *ids, size_t first, uint32_t count, uint32_t *out) {
  const uint64_t *wide = ids;
  if (!t->wide) memcpy(out, (const uint32_t *)ids + first, count * sizeof *out);
  for (uint32_t i = 0; i < count && t->wide; i++) out[i] = (uint32_t)wide[first + i];
}

static CUresult ids_at_call(const copy_launcher *l, const ladei_copy_table *t, copy_table *table) {
  CUresult code = CUDA_SUCCESS;
  table->table = head_of(t);
  for (size_t i = 0; i < t->count && code == CUDA_SUCCESS; i += table->table.count) {
    table->table.count = (uint32_t)ladei_size_min(t->count - i, i == 0 ? FIRST_ENTRIES : COPY_TABLE_ENTRIES);
    ids_copy(t, t->dst_ids, i, table->table.count, table->dst_ids);
    ids_copy(t, t->src_ids, i, table->table.count, table->src_ids);
    code = table_launch(l, table);
  }
  return code;
}

static lade_status copy_kernel_table(void *self, const ladei_copy_table *t, unsigned blocks,
                                     const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy_kernel_table"};
  if (!ladei_cuda_range_check(&call, t->dst, t->bytes) || !ladei_cuda_range_check(&call, t->src, t->bytes) ||
      !ladei_cuda_range_check(&call, t->dst_ids, t->count) || !ladei_cuda_range_check(&call, t->src_ids, t->count))
    return call.status;
  if (blocks == 0 || t->bytes > UINT32_MAX - UNIT_BYTES || t->count > UINT32_MAX)
    return ladei_error_argument("copy_kernel_table", "blocks, bytes, count", "more than 0, and less than 2^32 - 16384",
                                "%u, %zu, %zu", blocks, t->bytes, t->count);
  if (t->at_call && (t->dst_count > UINT32_MAX || t->src_count > UINT32_MAX))
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "copy_kernel_table: ids of more than 32 bits in host memory");
  const cuda_copy_kernels *kernels = kernels_enter(&call, stream);
  if (kernels == NULL) return call.status;
  const copy_launcher l = {&call.runtime->api, kernels, stream->handle, blocks};
  copy_table *table = t->at_call ? malloc(sizeof *table) : NULL;
  bool room = !t->at_call || table != NULL;
  call.out_of_memory = room ? LADE_ERR_OUT_OF_DEVICE_MEMORY : LADE_ERR_OUT_OF_HOST_MEMORY;
  CUresult code = !room ? CUDA_ERROR_OUT_OF_MEMORY : t->at_call ? ids_at_call(&l, t, table) : ids_on_device(&l, t);
  free(table);
  return ladei_cuda_leave(&call, code, "%zu blocks of %zu bytes on stream %p", t->count, t->bytes,
                          (void *)stream->handle);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* Adds a range, in parts that an entry holds; launches what is full. */
static CUresult numbers_add(const copy_launcher *l, copy_numbers *list, const lade_copy_piece *piece) {
  CUresult code = CUDA_SUCCESS;
  const size_t most = (size_t)1 << 31; /* whole units, so that each part begins with a whole number */
  for (size_t at = 0, part; at < piece->bytes && code == CUDA_SUCCESS; at += part) {
    part = ladei_size_min(piece->bytes - at, most);
    list->dst[list->count] = cuda_address(piece->dst) + at / list->from.bytes * list->to.bytes;
    list->src[list->count] = cuda_address(piece->src) + at;
    list->bytes[list->count++] = (uint32_t)part;
    if (list->count < COPY_NUMBERS_ENTRIES) continue;
    code = launch(l, l->kernels->numbers, list);
    list->count = 0;
  }
  return code;
}

static lade_status copy_kernel_convert(void *self, const lade_copy_piece *pieces, size_t count, lade_dtype from,
                                       lade_dtype to, unsigned blocks, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy_kernel_convert"};
  const ladei_number_format *source = ladei_number_format_of(from), *target = ladei_number_format_of(to);
  LADEI_TRY(ladei_ops_convert_check(pieces, count, from, to, blocks));
  if (!pieces_check(&call, pieces, count)) return call.status;
  const cuda_copy_kernels *kernels = kernels_enter(&call, stream);
  if (kernels == NULL) return call.status;
  const copy_launcher l = {&call.runtime->api, kernels, stream->handle, blocks};
  copy_numbers list = {.from = *source, .to = *target, .unit = unit_of_pieces(pieces, count)};
  CUresult code = CUDA_SUCCESS;
  for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++) code = numbers_add(&l, &list, &pieces[i]);
  if (code == CUDA_SUCCESS && list.count != 0) code = launch(&l, kernels->numbers, &list);
  return ladei_cuda_leave(&call, code, "%zu pieces on stream %p", count, (void *)stream->handle);
}

void ladei_cuda_fill_copy_kernel_ops(lade_runtime_ops *ops) {
  ops->copy_kernel_load = copy_kernel_load;
  ops->copy_kernel = copy_kernel;
  ops->copy_kernel_table = copy_kernel_table;
  ops->copy_kernel_convert = copy_kernel_convert;
}
