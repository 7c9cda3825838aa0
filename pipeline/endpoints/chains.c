/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of a chunk: extents that follow each other on the device.
 *
 * C1  An extent belongs to the first chain, from the one after that which grew last on, whose end it begins at;
 *     otherwise it begins one. Both walks, the one that measures the chains and the one that takes their bytes, follow
 *     this rule: they agree.
 * C2  The values that decide are constant once the transfer's files are open, so READ and COPY of a chunk agree.
 * Locks: none held, none taken.
 */
#include "pipeline/endpoints/chains.h"

#include <assert.h>

#include "pipeline/storage/storage.h"

/* Fewer extents for each chain are copied as they are. */
enum { EXTENTS_LEAST = 4 };

/* The chain of the extent (C1); `opened`: of how many. That number: of none of them. */
static unsigned chain_of(const ladei_pipe_chains *chains, unsigned opened, const char *device) {
  for (unsigned i = 0, at = chains->last; i < opened; i++) {
    at = at + 1 < opened ? at + 1 : 0;
    if (chains->list[at].device + chains->list[at].taken == device) return at;
  }
  return opened;
}

/* Read by pread, of a URL, or out of memory: so at any place of the block. */
static bool extent_sorts(const ladei_pipe_extent *extent) {
  const ladei_pipe_storage_file *file = extent->piece->file;
  bool by_pread = file != NULL && !file->async && file->fd >= 0 && file->direct_fd < 0 && file->late_path == NULL;
  return !extent->piece->direct && (file == NULL || file->object != NULL || by_pread);
}

/* One more of the chunk; false: there are too many chains. */
static bool chains_add(ladei_pipe_chains *chains, const ladei_pipe_extent *extent) {
  unsigned at = chain_of(chains, chains->count, extent->device);
  if (at == LADEI_PIPE_CHAINS_MOST) return false;
  if (at == chains->count) chains->list[chains->count++] = (ladei_pipe_chain){.device = extent->device};
  chains->list[at].taken += extent->bytes;
  chains->last = at;
  return true;
}

/* All are measured: each gets its place. */
static void chains_place(ladei_pipe_chains *chains) {
  size_t at = 0;
  for (unsigned i = 0; i < chains->count; i++) {
    ladei_pipe_chain *chain = &chains->list[i];
    chain->bytes = chain->taken;
    chain->taken = 0;
    chain->at = at;
    at += chain->bytes;
  }
  chains->last = 0;
}

bool ladei_pipe_chains_find(const ladei_pipe_slot *slot, ladei_pipe_chains *out) {
  const lade_ticket *ticket = ladei_pipe_ticket_of(slot->transfer);
  const ladei_pipe_pieces *pieces = &ticket->pieces;
  size_t extents = 0;
  if (slot->ring->direction != LADE_TO_DEVICE || pieces->count < 2 * EXTENTS_LEAST || pieces->calls ||
      ticket->straight || ticket->checksum != LADE_CHECKSUM_NONE || pieces->host_dtype != 0)
    return false;
  out->count = out->last = out->opened = 0;
  for (ladei_pipe_extent extent = {0}; ladei_pipe_pieces_next(pieces, slot->offset, slot->bytes, &extent); extents++)
    if (!extent_sorts(&extent) || !chains_add(out, &extent)) return false;
  if (out->count < 2 || extents / EXTENTS_LEAST < out->count) return false;
  chains_place(out);
  return true;
}

size_t ladei_pipe_chains_take(ladei_pipe_chains *chains, const ladei_pipe_extent *extent) {
  unsigned at = chain_of(chains, chains->opened, extent->device);
  if (at == chains->opened) chains->opened++;
  ladei_pipe_chain *chain = &chains->list[at];
  size_t place = chain->at + chain->taken;
  assert(at < chains->count && chain->device + chain->taken == extent->device && "C1");
  chain->taken += extent->bytes;
  chains->last = at;
  return place;
}
