/* SPDX-License-Identifier: Apache-2.0 */
/* Size rules, ordered set, free set, block map, start bits. */
#include <string.h>

#include "device/heap/block_map.h"
#include "device/heap/free_set.h"
#include "device/heap/ordered_set.h"
#include "device/heap/size_rules.h"
#include "device/heap/start_bits.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

/* ---- Size rules: vectors of the specification -------------------------------------------------------------------- */

typedef struct rounding {
  size_t requested;
  size_t rounded;
  size_t segment;
} rounding;

LADE_TEST(SizeRules, RoundToQuantumAndChooseSegments) {
  static const rounding vectors[] = {
      {1, 512, 2 * LADEI_MIB},
      {512, 512, 2 * LADEI_MIB},
      {513, 1024, 2 * LADEI_MIB},
      {LADEI_MIB, LADEI_MIB, 2 * LADEI_MIB},
      {LADEI_MIB + 1, 1049088, 20 * LADEI_MIB},
      {10 * LADEI_MIB - 512, 10 * LADEI_MIB - 512, 20 * LADEI_MIB},
      {10 * LADEI_MIB - 1, 10 * LADEI_MIB, 10 * LADEI_MIB},
      {10 * LADEI_MIB + 1, 10486272, 12 * LADEI_MIB},
      {20 * LADEI_MIB + 1, 20972032, 22 * LADEI_MIB},
  };
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED,
                                    .large_segment_bytes = LADEI_DEVICE_LARGE_SEGMENT};
  for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
    lade_test_context("requested %zu", vectors[i].requested);
    LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, vectors[i].requested), vectors[i].rounded);
    LADE_EXPECT_EQ_SIZE(ladei_device_heap_segment_bytes(&settings, vectors[i].rounded), vectors[i].segment);
  }
  lade_test_context("%s", "");
}

typedef struct division {
  size_t requested;
  uint64_t divisions;
  size_t rounded;
} division;

LADE_TEST(SizeRules, RoundToDivisionsOfPowersOfTwo) {
  static const division vectors[] = {
      {1200, 4, 1536},           {2048, 4, 2048},          {2049, 4, 2560},           {2500, 4, 2560},
      {3000, 7, 3072},           {5000, 7, 5120},          {1025, 2, 1536},           {4097, 8, 4608},
      {1048577, 4, 1310720},     {5000001, 4, 5242880},    {100000000, 8, 100663296}, {1200, 0, 1536},
      {100000000, 1, 100000256}, {3000, UINT64_MAX, 3072},
  };
  for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
    ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
    for (size_t entry = 0; entry < LADEI_DEVICE_DIVISION_ENTRIES; entry++)
      settings.divisions[entry] = vectors[i].divisions;
    lade_test_context("requested %zu, divisions %llu", vectors[i].requested, (unsigned long long)vectors[i].divisions);
    LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, vectors[i].requested), vectors[i].rounded);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_EQ_SIZE(ladei_device_round_to_division(1200, 4), 1280);
  LADE_EXPECT_EQ_SIZE(ladei_device_round_to_division(3, 8), 4);
}

LADE_TEST(SizeRules, ChooseDivisionsByRequestedSize) {
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
  settings.divisions[0] = 4;
  settings.divisions[1] = 2;
  settings.divisions[15] = 8;
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 2049), 2560);                 /* below 1 MiB: entry 0 */
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, LADEI_MIB + 1), 1310720);     /* entry 0 */
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 2 * LADEI_MIB + 1), 3145728); /* entry 1 */
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 4 * LADEI_MIB + 1), 4194816); /* entry 2: off */
  size_t huge = (size_t)1 << 40;
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, huge + 1), huge + huge / 8); /* beyond the last: entry 15 */
}

LADE_TEST(SizeRules, SplitWhatIsWorthKeeping) {
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
  LADE_EXPECT(!ladei_device_split_wanted(&settings, true, 512, 0));
  LADE_EXPECT(ladei_device_split_wanted(&settings, true, 512, 512));
  LADE_EXPECT(!ladei_device_split_wanted(&settings, false, 19 * LADEI_MIB, LADEI_MIB));
  LADE_EXPECT(ladei_device_split_wanted(&settings, false, 19 * LADEI_MIB - 512, LADEI_MIB + 512));
  settings.max_split_bytes = 200 * LADEI_MIB;
  LADE_EXPECT(ladei_device_split_wanted(&settings, false, 200 * LADEI_MIB - 512, 2 * LADEI_MIB));
  LADE_EXPECT(!ladei_device_split_wanted(&settings, false, 200 * LADEI_MIB, 2 * LADEI_MIB));
  settings.expandable_segments = true;
  LADE_EXPECT(ladei_device_split_wanted(&settings, false, 200 * LADEI_MIB, 512));
}

/* ---- Ordered set ------------------------------------------------------------------------------------------------- */

enum { NODES = 300, STEPS = 20000 };

typedef struct set_model {
  ladei_device_ordered_set set;
  ladei_device_order_node nodes[NODES];
  bool inside[NODES]; /* the node is in the set */
} set_model;

/* Smallest (or largest) live node at or beyond `key`, by looking at all of them. */
static const ladei_device_order_node *model_search(const set_model *model, ladei_device_order_key key, bool at_least) {
  const ladei_device_order_node *best = NULL;
  for (size_t i = 0; i < NODES; i++) {
    const ladei_device_order_node *node = &model->nodes[i];
    if (!model->inside[i]) continue;
    const ladei_device_order_key *small = at_least ? &node->key : &key;
    const ladei_device_order_key *large = at_least ? &key : &node->key;
    if (ladei_device_order_less(small, large)) continue;
    if (best == NULL || ladei_device_order_less(at_least ? &node->key : &best->key, at_least ? &best->key : &node->key))
      best = node;
  }
  return best;
}

static ladei_device_order_key random_key(support_random *random) {
  return (ladei_device_order_key){
      {support_random_below(random, 3), support_random_below(random, 8), support_random_below(random, 1000)}};
}

LADE_TEST(OrderedSet, AgreesWithAListOverRandomSteps) {
  static set_model model;
  memset(&model, 0, sizeof model);
  support_random random;
  support_random_start(&random, 1);
  for (size_t step = 0; step < STEPS; step++) {
    size_t place = support_random_below(&random, NODES);
    ladei_device_order_node *node = &model.nodes[place];
    bool *inside = &model.inside[place];
    ladei_device_order_key key = random_key(&random);
    const ladei_device_order_node *least = model_search(&model, key, true);
    LADE_ASSERT_EQ_PTR(ladei_device_ordered_set_at_least(&model.set, key), least);
    LADE_ASSERT_EQ_PTR(ladei_device_ordered_set_at_most(&model.set, key), model_search(&model, key, false));
    bool absent = least == NULL || ladei_device_order_less(&key, &least->key);
    if (*inside && absent && step % 3 == 0) {
      ladei_device_ordered_set_move(&model.set, node, &key);
    } else if (*inside) {
      ladei_device_ordered_set_remove(&model.set, node);
      *inside = false;
    } else if (absent) {
      node->key = key;
      ladei_device_ordered_set_insert(&model.set, node);
      *inside = true;
    }
    if (step % 64 == 0) LADE_ASSERT(ladei_device_ordered_set_check(&model.set));
  }
  for (size_t i = 0; i < NODES; i++) {
    if (model.inside[i]) ladei_device_ordered_set_remove(&model.set, &model.nodes[i]);
    LADE_ASSERT(ladei_device_ordered_set_check(&model.set));
  }
  LADE_EXPECT_EQ_SIZE(model.set.count, 0);
}

LADE_TEST(OrderedSet, StaysLowForAscendingKeys) {
  static ladei_device_order_node nodes[4096];
  ladei_device_ordered_set set = {.root = NULL};
  for (size_t i = 0; i < 4096; i++) {
    nodes[i].key = (ladei_device_order_key){{0, 0, i}};
    ladei_device_ordered_set_insert(&set, &nodes[i]);
  }
  LADE_EXPECT(ladei_device_ordered_set_check(&set));
  size_t depth = 0;
  for (const ladei_device_order_node *node = set.root; node != NULL; node = node->child[1]) depth++;
  LADE_EXPECT_LE_UINT(depth, 13);
}

/* Changes and questions at one place of a large set: the finger answers, and must not answer wrongly beside it. */
LADE_TEST(OrderedSet, AnswersBesideTheLastChange) {
  static ladei_device_order_node nodes[512];
  ladei_device_ordered_set set = {.root = NULL};
  for (uint64_t i = 0; i < 512; i++) {
    nodes[i].key = (ladei_device_order_key){{0, 10 * i, 0}};
    ladei_device_ordered_set_insert(&set, &nodes[i]);
  }
  for (uint64_t i = 1; i + 1 < 512; i++) {
    for (uint64_t offset = 0; offset < 10; offset++) {
      ladei_device_ordered_set_move(&set, &nodes[i], &(ladei_device_order_key){{0, 10 * i + offset, 0}});
      LADE_ASSERT_EQ_PTR(set.finger, &nodes[i]);
      LADE_ASSERT_EQ_PTR(ladei_device_ordered_set_at_least(&set, (ladei_device_order_key){{0, 10 * i + offset, 0}}),
                         &nodes[i]);
      LADE_ASSERT_EQ_PTR(ladei_device_ordered_set_at_least(&set, (ladei_device_order_key){{0, 10 * i + offset + 1, 0}}),
                         &nodes[i + 1]);
      LADE_ASSERT_EQ_PTR(ladei_device_ordered_set_at_least(&set, (ladei_device_order_key){{0, 10 * i - 10, 0}}),
                         &nodes[i - 1]);
    }
    ladei_device_ordered_set_remove(&set, &nodes[i]);
    LADE_ASSERT_EQ_PTR(ladei_device_ordered_set_at_least(&set, (ladei_device_order_key){{0, 10 * i, 0}}),
                       &nodes[i + 1]);
    nodes[i].key = (ladei_device_order_key){{0, 10 * i, 0}};
    ladei_device_ordered_set_insert(&set, &nodes[i]);
  }
  LADE_EXPECT(ladei_device_ordered_set_check(&set));
}

/* ---- Free set ---------------------------------------------------------------------------------------------------- */

/* Keys of few streams, and of sizes around the borders of classes. */
static ladei_device_order_key random_block_key(support_random *random) {
  static const uint64_t streams[] = {0, 1, 7, UINT64_MAX};
  uint64_t size = UINT64_C(512) << support_random_below(random, 52);
  if (support_random_one_in(random, 2)) size = size / 16 * support_random_between(random, 16, 31);
  if (size < 512) size = 512;
  if (support_random_one_in(random, 3)) size = 512 * support_random_between(random, 1, 40);
  return (ladei_device_order_key){{streams[support_random_below(random, 4)], size, support_random_below(random, 3)}};
}

typedef struct placed_node {
  ladei_device_order_node node;
  bool inside; /* it is in the set */
} placed_node;

/* The node of the stream next to `key` on one side, itself included if wanted, by looking at all of them. */
static const ladei_device_order_node *beside(const placed_node *nodes, ladei_device_order_key key, bool larger,
                                             bool included, bool any_stream) {
  const ladei_device_order_node *best = NULL;
  for (size_t i = 0; i < NODES; i++) {
    const ladei_device_order_node *node = &nodes[i].node;
    if (!nodes[i].inside || (!any_stream && node->key.word[0] != key.word[0])) continue;
    bool below = ladei_device_order_less(&node->key, &key), above = ladei_device_order_less(&key, &node->key);
    if ((larger && below) || (!larger && above) || (!included && !below && !above)) continue;
    if (best == NULL || ladei_device_order_less(larger ? &node->key : &best->key, larger ? &best->key : &node->key))
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
    ladei_device_order_node *node = &placed->node;
    ladei_device_order_key key = random_block_key(&random);
    ladei_device_order_key at_zero = {{key.word[0], key.word[1], 0}}, end = {{key.word[0], UINT64_MAX, UINT64_MAX}};
    LADE_ASSERT_EQ_PTR(ladei_device_free_set_find(&set, key.word[0], key.word[1]),
                       beside(nodes, at_zero, true, true, false));
    LADE_ASSERT_EQ_PTR(ladei_device_free_set_largest(&set, key.word[0]), beside(nodes, end, false, true, false));
    LADE_ASSERT_EQ_UINT(ladei_device_free_set_largest_size(&set), largest_size(nodes));
    if (placed->inside) {
      LADE_ASSERT_EQ_PTR(ladei_device_free_set_larger(&set, node), beside(nodes, node->key, true, false, false));
      LADE_ASSERT_EQ_PTR(ladei_device_free_set_smaller(&set, node), beside(nodes, node->key, false, false, false));
      LADE_ASSERT_EQ_PTR(ladei_device_free_set_next(&set, node), beside(nodes, node->key, true, false, true));
    }
    const ladei_device_order_node *same = beside(nodes, key, true, true, false);
    bool absent = same == NULL || ladei_device_order_less(&key, &same->key);
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
  static const ladei_device_order_key least = {{0, 0, 0}};
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
  static ladei_device_order_node nodes[MANY];
  memset(&set, 0, sizeof set);
  for (size_t i = 0; i < MANY; i++) {
    nodes[i].key = (ladei_device_order_key){{i % 3, 512 * (1 + i % 97), i}};
    LADE_ASSERT(set.spread == (i > LADEI_DEVICE_FREE_SPREAD_AT));
    ladei_device_free_set_insert(&set, &nodes[i]);
    LADE_ASSERT(ladei_device_free_set_check(&set));
  }
  const ladei_device_order_node *previous = NULL;
  size_t count = 0;
  for (const ladei_device_order_node *node = ladei_device_free_set_first(&set); node != NULL;
       node = ladei_device_free_set_next(&set, node)) {
    LADE_ASSERT(previous == NULL || ladei_device_order_less(&previous->key, &node->key));
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

/* ---- Block map --------------------------------------------------------------------------------------------------- */

LADE_TEST(BlockMap, AgreesWithATableOverRandomSteps) {
  enum { ADDRESSES = 4000 };
  static struct ladei_device_block *expected[ADDRESSES];
  memset(expected, 0, sizeof expected);
  ladei_device_block_map map = {.count = 0};
  support_random random;
  support_random_start(&random, 2);
  LADE_EXPECT_EQ_PTR(ladei_device_block_map_get(&map, 512), NULL);
  for (size_t step = 0; step < 40000; step++) {
    size_t i = support_random_below(&random, ADDRESSES);
    uint64_t address = UINT64_C(0x700000000000) + 512 * i;
    struct ladei_device_block *block = (struct ladei_device_block *)(void *)&expected[step % ADDRESSES];
    LADE_ASSERT_EQ_PTR(ladei_device_block_map_get(&map, address), expected[i]);
    if (expected[i] == NULL) {
      LADE_ASSERT(ladei_device_block_map_reserve(&map, 1));
      ladei_device_block_map_put(&map, address, block);
      expected[i] = block;
    } else {
      ladei_device_block_map_remove(&map, address);
      expected[i] = NULL;
    }
  }
  for (size_t i = 0; i < ADDRESSES; i++)
    LADE_ASSERT_EQ_PTR(ladei_device_block_map_get(&map, UINT64_C(0x700000000000) + 512 * i), expected[i]);
  ladei_device_block_map_destroy(&map);
}

/* ---- Start bits -------------------------------------------------------------------------------------------------- */

LADE_TEST(StartBits, FindTheStartBelowAnyGranule) {
  static const size_t sizes[] = {1, 63, 64, 65, 4096, 4097, 300000};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    size_t granules = sizes[s];
    ladei_device_start_bits bits;
    LADE_ASSERT(ladei_device_start_bits_create(&bits, granules));
    support_random random;
    support_random_start(&random, 3 + s);
    static bool expected[300000];
    memset(expected, 0, sizeof expected);
    expected[0] = true;
    ladei_device_start_bits_set(&bits, 0);
    for (size_t step = 0; step < 2000; step++) {
      size_t at = support_random_below(&random, granules);
      if (at != 0 && expected[at]) {
        ladei_device_start_bits_clear(&bits, at);
        expected[at] = false;
      } else {
        ladei_device_start_bits_set(&bits, at);
        expected[at] = true;
      }
      size_t asked = support_random_below(&random, granules);
      size_t below = asked;
      while (!expected[below]) below--;
      LADE_ASSERT_EQ_SIZE(ladei_device_start_bits_at_most(&bits, asked), below);
      LADE_ASSERT(ladei_device_start_bits_get(&bits, asked) == expected[asked]);
    }
    ladei_device_start_bits_destroy(&bits);
  }
}
