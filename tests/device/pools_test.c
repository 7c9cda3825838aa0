/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Private pools of captures, and checkpoints of their layout. */
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

static const lade_device_pool_id pool_one = {1, 0};

LADE_TEST(DevicePools, MemoryOfACaptureServesNobodyElse) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_pool_begin(f.allocator, pool_one, NULL, 0));
  char *captured = device_fixture_alloc(&f, 1000, 0);
  char *outside = device_fixture_alloc(&f, 1000, 1);
  device_fixture_free(&f, captured);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), captured);
  LADE_EXPECT(device_fixture_pool_has(f.allocator, pool_one, (void *[]){captured}, 1));
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_end(f.allocator, pool_one));
  device_fixture_free(&f, captured);
  char *later = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(later, captured);
  device_fixture_free(&f, outside);
  device_fixture_free(&f, later);
  device_fixture_empty_cache(&f); /* the pool is still in use: its segment stays */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(f.allocator, pool_one));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_begin(f.allocator, pool_one, NULL, 0));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 0);
  LADE_EXPECT(!device_fixture_pool_has(f.allocator, pool_one, NULL, 0)); /* gone */
  device_fixture_close(&f);
}

LADE_TEST(DevicePools, ReleasedPoolStaysWhileABlockLives) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, NULL, 0));
  char *a = device_fixture_alloc(&f, 1000, 3);
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 0);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, NULL, 0)); /* a new one under the old name */
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  device_fixture_close(&f);
}

/* As PyTorch's allocator does it: all uses noted during a capture are forgotten. A stream noted both before and during a
 * capture: the use before it must still be waited for (hazard H9). */
LADE_TEST(DevicePools, DeferredFreeHonoursUsesFromOutsideTheCaptureInTheReference) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *outside = device_fixture_alloc(&f, 512, 0);
  char *inside = device_fixture_alloc(&f, 512, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, outside, 1);
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[2], 1));
  device_fixture_record(&f, outside, 1);
  device_fixture_record(&f, inside, 1);
  device_fixture_free(&f, outside);
  device_fixture_free(&f, inside);
  device_fixture_free(&f, device_fixture_alloc(&f, 512, 2));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2); /* both deferred */
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  char *next = device_fixture_alloc(&f, 512, 0);
  LADE_EXPECT_EQ_PTR(next, inside);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2); /* it, and the block still in use */
  device_fixture_release(&f, 1);
  device_fixture_free(&f, next);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 512, 0), outside); /* the event of its free is done */
  device_fixture_free(&f, outside);
  device_fixture_close(&f);
}

/* Two captures take every stream, a third one only stream 1. */
static void pools_overlap(uint32_t flags, int expected_owner) {
  static const lade_device_pool_id ids[] = {{1, 0}, {2, 0}, {3, 0}};
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = flags;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, ids[i], NULL, 0));
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, ids[2], &f.streams[1], 1));
  void *live[] = {device_fixture_alloc(&f, 1000, 0)};
  for (int i = 0; i < 3; i++) {
    lade_test_context("pool %d", i);
    LADE_EXPECT_EQ_INT(device_fixture_pool_has(f.allocator, ids[i], live, 1), i == expected_owner);
  }
  device_fixture_free(&f, live[0]);
  for (int i = 0; i < 3; i++) {
    LADE_EXPECT_OK(lade_device_pool_end(f.allocator, ids[i]));
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, ids[i]));
  }
  device_fixture_close(&f);
}

LADE_TEST(DevicePools, TheOldestCaptureThatTakesAStreamGetsIt) { pools_overlap(0, 0); }

LADE_TEST(DevicePools, TheNewestCaptureGetsItIfSoSet) { pools_overlap(LADE_DEVICE_NEWEST_POOL, 1); }

/* The reference took the oldest, which PyTorch 2.11 does not. */
LADE_TEST(DevicePools, TheNewestCaptureGetsItInTheReference) {
  pools_overlap(LADE_DEVICE_REFERENCE, 1);
  pools_overlap(LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE, 0);
}

LADE_TEST(DeviceCheckpoint, RestoresTheLayout) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 3000, 0);
  char *c = device_fixture_alloc(&f, 500, 0);
  device_fixture_free(&f, b);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint));
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint));

  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  char *d = device_fixture_alloc(&f, 100000, 0);
  LADE_EXPECT_EQ_PTR(d, a);
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));

  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  device_fixture_check(&f);
  LADE_ASSERT_EQ_SIZE(restored->freed_count, 1);
  LADE_EXPECT_EQ_PTR(restored->freed[0], d);
  LADE_ASSERT_EQ_SIZE(restored->created_count, 2);
  LADE_EXPECT_EQ_PTR(restored->created[0], a);
  LADE_EXPECT_EQ_PTR(restored->created[1], c);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).requested_bytes.all.current, 1024 + 512);
  lade_device_restored_destroy(restored);

  device_fixture_record(&f, c, 1);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  device_fixture_check(&f);
  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one)); /* once per begin */
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_close(&f);
}

LADE_TEST(DeviceCheckpoint, WaitsForNobodyButRefusesPendingBlocks) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  char *a = device_fixture_alloc(&f, 1000, 0);
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint));
  device_fixture_release(&f, 1);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_OK(lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint));
  lade_device_checkpoint_destroy(checkpoint);
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_close(&f);
}

/* Counters cannot tell a set from a free of each block, and a request and free for each of the layout's. */
LADE_TEST(DeviceCheckpoint, CountsAsFreesAndRequestsOfAllBlocks) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  char *blocks[5];
  for (int i = 0; i < 5; i++) blocks[i] = device_fixture_alloc(&f, 1000 + 1000 * (size_t)i, 0);
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  device_fixture_free(&f, blocks[1]);
  device_fixture_free(&f, blocks[3]);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint)); /* three used, three free: the rest */
  device_fixture_free(&f, blocks[2]); /* one free block of the three now, and the rest */
  LADE_ASSERT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_PEAKS));
  lade_device_stats before = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(before.inactive_split.all.current, 2);
  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  device_fixture_check(&f);
  lade_device_stats after = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(after.allocation.all.current, 3);
  LADE_EXPECT_EQ_UINT(after.allocation.all.allocated, before.allocation.all.allocated + 6);
  LADE_EXPECT_EQ_UINT(after.allocation.all.freed, before.allocation.all.freed + 2 + 3);
  LADE_EXPECT_EQ_UINT(after.allocation.all.peak, 6); /* before the free ones were freed */
  LADE_EXPECT_EQ_UINT(after.active.all.peak, 6);
  LADE_EXPECT_EQ_UINT(after.allocated_bytes.all.peak, 2 * MIB);
  LADE_EXPECT_EQ_UINT(after.inactive_split.all.current, 3);
  LADE_EXPECT_EQ_UINT(after.inactive_split.all.peak, 3);
  LADE_EXPECT_EQ_UINT(after.inactive_split_bytes.all.current, 2 * MIB - 1024 - 3072 - 5120);
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  for (int i = 0; i < 5; i += 2) device_fixture_free(&f, blocks[i]);
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_close(&f);
}

/* In memory that came after the layout: such a block is pending between what a set frees below and above it. */
LADE_TEST(DeviceCheckpoint, LeavesUsesOfOtherStreamsInNewerMemoryPending) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  char *kept = device_fixture_alloc(&f, 1000, 0), *newer[4];
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint));
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  for (int i = 0; i < 4; i++) newer[i] = device_fixture_alloc(&f, 2 * MIB, 0);
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, pool_one));
  device_fixture_free(&f, newer[0]);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, newer[2], 1);
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  device_fixture_check(&f);
  LADE_EXPECT_EQ_SIZE(restored->freed_count, 4);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.current, 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split.large_pool.current, 2);
  device_fixture_release(&f, 1);
  device_fixture_empty_cache(&f);
  device_fixture_check(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 1);
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&f, kept);
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_close(&f);
}
