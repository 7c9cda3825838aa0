/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of rings; the model, invariants and locks are in ring_share.h.
 */
#include "host/parts/ring_share.h"

void ladei_pinned_ring_shares_init(ladei_pinned_ring_shares *shares, bool virtual_time) {
  *shares = (ladei_pinned_ring_shares){.virtual_time = virtual_time};
  ladei_lock_init(&shares->lock, LADEI_RANK_LEAF);
  ladei_lock_init(&shares->listeners_lock, LADEI_RANK_MEMBERS);
  TAILQ_INIT(&shares->waiting);
  TAILQ_INIT(&shares->listeners);
}

/* ---- Listeners --------------------------------------------------------------------------------------------------- */

void ladei_pinned_ring_listener_add(ladei_pinned_ring_shares *shares, ladei_pinned_ring_listener *listener) {
  ladei_lock_acquire(&shares->listeners_lock);
  TAILQ_INSERT_TAIL(&shares->listeners, listener, link);
  shares->changes++;
  ladei_lock_release(&shares->listeners_lock);
}

void ladei_pinned_ring_listener_remove(ladei_pinned_ring_shares *shares, ladei_pinned_ring_listener *listener) {
  ladei_lock_acquire(&shares->listeners_lock);
  TAILQ_REMOVE(&shares->listeners, listener, link);
  shares->changes++;
  ladei_lock_release(&shares->listeners_lock);
}

/* Callbacks run here, and may create and destroy pipelines: a pipeline that comes then is awake, one that is left is
 * woken later. */
static void listeners_wake_virtual(ladei_pinned_ring_shares *shares) {
  ladei_lock_assert_none_held();
  uint64_t changes = shares->changes;
  ladei_pinned_ring_listener *listener = TAILQ_FIRST(&shares->listeners);
  while (listener != NULL && changes == shares->changes) {
    listener->wake(listener->user);
    listener = changes == shares->changes ? TAILQ_NEXT(listener, link) : NULL;
  }
}

void ladei_pinned_ring_listeners_wake(ladei_pinned_ring_shares *shares) {
  ladei_pinned_ring_listener *listener;
  if (shares->virtual_time) {
    listeners_wake_virtual(shares);
    return;
  }
  ladei_lock_acquire(&shares->listeners_lock);
  TAILQ_FOREACH (listener, &shares->listeners, link) listener->wake(listener->user);
  ladei_lock_release(&shares->listeners_lock);
}

/* ---- Counts ------------------------------------------------------------------------------------------------------ */

/* After a change, with the lock: whether more is wanted than before, which the listeners are woken for. */
static bool wanted_update(ladei_pinned_ring_shares *shares) {
  ladei_lock_assert_held(&shares->lock);
  unsigned before = atomic_load_explicit(&shares->wanted, memory_order_relaxed);
  unsigned wanted = shares->blocks > shares->holders ? LADEI_PINNED_WANTED_SPARE : LADEI_PINNED_WANTED_ALL;
  wanted = TAILQ_EMPTY(&shares->waiting) ? LADEI_PINNED_WANTED_NONE : wanted;
  atomic_store_explicit(&shares->wanted, wanted, memory_order_relaxed);
  return wanted > before;
}

/* The ring has one block more, or less. With the lock. */
static void share_add(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share, unsigned change) {
  ladei_lock_assert_held(&shares->lock);
  shares->holders -= share->blocks > 0 ? 1 : 0;
  share->blocks += change;
  shares->blocks += change;
  shares->holders += share->blocks > 0 ? 1 : 0;
}

static void share_stop_waiting(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share) {
  ladei_lock_assert_held(&shares->lock);
  if (atomic_load_explicit(&share->waits, memory_order_relaxed)) {
    TAILQ_REMOVE(&shares->waiting, share, link);
    atomic_store_explicit(&share->waits, false, memory_order_relaxed);
  }
}

static void share_wait(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share) {
  ladei_lock_assert_held(&shares->lock);
  if (!atomic_load_explicit(&share->waits, memory_order_relaxed)) {
    TAILQ_INSERT_TAIL(&shares->waiting, share, link);
    atomic_store_explicit(&share->waits, true, memory_order_relaxed);
  }
}

void ladei_pinned_ring_share_stop_waiting(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share) {
  ladei_lock_acquire(&shares->lock);
  share_stop_waiting(shares, share);
  (void)wanted_update(shares);
  ladei_lock_release(&shares->lock);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

ladei_pinned_ring_shares_view ladei_pinned_ring_shares_look(ladei_pinned_ring_shares *shares,
                                                            const ladei_pinned_ring_share *share) {
  ladei_lock_acquire(&shares->lock);
  ladei_pinned_ring_shares_view view = {
      .gives = shares->gives,
      .others = shares->blocks - share->blocks,
      .spare = shares->blocks > shares->holders,
  };
  ladei_lock_release(&shares->lock);
  return view;
}

/* Whose turn it is. The first may be kept from asking, as by callbacks that have all threads of its pipeline: after
 * some time others go first, once. */
static bool share_is_next(ladei_pinned_ring_shares *shares, const ladei_pinned_ring_share *share) {
  ladei_lock_assert_held(&shares->lock);
  enum { PASSED_MOST = 32 };
  const ladei_pinned_ring_share *first = TAILQ_FIRST(&shares->waiting);
  bool next = first == NULL || first == share || shares->passed >= PASSED_MOST;
  shares->passed = next ? 0 : shares->passed + 1;
  return next;
}

bool ladei_pinned_ring_share_begin(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share, bool only) {
  ladei_lock_acquire(&shares->lock);
  bool begins = !only || share_is_next(shares, share);
  if (begins)
    share_add(shares, share, 1);
  else
    share_wait(shares, share);
  bool wakes = wanted_update(shares);
  ladei_lock_release(&shares->lock);
  if (wakes) ladei_pinned_ring_listeners_wake(shares);
  return begins;
}

void ladei_pinned_ring_share_end(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share, lade_status status) {
  ladei_lock_acquire(&shares->lock);
  if (status != LADE_OK) share_add(shares, share, UINT32_MAX);
  if (status == LADE_NOT_READY)
    share_wait(shares, share);
  else
    share_stop_waiting(shares, share);
  bool wakes = wanted_update(shares);
  ladei_lock_release(&shares->lock);
  if (wakes) ladei_pinned_ring_listeners_wake(shares);
}

void ladei_pinned_ring_share_gave(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share) {
  ladei_lock_acquire(&shares->lock);
  share_add(shares, share, UINT32_MAX);
  shares->gives++;
  (void)wanted_update(shares);
  bool awaited = !TAILQ_EMPTY(&shares->waiting);
  ladei_lock_release(&shares->lock);
  if (awaited) ladei_pinned_ring_listeners_wake(shares);
}
