/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks on the objects around memory: the driver's start, contexts, streams, captures.
 *
 * R1  A thread that retains a primary context while its last reference goes finds it as it was, or made anew: lade's
 *     objects in it do not go after that thread has it.
 * Locks: primary_locks, one for each device, held while its primary context is retained, released or reset; the gates
 * are closed, and the driver is called, with it held. A thread inside a gate takes none of them.
 */
#include <pthread.h>

#include "preload/driver.h"
#include "preload/pools.h"
#include "preload/settings.h"
#include "preload/streams.h"

CUresult hook_init(unsigned flags) {
  CUresult code = DRIVER_CALL(init)(flags);
  if (code != CUDA_SUCCESS || ladei_preload_inside() || ladei_preload_forked()) return code;
  ladei_preload_settings_complain();
  ladei_preload_watch_fork();
  return code;
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

static CUresult created(CUresult code, const CUcontext *context) {
  if (code == CUDA_SUCCESS && context != NULL && !ladei_preload_passes()) ladei_preload_context_note(*context);
  return code;
}

CUresult hook_ctx_create(CUcontext *out, unsigned flags, CUdevice device) {
  return created(DRIVER_CALL(ctx_create)(out, flags, device), out);
}

CUresult hook_ctx_create_1(CUcontext *out, unsigned flags, CUdevice device) {
  return created(DRIVER_CALL(ctx_create_1)(out, flags, device), out);
}

CUresult hook_ctx_create_3(CUcontext *out, void *affinities, int count, unsigned flags, CUdevice device) {
  return created(DRIVER_CALL(ctx_create_3)(out, affinities, count, flags, device), out);
}

CUresult hook_ctx_create_4(CUcontext *out, void *parameters, unsigned flags, CUdevice device) {
  return created(DRIVER_CALL(ctx_create_4)(out, parameters, flags, device), out);
}

/* Closes the gate for the end of a context. Before that, pending blocks are collected while their events can be
 * queried, and freed memory of a primary context is waited for in all contexts that use it. */
static preload_progress context_settle(CUcontext context, int device) {
  preload_progress work = ladei_preload_context_wait(context, device);
  if (work == PRELOAD_DONE && device >= 0) ladei_preload_device_settle(device);
  ladei_preload_collect();
  ladei_preload_gate_close(&ladei_preload_recording);
  return work;
}

/* After a detach the context is still current only if it has other users, by cuCtxAttach. */
static bool is_current(CUcontext context) {
  CUcontext current = NULL;
  return DRIVER_CALL(ctx_get_current)(&current) == CUDA_SUCCESS && current == context;
}

/* A context of the program's own has no pool, but has events. Work that is still running ends with the context. */
static CUresult context_end(preload_call_ctx_destroy *call, CUcontext context, bool by_users) {
  if (ladei_preload_passes() || context == NULL) return call(context);
  if (context_settle(context, -1) != PRELOAD_UNDER_WAY) ladei_preload_context_clear(context, -1);
  CUresult code = call(context);
  if (code == CUDA_SUCCESS && !(by_users && is_current(context))) ladei_preload_context_forget(context, -1);
  ladei_preload_gate_open(&ladei_preload_recording);
  return code;
}

CUresult hook_ctx_destroy(CUcontext context) { return context_end(DRIVER_CALL(ctx_destroy), context, false); }
CUresult hook_ctx_destroy_1(CUcontext context) { return context_end(DRIVER_CALL(ctx_destroy_1), context, false); }
CUresult hook_ctx_detach(CUcontext context) { return context_end(DRIVER_CALL(ctx_detach), context, true); }

static pthread_mutex_t primary_locks[PRELOAD_DEVICES_MAX] = {[0 ... PRELOAD_DEVICES_MAX - 1] =
                                                                 PTHREAD_MUTEX_INITIALIZER}; /* R1 */
static int retained[PRELOAD_DEVICES_MAX]; /* the program's references to the primary contexts; under these locks */

static int primary_ordinal(CUdevice device) {
  return ladei_preload_passes() ? -1 : ladei_preload_device_ordinal(device);
}

CUresult hook_primary_ctx_retain(CUcontext *out, CUdevice device) {
  int ordinal = primary_ordinal(device);
  if (ordinal < 0) return DRIVER_CALL(primary_ctx_retain)(out, device);
  pthread_mutex_lock(&primary_locks[ordinal]);
  CUresult code = DRIVER_CALL(primary_ctx_retain)(out, device);
  if (code == CUDA_SUCCESS) retained[ordinal]++;
  if (code == CUDA_SUCCESS && out != NULL) ladei_preload_context_note_primary(*out, ordinal);
  pthread_mutex_unlock(&primary_locks[ordinal]);
  return code;
}

static bool primary_is_active(CUdevice device) {
  unsigned flags;
  int active = 0;
  return DRIVER_CALL(primary_ctx_get_state)(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

/*
 * Before the primary context of a device goes, lade gives back its memory there. Memory that is still in use stays as
 * it is, and the pool ends without giving it back. A reset ends that use; a release does not, if lade's reference stays
 * with the pool. Without lade's reference the context is gone, with all work that ran there.
 */
static CUresult primary_end(preload_call_primary_ctx_reset *call, CUdevice device, int ordinal, bool is_reset) {
  preload_progress work = context_settle(NULL, ordinal);
  ladei_preload_device_close(ordinal, work);
  if (work != PRELOAD_UNDER_WAY) ladei_preload_context_clear(NULL, ordinal);
  CUresult code = call(device);
  if (code == CUDA_SUCCESS && (is_reset || !primary_is_active(device))) ladei_preload_context_forget(NULL, ordinal);
  ladei_preload_device_closed(ordinal);
  ladei_preload_gate_open(&ladei_preload_recording);
  return code;
}

static CUresult primary_reset(preload_call_primary_ctx_reset *call, CUdevice device) {
  int ordinal = primary_ordinal(device);
  if (ordinal < 0) return call(device);
  pthread_mutex_lock(&primary_locks[ordinal]);
  CUresult code = primary_end(call, device, ordinal, true);
  pthread_mutex_unlock(&primary_locks[ordinal]);
  return code;
}

CUresult hook_primary_ctx_reset(CUdevice device) { return primary_reset(DRIVER_CALL(primary_ctx_reset), device); }
CUresult hook_primary_ctx_reset_1(CUdevice device) { return primary_reset(DRIVER_CALL(primary_ctx_reset_1), device); }

/* lade's own reference must not keep alive what the program's last one kept. */
static CUresult primary_release(preload_call_primary_ctx_release *call, CUdevice device) {
  int ordinal = primary_ordinal(device);
  if (ordinal < 0) return call(device);
  pthread_mutex_lock(&primary_locks[ordinal]);
  bool is_last = retained[ordinal] == 1;
  if (retained[ordinal] > 0) retained[ordinal]--;
  CUresult code = is_last ? primary_end(call, device, ordinal, false) : call(device);
  pthread_mutex_unlock(&primary_locks[ordinal]);
  return code;
}

CUresult hook_primary_ctx_release(CUdevice device) { return primary_release(DRIVER_CALL(primary_ctx_release), device); }
CUresult hook_primary_ctx_release_1(CUdevice device) {
  return primary_release(DRIVER_CALL(primary_ctx_release_1), device);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

CUresult hook_stream_create(CUstream *out, unsigned flags) {
  CUresult code = DRIVER_CALL(stream_create)(out, flags);
  if (code == CUDA_SUCCESS && !ladei_preload_passes()) ladei_preload_stream_note(*out, flags);
  return code;
}

CUresult hook_stream_create_with_priority(CUstream *out, unsigned flags, int priority) {
  CUresult code = DRIVER_CALL(stream_create_with_priority)(out, flags, priority);
  if (code == CUDA_SUCCESS && !ladei_preload_passes()) ladei_preload_stream_note(*out, flags);
  return code;
}

static bool is_special(CUstream stream) {
  return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* If lade cannot cover its uses of the stream by an event, it waits until the stream is idle. */
static void stream_retire(CUstream stream) {
  const preload_settings *settings = ladei_preload_settings();
  if (settings->mode != PRELOAD_FAST && settings->device == PRELOAD_DEVICE_OFF) return;
  if (ladei_preload_stream_retire(stream) || ladei_preload_captures(stream)) return;
  ladei_preload_stream_wait(stream);
  (void)ladei_preload_stream_retire(stream);
}

static bool is_gone(CUresult code) {
  return code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult stream_end(preload_call_stream_destroy *call, CUstream stream) {
  if (ladei_preload_passes() || is_special(stream)) return call(stream);
  ladei_preload_capture_give_up(stream);
  stream_retire(stream);
  preload_stream_end end;
  ladei_preload_stream_forget(stream, &end);
  CUresult code = call(stream);
  ladei_preload_stream_forgotten(stream, &end, is_gone(code));
  return code;
}

CUresult hook_stream_destroy(CUstream stream) { return stream_end(DRIVER_CALL(stream_destroy), stream); }
CUresult hook_stream_destroy_1(CUstream stream) { return stream_end(DRIVER_CALL(stream_destroy_1), stream); }

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* A wait can bring a stream into a capture only while a stream captures. */
#define WAIT_HOOK(field)                                                                                               \
  CUresult hook_##field(CUstream stream, CUevent event, unsigned flags) {                                              \
    bool looks = !ladei_preload_passes() && ladei_preload_recording_blocked();                                         \
    preload_orphan *left = looks ? ladei_preload_capture_leave(stream) : NULL;                                         \
    CUresult code = DRIVER_CALL(field)(stream, event, flags);                                                          \
    ladei_preload_capture_left(left);                                                                                  \
    return code;                                                                                                       \
  }
WAIT_HOOK(stream_wait_event)
WAIT_HOOK(stream_wait_event_ptsz)

/* The stream that a handle of NULL names in the _ptsz functions. */
static CUstream per_thread(CUstream stream) { return stream == NULL ? CU_STREAM_PER_THREAD : stream; }

#define CAPTURE_HOOK(field, has_graph, named, parameters, arguments)                                                   \
  CUresult hook_##field parameters {                                                                                   \
    preload_slot slot;                                                                                                 \
    bool passes = ladei_preload_passes();                                                                              \
    preload_orphan *left = passes ? NULL : ladei_preload_capture_leave(named);                                         \
    if (!passes) ladei_preload_capture_opening(named, &slot);                                                          \
    CUresult code = DRIVER_CALL(field) arguments;                                                                      \
    if (!passes) ladei_preload_capture_opened(named, &slot, has_graph, code == CUDA_SUCCESS);                          \
    ladei_preload_capture_left(left);                                                                                  \
    return code;                                                                                                       \
  }

CAPTURE_HOOK(stream_begin_capture_1, false, stream, (CUstream stream), (stream))
CAPTURE_HOOK(stream_begin_capture_1_ptsz, false, per_thread(stream), (CUstream stream), (stream))
CAPTURE_HOOK(stream_begin_capture, false, stream, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CAPTURE_HOOK(stream_begin_capture_ptsz, false, per_thread(stream), (CUstream stream, CUstreamCaptureMode mode),
             (stream, mode))
CAPTURE_HOOK(stream_begin_capture_to, true, stream,
             (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,
              CUstreamCaptureMode mode),
             (stream, graph, nodes, edges, count, mode))
CAPTURE_HOOK(stream_begin_capture_to_ptsz, true, per_thread(stream),
             (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,
              CUstreamCaptureMode mode),
             (stream, graph, nodes, edges, count, mode))

CUresult hook_stream_end_capture(CUstream stream, CUgraph *out) {
  CUresult code = DRIVER_CALL(stream_end_capture)(stream, out);
  if (!ladei_preload_passes()) ladei_preload_capture_closed(stream, code == CUDA_SUCCESS);
  return code;
}

CUresult hook_stream_end_capture_ptsz(CUstream stream, CUgraph *out) {
  CUresult code = DRIVER_CALL(stream_end_capture_ptsz)(stream, out);
  if (!ladei_preload_passes()) ladei_preload_capture_closed(per_thread(stream), code == CUDA_SUCCESS);
  return code;
}
