/* SPDX-License-Identifier: Apache-2.0 */
/* Driver pools: allocation and free in stream order, what the pool keeps, its limits. */
#include <stdint.h>
#include <string.h>

#include "tests/conformance/conformance.h"

#define NEEDS_DRIVER_POOLS()                                                                                           \
  NEEDS_OP(pool_create);                                                                                               \
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_DRIVER_POOLS_SUPPORTED), "no driver pools on this device")

enum { MIB = 1 << 20 };

static ladei_driver_pool pool_of_device(lade_runtime *runtime, size_t max_bytes) {
  ladei_pool_properties properties = {LADEI_POOL_DEVICE, 0, max_bytes};
  ladei_driver_pool pool = NULL;
  LADE_EXPECT_OK(OP(pool_create, &properties, &pool));
  return pool;
}

static uint64_t attribute(lade_runtime *runtime, ladei_driver_pool pool, ladei_pool_attribute which) {
  uint64_t value = UINT64_MAX;
  LADE_EXPECT_OK(OP(pool_attribute_get, pool, which, &value));
  return value;
}

CONFORMANCE_TEST(DriverPools, MemoryIsUsableByLaterWorkOfTheStream) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  enum { BYTES = 100000 };
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  support_pattern_fill(in, BYTES, 1, 0);
  void *memory = NULL;
  LADE_ASSERT_OK(OP(pool_alloc, pool, BYTES, &stream, &memory));
  LADE_ASSERT(memory != NULL);
  LADE_EXPECT_EQ_UINT((uintptr_t)memory % 256, 0);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, in, BYTES, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, BYTES, &stream));
  LADE_EXPECT_OK(OP(pool_free, memory, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_PATTERN(out, BYTES, 1, 0);
  LADE_EXPECT_OK(OP(host_free, in));
  LADE_EXPECT_OK(OP(host_free, out));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

/* A free that waits behind a hold must not hand the memory to another stream. */
CONFORMANCE_TEST(DriverPools, FreeIsInStreamOrder) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream held = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  enum { BYTES = 4 * MIB };
  char *out = conformance_pinned(runtime, BYTES);
  void *first, *second;
  LADE_ASSERT_OK(OP(pool_alloc, pool, BYTES, &held, &first));
  LADE_ASSERT_OK(OP(stream_synchronize, &held));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, held.handle));
  LADE_EXPECT_OK(OP(fill, first, 1, BYTES, &held));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, first, BYTES, &held));
  LADE_EXPECT_OK(OP(pool_free, first, &held));
  LADE_ASSERT_OK(OP(pool_alloc, pool, BYTES, &other, &second));
  LADE_EXPECT_OK(OP(fill, second, 2, BYTES, &other));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &held));
  EXPECT_BYTES(out, BYTES, 1);
  LADE_EXPECT_OK(OP(pool_free, second, &other));
  LADE_EXPECT_OK(OP(stream_synchronize, &other));
  LADE_EXPECT_OK(OP(host_free, out));
  LADE_EXPECT_OK(OP(stream_destroy, held.handle));
  LADE_EXPECT_OK(OP(stream_destroy, other.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

CONFORMANCE_TEST(DriverPools, CountersFollowUse) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *a, *b;
  LADE_EXPECT_EQ_UINT(attribute(runtime, pool, LADEI_POOL_USED_CURRENT), 0);
  LADE_ASSERT_OK(OP(pool_alloc, pool, 3 * MIB, &stream, &a));
  LADE_ASSERT_OK(OP(pool_alloc, pool, 2 * MIB, &stream, &b));
  LADE_EXPECT_GE_UINT(attribute(runtime, pool, LADEI_POOL_USED_CURRENT), 5 * MIB);
  LADE_EXPECT_GE_UINT(attribute(runtime, pool, LADEI_POOL_RESERVED_CURRENT), 5 * MIB);
  LADE_ASSERT_OK(OP(pool_free, a, &stream));
  LADE_ASSERT_OK(OP(pool_free, b, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_UINT(attribute(runtime, pool, LADEI_POOL_USED_CURRENT), 0);
  LADE_EXPECT_GE_UINT(attribute(runtime, pool, LADEI_POOL_USED_HIGH), 5 * MIB);
  LADE_EXPECT_GE_UINT(attribute(runtime, pool, LADEI_POOL_RESERVED_HIGH), 5 * MIB);
  LADE_ASSERT_OK(OP(pool_attribute_set, pool, LADEI_POOL_USED_HIGH, 0));
  LADE_EXPECT_EQ_UINT(attribute(runtime, pool, LADEI_POOL_USED_HIGH), 0);
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

/* Threshold 0 is the default: what is free goes back when the stream is synchronised. */
CONFORMANCE_TEST(DriverPools, ReleaseThresholdAndTrimSayWhatIsKept) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *memory;
  LADE_EXPECT_EQ_UINT(attribute(runtime, pool, LADEI_POOL_RELEASE_THRESHOLD), 0);
  LADE_ASSERT_OK(OP(pool_attribute_set, pool, LADEI_POOL_RELEASE_THRESHOLD, UINT64_MAX));
  LADE_EXPECT_EQ_UINT(attribute(runtime, pool, LADEI_POOL_RELEASE_THRESHOLD), UINT64_MAX);
  LADE_ASSERT_OK(OP(pool_alloc, pool, 8 * MIB, &stream, &memory));
  LADE_ASSERT_OK(OP(pool_free, memory, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_GE_UINT(attribute(runtime, pool, LADEI_POOL_RESERVED_CURRENT), 8 * MIB);
  LADE_ASSERT_OK(OP(pool_trim, pool, 0));
  LADE_EXPECT_EQ_UINT(attribute(runtime, pool, LADEI_POOL_RESERVED_CURRENT), 0);
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

CONFORMANCE_TEST(DriverPools, AttributesThatOnlyReadRefuseToBeSet) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  uint64_t value = 77;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_attribute_set", NULL,
                 OP(pool_attribute_set, pool, LADEI_POOL_USED_CURRENT, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_attribute_set", NULL,
                 OP(pool_attribute_set, pool, LADEI_POOL_RESERVED_CURRENT, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_attribute_set", NULL,
                 OP(pool_attribute_set, pool, LADEI_POOL_USED_HIGH, 5));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_attribute_get", NULL,
                 OP(pool_attribute_get, pool, (ladei_pool_attribute)99, &value));
  LADE_EXPECT_EQ_UINT(value, 77);
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

CONFORMANCE_TEST(DriverPools, DefaultPoolIsThereAndStays) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = NULL, again = NULL;
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *memory;
  LADE_ASSERT_OK(OP(pool_default, 0, &pool));
  LADE_ASSERT_OK(OP(pool_default, 0, &again));
  LADE_EXPECT_EQ_PTR(pool, again);
  LADE_ASSERT_OK(OP(pool_alloc, pool, 4096, &stream, &memory));
  LADE_ASSERT_OK(OP(pool_free, memory, &stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_destroy", NULL, OP(pool_destroy, pool));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(DriverPools, MemoryOutlivesItsPool) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  enum { BYTES = 50000 };
  char *out = conformance_pinned(runtime, BYTES);
  void *memory;
  LADE_ASSERT_OK(OP(pool_alloc, pool, BYTES, &stream, &memory));
  LADE_ASSERT_OK(OP(pool_destroy, pool));
  LADE_EXPECT_OK(OP(fill, memory, 9, BYTES, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, BYTES, &stream));
  LADE_EXPECT_OK(OP(pool_free, memory, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(out, BYTES, 9);
  LADE_EXPECT_OK(OP(host_free, out));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(DriverPools, RunOutOfMemory) {
  NEEDS_DRIVER_POOLS();
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *memory = &pool;
  EXPECT_REFUSED(LADE_ERR_OUT_OF_DEVICE_MEMORY, "pool_alloc", "1125899906842624",
                 OP(pool_alloc, pool, (size_t)1 << 50, &stream, &memory));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_alloc", NULL, OP(pool_alloc, pool, 0, &stream, &memory));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "pool_free", NULL, OP(pool_free, NULL, &stream));
  LADE_EXPECT_EQ_PTR(memory, &pool);
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

CONFORMANCE_TEST(DriverPools, LimitOfAPoolHolds) {
  NEEDS_DRIVER_POOLS();
  ladei_pool_properties properties = {LADEI_POOL_DEVICE, 0, (size_t)64 << 20};
  ladei_driver_pool pool;
  lade_status created = OP(pool_create, &properties, &pool);
  if (created == LADE_ERR_UNSUPPORTED) LADE_SKIP("this driver has no pools with a limit");
  LADE_ASSERT_OK(created);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *first, *second = &pool;
  LADE_ASSERT_OK(OP(pool_alloc, pool, (size_t)40 << 20, &stream, &first));
  EXPECT_REFUSED(LADE_ERR_OUT_OF_DEVICE_MEMORY, "pool_alloc", NULL,
                 OP(pool_alloc, pool, (size_t)40 << 20, &stream, &second));
  LADE_EXPECT_EQ_PTR(second, &pool);
  LADE_ASSERT_OK(OP(pool_free, first, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(pool_alloc, pool, (size_t)40 << 20, &stream, &first));
  LADE_ASSERT_OK(OP(pool_free, first, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

CONFORMANCE_TEST(DriverPools, PeersGetAccess) {
  NEEDS_DRIVER_POOLS();
  NEEDS_TWO_DEVICES();
  bool can = false;
  LADE_ASSERT_OK(OP(peer_can_access, 1, 0, &can));
  NEEDS(can, "the devices cannot access each other");
  ladei_driver_pool pool = pool_of_device(runtime, 0);
  ladei_stream home = conformance_stream(runtime, 0, 0), away = conformance_stream(runtime, 1, 0);
  void *memory;
  LADE_ASSERT_OK(OP(pool_alloc, pool, 4096, &home, &memory));
  LADE_ASSERT_OK(OP(stream_synchronize, &home));
  LADE_ASSERT_OK(OP(pool_set_access, pool, 1, true));
  LADE_EXPECT_OK(OP(fill, memory, 3, 4096, &away));
  LADE_ASSERT_OK(OP(stream_synchronize, &away));
  LADE_ASSERT_OK(OP(pool_set_access, pool, 1, false));
  EXPECT_REFUSED(LADE_ERR_NO_DEVICE, "pool_set_access", NULL, OP(pool_set_access, pool, 0, false));
  LADE_ASSERT_OK(OP(pool_free, memory, &home));
  LADE_ASSERT_OK(OP(stream_synchronize, &home));
  LADE_EXPECT_OK(OP(stream_destroy, home.handle));
  LADE_EXPECT_OK(OP(stream_destroy, away.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

/* Any address names its block, also behind another block of the pool. */
static void expect_block(lade_runtime *runtime, const char *memory, size_t bytes) {
  ladei_pointer_attributes attributes;
  LADE_EXPECT_OK(OP(pointer_attributes, memory + bytes / 2, &attributes));
  LADE_EXPECT_EQ_INT(attributes.kind, LADEI_MEMORY_PINNED);
  LADE_EXPECT_EQ_UINT(attributes.base, (uintptr_t)memory);
  LADE_EXPECT_GE_SIZE(attributes.bytes, bytes);
}

static void use_host_pool(lade_runtime *runtime, ladei_pool_location location, int32_t id) {
  ladei_pool_properties properties = {location, id, 0};
  ladei_driver_pool pool;
  LADE_ASSERT_OK(OP(pool_create, &properties, &pool));
  LADE_EXPECT_OK(OP(pool_set_access, pool, 0, true)); /* the host's alone until then */
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *first, *memory;
  LADE_ASSERT_OK(OP(pool_alloc, pool, 65536, &stream, &first));
  LADE_ASSERT_OK(OP(pool_alloc, pool, 65536, &stream, &memory));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  expect_block(runtime, first, 65536);
  expect_block(runtime, memory, 65536);
  support_pattern_fill(memory, 65536, 3, 0);
  void *device = conformance_device_memory(runtime, 0, 65536);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, device, memory, 65536, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  memset(memory, 0, 65536);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, memory, device, 65536, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_PATTERN(memory, 65536, 3, 0);
  LADE_EXPECT_OK(OP(device_free, 0, device));
  LADE_ASSERT_OK(OP(pool_free, first, &stream));
  LADE_ASSERT_OK(OP(pool_free, memory, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_EXPECT_OK(OP(pool_destroy, pool));
}

CONFORMANCE_TEST(DriverPools, HostPoolsGivePinnedMemory) {
  NEEDS_DRIVER_POOLS();
  if (conformance_has(runtime, 0, LADEI_ATTR_HOST_POOLS_SUPPORTED)) {
    use_host_pool(runtime, LADEI_POOL_HOST, 0);
  } else {
    ladei_pool_properties properties = {LADEI_POOL_HOST, 0, 0};
    ladei_driver_pool pool;
    EXPECT_REFUSED(LADE_ERR_UNSUPPORTED, "pool_create", NULL, OP(pool_create, &properties, &pool));
  }
}

CONFORMANCE_TEST(DriverPools, HostPoolsOfANumaNodeGivePinnedMemory) {
  NEEDS_DRIVER_POOLS();
  if (conformance_has(runtime, 0, LADEI_ATTR_HOST_NUMA_POOLS_SUPPORTED)) {
    use_host_pool(runtime, LADEI_POOL_HOST_NUMA, 0);
  } else {
    ladei_pool_properties properties = {LADEI_POOL_HOST_NUMA, 0, 0};
    ladei_driver_pool pool;
    EXPECT_REFUSED(LADE_ERR_UNSUPPORTED, "pool_create", NULL, OP(pool_create, &properties, &pool));
  }
}
