/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Caching off and on at run time; holds of the driver's frees. */
#include <pthread.h>
#include <string.h>

#include "device/api/device.h"
#include "lade/device.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

static void caching(device_fixture *f, bool enabled) {
  device_fixture_caching(f->allocator, enabled);
  device_fixture_check(f);
}

static uint64_t reserved(device_fixture *f) { return device_fixture_stats(f).reserved_bytes.all.current; }

/* ---- Caching ----------------------------------------------------------------------------------------------------- */

/* Hazard of PyTorch's allocator: a raw allocation is cached in its mode without a cache, and its deleter was not. Here a free
 * knows what it frees. */
LADE_TEST(hazard_H22, OffEachBlockIsADriverAllocationAndFreesTellThemApart) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *before = device_fixture_alloc(&f, 1000, 0), *cached = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_free(&f, cached);
  caching(&f, false);
  caching(&f, false); /* twice is once */
  char *a = device_fixture_alloc(&f, 1000, 0), *b = device_fixture_alloc(&f, 3 * MIB, 0);
  LADE_EXPECT_NE_PTR(b, cached);
  LADE_EXPECT_EQ_UINT(reserved(&f), 22 * MIB + 1024 + 3 * MIB);
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(reserved(&f), 25 * MIB);
  device_fixture_free(&f, before); /* into its pool */
  LADE_EXPECT_EQ_UINT(reserved(&f), 25 * MIB);
  caching(&f, true);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), before);
  device_fixture_free(&f, b); /* to the driver, whatever the switch says now */
  LADE_EXPECT_EQ_UINT(reserved(&f), 22 * MIB);
  device_fixture_free(&f, before);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

/* The driver gives the bytes asked for, so that a tool sees what goes beyond them: memory that came back serves no other size. */
LADE_TEST(DeviceCaching, OffFromTheCreationOn) {
  static const uint32_t flags[] = {0, LADE_DEVICE_THREAD_CACHES, LADE_DEVICE_REFERENCE};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    lade_device_options options;
    lade_device_options_init(&options);
    options.flags = LADE_DEVICE_UNCACHED | flags[i];
    options.expandable_segments = 1;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    lade_soft_report report;
    char *a = device_fixture_alloc(&f, 1000, 0);
    lade_soft_report_init(&report);
    LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
    LADE_EXPECT_EQ_UINT(report.device_bytes, 1000);
    LADE_EXPECT_EQ_UINT(reserved(&f), 1024);
    LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, true));
    device_fixture_free(&f, a);
    char *b = device_fixture_alloc(&f, 1024, 0);
    LADE_EXPECT_NE_PTR(b, a);
    LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, false));
    LADE_EXPECT_EQ_UINT(reserved(&f), 1024);
    device_fixture_free(&f, b);
    caching(&f, true);
    for (int k = 0; k < 2; k++) device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
    LADE_EXPECT_EQ_UINT(reserved(&f), 2 * MIB);
    device_fixture_close(&f);
  }
}

LADE_TEST(DeviceCaching, OffAFreeWaitsForRecordedStreams) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  caching(&f, false);
  char *a = device_fixture_alloc(&f, 1000, 0), *b = device_fixture_alloc(&f, 1000, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  LADE_EXPECT_EQ_UINT(reserved(&f), 1024); /* stream 1 still uses a */
  device_fixture_release(&f, 1);
  b = device_fixture_alloc(&f, 5000, 0); /* which looks what is done */
  LADE_EXPECT_EQ_UINT(reserved(&f), 5120);
  device_fixture_free(&f, b);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceCaching, OffCapturesAndScopesKeepTheirPools) {
  static const lade_device_pool_id graph = {9, 0};
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id;
  uint64_t scope;
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, NULL, &id));
  caching(&f, false);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, graph, &f.streams[0], 1));
  LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, id, &f.streams[1], 1, &scope));
  char *a = device_fixture_alloc(&f, 1000, 0), *b = device_fixture_alloc(&f, 1000, 1);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  LADE_EXPECT_EQ_UINT(reserved(&f), 4 * MIB);
  LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, graph));
  char *c = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT_EQ_UINT(reserved(&f), 4 * MIB + 1024);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

/* A refusal of the driver keeps the block cached, and the next free offers it again. */
LADE_TEST(DeviceCaching, OffWhatTheDriverRefusesIsOfferedAgain) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  caching(&f, false);
  char *a = device_fixture_alloc(&f, 1000, 0), *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "device_free", 1, LADE_ERR_DRIVER));
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(reserved(&f), 2048);
  device_fixture_free(&f, b);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceCaching, OffThreadCachesAreEmptyAndUnused) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_THREAD_CACHES;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  for (int i = 0; i < 3; i++) device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  caching(&f, false);
  for (int i = 0; i < 3; i++) {
    char *a = device_fixture_alloc(&f, 1000, 0);
    LADE_EXPECT_EQ_UINT(reserved(&f), 2 * MIB + 1024);
    device_fixture_free(&f, a);
    LADE_EXPECT_EQ_UINT(reserved(&f), 2 * MIB);
  }
  caching(&f, true);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT_EQ_UINT(reserved(&f), 2 * MIB);
  device_fixture_close(&f);
}

/* ---- Holds ------------------------------------------------------------------------------------------------------- */

static uint64_t driver_frees(device_fixture *f) {
  uint64_t plain = 0, mapped = 0;
  LADE_EXPECT_OK(lade_soft_call_count(f->runtime, "device_free", &plain));
  LADE_EXPECT_OK(lade_soft_call_count(f->runtime, "vm_unmap", &mapped));
  return plain + mapped;
}

static void held_flush(bool expandable) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = expandable;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, &options)) return;
  char *a = device_fixture_alloc(&f, 40 * MIB, 0);
  device_fixture_free(&f, a);
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, true));
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, true));
  uint64_t before = driver_frees(&f);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 40 * MIB);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 40 * MIB, f.streams[1], &none));
  LADE_EXPECT(strstr(lade_last_error()->text, "frees to the driver are held") != NULL);
  char *b = device_fixture_alloc(&f, 1000, 0); /* what is cached serves */
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, false));
  LADE_EXPECT_EQ_UINT(driver_frees(&f), before);
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, false)); /* the last one */
  LADE_EXPECT_EQ_UINT(reserved(&f), 2 * MIB);
  LADE_EXPECT(driver_frees(&f) > before);
  device_fixture_check(&f);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_frees_hold(f.allocator, false));
  device_fixture_free(&f, b);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceFreesHold, WhatWouldGoBackGoesAtTheResume) { held_flush(false); }

LADE_TEST(DeviceFreesHold, GranulesGoAtTheResume) { held_flush(true); }

LADE_TEST(DeviceFreesHold, WhatIsUsedAgainStays) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 30 * MIB, 0);
  device_fixture_free(&f, a);
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, true));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 30 * MIB);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 30 * MIB, 0), a);
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, false));
  LADE_EXPECT_EQ_UINT(reserved(&f), 30 * MIB);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

/* The graph of a capture behind the flush has the address of what would have gone. */
LADE_TEST(DeviceFreesHold, WhatACaptureMayHaveTakenStays) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  lade_device_options settings;
  lade_device_options_init(&settings);
  settings.max_split_bytes = 21 * MIB;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &settings));
  lade_device_pool_id id;
  uint64_t scope;
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, &options, &id));
  LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, true));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_trim(f.allocator, id, NULL, 0, NULL));
  void *none = NULL; /* for which the oversize block would go */
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 60 * MIB, f.streams[0], &none));
  LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, &f.streams[0], 1));
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, false));
  LADE_EXPECT_EQ_UINT(reserved(&f), 40 * MIB);
  device_fixture_close(&f);
}

static void *hold_in_thread(void *user) {
  device_fixture *f = user;
  LADE_EXPECT_OK(lade_device_frees_hold(f->allocator, true));
  return NULL;
}

LADE_TEST(DeviceFreesHold, AHoldOutlivesItsThread) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, hold_in_thread, &f), 0);
  LADE_ASSERT_EQ_INT(pthread_join(thread, NULL), 0);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 2 * MIB);
  LADE_EXPECT_OK(lade_device_frees_hold(f.allocator, false));
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

static lade_status hold_reclaimer(void *user) {
  device_fixture *f = user;
  LADE_EXPECT_OK(lade_device_frees_hold(f->allocator, true));
  LADE_EXPECT_OK(lade_device_frees_hold(f->allocator, false));
  return LADE_NOT_READY;
}

static lade_status hold_take(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  device_fixture *f = user;
  (void)pointer;
  (void)bytes;
  (void)device;
  (void)stream;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_frees_hold(f->allocator, true)); /* it would wait for this very call */
  return LADE_OK;
}

static lade_status fixture_give(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  (void)user;
  (void)bytes;
  (void)device;
  (void)stream;
  *out = (void *)((uintptr_t)1 << 52);
  return LADE_OK;
}

/* Callbacks that hold do not wait for themselves. */
LADE_TEST(DeviceFreesHold, CallbacksMayHoldOrAreRefused) {
  device_fixture f;
  lade_device_plugin provider;
  lade_device_options options;
  lade_device_options_init(&options);
  lade_device_plugin_init(&provider);
  provider.alloc = fixture_give;
  provider.free = hold_take;
  provider.user = &f;
  options.provider = &provider;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, hold_reclaimer, &f)));
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
  LADE_EXPECT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(reclaim, hold_reclaimer, &f)));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* While one thread holds, the others keep the memory of all their rounds from the driver: it fits into the device. */
enum { THREADS = 4, ROUNDS = 40, LARGE_BYTES = MIB + 512 };

typedef struct thread_work {
  device_fixture *f;
  int number;
} thread_work;

static void *thread_run(void *user) {
  const thread_work *own = user;
  lade_device_allocator *allocator = own->f->allocator;
  for (int i = 0; i < ROUNDS; i++) {
    void *a = NULL, *b = NULL;
    if (own->number == 0) device_fixture_caching(allocator, i % 2 == 0);
    LADE_EXPECT_OK(lade_device_alloc(allocator, 1000, own->f->streams[own->number], &a));
    LADE_EXPECT_OK(lade_device_alloc(allocator, LARGE_BYTES, own->f->streams[own->number], &b));
    LADE_EXPECT_OK(lade_device_free(allocator, a));
    if (own->number == 1) LADE_EXPECT_OK(lade_device_frees_hold(allocator, true));
    if (own->number == 2) LADE_EXPECT_OK(lade_device_empty_cache(allocator));
    LADE_EXPECT_OK(lade_device_free(allocator, b));
    if (own->number == 1) LADE_EXPECT_OK(lade_device_frees_hold(allocator, false));
  }
  return NULL;
}

LADE_TEST(DeviceCaching, SwitchesAndHoldsBesideAllocations) {
  device_fixture f;
  if (!device_fixture_open_bytes(&f, "cpu", NULL)) return;
  pthread_t threads[THREADS];
  thread_work work[THREADS];
  for (int i = 0; i < THREADS; i++) {
    work[i] = (thread_work){.f = &f, .number = i};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, thread_run, &work[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_join(threads[i], NULL), 0);
  caching(&f, true);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}
