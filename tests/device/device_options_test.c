/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of a device allocator with all others: blocks of many sizes on two streams, with the promises of the header as the
 * model: places, sizes, caps, counts, and that no block has a byte of another.
 */
#include <string.h>

#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"

/* Bits of doubles. */
#define HALF     UINT64_C(0x3fe0000000000000)
#define ONE      UINT64_C(0x3ff0000000000000)
#define NEXT_ONE UINT64_C(0x3ff0000000000001)
#define LESS_ONE UINT64_C(0x3fefffffffffffff)
#define MINUS    UINT64_C(0xbff0000000000000)
#define NO_ONE   UINT64_C(0x7ff8000000000000)

static const support_option options[] = {
    SUPPORT_OPTION(lade_device_options, max_bytes, 0, 128 * MIB, UINT64_MAX),
    SUPPORT_OPTION(lade_device_options, event_batch, 0, 1, UINT32_MAX),
    SUPPORT_OPTION(lade_device_options, expandable_segments, 0, 1),
    SUPPORT_OPTION(lade_device_options, max_split_bytes, 0, 20 * MIB + 1, UINT64_MAX),
    SUPPORT_OPTION(lade_device_options, collection_threshold, 0, HALF, LESS_ONE),
    SUPPORT_OPTION(lade_device_options, roundup_divisions[0], 0, 1, 4, UINT64_C(1) << 63),
    SUPPORT_OPTION(lade_device_options, roundup_divisions[1], 0, 1, 2),
    SUPPORT_OPTION(lade_device_options, max_unsplit_slack_bytes, 0, 20 * MIB, UINT64_MAX),
    SUPPORT_OPTION(lade_device_options, memory_fraction, 0, HALF, ONE),
    SUPPORT_OPTION(lade_device_options, backend, 0, 0, 1),
    SUPPORT_OPTION(lade_device_options, flags, 0, 1, 2 | 4, 8, 16 | 128, 32, 64 | 2, 512 | 256 | 8),
    SUPPORT_OPTION(lade_device_options, large_segment_bytes, 0, 12 * MIB, 10 * MIB + 512, 32 * MIB),
};
static const support_option wrong[] = {
    SUPPORT_OPTION(lade_device_options, expandable_segments, 2),
    SUPPORT_OPTION(lade_device_options, max_split_bytes, 1, 20 * MIB),
    SUPPORT_OPTION(lade_device_options, collection_threshold, ONE, MINUS, NO_ONE),
    SUPPORT_OPTION(lade_device_options, roundup_divisions[15], 3, UINT64_MAX),
    SUPPORT_OPTION(lade_device_options, max_unsplit_slack_bytes, 1, 20 * MIB - 1),
    SUPPORT_OPTION(lade_device_options, memory_fraction, NEXT_ONE, MINUS, NO_ONE),
    SUPPORT_OPTION(lade_device_options, backend, 2, UINT32_MAX),
    SUPPORT_OPTION(lade_device_options, flags, 512, 1024, 8 | 64, UINT32_MAX),
    SUPPORT_OPTION(lade_device_options, large_segment_bytes, 1, 10 * MIB, 12 * MIB + 1, UINT64_MAX),
};

static const size_t sizes[] = {1, 512, 513, 5000, 1 << 20, (1 << 20) + 1, 3 << 20, 11 << 20, 700, 40000};
enum { BLOCKS = sizeof sizes / sizeof *sizes, END_BYTES = 65536 };

static bool is_native(const lade_device_options *given) { return given->backend == LADE_DEVICE_NATIVE; }

/* What a block is at least: `divisions` steps per power of two, for sizes above 512 times that. */
static size_t rounded(const lade_device_options *given, size_t bytes) {
  uint64_t steps = given->roundup_divisions[bytes >= 2 << 20 ? 1 : 0];
  size_t floor = 512, quantum = 512;
  if (bytes >= (size_t)4 << 20) steps = 0; /* entries of their own, which are off */
  while (floor * 2 <= bytes) floor *= 2;
  if (steps > 1 && bytes > 512 * steps) quantum = floor / steps > 512 ? floor / steps : 512;
  return (bytes + quantum - 1) / quantum * quantum;
}

static void block_expect(device_fixture *f, const lade_device_options *given, char *block, size_t asked) {
  lade_device_block_info info;
  LADE_EXPECT_EQ_UINT((uintptr_t)block % 512, 0);
  if (!is_native(given)) return;
  lade_device_block_info_init(&info);
  LADE_ASSERT_OK(lade_device_find(f->allocator, block + asked - 1, &info));
  LADE_EXPECT_EQ_UINT(info.address, (uintptr_t)block);
  LADE_EXPECT_EQ_UINT(info.requested_bytes, asked);
  LADE_EXPECT_GE_UINT(info.bytes, rounded(given, asked));
}

static void counts_expect(device_fixture *f, const lade_device_options *given, bool in_use) {
  lade_device_stats stats = device_fixture_stats(f);
  uint64_t asked = 0;
  for (size_t i = 0; i < BLOCKS && in_use; i++) asked += sizes[i];
  if (is_native(given)) {
    LADE_EXPECT_GE_UINT(stats.requested_bytes.all.current, asked); /* pending ones count, too */
    LADE_EXPECT_EQ_UINT(stats.allocation.all.current, in_use ? BLOCKS : 0);
    LADE_EXPECT_GE_UINT(stats.allocated_bytes.all.current, asked);
    LADE_EXPECT_GE_UINT(stats.reserved_bytes.all.current, stats.active_bytes.all.current);
    LADE_EXPECT_EQ_UINT(stats.allocated_bytes.all.current,
                        stats.allocated_bytes.small_pool.current + stats.allocated_bytes.large_pool.current);
  }
  if (given->max_bytes != 0) LADE_EXPECT_LE_UINT(stats.reserved_bytes.all.peak, given->max_bytes);
  if (given->memory_fraction == 0.5) LADE_EXPECT_LE_UINT(stats.reserved_bytes.all.peak, SUPPORT_DEVICE_BYTES / 2);
}

static void blocks_use(device_fixture *f, const lade_device_options *given) {
  char *blocks[BLOCKS];
  for (size_t i = 0; i < BLOCKS; i++) {
    void *block = NULL;
    LADE_ASSERT_OK(lade_device_alloc(f->allocator, sizes[i], f->streams[i % 2], &block));
    blocks[i] = block;
    block_expect(f, given, blocks[i], sizes[i]);
    device_fixture_fill(f, blocks[i], (unsigned char)(i + 1), sizes[i], (int)(i % 2));
  }
  counts_expect(f, given, true);
  for (size_t i = 0; i < BLOCKS; i++) { /* the ends of large ones, where neighbours are */
    size_t bytes = sizes[i] < END_BYTES ? sizes[i] : END_BYTES;
    device_fixture_expect_bytes(f, blocks[i], (unsigned char)(i + 1), bytes, (int)(i % 2));
    device_fixture_expect_bytes(f, blocks[i] + sizes[i] - bytes, (unsigned char)(i + 1), bytes, (int)(i % 2));
  }
  for (size_t i = 0; i < BLOCKS; i++) {
    if (i % 3 == 0) LADE_EXPECT_OK(lade_device_record_stream(f->allocator, blocks[i], f->streams[2]));
    LADE_EXPECT_OK(lade_device_free(f->allocator, blocks[i]));
  }
  counts_expect(f, given, false);
}

static uint64_t device_bytes(lade_runtime *runtime) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(runtime, &report));
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
  LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  return report.device_bytes;
}

static void allocator_use(device_fixture *f, const lade_device_options *given) {
  const uint64_t before = device_bytes(f->runtime);
  for (int round = 0; round < 2 && !lade_test_has_failed(); round++) blocks_use(f, given);
  for (int i = 0; i < FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[i]));
  LADE_EXPECT_OK(lade_device_empty_cache(f->allocator));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(f).reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(f).requested_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(device_bytes(f->runtime), before);
  for (int i = 0; i < FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_device_stream_retire(f->allocator, f->streams[i]));
}

static void combination(device_fixture *f, support_crossing *crossing, const lade_device_options *given) {
  const char *refused[] = {NULL, NULL};
  const uint64_t before = device_bytes(f->runtime);
  f->allocator = NULL;
  if (given->expandable_segments == 1 && given->large_segment_bytes % (2 * MIB) != 0)
    refused[0] = "large_segment_bytes";
  lade_status status = lade_device_allocator_create(f->runtime, 0, given, &f->allocator);
  if (crossing->wrong != NULL || refused[0] != NULL) {
    support_crossing_refused(crossing, status, refused);
    LADE_EXPECT_EQ_PTR(f->allocator, NULL);
  } else {
    LADE_ASSERT_OK(status);
    allocator_use(f, given);
    LADE_EXPECT_OK(lade_device_allocator_destroy(f->allocator, true));
  }
  f->allocator = NULL;
  LADE_EXPECT_EQ_UINT(device_bytes(f->runtime), before);
}

LADE_TEST_P(DeviceOptions, Crossed, support_soft_runtimes, name) {
  device_fixture f;
  support_crossing crossing;
  lade_device_options given;
  if (!device_fixture_open_bytes(&f, name, NULL)) return;
  LADE_ASSERT_OK(lade_device_allocator_destroy(f.allocator, true));
  support_crossing_start(&crossing, SUPPORT_OPTIONS(options), SUPPORT_OPTIONS(wrong), 31, 20);
  for (lade_device_options_init(&given); support_crossing_next(&crossing, &given); lade_device_options_init(&given))
    combination(&f, &crossing, &given);
  LADE_EXPECT_OK(lade_device_allocator_create(f.runtime, 0, NULL, &f.allocator));
  device_fixture_close(&f);
}
