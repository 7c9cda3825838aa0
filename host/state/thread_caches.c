/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread caches: registry, drain, exit of threads, end of pools.
 *
 * I1  A cache is in its pool's list from its creation until its thread exits or the pool ends, and in its thread's list
 *     until the thread exits or sees that the pool ended; each of the two holds one of `owners`.
 * I2  The magazines and kept blocks are touched only by the owner inside its asymmetric lock; by a drain (pool->lock
 *     held, asymmetric lock closed, and the wait at it said that the owner is out); by the owner under pool->lock;
 *     under pool->lock where the owner makes no call, at the end of the pool; or when the cache is out of the pool's
 *     list and its thread is at its end. A cache whose owner cannot be fenced keeps its blocks until the owner's next
 *     call (ladei_pinned_thread_cache_answer) or its exit.
 * I3  (Note [Quota]) The sum of all quotas is at most the pool's magazine budget; cached_bytes of a thread is at most
 *     its quota.
 * I4  An exiting thread's counts are added to the pool's `exited` counters under pool->threads.lock, in one step with
 *     the cache leaving the list: a reader that holds that lock counts everything once.
 *
 * Thread exit and destroy may meet. The exiting thread looks at cache->pool under cache->lock and, if there is a pool,
 * announces itself in pool->threads.leaving before it lets go of the lock; destroy sets cache->pool to NULL under the
 * same lock and then waits until no thread is leaving.
 *
 * I5  While any thread keeps a larger block, pool->threads.large_kept is true, or pool->threads.unreached where the
 *     last drain could not look at it.
 * I6  A thread is in the stripe that had the fewest threads when it began: as long as there are no more threads than
 *     stripes, each has a transit word for itself, and a shard where there are as many. Threads that come and go leave
 *     no gaps.
 * Locks: pool->lock guards the lists, stripes and quotas; cache->lock the pointer to the pool. Threads begin and end
 * under pool->threads.lock too, taken first: its holder reads the list, and keeps no other thread from the pool.
 */
#include "host/state/thread_caches.h"

#include <pthread.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/log.h"
#include "base/thread_key.h"
#include "host/state/nodes.h"
#include "host/state/usage.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool exit_key_made;
static _Atomic(uint64_t) last_pool_id;

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* For changes of the list. */
static void threads_acquire(lade_pinned_pool *pool) {
  ladei_lock_acquire(&pool->threads.lock);
  ladei_lock_acquire(&pool->lock);
}

static void threads_release(lade_pinned_pool *pool) {
  ladei_lock_release(&pool->lock);
  ladei_lock_release(&pool->threads.lock);
}

/* I6: the stripe with the fewest threads. */
static void stripe_enter(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  uint32_t stripe = 0;
  for (uint32_t i = 1; i < LADEI_PINNED_STRIPES; i++)
    if (pool->threads.stripes[i] < pool->threads.stripes[stripe]) stripe = i;
  pool->threads.stripes[stripe]++;
  atomic_fetch_add_explicit(&pool->threads.count, 1, memory_order_relaxed);
  cache->stripe = stripe;
  cache->retire = ladei_retire_shard(pool->retire, stripe);
}

static void pool_link(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_lock_assert_held(&pool->lock);
  stripe_enter(pool, cache);
  cache->prev = NULL;
  cache->next = pool->threads.first;
  if (cache->next != NULL) cache->next->prev = cache;
  pool->threads.first = cache;
}

static void pool_unlink(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_lock_assert_held(&pool->lock);
  pool->threads.stripes[cache->stripe]--;
  atomic_fetch_sub_explicit(&pool->threads.count, 1, memory_order_relaxed);
  if (pool->threads.steal_next == cache) pool->threads.steal_next = cache->next;
  if (cache->next != NULL) cache->next->prev = cache->prev;
  if (cache->prev != NULL)
    cache->prev->next = cache->next;
  else
    pool->threads.first = cache->next;
}

/* The calling thread's cache in the pool; NULL: none. */
static ladei_pinned_thread_cache *thread_list_find(const lade_pinned_pool *pool) {
  ladei_pinned_thread_cache *cache = ladei_tls.all;
  while (cache != NULL && atomic_load_explicit(&cache->pool, memory_order_relaxed) != pool)
    cache = cache->next_of_thread;
  return cache;
}

/* ---- Taking magazines out ---------------------------------------------------------------------------------------- */

static size_t quota_sum(const lade_pinned_pool *pool) {
  return atomic_load_explicit(&pool->threads.quota_bytes, memory_order_relaxed);
}

/* Under pool->lock. */
static void quota_sum_set(lade_pinned_pool *pool, size_t bytes) {
  ladei_lock_assert_held(&pool->lock);
  atomic_store_explicit(&pool->threads.quota_bytes, bytes, memory_order_relaxed);
}

/* All that a thread has ready, and its quota: those that still work ask for it again, those that sleep do not keep it
 * from others. Under pool->lock. */
static ladei_pinned_block *cache_take_all(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                          ladei_pinned_block *list) {
  ladei_lock_assert_held(&pool->lock);
  list = ladei_pinned_thread_cache_empty(cache, list);
  quota_sum_set(pool, quota_sum(pool) - cache->quota_bytes);
  cache->quota_bytes = 0;
  return list;
}

/* Closes all asymmetric locks, and has the barrier run if any of them needs it. */
static bool asym_locks_close(lade_pinned_pool *pool) {
  ladei_lock_assert_held(&pool->lock);
  bool barrier = false;
  for (ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next)
    barrier = ladei_asym_lock_close(&cache->asym_lock) || barrier;
  return barrier && ladei_asym_lock_barrier();
}

ladei_pinned_block *ladei_pinned_thread_caches_drain(lade_pinned_pool *pool) {
  ladei_pinned_block *list = NULL;
  bool unreached = false;
  const ladei_pinned_thread_cache *own = thread_list_find(pool); /* the caller's: needs no fence */
  ladei_lock_acquire(&pool->lock);
  bool fenced = asym_locks_close(pool);
  for (ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next) {
    cache->reached = ladei_asym_lock_wait(&cache->asym_lock, fenced || cache == own);
    if (cache->reached) {
      list = cache_take_all(pool, cache, list);
    } else {
      ladei_pinned_count(&pool->counters.unreached_caches, 1);
      unreached = true;
    }
  }
  if (atomic_exchange_explicit(&pool->threads.unreached, unreached, memory_order_relaxed) < unreached)
    ladei_log_later(LADE_LOG_WARN,
                    "pinned pool %llu: what some threads keep ready cannot be reached until their next call",
                    (unsigned long long)pool->id);
  atomic_store_explicit(&pool->threads.large_kept, false, memory_order_relaxed); /* before any owner gets in again */
  for (ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next)
    if (cache->reached) ladei_asym_lock_open(&cache->asym_lock);
  ladei_lock_release(&pool->lock);
  return list;
}

ladei_pinned_block *ladei_pinned_thread_caches_take(lade_pinned_pool *pool) {
  ladei_pinned_block *list = NULL;
  ladei_lock_acquire(&pool->lock);
  for (ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next) {
    ladei_retire_buffer_close(ladei_pinned_retire_shard(pool, cache), &cache->retire_buffer);
    list = cache_take_all(pool, cache, list);
  }
  atomic_store_explicit(&pool->threads.large_kept, false, memory_order_relaxed);
  ladei_lock_release(&pool->lock);
  return list;
}

/* Whether an owner is called yet. */
static bool any_called(const lade_pinned_pool *pool) {
  ladei_lock_assert_held(&pool->lock);
  const ladei_pinned_thread_cache *cache = pool->threads.first;
  while (cache != NULL && !ladei_asym_lock_is_called(&cache->asym_lock)) cache = cache->next;
  return cache != NULL;
}

void ladei_pinned_thread_cache_answer(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_pinned_block *list = NULL;
  if (ladei_retire_buffer_is_called(&cache->retire_buffer))
    ladei_retire_buffer_answer(ladei_pinned_retire_shard(pool, cache), &cache->retire_buffer);
  if (!ladei_asym_lock_is_called(&cache->asym_lock)) return;
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, cache);
  ladei_pinned_transit_begin(transit); /* waits: this call may be the owner's last for long */
  ladei_lock_acquire(&pool->lock);
  if (ladei_asym_lock_is_called(&cache->asym_lock)) { /* otherwise another visitor came before */
    list = cache_take_all(pool, cache, NULL);
    ladei_asym_lock_answer(&cache->asym_lock);
    atomic_store_explicit(&pool->threads.unreached, any_called(pool), memory_order_relaxed);
  }
  ladei_lock_release(&pool->lock);
  ladei_pinned_pool_put(pool, list);
  ladei_pinned_transit_end(transit);
}

bool ladei_pinned_thread_caches_keep(lade_pinned_pool *pool) {
  return quota_sum(pool) > 0 || atomic_load_explicit(&pool->threads.large_kept, memory_order_relaxed) ||
         atomic_load_explicit(&pool->threads.unreached, memory_order_relaxed);
}

uint64_t ladei_pinned_thread_caches_bytes(lade_pinned_pool *pool) {
  uint64_t bytes = 0;
  ladei_lock_acquire(&pool->lock);
  for (ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next)
    bytes += ladei_pinned_thread_cache_bytes(cache);
  ladei_lock_release(&pool->lock);
  return bytes;
}

/* ---- Threads that end -------------------------------------------------------------------------------------------- */

static void counter_move(_Atomic(uint64_t) *to, const _Atomic(uint64_t) *from) {
  /* Threads without a cache of their own add to the same counter. */
  atomic_fetch_add_explicit(to, atomic_load_explicit(from, memory_order_relaxed), memory_order_relaxed);
}

static void class_counts_exit(ladei_pinned_class_counts *exited, const ladei_pinned_class_counts *counts, bool large) {
  counter_move(&exited->allocs, &counts->allocs);
  counter_move(&exited->frees, &counts->frees);
  counter_move(&exited->requested_allocated, &counts->requested_allocated);
  counter_move(&exited->requested_freed, &counts->requested_freed);
  if (large) {
    counter_move(&exited->bytes_allocated, &counts->bytes_allocated);
    counter_move(&exited->bytes_freed, &counts->bytes_freed);
  }
}

static void pending_flow_exit(ladei_pinned_pending_flow *exited, const ladei_pinned_pending_flow *flow) {
  counter_move(&exited->freed.blocks, &flow->freed.blocks);
  counter_move(&exited->freed.bytes, &flow->freed.bytes);
  counter_move(&exited->retired.blocks, &flow->retired.blocks);
  counter_move(&exited->retired.bytes, &flow->retired.bytes);
}

static void counters_exit(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_lock_assert_held(&pool->lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, i);
    for (unsigned c = 0; counters != NULL && c < LADEI_PINNED_CLASSES; c++) {
      ladei_pinned_class_counts_publish(pool, counters, c);
      ladei_pinned_pending_publish(pool, counters, c);
      class_counts_exit(&ladei_pinned_pool_exited(pool, i)->classes[c], &counters->classes[c],
                        c >= LADEI_PINNED_MAGAZINE_CLASSES);
      pending_flow_exit(&ladei_pinned_pool_exited(pool, i)->class_pending[c].flow, &counters->class_pending[c].flow);
    }
    if (counters == NULL) continue;
    ladei_pinned_in_use_publish_rest(pool, counters);
    pending_flow_exit(&ladei_pinned_pool_exited(pool, i)->pending, &counters->pending);
  }
}

/* The thread's blocks and counters go to the pool, which stays there until `leaving` is taken back. */
static void pool_leave(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_pinned_block *list = NULL;
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, cache);
  ladei_pinned_transit_begin(transit);
  threads_acquire(pool);
  bool linked = atomic_load_explicit(&cache->pool, memory_order_relaxed) != NULL; /* otherwise the pool ends now */
  if (linked) {
    pool_unlink(pool, cache);
    if (!pool->threads.retire_buffers_closed)
      ladei_retire_buffer_close(ladei_pinned_retire_shard(pool, cache), &cache->retire_buffer);
    counters_exit(pool, cache);
    list = ladei_pinned_thread_cache_empty(cache, NULL);
    quota_sum_set(pool, quota_sum(pool) - cache->quota_bytes);
  }
  threads_release(pool);
  ladei_switch_point("left", 0);
  if (linked) {
    ladei_pinned_pool_put(pool, list);
    ladei_pinned_thread_cache_release(cache); /* the pool's share */
  }
  ladei_pinned_transit_end(transit);
  atomic_fetch_sub_explicit(&pool->threads.leaving, 1, memory_order_release);
}

/* The pool of a cache, kept from ending; NULL: it has ended. */
static lade_pinned_pool *pool_enter_leaving(ladei_pinned_thread_cache *cache) {
  ladei_lock_acquire(&cache->lock);
  lade_pinned_pool *pool = atomic_load_explicit(&cache->pool, memory_order_relaxed);
  if (pool != NULL) atomic_fetch_add_explicit(&pool->threads.leaving, 1, memory_order_relaxed);
  ladei_lock_release(&cache->lock);
  return pool;
}

/* The thread leaves one pool. In a forked child pools of the parent's stay as they are: their locks may be held by
 * threads that do not exist here. */
static void cache_exit(ladei_pinned_thread_cache *cache, pid_t process) {
  if (cache->process != process) return;
  lade_pinned_pool *pool = pool_enter_leaving(cache);
  if (pool != NULL) pool_leave(pool, cache);
  ladei_pinned_thread_cache_release(cache); /* the thread's share */
}

/* The key's value says only that there is something to do: the list changes without it. */
static void thread_exit(void *user) {
  (void)user;
  pid_t process = getpid();
  for (ladei_pinned_thread_cache *cache = ladei_tls.all, *next; cache != NULL; cache = next) {
    next = cache->next_of_thread;
    cache_exit(cache, process);
  }
  ladei_tls = (ladei_pinned_thread_local){0, NULL, NULL};
}

/* ---- Threads that begin ------------------------------------------------------------------------------------------ */

/* In a forked child every call has to come by the slow path, which looks whose process it is. */
static void child_begins(void) { ladei_tls.pool_id = 0; }

static void process_prepare(void) {
  exit_key_made = ladei_thread_key_create(&exit_key, thread_exit) == 0;
  /* Without the handler (no memory) a child's fast path would not notice; so there are no caches then. */
  exit_key_made = exit_key_made && pthread_atfork(NULL, NULL, child_begins) == 0;
}

uint64_t ladei_pinned_thread_pool_id(void) {
  pthread_once(&once, process_prepare);
  return atomic_fetch_add_explicit(&last_pool_id, 1, memory_order_relaxed) + 1;
}

/* Drops the thread's caches whose pools ended. */
static void thread_list_clean(void) {
  ladei_pinned_thread_cache **link = &ladei_tls.all;
  while (*link != NULL) {
    ladei_pinned_thread_cache *cache = *link;
    if (atomic_load_explicit(&cache->pool, memory_order_acquire) == NULL) {
      *link = cache->next_of_thread;
      ladei_pinned_thread_cache_release(cache);
    } else {
      link = &cache->next_of_thread;
    }
  }
}

static ladei_pinned_thread_cache *cache_create(lade_pinned_pool *pool) {
  uint32_t id = atomic_fetch_add_explicit(&pool->threads.last_id, 1, memory_order_relaxed) + 1;
  ladei_pinned_thread_cache *cache =
      ladei_pinned_thread_cache_create(pool, id, &pool->cap_wait, &pool->threads.large_kept);
  if (cache != NULL) cache->keeps_large = ladei_pinned_pool_keeps_lists(pool);
  return cache;
}

static ladei_pinned_thread_cache *cache_register(lade_pinned_pool *pool) {
  thread_list_clean();
  ladei_pinned_thread_cache *cache = exit_key_made ? cache_create(pool) : NULL;
  if (cache == NULL) return NULL;
  cache->next_of_thread = ladei_tls.all;
  if (pthread_setspecific(exit_key, &ladei_tls) != 0) {
    ladei_pinned_thread_cache_release(cache);
    ladei_pinned_thread_cache_release(cache);
    return NULL;
  }
  ladei_tls.all = cache;
  threads_acquire(pool);
  pool_link(pool, cache);
  threads_release(pool);
  return cache;
}

ladei_pinned_thread_cache *ladei_pinned_thread_cache_of(lade_pinned_pool *pool) {
  if (ladei_tls.pool_id == pool->id) return ladei_tls.cache;
  ladei_pinned_thread_cache *cache = thread_list_find(pool);
  if (cache == NULL) cache = cache_register(pool);
  if (cache != NULL) {
    ladei_tls.pool_id = pool->id;
    ladei_tls.cache = cache;
  }
  return cache;
}

/* ---- Room in magazines ------------------------------------------------------------------------------------------- */

/* Under pool->lock, from here on. */
static void cache_see(const lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_lock_assert_held(&pool->lock);
  cache->seen_uses = ladei_pinned_thread_cache_uses(cache);
  cache->seen_wishes = pool->threads.wishes;
}

/* Whether a thread has done nothing since it was looked at last, or was given quota: Note [Quota]; a guess for the sake
 * of speed. */
static bool cache_idles(const lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  ladei_lock_assert_held(&pool->lock);
  enum { WISHES = 256 };
  if (pool->threads.wishes - cache->seen_wishes < WISHES) return false;
  uint64_t seen = cache->seen_uses;
  cache_see(pool, cache);
  return cache->seen_uses == seen;
}

/* True: the thread has `bytes` more. */
static bool quota_grant(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, size_t bytes) {
  ladei_lock_assert_held(&pool->lock);
  if (quota_sum(pool) + bytes > pool->settings.magazine_bytes) return false;
  cache->quota_bytes += bytes;
  cache_see(pool, cache);
  quota_sum_set(pool, quota_sum(pool) + bytes);
  return true;
}

/* Caches that idle, linked by next_victim: looked for from where the last look ended, until they have `bytes` of quota
 * in all, or enough were looked at. */
static ladei_pinned_thread_cache *idle_find(lade_pinned_pool *pool, const ladei_pinned_thread_cache *own,
                                            size_t bytes) {
  ladei_lock_assert_held(&pool->lock);
  enum { LOOKS = 16, STEPS = 256 }; /* a look reads two lines of cache, a step one */
  ladei_pinned_thread_cache *victims = NULL;
  size_t found = 0;
  for (unsigned looks = 0, steps = 0; looks < LOOKS && steps < STEPS && found < bytes; steps++) {
    ladei_pinned_thread_cache *cache =
        pool->threads.steal_next != NULL ? pool->threads.steal_next : pool->threads.first;
    pool->threads.steal_next = cache->next;
    if (cache == own || cache->quota_bytes == 0 || cache->victim) continue;
    looks++;
    if (cache_idles(pool, cache)) {
      cache->victim = true;
      cache->next_victim = victims;
      victims = cache;
      found += cache->quota_bytes;
    }
  }
  for (ladei_pinned_thread_cache *cache = victims; cache != NULL; cache = cache->next_victim) cache->victim = false;
  return victims;
}

/* Takes all that they have. */
static ladei_pinned_block *idle_steal(lade_pinned_pool *pool, ladei_pinned_thread_cache *victims) {
  ladei_lock_assert_held(&pool->lock);
  ladei_pinned_block *list = NULL;
  bool barrier = false;
  for (ladei_pinned_thread_cache *cache = victims; cache != NULL; cache = cache->next_victim)
    barrier = ladei_asym_lock_close(&cache->asym_lock) || barrier;
  bool fenced = barrier && ladei_asym_lock_barrier();
  for (ladei_pinned_thread_cache *cache = victims; cache != NULL; cache = cache->next_victim) {
    if (ladei_asym_lock_wait(&cache->asym_lock, fenced)) {
      list = cache_take_all(pool, cache, list);
      ladei_asym_lock_open(&cache->asym_lock);
    }
  }
  return list;
}

/*
 * Note [Quota]
 *   A thread's quota bounds its cache, and the pool's budget all quotas. A thread begins with none, and its quota
 *   doubles each time that it is not enough. If the budget is spent, the quotas of idle threads are taken: they need
 *   none, and ask again when they go on. A thread that found no idle one asks less often from then on; while many
 *   threads share a budget that is too small for them, each block costs the arena's lock, and no more than that.
 *   Idle is a thread that did nothing while all threads wished for quota in vain 256 times: one that works and lacks
 *   quota has wishes of its own among these. Without such a distance 16 threads with random sizes looked at each other
 *   several times between two calls of each, took working ones for idle, and emptied their magazines, with a barrier of
 *   all processors for each.
 *   Before there were small steps and stealing, the 64 first threads had a MiB each of a budget of 64 MiB, for good;
 *   each miss of the 65th took 16 blocks from the node and put 15 back, 2,212 ns for a pair instead of 17.
 */
enum { QUOTA_LEAST_BYTES = 64 << 10, STEAL_FRUITLESS_MOST = 6 };

/* By how much a thread's quota should grow that lacks `bytes`; 0: it may not. */
static size_t quota_step(const lade_pinned_pool *pool, size_t quota_bytes, size_t bytes) {
  size_t most = ladei_size_max(pool->settings.magazine_bytes / 4, LADEI_MIB);
  size_t step = ladei_size_max(ladei_size_max(bytes, quota_bytes), QUOTA_LEAST_BYTES);
  size_t left = quota_bytes < most ? most - quota_bytes : 0;
  return left < bytes ? 0 : ladei_size_min(step, left);
}

/* After a look. */
static uint32_t skipped_wishes(const ladei_pinned_thread_cache *cache) { return (1u << cache->steal_fruitless) - 1; }

/* True: the thread, whose quota was `quota_bytes`, may keep `bytes` more. Outside of its asymmetric lock. */
static bool quota_raise(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, size_t quota_bytes, size_t bytes) {
  size_t step = quota_step(pool, quota_bytes, bytes);
  if (step == 0) return false;
  if (cache->steal_skip > 0 && quota_sum(pool) + bytes > pool->settings.magazine_bytes) {
    cache->steal_skip--; /* most likely there is nothing; no need for the lock to know it */
    return false;
  }
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, cache);
  if (!ladei_pinned_transit_try_begin(transit)) return false;
  ladei_pinned_block *list = NULL;
  ladei_lock_acquire(&pool->lock);
  bool raised = !ladei_pinned_cap_has_waiters(&pool->cap_wait);
  if (raised && !quota_grant(pool, cache, step) && !quota_grant(pool, cache, bytes)) {
    size_t before = quota_sum(pool);
    pool->threads.wishes += 1 + skipped_wishes(cache);
    list = idle_steal(pool, idle_find(pool, cache, bytes));
    bool fruitless = quota_sum(pool) == before; /* no thread idles, or can be reached */
    raised = quota_grant(pool, cache, step) || quota_grant(pool, cache, bytes);
    cache->steal_fruitless =
        fruitless ? cache->steal_fruitless + (cache->steal_fruitless < STEAL_FRUITLESS_MOST ? 1 : 0) : 0;
    cache->steal_skip = skipped_wishes(cache);
  }
  ladei_lock_release(&pool->lock);
  ladei_pinned_pool_put(pool, list);
  ladei_pinned_transit_end(transit);
  return raised;
}

/*
 * Note [Refill]
 *   The first miss of a class takes one block, each further one twice as many as the one before, up to a batch; and
 *   half as many again when blocks of the class were in the way. So a thread that uses one size has few misses, and one
 *   with random sizes takes little that it gives back unused: that cost the arena's lock both ways, for each block.
 */
static uint32_t refill_next(ladei_pinned_thread_counters *counters, unsigned class_index) {
  uint8_t *refill = &counters->refills[class_index];
  uint32_t most = ladei_pinned_batch(counters->classes[class_index].block_bytes);
  *refill = (uint8_t)(*refill == 0 ? 1 : 2 * *refill < most ? 2 * *refill : most);
  return *refill;
}

uint32_t ladei_pinned_magazine_refill(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                      ladei_pinned_thread_counters *counters, unsigned class_index) {
  uint32_t count = refill_next(counters, class_index);
  size_t block_bytes = counters->classes[class_index].block_bytes;
  if (count == 1) return 1;
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return 1;
  size_t quota = cache->quota_bytes, room = quota - cache->cached_bytes; /* I3 */
  ladei_asym_lock_leave(&cache->asym_lock);
  size_t wanted = count * block_bytes;
  if (wanted <= room || quota_raise(pool, cache, quota, wanted - room)) return count;
  return (uint32_t)ladei_size_max(room / block_bytes, 1);
}

ladei_pinned_block *ladei_pinned_magazine_make_room(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                                    ladei_pinned_thread_counters *counters, unsigned class_index) {
  ladei_pinned_class_counts *counts = &counters->classes[class_index];
  ladei_pinned_block *list = NULL;
  ladei_pinned_class_counts_publish(pool, counters, class_index);
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return NULL;
  uint32_t count = ladei_pinned_magazine_count(counts);
  size_t quota = cache->quota_bytes;
  bool full = count >= LADEI_PINNED_MAGAZINE_MAX_BLOCKS, only_this = count > 0;
  ladei_asym_lock_leave(&cache->asym_lock);
  if (!full && (quota_raise(pool, cache, quota, counts->block_bytes) || quota < counts->block_bytes)) return NULL;
  if (!ladei_asym_lock_enter(&cache->asym_lock)) return NULL;
  for (unsigned c = 0; c < LADEI_PINNED_MAGAZINE_CLASSES; c++)
    if (c == class_index || !only_this) {
      list = ladei_pinned_magazine_halve(cache, &counters->classes[c], list);
      if (!full) counters->refills[c] /= 2; /* Note [Refill] */
    }
  ladei_asym_lock_leave(&cache->asym_lock);
  return list;
}

/* ---- End of a pool ----------------------------------------------------------------------------------------------- */

void ladei_pinned_thread_caches_wait_for_exits(lade_pinned_pool *pool) {
  ladei_lock_assert_none_held();
  ladei_backoff wait = {0};
  while (atomic_load_explicit(&pool->threads.leaving, memory_order_acquire) > 0) ladei_backoff_wait(&wait);
}

void ladei_pinned_thread_caches_close_retire_buffers(lade_pinned_pool *pool, bool for_good) {
  ladei_lock_acquire(&pool->lock);
  for (ladei_pinned_thread_cache *cache = pool->threads.first; for_good && cache != NULL; cache = cache->next)
    ladei_retire_buffer_close(ladei_pinned_retire_shard(pool, cache), &cache->retire_buffer);
  pool->threads.retire_buffers_closed = for_good;
  ladei_lock_release(&pool->lock);
}

void ladei_pinned_thread_caches_abandon(lade_pinned_pool *pool) {
  threads_acquire(pool);
  while (pool->threads.first != NULL) {
    ladei_pinned_thread_cache *cache = pool->threads.first;
    pool_unlink(pool, cache);
    ladei_lock_acquire(&cache->lock);
    atomic_store_explicit(&cache->pool, NULL, memory_order_release);
    ladei_lock_release(&cache->lock);
    ladei_pinned_thread_cache_release(cache);
  }
  threads_release(pool);
  ladei_pinned_thread_caches_wait_for_exits(pool);
}
