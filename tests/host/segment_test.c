/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: cutting and joining keep the blocks a partition, and any address leads to its block. */
#include "host/blocks/segment.h"

#include <sys/mman.h>

#include "base/populate.h"
#include "host/blocks/run.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { PAGES = 10000 };

/* Addresses only: nothing in these files touches the memory of a segment. */
static const uintptr_t base = (uintptr_t)1 << 40;

static ladei_pinned_segment *segment_create(size_t pages) {
  ladei_pinned_segment *segment = ladei_pinned_segment_create(pages);
  if (segment != NULL) {
    atomic_store(&segment->base, base);
    atomic_store(&segment->page_count, pages);
    ladei_pinned_segment_open(segment, 3);
  }
  return segment;
}

static void expect_find(const ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  size_t page = ladei_pinned_segment_page_of(segment, block), pages = ladei_pinned_block_pages(block);
  const size_t inside[] = {0, pages / 2, pages - 1};
  for (int i = 0; i < 3; i++) {
    uintptr_t address = base + ((page + inside[i]) << LADEI_PINNED_PAGE_SHIFT) + (i == 2 ? 4095 : 0);
    LADE_ASSERT_EQ_PTR(ladei_pinned_segment_find(segment, address), block);
  }
}

/* A block of the segment, whichever random address leads to. */
static ladei_pinned_block *random_block(const ladei_pinned_segment *segment, support_random *random) {
  return ladei_pinned_segment_find(segment, base + support_random_below(random, ladei_pinned_segment_bytes(segment)));
}

static void cut_or_join(ladei_pinned_segment *segment, ladei_pinned_block *block, support_random *random) {
  if (ladei_pinned_word_state(ladei_pinned_block_word(block)) == LADEI_PINNED_BLOCK_CACHED) {
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_FREE);
    ladei_pinned_block *after = ladei_pinned_segment_after(segment, block),
                       *before = ladei_pinned_segment_before(segment, block);
    if (after != NULL) ladei_pinned_segment_coalesce(segment, block, after);
    if (before != NULL) ladei_pinned_segment_coalesce(segment, before, block);
  } else {
    size_t pages = support_random_size(random, ladei_pinned_block_pages(block));
    ladei_pinned_segment_split(segment, block, pages);
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    LADE_ASSERT_EQ_SIZE(ladei_pinned_block_bytes(block, ladei_pinned_block_word(block)),
                        pages << LADEI_PINNED_PAGE_SHIFT);
  }
}

/* Pages of records in memory, of those of `count` blocks. */
static size_t record_pages_resident(const ladei_pinned_segment *segment, size_t count) {
  unsigned char pages[1024];
  size_t bytes = count * sizeof(ladei_pinned_block), resident = 0;
  LADE_EXPECT_EQ_INT(mincore(segment->blocks, bytes, pages), 0);
  for (size_t i = 0; i < (bytes + 4095) / 4096; i++) resident += pages[i] & 1;
  return resident;
}

/* Old kernels refuse the advice, and an emulator of another processor takes it and does nothing. */
static bool system_populates(void) {
  unsigned char resident = 0;
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_EXPECT(page != MAP_FAILED);
  (void)madvise(page, 4096, MADV_POPULATE_WRITE);
  LADE_EXPECT_EQ_INT(mincore(page, 4096, &resident), 0);
  LADE_EXPECT_EQ_INT(munmap(page, 4096), 0);
  return (resident & 1) != 0;
}

LADE_TEST(Segment, GetsTheMemoryOfItsRecordsAtOnceAndNoMore) {
  ladei_pinned_segment *segment = segment_create(PAGES);
  LADE_ASSERT(segment != NULL);
  LADE_EXPECT_EQ_SIZE(record_pages_resident(segment, segment->capacity_pages), 1);
  ladei_pinned_segment_populate(segment);
  size_t expected = system_populates() ? (PAGES * sizeof(ladei_pinned_block) + 4095) / 4096 : 1;
  LADE_EXPECT_EQ_SIZE(record_pages_resident(segment, segment->capacity_pages), expected);
  ladei_pinned_segment_destroy(segment);
}

LADE_TEST(Segment, StaysAPartitionUnderRandomCuttingAndJoining) {
  support_random random;
  support_random_start(&random, 3);
  ladei_pinned_segment *segment = segment_create(PAGES);
  LADE_ASSERT(segment != NULL);
  for (int step = 0; step < 4000 && !lade_test_has_failed(); step++) {
    ladei_pinned_block *block = random_block(segment, &random);
    LADE_ASSERT(block != NULL);
    expect_find(segment, block);
    cut_or_join(segment, block, &random);
    if (step % 8 == 0) LADE_ASSERT_OK(ladei_pinned_segment_check(segment));
  }
  ladei_pinned_segment_destroy(segment);
}

LADE_TEST(Segment, FindAnswersNothingForAddressesOfOthers) {
  ladei_pinned_segment *segment = segment_create(100);
  LADE_ASSERT(segment != NULL);
  LADE_EXPECT_EQ_PTR(ladei_pinned_segment_find(segment, base - 1), NULL);
  LADE_EXPECT_EQ_PTR(ladei_pinned_segment_find(segment, base + ((uintptr_t)segment->capacity_pages << 12)), NULL);
  LADE_EXPECT_EQ_PTR(ladei_pinned_segment_find(segment, 0), NULL);
  LADE_EXPECT_EQ_PTR(ladei_pinned_segment_find(segment, UINTPTR_MAX), NULL);
  ladei_pinned_segment_reset(segment);
  LADE_EXPECT_EQ_PTR(ladei_pinned_segment_find(segment, base), NULL);
  ladei_pinned_segment_destroy(segment);
}

LADE_TEST(Segment, CheckNoticesEachBrokenInvariant) {
  ladei_pinned_segment *segment = segment_create(64);
  LADE_ASSERT(segment != NULL);
  ladei_pinned_block *first = &segment->blocks[0];
  ladei_pinned_block *rest = ladei_pinned_segment_split(segment, first, 8);
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_pinned_segment_check(segment)); /* I3: both free */
  ladei_pinned_block_state_set(first, LADEI_PINNED_BLOCK_CACHED);
  LADE_EXPECT_OK(ladei_pinned_segment_check(segment));
  rest->prev_pages = 7; /* I1 */
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_pinned_segment_check(segment));
  rest->prev_pages = 8;
  atomic_fetch_xor(&segment->starts[0], (uint64_t)1 << 8); /* I2: a start not marked */
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_pinned_segment_check(segment));
  atomic_fetch_xor(&segment->starts[0], (uint64_t)1 << 8 | (uint64_t)1 << 20); /* I2: a mark without start */
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_pinned_segment_check(segment));
  atomic_fetch_xor(&segment->starts[0], (uint64_t)1 << 20);
  ladei_pinned_block_state_set(&segment->blocks[3], LADEI_PINNED_BLOCK_RUN); /* I4 */
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_pinned_segment_check(segment));
  ladei_pinned_segment_destroy(segment);
}

LADE_TEST(Run, FillsItsPagesWithNaturallyAlignedBlocks) {
  ladei_pinned_segment *segment = segment_create(64);
  static ladei_pinned_run run;
  LADE_ASSERT(segment != NULL);
  for (unsigned i = 0; i < LADEI_PINNED_SMALL_CLASSES; i++) {
    size_t bytes = ladei_pinned_class_bytes(i), pages = ladei_pinned_run_pages(i);
    LADE_ASSERT_EQ_SIZE(ladei_pinned_run_blocks(i) * bytes, pages << LADEI_PINNED_PAGE_SHIFT);
    ladei_pinned_segment_split(segment, &segment->blocks[0], pages);
    ladei_pinned_run_open(&run, segment, &segment->blocks[0], i);
    for (unsigned block = 0; block < ladei_pinned_run_blocks(i); block++) {
      LADE_ASSERT(!ladei_pinned_run_is_full(&run));
      ladei_pinned_block *taken = ladei_pinned_run_take(&run);
      uintptr_t address = ladei_pinned_block_address(taken);
      LADE_EXPECT_EQ_SIZE(address - base, block * bytes);
      LADE_EXPECT_EQ_SIZE(address % (bytes & (0 - bytes)), 0);
      LADE_EXPECT_EQ_PTR(ladei_pinned_run_find(&run, address + bytes - 1), taken);
      LADE_EXPECT_OK(ladei_pinned_run_check(&run));
    }
    LADE_EXPECT(ladei_pinned_run_is_full(&run));
    LADE_EXPECT_OK(ladei_pinned_segment_check(segment));
    for (unsigned block = 0; block < ladei_pinned_run_blocks(i); block++)
      ladei_pinned_run_put(&run, &run.blocks[block]);
    LADE_EXPECT(ladei_pinned_run_is_empty(&run));
    ladei_pinned_run_close(&run);
    ladei_pinned_segment_coalesce(segment, &segment->blocks[0],
                                  ladei_pinned_segment_after(segment, &segment->blocks[0]));
    LADE_EXPECT_OK(ladei_pinned_segment_check(segment));
  }
  ladei_pinned_segment_destroy(segment);
}
