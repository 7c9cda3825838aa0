/* SPDX-License-Identifier: Apache-2.0 */
/* Giving back, pinning ahead, NUMA placement, sources, and the two precise ways to end a use. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

#define SEGMENT_BYTES (2 * LADEI_MIB)

typedef struct fixture {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream stream;
  void *device;
} fixture;

static const ladei_pinned_hooks this_machine = {LADEI_TOPOLOGY_SYSTEM, NULL, NULL};
static const ladei_pinned_hooks two_nodes = {LADEI_TOPOLOGY_SYNTHETIC, "node:2 core:2 pu:1", NULL};

static lade_pinned_options small_options(void) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = SEGMENT_BYTES;
  options.max_bytes = 64 * LADEI_MIB;
  return options;
}

static bool fixture_open(fixture *own, const char *name, const lade_pinned_options *options,
                         const ladei_pinned_hooks *hooks) {
  memset(own, 0, sizeof *own);
  own->runtime = support_runtime_open(name);
  if (own->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &own->stream));
  LADE_EXPECT_OK(own->runtime->ops->device_alloc(own->runtime->self, 0, 4096, &own->device));
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, options, hooks, &own->pool));
  return own->pool != NULL;
}

static void fixture_close(fixture *own) {
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  LADE_EXPECT_OK(own->runtime->ops->device_free(own->runtime->self, 0, own->device));
  LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->stream));
  support_runtime_close(own->runtime);
}

static lade_pinned_stats stats_of(const fixture *own) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  return stats;
}

static int32_t state_of(const fixture *own, const void *block) {
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_OK(lade_pinned_find(own->pool, block, &info));
  return info.state;
}

static void *alloc(const fixture *own, size_t bytes) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, bytes, &block));
  return block;
}

/* ---- Giving back, pinning ahead ---------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedLimits, TrimGivesBackTheOldestSegmentsOnly, support_soft_runtimes, runtime) {
  lade_pinned_options options = small_options();
  fixture own;
  void *blocks[4];
  if (!fixture_open(&own, runtime, &options, &this_machine)) return;
  for (int i = 0; i < 4; i++) blocks[i] = alloc(&own, SEGMENT_BYTES);
  for (int i = 3; i > 0; i--) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 3 * SEGMENT_BYTES));
  LADE_EXPECT_EQ_UINT(stats_of(&own).reserved_bytes.current, 3 * SEGMENT_BYTES);
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_find(own.pool, blocks[1], &info));
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 3 * SEGMENT_BYTES));
  LADE_EXPECT_EQ_UINT(stats_of(&own).reserved_bytes.current, 3 * SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0)); /* one is in use */
  LADE_EXPECT_EQ_UINT(stats_of(&own).reserved_bytes.current, SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[0]));
  fixture_close(&own);
}

LADE_TEST_P(PinnedLimits, ReservedMemoryServesWithoutTheDriver, support_soft_runtimes, runtime) {
  lade_pinned_options options = small_options();
  fixture own;
  if (!fixture_open(&own, runtime, &options, &this_machine)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 5 * LADEI_MIB, 0));
  uint64_t pinned = stats_of(&own).driver_allocs;
  LADE_EXPECT_GE_UINT(stats_of(&own).reserved_bytes.current, 5 * LADEI_MIB);
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 5 * LADEI_MIB, 0)); /* is there already */
  void *blocks[5];
  for (int i = 0; i < 5; i++) blocks[i] = alloc(&own, LADEI_MIB);
  LADE_EXPECT_EQ_UINT(stats_of(&own).driver_allocs, pinned);
  for (int i = 0; i < 5; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_reserve(own.pool, options.max_bytes + 1, 0));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_pinned_reserve(own.pool, 1, SUPPORT_DEVICE_COUNT));
  fixture_close(&own);
}

LADE_TEST(PinnedLimits, IdleSegmentsAreGivenBackAfterTheirTime) {
  lade_pinned_options options = small_options();
  fixture own;
  options.max_idle_ms = 10;
  if (!fixture_open(&own, "sim", &options, &this_machine)) return;
  void *kept = alloc(&own, 4096), *large = alloc(&own, SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 50000000));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, large));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool)); /* sees it free for the first time */
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 9000000));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_UINT(stats_of(&own).driver_frees, 0);
  LADE_EXPECT_OK(lade_soft_advance(own.runtime, 3000000));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_UINT(stats_of(&own).driver_frees, 1);
  LADE_EXPECT_EQ_UINT(stats_of(&own).reserved_bytes.current, SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, kept));
  fixture_close(&own);
}

LADE_TEST(PinnedLimits, DefaultCapIsReadFromTheMachine) {
  static const ladei_pinned_hooks nothing = {LADEI_TOPOLOGY_SYSTEM, NULL, "/nonexistent"};
  lade_pinned_options options = small_options();
  fixture own;
  options.max_bytes = 0;
  if (!fixture_open(&own, "sim", &options, &this_machine)) return;
  LADE_EXPECT_LT_UINT(own.pool->max_bytes, UINT64_MAX);
  LADE_EXPECT_GT_UINT(own.pool->max_bytes, 0);
  fixture_close(&own);
  if (!fixture_open(&own, "sim", &options, &nothing)) return;
  LADE_EXPECT_EQ_UINT(own.pool->max_bytes, UINT64_MAX);
  void *block = alloc(&own, 4096);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  fixture_close(&own);
}

/* ---- NUMA -------------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedLimits, NodesAreAskedForByOsIndex) {
  lade_pinned_options options = small_options();
  fixture own;
  lade_pinned_info info;
  void *block = NULL;
  if (!fixture_open(&own, "sim", &options, &two_nodes)) return;
  for (int node = -1; node < 2; node++) {
    LADE_EXPECT_OK(lade_pinned_alloc_on(own.pool, 4096, node, &block));
    lade_pinned_info_init(&info);
    LADE_EXPECT_OK(lade_pinned_find(own.pool, block, &info));
    LADE_EXPECT_EQ_INT(info.numa_node, node);
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_alloc_on(own.pool, 4096, 2, &block));
  LADE_EXPECT_OK(lade_pinned_alloc_on(own.pool, 0, 7, &block));
  LADE_EXPECT_EQ_PTR(block, NULL);
  fixture_close(&own);
}

LADE_TEST(PinnedLimits, AtTheCapAnotherNodeServesUnlessThePoolIsStrict) {
  for (uint32_t strict = 0; strict <= 1; strict++) {
    lade_pinned_options options = small_options();
    fixture own;
    void *first = NULL, *second = NULL;
    options.max_bytes = SEGMENT_BYTES;
    options.flags = strict != 0 ? LADE_PINNED_NUMA_STRICT : 0;
    if (!fixture_open(&own, "sim", &options, &two_nodes)) return;
    LADE_EXPECT_OK(lade_pinned_alloc_on(own.pool, 4096, 0, &first));
    lade_status status = lade_pinned_alloc_on(own.pool, 4096, 1, &second);
    LADE_EXPECT_EQ_INT(status, strict != 0 ? LADE_ERR_LIMIT : LADE_OK);
    LADE_EXPECT_EQ_UINT(stats_of(&own).other_node_takes, strict != 0 ? 0 : 1);
    if (status == LADE_OK) LADE_EXPECT_OK(lade_pinned_free(own.pool, second));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, first));
    fixture_close(&own);
  }
}

/* ---- Sources ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedLimits, PageableServesOnlyWhereAllowedAndSaysSo, support_soft_runtimes, runtime) {
  for (int allowed = 0; allowed <= 1; allowed++) {
    lade_pinned_options options = small_options();
    fixture own;
    void *block = NULL;
    options.sources = LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER;
    options.sources |= allowed != 0 ? (uint32_t)LADE_PINNED_SOURCE_PAGEABLE : 0;
    if (!fixture_open(&own, runtime, &options, &this_machine)) return;
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", 0, LADE_ERR_OUT_OF_PINNED_MEMORY));
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_alloc", 0, LADE_ERR_OUT_OF_PINNED_MEMORY));
    lade_status status = lade_pinned_alloc(own.pool, LADEI_MIB, &block);
    LADE_EXPECT_EQ_INT(status, allowed != 0 ? LADE_OK : LADE_ERR_OUT_OF_PINNED_MEMORY);
    if (status == LADE_OK) {
      lade_pinned_info info;
      lade_pinned_info_init(&info);
      LADE_EXPECT_OK(lade_pinned_find(own.pool, block, &info));
      LADE_EXPECT_EQ_INT(info.source, LADE_PINNED_SOURCE_PAGEABLE);
      LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    }
    LADE_EXPECT_OK(lade_soft_fault_clear(own.runtime));
    fixture_close(&own);
  }
}

/* ---- Precise ends of uses ---------------------------------------------------------------------------------------- */

LADE_TEST(PinnedLimits, RecordUseEndsWithTheWorkQueuedSoFar) {
  for (int precise = 0; precise <= 1; precise++) {
    lade_pinned_options options = small_options();
    fixture own;
    support_gate gate;
    if (!fixture_open(&own, "cpu", &options, &this_machine)) return;
    void *block = alloc(&own, 4096);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.stream));
    if (precise != 0) LADE_EXPECT_OK(lade_pinned_record_use(own.pool, block, own.stream));
    LADE_EXPECT(support_wait_stream(own.runtime, own.stream));
    LADE_ASSERT(support_gate_close(&gate, own.runtime, own.stream));
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.stream)); /* later work, held back */
    if (precise == 0) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.stream));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
    LADE_EXPECT_EQ_INT(state_of(&own, block), precise != 0 ? LADE_PINNED_CACHED : LADE_PINNED_PENDING);
    support_gate_open(&gate);
    fixture_close(&own);
  }
}

LADE_TEST_P(PinnedLimits, FreeAfterWaitsForTheCallersEvent, support_soft_runtimes, runtime) {
  lade_pinned_options options = small_options();
  fixture own;
  support_gate gate;
  lade_event event;
  if (!fixture_open(&own, runtime, &options, &this_machine)) return;
  LADE_ASSERT_OK(lade_event_create(own.runtime, 0, &event));
  char *block = alloc(&own, 4096);
  LADE_ASSERT(support_gate_close(&gate, own.runtime, own.stream));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.stream));
  LADE_EXPECT_OK(lade_event_record(own.runtime, event, own.stream));
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_pinned_free_after(own.pool, block + 1, event));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_free_after(own.pool, block, NULL));
  LADE_EXPECT_OK(lade_pinned_free_after(own.pool, block, event));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_free_after(own.pool, block, event));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(own.runtime, own.stream));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_CACHED);
  LADE_EXPECT_OK(lade_event_destroy(own.runtime, event));
  fixture_close(&own);
}

/* An event that cannot be asked about says nothing of its work: the block stays pending until it can. */
LADE_TEST_P(PinnedLimits, FreeAfterAnEventThatFailsKeepsTheBlock, support_soft_runtimes, runtime) {
  lade_pinned_options options = small_options();
  fixture own;
  lade_event event;
  if (!fixture_open(&own, runtime, &options, &this_machine)) return;
  LADE_ASSERT_OK(lade_event_create(own.runtime, 0, &event));
  char *block = alloc(&own, 4096);
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.stream));
  LADE_EXPECT_OK(lade_event_record(own.runtime, event, own.stream));
  LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "event_query", 0, LADE_ERR_DRIVER));
  LADE_EXPECT_OK(lade_pinned_free_after(own.pool, block, event));
  LADE_EXPECT(support_wait_stream(own.runtime, own.stream));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  LADE_EXPECT_EQ_UINT(stats_of(&own).quarantined_uses, 1);
  LADE_EXPECT_OK(lade_soft_fault_clear(own.runtime));
  LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_CACHED);
  LADE_EXPECT_EQ_UINT(stats_of(&own).quarantined_uses, 0);
  LADE_EXPECT_OK(lade_event_destroy(own.runtime, event));
  fixture_close(&own);
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedLimits, SettingsInForceHaveEachDefaultInItsPlace) {
  fixture own;
  lade_pinned_options settings;
  if (!fixture_open(&own, "sim", NULL, &this_machine)) return;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  LADE_EXPECT_EQ_UINT(settings.sources,
                      LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER | LADE_PINNED_SOURCE_POOL);
  LADE_EXPECT_EQ_UINT(settings.max_bytes, own.pool->max_bytes);
  LADE_EXPECT_GT_UINT(settings.max_bytes, 0);
  LADE_EXPECT_EQ_UINT(settings.event_batch, 16);
  LADE_EXPECT_EQ_UINT(settings.segment_bytes, 64 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(settings.prefault_threads, 0);
  LADE_EXPECT_GT_UINT(settings.magazine_bytes, 0);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_settings_get(NULL, &settings));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_settings_get(own.pool, NULL));
  fixture_close(&own);
}

LADE_TEST(PinnedLimits, SettingsInForceAreThoseAskedFor) {
  lade_pinned_options options = {.struct_size = sizeof options,
                                 .device = 1,
                                 .sources = LADE_PINNED_SOURCE_PAGEABLE,
                                 .max_bytes = 64 * LADEI_MIB,
                                 .event_batch = 3,
                                 .wait_ms = 4000000000u,
                                 .segment_bytes = SEGMENT_BYTES,
                                 .prefault_threads = 2,
                                 .flags = LADE_PINNED_NUMA_STRICT | LADE_PINNED_DEVICE_MAPPED,
                                 .magazine_bytes = 1,
                                 .max_idle_ms = 4000000001u,
                                 .register_chunk_bytes = SEGMENT_BYTES};
  fixture own;
  lade_pinned_options settings;
  if (!fixture_open(&own, "sim", &options, &two_nodes)) return;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  LADE_EXPECT_EQ_INT(memcmp(&settings, &options, sizeof options), 0);
  fixture_close(&own);
}

/* ---- Background -------------------------------------------------------------------------------------------------- */

static bool nothing_pending(void *user) { return stats_of(user).pending_blocks.current == 0; }

LADE_TEST(PinnedBackground, BlocksBecomeReadyWithoutACall) {
  lade_pinned_options options = small_options();
  fixture own;
  support_gate gate;
  options.flags = LADE_PINNED_BACKGROUND;
  if (!fixture_open(&own, "cpu", &options, &this_machine)) return;
  LADE_ASSERT(support_gate_close(&gate, own.runtime, own.stream));
  void *block = alloc(&own, 4096);
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.stream));
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.stream));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_pinned_pool_destroy(own.pool, false)); /* and goes on in the background */
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_PENDING);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  LADE_EXPECT_EQ_INT(state_of(&own, block), LADE_PINNED_CACHED);
  fixture_close(&own);
}

/* The child has no such thread and needs none to be stopped; the parent's works on. */
LADE_TEST(PinnedBackground, ForkStopsNothingAndNobody) {
  lade_pinned_options options = small_options();
  fixture own;
  options.flags = LADE_PINNED_BACKGROUND;
  if (!fixture_open(&own, "cpu", &options, &this_machine)) return;
  for (int round = 0; round < 5; round++) {
    void *block = alloc(&own, 4096);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 4096, own.stream));
    LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.stream));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    pid_t child = fork();
    if (child == 0) {
      bool right = lade_pinned_process_events(own.pool) == LADE_ERR_FORKED &&
                   lade_pinned_pool_destroy(own.pool, true) == LADE_ERR_FORKED;
      _exit(right ? 0 : 1);
    }
    int status = -1;
    LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
    LADE_EXPECT_EQ_INT(status, 0);
    LADE_EXPECT(support_wait(own.runtime, nothing_pending, &own));
  }
  fixture_close(&own);
}

LADE_TEST(PinnedBackground, NotOnVirtualTime) {
  lade_pinned_options options = small_options();
  lade_pinned_pool *pool = NULL;
  lade_runtime *runtime = support_runtime_open("sim");
  if (runtime == NULL) return;
  options.flags = LADE_PINNED_BACKGROUND;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_pinned_pool_create(runtime, &options, &pool));
  options.flags = 1u << 31;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_pool_create(runtime, &options, &pool));
  support_runtime_close(runtime);
}

/* ---- Debug mode -------------------------------------------------------------------------------------------------- */

static bool debug_open(fixture *own, const char *runtime) {
  lade_pinned_options options = small_options();
  options.flags = LADE_PINNED_DEBUG;
  return fixture_open(own, runtime, &options, &this_machine);
}

LADE_TEST_P(PinnedDebug, CorrectProgramsHaveNoFindings, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {1, 448, 512, 3500, 4096, 70000, LADEI_MIB, SEGMENT_BYTES, SEGMENT_BYTES + 1};
  fixture own;
  void *blocks[9];
  if (!debug_open(&own, runtime)) return;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 9; i++) {
      blocks[i] = alloc(&own, sizes[i]);
      memset(blocks[i], round, sizes[i]);
      LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, blocks[i], 1, own.stream));
      LADE_EXPECT_OK(lade_pinned_record_event(own.pool, blocks[i], own.stream));
    }
    for (int i = 0; i < 9; i += 2) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
    for (int i = 1; i < 9; i += 2) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
    LADE_EXPECT(support_wait_stream(own.runtime, own.stream));
    if (round == 1) LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
  }
  LADE_EXPECT_EQ_UINT(stats_of(&own).debug_findings, 0);
  LADE_EXPECT_EQ_STR(lade_pinned_debug_last(own.pool), "");
  fixture_close(&own);
}

LADE_TEST_P(PinnedDebug, WriteBehindTheEndIsFoundAtFree, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {1, 512, 4096, 100000};
  fixture own;
  if (!debug_open(&own, runtime)) return;
  for (int i = 0; i < 4; i++) {
    char *block = alloc(&own, sizes[i]);
    block[sizes[i] + (size_t)i] = 1;
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT_EQ_UINT(stats_of(&own).debug_findings, (uint64_t)i + 1);
    LADE_EXPECT_CONTAINS_STR(lade_pinned_debug_last(own.pool), "behind its end; allocated by 0x");
  }
  fixture_close(&own);
}

LADE_TEST_P(PinnedDebug, WriteAfterFreeIsFoundWhenHandedOutAgain, support_soft_runtimes, runtime) {
  fixture own;
  if (!debug_open(&own, runtime)) return;
  char *block = alloc(&own, 5000);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  block[17] = 1;
  LADE_EXPECT_EQ_UINT(stats_of(&own).debug_findings, 0);
  LADE_EXPECT_EQ_PTR(alloc(&own, 5000), block);
  LADE_EXPECT_EQ_UINT(stats_of(&own).debug_findings, 1);
  LADE_EXPECT_CONTAINS_STR(lade_pinned_debug_last(own.pool), "offset 17 while it was free; allocated by 0x");
  LADE_EXPECT_CONTAINS_STR(lade_pinned_debug_last(own.pool), "freed by 0x");
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  fixture_close(&own);
}

LADE_TEST_P(PinnedDebug, DoubleFreeTellsWhoHadTheBlock, support_soft_runtimes, runtime) {
  fixture own;
  if (!debug_open(&own, runtime)) return;
  void *block = alloc(&own, 5000);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_free(own.pool, block));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "is free; allocated by 0x");
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_record_event(own.pool, block, own.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, ", freed by 0x");
  fixture_close(&own);
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

typedef struct block_sums {
  uint64_t blocks[4], bytes[4], requested;
} block_sums;

static lade_status block_sum(const lade_pinned_info *info, void *user) {
  block_sums *own = user;
  own->blocks[info->state]++;
  own->bytes[info->state] += info->bytes;
  own->requested += info->requested_bytes;
  return LADE_OK;
}

static lade_status block_refuse(const lade_pinned_info *info, void *user) {
  (void)info;
  ++*(int *)user;
  return LADE_ERR_CALLBACK;
}

typedef struct level_sums {
  lade_pinned_gauge requested, in_use, pending, cached, reserved, in_use_blocks, pending_blocks, cached_blocks;
} level_sums;

/* Sums; peaks are of different moments, and only bound the peak of the whole. */
static void gauge_add(lade_pinned_gauge *sum, const lade_pinned_gauge *gauge) {
  LADE_EXPECT_EQ_UINT(gauge->allocated - gauge->freed, gauge->current);
  LADE_EXPECT_GE_UINT(gauge->peak, gauge->current);
  sum->current += gauge->current;
  sum->peak += gauge->peak;
  sum->allocated += gauge->allocated;
  sum->freed += gauge->freed;
}

static void expect_gauge(const lade_pinned_gauge *sum, const lade_pinned_gauge *whole) {
  LADE_EXPECT_EQ_UINT(sum->current, whole->current);
  LADE_EXPECT_GE_UINT(sum->peak, whole->peak);
  LADE_EXPECT_EQ_UINT(sum->allocated, whole->allocated);
  LADE_EXPECT_EQ_UINT(sum->freed, whole->freed);
}

static lade_status class_sum(const lade_pinned_class_stats *stats, void *user) {
  level_sums *own = user;
  LADE_EXPECT_GE_UINT(stats->in_use_bytes.allocated, stats->requested_bytes.allocated);
  LADE_EXPECT_LE_UINT(stats->in_use_bytes.allocated, stats->in_use_blocks.allocated * stats->block_bytes);
  gauge_add(&own->requested, &stats->requested_bytes);
  gauge_add(&own->in_use, &stats->in_use_bytes);
  gauge_add(&own->pending, &stats->pending_bytes);
  gauge_add(&own->in_use_blocks, &stats->in_use_blocks);
  gauge_add(&own->pending_blocks, &stats->pending_blocks);
  gauge_add(&own->cached_blocks, &stats->cached_blocks);
  return LADE_OK;
}

static lade_status node_sum(const lade_pinned_node_stats *stats, void *user) {
  level_sums *own = user;
  LADE_EXPECT_EQ_UINT(stats->in_use_bytes.current + stats->pending_bytes.current + stats->cached_bytes.current,
                      stats->reserved_bytes.current);
  gauge_add(&own->requested, &stats->requested_bytes);
  gauge_add(&own->in_use, &stats->in_use_bytes);
  gauge_add(&own->pending, &stats->pending_bytes);
  gauge_add(&own->cached, &stats->cached_bytes);
  gauge_add(&own->reserved, &stats->reserved_bytes);
  gauge_add(&own->in_use_blocks, &stats->in_use_blocks);
  gauge_add(&own->pending_blocks, &stats->pending_blocks);
  gauge_add(&own->cached_blocks, &stats->cached_blocks);
  return LADE_OK;
}

/* The pool's counters are the sums of its nodes' and of its classes'. */
static void expect_levels_agree(const fixture *own) {
  lade_pinned_stats stats = stats_of(own);
  level_sums classes, nodes;
  memset(&classes, 0, sizeof classes);
  memset(&nodes, 0, sizeof nodes);
  LADE_EXPECT_OK(lade_pinned_class_stats_each(own->pool, class_sum, &classes));
  LADE_EXPECT_OK(lade_pinned_node_stats_each(own->pool, node_sum, &nodes));
  expect_gauge(&nodes.cached, &stats.cached_bytes);
  expect_gauge(&nodes.reserved, &stats.reserved_bytes);
  for (int i = 0; i < 2; i++) {
    const level_sums *sums = i == 0 ? &classes : &nodes;
    expect_gauge(&sums->requested, &stats.requested_bytes);
    expect_gauge(&sums->in_use, &stats.in_use_bytes);
    expect_gauge(&sums->pending, &stats.pending_bytes);
    expect_gauge(&sums->in_use_blocks, &stats.in_use_blocks);
    expect_gauge(&sums->pending_blocks, &stats.pending_blocks);
    expect_gauge(&sums->cached_blocks, &stats.cached_blocks);
  }
}

LADE_TEST_P(PinnedSnapshot, AddsUpToTheStatistics, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {1, 600, 3500, 4096, 70000, LADEI_MIB, SEGMENT_BYTES - 4096, SEGMENT_BYTES + 1};
  lade_pinned_options options = small_options();
  fixture own;
  support_gate gate;
  void *kept[8], *freed[8];
  if (!fixture_open(&own, runtime, &options, &this_machine)) return;
  LADE_ASSERT(support_gate_close(&gate, own.runtime, own.stream));
  LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, own.device, 1, own.stream));
  for (int i = 0; i < 8; i++) {
    kept[i] = alloc(&own, sizes[i]);
    freed[i] = alloc(&own, sizes[i]);
    if (i == 4) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, freed[i], own.stream));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, freed[i]));
  }
  lade_pinned_stats stats = stats_of(&own);
  block_sums blocks = {0};
  LADE_EXPECT_OK(lade_pinned_blocks_each(own.pool, block_sum, &blocks));
  LADE_EXPECT_EQ_UINT(blocks.blocks[LADE_PINNED_IN_USE], stats.in_use_blocks.current);
  LADE_EXPECT_EQ_UINT(blocks.bytes[LADE_PINNED_IN_USE], stats.in_use_bytes.current);
  LADE_EXPECT_EQ_UINT(blocks.bytes[LADE_PINNED_PENDING], stats.pending_bytes.current);
  LADE_EXPECT_EQ_UINT(blocks.blocks[LADE_PINNED_PENDING], 1);
  LADE_EXPECT_EQ_UINT(blocks.requested, stats.requested_bytes.current);
  LADE_EXPECT_EQ_UINT(blocks.bytes[1] + blocks.bytes[2] + blocks.bytes[3], stats.reserved_bytes.current);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.allocated, 16);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.freed, 8);
  LADE_EXPECT_GE_UINT(stats.cached_blocks.current, 1);
  LADE_EXPECT_EQ_UINT(blocks.bytes[LADE_PINNED_CACHED], stats.cached_bytes.current);
  expect_levels_agree(&own);
  int calls = 0;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_pinned_blocks_each(own.pool, block_refuse, &calls));
  LADE_EXPECT_EQ_INT(calls, 1);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_blocks_each(own.pool, NULL, NULL));
  support_gate_open(&gate);
  for (int i = 0; i < 8; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, kept[i]));
  fixture_close(&own);
}

/* ---- Levels of the statistics ------------------------------------------------------------------------------------ */

typedef struct class_wanted {
  uint64_t block_bytes;
  lade_pinned_class_stats found;
} class_wanted;

static lade_status class_find(const lade_pinned_class_stats *stats, void *user) {
  class_wanted *own = user;
  if (stats->block_bytes == own->block_bytes && stats->in_use_blocks.allocated > 0) own->found = *stats;
  return LADE_OK;
}

static lade_pinned_class_stats class_of(const fixture *own, uint64_t block_bytes) {
  class_wanted wanted = {.block_bytes = block_bytes};
  LADE_EXPECT_OK(lade_pinned_class_stats_each(own->pool, class_find, &wanted));
  LADE_EXPECT_EQ_UINT(wanted.found.block_bytes, block_bytes);
  return wanted.found;
}

/* Each class keeps peaks of its own, at different moments. Without magazines each call counts, under either policy. */
LADE_TEST(PinnedLevels, PeaksOfClassesAreTheirOwn) {
  static const uint32_t flags[] = {0, LADE_PINNED_DEBUG, LADE_PINNED_REFERENCE};
  for (int i = 0; i < 3; i++) {
    lade_pinned_options options = small_options();
    fixture own;
    support_gate gate;
    void *blocks[10];
    options.flags = flags[i];
    options.magazine_bytes = 1; /* none */
    size_t guard = (flags[i] & LADE_PINNED_DEBUG) != 0 ? LADEI_DEBUG_GUARD_BYTES : 0;
    if (!fixture_open(&own, "sim", &options, &this_machine)) return;
    LADE_ASSERT(support_gate_close(&gate, own.runtime, own.stream));
    for (int round = 0; round < 2; round++) {
      for (int k = 0; k < 10; k++) blocks[k] = alloc(&own, (round == 0 ? 8192 : 32768) - guard);
      for (int k = 0; k < 10; k++) {
        if (k < 6 - round * 2) LADE_EXPECT_OK(lade_pinned_record_event(own.pool, blocks[k], own.stream));
        LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[k]));
      }
      expect_levels_agree(&own);
      if (round == 0) {
        support_gate_open(&gate);
        LADE_EXPECT(support_wait_stream(own.runtime, own.stream));
        LADE_EXPECT_OK(lade_pinned_process_events(own.pool));
        LADE_ASSERT(support_gate_close(&gate, own.runtime, own.stream));
      }
    }
    lade_pinned_class_stats small = class_of(&own, 8192), large = class_of(&own, 32768);
    LADE_EXPECT_EQ_UINT(small.in_use_blocks.peak, 10);
    LADE_EXPECT_EQ_UINT(small.in_use_bytes.peak, 81920);
    LADE_EXPECT_EQ_UINT(small.requested_bytes.peak, 10 * (8192 - guard));
    LADE_EXPECT_EQ_UINT(small.pending_blocks.peak, 6);
    LADE_EXPECT_EQ_UINT(small.pending_bytes.peak, 6 * 8192);
    LADE_EXPECT_EQ_UINT(small.pending_blocks.current, 0);
    LADE_EXPECT_EQ_UINT(large.in_use_blocks.peak, 10);
    LADE_EXPECT_EQ_UINT(large.pending_blocks.peak, 4);
    LADE_EXPECT_EQ_UINT(large.pending_blocks.current, 4);
    LADE_EXPECT_GE_UINT(stats_of(&own).in_use_blocks.peak, 10);
    LADE_EXPECT_LE_UINT(stats_of(&own).in_use_blocks.peak, flags[i] == 0 ? 20 : 10); /* frees may be told late */
    LADE_EXPECT_EQ_UINT(stats_of(&own).pending_blocks.peak, 6);
    support_gate_open(&gate);
    LADE_EXPECT(support_wait_stream(own.runtime, own.stream));
    fixture_close(&own);
  }
}

/* Where nothing stays with the thread, its frees are told all the same: late by a magazine's worth at most. */
LADE_TEST(PinnedLevels, PeakIsWrongByAMagazineAtMost) {
  enum { COUNT = 200 };
  lade_pinned_options options = small_options();
  fixture own;
  void *blocks[COUNT];
  options.magazine_bytes = 1; /* none */
  if (!fixture_open(&own, "sim", &options, &this_machine)) return;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < COUNT; i++) blocks[i] = alloc(&own, (size_t)8192 << round);
    for (int i = 0; i < COUNT; i++) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
  }
  LADE_EXPECT_GE_UINT(stats_of(&own).in_use_blocks.peak, COUNT);
  LADE_EXPECT_LE_UINT(stats_of(&own).in_use_blocks.peak, COUNT + 2 * LADEI_MAGAZINE_MAX_BLOCKS);
  LADE_EXPECT_EQ_UINT(class_of(&own, 8192).in_use_blocks.peak, COUNT);
  LADE_EXPECT_EQ_UINT(class_of(&own, 32768).in_use_blocks.peak, COUNT);
  fixture_close(&own);
}

LADE_TEST(PinnedLevels, NodesAddUpToThePool) {
  lade_pinned_options options = small_options();
  fixture own;
  void *blocks[2][6];
  if (!fixture_open(&own, "sim", &options, &two_nodes)) return;
  for (int node = 0; node < 2; node++) {
    for (int i = 0; i < 6; i++) LADE_EXPECT_OK(lade_pinned_alloc_on(own.pool, 300000, node, &blocks[node][i]));
    expect_levels_agree(&own);
  }
  lade_pinned_stats stats = stats_of(&own);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.peak, 12);
  LADE_EXPECT_EQ_UINT(stats.cached_bytes.current, stats.reserved_bytes.current - stats.in_use_bytes.current);
  for (int i = 0; i < 6; i++) {
    LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[0][i]));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[1][i]));
  }
  expect_levels_agree(&own);
  uint64_t cached = stats_of(&own).cached_bytes.current;
  LADE_EXPECT_EQ_UINT(cached, stats.reserved_bytes.current);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(stats_of(&own).cached_bytes.current, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&own).cached_bytes.peak, cached);
  expect_levels_agree(&own);
  fixture_close(&own);
}

LADE_TEST(PinnedLevels, DriverCallsAreTimed) {
  support_description description;
  support_description_init(&description);
  description.soft.costs.host_pin_bytes_per_s = 1000000000;
  lade_pinned_options options = small_options();
  lade_pinned_pool *pool = NULL;
  lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
  if (runtime == NULL) return;
  void *small = NULL, *large = NULL;
  fixture own = {.runtime = runtime};
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  own.pool = pool;
  LADE_EXPECT_EQ_UINT(stats_of(&own).driver_alloc_min_ns, 0);
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &small));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4 * SEGMENT_BYTES, &large));
  lade_pinned_stats stats = stats_of(&own);
  LADE_EXPECT_EQ_UINT(stats.driver_allocs, 2);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_min_ns, SEGMENT_BYTES);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_max_ns, 4 * SEGMENT_BYTES);
  LADE_EXPECT_EQ_UINT(stats.driver_alloc_ns, 5 * SEGMENT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(pool, small));
  LADE_EXPECT_OK(lade_pinned_free(pool, large));
  LADE_EXPECT_OK(lade_pinned_empty_cache(pool));
  LADE_EXPECT_EQ_UINT(stats_of(&own).driver_frees, 2);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  support_runtime_close(runtime);
}
