/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: What a pinned pool logs: settings, segments, fallbacks, quarantined uses, lost devices; callbacks that use the pool. */
#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/soft.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/deny.h"
#include "tests/support/heard.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

LADE_TEST(PinnedLog, TellsOfPoolsAndSegments) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  support_heard_begin(&heard, LADE_LOG_INFO);
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096));
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, ": segment of 2097152 bytes at "), 1);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "given back"), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "no block ready"), 0);
  pinned_fixture_close(&own);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "at most 67108864 bytes, segments of 2097152"), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, ": destroyed"), 1);
}

/* ---- A callback that needs memory --------------------------------------------------------------------------------- */

typedef struct caller {
  lade_pinned_pool *pool;
  size_t bytes;
  int calls;
  lade_status status;
} caller;

static void alloc_when_given_back(void *user, lade_log_level level, const char *text) {
  caller *own = user;
  void *block = NULL;
  (void)level;
  if (strstr(text, "given back") == NULL || own->calls++ > 0) return;
  own->status = lade_pinned_alloc(own->pool, own->bytes, &block);
}

/* The bug: a line was delivered while the alloc had blocks in transit; the callback's alloc, at the cap, waited for that for ever. */
LADE_TEST(PinnedLog, CallbackOfAnAllocMayAllocateAtTheCap) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  options.max_idle_ms = 10;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  caller called = {.pool = own.pool, .bytes = (size_t)options.max_bytes, .status = LADE_OK};
  void *first = pinned_fixture_alloc(&own, 8192), *idle = pinned_fixture_alloc(&own, 2 * PINNED_FIXTURE_SEGMENT_BYTES);
  pinned_fixture_free(&own, idle);
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 20 * UINT64_C(1000000)));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool)); /* sees it free for the first time */
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 20 * UINT64_C(1000000)));
  LADE_EXPECT_OK(lade_log_set(alloc_when_given_back, &called, LADE_LOG_INFO));
  void *second = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 8192, &second)); /* of a refill of several */
  LADE_EXPECT_OK(lade_log_set(NULL, NULL, LADE_LOG_OFF));
  LADE_EXPECT_EQ_INT(called.calls, 1);
  LADE_EXPECT_EQ_INT(called.status, LADE_ERR_LIMIT);
  pinned_fixture_free(&own, first);
  pinned_fixture_free(&own, second);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLog, TellsOfSlowPaths) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  support_heard_begin(&heard, LADE_LOG_DEBUG);
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096));
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096)); /* from the thread's magazine */
  pinned_fixture_close(&own);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "4096 bytes: no block ready"), 1);
}

LADE_TEST(PinnedLog, WarnsOfASourceThatRefuses) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  support_heard_begin(&heard, LADE_LOG_WARN);
  support_fail(own.runtime, "host_register", 1, 1);
  void *block = pinned_fixture_alloc(&own, 4096);
  support_heard_end();
  LADE_EXPECT_EQ_INT(
      support_heard_count(&heard, LADE_LOG_WARN, "source register refused 2097152 bytes, the next one is tried: "), 1);
  LADE_EXPECT_EQ_INT(heard.count, 1);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

/* One line for an event that fails again and again. */
LADE_TEST(PinnedLog, TellsOfQuarantinedUses) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.event_batch = 1;
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  pinned_fixture_use(&own, block, 0);
  support_heard_begin(&heard, LADE_LOG_ERROR);
  support_fail(own.runtime, "event_record", 1, 3);
  pinned_fixture_free(&own, block);
  for (int i = 0; i < 3; i++) (void)lade_pinned_process_events(own.pool);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_ERROR, "no event can be recorded, its blocks stay pending"),
                     1);
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLog, TellsOfEventsThatCannotBeAsked) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.event_batch = 1;
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  support_heard_begin(&heard, LADE_LOG_ERROR);
  support_fail(own.runtime, "event_query", 1, 3);
  for (int i = 0; i < 3; i++) (void)lade_pinned_process_events(own.pool);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_ERROR, "an event cannot be asked, its blocks stay pending"),
                     1);
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLog, TellsOfStreamsDestroyedTooEarly) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.streams[0]));
  own.streams[0] = NULL;
  support_heard_begin(&heard, LADE_LOG_ERROR);
  for (int i = 0; i < 3; i++) (void)lade_pinned_process_events(own.pool);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_ERROR, "was destroyed before an event covered its uses"), 1);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLog, TellsOfTheCap) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  void *blocks[2], *more = NULL;
  options.max_bytes = 2 * PINNED_FIXTURE_SEGMENT_BYTES;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  support_heard_begin(&heard, LADE_LOG_DEBUG);
  for (int i = 0; i < 2; i++) blocks[i] = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "no room under the cap"), 0);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, 4096, &more));
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "4096 bytes: no room under the cap of 4194304 bytes"),
                     1);
  for (int i = 0; i < 2; i++) pinned_fixture_free(&own, blocks[i]);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLog, TellsOfSourcesThatHaveNoMore) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  void *block = NULL;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  support_heard_begin(&heard, LADE_LOG_DEBUG);
  support_fail(own.runtime, "host_register", 1, 1000);
  LADE_EXPECT(lade_pinned_alloc(own.pool, 4096, &block) != LADE_OK);
  support_heard_end();
  LADE_EXPECT_GE_INT(
      support_heard_count(&heard, LADE_LOG_DEBUG, "4096 bytes: no source has them, the cache is given back: "), 1);
  support_fail(own.runtime, "host_register", 1, 0);
  pinned_fixture_close(&own);
}

static void heard_post(void *user) { sem_post(user); }

LADE_TEST(PinnedLog, TellsWhatItsBackgroundThreadCannot) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  sem_t spoken;
  options.event_batch = 1;
  options.flags = LADE_PINNED_BACKGROUND;
  sem_init(&spoken, 0, 0);
  if (!pinned_fixture_open(&own, support_interposer_open("cpu", NULL), &options)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  support_heard_begin(&heard, LADE_LOG_OFF);
  heard.also = heard_post;
  heard.user = &spoken;
  support_heard_resume(&heard, LADE_LOG_ERROR);
  support_fail(own.runtime, "event_record", 1, UINT64_MAX / 2);
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  while (support_heard_count(&heard, LADE_LOG_ERROR, ": background thread: ") == 0) sem_wait(&spoken);
  support_fail(own.runtime, "event_record", 1, 0);
  support_heard_end();
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  pinned_fixture_close(&own);
  sem_destroy(&spoken);
}

LADE_TEST(PinnedLog, TellsOfALostDevice) {
  support_heard heard;
  lade_runtime *runtime = support_runtime_open("sim");
  support_heard_begin(&heard, LADE_LOG_ERROR);
  LADE_EXPECT_OK(lade_soft_device_lose(runtime, 0, 0));
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_ERROR, "runtime sim: software device 0 is lost"), 1);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

/* --- callbacks ---------------------------------------------------------------------------------------------------- */

typedef struct use {
  pinned_fixture *own;
  bool inside;
  int count;
} use;

/* As much as a segment has: grows the pool, too. */
static void pool_use(void *user) {
  use *u = user;
  if (u->own->pool == NULL || u->inside) return;
  u->inside = true;
  void *block = pinned_fixture_alloc(u->own, PINNED_FIXTURE_SEGMENT_BYTES);
  pinned_fixture_free(u->own, block);
  u->inside = false;
  u->count++;
}

/* A line made while the thread grows the pool is not delivered before the growth is over: the callback would wait for it. */
LADE_TEST(PinnedLog, ItsCallbackMayUseThePool) {
  support_heard heard;
  pinned_fixture own = {.pool = NULL};
  use u = {.own = &own};
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  support_heard_begin(&heard, LADE_LOG_OFF);
  heard.also = pool_use;
  heard.user = &u;
  LADE_EXPECT_EQ_INT(heard.count, 0);
  support_heard_resume(&heard, LADE_LOG_DEBUG);
  for (int i = 0; i < 3; i++) pinned_fixture_free(&own, pinned_fixture_alloc(&own, (size_t)4096 << i));
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  support_heard_end();
  LADE_EXPECT_GE_INT(u.count, 3);
  pinned_fixture_close(&own);
}

/* --- the kernel --------------------------------------------------------------------------------------------------- */

static int without_membarrier(void) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  alarm(60);
  if (!support_deny(SYS_membarrier, EPERM, false)) return 77;
  support_heard_begin(&heard, LADE_LOG_WARN);
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return 1;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096));
  return support_heard_count(&heard, LADE_LOG_WARN, "the kernel refuses membarrier()") == 1 ? 0 : 2;
}

/* A segment in a process that may not make a system call, and whether the log has these words. */
static int without_call(long number, int error, const char *words) {
  support_heard heard;
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  alarm(60);
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return 1;
  if (!support_deny(number, error, false)) return 77;
  support_heard_begin(&heard, LADE_LOG_WARN);
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096));
  return support_heard_count(&heard, LADE_LOG_WARN, words) == 1 ? 0 : 2;
}

static int without_madvise(void) {
  return without_call(SYS_madvise, EINVAL, "the kernel refuses huge pages for 2097152 bytes: ");
}

static void child_expect(int (*body)(void)) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) _exit(body());
  LADE_ASSERT(waitpid(child, &status, 0) == child && WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) LADE_SKIP("the system has no filters of system calls");
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}

LADE_TEST(PinnedLog, WarnsOfAKernelThatRefusesHugePages) { child_expect(without_madvise); }

LADE_TEST(PinnedLog, WarnsOfAKernelThatRefusesMembarrier) { child_expect(without_membarrier); }
