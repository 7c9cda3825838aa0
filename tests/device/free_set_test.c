/* SPDX-License-Identifier: Apache-2.0 */
/* The free set, together and spread by size class, against a list. */
#include <string.h>

#include "device/heap/free_set.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { BLOCKS = 300, STEPS = 20000 };

/* Keys of few streams, and of sizes around the borders of classes. */
static ladei_order_key random_block_key(support_random *random) {
  static const uint64_t streams[] = {0, 1, 7, UINT64_MAX};
  uint64_t size = UINT64_C(512) << support_random_below(random, 52);
  if (support_random_one_in(random, 2)) size = size / 16 * support_random_between(random, 16, 31);
  if (size < 512) size = 512;
  if (support_random_one_in(random, 3)) size = 512 * support_random_between(random, 1, 40);
  return (ladei_order_key){{streams[support_random_below(random, 4)], size, support_random_below(random, 3)}};
}

typedef struct placed_block {
  ladei_order_key key;
  bool inside; /* it is in the set */
} placed_block;

/* What a set has in the place of a block's record; nothing looks at it. */
static struct ladei_device_block *record_of(placed_block *placed) {
  return (struct ladei_device_block *)(void *)placed;
}

static const void *block_of(const ladei_device_sorted_entry *entry) { return entry == NULL ? NULL : entry->block; }

/* The block of the stream next to `key` on one side, itself included if wanted, by looking at all of them. */
static const placed_block *beside(const placed_block *blocks, ladei_order_key key, bool larger, bool included,
                                  bool any_stream) {
  const placed_block *best = NULL;
  for (size_t i = 0; i < BLOCKS; i++) {
    const placed_block *placed = &blocks[i];
    if (!placed->inside || (!any_stream && placed->key.word[0] != key.word[0])) continue;
    bool below = ladei_order_less(&placed->key, &key), above = ladei_order_less(&key, &placed->key);
    if ((larger && below) || (!larger && above) || (!included && !below && !above)) continue;
    if (best == NULL || ladei_order_less(larger ? &placed->key : &best->key, larger ? &best->key : &placed->key))
      best = placed;
  }
  return best;
}

static uint64_t largest_size(const placed_block *blocks) {
  uint64_t largest = 0;
  for (size_t i = 0; i < BLOCKS; i++)
    if (blocks[i].inside && blocks[i].key.word[1] > largest) largest = blocks[i].key.word[1];
  return largest;
}

static void set_open(ladei_device_free_set *set, ladei_slab *slab) {
  memset(set, 0, sizeof *set);
  ladei_slab_init(slab, sizeof(ladei_device_sorted_leaf));
  set->slab = slab;
}

static void free_set_run(bool spread) {
  static ladei_device_free_set set;
  static placed_block blocks[BLOCKS];
  ladei_slab slab;
  set_open(&set, &slab);
  memset(blocks, 0, sizeof blocks);
  const size_t block_count = spread ? BLOCKS : LADEI_DEVICE_FREE_SPREAD_AT; /* so many stay together */
  support_random random;
  support_random_start(&random, 4 + spread);
  for (size_t step = 0; step < STEPS; step++) {
    placed_block *placed = &blocks[support_random_below(&random, block_count)];
    ladei_order_key key = random_block_key(&random);
    ladei_order_key at_zero = {{key.word[0], key.word[1], 0}}, end = {{key.word[0], UINT64_MAX, UINT64_MAX}};
    LADE_ASSERT_EQ_PTR(block_of(ladei_device_free_set_find(&set, key.word[0], key.word[1])),
                       beside(blocks, at_zero, true, true, false));
    LADE_ASSERT_EQ_PTR(block_of(ladei_device_free_set_largest(&set, key.word[0])),
                       beside(blocks, end, false, true, false));
    LADE_ASSERT_EQ_UINT(ladei_device_free_set_largest_size(&set), largest_size(blocks));
    if (placed->inside) {
      ladei_order_key own = placed->key;
      LADE_ASSERT_EQ_PTR(block_of(ladei_device_free_set_larger(&set, &own)), beside(blocks, own, true, false, false));
      LADE_ASSERT_EQ_PTR(block_of(ladei_device_free_set_smaller(&set, &own)), beside(blocks, own, false, false, false));
      LADE_ASSERT_EQ_PTR(block_of(ladei_device_free_set_next(&set, &own)), beside(blocks, own, true, false, true));
    }
    const placed_block *same = beside(blocks, key, true, true, false);
    bool absent = same == NULL || ladei_order_less(&key, &same->key);
    if (placed->inside && absent && step % 3 == 0) {
      ladei_device_free_set_move(&set, &placed->key, &key, record_of(placed));
      placed->key = key;
    } else if (placed->inside) {
      ladei_device_free_set_remove(&set, &placed->key);
      placed->inside = false;
    } else if (absent) {
      placed->key = key;
      ladei_device_free_set_insert(&set, &placed->key, record_of(placed));
      placed->inside = true;
    }
    if (step % 256 == 0) LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  static const ladei_order_key least = {{0, 0, 0}};
  LADE_EXPECT_EQ_PTR(block_of(ladei_device_free_set_first(&set)), beside(blocks, least, true, true, true));
  LADE_EXPECT(set.spread == spread);
  ladei_slab_destroy(&slab);
}

LADE_TEST(FreeSet, OfFewAgreesWithAList) { free_set_run(false); }
LADE_TEST(FreeSet, OfManyAgreesWithAList) { free_set_run(true); }

/* Spread by the block that makes them many, gathered by the one that leaves few; all in order at any time. */
LADE_TEST(FreeSet, IsSpreadWhenThereAreMany) {
  enum { MANY = LADEI_DEVICE_FREE_SPREAD_AT + 100 };
  static ladei_device_free_set set;
  static placed_block blocks[MANY];
  ladei_slab slab;
  set_open(&set, &slab);
  for (size_t i = 0; i < MANY; i++) {
    blocks[i].key = (ladei_order_key){{i % 3, 512 * (1 + i % 97), i}};
    LADE_ASSERT(set.spread == (i > LADEI_DEVICE_FREE_SPREAD_AT));
    ladei_device_free_set_insert(&set, &blocks[i].key, record_of(&blocks[i]));
    LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  const ladei_order_key *previous = NULL;
  size_t count = 0;
  for (const ladei_device_sorted_entry *entry = ladei_device_free_set_first(&set); entry != NULL;
       entry = ladei_device_free_set_next(&set, &entry->key)) {
    LADE_ASSERT(previous == NULL || ladei_order_less(previous, &entry->key));
    previous = &entry->key;
    count++;
  }
  LADE_EXPECT_EQ_SIZE(count, MANY);
  for (size_t i = 0; i < MANY; i++) {
    ladei_device_free_set_remove(&set, &blocks[i].key);
    LADE_ASSERT(set.spread == (MANY - 1 - i > LADEI_DEVICE_FREE_GATHER_AT));
    LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  LADE_EXPECT_EQ_SIZE(set.count, 0);
  LADE_EXPECT_EQ_SIZE(slab.live, 0);
  ladei_slab_destroy(&slab);
}
