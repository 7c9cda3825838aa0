/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Software devices only: the fault plan, held streams, lost devices (R7), what they count and report.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/ops_list.h"
#include "tests/conformance/conformance.h"

#define NEEDS_SOFTWARE_DEVICE() NEEDS(runtime->software_device != NULL, "not a software device of this process")

static lade_soft_report report_of(lade_runtime *runtime) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(runtime, &report));
  return report;
}

static lade_status alloc_and_free(lade_runtime *runtime) {
  void *memory = NULL;
  lade_status status = OP(device_alloc, 0, 4096, &memory);
  if (status == LADE_OK) LADE_EXPECT_OK(OP(device_free, 0, memory));
  return status;
}

/* --- The fault plan ----------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Faults, TheNthCallFailsAndNoOther) {
  NEEDS_SOFTWARE_DEVICE();
  for (uint64_t nth = 1; nth <= 4; nth++) {
    LADE_ASSERT_OK(lade_soft_fault_add(runtime, "device_alloc", nth, LADE_ERR_OUT_OF_DEVICE_MEMORY));
    for (uint64_t call = 1; call <= 5; call++)
      LADE_EXPECT_STATUS(call == nth ? LADE_ERR_OUT_OF_DEVICE_MEMORY : LADE_OK, alloc_and_free(runtime));
  }
}

CONFORMANCE_TEST(Faults, SeveralMayBePending) {
  NEEDS_SOFTWARE_DEVICE();
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "device_alloc", 4, LADE_ERR_DRIVER));
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "device_alloc", 2, LADE_ERR_OUT_OF_DEVICE_MEMORY));
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "stream_create", 1, LADE_ERR_OUT_OF_HOST_MEMORY));
  static const lade_status expected[] = {LADE_OK, LADE_ERR_OUT_OF_DEVICE_MEMORY, LADE_OK, LADE_ERR_DRIVER, LADE_OK};
  for (int i = 0; i < 5; i++) LADE_EXPECT_STATUS(expected[i], alloc_and_free(runtime));
  lade_stream stream;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_HOST_MEMORY, OP(stream_create, 0, 0, 0, &stream));
  LADE_ASSERT_OK(OP(stream_create, 0, 0, 0, &stream));
  LADE_ASSERT_OK(OP(stream_destroy, stream));
}

CONFORMANCE_TEST(Faults, ZeroMeansEveryCallUntilCleared) {
  NEEDS_SOFTWARE_DEVICE();
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "device_alloc", 0, LADE_ERR_OUT_OF_DEVICE_MEMORY));
  for (int i = 0; i < 10; i++) LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, alloc_and_free(runtime));
  LADE_ASSERT_OK(lade_soft_fault_clear(runtime));
  LADE_EXPECT_OK(alloc_and_free(runtime));
}

CONFORMANCE_TEST(Faults, EveryOpCanBeNamedAndNothingElse) {
  NEEDS_SOFTWARE_DEVICE();
  static const char *const ops[] = {
#define NAME(op, group) #op,
      LADEI_OPS_LIST(NAME)
#undef NAME
  };
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    /* Those three cannot fail: they return no status, or are the end. */
    bool fails =
        strcmp(ops[i], "close") != 0 && strcmp(ops[i], "now_ns") != 0 && strcmp(ops[i], "native_error_text") != 0;
    lade_test_context("op %s", ops[i]);
    if (fails) LADE_EXPECT_OK(lade_soft_fault_add(runtime, ops[i], 1, LADE_ERR_DRIVER));
  }
  LADE_ASSERT_OK(lade_soft_fault_clear(runtime));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_soft_fault_add(runtime, "no_such_op", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "no_such_op");
}

CONFORMANCE_TEST(Faults, AFailedCallChangesNothing) {
  NEEDS_SOFTWARE_DEVICE();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  lade_event event = conformance_event(runtime, 0);
  lade_soft_report before = report_of(runtime);
  void *memory = &memory;
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "device_alloc", 1, LADE_ERR_OUT_OF_DEVICE_MEMORY));
  EXPECT_REFUSED(LADE_ERR_OUT_OF_DEVICE_MEMORY, "device_alloc", NULL, OP(device_alloc, 0, 4096, &memory));
  LADE_EXPECT_EQ_PTR(memory, &memory);
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "fill", 1, LADE_ERR_DRIVER));
  EXPECT_REFUSED(LADE_ERR_DRIVER, "fill", NULL, OP(fill, pinned, 1, 4096, &stream));
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "host_free", 1, LADE_ERR_DRIVER));
  EXPECT_REFUSED(LADE_ERR_DRIVER, "host_free", NULL, OP(host_free, pinned));
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "event_record", 1, LADE_ERR_DRIVER));
  EXPECT_REFUSED(LADE_ERR_DRIVER, "event_record", NULL, OP(event_record, event, &stream));
  LADE_EXPECT_OK(OP(stream_query, &stream));
  LADE_EXPECT_OK(OP(event_query, event));
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  lade_soft_report after = report_of(runtime);
  LADE_EXPECT_EQ_MEM(&after, &before, sizeof before);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Faults, CallsAreCountedFailedOnesToo) {
  NEEDS_SOFTWARE_DEVICE();
  uint64_t before = 0, after = 0;
  LADE_ASSERT_OK(lade_soft_call_count(runtime, "device_alloc", &before));
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "device_alloc", 2, LADE_ERR_DRIVER));
  for (int i = 0; i < 3; i++) (void)alloc_and_free(runtime);
  LADE_ASSERT_OK(lade_soft_call_count(runtime, "device_alloc", &after));
  LADE_EXPECT_EQ_UINT(after, before + 3);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_soft_call_count(runtime, "no_such_op", &after));
}

/* --- Held streams ------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Faults, HeldStreamKeepsAllItsWork) {
  NEEDS_SOFTWARE_DEVICE();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream other = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  char *pinned = conformance_pinned(runtime, 8192);
  LADE_ASSERT_OK(lade_soft_stream_hold(runtime, stream.handle, true));
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &stream));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  LADE_EXPECT_OK(OP(fill, pinned + 4096, 2, 4096, &other));
  LADE_EXPECT_OK(OP(stream_synchronize, &other));
  support_let_run(runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(event_query, event));
  LADE_EXPECT_EQ_INT(pinned[0], 0);
  LADE_EXPECT_EQ_INT(pinned[4096], 2);
  LADE_ASSERT_OK(lade_soft_stream_hold(runtime, stream.handle, false));
  LADE_EXPECT_OK(OP(event_synchronize, event));
  LADE_EXPECT_EQ_INT(pinned[0], 1);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(stream_destroy, other.handle));
}

/* --- A lost device (R7) ------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Faults, LostDeviceRefusesWorkButGivesEverythingBack) {
  NEEDS_SOFTWARE_DEVICE();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  void *memory = conformance_device_memory(runtime, 0, 4096), *other = NULL;
  char *pinned = conformance_pinned(runtime, 4096);
  _Atomic(int) calls = 0;
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned, memory, 4096, &stream));
  LADE_EXPECT_OK(OP(host_function, &stream, conformance_count, &calls));
  LADE_EXPECT_OK(OP(event_record, event, &stream));
  LADE_ASSERT_OK(lade_soft_device_lose(runtime, 0, 0));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "device_alloc", NULL, OP(device_alloc, 0, 4096, &other));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "copy", NULL, OP(copy, LADEI_COPY_H2D, memory, pinned, 4096, &stream));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "event_query", NULL, OP(event_query, event));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "event_record", NULL, OP(event_record, event, &stream));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "stream_query", NULL, OP(stream_query, &stream));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "stream_synchronize", NULL, OP(stream_synchronize, &stream));
  EXPECT_REFUSED(LADE_ERR_DEVICE_LOST, "event_synchronize", NULL, OP(event_synchronize, event));
  support_stream_hold_end(&hold);
  support_let_run(runtime);
  LADE_EXPECT_EQ_INT(calls, 0);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Faults, DeviceIsLostAtItsVirtualTimeAndWorkStopsThere) {
  NEEDS(support_is_virtual(runtime), "real time");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 2 * 4096);
  void *memory = conformance_device_pattern(runtime, 0, 4096, 1);
  uint64_t now = runtime->ops->now_ns(runtime->self);
  /* Each copy takes a little more than its 3 us of launch: the first ends before, the second after the loss. */
  LADE_ASSERT_OK(lade_soft_device_lose(runtime, 0, now + 5000));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned, memory, 4096, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned + 4096, memory, 4096, &stream));
  LADE_ASSERT_OK(lade_soft_advance(runtime, 100000));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, OP(stream_query, &stream));
  LADE_EXPECT_PATTERN(pinned, 4096, 1, 0);
  EXPECT_BYTES(pinned + 4096, 4096, 0);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- What is counted and reported --------------------------------------------------------------------------------- */

CONFORMANCE_TEST(SoftReport, CountsWhatIsAlive) {
  NEEDS_SOFTWARE_DEVICE();
  lade_soft_report before = report_of(runtime);
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  lade_event event = conformance_event(runtime, 0);
  void *memory = conformance_device_memory(runtime, 0, 8192), *pinned = conformance_pinned(runtime, 4096);
  lade_soft_report during = report_of(runtime);
  LADE_EXPECT_EQ_UINT(during.streams, before.streams + 1);
  LADE_EXPECT_EQ_UINT(during.events, before.events + 1);
  LADE_EXPECT_EQ_UINT(during.device_allocations, before.device_allocations + 1);
  LADE_EXPECT_GE_UINT(during.device_bytes, before.device_bytes + 8192);
  LADE_EXPECT_EQ_UINT(during.pinned_ranges, before.pinned_ranges + 1);
  LADE_EXPECT_GE_UINT(during.pinned_bytes, before.pinned_bytes + 4096);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
  lade_soft_report after = report_of(runtime);
  LADE_EXPECT_EQ_MEM(&after, &before, sizeof before);
}

CONFORMANCE_TEST(SoftReport, CloseRefusesWhileSomethingIsAliveAndNamesIt) {
  NEEDS_SOFTWARE_DEVICE();
  void *memory = conformance_device_memory(runtime, 0, 8192), *pinned = conformance_pinned(runtime, 4096);
  lade_event event = conformance_event(runtime, 0);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(runtime));
  /* Still open. */
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 event");
  LADE_ASSERT_OK(OP(event_destroy, event));
}

CONFORMANCE_TEST(SoftReport, UseOfFreedMemoryIsFound) {
  NEEDS_SOFTWARE_DEVICE();
  conformance_allow_findings();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  void *memory = conformance_device_memory(runtime, 0, 4096);
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned, memory, 4096, &stream));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  support_stream_hold_end(&hold);
  (void)OP(stream_synchronize, &stream);
  LADE_EXPECT_GE_UINT(report_of(runtime).freed_memory_used, 1);
  LADE_EXPECT_GT_SIZE(strlen(report_of(runtime).last_finding), 0);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* Two streams write the same bytes with nothing between them; then the same with an event, which is in order. */
CONFORMANCE_TEST(SoftReport, ReuseThatNoOrderCoversIsFound) {
  NEEDS_SOFTWARE_DEVICE();
  conformance_allow_findings();
  ladei_stream a = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream b = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  lade_event event = conformance_event(runtime, 0);
  void *memory = conformance_device_memory(runtime, 0, 4096);
  LADE_EXPECT_OK(OP(fill, memory, 1, 4096, &a));
  LADE_EXPECT_OK(OP(event_record, event, &a));
  LADE_EXPECT_OK(OP(stream_wait_event, &b, event));
  LADE_EXPECT_OK(OP(fill, memory, 2, 4096, &b));
  LADE_EXPECT_OK(OP(stream_synchronize, &b));
  LADE_EXPECT_EQ_UINT(report_of(runtime).unordered_reuse, 0);
  LADE_EXPECT_OK(OP(fill, memory, 3, 4096, &a));
  LADE_EXPECT_OK(OP(fill, memory, 4, 4096, &b));
  LADE_EXPECT_OK(OP(device_synchronize, 0));
  LADE_EXPECT_GE_UINT(report_of(runtime).unordered_reuse, 1);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(event_destroy, event));
  LADE_ASSERT_OK(OP(stream_destroy, a.handle));
  LADE_ASSERT_OK(OP(stream_destroy, b.handle));
}

CONFORMANCE_TEST(SoftReport, CopiesOfPageableMemoryAreCounted) {
  NEEDS_SOFTWARE_DEVICE();
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  void *memory = conformance_device_memory(runtime, 0, 4096), *pageable = calloc(1, 4096);
  LADE_EXPECT_EQ_UINT(report_of(runtime).unpinned_copies, 0);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, pageable, 4096, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_UINT(report_of(runtime).unpinned_copies, 1);
  free(pageable);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
