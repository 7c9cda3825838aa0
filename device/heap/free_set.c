/* SPDX-License-Identifier: Apache-2.0 */
/* Free set; model and invariants in free_set.h. */
#include "device/heap/free_set.h"

static uint64_t stream_of(const ladei_order_node *node) { return node->key.word[0]; }
static size_t class_of(const ladei_device_free_set *set, const ladei_order_node *node) {
  return ladei_device_free_set_class(set, node->key.word[1]);
}

static ladei_order_node *of_stream(ladei_order_node *node, uint64_t stream) {
  return node != NULL && stream_of(node) == stream ? node : NULL;
}

/* ---- Spreading --------------------------------------------------------------------------------------------------- */

/* Takes the nodes out in order, linked through `next`, which a node in no set does not need. */
static ladei_order_node *nodes_take(ladei_device_free_set *set) {
  ladei_order_node *first = NULL;
  ladei_order_node **end = &first;
  for (size_t class = ladei_device_free_set_used(set, 0); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    ladei_order_node *node;
    while ((node = ladei_ordered_set_first(&set->classes[class])) != NULL) {
      ladei_ordered_set_remove(&set->classes[class], node);
      *end = node;
      end = &node->next;
    }
  }
  *end = NULL;
  return first;
}

void ladei_device_free_set_spread(ladei_device_free_set *set, bool spread) {
  ladei_order_node *node = nodes_take(set);
  for (size_t word = 0; word < LADEI_DEVICE_FREE_WORDS; word++) set->used[word] = 0;
  set->count = 0;
  set->spread = spread;
  for (ladei_order_node *next; node != NULL; node = next) {
    next = node->next;
    ladei_device_free_set_insert(set, node);
  }
}

void ladei_device_free_set_move_class(ladei_device_free_set *set, ladei_order_node *node, const ladei_order_key *key) {
  ladei_device_free_set_remove(set, node);
  node->key = *key;
  ladei_device_free_set_insert(set, node);
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

static ladei_order_node *find_below(const ladei_device_free_set *set, uint64_t stream, size_t class) {
  for (class = used_below(set, class); class < LADEI_DEVICE_FREE_CLASSES; class = used_below(set, class)) {
    ladei_order_key to = {{stream, UINT64_MAX, UINT64_MAX}};
    ladei_order_node *node = of_stream(ladei_ordered_set_at_most(&set->classes[class], to), stream);
    if (node != NULL) return node;
  }
  return NULL;
}

ladei_order_node *ladei_device_free_set_larger(const ladei_device_free_set *set, const ladei_order_node *node) {
  ladei_order_node *next = of_stream(ladei_order_next(node), stream_of(node));
  return next != NULL ? next : ladei_device_free_set_find_from(set, class_of(set, node) + 1, node->key);
}

ladei_order_node *ladei_device_free_set_smaller(const ladei_device_free_set *set, const ladei_order_node *node) {
  ladei_order_node *previous = of_stream(ladei_order_previous(node), stream_of(node));
  return previous != NULL ? previous : find_below(set, stream_of(node), class_of(set, node));
}

ladei_order_node *ladei_device_free_set_largest(const ladei_device_free_set *set, uint64_t stream) {
  return find_below(set, stream, LADEI_DEVICE_FREE_CLASSES);
}

uint64_t ladei_device_free_set_largest_size(const ladei_device_free_set *set) {
  if (set->count == 0) return 0;
  size_t class = set->spread ? used_below(set, LADEI_DEVICE_FREE_CLASSES) : 0;
  uint64_t largest = 0;
  ladei_order_node *node = class < LADEI_DEVICE_FREE_CLASSES ? ladei_ordered_set_first(&set->classes[class]) : NULL;
  while (node != NULL) {
    ladei_order_key end = {{stream_of(node), UINT64_MAX, UINT64_MAX}};
    node = ladei_ordered_set_at_most(&set->classes[class], end); /* the stream's last */
    if (node->key.word[1] > largest) largest = node->key.word[1];
    node = ladei_order_next(node);
  }
  return largest;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* The smallest node of the first stream from `stream` on: of all classes the lowest one that has it. */
static ladei_order_node *first_from(const ladei_device_free_set *set, uint64_t stream) {
  ladei_order_node *first = NULL;
  for (size_t class = ladei_device_free_set_used(set, 0); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    ladei_order_node *node = ladei_ordered_set_at_least(&set->classes[class], (ladei_order_key){{stream, 0, 0}});
    if (node != NULL && (first == NULL || stream_of(node) < stream_of(first))) first = node;
  }
  return first;
}

ladei_order_node *ladei_device_free_set_first(const ladei_device_free_set *set) { return first_from(set, 0); }

ladei_order_node *ladei_device_free_set_next(const ladei_device_free_set *set, const ladei_order_node *node) {
  ladei_order_node *next = ladei_device_free_set_larger(set, node);
  if (next != NULL || stream_of(node) == UINT64_MAX) return next;
  return first_from(set, stream_of(node) + 1);
}

/* A class with nodes but without its bit shows in the sum: it is called often, and there are hundreds of classes. */
bool ladei_device_free_set_check(const ladei_device_free_set *set) {
  size_t count = 0;
  for (size_t class = ladei_device_free_set_used(set, 0); class < LADEI_DEVICE_FREE_CLASSES;
       class = ladei_device_free_set_used(set, class + 1)) {
    const ladei_ordered_set *nodes = &set->classes[class];
    if (nodes->count == 0 || !ladei_ordered_set_check(nodes)) return false;
    for (const ladei_order_node *node = ladei_ordered_set_first(nodes); node != NULL; node = ladei_order_next(node))
      if (class_of(set, node) != class) return false;
    count += nodes->count;
  }
  return count == set->count;
}
