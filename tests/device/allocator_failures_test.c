/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Every call of the driver fails once, those that give back included: the allocator stays whole and
 * loses nothing, with every backend.
 */
#include "device/api/device.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"

typedef struct scenario {
  void (*run)(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first);
  bool expandable;
  uint32_t backend;
  uint32_t flags;
} scenario;

static void scenario_blocks(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  static const size_t sizes[] = {1000, 3 * MIB, 30 * MIB, 700, 50 * MIB};
  void *blocks[5] = {NULL};
  for (int i = 0; i < 5; i++) {
    support_note(first, lade_device_alloc(allocator, sizes[i], streams[i % 2], &blocks[i]));
    LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
    if (i % 2 == 1) support_note(first, lade_device_record_stream(allocator, blocks[i], streams[0]));
  }
  for (int i = 0; i < 5; i++) support_note(first, lade_device_free(allocator, blocks[i]));
  void *large = NULL;
  support_note(first, lade_device_alloc(allocator, 110 * MIB, streams[1], &large)); /* flushes */
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  support_note(first, lade_device_free(allocator, large));
  support_note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
}

static const lade_device_pool_id pool_one = {1, 0};

/* A capture with deferred frees, a checkpoint set while blocks live on, the pool's end. */
static void scenario_pools(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *blocks[3] = {NULL};
  LADE_EXPECT_OK(lade_device_pool_begin(allocator, pool_one, NULL, 0));
  for (int i = 0; i < 3; i++)
    support_note(first, lade_device_alloc(allocator, (size_t)(i + 1) * MIB, streams[0], &blocks[i]));
  support_note(first, lade_device_record_stream(allocator, blocks[1], streams[1]));
  support_note(first, lade_device_free(allocator, blocks[1]));
  LADE_EXPECT_OK(lade_device_pool_end(allocator, pool_one));
  support_note(first, lade_device_record_stream(allocator, blocks[2], streams[1]));
  support_note(first, lade_device_free(allocator, blocks[2]));
  void *outside = NULL;
  support_note(first, lade_device_alloc(allocator, 1000, streams[0], &outside));
  support_note(first, lade_device_free(allocator, outside));
  support_note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  support_note(first, lade_device_checkpoint_get(allocator, pool_one, &checkpoint));
  if (checkpoint != NULL) support_note(first, lade_device_checkpoint_set(allocator, checkpoint, &restored));
  lade_device_checkpoint_destroy(checkpoint);
  lade_device_restored_destroy(restored);
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  support_note(first, lade_device_free(allocator, blocks[0]));
  LADE_EXPECT_OK(lade_device_pool_release(allocator, pool_one));
}

/* Pools as objects: scopes, one that lends, one that splits nothing; what the program holds is never lost. */
static void scenario_objects(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  lade_device_pool_id ids[2];
  void *blocks[4] = {NULL};
  uint64_t scopes[2];
  for (int i = 0; i < 2; i++) {
    options.flags = i == 0 ? LADE_DEVICE_POOL_USE_ON_OOM : LADE_DEVICE_POOL_NO_SPLIT;
    LADE_EXPECT_OK(lade_device_pool_create(allocator, &options, &ids[i]));
  }
  LADE_EXPECT_OK(lade_device_scope_begin(allocator, ids[0], NULL, LADE_DEVICE_SCOPE_THREAD, &scopes[0]));
  support_note(first, lade_device_alloc(allocator, 40 * MIB, streams[0], &blocks[0]));
  LADE_EXPECT_OK(lade_device_scope_begin(allocator, ids[1], NULL, LADE_DEVICE_SCOPE_THREAD, &scopes[1]));
  for (int i = 1; i < 3; i++) support_note(first, lade_device_alloc(allocator, 3 * MIB, streams[1], &blocks[i]));
  LADE_EXPECT_OK(lade_device_scope_end(allocator, scopes[0]));
  LADE_EXPECT_OK(lade_device_scope_end(allocator, scopes[1]));
  support_note(first, lade_device_record_stream(allocator, blocks[1], streams[0]));
  for (int i = 0; i < 2; i++) support_note(first, lade_device_free(allocator, blocks[i]));
  support_note(first, lade_device_alloc(allocator, 70 * MIB, streams[1], &blocks[3])); /* what is lent goes back */
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  support_note(first, lade_device_free(allocator, blocks[2]));
  support_note(first, lade_device_pool_trim(allocator, ids[1], NULL, 0, NULL));
  support_note(first, lade_device_free(allocator, blocks[3]));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_device_pool_release(allocator, ids[i]));
  support_note(first, lade_device_empty_cache(allocator));
}

/* Caching off, frees held. */
static void scenario_switches(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *blocks[4] = {NULL};
  support_note(first, lade_device_alloc(allocator, 30 * MIB, streams[0], &blocks[0]));
  device_fixture_caching(allocator, false);
  for (int i = 1; i < 4; i++)
    support_note(first, lade_device_alloc(allocator, (size_t)i * MIB, streams[i % 2], &blocks[i]));
  support_note(first, lade_device_record_stream(allocator, blocks[1], streams[0]));
  for (int i = 0; i < 3; i++) support_note(first, lade_device_free(allocator, blocks[i]));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  device_fixture_caching(allocator, true);
  LADE_EXPECT_OK(lade_device_frees_hold(allocator, true));
  support_note(first, lade_device_free(allocator, blocks[3]));
  support_note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  support_note(first, lade_device_frees_hold(allocator, false));
}

static void *capture_nothing(void *user) { return user; }

/* Memory for another process, which is this one. */
static void share(lade_device_allocator *allocator, const void *block, lade_status *first) {
  lade_device_shared shared;
  void *there = NULL;
  lade_device_shared_init(&shared);
  lade_status status = lade_device_shared_export(allocator, block, &shared);
  support_note(first, status);
  if (status == LADE_OK) support_note(first, lade_device_shared_open(allocator, &shared, &there));
  lade_device_shared_release(&shared);
  if (there != NULL) SUPPORT_TWICE(first, lade_device_shared_close(allocator, there));
}

static void scenario_sharing(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *block = NULL;
  support_note(first, lade_device_alloc(allocator, 3 * MIB, streams[1], &block));
  if (block != NULL) share(allocator, block, first);
  support_note(first, lade_device_free(allocator, block));
}

/* History, snapshots, peers, streams that end. */
static void scenario_others(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALL;
  options.max_entries = 8;
  options.capture = capture_nothing;
  options.user = &options;
  support_note(first, lade_device_history_set(allocator, &options));
  void *block = NULL;
  support_note(first, lade_device_alloc(allocator, 3 * MIB, streams[1], &block));
  support_note(first, lade_device_peer_add(allocator, 1));
  support_note(first, lade_device_annotate(allocator, NULL, "note"));
  lade_device_snapshot *snapshot = NULL;
  support_note(first, lade_device_snapshot_take(allocator, NULL, &snapshot));
  lade_device_snapshot_destroy(snapshot);
  size_t free_bytes = 0, total_bytes = 0;
  support_note(first, lade_device_memory_get(allocator, &free_bytes, &total_bytes));
  support_note(first, lade_device_record_stream(allocator, block, streams[0]));
  support_note(first, lade_device_free(allocator, block));
  support_note(first, lade_device_stream_retire(allocator, streams[0]));
  support_note(first, lade_device_history_set(allocator, NULL));
}

/* An allocation at a time when memory is there: the first attempt may meet the failing call, the second may not. */
static void *alloc_sure(lade_device_allocator *allocator, size_t bytes, lade_stream stream, lade_status *first) {
  void *block = NULL;
  SUPPORT_TWICE(first, lade_device_alloc(allocator, bytes, stream, &block));
  return block;
}

/* After all that, it serves as if nothing had been. */
static void usable_expect(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  void *small = alloc_sure(allocator, 1000, streams[1], first);
  void *large = alloc_sure(allocator, 90 * MIB, streams[1], first);
  LADE_EXPECT_OK(lade_device_free(allocator, small));
  LADE_EXPECT_OK(lade_device_free(allocator, large));
}

/* The backends that cache nothing themselves: a free is the driver's own, and repeated where it is refused. */
static void scenario_backend(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *blocks[4] = {NULL};
  for (int i = 0; i < 4; i++) {
    support_note(first, lade_device_alloc(allocator, (size_t)(i + 1) * MIB, streams[i % 2], &blocks[i]));
    LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
    if (i % 2 == 1) support_note(first, lade_device_record_stream(allocator, blocks[i], streams[0]));
  }
  SUPPORT_TWICE(first, lade_device_free(allocator, blocks[1]));
  SUPPORT_TWICE(first, lade_device_free(allocator, blocks[0]));
  void *large = NULL;
  support_note(first, lade_device_alloc(allocator, 120 * MIB, streams[0], &large)); /* waits for all, once */
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  SUPPORT_TWICE(first, lade_device_free(allocator, large));
  support_note(first, lade_device_stream_retire(allocator, streams[1]));
  SUPPORT_TWICE(first, lade_device_free(allocator, blocks[2]));
  SUPPORT_TWICE(first, lade_device_free(allocator, blocks[3]));
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  support_note(first, lade_device_stats_get(allocator, &stats));
  support_note(first, lade_device_stats_reset(allocator, LADE_STATS_RESET_PEAKS));
  support_note(first, lade_device_peer_add(allocator, 1));
  support_note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
}

/* By file descriptors. */
static void scenario_descriptors(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *block = NULL;
  support_note(first, lade_device_alloc(allocator, 25 * MIB, streams[0], &block));
  if (block != NULL) share(allocator, block, first);
  support_note(first, lade_device_free(allocator, block));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
}

static void scenario_grown_pool(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  void *blocks[2] = {NULL};
  lade_status begun = lade_device_pool_begin(allocator, pool_one, streams, 1);
  support_note(first, begun);
  if (begun != LADE_OK) return;
  support_note(first, lade_device_alloc(allocator, 25 * MIB, streams[0], &blocks[0]));
  support_note(first, lade_device_alloc(allocator, MIB, streams[0], &blocks[1]));
  LADE_EXPECT_OK(lade_device_pool_end(allocator, pool_one));
  LADE_EXPECT_OK(lade_device_checkpoint_get(allocator, pool_one, &checkpoint));
  for (int i = 0; i < 2; i++) support_note(first, lade_device_free(allocator, blocks[i]));
  LADE_EXPECT_OK(lade_device_checkpoint_set(allocator, checkpoint, &restored));
  for (size_t i = 0; i < restored->created_count; i++)
    LADE_EXPECT_OK(lade_device_free(allocator, restored->created[i]));
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  LADE_EXPECT_OK(lade_device_pool_release(allocator, pool_one));
  support_note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
}

static void scenario_expandable(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  scenario_descriptors(allocator, streams, first);
  scenario_grown_pool(allocator, streams, first);
}

static lade_status scenario_run(lade_runtime *runtime, void *user) {
  const scenario *which = user;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = which->expandable;
  options.backend = which->backend;
  options.flags = which->flags;
  options.max_bytes = 128 * MIB;
  lade_stream streams[2];
  lade_status status = lade_stream_create(runtime, 0, &streams[0]);
  if (status != LADE_OK) return status;
  status = lade_stream_create(runtime, 0, &streams[1]);
  if (status == LADE_OK) {
    lade_device_allocator *allocator = NULL;
    status = lade_device_allocator_create(runtime, 0, &options, &allocator);
    if (status == LADE_OK) {
      which->run(allocator, streams, &status);
      if (which->run != scenario_backend) usable_expect(allocator, streams, &status);
      SUPPORT_TWICE(&status, lade_device_allocator_destroy(allocator, true));
    }
    SUPPORT_TWICE(&status, lade_stream_destroy(runtime, streams[1]));
  }
  SUPPORT_TWICE(&status, lade_stream_destroy(runtime, streams[0]));
  return status;
}

static void failures_run(scenario which) {
  support_failure_options options = {.releases_too = true};
  support_for_each_failure("sim", scenario_run, &options, &which);
}

LADE_TEST(DeviceFailures, PlainSegmentsLoseNothing) { failures_run((scenario){.run = scenario_blocks}); }

LADE_TEST(DeviceFailures, ExpandableSegmentsLoseNothing) {
  failures_run((scenario){.run = scenario_blocks, .expandable = true});
}

LADE_TEST(DeviceFailures, PrivatePoolsLoseNothing) { failures_run((scenario){.run = scenario_pools}); }

LADE_TEST(DeviceFailures, PoolObjectsLoseNothing) { failures_run((scenario){.run = scenario_objects}); }

LADE_TEST(DeviceFailures, CachingOffAndHoldsLoseNothing) { failures_run((scenario){.run = scenario_switches}); }

LADE_TEST(DeviceFailures, CachingOffAndHoldsOfGranulesLoseNothing) {
  failures_run((scenario){.run = scenario_switches, .expandable = true});
}

LADE_TEST(DeviceFailures, SharingLosesNothing) { failures_run((scenario){.run = scenario_sharing}); }

LADE_TEST(DeviceFailures, OtherCallsLoseNothing) { failures_run((scenario){.run = scenario_others}); }

LADE_TEST(DeviceFailures, NorBesideExpandableSegments) {
  failures_run((scenario){.run = scenario_others, .expandable = true});
}

LADE_TEST(DeviceFailures, CudaMallocAsyncLosesNothing) {
  failures_run((scenario){.run = scenario_backend, .backend = LADE_DEVICE_CUDA_MALLOC_ASYNC});
}

LADE_TEST(DeviceFailures, UncachedModeLosesNothing) {
  failures_run((scenario){.run = scenario_backend, .flags = LADE_DEVICE_UNCACHED});
}

LADE_TEST(DeviceFailures, ExpandableSharingAndPoolsLoseNothing) {
  failures_run((scenario){.run = scenario_expandable,
                          .expandable = true,
                          .flags = LADE_DEVICE_EXPANDABLE_IPC | LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS});
}
