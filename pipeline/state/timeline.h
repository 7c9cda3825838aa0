/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeline of a pipeline: its last events, in a ring.
 *
 *   order begun ----> executed ----> completed, under the lock: an event, and one for the wait for the lock
 *   COPY completed ........................... POLL finds its batch done: a FLIGHT for each of its slots
 *
 * I1  An event is added under the pipeline's lock, when its end is known; so events lie in the order of their ends,
 *     except for the time between an order's end and its completion.
 * I2  Without a timeline no clock is read for it.
 * Locks: all under the pipeline's, which the caller holds.
 */
#ifndef LADE_PIPELINE_STATE_TIMELINE_H
#define LADE_PIPELINE_STATE_TIMELINE_H

#include "lade/pipeline.h"
#include "pipeline/core/core.h"

enum { LADEI_PIPE_TIMELINE_MOST_EVENTS = 1 << 24 };

typedef struct ladei_pipe_timeline ladei_pipe_timeline;

/* `events` is not 0; `depth`: slots of each ring. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pipe_timeline_create(uint64_t events, unsigned depth, ladei_pipe_timeline **out);
void ladei_pipe_timeline_destroy(ladei_pipe_timeline *timeline);

/* Adds a time of the calling thread, without a chunk. */
void ladei_pipe_timeline_add(ladei_pipe_timeline *timeline, lade_timeline_kind kind, uint64_t begin_ns,
                             uint64_t end_ns);
/* An order was executed in a time. Before the core hears of it. */
void ladei_pipe_timeline_add_order(ladei_pipe_timeline *timeline, const ladei_pipe_order *order, lade_status status,
                                   uint64_t begin_ns, uint64_t end_ns);

/* Copies the newest events that fit. */
size_t ladei_pipe_timeline_copy(const ladei_pipe_timeline *timeline, lade_timeline_event *out, size_t capacity,
                                uint64_t *out_lost);

#endif /* LADE_PIPELINE_STATE_TIMELINE_H */
