/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free set: the free blocks of a pool by (stream, size, address), as an array of sorted sets by classes of sizes.
 *
 *   class of a size   floor(log2 (size - 1)) and the five bits below the highest: 32 classes for each power of two
 *   used              one bit for each class that is not empty
 *   classes[c]        the blocks of these sizes, of all streams, by (stream, size, address)
 *
 * Few blocks lie in class 0 all together, in one sorted set; they are spread over the classes when they have become
 * many, and gathered again when few are left.
 *
 * A class holds few blocks also where a pool has very many, so that a walk over its leaves is short; and each class has
 * a finger of its own. The whole keeps the order of one set: the smallest block of a stream that is large enough, at
 * the lowest address, is in the class of the size or in the next one that has a block of that stream.
 *
 * I1  A block is in the class of its size, key.word[1]; in class 0 while the set is not spread.
 * I2  Bit c of `used` is set exactly if classes[c] is not empty.
 * Locks: the caller's.
 */
#ifndef LADE_DEVICE_HEAP_FREE_SET_H
#define LADE_DEVICE_HEAP_FREE_SET_H

#include "base/size.h"
#include "device/heap/sorted_set.h"

enum {
  LADEI_DEVICE_FREE_FIRST_LOG2 = 9, /* 512 bytes, the smallest block */
  LADEI_DEVICE_FREE_STEPS_LOG2 = 5,
  LADEI_DEVICE_FREE_CLASSES = (61 - LADEI_DEVICE_FREE_FIRST_LOG2)
                              << LADEI_DEVICE_FREE_STEPS_LOG2, /* below 2^61: a segment of 2^60 fits */
  LADEI_DEVICE_FREE_WORDS = (LADEI_DEVICE_FREE_CLASSES + 63) / 64,
  /* Blocks. Few are as fast in one class, and none moves between classes then, in the pairs of a calm program. */
  LADEI_DEVICE_FREE_SPREAD_AT = 64,
  LADEI_DEVICE_FREE_GATHER_AT = 16,
};

typedef struct ladei_device_free_set {
  bool spread;
  size_t count;
  uint64_t used[LADEI_DEVICE_FREE_WORDS];
  ladei_slab *slab; /* of the leaves of all classes; borrowed */
  ladei_device_sorted_set classes[LADEI_DEVICE_FREE_CLASSES];
} ladei_device_free_set;

/* One byte less decides: a whole segment, of a round size, shares its class with what a small block leaves of it. */
static inline size_t ladei_device_free_class(uint64_t size) {
  uint64_t inner = size <= 512 ? 512 : size - 1;
  unsigned log2 = ladei_log2_floor(inner);
  size_t step = (size_t)(inner >> (log2 - LADEI_DEVICE_FREE_STEPS_LOG2)) & ((1 << LADEI_DEVICE_FREE_STEPS_LOG2) - 1);
  return ((size_t)(log2 - LADEI_DEVICE_FREE_FIRST_LOG2) << LADEI_DEVICE_FREE_STEPS_LOG2) + step;
}

/* The class in which a set keeps blocks of this size. */
static inline size_t ladei_device_free_set_class(const ladei_device_free_set *set, uint64_t size) {
  return set->spread ? ladei_device_free_class(size) : 0;
}

/* Puts all blocks where the number of them says; there are LADEI_DEVICE_FREE_SPREAD_AT at most. */
void ladei_device_free_set_spread(ladei_device_free_set *set, bool spread);

/* First class in use from `class` on; LADEI_DEVICE_FREE_CLASSES if there is none. */
static inline size_t ladei_device_free_set_used(const ladei_device_free_set *set, size_t class) {
  if (class >= LADEI_DEVICE_FREE_CLASSES) return LADEI_DEVICE_FREE_CLASSES;
  size_t word = class / 64;
  uint64_t bits = set->used[word] & (UINT64_MAX << (class % 64));
  while (bits == 0) {
    if (++word == LADEI_DEVICE_FREE_WORDS) return LADEI_DEVICE_FREE_CLASSES;
    bits = set->used[word];
  }
  return 64 * word + (size_t)__builtin_ctzll(bits);
}

/* `key` is (stream, size, address) and not in the set; room for a leaf was reserved. */
static inline void ladei_device_free_set_insert(ladei_device_free_set *set, const ladei_order_key *key,
                                                struct ladei_device_block *block) {
  if (!set->spread && set->count == LADEI_DEVICE_FREE_SPREAD_AT) ladei_device_free_set_spread(set, true);
  size_t class = ladei_device_free_set_class(set, key->word[1]);
  ladei_device_sorted_set_insert(&set->classes[class], set->slab, key, block);
  set->used[class / 64] |= UINT64_C(1) << (class % 64);
  set->count++;
}

/* The key is in this set. */
static inline void ladei_device_free_set_remove(ladei_device_free_set *set, const ladei_order_key *key) {
  size_t class = ladei_device_free_set_class(set, key->word[1]);
  ladei_device_sorted_set_remove(&set->classes[class], set->slab, key);
  if (ladei_device_sorted_set_empty(&set->classes[class])) set->used[class / 64] &= ~(UINT64_C(1) << (class % 64));
  set->count--;
  if (set->spread && set->count == LADEI_DEVICE_FREE_GATHER_AT) ladei_device_free_set_spread(set, false);
}

/* Gives a block of this set another key. */
static inline void ladei_device_free_set_move(ladei_device_free_set *set, const ladei_order_key *from,
                                              const ladei_order_key *to, struct ladei_device_block *block) {
  size_t class = ladei_device_free_set_class(set, to->word[1]);
  if (class == ladei_device_free_set_class(set, from->word[1])) {
    ladei_device_sorted_set_move(&set->classes[class], set->slab, from, to);
  } else {
    ladei_device_free_set_remove(set, from);
    ladei_device_free_set_insert(set, to, block);
  }
}

/* The stream's first entry in the classes from `class` on that is at or after `key`, one of the stream. */
static inline const ladei_device_sorted_entry *
ladei_device_free_set_find_from(const ladei_device_free_set *set, size_t class, const ladei_order_key *key) {
  for (class = ladei_device_free_set_used(set, class); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    const ladei_device_sorted_entry *entry = ladei_device_sorted_set_at_least(&set->classes[class], key);
    if (entry != NULL && entry->key.word[0] == key->word[0]) return entry;
  }
  return NULL;
}

/* The stream's smallest entry of at least `size`, the lowest address of equals; NULL if there is none. Inlined by
 * force, since every allocation asks. */
static inline __attribute__((always_inline)) const ladei_device_sorted_entry *
ladei_device_free_set_find(const ladei_device_free_set *set, uint64_t stream, uint64_t size) {
  ladei_order_key key = {{stream, size, 0}};
  return ladei_device_free_set_find_from(set, ladei_device_free_set_class(set, size), &key);
}

/* The stream's next and previous entry in the order of keys; its largest one. NULL if there is none. */
const ladei_device_sorted_entry *ladei_device_free_set_larger(const ladei_device_free_set *set,
                                                              const ladei_order_key *key);
const ladei_device_sorted_entry *ladei_device_free_set_smaller(const ladei_device_free_set *set,
                                                               const ladei_order_key *key);
const ladei_device_sorted_entry *ladei_device_free_set_largest(const ladei_device_free_set *set, uint64_t stream);

/* The largest size of all streams; 0 in an empty set. A walk over the streams of one class, not over its blocks. */
uint64_t ladei_device_free_set_largest_size(const ladei_device_free_set *set);

/* All entries of all streams in order. The next one may be asked for before the block is removed. NULL at the end. */
const ladei_device_sorted_entry *ladei_device_free_set_first(const ladei_device_free_set *set);
const ladei_device_sorted_entry *ladei_device_free_set_next(const ladei_device_free_set *set,
                                                            const ladei_order_key *key);

/* Recounts the invariants. */
bool ladei_device_free_set_check(const ladei_device_free_set *set);

#endif /* LADE_DEVICE_HEAP_FREE_SET_H */
