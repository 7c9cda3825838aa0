/* SPDX-License-Identifier: Apache-2.0 */
/* The free set, together and spread by size class, against a list. */
#include <string.h>

#include "device/heap/free_set.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { NODES = 300, STEPS = 20000 };

/* Keys of few streams, and of sizes around the borders of classes. */
static ladei_order_key random_block_key(support_random *random) {
  static const uint64_t streams[] = {0, 1, 7, UINT64_MAX};
  uint64_t size = UINT64_C(512) << support_random_below(random, 52);
  if (support_random_one_in(random, 2)) size = size / 16 * support_random_between(random, 16, 31);
  if (size < 512) size = 512;
  if (support_random_one_in(random, 3)) size = 512 * support_random_between(random, 1, 40);
  return (ladei_order_key){{streams[support_random_below(random, 4)], size, support_random_below(random, 3)}};
}

typedef struct placed_node {
  ladei_order_node node;
  bool inside; /* it is in the set */
} placed_node;

/* The node of the stream next to `key` on one side, itself included if wanted, by looking at all of them. */
static const ladei_order_node *beside(const placed_node *nodes, ladei_order_key key, bool larger, bool included,
                                      bool any_stream) {
  const ladei_order_node *best = NULL;
  for (size_t i = 0; i < NODES; i++) {
    const ladei_order_node *node = &nodes[i].node;
    if (!nodes[i].inside || (!any_stream && node->key.word[0] != key.word[0])) continue;
    bool below = ladei_order_less(&node->key, &key), above = ladei_order_less(&key, &node->key);
    if ((larger && below) || (!larger && above) || (!included && !below && !above)) continue;
    if (best == NULL || ladei_order_less(larger ? &node->key : &best->key, larger ? &best->key : &node->key))
      best = node;
  }
  return best;
}

static uint64_t largest_size(const placed_node *nodes) {
  uint64_t largest = 0;
  for (size_t i = 0; i < NODES; i++)
    if (nodes[i].inside && nodes[i].node.key.word[1] > largest) largest = nodes[i].node.key.word[1];
  return largest;
}

static void free_set_run(bool spread) {
  static ladei_device_free_set set;
  static placed_node nodes[NODES];
  memset(&set, 0, sizeof set);
  memset(nodes, 0, sizeof nodes);
  const size_t node_count = spread ? NODES : LADEI_DEVICE_FREE_SPREAD_AT; /* so many stay together */
  support_random random;
  support_random_start(&random, 4 + spread);
  for (size_t step = 0; step < STEPS; step++) {
    placed_node *placed = &nodes[support_random_below(&random, node_count)];
    ladei_order_node *node = &placed->node;
    ladei_order_key key = random_block_key(&random);
    ladei_order_key at_zero = {{key.word[0], key.word[1], 0}}, end = {{key.word[0], UINT64_MAX, UINT64_MAX}};
    LADE_ASSERT_EQ_PTR(ladei_device_free_set_find(&set, key.word[0], key.word[1]),
                       beside(nodes, at_zero, true, true, false));
    LADE_ASSERT_EQ_PTR(ladei_device_free_set_largest(&set, key.word[0]), beside(nodes, end, false, true, false));
    LADE_ASSERT_EQ_UINT(ladei_device_free_set_largest_size(&set), largest_size(nodes));
    if (placed->inside) {
      LADE_ASSERT_EQ_PTR(ladei_device_free_set_larger(&set, node), beside(nodes, node->key, true, false, false));
      LADE_ASSERT_EQ_PTR(ladei_device_free_set_smaller(&set, node), beside(nodes, node->key, false, false, false));
      LADE_ASSERT_EQ_PTR(ladei_device_free_set_next(&set, node), beside(nodes, node->key, true, false, true));
    }
    const ladei_order_node *same = beside(nodes, key, true, true, false);
    bool absent = same == NULL || ladei_order_less(&key, &same->key);
    if (placed->inside && absent && step % 3 == 0) {
      ladei_device_free_set_move(&set, node, &key);
    } else if (placed->inside) {
      ladei_device_free_set_remove(&set, node);
      placed->inside = false;
    } else if (absent) {
      node->key = key;
      ladei_device_free_set_insert(&set, node);
      placed->inside = true;
    }
    if (step % 256 == 0) LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  static const ladei_order_key least = {{0, 0, 0}};
  LADE_EXPECT_EQ_PTR(ladei_device_free_set_first(&set), beside(nodes, least, true, true, true));
  LADE_EXPECT(set.spread == spread);
  ladei_device_free_set_spread(&set, !spread);
  LADE_EXPECT(ladei_device_free_set_check(&set));
  LADE_EXPECT_EQ_PTR(ladei_device_free_set_first(&set), beside(nodes, least, true, true, true));
}

LADE_TEST(FreeSet, OfFewAgreesWithAList) { free_set_run(false); }
LADE_TEST(FreeSet, OfManyAgreesWithAList) { free_set_run(true); }

/* Spread by the node that makes them many, gathered by the one that leaves few; all in order at any time. */
LADE_TEST(FreeSet, IsSpreadWhenThereAreMany) {
  enum { MANY = LADEI_DEVICE_FREE_SPREAD_AT + 100 };
  static ladei_device_free_set set;
  static ladei_order_node nodes[MANY];
  memset(&set, 0, sizeof set);
  for (size_t i = 0; i < MANY; i++) {
    nodes[i].key = (ladei_order_key){{i % 3, 512 * (1 + i % 97), i}};
    LADE_ASSERT(set.spread == (i > LADEI_DEVICE_FREE_SPREAD_AT));
    ladei_device_free_set_insert(&set, &nodes[i]);
    LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  const ladei_order_node *previous = NULL;
  size_t count = 0;
  for (const ladei_order_node *node = ladei_device_free_set_first(&set); node != NULL;
       node = ladei_device_free_set_next(&set, node)) {
    LADE_ASSERT(previous == NULL || ladei_order_less(&previous->key, &node->key));
    previous = node;
    count++;
  }
  LADE_EXPECT_EQ_SIZE(count, MANY);
  for (size_t i = 0; i < MANY; i++) {
    ladei_device_free_set_remove(&set, &nodes[i]);
    LADE_ASSERT(set.spread == (MANY - 1 - i > LADEI_DEVICE_FREE_GATHER_AT));
    LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  LADE_EXPECT_EQ_SIZE(set.count, 0);
}
