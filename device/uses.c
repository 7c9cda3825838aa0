/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses of blocks by streams other than their own, and what happens to a block that is freed with some.
 *
 *   free, no capture under way     PENDING: the ticket goes to runtime/retire, which calls back when all streams are
 * done free during a capture          DEFERRED: asking about events is forbidden; settled at the first chance after it
 *
 * A use noted during a capture is ordered inside the graph, so a deferred free need not wait for it: those notes carry
 * a mark and are forgotten when the free is settled. The same stream noted outside the capture carries none and is
 * waited for.
 *
 * U1  A ticket is added to the retire object exactly when its block becomes PENDING.
 * U2  deferred holds exactly the DEFERRED blocks, in the order of their frees.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/allocator.h"

#include "base/error.h"

static ladei_block *block_of(ladei_ticket *ticket) {
  return (ladei_block *)(void *)((char *)ticket - offsetof(ladei_block, ticket));
}

uint64_t ladei_uses_order(void *owner, const ladei_stream *stream) {
  (void)owner;
  return ladei_stream_key(stream);
}

void ladei_uses_done(void *owner, ladei_ticket *list) {
  lade_device_allocator *allocator = owner;
  ladei_history_lock(allocator);
  for (ladei_ticket *ticket; (ticket = ladei_ticket_take(&list)) != NULL;) {
    ladei_block_free_complete(&allocator->heap, block_of(ticket));
  }
  ladei_lock_release(&allocator->lock);
}

void ladei_uses_add(lade_device_allocator *allocator, ladei_block *block) {
  if (ladei_retire_add(allocator->retire, &block->ticket, false)) return;
  ladei_history_lock(allocator);
  ladei_block_free_complete(&allocator->heap, block);
  ladei_lock_release(&allocator->lock);
}

void ladei_uses_settle_deferred(lade_device_allocator *allocator) {
  if (atomic_load_explicit(&allocator->deferred_count, memory_order_relaxed) == 0) return;
  ladei_lock_acquire(&allocator->lock);
  ladei_block *block = allocator->deferred.first;
  ladei_block_list_init(&allocator->deferred);
  atomic_store_explicit(&allocator->deferred_count, 0, memory_order_relaxed);
  for (ladei_block *each = block; each != NULL; each = each->chain) {
    ladei_retire_forget_marked(allocator->retire, &each->ticket);
    ladei_block_state_set(each, LADEI_HEAP_PENDING);
  }
  ladei_lock_release(&allocator->lock);
  ladei_block *next;
  for (; block != NULL; block = next) {
    next = block->chain; /* once added, the block may be reused at any moment */
    ladei_uses_add(allocator, block);
  }
}

lade_status ladei_uses_process(lade_device_allocator *allocator, unsigned flags, uint64_t *out_done) {
  *out_done = 0;
  if (atomic_load_explicit(&allocator->capture_count, memory_order_relaxed) != 0) return LADE_OK;
  if (!ladei_climb_poll_begin(allocator)) return LADE_OK;
  ladei_uses_settle_deferred(allocator);
  lade_status status = ladei_retire_poll(allocator->retire, flags, out_done);
  ladei_climb_poll_end(allocator);
  /* Other failures keep their blocks pending (quarantined); the request can do without those. */
  return status == LADE_ERR_DEVICE_LOST || status == LADE_ERR_FORKED ? status : LADE_OK;
}
