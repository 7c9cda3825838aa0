/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points on memory: device, pinned host, virtual, driver pools, pointers.
 *
 * Locks: reservations_lock guards the lists of reservations and of blocks; it is never held while calling runtime/soft.
 */
#include <pthread.h>
#include <string.h>

#include "tests/loopback/loopback.h"

CUresult loop_cuMemAlloc_v3020(CUdeviceptr *out, size_t bytes) {
  LOOP_ENTER(cuMemAlloc, 3020);
  void *pointer = NULL;
  CUresult code = loop_code(loop_ops()->device_alloc(loop_self(), loop_current()->device, bytes, &pointer));
  *out = loop_address(pointer);
  return code;
}

/* Freeing under another device's context works in the driver, but lade promises not to. Programs may free memory of pools, too, when
 * its users are done. The driver waits for the device where memory is not of a pool; lade frees nothing that is in use, and must not
 * be helped. */
CUresult loop_cuMemFree_v3020(CUdeviceptr address) {
  LOOP_ENTER(cuMemFree, 3020);
  ladei_pointer_attributes found;
  if (address == 0) return CUDA_SUCCESS;
  lade_status status = loop_ops()->pointer_attributes(loop_self(), loop_pointer(address), &found);
  int device = status == LADE_OK && found.kind == LADEI_MEMORY_DEVICE ? found.device : loop_current()->device;
  if (device != loop_current()->device && !loop_plays_program())
    loop_violation("memory of device %d freed under the context of device %d", device, loop_current()->device);
  if (loop_plays_program() && !ladei_soft_is_pool_memory(loop_self(), loop_pointer(address))) loop_streams_wait(device);
  CUresult code = loop_code(loop_ops()->device_free(loop_self(), device, loop_pointer(address)));
  ladei_stream stream;
  if (code != CUDA_ERROR_INVALID_VALUE || !loop_plays_program() ||
      loop_stream(LADE_STREAM_LEGACY, &stream) != CUDA_SUCCESS)
    return code;
  return loop_code(loop_ops()->pool_free(loop_self(), loop_pointer(address), &stream));
}

/* Rows as a GPU has them: of a multiple of 512 bytes. */
CUresult loop_cuMemAllocPitch_v3020(CUdeviceptr *out, size_t *out_pitch, size_t width_bytes, size_t height,
                                    unsigned int element_bytes) {
  LOOP_ENTER(cuMemAllocPitch, 3020);
  void *pointer = NULL;
  size_t pitch = (width_bytes + 511) / 512 * 512;
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->device_alloc(loop_self(), loop_current()->device, pitch * height, &pointer));
  *out = loop_address(pointer);
  *out_pitch = pitch;
  return code;
}

/* ---- Pinned memory ----------------------------------------------------------------------------------------------- */

enum { MISALIGNMENT = 512 };

/* Flags of the driver's own allocations; an old entry is overwritten by the next allocation at its address. */
enum { FLAGS_NOTED = 256 };
static struct {
  _Atomic(void *) pages;
  _Atomic(unsigned) native;
  _Atomic(bool) is_small;
  _Atomic(bool) is_registered;
  _Atomic(const loop_context *) context; /* NULL: it was freed */
} flags_noted[FLAGS_NOTED];

/* Small allocations share a chunk of the driver's, which tells the flags that it was made with (an H200's, driver 580). */
enum { SMALL_BYTES = 1 << 20 };

static unsigned chunk_flags(size_t bytes, unsigned native) {
  for (int i = 0; i < FLAGS_NOTED && bytes < SMALL_BYTES; i++)
    if (flags_noted[i].context != NULL && flags_noted[i].is_small) return flags_noted[i].native;
  return native;
}

static void flags_note(void *pages, size_t bytes, unsigned native, bool registered) {
  if (!registered) native = chunk_flags(bytes, native);
  for (int i = 0; i < FLAGS_NOTED; i++) {
    void *none = NULL;
    if (flags_noted[i].pages != pages && !atomic_compare_exchange_strong(&flags_noted[i].pages, &none, pages)) continue;
    flags_noted[i].native = native;
    flags_noted[i].is_small = bytes < SMALL_BYTES && !registered;
    flags_noted[i].is_registered = registered;
    flags_noted[i].context = loop_current();
    return;
  }
}

static void flags_free(const void *pages) {
  for (int i = 0; i < FLAGS_NOTED; i++)
    if (flags_noted[i].pages == pages) flags_noted[i].context = NULL;
}

void loop_pinned_end(const loop_context *context) {
  for (int i = 0; i < FLAGS_NOTED && loop_plays_program(); i++) {
    const loop_context *own = context;
    if (!atomic_compare_exchange_strong(&flags_noted[i].context, &own, NULL)) continue;
    if (flags_noted[i].is_registered)
      (void)loop_ops()->host_unregister(loop_self(), flags_noted[i].pages);
    else
      (void)loop_ops()->host_free(loop_self(), flags_noted[i].pages);
  }
}

static bool flags_find(const void *pages, unsigned *out) {
  for (int i = 0; i < FLAGS_NOTED; i++) {
    if (flags_noted[i].pages != pages) continue;
    *out = flags_noted[i].native;
    return true;
  }
  return false;
}

/* Where a test has asked for blocks that begin within a page. */
enum { MISALIGNED = 64 };
static _Atomic(void *) misaligned_blocks[MISALIGNED];

/* Puts `to` in the place of `from`; whether that was there. */
static bool misaligned_change(void *from, void *to) {
  for (int i = 0; i < MISALIGNED; i++) {
    void *expected = from;
    if (atomic_compare_exchange_strong(&misaligned_blocks[i], &expected, to)) return true;
  }
  return false;
}

CUresult loop_cuMemHostAlloc_v2020(void **out, size_t bytes, unsigned int native) {
  LOOP_ENTER(cuMemHostAlloc, 2020);
  unsigned flags = (native & CU_MEMHOSTALLOC_WRITECOMBINED) != 0 ? LADEI_HOST_WRITE_COMBINED : 0u;
  if ((native & CU_MEMHOSTALLOC_PORTABLE) == 0 && !loop_plays_program())
    loop_violation("memory pinned for one context only");
  bool misaligned = bytes < loop_misaligned_below();
  void *pages = NULL;
  *out = NULL;
  if (bytes == 0) return CUDA_SUCCESS;
  CUresult code = loop_code(loop_ops()->host_alloc(loop_self(), loop_current()->device,
                                                   misaligned ? bytes + MISALIGNMENT : bytes, flags, &pages));
  *out = misaligned && code == CUDA_SUCCESS ? (char *)pages + MISALIGNMENT : pages;
  if (*out != pages && !misaligned_change(NULL, *out)) loop_violation("%d blocks that begin within a page", MISALIGNED);
  if (code == CUDA_SUCCESS) flags_note(pages, bytes, native, false);
  return code;
}

CUresult loop_cuMemAllocHost_v3020(void **out, size_t bytes) {
  LOOP_ENTER(cuMemAllocHost, 3020);
  return loop_cuMemHostAlloc_v2020(out, bytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
}

/* Every allocation is mapped, as on devices with unified addressing. */
CUresult loop_cuMemHostGetFlags_v2030(unsigned int *out, void *pointer) {
  LOOP_ENTER(cuMemHostGetFlags, 2030);
  unsigned native;
  if (!flags_find(pointer, &native)) return CUDA_ERROR_INVALID_VALUE;
  *out = native | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

/* The driver waits for the device; lade frees nothing that is in use, and must not be helped. */
CUresult loop_cuMemFreeHost_v2000(void *pointer) {
  LOOP_ENTER(cuMemFreeHost, 2000);
  if (pointer == NULL) return CUDA_SUCCESS;
  if (loop_plays_program()) loop_streams_wait(loop_current()->device);
  bool misaligned = misaligned_change(pointer, NULL);
  void *pages = misaligned ? (char *)pointer - MISALIGNMENT : pointer;
  flags_free(pages);
  return loop_code(loop_ops()->host_free(loop_self(), pages));
}

CUresult loop_cuMemHostRegister_v6050(void *pointer, size_t bytes, unsigned int native) {
  LOOP_ENTER(cuMemHostRegister, 6050);
  unsigned flags = (native & CU_MEMHOSTREGISTER_READ_ONLY) != 0 ? LADEI_HOST_READ_ONLY : 0u;
  if ((native & CU_MEMHOSTREGISTER_PORTABLE) == 0 && !loop_plays_program())
    loop_violation("memory registered for one context only");
  CUresult code = loop_code(ladei_soft_register_bytes(loop_self(), loop_current()->device, pointer, bytes, flags));
  if (code == CUDA_SUCCESS) flags_note(pointer, bytes, native & ~(unsigned)CU_MEMHOSTREGISTER_READ_ONLY, true);
  return code;
}

/* The driver waits for the device; lade unregisters nothing that is in use, and must not be helped. */
CUresult loop_cuMemHostUnregister_v4000(void *pointer) {
  LOOP_ENTER(cuMemHostUnregister, 4000);
  if (loop_plays_program()) loop_streams_wait(loop_current()->device);
  CUresult code = loop_code(loop_ops()->host_unregister(loop_self(), pointer));
  if (code == CUDA_SUCCESS) flags_free(pointer);
  return code;
}

/* ---- Reserved addresses ------------------------------------------------------------------------------------------ */

/* The attributes of a pointer name the reservation that it lies in, not the mapping. */
typedef struct reservation {
  CUdeviceptr base;
  size_t bytes; /* 0 for a free entry */
} reservation;

static pthread_mutex_t reservations_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static reservation reservations[256];
static size_t reservation_count; /* entries ever used */

static void reservations_hold(void) { pthread_mutex_lock(&reservations_lock); }
static void reservations_let_go(void) { pthread_mutex_unlock(&reservations_lock); }
__attribute__((constructor)) static void fork_watch(void) {
  pthread_atfork(reservations_hold, reservations_let_go, reservations_let_go); /* as in state.c */
}

static void reservation_add(CUdeviceptr base, size_t bytes) {
  pthread_mutex_lock(&reservations_lock);
  size_t i = 0;
  while (i < reservation_count && reservations[i].bytes != 0) i++;
  if (i < sizeof reservations / sizeof reservations[0]) {
    reservations[i] = (reservation){base, bytes};
    reservation_count += i == reservation_count ? 1 : 0;
  }
  pthread_mutex_unlock(&reservations_lock);
}

static void reservation_remove(CUdeviceptr base) {
  pthread_mutex_lock(&reservations_lock);
  for (size_t i = 0; i < reservation_count; i++)
    if (reservations[i].base == base) reservations[i].bytes = 0;
  pthread_mutex_unlock(&reservations_lock);
}

static bool reservation_find(CUdeviceptr address, reservation *out) {
  bool found = false;
  pthread_mutex_lock(&reservations_lock);
  for (size_t i = 0; i < reservation_count && !found; i++) {
    found = address >= reservations[i].base && address - reservations[i].base < reservations[i].bytes;
    *out = reservations[i];
  }
  pthread_mutex_unlock(&reservations_lock);
  return found;
}

/* ---- Blocks of pools in host memory ------------------------------------------------------------------------------ */

/* The attributes of a pointer name the place of the block in its pool, and the older call knows it once a device was let in
 * (the driver of CUDA 13.0 on an H200). */
typedef struct host_pool {
  CUmemoryPool pool; /* NULL for a free entry; an old address is harmless but for a recycled one */
  bool let_in;
  CUdeviceptr next_place;
} host_pool;

typedef struct pool_block {
  CUmemoryPool pool;
  CUdeviceptr base;
  size_t bytes; /* 0 for a free entry */
  CUdeviceptr place;
  bool let_in;
} pool_block;

static host_pool host_pools[64];    /* guarded by reservations_lock, as is */
static pool_block pool_blocks[256]; /* this */

static host_pool *host_pool_find(CUmemoryPool pool) {
  for (size_t i = 0; i < sizeof host_pools / sizeof host_pools[0]; i++)
    if (host_pools[i].pool == pool) return &host_pools[i];
  return NULL;
}

static void host_pool_note(CUmemoryPool pool, bool host) {
  pthread_mutex_lock(&reservations_lock);
  host_pool *entry = host_pool_find(pool);
  if (entry == NULL && host) entry = host_pool_find(NULL);
  if (entry != NULL) *entry = (host_pool){.pool = host ? pool : NULL};
  pthread_mutex_unlock(&reservations_lock);
}

static bool host_pool_is(CUmemoryPool pool) {
  pthread_mutex_lock(&reservations_lock);
  bool is = host_pool_find(pool) != NULL;
  pthread_mutex_unlock(&reservations_lock);
  return is;
}

/* Pools of device memory let their device in, as which any counts here. */
static bool host_pool_lets_in(CUmemoryPool pool) {
  pthread_mutex_lock(&reservations_lock);
  const host_pool *entry = host_pool_find(pool);
  bool let_in = entry == NULL || entry->let_in;
  pthread_mutex_unlock(&reservations_lock);
  return let_in;
}

static void host_pool_let_in(CUmemoryPool pool, bool let_in) {
  pthread_mutex_lock(&reservations_lock);
  host_pool *entry = host_pool_find(pool);
  if (entry != NULL) entry->let_in = let_in;
  for (size_t i = 0; i < sizeof pool_blocks / sizeof pool_blocks[0]; i++)
    if (pool_blocks[i].bytes != 0 && pool_blocks[i].pool == pool) pool_blocks[i].let_in = let_in;
  pthread_mutex_unlock(&reservations_lock);
}

static void pool_block_add(CUmemoryPool pool, CUdeviceptr base, size_t bytes) {
  enum { PLACE_STEP = 8 << 20 };
  pthread_mutex_lock(&reservations_lock);
  host_pool *entry = host_pool_find(pool);
  for (size_t i = 0; i < sizeof pool_blocks / sizeof pool_blocks[0] && entry != NULL; i++) {
    if (pool_blocks[i].bytes != 0) continue;
    pool_blocks[i] = (pool_block){pool, base, bytes, entry->next_place, entry->let_in};
    entry->next_place += (bytes + PLACE_STEP - 1) / PLACE_STEP * PLACE_STEP;
    break;
  }
  pthread_mutex_unlock(&reservations_lock);
}

static void pool_block_remove(CUdeviceptr base) {
  pthread_mutex_lock(&reservations_lock);
  for (size_t i = 0; i < sizeof pool_blocks / sizeof pool_blocks[0]; i++)
    if (pool_blocks[i].base == base) pool_blocks[i].bytes = 0;
  pthread_mutex_unlock(&reservations_lock);
}

static bool pool_block_find(CUdeviceptr address, pool_block *out) {
  bool found = false;
  pthread_mutex_lock(&reservations_lock);
  for (size_t i = 0; i < sizeof pool_blocks / sizeof pool_blocks[0] && !found; i++) {
    found = address - pool_blocks[i].base < pool_blocks[i].bytes;
    *out = pool_blocks[i];
  }
  pthread_mutex_unlock(&reservations_lock);
  return found;
}

/* ---- Pointers ---------------------------------------------------------------------------------------------------- */

/* Memory that is pinned has its own address on every device, but for pools that no device may use. */
CUresult loop_cuMemHostGetDevicePointer_v3020(CUdeviceptr *out, void *pointer, unsigned int flags) {
  LOOP_ENTER(cuMemHostGetDevicePointer, 3020);
  ladei_pointer_attributes found;
  pool_block block;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->pointer_attributes(loop_self(), pointer, &found));
  if (code == CUDA_SUCCESS && (found.kind != LADEI_MEMORY_PINNED || pool_block_find(loop_address(pointer), &block)))
    code = CUDA_ERROR_INVALID_VALUE;
  if (code == CUDA_SUCCESS) *out = loop_address(pointer);
  return code;
}

/* Of memory from cuMemAlloc alone. */
static bool is_ipc_capable(CUdeviceptr address, const ladei_pointer_attributes *found) {
  reservation reserved;
  return found->kind == LADEI_MEMORY_DEVICE && !reservation_find(address, &reserved) &&
         !ladei_soft_is_pool_memory(loop_self(), loop_pointer(address));
}

static CUresult pointer_answer(CUdeviceptr address, const ladei_pointer_attributes *found,
                               CUpointer_attribute attribute, void *out) {
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)out = found->kind == LADEI_MEMORY_PINNED    ? CU_MEMORYTYPE_HOST
                       : found->kind != LADEI_MEMORY_UNKNOWN ? CU_MEMORYTYPE_DEVICE
                                                             : 0u;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)out = found->kind == LADEI_MEMORY_MANAGED ? 1u : 0u;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = found->device; return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = found->base; return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = found->bytes; return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)out = loop_address(found->device_alias);
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(int *)out = is_ipc_capable(address, found) ? 1 : 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)out = NULL; return CUDA_SUCCESS;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
}

/* Copies of software devices are in order anyhow. */
CUresult loop_cuPointerSetAttribute_v6000(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  LOOP_ENTER(cuPointerSetAttribute, 6000);
  ladei_pointer_attributes found;
  CUresult code = loop_code(loop_ops()->pointer_attributes(loop_self(), loop_pointer(address), &found));
  if (code != CUDA_SUCCESS) return code;
  return value != NULL && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && found.kind == LADEI_MEMORY_DEVICE
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

/* What the attributes tell: the reservation of mapped memory, the place of memory in its host pool. */
static CUresult pointer_tell(CUdeviceptr address, ladei_pointer_attributes *out) {
  reservation reserved;
  pool_block block;
  CUresult code = loop_code(loop_ops()->pointer_attributes(loop_self(), loop_pointer(address), out));
  if (code == CUDA_SUCCESS && out->kind == LADEI_MEMORY_DEVICE && reservation_find(address, &reserved)) {
    out->base = reserved.base;
    out->bytes = reserved.bytes;
  }
  if (code == CUDA_SUCCESS && out->kind == LADEI_MEMORY_PINNED && pool_block_find(address, &block)) {
    out->base = block.place;
    if (block.let_in) out->device_alias = loop_pointer(address);
  }
  return code;
}

CUresult loop_cuPointerGetAttributes_v7000(unsigned int count, CUpointer_attribute *attributes, void **data,
                                           CUdeviceptr address) {
  LOOP_ENTER(cuPointerGetAttributes, 7000);
  ladei_pointer_attributes found;
  CUresult code = pointer_tell(address, &found);
  for (unsigned i = 0; i < count && code == CUDA_SUCCESS; i++)
    code = pointer_answer(address, &found, attributes[i], data[i]);
  return code;
}

/* Of mapped memory none; all else here is of a primary context. */
static CUcontext pointer_context(CUdeviceptr address, const ladei_pointer_attributes *found) {
  reservation reserved;
  bool mapped = found->kind == LADEI_MEMORY_DEVICE && reservation_find(address, &reserved);
  return mapped ? NULL : loop_context_handle(loop_context_of_device(found->device));
}

CUresult loop_cuPointerGetAttribute_v4000(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
  LOOP_ENTER(cuPointerGetAttribute, 4000);
  ladei_pointer_attributes found;
  CUresult code = pointer_tell(address, &found);
  if (code == CUDA_SUCCESS && found.kind == LADEI_MEMORY_UNKNOWN) code = CUDA_ERROR_INVALID_VALUE;
  if (code != CUDA_SUCCESS || attribute != CU_POINTER_ATTRIBUTE_CONTEXT)
    return code == CUDA_SUCCESS ? pointer_answer(address, &found, attribute, out) : code;
  *(CUcontext *)out = pointer_context(address, &found);
  return CUDA_SUCCESS;
}

CUresult loop_cuMemGetAddressRange_v3020(CUdeviceptr *out_base, size_t *out_bytes, CUdeviceptr address) {
  LOOP_ENTER(cuMemGetAddressRange, 3020);
  ladei_pointer_attributes found;
  CUresult code = loop_code(loop_ops()->pointer_attributes(loop_self(), loop_pointer(address), &found));
  pool_block block;
  bool known = found.kind == LADEI_MEMORY_DEVICE || (pool_block_find(address, &block) && block.let_in);
  if (code == CUDA_SUCCESS && !known) code = CUDA_ERROR_NOT_FOUND;
  if (code == CUDA_SUCCESS) {
    *out_base = found.base;
    *out_bytes = found.bytes;
  }
  return code;
}

/* ---- Virtual memory ---------------------------------------------------------------------------------------------- */

static bool properties_valid(const CUmemAllocationProp *properties) {
  return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->win32HandleMetaData == NULL &&
         properties->allocFlags.compressionType == 0;
}

CUresult loop_cuMemGetAllocationGranularity_v10020(size_t *out, const CUmemAllocationProp *properties,
                                                   CUmemAllocationGranularity_flags option) {
  LOOP_ENTER(cuMemGetAllocationGranularity, 10020);
  size_t minimum = 0;
  size_t recommended = 0;
  if (!properties_valid(properties)) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->vm_granularity(loop_self(), properties->location.id, &minimum, &recommended));
  *out = option == CU_MEM_ALLOC_GRANULARITY_MINIMUM ? minimum : recommended;
  return code;
}

CUresult loop_cuMemAddressReserve_v10020(CUdeviceptr *out, size_t bytes, size_t align, CUdeviceptr wish,
                                         unsigned long long flags) {
  LOOP_ENTER(cuMemAddressReserve, 10020);
  void *address = NULL;
  if (flags != 0 || wish != 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->vm_reserve(loop_self(), 0, bytes, align, &address));
  if (code == CUDA_SUCCESS) reservation_add(loop_address(address), bytes);
  *out = loop_address(address);
  return code;
}

CUresult loop_cuMemAddressFree_v10020(CUdeviceptr address, size_t bytes) {
  LOOP_ENTER(cuMemAddressFree, 10020);
  CUresult code = loop_code(loop_ops()->vm_address_free(loop_self(), loop_pointer(address), bytes));
  if (code == CUDA_SUCCESS) reservation_remove(address);
  return code;
}

CUresult loop_cuMemCreate_v10020(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *properties,
                                 unsigned long long flags) {
  LOOP_ENTER(cuMemCreate, 10020);
  ladei_vm_handle handle = 0;
  if (flags != 0 || !properties_valid(properties)) return CUDA_ERROR_INVALID_VALUE;
  bool exportable = properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUresult code = loop_code(loop_ops()->vm_create(loop_self(), properties->location.id, bytes, exportable, &handle));
  *out = handle;
  return code;
}

CUresult loop_cuMemRelease_v10020(CUmemGenericAllocationHandle handle) {
  LOOP_ENTER(cuMemRelease, 10020);
  return loop_code(loop_ops()->vm_release(loop_self(), handle));
}

CUresult loop_cuMemMap_v10020(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long flags) {
  LOOP_ENTER(cuMemMap, 10020);
  if (offset != 0 || flags != 0) return offset != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  return loop_code(loop_ops()->vm_map(loop_self(), loop_pointer(address), bytes, handle));
}

CUresult loop_cuMemUnmap_v10020(CUdeviceptr address, size_t bytes) {
  LOOP_ENTER(cuMemUnmap, 10020);
  return loop_code(loop_ops()->vm_unmap(loop_self(), loop_pointer(address), bytes));
}

static CUresult access_check(const CUmemAccessDesc *access, size_t count, bool *out_writable) {
  *out_writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return count == 1 && access->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                 access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult loop_cuMemSetAccess_v10020(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  LOOP_ENTER(cuMemSetAccess, 10020);
  bool writable;
  CUresult code = access_check(access, count, &writable);
  if (code != CUDA_SUCCESS) return code;
  return loop_code(loop_ops()->vm_set_access(loop_self(), loop_pointer(address), bytes, access->location.id, writable));
}

CUresult loop_cuMemExportToShareableHandle_v10020(void *out_fd, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags) {
  LOOP_ENTER(cuMemExportToShareableHandle, 10020);
  if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return loop_code(loop_ops()->vm_export(loop_self(), handle, out_fd));
}

CUresult loop_cuMemImportFromShareableHandle_v10020(CUmemGenericAllocationHandle *out, void *fd,
                                                    CUmemAllocationHandleType type) {
  LOOP_ENTER(cuMemImportFromShareableHandle, 10020);
  ladei_vm_handle handle = 0;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->vm_import(loop_self(), 0, (int)(intptr_t)fd, &handle));
  *out = handle;
  return code;
}

/* ---- Driver pools ------------------------------------------------------------------------------------------------ */

static ladei_driver_pool native_pool(CUmemoryPool pool) { return (ladei_driver_pool)(void *)pool; }

CUresult loop_cuDeviceGetDefaultMemPool_v11020(CUmemoryPool *out, CUdevice device) {
  LOOP_ENTER(cuDeviceGetDefaultMemPool, 11020);
  ladei_driver_pool pool = NULL;
  CUresult code = loop_code(loop_ops()->pool_default(loop_self(), device, &pool));
  *out = (CUmemoryPool)(void *)pool;
  return code;
}

/* Pools that the program gave its devices; NULL: the default one. */
static _Atomic(CUmemoryPool) device_pools[LOOP_MAX_DEVICES];

CUresult loop_cuDeviceGetMemPool_v11020(CUmemoryPool *out, CUdevice device) {
  LOOP_ENTER(cuDeviceGetMemPool, 11020);
  if (loop_context_of_device(device) == NULL) return CUDA_ERROR_INVALID_DEVICE;
  *out = device_pools[device];
  return *out != NULL ? CUDA_SUCCESS : loop_cuDeviceGetDefaultMemPool_v11020(out, device);
}

CUresult loop_cuDeviceSetMemPool_v11020(CUdevice device, CUmemoryPool pool) {
  LOOP_ENTER(cuDeviceSetMemPool, 11020);
  if (loop_context_of_device(device) == NULL || pool == NULL) return CUDA_ERROR_INVALID_VALUE;
  device_pools[device] = pool;
  return CUDA_SUCCESS;
}

static bool pool_location(const CUmemLocation *location, ladei_pool_location *out) {
  switch ((int)location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE: *out = LADEI_POOL_DEVICE; return true;
  case CUDA_LOCATION_HOST: *out = LADEI_POOL_HOST; return loop_driver_version() >= 13000;
  case CUDA_LOCATION_HOST_NUMA: *out = LADEI_POOL_HOST_NUMA; return loop_driver_version() >= 12020;
  default: return false;
  }
}

CUresult loop_cuMemPoolCreate_v11020(CUmemoryPool *out, const CUmemPoolProps *properties) {
  LOOP_ENTER(cuMemPoolCreate, 11020);
  cuda_pool_props native;
  ladei_pool_properties wanted = {0};
  ladei_driver_pool pool = NULL;
  memcpy(&native, properties, sizeof native);
  wanted.id = native.location.id;
  wanted.max_bytes = native.maxSize;
  if (native.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || !pool_location(&native.location, &wanted.location) ||
      (native.maxSize != 0 && loop_driver_version() < CUDA_POOL_MAX_SIZE_SINCE))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult code = loop_code(loop_ops()->pool_create(loop_self(), &wanted, &pool));
  if (code == CUDA_SUCCESS) {
    *out = (CUmemoryPool)(void *)pool;
    host_pool_note(*out, wanted.location != LADEI_POOL_DEVICE);
  }
  return code;
}

CUresult loop_cuMemPoolDestroy_v11020(CUmemoryPool pool) {
  LOOP_ENTER(cuMemPoolDestroy, 11020);
  CUresult code = loop_code(loop_ops()->pool_destroy(loop_self(), native_pool(pool)));
  if (code == CUDA_SUCCESS) host_pool_note(pool, false);
  for (int i = 0; i < LOOP_MAX_DEVICES && code == CUDA_SUCCESS; i++)
    if (device_pools[i] == pool) device_pools[i] = NULL;
  return code;
}

CUresult loop_cuMemPoolSetAccess_v11020(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
  LOOP_ENTER(cuMemPoolSetAccess, 11020);
  bool writable;
  if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult code = access_check(access, count, &writable);
  if (code != CUDA_SUCCESS) return code;
  code = loop_code(loop_ops()->pool_set_access(loop_self(), native_pool(pool), access->location.id, writable));
  if (code == CUDA_SUCCESS) host_pool_let_in(pool, writable);
  return code;
}

CUresult loop_cuMemPoolGetAccess_v11020(CUmemAccess_flags *out, CUmemoryPool pool, CUmemLocation *location) {
  LOOP_ENTER(cuMemPoolGetAccess, 11020);
  if ((int)location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    *out = host_pool_lets_in(pool) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  if ((int)location->type != CUDA_LOCATION_HOST) return CUDA_ERROR_INVALID_VALUE;
  *out = host_pool_is(pool) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

static bool pool_attribute(CUmemPool_attribute attribute, ladei_pool_attribute *out) {
  switch ((int)attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *out = LADEI_POOL_RELEASE_THRESHOLD; return true;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *out = LADEI_POOL_RESERVED_CURRENT; return true;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *out = LADEI_POOL_RESERVED_HIGH; return true;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *out = LADEI_POOL_USED_CURRENT; return true;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *out = LADEI_POOL_USED_HIGH; return true;
  default: return false;
  }
}

CUresult loop_cuMemPoolGetAttribute_v11020(CUmemoryPool pool, CUmemPool_attribute native, void *out) {
  LOOP_ENTER(cuMemPoolGetAttribute, 11020);
  ladei_pool_attribute attribute;
  return pool_attribute(native, &attribute)
             ? loop_code(loop_ops()->pool_attribute_get(loop_self(), native_pool(pool), attribute, out))
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult loop_cuMemPoolSetAttribute_v11020(CUmemoryPool pool, CUmemPool_attribute native, void *value) {
  LOOP_ENTER(cuMemPoolSetAttribute, 11020);
  ladei_pool_attribute attribute;
  return pool_attribute(native, &attribute) ? loop_code(loop_ops()->pool_attribute_set(loop_self(), native_pool(pool),
                                                                                       attribute, *(cuuint64_t *)value))
                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult loop_cuMemPoolTrimTo_v11020(CUmemoryPool pool, size_t keep_bytes) {
  LOOP_ENTER(cuMemPoolTrimTo, 11020);
  return loop_code(loop_ops()->pool_trim(loop_self(), native_pool(pool), keep_bytes));
}

CUresult loop_cuMemAllocFromPoolAsync_v11020(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream handle) {
  LOOP_ENTER(cuMemAllocFromPoolAsync, 11020);
  *out = 0;
  if (bytes == 0) return CUDA_SUCCESS;
  ladei_stream stream;
  void *pointer = NULL;
  CUresult code = loop_stream(handle, &stream);
  if (code == CUDA_SUCCESS)
    code = loop_code(loop_ops()->pool_alloc(loop_self(), native_pool(pool), bytes, &stream, &pointer));
  if (code == CUDA_SUCCESS) pool_block_add(pool, loop_address(pointer), bytes);
  *out = loop_address(pointer);
  return code;
}

CUresult loop_cuMemAllocAsync_v11020(CUdeviceptr *out, size_t bytes, CUstream handle) {
  LOOP_ENTER(cuMemAllocAsync, 11020);
  *out = 0;
  if (bytes == 0) return CUDA_SUCCESS;
  ladei_stream stream;
  CUmemoryPool pool = NULL;
  void *pointer = NULL;
  CUresult code = loop_stream(handle, &stream);
  if (code == CUDA_SUCCESS) code = loop_cuDeviceGetMemPool_v11020(&pool, stream.device);
  if (code == CUDA_SUCCESS)
    code = loop_code(loop_ops()->pool_alloc(loop_self(), native_pool(pool), bytes, &stream, &pointer));
  if (code == CUDA_SUCCESS) *out = loop_address(pointer);
  return code;
}

CUresult loop_cuMemFreeAsync_v11020(CUdeviceptr address, CUstream handle) {
  LOOP_ENTER(cuMemFreeAsync, 11020);
  ladei_stream stream;
  CUresult code = loop_stream(handle, &stream);
  if (code != CUDA_SUCCESS) return code;
  code = loop_code(loop_ops()->pool_free(loop_self(), loop_pointer(address), &stream));
  if (code == CUDA_SUCCESS) pool_block_remove(address);
  ladei_capture_info info;
  bool captures =
      loop_ops()->stream_capture_info(loop_self(), &stream, &info) != LADE_OK || info.status != LADEI_CAPTURE_NONE;
  if (code != CUDA_ERROR_INVALID_VALUE || !loop_plays_program() || captures) return code;
  /* Memory of cuMemAlloc, which programs may free so: the driver gives it back behind the stream's work. */
  if (loop_ops()->stream_synchronize(loop_self(), &stream) != LADE_OK) return code;
  return loop_code(loop_ops()->device_free(loop_self(), stream.device, loop_pointer(address)));
}
