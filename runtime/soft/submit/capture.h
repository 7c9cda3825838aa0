/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures and the graphs that they build (model in capture.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_SUBMIT_CAPTURE_H
#define LADE_RUNTIME_SOFT_SUBMIT_CAPTURE_H

#include "runtime/soft/state/model.h"

lade_status ladei_soft_capture_append(soft_runtime *rt, soft_op op, soft_stream *stream, soft_work *work);
lade_status ladei_soft_capture_record(soft_runtime *rt, soft_op op, soft_stream *stream, soft_event *event);
lade_status ladei_soft_capture_wait(soft_runtime *rt, soft_op op, soft_stream *stream, soft_event *event);

/* An op that a capture forbids: the capture becomes invalid. Returns LADE_ERR_CAPTURE. */
lade_status ladei_soft_capture_break(soft_runtime *rt, soft_op op, soft_capture *capture, int native);

/* The capture under way with this id, or NULL. */
soft_capture *ladei_soft_capture_by_id(const soft_runtime *rt, uint64_t id);

/* A capture of one of the device's blocking streams, which forbids use of the legacy stream. NULL: none. */
soft_capture *ladei_soft_capture_implicit(const soft_runtime *rt, const soft_device *device);

/* Before use of a stream: if it is the legacy one, captures that forbid it become invalid. LADE_OK: there are none. */
lade_status ladei_soft_capture_check_legacy(soft_runtime *rt, soft_op op, const soft_stream *stream);

/* Applies the calling thread's capture mode to a potentially unsafe op. Under the lock. */
lade_status ladei_soft_unsafe(soft_runtime *rt, const char *what);

/* The ops capture_begin and capture_end on a stream. */
lade_status ladei_soft_capture_start(soft_runtime *rt, soft_stream *stream, ladei_capture_mode mode);
lade_status ladei_soft_capture_finish(soft_runtime *rt, soft_stream *stream, ladei_graph *out_graph);

/* The stream is about to be destroyed: its capture becomes invalid. */
void ladei_soft_capture_stream_gone(soft_runtime *rt, soft_stream *stream);
/*
 * Handles of nodes: the graph's handle, with the node's number + 1 in bits that are 0 there. A graph has handles for
 * its first SOFT_NODE_HANDLES nodes.
 */
enum { SOFT_NODE_HANDLES = (1 << 24) - 1 };
ladei_graph_node ladei_soft_graph_node_handle(const soft_runtime *rt, const soft_graph *graph, uint32_t number);
/* NULL: the handle names no node of an existing graph. */
const soft_graph_node *ladei_soft_graph_node_find(const soft_runtime *rt, ladei_graph_node handle, soft_graph **out);
ladei_graph ladei_soft_graph_handle(const soft_runtime *rt, const soft_graph *graph);
void ladei_soft_graph_free(soft_runtime *rt, soft_graph *graph);

#endif /* LADE_RUNTIME_SOFT_SUBMIT_CAPTURE_H */
