/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/pair_map.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

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

static bool pair_is(lade_device_pool_id a, lade_device_pool_id b) { return a.first == b.first && a.second == b.second; }

lade_status ladei_pair_numbers_add(ladei_pair_numbers *all, lade_device_pool_id pair) {
  if (all->pairs.count > 0 && pair_is(all->last, pair)) return LADE_OK;
  uint32_t *number = ladei_pair_map_value(&all->numbers, pair.first, pair.second);
  if (number == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*number == LADEI_SNAPSHOT_NONE) {
    lade_device_pool_id *row = LADEI_INSPECT_ADD(&all->pairs);
    if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *row = pair;
    *number = (uint32_t)(all->pairs.count - 1);
  }
  all->last = pair;
  all->last_number = *number;
  return LADE_OK;
}

uint32_t ladei_pair_number(ladei_pair_numbers *all, lade_device_pool_id pair) {
  if (!pair_is(all->last, pair)) {
    all->last = pair;
    all->last_number = *ladei_pair_map_find(&all->numbers, pair.first, pair.second);
  }
  assert(all->last_number < all->pairs.count); /* it was added */
  return all->last_number;
}

void ladei_pair_numbers_clear(ladei_pair_numbers *all) {
  free(all->pairs.rows);
  ladei_pair_map_clear(&all->numbers);
}
