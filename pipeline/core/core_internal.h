/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by core_orders.c, core_ring.c, core_schedule.c, core_pick.c and core_check.c. */
#ifndef LADE_PIPELINE_CORE_CORE_INTERNAL_H
#define LADE_PIPELINE_CORE_CORE_INTERNAL_H

#include "pipeline/core/core.h"

static inline bool ladei_pipe_transfer_failed(const ladei_pipe_core_transfer *transfer) {
  return transfer->error.status != LADE_OK;
}

/* Blocks that the ring may hold now, beside those that may stall. */
static inline unsigned ladei_pipe_ring_room(const ladei_pipe_ring *ring) {
  unsigned wanted = ring->host.window + ring->blocks.ahead;
  return wanted < ring->blocks.limit ? wanted : ring->blocks.limit;
}

/* One of those that wait for streams of the caller's. */
static inline bool ladei_pipe_copy_stream_waits(const ladei_pipe_copy_stream *copy_stream) {
  return copy_stream->index > 0 && copy_stream->index < LADEI_PIPE_COPY_STREAM_SHORT;
}

/* Whether the transfer's copies go to the first copy stream, after all that is queued there. */
static inline bool ladei_pipe_transfer_queues_first(const ladei_pipe_core_transfer *transfer) {
  return transfer->dependency == LADEI_PIPE_DEPENDENCY_NONE &&
         transfer->copy_stream == &transfer->ring->copy_streams[0];
}

/* Whether the copy of the READY slot may be queued together with others: Note [Joined copies] in core_pick.c. */
static inline bool ladei_pipe_slot_joins(const ladei_pipe_slot *slot) {
  const ladei_pipe_core_transfer *transfer = slot->transfer;
  return transfer->joins && !transfer->unstaged && ladei_pipe_transfer_queues_first(transfer);
}

/* Nothing of it is under way, nor is about to be. */
static inline bool ladei_pipe_copy_stream_rests(const ladei_pipe_copy_stream *copy_stream) {
  return copy_stream->copying == 0 && copy_stream->under_way_bytes == 0;
}

/* Bytes under way of copies that neither wait nor pass. */
static inline uint64_t ladei_pipe_ring_first_bytes(const ladei_pipe_ring *ring) {
  return ring->copy_streams[0].under_way_bytes + ring->copy_streams[LADEI_PIPE_COPY_STREAM_SECOND].under_way_bytes;
}

/* The copy stream for the next copy of a transfer; NULL: it waits for the end of a turn. */
ladei_pipe_copy_stream *ladei_pipe_turn_stream(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer);
/* Bytes of a turn of the transfer, about; 0: no limit. Those of background transfers are half as long. */
static inline uint64_t ladei_pipe_turn_bytes(const ladei_pipe_core_transfer *transfer) {
  uint64_t most = transfer->ring->turns.most_bytes;
  return most > 0 && transfer->level < LADEI_PIPE_PRIORITY_NORMAL ? most / 2 + 1 : most;
}

/* Bytes of the transfer that the copy stream may queue until its turn is over: Note [Turns] in core_pick.c. UINT64_MAX: no
 * limit. */
uint64_t ladei_pipe_turn_left(const ladei_pipe_core_transfer *transfer, const ladei_pipe_copy_stream *copy_stream);

/* Where the copies of a transfer go that waits for no stream; of the first copy stream and the second, the first. */
ladei_pipe_copy_stream *ladei_pipe_copy_stream_of(ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer);

/* Has chunks to begin, now or later. */
static inline bool ladei_pipe_transfer_is_unissued(const ladei_pipe_core_transfer *transfer) {
  return !ladei_pipe_transfer_failed(transfer) && transfer->issued_bytes < transfer->bytes;
}

/* Its chunks begin with their copies. */
static inline bool ladei_pipe_transfer_copies_first(const ladei_pipe_core_transfer *transfer) {
  return transfer->ring->direction == LADE_TO_HOST || transfer->no_host;
}

/* Has chunks to begin, and nothing of its own comes first: a host half in order, a dependency of its reads, or a
 * question about that of its copies, which a driver may take long to answer. */
static inline bool ladei_pipe_transfer_ready(const ladei_pipe_core_transfer *transfer) {
  bool host_first = transfer->ordered && transfer->ring->direction == LADE_TO_DEVICE && transfer->host_busy;
  bool answer_first =
      transfer->dependency == LADEI_PIPE_DEPENDENCY_QUERYING && ladei_pipe_transfer_copies_first(transfer);
  return ladei_pipe_transfer_is_unissued(transfer) && !host_first && !answer_first && !transfer->asks;
}

/* Its host halves are as many as the window lets out. */
static inline bool ladei_pipe_transfer_is_in_window(const ladei_pipe_core_transfer *transfer) {
  return !transfer->ordered && !transfer->remote;
}

/* See Note [Stalled transfers]. */
static inline bool ladei_pipe_transfer_may_stall(const ladei_pipe_core_transfer *transfer) {
  bool calls_can_stall = transfer->calls && (transfer->stalled > 0 || !transfer->answered ||
                                             (transfer->ordered && transfer->ring->direction == LADE_TO_HOST));
  return transfer->dependency != LADEI_PIPE_DEPENDENCY_NONE || transfer->remote || calls_can_stall;
}

/* See Note [Copies under way]. */
static inline bool ladei_pipe_transfer_is_far_ahead(const ladei_pipe_core_transfer *transfer) {
  enum { BYTES_UNDER_WAY = 32 << 20 };
  return transfer->no_host && transfer->issued_bytes - transfer->done_bytes > BYTES_UNDER_WAY;
}

/* Calls have all slots that they may have: to the device those under way, to the host also those yet to be taken. */
static inline bool ladei_pipe_ring_calls_are_full(const ladei_pipe_ring *ring) {
  unsigned most = ring->blocks.limit > 2 ? ring->blocks.limit - 1 : ring->blocks.limit;
  unsigned taken = ring->direction == LADE_TO_DEVICE ? ring->calls.out : ring->calls.active;
  return taken >= most || ring->calls.out >= ring->calls.most;
}

/* Begins no chunk until some of its own, or of others of the kind, are over. */
static inline bool ladei_pipe_transfer_has_share(const ladei_pipe_core_transfer *transfer) {
  const ladei_pipe_ring *ring = transfer->ring;
  if (!transfer->calls && !transfer->remote && transfer->dependency == LADEI_PIPE_DEPENDENCY_NONE)
    return ladei_pipe_transfer_is_far_ahead(transfer);
  if (transfer->calls && ladei_pipe_ring_calls_are_full(ring)) return true;
  unsigned most = ring->blocks.limit > 1 ? ring->blocks.limit - 1 : 1;
  most -= (transfer->calls || transfer->remote) && most > 1 ? 1 : 0;
  bool can_stall = ladei_pipe_transfer_may_stall(transfer);
  bool all_slots = can_stall && (transfer->active + ring->schedule.may_stall >= most ||
                                 transfer->active >= ladei_pipe_ring_room(ring));
  return all_slots || ladei_pipe_transfer_is_far_ahead(transfer);
}

/* Chooses the transfer that begins the next chunk, after anything that I7 (core_schedule.c) speaks of has changed. */
void ladei_pipe_ring_choose(ladei_pipe_ring *ring);
/* The same after a transfer has changed. */
void ladei_pipe_transfer_update(ladei_pipe_core_transfer *transfer);

/* First transfer of the fair queue that was served least; NULL: none waits. */
ladei_pipe_core_transfer *ladei_pipe_priority_first(const ladei_pipe_priority *level);

/* The most useful order, not taken yet. Pure. */
bool ladei_pipe_core_pick(const ladei_pipe_core *core, unsigned allow, ladei_pipe_order *out);
/* The same of one ring. */
bool ladei_pipe_ring_pick(const ladei_pipe_ring *ring, unsigned allow, ladei_pipe_order *out);

/* --- I10: from which state to which ------------------------------------------------------------------------------- */

/* I10, of slots. */
static inline bool ladei_pipe_slot_may_become(ladei_pipe_slot_state from, ladei_pipe_slot_state to) {
#define STATE(name) (1u << LADEI_PIPE_SLOT_##name)
  static const uint16_t next[] = {
      [LADEI_PIPE_SLOT_EMPTY] = STATE(ACQUIRING) | STATE(READING) | STATE(COPYING), /* the latter two: unstaged */
      [LADEI_PIPE_SLOT_ACQUIRING] = STATE(FREE) | STATE(EMPTY),
      [LADEI_PIPE_SLOT_FREE] = STATE(READING) | STATE(COPYING) | STATE(RELEASING),
      [LADEI_PIPE_SLOT_READING] = STATE(READY) | STATE(FREE) | STATE(EMPTY),
      [LADEI_PIPE_SLOT_READY] = STATE(COPYING) | STATE(FREE) | STATE(EMPTY),
      [LADEI_PIPE_SLOT_COPYING] =
          STATE(COPIED) | STATE(FREE) | STATE(EMPTY) | STATE(READY), /* the latter: joined in vain */
      [LADEI_PIPE_SLOT_COPIED] = STATE(COVERED),
      [LADEI_PIPE_SLOT_COVERED] = STATE(LANDED) | STATE(FREE) | STATE(EMPTY) | STATE(RELEASING) | STATE(LOST),
      [LADEI_PIPE_SLOT_LANDED] = STATE(WRITING) | STATE(FREE) | STATE(EMPTY),
      [LADEI_PIPE_SLOT_WRITING] = STATE(FREE) | STATE(EMPTY),
      [LADEI_PIPE_SLOT_LOST] = STATE(RELEASING),
      [LADEI_PIPE_SLOT_RELEASING] = STATE(EMPTY) | STATE(FREE) | STATE(LOST),
  };
#undef STATE
  return (next[from] >> to & 1u) != 0;
}

/* I10, of stream dependencies. */
static inline bool ladei_pipe_dependency_may_become(ladei_pipe_dependency from, ladei_pipe_dependency to) {
  switch (from) {
  case LADEI_PIPE_DEPENDENCY_NONE: return false;
  case LADEI_PIPE_DEPENDENCY_UNKNOWN: return to == LADEI_PIPE_DEPENDENCY_QUERYING;
  case LADEI_PIPE_DEPENDENCY_QUERYING:
    return to == LADEI_PIPE_DEPENDENCY_AWAITED || to == LADEI_PIPE_DEPENDENCY_NONE ||
           to == LADEI_PIPE_DEPENDENCY_UNKNOWN; /* asked in vain */
  case LADEI_PIPE_DEPENDENCY_AWAITED: return to == LADEI_PIPE_DEPENDENCY_NONE;
  }
  return false;
}

/* I10, of batches. */
static inline bool ladei_pipe_batch_may_become(ladei_pipe_batch_state from, ladei_pipe_batch_state to) {
  switch (from) {
  case LADEI_PIPE_BATCH_IDLE: return to == LADEI_PIPE_BATCH_RECORDING;
  case LADEI_PIPE_BATCH_RECORDING: return to == LADEI_PIPE_BATCH_PENDING;
  case LADEI_PIPE_BATCH_PENDING: return to == LADEI_PIPE_BATCH_POLLING || to == LADEI_PIPE_BATCH_IDLE;
  case LADEI_PIPE_BATCH_POLLING: return to == LADEI_PIPE_BATCH_PENDING;
  }
  return false;
}

#endif /* LADE_PIPELINE_CORE_CORE_INTERNAL_H */
