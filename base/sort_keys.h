/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many rows in the order of a number: pairs of key and place are sorted by digits, so that large rows move once, afterwards.
 *
 *   rows --(key, index)--> keys --ladei_sort_keys()--> in order --> rows[keys[i].index]
 */
#ifndef LADE_BASE_SORT_KEYS_H
#define LADE_BASE_SORT_KEYS_H

#include <stddef.h>
#include <stdint.h>

typedef struct ladei_sort_key {
  uint64_t key;
  uint64_t index;
} ladei_sort_key;

/* Room for so many keys and as much again to sort them in; NULL when there is no memory. For free(). */
ladei_sort_key *ladei_sort_keys_create(size_t count);
/* Sorts the first `count` of as many as were created, ascending; equal ones stay in their order. Linear in `count` and in the bits in
 * which keys differ. */
void ladei_sort_keys(ladei_sort_key *keys, size_t count, size_t created);

#endif /* LADE_BASE_SORT_KEYS_H */
