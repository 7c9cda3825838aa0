/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes. The model is in retire_buffer.h; queues, uses and Q1 to Q8 in retire_queue.h.
 *
 *   ticket->uses:   NULL --note--> queue | 1 --add--> NULL          the ticket lies in the lane's open batch, waits = 1
 *                                     | under retire->lock
 *                                     `--unfold--> a use            when something else comes to the ticket
 *
 * L1  A slot in use pins its queue, which is neither retired nor finished: stream_retire empties the lanes before. But
 *     where the owner could not be fenced: then its next call empties the lane before it notes or adds, and what is told
 *     to a retired queue waits for that one's last event, as all that was noted before the stream was retired.
 * L2  Inline notes of a queue that are not added = queue->inline_notes + the sum of `noted` over its slots. While that
 *     may be other than 0 the queue is not freed: slots pin it, and without slots inline_notes is the whole sum.
 * L3  retire->promised = credits of all slots + inline notes not added + one for each open batch that is not empty.
 *     The slab has room for so many uses. So an inline note can be unfolded, and an open batch told, without fail.
 * L4  A ticket changes from NULL to an inline note and back by compare-and-swap only. Whoever holds retire->lock and
 *     changes a ticket has sealed it before: no inline note gets in.
 * L5  Emptying a lane takes its gate, or the owner itself, or that the owner makes no call. A lane whose owner was called
 *     (base/asym_lock.h) is emptied by the owner.
 * Locks: retire->lock, and the lanes' gates. An owner takes no lock inside its gate; others close gates under the lock.
 */
#include "runtime/retire/retire_buffer.h"

#include <assert.h>

#include "base/cancellation.h"
#include "base/process.h"
#include "base/switch.h"
#include "runtime/retire/retire_queue.h"

/* Uses promised to a slot at once. As many notes can be made before the lock is taken for more. */
enum { CREDIT = 64 };

_Static_assert(_Alignof(ladei_retire_queue) > 1, "the lowest bit of a queue's address marks inline notes");

/* Its address names the thread. */
static _Thread_local char thread_mark;

static uint32_t slot_count(const ladei_retire_buffer_slot *slot) {
  return atomic_load_explicit(&slot->count, memory_order_relaxed);
}

static void slot_count_set(ladei_retire_buffer_slot *slot, uint32_t count) {
  atomic_store_explicit(&slot->count, count, memory_order_relaxed);
}

/* ---- The owner, inside the gate ---------------------------------------------------------------------------------- */

typedef enum quick_result {
  QUICK_DONE,
  QUICK_FULL,    /* done, and the open batch is to be told */
  QUICK_NO_SLOT, /* the lane does not know the stream, or has no credit */
  QUICK_NOT,     /* not a case for lanes */
  QUICK_SHUT,    /* a visitor is there, or has called */
} quick_result;

static inline ladei_retire_buffer_slot *slot_at(ladei_retire_buffer *lane, unsigned after_recent) {
  return &lane->slots[(lane->recent + after_recent) % LADEI_RETIRE_BUFFER_SLOTS];
}

static inline bool slot_has_stream(const ladei_retire_buffer_slot *slot, const ladei_stream *stream) {
  return slot->id == stream->id && slot->context == stream->context && slot->queue != NULL;
}

static inline ladei_retire_buffer_slot *slot_of_stream(ladei_retire_buffer *lane, const ladei_stream *stream) {
  ladei_retire_buffer_slot *recent = slot_at(lane, 0);
  if (slot_has_stream(recent, stream)) return recent;
  for (ladei_retire_buffer_slot *slot = lane->slots; slot < lane->slots + LADEI_RETIRE_BUFFER_SLOTS; slot++) {
    if (slot_has_stream(slot, stream)) {
      lane->recent = (unsigned)(slot - lane->slots);
      return slot;
    }
  }
  return NULL;
}

static inline ladei_retire_buffer_slot *slot_of_queue(ladei_retire_buffer *lane, const ladei_retire_queue *queue) {
  ladei_retire_buffer_slot *recent = slot_at(lane, 0);
  if (recent->queue == queue) return recent;
  for (ladei_retire_buffer_slot *slot = lane->slots; slot < lane->slots + LADEI_RETIRE_BUFFER_SLOTS; slot++)
    if (slot->queue == queue) return slot;
  return NULL;
}

static inline quick_result note_inside(ladei_retire_buffer *lane, ladei_retire_ticket *ticket,
                                       const ladei_stream *stream) {
  ladei_retire_buffer_slot *slot = slot_of_stream(lane, stream);
  if (slot == NULL || slot->credit == 0) return QUICK_NO_SLOT;
  ladei_retire_use *note = ladei_retire_inline_note(slot->queue), *present = NULL;
  ladei_switch_point("note", 0);
  if (!atomic_compare_exchange_strong_explicit(&ticket->uses, &present, note, memory_order_acq_rel,
                                               memory_order_acquire))
    return present == note ? QUICK_DONE : QUICK_NOT;
  slot->credit--;
  slot->noted++;
  return QUICK_DONE;
}

static quick_result note_quick(ladei_retire_buffer *lane, ladei_retire_ticket *ticket, const ladei_stream *stream) {
  if (!ladei_asym_lock_enter(&lane->gate)) return QUICK_SHUT;
  quick_result result = note_inside(lane, ticket, stream);
  ladei_asym_lock_leave(&lane->gate);
  return result;
}

static inline quick_result add_inside(ladei_retire_buffer *lane, ladei_retire_ticket *ticket) {
  ladei_retire_use *note = atomic_load_explicit(&ticket->uses, memory_order_acquire);
  if (!ladei_retire_note_is_inline(note)) return QUICK_NOT;
  ladei_retire_buffer_slot *slot = slot_of_queue(lane, ladei_retire_inline_queue(note));
  if (slot == NULL) return QUICK_NO_SLOT;
  ladei_switch_point("add", 0);
  if (!atomic_compare_exchange_strong_explicit(&ticket->uses, &note, NULL, memory_order_acq_rel, memory_order_relaxed))
    return QUICK_NOT; /* a note that comes too late, by another thread, is unfolding it */
  uint32_t count = slot_count(slot);
  assert(ticket->waits == 0); /* added once */
  ticket->waits = 1;
  ticket->next = NULL;
  if (count == 0) {
    slot->first = ticket; /* the note's promise is the batch's now (L3) */
  } else {
    slot->last->next = ticket;
    slot->credit++;
  }
  slot->last = ticket;
  slot->noted--;
  slot_count_set(slot, count + 1);
  lane->recent = (unsigned)(slot - lane->slots);
  return count + 1 >= slot->room ? QUICK_FULL : QUICK_DONE;
}

static quick_result add_quick(ladei_retire_buffer *lane, ladei_retire_ticket *ticket) {
  if (!ladei_asym_lock_enter(&lane->gate)) return QUICK_SHUT;
  quick_result result = add_inside(lane, ticket);
  ladei_asym_lock_leave(&lane->gate);
  return result;
}

/* ---- Slots: under retire->lock, the owner kept out --------------------------------------------------------------- */

static void slots_used_change(ladei_retire *retire, int change) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t used = atomic_load_explicit(&retire->slots_used, memory_order_relaxed);
  atomic_store_explicit(&retire->slots_used, used + (uint32_t)change, memory_order_release);
}

/* A free fills what is open in the queue up to a batch. */
static void slot_room_set(const ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  uint64_t batch = retire->options.event_batch, open = slot->queue->open;
  slot->room = (uint32_t)(open < batch ? batch - open : batch);
}

/* The open batch becomes one use of the queue. */
static void slot_tell(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t count = slot_count(slot);
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
  slot_count_set(slot, 0);
}

/* False: no memory for it. */
static bool slot_credit_set(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  ladei_lock_assert_held(&retire->lock);
  uint64_t promised = retire->promised - slot->credit + CREDIT;
  if (slot->credit < CREDIT && !ladei_slab_reserve(&retire->uses, promised)) return false;
  retire->promised = promised;
  slot->credit = CREDIT;
  return true;
}

static void slot_empty(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = slot->queue;
  if (queue == NULL) return;
  slot_tell(retire, slot);
  queue->inline_notes += slot->noted;
  retire->counters.noted_uses += (uint64_t)slot->noted; /* modulo 2^64 */
  retire->promised -= slot->credit;
  *slot = (ladei_retire_buffer_slot){.queue = NULL};
  slots_used_change(retire, -1);
  ladei_retire_queue_unpin(retire, queue);
}

/* ---- Lanes: under retire->lock ----------------------------------------------------------------------------------- */

static void lane_open(ladei_retire *retire, ladei_retire_buffer *lane) {
  ladei_lock_assert_held(&retire->lock);
  if (lane->retire != NULL) return;
  lane->retire = retire;
  lane->thread = &thread_mark;
  lane->prev = NULL;
  lane->next = retire->lanes;
  if (lane->next != NULL) lane->next->prev = lane;
  retire->lanes = lane;
}

static void lane_unlink(ladei_retire *retire, ladei_retire_buffer *lane) {
  ladei_lock_assert_held(&retire->lock);
  if (lane->next != NULL) lane->next->prev = lane->prev;
  *(lane->prev == NULL ? &retire->lanes : &lane->prev->next) = lane->next;
  lane->retire = NULL;
}

/* Whether a lane is to be emptied: it knows of the queue; NULL: of any ticket, or with `notes` of anything. */
static bool lane_matters(const ladei_retire_buffer *lane, const ladei_retire_queue *queue, bool notes) {
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) {
    const ladei_retire_buffer_slot *slot = &lane->slots[i];
    if (slot->queue == NULL || (queue != NULL && slot->queue != queue)) continue;
    if (notes || slot_count(slot) > 0) return true;
  }
  return false;
}

static void lane_empty(ladei_retire *retire, ladei_retire_buffer *lane) {
  ladei_lock_assert_held(&retire->lock);
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) slot_empty(retire, &lane->slots[i]);
}

static bool lane_is_own(const ladei_retire_buffer *lane) { return lane->thread == &thread_mark; }

/*
 * Two rounds, so that one barrier serves all gates. What an owner added before something that the caller knows of shows
 * in its count, so it is right to pass by a lane whose count says that it is empty. Owners that cannot be fenced are
 * called (L5).
 */
static void lanes_collect(ladei_retire *retire, const ladei_retire_queue *queue, bool notes) {
  ladei_lock_assert_held(&retire->lock);
  bool barrier = false;
  if (atomic_load_explicit(&retire->slots_used, memory_order_relaxed) == 0) return;
  for (ladei_retire_buffer *lane = retire->lanes; lane != NULL; lane = lane->next) {
    lane->visited = lane_matters(lane, queue, notes);
    if (lane->visited && !lane_is_own(lane) && ladei_asym_lock_close(&lane->gate)) barrier = true;
  }
  bool fenced = barrier && ladei_asym_lock_barrier();
  for (ladei_retire_buffer *lane = retire->lanes; lane != NULL; lane = lane->next) {
    if (!lane->visited) continue;
    if (lane_is_own(lane)) {
      lane_empty(retire, lane);
    } else if (ladei_asym_lock_wait(&lane->gate, fenced)) {
      lane_empty(retire, lane);
      ladei_asym_lock_open(&lane->gate);
    }
  }
}

void ladei_retire_buffers_tell(ladei_retire *retire) { lanes_collect(retire, NULL, false); }

void ladei_retire_buffers_empty(ladei_retire *retire) { lanes_collect(retire, NULL, true); }

void ladei_retire_buffers_forget_queue(ladei_retire *retire, const ladei_retire_queue *queue) {
  lanes_collect(retire, queue, true);
}

void ladei_retire_buffers_close(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  while (retire->lanes != NULL) {
    lane_empty(retire, retire->lanes);
    lane_unlink(retire, retire->lanes);
  }
  ladei_lock_release(&retire->lock);
}

/* ---- The owner's slow steps -------------------------------------------------------------------------------------- */

/* The slot that has the queue; else an empty one; else the one behind all others in turn. */
static ladei_retire_buffer_slot *slot_for(ladei_retire_buffer *lane, const ladei_retire_queue *queue) {
  ladei_retire_buffer_slot *empty = slot_at(lane, 1);
  for (ladei_retire_buffer_slot *slot = lane->slots; slot < lane->slots + LADEI_RETIRE_BUFFER_SLOTS; slot++) {
    if (slot->queue == queue) return slot;
    if (slot->queue == NULL && empty->queue != NULL) empty = slot;
  }
  return empty;
}

/*
 * Note [Streams in turn]
 *
 * Where hundreds of streams take turns, a batch has one use when its slot goes to another stream, and nothing comes to it
 * for long. Left open, it would wait until memory runs out, with as many others as there are streams, and then be asked
 * for anyway. So a stream is asked when it leaves, and if it is done, its blocks are used again while they are in the
 * caches of the processor. All streams of the lane that are so rare leave together, for one dropping of the lock. With
 * fewer streams uses still come to share an event, and nobody asks. Streams that were not done make the next question
 * rarer, down to one in 64.
 *
 * The batch lies in its slot while its stream is asked, so whoever needs to know of all tickets finds it there, tells it
 * to the queue, and waits for the claim.
 */
enum { TURN_MIN = 256, FRUITLESS_MAX = 6 };

static bool lane_asks(ladei_retire_buffer *lane) {
  if (lane->ask_skip == 0) return true;
  lane->ask_skip--;
  return false;
}

static void lane_asked(ladei_retire_buffer *lane, bool any_done) {
  if (any_done)
    lane->ask_fruitless = 0;
  else if (lane->ask_fruitless < FRUITLESS_MAX)
    lane->ask_fruitless++;
  lane->ask_skip = (1u << lane->ask_fruitless) - 1;
}

/* The stream is done with the batch, which need not be told any more. Returns its tickets, of which pending_tickets does not
 * know yet. */
static uint32_t slot_finish(ladei_retire *retire, ladei_retire_buffer_slot *slot, ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t count = slot_count(slot);
  if (count == 0) return 0; /* told before the question */
  retire->promised--;
  ladei_retire_done_append(done, slot->first, slot->last, count);
  slot->first = slot->last = NULL;
  slot_count_set(slot, 0);
  return count;
}

static void slot_leave(ladei_retire *retire, ladei_retire_buffer_slot *slot) {
  if (slot->queue != NULL) slot->queue->left = (uint32_t)retire->leave_count++;
  slot_empty(retire, slot);
}

/* What else is pending on the stream is asked for too: then the batch takes its place behind it. */
static bool slot_ask_begin(ladei_retire *retire, ladei_retire_buffer_slot *slot, ladei_retire_question *question) {
  ladei_retire_queue *queue = slot->queue;
  if (queue == NULL || !slot->rare || slot_count(slot) == 0 || !ladei_retire_queue_claim(retire, queue)) return false;
  if (queue->pending > 0) slot_tell(retire, slot);
  *question = (ladei_retire_question){.queue = queue};
  return true;
}

/* Empties the slots of streams that come so rarely. Drops the lock. */
static void lane_ask(ladei_retire *retire, ladei_retire_buffer *lane, ladei_retire_done_list *done) {
  ladei_retire_question questions[LADEI_RETIRE_BUFFER_SLOTS];
  ladei_retire_buffer_slot *asked[LADEI_RETIRE_BUFFER_SLOTS];
  unsigned count = 0;
  uint64_t finished = 0;
  bool any_done = false;
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) {
    asked[count] = &lane->slots[i];
    if (slot_ask_begin(retire, asked[count], &questions[count])) count++;
  }
  ladei_retire_queues_ask(retire, questions, count, done);
  for (unsigned i = 0; i < count; i++) {
    if (asked[i]->queue == questions[i].queue) {
      if (questions[i].done) finished += slot_finish(retire, asked[i], done);
      slot_leave(retire, asked[i]);
    }
    any_done = any_done || questions[i].done;
    ladei_retire_queue_yield(retire, questions[i].queue);
  }
  if (finished > 0) ladei_retire_pending_add(retire, finished);
  lane_asked(lane, any_done);
}

/* The slot that is to have the pinned queue, empty unless it has it. May drop the lock before; what is found done goes to
 * *done. */
static ladei_retire_buffer_slot *lane_vacate(ladei_retire *retire, ladei_retire_buffer *lane,
                                             const ladei_retire_queue *queue, ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_buffer_slot *slot = slot_for(lane, queue);
  if (slot->queue == NULL || slot->queue == queue) return slot;
  if (slot->rare && lane_asks(lane)) {
    lane_ask(retire, lane, done);
    slot = slot_for(lane, queue);
  }
  if (slot->queue != queue) slot_leave(retire, slot);
  return slot;
}

/* Under the lock, which is dropped meanwhile. Tickets off their slots are lost with a thread that is cancelled. */
static void lane_deliver(ladei_retire *retire, ladei_retire_done_list *done) {
  if (done->count == 0) return;
  int cancellation = ladei_cancellation_hold();
  ladei_retire_done_deliver(retire, done);
  ladei_cancellation_resume(cancellation);
}

/* Gives a slot, from lane_vacate, to a pinned queue, whose pin goes to the slot or back. False: no lane for it. Not where
 * the stream is lost: its next note is to be seen (Q8). */
static bool lane_adopt(ladei_retire *retire, ladei_retire_buffer *lane, ladei_retire_buffer_slot *slot,
                       ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  lane_open(retire, lane);
  bool good = !queue->retired && !queue->retiring && !queue->finished && !queue->lost;
  if (good && slot->queue != queue) {
    *slot = (ladei_retire_buffer_slot){.queue = queue, .context = queue->stream.context, .id = queue->stream.id};
    slot->rare = (uint32_t)retire->leave_count - queue->left > TURN_MIN; /* modulo 2^32 */
    slot_room_set(retire, slot);
    slots_used_change(retire, 1);
    ladei_retire_queue_pin(retire, queue);
  }
  if (good && !slot_credit_set(retire, slot)) {
    slot_empty(retire, slot);
    good = false;
  }
  if (good) lane->recent = (unsigned)(slot - lane->slots);
  ladei_retire_queue_unpin(retire, queue);
  return good;
}

/* Q9: the lock is not dropped between what says that the stream is used and its slot. */
static __attribute__((noinline)) bool lane_adopt_stream(ladei_retire *retire, ladei_retire_buffer *lane,
                                                        const ladei_stream *stream) {
  ladei_retire_done_list done;
  ladei_retire_done_init(&done);
  ladei_lock_acquire(&retire->lock);
  uint32_t *passes = ladei_retire_pass_begin(retire);
  ladei_retire_queue *queue = ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_STREAM, stream);
  bool good = false;
  if (queue != NULL) {
    ladei_retire_buffer_slot *slot = lane_vacate(retire, lane, queue, &done);
    ladei_retire_queue_named(queue);
    good = lane_adopt(retire, lane, slot, queue);
  }
  lane_deliver(retire, &done);
  ladei_retire_pass_end(retire, passes);
  ladei_lock_release(&retire->lock);
  return good;
}

/* For a ticket that another thread noted. */
static __attribute__((noinline)) bool lane_adopt_ticket(ladei_retire *retire, ladei_retire_buffer *lane,
                                                        const ladei_retire_ticket *ticket) {
  ladei_retire_done_list done;
  ladei_retire_done_init(&done);
  ladei_lock_acquire(&retire->lock);
  uint32_t *passes = ladei_retire_pass_begin(retire);
  ladei_retire_use *note = atomic_load_explicit(&ticket->uses, memory_order_acquire);
  bool good = ladei_retire_note_is_inline(note);
  if (good) {
    ladei_retire_queue *queue = ladei_retire_inline_queue(note); /* lives while the note is there (L2) */
    ladei_retire_queue_pin(retire, queue);
    ladei_retire_buffer_slot *slot = lane_vacate(retire, lane, queue, &done);
    queue->appends++;
    good = lane_adopt(retire, lane, slot, queue);
  }
  lane_deliver(retire, &done);
  ladei_retire_pass_end(retire, passes);
  ladei_lock_release(&retire->lock);
  return good;
}

/* A batch is full, unless it was told meanwhile: tells it, and closes it. */
static void lane_tell(ladei_retire *retire, ladei_retire_buffer *lane, unsigned place) {
  ladei_retire_buffer_slot *slot = &lane->slots[place];
  ladei_lock_acquire(&retire->lock);
  ladei_retire_queue *queue = slot->queue;
  if (queue != NULL) {
    slot_tell(retire, slot);
    bool fills = ladei_retire_queue_fills(retire, queue);
    slot_room_set(retire, slot);
    if (fills) slot->room = retire->options.event_batch; /* what is open is being closed */
    if (!slot_credit_set(retire, slot)) slot_empty(retire, slot);
    if (fills) ladei_retire_queue_close_claimed(retire, queue);
  }
  ladei_lock_release(&retire->lock);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

void ladei_retire_buffer_init(ladei_retire_buffer *lane) {
  *lane = (ladei_retire_buffer){.retire = NULL};
  ladei_asym_lock_init(&lane->gate);
}

void ladei_retire_buffer_close(ladei_retire *retire, ladei_retire_buffer *lane) {
  ladei_lock_acquire(&retire->lock);
  if (lane->retire == retire) {
    lane_empty(retire, lane);
    lane_unlink(retire, lane);
  }
  ladei_lock_release(&retire->lock);
}

void ladei_retire_buffer_answer(ladei_retire *retire, ladei_retire_buffer *lane) {
  ladei_lock_acquire(&retire->lock);
  if (ladei_retire_buffer_is_called(lane)) {
    if (lane->retire == retire) lane_empty(retire, lane);
    ladei_asym_lock_answer(&lane->gate);
  }
  ladei_lock_release(&retire->lock);
}

/* Batches of one have no use for lanes. */
static bool lanes_off(const ladei_retire *retire) { return retire->options.event_batch == 1; }

lade_status ladei_retire_buffer_note(ladei_retire *retire, ladei_retire_buffer *lane, ladei_retire_ticket *ticket,
                                     lade_stream handle) {
  ladei_stream stream;
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  if (!ladei_process_is_own(&retire->runtime->owner)) return ladei_runtime_check_process(retire->runtime);
  lade_status status = ladei_retire_driver(retire)->stream_resolve(retire->runtime->self, handle, &stream);
  if (status != LADE_OK) return status;
  if (stream.kind != LADEI_STREAM_ORDINARY || lanes_off(retire))
    return ladei_retire_note_resolved(retire, ticket, &stream, 0);
  status = ladei_retire_driver(retire)->stream_capture_info(retire->runtime->self, &stream, &info);
  if (status != LADE_OK) return status;
  if (info.status != LADEI_CAPTURE_NONE) return ladei_retire_note_resolved(retire, ticket, &stream, 0);
  quick_result result = note_quick(lane, ticket, &stream);
  if (result == QUICK_NO_SLOT && lane_adopt_stream(retire, lane, &stream)) result = note_quick(lane, ticket, &stream);
  if (result == QUICK_SHUT && ladei_retire_buffer_is_called(lane)) ladei_retire_buffer_answer(retire, lane);
  return result == QUICK_DONE ? LADE_OK : ladei_retire_note_stream(retire, ticket, &stream, 0);
}

bool ladei_retire_buffer_add(ladei_retire *retire, ladei_retire_buffer *lane, ladei_retire_ticket *ticket) {
  if (lanes_off(retire) || atomic_load_explicit(&retire->broken, memory_order_relaxed))
    return ladei_retire_add(retire, ticket, false);
  quick_result result = add_quick(lane, ticket);
  if (result == QUICK_NO_SLOT && lane_adopt_ticket(retire, lane, ticket)) result = add_quick(lane, ticket);
  if (result == QUICK_FULL) lane_tell(retire, lane, lane->recent);
  if (result == QUICK_SHUT && ladei_retire_buffer_is_called(lane)) ladei_retire_buffer_answer(retire, lane);
  return result == QUICK_DONE || result == QUICK_FULL || ladei_retire_add(retire, ticket, false);
}
