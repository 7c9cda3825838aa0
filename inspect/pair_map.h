/* SPDX-License-Identifier: Apache-2.0 */
/* A map from pairs of numbers to a number: open addressing, nothing is removed. Numbers of pairs. Threads: one. */
#ifndef LADE_INSPECT_PAIR_MAP_H
#define LADE_INSPECT_PAIR_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inspect/snapshot.h"

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

/* Numbers of different pairs, in the order in which they were first seen: streams, pools. All zero is empty. */
typedef struct ladei_pair_numbers {
  LADEI_INSPECT_TABLE(lade_device_pool_id) pairs;
  ladei_pair_map numbers;
  lade_device_pool_id last; /* the last one that was looked up, and its number: mostly that of the row before */
  uint32_t last_number;
} ladei_pair_numbers;

/* Numbers a pair that has none. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pair_numbers_add(ladei_pair_numbers *all, lade_device_pool_id pair);
/* The number of a pair that was added. */
uint32_t ladei_pair_number(ladei_pair_numbers *all, lade_device_pool_id pair);
void ladei_pair_numbers_clear(ladei_pair_numbers *all);

#endif /* LADE_INSPECT_PAIR_MAP_H */
