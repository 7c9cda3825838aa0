/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of a transfer to the host that name one file. */
#ifndef LADE_PIPELINE_ENDPOINTS_SINKS_H
#define LADE_PIPELINE_ENDPOINTS_SINKS_H

#include "pipeline/endpoints/endpoint.h"

/*
 * Refuses pieces that name one file by path in ways that conflict; opens nothing. `request` may have any index, and has
 * that of the refused piece afterwards. LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_pipe_sinks_check(ladei_pipe_request *request);

#endif /* LADE_PIPELINE_ENDPOINTS_SINKS_H */
