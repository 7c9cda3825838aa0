/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing batches: asking a stream, recording an event.
 *
 * Model, invariants Q1 to Q11 and locks: retire_queue.h. A queue that is closed or asked about is claimed; the lock is
 * held before and after, and dropped around each driver call. While it is dropped, others may only append uses to the
 * queue. So the newest use before a driver call is still there after it, and the call covers it; it does not cover
 * later uses.
 *
 *   closing one batch        ask the stream      record an event
 *     newest open use  --->  done ------------------------------>  mark "done"     (asked only if it does not capture)
 *                            capturing --------------------------> stays open: held
 *                            not ready -------> recorded ------->  mark with the event
 *                                               captures now ---->  stays open: held
 *                            fails              fails ---------->  stays open: quarantine, every poll tries again
 *                            destroyed          destroyed ------>  stays open: lost, its device must be waited for
 *
 * Another thread may destroy the stream between any two calls, and make another one that gets its handle. So each
 * attempt asks before its first call, and again after the call that it relies on, whether the handle names the stream:
 * the call counts only then. After a failed call the code checks whether the stream still exists.
 */
#include "runtime/retire/retire_close.h"

#include <assert.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "runtime/retire/retire_slots.h"

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Result of an attempt in which the stream was not the one of the note, or this is not known. */
static ladei_retire_closing closing_unverified(ladei_retire_closing attempt, lade_status status) {
  bool lost = status == LADE_ERR_STREAM_RETIRED;
  return ladei_retire_closing_ended(attempt, lost ? LADEI_RETIRE_CLOSE_LOST : LADEI_RETIRE_CLOSE_FAILED, status);
}

/* Result of an attempt in which a call failed. */
static ladei_retire_closing closing_failed(ladei_retire *retire, const ladei_stream *stream,
                                           ladei_retire_closing attempt, lade_status failure) {
  lade_error error;
  ladei_error_save(&error);
  bool lost =
      failure == LADE_ERR_STREAM_RETIRED || ladei_stream_verify(retire->runtime, stream) == LADE_ERR_STREAM_RETIRED;
  if (lost) return closing_unverified(attempt, LADE_ERR_STREAM_RETIRED);
  ladei_error_restore(&error);
  return closing_unverified(attempt, failure);
}

/* Not under the lock. Whether the stream is done, can be recorded on, or neither. */
static inline __attribute__((always_inline)) ladei_retire_closing stream_ask(ladei_retire *retire,
                                                                             const ladei_stream *stream, bool query) {
  ladei_retire_closing attempt = {.asked = query ? 1 : 0};
  void *self = retire->runtime->self;
  lade_status status = ladei_stream_verify(retire->runtime, stream);
  if (status != LADE_OK) return closing_unverified(attempt, status);
  if (query) {
    ladei_lock_assert_none_held();
    status = ladei_stream_ask(retire->runtime, stream);
    if (status == LADE_OK) status = ladei_stream_confirm(retire->runtime, stream, "stream_query");
    if (status == LADE_OK) return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_DONE, status);
    if (status == LADE_ERR_CAPTURE) return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_HELD, status);
    if (status == LADE_NOT_READY) return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_EVENT, status);
    return closing_failed(retire, stream, attempt, status);
  }
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  status = ladei_retire_driver(retire)->stream_capture_info(self, stream, &info);
  if (status != LADE_OK) return closing_failed(retire, stream, attempt, status);
  bool free_of_capture = info.status == LADEI_CAPTURE_NONE;
  return ladei_retire_closing_ended(attempt, free_of_capture ? LADEI_RETIRE_CLOSE_EVENT : LADEI_RETIRE_CLOSE_HELD,
                                    LADE_ERR_CAPTURE);
}

/* Not under the lock. Covers the work queued on the stream so far by an event, unless `query` finds it finished. Uses
 * up *spare, if there is one. */
ladei_retire_closing ladei_retire_stream_close(ladei_retire *retire, const ladei_stream *stream, bool query,
                                               ladei_event **spare) {
  ladei_retire_closing attempt = stream_ask(retire, stream, query);
  if (attempt.result != LADEI_RETIRE_CLOSE_EVENT) return attempt;
  lade_status status = LADE_OK;
  if (*spare != NULL) {
    attempt.event = *spare;
    *spare = NULL;
  } else {
    status = ladei_event_pool_acquire(retire->events, stream->context, &attempt.event);
  }
  if (status != LADE_OK) return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_FAILED, status);
  attempt.recorded = 1;
  status = ladei_retire_driver(retire)->event_record(retire->runtime->self, attempt.event->handle, stream);
  /* Another thread may have begun a capture since the question. An event in it must not be queried. */
  if (status == LADE_OK) status = ladei_stream_confirm(retire->runtime, stream, "event_record");
  if (status == LADE_OK) return attempt;
  ladei_event_pool_discard(retire->events, attempt.event);
  attempt.event = NULL;
  if (status == LADE_ERR_CAPTURE) return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_HELD, status);
  return closing_failed(retire, stream, attempt, status);
}

/* `notes`: the queue's, before the attempt. */
void ladei_retire_closing_count(ladei_retire *retire, ladei_retire_queue *queue, const ladei_retire_closing *attempt,
                                uint64_t notes) {
  ladei_lock_assert_held(&retire->lock);
  retire->counters.streams_queried += attempt->asked;
  retire->counters.events_recorded += attempt->recorded;
  if (attempt->result == LADEI_RETIRE_CLOSE_FAILED && !queue->failing)
    ladei_log_later(LADE_LOG_ERROR, "retire: stream id %llu: no event can be recorded, its blocks stay pending: %s",
                    (unsigned long long)queue->stream.id, lade_last_error()->text);
  if (attempt->result == LADEI_RETIRE_CLOSE_LOST && !queue->lost)
    ladei_log_later(LADE_LOG_ERROR,
                    "retire: stream id %llu was destroyed before an event covered its uses: their blocks stay pending",
                    (unsigned long long)queue->stream.id);
  queue->failing = attempt->result == LADEI_RETIRE_CLOSE_FAILED;
  queue->lost = attempt->result == LADEI_RETIRE_CLOSE_LOST && queue->notes == notes; /* Q9 */
  retire->counters.quarantines += queue->failing || attempt->result == LADEI_RETIRE_CLOSE_LOST;
  if (queue->lost) ladei_retire_buffers_forget_queue(retire, queue); /* so that its next note reaches the queue */
}

/* Closes the open batch of a claimed queue. Returns the result. */
ladei_retire_closing ladei_retire_queue_close(ladei_retire *retire, ladei_retire_queue *queue, bool query) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_use *newest = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  uint64_t covered = queue->open, notes = queue->notes;
  const ladei_stream stream = queue->stream;
  assert(queue->kind == LADEI_RETIRE_QUEUE_STREAM && !queue->retired && covered > 0);
  ladei_event *spare = ladei_retire_queue_spare_take(queue);
  ladei_lock_release(&retire->lock);
  ladei_retire_closing attempt = ladei_retire_stream_close(retire, &stream, query, &spare);
  ladei_lock_acquire(&retire->lock);
  if (spare != NULL) ladei_retire_queue_spare_put(retire, queue, spare);
  ladei_retire_closing_count(retire, queue, &attempt, notes);
  bool marked = attempt.result == LADEI_RETIRE_CLOSE_EVENT || attempt.result == LADEI_RETIRE_CLOSE_DONE;
  if (marked) ladei_retire_queue_mark(queue, newest, attempt.event, covered);
  /* A failed attempt is repeated after another batch of adds, not in each. */
  queue->close_at = marked ? ladei_retire_queue_batch(retire, queue) : queue->open + retire->options.event_batch;
  return attempt;
}

bool ladei_retire_queue_fills(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->kind != LADEI_RETIRE_QUEUE_STREAM || queue->retired || queue->lost) return false;
  return queue->open >= queue->close_at && ladei_retire_queue_claim(retire, queue);
}

void ladei_retire_queue_close_claimed(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  lade_error callers;
  int cancellation = ladei_cancellation_hold();
  ladei_error_save(&callers); /* an add succeeds in any case */
  while (ladei_retire_queue_closable(queue) && queue->open >= queue->close_at) {
    ladei_retire_closing attempt = ladei_retire_queue_close(retire, queue, ladei_retire_queue_queries(retire, queue));
    if (attempt.result != LADEI_RETIRE_CLOSE_EVENT && attempt.result != LADEI_RETIRE_CLOSE_DONE) break;
  }
  ladei_retire_queue_yield(retire, queue);
  ladei_error_restore(&callers);
  ladei_cancellation_resume(cancellation);
}

/* ---- asking for buffers ------------------------------------------------------------------------------------------ */

static bool question_begin(const ladei_retire *retire, ladei_retire_question *question) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = question->queue;
  if (queue->retired || queue->finished || queue->lost || queue->failing || !ladei_retire_queue_queries(retire, queue))
    return false;
  question->newest = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  question->open = queue->open;
  question->notes = queue->notes;
  return true;
}

static void question_end(ladei_retire *retire, ladei_retire_question *question, const ladei_retire_closing *attempt,
                         ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = question->queue;
  ladei_retire_closing_count(retire, queue, attempt, question->notes);
  question->done = attempt->result == LADEI_RETIRE_CLOSE_DONE;
  if (!question->done || question->newest == NULL) return;
  if (question->newest->mark == LADEI_RETIRE_MARK_NONE)
    ladei_retire_queue_mark(queue, question->newest, NULL, question->open);
  ladei_retire_queue_finish(retire, queue, question->newest, done);
}

void ladei_retire_queues_ask(ladei_retire *retire, ladei_retire_question *questions, unsigned count,
                             ladei_retire_done_list *done) {
  ladei_retire_closing attempts[LADEI_RETIRE_BUFFER_SLOTS];
  bool asked[LADEI_RETIRE_BUFFER_SLOTS];
  lade_error callers;
  assert(count <= LADEI_RETIRE_BUFFER_SLOTS);
  for (unsigned i = 0; i < count; i++) asked[i] = question_begin(retire, &questions[i]);
  ladei_lock_release(&retire->lock);
  int cancellation = ladei_cancellation_hold();
  ladei_error_save(&callers); /* the note or add succeeds in any case */
  for (unsigned i = 0; i < count; i++)
    if (asked[i]) attempts[i] = stream_ask(retire, &questions[i].queue->stream, true);
  ladei_error_restore(&callers);
  ladei_cancellation_resume(cancellation);
  ladei_lock_acquire(&retire->lock);
  for (unsigned i = 0; i < count; i++)
    if (asked[i]) question_end(retire, &questions[i], &attempts[i], done);
}
