/* SPDX-License-Identifier: Apache-2.0 */
/* The reference policy: the decisions of the cache that it restores, by the numbers of its acceptance checks. */
#include <string.h>

#include "base/size.h"
#include "host/owner.h"
#include "host/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

typedef struct fixture {
  lade_runtime *runtime; /* counts calls */
  lade_pinned_pool *pool;
  lade_stream streams[2];
  void *device;
} fixture;

static bool fixture_open(fixture *own) {
  lade_pinned_options options;
  memset(own, 0, sizeof *own);
  own->runtime = support_interposer_open("sim", NULL);
  if (own->runtime == NULL) return false;
  lade_pinned_options_init(&options);
  options.max_bytes = 64 * LADEI_MIB;
  options.flags = LADE_PINNED_REFERENCE;
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &own->streams[i]));
  LADE_EXPECT_OK(own->runtime->ops->device_alloc(own->runtime->self, 0, 4096, &own->device));
  LADE_EXPECT_OK(lade_pinned_pool_create(own->runtime, &options, &own->pool));
  return own->pool != NULL;
}

static void fixture_close(fixture *own) {
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  LADE_EXPECT_OK(own->runtime->ops->device_free(own->runtime->self, 0, own->device));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[i]));
  support_expect_nothing_live(own->runtime);
  support_runtime_close(own->runtime);
}

static void *alloc(const fixture *own, size_t bytes) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, bytes, &block));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  return block;
}

static void give_back(const fixture *own, void *block) {
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
}

static void use(const fixture *own, void *block, int stream) {
  LADE_EXPECT_OK(lade_copy_async(own->runtime, own->device, block, 64, own->streams[stream]));
  LADE_EXPECT_OK(lade_pinned_record_event(own->pool, block, own->streams[stream]));
}

static uint64_t driver_allocs(const fixture *own) { return support_call_count(own->runtime, "host_alloc"); }

static size_t serves_bytes(const fixture *own, const void *block) {
  return ladei_owner_find(&own->pool->map, block).segment->serves_bytes;
}

LADE_TEST(PinnedReference, Check2SizesAreWholePowersOfTwo) {
  fixture own;
  if (!fixture_open(&own)) return;
  char *block = alloc(&own, 1000);
  LADE_EXPECT_EQ_SIZE(serves_bytes(&own, block), 1024);
  give_back(&own, block);
  for (size_t bytes = 513; bytes <= 1024; bytes += 73) {
    LADE_EXPECT_EQ_PTR(alloc(&own, bytes), block);
    give_back(&own, block);
  }
  LADE_EXPECT_EQ_UINT(driver_allocs(&own), 1);
  char *larger = alloc(&own, 1025);
  LADE_EXPECT_NE_PTR(larger, block);
  LADE_EXPECT_EQ_SIZE(serves_bytes(&own, larger), 2048);
  LADE_EXPECT_EQ_UINT(driver_allocs(&own), 2);
  give_back(&own, larger);
  fixture_close(&own);
}

LADE_TEST(PinnedReference, Check3SmallestLargeEnoughThenLowestAddress) {
  fixture own;
  if (!fixture_open(&own)) return;
  char *large = alloc(&own, LADEI_MIB), *small = alloc(&own, 4096);
  char *equal[3] = {alloc(&own, 65536), alloc(&own, 65536), alloc(&own, 65536)};
  char *lowest = equal[0];
  give_back(&own, large);
  give_back(&own, small);
  for (int i = 0; i < 3; i++) {
    lowest = equal[i] < lowest ? equal[i] : lowest;
    give_back(&own, equal[i]);
  }
  LADE_EXPECT_EQ_PTR(alloc(&own, 100), small);
  LADE_EXPECT_EQ_PTR(alloc(&own, 100), lowest); /* larger ones serve without limit */
  give_back(&own, small);
  give_back(&own, lowest);
  LADE_EXPECT_EQ_PTR(alloc(&own, 100000), large);
  give_back(&own, large);
  LADE_EXPECT_EQ_UINT(driver_allocs(&own), 5);
  fixture_close(&own);
}

LADE_TEST(PinnedReference, Check4OneEventPerStreamRecordedInTheFree) {
  fixture own;
  if (!fixture_open(&own)) return;
  support_gate gate;
  char *block = alloc(&own, 4096);
  for (int i = 0; i < 3; i++) use(&own, block, 0);
  give_back(&own, block);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "event_record"), 1);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_EQ_PTR(alloc(&own, 4096), block);
  LADE_ASSERT(support_gate_close(&gate, own.runtime, own.streams[1]));
  use(&own, block, 0);
  use(&own, block, 1);
  give_back(&own, block);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "event_record"), 3);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  char *other = alloc(&own, 4096);
  LADE_EXPECT_NE_PTR(other, block);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[1]));
  LADE_EXPECT_EQ_PTR(alloc(&own, 4096), block);
  give_back(&own, block);
  give_back(&own, other);
  fixture_close(&own);
}

LADE_TEST(PinnedReference, Check6AnUnfinishedBlockHoldsBackThoseFreedAfterIt) {
  fixture own;
  if (!fixture_open(&own)) return;
  support_gate gate;
  char *stuck = alloc(&own, 4096), *done = alloc(&own, 4096);
  LADE_ASSERT(support_gate_close(&gate, own.runtime, own.streams[0]));
  use(&own, stuck, 0);
  use(&own, done, 1);
  give_back(&own, stuck);
  give_back(&own, done);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[1]));
  char *third = alloc(&own, 4096);
  LADE_EXPECT(third != stuck && third != done);
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own.pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.pending_blocks.current, 2);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  char *fourth = alloc(&own, 4096);
  LADE_EXPECT(fourth == stuck || fourth == done);
  give_back(&own, third);
  give_back(&own, fourth);
  fixture_close(&own);
}

LADE_TEST(PinnedReference, Check8EmptyCacheReleasesCachedBlocksOnly) {
  fixture own;
  if (!fixture_open(&own)) return;
  support_gate gate;
  char *in_use = alloc(&own, 4096), *retiring = alloc(&own, 8192), *cached = alloc(&own, 16384);
  LADE_ASSERT(support_gate_close(&gate, own.runtime, own.streams[0]));
  use(&own, retiring, 0);
  give_back(&own, retiring);
  give_back(&own, cached);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 1);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 2);
  give_back(&own, in_use);
  fixture_close(&own);
}

LADE_TEST(PinnedReference, RefusedMemoryIsAnErrorAtOnce) {
  fixture own;
  if (!fixture_open(&own)) return;
  void *block = NULL;
  give_back(&own, alloc(&own, LADEI_MIB));
  support_fail(own.runtime, "host_alloc", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_alloc(own.pool, 2 * LADEI_MIB, &block));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 0);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, 65 * LADEI_MIB, &block));
  fixture_close(&own);
}
