/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Golden vectors: small cases with the results of PyTorch's allocator, through the public calls. A
 * name per group: rounding, divisions, split, oversize, stream, foreign stream, merge, pools, checkpoint, stats; then
 * limits met exactly.
 */
#include "device/heap/size_rules.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

#define KIB ((size_t)1 << 10)

static const lade_device_pool_id pool_one = {1, 0};

typedef struct vector {
  size_t requested;
  size_t rounded;
  size_t segment;
} vector;

/* What one allocation from an empty cache takes. */
static void vectors_expect(const vector *vectors, size_t count, uint64_t divisions) {
  lade_device_options options;
  lade_device_options_init(&options);
  for (int i = 0; i < 16; i++) options.roundup_divisions[i] = divisions;
  for (size_t i = 0; i < count; i++) {
    lade_test_context("requested %zu, divisions %llu", vectors[i].requested, (unsigned long long)divisions);
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    char *a = device_fixture_alloc(&f, vectors[i].requested, 0);
    lade_device_snapshot *snapshot = NULL;
    LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
    lade_device_stats stats = device_fixture_stats(&f);
    LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.current, vectors[i].requested);
    if (vectors[i].segment != 0) LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, vectors[i].segment);
    /* The block may be larger where the rest is not worth a split; the rounded request shows in what is split off. */
    bool split = snapshot->block_count == 2;
    if (split) LADE_EXPECT_EQ_UINT(snapshot->blocks[0].bytes, vectors[i].rounded);
    if (!split) LADE_EXPECT_LE_UINT(snapshot->blocks[0].bytes - vectors[i].rounded, MIB);
    lade_device_snapshot_destroy(snapshot);
    device_fixture_free(&f, a);
    device_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(vector_Rounding, BlocksAndSegments) {
  static const vector vectors[] = {
      {1, 512, 2 * MIB},
      {512, 512, 2 * MIB},
      {513, 1024, 2 * MIB},
      {MIB, MIB, 2 * MIB},
      {MIB + 1, 1049088, 20 * MIB},
      {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
      {10 * MIB - 1, 10 * MIB, 10 * MIB},
      {10 * MIB + 1, 10486272, 12 * MIB},
      {20 * MIB + 1, 20972032, 22 * MIB},
  };
  vectors_expect(vectors, sizeof vectors / sizeof vectors[0], 0);
}

LADE_TEST(vector_Divisions, StepsOfPowersOfTwo) {
  static const vector by_four[] = {{1200, 1536, 0},
                                   {2048, 2048, 0},
                                   {2049, 2560, 0},
                                   {2500, 2560, 0},
                                   {1048577, 1310720, 20 * MIB},
                                   {5000001, 5242880, 20 * MIB}};
  static const vector by_two[] = {{1025, 1536, 0}};
  static const vector by_eight[] = {{4097, 4608, 0}, {100000000, 100663296, 96 * MIB}};
  vectors_expect(by_four, sizeof by_four / sizeof by_four[0], 4);
  vectors_expect(by_two, 1, 2);
  vectors_expect(by_eight, 2, 8);
  /* Seven is no setting; in the rule by itself it acts like four. */
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
  for (int i = 0; i < LADEI_DEVICE_DIVISION_ENTRIES; i++) settings.divisions[i] = 7;
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 3000), 3072);
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 5000), 5120);
  LADE_EXPECT_EQ_SIZE(ladei_device_round_to_division(1200, 4), 1280);
}

LADE_TEST(vector_Split, RestsAboveOneMebibyteAreKept) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 5 * MIB, 0)); /* a free block of 20 MiB */
  char *a = device_fixture_alloc(&f, 19 * MIB, 0);               /* leaves exactly 1 MiB: no split */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.current, 20 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split.all.current, 0);
  device_fixture_free(&f, a);
  a = device_fixture_alloc(&f, 19 * MIB - 512, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.current, 19 * MIB - 512);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split_bytes.all.current, MIB + 512);
  device_fixture_free(&f, a);
  char *low = device_fixture_alloc(&f, MIB, 0);
  char *high = device_fixture_alloc(&f, MIB, 0);
  LADE_EXPECT_EQ_PTR(high, low + MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.small_pool.current, 1);
  device_fixture_free(&f, low);
  device_fixture_free(&f, high);
  device_fixture_close(&f);
}

static bool oversize_open(device_fixture *f, size_t memory_bytes, uint64_t limit) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = limit;
  return device_fixture_open(f, "sim", memory_bytes, &options);
}

LADE_TEST(vector_Oversize, ServesWhatNearlyFillsIt) {
  device_fixture f;
  if (!oversize_open(&f, GIB, 200 * MIB)) return;
  char *cached = device_fixture_alloc(&f, 256 * MIB, 0);
  device_fixture_free(&f, cached);
  char *a = device_fixture_alloc(&f, 240 * MIB, 0); /* a hit, not split */
  LADE_EXPECT_EQ_PTR(a, cached);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.current, 256 * MIB);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, 230 * MIB, 0); /* 256 >= 230 + 20: a miss */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 2);
  char *c = device_fixture_alloc(&f, 100 * MIB, 0); /* below the limit: a miss */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 3);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

LADE_TEST(vector_Stream, ReuseOnTheSameStreamOnly) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 4000, 0);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, 4000, 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 2);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 4000, 0), a);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(vector_ForeignStream, BlockIsActiveUntilItsEventIsDone) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *a = device_fixture_alloc(&f, 4096, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 1);
  char *b = device_fixture_alloc(&f, 4096, 0);
  LADE_EXPECT_NE_PTR(b, a);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2);
  device_fixture_release(&f, 1);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 4096, 0), a);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(vector_Merge, OuterTwoThenTheMiddle) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *parts[3] = {device_fixture_alloc(&f, 512 * KIB, 0), device_fixture_alloc(&f, 512 * KIB, 0),
                    device_fixture_alloc(&f, MIB, 0)}; /* all of a segment */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  device_fixture_free(&f, parts[0]);
  device_fixture_free(&f, parts[2]);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split.all.current, 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split_bytes.all.current, 1536 * KIB);
  device_fixture_free(&f, parts[1]);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split.all.current, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).inactive_split_bytes.all.current, 0);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_SIZE(snapshot->block_count, 1);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_close(&f);
}

LADE_TEST(vector_Pools, GoWithTheirLastBlock) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  for (int live = 0; live < 2; live++) {
    LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, NULL, 0));
    char *a = device_fixture_alloc(&f, 4096, 0);
    if (!live) device_fixture_free(&f, a);
    LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
    device_fixture_empty_cache(&f);
    if (live) { /* the pool is there until its block was freed and the cache flushed again */
      LADE_EXPECT(device_fixture_pool_has(f.allocator, pool_one, (void *[]){a}, 1));
      device_fixture_free(&f, a);
      LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
      device_fixture_empty_cache(&f);
    }
    LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 0);
    LADE_EXPECT(!device_fixture_pool_has(f.allocator, pool_one, NULL, 0));
  }
  device_fixture_close(&f);
}

LADE_TEST(vector_Checkpoint, UsedFreeUsedComesBack) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, NULL, 0));
  char *used = device_fixture_alloc(&f, 4096, 0);
  char *middle = device_fixture_alloc(&f, 8192, 0);
  char *last = device_fixture_alloc(&f, 4096, 0);
  device_fixture_free(&f, middle);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool_one, &checkpoint));
  device_fixture_free(&f, used);
  device_fixture_free(&f, last);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, NULL, 0));
  (void)device_fixture_alloc(&f, 100 * KIB, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  LADE_ASSERT(restored->created_count == 2 && restored->freed_count == 1);
  LADE_EXPECT_EQ_PTR(restored->created[0], used);
  LADE_EXPECT_EQ_PTR(restored->created[1], last);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_ASSERT_EQ_SIZE(snapshot->block_count, 4);
  static const size_t sizes[] = {4096, 8192, 4096, 2 * MIB - 16384};
  for (size_t i = 0; i < 4; i++) {
    LADE_EXPECT_EQ_UINT(snapshot->blocks[i].bytes, sizes[i]);
    LADE_EXPECT_EQ_UINT(snapshot->blocks[i].state,
                        i % 2 == 0 ? LADE_DEVICE_BLOCK_ALLOCATED : LADE_DEVICE_BLOCK_INACTIVE);
  }
  lade_device_snapshot_destroy(snapshot);
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&f, used);
  device_fixture_free(&f, last);
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_close(&f);
}

LADE_TEST(vector_Stats, AggregateIsSmallAndLarge) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  support_random random;
  support_random_start(&random, 36);
  void *blocks[32] = {NULL};
  for (int i = 0; i < 500; i++) {
    size_t at = support_random_below(&random, 32);
    device_fixture_free(&f, blocks[at]); /* the check after each step recounts every gauge */
    blocks[at] = device_fixture_alloc(&f, support_random_size(&random, 4 * MIB), (int)(at % FIXTURE_STREAMS));
  }
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  uint64_t reserved = 0;
  for (size_t i = 0; i < snapshot->segment_count; i++) reserved += snapshot->segments[i].total_bytes;
  const lade_device_gauges *gauges = &snapshot->stats.reserved_bytes;
  LADE_EXPECT_EQ_UINT(gauges->all.current, reserved);
  LADE_EXPECT_EQ_UINT(gauges->all.current, gauges->small_pool.current + gauges->large_pool.current);
  gauges = &snapshot->stats.requested_bytes;
  LADE_EXPECT_EQ_UINT(gauges->all.allocated, gauges->small_pool.allocated + gauges->large_pool.allocated);
  lade_device_snapshot_destroy(snapshot);
  for (int i = 0; i < 32; i++) device_fixture_free(&f, blocks[i]);
  device_fixture_close(&f);
}

/* ---- Limits met exactly ------------------------------------------------------------------------------------------- */

LADE_TEST(vector_Collection, StopsAtTheTarget) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.collection_threshold = 0.5;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 100 * MIB, &options)) return;
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 1.0)); /* collection above 50 MiB */
  char *used = device_fixture_alloc(&f, 20 * MIB, 1);
  char *old = device_fixture_alloc(&f, 30 * MIB, 0);
  char *young = device_fixture_alloc(&f, 30 * MIB, 2);
  device_fixture_free(&f, old);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_free(&f, used);
  used = device_fixture_alloc(&f, 20 * MIB, 1); /* a search: `old` is older by one */
  device_fixture_free(&f, young);
  char *next = device_fixture_alloc(&f, 12 * MIB, 3); /* 82 MiB held, 32 too many: `old` alone does not do */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).device_frees, 2);
  device_fixture_free(&f, next);
  device_fixture_free(&f, used);
  device_fixture_close(&f);
  if (!device_fixture_open(&f, "sim", 100 * MIB, &options)) return;
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 1.0));
  used = device_fixture_alloc(&f, 20 * MIB, 1);
  old = device_fixture_alloc(&f, 30 * MIB, 0);
  young = device_fixture_alloc(&f, 30 * MIB, 2);
  device_fixture_free(&f, old);
  device_fixture_free(&f, used);
  used = device_fixture_alloc(&f, 20 * MIB, 1);
  device_fixture_free(&f, young);
  next = device_fixture_alloc(&f, 12 * MIB, 3); /* 80 MiB held, 30 too many: `old` is exactly that */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).device_frees, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, young)); /* still cached */
  device_fixture_free(&f, next);
  device_fixture_free(&f, used);
  device_fixture_close(&f);
}

LADE_TEST(vector_OversizeRelease, StopsAtTheRequest) {
  device_fixture f;
  if (!oversize_open(&f, 130 * MIB, 21 * MIB)) return;
  char *blocks[4];
  for (int i = 0; i < 4; i++) blocks[i] = device_fixture_alloc(&f, (size_t)(30 + 2 * (i % 2)) * MIB, 0);
  for (int i = 0; i < 4; i++) device_fixture_free(&f, blocks[i]);
  char *a = device_fixture_alloc(&f, 64 * MIB, 0); /* the two of 32 MiB, largest first, are exactly enough */
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.device_frees, 2);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, (64 + 2 * 30) * MIB);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}
