/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block records: 64 bytes for each block of pinned memory, kept outside of it.
 *
 * A record belongs to memory: page i of a segment has record i, small block j of a run has record j, for as long as the
 * pool lives (type-stable memory). So a record may be read through a stale pointer at any time; its content is believed
 * only if its word is the same before and after, or is changed by compare-and-swap.
 *
 *   word:  | generation 63..32 | node 23..16 | class 15..8 | IN_SLOT 3 | state 2..0 |
 *
 *      coalesce    take          hand out
 *     NONE <--> FREE <-----> CACHED <------> IN_USE     CACHED: in a magazine, the depot, a bin, or on its way
 *       ^        ^             ^               |        between two of these
 *       |        |             `--- PENDING <--'        PENDING: freed, streams may still use it
 *       `- RUN --'                                      RUN: both directions; the first page is FREE before and after
 *
 * K1  A word's state changes along these arrows alone, and its generation by one at each hand-out and at no other time
 *     (except when a record begins or ends with its segment). ladei_pinned_word_may_become has the table; builds
 *     without NDEBUG check each change.
 *
 * The right to change a record, by state
 *   NONE, FREE, RUN   the holder of the arena's lock: these records are parts of the node's free memory
 *   CACHED            the thread that took the block out of its list; if IN_SLOT, the thread that takes it by
 *                     compare-and-swap of the word (bins.h)
 *   PENDING           the thread to which runtime/retire gives the ticket
 *   IN_USE            any thread by compare-and-swap of the word alone, which makes one of two racing frees the loser
 *
 * A reader that finds RUN may find the record as FREE again, and as RUN after that. So the pointer itself tells its
 * kind: a pointer to a run has its lowest bit set.
 *
 * The ticket is runtime/retire's account of the streams that use the block; notes on it may come from any thread.
 * The generation grows whenever a block is handed out, and never falls, also where a segment's records serve another
 * one (segment.h).
 */
#ifndef LADE_HOST_BLOCKS_BLOCK_H
#define LADE_HOST_BLOCKS_BLOCK_H

#include <assert.h>
#include <stdatomic.h>

#include "base/switch.h"
#include "host/blocks/size_class.h"
#include "runtime/retire/retire.h"

typedef enum ladei_pinned_block_state {
  LADEI_PINNED_BLOCK_NONE = 0, /* no block starts here */
  LADEI_PINNED_BLOCK_FREE = 1, /* in the node's index of free blocks, or free in its run */
  LADEI_PINNED_BLOCK_RUN = 2,  /* page of a run of small blocks; only in page records */
  LADEI_PINNED_BLOCK_CACHED = 3,
  LADEI_PINNED_BLOCK_IN_USE = 4,
  LADEI_PINNED_BLOCK_PENDING = 5,
} ladei_pinned_block_state;

typedef struct ladei_pinned_block {
  _Alignas(64) _Atomic(uint64_t) word;
  _Atomic(uintptr_t) address;
  /* IN_USE: bytes of the request that it serves. Otherwise: the next one in whatever list holds it. */
  _Atomic(uint64_t) requested_or_next;
  _Atomic(void *) prev_or_run; /* FREE: before it in the same list. RUN: the run, marked as such; read by anyone */
  _Atomic(uint32_t) pages;     /* size; 0 for small blocks, whose class tells it */
  uint32_t prev_pages;         /* pages of the block before it in the segment; 0: the first. Guard: arena's lock */
  ladei_retire_ticket ticket;  /* idle unless IN_USE or PENDING */
} ladei_pinned_block;

_Static_assert(sizeof(ladei_pinned_block) == 64, "one cache line per block");

enum { LADEI_PINNED_MAX_NODES = 64 }; /* of a pool */

#define LADEI_PINNED_BLOCK_STATE_MASK       ((uint64_t)7)
#define LADEI_PINNED_BLOCK_IN_SLOT          ((uint64_t)1 << 3) /* it is in a slot of a bin, also while it is in use */
#define LADEI_PINNED_BLOCK_CLASS_SHIFT      8
#define LADEI_PINNED_BLOCK_NODE_SHIFT       16
#define LADEI_PINNED_BLOCK_GENERATION_SHIFT 32

static inline ladei_pinned_block_state ladei_pinned_word_state(uint64_t word) {
  return (ladei_pinned_block_state)(word & LADEI_PINNED_BLOCK_STATE_MASK);
}

static inline unsigned ladei_pinned_word_class(uint64_t word) {
  return (unsigned)(word >> LADEI_PINNED_BLOCK_CLASS_SHIFT) & 0xff;
}

static inline unsigned ladei_pinned_word_node(uint64_t word) {
  return (unsigned)(word >> LADEI_PINNED_BLOCK_NODE_SHIFT) & 0xff;
}

static inline bool ladei_pinned_word_is_small(uint64_t word) {
  return ladei_pinned_word_class(word) < LADEI_PINNED_SMALL_CLASSES;
}

static inline bool ladei_pinned_word_is_in_slot(uint64_t word) { return (word & LADEI_PINNED_BLOCK_IN_SLOT) != 0; }

static inline uint64_t ladei_pinned_word_with_state(uint64_t word, ladei_pinned_block_state state) {
  return (word & ~LADEI_PINNED_BLOCK_STATE_MASK) | (uint64_t)state;
}

/* Whether two blocks are of one class and node. */
static inline bool ladei_pinned_word_is_alike(uint64_t a, uint64_t b) {
  const uint64_t bits = (uint64_t)0xff << LADEI_PINNED_BLOCK_CLASS_SHIFT | (uint64_t)0xff
                                                                               << LADEI_PINNED_BLOCK_NODE_SHIFT;
  return ((a ^ b) & bits) == 0;
}

/* Whether a block is unchanged: getting into a slot and out of it changes nothing for its user. */
static inline bool ladei_pinned_word_is_same(uint64_t a, uint64_t b) {
  return ((a ^ b) & ~LADEI_PINNED_BLOCK_IN_SLOT) == 0;
}

/* The word of a block that is handed out: the generation grows. */
static inline uint64_t ladei_pinned_word_handed_out(uint64_t word) {
  return ladei_pinned_word_with_state(word, LADEI_PINNED_BLOCK_IN_USE) +
         ((uint64_t)1 << LADEI_PINNED_BLOCK_GENERATION_SHIFT);
}

static inline ladei_pinned_block *ladei_pinned_block_of_ticket(ladei_retire_ticket *ticket) {
  return (ladei_pinned_block *)(void *)((char *)ticket - offsetof(ladei_pinned_block, ticket));
}

/* Start of the block's memory. */
static inline uintptr_t ladei_pinned_block_address(const ladei_pinned_block *block) {
  return atomic_load_explicit(&block->address, memory_order_relaxed);
}

static inline size_t ladei_pinned_block_requested(const ladei_pinned_block *block) {
  return atomic_load_explicit(&block->requested_or_next, memory_order_relaxed);
}

static inline ladei_pinned_block *ladei_pinned_block_next(const ladei_pinned_block *block) {
  return (ladei_pinned_block *)(uintptr_t)atomic_load_explicit(&block->requested_or_next, memory_order_relaxed);
}
static inline void ladei_pinned_block_next_set(ladei_pinned_block *block, ladei_pinned_block *next) {
  atomic_store_explicit(&block->requested_or_next, (uintptr_t)next, memory_order_relaxed);
}

static inline ladei_pinned_block *ladei_pinned_block_prev(ladei_pinned_block *block) {
  return atomic_load_explicit(&block->prev_or_run, memory_order_relaxed);
}
static inline void ladei_pinned_block_prev_set(ladei_pinned_block *block, ladei_pinned_block *prev) {
  atomic_store_explicit(&block->prev_or_run, prev, memory_order_relaxed);
}

/* The run of a page record, by any thread at any time; NULL: it is no page of a run, at this moment. */
static inline struct ladei_pinned_run *ladei_pinned_block_run(const ladei_pinned_block *block) {
  uintptr_t run = (uintptr_t)atomic_load_explicit(&block->prev_or_run, memory_order_acquire);
  return (run & 1) != 0 ? (struct ladei_pinned_run *)(run - 1) : NULL;
}
/* NULL: none. */
static inline void ladei_pinned_block_run_set(ladei_pinned_block *block, struct ladei_pinned_run *run) {
  void *marked = run == NULL ? NULL : (void *)((uintptr_t)run | 1);
  atomic_store_explicit(&block->prev_or_run, marked, memory_order_release);
}

static inline uint64_t ladei_pinned_block_word(const ladei_pinned_block *block) {
  return atomic_load_explicit(&block->word, memory_order_acquire);
}

/* K1 */
static inline bool ladei_pinned_word_may_become(uint64_t from, uint64_t to) {
  static const uint8_t next[] = {
      [LADEI_PINNED_BLOCK_NONE] = 1u << LADEI_PINNED_BLOCK_FREE | 1u << LADEI_PINNED_BLOCK_RUN,
      [LADEI_PINNED_BLOCK_FREE] =
          1u << LADEI_PINNED_BLOCK_NONE | 1u << LADEI_PINNED_BLOCK_RUN | 1u << LADEI_PINNED_BLOCK_CACHED,
      [LADEI_PINNED_BLOCK_RUN] = 1u << LADEI_PINNED_BLOCK_NONE | 1u << LADEI_PINNED_BLOCK_FREE,
      [LADEI_PINNED_BLOCK_CACHED] = 1u << LADEI_PINNED_BLOCK_FREE | 1u << LADEI_PINNED_BLOCK_IN_USE,
      [LADEI_PINNED_BLOCK_IN_USE] = 1u << LADEI_PINNED_BLOCK_CACHED | 1u << LADEI_PINNED_BLOCK_PENDING,
      [LADEI_PINNED_BLOCK_PENDING] = 1u << LADEI_PINNED_BLOCK_CACHED,
  };
  ladei_pinned_block_state before = ladei_pinned_word_state(from), after = ladei_pinned_word_state(to);
  uint32_t hand_outs =
      (uint32_t)(to >> LADEI_PINNED_BLOCK_GENERATION_SHIFT) - (uint32_t)(from >> LADEI_PINNED_BLOCK_GENERATION_SHIFT);
  bool begins = before == LADEI_PINNED_BLOCK_NONE && after == LADEI_PINNED_BLOCK_FREE;
  bool ends = to == 0;
  return (before == after || (next[before] >> after & 1u) != 0) &&
         (begins || ends || hand_outs == (before != after && after == LADEI_PINNED_BLOCK_IN_USE ? 1u : 0u));
}

/* For records that the caller alone may change (see above): readers see all earlier writes. */
static inline void ladei_pinned_block_word_set(ladei_pinned_block *block, uint64_t word) {
  assert(ladei_pinned_word_may_become(atomic_load_explicit(&block->word, memory_order_relaxed), word) && "K1");
  atomic_store_explicit(&block->word, word, memory_order_release);
}

static inline void ladei_pinned_block_state_set(ladei_pinned_block *block, ladei_pinned_block_state state) {
  uint64_t word = atomic_load_explicit(&block->word, memory_order_relaxed);
  ladei_pinned_block_word_set(block, ladei_pinned_word_with_state(word, state));
}

static inline size_t ladei_pinned_block_pages(const ladei_pinned_block *block) {
  return atomic_load_explicit(&block->pages, memory_order_acquire);
}

/* Usable bytes of a block whose word is known. */
static inline size_t ladei_pinned_block_bytes(const ladei_pinned_block *block, uint64_t word) {
  return ladei_pinned_word_is_small(word) ? ladei_pinned_class_bytes(ladei_pinned_word_class(word))
                                          : ladei_pinned_block_pages(block) << LADEI_PINNED_PAGE_SHIFT;
}

static inline bool ladei_pinned_block_word_swap(ladei_pinned_block *block, uint64_t expected, uint64_t word) {
  assert(ladei_pinned_word_may_become(expected, word) && "K1");
  ladei_switch_point("word", 0);
  return atomic_compare_exchange_strong_explicit(&block->word, &expected, word, memory_order_acq_rel,
                                                 memory_order_relaxed);
}

static inline void ladei_pinned_block_requested_set(ladei_pinned_block *block, size_t requested_bytes) {
  atomic_store_explicit(&block->requested_or_next, requested_bytes, memory_order_relaxed);
}

/* Requested bytes of a block of `bytes` that is in use by its word; otherwise 0, also if the record has changed
 * already. Any thread, which looks at the word again. A block of a slot is in use before its record has the new request
 * (ready.h): for some instructions the result is its last user's request. */
static inline size_t ladei_pinned_block_requested_by(const ladei_pinned_block *block, uint64_t word, size_t bytes) {
  if (ladei_pinned_word_state(word) != LADEI_PINNED_BLOCK_IN_USE) return 0;
  size_t requested = atomic_load_explicit(&block->requested_or_next, memory_order_acquire);
  return requested <= bytes ? requested : 0;
}

/* CACHED -> IN_USE, by the thread that holds the block. */
static inline void ladei_pinned_block_hand_out(ladei_pinned_block *block, size_t requested_bytes) {
  uint64_t word = atomic_load_explicit(&block->word, memory_order_relaxed);
  ladei_pinned_block_requested_set(block, requested_bytes);
  ladei_pinned_block_word_set(block, ladei_pinned_word_handed_out(word));
}

#endif /* LADE_HOST_BLOCKS_BLOCK_H */
