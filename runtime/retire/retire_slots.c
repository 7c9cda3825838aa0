/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The open batches of threads, as other threads reach them. The model is in retire_buffer.h; queues, uses and Q1 to Q11
 * are in retire_queue.h.
 *
 * L1  A slot in use pins its queue, which is neither retired nor finished: stream_retire empties the buffers first.
 *     Exception: the owner could not be fenced. Its next call then empties the buffer before it notes or adds, and uses
 *     published to a retired queue wait for its last event, like all that were noted before the stream was retired.
 * L2  Inline notes of a queue that are not added = queue->inline_notes + the sum of `noted` over its slots. While that
 *     may differ from 0 the queue is not freed: slots pin it, and without slots inline_notes is the whole sum.
 * L3  retire->promised = credits of all slots + inline notes not added + one for each open batch that is not empty. The
 *     slab has room for this many uses. So unfolding an inline note and publishing an open batch cannot fail.
 * L5  A buffer is emptied under its lock, or by its owner, or while its owner makes no call. If the owner was called
 *     (base/asym_lock.h), the owner empties it.
 * Locks: retire->lock, and the buffers' asymmetric locks, which are closed under it.
 */
#include "runtime/retire/retire_slots.h"

#include <assert.h>

#include "runtime/retire/retire_queue.h"

/* Uses promised to a slot at a time: the number of notes until the lock is taken for more. */
enum { CREDIT = 64 };

/* ---- slots ------------------------------------------------------------------------------------------------------- */

void ladei_retire_slots_used_change(ladei_retire *retire, int change) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t used = atomic_load_explicit(&retire->slots_used, memory_order_relaxed);
  atomic_store_explicit(&retire->slots_used, used + (uint32_t)change, memory_order_release);
}

/* A free fills the queue's open uses up to a batch. */
void ladei_retire_slot_room_set(const ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  uint64_t batch = retire->options.event_batch, open = slot->queue->open;
  slot->room = (uint32_t)(open < batch ? batch - open : batch);
}

/* Turns the open batch into one use of the queue. */
void ladei_retire_slot_publish(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t count = ladei_retire_slot_count(slot);
  if (count == 0) return;
  retire->promised--;
  ladei_retire_use *use = ladei_retire_use_make(retire, slot->first, slot->queue);
  assert(use != NULL); /* L3 */
  use->last = slot->last;
  use->count = count;
  ladei_retire_queue_pin(retire, slot->queue);
  ladei_retire_pending_add(retire, count);
  ladei_retire_queue_append(retire, slot->queue, use);
  slot->first = slot->last = NULL;
  ladei_retire_slot_count_set(slot, 0);
}

/* False: no memory. */
bool ladei_retire_slot_credit_set(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  ladei_lock_assert_held(&retire->lock);
  uint64_t promised = retire->promised - slot->credit + CREDIT;
  if (slot->credit < CREDIT && !ladei_slab_reserve(&retire->uses, promised)) return false;
  retire->promised = promised;
  slot->credit = CREDIT;
  return true;
}

void ladei_retire_slot_empty(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = slot->queue;
  if (queue == NULL) return;
  ladei_retire_slot_publish(retire, slot);
  queue->inline_notes += slot->noted;
  retire->counters.noted_uses += (uint64_t)slot->noted; /* modulo 2^64 */
  retire->promised -= slot->credit;
  *slot = (ladei_retire_buffer_slot){.queue = NULL};
  ladei_retire_slots_used_change(retire, -1);
  ladei_retire_queue_unpin(retire, queue);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

void ladei_retire_buffer_link(ladei_retire *retire, ladei_retire_buffer *buffer) {
  ladei_lock_assert_held(&retire->lock);
  if (buffer->retire != NULL) return;
  buffer->retire = retire;
  buffer->tag = ladei_retire_inline_tag(retire->options.shard);
  buffer->thread = pthread_self();
  buffer->prev = NULL;
  buffer->next = retire->buffers;
  if (buffer->next != NULL) buffer->next->prev = buffer;
  retire->buffers = buffer;
}

void ladei_retire_buffer_unlink(ladei_retire *retire, ladei_retire_buffer *buffer) {
  ladei_lock_assert_held(&retire->lock);
  if (buffer->next != NULL) buffer->next->prev = buffer->prev;
  *(buffer->prev == NULL ? &retire->buffers : &buffer->prev->next) = buffer->next;
  buffer->retire = NULL;
}

/* Whether to empty a buffer: it has the queue; `queue` NULL: it has any ticket, or with `notes` anything at all. */
static bool buffer_matters(const ladei_retire_buffer *buffer, const ladei_retire_queue *queue, bool notes) {
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) {
    const ladei_retire_buffer_slot *slot = &buffer->slots[i];
    if (slot->queue == NULL || (queue != NULL && slot->queue != queue)) continue;
    if (notes || ladei_retire_slot_count(slot) > 0) return true;
  }
  return false;
}

void ladei_retire_buffer_empty(ladei_retire *retire, ladei_retire_buffer *buffer) {
  ladei_lock_assert_held(&retire->lock);
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) ladei_retire_slot_empty(retire, &buffer->slots[i]);
}

static bool buffer_is_own(const ladei_retire_buffer *buffer) { return pthread_equal(buffer->thread, pthread_self()); }

/*
 * Two rounds, so that one barrier serves all buffers. An owner's count shows all adds before any event that the caller
 * knows of, so a buffer whose count is 0 may be skipped. Owners that cannot be fenced are called (L5).
 */
static void buffers_collect(ladei_retire *retire, const ladei_retire_queue *queue, bool notes) {
  ladei_lock_assert_held(&retire->lock);
  bool barrier = false;
  if (atomic_load_explicit(&retire->slots_used, memory_order_relaxed) == 0) return;
  for (ladei_retire_buffer *buffer = retire->buffers; buffer != NULL; buffer = buffer->next) {
    buffer->visited = buffer_matters(buffer, queue, notes);
    if (buffer->visited && !buffer_is_own(buffer) && ladei_asym_lock_close(&buffer->lock)) barrier = true;
  }
  bool fenced = barrier && ladei_asym_lock_barrier();
  for (ladei_retire_buffer *buffer = retire->buffers; buffer != NULL; buffer = buffer->next) {
    if (!buffer->visited) continue;
    if (buffer_is_own(buffer)) {
      ladei_retire_buffer_empty(retire, buffer);
    } else if (ladei_asym_lock_wait(&buffer->lock, fenced)) {
      ladei_retire_buffer_empty(retire, buffer);
      ladei_asym_lock_open(&buffer->lock);
    }
  }
}

void ladei_retire_buffers_publish(ladei_retire *retire) { buffers_collect(retire, NULL, false); }

void ladei_retire_buffers_empty(ladei_retire *retire) { buffers_collect(retire, NULL, true); }

void ladei_retire_buffers_forget_queue(ladei_retire *retire, const ladei_retire_queue *queue) {
  buffers_collect(retire, queue, true);
}

void ladei_retire_buffers_close(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  while (retire->buffers != NULL) {
    ladei_retire_buffer_empty(retire, retire->buffers);
    ladei_retire_buffer_unlink(retire, retire->buffers);
  }
  ladei_lock_release(&retire->lock);
}
