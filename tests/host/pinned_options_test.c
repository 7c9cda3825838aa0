/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of a pinned pool with all others: blocks of many sizes beside each other, used by streams and freed, with the
 * promises of the header as the model: sizes, places, sources, caps, counts, and that no block has a byte of another.
 */
#include <string.h>

#include "runtime/ops.h"
#include "tests/host/budget_machine.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

#define MIB ((uint64_t)1 << 20)

static const support_option options[] = {
    SUPPORT_OPTION(lade_pinned_options, device, 0, 1),
    SUPPORT_OPTION(lade_pinned_options, sources, 0, 1, 2, 4, 8, 9, 15),
    SUPPORT_OPTION(lade_pinned_options, max_bytes, 0, 16 * MIB, UINT64_MAX),
    SUPPORT_OPTION(lade_pinned_options, event_batch, 0, 1, 2, UINT32_MAX),
    SUPPORT_OPTION(lade_pinned_options, wait_ms, 0, 1),
    SUPPORT_OPTION(lade_pinned_options, segment_bytes, 0, MIB, MIB + 4096, 5 * MIB, 64 * MIB),
    SUPPORT_OPTION(lade_pinned_options, prefault_threads, 0, 1, 3, UINT32_MAX),
    SUPPORT_OPTION(lade_pinned_options, flags, 0, 1, 2, 4, 8, 4 | 1, 8 | 4),
    SUPPORT_OPTION(lade_pinned_options, magazine_bytes, 0, 1, MIB, UINT64_MAX),
    SUPPORT_OPTION(lade_pinned_options, max_idle_ms, 0, 1, UINT32_MAX),
    SUPPORT_OPTION(lade_pinned_options, register_chunk_bytes, 0, MIB, 2 * MIB + 4096, (uint64_t)1 << 40),
    SUPPORT_OPTION(lade_pinned_options, budget, 0, 1, 2),
    SUPPORT_OPTION(lade_pinned_options, budget_share, 0, 1, 2),
    SUPPORT_OPTION(lade_pinned_options, budget_bytes, 0, 24 * MIB, UINT64_MAX),
    SUPPORT_OPTION(lade_pinned_options, budget_part_bytes, 0, 0, 20 * MIB),
    SUPPORT_OPTION(lade_pinned_options, local_ranks, 0, 2),
    SUPPORT_CHOICE("budget_name", 0, 1),
};
static const support_option wrong[] = {
    SUPPORT_OPTION(lade_pinned_options, sources, 16, UINT32_MAX),
    SUPPORT_OPTION(lade_pinned_options, segment_bytes, 1, 4096, MIB + 1, ((uint64_t)1 << 40) + 4096, UINT64_MAX),
    SUPPORT_OPTION(lade_pinned_options, register_chunk_bytes, 1, MIB - 4096, MIB + 512, UINT64_MAX),
    SUPPORT_OPTION(lade_pinned_options, flags, 16, UINT32_MAX),
    SUPPORT_OPTION(lade_pinned_options, reserved, 1),
    SUPPORT_OPTION(lade_pinned_options, reserved_2, UINT32_MAX),
    SUPPORT_OPTION(lade_pinned_options, budget, 3),
    SUPPORT_OPTION(lade_pinned_options, budget_share, 3),
};

/* Below 4 MiB together, also as powers of two. */
static const size_t sizes[] = {1, 63, 512, 4095, 4096, 5000, 70000, (1 << 20) + 1, 100, 8192};
enum { BLOCKS = sizeof sizes / sizeof *sizes, DEVICE_BYTES = 4096 };

typedef struct block {
  unsigned char *memory;
  size_t bytes; /* of the pattern in it */
} block;

static void block_expect_info(lade_pinned_pool *pool, const lade_pinned_options *given, const block *b, size_t asked) {
  lade_pinned_info info;
  const bool reference = (given->flags & LADE_PINNED_REFERENCE) != 0, debug = (given->flags & LADE_PINNED_DEBUG) != 0;
  const uint32_t sources = given->sources != 0 ? given->sources : 7;
  lade_pinned_info_init(&info);
  LADE_ASSERT_OK(lade_pinned_find(pool, b->memory + asked - 1, &info));
  LADE_EXPECT_EQ_PTR(info.base, b->memory);
  LADE_EXPECT_EQ_UINT(info.requested_bytes, asked);
  LADE_EXPECT_GE_UINT(info.bytes, asked);
  LADE_EXPECT_EQ_INT(info.state, LADE_PINNED_IN_USE);
  LADE_EXPECT((sources & (uint32_t)info.source) != 0);
  LADE_EXPECT_EQ_UINT((uintptr_t)b->memory % (asked >= 4096 && !debug ? 4096 : 64), 0);
  if (reference && !debug) LADE_EXPECT_EQ_UINT(info.bytes & (info.bytes - 1), 0);
  if (!reference && !debug) LADE_EXPECT_LE_UINT(info.bytes - asked, asked / 8 > 4096 ? asked / 8 : 4096);
  LADE_EXPECT(info.contiguous_bytes >= 1 && info.contiguous_bytes <= info.bytes);
  if (given->register_chunk_bytes == 0 && info.source == LADE_PINNED_SOURCE_REGISTER)
    LADE_EXPECT_EQ_UINT(info.contiguous_bytes, info.bytes - (asked - 1));
}

/* A strict pool refuses what the driver may have placed on another node. */
static bool may_lie_elsewhere(const lade_pinned_options *given) {
  const uint32_t placed = LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_PAGEABLE;
  return (given->flags & LADE_PINNED_NUMA_STRICT) != 0 && given->sources != 0 && (given->sources & placed) == 0;
}

/* Blocks beside each other, all filled before the first is looked at. */
static bool blocks_alloc(lade_pinned_pool *pool, const lade_pinned_options *given, block *blocks) {
  for (size_t i = 0; i < BLOCKS; i++) {
    lade_pinned_info info;
    void *memory = NULL;
    lade_pinned_info_init(&info);
    lade_status status = lade_pinned_alloc(pool, sizes[i], &memory);
    if (i == 0 && status == LADE_ERR_OUT_OF_PINNED_MEMORY && may_lie_elsewhere(given)) return false;
    LADE_EXPECT_OK(status);
    if (status != LADE_OK) return false;
    LADE_EXPECT_OK(lade_pinned_find(pool, memory, &info));
    blocks[i] = (block){memory, (given->flags & LADE_PINNED_DEBUG) != 0 ? sizes[i] : info.bytes};
    support_pattern_fill(memory, blocks[i].bytes, i, 0);
    block_expect_info(pool, given, &blocks[i], sizes[i]);
  }
  for (size_t i = 0; i < BLOCKS; i++) LADE_EXPECT_PATTERN(blocks[i].memory, blocks[i].bytes, i, 0);
  return true;
}

static void counts_expect(lade_pinned_pool *pool, const lade_pinned_options *given, bool in_use) {
  lade_pinned_stats stats = stats_of(pool);
  uint64_t asked = 0;
  for (size_t i = 0; i < BLOCKS && in_use; i++) asked += sizes[i];
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.current, asked);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.current, in_use ? BLOCKS : 0);
  LADE_EXPECT_GE_UINT(stats.reserved_bytes.current, stats.in_use_bytes.current);
  LADE_EXPECT_GE_UINT(stats.in_use_bytes.current, asked);
  LADE_EXPECT_EQ_UINT(stats.debug_findings, 0);
  if (given->max_bytes != 0) LADE_EXPECT_LE_UINT(stats.reserved_bytes.peak, given->max_bytes);
  if (stats.budget_bytes != 0) LADE_EXPECT_LE_UINT(stats.budget_held_bytes, stats.budget_bytes);
}

/* Each second block is used by a stream when it is freed. */
static void blocks_free(lade_runtime *runtime, lade_pinned_pool *pool, const block *blocks, lade_stream stream,
                        void *device) {
  for (size_t i = 0; i < BLOCKS; i++) {
    if (i % 2 == 0) {
      size_t bytes = sizes[i] < DEVICE_BYTES ? sizes[i] : DEVICE_BYTES;
      LADE_EXPECT_OK(lade_copy_async(runtime, device, blocks[i].memory, bytes, stream));
      LADE_EXPECT_OK(lade_pinned_record_event(pool, blocks[i].memory, stream));
    }
    LADE_EXPECT_OK(lade_pinned_free(pool, blocks[i].memory));
  }
}

typedef struct stage {
  machine on;
  lade_stream streams[2];
  void *device[2];
} stage;

static void pool_use(const stage *s, lade_pinned_pool *pool, const lade_pinned_options *given) {
  block blocks[BLOCKS];
  int d = given->device;
  for (int round = 0; round < 2 && !lade_test_has_failed(); round++) {
    if (!blocks_alloc(pool, given, blocks) || lade_test_has_failed()) return;
    counts_expect(pool, given, true);
    blocks_free(s->on.runtime, pool, blocks, s->streams[d], s->device[d]);
    LADE_EXPECT_OK(lade_stream_synchronize(s->on.runtime, s->streams[d]));
    LADE_EXPECT_OK(lade_pinned_process_events(pool));
    counts_expect(pool, given, false);
  }
  LADE_EXPECT_OK(lade_pinned_stream_retire(pool, s->streams[d]));
  LADE_EXPECT_OK(lade_pinned_trim(pool, 0));
  LADE_EXPECT_EQ_UINT(stats_of(pool).pending_blocks.current, 0);
  if ((given->flags & LADE_PINNED_BACKGROUND) == 0) LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, 0);
}

static void combination(const stage *s, support_crossing *crossing, lade_pinned_options *given) {
  lade_pinned_pool *pool = NULL;
  const char *refused[] = {NULL, NULL};
  bool virtual = support_is_virtual(s->on.runtime);
  if (support_crossing_value(crossing, "budget_name") != 0) given->budget_name = "crossed";
  if ((given->budget_share == LADE_PINNED_BUDGET_PART) != (given->budget_part_bytes != 0))
    refused[0] = "budget_part_bytes";
  lade_status status = ladei_pinned_pool_create(s->on.runtime, given, &s->on.hooks, &pool);
  if (crossing->wrong != NULL || refused[0] != NULL) {
    support_crossing_refused(crossing, status, refused);
    LADE_EXPECT_EQ_PTR(pool, NULL);
  } else if (virtual && (given->flags & LADE_PINNED_BACKGROUND) != 0) {
    LADE_EXPECT_EQ_INT(status, LADE_ERR_UNSUPPORTED);
    LADE_EXPECT_EQ_PTR(pool, NULL);
  } else {
    LADE_ASSERT_OK(status);
    pool_use(s, pool, given);
    LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  }
  LADE_EXPECT_EQ_INT(support_live(s->on.runtime, SUPPORT_LIVE_HOST_MEMORY), 0);
  LADE_EXPECT_EQ_INT(support_live(s->on.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
  LADE_EXPECT_EQ_INT(support_live(s->on.runtime, SUPPORT_LIVE_DRIVER_POOLS), 0);
  LADE_EXPECT_EQ_INT(support_live(s->on.runtime, SUPPORT_LIVE_EVENTS), 0);
}

LADE_TEST_P(PinnedOptions, Crossed, support_soft_runtimes, name) {
  stage s;
  support_crossing crossing;
  lade_pinned_options given;
  if (!machine_open(&s.on, name)) return;
  for (int d = 0; d < 2; d++) {
    LADE_EXPECT_OK(lade_stream_create(s.on.runtime, d, &s.streams[d]));
    LADE_EXPECT_OK(s.on.runtime->ops->device_alloc(s.on.runtime->self, d, DEVICE_BYTES, &s.device[d]));
  }
  support_crossing_start(&crossing, SUPPORT_OPTIONS(options), SUPPORT_OPTIONS(wrong), 30, 15);
  for (lade_pinned_options_init(&given); support_crossing_next(&crossing, &given); lade_pinned_options_init(&given))
    combination(&s, &crossing, &given);
  for (int d = 0; d < 2; d++) {
    LADE_EXPECT_OK(lade_stream_destroy(s.on.runtime, s.streams[d]));
    LADE_EXPECT_OK(s.on.runtime->ops->device_free(s.on.runtime->self, d, s.device[d]));
  }
  machine_close(&s.on);
}
