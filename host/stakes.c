/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stakes in a pool; the model, invariants and locks stand in stakes.h.
 */
#include "host/stakes.h"

void ladei_pinned_stakes_init(ladei_pinned_stakes *stakes, bool virtual_time) {
  *stakes = (ladei_pinned_stakes){.virtual_time = virtual_time};
  ladei_lock_init(&stakes->lock, LADEI_RANK_LEAF);
  ladei_lock_init(&stakes->members_lock, LADEI_RANK_MEMBERS);
  TAILQ_INIT(&stakes->waiting);
  TAILQ_INIT(&stakes->members);
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

void ladei_pinned_member_add(ladei_pinned_stakes *stakes, ladei_pinned_member *member) {
  ladei_lock_acquire(&stakes->members_lock);
  TAILQ_INSERT_TAIL(&stakes->members, member, link);
  stakes->changes++;
  ladei_lock_release(&stakes->members_lock);
}

void ladei_pinned_member_remove(ladei_pinned_stakes *stakes, ladei_pinned_member *member) {
  ladei_lock_acquire(&stakes->members_lock);
  TAILQ_REMOVE(&stakes->members, member, link);
  stakes->changes++;
  ladei_lock_release(&stakes->members_lock);
}

/* Callbacks run here, and may create and destroy pipelines: whoever comes then is awake, whoever is left is woken later. */
static void members_wake_virtual(ladei_pinned_stakes *stakes) {
  ladei_lock_assert_none_held();
  uint64_t changes = stakes->changes;
  ladei_pinned_member *member = TAILQ_FIRST(&stakes->members);
  while (member != NULL && changes == stakes->changes) {
    member->wake(member->user);
    member = changes == stakes->changes ? TAILQ_NEXT(member, link) : NULL;
  }
}

void ladei_pinned_members_wake(ladei_pinned_stakes *stakes) {
  ladei_pinned_member *member;
  if (stakes->virtual_time) {
    members_wake_virtual(stakes);
    return;
  }
  ladei_lock_acquire(&stakes->members_lock);
  TAILQ_FOREACH (member, &stakes->members, link) member->wake(member->user);
  ladei_lock_release(&stakes->members_lock);
}

/* ---- Counts ------------------------------------------------------------------------------------------------------ */

/* After a change, with the lock: whether more is wanted than before, of which the members shall hear. */
static bool wanted_update(ladei_pinned_stakes *stakes) {
  ladei_lock_assert_held(&stakes->lock);
  unsigned before = atomic_load_explicit(&stakes->wanted, memory_order_relaxed);
  unsigned wanted = stakes->blocks > stakes->holders ? LADEI_PINNED_WANTED_SPARE : LADEI_PINNED_WANTED_ALL;
  wanted = TAILQ_EMPTY(&stakes->waiting) ? LADEI_PINNED_WANTED_NONE : wanted;
  atomic_store_explicit(&stakes->wanted, wanted, memory_order_relaxed);
  return wanted > before;
}

/* The stake has one block more, or less. With the lock. */
static void stake_add(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake, unsigned change) {
  ladei_lock_assert_held(&stakes->lock);
  stakes->holders -= stake->blocks > 0 ? 1 : 0;
  stake->blocks += change;
  stakes->blocks += change;
  stakes->holders += stake->blocks > 0 ? 1 : 0;
}

static void stake_leave(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake) {
  ladei_lock_assert_held(&stakes->lock);
  if (atomic_load_explicit(&stake->waits, memory_order_relaxed)) {
    TAILQ_REMOVE(&stakes->waiting, stake, link);
    atomic_store_explicit(&stake->waits, false, memory_order_relaxed);
  }
}

static void stake_join(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake) {
  ladei_lock_assert_held(&stakes->lock);
  if (!atomic_load_explicit(&stake->waits, memory_order_relaxed)) {
    TAILQ_INSERT_TAIL(&stakes->waiting, stake, link);
    atomic_store_explicit(&stake->waits, true, memory_order_relaxed);
  }
}

void ladei_pinned_stake_leave(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake) {
  ladei_lock_acquire(&stakes->lock);
  stake_leave(stakes, stake);
  (void)wanted_update(stakes);
  ladei_lock_release(&stakes->lock);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

ladei_pinned_stakes_view ladei_pinned_stakes_look(ladei_pinned_stakes *stakes, const ladei_pinned_stake *stake) {
  ladei_lock_acquire(&stakes->lock);
  ladei_pinned_stakes_view view = {
      .gives = stakes->gives,
      .others = stakes->blocks - stake->blocks,
      .spare = stakes->blocks > stakes->holders,
  };
  ladei_lock_release(&stakes->lock);
  return view;
}

/* Whose turn it is. The first may be kept from asking, as by callbacks that have all threads of its pipeline: after some
 * time others go first, once. */
static bool stake_is_next(ladei_pinned_stakes *stakes, const ladei_pinned_stake *stake) {
  ladei_lock_assert_held(&stakes->lock);
  enum { PASSED_MOST = 32 };
  const ladei_pinned_stake *first = TAILQ_FIRST(&stakes->waiting);
  bool next = first == NULL || first == stake || stakes->passed >= PASSED_MOST;
  stakes->passed = next ? 0 : stakes->passed + 1;
  return next;
}

bool ladei_pinned_stake_begin(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake, bool only) {
  ladei_lock_acquire(&stakes->lock);
  bool begins = !only || stake_is_next(stakes, stake);
  if (begins)
    stake_add(stakes, stake, 1);
  else
    stake_join(stakes, stake);
  bool wakes = wanted_update(stakes);
  ladei_lock_release(&stakes->lock);
  if (wakes) ladei_pinned_members_wake(stakes);
  return begins;
}

void ladei_pinned_stake_end(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake, lade_status status) {
  ladei_lock_acquire(&stakes->lock);
  if (status != LADE_OK) stake_add(stakes, stake, UINT32_MAX);
  if (status == LADE_NOT_READY)
    stake_join(stakes, stake);
  else
    stake_leave(stakes, stake);
  bool wakes = wanted_update(stakes);
  ladei_lock_release(&stakes->lock);
  if (wakes) ladei_pinned_members_wake(stakes);
}

void ladei_pinned_stake_gave(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake) {
  ladei_lock_acquire(&stakes->lock);
  stake_add(stakes, stake, UINT32_MAX);
  stakes->gives++;
  (void)wanted_update(stakes);
  bool awaited = !TAILQ_EMPTY(&stakes->waiting);
  ladei_lock_release(&stakes->lock);
  if (awaited) ladei_pinned_members_wake(stakes);
}
