/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of a tree's work on streams.
 *
 *   run 1 on s1    run 2 on s1    run 3 on s2: waits for s1, and for the streams noted since
 *   warm-up on s2: s2 --event--> tree's stream: body --event--> s2
 *
 * O1  `last` is the stream of the last run; all earlier work is ordered before work queued on it from then on.
 * O2  The next run waits for `last`, if that is another stream, for `noted` and for `gates`; then they are forgotten.
 *     Streams noted during a run stand from `noted_waited` on, for the next run. Between runs that is 0, and no stream
 *     is noted twice.
 * O3  No call waits on the host, unless the driver refuses an event after a run on a per-thread stream or a warm-up
 *     (run.c).
 * O4  No event is recorded on a stream that captures: it, and all streams that wait for it, would join that capture.
 * Only its own thread may use a per-thread stream (runtime/ops.h), so after a run on one `own_event`, made before the
 * run does anything, is recorded at once.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "graph/tree/tree.h"

static bool same_stream(const ladei_stream *a, const ladei_stream *b) {
  return a->context == b->context && a->id == b->id;
}

static lade_status event_on(lade_graph_tree *tree, const ladei_stream *stream, ladei_event **out) {
  ladei_lock_assert_none_held();
  LADEI_TRY(ladei_event_pool_acquire(tree->events, stream->context, out));
  lade_status status = ladei_tree_ops(tree)->event_record(tree->runtime->self, (*out)->handle, stream);
  if (status != LADE_OK) ladei_event_pool_discard(tree->events, *out);
  return status;
}

static lade_status event_wait(lade_graph_tree *tree, const ladei_stream *stream, const ladei_event *event) {
  return ladei_tree_ops(tree)->stream_wait_event(tree->runtime->self, stream, event->handle);
}

lade_status ladei_tree_order_between(lade_graph_tree *tree, const ladei_stream *from, const ladei_stream *to) {
  ladei_event *event = NULL;
  if (same_stream(from, to)) return LADE_OK;
  LADEI_TRY(event_on(tree, from, &event));
  lade_status status = event_wait(tree, to, event);
  ladei_event_pool_release(tree->events, event);
  return status;
}

/* Takes the gates and notes that this run waits for; later notes are for the next run. */
static size_t waited_take(lade_graph_tree *tree) {
  ladei_lock_acquire(&tree->lock);
  assert(tree->noted_waited == 0); /* O2 */
  ladei_event **end = &tree->gates_waited;
  while (*end != NULL) end = &(*end)->next;
  *end = tree->gates;
  tree->gates = NULL;
  size_t count = tree->noted_waited = tree->noted_count;
  ladei_lock_release(&tree->lock);
  return count;
}

static size_t noted_find(const lade_graph_tree *tree, const ladei_stream *stream, size_t from, size_t end) {
  ladei_lock_assert_held(&tree->lock);
  while (from < end && !same_stream(&tree->noted[from], stream)) from++;
  return from;
}

/* The run has failed: the next one waits for the same streams, and for those noted meanwhile, each once. */
static void waited_return(lade_graph_tree *tree) {
  ladei_lock_acquire(&tree->lock);
  size_t waited = tree->noted_waited, kept = waited;
  assert(waited <= tree->noted_count);
  for (size_t i = waited; i < tree->noted_count; i++)
    if (noted_find(tree, &tree->noted[i], 0, waited) == waited) tree->noted[kept++] = tree->noted[i];
  tree->noted_count = kept;
  tree->noted_waited = 0;
  ladei_lock_release(&tree->lock);
}

/* O4: records an event after the work that the program has queued on its own stream. */
static lade_status event_behind(lade_graph_tree *tree, const ladei_stream *stream, const char *call,
                                ladei_event **out) {
  LADEI_TRY(ladei_stream_uncaptured(tree->runtime, stream, call));
  LADEI_TRY(event_on(tree, stream, out));
  lade_status status = ladei_stream_uncaptured(tree->runtime, stream, call); /* another thread may have begun one */
  if (status != LADE_OK) ladei_event_pool_discard(tree->events, *out);
  return status;
}

static lade_status order_behind(lade_graph_tree *tree, const ladei_stream *from, const ladei_stream *to) {
  ladei_event *event = NULL;
  if (same_stream(from, to)) return LADE_OK;
  LADEI_TRY(event_behind(tree, from, "event_record", &event));
  lade_status status = event_wait(tree, to, event);
  ladei_event_pool_release(tree->events, event);
  return status;
}

static ladei_stream noted_at(lade_graph_tree *tree, size_t index) {
  ladei_lock_acquire(&tree->lock);
  ladei_stream noted = tree->noted[index];
  ladei_lock_release(&tree->lock);
  return noted;
}

/* Makes the event that is recorded after a run on a per-thread stream. */
static lade_status own_event_need(lade_graph_tree *tree, const ladei_stream *stream) {
  if (stream->kind != LADEI_STREAM_PER_THREAD) return LADE_OK;
  if (tree->own_event != NULL && tree->own_event->context == stream->context) return LADE_OK;
  if (tree->own_event != NULL) ladei_event_pool_release(tree->events, tree->own_event);
  tree->own_event = NULL;
  return ladei_event_pool_acquire(tree->events, stream->context, &tree->own_event);
}

lade_status ladei_tree_order_before(lade_graph_tree *tree, const ladei_stream *stream) {
  lade_status status = own_event_need(tree, stream);
  size_t noted_count = waited_take(tree);
  for (ladei_event *gate = tree->gates_waited; gate != NULL && status == LADE_OK; gate = gate->next)
    status = event_wait(tree, stream, gate);
  if (status == LADE_OK && tree->last_event != NULL)
    status = event_wait(tree, stream, tree->last_event);
  else if (status == LADE_OK && tree->last.context != 0)
    status = order_behind(tree, &tree->last, stream);
  for (size_t i = 0; i < noted_count && status == LADE_OK; i++) {
    ladei_stream noted = noted_at(tree, i);
    status = order_behind(tree, &noted, stream);
  }
  if (status == LADE_OK) return LADE_OK;
  waited_return(tree);
  return ladei_error_prefix(status, "graph tree: the order after earlier runs: ");
}

static void gates_forget(lade_graph_tree *tree) {
  for (ladei_event *gate = tree->gates_waited, *next = NULL; gate != NULL; gate = next) {
    next = gate->next;
    ladei_event_pool_release(tree->events, gate);
  }
  tree->gates_waited = NULL;
  if (tree->last_event != NULL) ladei_event_pool_release(tree->events, tree->last_event);
  tree->last_event = NULL;
}

void ladei_tree_order_forget(lade_graph_tree *tree) {
  gates_forget(tree);
  if (tree->own_event != NULL) ladei_event_pool_release(tree->events, tree->own_event);
  tree->own_event = NULL;
}

static void waited_forget(lade_graph_tree *tree) {
  gates_forget(tree);
  ladei_lock_acquire(&tree->lock);
  assert(tree->noted_waited <= tree->noted_count);
  tree->noted_count -= tree->noted_waited;
  if (tree->noted_waited > 0) /* so there is an array */
    memmove(tree->noted, tree->noted + tree->noted_waited, tree->noted_count * sizeof *tree->noted);
  tree->noted_waited = 0;
  ladei_lock_release(&tree->lock);
}

/* Another thread cannot use the stream: without an event this waits for all its work, so no later run needs it. */
static void own_event_record(lade_graph_tree *tree, const ladei_stream *stream) {
  lade_error before;
  ladei_error_save(&before);
  ladei_event *event = tree->own_event;
  assert(tree->last_event == NULL); /* earlier work is ordered before this run: O1 */
  tree->own_event = NULL;
  if (event != NULL && ladei_tree_ops(tree)->event_record(tree->runtime->self, event->handle, stream) == LADE_OK) {
    tree->last_event = event;
    return;
  }
  if (event != NULL) ladei_event_pool_discard(tree->events, event);
  (void)ladei_stream_wait(tree->runtime, stream);
  tree->last = (ladei_stream){0};
  ladei_error_restore(&before);
}

void ladei_tree_order_commit(lade_graph_tree *tree, const ladei_stream *stream) {
  if (tree->gates_waited != NULL || tree->last_event != NULL || tree->noted_waited > 0) waited_forget(tree);
  tree->last = *stream;
  if (stream->kind == LADEI_STREAM_PER_THREAD) own_event_record(tree, stream);
}

lade_status ladei_tree_order_note(lade_graph_tree *tree, const ladei_stream *stream) {
  lade_status status = LADE_OK;
  ladei_event *gate = NULL;
  bool own = stream->kind == LADEI_STREAM_PER_THREAD; /* no other thread may use it */
  if (own) status = event_behind(tree, stream, "lade_graph_buffer_record_stream", &gate);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&tree->lock);
  if (own) {
    gate->next = tree->gates;
    tree->gates = gate;
  } else {
    size_t i = noted_find(tree, stream, tree->noted_waited, tree->noted_count);
    tree->notes++;
    if (i == tree->noted_count && LADEI_ARRAY_ROOM(tree->noted, tree->noted_capacity, tree->noted_count + 1))
      tree->noted[tree->noted_count++] = *stream;
    else if (i == tree->noted_count)
      status = LADE_ERR_OUT_OF_HOST_MEMORY;
  }
  ladei_lock_release(&tree->lock);
  if (status == LADE_OK) return status;
  return ladei_error(status, 0, "graph tree: no memory for one more stream");
}

/* ---- Public ------------------------------------------------------------------------------------------------------ */

/* Replaces the stream by the event, which covers its work. False, nothing changed: a note has come since, perhaps for
 * work on the stream after the event. */
static bool stream_forget(lade_graph_tree *tree, const ladei_stream *stream, ladei_event *gate, uint64_t notes) {
  ladei_lock_acquire(&tree->lock);
  bool same = tree->notes == notes;
  if (same) {
    gate->next = tree->gates;
    tree->gates = gate;
    size_t kept = 0;
    for (size_t i = 0; i < tree->noted_count; i++)
      if (!same_stream(&tree->noted[i], stream)) tree->noted[kept++] = tree->noted[i];
    tree->noted_count = kept;
  }
  ladei_lock_release(&tree->lock);
  if (!same || !same_stream(&tree->last, stream)) return same;
  tree->last = (ladei_stream){0};
  if (tree->last_event != NULL) ladei_event_pool_release(tree->events, tree->last_event);
  tree->last_event = NULL;
  return true;
}

/* Whether the next run would use the stream; and the number of notes so far. */
static bool stream_known(lade_graph_tree *tree, const ladei_stream *stream, uint64_t *out_notes) {
  bool known = tree->last.context != 0 && same_stream(&tree->last, stream);
  ladei_lock_acquire(&tree->lock);
  for (size_t i = 0; i < tree->noted_count; i++) known = known || same_stream(&tree->noted[i], stream);
  *out_notes = tree->notes;
  ladei_lock_release(&tree->lock);
  return known;
}

static lade_status stream_retire(lade_graph_tree *tree, const ladei_stream *stream, const char *call) {
  uint64_t notes = 0;
  while (stream_known(tree, stream, &notes)) {
    ladei_event *gate = NULL;
    LADEI_TRY(event_behind(tree, stream, call, &gate));
    if (stream_forget(tree, stream, gate, notes)) break;
    ladei_event_pool_release(tree->events, gate);
  }
  return LADE_OK;
}

lade_status lade_graph_tree_stream_retire(lade_graph_tree *tree, lade_stream stream) {
  ladei_stream resolved;
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_tree_ops(tree)->stream_resolve(tree->runtime->self, stream, &resolved);
  if (status == LADE_OK) status = stream_retire(tree, &resolved, __func__);
  if (status == LADE_OK) status = lade_device_stream_retire(tree->outside, stream); /* of eager runs */
  ladei_tree_leave(tree);
  ladei_cancellation_resume(cancellation);
  return status;
}
