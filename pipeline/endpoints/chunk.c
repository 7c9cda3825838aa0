/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host half of a chunk: its bytes out of the endpoints into the block, or out of the block into them.
 *
 *   chunk    [ a.bin 5..9 | a.bin 9..12 | b.bin 3..4 | memory ]
 *   ranges   [-------- one read -------][-- a read --][ memcpy ]        ranges of a file that touch are one
 *
 * I1  A call moves all bytes of its chunk or fails.
 *     Where chains.h finds some, they are sorted on the way: short ones of a file are read together, into a buffer, and put in their
 *     places from there.
 * I2  A read of a file may use the block around its own bytes only where the chunk is that one read.
 * Locks: none held, none taken. Endpoints are constant while their transfer lives.
 */
#include "pipeline/endpoints/chunk.h"

#include <string.h>

#include "base/error.h"
#include "pipeline/endpoints/chains.h"
#include "pipeline/endpoints/endpoint.h"
#include "pipeline/storage/storage_cufile.h"

/* --- files -------------------------------------------------------------------------------------------------------- */

/* So much is read at once, to be sorted. */
enum { SORTED_BYTES = 64 << 10 };

/* Bytes of a chunk that are one range of a file. */
typedef struct file_range {
  ladei_pipe_storage_file *file; /* NULL: none */
  uint64_t offset;               /* in the file */
  size_t at;                     /* in the chunk */
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
    status = ladei_pipe_cufile_move(extent.piece->file, extent.piece->host.offset + extent.offset,
                                    extent.piece->device + extent.offset, extent.bytes);
  }
  return status;
}

/* Reads a range that short extents divide, and puts each where its chain has it. `first`: the one that the range begins with. */
static lade_status range_sort(const ladei_pipe_slot *slot, ladei_pipe_chains *chains, file_range *range,
                              ladei_pipe_extent first) {
  char scratch[SORTED_BYTES]; /* in the processor's nearest caches all the while */
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(slot->transfer)->pieces;
  if (range->file == NULL) return LADE_OK;
  ladei_pipe_storage_request request = {
      .file = range->file, .offset = range->offset, .buffer = scratch, .bytes = range->bytes, .block_index = -1};
  size_t begin = range->at, end = range->at + range->bytes;
  range->file = NULL;
  LADEI_TRY(ladei_pipe_storage_run(&request));
  char *data = ladei_pipe_slot_data(slot);
  for (bool more = true; more && first.at < end;
       more = ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &first))
    memcpy(data + ladei_pipe_chains_take(chains, &first), scratch + (first.at - begin), first.bytes);
  return LADE_OK;
}

/* An extent by itself. */
static lade_status extent_read(const ladei_pipe_slot *slot, const ladei_pipe_extent *extent, size_t place) {
  char *data = (char *)ladei_pipe_slot_data(slot) + place;
  if (extent->piece->file == NULL) return extent->piece->kind->move(extent, data, true);
  file_range range = range_begin(extent);
  ladei_pipe_storage_request request = {
      .file = range.file, .offset = range.offset, .buffer = data, .bytes = range.bytes, .block_index = -1};
  return ladei_pipe_storage_run(&request);
}

/* A chunk whose bytes lie in the block in the order of the device. */
static lade_status chunk_read_sorted(const ladei_pipe_slot *slot, ladei_pipe_chains *chains) {
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(slot->transfer)->pieces;
  ladei_pipe_extent first = {0};
  file_range range = {.file = NULL};
  for (ladei_pipe_extent extent = {0}; ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent);) {
    if (range.bytes + extent.bytes <= SORTED_BYTES && range_extend(&range, &extent)) continue;
    LADEI_TRY(range_sort(slot, chains, &range, first));
    if (extent.piece->file != NULL && extent.bytes <= SORTED_BYTES) {
      range = range_begin(&extent);
      first = extent;
    } else {
      LADEI_TRY(extent_read(slot, &extent, ladei_pipe_chains_take(chains, &extent)));
    }
  }
  return range_sort(slot, chains, &range, first);
}

lade_status ladei_pipe_chunk_move(const lade_pipeline *pipeline, const ladei_pipe_order *order) {
  ladei_pipe_chains chains;
  if (ladei_pipe_ticket_of(order->transfer)->cufile) return chunk_move_cufile(pipeline, order);
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
  if (ladei_pipe_ticket_of(order->transfer)->cufile ||
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
