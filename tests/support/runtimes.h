/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runtimes for tests: opening them, waiting on them, and holding a stream back.
 *
 * The standard description of the software devices "sim" and "cpu": two devices of 256 MiB, the first on NUMA node 0,
 * the second on node 1, that can access each other's memory.
 *
 *   LADE_TEST_P(Pool, FreesAfterUse, support_soft_runtimes, name) {
 *     lade_runtime *runtime = support_runtime_open(name);
 *     if (runtime == NULL) return;
 *     ...
 *     support_runtime_close(runtime);
 *   }
 *
 * Waiting is the same code on every clock: support_wait() lets virtual time pass on "sim" and real time elsewhere.
 */
#ifndef LADE_TESTS_SUPPORT_RUNTIMES_H
#define LADE_TESTS_SUPPORT_RUNTIMES_H

#include "lade/runtime.h"
#include "lade/soft.h"

/* For LADE_TEST_P. */
extern const char *const support_sim_only[];      /* "sim" */
extern const char *const support_soft_runtimes[]; /* "sim", "cpu" */
extern const char *const support_cpu_only[];      /* "cpu" */
extern const char *const support_cuda_only[];     /* "cuda": the loopback driver, or a GPU where there is one */

/*
 * For sources that are built for software devices and again for CUDA (lade_cc_runtime_tests in bazel/cc.bzl): the
 * runtimes of the build at hand, and those of them that threads may share.
 */
#ifdef LADE_TEST_ON_CUDA
#define SUPPORT_RUNTIMES          support_cuda_only
#define SUPPORT_THREADED_RUNTIMES support_cuda_only
#else
#define SUPPORT_RUNTIMES          support_soft_runtimes
#define SUPPORT_THREADED_RUNTIMES support_cpu_only
#endif

enum { SUPPORT_DEVICE_COUNT = 2 };
#define SUPPORT_DEVICE_BYTES ((size_t)256 << 20)

/* The standard description, for tests that change a part of it. options->soft points to *soft, soft to devices. */
typedef struct support_description {
  lade_soft_device devices[SUPPORT_DEVICE_COUNT];
  lade_soft_options soft;
  lade_runtime_options options;
} support_description;
void support_description_init(support_description *description);

/*
 * Opens the named runtime with the standard description. NULL with the test failed; or, for "cuda" where there is no
 * driver or device, with the test skipped.
 */
lade_runtime *support_runtime_open(const char *name);
/* The same with the caller's options; NULL stands for the standard description. */
lade_runtime *support_runtime_open_with(const char *name, const lade_runtime_options *options);

/* Closes; fails the test, with the counts of what is alive, if the runtime refuses. */
void support_runtime_close(lade_runtime *runtime);

/* Whether time is virtual: nothing happens unless somebody waits. */
bool support_is_virtual(const lade_runtime *runtime);

/*
 * Waits until done(user) is true; false when that never came: on virtual time because nothing more can happen, else
 * after 50 seconds. No test asserts a time: this is the bound that keeps a broken one from hanging.
 */
bool support_wait(lade_runtime *runtime, bool (*done)(void *user), void *user);

/*
 * Lets happen what can happen by itself: on virtual time all of it, on real time what a few milliseconds bring. Before
 * a check that something did *not* happen; such a check is sharp on "sim", and on the others can only miss a fault.
 */
void support_let_run(lade_runtime *runtime);

/* Waits until the event, or all work queued on the stream, is done; fails the test with `what` if that never comes. */
bool support_wait_event(lade_runtime *runtime, lade_event event);
bool support_wait_stream(lade_runtime *runtime, lade_stream stream);

/*
 * Holds a stream: work queued on it after support_stream_hold_begin does not run until support_stream_hold_end, so a test
 * can look at things that are surely pending. Synchronise the stream first. While a stream is held: no synchronising, and no
 * alloc or free op, which a driver may make wait for all work. Only streams that the test created; several at once on
 * software devices only, since a GPU's driver may run all host functions in one thread.
 */
typedef struct support_stream_hold {
  lade_runtime *runtime;
  lade_stream stream;
  struct support_stream_hold_latch *latch; /* NULL on "sim" and "cpu", which can hold a stream themselves */
} support_stream_hold;
bool support_stream_hold_begin(support_stream_hold *hold, lade_runtime *runtime, lade_stream stream);
void support_stream_hold_end(support_stream_hold *hold);

#endif /* LADE_TESTS_SUPPORT_RUNTIMES_H */
