/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shuffled orders, computed place by place.
 *
 * I1  Each round swaps the halves and changes one by a function of the other, so it can be undone: a permutation.
 * I2  Walking a permutation's cycle from inside the range comes back inside it: a permutation of the range.
 * Locks: none; constant after init.
 */
#include <assert.h>

#include "loaders/permutation.h"

/* Finaliser of SplitMix64 (Steele, Lea, Flood, 2014): every input bit reaches every output bit. */
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

void ladei_permutation_init(ladei_permutation *permutation, uint64_t count, uint64_t seed, uint64_t epoch) {
  const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);
  uint64_t state = mix(seed + step) ^ mix(epoch + 2 * step);
  unsigned bits = count > 1 ? 64 - (unsigned)__builtin_clzll(count - 1) : 1;
  assert(bits <= 64 && (bits == 64 || count <= UINT64_C(1) << bits)); /* I2 */
  permutation->count = count;
  permutation->half_bits = (bits + 1) / 2;
  for (unsigned i = 0; i < LADEI_PERMUTATION_ROUNDS; i++) {
    state += step;
    permutation->keys[i] = mix(state);
  }
}

uint64_t ladei_permutation_at(const ladei_permutation *permutation, uint64_t place) {
  const unsigned half_bits = permutation->half_bits;
  const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
  assert(place < permutation->count); /* otherwise its cycle may never come back inside the range: I2 */
  do {
    uint64_t left = place >> half_bits, right = place & mask;
    for (unsigned i = 0; i < LADEI_PERMUTATION_ROUNDS; i++) {
      uint64_t changed = left ^ (mix(right ^ permutation->keys[i]) & mask);
      left = right;
      right = changed;
    }
    place = left << half_bits | right;
  } while (place >= permutation->count);
  return place;
}
