/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one thread: made, emptied, counted. I2 in thread_caches.c says which thread may do that and when.
 *
 * Locks: none.
 */
#include "host/caches/thread_cache.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Thread_local ladei_pinned_thread_local ladei_tls __attribute__((tls_model("initial-exec")));

ladei_pinned_thread_cache *ladei_pinned_thread_cache_create(lade_pinned_pool *pool, uint32_t id,
                                                            ladei_pinned_cap_wait *cap_wait,
                                                            _Atomic(bool) *pool_keeps) {
  ladei_pinned_thread_cache *cache = aligned_alloc(_Alignof(ladei_pinned_thread_cache), sizeof *cache);
  if (cache == NULL) return NULL;
  memset(cache, 0, sizeof *cache);
  ladei_asym_lock_init(&cache->asym_lock);
  ladei_retire_buffer_init(&cache->retire_buffer);
  ladei_lock_init(&cache->lock, LADEI_RANK_MAGAZINE);
  atomic_init(&cache->pool, pool);
  cache->process = getpid();
  cache->cap_wait = cap_wait;
  cache->pool_keeps = pool_keeps;
  cache->id = id;
  atomic_init(&cache->references, 2);
  return cache;
}

void ladei_pinned_thread_cache_release(ladei_pinned_thread_cache *cache) {
  if (atomic_fetch_sub_explicit(&cache->references, 1, memory_order_acq_rel) > 1) return;
  for (unsigned i = 0; i < LADEI_PINNED_MAX_NODES; i++) free(ladei_pinned_thread_counters_of(cache, i));
  ladei_lock_destroy(&cache->lock);
  free(cache);
}

ladei_pinned_thread_counters *ladei_pinned_thread_counters_create(unsigned node, bool magazines) {
  ladei_pinned_thread_counters *counters = aligned_alloc(_Alignof(ladei_pinned_thread_counters), sizeof *counters);
  if (counters == NULL) return NULL;
  memset(counters, 0, sizeof *counters);
  counters->node = node;
  for (unsigned c = 0; magazines && c < LADEI_PINNED_MAGAZINE_CLASSES; c++)
    counters->classes[c].block_bytes = (uint32_t)ladei_pinned_class_bytes(c);
  return counters;
}

ladei_pinned_thread_counters *ladei_pinned_thread_counters_of_new(ladei_pinned_thread_cache *cache, unsigned node) {
  ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_create(node, true);
  if (counters != NULL) counters->cache = cache;
  atomic_store_explicit(&cache->nodes[node], counters, memory_order_release);
  return counters;
}

/* ---- Taking blocks out ------------------------------------------------------------------------------------------- */

static ladei_pinned_block *magazine_empty(ladei_pinned_class_counts *counts, ladei_pinned_block *list) {
  while (counts->head != NULL) {
    ladei_pinned_block *block = counts->head;
    counts->head = ladei_pinned_block_next(block);
    ladei_pinned_block_next_set(block, list);
    list = block;
  }
  ladei_pinned_magazine_count_set(counts, 0);
  return list;
}

/* The larger blocks that a thread keeps, of one node. */
static ladei_pinned_block *kept_empty(ladei_pinned_thread_counters *counters, ladei_pinned_block *list) {
  for (unsigned bin = 0; bin < LADEI_PINNED_BIN_CLASSES; bin++) {
    ladei_pinned_block *block = atomic_load_explicit(&counters->kept[bin], memory_order_relaxed);
    if (block != NULL) {
      atomic_store_explicit(&counters->kept[bin], NULL, memory_order_relaxed);
      ladei_pinned_block_next_set(block, list);
      list = block;
    }
  }
  return list;
}

/* All that a thread has ready, if the caller may touch it (I2 in thread_caches.c). */
ladei_pinned_block *ladei_pinned_thread_cache_empty(ladei_pinned_thread_cache *cache, ladei_pinned_block *list) {
  for (unsigned i = 0; i < LADEI_PINNED_MAX_NODES; i++) {
    ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, i);
    for (unsigned c = 0; counters != NULL && c < LADEI_PINNED_MAGAZINE_CLASSES; c++)
      list = magazine_empty(&counters->classes[c], list);
    if (counters != NULL && cache->kept_count > 0) list = kept_empty(counters, list);
  }
  cache->cached_bytes = 0;
  cache->kept_count = 0;
  return list;
}

/* Takes the newer half, rounded up, out of one magazine; inside the asymmetric lock. */
ladei_pinned_block *ladei_pinned_magazine_halve(ladei_pinned_thread_cache *cache, ladei_pinned_class_counts *counts,
                                                ladei_pinned_block *list) {
  uint32_t keep = ladei_pinned_magazine_count(counts) / 2;
  for (uint32_t n = ladei_pinned_magazine_count(counts); n > keep; n--) {
    ladei_pinned_block *block = counts->head;
    counts->head = ladei_pinned_block_next(block);
    ladei_pinned_magazine_count_set(counts, n - 1);
    cache->cached_bytes -= counts->block_bytes;
    ladei_pinned_block_next_set(block, list);
    list = block;
  }
  return list;
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

static uint64_t kept_bytes(const ladei_pinned_thread_counters *counters) {
  uint64_t bytes = 0;
  for (unsigned bin = 0; counters != NULL && bin < LADEI_PINNED_BIN_CLASSES; bin++) {
    const ladei_pinned_block *block = atomic_load_explicit(&counters->kept[bin], memory_order_relaxed);
    bytes += block == NULL ? 0 : ladei_pinned_block_pages(block) << LADEI_PINNED_PAGE_SHIFT;
  }
  return bytes;
}

uint64_t ladei_pinned_thread_cache_bytes(const ladei_pinned_thread_cache *cache) {
  uint64_t bytes = cache->cached_bytes;
  for (unsigned i = 0; i < LADEI_PINNED_MAX_NODES; i++) bytes += kept_bytes(ladei_pinned_thread_counters_of(cache, i));
  return bytes;
}

uint64_t ladei_pinned_thread_cache_uses(const ladei_pinned_thread_cache *cache) {
  const ladei_pinned_class_counts *counts = atomic_load_explicit(&cache->missed_counts, memory_order_acquire);
  uint64_t uses = atomic_load_explicit(&cache->misses, memory_order_relaxed);
  if (counts == NULL) return uses;
  return uses + atomic_load_explicit(&counts->allocs, memory_order_relaxed) +
         atomic_load_explicit(&counts->frees, memory_order_relaxed);
}
