/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks on pinned memory.
 *
 *   alloc   flags that lade cannot serve, no primary context current, lade fails  -> the driver's own call
 *           otherwise                                                             -> a block of the device's pool
 *   free    a block of the program                                     -> pending, or back to the pool
 *           another address of lade: already freed, or not a start     -> CUDA_ERROR_INVALID_VALUE, as the driver
 *           otherwise                                                  -> the driver's own call
 *   register     bytes of a block that the program holds  -> CUDA_ERROR_INVALID_VALUE, as for the driver's own memory
 *                otherwise                                -> the driver's answer
 *   unregister   an address in such a block               -> CUDA_ERROR_INVALID_VALUE, as register
 *                other memory of lade                     -> CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, as for freed memory
 *                otherwise                                -> the driver's own call
 *
 * H1  A refusal of the driver is never replaced by a success, nor a success by a refusal: requests that lade cannot
 *     serve go to the driver.
 * H2  The driver is never given an address inside lade's memory to free or to unregister.
 * Locks: none.
 */
#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "preload/answers.h"
#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pause.h"
#include "preload/pools.h"
#include "preload/settings.h"

#define SERVED_FLAGS  ((unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP))
#define REQUEST_LIMIT ((size_t)1 << 60) /* of lade_pinned_alloc */
enum { TWIN_BYTES = 2 << 20, SEGMENT_BYTES = 64 << 20 /* the pool's own default */ };

typedef struct pinned_request {
  void **out;
  size_t bytes;
  unsigned flags;
  bool by_alloc_host;
} pinned_request;

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

static CUresult driver_alloc(const pinned_request *request) {
  return request->by_alloc_host ? DRIVER_CALL(mem_alloc_host)(request->out, request->bytes)
                                : DRIVER_CALL(mem_host_alloc)(request->out, request->bytes, request->flags);
}

/* From the cache; otherwise after waiting for pending blocks. NULL: lade has none. */
static void *pool_alloc(preload_device *device, size_t bytes) {
  void *pointer = NULL;
  ladei_preload_pending_poll(&device->pending);
  ladei_preload_begin();
  lade_status status = device->lade->lade_pinned_alloc(device->pool, bytes, &pointer);
  ladei_preload_end();
  if (status == LADE_OK || atomic_load(&device->pending.bytes) == 0) return pointer;
  ladei_preload_pending_wait(&device->pending, 0);
  ladei_preload_begin();
  (void)device->lade->lade_pinned_alloc(device->pool, bytes, &pointer);
  ladei_preload_end();
  return pointer;
}

/* Larger blocks have segments of their own. */
static size_t segment_bytes(void) {
  uint64_t bytes = ladei_preload_settings()->segment_bytes;
  return bytes == 0 ? SEGMENT_BYTES : (size_t)bytes;
}

static bool serve(preload_device *device, int ordinal, const pinned_request *request) {
  preload_block *block = malloc(sizeof *block);
  void *pointer = block == NULL ? NULL : pool_alloc(device, request->bytes);
  if (pointer == NULL) {
    free(block);
    return false;
  }
  *block = (preload_block){.pointer = pointer,
                           .bytes = request->bytes,
                           .flags = request->flags,
                           .device = ordinal,
                           .by_alloc_host = request->by_alloc_host};
  ladei_preload_range_widen(&device->pinned_range, pointer, request->bytes, segment_bytes());
  assert(ladei_preload_may_own(pointer)); /* H2: its free finds it */
  if (!ladei_preload_blocks_add(&ladei_preload_pinned_blocks, block)) {
    ladei_preload_begin();
    (void)device->lade->lade_pinned_free(device->pool, pointer);
    ladei_preload_end();
    free(block);
    return false;
  }
  *request->out = pointer;
  return true;
}

/* Whether lade served the request; counts the reason if not. */
static bool request_served(const pinned_request *request) {
  if (request->out == NULL || request->bytes == 0 || request->bytes >= REQUEST_LIMIT ||
      (request->flags & ~SERVED_FLAGS) != 0) {
    ladei_preload_count(PRELOAD_ALLOCS_BY_FLAGS, 1);
    return false;
  }
  int ordinal = ladei_preload_current_device();
  if (ordinal < 0) {
    ladei_preload_count(PRELOAD_ALLOCS_BY_CONTEXT, 1);
    return false;
  }
  preload_device *device = ladei_preload_device_enter(ordinal, true);
  bool served = device != NULL && serve(device, ordinal, request);
  if (device != NULL) ladei_preload_device_leave(device);
  ladei_preload_count(served ? PRELOAD_ALLOCS_SERVED : PRELOAD_ALLOCS_BY_FAILURE, 1);
  if (served) ladei_preload_count(PRELOAD_BYTES_SERVED, request->bytes);
  return served;
}

/* The driver must not run out of memory because of lade's cache. */
static CUresult request_alloc(const pinned_request *request) {
  if (ladei_preload_passes()) return driver_alloc(request);
  ladei_preload_settings_complain();
  if (request_served(request)) return CUDA_SUCCESS;
  CUresult code = driver_alloc(request);
  if (code == CUDA_ERROR_OUT_OF_MEMORY && ladei_preload_give_back()) code = driver_alloc(request);
  return code;
}

CUresult hook_mem_host_alloc(void **out, size_t bytes, unsigned flags) {
  return request_alloc(&(pinned_request){out, bytes, flags, false});
}

CUresult hook_mem_alloc_host(void **out, size_t bytes) { return request_alloc(&(pinned_request){out, bytes, 0, true}); }

CUresult hook_mem_alloc_host_1(void **out, unsigned bytes) {
  return request_alloc(&(pinned_request){out, bytes, 0, true});
}

/* ---- Free -------------------------------------------------------------------------------------------------------- */

/* Fast mode: the pool itself knows the streams. block_give() limits its growth, as the driver's own free would wait. */
static void free_recorded(preload_device *device, void *pointer) {
  ladei_preload_begin();
  (void)device->lade->lade_pinned_free(device->pool, pointer);
  ladei_preload_end();
}

static void block_give(preload_device *device, preload_block *block) {
  assert(block->device == device->ordinal && block->next == NULL); /* B1 of blocks.h: out of the table */
  uint64_t limit = ladei_preload_settings()->pending_bytes;
  if (ladei_preload_settings()->mode == PRELOAD_FAST && !block->waits_for_all) {
    uint64_t bytes = block->bytes;
    free_recorded(device, block->pointer);
    free(block);
    ladei_preload_recorded_wait(device, bytes, limit);
    return;
  }
  ladei_preload_pending_add(&device->pending, block);
  ladei_preload_pending_wait(&device->pending, limit);
}

/* B1 of blocks.h: if two threads free it, one gets the block. */
static bool block_free(const void *pointer, int ordinal) {
  preload_device *device = ladei_preload_device_enter(ordinal, false);
  if (device == NULL) return false;
  preload_block *block = ladei_preload_blocks_take(&ladei_preload_pinned_blocks, pointer);
  if (block != NULL) block_give(device, block);
  ladei_preload_device_leave(device);
  return block != NULL;
}

/* Whether an address lies in lade's memory, in use or not. */
static bool is_lades(const void *pointer) {
  lade_pinned_info info;
  preload_device *device = ladei_preload_may_own(pointer) ? ladei_preload_device_of(pointer, &info) : NULL;
  if (device != NULL) ladei_preload_device_leave(device);
  return device != NULL;
}

CUresult hook_mem_free_host(void *pointer) {
  preload_block known;
  if (ladei_preload_passes()) return DRIVER_CALL(mem_free_host)(pointer);
  if (ladei_preload_may_own(pointer) && ladei_preload_blocks_find(&ladei_preload_pinned_blocks, pointer, &known) &&
      block_free(pointer, known.device)) {
    ladei_preload_count(PRELOAD_FREES_SERVED, 1);
    return CUDA_SUCCESS;
  }
  if (is_lades(pointer)) { /* H2 */
    ladei_preload_count(PRELOAD_FREES_REFUSED, 1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  ladei_preload_count(PRELOAD_FREES_PASSED, 1);
  return DRIVER_CALL(mem_free_host)(pointer);
}

/* ---- Registering ------------------------------------------------------------------------------------------------- */

/* Registering applies to exact bytes, not pages. */
static bool bytes_overlap_blocks(const void *pointer, size_t bytes) {
  uintptr_t begin = (uintptr_t)pointer;
  uintptr_t end = bytes > UINTPTR_MAX - begin ? UINTPTR_MAX : begin + bytes;
  return ladei_preload_blocks_overlap(&ladei_preload_pinned_blocks, begin, end);
}

/* The driver sees the program's block as part of memory that lade registered, not as memory that it allocated. Its
 * answer stays for memory that the program does not hold. */
static CUresult register_answer(CUresult code, const void *pointer, size_t bytes) {
  bool mends = code == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && !ladei_preload_passes();
  return mends && bytes_overlap_blocks(pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : code;
}

CUresult hook_mem_host_register(void *pointer, size_t bytes, unsigned flags) {
  return register_answer(DRIVER_CALL(mem_host_register)(pointer, bytes, flags), pointer, bytes);
}

CUresult hook_mem_host_register_1(void *pointer, size_t bytes, unsigned flags) {
  return register_answer(DRIVER_CALL(mem_host_register_1)(pointer, bytes, flags), pointer, bytes);
}

CUresult hook_mem_host_unregister(void *pointer) {
  preload_block block;
  preload_owner owner = ladei_preload_pinned_owner(pointer, &block);
  if (owner == PRELOAD_OF_OTHERS) return DRIVER_CALL(mem_host_unregister)(pointer);
  return owner == PRELOAD_OF_BLOCK ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; /* H2 */
}

/* ---- Questions about memory -------------------------------------------------------------------------------------- */

/* The flags that the driver gives for its own memory of the same call, the twin. The twin stays until its context ends,
 * 2 MiB for each set of flags: the driver's free waits for the device, and the device may wait for the thread that asks
 * for flags. A small allocation may share a chunk of the driver's with others, and gets the flags of the first of them
 * (a page on an H200, driver 580): so the twin is large, and the portable flag is the requested one. */
static bool twin_flags(const preload_block *block, unsigned *out) {
  void *twin = NULL;
  pinned_request request = {&twin, TWIN_BYTES, block->flags, block->by_alloc_host};
  CUstreamCaptureMode before;
  bool relaxed = ladei_preload_relax(&before);
  bool made = driver_alloc(&request) == CUDA_SUCCESS;
  bool found = made && DRIVER_CALL(mem_host_get_flags)(out, twin) == CUDA_SUCCESS;
  if (made && !found) (void)DRIVER_CALL(mem_free_host)(twin); /* the next call makes another one */
  if (found && !block->by_alloc_host)
    *out = (*out & ~(unsigned)CU_MEMHOSTALLOC_PORTABLE) | (block->flags & CU_MEMHOSTALLOC_PORTABLE);
  ladei_preload_restore(before, relaxed);
  return found;
}

enum { FLAGS_UNKNOWN = 0, FLAGS_ASKED = UINT_MAX }; /* otherwise the flags plus 1 */

/* Whether this thread asks. Waits for another thread that asks: otherwise both of their twins would stay. */
static bool flags_claim(atomic_uint *slot) {
  unsigned seen = FLAGS_UNKNOWN;
  while (!atomic_compare_exchange_strong(slot, &seen, FLAGS_ASKED)) {
    if (seen != FLAGS_ASKED) return false;
    ladei_preload_pause(PRELOAD_POLL_NS);
    seen = FLAGS_UNKNOWN;
  }
  return true;
}

static unsigned block_flags(const preload_block *block) {
  static atomic_uint known[2][SERVED_FLAGS + 1];
  assert((block->flags & ~SERVED_FLAGS) == 0);
  atomic_uint *slot = &known[block->by_alloc_host ? 1 : 0][block->flags];
  if (!flags_claim(slot)) return atomic_load(slot) - 1;
  unsigned flags;
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* others wait */
  bool found = twin_flags(block, &flags);
  atomic_store(slot, found ? flags + 1 : FLAGS_UNKNOWN);
  (void)pthread_setcancelstate(before, NULL);
  return found ? flags : block->flags;
}

CUresult hook_mem_host_get_flags(unsigned *out, void *pointer) {
  preload_block block;
  preload_owner owner = out == NULL ? PRELOAD_OF_OTHERS : ladei_preload_pinned_owner(pointer, &block);
  if (owner == PRELOAD_OF_BLOCK) *out = block_flags(&block);
  /* A1 of answers.c: the driver's answer would be the flags of lade's registration. */
  if (owner != PRELOAD_OF_OTHERS) return owner == PRELOAD_OF_BLOCK ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return DRIVER_CALL(mem_host_get_flags)(out, pointer);
}

CUresult hook_mem_host_get_device_pointer(CUdeviceptr *out, void *pointer, unsigned flags) {
  preload_block block;
  if (ladei_preload_pinned_owner(pointer, &block) == PRELOAD_OF_NONE)
    return CUDA_ERROR_INVALID_VALUE; /* A1 of answers.c */
  return DRIVER_CALL(mem_host_get_device_pointer)(out, pointer, flags);
}
