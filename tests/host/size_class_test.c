/* SPDX-License-Identifier: Apache-2.0 */
/* Size classes: every request gets the smallest class that holds it, and no class is more than promised too large. */
#include "host/blocks/size_class.h"

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

LADE_TEST(SizeClass, EachClassServesExactlyTheSizesUpToItsOwn) {
  size_t below = 0;
  for (unsigned i = 0; i < LADEI_PINNED_CLASSES; i++) {
    size_t bytes = ladei_pinned_class_bytes(i);
    LADE_ASSERT_GT_SIZE(bytes, below);
    LADE_ASSERT_EQ_UINT(ladei_pinned_class_of(bytes), i);
    LADE_ASSERT_EQ_UINT(ladei_pinned_class_of(below + 1), i);
    below = bytes;
  }
  LADE_EXPECT_EQ_SIZE(below, LADEI_PINNED_MAX_BYTES);
}

LADE_TEST(SizeClass, WastesAtMostAnEighthOrAStep) {
  support_random random;
  support_random_start(&random, 1);
  for (int i = 0; i < 100000; i++) {
    size_t bytes = support_random_size(&random, LADEI_PINNED_MAX_BYTES);
    size_t got = ladei_pinned_class_bytes(ladei_pinned_class_of(bytes));
    size_t step = bytes <= 7 * LADEI_PINNED_GRANULE_BYTES ? LADEI_PINNED_GRANULE_BYTES : LADEI_PINNED_PAGE_BYTES;
    LADE_ASSERT_GE_SIZE(got, bytes);
    LADE_ASSERT_LT_SIZE(got - bytes, ladei_size_max(step, bytes / 8 + step));
    if (bytes >= 32 * LADEI_KIB) LADE_ASSERT_LE_SIZE(got, bytes + ladei_size_max(bytes / 8, LADEI_PINNED_PAGE_BYTES));
  }
}

LADE_TEST(SizeClass, LargeBlocksWasteAtMostASixtyFourth) {
  support_random random;
  support_random_start(&random, 2);
  for (int i = 0; i < 100000; i++) {
    size_t pages = support_random_size(&random, (size_t)1 << LADEI_PINNED_MAX_PAGES_LOG2);
    size_t bytes = pages * LADEI_PINNED_PAGE_BYTES, got = ladei_pinned_pages_per_block(bytes);
    size_t class_bytes = ladei_pinned_class_bytes(ladei_pinned_class_of_pages(pages));
    LADE_ASSERT_GE_SIZE(got, pages);
    LADE_ASSERT_LE_SIZE(got * LADEI_PINNED_PAGE_BYTES, class_bytes);
    if (bytes > LADEI_MIB)
      LADE_ASSERT_LE_SIZE(got, pages + pages / 64);
    else
      LADE_ASSERT_EQ_SIZE(got * LADEI_PINNED_PAGE_BYTES, class_bytes); /* magazines take them to be alike */
    LADE_ASSERT_EQ_SIZE(ladei_pinned_pages_per_block(got * LADEI_PINNED_PAGE_BYTES), got);
  }
}

LADE_TEST(SizeClass, PowersOfTwoAreClassesOfTheirOwn) {
  for (size_t bytes = LADEI_PINNED_GRANULE_BYTES; bytes <= LADEI_PINNED_MAX_BYTES; bytes *= 2)
    LADE_EXPECT_EQ_SIZE(ladei_pinned_class_bytes(ladei_pinned_class_of(bytes)), bytes);
}
