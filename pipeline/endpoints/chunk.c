/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host half of a chunk: its bytes out of the endpoints into the block, or out of the block into them.
 *
 *   chunk    [ a.bin 5..9 | a.bin 9..12 | b.bin 3..4 | memory ]
 *   ranges   [-------- one read -------][-- a read --][ memcpy ]        ranges of a file that touch are one
 *
 * I1  A call moves all bytes of its chunk or fails.
 *     Where chains.h finds some, each extent is read to its place in its chain, all that touch in the file by one call.
 * I2  A read of a file may use the block around its own bytes only where the chunk is that one read.
 * Locks: none held, none taken. Endpoints are constant while their transfer lives.
 */
#include "pipeline/endpoints/chunk.h"

#include <sys/uio.h>

#include "base/error.h"
#include "pipeline/endpoints/chains.h"
#include "pipeline/endpoints/endpoint.h"
#include "pipeline/storage/storage_cufile.h"

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Extents that one call reads: they fit on a thread's stack easily. */
enum { VECTOR_MOST = 512 };

/* Bytes of a chunk that are one range of a file. */
typedef struct file_range {
  ladei_pipe_storage_file *file; /* NULL: none */
  uint64_t offset;               /* in the file */
  size_t at;                     /* in the block's data */
  size_t bytes;
} file_range;

/* Makes the range longer by the extent, if it goes on there. */
static bool range_extend(file_range *range, const ladei_pipe_extent *extent) {
  uint64_t offset = extent->piece->host.offset + extent->offset;
  if (range->file == NULL || range->file != extent->piece->file || range->offset + range->bytes != offset) return false;
  range->bytes += extent->bytes;
  return true;
}

static file_range range_begin(const ladei_pipe_extent *extent) {
  return (file_range){extent->piece->file, extent->piece->host.offset + extent->offset, extent->at, extent->bytes};
}

/* Blocks are numbered by their slots, those to the host after those to the device. */
unsigned ladei_pipe_block_number(const ladei_pipe_slot *slot) {
  const ladei_pipe_ring *ring = slot->ring;
  return (unsigned)(slot - ring->slots) + (ring->direction == LADE_TO_DEVICE ? 0 : ring->depth);
}

static ladei_pipe_storage_request range_request(const ladei_pipe_slot *slot, const file_range *range) {
  bool alone = range->bytes == slot->bytes;
  return (ladei_pipe_storage_request){
      .file = range->file,
      .offset = range->offset,
      .buffer = (char *)ladei_pipe_slot_data(slot) + range->at,
      .bytes = range->bytes,
      .block = slot->block,
      .block_bytes = alone ? slot->capacity : 0,
      .block_index = alone ? (int)ladei_pipe_block_number(slot) : -1,
  };
}

static lade_status range_move(const ladei_pipe_slot *slot, file_range *range) {
  if (range->file == NULL) return LADE_OK;
  ladei_pipe_storage_request request = range_request(slot, range);
  range->file = NULL;
  return ladei_pipe_storage_run(&request);
}

/* --- chunks ------------------------------------------------------------------------------------------------------- */

/* Straight between files and device memory. */
static lade_status chunk_move_cufile(const lade_pipeline *pipeline, const ladei_pipe_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  const ladei_pipe_slot *slot = order->slot;
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(order->transfer)->pieces;
  lade_status status = runtime->ops->current_device_set(runtime->self, pipeline->options.device);
  for (ladei_pipe_extent extent = {0};
       status == LADE_OK && ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);) {
    status = ladei_pipe_cufile_move(extent.piece->file, extent.piece->host.offset + extent.offset, extent.device,
                                    extent.bytes);
  }
  return status;
}

/* Straight into memory of the device: Note [Memory that the host writes] in files.c. */
static lade_status chunk_write_through(const ladei_pipe_order *order) {
  const ladei_pipe_slot *slot = order->slot;
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(order->transfer)->pieces;
  lade_status status = LADE_OK;
  for (ladei_pipe_extent extent = {0};
       status == LADE_OK && ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);) {
    ladei_pipe_storage_request request = {.file = extent.piece->file,
                                          .offset = extent.piece->host.offset + extent.offset,
                                          .buffer = extent.device,
                                          .bytes = extent.bytes,
                                          .block_index = -1};
    status = extent.piece->file != NULL ? ladei_pipe_storage_run(&request)
                                        : extent.piece->kind->move(&extent, extent.device, true);
  }
  return status;
}

lade_status ladei_pipe_chunk_extent_read(const ladei_pipe_slot *slot, const ladei_pipe_extent *extent, size_t place) {
  if (extent->piece->file == NULL)
    return extent->piece->kind->move(extent, (char *)ladei_pipe_slot_data(slot) + place, true);
  file_range range = range_begin(extent);
  range.at = place;
  return range_move(slot, &range);
}

/* Up to VECTOR_MOST adjacent extents of a file: one call reads them all. */
typedef struct vector {
  file_range range;
  ladei_pipe_extent first;
  size_t count;
  struct iovec places[VECTOR_MOST];
} vector;

/* Bytes that one call does not get (end of file, error, signal) are read extent by extent, which finds the cause. */
static lade_status vector_read(const ladei_pipe_slot *slot, vector *v) {
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(slot->transfer)->pieces;
  const file_range *range = &v->range;
  lade_status status = LADE_OK;
  if (v->count > 0 && !ladei_pipe_storage_read_vector(range->file, range->offset, v->places, v->count, range->bytes)) {
    ladei_pipe_extent extent = v->first;
    for (size_t i = 0; i < v->count && status == LADE_OK; i++) {
      if (i > 0) (void)ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);
      status = ladei_pipe_chunk_extent_read(
          slot, &extent, (size_t)((char *)v->places[i].iov_base - (char *)ladei_pipe_slot_data(slot)));
    }
  }
  v->count = 0;
  v->range.file = NULL;
  return status;
}

/* A chunk whose bytes lie in the block in the order of the device. */
static lade_status chunk_read_sorted(const ladei_pipe_slot *slot, ladei_pipe_chains *chains) {
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(slot->transfer)->pieces;
  vector v;
  v.range.file = NULL;
  v.count = 0;
  for (ladei_pipe_extent extent = {0}; ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);) {
    size_t place = ladei_pipe_chains_take(chains, &extent);
    if (v.count == VECTOR_MOST || !range_extend(&v.range, &extent)) {
      LADEI_TRY(vector_read(slot, &v));
      if (extent.piece->file == NULL) {
        LADEI_TRY(ladei_pipe_chunk_extent_read(slot, &extent, place));
        continue;
      }
      v.range = range_begin(&extent);
      v.first = extent;
    }
    v.places[v.count++] = (struct iovec){(char *)ladei_pipe_slot_data(slot) + place, extent.bytes};
  }
  return vector_read(slot, &v);
}

lade_status ladei_pipe_chunk_move(const lade_pipeline *pipeline, const ladei_pipe_order *order) {
  ladei_pipe_chains chains;
  if (ladei_pipe_ticket_of(order->transfer)->written) return chunk_write_through(order);
  if (ladei_pipe_ticket_of(order->transfer)->straight) return chunk_move_cufile(pipeline, order);
  if (order->kind == LADEI_PIPE_ORDER_READ && ladei_pipe_chains_find(order->slot, &chains))
    return chunk_read_sorted(order->slot, &chains);
  const ladei_pipe_slot *slot = order->slot;
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(order->transfer)->pieces;
  bool reads = order->kind == LADEI_PIPE_ORDER_READ;
  file_range range = {.file = NULL};
  lade_status status = LADE_OK;
  for (ladei_pipe_extent extent = {0};
       status == LADE_OK && ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);) {
    if (range_extend(&range, &extent)) continue;
    status = range_move(slot, &range);
    if (extent.piece->direct) continue; /* the copy takes it from where it is */
    if (status == LADE_OK && extent.piece->file != NULL)
      range = range_begin(&extent);
    else if (status == LADE_OK)
      status = extent.piece->kind->move(&extent, (char *)ladei_pipe_slot_data(slot) + extent.at, reads);
  }
  return status == LADE_OK ? range_move(slot, &range) : status;
}

bool ladei_pipe_chunk_request(const ladei_pipe_order *order, ladei_pipe_storage_request *out) {
  if (!ladei_pipe_order_is_host(order)) return false;
  const ladei_pipe_slot *slot = order->slot;
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(order->transfer)->pieces;
  ladei_pipe_extent extent = {0};
  if (ladei_pipe_ticket_of(order->transfer)->straight ||
      ladei_pipe_ticket_of(order->transfer)->checksum != LADE_CHECKSUM_NONE ||
      !ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent) || extent.piece->file == NULL ||
      !extent.piece->file->async)
    return false;
  file_range range = range_begin(&extent);
  while (ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent))
    if (!range_extend(&range, &extent)) return false;
  *out = range_request(slot, &range);
  return true;
}
