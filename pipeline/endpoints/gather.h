/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks to the device with bytes of URLs, whose requests take no thread. */
#ifndef LADE_PIPELINE_ENDPOINTS_GATHER_H
#define LADE_PIPELINE_ENDPOINTS_GATHER_H

#include "pipeline/state/state.h"

typedef void (*ladei_pipe_gathered)(void *user, lade_status status);

/*
 * The order READ of a remote transfer: begins its requests, once all other bytes of the chunk are there. *out_begun: `done`
 * is called when they are over, on the client's thread, with no lock held, and lade_last_error() describes a failure.
 * Otherwise it is never called, and the result is the order's.
 */
lade_status ladei_pipe_gather_begin(const ladei_pipe_order *order, ladei_pipe_gathered done, void *user,
                                    bool *out_begun);
/* The same, one request after the other, and waits for them. */
lade_status ladei_pipe_gather_run(const ladei_pipe_order *order);

#endif /* LADE_PIPELINE_ENDPOINTS_GATHER_H */
