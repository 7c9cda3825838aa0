/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops that queue work: copies, fills, host functions, value writes.
 *
 * I1  All run under the stream's own context, and copy_sync under the device's primary one.
 * I2  copy_sync has moved every byte when it returns.
 * I3  copy_batch refuses a legacy or capturing stream before the driver sees it.
 * I4  copy_sync runs in the relaxed capture mode (R9): the wait for its last byte counts among the unsafe calls.
 * Locks: none.
 */
#include "base/error.h"
#include "runtime/cuda/driver.h"

static CUresult copy_queue(const cuda_api *api, ladei_copy_direction direction, void *dst, const void *src,
                           size_t bytes, CUstream stream) {
  switch (direction) {
  case LADEI_COPY_H2D: return api->memcpy_h2d_async(cuda_address(dst), src, bytes, stream);
  case LADEI_COPY_D2H: return api->memcpy_d2h_async(dst, cuda_address(src), bytes, stream);
  case LADEI_COPY_D2D:
  case LADEI_COPY_H2H: /* unified addresses tell the driver where each end is */
    return api->memcpy_any_async(cuda_address(dst), cuda_address(src), bytes, stream);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

static lade_status copy(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                        const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy"};
  if (!ladei_cuda_range_check(&call, dst, bytes) || !ladei_cuda_range_check(&call, src, bytes) ||
      !ladei_cuda_enter_context(&call, stream->context))
    return call.status;
  CUresult code = copy_queue(&call.runtime->api, direction, dst, src, bytes, stream->handle);
  return ladei_cuda_leave(&call, code, "direction %d, %zu bytes from %p to %p on stream %p", (int)direction, bytes, src,
                          dst, (void *)stream->handle);
}

/*
 * The driver's synchronous copy from pageable memory returns when the source has been read; the last part may still be
 * on its way to the device, and streams that are not ordered with the legacy one would not wait for it.
 */
static CUresult copy_h2d_sync(const cuda_api *api, void *dst, const void *src, size_t bytes) {
  CUresult code = api->memcpy_h2d(cuda_address(dst), src, bytes);
  return code == CUDA_SUCCESS ? api->stream_synchronize(LADE_STREAM_LEGACY) : code;
}

static CUresult copy_wait(const cuda_api *api, ladei_copy_direction direction, void *dst, const void *src,
                          size_t bytes) {
  switch (direction) {
  case LADEI_COPY_H2D: return copy_h2d_sync(api, dst, src, bytes);
  case LADEI_COPY_D2H: return api->memcpy_d2h(dst, cuda_address(src), bytes);
  case LADEI_COPY_D2D: { /* within a device the driver does not wait by itself */
    CUresult code = api->memcpy_any(cuda_address(dst), cuda_address(src), bytes);
    return code == CUDA_SUCCESS ? api->stream_synchronize(LADE_STREAM_LEGACY) : code;
  }
  case LADEI_COPY_H2H: return api->memcpy_any(cuda_address(dst), cuda_address(src), bytes);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

static lade_status copy_sync(void *self, int device, ladei_copy_direction direction, void *dst, const void *src,
                             size_t bytes) {
  cuda_call call = {.runtime = self, .op = "copy_sync", .relaxed = true};
  if (!ladei_cuda_range_check(&call, dst, bytes) || !ladei_cuda_range_check(&call, src, bytes) ||
      !ladei_cuda_enter_device(&call, device))
    return call.status;
  CUresult code = copy_wait(&call.runtime->api, direction, dst, src, bytes);
  return ladei_cuda_leave(&call, code, "direction %d, %zu bytes from %p to %p", (int)direction, bytes, src, dst);
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

static CUresult batch_queue(const cuda_api *api, size_t count, void *const *dsts, const void *const *srcs,
                            const size_t *sizes, CUstream stream) {
  /* The driver reads its arrays as addresses and does not write to them, although its prototype allows that. */
  _Static_assert(sizeof(CUdeviceptr) == sizeof(void *), "arrays of pointers pass as arrays of device addresses");
  CUdeviceptr *native_dsts = (CUdeviceptr *)(uintptr_t)dsts;
  CUdeviceptr *native_srcs = (CUdeviceptr *)(uintptr_t)srcs;
  size_t *native_sizes = (size_t *)(uintptr_t)sizes;
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t first = 0; /* the single set of attributes applies from the first copy on */
  if (api->memcpy_batch_13 != NULL)
    return api->memcpy_batch_13(native_dsts, native_srcs, native_sizes, count, &attributes, &first, 1, stream);
  size_t failed = 0;
  return api->memcpy_batch_12(native_dsts, native_srcs, native_sizes, count, &attributes, &first, 1, &failed, stream);
}

static lade_status copy_batch(void *self, ladei_copy_direction direction, size_t count, void *const *dsts,
                              const void *const *srcs, const size_t *sizes, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy_batch"};
  const cuda_api *api = &call.runtime->api;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (count == 0) return ladei_error_argument("copy_batch", "count", "more than 0", "0");
  for (size_t i = 0; i < count; i++)
    if (!ladei_cuda_range_check(&call, dsts[i], sizes[i]) || !ladei_cuda_range_check(&call, srcs[i], sizes[i]))
      return call.status;
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  bool there = (api->memcpy_batch_12 != NULL || api->memcpy_batch_13 != NULL) && stream->kind != LADEI_STREAM_LEGACY;
  CUresult code = there ? api->stream_is_capturing(stream->handle, &capture) : CUDA_ERROR_NOT_SUPPORTED;
  if (code == CUDA_SUCCESS) {
    code = capture == CU_STREAM_CAPTURE_STATUS_NONE ? batch_queue(api, count, dsts, srcs, sizes, stream->handle)
                                                    : CUDA_ERROR_NOT_SUPPORTED;
  }
  return ladei_cuda_leave(&call, code, "%zu copies of direction %d on stream %p", count, (int)direction,
                          (void *)stream->handle);
}

/* ---- Other work -------------------------------------------------------------------------------------------------- */

static lade_status copy_peer(void *self, void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                             const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy_peer"};
  CUcontext dst_context;
  CUcontext src_context;
  if (!ladei_cuda_range_check(&call, dst, bytes) || !ladei_cuda_range_check(&call, src, bytes) ||
      !ladei_cuda_device_check(&call, dst_device) || !ladei_cuda_device_check(&call, src_device) ||
      !ladei_cuda_enter(&call) || !ladei_cuda_context(&call, dst_device, &dst_context) ||
      !ladei_cuda_context(&call, src_device, &src_context) || !ladei_cuda_enter_context(&call, stream->context))
    return call.status;
  CUresult code = call.runtime->api.memcpy_peer_async(cuda_address(dst), dst_context, cuda_address(src), src_context,
                                                      bytes, stream->handle);
  return ladei_cuda_leave(&call, code, "%zu bytes from device %d to %d", bytes, src_device, dst_device);
}

static lade_status copy_2d(void *self, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                           size_t rows, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "copy_2d"};
  LADEI_TRY(ladei_copy_2d_check(dst_pitch, src_pitch, width, rows));
  if (!ladei_cuda_range_check(&call, dst, width) || !ladei_cuda_range_check(&call, src, width) ||
      !ladei_cuda_enter_context(&call, stream->context))
    return call.status;
  const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = cuda_address(src),
                              .srcPitch = src_pitch,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                              .dstDevice = cuda_address(dst),
                              .dstPitch = dst_pitch,
                              .WidthInBytes = width,
                              .Height = rows};
  CUresult code = call.runtime->api.memcpy_2d_async(&copy, stream->handle);
  return ladei_cuda_leave(&call, code, "%zu rows of %zu bytes from %p to %p on stream %p", rows, width, src, dst,
                          (void *)stream->handle);
}

static lade_status fill(void *self, void *dst, unsigned char value, size_t bytes, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "fill"};
  if (!ladei_cuda_range_check(&call, dst, bytes) || !ladei_cuda_enter_context(&call, stream->context))
    return call.status;
  CUresult code = call.runtime->api.memset_d8_async(cuda_address(dst), value, bytes, stream->handle);
  return ladei_cuda_leave(&call, code, "%zu bytes at %p on stream %p", bytes, dst, (void *)stream->handle);
}

static lade_status host_function(void *self, const ladei_stream *stream, ladei_host_function function, void *user) {
  cuda_call call = {.runtime = self, .op = "host_function"};
  if (function == NULL) return ladei_error_null("host_function", "function");
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = call.runtime->api.launch_host_func(stream->handle, function, user);
  return ladei_cuda_leave(&call, code, "on stream %p", (void *)stream->handle);
}

static lade_status stream_write_value(void *self, const ladei_stream *stream, void *address, uint64_t value,
                                      unsigned width_bits) {
  cuda_call call = {.runtime = self, .op = "stream_write_value"};
  const cuda_api *api = &call.runtime->api;
  CUdeviceptr target = cuda_address(address);
  if (width_bits != 32 && width_bits != 64)
    return ladei_error_argument("stream_write_value", "width_bits", "32 or 64", "%u", width_bits);
  if (target == 0 || target % (width_bits / 8) != 0)
    return ladei_error_argument("stream_write_value", "address", "a multiple of the width", "%p", address);
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = width_bits == 64 ? api->stream_write_value_64(stream->handle, target, value, 0)
                                   : api->stream_write_value_32(stream->handle, target, (cuuint32_t)value, 0);
  return ladei_cuda_leave(&call, code, "%u bits at %p on stream %p", width_bits, address, (void *)stream->handle);
}

void ladei_cuda_fill_copy_ops(lade_runtime_ops *ops) {
  ops->copy = copy;
  ops->copy_sync = copy_sync;
  ops->copy_batch = copy_batch;
  ops->copy_peer = copy_peer;
  ops->copy_2d = copy_2d;
  ops->fill = fill;
  ops->host_function = host_function;
  ops->stream_write_value = stream_write_value;
}
