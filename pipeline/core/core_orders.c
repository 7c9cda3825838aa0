/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline's state machine: the changes when an order is taken or completed. core_ring.c makes the rings,
 * core_schedule.c chooses the next transfer, core_pick.c picks the order, core_check.c recounts the invariants; core.h
 * explains the states and the orders between them.
 *
 *   submit -> fair queue of its level: [T2 begun in part] [T3] ...     until all its chunks are begun
 *          -> queue: T1, T2, T3 ...                              until it is settled
 *             slots:  free (in order of reuse) | reading | ready | copied | covered by batch 1, batch 2 | landed ...
 *
 * I1  Each slot is in exactly one state, and in the list of that state if it has one (empty, free, ready, copied,
 *     landed, lost, a batch's); while an order for it is out (ACQUIRING, READING, COPYING, WRITING, RELEASING) it is in
 *     none. ring->copy_streams_copied has the bits of the copy streams that have COPIED slots.
 * I2  A slot has a block unless it is EMPTY, ACQUIRING, COPIED or COVERED after an early RELEASE, or carries a chunk of
 *     an unstaged transfer.
 * I3  transfer->active = slots that carry its chunks, ring->active = the sum of them. A transfer settles when
 *     nothing is active, its dependency is not QUERYING and it has failed or all its bytes are done; settled once,
 *     finished once. ring->schedule.may_stall = the sum of active over transfers that may stall, copy_stream->transfers
 *     = transfers QUERYING or AWAITED there, not settled.
 * I4  ring->blocks.count = slots with a block or ACQUIRING, at most blocks.limit when the last block was asked for.
 * I5  A failed transfer begins no chunk, and none of its slots is READY or LANDED.
 * I6  done_bytes <= queued_bytes <= issued_bytes <= bytes (to the host likewise: copies are queued before they land).
 * I7 is in core_schedule.c: which transfers wait to be scheduled.
 * I8  READY slots are in the order of their transfers' levels, highest first.
 * I9  ring->calls.active = slots that carry chunks of transfers that call back, ring->calls.out = those READING or
 *     WRITING; transfer->stalled = those of them that are stalled; transfer->host_out = slots with its chunks READING
 *     or WRITING, never more than its `writers` were when the last WRITE was given; ring->host.out = slots READING or
 *     WRITING, except stalled ones, and those of ordered and remote transfers.
 * I10 Slots, batches and stream dependencies change state as the three functions of core_internal.h ending in
 *     _may_become say; slot_state_set, batch_state_set and dependency_set alone change them.
 * I11 A slot is joined to another only while both are COPYING for the same order; copy_stream->under_way_bytes =
 *     the sum of bytes of its COPIED and COVERED slots, copy_stream->copying = COPY orders out for it.
 * I12 With a limit on turns, a copy stream that waits for no caller's stream queues copies only at rest, or while those
 *     since then (turn_bytes) are less than a turn: Note [Turns] in core_pick.c.
 * Locks: none; the driver calls these functions one at a time, holding the pipeline's lock.
 */
#include "pipeline/core/core.h"

#include <assert.h>

#include "base/static_probe.h"
#include "pipeline/core/adapt.h"
#include "pipeline/core/core_internal.h"

/* --- slots -------------------------------------------------------------------------------------------------------- */

static void slot_state_set(ladei_pipe_slot *slot, ladei_pipe_slot_state state) {
  assert(ladei_pipe_slot_may_become(slot->state, state) && "I10");
  slot->state = state;
}

static void slot_put(struct ladei_slot_list *list, ladei_pipe_slot *slot, ladei_pipe_slot_state state) {
  slot_state_set(slot, state);
  TAILQ_INSERT_TAIL(list, slot, link);
}

/*
 * The slot has no work, and keeps its block. By Note [Bytes under way] in adapt.c the next chunk takes the block used
 * last, which the processor's cache still holds. If copy engines are threads it takes the one that rested longest: the
 * one used last lies in the engine's cache and would have to be fetched back (2 to 3 % of staging_throughput on cpu).
 */
static void slot_to_free(ladei_pipe_slot *slot) {
  slot->transfer = NULL;
  slot->keep_block = false;
  slot->lost = false;
  slot_state_set(slot, LADEI_PIPE_SLOT_FREE);
  if (slot->ring->blocks.last_first)
    TAILQ_INSERT_HEAD(&slot->ring->lists.free, slot, link);
  else
    TAILQ_INSERT_TAIL(&slot->ring->lists.free, slot, link);
}

static void slot_to_empty(ladei_pipe_slot *slot) {
  slot->transfer = NULL;
  slot->block = NULL;
  slot->keep_block = false;
  slot->lost = false;
  slot_put(&slot->ring->lists.empty, slot, LADEI_PIPE_SLOT_EMPTY);
}

static ladei_pipe_slot *slot_take(struct ladei_slot_list *list, ladei_pipe_slot *slot, ladei_pipe_slot_state state) {
  TAILQ_REMOVE(list, slot, link);
  slot_state_set(slot, state);
  return slot;
}

/* Its copy is over: frees the slot, or empties it where the block is gone or going. */
static void slot_retire(ladei_pipe_slot *slot) {
  if (slot->release_out) {
    slot_state_set(slot, LADEI_PIPE_SLOT_RELEASING);
    slot->transfer = NULL;
  } else if (slot->block == NULL) {
    slot_to_empty(slot);
  } else {
    slot_to_free(slot);
  }
}

/* After the slots of its transfer's level, before those of lower levels. */
static void slot_to_ready(ladei_pipe_slot *slot) {
  struct ladei_slot_list *list = &slot->ring->lists.ready;
  ladei_pipe_slot *before = TAILQ_LAST(list, ladei_slot_list);
  while (before != NULL && before->transfer->level < slot->transfer->level)
    before = TAILQ_PREV(before, ladei_slot_list, link);
  slot_state_set(slot, LADEI_PIPE_SLOT_READY);
  if (before != NULL)
    TAILQ_INSERT_AFTER(list, before, slot, link);
  else
    TAILQ_INSERT_HEAD(list, slot, link);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/* One slot more or less carries a chunk of it. */
static void active_add(ladei_pipe_core_transfer *transfer, unsigned change) {
  transfer->active += change;
  transfer->ring->active += change;
  if (transfer->dependency != LADEI_PIPE_DEPENDENCY_NONE || transfer->calls || transfer->remote) {
    transfer->ring->schedule.may_stall += ladei_pipe_transfer_may_stall(transfer) ? change : 0;
    transfer->ring->calls.active += transfer->calls ? change : 0;
  }
}

static void active_increment(ladei_pipe_core_transfer *transfer) { active_add(transfer, 1); }

static void active_decrement(ladei_pipe_core_transfer *transfer) { active_add(transfer, UINT32_MAX); }

/* After changes that decide whether the transfer may stall; `could_stall`: it might before. */
static void may_stall_update(ladei_pipe_core_transfer *transfer, bool could_stall) {
  bool can_stall = ladei_pipe_transfer_may_stall(transfer);
  if (could_stall && !can_stall)
    transfer->ring->schedule.may_stall -= transfer->active;
  else if (can_stall && !could_stall)
    transfer->ring->schedule.may_stall += transfer->active;
}

static void dependency_set(ladei_pipe_core_transfer *transfer, ladei_pipe_dependency dependency) {
  assert(ladei_pipe_dependency_may_become(transfer->dependency, dependency) && "I10");
  transfer->dependency = dependency;
}

static void dependency_change(ladei_pipe_core_transfer *transfer, ladei_pipe_dependency dependency) {
  bool could_stall = ladei_pipe_transfer_may_stall(transfer);
  dependency_set(transfer, dependency);
  may_stall_update(transfer, could_stall);
}

/* Its copy stream waits for nothing of the transfer's any more, but may for others that come: copies still to be queued
 * go to the copy streams of transfers that wait for no stream. */
static void dependency_pass(ladei_pipe_core_transfer *transfer) {
  ladei_pipe_copy_stream *copy_stream = transfer->copy_stream;
  dependency_change(transfer, LADEI_PIPE_DEPENDENCY_NONE);
  copy_stream->transfers--;
  if (copy_stream->waits_for == transfer->number + 1) copy_stream->waits_for = 0;
  transfer->copy_stream = ladei_pipe_copy_stream_of(transfer->ring, transfer);
}

static void asking_leave(ladei_pipe_core_transfer *transfer) {
  TAILQ_REMOVE(&transfer->ring->schedule.asking, transfer, fair_queue_link);
  transfer->asks = false;
}

/* Moves the transfer to the finished ones when nothing is left to do for it. */
static void transfer_settle(ladei_pipe_core_transfer *transfer) {
  bool ended = ladei_pipe_transfer_failed(transfer) || transfer->done_bytes == transfer->bytes;
  if (ended && transfer->active == 0 && transfer->dependency != LADEI_PIPE_DEPENDENCY_QUERYING && !transfer->settled) {
    transfer->settled = true;
    transfer->copy_stream->transfers -= ladei_pipe_copy_stream_waits(transfer->copy_stream) ? 1 : 0;
    TAILQ_REMOVE(&transfer->ring->schedule.queue, transfer, link);
    TAILQ_INSERT_TAIL(&transfer->ring->schedule.finished, transfer, link);
  }
}

/* Takes the chunk off the slot's account; the slot's own fate is the caller's. */
static void chunk_drop(ladei_pipe_core_transfer *transfer) {
  active_decrement(transfer);
  ladei_pipe_transfer_update(transfer);
  transfer_settle(transfer);
}

static void chunks_abandon(struct ladei_slot_list *list, ladei_pipe_core_transfer *transfer) {
  ladei_pipe_slot *next;
  for (ladei_pipe_slot *slot = TAILQ_FIRST(list); slot != NULL; slot = next) {
    next = TAILQ_NEXT(slot, link);
    if (slot->transfer == transfer) {
      TAILQ_REMOVE(list, slot, link);
      active_decrement(transfer);
      slot_retire(slot);
    }
  }
}

void ladei_pipe_core_fail(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, const lade_error *error) {
  (void)core;
  if (ladei_pipe_transfer_failed(transfer) || transfer->settled) return;
  assert(error->status != LADE_ERR_TIMEOUT && "of a ticket's outcomes that one means: not over yet");
  transfer->error = *error;
  chunks_abandon(&transfer->ring->lists.ready, transfer);
  chunks_abandon(&transfer->ring->lists.landed, transfer);
  if (transfer->asks && transfer->dependency == LADEI_PIPE_DEPENDENCY_UNKNOWN) asking_leave(transfer);
  ladei_pipe_transfer_update(transfer);
  transfer_settle(transfer);
}

/* Applies an order's failure to its transfer. */
static unsigned transfer_fail_by(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, const lade_error *error) {
  if (transfer == NULL || ladei_pipe_transfer_failed(transfer)) return 0;
  ladei_pipe_core_fail(core, transfer, error);
  return LADEI_PIPE_CHANGED_FAILED;
}

void ladei_pipe_core_submit(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, lade_direction direction) {
  ladei_pipe_ring *ring = ladei_pipe_core_ring(core, (int32_t)direction);
  transfer->ring = ring;
  transfer->copy_stream = ladei_pipe_copy_stream_of(ring, transfer);
  transfer->number = core->counters.transfers_submitted;
  transfer->error.status = LADE_OK;
  TAILQ_INSERT_TAIL(&ring->schedule.queue, transfer, link);
  /* A ring that was refused a block tries again with new work. */
  ring->blocks.limit = ring->depth;
  if (transfer->unit_bytes > ring->blocks.least_bytes && ring->blocks.least_bytes != SIZE_MAX) {
    /* A chunk holds a whole unit at least. */
    ring->blocks.least_bytes = transfer->unit_bytes;
    ring->blocks.most_bytes =
        ring->blocks.most_bytes > ring->blocks.least_bytes ? ring->blocks.most_bytes : ring->blocks.least_bytes;
    ring->blocks.bytes = ring->blocks.bytes > ring->blocks.least_bytes ? ring->blocks.bytes : ring->blocks.least_bytes;
  }
  transfer->asks = transfer->read_arrives && direction == LADE_TO_DEVICE &&
                   transfer->dependency != LADEI_PIPE_DEPENDENCY_NONE && transfer->bytes > 0;
  if (transfer->asks) TAILQ_INSERT_TAIL(&ring->schedule.asking, transfer, fair_queue_link);
  core->unfinished++;
  core->counters.transfers_submitted++;
  ladei_pipe_transfer_update(transfer);
  transfer_settle(transfer);
}

/* How long the next chunk of the transfer may be in that slot. */
static size_t chunk_size(const ladei_pipe_core_transfer *transfer, ladei_pipe_slot *slot) {
  const ladei_pipe_ring *ring = slot->ring;
  uint64_t left = transfer->bytes - transfer->issued_bytes;
  size_t most = transfer->chunk_bytes;
  uint64_t turn = ladei_pipe_turn_bytes(transfer);
  if (transfer->no_host && turn > 0 && most > turn) most = (size_t)turn; /* a copy is no longer than a turn */
  if (!transfer->unstaged && slot->capacity < most) most = slot->capacity;
  slot->shortened = false;
  if (transfer->adapts && !transfer->unstaged) {
    const ladei_pipe_chunk_need need = {.left = left,
                                        .lead = slot->lead_bytes,
                                        .most = most,
                                        .unit = transfer->unit_bytes,
                                        .to_device = ring->direction == LADE_TO_DEVICE,
                                        .requests = ring->host.window,
                                        .ring_begun = ring->schedule.begun_bytes,
                                        .ring_left = ring->schedule.left_bytes};
    slot->shortened = ladei_pipe_chunk_is_short(&need);
    return ladei_pipe_chunk_next(&need);
  }
  if (transfer->unit_bytes != 0 && most > transfer->unit_bytes) most -= most % transfer->unit_bytes;
  most -= slot->lead_bytes;
  return left < most ? (size_t)left : most;
}

/* Gives the slot the next chunk of the transfer that is being issued. */
static void chunk_begin(ladei_pipe_slot *slot, ladei_pipe_core_transfer *transfer) {
  ladei_pipe_priority *level = &transfer->ring->schedule.levels[transfer->level];
  ladei_pipe_fair_queue *fair_queue = &level->fair_queues[transfer->fair_queue];
  slot->transfer = transfer;
  slot->used = true;
  slot->offset = transfer->issued_bytes;
  slot->lead_bytes = transfer->issued_bytes == 0 ? transfer->lead_bytes : 0;
  if (slot->ring->active == 0) slot->ring->schedule.begun_bytes = 0;
  slot->bytes = chunk_size(transfer, slot);
  slot->ring->schedule.begun_bytes += slot->bytes;
  transfer->issued_bytes += slot->bytes;
  active_increment(transfer);
  level->clock = fair_queue->served;
  fair_queue->served += slot->bytes;
  ladei_pipe_transfer_update(transfer);
}

/* --- taking an order ---------------------------------------------------------------------------------------------- */

/* A slot without a chunk, for the next one. */
static ladei_pipe_slot *slot_begin(ladei_pipe_ring *ring, ladei_pipe_slot *slot, ladei_pipe_slot_state state) {
  return slot_take(slot->state == LADEI_PIPE_SLOT_EMPTY ? &ring->lists.empty : &ring->lists.free, slot, state);
}

/* Where its next copy goes: it was picked, so that it waits for no turn. */
static ladei_pipe_copy_stream *copy_stream_next(const ladei_pipe_core_transfer *transfer) {
  ladei_pipe_copy_stream *next = ladei_pipe_turn_stream(transfer->ring, transfer);
  assert(next != NULL && "I12");
  return next;
}

static void ready_take(ladei_pipe_slot *slot, ladei_pipe_copy_stream *copy_stream) {
  slot->copy_stream = copy_stream;
  slot_take(&slot->ring->lists.ready, slot, LADEI_PIPE_SLOT_COPYING);
}

/* Joins the next READY slots that may be to `first`, which is one of them. */
static void ready_join(ladei_pipe_slot *first, ladei_pipe_copy_stream *copy_stream) {
  const ladei_pipe_ring *ring = first->ring;
  uint64_t most = ladei_pipe_turn_left(first->transfer, copy_stream);
  if (first->transfer->conversion == 0 && most > ring->joined.bytes) most = ring->joined.bytes;
  ladei_pipe_slot *last = first, *next = TAILQ_NEXT(first, link);
  size_t bytes = first->bytes;
  unsigned count = 1;
  ready_take(first, copy_stream);
  for (ladei_pipe_slot *slot = next; slot != NULL && count < ring->joined.most; slot = next) {
    next = TAILQ_NEXT(slot, link);
    if (!ladei_pipe_slot_joins(slot) || slot->transfer->conversion != first->transfer->conversion) continue;
    bytes += slot->bytes;
    if (bytes > most) break;
    ready_take(slot, copy_stream);
    last->joined = slot;
    last = slot;
    count++;
  }
}

/* Note [Turns] in core_pick.c. The slots are COPYING, and joined. */
enum { TURNS_HALVED = 16 }; /* 1.4 ms */

static void turn_count(const ladei_pipe_slot *first) {
  ladei_pipe_copy_stream *copy_stream = first->copy_stream;
  ladei_pipe_turns *turns = &first->ring->turns;
  bool passes = copy_stream->index == LADEI_PIPE_COPY_STREAM_SHORT, begins = ladei_pipe_copy_stream_rests(copy_stream);
  if (begins) copy_stream->turn_bytes = 0;
  if (passes)
    turns->halved = TURNS_HALVED;
  else if (begins && turns->halved > 0)
    turns->halved--;
  copy_stream->copying++;
  for (const ladei_pipe_slot *slot = first; slot != NULL; slot = slot->joined) copy_stream->turn_bytes += slot->bytes;
}

static void take_copy(ladei_pipe_ring *ring, const ladei_pipe_order *order) {
  ladei_pipe_slot *slot = order->slot;
  ladei_pipe_copy_stream *copy_stream = copy_stream_next(order->transfer);
  if (slot->state != LADEI_PIPE_SLOT_READY) {
    slot->copy_stream = copy_stream;
    chunk_begin(slot_begin(ring, slot, LADEI_PIPE_SLOT_COPYING), order->transfer);
  } else if (ladei_pipe_slot_joins(slot)) {
    ready_join(slot, copy_stream);
  } else {
    ready_take(slot, copy_stream);
  }
  turn_count(slot);
}

static void host_begin(ladei_pipe_ring *ring, ladei_pipe_core_transfer *transfer) {
  transfer->host_busy = true;
  transfer->host_out++;
  ring->host.out += ladei_pipe_transfer_is_in_window(transfer) ? 1 : 0;
  ring->calls.out += transfer->calls;
}

/* A call has returned: the transfer does not hang, unless another call of it is overdue. */
static void call_end(ladei_pipe_slot *slot, ladei_pipe_core_transfer *transfer) {
  bool could_stall = ladei_pipe_transfer_may_stall(transfer);
  slot->ring->calls.out--;
  transfer->answered = true;
  transfer->stalled -= slot->stalled ? 1 : 0;
  slot->stalled = false;
  may_stall_update(transfer, could_stall);
}

static void host_end(ladei_pipe_slot *slot, ladei_pipe_core_transfer *transfer) {
  transfer->host_busy = false;
  transfer->host_out--;
  slot->ring->host.out -= ladei_pipe_transfer_is_in_window(transfer) && !slot->stalled ? 1 : 0;
  if (transfer->calls) call_end(slot, transfer);
}

void ladei_pipe_core_stall(ladei_pipe_slot *slot) {
  ladei_pipe_core_transfer *transfer = slot->transfer;
  bool could_stall = ladei_pipe_transfer_may_stall(transfer);
  slot->stalled = true;
  slot->ring->host.out -= ladei_pipe_transfer_is_in_window(transfer) ? 1 : 0;
  transfer->stalled++;
  may_stall_update(transfer, could_stall);
  ladei_pipe_transfer_update(transfer);
}

static void take_dependency(const ladei_pipe_order *order) {
  if (order->copy_stream == NULL) {
    dependency_set(order->transfer, LADEI_PIPE_DEPENDENCY_QUERYING);
    return;
  }
  dependency_set(order->transfer, LADEI_PIPE_DEPENDENCY_QUERYING);
  order->transfer->copy_stream = order->copy_stream;
  order->copy_stream->transfers++;
  order->copy_stream->after = order->transfer->after;
}

static void batch_state_set(ladei_pipe_batch *batch, ladei_pipe_batch_state state) {
  assert(ladei_pipe_batch_may_become(batch->state, state) && "I10");
  batch->state = state;
}

static void take_record(ladei_pipe_batch *batch) {
  ladei_pipe_copy_stream *copy_stream = batch->copy_stream;
  ladei_pipe_slot *slot;
  TAILQ_REMOVE(&copy_stream->idle, batch, link);
  batch_state_set(batch, LADEI_PIPE_BATCH_RECORDING);
  batch->by_stream = false;
  TAILQ_CONCAT(&batch->slots, &copy_stream->copied, link);
  TAILQ_FOREACH (slot, &batch->slots, link) slot_state_set(slot, LADEI_PIPE_SLOT_COVERED);
  copy_stream->ring->copy_streams_copied &= ~(1u << copy_stream->index);
  copy_stream->copied_count = 0;
  copy_stream->copied_bytes = 0;
  copy_stream->recording++;
}

static void take_release(ladei_pipe_ring *ring, const ladei_pipe_order *order) {
  ladei_pipe_slot *slot = order->slot;
  slot->release_out = true;
  if (slot->state == LADEI_PIPE_SLOT_FREE)
    slot_take(&ring->lists.free, slot, LADEI_PIPE_SLOT_RELEASING);
  else if (slot->state == LADEI_PIPE_SLOT_LOST)
    slot_take(&ring->lists.lost, slot, LADEI_PIPE_SLOT_RELEASING);
}

static void core_take(ladei_pipe_core *core, const ladei_pipe_order *order) {
  ladei_pipe_ring *ring = order->ring;
  switch (order->kind) {
  case LADEI_PIPE_ORDER_ACQUIRE:
    slot_take(&ring->lists.empty, order->slot, LADEI_PIPE_SLOT_ACQUIRING)->capacity = order->bytes;
    ring->blocks.count++;
    ring->blocks.acquire_out++;
    break;
  case LADEI_PIPE_ORDER_READ:
    host_begin(ring, order->transfer);
    order->slot->taker = ring->takers.asking;
    chunk_begin(slot_begin(ring, order->slot, LADEI_PIPE_SLOT_READING), order->transfer);
    break;
  case LADEI_PIPE_ORDER_DEPENDENCY:
    take_dependency(order);
    ladei_pipe_transfer_update(order->transfer);
    break;
  case LADEI_PIPE_ORDER_COPY: take_copy(ring, order); break;
  case LADEI_PIPE_ORDER_RECORD: take_record(order->batch); break;
  case LADEI_PIPE_ORDER_POLL: batch_state_set(order->batch, LADEI_PIPE_BATCH_POLLING); break;
  case LADEI_PIPE_ORDER_WRITE:
    host_begin(ring, order->transfer);
    slot_take(&ring->lists.landed, order->slot, LADEI_PIPE_SLOT_WRITING);
    break;
  case LADEI_PIPE_ORDER_RELEASE: take_release(ring, order); break;
  case LADEI_PIPE_ORDER_FINISH: TAILQ_REMOVE(&ring->schedule.finished, order->transfer, link); break;
  }
  core->orders_out++;
}

bool ladei_pipe_core_next(ladei_pipe_core *core, unsigned allow, ladei_pipe_order *out) {
  if (!ladei_pipe_core_pick(core, allow, out)) return false;
  core_take(core, out);
  core->next_ring ^= 1u;
  return true;
}

bool ladei_pipe_core_next_of(ladei_pipe_core *core, ladei_pipe_ring *ring,
                             bool (*accepts)(const ladei_pipe_order *order), ladei_pipe_order *out) {
  if (!ladei_pipe_ring_pick(ring, LADEI_PIPE_ALLOW_HOST, out) || !accepts(out)) return false;
  core_take(core, out);
  return true;
}

/* --- completing an order ------------------------------------------------------------------------------------------ */

static unsigned complete_acquire(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                                 const lade_error *error) {
  ladei_pipe_ring *ring = order->ring;
  ring->blocks.acquire_out--;
  if (status == LADE_OK) {
    ring->blocks.asleep = false;
    ring->blocks.awaits = false;
    order->slot->used = false;
    order->slot->taker = 0;
    order->slot->block = order->block;
    slot_to_free(order->slot);
    core->counters.blocks++;
    if (core->counters.blocks > core->counters.blocks_peak) core->counters.blocks_peak = core->counters.blocks;
    return 0;
  }
  ring->blocks.count--;
  slot_to_empty(order->slot);
  if (status == LADE_NOT_READY && ring->blocks.count > 0) return 0; /* others of its own came meanwhile */
  if (ring->blocks.count > 0) {
    /* Fewer blocks are slower, not wrong: go on with those there are. */
    ring->blocks.limit = ring->blocks.count;
    ladei_pipe_ring_choose(ring);
    return 0;
  }
  if (status == LADE_NOT_READY) {
    core->counters.block_waits += ring->blocks.awaits ? 0 : 1;
    ring->blocks.asleep = true;
    ring->blocks.awaits = true;
    return 0;
  }
  if (!order->only) return 0; /* other blocks went back meanwhile: asked for anew, as the only one */
  ring->blocks.awaits = false;
  if (order->bytes > ring->blocks.least_bytes) {
    ring->blocks.bytes = order->bytes / 2 > ring->blocks.least_bytes ? order->bytes / 2 : ring->blocks.least_bytes;
    ring->blocks.most_bytes = ring->blocks.bytes;
    return 0;
  }
  return transfer_fail_by(core, ring->schedule.issuing, error);
}

void ladei_pipe_core_ask_again(ladei_pipe_ring *ring) {
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS; i++) ring->copy_streams[i].poll_asleep = false;
}

/* It took some time: POLL may be worth while again. */
static void ring_poll_wake(ladei_pipe_ring *ring) {
  ladei_pipe_core_ask_again(ring);
  ring->blocks.asleep = false;
  ladei_pipe_core_transfer *transfer;
  TAILQ_FOREACH (transfer, &ring->schedule.asking, fair_queue_link) transfer->asked = false;
}

static unsigned complete_read(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                              const lade_error *error) {
  ladei_pipe_core_transfer *transfer = order->transfer;
  unsigned changed = 0;
  host_end(order->slot, transfer);
  ring_poll_wake(order->ring);
  if (status != LADE_OK) changed = transfer_fail_by(core, transfer, error);
  if (ladei_pipe_transfer_failed(transfer)) {
    slot_retire(order->slot);
    chunk_drop(transfer);
  } else {
    slot_to_ready(order->slot);
    ladei_pipe_transfer_update(transfer);
  }
  return changed;
}

/* Of a transfer whose READ waits until the dependency has passed. */
static unsigned complete_asking(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                                const lade_error *error) {
  ladei_pipe_core_transfer *transfer = order->transfer;
  bool again = status == LADE_OK && !order->passed && !ladei_pipe_transfer_failed(transfer);
  transfer->asked = again;
  if (!again) asking_leave(transfer);
  dependency_change(transfer, again ? LADEI_PIPE_DEPENDENCY_UNKNOWN : LADEI_PIPE_DEPENDENCY_NONE);
  unsigned changed = status == LADE_OK ? 0 : transfer_fail_by(core, transfer, error);
  ladei_pipe_transfer_update(transfer);
  transfer_settle(transfer);
  return changed;
}

static unsigned complete_dependency(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                                    const lade_error *error) {
  ladei_pipe_core_transfer *transfer = order->transfer;
  bool waits = status == LADE_OK && !order->passed;
  if (transfer->asks) return complete_asking(core, order, status, error);
  if (waits) {
    dependency_change(transfer, LADEI_PIPE_DEPENDENCY_AWAITED);
    transfer->copy_stream->waits_for = transfer->number + 1;
  } else {
    dependency_pass(transfer);
  }
  unsigned changed = status == LADE_OK ? 0 : transfer_fail_by(core, transfer, error);
  ladei_pipe_transfer_update(transfer);
  transfer_settle(transfer);
  return changed;
}

static void slot_to_copied(ladei_pipe_slot *slot) {
  slot_put(&slot->copy_stream->copied, slot, LADEI_PIPE_SLOT_COPIED);
  slot->ring->copy_streams_copied |= 1u << slot->copy_stream->index;
  slot->copy_stream->under_way_bytes += slot->bytes;
  slot->copy_stream->copied_count++;
  slot->copy_stream->copied_bytes += slot->bytes;
}

static bool copy_queued(ladei_pipe_slot *slot) {
  slot->transfer->queued_bytes += slot->bytes;
  slot_to_copied(slot);
  return ladei_pipe_core_all_queued(slot->transfer);
}

/* Each is tried again by itself, as are other slots of its transfer: it may be the one that cannot be joined. */
static void copy_part(ladei_pipe_slot *slot) {
  ladei_pipe_core_transfer *transfer = slot->transfer;
  transfer->joins = false;
  if (ladei_pipe_transfer_failed(transfer)) {
    slot_retire(slot);
    chunk_drop(transfer);
  } else {
    slot_to_ready(slot);
  }
}

static unsigned complete_joined(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status) {
  unsigned changed = 0;
  assert(status == LADE_OK || !order->partial);
  core->counters.copies += status == LADE_OK ? order->copies : 0;
  for (ladei_pipe_slot *slot = order->slot, *next; slot != NULL; slot = next) {
    next = slot->joined;
    slot->joined = NULL;
    if (status != LADE_OK)
      copy_part(slot);
    else
      changed |= copy_queued(slot) ? LADEI_PIPE_CHANGED_QUEUED : 0;
  }
  return changed;
}

static unsigned complete_copy(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                              const lade_error *error) {
  ladei_pipe_core_transfer *transfer = order->transfer;
  order->slot->copy_stream->copying--;
  if (order->slot->joined != NULL) return complete_joined(core, order, status);
  if (status != LADE_OK && !order->partial) {
    unsigned changed = transfer_fail_by(core, transfer, error);
    slot_retire(order->slot);
    chunk_drop(transfer);
    return changed;
  }
  if (status != LADE_OK) {
    /* The queued part uses the block until its batch is done. */
    unsigned changed = transfer_fail_by(core, transfer, error);
    slot_to_copied(order->slot);
    return changed;
  }
  core->counters.copies += order->copies;
  return copy_queued(order->slot) ? LADEI_PIPE_CHANGED_QUEUED : 0;
}

static unsigned batch_fail_transfers(ladei_pipe_core *core, ladei_pipe_batch *batch, const lade_error *error) {
  unsigned changed = 0;
  ladei_pipe_slot *slot;
  TAILQ_FOREACH (slot, &batch->slots, link) changed |= transfer_fail_by(core, slot->transfer, error);
  return changed;
}

static unsigned complete_record(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                                const lade_error *error) {
  ladei_pipe_batch *batch = order->batch;
  unsigned changed = 0;
  batch->copy_stream->recording--;
  if (status == LADE_OK) {
    core->counters.events_recorded++;
  } else {
    changed = batch_fail_transfers(core, batch, error);
    batch->by_stream = true;
  }
  batch_state_set(batch, LADEI_PIPE_BATCH_PENDING);
  TAILQ_INSERT_TAIL(&batch->copy_stream->pending, batch, link);
  return changed;
}

/* The copy of a slot is known to be over. */
static void slot_land(ladei_pipe_core *core, ladei_pipe_ring *ring, ladei_pipe_slot *slot) {
  ladei_pipe_core_transfer *transfer = slot->transfer;
  if (transfer->dependency == LADEI_PIPE_DEPENDENCY_AWAITED) dependency_pass(transfer);
  if (!ladei_pipe_transfer_failed(transfer) && ring->direction == LADE_TO_HOST && !transfer->no_host) {
    slot_put(&ring->lists.landed, slot, LADEI_PIPE_SLOT_LANDED);
    ladei_pipe_transfer_update(transfer);
    return;
  }
  if (!ladei_pipe_transfer_failed(transfer)) {
    transfer->done_bytes += slot->bytes;
    core->counters.bytes_completed += slot->bytes;
  }
  slot_retire(slot);
  chunk_drop(transfer);
}

/* Nothing can be learned about the copy of a slot, now or later: its block must not be used again from here. */
static void slot_lose(ladei_pipe_ring *ring, ladei_pipe_slot *slot) {
  if (slot->release_out) {
    slot_state_set(slot, LADEI_PIPE_SLOT_RELEASING);
    slot->lost = true;
  } else if (slot->block != NULL) {
    slot_put(&ring->lists.lost, slot, LADEI_PIPE_SLOT_LOST);
  } else {
    ladei_pipe_core_transfer *transfer = slot->transfer;
    slot_to_empty(slot);
    chunk_drop(transfer);
  }
}

static unsigned complete_poll(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                              const lade_error *error) {
  ladei_pipe_batch *batch = order->batch;
  ladei_pipe_copy_stream *copy_stream = batch->copy_stream;
  ladei_pipe_ring *ring = order->ring;
  batch_state_set(batch, LADEI_PIPE_BATCH_PENDING);
  core->counters.events_queried++;
  if (status == LADE_NOT_READY) {
    copy_stream->poll_asleep = true;
    return 0;
  }
  unsigned changed = status == LADE_OK ? 0 : batch_fail_transfers(core, batch, error);
  if (status != LADE_OK && !batch->by_stream) {
    batch->by_stream = true;
    return changed;
  }
  TAILQ_REMOVE(&copy_stream->pending, batch, link);
  for (ladei_pipe_slot *slot; (slot = TAILQ_FIRST(&batch->slots)) != NULL;) {
    TAILQ_REMOVE(&batch->slots, slot, link);
    copy_stream->under_way_bytes -= slot->bytes;
    LADEI_PROBE3(copy_end, slot, slot->bytes, status);
    if (status == LADE_OK)
      slot_land(core, ring, slot);
    else
      slot_lose(ring, slot);
  }
  batch_state_set(batch, LADEI_PIPE_BATCH_IDLE);
  TAILQ_INSERT_HEAD(&copy_stream->idle, batch, link);
  return changed;
}

static unsigned complete_write(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                               const lade_error *error) {
  ladei_pipe_core_transfer *transfer = order->transfer;
  unsigned changed = 0;
  host_end(order->slot, transfer);
  ring_poll_wake(order->ring);
  if (status != LADE_OK) changed = transfer_fail_by(core, transfer, error);
  if (!ladei_pipe_transfer_failed(transfer)) {
    transfer->host_bytes += order->slot->bytes;
    transfer->done_bytes += order->slot->bytes;
    core->counters.bytes_completed += order->slot->bytes;
  }
  slot_retire(order->slot);
  chunk_drop(transfer);
  return changed;
}

static void complete_release(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status) {
  ladei_pipe_slot *slot = order->slot;
  core->rings[0].blocks.asleep = false;
  core->rings[1].blocks.asleep = false;
  slot->release_out = false;
  if (status == LADE_OK) {
    slot->block = NULL;
    order->ring->blocks.count--;
    core->counters.blocks--;
  } else {
    slot->keep_block = true;
  }
  if (slot->state != LADEI_PIPE_SLOT_RELEASING) return;
  if (slot->block != NULL && slot->lost) {
    slot_put(&order->ring->lists.lost, slot, LADEI_PIPE_SLOT_LOST);
    return;
  }
  ladei_pipe_core_transfer *transfer = slot->transfer;
  slot_retire(slot);
  if (transfer != NULL) chunk_drop(transfer);
}

static unsigned complete_finish(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, lade_status status,
                                const lade_error *error) {
  if (status != LADE_OK && !ladei_pipe_transfer_failed(transfer)) transfer->error = *error;
  transfer->finished = true;
  core->unfinished--;
  if (ladei_pipe_transfer_failed(transfer))
    core->counters.transfers_failed++;
  else
    core->counters.transfers_completed++;
  return LADEI_PIPE_CHANGED_FINISHED;
}

unsigned ladei_pipe_core_complete(ladei_pipe_core *core, const ladei_pipe_order *order, lade_status status,
                                  const lade_error *error) {
  core->orders_out--;
  switch (order->kind) {
  case LADEI_PIPE_ORDER_ACQUIRE: return complete_acquire(core, order, status, error);
  case LADEI_PIPE_ORDER_READ: return complete_read(core, order, status, error);
  case LADEI_PIPE_ORDER_DEPENDENCY: return complete_dependency(core, order, status, error);
  case LADEI_PIPE_ORDER_COPY: return complete_copy(core, order, status, error);
  case LADEI_PIPE_ORDER_RECORD: return complete_record(core, order, status, error);
  case LADEI_PIPE_ORDER_POLL: return complete_poll(core, order, status, error);
  case LADEI_PIPE_ORDER_WRITE: return complete_write(core, order, status, error);
  case LADEI_PIPE_ORDER_RELEASE: complete_release(core, order, status); return 0;
  case LADEI_PIPE_ORDER_FINISH: return complete_finish(core, order->transfer, status, error);
  }
  return 0;
}

void ladei_pipe_core_poll_wake(ladei_pipe_core *core) {
  ring_poll_wake(&core->rings[0]);
  ring_poll_wake(&core->rings[1]);
}
