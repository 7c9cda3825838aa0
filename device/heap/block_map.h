/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block map: start address -> block record, for every block of an allocator.
 *
 * Open addressing with linear probing, at most half full; removal moves later entries back, so there are no tombstones
 * and lookups stay short however long it is used. Room is made ahead of time (ladei_device_block_map_reserve), so that
 * putting a block in cannot fail in the middle of a change.
 *
 *   map --> table [ 2^n entries ] --> former table --> ...     kept for readers that still look at them
 *
 * Readers need no lock. A reader finds an entry that is not being changed, and it may miss one that another thread
 * moves back at that moment: "not found" without the lock means nothing more than "ask again with the lock".
 *
 * I1  A table's capacity is a power of two, and 2 * count <= capacity. There is none before the first reserve.
 * I2  Between an entry's home slot and its slot there is no empty slot.
 * I3  Tables stay until destroy. Each is twice as large as the one before, so all former ones together are no larger
 *     than the current one.
 * Locks: the caller's, for all but ladei_device_block_map_peek. Table and entries are atomic for its sake.
 */
#ifndef LADE_DEVICE_HEAP_BLOCK_MAP_H
#define LADE_DEVICE_HEAP_BLOCK_MAP_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ladei_device_block;

typedef struct ladei_device_block_map_entry {
  _Atomic(uint64_t) address;
  _Atomic(struct ladei_device_block *) block; /* NULL: the slot is empty */
} ladei_device_block_map_entry;

typedef struct ladei_device_block_map_table {
  struct ladei_device_block_map_table *former;
  void *memory; /* that the table lies in */
  size_t mask;  /* capacity - 1 */
  ladei_device_block_map_entry entries[];
} ladei_device_block_map_table;

typedef struct ladei_device_block_map {
  _Atomic(ladei_device_block_map_table *) table;
  size_t count;
  size_t room; /* of the current table: half its capacity */
} ladei_device_block_map;

/* No reader is left. */
void ladei_device_block_map_destroy(ladei_device_block_map *map);

/* The room that there is once room for `more` further entries was made; 0: there cannot be so many. */
size_t ladei_device_block_map_room_after(const ladei_device_block_map *map, size_t more);

/* Makes the map's table larger; see ladei_device_block_map_reserve. */
bool ladei_device_block_map_grow(ladei_device_block_map *map, size_t more);

/* Makes room for `more` further entries; false when there is no memory, and nothing changed. */
static inline bool ladei_device_block_map_reserve(ladei_device_block_map *map, size_t more) {
  return more <= map->room - map->count || ladei_device_block_map_grow(map, more);
}

/* Block addresses are multiples of 512: the multiplication spreads their upper bits over the slots (Fibonacci
 * hashing, 2^64 divided by the golden ratio). */
static inline size_t ladei_device_block_map_home(const ladei_device_block_map_table *table, uint64_t address) {
  return (size_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & table->mask;
}

static inline struct ladei_device_block *ladei_device_block_map_at(const ladei_device_block_map_table *table,
                                                                   size_t slot) {
  return atomic_load_explicit(&table->entries[slot].block, memory_order_relaxed);
}

static inline uint64_t ladei_device_block_map_address_at(const ladei_device_block_map_table *table, size_t slot) {
  return atomic_load_explicit(&table->entries[slot].address, memory_order_relaxed);
}

/* Slot of the address, or the empty slot where it would go. */
static inline size_t ladei_device_block_map_slot(const ladei_device_block_map_table *table, uint64_t address) {
  size_t slot = ladei_device_block_map_home(table, address);
  while (ladei_device_block_map_address_at(table, slot) != address && ladei_device_block_map_at(table, slot) != NULL)
    slot = (slot + 1) & table->mask;
  return slot;
}

static inline ladei_device_block_map_table *ladei_device_block_map_table_of(const ladei_device_block_map *map) {
  return atomic_load_explicit(&map->table, memory_order_relaxed);
}

/* NULL if the address is not in the map. */
static inline struct ladei_device_block *ladei_device_block_map_get(const ladei_device_block_map *map,
                                                                    uint64_t address) {
  const ladei_device_block_map_table *table = ladei_device_block_map_table_of(map);
  return table == NULL ? NULL : ladei_device_block_map_at(table, ladei_device_block_map_slot(table, address));
}

static inline void ladei_device_block_map_write(ladei_device_block_map_table *table, size_t slot, uint64_t address,
                                                struct ladei_device_block *block) {
  atomic_store_explicit(&table->entries[slot].address, address, memory_order_relaxed);
  /* Release: a thread that finds the block finds its record filled in. */
  atomic_store_explicit(&table->entries[slot].block, block, memory_order_release);
}

/* Room was reserved; the address is not in the map. */
static inline void ladei_device_block_map_put(ladei_device_block_map *map, uint64_t address,
                                              struct ladei_device_block *block) {
  assert(map->count < map->room);
  ladei_device_block_map_table *table = ladei_device_block_map_table_of(map);
  size_t slot = ladei_device_block_map_slot(table, address);
  assert(ladei_device_block_map_at(table, slot) == NULL);
  ladei_device_block_map_write(table, slot, address, block);
  map->count++;
}

/* The address is in the map: from now on it leads to another record. */
static inline void ladei_device_block_map_replace(ladei_device_block_map *map, uint64_t address,
                                                  struct ladei_device_block *block) {
  ladei_device_block_map_table *table = ladei_device_block_map_table_of(map);
  size_t slot = ladei_device_block_map_slot(table, address);
  assert(ladei_device_block_map_at(table, slot) != NULL);
  ladei_device_block_map_write(table, slot, address, block);
}

/* Brings the place of an address into the cache, for a call to come. Inlined by force, since gcc takes the call of a
 * function out that does nothing else; so must be a function that does nothing but call this one. */
static inline __attribute__((always_inline)) void ladei_device_block_map_prefetch(const ladei_device_block_map *map,
                                                                                  uint64_t address) {
  const ladei_device_block_map_table *table = ladei_device_block_map_table_of(map);
  if (table != NULL) __builtin_prefetch(&table->entries[ladei_device_block_map_home(table, address)]);
}

/* The address is in the map. */
void ladei_device_block_map_remove(ladei_device_block_map *map, uint64_t address);

/* Without the lock: the record, or NULL, which may be wrong while another thread changes the map. */
struct ladei_device_block *ladei_device_block_map_peek(const ladei_device_block_map *map, uint64_t address);

#endif /* LADE_DEVICE_HEAP_BLOCK_MAP_H */
