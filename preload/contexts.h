/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's contexts, and points in time of all work in them.
 *
 *   free ... free   record a point:  an event in each context      done: every event is, and with them all work queued before
 *
 * C1  A point covers the work queued before its record on every stream of every context that is known: those that were current
 *     in a call of the program seen here, were created or retained by one, or are active as a device's primary context.
 * C2  Where the driver has cuCtxRecordEvent (12.5) it covers the streams of a context. Otherwise an event goes to its legacy
 *     stream, which waits for all blocking and per-thread ones, and to each non-blocking stream.
 * C3  A stream that is destroyed leaves an event, an orphan; a point is not done before the orphans older than it. Where
 *     there is no event to be had, its work is waited for before it is destroyed.
 *     A stream that captures left it before it began to, or joined the capture of another one.
 * C4  While any stream captures, nothing is recorded or asked: both would break the capture. The gate is closed meanwhile, so
 *     that no capture begins between the look and the call either.
 * C5  A context is forgotten when the driver has destroyed or reset it, and not where that was refused. Its work is over then, by itself or
 *     with it. Its events are gone, and count as done: a mark names the generation of its context.
 * Locks: contexts_lock (contexts.c) guards the table of contexts, streams_lock (streams.c) those of streams, orphans and captures; no driver
 * call is made under either.
 *
 * contexts.c and streams.c are one state machine in two files: a point covers what streams leave, and streams leave it in contexts.
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
  preload_mark *marks; /* few, or the heap's */
  preload_mark few[PRELOAD_MARKS_INLINE];
  uint64_t orphans; /* those up to this number are older */
} preload_point;

typedef enum preload_progress {
  PRELOAD_DONE,
  PRELOAD_UNDER_WAY,
  PRELOAD_UNKNOWN, /* a stream captures, or the driver refuses to say: waiting may never end */
  PRELOAD_LOST     /* the context has failed */
} preload_progress;

/* The ordinal of the device whose primary context is current in the calling thread; -1: none is, or another context. */
int ladei_preload_current_device(void);
/* The same of the context that a stream is of; special handles are streams of the current one. Not while the stream captures.
 * CUDA_ERROR_INVALID_CONTEXT for those without one; the driver's code for a handle that is no stream. */
CUresult ladei_preload_stream_device(CUstream stream, int *out_device);
/* Whether the stream is of the device's primary context. Not while it captures either. */
bool ladei_preload_stream_is_of(CUstream stream, int device);
/* Notes a context of the program; the second where it is a device's primary one. */
void ladei_preload_context_note(CUcontext handle);
void ladei_preload_context_note_primary(CUcontext handle, int device);
/* Before the driver destroys a context (handle), or a device's primary one (NULL): waits for its work, for about a second. DONE or LOST:
 * nothing runs there any more. UNDER_WAY: that goes on, or is unknown, since a stream captures for example. */
preload_progress ladei_preload_context_wait(CUcontext handle, int device);
/* The same, when nothing runs there: its events go. The caller has closed the gate (streams.h), so no other thread records. */
void ladei_preload_context_clear(CUcontext handle, int device);
/* When the driver has destroyed it, and before the gate opens: forgets it, with its streams and captures. */
void ladei_preload_context_forget(CUcontext handle, int device);

/* Ordinal of a driver's device; -1: none. */
int ladei_preload_device_ordinal(CUdevice native);

/* False, nothing recorded: a stream captures, or the driver refuses. */
bool ladei_preload_point_record(preload_point *out);
/* How far the work of the point is. */
preload_progress ladei_preload_point_progress(preload_point *point);
/* Gives the events of a point back; a point that is not done too. */
void ladei_preload_point_discard(preload_point *point);
/* C4 */
bool ladei_preload_recording_blocked(void);

/* Recounts the table. Says what is wrong; NULL: nothing. */
const char *ladei_preload_contexts_check(void);

/* Hooks on streams. */
void ladei_preload_stream_note(CUstream stream, unsigned flags);
/* Waits for its work, also while another one captures. */
void ladei_preload_stream_wait(CUstream stream);
/* Before the driver destroys it, and after: nothing is recorded in it meanwhile, and nothing at all where it captures. Where the
 * driver has refused it stays as it was. */
typedef struct preload_stream_end {
  bool captures;
  struct noted_stream *noted;
} preload_stream_end;
void ladei_preload_stream_forget(CUstream stream, preload_stream_end *out);
void ladei_preload_stream_forgotten(CUstream stream, const preload_stream_end *end, bool is_gone);
/* Whether work queued on the stream goes into a graph. */
bool ladei_preload_captures(CUstream stream);

#endif /* LADE_PRELOAD_CONTEXTS_H */
