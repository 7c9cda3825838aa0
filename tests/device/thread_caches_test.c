/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: LADE_DEVICE_THREAD_CACHES: what a thread keeps, that it is nowhere in the way, and that nothing of it shows.
 * With threads that share blocks: threads_test.c. In all orders: tests/stress/device_schedule_test.c.
 */
#include "device/state/thread_caches.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/listener.h"

static bool open_with(device_fixture *f, size_t memory_bytes, uint64_t max_bytes) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_THREAD_CACHES;
  options.max_bytes = max_bytes;
  return device_fixture_open(f, "sim", memory_bytes, &options);
}

static bool open_caches(device_fixture *f) { return open_with(f, GIB, 0); }

/* Whether a thread keeps the block. */
static bool kept(const device_fixture *f, const void *pointer) {
  const ladei_device_block *block =
      ladei_device_block_map_get(&f->allocator->heap.starts, (uint64_t)(uintptr_t)pointer);
  return block != NULL && block->state == LADEI_DEVICE_HEAP_THREAD;
}

static size_t kept_bytes(const device_fixture *f) {
  size_t bytes = 0;
  for (const ladei_device_thread_cache *cache = f->allocator->thread_caches->first; cache != NULL; cache = cache->next)
    bytes += cache->cached_bytes;
  return bytes;
}

/* In another thread, which may go on living afterwards. */
typedef struct visitor {
  device_fixture *f;
  void (*run)(struct visitor *v);
  void *block;
  bool stays;
  pthread_t thread;
  pthread_barrier_t done;
} visitor;

static void *visitor_main(void *user) {
  visitor *v = user;
  v->run(v);
  if (!v->stays) return NULL;
  pthread_barrier_wait(&v->done); /* what it did is done */
  pthread_barrier_wait(&v->done); /* it may go */
  return NULL;
}

static void visitor_start(visitor *v) {
  pthread_barrier_init(&v->done, NULL, 2);
  LADE_ASSERT(pthread_create(&v->thread, NULL, visitor_main, v) == 0);
  if (v->stays) pthread_barrier_wait(&v->done);
}

static void visitor_end(visitor *v) {
  if (v->stays) pthread_barrier_wait(&v->done);
  pthread_join(v->thread, NULL);
  pthread_barrier_destroy(&v->done);
}

/* Has a block in its cache. */
static void visitor_keep(visitor *v) {
  v->block = device_fixture_alloc(v->f, 8 * MIB, 0);
  device_fixture_free(v->f, v->block);
  LADE_EXPECT(kept(v->f, v->block));
}

static void visitor_free(visitor *v) { device_fixture_free(v->f, v->block); }

/* ---- What is kept ------------------------------------------------------------------------------------------------ */

LADE_TEST(DeviceThreadCaches, BlockOfTheSizeComesBack) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *small = device_fixture_alloc(&f, 1000, 0), *large = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_free(&f, small);
  device_fixture_free(&f, large);
  LADE_EXPECT(kept(&f, small) && kept(&f, large));
  char *other = device_fixture_alloc(&f, 999, 0), *elsewhere = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT_NE_PTR(other, small);
  LADE_EXPECT_NE_PTR(elsewhere, small);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), small);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 3 * MIB, 0), large);
  LADE_EXPECT(!kept(&f, small) && !kept(&f, large));
  char *const blocks[] = {small, large, other, elsewhere};
  for (int i = 0; i < 4; i++) device_fixture_free(&f, blocks[i]);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, WithoutTheFlagNothingIsKept) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, block);
  LADE_EXPECT(!kept(&f, block) && f.allocator->thread_caches == NULL);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, OtherStreamsUseKeepsABlockOut) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, block, 1);
  device_fixture_free(&f, block);
  LADE_EXPECT(!kept(&f, block));
  char *next = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(next, block);
  device_fixture_release(&f, 1);
  device_fixture_free(&f, next);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, BlocksOfOtherThreadsGoToThePools) {
  device_fixture f;
  if (!open_caches(&f)) return;
  visitor v = {.f = &f, .run = visitor_free, .block = device_fixture_alloc(&f, 1000, 0), .stays = true};
  visitor_start(&v);
  LADE_EXPECT(!kept(&f, v.block));
  visitor_end(&v);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, CacheIsBounded) {
  enum { SIZES = 20, BLOCKS = 20 };
  static char *blocks[SIZES][BLOCKS];
  device_fixture f;
  if (!open_caches(&f)) return;
  for (int s = SIZES - 1; s >= 0; s--) /* the first size is asked for last: no other has its bin */
    for (int i = 0; i < BLOCKS; i++) blocks[s][i] = device_fixture_alloc(&f, ((size_t)s + 1) * 64 * 1024, 0);
  char *huge = device_fixture_alloc(&f, LADEI_DEVICE_THREAD_BLOCK_MOST + 1, 0);
  device_fixture_free(&f, huge);
  LADE_EXPECT(!kept(&f, huge));
  for (int i = 0; i < BLOCKS; i++) device_fixture_free(&f, blocks[0][i]);
  LADE_EXPECT_EQ_UINT(kept_bytes(&f), LADEI_DEVICE_THREAD_BIN_BLOCKS * 64 * 1024);
  for (int s = 1; s < SIZES; s++)
    for (int i = 0; i < BLOCKS; i++) device_fixture_free(&f, blocks[s][i]);
  LADE_EXPECT_LE_UINT(kept_bytes(&f), LADEI_DEVICE_THREAD_MOST);
  LADE_EXPECT_GT_UINT(kept_bytes(&f), LADEI_DEVICE_THREAD_MOST / 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(kept_bytes(&f), 0);
  LADE_EXPECT_EQ_UINT(f.allocator->thread_caches->quota_bytes, 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, AllThreadsTogetherAreBounded) {
  device_fixture f;
  if (!open_with(&f, 160 * MIB, 0)) return; /* a sixteenth: 10 MiB */
  visitor v = {.f = &f, .run = visitor_keep, .stays = true};
  visitor_start(&v);
  char *block = device_fixture_alloc(&f, 1000, 0), *large = device_fixture_alloc(&f, 4 * MIB, 0);
  device_fixture_free(&f, large); /* the request flushed the visitor's: it is what fits */
  LADE_EXPECT(kept(&f, large));
  LADE_EXPECT_LE_UINT(f.allocator->thread_caches->quota_bytes, 10 * MIB);
  char *second = device_fixture_alloc(&f, 7 * MIB, 0);
  char *first = device_fixture_alloc(&f, 4 * MIB, 0);
  device_fixture_free(&f, second);
  device_fixture_free(&f, first);
  LADE_EXPECT(kept(&f, second) && !kept(&f, first));
  LADE_EXPECT_LE_UINT(f.allocator->thread_caches->quota_bytes, 10 * MIB);
  device_fixture_free(&f, block);
  visitor_end(&v);
  device_fixture_close(&f);
}

/* What is too large for a cache is claimed all the same, and freed as THREAD. */
LADE_TEST(DeviceThreadCaches, BlockMayBeTooLarge) {
  enum { PAIRS = 7 };
  device_fixture f;
  if (!open_caches(&f)) return;
  for (int i = 0; i < PAIRS; i++) {
    char *block = device_fixture_alloc(&f, LADEI_DEVICE_THREAD_BLOCK_MOST + 1, 0);
    device_fixture_free(&f, block);
    LADE_EXPECT(!kept(&f, block));
  }
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.allocated, PAIRS);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.freed, PAIRS);
  device_fixture_close(&f);
}

/* A bin is given to the size asked for last; the blocks that were in it are cached as ever. */
LADE_TEST(DeviceThreadCaches, ManySizesLoseNothing) {
  enum { SIZES = 400 };
  device_fixture f;
  if (!open_caches(&f)) return;
  for (size_t i = 0; i < SIZES; i++) device_fixture_free(&f, device_fixture_alloc(&f, 512 + i * 100, 0));
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.allocated, SIZES);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.freed, SIZES);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 0);
  device_fixture_close(&f);
}

/* ---- What users see ---------------------------------------------------------------------------------------------- */

LADE_TEST(DeviceThreadCaches, StatisticsAreExact) {
  enum { PAIRS = 10 };
  device_fixture f, plain;
  if (!open_caches(&f) || !device_fixture_open(&plain, "sim", GIB, NULL)) return;
  device_fixture *const both[] = {&f, &plain};
  lade_device_stats seen[2];
  for (int k = 0; k < 2; k++) {
    char *stays = device_fixture_alloc(both[k], 2000, 0);
    for (int i = 0; i < PAIRS; i++) {
      device_fixture_free(both[k], device_fixture_alloc(both[k], 1000, 0));
      device_fixture_free(both[k], device_fixture_alloc(both[k], 3 * MIB, 0));
    }
    seen[k] = device_fixture_stats(both[k]);
    device_fixture_free(both[k], stays);
  }
  LADE_EXPECT_EQ_UINT(seen[0].allocation.all.allocated, 2 * PAIRS + 1);
#define SAME(field)                                                                                                    \
  LADE_EXPECT_EQ_UINT(seen[0].field.current, seen[1].field.current);                                                   \
  LADE_EXPECT_EQ_UINT(seen[0].field.allocated, seen[1].field.allocated);                                               \
  LADE_EXPECT_EQ_UINT(seen[0].field.freed, seen[1].field.freed)
  SAME(allocation.small_pool);
  SAME(allocation.large_pool);
  SAME(active.all);
  SAME(allocated_bytes.small_pool);
  SAME(allocated_bytes.large_pool);
  SAME(active_bytes.all);
  SAME(requested_bytes.small_pool);
  SAME(requested_bytes.large_pool);
  SAME(reserved_bytes.all);
#undef SAME
  LADE_EXPECT_EQ_UINT(seen[0].inactive_split_bytes.all.current, seen[1].inactive_split_bytes.all.current);
  device_fixture_close(&f);
  device_fixture_close(&plain);
}

LADE_TEST(DeviceThreadCaches, ResetsStartFromTheTruth) {
  device_fixture f;
  if (!open_caches(&f)) return;
  for (int i = 0; i < 3; i++) device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_PEAKS));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.peak, 0);
  for (int i = 0; i < 3; i++) device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_SUMS));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.allocated, 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, SnapshotShowsCachedBlocksAsInactive) {
  device_fixture f;
  lade_device_snapshot *snapshot = NULL;
  if (!open_caches(&f)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_UINT(snapshot->block_count, 1);
  LADE_EXPECT_EQ_UINT(snapshot->blocks[0].state, LADE_DEVICE_BLOCK_INACTIVE);
  LADE_EXPECT_EQ_UINT(snapshot->segments[0].allocated_bytes, 0);
  LADE_EXPECT_EQ_UINT(snapshot->stats.allocated_bytes.all.current, 0);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, WrongPointersHaveTheirNames) {
  device_fixture f;
  int local = 0;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, block + 16));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, &local));
  device_fixture_free(&f, block);
  LADE_EXPECT(kept(&f, block));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, block));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_record_stream(f.allocator, block, f.streams[1]));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, block + 16));
  LADE_EXPECT(kept(&f, block));
  device_fixture_close(&f);
}

static uint32_t state_of(const device_fixture *f, const void *pointer) {
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  LADE_EXPECT_OK(lade_device_find(f->allocator, pointer, &info));
  return info.state;
}

LADE_TEST(DeviceThreadCaches, FindTellsCachedBlocksFromOthers) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *cached = device_fixture_alloc(&f, 1000, 0), *block = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_free(&f, cached);
  LADE_EXPECT_EQ_UINT(state_of(&f, block), LADE_DEVICE_BLOCK_ALLOCATED);
  LADE_EXPECT(kept(&f, cached)); /* nothing was flushed for it */
  LADE_EXPECT_EQ_UINT(state_of(&f, cached), LADE_DEVICE_BLOCK_INACTIVE);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

static ladei_device_block *block_at(const device_fixture *f, const void *pointer) {
  return ladei_device_block_map_get(&f->allocator->heap.starts, (uint64_t)(uintptr_t)pointer);
}

/* A free has claimed the block, and counters do not know of it: a snapshot showed the block as inactive, its statistics as
 * allocated. */
LADE_TEST(DeviceThreadCaches, BlockIsAllocatedUntilItsFreeIsCounted) {
  device_fixture f;
  lade_device_snapshot *snapshot = NULL;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 2 * MIB, 0);
  LADE_ASSERT(ladei_device_block_claim(block_at(&f, block)));
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_UINT(snapshot->stats.allocated_bytes.all.current, 2 * MIB);
  LADE_EXPECT_EQ_UINT(snapshot->segments[0].allocated_bytes, 2 * MIB);
  LADE_EXPECT_EQ_UINT(snapshot->segments[0].requested_bytes, 2 * MIB);
  LADE_EXPECT_EQ_UINT(state_of(&f, block), LADE_DEVICE_BLOCK_ALLOCATED);
  lade_device_snapshot_destroy(snapshot);
  ladei_device_block_unclaim(block_at(&f, block));
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* The same in a private pool: a checkpoint spoke of other streams, and neither the pool's figures nor its live blocks had it. */
LADE_TEST(DeviceThreadCaches, PoolHasABlockUntilItsFreeIsCounted) {
  const lade_device_pool_id id = {1, 2};
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  lade_device_pool_info info;
  device_fixture f;
  if (!open_caches(&f)) return;
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, id, NULL, 0));
  void *block = device_fixture_alloc(&f, 2 * MIB, 0);
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, id));
  LADE_ASSERT(ladei_device_block_claim(block_at(&f, block)));
  lade_device_pool_info_init(&info);
  LADE_EXPECT_OK(lade_device_pool_info_get(f.allocator, id, &info));
  LADE_EXPECT_EQ_UINT(info.allocated_bytes, 2 * MIB);
  LADE_EXPECT_EQ_UINT(info.active_bytes, 2 * MIB);
  LADE_EXPECT(device_fixture_pool_has(f.allocator, id, &block, 1));
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, id, &checkpoint));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  ladei_device_block_unclaim(block_at(&f, block));
  device_fixture_free(&f, block);
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  LADE_EXPECT_EQ_UINT(restored->created_count, 1);
  LADE_EXPECT_EQ_PTR(restored->created[0], block);
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&f, block);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_close(&f);
}

/* ---- Nothing is in the way --------------------------------------------------------------------------------------- */

LADE_TEST(DeviceThreadCaches, MemoryThatIsThereIsNotRefused) {
  device_fixture f;
  if (!open_with(&f, GIB, 20 * MIB)) return;
  visitor v = {.f = &f, .run = visitor_keep, .stays = true};
  visitor_start(&v);
  char *block = device_fixture_alloc(&f, 20 * MIB, 0); /* all that there may be, and the visitor sleeps */
  LADE_EXPECT(block != NULL);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).device_frees, 0);
  device_fixture_free(&f, block);
  visitor_end(&v);
  device_fixture_close(&f);
}

/* Of another stream the segment has to go back first. */
LADE_TEST(DeviceThreadCaches, WhatThreadsKeepGoesBackForAnotherStream) {
  device_fixture f;
  if (!open_with(&f, GIB, 20 * MIB)) return;
  visitor v = {.f = &f, .run = visitor_keep, .stays = true};
  visitor_start(&v);
  char *block = device_fixture_alloc(&f, 20 * MIB, 1);
  LADE_EXPECT(block != NULL);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).device_frees, 1);
  device_fixture_free(&f, block);
  visitor_end(&v);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, EmptyCacheTakesAll) {
  device_fixture f;
  if (!open_caches(&f)) return;
  visitor v = {.f = &f, .run = visitor_keep, .stays = true};
  visitor_start(&v);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  visitor_end(&v);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, LargestBlockIsSeen) {
  device_fixture f;
  lade_device_usage usage;
  lade_device_usage_init(&usage);
  if (!open_with(&f, 12 * MIB, 0)) return; /* a driver with nothing left but this */
  char *block = device_fixture_alloc(&f, 600 * 1024, 0), *all = device_fixture_alloc(&f, 10 * MIB, 0);
  device_fixture_free(&f, block);
  LADE_EXPECT(kept(&f, block));
  LADE_EXPECT_OK(lade_device_usage_get(f.allocator, &usage));
  LADE_EXPECT_EQ_UINT(usage.largest_free_bytes, 2 * MIB);
  device_fixture_free(&f, all);
  device_fixture_close(&f);
}

/* What a reclaimer frees may go to the cache of its thread. */
typedef struct hoard {
  device_fixture *f;
  void *block;
} hoard;

static lade_status hoard_reclaim(void *user) {
  hoard *own = user;
  lade_status status = lade_device_free(own->f->allocator, own->block);
  own->block = NULL;
  return status;
}

LADE_TEST(DeviceThreadCaches, ReclaimedBlockServesTheRequest) {
  device_fixture f;
  if (!open_with(&f, 320 * MIB, 20 * MIB)) return;
  hoard own = {&f, device_fixture_alloc(&f, 9 * MIB, 0)};
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &own)));
  char *block = device_fixture_alloc(&f, 15 * MIB, 0);
  LADE_EXPECT(block != NULL && own.block == NULL);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).device_allocs, 1);
  LADE_EXPECT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &own)));
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* ---- History, captures, streams that go -------------------------------------------------------------------------- */

LADE_TEST(DeviceThreadCaches, HistoryHasEveryEvent) {
  device_fixture f;
  lade_history *history = NULL;
  lade_history_options options;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, block);
  lade_history_options_init(&options);
  options.enabled = 1;
  options.max_entries = 64;
  LADE_ASSERT_OK(lade_device_history_set(f.allocator, &options));
  LADE_EXPECT(!kept(&f, block));
  for (int i = 0; i < 2; i++) device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT_EQ_UINT(kept_bytes(&f), 0);
  LADE_ASSERT_OK(lade_device_history_take(f.allocator, &history));
  LADE_ASSERT_EQ_UINT(history->event_count, 6);
  for (size_t i = 0; i < 6; i++) LADE_EXPECT_EQ_UINT(history->events[i].action, i % 3); /* alloc, free, completed */
  lade_history_destroy(history);
  LADE_ASSERT_OK(lade_device_history_set(f.allocator, NULL));
  block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, block);
  LADE_EXPECT(kept(&f, block));
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, CapturesGoPastThem) {
  const lade_device_pool_id id = {1, 2};
  device_fixture f;
  if (!open_caches(&f)) return;
  char *cached = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, cached);
  LADE_ASSERT_OK(lade_device_pool_begin(f.allocator, id, NULL, 0));
  char *captured = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(captured, cached);
  void *const live[] = {captured};
  LADE_EXPECT(device_fixture_pool_has(f.allocator, id, live, 1));
  LADE_ASSERT_OK(lade_device_pool_end(f.allocator, id));
  char *after = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, captured);
  LADE_EXPECT(!kept(&f, captured)); /* the graph's */
  device_fixture_free(&f, after);
  LADE_EXPECT(kept(&f, after));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, BlocksOfARetiredStreamAreNotKept) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *cached = device_fixture_alloc(&f, 1000, 0), *used = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, cached);
  LADE_ASSERT_OK(lade_device_stream_retire(f.allocator, f.streams[0]));
  LADE_EXPECT(!kept(&f, cached));
  device_fixture_free(&f, used);
  LADE_EXPECT(!kept(&f, used));
  device_fixture_close(&f);
}

/* ---- Threads and allocators that end ----------------------------------------------------------------------------- */

LADE_TEST(DeviceThreadCaches, ExitingThreadGivesItsBlocks) {
  device_fixture f;
  if (!open_caches(&f)) return;
  visitor v = {.f = &f, .run = visitor_keep};
  visitor_start(&v);
  visitor_end(&v);
  LADE_EXPECT(!kept(&f, v.block));
  LADE_EXPECT(f.allocator->thread_caches->first == NULL);
  LADE_EXPECT_EQ_UINT(f.allocator->thread_caches->quota_bytes, 0);
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, AllocatorEndsBeforeItsThreads) {
  device_fixture f;
  if (!open_caches(&f)) return;
  visitor v = {.f = &f, .run = visitor_keep, .stays = true};
  visitor_start(&v);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_close(&f);
  visitor_end(&v);
  for (int i = 0; i < 3; i++) { /* a thread's list is cleaned, and no old cache is taken for a new one */
    if (!open_caches(&f)) return;
    device_fixture second;
    if (!open_caches(&second)) return;
    for (int k = 0; k < 3; k++) {
      device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
      device_fixture_free(&second, device_fixture_alloc(&second, 1000, 0));
    }
    LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.allocated, 3);
    device_fixture_close(&f);
    device_fixture_close(&second);
  }
}

LADE_TEST(DeviceThreadCaches, ThreadsExitWhileTheAllocatorEnds) {
  enum { ROUNDS = 20, THREADS = 3 };
  for (int round = 0; round < ROUNDS; round++) {
    device_fixture f;
    visitor v[THREADS];
    if (!open_caches(&f)) return;
    for (int i = 0; i < THREADS; i++) {
      v[i] = (visitor){.f = &f, .run = visitor_keep, .stays = true};
      visitor_start(&v[i]);
    }
    for (int i = 0; i < THREADS; i++) pthread_barrier_wait(&v[i].done);
    device_fixture_close(&f); /* while they exit */
    for (int i = 0; i < THREADS; i++) {
      pthread_join(v[i].thread, NULL);
      pthread_barrier_destroy(&v[i].done);
    }
  }
}

LADE_TEST(DeviceThreadCaches, DestroyIsRefusedForBlocksInUseAlone) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 blocks of 1024 bytes are handed out");
  device_fixture_free(&f, block);
  LADE_EXPECT(kept(&f, block));
  device_fixture_close(&f);
}

/* A visitor that the kernel does not help calls the owner, who does the visitor's work (base/asym_lock.h). */
LADE_TEST(DeviceThreadCaches, CalledOwnerGivesItsBlocks) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, block);
  ladei_device_thread_cache *cache = f.allocator->thread_caches->first;
  ladei_lock_acquire(&f.allocator->lock);
  atomic_store(&cache->asym_lock.wanted, LADEI_ASYM_LOCK_CALLED);
  ladei_lock_release(&f.allocator->lock);
  char *again = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_EQ_PTR(again, block); /* from the pools */
  LADE_EXPECT(atomic_load(&cache->asym_lock.heavy));
  LADE_EXPECT_EQ_UINT(kept_bytes(&f), 0);
  device_fixture_free(&f, again);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT(kept(&f, block));
  device_fixture_close(&f);
}

LADE_TEST(DeviceThreadCaches, ForkedChildLeavesThemAlone) {
  device_fixture f;
  if (!open_caches(&f)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, block);
  pid_t child = fork();
  if (child == 0) {
    void *mine = NULL;
    bool right = lade_device_alloc(f.allocator, 1000, f.streams[0], &mine) == LADE_ERR_FORKED &&
                 lade_device_free(f.allocator, block) == LADE_ERR_FORKED && kept(&f, block);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  LADE_ASSERT(child > 0 && waitpid(child, &status, 0) == child);
  LADE_EXPECT_EQ_INT(status, 0);
  device_fixture_close(&f);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

LADE_TEST(DeviceThreadCaches, OnePolicyAtATime) {
  device_fixture f;
  lade_device_options options;
  lade_device_allocator *allocator = NULL;
  if (!open_caches(&f)) return;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_THREAD_CACHES | LADE_DEVICE_REFERENCE;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &allocator));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.flags");
  LADE_EXPECT_OK(lade_device_configure(f.allocator, NULL)); /* it keeps its caches */
  char *block = device_fixture_alloc(&f, 1000, 0);
  device_fixture_free(&f, block);
  LADE_EXPECT(kept(&f, block));
  LADE_EXPECT_OK(lade_device_configure(f.allocator, NULL));
  LADE_EXPECT(!kept(&f, block));
  device_fixture_close(&f);
}
