/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding out what streams have finished: closing batches, polling, waiting, synchronising, retiring a stream.
 *
 * Model, invariants Q1 to Q8 and locks: retire_queue.h. Every function that visits a queue has claimed it, enters and
 * leaves with retire->lock held, and drops it around each driver call. While it is dropped, others may append uses to
 * the queue, nothing else: so what was the newest use before a driver call is still there after it, and is covered by
 * what the call did; uses behind it are not.
 *
 *   closing one batch        ask the stream      record an event
 *     newest open use  --->  done ------------------------------>  mark "done"       (asked only where it does not capture)
 *                            capturing --------------------------> stays open: held
 *                            not ready -------> recorded ------->  mark with the event
 *                                               captures now ---->  stays open: held
 *                            fails              fails ---------->  stays open: quarantine, every poll tries again
 *                            destroyed ------------------------->  stays open: lost, its device must be waited for
 */
#include <assert.h>
#include <time.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/size.h"
#include "runtime/retire/retire_queue.h"

/* ---- Closing a batch --------------------------------------------------------------------------------------------- */

typedef enum close_result { CLOSE_EVENT, CLOSE_DONE, CLOSE_HELD, CLOSE_FAILED, CLOSE_LOST } close_result;

/* What one attempt made of it. */
typedef struct closing {
  close_result result;
  lade_status status; /* CLOSE_FAILED: why; CLOSE_HELD: LADE_ERR_CAPTURE; CLOSE_LOST: LADE_ERR_STREAM_RETIRED */
  ladei_event *event; /* CLOSE_EVENT: recorded, on loan */
  uint64_t asked, recorded;
} closing;

static closing closing_ended(closing attempt, close_result result, lade_status status) {
  attempt.result = result;
  attempt.status = status;
  return attempt;
}

/* The handle still means the stream it meant at the note. LADE_ERR_STREAM_RETIRED: it was destroyed without
 * stream_retire, and means nothing now, or another stream, whose events say nothing about ours. */
static lade_status stream_verify(ladei_retire *retire, const ladei_stream *stream) {
  if (stream->kind != LADEI_STREAM_ORDINARY) return LADE_OK;
  ladei_stream now;
  lade_status status = ladei_retire_driver(retire)->stream_resolve(retire->runtime->self, stream->handle, &now);
  bool other = status == LADE_OK && (now.id != stream->id || now.context != stream->context);
  return other || status == LADE_ERR_INVALID_ARGUMENT ? LADE_ERR_STREAM_RETIRED : status;
}

/* Not under the lock. Whether the stream is done, could be recorded on, or neither. */
static inline __attribute__((always_inline)) closing stream_ask(ladei_retire *retire, const ladei_stream *stream,
                                                                bool query) {
  closing attempt = {.asked = query ? 1 : 0};
  void *self = retire->runtime->self;
  lade_status status = stream_verify(retire, stream);
  if (status == LADE_ERR_STREAM_RETIRED) return closing_ended(attempt, CLOSE_LOST, status);
  if (status != LADE_OK) return closing_ended(attempt, CLOSE_FAILED, status);
  if (query) {
    ladei_lock_assert_none_held();
    status = ladei_stream_ask(retire->runtime, stream);
    if (status == LADE_OK) return closing_ended(attempt, CLOSE_DONE, status);
    if (status == LADE_ERR_CAPTURE) return closing_ended(attempt, CLOSE_HELD, status);
    return closing_ended(attempt, status == LADE_NOT_READY ? CLOSE_EVENT : CLOSE_FAILED, status);
  }
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  status = ladei_retire_driver(retire)->stream_capture_info(self, stream, &info);
  if (status != LADE_OK) return closing_ended(attempt, CLOSE_FAILED, status);
  bool free_of_capture = info.status == LADEI_CAPTURE_NONE;
  return closing_ended(attempt, free_of_capture ? CLOSE_EVENT : CLOSE_HELD, LADE_ERR_CAPTURE);
}

/* Not under the lock. Covers the work queued on the stream so far by an event, unless `query` finds none left; by the
 * one in *spare, which is taken then, if there is one. */
static closing stream_close(ladei_retire *retire, const ladei_stream *stream, bool query, ladei_event **spare) {
  closing attempt = stream_ask(retire, stream, query);
  if (attempt.result != CLOSE_EVENT) return attempt;
  lade_status status = LADE_OK;
  if (*spare != NULL) {
    attempt.event = *spare;
    *spare = NULL;
  } else {
    status = ladei_event_pool_acquire(retire->events, stream->context, &attempt.event);
  }
  if (status != LADE_OK) return closing_ended(attempt, CLOSE_FAILED, status);
  attempt.recorded = 1;
  status = ladei_retire_driver(retire)->event_record(retire->runtime->self, attempt.event->handle, stream);
  /* Another thread may have begun a capture since the question. If the event is in it, nobody may ask about it. */
  if (status == LADE_OK) status = ladei_stream_uncaptured(retire->runtime, stream, "event_record");
  if (status == LADE_OK) return attempt;
  ladei_event_pool_discard(retire->events, attempt.event);
  attempt.event = NULL;
  return closing_ended(attempt, status == LADE_ERR_CAPTURE ? CLOSE_HELD : CLOSE_FAILED, status);
}

/* `notes`: of the queue, before the attempt. */
static void closing_count(ladei_retire *retire, ladei_retire_queue *queue, const closing *attempt, uint64_t notes) {
  ladei_lock_assert_held(&retire->lock);
  retire->counters.streams_queried += attempt->asked;
  retire->counters.events_recorded += attempt->recorded;
  queue->failing = attempt->result == CLOSE_FAILED;
  queue->lost = attempt->result == CLOSE_LOST && queue->notes == notes; /* Q9 */
  retire->counters.quarantines += queue->failing || attempt->result == CLOSE_LOST;
  if (queue->lost) ladei_retire_buffers_forget_queue(retire, queue); /* its next note is to be seen */
}

/* Closes the open batch of a claimed queue. Returns how that went. */
static closing queue_close(ladei_retire *retire, ladei_retire_queue *queue, bool query) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_use *newest = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  uint64_t covered = queue->open, notes = queue->notes;
  const ladei_stream stream = queue->stream;
  assert(queue->kind == LADEI_RETIRE_QUEUE_STREAM && !queue->retired && covered > 0);
  ladei_event *spare = ladei_retire_queue_spare_take(queue);
  ladei_lock_release(&retire->lock);
  closing attempt = stream_close(retire, &stream, query, &spare);
  ladei_lock_acquire(&retire->lock);
  if (spare != NULL) ladei_retire_queue_spare_put(retire, queue, spare);
  closing_count(retire, queue, &attempt, notes);
  bool marked = attempt.result == CLOSE_EVENT || attempt.result == CLOSE_DONE;
  if (marked) ladei_retire_queue_mark(queue, newest, attempt.event, covered);
  /* An attempt in vain is repeated after as many adds again, not in each. */
  queue->close_at = marked ? ladei_retire_queue_batch(retire, queue) : queue->open + retire->options.event_batch;
  return attempt;
}

static bool queue_closable(const ladei_retire_queue *queue) {
  return queue->kind == LADEI_RETIRE_QUEUE_STREAM && !queue->retired && !queue->lost && queue->open > 0;
}

static bool retire_queries(const ladei_retire *retire) {
  return !retire->options.events_only && retire->options.event_batch > 1;
}

/* Whether to ask the stream before recording. Not where an older event is pending: the stream is hardly done then. */
static bool queue_queries(const ladei_retire *retire, const ladei_retire_queue *queue) {
  bool event_pending = queue->last_mark != NULL && queue->last_mark->mark == LADEI_RETIRE_MARK_EVENT;
  return retire_queries(retire) && !event_pending;
}

void ladei_retire_queue_close_claimed(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  lade_error callers;
  int cancellation = ladei_cancellation_hold();
  ladei_error_save(&callers); /* an add succeeds whatever happens here */
  while (queue_closable(queue) && queue->open >= queue->close_at) {
    closing attempt = queue_close(retire, queue, queue_queries(retire, queue));
    if (attempt.result != CLOSE_EVENT && attempt.result != CLOSE_DONE) break;
  }
  ladei_retire_queue_yield(retire, queue);
  ladei_error_restore(&callers);
  ladei_cancellation_resume(cancellation);
}

/* ---- Asking for lanes -------------------------------------------------------------------------------------------- */

static bool question_begin(const ladei_retire *retire, ladei_retire_question *question) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = question->queue;
  if (queue->retired || queue->finished || queue->lost || queue->failing || !queue_queries(retire, queue)) return false;
  question->newest = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  question->open = queue->open;
  question->notes = queue->notes;
  return true;
}

static void question_end(ladei_retire *retire, ladei_retire_question *question, const closing *attempt,
                         ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = question->queue;
  closing_count(retire, queue, attempt, question->notes);
  question->done = attempt->result == CLOSE_DONE;
  if (!question->done || question->newest == NULL) return;
  if (question->newest->mark == LADEI_RETIRE_MARK_NONE)
    ladei_retire_queue_mark(queue, question->newest, NULL, question->open);
  ladei_retire_queue_finish(retire, queue, question->newest, done);
}

void ladei_retire_queues_ask(ladei_retire *retire, ladei_retire_question *questions, unsigned count,
                             ladei_retire_done_list *done) {
  closing attempts[LADEI_RETIRE_BUFFER_SLOTS];
  bool asked[LADEI_RETIRE_BUFFER_SLOTS];
  lade_error callers;
  assert(count <= LADEI_RETIRE_BUFFER_SLOTS);
  for (unsigned i = 0; i < count; i++) asked[i] = question_begin(retire, &questions[i]);
  ladei_lock_release(&retire->lock);
  int cancellation = ladei_cancellation_hold();
  ladei_error_save(&callers); /* the note or add succeeds whatever happens here */
  for (unsigned i = 0; i < count; i++)
    if (asked[i]) attempts[i] = stream_ask(retire, &questions[i].queue->stream, true);
  ladei_error_restore(&callers);
  ladei_cancellation_resume(cancellation);
  ladei_lock_acquire(&retire->lock);
  for (unsigned i = 0; i < count; i++)
    if (asked[i]) question_end(retire, &questions[i], &attempts[i], done);
}

/* ---- Polling one queue ------------------------------------------------------------------------------------------- */

/* One walk over all queues: what it found. */
enum {                                   /* beside the LADEI_POLL_ flags */
       SYNC_SPARES_DEVICES = 1u << 16,   /* waits for no device */
       SYNC_QUARANTINE_ALONE = 1u << 17, /* and for no event of a caller's that is well */
};

typedef struct pass {
  ladei_retire_done_list done;
  lade_status first_error; /* LADE_OK if there was none */
  lade_error error;        /* its record, which later failures overwrite; the caller's where there was none */
  unsigned flags;
  uint32_t *passes;                /* among which it is counted */
  const ladei_retire_buffer *lane; /* the caller's, if its streams come first */
} pass;

/* The record of the failure is the thread's latest. */
static void pass_failed(pass *walk, lade_status status) {
  if (walk->first_error != LADE_OK) return;
  walk->first_error = status;
  ladei_error_save(&walk->error);
}

/* Whether the queue is in quarantine, by what its event last answered; of a FOREIGN queue, whose events know nothing of
 * each other, the use. */
static void event_answered(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use, lade_status status) {
  ladei_lock_assert_held(&retire->lock);
  bool failing = status != LADE_OK && status != LADE_NOT_READY && status != LADE_ERR_CAPTURE;
  retire->counters.quarantines += failing;
  if (queue->kind == LADEI_RETIRE_QUEUE_FOREIGN)
    ladei_retire_use_failing_set(queue, use, failing);
  else
    queue->failing = failing;
}

static lade_event use_event(const ladei_retire_use *use) {
  return use->event != NULL ? use->event->handle : use->foreign;
}

/* Asks or waits for the event of a use, NULL: for the last one of a retired stream, with the lock dropped. */
static lade_status event_ask(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use, bool wait) {
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

/* The event of a mark got into a capture that began just before its record and ended just after: it will never be done. The
 * uses are open again, and the event is as good as new once it is recorded again. */
static void queue_reopen(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *mark) {
  ladei_lock_assert_held(&retire->lock);
  ladei_event_pool_release(retire->events, ladei_retire_queue_unmark(queue, mark));
}

static void finish_all(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue_finish(retire, queue, TAILQ_LAST(&queue->uses, ladei_retire_use_list), &walk->done);
}

/* Some marks of a claimed queue, from the first one on: asked in one go, while the lock is dropped once. */
typedef struct marks {
  ladei_retire_use *uses[4];
  lade_event events[4]; /* NULL: found done when it was made */
  unsigned count;
  unsigned done;      /* so many of them */
  lade_status status; /* of the one behind those; LADE_OK: all are done */
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

/* Finishes batches from the head on while they are done. False: the rest is not done. */
static bool visit_marks(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  while (queue->first_mark != NULL) {
    marks asked;
    marks_gather(queue, &asked);
    marks_ask(retire, queue, &asked);
    if (asked.done > 0) ladei_retire_queue_finish(retire, queue, asked.uses[asked.done - 1], &walk->done);
    if (asked.status == LADE_ERR_CAPTURE) {
      queue_reopen(retire, queue, asked.uses[asked.done]);
    } else if (asked.status != LADE_OK) {
      if (asked.status != LADE_NOT_READY) pass_failed(walk, asked.status);
      return false;
    }
  }
  return true;
}

/* A retired stream: its last event covers all. */
static void visit_retired(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (!queue->finished) {
    lade_status status = event_ask(retire, queue, NULL, false);
    if (status != LADE_OK) {
      if (status != LADE_NOT_READY) pass_failed(walk, status);
      return;
    }
    queue->finished = true;
  }
  finish_all(retire, queue, walk);
}

/* Uses with an event each. NOW: all of one stream, oldest first, so the first that is not done ends it. FOREIGN: of
 * streams unknown, so each is asked. */
static void visit_each(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_use *use = TAILQ_FIRST(&queue->uses), *after; use != NULL; use = after) {
    lade_status status = event_ask(retire, queue, use, false);
    after = TAILQ_NEXT(use, link);
    if (status == LADE_OK) {
      ladei_retire_queue_finish_one(retire, queue, use, &walk->done);
      continue;
    }
    if (status != LADE_NOT_READY) pass_failed(walk, status);
    if (queue->kind == LADEI_RETIRE_QUEUE_NOW) return;
  }
}

static void visit(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
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
  if (!close || !queue_closable(queue)) return;
  closing attempt = queue_close(retire, queue, queue_queries(retire, queue));
  if (attempt.result == CLOSE_FAILED)
    pass_failed(walk, attempt.status);
  else if (attempt.result == CLOSE_DONE || (attempt.result == CLOSE_EVENT && attempt.asked == 0 && marks_done))
    (void)visit_marks(retire, queue, walk);
}

/* ---- Walks over all queues --------------------------------------------------------------------------------------- */

/* Visits every active queue that no other thread is at. */
static void walk_poll(ladei_retire *retire, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    bool claimed = ladei_retire_queue_claim(retire, queue);
    if (claimed) visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    if (claimed) ladei_retire_queue_yield(retire, queue);
  }
}

/* Visits every active queue, after other threads' visits that wait for no stream. */
static void walk_poll_all(ladei_retire *retire, pass *walk) {
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    ladei_retire_queue_pin(retire, queue);
    while (queue->busy && !queue->waits) ladei_condition_wait(&retire->yielded, &retire->lock);
    bool claimed = ladei_retire_queue_claim(retire, queue);
    if (claimed) visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    if (claimed) ladei_retire_queue_yield(retire, queue);
    ladei_retire_queue_unpin(retire, queue);
  }
}

/* The streams of the caller's lane; all where it has none. */
static void walk_lane(ladei_retire *retire, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  bool any = false;
  for (unsigned i = 0; i < LADEI_RETIRE_BUFFER_SLOTS; i++) {
    ladei_retire_queue *queue = walk->lane->slots[i].queue;
    any = any || queue != NULL;
    if (queue != NULL && queue->in_active && ladei_retire_queue_claim(retire, queue)) {
      visit(retire, queue, walk);
      ladei_retire_queue_yield(retire, queue);
    }
  }
  if (!any) walk_poll(retire, walk);
}

static lade_status pass_run(ladei_retire *retire, unsigned flags, void (*walker)(ladei_retire *, pass *),
                            const ladei_retire_buffer *lane, uint64_t *out_done) {
  pass walk;
  walk.first_error = LADE_OK;
  walk.flags = flags;
  walk.lane = lane;
  ladei_error_save(&walk.error);
  ladei_retire_done_init(&walk.done);
  ladei_lock_acquire(&retire->lock);
  walk.passes = ladei_retire_pass_begin(retire);
  ladei_retire_capture_drain(retire, &walk.done);
  if ((flags & LADEI_POLL_CLOSE) != 0) ladei_retire_buffers_tell(retire);
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

/* But for what lanes have. */
static bool nothing_to_do(ladei_retire *retire) {
  return atomic_load_explicit(&retire->pending_tickets, memory_order_acquire) == 0 &&
         !ladei_retire_capture_any_gone(retire);
}

lade_status ladei_retire_poll(ladei_retire *retire, unsigned flags, uint64_t *out_done) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  if (out_done != NULL) *out_done = 0;
  bool lanes = (flags & LADEI_POLL_CLOSE) != 0 && atomic_load_explicit(&retire->slots_used, memory_order_acquire) > 0;
  if (status != LADE_OK || (!lanes && nothing_to_do(retire))) return status;
  return pass_run(retire, flags, (flags & LADEI_POLL_ALL) != 0 ? walk_poll_all : walk_poll, NULL, out_done);
}

lade_status ladei_retire_buffer_poll(ladei_retire *retire, ladei_retire_buffer *lane, uint64_t *out_done) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  *out_done = 0;
  if (status != LADE_OK || nothing_to_do(retire)) return status;
  return pass_run(retire, 0, walk_lane, lane, out_done);
}

static void walk_close(ladei_retire *retire, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    ladei_retire_queue_claim_wait(retire, queue);
    if (queue_closable(queue)) {
      closing attempt = queue_close(retire, queue, false);
      if (attempt.result == CLOSE_FAILED) pass_failed(walk, attempt.status);
    }
    next = ladei_retire_queue_after(retire, queue);
    ladei_retire_queue_yield(retire, queue);
  }
}

lade_status ladei_retire_close(ladei_retire *retire) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  return status != LADE_OK ? status : pass_run(retire, LADEI_POLL_CLOSE, walk_close, NULL, NULL);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

enum { SLEEP_MIN_NS = 10 * 1000, SLEEP_MAX_NS = 1000 * 1000 };

static void nothing(void *user) { (void)user; }

/* Lets time pass: on a virtual clock to the next thing that happens, else a little longer each time. */
static lade_status time_pass(ladei_retire *retire, uint64_t left_ns, uint64_t *sleep_ns) {
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  if (driver->step != NULL) return driver->step(retire->runtime->self);
  uint64_t ns = ladei_size_min(*sleep_ns, left_ns);
  const struct timespec pause = {.tv_nsec = (long)ns};
  nanosleep(&pause, NULL);
  *sleep_ns = ladei_size_min(2 * *sleep_ns, SLEEP_MAX_NS);
  return LADE_OK;
}

static lade_status wait_over(uint64_t pending) {
  return ladei_error(LADE_ERR_TIMEOUT, 0, "retire: none of %llu pending blocks was done in time",
                     (unsigned long long)pending);
}

/* Pending tickets, those in lanes included. */
static uint64_t pending_told(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  ladei_retire_buffers_tell(retire);
  ladei_lock_release(&retire->lock);
  return atomic_load_explicit(&retire->pending_tickets, memory_order_acquire);
}

lade_status ladei_retire_wait(ladei_retire *retire, uint64_t deadline_ns) {
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  void *self = retire->runtime->self;
  uint64_t sleep_ns = SLEEP_MIN_NS;
  bool timer_due = driver->timer_add != NULL && deadline_ns != UINT64_MAX;
  for (;;) {
    uint64_t found = 0, pending = pending_told(retire);
    lade_status status = ladei_retire_poll(retire, LADEI_POLL_CLOSE, &found);
    if (found > 0) return LADE_OK;
    if (status == LADE_ERR_FORKED || status == LADE_ERR_DEVICE_LOST) return status;
    uint64_t now = driver->now_ns(self); /* a stream in quarantine is no reason not to wait for the others */
    if (now >= deadline_ns || pending == 0) return wait_over(pending);
    if (timer_due) { /* a virtual clock must not jump over the deadline */
      status = driver->timer_add(self, deadline_ns, nothing, NULL);
      if (status != LADE_OK) return status;
      timer_due = false;
    }
    status = time_pass(retire, deadline_ns - now, &sleep_ns);
    if (status == LADE_NOT_READY) return wait_over(pending); /* nothing will ever happen */
    if (status != LADE_OK) return status;
  }
}

/* ---- Synchronising ----------------------------------------------------------------------------------------------- */

/* Around what may last as long as a stream does: whoever must not wait that long passes the queue and this pass by (Q11). */
static void wait_begin(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_retire_done_deliver(retire, &walk->done);
  ladei_retire_done_init(&walk->done);
  queue->waits = true;
  ladei_retire_pass_end(retire, walk->passes);
  ladei_condition_broadcast(&retire->yielded);
}

static void wait_end(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  queue->waits = false;
  walk->passes = ladei_retire_pass_begin(retire);
}

/* Not under the lock. Waits for a stream on which no event could be recorded. */
static lade_status stream_wait(ladei_retire *retire, const ladei_stream *stream) {
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  void *self = retire->runtime->self;
  lade_status status = ladei_retire_driver(retire)->stream_capture_info(self, stream, &info);
  if (status != LADE_OK) return status;
  if (info.status != LADEI_CAPTURE_NONE) {
    return ladei_error(LADE_ERR_CAPTURE, 0, "retire: stream id %llu captures and cannot be waited for",
                       (unsigned long long)stream->id);
  }
  return ladei_retire_driver(retire)->stream_synchronize(self, stream);
}

/* Not under the lock. The stream itself is gone, so its device is waited for: what ran in a context of the program's own
 * is not part of that, and stays. All captures on the device are invalid then, in whatever mode, and nobody can be asked
 * whether there are any; relaxed mode spares those on other devices. */
static lade_status device_wait(ladei_retire *retire, const ladei_stream *gone) {
  void *self = retire->runtime->self;
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  uint64_t context = 0;
  lade_status status = ladei_retire_driver(retire)->device_context(self, gone->device, &context);
  if (status == LADE_OK && context != gone->context) {
    status =
        ladei_error(LADE_ERR_STREAM_RETIRED, 0,
                    "retire: stream id %llu was destroyed, with blocks pending, in a context that cannot be waited "
                    "for",
                    (unsigned long long)gone->id);
  }
  if (status == LADE_OK) status = ladei_retire_driver(retire)->capture_mode_exchange(self, &mode);
  if (status != LADE_OK) return status;
  status = ladei_retire_driver(retire)->device_synchronize(self, gone->device);
  lade_status restored = ladei_retire_driver(retire)->capture_mode_exchange(self, &mode);
  return status != LADE_OK ? status : restored;
}

/* Asks first, which tells of an event that got into a capture that is over. */
static lade_status event_wait(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use, pass *walk) {
  lade_status status = event_ask(retire, queue, use, false);
  if (status == LADE_OK || status == LADE_ERR_CAPTURE) return status;
  wait_begin(retire, queue, walk);
  status = event_ask(retire, queue, use, true);
  wait_end(retire, queue, walk);
  return status;
}

/* A wait for the uses up to `newest` ended so. A lost device runs nothing any more, so they are finished then too. */
static void sync_apply(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *newest, lade_status status,
                       pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (status != LADE_OK) pass_failed(walk, status);
  if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST)
    ladei_retire_queue_finish(retire, queue, newest, &walk->done);
}

/* Open uses that no event covers: waits for the stream, or for its device where the stream is gone. */
static void sync_without_event(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_use *newest = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  const ladei_stream stream = queue->stream;
  bool lost = queue->lost;
  wait_begin(retire, queue, walk);
  ladei_lock_release(&retire->lock);
  lade_status status = lost ? device_wait(retire, &stream) : stream_wait(retire, &stream);
  ladei_lock_acquire(&retire->lock);
  wait_end(retire, queue, walk);
  queue->failing = status != LADE_OK;
  sync_apply(retire, queue, newest, status, walk);
}

static void sync_retired(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  lade_status status = queue->finished ? LADE_OK : event_wait(retire, queue, NULL, walk);
  queue->finished = status == LADE_OK || status == LADE_ERR_DEVICE_LOST;
  sync_apply(retire, queue, TAILQ_LAST(&queue->uses, ladei_retire_use_list), status, walk);
}

/* Closes what is open and waits for the newest mark, which covers all before it. Returns how the closing went, or
 * CLOSE_FAILED or CLOSE_HELD where the wait went so. */
static closing sync_marks(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  closing attempt = {.result = CLOSE_DONE, .status = LADE_OK};
  if (queue_closable(queue)) attempt = queue_close(retire, queue, queue_queries(retire, queue));
  ladei_retire_use *mark = queue->last_mark;
  if (mark == NULL) return attempt;
  lade_status status = mark->mark == LADEI_RETIRE_MARK_DONE ? LADE_OK : event_wait(retire, queue, mark, walk);
  if (status == LADE_ERR_CAPTURE) {
    queue_reopen(retire, queue, mark);
    return closing_ended(attempt, CLOSE_HELD, status);
  }
  if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST) return closing_ended(attempt, CLOSE_FAILED, status);
  sync_apply(retire, queue, mark, status, walk);
  return attempt;
}

static void sync_queue(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  closing attempt = sync_marks(retire, queue, walk);
  if (attempt.result == CLOSE_HELD) attempt = sync_marks(retire, queue, walk); /* that capture may be over */
  if (attempt.result == CLOSE_HELD) {
    pass_failed(walk, ladei_error(LADE_ERR_CAPTURE, 0, "retire: stream id %llu captures and cannot be waited for",
                                  (unsigned long long)queue->stream.id));
  } else if (queue->lost && (walk->flags & SYNC_SPARES_DEVICES) != 0) {
    pass_failed(walk,
                ladei_error(LADE_ERR_CAPTURE, 0,
                            "retire: stream id %llu was destroyed, and waiting for its device would break captures",
                            (unsigned long long)queue->stream.id));
  } else if ((attempt.result == CLOSE_FAILED || queue->lost) && queue->pending > 0) {
    sync_without_event(retire, queue, walk);
  }
}

/* Uses with an event each. */
static void sync_each(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_use *use = TAILQ_FIRST(&queue->uses), *after; use != NULL; use = after) {
    after = TAILQ_NEXT(use, link);
    if (queue->kind == LADEI_RETIRE_QUEUE_FOREIGN && (walk->flags & SYNC_QUARANTINE_ALONE) != 0 && !use->failing)
      continue;
    lade_status status = event_wait(retire, queue, use, walk);
    after = TAILQ_NEXT(use, link); /* more may have come meanwhile */
    if (status != LADE_OK) pass_failed(walk, status);
    if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST)
      ladei_retire_queue_finish_one(retire, queue, use, &walk->done);
  }
}

static void sync_visit(ladei_retire *retire, ladei_retire_queue *queue, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->pending == 0) return; /* finished while this waited for the claim */
  if (queue->kind != LADEI_RETIRE_QUEUE_STREAM)
    sync_each(retire, queue, walk);
  else if (queue->retired)
    sync_retired(retire, queue, walk);
  else
    sync_queue(retire, queue, walk);
}

static void walk_synchronize(ladei_retire *retire, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    ladei_retire_queue_claim_wait(retire, queue);
    sync_visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    ladei_retire_queue_yield(retire, queue);
  }
}

/* Passes by queues that another thread is at: that thread finds out what is the matter with them. */
static void walk_quarantine(ladei_retire *retire, pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    bool claimed = (queue->failing || queue->lost) && ladei_retire_queue_claim(retire, queue);
    if (claimed) sync_visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    if (claimed) ladei_retire_queue_yield(retire, queue);
  }
}

lade_status ladei_retire_end_quarantine(ladei_retire *retire) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  return status != LADE_OK ? status
                           : pass_run(retire, LADEI_POLL_CLOSE | SYNC_QUARANTINE_ALONE, walk_quarantine, NULL, NULL);
}

/* A graph that is gone tells so on a thread of the driver, a moment later: gives it that moment. What is still held
 * after it is held by a living graph, for which nobody can wait. */
static void graphs_settle(ladei_retire *retire) {
  enum { ROUNDS = 10 };
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  uint64_t start_ns = driver->now_ns(retire->runtime->self), sleep_ns = SLEEP_MIN_NS;
  for (int i = 0; i < ROUNDS && !ladei_retire_capture_any_gone(retire); i++) {
    lade_status status = time_pass(retire, SLEEP_MAX_NS, &sleep_ns);
    bool moved = driver->step != NULL && driver->now_ns(retire->runtime->self) != start_ns;
    if (status != LADE_OK || moved) return; /* on virtual time the moment is this one */
  }
}

/* Whether uses wait for graphs; once what other threads found done has been given to done(), too. */
static bool captures_left(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  ladei_retire_passes_wait(retire);
  bool left = retire->captured_uses > 0;
  ladei_lock_release(&retire->lock);
  return left;
}

static lade_status synchronize(ladei_retire *retire, unsigned flags) {
  lade_status status = ladei_runtime_check_process(retire->runtime);
  if (status != LADE_OK) return status;
  status = pass_run(retire, LADEI_POLL_CLOSE | flags, walk_synchronize, NULL, NULL);
  bool captured = captures_left(retire);
  if (status != LADE_OK || !captured) return status;
  graphs_settle(retire);
  status = pass_run(retire, 0, walk_poll, NULL, NULL);
  return status == LADE_OK && captures_left(retire) ? LADE_NOT_READY : status;
}

lade_status ladei_retire_synchronize(ladei_retire *retire) { return synchronize(retire, 0); }

lade_status ladei_retire_synchronize_streams(ladei_retire *retire) { return synchronize(retire, SYNC_SPARES_DEVICES); }

/* ---- Retiring a stream ------------------------------------------------------------------------------------------- */

/* Not under the lock. As stream_close, and sure that the event did not get into a capture that began and ended meanwhile:
 * after this there is no second attempt. (Asking about the event harms none, as that capture is over.) */
static closing stream_close_finally(ladei_retire *retire, const ladei_stream *stream) {
  ladei_event *none = NULL;
  closing attempt = stream_close(retire, stream, retire_queries(retire), &none);
  if (attempt.result != CLOSE_EVENT) return attempt;
  lade_status status = ladei_retire_driver(retire)->event_query(retire->runtime->self, attempt.event->handle);
  if (status == LADE_NOT_READY) return attempt;
  ladei_event_pool_release(retire->events, attempt.event);
  attempt.event = NULL;
  if (status == LADE_OK) return closing_ended(attempt, CLOSE_DONE, status);
  return closing_ended(attempt, status == LADE_ERR_CAPTURE ? CLOSE_HELD : CLOSE_FAILED, status);
}

/* The queue is claimed. One try to retire it: whether it is settled, and how in *out. */
static bool queue_retire_once(ladei_retire *retire, ladei_retire_queue *queue, lade_status *out) {
  ladei_lock_assert_held(&retire->lock);
  const ladei_stream stream = queue->stream;
  ladei_retire_buffers_forget_queue(retire, queue);
  /* Beside the claim: uses noted or pending. */
  bool needed = !queue->retired && (queue->refs > 1 || queue->inline_notes != 0);
  *out = LADE_OK;
  if (!needed) {
    queue->retired = true;
    return true;
  }
  uint64_t known = queue->notes + queue->appends, notes = queue->notes;
  ladei_lock_release(&retire->lock);
  closing attempt = stream_close_finally(retire, &stream);
  ladei_lock_acquire(&retire->lock);
  closing_count(retire, queue, &attempt, notes);
  if (attempt.result == CLOSE_HELD) {
    *out = ladei_error(LADE_ERR_CAPTURE, 0, "retire: stream id %llu captures; end the capture, then retire it",
                       (unsigned long long)stream.id);
  } else if (attempt.result == CLOSE_FAILED) {
    *out = attempt.status;
  }
  /* LOST: by another thread, just now; and no call is made on it any more. */
  if (attempt.result != CLOSE_EVENT && attempt.result != CLOSE_DONE) return true;
  ladei_retire_buffers_forget_queue(retire, queue); /* L1: notes may have come meanwhile */
  if (queue->notes + queue->appends != known) {
    if (attempt.event != NULL) ladei_event_pool_release(retire->events, attempt.event);
    return false; /* Q9: of uses that the event may not cover */
  }
  queue->last_event = attempt.event;
  queue->finished = attempt.result == CLOSE_DONE;
  queue->retired = true;
  return true;
}

/* Threads that note the stream meanwhile have each note covered, for some tries; then they are refused. */
static lade_status queue_retire(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  enum { OPEN_TRIES = 4 };
  lade_status status;
  for (int tries = 1; !queue_retire_once(retire, queue, &status); tries++) queue->retiring = tries >= OPEN_TRIES;
  queue->retiring = false;
  return status;
}

lade_status ladei_retire_stream_retire(ladei_retire *retire, lade_stream handle) {
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
