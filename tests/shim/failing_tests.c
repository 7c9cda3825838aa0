/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of expectation, failing, and a skip. expectations_fail_test.sh runs these and demands that each is
 * reported. */
#include "tests/shim/lade_test.h"

#include <pthread.h>
#include <stdio.h>

#include "base/error.h"

LADE_TEST(Fails, Expect) { LADE_EXPECT(1 == 2); }
LADE_TEST(Fails, EqInt) { LADE_EXPECT_EQ_INT(-7, 41); }
LADE_TEST(Fails, NeInt) { LADE_EXPECT_NE_INT(5, 5); }
LADE_TEST(Fails, LtInt) { LADE_EXPECT_LT_INT(5, 5); }
LADE_TEST(Fails, LeInt) { LADE_EXPECT_LE_INT(6, 5); }
LADE_TEST(Fails, GtInt) { LADE_EXPECT_GT_INT(5, 5); }
LADE_TEST(Fails, GeInt) { LADE_EXPECT_GE_INT(-6, 5); }
LADE_TEST(Fails, EqSize) { LADE_EXPECT_EQ_SIZE(4096, 512); }
LADE_TEST(Fails, LtUint) { LADE_EXPECT_LT_UINT(UINT64_MAX, 0); }
LADE_TEST(Fails, Near) { LADE_EXPECT_NEAR(1.0, 1.5, 0.25); }
LADE_TEST(Fails, EqPtr) { LADE_EXPECT_EQ_PTR(NULL, (void *)0x1000); }
LADE_TEST(Fails, EqStr) { LADE_EXPECT_EQ_STR("bow", "stern"); }
LADE_TEST(Fails, EqStrNull) { LADE_EXPECT_EQ_STR("keel", NULL); }
LADE_TEST(Fails, ContainsStr) { LADE_EXPECT_CONTAINS_STR("hull", "mast"); }
LADE_TEST(Fails, EqMem) { LADE_EXPECT_EQ_MEM("abcd", "abXY", 4); }
LADE_TEST(Fails, Fail) { LADE_FAIL("block %d is lost", 17); }

LADE_TEST(Fails, StatusWithErrorText) { LADE_EXPECT_OK(ladei_error(LADE_ERR_LIMIT, 0, "%d bytes over the cap", 512)); }

LADE_TEST(Fails, StatusWithoutErrorTextOfAnotherCode) {
  (void)ladei_error(LADE_ERR_LIMIT, 0, "AN OLDER FAILURE");
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, LADE_NOT_READY);
}

LADE_TEST(Fails, Context) {
  lade_test_context("seed %u", 99u);
  LADE_EXPECT(0 > 1);
}

LADE_TEST(Fails, AssertReturns) {
  LADE_ASSERT_EQ_INT(1, 3);
  puts("WENT ON AFTER ASSERT");
}

LADE_TEST(Fails, HasFailedTells) {
  LADE_EXPECT(false);
  if (lade_test_has_failed()) puts("FAILURE KNOWN");
}

static void *fail_in_thread(void *unused) {
  LADE_EXPECT_EQ_INT(20, 22);
  return unused;
}

LADE_TEST(Fails, InAnotherThread) {
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, fail_in_thread, NULL), 0);
  pthread_join(thread, NULL);
}

LADE_TEST(Skips, AndReturns) {
  LADE_SKIP("no winch aboard");
  puts("WENT ON AFTER SKIP");
}

LADE_TEST(Passes, WithoutContextOfTheTestBefore) { LADE_EXPECT(true); }
