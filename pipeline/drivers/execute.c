/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executing the orders of the core: the only place of pipeline/ that moves bytes and calls the driver.
 *
 * I1  Every order is executed without any lock held, and completed once.
 * I2  A failed order leaves the world as it was, except that POLL and READ may have failed half way: a block's contents
 *     do not matter then.
 * Locks: ladei_pipe_execute takes none; ladei_pipe_execute_locked gives the pipeline's lock up around it.
 */
#include "pipeline/drivers/execute.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "host/api/ring_alloc.h"
#include "pipeline/endpoints/checksum.h"
#include "pipeline/endpoints/chunk.h"
#include "pipeline/endpoints/copy.h"
#include "pipeline/endpoints/files.h"
#include "pipeline/endpoints/gather.h"
#include "pipeline/endpoints/probe.h"

static lade_status execute_acquire(lade_pipeline *pipeline, ladei_pipe_order *order) {
  const ladei_pinned_ring_request request = {.bytes = order->bytes,
                                             .ahead = order->ahead,
                                             .device = pipeline->options.device,
                                             .only = order->only,
                                             .smallest = order->smallest};
  return ladei_pinned_ring_alloc(pipeline->pool, &ladei_pipe_side_of(pipeline, order->ring)->share, &request,
                                 &order->block);
}

static lade_status execute_dependency(lade_pipeline *pipeline, ladei_pipe_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  lade_event dependency = ladei_pipe_ticket_of(order->transfer)->dependency->handle;
  lade_status status = runtime->ops->event_query(runtime->self, dependency);
  order->passed = status == LADE_OK;
  if (order->copy_stream == NULL) return status == LADE_NOT_READY ? LADE_OK : status;
  return status == LADE_NOT_READY
             ? runtime->ops->stream_wait_event(runtime->self,
                                               &ladei_pipe_stream_of(pipeline, order->copy_stream)->stream, dependency)
             : status;
}

static lade_status execute_record(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  ladei_pipe_stream *copy_stream = ladei_pipe_stream_of(pipeline, order->batch->copy_stream);
  ladei_event **event = &copy_stream->events[order->batch->index];
  lade_status status = LADE_OK;
  if (*event == NULL) status = ladei_event_pool_acquire(pipeline->events, copy_stream->stream.context, event);
  return status != LADE_OK ? status : runtime->ops->event_record(runtime->self, (*event)->handle, &copy_stream->stream);
}

static lade_status execute_poll(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  const ladei_pipe_stream *copy_stream = ladei_pipe_stream_of(pipeline, order->batch->copy_stream);
  if (order->batch->by_stream) return runtime->ops->stream_query(runtime->self, &copy_stream->stream);
  lade_status status = runtime->ops->event_query(runtime->self, copy_stream->events[order->batch->index]->handle);
  if (status == LADE_OK) ladei_pipe_probe_read(runtime, &ladei_pipe_side_of(pipeline, order->ring)->probe);
  return status;
}

static lade_status execute_release(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  const lade_runtime *runtime = pipeline->runtime;
  if (order->in_flight) {
    const ladei_stream *stream = &ladei_pipe_stream_of(pipeline, order->slot->copy_stream)->stream;
    lade_status status = lade_pinned_record_event(pipeline->pool, order->slot->block, stream->handle);
    if (status != LADE_OK && !order->last_resort) return status;
    if (status != LADE_OK) {
      /* Neither event nor stream nor pool can find out. A device that refuses this too runs nothing any more. */
      (void)runtime->ops->stream_synchronize(runtime->self, stream);
    }
  }
  ladei_pipe_storage_block_forget(&pipeline->storage, ladei_pipe_block_number(order->slot));
  /* The block is ours and in use: only a mistake in this file could make that fail. */
  lade_status freed =
      ladei_pinned_ring_free(pipeline->pool, &ladei_pipe_side_of(pipeline, order->ring)->share, order->slot->block);
  assert(freed == LADE_OK);
  (void)freed;
  return LADE_OK;
}

static lade_status completion_call(lade_ticket *ticket, const lade_error *outcome) {
  ladei_lock_assert_none_held();
  if (ticket->on_complete == NULL) return LADE_OK;
  lade_status status = ticket->on_complete(ticket->on_complete_user, ticket, outcome);
  return status == LADE_OK ? LADE_OK
                           : ladei_error(LADE_ERR_CALLBACK, (int64_t)status, "on_complete returned %s (%d)",
                                         lade_status_name(status), (int)status);
}

static lade_status execute_finish(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  lade_ticket *ticket = ladei_pipe_ticket_of(order->transfer);
  if (ticket->dependency != NULL) {
    ladei_event_pool_release(pipeline->events, ticket->dependency);
    ticket->dependency = NULL;
  }
  /* Settled: its error does not change any more. */
  lade_status status = ladei_pipe_files_close(ticket, ticket->transfer.error.status == LADE_OK);
  lade_error outcome = ticket->transfer.error;
  if (status != LADE_OK) ladei_error_save(&outcome);
  lade_status called = completion_call(ticket, &outcome);
  if (status != LADE_OK) ladei_error_restore(&outcome);
  return status != LADE_OK ? status : called;
}

static lade_status order_dispatch(lade_pipeline *pipeline, ladei_pipe_order *order) {
  lade_status status;
  switch (order->kind) {
  case LADEI_PIPE_ORDER_ACQUIRE: return execute_acquire(pipeline, order);
  case LADEI_PIPE_ORDER_READ:
    status = order->transfer->remote ? ladei_pipe_gather_run(order) : ladei_pipe_chunk_move(pipeline, order);
    return status == LADE_OK ? ladei_pipe_checksum_chunk(order) : status;
  case LADEI_PIPE_ORDER_WRITE:
    status = ladei_pipe_checksum_chunk(order);
    return status == LADE_OK ? ladei_pipe_chunk_move(pipeline, order) : status;
  case LADEI_PIPE_ORDER_DEPENDENCY: return execute_dependency(pipeline, order);
  case LADEI_PIPE_ORDER_COPY: return ladei_pipe_copy_chunk(pipeline, order);
  case LADEI_PIPE_ORDER_RECORD: return execute_record(pipeline, order);
  case LADEI_PIPE_ORDER_POLL: return execute_poll(pipeline, order);
  case LADEI_PIPE_ORDER_RELEASE: return execute_release(pipeline, order);
  case LADEI_PIPE_ORDER_FINISH: return execute_finish(pipeline, order);
  }
  return ladei_error(LADE_ERR_INTERNAL, 0, "order of kind %d", (int)order->kind);
}

lade_status ladei_pipe_order_explain(const ladei_pipe_order *order, lade_status status) {
  static const char *const doing[] = {
      [LADEI_PIPE_ORDER_ACQUIRE] = "getting a staging block",
      [LADEI_PIPE_ORDER_READ] = "reading the source",
      [LADEI_PIPE_ORDER_DEPENDENCY] = "ordering after the caller's stream",
      [LADEI_PIPE_ORDER_COPY] = "queueing a copy",
      [LADEI_PIPE_ORDER_RECORD] = "recording an event",
      [LADEI_PIPE_ORDER_POLL] = "asking for the end of copies",
      [LADEI_PIPE_ORDER_WRITE] = "writing the sink",
      [LADEI_PIPE_ORDER_RELEASE] = "giving a staging block back",
      [LADEI_PIPE_ORDER_FINISH] = "finishing",
  };
  const char *direction = order->ring->direction == LADE_TO_DEVICE ? "to the device" : "to the host";
  return ladei_error_prefix(status, "transfer %s: %s: ", direction, doing[order->kind]);
}

/* A failure of joined copies is not reported: each is tried again by itself. */
static lade_status joined_copy(lade_pipeline *pipeline, ladei_pipe_order *order) {
  lade_error before;
  ladei_error_save(&before);
  lade_status status = ladei_pipe_copy_chunk(pipeline, order);
  if (status != LADE_OK) ladei_error_restore(&before);
  return status;
}

lade_status ladei_pipe_execute(lade_pipeline *pipeline, ladei_pipe_order *order) {
  ladei_lock_assert_none_held();
  if (order->kind == LADEI_PIPE_ORDER_COPY && order->slot->joined != NULL) return joined_copy(pipeline, order);
  lade_status status = order_dispatch(pipeline, order);
  return status == LADE_OK || status == LADE_NOT_READY ? status : ladei_pipe_order_explain(order, status);
}

/* Takes note of how fast the writers of a transfer are. Before the core hears of it, as the next one. */
static void writers_note(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  ladei_lock_assert_held(&pipeline->lock);
  ladei_pipe_core_transfer *transfer = order->transfer;
  if (transfer->writers != 0 && !order->slot->shortened) {
    transfer->writers = ladei_pipe_writers_end(
        &pipeline->writers, &ladei_pipe_ticket_of(transfer)->write_place, transfer->number, order->slot->bytes,
        ladei_pipe_core_writes_out(transfer), pipeline->runtime->ops->now_ns(pipeline->runtime->self));
  }
}

/* Takes note of how fast the host half of a chunk went. Not where each takes a thread: more
 * of them than readers would only hold more blocks. */
static void window_note(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  ladei_lock_assert_held(&pipeline->lock);
  bool takes_a_thread = pipeline->driver->threads && !order->by_engine;
  if (takes_a_thread) return;
  ladei_pipe_side *side = ladei_pipe_side_of(pipeline, order->ring);
  if (!side->window.settled && !order->transfer->ordered && !order->transfer->remote && !order->slot->shortened &&
      ladei_pipe_window_end(&side->window, order->slot->bytes, order->ring->host.out,
                            pipeline->runtime->ops->now_ns(pipeline->runtime->self)))
    ladei_pipe_core_set_window(order->ring, side->window.size);
}

static void host_half_note(lade_pipeline *pipeline, const ladei_pipe_order *order) {
  window_note(pipeline, order);
  writers_note(pipeline, order);
}

void ladei_pipe_blocks_grow_locked(lade_pipeline *pipeline, ladei_pipe_ring *ring) {
  ladei_lock_assert_held(&pipeline->lock);
  if (!pipeline->chunk_adapts) return;
  ladei_pipe_side *side = ladei_pipe_side_of(pipeline, ring);
  size_t chunk = atomic_load_explicit(&side->probe.link->chunk_bytes, memory_order_relaxed);
  if (ladei_pipe_core_set_link(ring, chunk, pipeline->options.readers, pipeline->options.window_bytes)) {
    ladei_pipe_window_restart(&side->window);
    ladei_pipe_core_set_window(ring, side->window.size);
  }
}

void ladei_pipe_link_tell(ladei_pipe_side *side, bool copies) {
  if (side->copies == copies) return;
  side->copies = copies;
  atomic_fetch_add_explicit(&side->probe.link->copiers, copies ? 1u : -1u, memory_order_relaxed);
}

void ladei_pipe_link_look_locked(lade_pipeline *pipeline, ladei_pipe_ring *ring) {
  ladei_lock_assert_held(&pipeline->lock);
  if (ring->turns.most_bytes == 0) return;
  ladei_pipe_side *side = ladei_pipe_side_of(pipeline, ring);
  ladei_pipe_link_tell(side, ladei_pipe_core_copies(ring));
  uint32_t copiers = atomic_load_explicit(&side->probe.link->copiers, memory_order_relaxed);
  bool shared = copiers > (side->copies ? 1u : 0u);
  /* Beside other pipelines no measurement is undisturbed, and one stream would have the smaller part of the link. */
  ladei_pipe_core_set_single(ring, !shared && pipeline->chunk_adapts && ladei_pipe_probe_is_due(&side->probe));
}

void ladei_pipe_ring_shares_update_awaited(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  for (unsigned i = 0; i < 2; i++) {
    ladei_pinned_ring_share *share = &pipeline->sides[i].share;
    const ladei_pipe_ring *ring = &pipeline->core.rings[i];
    if (atomic_load_explicit(&share->waits, memory_order_relaxed) && ring->blocks.acquire_out == 0 &&
        !ladei_pipe_core_awaits_block(ring))
      ladei_pinned_ring_share_stop_waiting(pipeline->ring_shares, share);
  }
}

/*
 * Builds without NDEBUG recount the core after changes, and stop the program if an invariant is broken, near its cause:
 * after a number of changes such that each pays for a recount of 16 slots or transfers.
 */
static void core_recount(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
#ifndef NDEBUG
  enum { RECORDS_PER_CHANGE = 16 };
  const ladei_pipe_core *core = &pipeline->core;
  if (++pipeline->changes_since_recount <= pipeline->changes_per_recount) return;
  uint64_t slots = 2 * (uint64_t)core->rings[0].depth, transfers = core->unfinished;
  pipeline->changes_since_recount = 0;
  pipeline->changes_per_recount = (slots * 11 + transfers * (slots + transfers)) / RECORDS_PER_CHANGE;
  if (ladei_pipe_core_check(core) != LADE_OK) ladei_error_stop();
#else
  (void)pipeline;
#endif
}

void ladei_pipe_complete_locked(lade_pipeline *pipeline, const ladei_pipe_order *order, lade_status status,
                                const lade_error *error) {
  ladei_lock_assert_held(&pipeline->lock);
  if (ladei_pipe_order_is_host(order))
    host_half_note(pipeline, order);
  else if (order->kind == LADEI_PIPE_ORDER_POLL)
    ladei_pipe_blocks_grow_locked(pipeline, order->ring);
  if (order->kind == LADEI_PIPE_ORDER_COPY && atomic_load_explicit(&pipeline->no_batch, memory_order_relaxed))
    ladei_pipe_core_set_joined(order->ring, 1, 0);
  unsigned changed = ladei_pipe_core_complete(&pipeline->core, order, status, error);
  if (order->kind == LADEI_PIPE_ORDER_FINISH && !ladei_pipe_ticket_of(order->transfer)->caller_run)
    ladei_pipe_side_of(pipeline, order->ring)->others--;
  core_recount(pipeline);
  ladei_pipe_link_look_locked(pipeline, order->ring);
  ladei_pipe_ring_shares_update_locked(pipeline);
  if (order->kind == LADEI_PIPE_ORDER_FINISH && ladei_pipe_ticket_of(order->transfer)->released) {
    ladei_pipe_ticket_free(ladei_pipe_ticket_of(order->transfer));
    pipeline->references--; /* not the last: destroy waits for every transfer */
  }
  bool moves = order->kind == LADEI_PIPE_ORDER_COPY || order->kind == LADEI_PIPE_ORDER_POLL ||
               order->kind == LADEI_PIPE_ORDER_WRITE;
  bool prefix_grew = moves && status == LADE_OK && pipeline->prefix_waiters > 0;
  if (changed != 0 || prefix_grew || pipeline->stopping) ladei_condition_broadcast(&pipeline->changed);
}

void ladei_pipe_execute_since_locked(lade_pipeline *pipeline, ladei_pipe_order *order, uint64_t begun_ns) {
  ladei_lock_assert_held(&pipeline->lock);
  ladei_lock_release(&pipeline->lock);
  lade_status status = ladei_pipe_execute(pipeline, order);
  ladei_log_flush();
  const lade_error *error = lade_last_error(); /* this thread's; unchanged until the completion below */
  uint64_t executed_ns = ladei_pipe_timeline_now(pipeline);
  ladei_lock_acquire(&pipeline->lock);
  if (pipeline->timeline != NULL) {
    ladei_pipe_timeline_add(pipeline->timeline, LADE_TIMELINE_LOCK, executed_ns, ladei_pipe_timeline_now(pipeline));
    ladei_pipe_timeline_add_order(pipeline->timeline, order, status, begun_ns, executed_ns);
  }
  ladei_pipe_complete_locked(pipeline, order, status, error);
}
