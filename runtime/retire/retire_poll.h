/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pass over the queues: visits them, and gives finished tickets to done(). The calls are in retire.h.
 */
#ifndef LADE_RUNTIME_RETIRE_POLL_H
#define LADE_RUNTIME_RETIRE_POLL_H

#include "runtime/retire/retire_queue.h"
#include "runtime/retire/retire_slots.h"

typedef struct ladei_retire_pass {
  ladei_retire_done_list done;
  lade_status first_error; /* LADE_OK: none */
  lade_error error;        /* its record, which later failures overwrite; without a failure the caller's */
  unsigned flags;
  uint32_t *passes;            /* the count that includes this pass */
  ladei_retire_buffer *buffer; /* the caller's, if its streams come first */
} ladei_retire_pass;

/* The failure's error record is the thread's current one. */
void ladei_retire_pass_failed(ladei_retire_pass *walk, lade_status status);

/* Queries or waits for the event of a use (NULL: the last event of a retired stream), with the lock dropped. */
lade_status ladei_retire_event_ask(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use, bool wait);

/* A mark's event got into a capture that began just before its record and ended just after: it will never be done. The
 * uses are open again; once recorded again, the event is good. */
void ladei_retire_queue_reopen(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *mark);

/* Under the lock. Finishes what is done in a claimed queue; closes its batch if the pass asks for it, or its size. */
void ladei_retire_queue_visit(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk);

/* Under the lock: visits every active queue that no other thread has claimed. */
void ladei_retire_walk_poll(ladei_retire *retire, ladei_retire_pass *walk);

/* Not under the lock: one pass. `buffer`: for a walker that uses it. Returns the first failure. */
lade_status ladei_retire_pass_run(ladei_retire *retire, unsigned flags,
                                  void (*walker)(ladei_retire *, ladei_retire_pass *), ladei_retire_buffer *buffer,
                                  uint64_t *out_done);

/* Nothing is pending outside the threads' buffers. Needs no lock. */
bool ladei_retire_nothing_to_do(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_POLL_H */
