/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block map: start address -> block record, for every block of an allocator.
 *
 * Open addressing with linear probing, at most half full; removal moves later entries back, so there are no tombstones
 * and lookups stay short however long it is used. Room is made ahead of time (ladei_block_map_reserve), so that
 * putting a block in cannot fail in the middle of a change.
 *
 * I1  capacity is 0 or a power of two, and 2 * count <= capacity.
 * I2  Between an entry's home slot and its slot there is no empty slot.
 * Locks: the caller's.
 */
#ifndef LADE_DEVICE_BLOCK_MAP_H
#define LADE_DEVICE_BLOCK_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ladei_block;

typedef struct ladei_block_map_entry {
  uint64_t address;
  struct ladei_block *block; /* NULL: the slot is empty */
} ladei_block_map_entry;

typedef struct ladei_block_map {
  ladei_block_map_entry *entries;
  size_t capacity;
  size_t count;
} ladei_block_map;

void ladei_block_map_destroy(ladei_block_map *map);

/* Makes room for `more` further entries; false when there is no memory, and nothing changed. */
bool ladei_block_map_reserve(ladei_block_map *map, size_t more);

/* Room was reserved; the address is not in the map. */
void ladei_block_map_put(ladei_block_map *map, uint64_t address, struct ladei_block *block);
/* Replaces the block of an address that is in the map. */
void ladei_block_map_set(ladei_block_map *map, uint64_t address, struct ladei_block *block);
/* The address is in the map. */
void ladei_block_map_remove(ladei_block_map *map, uint64_t address);
/* NULL if the address is not in the map. */
struct ladei_block *ladei_block_map_get(const ladei_block_map *map, uint64_t address);

#endif /* LADE_DEVICE_BLOCK_MAP_H */
