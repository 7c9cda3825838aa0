/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retirement: when are the streams that used a block done with it?
 *
 * The owner (a pinned pool, a device allocator) embeds a ladei_retire_ticket in the record of each block.
 *
 *   note      a stream uses the block                     ladei_retire_note: as often as wanted, while in use
 *   add       the owner frees the block                   ladei_retire_add
 *   poll      look which streams are done                 ladei_retire_poll: before taking new memory
 *   done()    called back with the list of tickets whose streams are all done
 *
 *     idle --note--> noted --add--> pending --(poll, synchronize)--> done() --> idle
 *                      |              |
 *                   forget          add answers false when nothing is left to wait for: idle at once
 *
 * A stream is resolved at the note into (context, id), and has one queue of the uses added so far, first in, first out.
 * `event_batch` uses share one event (a few more where threads add at the same moment):
 *
 *   stream s1:  u u u u [event]  u u u u [event]  u u (open)         each event covers all uses before it
 *
 * The open batch is closed, that is its event recorded, by the add that fills it, by ladei_retire_poll with
 * LADEI_POLL_CLOSE, by ladei_retire_close, synchronize and stream_retire; on the legacy stream by every add. Before
 * recording, the stream is asked: one that answers "done" needs no event (unless `events_only`).
 *
 * What is promised
 *   P1  done() gets a ticket only after all work has finished that was queued, on every stream noted, before the add.
 *   P2  A stream that never finishes delays only tickets that were noted on it.
 *   P3  poll costs at most one event query per stream with pending uses plus one per finished batch. LADEI_POLL_CLOSE
 *       costs besides, per open batch, a look at the stream (is it the same, done, capturing) and one record.
 *   P4  No driver call and no callback is made under a lade lock. The caller holds none, except where said otherwise.
 *   P5  An add never fails and never waits. An event that cannot be recorded or asked is a quarantine: its tickets stay
 *       pending, every later poll tries again, and only synchronize and end_quarantine wait for the stream instead.
 *   P6  Order. Within one poll, queues are visited by ascending `order` (then context, id), each head first, and done()
 *       gets the tickets in the order in which their last use was found finished.
 *   P7  After ladei_retire_stream_retire no driver call is made on that stream's handle. Another stream that gets the
 *       same handle later has another id and is never taken for it.
 *   P8  A stream destroyed without that is noticed when its batch should be closed: its handle is refused
 *       (LADE_ERR_INVALID_ARGUMENT), or names another stream. Uses that no event covers are then a quarantine that is no
 *       error of any poll; later polls leave the handle alone, and synchronize and end_quarantine end it by waiting for
 *       the device, where the work of a destroyed stream still runs to its end.
 *   P9  A capturing stream is never asked and never waited for, nor is an event in a capture under way; a device is waited
 *       for only as P8 says, which breaks captures on it. Note [Asking and capturing] in ops.h names the race that is left.
 *
 * Precise and special uses
 *   - The per-thread stream, and LADEI_NOTE_NOW: an event is recorded in the note itself, so the ticket waits for the
 *     work queued until the note. Such events are asked one after the other in the order in which the notes returned.
 *   - A capturing stream: the use hangs on the capture. A user object, retained by the graph under construction, tells
 *     when the graph, all its executables and their launches are gone, or the capture was given up. So the block
 *     returns after that and not before, also for graphs that lade did not make.
 *   - A use noted outside a capture whose stream captures when the batch should be closed (or the legacy stream while
 *     another stream of its context captures): the batch stays open, with no error, until a later poll finds the
 *     capture ended.
 *   - ladei_retire_note_event: the ticket waits for an event of the caller's.
 *
 * A thread that makes many notes and adds has a buffer for them, without a lock: retire_buffer.h.
 *
 * Cancelled threads (base/cancellation.h): note, add and stream_retire hold cancellation off where they must. The callers of
 * poll, wait, synchronize and end_quarantine do it for these.
 *
 * Threads: any, at any time, except create and destroy. On "sim" one at a time. Waits: only wait, synchronize, destroy,
 * and stream_retire for a driver call of another thread that is under way on that stream.
 */
#ifndef LADE_RUNTIME_RETIRE_H
#define LADE_RUNTIME_RETIRE_H

#include <stdatomic.h>

#include "runtime/ops.h"

typedef struct ladei_retire ladei_retire;
typedef struct ladei_retire_use ladei_retire_use;

/* One block's account with its streams; all zero is idle. Embedded in the owner's record. */
typedef struct ladei_retire_ticket {
  _Atomic(ladei_retire_use *) uses; /* noted and not added */
  struct ladei_retire_ticket *next; /* in the list given to done() */
  uint32_t waits;                   /* pending: uses not finished; the retire object's */
  uint32_t spare;                   /* free for the owner's use; untouched */
} ladei_retire_ticket;

/*
 * Gets a list of tickets whose streams are all done; they are idle once taken off it:
 *
 *   for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) block_return(block_of(ticket));
 *
 * Called in the thread that polls, or that notes or adds by its buffer (retire_buffer.h), with no lade lock held; it may call
 * note, add and poll without LADEI_POLL_ALL, but nothing that waits.
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

/* Whether any use is noted on a ticket and not added: the test of the owner's fast path. */
static inline bool ladei_retire_ticket_noted(ladei_retire_ticket *ticket) {
  return atomic_load_explicit(&ticket->uses, memory_order_acquire) != NULL;
}

enum { LADEI_EVENT_BATCH_DEFAULT = 16, LADEI_RETIRE_SHARDS_MOST = 32 };

typedef struct ladei_retire_options {
  void *owner;            /* given to done and order */
  ladei_retire_done done; /* not NULL */
  uint32_t event_batch;   /* uses per event; 0: the default; 1: every add records its events itself */
  bool events_only;       /* never ask a stream instead of recording: each batch gets its event */
  uint32_t shard; /* its number among the objects that share tickets: retire_shards.h. Below LADEI_RETIRE_SHARDS_MOST */
  /* Place of a stream among the streams polled, smaller first; NULL: by context, then id. A pure function. */
  uint64_t (*order)(void *owner, const ladei_stream *stream);
} ladei_retire_options;

/* `runtime` is borrowed: the owner holds it (ladei_runtime_acquire), and counts as one object on it. */
lade_status ladei_retire_create(lade_runtime *runtime, const ladei_retire_options *options, ladei_retire **out);

/*
 * Excludes all other calls. NULL does nothing. With pending tickets: first as poll with LADEI_POLL_CLOSE, with `wait` as
 * synchronize; if there still are any, LADE_NOT_READY with the count in the error record, and the object lives on
 * (graphs that hold them may be alive). Notes on tickets that were not added are forgotten: the owner has made sure that
 * no block is in use, so they came too late.
 */
lade_status ladei_retire_destroy(ladei_retire *retire, bool wait);
/* The first half of it: adds the tickets that are left to *pending. And the failure that names so many. */
lade_status ladei_retire_settle(ladei_retire *retire, bool wait, uint64_t *pending);
lade_status ladei_retire_still_used(uint64_t pending);

enum {
  LADEI_NOTE_NOW = 1u << 0,   /* the use ends with the work queued so far */
  LADEI_NOTE_PLAIN = 1u << 1, /* never hang on a capture: the owner has its own rules for captures */
  LADEI_NOTE_MARK = 1u << 2,  /* for ladei_retire_forget_marked; a note without it takes the mark off */
};

/*
 * Notes a use by `stream`, a handle as the caller got it; the other form takes it resolved (by this thread).
 *
 * Noting a stream again changes nothing, except that NOW notes move to the present; a note until the free swallows one
 * that ended earlier. May race with other notes on the same ticket, also of the same stream: of NOW notes whose calls
 * overlap all are waited for. A note on a ticket that was added already (a
 * mistake of the user's that the owner did not catch) does no harm: the use counts for the block's next tenancy. So an
 * owner forgets the notes of a ticket before its record goes. Errors, nothing noted: those of stream_resolve;
 * LADE_ERR_STREAM_RETIRED; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_CAPTURE for a NOW or per-thread note while the stream
 * cannot be used, or NOW with PLAIN while it captures; LADE_ERR_FORKED; failures of the driver where an event must be
 * recorded or a graph must retain. PLAIN without NOW, resolved, of an ordinary stream: no driver call; may be called under
 * locks of a lower rank than LADEI_RANK_RETIRE.
 */
lade_status ladei_retire_note(ladei_retire *retire, ladei_retire_ticket *ticket, lade_stream stream, unsigned flags);
lade_status ladei_retire_note_resolved(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                                       unsigned flags);

/*
 * The ticket will also wait for `event`, recorded by the caller, who keeps it alive and unrecorded until the ticket is
 * done. LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 */
lade_status ladei_retire_note_event(ladei_retire *retire, ladei_retire_ticket *ticket, lade_event event);

/* Takes the notes of a ticket that was not added back; those with LADEI_NOTE_MARK only. Makes no driver call; may be
 * called under locks of a lower rank than LADEI_RANK_RETIRE. */
void ladei_retire_forget(ladei_retire *retire, ladei_retire_ticket *ticket);
void ladei_retire_forget_marked(ladei_retire *retire, ladei_retire_ticket *ticket);
/* Whether a ticket that was not added has notes with LADEI_NOTE_MARK. As forget. */
bool ladei_retire_marked(ladei_retire *retire, ladei_retire_ticket *ticket);
/* The streams noted on such a ticket. False: there are more than `capacity`, or a note without LADEI_NOTE_MARK, of a special
 * stream, until now, or of a stream that is retired or gone. As forget. */
bool ladei_retire_marked_streams(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_stream *streams,
                                 size_t capacity, size_t *out_count);

/*
 * The block is free for its owner: wait for what was noted.
 *
 * true: pending; done() will get the ticket, from now on and possibly before this returns, in another thread.
 * false: nothing to wait for; the ticket is idle and the block may be used.
 * `quiet`: make no driver call whatever (inside a host function of the driver; under locks of a lower rank): batches
 * that this fills are closed by a later call. The owner has made sure that this is not a forked child.
 */
bool ladei_retire_add(ladei_retire *retire, ladei_retire_ticket *ticket, bool quiet);

/* Where shards share tickets (retire_shards.h): a note's answer that another one has the ticket (N5 in retire_note.c), and nothing
 * has changed. No status of a driver or of a public call. */
#define LADEI_RETIRE_ELSEWHERE ((lade_status)1000000)

/* What an add does to such a ticket. */
typedef enum ladei_retire_added {
  LADEI_RETIRE_ADDED_IDLE,
  LADEI_RETIRE_ADDED_PENDING,
  LADEI_RETIRE_ADDED_NOT, /* another shard has it (N5 in retire_note.c); nothing has changed */
} ladei_retire_added;

enum {
  LADEI_POLL_CLOSE = 1u << 0, /* close open batches too: for a caller about to take new memory */
  /* Else queues that another thread is at are passed by. With it that thread is waited for, unless it waits for a stream
   * itself, and so is done() for what other polls have found: a caller that is about to say that nothing comes back. */
  LADEI_POLL_ALL = 1u << 1,
};

/*
 * Finds finished uses and calls done(). Costs nothing while no ticket is pending.
 *
 * LADE_OK also where nothing was finished; the first failure of the driver (its tickets are quarantined, the other
 * queues were polled all the same); LADE_ERR_FORKED. `out_done`, if not NULL, gets the number of tickets given to
 * done(), on failure too.
 */
lade_status ladei_retire_poll(ladei_retire *retire, unsigned flags, uint64_t *out_done);

/* Whether a poll without LADEI_POLL_CLOSE may find anything; a guess that costs a load. */
bool ladei_retire_pending(const ladei_retire *retire);

/* Closes all open batches by an event, without asking for any: from now on later work on their streams is not waited
 * for. Errors as poll. */
lade_status ladei_retire_close(ladei_retire *retire);

/*
 * Polls until at least one ticket was given to done(): LADE_OK. LADE_ERR_TIMEOUT when the runtime's clock reaches
 * `deadline_ns` (UINT64_MAX: none); at once where no ticket is pending. On "sim" it moves the clock, and also gives up
 * when nothing will ever happen any more. LADE_ERR_DEVICE_LOST, LADE_ERR_FORKED at once.
 */
lade_status ladei_retire_wait(ladei_retire *retire, uint64_t deadline_ns);

/*
 * Waits for all streams with pending uses, quarantined ones included, and calls done(); also for polls of other
 * threads, and their calls of done().
 *
 * LADE_OK: of what was added before nothing is pending. LADE_NOT_READY: what is left waits for graphs to be destroyed (or
 * to end, where a launch is in flight, or a host function holds up the driver's thread for a second).
 * LADE_ERR_CAPTURE: streams that capture, or a capture that forbids waiting. LADE_ERR_DEVICE_LOST: that device runs
 * nothing any more, and its tickets were given to done(). Else the first failure of the driver; its tickets stay.
 */
lade_status ladei_retire_synchronize(ladei_retire *retire);

/*
 * The same, but waits for no device, which would break all captures on it: blocks of streams that are gone (P8) and that no
 * event covers stay, LADE_ERR_CAPTURE.
 */
lade_status ladei_retire_synchronize_streams(ladei_retire *retire);

/*
 * The same for streams in quarantine alone: what polls could not find out is waited for, other streams are not.
 * LADE_OK also where there are none.
 */
lade_status ladei_retire_end_quarantine(ladei_retire *retire);

/*
 * The stream is about to be destroyed: covers its uses, noted ones included, with a last event.
 *
 * A note by another thread at the same time is covered too, with the work queued before it, or ends with
 * LADE_ERR_STREAM_RETIRED. Work that is queued on the stream once this was called, and not noted, is not waited for.
 *
 * LADE_OK also for streams never noted and special handles. LADE_ERR_CAPTURE while it captures, or another failure
 * (LADE_ERR_OUT_OF_HOST_MEMORY): the stream is still needed (synchronise it, then call again, to do without the event).
 */
lade_status ladei_retire_stream_retire(ladei_retire *retire, lade_stream stream);

/* All exact when no other thread is inside. */
typedef struct ladei_retire_counters {
  uint64_t noted_uses;       /* on tickets not added */
  uint64_t pending_tickets;  /* added, done() has not returned from them */
  uint64_t pending_uses;     /* not finished */
  uint64_t open_uses;        /* of those, not yet covered by an event */
  uint64_t captured_uses;    /* of those, waiting for a graph */
  uint64_t quarantined_uses; /* of those, on streams whose last record or query failed, or which are gone */
  uint64_t quarantines;      /* failures of record and query since creation */
  uint64_t events_recorded;
  uint64_t events_queried;
  uint64_t streams_queried;
  uint64_t events_created;
  uint64_t streams; /* queues kept, idle ones included */
} ladei_retire_counters;

void ladei_retire_counters_get(ladei_retire *retire, ladei_retire_counters *out);

/* Recounts the invariants stated in retire_note.c; LADE_ERR_INTERNAL names the one broken. For tests and debug builds. */
lade_status ladei_retire_check(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_H */
