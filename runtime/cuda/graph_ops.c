/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on captures, graphs and user objects.
 *
 *   capture_begin .. work .. capture_end -> graph -> graph_instantiate -> exec -> graph_launch (many times)
 *                                            |
 *                                            user objects: destroyed when the graph and all its execs are gone
 *
 * Locks: none.
 */
#include "base/error.h"
#include "runtime/cuda/driver.h"

static CUgraph native_graph(ladei_graph graph) { return (CUgraph)(void *)graph; }
static CUgraphExec native_exec(ladei_graph_exec exec) { return (CUgraphExec)(void *)exec; }
static CUuserObject native_object(ladei_user_object object) { return (CUuserObject)(void *)object; }

/*
 * CUDA_ERROR_ILLEGAL_STATE unless the stream captures, or does not, as wanted. The driver refuses a capture begun twice
 * or on the legacy stream, and the end of none, with codes that its documentation does not name.
 */
static CUresult capture_check(const cuda_api *api, const ladei_stream *stream, bool wanted) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream->kind == LADEI_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUresult code = api->stream_is_capturing(stream->handle, &status);
  if (code == CUDA_SUCCESS && (status != CU_STREAM_CAPTURE_STATUS_NONE) != wanted) return CUDA_ERROR_ILLEGAL_STATE;
  return code;
}

static lade_status capture_begin(void *self, const ladei_stream *stream, ladei_capture_mode mode) {
  cuda_call call = {.runtime = self, .op = "capture_begin"};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = capture_check(&call.runtime->api, stream, false);
  if (code == CUDA_SUCCESS) code = call.runtime->api.stream_begin_capture(stream->handle, (CUstreamCaptureMode)mode);
  return ladei_cuda_leave(&call, code, "stream %p, mode %d", (void *)stream->handle, (int)mode);
}

static lade_status capture_end(void *self, const ladei_stream *stream, ladei_graph *out_graph) {
  cuda_call call = {.runtime = self, .op = "capture_end"};
  CUgraph graph = NULL;
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = capture_check(&call.runtime->api, stream, true);
  if (code == CUDA_SUCCESS) code = call.runtime->api.stream_end_capture(stream->handle, &graph);
  if (code == CUDA_SUCCESS && graph == NULL) code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (ladei_cuda_leave(&call, code, "stream %p", (void *)stream->handle) == LADE_OK)
    *out_graph = (ladei_graph)(void *)graph;
  return call.status;
}

static lade_status graph_instantiate(void *self, ladei_graph graph, ladei_graph_exec *out_exec) {
  cuda_call call = {.runtime = self, .op = "graph_instantiate"};
  CUgraphExec exec = NULL;
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = call.runtime->api.graph_instantiate(&exec, native_graph(graph), 0);
  if (ladei_cuda_leave(&call, code, "graph %p", (void *)graph) == LADE_OK) *out_exec = (ladei_graph_exec)(void *)exec;
  return call.status;
}

static lade_status graph_launch(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "graph_launch"};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = call.runtime->api.graph_launch(native_exec(exec), stream->handle);
  return ladei_cuda_leave(&call, code, "exec %p on stream %p", (void *)exec, (void *)stream->handle);
}

static lade_status graph_destroy(void *self, ladei_graph graph) {
  cuda_call call = {.runtime = self, .op = "graph_destroy", .releases = true};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.graph_destroy(native_graph(graph)), "graph %p", (void *)graph);
}

static lade_status graph_exec_destroy(void *self, ladei_graph_exec exec) {
  cuda_call call = {.runtime = self, .op = "graph_exec_destroy", .releases = true};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.graph_exec_destroy(native_exec(exec)), "exec %p", (void *)exec);
}

static lade_status user_object_create(void *self, ladei_host_function destroy, void *user, ladei_user_object *out) {
  cuda_call call = {.runtime = self, .op = "user_object_create"};
  if (destroy == NULL) return ladei_error_null("user_object_create", "destroy");
  CUuserObject object = NULL;
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = call.runtime->api.user_object_create(&object, user, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (ladei_cuda_leave(&call, code, "user data %p", user) == LADE_OK) *out = (ladei_user_object)(void *)object;
  return call.status;
}

static lade_status user_object_release(void *self, ladei_user_object object) {
  cuda_call call = {.runtime = self, .op = "user_object_release", .releases = true};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.user_object_release(native_object(object), 1), "object %p",
                          (void *)object);
}

static lade_status graph_retain_user_object(void *self, ladei_graph graph, ladei_user_object object) {
  cuda_call call = {.runtime = self, .op = "graph_retain_user_object"};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = call.runtime->api.graph_retain_user_object(native_graph(graph), native_object(object), 1,
                                                             CU_GRAPH_USER_OBJECT_MOVE);
  return ladei_cuda_leave(&call, code, "graph %p, object %p", (void *)graph, (void *)object);
}

void ladei_cuda_fill_graph_ops(lade_runtime_ops *ops) {
  ops->capture_begin = capture_begin;
  ops->capture_end = capture_end;
  ops->graph_instantiate = graph_instantiate;
  ops->graph_launch = graph_launch;
  ops->graph_destroy = graph_destroy;
  ops->graph_exec_destroy = graph_exec_destroy;
  ops->user_object_create = user_object_create;
  ops->user_object_release = user_object_release;
  ops->graph_retain_user_object = graph_retain_user_object;
}
