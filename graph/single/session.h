/* SPDX-License-Identifier: Apache-2.0 */
/* A capture under way; model in session.c. */
#ifndef LADE_GRAPH_SINGLE_SESSION_H
#define LADE_GRAPH_SINGLE_SESSION_H

#include "device/for_graphs.h"
#include "graph/single/hold.h"

/* Embedded in its owner's struct; zero before open. */
typedef struct ladei_graph_session {
  lade_device_allocator *allocator;
  lade_device_pool_id pool; /* the session has one use of it until it is over */
  ladei_stream stream;
  uint64_t capture;                   /* its number in the process; 0: it is over */
  bool routed;                        /* the pool's begin has no end yet */
  bool use_gone;                      /* the owner has given back its use of the pool, or tied it */
  ladei_device_refused_graph *record; /* for its graph, if the driver refuses it; NULL: used */
  ladei_device_tally tally;
} ladei_graph_session;

/* The stream to capture, and other streams whose allocations belong to the pool, too. */
typedef struct ladei_graph_session_plan {
  const char *call;
  lade_device_pool_id pool; /* {0, 0}: a new pool */
  lade_stream stream;
  const lade_stream *streams;
  size_t stream_count;
  ladei_capture_mode mode;
} ladei_graph_session_plan;

/* Routes allocations into the pool and begins the capture. On failure nothing is left. */
lade_status ladei_graph_session_open(ladei_graph_session *session, lade_device_allocator *allocator,
                                     const ladei_graph_session_plan *plan);
/* Ends the capture: its graph and the use of the pool become the caller's, while the blocks remain the session's. On
 * failure the caller discards the session. */
lade_status ladei_graph_session_close(ladei_graph_session *session, const char *call, ladei_graph *out_graph);
/* After a close: the blocks become the program's. */
void ladei_graph_session_keep(ladei_graph_session *session);
/* After a close, before a discard: drops the graph. The driver takes it back now or, if it refuses, later. */
void ladei_graph_session_graph_drop(ladei_graph_session *session, ladei_graph graph);
/* Instead of keep, or of close and keep: leaves no capture, route, block or use of the pool. Keeps the error record as
 * it is. The graph, if there was one, is gone already. */
void ladei_graph_session_discard(ladei_graph_session *session);

#endif /* LADE_GRAPH_SINGLE_SESSION_H */
