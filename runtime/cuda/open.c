/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes the runtime: load the library, look up the entry points, initialise, list the devices.
 *
 *   dlopen -> cuGetProcAddress_v2 -> every row of entry_points.h at its version -> cuInit -> devices
 *
 * I1  Opening creates no context.
 * I2  A missing required entry point fails the opening and is named; an optional one becomes NULL.
 * I3  The library is never unloaded: its threads and its clean-up at exit must find their code.
 * Locks: none.
 */
#include <assert.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/library_functions.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/driver.h"

static const cuda_entry_point entry_points[] = {
#define CUDA_NEED_REQUIRED                             true
#define CUDA_NEED_OPTIONAL                             false
#define CUDA_ENTRY_POINT(need, field, symbol, version) {#symbol, version, CUDA_NEED_##need, offsetof(cuda_api, field)},
    CUDA_ENTRY_POINTS(CUDA_ENTRY_POINT)
#undef CUDA_ENTRY_POINT
};

enum { ENTRY_POINT_COUNT = sizeof entry_points / sizeof entry_points[0] };

const cuda_entry_point *ladei_cuda_entry_points(size_t *out_count) {
  *out_count = ENTRY_POINT_COUNT;
  return entry_points;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* CU_GET_PROC_ADDRESS_LEGACY_STREAM: a NULL stream must mean the legacy stream, however the program was built. */
static lade_status entry_point_load(PFN_cuGetProcAddress_v12000 get_proc_address, const cuda_entry_point *entry,
                                    cuda_api *api) {
  void *function = NULL;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  CUresult code = get_proc_address(entry->symbol, &function, entry->version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  if (code != CUDA_SUCCESS || found != CU_GET_PROC_ADDRESS_SUCCESS) function = NULL;
  if (function == NULL && entry->required) {
    return ladei_error(LADE_ERR_UNSUPPORTED, code,
                       "runtime \"cuda\": the driver lacks %s (of CUDA %d.%d); lade needs the driver of CUDA 12.0 or "
                       "newer",
                       entry->symbol, entry->version / 1000, entry->version % 1000 / 10);
  }
  assert(entry->offset + sizeof function <= sizeof *api);
  assert(function != NULL || !entry->required); /* I2 */
  memcpy((char *)api + entry->offset, &function, sizeof function);
  return LADE_OK;
}

static lade_status api_load(const char *library_name, void *library, cuda_api *out) {
  PFN_cuGetProcAddress_v12000 get_proc_address;
  if (!ladei_library_function_find(library, "cuGetProcAddress_v2", &get_proc_address)) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "runtime \"cuda\": %s lacks cuGetProcAddress_v2; lade needs the driver of CUDA 12.0 or newer",
                       library_name);
  }
  for (size_t i = 0; i < ENTRY_POINT_COUNT; i++) LADEI_TRY(entry_point_load(get_proc_address, &entry_points[i], out));
  return LADE_OK;
}

static lade_status open_failed(const cuda_api *api, const char *symbol, CUresult code) {
  const char *name = NULL;
  (void)api->get_error_name(code, &name);
  lade_status status = ladei_cuda_status(code, LADE_ERR_OUT_OF_HOST_MEMORY);
  if (status == LADE_ERR_DRIVER || status == LADE_ERR_INVALID_ARGUMENT || status == LADE_ERR_DEVICE_LOST)
    status = LADE_ERR_NO_DEVICE; /* for any reason, this driver serves no device */
  return ladei_error(status, code, "runtime \"cuda\": %s: %s (%d)", symbol, name != NULL ? name : "unknown error",
                     (int)code);
}

static lade_status driver_init(const cuda_api *api, int *out_version, int *out_device_count) {
  CUresult code = api->init(0);
  if (code != CUDA_SUCCESS) return open_failed(api, "cuInit", code);
  code = api->driver_get_version(out_version);
  if (code != CUDA_SUCCESS) return open_failed(api, "cuDriverGetVersion", code);
  code = api->device_get_count(out_device_count);
  if (code != CUDA_SUCCESS) return open_failed(api, "cuDeviceGetCount", code);
  if (*out_device_count <= 0) return ladei_error(LADE_ERR_NO_DEVICE, 0, "runtime \"cuda\": the driver sees no device");
  return LADE_OK;
}

/* ---- Ops of the runtime itself ----------------------------------------------------------------------------------- */

static lade_status runtime_close(void *self) {
  cuda_runtime *runtime = self;
  ladei_cuda_copy_kernels_unload(runtime);
  if (atomic_load(&runtime->lost_code) != CUDA_ERROR_DEINITIALIZED) ladei_cuda_release_contexts(runtime);
  ladei_cuda_free_texts(runtime);
  ladei_cuda_streams_destroy(&runtime->streams);
  free(runtime);
  return LADE_OK;
}

static uint64_t now_ns(void *self) {
  (void)self;
  return ladei_clock_ns(CLOCK_MONOTONIC);
}

static const char *native_error_text(void *self, int64_t native_code) {
  return ladei_cuda_error_text(self, native_code);
}

static void table_fill(lade_runtime_ops *ops) {
  ops->struct_size = sizeof *ops;
  ops->name = "cuda";
  ops->close = runtime_close;
  ops->now_ns = now_ns;
  ops->native_error_text = native_error_text;
  ladei_cuda_fill_device_ops(ops);
  ladei_cuda_fill_memory_ops(ops);
  ladei_cuda_fill_virtual_memory_ops(ops);
  ladei_cuda_fill_pool_ops(ops);
  ladei_cuda_fill_stream_ops(ops);
  ladei_cuda_fill_event_ops(ops);
  ladei_cuda_fill_copy_ops(ops);
  ladei_cuda_fill_copy_kernel_ops(ops);
  ladei_cuda_fill_graph_ops(ops);
  ladei_cuda_fill_peer_ops(ops);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static lade_status runtime_create(const cuda_api *api, int driver_version, int device_count, cuda_runtime **out) {
  cuda_runtime *runtime = calloc(1, sizeof *runtime + (size_t)device_count * sizeof runtime->devices[0]);
  if (runtime == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "runtime \"cuda\": no memory for %zu bytes", sizeof *runtime);
  table_fill(&runtime->ops);
  runtime->api = *api;
  runtime->driver_version = driver_version;
  runtime->device_count = device_count;
  for (int i = 0; i < device_count; i++) {
    CUresult code = api->device_get(&runtime->devices[i].native, i);
    if (code != CUDA_SUCCESS) {
      free(runtime);
      return open_failed(api, "cuDeviceGet", code);
    }
  }
  for (int i = 0; i < device_count; i++) assert(atomic_load(&runtime->devices[i].context) == NULL); /* I1 */
  ladei_cuda_streams_init(&runtime->streams);
  *out = runtime;
  return LADE_OK;
}

lade_status ladei_cuda_open_library(const char *library_name, const lade_runtime_ops **out_ops, void **out_self) {
  cuda_api api;
  cuda_runtime *runtime = NULL;
  int driver_version = 0;
  int device_count = 0;
  void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    const char *why = dlerror();
    return ladei_error(LADE_ERR_NO_DEVICE, 0, "runtime \"cuda\": no driver: %s", why != NULL ? why : library_name);
  }
  lade_status status = api_load(library_name, library, &api);
  if (status == LADE_OK) status = driver_init(&api, &driver_version, &device_count);
  if (status == LADE_OK) status = runtime_create(&api, driver_version, device_count, &runtime);
  dlclose(library); /* RTLD_NODELETE keeps it in place */
  if (status == LADE_OK) {
    *out_ops = &runtime->ops;
    *out_self = runtime;
  }
  return status;
}

lade_status ladei_cuda_open(const lade_runtime_ops **out_ops, void **out_self) {
  return ladei_cuda_open_library("libcuda.so.1", out_ops, out_self);
}
