/* SPDX-License-Identifier: Apache-2.0 */
/* R1, R4 and R8 over the whole table: bad ordinals, sizes of 0, outputs untouched, records that name op and sizes. */
#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "tests/conformance/conformance.h"

#define REFUSED_DEVICE(name, ...) EXPECT_REFUSED(LADE_ERR_NO_DEVICE, #name, NULL, OP(name, ##__VA_ARGS__))
#define REFUSED_DEVICE_IF_THERE(name, ...)                                                                             \
  if (runtime->ops->name != NULL) REFUSED_DEVICE(name, ##__VA_ARGS__)

/* Everything an op could write, with known contents. */
typedef union output {
  unsigned char bytes[512];
  ladei_device_properties properties;
  ladei_ipc_handle ipc;
  int64_t value;
  uint64_t number;
  size_t size;
  void *pointer;
  lade_stream stream;
  lade_event event;
  ladei_driver_pool pool;
  ladei_vm_handle handle;
  int count;
  bool flag;
} output;

static void expect_untouched(const output *out) {
  for (size_t i = 0; i < sizeof out->bytes; i++) LADE_ASSERT_EQ_INT(out->bytes[i], 0xa5);
}

static void expect_device_refused(lade_runtime *runtime, int device) {
  output out, second;
  memset(&out, 0xa5, sizeof out);
  memset(&second, 0xa5, sizeof second);
  static char page[4096] __attribute__((aligned(4096)));
  REFUSED_DEVICE(device_properties, device, &out.properties);
  REFUSED_DEVICE(device_attribute, device, LADEI_ATTR_INTEGRATED, &out.value);
  REFUSED_DEVICE(memory_info, device, &out.size, &second.size);
  REFUSED_DEVICE(current_device_set, device);
  REFUSED_DEVICE(device_context, device, &out.number);
  REFUSED_DEVICE(device_active, device, &out.flag);
  REFUSED_DEVICE(device_synchronize, device);
  REFUSED_DEVICE(device_alloc, device, 4096, &out.pointer);
  REFUSED_DEVICE_IF_THERE(vm_granularity, device, &out.size, &second.size);
  REFUSED_DEVICE_IF_THERE(vm_reserve, device, (size_t)2 << 20, 0, &out.pointer);
  REFUSED_DEVICE_IF_THERE(vm_create, device, (size_t)2 << 20, false, &out.handle);
  REFUSED_DEVICE_IF_THERE(pool_default, device, &out.pool);
  REFUSED_DEVICE_IF_THERE(pool_create, &(ladei_pool_properties){LADEI_POOL_DEVICE, device, 0}, &out.pool);
  REFUSED_DEVICE(host_alloc, device, 4096, 0, &out.pointer);
  REFUSED_DEVICE(host_register, device, page, sizeof page, 0);
  REFUSED_DEVICE(stream_create, device, 0, 0, &out.stream);
  REFUSED_DEVICE(copy_sync, device, LADEI_COPY_H2H, page, page + 100, 10);
  REFUSED_DEVICE(peer_can_access, device, 0, &out.flag);
  REFUSED_DEVICE(peer_can_access, 0, device, &out.flag);
  REFUSED_DEVICE(peer_enable, 0, device);
  REFUSED_DEVICE(peer_disable, device, 0);
  expect_untouched(&out);
  expect_untouched(&second);
}

CONFORMANCE_TEST(Errors, DevicesThatDoNotExistAreNamedSo) {
  int count = conformance_device_count(runtime);
  const int wrong[] = {-1, count, count + 1, INT_MAX, INT_MIN};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    lade_test_context("device %d", wrong[i]);
    expect_device_refused(runtime, wrong[i]);
  }
}

#define REFUSED_SIZE(name, ...) EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, #name, NULL, OP(name, ##__VA_ARGS__))

CONFORMANCE_TEST(Errors, SizesOfZeroAreRefused) {
  output out;
  memset(&out, 0xa5, sizeof out);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  char *memory = conformance_device_memory(runtime, 0, 4096), *pinned = conformance_pinned(runtime, 4096);
  REFUSED_SIZE(device_alloc, 0, 0, &out.pointer);
  REFUSED_SIZE(host_alloc, 0, 0, 0, &out.pointer);
  REFUSED_SIZE(copy, LADEI_COPY_H2D, memory, pinned, 0, &stream);
  REFUSED_SIZE(copy_sync, 0, LADEI_COPY_H2D, memory, pinned, 0);
  REFUSED_SIZE(copy_peer, memory, 0, memory + 100, 0, 0, &stream);
  REFUSED_SIZE(fill, memory, 1, 0, &stream);
  expect_untouched(&out);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Errors, NullAddressesAndUnknownDirectionsAreRefused) {
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  char *memory = conformance_device_memory(runtime, 0, 4096), *pinned = conformance_pinned(runtime, 4096);
  REFUSED_SIZE(copy, LADEI_COPY_H2D, NULL, pinned, 10, &stream);
  REFUSED_SIZE(copy, LADEI_COPY_H2D, memory, NULL, 10, &stream);
  REFUSED_SIZE(copy, LADEI_COPY_D2H, NULL, memory, 10, &stream);
  REFUSED_SIZE(copy, (ladei_copy_direction)4, memory, pinned, 10, &stream);
  REFUSED_SIZE(copy_sync, 0, LADEI_COPY_D2H, pinned, NULL, 10);
  REFUSED_SIZE(copy_sync, 0, (ladei_copy_direction)-1, memory, pinned, 10);
  REFUSED_SIZE(fill, NULL, 1, 10, &stream);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* For a person who reads a log: the op, the size asked for, and the driver's words. */
CONFORMANCE_TEST(Errors, RecordsNameOpAndSizes) {
  void *memory;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, OP(device_alloc, 0, (size_t)1 << 50, &memory));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_last_error()->status);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "device_alloc");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1125899906842624");
}

CONFORMANCE_TEST(Errors, SuccessLeavesTheRecordAlone) {
  void *memory;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, OP(device_alloc, 0, (size_t)1 << 50, &memory));
  lade_error before = *lade_last_error();
  memory = conformance_device_memory(runtime, 0, 4096);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_EXPECT_EQ_INT(lade_last_error()->status, before.status);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, before.text);
}

/* LADE_NOT_READY answers a question; it is no failure and leaves no record. */
CONFORMANCE_TEST(Errors, NotReadyIsNoFailure) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, OP(current_device_set, -1));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, event));
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(stream_query, &stream));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_last_error()->status);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
