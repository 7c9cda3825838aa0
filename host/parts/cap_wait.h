/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting at a pool's cap: memory in transit, and threads that wait for memory to come back.
 *
 *   transit   memory that is free, yet nowhere where a request would find it: a segment in the midst of being pinned
 *             or unpinned; blocks that a thread took out of one list and has not put into the next
 *   stop      a request that found nothing holds new transits back, waits for those under way, and looks again: memory
 *             not there is in use, pending, or free in pieces that are too short. Meanwhile it counts as a waiter
 *   wait      a request that may wait (wait_ms) sleeps until a block comes back
 *
 * Two kinds of transit: `segments` may last as long as a driver call, `blocks` are some instructions. They are stopped
 * in that order, so no thread that moves blocks, as a free does, waits for a driver call of another thread.
 *
 * Blocks are in transit all the time, so those words are several, and a thread uses that of its stripe; a thread that
 * stops transits stops all.
 *
 * Rules for threads in transit: a transit of blocks makes no driver call, and begins with no lade lock held. Inside of
 * one, another is begun with ladei_pinned_transit_try_begin alone.
 */
#ifndef LADE_HOST_PARTS_CAP_WAIT_H
#define LADE_HOST_PARTS_CAP_WAIT_H

#include <stdatomic.h>

#include "base/lock.h"
#include "base/switch.h"

typedef struct ladei_pinned_transit {
  /* LADEI_PINNED_TRANSIT_STOPPED, and LADEI_PINNED_TRANSIT_ONE for each transit under way. Threads write to different
   * ones */
  _Alignas(128) _Atomic(uint32_t) word;
  ladei_lock lock; /* for `changed` */
  ladei_condition changed;
} ladei_pinned_transit;

enum { LADEI_PINNED_TRANSIT_STOPPED = 1, LADEI_PINNED_TRANSIT_ONE = 2 };

/* Words for transits of blocks, one for each stripe of threads (thread_cache.h). A test that goes through all schedules
 * has as much to go through as there are. */
#ifdef LADEI_SCHEDULED
enum { LADEI_PINNED_STRIPES = 2 };
#else
enum { LADEI_PINNED_STRIPES = 16 };
#endif

typedef struct ladei_pinned_cap_wait {
  _Alignas(128) _Atomic(uint32_t)
      waiters; /* requests that wait for memory to come back, or have stopped transits: mostly no thread writes here */
  ladei_lock lock; /* guards changes of `returns` */
  ladei_condition returned;
  _Atomic(uint32_t) returns; /* times that memory came back while a thread waited */
  ladei_pinned_transit segments;
  ladei_pinned_transit blocks[LADEI_PINNED_STRIPES];
} ladei_pinned_cap_wait;

/* Cannot fail, and owns nothing but its bytes. */
void ladei_pinned_cap_wait_init(ladei_pinned_cap_wait *cap_wait);
void ladei_pinned_cap_wait_destroy(ladei_pinned_cap_wait *cap_wait);

/* ---- Transits ---------------------------------------------------------------------------------------------------- */

void ladei_pinned_transit_begin_slowly(ladei_pinned_transit *transit);
void ladei_pinned_transit_end_slowly(ladei_pinned_transit *transit);

/* The last one under way wakes the thread that stopped them. */
static inline void ladei_pinned_transit_end(ladei_pinned_transit *transit) {
  ladei_switch_point("transit end", 0);
  uint32_t word = atomic_fetch_sub_explicit(&transit->word, LADEI_PINNED_TRANSIT_ONE, memory_order_release);
  if ((word & LADEI_PINNED_TRANSIT_STOPPED) != 0) ladei_pinned_transit_end_slowly(transit);
}

/* False: transits are stopped; do without. */
static inline bool ladei_pinned_transit_try_begin(ladei_pinned_transit *transit) {
  ladei_switch_point("transit begin", 0);
  uint32_t word = atomic_fetch_add_explicit(&transit->word, LADEI_PINNED_TRANSIT_ONE, memory_order_acquire);
  if ((word & LADEI_PINNED_TRANSIT_STOPPED) == 0) return true;
  ladei_pinned_transit_end(transit);
  return false;
}

/* Waits while transits are stopped. */
static inline void ladei_pinned_transit_begin(ladei_pinned_transit *transit) {
  ladei_lock_assert_none_held();
  if (!ladei_pinned_transit_try_begin(transit)) ladei_pinned_transit_begin_slowly(transit);
}

/* Returns when the transits are over that were under way. */
void ladei_pinned_transit_wait(ladei_pinned_transit *transit);

/* Returns when nothing is in transit, and lets nothing begin until ladei_pinned_transits_resume. One thread at a time.
 * The caller is a waiter in between: after its drain, freed blocks go to the free memory of nodes. */
void ladei_pinned_transits_stop(ladei_pinned_cap_wait *cap_wait);
void ladei_pinned_transits_resume(ladei_pinned_cap_wait *cap_wait);

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* Announces a waiter, before its last look. From now on returned memory makes `returns` differ from the result. */
uint32_t ladei_pinned_cap_wait_begin(ladei_pinned_cap_wait *cap_wait);
void ladei_pinned_cap_wait_end(ladei_pinned_cap_wait *cap_wait);

/* A waiter. Changes with each return of memory. */
static inline uint32_t ladei_pinned_cap_wait_returns(ladei_pinned_cap_wait *cap_wait) {
  return atomic_load_explicit(&cap_wait->returns, memory_order_acquire);
}

/* Whether anything came back since ladei_pinned_cap_wait_begin, or ladei_pinned_cap_wait_returns, gave `seen`. */
static inline bool ladei_pinned_cap_wait_is_over(ladei_pinned_cap_wait *cap_wait, uint32_t seen) {
  return ladei_pinned_cap_wait_returns(cap_wait) != seen;
}

/* Sleeps until then, for at most `timeout_ns`. */
void ladei_pinned_cap_wait_sleep(ladei_pinned_cap_wait *cap_wait, uint32_t seen, uint64_t timeout_ns);

/* Whether a thread waits: then threads keep nothing for themselves. */
static inline bool ladei_pinned_cap_has_waiters(ladei_pinned_cap_wait *cap_wait) {
  ladei_switch_point("awaited", 0);
  return atomic_load_explicit(&cap_wait->waiters, memory_order_seq_cst) != 0;
}

void ladei_pinned_cap_wait_wake(ladei_pinned_cap_wait *cap_wait);

/* Memory can be had that could not be had before. After it was put where the waiters look. */
static inline void ladei_pinned_memory_returned(ladei_pinned_cap_wait *cap_wait) {
  ladei_switch_point("returned", 0);
  if (atomic_load_explicit(&cap_wait->waiters, memory_order_seq_cst) != 0) ladei_pinned_cap_wait_wake(cap_wait);
}

#endif /* LADE_HOST_PARTS_CAP_WAIT_H */
