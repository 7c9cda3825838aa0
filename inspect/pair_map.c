/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/pair_map.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "inspect/rows.h"

static size_t place_of(const ladei_pair_map *map, uint64_t first, uint64_t second) {
  uint64_t hash = (first ^ second * UINT64_C(0xC2B2AE3D27D4EB4F)) * UINT64_C(0x9E3779B97F4A7C15);
  assert(map->room > 0 && (map->room & (map->room - 1)) == 0 && map->count < map->room); /* so the search ends */
  size_t place = (size_t)(hash ^ hash >> 29) & (map->room - 1);
  while (map->entries[place].used && (map->entries[place].first != first || map->entries[place].second != second))
    place = (place + 1) & (map->room - 1);
  return place;
}

static bool map_grow(ladei_pair_map *map) {
  ladei_pair_map grown = {.room = map->room == 0 ? 64 : map->room * 2, .count = map->count};
  grown.entries = calloc(grown.room, sizeof *grown.entries);
  if (grown.entries == NULL) {
    ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu pairs", grown.room);
    return false;
  }
  for (size_t i = 0; i < map->room; i++)
    if (map->entries[i].used)
      grown.entries[place_of(&grown, map->entries[i].first, map->entries[i].second)] = map->entries[i];
  free(map->entries);
  *map = grown;
  return true;
}

uint32_t *ladei_pair_map_find(const ladei_pair_map *map, uint64_t first, uint64_t second) {
  ladei_pair_map_entry *known = map->room == 0 ? NULL : &map->entries[place_of(map, first, second)];
  return known != NULL && known->used ? &known->value : NULL;
}

uint32_t *ladei_pair_map_value(ladei_pair_map *map, uint64_t first, uint64_t second) {
  uint32_t *known = ladei_pair_map_find(map, first, second);
  if (known != NULL) return known;
  if (map->count * 2 >= map->room && !map_grow(map)) return NULL;
  ladei_pair_map_entry *entry = &map->entries[place_of(map, first, second)];
  assert(!entry->used && map->count * 2 < map->room);
  *entry = (ladei_pair_map_entry){first, second, LADEI_SNAPSHOT_NONE, 1};
  map->count++;
  return &entry->value;
}

void ladei_pair_map_clear(ladei_pair_map *map) {
  free(map->entries);
  *map = (ladei_pair_map){.room = 0};
}
