/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered set as an AVL tree with parent links.
 *
 * I1  Keys in the left subtree are smaller, in the right one larger.
 * I2  A node's height is 1 + the larger height of its children (0 for none), and those differ by at most 1.
 * I3  A node's parent has it as a child; the root has no parent.
 * Locks: the caller's.
 */
#include "device/ordered_set.h"

enum { LEFT = 0, RIGHT = 1 };

static uint32_t height(const ladei_order_node *node) { return node == NULL ? 0 : node->height; }

static void height_update(ladei_order_node *node) {
  uint32_t left = height(node->child[LEFT]);
  uint32_t right = height(node->child[RIGHT]);
  node->height = 1 + (left > right ? left : right);
}

/* Puts `with` (may be NULL) where `node` hangs. */
static void node_replace(ladei_ordered_set *set, ladei_order_node *node, ladei_order_node *with) {
  ladei_order_node *parent = node->parent;
  if (parent == NULL) {
    set->root = with;
  } else {
    parent->child[parent->child[RIGHT] == node] = with;
  }
  if (with != NULL) with->parent = parent;
}

/* Lifts the child on `side` above `node`; returns it. */
static ladei_order_node *node_rotate(ladei_ordered_set *set, ladei_order_node *node, int side) {
  ladei_order_node *risen = node->child[side];
  ladei_order_node *inner = risen->child[!side];
  node_replace(set, node, risen);
  risen->child[!side] = node;
  node->parent = risen;
  node->child[side] = inner;
  if (inner != NULL) inner->parent = node;
  height_update(node);
  height_update(risen);
  return risen;
}

/* Restores I2 from `node` up to the root, or to where nothing changes any more. */
static void heights_restore(ladei_ordered_set *set, ladei_order_node *node) {
  while (node != NULL) {
    uint32_t before = node->height;
    uint32_t left = height(node->child[LEFT]);
    uint32_t right = height(node->child[RIGHT]);
    if (left > right + 1 || right > left + 1) {
      int deep = right > left;
      ladei_order_node *child = node->child[deep];
      if (height(child->child[!deep]) > height(child->child[deep])) {
        node_rotate(set, child, !deep);
      }
      node = node_rotate(set, node, deep);
    } else {
      node->height = 1 + (left > right ? left : right);
    }
    if (node->height == before) return;
    node = node->parent;
  }
}

void ladei_ordered_set_insert(ladei_ordered_set *set, ladei_order_node *node) {
  ladei_order_node *parent = NULL;
  ladei_order_node **place = &set->root;
  while (*place != NULL) {
    parent = *place;
    place = &parent->child[ladei_order_less(&parent->key, &node->key)];
  }
  *place = node;
  node->parent = parent;
  node->child[LEFT] = node->child[RIGHT] = NULL;
  node->height = 1;
  set->count++;
  heights_restore(set, parent);
}

void ladei_ordered_set_remove(ladei_ordered_set *set, ladei_order_node *node) {
  ladei_order_node *lowest_changed;
  if (node->child[LEFT] == NULL || node->child[RIGHT] == NULL) {
    lowest_changed = node->parent;
    node_replace(set, node, node->child[node->child[LEFT] == NULL ? RIGHT : LEFT]);
  } else {
    /* The next larger node has no left child: it takes the place. */
    ladei_order_node *heir = node->child[RIGHT];
    while (heir->child[LEFT] != NULL) heir = heir->child[LEFT];
    lowest_changed = heir->parent == node ? heir : heir->parent;
    if (heir->parent != node) {
      node_replace(set, heir, heir->child[RIGHT]);
      heir->child[RIGHT] = node->child[RIGHT];
      heir->child[RIGHT]->parent = heir;
    }
    heir->child[LEFT] = node->child[LEFT];
    heir->child[LEFT]->parent = heir;
    node_replace(set, node, heir);
    heir->height = node->height;
  }
  node->parent = node->child[LEFT] = node->child[RIGHT] = NULL;
  node->height = 0;
  set->count--;
  heights_restore(set, lowest_changed);
}

ladei_order_node *ladei_ordered_set_at_least(const ladei_ordered_set *set, ladei_order_key key) {
  ladei_order_node *best = NULL;
  for (ladei_order_node *node = set->root; node != NULL;) {
    if (ladei_order_less(&node->key, &key)) {
      node = node->child[RIGHT];
    } else {
      best = node;
      node = node->child[LEFT];
    }
  }
  return best;
}

ladei_order_node *ladei_ordered_set_at_most(const ladei_ordered_set *set, ladei_order_key key) {
  ladei_order_node *best = NULL;
  for (ladei_order_node *node = set->root; node != NULL;) {
    if (ladei_order_less(&key, &node->key)) {
      node = node->child[LEFT];
    } else {
      best = node;
      node = node->child[RIGHT];
    }
  }
  return best;
}

static ladei_order_node *node_outermost(ladei_order_node *node, int side) {
  while (node != NULL && node->child[side] != NULL) node = node->child[side];
  return node;
}

ladei_order_node *ladei_ordered_set_first(const ladei_ordered_set *set) { return node_outermost(set->root, LEFT); }

static ladei_order_node *node_beside(const ladei_order_node *node, int side) {
  if (node->child[side] != NULL) return node_outermost(node->child[side], !side);
  while (node->parent != NULL && node->parent->child[side] == node) node = node->parent;
  return node->parent;
}

ladei_order_node *ladei_order_next(const ladei_order_node *node) { return node_beside(node, RIGHT); }
ladei_order_node *ladei_order_previous(const ladei_order_node *node) { return node_beside(node, LEFT); }

bool ladei_ordered_set_check(const ladei_ordered_set *set) {
  if (set->root != NULL && set->root->parent != NULL) return false;
  size_t count = 0;
  const ladei_order_node *previous = NULL;
  for (ladei_order_node *node = ladei_ordered_set_first(set); node != NULL; node = ladei_order_next(node)) {
    uint32_t left = height(node->child[LEFT]);
    uint32_t right = height(node->child[RIGHT]);
    uint32_t larger = left > right ? left : right;
    uint32_t smaller = left > right ? right : left;
    if (previous != NULL && !ladei_order_less(&previous->key, &node->key)) return false;
    if (node->height != larger + 1 || larger > smaller + 1) return false;
    for (int side = LEFT; side <= RIGHT; side++) {
      if (node->child[side] != NULL && node->child[side]->parent != node) return false;
    }
    previous = node;
    count++;
  }
  return count == set->count;
}
