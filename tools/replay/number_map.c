/* SPDX-License-Identifier: Apache-2.0 */
/* Number map; model and invariants in number_map.h. */
#include "tools/replay/number_map.h"

#include <stdlib.h>

#include "base/size.h"

enum { SMALLEST_CAPACITY = 64 };

/* Fibonacci hashing: 2^64 divided by the golden ratio spreads the low bits of consecutive numbers. */
static size_t slot_home(const number_map *map, uint64_t key) {
  return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (map->capacity - 1);
}

static size_t slot_next(const number_map *map, size_t slot) { return (slot + 1) & (map->capacity - 1); }

static size_t slot_find(const number_map *map, uint64_t key) {
  size_t slot = slot_home(map, key);
  while (map->entries[slot].used && map->entries[slot].key != key) slot = slot_next(map, slot);
  return slot;
}

void number_map_destroy(number_map *map) {
  free(map->entries);
  *map = (number_map){NULL, 0, 0};
}

static bool map_grow(number_map *map) {
  size_t capacity = map->capacity == 0 ? SMALLEST_CAPACITY : 2 * map->capacity;
  number_map larger = {calloc(capacity, sizeof *larger.entries), capacity, map->count};
  if (larger.entries == NULL) return false;
  for (size_t i = 0; i < map->capacity; i++) {
    if (map->entries[i].used) larger.entries[slot_find(&larger, map->entries[i].key)] = map->entries[i];
  }
  free(map->entries);
  *map = larger;
  return true;
}

bool number_map_set(number_map *map, uint64_t key, uint64_t value) {
  if (2 * (map->count + 1) > map->capacity && !map_grow(map)) return false;
  number_map_entry *entry = &map->entries[slot_find(map, key)];
  if (!entry->used) map->count++;
  *entry = (number_map_entry){key, value, true};
  return true;
}

uint64_t *number_map_get(const number_map *map, uint64_t key) {
  if (map->capacity == 0) return NULL;
  number_map_entry *entry = &map->entries[slot_find(map, key)];
  return entry->used ? &entry->value : NULL;
}

void number_map_remove(number_map *map, uint64_t key) {
  if (number_map_get(map, key) == NULL) return;
  size_t gap = slot_find(map, key);
  map->count--;
  /* Each later entry of the run that may stand in the gap moves there and leaves the next gap (I2). */
  for (size_t slot = slot_next(map, gap); map->entries[slot].used; slot = slot_next(map, slot)) {
    size_t mask = map->capacity - 1;
    size_t from_home = (slot - slot_home(map, map->entries[slot].key)) & mask;
    if (from_home >= ((slot - gap) & mask)) {
      map->entries[gap] = map->entries[slot];
      gap = slot;
    }
  }
  map->entries[gap].used = false;
}
