/* SPDX-License-Identifier: Apache-2.0 */
/* Without <sys/sdt.h> the probes are there as words alone: their arguments are used, and not evaluated. */
#include "base/static_probe.h"

#include "tests/shim/lade_test.h"

#ifdef LADEI_HAS_PROBES
#error "built without LADE_NO_PROBES"
#endif

static int evaluated;
static int evaluate(void) { return ++evaluated; }

LADE_TEST(StaticProbe, OfABuildWithoutThemEvaluatesNothing) {
  const int used_nowhere_else = 3;
  if (used_nowhere_else > 2)
    LADEI_PROBE1(one, evaluate());
  else
    LADEI_PROBE2(two, evaluate(), used_nowhere_else);
  LADEI_PROBE3(three, evaluate(), 2, 3);
  LADEI_PROBE4(four, 1, 2, 3, evaluate());
  LADE_EXPECT_EQ_INT(evaluated, 0);
  LADE_EXPECT_EQ_INT(evaluate(), 1);
}
