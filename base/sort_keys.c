/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorting by digits of 11 bits, the lowest first, between two arrays:
 *
 *   keys [count] | scratch [count]      each pass moves all from one to the other, in the order of one digit
 *
 * Locks: none.
 */
#include "base/sort_keys.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

ladei_sort_key *ladei_sort_keys_create(size_t count) {
  size_t bytes;
  if (!ladei_size_mul(count, 2 * sizeof(ladei_sort_key), &bytes)) return NULL;
  return malloc(bytes + 1);
}

/* False: all keys have the same digit, and nothing was moved. */
static bool pass(const ladei_sort_key *from, ladei_sort_key *to, size_t count, uint64_t low, unsigned shift) {
  size_t places[DIGITS] = {0};
  for (size_t i = 0; i < count; i++) places[(from[i].key - low) >> shift & (DIGITS - 1)]++;
  size_t place = 0;
  for (size_t digit = 0; digit < DIGITS; digit++) {
    size_t here = places[digit];
    if (here == count) return false;
    places[digit] = place;
    place += here;
  }
  for (size_t i = 0; i < count; i++) to[places[(from[i].key - low) >> shift & (DIGITS - 1)]++] = from[i];
  return true;
}

void ladei_sort_keys(ladei_sort_key *keys, size_t count, size_t created) {
  ladei_sort_key *from = keys, *to = keys + created;
  uint64_t low = UINT64_MAX, high = 0;
  for (size_t i = 0; i < count; i++) {
    if (keys[i].key < low) low = keys[i].key;
    if (keys[i].key > high) high = keys[i].key;
  }
  for (unsigned shift = 0; count > 1 && shift < 64 && (high - low) >> shift != 0; shift += DIGIT_BITS) {
    if (!pass(from, to, count, low, shift)) continue;
    ladei_sort_key *sorted = to;
    to = from;
    from = sorted;
  }
  if (from != keys && count > 0) memcpy(keys, from, count * sizeof *keys);
}
