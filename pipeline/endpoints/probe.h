/* SPDX-License-Identifier: Apache-2.0 */
/* Timing the first copies of a direction, to learn how long a copy must be for its link. */
#ifndef LADE_PIPELINE_ENDPOINTS_PROBE_H
#define LADE_PIPELINE_ENDPOINTS_PROBE_H

#include "pipeline/state/state.h"

/* Creates the probe's events. After a failure destroy frees those made. */
lade_status ladei_pipe_probe_create(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe);
lade_status ladei_pipe_probe_destroy(const lade_runtime *runtime, ladei_pipe_probe *probe);
/* Before copies of about `bytes` are queued. True: they are timed; probe_end must follow, queued or not. */
bool ladei_pipe_probe_begin(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe,
                            size_t bytes);
/* `bytes`: those that went over the link; 0: not all was queued. */
void ladei_pipe_probe_end(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe,
                          size_t bytes);
/* After copies of the direction were found finished. */
void ladei_pipe_probe_read(const lade_runtime *runtime, ladei_pipe_probe *probe);

/* Whether the next long copy is measured: no other copies of the side should run beside it. */
bool ladei_pipe_probe_is_due(ladei_pipe_probe *probe);

#endif /* LADE_PIPELINE_ENDPOINTS_PROBE_H */
