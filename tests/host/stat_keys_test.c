/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of pinned pools by name, and their resets. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"
#include "tests/support/stat.h"

/* ---- Names ------------------------------------------------------------------------------------------------------- */

enum { OF_PYTORCH = 28, WORDS = sizeof(lade_pinned_stats) / sizeof(uint64_t), KEYS_MAX = 128 };

static const char *const of_pytorch[OF_PYTORCH] = {
    "active_bytes.allocated",    "active_bytes.current",    "active_bytes.freed",    "active_bytes.peak",
    "active_requests.allocated", "active_requests.current", "active_requests.freed", "active_requests.peak",
    "allocated_bytes.allocated", "allocated_bytes.current", "allocated_bytes.freed", "allocated_bytes.peak",
    "allocations.allocated",     "allocations.current",     "allocations.freed",     "allocations.peak",
    "host_alloc_time.avg",       "host_alloc_time.count",   "host_alloc_time.max",   "host_alloc_time.min",
    "host_alloc_time.total",     "host_free_time.avg",      "host_free_time.count",  "host_free_time.max",
    "host_free_time.min",        "host_free_time.total",    "num_host_alloc",        "num_host_free"};

typedef struct key_list {
  const char *names[KEYS_MAX];
  int64_t values[KEYS_MAX];
  size_t count;
} key_list;

static lade_status key_collect(const char *key, int64_t value, void *user) {
  key_list *list = user;
  if (list->count < KEYS_MAX) {
    list->names[list->count] = key;
    list->values[list->count] = value;
  }
  list->count++;
  return LADE_OK;
}

static int64_t find(const lade_pinned_stats *stats, const char *key) {
  support_stat stat = {.key = key};
  LADE_EXPECT_OK(lade_pinned_stats_each(stats, support_stat_visit, &stat));
  LADE_EXPECT_EQ_SIZE(stat.count, 1);
  return stat.value;
}

/* Each word of the struct has another value: the keys after the 28 name all of them, each once, in order. */
LADE_TEST(PinnedStatKeys, NameEveryFieldAfterThoseOfPyTorch) {
  lade_pinned_stats stats;
  uint64_t words[WORDS];
  for (size_t i = 0; i < WORDS; i++) words[i] = 5000 + i;
  words[0] = sizeof stats;
  memcpy(&stats, words, sizeof stats);
  key_list list = {.count = 0};
  LADE_EXPECT_OK(lade_pinned_stats_each(&stats, key_collect, &list));
  LADE_ASSERT_EQ_SIZE(list.count, OF_PYTORCH + WORDS - 1);
  bool seen[WORDS] = {false};
  for (size_t i = 0; i < list.count; i++) {
    if (i < OF_PYTORCH) LADE_EXPECT_EQ_STR(list.names[i], of_pytorch[i]);
    if (i > OF_PYTORCH) LADE_EXPECT(strcmp(list.names[i - 1], list.names[i]) < 0);
    if (i >= OF_PYTORCH) {
      size_t word = (size_t)(list.values[i] - 5000);
      LADE_ASSERT(word > 0 && word < WORDS && !seen[word]);
      seen[word] = true;
    }
  }
  LADE_EXPECT_EQ_INT((uint64_t)find(&stats, "in_use_blocks.peak"), stats.in_use_blocks.peak);
  LADE_EXPECT_EQ_INT((uint64_t)find(&stats, "pending_bytes.freed"), stats.pending_bytes.freed);
  LADE_EXPECT_EQ_INT((uint64_t)find(&stats, "unreached_caches"), stats.unreached_caches);
}

static int64_t value_of(const pinned_fixture *own, const char *key) {
  lade_pinned_stats stats = pinned_fixture_stats(own);
  return find(&stats, key);
}

LADE_TEST(PinnedStatKeys, TimesAreWholeMicroseconds) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_EQ_INT(find(&stats, "host_alloc_time.avg"), 0); /* of no call */
  stats.driver_allocs = 3;
  stats.driver_alloc_ns = 10999;
  stats.driver_alloc_min_ns = 1999;
  stats.driver_alloc_max_ns = 7000;
  static const char *const names[] = {"avg", "count", "max", "min", "total"};
  static const int64_t wanted[] = {3, 3, 7, 1, 10};
  for (size_t i = 0; i < 5; i++) {
    char key[64];
    snprintf(key, sizeof key, "host_alloc_time.%s", names[i]);
    LADE_EXPECT_EQ_INT(find(&stats, key), wanted[i]);
  }
  LADE_EXPECT_EQ_INT(find(&stats, "num_host_alloc"), 3);
}

/* A block is active until no stream uses it: not from its free on, as one in use. */
LADE_TEST(PinnedStatKeys, ActiveIsInUseOrPending) {
  lade_pinned_options options = pinned_fixture_options();
  options.event_batch = 1;
  pinned_fixture own;
  support_stream_hold hold;
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.streams[0]));
  void *first = pinned_fixture_alloc(&own, 8192);
  void *second = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, first, own.streams[0]));
  pinned_fixture_free(&own, first);
  pinned_fixture_free(&own, second);
  LADE_EXPECT_EQ_INT(value_of(&own, "active_requests.allocated"), 2);
  LADE_EXPECT_EQ_INT(value_of(&own, "active_requests.current"), 1);
  LADE_EXPECT_EQ_INT(value_of(&own, "active_requests.freed"), 1);
  LADE_EXPECT_EQ_INT(value_of(&own, "active_bytes.current"), 8192);
  LADE_EXPECT_EQ_INT(value_of(&own, "active_bytes.freed"), 4096);
  LADE_EXPECT_EQ_INT(value_of(&own, "in_use_blocks.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&own, "allocations.current"), 1);
  LADE_EXPECT_EQ_INT(value_of(&own, "allocated_bytes.current"), PINNED_FIXTURE_SEGMENT_BYTES);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(value_of(&own, "active_requests.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&own, "active_requests.freed"), 2);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_INT(value_of(&own, "allocations.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&own, "allocations.peak"), 1);
  LADE_EXPECT_EQ_INT(value_of(&own, "allocations.freed"), 1);
  pinned_fixture_close(&own);
}

/* ---- Resets ------------------------------------------------------------------------------------------------------ */

LADE_TEST(PinnedStatsReset, PeaksStartFromWhatIsThere) {
  enum { BLOCKS = 40, BYTES = 65536, LEFT = 3 };
  lade_pinned_options options = pinned_fixture_options();
  options.magazine_bytes = 1; /* none: each free reaches the pool's counters */
  pinned_fixture own;
  void *blocks[BLOCKS];
  if (!pinned_fixture_open(&own, support_runtime_open("sim"), &options)) return;
  for (int i = 0; i < BLOCKS; i++) blocks[i] = pinned_fixture_alloc(&own, BYTES);
  for (int i = LEFT; i < BLOCKS; i++) pinned_fixture_free(&own, blocks[i]);
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0));
  lade_pinned_stats before = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(before.in_use_blocks.peak, BLOCKS);
  LADE_EXPECT_GT_UINT(before.reserved_bytes.peak, before.reserved_bytes.current);
  LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_PEAKS));
  lade_pinned_stats after = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(after.in_use_blocks.peak, LEFT);
  LADE_EXPECT_EQ_UINT(after.in_use_bytes.peak, LEFT * BYTES);
  LADE_EXPECT_EQ_UINT(after.requested_bytes.peak, LEFT * BYTES);
  LADE_EXPECT_EQ_UINT(after.reserved_bytes.peak, after.reserved_bytes.current);
  LADE_EXPECT_EQ_UINT(after.cached_bytes.peak, after.cached_bytes.current);
  LADE_EXPECT_EQ_UINT(after.segments.peak, after.segments.current);
  LADE_EXPECT_EQ_UINT(after.in_use_blocks.allocated, before.in_use_blocks.allocated); /* and nothing else */
  LADE_EXPECT_EQ_UINT(after.hits, before.hits);
  LADE_EXPECT_EQ_UINT(after.driver_alloc_max_ns, before.driver_alloc_max_ns);
  void *next = pinned_fixture_alloc(&own, BYTES);
  pinned_fixture_free(&own, next);
  LADE_EXPECT_GE_UINT(pinned_fixture_stats(&own).in_use_blocks.peak, LEFT);
  for (int i = 0; i < LEFT; i++) pinned_fixture_free(&own, blocks[i]);
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedStatsReset, SumsStartFromNothing) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  void *kept = pinned_fixture_alloc(&own, 8192);
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 8192));
  LADE_EXPECT_GT_UINT(pinned_fixture_stats(&own).driver_alloc_ns, 0);
  LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_SUMS));
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.current, 1);
  LADE_EXPECT_GE_UINT(stats.in_use_blocks.peak, 1);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, 0);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.freed, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.current, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.allocated, 0);
  LADE_EXPECT_EQ_UINT(stats.segments.allocated, 0);
  LADE_EXPECT_EQ_UINT(stats.hits + stats.misses + stats.driver_allocs, 0);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_ns + stats.driver_alloc_min_ns + stats.driver_alloc_max_ns, 0);
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 8192)); /* from here on it counts again */
  pinned_fixture_free(&own, kept);
  stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, 1);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.freed, 2);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.current, 0);
  LADE_EXPECT_EQ_UINT(stats.hits, 1);
  LADE_EXPECT_EQ_UINT(stats.misses, 0);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.driver_frees, 1);
  LADE_EXPECT_EQ_UINT(stats.driver_free_min_ns, stats.driver_free_max_ns);
  LADE_EXPECT_EQ_UINT(stats.segments.freed, 1);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_stats_reset(NULL, LADE_STATS_RESET_PEAKS));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_stats_reset(NULL, LADE_STATS_RESET_SUMS));
  pinned_fixture_close(&own);
}

/* ---- Resets beside other threads --------------------------------------------------------------------------------- */

enum { THREADS = 3, PAIRS = 3000 };

typedef struct beside {
  const pinned_fixture *own;
  atomic_int running;
} beside;

static void *pairs_run(void *user) {
  beside *b = user;
  for (int i = 0; i < PAIRS; i++) {
    void *block = NULL;
    LADE_EXPECT_OK(lade_pinned_alloc(b->own->pool, (size_t)4096 << (i % 5), &block));
    LADE_EXPECT_OK(lade_pinned_free(b->own->pool, block));
  }
  atomic_fetch_sub(&b->running, 1);
  return NULL;
}

/* What grows never falls below 0, and no peak below its current value, at any moment; afterwards all is exact. */
LADE_TEST(PinnedStatsReset, BesideThreadsThatAllocate) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  pthread_t threads[THREADS];
  if (!pinned_fixture_open(&own, support_runtime_open("cpu"), &options)) return;
  beside b = {&own, THREADS};
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, pairs_run, &b) == 0);
  do {
    LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_SUMS));
    LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_PEAKS));
    lade_pinned_stats stats = pinned_fixture_stats(&own);
    LADE_EXPECT_LE_UINT(stats.in_use_blocks.allocated, THREADS * PAIRS);
    LADE_EXPECT_LE_UINT(stats.in_use_blocks.freed, THREADS * PAIRS);
    LADE_EXPECT_LE_UINT(stats.hits, THREADS * PAIRS);
    LADE_EXPECT_GE_UINT(stats.reserved_bytes.peak, stats.reserved_bytes.current);
    LADE_EXPECT_GE_UINT(stats.in_use_blocks.peak, stats.in_use_blocks.current);
  } while (atomic_load(&b.running) > 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_SUMS));
  LADE_EXPECT_OK(lade_pinned_stats_reset(own.pool, LADE_STATS_RESET_PEAKS));
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.peak + stats.in_use_blocks.allocated + stats.in_use_blocks.freed, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.peak, stats.reserved_bytes.current);
  pinned_fixture_close(&own);
}
