/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered set as an AVL tree with parent links, threaded in order.
 *
 *   lean of a node   EVEN: both subtrees are equally high;  LEFT_DEEP, RIGHT_DEEP: that one is higher by 1
 *
 * A node stores its lean, not its height: rebalancing reads only the nodes of the path that was walked, which are in
 * the cache, and not their other children.
 *
 * I3  Keys in the left subtree are smaller, in the right one larger.
 * I4  The heights of a node's subtrees differ by at most 1, and its lean says how.
 * I5  A node's parent has it as a child; the root has no parent.
 * I6  previous and next are the neighbours in order; first and last the ends; the finger is a node of the set.
 * Locks: the caller's.
 */
#include "base/ordered_set.h"

enum { LEFT = 0, RIGHT = 1 };

/* The deeper side plus 1. */
enum { EVEN = 0, LEFT_DEEP = LEFT + 1, RIGHT_DEEP = RIGHT + 1, LEAN_BITS = 3 };

/* ---- Balance ----------------------------------------------------------------------------------------------------- */

static ladei_order_node *parent_of(const ladei_order_node *node) {
  return (ladei_order_node *)(node->parent_and_balance & ~(uintptr_t)LEAN_BITS);
}

static void parent_set(ladei_order_node *node, ladei_order_node *parent) {
  node->parent_and_balance = (uintptr_t)parent | (node->parent_and_balance & LEAN_BITS);
}

static unsigned lean_of(const ladei_order_node *node) { return node->parent_and_balance & LEAN_BITS; }

static void lean_set(ladei_order_node *node, unsigned lean) {
  node->parent_and_balance = (node->parent_and_balance & ~(uintptr_t)LEAN_BITS) | lean;
}

static unsigned lean_to(int side) { return (unsigned)side + 1; }

/* Which child of its parent a node is. */
static int side_of(const ladei_order_node *node, const ladei_order_node *parent) {
  return parent->child[RIGHT] == node;
}

/* Puts `with` (may be NULL) in the place of `node`. */
static void node_replace(ladei_ordered_set *set, const ladei_order_node *node, ladei_order_node *with) {
  ladei_order_node *parent = parent_of(node);
  if (parent == NULL)
    set->root = with;
  else
    parent->child[side_of(node, parent)] = with;
  if (with != NULL) parent_set(with, parent);
}

/* Lifts the child on `side` above `node`; returns it. The caller sets the leans. */
static ladei_order_node *node_rotate(ladei_ordered_set *set, ladei_order_node *node, int side) {
  ladei_order_node *risen = node->child[side];
  ladei_order_node *inner = risen->child[!side];
  node_replace(set, node, risen);
  risen->child[!side] = node;
  parent_set(node, risen);
  node->child[side] = inner;
  if (inner != NULL) parent_set(inner, node);
  return risen;
}

/* Restores I4 of a node whose subtree on `side` is higher by 2. Returns the node that takes its place; it is EVEN
 * exactly if the whole has become lower by 1. */
static ladei_order_node *node_rebalance(ladei_ordered_set *set, ladei_order_node *node, int side) {
  ladei_order_node *child = node->child[side];
  if (lean_of(child) == lean_to(!side)) {
    ladei_order_node *inner = child->child[!side];
    unsigned lean = lean_of(inner);
    node_rotate(set, child, !side);
    node_rotate(set, node, side);
    lean_set(child, lean == lean_to(!side) ? lean_to(side) : EVEN);
    lean_set(node, lean == lean_to(side) ? lean_to(!side) : EVEN);
    lean_set(inner, EVEN);
    return inner;
  }
  bool was_even = lean_of(child) == EVEN; /* only after a removal */
  node_rotate(set, node, side);
  lean_set(node, was_even ? lean_to(side) : EVEN);
  lean_set(child, was_even ? lean_to(!side) : EVEN);
  return child;
}

/* The subtree on `side` of `node` has become higher by 1. */
static void higher(ladei_ordered_set *set, ladei_order_node *node, int side) {
  while (lean_of(node) == EVEN) {
    lean_set(node, lean_to(side));
    ladei_order_node *parent = parent_of(node);
    if (parent == NULL) return;
    side = side_of(node, parent);
    node = parent;
  }
  if (lean_of(node) == lean_to(side))
    node_rebalance(set, node, side);
  else
    lean_set(node, EVEN);
}

/* The subtree on `side` of `node` (may be NULL) has become lower by 1. */
static void lower(ladei_ordered_set *set, ladei_order_node *node, int side) {
  while (node != NULL) {
    if (lean_of(node) == EVEN) {
      lean_set(node, lean_to(!side));
      return;
    }
    if (lean_of(node) == lean_to(side)) {
      lean_set(node, EVEN);
    } else {
      node = node_rebalance(set, node, !side);
      if (lean_of(node) != EVEN) return;
    }
    ladei_order_node *parent = parent_of(node);
    if (parent != NULL) side = side_of(node, parent);
    node = parent;
  }
}

/* On the way down both children are prefetched while the key is compared, since the branch is not predictable. */
static inline __attribute__((always_inline)) void children_prefetch(const ladei_order_node *node) {
  __builtin_prefetch(node->child[LEFT]);
  __builtin_prefetch(node->child[RIGHT]);
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

/* The place of a new key: between two neighbours in order, of which exactly one has no child on the other's side. */
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
      children_prefetch(node);
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
  int side = below_high ? LEFT : RIGHT;
  node->parent_and_balance = (uintptr_t)parent | EVEN;
  node->child[LEFT] = node->child[RIGHT] = NULL;
  parent->child[side] = node;
  order_link(set, node, low, high);
  set->count++;
  higher(set, parent, side);
}

/* Puts the next larger node, which has no left child, in the place of a node with two children. Returns the lowest node
 * with a subtree that became lower, and on which side. */
static ladei_order_node *heir_take_over(ladei_ordered_set *set, ladei_order_node *node, int *out_side) {
  ladei_order_node *heir = node->next;
  ladei_order_node *changed = parent_of(heir);
  *out_side = LEFT;
  if (changed == node) {
    changed = heir;
    *out_side = RIGHT;
  } else {
    node_replace(set, heir, heir->child[RIGHT]);
    heir->child[RIGHT] = node->child[RIGHT];
    parent_set(heir->child[RIGHT], heir);
  }
  heir->child[LEFT] = node->child[LEFT];
  parent_set(heir->child[LEFT], heir);
  node_replace(set, node, heir);
  lean_set(heir, lean_of(node));
  return changed;
}

void ladei_ordered_set_remove_among(ladei_ordered_set *set, ladei_order_node *node) {
  ladei_order_node *changed = parent_of(node);
  int side = changed != NULL ? side_of(node, changed) : LEFT;
  if (node->child[LEFT] != NULL && node->child[RIGHT] != NULL)
    changed = heir_take_over(set, node, &side);
  else
    node_replace(set, node, node->child[node->child[LEFT] == NULL ? RIGHT : LEFT]);
  order_unlink(set, node);
  set->count--;
  lower(set, changed, side);
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

ladei_order_node *ladei_ordered_set_descend(const ladei_ordered_set *set, const ladei_order_key *key) {
  ladei_order_node *best = NULL;
  for (ladei_order_node *node = set->root; node != NULL;) {
    children_prefetch(node);
    if (ladei_order_less(&node->key, key)) {
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
    children_prefetch(node);
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

/* State of the walk over a tree. */
typedef struct tree_walk {
  const ladei_order_node *previous; /* in order */
  size_t count;
  bool finger_found;
  bool right; /* no mistake so far */
} tree_walk;

/* Height of a subtree. Checks its nodes in order: the links of the order against the tree. */
static unsigned subtree_check(const ladei_ordered_set *set, const ladei_order_node *node,
                              const ladei_order_node *parent, tree_walk *seen) {
  if (node == NULL) return 0;
  unsigned left = subtree_check(set, node->child[LEFT], node, seen);
  const ladei_order_node *previous = seen->previous;
  bool linked = node->previous == previous && (previous == NULL || previous->next == node) && parent_of(node) == parent;
  bool ordered = previous == NULL || ladei_order_less(&previous->key, &node->key);
  seen->previous = node;
  seen->count++;
  seen->finger_found = seen->finger_found || node == set->finger;
  unsigned right = subtree_check(set, node->child[RIGHT], node, seen);
  unsigned lean = lean_of(node);
  bool balanced = left + (lean == RIGHT_DEEP) == right + (lean == LEFT_DEEP) && lean <= RIGHT_DEEP;
  seen->right = seen->right && linked && ordered && balanced;
  return 1 + (left > right ? left : right);
}

bool ladei_ordered_set_check(const ladei_ordered_set *set) {
  tree_walk seen = {.right = true};
  subtree_check(set, set->root, NULL, &seen);
  const ladei_order_node *first = set->root;
  while (first != NULL && first->child[LEFT] != NULL) first = first->child[LEFT];
  bool ended = seen.previous == NULL || seen.previous->next == NULL;
  bool finger_right = set->root == NULL ? set->finger == NULL : seen.finger_found;
  return seen.right && ended && finger_right && set->first == first && set->last == seen.previous &&
         seen.count == set->count;
}
