/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slab of type-stable records.
 *
 *   chunks   [0]: 64 records   [1]: 128   [2]: 256   ...        index i + 64 = 64 * 2^chunk + place
 *   records  handed out once: 0 .. fresh-1        never touched: fresh .. capacity-1
 *   free     stack of indices, apart from the records: a free record keeps its bytes for readers that still hold it
 *
 * I1  A chunk, once made, stays until destroy; chunks are made in order.
 * I2  live + free_count == fresh <= capacity; the free stack has room for capacity indices.
 * I3  A record's generation is odd exactly while it is live.
 * Locks: the caller's for alloc, reserve, free, destroy. Readers need none: chunk pointers are published with release,
 * and a generation is atomic.
 */
#include "base/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/huge_pages.h"
#include "base/size.h"

static size_t chunk_records(unsigned chunk) { return (size_t)LADEI_SLAB_FIRST << chunk; }

/* Chunk of an index; *out_place is its place there. */
static unsigned chunk_of(uint32_t index, size_t *out_place) {
  size_t shifted = (size_t)index + LADEI_SLAB_FIRST;
  unsigned chunk = ladei_log2_floor(shifted) - ladei_log2_floor(LADEI_SLAB_FIRST);
  *out_place = shifted - chunk_records(chunk);
  return chunk;
}

static unsigned chunk_count(const ladei_slab *slab) {
  size_t place;
  return chunk_of(slab->capacity, &place);
}

void ladei_slab_init(ladei_slab *slab, size_t record_bytes) {
  assert(record_bytes >= sizeof(ladei_slab_head) && record_bytes % 8 == 0);
  memset(slab, 0, sizeof *slab);
  slab->record_bytes = record_bytes;
}

void ladei_slab_destroy(ladei_slab *slab) {
  for (unsigned i = 0; i < LADEI_SLAB_CHUNKS; i++) free(slab->memory[i]);
  free(slab->free_stack);
  memset(slab, 0, sizeof *slab);
}

/* Adds a chunk, at the begin of a cache line, and room on the free stack for its records. Untouched pages of a large
 * chunk cost nothing: calloc gets them from the system unwritten. */
static bool slab_grow(ladei_slab *slab) {
  unsigned chunk = chunk_count(slab);
  if (chunk >= LADEI_SLAB_CHUNKS) return false;
  size_t records = chunk_records(chunk);
  uint32_t *stack = realloc(slab->free_stack, (slab->capacity + records) * sizeof *stack);
  if (stack == NULL) return false;
  slab->free_stack = stack;
  unsigned char *memory = ladei_huge_pages_calloc(records * slab->record_bytes, &slab->memory[chunk]);
  if (memory == NULL) return false;
  atomic_store_explicit(&slab->chunks[chunk], memory, memory_order_release);
  slab->capacity += (uint32_t)records;
  return true;
}

void *ladei_slab_at(const ladei_slab *slab, uint32_t index) {
  size_t place;
  unsigned chunk = chunk_of(index, &place);
  if (chunk >= LADEI_SLAB_CHUNKS) return NULL;
  unsigned char *memory = atomic_load_explicit(&slab->chunks[chunk], memory_order_acquire);
  return memory == NULL ? NULL : memory + place * slab->record_bytes;
}

bool ladei_slab_reserve(ladei_slab *slab, size_t count) {
  while (slab->capacity - slab->live < count)
    if (!slab_grow(slab)) return false;
  return true;
}

/* The caller serialises writers, so this needs no locked instruction. */
static void generation_advance(ladei_slab_head *head) {
  uint32_t generation = atomic_load_explicit(&head->generation, memory_order_relaxed);
  atomic_store_explicit(&head->generation, generation + 1, memory_order_release);
}

void *ladei_slab_alloc(ladei_slab *slab) {
  if (!ladei_slab_reserve(slab, 1)) return NULL;
  ladei_slab_head *head;
  if (slab->free_count > 0) {
    head = ladei_slab_at(slab, slab->free_stack[--slab->free_count]);
  } else {
    head = ladei_slab_at(slab, slab->fresh);
    head->index = slab->fresh++; /* set once: stale readers may look at it at any time */
  }
  generation_advance(head);
  slab->live++;
  return head;
}

void ladei_slab_free(ladei_slab *slab, void *record) {
  ladei_slab_head *head = record;
  assert(ladei_slab_generation_live(ladei_slab_generation(record)));
  generation_advance(head);
  slab->free_stack[slab->free_count++] = head->index;
  slab->live--;
}
