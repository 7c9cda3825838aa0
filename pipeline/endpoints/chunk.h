/* SPDX-License-Identifier: Apache-2.0 */
/* The host half of a chunk: bytes between endpoints and its block. */
#ifndef LADE_PIPELINE_ENDPOINTS_CHUNK_H
#define LADE_PIPELINE_ENDPOINTS_CHUNK_H

#include "pipeline/state/state.h"

/* The orders READ and WRITE: moves the chunk's bytes, all of them, or an error. Not of a remote transfer: gather.h. */
lade_status ladei_pipe_chunk_move(const lade_pipeline *pipeline, const ladei_pipe_order *order);
/* The same as one request, for storage to work on by itself. False: it is no such thing. */
bool ladei_pipe_chunk_request(const ladei_pipe_order *order, ladei_pipe_storage_request *out);
/* An extent by itself, to a place in the block's data; not of a URL. */
lade_status ladei_pipe_chunk_extent_read(const ladei_pipe_slot *slot, const ladei_pipe_extent *extent, size_t place);
/* Number of the slot's block for storage: below twice the depth. */
unsigned ladei_pipe_block_number(const ladei_pipe_slot *slot);

#endif /* LADE_PIPELINE_ENDPOINTS_CHUNK_H */
