/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a chunk: one where host and device side are both in one piece, else as few as the driver takes.
 *
 *   block    [ a ][ b ][ c ][ d ]        b and c lie side by side on the device too: they are one run
 *   device   a'      b'c'       d'       three runs: one batched copy, or three copies where the driver has none
 *
 * I1  Runs are submitted in the order of the chunk; a failure says whether some were.
 * I2  The host side of a run lies in one pinned range: Note [Copies end with registrations] in runtime/ops.h. A block of
 *     the pool has ends at each multiple of pipeline->register_chunk_bytes, a direct piece where direct.c found them.
 * Locks: none held, none taken. pipeline->no_batch is set once and never cleared.
 */
#include "pipeline/endpoints/copy.h"
#include "base/error.h"
#include "base/size.h"
#include "pipeline/endpoints/probe.h"

/* As many runs go into one submission: what fits on the stack of a thread easily. */
enum { RUNS_MOST = 128 };

typedef struct run_list {
  lade_pipeline *pipeline;
  ladei_pipe_order *order;
  const ladei_stream *stream;
  ladei_copy_direction direction;
  bool sealed; /* a pinned range ends with the last run: nothing is joined to it */
  bool direct; /* the last run is of a direct piece */
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
  if (runtime->ops->copy_batch == NULL || atomic_load_explicit(&runs->pipeline->no_batch, memory_order_relaxed))
    return LADE_ERR_UNSUPPORTED;
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
    for (size_t i = 0; i < runs->count && status == LADE_OK; i++) status = run_copy(runs, i);
  }
  runs->count = 0;
  return status;
}

static lade_status runs_add(run_list *runs, char *dst, const char *src, size_t bytes) {
  size_t last = runs->count - 1;
  if (runs->count > 0 && !runs->sealed && (char *)runs->dsts[last] + runs->sizes[last] == dst &&
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
static lade_status device_copy(run_list *runs, const ladei_pipe_extent *extent, bool to_device) {
  const lade_runtime *runtime = runs->pipeline->runtime;
  int own = runs->pipeline->options.device;
  int other = extent->piece->host.fd;
  char *here = extent->piece->device + extent->offset;
  char *there = (char *)extent->piece->host.memory + extent->offset;
  lade_status status = runs_submit(runs);
  if (status != LADE_OK) return status;
  char *dst = to_device ? here : there;
  char *src = to_device ? there : here;
  if (other == own) {
    status = runtime->ops->copy(runtime->self, LADEI_COPY_D2D, dst, src, extent->bytes, runs->stream);
  } else {
    status = runtime->ops->copy_peer(runtime->self, dst, to_device ? own : other, src, to_device ? other : own,
                                     extent->bytes, runs->stream);
  }
  if (status == LADE_OK) {
    runs->order->partial = true;
    runs->order->copies++;
  }
  return status;
}

/* Bytes from `offset` to the end of a pinned range, the first of which ends at `first`, and others follow of `next`. */
static uint64_t reach_from(uint64_t offset, uint64_t first, uint64_t next) {
  return offset < first ? first - offset : next - (offset - first) % next;
}

/* As many runs as pinned ranges of the host side. */
static lade_status host_copy(run_list *runs, char *device, char *host, size_t bytes, uint64_t reach, uint64_t next,
                             bool to_device) {
  lade_status status = LADE_OK;
  for (size_t done = 0, length; status == LADE_OK && done < bytes; done += length) {
    length = (size_t)ladei_size_min(bytes - done, reach);
    status = to_device ? runs_add(runs, device + done, host + done, length)
                       : runs_add(runs, host + done, device + done, length);
    runs->sealed = length == reach;
    reach = next;
  }
  return status;
}

static lade_status direct_copy(run_list *runs, const ladei_pipe_extent *extent, bool to_device) {
  const ladei_pipe_piece *piece = extent->piece;
  uint64_t reach = reach_from(extent->offset, piece->first_reach, piece->next_reach);
  runs->sealed = runs->sealed || !runs->direct;
  runs->direct = true;
  lade_status status = host_copy(runs, piece->device + extent->offset, (char *)piece->host.memory + extent->offset,
                                 extent->bytes, reach, piece->next_reach, to_device);
  runs->sealed = runs->sealed || piece->next_reach != 0; /* its last range may end with it */
  return status;
}

static lade_status staged_copy(run_list *runs, const ladei_pipe_extent *extent, bool to_device) {
  const ladei_pipe_slot *slot = runs->order->slot;
  char *host = (char *)ladei_pipe_slot_data(slot) + extent->at;
  uint64_t next = runs->pipeline->register_chunk_bytes;
  uint64_t reach = next == 0 ? UINT64_MAX : reach_from((uint64_t)(host - (char *)slot->block), next, next);
  runs->sealed = runs->sealed || runs->direct;
  runs->direct = false;
  return host_copy(runs, extent->piece->device + extent->offset, host, extent->bytes, reach, next, to_device);
}

static lade_status extent_copy(run_list *runs, const ladei_pipe_extent *extent, bool to_device) {
  if (extent->piece->host.kind == LADE_ENDPOINT_DEVICE) return device_copy(runs, extent, to_device);
  return extent->piece->direct ? direct_copy(runs, extent, to_device) : staged_copy(runs, extent, to_device);
}

static lade_status chunk_copy(run_list *runs, bool to_device) {
  const ladei_pipe_slot *slot = runs->order->slot;
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(runs->order->transfer)->pieces;
  lade_status status = LADE_OK;
  for (ladei_pipe_extent extent = {0};
       status == LADE_OK && ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);)
    status = extent_copy(runs, &extent, to_device);
  return status != LADE_OK ? status : runs_submit(runs);
}

lade_status ladei_pipe_copy_chunk(lade_pipeline *pipeline, ladei_pipe_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  bool to_device = order->ring->direction == LADE_TO_DEVICE;
  if (ladei_pipe_ticket_of(order->transfer)->cufile) {
    order->copies = 0; /* what there was to copy, the host half has moved or will move */
    return LADE_OK;
  }
  ladei_pipe_side *side = ladei_pipe_side_of(pipeline, order->ring);
  run_list runs;
  runs.pipeline = pipeline;
  runs.order = order;
  runs.stream = &ladei_pipe_stream_of(pipeline, order->slot->copy_stream)->stream;
  runs.direction = to_device ? LADEI_COPY_H2D : LADEI_COPY_D2H;
  runs.sealed = false;
  runs.direct = false;
  runs.count = 0;
  order->copies = 0;
  bool timed = ladei_pipe_probe_begin(runtime, runs.stream, &side->probe, order->slot->bytes);
  lade_status status = chunk_copy(&runs, to_device);
  if (timed) ladei_pipe_probe_end(runtime, runs.stream, &side->probe, status == LADE_OK);
  return status;
}
