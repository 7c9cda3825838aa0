/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted set; model and invariants in sorted_set.h. */
#include "device/heap/sorted_set.h"

#include <assert.h>
#include <string.h>

/* So much two leaves may have together when they become one: no insert soon after splits it again. */
enum { JOINED_MOST = LADEI_DEVICE_SORTED_ENTRIES * 3 / 4 };

/* ---- Leaves ------------------------------------------------------------------------------------------------------ */

static ladei_device_sorted_leaf *leaf_of(ladei_order_node *node) {
  return LADEI_ORDER_RECORD(node, ladei_device_sorted_leaf, order);
}
static ladei_device_sorted_leaf *leaf_next(const ladei_device_sorted_leaf *leaf) {
  return leaf_of(ladei_order_next(&leaf->order));
}
static ladei_device_sorted_leaf *leaf_previous(const ladei_device_sorted_leaf *leaf) {
  return leaf_of(ladei_order_previous(&leaf->order));
}

static ladei_device_sorted_leaf *leaf_create(ladei_device_sorted_set *set, ladei_slab *slab, ladei_order_key key) {
  ladei_device_sorted_leaf *leaf = ladei_slab_alloc(slab);
  assert(leaf != NULL);
  leaf->count = 0;
  leaf->order.key = key;
  ladei_ordered_set_insert(&set->leaves, &leaf->order);
  return leaf;
}

static void leaf_destroy(ladei_device_sorted_set *set, ladei_slab *slab, ladei_device_sorted_leaf *leaf) {
  ladei_ordered_set_remove(&set->leaves, &leaf->order);
  ladei_slab_free(slab, leaf);
}

/* The upper half of a full leaf becomes a leaf. Returns where the place is then. */
static ladei_device_sorted_place leaf_split(ladei_device_sorted_set *set, ladei_slab *slab,
                                            ladei_device_sorted_place at) {
  enum { HALF = LADEI_DEVICE_SORTED_ENTRIES / 2 };
  ladei_device_sorted_leaf *lower = at.leaf;
  ladei_device_sorted_leaf *upper = leaf_create(set, slab, lower->entries[HALF].key);
  memcpy(upper->entries, lower->entries + HALF, HALF * sizeof *upper->entries);
  lower->count = upper->count = HALF;
  return at.index <= HALF ? at : (ladei_device_sorted_place){upper, at.index - HALF};
}

/* The entries of the leaf above come into the one below. */
static void leaves_join(ladei_device_sorted_set *set, ladei_slab *slab, ladei_device_sorted_leaf *lower,
                        ladei_device_sorted_leaf *upper) {
  memcpy(lower->entries + lower->count, upper->entries, upper->count * sizeof *upper->entries);
  lower->count += upper->count;
  leaf_destroy(set, slab, upper);
}

static bool joinable(const ladei_device_sorted_leaf *leaf, const ladei_device_sorted_leaf *other) {
  return other != NULL && (leaf->count == 0 || leaf->count + other->count <= JOINED_MOST);
}

/* Restores I1 and I3 of a leaf that has lost an entry. */
static void leaf_shrunk(ladei_device_sorted_set *set, ladei_slab *slab, ladei_device_sorted_leaf *leaf) {
  if (leaf->count > LADEI_DEVICE_SORTED_ENTRIES / 2) return;
  ladei_device_sorted_leaf *next = leaf_next(leaf);
  ladei_device_sorted_leaf *previous = leaf_previous(leaf);
  if (joinable(leaf, next))
    leaves_join(set, slab, leaf, next);
  else if (joinable(leaf, previous))
    leaves_join(set, slab, previous, leaf);
  else if (leaf->count == 0)
    leaf_destroy(set, slab, leaf);
  else
    return;
  set->finger.leaf = NULL;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

/* The first entry of the leaf that is at least `key`; its count: none. */
static size_t leaf_find(const ladei_device_sorted_leaf *leaf, const ladei_order_key *key) {
  size_t index = 0;
  while (index < leaf->count && ladei_order_less(&leaf->entries[index].key, key)) index++;
  return index;
}

/* The finger is no part of what a set says: a search of a constant one moves it. */
static ladei_device_sorted_place finger_put(const ladei_device_sorted_set *set, ladei_device_sorted_place at) {
  ((ladei_device_sorted_set *)(uintptr_t)set)->finger = at;
  return at;
}

/* Whether the key is after the entry before the place. */
static bool place_behind(ladei_device_sorted_place at, const ladei_order_key *key) {
  if (at.index > 0) return ladei_order_less(&at.leaf->entries[at.index - 1].key, key);
  return !ladei_order_less(key, &at.leaf->order.key); /* I2 */
}

/* Where the key is, or goes. The set is not empty. */
static ladei_device_sorted_place set_find(const ladei_device_sorted_set *set, const ladei_order_key *key) {
  ladei_device_sorted_place finger = set->finger;
  if (finger.leaf != NULL && finger.index < finger.leaf->count &&
      !ladei_order_less(&finger.leaf->entries[finger.index].key, key) && place_behind(finger, key))
    return finger;
  ladei_device_sorted_leaf *leaf = leaf_of(ladei_ordered_set_at_most(&set->leaves, *key)); /* I2 */
  return finger_put(set, (ladei_device_sorted_place){leaf, leaf_find(leaf, key)});
}

const ladei_device_sorted_entry *ladei_device_sorted_set_at_least(const ladei_device_sorted_set *set,
                                                                  const ladei_order_key *key) {
  if (ladei_device_sorted_set_empty(set)) return NULL;
  ladei_device_sorted_place at = set_find(set, key);
  if (at.index < at.leaf->count) return &at.leaf->entries[at.index];
  ladei_device_sorted_leaf *next = leaf_next(at.leaf);
  if (next == NULL) return NULL;
  (void)finger_put(set, (ladei_device_sorted_place){next, 0});
  return &next->entries[0];
}

const ladei_device_sorted_entry *ladei_device_sorted_set_below(const ladei_device_sorted_set *set,
                                                               const ladei_order_key *key) {
  if (ladei_device_sorted_set_empty(set)) return NULL;
  ladei_device_sorted_place at = set_find(set, key);
  if (at.index > 0) return &at.leaf->entries[at.index - 1];
  ladei_device_sorted_leaf *previous = leaf_previous(at.leaf);
  return previous == NULL ? NULL : &previous->entries[previous->count - 1];
}

/* ---- Changing ---------------------------------------------------------------------------------------------------- */

void ladei_device_sorted_set_insert(ladei_device_sorted_set *set, ladei_slab *slab, const ladei_order_key *key,
                                    struct ladei_device_block *block) {
  ladei_device_sorted_place at = {NULL, 0};
  if (ladei_device_sorted_set_empty(set))
    at.leaf = leaf_create(set, slab, (ladei_order_key){{0, 0, 0}});
  else
    at = set_find(set, key);
  if (at.leaf->count == LADEI_DEVICE_SORTED_ENTRIES) at = leaf_split(set, slab, at);
  ladei_device_sorted_entry *entry = &at.leaf->entries[at.index];
  memmove(entry + 1, entry, (at.leaf->count - at.index) * sizeof *entry);
  *entry = (ladei_device_sorted_entry){*key, block};
  at.leaf->count++;
  set->finger = at;
}

static void place_remove(ladei_device_sorted_set *set, ladei_slab *slab, ladei_device_sorted_place at) {
  ladei_device_sorted_entry *entry = &at.leaf->entries[at.index];
  at.leaf->count--;
  memmove(entry, entry + 1, (at.leaf->count - at.index) * sizeof *entry);
  leaf_shrunk(set, slab, at.leaf);
}

/* Of a key in the set. */
static ladei_device_sorted_place set_place(const ladei_device_sorted_set *set, const ladei_order_key *key) {
  ladei_device_sorted_place finger = set->finger;
  bool there = finger.leaf != NULL && finger.index < finger.leaf->count &&
               memcmp(&finger.leaf->entries[finger.index].key, key, sizeof *key) == 0;
  ladei_device_sorted_place at = there ? finger : set_find(set, key);
  assert(at.index < at.leaf->count && memcmp(&at.leaf->entries[at.index].key, key, sizeof *key) == 0);
  return at;
}

void ladei_device_sorted_set_remove(ladei_device_sorted_set *set, ladei_slab *slab, const ladei_order_key *key) {
  place_remove(set, slab, set_place(set, key));
}

/* Whether the key is before the entry after that of a place. */
static bool place_before(ladei_device_sorted_place at, const ladei_order_key *key) {
  if (at.index + 1 < at.leaf->count) return ladei_order_less(key, &at.leaf->entries[at.index + 1].key);
  const ladei_order_node *next = ladei_order_next(&at.leaf->order);
  return next == NULL || ladei_order_less(key, &next->key); /* I2 */
}

void ladei_device_sorted_set_move(ladei_device_sorted_set *set, ladei_slab *slab, const ladei_order_key *from,
                                  const ladei_order_key *to) {
  ladei_device_sorted_place at = set_place(set, from);
  if (place_behind(at, to) && place_before(at, to)) {
    at.leaf->entries[at.index].key = *to;
    return;
  }
  struct ladei_device_block *block = at.leaf->entries[at.index].block;
  place_remove(set, slab, at);
  ladei_device_sorted_set_insert(set, slab, to, block);
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

static bool leaf_check(const ladei_device_sorted_leaf *leaf) {
  if (leaf->count == 0 || leaf->count > LADEI_DEVICE_SORTED_ENTRIES) return false;
  if (ladei_order_less(&leaf->entries[0].key, &leaf->order.key)) return false;
  for (size_t i = 1; i < leaf->count; i++)
    if (!ladei_order_less(&leaf->entries[i - 1].key, &leaf->entries[i].key)) return false;
  const ladei_device_sorted_leaf *next = leaf_next(leaf);
  return next == NULL || (ladei_order_less(&leaf->entries[leaf->count - 1].key, &next->order.key) &&
                          leaf->count + next->count >= LADEI_DEVICE_SORTED_PAIR_LEAST);
}

bool ladei_device_sorted_set_check(const ladei_device_sorted_set *set, size_t *out_count) {
  bool finger_found = set->finger.leaf == NULL;
  *out_count = 0;
  if (!ladei_ordered_set_check(&set->leaves)) return false;
  for (const ladei_device_sorted_leaf *leaf = leaf_of(ladei_ordered_set_first(&set->leaves)); leaf != NULL;
       leaf = leaf_next(leaf)) {
    if (!leaf_check(leaf)) return false;
    *out_count += leaf->count;
    finger_found = finger_found || leaf == set->finger.leaf;
  }
  return finger_found;
}
