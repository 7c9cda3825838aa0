/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scheduling: which transfer begins the next chunk.
 *
 *   level 1    fair queue 0: T1 T2 T4    fair queue 3: T5    next: the first of the queue served least,
 *                                                            of the highest level that has any
 *   held       T3 T6                                         have chunks to begin, and their share of the slots
 *
 * I7  A transfer that could begin a chunk (it has not failed, has chunks not begun, and no host half in order is under
 *     way before the next) waits in its fair queue or is held. ring->schedule.issuing is the first of the fair queue
 *     served least among those of the highest level that has any; it does not have its share yet. NULL: none waits, and
 *     all that are held have their share. (A transfer whose reads wait for its dependency cannot begin: it is in
 *     ring->schedule.asking until that has passed. Nor can one whose chunks begin with their copies, while its
 *     dependency is QUERYING.) ring->schedule.unissued counts transfers with chunks not begun, whether they can begin
 *     or not, ring->schedule.left_bytes their bytes not begun.
 *
 * Note [Stalled transfers]
 * Chunks of most transfers pass by themselves. Transfers that wait for a stream of the program, or for a server, or are
 * in callbacks, may stall for ever, with their blocks. So such a transfer's share of the slots is half of those that
 * others of the kind leave, except one slot, which is for transfers that cannot stall. With its share it is held until
 * slots come back, or until its copies are seen to run. Stalled blocks are added to those that others may have, so that
 * others are as fast as without it, as long as depth allows; the transfer itself gets no more: as many as any other may
 * have are its share, too.
 *
 * A call may take for ever. So a transfer that calls back may stall until one of its calls has returned, and again
 * while one is overdue (by ladei_pipe_core_stall); one whose calls return keeps its slots. But an ordered sink may
 * stall always: a slow one would otherwise hold all blocks with bytes it has yet to take. Of the slots for transfers
 * that may stall, callbacks and requests leave one more, to waits for a stream, and to calls that return; and all calls together
 * leave the last one, so that a call that returned before and now hangs does not take it.
 *
 * Requests to servers may always stall. They keep no thread, so they are not in the window of reads: their share of the
 * slots is their limit.
 *
 * Note [Copies under way]
 * Copies queued on a stream can neither be overtaken nor taken back. Staged copies are kept back by their reads, and by
 * the blocks; copies from and to pinned memory by nothing, and their chunks are large. So more chunks of one transfer
 * begin only while at most 32 MiB are under way: three chunks of 16 MiB, which keep a link of 55 GB/s busy for 900 us,
 * and an urgent transfer or a cancellation waits no longer than that.
 *
 * Locks: none; see core_orders.c.
 */
#include "pipeline/core/core_internal.h"

ladei_pipe_core_transfer *ladei_pipe_priority_first(const ladei_pipe_priority *level) {
  const ladei_pipe_fair_queue *best = NULL;
  for (uint32_t left = level->active; left != 0; left &= left - 1) {
    const ladei_pipe_fair_queue *fair_queue = &level->fair_queues[__builtin_ctz(left)];
    if (best == NULL || fair_queue->served < best->served) best = fair_queue;
  }
  return best != NULL ? TAILQ_FIRST(&best->waiting) : NULL;
}

/* In the order of submission. Mostly the last, or one that has waited and is among the first. */
static void list_insert(struct ladei_core_transfer_list *list, ladei_pipe_core_transfer *transfer) {
  const ladei_pipe_core_transfer *last = TAILQ_LAST(list, ladei_core_transfer_list);
  if (last == NULL || last->number < transfer->number) {
    TAILQ_INSERT_TAIL(list, transfer, fair_queue_link);
    return;
  }
  ladei_pipe_core_transfer *behind = TAILQ_FIRST(list);
  while (behind->number < transfer->number) behind = TAILQ_NEXT(behind, fair_queue_link);
  TAILQ_INSERT_BEFORE(behind, transfer, fair_queue_link);
}

/* `keeps`: its fair queue may now use the service that it missed while the transfer was away. */
static void fair_queue_enter(ladei_pipe_core_transfer *transfer, bool keeps) {
  ladei_pipe_priority *level = &transfer->ring->schedule.levels[transfer->level];
  ladei_pipe_fair_queue *fair_queue = &level->fair_queues[transfer->fair_queue];
  if (TAILQ_EMPTY(&fair_queue->waiting) && fair_queue->served < level->clock && !keeps)
    fair_queue->served = level->clock;
  list_insert(&fair_queue->waiting, transfer);
  level->active |= UINT32_C(1) << transfer->fair_queue;
  transfer->waiting = true;
}

static void fair_queue_leave(ladei_pipe_core_transfer *transfer) {
  ladei_pipe_priority *level = &transfer->ring->schedule.levels[transfer->level];
  ladei_pipe_fair_queue *fair_queue = &level->fair_queues[transfer->fair_queue];
  TAILQ_REMOVE(&fair_queue->waiting, transfer, fair_queue_link);
  if (TAILQ_EMPTY(&fair_queue->waiting)) level->active &= ~(UINT32_C(1) << transfer->fair_queue);
  transfer->waiting = false;
}

static void held_enter(ladei_pipe_core_transfer *transfer) {
  list_insert(&transfer->ring->schedule.held, transfer);
  transfer->held = true;
  transfer->ring->schedule.held_calls += transfer->calls ? 1 : 0;
}

static void held_leave(ladei_pipe_core_transfer *transfer) {
  TAILQ_REMOVE(&transfer->ring->schedule.held, transfer, fair_queue_link);
  transfer->held = false;
  transfer->ring->schedule.held_calls -= transfer->calls ? 1 : 0;
}

/* It may go on. Service unused while it waited for its stream or for a call that hangs is lost; not so if it waited for
 * slots alone. */
static void held_go(ladei_pipe_core_transfer *transfer) {
  bool could_stall = transfer->dependency != LADEI_PIPE_DEPENDENCY_NONE || transfer->stalled > 0;
  held_leave(transfer);
  fair_queue_enter(transfer, !could_stall);
}

/* Which of two that are held is scheduled first. */
static bool held_before(const ladei_pipe_core_transfer *a, const ladei_pipe_core_transfer *b) {
  if (a->level != b->level) return a->level > b->level;
  const ladei_pipe_fair_queue *fair_queues = a->ring->schedule.levels[a->level].fair_queues;
  return fair_queues[a->fair_queue].served < fair_queues[b->fair_queue].served;
}

/* A held transfer that may go on; NULL: none. If none calls back, the search ends at one that has its share and no
 * slot: none after it is better off; those with slots are checked when they lose one. */
static ladei_pipe_core_transfer *held_first(const ladei_pipe_ring *ring) {
  ladei_pipe_core_transfer *first = NULL;
  ladei_pipe_core_transfer *transfer;
  TAILQ_FOREACH (transfer, &ring->schedule.held, fair_queue_link) {
    bool has_share = ladei_pipe_transfer_has_share(transfer);
    if (!has_share && (first == NULL || held_before(transfer, first))) first = transfer;
    if (ring->schedule.held_calls == 0 && (!has_share || transfer->active == 0)) break;
  }
  return first;
}

static void held_let_go(ladei_pipe_ring *ring) {
  ladei_pipe_core_transfer *transfer = held_first(ring);
  if (transfer != NULL) held_go(transfer);
}

/* The first of the level; those that have their share are held on the way. */
static ladei_pipe_core_transfer *level_choose(const ladei_pipe_priority *level) {
  ladei_pipe_core_transfer *transfer = ladei_pipe_priority_first(level);
  while (transfer != NULL && ladei_pipe_transfer_has_share(transfer)) {
    fair_queue_leave(transfer);
    held_enter(transfer);
    transfer = ladei_pipe_priority_first(level);
  }
  return transfer;
}

/* After anything that I7 speaks of has changed. */
void ladei_pipe_ring_choose(ladei_pipe_ring *ring) {
  if (!TAILQ_EMPTY(&ring->schedule.held)) held_let_go(ring);
  ring->schedule.issuing = NULL;
  for (unsigned i = LADEI_PIPE_PRIORITIES; i-- > 0 && ring->schedule.issuing == NULL;)
    ring->schedule.issuing = level_choose(&ring->schedule.levels[i]);
}

void ladei_pipe_transfer_update(ladei_pipe_core_transfer *transfer) {
  bool unissued = ladei_pipe_transfer_is_unissued(transfer);
  bool ready = ladei_pipe_transfer_ready(transfer);
  uint64_t left = unissued ? transfer->bytes - transfer->issued_bytes : 0;
  transfer->ring->schedule.left_bytes += left - transfer->left_bytes;
  transfer->left_bytes = left;
  if (unissued != transfer->unissued) {
    transfer->ring->schedule.unissued += unissued ? 1u : UINT32_MAX;
    transfer->unissued = unissued;
  }
  if (ready && !transfer->waiting && !transfer->held)
    fair_queue_enter(transfer, false);
  else if (!ready && transfer->waiting)
    fair_queue_leave(transfer);
  else if (!ready && transfer->held)
    held_leave(transfer);
  else if (transfer->held && !ladei_pipe_transfer_has_share(transfer))
    held_go(transfer);
  ladei_pipe_ring_choose(transfer->ring);
}
