/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on driver pools: memory that the driver allocates and frees in stream order, on a device or on the host.
 *
 * I1  A pool for which the driver is too old (host memory, a limit) is LADE_ERR_UNSUPPORTED before the driver is asked:
 *     it would take the newer request for a bad argument.
 * I2  All run in the relaxed capture mode (R9): for the driver even questions about a pool are unsafe calls.
 * Locks: none.
 */
#include <assert.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

static CUmemoryPool native_pool(ladei_driver_pool pool) { return (CUmemoryPool)(void *)pool; }

/* Whether any device supports driver pools in host memory of this kind. */
static bool host_pools_known(const cuda_runtime *runtime, CUdevice_attribute attribute) {
  for (int i = 0; i < runtime->device_count; i++) {
    int supported = 0;
    if (runtime->api.device_get_attribute(&supported, attribute, runtime->devices[i].native) == CUDA_SUCCESS &&
        supported != 0)
      return true;
  }
  return false;
}

static bool location_supported(cuda_call *call, const ladei_pool_properties *wanted) {
  const cuda_runtime *runtime = call->runtime;
  bool known = true;
  assert(call->switched); /* I2: questions, too */
  if (wanted->location == LADEI_POOL_HOST)
    known = host_pools_known(runtime, (CUdevice_attribute)CUDA_ATTRIBUTE_HOST_POOLS_SUPPORTED);
  else if (wanted->location == LADEI_POOL_HOST_NUMA)
    known = host_pools_known(runtime, (CUdevice_attribute)CUDA_ATTRIBUTE_HOST_NUMA_POOLS_SUPPORTED);
  if (!known) {
    call->status = ladei_error(LADE_ERR_UNSUPPORTED, 0, "pool_create: no device or driver for pools of host memory");
  } else if (wanted->max_bytes != 0 && runtime->driver_version < CUDA_POOL_MAX_SIZE_SINCE) {
    call->status = ladei_error(LADE_ERR_UNSUPPORTED, 0,
                               "pool_create: a limit needs the driver of CUDA 12.2, this is "
                               "of %d.%d",
                               runtime->driver_version / 1000, runtime->driver_version % 1000 / 10);
    known = false;
  }
  return known;
}

/* False with call->status set for an invalid location or device. */
static bool location_translate(cuda_call *call, const ladei_pool_properties *wanted, CUmemLocation *out) {
  switch (wanted->location) {
  case LADEI_POOL_DEVICE:
    if (!ladei_cuda_device_check(call, wanted->id)) return false;
    out->type = CU_MEM_LOCATION_TYPE_DEVICE;
    out->id = call->runtime->devices[wanted->id].native;
    return true;
  case LADEI_POOL_HOST:
    out->type = (CUmemLocationType)CUDA_LOCATION_HOST;
    out->id = 0;
    return true;
  case LADEI_POOL_HOST_NUMA:
    out->type = (CUmemLocationType)CUDA_LOCATION_HOST_NUMA;
    out->id = wanted->id;
    return true;
  }
  call->status =
      ladei_error_argument("pool_create", "properties.location", "a ladei_pool_location", "%d", (int)wanted->location);
  return false;
}

static lade_status pool_create(void *self, const ladei_pool_properties *properties, ladei_driver_pool *out_pool) {
  cuda_call call = {.runtime = self, .op = "pool_create", .relaxed = true};
  cuda_pool_props native = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .maxSize = properties->max_bytes};
  CUmemoryPool pool = NULL;
  if (!location_translate(&call, properties, &native.location) || !ladei_cuda_enter(&call)) return call.status;
  if (!location_supported(&call, properties)) {
    (void)ladei_cuda_leave(&call, CUDA_SUCCESS, "location %d", (int)properties->location);
    return call.status;
  }
  CUresult code = call.runtime->api.mem_pool_create(&pool, (const CUmemPoolProps *)(const void *)&native);
  if (ladei_cuda_leave(&call, code, "location %d, id %d, at most %zu bytes (0: any)", (int)properties->location,
                       properties->id, properties->max_bytes) == LADE_OK)
    *out_pool = (ladei_driver_pool)(void *)pool;
  return call.status;
}

static lade_status pool_destroy(void *self, ladei_driver_pool pool) {
  cuda_call call = {.runtime = self, .op = "pool_destroy", .relaxed = true, .releases = true};
  if (!ladei_cuda_enter(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.mem_pool_destroy(native_pool(pool)), "pool %p", (void *)pool);
}

static lade_status pool_default(void *self, int device, ladei_driver_pool *out_pool) {
  cuda_call call = {.runtime = self, .op = "pool_default", .relaxed = true};
  CUmemoryPool pool = NULL;
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.device_get_default_mem_pool(&pool, call.runtime->devices[device].native);
  if (ladei_cuda_leave(&call, code, "device %d", device) == LADE_OK) *out_pool = (ladei_driver_pool)(void *)pool;
  return call.status;
}

static lade_status pool_set_access(void *self, ladei_driver_pool pool, int device, bool writable) {
  cuda_call call = {.runtime = self, .op = "pool_set_access", .relaxed = true};
  if (!ladei_cuda_device_check(&call, device) || !ladei_cuda_enter(&call)) return call.status;
  CUmemAccessDesc access = {
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = call.runtime->devices[device].native},
      .flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  CUresult code = call.runtime->api.mem_pool_set_access(native_pool(pool), &access, 1);
  return ladei_cuda_leave(&call, code, "pool %p for device %d", (void *)pool, device);
}

static bool attribute_translate(cuda_call *call, ladei_pool_attribute attribute, CUmemPool_attribute *out) {
  switch (attribute) {
  case LADEI_POOL_RELEASE_THRESHOLD: *out = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD; return true;
  case LADEI_POOL_RESERVED_CURRENT: *out = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT; return true;
  case LADEI_POOL_RESERVED_HIGH: *out = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH; return true;
  case LADEI_POOL_USED_CURRENT: *out = CU_MEMPOOL_ATTR_USED_MEM_CURRENT; return true;
  case LADEI_POOL_USED_HIGH: *out = CU_MEMPOOL_ATTR_USED_MEM_HIGH; return true;
  }
  call->status = ladei_error_argument(call->op, "attribute", "a ladei_pool_attribute", "%d", (int)attribute);
  return false;
}

static lade_status pool_attribute_get(void *self, ladei_driver_pool pool, ladei_pool_attribute attribute,
                                      uint64_t *out) {
  cuda_call call = {.runtime = self, .op = "pool_attribute_get", .relaxed = true};
  CUmemPool_attribute native;
  cuuint64_t value = 0;
  if (!attribute_translate(&call, attribute, &native) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_pool_get_attribute(native_pool(pool), native, &value);
  if (ladei_cuda_leave(&call, code, "pool %p, attribute %d", (void *)pool, (int)attribute) == LADE_OK) *out = value;
  return call.status;
}

static lade_status pool_attribute_set(void *self, ladei_driver_pool pool, ladei_pool_attribute attribute,
                                      uint64_t value) {
  cuda_call call = {.runtime = self, .op = "pool_attribute_set", .relaxed = true};
  CUmemPool_attribute native;
  cuuint64_t copy = value;
  if (!attribute_translate(&call, attribute, &native) || !ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_pool_set_attribute(native_pool(pool), native, &copy);
  return ladei_cuda_leave(&call, code, "pool %p, attribute %d, value %llu", (void *)pool, (int)attribute,
                          (unsigned long long)value);
}

static lade_status pool_trim(void *self, ladei_driver_pool pool, size_t keep_bytes) {
  cuda_call call = {.runtime = self, .op = "pool_trim", .relaxed = true};
  if (!ladei_cuda_enter(&call)) return call.status;
  CUresult code = call.runtime->api.mem_pool_trim_to(native_pool(pool), keep_bytes);
  return ladei_cuda_leave(&call, code, "pool %p to %zu bytes", (void *)pool, keep_bytes);
}

/* Which memory ran out? Pools of host memory are those that the host may access. */
static bool pool_is_host(const cuda_api *api, CUmemoryPool pool) {
  CUmemLocation host = {.type = (CUmemLocationType)CUDA_LOCATION_HOST};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return api->mem_pool_get_access(&flags, pool, &host) == CUDA_SUCCESS && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

static lade_status pool_alloc(void *self, ladei_driver_pool pool, size_t bytes, const ladei_stream *stream,
                              void **out) {
  cuda_call call = {.runtime = self, .op = "pool_alloc", .relaxed = true};
  CUdeviceptr address = 0;
  if (!ladei_cuda_range_check(&call, pool, bytes) || !ladei_cuda_enter_context(&call, stream->context))
    return call.status;
  CUresult code = call.runtime->api.mem_alloc_from_pool(&address, bytes, native_pool(pool), stream->handle);
  if (code == CUDA_ERROR_OUT_OF_MEMORY && pool_is_host(&call.runtime->api, native_pool(pool)))
    call.out_of_memory = LADE_ERR_OUT_OF_PINNED_MEMORY;
  if (ladei_cuda_leave(&call, code, "%zu bytes from pool %p", bytes, (void *)pool) == LADE_OK)
    *out = (void *)(uintptr_t)address;
  return call.status;
}

static lade_status pool_free(void *self, void *pointer, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "pool_free", .relaxed = true, .releases = true};
  if (!ladei_cuda_range_check(&call, pointer, 1)) return call.status;
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  CUresult code = call.runtime->api.mem_free_async(cuda_address(pointer), stream->handle);
  return ladei_cuda_leave(&call, code, "%p", pointer);
}

void ladei_cuda_fill_pool_ops(lade_runtime_ops *ops) {
  ops->pool_create = pool_create;
  ops->pool_destroy = pool_destroy;
  ops->pool_default = pool_default;
  ops->pool_set_access = pool_set_access;
  ops->pool_attribute_get = pool_attribute_get;
  ops->pool_attribute_set = pool_attribute_set;
  ops->pool_trim = pool_trim;
  ops->pool_alloc = pool_alloc;
  ops->pool_free = pool_free;
}
