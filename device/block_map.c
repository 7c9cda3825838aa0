/* SPDX-License-Identifier: Apache-2.0 */
/* Block map; model and invariants in block_map.h. */
#include "device/block_map.h"

#include <assert.h>
#include <stdlib.h>

#include "base/size.h"

/* Capacity of a map that holds anything: one page of entries. */
enum { SMALLEST_CAPACITY = 256 };

/* Block addresses are multiples of 512: the multiplication spreads their upper bits over the slots (Fibonacci
 * hashing, 2^64 divided by the golden ratio). */
static size_t slot_home(const ladei_block_map *map, uint64_t address) {
  return (size_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (map->capacity - 1);
}

static size_t slot_next(const ladei_block_map *map, size_t slot) { return (slot + 1) & (map->capacity - 1); }

/* Slot of the address, or the empty slot where it would go. */
static size_t slot_find(const ladei_block_map *map, uint64_t address) {
  size_t slot = slot_home(map, address);
  while (map->entries[slot].block != NULL && map->entries[slot].address != address) slot = slot_next(map, slot);
  return slot;
}

void ladei_block_map_destroy(ladei_block_map *map) {
  free(map->entries);
  *map = (ladei_block_map){NULL, 0, 0};
}

bool ladei_block_map_reserve(ladei_block_map *map, size_t more) {
  size_t wanted;
  if (!ladei_size_add(map->count, more, &wanted) || !ladei_size_mul(wanted, 2, &wanted)) return false;
  if (wanted <= map->capacity) return true;
  size_t capacity = map->capacity == 0 ? SMALLEST_CAPACITY : map->capacity;
  while (capacity < wanted) {
    if (!ladei_size_mul(capacity, 2, &capacity)) return false;
  }
  ladei_block_map larger = {calloc(capacity, sizeof *larger.entries), capacity, 0};
  if (larger.entries == NULL) return false;
  for (size_t i = 0; i < map->capacity; i++) {
    if (map->entries[i].block != NULL) ladei_block_map_put(&larger, map->entries[i].address, map->entries[i].block);
  }
  free(map->entries);
  *map = larger;
  return true;
}

void ladei_block_map_put(ladei_block_map *map, uint64_t address, struct ladei_block *block) {
  assert(2 * (map->count + 1) <= map->capacity);
  size_t slot = slot_find(map, address);
  assert(map->entries[slot].block == NULL);
  map->entries[slot] = (ladei_block_map_entry){address, block};
  map->count++;
}

void ladei_block_map_set(ladei_block_map *map, uint64_t address, struct ladei_block *block) {
  size_t slot = slot_find(map, address);
  assert(map->entries[slot].block != NULL);
  map->entries[slot].block = block;
}

void ladei_block_map_remove(ladei_block_map *map, uint64_t address) {
  size_t gap = slot_find(map, address);
  assert(map->entries[gap].block != NULL);
  map->count--;
  /* Each later entry of the run that may stand in the gap moves there and leaves the next gap (I2). */
  for (size_t slot = slot_next(map, gap); map->entries[slot].block != NULL; slot = slot_next(map, slot)) {
    size_t home = slot_home(map, map->entries[slot].address);
    size_t mask = map->capacity - 1;
    if (((slot - home) & mask) >= ((slot - gap) & mask)) {
      map->entries[gap] = map->entries[slot];
      gap = slot;
    }
  }
  map->entries[gap].block = NULL;
}

struct ladei_block *ladei_block_map_get(const ladei_block_map *map, uint64_t address) {
  return map->capacity == 0 ? NULL : map->entries[slot_find(map, address)].block;
}
