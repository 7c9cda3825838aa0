/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of the state machine: their life, settings, and views for others. core_orders.c has the invariants.
 *
 * Locks: none; see core_orders.c.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "pipeline/core/adapt.h"
#include "pipeline/core/core_internal.h"

/* --- life --------------------------------------------------------------------------------------------------------- */

static void copy_stream_init(ladei_pipe_ring *ring, unsigned index) {
  ladei_pipe_copy_stream *copy_stream = &ring->copy_streams[index];
  copy_stream->ring = ring;
  copy_stream->index = index;
  TAILQ_INIT(&copy_stream->copied);
  TAILQ_INIT(&copy_stream->idle);
  TAILQ_INIT(&copy_stream->pending);
  for (unsigned i = 0; i < LADEI_PIPE_BATCHES; i++) {
    ladei_pipe_batch *batch = &copy_stream->batches[i];
    batch->copy_stream = copy_stream;
    batch->index = i;
    TAILQ_INIT(&batch->slots);
    TAILQ_INSERT_TAIL(&copy_stream->idle, batch, link);
  }
}

static lade_status ring_init(ladei_pipe_ring *ring, lade_direction direction, unsigned depth) {
  *ring = (ladei_pipe_ring){
      .direction = direction,
      .depth = depth,
      .blocks = {.limit = depth, .ahead = depth, .bytes = SIZE_MAX, .least_bytes = SIZE_MAX, .most_bytes = SIZE_MAX},
      .host = {.window = UINT32_MAX / 2},
      .calls = {.most = UINT32_MAX},
      .joined = {.most = 1}};
  ring->slots = calloc(depth, sizeof *ring->slots);
  struct ladei_slot_list *lists[] = {&ring->lists.empty, &ring->lists.free, &ring->lists.ready, &ring->lists.landed,
                                     &ring->lists.lost};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) TAILQ_INIT(lists[i]);
  TAILQ_INIT(&ring->schedule.queue);
  TAILQ_INIT(&ring->schedule.finished);
  TAILQ_INIT(&ring->schedule.held);
  TAILQ_INIT(&ring->schedule.asking);
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS; i++) copy_stream_init(ring, i);
  for (unsigned i = 0; i < LADEI_PIPE_PRIORITIES; i++)
    for (unsigned k = 0; k < LADEI_PIPE_FAIR_QUEUES; k++) TAILQ_INIT(&ring->schedule.levels[i].fair_queues[k].waiting);
  if (ring->slots == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pipeline: no memory for a ring of %u slots", depth);
  for (unsigned i = 0; i < depth; i++) {
    ring->slots[i].ring = ring; /* EMPTY: all zero */
    TAILQ_INSERT_TAIL(&ring->lists.empty, &ring->slots[i], link);
  }
  return LADE_OK;
}

lade_status ladei_pipe_core_init(ladei_pipe_core *core, unsigned depth) {
  *core = (ladei_pipe_core){.next_ring = 0};
  lade_status status = ring_init(&core->rings[0], LADE_TO_DEVICE, depth);
  if (status == LADE_OK) status = ring_init(&core->rings[1], LADE_TO_HOST, depth);
  if (status != LADE_OK) ladei_pipe_core_destroy(core);
  return status;
}

void ladei_pipe_core_destroy(ladei_pipe_core *core) {
  for (unsigned i = 0; i < 2; i++) {
    free(core->rings[i].slots);
    core->rings[i].slots = NULL;
  }
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

void ladei_pipe_core_set_blocks(ladei_pipe_core *core, size_t bytes, size_t least) {
  for (unsigned i = 0; i < 2; i++) {
    core->rings[i].blocks.bytes = bytes;
    core->rings[i].blocks.least_bytes = least;
  }
}

bool ladei_pipe_core_grow_blocks(ladei_pipe_ring *ring, size_t bytes) {
  size_t grown = bytes < ring->blocks.most_bytes ? bytes : ring->blocks.most_bytes;
  if (grown <= ring->blocks.bytes) return false;
  ring->blocks.bytes = grown;
  return true;
}

size_t ladei_pipe_core_chunk_in_window(const ladei_pipe_ring *ring, size_t chunk, unsigned requests,
                                       uint64_t window_bytes) {
  uint64_t blocks = (uint64_t)requests + ring->blocks.ahead;
  return ladei_pipe_chunk_for_window(chunk, blocks < ring->depth ? (unsigned)blocks : ring->depth, window_bytes);
}

bool ladei_pipe_core_set_link(ladei_pipe_ring *ring, size_t chunk, unsigned requests, uint64_t window_bytes) {
  if (ring->joined.most > 1) ring->joined.bytes = LADEI_PIPE_JOINED_CHUNKS * chunk;
  if (ring->turns.most_bytes > 0 && chunk > 0) ring->turns.most_bytes = (uint64_t)LADEI_PIPE_TURN_HALVES * chunk / 2;
  return ladei_pipe_core_grow_blocks(ring, ladei_pipe_core_chunk_in_window(ring, chunk, requests, window_bytes));
}

void ladei_pipe_core_set_bulk(ladei_pipe_ring *ring, size_t bytes) { ring->blocks.bulk_bytes = bytes; }

void ladei_pipe_core_set_window(ladei_pipe_ring *ring, unsigned window) {
  ring->host.window = window;
  ladei_pipe_ring_choose(ring);
}

void ladei_pipe_core_set_joined(ladei_pipe_ring *ring, unsigned most, size_t bytes) {
  ring->joined.most = most;
  ring->joined.bytes = bytes;
}

void ladei_pipe_core_set_turn(ladei_pipe_ring *ring, uint64_t bytes) { ring->turns.most_bytes = bytes; }

void ladei_pipe_core_set_single(ladei_pipe_ring *ring, bool single) { ring->turns.single = single; }

void ladei_pipe_core_set_calls(ladei_pipe_ring *ring, unsigned most) {
  ring->calls.most = most;
  ladei_pipe_ring_choose(ring);
}

void ladei_pipe_core_set_yield(ladei_pipe_core *core, ladei_pipe_yield yield) {
  core->rings[0].blocks.yield = yield;
  core->rings[1].blocks.yield = yield;
}

void ladei_pipe_core_set_keeps(ladei_pipe_ring *ring, bool keeps) { ring->blocks.keeps = keeps; }

void ladei_pipe_core_set_taker(ladei_pipe_core *core, unsigned taker, bool stays) {
  core->rings[0].takers.asking = taker;
  core->rings[0].takers.asking_stays = stays;
}

void ladei_pipe_core_stay(ladei_pipe_core *core, bool stays) {
  assert((stays || core->rings[0].takers.staying > 0) && "a place is let go that was kept");
  core->rings[0].takers.staying += stays ? 1u : -1u;
}

/* --- looking on --------------------------------------------------------------------------------------------------- */

/* The start of the first chunk in one of the states; if none is, of the bytes not begun. */
static uint64_t prefix(const ladei_pipe_core_transfer *transfer, unsigned states) {
  uint64_t end = transfer->issued_bytes;
  for (unsigned i = 0; i < transfer->ring->depth; i++) {
    const ladei_pipe_slot *slot = &transfer->ring->slots[i];
    if (slot->transfer == transfer && (states >> slot->state & 1u) != 0 && slot->offset < end) end = slot->offset;
  }
  return ladei_pipe_transfer_failed(transfer) ? 0 : end;
}

enum { BEFORE_COPIES = 1u << LADEI_PIPE_SLOT_READING | 1u << LADEI_PIPE_SLOT_READY | 1u << LADEI_PIPE_SLOT_COPYING };

uint64_t ladei_pipe_core_prefix_queued(const ladei_pipe_core_transfer *transfer) {
  return prefix(transfer, BEFORE_COPIES);
}

uint64_t ladei_pipe_core_prefix_copied(const ladei_pipe_core_transfer *transfer) {
  return prefix(transfer, BEFORE_COPIES | 1u << LADEI_PIPE_SLOT_COPIED | 1u << LADEI_PIPE_SLOT_COVERED |
                              1u << LADEI_PIPE_SLOT_LOST);
}

uint64_t ladei_pipe_core_prefix_done(const ladei_pipe_core_transfer *transfer) { return prefix(transfer, UINT32_MAX); }

unsigned ladei_pipe_core_copy_streams(const ladei_pipe_core_transfer *transfer, uint64_t bytes) {
  unsigned streams = 0;
  for (unsigned i = 0; i < transfer->ring->depth; i++) {
    const ladei_pipe_slot *slot = &transfer->ring->slots[i];
    bool under_way = slot->state == LADEI_PIPE_SLOT_COPIED || slot->state == LADEI_PIPE_SLOT_COVERED;
    streams |= slot->transfer == transfer && slot->offset < bytes && under_way ? 1u << slot->copy_stream->index : 0;
  }
  return streams;
}

bool ladei_pipe_core_polls(const ladei_pipe_core *core) {
  bool polls = !TAILQ_EMPTY(&core->rings[0].schedule.asking);
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS; i++)
    polls = polls || !TAILQ_EMPTY(&core->rings[0].copy_streams[i].pending) ||
            !TAILQ_EMPTY(&core->rings[1].copy_streams[i].pending);
  return polls || ladei_pipe_core_awaits_block(&core->rings[0]) || ladei_pipe_core_awaits_block(&core->rings[1]);
}

bool ladei_pipe_core_turn_awaited(const ladei_pipe_core *core) {
  bool awaited = false;
  for (unsigned i = 0; i < 2; i++) {
    const ladei_pipe_ring *ring = &core->rings[i];
    const ladei_pipe_core_transfer *next = ring->schedule.issuing;
    bool waits = !TAILQ_EMPTY(&ring->lists.ready) || (next != NULL && ladei_pipe_transfer_copies_first(next));
    awaited = awaited || (waits && ring->turns.most_bytes > 0 && ladei_pipe_ring_first_bytes(ring) > 0);
  }
  return awaited;
}

bool ladei_pipe_core_copies(const ladei_pipe_ring *ring) {
  bool copies = !TAILQ_EMPTY(&ring->lists.ready);
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS && !copies; i++)
    copies = !ladei_pipe_copy_stream_rests(&ring->copy_streams[i]);
  return copies;
}

bool ladei_pipe_order_is_short(const ladei_pipe_order *order) {
  switch (order->kind) {
  case LADEI_PIPE_ORDER_COPY: return !ladei_pipe_copy_stream_waits(order->transfer->copy_stream);
  case LADEI_PIPE_ORDER_RECORD: return !ladei_pipe_copy_stream_waits(order->batch->copy_stream);
  default: return order->kind == LADEI_PIPE_ORDER_POLL;
  }
}
