/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The depot of a node. The model and its invariants are in depot.h.
 *
 * Lists come here in transits alone: a look for memory with these stopped misses none (cap_wait.c).
 *
 * Note [Depot]
 *   With random sizes a thread's magazines rarely have the requested size. 16 threads that replaced blocks of 4 KiB to
 *   2 MiB took 0.9 blocks from the node's free memory for each block replaced, and gave as many back, all under one
 *   lock; with the depot, and refills that begin with one block (thread_caches.c), 0.13 and 0.15.
 *
 * Locks: none.
 */
#include "host/caches/depot.h"

#include <assert.h>
#include <stdlib.h>

/* Bits that are 0 in a record's address. */
enum { LENGTH_MASK = _Alignof(ladei_pinned_block) - 1 };
_Static_assert((int)LADEI_PINNED_BATCH_MOST <= (int)LENGTH_MASK, "a list's length lies below its address");

static uint64_t list_word(ladei_pinned_block *list, unsigned count) {
  assert(((uintptr_t)list & LENGTH_MASK) == 0 && count > 0 && count <= LADEI_PINNED_BATCH_MOST);
  return (uint64_t)(uintptr_t)list | count;
}

static ladei_pinned_block *list_of(uint64_t word) {
  return (ladei_pinned_block *)(uintptr_t)(word & ~(uint64_t)LENGTH_MASK);
}

ladei_pinned_depot *ladei_pinned_depot_create(size_t bytes) {
  const size_t part = bytes / LADEI_PINNED_MAGAZINE_CLASSES;
  ladei_pinned_depot *depot = aligned_alloc(_Alignof(ladei_pinned_depot), sizeof *depot);
  if (depot == NULL) return NULL;
  for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++) {
    size_t list_bytes = ladei_pinned_class_bytes(c) * ladei_pinned_batch(ladei_pinned_class_bytes(c));
    depot->slot_counts[c] = (uint8_t)ladei_size_min(part / list_bytes, LADEI_PINNED_DEPOT_SLOTS); /* Z2 */
    for (unsigned i = 0; i < LADEI_PINNED_DEPOT_SLOTS; i++) atomic_init(&depot->classes[c].slots[i], 0);
  }
  return depot;
}

void ladei_pinned_depot_destroy(ladei_pinned_depot *depot) { free(depot); }

bool ladei_pinned_depot_put(ladei_pinned_depot *depot, unsigned class_index, ladei_pinned_block *list, unsigned count) {
  for (unsigned i = 0; i < depot->slot_counts[class_index]; i++) {
    _Atomic(uint64_t) *slot = &depot->classes[class_index].slots[i];
    uint64_t empty = 0;
    if (atomic_load(slot) != 0) continue;
    ladei_switch_point("depot put", 0);
    if (atomic_compare_exchange_strong(slot, &empty, list_word(list, count))) return true;
  }
  return false;
}

static ladei_pinned_block *slot_take(_Atomic(uint64_t) *slot) {
  if (atomic_load(slot) == 0) return NULL;
  ladei_switch_point("depot take", 0);
  return list_of(atomic_exchange(slot, 0));
}

ladei_pinned_block *ladei_pinned_depot_take(ladei_pinned_depot *depot, unsigned class_index) {
  ladei_pinned_block *list = NULL;
  for (unsigned i = 0; i < depot->slot_counts[class_index] && list == NULL; i++)
    list = slot_take(&depot->classes[class_index].slots[i]);
  return list;
}

ladei_pinned_block *ladei_pinned_depot_empty(ladei_pinned_depot *depot) {
  ladei_pinned_block *all = NULL;
  for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++) {
    for (unsigned i = 0; i < depot->slot_counts[c]; i++) {
      ladei_pinned_block *last = slot_take(&depot->classes[c].slots[i]), *list = last;
      if (list == NULL) continue;
      while (ladei_pinned_block_next(last) != NULL) last = ladei_pinned_block_next(last);
      ladei_pinned_block_next_set(last, all);
      all = list;
    }
  }
  return all;
}

uint64_t ladei_pinned_depot_bytes(const ladei_pinned_depot *depot) {
  uint64_t bytes = 0;
  for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++)
    for (unsigned i = 0; i < depot->slot_counts[c]; i++)
      bytes += (atomic_load(&depot->classes[c].slots[i]) & LENGTH_MASK) * ladei_pinned_class_bytes(c);
  return bytes;
}
