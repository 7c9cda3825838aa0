/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start bits: one bit per 512-byte granule of a segment, set where a block starts. Answers which block an address
 * inside a segment lies in, in constant time (one step per level), without a second tree that every split and
 * coalescing would have to keep. The heap makes them on demand (heap.c, Note [Start bits on demand]).
 *
 *   level 2   word 0: which words of level 1 are not zero
 *   level 1   word i: which words of level 0 are not zero
 *   level 0   word i: which granules 64 i .. 64 i + 63 start a block
 *
 * The words of a large reservation come as zero pages from the system and stay untouched where no block starts.
 * Segments beyond 1 TiB, which only devices of addresses have, get no bits; the heap walks their blocks instead.
 * Locks: the caller's.
 */
#ifndef LADE_DEVICE_HEAP_START_BITS_H
#define LADE_DEVICE_HEAP_START_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Six levels of 64 cover the 2^31 granules of 1 TiB. */
enum { LADEI_DEVICE_START_LEVELS = 6 };
#define LADEI_DEVICE_START_GRANULES_MAX ((size_t)1 << 31)

typedef struct ladei_device_start_bits {
  uint64_t *words;                          /* all levels, level 0 first */
  size_t offset[LADEI_DEVICE_START_LEVELS]; /* of a level in words */
  unsigned levels;
} ladei_device_start_bits;

/* For at most LADEI_DEVICE_START_GRANULES_MAX granules, none set; false when there is no memory. */
bool ladei_device_start_bits_create(ladei_device_start_bits *bits, size_t granules);
void ladei_device_start_bits_destroy(ladei_device_start_bits *bits);

static inline void ladei_device_start_bits_set(ladei_device_start_bits *bits, size_t granule) {
  for (unsigned level = 0; level < bits->levels; level++, granule /= 64) {
    uint64_t *word = &bits->words[bits->offset[level] + granule / 64];
    uint64_t before = *word;
    *word = before | UINT64_C(1) << (granule % 64);
    if (before != 0) return; /* the levels above know already */
  }
}

static inline void ladei_device_start_bits_clear(ladei_device_start_bits *bits, size_t granule) {
  for (unsigned level = 0; level < bits->levels; level++, granule /= 64) {
    uint64_t *word = &bits->words[bits->offset[level] + granule / 64];
    *word &= ~(UINT64_C(1) << (granule % 64));
    if (*word != 0) return;
  }
}

bool ladei_device_start_bits_get(const ladei_device_start_bits *bits, size_t granule);

/* Largest set granule that is at most `granule`. Granule 0 is always set: the first block starts there. */
size_t ladei_device_start_bits_at_most(const ladei_device_start_bits *bits, size_t granule);

#endif /* LADE_DEVICE_HEAP_START_BITS_H */
