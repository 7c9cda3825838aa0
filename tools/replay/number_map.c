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

/* Slot of the key, not 0, or the empty slot where it would go. */
static size_t slot_find(const number_map *map, uint64_t key) {
  size_t slot = slot_home(map, key);
  while (map->entries[slot].key != key && map->entries[slot].key != 0) slot = slot_next(map, slot);
  return slot;
}

void number_map_destroy(number_map *map) {
  free(map->entries);
  *map = (number_map){.entries = NULL};
}

static bool map_grow(number_map *map) {
  number_map larger = *map;
  larger.capacity = map->capacity == 0 ? SMALLEST_CAPACITY : 2 * map->capacity;
  larger.entries = calloc(larger.capacity, sizeof *larger.entries);
  if (larger.entries == NULL) return false;
  for (size_t i = 0; i < map->capacity; i++) {
    uint64_t key = map->entries[i].key;
    if (key != 0) larger.entries[slot_find(&larger, key)] = map->entries[i];
  }
  free(map->entries);
  *map = larger;
  return true;
}

bool number_map_set(number_map *map, uint64_t key, uint64_t value) {
  if (key == 0) {
    map->zero_used = true;
    map->zero_value = value;
    return true;
  }
  if (2 * (map->count + 1) > map->capacity && !map_grow(map)) return false;
  number_map_entry *entry = &map->entries[slot_find(map, key)];
  if (entry->key == 0) map->count++;
  *entry = (number_map_entry){key, value};
  return true;
}

uint64_t *number_map_get(const number_map *map, uint64_t key) {
  if (key == 0) return map->zero_used ? (uint64_t *)&map->zero_value : NULL;
  if (map->capacity == 0) return NULL;
  number_map_entry *entry = &map->entries[slot_find(map, key)];
  return entry->key == key ? &entry->value : NULL;
}

void number_map_remove(number_map *map, uint64_t key) {
  if (key == 0) {
    map->zero_used = false;
    return;
  }
  if (map->capacity == 0) return;
  size_t gap = slot_find(map, key);
  if (map->entries[gap].key == 0) return;
  map->count--;
  /* Each later entry of the run that may stand in the gap moves there and leaves the next gap (I2). */
  for (size_t slot = slot_next(map, gap); map->entries[slot].key != 0; slot = slot_next(map, slot)) {
    size_t mask = map->capacity - 1;
    size_t from_home = (slot - slot_home(map, map->entries[slot].key)) & mask;
    if (from_home >= ((slot - gap) & mask)) {
      map->entries[gap] = map->entries[slot];
      gap = slot;
    }
  }
  map->entries[gap].key = 0;
}

bool number_map_next(const number_map *map, size_t *place, number_map_entry *out) {
  if (*place == 0) {
    ++*place;
    *out = (number_map_entry){0, map->zero_value};
    if (map->zero_used) return true;
  }
  for (; *place <= map->capacity; ++*place) {
    *out = map->entries[*place - 1];
    if (out->key == 0) continue;
    ++*place;
    return true;
  }
  return false;
}
