/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between contexts.c and streams.c: streams by context, events of destroyed streams, captures.
 */
#ifndef LADE_PRELOAD_STREAMS_H
#define LADE_PRELOAD_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/contexts.h"
#include "preload/gate.h"

/* A known context at one moment. */
typedef struct preload_slot {
  unsigned index, generation;
  CUcontext handle;
} preload_slot;

/* The most non-blocking streams of one context that a point covers by their own events, on drivers before 12.5. */
enum { PRELOAD_STREAMS_MAX = 512 };

/* Open while nothing captures and no context is being destroyed. */
extern preload_gate ladei_preload_recording;

bool ladei_preload_context_slot(CUcontext handle, preload_slot *out);

/* Around a driver call that may bring a stream into a capture: an event for the work queued before. NULL: the stream
 * cannot be destroyed, or captures already. */
typedef struct preload_orphan preload_orphan;
preload_orphan *ladei_preload_capture_leave(CUstream stream);
void ladei_preload_capture_left(preload_orphan *left);

/* Around the driver's call that begins a capture, and after the one that ends it. `out_slot`: of the stream's context,
 * which need not be the current one. `has_graph`: the capture goes into the program's own graph. */
void ladei_preload_capture_opening(CUstream stream, preload_slot *out_slot);
void ladei_preload_capture_opened(CUstream stream, const preload_slot *slot, bool has_graph, bool succeeded);
void ladei_preload_capture_closed(CUstream stream, bool succeeded);
/* Ends the capture that began on a stream that is about to be destroyed. */
void ladei_preload_capture_give_up(CUstream stream);

/* False: there are more than PRELOAD_STREAMS_MAX, or some were not noted. */
bool ladei_preload_streams_of(unsigned slot, unsigned generation, CUstream streams[PRELOAD_STREAMS_MAX],
                              size_t *out_count);
/* Whether any stream captures: then the program decides how long the gate stays closed. */
bool ladei_preload_captures_any(void);
/* Settles the events of a context that ends; forgets its streams and captures. */
void ladei_preload_orphans_drop(unsigned slot, unsigned generation);
void ladei_preload_streams_drop(unsigned slot, unsigned generation);

/* An event on the stream. */
bool ladei_preload_mark_stream(CUstream stream, preload_mark *out);
preload_progress ladei_preload_mark_progress(const preload_mark *mark);
void ladei_preload_mark_discard(const preload_mark *mark);

/* Number of the last orphan; the progress of the orphans up to a number. */
uint64_t ladei_preload_orphans_now(void);
preload_progress ladei_preload_orphans_progress(uint64_t through);

/* Recounts orphans, captures and kept events, while no other thread is inside. Says what is wrong; NULL: nothing. */
const char *ladei_preload_streams_check(void);

#endif /* LADE_PRELOAD_STREAMS_H */
