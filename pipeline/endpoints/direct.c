/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pieces of a transfer the copy engine reaches by itself: pinned memory, and memory of devices. They need no staging
 * block and no reader.
 *
 *   host memory   |--- first_reach ---|--- next_reach ---|--- next_reach ---|-- rest --|      registrations side by side
 *
 * I1  A piece is direct only if all of its bytes are pinned, or memory of a device.
 * I2  Pinned ranges behind the first are of one length, as those of a pool with register_chunk_bytes are; but the last
 *     may be any that holds the rest, if that is no longer. Other pieces are staged.
 * Locks: none. Asks the driver; an answer it refuses to give means "not pinned".
 */
#include "pipeline/endpoints/direct.h"
#include "base/error.h"

/* Smaller pieces of lists are gathered all the same: one packed copy costs less than a copy for each. */
enum { LEAST_PIECE = 64 << 10 };

/* The pinned range that was found last: pieces of a list often lie in the same. */
typedef struct pinned_range {
  uint64_t begin;
  uint64_t end;
} pinned_range;

/* Finds the pinned range that `address` lies in. */
static bool range_find(const lade_runtime *runtime, uint64_t address, pinned_range *range) {
  ladei_pointer_attributes attributes;
  if (address >= range->begin && address < range->end) return true;
  lade_error before;
  ladei_error_save(&before);
  lade_status status = runtime->ops->pointer_attributes(runtime->self, (const void *)(uintptr_t)address, &attributes);
  ladei_error_restore(&before);
  if (status != LADE_OK || attributes.kind != LADEI_MEMORY_PINNED || address < attributes.base ||
      address - attributes.base >= attributes.bytes)
    return false;
  *range = (pinned_range){attributes.base, attributes.base + attributes.bytes};
  return true;
}

/* Finds where copies of the piece must end. False: it is not all pinned, or the ends are not where I2 has them. */
static bool piece_is_pinned(const lade_runtime *runtime, ladei_pipe_piece *piece, pinned_range *range) {
  uint64_t begin = (uint64_t)(uintptr_t)piece->host.memory;
  if (!range_find(runtime, begin, range)) return false;
  piece->first_reach = range->end - begin;
  piece->next_reach = 0;
  for (uint64_t at = piece->first_reach, reach; at < piece->bytes; at += reach) {
    if (!range_find(runtime, begin + at, range)) return false;
    reach = range->end - (begin + at);
    if (piece->next_reach == 0) piece->next_reach = reach;
    uint64_t rest = piece->bytes - at;
    if (reach != piece->next_reach && (rest > reach || rest > piece->next_reach)) return false;
  }
  return true;
}

bool ladei_pipe_pieces_find_direct(const lade_pipeline *pipeline, ladei_pipe_pieces *pieces) {
  pinned_range range = {0, 0};
  size_t found = 0;
  for (size_t i = 0; i < pieces->count; i++) {
    ladei_pipe_piece *piece = &pieces->list[i];
    bool large = pieces->count == 1 || piece->bytes >= LEAST_PIECE;
    piece->direct = piece->host.kind == LADE_ENDPOINT_DEVICE || (piece->host.kind == LADE_ENDPOINT_MEMORY && large &&
                                                                 piece_is_pinned(pipeline->runtime, piece, &range));
    found += piece->direct ? 1 : 0;
  }
  return found == pieces->count;
}
