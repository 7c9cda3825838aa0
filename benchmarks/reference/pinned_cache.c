/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of PyTorch's pinned cache: see pinned_cache.h.
 *
 *   IN_USE --free, no stream--> cached           IN_USE --free--> retiring --last event finished--> cached
 *
 * I1  `blocks` and `addresses` hold every block from its creation to the empty that gives it back.
 * I2  `cached` holds the blocks that are neither in use nor retiring, by size, then address.
 * I3  block->event_count is raised by all events of a free before the first of them is in the list.
 * Locks, outermost first: free_lock, blocks_lock, block->lock; events_lock alone. As in what is modelled, events are
 * recorded under block->lock and memory is given back under free_lock and blocks_lock.
 */
#include "benchmarks/reference/pinned_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/ordered_set.h"
#include "runtime/ops.h"

#define HASH_FUNCTION(key, length, hash) (hash) = address_hash(key, length)
static unsigned address_hash(const void *key, size_t length);
#include <uthash.h>

enum { STREAMS_MAX = 8, CACHE_LINE = 64 };

struct reference_block {
  pthread_mutex_t lock; /* guards: allocated, event_count, streams */
  size_t bytes;
  void *address;
  reference_block *self; /* key of `blocks` */
  bool allocated;
  unsigned event_count;
  unsigned stream_count;
  ladei_stream streams[STREAMS_MAX];
  ladei_order_node by_size;
  UT_hash_handle by_record, by_address;
};

typedef struct event_entry {
  lade_event event;
  reference_block *block;
  struct event_entry *next;
} event_entry;

struct reference_cache {
  lade_runtime *runtime;
  _Alignas(CACHE_LINE) pthread_mutex_t blocks_lock;
  reference_block *blocks, *addresses;
  _Alignas(CACHE_LINE) pthread_mutex_t free_lock;
  ladei_ordered_set cached;
  _Alignas(CACHE_LINE) pthread_mutex_t events_lock;
  event_entry *oldest, *newest;
  _Alignas(CACHE_LINE) pthread_mutex_t pool_lock; /* guards: spare */
  event_entry *spare;                             /* with their events, for reuse */
  _Atomic(uint64_t) reserved_bytes, peak_reserved_bytes;
};

/* Both keys are addresses. */
static unsigned address_hash(const void *key, size_t length) {
  (void)length;
  uintptr_t address = *(const uintptr_t *)key;
  return (unsigned)((address * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static reference_block *block_of(ladei_order_node *by_size) {
  return LADEI_ORDER_RECORD(by_size, reference_block, by_size);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static event_entry *event_get(reference_cache *cache, uint64_t context) {
  pthread_mutex_lock(&cache->pool_lock);
  event_entry *entry = cache->spare;
  if (entry != NULL) cache->spare = entry->next;
  pthread_mutex_unlock(&cache->pool_lock);
  if (entry != NULL) return entry;
  entry = calloc(1, sizeof *entry);
  const lade_runtime *runtime = cache->runtime;
  if (entry != NULL && runtime->ops->event_create(runtime->self, context, 0, &entry->event) != LADE_OK) {
    free(entry);
    entry = NULL;
  }
  return entry;
}

static void event_put(reference_cache *cache, event_entry *entry) {
  pthread_mutex_lock(&cache->pool_lock);
  entry->next = cache->spare;
  cache->spare = entry;
  pthread_mutex_unlock(&cache->pool_lock);
}

static void block_cache(reference_cache *cache, reference_block *block) {
  pthread_mutex_lock(&cache->free_lock);
  ladei_ordered_set_insert(&cache->cached, &block->by_size);
  pthread_mutex_unlock(&cache->free_lock);
}

static event_entry *oldest_take(reference_cache *cache) {
  pthread_mutex_lock(&cache->events_lock);
  event_entry *entry = cache->oldest;
  if (entry != NULL) {
    cache->oldest = entry->next;
    cache->newest = entry->next == NULL ? NULL : cache->newest;
  }
  pthread_mutex_unlock(&cache->events_lock);
  return entry;
}

static void oldest_return(reference_cache *cache, event_entry *entry) {
  pthread_mutex_lock(&cache->events_lock);
  entry->next = cache->oldest;
  cache->oldest = entry;
  cache->newest = cache->newest == NULL ? entry : cache->newest;
  pthread_mutex_unlock(&cache->events_lock);
}

static void events_process(reference_cache *cache) {
  const lade_runtime *runtime = cache->runtime;
  for (event_entry *entry; (entry = oldest_take(cache)) != NULL;) {
    if (runtime->ops->event_query(runtime->self, entry->event) != LADE_OK) {
      oldest_return(cache, entry);
      return;
    }
    reference_block *block = entry->block;
    pthread_mutex_lock(&block->lock);
    bool last = --block->event_count == 0;
    pthread_mutex_unlock(&block->lock);
    if (last) block_cache(cache, block);
    event_put(cache, entry);
  }
}

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

static reference_block *cached_take(reference_cache *cache, size_t bytes) {
  pthread_mutex_lock(&cache->free_lock);
  reference_block *block = block_of(ladei_ordered_set_at_least(&cache->cached, (ladei_order_key){{bytes, 0, 0}}));
  if (block != NULL) {
    ladei_ordered_set_remove(&cache->cached, &block->by_size);
    block->allocated = true;
  }
  pthread_mutex_unlock(&cache->free_lock);
  return block;
}

static void reserved_add(reference_cache *cache, uint64_t bytes) {
  uint64_t reserved = atomic_fetch_add(&cache->reserved_bytes, bytes) + bytes;
  uint64_t peak = atomic_load(&cache->peak_reserved_bytes);
  while (peak < reserved && !atomic_compare_exchange_weak(&cache->peak_reserved_bytes, &peak, reserved)) {
  }
}

static size_t power_of_two(size_t bytes) {
  return bytes <= 1 ? 1 : (size_t)1 << (64 - __builtin_clzll((unsigned long long)bytes - 1));
}

static reference_block *block_create(reference_cache *cache, size_t bytes) {
  const lade_runtime *runtime = cache->runtime;
  reference_block *block = calloc(1, sizeof *block);
  if (block == NULL || runtime->ops->host_alloc(runtime->self, 0, bytes, 0, &block->address) != LADE_OK) {
    free(block);
    return NULL;
  }
  pthread_mutex_init(&block->lock, NULL);
  block->bytes = bytes;
  block->by_size.key = (ladei_order_key){{bytes, (uintptr_t)block->address, 0}};
  block->allocated = true;
  block->self = block;
  reserved_add(cache, bytes);
  pthread_mutex_lock(&cache->blocks_lock);
  HASH_ADD(by_record, cache->blocks, self, sizeof block->self, block);
  HASH_ADD(by_address, cache->addresses, address, sizeof block->address, block);
  pthread_mutex_unlock(&cache->blocks_lock);
  return block;
}

void *reference_alloc(reference_cache *cache, size_t bytes, reference_block **out) {
  events_process(cache);
  reference_block *block = cached_take(cache, bytes);
  if (block == NULL) block = block_create(cache, power_of_two(bytes));
  *out = block;
  return block == NULL ? NULL : block->address;
}

/* ---- Record, free ------------------------------------------------------------------------------------------------ */

static bool block_note(reference_cache *cache, reference_block *block, lade_stream handle) {
  const lade_runtime *runtime = cache->runtime;
  ladei_stream stream;
  if (runtime->ops->stream_resolve(runtime->self, handle, &stream) != LADE_OK) return false;
  unsigned at = 0;
  bool noted = false;
  pthread_mutex_lock(&block->lock);
  while (at < block->stream_count && !noted) {
    noted = block->streams[at].context == stream.context && block->streams[at].id == stream.id;
    at++;
  }
  if (block->allocated && !noted && block->stream_count < STREAMS_MAX) {
    block->streams[block->stream_count++] = stream;
    noted = true;
  }
  pthread_mutex_unlock(&block->lock);
  return noted;
}

bool reference_record(reference_cache *cache, void *pointer, reference_block *block, lade_stream stream) {
  reference_block *found = NULL;
  pthread_mutex_lock(&cache->blocks_lock);
  HASH_FIND(by_record, cache->blocks, &block, sizeof block, found);
  if (found == NULL) HASH_FIND(by_address, cache->addresses, &pointer, sizeof pointer, found);
  bool noted = found != NULL && block_note(cache, found, stream);
  pthread_mutex_unlock(&cache->blocks_lock);
  return noted;
}

/* Under block->lock: one recorded event for each stream. NULL with *out_failed unset: there is none. */
static event_entry *events_record(reference_cache *cache, reference_block *block, bool *out_failed) {
  const lade_runtime *runtime = cache->runtime;
  event_entry *list = NULL;
  *out_failed = false;
  for (unsigned i = 0; i < block->stream_count; i++) {
    event_entry *entry = event_get(cache, block->streams[i].context);
    if (entry == NULL || runtime->ops->event_record(runtime->self, entry->event, &block->streams[i]) != LADE_OK) {
      *out_failed = true;
      break;
    }
    entry->block = block;
    entry->next = list;
    list = entry;
    block->event_count++;
  }
  block->stream_count = 0;
  return list;
}

static void events_append(reference_cache *cache, event_entry *list) {
  pthread_mutex_lock(&cache->events_lock);
  for (event_entry *next; list != NULL; list = next) {
    next = list->next;
    list->next = NULL;
    if (cache->newest == NULL)
      cache->oldest = list;
    else
      cache->newest->next = list;
    cache->newest = list;
  }
  pthread_mutex_unlock(&cache->events_lock);
}

bool reference_free(reference_cache *cache, reference_block *block) {
  bool failed;
  pthread_mutex_lock(&block->lock);
  block->allocated = false;
  event_entry *list = events_record(cache, block, &failed);
  pthread_mutex_unlock(&block->lock);
  if (failed) return false;
  if (list == NULL)
    block_cache(cache, block);
  else
    events_append(cache, list);
  return true;
}

/* ---- Giving back ------------------------------------------------------------------------------------------------- */

/* Under free_lock and blocks_lock. */
static bool block_release(reference_cache *cache, reference_block *block) {
  const lade_runtime *runtime = cache->runtime;
  HASH_DELETE(by_record, cache->blocks, block);
  HASH_DELETE(by_address, cache->addresses, block);
  bool released = runtime->ops->host_free(runtime->self, block->address) == LADE_OK;
  atomic_fetch_sub(&cache->reserved_bytes, block->bytes);
  pthread_mutex_destroy(&block->lock);
  free(block);
  return released;
}

bool reference_empty(reference_cache *cache) {
  bool released = true;
  events_process(cache);
  pthread_mutex_lock(&cache->free_lock);
  pthread_mutex_lock(&cache->blocks_lock);
  for (reference_block *block; (block = block_of(ladei_ordered_set_first(&cache->cached))) != NULL;) {
    ladei_ordered_set_remove(&cache->cached, &block->by_size);
    released = block_release(cache, block) && released;
  }
  pthread_mutex_unlock(&cache->blocks_lock);
  pthread_mutex_unlock(&cache->free_lock);
  return released;
}

uint64_t reference_reserved_bytes(const reference_cache *cache) { return atomic_load(&cache->reserved_bytes); }

uint64_t reference_peak_reserved_bytes(const reference_cache *cache) {
  return atomic_load(&cache->peak_reserved_bytes);
}

size_t reference_block_bytes(const reference_block *block) { return block->bytes; }

/* ---- Life -------------------------------------------------------------------------------------------------------- */

reference_cache *reference_create(lade_runtime *runtime) {
  reference_cache *cache = aligned_alloc(CACHE_LINE, sizeof *cache);
  if (cache == NULL) return NULL;
  *cache = (reference_cache){.runtime = runtime};
  pthread_mutex_init(&cache->blocks_lock, NULL);
  pthread_mutex_init(&cache->free_lock, NULL);
  pthread_mutex_init(&cache->events_lock, NULL);
  pthread_mutex_init(&cache->pool_lock, NULL);
  return cache;
}

void reference_destroy(reference_cache *cache) {
  if (cache == NULL) return;
  const lade_runtime *runtime = cache->runtime;
  for (event_entry *entry; (entry = oldest_take(cache)) != NULL;) event_put(cache, entry);
  for (event_entry *entry = cache->spare, *next; entry != NULL; entry = next) {
    next = entry->next;
    (void)runtime->ops->event_destroy(runtime->self, entry->event);
    free(entry);
  }
  reference_block *block, *next;
  HASH_ITER (by_record, cache->blocks, block, next) (void)block_release(cache, block);
  pthread_mutex_destroy(&cache->blocks_lock);
  pthread_mutex_destroy(&cache->free_lock);
  pthread_mutex_destroy(&cache->events_lock);
  pthread_mutex_destroy(&cache->pool_lock);
  free(cache);
}
