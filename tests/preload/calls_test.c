/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: a program allocates pinned memory, copies and frees, in each mode of LADE_PRELOAD_MODE.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/fixture.h"

static bool is_fast(void) {
  const char *mode = getenv("LADE_PRELOAD_MODE");
  return mode != NULL && strcmp(mode, "fast") == 0;
}

static uint64_t pins(void) { return hooks->calls("cuMemHostRegister") + hooks->calls("cuMemHostAlloc"); }

/* Whether one of the next blocks of the size is this one. Few, while a stream is held: a free waits where much is pending. */
static bool handed_out(const program *as, const void *block, size_t bytes, int tries) {
  enum { KEPT = 64 };
  void *others[KEPT];
  int count = 0;
  bool found = false;
  while (!found && count < tries && count < KEPT) {
    void *pointer = NULL;
    LADE_CU(as->host_alloc(&pointer, bytes, 0));
    found = pointer == block;
    others[count++] = pointer;
  }
  for (int i = 0; i < count; i++) LADE_CU(as->free_host(others[i]));
  return found;
}

static bool comes_back(const program *as, const void *block, size_t bytes) { return handed_out(as, block, bytes, 64); }
static bool stays_away(const program *as, const void *block, size_t bytes) { return !handed_out(as, block, bytes, 6); }

/* ---- Serving ----------------------------------------------------------------------------------------------------- */

LADE_TEST(PreloadCalls, ServesFromTheCache) {
  START();
  void *first = NULL;
  LADE_CU(cuda.host_alloc(&first, SMALL, CU_MEMHOSTALLOC_PORTABLE));
  uint64_t before = pins();
  for (int i = 0; i < 200; i++) {
    void *pointer = NULL;
    LADE_CU(i % 2 == 0 ? cuda.host_alloc(&pointer, SMALL, 0) : cuda.alloc_host(&pointer, SMALL));
    LADE_ASSERT(pointer != NULL);
    memset(pointer, i, SMALL);
    LADE_CU(cuda.free_host(pointer));
  }
  LADE_EXPECT_EQ_UINT(pins(), before);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeHost"), 0);
  LADE_CU(cuda.free_host(first));
  finish();
}

/* The runtime may hold the look-up in its first form; a prototype that came later than the hooks is the driver's own. */
LADE_TEST(PreloadCalls, EveryLevelOfLookUps) {
  START();
  program_look_up *first = first_look_up();
  void *second = NULL, *older = NULL, *served = NULL, *by_older = NULL, *later = NULL;
  int status = 0;
  LADE_CU(first("cuGetProcAddress", &second, 12000, 0, &status));
  LADE_EXPECT_EQ_PTR(second, (void *)first);
  LADE_CU(first("cuGetProcAddress", &older, 11030, 0, &status));
  LADE_CU(first("cuMemHostAlloc", &served, 12000, 0, &status));
  typedef CUresult older_look_up(const char *, void **, int, cuuint64_t);
  LADE_CU(((older_look_up *)older)("cuMemHostAlloc", &by_older, 11030, 0));
  LADE_EXPECT_EQ_PTR(served, by_older);
  LADE_CU(first("cuMemHostAlloc", &by_older, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
  LADE_EXPECT_EQ_PTR(served, by_older);
  LADE_EXPECT_EQ_PTR(served, (void *)cuda.host_alloc);
  if (driver_version() >= 13000) {
    LADE_CU(first("cuMemHostGetFlags", &later, 13000, 0, &status));
    LADE_EXPECT_NE_PTR(later, (void *)cuda.host_get_flags);
  }
  LADE_EXPECT_NE_INT((int)first("cuNoSuchCall", &later, 12000, 0, &status) == CUDA_SUCCESS && later != NULL, 1);
  LADE_EXPECT_EQ_INT((int)first("cuMemHostAlloc", &later, 99000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  finish();
}

LADE_TEST(PreloadCalls, LargeAndOddSizes) {
  START();
  const size_t sizes[] = {1, 511, 513, 4097, MIB - 1, MIB, 3 * MIB + 5, 24 * MIB};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    char *pointer = NULL;
    size_t range = 0;
    LADE_CU(cuda.host_alloc((void **)&pointer, sizes[i], CU_MEMHOSTALLOC_DEVICEMAP));
    LADE_ASSERT(pointer != NULL);
    LADE_EXPECT_EQ_SIZE((size_t)pointer % 512, 0);
    pointer[0] = pointer[sizes[i] - 1] = 1;
    LADE_CU(cuda.pointer_get_attribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)(uintptr_t)pointer));
    LADE_EXPECT_EQ_SIZE(range, sizes[i]);
    LADE_CU(cuda.free_host(pointer));
  }
  finish();
}

/* ---- What is said about memory ----------------------------------------------------------------------------------- */

LADE_TEST(PreloadCalls, AnswersAsForTheDriversOwnMemory) {
  START();
  const unsigned all_flags[] = {0, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP,
                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP};
  for (size_t i = 0; i < 4; i++) {
    char *pointer = NULL;
    unsigned flags = 99, type = 0;
    CUdeviceptr alias = 0, start = 0, attribute_alias = 0;
    size_t bytes = 0;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *answers[] = {&start, &bytes, &type, &attribute_alias};
    LADE_CU(cuda.host_alloc((void **)&pointer, 10000, all_flags[i]));
    CUdeviceptr inner = (CUdeviceptr)(uintptr_t)(pointer + 100);
    LADE_CU(cuda.host_get_flags(&flags, pointer));
    LADE_EXPECT_EQ_UINT(flags, all_flags[i] | CU_MEMHOSTALLOC_DEVICEMAP); /* what the loopback says of its own */
    LADE_CU(cuda.host_get_device_pointer(&alias, pointer, 0));
    LADE_EXPECT_EQ_UINT(alias, (CUdeviceptr)(uintptr_t)pointer);
    LADE_CU(cuda.pointer_get_attributes(4, wanted, answers, inner));
    LADE_EXPECT_EQ_UINT(start, (CUdeviceptr)(uintptr_t)pointer);
    LADE_EXPECT_EQ_SIZE(bytes, 10000);
    LADE_EXPECT_EQ_UINT(type, CU_MEMORYTYPE_HOST);
    LADE_EXPECT_EQ_UINT(attribute_alias, inner);
    LADE_CU(cuda.free_host(pointer));
  }
  finish();
}

enum {
  ALREADY_REGISTERED = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
  NOT_REGISTERED = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
};

static int registering(char *pointer, size_t bytes) {
  return (int)cuda.host_register(pointer, bytes, CU_MEMHOSTREGISTER_PORTABLE);
}
static int unregistering(char *pointer) { return (int)cuda.host_unregister(pointer); }
static char *page_of(char *pointer) { return pointer - (uintptr_t)pointer % SMALL; }

/* Of memory that lade serves (flags 0) as of memory that the driver does. */
static void registering_check(unsigned flags) {
  char *pointer = NULL, *small = NULL;
  LADE_CU(cuda.host_alloc((void **)&pointer, MIB, flags));
  LADE_CU(cuda.host_alloc((void **)&small, 100, flags));
  char *page = page_of(pointer);
  LADE_EXPECT_EQ_INT(registering(page + SMALL, SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page + SMALL, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page_of(pointer + MIB - 1), 2 * SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page - 4 * SMALL, 8 * SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page_of(small), SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(unregistering(pointer), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(unregistering(pointer + SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(unregistering(pointer + MIB - 1), CUDA_ERROR_INVALID_VALUE);
  memset(pointer, 1, MIB); /* it is pinned and the program's still */
  LADE_CU(cuda.free_host(small));
  LADE_CU(cuda.free_host(pointer));
  LADE_EXPECT_EQ_INT(unregistering(pointer), NOT_REGISTERED);
  LADE_EXPECT_EQ_INT(unregistering(pointer + SMALL), NOT_REGISTERED);
}

LADE_TEST(PreloadCalls, RegisteringWhatIsPinned) {
  START();
  registering_check(0);
  registering_check(CU_MEMHOSTALLOC_WRITECOMBINED);
  finish();
}

/* What lade keeps is not the program's: the driver is asked, and refuses. Between two blocks, too. */
LADE_TEST(PreloadCalls, RegisteringWhatIsCached) {
  START();
  char *blocks[3], *middle;
  for (int i = 0; i < 3; i++) LADE_CU(cuda.host_alloc((void **)&blocks[i], 64 * SMALL, 0));
  middle = page_of(blocks[1] + SMALL - 1);
  LADE_CU(cuda.free_host(blocks[1]));
  uint64_t before = pins();
  LADE_EXPECT_EQ_INT(registering(middle, SMALL), ALREADY_REGISTERED);
  LADE_EXPECT_EQ_UINT(pins(), before + 1);
  LADE_EXPECT_EQ_INT(unregistering(middle), NOT_REGISTERED);
  for (int i = 0; i < 3; i += 2) LADE_CU(cuda.free_host(blocks[i]));
  finish();
}

LADE_TEST(PreloadCalls, RegisteringTheProgramsOwn) {
  START();
  void *served = NULL;
  char *own = aligned_alloc(SMALL, 4 * SMALL);
  LADE_CU(cuda.host_alloc(&served, SMALL, 0));
  LADE_EXPECT_EQ_INT(unregistering(own), NOT_REGISTERED);
  LADE_EXPECT_EQ_INT(registering(own, 2 * SMALL), CUDA_SUCCESS);
  LADE_EXPECT_EQ_INT(registering(own, SMALL), ALREADY_REGISTERED);
  LADE_EXPECT_EQ_INT(registering(own + SMALL, 2 * SMALL), ALREADY_REGISTERED);
  LADE_EXPECT_EQ_INT(unregistering(own + SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(unregistering(own), CUDA_SUCCESS);
  LADE_EXPECT_EQ_INT(unregistering(own), NOT_REGISTERED);
  LADE_CU(cuda.free_host(served));
  free(own);
  finish();
}

/* ---- What is not served ------------------------------------------------------------------------------------------ */

LADE_TEST(PreloadCalls, WrongPointersGetTheDriversAnswer) {
  START();
  char *pointer = NULL;
  int own = 0;
  LADE_CU(cuda.host_alloc((void **)&pointer, 4 * SMALL, 0));
  LADE_EXPECT_EQ_INT((int)cuda.free_host(NULL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.free_host(&own), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.free_host(pointer + 1), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.free_host(pointer + SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_CU(cuda.free_host(pointer));
  LADE_EXPECT_EQ_INT((int)cuda.free_host(pointer), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeHost"), 2); /* of NULL and of the stack: the driver is asked */
  finish();
}

LADE_TEST(PreloadCalls, OtherRequestsGoToTheDriver) {
  START();
  void *pointer = NULL;
  unsigned flags = 0;
  uint64_t before = hooks->calls("cuMemHostAlloc");
  LADE_CU(cuda.host_alloc(&pointer, SMALL, CU_MEMHOSTALLOC_WRITECOMBINED));
  LADE_CU(cuda.host_get_flags(&flags, pointer));
  LADE_EXPECT_EQ_UINT(flags, CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP);
  LADE_CU(cuda.free_host(pointer));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostAlloc"), before + 1);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemFreeHost"), 1);
  LADE_EXPECT_NE_INT((int)cuda.host_alloc(&pointer, 0, 0), CUDA_SUCCESS);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostAlloc"), before + 2);
  finish();
}

LADE_TEST(PreloadCalls, WithoutContextAsTheDriver) {
  void *pointer = &pointer;
  start_without_context();
  if (lade_test_has_failed()) return;
  LADE_EXPECT_EQ_INT((int)cuda.host_alloc(&pointer, SMALL, 0), CUDA_ERROR_NOT_INITIALIZED);
  LADE_EXPECT_EQ_INT((int)cuda.free_host(&pointer), CUDA_ERROR_NOT_INITIALIZED);
  LADE_CU(cuda.init(0));
  LADE_EXPECT_EQ_INT((int)cuda.host_alloc(&pointer, SMALL, 0), CUDA_ERROR_INVALID_CONTEXT);
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
}

/* ---- Order of streams -------------------------------------------------------------------------------------------- */

typedef CUresult copy_queue(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream);

static CUresult queue_h2d(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  return as->h2d_async(device, host, bytes, stream);
}
static CUresult queue_d2h(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  return as->d2h_async(host, device, bytes, stream);
}
static CUresult queue_any(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  return as->copy_async(device, (CUdeviceptr)(uintptr_t)host, bytes, stream);
}
static CUresult queue_2d(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = bytes / 4,
                        .srcY = 1,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = device,
                        .dstPitch = bytes / 4,
                        .WidthInBytes = bytes / 4,
                        .Height = 3};
  return as->copy_2d_async(&copy, stream);
}

/* A block in use by a stream is not handed out again, however often it is asked for; afterwards it is. */
static void order_check(const program *as, copy_queue *queue, CUstream stream) {
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(as->mem_alloc(&device, MIB));
  LADE_CU(as->host_alloc(&block, MIB, 0));
  memset(block, 5, MIB);
  hold_begin(&held, as, stream);
  LADE_CU(queue(as, device, block, MIB, stream));
  LADE_CU(as->free_host(block));
  LADE_EXPECT(stays_away(as, block, MIB));
  hold_end(&held);
  LADE_CU(as->stream_synchronize(stream));
  LADE_EXPECT(comes_back(as, block, MIB));
  LADE_CU(as->mem_free(device));
}

LADE_TEST(PreloadOrder, OfEveryStreamAndCopy) {
  START();
  copy_queue *const queues[] = {queue_h2d, queue_d2h, queue_any, queue_2d};
  for (unsigned flags = 0; flags <= CU_STREAM_NON_BLOCKING; flags++) {
    CUstream stream;
    LADE_CU(cuda.stream_create(&stream, flags));
    for (size_t i = 0; i < sizeof queues / sizeof queues[0]; i++) order_check(&cuda, queues[i], stream);
    LADE_CU(cuda.stream_synchronize(stream));
    LADE_CU(cuda.stream_destroy(stream));
  }
  order_check(&cuda, queue_h2d, NULL);
  order_check(&cuda_ptsz, queue_h2d, NULL);
  order_check(&cuda_ptsz, queue_d2h, CU_STREAM_PER_THREAD);
  finish();
}

/* A stream of the program works on while its handle is gone. */
LADE_TEST(PreloadOrder, OfDestroyedStreams) {
  START();
  for (unsigned flags = 0; flags <= CU_STREAM_NON_BLOCKING; flags++) {
    hold held;
    void *block = NULL;
    CUdeviceptr device = 0;
    CUstream stream;
    LADE_CU(cuda.mem_alloc(&device, MIB));
    LADE_CU(cuda.host_alloc(&block, MIB, 0));
    LADE_CU(cuda.stream_create(&stream, flags));
    hold_begin(&held, &cuda, stream);
    LADE_CU(cuda.h2d_async(device, block, MIB, stream));
    LADE_CU(cuda.stream_destroy(stream));
    LADE_CU(cuda.free_host(block));
    LADE_EXPECT(stays_away(&cuda, block, MIB));
    hold_end(&held);
    LADE_CU(cuda.ctx_synchronize());
    LADE_EXPECT(comes_back(&cuda, block, MIB));
    LADE_CU(cuda.mem_free(device));
  }
  finish();
}

/* In mode safe also what no copy shows: here a host function, which stands for a kernel. */
LADE_TEST(PreloadOrder, SafeCoversWhatIsNotSeen) {
  START();
  if (is_fast()) {
    finish();
    return;
  }
  hold held;
  void *block = NULL;
  CUstream stream;
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

static void *hold_end_later(void *user) {
  usleep(20000);
  hold_end(user);
  return NULL;
}

/* The driver's own free waits for the device. So does this one, where more is pending than LADE_PRELOAD_PENDING_BYTES. */
LADE_TEST(PreloadOrder, FreeWaitsAtTheLimit) {
  START();
  hold held;
  pthread_t thread;
  enum { BLOCKS = 12 };
  void *blocks[BLOCKS];
  CUdeviceptr device = 0;
  CUstream stream;
  LADE_CU(cuda.mem_alloc(&device, 2 * MIB));
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.host_alloc(&blocks[i], 2 * MIB, 0));
  hold_begin(&held, &cuda, stream);
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.h2d_async(device, blocks[i], 2 * MIB, stream));
  for (int i = 0; i < BLOCKS / 2; i++) LADE_CU(cuda.free_host(blocks[i]));
  LADE_EXPECT(!atomic_load(&held.is_released)); /* below the limit: at once */
  pthread_create(&thread, NULL, hold_end_later, &held);
  for (int i = BLOCKS / 2; i < BLOCKS; i++) LADE_CU(cuda.free_host(blocks[i]));
  LADE_EXPECT(atomic_load(&held.is_released));
  pthread_join(thread, NULL);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* Frees and allocs during a capture leave it alone; what was freed comes back after it. */
static void capture_check(const program *as, CUstream stream) {
  void *block = NULL, *captured = NULL;
  char out[SMALL] = {0};
  CUdeviceptr device = 0;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  LADE_CU(as->mem_alloc(&device, MIB));
  LADE_CU(as->host_alloc(&block, MIB, 0));
  LADE_CU(as->host_alloc(&captured, MIB, 0));
  memset(captured, 7, MIB);
  LADE_CU(as->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  LADE_CU(as->h2d_async(device, captured, MIB, stream));
  LADE_CU(as->free_host(block));
  for (int i = 0; i < 40; i++) {
    void *other = NULL;
    LADE_CU(as->host_alloc(&other, MIB / 8, 0));
    LADE_CU(as->free_host(other));
  }
  LADE_CU(as->stream_end_capture(stream, &graph));
  LADE_ASSERT(graph != NULL);
  LADE_CU(as->graph_instantiate(&exec, graph, 0));
  hold held;
  hold_begin(&held, as, stream);
  LADE_CU(as->graph_launch(exec, stream));
  LADE_CU(as->free_host(captured)); /* the launch is under way */
  LADE_EXPECT(stays_away(as, captured, MIB));
  hold_end(&held);
  LADE_CU(as->ctx_synchronize());
  LADE_CU(as->d2h(out, device, sizeof out));
  LADE_EXPECT_EQ_INT(out[0], 7);
  LADE_CU(as->graph_exec_destroy(exec));
  LADE_CU(as->graph_destroy(graph));
  LADE_EXPECT(comes_back(as, captured, MIB));
  LADE_EXPECT(comes_back(as, block, MIB));
  LADE_CU(as->mem_free(device));
}

LADE_TEST(PreloadCapture, BlocksWaitForItsEnd) {
  START();
  CUstream stream;
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  capture_check(&cuda, stream);
  capture_check(&cuda_ptsz, stream);
  capture_check(&cuda_ptsz, NULL);
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* Its stream is destroyed in the middle; what was freed meanwhile must not wait for ever. */
LADE_TEST(PreloadCapture, ThatIsGivenUp) {
  START();
  CUstream stream;
  void *block = NULL;
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_EXPECT_NE_INT((int)cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  LADE_CU(cuda.free_host(block));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  finish();
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

LADE_TEST(PreloadContexts, ResetEndsTheMemoryOfItsDevice) {
  START();
  CUcontext second;
  void *here = NULL, *there = NULL;
  CUcontext first;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.host_alloc(&here, MIB, 0));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.host_alloc(&there, MIB, 0));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 2);
  LADE_CU(cuda.primary_reset(0));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 1);
  LADE_EXPECT_NE_INT((int)cuda.free_host(here), CUDA_SUCCESS);
  memset(there, 1, MIB);
  LADE_CU(cuda.free_host(there));
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
  LADE_EXPECT_EQ_UINT(hooks->retained(1), 0);
  LADE_CU(cuda.primary_retain(&first, 0)); /* it lives again */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.host_alloc(&here, MIB, 0));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 1);
  LADE_CU(cuda.free_host(here));
  LADE_CU(cuda.primary_release(0));
  finish();
}

/* Freed while another device's context is current, or in a thread without one; with work of that device under way. */
LADE_TEST(PreloadContexts, FreesFromAnywhere) {
  START();
  CUcontext first, second;
  CUstream stream;
  CUdeviceptr device = 0;
  hold held;
  void *block = NULL;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.host_alloc(&block, MIB, CU_MEMHOSTALLOC_PORTABLE));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  LADE_CU(cuda.mem_alloc(&device, MIB));
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.free_host(block));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_EXPECT(stays_away(&cuda, block, MIB)); /* a stream of the other device uses it */
  hold_end(&held);
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.mem_free(device));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.primary_release(1));
  finish();
}

LADE_TEST(PreloadContexts, OfTheProgramsOwn) {
  START();
  CUcontext first, own;
  void *block = NULL, *passed = NULL;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  LADE_CU(cuda.ctx_create(&own, 0, 0));
  uint64_t before = hooks->calls("cuMemHostAlloc");
  LADE_CU(cuda.host_alloc(&passed, MIB, 0));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostAlloc"), before + 1); /* the driver's, and freed by it */
  LADE_CU(cuda.free_host(block));
  LADE_CU(cuda.free_host(passed));
  LADE_CU(cuda.ctx_destroy(own));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  finish();
}

/* ---- Threads, fork ----------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 60 };
typedef struct worker {
  pthread_t thread;
  CUcontext context;
  int number;
} worker;

static void work_round(CUstream stream, CUdeviceptr device, int value) {
  enum { BYTES = 64 * 1024 };
  char *to = NULL, *back = NULL;
  LADE_CU(cuda.host_alloc((void **)&to, BYTES, 0));
  LADE_CU(cuda.alloc_host((void **)&back, BYTES));
  memset(to, value, BYTES);
  LADE_CU(cuda.h2d_async(device, to, BYTES, stream));
  LADE_CU(cuda.free_host(to)); /* with the copy in flight */
  LADE_CU(cuda.d2h_async(back, device, BYTES, stream));
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_EXPECT_EQ_INT(back[0], (char)value);
  LADE_EXPECT_EQ_INT(back[BYTES - 1], (char)value);
  LADE_CU(cuda.free_host(back));
}

static void *work(void *user) {
  worker *own = user;
  CUstream stream;
  CUdeviceptr device = 0;
  LADE_CU(cuda.ctx_set_current(own->context));
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  LADE_CU(cuda.mem_alloc(&device, MIB));
  for (int i = 0; i < ROUNDS; i++) work_round(stream, device, own->number * ROUNDS + i);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  LADE_CU(cuda.ctx_set_current(NULL));
  return NULL;
}

LADE_TEST(PreloadThreads, CopyAndFree) {
  START();
  worker workers[THREADS];
  CUcontext context;
  LADE_CU(cuda.ctx_get_current(&context));
  for (int i = 0; i < THREADS; i++) {
    workers[i].context = context;
    workers[i].number = i;
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  finish();
}

/* Captures begin and end while other threads free: none is broken. */
static void *capture_often(void *user) {
  worker *own = user;
  CUstream stream;
  LADE_CU(cuda.ctx_set_current(own->context));
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < ROUNDS; i++) {
    CUgraph graph = NULL;
    LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    sched_yield();
    LADE_CU(cuda.stream_end_capture(stream, &graph));
    LADE_CU(cuda.graph_destroy(graph));
  }
  LADE_CU(cuda.stream_destroy(stream));
  return NULL;
}

static void *free_often(void *user) {
  worker *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  for (int i = 0; i < 20 * ROUNDS; i++) {
    void *block = NULL;
    LADE_CU(cuda.host_alloc(&block, SMALL, 0));
    LADE_CU(cuda.free_host(block));
  }
  return NULL;
}

LADE_TEST(PreloadThreads, CaptureAndFree) {
  START();
  worker workers[THREADS];
  CUcontext context;
  LADE_CU(cuda.ctx_get_current(&context));
  for (int i = 0; i < THREADS; i++) {
    workers[i].context = context;
    pthread_create(&workers[i].thread, NULL, i % 2 == 0 ? capture_often : free_often, &workers[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  finish();
}

typedef struct one_block {
  pthread_barrier_t ready;
  void *block;
  atomic_int freed;
} one_block;

static void *free_one(void *user) {
  one_block *own = user;
  pthread_barrier_wait(&own->ready);
  if (cuda.free_host(own->block) == CUDA_SUCCESS) atomic_fetch_add(&own->freed, 1);
  return NULL;
}

/* B1 of preload/blocks.h. */
LADE_TEST(PreloadThreads, OneOfTwoFreesWins) {
  START();
  for (int i = 0; i < 40; i++) {
    one_block shared = {.block = NULL};
    pthread_t threads[2];
    pthread_barrier_init(&shared.ready, NULL, 2);
    LADE_CU(cuda.host_alloc(&shared.block, SMALL, 0));
    for (int t = 0; t < 2; t++) pthread_create(&threads[t], NULL, free_one, &shared);
    for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    LADE_EXPECT_EQ_INT(atomic_load(&shared.freed), 1);
    pthread_barrier_destroy(&shared.ready);
  }
  finish();
}

/* The child gets what the driver says; the parent's blocks are untouched. */
LADE_TEST(PreloadFork, ChildAsksTheDriver) {
  START();
  void *block = NULL, *other = NULL;
  int status = 0;
  LADE_CU(cuda.host_alloc(&block, SMALL, 0));
  memset(block, 3, SMALL);
  uint64_t before = hooks->calls("cuMemFreeHost");
  pid_t child = fork();
  if (child == 0) {
    bool passed = cuda.free_host(block) != CUDA_SUCCESS && hooks->calls("cuMemFreeHost") == before + 1;
    _exit(passed ? 0 : 1);
  }
  LADE_EXPECT_EQ_INT((int)waitpid(child, &status, 0), (int)child);
  LADE_EXPECT_EQ_INT(status, 0);
  LADE_EXPECT_EQ_INT(((char *)block)[0], 3);
  LADE_CU(cuda.host_alloc(&other, SMALL, 0));
  LADE_CU(cuda.free_host(other));
  LADE_CU(cuda.free_host(block));
  finish();
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

/* An alloc, a copy out of it in flight, a free. The program sees success, or the driver's own refusal. */
static void faulty_round(CUstream stream, CUdeviceptr device, CUresult fault) {
  void *block = NULL;
  CUresult code = cuda.host_alloc(&block, MIB, 0);
  LADE_EXPECT(code == CUDA_SUCCESS || code == fault);
  if (code != CUDA_SUCCESS) return;
  memset(block, 9, MIB);
  code = cuda.h2d_async(device, block, MIB, stream);
  LADE_EXPECT(code == CUDA_SUCCESS || code == fault);
  code = cuda.free_host(block);
  LADE_EXPECT(code == CUDA_SUCCESS || code == fault);
}

static const char *const faulty[] = {"cuMemHostRegister",
                                     "cuMemHostUnregister",
                                     "cuMemHostAlloc",
                                     "cuEventCreate",
                                     "cuEventRecord",
                                     "cuEventQuery",
                                     "cuCtxRecordEvent",
                                     "cuEventSynchronize",
                                     "cuCtxPushCurrent",
                                     "cuCtxGetDevice",
                                     "cuDeviceGetCount",
                                     "cuDeviceGet",
                                     "cuStreamGetCtx",
                                     "cuStreamGetId",
                                     "cuStreamIsCapturing",
                                     "cuCtxSynchronize",
                                     "cuEventDestroy",
                                     "cuDevicePrimaryCtxGetState",
                                     "cuThreadExchangeStreamCaptureMode",
                                     NULL};

/* From the first call on: the pool is opened under the fault. Afterwards everything works, or the driver serves. */
LADE_TEST_P(PreloadFaults, OfEachDriverCall, faulty, symbol) {
  for (uint64_t nth = 0; nth <= 3; nth++) {
    START();
    CUstream stream;
    CUdeviceptr device = 0;
    LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    LADE_CU(cuda.mem_alloc(&device, MIB));
    hooks->fail(symbol, nth, CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 24; i++) faulty_round(stream, device, CUDA_ERROR_OUT_OF_MEMORY);
    hooks->fail_clear();
    LADE_CU(cuda.stream_synchronize(stream));
    for (int i = 0; i < 8; i++) faulty_round(stream, device, CUDA_SUCCESS);
    LADE_CU(cuda.stream_synchronize(stream));
    LADE_CU(cuda.stream_destroy(stream));
    LADE_CU(cuda.mem_free(device));
    finish();
  }
}
