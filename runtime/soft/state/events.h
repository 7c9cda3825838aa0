/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event records.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_EVENTS_H
#define LADE_RUNTIME_SOFT_STATE_EVENTS_H

#include "runtime/soft/state/model.h"

/* The live event of a handle, or NULL with an error recorded. Under the lock. */
soft_event *ladei_soft_event_find(soft_runtime *rt, soft_op op, lade_event handle, lade_status *out_status);
void ladei_soft_events_close(soft_runtime *rt);

/* The event's word for the work that the stream has now. */
static inline uint64_t ladei_soft_event_word(const soft_stream *stream, uint64_t number) {
  return (uint64_t)stream->index << SOFT_EVENT_NUMBER_BITS | number;
}

#endif /* LADE_RUNTIME_SOFT_STATE_EVENTS_H */
