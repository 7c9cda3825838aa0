/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the driver fails once, those that give back included: the allocator stays whole and loses nothing. */
#include "device/allocator.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"

typedef struct scenario {
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

LADE_TEST(DeviceFailures, PlainSegmentsLoseNothing) {
  scenario plain = {false};
  support_failure_options options = {.releases_too = true};
  support_for_each_failure("sim", scenario_run, &options, &plain);
}

LADE_TEST(DeviceFailures, ExpandableSegmentsLoseNothing) {
  scenario expandable = {true};
  support_failure_options options = {.releases_too = true};
  support_for_each_failure("sim", scenario_run, &options, &expandable);
}
