/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of a pipeline: checks what comes from the caller, hands transfers to the core, waits for them.
 *
 *   lade_pipeline --- core (what to do next) --- driver (threads, or virtual time) --- runtime, pinned pool
 *        ^ references: itself until destroyed, and each ticket
 *   lade_ticket (a transfer, its request)      unfinished: the core knows it     released: the caller gave it up
 *
 * I1  A ticket is freed when it is both finished and released, by whichever comes last.
 * I2  The pipeline's memory is freed when it is destroyed and no ticket is left; until then its lock works.
 * I3  unfinished transfers + calls inside submit <= max_transfers.
 * I4  Streams and events are destroyed only when no order is out and nothing is in flight on them.
 * Locks: pipeline->lock guards the core, `finished`, `released`, `references`. No call of driver, pool or callback is
 * made under it. What is constant after creation is read without it.
 */
#include "lade/pipeline.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "pipeline/internal.h"

enum { MAX_READERS = 256, MAX_DEPTH = 1024, DEFAULT_TRANSFERS = 64 };

/* --- checking what comes from the caller ----------------------------------------------------------------------------
 */

static lade_status argument_error(const char *what) { return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s", what); }

static lade_status file_check(const lade_transfer *request) {
  size_t end;
  if (request->host.fd < 0) {
    return argument_error("transfer: host.fd is no file descriptor");
  }
  if (!ladei_size_add(request->host.offset, request->bytes, &end) || end > INT64_MAX) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: host.offset %llu + bytes %llu is beyond any file",
                       (unsigned long long)request->host.offset, (unsigned long long)request->bytes);
  }
  return LADE_OK;
}

static lade_status host_check(const lade_transfer *request) {
  switch (request->host.kind) {
  case LADE_ENDPOINT_MEMORY:
    return request->host.memory != NULL || request->bytes == 0 ? LADE_OK
                                                               : argument_error("transfer: host.memory is NULL");
  case LADE_ENDPOINT_FILE: return file_check(request);
  case LADE_ENDPOINT_CALLBACK:
    if (request->host.concurrent != 0 && request->host.concurrent != 1) {
      return argument_error("transfer: host.concurrent is neither 0 nor 1");
    }
    return request->host.callback != NULL ? LADE_OK : argument_error("transfer: host.callback is NULL");
  default:
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: host.kind %d is no endpoint", request->host.kind);
  }
}

static lade_status request_check(const lade_transfer *request) {
  if (request->direction != LADE_TO_DEVICE && request->direction != LADE_TO_HOST) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: direction %d is none", request->direction);
  }
  if (request->bytes >= LADEI_SIZE_LIMIT) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: %llu bytes are too many",
                       (unsigned long long)request->bytes);
  }
  if (request->device_memory == NULL && request->bytes != 0) {
    return argument_error("transfer: device_memory is NULL");
  }
  if (request->after_stream != 0 && request->after_stream != 1) {
    return argument_error("transfer: after_stream is neither 0 nor 1");
  }
  return host_check(request);
}

static lade_status options_check(const lade_pipeline_options *options) {
  size_t ring;
  if (options->readers > MAX_READERS) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "pipeline: %u readers; at most %d", options->readers, MAX_READERS);
  }
  if (options->depth > MAX_DEPTH) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "pipeline: depth %u; at most %d", options->depth, MAX_DEPTH);
  }
  if (!ladei_size_mul(options->chunk_bytes, options->depth + 1u, &ring) || ring >= LADEI_SIZE_LIMIT) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "pipeline: chunks of %llu bytes are too large",
                       (unsigned long long)options->chunk_bytes);
  }
  return LADE_OK;
}

/* --- what lade chooses ----------------------------------------------------------------------------------------------
 */

/* The copy engines are threads of this machine: what counts then is its caches, not the length of a link. */
static bool engines_are_threads(const lade_runtime *runtime) {
  return runtime->software_device && runtime->ops->step == NULL;
}

static uint32_t readers_choose(const lade_runtime *runtime) {
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (engines_are_threads(runtime)) {
    cpus--; /* one is the engine's */
  }
  return runtime->ops->step != NULL || cpus > 4 ? 4 : cpus < 1 ? 1 : (uint32_t)cpus;
}

/*
 * Note [Chunk and depth]
 * A link spends about 3 us on starting a copy; at 55 GB/s a chunk of 8 MiB keeps that below 2 % of its time, and
 * filling and draining the ring costs one chunk's time each. Where the copy engine is a thread, chunks should pass from
 * reader to engine through the caches, yet not so fast that a moment without a processor stops the other side: 1 MiB
 * does best from 64 KiB to 16 MiB (benchmarks/run_targets). The depth is a limit: a ring grows only while its blocks
 * are all busy.
 */

/* Blocks of a ring beside those that readers hold. Where engines are threads, chunks that no cache holds anyway get few. */
static uint32_t blocks_ahead(bool engine_threads, uint64_t chunk_bytes) {
  if (!engine_threads) {
    return 4;
  }
  return chunk_bytes <= 4 * LADEI_MIB ? 7 : 3;
}

static void options_complete(const lade_runtime *runtime, lade_pipeline_options *options) {
  bool threads = engines_are_threads(runtime);
  if (options->readers == 0) {
    options->readers = readers_choose(runtime);
  }
  if (options->chunk_bytes == 0) {
    options->chunk_bytes = threads ? LADEI_MIB : 8 * LADEI_MIB;
  }
  if (options->depth == 0) {
    options->depth = options->readers + blocks_ahead(threads, options->chunk_bytes);
  }
  if (options->max_transfers == 0) {
    options->max_transfers = DEFAULT_TRANSFERS;
  }
  if (options->storage_bytes_per_s == 0) {
    options->storage_bytes_per_s = UINT64_C(12000000000);
  }
}

/* Small transfers too shall overlap: at least eight chunks where lade chose their size. */
static size_t chunk_for(const lade_pipeline *pipeline, uint64_t bytes) {
  size_t most = (size_t)pipeline->options.chunk_bytes;
  size_t wanted;
  if (!pipeline->chunk_chosen || !ladei_size_round_up((size_t)(bytes / 8), 64 * LADEI_KIB, &wanted)) {
    return most;
  }
  return ladei_size_min(most, ladei_size_max(wanted, 64 * LADEI_KIB));
}

/* --- references -----------------------------------------------------------------------------------------------------
 */

/* The last reference is gone. */
static void pipeline_free(lade_pipeline *pipeline) {
  ladei_condition_destroy(&pipeline->work);
  ladei_condition_destroy(&pipeline->changed);
  ladei_lock_destroy(&pipeline->lock);
  free(pipeline);
}

/* Drops one reference and the lock. */
static void pipeline_unref_unlock(lade_pipeline *pipeline) {
  bool last = --pipeline->references == 0;
  ladei_lock_release(&pipeline->lock);
  if (last) {
    pipeline_free(pipeline);
  }
}

/* --- waiting --------------------------------------------------------------------------------------------------------
 */

static uint64_t deadline_after(const lade_pipeline *pipeline, uint64_t timeout_ns) {
  uint64_t now = pipeline->runtime->ops->now_ns(pipeline->runtime->self);
  return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* The ticket's outcome as this thread's answer. Called with the lock, once the transfer has failed or finished. */
static lade_status ticket_answer(const lade_ticket *ticket) {
  if (ticket->transfer.error.status != LADE_OK) {
    ladei_error_restore(&ticket->transfer.error);
  }
  return ticket->transfer.error.status;
}

static lade_status timeout_error(const lade_ticket *ticket) {
  return ladei_error(LADE_ERR_TIMEOUT, 0, "transfer of %llu bytes: %llu done when the time to wait was over",
                     (unsigned long long)ticket->transfer.bytes, (unsigned long long)ticket->transfer.done_bytes);
}

lade_status lade_ticket_wait(lade_ticket *ticket, uint64_t timeout_ns) {
  if (ticket == NULL) {
    return argument_error("lade_ticket_wait: NULL");
  }
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  bool finished = ticket->transfer.finished;
  ladei_lock_release(&pipeline->lock);
  lade_status status = LADE_OK;
  if (!finished) {
    /* Only now is the runtime needed, and sure to be open. */
    status = ladei_runtime_check_process(pipeline->runtime);
    if (status != LADE_OK) {
      return status;
    }
    uint64_t deadline_ns = deadline_after(pipeline, timeout_ns);
    ladei_lock_acquire(&pipeline->lock);
    while (!ticket->transfer.finished && status == LADE_OK) {
      status = pipeline->driver->wait(pipeline, deadline_ns);
    }
    ladei_lock_release(&pipeline->lock);
  }
  ladei_lock_acquire(&pipeline->lock);
  if (ticket->transfer.finished) {
    status = ticket_answer(ticket);
  } else if (status == LADE_ERR_TIMEOUT) {
    status = timeout_error(ticket);
  }
  ladei_lock_release(&pipeline->lock);
  return status;
}

lade_status lade_ticket_query(lade_ticket *ticket, lade_ticket_info *info) {
  if (ticket == NULL) {
    return argument_error("lade_ticket_query: NULL");
  }
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  bool advance = !ticket->transfer.finished && pipeline->driver->advance != NULL;
  ladei_lock_release(&pipeline->lock);
  if (advance) {
    pipeline->driver->advance(pipeline);
  }
  ladei_lock_acquire(&pipeline->lock);
  lade_ticket_info own = {sizeof own, ticket->transfer.bytes, ticket->transfer.done_bytes};
  lade_status status = ticket->transfer.finished ? ticket_answer(ticket) : LADE_NOT_READY;
  ladei_lock_release(&pipeline->lock);
  if (info != NULL) {
    lade_status written = ladei_stats_write("lade_ticket_info", &own, sizeof own, info);
    status = written != LADE_OK ? written : status;
  }
  return status;
}

/* A stream of the caller's that transfers shall be ordered with. Not one that is captured: events would carry the capture
 * to the pipeline's streams, or break it. */
static lade_status caller_stream_resolve(const lade_runtime *runtime, lade_stream stream, ladei_stream *out) {
  ladei_capture_info info;
  lade_status status = runtime->ops->stream_resolve(runtime->self, stream, out);
  if (status == LADE_OK) {
    status = runtime->ops->stream_capture_info(runtime->self, out, &info);
  }
  if (status == LADE_OK && info.status != LADEI_CAPTURE_NONE) {
    status =
        ladei_error(LADE_ERR_CAPTURE, 0, "transfer: the stream is being captured; transfers are no part of graphs");
  }
  return status;
}

/* Queues the wait on the caller's stream, once the last copy is queued on the side's. */
static lade_status stream_wait_side(lade_pipeline *pipeline, lade_stream stream, const ladei_side *side) {
  const lade_runtime *runtime = pipeline->runtime;
  ladei_stream resolved;
  ladei_event *event;
  lade_status status = caller_stream_resolve(runtime, stream, &resolved);
  if (status != LADE_OK) {
    return status;
  }
  status = ladei_event_pool_acquire(pipeline->events, side->stream.context, &event);
  if (status != LADE_OK) {
    return status;
  }
  status = runtime->ops->event_record(runtime->self, event->handle, &side->stream);
  if (status == LADE_OK) {
    status = runtime->ops->stream_wait_event(runtime->self, &resolved, event->handle);
  }
  /* A later record of the same event does not touch the wait that is queued. */
  ladei_event_pool_release(pipeline->events, event);
  return status;
}

lade_status lade_stream_wait_ticket(lade_stream stream, lade_ticket *ticket) {
  if (ticket == NULL) {
    return argument_error("lade_stream_wait_ticket: NULL");
  }
  lade_pipeline *pipeline = ticket->pipeline;
  const ladei_core_transfer *transfer = &ticket->transfer;
  lade_status status = LADE_OK;
  ladei_lock_acquire(&pipeline->lock);
  while (!transfer->finished && transfer->error.status == LADE_OK && !ladei_core_all_queued(transfer) &&
         status == LADE_OK) {
    status = pipeline->driver->wait(pipeline, UINT64_MAX);
  }
  bool ended = transfer->finished || transfer->error.status != LADE_OK;
  if (ended) {
    status = ticket_answer(ticket);
  } else if (status == LADE_ERR_TIMEOUT) {
    status = timeout_error(ticket);
  }
  ladei_lock_release(&pipeline->lock);
  if (ended || status != LADE_OK) {
    return status;
  }
  status = ladei_runtime_check_process(pipeline->runtime);
  return status != LADE_OK ? status
                           : stream_wait_side(pipeline, stream,
                                              &pipeline->sides[ticket->request.direction == LADE_TO_DEVICE ? 0 : 1]);
}

static void cancel_locked(lade_pipeline *pipeline, lade_ticket *ticket) {
  lade_error before;
  lade_error error;
  ladei_error_save(&before);
  ladei_error(LADE_ERR_CANCELLED, 0, "transfer cancelled: %llu of %llu bytes were done",
              (unsigned long long)ticket->transfer.done_bytes, (unsigned long long)ticket->transfer.bytes);
  ladei_error_save(&error);
  ladei_error_restore(&before);
  ladei_core_fail(&pipeline->core, &ticket->transfer, &error);
}

lade_status lade_ticket_cancel(lade_ticket *ticket) {
  if (ticket == NULL) {
    return argument_error("lade_ticket_cancel: NULL");
  }
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  bool finished = ticket->transfer.finished;
  ladei_lock_release(&pipeline->lock);
  if (finished) {
    return LADE_OK;
  }
  lade_status status = ladei_runtime_check_process(pipeline->runtime);
  if (status != LADE_OK) {
    return status;
  }
  ladei_lock_acquire(&pipeline->lock);
  cancel_locked(pipeline, ticket);
  ladei_condition_broadcast(&pipeline->changed);
  ladei_lock_release(&pipeline->lock);
  pipeline->driver->kick(pipeline);
  return LADE_OK;
}

void lade_ticket_release(lade_ticket *ticket) {
  if (ticket == NULL) {
    return;
  }
  lade_pipeline *pipeline = ticket->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  ticket->released = true;
  if (!ticket->transfer.finished) {
    ladei_lock_release(&pipeline->lock);
    return;
  }
  free(ticket);
  pipeline_unref_unlock(pipeline);
}

/* --- submitting -----------------------------------------------------------------------------------------------------
 */

/* Takes a place among max_transfers, waiting for one as the options say. */
static lade_status place_take(lade_pipeline *pipeline) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&pipeline->lock);
  while (pipeline->core.unfinished + pipeline->submitting >= pipeline->options.max_transfers && status == LADE_OK) {
    status = pipeline->options.no_wait ? LADE_NOT_READY : pipeline->driver->wait(pipeline, UINT64_MAX);
  }
  if (status == LADE_OK) {
    pipeline->submitting++;
  }
  ladei_lock_release(&pipeline->lock);
  if (status == LADE_ERR_TIMEOUT) {
    ladei_error(status, 0, "submit: all %u transfers under way can never end", pipeline->options.max_transfers);
  }
  return status;
}

static void place_return(lade_pipeline *pipeline) {
  ladei_lock_acquire(&pipeline->lock);
  pipeline->submitting--;
  ladei_condition_broadcast(&pipeline->changed);
  ladei_lock_release(&pipeline->lock);
}

/* Marks the work queued on the caller's stream so far. */
static lade_status gate_record(lade_pipeline *pipeline, lade_ticket *ticket) {
  const lade_runtime *runtime = pipeline->runtime;
  ladei_stream stream;
  if (!ticket->request.after_stream) {
    return LADE_OK;
  }
  lade_status status = caller_stream_resolve(runtime, ticket->request.stream, &stream);
  if (status == LADE_OK) {
    status = ladei_event_pool_acquire(pipeline->events, stream.context, &ticket->gate);
  }
  if (status != LADE_OK) {
    return status;
  }
  status = runtime->ops->event_record(runtime->self, ticket->gate->handle, &stream);
  if (status != LADE_OK) {
    ladei_event_pool_release(pipeline->events, ticket->gate);
    return status;
  }
  ticket->transfer.gate = LADEI_GATE_CLOSED;
  return LADE_OK;
}

static lade_status ticket_create(lade_pipeline *pipeline, const lade_transfer *request, lade_ticket **out) {
  lade_ticket *ticket = calloc(1, sizeof *ticket);
  if (ticket == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for a ticket");
  }
  ticket->pipeline = pipeline;
  ticket->request = *request;
  ticket->transfer.bytes = request->bytes;
  ticket->transfer.chunk_bytes = chunk_for(pipeline, request->bytes);
  ticket->transfer.ordered = request->host.kind == LADE_ENDPOINT_CALLBACK && !request->host.concurrent;
  lade_status status = gate_record(pipeline, ticket);
  if (status != LADE_OK) {
    free(ticket);
    return status;
  }
  *out = ticket;
  return LADE_OK;
}

lade_status lade_pipeline_submit(lade_pipeline *pipeline, const lade_transfer *transfer, lade_ticket **out_ticket) {
  lade_transfer request;
  lade_ticket *ticket = NULL;
  if (pipeline == NULL || transfer == NULL || out_ticket == NULL) {
    return argument_error("lade_pipeline_submit: NULL");
  }
  lade_status status = ladei_options_read("lade_transfer", transfer, &request, sizeof request);
  if (status == LADE_OK) {
    status = request_check(&request);
  }
  if (status == LADE_OK) {
    status = ladei_runtime_check_process(pipeline->runtime);
  }
  if (status == LADE_OK) {
    status = place_take(pipeline);
  }
  if (status != LADE_OK) {
    return status;
  }
  status = ticket_create(pipeline, &request, &ticket);
  if (status != LADE_OK) {
    place_return(pipeline);
    return status;
  }
  ladei_lock_acquire(&pipeline->lock);
  pipeline->submitting--;
  pipeline->references++;
  ladei_core_submit(&pipeline->core, &ticket->transfer, (lade_direction)request.direction);
  ladei_lock_release(&pipeline->lock);
  *out_ticket = ticket;
  pipeline->driver->kick(pipeline);
  return LADE_OK;
}

lade_status lade_pipeline_info_get(lade_pipeline *pipeline, lade_pipeline_info *info) {
  if (pipeline == NULL) {
    return argument_error("lade_pipeline_info_get: NULL");
  }
  lade_status status = ladei_runtime_check_process(pipeline->runtime);
  if (status != LADE_OK) {
    return status;
  }
  lade_pipeline_info own = {.struct_size = sizeof own,
                            .chunk_bytes = pipeline->options.chunk_bytes,
                            .depth = pipeline->options.depth,
                            .readers = pipeline->options.readers,
                            .device = pipeline->options.device,
                            .numa_node = pipeline->topology != NULL ? pipeline->numa_node : -1};
  ladei_lock_acquire(&pipeline->lock);
  ladei_core_counters counters = pipeline->core.counters;
  ladei_lock_release(&pipeline->lock);
  own.transfers_submitted = counters.transfers_submitted;
  own.transfers_completed = counters.transfers_completed;
  own.transfers_failed = counters.transfers_failed;
  own.bytes_completed = counters.bytes_completed;
  own.copies = counters.copies;
  own.events_recorded = counters.events_recorded;
  own.events_queried = counters.events_queried;
  own.blocks = counters.blocks;
  own.blocks_peak = counters.blocks_peak;
  return ladei_stats_write("lade_pipeline_info", &own, sizeof own, info);
}

/* --- life -----------------------------------------------------------------------------------------------------------
 */

/* Undoes side_create; what failed is tried again by the next call. */
static lade_status side_destroy(lade_pipeline *pipeline, ladei_side *side) {
  const lade_runtime *runtime = pipeline->runtime;
  if (side->live) {
    lade_status status = lade_pinned_stream_retire(pipeline->pool, side->stream.handle);
    if (status != LADE_OK) {
      /* Nothing runs on it any more, so its blocks need no event. */
      status = runtime->ops->stream_synchronize(runtime->self, &side->stream);
      if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST) {
        status = lade_pinned_stream_retire(pipeline->pool, side->stream.handle);
      }
    }
    if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST) {
      status = runtime->ops->stream_destroy(runtime->self, side->stream.handle);
    }
    if (status != LADE_OK) {
      return status;
    }
    side->live = false;
  }
  for (unsigned i = 0; side->events != NULL && i < pipeline->core.rings[0].batch_count; i++) {
    if (side->events[i] != NULL) {
      ladei_event_pool_release(pipeline->events, side->events[i]);
    }
  }
  free(side->events);
  side->events = NULL;
  return LADE_OK;
}

static lade_status side_create(lade_pipeline *pipeline, ladei_side *side) {
  const lade_runtime *runtime = pipeline->runtime;
  lade_stream handle;
  side->events = calloc(pipeline->core.rings[0].batch_count, sizeof(ladei_event *));
  if (side->events == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pipeline: no memory for events");
  }
  lade_status status =
      runtime->ops->stream_create(runtime->self, pipeline->options.device, 0, LADEI_STREAM_NON_BLOCKING, &handle);
  if (status != LADE_OK) {
    return status;
  }
  status = runtime->ops->stream_resolve(runtime->self, handle, &side->stream);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    (void)runtime->ops->stream_destroy(runtime->self, handle);
    ladei_error_restore(&first);
    return status;
  }
  side->live = true;
  return LADE_OK;
}

/* Where the readers shall run. Placement is an optimisation: whatever fails here leaves them unbound. */
static void placement_find(lade_pipeline *pipeline) {
  lade_error before;
  lade_device_info info;
  lade_device_info_init(&info);
  ladei_error_save(&before);
  pipeline->numa_node = -1;
  if (pipeline->runtime->ops->step == NULL &&
      lade_runtime_device_info(pipeline->runtime, pipeline->options.device, &info) == LADE_OK &&
      ladei_topology_load(LADEI_TOPOLOGY_SYSTEM, NULL, !info.software, &pipeline->topology) == LADE_OK) {
    int node = info.numa_node;
    if (node < 0 && !info.software) {
      node = ladei_topology_node_of_pci(pipeline->topology, info.pci_bus_id);
    }
    pipeline->numa_node = node;
    if (node < 0) {
      ladei_topology_destroy(pipeline->topology);
      pipeline->topology = NULL;
    }
  }
  ladei_error_restore(&before);
}

/* Gives up all that a drained or half-made pipeline holds but its memory. After a failure it may be called again;
 * `force` goes on instead, for lack of anyone who could. */
static lade_status pipeline_dismantle(lade_pipeline *pipeline, bool force) {
  for (unsigned i = 0; i < 2; i++) {
    lade_status status = side_destroy(pipeline, &pipeline->sides[i]);
    if (status != LADE_OK && !force) {
      return status;
    }
  }
  /* An event that the driver will not destroy stays with the driver; nothing more can be done about it here. */
  (void)ladei_event_pool_destroy(pipeline->events);
  pipeline->events = NULL;
  ladei_topology_destroy(pipeline->topology);
  pipeline->topology = NULL;
  ladei_core_destroy(&pipeline->core);
  ladei_runtime_release(pipeline->runtime);
  return LADE_OK;
}

static lade_status pipeline_build(lade_pipeline *pipeline) {
  lade_status status = ladei_core_init(&pipeline->core, pipeline->options.depth);
  if (status == LADE_OK) {
    status = ladei_event_pool_create(pipeline->runtime, &pipeline->events);
  }
  for (unsigned i = 0; i < 2 && status == LADE_OK; i++) {
    status = side_create(pipeline, &pipeline->sides[i]);
  }
  if (status == LADE_OK) {
    placement_find(pipeline);
    status = pipeline->driver->start(pipeline);
  }
  return status;
}

static lade_status pipeline_new(lade_runtime *runtime, lade_pinned_pool *pool, const lade_pipeline_options *options,
                                lade_pipeline **out) {
  lade_pipeline *pipeline = calloc(1, sizeof *pipeline);
  if (pipeline == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pipeline: no memory");
  }
  pipeline->runtime = runtime;
  pipeline->pool = pool;
  pipeline->options = *options;
  pipeline->chunk_chosen = options->chunk_bytes == 0;
  pipeline->driver = runtime->ops->step != NULL ? &ladei_driver_virtual : &ladei_driver_threads;
  pipeline->references = 1;
  options_complete(runtime, &pipeline->options);
  ladei_lock_init(&pipeline->lock, LADEI_RANK_PIPELINE);
  ladei_condition_init(&pipeline->work);
  ladei_condition_init(&pipeline->changed);
  lade_status status = pipeline_build(pipeline);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    (void)pipeline_dismantle(pipeline, true);
    pipeline_free(pipeline);
    ladei_error_restore(&first);
    return ladei_error_prefix(status, "pipeline: ");
  }
  *out = pipeline;
  return LADE_OK;
}

lade_status lade_pipeline_create(lade_runtime *runtime, lade_pinned_pool *pool, const lade_pipeline_options *options,
                                 lade_pipeline **out) {
  lade_pipeline_options own;
  int devices;
  if (runtime == NULL || pool == NULL || out == NULL) {
    return argument_error("lade_pipeline_create: NULL");
  }
  lade_status status = ladei_options_read("lade_pipeline_options", options, &own, sizeof own);
  if (status == LADE_OK) {
    status = options_check(&own);
  }
  if (status == LADE_OK) {
    status = lade_runtime_device_count(runtime, &devices);
  }
  if (status == LADE_OK && (own.device < 0 || own.device >= devices)) {
    status = ladei_error(LADE_ERR_NO_DEVICE, 0, "pipeline: device %d of %d", own.device, devices);
  }
  if (status == LADE_OK) {
    status = ladei_runtime_acquire(runtime);
  }
  return status != LADE_OK ? status : pipeline_new(runtime, pool, &own, out);
}

static void cancel_all_locked(lade_pipeline *pipeline) {
  for (unsigned i = 0; i < 2; i++) {
    ladei_core_transfer *next;
    ladei_core_transfer *transfer = TAILQ_FIRST(&pipeline->core.rings[i].queue);
    for (; transfer != NULL; transfer = next) {
      next = TAILQ_NEXT(transfer, link);
      cancel_locked(pipeline, ladei_ticket_of(transfer));
    }
  }
}

/* Until no transfer, no order and no block is left. */
static lade_status pipeline_drain(lade_pipeline *pipeline, bool cancel) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&pipeline->lock);
  if (cancel) {
    cancel_all_locked(pipeline);
  }
  pipeline->stopping = true; /* every completion wakes us */
  ladei_condition_broadcast(&pipeline->work);
  const ladei_core *core = &pipeline->core;
  while ((core->unfinished > 0 || core->orders_out > 0 || core->counters.blocks > 0) && status == LADE_OK) {
    status = pipeline->driver->wait(pipeline, UINT64_MAX);
  }
  unsigned left = core->unfinished;
  if (status != LADE_OK) {
    pipeline->stopping = false;
  }
  ladei_lock_release(&pipeline->lock);
  return status == LADE_ERR_TIMEOUT ? ladei_error(status, 0, "%u transfers can never end", left) : status;
}

lade_status lade_pipeline_destroy(lade_pipeline *pipeline, bool cancel) {
  if (pipeline == NULL) {
    return LADE_OK;
  }
  lade_status status = ladei_runtime_check_process(pipeline->runtime);
  if (status == LADE_OK && pipeline->driver_state != NULL) {
    status = pipeline_drain(pipeline, cancel);
    if (status == LADE_OK) {
      pipeline->driver->stop(pipeline);
    }
  }
  if (status == LADE_OK) {
    status = pipeline_dismantle(pipeline, false);
  }
  if (status != LADE_OK) {
    return ladei_error_prefix(status, "pipeline: destroy: ");
  }
  ladei_lock_acquire(&pipeline->lock);
  pipeline_unref_unlock(pipeline);
  return LADE_OK;
}
