/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map from any 64-bit number to a 64-bit value: IDs and addresses of a replay.
 *
 * Open addressing with linear probing, at most half full; removal moves later entries back.
 * I1  capacity is 0 or a power of two, and 2 * count <= capacity.
 * I2  Between an entry's home slot and its slot there is no empty slot.
 */
#ifndef LADE_TOOLS_REPLAY_NUMBER_MAP_H
#define LADE_TOOLS_REPLAY_NUMBER_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct number_map_entry {
  uint64_t key;
  uint64_t value;
  bool used;
} number_map_entry;

typedef struct number_map {
  number_map_entry *entries;
  size_t capacity;
  size_t count;
} number_map;

void number_map_destroy(number_map *map);

/* Sets the value of a key, new or not. False when there is no memory: nothing changed. */
bool number_map_set(number_map *map, uint64_t key, uint64_t value);
/* Pointer to the value, valid until the next set or remove; NULL if the key is not there. */
uint64_t *number_map_get(const number_map *map, uint64_t key);
/* Nothing happens if the key is not there. */
void number_map_remove(number_map *map, uint64_t key);

#endif /* LADE_TOOLS_REPLAY_NUMBER_MAP_H */
