/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the program, the events that destroyed ones leave behind, and captures under way.
 *
 *   capture begins: the gate closes, then the driver's call; the capture is noted, or the gate opens again
 *   capture ends, its stream is destroyed, its context ends: the note goes, the gate opens
 *
 * T1  The gate is closed as often as there are notes of captures, and once for each call that begins one or ends a context.
 * T2  Orphans are done in the order of their numbers, as far as points ask.
 * Locks: streams_lock guards all tables here; no driver call is made under it.
 */
#include "preload/streams.h"

#include <pthread.h>
#include <stdlib.h>

#include "preload/driver.h"

typedef struct noted_stream {
  struct noted_stream *next;
  CUstream handle;
  unsigned slot, generation;
} noted_stream;

typedef struct orphan {
  struct orphan *next;
  uint64_t number;
  preload_mark mark;
} orphan;

typedef struct noted_capture {
  struct noted_capture *next;
  CUstream handle;
  pthread_t thread; /* of the per-thread stream */
  unsigned slot, generation;
} noted_capture;

preload_gate ladei_preload_recording;

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static noted_stream *streams;   /* non-blocking ones */
static bool streams_incomplete; /* one could not be noted */
static orphan *orphans_first, *orphans_last;
static _Atomic(uint64_t) orphans_made, orphans_gone; /* numbers */
static noted_capture *captures;

bool ladei_preload_recording_blocked(void) { return atomic_load(&ladei_preload_recording.closed) != 0; }

static bool current_slot(preload_slot *out) {
  CUcontext handle = NULL;
  if (DRIVER_CALL(ctx_get_current)(&handle) != CUDA_SUCCESS || handle == NULL) return false;
  ladei_preload_context_note(handle);
  return ladei_preload_context_slot(handle, out);
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

static void stream_remove(CUstream stream) {
  pthread_mutex_lock(&streams_lock);
  for (noted_stream **link = &streams; *link != NULL; link = &(*link)->next) {
    if ((*link)->handle != stream) continue;
    noted_stream *gone = *link;
    *link = gone->next;
    free(gone);
    break;
  }
  pthread_mutex_unlock(&streams_lock);
}

/* ---- Orphans ----------------------------------------------------------------------------------------------------- */

static void orphan_add(CUstream stream) {
  preload_mark mark;
  orphan *made = malloc(sizeof *made);
  if (made == NULL || !ladei_preload_mark_stream(stream, &mark)) {
    free(made);
    return;
  }
  pthread_mutex_lock(&streams_lock);
  *made = (orphan){NULL, atomic_load(&orphans_made) + 1, mark};
  if (orphans_first == NULL) orphans_first = made;
  if (orphans_last != NULL) orphans_last->next = made;
  orphans_last = made;
  atomic_store(&orphans_made, made->number);
  pthread_mutex_unlock(&streams_lock);
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

/* The context has been waited for: its orphans are done. They keep their place, since points count on their numbers. */
static bool orphan_settle(unsigned slot, unsigned generation) {
  preload_mark mark;
  bool found = false;
  pthread_mutex_lock(&streams_lock);
  for (orphan *one = orphans_first; one != NULL && !found; one = one->next) {
    found = one->mark.slot == slot && one->mark.generation == generation;
    if (!found) continue;
    mark = one->mark;
    one->mark.generation--; /* one that has passed: done */
  }
  pthread_mutex_unlock(&streams_lock);
  if (found) ladei_preload_mark_discard(&mark);
  return found;
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static bool is_per_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD; }

void ladei_preload_capture_opening(void) { ladei_preload_gate_close(&ladei_preload_recording); }

/* Without memory for the note the gate stays closed: nothing is recorded any more, and no capture is broken. */
void ladei_preload_capture_opened(CUstream stream, bool succeeded) {
  preload_slot slot = {0, 0, NULL};
  if (!succeeded) {
    ladei_preload_gate_open(&ladei_preload_recording);
    return;
  }
  (void)current_slot(&slot);
  noted_capture *noted = malloc(sizeof *noted);
  if (noted == NULL) return;
  pthread_mutex_lock(&streams_lock);
  *noted = (noted_capture){captures, stream, pthread_self(), slot.index, slot.generation};
  captures = noted;
  pthread_mutex_unlock(&streams_lock);
}

static bool capture_matches(const noted_capture *noted, CUstream stream) {
  return noted->handle == stream && (!is_per_thread(stream) || pthread_equal(noted->thread, pthread_self()) != 0);
}

static bool capture_noted(CUstream stream) {
  bool found = false;
  pthread_mutex_lock(&streams_lock);
  for (const noted_capture *noted = captures; noted != NULL && !found; noted = noted->next)
    found = capture_matches(noted, stream);
  pthread_mutex_unlock(&streams_lock);
  return found;
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
  if (gone != NULL) ladei_preload_gate_open(&ladei_preload_recording);
  free(gone);
}

bool ladei_preload_captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!ladei_preload_recording_blocked()) return false;
  return DRIVER_CALL(stream_is_capturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The driver may refuse the end, in the wrong thread for example: then the capture goes on. */
void ladei_preload_capture_closed(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (capture_noted(stream) && DRIVER_CALL(stream_is_capturing)(stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE)
    capture_remove(stream);
}

/* ---- The end of streams ------------------------------------------------------------------------------------------ */

/* The gate keeps the handle out of the calls of those who record now. An event on a stream that captures would become part of
 * the graph; what is captured is lost with the stream. */
void ladei_preload_stream_forget(CUstream stream) {
  if (!ladei_preload_captures(stream)) orphan_add(stream);
  capture_remove(stream);
  ladei_preload_gate_close(&ladei_preload_recording);
  stream_remove(stream);
  ladei_preload_gate_open(&ladei_preload_recording);
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

void ladei_preload_streams_drop(unsigned slot, unsigned generation) {
  noted_capture *gone;
  while (orphan_settle(slot, generation)) continue;
  while ((gone = capture_of(slot, generation)) != NULL) {
    ladei_preload_gate_open(&ladei_preload_recording);
    free(gone);
  }
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
