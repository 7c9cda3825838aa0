/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The public helpers of lade/runtime.h on every runtime: what a program without CUDA's own API works
 * with.
 */
#include <stdlib.h>
#include <string.h>

#include "lade/soft.h"
#include "tests/conformance/conformance.h"

CONFORMANCE_TEST(Helpers, DeviceInfoIsThatOfTheDevice) {
  int count = 0;
  LADE_ASSERT_OK(lade_runtime_device_count(runtime, &count));
  LADE_EXPECT_EQ_INT(count, conformance_device_count(runtime));
  for (int device = 0; device < count; device++) {
    lade_device_info info;
    ladei_device_properties properties;
    lade_device_info_init(&info);
    LADE_ASSERT_OK(lade_runtime_device_info(runtime, device, &info));
    LADE_ASSERT_OK(OP(device_properties, device, &properties));
    LADE_EXPECT_EQ_STR(info.name, properties.name);
    LADE_EXPECT_EQ_STR(info.pci_bus_id, properties.pci_bus_id);
    LADE_EXPECT_EQ_UINT(info.total_bytes, properties.total_bytes);
    LADE_EXPECT_EQ_INT(info.numa_node, properties.numa_node);
    LADE_EXPECT_EQ_INT(info.software, runtime->software_device != NULL);
  }
  lade_device_info info;
  lade_device_info_init(&info);
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_runtime_device_info(runtime, count, &info));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_runtime_set_device(runtime, count));
}

CONFORMANCE_TEST(Helpers, StreamsAndEventsOrderCopies) {
  enum { BYTES = 60000 };
  lade_stream first, second;
  lade_event event;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &first));
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &second));
  LADE_ASSERT_OK(lade_event_create(runtime, 0, &event));
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  void *memory = conformance_device_memory(runtime, 0, BYTES);
  support_pattern_fill(in, BYTES, 1, 0);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, first));
  LADE_EXPECT_OK(lade_copy_async(runtime, memory, in, BYTES, first));
  LADE_EXPECT_OK(lade_event_record(runtime, event, first));
  LADE_EXPECT_OK(lade_stream_wait_event(runtime, second, event));
  LADE_EXPECT_OK(lade_copy_async(runtime, out, memory, BYTES, second));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_stream_query(runtime, second));
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, second));
  LADE_EXPECT_OK(lade_stream_query(runtime, second));
  LADE_EXPECT_PATTERN(out, BYTES, 1, 0);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(lade_event_destroy(runtime, event));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, first));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, second));
}

/* A copy by itself waited for the stream with CUDA's driver. */
CONFORMANCE_TEST(Helpers, CopyBetweenPinnedMemoryWaitsForNothing) {
  enum { BYTES = 60000 };
  NEEDS_OP(copy_batch);
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream));
  LADE_EXPECT_OK(lade_copy_async(runtime, out, in, BYTES, stream));
  support_pattern_fill(in, BYTES, 8, 0); /* read in stream order */
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, stream));
  LADE_EXPECT_PATTERN(out, BYTES, 8, 0);
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}

/* Where no batch serves, as on the legacy stream and in captures, the copy by itself does. */
CONFORMANCE_TEST(Helpers, CopyBetweenPinnedMemoryServesEveryStream) {
  enum { BYTES = 60000 };
  NEEDS_OP(graph_launch);
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  ladei_stream legacy = conformance_legacy(runtime, 0),
               stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  support_pattern_fill(in, BYTES, 1, 0);
  LADE_EXPECT_OK(lade_copy_async(runtime, out, in, BYTES, legacy.handle));
  LADE_EXPECT_OK(lade_stream_synchronize(runtime, legacy.handle));
  LADE_EXPECT_PATTERN(out, BYTES, 1, 0);
  ladei_graph graph;
  ladei_graph_exec exec;
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(lade_copy_async(runtime, out, in, BYTES, stream.handle));
  LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
  LADE_ASSERT_OK(OP(graph_instantiate, graph, &exec));
  support_pattern_fill(in, BYTES, 2, 0);
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(lade_stream_synchronize(runtime, stream.handle));
  LADE_EXPECT_PATTERN(out, BYTES, 2, 0);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* Host and device, pinned and pageable, starts and insides of blocks: the addresses alone say which way. */
CONFORMANCE_TEST(Helpers, CopyFindsItsDirection) {
  enum { BYTES = 5000, SHIFT = 77 };
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  char *pinned = conformance_pinned(runtime, 2 * BYTES), *pageable = calloc(2, BYTES);
  char *a = conformance_device_memory(runtime, 0, 2 * BYTES), *b = conformance_device_memory(runtime, 0, 2 * BYTES);
  char *const route[] = {pinned, a, b, pageable, a, pinned + BYTES, b, pinned};
  support_pattern_fill(pinned + SHIFT, BYTES - SHIFT, 2, 0);
  for (size_t i = 0; i + 1 < sizeof route / sizeof route[0]; i++) {
    LADE_EXPECT_OK(lade_copy_async(runtime, route[i + 1] + SHIFT, route[i] + SHIFT, BYTES - SHIFT, stream));
    LADE_EXPECT_OK(lade_stream_synchronize(runtime, stream));
    if (i == 0) memset(pinned, 0, 2 * BYTES);
  }
  LADE_EXPECT_PATTERN(pinned + SHIFT, BYTES - SHIFT, 2, 0);
  LADE_EXPECT_PATTERN(pageable + SHIFT, BYTES - SHIFT, 2, 0);
  LADE_EXPECT_PATTERN(pinned + BYTES + SHIFT, BYTES - SHIFT, 2, 0);
  free(pageable);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, a));
  LADE_ASSERT_OK(OP(device_free, 0, b));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}

CONFORMANCE_TEST(Helpers, CopyGoesFromDeviceToDevice) {
  NEEDS_TWO_DEVICES();
  enum { BYTES = 9000 };
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 1, &stream));
  void *here = conformance_device_pattern(runtime, 0, BYTES, 3), *there = conformance_device_memory(runtime, 1, BYTES);
  LADE_EXPECT_OK(lade_copy_async(runtime, there, here, BYTES, stream));
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, stream));
  conformance_expect_device_pattern(runtime, 1, there, BYTES, 3);
  LADE_ASSERT_OK(OP(device_free, 0, here));
  LADE_ASSERT_OK(OP(device_free, 1, there));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}

CONFORMANCE_TEST(Helpers, SpecialHandlesWorkOnceADeviceIsSet) {
  static const lade_stream handles[] = {NULL, LADE_STREAM_LEGACY, LADE_STREAM_PER_THREAD};
  int last = conformance_device_count(runtime) - 1;
  for (int i = 0; i < 3; i++) LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stream_query(runtime, handles[i]));
  LADE_ASSERT_OK(lade_runtime_set_device(runtime, last));
  char *pinned = conformance_pinned(runtime, 8192);
  void *memory = conformance_device_pattern(runtime, last, 8192, 4);
  for (int i = 0; i < 3; i++) {
    memset(pinned, 0, 8192);
    LADE_EXPECT_OK(lade_copy_async(runtime, pinned, memory, 8192, handles[i]));
    LADE_EXPECT_OK(lade_stream_synchronize(runtime, handles[i]));
    LADE_EXPECT_OK(lade_stream_query(runtime, handles[i]));
    LADE_EXPECT_PATTERN(pinned, 8192, 4, 0);
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stream_destroy(runtime, handles[i]));
  }
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, last, memory));
}

CONFORMANCE_TEST(Helpers, CopyOfNothingSucceedsAndOfTooMuchIsRefused) {
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_EXPECT_OK(lade_copy_async(runtime, pinned, pinned + 100, 0, stream));
  LADE_EXPECT_OK(lade_copy_async(runtime, NULL, NULL, 0, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_async(runtime, pinned, NULL, 1, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_async(runtime, NULL, pinned, 1, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_async(runtime, pinned, pinned + 100, SIZE_MAX, stream));
  LADE_EXPECT_OK(lade_stream_query(runtime, stream));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}

/* Inside device memory, on a special stream, in pinned memory, in a capture. */
CONFORMANCE_TEST(Helpers, FillSetsEveryByteInStreamOrder) {
  enum { BYTES = 70001, SHIFT = 13 };
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  char *pinned = conformance_pinned(runtime, BYTES + SHIFT);
  char *memory = conformance_device_memory(runtime, 0, BYTES + SHIFT);
  LADE_EXPECT_OK(lade_fill_async(runtime, memory, 1, BYTES + SHIFT, stream));
  LADE_EXPECT_OK(lade_fill_async(runtime, memory + SHIFT, 0xfe, BYTES - SHIFT, stream));
  LADE_EXPECT_OK(lade_copy_async(runtime, pinned, memory, BYTES + SHIFT, stream));
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, stream));
  EXPECT_BYTES(pinned, SHIFT, 1);
  EXPECT_BYTES(pinned + SHIFT, BYTES - SHIFT, 0xfe);
  EXPECT_BYTES(pinned + BYTES, SHIFT, 1);
  LADE_EXPECT_OK(lade_fill_async(runtime, pinned + 1, 3, BYTES, stream));
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, stream));
  EXPECT_BYTES(pinned, 1, 1);
  EXPECT_BYTES(pinned + 1, BYTES, 3);
  EXPECT_BYTES(pinned + 1 + BYTES, SHIFT - 1, 1);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}

CONFORMANCE_TEST(Helpers, FillIsCapturedAndReplayed) {
  NEEDS_OP(graph_launch);
  enum { BYTES = 5000 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, BYTES);
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  void *memory = conformance_device_memory(runtime, 0, BYTES);
  LADE_ASSERT_OK(OP(fill, memory, 1, BYTES, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_THREAD_LOCAL));
  LADE_EXPECT_OK(lade_fill_async(runtime, memory, 9, BYTES, stream.handle));
  LADE_EXPECT_OK(lade_copy_async(runtime, pinned, memory, BYTES, stream.handle));
  LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
  LADE_ASSERT_OK(OP(graph_instantiate, graph, &exec));
  EXPECT_BYTES(pinned, BYTES, 0);
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(pinned, BYTES, 9);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* One fill must not name two registrations (ops.h, Note [Copies end with registrations]): the helper makes two of it. */
CONFORMANCE_TEST(Helpers, FillGoesFromRegistrationToRegistrationAndNoFurther) {
  enum { PAGE = 4096, BYTES = 8 * PAGE };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *memory = aligned_alloc(PAGE, 3 * BYTES);
  LADE_ASSERT(memory != NULL);
  memset(memory, 1, 3 * BYTES);
  LADE_ASSERT_OK(OP(host_register, 0, memory, BYTES, 0));
  LADE_ASSERT_OK(OP(host_register, 0, memory + BYTES, BYTES, 0));
  LADE_EXPECT_OK(lade_fill_async(runtime, memory + PAGE, 6, 2 * BYTES - PAGE, stream.handle));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(memory, PAGE, 1);
  EXPECT_BYTES(memory + PAGE, 2 * BYTES - PAGE, 6);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_fill_async(runtime, memory, 7, 2 * BYTES + 1, stream.handle));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "dst");
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(memory, PAGE, 1);
  LADE_ASSERT_OK(OP(host_unregister, memory));
  LADE_ASSERT_OK(OP(host_unregister, memory + BYTES));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  free(memory);
}

CONFORMANCE_TEST(Helpers, FillOfNothingSucceedsAndOfTooMuchIsRefused) {
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_EXPECT_OK(lade_fill_async(runtime, pinned, 1, 0, stream));
  LADE_EXPECT_OK(lade_fill_async(runtime, NULL, 1, 0, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_fill_async(runtime, NULL, 1, 1, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_fill_async(runtime, pinned, 1, SIZE_MAX, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_fill_async(runtime, pinned, 1, 4097, stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_fill_async(NULL, pinned, 1, 4096, stream));
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, stream));
  EXPECT_BYTES(pinned, 4096, 0);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}

static void square(const void *arguments) {
  unsigned *value = *(unsigned *const *)arguments;
  *value *= *value;
}

CONFORMANCE_TEST(Helpers, KernelsRunOnSoftwareDevicesOnly) {
  lade_stream stream;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  unsigned *value = conformance_pinned(runtime, sizeof *value);
  *value = 3;
  lade_soft_range range = {value, sizeof *value, LADE_SOFT_READ | LADE_SOFT_WRITE, 0};
  bool soft = runtime->software_device != NULL;
  for (int i = 0; i < 2; i++)
    LADE_EXPECT_STATUS(soft ? LADE_OK : LADE_ERR_UNSUPPORTED,
                       lade_soft_kernel(runtime, stream, square, &value, sizeof value, &range, 1));
  LADE_ASSERT_OK(lade_stream_synchronize(runtime, stream));
  LADE_EXPECT_EQ_UINT(*value, soft ? 81 : 3);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_soft_kernel(NULL, stream, square, NULL, 0, NULL, 0));
  LADE_ASSERT_OK(OP(host_free, value));
  LADE_ASSERT_OK(lade_stream_destroy(runtime, stream));
}
