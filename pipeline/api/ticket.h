/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets and the caller's streams, for all public calls. */
#ifndef LADE_PIPELINE_API_TICKET_H
#define LADE_PIPELINE_API_TICKET_H

#include "pipeline/state/state.h"

/* A stream of the caller's that transfers shall be ordered with: LADE_ERR_CAPTURE for one that is captured. */
lade_status ladei_pipe_caller_stream_resolve(const lade_runtime *runtime, lade_stream stream, ladei_stream *out);

/* lade_ticket_wait() for the first `bytes` of a transfer only. */
lade_status ladei_pipe_ticket_wait_prefix(lade_ticket *ticket, uint64_t bytes, uint64_t timeout_ns);

/* The same until its copies are over: to the host nothing reads the device memory any more. */
lade_status ladei_pipe_ticket_wait_copied(lade_ticket *ticket, uint64_t timeout_ns);

/* Ends a transfer as cancelled, unless it is over or has failed. Called with the lock. */
void ladei_pipe_ticket_cancel_locked(lade_pipeline *pipeline, lade_ticket *ticket);

#endif /* LADE_PIPELINE_API_TICKET_H */
