/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Noting uses and adding tickets. Model, invariants Q1 to Q11 and locks: retire_queue.h.
 *
 *   ticket --uses--> use (queue s1) --> use (queue s2) --> NULL       noted: ascending by queue, each queue once
 *   ticket --waits: 2                                                 pending: the uses lie in their queues
 *
 * N1  A ticket's noted uses belong to different queues, except by N4. A stream is not in it both until the free
 *     (STREAM) and until some note (NOW): the former replaces the latter.
 * N2  A note makes its driver calls first and links the use last, so a note that fails has changed nothing.
 * N3  An add allocates nothing: the notes have made all that it needs.
 * N4  NOW uses of one stream: an event covers only work that was queued when it was recorded, without the lock. So an
 *     event replaces another one only if the other's record ended (it was linked, and got its sequence) before its own
 *     began (the sequence was read). Of two records that overlapped it is unknown which one covers more: the ticket
 *     keeps both uses.
 * N5  If several objects share tickets (retire_shards.h), a ticket belongs to the object whose note or seal it has,
 *     from the first note to the add. A call that finds another object's note changes nothing, and reports that.
 */
#include "runtime/retire/retire_note.h"

#include <assert.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/switch.h"
#include "runtime/retire/retire_capture.h"
#include "runtime/retire/retire_close.h"

/* ---- A ticket's noted uses: under retire->lock ------------------------------------------------------------------- */

/* Turns a buffer's note into an ordinary use. False: its buffer has added it meanwhile. */
static bool note_unfold(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_retire_use *note) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = ladei_retire_inline_queue(note);
  retire->promised--;
  ladei_retire_use *use = ladei_retire_use_make(retire, ticket, queue);
  assert(use != NULL); /* L3 */
  ladei_switch_point("unfold", 0);
  if (!atomic_compare_exchange_strong(&ticket->uses, &note, use)) {
    ladei_retire_use_free(retire, use);
    retire->promised++;
    return false;
  }
  queue->inline_notes--;
  ladei_retire_queue_pin(retire, queue);
  return true;
}

/* No buffer changes the ticket from here to ticket_unseal (L4). The lock must not be dropped in between. False: another
 * shard has the ticket, or is sealing it; nothing needs to be undone (N5). */
static bool ticket_seal(ladei_retire *retire, ladei_retire_ticket *ticket) {
  ladei_lock_assert_held(&retire->lock);
  for (bool sealed = false; !sealed;) {
    ladei_retire_use *present = atomic_load_explicit(&ticket->uses, memory_order_acquire);
    if (present == NULL) {
      ladei_switch_point("seal", 0);
      sealed = atomic_compare_exchange_strong(&ticket->uses, &present, LADEI_NOTE_SEALED);
    } else if (present == LADEI_NOTE_SEALED || ladei_retire_note_shard(present) != retire->options.shard) {
      return false;
    } else {
      sealed = !ladei_retire_note_is_inline(present) || note_unfold(retire, ticket, present);
    }
  }
  return true;
}

/* If one shard has all tickets. */
static void ticket_seal_own(ladei_retire *retire, ladei_retire_ticket *ticket) {
  bool sealed = ticket_seal(retire, ticket);
  assert(sealed);
  (void)sealed;
}

static void ticket_unseal(ladei_retire_ticket *ticket) {
  if (atomic_load_explicit(&ticket->uses, memory_order_relaxed) == LADEI_NOTE_SEALED)
    atomic_store_explicit(&ticket->uses, NULL, memory_order_release);
}

/* The uses of a sealed ticket. */
static ladei_retire_use *ticket_uses(const ladei_retire_ticket *ticket) {
  ladei_retire_use *uses = atomic_load_explicit(&ticket->uses, memory_order_relaxed);
  return uses == LADEI_NOTE_SEALED ? NULL : uses;
}

/* The stream's first use, starting at `use`. */
static ladei_retire_use *use_find(ladei_retire_use *use, ladei_retire_queue_kind kind, const ladei_stream *stream) {
  while (use != NULL && !(use->queue->kind == kind && use->queue->stream.context == stream->context &&
                          use->queue->stream.id == stream->id))
    use = use->next;
  return use;
}

static ladei_retire_use *ticket_find(const ladei_retire_ticket *ticket, ladei_retire_queue_kind kind,
                                     const ladei_stream *stream) {
  return use_find(ticket_uses(ticket), kind, stream);
}

/* Inserts a use before the first one of a later queue. */
static void ticket_link(ladei_retire_ticket *ticket, ladei_retire_use *use) {
  ladei_retire_use *before = NULL, *after = ticket_uses(ticket);
  while (after != NULL && !ladei_retire_queue_is_before(use->queue, after->queue)) {
    before = after;
    after = after->next;
  }
  use->next = after;
  if (before != NULL)
    before->next = use;
  else
    atomic_store_explicit(&ticket->uses, use, memory_order_release);
}

static void ticket_unlink(ladei_retire_ticket *ticket, const ladei_retire_use *use) {
  ladei_retire_use *before = ticket_uses(ticket);
  if (before == use) {
    atomic_store_explicit(&ticket->uses, use->next, memory_order_release);
    return;
  }
  while (before->next != use) before = before->next;
  before->next = use->next;
}

/* Removes a noted use from its ticket, for good. */
static void note_remove(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_retire_use *use) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = use->queue;
  ticket_unlink(ticket, use);
  ladei_retire_use_free(retire, use);
  retire->counters.noted_uses--;
  ladei_retire_queue_unpin(retire, queue);
}

/* Removes a stream's NOW uses that ended before `began` (N4). Returns whether all of them were forgettable. */
static bool notes_remove_ended(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                               uint64_t began) {
  ladei_lock_assert_held(&retire->lock);
  bool forgettable = true;
  for (ladei_retire_use *use = ticket_find(ticket, LADEI_RETIRE_QUEUE_NOW, stream), *after; use != NULL; use = after) {
    after = use_find(use->next, LADEI_RETIRE_QUEUE_NOW, stream);
    if (use->sequence > began) continue;
    forgettable = forgettable && use->forgettable;
    note_remove(retire, ticket, use);
  }
  return forgettable;
}

/* Notes a use of a pinned queue, whose pin it takes over on success. NULL when there is no memory. */
static ladei_retire_use *note_insert(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_retire_queue *queue,
                                     unsigned flags) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_use *use = ladei_retire_use_make(retire, ticket, queue);
  if (use == NULL) return NULL;
  use->forgettable = (flags & LADEI_NOTE_MARK) != 0;
  ticket_link(ticket, use);
  retire->counters.noted_uses++;
  return use;
}

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "retire: no memory to note a stream's use of a block");
}

static lade_status stream_retired(const ladei_stream *stream) {
  return ladei_error(LADE_ERR_STREAM_RETIRED, 0, "retire: stream id %llu was retired", (unsigned long long)stream->id);
}

/* ---- Notes ------------------------------------------------------------------------------------------------------- */

/* A note until the free: no driver call. */
lade_status ladei_retire_note_stream(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                                     unsigned flags) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&retire->lock);
  ladei_retire_queue *queue = ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_STREAM, stream);
  if (!ticket_seal(retire, ticket)) {
    if (queue != NULL) ladei_retire_queue_unpin(retire, queue);
    ladei_lock_release(&retire->lock);
    return LADEI_RETIRE_ELSEWHERE;
  }
  ladei_retire_use *present = queue == NULL ? NULL : ticket_find(ticket, LADEI_RETIRE_QUEUE_STREAM, stream);
  if (queue != NULL) ladei_retire_queue_named(queue);
  if (queue == NULL) {
    status = no_memory();
  } else if (queue->retired || queue->retiring) {
    status = stream_retired(stream);
  } else if (present != NULL) {
    present->forgettable = present->forgettable && (flags & LADEI_NOTE_MARK) != 0;
  } else if (note_insert(retire, ticket, queue, flags) == NULL) {
    status = no_memory();
  } else {
    (void)notes_remove_ended(retire, ticket, stream, UINT64_MAX); /* N1 */
    queue = NULL;                                                 /* the use has the pin */
  }
  ticket_unseal(ticket);
  if (queue != NULL) ladei_retire_queue_unpin(retire, queue);
  ladei_lock_release(&retire->lock);
  return status;
}

/* Not under the lock. An event that covers the work queued on the stream until now. */
static lade_status now_event(ladei_retire *retire, const ladei_stream *stream, ladei_event **out) {
  void *self = retire->runtime->self;
  ladei_event *event;
  LADEI_TRY(ladei_event_pool_acquire(retire->events, stream->context, &event));
  lade_status status = ladei_retire_driver(retire)->event_record(self, event->handle, stream);
  if (status == LADE_OK && stream->kind != LADEI_STREAM_PER_THREAD) {
    /* Another thread may just have begun a capture of the stream: the event is in it then, and must not be queried
     * while it lasts; if it is over, the query says so. */
    status = ladei_stream_uncaptured(retire->runtime, stream, "event_record");
    if (status == LADE_OK) status = ladei_retire_driver(retire)->event_query(self, event->handle);
  }
  if (status != LADE_OK && status != LADE_NOT_READY) {
    ladei_event_pool_discard(retire->events, event);
    return status;
  }
  *out = event;
  return LADE_OK;
}

/* NULL refuses nothing. */
static bool queue_refuses(const ladei_retire_queue *queue) {
  return queue != NULL && (queue->retired || queue->retiring);
}

/* Under the lock. Puts an event, recorded after the sequence was `began`, into the ticket; then takes *event. */
static lade_status now_link(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                            unsigned flags, uint64_t began, ladei_event **event) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *whole = ladei_retire_queue_find(retire, LADEI_RETIRE_QUEUE_STREAM, stream->context, stream->id);
  if (queue_refuses(whole)) return stream_retired(stream);
  ladei_retire_queue *queue = ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_NOW, stream);
  if (queue == NULL) return no_memory();
  whole = ladei_retire_queue_find(retire, LADEI_RETIRE_QUEUE_STREAM, stream->context,
                                  stream->id); /* the lock may have been dropped */
  if (queue_refuses(whole)) {
    ladei_retire_queue_unpin(retire, queue);
    return stream_retired(stream);
  }
  if (!ticket_seal(retire, ticket)) {
    ladei_retire_queue_unpin(retire, queue);
    return LADEI_RETIRE_ELSEWHERE;
  }
  bool lasts = ticket_find(ticket, LADEI_RETIRE_QUEUE_STREAM, stream) != NULL; /* N1: until the free anyway */
  if (lasts) ladei_retire_queue_named(whole);                                  /* Q9: that use now covers its work */
  ladei_retire_use *use = lasts ? NULL : note_insert(retire, ticket, queue, flags);
  if (use == NULL) {
    ticket_unseal(ticket);
    ladei_retire_queue_unpin(retire, queue);
    return lasts ? LADE_OK : no_memory();
  }
  use->sequence = UINT64_MAX; /* not one of those that ended */
  use->forgettable = notes_remove_ended(retire, ticket, stream, began) && use->forgettable;
  use->sequence = atomic_load_explicit(&retire->sequence, memory_order_relaxed) + 1;
  atomic_store_explicit(&retire->sequence, use->sequence, memory_order_release);
  use->event = *event;
  *event = NULL;
  return LADE_OK;
}

/* A note until now: records an event. */
static lade_status note_now(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                            unsigned flags) {
  ladei_event *event;
  uint64_t began = atomic_load_explicit(&retire->sequence, memory_order_acquire);
  LADEI_TRY(now_event(retire, stream, &event));
  ladei_lock_acquire(&retire->lock);
  retire->counters.events_recorded++;
  lade_status status = now_link(retire, ticket, stream, flags, began, &event);
  if (event != NULL) ladei_event_pool_release(retire->events, event);
  ladei_lock_release(&retire->lock);
  return status;
}

/* A note until the captured graph has gone. */
static lade_status note_capture(ladei_retire *retire, ladei_retire_ticket *ticket, int device,
                                const ladei_capture_info *info, unsigned flags) {
  ladei_retire_queue *queue;
  lade_status status = ladei_retire_capture_queue_need(retire, device, info, &queue);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&retire->lock);
  if (!ticket_seal(retire, ticket)) {
    ladei_retire_queue_unpin(retire, queue);
    ladei_lock_release(&retire->lock);
    return LADEI_RETIRE_ELSEWHERE;
  }
  bool present = ticket_find(ticket, LADEI_RETIRE_QUEUE_CAPTURE, &queue->stream) != NULL;
  if (!present && note_insert(retire, ticket, queue, flags) == NULL) {
    status = no_memory();
    present = true;
  }
  ticket_unseal(ticket);
  if (present) ladei_retire_queue_unpin(retire, queue);
  ladei_lock_release(&retire->lock);
  return status;
}

/* Held: objects from the driver would be lost if the thread were cancelled before they are linked. */
static lade_status note_held(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                             const ladei_capture_info *capture, unsigned flags) {
  return LADEI_UNCANCELLED(capture != NULL ? note_capture(retire, ticket, stream->device, capture, flags)
                                           : note_now(retire, ticket, stream, flags));
}

static lade_status note_resolved(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                                 unsigned flags) {
  bool now = (flags & LADEI_NOTE_NOW) != 0 || stream->kind == LADEI_STREAM_PER_THREAD;
  bool plain = (flags & LADEI_NOTE_PLAIN) != 0;
  if (plain && !now) return ladei_retire_note_stream(retire, ticket, stream, flags);
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  lade_status status = ladei_retire_driver(retire)->stream_capture_info(retire->runtime->self, stream, &info);
  if (status != LADE_OK) return status;
  if (info.status == LADEI_CAPTURE_ACTIVE && !plain) return note_held(retire, ticket, stream, &info, flags);
  if (!now) return ladei_retire_note_stream(retire, ticket, stream, flags);
  if (info.status == LADEI_CAPTURE_NONE) return note_held(retire, ticket, stream, NULL, flags);
  return ladei_error(LADE_ERR_CAPTURE, 0, "retire: no event can be recorded on stream id %llu during a capture",
                     (unsigned long long)stream->id);
}

lade_status ladei_retire_note_resolved(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                                       unsigned flags) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  return status != LADE_OK ? status : note_resolved(retire, ticket, stream, flags);
}

lade_status ladei_retire_note(ladei_retire *retire, ladei_retire_ticket *ticket, lade_stream handle, unsigned flags) {
  ladei_stream stream;
  lade_status status = ladei_runtime_check_process(retire->runtime);
  if (status == LADE_OK) status = ladei_retire_driver(retire)->stream_resolve(retire->runtime->self, handle, &stream);
  return status != LADE_OK ? status : note_resolved(retire, ticket, &stream, flags);
}

lade_status ladei_retire_note_event(ladei_retire *retire, ladei_retire_ticket *ticket, lade_event event) {
  static const ladei_stream nobody;
  lade_status status = ladei_runtime_check_process(retire->runtime);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&retire->lock);
  ladei_retire_queue *queue = ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_FOREIGN, &nobody);
  bool sealed = ticket_seal(retire, ticket);
  ladei_retire_use *use = queue == NULL || !sealed ? NULL : note_insert(retire, ticket, queue, 0);
  if (sealed) ticket_unseal(ticket);
  if (use != NULL) {
    use->foreign = event;
  } else {
    if (queue != NULL) ladei_retire_queue_unpin(retire, queue);
    status = sealed ? no_memory() : LADEI_RETIRE_ELSEWHERE;
  }
  ladei_lock_release(&retire->lock);
  return status;
}

static bool forget(ladei_retire *retire, ladei_retire_ticket *ticket, bool all) {
  if (!ladei_retire_ticket_noted(ticket)) return true;
  ladei_lock_acquire(&retire->lock);
  bool sealed = ticket_seal(retire, ticket);
  for (ladei_retire_use *use = sealed ? ticket_uses(ticket) : NULL, *next; use != NULL; use = next) {
    next = use->next;
    if (all || use->forgettable) note_remove(retire, ticket, use);
  }
  if (sealed) ticket_unseal(ticket);
  ladei_lock_release(&retire->lock);
  return sealed;
}

bool ladei_retire_forget_here(ladei_retire *retire, ladei_retire_ticket *ticket) {
  return forget(retire, ticket, true);
}

void ladei_retire_forget(ladei_retire *retire, ladei_retire_ticket *ticket) { (void)forget(retire, ticket, true); }

void ladei_retire_forget_marked(ladei_retire *retire, ladei_retire_ticket *ticket) {
  (void)forget(retire, ticket, false);
}

bool ladei_retire_marked(ladei_retire *retire, ladei_retire_ticket *ticket) {
  bool marked = false;
  if (!ladei_retire_ticket_noted(ticket)) return false;
  ladei_lock_acquire(&retire->lock);
  ticket_seal_own(retire, ticket);
  for (const ladei_retire_use *use = ticket_uses(ticket); use != NULL; use = use->next)
    marked = marked || use->forgettable;
  ticket_unseal(ticket);
  ladei_lock_release(&retire->lock);
  return marked;
}

static bool use_is_plain(const ladei_retire_use *use) {
  const ladei_retire_queue *queue = use->queue;
  bool lives = !queue->retired && !queue->retiring && !queue->lost;
  return use->forgettable && lives && queue->kind == LADEI_RETIRE_QUEUE_STREAM &&
         queue->stream.kind == LADEI_STREAM_ORDINARY;
}

bool ladei_retire_marked_streams(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_stream *streams,
                                 size_t capacity, size_t *out_count) {
  bool all = true;
  size_t count = 0;
  ladei_lock_acquire(&retire->lock);
  ticket_seal_own(retire, ticket);
  for (const ladei_retire_use *use = ticket_uses(ticket); use != NULL && all; use = use->next) {
    all = count < capacity && use_is_plain(use);
    if (all) streams[count++] = use->queue->stream;
  }
  ticket_unseal(ticket);
  ladei_lock_release(&retire->lock);
  *out_count = count;
  return all;
}

/* ---- Add --------------------------------------------------------------------------------------------------------- */

/* Under the lock. Makes a noted use pending, or drops it if there is nothing to wait for. Returns its queue if the
 * caller should close it. */
static ladei_retire_queue *use_add(ladei_retire *retire, ladei_retire_use *use, bool quiet) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = use->queue;
  retire->counters.noted_uses--;
  if (queue->finished) {
    ladei_retire_use_free(retire, use);
    ladei_retire_queue_unpin(retire, queue);
    return NULL;
  }
  use->ticket->waits++;
  ladei_retire_queue_append(retire, queue, use);
  return !quiet && ladei_retire_queue_fills(retire, queue) ? queue : NULL;
}

/* Under the lock. Ends the add's own hold on the ticket. */
static bool ticket_wait_begin(ladei_retire *retire, ladei_retire_ticket *ticket) {
  ladei_lock_assert_held(&retire->lock);
  if (--ticket->waits > 0) return true;
  ladei_retire_pending_sub(retire, 1);
  return false;
}

ladei_retire_added ladei_retire_add_here(ladei_retire *retire, ladei_retire_ticket *ticket, bool quiet) {
  if (!ladei_retire_ticket_noted(ticket)) return LADEI_RETIRE_ADDED_IDLE;
  ladei_retire_queue *claimed = NULL, **tail = &claimed;
  ladei_lock_acquire(&retire->lock);
  assert(ticket->waits == 0); /* added once */
  if (!ticket_seal(retire, ticket)) {
    ladei_lock_release(&retire->lock);
    return LADEI_RETIRE_ADDED_NOT;
  }
  ladei_retire_use *use = ticket_uses(ticket);
  atomic_store_explicit(&ticket->uses, NULL, memory_order_release);
  if (use == NULL) { /* the note that was seen has failed, or was taken back */
    ladei_lock_release(&retire->lock);
    return LADEI_RETIRE_ADDED_IDLE;
  }
  ticket->waits = 1; /* Q5 */
  ladei_retire_pending_add(retire, 1);
  for (ladei_retire_use *next; use != NULL; use = next) {
    next = use->next;
    ladei_retire_queue *queue = use_add(retire, use, quiet);
    if (queue != NULL) {
      queue->next_claimed = NULL;
      *tail = queue;
      tail = &queue->next_claimed;
    }
  }
  for (ladei_retire_queue *next; claimed != NULL; claimed = next) {
    next = claimed->next_claimed;
    ladei_retire_queue_close_claimed(retire, claimed);
  }
  bool pending = ticket_wait_begin(retire, ticket);
  ladei_lock_release(&retire->lock);
  return pending ? LADEI_RETIRE_ADDED_PENDING : LADEI_RETIRE_ADDED_IDLE;
}

bool ladei_retire_add(ladei_retire *retire, ladei_retire_ticket *ticket, bool quiet) {
  ladei_retire_added added = ladei_retire_add_here(retire, ticket, quiet);
  assert(added != LADEI_RETIRE_ADDED_NOT); /* one shard has all tickets */
  return added == LADEI_RETIRE_ADDED_PENDING;
}
