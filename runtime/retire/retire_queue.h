/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of runtime/retire: queues of uses, for retire_note.c, retire_poll.c, retire_buffer.c, retire_capture.c.
 *
 *   retire --all--> queue (context 1, stream 5)     pending uses, oldest first:  u u u[mark] u u[mark] u u
 *          |        queue (context 1, stream 9)                                  \_covered_/ \____/ open
 *          |        queue (context 1, stream 9, now)
 *          |        queue (capture 3)               uses wait for one flag
 *          |        queue (callers' events)         each use for its own event
 *          `active-> those with pending uses, in the order of polling
 *
 * A mark is a use that carries an event (or the fact that its stream was found done): once that is done, this use and
 * all before it are finished. So a failed record has no lasting effect: its uses stay open, and any later mark covers
 * them.
 *
 * States of a use:   noted --append--> open --mark--> covered --finish--> gone
 *                      |                ^_____unmark____|
 *                      `--forget--> gone          (an append to a queue that is finished: gone at once)
 *
 * use_state_set and use_mark_set in retire_queue.c check that there are no other transitions.
 *
 * Q1  A STREAM queue's pending uses are in the order of their appends, so a mark covers the work of all uses before it.
 *     Uses of other queues are independent: a NOW queue orders them by their notes, but two threads may have recorded
 *     on the stream in the other order. There the order only tells when to stop asking.
 * Q2  queue->pending counts all uses; open those after the last mark of a STREAM queue; first_mark is the oldest mark,
 *     last_mark the newest, NULL if there is none.
 * Q3  A queue is in `active` if it has pending uses and is not of the CAPTURE kind. Only the thread that has claimed
 *     the queue (busy) takes uses out of it, and it out of `active`; others only append.
 * Q4  refs = noted and pending uses of the queue + calls working with it + slots of buffers. At 0, and without inline
 *     notes, it becomes idle and may be freed.
 * Q5  ticket->waits = its unfinished uses + 1 while its add is under way. At 0 it goes to done(), once. Tickets that a
 *     buffer published have 1 until they are taken off done()'s list: code under the lock does not visit each of them.
 * Q6  Only the thread that has claimed a queue makes driver calls for it, so two closings of one batch, or a closing
 *     and a stream_retire, cannot overlap. After `retired` none is ever made on the stream's handle.
 * Q7  `finished`: later appends have nothing to wait for (a retired stream whose last event is done, a capture whose
 *     graph is gone).
 * Q8  `lost`: no driver call is made on the stream's handle until a note names that very stream again. Its marks are
 *     still queried; uses that they do not cover stay open until a call may wait for the device.
 * Q9  A fact learned about a stream while the lock is dropped holds only for what was known before: a last event, or
 *     `lost`, is valid only if no note (and for the event no append) has come meanwhile.
 * Q10 A retired queue without uses stays among the idle ones: a note that was under way is refused when it gets here.
 * Q11 Uses that a pass over the queues finds finished are in no queue until the pass has called done(), at its end and
 *     without the lock. So a call that reports that all is done waits for the passes that began before: it turns the
 *     parity, and waits until no pass of the old one is left. A pass that waits for a stream leaves this count
 *     meanwhile, and gives its finished uses to done() first.
 * Locks: retire->lock guards all fields here, and the tickets' lists of uses. It is dropped around each driver call and
 * callback. The event pool's lock may be taken under it.
 */
#ifndef LADE_RUNTIME_RETIRE_QUEUE_H
#define LADE_RUNTIME_RETIRE_QUEUE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "base/ordered_set.h"
#include "base/slab.h"
#include "runtime/event_pool.h"
#include "runtime/ops.h"
#include "runtime/retire/retire.h"

enum { LADEI_CACHE_LINE_BYTES = 64 };

/* In the order in which the queues of one stream are polled. */
typedef enum ladei_retire_queue_kind {
  LADEI_RETIRE_QUEUE_NOW,     /* uses that ended at their note, with an event each */
  LADEI_RETIRE_QUEUE_STREAM,  /* uses that last until the free: batches */
  LADEI_RETIRE_QUEUE_CAPTURE, /* uses inside a capture: until the graph is gone */
  LADEI_RETIRE_QUEUE_FOREIGN, /* callers' events */
} ladei_retire_queue_kind;

typedef enum ladei_retire_mark {
  LADEI_RETIRE_MARK_NONE,  /* open, or covered by a later mark */
  LADEI_RETIRE_MARK_EVENT, /* use->event covers it and all before it */
  LADEI_RETIRE_MARK_DONE,  /* the stream was found done after the append */
} ladei_retire_mark;

/* State of a use, without the effect of marks on pending ones (open, covered). Only in builds without NDEBUG. */
typedef enum ladei_retire_use_state {
  LADEI_RETIRE_USE_GONE, /* its record is free */
  LADEI_RETIRE_USE_NOTED,
  LADEI_RETIRE_USE_PENDING,
} ladei_retire_use_state;

struct ladei_retire_use {
  ladei_slab_head head;
  ladei_retire_use *next; /* in the list of its ticket, ascending by queue; noted only */
  TAILQ_ENTRY(ladei_retire_use) link;
  ladei_retire_ticket
      *ticket; /* published by a buffer: the first of `count` tickets that wait for nothing else, linked by next */
  ladei_retire_ticket *last; /* the last of those; NULL: a use of one ticket */
  struct ladei_retire_queue *queue;
  uint32_t count;
  _Atomic(uint32_t)
      shard;          /* of the object that owns the record; constant, and read without the lock (retire_shards.h) */
  ladei_event *event; /* on loan; for a mark, for a NOW use */
  lade_event foreign; /* FOREIGN queue only */
  uint64_t sequence;  /* NOW: order in which the notes were linked */
  ladei_retire_mark mark;
  bool forgettable; /* LADEI_NOTE_MARK */
  bool failing;     /* FOREIGN: the last query of its event failed */
#ifndef NDEBUG
  uint8_t state; /* ladei_retire_use_state */
#endif
};

typedef TAILQ_HEAD(ladei_retire_use_list, ladei_retire_use) ladei_retire_use_list;

/* In cache lines: finding and keeping it; counts; its contents; its place among the active ones. With thousands of
 * streams each line is a miss. */
typedef struct ladei_retire_queue {
  _Alignas(LADEI_CACHE_LINE_BYTES) struct ladei_retire_queue *all_next; /* in its bucket */
  ladei_stream stream; /* CAPTURE: id of the capture, context 0 or a number (C3); FOREIGN: all 0 */
  ladei_retire_queue_kind kind;
  bool in_all, in_active, in_idle;
  bool busy;
  bool waits;    /* busy, and the thread that claimed it waits for the stream or an event of it */
  bool retiring; /* stream_retire makes its last try: notes are refused */
  bool retired;
  bool finished;
  bool failing;     /* quarantine: the last record or query failed; FOREIGN: that of a use */
  bool lost;        /* quarantine: the stream was destroyed without stream_retire (Q8) */
  bool record_live; /* CAPTURE: its capture record is not drained yet */
  uint8_t spare_count;

  uint64_t refs;
  uint64_t pending;
  uint64_t open;
  uint64_t close_at;      /* open uses at which an add closes: a batch; more after a failed attempt */
  uint64_t notes;         /* calls that named its stream: notes, and slots made for one (Q9) */
  uint64_t appends;       /* uses that became pending, and slots made for them */
  int64_t inline_notes;   /* see L2 in retire_buffer.c */
  uint32_t left;          /* retire->leave_count when it last lost a slot */
  uint32_t failing_count; /* FOREIGN: failing uses */

  ladei_retire_use_list uses;
  ladei_retire_use *first_mark, *last_mark;
  TAILQ_ENTRY(ladei_retire_queue) idle_entry;
  ladei_event *spares;     /* of finished batches, for later ones; on loan all the time */
  ladei_event *last_event; /* retired: covers the stream's work; NULL once done, or if not needed */

  struct ladei_retire_queue *next_claimed; /* list of the thread that claimed it */
  ladei_order_node place;                  /* in `active`; its key also orders the uses of a ticket */
} ladei_retire_queue;

_Static_assert(sizeof(ladei_retire_queue) == 4 * LADEI_CACHE_LINE_BYTES, "a queue grew by a line of cache");
_Static_assert(offsetof(ladei_retire_queue, place) == 3 * LADEI_CACHE_LINE_BYTES, "a place spans two lines of cache");

/* Queues by identity: a hash table with chains, doubled when there are more queues than buckets, if memory allows. */
typedef struct ladei_retire_queues_all {
  ladei_retire_queue *first[64]; /* the table until it is too small */
  ladei_retire_queue **buckets;
  uint64_t bucket_count; /* a power of two */
} ladei_retire_queues_all;

struct ladei_retire {
  lade_runtime *runtime;
  ladei_retire_options options;
  ladei_event_pool *events;
  struct ladei_retire_capture_box *captures;

  /* On its own cache line: every call reads the fields above. */
  _Alignas(LADEI_CACHE_LINE_BYTES) ladei_lock lock;
  _Atomic(uint64_t) pending_tickets;   /* added; done() has not returned from them */
  _Atomic(uint32_t) slots_used;        /* of all buffers; written under the lock */
  struct ladei_retire_buffer *buffers; /* open ones */
  uint64_t promised;                   /* see L3 in retire_buffer.c */
  ladei_condition yielded;             /* a queue is no longer busy; an awaited pass is over */
  uint64_t leave_count;                /* number of slots that streams lost to other streams */
  uint32_t passes[2];                  /* those under way, by the parity of `epoch` when they began (Q11) */
  uint32_t epoch;
  bool epoch_awaited;     /* a thread awaits the passes of the previous epoch */
  uint64_t captured_uses; /* pending uses of CAPTURE queues */
  ladei_retire_queues_all all;
  ladei_ordered_set active;
  TAILQ_HEAD(, ladei_retire_queue) idle; /* oldest first */
  uint64_t idle_count;
  uint64_t queue_count;
  ladei_slab uses;
  _Atomic(uint64_t) sequence; /* of the NOW note linked last; read without the lock (N4 in retire_note.c) */
  uint64_t unnamed_captures;  /* queues of captures that no later note can find */
  int capture_device;         /* device of the latest of those queues: its primary context exists */
  ladei_retire_counters counters;
};

/* Tickets found done, in order. */
typedef struct ladei_retire_done_list {
  ladei_retire_ticket *first;
  ladei_retire_ticket **tail;
  uint64_t count;
} ladei_retire_done_list;

static inline void ladei_retire_done_init(ladei_retire_done_list *done) {
  *done = (ladei_retire_done_list){.tail = &done->first};
}

static inline void ladei_retire_done_append(ladei_retire_done_list *done, ladei_retire_ticket *first,
                                            ladei_retire_ticket *last, uint64_t count) {
  *done->tail = first;
  done->tail = &last->next;
  done->count += count;
}

/* For one driver call: lade_status s = ladei_retire_driver(retire)->event_query(retire->runtime->self, event); */
static inline const lade_runtime_ops *ladei_retire_driver(const ladei_retire *retire) {
  ladei_lock_assert_none_held();
  return retire->runtime->ops;
}

/* ---- Inline notes (retire_buffer.c) ------------------------------------------------------------------------------ */

/* A ticket's `uses` is a list, or one note of a stream until the free, encoded in the pointer: the bits below the
 * queue's address are the shard and 1. */
_Static_assert(_Alignof(ladei_retire_queue) >= 2 * LADEI_RETIRE_SHARDS_MOST,
               "a queue's address leaves room for a shard");
static inline uint32_t ladei_retire_inline_tag(uint32_t shard) { return shard << 1 | 1; }
static inline ladei_retire_use *ladei_retire_inline_note(const ladei_retire_queue *queue, uint32_t tag) {
  return (ladei_retire_use *)((uintptr_t)queue | tag);
}
static inline ladei_retire_queue *ladei_retire_inline_queue(const ladei_retire_use *note) {
  return (ladei_retire_queue *)((uintptr_t)note & ~(uintptr_t)(2 * LADEI_RETIRE_SHARDS_MOST - 1));
}
static inline uint32_t ladei_retire_inline_shard(const ladei_retire_use *note) {
  return (uint32_t)((uintptr_t)note >> 1 & (LADEI_RETIRE_SHARDS_MOST - 1));
}
/* No note; only the holder of retire->lock may add one; with several shards, the one that sealed it. */
#define LADEI_NOTE_SEALED ((ladei_retire_use *)1)
static inline bool ladei_retire_note_is_inline(const ladei_retire_use *note) {
  return ((uintptr_t)note & 1) != 0 && note != LADEI_NOTE_SEALED;
}
/* For a note that is not sealed, also if it is gone by now: records of uses are type-stable. */
static inline uint32_t ladei_retire_note_shard(const ladei_retire_use *note) {
  return ladei_retire_note_is_inline(note) ? ladei_retire_inline_shard(note)
                                           : atomic_load_explicit(&note->shard, memory_order_relaxed);
}

/* ---- retire_queue.c; all under retire->lock unless said otherwise ------------------------------------------------ */

/* Memory for a queue, for free(); NULL: none. Needs no lock. */
ladei_retire_queue *ladei_retire_queue_alloc(void);
/* Whether `a` is polled before `b`. Needs no lock. */
static inline bool ladei_retire_queue_is_before(const ladei_retire_queue *a, const ladei_retire_queue *b) {
  return ladei_order_less(&a->place.key, &b->place.key);
}
void ladei_retire_queue_init(ladei_retire_queue *queue, ladei_retire_queue_kind kind, const ladei_stream *stream,
                             uint64_t order);
void ladei_retire_queues_init(ladei_retire *retire);
/* Adds a queue to `all`; no other has its kind, context and id. Counted in queue_count. */
void ladei_retire_queue_register(ladei_retire *retire, ladei_retire_queue *queue);
ladei_retire_queue *ladei_retire_queue_find(ladei_retire *retire, ladei_retire_queue_kind kind, uint64_t context,
                                            uint64_t id);
/* Finds or makes a queue, pinned; not for captures. Drops the lock while it allocates. NULL when there is no memory. */
ladei_retire_queue *ladei_retire_queue_need(ladei_retire *retire, ladei_retire_queue_kind kind,
                                            const ladei_stream *stream);

void ladei_retire_queue_pin(ladei_retire *retire, ladei_retire_queue *queue);
/* Frees the queue, or keeps it for its stream's next use, if this was the last reference. */
void ladei_retire_queue_unpin(ladei_retire *retire, ladei_retire_queue *queue);

/* Takes the right to call the driver for the queue and to take uses out of it; pins it. False: another has it. */
bool ladei_retire_queue_claim(ladei_retire *retire, ladei_retire_queue *queue);
/* The same, but waits for the other thread. Afterwards the queue may be idle, retired or finished. */
void ladei_retire_queue_claim_wait(ladei_retire *retire, ladei_retire_queue *queue);
void ladei_retire_queue_yield(ladei_retire *retire, ladei_retire_queue *queue);
/* The queue polled after this one, which is pinned; NULL: it was the last. NULL gives the first. */
ladei_retire_queue *ladei_retire_queue_after(ladei_retire *retire, ladei_retire_queue *queue);

/* A call named the stream, which exists at this moment. */
static inline void ladei_retire_queue_named(ladei_retire_queue *queue) {
  queue->notes++;
  queue->lost = false;
}
/* A noted use becomes pending. */
void ladei_retire_queue_append(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use);
/* Marks an open use; `covered` uses, up to it, are no longer open. `event` NULL: the stream is done. */
void ladei_retire_queue_mark(ladei_retire_queue *queue, ladei_retire_use *use, ladei_event *event, uint64_t covered);
/* Removes a mark; returns its event. The next mark covers its uses, or they are open. */
ladei_event *ladei_retire_queue_unmark(ladei_retire_queue *queue, ladei_retire_use *mark);
/* Finishes a use and all before it. The queue must be claimed. */
void ladei_retire_queue_finish(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *last,
                               ladei_retire_done_list *done);
/* Finishes one use at any place (FOREIGN queues). The queue must be claimed. */
void ladei_retire_queue_finish_one(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use,
                                   ladei_retire_done_list *done);

/* A use of one ticket, in no list; NULL when there is no memory beyond that promised to buffers. */
ladei_retire_use *ladei_retire_use_make(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_retire_queue *queue);
/* Takes one of the queue's spare events; NULL: none. The second returns it there, or to the pool. */
ladei_event *ladei_retire_queue_spare_take(ladei_retire_queue *queue);
void ladei_retire_queue_spare_put(ladei_retire *retire, ladei_retire_queue *queue, ladei_event *event);

/* For a FOREIGN queue, whose `failing` follows; a no-op for others. */
static inline void ladei_retire_use_failing_set(ladei_retire_queue *queue, ladei_retire_use *use, bool failing) {
  if (use->failing == failing) return;
  use->failing = failing;
  queue->failing_count += failing ? 1 : UINT32_MAX; /* modulo 2^32 */
  queue->failing = queue->failing_count > 0;
}

/* Frees a use that is in no list; its event goes back to the pool. Leaves the queue's references alone. */
void ladei_retire_use_free(ladei_retire *retire, ladei_retire_use *use);

/* Frees all queues: nothing is noted or pending. Takes the lock too, though no other thread is left. */
void ladei_retire_queues_destroy(ladei_retire *retire);
/* Adds the counts that need a look at all queues. */
void ladei_retire_queues_count(ladei_retire *retire, ladei_retire_counters *counters);
/* Recounts Q1 to Q5; LADE_ERR_INTERNAL. */
lade_status ladei_retire_queues_check(ladei_retire *retire);

/* Number of uses that share an event. On the legacy stream each add records its own: all other streams' work comes in
 * its order, so a later event covers far more than necessary, and a capture may forbid it. */
static inline uint64_t ladei_retire_queue_batch(const ladei_retire *retire, const ladei_retire_queue *queue) {
  return queue->stream.kind == LADEI_STREAM_LEGACY ? 1 : retire->options.event_batch;
}

/* Called before tickets can be done, and after done() has returned from them. */
static inline void ladei_retire_pending_add(ladei_retire *retire, uint64_t count) {
  atomic_fetch_add_explicit(&retire->pending_tickets, count, memory_order_release);
}
static inline void ladei_retire_pending_sub(ladei_retire *retire, uint64_t count) {
  atomic_fetch_sub_explicit(&retire->pending_tickets, count, memory_order_release);
}

/* Under the lock, which is dropped meanwhile: calls done() and takes the tickets off pending_tickets. */
void ladei_retire_done_deliver(ladei_retire *retire, ladei_retire_done_list *done);
/* Under the lock: a pass begins; it ends with the pointer that the first returned. */
uint32_t *ladei_retire_pass_begin(ladei_retire *retire);
void ladei_retire_pass_end(ladei_retire *retire, uint32_t *passes);
/* Under the lock, which is dropped meanwhile: waits for other threads' passes; not in a pass. */
void ladei_retire_passes_wait(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_QUEUE_H */
