/* SPDX-License-Identifier: Apache-2.0 */
/* Shuffled orders: each number once, the same for the same seed and epoch, and without a pattern. */
#include "loaders/permutation.h"

#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"

static void expect_each_once(uint64_t count, uint64_t seed) {
  ladei_permutation permutation;
  unsigned char *seen = calloc(1, count);
  LADE_ASSERT(seen != NULL);
  ladei_permutation_init(&permutation, count, seed, 0);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t number = ladei_permutation_at(&permutation, i);
    if (number >= count || seen[number]++ != 0) {
      LADE_FAIL("%llu of %llu: %llu comes twice or is none", (unsigned long long)i, (unsigned long long)count,
                (unsigned long long)number);
      break;
    }
  }
  free(seen);
}

LADE_TEST(Permutation, HasEachNumberOnce) {
  for (uint64_t count = 1; count <= 300; count++) expect_each_once(count, count);
  static const uint64_t counts[] = {1023, 1024, 1025, 4095, 4096, 4097, 65537, 100000};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) expect_each_once(counts[i], 7);
}

LADE_TEST(Permutation, StaysInRangeOfVastSets) {
  ladei_permutation permutation;
  const uint64_t count = (UINT64_C(1) << 61) + 12345;
  ladei_permutation_init(&permutation, count, 1, 2);
  for (uint64_t i = 0; i < 1000; i++) LADE_EXPECT_LT_UINT(ladei_permutation_at(&permutation, count - 1 - i), count);
}

/* How many of 1000 places hold the same number in both. */
static unsigned matches(uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b, uint64_t epoch_b) {
  ladei_permutation a, b;
  unsigned same = 0;
  ladei_permutation_init(&a, 1000, seed_a, epoch_a);
  ladei_permutation_init(&b, 1000, seed_b, epoch_b);
  for (uint64_t i = 0; i < 1000; i++) same += ladei_permutation_at(&a, i) == ladei_permutation_at(&b, i);
  return same;
}

LADE_TEST(Permutation, DependsOnSeedAndEpochAlone) {
  LADE_EXPECT_EQ_UINT(matches(5, 9, 5, 9), 1000);
  LADE_EXPECT_LE_UINT(matches(5, 9, 5, 10), 10); /* one on average */
  LADE_EXPECT_LE_UINT(matches(5, 9, 6, 9), 10);
  LADE_EXPECT_LE_UINT(matches(5, 9, 9, 5), 10);
  LADE_EXPECT_LE_UINT(matches(0, 0, 0, 1), 10);
}

/* Chi-squared of where numbers come, over many seeds: 99.99 % of random orders stay below the bounds. */
LADE_TEST(Permutation, SendsEachNumberEverywhereAlike) {
  enum { COUNT = 11, SEEDS = 22000 };
  static unsigned hits[COUNT][COUNT];
  memset(hits, 0, sizeof hits);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    ladei_permutation permutation;
    ladei_permutation_init(&permutation, COUNT, seed, 0);
    for (uint64_t i = 0; i < COUNT; i++) hits[i][ladei_permutation_at(&permutation, i)]++;
  }
  const double expected = (double)SEEDS / COUNT;
  for (size_t place = 0; place < COUNT; place++) {
    double chi = 0;
    for (size_t number = 0; number < COUNT; number++)
      chi += ((double)hits[place][number] - expected) * ((double)hits[place][number] - expected) / expected;
    LADE_EXPECT(chi < 35.6); /* ten degrees of freedom */
  }
}

/* Of neighbours in the order, the second is larger half of the time, however far they are apart. */
LADE_TEST(Permutation, HasNoRuns) {
  enum { COUNT = 100000 };
  ladei_permutation permutation;
  unsigned rises = 0, near = 0;
  ladei_permutation_init(&permutation, COUNT, 3, 1);
  uint64_t before = ladei_permutation_at(&permutation, 0);
  for (uint64_t i = 1; i < COUNT; i++) {
    uint64_t number = ladei_permutation_at(&permutation, i);
    rises += number > before;
    near += number > before ? number - before <= 10 : before - number <= 10;
    before = number;
  }
  LADE_EXPECT_NEAR(rises, COUNT / 2, 700); /* four standard deviations of a random order are 365 */
  LADE_EXPECT_NEAR(near, 20, 20);
}
