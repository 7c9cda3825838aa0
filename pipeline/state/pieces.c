/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of a transfer, looked up for each chunk; endpoints/request.c makes them.
 *
 * I1  list[i].begin + list[i].bytes = list[i + 1].begin; the first begins at 0, the last ends at `bytes`.
 * I2  No piece of the list is empty: pieces of 0 bytes are left out; those of them that are opened are kept in `empty`,
 *     after the list, in backward order. Together they are no more than there are pieces.
 * I3  Of numbers that are converted each piece has whole ones, and so has each chunk (unit_bytes of its transfer).
 * Locks: none. Made and freed by one thread; constant in between.
 */
#include "pipeline/state/pieces.h"

#include <stdlib.h>

#include "base/size.h"

void ladei_pipe_pieces_free(ladei_pipe_pieces *pieces) {
  if (pieces->list != &pieces->one) free(pieces->list);
  pieces->list = &pieces->one;
  pieces->count = 0;
  pieces->empty = NULL;
  pieces->empty_count = 0;
}

void ladei_pipe_pieces_place(ladei_pipe_pieces *pieces, void *device) {
  char *next = device;
  for (size_t i = 0; i < pieces->count; i++) {
    ladei_pipe_piece *piece = &pieces->list[i];
    piece->device = piece->device != NULL ? piece->device : next;
    next = piece->device + ladei_pipe_device_bytes(pieces, piece->bytes);
  }
}

/* The piece that byte `offset` of the transfer lies in. */
static const ladei_pipe_piece *piece_find(const ladei_pipe_pieces *pieces, uint64_t offset) {
  size_t low = 0;
  size_t high = pieces->count;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (pieces->list[middle].begin <= offset)
      low = middle;
    else
      high = middle;
  }
  return &pieces->list[low];
}

bool ladei_pipe_pieces_next(const ladei_pipe_pieces *pieces, uint64_t offset, size_t bytes, ladei_pipe_extent *extent) {
  size_t at = extent->at + extent->bytes;
  if (at == bytes) return false;
  extent->piece = extent->piece == NULL ? piece_find(pieces, offset) : extent->piece + 1;
  extent->offset = offset + at - extent->piece->begin;
  extent->device = extent->piece->device + ladei_pipe_device_bytes(pieces, extent->offset);
  extent->at = at;
  extent->bytes = (size_t)ladei_size_min(extent->piece->bytes - extent->offset, bytes - at);
  return true;
}
