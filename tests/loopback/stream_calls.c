/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points on streams, events and captures.
 *
 * Locks: streams_lock guards what a driver does in one step: a look at which streams there are and which of them capture, and
 * the records that follow from it. What makes a stream capture and what ends one takes it too. Nothing is waited for under it;
 * runtime/soft is called.
 */
#include <pthread.h>

#include "tests/loopback/loopback.h"

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Stream arguments -------------------------------------------------------------------------------------------- */

static bool stream_special(CUstream handle) {
  return handle == NULL || handle == LADE_STREAM_LEGACY || handle == LADE_STREAM_PER_THREAD;
}

/* The software devices keep a current device per thread of their own; special handles make it follow the context. */
CUresult loop_stream_any(CUstream handle, ladei_stream *out) {
  if (stream_special(handle)) {
    loop_context *current = loop_current();
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    lade_status status = loop_ops()->current_device_set(loop_self(), current->device);
    if (status != LADE_OK) return loop_code(status);
  }
  return loop_code(loop_ops()->stream_resolve(loop_self(), loop_recycled(handle), out));
}

CUresult loop_stream(CUstream handle, ladei_stream *out) {
  CUresult code = loop_stream_any(handle, out);
  if (code == CUDA_SUCCESS && out->device != loop_current()->device)
    loop_violation("stream of device %d used under the context of device %d", out->device, loop_current()->device);
  return code;
}

/* The driver invalidates the captures that it is asked about in the wrong way, in whatever mode the thread is. */
static CUresult stream_not_capturing(const ladei_stream *stream) {
  ladei_capture_info info;
  lade_status status = loop_ops()->stream_capture_info(loop_self(), stream, &info);
  if (status == LADE_OK && info.status != LADEI_CAPTURE_NONE)
    status = loop_ops()->stream_synchronize(loop_self(), stream);
  return loop_code(status);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static int priority_clamp(int priority) {
  int device = loop_current()->device;
  int64_t least = 0, greatest = 0;
  (void)loop_ops()->device_attribute(loop_self(), device, LADEI_ATTR_STREAM_PRIORITY_LOWEST, &least);
  (void)loop_ops()->device_attribute(loop_self(), device, LADEI_ATTR_STREAM_PRIORITY_HIGHEST, &greatest);
  return priority < greatest ? (int)greatest : priority > least ? (int)least : priority;
}

CUresult loop_cuStreamCreateWithPriority_v5050(CUstream *out, unsigned int native, int priority) {
  LOOP_ENTER(cuStreamCreateWithPriority, 5050);
  unsigned flags = native == CU_STREAM_NON_BLOCKING ? LADEI_STREAM_NON_BLOCKING : 0u;
  if (native > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->stream_create(loop_self(), loop_current()->device, priority, flags, out));
  if (code != CUDA_SUCCESS) return code;
  priority = priority_clamp(priority);
  loop_stream_note(*out, &(loop_stream_made){loop_current(), loop_current()->device, priority, native});
  return CUDA_SUCCESS;
}

CUresult loop_cuStreamCreate_v2000(CUstream *out, unsigned int flags) {
  LOOP_ENTER(cuStreamCreate, 2000);
  return loop_cuStreamCreateWithPriority_v5050(out, flags, 0);
}

CUresult loop_cuStreamDestroy_v4000(CUstream stream) {
  LOOP_ENTER(cuStreamDestroy, 4000);
  if (stream_special(stream)) {
    loop_violation("a default stream destroyed");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  pthread_mutex_lock(&streams_lock);
  loop_stream_forget(stream);
  lade_status status = loop_ops()->stream_destroy(loop_self(), stream);
  pthread_mutex_unlock(&streams_lock);
  return loop_code(status);
}

/* The first form; no other prototype, but lade was not written for it. */
CUresult loop_cuStreamDestroy_v2000(CUstream stream) {
  if (!loop_plays_program()) loop_violation("cuStreamDestroy called at version 2000");
  return loop_cuStreamDestroy_v4000(stream);
}

CUresult loop_cuStreamGetCtx_v9020(CUstream handle, CUcontext *out) {
  LOOP_ENTER(cuStreamGetCtx, 9020);
  ladei_stream stream;
  CUresult code = loop_stream_any(handle, &stream);
  if (code == CUDA_SUCCESS && stream.kind == LADEI_STREAM_LEGACY) code = stream_not_capturing(&stream);
  ladei_capture_info info;
  if (code == CUDA_SUCCESS && loop_ops()->stream_capture_info(loop_self(), &stream, &info) == LADE_OK &&
      info.status == LADEI_CAPTURE_INVALIDATED)
    code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (code == CUDA_SUCCESS) *out = loop_context_handle(loop_context_of_device(stream.device));
  return code;
}

CUresult loop_cuStreamGetId_v12000(CUstream handle, unsigned long long *out) {
  LOOP_ENTER(cuStreamGetId, 12000);
  ladei_stream stream;
  CUresult code = loop_stream_any(handle, &stream);
  if (code == CUDA_SUCCESS) code = stream_not_capturing(&stream);
  if (code == CUDA_SUCCESS) *out = stream.id;
  return code;
}

/* Unlike the id, asked of a capturing stream, too. */
CUresult loop_cuStreamGetPriority_v5050(CUstream handle, int *out) {
  LOOP_ENTER(cuStreamGetPriority, 5050);
  loop_stream_made made = {0};
  if (!stream_special(handle) && !loop_stream_find(handle, &made)) return CUDA_ERROR_INVALID_HANDLE;
  *out = made.priority;
  return CUDA_SUCCESS;
}

CUresult loop_cuStreamGetFlags_v5050(CUstream handle, unsigned int *out) {
  LOOP_ENTER(cuStreamGetFlags, 5050);
  ladei_stream stream;
  loop_stream_made made = {0};
  CUresult code = loop_stream_any(handle, &stream);
  if (code == CUDA_SUCCESS) code = stream_not_capturing(&stream);
  if (code == CUDA_SUCCESS && !stream_special(handle) && !loop_stream_find(handle, &made))
    code = CUDA_ERROR_INVALID_HANDLE;
  if (code == CUDA_SUCCESS) *out = made.flags;
  return code;
}

CUresult loop_cuStreamWaitEvent_v3020(CUstream handle, CUevent event, unsigned int flags) {
  LOOP_ENTER(cuStreamWaitEvent, 3020);
  ladei_stream stream;
  CUresult code = flags != 0 ? CUDA_ERROR_INVALID_VALUE : loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  pthread_mutex_lock(&streams_lock);
  lade_status status = loop_ops()->stream_wait_event(loop_self(), &stream, event);
  pthread_mutex_unlock(&streams_lock);
  return loop_code(status);
}

CUresult loop_cuStreamQuery_v2000(CUstream handle) {
  LOOP_ENTER(cuStreamQuery, 2000);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  return code == CUDA_SUCCESS ? loop_code(loop_ops()->stream_query(loop_self(), &stream)) : code;
}

CUresult loop_cuStreamSynchronize_v2000(CUstream handle) {
  LOOP_ENTER(cuStreamSynchronize, 2000);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  return code == CUDA_SUCCESS ? loop_code(loop_ops()->stream_synchronize(loop_self(), &stream)) : code;
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* Needs no current context, but for the special handles. */
static CUresult capture_info(CUstream handle, ladei_capture_info *out) {
  ladei_stream stream;
  CUresult code = loop_stream_any(handle, &stream);
  if (code == CUDA_SUCCESS) code = loop_code(loop_ops()->stream_capture_info(loop_self(), &stream, out));
  return code == CUDA_SUCCESS && out->status == LADEI_CAPTURE_IMPLICIT ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : code;
}

static CUstreamCaptureStatus capture_status(ladei_capture_status status) {
  return status == LADEI_CAPTURE_ACTIVE        ? CU_STREAM_CAPTURE_STATUS_ACTIVE
         : status == LADEI_CAPTURE_INVALIDATED ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                               : CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult loop_cuStreamIsCapturing_v10000(CUstream handle, CUstreamCaptureStatus *out) {
  LOOP_ENTER(cuStreamIsCapturing, 10000);
  ladei_capture_info info;
  CUresult code = capture_info(handle, &info);
  if (code == CUDA_SUCCESS) *out = capture_status(info.status);
  return code;
}

/* Id and graph are only told of an active capture; otherwise they are left as they are. */
CUresult loop_cuStreamGetCaptureInfo_v11030(CUstream handle, CUstreamCaptureStatus *out_status, cuuint64_t *out_id,
                                            CUgraph *out_graph, const CUgraphNode **out_dependencies,
                                            size_t *out_dependency_count) {
  LOOP_ENTER(cuStreamGetCaptureInfo, 11030);
  enum { FRONTIER = 8 };
  static _Thread_local CUgraphNode frontier[FRONTIER]; /* the caller's until its next call; static TLS is scarce */
  ladei_capture_info info;
  ladei_stream stream;
  size_t count = 0;
  CUresult code = capture_info(handle, &info);
  if (code == CUDA_SUCCESS && out_dependencies != NULL) code = loop_stream_any(handle, &stream);
  if (code == CUDA_SUCCESS && out_dependencies != NULL)
    code = loop_code(loop_ops()->capture_frontier(loop_self(), &stream, &info, (ladei_graph_node *)(void *)frontier,
                                                  FRONTIER, &count));
  if (code != CUDA_SUCCESS) return code;
  if (count > FRONTIER) return CUDA_ERROR_NOT_SUPPORTED;
  if (out_dependencies != NULL && info.status == LADEI_CAPTURE_ACTIVE) {
    *out_dependencies = frontier;
    *out_dependency_count = count;
  }
  *out_status = capture_status(info.status);
  if (info.status == LADEI_CAPTURE_ACTIVE) {
    *out_id = info.id;
    *out_graph = (CUgraph)(void *)info.graph;
  }
  return CUDA_SUCCESS;
}

CUresult loop_cuStreamBeginCapture_v10010(CUstream handle, CUstreamCaptureMode mode) {
  LOOP_ENTER(cuStreamBeginCapture, 10010);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  pthread_mutex_lock(&streams_lock);
  lade_status status = loop_ops()->capture_begin(loop_self(), &stream, (ladei_capture_mode)mode);
  pthread_mutex_unlock(&streams_lock);
  return loop_code(status);
}

CUresult loop_cuStreamEndCapture_v10000(CUstream handle, CUgraph *out) {
  LOOP_ENTER(cuStreamEndCapture, 10000);
  ladei_stream stream;
  ladei_graph graph = NULL;
  CUresult code = loop_stream(handle, &stream);
  if (code == CUDA_SUCCESS) code = loop_code(loop_ops()->capture_end(loop_self(), &stream, &graph));
  *out = (CUgraph)(void *)graph;
  return code;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

CUresult loop_cuEventCreate_v2000(CUevent *out, unsigned int native) {
  LOOP_ENTER(cuEventCreate, 2000);
  unsigned flags = ((native & CU_EVENT_DISABLE_TIMING) == 0 ? LADEI_EVENT_TIMING : 0u) |
                   ((native & CU_EVENT_INTERPROCESS) != 0 ? LADEI_EVENT_INTERPROCESS : 0u);
  uint64_t context = 0;
  lade_status status = loop_ops()->device_context(loop_self(), loop_current()->device, &context);
  if (status == LADE_OK) status = loop_ops()->event_create(loop_self(), context, flags, out);
  if (status == LADE_OK) loop_event_note(*out, loop_current());
  return loop_code(status);
}

CUresult loop_cuEventDestroy_v4000(CUevent event) {
  LOOP_ENTER(cuEventDestroy, 4000);
  loop_event_forget(event);
  return loop_code(loop_ops()->event_destroy(loop_self(), event));
}

/* Whether the event and the stream are of two contexts, be it of one device. */
static bool contexts_differ(CUevent event, CUstream handle) {
  if (!loop_contexts_made()) return false;
  loop_stream_made made = {.context = loop_current()};
  const loop_context *context = loop_event_context(event);
  return (stream_special(handle) || loop_stream_find(handle, &made)) && context != NULL && context != made.context;
}

CUresult loop_cuEventRecord_v2000(CUevent event, CUstream handle) {
  LOOP_ENTER(cuEventRecord, 2000);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code == CUDA_SUCCESS && contexts_differ(event, loop_recycled(handle))) code = CUDA_ERROR_INVALID_HANDLE;
  return code == CUDA_SUCCESS ? loop_code(loop_ops()->event_record(loop_self(), event, &stream)) : code;
}

CUresult loop_cuEventQuery_v2000(CUevent event) {
  LOOP_ENTER(cuEventQuery, 2000);
  return loop_code(loop_ops()->event_query(loop_self(), event));
}

CUresult loop_cuEventSynchronize_v2000(CUevent event) {
  LOOP_ENTER(cuEventSynchronize, 2000);
  return loop_code(loop_ops()->event_synchronize(loop_self(), event));
}

CUresult loop_cuEventElapsedTime_v2000(float *out_milliseconds, CUevent start, CUevent end) {
  LOOP_ENTER(cuEventElapsedTime, 2000);
  uint64_t ns = 0;
  CUresult code = loop_code(loop_ops()->event_elapsed_ns(loop_self(), start, end, &ns));
  *out_milliseconds = (float)((double)ns / 1e6);
  if (code != CUDA_SUCCESS || ns != 0) return code;
  code = loop_code(loop_ops()->event_elapsed_ns(loop_self(), end, start, &ns)); /* the other way round */
  *out_milliseconds = -(float)((double)ns / 1e6);
  return code;
}

/* ---- Events of whole contexts ------------------------------------------------------------------------------------ */

enum { CONTEXT_STREAMS = 1024 };

/* What `stream` has queued so far comes before what `joined` queues from now on. */
static lade_status stream_join(const ladei_stream *stream, const ladei_stream *joined, uint64_t context) {
  lade_event event = NULL;
  lade_status status = loop_ops()->event_create(loop_self(), context, 0, &event);
  if (status != LADE_OK) return status;
  status = loop_ops()->event_record(loop_self(), event, stream);
  if (status == LADE_OK) status = loop_ops()->stream_wait_event(loop_self(), joined, event);
  (void)loop_ops()->event_destroy(loop_self(), event);
  return status;
}

static bool stream_captures(const ladei_stream *stream) {
  ladei_capture_info info;
  return loop_ops()->stream_capture_info(loop_self(), stream, &info) != LADE_OK || info.status != LADEI_CAPTURE_NONE;
}

/* The streams of a device and its legacy stream, which waits for the per-thread ones. */
static size_t context_streams(int device, ladei_stream *found) {
  CUstream handles[CONTEXT_STREAMS - 1];
  size_t count = loop_streams_of(device, handles, CONTEXT_STREAMS - 1);
  size_t resolved = 0;
  (void)loop_ops()->current_device_set(loop_self(), device);
  for (size_t i = 0; i <= count; i++)
    if (loop_ops()->stream_resolve(loop_self(), i < count ? handles[i] : LADE_STREAM_LEGACY, &found[resolved]) ==
        LADE_OK)
      resolved++;
  return resolved;
}

static lade_status streams_record(int device, lade_event event, const ladei_stream *streams, size_t count) {
  uint64_t context = 0;
  lade_stream made = NULL;
  ladei_stream joined;
  lade_status status = loop_ops()->device_context(loop_self(), device, &context);
  if (status == LADE_OK) status = loop_ops()->stream_create(loop_self(), device, 0, LADEI_STREAM_NON_BLOCKING, &made);
  if (status != LADE_OK) return status;
  status = loop_ops()->stream_resolve(loop_self(), made, &joined);
  for (size_t i = 0; i < count && status == LADE_OK; i++) status = stream_join(&streams[i], &joined, context);
  if (status == LADE_OK) status = loop_ops()->event_record(loop_self(), event, &joined);
  (void)loop_ops()->stream_destroy(loop_self(), made);
  return status;
}

/* Keeps those that do not capture; how many. */
static size_t streams_not_capturing(ladei_stream *streams, size_t count) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++)
    if (!stream_captures(&streams[i])) streams[kept++] = streams[i];
  return kept;
}

void loop_streams_wait(int device) {
  ladei_stream streams[CONTEXT_STREAMS];
  uint64_t context = 0;
  lade_event event = NULL;
  if (loop_ops()->device_context(loop_self(), device, &context) != LADE_OK ||
      loop_ops()->event_create(loop_self(), context, 0, &event) != LADE_OK)
    return;
  pthread_mutex_lock(&streams_lock);
  size_t count = streams_not_capturing(streams, context_streams(device, streams));
  lade_status status = streams_record(device, event, streams, count);
  pthread_mutex_unlock(&streams_lock);
  if (status == LADE_OK) (void)loop_ops()->event_synchronize(loop_self(), event);
  (void)loop_ops()->event_destroy(loop_self(), event);
}

/* Makes captures invalid; whether there were any. */
static bool streams_capturing_break(const ladei_stream *streams, size_t count) {
  bool captures = false;
  for (size_t i = 0; i < count; i++)
    if (stream_captures(&streams[i])) captures = stream_not_capturing(&streams[i]) != CUDA_SUCCESS || captures;
  return captures;
}

CUresult loop_cuCtxRecordEvent_v12050(CUcontext handle, CUevent event) {
  LOOP_ENTER(cuCtxRecordEvent, 12050);
  ladei_stream streams[CONTEXT_STREAMS];
  const loop_context *context = loop_context_find(handle);
  if (context == NULL || !loop_context_usable(context)) return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&streams_lock);
  size_t count = context_streams(context->device, streams);
  bool captures = streams_capturing_break(streams, count);
  lade_status status = captures ? LADE_OK : streams_record(context->device, event, streams, count);
  pthread_mutex_unlock(&streams_lock);
  if (!captures) return loop_code(status);
  loop_violation("cuCtxRecordEvent while a stream of the context captures");
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
