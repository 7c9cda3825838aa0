/* SPDX-License-Identifier: Apache-2.0 */
/* Block map; model and invariants in block_map.h. */
#include "device/block_map.h"

#include <stdlib.h>

#include "base/size.h"

/* Capacity of a map that holds anything: one page of entries. */
enum { SMALLEST_CAPACITY = 256 };

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

void ladei_block_map_remove(ladei_block_map *map, uint64_t address) {
  size_t gap = ladei_block_map_slot(map, address);
  assert(map->entries[gap].block != NULL);
  map->count--;
  /* Each later entry of the run that may stand in the gap moves there and leaves the next gap (I2). */
  for (size_t slot = ladei_block_map_after(map, gap); map->entries[slot].block != NULL;
       slot = ladei_block_map_after(map, slot)) {
    size_t home = ladei_block_map_home(map, map->entries[slot].address);
    size_t mask = map->capacity - 1;
    if (((slot - home) & mask) >= ((slot - gap) & mask)) {
      map->entries[gap] = map->entries[slot];
      gap = slot;
    }
  }
  map->entries[gap].block = NULL;
}
