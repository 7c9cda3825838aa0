/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks on what lives around memory: the driver's start, contexts, streams, captures.
 *
 * Locks: none.
 */
#include <stdatomic.h>

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

CUresult hook_ctx_create_3(CUcontext *out, void *affinities, int count, unsigned flags, CUdevice device) {
  return created(DRIVER_CALL(ctx_create_3)(out, affinities, count, flags, device), out);
}

CUresult hook_ctx_create_4(CUcontext *out, void *parameters, unsigned flags, CUdevice device) {
  return created(DRIVER_CALL(ctx_create_4)(out, parameters, flags, device), out);
}

/* Closes the gate for the end of a context. What waits for the context gets its answer before, while the context is there to give
 * it. False: its work goes on. */
static bool context_settle(CUcontext context, int device) {
  bool idle = ladei_preload_context_wait(context, device);
  ladei_preload_collect();
  ladei_preload_gate_close(&ladei_preload_recording);
  return idle;
}

/* No pool is in a context of the program's own; its events are. Work that goes on ends with the context. */
CUresult hook_ctx_destroy(CUcontext context) {
  if (ladei_preload_passes() || context == NULL) return DRIVER_CALL(ctx_destroy)(context);
  bool idle = context_settle(context, -1);
  if (idle) ladei_preload_context_forget(context, -1);
  CUresult code = DRIVER_CALL(ctx_destroy)(context);
  if (!idle && code == CUDA_SUCCESS) ladei_preload_context_forget(context, -1);
  ladei_preload_gate_open(&ladei_preload_recording);
  return code;
}

/* References of the program to the primary contexts, by ordinal. */
static atomic_int retained[PRELOAD_DEVICES_MAX];

CUresult hook_primary_ctx_retain(CUcontext *out, CUdevice device) {
  CUresult code = DRIVER_CALL(primary_ctx_retain)(out, device);
  if (code != CUDA_SUCCESS || ladei_preload_passes()) return code;
  int ordinal = ladei_preload_device_ordinal(device);
  if (ordinal < 0) return code;
  atomic_fetch_add(&retained[ordinal], 1);
  if (out != NULL) ladei_preload_context_note_primary(*out, ordinal);
  return code;
}

/*
 * The primary context of a device is about to go: what lade has in it goes first, so that the driver finds it gone. Memory that is
 * still in use stays as it is, and the pool ends without giving it back. A reset ends that use; a release does not, since lade's
 * reference stays with the pool.
 */
static CUresult primary_end(preload_call_primary_ctx_reset *call, CUdevice device, int ordinal, bool is_reset) {
  bool idle = context_settle(NULL, ordinal);
  ladei_preload_device_close(ordinal, idle);
  if (idle) ladei_preload_context_forget(NULL, ordinal);
  CUresult code = call(device);
  if (!idle && is_reset && code == CUDA_SUCCESS) ladei_preload_context_forget(NULL, ordinal);
  ladei_preload_gate_open(&ladei_preload_recording);
  return code;
}

static CUresult primary_reset(preload_call_primary_ctx_reset *call, CUdevice device) {
  int ordinal = ladei_preload_passes() ? -1 : ladei_preload_device_ordinal(device);
  return ordinal < 0 ? call(device) : primary_end(call, device, ordinal, true);
}

CUresult hook_primary_ctx_reset(CUdevice device) { return primary_reset(DRIVER_CALL(primary_ctx_reset), device); }
CUresult hook_primary_ctx_reset_1(CUdevice device) { return primary_reset(DRIVER_CALL(primary_ctx_reset_1), device); }

/* lade's own reference must not keep alive what the program's last one kept. */
static CUresult primary_release(preload_call_primary_ctx_release *call, CUdevice device) {
  int ordinal = ladei_preload_passes() ? -1 : ladei_preload_device_ordinal(device);
  if (ordinal < 0 || atomic_load(&retained[ordinal]) <= 0) return call(device);
  if (atomic_fetch_sub(&retained[ordinal], 1) == 1) return primary_end(call, device, ordinal, false);
  return call(device);
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

CUresult hook_stream_destroy(CUstream stream) {
  if (!ladei_preload_passes() && !is_special(stream)) {
    const preload_settings *settings = ladei_preload_settings();
    if (settings->mode == PRELOAD_FAST || settings->device != PRELOAD_DEVICE_OFF) ladei_preload_stream_retire(stream);
    ladei_preload_stream_forget(stream);
  }
  return DRIVER_CALL(stream_destroy)(stream);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* What a handle of NULL names in the _ptsz functions. */
static CUstream per_thread(CUstream stream) { return stream == NULL ? CU_STREAM_PER_THREAD : stream; }

#define CAPTURE_HOOK(field, named, parameters, arguments)                                                              \
  CUresult hook_##field parameters {                                                                                   \
    bool passes = ladei_preload_passes();                                                                              \
    if (!passes) ladei_preload_capture_opening();                                                                      \
    CUresult code = DRIVER_CALL(field) arguments;                                                                      \
    if (!passes) ladei_preload_capture_opened(named, code == CUDA_SUCCESS);                                            \
    return code;                                                                                                       \
  }

CAPTURE_HOOK(stream_begin_capture_1, stream, (CUstream stream), (stream))
CAPTURE_HOOK(stream_begin_capture_1_ptsz, per_thread(stream), (CUstream stream), (stream))
CAPTURE_HOOK(stream_begin_capture, stream, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CAPTURE_HOOK(stream_begin_capture_ptsz, per_thread(stream), (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CAPTURE_HOOK(stream_begin_capture_to, stream,
             (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,
              CUstreamCaptureMode mode),
             (stream, graph, nodes, edges, count, mode))
CAPTURE_HOOK(stream_begin_capture_to_ptsz, per_thread(stream),
             (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,
              CUstreamCaptureMode mode),
             (stream, graph, nodes, edges, count, mode))

CUresult hook_stream_end_capture(CUstream stream, CUgraph *out) {
  CUresult code = DRIVER_CALL(stream_end_capture)(stream, out);
  if (!ladei_preload_passes()) ladei_preload_capture_closed(stream);
  return code;
}

CUresult hook_stream_end_capture_ptsz(CUstream stream, CUgraph *out) {
  CUresult code = DRIVER_CALL(stream_end_capture_ptsz)(stream, out);
  if (!ladei_preload_passes()) ladei_preload_capture_closed(per_thread(stream));
  return code;
}
