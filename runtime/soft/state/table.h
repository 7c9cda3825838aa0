/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handle table: turns the opaque handles of one kind of object into records, so that any number from a program gets an
 * answer and never a crash.
 *
 *   handle:  | 0x5 and kind: 8 bits | 0: 24 bits | index + 1: 28 bits | 0: 4 bits |    never a valid address
 *
 * Records are in chunks that stay at their place until the table goes; the next creation recycles a handle, newest
 * first, as drivers do.
 */
#ifndef LADE_RUNTIME_SOFT_TABLE_H
#define LADE_RUNTIME_SOFT_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A chunk has twice as many records as the one before: a million in all. */
enum { SOFT_TABLE_CHUNK = 32, SOFT_TABLE_CHUNKS = 15 };

typedef enum soft_handle_kind {
  SOFT_HANDLE_STREAM = 1,
  SOFT_HANDLE_EVENT,
  SOFT_HANDLE_GRAPH,
  SOFT_HANDLE_EXEC,
  SOFT_HANDLE_USER_OBJECT,
  SOFT_HANDLE_POOL,
  SOFT_HANDLE_VM,
} soft_handle_kind;

/* First member of every record. */
typedef struct soft_slot {
  _Atomic(bool) live; /* found by its handle */
  uint32_t index;
  uint32_t next_free; /* index + 1 of the next free record; 0: none */
} soft_slot;

typedef struct soft_table {
  soft_handle_kind kind;
  size_t record_bytes;
  _Atomic(uint32_t) count; /* records ever used */
  uint32_t free_head;      /* index + 1; 0: none */
  size_t live_count;
  _Atomic(unsigned char *) chunks[SOFT_TABLE_CHUNKS];
} soft_table;

void ladei_soft_table_init(soft_table *table, soft_handle_kind kind, size_t record_bytes);
/* Frees the chunks; the caller frees what the records own. */
void ladei_soft_table_destroy(soft_table *table);

/* A record that no handle finds before publish. A used record keeps its former content. NULL: no memory. */
void *ladei_soft_table_take(soft_table *table);
void ladei_soft_table_publish(soft_table *table, void *record);
/* From now on no search finds its handle. The record is recycled only after put. */
void ladei_soft_table_hide(soft_table *table, void *record);
void ladei_soft_table_put(soft_table *table, void *record);

/* The live record of a handle, or NULL. Needs no lock. */
void *ladei_soft_table_find(const soft_table *table, uint64_t handle);
/* Whether the handle is, or was, one of this table. */
bool ladei_soft_table_knows(const soft_table *table, uint64_t handle);
uint64_t ladei_soft_table_handle(const soft_table *table, const void *record);
/* Record by index, 0 to count - 1, live or not. */
void *ladei_soft_table_at(const soft_table *table, uint32_t index);

#endif /* LADE_RUNTIME_SOFT_TABLE_H */
