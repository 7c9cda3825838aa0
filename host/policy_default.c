/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default policy.
 *
 *   put       ready with the thread, else in a bin of the node, else among the node's free blocks (ready.h)
 *   retire    the thread's buffer in runtime/retire, or a queue there; PENDING until blocks_retired
 *
 * D1  A block counts as pending from before runtime/retire gets its ticket until just before it is handed on.
 * Locks: none here; those of the parts that are called.
 */
#include "host/policy_default.h"

#include "host/memory.h"
#include "host/nodes.h"
#include "host/ready.h"
#include "host/thread_caches.h"
#include "host/usage.h"

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

void ladei_pinned_default_overflow(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                   ladei_pinned_thread_counters *counters, ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  unsigned class_index = ladei_pinned_word_class(word);
  ladei_pinned_class_counts_publish_frees(pool, counters, class_index);
  if (class_index < LADEI_PINNED_MAGAZINE_CLASSES && pool->magazine_bytes >= LADEI_MIB &&
      ladei_pinned_transit_try_begin(&pool->cap_wait.blocks)) {
    ladei_pinned_pool_put(pool, ladei_pinned_magazine_make_room(pool, cache, counters, class_index));
    ladei_pinned_transit_end(&pool->cap_wait.blocks);
    if (ladei_pinned_magazine_put(cache, &counters->classes[class_index], block)) return;
  }
  ladei_pinned_pool_put_one(pool, block);
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

/* PENDING -> CACHED -> ready. A block in a slot is ready, and perhaps another thread's, by the change of its word. One that
 * is in none is the caller's alone and cannot get into one before it is CACHED: no locked instruction is needed. */
static void block_unretire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block) {
  uint64_t word = ladei_pinned_block_word(block);
  while (ladei_pinned_word_is_in_slot(word)) {
    if (ladei_pinned_block_word_swap(block, word, ladei_pinned_word_with_state(word, LADEI_PINNED_BLOCK_CACHED)))
      return;
    word = ladei_pinned_block_word(block); /* taken out of its slot meanwhile */
  }
  word = ladei_pinned_word_with_state(word, LADEI_PINNED_BLOCK_CACHED);
  ladei_pinned_block_word_set(block, word);
  ladei_pinned_thread_counters *counters =
      cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, ladei_pinned_word_node(word));
  unsigned class_index = ladei_pinned_word_class(word);
  bool magazine = counters != NULL && class_index < LADEI_PINNED_MAGAZINE_CLASSES;
  if (!magazine || !ladei_pinned_magazine_put(cache, &counters->classes[class_index], block))
    block_put(pool, cache, block);
}

void ladei_pinned_default_retire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block,
                                 uint64_t word, size_t bytes, bool quiet) {
  unsigned node = ladei_pinned_word_node(word), class_index = ladei_pinned_word_class(word);
  ladei_pinned_pending_add(pool, cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, node), node, class_index,
                           bytes);
  bool pending = ladei_retire_shards_add(pool->retire, ladei_pinned_retire_shard(pool, cache),
                                         cache == NULL ? NULL : &cache->retire_buffer, &block->ticket, quiet);
  if (!pending) {
    ladei_pinned_history_done(ladei_pinned_pool_recording(pool), ladei_pinned_block_address(block),
                              ladei_pinned_block_requested(block), bytes);
    ladei_pinned_pending_sub(pool, node, class_index, (ladei_pinned_amount){1, bytes});
    block_unretire(pool, cache, block);
    ladei_pinned_call_answer(pool, cache);
  }
}

static void blocks_retired(void *user, ladei_retire_ticket *list) {
  lade_pinned_pool *pool = user;
  ladei_pinned_history *history = ladei_pinned_pool_recording(pool);
  ladei_pinned_block *blocks = NULL;
  ladei_pinned_amount amount = {0, 0};
  unsigned node = 0, class_index = 0;
  ladei_pinned_transit_begin(&pool->cap_wait.blocks); /* neither pending nor where a request finds it */
  /* All before any of them can be pending anew, or the peak would count it twice. Mostly they are of one class. */
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) {
    ladei_pinned_block *block = ladei_pinned_block_of_ticket(ticket);
    uint64_t word = ladei_pinned_block_word(block);
    if (amount.blocks > 0 && (ladei_pinned_word_node(word) != node || ladei_pinned_word_class(word) != class_index)) {
      ladei_pinned_pending_sub(pool, node, class_index, amount);
      amount = (ladei_pinned_amount){0, 0};
    }
    node = ladei_pinned_word_node(word);
    class_index = ladei_pinned_word_class(word);
    amount.blocks++;
    size_t bytes = ladei_pinned_block_bytes(block, word);
    amount.bytes += bytes;
    if (history != NULL)
      ladei_pinned_history_done(history, ladei_pinned_block_address(block), ladei_pinned_block_requested(block), bytes);
    ladei_pinned_block_next_set(block, blocks);
    blocks = block;
  }
  if (amount.blocks > 0) ladei_pinned_pending_sub(pool, node, class_index, amount);
  ladei_pinned_thread_cache *cache = ladei_pinned_background_is_self() ? NULL : ladei_pinned_call_cache(pool);
  while (blocks != NULL) {
    ladei_pinned_block *block = blocks;
    blocks = ladei_pinned_block_next(block);
    block_unretire(pool, cache, block);
  }
  ladei_pinned_transit_end(&pool->cap_wait.blocks);
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
