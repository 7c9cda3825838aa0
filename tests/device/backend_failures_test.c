/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the driver fails once under each backend: nothing is lost, and the allocator stays usable. */
#include "device/allocator.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/runtimes.h"

static void note(lade_status *first, lade_status status) {
  if (*first == LADE_OK) *first = status;
}

/* An uncached free is the driver's own: refused, it is repeated. */
static void block_drop(lade_device_allocator *allocator, void *block, lade_status *first) {
  lade_status status = lade_device_free(allocator, block);
  note(first, status);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_device_free(allocator, block));
}

static void scenario_blocks(lade_device_allocator *allocator, const lade_stream *streams, lade_status *first) {
  void *blocks[4] = {NULL};
  for (int i = 0; i < 4; i++) {
    note(first, lade_device_alloc(allocator, (size_t)(i + 1) * MIB, streams[i % 2], &blocks[i]));
    LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
    if (i % 2 == 1) note(first, lade_device_record_stream(allocator, blocks[i], streams[0]));
  }
  block_drop(allocator, blocks[1], first);
  block_drop(allocator, blocks[0], first);
  void *large = NULL;
  note(first, lade_device_alloc(allocator, 120 * MIB, streams[0], &large)); /* waits for all, once */
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  block_drop(allocator, large, first);
  note(first, lade_device_stream_retire(allocator, streams[1]));
  block_drop(allocator, blocks[2], first);
  block_drop(allocator, blocks[3], first);
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  size_t largest;
  note(first, lade_device_stats_get(allocator, &stats));
  note(first, lade_device_stats_reset_peak(allocator));
  note(first, lade_device_largest_get(allocator, &largest));
  note(first, lade_device_peer_add(allocator, 1));
  note(first, lade_device_empty_cache(allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
}

/* Where the driver refuses it, it takes it the second time. */
static void stream_drop(lade_runtime *runtime, lade_stream stream, lade_status *first) {
  lade_status status = lade_stream_destroy(runtime, stream);
  note(first, status);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
}

static lade_status scenario_run(lade_runtime *runtime, void *user) {
  const lade_device_options *options = user;
  lade_stream streams[2];
  lade_status status = lade_stream_create(runtime, 0, &streams[0]);
  if (status != LADE_OK) return status;
  status = lade_stream_create(runtime, 0, &streams[1]);
  if (status == LADE_OK) {
    lade_device_allocator *allocator = NULL;
    status = lade_device_allocator_create(runtime, 0, options, &allocator);
    if (status == LADE_OK) {
      scenario_blocks(allocator, streams, &status);
      lade_status destroyed = lade_device_allocator_destroy(allocator, true);
      note(&status, destroyed);
      if (destroyed != LADE_OK) LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
    }
    stream_drop(runtime, streams[1], &status);
  }
  stream_drop(runtime, streams[0], &status);
  return status;
}

static void run(uint32_t backend, uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.backend = backend;
  options.flags = flags;
  options.max_bytes = 128 * MIB;
  support_failure_options failures = {.releases_too = true};
  support_for_each_failure("sim", scenario_run, &failures, &options);
}

LADE_TEST(BackendFailures, CudaMallocAsyncLosesNothing) { run(LADE_DEVICE_CUDA_MALLOC_ASYNC, 0); }

LADE_TEST(BackendFailures, UncachedModeLosesNothing) { run(LADE_DEVICE_NATIVE, LADE_DEVICE_UNCACHED); }
