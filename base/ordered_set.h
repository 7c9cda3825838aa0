/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordered set: records by a key of three words, links inside the record.
 *
 * The three words compare one after another, so that one structure serves free blocks (stream, size, address), holes
 * (stream, address, 0), segments (address, 0, 0) and streams with pending uses. A height-balanced (AVL) tree whose
 * nodes are also linked in order:
 *
 *   tree            d                find, insert, remove: O(log n)
 *                 /   \
 *                b     f
 *               / \   / \
 *   order      a=b=c=d=e=f=g         next, previous, and whether a key belongs beside a node: O(1)
 *                  ^ finger: where the last change was
 *
 * Programs allocate and free the same sizes again and again, so most keys are looked up near the last change. The
 * finger finds those without a walk, however large the set is. Allocates nothing, so nothing here can fail.
 *
 * I1  The key of a node does not change while it is in a set.
 * I2  Keys in one set differ.
 * Locks: the caller's.
 */
#ifndef LADE_BASE_ORDERED_SET_H
#define LADE_BASE_ORDERED_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ladei_order_key {
  uint64_t word[3];
} ladei_order_key;

/* One cache line, if the record is aligned to it: a walk down a large tree is a sequence of cache misses. */
typedef struct ladei_order_node {
  ladei_order_key key;
  struct ladei_order_node *previous; /* in order; NULL at the ends */
  struct ladei_order_node *next;
  struct ladei_order_node *child[2]; /* smaller, larger keys */
  uintptr_t parent_and_balance;      /* the parent's address; in its two lowest bits, which child is the deeper one */
} ladei_order_node;
_Static_assert(sizeof(ladei_order_node) == 64, "a node is one line of cache");

typedef struct ladei_ordered_set {
  ladei_order_node *root;
  size_t count;
  ladei_order_node *first;
  ladei_order_node *last;
  ladei_order_node *finger; /* some node, near the last change; NULL: the set is empty */
} ladei_ordered_set;

/* The record that embeds `node` as its member `member`; NULL stays NULL. */
#define LADEI_ORDER_RECORD(node, type, member)                                                                         \
  ((node) == NULL ? NULL : (type *)(void *)((char *)(node)-offsetof(type, member)))

static inline bool ladei_order_less(const ladei_order_key *a, const ladei_order_key *b) {
  if (a->word[0] != b->word[0]) return a->word[0] < b->word[0];
  if (a->word[1] != b->word[1]) return a->word[1] < b->word[1];
  return a->word[2] < b->word[2];
}

/* The two below handle sets that hold other nodes. */
void ladei_ordered_set_insert_among(ladei_ordered_set *set, ladei_order_node *node);
void ladei_ordered_set_remove_among(ladei_ordered_set *set, ladei_order_node *node);

/* The caller has set `node->key`. The node is in no set. */
static inline void ladei_ordered_set_insert(ladei_ordered_set *set, ladei_order_node *node) {
  if (set->root != NULL) {
    ladei_ordered_set_insert_among(set, node);
    return;
  }
  node->previous = node->next = node->child[0] = node->child[1] = NULL;
  node->parent_and_balance = 0;
  set->root = set->first = set->last = set->finger = node;
  set->count = 1;
}

/* The node is in this set. */
static inline void ladei_ordered_set_remove(ladei_ordered_set *set, ladei_order_node *node) {
  if (set->count != 1) {
    ladei_ordered_set_remove_among(set, node);
    return;
  }
  set->root = set->first = set->last = set->finger = NULL;
  set->count = 0;
}

/* Whether the key belongs between two neighbours; NULL stands for an end. */
static inline bool ladei_order_fits(const ladei_order_node *low, const ladei_order_key *key,
                                    const ladei_order_node *high) {
  return (low == NULL || ladei_order_less(&low->key, key)) && (high == NULL || ladei_order_less(key, &high->key));
}

/* ladei_ordered_set_at_least, by the tree alone. Takes the key by address: a 16-byte copy of words that were just
 * written would wait until they are in the cache. */
ladei_order_node *ladei_ordered_set_descend(const ladei_ordered_set *set, const ladei_order_key *key);

/* Smallest node whose key is at least `key`; NULL if there is none. */
static inline ladei_order_node *ladei_ordered_set_at_least(const ladei_ordered_set *set, ladei_order_key key) {
  ladei_order_node *finger = set->finger;
  bool there = finger != NULL && !ladei_order_less(&finger->key, &key) &&
               (finger->previous == NULL || ladei_order_less(&finger->previous->key, &key));
  return there ? finger : ladei_ordered_set_descend(set, &key);
}
/* Largest node whose key is at most `key`; NULL if there is none. */
ladei_order_node *ladei_ordered_set_at_most(const ladei_ordered_set *set, ladei_order_key key);

static inline ladei_order_node *ladei_ordered_set_first(const ladei_ordered_set *set) { return set->first; }
/* In-order neighbours; NULL at the ends. */
static inline ladei_order_node *ladei_order_next(const ladei_order_node *node) { return node->next; }
static inline ladei_order_node *ladei_order_previous(const ladei_order_node *node) { return node->previous; }

/* Recounts order, links and balance. */
bool ladei_ordered_set_check(const ladei_ordered_set *set);

#endif /* LADE_BASE_ORDERED_SET_H */
