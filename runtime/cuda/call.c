/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call frame of an op: contexts in and out, thread capture mode, loss of the device, error records.
 *
 *   caller's context stack   [.. | user]  --enter-->  [.. | user | wanted]  --op, leave-->  [.. | user]
 *                            nothing is pushed if `wanted` is already current
 *
 * I1, I2, I3 of driver.h. In addition:
 * I4  A device's primary context is retained at most once per runtime: a thread that loses the race to publish it gives
 *     its reference back.
 * I5  A releasing call never reports a final code: its object went with the device.
 * Locks: none.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

#include "base/log.h"
#include "runtime/cuda/driver.h"

/* ---- Loss -------------------------------------------------------------------------------------------------------- */

/* True: the call may go on. A releasing one goes on after a loss too, but never into a driver that is shutting down. */
static bool call_allowed(cuda_call *call) {
  int lost = atomic_load_explicit(&call->runtime->lost_code, memory_order_relaxed);
  ladei_lock_assert_none_held();
  assert(!call->pushed && !call->switched); /* a call is entered once: I1 */
  call->status = LADE_OK;
  if (lost == 0) return true;
  if (call->releases) return lost != CUDA_ERROR_DEINITIALIZED;
  call->status = ladei_error(LADE_ERR_DEVICE_LOST, lost, "%s: the device was lost before: %s (%d)", call->op,
                             ladei_cuda_error_text(call->runtime, lost), lost);
  return false;
}

/* A context that is retained here lives unless its device is reset. */
static bool device_was_reset(const cuda_runtime *runtime) {
  for (int i = 0; i < runtime->device_count; i++) {
    unsigned flags = 0;
    int active = 1;
    if (atomic_load(&runtime->devices[i].context) != NULL &&
        runtime->api.primary_ctx_get_state(runtime->devices[i].native, &flags, &active) == CUDA_SUCCESS && active == 0)
      return true;
  }
  return false;
}

/* Translates; records a loss. */
static lade_status call_status(const cuda_call *call, CUresult code) {
  int none = 0;
  if (code == CUDA_ERROR_CONTEXT_IS_DESTROYED && !device_was_reset(call->runtime))
    return LADE_ERR_INVALID_ARGUMENT; /* the program's own one, left current: the runtime goes on */
  if (ladei_cuda_is_final(code) && atomic_compare_exchange_strong(&call->runtime->lost_code, &none, (int)code))
    ladei_log_later(LADE_LOG_ERROR, "runtime cuda: the device is lost: %s: %s (%d)", call->op,
                    ladei_cuda_error_text(call->runtime, code), (int)code);
  return ladei_cuda_status(code, call->out_of_memory == LADE_OK ? LADE_ERR_OUT_OF_DEVICE_MEMORY : call->out_of_memory);
}

/* Translates and records; `details` may be empty. */
static lade_status call_fail(cuda_call *call, CUresult code, const char *details) {
  assert(code != CUDA_SUCCESS && !call->pushed && !call->switched); /* the caller's state is back: I1 */
  lade_status status = call_status(call, code);
  if (status == LADE_NOT_READY || (call->releases && status == LADE_ERR_DEVICE_LOST)) {
    call->status = status == LADE_NOT_READY ? LADE_NOT_READY : LADE_OK;
    return call->status;
  }
  const char *hint = code == CUDA_ERROR_NOT_PERMITTED ? "; a host function may make no call of the driver" : "";
  call->status = ladei_error(status, code, "%s%s%s: %s (%d)%s", call->op, details[0] != '\0' ? ": " : "", details,
                             ladei_cuda_error_text(call->runtime, code), (int)code, hint);
  assert(!call->releases || call->status != LADE_ERR_DEVICE_LOST); /* I5 */
  return call->status;
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

bool ladei_cuda_device_check(cuda_call *call, int device) {
  if (device >= 0 && device < call->runtime->device_count) return true;
  call->status = ladei_error(LADE_ERR_NO_DEVICE, 0, "%s: no device %d: there are %d", call->op, device,
                             call->runtime->device_count);
  return false;
}

bool ladei_cuda_range_check(cuda_call *call, const void *address, size_t bytes) {
  if (address != NULL && bytes != 0) return true;
  call->status =
      ladei_error_argument(call->op, "memory", "an address, and more than 0 bytes", "%zu bytes at %p", bytes, address);
  return false;
}

bool ladei_cuda_bytes_check(cuda_call *call, size_t bytes) {
  if (bytes != 0) return true;
  call->status = ladei_error_argument(call->op, "bytes", "more than 0", "0");
  return false;
}

int ladei_cuda_device_ordinal(const cuda_runtime *runtime, CUdevice native) {
  for (int i = 0; i < runtime->device_count; i++)
    if (runtime->devices[i].native == native) return i;
  return -1;
}

int ladei_cuda_context_device(cuda_runtime *runtime, CUcontext context) {
  for (int i = 0; i < runtime->device_count; i++)
    if (atomic_load_explicit(&runtime->devices[i].context, memory_order_acquire) == context) return i;
  return -1;
}

/* Retaining may create the context, which a capture in global mode would forbid: lade's own need, so relaxed. */
static CUresult context_retain(const cuda_runtime *runtime, CUdevice native, CUcontext *out) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUresult code = runtime->api.thread_exchange_capture_mode(&mode);
  if (code != CUDA_SUCCESS) return code;
  code = runtime->api.primary_ctx_retain(out, native);
  CUresult restored = runtime->api.thread_exchange_capture_mode(&mode);
  if (code == CUDA_SUCCESS && restored != CUDA_SUCCESS) {
    (void)runtime->api.primary_ctx_release(native);
    code = restored;
  }
  return code;
}

/* The device's primary context, retained on first use. */
static CUresult context_get(cuda_runtime *runtime, int device, CUcontext *out) {
  assert(device >= 0 && device < runtime->device_count); /* I2: the device named */
  cuda_device *entry = &runtime->devices[device];
  CUcontext context = atomic_load_explicit(&entry->context, memory_order_acquire);
  if (context == NULL) {
    CUcontext retained = NULL;
    CUresult code = context_retain(runtime, entry->native, &retained);
    if (code != CUDA_SUCCESS) return code;
    if (atomic_compare_exchange_strong_explicit(&entry->context, &context, retained, memory_order_acq_rel,
                                                memory_order_acquire))
      context = retained;
    else
      (void)runtime->api.primary_ctx_release(entry->native);
  }
  assert(context != NULL && context == atomic_load(&entry->context)); /* I4: all have the one that was published */
  *out = context;
  return CUDA_SUCCESS;
}

bool ladei_cuda_context(cuda_call *call, int device, CUcontext *out) {
  CUresult code = context_get(call->runtime, device, out);
  if (code == CUDA_SUCCESS) return true;
  char details[64];
  snprintf(details, sizeof details, "primary context of device %d", device);
  call_fail(call, code, details);
  return false;
}

/*
 * A context for an op that names none while the current one is not retained here: one that is; otherwise the current
 * one; otherwise one that other code keeps active. NULL: none. The program's current context may be dead.
 */
static CUcontext context_any(cuda_runtime *runtime, CUcontext current) {
  for (int i = 0; i < runtime->device_count; i++) {
    CUcontext context = atomic_load_explicit(&runtime->devices[i].context, memory_order_acquire);
    if (context != NULL) return context;
  }
  for (int i = 0; i < runtime->device_count && current == NULL; i++) {
    CUcontext context = NULL;
    unsigned flags = 0;
    int active = 0;
    if (runtime->api.primary_ctx_get_state(runtime->devices[i].native, &flags, &active) == CUDA_SUCCESS &&
        active != 0 && context_get(runtime, i, &context) == CUDA_SUCCESS)
      return context;
  }
  return current;
}

static void call_restore(cuda_call *call) {
  const cuda_api *api = &call->runtime->api;
  if (call->switched) {
    (void)api->thread_exchange_capture_mode(&call->mode);
    call->switched = false;
  }
  if (call->pushed) {
    CUcontext popped;
    (void)api->ctx_pop_current(&popped);
    call->pushed = false;
  }
}

static bool enter_failed(cuda_call *call, CUresult code, const char *details) {
  call_restore(call);
  call_fail(call, code, details);
  return false;
}

/* Makes `wanted` current, unless it is or is NULL; relaxes the capture mode if the call asks for it. */
static bool call_enter(cuda_call *call, CUcontext current, CUcontext wanted) {
  const cuda_api *api = &call->runtime->api;
  if (wanted != NULL && wanted != current) {
    CUresult code = api->ctx_push_current(wanted);
    if (code != CUDA_SUCCESS) return enter_failed(call, code, "making the context current");
    call->pushed = true;
  }
  if (call->relaxed) {
    call->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult code = api->thread_exchange_capture_mode(&call->mode);
    if (code != CUDA_SUCCESS) return enter_failed(call, code, "relaxing the thread's capture mode");
    call->switched = true;
  }
  return true;
}

static bool context_current(cuda_call *call, CUcontext *out) {
  *out = NULL;
  CUresult code = call->runtime->api.ctx_get_current(out);
  return code == CUDA_SUCCESS || enter_failed(call, code, "asking for the current context");
}

bool ladei_cuda_enter(cuda_call *call) { return call_allowed(call) && call_enter(call, NULL, NULL); }

bool ladei_cuda_enter_device(cuda_call *call, int device) {
  CUcontext current;
  CUcontext wanted;
  if (!ladei_cuda_device_check(call, device) || !call_allowed(call) || !ladei_cuda_context(call, device, &wanted) ||
      !context_current(call, &current))
    return false;
  return call_enter(call, current, wanted);
}

bool ladei_cuda_enter_context(cuda_call *call, uint64_t context) {
  CUcontext current;
  CUcontext wanted = (CUcontext)(uintptr_t)context;
  if (!call_allowed(call) || !context_current(call, &current)) return false;
  return call_enter(call, current, wanted);
}

bool ladei_cuda_enter_any(cuda_call *call) {
  CUcontext current;
  if (!call_allowed(call) || !context_current(call, &current)) return false;
  CUcontext wanted = current;
  if (current == NULL || ladei_cuda_context_device(call->runtime, current) < 0)
    wanted = context_any(call->runtime, current);
  return call_enter(call, current, wanted);
}

lade_status ladei_cuda_leave(cuda_call *call, CUresult code, const char *format, ...) {
  assert(call->switched == call->relaxed); /* I1 */
  call_restore(call);
  if (code == CUDA_SUCCESS) return LADE_OK;
  char details[256];
  va_list args;
  va_start(args, format);
  vsnprintf(details, sizeof details, format, args);
  va_end(args);
  return call_fail(call, code, details);
}

void ladei_cuda_release_contexts(cuda_runtime *runtime) {
  for (int i = 0; i < runtime->device_count; i++) {
    cuda_device *device = &runtime->devices[i];
    CUcontext context = atomic_exchange(&device->context, NULL);
    CUcontext current = NULL;
    unsigned flags = 0;
    int active = 1;
    if (context == NULL || runtime->api.primary_ctx_release(device->native) != CUDA_SUCCESS) continue;
    /* The driver leaves a destroyed primary context current; later calls of this thread would fail because of it. */
    if (runtime->api.primary_ctx_get_state(device->native, &flags, &active) == CUDA_SUCCESS && active == 0 &&
        runtime->api.ctx_get_current(&current) == CUDA_SUCCESS && current == context)
      (void)runtime->api.ctx_set_current(NULL);
  }
}
