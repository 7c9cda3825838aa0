/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups over NCCL: device memory by NCCL, everything else by another group of the same ranks, the parent.
 *
 *   parent: the same call on all ranks?  ->  NCCL on the stream  ->  polled until it has ended, or given up
 *
 * L1  The communicator does not block. Its state is polled, with a time limit.
 * L2  Before NCCL is called, the stream's earlier work has ended on all ranks: no rank's time limit includes it.
 * L3  When a call returns, no work of NCCL runs: it has ended, or the communicator was aborted, which ends its kernels.
 * L4  A failure breaks the parent, too: by it the others learn of it at their next call, or at the end of this one.
 * L5  A communicator is aborted once, by the thread in a call, or by destroy. Its orderly end in NCCL could wait.
 * Locks: none. One thread at a time, the one that has the turn; any thread sets `failing`.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "group/frame.h"
#include "group/nccl/library.h"
#include "lade/group.h"
#include "runtime/ops.h"

/* Bytes of one step, to which the time limit applies: at 10 GB/s the default takes a tenth of a second. */
static const uint64_t default_piece_bytes = UINT64_C(1) << 30, least_piece_bytes = UINT64_C(4) << 10,
                      most_piece_bytes = UINT64_C(1) << 36;

typedef struct nccl_group {
  ladei_nccl nccl;
  ladei_nccl_communicator *communicator; /* NULL: aborted */
  lade_group *parent;
  lade_runtime *runtime;
  int device;
  uint32_t rank, size;
  uint64_t timeout_ns, piece_bytes;
  lade_event event;
  uint64_t calls;
  atomic_bool failing; /* this rank gives up: `why` is written */
  lade_error why;
} nccl_group;

static const lade_runtime_ops *ops_of(const nccl_group *g) { return g->runtime->ops; }

/* --- NCCL's answers ----------------------------------------------------------------------------------------------- */

static lade_status nccl_error(const nccl_group *g, const char *what, int code) {
  return ladei_error(LADE_ERR_DRIVER, code, "NCCL: %s: %s (code %d)", what, g->nccl.text(code), code);
}

/* L5 */
static void communicator_abort(nccl_group *g) {
  if (g->communicator != NULL) (void)g->nccl.abort(g->communicator);
  g->communicator = NULL;
}

/* The state of the communicator. LADE_NOT_READY: an operation is in progress. */
static lade_status state_ask(const nccl_group *g, const char *what) {
  int state = LADEI_NCCL_SUCCESS;
  assert(g->communicator != NULL); /* L5 */
  int code = g->nccl.state(g->communicator, &state);
  if (code != LADEI_NCCL_SUCCESS) return nccl_error(g, what, code);
  if (state == LADEI_NCCL_IN_PROGRESS) return LADE_NOT_READY;
  return state == LADEI_NCCL_SUCCESS ? LADE_OK : nccl_error(g, what, state);
}

/* NCCL finishes a few megabytes sooner than a sleeping thread wakes. */
static const uint64_t spin_ns = 200000;

/* One step of a wait for the other ranks. */
static lade_status wait_on(const nccl_group *g, const char *what, uint64_t deadline_ns, ladei_backoff *backoff) {
  if (atomic_load_explicit(&g->failing, memory_order_acquire))
    return ladei_error(g->why.status, g->why.native_code, "given up: %.400s", g->why.text);
  uint64_t now_ns = ladei_clock_ns(CLOCK_MONOTONIC), began_ns = deadline_ns - g->timeout_ns;
  if (now_ns >= deadline_ns)
    return ladei_error(LADE_ERR_TIMEOUT, 0, "NCCL: %s: not all ranks have come within %.3g s", what,
                       (double)g->timeout_ns * 1e-9);
  if (now_ns - began_ns < spin_ns)
    ladei_spin_pause();
  else
    ladei_backoff_wait(backoff);
  return LADE_OK;
}

/* Waits until no operation is in progress in the communicator (L1). */
static lade_status state_await(const nccl_group *g, const char *what) {
  uint64_t deadline_ns = ladei_clock_ns(CLOCK_MONOTONIC) + g->timeout_ns;
  ladei_backoff backoff = {0};
  lade_status status;
  while ((status = state_ask(g, what)) == LADE_NOT_READY) LADEI_TRY(wait_on(g, what, deadline_ns, &backoff));
  return status;
}

/* Waits for the end of an NCCL call that returned `code`. */
static lade_status call_settle(const nccl_group *g, const char *what, int code) {
  if (code == LADEI_NCCL_SUCCESS || code == LADEI_NCCL_IN_PROGRESS) return state_await(g, what);
  return nccl_error(g, what, code);
}

/* Waits until the work queued on the stream so far has ended, or NCCL reports a failure. */
static lade_status stream_await(const nccl_group *g, const char *what, const ladei_stream *stream) {
  uint64_t deadline_ns = ladei_clock_ns(CLOCK_MONOTONIC) + g->timeout_ns;
  ladei_backoff backoff = {0};
  lade_status status;
  LADEI_TRY(ops_of(g)->event_record(g->runtime->self, g->event, stream));
  while ((status = ops_of(g)->event_query(g->runtime->self, g->event)) == LADE_NOT_READY) {
    status = state_ask(g, what);
    if (status != LADE_OK && status != LADE_NOT_READY) return status;
    LADEI_TRY(wait_on(g, what, deadline_ns, &backoff));
  }
  return status;
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

/* The parameters of a call that must be equal on all ranks. */
typedef struct agreement {
  uint64_t number, bytes, parts;
  uint32_t kind, root;
} agreement;
enum { BROADCAST, SCATTER };

static lade_status agree(nccl_group *g, agreement own) {
  agreement *all = calloc(g->size, sizeof *all);
  if (all == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %u ranks", g->size);
  own.number = ++g->calls;
  lade_status status = lade_group_gather(g->parent, &own, sizeof own, all);
  for (uint32_t i = 1; i < g->size && status == LADE_OK; i++) {
    if (memcmp(&all[i], &all[0], sizeof own) != 0)
      status =
          ladei_error(LADE_ERR_PEER, 0,
                      "rank %u makes another call than rank 0: a %s of %llu bytes, root %u, there a %s of %llu "
                      "bytes, root %u%s",
                      i, all[i].kind == SCATTER ? "scatter" : "broadcast", (unsigned long long)all[i].bytes,
                      all[i].root, all[0].kind == SCATTER ? "scatter" : "broadcast", (unsigned long long)all[0].bytes,
                      all[0].root, all[i].parts != all[0].parts ? "; the parts differ" : "");
  }
  free(all);
  return status;
}

/* L2. The wait is for this rank's own work. */
static lade_status call_begin(nccl_group *g, const agreement *own, lade_stream handle, ladei_stream *out) {
  if (g->communicator == NULL) return ladei_error(LADE_ERR_PEER, 0, "NCCL: the communicator was aborted");
  LADEI_TRY(ops_of(g)->stream_resolve(g->runtime->self, handle, out));
  LADEI_TRY(ops_of(g)->stream_synchronize(g->runtime->self, out));
  return agree(g, *own);
}

/* L3 */
static lade_status call_end(nccl_group *g, lade_status status, const ladei_stream *stream, lade_error *error) {
  if (ladei_group_outcome(status, error) == LADE_OK) return LADE_OK;
  bool was = g->communicator != NULL;
  assert(status != LADE_NOT_READY);
  communicator_abort(g);
  if (was && stream->handle != NULL) (void)ops_of(g)->stream_synchronize(g->runtime->self, stream);
  return status;
}

static lade_status broadcast_run(nccl_group *g, char *memory, uint64_t bytes, uint32_t root,
                                 const ladei_stream *stream) {
  static const char what[] = "a broadcast";
  for (uint64_t at = 0; at < bytes; at += g->piece_bytes) {
    size_t piece = (size_t)(bytes - at < g->piece_bytes ? bytes - at : g->piece_bytes);
    LADEI_TRY(call_settle(g, what,
                          g->nccl.broadcast(memory + at, memory + at, piece, LADEI_NCCL_BYTES, (int)root,
                                            g->communicator, stream->handle)));
    LADEI_TRY(stream_await(g, what, stream));
  }
  return LADE_OK;
}

static lade_status op_broadcast(void *self, void *memory, uint64_t bytes, uint32_t root, lade_stream stream,
                                lade_error *error) {
  nccl_group *g = self;
  const agreement own = {.kind = BROADCAST, .bytes = bytes, .root = root};
  ladei_stream resolved = {0};
  lade_status status = call_begin(g, &own, stream, &resolved);
  if (status == LADE_OK) status = broadcast_run(g, memory, bytes, root, &resolved);
  return call_end(g, status, &resolved, error);
}

/* --- scatter ------------------------------------------------------------------------------------------------------ */

/* One step: the bytes [at, at + piece) of each part, all at once. */
typedef struct step {
  const char *from;
  const uint64_t *bytes;
  char *to;
  uint32_t root;
  uint64_t at;
} step;

static size_t step_bytes(const nccl_group *g, const step *s, uint32_t rank) {
  uint64_t left = s->bytes[rank] > s->at ? s->bytes[rank] - s->at : 0;
  return (size_t)(left < g->piece_bytes ? left : g->piece_bytes);
}

/* Returns NCCL's first refusal; ends the group of calls in every case. */
static int step_queue(const nccl_group *g, const step *s, const ladei_stream *stream) {
  const char *part = s->from;
  assert(g->communicator != NULL && s->at % g->piece_bytes == 0);
  int code = g->nccl.group_begin();
  if (code != LADEI_NCCL_SUCCESS) return code;
  for (uint32_t i = 0; i < g->size && g->rank == s->root; i++) {
    size_t bytes = i == s->root ? 0 : step_bytes(g, s, i);
    if (bytes > 0 && (code == LADEI_NCCL_SUCCESS || code == LADEI_NCCL_IN_PROGRESS))
      code = g->nccl.send(part + s->at, bytes, LADEI_NCCL_BYTES, (int)i, g->communicator, stream->handle);
    part += s->bytes[i];
  }
  if (g->rank != s->root && step_bytes(g, s, g->rank) > 0)
    code = g->nccl.receive(s->to + s->at, step_bytes(g, s, g->rank), LADEI_NCCL_BYTES, (int)s->root, g->communicator,
                           stream->handle);
  int ended = g->nccl.group_end();
  return code == LADEI_NCCL_SUCCESS || code == LADEI_NCCL_IN_PROGRESS ? ended : code;
}

static uint64_t longest_part(const nccl_group *g, const step *s) {
  uint64_t longest = 0;
  for (uint32_t i = 0; i < g->size; i++)
    if (i != s->root && s->bytes[i] > longest) longest = s->bytes[i];
  return longest;
}

static lade_status scatter_run(nccl_group *g, step *s, const ladei_stream *stream) {
  static const char what[] = "a scatter";
  uint64_t mine = g->rank == s->root ? longest_part(g, s) : s->bytes[g->rank];
  for (; s->at < mine; s->at += g->piece_bytes) {
    LADEI_TRY(call_settle(g, what, step_queue(g, s, stream)));
    LADEI_TRY(stream_await(g, what, stream));
  }
  if (g->rank != s->root) return LADE_OK;
  return ladei_group_own_part_copy(g->runtime, s->from + ladei_group_parts_before(s->bytes, g->rank), s->to,
                                   s->bytes[g->rank], stream);
}

static lade_status op_scatter(void *self, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                              lade_stream stream, lade_error *error) {
  nccl_group *g = self;
  agreement own = {.kind = SCATTER,
                   .root = root,
                   .bytes = ladei_group_parts_before(bytes, g->size),
                   .parts = ladei_group_parts_hash(bytes, g->size)};
  step s = {.from = from, .bytes = bytes, .to = to, .root = root};
  ladei_stream resolved = {0};
  lade_status status = call_begin(g, &own, stream, &resolved);
  if (status == LADE_OK) status = scatter_run(g, &s, &resolved);
  return call_end(g, status, &resolved, error);
}

/* --- calls of the parent ------------------------------------------------------------------------------------------ */

static uint32_t op_rank(void *self) { return ((nccl_group *)self)->rank; }
static uint32_t op_size(void *self) { return ((nccl_group *)self)->size; }

static lade_status op_barrier(void *self, lade_error *error) {
  return ladei_group_outcome(lade_group_barrier(((nccl_group *)self)->parent), error);
}

static lade_status op_gather(void *self, const void *record, uint64_t bytes, void *out_records, lade_error *error) {
  return ladei_group_outcome(lade_group_gather(((nccl_group *)self)->parent, record, bytes, out_records), error);
}

/* L4. An operation under way looks at `failing`. */
static void op_abort(void *self, const lade_error *why) {
  nccl_group *g = self;
  assert(!atomic_load(&g->failing)); /* the group breaks once */
  g->why = *why;
  atomic_store_explicit(&g->failing, true, memory_order_release);
  (void)lade_group_abort(g->parent, why->status, why->text);
}

static void op_destroy(void *self) {
  nccl_group *g = self;
  communicator_abort(g);
  if (g->event != NULL) (void)ops_of(g)->event_destroy(g->runtime->self, g->event);
  ladei_runtime_release(g->runtime);
  free(g);
}

static const lade_group_ops nccl_ops = {
    .struct_size = sizeof(lade_group_ops),
    .name = "nccl",
    .rank = op_rank,
    .size = op_size,
    .broadcast = op_broadcast,
    .scatter = op_scatter,
    .barrier = op_barrier,
    .gather = op_gather,
    .abort = op_abort,
    .destroy = op_destroy,
};

/* --- creating ----------------------------------------------------------------------------------------------------- */

/* The record of a rank that all exchange before NCCL begins, which waits for all ranks. */
typedef struct nccl_introduction {
  ladei_nccl_id id; /* of rank 0 */
  uint64_t piece_bytes;
  ladei_group_needs needs;
} nccl_introduction;

static lade_status event_make(nccl_group *g) {
  uint64_t context;
  LADEI_TRY(ops_of(g)->device_context(g->runtime->self, g->device, &context));
  return ops_of(g)->event_create(g->runtime->self, context, 0, &g->event);
}

static lade_status own_needs(nccl_group *g, const char *library, ladei_nccl_id *out_id) {
  if (strcmp(lade_runtime_name(g->runtime), "cuda") != 0)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "NCCL: the runtime is \"%s\"; expected \"cuda\"",
                       lade_runtime_name(g->runtime));
  LADEI_TRY(ladei_nccl_open(library, &g->nccl));
  LADEI_TRY(event_make(g));
  int code = g->rank == 0 ? g->nccl.unique_id(out_id) : LADEI_NCCL_SUCCESS;
  return code == LADEI_NCCL_SUCCESS ? LADE_OK : nccl_error(g, "an id", code);
}

/* Each rank finds the same failure: none needs to be told. */
static lade_status introductions_compare(const nccl_group *g, const nccl_introduction *all) {
  for (uint32_t i = 0; i < g->size; i++) {
    LADEI_TRY(ladei_group_needs_check(&all[i].needs, i));
    if (all[i].piece_bytes != all[0].piece_bytes)
      return ladei_error(LADE_ERR_PEER, 0, "options.piece_bytes is %llu on rank %u and %llu on rank 0",
                         (unsigned long long)all[i].piece_bytes, i, (unsigned long long)all[0].piece_bytes);
  }
  return LADE_OK;
}

static lade_status introduce(nccl_group *g, const char *library, ladei_nccl_id *out_id) {
  nccl_introduction own = {.piece_bytes = g->piece_bytes};
  nccl_introduction *all = calloc(g->size, sizeof *all);
  if (all == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %u ranks", g->size);
  _Static_assert(sizeof own <= LADE_GROUP_RECORD_BYTES, "gathered at once");
  ladei_group_needs_note(&own.needs, own_needs(g, library, &own.id));
  lade_status status = lade_group_gather(g->parent, &own, sizeof own, all);
  if (status == LADE_OK) status = introductions_compare(g, all);
  if (status == LADE_OK) *out_id = all[0].id;
  free(all);
  return status;
}

/* NCCL takes the current device; afterwards the caller's is current again. */
static lade_status communicator_begin(nccl_group *g, ladei_nccl_id id) {
  ladei_nccl_config config = {
      .size = sizeof config, .magic = LADEI_NCCL_CONFIG_MAGIC, .version = LADEI_NCCL_CONFIG_VERSION, .blocking = 0};
  int before = 0;
  lade_status known = ops_of(g)->current_device(g->runtime->self, &before);
  LADEI_TRY(ops_of(g)->current_device_set(g->runtime->self, g->device));
  int code = g->nccl.begin(&g->communicator, (int)g->size, id, (int)g->rank, &config);
  lade_status status =
      g->communicator != NULL ? call_settle(g, "a communicator", code) : nccl_error(g, "a communicator", code);
  LADEI_ASIDE(if (known == LADE_OK)(void) ops_of(g)->current_device_set(g->runtime->self, before));
  return status;
}

static lade_status group_make(nccl_group *g, const char *library, lade_group **out) {
  ladei_nccl_id id;
  LADEI_TRY(introduce(g, library, &id));
  lade_status status = communicator_begin(g, id);
  /* Another rank may have failed: all meet once more by the parent, or learn of the failure there (L4). */
  if (status == LADE_OK)
    status = lade_group_barrier(g->parent);
  else
    (void)lade_group_abort(g->parent, status, lade_last_error()->text);
  LADEI_TRY(status);
  return lade_group_create(&nccl_ops, g, out);
}

static lade_status options_read(const lade_group_nccl_options *given, lade_group_nccl_options *own) {
  static const char call[] = "lade_group_create_nccl";
  lade_group_nccl_options_init(own);
  if (given != NULL) LADEI_TRY(ladei_options_read("lade_group_nccl_options", given, own, sizeof *own));
  if (own->piece_bytes == 0) own->piece_bytes = default_piece_bytes;
  LADEI_TRY(ladei_group_timeout_read(call, &own->timeout_ns));
  if (own->piece_bytes < least_piece_bytes || own->piece_bytes > most_piece_bytes)
    return ladei_error_argument(call, "options.piece_bytes", "from 4096 to 68719476736", "%llu",
                                (unsigned long long)own->piece_bytes);
  LADEI_TRY(ladei_options_reserved(call, "options.reserved", own->reserved));
  return LADE_OK;
}

lade_status lade_group_create_nccl(lade_runtime *runtime, lade_group *parent, const lade_group_nccl_options *options,
                                   lade_group **out) {
  lade_group_nccl_options own;
  if (runtime == NULL) return ladei_error_null(__func__, "runtime");
  if (parent == NULL) return ladei_error_null(__func__, "parent");
  if (out == NULL) return ladei_error_null(__func__, "out");
  LADEI_TRY(options_read(options, &own));
  LADEI_TRY(ladei_runtime_acquire(runtime)); /* op_destroy() releases it */
  nccl_group *g = calloc(1, sizeof *g);
  if (g == NULL) {
    ladei_runtime_release(runtime);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the group", __func__);
  }
  g->runtime = runtime;
  g->parent = parent;
  g->device = own.device;
  g->rank = lade_group_rank(parent);
  g->size = lade_group_size(parent);
  g->timeout_ns = own.timeout_ns;
  g->piece_bytes = own.piece_bytes;
  lade_status status = group_make(g, own.library, out);
  return status == LADE_OK ? LADE_OK : ladei_group_undo(__func__, status, op_destroy, g);
}
