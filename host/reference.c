/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference policy.
 *
 * I1  A block is in the queue from before runtime/retire gets its ticket until it goes back to its node.
 * I2  A block leaves the queue only at its head, and only when its streams are done; so a block behind one that is not
 *     done stays, though its own streams are.
 * Locks: reference->lock guards the queue; nothing else is done under it.
 */
#include "host/reference.h"

#include "base/cancellation.h"
#include "base/error.h"
#include "host/pool.h"

void ladei_pinned_reference_init(ladei_pinned_reference *reference, bool on) {
  ladei_lock_init(&reference->lock, LADEI_RANK_LEAF);
  reference->on = on;
}

void ladei_pinned_reference_destroy(ladei_pinned_reference *reference) { ladei_lock_destroy(&reference->lock); }

/* ---- The queue --------------------------------------------------------------------------------------------------- */

void ladei_pinned_reference_wait(lade_pinned_pool *pool, ladei_pinned_block *block) {
  ladei_pinned_reference *own = &pool->reference;
  ladei_lock_acquire(&own->lock);
  block->ticket.spare = 0;
  ladei_pinned_block_next_set(block, NULL);
  if (own->first == NULL)
    own->first = block;
  else
    ladei_pinned_block_next_set(own->last, block);
  own->last = block;
  ladei_lock_release(&own->lock);
}

void ladei_pinned_reference_done(lade_pinned_pool *pool, ladei_retire_ticket *list) {
  ladei_lock_acquire(&pool->reference.lock);
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) ticket->spare = 1;
  ladei_lock_release(&pool->reference.lock);
}

void ladei_pinned_reference_done_one(lade_pinned_pool *pool, ladei_pinned_block *block) {
  ladei_lock_acquire(&pool->reference.lock);
  block->ticket.spare = 1;
  ladei_lock_release(&pool->reference.lock);
}

/* Takes the first block out if it is done. */
static ladei_pinned_block *queue_take(ladei_pinned_reference *own) {
  ladei_lock_acquire(&own->lock);
  ladei_pinned_block *block = own->first;
  if (block != NULL && block->ticket.spare == 0) block = NULL;
  if (block != NULL) {
    own->first = ladei_pinned_block_next(block);
    block->ticket.spare = 0;
  }
  ladei_lock_release(&own->lock);
  return block;
}

void ladei_pinned_reference_advance(lade_pinned_pool *pool) {
  ladei_pinned_block *block;
  while (pool->reference.on && (block = queue_take(&pool->reference)) != NULL) {
    uint64_t word = ladei_pinned_block_word(block);
    size_t bytes = ladei_pinned_reference_block_bytes(pool, block);
    ladei_pinned_pending_sub(pool, ladei_pinned_word_node(word), ladei_pinned_pool_counted_class(pool, word, bytes),
                             (ladei_pinned_amount){1, bytes});
    ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_CACHED);
    if (pool->debug != NULL) ladei_pinned_debug_poison((void *)ladei_pinned_block_address(block), bytes);
    ladei_pinned_node_put_one(ladei_pinned_pool_node(pool, ladei_pinned_word_node(word)), block);
  }
}

size_t ladei_pinned_reference_block_bytes(const lade_pinned_pool *pool, const ladei_pinned_block *block) {
  const ladei_pinned_segment *segment = ladei_pagemap_get(&pool->map, (const void *)ladei_pinned_block_address(block));
  return ladei_pinned_segment_bytes(segment);
}

/* ---- Seeking ----------------------------------------------------------------------------------------------------- */

static lade_status seek(lade_pinned_pool *pool, size_t bytes, ladei_pinned_node *node, ladei_pinned_block **out) {
  lade_error saved;
  ladei_error_save(&saved);
  lade_status status = ladei_pinned_pool_poll(pool, 0, NULL);
  if (status == LADE_ERR_DEVICE_LOST) return status;
  if (status != LADE_OK) ladei_error_restore(&saved); /* those blocks stay pending */
  *out = ladei_pinned_node_take_best(node, bytes);
  if (*out != NULL) return LADE_OK;
  status = ladei_pinned_pool_pin_block(pool, node, (size_t)1 << ladei_log2_ceil(bytes), out);
  ladei_pinned_count(&pool->counters.misses, status == LADE_OK ? 1 : 0); /* before the alloc is counted: stats.c */
  return status;
}

lade_status ladei_pinned_reference_seek(lade_pinned_pool *pool, size_t bytes, ladei_pinned_node *node,
                                        ladei_pinned_block **out) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = seek(pool, bytes, node, out);
  ladei_cancellation_resume(cancellation);
  return status;
}
