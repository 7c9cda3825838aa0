/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and pointers, where the driver's answers need more than translation.
 *
 * Locks: none; one thread.
 */
#include <cudaTypedefs.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/runtime/cuda/fixture.h"

/* The test as a program of its own beside lade. */
#define ENTRY(f, symbol, version) ((PFN_##symbol##_v##version)(f)->hooks->entry_point(#symbol, version))

/* ---- Pointers ---------------------------------------------------------------------------------------------------- */

static void expect_pointer(cuda_fixture *f, const void *pointer, ladei_memory_kind kind, const void *base, size_t bytes,
                           int device) {
  ladei_pointer_attributes found;
  LADE_EXPECT_OK(f->ops->pointer_attributes(f->self, pointer, &found));
  LADE_EXPECT_EQ_INT(found.kind, kind);
  LADE_EXPECT_EQ_UINT(found.base, (uintptr_t)base);
  LADE_EXPECT_EQ_SIZE(found.bytes, bytes);
  LADE_EXPECT_EQ_INT(found.device, device);
}

LADE_TEST(CudaMemory, AnyAddressOfAnAllocationNamesIt) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  expect_pointer(&f, f.device, LADEI_MEMORY_DEVICE, f.device, CUDA_FIXTURE_BYTES, 0);
  expect_pointer(&f, (char *)f.device + 777, LADEI_MEMORY_DEVICE, f.device, CUDA_FIXTURE_BYTES, 0);
  expect_pointer(&f, (char *)f.pinned + 777, LADEI_MEMORY_PINNED, f.pinned, CUDA_FIXTURE_BYTES, 0);
  expect_pointer(&f, f.pages, LADEI_MEMORY_UNKNOWN, NULL, 0, -1);
  expect_pointer(&f, NULL, LADEI_MEMORY_UNKNOWN, NULL, 0, -1);
  cuda_fixture_close(&f);
}

/* The driver's attributes of such a pointer name the whole reservation. */
LADE_TEST(CudaMemory, MappedMemoryIsNamedByItsMapping) {
  cuda_fixture f;
  void *range = NULL;
  ladei_vm_handle handle = 0;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  size_t step = f.granularity;
  LADE_ASSERT_OK(f.ops->vm_reserve(f.self, 0, 4 * step, 0, &range));
  LADE_ASSERT_OK(f.ops->vm_create(f.self, 0, step, false, &handle));
  char *address = (char *)range + 2 * step;
  LADE_EXPECT_OK(f.ops->vm_map(f.self, address, step, handle));
  LADE_EXPECT_OK(f.ops->vm_set_access(f.self, address, step, 0, true));
  expect_pointer(&f, address + 5, LADEI_MEMORY_DEVICE, address, step, 0);
  LADE_EXPECT_OK(f.ops->vm_unmap(f.self, address, step));
  LADE_EXPECT_OK(f.ops->vm_release(f.self, handle));
  LADE_EXPECT_OK(f.ops->vm_address_free(f.self, range, 4 * step));
  cuda_fixture_close(&f);
}

/* The attributes of memory of a host pool begin at its place in the pool; without access of a device nothing tells the block. */
LADE_TEST(CudaMemory, MemoryOfAHostPoolIsNamedByItsBlockOnceADeviceMayAccessIt) {
  cuda_fixture f;
  ladei_driver_pool pool = NULL;
  void *closed = NULL, *memory = NULL;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  LADE_ASSERT_OK(f.ops->pool_create(f.self, &(ladei_pool_properties){LADEI_POOL_HOST, 0, 0}, &pool));
  LADE_ASSERT_OK(f.ops->pool_alloc(f.self, pool, 65536, &f.stream, &closed));
  expect_pointer(&f, closed, LADEI_MEMORY_UNKNOWN, NULL, 0, -1);
  LADE_ASSERT_OK(f.ops->pool_set_access(f.self, pool, 0, true));
  LADE_ASSERT_OK(f.ops->pool_alloc(f.self, pool, 65536, &f.stream, &memory));
  expect_pointer(&f, (char *)memory + 777, LADEI_MEMORY_PINNED, memory, 65536, 0);
  LADE_EXPECT_OK(f.ops->pool_free(f.self, closed, &f.stream));
  LADE_EXPECT_OK(f.ops->pool_free(f.self, memory, &f.stream));
  LADE_EXPECT_OK(f.ops->stream_synchronize(f.self, &f.stream));
  LADE_EXPECT_OK(f.ops->pool_destroy(f.self, pool));
  cuda_fixture_close(&f);
}

/* A thread without context, in a program without any: no memory of a device can be anywhere. */
LADE_TEST(CudaMemory, WithoutAnyContextEveryPointerIsUnknown) {
  cuda_fixture f;
  int here = 0;
  if (!cuda_fixture_open(&f)) return;
  expect_pointer(&f, &here, LADEI_MEMORY_UNKNOWN, NULL, 0, -1);
  LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(0), 0u);
  LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(1), 0u);
  cuda_fixture_close(&f);
}

/* Memory of the program, asked about in a thread without context, by a runtime that has used no device so far. */
LADE_TEST(CudaMemory, APointerOfTheProgramIsKnownFromTheStart) {
  cuda_fixture f;
  CUcontext mine = NULL;
  CUcontext popped = NULL;
  CUdeviceptr address = 0;
  if (!cuda_fixture_open(&f)) return;
  ENTRY(&f, cuDevicePrimaryCtxRetain, 7000)(&mine, 1);
  ENTRY(&f, cuCtxPushCurrent, 4000)(mine);
  LADE_EXPECT_EQ_INT(ENTRY(&f, cuMemAlloc, 3020)(&address, 8192), CUDA_SUCCESS);
  ENTRY(&f, cuCtxPopCurrent, 4000)(&popped);
  expect_pointer(&f, (const void *)(uintptr_t)(address + 1), LADEI_MEMORY_DEVICE, (const void *)(uintptr_t)address,
                 8192, 1);
  LADE_EXPECT_EQ_UINT(f.hooks->contexts_created(0), 0u);
  LADE_EXPECT_OK(f.ops->device_free(f.self, 1, (void *)(uintptr_t)address));
  ENTRY(&f, cuDevicePrimaryCtxRelease, 11000)(1);
  cuda_fixture_close(&f);
}

/* ---- Synchronous copies ------------------------------------------------------------------------------------------ */

/* From pageable memory the driver returns when it has read the source, and within a device it does not wait at all. */
LADE_TEST(CudaMemory, SynchronousCopiesWaitForTheirLastByte) {
  cuda_fixture f;
  unsigned char read_back[4096];
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  memset(f.pages, 0x5a, sizeof read_back);
  LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_H2D, f.device, f.pages, sizeof read_back));
  uint64_t waits = f.hooks->calls("cuStreamSynchronize");
  LADE_EXPECT_EQ_UINT(waits, 1u);
  LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_D2D, (char *)f.device + 8192, f.device, sizeof read_back));
  LADE_EXPECT_EQ_UINT(f.hooks->calls("cuStreamSynchronize"), waits + 1);
  LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_D2H, read_back, (char *)f.device + 8192, sizeof read_back));
  LADE_EXPECT_EQ_MEM(read_back, f.pages, sizeof read_back);
  cuda_fixture_close(&f);
}

/* ---- What runs out ----------------------------------------------------------------------------------------------- */

LADE_TEST(CudaMemory, RunningOutNamesSizeDeviceAndTheDriversWords) {
  cuda_fixture f;
  void *pointer = NULL;
  if (!cuda_fixture_open(&f)) return;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->device_alloc(f.self, 1, (size_t)1 << 40, &pointer));
  LADE_EXPECT_EQ_STR(lade_last_error()->text,
                     "device_alloc: 1099511627776 bytes on device 1: CUDA_ERROR_OUT_OF_MEMORY: out of memory (2)");
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, CUDA_ERROR_OUT_OF_MEMORY);
  LADE_EXPECT_EQ_PTR(pointer, NULL);
  cuda_fixture_close(&f);
}

/* Nothing sticks: the driver's next call of any kind is as if the refused one had not been. */
LADE_TEST(CudaMemory, ARefusedRegistrationLeavesNothingBehind) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  LADE_EXPECT_OK(f.ops->host_register(f.self, 0, f.pages, CUDA_FIXTURE_BYTES, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     f.ops->host_register(f.self, 0, (char *)f.pages + 4096, CUDA_FIXTURE_BYTES - 4096, 0));
  LADE_EXPECT_OK(f.ops->host_unregister(f.self, f.pages));
  LADE_EXPECT_OK(f.ops->stream_synchronize(f.self, &f.stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_unregister(f.self, f.pages));
  LADE_EXPECT_OK(f.ops->event_query(f.self, f.event));
  cuda_fixture_close(&f);
}

/* The driver says INVALID_VALUE of valid arguments. */
LADE_TEST(CudaMemory, ARefusedRegistrationSaysWhatPagesMustBe) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  void *read_only = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(read_only != MAP_FAILED);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->host_register(f.self, 0, read_only, 8192, 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "host_register: memory is 8192 bytes at ");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "expected pages without a hole that may be read and, unless "
                                                    "pinned for reading alone, written");
  LADE_EXPECT_OK(f.ops->host_register(f.self, 0, read_only, 8192, LADEI_HOST_READ_ONLY));
  LADE_EXPECT_OK(f.ops->host_unregister(f.self, read_only));
  munmap(read_only, 8192);
  cuda_fixture_close(&f);
}

typedef struct inside {
  cuda_fixture *f;
  lade_status status;
  char text[sizeof(lade_error)];
} inside;

static void alloc_inside(void *user) {
  inside *own = user;
  void *memory = NULL;
  own->status = own->f->ops->host_alloc(own->f->self, 0, 4096, 0, &memory);
  snprintf(own->text, sizeof own->text, "%s", lade_last_error()->text);
}

/* The driver refuses even the question about the current context there. */
LADE_TEST(CudaMemory, CallsInAHostFunctionSayThatNoneIsAllowed) {
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  if (!cuda_fixture_fill(&f)) return;
  inside own = {.f = &f};
  LADE_EXPECT_OK(f.ops->host_function(f.self, &f.stream, alloc_inside, &own));
  LADE_EXPECT_OK(f.ops->stream_synchronize(f.self, &f.stream));
  LADE_EXPECT_EQ_INT(own.status, LADE_ERR_UNSUPPORTED);
  LADE_EXPECT_CONTAINS_STR(own.text, "a host function may make no call of the driver");
  cuda_fixture_close(&f);
}

/* ---- Memory that graphs allocate --------------------------------------------------------------------------------- */

LADE_TEST(CudaMemory, GraphMemoryIsReadByAttribute) {
  static const uint64_t told[4] = {11, 22, 33, 44}; /* used, high, reserved, high */
  cuda_fixture f;
  if (!cuda_fixture_open(&f)) return;
  f.hooks->set_graph_memory(told);
  ladei_graph_memory memory;
  LADE_EXPECT_OK(f.ops->graph_memory_get(f.self, 1, &memory));
  LADE_EXPECT_EQ_UINT(memory.used_bytes, 11);
  LADE_EXPECT_EQ_UINT(memory.used_high_bytes, 22);
  LADE_EXPECT_EQ_UINT(memory.reserved_bytes, 33);
  LADE_EXPECT_EQ_UINT(memory.reserved_high_bytes, 44);
  LADE_EXPECT_OK(f.ops->graph_memory_trim(f.self, 1));
  LADE_EXPECT_OK(f.ops->graph_memory_get(f.self, 1, &memory));
  LADE_EXPECT_EQ_UINT(memory.reserved_bytes, 11);
  LADE_EXPECT_EQ_UINT(memory.reserved_high_bytes, 44);
  cuda_fixture_close(&f);
}
