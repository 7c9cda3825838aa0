/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing the open batch of a queue, and asking whether its stream is done (model in retire_close.c).
 */
#ifndef LADE_RUNTIME_RETIRE_CLOSE_H
#define LADE_RUNTIME_RETIRE_CLOSE_H

#include "runtime/retire/retire_queue.h"

typedef enum ladei_retire_close_result {
  LADEI_RETIRE_CLOSE_EVENT,
  LADEI_RETIRE_CLOSE_DONE,
  LADEI_RETIRE_CLOSE_HELD,
  LADEI_RETIRE_CLOSE_FAILED,
  LADEI_RETIRE_CLOSE_LOST
} ladei_retire_close_result;

/* Result of one attempt. */
typedef struct ladei_retire_closing {
  ladei_retire_close_result result;
  lade_status status; /* FAILED: why; HELD: LADE_ERR_CAPTURE; LOST: LADE_ERR_STREAM_RETIRED */
  ladei_event *event; /* EVENT: recorded, on loan */
  uint64_t asked, recorded;
} ladei_retire_closing;

static inline ladei_retire_closing ladei_retire_closing_ended(ladei_retire_closing attempt,
                                                              ladei_retire_close_result result, lade_status status) {
  attempt.result = result;
  attempt.status = status;
  return attempt;
}

static inline bool ladei_retire_queue_closable(const ladei_retire_queue *queue) {
  return queue->kind == LADEI_RETIRE_QUEUE_STREAM && !queue->retired && !queue->lost && queue->open > 0;
}

static inline bool ladei_retire_queries(const ladei_retire *retire) {
  return !retire->options.events_only && retire->options.event_batch > 1;
}

/* Whether to ask the stream before recording; not if an older event is pending, as the stream is hardly done then. */
static inline bool ladei_retire_queue_queries(const ladei_retire *retire, const ladei_retire_queue *queue) {
  bool event_pending = queue->last_mark != NULL && queue->last_mark->mark == LADEI_RETIRE_MARK_EVENT;
  return ladei_retire_queries(retire) && !event_pending;
}

/* Not under the lock. Covers the work queued on the stream so far by an event, unless `query` finds it finished. Uses
 * up *spare, if there is one. */
ladei_retire_closing ladei_retire_stream_close(ladei_retire *retire, const ladei_stream *stream, bool query,
                                               ladei_event **spare);

/* Counts an attempt, and sets the queue's state to its result. `notes`: the queue's, before the attempt. */
void ladei_retire_closing_count(ladei_retire *retire, ladei_retire_queue *queue, const ladei_retire_closing *attempt,
                                uint64_t notes);

/* Under the lock, which is dropped meanwhile: closes the open batch of a claimed queue. Returns the result. */
ladei_retire_closing ladei_retire_queue_close(ladei_retire *retire, ladei_retire_queue *queue, bool query);

/* Under the lock. Whether the adding thread should close the queue's batch now; if so, claims it. */
bool ladei_retire_queue_fills(ladei_retire *retire, ladei_retire_queue *queue);

/* Under the lock, which is dropped meanwhile: closes the open batch of a claimed queue, and yields it. For add. */
void ladei_retire_queue_close_claimed(ladei_retire *retire, ladei_retire_queue *queue);

/* A question whether the stream of a claimed queue is done. */
typedef struct ladei_retire_question {
  ladei_retire_queue *queue;
  ladei_retire_use *newest; /* in the queue at the time of the question; NULL: none */
  uint64_t open, notes;     /* of the queue at that time */
  bool done;
} ladei_retire_question;

/* Under the lock, which is dropped meanwhile: asks, records nothing, and finishes earlier uses of streams that are
 * done. If an event is pending or the stream must be left alone, it is not asked, and `done` stays false. */
void ladei_retire_queues_ask(ladei_retire *retire, ladei_retire_question *questions, unsigned count,
                             ladei_retire_done_list *done);

#endif /* LADE_RUNTIME_RETIRE_CLOSE_H */
