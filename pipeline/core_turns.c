/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is to begin a chunk.
 *
 *   level 1    flow 0: T1 T2 T4    flow 3: T5    the first of the flow served least, of the highest level that has any
 *   held       T3 T6                             have chunks to begin, and their share of the slots
 *
 * I7  A transfer that could begin a chunk (it has not failed, has chunks not begun, and no host half in order is under
 *     way before the next) waits in its flow or is held. ring->issuing is the first of the flow served least among those
 *     of the highest level that has any; it does not have its share yet. NULL: none waits, and all that are held have
 *     their share. ring->unissued counts those with chunks not begun, whether they could begin or not.
 *
 * Note [Standing still]
 * Chunks of most transfers pass by themselves. Those that wait for a stream of the caller's, or in order for a sink of the
 * caller's, may stand for ever, and so may the blocks they are in. So such a transfer takes a share of the slots: half of
 * what others of the kind leave, but for one slot, which is for transfers that cannot stand. With its share it is held
 * until slots come back, or until its copies are seen to run. What stands comes on top of the blocks that others may have,
 * so that they are as fast as without it, as long as depth allows; the transfer itself gets no more for it: as many as
 * any other may have are its share, too.
 *
 * Note [Copies under way]
 * What is queued on a stream can neither be overtaken nor taken back. Staged copies are kept back by their reads, and by
 * the blocks; copies from and to pinned memory by nothing, and chunks are large there. So of one transfer more are begun
 * only while at most 32 MiB are under way: three chunks of 16 MiB, which keep a link of 55 GB/s busy for 900 us, and an
 * urgent transfer or a cancellation waiting no longer than that.
 *
 * Locks: none; see core.c.
 */
#include "pipeline/core_internal.h"

ladei_core_transfer *ladei_level_first(const ladei_level *level) {
  const ladei_flow *best = NULL;
  for (uint32_t left = level->active; left != 0; left &= left - 1) {
    const ladei_flow *flow = &level->flows[__builtin_ctz(left)];
    if (best == NULL || flow->served < best->served) {
      best = flow;
    }
  }
  return best != NULL ? TAILQ_FIRST(&best->waiting) : NULL;
}

/* In the order of submission. Mostly the last, or one that has waited and is among the first. */
static void list_insert(struct ladei_core_transfer_list *list, ladei_core_transfer *transfer) {
  const ladei_core_transfer *last = TAILQ_LAST(list, ladei_core_transfer_list);
  if (last == NULL || last->number < transfer->number) {
    TAILQ_INSERT_TAIL(list, transfer, flow_link);
    return;
  }
  ladei_core_transfer *behind = TAILQ_FIRST(list);
  while (behind->number < transfer->number) {
    behind = TAILQ_NEXT(behind, flow_link);
  }
  TAILQ_INSERT_BEFORE(behind, transfer, flow_link);
}

static void flow_enter(ladei_core_transfer *transfer) {
  ladei_level *level = &transfer->ring->levels[transfer->level];
  ladei_flow *flow = &level->flows[transfer->flow];
  if (TAILQ_EMPTY(&flow->waiting) && flow->served < level->clock) {
    flow->served = level->clock; /* what it did not use while it had nothing to do is gone */
  }
  list_insert(&flow->waiting, transfer);
  level->active |= UINT32_C(1) << transfer->flow;
  transfer->waiting = true;
}

static void flow_leave(ladei_core_transfer *transfer) {
  ladei_level *level = &transfer->ring->levels[transfer->level];
  ladei_flow *flow = &level->flows[transfer->flow];
  TAILQ_REMOVE(&flow->waiting, transfer, flow_link);
  if (TAILQ_EMPTY(&flow->waiting)) {
    level->active &= ~(UINT32_C(1) << transfer->flow);
  }
  transfer->waiting = false;
}

static void held_leave(ladei_core_transfer *transfer) {
  TAILQ_REMOVE(&transfer->ring->held, transfer, flow_link);
  transfer->held = false;
}

/* The first that may go on, if one may. All of those without slots may stand still: behind such a one none is better off,
 * and those with slots are looked at when they lose one. */
static void held_let_go(ladei_ring *ring) {
  ladei_core_transfer *transfer = TAILQ_FIRST(&ring->held);
  while (transfer != NULL && transfer->active > 0 && ladei_transfer_has_share(transfer)) {
    transfer = TAILQ_NEXT(transfer, flow_link);
  }
  if (transfer != NULL && !ladei_transfer_has_share(transfer)) {
    held_leave(transfer);
    flow_enter(transfer);
  }
}

/* The first of the level; those that have their share are held on the way. */
static ladei_core_transfer *level_choose(ladei_ring *ring, const ladei_level *level) {
  ladei_core_transfer *transfer = ladei_level_first(level);
  while (transfer != NULL && ladei_transfer_has_share(transfer)) {
    flow_leave(transfer);
    list_insert(&ring->held, transfer);
    transfer->held = true;
    transfer = ladei_level_first(level);
  }
  return transfer;
}

/* After anything that I7 speaks of has changed. */
void ladei_ring_choose(ladei_ring *ring) {
  held_let_go(ring);
  ring->issuing = NULL;
  for (unsigned i = LADEI_LEVELS; i-- > 0 && ring->issuing == NULL;) {
    ring->issuing = level_choose(ring, &ring->levels[i]);
  }
}

void ladei_transfer_update(ladei_core_transfer *transfer) {
  bool unissued = ladei_transfer_is_unissued(transfer);
  bool ready = ladei_transfer_ready(transfer);
  if (unissued != transfer->unissued) {
    transfer->ring->unissued += unissued ? 1u : UINT32_MAX;
    transfer->unissued = unissued;
  }
  if (ready && !transfer->waiting && !transfer->held) {
    flow_enter(transfer);
  } else if (!ready && transfer->waiting) {
    flow_leave(transfer);
  } else if (!ready && transfer->held) {
    held_leave(transfer);
  } else if (transfer->held && !ladei_transfer_has_share(transfer)) {
    held_leave(transfer);
    flow_enter(transfer);
  }
  ladei_ring_choose(transfer->ring);
}
