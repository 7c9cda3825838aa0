/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shuffled order of 0 .. count-1 that takes no memory: the number at any place is computed.
 *
 * A Feistel network permutes the numbers of an even number of bits; results outside the range are permuted again until
 * they are inside (cycle walking), less than four times on average. The round function and the six rounds make orders
 * that the tests cannot distinguish from random ones; they are no cipher.
 */
#ifndef LADE_LOADERS_PERMUTATION_H
#define LADE_LOADERS_PERMUTATION_H

#include <stdint.h>

enum { LADEI_PERMUTATION_ROUNDS = 6 };

typedef struct ladei_permutation {
  uint64_t count;
  unsigned half_bits; /* of a half of the network */
  uint64_t keys[LADEI_PERMUTATION_ROUNDS];
} ladei_permutation;

/* The order that belongs to a seed and an epoch. count is not 0 and below 2^62. */
void ladei_permutation_init(ladei_permutation *permutation, uint64_t count, uint64_t seed, uint64_t epoch);

/* The number at a place below count. */
uint64_t ladei_permutation_at(const ladei_permutation *permutation, uint64_t place);

#endif /* LADE_LOADERS_PERMUTATION_H */
