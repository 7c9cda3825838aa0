/* SPDX-License-Identifier: Apache-2.0 */
/* Thread caches: model, invariants and locks in thread_caches.h. */
#include "device/state/thread_caches.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "base/size.h"
#include "base/thread_key.h"
#include "device/heap/recent.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key; /* the thread's list; no static thread-local storage is needed for it */
static bool thread_key_made;
static _Atomic(uint64_t) last_id;

/* ---- Blocks that leave a cache ----------------------------------------------------------------------------------- */

/* To the pools: the second half of its free. */
static void block_give(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_free_begin(&allocator->heap, block);
  ladei_device_recent_free_complete(&allocator->heap, block);
}

static size_t chain_give(lade_device_allocator *allocator, ladei_device_block *first) {
  ladei_lock_assert_held(&allocator->lock);
  size_t count = 0;
  for (ladei_device_block *block = first, *next; block != NULL; block = next, count++) {
    next = block->chain;
    block->chain = NULL;
    block_give(allocator, block);
  }
  return count;
}

/* Blocks that were freed and handed out again moved no gauge; the sums alone have to know of them. */
static void reuse_count(ladei_device_counters *counters, ladei_device_thread_cache *cache) {
  for (int small = 0; small < 2; small++) {
    const ladei_device_thread_reuse *reuse = &cache->reuse[small];
    ladei_device_gauges_repeat(counters, LADEI_DEVICE_ALLOCATION, small, reuse->blocks);
    ladei_device_gauges_repeat(counters, LADEI_DEVICE_ACTIVE, small, reuse->blocks);
    ladei_device_gauges_repeat(counters, LADEI_DEVICE_ALLOCATED_BYTES, small, reuse->bytes);
    ladei_device_gauges_repeat(counters, LADEI_DEVICE_ACTIVE_BYTES, small, reuse->bytes);
    ladei_device_gauges_repeat(counters, LADEI_DEVICE_REQUESTED_BYTES, small, reuse->requested);
  }
  memset(cache->reuse, 0, sizeof cache->reuse);
}

/* All that the thread has ready, its counts and its quota. T4. */
static size_t cache_empty(lade_device_allocator *allocator, ladei_device_thread_cache *cache) {
  ladei_lock_assert_held(&allocator->lock);
  size_t count = 0;
  reuse_count(&allocator->heap.counters, cache);
  for (size_t i = 0; i < LADEI_DEVICE_THREAD_BINS; i++) {
    ladei_device_thread_bin *bin = &cache->bins[i];
    count += chain_give(allocator, bin->head);
    bin->head = NULL;
    bin->count = 0;
  }
  atomic_fetch_sub_explicit(&allocator->thread_caches->quota_bytes, cache->quota_bytes, memory_order_relaxed);
  cache->cached_bytes = cache->quota_bytes = 0;
  cache->paused = allocator->thread_caches->paused > 0;
  return count;
}

/* ---- Visitors ---------------------------------------------------------------------------------------------------- */

static ladei_device_thread_cache *thread_list_find(uint64_t id) {
  ladei_device_thread_cache *cache = pthread_getspecific(thread_key);
  while (cache != NULL && cache->id != id) cache = cache->next_of_thread;
  return cache;
}

static bool asym_locks_close(ladei_device_thread_caches *caches) {
  bool barrier = false;
  for (ladei_device_thread_cache *cache = caches->first; cache != NULL; cache = cache->next)
    barrier = ladei_asym_lock_close(&cache->asym_lock) || barrier;
  return barrier && ladei_asym_lock_barrier();
}

size_t ladei_device_thread_caches_hold(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_thread_caches *caches = allocator->thread_caches;
  size_t count = 0;
  if (caches == NULL) return 0;
  const ladei_device_thread_cache *own = thread_list_find(caches->id); /* needs no fence */
  bool fenced = asym_locks_close(caches);
  for (ladei_device_thread_cache *cache = caches->first; cache != NULL; cache = cache->next) {
    cache->reached = ladei_asym_lock_wait(&cache->asym_lock, fenced || cache == own);
    if (cache->reached) count += cache_empty(allocator, cache);
  }
  return count;
}

void ladei_device_thread_caches_let(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  if (allocator->thread_caches == NULL) return;
  for (ladei_device_thread_cache *cache = allocator->thread_caches->first; cache != NULL; cache = cache->next)
    if (cache->reached) ladei_asym_lock_open(&cache->asym_lock);
}

void ladei_device_thread_caches_drain(lade_device_allocator *allocator) {
  if (allocator->thread_caches == NULL) return;
  ladei_lock_acquire(&allocator->lock);
  for (ladei_device_thread_cache *cache = allocator->thread_caches->first; cache != NULL; cache = cache->next)
    (void)cache_empty(allocator, cache);
  ladei_lock_release(&allocator->lock);
}

void ladei_device_thread_caches_pause(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  if (allocator->thread_caches == NULL) return;
  allocator->thread_caches->paused++;
  (void)ladei_device_thread_caches_flush(allocator);
}

void ladei_device_thread_caches_resume(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  if (allocator->thread_caches == NULL) return;
  allocator->thread_caches->paused--;
  (void)ladei_device_thread_caches_flush(allocator); /* which tells the threads */
}

/* A visitor could not reach the owner, which does for it what it wanted. */
static void cache_answer(lade_device_allocator *allocator, ladei_device_thread_cache *cache) {
  ladei_lock_acquire(&allocator->lock);
  if (ladei_asym_lock_is_called(&cache->asym_lock)) { /* else another visitor came before */
    (void)cache_empty(allocator, cache);
    ladei_asym_lock_answer(&cache->asym_lock);
  }
  ladei_lock_release(&allocator->lock);
}

/* Owner. False: do without the cache. */
static inline bool cache_enter(lade_device_allocator *allocator, ladei_device_thread_cache *cache) {
  if (__builtin_expect(ladei_asym_lock_enter(&cache->asym_lock), true)) return true;
  if (ladei_asym_lock_is_called(&cache->asym_lock)) cache_answer(allocator, cache);
  return false;
}

/* ---- Bins -------------------------------------------------------------------------------------------------------- */

/* A bin may be in one of two places, which are side by side. */
static inline ladei_device_thread_bin *bin_pair(ladei_device_thread_cache *cache, uint64_t stream_key, size_t bytes) {
  uint64_t hash = (stream_key * UINT64_C(0xD6E8FEB86659FD93) ^ bytes) * UINT64_C(0x9E3779B97F4A7C15);
  return &cache->bins[(hash >> 32) & (LADEI_DEVICE_THREAD_BINS - 2)];
}

static inline bool bin_is(const ladei_device_thread_bin *bin, uint64_t stream_key, size_t bytes) {
  return bin->requested == bytes && bin->stream_key == stream_key;
}

/* NULL: the thread has none. */
static inline ladei_device_thread_bin *bin_find(ladei_device_thread_cache *cache, uint64_t stream_key, size_t bytes) {
  ladei_device_thread_bin *bins = bin_pair(cache, stream_key, bytes);
  if (bin_is(&bins[0], stream_key, bytes)) return &bins[0];
  return bin_is(&bins[1], stream_key, bytes) ? &bins[1] : NULL;
}

/* Makes a bin the stream's and size's, if one of the two has no blocks. */
static bool bin_make(ladei_device_thread_cache *cache, uint64_t stream_key, size_t bytes) {
  ladei_device_thread_bin *bins = bin_pair(cache, stream_key, bytes);
  ladei_device_thread_bin *bin = bins[0].head == NULL ? &bins[0] : &bins[1];
  if (bin->head == NULL) *bin = (ladei_device_thread_bin){stream_key, bytes, NULL, 0};
  return bin->head == NULL;
}

/* The same where both have some. With the allocator's lock, so that no visitor comes while they are on their way. */
static __attribute__((noinline)) void bin_clear(lade_device_allocator *allocator, ladei_device_thread_cache *cache,
                                                uint64_t stream_key, size_t bytes) {
  int cancellation = ladei_cancellation_hold();
  ladei_lock_acquire(&allocator->lock);
  ladei_device_thread_bin *bin = bin_pair(cache, stream_key, bytes);
  for (const ladei_device_block *block = bin->head; block != NULL; block = block->chain)
    cache->cached_bytes -= block->size;
  (void)chain_give(allocator, bin->head);
  *bin = (ladei_device_thread_bin){stream_key, bytes, NULL, 0};
  ladei_lock_release(&allocator->lock);
  ladei_cancellation_resume(cancellation);
}

static ladei_device_block *bin_take(lade_device_allocator *allocator, ladei_device_thread_cache *cache,
                                    ladei_device_thread_bin *bin) {
  ladei_device_block *block = bin->head;
  const ladei_device_heap_segment *segment = atomic_load_explicit(&block->segment, memory_order_relaxed);
  ladei_device_thread_reuse *reuse = &cache->reuse[segment->pool == &allocator->heap.small_pool];
  bin->head = block->chain;
  bin->count--;
  cache->cached_bytes -= block->size;
  reuse->blocks++;
  reuse->bytes += block->size;
  reuse->requested += block->requested;
  ladei_device_block_unclaim(block);
  return block;
}

ladei_device_block *ladei_device_thread_cache_take(lade_device_allocator *allocator, ladei_device_thread_cache *cache,
                                                   uint64_t stream_key, size_t bytes) {
  if (bytes > LADEI_DEVICE_THREAD_BLOCK_MOST || !cache_enter(allocator, cache)) return NULL;
  ladei_device_thread_bin *bin = bin_find(cache, stream_key, bytes);
  ladei_device_block *block = bin != NULL && bin->head != NULL ? bin_take(allocator, cache, bin) : NULL;
  bool full = bin == NULL && !bin_make(cache, stream_key, bytes);
  ladei_asym_lock_leave(&cache->asym_lock);
  if (full) bin_clear(allocator, cache, stream_key, bytes);
  return block;
}

/* T5. Whether the thread may keep so many bytes more. */
static bool quota_has(ladei_device_thread_caches *caches, ladei_device_thread_cache *cache, size_t bytes) {
  size_t wanted = cache->cached_bytes + bytes;
  if (wanted <= cache->quota_bytes) return true;
  if (wanted > LADEI_DEVICE_THREAD_MOST) return false;
  size_t least = wanted - cache->quota_bytes, step;
  size_t sum = atomic_load_explicit(&caches->quota_bytes, memory_order_relaxed);
  do {
    size_t left = caches->budget_bytes - sum;
    if (least > left) return false;
    step = ladei_size_min(ladei_size_max(least, LADEI_DEVICE_THREAD_QUOTA_STEP), left);
  } while (!atomic_compare_exchange_weak_explicit(&caches->quota_bytes, &sum, sum + step, memory_order_relaxed,
                                                  memory_order_relaxed));
  cache->quota_bytes += step;
  return true;
}

/* T2, except for what the bins say. */
static inline bool block_is_plain(const lade_device_allocator *allocator, ladei_device_block *block,
                                  const ladei_device_heap_segment *segment) {
  const ladei_device_heap *heap = &allocator->heap;
  bool is_default = segment->pool == &heap->small_pool || segment->pool == &heap->large_pool;
  bool retired = atomic_load_explicit(&segment->last, memory_order_relaxed) != NULL;
  return is_default && !retired && !ladei_retire_ticket_noted(&block->ticket) && !block->oversize_counted &&
         block->size <= LADEI_DEVICE_THREAD_BLOCK_MOST;
}

bool ladei_device_thread_cache_put(lade_device_allocator *allocator, ladei_device_thread_cache *cache,
                                   ladei_device_block *block) {
  const ladei_device_heap_segment *segment = atomic_load_explicit(&block->segment, memory_order_relaxed);
  if (!cache_enter(allocator, cache)) return false;
  ladei_device_thread_bin *bin =
      !cache->paused && block_is_plain(allocator, block, segment) /* inside: after pause and retirement all see it */
          ? bin_find(cache, segment->stream_key, block->requested)
          : NULL;
  bool fits = bin != NULL && bin->count < LADEI_DEVICE_THREAD_BIN_BLOCKS &&
              quota_has(allocator->thread_caches, cache, block->size);
  if (fits) {
    block->chain = bin->head;
    bin->head = block;
    bin->count++;
    cache->cached_bytes += block->size;
  }
  ladei_asym_lock_leave(&cache->asym_lock);
  return fits;
}

/* ---- Threads that end -------------------------------------------------------------------------------------------- */

static void cache_release(ladei_device_thread_cache *cache) {
  if (atomic_fetch_sub_explicit(&cache->references, 1, memory_order_acq_rel) > 1) return;
  ladei_lock_destroy(&cache->lock);
  free(cache);
}

static void cache_unlink(ladei_device_thread_caches *caches, ladei_device_thread_cache *cache) {
  if (cache->next != NULL) cache->next->former = cache->former;
  if (cache->former != NULL)
    cache->former->next = cache->next;
  else
    caches->first = cache->next;
}

/* The cache's allocator, kept from ending; NULL: it has ended. */
static lade_device_allocator *allocator_enter_leaving(ladei_device_thread_cache *cache) {
  ladei_lock_acquire(&cache->lock);
  lade_device_allocator *allocator = atomic_load_explicit(&cache->allocator, memory_order_relaxed);
  if (allocator != NULL) atomic_fetch_add_explicit(&allocator->thread_caches->leaving, 1, memory_order_relaxed);
  ladei_lock_release(&cache->lock);
  return allocator;
}

static void allocator_leave(lade_device_allocator *allocator, ladei_device_thread_cache *cache) {
  ladei_lock_acquire(&allocator->lock);
  bool linked = atomic_load_explicit(&cache->allocator, memory_order_relaxed) != NULL; /* else it ends just now */
  if (linked) {
    (void)cache_empty(allocator, cache);
    cache_unlink(allocator->thread_caches, cache);
  }
  ladei_lock_release(&allocator->lock);
  if (linked) cache_release(cache); /* the allocator's share */
  atomic_fetch_sub_explicit(&allocator->thread_caches->leaving, 1, memory_order_release);
}

/* In a forked child the parent's caches stay as they are: their locks may be held by threads that do not exist here. */
static void thread_exit(void *list) {
  pid_t process = getpid();
  for (ladei_device_thread_cache *cache = list, *next; cache != NULL; cache = next) {
    next = cache->next_of_thread;
    if (cache->process != process) continue;
    lade_device_allocator *allocator = allocator_enter_leaving(cache);
    if (allocator != NULL) allocator_leave(allocator, cache);
    cache_release(cache); /* the thread's share */
  }
}

/* ---- Threads that begin ------------------------------------------------------------------------------------------ */

/* Drops the thread's caches whose allocators ended. */
static ladei_device_thread_cache *thread_list_clean(ladei_device_thread_cache *list) {
  ladei_device_thread_cache **link = &list;
  while (*link != NULL) {
    ladei_device_thread_cache *cache = *link;
    bool ended = atomic_load_explicit(&cache->allocator, memory_order_acquire) == NULL;
    if (ended) {
      *link = cache->next_of_thread;
      cache_release(cache);
    } else {
      link = &cache->next_of_thread;
    }
  }
  return list;
}

static ladei_device_thread_cache *cache_create(lade_device_allocator *allocator) {
  ladei_device_thread_cache *cache = aligned_alloc(_Alignof(ladei_device_thread_cache), sizeof *cache);
  if (cache == NULL) return NULL;
  memset(cache, 0, sizeof *cache);
  ladei_asym_lock_init(&cache->asym_lock);
  ladei_lock_init(&cache->lock, LADEI_RANK_LEAF);
  cache->id = allocator->thread_caches->id;
  cache->process = getpid();
  atomic_init(&cache->allocator, allocator);
  atomic_init(&cache->references, 2);
  return cache;
}

static void cache_link(lade_device_allocator *allocator, ladei_device_thread_cache *cache) {
  ladei_device_thread_caches *caches = allocator->thread_caches;
  ladei_lock_acquire(&allocator->lock);
  cache->paused = caches->paused > 0;
  cache->next = caches->first;
  if (cache->next != NULL) cache->next->former = cache;
  caches->first = cache;
  ladei_lock_release(&allocator->lock);
}

static ladei_device_thread_cache *cache_register(lade_device_allocator *allocator) {
  ladei_device_thread_cache *list = thread_list_clean(pthread_getspecific(thread_key));
  ladei_device_thread_cache *cache = cache_create(allocator);
  if (cache != NULL) cache->next_of_thread = list;
  if (pthread_setspecific(thread_key, cache != NULL ? cache : list) != 0) { /* only where the key has no value yet */
    if (cache != NULL) ladei_lock_destroy(&cache->lock);
    free(cache);
    return NULL;
  }
  if (cache != NULL) cache_link(allocator, cache);
  return cache;
}

/* Brings the thread's cache to the front of its list. */
static __attribute__((noinline)) ladei_device_thread_cache *cache_seek(lade_device_allocator *allocator) {
  uint64_t id = allocator->thread_caches->id;
  ladei_device_thread_cache *list = pthread_getspecific(thread_key), *cache = list;
  while (cache != NULL && cache->next_of_thread != NULL && cache->next_of_thread->id != id)
    cache = cache->next_of_thread;
  if (cache != NULL && cache->next_of_thread != NULL) {
    ladei_device_thread_cache *found = cache->next_of_thread;
    cache->next_of_thread = found->next_of_thread;
    found->next_of_thread = list;
    (void)pthread_setspecific(thread_key, found); /* the key has a value: nothing is allocated for it */
    return found;
  }
  int cancellation = ladei_cancellation_hold();
  cache = cache_register(allocator);
  ladei_cancellation_resume(cancellation);
  return cache;
}

ladei_device_thread_cache *ladei_device_thread_cache_of(lade_device_allocator *allocator) {
  ladei_device_thread_cache *cache = pthread_getspecific(thread_key);
  return cache != NULL && cache->id == allocator->thread_caches->id ? cache : cache_seek(allocator);
}

/* ---- Create, end ------------------------------------------------------------------------------------------------- */

static void process_prepare(void) { thread_key_made = ladei_thread_key_create(&thread_key, thread_exit) == 0; }

lade_status ladei_device_thread_caches_create(lade_device_allocator *allocator) {
  pthread_once(&once, process_prepare);
  ladei_device_thread_caches *caches =
      thread_key_made ? aligned_alloc(_Alignof(ladei_device_thread_caches), sizeof *caches) : NULL;
  if (caches == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0,
                       "lade_device_allocator_create: no memory, or no key of threads, for thread caches");
  }
  memset(caches, 0, sizeof *caches);
  caches->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
  caches->budget_bytes = (size_t)(allocator->total_bytes / LADEI_DEVICE_THREAD_SHARE);
  ladei_lock_acquire(&allocator->lock);
  caches->paused = allocator->caching.off ? 1 : 0;
  allocator->thread_caches = caches;
  ladei_lock_release(&allocator->lock);
  return LADE_OK;
}

/* From here on threads that exit do not come any more. */
static ladei_device_thread_cache *caches_detach(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_thread_cache *first = allocator->thread_caches->first;
  for (ladei_device_thread_cache *cache = first; cache != NULL; cache = cache->next) {
    ladei_lock_acquire(&cache->lock);
    atomic_store_explicit(&cache->allocator, NULL, memory_order_release);
    ladei_lock_release(&cache->lock);
  }
  allocator->thread_caches->first = NULL;
  ladei_lock_release(&allocator->lock);
  return first;
}

void ladei_device_thread_caches_end(lade_device_allocator *allocator) {
  ladei_device_thread_caches *caches = allocator->thread_caches;
  if (caches == NULL) return;
  ladei_device_thread_cache *cache = caches_detach(allocator), *next;
  ladei_backoff wait = {0};
  while (atomic_load_explicit(&caches->leaving, memory_order_acquire) > 0) ladei_backoff_wait(&wait);
  for (; cache != NULL; cache = next) {
    next = cache->next;
    cache_release(cache); /* the allocator's share */
  }
  allocator->thread_caches = NULL;
  free(caches);
}
