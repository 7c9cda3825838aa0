/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting at a pool's cap: stopping transits, waking waiters.
 *
 * I1  While ladei_pinned_transits_stop has returned and ladei_pinned_transits_resume was not called, nothing is in
 *     transit, and all that was is visible to the thread that stopped transits (the count is lowered with release, and
 *     read with acquire).
 * I2  A thread that begins a transit sees STOPPED in the word that counted it, or is waited for.
 *
 * Why no return of memory is missed.
 *   waiter    W1 waiters + 1    W2 seen = returns    W3 looks everywhere    W4 sleeps while returns == seen
 *   returner  R1 puts the memory where W3 looks      R2 where waiters != 0: returns + 1, wakes
 *   If R2 sees the waiter, `returns` changes after W2, and W4 does not sleep, or wakes: the change is made under the
 *   lock that W4 looks under. If it does not, R1 comes before W3, which finds the memory, since the
 *   two are ordered by:
 *     a node            its lock. Were R1 after W3 in it, R2 would see all writes before W3, that is W1.
 *     the cap           the transit of the segment, which W3 stops: it ends before W3, or begins after it and sees W1.
 *     a depot           the transit of the list, which W3 stops, too.
 *     a bin             as a thread's own: its owner looks for waiters inside the asymmetric lock, and fills none if
 *                       there are any.
 *     a thread's own    not filled while a thread waits. W3 begins with a drain (seek.c), which waits for frees that
 *                       are inside an asymmetric lock. After it magazines have no quota, and none is given to them
 *                       while there are waiters (quotas are given under the lock of the drain, so W1 is seen); and of
 *                       larger blocks none is kept (their owner looks for waiters inside that lock). Blocks that were
 *                       in slots are not any more: their frees come by a node.
 *   Blocks kept by a thread that cannot be fenced (base/asym_lock.h) are seen when the thread, called by the drain,
 *   brings them back in its next call; nothing is added to them meanwhile.
 *
 * Why no memory is missed that is free all the time. A request that may not wait is refused by one look, W1 to W3, with
 * transits stopped (seek.c). Two threads can keep a block free between them, and hide it: one frees into a place that
 * was looked at, then the other one takes from a place that will be. So while transits are stopped there is one place,
 * the free memory of nodes: after the drain nothing comes to threads' caches and to bins, since the look is a waiter
 * (as above), nor to depots, as that is a transit. Whatever moves between nodes, or between the pieces and the whole
 * segments of one, changes `returns` (R2), and then they are looked at again. If it does not change, then at the end of
 * the look no block is free that fits: it was not free when its place was looked at, and nothing has come back since
 * the look began, except for frees that are going on.
 *
 * Locks: those of the parts, leaves; no other is taken under them.
 */
#include "host/parts/cap_wait.h"

#include <assert.h>

static void transit_init(ladei_pinned_transit *transit) {
  atomic_init(&transit->word, 0);
  ladei_lock_init(&transit->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&transit->changed);
}

static void transit_destroy(ladei_pinned_transit *transit) {
  assert(atomic_load_explicit(&transit->word, memory_order_relaxed) == 0); /* neither counted nor stopped */
  ladei_condition_destroy(&transit->changed);
  ladei_lock_destroy(&transit->lock);
}

void ladei_pinned_cap_wait_init(ladei_pinned_cap_wait *cap_wait) {
  atomic_init(&cap_wait->waiters, 0);
  atomic_init(&cap_wait->returns, 0);
  ladei_lock_init(&cap_wait->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&cap_wait->returned);
  transit_init(&cap_wait->segments);
  for (unsigned i = 0; i < LADEI_PINNED_STRIPES; i++) transit_init(&cap_wait->blocks[i]);
}

void ladei_pinned_cap_wait_destroy(ladei_pinned_cap_wait *cap_wait) {
  for (unsigned i = 0; i < LADEI_PINNED_STRIPES; i++) transit_destroy(&cap_wait->blocks[i]);
  transit_destroy(&cap_wait->segments);
  ladei_condition_destroy(&cap_wait->returned);
  ladei_lock_destroy(&cap_wait->lock);
}

/* ---- Transits ---------------------------------------------------------------------------------------------------- */

static uint32_t word_of(const ladei_pinned_transit *transit) {
  return atomic_load_explicit(&transit->word, memory_order_acquire);
}

static void resume_wait(ladei_pinned_transit *transit) {
  ladei_lock_acquire(&transit->lock);
  while ((word_of(transit) & LADEI_PINNED_TRANSIT_STOPPED) != 0)
    ladei_condition_wait(&transit->changed, &transit->lock);
  ladei_lock_release(&transit->lock);
}

void ladei_pinned_transit_begin_slowly(ladei_pinned_transit *transit) {
  do {
    resume_wait(transit);
  } while (!ladei_pinned_transit_try_begin(transit));
}

/* The lock keeps this between a stopper's look at the word and its sleep from being lost. */
void ladei_pinned_transit_end_slowly(ladei_pinned_transit *transit) {
  ladei_lock_acquire(&transit->lock);
  ladei_condition_broadcast(&transit->changed);
  ladei_lock_release(&transit->lock);
}

static void transit_stop(ladei_pinned_transit *transit) {
  ladei_lock_assert_none_held();
  ladei_lock_acquire(&transit->lock);
  while ((word_of(transit) & LADEI_PINNED_TRANSIT_STOPPED) != 0) /* another one's turn */
    ladei_condition_wait(&transit->changed, &transit->lock);
  atomic_fetch_or_explicit(&transit->word, LADEI_PINNED_TRANSIT_STOPPED, memory_order_acq_rel);
  while (word_of(transit) != LADEI_PINNED_TRANSIT_STOPPED) ladei_condition_wait(&transit->changed, &transit->lock);
  ladei_lock_release(&transit->lock);
}

static void transit_go(ladei_pinned_transit *transit) {
  ladei_lock_acquire(&transit->lock);
  assert((word_of(transit) & LADEI_PINNED_TRANSIT_STOPPED) !=
         0); /* and counts of threads that find it stopped, for a moment */
  atomic_fetch_and_explicit(&transit->word, ~(uint32_t)LADEI_PINNED_TRANSIT_STOPPED, memory_order_release);
  ladei_condition_broadcast(&transit->changed);
  ladei_lock_release(&transit->lock);
}

void ladei_pinned_transit_wait(ladei_pinned_transit *transit) {
  transit_stop(transit);
  transit_go(transit);
}

void ladei_pinned_transits_stop(ladei_pinned_cap_wait *cap_wait) {
  (void)ladei_pinned_cap_wait_begin(cap_wait);
  transit_stop(&cap_wait->segments);
  for (unsigned i = 0; i < LADEI_PINNED_STRIPES; i++) transit_stop(&cap_wait->blocks[i]);
}

void ladei_pinned_transits_resume(ladei_pinned_cap_wait *cap_wait) {
  for (unsigned i = 0; i < LADEI_PINNED_STRIPES; i++) transit_go(&cap_wait->blocks[i]);
  transit_go(&cap_wait->segments);
  ladei_pinned_cap_wait_end(cap_wait);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

uint32_t ladei_pinned_cap_wait_begin(ladei_pinned_cap_wait *cap_wait) {
  ladei_switch_point("wait begin", 0);
  atomic_fetch_add_explicit(&cap_wait->waiters, 1, memory_order_seq_cst);
  ladei_switch_point("waits", 0);
  return ladei_pinned_cap_wait_returns(cap_wait);
}

void ladei_pinned_cap_wait_end(ladei_pinned_cap_wait *cap_wait) {
  assert(atomic_load_explicit(&cap_wait->waiters, memory_order_relaxed) > 0);
  atomic_fetch_sub_explicit(&cap_wait->waiters, 1, memory_order_release);
}

void ladei_pinned_cap_wait_sleep(ladei_pinned_cap_wait *cap_wait, uint32_t seen, uint64_t timeout_ns) {
  ladei_lock_assert_none_held();
  ladei_lock_acquire(&cap_wait->lock);
  if (!ladei_pinned_cap_wait_is_over(cap_wait, seen))
    (void)ladei_condition_wait_for(&cap_wait->returned, &cap_wait->lock, timeout_ns);
  ladei_lock_release(&cap_wait->lock);
}

void ladei_pinned_cap_wait_wake(ladei_pinned_cap_wait *cap_wait) {
  ladei_lock_acquire(&cap_wait->lock);
  atomic_fetch_add_explicit(&cap_wait->returns, 1, memory_order_release);
  ladei_condition_broadcast(&cap_wait->returned);
  ladei_lock_release(&cap_wait->lock);
}
