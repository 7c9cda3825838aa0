/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's contexts, and points in time that cover all work in them.
 *
 *   free ... free   record a point: an event in each context     done: every event, and so all work queued before
 *
 * C1  A point covers the work queued before its record on every stream of every known context: those that were current
 *     in a hooked call of the program, were created or retained by one, or are active as a device's primary context.
 * C2  If the driver has cuCtxRecordEvent (12.5), one event covers all streams of a context. Otherwise an event goes to
 *     its legacy stream, which waits for all blocking and per-thread ones, and to each non-blocking stream.
 * C3  A destroyed stream leaves an event, an orphan; a point is not done before the orphans older than it. If no event
 *     can be recorded, the hook waits for the stream's work before it destroys the stream. A stream that captures left
 *     its event before its capture began, or before it joined another stream's capture.
 * C4  While any stream captures, nothing is recorded or queried: both would break the capture. The gate is closed
 *     meanwhile, so no capture begins between the check and the call either.
 * C5  A context is forgotten when the driver has destroyed or reset it, and not if the driver refused. Its work is over
 *     then, by itself or with it. Its events are gone, and count as done: a mark names the generation of its context.
 * Locks: contexts_lock (contexts.c) guards the table of contexts, streams_lock (streams.c) those of streams, orphans
 * and captures. No driver call is made under either.
 *
 * contexts.c and streams.c are one state machine in two files: a point covers orphans, which are marks in contexts.
 */
#ifndef LADE_PRELOAD_CONTEXTS_H
#define LADE_PRELOAD_CONTEXTS_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/calls.h"

enum { PRELOAD_CONTEXTS_MAX = 64, PRELOAD_DEVICES_MAX = 64 };

/* An event recorded in a context. */
typedef struct preload_mark {
  unsigned slot, generation;
  CUevent event;
} preload_mark;

enum { PRELOAD_MARKS_INLINE = 4 };
typedef struct preload_point {
  size_t count, room;
  preload_mark *marks; /* `few`, or from malloc */
  preload_mark few[PRELOAD_MARKS_INLINE];
  uint64_t orphans; /* orphans up to this number are older than the point */
} preload_point;

typedef enum preload_progress {
  PRELOAD_DONE,
  PRELOAD_UNDER_WAY,
  PRELOAD_UNKNOWN, /* a stream captures, or the driver refuses the query: waiting may never end */
  PRELOAD_LOST     /* the context has failed */
} preload_progress;

/* The device whose primary context is current in the calling thread, by ordinal; -1: none or another context is. */
int ladei_preload_current_device(void);
/* The same for a stream's context; special handles are streams of the current one. Not while the stream captures.
 * CUDA_ERROR_INVALID_CONTEXT without a current one; the driver's code for a handle that is no stream. */
CUresult ladei_preload_stream_device(CUstream stream, int *out_device);
/* Whether the stream is in the device's primary context. Not while it captures either. */
bool ladei_preload_stream_is_of(CUstream stream, int device);
/* Notes a context of the program; the second function if it is a device's primary one. */
void ladei_preload_context_note(CUcontext handle);
void ladei_preload_context_note_primary(CUcontext handle, int device);
/* Before the driver destroys a context (handle), or a device's primary one (NULL): waits for its work, for about a
 * second. DONE or LOST: nothing runs there any more. UNDER_WAY: work still runs, or that is unknown, as while a stream
 * captures. */
preload_progress ladei_preload_context_wait(CUcontext handle, int device);
/* Destroys its events when nothing runs there. The caller has closed the gate (streams.h): no other thread records. */
void ladei_preload_context_clear(CUcontext handle, int device);
/* After the driver has destroyed the context, and before the gate opens: forgets it, with its streams and captures. */
void ladei_preload_context_forget(CUcontext handle, int device);

/* Ordinal of a device handle of the driver; -1: none. */
int ladei_preload_device_ordinal(CUdevice native);

/* False, nothing recorded: a stream captures, or the driver refuses. */
bool ladei_preload_point_record(preload_point *out);
/* The progress of the point's work. */
preload_progress ladei_preload_point_progress(preload_point *point);
/* Gives the events of a point back, also if it is not done. */
void ladei_preload_point_discard(preload_point *point);
/* C4: whether the gate is closed. */
bool ladei_preload_recording_blocked(void);

/* Recounts the table. Says what is wrong; NULL: nothing. */
const char *ladei_preload_contexts_check(void);

/* Hooks on streams. */
void ladei_preload_stream_note(CUstream stream, unsigned flags);
/* Waits for the stream's work, also while another stream captures. */
void ladei_preload_stream_wait(CUstream stream);
/* Before the driver destroys the stream, and after: nothing is recorded on it in between, and nothing at all if it
 * captures. If the driver refuses, the stream stays as it was. */
typedef struct preload_stream_end {
  bool captures;
  struct noted_stream *noted;
} preload_stream_end;
void ladei_preload_stream_forget(CUstream stream, preload_stream_end *out);
void ladei_preload_stream_forgotten(CUstream stream, const preload_stream_end *end, bool is_gone);
/* Whether work queued on the stream goes into a graph. */
bool ladei_preload_captures(CUstream stream);

#endif /* LADE_PRELOAD_CONTEXTS_H */
