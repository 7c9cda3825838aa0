/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the settable clock: an administrator, or the network's time, sets it years ahead or back while pools share a budget.
 * All waits go by the clock that is never set. Here clock_gettime() stands in for the kernel's: each look at CLOCK_REALTIME is
 * years from the one before.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "tests/host/budget_machine.h"
#include "tests/shim/lade_test.h"

enum { SEGMENTS = 16 }; /* of the budget, and of the cap of each pool */

static _Atomic(unsigned) looks;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
  static const time_t steps[] = {315360000, -315360000, 0, -3600, 3600};
  int result = __real_clock_gettime(clock, out);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) out->tv_sec += steps[atomic_fetch_add(&looks, 1) % 5];
  return result;
}

static lade_pinned_pool *pool_with(const machine *own, uint32_t flags, uint32_t wait_ms) {
  lade_pinned_options options = options_of();
  options.flags = flags;
  options.wait_ms = wait_ms;
  return pool_open(own, &options);
}

/* By a clock that jumps ahead the wait would be over at once; by one that is set back it would not end. */
LADE_TEST(PinnedClock, StepsChangeNoWaitForTheBudget) {
  machine own;
  void *block = NULL;
  LADE_ASSERT(machine_open(&own, "cpu"));
  lade_pinned_pool *a = pool_with(&own, LADE_PINNED_BACKGROUND, 0), *b = pool_with(&own, 0, 60000);
  lade_pinned_pool *c = pool_with(&own, 0, 20);
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
  LADE_ASSERT(machine_open(&own, "cpu"));
  lade_pinned_pool *pool = pool_with(&own, LADE_PINNED_BACKGROUND, 0);
  void *kept = segments_alloc(pool, 2);
  LADE_EXPECT_OK(lade_pinned_free(pool, segments_alloc(pool, 3)));
  for (uint64_t total = 1; stats_of(pool).pressure_returns == 0; total++) {
    char text[100];
    snprintf(text, sizeof text, "some avg10=99.00 avg60=9.00 avg300=2.00 total=%llu000000000\n",
             (unsigned long long)total);
    machine_file_replace(&own, "proc/pressure/memory", text);
    usleep(1000);
  }
  LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, 2 * SEGMENT);
  LADE_EXPECT_OK(lade_pinned_free(pool, kept));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  machine_close(&own);
}
