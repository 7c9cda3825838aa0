/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite: what runtime/ops.h promises, tested line by line on every runtime.
 *
 *   binary                    runtimes
 *   soft_conformance_test     "sim", "cpu"
 *   loopback_conformance_test "cuda", on a libcuda.so.1 made of a software device
 *   cuda_conformance_test     "cuda", on a GPU; skipped elsewhere
 *
 * The same test files are linked into each; soft_runtimes.c, loopback_runtimes.c or cuda_runtimes.c names its runtimes.
 *
 *   CONFORMANCE_TEST(Fill, SetsEveryByte) {
 *     void *memory;
 *     LADE_ASSERT_OK(OP(device_alloc, 0, 4096, &memory));
 *     ...
 *   }
 *
 * Each body runs in a thread of its own, so that it starts with no current device and the default capture mode. It
 * leaves nothing behind: afterwards the runtime must close, and a software device must have nothing to report.
 */
#ifndef LADE_TESTS_CONFORMANCE_CONFORMANCE_H
#define LADE_TESTS_CONFORMANCE_CONFORMANCE_H

#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

extern const char *const conformance_runtimes[];
/* The runtimes notice when an op on virtual memory crosses the end of a reservation. */
extern const bool conformance_finds_reservations_out;

/* Called after each test and the close of its runtime: what the driver below has to complain of fails the test. */
void conformance_check_driver(void);

#define CONFORMANCE_TEST(suite, name)                                                                                  \
  static void suite##_##name##_body(lade_runtime *runtime);                                                            \
  LADE_TEST_P(suite, name, conformance_runtimes, runtime_name) {                                                       \
    conformance_run(runtime_name, suite##_##name##_body);                                                              \
  }                                                                                                                    \
  static void suite##_##name##_body(lade_runtime *runtime)

/* Calls an op of the variable `runtime`. */
#define OP(name, ...) (runtime->ops->name(runtime->self, ##__VA_ARGS__))

/* Leaves the test, as skipped, where the runtime lacks something. */
#define NEEDS(condition, reason)                                                                                       \
  do {                                                                                                                 \
    if (!(condition)) LADE_SKIP(reason);                                                                               \
  } while (0)
#define NEEDS_OP(name)      NEEDS(runtime->ops->name != NULL, "this runtime has no " #name)
#define NEEDS_TWO_DEVICES() NEEDS(conformance_device_count(runtime) >= 2, "one device only")

void conformance_run(const char *runtime_name, void (*body)(lade_runtime *runtime));

/* The test misuses something on purpose: a software device may report that. */
void conformance_allow_findings(void);

/* Runs `function` in another thread and waits for its end. */
void conformance_in_thread(void (*function)(lade_runtime *runtime, void *user), lade_runtime *runtime, void *user);

int conformance_device_count(lade_runtime *runtime);
bool conformance_has(lade_runtime *runtime, int device, ladei_device_attribute attribute);

/* Makers for the rest of a test: the result, or zeros with the test failed. */
ladei_stream conformance_stream(lade_runtime *runtime, int device, unsigned flags);
/* The legacy stream of a device, which is current from then on. */
ladei_stream conformance_legacy(lade_runtime *runtime, int device);
lade_event conformance_event(lade_runtime *runtime, int device);
void *conformance_device_memory(lade_runtime *runtime, int device, size_t bytes);
void *conformance_pinned(lade_runtime *runtime, size_t bytes);

/* Device memory that holds the pattern of a seed, and the check that memory of a device holds it. */
void *conformance_device_pattern(lade_runtime *runtime, int device, size_t bytes, uint64_t seed);
void conformance_expect_device_pattern(lade_runtime *runtime, int device, const void *memory, size_t bytes,
                                       uint64_t seed);

/* Fails the test unless all bytes are `value`. */
#define EXPECT_BYTES(memory, bytes, value) conformance_expect_bytes(__FILE__, __LINE__, memory, bytes, value)
void conformance_expect_bytes(const char *file, int line, const void *memory, size_t bytes, unsigned char value);

/* Fails the test unless `call` gave `expected` and the error record names the op and holds the text (NULL: any). */
#define EXPECT_REFUSED(expected, op_name, text, call)                                                                  \
  conformance_expect_refused(__FILE__, __LINE__, #call, expected, op_name, text, call)
void conformance_expect_refused(const char *file, int line, const char *call_text, lade_status expected,
                                const char *op_name, const char *text, lade_status actual);

/* A log of numbers in the order in which host functions ran. */
enum { CONFORMANCE_LOG_ROOM = 256 };
typedef struct conformance_log {
  _Atomic(int) count;
  int numbers[CONFORMANCE_LOG_ROOM];
} conformance_log;
typedef struct conformance_log_entry {
  conformance_log *log;
  int number;
} conformance_log_entry;
/* A ladei_host_function; user is a conformance_log_entry. */
void conformance_log_append(void *user);

/* A ladei_host_function that counts its calls; user is an _Atomic(int). And waiting for a count. */
void conformance_count(void *user);
bool conformance_wait_count(lade_runtime *runtime, _Atomic(int) *count, int expected);

#endif /* LADE_TESTS_CONFORMANCE_CONFORMANCE_H */
