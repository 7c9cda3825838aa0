/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain model of the pinned host cache that frameworks have: what lade is measured against.
 *
 * Whole powers of two; the smallest cached block that is big enough, never split; one list of events over all streams,
 * oldest first, looked at by every alloc and left at the first that is not finished; one event per freed block and
 * stream, recorded in the free; three global locks and one per block. Events are kept for reuse.
 * Where the choice was free it fell in the reference's favour: links inside the block records, hashing of addresses by
 * one multiplication.
 */
#ifndef LADE_BENCHMARKS_REFERENCE_PINNED_CACHE_H
#define LADE_BENCHMARKS_REFERENCE_PINNED_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/runtime.h"

typedef struct reference_cache reference_cache;
typedef struct reference_block reference_block;

/* NULL without memory. The runtime is borrowed. */
reference_cache *reference_create(lade_runtime *runtime);
/* With everything in it, also blocks in use. */
void reference_destroy(reference_cache *cache);

/* NULL when there is no memory; *out is the context that free and record take. */
void *reference_alloc(reference_cache *cache, size_t bytes, reference_block **out);
bool reference_free(reference_cache *cache, reference_block *block);
/* False: the block is not the cache's, or the stream cannot be noted. */
bool reference_record(reference_cache *cache, void *pointer, reference_block *block, lade_stream stream);
bool reference_empty(reference_cache *cache);

uint64_t reference_reserved_bytes(const reference_cache *cache);
uint64_t reference_peak_reserved_bytes(const reference_cache *cache);
size_t reference_block_bytes(const reference_block *block);

#endif /* LADE_BENCHMARKS_REFERENCE_PINNED_CACHE_H */
