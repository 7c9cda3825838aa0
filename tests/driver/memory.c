/* SPDX-License-Identifier: Apache-2.0 */
/* Questions on memory: registered, pinned, device, virtual, of pools. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/driver/probe.h"

#define ANSWER_CODE(number, call) probe_answer(number, "%s", probe_name(call))
#define ANSWER_YES(number, truth) probe_answer(number, "%s", probe_yes(truth))

/* ---- registered memory -------------------------------------------------------------------------------------------- */

static void register_bytes(void) {
  probe_begin();
  char *a = probe_pageable(16 * PROBE_PAGE);
  ANSWER_CODE("1 (a)", D.cuMemHostRegister(a + 100, 200, CU_MEMHOSTREGISTER_PORTABLE));
  CUdeviceptr inside = probe_address(a + 150);
  probe_answer("1 (b)", "%lld",
               (long long)(probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) - probe_address(a)));
  probe_answer("1 (c)", "%lld", (long long)probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside));
  ANSWER_YES("1 (d)", probe_known(probe_address(a + 4000)));
  ANSWER_CODE("1 (e)", D.cuMemHostRegister(a + 1000, 200, CU_MEMHOSTREGISTER_PORTABLE));
  ANSWER_CODE("1 (f)", D.cuMemHostUnregister(a));
}

/* Registers the mapping, or what is left of it, and says how that went. */
static void mapping_register(const char *number, void *memory, unsigned flags) {
  CUresult code = D.cuMemHostRegister(memory, 16 * PROBE_PAGE, flags | CU_MEMHOSTREGISTER_PORTABLE);
  ANSWER_CODE(number, code);
  if (code == CUDA_SUCCESS) PROBE_MUST(D.cuMemHostUnregister(memory));
}

static void *file_map(int fd, int protection, int flags) {
  void *memory = mmap(NULL, 16 * PROBE_PAGE, protection, flags, fd, 0);
  if (memory == MAP_FAILED) exit(1);
  return memory;
}

/* A file of 16 pages in the folder of the test's own files; false where that is memory of the system. */
static bool file_make(int *out_fd) {
  const char *folder = getenv("TEST_TMPDIR");
  char name[512];
  struct statfs where;
  enum { TMPFS = 0x01021994 };
  snprintf(name, sizeof name, "%s/probe.XXXXXX", folder == NULL ? "/tmp" : folder);
  *out_fd = mkstemp(name);
  if (*out_fd < 0 || fstatfs(*out_fd, &where) != 0 || ftruncate(*out_fd, 16 * (off_t)PROBE_PAGE) != 0) exit(1);
  unlink(name);
  return where.f_type != TMPFS;
}

static void register_mappings(void) {
  probe_begin();
  int fd = -1, memory_fd = memfd_create("probe", 0);
  if (memory_fd < 0 || ftruncate(memory_fd, 16 * (off_t)PROBE_PAGE) != 0) exit(1);
  if (file_make(&fd)) {
    mapping_register("2 (a)", file_map(fd, PROT_READ, MAP_PRIVATE), 0);
    mapping_register("2 (b)", file_map(fd, PROT_READ, MAP_PRIVATE), CU_MEMHOSTREGISTER_READ_ONLY);
    mapping_register("2 (c)", file_map(fd, PROT_READ | PROT_WRITE, MAP_SHARED), 0);
    mapping_register("2 (g)", file_map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE), 0);
    mapping_register("X9 (c)", file_map(fd, PROT_READ | PROT_WRITE, MAP_SHARED), CU_MEMHOSTREGISTER_READ_ONLY);
  } else { /* such a file is no different from a memfd: nothing to learn here */
    probe_answer("2 (a)", "?"), probe_answer("2 (b)", "?"), probe_answer("2 (c)", "?"), probe_answer("2 (g)", "?");
    probe_answer("X9 (c)", "?");
  }
  mapping_register("2 (d)", file_map(memory_fd, PROT_READ | PROT_WRITE, MAP_SHARED), 0);
  int value = -1;
  PROBE_MUST(D.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, probe_device));
  probe_answer("2 (e)", "%d", value);
  PROBE_MUST(D.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, probe_device));
  probe_answer("2 (f)", "%d", value);
  char *memory = probe_pageable(16 * PROBE_PAGE);
  mprotect(memory + 4 * PROBE_PAGE, PROBE_PAGE, PROT_NONE);
  mapping_register("X9 (d)", memory, 0);
  munmap(memory + 4 * PROBE_PAGE, PROBE_PAGE);
  mapping_register("X9 (e)", memory, 0);
}

static void register_beside(void) {
  probe_begin();
  char *driver = probe_pinned(5000);
  ANSWER_CODE("X9 (a)", D.cuMemHostRegister(driver + 5000, 100, CU_MEMHOSTREGISTER_PORTABLE));
  ANSWER_CODE("X9 (b)", D.cuMemHostRegister(driver + 512, 100, CU_MEMHOSTREGISTER_PORTABLE));
}

/* ---- fork --------------------------------------------------------------------------------------------------------- */

static bool readable(const void *pointer) {
  int fds[2];
  if (pipe(fds) != 0) exit(1);
  bool read = write(fds[1], pointer, 1) == 1;
  close(fds[0]);
  close(fds[1]);
  return read;
}

static void child_ask(void (*ask)(void *user), void *user) {
  pid_t child = fork();
  int status = 0;
  if (child == 0) {
    ask(user);
    _exit(0);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) exit(1);
}

static void child_reads(void *user) { ANSWER_YES("3 (e)", readable(user)); }
static void child_reads_registered(void *user) { ANSWER_YES("3 (g)", readable(user)); }
static void child_writes(void *user) {
  ((char **)user)[0][0] = 2;
  ((char **)user)[1][0] = 2;
}

static void child_calls(void *unused) {
  (void)unused;
  int count = 0;
  void *memory = NULL;
  CUcontext context = NULL;
  ANSWER_CODE("4 (a)", D.cuDriverGetVersion(&count));
  ANSWER_CODE("4 (b)", D.cuInit(0));
  ANSWER_CODE("4 (c)", D.cuCtxGetCurrent(&context));
  ANSWER_CODE("4 (d)", D.cuDeviceGetCount(&count));
  ANSWER_CODE("4 (e)", D.cuMemHostAlloc(&memory, PROBE_PAGE, 0));
}

static void fork_memory(void) {
  probe_begin();
  char *memory[2] = {probe_pinned(64 * PROBE_MIB), probe_pageable(PROBE_MIB)};
  PROBE_MUST(D.cuMemHostRegister(memory[1], PROBE_MIB, CU_MEMHOSTREGISTER_PORTABLE));
  memory[0][0] = 1;
  child_ask(child_reads, memory[0]);
  child_ask(child_reads_registered, memory[1]);
  child_ask(child_writes, memory);
  ANSWER_YES("X14 (a)", memory[0][0] == 2);
  ANSWER_YES("X14 (b)", memory[1][0] == 2);
  char bytes[2] = {0, 0};
  for (int i = 0; i < 2; i++) {
    CUdeviceptr device = probe_memory(PROBE_MIB);
    PROBE_MUST(D.cuMemcpyHtoD(device, memory[i], PROBE_PAGE));
    PROBE_MUST(D.cuMemcpyDtoH(&bytes[i], device, 1));
  }
  ANSWER_YES("X14 (c)", bytes[0] == 2);
  ANSWER_YES("X14 (d)", bytes[1] == 2);
}

static void fork_calls(void) {
  probe_begin();
  child_ask(child_calls, NULL);
}

/* ---- pinned memory ------------------------------------------------------------------------------------------------ */

static void pinned_small(void) {
  probe_begin();
  char *first = probe_pinned(100), *second = probe_pinned(100), *third = probe_pinned(PROBE_PAGE);
  unsigned flags = 0;
  CUdeviceptr device = 0;
  probe_answer("5 (a)", "%lld", (long long)labs(second - first));
  probe_answer("5 (b)", "%lld", (long long)probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_SIZE, probe_address(first)));
  ANSWER_YES("5 (c)", probe_known(probe_address(first + 300)));
  PROBE_MUST(D.cuMemHostGetFlags(&flags, first));
  probe_answer("5 (d)", "%#x", flags);
  probe_answer("X13 (a)", "%lld", (long long)labs(third - second));
  (void)probe_pinned(100);
  ANSWER_YES("X13 (b)", probe_address(probe_pinned(PROBE_MIB - 1)) % PROBE_PAGE == 0);
  void *combined = NULL;
  PROBE_MUST(D.cuMemHostAlloc(&combined, 64 * PROBE_MIB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED));
  PROBE_MUST(D.cuMemHostGetDevicePointer(&device, combined, 0));
  ANSWER_YES("5 (e)", device == probe_address(combined));
  char *registered = probe_pageable(16 * PROBE_PAGE);
  PROBE_MUST(D.cuMemHostRegister(registered, 16 * PROBE_PAGE, 0));
  CUresult code = D.cuMemHostGetDevicePointer(&device, registered, 0);
  probe_answer("5 (f)", "%s, %s", probe_name(code), device == probe_address(registered) ? "equal" : "another");
  code = D.cuMemHostGetFlags(&flags, registered);
  probe_answer("5 (g)", "%s, %#x", probe_name(code), flags);
}

static void known_bytes(void) {
  probe_begin();
  CUdeviceptr device = probe_memory(1000), pool = probe_pool_memory(1000);
  CUdeviceptr pinned = probe_address(probe_pinned(5000));
  ANSWER_YES("X2 (a)", probe_known(device + 999) && probe_known(pool + 999) && probe_known(pinned + 4999));
  ANSWER_YES("X2 (b)", probe_known(device + 1000) || probe_known(pool + 1000) || probe_known(pinned + 5000));
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  probe_gate_close(stream);
  PROBE_MUST(D.cuMemFreeAsync(pool, stream));
  ANSWER_YES("X2 (c)", probe_known(pool));
  probe_gate_open();
}

/* ---- device memory ------------------------------------------------------------------------------------------------ */

static void virtual_memory(void) {
  probe_begin();
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handles[2];
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device}};
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  PROBE_MUST(D.cuMemAddressReserve(&address, 8 * PROBE_MIB, 0, 0, 0));
  for (unsigned i = 0; i < 2; i++) {
    PROBE_MUST(D.cuMemCreate(&handles[i], 2 * PROBE_MIB, &properties, 0));
    PROBE_MUST(D.cuMemMap(address + i * 2 * PROBE_MIB, 2 * PROBE_MIB, 0, handles[i], 0));
  }
  PROBE_MUST(D.cuMemSetAccess(address, 4 * PROBE_MIB, &access, 1));
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  ANSWER_CODE("10 (a)", D.cuMemcpyHtoDAsync(address + PROBE_MIB, probe_pinned(2 * PROBE_MIB), 2 * PROBE_MIB, stream));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  PROBE_MUST(D.cuMemGetAddressRange(&base, &bytes, address + 3 * PROBE_MIB));
  probe_answer("10 (b)", "%zu MiB, %zu MiB", (size_t)(base - address) / PROBE_MIB, bytes / PROBE_MIB);
  probe_answer("10 (c)", "%zu, %zu MiB",
               (size_t)(probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 3 * PROBE_MIB) - address),
               (size_t)probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 3 * PROBE_MIB) / PROBE_MIB);
  ANSWER_YES("10 (d)", probe_known(address + 5 * PROBE_MIB));
  PROBE_MUST(D.cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  probe_answer("10 (e)", "%zu", bytes);
  PROBE_MUST(D.cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  probe_answer("10 (f)", "%zu", bytes);
  PROBE_MUST(D.cuCtxSynchronize());
  ANSWER_CODE("11 (c)", D.cuMemUnmap(address, 4 * PROBE_MIB));
  ANSWER_CODE("11 (d)", D.cuMemAddressFree(address, 4 * PROBE_MIB));
  ANSWER_CODE("11 (e)", D.cuMemAddressReserve(&base, PROBE_PAGE, 0, 0, 0));
}

static void virtual_parts(void) {
  probe_begin();
  CUdeviceptr address = probe_mapped_memory(4 * PROBE_MIB), other = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device}};
  ANSWER_CODE("11 (a)", D.cuMemUnmap(address, 2 * PROBE_MIB));
  PROBE_MUST(D.cuMemAddressReserve(&other, 4 * PROBE_MIB, 0, 0, 0));
  PROBE_MUST(D.cuMemCreate(&handle, 4 * PROBE_MIB, &properties, 0));
  ANSWER_CODE("11 (b)", D.cuMemMap(other, 2 * PROBE_MIB, 2 * PROBE_MIB, handle, 0));
}

static int ipc_capable(CUdeviceptr memory) {
  int capable = -1;
  PROBE_MUST(D.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory));
  return capable;
}

static void share(void) {
  probe_begin();
  CUipcMemHandle handle;
  probe_answer("13 (e)", "%d, %d, %d, %d", ipc_capable(probe_memory(PROBE_MIB)),
               ipc_capable(probe_pool_memory(PROBE_MIB)), ipc_capable(probe_mapped_memory(2 * PROBE_MIB)),
               ipc_capable(probe_address(probe_pinned(PROBE_MIB))));
  ANSWER_CODE("13 (a)", D.cuIpcGetMemHandle(&handle, probe_memory(PROBE_MIB)));
  ANSWER_CODE("13 (b)", D.cuIpcGetMemHandle(&handle, probe_pool_memory(PROBE_MIB)));
  ANSWER_CODE("13 (c)", D.cuIpcGetMemHandle(&handle, probe_mapped_memory(2 * PROBE_MIB)));
  ANSWER_CODE("13 (d)", D.cuIpcGetMemHandle(&handle, probe_address(probe_pinned(PROBE_MIB))));
}

/* ---- pools -------------------------------------------------------------------------------------------------------- */

static size_t pool_bytes(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t bytes = 0;
  PROBE_MUST(D.cuMemPoolGetAttribute(pool, attribute, &bytes));
  return (size_t)bytes;
}

static size_t pool_mib(CUmemoryPool pool, CUmemPool_attribute attribute) {
  return pool_bytes(pool, attribute) / PROBE_MIB;
}

static void pool_default(void) {
  probe_begin();
  CUmemoryPool pool = NULL;
  CUdeviceptr memory = 0;
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuDeviceGetDefaultMemPool(&pool, probe_device));
  PROBE_MUST(D.cuMemAllocAsync(&memory, 100 * PROBE_MIB, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  probe_answer("15 (a)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  PROBE_MUST(D.cuMemFreeAsync(memory, stream));
  probe_answer("15 (b)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  probe_answer("15 (c)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  probe_answer("15 (d)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  PROBE_MUST(D.cuMemAllocAsync(&memory, 1, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  probe_answer("15 (e)", "%zu, %zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
               pool_bytes(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
}

static CUmemoryPool pool_make(int location_type) {
  cuda_pool_props properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.id = 0}};
  CUmemPoolProps native;
  CUmemoryPool pool = NULL;
  properties.location.type = (CUmemLocationType)location_type;
  memcpy(&native, &properties, sizeof native);
  PROBE_MUST(D.cuMemPoolCreate(&pool, &native));
  return pool;
}

static void pool_trim(void) {
  probe_begin();
  CUmemoryPool pool = pool_make(CU_MEM_LOCATION_TYPE_DEVICE);
  cuuint64_t threshold = UINT64_MAX, zero = 0;
  CUdeviceptr memory = 0;
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  PROBE_MUST(D.cuMemAllocFromPoolAsync(&memory, 64 * PROBE_MIB, pool, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  probe_gate_close(stream);
  PROBE_MUST(D.cuMemFreeAsync(memory, stream));
  PROBE_MUST(D.cuMemPoolTrimTo(pool, 0));
  size_t held = pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  ANSWER_YES("16 (a)", probe_gate_open());
  probe_answer("16 (b)", "%zu", held);
  probe_answer("16 (c)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  PROBE_MUST(D.cuMemPoolTrimTo(pool, 0));
  probe_answer("16 (d)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  PROBE_MUST(D.cuMemAllocFromPoolAsync(&memory, 64 * PROBE_MIB, pool, stream));
  PROBE_MUST(D.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  probe_answer("16 (e)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  PROBE_MUST(D.cuMemFreeAsync(memory, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  PROBE_MUST(D.cuMemPoolTrimTo(pool, 10 * PROBE_MIB));
  probe_answer("16 (f)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

static void pool_reuse(void) {
  probe_begin();
  CUstream a = probe_stream(CU_STREAM_NON_BLOCKING), b = probe_stream(CU_STREAM_NON_BLOCKING);
  CUstream c = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr first = 0, second = 0, third = 0;
  CUevent event = probe_event(CU_EVENT_DISABLE_TIMING);
  PROBE_MUST(D.cuMemAllocAsync(&first, 64 * PROBE_MIB, a));
  PROBE_MUST(D.cuStreamSynchronize(a));
  probe_gate_close(a);
  PROBE_MUST(D.cuMemFreeAsync(first, a));
  PROBE_MUST(D.cuMemAllocAsync(&second, 64 * PROBE_MIB, b));
  PROBE_MUST(D.cuEventRecord(event, a));
  PROBE_MUST(D.cuStreamWaitEvent(c, event, 0));
  PROBE_MUST(D.cuMemAllocAsync(&third, 64 * PROBE_MIB, c));
  ANSWER_YES("17 (a)", probe_gate_open());
  ANSWER_YES("17 (b)", second == first);
  ANSWER_YES("17 (c)", third == first);
}

static void pool_free(void) {
  probe_begin();
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  ANSWER_CODE("18 (a)", D.cuMemFree(probe_pool_memory(PROBE_MIB)));
  CUdeviceptr memory = probe_pool_memory(PROBE_MIB);
  probe_gate_close(stream);
  PROBE_MUST(D.cuMemFree(memory));
  ANSWER_YES("18 (b)", probe_gate_open());
  memory = probe_memory(64 * PROBE_MIB);
  probe_gate_close(stream);
  CUresult code = D.cuMemFreeAsync(memory, stream);
  ANSWER_YES("18 (d)", probe_gate_open());
  ANSWER_CODE("18 (c)", code);
  memory = probe_memory(64 * PROBE_MIB);
  probe_gate_close(stream);
  PROBE_MUST(D.cuMemFree(memory));
  ANSWER_YES("18 (e)", probe_gate_open());
}

static void pool_of_host(void) {
  probe_begin();
  int value = 0;
  unsigned type = 0, flags = 0;
  CUdeviceptr device = 0;
  PROBE_MUST(D.cuDeviceGetAttribute(&value, (CUdevice_attribute)CUDA_ATTRIBUTE_HOST_POOLS_SUPPORTED, probe_device));
  probe_answer("19 (a)", "%d", value);
  PROBE_MUST(
      D.cuDeviceGetAttribute(&value, (CUdevice_attribute)CUDA_ATTRIBUTE_HOST_NUMA_POOLS_SUPPORTED, probe_device));
  probe_answer("19 (b)", "%d", value);
  CUmemoryPool pool = pool_make(CUDA_LOCATION_HOST);
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr first = 0, second = 0;
  PROBE_MUST(D.cuMemAllocFromPoolAsync(&first, 8 * PROBE_MIB, pool, stream));
  PROBE_MUST(D.cuMemAllocFromPoolAsync(&second, PROBE_MIB, pool, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  PROBE_MUST(D.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first));
  probe_answer("19 (d)", "%u", type);
  PROBE_MUST(D.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, first));
  probe_answer("19 (e)", "%d", value);
  ANSWER_CODE("19 (f)", D.cuMemHostGetDevicePointer(&device, (void *)(uintptr_t)first, 0));
  ANSWER_CODE("19 (g)", D.cuMemHostGetFlags(&flags, (void *)(uintptr_t)first));
  probe_answer("19 (h)", "%lld", (long long)probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_SIZE, first));
  probe_answer("X7 (a)", "%#llx, %#llx",
               (unsigned long long)probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, first),
               (unsigned long long)probe_pointer_u64(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, second));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ANSWER_CODE("X7 (b)", D.cuMemGetAddressRange(&base, &bytes, first));
  probe_answer("19 (i)", "%zu", pool_mib(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  PROBE_MUST(D.cuMemPoolSetAccess(pool, &access, 1));
  CUresult code = D.cuMemGetAddressRange(&base, &bytes, first);
  probe_answer("X7 (c)", "%s, %s", probe_name(code), base == first && bytes == 8 * PROBE_MIB ? "the block" : "another");
  code = D.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, first);
  ANSWER_YES("X7 (d)", code == CUDA_SUCCESS && device == first);
  CUdeviceptr target = probe_memory(8 * PROBE_MIB);
  probe_gate_close(stream);
  PROBE_MUST(D.cuMemcpyHtoDAsync(target, (void *)(uintptr_t)first, 8 * PROBE_MIB, stream));
  ANSWER_YES("19 (j)", probe_gate_open());
}

/* ---- zero sizes --------------------------------------------------------------------------------------------------- */

static void zero_sizes(void) {
  probe_begin();
  CUdeviceptr memory = 0;
  void *pinned = NULL;
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  ANSWER_CODE("X2 (d)", D.cuMemAlloc(&memory, 0));
  ANSWER_CODE("X2 (e)", D.cuMemHostAlloc(&pinned, 0, CU_MEMHOSTALLOC_PORTABLE));
  ANSWER_CODE("X2 (f)", D.cuMemAllocAsync(&memory, 0, stream));
  ANSWER_CODE("X2 (g)", D.cuMemFree(0));
  ANSWER_CODE("X2 (h)", D.cuMemFreeHost(NULL));
}

const probe_question probe_memory_questions[] = {{"register_bytes", register_bytes},
                                                 {"register_mappings", register_mappings},
                                                 {"register_beside", register_beside},
                                                 {"fork_memory", fork_memory},
                                                 {"fork_calls", fork_calls},
                                                 {"pinned_small", pinned_small},
                                                 {"known_bytes", known_bytes},
                                                 {"virtual_memory", virtual_memory},
                                                 {"virtual_parts", virtual_parts},
                                                 {"share", share},
                                                 {"pool_default", pool_default},
                                                 {"pool_trim", pool_trim},
                                                 {"pool_reuse", pool_reuse},
                                                 {"pool_free", pool_free},
                                                 {"pool_of_host", pool_of_host},
                                                 {"zero_sizes", zero_sizes},
                                                 {NULL, NULL}};
