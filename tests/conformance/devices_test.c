/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Devices: what they say of themselves, current device and context, waiting for a device (R4, R5). */
#include <ctype.h>
#include <string.h>

#include "tests/conformance/conformance.h"

CONFORMANCE_TEST(Devices, ThereIsOneAtLeast) {
  int count = 0;
  LADE_ASSERT_OK(OP(device_count, &count));
  LADE_EXPECT_GE_INT(count, 1);
}

static bool is_pci_bus_id(const char *text) {
  const char *shape = "hhhh:hh:hh.h";
  for (; *shape != '\0'; shape++, text++)
    if (*shape == 'h' ? !isxdigit((unsigned char)*text) : *text != *shape) return false;
  return *text == '\0';
}

CONFORMANCE_TEST(Devices, PropertiesAreFilledInAndTellDevicesApart) {
  int count = conformance_device_count(runtime);
  ladei_device_properties first;
  memset(&first, 0, sizeof first);
  for (int device = 0; device < count; device++) {
    ladei_device_properties properties;
    memset(&properties, 0xa5, sizeof properties);
    LADE_ASSERT_OK(OP(device_properties, device, &properties));
    LADE_EXPECT_LT_SIZE(strnlen(properties.name, sizeof properties.name), sizeof properties.name);
    LADE_EXPECT_GT_SIZE(strlen(properties.name), 0);
    if (!is_pci_bus_id(properties.pci_bus_id)) LADE_FAIL("PCI bus id is %.16s", properties.pci_bus_id);
    LADE_EXPECT_GT_SIZE(properties.total_bytes, 0);
    LADE_EXPECT_GE_INT(properties.numa_node, -1);
    LADE_EXPECT_GE_INT(properties.compute_major, 1);
    LADE_EXPECT_GE_INT(properties.multiprocessor_count, 1);
    if (device == 0) {
      first = properties;
    } else {
      LADE_EXPECT(memcmp(first.uuid, properties.uuid, sizeof first.uuid) != 0);
      LADE_EXPECT(strcmp(first.pci_bus_id, properties.pci_bus_id) != 0);
    }
  }
}

CONFORMANCE_TEST(Devices, SoftwareDevicesAreAsDescribed) {
  NEEDS(runtime->software_device != NULL, "not a software device of this process");
  for (int device = 0; device < SUPPORT_DEVICE_COUNT; device++) {
    ladei_device_properties properties;
    LADE_ASSERT_OK(OP(device_properties, device, &properties));
    LADE_EXPECT_EQ_SIZE(properties.total_bytes, SUPPORT_DEVICE_BYTES);
    LADE_EXPECT_EQ_INT(properties.numa_node, device);
  }
}

CONFORMANCE_TEST(Devices, EveryAttributeHasAnAnswerOfItsKind) {
  static const ladei_device_attribute booleans[] = {
      LADEI_ATTR_UNIFIED_ADDRESSING,
      LADEI_ATTR_INTEGRATED,
      LADEI_ATTR_CAN_MAP_HOST_MEMORY,
      LADEI_ATTR_HOST_REGISTER_SUPPORTED,
      LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED,
      LADEI_ATTR_DRIVER_POOLS_SUPPORTED,
      LADEI_ATTR_HOST_POOLS_SUPPORTED,
      LADEI_ATTR_HOST_NUMA_POOLS_SUPPORTED,
      LADEI_ATTR_STREAM_WRITE_VALUE_64,
      LADEI_ATTR_PAGEABLE_MEMORY_ACCESS,
      LADEI_ATTR_HANDLE_TYPE_POSIX_FD,
      LADEI_ATTR_GPU_DIRECT_RDMA,
      LADEI_ATTR_HOST_REGISTER_READ_ONLY_SUPPORTED,
  };
  int64_t value = -7;
  for (int attribute = 0; attribute < LADEI_ATTR_COUNT; attribute++)
    LADE_EXPECT_OK(OP(device_attribute, 0, (ladei_device_attribute)attribute, &value));
  for (size_t i = 0; i < sizeof booleans / sizeof booleans[0]; i++) {
    LADE_ASSERT_OK(OP(device_attribute, 0, booleans[i], &value));
    if (value != 0 && value != 1) LADE_FAIL("attribute %d is %lld", (int)booleans[i], (long long)value);
  }
  int64_t lowest, highest;
  LADE_ASSERT_OK(OP(device_attribute, 0, LADEI_ATTR_STREAM_PRIORITY_LOWEST, &lowest));
  LADE_ASSERT_OK(OP(device_attribute, 0, LADEI_ATTR_STREAM_PRIORITY_HIGHEST, &highest));
  LADE_EXPECT_LE_INT(highest, lowest);
  LADE_ASSERT_OK(OP(device_attribute, 0, LADEI_ATTR_ASYNC_ENGINE_COUNT, &value));
  LADE_EXPECT_GE_INT(value, 1);
}

CONFORMANCE_TEST(Devices, UnknownAttributesAreRefused) {
  int64_t value = -7;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_attribute", NULL,
                 OP(device_attribute, 0, LADEI_ATTR_COUNT, &value));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "device_attribute", NULL,
                 OP(device_attribute, 0, (ladei_device_attribute)-1, &value));
  LADE_EXPECT_EQ_INT(value, -7);
}

CONFORMANCE_TEST(Devices, MemoryInfoFollowsAllocations) {
  size_t free_before = 0, total = 0, free_during, free_after, bytes = (size_t)64 << 20;
  LADE_ASSERT_OK(OP(memory_info, 0, &free_before, &total));
  LADE_EXPECT_LE_SIZE(free_before, total);
  void *memory = conformance_device_memory(runtime, 0, bytes);
  LADE_ASSERT_OK(OP(memory_info, 0, &free_during, &total));
  LADE_EXPECT_LE_SIZE(free_during, free_before - bytes);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(memory_info, 0, &free_after, &total));
  LADE_EXPECT_GE_SIZE(free_after, free_during + bytes);
}

CONFORMANCE_TEST(Devices, NoneIsCurrentOrActiveUntilAskedFor) {
  int current = 99;
  bool active = true;
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, -1);
  LADE_ASSERT_OK(OP(device_active, 0, &active));
  LADE_EXPECT(!active);
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, 0);
  LADE_ASSERT_OK(OP(device_active, 0, &active));
  LADE_EXPECT(active);
}

CONFORMANCE_TEST(Devices, QuestionsActivateNothing) {
  ladei_device_properties properties;
  ladei_pointer_attributes attributes;
  int64_t value;
  int on_stack = 0, current;
  bool active = true, can;
  LADE_ASSERT_OK(OP(device_properties, 0, &properties));
  LADE_ASSERT_OK(OP(device_attribute, 0, LADEI_ATTR_UNIFIED_ADDRESSING, &value));
  LADE_ASSERT_OK(OP(pointer_attributes, &on_stack, &attributes));
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_ASSERT_OK(OP(peer_can_access, 0, 0, &can));
  LADE_ASSERT_OK(OP(device_active, 0, &active));
  LADE_EXPECT(!active);
}

CONFORMANCE_TEST(Devices, OnlyTheDeviceAskedForBecomesActive) {
  NEEDS_TWO_DEVICES();
  void *memory = conformance_device_memory(runtime, 1, 4096);
  bool active = true;
  LADE_ASSERT_OK(OP(device_active, 1, &active));
  LADE_EXPECT(active);
  LADE_ASSERT_OK(OP(device_active, 0, &active));
  LADE_EXPECT(!active);
  LADE_ASSERT_OK(OP(device_free, 1, memory));
}

CONFORMANCE_TEST(Devices, ContextIsOnePerDeviceAndNeverZero) {
  uint64_t first = 0, again = 0, other = 0;
  bool active = false;
  LADE_ASSERT_OK(OP(device_context, 0, &first));
  LADE_ASSERT_OK(OP(device_context, 0, &again));
  LADE_EXPECT_NE_SIZE(first, 0);
  LADE_EXPECT_EQ_UINT(first, again);
  LADE_ASSERT_OK(OP(device_active, 0, &active));
  LADE_EXPECT(active);
  if (conformance_device_count(runtime) < 2) return;
  LADE_ASSERT_OK(OP(device_context, 1, &other));
  LADE_EXPECT_NE_SIZE(other, 0);
  LADE_EXPECT_NE_SIZE(other, first);
}

/* R5, once with no device current and once with device 0. */
static void use_device(lade_runtime *runtime, int device) {
  ladei_stream stream = conformance_stream(runtime, device, 0);
  lade_event event = conformance_event(runtime, device);
  void *memory = conformance_device_memory(runtime, device, 4096), *pinned = NULL;
  size_t free_bytes, total_bytes;
  LADE_ASSERT_OK(OP(host_alloc, device, 4096, 0, &pinned));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, pinned, 4096, &stream));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  LADE_EXPECT_OK(OP(event_synchronize, event));
  LADE_EXPECT_OK(OP(copy_sync, device, LADEI_COPY_D2H, pinned, memory, 4096));
  LADE_EXPECT_OK(OP(memory_info, device, &free_bytes, &total_bytes));
  LADE_EXPECT_OK(OP(device_synchronize, device));
  LADE_EXPECT_OK(OP(host_free, pinned));
  LADE_EXPECT_OK(OP(device_free, device, memory));
  LADE_EXPECT_OK(OP(event_destroy, event));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Devices, OpsLeaveTheCurrentDeviceAlone) {
  int current = 99, last = conformance_device_count(runtime) - 1;
  use_device(runtime, last);
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, -1);
  LADE_ASSERT_OK(OP(current_device_set, 0));
  use_device(runtime, last);
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, 0);
}

CONFORMANCE_TEST(Devices, FailedOpsLeaveTheCurrentDeviceAloneToo) {
  int current = 99, last = conformance_device_count(runtime) - 1;
  void *memory;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, OP(device_alloc, last, (size_t)1 << 50, &memory));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, OP(current_device_set, last + 1));
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, -1);
}

static void expect_no_current_device(lade_runtime *runtime, void *user) {
  (void)user;
  int current = 99;
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, -1);
  LADE_ASSERT_OK(OP(current_device_set, conformance_device_count(runtime) - 1));
}

CONFORMANCE_TEST(Devices, CurrentDeviceBelongsToTheThread) {
  int current = 99;
  LADE_ASSERT_OK(OP(current_device_set, 0));
  conformance_in_thread(expect_no_current_device, runtime, NULL);
  LADE_ASSERT_OK(OP(current_device, &current));
  LADE_EXPECT_EQ_INT(current, 0);
}

CONFORMANCE_TEST(Devices, SynchronizeWaitsForAllStreamsOfTheDevice) {
  ladei_stream streams[3];
  _Atomic(int) done = 0;
  for (int i = 0; i < 3; i++) {
    streams[i] = conformance_stream(runtime, 0, i == 0 ? 0 : LADEI_STREAM_NON_BLOCKING);
    for (int k = 0; k < 5; k++) LADE_ASSERT_OK(OP(host_function, &streams[i], conformance_count, &done));
  }
  LADE_ASSERT_OK(OP(device_synchronize, 0));
  LADE_EXPECT_EQ_INT(done, 15);
  for (int i = 0; i < 3; i++) LADE_ASSERT_OK(OP(stream_destroy, streams[i].handle));
}
