/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported entry points, the lookup of all others, and what the driver tells of itself.
 *
 * I1  cuGetProcAddress finds, of the versions of a symbol that came with the asked version or before, the newest.
 * I2  What came later than the driver's version is not there.
 * Locks: none.
 */
#include <string.h>

#include "tests/loopback/loopback.h"

LOOP_EXPORT __typeof__(*(PFN_cuGetProcAddress_v12000)0) cuGetProcAddress_v2;
#undef cuGetProcAddress
LOOP_EXPORT __typeof__(*(PFN_cuGetProcAddress_v11030)0) cuGetProcAddress;
LOOP_EXPORT __typeof__(*(PFN_cuInit_v2000)0) cuInit;
LOOP_EXPORT __typeof__(*(PFN_cuDriverGetVersion_v2020)0) cuDriverGetVersion;

typedef struct loop_entry {
  const char *symbol;
  int version;
  void (*function)(void);
} loop_entry;

/* Whoever gets here asked for a version whose prototype is not the one he calls with. */
#define LOOP_OTHER(symbol, version)                                                                                    \
  static CUresult other_##symbol##_v##version(void) {                                                                  \
    loop_violation("%s called at version %d", #symbol, version);                                                       \
    return CUDA_ERROR_UNKNOWN;                                                                                         \
  }
LOOPBACK_OTHER_VERSIONS(LOOP_OTHER)
#undef LOOP_OTHER

static const loop_entry entries[] = {
#define LOOP_ENTRY(symbol, version, demands) {#symbol, version, (void (*)(void))loop_##symbol##_v##version},
#define LOOP_OTHER_ENTRY(symbol, version)    {#symbol, version, (void (*)(void))other_##symbol##_v##version},
    LOOPBACK_SYMBOLS(LOOP_ENTRY) LOOPBACK_OTHER_VERSIONS(LOOP_OTHER_ENTRY)
#undef LOOP_ENTRY
#undef LOOP_OTHER_ENTRY
};

/* In the flavour of programs whose default stream is the thread's. */
#define LOOP_PER_THREAD(symbol, version, parameters, arguments)                                                        \
  static CUresult per_thread_##symbol parameters {                                                                     \
    CUstream own = stream == NULL ? CU_STREAM_PER_THREAD : stream;                                                     \
    return loop_##symbol##_v##version arguments;                                                                       \
  }
LOOPBACK_PER_THREAD(LOOP_PER_THREAD)
#undef LOOP_PER_THREAD

static const loop_entry per_thread_entries[] = {
#define LOOP_PER_THREAD_ENTRY(symbol, version, parameters, arguments)                                                  \
  {#symbol, version > 7000 ? version : 7000, (void (*)(void))per_thread_##symbol},
    LOOPBACK_PER_THREAD(LOOP_PER_THREAD_ENTRY)
#undef LOOP_PER_THREAD_ENTRY
};

/* The look-up finds itself, too. */
static const loop_entry look_ups[] = {{"cuGetProcAddress", 11030, (void (*)(void))cuGetProcAddress},
                                      {"cuGetProcAddress", 12000, (void (*)(void))cuGetProcAddress_v2}};

static const loop_entry *program_entry_find(const char *symbol, int version, cuuint64_t flags) {
  const loop_entry *found = NULL;
  for (size_t i = 0; i < sizeof look_ups / sizeof look_ups[0]; i++)
    if (strcmp(look_ups[i].symbol, symbol) == 0 && look_ups[i].version <= version) found = &look_ups[i];
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == 0) return found;
  for (size_t i = 0; i < sizeof per_thread_entries / sizeof per_thread_entries[0]; i++)
    if (strcmp(per_thread_entries[i].symbol, symbol) == 0 && per_thread_entries[i].version <= version)
      found = &per_thread_entries[i];
  return found;
}

static const loop_entry *entry_find(const char *symbol, int version, bool *out_known) {
  const loop_entry *found = NULL;
  *out_known = false;
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    const loop_entry *entry = &entries[i];
    if (strcmp(entry->symbol, symbol) != 0 || entry->version > loop_driver_version()) continue;
    *out_known = true;
    if (entry->version <= version && (found == NULL || entry->version > found->version)) found = entry;
  }
  return found;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **out_function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *out_status) {
  CUdriverProcAddressQueryResult ignored;
  CUdriverProcAddressQueryResult *status = out_status != NULL ? out_status : &ignored;
  bool known = false;
  *out_function = NULL;
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (version > loop_driver_version()) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM && !loop_plays_program()) {
    loop_violation("%s asked for with flags %llu: NULL may then be the per-thread stream", symbol,
                   (unsigned long long)flags);
  }
  loop_symbol_asked(symbol, version);
  const loop_entry *entry = loop_symbol_hidden(symbol) ? NULL : program_entry_find(symbol, version, flags);
  if (entry == NULL && !loop_symbol_hidden(symbol)) entry = entry_find(symbol, version, &known);
  if (entry != NULL) {
    memcpy(out_function, &entry->function, sizeof entry->function);
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
  } else if (known) {
    *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  }
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **out_function, int version, cuuint64_t flags) {
  CUresult code = cuGetProcAddress_v2(symbol, out_function, version, flags, NULL);
  return code == CUDA_SUCCESS && *out_function == NULL ? CUDA_ERROR_NOT_FOUND : code;
}

CUresult cuInit(unsigned int flags) { return loop_cuInit_v2000(flags); }
CUresult cuDriverGetVersion(int *out_version) { return loop_cuDriverGetVersion_v2020(out_version); }

/* ---- Exported by name, for programs that are linked with the driver ----------------------------------------------- */

/* X(exported name, row's function, (parameters), (arguments)) */
/* clang-format off */
#define LOOPBACK_EXPORTED(X) \
  X(cuDevicePrimaryCtxRetain, loop_cuDevicePrimaryCtxRetain_v7000, (CUcontext *out, CUdevice device), (out, device)) \
  X(cuDevicePrimaryCtxRelease_v2, loop_cuDevicePrimaryCtxRelease_v11000, (CUdevice device), (device)) \
  X(cuCtxSetCurrent, loop_cuCtxSetCurrent_v4000, (CUcontext context), (context)) \
  X(cuCtxCreate, loop_cuCtxCreate_v3020, (CUcontext *out, unsigned flags, CUdevice device), (out, flags, device)) \
  X(cuCtxDestroy, loop_cuCtxDestroy_v4000, (CUcontext context), (context)) \
  X(cuCtxDetach, loop_cuCtxDestroy_v4000, (CUcontext context), (context)) \
  X(cuStreamDestroy, loop_cuStreamDestroy_v4000, (CUstream stream), (stream)) \
  X(cuMemAlloc_v2, loop_cuMemAlloc_v3020, (CUdeviceptr *out, size_t bytes), (out, bytes)) \
  X(cuMemFree_v2, loop_cuMemFree_v3020, (CUdeviceptr address), (address)) \
  X(cuMemHostAlloc, loop_cuMemHostAlloc_v2020, (void **out, size_t bytes, unsigned flags), (out, bytes, flags)) \
  X(cuMemAllocHost_v2, loop_cuMemAllocHost_v3020, (void **out, size_t bytes), (out, bytes)) \
  X(cuMemFreeHost, loop_cuMemFreeHost_v2000, (void *pointer), (pointer)) \
  X(cuMemHostGetFlags, loop_cuMemHostGetFlags_v2030, (unsigned *out, void *pointer), (out, pointer))
/* clang-format on */
#define LOOP_EXPORTED(name, function, parameters, arguments)                                                           \
  LOOP_EXPORT CUresult exported_##name parameters __asm__(#name);                                                      \
  CUresult exported_##name parameters { return function arguments; }
LOOPBACK_EXPORTED(LOOP_EXPORTED)
#undef LOOP_EXPORTED

/* ---- The driver about itself ------------------------------------------------------------------------------------- */

CUresult loop_cuInit_v2000(unsigned int flags) {
  LOOP_ENTER(cuInit, 2000);
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : loop_start();
}

CUresult loop_cuDriverGetVersion_v2020(int *out_version) {
  LOOP_ENTER(cuDriverGetVersion, 2020);
  *out_version = loop_driver_version();
  return CUDA_SUCCESS;
}

/* Every code that the loopback or the tests' faults return. */
#define LOOP_CODES(X)                                                                                                  \
  X(CUDA_SUCCESS, "no error")                                                                                          \
  X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                                      \
  X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                         \
  X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                                \
  X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                                                  \
  X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                                        \
  X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                               \
  X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                              \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                                               \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices")                      \
  X(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")                               \
  X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                              \
  X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")                                \
  X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                                    \
  X(CUDA_ERROR_NOT_READY, "device not ready")                                                                          \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                            \
  X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                                          \
  X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")                                            \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                                           \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped")          \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")                \
  X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                            \
  X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                                               \
  X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                               \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                         \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")                  \
  X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")                \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                       \
  X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                          \
  X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")                    \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                                                \
    "operation would make the legacy stream depend on a capturing blocking stream")                                    \
  X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")              \
  X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                                            \
    "attempt to terminate a thread-local capture sequence from another thread")                                        \
  X(CUDA_ERROR_UNKNOWN, "unknown error")

CUresult loop_cuGetErrorName_v6000(CUresult code, const char **out) {
  LOOP_ENTER(cuGetErrorName, 6000);
  switch ((int)code) {
#define LOOP_NAME(name, words)                                                                                         \
  case name: *out = #name; return CUDA_SUCCESS;
    LOOP_CODES(LOOP_NAME)
#undef LOOP_NAME
  default: *out = NULL; return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult loop_cuGetErrorString_v6000(CUresult code, const char **out) {
  LOOP_ENTER(cuGetErrorString, 6000);
  switch ((int)code) {
#define LOOP_WORDS(name, words)                                                                                        \
  case name: *out = words; return CUDA_SUCCESS;
    LOOP_CODES(LOOP_WORDS)
#undef LOOP_WORDS
  default: *out = NULL; return CUDA_ERROR_INVALID_VALUE;
  }
}

/* ---- Translating the other way ----------------------------------------------------------------------------------- */

CUresult loop_code(lade_status status) {
  if (status == LADE_OK) return CUDA_SUCCESS;
  if (status == LADE_NOT_READY) return CUDA_ERROR_NOT_READY;
  const lade_error *error = lade_last_error();
  if (error->status == status && error->native_code > 0 && error->native_code <= CUDA_ERROR_UNKNOWN)
    return (CUresult)error->native_code;
  switch (status) {
  case LADE_ERR_INVALID_ARGUMENT: return CUDA_ERROR_INVALID_VALUE;
  case LADE_ERR_OUT_OF_HOST_MEMORY:
  case LADE_ERR_OUT_OF_PINNED_MEMORY:
  case LADE_ERR_OUT_OF_DEVICE_MEMORY: return CUDA_ERROR_OUT_OF_MEMORY;
  case LADE_ERR_UNSUPPORTED: return CUDA_ERROR_NOT_SUPPORTED;
  case LADE_ERR_NO_DEVICE: return CUDA_ERROR_INVALID_DEVICE;
  case LADE_ERR_DEVICE_LOST: return CUDA_ERROR_LAUNCH_FAILED;
  case LADE_ERR_CAPTURE: return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  default: return CUDA_ERROR_UNKNOWN;
  }
}
