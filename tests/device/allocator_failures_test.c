/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the driver fails once, those that give back included: the allocator stays whole and loses nothing. */
#include "device/allocator.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"

typedef struct scenario {
  void (*run)(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first);
  bool expandable;
} scenario;

/* Remembers the first error; the scenario goes on and cleans up. */
static void note(lade_status *first, lade_status status) {
  if (*first == LADE_OK) *first = status;
}

static void scenario_blocks(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  static const size_t sizes[] = {1000, 3 * MIB, 30 * MIB, 700, 50 * MIB};
  void *blocks[5] = {NULL};
  for (int i = 0; i < 5; i++) {
    note(first, lade_device_alloc(allocator, sizes[i], streams[i % 2], &blocks[i]));
    LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
    if (i % 2 == 1) note(first, lade_device_record_stream(allocator, blocks[i], streams[0]));
  }
  for (int i = 0; i < 5; i++) note(first, lade_device_free(allocator, blocks[i]));
  void *large = NULL;
  note(first, lade_device_alloc(allocator, 110 * MIB, streams[1], &large)); /* flushes */
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  note(first, lade_device_free(allocator, large));
  note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
}

static const lade_device_pool_id pool_one = {1, 0};

/* A capture with frees that are put off, a checkpoint set while blocks live on, the pool's end. */
static void scenario_pools(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *blocks[3] = {NULL};
  LADE_EXPECT_OK(lade_device_pool_begin(allocator, pool_one, NULL, 0));
  for (int i = 0; i < 3; i++) note(first, lade_device_alloc(allocator, (size_t)(i + 1) * MIB, streams[0], &blocks[i]));
  note(first, lade_device_record_stream(allocator, blocks[1], streams[1]));
  note(first, lade_device_free(allocator, blocks[1]));
  LADE_EXPECT_OK(lade_device_pool_end(allocator, pool_one));
  note(first, lade_device_record_stream(allocator, blocks[2], streams[1]));
  note(first, lade_device_free(allocator, blocks[2]));
  void *outside = NULL;
  note(first, lade_device_alloc(allocator, 1000, streams[0], &outside));
  note(first, lade_device_free(allocator, outside));
  note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  note(first, lade_device_checkpoint_get(allocator, pool_one, &checkpoint));
  if (checkpoint != NULL) note(first, lade_device_checkpoint_set(allocator, checkpoint, &restored));
  lade_device_checkpoint_destroy(checkpoint);
  lade_device_restored_destroy(restored);
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  note(first, lade_device_free(allocator, blocks[0]));
  LADE_EXPECT_OK(lade_device_pool_release(allocator, pool_one));
}

static void *capture_nothing(void *user) { return user; }

/* Memory for another process, which is this one. */
static void share(lade_device_allocator *allocator, const void *block, lade_status *first) {
  lade_device_ipc_handle handle;
  size_t offset = 0;
  void *base = NULL;
  lade_status status = lade_device_ipc_export(allocator, block, &handle, &offset);
  note(first, status);
  if (status == LADE_OK) note(first, lade_device_ipc_open(allocator, &handle, &base));
  if (base == NULL) return;
  status = lade_device_ipc_close(allocator, base);
  note(first, status);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_device_ipc_close(allocator, base));
}

static void scenario_sharing(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *block = NULL;
  note(first, lade_device_alloc(allocator, 3 * MIB, streams[1], &block));
  if (block != NULL) share(allocator, block, first);
  note(first, lade_device_free(allocator, block));
}

/* History, snapshots, peers, streams that end. */
static void scenario_others(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  lade_device_history_options options;
  lade_device_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALL;
  options.max_entries = 8;
  options.capture = capture_nothing;
  options.user = &options;
  note(first, lade_device_history_set(allocator, &options));
  void *block = NULL;
  note(first, lade_device_alloc(allocator, 3 * MIB, streams[1], &block));
  note(first, lade_device_peer_add(allocator, 1));
  note(first, lade_device_annotate(allocator, "note"));
  lade_device_snapshot *snapshot = NULL;
  note(first, lade_device_snapshot_take(allocator, &snapshot));
  lade_device_snapshot_destroy(snapshot);
  size_t largest = 0;
  note(first, lade_device_largest_get(allocator, &largest));
  note(first, lade_device_record_stream(allocator, block, streams[0]));
  note(first, lade_device_free(allocator, block));
  note(first, lade_device_stream_retire(allocator, streams[0]));
  note(first, lade_device_history_set(allocator, NULL));
}

/* An allocation at a time when memory is there: the first attempt may meet the failing call, the second may not. */
static void *alloc_sure(lade_device_allocator *allocator, size_t bytes, lade_stream stream, lade_status *first) {
  void *block = NULL;
  lade_status status = lade_device_alloc(allocator, bytes, stream, &block);
  note(first, status);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_device_alloc(allocator, bytes, stream, &block));
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

/* Where the driver refuses it, it takes it the second time. */
static void stream_drop(lade_runtime *runtime, lade_stream stream, lade_status *first) {
  lade_status status = lade_stream_destroy(runtime, stream);
  note(first, status);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
}

static lade_status scenario_run(lade_runtime *runtime, void *user) {
  const scenario *which = user;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = which->expandable;
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
      usable_expect(allocator, streams, &status);
      lade_status destroyed = lade_device_allocator_destroy(allocator, true);
      note(&status, destroyed);
      if (destroyed != LADE_OK) LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
    }
    stream_drop(runtime, streams[1], &status);
  }
  stream_drop(runtime, streams[0], &status);
  return status;
}

static void failures_run(scenario which) {
  support_failure_options options = {.releases_too = true};
  support_for_each_failure("sim", scenario_run, &options, &which);
}

LADE_TEST(DeviceFailures, PlainSegmentsLoseNothing) { failures_run((scenario){scenario_blocks, false}); }

LADE_TEST(DeviceFailures, ExpandableSegmentsLoseNothing) { failures_run((scenario){scenario_blocks, true}); }

LADE_TEST(DeviceFailures, PrivatePoolsLoseNothing) { failures_run((scenario){scenario_pools, false}); }

LADE_TEST(DeviceFailures, SharingLosesNothing) { failures_run((scenario){scenario_sharing, false}); }

LADE_TEST(DeviceFailures, OtherCallsLoseNothing) { failures_run((scenario){scenario_others, false}); }

LADE_TEST(DeviceFailures, NorBesideExpandableSegments) { failures_run((scenario){scenario_others, true}); }
