/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: waiting for transfers, by thread and by stream, asking, cancelling, giving back.
 *
 *   submitted --> under way --> settled --> FINISH (calls on_complete) --> finished: waits return
 *                    cancel: the transfer gets its error, and settles when nothing of it is under way any more
 *
 * I1  A ticket is freed when it is both finished and released, by whichever comes last.
 * I2  Calls on a finished ticket use neither runtime nor slots: it may have outlived its pipeline.
 * I3  A call that finds its transfer unfinished, under the lock, counts among pipeline->calls before it gives the lock
 *     up, until it needs nothing of the pipeline but lock and memory any more (Note [Calls in progress]).
 * Locks: pipeline->lock guards the transfer and `released`. No driver call is made under it.
 *
 * Note [Calls in progress]
 * destroy may run beside calls on tickets. It takes driver, storage, streams and events apart once every transfer is
 * finished and no call is counted; an unfinished transfer holds destroy back, and so does the count from then on. A
 * call that finds its transfer finished uses the ticket alone.
 */
#include "pipeline/api/ticket.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "pipeline/drivers/execute.h"
#include "pipeline/endpoints/files.h"

/* Before the lock: in a forked child it may be held by a thread that does not exist. */
static lade_status ticket_check(const lade_ticket *ticket, const char *call) {
  if (ticket == NULL) return ladei_error_null(call, "ticket");
  return ladei_process_is_own(&ticket->pipeline->owner)
             ? LADE_OK
             : ladei_error(LADE_ERR_FORKED, 0, "%s: the ticket belongs to the parent process", call);
}

/* Both with the lock. */
static void call_begin(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  pipeline->calls++;
}

static void call_end(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  if (--pipeline->calls == 0 && pipeline->stopping) ladei_condition_broadcast(&pipeline->changed);
}

/* The ticket's outcome, as this thread's error. Called with the lock, once the transfer has failed or finished. */
static lade_status ticket_outcome(const lade_ticket *ticket) {
  ladei_lock_assert_held(&ticket->pipeline->lock);
  if (ticket->transfer.error.status != LADE_OK) ladei_error_restore(&ticket->transfer.error);
  return ticket->transfer.error.status;
}

static lade_status timeout_error(const lade_ticket *ticket) {
  return ladei_error(LADE_ERR_TIMEOUT, 0, "transfer of %llu bytes: %llu done when the time to wait was over",
                     (unsigned long long)ticket->transfer.bytes, (unsigned long long)ticket->transfer.done_bytes);
}

/* The aim of a wait: the first bytes, of which `prefix` tells how many there are, or the end of the transfer. */
typedef struct awaited {
  uint64_t bytes;
  uint64_t (*prefix)(const ladei_pipe_core_transfer *transfer); /* NULL: the end */
} awaited;

static bool has_come(const ladei_pipe_core_transfer *transfer, const awaited *what) {
  return transfer->finished ||
         (what->prefix != NULL && transfer->error.status == LADE_OK && what->prefix(transfer) >= what->bytes);
}

/* Waits as a call in progress. */
static lade_status awaited_wait(lade_pipeline *pipeline, const ladei_pipe_core_transfer *transfer, const awaited *what,
                                uint64_t timeout_ns) {
  lade_status status = LADE_OK;
  ladei_pipe_waiting waiting = {.deadline_ns = ladei_pipe_deadline_after(pipeline, timeout_ns), .ring = transfer->ring};
  ladei_lock_acquire(&pipeline->lock);
  pipeline->prefix_waiters += what->prefix != NULL ? 1 : 0;
  while (!has_come(transfer, what) && status == LADE_OK) status = pipeline->driver->wait(pipeline, &waiting);
  pipeline->prefix_waiters -= what->prefix != NULL ? 1 : 0;
  call_end(pipeline);
  ladei_lock_release(&pipeline->lock);
  return status;
}

static lade_status ticket_wait(lade_ticket *ticket, const awaited *what, uint64_t timeout_ns) {
  lade_status status = ticket_check(ticket, "lade_ticket_wait");
  if (status != LADE_OK) return status;
  lade_pipeline *pipeline = ticket->pipeline;
  const ladei_pipe_core_transfer *transfer = &ticket->transfer;
  int cancellation = ladei_cancellation_hold();
  ladei_lock_acquire(&pipeline->lock);
  bool come = has_come(transfer, what);
  if (!come) call_begin(pipeline);
  ladei_lock_release(&pipeline->lock);
  if (!come) status = awaited_wait(pipeline, transfer, what, timeout_ns);
  ladei_lock_acquire(&pipeline->lock);
  if (transfer->finished)
    status = ticket_outcome(ticket);
  else if (has_come(transfer, what))
    status = LADE_OK;
  else if (status == LADE_ERR_TIMEOUT)
    status = timeout_error(ticket);
  ladei_lock_release(&pipeline->lock);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* All of them are there only when the transfer is over, since there may be a flush to come. */
lade_status ladei_pipe_ticket_wait_prefix(lade_ticket *ticket, uint64_t bytes, uint64_t timeout_ns) {
  bool all = ticket == NULL || bytes >= ticket->transfer.bytes;
  return ticket_wait(ticket, &(awaited){bytes, all ? NULL : ladei_pipe_core_prefix_done}, timeout_ns);
}

lade_status ladei_pipe_ticket_wait_copied(lade_ticket *ticket, uint64_t timeout_ns) {
  return ticket_wait(ticket, &(awaited){ticket->transfer.bytes, ladei_pipe_core_prefix_copied}, timeout_ns);
}

lade_status lade_ticket_wait(lade_ticket *ticket, uint64_t timeout_ns) {
  return ladei_pipe_ticket_wait_prefix(ticket, UINT64_MAX, timeout_ns);
}

/* Called with the lock. A finished ticket may have outlived the pipeline's slots. */
static uint64_t ready_bytes(const lade_ticket *ticket) {
  ladei_lock_assert_held(&ticket->pipeline->lock);
  const ladei_pipe_core_transfer *transfer = &ticket->transfer;
  if (!transfer->finished) return ladei_pipe_core_prefix_done(transfer);
  return transfer->error.status == LADE_OK ? transfer->bytes : 0;
}

static lade_status ticket_query(lade_ticket *ticket, lade_ticket_info *info) {
  LADEI_TRY(ticket_check(ticket, "lade_ticket_query"));
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  bool advance = !ticket->transfer.finished;
  if (advance) {
    call_begin(pipeline);
    ladei_lock_release(&pipeline->lock);
    pipeline->driver->advance(pipeline, ticket->transfer.ring);
    ladei_lock_acquire(&pipeline->lock);
    call_end(pipeline);
  }
  lade_ticket_info own = {sizeof own, ticket->transfer.bytes, ticket->transfer.done_bytes, ready_bytes(ticket)};
  lade_status status = ticket->transfer.finished ? ticket_outcome(ticket) : LADE_NOT_READY;
  ladei_lock_release(&pipeline->lock);
  if (info != NULL) {
    lade_status written = ladei_stats_write("lade_ticket_info", &own, sizeof own, info);
    status = written != LADE_OK ? written : status;
  }
  return status;
}

lade_status lade_ticket_query(lade_ticket *ticket, lade_ticket_info *info) {
  return LADEI_UNCANCELLED(ticket_query(ticket, info));
}

/* A caller's stream with which transfers shall be ordered. Not one that captures: events would carry the capture to the
 * pipeline's streams, or break it. */
lade_status ladei_pipe_caller_stream_resolve(const lade_runtime *runtime, lade_stream stream, ladei_stream *out) {
  ladei_capture_info info;
  lade_status status = runtime->ops->stream_resolve(runtime->self, stream, out);
  if (status == LADE_OK) status = runtime->ops->stream_capture_info(runtime->self, out, &info);
  if (status == LADE_OK && info.status != LADEI_CAPTURE_NONE) {
    status =
        ladei_error(LADE_ERR_CAPTURE, 0, "transfer: the stream is being captured; transfers are no part of graphs");
  }
  return status;
}

/* Queues a wait for the work queued on the copy stream. */
static lade_status stream_wait_copy_stream(const lade_pipeline *pipeline, const ladei_stream *stream,
                                           const ladei_stream *copy_stream) {
  const lade_runtime *runtime = pipeline->runtime;
  ladei_event *event;
  LADEI_TRY(ladei_event_pool_acquire(pipeline->events, copy_stream->context, &event));
  lade_status status = runtime->ops->event_record(runtime->self, event->handle, copy_stream);
  if (status == LADE_OK) status = runtime->ops->stream_wait_event(runtime->self, stream, event->handle);
  /* A later record of the same event does not touch the wait that is queued. */
  ladei_event_pool_release(pipeline->events, event);
  return status;
}

/* Queues the waits on the caller's stream, once the last copy is queued on its copy stream. */
static lade_status stream_wait_copies(const lade_pipeline *pipeline, lade_stream stream, const ladei_pipe_side *side,
                                      unsigned copy_streams) {
  ladei_stream resolved;
  lade_status status = ladei_runtime_check_process(pipeline->runtime);
  if (status == LADE_OK) status = ladei_pipe_caller_stream_resolve(pipeline->runtime, stream, &resolved);
  for (unsigned left = copy_streams; left != 0 && status == LADE_OK; left &= left - 1) {
    const ladei_pipe_stream *copy_stream = &side->copy_streams[__builtin_ctz(left)];
    status = stream_wait_copy_stream(pipeline, &resolved, &copy_stream->stream);
  }
  return status;
}

static bool prefix_is_queued(const ladei_pipe_core_transfer *transfer, uint64_t bytes) {
  return ladei_pipe_core_all_queued(transfer) ||
         (bytes < transfer->bytes && ladei_pipe_core_prefix_queued(transfer) >= bytes);
}

/* Until the first bytes are queued; LADE_OK then, or where the transfer is over. Called with the lock. */
static lade_status queued_wait(lade_pipeline *pipeline, const ladei_pipe_core_transfer *transfer, uint64_t bytes) {
  ladei_lock_assert_held(&pipeline->lock);
  lade_status status = LADE_OK;
  ladei_pipe_waiting waiting = {.deadline_ns = UINT64_MAX, .ring = transfer->ring};
  pipeline->prefix_waiters++;
  while (!transfer->finished && transfer->error.status == LADE_OK && !prefix_is_queued(transfer, bytes) &&
         status == LADE_OK)
    status = pipeline->driver->wait(pipeline, &waiting);
  pipeline->prefix_waiters--;
  return status;
}

static lade_status stream_wait_prefix(lade_stream stream, lade_ticket *ticket, uint64_t bytes) {
  lade_pipeline *pipeline = ticket->pipeline;
  const ladei_pipe_core_transfer *transfer = &ticket->transfer;
  ladei_lock_acquire(&pipeline->lock);
  call_begin(pipeline);
  lade_status status = queued_wait(pipeline, transfer, bytes);
  bool ended = transfer->finished || transfer->error.status != LADE_OK;
  if (ended)
    status = ticket_outcome(ticket);
  else if (status == LADE_ERR_TIMEOUT)
    status = timeout_error(ticket);
  if (!ended && status == LADE_OK) {
    unsigned copy_streams = ladei_pipe_core_copy_streams(transfer, bytes);
    ladei_lock_release(&pipeline->lock);
    status = stream_wait_copies(pipeline, stream, ladei_pipe_side_of(pipeline, transfer->ring), copy_streams);
    ladei_lock_acquire(&pipeline->lock);
  }
  call_end(pipeline);
  ladei_lock_release(&pipeline->lock);
  return status;
}

static lade_status stream_wait(lade_stream stream, lade_ticket *ticket, const uint64_t *bytes, const char *call) {
  LADEI_TRY(ticket_check(ticket, call));
  uint64_t all = ticket->transfer.bytes;
  if (bytes != NULL && *bytes > all) {
    char expected[64];
    (void)snprintf(expected, sizeof expected, "at most %llu, those of the transfer", (unsigned long long)all);
    return ladei_error_argument(call, "bytes", expected, "%llu", (unsigned long long)*bytes);
  }
  return LADEI_UNCANCELLED(stream_wait_prefix(stream, ticket, bytes != NULL ? *bytes : all));
}

lade_status lade_stream_wait_ticket(lade_stream stream, lade_ticket *ticket) {
  return stream_wait(stream, ticket, NULL, "lade_stream_wait_ticket");
}

lade_status lade_stream_wait_ticket_prefix(lade_stream stream, lade_ticket *ticket, uint64_t bytes) {
  return stream_wait(stream, ticket, &bytes, "lade_stream_wait_ticket_prefix");
}

void ladei_pipe_ticket_cancel_locked(lade_pipeline *pipeline, lade_ticket *ticket) {
  ladei_lock_assert_held(&pipeline->lock);
  lade_error before;
  lade_error error;
  ladei_error_save(&before);
  ladei_error(LADE_ERR_CANCELLED, 0, "transfer cancelled: %llu of %llu bytes were done",
              (unsigned long long)ticket->transfer.done_bytes, (unsigned long long)ticket->transfer.bytes);
  ladei_error_save(&error);
  ladei_error_restore(&before);
  ladei_pipe_files_cancel_locked(ticket);
  ladei_pipe_core_fail(&pipeline->core, &ticket->transfer, &error);
  ladei_pipe_ring_shares_update_locked(pipeline);
}

/* Changes an unfinished transfer, with the lock, and lets the driver look at it. */
static lade_status ticket_change(lade_ticket *ticket, void (*change)(lade_pipeline *, lade_ticket *),
                                 const char *call) {
  LADEI_TRY(ticket_check(ticket, call));
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  bool finished = ticket->transfer.finished;
  if (!finished) {
    call_begin(pipeline);
    change(pipeline, ticket);
    ladei_condition_broadcast(&pipeline->changed);
  }
  ladei_lock_release(&pipeline->lock);
  if (!finished) {
    int cancellation = ladei_cancellation_hold();
    ladei_pipe_storage_push(&pipeline->storage);
    pipeline->driver->kick(pipeline, NULL);
    ladei_cancellation_resume(cancellation);
    ladei_lock_acquire(&pipeline->lock);
    call_end(pipeline);
    ladei_lock_release(&pipeline->lock);
  }
  return LADE_OK;
}

lade_status lade_ticket_cancel(lade_ticket *ticket) {
  return ticket_change(ticket, ladei_pipe_ticket_cancel_locked, "lade_ticket_cancel");
}

static void leave_locked(lade_pipeline *pipeline, lade_ticket *ticket) {
  ladei_lock_assert_held(&pipeline->lock);
  ladei_pipe_side_of(pipeline, ticket->transfer.ring)->others += ticket->caller_run ? 1 : 0;
  ticket->caller_run = false;
}

lade_status lade_ticket_leave(lade_ticket *ticket) { return ticket_change(ticket, leave_locked, "lade_ticket_leave"); }

void lade_ticket_release(lade_ticket *ticket) {
  if (ticket == NULL || !ladei_process_is_own(&ticket->pipeline->owner)) return;
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  ticket->released = true;
  if (!ticket->transfer.finished) {
    ladei_lock_release(&pipeline->lock);
    return;
  }
  ladei_pipe_ticket_free(ticket);
  ladei_pipe_unref_unlock(pipeline);
}
