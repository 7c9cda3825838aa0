/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counting and failing runtime, and the driver that fails every call in turn: both must catch what
 * they are for.
 */
#include <string.h>

#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "tests/support/runtimes.h"

#define OP(name, ...) (runtime->ops->name(runtime->self, ##__VA_ARGS__))

LADE_TEST_P(Interposer, CountsWhatLives, support_soft_runtimes, name) {
  lade_runtime *runtime = support_interposer_open(name, NULL);
  LADE_ASSERT(runtime != NULL);
  void *first, *second;
  LADE_ASSERT_OK(OP(device_alloc, 0, 4096, &first));
  LADE_ASSERT_OK(OP(device_alloc, 1, 4096, &second));
  LADE_EXPECT_EQ_INT(support_live(runtime, SUPPORT_LIVE_DEVICE_MEMORY), 2);
  LADE_EXPECT_EQ_UINT(support_call_count(runtime, "device_alloc"), 2);
  LADE_ASSERT_OK(OP(device_free, 0, first));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(device_free, 0, NULL));
  LADE_EXPECT_EQ_INT(support_live(runtime, SUPPORT_LIVE_DEVICE_MEMORY), 1);
  LADE_ASSERT_OK(OP(device_free, 1, second));
  support_expect_nothing_live(runtime);
  support_runtime_close(runtime);
}

LADE_TEST_P(Interposer, FailsTheCallsItIsToldTo, support_soft_runtimes, name) {
  lade_runtime *runtime = support_interposer_open(name, NULL);
  LADE_ASSERT(runtime != NULL);
  support_fail(runtime, "host_alloc", 2, 3);
  for (int call = 1; call <= 6; call++) {
    void *memory = &memory;
    lade_status status = OP(host_alloc, 0, 4096, 0, &memory);
    bool fails = call >= 2 && call <= 4;
    LADE_EXPECT_STATUS(fails ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_OK, status);
    if (fails) {
      LADE_EXPECT_EQ_PTR(memory, &memory);
      LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "host_alloc");
    } else {
      LADE_ASSERT_OK(OP(host_free, memory));
    }
  }
  LADE_EXPECT_EQ_UINT(support_failed_calls(runtime), 3);
  support_fail(runtime, "host_alloc", 1, UINT64_MAX);
  void *memory;
  for (int i = 0; i < 3; i++) LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, OP(host_alloc, 0, 4096, 0, &memory));
  support_fail(runtime, "host_alloc", 1, 0);
  LADE_ASSERT_OK(OP(host_alloc, 0, 4096, 0, &memory));
  LADE_ASSERT_OK(OP(host_free, memory));
  support_runtime_close(runtime);
}

LADE_TEST(Interposer, SoftwareDeviceFunctionsReachTheRuntimeBelow) {
  lade_runtime *runtime = support_interposer_open("sim", NULL);
  LADE_ASSERT(runtime != NULL);
  LADE_EXPECT_OK(lade_soft_advance(runtime, 1000));
  LADE_EXPECT_EQ_UINT(lade_runtime_now_ns(runtime), lade_runtime_now_ns(support_inner(runtime)));
  LADE_EXPECT(support_inner(support_inner(runtime)) == support_inner(runtime));
  support_runtime_close(runtime);
}

LADE_TEST(Interposer, KnowsWhichOpsGiveBack) {
  size_t releasing = 0;
  for (size_t op = 0; op < support_op_count(); op++) {
    releasing += support_op_releases(op);
    if (strstr(support_op_name(op), "free") != NULL) LADE_EXPECT(support_op_releases(op));
    if (strstr(support_op_name(op), "destroy") != NULL) LADE_EXPECT(support_op_releases(op));
  }
  LADE_EXPECT_EQ_SIZE(releasing, 15);
}

/* --- Every call failing in turn ----------------------------------------------------------------------------------- */

typedef struct scenario_log {
  int runs, failed_runs;
  bool forgets_stream; /* a bug: the stream leaks when the event cannot be made */
  lade_stream stream;  /* ... and here it is */
} scenario_log;

static lade_status stream_and_event(lade_runtime *runtime, void *user) {
  scenario_log *log = user;
  log->runs++;
  lade_stream stream;
  lade_event event;
  uint64_t context;
  lade_status status = OP(device_context, 0, &context);
  if (status != LADE_OK) return status;
  status = OP(stream_create, 0, 0, 0, &stream);
  if (status != LADE_OK) return status;
  log->stream = stream;
  status = OP(event_create, context, 0, &event);
  if (status == LADE_OK) (void)OP(event_destroy, event);
  if (status == LADE_OK || !log->forgets_stream) (void)OP(stream_destroy, stream);
  return status;
}

static void count_failure(lade_runtime *runtime, const support_failure *failure, lade_status status, void *user) {
  (void)runtime;
  scenario_log *log = user;
  LADE_EXPECT_EQ_INT(failure->op != NULL, status != LADE_OK);
  log->failed_runs += failure->op != NULL;
}

LADE_TEST(ForEachFailure, FailsEachCallOfEachOpOnce) {
  scenario_log log = {0};
  support_failure_options options = {.check = count_failure};
  support_for_each_failure("sim", stream_and_event, &options, &log);
  LADE_EXPECT_EQ_INT(log.runs, 4);
  LADE_EXPECT_EQ_INT(log.failed_runs, 3);
}

/* What it is for, by hand: the leak shows in the count. */
LADE_TEST(ForEachFailure, ALeakWouldShow) {
  lade_runtime *runtime = support_interposer_open("sim", NULL);
  LADE_ASSERT(runtime != NULL);
  scenario_log log = {.forgets_stream = true};
  support_fail(runtime, "event_create", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, stream_and_event(runtime, &log));
  LADE_EXPECT_EQ_INT(support_live(runtime, SUPPORT_LIVE_STREAMS), 1);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 stream");
  LADE_ASSERT_OK(OP(stream_destroy, log.stream));
  support_runtime_close(runtime);
}

/* --- Locks -------------------------------------------------------------------------------------------------------- */

/* Calls an op in a child, with or without a lock held; how the child ended. */
static int child_calls(lade_runtime *runtime, bool locked) {
  pid_t child = fork();
  if (child == 0) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGABRT, SIG_DFL);
    (void)!freopen("/dev/null", "w", stderr);
    ladei_lock lock;
    ladei_lock_init(&lock, LADEI_RANK_DEVICE);
    if (locked) ladei_lock_acquire(&lock);
    int count;
    (void)OP(device_count, &count);
    _exit(0);
  }
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  return status;
}

/* Every test of the library on an interposer relies on this to find a driver call under a lock. */
LADE_TEST(Interposer, ACallUnderALockStopsTheProgram) {
  lade_runtime *runtime = support_interposer_open("sim", NULL);
  LADE_ASSERT(runtime != NULL);
  LADE_EXPECT_EQ_INT(child_calls(runtime, false), 0);
#ifndef NDEBUG
  int status = child_calls(runtime, true);
  LADE_EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
  support_runtime_close(runtime);
}

/* --- Gates -------------------------------------------------------------------------------------------------------- */

static void set_flag(void *user) { *(_Atomic(int) *)user = 1; }

LADE_TEST_P(Gate, HoldsWorkBackUntilOpened, support_soft_runtimes, name) {
  lade_runtime *runtime = support_runtime_open(name);
  LADE_ASSERT(runtime != NULL);
  lade_stream handle;
  ladei_stream stream;
  _Atomic(int) ran = 0;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &handle));
  LADE_ASSERT_OK(OP(stream_resolve, handle, &stream));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, handle));
  LADE_ASSERT_OK(OP(host_function, &stream, set_flag, &ran));
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_stream_query(runtime, handle));
  LADE_EXPECT_EQ_INT(ran, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(runtime, handle));
  LADE_EXPECT_EQ_INT(ran, 1);
  LADE_ASSERT_OK(lade_stream_destroy(runtime, handle));
  support_runtime_close(runtime);
}

/* ---- Holding ----------------------------------------------------------------------------------------------------- */

typedef struct held_call {
  lade_runtime *runtime;
  void *memory;
  atomic_bool returned;
} held_call;

static void *held_call_run(void *user) {
  held_call *call = user;
  LADE_EXPECT_OK(call->runtime->ops->device_alloc(call->runtime->self, 0, 4096, &call->memory));
  atomic_store(&call->returned, true);
  return NULL;
}

static void hold_run(support_hold_place place, int64_t live_while_held) {
  lade_runtime *runtime = support_interposer_open("cpu", NULL);
  LADE_ASSERT(runtime != NULL);
  void *first, *third;
  held_call call = {.runtime = runtime};
  support_hold(runtime, "device_alloc", 2, place);
  LADE_ASSERT_OK(OP(device_alloc, 0, 4096, &first));
  pthread_t thread;
  LADE_ASSERT(pthread_create(&thread, NULL, held_call_run, &call) == 0);
  support_hold_await(runtime);
  LADE_EXPECT(!atomic_load(&call.returned));
  LADE_EXPECT_EQ_INT(support_live(runtime, SUPPORT_LIVE_DEVICE_MEMORY), live_while_held);
  LADE_ASSERT_OK(OP(device_alloc, 0, 4096, &third)); /* others go on */
  support_hold_end(runtime);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_INT(support_live(runtime, SUPPORT_LIVE_DEVICE_MEMORY), 3);
  LADE_EXPECT_OK(OP(device_free, 0, first));
  LADE_EXPECT_OK(OP(device_free, 0, call.memory));
  LADE_EXPECT_OK(OP(device_free, 0, third));
  support_runtime_close(runtime);
}

LADE_TEST(Interposer, HoldsACallBeforeItIsMade) { hold_run(SUPPORT_HOLD_BEFORE, 1); }

LADE_TEST(Interposer, HoldsACallAfterItWasMade) { hold_run(SUPPORT_HOLD_AFTER, 2); }
