/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Tests of the test shim: expectations that hold pass, and registration runs what it says. */
#include "tests/shim/lade_test.h"

#include <limits.h>
#include <string.h>

static int evaluations;

static int evaluate(void) { return ++evaluations; }

LADE_TEST(Shim, EvaluatesArgumentsOnce) {
  evaluations = 0;
  LADE_EXPECT_EQ_INT(evaluate(), 1);
  LADE_EXPECT_EQ_UINT(evaluate(), 2);
  LADE_EXPECT(evaluate() == 3);
  LADE_EXPECT_EQ_INT(evaluations, 3);
}

LADE_TEST(Shim, ComparesIntegersOverTheirWholeRange) {
  LADE_EXPECT_LT_INT(INTMAX_MIN, -1);
  LADE_EXPECT_LE_INT(-1, -1);
  LADE_EXPECT_GT_INT(INTMAX_MAX, INT_MAX);
  LADE_EXPECT_GE_INT(0, -1);
  LADE_EXPECT_NE_INT(INT_MIN, INT_MAX);
  LADE_EXPECT_GT_UINT(UINTMAX_MAX, INTMAX_MAX);
  LADE_EXPECT_EQ_SIZE(SIZE_MAX, UINT64_MAX);
  LADE_EXPECT_LT_SIZE(sizeof(char), sizeof(int));
  LADE_EXPECT_LE_UINT(0, 0);
  LADE_EXPECT_GE_UINT(1, 0);
  LADE_EXPECT_NE_UINT(1, 0);
}

LADE_TEST(Shim, ComparesPointersStringsAndBytes) {
  char a[] = "cargo", b[] = "cargo";
  LADE_EXPECT_EQ_PTR(a, &a[0]);
  LADE_EXPECT_NE_PTR(a, b);
  LADE_EXPECT_EQ_STR(a, b);
  LADE_EXPECT_EQ_STR(NULL, NULL);
  LADE_EXPECT_CONTAINS_STR(a, "arg");
  LADE_EXPECT_EQ_MEM(a, b, sizeof a);
  LADE_EXPECT_EQ_MEM(a, "carts", 3);
  LADE_EXPECT_EQ_MEM(NULL, NULL, 0);
  LADE_EXPECT_NEAR(0.1 + 0.2, 0.3, 1e-12);
}

LADE_TEST(Shim, ComparesStatusCodes) {
  LADE_EXPECT_OK(LADE_OK);
  LADE_EXPECT_STATUS(LADE_NOT_READY, LADE_NOT_READY);
}

static int lines_after_assert;

static void assert_in_helper(bool condition) {
  LADE_ASSERT(condition);
  lines_after_assert++;
}

LADE_TEST(Shim, AssertThatHoldsDoesNotReturn) {
  lines_after_assert = 0;
  assert_in_helper(true);
  LADE_EXPECT_EQ_INT(lines_after_assert, 1);
  LADE_EXPECT(!lade_test_has_failed());
}

static const char *const flavours[] = {"sim", "cpu", NULL};
static char flavours_seen[16];

LADE_TEST_P(ShimEach, RunsForEachParameter, flavours, flavour) { strcat(strcat(flavours_seen, flavour), " "); }

/* GoogleTest runs suites in the order of their registration, which is that of the constructors in a file. */
LADE_TEST(ShimEachCheck, AllParametersWereSeenOnce) {
  if (flavours_seen[0] == '\0') LADE_SKIP("filtered or shuffled: ShimEach did not run before");
  LADE_EXPECT_EQ_STR(flavours_seen, "sim cpu ");
}
