/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline's state machine: knows where each chunk is, and chooses the next order. It has no thread, no clock, no
 * lock, and calls nothing: a driver (threads.c, virtual.c) takes an order, executes it, and reports how it went.
 *
 *   driver:  while (ladei_pipe_core_next(core, allow, &order)) ladei_pipe_core_complete(..., execute(&order), ...);
 *
 * To the device                                       To the host
 *
 *   empty --ACQUIRE--> free                             empty --ACQUIRE--> free
 *   free --READ--> ready --COPY--> copied               free --COPY--> copied
 *   copied --RECORD--> covered --POLL--> free           copied --RECORD--> covered --POLL--> landed --WRITE--> free
 *   free --RELEASE--> empty                             free --RELEASE--> empty
 *   copied, covered --RELEASE--> (without block)
 *
 * There is one ring of slots per direction. A slot holds a pinned block, most of the time. RECORD covers all copied
 * slots by one event, as a batch. At the end of the queue blocks are given back to their pool while copies still use
 * them, since the pool knows how to wait; the slots stay occupied until their batch is done, so a ring never has more
 * than `depth` blocks in flight. A transfer that needs no staging takes empty slots the same way, without a block, and
 * unless it has a host half begins with COPY.
 *
 * At the cap of its pool a ring goes on with the blocks it has. A ring without one waits (ACQUIRE: LADE_NOT_READY),
 * while rings with blocks give up those they can spare: see Note [What others wait for] in core_pick.c.
 *
 * Copies are queued on copy streams: the first and the last take turns at all that need not wait (Note [Turns] in
 * core_pick.c), except short or urgent ones, which have one of their own (Note [Short transfers]).
 * DEPENDENCY asks whether the caller's work queued before a transfer is over. If so, the transfer goes on like any
 * other; if not, its copies go to another copy stream, which then waits, and delay no others, until one of them is seen
 * to be over. Transfers after one caller's stream share a copy stream.
 *
 *   copy stream 0   T1 T1 T4 T1 ...
 *   copy stream 1   | waits for the caller's stream a | T2 T2 T6 ...
 *   copy stream 2   | waits for the caller's stream b | T3 ...
 *   copy stream 3   T5
 *   copy stream 4               T1 T4 ...
 *
 * The next chunk is begun by a transfer of the highest priority that has any; among its fair queues (one for each
 * submitter) of the one that has been served least; within a queue by the first submitted. A transfer that may stall
 * leaves room for others: see Note [Stalled transfers] in core_schedule.c.
 *
 *   level 2 (urgent)      queue 0: T7 -> T9        queue 5: T8
 *   level 1               queue 0: T1 -> T2 -> T4  queue 3: T3       queue 5: T5 -> T6
 *   level 0 (background)
 */
#ifndef LADE_PIPELINE_CORE_CORE_H
#define LADE_PIPELINE_CORE_CORE_H

#include <sys/queue.h>

#include "lade/pipeline.h"
#include "lade/status.h"

typedef struct ladei_pipe_ring ladei_pipe_ring;
typedef struct ladei_pipe_core_transfer ladei_pipe_core_transfer;
typedef struct ladei_pipe_slot ladei_pipe_slot;
typedef struct ladei_pipe_batch ladei_pipe_batch;
typedef struct ladei_pipe_copy_stream ladei_pipe_copy_stream;

typedef enum ladei_pipe_slot_state {
  LADEI_PIPE_SLOT_EMPTY = 0,
  LADEI_PIPE_SLOT_ACQUIRING, /* order out */
  LADEI_PIPE_SLOT_FREE,
  LADEI_PIPE_SLOT_READING, /* order out */
  LADEI_PIPE_SLOT_READY,
  LADEI_PIPE_SLOT_COPYING, /* order out */
  LADEI_PIPE_SLOT_COPIED,
  LADEI_PIPE_SLOT_COVERED,
  LADEI_PIPE_SLOT_LANDED,
  LADEI_PIPE_SLOT_WRITING,   /* order out */
  LADEI_PIPE_SLOT_LOST,      /* covered by a batch of which nothing can be learned any more; its block must go */
  LADEI_PIPE_SLOT_RELEASING, /* order out, no chunk any more */
} ladei_pipe_slot_state;

struct ladei_pipe_slot {
  TAILQ_ENTRY(ladei_pipe_slot) link; /* in the list of its ring or batch that its state says */
  ladei_pipe_ring *ring;
  ladei_pipe_core_transfer *transfer;  /* whose chunk it carries, or NULL */
  ladei_pipe_copy_stream *copy_stream; /* of its copies, from COPY on */
  void *block;                         /* NULL: none */
  size_t capacity;                     /* of the block */
  uint64_t offset;                     /* of the chunk in the transfer */
  size_t bytes;
  size_t lead_bytes; /* the chunk lies so far into the block */
  ladei_pipe_slot_state state;
  bool release_out;        /* a RELEASE order for its block is out */
  bool keep_block;         /* an early RELEASE failed: wait for the batch instead */
  bool lost;               /* its batch was lost while a RELEASE was out */
  bool used;               /* its block has carried a chunk since it was acquired */
  unsigned taker;          /* the taker of the last READ into it: ring->takers.asking then */
  ladei_pipe_slot *joined; /* COPYING: the next one of the same order; NULL: the last */
  bool stalled;            /* READING or WRITING: the call is overdue */
  bool shortened;          /* ladei_pipe_chunk_is_short of its chunk */
};

TAILQ_HEAD(ladei_slot_list, ladei_pipe_slot);

typedef enum ladei_pipe_batch_state {
  LADEI_PIPE_BATCH_IDLE = 0,
  LADEI_PIPE_BATCH_RECORDING, /* order out */
  LADEI_PIPE_BATCH_PENDING,
  LADEI_PIPE_BATCH_POLLING, /* order out */
} ladei_pipe_batch_state;

/* Slots whose copies one event covers. */
struct ladei_pipe_batch {
  TAILQ_ENTRY(ladei_pipe_batch) link;
  ladei_pipe_copy_stream *copy_stream;
  struct ladei_slot_list slots;
  ladei_pipe_batch_state state;
  bool by_stream; /* its event failed: ask the stream instead */
  unsigned index; /* in its copy stream: which event is its */
};

TAILQ_HEAD(ladei_batch_list, ladei_pipe_batch);

/* Copy streams of a ring: from 1 on those that wait for callers' streams, then that of short transfers, then the one
 * that takes turns with the first (Note [Turns] in core_pick.c); and events of each. */
enum {
  LADEI_PIPE_COPY_STREAM_SHORT = 3,
  LADEI_PIPE_COPY_STREAM_SECOND,
  LADEI_PIPE_COPY_STREAMS,
  LADEI_PIPE_BATCHES = 8
};

/* Copies that run one after the other, on a stream. COPIED slots are those that no event covers yet. */
struct ladei_pipe_copy_stream {
  ladei_pipe_ring *ring;
  unsigned index;                /* in its ring: which stream is its */
  struct ladei_slot_list copied; /* in the order they became so */
  unsigned copied_count;
  size_t copied_bytes;             /* together */
  unsigned copying;                /* COPY orders out */
  uint64_t under_way_bytes;        /* of COPIED and COVERED slots */
  uint64_t turn_bytes;             /* of COPY orders since it had none out and nothing under way */
  unsigned recording;              /* RECORD orders out */
  struct ladei_batch_list idle;    /* batches */
  struct ladei_batch_list pending; /* PENDING and POLLING, oldest first */
  bool poll_asleep;                /* the last POLL found nothing: wait for ladei_pipe_core_poll_wake */
  unsigned transfers;              /* of one that waits: transfers that queue their copies here */
  uint64_t after;                  /* the last one's */
  uint64_t waits_for;              /* 1 + number of the transfer that it began to wait for last; 0: that has passed */
  ladei_pipe_batch batches[LADEI_PIPE_BATCHES];
};

typedef enum ladei_pipe_dependency {
  LADEI_PIPE_DEPENDENCY_NONE = 0, /* nothing to wait for */
  LADEI_PIPE_DEPENDENCY_UNKNOWN,  /* the caller's work before it may still run */
  LADEI_PIPE_DEPENDENCY_QUERYING, /* order out */
  LADEI_PIPE_DEPENDENCY_AWAITED,  /* its copy stream waits for that */
} ladei_pipe_dependency;

/* Levels of priority, and fair queues of each. Submitters beyond the fair queues share them. */
enum { LADEI_PIPE_PRIORITIES = 3, LADEI_PIPE_PRIORITY_NORMAL = 1, LADEI_PIPE_FAIR_QUEUES = 32 };

/* A transfer as the core sees it. A ticket embeds it and sets the first group. */
struct ladei_pipe_core_transfer {
  uint64_t bytes;
  size_t chunk_bytes; /* of a chunk, at most; the block's capacity limits it further */
  size_t lead_bytes;  /* the first chunk is this much shorter and lies this far into its block; below chunk_bytes */
  size_t unit_bytes;  /* not 0: chunks except the last are multiples of it, counted from lead_bytes before the first */
  bool adapts;        /* staged chunks are even, and short at start and end: adapt.h, ladei_pipe_chunk_next */
  bool ordered;       /* the host half goes chunk by chunk, in order */
  bool calls;         /* the host half calls back, so it may take for ever; set where `ordered` is */
  bool remote;        /* the host half is a request that may take for ever, and keeps no thread */
  unsigned writers;   /* WRITE orders out at most; 0: as many as the ring has. May change: Note [Writers] in adapt.c */
  uint64_t sink;      /* not 0: transfers of the same sink count their writes together */
  bool unstaged;      /* copies leave and reach the host's own memory: no block */
  bool joins; /* its copies may be queued together with others: Note [Joined copies] in core_pick.c. May change */
  unsigned conversion; /* not 0: of its numbers on their way; joined are copies of the same */
  bool no_host;        /* unstaged, and no READ or WRITE either */
  bool read_arrives;   /* unstaged, and a READ moves the bytes all the way: it begins after the dependency has passed */
  unsigned level;      /* below LADEI_PIPE_PRIORITIES: larger goes first */
  unsigned fair_queue; /* below LADEI_PIPE_FAIR_QUEUES */
  ladei_pipe_dependency dependency; /* NONE or UNKNOWN */
  uint64_t after;                   /* UNKNOWN: number of the caller's stream */

  TAILQ_ENTRY(ladei_pipe_core_transfer) link; /* ring->schedule.queue, or ring->schedule.finished once it is settled */
  TAILQ_ENTRY(ladei_pipe_core_transfer)
  fair_queue_link; /* its fair queue's list, while `waiting`; ring->schedule.held, while `held` */
  bool waiting;    /* could begin a chunk, */
  bool held;       /* ... or could, and has its share of the slots */
  bool unissued;   /* counted in ring->schedule.unissued */
  bool asks;       /* in ring->schedule.asking, by fair_queue_link, */
  bool asked;      /* ... and was asked in vain since ladei_pipe_core_poll_wake */
  ladei_pipe_ring *ring;
  ladei_pipe_copy_stream *copy_stream; /* of its next copies, once its dependency is neither UNKNOWN nor QUERYING */
  uint64_t number;                     /* in the order of submission */
  uint64_t issued_bytes;               /* chunks begun */
  uint64_t left_bytes;                 /* chunks not begun; 0 once it has failed */
  uint64_t queued_bytes;               /* copies submitted */
  uint64_t done_bytes;                 /* arrived */
  unsigned active;                     /* slots that carry its chunks */
  unsigned host_out;                   /* ... and are READING or WRITING */
  bool host_busy;                      /* ordered: a host half is under way */
  bool answered;                       /* calls: one has returned */
  unsigned stalled;                    /* calls: number of overdue ones */
  uint64_t host_bytes;                 /* ordered, to the host: written so far */
  bool settled;                        /* nothing under way and nothing left to do */
  bool finished;                       /* reported by FINISH: for its waiters */
  lade_error error;                    /* status LADE_OK: none so far */
};

TAILQ_HEAD(ladei_core_transfer_list, ladei_pipe_core_transfer);

/* Transfers of one level and submitter that could begin a chunk, in the order of submission. */
typedef struct ladei_pipe_fair_queue {
  struct ladei_core_transfer_list waiting;
  uint64_t served; /* bytes begun; raised to at least the level's clock when it comes back from having nothing */
} ladei_pipe_fair_queue;

typedef struct ladei_pipe_priority {
  ladei_pipe_fair_queue fair_queues[LADEI_PIPE_FAIR_QUEUES];
  uint32_t active; /* bit i: fair queue i has transfers waiting */
  uint64_t clock;  /* `served` of the fair queue that began a chunk last */
} ladei_pipe_priority;

/* The blocks that a ring gives up while others wait for blocks. */
typedef enum ladei_pipe_yield {
  LADEI_PIPE_YIELD_NONE = 0,
  LADEI_PIPE_YIELD_SPARE, /* blocks without chunk but the last */
  LADEI_PIPE_YIELD_ALL,   /* that one too, once it was used */
} ladei_pipe_yield;

/* Slots by state, where that has a list. */
typedef struct ladei_pipe_slot_lists {
  struct ladei_slot_list empty;
  struct ladei_slot_list free;  /* the one that rested longest first, or last (blocks.last_first) */
  struct ladei_slot_list ready; /* in the order they became so; the same for the next two */
  struct ladei_slot_list landed;
  struct ladei_slot_list lost;
} ladei_pipe_slot_lists;

/* A ring's blocks: size, number, and requests to the pool. */
typedef struct ladei_pipe_ring_blocks {
  size_t bytes;           /* ACQUIRE blocks of this size; smaller ones are given back when they come free */
  size_t bulk_bytes;      /* ... or of this while half of all have work: the likely future `bytes`; 0: no */
  size_t least_bytes;     /* a refused block is tried again half as large, down to this */
  size_t most_bytes;      /* larger ones were refused */
  unsigned limit;         /* ACQUIRE no more blocks than this: depth, or fewer after one was refused */
  unsigned ahead;         /* blocks beside those of the window, at most */
  unsigned count;         /* held or being acquired */
  unsigned acquire_out;   /* ... those of them */
  bool last_first;        /* the block used last is used next */
  bool asleep;            /* the only one was to be waited for: until ladei_pipe_core_poll_wake */
  bool awaits;            /* ... and nothing came since */
  bool keeps;             /* blocks stay where nothing is left to begin: more comes at once */
  ladei_pipe_yield yield; /* to others that wait for blocks of the same pool */
} ladei_pipe_ring_blocks;

/* The takers of READ orders: Note [Readers that stay] in core_pick.c. */
typedef struct ladei_pipe_takers {
  unsigned asking;   /* its last block comes before the one used last; as the driver numbers them from 1; 0: none */
  bool asking_stays; /* one of `staying` is the asking one */
  unsigned staying;  /* places of the window that are kept for takers of READ orders */
} ladei_pipe_takers;

/* READ or WRITE orders of transfers that are neither ordered nor remote. */
typedef struct ladei_pipe_host_orders {
  unsigned window; /* out, at most ... */
  unsigned out;    /* ... and now, without overdue ones. At most one of an ordered transfer */
  bool paces;      /* READ orders keep pace with the copies: Note [Pace of reads] in core_pick.c */
} ladei_pipe_host_orders;

/* READ or WRITE orders of transfers that call back. */
typedef struct ladei_pipe_call_orders {
  unsigned most;   /* out, at most ... */
  unsigned out;    /* ... and now */
  unsigned active; /* slots with chunks of such transfers */
} ladei_pipe_call_orders;

/* The slots that one COPY order takes: Note [Joined copies] in core_pick.c. */
typedef struct ladei_pipe_joined {
  unsigned most; /* slots, at most, ... */
  size_t bytes;  /* ... and their bytes, at most, if there are several */
} ladei_pipe_joined;

/* Note [Turns] in core_pick.c. */
typedef struct ladei_pipe_turns {
  uint64_t most_bytes; /* that a copy stream queues until all of it is over, about; 0: no limit */
  unsigned halved;     /* so many turns more are half as long: short transfers copied a moment ago */
  bool single;         /* the first and the second copy stream are not used at the same time: a copy is measured */
} ladei_pipe_turns;

/* Transfers, and which of them begins the next chunk: core_schedule.c. */
typedef struct ladei_pipe_schedule {
  struct ladei_core_transfer_list queue;
  struct ladei_core_transfer_list finished;
  ladei_pipe_priority levels[LADEI_PIPE_PRIORITIES];
  struct ladei_core_transfer_list held;   /* in the order of submission */
  unsigned held_calls;                    /* of those, the ones that call back */
  struct ladei_core_transfer_list asking; /* those whose READ waits until the dependency has passed */
  unsigned may_stall;                     /* slots with chunks of transfers that may stall */
  unsigned unissued;                      /* transfers that have not failed and have chunks not begun */
  uint64_t left_bytes;                    /* of those, together */
  uint64_t begun_bytes;                   /* chunks begun since no slot carried one */
  ladei_pipe_core_transfer *issuing;      /* the one of them that begins the next chunk; NULL: none can */
} ladei_pipe_schedule;

struct ladei_pipe_ring {
  lade_direction direction;
  unsigned depth;
  ladei_pipe_slot *slots; /* depth of them */
  unsigned active;        /* those that carry chunks */
  ladei_pipe_slot_lists lists;
  ladei_pipe_ring_blocks blocks;
  ladei_pipe_takers takers;
  ladei_pipe_host_orders host;
  ladei_pipe_call_orders calls;
  ladei_pipe_joined joined;
  ladei_pipe_turns turns;
  ladei_pipe_copy_stream copy_streams[LADEI_PIPE_COPY_STREAMS];
  unsigned copy_streams_copied; /* bit i: copy stream i has COPIED slots */
  ladei_pipe_schedule schedule;
};

typedef struct ladei_pipe_core_counters {
  uint64_t transfers_submitted, transfers_completed, transfers_failed;
  uint64_t bytes_completed;
  uint64_t copies, events_recorded, events_queried;
  uint64_t blocks, blocks_peak;
  uint64_t block_waits; /* times that a ring without blocks had to wait for one */
} ladei_pipe_core_counters;

typedef struct ladei_pipe_core {
  ladei_pipe_ring rings[2]; /* to the device, to the host */
  unsigned next_ring;       /* ring to ask first */
  unsigned unfinished;      /* transfers submitted, FINISH not completed */
  unsigned orders_out;
  ladei_pipe_core_counters counters;
} ladei_pipe_core;

static inline ladei_pipe_ring *ladei_pipe_core_ring(ladei_pipe_core *core, int32_t direction) {
  return &core->rings[direction == LADE_TO_DEVICE ? 0 : 1];
}

typedef enum ladei_pipe_order_kind {
  LADEI_PIPE_ORDER_ACQUIRE =
      1,                 /* get a block of `bytes` for `slot`: complete with order->block set; LADE_NOT_READY: only
                              where it says `only`, it has to be waited for */
  LADEI_PIPE_ORDER_READ, /* source -> slot->block */
  LADEI_PIPE_ORDER_DEPENDENCY, /* if the caller's work before `transfer` is over, complete with `passed` set; if not,
                              let the copy stream wait for it */
  LADEI_PIPE_ORDER_COPY, /* queue the copies of the slot, and of those joined to it, on their copy stream; complete with
                              `copies` set. On failure with one slot, with `partial` if some are queued; those of
                              several slots are queued together or not at all, and each slot comes by itself then */
  LADEI_PIPE_ORDER_RECORD,  /* record the event of `batch` on its copy stream */
  LADEI_PIPE_ORDER_POLL,    /* ask that event (batch->by_stream: the stream): LADE_OK, LADE_NOT_READY or an error */
  LADEI_PIPE_ORDER_WRITE,   /* slot->block -> sink */
  LADEI_PIPE_ORDER_RELEASE, /* give slot->block back to the pool; `in_flight`: note its copy stream first. Must not fail
                          where `last_resort` is set */
  LADEI_PIPE_ORDER_FINISH,  /* all of `transfer` is done, or it failed: end it, release its resources and tell
                          its owner. A failure of these is its outcome */
} ladei_pipe_order_kind;

typedef struct ladei_pipe_order {
  ladei_pipe_order_kind kind;
  unsigned copies; /* COPY: driver calls that it took */
  ladei_pipe_ring *ring;
  ladei_pipe_slot *slot;
  ladei_pipe_batch *batch;
  ladei_pipe_core_transfer *transfer;
  ladei_pipe_copy_stream *copy_stream; /* DEPENDENCY; NULL: only ask */
  void *block;
  size_t bytes;
  uint64_t ahead; /* ACQUIRE: bytes acquired now, with this block, and those likely to be acquired soon */
  bool passed;
  bool in_flight;
  bool last_resort;
  bool partial;
  bool by_engine; /* for the driver: its request went through the storage's engine */
  bool only;      /* ACQUIRE: the ring has no other block */
  bool smallest;  /* ACQUIRE: a smaller one would be of no use */
} ladei_pipe_order;

static inline bool ladei_pipe_order_is_host(const ladei_pipe_order *order) {
  return order->kind == LADEI_PIPE_ORDER_READ || order->kind == LADEI_PIPE_ORDER_WRITE;
}

/* Whether it takes no longer than driver calls that wait for nothing. */
bool ladei_pipe_order_is_short(const ladei_pipe_order *order);

/* The effects of a completion, for threads that wait. */
enum {
  LADEI_PIPE_CHANGED_QUEUED = 1u << 0,   /* all copies of a transfer are submitted */
  LADEI_PIPE_CHANGED_FINISHED = 1u << 1, /* a transfer is finished */
  LADEI_PIPE_CHANGED_FAILED = 1u << 2,   /* a transfer got its error */
};

/* Orders that only some may take. */
enum { LADEI_PIPE_ALLOW_HOST = 1u << 0 /* READ, WRITE */ };

/* Depth 1 to 1024, for each ring; no limit on host orders, blocks without a size. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pipe_core_init(ladei_pipe_core *core, unsigned depth);
/* Every transfer is finished and every block released. */
void ladei_pipe_core_destroy(ladei_pipe_core *core);

/* Blocks of both rings, before the first submit; not 0, `least` at most `bytes`. */
void ladei_pipe_core_set_blocks(ladei_pipe_core *core, size_t bytes, size_t least);
/* Blocks of the ring from now on, unless they are larger already or such ones were refused. True: they have grown. */
bool ladei_pipe_core_grow_blocks(ladei_pipe_ring *ring, size_t bytes);

/* Blocks of the ring from now on, where there is work for half of them; larger than the usual ones. */
void ladei_pipe_core_set_bulk(ladei_pipe_ring *ring, size_t bytes);
/* That chunk, or a shorter one where blocks of it for `requests` and for copies were more than `window_bytes`. */
size_t ladei_pipe_core_chunk_in_window(const ladei_pipe_ring *ring, size_t chunk, unsigned requests,
                                       uint64_t window_bytes);
/* Sets the measured length of copies that is enough for the ring's link; 0: none. Joined copies and turns follow
 * `chunk`, and blocks grow to it, as far as they stay in the window. True: they have grown. */
bool ladei_pipe_core_set_link(ladei_pipe_ring *ring, size_t chunk, unsigned requests, uint64_t window_bytes);

/* At most `window` READ or WRITE orders of the ring are out from now on. */
void ladei_pipe_core_set_window(ladei_pipe_ring *ring, unsigned window);

/* A COPY order takes several slots, `most` at most and of `bytes` together, from now on. At first it takes one. */
void ladei_pipe_core_set_joined(ladei_pipe_ring *ring, unsigned most, size_t bytes);

/* A copy stream of the ring queues at most `bytes`, and then none until they are over. At first there is no limit. */
void ladei_pipe_core_set_turn(ladei_pipe_ring *ring, uint64_t bytes);
/* Whether a copy is to be measured, which no other stream of the ring may disturb. */
void ladei_pipe_core_set_single(ladei_pipe_ring *ring, bool single);
/* Whether copies wait for their turn: its end should be found soon. */
bool ladei_pipe_core_turn_awaited(const ladei_pipe_core *core);
/* Whether copies of the ring are under way, or could be. */
bool ladei_pipe_core_copies(const ladei_pipe_ring *ring);

/* At most `most` READ or WRITE orders of the ring's transfers that call back are out from now on. */
void ladei_pipe_core_set_calls(ladei_pipe_ring *ring, unsigned most);

/* The slot's READ or WRITE order, of a transfer that calls back, is overdue: others go on without it. */
void ladei_pipe_core_stall(ladei_pipe_slot *slot);

/* Queues a transfer whose first group of fields is set and whose rest is zero. */
void ladei_pipe_core_submit(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, lade_direction direction);
/* Ends a transfer with `error`, unless it has one or is settled. Its orders under way are waited for. */
void ladei_pipe_core_fail(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, const lade_error *error);

/* Takes the most useful order. False: nothing to do until a completion, a submit, or ladei_pipe_core_poll_wake; `out`
 * is undefined then. */
bool ladei_pipe_core_next(ladei_pipe_core *core, unsigned allow, ladei_pipe_order *out);
/* The same of one ring, where `accepts` the order; otherwise it is left, and there may be others after it. */
bool ladei_pipe_core_next_of(ladei_pipe_core *core, ladei_pipe_ring *ring,
                             bool (*accepts)(const ladei_pipe_order *order), ladei_pipe_order *out);
/* Taker of the next order to the device; `stays`: a place is kept for it (Note [Readers that stay] in core_pick.c). */
void ladei_pipe_core_set_taker(ladei_pipe_core *core, unsigned taker, bool stays);
/* Keeps a place for the taker of a complete READ; or gives it up, before the taker does anything that may take long. */
void ladei_pipe_core_stay(ladei_pipe_core *core, bool stays);
/* Whether next would find one, other than the ring's first where `accepts` that. NULL: whether it would find any. */
bool ladei_pipe_core_has_order(const ladei_pipe_core *core, const ladei_pipe_ring *ring,
                               bool (*accepts)(const ladei_pipe_order *order));
/*
 * Reports that an order was executed. `error` describes a status other than LADE_OK and LADE_NOT_READY. Returns
 * LADEI_PIPE_CHANGED_* bits.
 */
unsigned ladei_pipe_core_complete(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                                  const lade_error *error);

/* WRITE orders that are out to the transfer's sink, by whichever transfer. */
unsigned ladei_pipe_core_writes_out(const ladei_pipe_core_transfer *transfer);

/* READ orders that could be taken at once, of files and memory: at most one for each `bytes` that are left to read. */
uint64_t ladei_pipe_core_reads_possible(const ladei_pipe_core *core, uint64_t bytes);

/* Whether copies are under way whose end only POLL can find, or a block is waited for. */
bool ladei_pipe_core_polls(const ladei_pipe_core *core);
/* Whether the ring waits for its only block: an ACQUIRE found that it has to, and it still has use for one. */
static inline bool ladei_pipe_core_awaits_block(const ladei_pipe_ring *ring) {
  return ring->blocks.awaits && ring->blocks.count == ring->blocks.acquire_out && ring->schedule.issuing != NULL &&
         !ring->schedule.issuing->unstaged;
}
/* The blocks that the rings give up from now on. */
void ladei_pipe_core_set_yield(ladei_pipe_core *core, ladei_pipe_yield yield);
/* Whether the ring's blocks stay where nothing is left to begin, for transfers that come at once. */
void ladei_pipe_core_set_keeps(ladei_pipe_ring *ring, bool keeps);
/* POLL is to be tried again in the ring. */
void ladei_pipe_core_ask_again(ladei_pipe_ring *ring);
/* Time has passed: POLL, and ACQUIRE where it has to wait, may be worth while again. */
void ladei_pipe_core_poll_wake(ladei_pipe_core *core);

/* Bytes at the transfer's start of which every copy is submitted, or over, or every byte has arrived. */
uint64_t ladei_pipe_core_prefix_queued(const ladei_pipe_core_transfer *transfer);
uint64_t ladei_pipe_core_prefix_copied(const ladei_pipe_core_transfer *transfer);
uint64_t ladei_pipe_core_prefix_done(const ladei_pipe_core_transfer *transfer);

/* Copy streams with copies of these bytes under way: bit i, that of index i. Several if some waited for a caller's
 * stream. */
unsigned ladei_pipe_core_copy_streams(const ladei_pipe_core_transfer *transfer, uint64_t bytes);

/* Where the slot's chunk lies in its block. */
static inline void *ladei_pipe_slot_data(const ladei_pipe_slot *slot) { return (char *)slot->block + slot->lead_bytes; }

/* All submitted copies: whether waiting for its copy stream now covers the whole transfer. */
static inline bool ladei_pipe_core_all_queued(const ladei_pipe_core_transfer *transfer) {
  return transfer->queued_bytes == transfer->bytes;
}

/* Recounts the invariants of core_orders.c; LADE_ERR_INTERNAL names the broken one. For tests and debug builds. */
lade_status ladei_pipe_core_check(const ladei_pipe_core *core);

#endif /* LADE_PIPELINE_CORE_CORE_H */
