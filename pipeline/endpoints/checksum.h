/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of the bytes on their way. */
#ifndef LADE_PIPELINE_ENDPOINTS_CHECKSUM_H
#define LADE_PIPELINE_ENDPOINTS_CHECKSUM_H

#include "pipeline/state/state.h"

/* Computes or compares the checksums of a READ or WRITE order's chunk, whose bytes are on the host. */
lade_status ladei_pipe_checksum_chunk(const ladei_pipe_order *order);

#endif /* LADE_PIPELINE_ENDPOINTS_CHECKSUM_H */
