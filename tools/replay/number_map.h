/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map from any 64-bit number to a 64-bit value: IDs and addresses of a replay.
 *
 * Open addressing with linear probing, at most half full; removal moves later entries back. An entry is two words, so
 * a lookup touches one line of cache mostly: key 0 marks an empty slot, and the value of key 0 itself lies beside.
 *
 * I1  capacity is 0 or a power of two, and the entries in it are at most half of it.
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
} number_map_entry;

typedef struct number_map {
  number_map_entry *entries;
  void *memory; /* that they lie in */
  size_t capacity;
  size_t count;        /* in entries */
  bool zero_used;      /* key 0 is in the map ... */
  uint64_t zero_value; /* ... with this value */
} number_map;

void number_map_destroy(number_map *map);

/* Sets the value of a key, new or not. False when there is no memory: nothing changed. */
bool number_map_set(number_map *map, uint64_t key, uint64_t value);
/* Pointer to the value, valid until the next set or remove; NULL if the key is not there. */
uint64_t *number_map_get(const number_map *map, uint64_t key);
/* Pointer to the value, as get; a key that is not there is put in with `value`. NULL when there is no memory. */
uint64_t *number_map_need(number_map *map, uint64_t key, uint64_t value);
/* Takes a key out with its value. False if it is not there. */
bool number_map_take(number_map *map, uint64_t key, uint64_t *out);
/* Nothing happens if the key is not there. */
void number_map_remove(number_map *map, uint64_t key);

/*
 * All entries, in no order, while the map does not change:
 *
 *   size_t place = 0;
 *   number_map_entry entry;
 *   while (number_map_next(map, &place, &entry)) { ... }
 */
bool number_map_next(const number_map *map, size_t *place, number_map_entry *out);

/* Fibonacci hashing: 2^64 divided by the golden ratio spreads the low bits of consecutive numbers. */
static inline size_t number_map_home(const number_map *map, uint64_t key) {
  return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (map->capacity - 1);
}

/* Brings the place of a key into the cache, for a call to come. Inlined by force, since gcc removes the call of a
 * function that does nothing else; so must be a function that only calls this one. */
static inline __attribute__((always_inline)) void number_map_prefetch(const number_map *map, uint64_t key) {
  if (map->capacity > 0) __builtin_prefetch(&map->entries[number_map_home(map, key)]);
}

#endif /* LADE_TOOLS_REPLAY_NUMBER_MAP_H */
