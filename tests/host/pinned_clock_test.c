/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the settable clock: an administrator, or the network's time, sets it years ahead or back while pools share a budget.
 * All waits go by the clock that is never set. Here clock_gettime() stands in for the kernel's: each look at CLOCK_REALTIME is
 * years from the one before.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"
#include "host/ledger.h"
#include "host/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { SEGMENTS = 16 };
#define SEGMENT (2 * LADEI_MIB)

static _Atomic(unsigned) looks;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
  static const time_t steps[] = {315360000, -315360000, 0, -3600, 3600};
  int result = __real_clock_gettime(clock, out);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) out->tv_sec += steps[atomic_fetch_add(&looks, 1) % 5];
  return result;
}

typedef struct machine {
  support_temp_dir folder;
  lade_runtime *runtime;
} machine;

static bool machine_open(machine *own) {
  own->runtime = support_runtime_open("cpu");
  if (!support_temp_dir_create(&own->folder)) return false;
  support_temp_dir_write(&own->folder, "dev/shm/other", "");
  support_temp_dir_write(&own->folder, "proc/self/cgroup", "0::/job\n");
  support_temp_dir_write(&own->folder, "proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n");
  return own->runtime != NULL;
}

static void machine_close(machine *own) {
  support_runtime_close(own->runtime);
  support_temp_dir_remove(&own->folder);
}

static lade_pinned_pool *pool_open(const machine *own, uint32_t flags, uint32_t wait_ms) {
  const ladei_pinned_hooks hooks = {LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:2 pu:1", own->folder.path};
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_pinned_options_init(&options);
  options.segment_bytes = SEGMENT;
  options.budget_bytes = SEGMENTS * SEGMENT;
  options.max_bytes = SEGMENTS * SEGMENT;
  options.magazine_bytes = 1;
  options.flags = flags;
  options.wait_ms = wait_ms;
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, &options, &hooks, &pool));
  return pool;
}

static void *segments_alloc(lade_pinned_pool *pool, uint64_t count) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, (size_t)(count * SEGMENT), &block));
  return block;
}

static lade_pinned_stats stats_of(lade_pinned_pool *pool) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(pool, &stats));
  return stats;
}

/* By a clock that jumps ahead the wait would be over at once; by one that is set back it would not end. */
LADE_TEST(PinnedClock, StepsChangeNoWaitForTheBudget) {
  machine own;
  void *block = NULL;
  LADE_ASSERT(machine_open(&own));
  lade_pinned_pool *a = pool_open(&own, LADE_PINNED_BACKGROUND, 0), *b = pool_open(&own, 0, 60000);
  lade_pinned_pool *c = pool_open(&own, 0, 20);
  LADE_EXPECT_OK(lade_pinned_free(a, segments_alloc(a, SEGMENTS))); /* cached */
  void *held = segments_alloc(b, SEGMENTS);                         /* a's background thread is asked */
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(c, SEGMENT, &block), LADE_ERR_LIMIT);
  LADE_EXPECT_EQ_UINT(stats_of(c).limit_waits, 1);
  LADE_EXPECT_EQ_UINT(stats_of(a).budget_faults + stats_of(b).budget_faults + stats_of(c).budget_faults, 0);
  LADE_EXPECT_EQ_UINT(atomic_load(&looks), 4); /* the times in the file and in three slots, for people */
  LADE_EXPECT_OK(lade_pinned_free(b, held));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(a, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(b, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(c, true));
  machine_close(&own);
}

LADE_TEST(PinnedClock, StepsChangeNoLookAtPressure) {
  machine own;
  LADE_ASSERT(machine_open(&own));
  lade_pinned_pool *pool = pool_open(&own, LADE_PINNED_BACKGROUND, 0);
  void *kept = segments_alloc(pool, 2);
  LADE_EXPECT_OK(lade_pinned_free(pool, segments_alloc(pool, 3)));
  char *path = support_temp_dir_path(&own.folder, "proc/pressure/memory");
  char *next = support_temp_dir_path(&own.folder, "next");
  for (uint64_t total = 1; stats_of(pool).pressure_returns == 0; total++) {
    char text[100];
    snprintf(text, sizeof text, "some avg10=99.00 avg60=9.00 avg300=2.00 total=%llu000000000\n",
             (unsigned long long)total);
    support_file_write(next, text, strlen(text));
    LADE_EXPECT_EQ_INT(rename(next, path), 0);
    usleep(1000);
  }
  LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, 2 * SEGMENT);
  LADE_EXPECT_OK(lade_pinned_free(pool, kept));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  free(path);
  free(next);
  machine_close(&own);
}
