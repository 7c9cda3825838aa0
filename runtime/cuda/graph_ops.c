/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on captures, graphs and user objects.
 *
 *   capture_begin .. work .. capture_end -> graph -> graph_instantiate -> exec -> graph_launch (many times)
 *                                            |
 *                                            user objects: destroyed when the graph and all its execs are gone
 *
 * An update gives an exec the user objects of the new graph, and drops its own after the launches queued earlier; a
 * failed one changes nothing. The driver of CUDA 13.0 does so on an H200; software devices do the same.
 *
 * Locks: none.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

static CUgraph native_graph(ladei_graph graph) { return (CUgraph)(void *)graph; }
static CUgraphExec native_exec(ladei_graph_exec exec) { return (CUgraphExec)(void *)exec; }
static CUuserObject native_object(ladei_user_object object) { return (CUuserObject)(void *)object; }

/*
 * CUDA_ERROR_ILLEGAL_STATE unless the stream captures, or does not, as wanted. If a capture is begun twice or on the
 * legacy stream, or ended without a begin, the driver refuses with codes that its documentation does not name.
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

static lade_status graph_instantiate_with(void *self, ladei_graph graph, unsigned flags, const ladei_stream *upload,
                                          ladei_graph_exec *out_exec) {
  static const unsigned known = LADEI_GRAPH_AUTO_FREE | LADEI_GRAPH_UPLOAD | LADEI_GRAPH_DEVICE_LAUNCH;
  cuda_call call = {.runtime = self, .op = "graph_instantiate_with"};
  CUgraphExec exec = NULL;
  if ((flags & ~known) != 0)
    return ladei_error_argument(call.op, "flags", "LADEI_GRAPH_AUTO_FREE, _UPLOAD, _DEVICE_LAUNCH", "%#x", flags);
  if ((upload != NULL) != ((flags & LADEI_GRAPH_UPLOAD) != 0))
    return ladei_error_argument(call.op, "upload", "a stream with LADEI_GRAPH_UPLOAD, else NULL", "%p",
                                (const void *)upload);
  if (upload != NULL ? !ladei_cuda_enter_context(&call, upload->context) : !ladei_cuda_enter_any(&call))
    return call.status;
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.hUploadStream = upload != NULL ? upload->handle : NULL};
  if ((flags & LADEI_GRAPH_AUTO_FREE) != 0) parameters.flags |= CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  if ((flags & LADEI_GRAPH_UPLOAD) != 0) parameters.flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  if ((flags & LADEI_GRAPH_DEVICE_LAUNCH) != 0) parameters.flags |= CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  CUresult code = call.runtime->api.graph_instantiate_with(&exec, native_graph(graph), &parameters);
  if (ladei_cuda_leave(&call, code, "graph %p, flags %#x, reason %d", (void *)graph, flags,
                       (int)parameters.result_out) == LADE_OK)
    *out_exec = (ladei_graph_exec)(void *)exec;
  return call.status;
}

static ladei_graph_update update_result(CUgraphExecUpdateResult native) {
  switch (native) {
  case CU_GRAPH_EXEC_UPDATE_SUCCESS: return LADEI_GRAPH_UPDATED;
  case CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED: return LADEI_GRAPH_TOPOLOGY_CHANGED;
  case CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED: return LADEI_GRAPH_KIND_CHANGED;
  case CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED:
  case CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE:
  case CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED: return LADEI_GRAPH_PARAMETERS_CHANGED;
  default: return LADEI_GRAPH_NOT_UPDATABLE; /* for example graphs that allocate */
  }
}

static lade_status graph_exec_update(void *self, ladei_graph_exec exec, ladei_graph graph, ladei_graph_update *out) {
  cuda_call call = {.runtime = self, .op = "graph_exec_update"};
  CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = call.runtime->api.graph_exec_update(native_exec(exec), native_graph(graph), &info);
  bool refused = code == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  if (ladei_cuda_leave(&call, refused ? CUDA_SUCCESS : code, "exec %p from graph %p", (void *)exec, (void *)graph) ==
      LADE_OK)
    *out = refused ? update_result(info.result) : LADEI_GRAPH_UPDATED;
  return call.status;
}

static lade_status graph_upload(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "graph_upload"};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = call.runtime->api.graph_upload(native_exec(exec), stream->handle);
  return ladei_cuda_leave(&call, code, "exec %p on stream %p", (void *)exec, (void *)stream->handle);
}

static lade_status graph_launch(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "graph_launch"};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = call.runtime->api.graph_launch(native_exec(exec), stream->handle);
  return ladei_cuda_leave(&call, code, "exec %p on stream %p", (void *)exec, (void *)stream->handle);
}

/* ---- Contents of a graph ----------------------------------------------------------------------------------------- */

static ladei_node_kind node_kind(CUgraphNodeType type) {
  switch ((int)type) {
  case CU_GRAPH_NODE_TYPE_KERNEL: return LADEI_NODE_KERNEL;
  case CU_GRAPH_NODE_TYPE_MEMCPY: return LADEI_NODE_COPY;
  case CU_GRAPH_NODE_TYPE_MEMSET: return LADEI_NODE_FILL;
  case CU_GRAPH_NODE_TYPE_HOST: return LADEI_NODE_HOST;
  case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return LADEI_NODE_WRITE;
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return LADEI_NODE_ALLOCATION;
  case CU_GRAPH_NODE_TYPE_MEM_FREE: return LADEI_NODE_FREE;
  case CU_GRAPH_NODE_TYPE_GRAPH: return LADEI_NODE_CHILD;
  case CUDA_NODE_CONDITIONAL: return LADEI_NODE_CONDITIONAL;
  default: return LADEI_NODE_OTHER;
  }
}

/* `nodes` has room for `count`. */
static CUresult nodes_count(const cuda_api *api, CUgraph graph, CUgraphNode *nodes, size_t count,
                            ladei_graph_counts *counts) {
  size_t read = count;
  CUresult code = count == 0 ? CUDA_SUCCESS : api->graph_get_nodes(graph, nodes, &read);
  for (size_t i = 0; i < read && code == CUDA_SUCCESS; i++) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    code = api->graph_node_get_type(nodes[i], &type);
    counts->of_kind[node_kind(type)]++;
  }
  assert(read <= count);
  counts->nodes = read;
  return code;
}

static lade_status graph_counts(void *self, ladei_graph graph, ladei_graph_counts *out) {
  cuda_call call = {.runtime = self, .op = "graph_counts"};
  ladei_graph_counts counts = {0};
  size_t count = 0;
  if (!ladei_cuda_enter_any(&call)) return call.status;
  const cuda_api *api = &call.runtime->api;
  CUresult code = api->graph_get_edges(native_graph(graph), NULL, NULL, &counts.edges);
  if (code == CUDA_SUCCESS) code = api->graph_get_nodes(native_graph(graph), NULL, &count);
  CUgraphNode *nodes = code == CUDA_SUCCESS ? calloc(count + 1, sizeof(CUgraphNode)) : NULL;
  if (nodes != NULL) code = nodes_count(api, native_graph(graph), nodes, count, &counts);
  bool starved = code == CUDA_SUCCESS && nodes == NULL;
  free(nodes);
  if (ladei_cuda_leave(&call, code, "graph %p", (void *)graph) != LADE_OK) return call.status;
  if (starved)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph_counts: no memory for the names of %zu nodes", count);
  *out = counts;
  return LADE_OK;
}

static lade_status graph_node_dependencies(void *self, ladei_graph_node node, ladei_graph_node *dependencies,
                                           size_t capacity, size_t *out_count) {
  cuda_call call = {.runtime = self, .op = "graph_node_dependencies"};
  CUgraphNode native = (CUgraphNode)(void *)node;
  size_t count = 0;
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = call.runtime->api.graph_node_get_dependencies(native, NULL, &count);
  size_t written = count < capacity ? count : capacity;
  if (code == CUDA_SUCCESS && written > 0)
    code = call.runtime->api.graph_node_get_dependencies(native, (CUgraphNode *)(void *)dependencies, &written);
  if (ladei_cuda_leave(&call, code, "node %p", (void *)node) == LADE_OK) *out_count = count;
  assert(written <= capacity);
  return call.status;
}

/* ---- Memory that graphs allocate --------------------------------------------------------------------------------- */

static lade_status graph_memory_get(void *self, int device, ladei_graph_memory *out) {
  static const CUgraphMem_attribute attributes[] = {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
                                                    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                    CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH};
  cuda_call call = {.runtime = self, .op = "graph_memory_get"};
  cuuint64_t values[4] = {0};
  CUresult code = CUDA_SUCCESS;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  for (int i = 0; i < 4 && code == CUDA_SUCCESS; i++)
    code = call.runtime->api.device_get_graph_mem(call.runtime->devices[device].native, attributes[i], &values[i]);
  if (ladei_cuda_leave(&call, code, "device %d", device) == LADE_OK)
    *out = (ladei_graph_memory){values[0], values[1], values[2], values[3]};
  return call.status;
}

static lade_status graph_memory_trim(void *self, int device) {
  cuda_call call = {.runtime = self, .op = "graph_memory_trim"};
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.device_graph_mem_trim(call.runtime->devices[device].native);
  return ladei_cuda_leave(&call, code, "device %d", device);
}

/* ---- Ends, user objects ------------------------------------------------------------------------------------------ */

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
  ops->graph_instantiate_with = graph_instantiate_with;
  ops->graph_exec_update = graph_exec_update;
  ops->graph_upload = graph_upload;
  ops->graph_counts = graph_counts;
  ops->graph_node_dependencies = graph_node_dependencies;
  ops->graph_memory_get = graph_memory_get;
  ops->graph_memory_trim = graph_memory_trim;
  ops->graph_launch = graph_launch;
  ops->graph_destroy = graph_destroy;
  ops->graph_exec_destroy = graph_exec_destroy;
  ops->user_object_create = user_object_create;
  ops->user_object_release = user_object_release;
  ops->graph_retain_user_object = graph_retain_user_object;
}
