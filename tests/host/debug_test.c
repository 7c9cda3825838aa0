/* SPDX-License-Identifier: Apache-2.0 */
/* Debug mode: what it finds, what it tells, and that correct programs have no findings. */
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

static bool debug_open(pinned_fixture *own, const char *runtime) {
  lade_pinned_options options = pinned_fixture_options();
  options.flags = LADE_PINNED_DEBUG;
  return pinned_fixture_open(own, support_runtime_open(runtime), &options);
}

LADE_TEST_P(PinnedDebug, CorrectProgramsHaveNoFindings, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {
      1, 448, 512, 3500, 4096, 70000, LADEI_MIB, PINNED_FIXTURE_SEGMENT_BYTES, PINNED_FIXTURE_SEGMENT_BYTES + 1};
  pinned_fixture own;
  void *blocks[9];
  if (!debug_open(&own, runtime)) return;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 9; i++) {
      blocks[i] = pinned_fixture_alloc(&own, sizes[i]);
      memset(blocks[i], round, sizes[i]);
      LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, blocks[i], 1, own.streams[0]));
      LADE_EXPECT_OK(lade_pinned_record_event(own.pool, blocks[i], own.streams[0]));
    }
    for (int i = 0; i < 9; i += 2) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
    for (int i = 1; i < 9; i += 2) LADE_EXPECT_OK(lade_pinned_free(own.pool, blocks[i]));
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    if (round == 1) LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 0);
  LADE_EXPECT_EQ_STR(lade_pinned_debug_last(own.pool), "");
  pinned_fixture_close(&own);
}

/* Bug: with its guard behind it a block of 1 KiB or 2 KiB was one of another size, at a multiple of 512 bytes. */
LADE_TEST_P(PinnedDebug, BlocksAreAlignedAsWithoutIt, support_soft_runtimes, runtime) {
  enum { COUNT = 48 };
  pinned_fixture own;
  void *blocks[COUNT];
  if (!debug_open(&own, runtime)) return;
  for (int i = 0; i < COUNT; i++) {
    size_t bytes = (size_t)256 << i % 6; /* to 8 KiB */
    blocks[i] = pinned_fixture_alloc(&own, bytes);
    LADE_EXPECT_EQ_SIZE((uintptr_t)blocks[i] % (bytes < 512 ? 512 : bytes > 4096 ? 4096 : bytes), 0);
    memset(blocks[i], i, bytes);
  }
  for (int i = 0; i < COUNT; i++) pinned_fixture_free(&own, blocks[i]);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 0);
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedDebug, WriteBehindTheEndIsFoundAtFree, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {1, 512, 1024, 2048, 4096, 100000};
  pinned_fixture own;
  if (!debug_open(&own, runtime)) return;
  for (int i = 0; i < 6; i++) {
    char *block = pinned_fixture_alloc(&own, sizes[i]);
    block[sizes[i] + (size_t)i] = 1;
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, (uint64_t)i + 1);
    LADE_EXPECT_CONTAINS_STR(lade_pinned_debug_last(own.pool), "after its end; allocated by 0x");
  }
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedDebug, WriteAfterFreeIsFoundWhenHandedOutAgain, support_soft_runtimes, runtime) {
  pinned_fixture own;
  if (!debug_open(&own, runtime)) return;
  char *block = pinned_fixture_alloc(&own, 5000);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  block[17] = 1;
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 0);
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 5000), block);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 1);
  LADE_EXPECT_CONTAINS_STR(lade_pinned_debug_last(own.pool), "offset 17 while it was free; allocated by 0x");
  LADE_EXPECT_CONTAINS_STR(lade_pinned_debug_last(own.pool), "freed by 0x");
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedDebug, DoubleFreeTellsWhoHadTheBlock, support_soft_runtimes, runtime) {
  pinned_fixture own;
  if (!debug_open(&own, runtime)) return;
  void *block = pinned_fixture_alloc(&own, 5000);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_free(own.pool, block));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "expected a block in use; allocated by 0x");
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_record_event(own.pool, block, own.streams[0]));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, ", freed by 0x");
  pinned_fixture_close(&own);
}
