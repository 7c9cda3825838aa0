/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues work on a stream. All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_SUBMIT_SUBMIT_H
#define LADE_RUNTIME_SOFT_SUBMIT_SUBMIT_H

#include "runtime/soft/state/model.h"

/* For an op without memory to queue its work. */
lade_status ladei_soft_no_memory_to_queue(soft_op op);

/* All later work of `stream` waits for `awaited` up to `number`. Under the lock. */
lade_status ladei_soft_stream_wait_point(soft_runtime *rt, soft_op op, soft_stream *stream, soft_stream *awaited,
                                         uint64_t number);

/* The legacy stream's rule: orders `stream` after all that it implicitly waits for. Queues waits. Under the lock. */
lade_status ladei_soft_stream_join_legacy(soft_runtime *rt, soft_op op, soft_stream *stream);

/*
 * Queues work on a stream, or captures it. Takes all that the work owns, also on failure. Handles legacy order, hazards
 * and memory. Under the lock.
 */
lade_status ladei_soft_submit(soft_runtime *rt, soft_op op, soft_stream *stream, soft_work *work);

#endif /* LADE_RUNTIME_SOFT_SUBMIT_SUBMIT_H */
