/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces that the copy engine reaches by itself. */
#ifndef LADE_PIPELINE_ENDPOINTS_DIRECT_H
#define LADE_PIPELINE_ENDPOINTS_DIRECT_H

#include "pipeline/state/state.h"

/* Marks the pieces that need no staging. Whether those are all. */
bool ladei_pipe_pieces_find_direct(const lade_pipeline *pipeline, ladei_pipe_pieces *pieces);

#endif /* LADE_PIPELINE_ENDPOINTS_DIRECT_H */
