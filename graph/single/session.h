/* SPDX-License-Identifier: Apache-2.0 */
/* A capture under way; model in session.c. */
#ifndef LADE_GRAPH_SINGLE_SESSION_H
#define LADE_GRAPH_SINGLE_SESSION_H

#include "device/for_graphs.h"
#include "graph/single/hold.h"

/* Part of its owner's record; zero before open. */
typedef struct ladei_graph_session {
  lade_device_allocator *allocator;
  lade_device_pool_id pool; /* one use of it is the session's, until it is over */
  ladei_stream stream;
  uint64_t capture;                   /* its number in the process; 0: it is over */
  bool routed;                        /* the pool's begin has no end yet */
  bool use_gone;                      /* its use of the pool was given back by its owner's means */
  ladei_device_refused_graph *record; /* for its graph, where the driver refuses it; NULL: taken */
  ladei_device_tally tally;
} ladei_graph_session;

/* What to capture: the stream, and those whose allocations belong to the pool besides. */
typedef struct ladei_graph_session_plan {
  const char *call;
  lade_device_pool_id pool; /* {0, 0}: one of its own */
  lade_stream stream;
  const lade_stream *streams;
  size_t stream_count;
  ladei_capture_mode mode;
} ladei_graph_session_plan;

/* Routes allocations into the pool and begins the capture. On failure nothing is left. */
lade_status ladei_graph_session_open(ladei_graph_session *session, lade_device_allocator *allocator,
                                     const ladei_graph_session_plan *plan);
/* The capture ends: its graph, and the use of the pool with it, are the caller's, while the blocks are the session's still. On failure
 * the caller discards the session. */
lade_status ladei_graph_session_close(ladei_graph_session *session, const char *call, ladei_graph *out_graph);
/* After a close: the blocks are the program's. */
void ladei_graph_session_keep(ladei_graph_session *session);
/* After a close, before a discard: the graph is not wanted. The driver takes it back now or, where it refuses, later. */
void ladei_graph_session_graph_drop(ladei_graph_session *session, ladei_graph graph);
/* Instead of it, and of close: nothing of the capture is left: no capture, route, block or use of the pool. Leaves the error record
 * alone. The graph, if there is one, is gone already. */
void ladei_graph_session_discard(ladei_graph_session *session);

#endif /* LADE_GRAPH_SINGLE_SESSION_H */
