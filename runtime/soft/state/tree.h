/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered map from a 64-bit key to records that embed a soft_tree_node: base/ordered_set.h by the first word of its keys.
 *
 * Locks: the owner's.
 */
#ifndef LADE_RUNTIME_SOFT_TREE_H
#define LADE_RUNTIME_SOFT_TREE_H

#include "base/ordered_set.h"

typedef ladei_order_node soft_tree_node;
typedef ladei_ordered_set soft_tree;

static inline ladei_order_key soft_tree_word(uint64_t key) { return (ladei_order_key){{key, 0, 0}}; }

static inline uint64_t soft_tree_key(const soft_tree_node *node) { return node->key.word[0]; }

/* The key must not be in the tree. */
static inline void soft_tree_insert(soft_tree *tree, soft_tree_node *node, uint64_t key) {
  node->key = soft_tree_word(key);
  ladei_ordered_set_insert(tree, node);
}

/* Largest key at or below `key`; NULL if none. */
static inline soft_tree_node *soft_tree_floor(const soft_tree *tree, uint64_t key) {
  return ladei_ordered_set_at_most(tree, soft_tree_word(key));
}

/* Smallest key at or above `key`; NULL if none. */
static inline soft_tree_node *soft_tree_ceiling(const soft_tree *tree, uint64_t key) {
  return ladei_ordered_set_at_least(tree, soft_tree_word(key));
}

#endif /* LADE_RUNTIME_SOFT_TREE_H */
