/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Polling: finds uses that have finished.
 *
 * Model, invariants Q1 to Q11 and locks: retire_queue.h. Every function that visits a queue has claimed it, enters and
 * leaves with retire->lock held, and drops it around each driver call.
 */
#include "runtime/retire/retire_poll.h"

#include "base/error.h"
#include "base/log.h"
#include "runtime/retire/retire_capture.h"
#include "runtime/retire/retire_close.h"

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

/* The failure's error record is the thread's current one. */
void ladei_retire_pass_failed(ladei_retire_pass *walk, lade_status status) {
  if (walk->first_error != LADE_OK) return;
  walk->first_error = status;
  ladei_error_save(&walk->error);
}

/* Sets whether the queue is in quarantine, by its event's last answer; in a FOREIGN queue, whose events are independent
 * of each other, whether the use is. */
static void event_answered(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use, lade_status status) {
  ladei_lock_assert_held(&retire->lock);
  bool failing = status != LADE_OK && status != LADE_NOT_READY && status != LADE_ERR_CAPTURE;
  retire->counters.quarantines += failing;
  if (failing && !(queue->kind == LADEI_RETIRE_QUEUE_FOREIGN ? use->failing : queue->failing))
    ladei_log_later(LADE_LOG_ERROR, "retire: stream id %llu: an event cannot be asked, its blocks stay pending: %s",
                    (unsigned long long)queue->stream.id, lade_last_error()->text);
  if (queue->kind == LADEI_RETIRE_QUEUE_FOREIGN)
    ladei_retire_use_failing_set(queue, use, failing);
  else
    queue->failing = failing;
}

static lade_event use_event(const ladei_retire_use *use) {
  return use->event != NULL ? use->event->handle : use->foreign;
}

/* Queries or waits for the event of a use (NULL: the last event of a retired stream), with the lock dropped. */
lade_status ladei_retire_event_ask(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use, bool wait) {
  ladei_lock_assert_held(&retire->lock);
  lade_event event = use == NULL ? queue->last_event->handle : use_event(use);
  void *self = retire->runtime->self;
  ladei_lock_release(&retire->lock);
  lade_status status = wait ? ladei_retire_driver(retire)->event_synchronize(self, event)
                            : ladei_retire_driver(retire)->event_query(self, event);
  ladei_lock_acquire(&retire->lock);
  retire->counters.events_queried += wait ? 0 : 1;
  event_answered(retire, queue, use, status);
  return status;
}

/* A mark's event got into a capture that began just before its record and ended just after: it will never be done. The
 * uses are open again; once recorded again, the event is good. */
void ladei_retire_queue_reopen(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *mark) {
  ladei_lock_assert_held(&retire->lock);
  ladei_event_pool_release(retire->events, ladei_retire_queue_unmark(queue, mark));
}

/* ---- polling one queue ------------------------------------------------------------------------------------------- */

static void finish_all(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue_finish(retire, queue, TAILQ_LAST(&queue->uses, ladei_retire_use_list), &walk->done);
}

/* Some marks of a claimed queue, from the first one on: queried together, so that the lock is dropped once. */
typedef struct marks {
  ladei_retire_use *uses[4];
  lade_event events[4]; /* NULL: the stream was done when the mark was made */
  unsigned count;
  unsigned done;      /* number of those found done */
  lade_status status; /* of the next one; LADE_OK: all are done */
} marks;

static void marks_gather(const ladei_retire_queue *queue, marks *out) {
  enum { MARKS = sizeof out->uses / sizeof out->uses[0], STEPS = 16 };
  ladei_retire_use *use = queue->first_mark;
  *out = (marks){.count = 0};
  for (unsigned steps = 0; use != NULL && out->count < MARKS && steps < STEPS; steps++) {
    if (use->mark != LADEI_RETIRE_MARK_NONE) {
      out->uses[out->count] = use;
      out->events[out->count++] = use->event == NULL ? NULL : use->event->handle;
    }
    use = TAILQ_NEXT(use, link);
  }
}

static void marks_ask(ladei_retire *retire, ladei_retire_queue *queue, marks *asked) {
  ladei_lock_assert_held(&retire->lock);
  uint64_t queries = 0;
  ladei_lock_release(&retire->lock);
  while (asked->done < asked->count && asked->status == LADE_OK) {
    lade_event event = asked->events[asked->done];
    if (event != NULL) {
      asked->status = ladei_retire_driver(retire)->event_query(retire->runtime->self, event);
      queries++;
    }
    asked->done += asked->status == LADE_OK ? 1 : 0;
  }
  ladei_lock_acquire(&retire->lock);
  retire->counters.events_queried += queries;
  if (queries > 0) event_answered(retire, queue, NULL, asked->status);
}

/* Finishes batches that are done, from the head on. False: the rest is not done. */
static bool visit_marks(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  while (queue->first_mark != NULL) {
    marks asked;
    marks_gather(queue, &asked);
    marks_ask(retire, queue, &asked);
    if (asked.done > 0) ladei_retire_queue_finish(retire, queue, asked.uses[asked.done - 1], &walk->done);
    if (asked.status == LADE_ERR_CAPTURE) {
      ladei_retire_queue_reopen(retire, queue, asked.uses[asked.done]);
    } else if (asked.status != LADE_OK) {
      if (asked.status != LADE_NOT_READY) ladei_retire_pass_failed(walk, asked.status);
      return false;
    }
  }
  return true;
}

/* A retired stream: its last event covers all uses. */
static void visit_retired(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (!queue->finished) {
    lade_status status = ladei_retire_event_ask(retire, queue, NULL, false);
    if (status != LADE_OK) {
      if (status != LADE_NOT_READY) ladei_retire_pass_failed(walk, status);
      return;
    }
    queue->finished = true;
  }
  finish_all(retire, queue, walk);
}

/* Uses with an event each. NOW: all of one stream, oldest first, so the first one that is not done ends the visit.
 * FOREIGN: of unknown streams, so each is queried. */
static void visit_each(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_use *use = TAILQ_FIRST(&queue->uses), *after; use != NULL; use = after) {
    lade_status status = ladei_retire_event_ask(retire, queue, use, false);
    after = TAILQ_NEXT(use, link);
    if (status == LADE_OK) {
      ladei_retire_queue_finish_one(retire, queue, use, &walk->done);
      continue;
    }
    if (status != LADE_NOT_READY) ladei_retire_pass_failed(walk, status);
    if (queue->kind == LADEI_RETIRE_QUEUE_NOW) return;
  }
}

void ladei_retire_queue_visit(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->kind != LADEI_RETIRE_QUEUE_STREAM) {
    visit_each(retire, queue, walk);
    return;
  }
  bool failed = queue->failing;
  if (queue->finished) {
    finish_all(retire, queue, walk);
    return;
  }
  bool marks_done = visit_marks(retire, queue, walk);
  if (queue->retired && marks_done && queue->pending > 0) visit_retired(retire, queue, walk);
  bool close = (walk->flags & LADEI_POLL_CLOSE) != 0 || failed || queue->open >= queue->close_at;
  if (!close || !ladei_retire_queue_closable(queue)) return;
  ladei_retire_closing attempt = ladei_retire_queue_close(retire, queue, ladei_retire_queue_queries(retire, queue));
  if (attempt.result == LADEI_RETIRE_CLOSE_FAILED)
    ladei_retire_pass_failed(walk, attempt.status);
  else if (attempt.result == LADEI_RETIRE_CLOSE_DONE ||
           (attempt.result == LADEI_RETIRE_CLOSE_EVENT && attempt.asked == 0 && marks_done))
    (void)visit_marks(retire, queue, walk);
}

/* ---- walks over all queues --------------------------------------------------------------------------------------- */

/* Visits every active queue that no other thread has claimed. */
void ladei_retire_walk_poll(ladei_retire *retire, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    bool claimed = ladei_retire_queue_claim(retire, queue);
    if (claimed) ladei_retire_queue_visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    if (claimed) ladei_retire_queue_yield(retire, queue);
  }
}

/* Visits every active queue; waits for other threads' visits unless they wait for a stream. */
static void walk_poll_all(ladei_retire *retire, ladei_retire_pass *walk) {
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    ladei_retire_queue_pin(retire, queue);
    while (queue->busy && !queue->waits) ladei_condition_wait(&retire->yielded, &retire->lock);
    bool claimed = ladei_retire_queue_claim(retire, queue);
    if (claimed) ladei_retire_queue_visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    if (claimed) ladei_retire_queue_yield(retire, queue);
    ladei_retire_queue_unpin(retire, queue);
  }
}

lade_status ladei_retire_pass_run(ladei_retire *retire, unsigned flags,
                                  void (*walker)(ladei_retire *, ladei_retire_pass *), ladei_retire_buffer *buffer,
                                  uint64_t *out_done) {
  ladei_retire_pass walk;
  walk.first_error = LADE_OK;
  walk.flags = flags;
  walk.buffer = buffer;
  ladei_error_save(&walk.error);
  ladei_retire_done_init(&walk.done);
  ladei_lock_acquire(&retire->lock);
  walk.passes = ladei_retire_pass_begin(retire);
  ladei_retire_capture_drain(retire, &walk.done);
  if ((flags & LADEI_POLL_CLOSE) != 0) ladei_retire_buffers_publish(retire);
  walker(retire, &walk);
  ladei_retire_done_deliver(retire, &walk.done);
  ladei_retire_pass_end(retire, walk.passes);
  if ((flags & LADEI_POLL_ALL) != 0) ladei_retire_passes_wait(retire);
  ladei_lock_release(&retire->lock);
  ladei_error_restore(&walk.error);
  if (out_done != NULL) *out_done = walk.done.count;
  return walk.first_error;
}

bool ladei_retire_pending(const ladei_retire *retire) {
  return atomic_load_explicit(&retire->pending_tickets, memory_order_relaxed) > 0;
}

/* Buffers left out. */
bool ladei_retire_nothing_to_do(ladei_retire *retire) {
  return atomic_load_explicit(&retire->pending_tickets, memory_order_acquire) == 0 &&
         !ladei_retire_capture_any_gone(retire);
}

lade_status ladei_retire_poll(ladei_retire *retire, unsigned flags, uint64_t *out_done) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  if (out_done != NULL) *out_done = 0;
  bool buffers = (flags & LADEI_POLL_CLOSE) != 0 && atomic_load_explicit(&retire->slots_used, memory_order_acquire) > 0;
  if (status != LADE_OK || (!buffers && ladei_retire_nothing_to_do(retire))) return status;
  return ladei_retire_pass_run(retire, flags, (flags & LADEI_POLL_ALL) != 0 ? walk_poll_all : ladei_retire_walk_poll,
                               NULL, out_done);
}

static void walk_close(ladei_retire *retire, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    ladei_retire_queue_claim_wait(retire, queue);
    if (ladei_retire_queue_closable(queue)) {
      ladei_retire_closing attempt = ladei_retire_queue_close(retire, queue, false);
      if (attempt.result == LADEI_RETIRE_CLOSE_FAILED) ladei_retire_pass_failed(walk, attempt.status);
    }
    next = ladei_retire_queue_after(retire, queue);
    ladei_retire_queue_yield(retire, queue);
  }
}

lade_status ladei_retire_close(ladei_retire *retire) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  return status != LADE_OK ? status : ladei_retire_pass_run(retire, LADEI_POLL_CLOSE, walk_close, NULL, NULL);
}
