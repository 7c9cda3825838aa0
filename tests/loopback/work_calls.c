/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points that queue work or run it: copies, fills, host functions, value writes, graphs.
 *
 * Locks: none.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/copy.h"
#include "runtime/cuda/copy_kernel.h"
#include "tests/loopback/loopback.h"

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static bool is_of_kind(const void *pointer, ladei_memory_kind kind) {
  ladei_pointer_attributes found;
  return loop_ops()->pointer_attributes(loop_self(), pointer, &found) == LADE_OK && found.kind == kind;
}

static bool on_device(const void *pointer) { return is_of_kind(pointer, LADEI_MEMORY_DEVICE); }

/* Unified addressing: the addresses tell the direction. */
static ladei_copy_direction direction_find(CUdeviceptr dst, CUdeviceptr src) {
  bool to_device = on_device(loop_pointer(dst));
  if (on_device(loop_pointer(src))) return to_device ? LADEI_COPY_D2D : LADEI_COPY_D2H;
  return to_device ? LADEI_COPY_H2D : LADEI_COPY_H2H;
}

static bool is_pageable(const void *pointer) { return is_of_kind(pointer, LADEI_MEMORY_UNKNOWN); }

/* Whether the driver waits for an asynchronous copy. Of pageable sources it takes 1 MiB on a busy stream and does not take 8; the limit
 * lies between. Of copies within the host that is known for cuMemcpyAsync alone. */
static bool copy_waits(ladei_copy_direction direction, const void *dst, const void *src, size_t bytes) {
  enum { STAGED_BYTES = 4 << 20 };
  if (direction == LADEI_COPY_H2D) return bytes > STAGED_BYTES && is_pageable(src);
  return direction == LADEI_COPY_D2H && is_pageable(dst);
}

/* Waits for a stream's work so far, unless it captures. */
static CUresult work_wait(const ladei_stream *stream) {
  ladei_capture_info info;
  CUresult code = loop_code(loop_ops()->stream_capture_info(loop_self(), stream, &info));
  if (code != CUDA_SUCCESS || info.status != LADEI_CAPTURE_NONE) return code;
  return loop_code(loop_ops()->stream_synchronize(loop_self(), stream));
}

static CUresult copy_queue(ladei_copy_direction direction, void *dst, const void *src, size_t bytes, CUstream handle) {
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS || bytes == 0) return code;
  code = loop_code(loop_ops()->copy(loop_self(), direction, dst, src, bytes, &stream));
  return code == CUDA_SUCCESS && copy_waits(direction, dst, src, bytes) ? work_wait(&stream) : code;
}

static CUresult copy_wait(ladei_copy_direction direction, void *dst, const void *src, size_t bytes) {
  return loop_code(loop_ops()->copy_sync(loop_self(), loop_current()->device, direction, dst, src, bytes));
}

CUresult loop_cuMemcpyHtoDAsync_v3020(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
  LOOP_ENTER(cuMemcpyHtoDAsync, 3020);
  bool to_pinned = is_of_kind(loop_pointer(dst), LADEI_MEMORY_PINNED); /* a device reaches it under its address */
  return copy_queue(to_pinned ? LADEI_COPY_H2H : LADEI_COPY_H2D, loop_pointer(dst), src, bytes, stream);
}

CUresult loop_cuMemcpyDtoHAsync_v3020(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  LOOP_ENTER(cuMemcpyDtoHAsync, 3020);
  bool from_pinned = is_of_kind(loop_pointer(src), LADEI_MEMORY_PINNED);
  return copy_queue(from_pinned ? LADEI_COPY_H2H : LADEI_COPY_D2H, dst, loop_pointer(src), bytes, stream);
}

CUresult loop_cuMemcpyAsync_v4000(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  LOOP_ENTER(cuMemcpyAsync, 4000);
  ladei_copy_direction direction = bytes == 0 ? LADEI_COPY_D2D : direction_find(dst, src);
  CUresult code = copy_queue(direction, loop_pointer(dst), loop_pointer(src), bytes, stream);
  ladei_stream resolved;
  if (code != CUDA_SUCCESS || direction != LADEI_COPY_H2H) return code;
  code = loop_stream(stream, &resolved);
  return code == CUDA_SUCCESS ? work_wait(&resolved) : code; /* also between pinned memory */
}

/* Row by row; to or from host memory or addresses, among which is pinned memory. */
CUresult loop_cuMemcpy2DAsync_v3020(const CUDA_MEMCPY2D *copy, CUstream stream) {
  LOOP_ENTER(cuMemcpy2DAsync, 3020);
  if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return CUDA_ERROR_NOT_SUPPORTED;
  CUdeviceptr src = copy->srcMemoryType == CU_MEMORYTYPE_HOST ? loop_address(copy->srcHost) : copy->srcDevice;
  CUdeviceptr dst = copy->dstMemoryType == CU_MEMORYTYPE_HOST ? loop_address(copy->dstHost) : copy->dstDevice;
  CUresult code = CUDA_SUCCESS;
  for (size_t row = 0; row < copy->Height && code == CUDA_SUCCESS; row++) {
    CUdeviceptr from = src + (copy->srcY + row) * copy->srcPitch + copy->srcXInBytes;
    CUdeviceptr to = dst + (copy->dstY + row) * copy->dstPitch + copy->dstXInBytes;
    code = copy_queue(direction_find(to, from), loop_pointer(to), loop_pointer(from), copy->WidthInBytes, stream);
  }
  return code;
}

CUresult loop_cuMemcpyHtoD_v3020(CUdeviceptr dst, const void *src, size_t bytes) {
  LOOP_ENTER(cuMemcpyHtoD, 3020);
  return copy_wait(LADEI_COPY_H2D, loop_pointer(dst), src, bytes);
}

CUresult loop_cuMemcpyDtoH_v3020(void *dst, CUdeviceptr src, size_t bytes) {
  LOOP_ENTER(cuMemcpyDtoH, 3020);
  return copy_wait(LADEI_COPY_D2H, dst, loop_pointer(src), bytes);
}

CUresult loop_cuMemcpy_v4000(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  LOOP_ENTER(cuMemcpy, 4000);
  return copy_wait(direction_find(dst, src), loop_pointer(dst), loop_pointer(src), bytes);
}

CUresult loop_cuMemcpyPeerAsync_v4000(CUdeviceptr dst, CUcontext dst_handle, CUdeviceptr src, CUcontext src_handle,
                                      size_t bytes, CUstream handle) {
  LOOP_ENTER(cuMemcpyPeerAsync, 4000);
  ladei_stream stream;
  loop_context *dst_context = loop_context_find(dst_handle);
  loop_context *src_context = loop_context_find(src_handle);
  if (dst_context == NULL || src_context == NULL || !loop_context_usable(dst_context) ||
      !loop_context_usable(src_context))
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  return loop_code(loop_ops()->copy_peer(loop_self(), loop_pointer(dst), dst_context->device, loop_pointer(src),
                                         src_context->device, bytes, &stream));
}

/* Copies of one direction, one behind the other; those from pageable memory are waited for. */
static CUresult batch_part(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                           ladei_copy_direction direction, const ladei_stream *stream) {
  CUresult code = loop_code(loop_ops()->copy_batch(loop_self(), direction, count, (void *const *)(uintptr_t)dsts,
                                                   (const void *const *)(uintptr_t)srcs, sizes, stream));
  bool waits = direction == LADEI_COPY_H2D && is_pageable(loop_pointer(srcs[0]));
  return code == CUDA_SUCCESS && waits ? work_wait(stream) : code;
}

static CUresult copy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                           const CUmemcpyAttributes *attributes, const size_t *starts, size_t attribute_count,
                           CUstream handle) {
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  if (stream.kind == LADEI_STREAM_LEGACY || count == 0 || attribute_count != 1 || starts[0] != 0 ||
      attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || attributes->flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (sizes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0, part; i < count && code == CUDA_SUCCESS; i += part) {
    ladei_copy_direction direction = direction_find(dsts[i], srcs[i]);
    for (part = 1; i + part < count && direction_find(dsts[i + part], srcs[i + part]) == direction;) part++;
    code = batch_part(dsts + i, srcs + i, sizes + i, part, direction, &stream);
  }
  return code;
}

CUresult loop_cuMemcpyBatchAsync_v12080(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                        CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                        size_t *out_failed, CUstream stream) {
  LOOP_ENTER(cuMemcpyBatchAsync, 12080);
  CUresult code = copy_batch(dsts, srcs, sizes, count, attributes, starts, attribute_count, stream);
  if (code != CUDA_SUCCESS) *out_failed = SIZE_MAX;
  return code;
}

CUresult loop_cuMemcpyBatchAsync_v13000(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                        CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                        CUstream stream) {
  LOOP_ENTER(cuMemcpyBatchAsync, 13000);
  return copy_batch(dsts, srcs, sizes, count, attributes, starts, attribute_count, stream);
}

/* ---- Other work -------------------------------------------------------------------------------------------------- */

CUresult loop_cuMemsetD8Async_v3020(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream handle) {
  LOOP_ENTER(cuMemsetD8Async, 3020);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS || bytes == 0) return code;
  return loop_code(loop_ops()->fill(loop_self(), loop_pointer(dst), value, bytes, &stream));
}

CUresult loop_cuMemsetD32Async_v3020(CUdeviceptr dst, unsigned int value, size_t count, CUstream handle) {
  LOOP_ENTER(cuMemsetD32Async, 3020);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS || count == 0) return code;
  return loop_code(ladei_soft_fill_words(loop_self(), loop_pointer(dst), value, count, &stream));
}

CUresult loop_cuMemsetD8_v3020(CUdeviceptr dst, unsigned char value, size_t bytes) {
  LOOP_ENTER(cuMemsetD8, 3020);
  CUresult code = loop_cuMemsetD8Async_v3020(dst, value, bytes, NULL);
  return code == CUDA_SUCCESS ? loop_cuStreamSynchronize_v2000(NULL) : code;
}

/*
 * A module is a name: either without anything in it, or that of lade's copy kernels, of which each function is a name. Others whose
 * kernels take parameters, so that there is something to run, are refused. As the driver does, loading and unloading wait for the
 * device.
 */
static const char *const copy_kernels[] = {"lade_copy_list", "lade_copy_short_list", "lade_copy_table",
                                           "lade_copy_short_table", "lade_copy_numbers"};
enum { COPY_KERNELS = sizeof copy_kernels / sizeof copy_kernels[0] };

CUresult loop_cuModuleLoadData_v2000(CUmodule *out, const void *image) {
  LOOP_ENTER(cuModuleLoadData, 2000);
  static _Atomic(uintptr_t) modules;
  if (image == NULL) return CUDA_ERROR_INVALID_VALUE;
  bool copies = strstr(image, copy_kernels[0]) != NULL;
  if (!copies && strstr(image, ".param") != NULL) return CUDA_ERROR_NOT_SUPPORTED;
  if (copies && loop_driver_version() < 12010) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  if (copies && loop_ops()->copy_kernel_load(loop_self(), loop_current()->device) != LADE_OK)
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  loop_streams_wait(loop_current()->device);
  *out = (CUmodule)(void *)++modules; /* NOLINT: a name */
  return CUDA_SUCCESS;
}

CUresult loop_cuModuleUnload_v2000(CUmodule module) {
  LOOP_ENTER(cuModuleUnload, 2000);
  if (module == NULL) return CUDA_ERROR_INVALID_HANDLE;
  loop_streams_wait(loop_current()->device);
  return CUDA_SUCCESS;
}

CUresult loop_cuModuleGetFunction_v2000(CUfunction *out, CUmodule module, const char *name) {
  LOOP_ENTER(cuModuleGetFunction, 2000);
  for (uintptr_t i = 0; i < COPY_KERNELS && module != NULL; i++) {
    if (strcmp(name, copy_kernels[i]) != 0) continue;
    *out = (CUfunction)(void *)(i + 1); /* NOLINT: a name */
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

/* What the kernel does with a list in its parameters, by copy_kernel of the software device. */
static CUresult list_run(uint32_t count, const uint32_t *dst, const uint16_t *dst_high, const uint32_t *src,
                         const uint16_t *src_high, const uint16_t *bytes, unsigned blocks, const ladei_stream *stream) {
  lade_copy_piece pieces[COPY_LIST_ENTRIES];
  for (uint32_t i = 0; i < count; i++) {
    pieces[i] = (lade_copy_piece){loop_pointer((CUdeviceptr)dst_high[i] << 32 | dst[i]),
                                  loop_pointer((CUdeviceptr)src_high[i] << 32 | src[i]), bytes[i]};
  }
  return loop_code(loop_ops()->copy_kernel(loop_self(), pieces, count, blocks, stream));
}

static CUresult table_run(const copy_table_head *t, const uint32_t *dst_ids, const uint32_t *src_ids, unsigned blocks,
                          const ladei_stream *stream) {
  lade_copy_piece pieces[COPY_TABLE_ENTRIES];
  if (t->dst_ids != 0) {
    const ladei_copy_table table = {.dst = loop_pointer(t->dst),
                                    .src = loop_pointer(t->src),
                                    .dst_stride = t->dst_stride,
                                    .src_stride = t->src_stride,
                                    .dst_count = t->dst_count,
                                    .src_count = t->src_count,
                                    .dst_ids = loop_pointer(t->dst_ids),
                                    .src_ids = loop_pointer(t->src_ids),
                                    .wide = t->wide != 0,
                                    .bytes = t->bytes,
                                    .count = t->count};
    return loop_code(loop_ops()->copy_kernel_table(loop_self(), &table, blocks, stream));
  }
  for (uint32_t i = 0; i < t->count; i++) {
    pieces[i] = (lade_copy_piece){loop_pointer(t->dst + t->dst_stride * dst_ids[i]),
                                  loop_pointer(t->src + t->src_stride * src_ids[i]), t->bytes};
  }
  return loop_code(loop_ops()->copy_kernel(loop_self(), pieces, t->count, blocks, stream));
}

/* By copy_kernel_convert: the dtypes are told by their formats. */
static CUresult numbers_run(const copy_numbers *list, unsigned blocks, const ladei_stream *stream) {
  lade_copy_piece pieces[COPY_NUMBERS_ENTRIES];
  lade_dtype from = LADE_DTYPE_BOOL, to = LADE_DTYPE_BOOL;
  for (int i = 0; lade_dtype_name((lade_dtype)(i + 1)) != NULL; i++) {
    const ladei_number_format *format = ladei_number_format_of((lade_dtype)(i + 1));
    if (format == NULL) continue;
    if (memcmp(format, &list->from, sizeof *format) == 0) from = (lade_dtype)(i + 1);
    if (memcmp(format, &list->to, sizeof *format) == 0) to = (lade_dtype)(i + 1);
  }
  for (uint32_t i = 0; i < list->count; i++)
    pieces[i] = (lade_copy_piece){loop_pointer(list->dst[i]), loop_pointer(list->src[i]), list->bytes[i]};
  return loop_code(loop_ops()->copy_kernel_convert(loop_self(), pieces, list->count, from, to, blocks, stream));
}

CUresult loop_cuLaunchKernel_v4000(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                                   unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                                   CUstream handle, void **parameters, void **extra) {
  LOOP_ENTER(cuLaunchKernel, 4000);
  ladei_stream stream;
  uintptr_t kernel = (uintptr_t)function;
  if (kernel == 0 || kernel > COPY_KERNELS) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == 0 || blocks_y != 1 || blocks_z != 1 || threads % 32 != 0 || threads == 0 || threads_y != 1 ||
      threads_z != 1 || shared_bytes != 0 || parameters == NULL || extra != NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  const copy_list *list = parameters[0];
  const copy_short_list *few = parameters[0];
  const copy_table *table = parameters[0];
  const copy_short_table *few_ids = parameters[0];
  switch (kernel) {
  case 1:
    return list_run(list->count, list->dst, list->dst_high, list->src, list->src_high, list->bytes, blocks, &stream);
  case 2: return list_run(few->count, few->dst, few->dst_high, few->src, few->src_high, few->bytes, blocks, &stream);
  case 3: return table_run(&table->table, table->dst_ids, table->src_ids, blocks, &stream);
  case 5: return numbers_run(parameters[0], blocks, &stream);
  default: return table_run(&few_ids->table, few_ids->dst_ids, few_ids->src_ids, blocks, &stream);
  }
}

CUresult loop_cuLaunchHostFunc_v10000(CUstream handle, CUhostFn function, void *user) {
  LOOP_ENTER(cuLaunchHostFunc, 10000);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  return code == CUDA_SUCCESS ? loop_code(loop_ops()->host_function(loop_self(), &stream, function, user)) : code;
}

static CUresult value_write(CUstream handle, CUdeviceptr address, uint64_t value, unsigned width_bits,
                            unsigned int flags) {
  ladei_stream stream;
  CUresult code = flags != 0 ? CUDA_ERROR_INVALID_VALUE : loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  return loop_code(loop_ops()->stream_write_value(loop_self(), &stream, loop_pointer(address), value, width_bits));
}

CUresult loop_cuStreamWriteValue32_v11070(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  LOOP_ENTER(cuStreamWriteValue32, 11070);
  return value_write(stream, address, value, 32, flags);
}

CUresult loop_cuStreamWriteValue64_v11070(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  LOOP_ENTER(cuStreamWriteValue64, 11070);
  return value_write(stream, address, value, 64, flags);
}

/* The host looks in the stream's place. What the stream waits for is written by the host, or by another stream. */
typedef struct value_wait {
  const void *address;
  uint64_t value;
  unsigned width_bits, condition;
} value_wait;

static bool value_is_there(const value_wait *wait) {
  uint64_t found = wait->width_bits == 32
                       ? atomic_load((const _Atomic(uint32_t) *)wait->address)  /* NOLINT: the width is the caller's */
                       : atomic_load((const _Atomic(uint64_t) *)wait->address); /* NOLINT */
  switch (wait->condition) {
  case CU_STREAM_WAIT_VALUE_EQ: return found == wait->value;
  case CU_STREAM_WAIT_VALUE_AND: return (found & wait->value) != 0;
  case CU_STREAM_WAIT_VALUE_NOR: return ~(found | wait->value) != 0;
  default:
    return wait->width_bits == 32 ? (int32_t)((uint32_t)found - (uint32_t)wait->value) >= 0
                                  : (int64_t)(found - wait->value) >= 0;
  }
}

static void value_await(void *user) {
  value_wait *wait = user;
  while (!value_is_there(wait)) usleep(100);
  free(wait);
}

/* Not in a graph, which would wait more than once. */
static CUresult value_wait_queue(CUstream handle, CUdeviceptr address, uint64_t value, unsigned width_bits,
                                 unsigned int flags) {
  ladei_stream stream;
  ladei_capture_info info;
  CUresult code = (flags & ~3u) != 0 ? CUDA_ERROR_INVALID_VALUE : loop_stream(handle, &stream);
  if (code == CUDA_SUCCESS) code = loop_code(loop_ops()->stream_capture_info(loop_self(), &stream, &info));
  if (code == CUDA_SUCCESS && info.status != LADEI_CAPTURE_NONE) code = CUDA_ERROR_NOT_SUPPORTED;
  value_wait *wait = code == CUDA_SUCCESS ? malloc(sizeof *wait) : NULL;
  if (wait == NULL) return code == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : code;
  *wait = (value_wait){loop_pointer(address), value, width_bits, flags};
  code = loop_code(loop_ops()->host_function(loop_self(), &stream, value_await, wait));
  if (code != CUDA_SUCCESS) free(wait);
  return code;
}

CUresult loop_cuStreamWaitValue32_v11070(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  LOOP_ENTER(cuStreamWaitValue32, 11070);
  return value_wait_queue(stream, address, value, 32, flags);
}

CUresult loop_cuStreamWaitValue64_v11070(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  LOOP_ENTER(cuStreamWaitValue64, 11070);
  return value_wait_queue(stream, address, value, 64, flags);
}

static CUresult value_op(CUstream stream, const CUstreamBatchMemOpParams *op) {
  switch ((int)op->operation) {
  case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    return value_write(stream, op->writeValue.address, op->writeValue.value, 32, op->writeValue.flags);
  case CU_STREAM_MEM_OP_WRITE_VALUE_64:
    return value_write(stream, op->writeValue.address, op->writeValue.value64, 64, op->writeValue.flags);
  case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    return value_wait_queue(stream, op->waitValue.address, op->waitValue.value, 32, op->waitValue.flags);
  case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    return value_wait_queue(stream, op->waitValue.address, op->waitValue.value64, 64, op->waitValue.flags);
  case CU_STREAM_MEM_OP_BARRIER: return CUDA_SUCCESS; /* the software device's work is in order anyway */
  default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult loop_cuStreamBatchMemOp_v11070(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops,
                                        unsigned int flags) {
  LOOP_ENTER(cuStreamBatchMemOp, 11070);
  CUresult code = flags != 0 || count > 256 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  for (unsigned i = 0; i < count && code == CUDA_SUCCESS; i++) code = value_op(stream, &ops[i]);
  return code;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

CUresult loop_cuGraphInstantiateWithFlags_v11040(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  LOOP_ENTER(cuGraphInstantiateWithFlags, 11040);
  ladei_graph_exec exec = NULL;
  CUresult code;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (loop_made_graph_instantiate(graph, out, &code)) return code;
  code = loop_code(loop_ops()->graph_instantiate(loop_self(), (ladei_graph)(void *)graph, &exec));
  *out = (CUgraphExec)(void *)exec;
  return code;
}

/* The driver's flags have the numbers of the ops'. */
_Static_assert((int)CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH == (int)LADEI_GRAPH_AUTO_FREE, "flags");
_Static_assert((int)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD == (int)LADEI_GRAPH_UPLOAD, "flags");
_Static_assert((int)CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH == (int)LADEI_GRAPH_DEVICE_LAUNCH, "flags");

CUresult loop_cuGraphInstantiateWithParams_v12000(CUgraphExec *out, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  LOOP_ENTER(cuGraphInstantiateWithParams, 12000);
  ladei_graph_exec exec = NULL;
  ladei_stream stream;
  bool upload = (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  if (parameters->flags > UINT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = upload ? loop_stream(parameters->hUploadStream, &stream) : CUDA_SUCCESS;
  if (code == CUDA_SUCCESS) {
    code = loop_code(loop_ops()->graph_instantiate_with(loop_self(), (ladei_graph)(void *)graph,
                                                        (unsigned)parameters->flags, upload ? &stream : NULL, &exec));
  }
  parameters->result_out = code == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  parameters->hErrNode_out = NULL;
  *out = (CUgraphExec)(void *)exec;
  return code;
}

CUresult loop_cuGraphExecUpdate_v12000(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  LOOP_ENTER(cuGraphExecUpdate, 12000);
  static const CUgraphExecUpdateResult results[] = {
      [LADEI_GRAPH_UPDATED] = CU_GRAPH_EXEC_UPDATE_SUCCESS,
      [LADEI_GRAPH_TOPOLOGY_CHANGED] = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
      [LADEI_GRAPH_KIND_CHANGED] = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
      [LADEI_GRAPH_PARAMETERS_CHANGED] = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED,
      [LADEI_GRAPH_NOT_UPDATABLE] = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED};
  ladei_graph_update result = LADEI_GRAPH_UPDATED;
  *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  lade_status status =
      loop_ops()->graph_exec_update(loop_self(), (ladei_graph_exec)(void *)exec, (ladei_graph)(void *)graph, &result);
  if (status != LADE_OK) return loop_code(status);
  info->result = results[result];
  return result == LADEI_GRAPH_UPDATED ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult loop_cuGraphUpload_v11010(CUgraphExec exec, CUstream handle) {
  LOOP_ENTER(cuGraphUpload, 11010);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  return code == CUDA_SUCCESS
             ? loop_code(loop_ops()->graph_upload(loop_self(), (ladei_graph_exec)(void *)exec, &stream))
             : code;
}

static CUresult counts_get(CUgraph graph, ladei_graph_counts *out) {
  return loop_code(loop_ops()->graph_counts(loop_self(), (ladei_graph)(void *)graph, out));
}

/* A node of this driver is its type + 1: programs here ask nodes for nothing else. */
CUresult loop_cuGraphGetNodes_v10000(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  LOOP_ENTER(cuGraphGetNodes, 10000);
  static const CUgraphNodeType types[LADEI_NODE_KINDS] = {[LADEI_NODE_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
                                                          [LADEI_NODE_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
                                                          [LADEI_NODE_FILL] = CU_GRAPH_NODE_TYPE_MEMSET,
                                                          [LADEI_NODE_HOST] = CU_GRAPH_NODE_TYPE_HOST,
                                                          [LADEI_NODE_WRITE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
  ladei_graph_counts counts;
  CUresult code = counts_get(graph, &counts);
  if (code != CUDA_SUCCESS) return code;
  size_t written = 0;
  for (int kind = 0; kind < LADEI_NODE_KINDS && nodes != NULL; kind++)
    for (size_t i = 0; i < counts.of_kind[kind] && written < *count; i++)
      nodes[written++] = (CUgraphNode)(uintptr_t)(types[kind] + 1);
  *count = nodes != NULL ? written : counts.nodes;
  return CUDA_SUCCESS;
}

CUresult loop_cuGraphNodeGetType_v10000(CUgraphNode node, CUgraphNodeType *type) {
  LOOP_ENTER(cuGraphNodeGetType, 10000);
  *type = (CUgraphNodeType)((uintptr_t)node - 1);
  return CUDA_SUCCESS;
}

CUresult loop_cuGraphGetEdges_v10000(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  LOOP_ENTER(cuGraphGetEdges, 10000);
  ladei_graph_counts counts;
  if (from != NULL || to != NULL) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult code = counts_get(graph, &counts);
  if (code == CUDA_SUCCESS) *count = counts.edges;
  return code;
}

/* These nodes, and those of a stream's frontier, are the software device's. As the driver: NULL asks for the number, and
 * entries beyond it become NULL. */
CUresult loop_cuGraphNodeGetDependencies_v10000(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
  LOOP_ENTER(cuGraphNodeGetDependencies, 10000);
  size_t capacity = dependencies == NULL ? 0 : *count, found = 0;
  CUresult code = loop_code(loop_ops()->graph_node_dependencies(
      loop_self(), (ladei_graph_node)(void *)node, (ladei_graph_node *)(void *)dependencies, capacity, &found));
  if (code != CUDA_SUCCESS) return code;
  for (size_t i = found; i < capacity; i++) dependencies[i] = NULL;
  *count = dependencies == NULL || found < capacity ? found : capacity;
  return CUDA_SUCCESS;
}

CUresult loop_cuDeviceGetGraphMemAttribute_v11040(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  LOOP_ENTER(cuDeviceGetGraphMemAttribute, 11040);
  if (device < 0 || device >= loop_device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *(cuuint64_t *)value = loop_graph_memory((int)attribute);
  return CUDA_SUCCESS;
}

CUresult loop_cuDeviceGraphMemTrim_v11040(CUdevice device) {
  LOOP_ENTER(cuDeviceGraphMemTrim, 11040);
  if (device < 0 || device >= loop_device_count()) return CUDA_ERROR_INVALID_DEVICE;
  loop_graph_memory_trim();
  return CUDA_SUCCESS;
}

CUresult loop_cuGraphLaunch_v10000(CUgraphExec exec, CUstream handle) {
  LOOP_ENTER(cuGraphLaunch, 10000);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  return code == CUDA_SUCCESS
             ? loop_code(loop_ops()->graph_launch(loop_self(), (ladei_graph_exec)(void *)exec, &stream))
             : code;
}

CUresult loop_cuGraphDestroy_v10000(CUgraph graph) {
  LOOP_ENTER(cuGraphDestroy, 10000);
  if (loop_made_graph_destroy(graph)) return CUDA_SUCCESS;
  return loop_code(loop_ops()->graph_destroy(loop_self(), (ladei_graph)(void *)graph));
}

CUresult loop_cuGraphExecDestroy_v10000(CUgraphExec exec) {
  LOOP_ENTER(cuGraphExecDestroy, 10000);
  loop_made_exec_destroyed(exec);
  return loop_code(loop_ops()->graph_exec_destroy(loop_self(), (ladei_graph_exec)(void *)exec));
}

CUresult loop_cuUserObjectCreate_v11030(CUuserObject *out, void *user, CUhostFn destroy, unsigned int references,
                                        unsigned int flags) {
  LOOP_ENTER(cuUserObjectCreate, 11030);
  ladei_user_object object = NULL;
  if (references != 1 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->user_object_create(loop_self(), destroy, user, &object));
  *out = (CUuserObject)(void *)object;
  return code;
}

CUresult loop_cuUserObjectRelease_v11030(CUuserObject object, unsigned int count) {
  LOOP_ENTER(cuUserObjectRelease, 11030);
  return count != 1 ? CUDA_ERROR_INVALID_VALUE
                    : loop_code(loop_ops()->user_object_release(loop_self(), (ladei_user_object)(void *)object));
}

CUresult loop_cuGraphRetainUserObject_v11030(CUgraph graph, CUuserObject object, unsigned int count,
                                             unsigned int flags) {
  LOOP_ENTER(cuGraphRetainUserObject, 11030);
  if (count != 1 || flags != CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
  return loop_code(
      loop_ops()->graph_retain_user_object(loop_self(), (ladei_graph)(void *)graph, (ladei_user_object)(void *)object));
}
