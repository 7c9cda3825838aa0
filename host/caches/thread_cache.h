/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread caches: for each thread that uses a pool, magazines of ready blocks up to 1 MiB, of larger ones the one last
 * used, and the counters of all that the thread allocates and frees.
 *
 *   thread --tls--> ladei_pinned_thread_cache --nodes[i]--> ladei_pinned_class_counts[class]: a magazine, counters
 *   pool --threads--> the same caches, so that a drain reaches those of threads that sleep
 *
 * A magazine is a list of CACHED blocks.
 *
 * The owner takes and puts blocks between ladei_asym_lock_enter and leave, without lock or atomic read-modify-write; a
 * drain closes the asymmetric locks of all threads, takes their magazines, and opens them again. Counters have one
 * writer, the owner, and are read by anyone.
 */
#ifndef LADE_HOST_CACHES_THREAD_CACHE_H
#define LADE_HOST_CACHES_THREAD_CACHE_H

#include <sys/types.h>

#include "base/asym_lock.h"
#include "base/lock.h"
#include "host/blocks/block.h"
#include "host/blocks/segment.h"
#include "host/caches/bins.h"
#include "host/caches/counters.h"
#include "host/parts/cap_wait.h"
#include "lade/pinned.h"
#include "runtime/retire/retire_buffer.h"

enum { LADEI_PINNED_MAGAZINE_MAX_BLOCKS = 32 };

enum { LADEI_PINNED_CLASS_WORDS = (LADEI_PINNED_CLASSES + 63) / 64 };

/* Fields that different threads write lie so far apart: processors fetch cache lines in pairs. */
enum { LADEI_PINNED_SHARING_BYTES = 128 };

/* The knowledge of one thread of one class on one node: a cache line. */
typedef struct ladei_pinned_class_counts {
  _Atomic(uint64_t) allocs, frees;
  _Atomic(uint64_t) requested_allocated, requested_freed;
  union {
    struct { /* classes with magazines; guard: the thread's asym_lock */
      ladei_pinned_block *head;
      _Atomic(uint32_t) count; /* read by anyone */
      uint32_t block_bytes;    /* constant */
    };
    struct { /* larger classes, whose blocks may have any size within a step */
      _Atomic(uint64_t) bytes_allocated, bytes_freed;
    };
  };
  /* The part of the above that the pool's peaks have seen. Owner only. */
  uint64_t published_blocks, published_requested;
} ladei_pinned_class_counts;

_Static_assert(sizeof(ladei_pinned_class_counts) == 64, "one cache line per class");

/* And of its pending blocks, which may come back in another thread's call: usage.c. */
typedef struct ladei_pinned_thread_pending {
  ladei_pinned_pending_flow flow; /* freed by the thread, and come back in its calls; written by the owner */
  ladei_pinned_amount published;  /* the node's part of the difference; owner only */
} ladei_pinned_thread_pending;

typedef struct ladei_pinned_thread_counters {
  _Alignas(LADEI_PINNED_SHARING_BYTES) ladei_pinned_class_counts classes[LADEI_PINNED_CLASSES];
  ladei_pinned_pending_flow pending; /* of all classes; written by the owner */
  ladei_pinned_thread_pending class_pending[LADEI_PINNED_CLASSES];
  /* The thread's part of all classes in use: as shown, at its last look for a peak, and as the node knows (U4 in
   * usage.c). Owner only */
  ladei_pinned_thread_use shown_use, looked_use, published;
  const struct ladei_pinned_thread_cache *cache;  /* the thread's; NULL: of threads without; constant */
  unsigned node;                                  /* index of the node; constant */
  uint8_t refills[LADEI_PINNED_MAGAZINE_CLASSES]; /* blocks that the last refill wanted: Note [Refill]; owner only */
  /* Of the larger classes. */
  uint64_t shown[LADEI_PINNED_CLASS_WORDS];           /* bit of a class: published_blocks is above 0; owner only */
  uint32_t shown_words;                               /* bit of such a word: it is not 0; owner only */
  uint64_t published_bytes[LADEI_PINNED_BIN_CLASSES]; /* owner only */
  const ladei_pinned_block *last[LADEI_PINNED_BIN_CLASSES]; /* taken last by this thread; owner only */
  uint32_t last_pages[LADEI_PINNED_BIN_CLASSES];            /* its size */
  uint32_t repeats[LADEI_PINNED_BIN_CLASSES];               /* number before it in a row with that size; owner only */
  _Atomic(ladei_pinned_block *)
      kept[LADEI_PINNED_BIN_CLASSES]; /* that one, given back; guard: asym_lock, and read by anyone */
} ladei_pinned_thread_counters;

typedef struct ladei_pinned_thread_cache {
  _Alignas(LADEI_PINNED_SHARING_BYTES) ladei_asym_lock asym_lock;
  uint32_t id;                        /* in the pool, from 1; large blocks remember the taker. Constant */
  bool keeps_large;                   /* blocks above 1 MiB may be ready: constant */
  const ladei_pinned_segment *recent; /* where the last block was found; owner only */
  size_t cached_bytes;                /* in the magazines; guard: asym_lock */
  uint32_t kept_count;                /* larger blocks that are kept; guard: asym_lock */
  size_t quota_bytes;       /* the thread's part of the pool's magazine budget; guard: asym_lock, and the pool's
      lock for changes */
  uint32_t poll_skip;       /* misses until the next look at pending blocks; owner only */
  uint32_t poll_fruitless;  /* looks in a row that found nothing */
  uint32_t steal_skip;      /* wishes for quota until the next look for idle threads; owner only */
  uint32_t steal_fruitless; /* looks in a row that found none */
  /* Calls that found a magazine empty or without room; and of the last one the class, NULL: there was none. Written by
   * the owner */
  _Atomic(uint64_t) misses;
  _Atomic(ladei_pinned_class_counts *) missed_counts;
  bool reached, victim; /* by the drain, or the look, that is going on; guard: the pool's lock, as the next two */
  uint64_t seen_uses;   /* its uses at the last look, or when it was given quota */
  uint64_t seen_wishes; /* wishes of all threads then */
  struct ladei_pinned_thread_cache *next_victim;
  uint32_t stripe;      /* of the threads that use one transit word and one shard of retirement; constant once linked */
  ladei_retire *retire; /* that shard */
  ladei_retire_buffer retire_buffer; /* to its shard of the pool's retire object */
  _Atomic(ladei_pinned_thread_counters *)
      nodes[LADEI_PINNED_MAX_NODES]; /* made when first used; constant from then on */

  ladei_lock lock;                                  /* guards changes of `pool` */
  _Atomic(lade_pinned_pool *) pool;                 /* NULL: ended */
  _Atomic(bool) *pool_keeps;                        /* the pool's large_kept; constant */
  ladei_pinned_cap_wait *cap_wait;                  /* the pool's; constant */
  pid_t process;                                    /* that made it; constant */
  _Atomic(uint32_t) references;                     /* pool and thread: the last one frees */
  struct ladei_pinned_thread_cache *next_of_thread; /* the thread's list */
  struct ladei_pinned_thread_cache *next, *prev;    /* the pool's list; guard: the pool's lock */
} ladei_pinned_thread_cache;

/* The threads of a pool. */
typedef struct ladei_pinned_threads {
  _Atomic(ladei_pinned_thread_counters *) exited[LADEI_PINNED_MAX_NODES]; /* by node: counts of threads without cache */
  ladei_lock lock;                  /* keeps the list still for readers: it is changed under this and the pool's lock */
  ladei_pinned_thread_cache *first; /* guard: both locks; of the next four the pool's */
  uint64_t wishes;                  /* so far, for quota that the budget did not have */
  ladei_pinned_thread_cache *steal_next;  /* where the next look for idle threads begins; NULL: at the first */
  bool retire_buffers_closed;             /* runtime/retire is going, or gone */
  _Atomic(size_t) quota_bytes;            /* sum of the threads' quotas */
  _Atomic(uint32_t) last_id;              /* ids given to thread caches */
  uint32_t stripes[LADEI_PINNED_STRIPES]; /* number of threads in each; guard: the pool's lock */
  _Atomic(uint32_t) count;                /* of threads; changed under the pool's lock */
  _Atomic(bool) large_kept;               /* some thread may keep a block above the magazines' sizes */
  _Atomic(bool) unreached;                /* the last drain had to leave some thread's cache alone */
  _Atomic(uint32_t) leaving;              /* exiting threads that still hand over their blocks */
} ladei_pinned_threads;

/* ---- The calling thread ------------------------------------------------------------------------------------------ */

/* The last pool that the thread used, and its cache there. */
typedef struct ladei_pinned_thread_local {
  uint64_t pool_id; /* 0: none. Ids are never used again, so an old pool's address is no trap */
  ladei_pinned_thread_cache *cache;
  ladei_pinned_thread_cache *all; /* of all pools, linked by next_of_thread */
} ladei_pinned_thread_local;

/* In the static block of thread-locals: no call is needed to find it, also in a shared library. */
extern _Thread_local ladei_pinned_thread_local ladei_tls __attribute__((tls_model("initial-exec")));

/* The thread's cache in a pool; NULL where a slower call has to look or make it first. */
static inline ladei_pinned_thread_cache *ladei_pinned_thread_cache_fast(uint64_t pool_id) {
  return ladei_tls.pool_id == pool_id ? ladei_tls.cache : NULL;
}

/* Owner. Whether another thread needs the ready blocks and cannot take them. */
static inline bool ladei_pinned_thread_cache_is_called(const ladei_pinned_thread_cache *cache) {
  return ladei_asym_lock_is_called(&cache->asym_lock) || ladei_retire_buffer_is_called(&cache->retire_buffer);
}
static inline ladei_pinned_thread_counters *ladei_pinned_thread_counters_of(const ladei_pinned_thread_cache *cache,
                                                                            unsigned node) {
  return atomic_load_explicit(&cache->nodes[node], memory_order_acquire);
}

/* The counters of a node, made if need be; NULL where there is no memory for them. */
ladei_pinned_thread_counters *ladei_pinned_thread_counters_of_new(ladei_pinned_thread_cache *cache, unsigned node);
static inline ladei_pinned_thread_counters *ladei_pinned_thread_counters_of_make(ladei_pinned_thread_cache *cache,
                                                                                 unsigned node) {
  ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, node);
  return counters != NULL ? counters : ladei_pinned_thread_counters_of_new(cache, node);
}

/* ---- Magazines --------------------------------------------------------------------------------------------------- */

static inline uint32_t ladei_pinned_magazine_count(const ladei_pinned_class_counts *counts) {
  return atomic_load_explicit(&counts->count, memory_order_relaxed);
}
static inline void ladei_pinned_magazine_count_set(ladei_pinned_class_counts *counts, uint32_t count) {
  atomic_store_explicit(&counts->count, count, memory_order_relaxed);
}

/* Owner. NULL: empty, or a drain is going on. */
static inline ladei_pinned_block *ladei_pinned_magazine_take(ladei_pinned_thread_cache *cache,
                                                             ladei_pinned_class_counts *counts) {
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return NULL;
  ladei_pinned_block *block = counts->head;
  if (block != NULL) {
    counts->head = ladei_pinned_block_next(block);
    ladei_pinned_magazine_count_set(counts, ladei_pinned_magazine_count(counts) - 1);
    cache->cached_bytes -= counts->block_bytes;
  }
  ladei_asym_lock_leave(&cache->asym_lock);
  return block;
}

/* Owner, inside the asymmetric lock. Whether there is room for one more block, and putting it. */
static inline bool ladei_pinned_magazine_fits(const ladei_pinned_thread_cache *cache,
                                              const ladei_pinned_class_counts *counts) {
  return ladei_pinned_magazine_count(counts) < LADEI_PINNED_MAGAZINE_MAX_BLOCKS &&
         cache->cached_bytes + counts->block_bytes <= cache->quota_bytes;
}
static inline void ladei_pinned_magazine_push(ladei_pinned_thread_cache *cache, ladei_pinned_class_counts *counts,
                                              ladei_pinned_block *block) {
  ladei_pinned_block_next_set(block, counts->head);
  counts->head = block;
  ladei_pinned_magazine_count_set(counts, ladei_pinned_magazine_count(counts) + 1);
  cache->cached_bytes += counts->block_bytes;
}

/* Owner. False: full, over the quota, or a drain is going on. */
static inline bool ladei_pinned_magazine_put(ladei_pinned_thread_cache *cache, ladei_pinned_class_counts *counts,
                                             ladei_pinned_block *block) {
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return false;
  bool fits = ladei_pinned_magazine_fits(cache, counts);
  if (fits) ladei_pinned_magazine_push(cache, counts, block);
  ladei_asym_lock_leave(&cache->asym_lock);
  return fits;
}

/*
 * Larger blocks. A thread keeps the block that it took last itself, one of a class; so a thread that uses a block again
 * and again has it as cheaply as a small one. Blocks that another thread took go to the bins (bins.h), or that thread
 * would never find them; so do the blocks of a thread that takes one size after the other, as from a ring of buffers.
 * All others go back to the node.
 */

/* Owner. A kept block of at least `pages`, CACHED; NULL: none, or a drain is going on. */
static inline ladei_pinned_block *ladei_pinned_kept_take(ladei_pinned_thread_cache *cache,
                                                         ladei_pinned_thread_counters *counters, unsigned bin,
                                                         size_t pages) {
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return NULL;
  ladei_pinned_block *block = atomic_load_explicit(&counters->kept[bin], memory_order_relaxed);
  if (block != NULL && ladei_pinned_block_pages(block) >= pages) {
    atomic_store_explicit(&counters->kept[bin], NULL, memory_order_relaxed);
    cache->kept_count--;
  } else {
    block = NULL;
  }
  ladei_asym_lock_leave(&cache->asym_lock);
  return block;
}

/* Owner. Keeps a CACHED block, in no slot. False: not the last one taken, one is kept, a thread waits, or a drain is
 * going on. */
static inline bool ladei_pinned_kept_put(ladei_pinned_thread_cache *cache, ladei_pinned_thread_counters *counters,
                                         unsigned bin, ladei_pinned_block *block) {
  if (counters->last[bin] != block || !ladei_asym_lock_enter(&cache->asym_lock)) return false;
  bool fits = atomic_load_explicit(&counters->kept[bin], memory_order_relaxed) == NULL &&
              !ladei_pinned_cap_has_waiters(cache->cap_wait);
  if (fits) {
    if (!atomic_load_explicit(cache->pool_keeps, memory_order_relaxed)) /* the first since a drain */
      atomic_store_explicit(cache->pool_keeps, true, memory_order_relaxed);
    atomic_store_explicit(&counters->kept[bin], block, memory_order_relaxed);
    cache->kept_count++;
  }
  ladei_asym_lock_leave(&cache->asym_lock);
  return fits;
}

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

/* One writer: no read-modify-write needed. */
static inline void ladei_pinned_class_counts_add(_Atomic(uint64_t) *counter, uint64_t amount) {
  uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, value + amount, memory_order_relaxed);
}

/* Owner. A block was handed out, or freed. `block_bytes`: of larger classes. */
static inline void ladei_pinned_class_counts_alloc(ladei_pinned_class_counts *counts, unsigned class_index,
                                                   size_t requested, size_t block_bytes) {
  ladei_pinned_class_counts_add(&counts->allocs, 1);
  ladei_pinned_class_counts_add(&counts->requested_allocated, requested);
  if (class_index >= LADEI_PINNED_MAGAZINE_CLASSES)
    ladei_pinned_class_counts_add(&counts->bytes_allocated, block_bytes);
}

static inline void ladei_pinned_class_counts_free(ladei_pinned_class_counts *counts, unsigned class_index,
                                                  size_t requested, size_t block_bytes) {
  ladei_pinned_class_counts_add(&counts->frees, 1);
  ladei_pinned_class_counts_add(&counts->requested_freed, requested);
  if (class_index >= LADEI_PINNED_MAGAZINE_CLASSES) ladei_pinned_class_counts_add(&counts->bytes_freed, block_bytes);
}

/* Owner. A magazine was empty, or had no room. */
static inline void ladei_pinned_thread_cache_missed(ladei_pinned_thread_cache *cache,
                                                    ladei_pinned_class_counts *counts) {
  ladei_pinned_class_counts_add(&cache->misses, 1);
  atomic_store_explicit(&cache->missed_counts, counts, memory_order_release);
}

/* New, empty counters; NULL when there is no memory. Without `magazines` the bytes of small classes are counted in
 * their place, as those of larger ones. */
ladei_pinned_thread_counters *ladei_pinned_thread_counters_create(unsigned node, bool magazines);

/* ---- Life and contents ------------------------------------------------------------------------------------------- */

/* A cache of the calling thread, with two owners; NULL when there is no memory. */
ladei_pinned_thread_cache *ladei_pinned_thread_cache_create(lade_pinned_pool *pool, uint32_t id,
                                                            ladei_pinned_cap_wait *cap_wait, _Atomic(bool) *pool_keeps);
/* One owner less; the last one frees. */
void ladei_pinned_thread_cache_release(ladei_pinned_thread_cache *cache);

/* All that a thread has ready goes before `list`, if the caller may touch it. */
ladei_pinned_block *ladei_pinned_thread_cache_empty(ladei_pinned_thread_cache *cache, ladei_pinned_block *list);
/* The newer half, rounded up, of one magazine goes before `list`; inside the asymmetric lock. */
ladei_pinned_block *ladei_pinned_magazine_halve(ladei_pinned_thread_cache *cache, ladei_pinned_class_counts *counts,
                                                ladei_pinned_block *list);

/* Bytes that it has ready; exact when its thread is not inside. */
uint64_t ladei_pinned_thread_cache_bytes(const ladei_pinned_thread_cache *cache);
/* A measure of the thread's use of its magazines so far: mostly the same later if it was idle meanwhile, otherwise not.
 * Misses, and all uses of the class that it missed last. Reads two lines of cache of the thread's, which it writes
 * to. */
uint64_t ladei_pinned_thread_cache_uses(const ladei_pinned_thread_cache *cache);

#endif /* LADE_HOST_CACHES_THREAD_CACHE_H */
