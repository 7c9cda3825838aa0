/* SPDX-License-Identifier: Apache-2.0 */
/* Free set; model and invariants in free_set.h. */
#include "device/heap/free_set.h"

#include <assert.h>

/* The key after this one. */
static ladei_order_key key_after(const ladei_order_key *key) {
  ladei_order_key after = *key;
  for (size_t i = 3; i-- > 0 && ++after.word[i] == 0;) continue;
  return after;
}

/* No key is less. */
static const ladei_order_key least = {{0, 0, 0}};

/* ---- Spreading --------------------------------------------------------------------------------------------------- */

void ladei_device_free_set_spread(ladei_device_free_set *set, bool spread) {
  ladei_device_sorted_entry entries[LADEI_DEVICE_FREE_SPREAD_AT];
  size_t count = 0;
  for (size_t class = ladei_device_free_set_used(set, 0); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    const ladei_device_sorted_entry *entry;
    while ((entry = ladei_device_sorted_set_at_least(&set->classes[class], &least)) != NULL) {
      assert(count < LADEI_DEVICE_FREE_SPREAD_AT);
      entries[count] = *entry;
      ladei_device_sorted_set_remove(&set->classes[class], set->slab, &entries[count++].key);
    }
  }
  for (size_t word = 0; word < LADEI_DEVICE_FREE_WORDS; word++) set->used[word] = 0;
  set->count = 0;
  set->spread = spread;
  for (size_t i = 0; i < count; i++) ladei_device_free_set_insert(set, &entries[i].key, entries[i].block);
}

/* ---- Used classes ------------------------------------------------------------------------------------------------ */

/* Last used class below `class`; LADEI_DEVICE_FREE_CLASSES if there is none. */
static size_t used_below(const ladei_device_free_set *set, size_t class) {
  while (class -- > 0) {
    uint64_t bits = set->used[class / 64] & (UINT64_MAX >> (63 - class % 64));
    if (bits != 0) return class / 64 * 64 + ladei_log2_floor(bits);
    class = class / 64 * 64;
  }
  return LADEI_DEVICE_FREE_CLASSES;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

const ladei_device_sorted_entry *ladei_device_free_set_larger(const ladei_device_free_set *set,
                                                              const ladei_order_key *key) {
  ladei_order_key after = key_after(key);
  return ladei_device_free_set_find_from(set, ladei_device_free_set_class(set, key->word[1]), &after);
}

/* The stream's last entry before `key` in the classes up to `class`. */
static const ladei_device_sorted_entry *find_below(const ladei_device_free_set *set, size_t class,
                                                   const ladei_order_key *key) {
  for (class = used_below(set, class + 1); class < LADEI_DEVICE_FREE_CLASSES; class = used_below(set, class)) {
    const ladei_device_sorted_entry *entry = ladei_device_sorted_set_below(&set->classes[class], key);
    if (entry != NULL && entry->key.word[0] == key->word[0]) return entry;
  }
  return NULL;
}

const ladei_device_sorted_entry *ladei_device_free_set_smaller(const ladei_device_free_set *set,
                                                               const ladei_order_key *key) {
  return find_below(set, ladei_device_free_set_class(set, key->word[1]), key);
}

const ladei_device_sorted_entry *ladei_device_free_set_largest(const ladei_device_free_set *set, uint64_t stream) {
  ladei_order_key end = {{stream, UINT64_MAX, UINT64_MAX}};
  return find_below(set, LADEI_DEVICE_FREE_CLASSES - 1, &end);
}

uint64_t ladei_device_free_set_largest_size(const ladei_device_free_set *set) {
  if (set->count == 0) return 0;
  const ladei_device_sorted_set *class = &set->classes[used_below(set, LADEI_DEVICE_FREE_CLASSES)];
  uint64_t largest = 0;
  const ladei_device_sorted_entry *first = ladei_device_sorted_set_at_least(class, &least);
  while (first != NULL) {
    ladei_order_key end = {{first->key.word[0], UINT64_MAX, UINT64_MAX}};
    const ladei_device_sorted_entry *last = ladei_device_sorted_set_below(class, &end);
    if (last->key.word[1] > largest) largest = last->key.word[1];
    first = ladei_device_sorted_set_at_least(class, &end);
  }
  return largest;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* The smallest entry of the first stream from `stream` on: of all classes the lowest one that has it. */
static const ladei_device_sorted_entry *first_from(const ladei_device_free_set *set, uint64_t stream) {
  const ladei_device_sorted_entry *first = NULL;
  ladei_order_key key = {{stream, 0, 0}};
  for (size_t class = ladei_device_free_set_used(set, 0); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    const ladei_device_sorted_entry *entry = ladei_device_sorted_set_at_least(&set->classes[class], &key);
    if (entry != NULL && (first == NULL || entry->key.word[0] < first->key.word[0])) first = entry;
  }
  return first;
}

const ladei_device_sorted_entry *ladei_device_free_set_first(const ladei_device_free_set *set) {
  return first_from(set, 0);
}

const ladei_device_sorted_entry *ladei_device_free_set_next(const ladei_device_free_set *set,
                                                            const ladei_order_key *key) {
  const ladei_device_sorted_entry *next = ladei_device_free_set_larger(set, key);
  if (next != NULL || key->word[0] == UINT64_MAX) return next;
  return first_from(set, key->word[0] + 1);
}

static bool class_check(const ladei_device_free_set *set, size_t class) {
  const ladei_order_node *node = ladei_ordered_set_first(&set->classes[class].leaves);
  for (; node != NULL; node = ladei_order_next(node)) {
    const ladei_device_sorted_leaf *leaf = LADEI_ORDER_RECORD(node, const ladei_device_sorted_leaf, order);
    for (size_t i = 0; i < leaf->count; i++)
      if (ladei_device_free_set_class(set, leaf->entries[i].key.word[1]) != class) return false;
  }
  return true;
}

/* A class with blocks but without its bit shows in the sum: it is called often, and there are hundreds of classes. */
bool ladei_device_free_set_check(const ladei_device_free_set *set) {
  size_t sum = 0;
  for (size_t class = ladei_device_free_set_used(set, 0); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    size_t count;
    if (!ladei_device_sorted_set_check(&set->classes[class], &count) || count == 0 || !class_check(set, class))
      return false;
    sum += count;
  }
  return sum == set->count;
}
