/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain binary buddy allocator over segments, addresses only: what a cache that cuts segments by halving would waste.
 *
 * Blocks are powers of two of at least 512 B; a free block joins its buddy when that is free too. Segments are powers
 * of two; a request that does not fit into one gets a segment of its own, of the next power of two. Segments are given
 * back by buddy_trim(), when they are wholly free.
 * Threads: one at a time.
 */
#ifndef LADE_BENCHMARKS_REFERENCE_BUDDY_H
#define LADE_BENCHMARKS_REFERENCE_BUDDY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct buddy buddy;

/* NULL without memory. segment_bytes: a power of two. */
buddy *buddy_create(size_t segment_bytes);
void buddy_destroy(buddy *b);

/* 0 when there is no memory. */
uint64_t buddy_alloc(buddy *b, size_t bytes);
/* Memory of buddy_alloc(). */
void buddy_free(buddy *b, uint64_t address);
void buddy_trim(buddy *b);
uint64_t buddy_reserved_bytes(const buddy *b);

#endif /* LADE_BENCHMARKS_REFERENCE_BUDDY_H */
