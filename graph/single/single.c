/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single graphs: the public calls.
 *
 *   capture   session: open -> work -> close --> native graph --tie--> hold --instantiate--> version
 *   adopt     the program's native graph ------------'
 *   update    session or program's graph --> native graph --tie--> hold --exec update, or instantiate--> version,
 *                                                                        the former one is spent
 *
 * A version is a native graph, the executable graph that launches use, and the hold of its pool. In an update in place
 * the executable graph moves from the former version to the new one. It then keeps the new native graph's user objects
 * in place of the former one's, once launches under way have ended.
 *
 * I1  Before its commit an update makes only objects that no other thread sees; the commit only changes pointers. So a
 *     failure at any step leaves the graph as it was.
 * I2  An executable graph is in one driver call at a time, as the driver does not serialise them: calls need the turn.
 * I3  Launches run one after the other on the device. The driver ensures it for one executable graph; after a
 *     replacement the first launch on another stream waits for `fence`, recorded after the former one's last launch.
 * I6  The handle of a stream that may be gone is never passed to the driver, which may not survive that. Only
 *     options.stream and the legacy stream stay. After a launch on any other stream `fence` is recorded at once
 *     (`fenced`), and all waits for that launch wait for it. If the record fails, the thread waits for the launch at
 *     once; if that fails, too, for the device later.
 * I4  Versions that the driver refused to take back stay spent; each update and the destruction offer them again.
 * I5  The allocator lives longer than the graph (ladei_device_allocator_acquire()) and its holds.
 * Locks: the graph's lock (a leaf) guards only the turn; the turn guards everything else, except in the destruction. No
 * driver call is made under the lock.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/call.h"
#include "base/error.h"
#include "base/options.h"
#include "base/thread.h"
#include "device/for_graphs.h"
#include "graph/single/versions.h"
#include "lade/graph.h"

struct lade_graph {
  lade_device_allocator *allocator;
  lade_graph_options options; /* `streams` is its own copy */
  lade_device_pool_id pool;   /* of captures */
  bool adopted;
  atomic_int open_updates;

  ladei_lock lock;
  ladei_condition turned;
  bool turn; /* a thread has it */

  ladei_graph_version *current;
  ladei_graph_version *spent;
  bool launched;
  ladei_stream last; /* of the last launch */
  bool stays;        /* I6: `last` may be passed to the driver */
  bool fenced;       /* `fence` is after the last launch */
  lade_event fence;  /* NULL: none yet */
  uint64_t fence_context;
  bool fence_due;
  lade_graph_info counts;
};

struct lade_graph_capture_state {
  ladei_graph_session session;
  lade_graph *graph; /* the one to update, or the new one */
  bool is_update;
  uint64_t thread;
};

static const lade_runtime_ops *ops_of(const lade_graph *graph) {
  ladei_lock_assert_none_held();
  return graph->allocator->runtime->ops;
}
static void *self_of(const lade_graph *graph) { return graph->allocator->runtime->self; }

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static void turn_take(lade_graph *graph) {
  ladei_lock_acquire(&graph->lock);
  while (graph->turn) ladei_condition_wait(&graph->turned, &graph->lock);
  graph->turn = true;
  ladei_lock_release(&graph->lock);
}

static void turn_give(lade_graph *graph) {
  ladei_lock_acquire(&graph->lock);
  assert(graph->turn);
  graph->turn = false;
  ladei_lock_release(&graph->lock);
  ladei_condition_signal(&graph->turned);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

static lade_status options_check(const char *call, const lade_graph_options *options, bool adopts) {
  const uint32_t both = LADE_GRAPH_DEVICE_LAUNCH | LADE_GRAPH_AUTO_FREE;
  if ((options->flags & ~(both | (adopts ? LADE_GRAPH_BORROW_NATIVE : 0u))) != 0)
    return ladei_error_argument(call, "options.flags",
                                "a set of lade_graph_flag, LADE_GRAPH_BORROW_NATIVE to adopt alone", "0x%x",
                                (unsigned)options->flags);
  if (options->strictness > LADE_GRAPH_RELAXED)
    return ladei_error_argument(call, "options.strictness", "a lade_graph_strictness", "%u",
                                (unsigned)options->strictness);
  if (options->stream == NULL && !adopts) return ladei_error_null(call, "options.stream");
  if (options->stream_count > 0 && options->streams == NULL) return ladei_error_null(call, "options.streams");
  if (options->stream_count > 63)
    return ladei_error_argument(call, "options.stream_count", "at most 63", "%llu",
                                (unsigned long long)options->stream_count);
  return LADE_OK;
}

static lade_status allocator_check(const lade_device_allocator *allocator, const char *call) {
  LADEI_TRY(ladei_device_check_call(allocator, call));
  LADEI_TRY(ladei_device_check_heap(allocator, call));
  if (allocator->runtime->ops->capture_begin == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime \"%s\" has no graphs", call,
                       allocator->runtime->ops->name);
  return LADE_OK;
}

static void graph_free(lade_graph *graph) {
  ladei_device_allocator_release(graph->allocator);
  ladei_lock_destroy(&graph->lock);
  ladei_condition_destroy(&graph->turned);
  free((void *)(uintptr_t)graph->options.streams);
  free(graph);
}

/* Makes a graph without a version. */
static lade_status graph_make(lade_device_allocator *allocator, const char *call, const lade_graph_options *options,
                              bool adopts, lade_graph **out) {
  lade_graph_options own;
  LADEI_TRY(allocator_check(allocator, call));
  LADEI_TRY(ladei_options_read("lade_graph_options", options, &own, sizeof own));
  LADEI_TRY(options_check(call, &own, adopts));
  lade_graph *graph = calloc(1, sizeof *graph);
  lade_stream *streams = calloc((size_t)own.stream_count + 1, sizeof *streams);
  if (graph == NULL || streams == NULL) {
    free(graph);
    free(streams);
    return ladei_graph_no_memory(call, sizeof *graph);
  }
  for (size_t i = 0; i < own.stream_count; i++) streams[i] = own.streams[i];
  own.streams = streams;
  graph->allocator = allocator;
  graph->options = own;
  graph->pool = own.pool;
  graph->adopted = adopts;
  ladei_lock_init(&graph->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&graph->turned);
  ladei_device_allocator_acquire(allocator);
  *out = graph;
  return LADE_OK;
}

static lade_status graph_check(const lade_graph *graph, const char *call) {
  return graph == NULL ? ladei_error_null(call, "graph") : ladei_runtime_check_process(graph->allocator->runtime);
}

/* After a destruction that the driver refused, only the destruction can be called. */
static lade_status destruction_began(const char *call) {
  return ladei_error_argument(call, "graph", "one that lives", "one whose destruction has begun");
}

/* ---- The last launch --------------------------------------------------------------------------------------------- */

/* I6 */
static bool stream_stays(const lade_graph *graph, const ladei_stream *stream) {
  return stream->kind == LADEI_STREAM_LEGACY ||
         (stream->kind == LADEI_STREAM_ORDINARY && stream->handle == graph->options.stream);
}

/* Waits for all work on the device. That would break the captures that the allocator knows, except `own` ones, which
 * the driver has ended. */
static lade_status device_finish(const lade_graph *graph, size_t own) {
  size_t captures = atomic_load(&graph->allocator->routes.captures);
  if (captures > own)
    return ladei_error(LADE_ERR_CAPTURE, 0,
                       "graph: no event was recorded after its last launch, and waiting for device %d would break the "
                       "captures under way, %zu",
                       graph->allocator->device, captures - own);
  ladei_capture_mode mode = ladei_capture_mode_relax(graph->allocator->runtime);
  lade_status status = ops_of(graph)->device_synchronize(self_of(graph), graph->allocator->device);
  ladei_capture_mode_restore(graph->allocator->runtime, mode);
  return status;
}

static lade_status fence_finish(const lade_graph *graph) {
  ladei_capture_mode mode = ladei_capture_mode_relax(graph->allocator->runtime);
  lade_status status = ops_of(graph)->event_synchronize(self_of(graph), graph->fence);
  ladei_capture_mode_restore(graph->allocator->runtime, mode);
  return status;
}

static lade_status last_finish(const lade_graph *graph) {
  if (!graph->launched) return LADE_OK;
  lade_status status = graph->fenced  ? fence_finish(graph)
                       : graph->stays ? ladei_stream_wait(graph->allocator->runtime, &graph->last)
                                      : device_finish(graph, 0);
  return status == LADE_ERR_DEVICE_LOST ? LADE_OK : status; /* nothing runs on it any more */
}

static lade_status fence_drop(lade_graph *graph) {
  lade_status status = graph->fence == NULL ? LADE_OK : ops_of(graph)->event_destroy(self_of(graph), graph->fence);
  if (status == LADE_OK) graph->fence = NULL;
  return status;
}

/* Makes `fence` an event for streams of this context. If the former one, of another context of the device, is due, the
 * stream has waited for it: the new one is recorded on the stream, and is due in its place. */
static lade_status fence_need(lade_graph *graph, const ladei_stream *stream) {
  lade_event event;
  if (graph->fence != NULL && graph->fence_context == stream->context) return LADE_OK;
  LADEI_TRY(ops_of(graph)->event_create(self_of(graph), stream->context, 0, &event));
  lade_status status = LADE_OK;
  if (graph->fence_due) status = ops_of(graph)->event_record(self_of(graph), event, stream);
  if (status == LADE_OK) status = fence_drop(graph);
  if (status != LADE_OK) {
    LADEI_ASIDE((void)ops_of(graph)->event_destroy(self_of(graph), event));
    return status;
  }
  graph->fence = event;
  graph->fence_context = stream->context;
  graph->fenced = graph->fenced && graph->fence_due;
  return LADE_OK;
}

/* I3: before a replacement. A due event may be recorded again: after the same launch, or later. */
static lade_status fence_place(lade_graph *graph, size_t own_captures, bool *out_due) {
  const lade_runtime *runtime = graph->allocator->runtime;
  *out_due = graph->launched && graph->fenced;
  if (!graph->launched || graph->fenced) return LADE_OK;
  if (!graph->stays) return device_finish(graph, own_captures);
  LADEI_TRY(ladei_stream_uncaptured(runtime, &graph->last, "event_record"));
  LADEI_TRY(fence_need(graph, &graph->last));
  LADEI_TRY(ops_of(graph)->event_record(self_of(graph), graph->fence, &graph->last));
  *out_due = true;
  return ladei_stream_uncaptured(runtime, &graph->last, "event_record");
}

/* ---- Capturing --------------------------------------------------------------------------------------------------- */

static lade_status capture_open(lade_graph *graph, const char *call, lade_graph_capture_state *state) {
  const ladei_graph_session_plan plan = {
      .call = call,
      .pool = graph->pool,
      .stream = graph->options.stream,
      .streams = graph->options.streams,
      .stream_count = (size_t)graph->options.stream_count,
      .mode = graph->options.strictness == LADE_GRAPH_GLOBAL    ? LADEI_CAPTURE_GLOBAL
              : graph->options.strictness == LADE_GRAPH_RELAXED ? LADEI_CAPTURE_RELAXED
                                                                : LADEI_CAPTURE_THREAD_LOCAL,
  };
  state->graph = graph;
  state->thread = ladei_thread_number();
  return ladei_graph_session_open(&state->session, graph->allocator, &plan);
}

/* From the end of the code to a candidate. On failure the session is discarded. */
static lade_status capture_close(lade_graph_capture_state *state, const char *call, ladei_graph_candidate *out) {
  ladei_graph_session *session = &state->session;
  ladei_graph native = NULL;
  lade_status status = ladei_graph_session_close(session, call, &native);
  if (status == LADE_OK) {
    status = ladei_graph_candidate_make(session->allocator, call, native, session, session->pool, out);
    if (status != LADE_OK) session->use_gone = !ladei_graph_candidate_discard(session->allocator, out);
  }
  if (status != LADE_OK) ladei_graph_session_discard(session);
  return status;
}

/* Undoes a candidate that failed later. If its use of the pool is tied, the session has none to give back. */
static void capture_undo(lade_graph_capture_state *state, ladei_graph_candidate *candidate) {
  state->session.use_gone = !ladei_graph_candidate_discard(state->session.allocator, candidate);
  ladei_graph_session_discard(&state->session);
}

/* The capture's status for the code's: with the text of the code's error. */
static lade_status work_judge(const char *call, lade_status status, const lade_error *before) {
  if (status == LADE_OK) return LADE_OK;
  lade_error words;
  ladei_error_save(&words);
  bool told = words.status == status && memcmp(before->text, words.text, sizeof words.text) != 0;
  return ladei_error(LADE_ERR_CALLBACK, 0, "%s: the code of the capture returned %s; expected LADE_OK%s%.300s", call,
                     lade_status_name(status), told ? ": " : "", told ? words.text : "");
}

/* Runs the code in an open session. On failure the session is discarded. */
static lade_status work_run(lade_graph_capture_state *state, const char *call, lade_graph_work work, void *user) {
  lade_error before;
  ladei_error_save(&before);
  ladei_lock_assert_none_held();
  lade_status status = work_judge(call, work(state->graph->options.stream, user), &before);
  if (status != LADE_OK) ladei_graph_session_discard(&state->session);
  return status;
}

/* The first version. */
static lade_status first_finish(lade_graph_capture_state *state, const char *call) {
  ladei_graph_candidate made;
  lade_graph *graph = state->graph;
  LADEI_TRY(capture_close(state, call, &made));
  lade_status status = ladei_graph_candidate_instantiate(graph->allocator, graph->options.flags, &made);
  if (status != LADE_OK) {
    capture_undo(state, &made);
    return ladei_error_prefix(status, "%s: ", call);
  }
  ladei_graph_session_keep(&state->session);
  graph->pool = state->session.pool;
  graph->current = made.version;
  return LADE_OK;
}

static lade_status capture_now(lade_device_allocator *allocator, const char *call, const lade_graph_options *options,
                               lade_graph_work work, void *user, lade_graph **out) {
  lade_graph_capture_state state = {.is_update = false};
  lade_graph *graph = NULL;
  LADEI_TRY(graph_make(allocator, call, options, false, &graph));
  lade_status status = capture_open(graph, call, &state);
  if (status == LADE_OK) status = work_run(&state, call, work, user);
  if (status == LADE_OK) status = first_finish(&state, call);
  if (status == LADE_OK)
    *out = graph;
  else
    graph_free(graph);
  return status;
}

lade_status lade_graph_capture(lade_device_allocator *allocator, const lade_graph_options *options,
                               lade_graph_work work, void *user, lade_graph **out) {
  if (work == NULL || out == NULL) return ladei_error_null(__func__, work == NULL ? "work" : "out");
  return LADEI_HELD(capture_now(allocator, __func__, options, work, user, out));
}

static lade_status begin_now(lade_graph *graph, const char *call, bool is_update, lade_graph_capture_state **out) {
  lade_graph_capture_state *state = calloc(1, sizeof *state);
  if (state == NULL) return ladei_graph_no_memory(call, sizeof *state);
  state->is_update = is_update;
  lade_status status = capture_open(graph, call, state);
  if (status == LADE_OK)
    *out = state;
  else
    free(state);
  return status;
}

lade_status lade_graph_capture_begin(lade_device_allocator *allocator, const lade_graph_options *options,
                                     lade_graph_capture_state **out) {
  if (out == NULL) return ladei_error_null(__func__, "out");
  int cancellation = ladei_cancellation_hold();
  lade_graph *graph = NULL;
  lade_status status = graph_make(allocator, __func__, options, false, &graph);
  if (status == LADE_OK) {
    status = begin_now(graph, __func__, false, out);
    if (status != LADE_OK) graph_free(graph);
  }
  ladei_cancellation_resume(cancellation);
  ladei_log_flush();
  return status;
}

/* Whether the calling thread may end the capture. */
static lade_status state_check(const lade_graph_capture_state *state, const char *call) {
  if (state == NULL) return ladei_error_null(call, "state");
  LADEI_TRY(ladei_runtime_check_process(state->graph->allocator->runtime));
  if (state->graph->options.strictness == LADE_GRAPH_RELAXED || state->thread == ladei_thread_number()) return LADE_OK;
  return ladei_error(LADE_ERR_CAPTURE, 0,
                     "%s: thread %llu calls; expected the one that began the capture, %llu, or LADE_GRAPH_RELAXED",
                     call, (unsigned long long)ladei_thread_number(), (unsigned long long)state->thread);
}

lade_status lade_graph_capture_abort(lade_graph_capture_state *state) {
  if (state == NULL) return LADE_OK;
  LADEI_TRY(state_check(state, __func__));
  int cancellation = ladei_cancellation_hold();
  ladei_graph_session_discard(&state->session);
  if (state->is_update)
    atomic_fetch_sub(&state->graph->open_updates, 1);
  else
    graph_free(state->graph);
  free(state);
  ladei_cancellation_resume(cancellation);
  ladei_log_flush();
  return LADE_OK;
}

/* ---- Adopting ---------------------------------------------------------------------------------------------------- */

/* A candidate for the program's native graph, with a new use of the pool. On failure nothing is left. */
static lade_status native_take(lade_graph *graph, const char *call, lade_device_pool_id pool, void *native_graph,
                               ladei_graph_candidate *out) {
  if (native_graph == NULL) return ladei_error_null(call, "native_graph");
  bool has_pool = pool.first != 0 || pool.second != 0;
  if (has_pool) LADEI_TRY(ladei_device_private_pool_hold(graph->allocator, call, pool));
  lade_status status = ladei_graph_candidate_make(graph->allocator, call, (ladei_graph)native_graph, NULL, pool, out);
  if (status == LADE_OK) return LADE_OK;
  if (ladei_graph_candidate_discard(graph->allocator, out))
    LADEI_ASIDE((void)lade_device_pool_release(graph->allocator, pool));
  return status;
}

/* After the success the graph owns the native graph, unless it is borrowed. */
static void native_own(const lade_graph *graph, ladei_graph_candidate *candidate) {
  if ((graph->options.flags & LADE_GRAPH_BORROW_NATIVE) == 0)
    candidate->version->native = candidate->native;
  else
    candidate->version->lent = true; /* the program may still make executable graphs of it */
}

static lade_status adopt_now(lade_device_allocator *allocator, const char *call, lade_device_pool_id pool,
                             void *native_graph, const lade_graph_options *options, lade_graph **out) {
  lade_graph *graph = NULL;
  ladei_graph_candidate made;
  LADEI_TRY(graph_make(allocator, call, options, true, &graph));
  graph->pool = pool;
  lade_status status = native_take(graph, call, pool, native_graph, &made);
  if (status == LADE_OK) {
    status = ladei_graph_candidate_instantiate(graph->allocator, graph->options.flags, &made);
    if (status != LADE_OK) (void)ladei_graph_candidate_discard(allocator, &made);
  }
  if (status != LADE_OK) {
    graph_free(graph);
    return status;
  }
  native_own(graph, &made);
  graph->current = made.version;
  *out = graph;
  return LADE_OK;
}

lade_status lade_graph_adopt(lade_device_allocator *allocator, lade_device_pool_id pool, void *native_graph,
                             const lade_graph_options *options, lade_graph **out) {
  if (out == NULL) return ladei_error_null(__func__, "out");
  return LADEI_HELD(adopt_now(allocator, __func__, pool, native_graph, options, out));
}

/* ---- Updating ---------------------------------------------------------------------------------------------------- */

/* With the turn. The driver updates the executable graph to the candidate's native graph, or leaves it as it was. */
static lade_status exec_update(lade_graph *graph, const ladei_graph_candidate *candidate, bool *out_updated) {
  ladei_graph_update outcome = LADEI_GRAPH_NOT_UPDATABLE;
  *out_updated = false;
  LADEI_TRY(ops_of(graph)->graph_exec_update(self_of(graph), graph->current->exec, candidate->native, &outcome));
  *out_updated = outcome == LADEI_GRAPH_UPDATED;
  return LADE_OK;
}

/* With the turn: makes another executable graph, and the event that its first launch waits for. */
static lade_status exec_replace(lade_graph *graph, ladei_graph_candidate *candidate) {
  bool due;
  LADEI_TRY(fence_place(graph, candidate->session != NULL ? 1 : 0, &due));
  LADEI_TRY(ladei_graph_candidate_instantiate(graph->allocator, graph->options.flags, candidate));
  graph->fence_due = due;
  return LADE_OK;
}

/* I1: the last step. */
static void version_commit(lade_graph *graph, ladei_graph_version *version) {
  ladei_graph_version *former = graph->current;
  assert(graph->turn && version->next == NULL); /* I2 */
  if (version->exec == NULL) {                  /* updated in place */
    version->exec = former->exec;
    version->lent = version->lent || former->lent;
    former->exec = NULL;
    graph->counts.updates++;
  } else {
    graph->counts.replacements++;
  }
  former->next = graph->spent;
  graph->spent = former;
  graph->current = version;
}

/* On failure the candidate stays as it was. */
static lade_status candidate_commit(lade_graph *graph, ladei_graph_candidate *candidate, bool *out_in_place) {
  bool in_place = false;
  turn_take(graph);
  lade_status status = graph->current == NULL ? destruction_began("lade_graph_update") : LADE_OK;
  if (status == LADE_OK) status = exec_update(graph, candidate, &in_place);
  if (status == LADE_OK && !in_place) status = exec_replace(graph, candidate);
  if (status == LADE_OK) {
    version_commit(graph, candidate->version);
    LADEI_ASIDE((void)ladei_graph_spent_destroy(graph->allocator, &graph->spent, false)); /* I4 */
  }
  turn_give(graph);
  if (status == LADE_OK && out_in_place != NULL) *out_in_place = in_place;
  return status;
}

static lade_status update_finish(lade_graph_capture_state *state, const char *call, bool *out_in_place) {
  ladei_graph_candidate made;
  LADEI_TRY(capture_close(state, call, &made));
  lade_status status = candidate_commit(state->graph, &made, out_in_place);
  if (status != LADE_OK) {
    capture_undo(state, &made);
    return ladei_error_prefix(status, "%s: ", call);
  }
  ladei_graph_session_keep(&state->session);
  return LADE_OK;
}

static lade_status update_check(const lade_graph *graph, const char *call) {
  LADEI_TRY(graph_check(graph, call));
  if (graph->options.stream != NULL) return LADE_OK;
  return ladei_error_argument(call, "graph", "one with options.stream, to capture on", "one that was adopted without");
}

lade_status lade_graph_update(lade_graph *graph, lade_graph_work work, void *user, bool *out_in_place) {
  LADEI_TRY(update_check(graph, __func__));
  if (work == NULL) return ladei_error_null(__func__, "work");
  lade_graph_capture_state state = {.is_update = true};
  int cancellation = ladei_cancellation_hold();
  atomic_fetch_add(&graph->open_updates, 1);
  lade_status status = capture_open(graph, __func__, &state);
  if (status == LADE_OK) status = work_run(&state, __func__, work, user);
  if (status == LADE_OK) status = update_finish(&state, __func__, out_in_place);
  atomic_fetch_sub(&graph->open_updates, 1);
  ladei_cancellation_resume(cancellation);
  ladei_log_flush();
  return status;
}

lade_status lade_graph_update_begin(lade_graph *graph, lade_graph_capture_state **out) {
  LADEI_TRY(update_check(graph, __func__));
  if (out == NULL) return ladei_error_null(__func__, "out");
  int cancellation = ladei_cancellation_hold();
  atomic_fetch_add(&graph->open_updates, 1);
  lade_status status = begin_now(graph, __func__, true, out);
  if (status != LADE_OK) atomic_fetch_sub(&graph->open_updates, 1);
  ladei_cancellation_resume(cancellation);
  ladei_log_flush();
  return status;
}

lade_status lade_graph_capture_end(lade_graph_capture_state *state, lade_graph **out) {
  LADEI_TRY(state_check(state, __func__));
  const bool is_update = state->is_update;
  if (out == NULL && !is_update) return ladei_error_null(__func__, "out");
  int cancellation = ladei_cancellation_hold();
  lade_graph *graph = state->graph;
  lade_status status = is_update ? update_finish(state, __func__, NULL) : first_finish(state, __func__);
  if (is_update) atomic_fetch_sub(&graph->open_updates, 1);
  if (status == LADE_OK && out != NULL) *out = graph;
  if (status != LADE_OK && !is_update) graph_free(graph);
  free(state);
  ladei_cancellation_resume(cancellation);
  ladei_log_flush();
  return status;
}

static lade_status update_native_now(lade_graph *graph, const char *call, lade_device_pool_id pool, void *native_graph,
                                     bool *out_in_place) {
  ladei_graph_candidate made;
  LADEI_TRY(native_take(graph, call, pool, native_graph, &made));
  native_own(graph, &made);
  lade_status status = candidate_commit(graph, &made, out_in_place);
  if (status == LADE_OK) return LADE_OK;
  made.version->native = NULL;
  (void)ladei_graph_candidate_discard(graph->allocator, &made);
  return status;
}

lade_status lade_graph_update_native(lade_graph *graph, lade_device_pool_id pool, void *native_graph,
                                     bool *out_in_place) {
  LADEI_TRY(graph_check(graph, __func__));
  return LADEI_HELD(update_native_now(graph, __func__, pool, native_graph, out_in_place));
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

static bool streams_equal(const ladei_stream *a, const ladei_stream *b) {
  return a->context == b->context && a->id == b->id;
}

/* I6: right after the launch, which stays valid if this fails. */
static void fence_launch(lade_graph *graph, const ladei_stream *stream) {
  lade_error before;
  ladei_error_save(&before);
  graph->fenced = ops_of(graph)->event_record(self_of(graph), graph->fence, stream) == LADE_OK;
  if (!graph->fenced && ladei_stream_wait(graph->allocator->runtime, stream) == LADE_OK) graph->launched = false;
  ladei_error_restore(&before);
}

static lade_status launch_queue(lade_graph *graph, const ladei_stream *stream) {
  bool stays = stream_stays(graph, stream);
  if (graph->fence_due && !streams_equal(stream, &graph->last)) /* I3 */
    LADEI_TRY(ops_of(graph)->stream_wait_event(self_of(graph), stream, graph->fence));
  if (!stays) LADEI_TRY(fence_need(graph, stream));
  LADEI_TRY(ops_of(graph)->graph_launch(self_of(graph), graph->current->exec, stream));
  graph->fence_due = graph->fenced = false;
  graph->launched = true;
  graph->last = *stream;
  graph->stays = stays;
  graph->counts.launches++;
  if (!stays) fence_launch(graph, stream);
  return LADE_OK;
}

static lade_status upload_queue(lade_graph *graph, const ladei_stream *stream) {
  return ops_of(graph)->graph_upload(self_of(graph), graph->current->exec, stream);
}

typedef lade_status queuing(lade_graph *graph, const ladei_stream *stream);

/* With the turn. */
static lade_status queue_now(lade_graph *graph, const ladei_stream *stream, const char *call, queuing *queue) {
  if (graph->current == NULL) return destruction_began(call);
  LADEI_TRY(ladei_device_launch_begin(graph->allocator, call, graph->current->memory));
  lade_status status = queue(graph, stream);
  ladei_device_launch_end(graph->current->memory);
  return status;
}

static lade_status queue_on(lade_graph *graph, lade_stream stream, const char *call, queuing *queue) {
  ladei_stream resolved;
  LADEI_TRY(graph_check(graph, call));
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_device_stream_resolve(graph->allocator, stream, &resolved);
  if (status == LADE_OK) {
    turn_take(graph);
    status = queue_now(graph, &resolved, call, queue);
    turn_give(graph);
  }
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status lade_graph_launch(lade_graph *graph, lade_stream stream) {
  return queue_on(graph, stream, __func__, launch_queue);
}

lade_status lade_graph_upload(lade_graph *graph, lade_stream stream) {
  return queue_on(graph, stream, __func__, upload_queue);
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

lade_status lade_graph_native(lade_graph *graph, void **out_graph, void **out_exec) {
  LADEI_TRY(graph_check(graph, __func__));
  turn_take(graph);
  ladei_graph_version *current = graph->current;
  lade_status status = current == NULL ? destruction_began(__func__) : LADE_OK;
  if (status == LADE_OK) {
    current->lent = current->lent || out_graph != NULL || out_exec != NULL;
    if (out_graph != NULL) *out_graph = (void *)current->native;
    if (out_exec != NULL) *out_exec = (void *)current->exec;
  }
  turn_give(graph);
  return status;
}

lade_status lade_graph_info_get(lade_graph *graph, lade_graph_info *info) {
  LADEI_TRY(graph_check(graph, __func__));
  if (info == NULL) return ladei_error_null(__func__, "info");
  turn_take(graph);
  const ladei_graph_version *current = graph->current;
  lade_graph_info own = graph->counts;
  if (current != NULL) {
    own.pool = current->pool;
    own.node_count = current->counts.nodes;
    own.edge_count = current->counts.edges;
  }
  turn_give(graph);
  if (current == NULL) return destruction_began(__func__);
  own.struct_size = sizeof own;
  own.adopted = graph->adopted;
  return ladei_stats_write("lade_graph_info", &own, sizeof own, info);
}

/* ---- Destroying -------------------------------------------------------------------------------------------------- */

static lade_status destroy_now(lade_graph *graph, bool wait) {
  if (wait) LADEI_TRY(last_finish(graph));
  if (graph->current != NULL) { /* it is spent, too */
    graph->current->next = graph->spent;
    graph->spent = graph->current;
    graph->current = NULL;
  }
  LADEI_TRY(ladei_graph_spent_destroy(graph->allocator, &graph->spent, wait));
  LADEI_TRY(fence_drop(graph));
  ladei_graph_spent_forget(graph->allocator, &graph->spent);
  graph_free(graph);
  return LADE_OK;
}

lade_status lade_graph_destroy(lade_graph *graph, bool wait) {
  if (graph == NULL) return LADE_OK;
  LADEI_TRY(graph_check(graph, __func__));
  int open = atomic_load(&graph->open_updates);
  if (open > 0) return ladei_error(LADE_ERR_BUSY, 0, "%s: %d updates of the graph are open", __func__, open);
  return LADEI_HELD(destroy_now(graph, wait));
}
