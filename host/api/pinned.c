/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls on pinned blocks.
 *
 *   alloc    ready block, or seek a CACHED one -> IN_USE
 *   record   note a stream on the block's ticket
 *   free     IN_USE -> CACHED -> ready, or back to its node        no stream noted
 *            IN_USE -> PENDING -> runtime/retire -> (later) the policy's `retired` -> ready, or back to its node
 *
 * Note [Fast path]
 *   alloc and free first try the way without lock and driver: the calling thread's cache, known from a thread-local
 *   that names the pool by its id, and a ready block or room for one. Any unusual case (first call of the thread, empty
 *   or full magazine, a wrong pointer, a forked child, whose thread-local names no pool) goes to the slow path, which
 *   checks everything anew. The one atomic read-modify-write of a pair of small calls is
 *   the compare-and-swap in free. Blocks with streams noted leave the fast path after it, for the thread's buffer in
 *   runtime/retire.
 *
 * I1  Of several frees of one block exactly one succeeds: the one whose compare-and-swap takes the word out of IN_USE.
 *     After it a block in a slot may be another thread's at once, so the needed fields of the record are read before.
 * I2  A thread that is cancelled ends after its call (base/cancellation.h). A call of the driver here holds that off,
 *     except for the notes and frees of the fast path: they hold nothing meanwhile, and runtime/retire protects its own
 *     work for them under a claim.
 * Locks: none here; those of the parts that are called.
 */
#include "host/api/pinned.h"

#include "base/options.h"
#include "base/static_probe.h"
#include "host/caches/pointer_lookup.h"
#include "host/caches/ready.h"
#include "host/grow/give_back.h"
#include "host/grow/grow.h"
#include "host/grow/seek.h"
#include "host/policies/policy_default.h"
#include "host/state/call.h"
#include "host/state/nodes.h"
#include "host/state/operation.h"
#include "host/state/thread_caches.h"
#include "host/state/usage.h"

static lade_status bytes_check(const char *call, uint64_t bytes) {
  return bytes < LADEI_SIZE_LIMIT
             ? LADE_OK
             : ladei_error_argument(call, "bytes", "less than 2^60", "%llu", (unsigned long long)bytes);
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/* The calling thread's counters for a block's node; NULL where there is no memory for them. */
static ladei_pinned_thread_counters *counters_for(ladei_pinned_thread_cache *cache, uint64_t word) {
  return cache == NULL ? NULL : ladei_pinned_thread_counters_of_make(cache, ladei_pinned_word_node(word));
}

static void alloc_count(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block,
                        size_t requested) {
  uint64_t word = ladei_pinned_block_word(block);
  bool own = cache != NULL; /* under the default policy: Note [Fast path] */
  size_t bytes = own ? ladei_pinned_block_bytes(block, word) : pool->policy->block_bytes(pool, block, word);
  unsigned class_index = own ? ladei_pinned_word_class(word) : pool->policy->counted_class(word, bytes);
  ladei_pinned_thread_counters *counters = counters_for(cache, word);
  ladei_pinned_in_use_add(pool, counters, ladei_pinned_word_node(word), class_index, requested, bytes);
  if (counters == NULL) return;
  ladei_pinned_class_counts_publish(pool, counters, class_index);
  if (class_index >= LADEI_PINNED_MAGAZINE_CLASSES && cache->keeps_large)
    ladei_pinned_ready_taken(cache, counters, block, class_index);
}

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

/* Pages that a block for a request has at least; more than a segment: exactly as many as asked. */
static inline size_t request_pages(const lade_pinned_pool *pool, size_t bytes) {
  return bytes > pool->settings.segment_bytes ? ladei_pinned_pages(bytes) : ladei_pinned_pages_per_block(bytes);
}

static __attribute__((noinline)) ladei_pinned_block *alloc_fast_large(lade_pinned_pool *pool,
                                                                      ladei_pinned_thread_cache *cache,
                                                                      ladei_pinned_thread_counters *counters,
                                                                      unsigned class_index, size_t bytes) {
  ladei_pinned_block *block = ladei_pinned_ready_take(cache, counters, ladei_pinned_pool_node(pool, counters->node),
                                                      class_index, ladei_pinned_pages(bytes), bytes);
  if (block == NULL) return NULL;
  class_index = ladei_pinned_word_class(ladei_pinned_block_word(block)); /* or the next one */
  ladei_pinned_class_counts_alloc(&counters->classes[class_index], class_index, bytes,
                                  ladei_pinned_block_pages(block) << LADEI_PINNED_PAGE_SHIFT);
  return block;
}

/* Note [Fast path]. For magazines it saves no registers. */
static inline __attribute__((always_inline)) ladei_pinned_block *alloc_fast(lade_pinned_pool *pool, uint64_t id,
                                                                            size_t bytes) {
  const ladei_pinned_thread_cache *found = ladei_pinned_thread_cache_fast(id);
  int32_t home = atomic_load_explicit(&pool->nodes.home, memory_order_acquire);
  if (found == NULL || home < 0 || bytes - 1 >= LADEI_PINNED_MAX_BYTES) return NULL;
  ladei_pinned_thread_cache *cache = ladei_tls.cache;
  ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, (unsigned)home);
  if (counters == NULL) return NULL;
  unsigned class_index = ladei_pinned_class_of(bytes);
  if (class_index >= LADEI_PINNED_MAGAZINE_CLASSES) return alloc_fast_large(pool, cache, counters, class_index, bytes);
  ladei_pinned_block *block = ladei_pinned_magazine_take(cache, &counters->classes[class_index]);
  if (block == NULL) return NULL;
  ladei_pinned_block_hand_out(block, bytes);
  ladei_pinned_class_counts_alloc(&counters->classes[class_index], class_index, bytes, 0);
  return block;
}

static ladei_pinned_request request_make(lade_pinned_pool *pool, size_t bytes, ladei_pinned_node *node) {
  ladei_pinned_request request = {.bytes = bytes, .node = node};
  request.class_index = ladei_pinned_class_of(bytes);
  request.exact = bytes > pool->settings.segment_bytes;
  request.pages = request.class_index < LADEI_PINNED_SMALL_CLASSES ? 0 : request_pages(pool, bytes);
  request.cache = ladei_pinned_call_cache(pool);
  ladei_pinned_call_answer(pool, request.cache);
  request.count = 1;
  request.counters = request.cache == NULL ? NULL : ladei_pinned_thread_counters_of_make(request.cache, node->index);
  if (request.counters != NULL && request.class_index < LADEI_PINNED_MAGAZINE_CLASSES) {
    ladei_pinned_thread_cache_missed(request.cache, &request.counters->classes[request.class_index]);
    if (ladei_pinned_pool_keeps_lists(pool))
      request.count = ladei_pinned_magazine_refill(pool, request.cache, request.counters, request.class_index);
  }
  return request;
}

/* Most misses look whether pending blocks are done; the less often, the longer nothing was. */
static void pending_look(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache) {
  enum { MOST_FRUITLESS = 6 };
  uint64_t done = 0;
  if (cache == NULL || !ladei_retire_shards_pending(pool->retire, ladei_pinned_retire_shard(pool, cache))) return;
  if (cache->poll_skip > 0) {
    cache->poll_skip--;
    return;
  }
  LADEI_PINNED_ASIDE(/* those blocks stay pending; this alloc does not need them */
                     ladei_retire_shards_buffer_poll(pool->retire, ladei_pinned_retire_shard(pool, cache),
                                                     &cache->retire_buffer, &done));
  cache->poll_fruitless = done > 0 ? 0 : cache->poll_fruitless + (cache->poll_fruitless < MOST_FRUITLESS ? 1 : 0);
  cache->poll_skip = (1u << cache->poll_fruitless) - 1;
}

/* A driver that refuses to take memory back is no reason not to hand out other memory. */
static void idle_look(lade_pinned_pool *pool) {
  if (pool->settings.max_idle_ns != 0) LADEI_PINNED_ASIDE(ladei_pinned_pool_age(pool));
}

static ladei_pinned_block *request_ready(const ladei_pinned_request *request) {
  if (request->counters == NULL) return NULL;
  return ladei_pinned_ready_take(request->cache, request->counters, request->node, request->class_index,
                                 ladei_pinned_pages(request->bytes), request->bytes);
}

/* Blocks of a seek besides the one that is handed out. */
static void rest_put(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *rest) {
  if (rest == NULL) return;
  while (rest != NULL) {
    ladei_pinned_block *block = rest;
    rest = ladei_pinned_block_next(block);
    pool->policy->put(pool, cache, block);
  }
  ladei_pinned_transit_end(ladei_pinned_pool_transit(pool, cache));
  ladei_pinned_call_answer(pool, cache);
}

/* With room for the guard. Blocks of 1 KiB and 2 KiB begin at a multiple of that, so their rooms are of the next power
 * of two. */
static size_t debug_bytes(size_t bytes) {
  bool whole = bytes == LADEI_KIB || bytes == 2 * LADEI_KIB;
  return bytes + (whole ? bytes : LADEI_PINNED_DEBUG_GUARD_BYTES);
}

static lade_status block_alloc(lade_pinned_pool *pool, size_t bytes, uint64_t ahead, ladei_pinned_node *node,
                               const char *call, void **out) {
  if (bytes > LADEI_PINNED_MAX_BYTES - LADEI_PINNED_DEBUG_GUARD_BYTES) {
    return ladei_error(LADE_ERR_LIMIT, 0, "%s: bytes is %zu; expected at most %zu, the size of the largest block", call,
                       bytes, LADEI_PINNED_MAX_BYTES - LADEI_PINNED_DEBUG_GUARD_BYTES);
  }
  ladei_pinned_request request = request_make(pool, pool->debug != NULL ? debug_bytes(bytes) : bytes, node);
  request.ahead = ahead;
  pending_look(pool, request.cache);
  idle_look(pool);
  ladei_pinned_block *block = request_ready(&request), *rest = NULL;
  bool ready = block != NULL;
  if (!ready) {
    ladei_log(LADE_LOG_DEBUG, "pinned pool %llu: %zu bytes: no block ready", (unsigned long long)pool->id, bytes);
    lade_status status = pool->policy->seek(pool, &request, &block);
    if (status != LADE_OK) {
      ladei_log_flush();
      return status;
    }
    rest = ladei_pinned_block_next(block);
    if (pool->debug != NULL) {
      ladei_pinned_debug_hand_out(pool->debug, (unsigned char *)ladei_pinned_block_address(block), bytes,
                                  pool->policy->block_bytes(pool, block, ladei_pinned_block_word(block)));
    }
    ladei_pinned_block_hand_out(block, bytes);
  }
  alloc_count(pool, request.cache, block, bytes);
  *out = (void *)ladei_pinned_block_address(block);
  rest_put(pool, request.cache, rest);
  if (!ready) ladei_log_flush(); /* not in the transit that rest_put ends: a callback may wait for memory */
  return LADE_OK;
}

/* Records the room under the cap and the size of a block for the request. */
static void oom_record(const lade_pinned_pool *pool, ladei_pinned_history *history, size_t bytes) {
  uint64_t reserved = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  uint64_t left = reserved < pool->settings.max_bytes ? pool->settings.max_bytes - reserved : 0;
  unsigned class_index = ladei_pinned_class_of(bytes);
  size_t rounded = class_index < LADEI_PINNED_SMALL_CLASSES ? ladei_pinned_class_bytes(class_index)
                                                            : request_pages(pool, bytes) << LADEI_PINNED_PAGE_SHIFT;
  ladei_pinned_history_event(history, LADE_DEVICE_OOM, left, rounded);
}

/* Size of a caller's block, by its address, which a hand-out without a history need not know. */
static size_t handed_out_bytes(lade_pinned_pool *pool, const void *pointer) {
  const ladei_pinned_lookup found = ladei_pinned_lookup_find(&pool->map, pointer);
  return found.block == NULL ? 0 : ladei_pinned_segment_block_bytes(found.segment, found.block, found.word);
}

/* Out of line: requests that succeed pay nothing for it. */
static __attribute__((noinline)) void refuse(lade_pinned_pool *pool, ladei_pinned_operation *own, size_t bytes,
                                             lade_status status) {
  if (own->history.history != NULL && bytes <= LADEI_PINNED_MAX_BYTES) oom_record(pool, own->history.history, bytes);
  LADEI_PROBE1(pinned_oom, bytes);
  (void)ladei_error_out_of_memory(status);
}

static lade_status alloc_from(lade_pinned_pool *pool, size_t bytes, uint64_t ahead, ladei_pinned_node *node,
                              const char *call, void **out) {
  ladei_pinned_operation own;
  ladei_pinned_operation_begin(pool, LADE_CONTEXT_STATE, &own);
  lade_status status = block_alloc(pool, bytes, ahead, node, call, out);
  if (status == LADE_OK) {
    LADEI_PROBE2(pinned_alloc, *out, bytes);
    if (own.history.history != NULL)
      ladei_pinned_history_alloc(&own.history, (uintptr_t)*out, bytes, handed_out_bytes(pool, *out));
  } else if (status == LADE_ERR_LIMIT || status == LADE_ERR_OUT_OF_PINNED_MEMORY) {
    refuse(pool, &own, bytes, status);
  }
  ladei_pinned_operation_end(pool, &own, LADEI_LATENCY_ALLOC);
  return status;
}

/* Note [Fast path], with history or latencies on: the block is taken as ever, and recorded before anybody knows of it.
 * NULL: they are off, or another way is to be tried. */
static void *alloc_attended(lade_pinned_pool *pool, size_t bytes) {
  ladei_pinned_history *history = ladei_pinned_pool_recording(pool);
  ladei_pinned_latency_mark mark = ladei_pinned_latency_begin(pool);
  if (history == NULL && !mark.counted) return NULL;
  ladei_pinned_block *block = alloc_fast(pool, pool->fast.cache_id, bytes);
  if (block == NULL) return NULL;
  uintptr_t address = ladei_pinned_block_address(block);
  LADEI_PROBE2(pinned_alloc, address, bytes);
  if (history != NULL) {
    ladei_pinned_history_call own;
    ladei_pinned_history_begin(history, LADE_CONTEXT_STATE, &own);
    ladei_pinned_history_alloc(&own, address, bytes, ladei_pinned_block_bytes(block, ladei_pinned_block_word(block)));
    ladei_pinned_history_end(&own);
  }
  ladei_pinned_latency_end(pool, mark, LADEI_LATENCY_ALLOC);
  return (void *)address;
}

/* Where a block is to lie. */
typedef struct block_place {
  bool is_node; /* `number` is the OS index of a NUMA node, -1: any; otherwise that of a device, to be near to it */
  int number;
} block_place;

static lade_status alloc_at(lade_pinned_pool *pool, size_t bytes, uint64_t ahead, block_place where, const char *call,
                            void **out) {
  ladei_pinned_node *node;
  LADEI_TRY(pool == NULL || out == NULL ? LADE_OK : bytes_check(call, bytes));
  LADEI_TRY(ladei_pinned_enter_with(pool, out != NULL, "out", call));
  if (bytes == 0) {
    *out = NULL;
    return LADE_OK;
  }
  LADEI_TRY(where.is_node ? ladei_pinned_pool_node_of_os(pool, where.number, call, &node)
                          : ladei_pinned_pool_node_of_device(pool, where.number, call, &node));
  return alloc_from(pool, bytes, ahead, node, call, out);
}

/* All that is not on the fast path. Apart, so that this pays nothing for it. */
static __attribute__((noinline)) lade_status alloc_any(lade_pinned_pool *pool, size_t bytes, void **out) {
  bool given = pool != NULL && out != NULL;
  void *block = given ? alloc_attended(pool, bytes) : NULL;
  const block_place near = {.number = pool == NULL ? 0 : pool->settings.device};
  if (block == NULL) return alloc_at(pool, bytes, 0, near, "lade_pinned_alloc", out);
  *out = block;
  return LADE_OK;
}

/* Note [Fast path] alone. False: another way is to be tried. */
static inline __attribute__((always_inline)) bool alloc_ready(lade_pinned_pool *pool, size_t bytes, void **out) {
  const ladei_pinned_block *block = alloc_fast(pool, atomic_load_explicit(&pool->fast.id, memory_order_relaxed), bytes);
  if (block == NULL) return false;
  uintptr_t address = ladei_pinned_block_address(block);
  LADEI_PROBE2(pinned_alloc, address, bytes);
  *out = (void *)address;
  return true;
}

lade_status lade_pinned_alloc(lade_pinned_pool *pool, size_t bytes, void **out) {
  bool given = pool != NULL && out != NULL;
  return given && alloc_ready(pool, bytes, out) ? LADE_OK : alloc_any(pool, bytes, out);
}

lade_status lade_pinned_alloc_ready(lade_pinned_pool *pool, size_t bytes, void **out) {
  if (pool == NULL || out == NULL) return ladei_error_null(__func__, pool == NULL ? "pool" : "out");
  return alloc_ready(pool, bytes, out) ? LADE_OK : LADE_NOT_READY;
}

lade_status lade_pinned_alloc_near(lade_pinned_pool *pool, size_t bytes, int device, void **out) {
  if (pool != NULL && device == pool->settings.device) return lade_pinned_alloc(pool, bytes, out);
  return alloc_at(pool, bytes, 0, (block_place){false, device}, __func__, out);
}

lade_status ladei_pinned_alloc_ahead(lade_pinned_pool *pool, size_t bytes, uint64_t ahead, int device, void **out) {
  return alloc_at(pool, bytes, ahead, (block_place){false, device}, "lade_pinned_alloc_near", out);
}

lade_status ladei_pinned_alloc_on(lade_pinned_pool *pool, size_t bytes, int numa_node, void **out) {
  return alloc_at(pool, bytes, 0, (block_place){true, numa_node}, __func__, out);
}

/* ---- Blocks in use ----------------------------------------------------------------------------------------------- */

static lade_status foreign(const void *pointer, const char *call) {
  return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "%s: pointer is %p; expected an address in this pool's memory", call,
                     pointer);
}

static lade_status inside(const void *pointer, const ladei_pinned_lookup *found, const char *call) {
  return ladei_error(LADE_ERR_NOT_BLOCK_START, 0, "%s: pointer is %p, inside a block; expected its start %p", call,
                     pointer, (void *)found->address);
}

/* The block in use that starts at `pointer`, most likely in the segment that the thread's last one was in. */
static inline ladei_pinned_block *block_find(const lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                             const void *pointer, uint64_t *out_word) {
  ladei_pinned_block *block = ladei_pinned_lookup_find_start(cache->recent, (uintptr_t)pointer, out_word);
  if (block == NULL) {
    cache->recent = ladei_pagemap_get(&pool->map, pointer);
    block = ladei_pinned_lookup_find_start(cache->recent, (uintptr_t)pointer, out_word);
  }
  return block;
}

/* The block in use that `pointer` lies in. */
static lade_status in_use_find(lade_pinned_pool *pool, const void *pointer, const char *call,
                               ladei_pinned_lookup *out) {
  *out = ladei_pinned_lookup_find(&pool->map, pointer);
  if (out->segment == NULL) return foreign(pointer, call);
  if (out->block == NULL || ladei_pinned_word_state(out->word) != LADEI_PINNED_BLOCK_IN_USE) {
    lade_status status = ladei_error(LADE_ERR_DOUBLE_FREE, 0,
                                     "%s: pointer is %p, in free memory; expected a block in use", call, pointer);
    return pool->debug == NULL ? status : ladei_pinned_debug_explain(pool->debug, status, (uintptr_t)pointer);
  }
  return LADE_OK;
}

/* ---- Free -------------------------------------------------------------------------------------------------------- */

/* Note [Fast path] */
static inline __attribute__((always_inline)) bool free_fast(lade_pinned_pool *pool, uint64_t id, void *pointer,
                                                            ladei_pinned_history_call *history) {
  ladei_pinned_thread_cache *cache = ladei_pinned_thread_cache_fast(id);
  if (cache == NULL) return false;
  uint64_t word;
  ladei_pinned_block *block = block_find(pool, cache, pointer, &word);
  if (block == NULL) return false;
  ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, ladei_pinned_word_node(word));
  if (counters == NULL) return false;
  /* Read before the block is anybody's. */
  unsigned class_index = ladei_pinned_word_class(word);
  size_t requested = ladei_pinned_block_requested(block), bytes = ladei_pinned_block_bytes(block, word);
  bool noted = ladei_retire_ticket_noted(&block->ticket);
  ladei_pinned_block_state freed = noted ? LADEI_PINNED_BLOCK_PENDING : LADEI_PINNED_BLOCK_CACHED;
  if (history != NULL) ladei_pinned_history_free_enter(history, (uintptr_t)pointer);
  bool won = ladei_pinned_block_word_swap(block, word, ladei_pinned_word_with_state(word, freed));
  if (history != NULL) ladei_pinned_history_free_leave(history, (uintptr_t)pointer, requested, bytes, won, !noted);
  if (!won) return false;
  LADEI_PROBE1(pinned_free, pointer);
  ladei_pinned_class_counts_free(&counters->classes[class_index], class_index, requested, bytes);
  if (noted) {
    ladei_pinned_default_retire(pool, cache, block, word, bytes, false);
  } else if (!ladei_pinned_word_is_in_slot(word)) {
    ladei_pinned_node *home = ladei_pinned_pool_node(pool, ladei_pinned_word_node(word));
    if (ladei_pinned_ready_put(cache, counters, home, block, class_index))
      return true; /* so the thread is not called */
    ladei_pinned_default_overflow(pool, cache, counters, block);
  }
  ladei_pinned_call_answer(pool, cache);
  return true;
}

/* A block that its user has given up, with its record's values from before it could become another's. */
typedef struct freed_block {
  ladei_pinned_block *block;
  uint64_t word;
  size_t requested_bytes, block_bytes;
} freed_block;

/* Checks everything. On success the block is out of IN_USE: PENDING if streams are noted, otherwise CACHED. */
static lade_status block_give_up(lade_pinned_pool *pool, void *pointer, const char *call,
                                 ladei_pinned_history_call *history, freed_block *out) {
  for (;;) {
    ladei_pinned_lookup found;
    LADEI_TRY(in_use_find(pool, pointer, call, &found));
    if ((uintptr_t)pointer != found.address) return inside(pointer, &found, call);
    bool noted = ladei_retire_ticket_noted(&found.block->ticket);
    out->block = found.block;
    out->word =
        ladei_pinned_word_with_state(found.word, noted ? LADEI_PINNED_BLOCK_PENDING : LADEI_PINNED_BLOCK_CACHED);
    out->requested_bytes = ladei_pinned_block_requested(found.block);
    out->block_bytes = ladei_pinned_segment_block_bytes(found.segment, found.block, found.word);
    if (pool->debug != NULL) ladei_pinned_debug_take_back(pool->debug, pointer, out->requested_bytes, out->block_bytes);
    ladei_pinned_history_free_enter(history, found.address);
    bool won = ladei_pinned_block_word_swap(found.block, found.word, out->word);
    ladei_pinned_history_free_leave(history, found.address, out->requested_bytes, out->block_bytes, won, !noted);
    if (won) {
      LADEI_PROBE1(pinned_free, pointer);
      return LADE_OK;
    }
    /* Taken out of its slot, or freed by another thread, meanwhile: the next look shows which. */
  }
}

static void free_count(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, const freed_block *freed) {
  unsigned class_index = pool->policy->counted_class(freed->word, freed->block_bytes);
  ladei_pinned_in_use_sub(pool, counters_for(cache, freed->word), ladei_pinned_word_node(freed->word), class_index,
                          freed->requested_bytes, freed->block_bytes);
}

static lade_status block_take_back(lade_pinned_pool *pool, void *pointer, bool quiet, const char *call,
                                   ladei_pinned_history_call *history) {
  freed_block freed = {NULL, 0, 0, 0};
  LADEI_TRY(block_give_up(pool, pointer, call, history, &freed));
  ladei_pinned_thread_cache *cache = ladei_pinned_call_cache(pool);
  free_count(pool, cache, &freed);
  if (ladei_pinned_word_state(freed.word) == LADEI_PINNED_BLOCK_PENDING)
    pool->policy->retire(pool, cache, freed.block, freed.word, freed.block_bytes, quiet);
  else if (!ladei_pinned_word_is_in_slot(freed.word))
    pool->policy->put(pool, cache, freed.block);
  ladei_pinned_call_answer(pool, cache);
  return LADE_OK;
}

static lade_status block_free(lade_pinned_pool *pool, void *pointer, bool quiet, const char *call) {
  ladei_pinned_operation own;
  lade_status status = LADE_OK;
  if (pointer == NULL) return LADE_OK;
  ladei_pinned_operation_begin(pool, LADE_CONTEXT_ALL, &own);
  bool recorded = own.history.history != NULL, attended = recorded || own.mark.counted;
  if (quiet || !attended || !free_fast(pool, pool->fast.cache_id, pointer, recorded ? &own.history : NULL))
    status = block_take_back(pool, pointer, quiet, call, &own.history);
  ladei_pinned_operation_end(pool, &own, LADEI_LATENCY_FREE);
  return status;
}

static __attribute__((noinline)) lade_status free_any(lade_pinned_pool *pool, void *pointer) {
  LADEI_TRY(ladei_pinned_enter(pool, "lade_pinned_free"));
  return block_free(pool, pointer, false, "lade_pinned_free");
}

lade_status lade_pinned_free(lade_pinned_pool *pool, void *pointer) {
  if (pool != NULL && free_fast(pool, atomic_load_explicit(&pool->fast.id, memory_order_relaxed), pointer, NULL))
    return LADE_OK;
  return free_any(pool, pointer);
}

lade_status lade_pinned_free_quiet(lade_pinned_pool *pool, void *pointer) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  return block_free(pool, pointer, true, __func__);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static lade_status freed_meanwhile(const void *pointer, const char *call) {
  return ladei_error(LADE_ERR_DOUBLE_FREE, 0,
                     "%s: pointer is %p, a block that another thread has freed meanwhile; expected a block in use",
                     call, pointer);
}

static lade_status block_note(lade_pinned_pool *pool, void *pointer, lade_stream stream, unsigned flags,
                              const char *call) {
  ladei_pinned_lookup found = {NULL, NULL, 0, 0};
  lade_status status = LADE_OK;
  LADEI_TRY(ladei_pinned_enter(pool, call));
  ladei_pinned_thread_cache *cache = ladei_pinned_thread_cache_fast(pool->fast.cache_id);
  found.block = cache == NULL ? NULL : block_find(pool, cache, pointer, &found.word);
  if (found.block == NULL) status = in_use_find(pool, pointer, call, &found);
  if (status == LADE_OK) {
    status =
        ladei_retire_shards_note(pool->retire, ladei_pinned_retire_shard(pool, cache),
                                 cache == NULL ? NULL : &cache->retire_buffer, &found.block->ticket, stream, flags);
  }
  if (status == LADE_OK && !ladei_pinned_word_is_same(ladei_pinned_block_word(found.block), found.word))
    return freed_meanwhile(pointer, call);
  return status;
}

static __attribute__((noinline)) lade_status record_any(lade_pinned_pool *pool, void *pointer, lade_stream stream) {
  return block_note(pool, pointer, stream, 0, "lade_pinned_record_event");
}

/* Note [Fast path]: a block in the segment of the thread's last one, with no note or one of the thread's shard. A
 * repeated note changes nothing, so the other way begins anew. */
lade_status lade_pinned_record_event(lade_pinned_pool *pool, void *pointer, lade_stream stream) {
  uint64_t word;
  ladei_pinned_thread_cache *cache = pool == NULL ? NULL : ladei_pinned_thread_cache_fast(pool->fast.cache_id);
  ladei_pinned_block *block =
      cache == NULL ? NULL : ladei_pinned_lookup_find_start(cache->recent, (uintptr_t)pointer, &word);
  lade_status status = block == NULL
                           ? LADEI_RETIRE_ELSEWHERE
                           : ladei_retire_buffer_try_note(cache->retire, &cache->retire_buffer, &block->ticket, stream);
  if (status == LADEI_RETIRE_ELSEWHERE) return record_any(pool, pointer, stream);
  return status != LADE_OK || ladei_pinned_word_is_same(ladei_pinned_block_word(block), word)
             ? status
             : freed_meanwhile(pointer, __func__);
}

lade_status lade_pinned_record_use(lade_pinned_pool *pool, void *pointer, lade_stream stream) {
  return LADEI_HELD(block_note(pool, pointer, stream, LADEI_NOTE_NOW, __func__));
}

lade_status lade_pinned_free_after(lade_pinned_pool *pool, void *pointer, lade_event event) {
  ladei_pinned_lookup found;
  LADEI_TRY(ladei_pinned_enter_with(pool, pointer == NULL || event != NULL, "event", __func__));
  if (pointer == NULL) return LADE_OK;
  lade_status status = in_use_find(pool, pointer, __func__, &found);
  if (status == LADE_OK && (uintptr_t)pointer != found.address) status = inside(pointer, &found, __func__);
  if (status == LADE_OK) {
    ladei_retire *shard = ladei_pinned_retire_shard(pool, ladei_pinned_thread_cache_fast(pool->fast.cache_id));
    status = ladei_retire_shards_note_event(pool->retire, shard, &found.block->ticket, event);
  }
  return status != LADE_OK ? status : block_free(pool, pointer, false, __func__);
}

lade_status lade_pinned_stream_retire(lade_pinned_pool *pool, lade_stream stream) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  return LADEI_HELD(ladei_retire_shards_stream_retire(pool->retire, stream));
}

static lade_status events_process(lade_pinned_pool *pool) {
  lade_status polled = ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, NULL);
  lade_status aged = ladei_pinned_pool_age(pool);
  lade_status answered = ladei_pinned_pool_answer(pool);
  return polled != LADE_OK ? polled : aged != LADE_OK ? aged : answered;
}

lade_status lade_pinned_process_events(lade_pinned_pool *pool) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  return LADEI_HELD(events_process(pool));
}

/* ---- Giving back, finding ---------------------------------------------------------------------------------------- */

/* Blocks whose event failed come back only if their streams are waited for; those streams alone. */
static lade_status quarantine_end(lade_pinned_pool *pool) {
  (void)ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, NULL); /* a failure here is a quarantine */
  lade_status status = ladei_retire_shards_end_quarantine(pool->retire);
  pool->policy->polled(pool);
  return status == LADE_ERR_CAPTURE ? LADE_OK : status;
}

static lade_status cache_empty(lade_pinned_pool *pool) {
  lade_status waited = quarantine_end(pool), status = ladei_pinned_pool_trim(pool, 0);
  return status != LADE_OK ? status : waited;
}

lade_status lade_pinned_empty_cache(lade_pinned_pool *pool) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  return LADEI_HELD(cache_empty(pool));
}

static lade_status cache_trim(lade_pinned_pool *pool, uint64_t keep_bytes) {
  lade_status polled = ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, NULL);
  lade_status status = ladei_pinned_pool_trim(pool, keep_bytes);
  return status != LADE_OK ? status : polled;
}

lade_status lade_pinned_trim(lade_pinned_pool *pool, uint64_t keep_bytes) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  return LADEI_HELD(cache_trim(pool, keep_bytes));
}

static lade_status reserve_near(lade_pinned_pool *pool, uint64_t bytes, int device, const char *call) {
  ladei_pinned_node *node;
  LADEI_TRY(ladei_pinned_pool_node_of_device(pool, device, call, &node));
  return ladei_error_out_of_memory(ladei_pinned_pool_reserve(pool, node, bytes));
}

lade_status lade_pinned_reserve(lade_pinned_pool *pool, uint64_t bytes, int device) {
  LADEI_TRY(pool == NULL ? LADE_OK : bytes_check(__func__, bytes));
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  return LADEI_HELD(reserve_near(pool, bytes, device, __func__));
}

/* Fills `info` from the records of the place that was found. */
static void info_read(const lade_pinned_pool *pool, const ladei_pinned_lookup *found, const void *pointer,
                      lade_pinned_info *info) {
  info->state = LADE_PINNED_CACHED;
  info->numa_node = ladei_pinned_pool_node(pool, ladei_pinned_segment_node(found->segment))->os_index;
  info->source = atomic_load_explicit(&found->segment->source, memory_order_relaxed);
  info->chunk_bytes = ladei_pinned_segment_in_chunks(found->segment) ? pool->sources.register_chunk_bytes : 0;
  if (found->block == NULL) { /* in the midst of being split or coalesced: its page is all that can be said */
    info->base = (void *)((uintptr_t)pointer & ~(uintptr_t)(LADEI_PINNED_PAGE_BYTES - 1));
    info->bytes = LADEI_PINNED_PAGE_BYTES;
    return;
  }
  info->base = (void *)found->address;
  info->bytes = ladei_pinned_segment_block_bytes(found->segment, found->block, found->word);
  info->requested_bytes = ladei_pinned_block_requested_by(found->block, found->word, info->bytes);
  if (ladei_pinned_word_state(found->word) == LADEI_PINNED_BLOCK_PENDING) info->state = LADE_PINNED_PENDING;
  if (info->requested_bytes > 0) info->state = LADE_PINNED_IN_USE;
}

lade_status lade_pinned_find(lade_pinned_pool *pool, const void *pointer, lade_pinned_info *out_info) {
  lade_pinned_info info;
  LADEI_TRY(ladei_pinned_enter_with(pool, out_info != NULL, "out_info", __func__));
  ladei_pinned_lookup found, again = ladei_pinned_lookup_find(&pool->map, pointer);
  do { /* others may hand the memory out meanwhile: all that is told was so at one moment */
    found = again;
    if (found.segment == NULL) return foreign(pointer, __func__);
    lade_pinned_info_init(&info);
    info_read(pool, &found, pointer, &info);
    ladei_switch_point("found", 0);
    again = ladei_pinned_lookup_find(&pool->map, pointer);
  } while (!ladei_pinned_lookup_is_same(&found, &again));
  info.contiguous_bytes = ladei_pinned_source_contiguous(&info, (uint64_t)((const char *)pointer - (char *)info.base));
  return ladei_stats_write("lade_pinned_info", &info, sizeof info, out_info);
}
