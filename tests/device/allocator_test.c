/* SPDX-License-Identifier: Apache-2.0 */
/* The device allocator's calls, on the software device: decisions, uses by other streams, limits, errors. */
#include "lade/device.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/api/device.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

/* ---- Splitting and coalescing ------------------------------------------------------------------------------------ */

LADE_TEST(DeviceSplit, SmallSegmentServesTwoMebibytes) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, MIB, 0);
  char *b = device_fixture_alloc(&f, MIB, 0);
  LADE_EXPECT_EQ_PTR(b, a + MIB);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.segment.all.current, 1);
  LADE_EXPECT_EQ_UINT(stats.segment.small_pool.current, 1);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 2 * MIB);
  LADE_EXPECT_EQ_UINT(stats.inactive_split.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.inactive_split.all.peak, 1);
  LADE_EXPECT_EQ_UINT(stats.inactive_split_bytes.all.allocated, MIB);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(DeviceSplit, LargeRestIsKeptOnlyAboveOneMebibyte) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 20 * MIB, 0));
  char *whole = device_fixture_alloc(&f, 19 * MIB, 0);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.segment.all.current, 1);
  LADE_EXPECT_EQ_UINT(stats.allocated_bytes.all.current, 20 * MIB);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.current, 19 * MIB);
  device_fixture_free(&f, whole);
  char *split = device_fixture_alloc(&f, 19 * MIB - 512, 0);
  stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.allocated_bytes.all.current, 19 * MIB - 512);
  LADE_EXPECT_EQ_UINT(stats.inactive_split_bytes.all.current, MIB + 512);
  device_fixture_free(&f, split);
  device_fixture_close(&f);
}

LADE_TEST(DeviceMerge, MiddleJoinsBothNeighbours) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 512, 0);
  char *b = device_fixture_alloc(&f, 512, 0);
  char *c = device_fixture_alloc(&f, 512, 0);
  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split.all.current, 2);
  device_fixture_free(&f, b);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.inactive_split.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.inactive_split_bytes.all.current, 0);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, MIB, 0), a);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

LADE_TEST(DeviceSearch, TakesTheSmallestBlockAndOfThoseTheLowest) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  static const size_t sizes[] = {4096, 512, 2048, 512, 1024, 512, 2048, 512};
  char *blocks[8];
  for (int i = 0; i < 8; i++) blocks[i] = device_fixture_alloc(&f, sizes[i], 0);
  for (int i = 0; i < 8; i += 2) device_fixture_free(&f, blocks[i]);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1500, 0), blocks[2]); /* two of 2048: the lower one */
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1500, 0), blocks[6]);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1500, 0), blocks[0]);
  for (int i = 0; i < 8; i++)
    if (i != 4) device_fixture_free(&f, blocks[i]);
  device_fixture_close(&f);
}

LADE_TEST(DeviceSearch, BlocksServeTheirOwnStreamOnly) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT_NE_PTR(a, b);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 2);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), a);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(DeviceSearch, OversizeBlocksServeOnlyWhatNearlyFillsThem) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = 200 * MIB;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 4 * GIB, &options)) return;
  char *big = device_fixture_alloc(&f, 256 * MIB, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).oversize_segments.current, 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).oversize_allocations.current, 1);
  device_fixture_free(&f, big);
  char *near = device_fixture_alloc(&f, 240 * MIB, 0);
  LADE_EXPECT_EQ_PTR(near, big);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.current, 256 * MIB);
  device_fixture_free(&f, near);
  char *far = device_fixture_alloc(&f, 230 * MIB, 0);
  LADE_EXPECT_NE_PTR(far, big);
  char *below = device_fixture_alloc(&f, 100 * MIB, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 3);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).max_split_bytes, 200 * MIB);
  device_fixture_free(&f, far);
  device_fixture_free(&f, below);
  device_fixture_close(&f);
}

static void expect_not_ready(device_fixture *f, size_t bytes, int stream) {
  void *block = &block;
  char text[sizeof lade_last_error()->text];
  snprintf(text, sizeof text, "%s", lade_last_error()->text);
  lade_device_stats before = device_fixture_stats(f);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_device_alloc_ready(f->allocator, bytes, f->streams[stream], &block));
  LADE_EXPECT_EQ_PTR(block, &block);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, text);
  lade_device_stats after = device_fixture_stats(f);
  LADE_EXPECT_EQ_INT(memcmp(&before, &after, sizeof before), 0);
  device_fixture_check(f);
}

static char *ready(device_fixture *f, size_t bytes, int stream) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc_ready(f->allocator, bytes, f->streams[stream], &block));
  device_fixture_check(f);
  return block;
}

static void ready_run(uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  options.flags = flags;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  expect_not_ready(&f, 1000, 0);
  char *small = device_fixture_alloc(&f, 1000, 0), *large = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_free(&f, small);
  device_fixture_free(&f, large);
  expect_not_ready(&f, 1000, 1);
  expect_not_ready(&f, 40 * MIB, 0);
  expect_not_ready(&f, 0, 0);
  expect_not_ready(&f, (size_t)1 << 60, 0);
  LADE_EXPECT_EQ_PTR(ready(&f, 1000, 0), small);
  LADE_EXPECT_EQ_PTR(ready(&f, 3 * MIB, 0), large);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).requested_bytes.all.current, 1000 + 3 * MIB);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, large, 1);
  device_fixture_free(&f, large);
  expect_not_ready(&f, 1000, 0); /* a look at the stream would be a call of the driver */
  device_fixture_release(&f, 1);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 3 * MIB, 0), large);
  char *beside = ready(&f, 1000, 0);
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  device_fixture_free(&f, beside);
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, &history));
  expect_not_ready(&f, 1000, 0);
  device_fixture_free(&f, small);
  device_fixture_free(&f, large);
  device_fixture_close(&f);
}

LADE_TEST(DeviceSearch, ReadyTakesWhatIsCachedAndNothingElse) { ready_run(0); }

LADE_TEST(DeviceSearch, ReadyTakesWhatTheThreadKeeps) { ready_run(LADE_DEVICE_THREAD_CACHES); }

/* A search that misses would count twice. */
LADE_TEST(DeviceSearch, ReadyHasNothingWhereSearchesAreCounted) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.memory_fraction = 0.5;
  options.collection_threshold = 0.5;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  expect_not_ready(&f, 1000, 0);
  device_fixture_close(&f);
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  lade_device_pool_id pool;
  uint64_t scope;
  LADE_ASSERT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  LADE_ASSERT_OK(lade_device_scope_begin(f.allocator, pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  expect_not_ready(&f, 1000, 0);
  LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_free(&f, ready(&f, 1000, 0));
  device_fixture_close(&f);
}

LADE_TEST(DeviceSearch, ReadyHasNothingWhereNothingIsCached) {
  lade_device_options options;
  lade_device_options_init(&options);
  for (int i = 0; i < 2; i++) {
    options.flags = i == 0 ? LADE_DEVICE_UNCACHED : 0;
    options.backend = i == 0 ? LADE_DEVICE_NATIVE : LADE_DEVICE_CUDA_MALLOC_ASYNC;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
    expect_not_ready(&f, 1000, 0);
    device_fixture_close(&f);
  }
}

/* ---- Uses by other streams --------------------------------------------------------------------------------------- */

LADE_TEST(DeviceUses, FreedBlockWaitsForTheOtherStream) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a + 700, 1);
  device_fixture_record(&f, a, 0); /* its own stream: nothing to wait for */
  device_fixture_free(&f, a);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.active.all.current, 1);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.current, 1000);
  char *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(b, a);
  device_fixture_release(&f, 1);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), a);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceUses, SearchThatMissesClosesTheBatch) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 2 * MIB, 0);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 1);
  char *b = device_fixture_alloc(&f, 19 * MIB, 0); /* its stream is found done: no event, no new memory */
  LADE_EXPECT_EQ_PTR(b, a);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).events_recorded, 0);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(DeviceUses, OneStuckStreamDelaysOnlyItsBlocks) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *stuck = device_fixture_alloc(&f, 1000, 0);
  char *done = device_fixture_alloc(&f, 2000, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, stuck, 1);
  device_fixture_record(&f, done, 2);
  device_fixture_free(&f, stuck);
  device_fixture_free(&f, done);
  char *rest = device_fixture_alloc(&f, 2 * MIB, 0); /* a miss: looks at the streams */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 2000, 0), done);
  device_fixture_release(&f, 1);
  device_fixture_free(&f, done);
  device_fixture_free(&f, rest);
  device_fixture_close(&f);
}

LADE_TEST(DeviceUses, SixteenFreesShareAnEvent) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *blocks[64];
  for (int i = 0; i < 64; i++) {
    blocks[i] = device_fixture_alloc(&f, 512, 0);
    device_fixture_record(&f, blocks[i], 1);
  }
  device_fixture_hold(&f, 1);
  for (int i = 0; i < 64; i++) device_fixture_free(&f, blocks[i]);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).events_recorded, 4);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 64);
  device_fixture_release(&f, 1);
  device_fixture_free(&f, device_fixture_alloc(&f, 512, 0));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceUses, RetiredStreamIsNotCalledAgain) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_stream brief;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &brief));
  void *own = NULL;
  LADE_ASSERT_OK(lade_device_alloc(f.allocator, 1000, brief, &own));
  char *other = device_fixture_alloc(&f, 1000, 0);
  LADE_ASSERT_OK(lade_device_record_stream(f.allocator, other, brief));
  device_fixture_free(&f, other);
  device_fixture_free(&f, own);
  LADE_ASSERT_OK(lade_device_stream_retire(f.allocator, brief));
  LADE_ASSERT_OK(lade_stream_destroy(f.runtime, brief));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.stale_handles, 0);
  device_fixture_close(&f);
}

/* ---- Running out of memory --------------------------------------------------------------------------------------- */

LADE_TEST(DeviceMemory, FlushesTheCacheBeforeItFails) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  char *pending = device_fixture_alloc(&f, 1000, 1);
  device_fixture_record(&f, pending, 2);
  device_fixture_free(&f, pending);
  char *b = device_fixture_alloc(&f, 60 * MIB, 1);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 1);
  LADE_EXPECT_EQ_UINT(stats.sync_all_streams, 1);
  LADE_EXPECT_EQ_UINT(stats.ooms, 0);
  LADE_EXPECT_EQ_UINT(stats.device_allocs, 3);
  LADE_EXPECT_EQ_UINT(stats.device_frees, 2);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 60 * MIB);
  LADE_EXPECT_EQ_UINT(stats.active.all.current, 1);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

/* Among rests of segments, which stay, beside pools in use, which keep what they have, and beside released ones, which do not. */
static void whole_segment_run(bool small, bool captured, bool expandable) {
  size_t bytes = small ? MIB : 10 * MIB - 512, segment = small ? 2 * MIB : 20 * MIB;
  const lade_device_pool_id used = {1, 1}, released = {2, 2};
  char *blocks[8], *others[6];
  device_fixture f;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = expandable;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  for (int i = 0; i < 6 && captured; i++) { /* two segments of one, one of the other: the last is freed as a whole */
    LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, i < 4 ? used : released, f.streams, 1));
    others[i] = device_fixture_alloc(&f, bytes, 0);
    LADE_EXPECT_OK(lade_device_pool_end(f.allocator, i < 4 ? used : released));
    if (i != 0 && i != 4) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, i < 4 ? used : released));
  }
  for (int i = 0; i < 8; i++) blocks[i] = device_fixture_alloc(&f, bytes, 0);
  for (int i = 0; i < 8; i += 2) device_fixture_free(&f, blocks[i]);
  for (int i = 0; i < 6 && captured; i++)
    if (i != 1) device_fixture_free(&f, others[i]);
  uint64_t before = device_fixture_stats(&f).reserved_bytes.all.current;
  if (captured) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, released));
  device_fixture_empty_cache(&f);
  uint64_t gone = captured ? segment : 0; /* the released pool's */
  if (!expandable) LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, before - gone);
  device_fixture_free(&f, blocks[1]);
  before = device_fixture_stats(&f).reserved_bytes.all.current;
  device_fixture_empty_cache(&f);
  if (!expandable) LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, before - segment);
  for (int i = 3; i < 8; i += 2) device_fixture_free(&f, blocks[i]);
  if (captured) device_fixture_free(&f, others[1]);
  if (captured) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, used));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceMemory, FlushFindsWholeSegmentsAmongRests) {
  for (int i = 0; i < 8; i++) whole_segment_run((i & 1) != 0, (i & 2) != 0, (i & 4) != 0);
}

LADE_TEST(DeviceMemory, ErrorNamesTheSizes) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 40 * MIB, 0);
  void *out = &f;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30000000, f.streams[0], &out));
  LADE_EXPECT_EQ_PTR(out, &f);
  const char *text = lade_last_error()->text;
  LADE_EXPECT_CONTAINS_STR(text, "30000000 bytes asked for");
  LADE_EXPECT_CONTAINS_STR(text, "needing 30.00 MiB");
  LADE_EXPECT_CONTAINS_STR(text, "total 64.00 MiB");
  LADE_EXPECT_CONTAINS_STR(text, "free 24.00 MiB");
  LADE_EXPECT_CONTAINS_STR(text, "allocated 40.00 MiB");
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).ooms, 1);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

LADE_TEST(DeviceMemory, OversizeBlocksGoBackFirst) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = 40 * MIB;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, &options)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 2 * MIB, 0));
  char *a = device_fixture_alloc(&f, 60 * MIB, 0);
  char *b = device_fixture_alloc(&f, 90 * MIB, 0);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  char *c = device_fixture_alloc(&f, 120 * MIB, 0); /* both go: neither suffices alone */
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.device_frees, 2);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 140 * MIB);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

LADE_TEST(DeviceMemory, CapOfTheOptionsIsALimit) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = 30 * MIB;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *a = device_fixture_alloc(&f, 20 * MIB, 0);
  void *out;
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_device_alloc(f.allocator, 12 * MIB, f.streams[0], &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "limit 30.00 MiB");
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, 30 * MIB, 0);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(DeviceMemory, FractionLimitsReservedBytes) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_set_memory_fraction(f.allocator, 1.01));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_set_memory_fraction(f.allocator, -0.5));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.03125)); /* 32 MiB */
  uint64_t calls = support_call_count(f.runtime, "device_alloc");
  void *out;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 32 * MIB + 1, f.streams[0], &out));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_alloc"), calls);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).alloc_retries, 1);
  char *a = device_fixture_alloc(&f, 32 * MIB, 0);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

LADE_TEST(DeviceMemory, OldCachedSegmentsGoAboveTheThreshold) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.collection_threshold = 0.85;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.125)); /* 128 MiB; collection above 108.8 MiB */
  char *old = device_fixture_alloc(&f, 20 * MIB, 0);
  char *young = device_fixture_alloc(&f, 50 * MIB, 0);
  device_fixture_free(&f, old);
  for (int i = 0; i < 4; i++) device_fixture_free(&f, device_fixture_alloc(&f, 50 * MIB, 1));
  device_fixture_free(&f, young); /* reserved: 120 MiB; the block of 20 MiB is the oldest */
  char *other = device_fixture_alloc(&f, 8 * MIB, 2);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 0);
  LADE_EXPECT_EQ_UINT(stats.device_frees, 1);
  char *again = device_fixture_alloc(&f, 20 * MIB, 0); /* split from the younger one: the old one is gone */
  LADE_EXPECT_EQ_PTR(again, young);
  device_fixture_free(&f, again);
  device_fixture_free(&f, other);
  device_fixture_close(&f);
}

/* ---- Expandable segments ----------------------------------------------------------------------------------------- */

static lade_device_options expandable_options(void) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  return options;
}

LADE_TEST(DeviceExpandable, OneSegmentGrows) {
  lade_device_options options = expandable_options();
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *a = device_fixture_alloc(&f, 30 * MIB, 0);
  char *b = device_fixture_alloc(&f, 25 * MIB, 0);
  LADE_EXPECT_EQ_PTR(b, a + 30 * MIB);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.large_pool.current, 60 * MIB); /* granules of 20 MiB */
  LADE_EXPECT_EQ_UINT(stats.segment.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.device_allocs, 2);
  LADE_EXPECT_EQ_UINT(stats.inactive_split.all.current, 0);
  device_fixture_free(&f, b);
  char *c = device_fixture_alloc(&f, 100 * MIB, 0); /* grows the free end in place */
  LADE_EXPECT_EQ_PTR(c, b);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 140 * MIB);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f); /* 30 MiB free: one granule of 20 MiB goes, 10 MiB stay */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 120 * MIB);
  char *d = device_fixture_alloc(&f, 30 * MIB, 0); /* fills the hole again */
  LADE_EXPECT_EQ_PTR(d, a);
  device_fixture_free(&f, c);
  device_fixture_free(&f, d);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_RESERVED_BYTES), 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceExpandable, WhatWasMappedBeforeAFailureStaysCached) {
  lade_device_options options = expandable_options();
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 100 * MIB, &options)) return;
  char *a = device_fixture_alloc(&f, 20 * MIB, 0);
  char *b = device_fixture_alloc(&f, 20 * MIB, 0);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f); /* hole, 20 MiB used, hole */
  void *out;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 90 * MIB, f.streams[0], &out));
  device_fixture_check(&f);
  char *c = device_fixture_alloc(&f, 60 * MIB, 0);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

LADE_TEST(DeviceExpandable, TurnedOffAtRunTimeItServesNoRequest) {
  lade_device_options options = expandable_options();
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *grown = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, grown);
  LADE_ASSERT_OK(lade_device_configure(f.allocator, NULL));
  char *plain = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(plain, grown);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  device_fixture_free(&f, plain);
  LADE_ASSERT_OK(lade_device_configure(f.allocator, &options));
  char *again = device_fixture_alloc(&f, 2 * MIB, 0); /* beyond the plain segment's: it grows once more */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  device_fixture_free(&f, again);
  options.roundup_divisions[0] = 3;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_configure(f.allocator, &options));
  device_fixture_close(&f);
}

LADE_TEST(DeviceExpandable, DeviceWithoutVirtualMemorySaysSo) {
  support_description description;
  support_description_init(&description);
  description.devices[0].no_virtual_memory = 1;
  lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
  if (runtime == NULL) return;
  lade_device_options options = expandable_options();
  lade_device_allocator *allocator;
  LADE_ASSERT_OK(lade_device_allocator_create(runtime, 0, &options, &allocator));
  void *out;
  LADE_EXPECT_OK(lade_runtime_set_device(runtime, 0));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_alloc(allocator, 1, NULL, &out));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  support_runtime_close(runtime);
}

/* ---- Questions, other devices ------------------------------------------------------------------------------------ */

LADE_TEST(DeviceQueries, SegmentIsTheDriverAllocation) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, MIB, 0);
  char *b = device_fixture_alloc(&f, 1000, 0);
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  LADE_EXPECT_OK(lade_device_find(f.allocator, b + 10, &info));
  LADE_EXPECT_EQ_UINT(info.segment_address, (uintptr_t)a);
  LADE_EXPECT_EQ_UINT(info.segment_bytes, 2 * MIB);
  device_fixture_free(&f, b);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* A fill by a stream of device 1: the software device refuses it without access. */
static lade_status fill_from_peer(device_fixture *f, lade_stream stream, void *memory) {
  ladei_stream resolved;
  lade_status status = f->runtime->ops->stream_resolve(f->runtime->self, stream, &resolved);
  if (status == LADE_OK) status = f->runtime->ops->fill(f->runtime->self, memory, 1, 512, &resolved);
  return status == LADE_OK ? lade_stream_synchronize(f->runtime, stream) : status;
}

static void peer_run(bool expandable) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = expandable;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_stream other;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 1, &other));
  char *before = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_device_peer_add(f.allocator, 0)); /* itself */
  LADE_EXPECT_OK(lade_device_peer_add(f.allocator, 1));
  LADE_EXPECT_OK(lade_device_peer_add(f.allocator, 1));
  LADE_EXPECT_EQ_SIZE(atomic_load(&f.allocator->peers.count), 1);
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_device_peer_add(f.allocator, 9));
  char *after = device_fixture_alloc(&f, 3 * MIB, 0);
  LADE_EXPECT_OK(fill_from_peer(&f, other, before));
  LADE_EXPECT_OK(fill_from_peer(&f, other, after));
  device_fixture_free(&f, before);
  device_fixture_free(&f, after);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  LADE_ASSERT_OK(lade_stream_destroy(f.runtime, other));
  device_fixture_close(&f);
}

LADE_TEST(DevicePeers, UsePlainSegments) { peer_run(false); }

LADE_TEST(DevicePeers, UseMappedMemoryOfBeforeAndAfter) { peer_run(true); }

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

LADE_TEST(DeviceStats, ResetsLeaveCurrentValues) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 4000, 0);
  device_fixture_free(&f, device_fixture_alloc(&f, 9000, 0));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).requested_bytes.all.peak, 13000);
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_PEAKS));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).requested_bytes.all.peak, 4000);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).requested_bytes.all.allocated, 13000);
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_SUMS));
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.allocated, 0);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.freed, 0);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.current, 4000);
  LADE_EXPECT_EQ_UINT(stats.device_allocs, 0);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* A limit that changes while blocks live must not let the gauges drift (hazard H8). */
LADE_TEST(DeviceStats, OversizeGaugesSurviveAChangedLimit) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = 40 * MIB;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *over = device_fixture_alloc(&f, 50 * MIB, 0);
  options.max_split_bytes = 100 * MIB;
  LADE_ASSERT_OK(lade_device_configure(f.allocator, &options));
  char *under = device_fixture_alloc(&f, 60 * MIB, 0);
  options.max_split_bytes = 30 * MIB;
  LADE_ASSERT_OK(lade_device_configure(f.allocator, &options));
  device_fixture_free(&f, over);
  device_fixture_free(&f, under);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).oversize_allocations.current, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).oversize_segments.current, 1);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).oversize_segments.current, 0);
  device_fixture_close(&f);
}

/* ---- Bad input, life --------------------------------------------------------------------------------------------- */

LADE_TEST(DeviceErrors, PointersThatAreNotBlocksAreNamed) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 4000, 0);
  char *b = device_fixture_alloc(&f, 4000, 0);
  LADE_EXPECT_OK(lade_device_free(f.allocator, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, a + 512));
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, a + 1));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, &f));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, (void *)UINTPTR_MAX));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, a + 2 * MIB));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(f.allocator, &f, f.streams[1]));
  device_fixture_free(&f, a);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, a));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_record_stream(f.allocator, a, f.streams[1]));
  device_fixture_free(&f, b);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, b)); /* coalesced with a */
  device_fixture_empty_cache(&f);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, a));
  device_fixture_close(&f);
}

LADE_TEST(DeviceErrors, SizesAndArguments) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  void *out = &f;
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, 0, f.streams[0], &out));
  LADE_EXPECT_EQ_PTR(out, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc(f.allocator, SIZE_MAX, f.streams[0], &out));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc(f.allocator, (size_t)1 << 60, f.streams[0], &out));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     lade_device_alloc(f.allocator, ((size_t)1 << 60) - 1, f.streams[0], &out));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc(f.allocator, 1, f.streams[0], NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc(NULL, 1, f.streams[0], &out));
  lade_stream elsewhere;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 1, &elsewhere));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc(f.allocator, 1, elsewhere, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text,
                           "lade_device_alloc: stream is of device 1; expected a stream of the allocator's");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc_ready(f.allocator, 1, elsewhere, &out));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc_ready(f.allocator, 1, f.streams[0], NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc_ready(NULL, 1, f.streams[0], &out));
  LADE_ASSERT_OK(lade_stream_destroy(f.runtime, elsewhere));

  lade_device_allocator *none = NULL;
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = 20 * MIB;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  options.max_split_bytes = 0;
  options.collection_threshold = 1.0;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  options.collection_threshold = 0.0;
  options.roundup_divisions[3] = 6;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_device_allocator_create(f.runtime, 7, NULL, &none));
  LADE_EXPECT_EQ_PTR(none, NULL);
  device_fixture_close(&f);
}

LADE_TEST(DeviceLife, DestroyCountsWhatIsLeft) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_allocator_destroy(NULL, true));
  char *a = device_fixture_alloc(&f, 4000, 0);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 blocks of 4096 bytes");
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_device_allocator_destroy(f.allocator, false));
  device_fixture_free(&f, device_fixture_alloc(&f, 4000, 0)); /* still usable */
  device_fixture_release(&f, 1);
  device_fixture_close(&f);
}

static void lost_device_run(bool expandable) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = expandable;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *used = device_fixture_alloc(&f, 4000, 0);
  char *pending = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, pending, 1);
  device_fixture_free(&f, pending);
  LADE_ASSERT_OK(lade_soft_device_lose(f.runtime, 0, 0));
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, lade_device_alloc(f.allocator, 64 * MIB, f.streams[0], &none));
  device_fixture_free(&f, used);
  device_fixture_close(&f);
}

LADE_TEST(DeviceLife, LostDeviceLeavesNothingBehind) { lost_device_run(false); }

LADE_TEST(DeviceLife, NorDoItsExpandableSegments) { lost_device_run(true); }

LADE_TEST(DeviceLife, ForkedChildGetsAnError) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 4000, 0);
  pid_t child = fork();
  LADE_ASSERT(child >= 0);
  if (child == 0) {
    void *out;
    bool refused = lade_device_alloc(f.allocator, 1, f.streams[0], &out) == LADE_ERR_FORKED &&
                   lade_device_free(f.allocator, a) == LADE_ERR_FORKED &&
                   lade_device_empty_cache(f.allocator) == LADE_ERR_FORKED &&
                   lade_device_allocator_destroy(f.allocator, true) == LADE_ERR_FORKED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  LADE_ASSERT(waitpid(child, &status, 0) == child);
  LADE_EXPECT_EQ_INT(status, 0);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}
