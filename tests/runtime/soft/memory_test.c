/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of software devices: addresses, capacity to the byte, addresses without bytes, pools, limits. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define TIB ((size_t)1 << 40)

static soft_fixture open_described(const char *clock, const lade_soft_device *devices, uint64_t count) {
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = devices;
  options.device_count = count;
  return soft_fixture_open(clock, &options);
}

static size_t free_bytes(const soft_fixture *f, int device) {
  size_t bytes = 0, total = 0;
  LADE_EXPECT_OK(f->ops->memory_info(f->self, device, &bytes, &total));
  return bytes;
}

static char *alloc(const soft_fixture *f, int device, size_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(f->ops->device_alloc(f->self, device, bytes, &memory));
  return memory;
}

static void give_back(const soft_fixture *f, int device, void *memory) {
  LADE_EXPECT_OK(f->ops->device_free(f->self, device, memory));
}

/* ---- addresses without bytes ------------------------------------------------------------------------------------- */

static const lade_soft_device addresses_only = {.memory_bytes = 100 * TIB, .addresses_only = 1};

LADE_TEST_P(AddressesOnly, AreCountedFromAFixedStartAndNeverReused, soft_fixture_clocks, clock) {
  soft_fixture f = open_described(clock, &addresses_only, 1);
  char *first = alloc(&f, 0, 1);
  LADE_EXPECT_EQ_UINT((uintptr_t)first, 0x700000000000u);
  char *second = alloc(&f, 0, 2 * MIB + 1);
  LADE_EXPECT_EQ_UINT((uintptr_t)second, 0x700000200000u);
  give_back(&f, 0, second);
  char *third = alloc(&f, 0, 50 * TIB);
  LADE_EXPECT_EQ_UINT((uintptr_t)third, 0x700000600000u);
  void *refused = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->device_alloc(f.self, 0, 50 * TIB, &refused));
  void *reserved = NULL;
  LADE_EXPECT_OK(f.ops->vm_reserve(f.self, 0, 112 * TIB, 0, &reserved)); /* a failed allocation used no address */
  LADE_EXPECT_EQ_UINT((uintptr_t)reserved, 0x700000600000u + 50 * TIB);
  LADE_EXPECT_OK(f.ops->vm_address_free(f.self, reserved, 112 * TIB));
  give_back(&f, 0, third);
  give_back(&f, 0, first);
  soft_fixture_close(&f);
}

LADE_TEST_P(AddressesOnly, CopiesTakeTheirTimeAndMoveNothing, soft_fixture_clocks, clock) {
  soft_fixture f = open_described(clock, &addresses_only, 1);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  char *device = alloc(&f, 0, 4 * TIB), *host = soft_fixture_pinned(&f, MIB);
  memset(host, 5, MIB);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, host, device + 2 * TIB, MIB, &stream));
  LADE_EXPECT_OK(f.ops->fill(f.self, device, 1, 4 * TIB, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_INT(host[0], 5);
  /* 3 us and 1 MiB at 55 GB/s, 4 TiB at 2 TB/s */
  if (f.virtual_time) LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 3000 + 19066 + 2199023256u);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     f.ops->fill(f.self, device + 1, 1, 4 * TIB, &stream)); /* one byte over the end */
  give_back(&f, 0, device);
  soft_fixture_expect_no_finding(&f);
  soft_fixture_close(&f);
}

LADE_TEST_P(AddressesOnly, VirtualMemoryCountsGranuleByGranule, soft_fixture_clocks, clock) {
  soft_fixture f = open_described(clock, &addresses_only, 1);
  void *reserved = NULL;
  ladei_vm_handle handle = 0;
  size_t before = free_bytes(&f, 0);
  LADE_EXPECT_OK(f.ops->vm_reserve(f.self, 0, 20 * MIB, 0, &reserved));
  LADE_EXPECT_EQ_SIZE(free_bytes(&f, 0), before);
  LADE_EXPECT_OK(f.ops->vm_create(f.self, 0, 20 * MIB, false, &handle));
  LADE_EXPECT_EQ_SIZE(free_bytes(&f, 0), before - 20 * MIB);
  LADE_EXPECT_OK(f.ops->vm_map(f.self, reserved, 20 * MIB, handle));
  LADE_EXPECT_OK(f.ops->vm_release(f.self, handle));
  LADE_EXPECT_EQ_SIZE(free_bytes(&f, 0), before - 20 * MIB); /* still mapped */
  LADE_EXPECT_OK(f.ops->vm_unmap(f.self, reserved, 20 * MIB));
  LADE_EXPECT_EQ_SIZE(free_bytes(&f, 0), before);
  LADE_EXPECT_OK(f.ops->vm_address_free(f.self, reserved, 20 * MIB));
  soft_fixture_close(&f);
}

/* ---- capacity ---------------------------------------------------------------------------------------------------- */

LADE_TEST_P(Capacity, IsExactToTheByte, soft_fixture_clocks, clock) {
  const lade_soft_device device = {.memory_bytes = 10 * MIB};
  soft_fixture f = open_described(clock, &device, 1);
  char *a = alloc(&f, 0, 10 * MIB - 1), *b = alloc(&f, 0, 1);
  void *refused = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->device_alloc(f.self, 0, 1, &refused));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "0 of 10485760 free");
  LADE_EXPECT_EQ_PTR(refused, NULL);
  give_back(&f, 0, b);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->device_alloc(f.self, 0, 2, &refused));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, f.ops->device_alloc(f.self, 0, SIZE_MAX, &refused));
  give_back(&f, 0, a);
  LADE_EXPECT_EQ_SIZE(free_bytes(&f, 0), 10 * MIB);
  soft_fixture_close(&f);
}

static size_t resident_bytes(void) {
  unsigned long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  LADE_EXPECT(file != NULL);
  if (file != NULL) {
    LADE_EXPECT_EQ_INT(fscanf(file, "%lu %lu", &total, &resident), 2);
    fclose(file);
  }
  return resident * (size_t)sysconf(_SC_PAGESIZE);
}

LADE_TEST_P(Capacity, CostsNothingUntilTouched, soft_fixture_clocks, clock) {
  const lade_soft_device device = {.memory_bytes = 64 * GIB};
  soft_fixture f = open_described(clock, &device, 1);
  size_t before = resident_bytes();
  char *memory = alloc(&f, 0, 64 * GIB);
  memory[63 * GIB] = 1;
  LADE_EXPECT_LT_SIZE(resident_bytes(), before + 16 * MIB);
  give_back(&f, 0, memory);
  soft_fixture_close(&f);
}

LADE_TEST_P(Capacity, PinnedLimitHoldsForBothWaysOfPinning, soft_fixture_clocks, clock) {
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.pinned_limit_bytes = 2 * MIB;
  soft_fixture f = soft_fixture_open(clock, &options);
  void *host = soft_fixture_pinned(&f, MIB), *more = NULL;
  static _Alignas(4096) char own[2 * MIB];
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, f.ops->host_alloc(f.self, 0, MIB + 1, 0, &more));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, f.ops->host_register(f.self, 0, own, 2 * MIB, 0));
  LADE_EXPECT_OK(f.ops->host_register(f.self, 0, own, MIB, 0));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, f.ops->host_alloc(f.self, 0, 1, 0, &more));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&f).pinned_bytes, 2 * MIB);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&f).pinned_ranges, 2);
  LADE_EXPECT_OK(f.ops->host_unregister(f.self, own));
  LADE_EXPECT_NE_PTR(host, NULL);
  soft_fixture_close(&f);
}

static void expect_native(lade_status status, int native) {
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, status);
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, native);
}

/* The codes are those of CUDA's driver, which tells its own memory from what was registered. */
LADE_TEST_P(Registration, RefusalsAreThoseOfTheDriver, soft_fixture_clocks, clock) {
  enum { PAGE = 4096 };
  soft_fixture f = soft_fixture_open(clock, NULL);
  char *host = soft_fixture_pinned(&f, 4 * PAGE);
  static _Alignas(4096) char own[4 * PAGE];
  expect_native(f.ops->host_register(f.self, 0, host, PAGE, 0), LADEI_SOFT_NATIVE_INVALID_VALUE);
  expect_native(f.ops->host_register(f.self, 0, host + PAGE, PAGE, 0), LADEI_SOFT_NATIVE_INVALID_VALUE);
  expect_native(f.ops->host_register(f.self, 0, host - PAGE, 2 * PAGE, 0), LADEI_SOFT_NATIVE_INVALID_VALUE);
  expect_native(f.ops->host_unregister(f.self, host), LADEI_SOFT_NATIVE_INVALID_VALUE);
  expect_native(f.ops->host_unregister(f.self, host + PAGE), LADEI_SOFT_NATIVE_INVALID_VALUE);
  expect_native(f.ops->host_unregister(f.self, own), LADEI_SOFT_NATIVE_NOT_REGISTERED);
  LADE_EXPECT_OK(f.ops->host_register(f.self, 0, own + PAGE, 2 * PAGE, 0));
  expect_native(f.ops->host_register(f.self, 0, own + PAGE, PAGE, 0), LADEI_SOFT_NATIVE_ALREADY_REGISTERED);
  expect_native(f.ops->host_register(f.self, 0, own, 2 * PAGE, 0), LADEI_SOFT_NATIVE_ALREADY_REGISTERED);
  expect_native(f.ops->host_register(f.self, 0, own + 2 * PAGE, 2 * PAGE, 0), LADEI_SOFT_NATIVE_ALREADY_REGISTERED);
  expect_native(f.ops->host_unregister(f.self, own + 2 * PAGE), LADEI_SOFT_NATIVE_INVALID_VALUE);
  LADE_EXPECT_OK(f.ops->host_unregister(f.self, own + PAGE));
  expect_native(f.ops->host_unregister(f.self, own + PAGE), LADEI_SOFT_NATIVE_NOT_REGISTERED);
  soft_fixture_close(&f);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static unsigned char pattern_at(size_t i) { return (unsigned char)(i * 167 + (i >> 8)); }

/* Long copies to the device go another way than short ones, in whole cache lines with a head and a tail. */
LADE_TEST_P(Bytes, AllMoveAndNoOthersAtAnyAlignmentAndSize, soft_fixture_clocks, clock) {
  static const size_t sizes[] = {1, 63, 300001, (32 << 20) - 1, 32 << 20, (32 << 20) + 65};
  enum { ROOM = 33 << 20 };
  soft_fixture f = soft_fixture_open(clock, NULL);
  unsigned char *device = soft_fixture_device_memory(&f, 0, ROOM), *host = soft_fixture_pinned(&f, ROOM);
  for (size_t i = 0; i < ROOM; i++) host[i] = pattern_at(i);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (size_t shift = 0; shift < 130; shift += 43) {
      size_t to = 64 + shift, from = 200 - shift, bytes = sizes[i];
      memset(device, 0xee, to);
      device[to + bytes] = 0xee;
      LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_H2D, device + to, host + from, bytes));
      LADE_ASSERT_EQ_MEM(device + to, host + from, bytes);
      LADE_ASSERT_EQ_INT(device[to - 1], 0xee);
      LADE_ASSERT_EQ_INT(device[to + bytes], 0xee);
    }
  }
  soft_fixture_close(&f);
}

LADE_TEST_P(Bytes, OverlappingCopiesWithinTheDeviceMoveAsIfThroughABuffer, soft_fixture_clocks, clock) {
  enum { ROOM = 400000, BYTES = 200000, SHIFT = 70 };
  soft_fixture f = soft_fixture_open(clock, NULL);
  unsigned char *device = soft_fixture_device_memory(&f, 0, ROOM);
  for (int up = 0; up < 2; up++) {
    for (size_t i = 0; i < ROOM; i++) device[i] = pattern_at(i);
    size_t from = 1000, to = up ? from + SHIFT : from - SHIFT;
    LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_D2D, device + to, device + from, BYTES));
    for (size_t i = 0; i < BYTES; i++) LADE_ASSERT_EQ_INT(device[to + i], pattern_at(from + i));
  }
  soft_fixture_close(&f);
}

/* ---- equal runs have equal addresses ----------------------------------------------------------------------------- */

LADE_TEST_P(Addresses, AreTheSameInEveryRuntimeAndNeverComeBackInOne, soft_fixture_clocks, clock) {
  void *seen[2][4];
  for (int run = 0; run < 2; run++) {
    soft_fixture f = soft_fixture_open(clock, NULL);
    seen[run][0] = alloc(&f, 0, MIB);
    LADE_EXPECT_OK(f.ops->host_alloc(f.self, 0, MIB, 0, &seen[run][1]));
    give_back(&f, 0, seen[run][0]);
    seen[run][2] = alloc(&f, 0, MIB);
    LADE_EXPECT_OK(f.ops->vm_reserve(f.self, 0, 4 * MIB, 0, &seen[run][3]));
    LADE_EXPECT_NE_PTR(seen[run][0], seen[run][2]);
    LADE_EXPECT_OK(f.ops->vm_address_free(f.self, seen[run][3], 4 * MIB));
    LADE_EXPECT_OK(f.ops->host_free(f.self, seen[run][1]));
    give_back(&f, 0, seen[run][2]);
    soft_fixture_close(&f);
  }
  LADE_EXPECT_EQ_MEM(seen[0], seen[1], sizeof seen[0]);
}

LADE_TEST_P(Addresses, OfTwoOpenRuntimesDoNotMeet, soft_fixture_clocks, clock) {
  soft_fixture f = soft_fixture_open(clock, NULL), g = soft_fixture_open(clock, NULL);
  char *of_f = alloc(&f, 0, MIB), *of_g = alloc(&g, 0, MIB);
  memset(of_f, 1, MIB);
  memset(of_g, 2, MIB);
  LADE_EXPECT_EQ_INT(of_f[MIB - 1], 1);
  LADE_EXPECT_EQ_INT(of_g[MIB - 1], 2);
  give_back(&f, 0, of_f);
  give_back(&g, 0, of_g);
  soft_fixture_close(&f);
  soft_fixture_close(&g);
}

/* ---- driver pools ------------------------------------------------------------------------------------------------ */

static uint64_t attribute(const soft_fixture *f, ladei_driver_pool pool, ladei_pool_attribute what) {
  uint64_t value = 0;
  LADE_EXPECT_OK(f->ops->pool_attribute_get(f->self, pool, what, &value));
  return value;
}

/* Bug: what the runtime jumped over, since the program had memory there, it took for memory of its own that was freed: programs
 * with many runtimes could not copy from some of their memory. */
LADE_TEST_P(Addresses, WhatWasJumpedOverIsTheProgramsOwn, soft_fixture_clocks, clock) {
  soft_fixture f = soft_fixture_open(clock, NULL);
  char *first = alloc(&f, 0, 2 * MIB);
  char *own =
      mmap(first + 2 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  LADE_ASSERT(own == first + 2 * MIB);
  char *second = alloc(&f, 0, 2 * MIB);
  LADE_EXPECT(second > own);
  memset(own, 7, 2 * MIB);
  LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_H2D, second, own, 2 * MIB));
  own[0] = 1;
  LADE_EXPECT_OK(f.ops->copy_sync(f.self, 0, LADEI_COPY_D2H, own, second, 2 * MIB));
  LADE_EXPECT_EQ_INT(own[0], 7);
  give_back(&f, 0, first); /* on both sides of it, what was handed out is known still */
  give_back(&f, 0, second);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->copy_sync(f.self, 0, LADEI_COPY_D2H, first, own, MIB));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->copy_sync(f.self, 0, LADEI_COPY_D2H, second, own, MIB));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&f).freed_memory_used, 2);
  munmap(own, 2 * MIB);
  soft_fixture_close(&f);
}

LADE_TEST_P(Pools, ReuseAtOnceOnTheSameStreamAndOnOthersOnceFinished, soft_fixture_clocks, clock) {
  soft_fixture f = soft_fixture_open(clock, NULL);
  ladei_stream a = soft_fixture_stream(&f, 0), b = soft_fixture_stream(&f, 0);
  ladei_driver_pool pool = NULL;
  LADE_EXPECT_OK(f.ops->pool_default(f.self, 0, &pool));
  LADE_EXPECT_OK(f.ops->pool_attribute_set(f.self, pool, LADEI_POOL_RELEASE_THRESHOLD, GIB));
  void *block = NULL, *again = NULL, *other = NULL;
  LADE_EXPECT_OK(f.ops->pool_alloc(f.self, pool, MIB, &a, &block));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, a.handle, true));
  LADE_EXPECT_OK(f.ops->fill(f.self, block, 1, MIB, &a));
  LADE_EXPECT_OK(f.ops->pool_free(f.self, block, &a));
  LADE_EXPECT_OK(f.ops->pool_alloc(f.self, pool, MIB, &b, &other));
  LADE_EXPECT_NE_PTR(other, block); /* a has not freed it yet */
  LADE_EXPECT_OK(f.ops->pool_alloc(f.self, pool, MIB, &a, &again));
  LADE_EXPECT_EQ_PTR(again, block);
  LADE_EXPECT_OK(f.ops->pool_free(f.self, again, &a));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, a.handle, false));
  soft_fixture_synchronize(&f, &a);
  LADE_EXPECT_OK(f.ops->pool_free(f.self, other, &b));
  soft_fixture_synchronize(&f, &b);
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_RESERVED_CURRENT), 32 * MIB);
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_USED_CURRENT), 0);
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_USED_HIGH), 2 * MIB);
  LADE_EXPECT_OK(f.ops->pool_alloc(f.self, pool, MIB, &b, &other));
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_RESERVED_CURRENT), 32 * MIB);
  LADE_EXPECT_OK(f.ops->pool_free(f.self, other, &b));
  soft_fixture_synchronize(&f, &b);
  LADE_EXPECT_OK(f.ops->pool_trim(f.self, pool, 0));
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_RESERVED_CURRENT), 0);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&f).device_bytes, 0);
  soft_fixture_expect_no_finding(&f);
  soft_fixture_close(&f);
}

LADE_TEST_P(Pools, KeepFreedBlocksThatQueuedWorkStillUses, soft_fixture_clocks, clock) {
  soft_fixture f = soft_fixture_open(clock, NULL);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  ladei_driver_pool pool = NULL;
  void *block = NULL;
  char *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(f.ops->pool_default(f.self, 0, &pool));
  LADE_EXPECT_OK(f.ops->pool_alloc(f.self, pool, MIB, &stream, &block));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, true));
  LADE_EXPECT_OK(f.ops->fill(f.self, block, 9, MIB, &stream));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, host, block, MIB, &stream));
  LADE_EXPECT_OK(f.ops->pool_free(f.self, block, &stream));
  LADE_EXPECT_OK(f.ops->pool_trim(f.self, pool, 0));
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_RESERVED_CURRENT), 32 * MIB);
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, false));
  soft_fixture_synchronize(&f, &stream); /* gives back what is over the threshold, which is 0 */
  LADE_EXPECT_EQ_UINT(attribute(&f, pool, LADEI_POOL_RESERVED_CURRENT), 0);
  LADE_EXPECT_EQ_INT(host[MIB - 1], 9);
  soft_fixture_expect_no_finding(&f);
  soft_fixture_close(&f);
}

LADE_TEST_P(Pools, DestroyedOnesKeepTheirBlocksUntilFreed, soft_fixture_clocks, clock) {
  soft_fixture f = soft_fixture_open(clock, NULL);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  const ladei_pool_properties host_pool = {LADEI_POOL_HOST, 0, 4 * MIB};
  ladei_driver_pool pool = NULL;
  void *block = NULL, *refused = NULL;
  LADE_EXPECT_OK(f.ops->pool_create(f.self, &host_pool, &pool));
  LADE_EXPECT_OK(f.ops->pool_alloc(f.self, pool, 3 * MIB, &stream, &block));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, f.ops->pool_alloc(f.self, pool, 3 * MIB, &stream, &refused));
  LADE_EXPECT_OK(f.ops->pool_destroy(f.self, pool));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, f.ops->pool_alloc(f.self, pool, MIB, &stream, &refused));
  memset(block, 1, 3 * MIB);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, f.ops->close(f.self));
  LADE_EXPECT_OK(f.ops->pool_free(f.self, block, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&f).pinned_bytes, 0);
  soft_fixture_close(&f);
}

/* ---- switched off ------------------------------------------------------------------------------------------------ */

LADE_TEST_P(Switches, TurnGroupsIntoUnsupported, soft_fixture_clocks, clock) {
  const lade_soft_device device = {.no_virtual_memory = 1, .no_driver_pools = 1, .no_copy_batch = 1};
  soft_fixture f = open_described(clock, &device, 1);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  size_t granule = 0, recommended = 0, bytes = 1;
  void *out = NULL, *dst = &out;
  const void *src = &out;
  ladei_vm_handle handle = 0;
  ladei_driver_pool pool = NULL;
  const ladei_pool_properties properties = {LADEI_POOL_DEVICE, 0, 0};
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, f.ops->vm_granularity(f.self, 0, &granule, &recommended));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, f.ops->vm_reserve(f.self, 0, 2 * MIB, 0, &out));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, f.ops->vm_create(f.self, 0, 2 * MIB, false, &handle));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, f.ops->pool_default(f.self, 0, &pool));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, f.ops->pool_create(f.self, &properties, &pool));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, f.ops->copy_batch(f.self, LADEI_COPY_H2H, 1, &dst, &src, &bytes, &stream));
  int64_t value = 1;
  LADE_EXPECT_OK(f.ops->device_attribute(f.self, 0, LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED, &value));
  LADE_EXPECT_EQ_INT(value, 0);
  soft_fixture_close(&f);
}

LADE_TEST(Open, RefusesBadDescriptions) {
  const lade_runtime_ops *ops = NULL;
  void *self = NULL;
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.device_count = 2; /* without descriptions */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_open(true, &options, &ops, &self));
  lade_soft_device devices[65] = {{.vm_granularity_bytes = 3 * MIB}};
  options.devices = devices;
  options.device_count = 1;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_open(true, &options, &ops, &self));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "vm_granularity_bytes");
  devices[0] = (lade_soft_device){.memory_bytes = SIZE_MAX};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_open(true, &options, &ops, &self));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "memory_bytes is 18446744073709551615; expected less than 2^60");
  devices[0] = (lade_soft_device){.numa_node = -1};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_open(true, &options, &ops, &self));
  LADE_EXPECT_EQ_STR(lade_last_error()->text,
                     "lade_runtime_open: options.soft.devices[0].numa_node is -1; expected a node + 1, or 0");
  devices[0] = (lade_soft_device){.memory_bytes = 0};
  options.device_count = 65;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_open(true, &options, &ops, &self));
  LADE_EXPECT_EQ_PTR(ops, NULL);
  LADE_EXPECT_EQ_PTR(self, NULL);
}
