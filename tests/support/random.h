/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded pseudo-random numbers: the same seed gives the same numbers on every machine.
 *
 *   support_random random;
 *   support_random_start(&random, 42);                      // every later failure prints the seed
 *   size_t bytes = support_random_between(&random, 1, 4096);
 *
 * The environment variable LADE_TEST_SEED overrides the seed given, so that a failure can be replayed.
 */
#ifndef LADE_TESTS_SUPPORT_RANDOM_H
#define LADE_TESTS_SUPPORT_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct support_random {
  uint64_t state;
} support_random;

/* LADE_TEST_SEED where it is set to a number, else `otherwise`. */
uint64_t support_seed(uint64_t otherwise);

/* Starts at support_seed(seed) and makes it the running test's context. */
void support_random_start(support_random *random, uint64_t seed);

/* Starts at `seed` exactly, and says nothing: for loops over many seeds, and for threads. */
void support_random_start_quietly(support_random *random, uint64_t seed);

uint64_t support_random_next(support_random *random);

/* 0 .. limit-1; limit is not 0. */
uint64_t support_random_below(support_random *random, uint64_t limit);

/* low .. high, both included. */
uint64_t support_random_between(support_random *random, uint64_t low, uint64_t high);

/* True once in `n` calls on average. */
bool support_random_one_in(support_random *random, uint64_t n);

/* A size whose logarithm is spread evenly over 1 .. high: small ones are as likely as large ones. */
size_t support_random_size(support_random *random, size_t high);

#endif /* LADE_TESTS_SUPPORT_RANDOM_H */
