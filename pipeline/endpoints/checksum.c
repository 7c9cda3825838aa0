/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 of the bytes on their way: of every `checksum_bytes` of a transfer, counted from its first byte.
 *
 *   transfer   [   unit 0   |   unit 1   |   unit 2   | 3 ]
 *   chunks     [         chunk 0         |    chunk 1     ]      chunks end where units do
 *
 * I1  A chunk holds whole units (ladei_pipe_core_transfer.unit_bytes), so each is seen by one thread, in one piece.
 * I2  To the device a unit is checked before its copy is queued, to the host before it is written: mismatching bytes go
 *     no further.
 * Locks: none. Each element of the caller's array belongs to one chunk.
 */
#include <stdio.h>

/* Its functions within this file: hashing adds no library to those that programs need. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/size.h"
#include "pipeline/endpoints/checksum.h"

/* Where the bytes of an extent are now. */
static const char *extent_bytes(const ladei_pipe_slot *slot, const ladei_pipe_extent *extent) {
  return extent->piece->direct ? (const char *)extent->piece->host.memory + extent->offset
                               : (const char *)ladei_pipe_slot_data(slot) + extent->at;
}

static uint64_t unit_sum(const ladei_pipe_pieces *pieces, const ladei_pipe_slot *slot, uint64_t offset, size_t bytes) {
  XXH3_state_t state;
  /* As a chunk of its own, so that places in the block begin where the unit does. */
  ladei_pipe_slot unit = *slot;
  unit.lead_bytes += (size_t)(offset - slot->offset);
  (void)XXH3_64bits_reset(&state);
  for (ladei_pipe_extent extent = {0}; ladei_pipe_pieces_next(pieces, offset, bytes, &extent);) {
    if (extent.bytes == bytes) return XXH3_64bits(extent_bytes(&unit, &extent), bytes);
    (void)XXH3_64bits_update(&state, extent_bytes(&unit, &extent), extent.bytes);
  }
  return XXH3_64bits_digest(&state);
}

static lade_status unit_error(const lade_ticket *ticket, uint64_t offset, size_t bytes, uint64_t sum, uint64_t wanted) {
  ladei_pipe_extent extent = {0};
  (void)ladei_pipe_pieces_next(&ticket->pieces, offset, bytes, &extent);
  const ladei_pipe_storage_file *file = extent.piece->file;
  char where[300] = "";
  if (file != NULL) {
    (void)snprintf(where, sizeof where, " (%.240s at byte %llu)", file->source.name,
                   (unsigned long long)(extent.piece->host.offset + extent.offset));
  }
  return ladei_error(LADE_ERR_CHECKSUM, 0, "bytes %llu to %llu of the transfer%s: XXH3 is %016llx, %016llx expected",
                     (unsigned long long)offset, (unsigned long long)(offset + bytes), where, (unsigned long long)sum,
                     (unsigned long long)wanted);
}

lade_status ladei_pipe_checksum_chunk(const ladei_pipe_order *order) {
  const lade_ticket *ticket = ladei_pipe_ticket_of(order->transfer);
  const ladei_pipe_slot *slot = order->slot;
  uint64_t end = slot->offset + slot->bytes;
  for (uint64_t offset = slot->offset; ticket->checksum != LADE_CHECKSUM_NONE && offset < end;) {
    size_t bytes = ladei_size_min(ticket->checksum_bytes, end - offset);
    uint64_t *entry = &ticket->checksums[offset / ticket->checksum_bytes];
    uint64_t sum = unit_sum(&ticket->pieces, slot, offset, bytes);
    if (ticket->checksum == LADE_CHECKSUM_RETURN)
      *entry = sum;
    else if (sum != *entry)
      return unit_error(ticket, offset, bytes, sum, *entry);
    offset += bytes;
  }
  return LADE_OK;
}
