/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slab: type-stable records of one size, with generations.
 *
 * Memory of a record stays a record of this slab until the slab is destroyed, so a stale pointer or handle may always
 * be looked at. The generation tells whether it still means what it meant: odd while the record is live, even while it
 * is free, one more at every change.
 *
 *   struct segment { ladei_slab_head head; ... };            // the head comes first
 *   ladei_slab_init(&slab, sizeof(struct segment));
 *   struct segment *segment = ladei_slab_alloc(&slab);       // zeroed the first time, later as it was left
 *   uint32_t generation = ladei_slab_generation(segment);
 *   ...
 *   if (ladei_slab_generation(segment) != generation) ...    // freed meanwhile
 *
 * alloc, free and destroy are serialised by the caller (whose lock guards the slab). generation and at may be called by
 * any thread at any time. Fields that such readers look at are atomic, as a record they hold may be freed and reused:
 * written with release, read with acquire, and believed if the generation read after them is still the same.
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

/* Chunk i holds first << i records, so that an index names chunk and place without a table of all records. */
enum { LADEI_SLAB_CHUNKS = 26, LADEI_SLAB_FIRST = 64, LADEI_SLAB_NONE = 0xffffffffu };

typedef struct ladei_slab {
  size_t record_bytes;
  _Atomic(unsigned char *) chunks[LADEI_SLAB_CHUNKS];
  void *memory[LADEI_SLAB_CHUNKS]; /* that the chunks lie in; the writer's */
  uint32_t fresh;                  /* records never handed out begin here */
  uint32_t capacity;               /* records in all chunks */
  uint32_t live;                   /* handed out now */
  uint32_t free_count;
  uint32_t *free_stack; /* indices of freed records, last freed on top; room for all */
} ladei_slab;

/* record_bytes: sizeof the record, a multiple of 8; of 64, and every record begins a line of cache. Allocates nothing
 * yet; cannot fail. */
void ladei_slab_init(ladei_slab *slab, size_t record_bytes);
/* Gives all memory back, also of live records. A zeroed slab is allowed. */
void ladei_slab_destroy(ladei_slab *slab);

/* The record freed last, else a fresh one; aligned to 8 bytes at least. NULL when there is no memory. Its generation is
 * odd. */
void *ladei_slab_alloc(ladei_slab *slab);
/* Makes room for `count` records, so that as many allocs in a row cannot fail. */
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
