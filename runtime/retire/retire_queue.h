/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of runtime/retire: queues of uses, shared by retire_note.c, retire_poll.c, retire_buffer.c, retire_capture.c.
 *
 *   retire --all--> queue (context 1, stream 5)     pending uses, oldest first:  u u u[mark] u u[mark] u u
 *          |        queue (context 1, stream 9)                                  \_covered_/ \____/ open
 *          |        queue (context 1, stream 9, now)
 *          |        queue (capture 3)               uses wait for one flag
 *          |        queue (events of callers)       each use for its own event
 *          `active-> those with pending uses, in the order of polling
 *
 * A mark is a use that carries an event (or the word that its stream was found done): once that is done, this use and
 * all before it are finished. So a record that failed leaves nothing behind: its uses stay open, and any later mark
 * covers them.
 *
 * States of a use:   noted --append--> open --mark--> covered --finish--> gone
 *                      |                ^_____unmark____|
 *                      `--forget--> gone          (an append to a queue that is finished: gone at once)
 *
 * use_state_set and use_mark_set in retire_queue.c check that no other step is taken.
 *
 * Q1  A STREAM queue's pending uses lie in the order of their appends, so a mark covers the work of all uses before it.
 *     Uses of other queues stand alone: a NOW queue orders them by their notes, but two threads may have recorded on
 *     the stream in the other order. There the order only says when to stop asking.
 * Q2  queue->pending counts all uses; open those behind the last mark of a STREAM queue; first_mark is the oldest mark,
 *     last_mark the newest, NULL if there is none.
 * Q3  A queue is in `active` if it has pending uses and is not of the CAPTURE kind. Uses are taken out only by the
 *     thread that has claimed the queue (busy), which also takes it out of `active`; others only append.
 * Q4  refs = noted and pending uses of the queue + calls working with it + slots of buffers. At 0, and without inline
 *     notes, it becomes idle and may be freed.
 * Q5  ticket->waits = its unfinished uses + 1 while its add is under way. At 0 it goes to done(), once. Tickets that a
 *     buffer published have 1 until they are taken off done()'s list: nothing under the lock looks at each of them.
 * Q6  Driver calls for a queue are made only by the thread that claimed it, so two closings of one batch, or a closing
 *     and a stream_retire, cannot overlap. After `retired` none is made on the stream's handle, ever.
 * Q7  `finished`: nothing appended from now on has anything to wait for (a retired stream whose last event is done, a
 *     capture whose graph is gone).
 * Q8  `lost`: no driver call is made on the stream's handle until somebody names that very stream again. Its marks are
 *     asked as ever; what they do not cover stays open until somebody may wait for the device.
 * Q9  What is found out about a stream while the lock is dropped holds for what was known of it before: a last event, or
 *     `lost`, is believed only if no note, and for the event no append, has come meanwhile.
 * Q10 A retired queue without uses stays among the idle ones: a note that was under way is refused when it gets here.
 * Q11 What a pass over the queues finds finished is in no queue until it has called done(), at its end and without the
 *     lock. So whoever says that all is done waits for the passes that began before: the parity is turned, and the wait
 *     is over when no pass of the old one is left. A pass that waits for a stream steps out meanwhile, and gives to done()
 *     what it has before.
 *
 * Locks: retire->lock guards all fields here, and the uses lists of tickets. It is dropped around each driver call and
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

/* In the order in which queues of one stream are polled. */
typedef enum ladei_retire_queue_kind {
  LADEI_RETIRE_QUEUE_NOW,     /* uses that ended at their note: each has its event */
  LADEI_RETIRE_QUEUE_STREAM,  /* uses that last until the free: batches */
  LADEI_RETIRE_QUEUE_CAPTURE, /* uses inside a capture: until the graph is gone */
  LADEI_RETIRE_QUEUE_FOREIGN, /* events of callers */
} ladei_retire_queue_kind;

typedef enum ladei_retire_mark {
  LADEI_RETIRE_MARK_NONE,  /* open, or covered by a later mark */
  LADEI_RETIRE_MARK_EVENT, /* use->event covers it and what is before it */
  LADEI_RETIRE_MARK_DONE,  /* the stream was found done after the append */
} ladei_retire_mark;

/* Where a use is, without what marks say of pending ones (open, covered). Known in builds without NDEBUG alone. */
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
      *ticket; /* published by a buffer: the first of `count` that wait for nothing else, linked by next */
  ladei_retire_ticket *last; /* of those; NULL: a use of one ticket */
  struct ladei_retire_queue *queue;
  uint32_t count;
  _Atomic(uint32_t)
      shard;          /* of the object that the record belongs to; constant, and read by anyone (retire_shards.h) */
  ladei_event *event; /* on loan: of a mark, of a NOW use */
  lade_event foreign; /* FOREIGN queue only */
  uint64_t sequence;  /* NOW: order in which the notes were linked */
  ladei_retire_mark mark;
  bool forgettable; /* LADEI_NOTE_MARK */
  bool failing;     /* FOREIGN: its event answered with a failure last */
#ifndef NDEBUG
  uint8_t state; /* ladei_retire_use_state */
#endif
};

typedef TAILQ_HEAD(ladei_retire_use_list, ladei_retire_use) ladei_retire_use_list;

/* In lines of cache: finding and keeping it; counts; what is in it; its place among the active ones. With thousands of
 * streams each is a miss. */
typedef struct ladei_retire_queue {
  _Alignas(LADEI_CACHE_LINE_BYTES) struct ladei_retire_queue *all_next; /* in its bucket */
  ladei_stream stream; /* CAPTURE: id is that of the capture, context 0 or a number (C3); FOREIGN: all 0 */
  ladei_retire_queue_kind kind;
  bool in_all, in_active, in_idle;
  bool busy;
  bool waits;    /* busy, and whoever is at it waits for the stream or an event of it */
  bool retiring; /* stream_retire has its last try: notes are refused */
  bool retired;
  bool finished;
  bool failing;     /* quarantine: the last record or query failed; FOREIGN: that of some use */
  bool lost;        /* quarantine: the stream was destroyed without stream_retire (Q8) */
  bool record_live; /* CAPTURE: its capture record was not drained yet */
  uint8_t spare_count;

  uint64_t refs;
  uint64_t pending;
  uint64_t open;
  uint64_t close_at;      /* open uses at which an add closes: a batch; more after an attempt in vain */
  uint64_t notes;         /* calls that named its stream: notes, and slots made for one (Q9) */
  uint64_t appends;       /* and uses that became pending, and slots made for them */
  int64_t inline_notes;   /* see L2 in retire_buffer.c */
  uint32_t left;          /* retire->leave_count when a slot was last taken from it */
  uint32_t failing_count; /* FOREIGN: failing uses */

  ladei_retire_use_list uses;
  ladei_retire_use *first_mark, *last_mark;
  TAILQ_ENTRY(ladei_retire_queue) idle_entry;
  ladei_event *spares;     /* of batches that finished, for those to come; on loan all the time */
  ladei_event *last_event; /* retired: covers the stream's work; NULL once done, or where not needed */

  struct ladei_retire_queue *next_claimed; /* list of the thread that claimed it */
  ladei_order_node place;                  /* in `active`; its key also orders the uses of a ticket */
} ladei_retire_queue;

_Static_assert(sizeof(ladei_retire_queue) == 4 * LADEI_CACHE_LINE_BYTES, "a queue grew by a line of cache");
_Static_assert(offsetof(ladei_retire_queue, place) == 3 * LADEI_CACHE_LINE_BYTES, "a place spans two lines of cache");

/* Queues by identity: a hash table with chains, doubled when there are more queues than buckets, as far as there is
 * memory for that. */
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

  /* On a line of its own: the fields above are read in every call. */
  _Alignas(LADEI_CACHE_LINE_BYTES) ladei_lock lock;
  _Atomic(uint64_t) pending_tickets;   /* added, done() has not returned from them */
  _Atomic(uint32_t) slots_used;        /* of all buffers; written under the lock */
  struct ladei_retire_buffer *buffers; /* open ones */
  uint64_t promised;                   /* see L3 in retire_buffer.c */
  ladei_condition yielded;             /* a queue is no longer busy; a pass that is awaited is over */
  uint64_t leave_count;                /* slots taken from streams for others */
  uint32_t passes[2];                  /* under way, by the parity of `epoch` when they began (Q11) */
  uint32_t epoch;
  bool epoch_awaited;     /* somebody awaits the passes of the epoch before */
  uint64_t captured_uses; /* pending ones of CAPTURE queues */
  ladei_retire_queues_all all;
  ladei_ordered_set active;
  TAILQ_HEAD(, ladei_retire_queue) idle; /* oldest first */
  uint64_t idle_count;
  uint64_t queue_count;
  ladei_slab uses;
  _Atomic(uint64_t) sequence; /* of the NOW note linked last; read by anyone (N4 in retire_note.c) */
  uint64_t unnamed_captures;  /* queues of captures that no later note finds */
  int capture_device;         /* of the latest of those queues: its primary context is there */
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

/* The table, for one call: lade_status s = ladei_retire_driver(retire)->event_query(retire->runtime->self, event); */
static inline const lade_runtime_ops *ladei_retire_driver(const ladei_retire *retire) {
  ladei_lock_assert_none_held();
  return retire->runtime->ops;
}

/* ---- Inline notes (retire_buffer.c) -------------------------------------------------------------------------------- */

/* A ticket's `uses` besides a list: one note of a stream until the free, in so many words. The bits below the queue's address
 * are the shard and 1. */
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
/* No note, and none but of the holder of retire->lock may come; of several shards, the one that sealed it. */
#define LADEI_NOTE_SEALED ((ladei_retire_use *)1)
static inline bool ladei_retire_note_is_inline(const ladei_retire_use *note) {
  return ((uintptr_t)note & 1) != 0 && note != LADEI_NOTE_SEALED;
}
/* Of a note that is not sealed. Also of one that is gone meanwhile: records of uses are type-stable. */
static inline uint32_t ladei_retire_note_shard(const ladei_retire_use *note) {
  return ladei_retire_note_is_inline(note) ? ladei_retire_inline_shard(note)
                                           : atomic_load_explicit(&note->shard, memory_order_relaxed);
}

/* ---- retire_queue.c; all under retire->lock unless said otherwise ------------------------------------------------ */

/* Memory for one, free() takes it back; NULL: none. Needs no lock. */
ladei_retire_queue *ladei_retire_queue_alloc(void);
/* Whether `a` is polled before `b`. Needs no lock. */
static inline bool ladei_retire_queue_is_before(const ladei_retire_queue *a, const ladei_retire_queue *b) {
  return ladei_order_less(&a->place.key, &b->place.key);
}
void ladei_retire_queue_init(ladei_retire_queue *queue, ladei_retire_queue_kind kind, const ladei_stream *stream,
                             uint64_t order);
void ladei_retire_queues_init(ladei_retire *retire);
/* Puts a queue among `all`; no other has its kind, context and id. Counted in queue_count. */
void ladei_retire_queue_register(ladei_retire *retire, ladei_retire_queue *queue);
ladei_retire_queue *ladei_retire_queue_find(ladei_retire *retire, ladei_retire_queue_kind kind, uint64_t context,
                                            uint64_t id);
/* Finds or makes a queue, pinned; not for captures. Drops the lock while it allocates. NULL when there is no memory. */
ladei_retire_queue *ladei_retire_queue_need(ladei_retire *retire, ladei_retire_queue_kind kind,
                                            const ladei_stream *stream);

void ladei_retire_queue_pin(ladei_retire *retire, ladei_retire_queue *queue);
/* Frees the queue, or keeps it for its stream's next use, when this was the last reference. */
void ladei_retire_queue_unpin(ladei_retire *retire, ladei_retire_queue *queue);

/* Takes the right to make driver calls for the queue and to take uses out of it; pins. False: another thread has it. */
bool ladei_retire_queue_claim(ladei_retire *retire, ladei_retire_queue *queue);
/* The same, waiting for the other thread. The queue may be idle, retired or finished then. */
void ladei_retire_queue_claim_wait(ladei_retire *retire, ladei_retire_queue *queue);
void ladei_retire_queue_yield(ladei_retire *retire, ladei_retire_queue *queue);
/* The queue polled after this one, which is pinned; NULL for the last. NULL gives the first. */
ladei_retire_queue *ladei_retire_queue_after(ladei_retire *retire, ladei_retire_queue *queue);

/* Somebody noted the stream: it answered just now. */
static inline void ladei_retire_queue_named(ladei_retire_queue *queue) {
  queue->notes++;
  queue->lost = false;
}
/* A noted use becomes pending. */
void ladei_retire_queue_append(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use);
/* Marks an open use; `covered` open uses, up to it, are open no longer. `event` NULL: the stream is done. */
void ladei_retire_queue_mark(ladei_retire_queue *queue, ladei_retire_use *use, ladei_event *event, uint64_t covered);
/* Takes a mark off, and its event, which the caller gets. Its uses are covered by the next mark, or open. */
ladei_event *ladei_retire_queue_unmark(ladei_retire_queue *queue, ladei_retire_use *mark);
/* Finishes a use and all before it. The queue is claimed. */
void ladei_retire_queue_finish(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *last,
                               ladei_retire_done_list *done);
/* Finishes one use wherever it stands (FOREIGN queues). The queue is claimed. */
void ladei_retire_queue_finish_one(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use,
                                   ladei_retire_done_list *done);

/* A use of one ticket, in no list; NULL when there is no memory beyond what buffers are promised. */
ladei_retire_use *ladei_retire_use_make(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_retire_queue *queue);
/* An event that the queue has at hand; NULL: none. And back, or to the pool. */
ladei_event *ladei_retire_queue_spare_take(ladei_retire_queue *queue);
void ladei_retire_queue_spare_put(ladei_retire *retire, ladei_retire_queue *queue, ladei_event *event);

/* Of a FOREIGN queue, whose `failing` follows; others have none. */
static inline void ladei_retire_use_failing_set(ladei_retire_queue *queue, ladei_retire_use *use, bool failing) {
  if (use->failing == failing) return;
  use->failing = failing;
  queue->failing_count += failing ? 1 : UINT32_MAX; /* modulo 2^32 */
  queue->failing = queue->failing_count > 0;
}

/* Frees a use that is in no list; its event goes back to the pool. Does not touch the queue's references. */
void ladei_retire_use_free(ladei_retire *retire, ladei_retire_use *use);

/* Frees all queues: nothing is noted or pending. The lock is held here too, though nobody else is left. */
void ladei_retire_queues_destroy(ladei_retire *retire);
/* Adds what is counted by looking at all queues. */
void ladei_retire_queues_count(ladei_retire *retire, ladei_retire_counters *counters);
/* Recounts Q1 to Q5; LADE_ERR_INTERNAL. */
lade_status ladei_retire_queues_check(ladei_retire *retire);

/* Uses that share an event. On the legacy stream each add records its own: work of all other streams lies in its order,
 * so an event recorded later covers far more than was meant, and a capture may forbid it. */
static inline uint64_t ladei_retire_queue_batch(const ladei_retire *retire, const ladei_retire_queue *queue) {
  return queue->stream.kind == LADEI_STREAM_LEGACY ? 1 : retire->options.event_batch;
}

/* Before tickets can be done, and after done() has returned from them. */
static inline void ladei_retire_pending_add(ladei_retire *retire, uint64_t count) {
  atomic_fetch_add_explicit(&retire->pending_tickets, count, memory_order_release);
}
static inline void ladei_retire_pending_sub(ladei_retire *retire, uint64_t count) {
  atomic_fetch_sub_explicit(&retire->pending_tickets, count, memory_order_release);
}

/* Under the lock, which is dropped meanwhile: calls done() and takes the tickets off pending_tickets. */
void ladei_retire_done_deliver(ladei_retire *retire, ladei_retire_done_list *done);
/* Under the lock: the beginning of a pass, and its end, with what the beginning said. */
uint32_t *ladei_retire_pass_begin(ladei_retire *retire);
void ladei_retire_pass_end(ladei_retire *retire, uint32_t *passes);
/* Under the lock, which is dropped meanwhile: waits for the passes of other threads, not in one. */
void ladei_retire_passes_wait(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_QUEUE_H */
