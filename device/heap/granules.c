/* SPDX-License-Identifier: Apache-2.0 */
/* The table of granules of one expandable segment; model in granules.h. */
#include "device/heap/granules.h"

#include <assert.h>
#include <stdlib.h>

#include "base/size.h"

ladei_device_granule_table *ladei_device_granule_table_create(size_t bytes, size_t limit) {
  ladei_device_granule_table *table = calloc(1, sizeof *table);
  if (table == NULL) return NULL;
  table->bytes = bytes;
  table->limit = limit;
  return table;
}

void ladei_device_granule_table_destroy(ladei_device_granule_table *table) {
  if (table == NULL) return;
  for (size_t k = 0; k < LADEI_DEVICE_GRANULE_CHUNKS; k++) free(table->chunks[k]);
  free(table);
}

bool ladei_device_granule_table_reserve(ladei_device_granule_table *table, size_t count) {
  assert(count <= table->limit);
  while (table->count < count) {
    size_t chunk = ladei_log2_floor(table->count / LADEI_DEVICE_GRANULES_FIRST + 1);
    size_t length = (size_t)LADEI_DEVICE_GRANULES_FIRST << chunk;
    table->chunks[chunk] = calloc(length, sizeof *table->chunks[chunk]);
    if (table->chunks[chunk] == NULL) return false;
    table->count += length;
  }
  return true;
}

ladei_device_granule *ladei_device_granule_at(const ladei_device_granule_table *table, size_t index) {
  size_t chunk = ladei_log2_floor(index / LADEI_DEVICE_GRANULES_FIRST + 1);
  return &table->chunks[chunk][index - (size_t)LADEI_DEVICE_GRANULES_FIRST * (((size_t)1 << chunk) - 1)];
}
