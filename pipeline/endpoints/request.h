/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces of a transfer that is being submitted: checked, copied, and which of them need no staging. */
#ifndef LADE_PIPELINE_ENDPOINTS_REQUEST_H
#define LADE_PIPELINE_ENDPOINTS_REQUEST_H

#include "pipeline/endpoints/endpoint.h"

/*
 * Checks the transfer's pieces and copies them into zeroed `out`, which must stay where it is. After a success
 * ladei_pipe_pieces_free is due. LADE_ERR_INVALID_ARGUMENT names the field, LADE_ERR_OUT_OF_HOST_MEMORY,
 * LADE_ERR_UNSUPPORTED.
 */
lade_status ladei_pipe_request_read(ladei_pipe_request *request, ladei_pipe_pieces *out);

/* Marks the pieces that copies reach without staging. Whether those are all. */
bool ladei_pipe_request_find_direct(ladei_pipe_request *request, ladei_pipe_pieces *pieces);

#endif /* LADE_PIPELINE_ENDPOINTS_REQUEST_H */
