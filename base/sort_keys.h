/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts many rows by a number: pairs of key and index are sorted by digits, so that large rows move once, afterwards.
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

/* Room for `count` keys and as many again for sorting; NULL when there is no memory. For free(). */
ladei_sort_key *ladei_sort_keys_create(size_t count);
/* Sorts the first `count` keys ascending, of `created`; equal keys keep their order. Time is linear in `count` and in
 * the number of bits in which keys differ. */
void ladei_sort_keys(ladei_sort_key *keys, size_t count, size_t created);

#endif /* LADE_BASE_SORT_KEYS_H */
