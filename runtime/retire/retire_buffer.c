/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: the owner's calls. The model is in retire_buffer.h, L1 to L3 and L5 in retire_slots.c, queues, uses and Q1
 * to Q11 in retire_queue.h.
 *
 *   ticket->uses:   NULL --note--> queue | 1 --add--> NULL        the ticket is in the buffer's open batch, waits = 1
 *                                     | under retire->lock
 *                                     `--unfold--> a use            when another use comes to the ticket
 *
 * L4  A ticket changes from NULL to an inline note and back only by compare-and-swap. A thread that changes a ticket
 *     under retire->lock has sealed it first: no inline note gets in.
 * Locks: retire->lock, and the buffers' asymmetric locks. An owner takes no lock inside its own; others close these
 * under retire->lock.
 */
#include "runtime/retire/retire_buffer.h"

#include <assert.h>

#include "base/cancellation.h"
#include "base/process.h"
#include "base/switch.h"
#include "runtime/retire/retire_close.h"
#include "runtime/retire/retire_note.h"
#include "runtime/retire/retire_poll.h"

/* ---- The owner, inside the asymmetric lock ----------------------------------------------------------------------- */

typedef enum quick_result {
  QUICK_DONE,
  QUICK_FULL,    /* done, and the open batch must be published */
  QUICK_NO_SLOT, /* the buffer does not know the stream, or has no credit */
  QUICK_NOT,     /* not a case for buffers */
  QUICK_SHUT,    /* a visitor is inside, or has called */
} quick_result;

static inline ladei_retire_buffer_slot *slot_at(ladei_retire_buffer *buffer, unsigned after_recent) {
  return &buffer->slots[(buffer->recent + after_recent) % LADEI_RETIRE_BUFFER_SLOTS];
}

static inline bool slot_has_stream(const ladei_retire_buffer_slot *slot, const ladei_stream *stream) {
  return slot->id == stream->id && slot->context == stream->context && slot->queue != NULL;
}

static inline ladei_retire_buffer_slot *slot_of_stream(ladei_retire_buffer *buffer, const ladei_stream *stream) {
  ladei_retire_buffer_slot *recent = slot_at(buffer, 0);
  if (slot_has_stream(recent, stream)) return recent;
  for (ladei_retire_buffer_slot *slot = buffer->slots; slot < buffer->slots + LADEI_RETIRE_BUFFER_SLOTS; slot++) {
    if (slot_has_stream(slot, stream)) {
      buffer->recent = (unsigned)(slot - buffer->slots);
      return slot;
    }
  }
  return NULL;
}

static inline ladei_retire_buffer_slot *slot_of_queue(ladei_retire_buffer *buffer, const ladei_retire_queue *queue) {
  ladei_retire_buffer_slot *recent = slot_at(buffer, 0);
  if (recent->queue == queue) return recent;
  for (ladei_retire_buffer_slot *slot = buffer->slots; slot < buffer->slots + LADEI_RETIRE_BUFFER_SLOTS; slot++)
    if (slot->queue == queue) return slot;
  return NULL;
}

static inline __attribute__((always_inline)) quick_result
note_inside(ladei_retire_buffer *buffer, ladei_retire_ticket *ticket, const ladei_stream *stream) {
  ladei_retire_buffer_slot *slot = slot_of_stream(buffer, stream);
  if (slot == NULL || slot->credit == 0) return QUICK_NO_SLOT;
  ladei_retire_use *note = ladei_retire_inline_note(slot->queue, buffer->tag), *present = NULL;
  ladei_switch_point("note", 0);
  if (!atomic_compare_exchange_strong_explicit(&ticket->uses, &present, note, memory_order_acq_rel,
                                               memory_order_acquire))
    return present == note ? QUICK_DONE : QUICK_NOT;
  slot->credit--;
  slot->noted++;
  return QUICK_DONE;
}

/* Inlined into the calls that users make most, which then save registers for nothing else: here and below. */
static inline __attribute__((always_inline)) quick_result
note_quick(ladei_retire_buffer *buffer, ladei_retire_ticket *ticket, const ladei_stream *stream) {
  if (!ladei_asym_lock_enter(&buffer->lock)) return QUICK_SHUT;
  quick_result result = note_inside(buffer, ticket, stream);
  ladei_asym_lock_leave(&buffer->lock);
  return result;
}

static inline __attribute__((always_inline)) quick_result add_inside(ladei_retire_buffer *buffer,
                                                                     ladei_retire_ticket *ticket) {
  ladei_retire_use *note = atomic_load_explicit(&ticket->uses, memory_order_acquire);
  if (!ladei_retire_note_is_inline(note)) return QUICK_NOT;
  ladei_retire_buffer_slot *slot = slot_of_queue(buffer, ladei_retire_inline_queue(note));
  if (slot == NULL) return QUICK_NO_SLOT;
  ladei_switch_point("add", 0);
  if (!atomic_compare_exchange_strong_explicit(&ticket->uses, &note, NULL, memory_order_acq_rel, memory_order_relaxed))
    return QUICK_NOT; /* another thread's note, which comes too late, is unfolding it */
  uint32_t count = ladei_retire_slot_count(slot);
  assert(ticket->waits == 0); /* added once */
  ticket->waits = 1;
  ticket->next = NULL;
  if (count == 0) {
    slot->first = ticket; /* the promise passes from note to batch (L3) */
  } else {
    slot->last->next = ticket;
    slot->credit++;
  }
  slot->last = ticket;
  slot->noted--;
  ladei_retire_slot_count_set(slot, count + 1);
  buffer->recent = (unsigned)(slot - buffer->slots);
  return count + 1 >= slot->room ? QUICK_FULL : QUICK_DONE;
}

static inline __attribute__((always_inline)) quick_result add_quick(ladei_retire_buffer *buffer,
                                                                    ladei_retire_ticket *ticket) {
  if (!ladei_asym_lock_enter(&buffer->lock)) return QUICK_SHUT;
  quick_result result = add_inside(buffer, ticket);
  ladei_asym_lock_leave(&buffer->lock);
  return result;
}

/* ---- The owner's slow steps -------------------------------------------------------------------------------------- */

/* The slot that has the queue; otherwise an empty one; otherwise the one after the slot used last. */
static ladei_retire_buffer_slot *slot_for(ladei_retire_buffer *buffer, const ladei_retire_queue *queue) {
  ladei_retire_buffer_slot *empty = slot_at(buffer, 1);
  for (ladei_retire_buffer_slot *slot = buffer->slots; slot < buffer->slots + LADEI_RETIRE_BUFFER_SLOTS; slot++) {
    if (slot->queue == queue) return slot;
    if (slot->queue == NULL && empty->queue != NULL) empty = slot;
  }
  return empty;
}

/*
 * Note [Many streams]
 *
 * If hundreds of streams alternate, a batch has one use when its slot goes to another stream, and stays that small for
 * long. Left open, it would wait, with one batch for each stream, until memory runs out, and then be asked for anyway.
 * So a stream is asked when it leaves; if it is done, its blocks are reused while they are in the processor's caches.
 * All such rare streams of the buffer leave together, so the lock is dropped once. With fewer streams uses still share
 * an event, and no stream is asked. Streams that were not done make the next question rarer, down to one in 64.
 *
 * The batch stays in its slot while its stream is asked. So a thread that must know all tickets finds it there,
 * publishes it to the queue, and waits for the claim.
 */
enum { RARE_MIN = 256, FRUITLESS_MAX = 6 };

static bool buffer_asks(ladei_retire_buffer *buffer) {
  if (buffer->ask_skip == 0) return true;
  buffer->ask_skip--;
  return false;
}

static void buffer_asked(ladei_retire_buffer *buffer, bool any_done) {
  if (any_done)
    buffer->ask_fruitless = 0;
  else if (buffer->ask_fruitless < FRUITLESS_MAX)
    buffer->ask_fruitless++;
  buffer->ask_skip = (1u << buffer->ask_fruitless) - 1;
}

/* The stream is done with the batch, which need not be published any more. Its tickets become pending before they leave
 * the slot: a reader without the lock finds them in one place or the other. */
static void slot_finish(ladei_retire *retire, ladei_retire_buffer_slot *slot, ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t count = ladei_retire_slot_count(slot);
  if (count == 0) return; /* published before the stream was asked */
  ladei_retire_pending_add(retire, count);
  retire->promised--;
  ladei_retire_done_append(done, slot->first, slot->last, count);
  slot->first = slot->last = NULL;
  ladei_retire_slot_count_set(slot, 0);
}

static void slot_leave(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  if (slot->queue != NULL) slot->queue->left = (uint32_t)retire->leave_count++;
  ladei_retire_slot_empty(retire, slot);
}

/* If more is pending on the stream, that is asked for too: the batch takes its place after it. */
static bool slot_ask_begin(ladei_retire *retire, ladei_retire_buffer_slot *slot, ladei_retire_question *question) {
  ladei_retire_queue *queue = slot->queue;
  if (queue == NULL || !slot->rare || ladei_retire_slot_count(slot) == 0 || !ladei_retire_queue_claim(retire, queue))
    return false;
  if (queue->pending > 0) ladei_retire_slot_publish(retire, slot);
  *question = (ladei_retire_question){.queue = queue};
  return true;
}

/* Empties the slots of rare streams. Drops the lock. */
static void buffer_ask(ladei_retire *retire, ladei_retire_buffer *buffer, ladei_retire_done_list *done) {
  ladei_retire_question questions[LADEI_RETIRE_BUFFER_SLOTS];
  ladei_retire_buffer_slot *asked[LADEI_RETIRE_BUFFER_SLOTS];
  unsigned count = 0;
  bool any_done = false;
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) {
    asked[count] = &buffer->slots[i];
    if (slot_ask_begin(retire, asked[count], &questions[count])) count++;
  }
  ladei_retire_queues_ask(retire, questions, count, done);
  for (unsigned i = 0; i < count; i++) {
    if (asked[i]->queue == questions[i].queue) {
      if (questions[i].done) slot_finish(retire, asked[i], done);
      slot_leave(retire, asked[i]);
    }
    any_done = any_done || questions[i].done;
    ladei_retire_queue_yield(retire, questions[i].queue);
  }
  buffer_asked(buffer, any_done);
}

/* The slot for the pinned queue: the one that has it, or an empty one. May first drop the lock; adds finished tickets
 * to *done. */
static ladei_retire_buffer_slot *buffer_vacate(ladei_retire *retire, ladei_retire_buffer *buffer,
                                               const ladei_retire_queue *queue, ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_buffer_slot *slot = slot_for(buffer, queue);
  if (slot->queue == NULL || slot->queue == queue) return slot;
  if (slot->rare && buffer_asks(buffer)) {
    buffer_ask(retire, buffer, done);
    slot = slot_for(buffer, queue);
  }
  if (slot->queue != queue) slot_leave(retire, slot);
  return slot;
}

/* Under the lock, which is dropped meanwhile. If the thread were cancelled, tickets off their slots would be lost. */
static void buffer_deliver(ladei_retire *retire, ladei_retire_done_list *done) {
  if (done->count == 0) return;
  int cancellation = ladei_cancellation_hold();
  ladei_retire_done_deliver(retire, done);
  ladei_cancellation_resume(cancellation);
}

/* Gives a slot from buffer_vacate to a pinned queue, whose pin goes to the slot or back. False: no buffer for the
 * queue. A lost stream gets none, so that its next note reaches the queue (Q8). */
static bool buffer_adopt(ladei_retire *retire, ladei_retire_buffer *buffer, ladei_retire_buffer_slot *slot,
                         ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_buffer_link(retire, buffer);
  bool good = !queue->retired && !queue->retiring && !queue->finished && !queue->lost;
  if (good && slot->queue != queue) {
    *slot = (ladei_retire_buffer_slot){.queue = queue, .context = queue->stream.context, .id = queue->stream.id};
    slot->rare = (uint32_t)retire->leave_count - queue->left > RARE_MIN; /* modulo 2^32 */
    ladei_retire_slot_room_set(retire, slot);
    ladei_retire_slots_used_change(retire, 1);
    ladei_retire_queue_pin(retire, queue);
  }
  if (good && !ladei_retire_slot_credit_set(retire, slot)) {
    ladei_retire_slot_empty(retire, slot);
    good = false;
  }
  if (good) buffer->recent = (unsigned)(slot - buffer->slots);
  ladei_retire_queue_unpin(retire, queue);
  return good;
}

/* Q9: the lock is held from the note of the stream's use until it has its slot. */
static __attribute__((noinline)) bool buffer_adopt_stream(ladei_retire *retire, ladei_retire_buffer *buffer,
                                                          const ladei_stream *stream) {
  ladei_retire_done_list done;
  ladei_retire_done_init(&done);
  ladei_lock_acquire(&retire->lock);
  uint32_t *passes = ladei_retire_pass_begin(retire);
  ladei_retire_queue *queue = ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_STREAM, stream);
  bool good = false;
  if (queue != NULL) {
    ladei_retire_buffer_slot *slot = buffer_vacate(retire, buffer, queue, &done);
    ladei_retire_queue_named(queue);
    good = buffer_adopt(retire, buffer, slot, queue);
  }
  buffer_deliver(retire, &done);
  ladei_retire_pass_end(retire, passes);
  ladei_lock_release(&retire->lock);
  return good;
}

/* For a ticket that another thread noted. */
static __attribute__((noinline)) bool buffer_adopt_ticket(ladei_retire *retire, ladei_retire_buffer *buffer,
                                                          const ladei_retire_ticket *ticket) {
  ladei_retire_done_list done;
  ladei_retire_done_init(&done);
  ladei_lock_acquire(&retire->lock);
  uint32_t *passes = ladei_retire_pass_begin(retire);
  ladei_retire_use *note = atomic_load_explicit(&ticket->uses, memory_order_acquire);
  bool good = ladei_retire_note_is_inline(note) && ladei_retire_inline_shard(note) == retire->options.shard;
  if (good) {
    ladei_retire_queue *queue = ladei_retire_inline_queue(note); /* lives as long as the note (L2) */
    ladei_retire_queue_pin(retire, queue);
    ladei_retire_buffer_slot *slot = buffer_vacate(retire, buffer, queue, &done);
    queue->appends++;
    good = buffer_adopt(retire, buffer, slot, queue);
  }
  buffer_deliver(retire, &done);
  ladei_retire_pass_end(retire, passes);
  ladei_lock_release(&retire->lock);
  return good;
}

/* A batch is full, unless it was published meanwhile: publishes and closes it. */
static void buffer_publish(ladei_retire *retire, ladei_retire_buffer *buffer, unsigned place) {
  ladei_retire_buffer_slot *slot = &buffer->slots[place];
  ladei_lock_acquire(&retire->lock);
  ladei_retire_queue *queue = slot->queue;
  if (queue != NULL) {
    ladei_retire_slot_publish(retire, slot);
    bool fills = ladei_retire_queue_fills(retire, queue);
    ladei_retire_slot_room_set(retire, slot);
    if (fills) slot->room = retire->options.event_batch; /* the open uses are being closed */
    if (!ladei_retire_slot_credit_set(retire, slot)) ladei_retire_slot_empty(retire, slot);
    if (fills) ladei_retire_queue_close_claimed(retire, queue);
  }
  ladei_lock_release(&retire->lock);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

void ladei_retire_buffer_init(ladei_retire_buffer *buffer) {
  *buffer = (ladei_retire_buffer){.retire = NULL};
  ladei_asym_lock_init(&buffer->lock);
}

void ladei_retire_buffer_close(ladei_retire *retire, ladei_retire_buffer *buffer) {
  ladei_lock_acquire(&retire->lock);
  if (buffer->retire == retire) {
    ladei_retire_buffer_empty(retire, buffer);
    ladei_retire_buffer_unlink(retire, buffer);
  }
  ladei_lock_release(&retire->lock);
}

void ladei_retire_buffer_answer(ladei_retire *retire, ladei_retire_buffer *buffer) {
  ladei_lock_acquire(&retire->lock);
  if (ladei_retire_buffer_is_called(buffer)) {
    if (buffer->retire == retire) ladei_retire_buffer_empty(retire, buffer);
    ladei_asym_lock_answer(&buffer->lock);
  }
  ladei_lock_release(&retire->lock);
}

/* Batches of one do not need buffers. */
static bool buffers_off(const ladei_retire *retire) { return retire->options.event_batch == 1; }

/* After `result`, which is not QUICK_DONE. */
static __attribute__((noinline)) lade_status note_slowly(ladei_retire *retire, ladei_retire_buffer *buffer,
                                                         ladei_retire_ticket *ticket, const ladei_stream *stream,
                                                         quick_result result) {
  if (result == QUICK_NO_SLOT && buffer_adopt_stream(retire, buffer, stream))
    result = note_quick(buffer, ticket, stream);
  if (result == QUICK_SHUT && ladei_retire_buffer_is_called(buffer)) ladei_retire_buffer_answer(retire, buffer);
  return result == QUICK_DONE ? LADE_OK : ladei_retire_note_stream(retire, ticket, stream, 0);
}

lade_status ladei_retire_buffer_note(ladei_retire *retire, ladei_retire_buffer *buffer, ladei_retire_ticket *ticket,
                                     lade_stream handle) {
  ladei_stream stream;
  ladei_capture_info info;
  info.status = LADEI_CAPTURE_NONE;
  if (!ladei_process_is_own(&retire->runtime->owner)) return ladei_runtime_check_process(retire->runtime);
  lade_status status = ladei_retire_driver(retire)->stream_resolve(retire->runtime->self, handle, &stream);
  if (status != LADE_OK) return status;
  if (stream.kind != LADEI_STREAM_ORDINARY || buffers_off(retire))
    return ladei_retire_note_resolved(retire, ticket, &stream, 0);
  status = ladei_retire_driver(retire)->stream_capture_info(retire->runtime->self, &stream, &info);
  if (status != LADE_OK) return status;
  if (info.status != LADEI_CAPTURE_NONE) return ladei_retire_note_resolved(retire, ticket, &stream, 0);
  quick_result result = note_quick(buffer, ticket, &stream);
  return result == QUICK_DONE ? LADE_OK : note_slowly(retire, buffer, ticket, &stream, result);
}

/* After `result`, which is not QUICK_DONE. */
static __attribute__((noinline)) ladei_retire_added add_slowly(ladei_retire *retire, ladei_retire_buffer *buffer,
                                                               ladei_retire_ticket *ticket, quick_result result) {
  if (buffers_off(retire)) return ladei_retire_add_here(retire, ticket, false);
  if (result == QUICK_NO_SLOT && buffer_adopt_ticket(retire, buffer, ticket)) result = add_quick(buffer, ticket);
  if (result == QUICK_FULL) buffer_publish(retire, buffer, buffer->recent);
  if (result == QUICK_SHUT && ladei_retire_buffer_is_called(buffer)) ladei_retire_buffer_answer(retire, buffer);
  return result == QUICK_DONE || result == QUICK_FULL ? LADEI_RETIRE_ADDED_PENDING
                                                      : ladei_retire_add_here(retire, ticket, false);
}

ladei_retire_added ladei_retire_buffer_add(ladei_retire *retire, ladei_retire_buffer *buffer,
                                           ladei_retire_ticket *ticket) {
  quick_result result = add_quick(buffer, ticket);
  return result == QUICK_DONE ? LADEI_RETIRE_ADDED_PENDING : add_slowly(retire, buffer, ticket, result);
}

/* The streams of the caller's buffer; all streams if it has none. */
static void walk_buffer(ladei_retire *retire, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  bool any = false;
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) {
    ladei_retire_queue *queue = walk->buffer->slots[i].queue;
    any = any || queue != NULL;
    if (queue != NULL && queue->in_active && ladei_retire_queue_claim(retire, queue)) {
      ladei_retire_queue_visit(retire, queue, walk);
      ladei_retire_queue_yield(retire, queue);
    }
  }
  walk->buffer->used = any;
  if (!any) ladei_retire_walk_poll(retire, walk);
}

lade_status ladei_retire_buffer_poll(ladei_retire *retire, ladei_retire_buffer *buffer, uint64_t *out_done) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  *out_done = 0;
  if (status != LADE_OK || ladei_retire_nothing_to_do(retire)) return status;
  return ladei_retire_pass_run(retire, 0, walk_buffer, buffer, out_done);
}
