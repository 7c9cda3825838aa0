/* SPDX-License-Identifier: Apache-2.0 */
/* A map from pairs of numbers to a number: open addressing, nothing is removed. Threads: one. */
#ifndef LADE_INSPECT_PAIR_MAP_H
#define LADE_INSPECT_PAIR_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_pair_map_entry {
  uint64_t first, second;
  uint32_t value;
  uint32_t used;
} ladei_pair_map_entry;

/* All zero is empty. */
typedef struct ladei_pair_map {
  ladei_pair_map_entry *entries;
  size_t room; /* power of two, or 0 */
  size_t count;
} ladei_pair_map;

/* The place of a pair's value; a missing one is made, with LADEI_SNAPSHOT_NONE. Valid until the next call. NULL:
 * LADE_ERR_OUT_OF_HOST_MEMORY, recorded; never for one that is there. */
uint32_t *ladei_pair_map_value(ladei_pair_map *map, uint64_t first, uint64_t second);
/* The same of a pair that is there; NULL: it is not. */
uint32_t *ladei_pair_map_find(const ladei_pair_map *map, uint64_t first, uint64_t second);
/* Forgets all pairs, and frees. */
void ladei_pair_map_clear(ladei_pair_map *map);

#endif /* LADE_INSPECT_PAIR_MAP_H */
