/* SPDX-License-Identifier: Apache-2.0 */
/* The device half of a chunk: copies between its block, or the endpoints themselves, and the device. */
#ifndef LADE_PIPELINE_ENDPOINTS_COPY_H
#define LADE_PIPELINE_ENDPOINTS_COPY_H

#include "pipeline/endpoints/endpoint.h"
#include "pipeline/state/state.h"

/* Runs of one submission at most: they fit on a thread's stack easily. */
enum { LADEI_PIPE_RUNS_MOST = 512 };

/* The copies of a chunk, while they are gathered. */
struct ladei_pipe_copies {
  lade_pipeline *pipeline;
  ladei_pipe_order *order;
  const ladei_pipe_pieces
      *pieces; /* of the order's transfer, which says whether numbers are converted: those of joined ones are as its */
  const ladei_pipe_slot *slot; /* whose runs are added */
  const ladei_stream *stream;
  bool to_device;
  bool begun, timed;                   /* the first of them are submitted; the probe's clock runs */
  bool sealed;                         /* a pinned range ends with the last run: nothing is appended to it */
  bool direct;                         /* the last run is of a direct piece */
  ladei_pointer_attributes allocation; /* of the device, that was asked for last; bytes 0: none */
  size_t bytes;                        /* of all runs so far: bytes over the link */
  size_t count;
  void *dsts[LADEI_PIPE_RUNS_MOST];
  const void *srcs[LADEI_PIPE_RUNS_MOST];
  size_t sizes[LADEI_PIPE_RUNS_MOST];
};

/* Queues the copies of a slot's chunk: the order COPY. On failure order->partial says whether some are queued. */
lade_status ladei_pipe_copy_chunk(lade_pipeline *pipeline, ladei_pipe_order *order);

/* For tables of kinds of endpoints: adds an extent of direct host memory. */
lade_status ladei_pipe_copies_add_pinned(ladei_pipe_copies *copies, const ladei_pipe_extent *extent);
/* ... submits the gathered runs, so that a copy of their own comes after them in the chunk; */
lade_status ladei_pipe_copies_submit(ladei_pipe_copies *copies);
/* ... counts that copy, once it is submitted. */
static inline void ladei_pipe_copies_count(ladei_pipe_copies *copies) {
  copies->order->partial = true;
  copies->order->copies++;
}

#endif /* LADE_PIPELINE_ENDPOINTS_COPY_H */
