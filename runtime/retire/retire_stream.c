/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retiring a stream: a last event before it is destroyed.
 *
 * Model, invariants Q1 to Q11 and locks: retire_queue.h.
 */
#include "base/cancellation.h"
#include "base/error.h"
#include "runtime/last_stream.h"
#include "runtime/retire/retire_close.h"
#include "runtime/retire/retire_slots.h"

/* Not under the lock. As ladei_retire_stream_close, but also makes sure that the event did not get into a capture that
 * began and ended meanwhile, since there is no second attempt. (The query harms no capture, as that one is over.) */
static ladei_retire_closing stream_close_finally(ladei_retire *retire, const ladei_stream *stream) {
  ladei_event *none = NULL;
  ladei_retire_closing attempt = ladei_retire_stream_close(retire, stream, ladei_retire_queries(retire), &none);
  if (attempt.result != LADEI_RETIRE_CLOSE_EVENT) return attempt;
  lade_status status = ladei_retire_driver(retire)->event_query(retire->runtime->self, attempt.event->handle);
  if (status == LADE_NOT_READY) return attempt;
  ladei_event_pool_release(retire->events, attempt.event);
  attempt.event = NULL;
  if (status == LADE_OK) return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_DONE, status);
  return ladei_retire_closing_ended(
      attempt, status == LADE_ERR_CAPTURE ? LADEI_RETIRE_CLOSE_HELD : LADEI_RETIRE_CLOSE_FAILED, status);
}

/* The queue is claimed. Tries once to retire it: returns whether that is settled, with the result in *out. */
static bool queue_retire_once(ladei_retire *retire, ladei_retire_queue *queue, lade_status *out) {
  ladei_lock_assert_held(&retire->lock);
  const ladei_stream stream = queue->stream;
  ladei_retire_buffers_forget_queue(retire, queue);
  /* Besides the claim: uses noted or pending. */
  bool needed = !queue->retired && (queue->refs > 1 || queue->inline_notes != 0);
  *out = LADE_OK;
  if (!needed) {
    queue->retired = true;
    return true;
  }
  uint64_t known = queue->notes + queue->appends, notes = queue->notes;
  ladei_lock_release(&retire->lock);
  ladei_retire_closing attempt = stream_close_finally(retire, &stream);
  ladei_lock_acquire(&retire->lock);
  ladei_retire_closing_count(retire, queue, &attempt, notes);
  if (attempt.result == LADEI_RETIRE_CLOSE_HELD) {
    *out = ladei_error(LADE_ERR_CAPTURE, 0, "retire: stream id %llu captures; end the capture, then retire it",
                       (unsigned long long)stream.id);
  } else if (attempt.result == LADEI_RETIRE_CLOSE_FAILED) {
    *out = attempt.status;
  }
  /* LOST: another thread has just destroyed the stream; no further call is made on it. */
  if (attempt.result != LADEI_RETIRE_CLOSE_EVENT && attempt.result != LADEI_RETIRE_CLOSE_DONE) return true;
  ladei_retire_buffers_forget_queue(retire, queue); /* L1: notes may have come meanwhile */
  if (queue->notes + queue->appends != known) {
    if (attempt.event != NULL) ladei_event_pool_release(retire->events, attempt.event);
    return false; /* Q9: the event may not cover new uses */
  }
  queue->last_event = attempt.event;
  queue->finished = attempt.result == LADEI_RETIRE_CLOSE_DONE;
  queue->retired = true;
  return true;
}

/* Notes by other threads meanwhile are covered, for some tries; then they are refused. */
static lade_status queue_retire(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  enum { OPEN_TRIES = 4 };
  lade_status status;
  for (int tries = 1; !queue_retire_once(retire, queue, &status); tries++) queue->retiring = tries >= OPEN_TRIES;
  queue->retiring = false;
  return status;
}

static lade_status stream_retire(ladei_retire *retire, lade_stream handle) {
  ladei_stream stream;
  lade_status status = ladei_runtime_check_process(retire->runtime);
  bool special = handle == NULL || handle == LADE_STREAM_LEGACY || handle == LADE_STREAM_PER_THREAD;
  if (status != LADE_OK || special) return status;
  status = ladei_retire_driver(retire)->stream_resolve(retire->runtime->self, handle, &stream);
  if (status != LADE_OK) return status;
  int cancellation = ladei_cancellation_hold();
  ladei_lock_acquire(&retire->lock);
  ladei_retire_queue *queue =
      ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_STREAM, &stream); /* Q10: also one never noted */
  if (queue != NULL) {
    ladei_retire_queue_claim_wait(retire, queue);
    ladei_retire_queue_unpin(retire, queue);
    status = queue_retire(retire, queue);
    ladei_retire_queue_yield(retire, queue);
  }
  ladei_lock_release(&retire->lock);
  ladei_cancellation_resume(cancellation);
  if (queue != NULL) return status;
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0,
                     "retire: no memory for %zu bytes, to remember that stream id %llu is retired", sizeof *queue,
                     (unsigned long long)stream.id);
}

lade_status ladei_retire_stream_retire(ladei_retire *retire, lade_stream handle) {
  lade_status status = stream_retire(retire, handle);
  ladei_last_stream_forget();
  return status;
}
