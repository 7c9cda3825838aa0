/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered set against a list, and where its finger answers. */
#include <string.h>

#include "base/ordered_set.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { NODES = 300, STEPS = 20000 };

typedef struct set_model {
  ladei_ordered_set set;
  ladei_order_node nodes[NODES];
  bool inside[NODES]; /* the node is in the set */
} set_model;

/* Smallest (or largest) live node at or beyond `key`, by looking at all of them. */
static const ladei_order_node *model_search(const set_model *model, ladei_order_key key, bool at_least) {
  const ladei_order_node *best = NULL;
  for (size_t i = 0; i < NODES; i++) {
    const ladei_order_node *node = &model->nodes[i];
    if (!model->inside[i]) continue;
    const ladei_order_key *small = at_least ? &node->key : &key;
    const ladei_order_key *large = at_least ? &key : &node->key;
    if (ladei_order_less(small, large)) continue;
    if (best == NULL || ladei_order_less(at_least ? &node->key : &best->key, at_least ? &best->key : &node->key))
      best = node;
  }
  return best;
}

static ladei_order_key random_key(support_random *random) {
  return (ladei_order_key){
      {support_random_below(random, 3), support_random_below(random, 8), support_random_below(random, 1000)}};
}

LADE_TEST(OrderedSet, AgreesWithAListOverRandomSteps) {
  static set_model model;
  memset(&model, 0, sizeof model);
  support_random random;
  support_random_start(&random, 1);
  for (size_t step = 0; step < STEPS; step++) {
    size_t place = support_random_below(&random, NODES);
    ladei_order_node *node = &model.nodes[place];
    bool *inside = &model.inside[place];
    ladei_order_key key = random_key(&random);
    const ladei_order_node *least = model_search(&model, key, true);
    LADE_ASSERT_EQ_PTR(ladei_ordered_set_at_least(&model.set, key), least);
    LADE_ASSERT_EQ_PTR(ladei_ordered_set_at_most(&model.set, key), model_search(&model, key, false));
    bool absent = least == NULL || ladei_order_less(&key, &least->key);
    if (*inside) {
      ladei_ordered_set_remove(&model.set, node);
      *inside = false;
    } else if (absent) {
      node->key = key;
      ladei_ordered_set_insert(&model.set, node);
      *inside = true;
    }
    if (step % 64 == 0) LADE_ASSERT(ladei_ordered_set_check(&model.set));
  }
  for (size_t i = 0; i < NODES; i++) {
    if (model.inside[i]) ladei_ordered_set_remove(&model.set, &model.nodes[i]);
    LADE_ASSERT(ladei_ordered_set_check(&model.set));
  }
  LADE_EXPECT_EQ_SIZE(model.set.count, 0);
}

LADE_TEST(OrderedSet, StaysLowForAscendingKeys) {
  static ladei_order_node nodes[4096];
  ladei_ordered_set set = {.root = NULL};
  for (size_t i = 0; i < 4096; i++) {
    nodes[i].key = (ladei_order_key){{0, 0, i}};
    ladei_ordered_set_insert(&set, &nodes[i]);
  }
  LADE_EXPECT(ladei_ordered_set_check(&set));
  size_t depth = 0;
  for (const ladei_order_node *node = set.root; node != NULL; node = node->child[1]) depth++;
  LADE_EXPECT_LE_UINT(depth, 13);
}

/* Changes and questions at one place of a large set: the finger answers, and must not answer wrongly beside it. */
LADE_TEST(OrderedSet, AnswersBesideTheLastChange) {
  static ladei_order_node nodes[512];
  ladei_ordered_set set = {.root = NULL};
  for (uint64_t i = 0; i < 512; i++) {
    nodes[i].key = (ladei_order_key){{0, 10 * i, 0}};
    ladei_ordered_set_insert(&set, &nodes[i]);
  }
  for (uint64_t i = 1; i + 1 < 512; i++) {
    for (uint64_t offset = 0; offset < 10; offset++) {
      ladei_ordered_set_remove(&set, &nodes[i]);
      nodes[i].key = (ladei_order_key){{0, 10 * i + offset, 0}};
      ladei_ordered_set_insert(&set, &nodes[i]);
      LADE_ASSERT_EQ_PTR(set.finger, &nodes[i]);
      LADE_ASSERT_EQ_PTR(ladei_ordered_set_at_least(&set, (ladei_order_key){{0, 10 * i + offset, 0}}), &nodes[i]);
      LADE_ASSERT_EQ_PTR(ladei_ordered_set_at_least(&set, (ladei_order_key){{0, 10 * i + offset + 1, 0}}),
                         &nodes[i + 1]);
      LADE_ASSERT_EQ_PTR(ladei_ordered_set_at_least(&set, (ladei_order_key){{0, 10 * i - 10, 0}}), &nodes[i - 1]);
    }
    ladei_ordered_set_remove(&set, &nodes[i]);
    LADE_ASSERT_EQ_PTR(ladei_ordered_set_at_least(&set, (ladei_order_key){{0, 10 * i, 0}}), &nodes[i + 1]);
    nodes[i].key = (ladei_order_key){{0, 10 * i, 0}};
    ladei_ordered_set_insert(&set, &nodes[i]);
  }
  LADE_EXPECT(ladei_ordered_set_check(&set));
}
