/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on streams and on the thread's capture mode.
 *
 *   handle              context                          resolved for the other ops
 *   NULL, legacy (1)    the calling thread's current     handle 1, kind LEGACY
 *   per-thread (2)      the calling thread's current     handle 2, kind PER_THREAD
 *   a stream            the one it was created in        the same handle, kind ORDINARY
 *
 * I1  A context's identity is its CUcontext. The driver may reuse the address of a destroyed context, but stream ids
 *     are unique for the life of the process (stream_identity.c), so (context, id) never names two streams.
 * Locks: none.
 */
#include "base/error.h"
#include "runtime/cuda/driver.h"

static ladei_stream_kind stream_kind(lade_stream stream) {
  if (stream == NULL || stream == LADE_STREAM_LEGACY) return LADEI_STREAM_LEGACY;
  return stream == LADE_STREAM_PER_THREAD ? LADEI_STREAM_PER_THREAD : LADEI_STREAM_ORDINARY;
}

static lade_status stream_create(void *self, int device, int priority, unsigned flags, lade_stream *out) {
  cuda_call call = {.runtime = self, .op = "stream_create"};
  CUstream stream = NULL;
  if ((flags & ~(unsigned)LADEI_STREAM_NON_BLOCKING) != 0)
    return ladei_error_argument("stream_create", "flags", "0 or LADEI_STREAM_NON_BLOCKING", "%#x", flags);
  if (!ladei_cuda_enter_device(&call, device)) return call.status;
  unsigned native = (flags & LADEI_STREAM_NON_BLOCKING) != 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  CUresult code = call.runtime->api.stream_create(&stream, native, priority);
  if (ladei_cuda_leave(&call, code, "priority %d on device %d", priority, device) == LADE_OK) *out = stream;
  return call.status;
}

static lade_status stream_destroy(void *self, lade_stream stream) {
  cuda_call call = {.runtime = self, .op = "stream_destroy", .releases = true};
  if (stream_kind(stream) != LADEI_STREAM_ORDINARY)
    return ladei_error_argument("stream_destroy", "stream", "a handle from stream_create", "%p", (void *)stream);
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = call.runtime->api.stream_destroy(stream);
  if (code == CUDA_SUCCESS) ladei_cuda_stream_forget(call.runtime, stream);
  return ladei_cuda_leave(&call, code, "stream %p", (void *)stream);
}

/* ---- Resolving --------------------------------------------------------------------------------------------------- */

/* Ordinal of the device of the current context, which the program may have made. */
static CUresult context_device(cuda_runtime *runtime, CUcontext current, int *out_device) {
  CUdevice native = 0;
  *out_device = ladei_cuda_context_device(runtime, current);
  if (*out_device >= 0) return CUDA_SUCCESS;
  CUresult code = runtime->api.ctx_get_device(&native);
  *out_device = ladei_cuda_device_ordinal(runtime, native);
  return code;
}

static lade_status stream_resolve(void *self, lade_stream stream, ladei_stream *out) {
  cuda_call call = {.runtime = self, .op = "stream_resolve", .out_of_memory = LADE_ERR_OUT_OF_HOST_MEMORY};
  ladei_stream_kind kind = stream_kind(stream);
  CUstream handle = stream == NULL ? LADE_STREAM_LEGACY : stream;
  CUcontext context = NULL;
  uint64_t id = 0;
  int device = -1;
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = ladei_cuda_stream_identity(call.runtime, handle, kind, &context, &id);
  if (code == CUDA_ERROR_INVALID_CONTEXT && kind != LADEI_STREAM_ORDINARY)
    return ladei_cuda_leave(&call, code, "stream %p; the thread has no current device (lade_runtime_set_device)",
                            (void *)stream);
  if (code == CUDA_SUCCESS && !ladei_cuda_enter_context(&call, cuda_context_identity(context))) return call.status;
  if (code == CUDA_SUCCESS) code = context_device(call.runtime, context, &device);
  if (ladei_cuda_leave(&call, code, "stream %p", (void *)stream) == LADE_OK) {
    *out = (ladei_stream){
        .context = cuda_context_identity(context), .id = id, .handle = handle, .device = device, .kind = (int32_t)kind};
  }
  return call.status;
}

/* ---- Order and completion ---------------------------------------------------------------------------------------- */

static lade_status stream_wait_event(void *self, const ladei_stream *stream, lade_event event) {
  cuda_call call = {.runtime = self, .op = "stream_wait_event"};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = cuda_event_answer(call.runtime->api.stream_wait_event(stream->handle, event, 0));
  return ladei_cuda_leave(&call, code, "stream %p, event %p", (void *)stream->handle, (void *)event);
}

static lade_status stream_query(void *self, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "stream_query", .relaxed = true};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.stream_query(stream->handle), "stream %p", (void *)stream->handle);
}

static lade_status stream_synchronize(void *self, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "stream_synchronize", .relaxed = true};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.stream_synchronize(stream->handle), "stream %p",
                          (void *)stream->handle);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static ladei_capture_status capture_status(CUstreamCaptureStatus native) {
  switch (native) {
  case CU_STREAM_CAPTURE_STATUS_ACTIVE: return LADEI_CAPTURE_ACTIVE;
  case CU_STREAM_CAPTURE_STATUS_INVALIDATED: return LADEI_CAPTURE_INVALIDATED;
  default: return LADEI_CAPTURE_NONE;
  }
}

/* The driver gives id and graph only for an active capture; for an invalidated one the id stays 0. */
/* `nodes` and `count`: both NULL, or neither. The driver owns the nodes, until the next call on the stream. */
static CUresult capture_ask(const cuda_api *api, const ladei_stream *stream, ladei_capture_info *out,
                            const CUgraphNode **nodes, size_t *count) {
  CUstreamCaptureStatus native = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = NULL;
  CUresult code = api->stream_get_capture_info(stream->handle, &native, &id, &graph, nodes, count);
  if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT && stream->kind == LADEI_STREAM_LEGACY) {
    *out = (ladei_capture_info){.status = LADEI_CAPTURE_IMPLICIT};
    return CUDA_SUCCESS;
  }
  if (code != CUDA_SUCCESS) return code;
  *out = (ladei_capture_info){.status = capture_status(native)};
  if (out->status == LADEI_CAPTURE_ACTIVE) {
    out->id = id;
    out->graph = (ladei_graph)(void *)graph;
  }
  return CUDA_SUCCESS;
}

static lade_status stream_capture_info(void *self, const ladei_stream *stream, ladei_capture_info *out) {
  cuda_call call = {.runtime = self, .op = "stream_capture_info"};
  ladei_capture_info info;
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = capture_ask(&call.runtime->api, stream, &info, NULL, NULL);
  if (ladei_cuda_leave(&call, code, "stream %p", (void *)stream->handle) == LADE_OK) *out = info;
  return call.status;
}

static lade_status capture_frontier(void *self, const ladei_stream *stream, ladei_capture_info *out_info,
                                    ladei_graph_node *nodes, size_t capacity, size_t *out_count) {
  cuda_call call = {.runtime = self, .op = "capture_frontier"};
  ladei_capture_info info;
  const CUgraphNode *frontier = NULL;
  size_t count = 0;
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = capture_ask(&call.runtime->api, stream, &info, &frontier, &count);
  if (ladei_cuda_leave(&call, code, "stream %p", (void *)stream->handle) != LADE_OK) return call.status;
  *out_info = info;
  *out_count = info.status == LADEI_CAPTURE_ACTIVE ? count : 0;
  for (size_t i = 0; i < *out_count && i < capacity; i++) nodes[i] = (ladei_graph_node)(void *)frontier[i];
  return LADE_OK;
}

static lade_status capture_mode_exchange(void *self, ladei_capture_mode *mode) {
  cuda_call call = {.runtime = self, .op = "capture_mode_exchange"};
  _Static_assert((int)LADEI_CAPTURE_GLOBAL == (int)CU_STREAM_CAPTURE_MODE_GLOBAL &&
                     (int)LADEI_CAPTURE_THREAD_LOCAL == (int)CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
                     (int)LADEI_CAPTURE_RELAXED == (int)CU_STREAM_CAPTURE_MODE_RELAXED,
                 "capture modes pass through unchanged");
  CUstreamCaptureMode native = (CUstreamCaptureMode)*mode;
  if (*mode < LADEI_CAPTURE_GLOBAL || *mode > LADEI_CAPTURE_RELAXED) /* the driver accepts any number */
    return ladei_error_argument("capture_mode_exchange", "mode", "a ladei_capture_mode", "%d", (int)*mode);
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.thread_exchange_capture_mode(&native);
  if (ladei_cuda_leave(&call, code, "mode %d", (int)*mode) == LADE_OK) *mode = (ladei_capture_mode)native;
  return call.status;
}

void ladei_cuda_fill_stream_ops(lade_runtime_ops *ops) {
  ops->stream_create = stream_create;
  ops->stream_destroy = stream_destroy;
  ops->stream_resolve = stream_resolve;
  ops->stream_wait_event = stream_wait_event;
  ops->stream_query = stream_query;
  ops->stream_synchronize = stream_synchronize;
  ops->stream_capture_info = stream_capture_info;
  ops->capture_frontier = capture_frontier;
  ops->capture_mode_exchange = capture_mode_exchange;
}
