/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered set as an AVL tree with parent links, threaded in order.
 *
 * I1  Keys in the left subtree are smaller, in the right one larger.
 * I2  A node's height is 1 + the larger height of its children (0 for none), and those differ by at most 1.
 * I3  A node's parent has it as a child; the root has no parent.
 * I4  previous and next are the neighbours in order; first and last the ends; the finger is a node of the set.
 * Locks: the caller's.
 */
#include "device/ordered_set.h"

enum { LEFT = 0, RIGHT = 1 };

/* ---- Balance ----------------------------------------------------------------------------------------------------- */

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

/* ---- Order and finger -------------------------------------------------------------------------------------------- */

static void order_link(ladei_ordered_set *set, ladei_order_node *node, ladei_order_node *low, ladei_order_node *high) {
  node->previous = low;
  node->next = high;
  *(low == NULL ? &set->first : &low->next) = node;
  *(high == NULL ? &set->last : &high->previous) = node;
  set->finger = node;
}

static void order_unlink(ladei_ordered_set *set, ladei_order_node *node) {
  ladei_order_node *low = node->previous;
  ladei_order_node *high = node->next;
  *(low == NULL ? &set->first : &low->next) = high;
  *(high == NULL ? &set->last : &high->previous) = low;
  set->finger = high == NULL ? low : high;
  node->previous = node->next = NULL;
}

/* ---- Changing ---------------------------------------------------------------------------------------------------- */

/* Where a new key goes: between two neighbours in order, of which exactly one has no child on the other's side. */
static void gap_find(const ladei_ordered_set *set, const ladei_order_key *key, ladei_order_node **out_low,
                     ladei_order_node **out_high) {
  ladei_order_node *finger = set->finger;
  ladei_order_node *low = NULL;
  ladei_order_node *high = NULL;
  if (finger != NULL && ladei_order_fits(finger->previous, key, finger)) {
    low = finger->previous;
    high = finger;
  } else if (finger != NULL && ladei_order_fits(finger, key, finger->next)) {
    low = finger;
    high = finger->next;
  } else {
    for (ladei_order_node *node = set->root; node != NULL;) {
      bool right = ladei_order_less(&node->key, key);
      *(right ? &low : &high) = node;
      node = node->child[right];
    }
  }
  *out_low = low;
  *out_high = high;
}

void ladei_ordered_set_insert_among(ladei_ordered_set *set, ladei_order_node *node) {
  ladei_order_node *low;
  ladei_order_node *high;
  gap_find(set, &node->key, &low, &high);
  bool below_high = high != NULL && high->child[LEFT] == NULL;
  ladei_order_node *parent = below_high ? high : low;
  node->parent = parent;
  node->child[LEFT] = node->child[RIGHT] = NULL;
  node->height = 1;
  parent->child[below_high ? LEFT : RIGHT] = node;
  order_link(set, node, low, high);
  set->count++;
  heights_restore(set, parent);
}

void ladei_ordered_set_remove_among(ladei_ordered_set *set, ladei_order_node *node) {
  ladei_order_node *lowest_changed;
  if (node->child[LEFT] == NULL || node->child[RIGHT] == NULL) {
    lowest_changed = node->parent;
    node_replace(set, node, node->child[node->child[LEFT] == NULL ? RIGHT : LEFT]);
  } else {
    /* The next larger node has no left child: it takes the place. */
    ladei_order_node *heir = node->next;
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
  order_unlink(set, node);
  node->parent = node->child[LEFT] = node->child[RIGHT] = NULL;
  node->height = 0;
  set->count--;
  heights_restore(set, lowest_changed);
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

ladei_order_node *ladei_ordered_set_descend(const ladei_ordered_set *set, ladei_order_key key) {
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

/* ---- Check ------------------------------------------------------------------------------------------------------- */

/* Smallest node of a subtree and the next one above it, by the tree alone: what the order links are checked against. */
static const ladei_order_node *tree_first(const ladei_order_node *node) {
  while (node != NULL && node->child[LEFT] != NULL) node = node->child[LEFT];
  return node;
}

static const ladei_order_node *tree_next(const ladei_order_node *node) {
  if (node->child[RIGHT] != NULL) return tree_first(node->child[RIGHT]);
  while (node->parent != NULL && node->parent->child[RIGHT] == node) node = node->parent;
  return node->parent;
}

static bool node_check(const ladei_order_node *node, const ladei_order_node *previous) {
  uint32_t left = height(node->child[LEFT]);
  uint32_t right = height(node->child[RIGHT]);
  uint32_t larger = left > right ? left : right;
  uint32_t smaller = left > right ? right : left;
  if (node->previous != previous || (previous != NULL && previous->next != node)) return false;
  if (previous != NULL && !ladei_order_less(&previous->key, &node->key)) return false;
  if (node->height != larger + 1 || larger > smaller + 1) return false;
  for (int side = LEFT; side <= RIGHT; side++) {
    if (node->child[side] != NULL && node->child[side]->parent != node) return false;
  }
  return true;
}

bool ladei_ordered_set_check(const ladei_ordered_set *set) {
  if (set->root != NULL && set->root->parent != NULL) return false;
  if (set->first != tree_first(set->root) || (set->finger == NULL) != (set->root == NULL)) return false;
  size_t count = 0;
  bool finger_found = set->finger == NULL;
  const ladei_order_node *previous = NULL;
  for (const ladei_order_node *node = tree_first(set->root); node != NULL; node = tree_next(node)) {
    if (!node_check(node, previous)) return false;
    finger_found = finger_found || node == set->finger;
    previous = node;
    count++;
  }
  return finger_found && set->last == previous && (previous == NULL || previous->next == NULL) && count == set->count;
}
