/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs through a graph tree against eager execution in separate memory. LADE_SOAK_SECONDS lets it go on; LADE_TEST_SEED
 * begins with the seed that a failure printed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/graph/checker.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/soak.h"

enum { CALLS_IN_CI = 100000, CALLS_OF_A_PROGRAM = 60 };

static void program_fails(uint64_t seed, const char *text) {
  char *small = checker_shrink(text);
  fprintf(stderr, "LADE_TEST_SEED=%llu repeats it. The program that fails:\n%s", (unsigned long long)seed,
          small != NULL ? small : text);
  free(small);
  LADE_EXPECT(false);
}

LADE_TEST(GraphChecker, NoByteThatIsAliveEverChanges) {
  checker_counts counts = {0, 0};
  uint64_t seed = support_seed(1);
  support_soak soak = support_soak_begin(0);
  while ((counts.calls < CALLS_IN_CI || support_soak_goes_on(&soak)) && !lade_test_has_failed()) {
    char *text = NULL;
    if (!checker_program(seed, CALLS_OF_A_PROGRAM, &counts, &text)) program_fails(seed, text);
    free(text);
    seed++;
  }
  printf("%llu calls in %llu programs\n", (unsigned long long)counts.calls, (unsigned long long)counts.programs);
}
