/* SPDX-License-Identifier: Apache-2.0 */
/* Number map; model and invariants in number_map.h. */
#include "tools/replay/number_map.h"

#include <stdlib.h>

#include "base/huge_pages.h"
#include "base/size.h"

enum { SMALLEST_CAPACITY = 64 };

static size_t slot_next(const number_map *map, size_t slot) { return (slot + 1) & (map->capacity - 1); }

/* Slot of the key, not 0, or the empty slot where it would go. */
static size_t slot_find(const number_map *map, uint64_t key) {
  size_t slot = number_map_home(map, key);
  while (map->entries[slot].key != key && map->entries[slot].key != 0) slot = slot_next(map, slot);
  return slot;
}

void number_map_destroy(number_map *map) {
  free(map->memory);
  *map = (number_map){.entries = NULL};
}

static bool map_grow(number_map *map) {
  number_map larger = *map;
  larger.capacity = map->capacity == 0 ? SMALLEST_CAPACITY : 2 * map->capacity;
  larger.entries = ladei_huge_pages_calloc(larger.capacity * sizeof *larger.entries, &larger.memory);
  if (larger.entries == NULL) return false;
  for (size_t i = 0; i < map->capacity; i++) {
    uint64_t key = map->entries[i].key;
    if (key != 0) larger.entries[slot_find(&larger, key)] = map->entries[i];
  }
  free(map->memory);
  *map = larger;
  return true;
}

uint64_t *number_map_need(number_map *map, uint64_t key, uint64_t value) {
  if (key == 0) {
    if (!map->zero_used) map->zero_value = value;
    map->zero_used = true;
    return &map->zero_value;
  }
  if (2 * (map->count + 1) > map->capacity && !map_grow(map)) return NULL;
  number_map_entry *entry = &map->entries[slot_find(map, key)];
  if (entry->key == 0) {
    map->count++;
    *entry = (number_map_entry){key, value};
  }
  return &entry->value;
}

bool number_map_set(number_map *map, uint64_t key, uint64_t value) {
  uint64_t *place = number_map_need(map, key, value);
  if (place != NULL) *place = value;
  return place != NULL;
}

uint64_t *number_map_get(const number_map *map, uint64_t key) {
  if (key == 0) return map->zero_used ? (uint64_t *)&map->zero_value : NULL;
  if (map->capacity == 0) return NULL;
  number_map_entry *entry = &map->entries[slot_find(map, key)];
  return entry->key == key ? &entry->value : NULL;
}

/* Empties a slot. */
static void slot_clear(number_map *map, size_t gap) {
  map->count--;
  /* Each later entry of the run that may fill the gap moves there and leaves the next gap (I2). */
  for (size_t slot = slot_next(map, gap); map->entries[slot].key != 0; slot = slot_next(map, slot)) {
    size_t mask = map->capacity - 1;
    size_t from_home = (slot - number_map_home(map, map->entries[slot].key)) & mask;
    if (from_home >= ((slot - gap) & mask)) {
      map->entries[gap] = map->entries[slot];
      gap = slot;
    }
  }
  map->entries[gap].key = 0;
}

bool number_map_take(number_map *map, uint64_t key, uint64_t *out) {
  if (key == 0) {
    if (map->zero_used) *out = map->zero_value;
    bool used = map->zero_used;
    map->zero_used = false;
    return used;
  }
  if (map->capacity == 0) return false;
  size_t slot = slot_find(map, key);
  if (map->entries[slot].key == 0) return false;
  *out = map->entries[slot].value;
  slot_clear(map, slot);
  return true;
}

void number_map_remove(number_map *map, uint64_t key) {
  uint64_t value;
  (void)number_map_take(map, key, &value);
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
