/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting: for anything to be done, for all streams, for those in quarantine.
 *
 * Model, invariants Q1 to Q11 and locks: retire_queue.h.
 */
#include <time.h>

#include "base/error.h"
#include "base/size.h"
#include "runtime/retire/retire_capture.h"
#include "runtime/retire/retire_close.h"
#include "runtime/retire/retire_poll.h"

enum {                                   /* beside the LADEI_POLL_ flags */
       SYNC_SPARES_DEVICES = 1u << 16,   /* waits for no device */
       SYNC_QUARANTINE_ALONE = 1u << 17, /* and for no caller's event that works */
};

/* ---- until something is done ------------------------------------------------------------------------------------- */

enum { SLEEP_MIN_NS = 10 * 1000, SLEEP_MAX_NS = 1000 * 1000 };

static void nothing(void *user) { (void)user; }

/* Lets time pass: on a virtual clock until the next occurrence, otherwise a little longer each time. */
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

/* Number of pending tickets, those in buffers included. */
static uint64_t pending_told(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  ladei_retire_buffers_publish(retire);
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
    uint64_t now = driver->now_ns(self); /* a quarantined stream does not stop the wait for others */
    if (now >= deadline_ns || pending == 0) return wait_over(pending);
    if (timer_due) { /* a virtual clock must not jump over the deadline */
      status = driver->timer_add(self, deadline_ns, nothing, NULL);
      if (status != LADE_OK) return status;
      timer_due = false;
    }
    status = time_pass(retire, deadline_ns - now, &sleep_ns);
    if (status == LADE_NOT_READY) return wait_over(pending); /* nothing more can happen */
    if (status != LADE_OK) return status;
  }
}

/* ---- until all is done ------------------------------------------------------------------------------------------- */

/* Around a wait that may last as long as a stream's work: other calls may skip the queue and this pass (Q11). */
static void wait_begin(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_retire_done_deliver(retire, &walk->done);
  ladei_retire_done_init(&walk->done);
  queue->waits = true;
  ladei_retire_pass_end(retire, walk->passes);
  ladei_condition_broadcast(&retire->yielded);
}

static void wait_end(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  queue->waits = false;
  walk->passes = ladei_retire_pass_begin(retire);
}

/* Not under the lock. Waits for a stream on which no event could be recorded. */
static lade_status stream_wait(ladei_retire *retire, const ladei_stream *stream) {
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  void *self = retire->runtime->self;
  lade_status status = ladei_retire_driver(retire)->stream_capture_info(self, stream, &info);
  if (status == LADE_OK && info.status != LADEI_CAPTURE_NONE) {
    return ladei_error(LADE_ERR_CAPTURE, 0, "retire: stream id %llu captures and cannot be waited for",
                       (unsigned long long)stream->id);
  }
  if (status == LADE_OK) status = ladei_retire_driver(retire)->stream_synchronize(self, stream);
  return status == LADE_OK ? ladei_stream_confirm(retire->runtime, stream, "stream_synchronize") : status;
}

/* Not under the lock. The stream itself is gone, so waits for its device: this does not cover work in a context of the
 * program's own, whose uses stay. It invalidates all captures on the device, in any mode, and no call tells whether
 * there are any; relaxed mode spares those on other devices. */
static lade_status device_wait(ladei_retire *retire, const ladei_stream *gone, bool spared) {
  void *self = retire->runtime->self;
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  uint64_t context = 0;
  if (spared) {
    return ladei_error(LADE_ERR_CAPTURE, 0,
                       "retire: stream id %llu was destroyed, and waiting for its device would break captures",
                       (unsigned long long)gone->id);
  }
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

/* Queries first, which finds an event that got into a capture that is over. */
static lade_status event_wait(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use,
                              ladei_retire_pass *walk) {
  lade_status status = ladei_retire_event_ask(retire, queue, use, false);
  if (status == LADE_OK || status == LADE_ERR_CAPTURE) return status;
  wait_begin(retire, queue, walk);
  status = ladei_retire_event_ask(retire, queue, use, true);
  wait_end(retire, queue, walk);
  return status;
}

/* Applies the result of a wait for the uses up to `newest`. A lost device runs nothing: they are finished then too. */
static void sync_apply(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *newest, lade_status status,
                       ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (status != LADE_OK) ladei_retire_pass_failed(walk, status);
  if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST)
    ladei_retire_queue_finish(retire, queue, newest, &walk->done);
}

/* Open uses without an event: waits for the stream, or for its device if the stream is gone. */
static void sync_without_event(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_use *newest = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  const ladei_stream stream = queue->stream;
  bool lost = queue->lost;
  wait_begin(retire, queue, walk);
  ladei_lock_release(&retire->lock);
  lade_status status = lost ? LADE_OK : stream_wait(retire, &stream);
  if (status != LADE_OK && status != LADE_ERR_CAPTURE && status != LADE_ERR_DEVICE_LOST)
    LADEI_ASIDE(lost =
                    ladei_stream_verify(retire->runtime, &stream) == LADE_ERR_STREAM_RETIRED); /* destroyed meanwhile */
  if (lost) status = device_wait(retire, &stream, (walk->flags & SYNC_SPARES_DEVICES) != 0);
  ladei_lock_acquire(&retire->lock);
  wait_end(retire, queue, walk);
  queue->failing = status != LADE_OK;
  sync_apply(retire, queue, newest, status, walk);
}

static void sync_retired(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  lade_status status = queue->finished ? LADE_OK : event_wait(retire, queue, NULL, walk);
  queue->finished = status == LADE_OK || status == LADE_ERR_DEVICE_LOST;
  sync_apply(retire, queue, TAILQ_LAST(&queue->uses, ladei_retire_use_list), status, walk);
}

/* Closes the open batch and waits for the newest mark, which covers all before it. Returns the closing's result, or
 * LADEI_RETIRE_CLOSE_FAILED or LADEI_RETIRE_CLOSE_HELD as the wait's. */
static ladei_retire_closing sync_marks(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_closing attempt = {.result = LADEI_RETIRE_CLOSE_DONE, .status = LADE_OK};
  if (ladei_retire_queue_closable(queue))
    attempt = ladei_retire_queue_close(retire, queue, ladei_retire_queue_queries(retire, queue));
  ladei_retire_use *mark = queue->last_mark;
  if (mark == NULL) return attempt;
  lade_status status = mark->mark == LADEI_RETIRE_MARK_DONE ? LADE_OK : event_wait(retire, queue, mark, walk);
  if (status == LADE_ERR_CAPTURE) {
    ladei_retire_queue_reopen(retire, queue, mark);
    return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_HELD, status);
  }
  if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST)
    return ladei_retire_closing_ended(attempt, LADEI_RETIRE_CLOSE_FAILED, status);
  sync_apply(retire, queue, mark, status, walk);
  return attempt;
}

static void sync_queue(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_closing attempt = sync_marks(retire, queue, walk);
  if (attempt.result == LADEI_RETIRE_CLOSE_HELD)
    attempt = sync_marks(retire, queue, walk); /* that capture may be over */
  if (attempt.result == LADEI_RETIRE_CLOSE_HELD) {
    ladei_retire_pass_failed(walk, ladei_error(LADE_ERR_CAPTURE, 0,
                                               "retire: stream id %llu captures and cannot be waited for",
                                               (unsigned long long)queue->stream.id));
  } else if ((attempt.result == LADEI_RETIRE_CLOSE_FAILED || queue->lost) && queue->pending > 0) {
    sync_without_event(retire, queue, walk);
  }
}

/* Uses with an event each. */
static void sync_each(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_use *use = TAILQ_FIRST(&queue->uses), *after; use != NULL; use = after) {
    after = TAILQ_NEXT(use, link);
    if (queue->kind == LADEI_RETIRE_QUEUE_FOREIGN && (walk->flags & SYNC_QUARANTINE_ALONE) != 0 && !use->failing)
      continue;
    lade_status status = event_wait(retire, queue, use, walk);
    after = TAILQ_NEXT(use, link); /* more may have come meanwhile */
    if (status != LADE_OK) ladei_retire_pass_failed(walk, status);
    if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST)
      ladei_retire_queue_finish_one(retire, queue, use, &walk->done);
  }
}

static void sync_visit(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->pending == 0) return; /* finished while this waited for the claim */
  if (queue->kind != LADEI_RETIRE_QUEUE_STREAM)
    sync_each(retire, queue, walk);
  else if (queue->retired)
    sync_retired(retire, queue, walk);
  else
    sync_queue(retire, queue, walk);
}

static void walk_synchronize(ladei_retire *retire, ladei_retire_pass *walk) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = ladei_retire_queue_after(retire, NULL), *next; queue != NULL; queue = next) {
    ladei_retire_queue_claim_wait(retire, queue);
    sync_visit(retire, queue, walk);
    next = ladei_retire_queue_after(retire, queue);
    ladei_retire_queue_yield(retire, queue);
  }
}

/* Skips queues that another thread has claimed: that thread finds their state. */
static void walk_quarantine(ladei_retire *retire, ladei_retire_pass *walk) {
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
  return status != LADE_OK
             ? status
             : ladei_retire_pass_run(retire, LADEI_POLL_CLOSE | SYNC_QUARANTINE_ALONE, walk_quarantine, NULL, NULL);
}

/* Whether uses wait for graphs, after all that other threads found done has been given to done(). */
static bool captures_left(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  ladei_retire_passes_wait(retire);
  bool left = retire->captured_uses > 0;
  ladei_lock_release(&retire->lock);
  return left;
}

/*
 * The end of a launched executable graph is reported on a driver thread, a moment later, which is long on a busy
 * machine. So a fence is sent after it, and all that is reported before the fence is waited for. After that only a
 * living graph or a launch can hold blocks, which cannot be waited for. More rounds are for
 * drivers that let the fence overtake. A fence that takes FENCE_LIMIT_NS is held up by a host function of the program,
 * which may wait for the caller.
 */
enum { ROUNDS_MORE = 10, FENCE_LIMIT_NS = 1000000000 };

/* A virtual clock keeps the order exactly; without a fence it must not move. */
static bool settled(ladei_retire *retire, const ladei_retire_fence *fence, uint64_t start_ns) {
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  uint64_t now_ns = driver->now_ns(retire->runtime->self);
  if (fence != NULL && !ladei_retire_fence_passed(fence)) return now_ns - start_ns >= FENCE_LIMIT_NS;
  return driver->step != NULL && (fence != NULL || now_ns != start_ns);
}

static lade_status graphs_settle(ladei_retire *retire) {
  ladei_retire_fence *fence = ladei_retire_fence_make(retire);
  uint64_t start_ns = ladei_retire_driver(retire)->now_ns(retire->runtime->self), sleep_ns = SLEEP_MIN_NS;
  lade_status status = LADE_OK;
  for (int left = ROUNDS_MORE; status == LADE_OK && left > 0 && !settled(retire, fence, start_ns);) {
    if (fence == NULL || ladei_retire_fence_passed(fence)) left--;
    bool passes = time_pass(retire, SLEEP_MAX_NS, &sleep_ns) == LADE_OK;
    status = ladei_retire_pass_run(retire, 0, ladei_retire_walk_poll, NULL, NULL);
    if (!passes || !captures_left(retire)) break;
  }
  ladei_retire_fence_drop(fence);
  return status;
}

static lade_status synchronize(ladei_retire *retire, unsigned flags) {
  LADEI_TRY(ladei_runtime_check_process(retire->runtime));
  lade_status status = ladei_retire_pass_run(retire, LADEI_POLL_CLOSE | flags, walk_synchronize, NULL, NULL);
  bool captured = captures_left(retire);
  if (status != LADE_OK || !captured) return status;
  status = graphs_settle(retire);
  return status == LADE_OK && captures_left(retire) ? LADE_NOT_READY : status;
}

lade_status ladei_retire_synchronize(ladei_retire *retire) { return synchronize(retire, 0); }

lade_status ladei_retire_synchronize_streams(ladei_retire *retire) { return synchronize(retire, SYNC_SPARES_DEVICES); }
