/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorted set: blocks by a key of three words, keys and blocks side by side in leaves.
 *
 *   leaves   [ 512 @a  512 @c  512 @f ... ]   [ 512 @k  512 @m ... ]   [ 1024 @b ... ]        an ordered set of them
 *
 * A walk over records that lie anywhere is a row of cache misses. Here it goes over the heads of leaves, which are few,
 * and ends in one leaf, whose lines lie side by side; the records of the blocks are not looked at. A heap with 18,000
 * free blocks has them in 1,000 leaves.
 *
 * Leaves come from a slab of the caller's, in which room was reserved: ladei_device_sorted_leaves_most says how many it
 * takes.
 *
 * I1  The entries of a leaf are in order, and so are the leaves. No leaf is empty.
 * I2  The key of a leaf, `order.key`, is at most that of its first entry and greater than that of the last entry of the
 *     leaf before. The first leaf of a set has the key 0.
 * I3  Two leaves beside each other have LADEI_DEVICE_SORTED_PAIR_LEAST entries or more.
 * I4  The leaf of the finger, if it has one, is one of the set; its index may be one more than that of the last entry.
 * Locks: the caller's.
 */
#ifndef LADE_DEVICE_HEAP_SORTED_SET_H
#define LADE_DEVICE_HEAP_SORTED_SET_H

#include "base/ordered_set.h"
#include "base/slab.h"

struct ladei_device_block;

typedef struct ladei_device_sorted_entry {
  ladei_order_key key;
  struct ladei_device_block *block;
} ladei_device_sorted_entry;

enum {
  LADEI_DEVICE_SORTED_ENTRIES = 28, /* a leaf is 1 KiB */
  LADEI_DEVICE_SORTED_PAIR_LEAST =
      LADEI_DEVICE_SORTED_ENTRIES / 2 + 1, /* a leaf of one entry, and one that an insert has just split in two */
};

typedef struct ladei_device_sorted_leaf {
  ladei_slab_head head;
  size_t count;
  _Alignas(64) ladei_order_node order; /* in the set's leaves */
  ladei_device_sorted_entry entries[LADEI_DEVICE_SORTED_ENTRIES];
} ladei_device_sorted_leaf;
_Static_assert(sizeof(ladei_device_sorted_leaf) == 1024, "a leaf is sixteen lines of cache");

/* An entry, or the place after the last one of its leaf. */
typedef struct ladei_device_sorted_place {
  ladei_device_sorted_leaf *leaf; /* NULL: no entry */
  size_t index;
} ladei_device_sorted_place;

typedef struct ladei_device_sorted_set {
  ladei_ordered_set leaves;
  ladei_device_sorted_place finger; /* where the last search or insert ended */
} ladei_device_sorted_set;

/* Leaves that `sets` sets with `entries` entries in all have at most (I3). */
static inline size_t ladei_device_sorted_leaves_most(size_t sets, size_t entries) {
  return 2 * entries / LADEI_DEVICE_SORTED_PAIR_LEAST + (sets < entries ? sets : entries);
}

/* The key is not in the set; room for a leaf was reserved. */
void ladei_device_sorted_set_insert(ladei_device_sorted_set *set, ladei_slab *slab, const ladei_order_key *key,
                                    struct ladei_device_block *block);
/* The key is in the set. */
void ladei_device_sorted_set_remove(ladei_device_sorted_set *set, ladei_slab *slab, const ladei_order_key *key);
/* Gives the block of a key another key. */
void ladei_device_sorted_set_move(ladei_device_sorted_set *set, ladei_slab *slab, const ladei_order_key *from,
                                  const ladei_order_key *to);

/* The first entry whose key is at least `key`, the last one whose key is less; NULL if there is none. */
const ladei_device_sorted_entry *ladei_device_sorted_set_at_least(const ladei_device_sorted_set *set,
                                                                  const ladei_order_key *key);
const ladei_device_sorted_entry *ladei_device_sorted_set_below(const ladei_device_sorted_set *set,
                                                               const ladei_order_key *key);

static inline bool ladei_device_sorted_set_empty(const ladei_device_sorted_set *set) {
  return set->leaves.root == NULL;
}

/* Recounts the invariants, and the entries. */
bool ladei_device_sorted_set_check(const ladei_device_sorted_set *set, size_t *out_count);

#endif /* LADE_DEVICE_HEAP_SORTED_SET_H */
