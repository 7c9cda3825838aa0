/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of runtime/cuda: the runtime object, and the call frame of every op.
 *
 *   static lade_status op(void *self, int device, size_t bytes, void **out) {
 *     cuda_call call = {.runtime = self, .op = "op"};
 *     if (!ladei_cuda_enter_device(&call, device)) return call.status;
 *     CUresult code = call.runtime->api.cu_something(...);
 *     if (ladei_cuda_leave(&call, code, "%zu bytes on device %d", bytes, device) == LADE_OK) *out = ...;
 *     return call.status;
 *   }
 *
 * I1  Between enter and leave the wanted context is current, and the thread's capture mode is relaxed if the call asks
 *     for it; after leave both are as the caller had them, whatever the op's outcome.
 * I2  A context is created only by ladei_cuda_enter_device() and ladei_cuda_context(), for the device named.
 * I3  Once a code that is final for the process has been seen (lost_code), every call except a releasing one fails with
 *     LADE_ERR_DEVICE_LOST without reaching the driver.
 * Locks: that of `streams`. The other fields are constant after opening, except the atomic ones.
 */
#ifndef LADE_RUNTIME_CUDA_DRIVER_H
#define LADE_RUNTIME_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/lock.h"
#include "runtime/cuda/entry_points.h"
#include "runtime/ops.h"

/* copy_kernel_ops.c: the kernels of a device. */
typedef struct cuda_copy_kernels {
  CUmodule module;
  CUfunction list, short_list, table, short_table, numbers;
} cuda_copy_kernels;

typedef struct cuda_device {
  CUdevice native;
  _Atomic(CUcontext) context; /* its primary context, retained once by this runtime; NULL until first wanted */
  _Atomic(cuda_copy_kernels *) copy_kernels; /* owned; NULL until loaded */
} cuda_device;

/* stream_identity.c: the ids of streams, by handle. */
enum { CUDA_STREAM_BUCKETS = 256 };
typedef struct cuda_stream_entry cuda_stream_entry;
typedef struct cuda_streams {
  ladei_lock lock;
  uint64_t stand_ins; /* given so far; guard: the lock */
  _Atomic(cuda_stream_entry *) buckets[CUDA_STREAM_BUCKETS];
} cuda_streams;

enum { CUDA_CODE_COUNT = 1000 }; /* the driver's codes end with CUDA_ERROR_UNKNOWN = 999 */

typedef struct cuda_runtime {
  lade_runtime_ops ops;
  cuda_api api;
  int driver_version;                     /* 1000 * major + 10 * minor */
  _Atomic(int) lost_code;                 /* first final code seen; 0: none */
  _Atomic(char *) texts[CUDA_CODE_COUNT]; /* made when first asked for, freed by close */
  cuda_streams streams;
  int device_count;
  cuda_device devices[]; /* device_count of them */
} cuda_runtime;

typedef struct cuda_call {
  cuda_runtime *runtime;
  const char *op;            /* name of the op, for messages */
  bool relaxed;              /* wants the relaxed thread capture mode (R9) */
  bool releases;             /* releases an object: succeeds also after the device is lost (R7) */
  lade_status out_of_memory; /* meaning of CUDA_ERROR_OUT_OF_MEMORY here; 0: LADE_ERR_OUT_OF_DEVICE_MEMORY */

  /* Set by enter and leave. */
  lade_status status;
  bool pushed;   /* leave pops the context */
  bool switched; /* leave puts `mode` back */
  CUstreamCaptureMode mode;
} cuda_call;

/*
 * Each begins a call with a context current. False: the op must return call->status at once; for a releasing call on a
 * lost device or a driver being torn down that is LADE_OK.
 */
bool ladei_cuda_enter_device(cuda_call *call, int device);
bool ladei_cuda_enter_context(cuda_call *call, uint64_t context);
/* For ops that name no device, such as those on events: any context of this runtime, or the program's, or none. */
bool ladei_cuda_enter_any(cuda_call *call);
/* For ops that need no context. */
bool ladei_cuda_enter(cuda_call *call);

/* Ends a call: restores, translates `code`, records the error with the details given. Returns call->status. */
lade_status ladei_cuda_leave(cuda_call *call, CUresult code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The device's primary context, retained on first use. False with call->status set. */
bool ladei_cuda_context(cuda_call *call, int device, CUcontext *out);
/* LADE_ERR_NO_DEVICE into call->status and false, if there is no such device (R4). */
bool ladei_cuda_device_check(cuda_call *call, int device);
/* LADE_ERR_INVALID_ARGUMENT into call->status and false, for an address of NULL or a size of 0 (R8). */
bool ladei_cuda_range_check(cuda_call *call, const void *address, size_t bytes);
bool ladei_cuda_bytes_check(cuda_call *call, size_t bytes);
/* Ordinal of the driver's device; -1 if the runtime does not have it. */
int ladei_cuda_device_ordinal(const cuda_runtime *runtime, CUdevice native);
/* Ordinal of the device whose primary context this is, if this runtime retains it; otherwise -1. */
int ladei_cuda_context_device(cuda_runtime *runtime, CUcontext context);
/* Before the contexts are released. */
void ladei_cuda_copy_kernels_unload(cuda_runtime *runtime);
/* Releases every retained context. */
void ladei_cuda_release_contexts(cuda_runtime *runtime);

void ladei_cuda_streams_init(cuda_streams *streams);
void ladei_cuda_streams_destroy(cuda_streams *streams);
/* Context and id of a stream, special handles included. Fails if the driver does, or without memory. */
CUresult ladei_cuda_stream_identity(cuda_runtime *runtime, CUstream handle, ladei_stream_kind kind,
                                    CUcontext *out_context, uint64_t *out_id);
/* The stream is destroyed: the next stream with this handle is another one. */
void ladei_cuda_stream_forget(cuda_runtime *runtime, CUstream handle);

/* errors.c: the one switch. */
lade_status ladei_cuda_status(CUresult code, lade_status out_of_memory);
/* After this code the process can do nothing more on the device, or on any. */
bool ladei_cuda_is_final(CUresult code);
const char *ladei_cuda_error_text(cuda_runtime *runtime, int64_t code);
void ladei_cuda_free_texts(cuda_runtime *runtime);

static inline CUdeviceptr cuda_address(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }
/* The driver's answer about an event of a capture that is over: I2 of event_ops.c. */
static inline CUresult cuda_event_answer(CUresult code) {
  return code == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_CAPTURED_EVENT : code;
}

static inline uint64_t cuda_context_identity(CUcontext context) { return (uint64_t)(uintptr_t)context; }

/* Each file of ops puts its ops into the table. */
void ladei_cuda_fill_device_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_memory_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_virtual_memory_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_pool_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_stream_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_event_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_copy_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_copy_kernel_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_graph_ops(lade_runtime_ops *ops);
void ladei_cuda_fill_peer_ops(lade_runtime_ops *ops);

#endif /* LADE_RUNTIME_CUDA_DRIVER_H */
