/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generator is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): a counter
 * stepped by the golden ratio and mixed. Any seed is a good one, 0 and neighbours too.
 */
#include "tests/support/random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tests/shim/lade_test.h"

uint64_t support_seed(uint64_t otherwise) {
  const char *text = getenv("LADE_TEST_SEED");
  if (text == NULL || *text == '\0') return otherwise;
  char *end;
  errno = 0;
  uint64_t seed = strtoull(text, &end, 0);
  if (errno != 0 || *end != '\0') {
    LADE_FAIL("LADE_TEST_SEED=%s is no number", text);
    return otherwise;
  }
  return seed;
}

void support_random_start(support_random *random, uint64_t seed) {
  seed = support_seed(seed);
  support_random_start_quietly(random, seed);
  lade_test_context("LADE_TEST_SEED=%" PRIu64 " replays this", seed);
}

void support_random_start_quietly(support_random *random, uint64_t seed) { random->state = seed; }

uint64_t support_random_next(support_random *random) {
  uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

uint64_t support_random_below(support_random *random, uint64_t limit) {
  /* The high half of a 128-bit product: the bias is limit / 2^64, far below what a test could see. */
  return (uint64_t)(((unsigned __int128)support_random_next(random) * limit) >> 64);
}

uint64_t support_random_between(support_random *random, uint64_t low, uint64_t high) {
  uint64_t span = high - low;
  return span == UINT64_MAX ? support_random_next(random) : low + support_random_below(random, span + 1);
}

bool support_random_one_in(support_random *random, uint64_t n) { return support_random_below(random, n) == 0; }

size_t support_random_size(support_random *random, size_t high) {
  unsigned bits = 64u - (unsigned)__builtin_clzl(high);
  unsigned chosen = (unsigned)support_random_between(random, 1, bits);
  size_t top = chosen == 64 ? SIZE_MAX : ((size_t)1 << chosen) - 1;
  return support_random_between(random, (size_t)1 << (chosen - 1), top < high ? top : high);
}
