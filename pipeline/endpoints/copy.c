/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a chunk: one if host and device side are both in one piece, otherwise as few as the driver takes.
 *
 *   block    [ a ][ b ][ c ][ d ]        b and c lie side by side on the device too: they are one run
 *   device   a'      b'c'       d'       three runs: one batched copy, or three copies where the driver has none
 *
 * Many short runs are one launch of the kernel in runtime/copies, if lade_copy_prepare() has loaded it for the device. A pipeline does
 * not load it: that waits for all of the device's work, which the pipeline's own streams do not tell.
 *
 * Extents that are adjacent on the device but not in the chunk are sorted into the block: chains.h.
 *
 * Numbers that are converted go by the kernel alone, which reads the block over the link and writes the other type: no device memory
 * and no copy beside. To it neither registrations nor allocations have ends (I2, I3).
 *
 * I1  Runs are submitted in the order of the block; a failure says whether some were.
 * I2  The host side of a run lies in one pinned range: Note [Copies end with registrations] in runtime/ops.h. A pool's
 *     block has ends at each multiple of pipeline->register_chunk_bytes, a direct piece where kind_memory.c found them.
 * I3  Runs of several pieces end with device allocations: a driver refuses copies that go from one into the next.
 * Locks: none held, none taken. pipeline->no_batch is set once and never cleared.
 */
#include "pipeline/endpoints/copy.h"

#include "base/error.h"
#include "base/size.h"
#include "base/static_probe.h"
#include "pipeline/endpoints/chains.h"
#include "pipeline/endpoints/probe.h"
#include "runtime/copies/copies.h"

static ladei_copy_direction copies_direction(const ladei_pipe_copies *copies) {
  return copies->to_device ? LADEI_COPY_H2D : LADEI_COPY_D2H;
}

static lade_status run_copy(ladei_pipe_copies *copies, size_t index) {
  const lade_runtime *runtime = copies->pipeline->runtime;
  lade_status status = runtime->ops->copy(runtime->self, copies_direction(copies), copies->dsts[index],
                                          copies->srcs[index], copies->sizes[index], copies->stream);
  if (status == LADE_OK) ladei_pipe_copies_count(copies);
  return status;
}

/* LADE_ERR_UNSUPPORTED: one by one, then, and from now on. */
static lade_status runs_batch(ladei_pipe_copies *copies) {
  const lade_runtime *runtime = copies->pipeline->runtime;
  if (runtime->ops->copy_batch == NULL || atomic_load_explicit(&copies->pipeline->no_batch, memory_order_relaxed))
    return LADE_ERR_UNSUPPORTED;
  lade_status status = runtime->ops->copy_batch(runtime->self, copies_direction(copies), copies->count, copies->dsts,
                                                copies->srcs, copies->sizes, copies->stream);
  if (status == LADE_OK)
    ladei_pipe_copies_count(copies);
  else if (status == LADE_ERR_UNSUPPORTED)
    atomic_store_explicit(&copies->pipeline->no_batch, true, memory_order_relaxed);
  return status;
}

/* Before the first submission of copies over the link. */
static void clock_begin(ladei_pipe_copies *copies) {
  ladei_pipe_probe *probe = &ladei_pipe_side_of(copies->pipeline, copies->order->ring)->probe;
  size_t bytes = 0;
  if (copies->begun || copies->count == 0) return;
  for (const ladei_pipe_slot *slot = copies->order->slot; slot != NULL; slot = slot->joined) bytes += slot->bytes;
  copies->begun = true;
  copies->timed = ladei_pipe_probe_begin(copies->pipeline->runtime, copies->stream, probe, bytes);
}

/* Whether the kernel is for them. Joined copies of 64 KiB and more have the rate of the link, and take no multiprocessor. */
static bool runs_are_short(const ladei_pipe_copies *copies) {
  enum { SHORT_RUN_BYTES = 64 << 10 };
  size_t bytes = 0;
  for (size_t i = 0; i < copies->count; i++) bytes += copies->sizes[i];
  return bytes / SHORT_RUN_BYTES < copies->count &&
         ladei_copy_kernel_suits(copies->pipeline->runtime, copies_direction(copies), copies->count, bytes,
                                 copies->stream);
}

static lade_status runs_by_kernel(ladei_pipe_copies *copies) {
  lade_copy_piece pieces[LADEI_PIPE_RUNS_MOST];
  if (!runs_are_short(copies)) return LADE_ERR_UNSUPPORTED;
  for (size_t i = 0; i < copies->count; i++)
    pieces[i] = (lade_copy_piece){copies->dsts[i], copies->srcs[i], copies->sizes[i]};
  lade_status status = ladei_copy_short(copies->pipeline->runtime, pieces, copies->count, copies->stream);
  copies->order->partial = copies->order->partial || status != LADE_ERR_UNSUPPORTED;
  copies->order->copies += status == LADE_OK ? 1 : 0;
  return status;
}

static lade_status runs_convert(ladei_pipe_copies *copies) {
  lade_copy_piece pieces[LADEI_PIPE_RUNS_MOST];
  for (size_t i = 0; i < copies->count; i++)
    pieces[i] = (lade_copy_piece){copies->dsts[i], copies->srcs[i], copies->sizes[i]};
  if (copies->count == 0) return LADE_OK;
  lade_status status =
      ladei_copy_convert(copies->pipeline->runtime, pieces, copies->count, (lade_dtype)copies->pieces->host_dtype,
                         (lade_dtype)copies->pieces->device_dtype, copies->stream);
  bool whole = copies->order->slot->joined != NULL; /* gathered_submit() */
  copies->order->partial = copies->order->partial || (status != LADE_ERR_UNSUPPORTED && !whole);
  copies->order->copies += status == LADE_OK ? 1 : 0;
  copies->count = 0;
  return status;
}

lade_status ladei_pipe_copies_submit(ladei_pipe_copies *copies) {
  if (copies->pieces->host_dtype != 0) return runs_convert(copies);
  clock_begin(copies);
  lade_status status = runs_by_kernel(copies);
  if (status == LADE_ERR_UNSUPPORTED && copies->count > 1) status = runs_batch(copies);
  if (status == LADE_ERR_UNSUPPORTED) {
    status = LADE_OK;
    for (size_t i = 0; i < copies->count && status == LADE_OK; i++) status = run_copy(copies, i);
  }
  copies->count = 0;
  return status;
}

static lade_status room_make(ladei_pipe_copies *copies) {
  if (copies->count < LADEI_PIPE_RUNS_MOST) return LADE_OK;
  return copies->order->slot->joined != NULL ? LADE_ERR_UNSUPPORTED : ladei_pipe_copies_submit(copies);
}

/* Where the run ends at its destination. */
static char *run_end(const ladei_pipe_copies *copies, size_t run) {
  return (char *)copies->dsts[run] + ladei_pipe_device_bytes(copies->pieces, copies->sizes[run]);
}

static lade_status run_add(ladei_pipe_copies *copies, char *dst, const char *src, size_t bytes) {
  size_t last = copies->count - 1;
  copies->bytes += bytes;
  if (copies->count > 0 && !copies->sealed && run_end(copies, last) == dst &&
      (const char *)copies->srcs[last] + copies->sizes[last] == src) {
    copies->sizes[last] += bytes;
    return LADE_OK;
  }
  LADEI_TRY(room_make(copies));
  copies->dsts[copies->count] = dst;
  copies->srcs[copies->count] = src;
  copies->sizes[copies->count] = bytes;
  copies->count++;
  return LADE_OK;
}

/* Bytes from `offset` to the end of a pinned range, the first of which ends at `first`, and others follow of `next`. */
static uint64_t reach_from(uint64_t offset, uint64_t first, uint64_t next) {
  return offset < first ? first - offset : next - (offset - first) % next;
}

/* As many runs as pinned ranges of the host side. */
static lade_status host_copy(ladei_pipe_copies *copies, char *device, char *host, size_t bytes, uint64_t reach,
                             uint64_t next) {
  lade_status status = LADE_OK;
  if (copies->pieces->host_dtype != 0) {
    status = run_add(copies, device, host, bytes);
    copies->sealed = false;
    return status;
  }
  for (size_t done = 0, length; status == LADE_OK && done < bytes; done += length) {
    length = (size_t)ladei_size_min(bytes - done, reach);
    status = copies->to_device ? run_add(copies, device + done, host + done, length)
                               : run_add(copies, host + done, device + done, length);
    copies->sealed = length == reach;
    reach = next;
  }
  return status;
}

/* Finds the allocation of `device`, if not known already. Memory unknown to the driver is taken for one allocation. */
static void allocation_find(ladei_pipe_copies *copies, const char *device, size_t bytes) {
  const lade_runtime *runtime = copies->pipeline->runtime;
  ladei_pointer_attributes *out = &copies->allocation;
  uint64_t address = (uint64_t)(uintptr_t)device;
  if (address - out->base < out->bytes) return;
  lade_error before;
  ladei_error_save(&before);
  lade_status status = runtime->ops->pointer_attributes(runtime->self, device, out);
  ladei_error_restore(&before);
  if (status == LADE_OK && address - out->base < out->bytes) return;
  out->base = address;
  out->bytes = bytes;
}

/* A piece begins where the last run ends on the device: it has its own run if an allocation begins there (I3). */
static void piece_begin(ladei_pipe_copies *copies, const ladei_pipe_extent *extent) {
  const char *device = extent->device;
  size_t last = copies->count - 1;
  if (extent->offset > 0 || copies->count == 0 || copies->sealed || copies->pieces->host_dtype != 0) return;
  const char *end = (const char *)(copies->to_device ? copies->dsts[last] : copies->srcs[last]) + copies->sizes[last];
  if (end != device) return;
  allocation_find(copies, device, extent->bytes);
  copies->sealed = copies->allocation.base == (uint64_t)(uintptr_t)device;
}

lade_status ladei_pipe_copies_add_pinned(ladei_pipe_copies *copies, const ladei_pipe_extent *extent) {
  const ladei_pipe_piece *piece = extent->piece;
  uint64_t reach = reach_from(extent->offset, piece->first_reach, piece->next_reach);
  piece_begin(copies, extent);
  copies->sealed = copies->sealed || !copies->direct;
  copies->direct = true;
  lade_status status = host_copy(copies, extent->device, (char *)piece->host.memory + extent->offset, extent->bytes,
                                 reach, piece->next_reach);
  copies->sealed = copies->sealed || piece->next_reach != 0; /* its last range may end with it */
  return status;
}

/* Copies bytes from `at` in the block's data, or to there. */
static lade_status block_copy(ladei_pipe_copies *copies, char *device, size_t at, size_t bytes) {
  const ladei_pipe_slot *slot = copies->slot;
  char *host = (char *)ladei_pipe_slot_data(slot) + at;
  uint64_t next = copies->pipeline->register_chunk_bytes;
  uint64_t reach = next == 0 ? UINT64_MAX : reach_from((uint64_t)(host - (char *)slot->block), next, next);
  copies->sealed = copies->sealed || copies->direct;
  copies->direct = false;
  return host_copy(copies, device, host, bytes, reach, next);
}

static lade_status staged_copy(ladei_pipe_copies *copies, const ladei_pipe_extent *extent) {
  piece_begin(copies, extent);
  return block_copy(copies, extent->device, extent->at, extent->bytes);
}

static lade_status extent_copy(ladei_pipe_copies *copies, const ladei_pipe_extent *extent) {
  return extent->piece->direct ? extent->piece->kind->copy(copies, extent) : staged_copy(copies, extent);
}

/* Copies the extents that chunk.c has sorted into the block: I3. */
static lade_status chains_copy(ladei_pipe_copies *copies, const ladei_pipe_chains *chains) {
  const ladei_pointer_attributes *allocation = &copies->allocation;
  lade_status status = LADE_OK;
  for (unsigned i = 0; i < chains->count && status == LADE_OK; i++) {
    const ladei_pipe_chain *chain = &chains->list[i];
    for (size_t done = 0, length; done < chain->bytes && status == LADE_OK; done += length) {
      uint64_t address = (uint64_t)(uintptr_t)chain->device + done;
      length = chain->bytes - done;
      allocation_find(copies, chain->device + done, length);
      length = (size_t)ladei_size_min(length, allocation->bytes - (address - allocation->base));
      copies->sealed = true;
      status = block_copy(copies, chain->device + done, chain->at + done, length);
    }
  }
  return status;
}

static lade_status extents_copy(ladei_pipe_copies *copies) {
  const ladei_pipe_slot *slot = copies->slot;
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(slot->transfer)->pieces;
  lade_status status = LADE_OK;
  for (ladei_pipe_extent extent = {0};
       status == LADE_OK && ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);)
    status = extent_copy(copies, &extent);
  return status;
}

static lade_status slot_copy(ladei_pipe_copies *copies, const ladei_pipe_slot *slot) {
  ladei_pipe_chains chains;
  copies->slot = slot;
  copies->sealed = true; /* its block is in a pinned range of its own, if only for all that is known */
  return ladei_pipe_chains_find(slot, &chains) ? chains_copy(copies, &chains) : extents_copy(copies);
}

/* Submits the gathered copies: one by one if need be. Joined slots are queued together or not at all; several launches of the kernel
 * are not. */
static lade_status gathered_submit(ladei_pipe_copies *copies) {
  if (copies->order->slot->joined == NULL) return ladei_pipe_copies_submit(copies);
  if (copies->pieces->host_dtype != 0)
    return copies->count <= LADEI_CONVERT_LAUNCH_PIECES ? runs_convert(copies) : LADE_ERR_UNSUPPORTED;
  if (runs_are_short(copies)) return LADE_ERR_UNSUPPORTED;
  clock_begin(copies);
  return runs_batch(copies);
}

lade_status ladei_pipe_copy_chunk(lade_pipeline *pipeline, ladei_pipe_order *order) {
  if (ladei_pipe_ticket_of(order->transfer)->straight) {
    order->copies = 0; /* the host half has moved or will move all bytes */
    return LADE_OK;
  }
  ladei_pipe_side *side = ladei_pipe_side_of(pipeline, order->ring);
  ladei_pipe_copies copies;
  copies.pipeline = pipeline;
  copies.order = order;
  copies.pieces = &ladei_pipe_ticket_of(order->transfer)->pieces;
  copies.stream = &ladei_pipe_stream_of(pipeline, order->slot->copy_stream)->stream;
  copies.to_device = order->ring->direction == LADE_TO_DEVICE;
  copies.begun = copies.timed = false;
  copies.direct = false;
  copies.allocation = (ladei_pointer_attributes){.bytes = 0};
  copies.count = copies.bytes = 0;
  order->copies = 0;
  lade_status status = LADE_OK;
  for (const ladei_pipe_slot *slot = order->slot; slot != NULL && status == LADE_OK; slot = slot->joined) {
    LADEI_PROBE4(copy_begin, slot, slot->bytes, copies.to_device, copies.stream->id);
    status = slot_copy(&copies, slot);
  }
  if (status == LADE_OK) status = gathered_submit(&copies);
  if (copies.timed)
    ladei_pipe_probe_end(pipeline->runtime, copies.stream, &side->probe, status == LADE_OK ? copies.bytes : 0);
  return status;
}
