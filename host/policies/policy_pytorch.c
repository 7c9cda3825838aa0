/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy of PyTorch's pinned cache.
 *
 * P1  A block is in the queue from before runtime/retire gets its ticket until it goes back to its node.
 * P2  A block leaves the queue only at its head, and only when its streams are done; so a block after one that is not
 *     done stays, though its own streams are.
 * Locks: the queue's guards it, and is held for nothing more.
 */
#include "host/policies/policy_pytorch.h"

#include <assert.h>
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/lock.h"
#include "host/grow/grow.h"
#include "host/grow/seek.h"
#include "host/state/nodes.h"
#include "host/state/usage.h"

/* Pending blocks by time of free, linked by next; ticket.spare: 1 when done. */
typedef struct pending_queue {
  ladei_lock lock; /* guards the rest */
  ladei_pinned_block *first, *last;
} pending_queue;

static lade_status policy_open(lade_pinned_pool *pool) {
  pending_queue *queue = calloc(1, sizeof *queue);
  if (queue == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for the queue of pending blocks");
  ladei_lock_init(&queue->lock, LADEI_RANK_LEAF);
  pool->policy_state = queue;
  return LADE_OK;
}

static void policy_close(lade_pinned_pool *pool) {
  pending_queue *queue = pool->policy_state;
  assert(queue == NULL || queue->first == NULL); /* P1: no block is pending when a pool ends */
  if (queue != NULL) ladei_lock_destroy(&queue->lock);
  free(queue);
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* A block is a segment. */
static size_t block_bytes(const lade_pinned_pool *pool, const ladei_pinned_block *block, uint64_t word) {
  const ladei_pinned_segment *segment = ladei_pagemap_get(&pool->map, (const void *)ladei_pinned_block_address(block));
  (void)word;
  return ladei_pinned_segment_bytes(segment);
}

/* That of its size, which may be less than the page that its record stands for. */
static unsigned counted_class(uint64_t word, size_t bytes) {
  (void)word;
  return ladei_pinned_class_of(bytes);
}

/* ---- Free blocks ------------------------------------------------------------------------------------------------- */

static void block_put(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block) {
  (void)cache;
  if (pool->debug != NULL)
    ladei_pinned_debug_poison((void *)ladei_pinned_block_address(block), block_bytes(pool, block, 0));
  ladei_pinned_pool_put_one(pool, block);
}

/* ---- Pending blocks ---------------------------------------------------------------------------------------------- */

static void queue_add(pending_queue *queue, ladei_pinned_block *block) {
  assert(ladei_pinned_word_state(ladei_pinned_block_word(block)) == LADEI_PINNED_BLOCK_PENDING); /* P1 */
  ladei_lock_acquire(&queue->lock);
  block->ticket.spare = 0;
  ladei_pinned_block_next_set(block, NULL);
  if (queue->first == NULL)
    queue->first = block;
  else
    ladei_pinned_block_next_set(queue->last, block);
  queue->last = block;
  ladei_lock_release(&queue->lock);
}

/* A block whose streams are done stays in the queue until those before it are done as well. */
static void queue_done(pending_queue *queue, ladei_retire_ticket *ticket) {
  ladei_lock_acquire(&queue->lock);
  assert(queue->first != NULL && ticket->spare == 0); /* P1: its block is in the queue */
  ticket->spare = 1;
  ladei_lock_release(&queue->lock);
}

/* The first block, if it is done; NULL: there is nothing to take. */
static ladei_pinned_block *queue_take(pending_queue *queue) {
  ladei_lock_acquire(&queue->lock);
  ladei_pinned_block *block = queue->first != NULL && queue->first->ticket.spare != 0 ? queue->first : NULL;
  if (block != NULL) {
    queue->first = ladei_pinned_block_next(block);
    block->ticket.spare = 0;
  }
  ladei_lock_release(&queue->lock);
  return block;
}

static void block_retire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block,
                         uint64_t word, size_t bytes, bool quiet) {
  (void)cache;
  ladei_pinned_pending_add(pool, NULL, ladei_pinned_word_node(word), counted_class(word, bytes), bytes);
  queue_add(pool->policy_state, block);
  if (!ladei_retire_add(ladei_retire_shard(pool->retire, 0), &block->ticket, quiet))
    queue_done(pool->policy_state, &block->ticket);
}

static void blocks_retired(void *user, ladei_retire_ticket *list) {
  const lade_pinned_pool *pool = user;
  pending_queue *queue = pool->policy_state;
  ladei_lock_acquire(&queue->lock);
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) ticket->spare = 1;
  ladei_lock_release(&queue->lock);
}

/* Blocks at the head of the queue that are done go back to their nodes. */
static void streams_polled(lade_pinned_pool *pool) {
  ladei_pinned_block *block;
  while ((block = queue_take(pool->policy_state)) != NULL) {
    uint64_t word = ladei_pinned_block_word(block);
    assert(ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_PENDING); /* P1 */
    unsigned node = ladei_pinned_word_node(word);
    size_t bytes = block_bytes(pool, block, word);
    ladei_pinned_pending_sub(pool, NULL, node, counted_class(word, bytes), (ladei_pinned_amount){1, bytes});
    ladei_pinned_history_done(ladei_pinned_pool_recording(pool), ladei_pinned_block_address(block), bytes, bytes);
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    if (pool->debug != NULL) ladei_pinned_debug_poison((void *)ladei_pinned_block_address(block), bytes);
    ladei_pinned_node_put_one(ladei_pinned_pool_node(pool, node), block);
  }
}

/* ---- Seeking ----------------------------------------------------------------------------------------------------- */

static lade_status seek(lade_pinned_pool *pool, const ladei_pinned_request *request, ladei_pinned_block **out) {
  lade_error saved;
  ladei_error_save(&saved);
  lade_status status = ladei_pinned_pool_poll(pool, 0, NULL);
  if (status == LADE_ERR_DEVICE_LOST) return status;
  if (status != LADE_OK) ladei_error_restore(&saved); /* those blocks stay pending */
  *out = ladei_pinned_node_take_best(request->node, request->bytes);
  if (*out != NULL) return LADE_OK;
  status = ladei_pinned_pool_pin_block(pool, request->node, (size_t)1 << ladei_log2_ceil(request->bytes), out);
  ladei_pinned_count(&pool->counters.misses, status == LADE_OK ? 1 : 0); /* before the alloc is counted: stats.c */
  return status;
}

static lade_status block_seek(lade_pinned_pool *pool, const ladei_pinned_request *request, ladei_pinned_block **out) {
  return LADEI_UNCANCELLED(seek(pool, request, out));
}

const ladei_pinned_policy ladei_pinned_policy_pytorch = {
    .uses_thread_caches = false,
    .events_only = true,
    .event_batch = 1,
    .sources = LADE_PINNED_SOURCE_DRIVER,
    .open = policy_open,
    .close = policy_close,
    .block_bytes = block_bytes,
    .counted_class = counted_class,
    .seek = block_seek,
    .put = block_put,
    .retire = block_retire,
    .retired = blocks_retired,
    .polled = streams_polled,
};
