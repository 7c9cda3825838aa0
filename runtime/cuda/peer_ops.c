/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on peers: other devices of this process, and other processes on the same devices.
 *
 * I1  Memory named only by a pointer (ipc_export, ipc_close) is handled under its own device's context.
 * Locks: none.
 */
#include <string.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

static lade_status peer_can_access(void *self, int device, int peer, bool *out_can) {
  cuda_call call = {.runtime = self, .op = "peer_can_access"};
  int can = 0;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_device_check(&call, peer) || !ladei_cuda_enter(&call))
    return call.status;
  const cuda_device *devices = call.runtime->devices;
  CUresult code = call.runtime->api.device_can_access_peer(&can, devices[device].native, devices[peer].native);
  if (ladei_cuda_leave(&call, code, "devices %d and %d", device, peer) == LADE_OK) *out_can = can != 0;
  return call.status;
}

/* The driver says unsupported; here a device is never its own peer, whatever it can do (R8). */
static bool distinct(cuda_call *call, int device, int peer) {
  if (device == peer) call->status = ladei_error_argument(call->op, "peer", "another device than `device`", "%d", peer);
  return device != peer;
}

/* Enters the context of one device, relaxed (R9), and gets that of the other. */
static bool enter_peers(cuda_call *call, int device, int peer, CUcontext *out_peer) {
  if (!ladei_cuda_device_check(call, peer) || !ladei_cuda_enter(call) || !ladei_cuda_context(call, peer, out_peer))
    return false;
  call->relaxed = true; /* nothing was entered before */
  return ladei_cuda_enter_device(call, device);
}

static lade_status peer_enable(void *self, int device, int peer) {
  cuda_call call = {.runtime = self, .op = "peer_enable"};
  CUcontext peer_context;
  if (!distinct(&call, device, peer)) return call.status;
  if (!enter_peers(&call, device, peer, &peer_context)) return call.status;
  CUresult code = call.runtime->api.ctx_enable_peer_access(peer_context, 0);
  if (code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) code = CUDA_SUCCESS;
  return ladei_cuda_leave(&call, code, "device %d to memory of %d", device, peer);
}

static lade_status peer_disable(void *self, int device, int peer) {
  cuda_call call = {.runtime = self, .op = "peer_disable"};
  CUcontext peer_context;
  if (!distinct(&call, device, peer)) return call.status;
  if (!enter_peers(&call, device, peer, &peer_context)) return call.status;
  CUresult code = call.runtime->api.ctx_disable_peer_access(peer_context);
  return ladei_cuda_leave(&call, code, "device %d to memory of %d", device, peer);
}

/* ---- Other processes --------------------------------------------------------------------------------------------- */

/* Enters the context of the device that has the memory; false with call->status set if none has. */
static bool enter_pointer_device(cuda_call *call, const void *pointer) {
  const cuda_runtime *runtime = call->runtime;
  ladei_pointer_attributes attributes;
  lade_status status = runtime->ops.pointer_attributes(call->runtime, pointer, &attributes);
  if (status == LADE_OK && attributes.kind == LADEI_MEMORY_DEVICE)
    return ladei_cuda_enter_device(call, attributes.device);
  if (status == LADE_OK)
    status = ladei_error_argument(call->op, "pointer", "device memory", "%p", pointer);
  else
    ladei_error_prefix(status, "%s: ", call->op);
  call->status = call->releases && status == LADE_ERR_DEVICE_LOST ? LADE_OK : status;
  return false;
}

static lade_status ipc_export(void *self, void *pointer, ladei_ipc_handle *out_handle) {
  cuda_call call = {.runtime = self, .op = "ipc_export", .relaxed = true};
  CUipcMemHandle native;
  _Static_assert(sizeof native.reserved == sizeof out_handle->bytes, "a handle passes as its bytes");
  if (!enter_pointer_device(&call, pointer)) return call.status;
  CUresult code = call.runtime->api.ipc_get_mem_handle(&native, cuda_address(pointer));
  if (ladei_cuda_leave(&call, code, "%p", pointer) == LADE_OK)
    memcpy(out_handle->bytes, native.reserved, sizeof out_handle->bytes);
  return call.status;
}

static lade_status ipc_open(void *self, int device, const ladei_ipc_handle *handle, void **out_base) {
  cuda_call call = {.runtime = self, .op = "ipc_open", .relaxed = true};
  CUipcMemHandle native;
  CUdeviceptr base = 0;
  memcpy(native.reserved, handle->bytes, sizeof native.reserved);
  if (!ladei_cuda_enter_device(&call, device)) return call.status;
  CUresult code = call.runtime->api.ipc_open_mem_handle(&base, native, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (ladei_cuda_leave(&call, code, "on device %d", device) == LADE_OK) *out_base = (void *)(uintptr_t)base;
  return call.status;
}

static lade_status ipc_close(void *self, void *base) {
  cuda_call call = {.runtime = self, .op = "ipc_close", .relaxed = true, .releases = true};
  if (!enter_pointer_device(&call, base)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.ipc_close_mem_handle(cuda_address(base)), "%p", base);
}

void ladei_cuda_fill_peer_ops(lade_runtime_ops *ops) {
  ops->peer_can_access = peer_can_access;
  ops->peer_enable = peer_enable;
  ops->peer_disable = peer_disable;
  ops->ipc_export = ipc_export;
  ops->ipc_open = ipc_open;
  ops->ipc_close = ipc_close;
}
