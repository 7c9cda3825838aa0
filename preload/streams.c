/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the program, the events of destroyed ones (orphans), and captures under way. One state machine with
 * contexts.c (contexts.h).
 *
 *   capture begins: the gate closes, then the driver's call; the capture is noted, or the gate opens again capture
 *   ends, its stream has been destroyed, its context ends: the note goes, the gate opens a stream that captures is to
 *   be destroyed: its capture ends first, so that an event can cover the work from before it
 *
 * T1  The gate is closed once for each note of a capture, and for each call that begins a capture or ends a context.
 * T2  Orphans are removed in the order of their numbers: up to a point's number by its queries, and by each thread that
 *     adds an orphan, so that a program that destroys streams and frees nothing gathers none.
 * T3  A stream leaves its event before it captures: none can be recorded during a capture, and the thread that destroys
 *     the stream may be unable to end the capture; no thread can if the stream joined another one's. The event is kept.
 *     It becomes an orphan if the stream is destroyed in the capture, and goes when the stream leaves another event or
 *     is destroyed otherwise, or when no stream captures any more.
 * Locks: streams_lock guards all tables here; no driver call is made under it.
 */
#include "preload/streams.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "preload/driver.h"

typedef struct noted_stream {
  struct noted_stream *next;
  CUstream handle;
  unsigned slot, generation;
} noted_stream;

typedef struct preload_orphan {
  struct preload_orphan *next;
  uint64_t number;
  CUstream handle; /* in `kept`: the stream, which is alive */
  preload_mark mark;
} orphan;

typedef struct noted_capture {
  struct noted_capture *next;
  CUstream handle;
  pthread_t thread; /* of the per-thread stream */
  bool has_graph;   /* its graph is the program's: it existed before */
  unsigned slot, generation;
} noted_capture;

preload_gate ladei_preload_recording;

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static noted_stream *streams;   /* non-blocking ones */
static bool streams_incomplete; /* one could not be noted */
static orphan *orphans_first, *orphans_last;
static _Atomic(uint64_t) orphans_made, orphans_gone; /* numbers */
static noted_capture *captures;
static orphan *kept; /* T3 */

bool ladei_preload_recording_blocked(void) { return atomic_load(&ladei_preload_recording.closed) != 0; }

static bool context_slot(CUresult code, CUcontext handle, preload_slot *out) {
  if (code != CUDA_SUCCESS || handle == NULL) return false;
  ladei_preload_context_note(handle);
  return ladei_preload_context_slot(handle, out);
}

static bool current_slot(preload_slot *out) {
  CUcontext handle = NULL;
  CUresult code = DRIVER_CALL(ctx_get_current)(&handle);
  return context_slot(code, handle, out);
}

static bool is_per_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD; }

/* The slot of a stream's context; the per-thread stream is of the current context. */
static bool stream_slot(CUstream stream, preload_slot *out) {
  CUcontext handle = NULL;
  if (stream == NULL || stream == CU_STREAM_LEGACY || is_per_thread(stream)) return current_slot(out);
  CUresult code = DRIVER_CALL(stream_get_ctx)(stream, &handle);
  return context_slot(code, handle, out);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

/* C2: only drivers without an event for the whole context need them. */
void ladei_preload_stream_note(CUstream stream, unsigned flags) {
  preload_slot slot;
  if (!current_slot(&slot) || (flags & CU_STREAM_NON_BLOCKING) == 0 || DRIVER_HAS(ctx_record_event)) return;
  noted_stream *noted = malloc(sizeof *noted);
  pthread_mutex_lock(&streams_lock);
  streams_incomplete = streams_incomplete || noted == NULL;
  if (noted != NULL) {
    *noted = (noted_stream){streams, stream, slot.index, slot.generation};
    streams = noted;
  }
  pthread_mutex_unlock(&streams_lock);
}

bool ladei_preload_streams_of(unsigned slot, unsigned generation, CUstream found[PRELOAD_STREAMS_MAX],
                              size_t *out_count) {
  size_t count = 0;
  pthread_mutex_lock(&streams_lock);
  bool complete = !streams_incomplete;
  for (const noted_stream *noted = streams; noted != NULL && complete; noted = noted->next) {
    if (noted->slot != slot || noted->generation != generation) continue;
    complete = count < PRELOAD_STREAMS_MAX;
    if (complete) found[count++] = noted->handle;
  }
  pthread_mutex_unlock(&streams_lock);
  *out_count = count;
  return complete;
}

static noted_stream *stream_take(CUstream stream) {
  noted_stream *found = NULL;
  pthread_mutex_lock(&streams_lock);
  for (noted_stream **link = &streams; *link != NULL; link = &(*link)->next) {
    if ((*link)->handle != stream) continue;
    found = *link;
    *link = found->next;
    break;
  }
  pthread_mutex_unlock(&streams_lock);
  return found;
}

static void stream_put(noted_stream *noted) {
  assert(!DRIVER_HAS(ctx_record_event)); /* C2 */
  pthread_mutex_lock(&streams_lock);
  noted->next = streams;
  streams = noted;
  pthread_mutex_unlock(&streams_lock);
}

/* ---- Orphans ----------------------------------------------------------------------------------------------------- */

void ladei_preload_stream_wait(CUstream stream) {
  CUstreamCaptureMode before;
  bool relaxed = ladei_preload_relax(&before);
  (void)DRIVER_CALL(stream_synchronize)(stream);
  ladei_preload_restore(before, relaxed);
}

/* Without an event it waits for the stream: nothing else tells when its work is over. */
static orphan *orphan_make(CUstream stream) {
  orphan *made = malloc(sizeof *made);
  if (made != NULL) *made = (orphan){.handle = stream};
  if (made != NULL && ladei_preload_mark_stream(stream, &made->mark)) return made;
  free(made);
  ladei_preload_stream_wait(stream);
  return NULL;
}

static void orphan_add(orphan *made) {
  pthread_mutex_lock(&streams_lock);
  assert((orphans_first == NULL) == (orphans_last == NULL) && made->mark.event != NULL);
  made->next = NULL;
  made->number = atomic_load(&orphans_made) + 1;
  if (orphans_first == NULL) orphans_first = made;
  if (orphans_last != NULL) orphans_last->next = made;
  orphans_last = made;
  atomic_store(&orphans_made, made->number);
  pthread_mutex_unlock(&streams_lock);
}

/* Drops events of streams that are alive. */
static void orphans_drop(orphan *first) {
  orphan *next;
  for (orphan *one = first; one != NULL; one = next) {
    next = one->next;
    ladei_preload_mark_discard(&one->mark);
    free(one);
  }
}

uint64_t ladei_preload_orphans_now(void) { return atomic_load(&orphans_made); }

static bool orphan_first(orphan *out) {
  pthread_mutex_lock(&streams_lock);
  bool found = orphans_first != NULL;
  if (found) *out = *orphans_first;
  pthread_mutex_unlock(&streams_lock);
  return found;
}

/* Another thread may have removed it meanwhile. */
static void orphan_remove(uint64_t number) {
  orphan *gone = NULL;
  pthread_mutex_lock(&streams_lock);
  if (orphans_first != NULL && orphans_first->number == number) {
    assert(number == atomic_load(&orphans_gone) + 1); /* T2: in the order of their numbers */
    gone = orphans_first;
    orphans_first = gone->next;
    if (orphans_first == NULL) orphans_last = NULL;
    atomic_store(&orphans_gone, number);
  }
  pthread_mutex_unlock(&streams_lock);
  if (gone != NULL) ladei_preload_mark_discard(&gone->mark);
  free(gone);
}

preload_progress ladei_preload_orphans_progress(uint64_t through) {
  orphan first;
  while (atomic_load(&orphans_gone) < through && orphan_first(&first)) {
    preload_progress progress = ladei_preload_mark_progress(&first.mark);
    if (progress != PRELOAD_DONE) return progress;
    orphan_remove(first.number);
  }
  return PRELOAD_DONE;
}

/* The context has been waited for: its orphans are done. They keep their place, since points rely on their numbers. */
static bool orphan_settle(unsigned slot, unsigned generation) {
  preload_mark mark;
  bool found = false;
  pthread_mutex_lock(&streams_lock);
  for (orphan *one = orphans_first; one != NULL && !found; one = one->next) {
    found = one->mark.slot == slot && one->mark.generation == generation;
    if (!found) continue;
    mark = one->mark;
    assert(one->number > atomic_load(&orphans_gone));
    one->mark.generation--; /* a past generation: done */
  }
  pthread_mutex_unlock(&streams_lock);
  if (found) ladei_preload_mark_discard(&mark);
  return found;
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* The slot stays of no context if the driver does not answer, as for a stream that captures already. */
void ladei_preload_capture_opening(CUstream stream, preload_slot *out_slot) {
  *out_slot = (preload_slot){PRELOAD_CONTEXTS_MAX, 0, NULL}; /* of no context */
  (void)stream_slot(stream, out_slot);
  ladei_preload_gate_close(&ladei_preload_recording);
}

/* Without memory for the note the gate stays closed: nothing is recorded any more, so no capture breaks. */
void ladei_preload_capture_opened(CUstream stream, const preload_slot *slot, bool has_graph, bool succeeded) {
  if (!succeeded) {
    ladei_preload_gate_open(&ladei_preload_recording);
    return;
  }
  assert(atomic_load(&ladei_preload_recording.closed) > 0); /* T1: by ladei_preload_capture_opening() */
  noted_capture *noted = malloc(sizeof *noted);
  if (noted == NULL) return;
  pthread_mutex_lock(&streams_lock);
  *noted = (noted_capture){captures, stream, pthread_self(), has_graph, slot->index, slot->generation};
  captures = noted;
  pthread_mutex_unlock(&streams_lock);
}

static bool capture_matches(const noted_capture *noted, CUstream stream) {
  return noted->handle == stream && (!is_per_thread(stream) || pthread_equal(noted->thread, pthread_self()) != 0);
}

static bool capture_noted(CUstream stream, bool *out_has_graph) {
  bool found = false;
  pthread_mutex_lock(&streams_lock);
  for (const noted_capture *noted = captures; noted != NULL && !found; noted = noted->next) {
    found = capture_matches(noted, stream);
    *out_has_graph = noted->has_graph;
  }
  pthread_mutex_unlock(&streams_lock);
  return found;
}

bool ladei_preload_captures_any(void) {
  pthread_mutex_lock(&streams_lock);
  bool any = captures != NULL;
  pthread_mutex_unlock(&streams_lock);
  return any;
}

/* T3: once nothing captures. */
static void kept_settle(void) {
  orphan *left = NULL;
  pthread_mutex_lock(&streams_lock);
  if (captures == NULL) {
    left = kept;
    kept = NULL;
  }
  pthread_mutex_unlock(&streams_lock);
  orphans_drop(left);
}

static void capture_remove(CUstream stream) {
  noted_capture *gone = NULL;
  pthread_mutex_lock(&streams_lock);
  for (noted_capture **link = &captures; *link != NULL && gone == NULL; link = &(*link)->next) {
    if (!capture_matches(*link, stream)) continue;
    gone = *link;
    *link = gone->next;
    break;
  }
  pthread_mutex_unlock(&streams_lock);
  kept_settle();
  if (gone != NULL) ladei_preload_gate_open(&ladei_preload_recording);
  free(gone);
}

bool ladei_preload_captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!ladei_preload_recording_blocked()) return false;
  return DRIVER_CALL(stream_is_capturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* T3: takes the stream's kept event. */
static orphan *kept_take(CUstream stream) {
  orphan *found = NULL;
  pthread_mutex_lock(&streams_lock);
  for (orphan **link = &kept; *link != NULL && found == NULL; link = &(*link)->next) {
    if ((*link)->handle != stream) continue;
    found = *link;
    *link = found->next;
    found->next = NULL;
    break;
  }
  pthread_mutex_unlock(&streams_lock);
  return found;
}

/* If another thread has brought the stream into a capture meanwhile, the event may be a part of that: it is dropped. */
preload_orphan *ladei_preload_capture_leave(CUstream stream) {
  bool is_special = stream == NULL || stream == CU_STREAM_LEGACY || is_per_thread(stream);
  if (is_special || ladei_preload_captures(stream)) return NULL;
  orphan *made = orphan_make(stream);
  if (made == NULL || !ladei_preload_captures(stream)) return made;
  orphans_drop(made);
  return NULL;
}

/* The later of two events on one stream covers the earlier one. */
void ladei_preload_capture_left(preload_orphan *left) {
  if (left == NULL) return;
  if (!ladei_preload_captures(left->handle)) {
    orphans_drop(left);
    return;
  }
  orphans_drop(kept_take(left->handle));
  assert(!is_per_thread(left->handle) && left->next == NULL); /* one that can be destroyed: T3 */
  pthread_mutex_lock(&streams_lock);
  left->next = kept;
  kept = left;
  pthread_mutex_unlock(&streams_lock);
}

static bool capture_is_over(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return DRIVER_CALL(stream_is_capturing)(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The driver may refuse the end, in the wrong thread for example: then the capture goes on. If it did not refuse, the
 * stream may already capture again for another thread: either of two notes of one handle may go. */
void ladei_preload_capture_closed(CUstream stream, bool succeeded) {
  bool has_graph;
  if (capture_noted(stream, &has_graph) && (succeeded || capture_is_over(stream))) capture_remove(stream);
}

/* ---- The end of streams ------------------------------------------------------------------------------------------ */

/* T2; never waits. */
static void orphans_collect(void) {
  if (!ladei_preload_gate_enter(&ladei_preload_recording)) return;
  (void)ladei_preload_orphans_progress(ladei_preload_orphans_now());
  ladei_preload_gate_leave(&ladei_preload_recording);
}

/* The captured work is lost. The driver may refuse to end the capture, in the wrong thread for example. */
void ladei_preload_capture_give_up(CUstream stream) {
  CUgraph graph = NULL;
  bool has_graph;
  if (!capture_noted(stream, &has_graph)) return;
  CUresult code = DRIVER_CALL(stream_end_capture)(stream, &graph);
  if (code == CUDA_SUCCESS && graph != NULL && !has_graph) (void)DRIVER_CALL(graph_destroy)(graph);
  ladei_preload_capture_closed(stream, code == CUDA_SUCCESS);
}

/* The gate keeps the handle out of the calls of threads that record now. An event on a stream that captures would
 * become part of the graph. */
void ladei_preload_stream_forget(CUstream stream, preload_stream_end *out) {
  bool has_graph;
  out->captures = capture_noted(stream, &has_graph);
  orphan *left = kept_take(stream);
  if (!ladei_preload_captures(stream)) {
    orphans_drop(left);
    left = orphan_make(stream);
  }
  if (left != NULL) orphan_add(left);
  ladei_preload_gate_close(&ladei_preload_recording);
  out->noted = stream_take(stream);
  ladei_preload_gate_open(&ladei_preload_recording);
  orphans_collect();
}

/* A new stream may already have the handle, and capture: either of two notes of one handle may go. */
void ladei_preload_stream_forgotten(CUstream stream, const preload_stream_end *end, bool is_gone) {
  if (is_gone && end->captures) capture_remove(stream);
  if (is_gone)
    free(end->noted);
  else if (end->noted != NULL)
    stream_put(end->noted);
}

static noted_capture *capture_of(unsigned slot, unsigned generation) {
  noted_capture *gone = NULL;
  pthread_mutex_lock(&streams_lock);
  for (noted_capture **link = &captures; *link != NULL; link = &(*link)->next) {
    if ((*link)->slot != slot || (*link)->generation != generation) continue;
    gone = *link;
    *link = gone->next;
    break;
  }
  pthread_mutex_unlock(&streams_lock);
  return gone;
}

/* T3: takes the kept events of the context. */
static orphan *kept_of(unsigned slot, unsigned generation) {
  orphan *found = NULL;
  pthread_mutex_lock(&streams_lock);
  for (orphan **link = &kept; *link != NULL;) {
    orphan *one = *link;
    if (one->mark.slot != slot || one->mark.generation != generation) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    one->next = found;
    found = one;
  }
  pthread_mutex_unlock(&streams_lock);
  return found;
}

void ladei_preload_orphans_drop(unsigned slot, unsigned generation) {
  orphans_drop(kept_of(slot, generation));
  while (orphan_settle(slot, generation)) continue;
}

void ladei_preload_streams_drop(unsigned slot, unsigned generation) {
  noted_capture *gone;
  while ((gone = capture_of(slot, generation)) != NULL) {
    ladei_preload_gate_open(&ladei_preload_recording);
    free(gone);
  }
  kept_settle();
  pthread_mutex_lock(&streams_lock);
  for (noted_stream **link = &streams; *link != NULL;) {
    noted_stream *noted = *link;
    if (noted->slot != slot || noted->generation != generation) {
      link = &noted->next;
      continue;
    }
    *link = noted->next;
    free(noted);
  }
  pthread_mutex_unlock(&streams_lock);
}

/* ---- Recounting -------------------------------------------------------------------------------------------------- */

static const char *orphans_check(void) {
  uint64_t number = atomic_load(&orphans_gone);
  const orphan *last = NULL;
  for (const orphan *one = orphans_first; one != NULL; one = one->next) {
    if (one->number != ++number) return "orphans: T2: their numbers do not follow each other";
    last = one;
  }
  if (number != atomic_load(&orphans_made) || last != orphans_last)
    return "orphans: T2: the last one is not in the list";
  return NULL;
}

const char *ladei_preload_streams_check(void) {
  unsigned notes = 0;
  pthread_mutex_lock(&streams_lock);
  const char *wrong = orphans_check();
  for (const noted_capture *noted = captures; noted != NULL; noted = noted->next) notes++;
  if (notes > atomic_load(&ladei_preload_recording.closed)) wrong = "captures: T1: the gate is not closed for each";
  if (notes == 0 && kept != NULL) wrong = "captures: T3: an event is kept, and nothing captures";
  pthread_mutex_unlock(&streams_lock);
  return wrong;
}
