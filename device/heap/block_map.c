/* SPDX-License-Identifier: Apache-2.0 */
/* Block map; model and invariants in block_map.h. */
#include "device/heap/block_map.h"

#include <stdlib.h>

#include "base/huge_pages.h"
#include "base/size.h"

/* Capacity of the first table: one page of entries. */
enum { SMALLEST_CAPACITY = 256 };

void ladei_device_block_map_destroy(ladei_device_block_map *map) {
  ladei_device_block_map_table *table = ladei_device_block_map_table_of(map);
  while (table != NULL) {
    ladei_device_block_map_table *former = table->former;
    free(table->memory);
    table = former;
  }
  atomic_store_explicit(&map->table, NULL, memory_order_relaxed);
  map->count = map->room = 0;
}

static ladei_device_block_map_table *table_create(size_t capacity) {
  size_t bytes;
  if (!ladei_size_mul(capacity, sizeof(ladei_device_block_map_entry), &bytes) ||
      !ladei_size_add(bytes, sizeof(ladei_device_block_map_table), &bytes))
    return NULL;
  void *memory;
  ladei_device_block_map_table *table = ladei_huge_pages_calloc(bytes, &memory);
  if (table == NULL) return NULL;
  table->memory = memory;
  table->mask = capacity - 1;
  return table;
}

static void table_copy(ladei_device_block_map_table *to, const ladei_device_block_map_table *from) {
  for (size_t i = 0; i <= from->mask; i++) {
    struct ladei_device_block *block = ladei_device_block_map_at(from, i);
    if (block == NULL) continue;
    uint64_t address = ladei_device_block_map_address_at(from, i);
    ladei_device_block_map_write(to, ladei_device_block_map_slot(to, address), address, block);
  }
}

size_t ladei_device_block_map_room_after(const ladei_device_block_map *map, size_t more) {
  size_t wanted;
  if (!ladei_size_add(map->count, more, &wanted)) return 0;
  size_t room = map->room == 0 ? SMALLEST_CAPACITY / 2 : map->room;
  while (room < wanted)
    if (!ladei_size_mul(room, 2, &room)) return 0;
  return room;
}

bool ladei_device_block_map_grow(ladei_device_block_map *map, size_t more) {
  size_t room = ladei_device_block_map_room_after(map, more);
  size_t capacity;
  if (room == 0 || !ladei_size_mul(room, 2, &capacity)) return false;
  ladei_device_block_map_table *former = ladei_device_block_map_table_of(map);
  ladei_device_block_map_table *larger = table_create(capacity);
  if (larger == NULL) return false;
  if (former != NULL) table_copy(larger, former);
  larger->former = former;
  atomic_store_explicit(&map->table, larger, memory_order_release);
  map->room = room;
  return true;
}

void ladei_device_block_map_remove(ladei_device_block_map *map, uint64_t address) {
  ladei_device_block_map_table *table = ladei_device_block_map_table_of(map);
  size_t gap = ladei_device_block_map_slot(table, address);
  assert(ladei_device_block_map_at(table, gap) != NULL);
  map->count--;
  /* Each later entry of the run that may be in the gap moves there and leaves the next gap (I2). */
  struct ladei_device_block *block;
  for (size_t slot = (gap + 1) & table->mask; (block = ladei_device_block_map_at(table, slot)) != NULL;
       slot = (slot + 1) & table->mask) {
    uint64_t moved = ladei_device_block_map_address_at(table, slot);
    size_t from_home = (slot - ladei_device_block_map_home(table, moved)) & table->mask;
    if (from_home >= ((slot - gap) & table->mask)) {
      ladei_device_block_map_write(table, gap, moved, block);
      gap = slot;
    }
  }
  atomic_store_explicit(&table->entries[gap].block, NULL, memory_order_relaxed);
}

struct ladei_device_block *ladei_device_block_map_peek(const ladei_device_block_map *map, uint64_t address) {
  const ladei_device_block_map_table *table = atomic_load_explicit(&map->table, memory_order_acquire);
  if (table == NULL) return NULL;
  size_t slot = ladei_device_block_map_home(table, address);
  for (size_t probes = 0; probes <= table->mask; probes++) {
    struct ladei_device_block *block = atomic_load_explicit(&table->entries[slot].block, memory_order_acquire);
    if (block == NULL || ladei_device_block_map_address_at(table, slot) == address) return block;
    slot = (slot + 1) & table->mask;
  }
  return NULL;
}
