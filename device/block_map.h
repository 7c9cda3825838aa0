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

#include <assert.h>
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

/* Block addresses are multiples of 512: the multiplication spreads their upper bits over the slots (Fibonacci
 * hashing, 2^64 divided by the golden ratio). */
static inline size_t ladei_block_map_home(const ladei_block_map *map, uint64_t address) {
  return (size_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (map->capacity - 1);
}

static inline size_t ladei_block_map_after(const ladei_block_map *map, size_t slot) {
  return (slot + 1) & (map->capacity - 1);
}

/* Slot of the address, or the empty slot where it would go. The map has a capacity. */
static inline size_t ladei_block_map_slot(const ladei_block_map *map, uint64_t address) {
  size_t slot = ladei_block_map_home(map, address);
  while (map->entries[slot].block != NULL && map->entries[slot].address != address) {
    slot = ladei_block_map_after(map, slot);
  }
  return slot;
}

/* NULL if the address is not in the map. */
static inline struct ladei_block *ladei_block_map_get(const ladei_block_map *map, uint64_t address) {
  return map->capacity == 0 ? NULL : map->entries[ladei_block_map_slot(map, address)].block;
}

/* Room was reserved; the address is not in the map. */
static inline void ladei_block_map_put(ladei_block_map *map, uint64_t address, struct ladei_block *block) {
  assert(2 * (map->count + 1) <= map->capacity);
  size_t slot = ladei_block_map_slot(map, address);
  assert(map->entries[slot].block == NULL);
  map->entries[slot] = (ladei_block_map_entry){address, block};
  map->count++;
}

/* The address is in the map. */
void ladei_block_map_remove(ladei_block_map *map, uint64_t address);

#endif /* LADE_DEVICE_BLOCK_MAP_H */
