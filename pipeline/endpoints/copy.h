/* SPDX-License-Identifier: Apache-2.0 */
/* The device half of a chunk: copies between its block, or the endpoints themselves, and the device. */
#ifndef LADE_PIPELINE_ENDPOINTS_COPY_H
#define LADE_PIPELINE_ENDPOINTS_COPY_H

#include "pipeline/state/state.h"

/* Queues the copies of a slot's chunk: the order COPY. On failure order->partial tells whether some are queued. */
lade_status ladei_pipe_copy_chunk(lade_pipeline *pipeline, ladei_pipe_order *order);

#endif /* LADE_PIPELINE_ENDPOINTS_COPY_H */
