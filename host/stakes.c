/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stakes in a pool; the model, invariants and locks stand in stakes.h.
 *
 * Note [What will be given back]
 * A ring that is refused asks what others held: before it asked the pool or after, in either case it would have been
 * memory that comes back. Blocks held and given back in between show in `gives`. Nothing of that: at the moment of the
 * refusal the program had all.
 */
#include "host/stakes.h"

#include "base/error.h"
#include "host/pool.h"

void ladei_pinned_stakes_init(ladei_pinned_stakes *stakes, bool virtual_time) {
  *stakes = (ladei_pinned_stakes){.virtual_time = virtual_time};
  ladei_lock_init(&stakes->lock, LADEI_RANK_LEAF);
  ladei_lock_init(&stakes->members_lock, LADEI_RANK_MEMBERS);
  TAILQ_INIT(&stakes->waiting);
  TAILQ_INIT(&stakes->members);
}

ladei_pinned_stakes *ladei_pinned_stakes_of(lade_pinned_pool *pool) { return &pool->stakes; }

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

/* What others hold. */
typedef struct outlook {
  uint64_t gives;
  unsigned others; /* blocks of other rings */
  bool spare;      /* a ring has more than one */
  bool pending;
} outlook;

static outlook outlook_of(lade_pinned_pool *pool, const ladei_pinned_stake *stake) {
  ladei_pinned_stakes *stakes = &pool->stakes;
  ladei_retire_counters uses;
  ladei_retire_counters_get(pool->retire, &uses);
  /* What is in quarantine may stay there. */
  outlook view = {.pending = ladei_pinned_pending_read(pool).blocks > uses.quarantined_uses};
  ladei_lock_acquire(&stakes->lock);
  view.gives = stakes->gives;
  view.others = stakes->blocks - stake->blocks;
  view.spare = stakes->blocks > stakes->holders;
  ladei_lock_release(&stakes->lock);
  return view;
}

/* Whether the refusal between the two may end by itself: Note [What will be given back]. */
static bool will_end(const outlook *before, const outlook *after, bool smallest) {
  bool spare = before->spare || after->spare || before->pending || after->pending || before->gives != after->gives;
  return spare || (smallest && (before->others > 0 || after->others > 0));
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

/* Nobody came before it. It holds a block from here on, if so. */
static bool stake_begin(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake, bool only) {
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

/* What came of it: the stake has a block, or none more and waits, or does not. */
static void stake_end(ladei_pinned_stakes *stakes, ladei_pinned_stake *stake, lade_status status) {
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

lade_status ladei_pinned_stake_alloc(lade_pinned_pool *pool, ladei_pinned_stake *stake, size_t bytes, int device,
                                     bool only, bool smallest, void **out) {
  lade_error saved;
  outlook before = {.pending = false};
  if (only) before = outlook_of(pool, stake);
  if (!stake_begin(&pool->stakes, stake, only)) return LADE_NOT_READY;
  ladei_error_save(&saved);
  lade_status status = lade_pinned_alloc_near(pool, bytes, device, out);
  if (status == LADE_ERR_LIMIT && only) {
    outlook after = outlook_of(pool, stake);
    if (will_end(&before, &after, smallest)) {
      ladei_error_restore(&saved);
      status = LADE_NOT_READY;
    }
  }
  stake_end(&pool->stakes, stake, status);
  return status;
}

lade_status ladei_pinned_stake_free(lade_pinned_pool *pool, ladei_pinned_stake *stake, void *block) {
  ladei_pinned_stakes *stakes = &pool->stakes;
  lade_status status = lade_pinned_free(pool, block);
  ladei_lock_acquire(&stakes->lock);
  stake_add(stakes, stake, UINT32_MAX);
  stakes->gives++;
  (void)wanted_update(stakes);
  bool awaited = !TAILQ_EMPTY(&stakes->waiting);
  ladei_lock_release(&stakes->lock);
  if (awaited) ladei_pinned_members_wake(stakes);
  return status;
}
