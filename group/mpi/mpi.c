/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups over MPI.
 *
 *   root      memory --copy--> slot --MPI-->        slots of pinned host memory, or of device memory
 *   others             --MPI--> slot --copy--> memory    if MPI takes that
 *
 * Bytes go in pieces through slots, never directly between MPI and the program's memory: a transfer that MPI does not
 * end cannot be cancelled, and MPI must not touch the program's memory after a failure.
 *
 * Each piece passes two stages in order: at the root copy, then MPI; at the others MPI, then copy:
 *
 *   begun >= between >= ended       begun - ended <= slots
 *   |first stage|second stage|
 *
 * Q1  A slot's second stage begins when its first has ended; its first stage begins again when its second has ended.
 * Q2  The pieces of a call are the same, in the same order, on both sides: the calls were compared before (messages.c).
 * Q3  When a call returns, none of its copies is in flight.
 * Q4  With an abandoned request the memory stays that MPI may touch: this struct (`messages.abandoned`), and the slots
 *     if the request is of a piece (`slots_stay`). Slots of host memory are still unregistered, so that the runtime can
 *     be closed.
 * Q5  One thread at a time calls MPI, the one that has `turn`. A thread that gives up while another has it leaves the
 *     notice to that one, which looks at `failing` in every wait and when it gives the turn back.
 * Locks: none except `turn`, an atomic flag; a call waits for it only while another thread sends a notice.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "group/frame.h"
#include "group/mpi/messages.h"
#include "group/mpi/open_plugin.h"
#include "lade/soft.h"
#include "runtime/ops.h"

enum { MOST_SLOTS = 16, DEFAULT_SLOTS = 4 };
static const uint64_t default_slot_bytes = UINT64_C(4) << 20, least_slot_bytes = UINT64_C(4) << 10,
                      most_slot_bytes = UINT64_C(64) << 20;

typedef struct mpi_group {
  ladei_mpi_messages messages;
  lade_runtime *runtime;
  int device;
  bool by_device;
  uint32_t slot_count;
  uint64_t slot_bytes;
  char *slots;
  bool registered, slots_stay;
  lade_event events[MOST_SLOTS]; /* end of the copy from or to a slot */
  uint32_t event_count;
  ladei_mpi_request requests[MOST_SLOTS];
  atomic_flag turn; /* Q5 */
} mpi_group;

static const lade_runtime_ops *ops_of(const mpi_group *g) { return g->runtime->ops; }
static bool is_virtual(const mpi_group *g) { return ops_of(g)->step != NULL; }

/* --- turns, records ----------------------------------------------------------------------------------------------- */

/* Sends the notice of a rank that gives up, if no other thread is in MPI. */
static void notice_send(mpi_group *g) {
  if (atomic_flag_test_and_set_explicit(&g->turn, memory_order_acquire)) return;
  if (atomic_load_explicit(&g->messages.failing, memory_order_acquire)) ladei_mpi_tell(&g->messages);
  atomic_flag_clear_explicit(&g->turn, memory_order_release);
}

static void turn_take(mpi_group *g) {
  /* Another thread has the turn only to send a notice: then the group is broken, and the wait short. */
  ladei_backoff wait = {0};
  while (atomic_flag_test_and_set_explicit(&g->turn, memory_order_acquire)) ladei_backoff_wait(&wait);
}

/* Q5. Copies a failure to `error`, for the group. */
static lade_status turn_give(mpi_group *g, lade_status status, lade_error *error) {
  assert(status != LADE_NOT_READY);
  (void)ladei_group_outcome(status, error);
  atomic_flag_clear_explicit(&g->turn, memory_order_release);
  if (atomic_load_explicit(&g->messages.failing, memory_order_acquire)) notice_send(g);
  return status;
}

/* Moves a virtual clock to the latest one. */
static lade_status clock_reach(mpi_group *g) {
  uint64_t now_ns = lade_runtime_now_ns(g->runtime);
  if (!is_virtual(g) || g->messages.latest_ns <= now_ns) return LADE_OK;
  return lade_soft_advance(g->runtime, g->messages.latest_ns - now_ns);
}

static lade_status meet(mpi_group *g, ladei_mpi_call call, const void *record, size_t bytes) {
  call.now_ns = is_virtual(g) ? lade_runtime_now_ns(g->runtime) : 0;
  LADEI_TRY(ladei_mpi_exchange(&g->messages, &call, record, bytes));
  return clock_reach(g);
}

/* --- pieces ------------------------------------------------------------------------------------------------------- */

/* One piece: the rank of its part, and its place. */
typedef struct mpi_piece {
  uint32_t rank; /* the other side: at the root the receiver, otherwise the root */
  char *memory;
  size_t bytes;
} mpi_piece;

/* A call under way. It makes its pieces in order, each from the end of the last one. */
typedef struct lane {
  mpi_group *g;
  const ladei_stream *stream;
  bool sends, is_broadcast;
  uint32_t root;
  char *memory;          /* of this rank; at the root of a scatter that of the first part */
  const uint64_t *bytes; /* of the parts */
  uint64_t at;           /* next byte of the part ... */
  uint32_t part;         /* ... of this rank */
  uint64_t begun, between, ended;
  mpi_piece pieces[MOST_SLOTS];
} lane;

static uint32_t slot_of(const lane *l, uint64_t number) { return (uint32_t)(number % l->g->slot_count); }
static char *slot_memory(const lane *l, uint64_t number) { return l->g->slots + slot_of(l, number) * l->g->slot_bytes; }

/* In a scatter the root goes through all parts except its own; another rank has one. In a broadcast all have one. */
static bool part_skip(lane *l) {
  uint32_t size = l->g->messages.size, rank = l->g->messages.rank;
  uint32_t end = l->is_broadcast ? 1 : l->sends ? size : rank + 1;
  while (l->part < end && (l->at == l->bytes[l->part] || (!l->is_broadcast && l->sends && l->part == l->root))) {
    l->memory += l->bytes[l->part] - l->at;
    l->at = 0;
    l->part++;
  }
  return l->part < end;
}

static bool piece_next(lane *l, mpi_piece *out) {
  if (!part_skip(l)) return false;
  assert(l->at < l->bytes[l->part]);
  uint64_t left = l->bytes[l->part] - l->at;
  out->bytes = (size_t)(left < l->g->slot_bytes ? left : l->g->slot_bytes);
  out->memory = l->memory;
  out->rank = l->sends ? l->part : l->root;
  l->memory += out->bytes;
  l->at += out->bytes;
  return true;
}

static lade_status copy_begin(lane *l, uint64_t number) {
  const mpi_group *g = l->g;
  const mpi_piece *p = &l->pieces[slot_of(l, number)];
  char *slot = slot_memory(l, number);
  ladei_copy_direction direction = g->by_device ? LADEI_COPY_D2D : l->sends ? LADEI_COPY_D2H : LADEI_COPY_H2D;
  LADEI_TRY(ops_of(g)->copy(g->runtime->self, direction, l->sends ? slot : p->memory, l->sends ? p->memory : slot,
                            p->bytes, l->stream));
  return ops_of(g)->event_record(g->runtime->self, g->events[slot_of(l, number)], l->stream);
}

/* On virtual time a query would never find the copy done, so it synchronizes. */
static lade_status copy_test(lane *l, uint64_t number) {
  lade_event event = l->g->events[slot_of(l, number)];
  void *self = l->g->runtime->self;
  return is_virtual(l->g) ? ops_of(l->g)->event_synchronize(self, event) : ops_of(l->g)->event_query(self, event);
}

static lade_status transfer_begin(lane *l, uint64_t number) {
  ladei_mpi_messages *m = &l->g->messages;
  const mpi_piece *p = &l->pieces[slot_of(l, number)];
  char *slot = slot_memory(l, number);
  ladei_mpi_request *request = &l->g->requests[slot_of(l, number)];
  assert(*request == 0 && p->rank < m->size); /* Q1: the piece before in this slot has ended */
  int code = l->is_broadcast ? m->plugin->broadcast(m->communicator, slot, p->bytes, l->root, request)
             : l->sends      ? m->plugin->send(m->communicator, slot, p->bytes, p->rank, LADEI_MPI_TAG_PART, request)
                        : m->plugin->receive(m->communicator, slot, p->bytes, p->rank, LADEI_MPI_TAG_PART, request);
  return ladei_mpi_result(m, l->is_broadcast ? "a broadcast" : l->sends ? "sending a part" : "receiving a part", code);
}

static lade_status transfer_test(lane *l, uint64_t number) {
  return ladei_mpi_test(&l->g->messages, &l->g->requests[slot_of(l, number)]);
}

typedef lade_status (*mpi_stage)(lane *l, uint64_t number);

/* Q1. `*out_moved`: whether a piece has passed a stage. */
static lade_status lane_step(lane *l, bool *out_moved) {
  mpi_stage first_test = l->sends ? copy_test : transfer_test, second_test = l->sends ? transfer_test : copy_test;
  uint64_t before = l->begun + l->between + l->ended;
  lade_status status = l->ended < l->between ? second_test(l, l->ended) : LADE_NOT_READY;
  if (status == LADE_OK) l->ended++;
  if (status != LADE_OK && status != LADE_NOT_READY) return status;
  status = l->between < l->begun ? first_test(l, l->between) : LADE_NOT_READY;
  if (status == LADE_OK) {
    LADEI_TRY((l->sends ? transfer_begin : copy_begin)(l, l->between));
    l->between++;
  } else if (status != LADE_NOT_READY) {
    return status;
  }
  if (l->begun - l->ended < l->g->slot_count && piece_next(l, &l->pieces[slot_of(l, l->begun)])) {
    LADEI_TRY((l->sends ? copy_begin : transfer_begin)(l, l->begun));
    l->begun++;
  }
  assert(l->begun >= l->between && l->between >= l->ended && l->begun - l->ended <= l->g->slot_count);
  *out_moved = l->begun + l->between + l->ended != before;
  return LADE_OK;
}

/* The rank that the lane waits for. */
static uint32_t lane_whom(const lane *l) {
  return l->ended < l->begun ? l->pieces[slot_of(l, l->ended)].rank : l->root;
}

/* Q3, Q4 */
static void lane_settle(lane *l) {
  mpi_group *g = l->g;
  uint64_t first = l->sends ? l->ended : l->between, end = l->sends ? l->between : l->begun;
  for (uint64_t number = first; number < end; number++) {
    ladei_mpi_request *request = &g->requests[slot_of(l, number)];
    ladei_mpi_settle(&g->messages, request, !l->sends && !l->is_broadcast);
    g->slots_stay = g->slots_stay || *request != 0;
  }
  (void)ops_of(g)->stream_synchronize(g->runtime->self, l->stream);
}

static lade_status lane_run(lane *l) {
  ladei_mpi_messages *m = &l->g->messages;
  ladei_mpi_wait wait;
  lade_status status = LADE_OK;
  ladei_mpi_wait_begin(m, &wait);
  while (status == LADE_OK && (l->ended < l->begun || part_skip(l))) {
    bool moved = false;
    status = lane_step(l, &moved);
    if (moved) ladei_mpi_wait_begin(m, &wait);
    if (status == LADE_OK && !moved) status = ladei_mpi_wait_on(m, &wait, lane_whom(l));
  }
  if (status == LADE_OK) return LADE_OK;
  LADEI_ASIDE(lane_settle(l));
  return status;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static uint32_t op_rank(void *self) { return ((mpi_group *)self)->messages.rank; }
static uint32_t op_size(void *self) { return ((mpi_group *)self)->messages.size; }

/* The receivers' clocks reach the sender's. */
static lade_status lane_meet_again(mpi_group *g, ladei_mpi_call call) {
  return is_virtual(g) ? meet(g, call, NULL, 0) : LADE_OK;
}

static lade_status broadcast_run(mpi_group *g, void *memory, uint64_t bytes, uint32_t root, lade_stream stream) {
  const ladei_mpi_call call = {.kind = LADEI_MPI_BROADCAST, .root = root, .bytes = bytes};
  ladei_stream resolved;
  LADEI_TRY(ops_of(g)->stream_resolve(g->runtime->self, stream, &resolved));
  LADEI_TRY(meet(g, call, NULL, 0));
  lane l = {.g = g,
            .stream = &resolved,
            .sends = g->messages.rank == root,
            .is_broadcast = true,
            .root = root,
            .memory = memory,
            .bytes = &bytes};
  if (g->messages.size > 1) LADEI_TRY(lane_run(&l));
  return lane_meet_again(g, call);
}

static lade_status op_broadcast(void *self, void *memory, uint64_t bytes, uint32_t root, lade_stream stream,
                                lade_error *error) {
  mpi_group *g = self;
  turn_take(g);
  return turn_give(g, broadcast_run(g, memory, bytes, root, stream), error);
}

static lade_status scatter_run(mpi_group *g, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                               lade_stream stream) {
  uint32_t rank = g->messages.rank;
  const ladei_mpi_call call = {.kind = LADEI_MPI_SCATTER,
                               .root = root,
                               .bytes = ladei_group_parts_before(bytes, g->messages.size),
                               .parts = ladei_group_parts_hash(bytes, g->messages.size)};
  ladei_stream resolved;
  LADEI_TRY(ops_of(g)->stream_resolve(g->runtime->self, stream, &resolved));
  LADEI_TRY(meet(g, call, NULL, 0));
  bool sends = rank == root;
  lane l = {.g = g,
            .stream = &resolved,
            .sends = sends,
            .root = root,
            .memory = sends ? (char *)(uintptr_t)from : to,
            .bytes = bytes,
            .part = sends ? 0 : rank};
  LADEI_TRY(lane_run(&l));
  if (sends)
    LADEI_TRY(ladei_group_own_part_copy(g->runtime, (const char *)from + ladei_group_parts_before(bytes, rank), to,
                                        bytes[rank], &resolved));
  return lane_meet_again(g, call);
}

static lade_status op_scatter(void *self, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                              lade_stream stream, lade_error *error) {
  mpi_group *g = self;
  turn_take(g);
  return turn_give(g, scatter_run(g, from, bytes, to, root, stream), error);
}

static lade_status op_barrier(void *self, lade_error *error) {
  mpi_group *g = self;
  turn_take(g);
  return turn_give(g, meet(g, (ladei_mpi_call){.kind = LADEI_MPI_BARRIER}, NULL, 0), error);
}

static lade_status op_gather(void *self, const void *record, uint64_t bytes, void *out_records, lade_error *error) {
  mpi_group *g = self;
  turn_take(g);
  lade_status status = meet(g, (ladei_mpi_call){.kind = LADEI_MPI_GATHER, .bytes = bytes}, record, bytes);
  for (uint32_t i = 0; status == LADE_OK && i < g->messages.size; i++)
    memcpy((char *)out_records + i * bytes, ladei_mpi_record(&g->messages, i, bytes), bytes);
  return turn_give(g, status, error);
}

static void op_abort(void *self, const lade_error *why) {
  mpi_group *g = self;
  ladei_mpi_notice *notice = &g->messages.notice;
  notice->status = (int32_t)why->status;
  notice->native_code = why->native_code;
  (void)snprintf(notice->text, sizeof notice->text, "%.*s", (int)sizeof notice->text - 1, why->text);
  atomic_store_explicit(&g->messages.failing, true, memory_order_release);
  notice_send(g);
}

/* --- creating, destroying ----------------------------------------------------------------------------------------- */

static void slots_free(mpi_group *g) {
  if (g->registered) (void)ops_of(g)->host_unregister(g->runtime->self, g->slots);
  if (g->slots == NULL || g->slots_stay) return;
  if (!g->by_device) {
    free(g->slots);
    return;
  }
  ladei_capture_mode mode = ladei_capture_mode_relax(g->runtime);
  (void)ops_of(g)->device_free(g->runtime->self, g->device, g->slots);
  ladei_capture_mode_restore(g->runtime, mode);
}

/* Q4 */
static void op_destroy(void *self) {
  mpi_group *g = self;
  bool stays = g->messages.abandoned;
  for (uint32_t i = 0; i < g->event_count; i++) (void)ops_of(g)->event_destroy(g->runtime->self, g->events[i]);
  slots_free(g);
  ladei_mpi_messages_close(&g->messages);
  ladei_runtime_release(g->runtime);
  if (!stays) free(g);
}

/* A rank's resources and options. */
typedef struct introduction {
  uint64_t slot_bytes;
  uint32_t slots;
  int32_t transport;
  int32_t can_device;      /* MPI takes device memory here */
  ladei_group_needs needs; /* slots and events */
} introduction;

/* Each rank finds the same failure: none needs a notice. */
static lade_status introductions_compare(mpi_group *g, bool *out_all_can) {
  introduction own, other;
  memcpy(&own, ladei_mpi_record(&g->messages, g->messages.rank, sizeof own), sizeof own);
  *out_all_can = true;
  for (uint32_t i = 0; i < g->messages.size; i++) {
    memcpy(&other, ladei_mpi_record(&g->messages, i, sizeof other), sizeof other);
    *out_all_can = *out_all_can && other.can_device;
    LADEI_TRY(ladei_group_needs_check(&other.needs, i));
    if (other.slot_bytes != own.slot_bytes || other.slots != own.slots || other.transport != own.transport)
      return ladei_error(
          LADE_ERR_PEER, 0,
          "rank %u and rank %u differ in options: slot_bytes %llu and %llu, slots %u and %u, transport %d "
          "and %d",
          i, g->messages.rank, (unsigned long long)other.slot_bytes, (unsigned long long)own.slot_bytes, other.slots,
          own.slots, other.transport, own.transport);
  }
  return LADE_OK;
}

static lade_status introduce(mpi_group *g, introduction *own, bool *out_all_can) {
  const ladei_mpi_call call = {.kind = LADEI_MPI_GATHER, .bytes = sizeof *own};
  LADEI_TRY(meet(g, call, own, sizeof *own));
  lade_status status = introductions_compare(g, out_all_can);
  g->messages.heard = status != LADE_OK;
  return status;
}

static lade_status events_make(mpi_group *g) {
  uint64_t context;
  LADEI_TRY(ops_of(g)->device_context(g->runtime->self, g->device, &context));
  for (; g->event_count < g->slot_count; g->event_count++)
    LADEI_TRY(ops_of(g)->event_create(g->runtime->self, context, 0, &g->events[g->event_count]));
  return LADE_OK;
}

static lade_status slots_make(mpi_group *g) {
  size_t bytes = (size_t)(g->slot_count * g->slot_bytes);
  void *slots = NULL;
  if (g->by_device) {
    ladei_capture_mode mode = ladei_capture_mode_relax(g->runtime);
    lade_status status = ops_of(g)->device_alloc(g->runtime->self, g->device, bytes, &slots);
    ladei_capture_mode_restore(g->runtime, mode);
    g->slots = slots;
    return status;
  }
  if (posix_memalign(&slots, least_slot_bytes, bytes) != 0)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for slots of %zu bytes", bytes);
  g->slots = slots;
  lade_status status = ops_of(g)->host_register(g->runtime->self, g->device, slots, bytes, 0);
  g->registered = status == LADE_OK;
  return status;
}

/* All ranks meet twice: to choose the transport, and to know that all have it. */
static lade_status slots_agree(mpi_group *g, int32_t transport) {
  bool all_can;
  introduction own = {.slot_bytes = g->slot_bytes, .slots = g->slot_count, .transport = transport};
  own.can_device = strcmp(lade_runtime_name(g->runtime), "cuda") == 0 && g->messages.plugin->takes_device_memory() == 1;
  ladei_group_needs_note(&own.needs, events_make(g));
  LADEI_TRY(introduce(g, &own, &all_can));
  if (transport == LADE_GROUP_TRANSPORT_DEVICE && !all_can)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "options.transport is DEVICE, and the MPI of a rank takes no device memory");
  g->by_device = transport != LADE_GROUP_TRANSPORT_HOST && all_can;
  ladei_group_needs_note(&own.needs, slots_make(g));
  return introduce(g, &own, &all_can);
}

static const lade_group_ops mpi_ops = {
    .struct_size = sizeof(lade_group_ops),
    .name = "mpi",
    .rank = op_rank,
    .size = op_size,
    .broadcast = op_broadcast,
    .scatter = op_scatter,
    .barrier = op_barrier,
    .gather = op_gather,
    .abort = op_abort,
    .destroy = op_destroy,
};

/* --- the public call --------------------------------------------------------------------------------------------- */

static lade_status options_read(const lade_group_mpi_options *given, lade_group_mpi_options *own) {
  static const char call[] = "lade_group_create_mpi";
  lade_group_mpi_options_init(own);
  if (given != NULL) LADEI_TRY(ladei_options_read("lade_group_mpi_options", given, own, sizeof *own));
  if (own->slot_bytes == 0) own->slot_bytes = default_slot_bytes;
  if (own->slots == 0) own->slots = DEFAULT_SLOTS;
  LADEI_TRY(ladei_group_timeout_read(call, &own->timeout_ns));
  if (!ladei_is_power_of_two(own->slot_bytes) || own->slot_bytes < least_slot_bytes ||
      own->slot_bytes > most_slot_bytes)
    return ladei_error_argument(call, "options.slot_bytes", "a power of two from 4096 to 67108864", "%llu",
                                (unsigned long long)own->slot_bytes);
  if (own->slots < 2 || own->slots > MOST_SLOTS)
    return ladei_error_argument(call, "options.slots", "from 2 to 16", "%llu", (unsigned long long)own->slots);
  if (own->transport < LADE_GROUP_TRANSPORT_AUTO || own->transport > LADE_GROUP_TRANSPORT_DEVICE)
    return ladei_error_argument(call, "options.transport", "0 (auto), 1 (host) or 2 (device)", "%d", own->transport);
  if (own->initialize > 1) return ladei_error_argument(call, "options.initialize", "0 or 1", "%u", own->initialize);
  if (own->communicator_given > 1)
    return ladei_error_argument(call, "options.communicator_given", "0 or 1", "%u", own->communicator_given);
  LADEI_TRY(ladei_options_reserved(call, "options.reserved", own->reserved));
  return LADE_OK;
}

static lade_status group_make(mpi_group *g, const lade_group_mpi_options *own, lade_group **out) {
  const ladei_mpi_plugin *plugin = NULL;
  LADEI_TRY(ladei_mpi_plugin_open(own->plugin, own->initialize == 1, &plugin));
  LADEI_TRY(
      ladei_mpi_messages_open(&g->messages, plugin, own->communicator_given == 1, own->communicator, own->timeout_ns));
  LADEI_TRY(slots_agree(g, own->transport));
  return lade_group_create(&mpi_ops, g, out);
}

/* Tells the other ranks, unless MPI has not begun here, or must not be called any more. */
static void group_undo(void *self) {
  mpi_group *g = self;
  if (g->messages.communicator != NULL && !g->messages.abandoned && g->messages.requests != NULL)
    op_abort(g, lade_last_error());
  op_destroy(g);
}

lade_status lade_group_create_mpi(lade_runtime *runtime, const lade_group_mpi_options *options, lade_group **out) {
  lade_group_mpi_options own;
  if (runtime == NULL) return ladei_error_null(__func__, "runtime");
  if (out == NULL) return ladei_error_null(__func__, "out");
  LADEI_TRY(options_read(options, &own));
  LADEI_TRY(ladei_runtime_acquire(runtime)); /* op_destroy() releases it */
  mpi_group *g = calloc(1, sizeof *g);
  if (g == NULL) {
    ladei_runtime_release(runtime);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the group", __func__);
  }
  g->runtime = runtime;
  g->device = own.device;
  g->slot_count = (uint32_t)own.slots;
  g->slot_bytes = own.slot_bytes;
  atomic_flag_clear(&g->turn);
  lade_status status = group_make(g, &own, out);
  return status == LADE_OK ? LADE_OK : ladei_group_undo(__func__, status, group_undo, g);
}
