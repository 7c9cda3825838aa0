/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered map from a 64-bit key to records that embed a soft_tree_node: a treap whose priorities are a hash of the key,
 * so that its shape, and with it the run, depends only on its content.
 *
 * I1  In-order, keys ascend strictly.
 * I2  A node's priority is at least those of its children.
 * All operations take logarithmic time on average.
 * Locks: the owner's.
 */
#ifndef LADE_RUNTIME_SOFT_TREE_H
#define LADE_RUNTIME_SOFT_TREE_H

#include <stddef.h>
#include <stdint.h>

typedef struct soft_tree_node {
  struct soft_tree_node *left, *right;
  uint64_t key;
  uint64_t priority;
} soft_tree_node;

typedef struct soft_tree {
  soft_tree_node *root;
  size_t count;
} soft_tree;

/* The finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). */
static inline uint64_t soft_tree_priority(uint64_t key) {
  key += 0x9e3779b97f4a7c15u;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

/* Keys below `key` go to *left, the others to *right. */
static inline void soft_tree_split(soft_tree_node *node, uint64_t key, soft_tree_node **left, soft_tree_node **right) {
  while (node != NULL) {
    if (node->key < key) {
      *left = node;
      left = &node->right;
      node = node->right;
    } else {
      *right = node;
      right = &node->left;
      node = node->left;
    }
  }
  *left = NULL;
  *right = NULL;
}

/* The key must not be in the tree. */
static inline void soft_tree_insert(soft_tree *tree, soft_tree_node *node, uint64_t key) {
  node->key = key;
  node->priority = soft_tree_priority(key);
  soft_tree_node **place = &tree->root;
  while (*place != NULL && (*place)->priority >= node->priority)
    place = key < (*place)->key ? &(*place)->left : &(*place)->right;
  soft_tree_split(*place, key, &node->left, &node->right);
  *place = node;
  tree->count++;
}

/* The node must be in the tree. */
static inline void soft_tree_remove(soft_tree *tree, soft_tree_node *node) {
  soft_tree_node **place = &tree->root;
  while (*place != node) place = node->key < (*place)->key ? &(*place)->left : &(*place)->right;
  soft_tree_node *left = node->left, *right = node->right;
  while (left != NULL && right != NULL) {
    if (left->priority >= right->priority) {
      *place = left;
      place = &left->right;
      left = left->right;
    } else {
      *place = right;
      place = &right->left;
      right = right->left;
    }
  }
  *place = left != NULL ? left : right;
  tree->count--;
}

/* Largest key at or below `key`; NULL if none. */
static inline soft_tree_node *soft_tree_floor(const soft_tree *tree, uint64_t key) {
  soft_tree_node *best = NULL;
  for (soft_tree_node *node = tree->root; node != NULL;) {
    if (node->key <= key) {
      best = node;
      node = node->right;
    } else {
      node = node->left;
    }
  }
  return best;
}

/* Smallest key at or above `key`; NULL if none. */
static inline soft_tree_node *soft_tree_ceiling(const soft_tree *tree, uint64_t key) {
  soft_tree_node *best = NULL;
  for (soft_tree_node *node = tree->root; node != NULL;) {
    if (node->key >= key) {
      best = node;
      node = node->left;
    } else {
      node = node->right;
    }
  }
  return best;
}

#endif /* LADE_RUNTIME_SOFT_TREE_H */
