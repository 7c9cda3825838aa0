/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline's state machine; see core.h for the states and the orders that lead from one to the next.
 *
 *   submit -> queue: [T1 all begun] [T2 issuing] [T3] ...        a ring begins chunks in the order of submission
 *             slots:  free (rested longest first) | reading | ready | copied | covered by batch 1, batch 2 | landed ...
 *   next() picks, for the ring whose turn it is, the first that applies:
 *     FINISH, GATE, COPY, RECORD (batch full), POLL (unless it was in vain since the last read or write), READ or
 *     WRITE, RECORD (nothing else covers the copies), ACQUIRE, RELEASE
 * So copies are queued as early as can be, and a ring asks for the end of copies before it begins the next chunk: it
 * grows only as far as the speeds of its two sides need.
 *
 * I1  Each slot is in exactly one state, and in the list of that state if it has one (empty, free, ready, copied,
 *     landed, lost, a batch's); while an order for it is out (ACQUIRING, READING, COPYING, WRITING, RELEASING) it is in
 *     none.
 * I2  A slot has a block unless it is EMPTY, ACQUIRING, or COPIED or COVERED after an early RELEASE.
 * I3  transfer->active = slots that carry its chunks. A transfer settles when nothing is active, its gate is not
 *     OPENING and it has failed or all its bytes are done; settled once, finished once.
 * I4  ring->blocks = slots with a block or ACQUIRING, at most slot_limit when the last block was asked for.
 * I5  A failed transfer begins no chunk, and none of its slots is READY or LANDED.
 * I6  done_bytes <= queued_bytes <= issued_bytes <= bytes (to the host likewise: copies are queued before they land).
 * I7  ring->issuing is the first transfer of the queue that has not failed and has chunks to begin, or NULL.
 * Locks: none; the driver calls these functions one at a time, holding the pipeline's lock.
 */
#include "pipeline/core.h"

#include <stdlib.h>

#include "base/error.h"

/* A quarter of the ring per event: the other three quarters keep both sides busy while it is found out. */
enum { BATCHES_PER_RING = 8, BATCH_PART = 4 };

/* --- slots ---------------------------------------------------------------------------------------------------------
 */

static void slot_put(struct ladei_slot_list *list, ladei_slot *slot, ladei_slot_state state) {
  slot->state = state;
  TAILQ_INSERT_TAIL(list, slot, link);
}

/*
 * Out of work, its block kept. The next chunk takes the block that rested longest: where copy engines are threads, the
 * one used last lies in the engine's cache and would have to be fetched back (2 to 3 % of staging_throughput on cpu).
 */
static void slot_to_free(ladei_slot *slot) {
  slot->transfer = NULL;
  slot->keep_block = false;
  slot->lost = false;
  slot->state = LADEI_SLOT_FREE;
  TAILQ_INSERT_TAIL(&slot->ring->free, slot, link);
}

static void slot_to_empty(ladei_slot *slot) {
  slot->transfer = NULL;
  slot->block = NULL;
  slot->keep_block = false;
  slot->lost = false;
  slot_put(&slot->ring->empty, slot, LADEI_SLOT_EMPTY);
}

static ladei_slot *slot_take(struct ladei_slot_list *list, ladei_slot *slot, ladei_slot_state state) {
  TAILQ_REMOVE(list, slot, link);
  slot->state = state;
  return slot;
}

/* Its copy is over: frees the slot, or empties it where the block is gone or going. */
static void slot_retire(ladei_slot *slot) {
  if (slot->release_out) {
    slot->state = LADEI_SLOT_RELEASING;
    slot->transfer = NULL;
  } else if (slot->block == NULL) {
    slot_to_empty(slot);
  } else {
    slot_to_free(slot);
  }
}

/* --- transfers ------------------------------------------------------------------------------------------------------
 */

static bool transfer_failed(const ladei_core_transfer *transfer) { return transfer->error.status != LADE_OK; }

static void ring_advance(ladei_ring *ring) {
  while (ring->issuing != NULL &&
         (transfer_failed(ring->issuing) || ring->issuing->issued_bytes == ring->issuing->bytes)) {
    ring->issuing = TAILQ_NEXT(ring->issuing, link);
  }
}

/* Moves the transfer to the finished ones when nothing is left to do for it. */
static void transfer_settle(ladei_core_transfer *transfer) {
  bool ended = transfer_failed(transfer) || transfer->done_bytes == transfer->bytes;
  if (ended && transfer->active == 0 && transfer->gate != LADEI_GATE_OPENING && !transfer->settled) {
    transfer->settled = true;
    TAILQ_REMOVE(&transfer->ring->queue, transfer, link);
    TAILQ_INSERT_TAIL(&transfer->ring->finished, transfer, link);
  }
}

/* Takes the chunk off the slot's account; the slot's own fate is the caller's. */
static void chunk_drop(ladei_core_transfer *transfer) {
  transfer->active--;
  transfer_settle(transfer);
}

static void chunks_abandon(struct ladei_slot_list *list, ladei_core_transfer *transfer) {
  ladei_slot *next;
  for (ladei_slot *slot = TAILQ_FIRST(list); slot != NULL; slot = next) {
    next = TAILQ_NEXT(slot, link);
    if (slot->transfer == transfer) {
      TAILQ_REMOVE(list, slot, link);
      transfer->active--;
      slot_to_free(slot);
    }
  }
}

void ladei_core_fail(ladei_core *core, ladei_core_transfer *transfer, const lade_error *error) {
  (void)core;
  if (transfer_failed(transfer) || transfer->settled) {
    return;
  }
  transfer->error = *error;
  chunks_abandon(&transfer->ring->ready, transfer);
  chunks_abandon(&transfer->ring->landed, transfer);
  ring_advance(transfer->ring);
  transfer_settle(transfer);
}

/* What a failed order means for the transfer it was for. */
static unsigned transfer_fail_by(ladei_core *core, ladei_core_transfer *transfer, const lade_error *error) {
  if (transfer == NULL || transfer_failed(transfer)) {
    return 0;
  }
  ladei_core_fail(core, transfer, error);
  return LADEI_CHANGED_FAILED;
}

void ladei_core_submit(ladei_core *core, ladei_core_transfer *transfer, lade_direction direction) {
  ladei_ring *ring = &core->rings[direction == LADE_TO_DEVICE ? 0 : 1];
  transfer->ring = ring;
  transfer->error.status = LADE_OK;
  TAILQ_INSERT_TAIL(&ring->queue, transfer, link);
  if (ring->issuing == NULL) {
    ring->issuing = transfer;
    ring_advance(ring);
  }
  /* A ring that was refused a block tries again with new work. */
  ring->slot_limit = ring->depth;
  core->unfinished++;
  core->counters.transfers_submitted++;
  transfer_settle(transfer);
}

/* Gives the slot the next chunk of the transfer that is being issued. */
static void chunk_begin(ladei_slot *slot, ladei_core_transfer *transfer) {
  uint64_t left = transfer->bytes - transfer->issued_bytes;
  size_t lead_bytes = transfer->issued_bytes == 0 ? transfer->lead_bytes : 0;
  size_t most = transfer->chunk_bytes - lead_bytes;
  slot->transfer = transfer;
  slot->offset = transfer->issued_bytes;
  slot->bytes = left < most ? (size_t)left : most;
  slot->lead_bytes = lead_bytes;
  transfer->issued_bytes += slot->bytes;
  transfer->active++;
  ring_advance(transfer->ring);
}

/* --- picking: pure, so that has_order() is the same thing -----------------------------------------------------------
 */

static bool order_set(ladei_order *order, ladei_order_kind kind, const ladei_ring *ring, ladei_slot *slot,
                      ladei_batch *batch, ladei_core_transfer *transfer) {
  *order = (ladei_order){.kind = kind, .ring = (ladei_ring *)ring, .slot = slot, .batch = batch, .transfer = transfer};
  return true;
}

static bool pick_finish(const ladei_ring *ring, ladei_order *order) {
  ladei_core_transfer *transfer = TAILQ_FIRST(&ring->finished);
  return transfer != NULL && order_set(order, LADEI_ORDER_FINISH, ring, NULL, NULL, transfer);
}

/* The slot whose copy comes next: read already, or to the host a free one for the next chunk. */
static bool pick_copy(const ladei_ring *ring, ladei_order *order) {
  ladei_slot *slot;
  ladei_core_transfer *transfer;
  if (ring->direction == LADE_TO_DEVICE) {
    slot = TAILQ_FIRST(&ring->ready);
    transfer = slot != NULL ? slot->transfer : NULL;
  } else {
    transfer = ring->issuing;
    slot = transfer != NULL ? TAILQ_FIRST(&ring->free) : NULL;
  }
  if (slot == NULL || transfer->gate == LADEI_GATE_OPENING) {
    return false;
  }
  if (transfer->gate == LADEI_GATE_CLOSED) {
    return order_set(order, LADEI_ORDER_GATE, ring, NULL, NULL, transfer);
  }
  return order_set(order, LADEI_ORDER_COPY, ring, slot, NULL, transfer);
}

static bool pick_record(const ladei_ring *ring, unsigned least, ladei_order *order) {
  ladei_batch *batch = TAILQ_FIRST(&ring->idle);
  return ring->copied_count >= least && batch != NULL && order_set(order, LADEI_ORDER_RECORD, ring, NULL, batch, NULL);
}

static bool pick_read(const ladei_ring *ring, ladei_order *order) {
  ladei_core_transfer *transfer = ring->issuing;
  ladei_slot *slot = TAILQ_FIRST(&ring->free);
  return transfer != NULL && slot != NULL && !(transfer->ordered && transfer->host_busy) &&
         order_set(order, LADEI_ORDER_READ, ring, slot, NULL, transfer);
}

static bool pick_write(const ladei_ring *ring, ladei_order *order) {
  ladei_slot *slot;
  TAILQ_FOREACH (slot, &ring->landed, link) {
    const ladei_core_transfer *transfer = slot->transfer;
    if (!transfer->ordered || (!transfer->host_busy && slot->offset == transfer->host_bytes)) {
      return order_set(order, LADEI_ORDER_WRITE, ring, slot, NULL, slot->transfer);
    }
  }
  return false;
}

static bool pick_poll(const ladei_ring *ring, ladei_order *order) {
  ladei_batch *batch = TAILQ_FIRST(&ring->pending);
  return batch != NULL && batch->state == LADEI_BATCH_PENDING && !ring->poll_asleep &&
         order_set(order, LADEI_ORDER_POLL, ring, NULL, batch, NULL);
}

static bool pick_acquire(const ladei_ring *ring, ladei_order *order) {
  ladei_slot *slot = TAILQ_FIRST(&ring->empty);
  return ring->issuing != NULL && TAILQ_EMPTY(&ring->free) && slot != NULL && ring->blocks < ring->slot_limit &&
         order_set(order, LADEI_ORDER_ACQUIRE, ring, slot, NULL, NULL);
}

static bool pick_release_lost(const ladei_ring *ring, ladei_order *order) {
  ladei_slot *slot = TAILQ_FIRST(&ring->lost);
  if (slot == NULL) {
    return false;
  }
  order_set(order, LADEI_ORDER_RELEASE, ring, slot, NULL, NULL);
  order->in_flight = true;
  order->last_resort = true;
  return true;
}

/* With nothing left to begin: free blocks, and to the device those too that only copies read from. */
static bool pick_release(const ladei_ring *ring, ladei_order *order) {
  if (ring->issuing != NULL) {
    return false;
  }
  ladei_slot *slot = TAILQ_FIRST(&ring->free);
  if (slot != NULL) {
    return order_set(order, LADEI_ORDER_RELEASE, ring, slot, NULL, NULL);
  }
  for (unsigned i = 0; ring->direction == LADE_TO_DEVICE && i < ring->depth; i++) {
    slot = &ring->slots[i];
    bool copying = slot->state == LADEI_SLOT_COPIED || slot->state == LADEI_SLOT_COVERED;
    if (copying && slot->block != NULL && !slot->release_out && !slot->keep_block) {
      order_set(order, LADEI_ORDER_RELEASE, ring, slot, NULL, NULL);
      order->in_flight = true;
      return true;
    }
  }
  return false;
}

static bool ring_pick(const ladei_ring *ring, unsigned allow, ladei_order *order) {
  bool host = (allow & LADEI_ALLOW_HOST) != 0;
  bool covered = ring->recording > 0 || !TAILQ_EMPTY(&ring->pending);
  return pick_finish(ring, order) || pick_copy(ring, order) || pick_record(ring, ring->batch_slots, order) ||
         pick_poll(ring, order) || (host && ring->direction == LADE_TO_DEVICE && pick_read(ring, order)) ||
         (host && ring->direction == LADE_TO_HOST && pick_write(ring, order)) ||
         (!covered && pick_record(ring, 1, order)) || pick_acquire(ring, order) || pick_release_lost(ring, order) ||
         pick_release(ring, order);
}

static bool core_pick(const ladei_core *core, unsigned allow, ladei_order *order) {
  return ring_pick(&core->rings[core->turn], allow, order) || ring_pick(&core->rings[core->turn ^ 1u], allow, order);
}

bool ladei_core_has_order(const ladei_core *core, unsigned allow) {
  ladei_order order;
  return core_pick(core, allow, &order);
}

/* --- taking an order ------------------------------------------------------------------------------------------------
 */

static void take_copy(ladei_ring *ring, const ladei_order *order) {
  if (ring->direction == LADE_TO_DEVICE) {
    slot_take(&ring->ready, order->slot, LADEI_SLOT_COPYING);
  } else {
    chunk_begin(slot_take(&ring->free, order->slot, LADEI_SLOT_COPYING), order->transfer);
  }
}

static void take_record(ladei_ring *ring, ladei_batch *batch) {
  ladei_slot *slot;
  TAILQ_REMOVE(&ring->idle, batch, link);
  batch->state = LADEI_BATCH_RECORDING;
  batch->by_stream = false;
  TAILQ_CONCAT(&batch->slots, &ring->copied, link);
  TAILQ_FOREACH (slot, &batch->slots, link) {
    slot->state = LADEI_SLOT_COVERED;
  }
  ring->copied_count = 0;
  ring->recording++;
}

static void take_release(ladei_ring *ring, const ladei_order *order) {
  ladei_slot *slot = order->slot;
  slot->release_out = true;
  if (slot->state == LADEI_SLOT_FREE) {
    slot_take(&ring->free, slot, LADEI_SLOT_RELEASING);
  } else if (slot->state == LADEI_SLOT_LOST) {
    slot_take(&ring->lost, slot, LADEI_SLOT_RELEASING);
  }
}

static void core_take(ladei_core *core, const ladei_order *order) {
  ladei_ring *ring = order->ring;
  switch (order->kind) {
  case LADEI_ORDER_ACQUIRE:
    slot_take(&ring->empty, order->slot, LADEI_SLOT_ACQUIRING);
    ring->blocks++;
    break;
  case LADEI_ORDER_READ:
    order->transfer->host_busy = true;
    chunk_begin(slot_take(&ring->free, order->slot, LADEI_SLOT_READING), order->transfer);
    break;
  case LADEI_ORDER_GATE: order->transfer->gate = LADEI_GATE_OPENING; break;
  case LADEI_ORDER_COPY: take_copy(ring, order); break;
  case LADEI_ORDER_RECORD: take_record(ring, order->batch); break;
  case LADEI_ORDER_POLL: order->batch->state = LADEI_BATCH_POLLING; break;
  case LADEI_ORDER_WRITE:
    order->transfer->host_busy = true;
    slot_take(&ring->landed, order->slot, LADEI_SLOT_WRITING);
    break;
  case LADEI_ORDER_RELEASE: take_release(ring, order); break;
  case LADEI_ORDER_FINISH: TAILQ_REMOVE(&ring->finished, order->transfer, link); break;
  }
  core->orders_out++;
}

bool ladei_core_next(ladei_core *core, unsigned allow, ladei_order *out) {
  ladei_order order;
  if (!core_pick(core, allow, &order)) {
    return false;
  }
  core_take(core, &order);
  core->turn ^= 1u;
  *out = order;
  return true;
}

/* --- completing an order --------------------------------------------------------------------------------------------
 */

static unsigned complete_acquire(ladei_core *core, const ladei_order *order, lade_status status,
                                 const lade_error *error) {
  ladei_ring *ring = order->ring;
  if (status == LADE_OK) {
    order->slot->block = order->block;
    slot_to_free(order->slot);
    core->counters.blocks++;
    if (core->counters.blocks > core->counters.blocks_peak) {
      core->counters.blocks_peak = core->counters.blocks;
    }
    return 0;
  }
  ring->blocks--;
  slot_to_empty(order->slot);
  if (ring->blocks > 0) {
    /* Fewer blocks are slower, not wrong: go on with those there are. */
    ring->slot_limit = ring->blocks;
    return 0;
  }
  return transfer_fail_by(core, ring->issuing, error);
}

static unsigned complete_read(ladei_core *core, const ladei_order *order, lade_status status, const lade_error *error) {
  ladei_core_transfer *transfer = order->transfer;
  unsigned changed = 0;
  transfer->host_busy = false;
  order->ring->poll_asleep = false; /* it took some time */
  if (status != LADE_OK) {
    changed = transfer_fail_by(core, transfer, error);
  }
  if (transfer_failed(transfer)) {
    slot_to_free(order->slot);
    chunk_drop(transfer);
  } else {
    slot_put(&order->ring->ready, order->slot, LADEI_SLOT_READY);
  }
  return changed;
}

static unsigned complete_gate(ladei_core *core, const ladei_order *order, lade_status status, const lade_error *error) {
  ladei_core_transfer *transfer = order->transfer;
  transfer->gate = LADEI_GATE_OPEN;
  unsigned changed = status == LADE_OK ? 0 : transfer_fail_by(core, transfer, error);
  transfer_settle(transfer);
  return changed;
}

static unsigned complete_copy(ladei_core *core, const ladei_order *order, lade_status status, const lade_error *error) {
  ladei_core_transfer *transfer = order->transfer;
  if (status != LADE_OK) {
    unsigned changed = transfer_fail_by(core, transfer, error);
    slot_to_free(order->slot);
    chunk_drop(transfer);
    return changed;
  }
  core->counters.copies++;
  transfer->queued_bytes += order->slot->bytes;
  slot_put(&order->ring->copied, order->slot, LADEI_SLOT_COPIED);
  order->ring->copied_count++;
  return ladei_core_all_queued(transfer) ? LADEI_CHANGED_QUEUED : 0;
}

static unsigned batch_fail_transfers(ladei_core *core, ladei_batch *batch, const lade_error *error) {
  unsigned changed = 0;
  ladei_slot *slot;
  TAILQ_FOREACH (slot, &batch->slots, link) {
    changed |= transfer_fail_by(core, slot->transfer, error);
  }
  return changed;
}

static unsigned complete_record(ladei_core *core, const ladei_order *order, lade_status status,
                                const lade_error *error) {
  ladei_batch *batch = order->batch;
  unsigned changed = 0;
  order->ring->recording--;
  if (status == LADE_OK) {
    core->counters.events_recorded++;
  } else {
    changed = batch_fail_transfers(core, batch, error);
    batch->by_stream = true;
  }
  batch->state = LADEI_BATCH_PENDING;
  TAILQ_INSERT_TAIL(&order->ring->pending, batch, link);
  return changed;
}

/* The copy of a slot is known to be over. */
static void slot_land(ladei_core *core, ladei_ring *ring, ladei_slot *slot) {
  ladei_core_transfer *transfer = slot->transfer;
  if (!transfer_failed(transfer) && ring->direction == LADE_TO_HOST) {
    slot_put(&ring->landed, slot, LADEI_SLOT_LANDED);
    return;
  }
  if (!transfer_failed(transfer)) {
    transfer->done_bytes += slot->bytes;
    core->counters.bytes_completed += slot->bytes;
  }
  slot_retire(slot);
  chunk_drop(transfer);
}

/* Nothing can be learned about the copy of a slot, now or later: its block must not be used again from here. */
static void slot_lose(ladei_ring *ring, ladei_slot *slot) {
  if (slot->release_out) {
    slot->state = LADEI_SLOT_RELEASING;
    slot->lost = true;
  } else if (slot->block != NULL) {
    slot_put(&ring->lost, slot, LADEI_SLOT_LOST);
  } else {
    ladei_core_transfer *transfer = slot->transfer;
    slot_to_empty(slot);
    chunk_drop(transfer);
  }
}

static unsigned complete_poll(ladei_core *core, const ladei_order *order, lade_status status, const lade_error *error) {
  ladei_batch *batch = order->batch;
  ladei_ring *ring = order->ring;
  batch->state = LADEI_BATCH_PENDING;
  core->counters.events_queried++;
  if (status == LADE_NOT_READY) {
    ring->poll_asleep = true;
    return 0;
  }
  unsigned changed = status == LADE_OK ? 0 : batch_fail_transfers(core, batch, error);
  if (status != LADE_OK && !batch->by_stream) {
    batch->by_stream = true;
    return changed;
  }
  TAILQ_REMOVE(&ring->pending, batch, link);
  for (ladei_slot *slot; (slot = TAILQ_FIRST(&batch->slots)) != NULL;) {
    TAILQ_REMOVE(&batch->slots, slot, link);
    if (status == LADE_OK) {
      slot_land(core, ring, slot);
    } else {
      slot_lose(ring, slot);
    }
  }
  batch->state = LADEI_BATCH_IDLE;
  TAILQ_INSERT_HEAD(&ring->idle, batch, link);
  return changed;
}

static unsigned complete_write(ladei_core *core, const ladei_order *order, lade_status status,
                               const lade_error *error) {
  ladei_core_transfer *transfer = order->transfer;
  unsigned changed = 0;
  transfer->host_busy = false;
  order->ring->poll_asleep = false; /* it took some time */
  if (status != LADE_OK) {
    changed = transfer_fail_by(core, transfer, error);
  }
  if (!transfer_failed(transfer)) {
    transfer->host_bytes += order->slot->bytes;
    transfer->done_bytes += order->slot->bytes;
    core->counters.bytes_completed += order->slot->bytes;
  }
  slot_to_free(order->slot);
  chunk_drop(transfer);
  return changed;
}

static void complete_release(ladei_core *core, const ladei_order *order, lade_status status) {
  ladei_slot *slot = order->slot;
  slot->release_out = false;
  if (status == LADE_OK) {
    slot->block = NULL;
    order->ring->blocks--;
    core->counters.blocks--;
  } else {
    slot->keep_block = true;
  }
  if (slot->state != LADEI_SLOT_RELEASING) {
    return;
  }
  if (slot->block != NULL && slot->lost) {
    slot_put(&order->ring->lost, slot, LADEI_SLOT_LOST);
    return;
  }
  ladei_core_transfer *transfer = slot->transfer;
  slot_retire(slot);
  if (transfer != NULL) {
    chunk_drop(transfer);
  }
}

static unsigned complete_finish(ladei_core *core, ladei_core_transfer *transfer, lade_status status,
                                const lade_error *error) {
  if (status != LADE_OK && !transfer_failed(transfer)) {
    transfer->error = *error;
  }
  transfer->finished = true;
  core->unfinished--;
  if (transfer_failed(transfer)) {
    core->counters.transfers_failed++;
  } else {
    core->counters.transfers_completed++;
  }
  return LADEI_CHANGED_FINISHED;
}

unsigned ladei_core_complete(ladei_core *core, const ladei_order *order, lade_status status, const lade_error *error) {
  core->orders_out--;
  switch (order->kind) {
  case LADEI_ORDER_ACQUIRE: return complete_acquire(core, order, status, error);
  case LADEI_ORDER_READ: return complete_read(core, order, status, error);
  case LADEI_ORDER_GATE: return complete_gate(core, order, status, error);
  case LADEI_ORDER_COPY: return complete_copy(core, order, status, error);
  case LADEI_ORDER_RECORD: return complete_record(core, order, status, error);
  case LADEI_ORDER_POLL: return complete_poll(core, order, status, error);
  case LADEI_ORDER_WRITE: return complete_write(core, order, status, error);
  case LADEI_ORDER_RELEASE: complete_release(core, order, status); return 0;
  case LADEI_ORDER_FINISH: return complete_finish(core, order->transfer, status, error);
  }
  return 0;
}

bool ladei_core_polls(const ladei_core *core) {
  return !TAILQ_EMPTY(&core->rings[0].pending) || !TAILQ_EMPTY(&core->rings[1].pending);
}

void ladei_core_poll_wake(ladei_core *core) {
  core->rings[0].poll_asleep = false;
  core->rings[1].poll_asleep = false;
}

/* --- checking -------------------------------------------------------------------------------------------------------
 */

static unsigned list_count(const struct ladei_slot_list *list, ladei_slot_state state) {
  unsigned count = 0;
  const ladei_slot *slot;
  TAILQ_FOREACH (slot, list, link) {
    if (slot->state != state) {
      return UINT32_MAX;
    }
    count++;
  }
  return count;
}

static unsigned state_count(const ladei_ring *ring, ladei_slot_state state) {
  unsigned count = 0;
  for (unsigned i = 0; i < ring->depth; i++) {
    count += ring->slots[i].state == state ? 1 : 0;
  }
  return count;
}

static lade_status broken(const ladei_ring *ring, const char *what) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "pipeline core, ring %s: %s",
                     ring->direction == LADE_TO_DEVICE ? "H2D" : "D2H", what);
}

static lade_status check_lists(const ladei_ring *ring) {
  unsigned covered = 0;
  for (unsigned i = 0; i < ring->batch_count; i++) {
    unsigned count = list_count(&ring->batches[i].slots, LADEI_SLOT_COVERED);
    if (count == UINT32_MAX || (count == 0) != (ring->batches[i].state == LADEI_BATCH_IDLE)) {
      return broken(ring, "I1: a batch holds slots that are not covered, or none while it is in use");
    }
    covered += count;
  }
  if (list_count(&ring->empty, LADEI_SLOT_EMPTY) != state_count(ring, LADEI_SLOT_EMPTY) ||
      list_count(&ring->free, LADEI_SLOT_FREE) != state_count(ring, LADEI_SLOT_FREE) ||
      list_count(&ring->ready, LADEI_SLOT_READY) != state_count(ring, LADEI_SLOT_READY) ||
      list_count(&ring->copied, LADEI_SLOT_COPIED) != state_count(ring, LADEI_SLOT_COPIED) ||
      list_count(&ring->landed, LADEI_SLOT_LANDED) != state_count(ring, LADEI_SLOT_LANDED) ||
      list_count(&ring->lost, LADEI_SLOT_LOST) != state_count(ring, LADEI_SLOT_LOST) ||
      covered != state_count(ring, LADEI_SLOT_COVERED)) {
    return broken(ring, "I1: slots in a state and slots in its list differ");
  }
  return LADE_OK;
}

static lade_status check_blocks(const ladei_ring *ring) {
  unsigned blocks = 0;
  for (unsigned i = 0; i < ring->depth; i++) {
    const ladei_slot *slot = &ring->slots[i];
    bool copying = slot->state == LADEI_SLOT_COPIED || slot->state == LADEI_SLOT_COVERED;
    bool may_lack = slot->state == LADEI_SLOT_EMPTY || slot->state == LADEI_SLOT_ACQUIRING || copying;
    if (slot->block == NULL && !may_lack) {
      return broken(ring, "I2: a slot in use has no block");
    }
    if (slot->block != NULL && slot->state == LADEI_SLOT_EMPTY) {
      return broken(ring, "I2: an empty slot has a block");
    }
    blocks += slot->block != NULL || slot->state == LADEI_SLOT_ACQUIRING ? 1 : 0;
  }
  return blocks == ring->blocks && blocks <= ring->depth ? LADE_OK : broken(ring, "I4: blocks are not those counted");
}

static lade_status check_transfer(const ladei_ring *ring, const ladei_core_transfer *transfer) {
  unsigned active = 0;
  for (unsigned i = 0; i < ring->depth; i++) {
    const ladei_slot *slot = &ring->slots[i];
    bool waits = slot->state == LADEI_SLOT_READY || slot->state == LADEI_SLOT_LANDED;
    if (slot->transfer == transfer) {
      active++;
      if (waits && transfer_failed(transfer)) {
        return broken(ring, "I5: a failed transfer has a chunk waiting");
      }
    }
  }
  if (active != transfer->active || transfer->settled) {
    return broken(ring, "I3: active chunks are not those counted, or a settled transfer is queued");
  }
  if (transfer->done_bytes > transfer->queued_bytes || transfer->queued_bytes > transfer->issued_bytes ||
      transfer->issued_bytes > transfer->bytes) {
    return broken(ring, "I6: more bytes done than queued, or queued than begun");
  }
  return LADE_OK;
}

lade_status ladei_core_check(const ladei_core *core) {
  lade_status status = LADE_OK;
  for (unsigned i = 0; i < 2 && status == LADE_OK; i++) {
    const ladei_ring *ring = &core->rings[i];
    const ladei_core_transfer *transfer;
    const ladei_core_transfer *issuing = NULL;
    status = check_lists(ring);
    if (status == LADE_OK) {
      status = check_blocks(ring);
    }
    TAILQ_FOREACH (transfer, &ring->queue, link) {
      if (status == LADE_OK) {
        status = check_transfer(ring, transfer);
      }
      if (issuing == NULL && !transfer_failed(transfer) && transfer->issued_bytes < transfer->bytes) {
        issuing = transfer;
      }
    }
    if (status == LADE_OK && issuing != ring->issuing) {
      status = broken(ring, "I7: issuing is not the first transfer with chunks to begin");
    }
  }
  return status;
}

/* --- life -----------------------------------------------------------------------------------------------------------
 */

static lade_status ring_init(ladei_ring *ring, lade_direction direction, unsigned depth) {
  *ring = (ladei_ring){.direction = direction, .depth = depth, .slot_limit = depth};
  ring->batch_slots = depth < BATCH_PART ? 1 : depth / BATCH_PART;
  ring->batch_count = depth < BATCHES_PER_RING ? depth : BATCHES_PER_RING;
  ring->slots = calloc(depth, sizeof *ring->slots);
  ring->batches = calloc(ring->batch_count, sizeof *ring->batches);
  struct ladei_slot_list *lists[] = {&ring->empty,  &ring->free,   &ring->ready,
                                     &ring->copied, &ring->landed, &ring->lost};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    TAILQ_INIT(lists[i]);
  }
  TAILQ_INIT(&ring->idle);
  TAILQ_INIT(&ring->pending);
  TAILQ_INIT(&ring->queue);
  TAILQ_INIT(&ring->finished);
  if (ring->slots == NULL || ring->batches == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pipeline: no memory for a ring of %u slots", depth);
  }
  for (unsigned i = 0; i < depth; i++) {
    ring->slots[i].ring = ring;
    slot_to_empty(&ring->slots[i]);
  }
  for (unsigned i = 0; i < ring->batch_count; i++) {
    ladei_batch *batch = &ring->batches[i];
    batch->ring = ring;
    batch->index = i;
    TAILQ_INIT(&batch->slots);
    TAILQ_INSERT_TAIL(&ring->idle, batch, link);
  }
  return LADE_OK;
}

lade_status ladei_core_init(ladei_core *core, unsigned depth) {
  *core = (ladei_core){.turn = 0};
  lade_status status = ring_init(&core->rings[0], LADE_TO_DEVICE, depth);
  if (status == LADE_OK) {
    status = ring_init(&core->rings[1], LADE_TO_HOST, depth);
  }
  if (status != LADE_OK) {
    ladei_core_destroy(core);
  }
  return status;
}

void ladei_core_destroy(ladei_core *core) {
  for (unsigned i = 0; i < 2; i++) {
    free(core->rings[i].slots);
    free(core->rings[i].batches);
    core->rings[i].slots = NULL;
    core->rings[i].batches = NULL;
  }
}
