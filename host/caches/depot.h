/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The depot of a node: ready blocks up to 1 MiB, for all threads, without a lock. Blocks that find no room in a
 * thread's magazines come here in lists, and from here into an empty magazine, of any thread.
 *
 *   slots of a class:  | list | list | list | ... 16   slot: 0, or a list of CACHED blocks linked by next, its length
 *
 *   put     a compare-and-swap of an empty slot            a list of at most a batch (size_class.h)
 *   take    an exchange of a full slot with 0              the whole list
 *
 * Z1  A list is in one slot or one thread's: no other thread looks at its blocks.
 * Z2  A class has as many slots as its part of the depot's bytes pays for, so the lists in all of them have at most
 *     these bytes.
 *
 * A block leaves the depot for the free memory of its node, to coalesce there, before a request is refused or the pool
 * grows.
 *
 * Its purpose: Note [Depot] in depot.c.
 */
#ifndef LADE_HOST_CACHES_DEPOT_H
#define LADE_HOST_CACHES_DEPOT_H

#include "host/blocks/block.h"
#include "host/caches/bins.h"

enum { LADEI_PINNED_DEPOT_SLOTS = 16 };

/* Slots of different classes lie apart: processors fetch cache lines in pairs. */
typedef struct ladei_pinned_depot {
  struct {
    _Alignas(128) _Atomic(uint64_t) slots[LADEI_PINNED_DEPOT_SLOTS];
  } classes[LADEI_PINNED_MAGAZINE_CLASSES];
  uint8_t slot_counts[LADEI_PINNED_MAGAZINE_CLASSES]; /* Z2; constant */
} ladei_pinned_depot;

/* Empty, for at most `bytes`; NULL when there is no memory. */
ladei_pinned_depot *ladei_pinned_depot_create(size_t bytes);
/* All blocks were taken out. NULL does nothing. */
void ladei_pinned_depot_destroy(ladei_pinned_depot *depot);

/* `count` CACHED blocks of the class, at most a batch, linked by next, that no other thread knows of. False: no slot is
 * empty; they stay the caller's. */
bool ladei_pinned_depot_put(ladei_pinned_depot *depot, unsigned class_index, ladei_pinned_block *list, unsigned count);

/* A list of the class, the caller's now; NULL: there is none. */
ladei_pinned_block *ladei_pinned_depot_take(ladei_pinned_depot *depot, unsigned class_index);

/* All blocks, linked by next. */
ladei_pinned_block *ladei_pinned_depot_empty(ladei_pinned_depot *depot);

/* Bytes of all blocks in it; exact when no other thread is inside. */
uint64_t ladei_pinned_depot_bytes(const ladei_pinned_depot *depot);

#endif /* LADE_HOST_CACHES_DEPOT_H */
