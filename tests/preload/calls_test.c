/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: a program allocates pinned memory, copies and frees, in each mode of LADE_PRELOAD_MODE.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/preload/cases.h"

#ifdef TEST_LINKED
#include "preload/calls.h"
#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pending.h"
#include "preload/streams.h"
#endif

static bool is_fast(void) {
  const char *mode = getenv("LADE_PRELOAD_MODE");
  return mode != NULL && strcmp(mode, "fast") == 0;
}

static bool serves_device(void) {
  const char *device = getenv("LADE_PRELOAD_DEVICE");
  return device != NULL && strcmp(device, "off") != 0;
}

static uint64_t pins(void) { return hooks->calls("cuMemHostRegister") + hooks->calls("cuMemHostAlloc"); }

static bool comes_back(const program *as, const void *block, size_t bytes) {
  return handed_out(&pinned_memory, as, (uintptr_t)block, bytes, NULL, TRIES);
}
static bool stays_away(const program *as, const void *block, size_t bytes) {
  return !handed_out(&pinned_memory, as, (uintptr_t)block, bytes, NULL, TRIES_WHILE_HELD);
}

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

#ifdef TEST_LINKED
/* A program that is linked with the driver calls the hook on copies in every mode. In mode safe it told the pool of the stream, which
 * nobody retired: the free recorded an event on a stream that was gone. */
LADE_TEST(PreloadCalls, LinkedCopiesAreWatchedInModeFastAlone) {
  START();
  CUdeviceptr device = 0;
  void *block = NULL;
  uint64_t before = ladei_preload_counted(PRELOAD_COPIES_WATCHED);
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  LADE_CU(hook_memcpy_h2d_async(device, block, MIB, stream));
  LADE_EXPECT_EQ_UINT(ladei_preload_counted(PRELOAD_COPIES_WATCHED), before + (is_fast() ? 1 : 0));
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* As programs from before CUDA 11.7 ask for them. */
LADE_TEST(PreloadCalls, FirstFormsOfCallsOnValues) {
  START();
  const struct {
    const char *symbol;
    void *hook, *per_thread_hook;
  } forms[] = {
      {"cuStreamWaitValue32", (void *)hook_stream_wait_value_32_1, (void *)hook_stream_wait_value_32_1_ptsz},
      {"cuStreamWaitValue64", (void *)hook_stream_wait_value_64_1, (void *)hook_stream_wait_value_64_1_ptsz},
      {"cuStreamWriteValue32", (void *)hook_stream_write_value_32_1, (void *)hook_stream_write_value_32_1_ptsz},
      {"cuStreamWriteValue64", (void *)hook_stream_write_value_64_1, (void *)hook_stream_write_value_64_1_ptsz},
      {"cuStreamBatchMemOp", (void *)hook_stream_batch_mem_op_1, (void *)hook_stream_batch_mem_op_1_ptsz},
  };
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    void *found = NULL;
    int status = 0;
    LADE_CU(first_look_up()(forms[i].symbol, &found, 11060, 0, &status));
    LADE_EXPECT((found == forms[i].hook) == is_fast());
    LADE_CU(first_look_up()(forms[i].symbol, &found, 11060, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    LADE_EXPECT((found == forms[i].per_thread_hook) == is_fast());
  }
  finish();
}
#endif

/* ---- What is said about memory ----------------------------------------------------------------------------------- */

/* The driver's free of the memory that lade asked it about waits for the device: the call hung where a stream waited for its thread. */
LADE_TEST(PreloadCalls, AnswersWithoutWaitingForTheDevice) {
  START();
  hold held;
  void *block = NULL;
  unsigned flags = 0;
  CUstream stream = stream_make();
  LADE_CU(cuda.host_alloc(&block, SMALL, CU_MEMHOSTALLOC_PORTABLE));
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.host_get_flags(&flags, block));
  LADE_EXPECT_EQ_UINT(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  hold_end(&held);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.free_host(block));
  finish();
}

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

/* Bug: each call left the memory that lade asked about behind, where the driver did not answer. */
LADE_TEST(PreloadCalls, FlagsThatTheDriverDoesNotTellLeaveNoMemory) {
  START();
  enum { CALLS = 3 };
  void *block = NULL;
  unsigned flags = 99;
  lade_soft_report before, after;
  lade_soft_report_init(&before);
  lade_soft_report_init(&after);
  LADE_CU(cuda.alloc_host(&block, SMALL));
  LADE_EXPECT_OK(hooks->report(&before));
  uint64_t asked = hooks->calls("cuMemHostGetFlags");
  for (int i = 0; i < CALLS; i++) {
    hooks->fail("cuMemHostGetFlags", 1, CUDA_ERROR_UNKNOWN);
    LADE_CU(cuda.host_get_flags(&flags, block));
    LADE_EXPECT_EQ_UINT(flags, 0);
  }
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostGetFlags"), asked + CALLS);
  LADE_EXPECT_OK(hooks->report(&after));
  LADE_EXPECT_EQ_UINT(after.pinned_ranges, before.pinned_ranges);
  LADE_CU(cuda.free_host(block));
  finish();
}

/* One thread that asks for flags while another one does for the first time. */
typedef struct asker {
  pthread_t thread;
  CUcontext context;
  void *block;
  unsigned flags;
  atomic_bool is_done, was_started;
} asker;

static void *flags_ask(void *user) {
  asker *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  LADE_CU(cuda.host_get_flags(&own->flags, own->block));
  atomic_store(&own->is_done, true);
  return NULL;
}

/* It may end at once, or wait for the call that this is in. */
static void flags_ask_beside(void *user) {
  enum { MOST_PAUSES = 200 };
  asker *own = user;
  atomic_store(&own->was_started, true);
  LADE_EXPECT_EQ_INT(pthread_create(&own->thread, NULL, flags_ask, own), 0);
  for (int i = 0; i < MOST_PAUSES && !atomic_load(&own->is_done); i++) usleep(1000);
}

/* Bug: each of several threads that were the first to ask left a page behind. */
LADE_TEST(PreloadCalls, FirstAskersForFlagsLeaveOnePage) {
  START();
  asker other = {.flags = 99};
  unsigned flags = 99;
  lade_soft_report before, after;
  lade_soft_report_init(&before);
  lade_soft_report_init(&after);
  LADE_CU(cuda.alloc_host(&other.block, SMALL));
  LADE_CU(cuda.ctx_get_current(&other.context));
  LADE_EXPECT_OK(hooks->report(&before));
  hooks->interrupt("cuMemAllocHost", flags_ask_beside, &other);
  LADE_CU(cuda.host_get_flags(&flags, other.block));
  LADE_ASSERT(atomic_load(&other.was_started));
  pthread_join(other.thread, NULL);
  LADE_EXPECT_EQ_UINT(other.flags, flags);
  LADE_EXPECT_OK(hooks->report(&after));
  LADE_EXPECT_EQ_UINT(after.pinned_ranges, before.pinned_ranges + 1);
  LADE_CU(cuda.free_host(other.block));
  finish();
}

/* The driver knows what lade keeps as memory that was registered. */
LADE_TEST(PreloadCalls, FlagsOfWhatWasFreedAreNone) {
  START();
  char *block = NULL;
  unsigned flags = 0;
  LADE_CU(cuda.host_alloc((void **)&block, 4 * SMALL, 0));
  LADE_CU(cuda.host_get_flags(&flags, block + 3 * SMALL));
  LADE_CU(cuda.free_host(block));
  uint64_t before = hooks->calls("cuMemHostGetFlags");
  LADE_EXPECT_EQ_INT((int)cuda.host_get_flags(&flags, block), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT((int)cuda.host_get_flags(&flags, block + 3 * SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostGetFlags"), before);
  finish();
}

/* What each call says of an address, beside its code. */
static int device_pointer_of(const char *pointer) {
  CUdeviceptr alias;
  return (int)cuda.host_get_device_pointer(&alias, (void *)(uintptr_t)pointer, 0);
}
static int flags_of(const char *pointer) {
  unsigned flags;
  return (int)cuda.host_get_flags(&flags, (void *)(uintptr_t)pointer);
}
static int type_of(const char *pointer) {
  unsigned type = 0;
  return (int)cuda.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pointer);
}
static size_t range_of(const char *pointer) {
  size_t bytes = 77;
  CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
  void *answer = &bytes;
  LADE_CU(cuda.pointer_get_attributes(1, &wanted, &answer, (CUdeviceptr)(uintptr_t)pointer));
  return bytes;
}

static void nobodys_check(const char *pointer) {
  static const char own;
  LADE_EXPECT_EQ_INT(flags_of(pointer), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(device_pointer_of(pointer), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(type_of(pointer), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_SIZE(range_of(pointer), range_of(&own));
}

static void blocks_check(const char *pointer, size_t bytes) {
  LADE_EXPECT_EQ_INT(flags_of(pointer), CUDA_SUCCESS);
  LADE_EXPECT_EQ_INT(device_pointer_of(pointer), CUDA_SUCCESS);
  LADE_EXPECT_EQ_INT(type_of(pointer), CUDA_SUCCESS);
  LADE_EXPECT_EQ_SIZE(range_of(pointer), bytes);
}

/* Bug: bytes behind what was asked for answered as part of the block. */
LADE_TEST(PreloadCalls, BytesBehindABlockAreNobodys) {
  START();
  const size_t sizes[] = {100, 10000, MIB + 1};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    char *block = NULL;
    LADE_CU(cuda.host_alloc((void **)&block, sizes[i], 0));
    blocks_check(block, sizes[i]);
    blocks_check(block + sizes[i] - 1, sizes[i]);
    nobodys_check(block + sizes[i]);
    nobodys_check(block + sizes[i] + 27);
    LADE_EXPECT_EQ_INT((int)cuda.host_unregister(block + sizes[i] + 27), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    LADE_CU(cuda.free_host(block));
  }
  finish();
}

/* Bug: the driver gave a device pointer, and the attributes of the segment, of memory that the program had freed. */
LADE_TEST(PreloadCalls, WhatWasFreedIsNobodys) {
  START();
  char *block = NULL, *neighbour = NULL;
  LADE_CU(cuda.host_alloc((void **)&block, 4 * SMALL, 0));
  LADE_CU(cuda.host_alloc((void **)&neighbour, 4 * SMALL, 0));
  LADE_CU(cuda.free_host(block));
  nobodys_check(block);
  nobodys_check(block + 3 * SMALL);
  blocks_check(neighbour, 4 * SMALL);
  LADE_CU(cuda.free_host(neighbour));
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
  enum { REST = 5000 }; /* the driver keeps the rest of its second page */
  char *pointer = NULL, *small = NULL, *rest = NULL;
  LADE_CU(cuda.host_alloc((void **)&pointer, MIB, flags));
  LADE_CU(cuda.host_alloc((void **)&small, 100, flags));
  LADE_CU(cuda.host_alloc((void **)&rest, REST, flags));
  char *page = page_of(pointer);
  LADE_EXPECT_EQ_INT(registering(page + SMALL, SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page + SMALL, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page_of(pointer + MIB - 1), 2 * SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page - 4 * SMALL, 8 * SMALL), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(page_of(small), SMALL), CUDA_ERROR_INVALID_VALUE);
  /* Bytes of theirs were taken for what their whole pages are. */
  LADE_EXPECT_EQ_INT(registering(rest + 1, SMALL - 1), CUDA_ERROR_INVALID_VALUE);
  LADE_EXPECT_EQ_INT(registering(rest + REST, 2 * SMALL - REST), ALREADY_REGISTERED);
  LADE_CU(cuda.free_host(rest));
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
  LADE_CU(cuda.free_host(NULL));
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
  LADE_CU(cuda.host_alloc(&pointer, 0, 0)); /* the driver has nothing against it */
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

/* Its address is a device's, too. */
static CUresult queue_2d_as_device(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = (CUdeviceptr)(uintptr_t)host,
                        .srcPitch = bytes / 4,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = device,
                        .dstPitch = bytes / 4,
                        .WidthInBytes = bytes / 4,
                        .Height = 3};
  return as->copy_2d_async(&copy, stream);
}
static char pageable[1 << 20];
static CUresult queue_h2d_to_block(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  (void)device;
  return as->h2d_async((CUdeviceptr)(uintptr_t)host, pageable, bytes, stream);
}
static CUresult queue_d2h_from_block(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  (void)device;
  return as->d2h_async(pageable, (CUdeviceptr)(uintptr_t)host, bytes, stream);
}

static CUresult queue_write_32(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  (void)device, (void)bytes;
  return as->stream_write_32(stream, (CUdeviceptr)(uintptr_t)host, 1, 0);
}
static CUresult queue_write_64(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  (void)device;
  return as->stream_write_64(stream, (CUdeviceptr)(uintptr_t)host + bytes - 8, 1, 0);
}
/* The value is there already. */
static CUresult queue_wait_32(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  (void)device, (void)bytes;
  return as->stream_wait_32(stream, (CUdeviceptr)(uintptr_t)host, 5, CU_STREAM_WAIT_VALUE_GEQ);
}
static CUresult queue_wait_64(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  (void)device, (void)bytes;
  return as->stream_wait_64(stream, (CUdeviceptr)(uintptr_t)host, 5, CU_STREAM_WAIT_VALUE_GEQ);
}
static CUresult queue_values(const program *as, CUdeviceptr device, void *host, size_t bytes, CUstream stream) {
  CUstreamBatchMemOpParams ops[2] = {{.memoryBarrier = {.operation = CU_STREAM_MEM_OP_BARRIER}},
                                     {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                                                     .address = (CUdeviceptr)(uintptr_t)host,
                                                     .value64 = 1}}};
  (void)device, (void)bytes;
  return as->stream_batch(stream, 2, ops, 0);
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
  copy_queue *const queues[] = {queue_h2d,          queue_d2h,          queue_any,           queue_2d,
                                queue_2d_as_device, queue_h2d_to_block, queue_d2h_from_block};
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

/* They were not seen in mode fast. */
LADE_TEST(PreloadOrder, OfValues) {
  START();
  copy_queue *const queues[] = {queue_write_32, queue_write_64, queue_wait_32, queue_wait_64, queue_values};
  CUstream stream = stream_make();
  for (size_t i = 0; i < sizeof queues / sizeof queues[0]; i++) {
    order_check(&cuda, queues[i], stream);
    order_check(&cuda_ptsz, queues[i], NULL);
  }
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* ---- Graphs that are made by hand -------------------------------------------------------------------------------- */

/* Adds a node that uses the block to a graph; gives a node, and an instance of it, other parameters, that use it. */
typedef struct node_kind {
  CUresult (*add)(CUgraphNode *out, CUgraph graph, void *block);
  CUresult (*set)(CUgraphNode node, void *block);
  CUresult (*exec_set)(CUgraphExec exec, CUgraphNode node, void *block);
} node_kind;

static CUDA_MEMSET_NODE_PARAMS fill_of(void *block) {
  return (CUDA_MEMSET_NODE_PARAMS){(CUdeviceptr)(uintptr_t)block, MIB / 2, 9, 1, SMALL, 2};
}
static CUresult fill_add(CUgraphNode *out, CUgraph graph, void *block) {
  CUDA_MEMSET_NODE_PARAMS fill = fill_of(block);
  return cuda.graph_add_fill(out, graph, NULL, 0, &fill, NULL);
}
static CUresult fill_set(CUgraphNode node, void *block) {
  CUDA_MEMSET_NODE_PARAMS fill = fill_of(block);
  return cuda.graph_fill_set(node, &fill);
}
static CUresult fill_exec_set(CUgraphExec exec, CUgraphNode node, void *block) {
  CUDA_MEMSET_NODE_PARAMS fill = fill_of(block);
  return cuda.graph_exec_fill_set(exec, node, &fill, NULL);
}

static CUDA_BATCH_MEM_OP_NODE_PARAMS values_of(CUstreamBatchMemOpParams *op, void *block) {
  *op = (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                  .address = (CUdeviceptr)(uintptr_t)block,
                                                  .value = 1}};
  return (CUDA_BATCH_MEM_OP_NODE_PARAMS){.count = 1, .paramArray = op};
}
static CUresult values_add(CUgraphNode *out, CUgraph graph, void *block) {
  CUstreamBatchMemOpParams op;
  CUDA_BATCH_MEM_OP_NODE_PARAMS values = values_of(&op, block);
  return cuda.graph_add_values(out, graph, NULL, 0, &values);
}
static CUresult values_set(CUgraphNode node, void *block) {
  CUstreamBatchMemOpParams op;
  CUDA_BATCH_MEM_OP_NODE_PARAMS values = values_of(&op, block);
  return cuda.graph_values_set(node, &values);
}
static CUresult values_exec_set(CUgraphExec exec, CUgraphNode node, void *block) {
  CUstreamBatchMemOpParams op;
  CUDA_BATCH_MEM_OP_NODE_PARAMS values = values_of(&op, block);
  return cuda.graph_exec_values_set(exec, node, &values);
}

/* The calls of CUDA 12.2, which take nodes of all kinds; as numbers and layouts, for headers that lack them. */
typedef struct any_node {
  CUgraphNodeType type;
  int reserved[3];
  union {
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_BATCH_MEM_OP_NODE_PARAMS values;
    long long room[29];
  } of;
  long long last;
} any_node;

static void *newer(const char *symbol) {
  void *found = NULL;
  int status = 0;
  LADE_CU(first_look_up()(symbol, &found, 12020, 0, &status));
  return found;
}
static CUresult any_add(CUgraphNode *out, CUgraph graph, any_node *node) {
  typedef CUresult add(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, any_node *);
  return ((add *)newer("cuGraphAddNode"))(out, graph, NULL, 0, node);
}
static CUresult any_set(CUgraphNode of, any_node *node) {
  typedef CUresult set(CUgraphNode, any_node *);
  return ((set *)newer("cuGraphNodeSetParams"))(of, node);
}
static CUresult any_exec_set(CUgraphExec exec, CUgraphNode of, any_node *node) {
  typedef CUresult set(CUgraphExec, CUgraphNode, any_node *);
  return ((set *)newer("cuGraphExecNodeSetParams"))(exec, of, node);
}

static any_node any_fill(void *block) {
  return (any_node){.type = CU_GRAPH_NODE_TYPE_MEMSET, .of.fill = fill_of(block)};
}
static any_node any_values(CUstreamBatchMemOpParams *op, void *block) {
  return (any_node){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .of.values = values_of(op, block)};
}
static CUresult any_fill_add(CUgraphNode *out, CUgraph graph, void *block) {
  any_node node = any_fill(block);
  return any_add(out, graph, &node);
}
static CUresult any_fill_set(CUgraphNode of, void *block) {
  any_node node = any_fill(block);
  return any_set(of, &node);
}
static CUresult any_fill_exec_set(CUgraphExec exec, CUgraphNode of, void *block) {
  any_node node = any_fill(block);
  return any_exec_set(exec, of, &node);
}
static CUresult any_values_add(CUgraphNode *out, CUgraph graph, void *block) {
  CUstreamBatchMemOpParams op;
  any_node node = any_values(&op, block);
  return any_add(out, graph, &node);
}
static CUresult any_values_set(CUgraphNode of, void *block) {
  CUstreamBatchMemOpParams op;
  any_node node = any_values(&op, block);
  return any_set(of, &node);
}
static CUresult any_values_exec_set(CUgraphExec exec, CUgraphNode of, void *block) {
  CUstreamBatchMemOpParams op;
  any_node node = any_values(&op, block);
  return any_exec_set(exec, of, &node);
}

/* One launch, of a graph that was made with the block (step 0), that got it later (1), or whose instance did (2). */
static void node_check(const node_kind *kind, int step, CUstream stream) {
  hold held;
  void *block = NULL, *other = NULL;
  CUgraph graph = NULL;
  CUgraphNode node = NULL;
  CUgraphExec exec = NULL;
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  LADE_CU(cuda.host_alloc(&other, MIB, 0));
  LADE_CU(cuda.graph_create(&graph, 0));
  LADE_CU(kind->add(&node, graph, step == 0 ? block : other));
  if (step == 1) LADE_CU(kind->set(node, block));
  LADE_CU(cuda.graph_instantiate(&exec, graph, 0));
  if (step == 2) LADE_CU(kind->exec_set(exec, node, block));
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.graph_launch(exec, stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.graph_exec_destroy(exec));
  LADE_CU(cuda.graph_destroy(graph));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.free_host(other));
}

/* They were not seen in mode fast. */
LADE_TEST(PreloadOrder, OfNodesMadeByHand) {
  START();
  static const node_kind kinds[] = {{fill_add, fill_set, fill_exec_set},
                                    {values_add, values_set, values_exec_set},
                                    {any_fill_add, any_fill_set, any_fill_exec_set},
                                    {any_values_add, any_values_set, any_values_exec_set}};
  CUstream stream = stream_make();
  for (int kind = 0; kind < (driver_version() >= 12020 ? 4 : 2); kind++)
    for (int step = 0; step < 3; step++) node_check(&kinds[kind], step, stream);
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* ---- Streams that are gone --------------------------------------------------------------------------------------- */

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

/* The driver's function of an exported name, as a program finds it that asks for the first one of its kind. */
static void *exported(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *found = library == NULL ? NULL : dlsym(library, name);
#ifdef TEST_LINKED
  found = found == NULL ? NULL : ladei_preload_hook_named(name, found);
#endif
  LADE_EXPECT(found != NULL);
  return found;
}

/* By the name that the function had before CUDA 4.0, and has in the driver still: it was not seen. */
LADE_TEST(PreloadOrder, OfStreamsDestroyedByTheirFirstName) {
  START();
  CUresult (*destroy)(CUstream) = (CUresult(*)(CUstream))exported("cuStreamDestroy");
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(destroy(stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* The driver refused, and the stream worked on: drivers from before cuCtxRecordEvent were asked about it no more. */
LADE_TEST(PreloadOrder, OfStreamsThatStay) {
  START();
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  hooks->fail("cuStreamDestroy", 1, CUDA_ERROR_INVALID_CONTEXT);
  LADE_EXPECT_NE_INT((int)cuda.stream_destroy(stream), CUDA_SUCCESS);
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* Nor did the streams of a context whose end the driver refused. */
LADE_TEST(PreloadOrder, OfContextsThatStay) {
  START();
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  CUstream stream = stream_make();
  hooks->fail("cuDevicePrimaryCtxReset", 1, CUDA_ERROR_NOT_PERMITTED);
  LADE_EXPECT_NE_INT((int)cuda.primary_reset(0), CUDA_SUCCESS);
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* Events of streams that were gone stayed until somebody looked for memory: for ever, in a program that has all that it needs. */
LADE_TEST(PreloadOrder, DestroyedStreamsLeaveNothingBehind) {
  START();
  void *block = NULL;
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  uint64_t before = soft_report().events;
  for (int i = 0; i < 100; i++) {
    CUstream stream = stream_make();
    LADE_CU(cuda.stream_synchronize(stream));
    LADE_CU(cuda.stream_destroy(stream));
  }
  LADE_EXPECT_LE_UINT(soft_report().events, before + 8);
  LADE_CU(cuda.free_host(block));
  finish();
}

/* Nor could an event be had for it, and its work was forgotten with it. */
LADE_TEST(PreloadOrder, OfDestroyedStreamsWithoutEvents) {
  START();
  pthread_t thread;
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  hooks->fail("cuEventCreate", 0, CUDA_ERROR_OUT_OF_MEMORY);
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, hold_end_later, &held), 0);
  LADE_CU(cuda.stream_destroy(stream));
  hooks->fail_clear();
  LADE_CU(cuda.free_host(block));
  for (int i = 0; i < TRIES_WHILE_HELD; i++) {
    void *other = NULL;
    LADE_CU(cuda.host_alloc(&other, MIB, 0));
    LADE_EXPECT(other != block || atomic_load(&held.is_released));
    LADE_CU(cuda.free_host(other));
  }
  pthread_join(thread, NULL);
  LADE_CU(cuda.ctx_synchronize());
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.mem_free(device));
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
  CUstream stream = stream_make();
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

static void copy_from(uintptr_t block, CUstream stream, void *device) {
  LADE_CU(cuda.h2d_async(*(CUdeviceptr *)device, (void *)block, 2 * MIB, stream));
}

/* As the driver's own free waits for the device. */
LADE_TEST(PreloadOrder, FreeWaitsAtTheLimit) {
  START();
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, 2 * MIB));
  free_waits_at_the_limit(&pinned_memory, copy_from, &device);
  LADE_CU(cuda.mem_free(device));
  finish();
}

static void *free_elsewhere(void *user) {
  LADE_CU(cuda.free_host(user));
  return NULL;
}

/* The same in a thread that has no context, where the driver says so to some questions. */
LADE_TEST(PreloadOrder, FreeWaitsWithoutContext) {
  START();
  enum { BYTES = 24 << 20 }; /* more than LADE_PRELOAD_PENDING_BYTES in fixture.c */
  CUdeviceptr device = 0;
  hold held;
  void *block = NULL;
  pthread_t frees, ends;
  LADE_CU(cuda.mem_alloc(&device, BYTES));
  LADE_CU(cuda.host_alloc(&block, BYTES, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, BYTES, stream));
  LADE_EXPECT_EQ_INT(pthread_create(&frees, NULL, free_elsewhere, block), 0);
  LADE_EXPECT_EQ_INT(pthread_create(&ends, NULL, hold_end_later, &held), 0);
  pthread_join(frees, NULL);
  LADE_EXPECT(atomic_load(&held.is_released));
  pthread_join(ends, NULL);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* In mode fast the free waited for uses of a stream that had ended where nobody saw it: for ever, since they stay pending. */
LADE_TEST(PreloadOrder, FreeWaitsForNoStreamThatEndedUnseen) {
  START();
  enum { BLOCKS = 12 }; /* more than LADE_PRELOAD_PENDING_BYTES in fixture.c */
  void *blocks[BLOCKS];
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, 2 * MIB));
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.host_alloc(&blocks[i], 2 * MIB, 0));
  CUstream stream = stream_make();
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.h2d_async(device, blocks[i], 2 * MIB, stream));
  LADE_CU(cuda.stream_synchronize(stream));
  hooks->end_stream(stream);
  alarm(60); /* one that hangs is a failure */
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.free_host(blocks[i]));
  alarm(0);
  LADE_CU(cuda.mem_free(device));
  finish_after_lost_streams();
}

/* The wait that ends does not end the uses: the stream's work goes on. */
LADE_TEST(PreloadOrder, OfStreamsThatEndedUnseen) {
  START();
  if (!is_fast()) { /* what a stream has queued that is gone, mode safe does not see */
    finish();
    return;
  }
  enum { BLOCKS = 12 };
  void *blocks[BLOCKS];
  CUdeviceptr device = 0;
  hold held;
  LADE_CU(cuda.mem_alloc(&device, 2 * MIB));
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.host_alloc(&blocks[i], 2 * MIB, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.h2d_async(device, blocks[i], 2 * MIB, stream));
  hooks->end_stream(stream);
  alarm(60);
  for (int i = 0; i < BLOCKS; i++) LADE_CU(cuda.free_host(blocks[i]));
  alarm(0);
  for (int i = 0; i < BLOCKS; i++) LADE_EXPECT(stays_away(&cuda, blocks[i], 2 * MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  LADE_CU(cuda.mem_free(device));
  finish_after_lost_streams();
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
  CUstream stream = stream_make();
  capture_check(&cuda, stream);
  capture_check(&cuda_ptsz, stream);
  capture_check(&cuda_ptsz, NULL);
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}

/* Its stream is destroyed in the middle; what was freed meanwhile must not wait for ever. */
LADE_TEST(PreloadCapture, ThatIsGivenUp) {
  START();
  void *block = NULL;
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_EXPECT_NE_INT((int)cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  LADE_CU(cuda.free_host(block));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  finish();
}

/* What the stream had queued before it captured runs on when it is destroyed. */
LADE_TEST(PreloadCapture, ThatIsGivenUpBehindOtherWork) {
  START();
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_CU(cuda.free_host(block));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* Where a stream was destroyed while it captured: in mode fast lade itself keeps its uses, and asks about the handle. */
static void lost_finish(void) {
  if (is_fast())
    finish_after_lost_streams();
  else
    finish();
}

/* The driver does not let everybody end the capture before its stream is destroyed; nor could an event be left behind then. */
LADE_TEST(PreloadCapture, ThatCannotBeGivenUpBehindOtherWork) {
  START();
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_CU(cuda.free_host(block));
  hooks->fail("cuStreamEndCapture", 1, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  if (!is_fast()) LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.mem_free(device));
  lost_finish();
}

/* Another stream gets the handle, as the software device has it where no sanitiser keeps memory back: in mode fast, where lade itself
 * keeps the uses, it is not taken for the one that is gone. */
LADE_TEST(PreloadCapture, OfADestroyedStreamWhoseHandleIsUsedAgain) {
  START();
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make(), others[8];
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_CU(cuda.free_host(block));
  hooks->fail("cuStreamEndCapture", 1, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  LADE_CU(cuda.stream_destroy(stream));
  for (int i = 0; i < 8; i++) others[i] = stream_make();
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  for (int i = 0; i < 8; i++) LADE_CU(cuda.stream_destroy(others[i]));
  LADE_CU(cuda.mem_free(device));
  lost_finish();
}

/* A stream that joins the capture of another one. */
static void capture_join(const program *as, CUstream origin, CUstream joining) {
  CUevent event = NULL;
  LADE_CU(as->event_create(&event, CU_EVENT_DISABLE_TIMING));
  LADE_CU(as->event_record(event, origin));
  LADE_CU(as->stream_wait_event(joining, event, 0));
  LADE_CU(as->event_destroy(event));
}

/* The same of a stream that joined the capture only: its work from before was forgotten with it. */
static void joined_check(const program *as, const char *fails) {
  hold held;
  pthread_t thread;
  void *block = NULL;
  CUdeviceptr device = 0;
  CUgraph graph = NULL;
  LADE_CU(as->mem_alloc(&device, MIB));
  LADE_CU(as->host_alloc(&block, MIB, 0));
  CUstream stream = stream_make(), other = stream_make();
  hold_begin(&held, as, other);
  LADE_CU(as->h2d_async(device, block, MIB, other));
  LADE_CU(as->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  if (fails != NULL) { /* it has to be waited for */
    LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, hold_end_later, &held), 0);
    CUevent event = NULL;
    LADE_CU(as->event_create(&event, CU_EVENT_DISABLE_TIMING));
    LADE_CU(as->event_record(event, stream));
    hooks->fail(fails, 0, CUDA_ERROR_OUT_OF_MEMORY);
    LADE_CU(as->stream_wait_event(other, event, 0));
    LADE_EXPECT(atomic_load(&held.is_released));
    hooks->fail_clear();
    LADE_CU(as->event_destroy(event));
    pthread_join(thread, NULL);
  } else {
    capture_join(as, stream, other);
  }
  LADE_CU(as->free_host(block));
  LADE_CU(as->stream_destroy(other));
  LADE_EXPECT_NE_INT((int)as->stream_end_capture(stream, &graph), CUDA_SUCCESS); /* it was given up */
  LADE_CU(as->stream_destroy(stream));
  if (fails == NULL) LADE_EXPECT(stays_away(as, block, MIB));
  if (fails == NULL) hold_end(&held);
  LADE_CU(as->ctx_synchronize());
  if (!is_fast()) LADE_EXPECT(comes_back(as, block, MIB));
  LADE_CU(as->mem_free(device));
}

LADE_TEST(PreloadCapture, ThatAStreamJoinedBehindOtherWork) {
  START();
  joined_check(&cuda, NULL);
  joined_check(&cuda_ptsz, NULL);
  lost_finish();
}

LADE_TEST(PreloadCapture, ThatAStreamJoinedWithoutEvents) {
  START();
  joined_check(&cuda, "cuEventCreate");
  lost_finish();
}

/* They leave nothing behind where the capture ends well, and are as good as new. */
LADE_TEST(PreloadCapture, ThatAStreamJoinedAndLeft) {
  START();
  hold held;
  void *block = NULL;
  CUdeviceptr device = 0;
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  CUstream stream = stream_make(), other = stream_make();
  for (int i = 0; i < 100; i++) {
    CUgraph graph = NULL;
    LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    capture_join(&cuda, stream, other);
    capture_join(&cuda, other, stream);
    LADE_CU(cuda.stream_end_capture(stream, &graph));
    LADE_CU(cuda.graph_destroy(graph));
  }
  LADE_EXPECT_LE_UINT(soft_report().events, 8);
  hold_begin(&held, &cuda, other);
  LADE_CU(cuda.h2d_async(device, block, MIB, other));
  LADE_CU(cuda.stream_destroy(other));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(stays_away(&cuda, block, MIB));
  hold_end(&held);
  LADE_CU(cuda.ctx_synchronize());
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* Another stream is destroyed while one captures in the strictest mode: the event that it leaves behind breaks nothing. */
LADE_TEST(PreloadCapture, BesideADestroyedStream) {
  START();
  void *block = NULL;
  CUgraph graph = NULL;
  LADE_CU(cuda.host_alloc(&block, SMALL, 0));
  CUstream stream = stream_make(), other = stream_make();
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  LADE_CU(cuda.stream_destroy(other));
  LADE_CU(cuda.stream_end_capture(stream, &graph));
  LADE_EXPECT(graph != NULL);
  LADE_CU(cuda.graph_destroy(graph));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.free_host(block));
  finish();
}

/* The end of the context that was current when the capture began let it be forgotten: "cuCtxRecordEvent while a stream of the context
 * captures". */
LADE_TEST(PreloadCapture, IsOfTheStreamsContext) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  void *block = NULL;
  CUcontext first, own;
  CUgraph graph = NULL;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.host_alloc(&block, LARGE, 0));
  CUstream stream = stream_make();
  LADE_CU(cuda.ctx_create(&own, 0, 0));
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_CU(cuda.ctx_destroy(own));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.free_host(block));
  LADE_CU(cuda.stream_end_capture(stream, &graph));
  LADE_CU(cuda.graph_destroy(graph));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT(comes_back(&cuda, block, LARGE));
  finish();
}

static void free_block(void *block) { LADE_CU(cuda.free_host(block)); }

/* The gate was opened before the driver knew of it, so another thread's free was recorded: "cuCtxRecordEvent while a stream of the
 * context captures". The driver does not let everybody end the capture first. */
LADE_TEST(PreloadCapture, EndsWithItsStream) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  void *block = NULL;
  LADE_CU(cuda.host_alloc(&block, LARGE, 0));
  CUstream stream = stream_make();
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  hooks->fail("cuStreamEndCapture", 1, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  hooks->interrupt("cuStreamDestroy", free_block, block);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_EXPECT(comes_back(&cuda, block, LARGE));
  finish();
}

typedef struct next_capture {
  CUstream stream;
  bool has_begun;
} next_capture;

static void capture_begin(void *user) {
  next_capture *next = user;
  LADE_CU(cuda.stream_begin_capture(next->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  next->has_begun = true;
}

/* A thread that asks the driver sees the end of a capture before the call that ended it has returned, and begins the next one. The first
 * was taken for going on, and nothing was recorded any more. */
LADE_TEST(PreloadCapture, BeginsAnewAtOnce) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  void *block = NULL;
  CUgraph graphs[2] = {NULL, NULL};
  next_capture next = {.has_begun = false};
  LADE_CU(cuda.host_alloc(&block, LARGE, 0));
  next.stream = stream_make();
  LADE_CU(cuda.stream_begin_capture(next.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  hooks->interrupt("cuStreamIsCapturing", capture_begin, &next); /* between the driver's call and the hook's end */
  LADE_CU(cuda.stream_end_capture(next.stream, &graphs[0]));
  hooks->interrupt("", NULL, NULL);
  if (!next.has_begun) capture_begin(&next); /* the hook asks nothing more */
  LADE_CU(cuda.stream_end_capture(next.stream, &graphs[1]));
  for (int i = 0; i < 2; i++) LADE_CU(cuda.graph_destroy(graphs[i]));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(comes_back(&cuda, block, LARGE));
  LADE_CU(cuda.stream_destroy(next.stream));
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
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 4); /* of each device a segment, and the page that was tried first */
  LADE_CU(cuda.primary_reset(0));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 2);
  LADE_EXPECT_NE_INT((int)cuda.free_host(here), CUDA_SUCCESS);
  memset(there, 1, MIB);
  LADE_CU(cuda.free_host(there));
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
  LADE_EXPECT_EQ_UINT(hooks->retained(1), 0);
  LADE_CU(cuda.primary_retain(&first, 0)); /* it lives again */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.host_alloc(&here, MIB, 0));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 2);
  LADE_CU(cuda.free_host(here));
  LADE_CU(cuda.primary_release(0));
  finish();
}

/* Another thread, which retains the context while this one's last release ends the memory of its device. */
typedef struct newcomer {
  pthread_t thread;
  sem_t has_memory;
  char *block;
  CUdeviceptr device;
} newcomer;

static void *newcomer_comes(void *user) {
  newcomer *own = user;
  CUcontext context;
  LADE_CU(cuda.primary_retain(&context, 0));
  LADE_CU(cuda.ctx_set_current(context));
  LADE_CU(cuda.host_alloc((void **)&own->block, MIB, 0));
  LADE_CU(cuda.mem_alloc(&own->device, MIB));
  sem_post(&own->has_memory);
  return NULL;
}

/* In the middle of the release. It may hold the newcomer up, but not for long enough to deceive. */
static void newcomer_start(void *user) {
  newcomer *own = user;
  struct timespec until;
  LADE_EXPECT_EQ_INT(pthread_create(&own->thread, NULL, newcomer_comes, own), 0);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (until.tv_nsec + 100000000) / 1000000000;
  until.tv_nsec = (until.tv_nsec + 100000000) % 1000000000;
  if (sem_timedwait(&own->has_memory, &until) == 0) sem_post(&own->has_memory);
}

LADE_TEST(PreloadContexts, RetainedWhileItEnds) {
  START();
  newcomer other = {.block = NULL};
  void *block = NULL;
  char out[SMALL] = {0};
  CUcontext context;
  LADE_CU(cuda.ctx_get_current(&context));
  LADE_CU(cuda.host_alloc(&block, SMALL, 0));
  LADE_CU(cuda.free_host(block));
  sem_init(&other.has_memory, 0, 0);
  hooks->interrupt(driver_version() >= 12050 ? "cuCtxRecordEvent" : "cuEventRecord", newcomer_start, &other);
  LADE_CU(cuda.primary_release(0));
  LADE_EXPECT_EQ_INT(sem_wait(&other.has_memory), 0);
  pthread_join(other.thread, NULL);
  memset(other.block, 5, MIB); /* is there */
  LADE_CU(cuda.ctx_get_current(&context));
  LADE_CU(cuda.h2d_async(other.device, other.block, MIB, NULL));
  LADE_CU(cuda.d2h(out, other.device, sizeof out));
  LADE_EXPECT_EQ_INT(out[0], 5);
  LADE_CU(cuda.mem_free(other.device));
  LADE_CU(cuda.free_host(other.block));
  sem_destroy(&other.has_memory);
  finish();
}

/* Another thread, which has a context of its own, asks for memory in the middle of the release: it must not learn of a primary context
 * that is going. */
typedef struct onlooker {
  CUcontext context;
  void *block;
} onlooker;

static void *onlooker_main(void *user) {
  onlooker *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  LADE_CU(cuda.host_alloc(&own->block, SMALL, 0));
  return NULL;
}

static void onlooker_start(void *user) {
  pthread_t thread;
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, onlooker_main, user), 0);
  pthread_join(thread, NULL);
}

LADE_TEST(PreloadContexts, EndsBesideOneOfTheProgramsOwn) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  onlooker other = {.block = NULL};
  void *block = NULL;
  CUcontext first, second;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.host_alloc(&block, LARGE, 0));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_create(&other.context, 0, 1));
  LADE_CU(cuda.ctx_set_current(first));
  hooks->interrupt("cuDevicePrimaryCtxRelease", onlooker_start, &other);
  LADE_CU(cuda.primary_release(1));
  LADE_CU(cuda.free_host(other.block));
  LADE_CU(cuda.ctx_destroy(other.context));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(comes_back(&cuda, block, LARGE));
  LADE_EXPECT_EQ_UINT(hooks->contexts_created(1), 1);
  finish();
}

/* lade had nothing in it, so the driver ended it, and all that was freed from then on waited for an event in it. */
LADE_TEST(PreloadContexts, EndsWhileAStreamCaptures) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  void *block = NULL;
  CUcontext other;
  CUgraph graph = NULL;
  LADE_CU(cuda.host_alloc(&block, LARGE, 0));
  LADE_CU(cuda.primary_retain(&other, 1));
  CUstream stream = stream_make();
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_CU(cuda.primary_release(1));
  LADE_CU(cuda.stream_end_capture(stream, &graph));
  LADE_CU(cuda.graph_destroy(graph));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(comes_back(&cuda, block, LARGE));
  LADE_EXPECT_EQ_UINT(hooks->retained(1), 0);
  finish();
}

/* Another thread, in the driver's call that destroys a context of its own: nothing is recorded meanwhile. */
typedef struct destroyer {
  sem_t is_inside;
  CUcontext context;
} destroyer;

static void destroyer_lingers(void *user) {
  destroyer *own = user;
  sem_post(&own->is_inside);
  usleep(20000);
}

static void *destroyer_main(void *user) {
  destroyer *own = user;
  LADE_CU(cuda.ctx_destroy(own->context));
  return NULL;
}

LADE_TEST(PreloadContexts, EndsWhileAnotherEnds) {
  START();
  destroyer other;
  pthread_t thread;
  void *block = NULL;
  CUcontext first, second;
  sem_init(&other.is_inside, 0, 0);
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.ctx_create(&other.context, 0, 0));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  hooks->interrupt("cuCtxDestroy", destroyer_lingers, &other);
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, destroyer_main, &other), 0);
  LADE_EXPECT_EQ_INT(sem_wait(&other.is_inside), 0);
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
  pthread_join(thread, NULL);
  sem_destroy(&other.is_inside);
  LADE_CU(cuda.ctx_set_current(first));
  finish();
}

/* The destroyer begins while the release waits for work, which ends behind him. */
typedef struct late_destroyer {
  destroyer own;
  pthread_t thread;
  hold held;
} late_destroyer;

static void *late_destroyer_main(void *user) {
  late_destroyer *late = user;
  (void)destroyer_main(&late->own);
  hold_end(&late->held);
  return NULL;
}

static void late_destroyer_start(void *user) {
  late_destroyer *late = user;
  hooks->interrupt("cuCtxDestroy", destroyer_lingers, &late->own);
  LADE_EXPECT_EQ_INT(pthread_create(&late->thread, NULL, late_destroyer_main, late), 0);
}

LADE_TEST(PreloadContexts, AnotherEndsWhileItWaits) {
  START();
  late_destroyer other;
  void *block = NULL;
  CUcontext first, second;
  CUdeviceptr device = 0;
  sem_init(&other.own.is_inside, 0, 0);
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.ctx_create(&other.own.context, 0, 0));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  hold_begin(&other.held, &cuda, NULL);
  LADE_CU(cuda.d2h_async(block, device, MIB, NULL));
  hooks->interrupt("cuEventQuery", late_destroyer_start, &other);
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT(atomic_load(&other.held.is_released)); /* it has waited */
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
  pthread_join(other.thread, NULL);
  sem_destroy(&other.own.is_inside);
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* The driver had no memory for an answer, once: the work was taken for over, and the memory went while it was used. */
LADE_TEST(PreloadContexts, EndsWhereTheDriverRefusesToSay) {
  START();
  hold held;
  pthread_t thread;
  void *block = NULL;
  CUdeviceptr device = 0;
  CUcontext context;
  LADE_CU(cuda.ctx_get_current(&context));
  LADE_CU(cuda.primary_retain(&context, 1));
  LADE_CU(cuda.ctx_set_current(context));
  LADE_CU(cuda.host_alloc(&block, MIB, 0));
  LADE_CU(cuda.mem_alloc(&device, MIB));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  hooks->fail("cuEventQuery", 1, CUDA_ERROR_OUT_OF_MEMORY);
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, hold_end_later, &held), 0);
  uint64_t ranges = soft_report().pinned_ranges;
  LADE_CU(cuda.primary_reset(1));
  LADE_EXPECT(atomic_load(&held.is_released)); /* it has waited */
  LADE_EXPECT_LE_UINT(soft_report().pinned_ranges, ranges);
  pthread_join(thread, NULL);
  LADE_CU(cuda.primary_retain(&context, 1));
  LADE_CU(cuda.stream_destroy(stream)); /* the software device's are not the context's */
  if (!serves_device()) LADE_CU(cuda.mem_free(device));
  for (int i = 0; i < 2; i++) LADE_CU(cuda.primary_release(1));
  finish();
}

/* Work of another device still uses what was freed: only the context's own work was waited for, and the memory went. */
LADE_TEST(PreloadContexts, EndsWhileAnotherUsesItsMemory) {
  START();
  hold held;
  pthread_t thread;
  void *block = NULL;
  CUdeviceptr device = 0;
  CUcontext first, second;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.host_alloc(&block, MIB, CU_MEMHOSTALLOC_PORTABLE));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.mem_alloc(&device, MIB));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, hold_end_later, &held), 0);
  LADE_CU(cuda.primary_release(1));
  LADE_EXPECT(atomic_load(&held.is_released)); /* it has waited */
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* What another thread asks for while the driver ends the context is not lade's: the pool would outlive it. */
static void *newcomer_asks(void *user) {
  CUcontext context = user;
  void *block = NULL;
  LADE_CU(cuda.ctx_set_current(context));
  if (cuda.host_alloc(&block, SMALL, 0) == CUDA_SUCCESS) LADE_CU(cuda.free_host(block));
  return NULL;
}

static void newcomer_is_asking(void *user) {
  pthread_t thread;
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, newcomer_asks, user), 0);
  pthread_join(thread, NULL);
}

LADE_TEST(PreloadContexts, NoPoolOpensWhileItEnds) {
  START();
  CUcontext context;
  void *block = NULL;
  LADE_CU(cuda.ctx_get_current(&context));
  LADE_CU(cuda.host_alloc(&block, SMALL, 0));
  hooks->interrupt("cuDevicePrimaryCtxReset", newcomer_is_asking, context);
  LADE_CU(cuda.primary_reset(0));
  LADE_EXPECT_EQ_UINT(soft_report().pinned_ranges, 0);
  LADE_EXPECT_EQ_UINT(hooks->retained(0), 1);
  LADE_CU(cuda.primary_retain(&context, 0)); /* it lives again */
  LADE_CU(cuda.ctx_set_current(context));
  uint64_t before = hooks->calls("cuMemHostRegister");
  LADE_CU(cuda.host_alloc(&block, SMALL, 0));
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostRegister"),
                      before + 2); /* in a pool of its own, which tries a page first */
  LADE_CU(cuda.free_host(block));
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

/* By a call that is not seen, before an event was ever recorded in it: nothing was recorded any more, anywhere. */
LADE_TEST(PreloadContexts, EndsUnseen) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  void *block = NULL;
  CUcontext other;
  LADE_CU(cuda.host_alloc(&block, LARGE, 0));
  LADE_CU(cuda.primary_retain(&other, 1));
  hooks->reset_device(1);
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(comes_back(&cuda, block, LARGE));
  LADE_CU(cuda.primary_release(1));
  finish();
}

/* By the names of the first releases, which were not seen: what was recorded afterwards went into a context that was gone. */
LADE_TEST(PreloadContexts, EndByTheirFirstNames) {
  START();
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  const char *const ends[] = {"cuCtxDestroy", "cuCtxDetach"};
  CUresult (*create)(CUcontext *, unsigned, CUdevice) =
      (CUresult(*)(CUcontext *, unsigned, CUdevice))exported("cuCtxCreate");
  CUcontext first, own;
  LADE_CU(cuda.ctx_get_current(&first));
  for (int i = 0; i < 4; i++) {
    CUresult (*end)(CUcontext) = (CUresult(*)(CUcontext))exported(ends[i % 2]);
    void *block = NULL;
    LADE_CU(cuda.host_alloc(&block, LARGE, 0));
    LADE_CU(i < 2 ? cuda.ctx_create(&own, 0, 0) : create(&own, 0, 0));
    LADE_CU(end(own));
    LADE_CU(cuda.ctx_set_current(first));
    LADE_CU(cuda.free_host(block));
    LADE_EXPECT(comes_back(&cuda, block, LARGE));
  }
  finish();
}

/* Work of another device used the block, and that device's context is gone with its streams when the block is freed. */
LADE_TEST(PreloadContexts, OfAStreamEndsBeforeTheFree) {
  START();
  CUcontext first, second;
  CUdeviceptr device = 0;
  void *block = NULL;
  LADE_CU(cuda.ctx_get_current(&first));
  LADE_CU(cuda.host_alloc(&block, MIB, CU_MEMHOSTALLOC_PORTABLE));
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  CUstream stream = stream_make();
  LADE_CU(cuda.mem_alloc(&device, MIB));
  LADE_CU(cuda.h2d_async(device, block, MIB, stream));
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.mem_free(device));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.primary_release(1));
  LADE_CU(cuda.free_host(block));
  LADE_EXPECT(comes_back(&cuda, block, MIB));
  LADE_EXPECT_EQ_STR(hooks->violations(), "");
  LADE_CU(cuda.primary_retain(&second, 1));
  LADE_CU(cuda.ctx_set_current(second));
  LADE_CU(cuda.stream_destroy(stream)); /* the software device's are not the context's */
  LADE_CU(cuda.ctx_set_current(first));
  LADE_CU(cuda.primary_release(1));
  finish();
}

LADE_TEST(PreloadContexts, OfTheProgramsOwn) {
  START();
  other_contexts_pass(&pinned_memory);
  finish();
}

/* ---- Threads, fork ----------------------------------------------------------------------------------------------- */

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
  CUdeviceptr device = 0;
  LADE_CU(cuda.ctx_set_current(own->context));
  CUstream stream = stream_make();
  LADE_CU(cuda.mem_alloc(&device, MIB));
  for (int i = 0; i < ROUNDS; i++) work_round(stream, device, own->number * ROUNDS + i);
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  LADE_CU(cuda.ctx_set_current(NULL));
  return NULL;
}

LADE_TEST(PreloadThreads, CopyAndFree) {
  START();
  worker_work *const works[THREADS] = {work, work, work, work};
  workers_run(works);
  finish();
}

/* Captures begin and end while other threads free: none is broken. */
static void *capture_often(void *user) {
  worker *own = user;
  LADE_CU(cuda.ctx_set_current(own->context));
  CUstream stream = stream_make();
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
  worker_work *const works[THREADS] = {capture_often, free_often, capture_often, free_often};
  workers_run(works);
  finish();
}

/* Streams join captures, are destroyed in them, or leave them. */
static void *join_often(void *user) {
  worker *own = user;
  CUevent event = NULL;
  LADE_CU(cuda.ctx_set_current(own->context));
  LADE_CU(cuda.event_create(&event, CU_EVENT_DISABLE_TIMING));
  CUstream stream = stream_make();
  for (int i = 0; i < ROUNDS; i++) {
    CUgraph graph = NULL;
    CUstream other = stream_make();
    LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    LADE_CU(cuda.event_record(event, stream));
    LADE_CU(cuda.stream_wait_event(other, event, 0));
    if (i % 2 == 0) LADE_CU(cuda.stream_destroy(other));
    (void)cuda.stream_end_capture(stream, &graph);
    if (i % 2 != 0) LADE_CU(cuda.stream_destroy(other));
    if (graph != NULL) LADE_CU(cuda.graph_destroy(graph));
  }
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.event_destroy(event));
  return NULL;
}

LADE_TEST(PreloadThreads, JoinAndFree) {
  START();
  worker_work *const works[THREADS] = {join_often, free_often, join_often, work};
  workers_run(works);
  finish();
}

/* Another device's context ends and comes to life, with memory of its own, beside all that. */
static void *reset_often(void *user) {
  (void)user;
  for (int i = 0; i < ROUNDS; i++) {
    CUcontext second;
    void *block = NULL;
    LADE_CU(cuda.primary_retain(&second, 1));
    LADE_CU(cuda.ctx_set_current(second));
    LADE_CU(cuda.host_alloc(&block, SMALL, 0));
    LADE_CU(cuda.free_host(block));
    LADE_CU(cuda.ctx_set_current(NULL));
    LADE_CU(cuda.primary_release(1));
  }
  return NULL;
}

LADE_TEST(PreloadThreads, EndAndFree) {
  START();
  worker_work *const works[THREADS] = {reset_often, free_often, reset_often, work};
  workers_run(works);
  finish();
}

LADE_TEST(PreloadThreads, OneOfTwoFreesWins) {
  START();
  one_of_two_frees_wins(&pinned_memory, NULL);
  finish();
}

/* A free that waits is cancelled: the block, and its place among those who use the pool, were lost, and the pool's end never came. */
LADE_TEST(PreloadThreads, CancelledWhileTheyWait) {
  START();
  enum { BYTES = 24 << 20 }; /* more than LADE_PRELOAD_PENDING_BYTES in fixture.c */
  CUdeviceptr device = 0;
  hold held;
  void *block = NULL;
  pthread_t frees;
  LADE_CU(cuda.mem_alloc(&device, BYTES));
  LADE_CU(cuda.host_alloc(&block, BYTES, 0));
  CUstream stream = stream_make();
  hold_begin(&held, &cuda, stream);
  LADE_CU(cuda.h2d_async(device, block, BYTES, stream));
  LADE_EXPECT_EQ_INT(pthread_create(&frees, NULL, free_elsewhere, block), 0);
  usleep(5000); /* as a rule it waits by then */
  pthread_cancel(frees);
  usleep(5000);
  hold_end(&held);
  pthread_join(frees, NULL);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_EXPECT(comes_back(&cuda, block, BYTES));
  LADE_CU(cuda.stream_destroy(stream));
  LADE_CU(cuda.mem_free(device));
  finish();
}

/* The parent's blocks are untouched. */
LADE_TEST(PreloadFork, ChildAsksTheDriver) {
  START();
  void *block = NULL, *other = NULL;
  LADE_CU(cuda.host_alloc(&block, SMALL, 0));
  memset(block, 3, SMALL);
  child_asks_the_driver(&pinned_memory, (uintptr_t)block);
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
    CUdeviceptr device = 0;
    CUstream stream = stream_make();
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

/* A capture that another stream joins, with a free in the middle. Calls of the program's may fail, too; what it began it ends. */
static void faulty_capture(CUstream stream, CUstream other, CUevent event) {
  enum { LARGE = 4 * MIB }; /* worth an event of its own */
  void *block = NULL;
  CUgraph graph = NULL;
  bool allocated = cuda.host_alloc(&block, LARGE, 0) == CUDA_SUCCESS;
  bool begun = cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS;
  bool joined = begun && cuda.event_record(event, stream) == CUDA_SUCCESS &&
                cuda.stream_wait_event(other, event, 0) == CUDA_SUCCESS;
  if (allocated) (void)cuda.free_host(block);
  if (joined && cuda.event_record(event, other) == CUDA_SUCCESS) (void)cuda.stream_wait_event(stream, event, 0);
  if (begun && cuda.stream_end_capture(stream, &graph) != CUDA_SUCCESS) {
    hooks->fail_clear(); /* the driver need not have ended it */
    (void)cuda.stream_end_capture(stream, &graph);
  }
  if (graph != NULL) LADE_CU(cuda.graph_destroy(graph));
}

static const char *const faulty_in_captures[] = {"cuCtxGetCurrent",
                                                 "cuCtxPushCurrent",
                                                 "cuCtxRecordEvent",
                                                 "cuEventCreate",
                                                 "cuEventQuery",
                                                 "cuEventRecord",
                                                 "cuStreamBeginCapture",
                                                 "cuStreamDestroy",
                                                 "cuStreamEndCapture",
                                                 "cuStreamGetCtx",
                                                 "cuStreamIsCapturing",
                                                 "cuStreamSynchronize",
                                                 "cuStreamWaitEvent",
                                                 "cuThreadExchangeStreamCaptureMode",
                                                 NULL};

/* Afterwards nothing is broken, and freed blocks come back. */
LADE_TEST_P(PreloadFaults, InCaptures, faulty_in_captures, symbol) {
  for (uint64_t nth = 0; nth <= 4; nth++) {
    START();
    CUevent event = NULL;
    void *block = NULL;
    CUstream stream = stream_make(), other = stream_make();
    LADE_CU(cuda.event_create(&event, CU_EVENT_DISABLE_TIMING));
    LADE_CU(cuda.host_alloc(&block, 4 * MIB, 0));
    for (int i = 0; i < 3; i++) {
      hooks->fail(symbol, nth, CUDA_ERROR_OUT_OF_MEMORY);
      faulty_capture(stream, other, event);
      hooks->fail_clear();
    }
    hooks->fail(symbol, nth, CUDA_ERROR_OUT_OF_MEMORY);
    bool gone = cuda.stream_destroy(other) == CUDA_SUCCESS;
    hooks->fail_clear();
    if (!gone) LADE_CU(cuda.stream_destroy(other));
    LADE_CU(cuda.free_host(block));
    LADE_EXPECT(comes_back(&cuda, block, 4 * MIB));
    LADE_CU(cuda.event_destroy(event));
    LADE_CU(cuda.stream_destroy(stream));
    finish();
  }
}

#ifdef TEST_LINKED
static void kept(void *user, void *pointer) {
  (void)user;
  (void)pointer;
}

/* Each number is wrong once, and the recount says which. */
LADE_TEST(PreloadCalls, TheRecountsNoticeWhatIsWrong) {
  enum { BLOCKS = 3 };
  START();
  preload_block *blocks[BLOCKS], table_block = {.pointer = (void *)0x1000000, .bytes = SMALL};
  preload_pending pending;
  ladei_preload_pending_init(&pending, kept, NULL);
  for (size_t i = 0; i < BLOCKS; i++) {
    blocks[i] = calloc(1, sizeof *blocks[i]);
    *blocks[i] = (preload_block){.pointer = (void *)(0x1000000 + i), .bytes = SMALL};
    ladei_preload_pending_add(&pending, blocks[i]);
  }
  LADE_EXPECT(ladei_preload_pending_check(&pending) == NULL);
  atomic_fetch_add(&pending.bytes, 1);
  LADE_EXPECT(ladei_preload_pending_check(&pending) != NULL);
  atomic_fetch_sub(&pending.bytes, 1);
  atomic_fetch_add(&pending.recorded, 1);
  LADE_EXPECT(ladei_preload_pending_check(&pending) != NULL);
  atomic_fetch_sub(&pending.recorded, 1);
  pending.open.count++;
  LADE_EXPECT(ladei_preload_pending_check(&pending) != NULL);
  pending.open.count--;
  LADE_EXPECT(ladei_preload_pending_check(&pending) == NULL);
  ladei_preload_pending_drop(&pending);
  LADE_EXPECT(ladei_preload_blocks_add(&ladei_preload_device_blocks, &table_block));
  table_block.pointer = (void *)0x7000000;
  LADE_EXPECT(ladei_preload_blocks_check(&ladei_preload_device_blocks) != NULL);
  table_block.pointer = (void *)0x1000000;
  LADE_EXPECT(ladei_preload_blocks_check(&ladei_preload_device_blocks) == NULL);
  LADE_EXPECT(ladei_preload_blocks_take(&ladei_preload_device_blocks, table_block.pointer) == &table_block);
  CUstream stream = stream_make();
  CUgraph graph = NULL;
  LADE_CU(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  LADE_EXPECT(ladei_preload_streams_check() == NULL);
  atomic_fetch_sub(&ladei_preload_recording.closed, 1); /* T1 */
  LADE_EXPECT(ladei_preload_streams_check() != NULL);
  atomic_fetch_add(&ladei_preload_recording.closed, 1);
  LADE_CU(cuda.stream_end_capture(stream, &graph));
  LADE_CU(cuda.graph_destroy(graph));
  LADE_CU(cuda.stream_destroy(stream));
  finish();
}
#endif
