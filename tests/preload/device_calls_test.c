/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: a program allocates device memory, uses it and frees it, with each value of LADE_PRELOAD_DEVICE.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/preload/cases.h"

static bool device_is(const char *value) {
  const char *device = getenv("LADE_PRELOAD_DEVICE");
  return device != NULL && strcmp(device, value) == 0;
}
static bool serves_ordered(void) { return device_is("all"); }
static bool serves(void) { return !device_is("off"); }

/* Starts a test of what lade serves; with other values there is nothing to see. */
#define START_SERVED(is_served)                                                                                        \
  do {                                                                                                                 \
    if (!(is_served)) return;                                                                                          \
    start();                                                                                                           \
    if (lade_test_has_failed()) return;                                                                                \
  } while (0)

static CUdeviceptr alloc(const program *as, size_t bytes) {
  CUdeviceptr block = 0;
  LADE_CU(as->mem_alloc(&block, bytes));
  LADE_EXPECT_NE_UINT(block, 0);
  return block;
}

static CUdeviceptr alloc_on(const program *as, size_t bytes, CUstream stream) {
  CUdeviceptr block = 0;
  LADE_CU(as->mem_alloc_async(&block, bytes, stream));
  LADE_EXPECT_NE_UINT(block, 0);
  return block;
}

static bool comes_back(const program *as, CUdeviceptr block, size_t bytes) {
  return handed_out(&device_memory, as, block, bytes, NULL, TRIES);
}
static bool stays_away(const program *as, CUdeviceptr block, size_t bytes) {
  return !handed_out(&device_memory, as, block, bytes, NULL, TRIES_WHILE_HELD);
}

/* The same of cuMemAllocAsync on a stream. */
static bool comes_back_on(const program *as, CUdeviceptr block, size_t bytes, CUstream stream) {
  return handed_out(&ordered_memory, as, block, bytes, stream, TRIES);
}
static bool stays_away_on(const program *as, CUdeviceptr block, size_t bytes, CUstream stream) {
  return !handed_out(&ordered_memory, as, block, bytes, stream, TRIES_WHILE_HELD);
}

static void fill(const program *as, CUdeviceptr block, size_t bytes, CUstream stream) {
  LADE_CU(as->memset_d8_async(block, 7, bytes, stream));
}

/* ---- Serving ----------------------------------------------------------------------------------------------------- */

LADE_TEST(PreloadDevice, ServesFromTheCache) {
  START_SERVED(serves());
  CUdeviceptr first = alloc(&cuda, MIB);
  uint64_t before = hooks->calls("cuMemAlloc");
  for (int i = 0; i < 200; i++) {
    CUdeviceptr block = alloc(&cuda, SMALL);
    LADE_EXPECT_EQ_UINT(block % 512, 0);
    LADE_CU(cuda.mem_free(block));
  }
  LADE_EXPECT_LE_UINT(hooks->calls("cuMemAlloc"), before + 1);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 0);
  LADE_CU(cuda.mem_free(first));
  finish();
}

/* Nobody asked: every call is the driver's. */
LADE_TEST(PreloadDevice, OffServesNothing) {
  START_SERVED(!serves());
  void *pinned = NULL;
  LADE_CU(cuda.host_alloc(&pinned, SMALL, 0)); /* the pool is open */
  CUstream stream = stream_make();
  uint64_t allocs = hooks->calls("cuMemAlloc"), frees = hooks->calls("cuMemFree");
  for (int i = 0; i < 10; i++) {
    LADE_CU(cuda.mem_free(alloc(&cuda, SMALL)));
    LADE_CU(cuda.mem_free_async(alloc_on(&cuda, SMALL, stream), stream));
  }
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAlloc"), allocs + 10);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), frees + 10);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 10);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 10);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.free_host(pinned));
  finish();
}

static void ordered_reuse_check(const program *as, CUstream stream) {
  CUdeviceptr first = alloc_on(as, MIB, stream);
  uint64_t before = hooks->calls("cuMemAlloc");
  hold held;
  hold_begin(&held, as, stream);
  for (int i = 0; i < 20; i++) { /* the same memory again at once, in the stream's order */
    fill(as, first, MIB, stream);
    LADE_CU(as->mem_free_async(first, stream));
    LADE_EXPECT_EQ_UINT(alloc_on(as, MIB, stream), first);
  }
  hold_end(&held);
  LADE_CU(as->stream_synchronize(stream));
  LADE_CU(as->mem_free_async(first, stream));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAlloc"), before);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 0);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 0);
}

LADE_TEST(PreloadDevice, OrderedBlocksComeBackAtOnce) {
  START_SERVED(serves_ordered());
  CUstream stream = stream_make();
  ordered_reuse_check(&cuda, stream);
  ordered_reuse_check(&cuda, NULL);
  ordered_reuse_check(&cuda_ptsz, NULL);
  ordered_reuse_check(&cuda, CU_STREAM_PER_THREAD);
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* With "malloc" what is ordered is the driver's, from the alloc to either free. */
LADE_TEST(PreloadDevice, MallocLeavesTheOrderedToTheDriver) {
  START_SERVED(device_is("malloc"));
  CUstream stream = stream_make();
  LADE_CU(cuda.mem_free(alloc(&cuda, SMALL)));
  LADE_CU(cuda.mem_free_async(alloc_on(&cuda, SMALL, stream), stream));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 1);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 1);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 0);
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

LADE_TEST(PreloadDevice, LargeAndOddSizes) {
  START_SERVED(serves());
  const size_t sizes[] = {1, 511, 513, 4097, MIB - 1, MIB, 3 * MIB + 5, 24 * MIB, 130 * MIB};
  CUstream stream = stream_make();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    CUdeviceptr block = alloc(&cuda, sizes[i]);
    char last = 0;
    LADE_EXPECT_EQ_UINT(block % 512, 0);
    fill(&cuda, block, sizes[i], stream);
    LADE_CU(cuda.stream_synchronize(stream));
    LADE_CU(cuda.d2h(&last, block + sizes[i] - 1, 1));
    LADE_EXPECT_EQ_INT(last, 7);
    LADE_CU(cuda.mem_free(block));
  }
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* ---- Order of streams -------------------------------------------------------------------------------------------- */

/* The driver's cuMemFree may wait for the device; lade's does not, and hands the block out when all streams have passed. */
static void free_order_check(const program *as, CUstream stream) {
  hold held;
  CUdeviceptr block = alloc(as, MIB);
  hold_begin(&held, as, stream);
  fill(as, block, MIB, stream);
  LADE_CU(as->mem_free(block));
  LADE_EXPECT(stays_away(as, block, MIB));
  hold_end(&held);
  LADE_CU(as->stream_synchronize(stream));
  LADE_EXPECT(comes_back(as, block, MIB));
}

LADE_TEST(PreloadDeviceOrder, FreesWaitForEveryStream) {
  START_SERVED(serves());
  for (unsigned flags = 0; flags <= CU_STREAM_NON_BLOCKING; flags++) {
    CUstream stream;
    LADE_CU(cuda.stream_create(&stream, flags));
    free_order_check(&cuda, stream);
    LADE_CU(cuda.stream_destroy(stream));
  }
  free_order_check(&cuda, NULL);
  free_order_check(&cuda_ptsz, CU_STREAM_PER_THREAD);
  finish();
}

/* What cuMemAllocAsync has freed on a stream, and the stream still uses, is nobody else's. */
LADE_TEST(PreloadDeviceOrder, OrderedBlocksStayOnTheirStream) {
  START_SERVED(serves_ordered());
  CUstream stream = stream_make(), other = stream_make();
  hold held;
  CUdeviceptr block = alloc_on(&cuda, MIB, stream), legacy = alloc_on(&cuda, MIB, NULL);
  hold_begin(&held, &cuda, stream);
  fill(&cuda, block, MIB, stream);
  LADE_CU(cuda.mem_free_async(block, stream));
  LADE_CU(cuda.mem_free_async(legacy, NULL));
  LADE_EXPECT(stays_away(&cuda, legacy, MIB)); /* V3: the legacy stream's is not cuMemAlloc's */
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  LADE_EXPECT(stays_away_on(&cuda, block, MIB, other));
  LADE_EXPECT(comes_back_on(&cuda, block, MIB, stream));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.stream_destroy(other));
  finish();
}

/* Freed on another stream than that of the allocation: the other stream's work comes first. */
LADE_TEST(PreloadDeviceOrder, FreedOnAnotherStream) {
  START_SERVED(serves_ordered());
  CUstream stream = stream_make(), other = stream_make();
  const CUstream users[] = {other, NULL, CU_STREAM_PER_THREAD};
  for (size_t i = 0; i < 3; i++) {
    hold held;
    CUdeviceptr block = alloc_on(&cuda, MIB, stream);
    LADE_CU(cuda.stream_synchronize(stream));
    hold_begin(&held, &cuda, users[i]);
    fill(&cuda, block, MIB, users[i]);
    LADE_CU(cuda.mem_free_async(block, users[i]));
    LADE_EXPECT(stays_away_on(&cuda, block, MIB, stream));
    hold_end(&held);
    LADE_CU(cuda.stream_synchronize(users[i]));
    LADE_EXPECT(comes_back_on(&cuda, block, MIB, stream));
  }
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.stream_destroy(other));
  finish();
}

/* cuMemFreeAsync takes memory of cuMemAlloc: the stream that it names comes first, and no other does. */
LADE_TEST(PreloadDeviceOrder, FreedInOrderWithoutBeingOrdered) {
  START_SERVED(serves());
  enum { BYTES = 128 * 1024 }; /* all that is tried stays below what may be pending */
  CUstream stream = stream_make(), busy = stream_make();
  hold held, held_busy;
  CUdeviceptr block = alloc(&cuda, BYTES);
  hold_begin(&held, &cuda, stream);
  hold_begin(&held_busy, &cuda, busy); /* software devices run one host function at a time */
  fill(&cuda, block, BYTES, stream);
  LADE_CU(cuda.mem_free_async(block, stream));
  LADE_EXPECT(stays_away(&cuda, block, BYTES));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_EXPECT(comes_back(&cuda, block, BYTES));
  LADE_EXPECT(!atomic_load(&held_busy.is_released));
  hold_end(&held_busy);
  LADE_CU(cuda.stream_synchronize(busy));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 0);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.stream_destroy(busy));
  finish();
}

/* ... and cuMemFree memory of cuMemAllocAsync, whose users are done. */
LADE_TEST(PreloadDeviceOrder, FreedWithoutOrderWhatIsOrdered) {
  START_SERVED(serves_ordered());
  CUstream stream = stream_make(), busy = stream_make();
  hold held;
  CUdeviceptr block = alloc_on(&cuda, MIB, stream);
  fill(&cuda, block, MIB, stream);
  LADE_CU(cuda.stream_synchronize(stream));
  hold_begin(&held, &cuda, busy);
  LADE_CU(cuda.mem_free(block));
  LADE_EXPECT_EQ_UINT(alloc_on(&cuda, MIB, stream), block);
  LADE_CU(cuda.mem_free_async(block, stream));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(busy));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 0);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.stream_destroy(busy));
  finish();
}

typedef struct other_thread {
  CUcontext context;
  CUdeviceptr block;
  hold held;
} other_thread;

/* Frees on the stream of its own, which works on. */
static void *free_on_own_stream(void *user) {
  other_thread *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  hold_begin(&own->held, &cuda_ptsz, NULL);
  fill(&cuda_ptsz, own->block, MIB, CU_STREAM_PER_THREAD);
  LADE_CU(cuda_ptsz.mem_free_async(own->block, NULL));
  return NULL;
}

/* The handle of the thread's own stream is one for all threads, and names another stream in each. */
LADE_TEST(PreloadDeviceOrder, ThreadsOwnStreams) {
  START_SERVED(serves_ordered());
  other_thread shared = {.block = alloc_on(&cuda_ptsz, MIB, NULL)};
  pthread_t thread;
  LADE_CU(cuda.ctx_get_current(&shared.context));
  pthread_create(&thread, NULL, free_on_own_stream, &shared);
  pthread_join(thread, NULL);
  LADE_EXPECT(stays_away_on(&cuda_ptsz, shared.block, MIB, NULL));
  hold_end(&shared.held);
  LADE_CU(cuda.ctx_synchronize());
  finish();
}

LADE_TEST(PreloadDeviceOrder, StreamsThatAreDestroyed) {
  START_SERVED(serves());
  CUstream stream = stream_make(), other = stream_make();
  hold held;
  CUdeviceptr block = alloc(&cuda, MIB), ordered = alloc_on(&cuda, MIB, stream);
  hold_begin(&held, &cuda, stream);
  fill(&cuda, block, MIB, stream);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.mem_free_async(ordered, other)); /* it outlived its stream */
  LADE_CU(cuda.stream_synchronize(other));
  LADE_CU(cuda.stream_destroy(other));
  finish();
}

static void fill_2_mib(uintptr_t block, CUstream stream, void *none) {
  (void)none;
  fill(&cuda, block, 2 * MIB, stream);
}

/* As the driver's own free waits for the device. */
LADE_TEST(PreloadDeviceOrder, FreeWaitsAtTheLimit) {
  START_SERVED(serves());
  free_waits_at_the_limit(&device_memory, fill_2_mib, NULL);
  finish();
}

/* ---- What is not served ------------------------------------------------------------------------------------------ */

LADE_TEST(PreloadDeviceAnswers, WrongPointersGetTheDriversAnswer) {
  START_SERVED(serves());
  int own = 0;
  CUstream stream = stream_make();
  CUdeviceptr block = alloc(&cuda, 4 * SMALL), other = alloc(&cuda, SMALL);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free((CUdeviceptr)(uintptr_t)&own), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 1); /* that is the driver's to say */
  LADE_EXPECT_EQ_INT((int)cuda.mem_free(block + 1), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free(block + SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free_async(block + SMALL, stream), CUDA_ERROR_INVALID_VALUE);
  LADE_CU(cuda.mem_free(block));
  LADE_EXPECT_EQ_INT((int)cuda.mem_free(block), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free_async(block, stream), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.free_host((void *)(uintptr_t)other), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 1); /* V2 */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 0);
  (void)cuda.mem_free(0);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 2);
  (void)cuda.mem_free_async(0, stream);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 1);
  LADE_CU(cuda.mem_free(other));
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

LADE_TEST(PreloadDeviceAnswers, WrongSizesAreTheDrivers) {
  START_SERVED(serves());
  CUdeviceptr block = 99;
  uint64_t before = hooks->calls("cuMemAlloc");
  LADE_EXPECT_EQ_INT((int)cuda.mem_alloc(&block, 0), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAlloc"), before + 1);
  LADE_EXPECT_NE_INT((int)cuda.mem_alloc(&block, SIZE_MAX / 2), CUDA_SUCCESS);
  LADE_EXPECT_EQ_INT((int)cuda.mem_alloc_async(&block, 0, NULL), CUDA_SUCCESS); /* the driver has nothing against it */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 1);
  finish();
}

LADE_TEST(PreloadDeviceAnswers, WithoutContextAsTheDriver) {
  CUdeviceptr block = 0;
  CUcontext context;
  start_without_context();
  if (lade_test_has_failed()) return;
  LADE_EXPECT_EQ_INT((int)cuda.mem_alloc(&block, SMALL), CUDA_ERROR_NOT_INITIALIZED);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free(4096), CUDA_ERROR_NOT_INITIALIZED);
  LADE_CU(cuda.init(0));
  LADE_EXPECT_EQ_INT((int)cuda.mem_alloc(&block, SMALL), CUDA_ERROR_INVALID_CONTEXT);
  LADE_CU(cuda.primary_retain(&context, 0));
  LADE_CU(cuda.ctx_set_current(context));
  block = alloc(&cuda, SMALL);
  LADE_CU(cuda.ctx_set_current(NULL));
  LADE_EXPECT_EQ_INT((int)cuda.mem_free(block), CUDA_ERROR_INVALID_CONTEXT);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free_async(block, NULL), CUDA_ERROR_INVALID_CONTEXT);
  LADE_CU(cuda.ctx_set_current(context));
  LADE_CU(cuda.mem_free(block)); /* it was the program's still */
  finish();
}

/* Memory that the driver gave by other calls goes back to it. */
LADE_TEST(PreloadDeviceAnswers, TheDriversMemoryIsFreedByIt) {
  START_SERVED(serves());
  CUstream stream = stream_make();
  CUdeviceptr served = alloc(&cuda, SMALL), pitched = 0, pooled = 0;
  CUmemoryPool pool = NULL;
  size_t pitch = 0;
  LADE_CU(cuda.mem_alloc_pitch(&pitched, &pitch, 100, 10, 4));
  LADE_CU(cuda.device_default_pool(&pool, 0));
  LADE_CU(cuda.mem_alloc_from_pool(&pooled, SMALL, pool, stream));
  LADE_CU(cuda.mem_free(pitched));
  LADE_CU(cuda.mem_free_async(pooled, stream));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), 1);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 1);
  LADE_CU(cuda.mem_free(served));
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* ---- What is said about memory ----------------------------------------------------------------------------------- */

static void answers_check(CUdeviceptr block, size_t bytes, CUmemoryPool pool) {
  CUdeviceptr start = 0, base = 0;
  CUmemoryPool told = NULL;
  size_t size = 0, range = 0;
  unsigned type = 0;
  int shareable = 9;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void *answers[] = {&start, &size, &type, &told, &shareable};
  LADE_CU(cuda.pointer_get_attributes(5, wanted, answers, block + 100));
  LADE_EXPECT_EQ_UINT(start, block);
  LADE_EXPECT_EQ_SIZE(size, bytes);
  LADE_EXPECT_EQ_UINT(type, CU_MEMORYTYPE_DEVICE);
  LADE_EXPECT_EQ_PTR(told, pool);
  LADE_EXPECT_EQ_INT(shareable, 0);
  LADE_CU(cuda.pointer_get_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block));
  LADE_EXPECT_EQ_SIZE(size, bytes);
  LADE_CU(cuda.mem_get_address_range(&base, &range, block + bytes - 1));
  LADE_EXPECT_EQ_UINT(base, block);
  LADE_EXPECT_EQ_SIZE(range, bytes);
}

LADE_TEST(PreloadDeviceAnswers, RangesAreThoseOfTheBlock) {
  START_SERVED(serves());
  CUmemoryPool pool = NULL;
  CUdeviceptr neighbours[2];
  for (int i = 0; i < 2; i++) neighbours[i] = alloc(&cuda, 10000);
  answers_check(neighbours[0], 10000, NULL);
  answers_check(neighbours[1], 10000, NULL);
  for (int i = 0; i < 2; i++) LADE_CU(cuda.mem_free(neighbours[i]));
  if (serves_ordered()) {
    CUdeviceptr ordered = alloc_on(&cuda, 5000, NULL);
    LADE_CU(cuda.device_default_pool(&pool, 0));
    answers_check(ordered, 5000, pool);
    LADE_CU(cuda.mem_free_async(ordered, NULL));
  }
  finish();
}

static void nobodys_check(CUdeviceptr address) {
  static const char own;
  CUdeviceptr base = 0;
  size_t range = 0, told = 77, none = 77;
  unsigned on = 1;
  CUipcMemHandle handle;
  CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
  void *answer = &told, *answer_none = &none;
  LADE_EXPECT_EQ_INT((int)cuda.pointer_get_attribute(&told, wanted, address), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.mem_get_address_range(&base, &range, address), CUDA_ERROR_NOT_FOUND);
  LADE_EXPECT_NE_INT((int)cuda.pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address), CUDA_SUCCESS);
  LADE_EXPECT_NE_INT((int)cuda.ipc_get_mem_handle(&handle, address), CUDA_SUCCESS);
  LADE_CU(cuda.pointer_get_attributes(1, &wanted, &answer, address));
  LADE_CU(cuda.pointer_get_attributes(1, &wanted, &answer_none, (CUdeviceptr)(uintptr_t)&own));
  LADE_EXPECT_EQ_SIZE(told, none);
}

/* Bug: the driver answered for the segment, and gave its handle to other processes. */
LADE_TEST(PreloadDeviceAnswers, WhatTheProgramDoesNotHoldIsNobodys) {
  START_SERVED(serves());
  CUdeviceptr block = alloc(&cuda, 10000), neighbour = alloc(&cuda, 10000);
  answers_check(block, 10000, NULL);
  nobodys_check(block + 10000);
  nobodys_check(block + 10100);
  LADE_CU(cuda.mem_free(block));
  nobodys_check(block);
  nobodys_check(block + 9999);
  answers_check(neighbour, 10000, NULL);
  LADE_CU(cuda.mem_free(neighbour));
  finish();
}

/* The driver keeps the switch for a whole segment: nobody turns it off for his neighbours. */
LADE_TEST(PreloadDeviceAnswers, SynchronousCopiesStayOn) {
  START_SERVED(serves());
  unsigned on = 1, off = 0;
  CUdeviceptr block = alloc(&cuda, SMALL), pitched = 0;
  size_t pitch = 0;
  LADE_CU(cuda.mem_alloc_pitch(&pitched, &pitch, 100, 10, 4));
  LADE_CU(cuda.pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuPointerSetAttribute"), 1);
  LADE_CU(cuda.pointer_set_attribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuPointerSetAttribute"), 1);
  LADE_CU(cuda.pointer_set_attribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pitched));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuPointerSetAttribute"), 2);
  LADE_CU(cuda.mem_free(pitched));
  LADE_CU(cuda.mem_free(block));
  finish();
}

static size_t free_bytes(void) {
  size_t free_now = 0, total = 0;
  LADE_CU(cuda.mem_get_info(&free_now, &total));
  LADE_EXPECT_LE_UINT(free_now, total);
  return free_now;
}

/* What was freed is free, as after the driver's own free; and what is said to be free can be had. */
LADE_TEST(PreloadDeviceAnswers, WhatIsCachedIsFree) {
  START_SERVED(serves());
  CUdeviceptr piece = alloc(&cuda, 2 * MIB); /* of a segment of 20 MiB, whose rest is not free */
  CUdeviceptr large = alloc(&cuda, 300 * MIB), all = 0;
  size_t before = free_bytes();
  CUstream stream = stream_make();
  fill(&cuda, large, 300 * MIB, stream);
  LADE_CU(cuda.mem_free(large));
  size_t after = free_bytes();
  LADE_EXPECT_EQ_SIZE(after, before + 300 * MIB);
  uint64_t frees = hooks->calls("cuMemFree");
  LADE_CU(cuda.mem_free(alloc(&cuda, 300 * MIB)));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFree"), frees); /* it was cached still */
  size_t said = free_bytes() / (2 * MIB) * (2 * MIB);
  LADE_CU(cuda.mem_alloc(&all, said));
  LADE_CU(cuda.mem_free(all));
  LADE_CU(cuda.mem_free(piece));
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* A handle would be the segment's. The driver's own memory has its own. */
LADE_TEST(PreloadDeviceAnswers, NoHandlesForOtherProcesses) {
  START_SERVED(serves());
  CUipcMemHandle handle;
  CUdeviceptr block = alloc(&cuda, SMALL), pitched = 0;
  size_t pitch = 0;
  LADE_EXPECT_EQ_INT((int)cuda.ipc_get_mem_handle(&handle, block), CUDA_ERROR_NOT_SUPPORTED);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuIpcGetMemHandle"), 0);
  LADE_CU(cuda.mem_alloc_pitch(&pitched, &pitch, 100, 10, 4));
  (void)cuda.ipc_get_mem_handle(&handle, pitched);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuIpcGetMemHandle"), 1);
  LADE_CU(cuda.mem_free(pitched));
  LADE_CU(cuda.mem_free(block));
  finish();
}

/* ---- Lack of memory ---------------------------------------------------------------------------------------------- */

/* The software device has 1 GiB. */
LADE_TEST(PreloadDeviceMemory, CachedMemoryServesOtherSizes) {
  START_SERVED(serves());
  CUdeviceptr large = 0, too_large = 0;
  for (int i = 0; i < 4; i++) {
    LADE_CU(cuda.mem_alloc(&large, 600 * MIB));
    LADE_CU(cuda.mem_free(large));
    LADE_CU(cuda.mem_alloc(&large, 700 * MIB)); /* the 600 MiB go back for it */
    LADE_CU(cuda.mem_free(large));
  }
  LADE_EXPECT_EQ_INT((int)cuda.mem_alloc(&too_large, 2048 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
  finish();
}

/* Freed, in use, and wanted again: waited for, as the driver's free would have. */
LADE_TEST(PreloadDeviceMemory, PendingMemoryIsWaitedFor) {
  START_SERVED(serves());
  CUstream stream = stream_make();
  pthread_t thread;
  hold held;
  CUdeviceptr blocks[2];
  blocks[0] = alloc(&cuda, 15 * MIB); /* below the limit of what may be pending */
  blocks[1] = alloc(&cuda, 1000 * MIB);
  hold_begin(&held, &cuda, stream);
  fill(&cuda, blocks[0], 15 * MIB, stream);
  LADE_CU(cuda.mem_free(blocks[0]));
  LADE_EXPECT(!atomic_load(&held.is_released));
  pthread_create(&thread, NULL, hold_end_later, &held);
  LADE_EXPECT_NE_UINT(alloc(&cuda, 15 * MIB + 1), 0);
  LADE_EXPECT(atomic_load(&held.is_released));
  pthread_join(thread, NULL);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  finish(); /* with two blocks in the program's hands */
}

/* V4: what the driver allocates itself gets the memory that lade has cached. */
LADE_TEST(PreloadDeviceMemory, TheDriverIsAskedAgain) {
  START_SERVED(serves());
  CUdeviceptr pitched = 0, pooled = 0;
  CUmemoryPool pool = NULL;
  size_t pitch = 0;
  CUstream stream = stream_make();
  LADE_CU(cuda.mem_free(alloc(&cuda, 900 * MIB)));
  LADE_CU(cuda.mem_alloc_pitch(&pitched, &pitch, MIB, 500, 4));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocPitch"), 2);
  LADE_CU(cuda.mem_free(pitched));
  LADE_CU(cuda.mem_free(alloc(&cuda, 900 * MIB)));
  LADE_CU(cuda.device_default_pool(&pool, 0));
  LADE_CU(cuda.mem_alloc_from_pool(&pooled, 400 * MIB, pool, stream));
  LADE_CU(cuda.mem_free_async(pooled, stream));
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT_NE_INT((int)cuda.mem_alloc_pitch(&pitched, &pitch, MIB, 3000, 4), CUDA_SUCCESS);
  finish();
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

LADE_TEST(PreloadDeviceCapture, OrderedCallsInItAreTheDrivers) {
  START_SERVED(serves_ordered());
  CUstream stream = stream_make(), other = stream_make();
  CUgraph graph = NULL;
  CUdeviceptr block = alloc_on(&cuda, MIB, stream), node = 0;
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  (void)cuda.mem_alloc_async(&node, MIB, stream); /* a node of the graph, which software devices do not have */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 1);
  LADE_EXPECT_EQ_INT((int)cuda.mem_free_async(block, stream), CUDA_ERROR_INVALID_VALUE); /* no memory of a graph */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 0);
  LADE_CU(cuda.mem_free_async(alloc_on(&cuda, MIB, other), other)); /* beside it as ever */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 1);
  LADE_CU(cuda.stream_end_capture(stream, &graph));
  LADE_CU(cuda.graph_destroy(graph));
  LADE_CU(cuda.mem_free_async(block, stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.stream_destroy(other));
  finish();
}

/* Frees and allocs during a capture leave it alone, in its strictest mode; what a launch uses is not handed out before its end. */
static void capture_check(const program *as, CUstream stream) {
  char out = 0;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  hold held;
  CUdeviceptr block = alloc(as, MIB), used = alloc(as, MIB);
  LADE_CU(as->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  fill(as, used, MIB, stream == NULL ? CU_STREAM_PER_THREAD : stream);
  LADE_CU(as->mem_free(block));
  for (int i = 0; i < 40; i++) LADE_CU(as->mem_free(alloc(as, MIB / 8)));
  LADE_CU(as->stream_end_capture(stream, &graph));
  LADE_ASSERT(graph != NULL);
  LADE_CU(as->graph_instantiate(&exec, graph, 0));
  hold_begin(&held, as, stream);
  LADE_CU(as->graph_launch(exec, stream));
  LADE_CU(as->mem_free(used));
  LADE_EXPECT(stays_away(as, used, MIB));
  hold_end(&held);
  LADE_CU(as->ctx_synchronize());
  LADE_CU(as->d2h(&out, used, 1)); /* the graph's work is done; the memory is nobody's yet */
  LADE_EXPECT_EQ_INT(out, 7);
  LADE_CU(as->graph_exec_destroy(exec));
  LADE_CU(as->graph_destroy(graph));
  LADE_EXPECT(comes_back(as, used, MIB));
  LADE_EXPECT(comes_back(as, block, MIB));
}

LADE_TEST(PreloadDeviceCapture, BlocksWaitForItsEnd) {
  START_SERVED(serves());
  CUstream stream = stream_make();
  capture_check(&cuda, stream);
  capture_check(&cuda_ptsz, stream);
  capture_check(&cuda_ptsz, NULL);
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* ---- Pools of the driver ----------------------------------------------------------------------------------------- */

/* On the second device: its pool stays the program's until the process ends. */
LADE_TEST(PreloadDevicePools, OfTheProgramEndTheServing) {
  START_SERVED(serves_ordered());
  CUcontext second, first;
  CUmemoryPool pool = NULL, own = NULL;
  CUmemPoolProps properties;
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 1;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  CUstream stream = stream_make();
  LADE_CU(cuda.pool_create(&own, &properties));
  LADE_CU(cuda.pool_set_access(own, &access, 1)); /* a pool that cuMemAllocAsync does not take from */
  CUdeviceptr served = alloc_on(&cuda, SMALL, stream);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 0);
  LADE_CU(cuda.device_default_pool(&pool, 1));
  LADE_CU(cuda.pool_set_access(pool, &access, 1));
  CUdeviceptr passed = alloc_on(&cuda, SMALL, stream);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 1);
  LADE_CU(cuda.mem_free_async(passed, stream));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 1);
  LADE_CU(cuda.mem_free_async(served, stream)); /* lade's, still */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeAsync"), 1);
  LADE_CU(cuda.device_set_pool(1, own));
  LADE_CU(cuda.mem_free(alloc(&cuda, SMALL))); /* of no pool */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.mem_free_async(alloc_on(&cuda, SMALL, NULL), NULL)); /* the first device is as it was */
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemAllocAsync"), 1);
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.pool_destroy(own));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.primary_release(1));
  finish();
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

LADE_TEST(PreloadDeviceContexts, ResetEndsTheMemoryOfItsDevice) {
  START_SERVED(serves());
  CUcontext first, second;
  CUdeviceptr here = alloc(&cuda, MIB), there;
  LADE_CU(cuda.mem_free(alloc(&cuda, MIB))); /* pending */
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  there = alloc(&cuda, MIB);
  LADE_CU(cuda.primary_reset(0));
  LADE_EXPECT_EQ_UINT(soft_report().device_allocations, 1);
  LADE_EXPECT_NE_INT((int)cuda.mem_free(here), CUDA_SUCCESS);
  LADE_CU(cuda.mem_free(there));
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT_EQ_UINT(soft_report().device_allocations, 0);
  LADE_EXPECT_EQ_UINT(hooks->retained(1), 0);
  LADE_CU(cuda.primary_retain(&first, 0)); /* it lives again */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.mem_free(alloc(&cuda, MIB)));
  LADE_CU(cuda.primary_release(0));
  finish();
}

LADE_TEST(PreloadDeviceContexts, FreesFromAnywhere) {
  START_SERVED(serves());
  CUcontext first, second;
  CUdeviceptr block = alloc(&cuda, MIB);
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.mem_free(block)); /* under another device's context */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.primary_release(1));
  finish();
}

/* A free that names the default stream names that of the current context, whosever memory it is. */
LADE_TEST(PreloadDeviceContexts, DefaultStreamIsThatOfTheCurrentContext) {
  START_SERVED(serves());
  CUcontext first, others[2];
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.primary_retain(&others[0], 1));
  LADE_CU(cuda.ctx_create(&others[1], 0, 0));
  const CUstream streams[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
  for (int c = 0; c < 2; c++)
    for (int s = 0; s < 3; s++) {
      hold held;
      LADE_CU(cuda.ctx_set_current(first));
      CUdeviceptr block = alloc(&cuda, MIB);
      LADE_CU(cuda.ctx_set_current(others[c]));
      hold_begin(&held, &cuda, streams[s]);
      LADE_CU(cuda.mem_free_async(block, streams[s]));
      LADE_CU(cuda.ctx_set_current(first));
      LADE_EXPECT(stays_away(&cuda, block, MIB));
      hold_end(&held);
      LADE_CU(cuda.ctx_set_current(others[c]));
      LADE_CU(cuda.stream_synchronize(streams[s]));
      LADE_CU(cuda.ctx_set_current(first));
      LADE_EXPECT(comes_back(&cuda, block, MIB));
    }
  LADE_CU(cuda.ctx_destroy(others[1]));
  LADE_CU(cuda.primary_release(1));
  finish();
}

/* A stream says whose device it is, whatever context is current. */
LADE_TEST(PreloadDeviceContexts, OrderedBlocksAreOfTheStreamsDevice) {
  START_SERVED(serves_ordered());
  CUcontext first, second;
  int ordinal = -1;
  LADE_CU(cuda.ctx_get_current(&first));
  CUstream stream = stream_make();
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  CUdeviceptr block = alloc_on(&cuda, SMALL, stream);
  LADE_CU(cuda.pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
  LADE_EXPECT_EQ_INT(ordinal, 0);
  LADE_CU(cuda.mem_free_async(block, stream));
  LADE_CU(cuda.ctx_set_current(NULL)); /* none is needed either */
  block = alloc_on(&cuda, SMALL, stream);
  LADE_CU(cuda.mem_free_async(block, stream));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.primary_release(1));
  finish();
}

/* Freed in the order of a stream of another device, whose context is gone with the stream before anybody asks: the heap asked about the
 * stream all the same. */
LADE_TEST(PreloadDeviceContexts, OfAStreamEndsBehindTheFree) {
  START_SERVED(serves_ordered());
  CUcontext first, second;
  LADE_CU(cuda.ctx_get_current(&first));
  CUstream stream = stream_make();
  CUdeviceptr block = alloc_on(&cuda, MIB, stream);
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  CUstream other = stream_make();
  LADE_CU(cuda.mem_free_async(block, other));
  LADE_CU(cuda.stream_synchronize(other));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT(comes_back_on(&cuda, block, MIB, stream));
  LADE_EXPECT_EQ_STR(hooks->violations(), "");
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.stream_destroy(other)); /* the software device's are not the context's */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.primary_release(1));
  finish();
}

LADE_TEST(PreloadDeviceContexts, OfTheProgramsOwn) {
  START_SERVED(serves());
  other_contexts_pass(&device_memory);
  finish();
}

/* ---- Threads, fork ----------------------------------------------------------------------------------------------- */

static void work_round(CUstream stream, int value) {
  enum { BYTES = 64 * 1024 };
  char back[BYTES];
  CUdeviceptr plain = alloc(&cuda, BYTES), ordered = alloc_on(&cuda, BYTES, stream);
  LADE_CU(cuda.memset_d8_async(plain, (unsigned char)value, BYTES, stream));
  LADE_CU(cuda.copy_async(ordered, plain, BYTES, stream));
  LADE_CU(value % 2 == 0 ? cuda.mem_free(plain) : cuda.mem_free_async(plain, stream)); /* with copies in flight */
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.d2h(back, ordered, BYTES));
  LADE_EXPECT_EQ_INT(back[0], (char)value);
  LADE_EXPECT_EQ_INT(back[BYTES - 1], (char)value);
  LADE_CU(value % 3 == 0 ? cuda.mem_free(ordered) : cuda.mem_free_async(ordered, stream));
}

static void *work(void *user) {
  worker *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  CUstream stream = stream_make();
  for (int i = 0; i < ROUNDS; i++) work_round(stream, own->number * ROUNDS + i);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.ctx_set_current(NULL));
  return NULL;
}

/* Captures begin and end, the cache goes back, and free memory is asked for, while other threads work: none is broken. */
static void *disturb(void *user) {
  worker *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  CUstream stream = stream_make();
  for (int i = 0; i < ROUNDS; i++) {
    CUgraph graph = NULL;
    CUdeviceptr pitched = 0;
    size_t pitch = 0;
    LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    LADE_CU(cuda.mem_free(alloc(&cuda, SMALL)));
    LADE_CU(cuda.stream_end_capture(stream, &graph));
    LADE_CU(cuda.graph_destroy(graph));
    (void)free_bytes();
    if (i % 8 == 0) (void)cuda.mem_alloc_pitch(&pitched, &pitch, MIB, 5000, 4); /* out of memory: the cache goes */
  }
  LADE_CU(cuda.stream_destroy(stream));
  return NULL;
}

LADE_TEST(PreloadDeviceThreads, AllocWorkAndFree) {
  START_SERVED(serves());
  /* While one thread opens the heap the driver serves the others, whose free waits for the device; the loopback's does not. */
  LADE_CU(cuda.mem_free(alloc(&cuda, SMALL)));
  worker_work *const works[THREADS] = {disturb, work, work, work};
  workers_run(works);
  finish();
}

LADE_TEST(PreloadDeviceThreads, OneOfTwoFreesWins) {
  START_SERVED(serves());
  CUcontext context;
  LADE_CU(cuda.ctx_get_current(&context));
  one_of_two_frees_wins(&device_memory, context);
  finish();
}

/* The parent's blocks are untouched. */
LADE_TEST(PreloadDeviceFork, ChildAsksTheDriver) {
  START_SERVED(serves());
  CUdeviceptr block = alloc(&cuda, SMALL);
  child_asks_the_driver(&device_memory, block);
  LADE_CU(cuda.mem_free(block));
  finish();
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

/* The program sees success, or the driver's own refusal; of a free that was refused the memory is still the program's. */
static bool expected(CUresult code, CUresult fault) {
  LADE_EXPECT(code == CUDA_SUCCESS || code == fault);
  return code == CUDA_SUCCESS;
}

enum { KEPT_BLOCKS = 256 };
typedef struct kept {
  CUdeviceptr blocks[KEPT_BLOCKS];
  int count;
} kept;

static void faulty_free(CUdeviceptr block, CUresult code, CUresult fault, kept *left) {
  if (!expected(code, fault) && left->count < KEPT_BLOCKS) left->blocks[left->count++] = block;
}

static void faulty_round(CUstream stream, CUstream other, CUresult fault, kept *left) {
  CUdeviceptr plain = 0, ordered = 0;
  size_t free_now = 0, total = 0;
  uint64_t before = hooks->calls("cuMemAlloc");
  if (expected(cuda.mem_alloc(&plain, MIB), fault)) {
    (void)expected(cuda.memset_d8_async(plain, 1, MIB, stream), fault);
    if (hooks->calls("cuMemAlloc") != before) /* perhaps the driver's, and the loopback's free does not wait */
      (void)expected(cuda.stream_synchronize(stream), fault);
    faulty_free(plain, cuda.mem_free(plain), fault, left);
  }
  if (expected(cuda.mem_alloc_async(&ordered, MIB, stream), fault)) {
    (void)expected(cuda.memset_d8_async(ordered, 1, MIB, stream), fault);
    faulty_free(ordered, cuda.mem_free_async(ordered, stream), fault, left);
  }
  if (expected(cuda.mem_alloc(&plain, MIB), fault)) faulty_free(plain, cuda.mem_free_async(plain, other), fault, left);
  (void)expected(cuda.mem_get_info(&free_now, &total), fault);
}

static const char *const faulty[] = {"cuMemAlloc",
                                     "cuMemFree",
                                     "cuMemAllocAsync",
                                     "cuMemFreeAsync",
                                     "cuMemGetInfo",
                                     "cuStreamCreateWithPriority",
                                     "cuStreamDestroy",
                                     "cuEventCreate",
                                     "cuEventRecord",
                                     "cuEventQuery",
                                     "cuCtxRecordEvent",
                                     "cuEventSynchronize",
                                     "cuCtxGetCurrent",
                                     "cuCtxPushCurrent",
                                     "cuCtxGetDevice",
                                     "cuDeviceGetCount",
                                     "cuDeviceGet",
                                     "cuStreamGetCtx",
                                     "cuStreamGetId",
                                     "cuStreamIsCapturing",
                                     "cuStreamSynchronize",
                                     "cuCtxSynchronize",
                                     "cuEventDestroy",
                                     "cuDevicePrimaryCtxGetState",
                                     "cuThreadExchangeStreamCaptureMode",
                                     NULL};

/* From the first call on: the heap is opened under the fault. Afterwards everything works, or the driver serves. */
LADE_TEST_P(PreloadDeviceFaults, OfEachDriverCall, faulty, symbol) {
  for (uint64_t nth = 0; nth <= 3; nth++) {
    START_SERVED(serves());
    kept left = {.count = 0};
    CUstream stream = stream_make(), other = stream_make();
    hooks->fail(symbol, nth, CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 24; i++) faulty_round(stream, other, CUDA_ERROR_OUT_OF_MEMORY, &left);
    hooks->fail_clear();
    LADE_CU(cuda.ctx_synchronize());
    for (int i = 0; i < left.count; i++) LADE_CU(cuda.mem_free(left.blocks[i]));
    left.count = 0;
    for (int i = 0; i < 8; i++) faulty_round(stream, other, CUDA_SUCCESS, &left);
    LADE_CU(cuda.stream_synchronize(stream));
    LADE_CU(cuda.stream_synchronize(other));
    LADE_CU(cuda.stream_destroy(stream));
    LADE_CU(cuda.stream_destroy(other));
    finish();
  }
}
