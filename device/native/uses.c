/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses of blocks by streams other than their own, and what happens to a block that is freed with some.
 *
 *   free                                            PENDING: the ticket goes to runtime/retire, which calls back when all
 *                                                   streams are done
 *   free, with uses of the capture under way        DEFERRED: settled at the first chance after the capture, or within it by
 *                                                   capture_reuse.c
 *
 * Note [Uses in captures]. A block of a private pool may be used by several streams of the capture into that pool. Such
 * a use runs when the graph is launched, and the graph orders it before what is captured next; so after the capture
 * there is nothing to wait for, while during it the block must not be handed out again. Such notes carry a mark, and
 * are forgotten when the free is settled. A note has one where the stream noted and the block's own stream are in the
 * same capture, by the id of that, and the block's pool is being captured into. All other uses are waited for as usual:
 * those of streams that do not capture by the stream, whatever captures meanwhile; those in other captures, and of
 * blocks from the default pools, by the end of the graph. The same stream noted outside the capture carries no mark.
 *
 * With LADE_DEVICE_REFERENCE a note of whatever stream carries the mark during a capture or a scope, every free with uses
 * is deferred then, and no event is asked: hazard H9.
 *
 * U1  A ticket is added to the retire object exactly when its block becomes PENDING.
 * U2  deferred holds exactly the DEFERRED blocks, in the order of their frees.
 * U3  Whether a capture is under way is decided, for a free as for settling, under the hold of the lock that does it.
 *
 * uses.c and capture_reuse.c are one state machine in two files: a DEFERRED block leaves that state here after the
 * capture, and there within it.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/native/uses.h"

#include "base/cancellation.h"
#include "base/error.h"
#include "device/native/capture_reuse.h"
#include "device/observe/history.h"

static ladei_device_block *block_of(ladei_retire_ticket *ticket) {
  return (ladei_device_block *)(void *)((char *)ticket - offsetof(ladei_device_block, ticket));
}

uint64_t ladei_device_uses_order(void *owner, const ladei_stream *stream) {
  (void)owner;
  return ladei_device_stream_key(stream);
}

void ladei_device_uses_done(void *owner, ladei_retire_ticket *list) {
  lade_device_allocator *allocator = owner;
  ladei_device_history_lock(allocator);
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;)
    ladei_device_block_free_complete(&allocator->heap, block_of(ticket));
  ladei_lock_release(&allocator->lock);
}

void ladei_device_uses_add(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_none_held();
  int cancellation = ladei_cancellation_hold(); /* the block has no owner until it is added */
  if (block->state == LADEI_DEVICE_HEAP_DEFERRED) {
    ladei_device_capture_reuse_mark(allocator, block);
  } else if (!ladei_retire_add(allocator->retire, &block->ticket, false)) {
    ladei_device_history_lock(allocator);
    ladei_device_block_free_complete(&allocator->heap, block);
    ladei_lock_release(&allocator->lock);
  }
  ladei_cancellation_resume(cancellation);
}

static bool reference(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->seen.reference, memory_order_relaxed);
}

bool ladei_device_uses_captured(const lade_device_allocator *allocator, const ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *private_pool = block->segment->pool->private_pool;
  if (reference(allocator)) return ladei_device_reference_captures(allocator);
  return private_pool != NULL && atomic_load(&private_pool->capturing) && private_pool->capture == block->ticket.spare;
}

bool ladei_device_uses_deferrable(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_private_pool *private_pool = block->segment->pool->private_pool;
  block->ticket.spare =
      private_pool != NULL ? private_pool->capture : 0; /* the capture that a deferred free waits for */
  return ladei_device_uses_captured(allocator, block) &&
         (reference(allocator) || ladei_retire_marked(allocator->retire, &block->ticket));
}

void ladei_device_uses_deferred_leave(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  atomic_fetch_sub_explicit(&allocator->deferred.count, 1, memory_order_relaxed);
  ladei_device_markers_drop(block);
  ladei_retire_forget_marked(allocator->retire, &block->ticket);
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_PENDING);
}

/* Takes the blocks out of the list whose captures are over, and makes them PENDING. Lock held. */
static ladei_device_block *deferred_take(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_list ready;
  ladei_device_block *block = allocator->deferred.list.first, *next;
  ladei_device_block_list_init(&ready);
  ladei_device_block_list_init(&allocator->deferred.list);
  for (; block != NULL; block = next) {
    next = block->chain;
    bool stays = block->marking || ladei_device_uses_captured(allocator, block);
    ladei_device_block_list_append(stays ? &allocator->deferred.list : &ready, block);
    if (!stays) ladei_device_uses_deferred_leave(allocator, block);
  }
  return ready.first;
}

void ladei_device_uses_settle_deferred(lade_device_allocator *allocator) {
  ladei_lock_assert_none_held();
  if (atomic_load_explicit(&allocator->deferred.count, memory_order_relaxed) == 0) return;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_block *block = deferred_take(allocator), *next;
  ladei_lock_release(&allocator->lock);
  for (; block != NULL; block = next) {
    next = block->chain; /* once added, the block may be reused at any moment */
    ladei_device_uses_add(allocator, block);
  }
}

uint64_t ladei_device_capture_of(const lade_device_allocator *allocator, const ladei_stream *stream) {
  ladei_lock_assert_none_held();
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  LADEI_ASIDE((void)allocator->runtime->ops->stream_capture_info(allocator->runtime->self, stream, &info));
  return info.status == LADEI_CAPTURE_ACTIVE ? info.id : 0;
}

/* Note [Uses in captures]. The block is handed out, so its segment keeps its pool. (A thread's own streams have no
 * mark: their uses end with the note.) */
static bool use_in_own_capture(const lade_device_allocator *allocator, const ladei_device_block *block,
                               const ladei_stream *use) {
  const ladei_device_heap_segment *segment = block->segment;
  const ladei_device_private_pool *private_pool = segment->pool->private_pool;
  if (private_pool == NULL || !atomic_load(&private_pool->capturing) || segment->last != NULL) return false;
  if (use->kind == LADEI_STREAM_PER_THREAD || segment->stream.kind == LADEI_STREAM_PER_THREAD) return false;
  uint64_t capture = ladei_device_capture_of(allocator, use);
  return capture != 0 && capture == ladei_device_capture_of(allocator, &segment->stream);
}

unsigned ladei_device_uses_flags(const lade_device_allocator *allocator, const ladei_device_block *block,
                                 const ladei_stream *use) {
  ladei_lock_assert_none_held();
  bool marked = ladei_device_reference_captures(allocator);
  if (!marked && atomic_load_explicit(&allocator->routes.captures, memory_order_relaxed) > 0)
    marked = use_in_own_capture(allocator, block, use);
  return marked ? LADEI_NOTE_PLAIN | LADEI_NOTE_MARK : 0;
}

lade_status ladei_device_uses_process(lade_device_allocator *allocator, unsigned flags, uint64_t *out_done) {
  ladei_lock_assert_none_held();
  *out_done = 0;
  if (ladei_device_reference_captures(allocator)) return LADE_OK;
  int cancellation = ladei_cancellation_hold();
  ladei_device_uses_settle_deferred(allocator);
  lade_status status = ladei_retire_poll(allocator->retire, flags, out_done);
  ladei_cancellation_resume(cancellation);
  /* Other failures keep their blocks pending (quarantined); the request can do without those. */
  return status == LADE_ERR_DEVICE_LOST || status == LADE_ERR_FORKED ? status : LADE_OK;
}
