/* SPDX-License-Identifier: Apache-2.0 */
/* The depot of a node: what it holds at most, and that what comes out is what went in. */
#include "host/caches/depot.h"

#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"

enum { BLOCKS = LADEI_PINNED_MAGAZINE_CLASSES * LADEI_PINNED_DEPOT_SLOTS * LADEI_PINNED_BATCH_MOST };

typedef struct bench {
  ladei_pinned_depot *depot;
  ladei_pinned_block blocks[BLOCKS];
  unsigned seen[BLOCKS]; /* times that a block came out */
  unsigned used;         /* blocks that were put, from the first on */
} bench;

static bench *bench_open(size_t bytes) {
  bench *own = aligned_alloc(_Alignof(bench), sizeof *own);
  if (own == NULL) abort();
  memset(own, 0, sizeof *own);
  own->depot = ladei_pinned_depot_create(bytes);
  if (own->depot == NULL) abort();
  return own;
}

static void bench_close(bench *own) {
  ladei_pinned_depot_destroy(own->depot);
  free(own);
}

/* A list of fresh blocks, the first of which was used last. */
static ladei_pinned_block *list_make(bench *own, unsigned count) {
  ladei_pinned_block *list = NULL;
  for (unsigned i = 0; i < count; i++) {
    ladei_pinned_block_next_set(&own->blocks[own->used + i], list);
    list = &own->blocks[own->used + i];
  }
  return list;
}

static unsigned list_see(bench *own, ladei_pinned_block *list) {
  unsigned count = 0;
  for (; list != NULL; list = ladei_pinned_block_next(list), count++) own->seen[list - own->blocks]++;
  return count;
}

/* Lists of `length` of all classes, until each is full; the bytes that went in. */
static uint64_t fill(bench *own, unsigned length) {
  uint64_t bytes = 0;
  for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++) {
    unsigned count = (unsigned)ladei_size_min(length, ladei_pinned_batch(ladei_pinned_class_bytes(c)));
    while (ladei_pinned_depot_put(own->depot, c, list_make(own, count), count)) {
      own->used += count;
      bytes += count * ladei_pinned_class_bytes(c);
    }
  }
  return bytes;
}

static void all_seen_once(const bench *own) {
  for (unsigned i = 0; i < own->used; i++) LADE_ASSERT_EQ_UINT(own->seen[i], 1);
}

LADE_TEST(Depot, HoldsNoMoreThanItsBytes) {
  static const size_t budgets[] = {0, LADEI_MIB, 8 * LADEI_MIB, 64 * LADEI_MIB, 256 * LADEI_MIB};
  for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++) {
    bench *own = bench_open(budgets[i]);
    uint64_t bytes = fill(own, LADEI_PINNED_BATCH_MOST);
    LADE_EXPECT_LE_UINT(bytes, budgets[i]);
    LADE_EXPECT_EQ_UINT(ladei_pinned_depot_bytes(own->depot), bytes);
    if (budgets[i] == 64 * LADEI_MIB) {
      LADE_EXPECT_GT_UINT(bytes, budgets[i] / 2);
      for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++) LADE_EXPECT_GT_UINT(own->depot->slot_counts[c], 0);
    }
    LADE_EXPECT_EQ_UINT(list_see(own, ladei_pinned_depot_empty(own->depot)), own->used);
    all_seen_once(own);
    LADE_EXPECT_EQ_UINT(ladei_pinned_depot_bytes(own->depot), 0);
    LADE_EXPECT_EQ_PTR(ladei_pinned_depot_empty(own->depot), NULL);
    bench_close(own);
  }
}

LADE_TEST(Depot, GivesEachListWholeAndOnceOfItsClass) {
  for (unsigned length = 1; length <= LADEI_PINNED_BATCH_MOST; length++) {
    bench *own = bench_open(64 * LADEI_MIB);
    uint64_t left = fill(own, length);
    for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++) {
      size_t bytes = ladei_pinned_class_bytes(c);
      unsigned expected = (unsigned)ladei_size_min(length, ladei_pinned_batch(bytes));
      for (unsigned i = 0; i < own->depot->slot_counts[c]; i++) {
        LADE_EXPECT_EQ_UINT(list_see(own, ladei_pinned_depot_take(own->depot, c)), expected);
        left -= expected * bytes;
        LADE_EXPECT_EQ_UINT(ladei_pinned_depot_bytes(own->depot), left);
      }
      LADE_EXPECT_EQ_PTR(ladei_pinned_depot_take(own->depot, c), NULL);
    }
    LADE_EXPECT_EQ_UINT(left, 0);
    all_seen_once(own);
    bench_close(own);
  }
}
