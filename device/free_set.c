/* SPDX-License-Identifier: Apache-2.0 */
/* Free set; model and invariants in free_set.h. */
#include "device/free_set.h"

static uint64_t stream_of(const ladei_order_node *node) { return node->key.word[0]; }
static size_t class_of(const ladei_order_node *node) { return ladei_free_class(node->key.word[1]); }

static ladei_order_node *of_stream(ladei_order_node *node, uint64_t stream) {
  return node != NULL && stream_of(node) == stream ? node : NULL;
}

/* ---- Changing ---------------------------------------------------------------------------------------------------- */

void ladei_free_set_insert(ladei_free_set *set, ladei_order_node *node) {
  size_t class = class_of(node);
  ladei_ordered_set_insert(&set->classes[class], node);
  set->used[class / 64] |= UINT64_C(1) << (class % 64);
  set->count++;
}

void ladei_free_set_remove(ladei_free_set *set, ladei_order_node *node) {
  size_t class = class_of(node);
  ladei_ordered_set_remove(&set->classes[class], node);
  if (set->classes[class].root == NULL) set->used[class / 64] &= ~(UINT64_C(1) << (class % 64));
  set->count--;
}

/* ---- Used classes ------------------------------------------------------------------------------------------------ */

/* First used class from `class` on; LADEI_FREE_CLASSES if there is none. */
static size_t used_from(const ladei_free_set *set, size_t class) {
  if (class >= LADEI_FREE_CLASSES) return LADEI_FREE_CLASSES;
  size_t word = class / 64;
  uint64_t bits = set->used[word] & (UINT64_MAX << (class % 64));
  while (bits == 0) {
    if (++word == LADEI_FREE_WORDS) return LADEI_FREE_CLASSES;
    bits = set->used[word];
  }
  return 64 * word + (size_t)__builtin_ctzll(bits);
}

/* Last used class below `class`; LADEI_FREE_CLASSES if there is none. */
static size_t used_below(const ladei_free_set *set, size_t class) {
  while (class -- > 0) {
    uint64_t bits = set->used[class / 64] & (UINT64_MAX >> (63 - class % 64));
    if (bits != 0) return class / 64 * 64 + ladei_log2_floor(bits);
    class = class / 64 * 64;
  }
  return LADEI_FREE_CLASSES;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

ladei_order_node *ladei_free_set_find_from(const ladei_free_set *set, uint64_t stream, size_t class) {
  for (class = used_from(set, class); class < LADEI_FREE_CLASSES; class = used_from(set, class + 1)) {
    ladei_order_key from = {{stream, 0, 0}};
    ladei_order_node *node = of_stream(ladei_ordered_set_at_least(&set->classes[class], from), stream);
    if (node != NULL) return node;
  }
  return NULL;
}

static ladei_order_node *find_below(const ladei_free_set *set, uint64_t stream, size_t class) {
  for (class = used_below(set, class); class < LADEI_FREE_CLASSES; class = used_below(set, class)) {
    ladei_order_key to = {{stream, UINT64_MAX, UINT64_MAX}};
    ladei_order_node *node = of_stream(ladei_ordered_set_at_most(&set->classes[class], to), stream);
    if (node != NULL) return node;
  }
  return NULL;
}

ladei_order_node *ladei_free_set_larger(const ladei_free_set *set, const ladei_order_node *node) {
  ladei_order_node *next = of_stream(ladei_order_next(node), stream_of(node));
  return next != NULL ? next : ladei_free_set_find_from(set, stream_of(node), class_of(node) + 1);
}

ladei_order_node *ladei_free_set_smaller(const ladei_free_set *set, const ladei_order_node *node) {
  ladei_order_node *previous = of_stream(ladei_order_previous(node), stream_of(node));
  return previous != NULL ? previous : find_below(set, stream_of(node), class_of(node));
}

ladei_order_node *ladei_free_set_largest(const ladei_free_set *set, uint64_t stream) {
  return find_below(set, stream, LADEI_FREE_CLASSES);
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* The smallest node of the first stream from `stream` on: of all classes the lowest one that has it. */
static ladei_order_node *first_from(const ladei_free_set *set, uint64_t stream) {
  ladei_order_node *first = NULL;
  for (size_t class = used_from(set, 0); class < LADEI_FREE_CLASSES; class = used_from(set, class + 1)) {
    ladei_order_node *node = ladei_ordered_set_at_least(&set->classes[class], (ladei_order_key){{stream, 0, 0}});
    if (node != NULL && (first == NULL || stream_of(node) < stream_of(first))) first = node;
  }
  return first;
}

ladei_order_node *ladei_free_set_first(const ladei_free_set *set) { return first_from(set, 0); }

ladei_order_node *ladei_free_set_next(const ladei_free_set *set, const ladei_order_node *node) {
  ladei_order_node *next = ladei_free_set_larger(set, node);
  if (next != NULL || stream_of(node) == UINT64_MAX) return next;
  return first_from(set, stream_of(node) + 1);
}

/* A class with nodes but without its bit shows in the sum: it is called often, and there are hundreds of classes. */
bool ladei_free_set_check(const ladei_free_set *set) {
  size_t count = 0;
  for (size_t class = used_from(set, 0); class < LADEI_FREE_CLASSES; class = used_from(set, class + 1)) {
    const ladei_ordered_set *nodes = &set->classes[class];
    if (nodes->count == 0 || !ladei_ordered_set_check(nodes)) return false;
    for (const ladei_order_node *node = ladei_ordered_set_first(nodes); node != NULL; node = ladei_order_next(node)) {
      if (class_of(node) != class) return false;
    }
    count += nodes->count;
  }
  return count == set->count;
}
