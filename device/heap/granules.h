/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory of an expandable segment, by granule. Chunk k holds 64 << k granules and never moves, so that a
 * thread may work on the granules of its BUSY block while the table grows for others.
 */
#ifndef LADE_DEVICE_HEAP_GRANULES_H
#define LADE_DEVICE_HEAP_GRANULES_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/ops.h"

typedef struct ladei_device_granule {
  ladei_vm_handle handle; /* 0: none */
  bool mapped;
  bool exportable;
} ladei_device_granule;

enum { LADEI_DEVICE_GRANULE_CHUNKS = 40, LADEI_DEVICE_GRANULES_FIRST = 64 };

typedef struct ladei_device_granule_table {
  size_t bytes; /* of a granule */
  size_t limit; /* granules of the whole segment */
  size_t count; /* granules that the chunks hold */
  ladei_device_granule *chunks[LADEI_DEVICE_GRANULE_CHUNKS];
} ladei_device_granule_table;

ladei_device_granule_table *ladei_device_granule_table_create(size_t bytes, size_t limit);
void ladei_device_granule_table_destroy(ladei_device_granule_table *table);
/* Makes room for granules 0 .. count - 1; false when there is no memory. */
bool ladei_device_granule_table_reserve(ladei_device_granule_table *table, size_t count);
/* Room was made. */
ladei_device_granule *ladei_device_granule_at(const ladei_device_granule_table *table, size_t index);

#endif /* LADE_DEVICE_HEAP_GRANULES_H */
