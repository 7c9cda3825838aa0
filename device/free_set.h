/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free set: the free blocks of a pool by (stream, size, address), as an array of ordered sets by classes of sizes.
 *
 *   class of a size   floor(log2 size) and the four bits below the highest: 16 classes for each power of two
 *   used              one bit for each class that is not empty
 *   classes[c]        the blocks of these sizes, of all streams, by (stream, size, address)
 *
 * A class holds few blocks also where a pool has very many, so that a walk down its tree is short; and each class has a
 * finger of its own. The whole keeps the order of one set: the smallest block of a stream that is large enough, at the
 * lowest address, is in the class of the size or in the next one that has a block of that stream.
 *
 * I1  A node is in the class of its size, key.word[1].
 * I2  Bit c of `used` is set exactly if classes[c] is not empty.
 * Locks: the caller's.
 */
#ifndef LADE_DEVICE_FREE_SET_H
#define LADE_DEVICE_FREE_SET_H

#include "base/size.h"
#include "device/ordered_set.h"

enum {
  LADEI_FREE_FIRST_LOG2 = 9, /* 512 bytes, the smallest block */
  LADEI_FREE_STEPS_LOG2 = 4,
  LADEI_FREE_CLASSES = (61 - LADEI_FREE_FIRST_LOG2) << LADEI_FREE_STEPS_LOG2, /* below 2^61: a segment of 2^60 fits */
  LADEI_FREE_WORDS = LADEI_FREE_CLASSES / 64,
};

typedef struct ladei_free_set {
  uint64_t used[LADEI_FREE_WORDS];
  size_t count;
  ladei_ordered_set classes[LADEI_FREE_CLASSES];
} ladei_free_set;

_Static_assert(LADEI_FREE_CLASSES % 64 == 0, "whole words of `used`");

static inline size_t ladei_free_class(uint64_t size) {
  unsigned log2 = ladei_log2_floor(size);
  size_t step = (size_t)(size >> (log2 - LADEI_FREE_STEPS_LOG2)) & ((1 << LADEI_FREE_STEPS_LOG2) - 1);
  return ((size_t)(log2 - LADEI_FREE_FIRST_LOG2) << LADEI_FREE_STEPS_LOG2) + step;
}

/* `node->key` is (stream, size, address). The node is in no set. */
void ladei_free_set_insert(ladei_free_set *set, ladei_order_node *node);
/* The node is in this set. */
void ladei_free_set_remove(ladei_free_set *set, ladei_order_node *node);

/* Gives a node of this set another key. */
static inline void ladei_free_set_move(ladei_free_set *set, ladei_order_node *node, ladei_order_key key) {
  size_t class = ladei_free_class(node->key.word[1]);
  if (class == ladei_free_class(key.word[1])) {
    ladei_ordered_set_move(&set->classes[class], node, key);
  } else {
    ladei_free_set_remove(set, node);
    node->key = key;
    ladei_free_set_insert(set, node);
  }
}

/* As ladei_free_set_find, from a class on in which nothing was looked for yet. */
ladei_order_node *ladei_free_set_find_from(const ladei_free_set *set, uint64_t stream, size_t class);

/* The stream's smallest node of at least `size`, the lowest address of equals; NULL if there is none. */
static inline ladei_order_node *ladei_free_set_find(const ladei_free_set *set, uint64_t stream, uint64_t size) {
  size_t class = ladei_free_class(size);
  ladei_order_node *node = ladei_ordered_set_at_least(&set->classes[class], (ladei_order_key){{stream, size, 0}});
  if (node != NULL && node->key.word[0] == stream) return node;
  return ladei_free_set_find_from(set, stream, class + 1);
}

/* The stream's next and previous node in order; its largest one. NULL if there is none. */
ladei_order_node *ladei_free_set_larger(const ladei_free_set *set, const ladei_order_node *node);
ladei_order_node *ladei_free_set_smaller(const ladei_free_set *set, const ladei_order_node *node);
ladei_order_node *ladei_free_set_largest(const ladei_free_set *set, uint64_t stream);

/* All nodes of all streams in order. The next one may be asked for before `node` is removed. NULL at the end. */
ladei_order_node *ladei_free_set_first(const ladei_free_set *set);
ladei_order_node *ladei_free_set_next(const ladei_free_set *set, const ladei_order_node *node);

/* Recounts the invariants. */
bool ladei_free_set_check(const ladei_free_set *set);

#endif /* LADE_DEVICE_FREE_SET_H */
