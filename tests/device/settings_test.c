/* SPDX-License-Identifier: Apache-2.0 */
/* Settings and limits of a device allocator: what is refused, and what those change that no trace can set. */
#include <string.h>

#include "device/api/device.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

/* The refusal of options that are wrong in one field. */
static void expect_refused(device_fixture *f, const lade_device_options *options, const char *field) {
  lade_device_allocator *allocator = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f->runtime, 0, options, &allocator));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, field);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_configure(f->allocator, options));
  LADE_EXPECT_EQ_PTR(allocator, NULL);
}

LADE_TEST(DeviceSettings, BadFieldsAreNamed) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = 20 * MIB;
  expect_refused(&f, &options, "max_split_bytes");
  lade_device_options_init(&options);
  options.max_unsplit_slack_bytes = 20 * MIB - 1;
  expect_refused(&f, &options, "max_unsplit_slack_bytes");
  lade_device_options_init(&options);
  options.large_segment_bytes = 10 * MIB;
  expect_refused(&f, &options, "large_segment_bytes");
  lade_device_options_init(&options);
  options.large_segment_bytes = 12 * MIB + 1;
  expect_refused(&f, &options, "large_segment_bytes");
  lade_device_options_init(&options);
  options.memory_fraction = 1.5;
  expect_refused(&f, &options, "memory_fraction");
  lade_device_options_init(&options);
  options.collection_threshold = 1.0;
  expect_refused(&f, &options, "collection_threshold");
  lade_device_options_init(&options);
  options.backend = 99;
  expect_refused(&f, &options, "options.backend is 99; expected a constant of lade_device_backend");
  lade_device_options_init(&options);
  options.roundup_divisions[3] = 5;
  expect_refused(&f, &options, "roundup_divisions[3]");
  device_fixture_close(&f);
}

/* A cached oversize block serves a request that leaves `slack` of it unused, or a little less. */
LADE_TEST(DeviceSettings, SlackOfUnsplitBlocksReplacesTwentyMiB) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_split_bytes = 100 * MIB;
  options.max_unsplit_slack_bytes = 64 * MIB;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  char *whole = device_fixture_alloc(&f, 200 * MIB, 0);
  device_fixture_free(&f, whole);
  char *beyond = device_fixture_alloc(&f, 136 * MIB, 0);
  LADE_EXPECT(beyond != whole);
  char *within = device_fixture_alloc(&f, 136 * MIB + 512, 0);
  LADE_EXPECT_EQ_PTR(within, whole);
  device_fixture_free(&f, beyond);
  device_fixture_free(&f, within);
  device_fixture_close(&f);
}

/* Plain segments below 10 MiB, and the granules of expandable ones; from 10 MiB on and below 1 MiB nothing changes. */
LADE_TEST(DeviceSettings, LargeSegmentsHaveTheSizeThatIsSet) {
  for (uint32_t expandable = 0; expandable <= 1; expandable++) {
    lade_device_options options;
    lade_device_options_init(&options);
    options.large_segment_bytes = 12 * MIB;
    options.expandable_segments = expandable;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    lade_test_context("expandable %u", expandable);
    char *block = device_fixture_alloc(&f, 5 * MIB, 0);
    LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 12 * MIB);
    char *larger = device_fixture_alloc(&f, 30 * MIB, 0); /* behind the first: to 35 of 36 MiB, or by itself */
    LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, (expandable != 0 ? 36 : 42) * MIB);
    char *small = device_fixture_alloc(&f, 512, 0);
    LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, (expandable != 0 ? 38 : 44) * MIB);
    device_fixture_free(&f, block);
    device_fixture_free(&f, larger);
    device_fixture_free(&f, small);
    device_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(DeviceSettings, AFractionInTheOptionsLimitsFromTheStart) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.memory_fraction = 0.25;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  void *pointer = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 258 * MIB, f.streams[0], &pointer));
  char *all = device_fixture_alloc(&f, 256 * MIB, 0);
  device_fixture_free(&f, all);
  /* Configuring without a fraction leaves the limit. */
  LADE_EXPECT_OK(lade_device_configure(f.allocator, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 258 * MIB, f.streams[0], &pointer));
  device_fixture_close(&f);
}

/* The slack that is in force by default was no slack that could be set. */
LADE_TEST(DeviceSettings, SettingsInForceCanBeSetAgain) {
  lade_device_options options[3];
  for (int i = 0; i < 3; i++) lade_device_options_init(&options[i]);
  options[1].max_split_bytes = 64 * MIB;
  options[1].max_unsplit_slack_bytes = 48 * MIB;
  options[1].large_segment_bytes = 12 * MIB;
  options[2].memory_fraction = 0.5;
  options[2].collection_threshold = 0.25;
  options[2].max_bytes = 100 * MIB;
  options[2].roundup_divisions[0] = 4;
  options[2].flags = LADE_DEVICE_REFUSE_BEYOND_LIMIT | LADE_DEVICE_THREAD_CACHES;
  for (int i = 0; i < 3; i++) {
    device_fixture f;
    lade_device_options before, after;
    if (!device_fixture_open(&f, "sim", GIB, &options[i])) return;
    lade_device_options_init(&before);
    lade_device_options_init(&after);
    LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &before));
    LADE_EXPECT_OK(lade_device_configure(f.allocator, &before));
    LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &after));
    LADE_EXPECT(memcmp(&before, &after, sizeof before) == 0);
    device_fixture_close(&f);
  }
}

/* What is as at the creation was added behind the check. */
/* An event inside the free covers the block whatever the streams do later; a batch's event comes with the next search. */
LADE_TEST_P(DeviceSettings, ThePolicyOfPyTorchRecordsAnEventInEachFree, support_soft_runtimes, runtime) {
  static const struct {
    uint32_t flags, event_batch, in_force;
    bool reused; /* by the next request, which finds other memory, too */
  } rows[] = {
      {0, 0, 16, false}, {0, 1, 1, true}, {LADE_DEVICE_REFERENCE, 0, 1, true}, {LADE_DEVICE_REFERENCE, 2, 2, false}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    lade_device_options options, in_force;
    device_fixture f;
    lade_test_context("row %zu", i);
    lade_device_options_init(&options);
    options.flags = rows[i].flags;
    options.event_batch = rows[i].event_batch;
    if (!device_fixture_open(&f, runtime, GIB, &options)) return;
    char *block = device_fixture_alloc(&f, 16, 0);
    LADE_EXPECT_OK(lade_device_record_stream(f.allocator, block, f.streams[1]));
    device_fixture_free(&f, block);
    LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
    char *after = device_fixture_alloc(&f, 16, 0);
    LADE_EXPECT_EQ_INT(after == block, rows[i].reused);
    lade_device_options_init(&in_force);
    LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &in_force));
    LADE_EXPECT_EQ_UINT(in_force.event_batch, rows[i].in_force);
    device_fixture_free(&f, after);
    device_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(DeviceSettings, ConfiguringMixesNoPolicies) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_THREAD_CACHES;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  options.flags = LADE_DEVICE_REFERENCE;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_configure(f.allocator, &options));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "at most one of");
  LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &options));
  LADE_EXPECT_EQ_UINT(options.flags, LADE_DEVICE_THREAD_CACHES);
  device_fixture_close(&f);
}

/* It was a limit, which PyTorch 2.11 does not have then. */
LADE_TEST(DeviceSettings, TheWholeDeviceIsNoLimitInTheReference) {
  static const uint32_t flags[] = {LADE_DEVICE_REFERENCE, LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE};
  for (int older = 0; older < 2; older++) {
    lade_device_options options;
    lade_device_options_init(&options);
    options.flags = flags[older];
    options.collection_threshold = 0.5;
    options.memory_fraction = 1.0;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    LADE_EXPECT_EQ_INT(f.allocator->heap.ages_tick, older);
    LADE_EXPECT_EQ_INT(ladei_device_fraction_limit(f.allocator) == UINT64_MAX, !older);
    LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.5));
    LADE_EXPECT(f.allocator->heap.ages_tick);
    device_fixture_close(&f);
  }
}
