/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of PyTorch's cache beyond its acceptance checks (pinned_acceptance_test.c). */
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

static bool open_pytorch(pinned_fixture *own, uint32_t more_flags, uint32_t sources) {
  lade_pinned_options options = pinned_fixture_options();
  options.flags = (uint32_t)LADE_PINNED_REFERENCE | more_flags;
  options.sources = sources;
  return pinned_fixture_open(own, support_interposer_open("sim", NULL), &options);
}

LADE_TEST(PolicyPytorch, RefusedMemoryIsAnErrorAtOnce) {
  pinned_fixture own;
  if (!open_pytorch(&own, 0, 0)) return;
  void *block = NULL;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, LADEI_MIB));
  support_fail(own.runtime, "host_alloc", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_alloc(own.pool, 2 * LADEI_MIB, &block));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 0);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, 65 * LADEI_MIB, &block));
  pinned_fixture_close(&own);
}

/* A small block's page holds nothing else of the pool's: debug mode fills, and looks at, its own bytes only. */
LADE_TEST(PolicyPytorch, DebugModeStaysWithinSmallBlocks) {
  pinned_fixture own;
  if (!open_pytorch(&own, LADE_PINNED_DEBUG, 0)) return;
  char *block = pinned_fixture_alloc(&own, 900); /* and a guard: 1024 bytes in all */
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block).bytes, 1024);
  block[1024] = 'x';
  memset(block, 1, 900);
  pinned_fixture_free(&own, block);
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 900), block);
  LADE_EXPECT_EQ_INT(block[1024], 'x');
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 0);
  pinned_fixture_wrong_write(block + 960);
  pinned_fixture_free(&own, block);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 1);
  pinned_fixture_close(&own);
}

/* Sources that work in whole pages, or promise no alignment, serve small blocks as well. */
LADE_TEST(PolicyPytorch, EverySourceServesSmallBlocks) {
  static const uint32_t sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_DRIVER, LADE_PINNED_SOURCE_POOL,
                                     LADE_PINNED_SOURCE_PAGEABLE};
  for (int i = 0; i < 4; i++) {
    pinned_fixture own;
    void *blocks[4];
    if (!open_pytorch(&own, 0, sources[i])) return;
    for (int k = 0; k < 4; k++) {
      blocks[k] = pinned_fixture_alloc(&own, (size_t)100 << k);
      memset(blocks[k], k, (size_t)100 << k);
    }
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 128 + 256 + 512 + 1024);
    for (int k = 0; k < 4; k++) {
      LADE_EXPECT_EQ_INT(((char *)blocks[k])[(100 << k) - 1], k);
      LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, blocks[k]).source, (int)sources[i]);
      pinned_fixture_free(&own, blocks[k]);
    }
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
    pinned_fixture_close(&own);
  }
}
