/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of one device: segments, blocks and pools, and every decision about them. Makes no driver call: a
 * block that needs one is removed here, the call is made elsewhere (native/) with no lock held, and committed here
 * again.
 *
 *   segment |-- ALLOCATED --|-- FREE --|-- PENDING --|        one driver allocation, or
 *   segment |-- ALLOCATED --|-- FREE --|----- HOLE -----|     one reservation of addresses, mapped in part
 *
 *   FREE      cached; in pool->free
 *   HOLE      addresses without memory; in pool->holes; only in expandable segments
 *   ALLOCATED handed out
 *   PENDING   freed; its ticket waits in runtime/retire for the other streams that used it
 *   DEFERRED  freed with uses by other streams of the capture under way into its pool; it comes back after the capture,
 *             or within it (native/capture_reuse.c)
 *   BUSY      removed for a driver call in flight, or on its way to the requester; its thread alone touches it
 *   RECENT    cached too, but not in the set yet: coalescing is deferred (recent.h)
 *   THREAD    freed, and a thread may hand it out again (state/thread_caches.h); counts as ALLOCATED here
 *   SUSPENDED its pool's memory is away (native/suspend.c): handed out if `requested` is not 0, else cached, in no set.
 *             One that is freed meanwhile goes the same ways; what waits for other streams is PENDING without memory
 *
 *   BUSY --insert---> FREE, HOLE --remove------> BUSY        in the cache
 *   BUSY --hand_out-> ALLOCATED --free_begin---> BUSY        the program has it
 *   BUSY --free_wait-> PENDING --free_complete-> BUSY        other streams use it
 *   BUSY --free_wait-> DEFERRED ---------------> PENDING     once the capture is over, or orders them
 *   BUSY --keep------> RECENT --hand_out, settle> BUSY       freed last, and handed out again or put into the cache
 *   ALLOCATED <------> THREAD --free_begin---> BUSY          without the lock, by the thread that frees it
 *   FREE, ALLOCATED --> BUSY --suspend--> SUSPENDED -------> BUSY --> as it was, HOLE
 *   SUSPENDED --free_begin-> BUSY ------> SUSPENDED          its free is complete
 *
 * A new record is BUSY, and one that is given up is. ladei_device_block_state_set checks that no other step is taken.
 *
 * I1  The blocks of a segment cover it without gap or overlap, linked in address order; the first one starts the
 *     segment.
 * I2  Each FREE block is in the free set and each HOLE in the hole set of its segment's pool, and nothing else is.
 * I3  No two neighbours are both FREE, no two both HOLE, and no two both SUSPENDED and cached. (A RECENT block counts
 *     as one with the FREE block above it, and without one as FREE: for I9, and for all code except this folder and the
 *     recount. K1 to K4 in recent.h.)
 * I4  A block is a multiple of 512 bytes; a HOLE begins and ends at granules of its segment.
 * I5  `starts`, and the segment's start bits where it has any, name exactly the starts of all blocks, except of
 *     segments that are hidden while the driver takes them back. Those are in `hidden`, and counted, until the driver
 *     has said that they are gone, or has handed out their addresses again.
 * I6  Only HOLE, SUSPENDED and BUSY blocks may be unmapped, and waiting ones of suspended pools; the ticket of a FREE or RECENT block or HOLE is idle,
 *     except for a note that met the free of its block: that one counts for the next tenant of the record.
 * I7  reserved bytes = plain segments + mapped parts of expandable ones; the segment gauge counts the plain ones.
 * I8  allocation gauges sum ALLOCATED and THREAD blocks, and SUSPENDED ones that are handed out; active gauges those,
 *     PENDING and DEFERRED blocks; requested bytes sum what was asked for in active ones.
 * I9  inactive_split sums the FREE blocks of plain segments that have a neighbour.
 * I10 all = small_pool + large_pool for current, allocated and freed of every gauge.
 * I11 A private pool's segment_count is the number of its segments, of both kinds; its reserved_bytes are theirs as in
 *     I7, its allocated_bytes those of its blocks as in I8.
 * I12 `leaves` has room for the leaves of all sets of all pools with each block in one that `starts` has room for. So
 *     what makes a block FREE or a HOLE needs no memory.
 * ladei_device_allocator_check recounts all: they hold whenever the lock is free, also while driver calls are in
 * flight.
 * Locks: the allocator's lock, held by the caller of every function here.
 */
#ifndef LADE_DEVICE_HEAP_HEAP_H
#define LADE_DEVICE_HEAP_HEAP_H

#include <assert.h>

#include "base/lock.h"
#include "base/ordered_set.h"
#include "base/slab.h"
#include "device/heap/block_map.h"
#include "device/heap/free_set.h"
#include "device/heap/gauges.h"
#include "device/heap/granules.h"
#include "device/heap/pools.h"
#include "device/heap/size_rules.h"
#include "device/heap/start_bits.h"
#include "lade/device.h"
#include "runtime/ops.h"
#include "runtime/retire/retire.h"

typedef enum ladei_device_block_state {
  LADEI_DEVICE_HEAP_FREE,
  LADEI_DEVICE_HEAP_HOLE,
  LADEI_DEVICE_HEAP_ALLOCATED,
  LADEI_DEVICE_HEAP_PENDING,
  LADEI_DEVICE_HEAP_DEFERRED,
  LADEI_DEVICE_HEAP_BUSY,
  LADEI_DEVICE_HEAP_RECENT,
  LADEI_DEVICE_HEAP_THREAD,
  LADEI_DEVICE_HEAP_SUSPENDED,
} ladei_device_block_state;

struct ladei_device_markers;  /* capture_reuse.c */
struct ladei_history_context; /* belongs to the listener, as all fields named `context` */

/* Covers all work of a stream that was retired (finish.c). */
typedef struct ladei_device_last_event {
  lade_event event;
  uint64_t segments;                    /* that refer to it */
  struct ladei_device_last_event *next; /* in heap->spent_events */
} ladei_device_last_event;

typedef struct ladei_device_heap_segment {
  ladei_slab_head head;
  ladei_order_node order; /* in heap->segments, by address */

  /* Each change of a block looks at these: one line of cache. */
  _Alignas(64) ladei_device_block_pool *pool;
  uint64_t stream_key;
  ladei_device_granule_table *granules;           /* expandable; else NULL */
  _Atomic(struct ladei_device_last_event *) last; /* the stream was retired: make no call on it; NULL: it was not */
  ladei_device_start_bits starts;                 /* starts.words NULL: none yet, or the segment is too large */

  uint64_t address;
  size_t size; /* expandable: of the reservation */
  ladei_stream stream;
  ladei_stream legacy;                   /* PER_THREAD: the legacy stream of its context; context 0: not known */
  bool oversize_counted;                 /* it is in the oversize_segments gauge */
  bool emptied;                          /* expandable: granules were unmapped since it was last looked at */
  bool counted_out;                      /* hidden, and gone: no counter has it any more */
  bool wanted_back;                      /* it would have gone back while frees were held (native/caching.c) */
  struct ladei_device_block *hidden;     /* its only block, while it is hidden; else NULL */
  struct ladei_history_context *context; /* of the allocation that it was got for; NULL: none */
} ladei_device_heap_segment;
_Static_assert(offsetof(ladei_device_heap_segment, starts.words) - offsetof(ladei_device_heap_segment, pool) < 64,
               "what changes of blocks look at is one line of cache");

/*
 * Records are type-stable: one that was given up is used for another block some day, and is memory until the heap is
 * destroyed. So a thread without the lock may look whether a record is still that of its block. The fields it looks
 * at are atomic; they are written under the lock.
 */
typedef struct ladei_device_block {
  /* Every change of a block or of a neighbour looks at these: one line of cache. */
  ladei_slab_head head;
  _Atomic(uint64_t) address;
  size_t size;
  struct ladei_device_block *previous;
  struct ladei_device_block *next;
  _Atomic(ladei_device_heap_segment *) segment;
  size_t requested;       /* asked for by the caller; kept until the free completes */
  _Atomic(uint8_t) state; /* ladei_device_block_state */
  bool mapped;
  bool gone;             /* BUSY and leaving: the driver has taken its memory back */
  bool kept;             /* ... or would have broken a capture by it */
  bool oversize_counted; /* it is in the oversize_allocations gauge */
  bool marking;          /* DEFERRED: its markers are being taken (native/capture_reuse.c) */
  bool lent;             /* ALLOCATED: the next free by the program is nothing (api/device.c) */

  /* The second line. */
  _Alignas(64) uint64_t age_base;        /* pool->searches when it became FREE */
  ladei_retire_ticket ticket;            /* its uses by streams other than its own */
  struct ladei_device_block *chain;      /* in the list of deferred frees, of blocks that leave, of spare records */
  struct ladei_history_context *context; /* of its allocation; NULL: none */
  struct ladei_history_context *note;    /* that the program wrote on it; NULL: none */
  struct ladei_device_markers *markers;  /* DEFERRED: what must come before its next use; NULL: the capture's end */
} ladei_device_block;
_Static_assert(sizeof(ladei_device_block) == 128, "a block record is two lines of cache");

struct ladei_device_heap;

/* Gets a call at each change of a block or a segment, with the lock held; it makes no changes itself. */
typedef struct ladei_device_heap_listener {
  void (*block_alloc)(struct ladei_device_heap *heap, ladei_device_block *block); /* is handed out */
  void (*block_free)(struct ladei_device_heap *heap, ladei_device_block *block);  /* its free begins */
  void (*block_done)(struct ladei_device_heap *heap, ladei_device_block *block);  /* is about to be FREE */
  /* A plain segment comes or goes; memory is mapped into an expandable one or taken out of it. */
  void (*segment_change)(struct ladei_device_heap *heap, ladei_device_heap_segment *segment, lade_device_action action,
                         uint64_t address, uint64_t bytes);
  void (*segment_gone)(struct ladei_device_heap *heap, ladei_device_heap_segment *segment); /* its record goes */
} ladei_device_heap_listener;

/* The result of the last search of a stream in pools of one kind (recent.h). */
typedef struct ladei_device_recent {
  _Alignas(64) ladei_device_block *block; /* NULL: none */
  size_t rounded;                         /* what was searched for */
  bool freed;                             /* it is RECENT */
} ladei_device_recent;

enum { LADEI_DEVICE_RECENT_SLOTS = 64 }; /* of 32 streams whose numbers follow each other none shares one */

typedef struct ladei_device_heap {
  ladei_slab blocks;          /* of ladei_device_block */
  ladei_device_block *spares; /* records between two uses, linked through `chain`: live to the slab, in no segment */
  size_t spare_count;
  size_t hidden_count; /* segments hidden now, those known to be gone included */
  ladei_slab segments; /* of ladei_device_heap_segment */
  ladei_slab leaves;   /* of the free sets and hole sets of all pools */
  size_t pool_count;   /* the two below, and two of each private pool */
  ladei_device_block_map starts;
  ladei_ordered_set by_address; /* segments that are not hidden */
  ladei_ordered_set hidden;     /* those that are, and may come back */
  ladei_device_block_pool small_pool;
  ladei_device_block_pool large_pool;
  ladei_device_private_pool *private_pools; /* in order of creation */
  ladei_device_last_event *spent_events;    /* that no segment refers to any more */
  ladei_device_settings settings;
  atomic_size_t waiting_count; /* PENDING and DEFERRED blocks; written under the lock */
  uint64_t grants;             /* threads that give a peer access to mapped memory: nothing may be unmapped meanwhile */
  bool ages_tick;              /* a fraction is set and collection_threshold > 0 */
  const ladei_device_heap_listener *listener; /* NULL: nothing listens, and that test is all the cost */
  void *listener_state;                       /* the listener's own */
  const ladei_lock *lock; /* guards all of it; NULL where one thread alone has the heap, as in tests */

  /* Pairs of alloc and free write these, and only read the rest: one line of cache, a slot's, and those that move of
   * the counters'. */
  _Alignas(64) size_t recent_count;                      /* RECENT blocks */
  ladei_device_recent recent[LADEI_DEVICE_RECENT_SLOTS]; /* by stream and kind of pool */
  ladei_device_counters counters;
} ladei_device_heap;
_Static_assert(offsetof(ladei_device_heap, recent) - offsetof(ladei_device_heap, recent_count) == 64,
               "what pairs write beside their slot is one line of cache");

/* The calling thread holds the heap's lock. Nothing in builds with NDEBUG. */
static inline void ladei_device_heap_assert_locked(const ladei_device_heap *heap) {
  if (heap->lock != NULL) ladei_lock_assert_held(heap->lock);
}

/* Whether a block may go from one state to another: the steps drawn above. */
static inline bool ladei_device_block_state_follows(ladei_device_block_state from, ladei_device_block_state to) {
  switch (from) {
  case LADEI_DEVICE_HEAP_FREE:
  case LADEI_DEVICE_HEAP_HOLE:
  case LADEI_DEVICE_HEAP_ALLOCATED:
  case LADEI_DEVICE_HEAP_THREAD:
  case LADEI_DEVICE_HEAP_RECENT:
  case LADEI_DEVICE_HEAP_SUSPENDED:
  case LADEI_DEVICE_HEAP_PENDING: return to == LADEI_DEVICE_HEAP_BUSY;
  case LADEI_DEVICE_HEAP_DEFERRED: return to == LADEI_DEVICE_HEAP_PENDING;
  case LADEI_DEVICE_HEAP_BUSY: return to != LADEI_DEVICE_HEAP_BUSY && to != LADEI_DEVICE_HEAP_THREAD;
  }
  return false;
}

/* The only way from one state to another. */
static inline void ladei_device_block_state_set(ladei_device_block *block, ladei_device_block_state state) {
  assert(ladei_device_block_state_follows((ladei_device_block_state)block->state, state));
  bool unmapped = state == LADEI_DEVICE_HEAP_HOLE || state == LADEI_DEVICE_HEAP_SUSPENDED;
  bool either =
      state == LADEI_DEVICE_HEAP_BUSY || state == LADEI_DEVICE_HEAP_PENDING || state == LADEI_DEVICE_HEAP_DEFERRED;
  assert(either || block->mapped != unmapped); /* I6 */
  (void)either;
  (void)unmapped;
  atomic_store_explicit(&block->state, (uint8_t)state, memory_order_relaxed);
}

/* The place of an address among the start bits of its segment. */
static inline size_t ladei_device_start_granule(const ladei_device_heap_segment *segment, uint64_t address) {
  return (size_t)(address - segment->address) / LADEI_DEVICE_BLOCK_QUANTUM;
}

/* Whether counters have the block as handed out (I8), be a thread freeing it or not. One look, as a thread may turn
 * ALLOCATED into THREAD and back meanwhile. */
static inline bool ladei_device_block_handed_out(const ladei_device_block *block) {
  uint8_t state = atomic_load_explicit(&block->state, memory_order_relaxed);
  return state == LADEI_DEVICE_HEAP_ALLOCATED || state == LADEI_DEVICE_HEAP_THREAD;
}

/* Whether the program has the block, and no thread is freeing it. Lock held. */
static inline bool ladei_device_block_is_live(const ladei_device_block *block) {
  uint8_t state = atomic_load_explicit(&block->state, memory_order_relaxed);
  return state == LADEI_DEVICE_HEAP_ALLOCATED || (state == LADEI_DEVICE_HEAP_SUSPENDED && block->requested > 0);
}

void ladei_device_heap_init(ladei_device_heap *heap);
/* Frees the records; the driver memory is gone already. */
void ladei_device_heap_destroy(ladei_device_heap *heap);

/* Makes room for `blocks` new blocks, so that making them cannot fail; false when there is no memory. */
bool ladei_device_heap_reserve_more(ladei_device_heap *heap, size_t blocks);
static inline bool ladei_device_heap_reserve(ladei_device_heap *heap, size_t blocks) {
  bool there = blocks <= heap->spare_count && blocks <= heap->starts.room - heap->starts.count;
  return there || ladei_device_heap_reserve_more(heap, blocks);
}

/* Leaves that the sets of all pools take with so many blocks (I12). */
static inline size_t ladei_device_heap_leaves_most(const ladei_device_heap *heap, size_t blocks) {
  return ladei_device_sorted_leaves_most(heap->pool_count * (LADEI_DEVICE_FREE_CLASSES + 1), blocks);
}

/* Makes room for what a private pool will have free, before it has its first segment; false when there is no memory. */
bool ladei_device_heap_private_pool_add(ladei_device_heap *heap, ladei_device_private_pool *pool);
/* The opposite, once it has no segment any more. */
void ladei_device_heap_private_pool_drop(ladei_device_heap *heap);

/* The counters as users see them, except those that runtime/retire keeps; struct_size is set. */
lade_device_stats ladei_device_heap_stats(const ladei_device_heap *heap);

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static inline bool ladei_device_heap_segment_expandable(const ladei_device_heap_segment *segment) {
  return segment->granules != NULL;
}

static inline bool ladei_device_block_is_split(const ladei_device_block *block) {
  return block->previous != NULL || block->next != NULL;
}

/* The key of a FREE block in its pool's free set. */
static inline ladei_order_key ladei_device_block_free_key(const ladei_device_block *block) {
  return (ladei_order_key){{block->segment->stream_key, block->size, block->address}};
}
/* The key of a HOLE in its pool's hole set. */
static inline ladei_order_key ladei_device_block_hole_key(const ladei_device_block *block) {
  return (ladei_order_key){{block->segment->stream_key, block->address, 0}};
}

/* For segments.c: a BUSY block over all of a segment, with its start, for which room was reserved; and the end of its
 * record. */
ladei_device_block *ladei_device_block_cover(ladei_device_heap *heap, ladei_device_heap_segment *segment, bool mapped);
void ladei_device_block_drop(ladei_device_heap *heap, ladei_device_block *block);

/* Takes a FREE block or HOLE out of its set: BUSY. */
void ladei_device_block_remove(ladei_device_block *block);
/* Makes a BUSY block FREE or HOLE, as it is mapped or not, coalescing it with equal neighbours. Returns the result. */
ladei_device_block *ladei_device_block_insert(ladei_device_heap *heap, ladei_device_block *block);
/* Splits a BUSY block after `low_bytes`; returns the new, BUSY upper block. Room for one block was reserved. */
ladei_device_block *ladei_device_block_split(ladei_device_heap *heap, ladei_device_block *block, size_t low_bytes);
/* Coalesces a BUSY block with its BUSY next neighbour, whose record goes. */
void ladei_device_block_coalesce_next(ladei_device_heap *heap, ladei_device_block *block);

/*
 * Hands out the low `rounded` bytes of a BUSY or FREE block if `split`, else all of it; moves the gauges. Returns the
 * block handed out; the rest is FREE. With split, room for one block was reserved.
 */
ladei_device_block *ladei_device_block_hand_out(ladei_device_heap *heap, ladei_device_block *block, size_t rounded,
                                                size_t requested, bool split);
/* Its second step, for a BUSY block that is handed out whole: the gauges, except inactive_split. */
void ladei_device_block_hand_out_whole(ladei_device_heap *heap, ladei_device_block *block, size_t requested);
/* The same of the low `size` bytes of a BUSY block, for a caller that hands out all of it bit by bit: the rest stays
 * BUSY and is returned; NULL: there is none. Room for one block was reserved. */
ladei_device_block *ladei_device_block_hand_out_low(ladei_device_heap *heap, ladei_device_block *block, size_t size);
/* First half of a free: the client's gauges. */
void ladei_device_block_free_begin(ladei_device_heap *heap, ladei_device_block *block);
/* In between, where other streams still use it: it becomes PENDING or DEFERRED. */
void ladei_device_block_free_wait(ladei_device_heap *heap, ladei_device_block *block, ladei_device_block_state state);
/* Second half: nothing uses the block any more. It becomes FREE, or SUSPENDED again, and coalesces. */
void ladei_device_block_free_complete(ladei_device_heap *heap, ladei_device_block *block);
/* The same for a caller that frees a whole segment upwards: the block coalesces with `run`, which lies below it, is
 * BUSY and counts as FREE (NULL: nothing free is there), and with what is FREE above; the result is BUSY, and the next
 * run. */
ladei_device_block *ladei_device_block_free_complete_into(ladei_device_heap *heap, ladei_device_block *run,
                                                          ladei_device_block *block);

#endif /* LADE_DEVICE_HEAP_HEAP_H */
