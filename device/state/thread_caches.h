/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread caches: what a thread freed last it may have again without the allocator's lock. Only in allocators that were
 * created with LADE_DEVICE_THREAD_CACHES.
 *
 *   thread --key--> cache --bins[stream, bytes asked for]--> blocks in state THREAD, linked through `chain`
 *   allocator --thread_caches--> list of the same caches, so that a flush reaches those of threads that sleep
 *
 *   alloc    the bin of stream and bytes has a block: it is handed out. Else the bin is the stream's and size's from now on,
 *            and the pools serve the request
 *   free     the bin of the block's stream and size is there, and has room: the block goes there. Else to the pools
 *   flush    closes the asymmetric locks of all threads, gives their blocks to the pools, and opens the locks again
 *
 * For the heap a block in a cache is handed out, until a flush; so a call that wants to know better flushes first, and
 * one that must not be disturbed while it looks around holds the caches meanwhile (ladei_device_thread_caches_hold).
 * Peaks alone count it.
 *
 * T1  A block goes from ALLOCATED to THREAD by a compare-and-exchange, in the thread that frees it: of two frees of one
 *     block one is refused. The thread that made it THREAD owns it, puts it into its cache, or gives it to the heap.
 *     Code that takes handed out blocks for other reasons (suspend.c, checkpoint.c) claims them in the same way, though
 *     it holds the lock.
 * T2  In a cache are only blocks of default pools and of streams that are not retired, that no other stream used, of at
 *     most LADEI_DEVICE_THREAD_BLOCK_MOST bytes, and below options.max_split_bytes. Each serves requests of its stream
 *     and of the very size that it was handed out for.
 * T3  A thread has bins for what it allocated itself: what it only frees for others goes to the pools, where those find
 *     it.
 * T4  Bins, blocks and counters are touched by the owner inside its asymmetric lock; by a visitor (allocator's lock
 *     held, asymmetric lock closed, and the wait at it said that the owner is out); by the owner with the allocator's
 *     lock held; and with that lock where no thread makes a call: at the end of the allocator, and of the thread.
 * T5  cached_bytes of a thread is at most its quota, and the quotas together are at most the allocator's budget.
 * T6  While `paused` is not 0 (history, trackers, captures into private pools), caches that a visitor reached are
 *     empty.
 * T7  A cache is in its allocator's list until its thread exits or the allocator ends, and in its thread's list until
 *     the thread exits or sees that the allocator ended; each of the two holds one of `references`.
 *
 * Where the kernel refuses to help (base/asym_lock.h), a thread that is not in a call keeps its blocks until its next
 * call.
 *
 * Thread exit and destroy may meet. The exiting thread looks at cache->allocator under cache->lock and, if there is one,
 * counts itself in `leaving` before it lets go of the lock; destroy sets cache->allocator to NULL under the same lock and
 * then waits until no thread is leaving.
 * Locks: the allocator's lock is the visitors' lock, and guards list and `paused`; cache->lock the pointer to the allocator.
 */
#ifndef LADE_DEVICE_STATE_THREAD_CACHES_H
#define LADE_DEVICE_STATE_THREAD_CACHES_H

#include <pthread.h>
#include <sys/types.h>

#include "base/asym_lock.h"
#include "base/switch.h"
#include "device/state/allocator.h"

enum {
  LADEI_DEVICE_THREAD_BINS = 128,      /* a power of two */
  LADEI_DEVICE_THREAD_BIN_BLOCKS = 16, /* at most, in each */
  LADEI_DEVICE_THREAD_SHARING_BYTES = 128,
};
/* Larger blocks cost the program so much work that the lock does not matter. */
#define LADEI_DEVICE_THREAD_BLOCK_MOST ((size_t)16 << 20)
#define LADEI_DEVICE_THREAD_MOST       ((size_t)64 << 20) /* bytes in the cache of a thread */
#define LADEI_DEVICE_THREAD_QUOTA_STEP ((size_t)1 << 20)
enum { LADEI_DEVICE_THREAD_SHARE = 16 }; /* all caches: at most this part of the device's memory */

typedef struct ladei_device_thread_bin {
  uint64_t stream_key;
  size_t requested; /* 0: the bin is free */
  ladei_device_block *head;
  size_t count;
} ladei_device_thread_bin;

/* Blocks that were freed into the cache and handed out from it again, since the last flush. */
typedef struct ladei_device_thread_reuse {
  uint64_t blocks, bytes, requested;
} ladei_device_thread_reuse;

typedef struct ladei_device_thread_cache {
  _Alignas(LADEI_DEVICE_THREAD_SHARING_BYTES) ladei_asym_lock asym_lock;
  bool paused;                        /* guard: asym_lock, as all up to `bins` */
  size_t cached_bytes;                /* of blocks in bins */
  size_t quota_bytes;                 /* this thread's part of the budget */
  ladei_device_thread_reuse reuse[2]; /* of the large pool, of the small pool */
  ladei_device_thread_bin bins[LADEI_DEVICE_THREAD_BINS];

  uint64_t id;                                     /* of the allocator's caches; constant */
  pid_t process;                                   /* that made it; constant */
  bool reached;                                    /* by the visitor; guard: the allocator's lock, as the next two */
  struct ladei_device_thread_cache *next, *former; /* the allocator's list */
  struct ladei_device_thread_cache *next_of_thread;
  ladei_lock lock;
  _Atomic(lade_device_allocator *) allocator; /* NULL: ended; changes under `lock` */
  _Atomic(uint32_t) references;
} ladei_device_thread_cache;

struct ladei_device_thread_caches {
  uint64_t id;                                                             /* never used again; constant */
  size_t budget_bytes;                                                     /* constant */
  _Alignas(LADEI_DEVICE_THREAD_SHARING_BYTES) _Atomic(size_t) quota_bytes; /* of all threads */
  _Atomic(uint32_t) leaving;                                               /* threads that exit */
  uint64_t paused;                                                         /* reasons for it */
  ladei_device_thread_cache *first;
};

/* ---- The allocator's caches -------------------------------------------------------------------------------------- */

lade_status ladei_device_thread_caches_create(lade_device_allocator *allocator);
/* No call is under way, but threads may exit. The caches are empty, or their blocks are not needed any more. */
void ladei_device_thread_caches_end(lade_device_allocator *allocator);

/* With the lock held. hold: gives what threads have ready to the pools, and keeps threads out of their caches until
 * let; returns the number of blocks. Both do nothing in an allocator without thread caches. */
size_t ladei_device_thread_caches_hold(lade_device_allocator *allocator);
void ladei_device_thread_caches_let(lade_device_allocator *allocator);
/* Both at once, with the lock held. */
static inline size_t ladei_device_thread_caches_flush(lade_device_allocator *allocator) {
  if (allocator->thread_caches == NULL) return 0;
  size_t blocks = ladei_device_thread_caches_hold(allocator);
  ladei_device_thread_caches_let(allocator);
  return blocks;
}
/* The same where no thread makes a call; takes the lock. */
void ladei_device_thread_caches_drain(lade_device_allocator *allocator);
/* From here on no cache has a block; until as many resumes. Lock held. */
void ladei_device_thread_caches_pause(lade_device_allocator *allocator);
void ladei_device_thread_caches_resume(lade_device_allocator *allocator);

/* ---- The calling thread's cache ---------------------------------------------------------------------------------- */

/* Made if need be; NULL where there is no memory. No lock held. */
ladei_device_thread_cache *ladei_device_thread_cache_of(lade_device_allocator *allocator);

/* A block for the request, handed out; NULL: none is there. No lock held. */
ladei_device_block *ladei_device_thread_cache_take(lade_device_allocator *allocator, ladei_device_thread_cache *cache,
                                                   uint64_t stream_key, size_t bytes);
/* Puts a THREAD block, which the caller owns, into the cache; false: it does not belong there. No lock held. */
bool ladei_device_thread_cache_put(lade_device_allocator *allocator, ladei_device_thread_cache *cache,
                                   ladei_device_block *block);

/* T1. False: it is not handed out. */
static inline bool ladei_device_block_claim(ladei_device_block *block) {
  uint8_t state = LADEI_DEVICE_HEAP_ALLOCATED;
  ladei_switch_point("claim", 0);
  return atomic_compare_exchange_strong_explicit(&block->state, &state, LADEI_DEVICE_HEAP_THREAD, memory_order_acq_rel,
                                                 memory_order_relaxed);
}
/* A THREAD block is handed out, or again. */
static inline void ladei_device_block_unclaim(ladei_device_block *block) {
  atomic_store_explicit(&block->state, LADEI_DEVICE_HEAP_ALLOCATED, memory_order_release);
}

#endif /* LADE_DEVICE_STATE_THREAD_CACHES_H */
