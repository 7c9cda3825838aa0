/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Device memory: alignment, distinct ranges, running out, bad frees. */
#include <stdint.h>
#include <stdio.h>

#include "tests/conformance/conformance.h"

CONFORMANCE_TEST(DeviceMemory, IsAlignedAndDoesNotOverlap) {
  enum { COUNT = 40 };
  uintptr_t start[COUNT];
  size_t bytes[COUNT];
  for (int i = 0; i < COUNT; i++) {
    bytes[i] = (size_t)1 + (size_t)i * (size_t)i * 37;
    void *memory = conformance_device_memory(runtime, 0, bytes[i]);
    LADE_ASSERT(memory != NULL);
    start[i] = (uintptr_t)memory;
    LADE_EXPECT_EQ_UINT(start[i] % 256, 0);
    for (int k = 0; k < i; k++) LADE_ASSERT(start[k] + bytes[k] <= start[i] || start[i] + bytes[i] <= start[k]);
  }
  for (int i = 0; i < COUNT; i++) LADE_EXPECT_OK(OP(device_free, 0, (void *)start[i]));
}

/* Neighbours keep their bytes: what is written through one pointer is seen through no other. */
CONFORMANCE_TEST(DeviceMemory, KeepsItsBytes) {
  enum { COUNT = 8, BYTES = 100001 };
  void *memory[COUNT];
  for (int i = 0; i < COUNT; i++) memory[i] = conformance_device_pattern(runtime, 0, BYTES, (uint64_t)i);
  for (int i = 0; i < COUNT; i++) conformance_expect_device_pattern(runtime, 0, memory[i], BYTES, (uint64_t)i);
  for (int i = 0; i < COUNT; i++) LADE_EXPECT_OK(OP(device_free, 0, memory[i]));
}

CONFORMANCE_TEST(DeviceMemory, RunsOutAndComesBack) {
  size_t free_bytes, total_bytes;
  LADE_ASSERT_OK(OP(memory_info, 0, &free_bytes, &total_bytes));
  size_t more_than_half = free_bytes / 2 + ((size_t)4 << 20);
  char size_text[32];
  snprintf(size_text, sizeof size_text, "%zu", more_than_half);
  for (int round = 0; round < 3; round++) {
    void *memory = conformance_device_memory(runtime, 0, more_than_half), *second = &free_bytes;
    LADE_ASSERT(memory != NULL);
    EXPECT_REFUSED(LADE_ERR_OUT_OF_DEVICE_MEMORY, "device_alloc", size_text,
                   OP(device_alloc, 0, more_than_half, &second));
    LADE_EXPECT_EQ_PTR(second, &free_bytes);
    LADE_ASSERT_OK(OP(device_free, 0, memory));
  }
}

CONFORMANCE_TEST(DeviceMemory, AbsurdSizesAreOutOfMemory) {
  static const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX / 2, SIZE_MAX - 4095, SIZE_MAX - 1, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    void *memory = &memory;
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, OP(device_alloc, 0, sizes[i], &memory));
    LADE_EXPECT_EQ_PTR(memory, &memory);
  }
}

CONFORMANCE_TEST(DeviceMemory, EachDeviceHasItsOwn) {
  NEEDS_TWO_DEVICES();
  size_t free_before, free_after, total_bytes;
  LADE_ASSERT_OK(OP(memory_info, 0, &free_before, &total_bytes));
  void *memory = conformance_device_memory(runtime, 1, (size_t)64 << 20);
  LADE_ASSERT_OK(OP(memory_info, 0, &free_after, &total_bytes));
  LADE_EXPECT_EQ_SIZE(free_after, free_before);
  LADE_ASSERT_OK(OP(device_free, 1, memory));
}

CONFORMANCE_TEST(DeviceMemory, FreeRefusesWhatItDidNotHandOut) {
  conformance_allow_findings();
  int on_stack = 0;
  char *memory = conformance_device_memory(runtime, 0, 8192);
  void *pinned = conformance_pinned(runtime, 4096);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_free", NULL, OP(device_free, 0, NULL));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_free", NULL, OP(device_free, 0, &on_stack));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_free", NULL, OP(device_free, 0, memory + 4096));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_free", NULL, OP(device_free, 0, pinned));
  LADE_EXPECT_OK(OP(device_free, 0, memory));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_free", NULL, OP(device_free, 0, memory));
  LADE_EXPECT_OK(OP(host_free, pinned));
}
