/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slab: type-stable records of one size, with generations.
 *
 * A record's memory stays a record of this slab until the slab is destroyed, so a stale pointer or handle may always be
 * read. The generation tells whether it still refers to the same object: odd while the record is live, even while it is
 * free, incremented at every change.
 *
 *   struct segment { ladei_slab_head head; ... };            // the head comes first
 *   ladei_slab_init(&slab, sizeof(struct segment));
 *   struct segment *segment = ladei_slab_alloc(&slab);       // zeroed at first, later as it was left
 *   uint32_t generation = ladei_slab_generation(segment);
 *   ...
 *   if (ladei_slab_generation(segment) != generation) ...    // freed meanwhile
 *
 * The caller's lock serialises alloc, free and destroy. Any thread may call generation and at at any time. Fields that
 * such readers look at are atomic, as their record may be freed and reused: written with release, read with acquire,
 * and valid if the generation read afterwards is still the same.
 */
#ifndef LADE_BASE_SLAB_H
#define LADE_BASE_SLAB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* First member of every record; the slab's own. */
typedef struct ladei_slab_head {
  _Atomic(uint32_t) generation;
  uint32_t index; /* of the record in its slab; constant */
} ladei_slab_head;

/* Chunk i holds first << i records, so an index gives chunk and place without a table of all records. */
enum { LADEI_SLAB_CHUNKS = 26, LADEI_SLAB_FIRST = 64, LADEI_SLAB_NONE = 0xffffffffu };

typedef struct ladei_slab {
  size_t record_bytes;
  _Atomic(unsigned char *) chunks[LADEI_SLAB_CHUNKS];
  void *memory[LADEI_SLAB_CHUNKS]; /* memory of the chunks; for writers */
  uint32_t fresh;                  /* index of the first record never handed out */
  uint32_t capacity;               /* records in all chunks */
  uint32_t live;                   /* handed out at present */
  uint32_t free_count;
  uint32_t *free_stack; /* indices of freed records, last freed on top; room for all */
} ladei_slab;

/* record_bytes: sizeof the record, a multiple of 8; if of 64, every record begins a cache line. Allocates nothing yet;
 * cannot fail. */
void ladei_slab_init(ladei_slab *slab, size_t record_bytes);
/* Frees all memory, also of live records. A zeroed slab is allowed. */
void ladei_slab_destroy(ladei_slab *slab);

/* The record freed last, otherwise a fresh one; aligned to at least 8 bytes. Its generation is odd. NULL when there is
 * no memory. */
void *ladei_slab_alloc(ladei_slab *slab);
/* Makes room for `count` records, so that this many allocs cannot fail. */
bool ladei_slab_reserve(ladei_slab *slab, size_t count);
/* `record` is live. Its bytes stay as they are until it is handed out again. */
void ladei_slab_free(ladei_slab *slab, void *record);

static inline uint32_t ladei_slab_generation(const void *record) {
  return atomic_load_explicit(&((const ladei_slab_head *)record)->generation, memory_order_acquire);
}
static inline bool ladei_slab_generation_live(uint32_t generation) { return (generation & 1u) != 0; }
static inline uint32_t ladei_slab_index(const void *record) { return ((const ladei_slab_head *)record)->index; }

/* The record of an index, live or free; NULL where there is none. */
void *ladei_slab_at(const ladei_slab *slab, uint32_t index);

#endif /* LADE_BASE_SLAB_H */
