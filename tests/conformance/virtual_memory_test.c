/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Virtual memory: addresses without memory, memory mapped into them piece by piece, access, sharing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

#define NEEDS_VIRTUAL_MEMORY()                                                                                         \
  NEEDS_OP(vm_reserve);                                                                                                \
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED), "no virtual memory on this device")

static size_t granule(lade_runtime *runtime) {
  size_t minimum = 0, recommended = 0;
  LADE_EXPECT_OK(OP(vm_granularity, 0, &minimum, &recommended));
  return minimum;
}

/* One reservation with one handle mapped at its start, accessible to device 0. */
typedef struct mapping {
  char *address;
  size_t reserved_bytes, mapped_bytes;
  ladei_vm_handle handle;
} mapping;

static void mapping_create(lade_runtime *runtime, size_t reserved_bytes, size_t mapped_bytes, mapping *out) {
  *out = (mapping){NULL, reserved_bytes, mapped_bytes, 0};
  void *address = NULL;
  LADE_ASSERT_OK(OP(vm_reserve, 0, reserved_bytes, 0, &address));
  out->address = address;
  LADE_ASSERT_OK(OP(vm_create, 0, mapped_bytes, false, &out->handle));
  LADE_ASSERT_OK(OP(vm_map, address, mapped_bytes, out->handle));
  LADE_ASSERT_OK(OP(vm_set_access, address, mapped_bytes, 0, true));
}

static void mapping_destroy(lade_runtime *runtime, const mapping *m) {
  LADE_EXPECT_OK(OP(vm_unmap, m->address, m->mapped_bytes));
  LADE_EXPECT_OK(OP(vm_release, m->handle));
  LADE_EXPECT_OK(OP(vm_address_free, m->address, m->reserved_bytes));
}

static void expect_round_trip(lade_runtime *runtime, void *device_memory, size_t bytes, uint64_t seed) {
  char *host = malloc(bytes);
  support_pattern_fill(host, bytes, seed, 0);
  LADE_EXPECT_OK(OP(copy_sync, 0, LADEI_COPY_H2D, device_memory, host, bytes));
  memset(host, 0, bytes);
  LADE_EXPECT_OK(OP(copy_sync, 0, LADEI_COPY_D2H, host, device_memory, bytes));
  LADE_EXPECT_PATTERN(host, bytes, seed, 0);
  free(host);
}

CONFORMANCE_TEST(VirtualMemory, GranularityIsAPowerOfTwoAndTheRecommendedOneAMultiple) {
  NEEDS_VIRTUAL_MEMORY();
  size_t minimum = 0, recommended = 0;
  LADE_ASSERT_OK(OP(vm_granularity, 0, &minimum, &recommended));
  LADE_ASSERT_GT_SIZE(minimum, 0);
  LADE_EXPECT_EQ_SIZE(minimum & (minimum - 1), 0);
  LADE_EXPECT_EQ_SIZE(recommended % minimum, 0);
}

CONFORMANCE_TEST(VirtualMemory, MappedMemoryHoldsBytes) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime);
  mapping m;
  mapping_create(runtime, 4 * step, step, &m);
  expect_round_trip(runtime, m.address, step, 1);
  mapping_destroy(runtime, &m);
}

/* What expandable segments live on: a block may lie across the border of two handles. */
CONFORMANCE_TEST(VirtualMemory, CopiesCrossTheBorderOfTwoHandles) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime);
  mapping m;
  mapping_create(runtime, 2 * step, step, &m);
  ladei_vm_handle second;
  LADE_ASSERT_OK(OP(vm_create, 0, step, false, &second));
  LADE_ASSERT_OK(OP(vm_map, m.address + step, step, second));
  LADE_ASSERT_OK(OP(vm_set_access, m.address, 2 * step, 0, true));
  expect_round_trip(runtime, m.address + step - 5000, 10000, 2);
  LADE_ASSERT_OK(OP(vm_unmap, m.address + step, step));
  LADE_ASSERT_OK(OP(vm_release, second));
  mapping_destroy(runtime, &m);
}

CONFORMANCE_TEST(VirtualMemory, AlignmentIsHonoured) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime);
  void *address = NULL;
  LADE_ASSERT_OK(OP(vm_reserve, 0, step, 8 * step, &address));
  LADE_EXPECT_EQ_UINT((uintptr_t)address % (8 * step), 0);
  LADE_ASSERT_OK(OP(vm_address_free, address, step));
}

CONFORMANCE_TEST(VirtualMemory, OnlyPhysicalMemoryCounts) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime), bytes = (((size_t)32 << 20) + step - 1) / step * step, before, now, total;
  void *address = NULL;
  ladei_vm_handle handle;
  LADE_ASSERT_OK(OP(memory_info, 0, &before, &total));
  LADE_ASSERT_OK(OP(vm_reserve, 0, 16 * total / step * step, 0, &address));
  LADE_ASSERT_OK(OP(memory_info, 0, &now, &total));
  LADE_EXPECT_GE_SIZE(now + step, before);
  LADE_ASSERT_OK(OP(vm_create, 0, bytes, false, &handle));
  LADE_ASSERT_OK(OP(memory_info, 0, &now, &total));
  LADE_EXPECT_LE_SIZE(now, before - bytes);
  LADE_ASSERT_OK(OP(vm_release, handle));
  LADE_ASSERT_OK(OP(memory_info, 0, &now, &total));
  LADE_EXPECT_GE_SIZE(now + step, before);
  LADE_ASSERT_OK(OP(vm_address_free, address, 16 * total / step * step));
}

/* Release first, unmap later: memory lives until both have happened. */
CONFORMANCE_TEST(VirtualMemory, MappedMemoryOutlivesItsHandle) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime), before, now, total;
  mapping m;
  LADE_ASSERT_OK(OP(memory_info, 0, &before, &total));
  mapping_create(runtime, step, step, &m);
  LADE_ASSERT_OK(OP(vm_release, m.handle));
  expect_round_trip(runtime, m.address, step, 3);
  LADE_ASSERT_OK(OP(memory_info, 0, &now, &total));
  LADE_EXPECT_LE_SIZE(now, before - step);
  LADE_ASSERT_OK(OP(vm_unmap, m.address, step));
  LADE_ASSERT_OK(OP(memory_info, 0, &now, &total));
  LADE_EXPECT_GE_SIZE(now + step, before);
  LADE_ASSERT_OK(OP(vm_address_free, m.address, step));
}

/* A handle keeps its bytes while it is mapped nowhere, and shows them at every address it is mapped at. */
CONFORMANCE_TEST(VirtualMemory, OneHandleAtTwoAddressesIsTheSameMemory) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime);
  mapping m;
  mapping_create(runtime, 2 * step, step, &m);
  char *alias = m.address + step, *host = malloc(step);
  support_pattern_fill(host, step, 4, 0);
  LADE_ASSERT_OK(OP(copy_sync, 0, LADEI_COPY_H2D, m.address, host, step));
  LADE_ASSERT_OK(OP(vm_unmap, m.address, step));
  LADE_ASSERT_OK(OP(vm_map, alias, step, m.handle));
  LADE_ASSERT_OK(OP(vm_map, m.address, step, m.handle));
  LADE_ASSERT_OK(OP(vm_set_access, m.address, 2 * step, 0, true));
  conformance_expect_device_pattern(runtime, 0, alias, step, 4);
  support_pattern_fill(host, step, 5, 0);
  LADE_ASSERT_OK(OP(copy_sync, 0, LADEI_COPY_H2D, alias, host, step));
  conformance_expect_device_pattern(runtime, 0, m.address, step, 5);
  LADE_ASSERT_OK(OP(vm_unmap, alias, step));
  mapping_destroy(runtime, &m);
  free(host);
}

CONFORMANCE_TEST(VirtualMemory, RunsOut) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime), free_bytes, total;
  LADE_ASSERT_OK(OP(memory_info, 0, &free_bytes, &total));
  ladei_vm_handle handle = 77;
  EXPECT_REFUSED(LADE_ERR_OUT_OF_DEVICE_MEMORY, "vm_create", NULL,
                 OP(vm_create, 0, (total / step + 1) * step, false, &handle));
  LADE_EXPECT_EQ_UINT(handle, 77);
}

CONFORMANCE_TEST(VirtualMemory, CrookedSizesAndAddressesAreRefused) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime);
  void *address = &step;
  ladei_vm_handle handle = 77;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_reserve", NULL, OP(vm_reserve, 0, step + 1, 0, &address));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_reserve", NULL, OP(vm_reserve, 0, 0, 0, &address));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_reserve", NULL, OP(vm_reserve, 0, step, 3 * step, &address));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_create", NULL, OP(vm_create, 0, step / 2, false, &handle));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_create", NULL, OP(vm_create, 0, 0, false, &handle));
  LADE_EXPECT_EQ_PTR(address, &step);
  LADE_EXPECT_EQ_UINT(handle, 77);
}

CONFORMANCE_TEST(VirtualMemory, MappingsAreWholeAndDoNotOverlap) {
  NEEDS_VIRTUAL_MEMORY();
  size_t step = granule(runtime);
  mapping m;
  mapping_create(runtime, 4 * step, 2 * step, &m);
  ladei_vm_handle other;
  LADE_ASSERT_OK(OP(vm_create, 0, 2 * step, false, &other));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_map", NULL, OP(vm_map, m.address + step, 2 * step, other));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_map", NULL, OP(vm_map, m.address + 2 * step, step, other));
  if (conformance_finds_reservations_out)
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_map", NULL, OP(vm_map, m.address + 3 * step, 2 * step, other));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_unmap", NULL, OP(vm_unmap, m.address, step));
  if (conformance_finds_reservations_out)
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_unmap", NULL, OP(vm_unmap, m.address + 2 * step, 2 * step));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_set_access", NULL,
                 OP(vm_set_access, m.address + 2 * step, 2 * step, 0, true));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_address_free", NULL, OP(vm_address_free, m.address, 4 * step));
  /* All refused, nothing changed. */
  expect_round_trip(runtime, m.address, 2 * step, 6);
  LADE_ASSERT_OK(OP(vm_release, other));
  mapping_destroy(runtime, &m);
}

CONFORMANCE_TEST(VirtualMemory, ReservationsAreFreedWhole) {
  NEEDS_VIRTUAL_MEMORY();
  NEEDS(conformance_finds_reservations_out, "the driver does not say where a reservation ends");
  size_t step = granule(runtime);
  void *address = NULL;
  LADE_ASSERT_OK(OP(vm_reserve, 0, 2 * step, 0, &address));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_address_free", NULL, OP(vm_address_free, address, step));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_address_free", NULL, OP(vm_address_free, (char *)address + step, step));
  LADE_ASSERT_OK(OP(vm_address_free, address, 2 * step));
}

CONFORMANCE_TEST(VirtualMemory, MemoryOfAnotherDeviceCanBeMappedAndGivenAccess) {
  NEEDS_VIRTUAL_MEMORY();
  NEEDS_TWO_DEVICES();
  bool can = false;
  LADE_ASSERT_OK(OP(peer_can_access, 0, 1, &can));
  NEEDS(can, "the devices cannot access each other");
  size_t step = granule(runtime);
  void *address;
  ladei_vm_handle handle;
  LADE_ASSERT_OK(OP(vm_create, 1, step, false, &handle));
  LADE_ASSERT_OK(OP(vm_reserve, 1, step, 0, &address));
  LADE_ASSERT_OK(OP(vm_map, address, step, handle));
  LADE_ASSERT_OK(OP(vm_set_access, address, step, 1, true));
  LADE_ASSERT_OK(OP(vm_set_access, address, step, 0, true));
  expect_round_trip(runtime, address, step, 7);
  LADE_ASSERT_OK(OP(vm_set_access, address, step, 0, false));
  conformance_expect_device_pattern(runtime, 1, address, step, 7);
  LADE_ASSERT_OK(OP(vm_unmap, address, step));
  LADE_ASSERT_OK(OP(vm_release, handle));
  LADE_ASSERT_OK(OP(vm_address_free, address, step));
}

CONFORMANCE_TEST(VirtualMemory, ExportedHandleImportsAsTheSameMemory) {
  NEEDS_VIRTUAL_MEMORY();
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_HANDLE_TYPE_POSIX_FD), "no file descriptor handles");
  size_t step = granule(runtime);
  ladei_vm_handle handle, imported;
  int fd = -1;
  void *address;
  LADE_ASSERT_OK(OP(vm_create, 0, step, true, &handle));
  LADE_ASSERT_OK(OP(vm_export, handle, &fd));
  LADE_ASSERT_GE_INT(fd, 0);
  LADE_ASSERT_OK(OP(vm_import, 0, fd, &imported));
  LADE_ASSERT_EQ_INT(close(fd), 0);
  LADE_ASSERT_OK(OP(vm_reserve, 0, 2 * step, 0, &address));
  LADE_ASSERT_OK(OP(vm_map, address, step, handle));
  LADE_ASSERT_OK(OP(vm_map, (char *)address + step, step, imported));
  LADE_ASSERT_OK(OP(vm_set_access, address, 2 * step, 0, true));
  expect_round_trip(runtime, address, step, 8);
  conformance_expect_device_pattern(runtime, 0, (char *)address + step, step, 8);
  /* The importer's reference keeps the memory when the creator has gone. */
  LADE_ASSERT_OK(OP(vm_unmap, address, step));
  LADE_ASSERT_OK(OP(vm_release, handle));
  conformance_expect_device_pattern(runtime, 0, (char *)address + step, step, 8);
  LADE_ASSERT_OK(OP(vm_unmap, (char *)address + step, step));
  LADE_ASSERT_OK(OP(vm_release, imported));
  LADE_ASSERT_OK(OP(vm_address_free, address, 2 * step));
}

CONFORMANCE_TEST(VirtualMemory, OnlyExportableHandlesAreExported) {
  NEEDS_VIRTUAL_MEMORY();
  ladei_vm_handle handle, imported;
  int fd = -77;
  LADE_ASSERT_OK(OP(vm_create, 0, granule(runtime), false, &handle));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_export", NULL, OP(vm_export, handle, &fd));
  LADE_EXPECT_EQ_INT(fd, -77);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "vm_import", NULL, OP(vm_import, 0, -1, &imported));
  LADE_ASSERT_OK(OP(vm_release, handle));
}
