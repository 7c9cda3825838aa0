/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handle table (model in table.h).
 *
 * I1  Records 0 .. count - 1 have a chunk.
 * I2  A record is free (in the list of free_head) or taken, never both.
 * I3  Only taken records are live.
 * Locks: the runtime's lock guards all except find, knows, handle and at, which only read `chunks`, `count` and `live`.
 */
#include "runtime/soft/state/table.h"

#include <assert.h>
#include <stdlib.h>

void ladei_soft_table_init(soft_table *table, soft_handle_kind kind, size_t record_bytes) {
  table->kind = kind;
  table->record_bytes = record_bytes;
  atomic_init(&table->count, 0);
  table->free_head = 0;
  table->live_count = 0;
  for (size_t i = 0; i < SOFT_TABLE_CHUNKS; i++) atomic_init(&table->chunks[i], NULL);
}

void ladei_soft_table_destroy(soft_table *table) {
  for (size_t i = 0; i < SOFT_TABLE_CHUNKS; i++) free(atomic_load(&table->chunks[i]));
}

/* The chunk that a record lies in, and how many lie before it there. */
static unsigned chunk_of(uint32_t index, uint32_t *out_before) {
  unsigned chunk = 31 - (unsigned)__builtin_clz(index / SOFT_TABLE_CHUNK + 1);
  *out_before = index - SOFT_TABLE_CHUNK * ((UINT32_C(1) << chunk) - 1);
  return chunk;
}

void *ladei_soft_table_at(const soft_table *table, uint32_t index) {
  uint32_t before;
  unsigned chunk = chunk_of(index, &before);
  return atomic_load_explicit(&table->chunks[chunk], memory_order_acquire) + before * table->record_bytes;
}

static void *record_new(soft_table *table) {
  uint32_t index = atomic_load(&table->count), before;
  unsigned number = chunk_of(index, &before);
  if (number == SOFT_TABLE_CHUNKS) return NULL;
  if (before == 0) {
    unsigned char *chunk = calloc((size_t)SOFT_TABLE_CHUNK << number, table->record_bytes);
    if (chunk == NULL) return NULL;
    atomic_store_explicit(&table->chunks[number], chunk, memory_order_release);
  }
  soft_slot *slot = ladei_soft_table_at(table, index);
  slot->index = index;
  atomic_store_explicit(&table->count, index + 1, memory_order_release);
  return slot;
}

void *ladei_soft_table_take(soft_table *table) {
  if (table->free_head == 0) return record_new(table);
  soft_slot *slot = ladei_soft_table_at(table, table->free_head - 1);
  table->free_head = slot->next_free;
  return slot;
}

void ladei_soft_table_publish(soft_table *table, void *record) {
  soft_slot *slot = record;
  assert(!atomic_load_explicit(&slot->live, memory_order_relaxed)); /* I3 */
  atomic_store_explicit(&slot->live, true, memory_order_release);
  table->live_count++;
}

void ladei_soft_table_hide(soft_table *table, void *record) {
  soft_slot *slot = record;
  assert(atomic_load_explicit(&slot->live, memory_order_relaxed) && table->live_count > 0);
  atomic_store_explicit(&slot->live, false, memory_order_release);
  table->live_count--;
}

void ladei_soft_table_put(soft_table *table, void *record) {
  soft_slot *slot = record;
  assert(!atomic_load_explicit(&slot->live, memory_order_relaxed)); /* I3 */
  slot->next_free = table->free_head;
  table->free_head = slot->index + 1;
}

/* Index + 1 in a well-formed handle of an existing record; otherwise 0. */
static uint32_t handle_number(const soft_table *table, uint64_t handle) {
  uint64_t number = (handle & 0xffffffffu) >> 4;
  bool formed = handle >> 32 == (uint64_t)(0x50u | (unsigned)table->kind) << 24 && (handle & 15) == 0;
  bool exists = number != 0 && number <= atomic_load_explicit(&table->count, memory_order_acquire);
  return formed && exists ? (uint32_t)number : 0;
}

void *ladei_soft_table_find(const soft_table *table, uint64_t handle) {
  uint32_t number = handle_number(table, handle);
  if (number == 0) return NULL;
  soft_slot *slot = ladei_soft_table_at(table, number - 1);
  return atomic_load_explicit(&slot->live, memory_order_acquire) ? slot : NULL;
}

bool ladei_soft_table_knows(const soft_table *table, uint64_t handle) { return handle_number(table, handle) != 0; }

uint64_t ladei_soft_table_handle(const soft_table *table, const void *record) {
  const soft_slot *slot = record;
  return (uint64_t)(0x50u | (unsigned)table->kind) << 56 | ((uint64_t)slot->index + 1) << 4;
}
