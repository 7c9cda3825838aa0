/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader of a stale pointer may meet on the way to a block. */
#include "host/caches/pointer_lookup.h"

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

static const uintptr_t base = (uintptr_t)1 << 40;

/* The bug: the reader saw RUN, the run was closed and its pages were linked into a list of free blocks, and the link was
 * taken for a run. */
LADE_TEST(Owner, LinkOfAListIsNoRun) {
  enum { PAGES = 64 };
  uint64_t word = 0;
  ladei_pinned_segment *segment = ladei_pinned_segment_create(PAGES);
  LADE_ASSERT(segment != NULL);
  atomic_store(&segment->base, base);
  atomic_store(&segment->page_count, PAGES);
  atomic_store(&segment->bytes, (size_t)PAGES << LADEI_PINNED_PAGE_SHIFT);
  ladei_pinned_block *first = ladei_pinned_segment_open(segment, 0);
  ladei_pinned_block *second = ladei_pinned_segment_split(segment, first, 4);
  ladei_pinned_block_next_set(first, (ladei_pinned_block *)(UINTPTR_MAX / 2)); /* where a run has its class */
  ladei_pinned_block_prev_set(second, first);
  ladei_pinned_block_state_set(second, LADEI_PINNED_BLOCK_RUN); /* what the reader saw before */
  LADE_EXPECT(ladei_pinned_lookup_find_start(segment, ladei_pinned_block_address(second), &word) == NULL);
  ladei_pinned_segment_destroy(segment);
}

static ladei_pinned_lookup owner_of(const pinned_fixture *own, const void *pointer) {
  return ladei_pinned_lookup_find(&own->pool->map, pointer);
}

/* The bug: generations began at zero again in the next segment that used the records. A thread that had looked at a block
 * before and went on after that took another's block for it, and its compare-and-swap succeeded. */
LADE_TEST(Owner, WordsOfOneSegmentDoNotComeTrueInTheNext) {
  enum { LIVES = 3, BLOCKS = 4 };
  pinned_fixture own;
  ladei_pinned_lookup before[BLOCKS], now[BLOCKS];
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  for (int life = 0; life < LIVES; life++) {
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
      blocks[i] = pinned_fixture_alloc(&own, 64 * LADEI_KIB);
      now[i] = owner_of(&own, blocks[i]);
      LADE_ASSERT(now[i].block != NULL);
    }
    for (int i = 0; life > 0 && i < BLOCKS; i++) {
      for (int k = 0; k < BLOCKS; k++)
        if (now[i].block == before[k].block) LADE_EXPECT_GT_UINT(now[i].word >> 32, before[k].word >> 32);
      LADE_EXPECT_EQ_PTR(now[i].segment, before[i].segment); /* the records are the same, or this tests nothing */
    }
    for (int i = 0; i < BLOCKS; i++) {
      before[i] = now[i];
      pinned_fixture_free(&own, blocks[i]);
    }
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
  }
  pinned_fixture_close(&own);
}
