/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Giving back, pinning ahead, NUMA placement, sources, and the two precise ways to end a use. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pinned.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/asleep.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

static int state_of(const pinned_fixture *own, const void *block) { return pinned_fixture_info(own, block).state; }

/* ---- Giving back, pinning ahead ---------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedLimits, TrimGivesBackTheOldestSegmentsOnly, support_soft_runtimes, runtime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *blocks[4];
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  for (int i = 0; i < 4; i++) blocks[i] = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  for (int i = 3; i > 0; i--) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 3 * PINNED_FIXTURE_SEGMENT_BYTES));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 3 * PINNED_FIXTURE_SEGMENT_BYTES);
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_find(own.pool, blocks[1], &info));
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 3 * PINNED_FIXTURE_SEGMENT_BYTES));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 3 * PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0)); /* one is in use */
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[0]));
  pinned_fixture_close(&own);
}

typedef struct trim_call {
  const pinned_fixture *own;
  uint64_t reserved; /* when it has returned */
  _Atomic(int) thread;
  atomic_bool done;
} trim_call;

static void *trim_run(void *user) {
  trim_call *call = user;
  atomic_store(&call->thread, (int)syscall(SYS_gettid));
  LADE_EXPECT_OK(lade_pinned_trim(call->own->pool, 0));
  call->reserved = pinned_fixture_stats(call->own).reserved_bytes.current;
  atomic_store(&call->done, true);
  return NULL;
}

/* As the pool's own thread does, which gives idle segments back: the other call found nothing, and returned while they were held. */
LADE_TEST(PinnedLimits, TrimWaitsForSegmentsThatOthersGiveBack) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  trim_call calls[2] = {{.own = &own}, {.own = &own}};
  pthread_t threads[2];
  if (!pinned_fixture_open(&own, support_interposer_open("cpu", NULL), &options)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES));
  support_hold(own.runtime, "host_unregister", 1, SUPPORT_HOLD_BEFORE);
  LADE_ASSERT_EQ_INT(pthread_create(&threads[0], NULL, trim_run, &calls[0]), 0);
  support_hold_await(own.runtime);
  LADE_ASSERT_EQ_INT(pthread_create(&threads[1], NULL, trim_run, &calls[1]), 0);
  while (!atomic_load(&calls[1].done) &&
         (atomic_load(&calls[1].thread) == 0 || !support_thread_sleeps(atomic_load(&calls[1].thread))))
    sched_yield();
  support_hold_end(own.runtime);
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    LADE_EXPECT_EQ_UINT(calls[i].reserved, 0);
  }
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedLimits, ReservedMemoryServesWithoutTheDriver, support_soft_runtimes, runtime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 5 * LADEI_MIB, 0));
  uint64_t pinned = pinned_fixture_stats(&own).driver_allocs;
  LADE_EXPECT_GE_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 5 * LADEI_MIB);
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 5 * LADEI_MIB, 0)); /* is there already */
  void *blocks[5];
  for (int i = 0; i < 5; i++) blocks[i] = pinned_fixture_alloc(&own, LADEI_MIB);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_allocs, pinned);
  for (int i = 0; i < 5; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_reserve(own.pool, options.max_bytes + 1, 0));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_pinned_reserve(own.pool, 1, SUPPORT_DEVICE_COUNT));
  pinned_fixture_close(&own);
}

static void expect_known(lade_status expected, lade_status status) {
  static const char known[] = "CUDA out of memory. ";
  LADE_EXPECT_STATUS(expected, status);
  if (strncmp(lade_last_error()->text, known, sizeof known - 1) != 0) LADE_FAIL("%s", lade_last_error()->text);
}

/* Programs that know PyTorch look for these words, and try again with less. */
LADE_TEST(PinnedLimits, EveryRefusalBeginsAsProgramsKnowIt) {
  lade_pinned_options options = pinned_fixture_options();
  static const char *const sources[] = {"host_register", "host_alloc", "pool_alloc"};
  pinned_fixture own;
  void *none = NULL;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  expect_known(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, options.max_bytes + 1, &none));
  expect_known(LADE_ERR_LIMIT, lade_pinned_alloc_near(own.pool, options.max_bytes + 1, 0, &none));
  expect_known(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, ((size_t)1 << 60) - 1, &none));
  expect_known(LADE_ERR_LIMIT, lade_pinned_reserve(own.pool, options.max_bytes + 1, 0));
  for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, sources[i], 0, LADE_ERR_OUT_OF_PINNED_MEMORY));
  expect_known(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_alloc(own.pool, 4096, &none));
  expect_known(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_reserve(own.pool, 4096, 0));
  pinned_fixture_close(&own);
}

/* Where nothing was free "the rest" lay "free in shorter pieces". */
LADE_TEST(PinnedLimits, RefusalSaysWhatStandsInTheWay) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *none = NULL;
  options.max_bytes = PINNED_FIXTURE_SEGMENT_BYTES;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, options.max_bytes + 1, &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "in quarantine; the cap is less than the request");
  char *half = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES / 2);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, PINNED_FIXTURE_SEGMENT_BYTES, &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "in quarantine; the rest lies free in shorter pieces");
  LADE_EXPECT_OK(lade_pinned_free(own.pool, half));
  void *all = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, 4096, &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, " 0 pending, with 0 uses in quarantine");
  LADE_EXPECT(strstr(lade_last_error()->text, "free in shorter pieces") == NULL);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, all));
  pinned_fixture_close(&own);
}

/* It pinned all of the cap before it noticed, and kept that. */
LADE_TEST_P(PinnedLimits, ReserveThatCannotBePinsNothing, support_soft_runtimes, runtime) {
  static const uint64_t sizes[] = {(uint64_t)1 << 50, 64 * LADEI_MIB + 1, 64 * LADEI_MIB, 62 * LADEI_MIB + 1};
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  void *block = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_reserve(own.pool, sizes[i], 0));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "and the cap of 67108864 leaves 65011712");
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, PINNED_FIXTURE_SEGMENT_BYTES);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_allocs, 1);
  }
  pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 64 * LADEI_MIB, 0)); /* the block is free, in whatever place */
  pinned_fixture_close(&own);
}

/* All or nothing. What the driver then does not take back is free memory of the pool. */
LADE_TEST(PinnedLimits, ReserveThatTheDriverRefusesGivesBackWhatItPinned) {
  for (int kept = 0; kept <= 1; kept++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    options.sources = LADE_PINNED_SOURCE_REGISTER;
    if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
    support_fail(own.runtime, "host_register", 3, 1);
    if (kept != 0) support_fail(own.runtime, "host_unregister", 1, 1);
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY,
                       lade_pinned_reserve(own.pool, 4 * PINNED_FIXTURE_SEGMENT_BYTES, 0));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "host_register");
    uint64_t left = kept != 0 ? PINNED_FIXTURE_SEGMENT_BYTES : 0;
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, left);
    lade_pinned_gauge gauge;
    ladei_pinned_node_reserved(ladei_pinned_pool_node(own.pool, 0), &gauge);
    LADE_EXPECT_EQ_UINT(gauge.freed, 2 * PINNED_FIXTURE_SEGMENT_BYTES - left);
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), kept);
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
    LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 4 * PINNED_FIXTURE_SEGMENT_BYTES, 0));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 4 * PINNED_FIXTURE_SEGMENT_BYTES);
    pinned_fixture_close(&own);
  }
}

LADE_TEST_P(PinnedLimits, TrimGivesBackWhatStreamsHaveFinished, support_soft_runtimes, runtime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLimits, AllocsThatLookForMemoryGiveIdleSegmentsBack) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *blocks[3];
  options.max_idle_ms = 10;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 3 * PINNED_FIXTURE_SEGMENT_BYTES, 0));
  for (int i = 0; i < 3; i++) { /* each looks for memory: the first sees what is free, the next that it still is */
    LADE_EXPECT_OK(lade_soft_advance(own.runtime, 11000000));
    blocks[i] = pinned_fixture_alloc(&own, (size_t)100000 << i);
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, PINNED_FIXTURE_SEGMENT_BYTES);
  for (int i = 0; i < 3; i++) pinned_fixture_free(&own, blocks[i]);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLimits, IdleSegmentsAreGivenBackAfterTheirTime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  options.max_idle_ms = 10;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  void *kept = pinned_fixture_alloc(&own, 4096), *large = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 50000000));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, large));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool)); /* sees it free for the first time */
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 9000000));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_frees, 0);
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 3000000));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_frees, 1);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, kept));
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLimits, DefaultCapIsReadFromTheMachine) {
  static const ladei_pinned_hooks nothing = {LADEI_TOPOLOGY_SYSTEM, NULL, "/nonexistent", 0, 0};
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  options.max_bytes = 0;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  LADE_EXPECT_LT_UINT(own.pool->settings.max_bytes, UINT64_MAX);
  LADE_EXPECT_GT_UINT(own.pool->settings.max_bytes, 0);
  pinned_fixture_close(&own);
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &nothing)) return;
  LADE_EXPECT_EQ_UINT(own.pool->settings.max_bytes, UINT64_MAX);
  void *block = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  pinned_fixture_close(&own);
}

/* ---- NUMA -------------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedLimits, NodesAreAskedForByOsIndex) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  lade_pinned_info info;
  void *block = NULL;
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
  for (int node = -1; node < 2; node++) {
    LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 4096, node, &block));
    lade_pinned_info_init(&info);
    LADE_EXPECT_OK(lade_pinned_find(own.pool, block, &info));
    LADE_EXPECT_EQ_INT(info.numa_node, node);
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_pinned_alloc_on(own.pool, 4096, 2, &block));
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 0, 7, &block));
  LADE_EXPECT_EQ_PTR(block, NULL);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLimits, AtTheCapAnotherNodeServesUnlessThePoolIsStrict) {
  for (uint32_t strict = 0; strict <= 1; strict++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    void *first = NULL, *second = NULL;
    options.max_bytes = PINNED_FIXTURE_SEGMENT_BYTES;
    options.flags = strict != 0 ? LADE_PINNED_NUMA_STRICT : 0;
    if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
    LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 4096, 0, &first));
    lade_status status = ladei_pinned_alloc_on(own.pool, 4096, 1, &second);
    LADE_EXPECT_EQ_INT(status, strict != 0 ? LADE_ERR_LIMIT : LADE_OK);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).other_node_takes, strict != 0 ? 0 : 1);
    if (status == LADE_OK) LADE_EXPECT_OK(lade_pinned_free(own.pool, second));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, first));
    pinned_fixture_close(&own);
  }
}

/* The bug: a driver that does not take a segment back was the end of the request. */
LADE_TEST(PinnedLimits, AtTheCapAnotherNodeServesWhereTheDriverTakesNothingBack) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *block = NULL;
  options.max_bytes = 2 * PINNED_FIXTURE_SEGMENT_BYTES;
  if (!pinned_fixture_open_on(&own, support_interposer_open("sim", NULL), &options, &pinned_fixture_two_nodes)) return;
  void *blocks[2];
  for (int i = 0; i < 2; i++)
    LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, PINNED_FIXTURE_SEGMENT_BYTES, i, &blocks[i]));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[1]));
  support_fail(own.runtime, "host_unregister", 1, 1);
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 4096, 0, &block));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).other_node_takes, 1);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[0]));
  pinned_fixture_close(&own);
}

/* The last page of the other node, which a run of the request's class is too long for. */
LADE_TEST(PinnedLimits, AtTheCapAPageOfAnotherNodeServesASmallRequest) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  static const size_t sizes[] = {LADEI_MIB, 896 * LADEI_KIB, 112 * LADEI_KIB, 12 * LADEI_KIB}; /* all but a page */
  void *full = NULL, *most[4], *block = NULL;
  options.max_bytes = 2 * PINNED_FIXTURE_SEGMENT_BYTES;
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, PINNED_FIXTURE_SEGMENT_BYTES, 0, &full));
  for (int i = 0; i < 4; i++) LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, sizes[i], 1, &most[i]));
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 3584, 0, &block));
  LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, block).numa_node, 1);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).other_node_takes, 1);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, ladei_pinned_alloc_on(own.pool, 3584, 0, &(void *){NULL}));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  for (int i = 0; i < 4; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, most[i]));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, full));
  pinned_fixture_close(&own);
}

/* Of what is free in one piece, up to 1 MiB as much as a block of the request's class has. */
LADE_TEST_P(PinnedLimits, AtTheCapAPieceThatIsLongEnoughServes, support_soft_runtimes, runtime) {
  enum { PAGE = 4096, PAGES = 1024 };
  static const struct {
    size_t pages, bytes; /* free side by side; asked for */
    lade_status status;
  } cases[] = {
      {1, 512, LADE_OK},               /* in a run of one page */
      {6, 3584, LADE_OK},              /* not in one of seven: a page */
      {1, 1536, LADE_OK},              /* the same */
      {0, 512, LADE_ERR_LIMIT},        /* nothing is free */
      {34, 33 * PAGE, LADE_ERR_LIMIT}, /* all blocks of the class have 36 pages */
      {36, 33 * PAGE, LADE_OK},
      {257, 257 * PAGE, LADE_OK}, /* above 1 MiB blocks differ */
      {331, 331 * PAGE, LADE_OK},
      {330, 331 * PAGE, LADE_ERR_LIMIT},
  };
  static void *fillers[PAGES];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    void *block = NULL;
    options.max_bytes = options.segment_bytes = (uint64_t)PAGES * PAGE;
    if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
    lade_test_context("%zu pages for %zu bytes", cases[i].pages, cases[i].bytes);
    for (size_t k = 0; k < PAGES; k++) LADE_EXPECT_OK(lade_pinned_alloc(own.pool, PAGE, &fillers[k]));
    uintptr_t least = UINTPTR_MAX;
    for (size_t k = 0; k < PAGES; k++) least = ladei_size_min(least, (uintptr_t)fillers[k]);
    for (size_t k = 0; k < PAGES; k++)
      if (((uintptr_t)fillers[k] - least) / PAGE < cases[i].pages)
        LADE_EXPECT_OK(lade_pinned_free(own.pool, fillers[k]));
    LADE_EXPECT_STATUS(cases[i].status, lade_pinned_alloc(own.pool, cases[i].bytes, &block));
    if (block != NULL) {
      memset(block, 1, cases[i].bytes);
      LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    }
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
    for (size_t k = 0; k < PAGES; k++)
      if (((uintptr_t)fillers[k] - least) / PAGE >= cases[i].pages)
        LADE_EXPECT_OK(lade_pinned_free(own.pool, fillers[k]));
    pinned_fixture_close(&own);
  }
  lade_test_context("%s", "");
}

/* The bug: requests longer than segments looked at wholly free segments alone. */
LADE_TEST_P(PinnedLimits, AtTheCapPartOfALongSegmentServesALongRequest, support_soft_runtimes, runtime) {
  enum { SMALL = 12 };
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *small[SMALL], *page = NULL, *block = NULL;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 40 * LADEI_MIB));
  for (int i = 0; i < SMALL; i++) small[i] = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 4096, &page)); /* the cap is reached: of the long segment */
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, options.max_bytes);
  LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 39 * LADEI_MIB, &block));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, 3 * LADEI_MIB, &(void *){NULL}));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
  pinned_fixture_free(&own, block);
  for (int i = 0; i < SMALL; i++) pinned_fixture_free(&own, small[i]);
  pinned_fixture_free(&own, page);
  pinned_fixture_close(&own);
}

/* Nobody can be asked about them, and an alloc does not wait for a device: it says what is the matter, and empty_cache
 * mends it. */
LADE_TEST_P(PinnedLimits, CapFullOfBlocksOfDestroyedStreamsIsMendedByEmptyCache, support_soft_runtimes, runtime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *again = NULL;
  options.max_bytes = PINNED_FIXTURE_SEGMENT_BYTES;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  void *block = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, PINNED_FIXTURE_SEGMENT_BYTES, &again));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "with 1 uses in quarantine");
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  again = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  pinned_fixture_free(&own, again);
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.streams[0]));
  pinned_fixture_close(&own);
}

/* The same where the system pins no more, far below the cap. The block goes back to the node that it is of. */
LADE_TEST(PinnedLimits, WhereTheSystemRefusesAnotherNodeServesUnlessThePoolIsStrict) {
  for (uint32_t strict = 0; strict <= 1; strict++) {
    support_description description;
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    void *first = NULL, *second = NULL;
    support_description_init(&description);
    description.soft.pinned_limit_bytes = PINNED_FIXTURE_SEGMENT_BYTES;
    options.flags = strict != 0 ? LADE_PINNED_NUMA_STRICT : 0;
    lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
    if (!pinned_fixture_open_on(&own, runtime, &options, &pinned_fixture_two_nodes)) return;
    LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 4096, 0, &first));
    lade_status status = ladei_pinned_alloc_on(own.pool, 4096, 1, &second);
    LADE_EXPECT_EQ_INT(status, strict != 0 ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_OK);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).other_node_takes, strict != 0 ? 0 : 1);
    if (status == LADE_OK) {
      LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, second).numa_node, 0);
      LADE_EXPECT_OK(lade_pinned_free(own.pool, second));
    }
    LADE_EXPECT_OK(lade_pinned_free(own.pool, first));
    pinned_fixture_close(&own);
  }
}

/* ---- Sources ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedLimits, PageableServesOnlyWhereAllowedAndSaysSo, support_soft_runtimes, runtime) {
  for (int allowed = 0; allowed <= 1; allowed++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    void *block = NULL;
    options.sources = LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER;
    options.sources |= allowed != 0 ? (uint32_t)LADE_PINNED_SOURCE_PAGEABLE : 0;
    if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", 0, LADE_ERR_OUT_OF_PINNED_MEMORY));
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_alloc", 0, LADE_ERR_OUT_OF_PINNED_MEMORY));
    lade_status status = lade_pinned_alloc(own.pool, LADEI_MIB, &block);
    LADE_EXPECT_EQ_INT(status, allowed != 0 ? LADE_OK : LADE_ERR_OUT_OF_PINNED_MEMORY);
    if (status == LADE_OK) {
      lade_pinned_info info;
      lade_pinned_info_init(&info);
      LADE_EXPECT_OK(lade_pinned_find(own.pool, block, &info));
      LADE_EXPECT_EQ_INT(info.source, LADE_PINNED_SOURCE_PAGEABLE);
      LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    }
    LADE_EXPECT_OK(lade_soft_fault_clear(own.runtime));
    pinned_fixture_close(&own);
  }
}

/* ---- Precise ends of uses ---------------------------------------------------------------------------------------- */

LADE_TEST(PinnedLimits, RecordUseEndsWithTheWorkQueuedSoFar) {
  for (int precise = 0; precise <= 1; precise++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    support_stream_hold hold;
    if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
    void *block = pinned_fixture_alloc(&own, 4096);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.streams[0]));
    if (precise != 0) LADE_EXPECT_OK(lade_pinned_record_use(own.pool, block, own.streams[0]));
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0])); /* later work, held back */
    if (precise == 0) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
    LADE_EXPECT_EQ_INT(state_of(&own, block), precise != 0 ? LADE_PINNED_CACHED : LADE_PINNED_PENDING);
    support_stream_hold_end(&hold);
    pinned_fixture_close(&own);
  }
}

LADE_TEST_P(PinnedLimits, FreeAfterWaitsForTheCallersEvent, support_soft_runtimes, runtime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  support_stream_hold hold;
  lade_event event;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  LADE_ASSERT_OK(lade_event_create(own.runtime, 0, &event));
  char *block = pinned_fixture_alloc(&own, 4096);
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.streams[0]));
  LADE_EXPECT_OK(lade_event_record(own.runtime, event, own.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_pinned_free_after(own.pool, block + 1, event));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_free_after(own.pool, block, NULL));
  LADE_EXPECT_OK(lade_pinned_free_after(own.pool, block, event));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_free_after(own.pool, block, event));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_CACHED);
  LADE_EXPECT_OK(lade_event_destroy(own.runtime, event));
  pinned_fixture_close(&own);
}

/* An event that cannot be asked about says nothing of its work: the block stays pending until it can. */
LADE_TEST_P(PinnedLimits, FreeAfterAnEventThatFailsKeepsTheBlock, support_soft_runtimes, runtime) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  lade_event event;
  if (!pinned_fixture_open(&own, support_runtime_open(runtime), &options)) return;
  LADE_ASSERT_OK(lade_event_create(own.runtime, 0, &event));
  char *block = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.streams[0]));
  LADE_EXPECT_OK(lade_event_record(own.runtime, event, own.streams[0]));
  LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "event_query", 0, LADE_ERR_DRIVER));
  LADE_EXPECT_OK(lade_pinned_free_after(own.pool, block, event));
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).quarantined_uses, 1);
  LADE_EXPECT_OK(lade_soft_fault_clear(own.runtime));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_CACHED);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).quarantined_uses, 0);
  LADE_EXPECT_OK(lade_event_destroy(own.runtime, event));
  pinned_fixture_close(&own);
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedLimits, SettingsInForceHaveEachDefaultInItsPlace) {
  pinned_fixture own;
  lade_pinned_options settings;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), NULL)) return;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  LADE_EXPECT_EQ_UINT(settings.sources,
                      LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER | LADE_PINNED_SOURCE_POOL);
  LADE_EXPECT_EQ_UINT(settings.max_bytes, own.pool->settings.max_bytes);
  LADE_EXPECT_GT_UINT(settings.max_bytes, 0);
  LADE_EXPECT_EQ_UINT(settings.event_batch, 16);
  LADE_EXPECT_EQ_UINT(settings.segment_bytes, 0); /* no one size */
  LADE_EXPECT_EQ_UINT(settings.prefault_threads, 0);
  LADE_EXPECT_GT_UINT(settings.magazine_bytes, 0);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_settings_get(NULL, &settings));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_settings_get(own.pool, NULL));
  pinned_fixture_close(&own);
}

/* Bug: settings named the usual size of segments, and a pool that was created with them had no small first ones. */
LADE_TEST(PinnedLimits, PoolCreatedWithSettingsInForceActsAsTheirs) {
  pinned_fixture own, alike;
  lade_pinned_options settings, again;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), NULL)) return;
  lade_pinned_options_init(&settings);
  lade_pinned_options_init(&again);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  if (!pinned_fixture_open(&alike, support_runtime_open("sim"), &settings)) return;
  LADE_EXPECT_OK(lade_pinned_settings_get(alike.pool, &again));
  LADE_EXPECT_EQ_INT(memcmp(&settings, &again, sizeof settings), 0);
  void *block = pinned_fixture_alloc(&own, 4096), *other = pinned_fixture_alloc(&alike, 4096);
  uint64_t reserved = pinned_fixture_stats(&own).reserved_bytes.current;
  LADE_EXPECT_LT_UINT(reserved, 64 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&alike).reserved_bytes.current, reserved);
  pinned_fixture_free(&own, block);
  pinned_fixture_free(&alike, other);
  pinned_fixture_close(&alike);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedLimits, SettingsInForceAreThoseAskedFor) {
  lade_pinned_options options = {.struct_size = sizeof options,
                                 .device = 1,
                                 .sources = LADE_PINNED_SOURCE_PAGEABLE,
                                 .max_bytes = 64 * LADEI_MIB,
                                 .event_batch = 3,
                                 .wait_ms = 4000000000u,
                                 .segment_bytes = PINNED_FIXTURE_SEGMENT_BYTES,
                                 .prefault_threads = 2,
                                 .flags = LADE_PINNED_NUMA_STRICT | LADE_PINNED_DEBUG,
                                 .magazine_bytes = 1,
                                 .max_idle_ms = 4000000001u,
                                 .register_chunk_bytes = PINNED_FIXTURE_SEGMENT_BYTES,
                                 .budget = LADE_PINNED_BUDGET_OFF, /* the default on "sim" */
                                 .budget_share = LADE_PINNED_BUDGET_PART,
                                 .budget_bytes = 5,
                                 .budget_part_bytes = 4,
                                 .local_ranks = 3};
  pinned_fixture own;
  lade_pinned_options settings;
  if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  LADE_EXPECT_EQ_INT(memcmp(&settings, &options, sizeof options), 0);
  pinned_fixture_close(&own);
}

/* ---- Background -------------------------------------------------------------------------------------------------- */

/* A check of the pool needs it at rest, and its own thread is not. */
static void *alloc_unchecked(const pinned_fixture *own) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, 4096, &block));
  return block;
}

typedef struct freed {
  const pinned_fixture *own;
  const void *block;
} freed;

/* A moment after it is no longer counted as pending. */
static bool is_cached(void *user) {
  const freed *f = user;
  return state_of(f->own, f->block) == LADE_PINNED_CACHED;
}

static bool nothing_pending(void *user) { return pinned_fixture_stats(user).pending_blocks.current == 0; }

LADE_TEST(PinnedBackground, BlocksBecomeReadyWithoutACall) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  support_stream_hold hold;
  options.flags = LADE_PINNED_BACKGROUND;
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  void *block = alloc_unchecked(&own);
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_pinned_pool_destroy(own.pool, false)); /* and goes on in the background */
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  support_stream_hold_end(&hold);
  freed wanted = {&own, block};
  LADE_EXPECT(support_wait(own.runtime, is_cached, &wanted));
  LADE_EXPECT(nothing_pending(&own));
  pinned_fixture_close(&own);
}

static bool nothing_reserved(void *user) { return pinned_fixture_stats(user).reserved_bytes.current == 0; }

LADE_TEST(PinnedBackground, IdleSegmentsAreGivenBackWithoutACall) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  options.flags = LADE_PINNED_BACKGROUND;
  options.max_idle_ms = 1;
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  LADE_EXPECT_OK(lade_pinned_free(own.pool, alloc_unchecked(&own)));
  LADE_EXPECT(support_wait(own.runtime, nothing_reserved, &own));
  pinned_fixture_close(&own);
}

/* The child has no such thread and needs none to be stopped; the parent's works on. */
LADE_TEST(PinnedBackground, ForkStopsNothingAndNobody) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  options.flags = LADE_PINNED_BACKGROUND;
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  for (int round = 0; round < 5; round++) {
    void *block = alloc_unchecked(&own);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    pid_t child = fork();
    if (child == 0) {
      bool right = lade_pinned_process_events(own.pool) == LADE_ERR_FORKED &&
                   lade_pinned_pool_destroy(own.pool, true) == LADE_ERR_FORKED;
      _exit(right ? 0 : 1);
    }
    int status = -1;
    LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
    LADE_EXPECT_EQ_INT(status, 0);
    LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  }
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedBackground, NotOnVirtualTime) {
  lade_pinned_options options = pinned_fixture_options();
  lade_pinned_pool *pool = NULL;
  lade_runtime *runtime = support_runtime_open("sim");
  if (runtime == NULL) return;
  options.flags = LADE_PINNED_BACKGROUND;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_pinned_pool_create(runtime, &options, &pool));
  options.flags = 1u << 31;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_pool_create(runtime, &options, &pool));
  support_runtime_close(runtime);
}
