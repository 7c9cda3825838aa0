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
  char *small = checker_shrink(text, seed);
  fprintf(stderr, "LADE_TEST_SEED=%llu repeats it. The program that fails:\n%s", (unsigned long long)seed,
          small != NULL ? small : text);
  free(small);
  LADE_EXPECT(false);
}

/* The programs come to everything that a tree does. */
static void counts_check(const checker_counts *counts) {
  static const char *const dids[] = {"error", "eager", "warmup", "record", "replay"};
  const session_counts *runs = &counts->runs;
  printf("%llu calls in %llu programs:", (unsigned long long)counts->calls, (unsigned long long)counts->programs);
  for (size_t i = 0; i < 5; i++) {
    printf(" %s %llu", dids[i], (unsigned long long)runs->did[i]);
    LADE_EXPECT_GE_UINT(runs->did[i], counts->calls / 200);
  }
  printf("; ended %llu, restored %llu, carried %llu; reasons", (unsigned long long)runs->ended,
         (unsigned long long)runs->restored, (unsigned long long)runs->carried);
  for (size_t i = 0; i < LADE_GRAPH_REASON_COUNT; i++) {
    printf(" %llu", (unsigned long long)runs->mismatches[i]);
    if (i != LADE_GRAPH_REASON_PRIOR) LADE_EXPECT_GE_UINT(runs->mismatches[i], 5);
  }
  printf("\n");
  LADE_EXPECT_GE_UINT(runs->ended, counts->calls / 20);
  LADE_EXPECT_GE_UINT(runs->restored, counts->calls / 200);
  LADE_EXPECT_GE_UINT(runs->carried, counts->calls / 200);
}

LADE_TEST(GraphChecker, NoByteThatIsAliveEverChanges) {
  checker_counts counts = {0};
  uint64_t seed = support_seed(1);
  support_soak soak = support_soak_begin(0);
  while ((counts.calls < CALLS_IN_CI || support_soak_goes_on(&soak)) && !lade_test_has_failed()) {
    char *text = NULL;
    if (!checker_program(seed, CALLS_OF_A_PROGRAM, &counts, &text)) program_fails(seed, text);
    free(text);
    seed++;
  }
  counts_check(&counts);
}
