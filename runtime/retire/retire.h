/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retirement: when are the streams that used a block done with it?
 *
 * The owner (a pinned pool, a device allocator) embeds a ladei_retire_ticket in the record of each block.
 *
 *   note      a stream uses the block                     ladei_retire_note: as often as needed, while in use
 *   add       the owner frees the block                   ladei_retire_add
 *   poll      find streams that are done                  ladei_retire_poll: before taking new memory
 *   done()    callback with the list of tickets whose streams are all done
 *
 *     idle --note--> noted --add--> pending --(poll, synchronize)--> done() --> idle
 *                      |              |
 *                   forget          add returns false if there is nothing to wait for: idle at once
 *
 * The note resolves the stream into (context, id); each stream has one FIFO queue of the uses added so far.
 * `event_batch` uses share one event (a few more if threads add at the same moment):
 *
 *   stream s1:  u u u u [event]  u u u u [event]  u u (open)         each event covers all uses before it
 *
 * Closing the open batch records its event. A batch is closed by the add that fills it, by ladei_retire_poll with
 * LADEI_POLL_CLOSE, by ladei_retire_close, synchronize and stream_retire; on the legacy stream by every add. The stream
 * is asked first: if it is done, it needs no event (unless `events_only`).
 *
 * Promises
 *   P1  done() gets a ticket only after all work has finished that was queued, on every stream noted, before the add.
 *   P2  A stream that never finishes delays only tickets that were noted on it.
 *   P3  poll costs at most one event query per stream with pending uses plus one per finished batch. With
 *       LADEI_POLL_CLOSE each open batch also costs a check of its stream (is it the same, done, capturing), one record,
 *       and a second look whether it is the same.
 *   P4  No driver call and no callback is made under a lade lock. The caller holds none, except where said otherwise.
 *   P5  An add never fails or waits. If an event cannot be recorded or queried, its uses are in quarantine: their
 *       tickets stay pending, every later poll tries again, and only synchronize and end_quarantine wait for the stream
 *       instead.
 *   P6  Order. Within one poll, queues are visited by ascending `order` (then context, id), each from its head, and
 *       done() gets the tickets in the order in which their last use was found finished.
 *   P7  After ladei_retire_stream_retire no driver call is made on that stream's handle. Another stream that gets the
 *       same handle later has another id and is never taken for it.
 *   P8  A stream destroyed without that is noticed when its batch should be closed: the driver refuses its handle
 *       (LADE_ERR_INVALID_ARGUMENT), or the handle names another stream. Uses without an event are then in quarantine,
 *       which is no error of any poll; later polls do not use the handle, and synchronize and end_quarantine wait for
 *       the device, where the work of a destroyed stream still runs to its end.
 *   P9  A capturing stream is never asked and never waited for, nor is an event in a capture under way. A device is
 *       waited for only under P8; that breaks captures on it. Note [Asking and capturing] in ops.h names the remaining
 *       race.
 * Precise and special uses
 *   - The per-thread stream, and LADEI_NOTE_NOW: an event is recorded in the note itself, so the ticket waits for the
 *     work queued until the note. Such events are asked one after the other in the order in which the notes returned.
 *   - A capturing stream: the use belongs to the capture. A user object, retained by the graph under construction,
 *     tells when the graph, all its executables and their launches are gone, or the capture was given up. The block
 *     returns then and not earlier, also for graphs that lade did not make.
 *   - A use noted outside a capture whose stream captures when the batch should be closed (or the legacy stream while
 *     another stream of its context captures): the batch stays open, without an error, until a later poll finds that
 *     the capture has ended.
 *   - ladei_retire_note_event: the ticket waits for a caller's event.
 *
 * A thread that makes many notes and adds has a buffer for them, without a lock: retire_buffer.h.
 *
 * Files: retire_note.c a use is noted, a ticket added; retire_queue.c a stream's uses; retire_close.c an event ends a batch;
 * retire_poll.c asks events and streams, and so decides that uses are done; retire_wait.c waits for them; retire_capture.c
 * uses in captures; retire_stream.c the end of a stream; retire_buffer.c, retire_slots.c a thread's buffer; retire_shards.c
 * several objects that share tickets; retire_life.c create and destroy.
 *
 * Cancelled threads (base/cancellation.h): note, add and stream_retire hold cancellation off where they must. For poll,
 * wait, synchronize and end_quarantine their callers do it.
 *
 * Threads: any, at any time, except create and destroy. On "sim" one at a time. Only wait, synchronize and destroy
 * wait, and stream_retire for another thread's driver call under way on that stream.
 */
#ifndef LADE_RUNTIME_RETIRE_H
#define LADE_RUNTIME_RETIRE_H

#include <stdatomic.h>

#include "runtime/ops.h"

typedef struct ladei_retire ladei_retire;
typedef struct ladei_retire_use ladei_retire_use;

/* One block's uses by streams; all zero is idle. Embedded in the owner's record. */
typedef struct ladei_retire_ticket {
  _Atomic(ladei_retire_use *) uses; /* noted and not added */
  struct ladei_retire_ticket *next; /* in the list given to done() */
  uint32_t waits;                   /* pending: number of unfinished uses; the retire object's */
  uint32_t spare;                   /* free for the owner's use; untouched */
} ladei_retire_ticket;

/*
 * Gets a list of tickets whose streams are all done; they are idle once taken off it:
 *
 *   for (ladei_retire_ticket *t; (t = ladei_retire_ticket_take(&list)) != NULL;) block_return(block_of(t));
 *
 * Called in the thread that polls, or that notes or adds by its buffer (retire_buffer.h), without a lade lock. It may
 * call note, add and poll without LADEI_POLL_ALL, but nothing that waits.
 */
typedef void (*ladei_retire_done)(void *owner, ladei_retire_ticket *list);

static inline ladei_retire_ticket *ladei_retire_ticket_take(ladei_retire_ticket **list) {
  ladei_retire_ticket *first = *list;
  if (first != NULL) {
    *list = first->next;
    first->waits = 0;
  }
  return first;
}

/* Whether a ticket has a use noted and not added: the check on the owner's fast path. */
static inline bool ladei_retire_ticket_noted(ladei_retire_ticket *ticket) {
  return atomic_load_explicit(&ticket->uses, memory_order_acquire) != NULL;
}

enum { LADEI_EVENT_BATCH_DEFAULT = 16, LADEI_RETIRE_SHARDS_MOST = 32 };

typedef struct ladei_retire_options {
  void *owner;            /* given to done and order */
  ladei_retire_done done; /* not NULL */
  uint32_t event_batch;   /* uses per event; 0: the default; 1: every add records its own events */
  bool events_only;       /* never ask a stream instead of recording: each batch gets its event */
  uint32_t shard; /* its number among the objects that share tickets: retire_shards.h. Below LADEI_RETIRE_SHARDS_MOST */
  /* A stream's place in the order of polling, smaller first; NULL: by context, then id. A pure function. */
  uint64_t (*order)(void *owner, const ladei_stream *stream);
} ladei_retire_options;

/* Borrows `runtime`: the owner holds it (ladei_runtime_acquire), and counts as one object on it. */
lade_status ladei_retire_create(lade_runtime *runtime, const ladei_retire_options *options, ladei_retire **out);

/*
 * Excludes all other calls. NULL does nothing. With pending tickets it first polls with LADEI_POLL_CLOSE, or with
 * `wait` synchronizes; if some remain, LADE_NOT_READY with their number in the error record, and the object lives on
 * (graphs that hold them may be alive). Drops notes on tickets that were not added: the owner guarantees that no block
 * is in use, so they came too late.
 */
lade_status ladei_retire_destroy(ladei_retire *retire, bool wait);
/* Its first half: adds the number of remaining tickets to *pending. Second: the failure with that number. */
lade_status ladei_retire_settle(ladei_retire *retire, bool wait, uint64_t *pending);
lade_status ladei_retire_still_used(uint64_t pending);

enum {
  LADEI_NOTE_NOW = 1u << 0,   /* the use ends with the work queued so far */
  LADEI_NOTE_PLAIN = 1u << 1, /* never belongs to a capture: the owner has its own rules for captures */
  LADEI_NOTE_MARK = 1u << 2,  /* for ladei_retire_forget_marked; a note without it removes the mark */
};

/*
 * Notes a use by `stream`, a handle as the caller got it; the second function takes it resolved (by this thread).
 *
 * Noting a stream again changes nothing, except that NOW notes move to the present; a note until the free replaces one
 * that ended earlier. May race with other notes on the same ticket, also of the same stream: of NOW notes whose calls
 * overlap all are waited for. A note on a ticket that was already added (a user's mistake that the owner did not catch)
 * does no harm: it counts for the block's next allocation. So an owner forgets the notes of a ticket before its record
 * goes. Errors, nothing noted: those of stream_resolve; LADE_ERR_STREAM_RETIRED; LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_CAPTURE for a NOW or per-thread note while the stream cannot be used, or NOW with PLAIN while it captures;
 * LADE_ERR_FORKED; the driver's failures if an event must be recorded or a graph must retain. PLAIN without NOW,
 * resolved, of an ordinary stream: no driver call; may be called under locks of a lower rank than LADEI_RANK_RETIRE.
 */
lade_status ladei_retire_note(ladei_retire *retire, ladei_retire_ticket *ticket, lade_stream stream, unsigned flags);
lade_status ladei_retire_note_resolved(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                                       unsigned flags);

/*
 * The ticket also waits for `event`, which the caller has recorded, and keeps alive and does not record again until the
 * ticket is done. LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 */
lade_status ladei_retire_note_event(ladei_retire *retire, ladei_retire_ticket *ticket, lade_event event);

/* Removes the notes of a ticket that was not added; the second function only those with LADEI_NOTE_MARK. Makes no
 * driver call; may be called under locks of a lower rank than LADEI_RANK_RETIRE. */
void ladei_retire_forget(ladei_retire *retire, ladei_retire_ticket *ticket);
void ladei_retire_forget_marked(ladei_retire *retire, ladei_retire_ticket *ticket);
/* Whether a ticket that was not added has notes with LADEI_NOTE_MARK. Conditions as forget. */
bool ladei_retire_marked(ladei_retire *retire, ladei_retire_ticket *ticket);
/* The streams noted on such a ticket. False: they are more than `capacity`, or there is a note without LADEI_NOTE_MARK,
 * a NOW note, or one of a special, retired or destroyed stream. Conditions as forget. */
bool ladei_retire_marked_streams(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_stream *streams,
                                 size_t capacity, size_t *out_count);

/*
 * The owner frees the block: wait for its noted uses.
 *
 * true: pending; done() will get the ticket, from now on and possibly before this returns, in another thread.
 * false: nothing to wait for; the ticket is idle and the block may be used.
 * `quiet`: make no driver call at all (inside a host function of the driver; under locks of a lower rank): a later call
 * closes batches that this fills. The owner has checked that this is not a forked child.
 */
bool ladei_retire_add(ladei_retire *retire, ladei_retire_ticket *ticket, bool quiet);

/* If shards share tickets (retire_shards.h): a note's answer that another shard has the ticket (N5 in retire_note.c);
 * nothing has changed. Not a status of a driver or of a public call. */
#define LADEI_RETIRE_ELSEWHERE ((lade_status)1000000)

/* Result of an add to such a ticket. */
typedef enum ladei_retire_added {
  LADEI_RETIRE_ADDED_IDLE,
  LADEI_RETIRE_ADDED_PENDING,
  LADEI_RETIRE_ADDED_NOT, /* another shard has it (N5 in retire_note.c); nothing has changed */
} ladei_retire_added;

enum {
  LADEI_POLL_CLOSE = 1u << 0, /* also close open batches: for a caller about to take new memory */
  /* Otherwise skips queues that another thread has claimed. With it waits for that thread, unless that waits for a
   * stream, and for other polls' calls of done(): for callers about to report that nothing comes back. */
  LADEI_POLL_ALL = 1u << 1,
};

/*
 * Finds finished uses and calls done(). Costs nothing while no ticket is pending.
 *
 * LADE_OK also if nothing was finished; the driver's first failure (its tickets are quarantined, the other queues were
 * still polled); LADE_ERR_FORKED. `out_done`, if not NULL, gets the number of tickets given to done(), on failure too.
 */
lade_status ladei_retire_poll(ladei_retire *retire, unsigned flags, uint64_t *out_done);

/* Whether a poll without LADEI_POLL_CLOSE may find anything; a guess for the price of a load. */
bool ladei_retire_pending(const ladei_retire *retire);

/* Closes all open batches by an event, without asking the streams: later work on their streams is no longer waited for.
 * Errors as poll. */
lade_status ladei_retire_close(ladei_retire *retire);

/*
 * Polls until at least one ticket was given to done(): LADE_OK. LADE_ERR_TIMEOUT when the runtime's clock reaches
 * `deadline_ns` (UINT64_MAX: none); at once if no ticket is pending. On "sim" it moves the clock, and also gives up
 * when nothing more can happen. LADE_ERR_DEVICE_LOST, LADE_ERR_FORKED at once.
 */
lade_status ladei_retire_wait(ladei_retire *retire, uint64_t deadline_ns);

/*
 * Waits for all streams with pending uses, quarantined ones included, and calls done(); waits also for the polls of
 * other threads and their calls of done().
 *
 * LADE_OK: of what was added before nothing is pending. LADE_NOT_READY: the rest waits for graphs to be destroyed (or
 * to end, if a launch is in flight, or a host function blocks the driver's thread for a second). LADE_ERR_CAPTURE:
 * streams that capture, or a capture that forbids waiting. LADE_ERR_DEVICE_LOST: that device runs nothing any more, and
 * its tickets were given to done(). Otherwise the driver's first failure; its tickets stay.
 */
lade_status ladei_retire_synchronize(ladei_retire *retire);

/*
 * The same, but waits for no device, which would break all captures on it: blocks of streams that are gone (P8) without
 * a covering event stay, LADE_ERR_CAPTURE.
 */
lade_status ladei_retire_synchronize_streams(ladei_retire *retire);

/*
 * The same, but only for streams in quarantine, which polls could not settle. LADE_OK also if there are none.
 */
lade_status ladei_retire_end_quarantine(ladei_retire *retire);

/*
 * The stream is about to be destroyed: covers its uses, noted ones included, with a last event.
 *
 * A concurrent note by another thread is covered too, with the work queued before it, or fails with
 * LADE_ERR_STREAM_RETIRED. Work queued on the stream after this call, without a note, is not waited for.
 *
 * LADE_OK also for streams never noted and special handles. LADE_ERR_CAPTURE while it captures, or another failure
 * (LADE_ERR_OUT_OF_HOST_MEMORY): the stream is still needed (synchronise it, then call again: no event is needed then).
 */
lade_status ladei_retire_stream_retire(ladei_retire *retire, lade_stream stream);

/* All exact if no other thread is inside. */
typedef struct ladei_retire_counters {
  uint64_t noted_uses;       /* on tickets that were not added */
  uint64_t pending_tickets;  /* added; done() has not returned from them */
  uint64_t pending_uses;     /* not finished */
  uint64_t open_uses;        /* those not yet covered by an event */
  uint64_t captured_uses;    /* those that wait for a graph */
  uint64_t quarantined_uses; /* those on streams whose last record or query failed, or which are gone */
  uint64_t quarantines;      /* failures of record and query since creation */
  uint64_t events_recorded;
  uint64_t events_queried;
  uint64_t streams_queried;
  uint64_t events_created;
  uint64_t streams; /* queues that exist, idle ones included */
} ladei_retire_counters;

void ladei_retire_counters_get(ladei_retire *retire, ladei_retire_counters *out);

/* Recounts Q1 to Q5 of retire_queue.h; LADE_ERR_INTERNAL names the broken one. For tests and debug builds. */
lade_status ladei_retire_check(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_H */
