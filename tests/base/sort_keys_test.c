/* SPDX-License-Identifier: Apache-2.0 */
/* Keys in order, as qsort() of the C library orders them. */
#include "base/sort_keys.h"

#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

/* Stable, by the index. */
static int key_compare(const void *a, const void *b) {
  const ladei_sort_key *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

static void sorted_like_qsort(support_random *random, size_t count, size_t created, uint64_t base, unsigned bits) {
  ladei_sort_key *keys = ladei_sort_keys_create(created), *expected = malloc((count + 1) * sizeof *expected);
  LADE_ASSERT(keys != NULL && expected != NULL);
  for (size_t i = 0; i < count; i++) {
    uint64_t rest = bits == 0 ? 0 : support_random_next(random) >> (64 - bits);
    expected[i] = keys[i] = (ladei_sort_key){base + rest, i};
  }
  qsort(expected, count, sizeof *expected, key_compare);
  ladei_sort_keys(keys, count, created);
  LADE_EXPECT_EQ_INT(memcmp(keys, expected, count * sizeof *keys), 0);
  free(keys);
  free(expected);
}

LADE_TEST(SortKeys, OrdersAsQsortDoes) {
  static const size_t counts[] = {0, 1, 2, 3, 100, 5000};
  static const unsigned bits[] = {0, 1, 5, 11, 12, 22, 23, 40, 63, 64};
  support_random random;
  support_random_start(&random, 7);
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++) {
      sorted_like_qsort(&random, counts[c], counts[c], 0, bits[b]);
      if (bits[b] < 64)
        sorted_like_qsort(&random, counts[c], counts[c] + 17, UINT64_MAX - (UINT64_C(1) << bits[b]), bits[b]);
    }
  }
}

LADE_TEST(SortKeys, HasNoRoomForMoreThanMemory) { LADE_EXPECT(ladei_sort_keys_create(SIZE_MAX / 8) == NULL); }
