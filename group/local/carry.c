/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carrying device memory from a root to other ranks, piece by piece.
 *
 *   root      memory --copy--> slot k, FILLED       slot k + 1, FILLED   ...   a slot again when all have TAKEN it
 *   others                     slot k --copy--> memory, TAKEN            ...
 *
 * Pieces are numbered through all calls of the group; piece n goes through slot n % slots: the shared one (by host), or
 * that of the root's window of device memory (by device).
 *
 * C1  The root writes a slot only after every other rank has taken the slot's piece before.
 * C2  A slot's counter is raised after the copy that fills or empties it has ended, as its event says.
 * C3  Each rank keeps one copy in flight while it queues the next one, at any timing: so on "sim" the same calls happen
 *     at the same virtual times, and with three slots no rank waits for one that waits for it.
 * C4  When a call returns, none of its copies is in flight.
 * C5  Times are the sender's: on "sim" a receiver's clock moves at least to them.
 * Locks: none. One thread at a time, the one that has the turn.
 */
#include "group/local/carry.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "lade/soft.h"

/* --- times -------------------------------------------------------------------------------------------------------- */

static uint64_t clock_ns(const lade_runtime *runtime) { return runtime->ops->now_ns(runtime->self); }

/* C5. A wall clock advances by itself. */
static lade_status clock_reach(const lade_runtime *runtime, uint64_t ns) {
  uint64_t now_ns = clock_ns(runtime);
  if (runtime->ops->step == NULL || ns <= now_ns) return LADE_OK;
  return lade_soft_advance((lade_runtime *)(uintptr_t)runtime, ns - now_ns);
}

/* --- records ------------------------------------------------------------------------------------------------------ */

lade_status ladei_group_exchange(ladei_group_shared *shared, const lade_runtime *runtime, ladei_group_call call,
                                 const void *record, uint64_t bytes, void *out_records) {
  ladei_group_shared_begin(shared, call, 0, bytes);
  assert(bytes <= LADE_GROUP_RECORD_BYTES && (bytes == 0) == (call == LADEI_GROUP_BARRIER));
  uint64_t number = ++shared->gathers, place = number % 2, latest_ns = 0;
  ladei_group_cell *own = ladei_group_shared_cell(shared, shared->rank);
  /* The others have read the record of two calls ago: this rank has seen that they posted that of the last call. */
  if (bytes > 0) memcpy(own->records[place], record, bytes);
  atomic_store_explicit(&own->gathered_ns[place], clock_ns(runtime), memory_order_relaxed);
  atomic_store_explicit(&own->gathered_call[place], shared->signature, memory_order_relaxed);
  ladei_group_shared_post(shared, LADEI_GROUP_GATHERED, number, LADEI_GROUP_ALL);
  uint64_t deadline_ns = ladei_group_shared_deadline(shared);
  for (uint32_t i = 0; i < shared->size; i++) {
    LADEI_TRY(ladei_group_shared_wait(shared, i, LADEI_GROUP_GATHERED, number, deadline_ns));
    const ladei_group_cell *cell = ladei_group_shared_cell(shared, i);
    LADEI_TRY(ladei_group_shared_same(shared, i, &cell->gathered_call[place]));
    if (bytes > 0) memcpy((char *)out_records + i * bytes, cell->records[place], bytes);
    uint64_t at_ns = atomic_load_explicit(&cell->gathered_ns[place], memory_order_relaxed);
    if (at_ns > latest_ns) latest_ns = at_ns;
  }
  return clock_reach(runtime, latest_ns);
}

/* --- pieces ------------------------------------------------------------------------------------------------------- */

static uint32_t piece_slot(const ladei_group_carrier *c, uint64_t piece) {
  return (uint32_t)(piece % c->shared->slots);
}

/* The address of a root's slot in this rank. */
static char *slot_memory(const ladei_group_carrier *c, uint32_t root, uint64_t piece) {
  const ladei_group_shared *shared = c->shared;
  char *window = root == shared->rank ? c->window : c->windows[root];
  char *base = c->by_device ? window : (char *)shared->base + ladei_group_shared_slots_at(shared->size);
  assert(base != NULL); /* another rank's window is open */
  return base + piece_slot(c, piece) * shared->slot_bytes;
}

/* The copies of a call that are in flight: at most one except in the moment in which the next is queued (C3). */
typedef struct flight {
  ladei_group_carrier *carrier;
  ladei_group_counter counter; /* its end raises it */
  uint32_t whom;               /* the rank or ranks to wake */
  bool flies;
  uint64_t piece;
} flight;

/* C2 */
static lade_status flight_end(flight *f) {
  ladei_group_carrier *c = f->carrier;
  if (!f->flies) return LADE_OK;
  f->flies = false;
  uint32_t slot = piece_slot(c, f->piece);
  LADEI_TRY(c->runtime->ops->event_synchronize(c->runtime->self, c->events[slot]));
  ladei_group_cell *own = ladei_group_shared_cell(c->shared, c->shared->rank);
  _Atomic(uint64_t) *times = f->counter == LADEI_GROUP_FILLED ? own->filled_ns : own->taken_ns;
  atomic_store_explicit(&times[slot], clock_ns(c->runtime), memory_order_relaxed);
  if (f->counter == LADEI_GROUP_FILLED)
    atomic_store_explicit(&own->filled_call[slot], c->shared->signature, memory_order_relaxed);
  ladei_group_shared_post(c->shared, f->counter, f->piece + 1, f->whom);
  return LADE_OK;
}

/* A copy of `piece` is queued: waits for the one before it. */
static lade_status flight_begin(flight *f, uint64_t piece, const ladei_stream *stream) {
  const ladei_group_carrier *c = f->carrier;
  LADEI_TRY(c->runtime->ops->event_record(c->runtime->self, c->events[piece_slot(c, piece)], stream));
  LADEI_TRY(flight_end(f));
  assert(!f->flies && (piece > f->piece || f->piece == 0)); /* C3: one, and in order */
  f->piece = piece;
  f->flies = true;
  return LADE_OK;
}

/* C1 */
static lade_status slot_await(const ladei_group_carrier *c, uint64_t piece) {
  ladei_group_shared *shared = c->shared;
  if (piece < shared->slots) return LADE_OK;
  uint64_t deadline_ns = ladei_group_shared_deadline(shared), latest_ns = 0;
  for (uint32_t i = 0; i < shared->size; i++) {
    if (i == shared->rank) continue;
    LADEI_TRY(ladei_group_shared_wait(shared, i, LADEI_GROUP_TAKEN, piece - shared->slots + 1, deadline_ns));
    const ladei_group_cell *cell = ladei_group_shared_cell(shared, i);
    uint64_t at_ns = atomic_load_explicit(&cell->taken_ns[piece_slot(c, piece)], memory_order_relaxed);
    if (at_ns > latest_ns) latest_ns = at_ns;
  }
  return clock_reach(c->runtime, latest_ns);
}

/* Queues the copy of bytes [begin, end) of the load into a slot: two copies if the gap lies within. */
static lade_status piece_fill(const ladei_group_carrier *c, const ladei_group_load *load, char *slot, uint64_t begin,
                              uint64_t end, const ladei_stream *stream) {
  const lade_runtime_ops *ops = c->runtime->ops;
  ladei_copy_direction direction = c->by_device ? LADEI_COPY_D2D : LADEI_COPY_D2H;
  assert(begin < end && end <= load->bytes && end - begin <= c->shared->slot_bytes);
  uint64_t before = begin >= load->gap_at ? 0 : (end <= load->gap_at ? end : load->gap_at) - begin;
  if (before > 0) LADEI_TRY(ops->copy(c->runtime->self, direction, slot, load->from + begin, before, stream));
  if (begin + before == end) return LADE_OK;
  return ops->copy(c->runtime->self, direction, slot + before, load->from + begin + before + load->gap_bytes,
                   end - begin - before, stream);
}

/* Sends the pieces of a load, at its root. Its times and counters are its own: other roots have theirs of the slots. */
static lade_status load_send(ladei_group_carrier *c, const ladei_group_load *load, const ladei_stream *stream,
                             flight *f) {
  uint64_t slot_bytes = c->shared->slot_bytes;
  for (uint64_t begin = 0, piece = c->pieces; begin < load->bytes; begin += slot_bytes, piece++) {
    uint64_t end = load->bytes - begin < slot_bytes ? load->bytes : begin + slot_bytes;
    LADEI_TRY(slot_await(c, piece));
    LADEI_TRY(piece_fill(c, load, slot_memory(c, load->root, piece), begin, end, stream));
    LADEI_TRY(flight_begin(f, piece, stream));
  }
  return flight_end(f);
}

/* Receives the pieces of a load that have bytes of this rank, at the other ranks. */
static lade_status load_receive(ladei_group_carrier *c, const ladei_group_load *load, const ladei_stream *stream,
                                flight *f) {
  ladei_group_shared *shared = c->shared;
  uint64_t slot_bytes = shared->slot_bytes;
  ladei_copy_direction direction = c->by_device ? LADEI_COPY_D2D : LADEI_COPY_H2D;
  /* This rank skips the pieces before its own: the root does not wait for it with those. */
  ladei_group_shared_post(shared, LADEI_GROUP_TAKEN, c->pieces + load->to_begin / slot_bytes, load->root);
  for (uint64_t begin = 0, piece = c->pieces; begin < load->bytes; begin += slot_bytes, piece++) {
    uint64_t end = load->bytes - begin < slot_bytes ? load->bytes : begin + slot_bytes;
    uint64_t first = begin > load->to_begin ? begin : load->to_begin, last = end < load->to_end ? end : load->to_end;
    if (first >= last) continue;
    assert(piece >= c->pieces && last - first <= slot_bytes);
    uint64_t deadline_ns = ladei_group_shared_deadline(shared);
    LADEI_TRY(ladei_group_shared_wait(shared, load->root, LADEI_GROUP_FILLED, piece + 1, deadline_ns));
    const ladei_group_cell *cell = ladei_group_shared_cell(shared, load->root);
    LADEI_TRY(ladei_group_shared_same(shared, load->root, &cell->filled_call[piece_slot(c, piece)]));
    LADEI_TRY(
        clock_reach(c->runtime, atomic_load_explicit(&cell->filled_ns[piece_slot(c, piece)], memory_order_relaxed)));
    LADEI_TRY(c->runtime->ops->copy(c->runtime->self, direction, load->to + (first - load->to_begin),
                                    slot_memory(c, load->root, piece) + (first - begin), last - first, stream));
    LADEI_TRY(flight_begin(f, piece, stream));
  }
  return flight_end(f);
}

lade_status ladei_group_carry(ladei_group_carrier *c, const ladei_group_load *load, const ladei_stream *stream) {
  ladei_group_shared *shared = c->shared;
  bool sends = load->root == shared->rank;
  uint64_t count = load->bytes / shared->slot_bytes + (load->bytes % shared->slot_bytes != 0);
  flight f = {.carrier = c,
              .counter = sends ? LADEI_GROUP_FILLED : LADEI_GROUP_TAKEN,
              .whom = sends ? LADEI_GROUP_ALL : load->root};
  assert(shared->slots >= 3); /* C3 */
  lade_status status = sends ? load_send(c, load, stream, &f) : load_receive(c, load, stream, &f);
  if (status != LADE_OK) {
    LADEI_ASIDE((void)c->runtime->ops->stream_synchronize(c->runtime->self, stream)); /* C4 */
    return status;
  }
  assert(!f.flies); /* C4 */
  c->pieces += count;
  /* Any rank may be the root of the next call, and wait for this counter. */
  ladei_group_shared_post(shared, LADEI_GROUP_TAKEN, c->pieces, LADEI_GROUP_ALL);
  return LADE_OK;
}
