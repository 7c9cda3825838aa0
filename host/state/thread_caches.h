/* SPDX-License-Identifier: Apache-2.0 */
/* The thread caches of a pool: made and found, drained, given room, and left by threads that exit. */
#ifndef LADE_HOST_STATE_THREAD_CACHES_H
#define LADE_HOST_STATE_THREAD_CACHES_H

#include "host/caches/thread_cache.h"
#include "host/state/pool_state.h"

/* ---- The calling thread ------------------------------------------------------------------------------------------ */

/* A fresh pool id; and whatever must happen once in the process. */
uint64_t ladei_pinned_thread_pool_id(void);

/* The thread's cache in the pool, made if need be; NULL where there is no memory for it: do without. */
ladei_pinned_thread_cache *ladei_pinned_thread_cache_of(lade_pinned_pool *pool);

/* The same for a call on the pool; NULL also in a mode (debug, a policy without thread caches) in which every block
 * goes back to its node and every call takes the slow path. */
static inline ladei_pinned_thread_cache *ladei_pinned_call_cache(lade_pinned_pool *pool) {
  return pool->fast.cache_id != pool->id ? NULL : ladei_pinned_thread_cache_of(pool);
}

/* Owner. Answers a call that ladei_pinned_thread_cache_is_called() shows. */
void ladei_pinned_thread_cache_answer(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache);

/* Answers calls of visitors. Not in a transit: it waits until they are not stopped. */
static inline void ladei_pinned_call_answer(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  if (cache != NULL && ladei_pinned_thread_cache_is_called(cache)) ladei_pinned_thread_cache_answer(pool, cache);
}

/* ---- Room in magazines ------------------------------------------------------------------------------------------- */

/* Owner. How many blocks of a class up to 1 MiB it should take at once for an empty magazine, the one that it needs
 * included: as many as it may keep, a batch at most. Raises its quota if need be. */
uint32_t ladei_pinned_magazine_refill(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                      ladei_pinned_thread_counters *counters, unsigned class_index);

/* Owner. Makes room for a block of the class that did not fit: raises the quota if the pool's budget allows, or takes
 * half of the magazine out (half of each if that one is empty), for the caller to put back to the nodes. */
ladei_pinned_block *ladei_pinned_magazine_make_room(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                                    ladei_pinned_thread_counters *counters, unsigned class_index);

/* ---- All threads ------------------------------------------------------------------------------------------------- */

/* Takes all blocks out of all threads' magazines: a list linked by next. No lock is held. Caches whose owners cannot be
 * fenced (base/asym_lock.h) keep theirs; the owners are called, and give them back in their next calls. */
ladei_pinned_block *ladei_pinned_thread_caches_drain(lade_pinned_pool *pool);

/* The same of all caches, which needs no fence, for the end of the pool: no thread makes any other call. Their retire
 * buffers are emptied too. */
ladei_pinned_block *ladei_pinned_thread_caches_take(lade_pinned_pool *pool);

/* Waits until blocks that exiting threads had taken out before the last drain are back in their nodes. */
void ladei_pinned_thread_caches_wait_for_exits(lade_pinned_pool *pool);

/* Closes the retire buffers of all threads for good, before runtime/retire goes; or, `for_good` false, lets them open
 * again. */
void ladei_pinned_thread_caches_close_retire_buffers(lade_pinned_pool *pool, bool for_good);

/* Destroy: the pool lets go of all caches, drained before, and waits for threads that are just leaving. */
void ladei_pinned_thread_caches_abandon(lade_pinned_pool *pool);

/* Whether any thread may have blocks in magazines. */
bool ladei_pinned_thread_caches_keep(lade_pinned_pool *pool);

/* Bytes in all magazines; exact when no other thread is inside. */
uint64_t ladei_pinned_thread_caches_bytes(lade_pinned_pool *pool);

#endif /* LADE_HOST_STATE_THREAD_CACHES_H */
