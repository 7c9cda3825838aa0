/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks that allocate and free device memory, if LADE_PRELOAD_DEVICE asks for it.
 *
 *                    lade allocates on    at the free, lade waits for                    before reuse by
 *   cuMemAlloc       the home stream      cuMemFree:      all streams of all contexts    any caller of cuMemAlloc
 *                                         cuMemFreeAsync: the stream that it names       the same
 *   cuMemAllocAsync  the stream that it   cuMemFreeAsync there: nothing                  the same stream, in its order
 *                    names                ... on another one:   that stream              the first stream
 *                                         cuMemFree:            nothing, as the driver   the first stream, in its order
 *
 * For a stream of another context than the device's primary one lade waits for all streams, not for that one alone: it
 * may end before the heap has queried it.
 *
 * For memory of cuMemAlloc the driver's cuMemFree may wait for the device, so the program need not wait itself. For
 * memory of cuMemAllocAsync it does not wait: the program must have waited. cuMemFreeAsync takes memory of both.
 *
 *   alloc   no primary context, or no size; the stream captures (the driver makes a node of the graph); the program has
 *           given the device's pool peers, or the device another pool (from then on); lade has no memory
 *                                                                                -> the driver's own call
 *           otherwise                                                            -> a block of the device's heap
 *   free    a block of the program                                               -> as above
 *           the same, on a stream that captures: it is no allocation of a graph  -> CUDA_ERROR_INVALID_VALUE; stays
 *           another address of lade: already freed, or not the start of a block  -> CUDA_ERROR_INVALID_VALUE, as driver
 *           otherwise (the driver's, of a graph or pool, pitched or managed)     -> the driver's own call
 *
 * V1  H1 of pinned_calls.c: requests that lade cannot serve go to the driver, and its answer is the program's.
 * V2  The driver is never given an address inside lade's memory to free.
 * V3  No stream uses memory that is cached for the home stream (O4 of pools.h): so it serves cuMemAlloc, whose caller
 *     may use it anywhere at once. Blocks of cuMemAllocAsync never get there, nor do blocks of cuMemAlloc get to a
 *     stream of the program.
 * V4  A driver's allocation that fails for lack of memory is tried again after lade's cache has gone back.
 * Locks: none.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pools.h"
#include "preload/settings.h"

#define DEVICE_REQUEST_LIMIT ((size_t)1 << 60) /* of lade_device_alloc */
enum {
  HEAP_SEGMENT_BYTES = 20 << 20
}; /* lade_device_options.large_segment_bytes; larger blocks have segments of their own */

typedef struct device_request {
  CUdeviceptr *out;
  size_t bytes;
  bool is_ordered;
  CUstream stream; /* of an ordered one */
} device_request;

/* By ordinal: the program has changed the device's pool in a way that lade's memory would not follow. */
static atomic_bool pool_is_programs[PRELOAD_DEVICES_MAX];

static void *at(CUdeviceptr address) { return (void *)(uintptr_t)address; }
static CUstream legacy(CUstream stream) { return stream; }
static CUstream per_thread(CUstream stream) { return stream == NULL ? CU_STREAM_PER_THREAD : stream; }

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

static void *heap_alloc_once(preload_device *device, const device_request *request) {
  void *pointer = NULL;
  ladei_preload_begin();
  (void)device->lade->lade_device_alloc(device->heap, request->bytes,
                                        request->is_ordered ? request->stream : device->home, &pointer);
  ladei_preload_end();
  return pointer;
}

/* From the cache; otherwise after waiting for pending blocks. NULL: lade has none. */
static void *heap_alloc(preload_device *device, const device_request *request) {
  ladei_preload_pending_poll(&device->heap_pending);
  void *pointer = heap_alloc_once(device, request);
  if (pointer != NULL || atomic_load(&device->heap_pending.bytes) == 0) return pointer;
  ladei_preload_pending_wait(&device->heap_pending, 0);
  return heap_alloc_once(device, request);
}

static bool serve(preload_device *device, int ordinal, const device_request *request) {
  preload_block *block = device->heap == NULL ? NULL : malloc(sizeof *block);
  void *pointer = block == NULL ? NULL : heap_alloc(device, request);
  if (pointer == NULL) {
    free(block);
    return false;
  }
  *block = (preload_block){
      .pointer = pointer, .bytes = request->bytes, .device = ordinal, .is_ordered = request->is_ordered};
  ladei_preload_range_widen(&device->heap_range, pointer, request->bytes, HEAP_SEGMENT_BYTES);
  assert(ladei_preload_heap_may_own(pointer)); /* V2: its free finds it */
  if (!ladei_preload_blocks_add(&ladei_preload_device_blocks, block)) {
    ladei_preload_begin();
    (void)device->lade->lade_device_free(device->heap, pointer);
    ladei_preload_end();
    free(block);
    return false;
  }
  *request->out = (CUdeviceptr)(uintptr_t)pointer;
  return true;
}

/* The device whose heap may serve an ordered request; -1: none. */
static int ordered_device(const device_request *request, preload_counter *out_why) {
  int ordinal = -1;
  if (ladei_preload_captures(request->stream)) {
    *out_why = PRELOAD_DEVICE_ALLOCS_BY_CAPTURE;
    return -1;
  }
  if (ladei_preload_stream_device(request->stream, &ordinal) != CUDA_SUCCESS || ordinal < 0) return -1;
  if (!atomic_load_explicit(&pool_is_programs[ordinal], memory_order_relaxed)) return ordinal;
  *out_why = PRELOAD_DEVICE_ALLOCS_BY_POOL;
  return -1;
}

/* The device whose heap may serve the request; -1: none, and the reason is counted. */
static int request_device(const device_request *request) {
  preload_counter why = PRELOAD_DEVICE_ALLOCS_BY_CONTEXT;
  int ordinal = -1;
  if (request->out == NULL || request->bytes == 0 || request->bytes >= DEVICE_REQUEST_LIMIT)
    why = PRELOAD_DEVICE_ALLOCS_BY_SIZE;
  else
    ordinal = request->is_ordered ? ordered_device(request, &why) : ladei_preload_current_device();
  if (ordinal < 0) ladei_preload_count(why, 1);
  return ordinal;
}

/* Whether lade served the request; counts the reason if not. */
static bool request_served(const device_request *request) {
  ladei_preload_settings_complain();
  int ordinal = request_device(request);
  if (ordinal < 0) return false;
  preload_device *device = ladei_preload_device_enter(ordinal, true);
  bool served = device != NULL && serve(device, ordinal, request);
  if (device != NULL) ladei_preload_device_leave(device);
  if (!served) {
    ladei_preload_count(PRELOAD_DEVICE_ALLOCS_BY_FAILURE, 1);
    return false;
  }
  ladei_preload_count(request->is_ordered ? PRELOAD_DEVICE_ORDERED_SERVED : PRELOAD_DEVICE_ALLOCS_SERVED, 1);
  ladei_preload_count(PRELOAD_DEVICE_BYTES_SERVED, request->bytes);
  return true;
}

/* V4: whether to call the driver once more after it returned this code. */
static bool asks_again(CUresult code) {
  if (code != CUDA_ERROR_OUT_OF_MEMORY || ladei_preload_heaps_pass() || !ladei_preload_heaps_give_back()) return false;
  ladei_preload_count(PRELOAD_DEVICE_RETRIES, 1);
  return true;
}

CUresult hook_mem_alloc(CUdeviceptr *out, size_t bytes) {
  if (!ladei_preload_heaps_pass() && request_served(&(device_request){out, bytes, false, NULL})) return CUDA_SUCCESS;
  CUresult code = DRIVER_CALL(mem_alloc)(out, bytes);
  return asks_again(code) ? DRIVER_CALL(mem_alloc)(out, bytes) : code;
}

#define ALLOC_ASYNC_HOOK(field, named)                                                                                 \
  CUresult hook_##field(CUdeviceptr *out, size_t bytes, CUstream stream) {                                             \
    if (ladei_preload_settings()->device == PRELOAD_DEVICE_ALL && !ladei_preload_heaps_pass() &&                       \
        request_served(&(device_request){out, bytes, true, named(stream)}))                                            \
      return CUDA_SUCCESS;                                                                                             \
    CUresult code = DRIVER_CALL(field)(out, bytes, stream);                                                            \
    return asks_again(code) ? DRIVER_CALL(field)(out, bytes, stream) : code;                                           \
  }
ALLOC_ASYNC_HOOK(mem_alloc_async, legacy)
ALLOC_ASYNC_HOOK(mem_alloc_async_ptsz, per_thread)

/* ---- Allocations that are always the driver's -------------------------------------------------------------------- */

#define RETRY_HOOK(field, parameters, arguments)                                                                       \
  CUresult hook_##field parameters {                                                                                   \
    CUresult code = DRIVER_CALL(field) arguments;                                                                      \
    return asks_again(code) ? DRIVER_CALL(field) arguments : code;                                                     \
  }

RETRY_HOOK(mem_alloc_from_pool_async, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
           (out, bytes, pool, stream))
RETRY_HOOK(mem_alloc_from_pool_async_ptsz, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
           (out, bytes, pool, stream))
RETRY_HOOK(mem_alloc_pitch,
           (CUdeviceptr * out, size_t *out_pitch, size_t width_bytes, size_t height, unsigned element_bytes),
           (out, out_pitch, width_bytes, height, element_bytes))
RETRY_HOOK(mem_alloc_managed, (CUdeviceptr * out, size_t bytes, unsigned flags), (out, bytes, flags))
RETRY_HOOK(mem_create,
           (CUmemGenericAllocationHandle * out, size_t bytes, const CUmemAllocationProp *properties,
            unsigned long long flags),
           (out, bytes, properties, flags))
RETRY_HOOK(array_create, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *descriptor), (out, descriptor))
RETRY_HOOK(array_3d_create, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor), (out, descriptor))
RETRY_HOOK(mipmapped_array_create, (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels),
           (out, descriptor, levels))

/* ---- Free -------------------------------------------------------------------------------------------------------- */

static void block_pend(preload_device *device, preload_block *block) {
  assert(block->device == device->ordinal && block->next == NULL); /* B1 of blocks.h: out of the table */
  ladei_preload_pending_add(&device->heap_pending, block);
  ladei_preload_pending_wait(&device->heap_pending, ladei_preload_settings()->pending_bytes);
}

/* For a block that no work uses any more, or of which lade knows all streams that still use it. */
static void block_return(preload_device *device, preload_block *block) {
  assert(block->device == device->ordinal && block->next == NULL);
  ladei_preload_begin();
  (void)device->lade->lade_device_free(device->heap, block->pointer);
  ladei_preload_end();
  free(block);
}

/* Records even the allocation's stream, without need: its handle does not identify it, as later streams may get it. */
static bool use_record(preload_device *device, void *pointer, CUstream stream) {
  if (!ladei_preload_stream_is_of(stream, device->ordinal)) return false;
  ladei_preload_begin();
  lade_status status = device->lade->lade_device_record_stream(device->heap, pointer, stream);
  ladei_preload_end();
  return status == LADE_OK;
}

/* B1 of blocks.h: if two threads free it, one gets the block. */
static CUresult block_free(preload_device *device, void *pointer) {
  preload_block *block = ladei_preload_blocks_take(&ladei_preload_device_blocks, pointer);
  if (block == NULL) return CUDA_ERROR_INVALID_VALUE;
  (block->is_ordered ? block_return : block_pend)(device, block);
  return CUDA_SUCCESS;
}

/* If the use cannot be recorded and the handle is a stream, the block waits for all streams. (Another thread may free
 * the block meanwhile, which is a mistake of the program: the use then counts for the block's next allocation, and does
 * no harm.) */
static CUresult block_free_ordered(preload_device *device, void *pointer, CUstream stream) {
  int ordinal;
  bool recorded = use_record(device, pointer, stream);
  CUresult code = recorded ? CUDA_SUCCESS : ladei_preload_stream_device(stream, &ordinal);
  if (code != CUDA_SUCCESS) return code;
  preload_block *block = ladei_preload_blocks_take(&ladei_preload_device_blocks, pointer);
  if (block == NULL) return CUDA_ERROR_INVALID_VALUE;
  (recorded ? block_return : block_pend)(device, block);
  return CUDA_SUCCESS;
}

/* Whether an address lies in lade's memory, in use or not. */
static bool is_lades(const void *pointer) {
  lade_device_block_info info;
  preload_device *device = ladei_preload_heap_of(pointer, &info);
  if (device != NULL) ladei_preload_device_leave(device);
  return device != NULL;
}

/* The code that the driver returns for a free of any address; CUDA_SUCCESS: there is none. */
static CUresult context_check(void) {
  CUcontext current = NULL;
  CUresult code = DRIVER_CALL(ctx_get_current)(&current);
  return code == CUDA_SUCCESS && current == NULL ? CUDA_ERROR_INVALID_CONTEXT : code;
}

/* `stream` NULL: cuMemFree. On a stream that captures the free would become a node, for memory that is no graph's. */
static CUresult known_free(const preload_block *known, const CUstream *stream) {
  CUresult code = stream == NULL                    ? context_check()
                  : ladei_preload_captures(*stream) ? CUDA_ERROR_INVALID_VALUE
                                                    : CUDA_SUCCESS;
  preload_device *device = code == CUDA_SUCCESS ? ladei_preload_device_enter(known->device, false) : NULL;
  if (device == NULL) return code == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : code;
  code = stream == NULL ? block_free(device, known->pointer) : block_free_ordered(device, known->pointer, *stream);
  ladei_preload_device_leave(device);
  return code;
}

/* Frees an address in lade's memory. False: it lies elsewhere, nothing done. */
static bool freed(CUdeviceptr address, const CUstream *stream, CUresult *out_code) {
  preload_block known;
  void *pointer = at(address);
  bool found = ladei_preload_blocks_find(&ladei_preload_device_blocks, pointer, &known);
  if (!found && !is_lades(pointer)) return false;
  *out_code = found ? known_free(&known, stream) : CUDA_ERROR_INVALID_VALUE; /* V2 */
  ladei_preload_count(*out_code == CUDA_SUCCESS ? PRELOAD_DEVICE_FREES_SERVED : PRELOAD_DEVICE_FREES_REFUSED, 1);
  return true;
}

static bool free_served(CUdeviceptr address, const CUstream *stream, CUresult *out_code) {
  if (ladei_preload_heaps_pass()) return false;
  if (ladei_preload_heap_may_own(at(address)) && freed(address, stream, out_code)) return true;
  ladei_preload_count(PRELOAD_DEVICE_FREES_PASSED, 1);
  return false;
}

CUresult hook_mem_free(CUdeviceptr address) {
  CUresult code;
  return free_served(address, NULL, &code) ? code : DRIVER_CALL(mem_free)(address);
}

CUresult hook_mem_free_async(CUdeviceptr address, CUstream stream) {
  CUresult code;
  return free_served(address, &stream, &code) ? code : DRIVER_CALL(mem_free_async)(address, stream);
}

CUresult hook_mem_free_async_ptsz(CUdeviceptr address, CUstream stream) {
  CUresult code;
  CUstream named = per_thread(stream);
  return free_served(address, &named, &code) ? code : DRIVER_CALL(mem_free_async_ptsz)(address, stream);
}

/* ---- Pools of the driver ----------------------------------------------------------------------------------------- */

/* From here on the driver serves cuMemAllocAsync of that device. Memory that lade gave before is not in the pool. */
static void pool_leave(int ordinal, const char *call) {
  static atomic_bool told;
  if (atomic_exchange(&pool_is_programs[ordinal], true) || ladei_preload_counted(PRELOAD_DEVICE_ORDERED_SERVED) == 0 ||
      atomic_exchange(&told, true))
    return;
  fprintf(stderr,
          "liblade_preload: %s: what cuMemAllocAsync gave before is memory of lade's, and not of the pool; "
          "LADE_PRELOAD_DEVICE=malloc leaves cuMemAllocAsync to the driver from the start\n",
          call);
}

/* Whether cuMemAllocAsync may take from the pool: it is the device's current or default pool. */
static bool is_pool_of(CUdevice device, CUmemoryPool pool) {
  CUmemoryPool current = NULL, first = NULL;
  (void)DRIVER_CALL(device_get_mem_pool)(&current, device);
  (void)DRIVER_CALL(device_get_default_mem_pool)(&first, device);
  return pool == current || pool == first;
}

static void pool_leave_all(CUmemoryPool pool, const char *call) {
  int count = 0;
  CUdevice device;
  if (DRIVER_CALL(device_get_count)(&count) != CUDA_SUCCESS) return;
  for (int i = 0; i < count && i < PRELOAD_DEVICES_MAX; i++)
    if (DRIVER_CALL(device_get)(&device, i) == CUDA_SUCCESS && is_pool_of(device, pool)) pool_leave(i, call);
}

static bool serves_ordered(void) {
  return ladei_preload_settings()->device == PRELOAD_DEVICE_ALL && !ladei_preload_heaps_pass();
}

CUresult hook_mem_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
  CUresult code = DRIVER_CALL(mem_pool_set_access)(pool, access, count);
  if (code == CUDA_SUCCESS && serves_ordered()) pool_leave_all(pool, "cuMemPoolSetAccess");
  return code;
}

CUresult hook_device_set_mem_pool(CUdevice device, CUmemoryPool pool) {
  CUresult code = DRIVER_CALL(device_set_mem_pool)(device, pool);
  int ordinal = code == CUDA_SUCCESS && serves_ordered() ? ladei_preload_device_ordinal(device) : -1;
  if (ordinal >= 0) pool_leave(ordinal, "cuDeviceSetMemPool");
  return code;
}
