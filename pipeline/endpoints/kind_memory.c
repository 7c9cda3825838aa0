/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints that are memory of the host: pinned memory is copied as it is, other memory is staged.
 *
 *   |--- first_reach ---|--- next_reach ---|--- next_reach ---|-- rest --|      registrations side by side
 *
 * I1  A piece is direct only if all of its bytes are pinned, and numbers that are converted lie at multiples of their size. A sink is not if sums are compared: bytes that do not
 *     match must not get there.
 * I2  Pinned ranges after the first have one length, as those of a pool with register_chunk_bytes do; except the last,
 *     which may have any length that holds the rest, if it is no longer. Other pieces are staged.
 * Locks: none. Asks the driver; an answer it refuses to give means "not pinned".
 */
#include <string.h>

#include "base/error.h"
#include "pipeline/endpoints/copy.h"
#include "pipeline/endpoints/kinds.h"

static lade_status memory_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  return host->memory != NULL || bytes == 0
             ? LADE_OK
             : ladei_error_null("lade_pipeline_submit", ladei_pipe_field_of(request, "host.memory").name);
}

/* Finds the pinned range that `address` lies in. */
static bool range_find(ladei_pipe_request *request, uint64_t address) {
  const lade_runtime *runtime = request->pipeline->runtime;
  ladei_pointer_attributes attributes;
  if (address >= request->pinned_begin && address < request->pinned_end) return true;
  lade_error before;
  ladei_error_save(&before);
  lade_status status = runtime->ops->pointer_attributes(runtime->self, (const void *)(uintptr_t)address, &attributes);
  ladei_error_restore(&before);
  if (status != LADE_OK || attributes.kind != LADEI_MEMORY_PINNED || address < attributes.base ||
      address - attributes.base >= attributes.bytes)
    return false;
  request->pinned_begin = attributes.base;
  request->pinned_end = attributes.base + attributes.bytes;
  return true;
}

/* Finds where copies of the piece must end. False: it is not all pinned, or the ends are not where I2 has them. */
static bool memory_is_direct(ladei_pipe_request *request, ladei_pipe_piece *piece) {
  bool is_compared =
      request->transfer->direction == LADE_TO_HOST && request->transfer->checksum == LADE_CHECKSUM_VERIFY;
  if (is_compared || piece->bytes < request->least_direct) return false;
  uint64_t begin = (uint64_t)(uintptr_t)piece->host.memory;
  if (begin % request->number_bytes != 0) return false;
  if (!range_find(request, begin)) return false;
  piece->first_reach = request->pinned_end - begin;
  piece->next_reach = 0;
  for (uint64_t at = piece->first_reach, reach; at < piece->bytes; at += reach) {
    if (!range_find(request, begin + at)) return false;
    reach = request->pinned_end - (begin + at);
    if (piece->next_reach == 0) piece->next_reach = reach;
    uint64_t rest = piece->bytes - at;
    if (reach != piece->next_reach && (rest > reach || rest > piece->next_reach)) return false;
  }
  return true;
}

static lade_status memory_move(const ladei_pipe_extent *extent, char *buffer, bool reads) {
  char *memory = (char *)extent->piece->host.memory + extent->offset;
  memcpy(reads ? buffer : memory, reads ? memory : buffer, extent->bytes);
  return LADE_OK;
}

const ladei_pipe_endpoint_kind ladei_pipe_endpoint_memory = {
    .check = memory_check,
    .is_direct = memory_is_direct,
    .move = memory_move,
    .copy = ladei_pipe_copies_add_pinned,
};
