/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default policy.
 *
 *   put       ready with the thread, or in the depot or a bin of the node, or among the node's free blocks
 *             (ready.h)
 *   retire    the thread's buffer in runtime/retire, or a queue there; PENDING until blocks_retired
 *
 * D1  A block counts as pending from before runtime/retire gets its ticket until just before others can have it: until
 *     the thread leaves the lock inside which it puts the block into its magazine, or begins to hand it on in a
 *     transit.
 * Locks: none here; those of the parts that are called.
 */
#include "host/policies/policy_default.h"

#include <assert.h>

#include "host/caches/ready.h"
#include "host/grow/seek.h"
#include "host/state/nodes.h"
#include "host/state/thread_caches.h"
#include "host/state/usage.h"

static lade_status policy_open(lade_pinned_pool *pool) {
  (void)pool;
  return LADE_OK;
}

static void policy_close(lade_pinned_pool *pool) { (void)pool; }

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static size_t block_bytes(const lade_pinned_pool *pool, const ladei_pinned_block *block, uint64_t word) {
  (void)pool;
  return ladei_pinned_block_bytes(block, word);
}

static unsigned counted_class(uint64_t word, size_t bytes) {
  (void)bytes;
  return ladei_pinned_word_class(word);
}

/* ---- Free blocks ------------------------------------------------------------------------------------------------- */

/* In a transit of blocks, which keeps the depot from being emptied meanwhile. */
static void overflow_share(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                           ladei_pinned_thread_counters *counters, unsigned class_index, ladei_pinned_block *block) {
  ladei_pinned_pool_share(pool, ladei_pinned_magazine_make_room(pool, cache, counters, class_index));
  if (ladei_pinned_magazine_put(cache, &counters->classes[class_index], block)) return;
  ladei_pinned_block_next_set(block, NULL);
  ladei_pinned_pool_share(pool, block);
}

void ladei_pinned_default_overflow(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                   ladei_pinned_thread_counters *counters, ladei_pinned_block *block) {
  unsigned class_index = ladei_pinned_word_class(ladei_pinned_block_word(block));
  bool small = class_index < LADEI_PINNED_MAGAZINE_CLASSES;
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, cache);
  ladei_pinned_class_counts_publish_frees(pool, counters, class_index);
  if (small) ladei_pinned_thread_cache_missed(cache, &counters->classes[class_index]);
  if (small && ladei_pinned_pool_keeps_lists(pool) && ladei_pinned_transit_try_begin(transit)) {
    overflow_share(pool, cache, counters, class_index, block);
    ladei_pinned_transit_end(transit);
  } else {
    ladei_pinned_pool_put_one(pool, block);
  }
}

/* The calling thread's counters for a block's node; NULL where there is no memory for them. */
static ladei_pinned_thread_counters *counters_for(ladei_pinned_thread_cache *cache, const ladei_pinned_block *block) {
  return cache == NULL
             ? NULL
             : ladei_pinned_thread_counters_of_make(cache, ladei_pinned_word_node(ladei_pinned_block_word(block)));
}

/* A CACHED block, in no slot, becomes ready, or goes back to its node. */
static void block_put(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  ladei_pinned_node *node = ladei_pinned_pool_node(pool, ladei_pinned_word_node(word));
  ladei_pinned_thread_counters *counters = counters_for(cache, block);
  if (pool->debug != NULL)
    ladei_pinned_debug_poison((void *)ladei_pinned_block_address(block), ladei_pinned_block_bytes(block, word));
  if (counters == NULL)
    ladei_pinned_pool_put_one(pool, block);
  else if (!ladei_pinned_ready_put(cache, counters, node, block, ladei_pinned_word_class(word)))
    ladei_pinned_default_overflow(pool, cache, counters, block);
}

/* ---- Pending blocks ---------------------------------------------------------------------------------------------- */

/* PENDING -> CACHED -> ready. A block in a slot is ready, and perhaps another thread's, by the change of its word. One
 * that is in none is the caller's alone and cannot get into one before it is CACHED: no locked instruction is
 * needed. */
static void block_unretire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  assert(ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_PENDING); /* D1 */
  while (ladei_pinned_word_is_in_slot(word)) {
    if (ladei_pinned_block_word_swap(block, word, ladei_pinned_word_with_state(word, LADEI_PINNED_BLOCK_CACHED)))
      return;
    word = ladei_pinned_block_word(block); /* taken out of its slot meanwhile */
  }
  ladei_pinned_block_word_set(block, ladei_pinned_word_with_state(word, LADEI_PINNED_BLOCK_CACHED));
  block_put(pool, cache, block);
}

/* The thread's counters of a node if it has them; otherwise those shared by threads without any. */
static inline ladei_pinned_thread_counters *counters_there(const ladei_pinned_thread_cache *cache, unsigned node) {
  return cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, node);
}

/* The block has become pending, and the thread's buffer has not got its ticket, or there is nothing to wait for. */
static __attribute__((noinline)) void retire_slowly(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                                    ladei_pinned_block *block, ladei_retire_added added, bool quiet) {
  uint64_t word = ladei_pinned_block_word(block); /* the caller's alone until it is added */
  size_t bytes = ladei_pinned_block_bytes(block, word);
  assert(ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_PENDING); /* D1: before the ticket is anywhere */
  if (added == LADEI_RETIRE_ADDED_NOT) {
    ladei_retire *shard = ladei_pinned_retire_shard(pool, cache);
    if (ladei_retire_shards_add_anywhere(pool->retire, shard, &block->ticket, quiet)) return;
  }
  unsigned node = ladei_pinned_word_node(word), class_index = ladei_pinned_word_class(word);
  ladei_pinned_history_done(ladei_pinned_pool_recording(pool), ladei_pinned_block_address(block),
                            ladei_pinned_block_requested(block), bytes);
  ladei_pinned_pending_sub(pool, counters_there(cache, node), node, class_index, (ladei_pinned_amount){1, bytes});
  block_unretire(pool, cache, block);
  ladei_pinned_call_answer(pool, cache);
}

void ladei_pinned_default_retire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block,
                                 uint64_t word, size_t bytes, bool quiet) {
  unsigned node = ladei_pinned_word_node(word);
  ladei_retire_added added = LADEI_RETIRE_ADDED_NOT;
  ladei_pinned_pending_add(pool, counters_there(cache, node), node, ladei_pinned_word_class(word), bytes);
  if (cache != NULL && !quiet)
    added = ladei_retire_buffer_try_add(cache->retire, &cache->retire_buffer, &block->ticket);
  if (added != LADEI_RETIRE_ADDED_PENDING) retire_slowly(pool, cache, block, added, quiet);
}

static uint64_t ticket_word(ladei_retire_ticket *ticket) {
  return ladei_pinned_block_word(ladei_pinned_block_of_ticket(ticket));
}

/*
 * PENDING -> CACHED -> the thread's magazine, of the first blocks of a list, as far as they are alike and fit. Returns
 * the others. Inside the asymmetric lock: a look for the blocks finds them pending yet, or in the magazine.
 */
static ladei_retire_ticket *list_to_magazine(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                             ladei_retire_ticket *list) {
  uint64_t word = ticket_word(list), blocks = 0;
  unsigned node = ladei_pinned_word_node(word), class_index = ladei_pinned_word_class(word);
  ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, node);
  if (counters == NULL || class_index >= LADEI_PINNED_MAGAZINE_CLASSES || !ladei_asym_lock_enter(&cache->asym_lock))
    return list;
  ladei_pinned_class_counts *counts = &counters->classes[class_index];
  while (list != NULL && ladei_pinned_word_is_alike(ticket_word(list), word) &&
         ladei_pinned_magazine_fits(cache, counts)) {
    ladei_pinned_block *block = ladei_pinned_block_of_ticket(ladei_retire_ticket_take(&list));
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    ladei_pinned_magazine_push(cache, counts, block);
    blocks++;
  }
  if (blocks > 0) {
    ladei_pinned_amount amount = {blocks, blocks * counts->block_bytes};
    ladei_pinned_pending_sub(pool, counters, node, class_index, amount);
  }
  ladei_asym_lock_leave(&cache->asym_lock);
  return list;
}

/* The blocks of a list are pending no longer; their records say so later. */
static void list_pending_sub(lade_pinned_pool *pool, const ladei_pinned_thread_cache *cache,
                             ladei_retire_ticket *list) {
  ladei_pinned_history *history = ladei_pinned_pool_recording(pool);
  while (list != NULL) {
    uint64_t word = ticket_word(list);
    ladei_pinned_amount amount = {0, 0};
    do { /* mostly they are all alike */
      const ladei_pinned_block *block = ladei_pinned_block_of_ticket(list);
      size_t bytes = ladei_pinned_block_bytes(block, word);
      if (history != NULL)
        ladei_pinned_history_done(history, ladei_pinned_block_address(block), ladei_pinned_block_requested(block),
                                  bytes);
      amount.blocks++;
      amount.bytes += bytes;
      list = list->next;
    } while (list != NULL && ladei_pinned_word_is_alike(ticket_word(list), word));
    unsigned node = ladei_pinned_word_node(word);
    ladei_pinned_pending_sub(pool, counters_there(cache, node), node, ladei_pinned_word_class(word), amount);
  }
}

/* Blocks of any kind: neither pending nor where a request finds them, for some moments. */
static void list_unretire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_retire_ticket *list) {
  ladei_pinned_transit *transit = ladei_pinned_pool_transit(pool, cache);
  ladei_pinned_transit_begin(transit);
  list_pending_sub(pool, cache, list);
  while (list != NULL) block_unretire(pool, cache, ladei_pinned_block_of_ticket(ladei_retire_ticket_take(&list)));
  ladei_pinned_transit_end(transit);
}

static void blocks_retired(void *user, ladei_retire_ticket *list) {
  lade_pinned_pool *pool = user;
  ladei_pinned_thread_cache *cache = ladei_pinned_background_is_self() ? NULL : ladei_pinned_call_cache(pool);
  bool quick = cache != NULL && ladei_pinned_pool_recording(pool) == NULL; /* a history has locks */
  for (const ladei_retire_ticket *before = NULL; quick && list != NULL && list != before;) {
    before = list;
    list = list_to_magazine(pool, cache, list);
  }
  if (list != NULL) list_unretire(pool, cache, list);
  ladei_pinned_call_answer(pool, cache);
}

static void streams_polled(lade_pinned_pool *pool) { (void)pool; }

const ladei_pinned_policy ladei_pinned_policy_default = {
    .uses_thread_caches = true,
    .sources = LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER | LADE_PINNED_SOURCE_POOL,
    .open = policy_open,
    .close = policy_close,
    .block_bytes = block_bytes,
    .counted_class = counted_class,
    .seek = ladei_pinned_pool_seek,
    .put = block_put,
    .retire = ladei_pinned_default_retire,
    .retired = blocks_retired,
    .polled = streams_polled,
};
