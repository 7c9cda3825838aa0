/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates the driver's codes to lade_status: the one switch, the final codes, the texts.
 *
 * I1  Every CUresult has a lade_status; one without a case here is LADE_ERR_DRIVER.
 * I2  A code that ladei_cuda_is_final() names is LADE_ERR_DEVICE_LOST.
 * Locks: none; a text is published by one compare-and-swap, and the loser's copy freed.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

/*
 * Codes after which, in the words of cuda.h, the process is in an inconsistent state and must be restarted, the context
 * is gone (its device was reset), or the driver itself is shutting down at the end of the process.
 */
bool ladei_cuda_is_final(CUresult code) {
  switch ((int)code) {
  case CUDA_ERROR_DEINITIALIZED:
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case CUDA_CODE_CONTAINED:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
  case CUDA_CODE_TENSOR_MEMORY_LEAK:
  case CUDA_ERROR_MPS_CLIENT_TERMINATED:
  case CUDA_ERROR_EXTERNAL_DEVICE: return true;
  default: return false;
  }
}

lade_status ladei_cuda_status(CUresult code, lade_status out_of_memory) {
  assert(ladei_status_is_error((int32_t)out_of_memory));
  if (ladei_cuda_is_final(code)) return LADE_ERR_DEVICE_LOST; /* I2 */
  switch ((int)code) {
  case CUDA_SUCCESS: return LADE_OK;
  case CUDA_ERROR_NOT_READY: return LADE_NOT_READY;
  case CUDA_ERROR_OUT_OF_MEMORY: return out_of_memory;
  case CUDA_ERROR_OPERATING_SYSTEM: /* from pinning: the system refused */
    return out_of_memory == LADE_ERR_OUT_OF_PINNED_MEMORY ? out_of_memory : LADE_ERR_DRIVER;
  case CUDA_ERROR_INVALID_VALUE:
  case CUDA_ERROR_INVALID_CONTEXT:
  case CUDA_ERROR_INVALID_HANDLE:
  case CUDA_ERROR_ALREADY_MAPPED:
  case CUDA_ERROR_NOT_MAPPED:
  case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
  case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
  case CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: return LADE_ERR_INVALID_ARGUMENT;
  case CUDA_ERROR_NOT_SUPPORTED:
  case CUDA_ERROR_NOT_PERMITTED:
  case CUDA_ERROR_NOT_FOUND:
  case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
  case CUDA_ERROR_TOO_MANY_PEERS:
  case CUDA_CODE_CALL_REQUIRES_NEWER_DRIVER: return LADE_ERR_UNSUPPORTED;
  case CUDA_ERROR_NOT_INITIALIZED:
  case CUDA_ERROR_STUB_LIBRARY:
  case CUDA_ERROR_DEVICE_UNAVAILABLE:
  case CUDA_ERROR_NO_DEVICE:
  case CUDA_ERROR_INVALID_DEVICE:
  case CUDA_ERROR_DEVICE_NOT_LICENSED:
  case CUDA_ERROR_SYSTEM_NOT_READY:
  case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
  case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
  case CUDA_ERROR_MPS_CONNECTION_FAILED:
  case CUDA_ERROR_MPS_SERVER_NOT_READY:
  case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
  case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED: return LADE_ERR_NO_DEVICE;
  case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
  case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
  case CUDA_ERROR_STREAM_CAPTURE_MERGE:
  case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
  case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
  case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
  case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
  case CUDA_ERROR_CAPTURED_EVENT:
  case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
  case CUDA_ERROR_ILLEGAL_STATE: /* from the calls that begin or end a capture */ return LADE_ERR_CAPTURE;
  default: return LADE_ERR_DRIVER; /* CUDA_ERROR_TIMEOUT, too: LADE_ERR_TIMEOUT ends a wait, whose work goes on */
  }
}

/* "CUDA_ERROR_OUT_OF_MEMORY: out of memory"; the caller frees it. NULL without memory. */
static char *text_compose(const cuda_runtime *runtime, CUresult code) {
  const char *name = NULL;
  const char *words = NULL;
  char *text = NULL;
  if (runtime->api.get_error_name(code, &name) != CUDA_SUCCESS || name == NULL) name = "unknown CUDA error";
  if (runtime->api.get_error_string(code, &words) != CUDA_SUCCESS || words == NULL)
    words = "the driver has no text for it";
  return asprintf(&text, "%s: %s", name, words) < 0 ? NULL : text;
}

const char *ladei_cuda_error_text(cuda_runtime *runtime, int64_t code) {
  if (code < 0 || code >= CUDA_CODE_COUNT) return "not a CUDA error code";
  _Atomic(char *) *slot = &runtime->texts[code];
  char *text = atomic_load_explicit(slot, memory_order_acquire);
  if (text != NULL) return text;
  char *made = text_compose(runtime, (CUresult)code);
  if (made == NULL) return "CUDA error (no memory for its text)";
  if (atomic_compare_exchange_strong_explicit(slot, &text, made, memory_order_acq_rel, memory_order_acquire))
    return made;
  free(made);
  return text;
}

void ladei_cuda_free_texts(cuda_runtime *runtime) {
  for (size_t i = 0; i < CUDA_CODE_COUNT; i++) free(atomic_exchange(&runtime->texts[i], NULL));
}
