/* SPDX-License-Identifier: Apache-2.0 */
/* Debug mode: what it finds, what it tells, and that correct programs have no findings. */
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

/* ---- What the sanitiser is told ------------------------------------------------------------------------------------ */

/* In its own build its shadow says what is forbidden; elsewhere these stand in for its functions, with the last word on each byte. */
#ifdef __SANITIZE_ADDRESS__
#define SANITISED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITISED 1
#endif
#endif

#ifdef SANITISED
int __asan_address_is_poisoned(const volatile void *address);
static bool is_forbidden(const void *address) { return __asan_address_is_poisoned(address) != 0; }
#else
typedef struct told_range {
  uintptr_t low, high;
  bool forbidden;
} told_range;

static told_range told[4096];
static size_t told_count;

static void range_note(const volatile void *memory, size_t bytes, bool forbidden) {
  if (told_count == sizeof told / sizeof *told) told_count = 0; /* pools of other tests */
  told[told_count++] = (told_range){(uintptr_t)memory, (uintptr_t)memory + bytes, forbidden};
}

void __asan_poison_memory_region(const volatile void *memory, size_t bytes);
void __asan_unpoison_memory_region(const volatile void *memory, size_t bytes);
void __asan_poison_memory_region(const volatile void *memory, size_t bytes) { range_note(memory, bytes, true); }
void __asan_unpoison_memory_region(const volatile void *memory, size_t bytes) { range_note(memory, bytes, false); }

static bool is_forbidden(const void *address) {
  for (size_t i = told_count; i > 0; i--)
    if ((uintptr_t)address >= told[i - 1].low && (uintptr_t)address < told[i - 1].high) return told[i - 1].forbidden;
  return false;
}
#endif

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
    pinned_fixture_wrong_write(block + sizes[i] + i);
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
  pinned_fixture_wrong_write(block + 17);
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

LADE_TEST_P(PinnedDebug, FreeMemoryIsForbidden, support_soft_runtimes, runtime) {
  static const size_t sizes[] = {8, 1000, 5000, LADEI_MIB};
  pinned_fixture own;
  if (!debug_open(&own, runtime)) return;
  for (int i = 0; i < 4; i++) {
    char *block = pinned_fixture_alloc(&own, sizes[i]);
    LADE_EXPECT(!is_forbidden(block) && !is_forbidden(block + sizes[i] - 1));
    LADE_EXPECT(is_forbidden(block + sizes[i])); /* all are multiples of 8 */
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT(is_forbidden(block) && is_forbidden(block + sizes[i] - 1));
    LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, sizes[i]), block);
    LADE_EXPECT(!is_forbidden(block) && !is_forbidden(block + sizes[i] - 1));
    LADE_EXPECT_OK(lade_copy_async(own.runtime, own.device, block, 1, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool)); /* given back: other memory may lie there */
    LADE_EXPECT(!is_forbidden(block) && !is_forbidden(block + sizes[i]));
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).debug_findings, 0);
  pinned_fixture_close(&own);
}
