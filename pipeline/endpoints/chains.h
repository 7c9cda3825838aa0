/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a chunk that lie together on the device, in any order of the file.
 *
 *   chunk     [ a1 | b1 | a2 | b2 | a3 | b3 ]        rows of a tensor of which two ranks get columns
 *   device    a1a2a3 ...  b1b2b3                     two chains
 *   block     [ a1 a2 a3 | b1 b2 b3 ]                two copies instead of six
 *
 * A copy of 2 KiB takes the engine as long as one of 64 KiB: in file order 500 MB of such rows took 90 ms on an H100.
 * Sorted into the block by the processor that reads them they take as long as any other bytes.
 */
#ifndef LADE_PIPELINE_ENDPOINTS_CHAINS_H
#define LADE_PIPELINE_ENDPOINTS_CHAINS_H

#include "pipeline/state/state.h"

/* Chains at most: ranks of a group. */
enum { LADEI_PIPE_CHAINS_MOST = 64 };

typedef struct ladei_pipe_chain {
  char *device; /* its first byte */
  size_t bytes;
  size_t at;    /* in the block's data */
  size_t taken; /* of `bytes`, by ladei_pipe_chains_take */
} ladei_pipe_chain;

typedef struct ladei_pipe_chains {
  unsigned count;
  unsigned last;   /* the chain that grew last */
  unsigned opened; /* chains that ladei_pipe_chains_take has begun */
  ladei_pipe_chain list[LADEI_PIPE_CHAINS_MOST];
} ladei_pipe_chains;

/* The chains of a slot's chunk. False: its bytes lie in the block in the chunk's order. The same answer at any time. */
bool ladei_pipe_chains_find(const ladei_pipe_slot *slot, ladei_pipe_chains *out);

/* Where an extent lies in the block's data. Once for each extent of the chunk, in order. */
size_t ladei_pipe_chains_take(ladei_pipe_chains *chains, const ladei_pipe_extent *extent);

#endif /* LADE_PIPELINE_ENDPOINTS_CHAINS_H */
