/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the conformance tests share.
 *
 * I1  A body that ends without a failure is followed by the check for findings and by a close that must succeed; after
 *     a failure both are left out, since the test's leftovers would only add noise.
 * Locks: none.
 */
#include "tests/conformance/conformance.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static bool findings_allowed;

void conformance_allow_findings(void) { findings_allowed = true; }

/* --- Running a body ----------------------------------------------------------------------------------------------- */

static void expect_no_findings(lade_runtime *runtime) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  if (findings_allowed || lade_soft_report_get(runtime, &report) != LADE_OK) return;
  uint64_t findings = report.freed_memory_used + report.unordered_reuse + report.stale_handles;
  if (findings != 0) LADE_FAIL("the software device reports: %s", report.last_finding);
}

typedef struct body_call {
  void (*body)(lade_runtime *runtime);
  lade_runtime *runtime;
} body_call;

static void *body_run(void *user) {
  body_call *call = user;
  call->body(call->runtime);
  return NULL;
}

void conformance_run(const char *runtime_name, void (*body)(lade_runtime *runtime)) {
  lade_runtime *runtime = support_runtime_open(runtime_name);
  if (runtime == NULL) return;
  findings_allowed = false;
  body_call call = {body, runtime};
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, body_run, &call), 0);
  pthread_join(thread, NULL);
  if (lade_test_has_failed()) {
    (void)lade_runtime_close(runtime);
    return;
  }
  expect_no_findings(runtime);
  support_runtime_close(runtime);
  conformance_check_driver();
}

typedef struct thread_call {
  void (*function)(lade_runtime *runtime, void *user);
  lade_runtime *runtime;
  void *user;
} thread_call;

static void *thread_run(void *user) {
  thread_call *call = user;
  call->function(call->runtime, call->user);
  return NULL;
}

void conformance_in_thread(void (*function)(lade_runtime *runtime, void *user), lade_runtime *runtime, void *user) {
  thread_call call = {function, runtime, user};
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, thread_run, &call), 0);
  pthread_join(thread, NULL);
}

/* --- Devices and objects ------------------------------------------------------------------------------------------ */

int conformance_device_count(lade_runtime *runtime) {
  int count = 0;
  LADE_EXPECT_OK(OP(device_count, &count));
  return count;
}

bool conformance_has(lade_runtime *runtime, int device, ladei_device_attribute attribute) {
  int64_t value = 0;
  LADE_EXPECT_OK(OP(device_attribute, device, attribute, &value));
  return value != 0;
}

ladei_stream conformance_stream(lade_runtime *runtime, int device, unsigned flags) {
  ladei_stream stream = {0};
  lade_stream handle = NULL;
  lade_status status = OP(stream_create, device, 0, flags, &handle);
  if (status == LADE_OK) status = OP(stream_resolve, handle, &stream);
  LADE_EXPECT_OK(status);
  return stream;
}

ladei_stream conformance_legacy(lade_runtime *runtime, int device) {
  ladei_stream stream = {0};
  LADE_EXPECT_OK(OP(current_device_set, device));
  LADE_EXPECT_OK(OP(stream_resolve, NULL, &stream));
  return stream;
}

lade_event conformance_event(lade_runtime *runtime, int device) {
  lade_event event = NULL;
  uint64_t context;
  lade_status status = OP(device_context, device, &context);
  if (status == LADE_OK) status = OP(event_create, context, 0, &event);
  LADE_EXPECT_OK(status);
  return event;
}

void *conformance_device_memory(lade_runtime *runtime, int device, size_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(OP(device_alloc, device, bytes, &memory));
  return memory;
}

void *conformance_pinned(lade_runtime *runtime, size_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(OP(host_alloc, 0, bytes, 0, &memory));
  if (memory != NULL) memset(memory, 0, bytes);
  return memory;
}

void *conformance_device_pattern(lade_runtime *runtime, int device, size_t bytes, uint64_t seed) {
  void *memory = conformance_device_memory(runtime, device, bytes);
  void *host = malloc(bytes);
  if (host == NULL) abort();
  support_pattern_fill(host, bytes, seed, 0);
  if (memory != NULL) LADE_EXPECT_OK(OP(copy_sync, device, LADEI_COPY_H2D, memory, host, bytes));
  free(host);
  return memory;
}

void conformance_expect_device_pattern(lade_runtime *runtime, int device, const void *memory, size_t bytes,
                                       uint64_t seed) {
  void *host = calloc(1, bytes);
  if (host == NULL) abort();
  LADE_EXPECT_OK(OP(copy_sync, device, LADEI_COPY_D2H, host, memory, bytes));
  LADE_EXPECT_PATTERN(host, bytes, seed, 0);
  free(host);
}

void conformance_expect_bytes(const char *file, int line, const void *memory, size_t bytes, unsigned char value) {
  const unsigned char *at = memory;
  size_t i = 0;
  while (i < bytes && at[i] == value) i++;
  if (i != bytes) ladet_fail(file, line, "byte %zu of %zu is 0x%02x instead of 0x%02x", i, bytes, at[i], value);
}

/* --- Errors ------------------------------------------------------------------------------------------------------- */

void conformance_expect_refused(const char *file, int line, const char *call_text, lade_status expected,
                                const char *op_name, const char *text, lade_status actual) {
  if (!ladet_equal_status(file, line, call_text, expected, actual)) return;
  const lade_error *error = lade_last_error();
  if (error->status != expected)
    ladet_fail(file, line, "%s: the error record says %s", call_text, lade_status_name(error->status));
  if (strstr(error->text, op_name) == NULL || (text != NULL && strstr(error->text, text) == NULL)) {
    ladet_fail(file, line, "%s: the error record should name %s and %s, but is: %s", call_text, op_name,
               text != NULL ? text : "nothing else", error->text);
  }
}

/* --- Host functions ----------------------------------------------------------------------------------------------- */

void conformance_log_append(void *user) {
  conformance_log_entry *entry = user;
  int place = atomic_fetch_add(&entry->log->count, 1);
  if (place < CONFORMANCE_LOG_ROOM) entry->log->numbers[place] = entry->number;
}

void conformance_count(void *user) { atomic_fetch_add((_Atomic(int) *)user, 1); }

typedef struct count_wait {
  _Atomic(int) *count;
  int expected;
} count_wait;

static bool count_reached(void *user) {
  count_wait *wait = user;
  return atomic_load(wait->count) >= wait->expected;
}

bool conformance_wait_count(lade_runtime *runtime, _Atomic(int) *count, int expected) {
  count_wait wait = {count, expected};
  bool reached = support_wait(runtime, count_reached, &wait);
  if (!reached) LADE_FAIL("waited for %d calls, got %d", expected, atomic_load(count));
  return reached;
}
