/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: from the begin of a capture into a pool to its end, or to a state in which nothing of it is left.
 *
 *   open   pool: made, or named; begun (+1 use, allocations of the streams come from it) -> tally -> driver's capture
 *   close  driver's capture ends: a graph -> checks of the calls that the code made
 *   keep   pool ended -> the tally ends, its blocks are the program's
 *   discard, at any point: driver's capture ends -> tally's blocks freed -> pool ended -> tally ends -> use given back
 *
 * I1  After open the session has one use of the pool; keep leaves it to the caller, discard gives it back.
 * I2  The session never ends another capture: it compares the capture's number (`capture`).
 * I3  Blocks are freed while the capture into the pool is open, so that uses by other streams of the capture are
 *     forgotten with it (device/native/uses.c, Note [Uses in captures]) and the block is free at once.
 * I4  There is one graph at most, and a record for it from open on: a graph that the driver refuses to take back
 *     becomes the allocator's (device/native/refused.c).
 * Locks: none.
 */
#include "graph/single/session.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/for_graphs.h"

static const lade_runtime_ops *ops_of(const ladei_graph_session *session) {
  ladei_lock_assert_none_held();
  return session->allocator->runtime->ops;
}
static void *self_of(const ladei_graph_session *session) { return session->allocator->runtime->self; }

/* ---- The driver's capture ---------------------------------------------------------------------------------------- */

static lade_status capture_info(const ladei_graph_session *session, ladei_capture_info *out) {
  return ops_of(session)->stream_capture_info(self_of(session), &session->stream, out);
}

static bool capture_is_ours(const ladei_graph_session *session, const ladei_capture_info *info) {
  if (info->status == LADEI_CAPTURE_ACTIVE) return info->id == session->capture; /* I2 */
  return info->status == LADEI_CAPTURE_INVALIDATED;
}

/* I4 */
void ladei_graph_session_graph_drop(ladei_graph_session *session, ladei_graph graph) {
  ladei_device_graph_drop(session->allocator, session->record, graph);
  session->record = NULL;
}

enum { ATTEMPTS = 2 }; /* an end that fails before it reaches the driver leaves the capture as it was */

/* Drops the captured graph. */
static bool capture_end_once(ladei_graph_session *session) {
  ladei_graph graph = NULL;
  if (ops_of(session)->capture_end(self_of(session), &session->stream, &graph) != LADE_OK) return false;
  ladei_graph_session_graph_drop(session, graph);
  return true;
}

/* Ends the driver's capture for good. */
static void capture_drop(ladei_graph_session *session) {
  ladei_capture_info info;
  for (int i = 0; i < ATTEMPTS && session->capture != 0; i++) {
    if (capture_info(session, &info) == LADE_OK && !capture_is_ours(session, &info)) break;
    if (capture_end_once(session)) break;
  }
  session->capture = 0;
}

static lade_status capture_start(ladei_graph_session *session, ladei_capture_mode mode) {
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  LADEI_TRY(ops_of(session)->capture_begin(self_of(session), &session->stream, mode));
  lade_status status = capture_info(session, &info);
  session->capture = info.id;
  if (status == LADE_OK) return LADE_OK;
  lade_error first;
  ladei_error_save(&first);
  for (int i = 0; i < ATTEMPTS && !capture_end_once(session); i++) continue;
  ladei_error_restore(&first);
  return status;
}

/* ---- Open -------------------------------------------------------------------------------------------------------- */

/* The streams whose allocations belong to the pool: the capture's own comes first. */
static lade_status pool_route(ladei_graph_session *session, const ladei_graph_session_plan *plan) {
  enum { STREAMS_MOST = 64 };
  lade_stream streams[STREAMS_MOST];
  if (plan->stream_count >= STREAMS_MOST)
    return ladei_error_argument(plan->call, "options.stream_count", "at most 63", "%zu", plan->stream_count);
  streams[0] = plan->stream;
  for (size_t i = 0; i < plan->stream_count; i++) streams[i + 1] = plan->streams[i];
  lade_status status = lade_device_pool_begin(session->allocator, session->pool, streams, plan->stream_count + 1);
  session->routed = status == LADE_OK;
  return status;
}

/* I1 */
static lade_status pool_enter(ladei_graph_session *session, const ladei_graph_session_plan *plan) {
  bool own = plan->pool.first == 0 && plan->pool.second == 0;
  lade_status status = LADE_OK;
  session->pool = plan->pool;
  if (own) status = lade_device_pool_create(session->allocator, NULL, &session->pool);
  if (status != LADE_OK) return status;
  status = pool_route(session, plan);
  if (!own) return status;
  LADEI_ASIDE((void)lade_device_pool_release(session->allocator, session->pool)); /* the begin's use stays */
  return status;
}

static lade_status stream_check(ladei_graph_session *session, const ladei_graph_session_plan *plan) {
  const lade_device_allocator *allocator = session->allocator;
  LADEI_TRY(ops_of(session)->stream_resolve(self_of(session), plan->stream, &session->stream));
  if (session->stream.kind == LADEI_STREAM_LEGACY)
    return ladei_error_argument(plan->call, "options.stream", "a stream that can capture", "the legacy default stream");
  if (session->stream.device == allocator->device) return LADE_OK;
  return ladei_error_argument(plan->call, "options.stream", "a stream of the allocator's device", "of device %d",
                              session->stream.device);
}

/* I4 */
static lade_status record_make(ladei_graph_session *session, const char *call) {
  LADEI_ASIDE((void)ladei_device_refused_offer(session->allocator));
  session->record = calloc(1, sizeof *session->record);
  if (session->record != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", call, sizeof *session->record);
}

lade_status ladei_graph_session_open(ladei_graph_session *session, lade_device_allocator *allocator,
                                     const ladei_graph_session_plan *plan) {
  *session = (ladei_graph_session){.allocator = allocator};
  lade_status status = stream_check(session, plan);
  if (status == LADE_OK) status = record_make(session, plan->call);
  if (status == LADE_OK) status = pool_enter(session, plan);
  if (status != LADE_OK) {
    free(session->record);
    return status;
  }
  ladei_device_tally_begin(allocator, &session->tally, session->pool);
  status = capture_start(session, plan->mode);
  if (status != LADE_OK) ladei_graph_session_discard(session);
  return status;
}

/* ---- Close ------------------------------------------------------------------------------------------------------- */

static lade_status capture_finish(ladei_graph_session *session, const char *call, ladei_graph *out_graph) {
  ladei_capture_info info;
  lade_status status = capture_info(session, &info);
  if (status != LADE_OK) return status;
  if (!capture_is_ours(session, &info)) {
    session->capture = 0;
    return ladei_error(LADE_ERR_CAPTURE, 0, "%s: the capture was ended before by its own code; expected it to go on",
                       call);
  }
  bool invalid = info.status == LADEI_CAPTURE_INVALIDATED;
  status = ops_of(session)->capture_end(self_of(session), &session->stream, out_graph);
  if (status == LADE_OK) {
    session->capture = 0;
    return LADE_OK;
  }
  if (invalid)
    return ladei_error_prefix(status,
                              "%s: the code of the capture made it invalid, by a call that cannot be captured, such as "
                              "waiting for a capturing stream: ",
                              call);
  return ladei_error_prefix(status, "%s: ", call);
}

static lade_status conduct_judge(const ladei_graph_session *session, const char *call) {
  if (!session->tally.refused) return LADE_OK;
  ladei_error_restore(&session->tally.refusal);
  return ladei_error_prefix(session->tally.refusal.status, "%s: a call of the capture's code was refused: ", call);
}

/* Checks that the code has not ended the session's pool. */
static lade_status pool_judge(const ladei_graph_session *session, const char *call) {
  lade_device_allocator *allocator = session->allocator;
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, session->pool);
  bool captured = pool != NULL && atomic_load(&pool->capturing);
  ladei_lock_release(&allocator->lock);
  if (captured) return LADE_OK;
  return ladei_error(LADE_ERR_CAPTURE, 0,
                     "%s: the code of the capture ended its pool, (%llu, %llu), by lade_device_pool_end()", call,
                     (unsigned long long)session->pool.first, (unsigned long long)session->pool.second);
}

static void pool_end(ladei_graph_session *session) {
  if (session->routed) (void)lade_device_pool_end(session->allocator, session->pool);
  session->routed = false;
}

lade_status ladei_graph_session_close(ladei_graph_session *session, const char *call, ladei_graph *out_graph) {
  ladei_graph graph = NULL;
  assert(session->routed && session->capture != 0);
  lade_status status = capture_finish(session, call, &graph);
  if (status == LADE_OK) status = conduct_judge(session, call);
  if (status == LADE_OK) status = pool_judge(session, call);
  if (status == LADE_OK) {
    *out_graph = graph;
    return LADE_OK;
  }
  if (graph != NULL) ladei_graph_session_graph_drop(session, graph);
  return status;
}

void ladei_graph_session_keep(ladei_graph_session *session) {
  assert(session->capture == 0); /* the capture is over */
  pool_end(session);
  ladei_device_tally_end(session->allocator, &session->tally);
  free(session->record);
}

void ladei_graph_session_discard(ladei_graph_session *session) {
  lade_error first;
  ladei_error_save(&first);
  capture_drop(session);
  ladei_device_tally_free_all(session->allocator, &session->tally); /* I3 */
  pool_end(session);
  ladei_device_uses_settle_deferred(session->allocator);
  ladei_device_tally_end(session->allocator, &session->tally);
  if (!session->use_gone) (void)lade_device_pool_release(session->allocator, session->pool);
  assert(session->capture == 0 && !session->routed); /* I1: nothing is left */
  free(session->record);
  ladei_error_restore(&first);
}
