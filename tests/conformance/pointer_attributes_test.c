/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: What the runtime says of an address: any address, at any place in its memory. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

static ladei_pointer_attributes attributes_of(lade_runtime *runtime, const void *pointer) {
  ladei_pointer_attributes attributes;
  memset(&attributes, 0xa5, sizeof attributes);
  LADE_EXPECT_OK(OP(pointer_attributes, pointer, &attributes));
  return attributes;
}

static void expect_unknown(lade_runtime *runtime, const void *pointer) {
  ladei_pointer_attributes attributes = attributes_of(runtime, pointer);
  LADE_EXPECT_EQ_INT(attributes.kind, LADEI_MEMORY_UNKNOWN);
  LADE_EXPECT_EQ_INT(attributes.device, -1);
  LADE_EXPECT_EQ_UINT(attributes.base, 0);
  LADE_EXPECT_EQ_SIZE(attributes.bytes, 0);
  LADE_EXPECT_EQ_PTR(attributes.device_alias, NULL);
}

/* Start, middle and last byte answer alike. */
static void expect_kind(lade_runtime *runtime, const char *base, size_t bytes, ladei_memory_kind kind, int device) {
  const char *places[] = {base, base + bytes / 2, base + bytes - 1};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    ladei_pointer_attributes attributes = attributes_of(runtime, places[i]);
    LADE_EXPECT_EQ_INT(attributes.kind, kind);
    LADE_EXPECT_EQ_INT(attributes.device, device);
    LADE_EXPECT_EQ_UINT(attributes.base, (uintptr_t)base);
    LADE_EXPECT_GE_SIZE(attributes.bytes, bytes);
    if (kind == LADEI_MEMORY_DEVICE) LADE_EXPECT_EQ_PTR(attributes.device_alias, NULL);
  }
}

CONFORMANCE_TEST(PointerAttributes, OrdinaryAndAbsurdAddressesAreUnknownNotErrors) {
  int on_stack = 0;
  static int in_data;
  void *heap = malloc(100000);
  expect_unknown(runtime, &on_stack);
  expect_unknown(runtime, &in_data);
  expect_unknown(runtime, heap);
  expect_unknown(runtime, (char *)heap + 50000);
  expect_unknown(runtime, NULL);
  expect_unknown(runtime, (void *)(uintptr_t)1);
  expect_unknown(runtime, (void *)UINTPTR_MAX);
  free(heap);
}

CONFORMANCE_TEST(PointerAttributes, DeviceMemoryIsKnownByAnyAddressInIt) {
  int count = conformance_device_count(runtime);
  for (int device = 0; device < count; device++) {
    char *memory = conformance_device_memory(runtime, device, 1000000);
    expect_kind(runtime, memory, 1000000, LADEI_MEMORY_DEVICE, device);
    LADE_ASSERT_OK(OP(device_free, device, memory));
    expect_unknown(runtime, memory);
  }
}

CONFORMANCE_TEST(PointerAttributes, NeighbouringAllocationsAreToldApart) {
  enum { COUNT = 32, BYTES = 512 };
  char *memory[COUNT];
  for (int i = 0; i < COUNT; i++) memory[i] = conformance_device_memory(runtime, 0, BYTES);
  for (int i = 0; i < COUNT; i++) expect_kind(runtime, memory[i], BYTES, LADEI_MEMORY_DEVICE, 0);
  for (int i = 0; i < COUNT; i += 2) LADE_ASSERT_OK(OP(device_free, 0, memory[i]));
  for (int i = 1; i < COUNT; i += 2) expect_kind(runtime, memory[i], BYTES, LADEI_MEMORY_DEVICE, 0);
  for (int i = 1; i < COUNT; i += 2) LADE_ASSERT_OK(OP(device_free, 0, memory[i]));
}

CONFORMANCE_TEST(PointerAttributes, PinnedMemoryIsKnownByAnyAddressInIt) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 6 * page;
  char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(own != MAP_FAILED);
  char *allocated = conformance_pinned(runtime, bytes);
  expect_kind(runtime, allocated, bytes, LADEI_MEMORY_PINNED, 0);
  LADE_ASSERT_OK(OP(host_free, allocated));

  LADE_ASSERT_OK(OP(host_register, 0, own + page, 4 * page, 0));
  expect_kind(runtime, own + page, 4 * page, LADEI_MEMORY_PINNED, 0);
  expect_unknown(runtime, own);
  expect_unknown(runtime, own + page - 1);
  expect_unknown(runtime, own + 5 * page);
  LADE_ASSERT_OK(OP(host_unregister, own + page));
  expect_unknown(runtime, own + page);
  munmap(own, bytes);
}

CONFORMANCE_TEST(PointerAttributes, MappedPinnedMemoryHasADeviceAlias) {
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_CAN_MAP_HOST_MEMORY), "the device cannot map host memory");
  char *memory = NULL;
  LADE_ASSERT_OK(OP(host_alloc, 0, 8192, 0, (void **)&memory));
  ladei_pointer_attributes start = attributes_of(runtime, memory), inside = attributes_of(runtime, memory + 100);
  LADE_ASSERT(start.device_alias != NULL);
  LADE_EXPECT_EQ_PTR(inside.device_alias, (char *)start.device_alias + 100);
  /* The alias is the same memory. */
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  LADE_ASSERT_OK(OP(fill, start.device_alias, 42, 8192, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(memory, 8192, 42);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(host_free, memory));
}

CONFORMANCE_TEST(PointerAttributes, VirtualMemoryIsDeviceMemoryWhereMapped) {
  NEEDS_OP(vm_reserve);
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED), "no virtual memory on this device");
  size_t step, recommended;
  void *address;
  ladei_vm_handle handle;
  /* Mapping memory needs no context, asking about it does. */
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(vm_granularity, 0, &step, &recommended));
  LADE_ASSERT_OK(OP(vm_reserve, 0, 2 * step, 0, &address));
  LADE_ASSERT_OK(OP(vm_create, 0, step, false, &handle));
  LADE_ASSERT_OK(OP(vm_map, address, step, handle));
  LADE_ASSERT_OK(OP(vm_set_access, address, step, 0, true));
  ladei_pointer_attributes attributes = attributes_of(runtime, (char *)address + step / 2);
  LADE_EXPECT_EQ_INT(attributes.kind, LADEI_MEMORY_DEVICE);
  LADE_EXPECT_EQ_INT(attributes.device, 0);
  LADE_ASSERT_OK(OP(vm_unmap, address, step));
  LADE_ASSERT_OK(OP(vm_release, handle));
  LADE_ASSERT_OK(OP(vm_address_free, address, 2 * step));
  expect_unknown(runtime, address);
}

CONFORMANCE_TEST(PointerAttributes, DriverPoolMemoryIsDeviceMemory) {
  NEEDS_OP(pool_create);
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_DRIVER_POOLS_SUPPORTED), "no driver pools on this device");
  ladei_driver_pool pool;
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *memory;
  LADE_ASSERT_OK(OP(pool_default, 0, &pool));
  LADE_ASSERT_OK(OP(pool_alloc, pool, 4096, &stream, &memory));
  ladei_pointer_attributes attributes = attributes_of(runtime, memory);
  LADE_EXPECT_EQ_INT(attributes.kind, LADEI_MEMORY_DEVICE);
  LADE_EXPECT_EQ_INT(attributes.device, 0);
  LADE_ASSERT_OK(OP(pool_free, memory, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
