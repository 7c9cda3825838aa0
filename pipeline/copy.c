/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a chunk: one where host and device side are both in one piece, else as few as the driver takes.
 *
 *   block    [ a ][ b ][ c ][ d ]        b and c lie side by side on the device too: they are one run
 *   device   a'      b'c'       d'       three runs: one batched copy, or three copies where the driver has none
 *
 * I1  Runs are submitted in the order of the chunk; a failure says whether some were.
 * Locks: none held, none taken. pipeline->no_batch is set once and never cleared.
 */
#include "base/error.h"
#include "pipeline/internal.h"

/* As many runs go into one submission: what fits on the stack of a thread easily. */
enum { RUNS_MOST = 128 };

typedef struct run_list {
  lade_pipeline *pipeline;
  ladei_order *order;
  const ladei_stream *stream;
  ladei_copy_direction direction;
  size_t count;
  void *dsts[RUNS_MOST];
  const void *srcs[RUNS_MOST];
  size_t sizes[RUNS_MOST];
} run_list;

static lade_status run_copy(run_list *runs, size_t index) {
  const lade_runtime *runtime = runs->pipeline->runtime;
  lade_status status = runtime->ops->copy(runtime->self, runs->direction, runs->dsts[index], runs->srcs[index],
                                          runs->sizes[index], runs->stream);
  if (status == LADE_OK) {
    runs->order->partial = true;
    runs->order->copies++;
  }
  return status;
}

/* LADE_ERR_UNSUPPORTED: one by one, then, and from now on. */
static lade_status runs_batch(run_list *runs) {
  const lade_runtime *runtime = runs->pipeline->runtime;
  if (runtime->ops->copy_batch == NULL || atomic_load_explicit(&runs->pipeline->no_batch, memory_order_relaxed)) {
    return LADE_ERR_UNSUPPORTED;
  }
  lade_status status = runtime->ops->copy_batch(runtime->self, runs->direction, runs->count, runs->dsts, runs->srcs,
                                                runs->sizes, runs->stream);
  if (status == LADE_OK) {
    runs->order->partial = true;
    runs->order->copies++;
  } else if (status == LADE_ERR_UNSUPPORTED) {
    atomic_store_explicit(&runs->pipeline->no_batch, true, memory_order_relaxed);
  }
  return status;
}

static lade_status runs_submit(run_list *runs) {
  lade_status status = runs->count > 1 ? runs_batch(runs) : LADE_ERR_UNSUPPORTED;
  if (status == LADE_ERR_UNSUPPORTED) {
    status = LADE_OK;
    for (size_t i = 0; i < runs->count && status == LADE_OK; i++) {
      status = run_copy(runs, i);
    }
  }
  runs->count = 0;
  return status;
}

static lade_status runs_add(run_list *runs, char *dst, const char *src, size_t bytes) {
  size_t last = runs->count - 1;
  if (runs->count > 0 && (char *)runs->dsts[last] + runs->sizes[last] == dst &&
      (const char *)runs->srcs[last] + runs->sizes[last] == src) {
    runs->sizes[last] += bytes;
    return LADE_OK;
  }
  lade_status status = runs->count == RUNS_MOST ? runs_submit(runs) : LADE_OK;
  runs->dsts[runs->count] = dst;
  runs->srcs[runs->count] = src;
  runs->sizes[runs->count] = bytes;
  runs->count++;
  return status;
}

/* Between devices: by itself, after what comes before it in the chunk. */
static lade_status device_copy(run_list *runs, const ladei_span *span, bool to_device) {
  const lade_runtime *runtime = runs->pipeline->runtime;
  int own = runs->pipeline->options.device;
  int other = span->part->host.fd;
  char *here = span->part->device + span->offset;
  char *there = (char *)span->part->host.memory + span->offset;
  lade_status status = runs_submit(runs);
  if (status != LADE_OK) {
    return status;
  }
  char *dst = to_device ? here : there;
  char *src = to_device ? there : here;
  if (other == own) {
    status = runtime->ops->copy(runtime->self, LADEI_COPY_D2D, dst, src, span->bytes, runs->stream);
  } else {
    status = runtime->ops->copy_peer(runtime->self, dst, to_device ? own : other, src, to_device ? other : own,
                                     span->bytes, runs->stream);
  }
  if (status == LADE_OK) {
    runs->order->partial = true;
    runs->order->copies++;
  }
  return status;
}

static lade_status span_copy(run_list *runs, const ladei_span *span, bool to_device) {
  if (span->part->host.kind == LADE_ENDPOINT_DEVICE) {
    return device_copy(runs, span, to_device);
  }
  char *device = span->part->device + span->offset;
  char *host = span->part->direct ? (char *)span->part->host.memory + span->offset
                                  : (char *)ladei_slot_data(runs->order->slot) + span->at;
  return to_device ? runs_add(runs, device, host, span->bytes) : runs_add(runs, host, device, span->bytes);
}

static lade_status chunk_copy(run_list *runs, bool to_device) {
  const ladei_slot *slot = runs->order->slot;
  const ladei_parts *parts = &ladei_ticket_of(runs->order->transfer)->parts;
  lade_status status = LADE_OK;
  for (ladei_span span = {0}; status == LADE_OK && ladei_parts_next(parts, slot->offset, slot->bytes, &span);) {
    status = span_copy(runs, &span, to_device);
  }
  return status != LADE_OK ? status : runs_submit(runs);
}

lade_status ladei_copy_chunk(lade_pipeline *pipeline, ladei_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  bool to_device = order->ring->direction == LADE_TO_DEVICE;
  if (ladei_ticket_of(order->transfer)->cufile) {
    order->copies = 0; /* what there was to copy, the host half has moved or will move */
    return LADE_OK;
  }
  ladei_side *side = ladei_side_of(pipeline, order->ring);
  run_list runs;
  runs.pipeline = pipeline;
  runs.order = order;
  runs.stream = &ladei_lane_stream_of(pipeline, order->slot->lane)->stream;
  runs.direction = to_device ? LADEI_COPY_H2D : LADEI_COPY_D2H;
  runs.count = 0;
  order->copies = 0;
  bool timed = ladei_probe_begin(runtime, runs.stream, &side->probe, order->slot->bytes);
  lade_status status = chunk_copy(&runs, to_device);
  if (timed) {
    ladei_probe_end(runtime, runs.stream, &side->probe, status == LADE_OK);
  }
  return status;
}
