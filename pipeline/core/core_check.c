/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts the invariants of the state machine, as core_orders.c states them, from the slots and lists themselves.
 *
 * Locks: none; see core_orders.c.
 */
#include "base/error.h"
#include "pipeline/core/core_internal.h"

static unsigned list_count(const struct ladei_slot_list *list, ladei_pipe_slot_state state) {
  unsigned count = 0;
  const ladei_pipe_slot *slot;
  TAILQ_FOREACH (slot, list, link) {
    if (slot->state != state) return UINT32_MAX;
    count++;
  }
  return count;
}

static unsigned state_count(const ladei_pipe_ring *ring, ladei_pipe_slot_state state) {
  unsigned count = 0;
  for (unsigned i = 0; i < ring->depth; i++) count += ring->slots[i].state == state ? 1 : 0;
  return count;
}

static lade_status broken(const ladei_pipe_ring *ring, const char *what) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "pipeline core, ring %s: %s",
                     ring->direction == LADE_TO_DEVICE ? "H2D" : "D2H", what);
}

/* I11, of the bytes. */
static lade_status check_under_way(const ladei_pipe_ring *ring) {
  uint64_t bytes[LADEI_PIPE_COPY_STREAMS] = {0};
  unsigned copying[LADEI_PIPE_COPY_STREAMS] = {0}; /* first ones of orders */
  for (unsigned i = 0; i < ring->depth; i++) {
    const ladei_pipe_slot *slot = &ring->slots[i];
    if (slot->state == LADEI_PIPE_SLOT_COPIED || slot->state == LADEI_PIPE_SLOT_COVERED)
      bytes[slot->copy_stream->index] += slot->bytes;
    copying[slot->copy_stream != NULL ? slot->copy_stream->index : 0] += slot->state == LADEI_PIPE_SLOT_COPYING ? 1 : 0;
    copying[slot->joined != NULL ? slot->joined->copy_stream->index : 0] -= slot->joined != NULL ? 1 : 0;
    if (slot->joined != NULL &&
        (slot->state != LADEI_PIPE_SLOT_COPYING || slot->joined->state != LADEI_PIPE_SLOT_COPYING))
      return broken(ring, "I11: a slot is joined to another, and no order is out for both");
  }
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS; i++)
    if (bytes[i] != ring->copy_streams[i].under_way_bytes || copying[i] != ring->copy_streams[i].copying)
      return broken(ring, "I11: bytes under way on a copy stream, or COPY orders for it, are not those counted");
  return LADE_OK;
}

/* Adds the copy stream's slots in either state. */
static lade_status check_copy_stream(const ladei_pipe_copy_stream *copy_stream, unsigned *copied, unsigned *covered) {
  unsigned own = list_count(&copy_stream->copied, LADEI_PIPE_SLOT_COPIED);
  bool marked = (copy_stream->ring->copy_streams_copied >> copy_stream->index & 1u) != 0;
  if (own != copy_stream->copied_count || marked != (own > 0))
    return broken(copy_stream->ring, "I1: a copy stream's copied slots are not those counted");
  *copied += own;
  for (unsigned i = 0; i < LADEI_PIPE_BATCHES; i++) {
    unsigned count = list_count(&copy_stream->batches[i].slots, LADEI_PIPE_SLOT_COVERED);
    if (count == UINT32_MAX || (count == 0) != (copy_stream->batches[i].state == LADEI_PIPE_BATCH_IDLE))
      return broken(copy_stream->ring, "I1: a batch holds slots that are not covered, or none while it is in use");
    *covered += count;
  }
  return LADE_OK;
}

static lade_status check_lists(const ladei_pipe_ring *ring) {
  unsigned copied = 0;
  unsigned covered = 0;
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS; i++)
    LADEI_TRY(check_copy_stream(&ring->copy_streams[i], &copied, &covered));
  if (list_count(&ring->lists.empty, LADEI_PIPE_SLOT_EMPTY) != state_count(ring, LADEI_PIPE_SLOT_EMPTY) ||
      list_count(&ring->lists.free, LADEI_PIPE_SLOT_FREE) != state_count(ring, LADEI_PIPE_SLOT_FREE) ||
      list_count(&ring->lists.ready, LADEI_PIPE_SLOT_READY) != state_count(ring, LADEI_PIPE_SLOT_READY) ||
      copied != state_count(ring, LADEI_PIPE_SLOT_COPIED) ||
      list_count(&ring->lists.landed, LADEI_PIPE_SLOT_LANDED) != state_count(ring, LADEI_PIPE_SLOT_LANDED) ||
      list_count(&ring->lists.lost, LADEI_PIPE_SLOT_LOST) != state_count(ring, LADEI_PIPE_SLOT_LOST) ||
      covered != state_count(ring, LADEI_PIPE_SLOT_COVERED))
    return broken(ring, "I1: slots in a state and slots in its list differ");
  return LADE_OK;
}

static lade_status check_blocks(const ladei_pipe_ring *ring) {
  unsigned blocks = 0;
  for (unsigned i = 0; i < ring->depth; i++) {
    const ladei_pipe_slot *slot = &ring->slots[i];
    bool copying = slot->state == LADEI_PIPE_SLOT_COPIED || slot->state == LADEI_PIPE_SLOT_COVERED;
    bool may_lack = slot->state == LADEI_PIPE_SLOT_EMPTY || slot->state == LADEI_PIPE_SLOT_ACQUIRING || copying;
    if (slot->transfer != NULL && slot->transfer->unstaged) may_lack = true;
    if (slot->block == NULL && !may_lack) return broken(ring, "I2: a slot in use has no block");
    if (slot->block != NULL && slot->state == LADEI_PIPE_SLOT_EMPTY)
      return broken(ring, "I2: an empty slot has a block");
    blocks += slot->block != NULL || slot->state == LADEI_PIPE_SLOT_ACQUIRING ? 1 : 0;
  }
  return blocks == ring->blocks.count && blocks <= ring->depth ? LADE_OK
                                                               : broken(ring, "I4: blocks are not those counted");
}

static lade_status check_transfer(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  unsigned active = 0;
  unsigned stalled = 0;
  unsigned host_out = 0;
  for (unsigned i = 0; i < ring->depth; i++) {
    const ladei_pipe_slot *slot = &ring->slots[i];
    bool waits = slot->state == LADEI_PIPE_SLOT_READY || slot->state == LADEI_PIPE_SLOT_LANDED;
    if (slot->transfer == transfer) {
      active++;
      host_out += slot->state == LADEI_PIPE_SLOT_READING || slot->state == LADEI_PIPE_SLOT_WRITING ? 1 : 0;
      stalled += slot->stalled ? 1 : 0;
      if (waits && ladei_pipe_transfer_failed(transfer))
        return broken(ring, "I5: a failed transfer has a chunk waiting");
    }
  }
  if (stalled != transfer->stalled) return broken(ring, "I9: stalled calls are not those counted");
  if (host_out != transfer->host_out)
    return broken(ring, "I9: a transfer's host halves under way are not those counted");
  if (active != transfer->active || transfer->settled)
    return broken(ring, "I3: active chunks are not those counted, or a settled transfer is queued");
  if (transfer->done_bytes > transfer->queued_bytes || transfer->queued_bytes > transfer->issued_bytes ||
      transfer->issued_bytes > transfer->bytes)
    return broken(ring, "I6: more bytes done than queued, or queued than begun");
  return LADE_OK;
}

static lade_status check_host_halves(const ladei_pipe_ring *ring) {
  unsigned host_out = 0;
  unsigned calls_out = 0;
  unsigned calls_active = 0;
  for (unsigned i = 0; i < ring->depth; i++) {
    const ladei_pipe_slot *slot = &ring->slots[i];
    bool out = slot->state == LADEI_PIPE_SLOT_READING || slot->state == LADEI_PIPE_SLOT_WRITING;
    if (slot->stalled && !(out && slot->transfer->calls))
      return broken(ring, "I9: a slot is stalled that is in no call");
    host_out += out && ladei_pipe_transfer_is_in_window(slot->transfer) && !slot->stalled ? 1 : 0;
    calls_out += out && slot->transfer->calls ? 1 : 0;
    calls_active += slot->transfer != NULL && slot->transfer->calls ? 1 : 0;
  }
  return host_out == ring->host.out && calls_out == ring->calls.out && calls_active == ring->calls.active
             ? LADE_OK
             : broken(ring, "I9: host halves or calls under way are not those counted");
}

/* Whether it is there; false too where the list is not in the order of submission. */
static bool list_has(const struct ladei_core_transfer_list *list, const ladei_pipe_core_transfer *transfer) {
  bool found = false;
  const ladei_pipe_core_transfer *other;
  TAILQ_FOREACH (other, list, fair_queue_link) {
    const ladei_pipe_core_transfer *next = TAILQ_NEXT(other, fair_queue_link);
    if (next != NULL && next->number <= other->number) return false;
    found = found || other == transfer;
  }
  return found;
}

/* I7 in core_schedule.c, of one transfer. */
static lade_status check_waiting(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  bool unissued = ladei_pipe_transfer_is_unissued(transfer);
  bool waiting = list_has(&ring->schedule.levels[transfer->level].fair_queues[transfer->fair_queue].waiting, transfer);
  bool held = list_has(&ring->schedule.held, transfer);
  if (waiting != transfer->waiting || held != transfer->held || (waiting && held))
    return broken(ring, "I7: a transfer is not in the list that it says, or in two");
  bool unasked = transfer->dependency == LADEI_PIPE_DEPENDENCY_UNKNOWN && !ladei_pipe_transfer_failed(transfer);
  if (transfer->asks != (transfer->read_arrives && ring->direction == LADE_TO_DEVICE &&
                         (unasked || transfer->dependency == LADEI_PIPE_DEPENDENCY_QUERYING)) ||
      transfer->asks != list_has(&ring->schedule.asking, transfer))
    return broken(ring, "I7: a transfer whose reads wait for its dependency is not asked, or another is");
  if (transfer->left_bytes != (unissued ? transfer->bytes - transfer->issued_bytes : 0))
    return broken(ring, "I7: a transfer's bytes to begin are not those counted");
  if (unissued != transfer->unissued || (waiting || held) != ladei_pipe_transfer_ready(transfer))
    return broken(ring, "I7: a transfer waits that could begin nothing, or does not and could");
  return LADE_OK;
}

static lade_status check_queue(const ladei_pipe_ring *ring) {
  lade_status status = LADE_OK;
  const ladei_pipe_core_transfer *transfer;
  unsigned unissued = 0;
  unsigned may_stall = 0;
  unsigned on_copy_streams = 0;
  unsigned active = 0;
  uint64_t left_bytes = 0;
  TAILQ_FOREACH (transfer, &ring->schedule.queue, link) {
    active += transfer->active;
    left_bytes += transfer->left_bytes;
    if (status == LADE_OK) status = check_transfer(ring, transfer);
    if (status == LADE_OK) status = check_waiting(ring, transfer);
    unissued += transfer->unissued ? 1 : 0;
    may_stall += ladei_pipe_transfer_may_stall(transfer) ? transfer->active : 0;
    on_copy_streams += ladei_pipe_copy_stream_waits(transfer->copy_stream) ? 1 : 0;
  }
  for (unsigned i = 1; i < LADEI_PIPE_COPY_STREAM_SHORT; i++) on_copy_streams -= ring->copy_streams[i].transfers;
  if (status == LADE_OK && (may_stall != ring->schedule.may_stall || on_copy_streams != 0))
    status = broken(ring, "I3: slots that may stall, or transfers in copy streams, are not those counted");
  if (status == LADE_OK && active != ring->active) status = broken(ring, "I3: slots with chunks are not those counted");
  if (status == LADE_OK && (unissued != ring->schedule.unissued || left_bytes != ring->schedule.left_bytes))
    status = broken(ring, "I7: transfers with chunks to begin are not those counted");
  return status;
}

static lade_status check_choice(const ladei_pipe_ring *ring) {
  const ladei_pipe_core_transfer *first = NULL;
  for (unsigned i = 0; i < LADEI_PIPE_PRIORITIES; i++) {
    const ladei_pipe_priority *level = &ring->schedule.levels[i];
    for (unsigned k = 0; k < LADEI_PIPE_FAIR_QUEUES; k++)
      if (TAILQ_EMPTY(&level->fair_queues[k].waiting) == ((level->active >> k & 1u) != 0))
        return broken(ring, "I7: a fair queue is active without transfers, or has some and is not");
    first = level->active != 0 ? ladei_pipe_priority_first(level) : first;
  }
  if (first != ring->schedule.issuing)
    return broken(ring, "I7: issuing is not the first of the fair queue served least");
  if (first != NULL && ladei_pipe_transfer_has_share(first))
    return broken(ring, "I7: the transfer that begins the next chunk has its share");
  const ladei_pipe_core_transfer *held;
  TAILQ_FOREACH (held, &ring->schedule.held, fair_queue_link)
    if (first == NULL && !ladei_pipe_transfer_has_share(held))
      return broken(ring, "I7: nothing begins, and a transfer is held that could");
  const ladei_pipe_slot *slot;
  TAILQ_FOREACH (slot, &ring->lists.ready, link) {
    const ladei_pipe_slot *next = TAILQ_NEXT(slot, link);
    if (next != NULL && next->transfer->level > slot->transfer->level)
      return broken(ring, "I8: a ready chunk is behind one of a lower level");
  }
  return LADE_OK;
}

lade_status ladei_pipe_core_check(const ladei_pipe_core *core) {
  lade_status status = LADE_OK;
  for (unsigned i = 0; i < 2 && status == LADE_OK; i++) {
    const ladei_pipe_ring *ring = &core->rings[i];
    status = check_lists(ring);
    if (status == LADE_OK) status = check_under_way(ring);
    if (status == LADE_OK) status = check_blocks(ring);
    if (status == LADE_OK) status = check_host_halves(ring);
    if (status == LADE_OK) status = check_queue(ring);
    if (status == LADE_OK) status = check_choice(ring);
  }
  return status;
}
