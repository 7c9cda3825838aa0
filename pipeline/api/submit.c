/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submitting: checks the caller's request and makes a transfer of it that the core understands.
 *
 *   check the request -> place among max_transfers -> ticket: pieces, files, destination, dependency -> core
 *
 * I1  A submit that fails keeps nothing: the resources it took are given back in reverse.
 * I2  unfinished transfers + calls inside submit <= max_transfers.
 * Locks: pipeline->lock for the place and the core. No call of driver, allocator or pool is made under it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "base/thread.h"
#include "pipeline/api/ticket.h"
#include "pipeline/endpoints/files.h"
#include "pipeline/endpoints/request.h"
#include "runtime/convert.h"
#include "runtime/copies/copies.h"

/* --- checking what comes from the caller -------------------------------------------------------------------------- */

static const char call[] = "lade_pipeline_submit";

static lade_status destination_check(const lade_transfer *request) {
  if (request->allocator == NULL && request->out_device_memory != NULL) {
    return ladei_error_argument(call, "transfer.out_device_memory", "NULL without transfer.allocator", "%p",
                                (void *)request->out_device_memory);
  }
  if (request->allocator == NULL) return LADE_OK;
  if (request->out_device_memory == NULL) return ladei_error_null(call, "transfer.out_device_memory");
  if (request->direction != LADE_TO_DEVICE) {
    return ladei_error_argument(call, "transfer.direction", "LADE_TO_DEVICE (1) beside transfer.allocator", "%d",
                                request->direction);
  }
  if (request->device_memory == NULL) return LADE_OK;
  return ladei_error_argument(call, "transfer.device_memory", "NULL beside transfer.allocator", "%p",
                              request->device_memory);
}

enum { CHECKSUM_LEAST = 4096 };

static lade_status checksum_bytes_check(const lade_pipeline *pipeline, const lade_transfer *request) {
  char expected[64];
  uint64_t bytes = request->checksum_bytes;
  uint64_t most = pipeline->chunk_chosen ? LADEI_PIPE_CHUNK_MOST : pipeline->options.chunk_bytes;
  most = most < LADEI_PIPE_CHUNK_MOST ? most : LADEI_PIPE_CHUNK_MOST;
  if (ladei_is_power_of_two(bytes) && bytes >= CHECKSUM_LEAST && bytes <= most) return LADE_OK;
  bool of_options = most < LADEI_PIPE_CHUNK_MOST;
  (void)snprintf(expected, sizeof expected, "a power of two from %d to %llu%s", CHECKSUM_LEAST,
                 (unsigned long long)most, of_options ? ", options.chunk_bytes" : "");
  return ladei_error_argument(call, "transfer.checksum_bytes", expected, "%llu", (unsigned long long)bytes);
}

static lade_status checksum_check(const lade_pipeline *pipeline, const lade_transfer *request) {
  if (request->checksum < LADE_CHECKSUM_NONE || request->checksum > LADE_CHECKSUM_VERIFY)
    return ladei_error_argument(call, "transfer.checksum", "a lade_checksum", "%d", request->checksum);
  if (request->checksum == LADE_CHECKSUM_NONE && request->checksum_bytes != 0) {
    return ladei_error_argument(call, "transfer.checksum_bytes", "0 without transfer.checksum", "%llu",
                                (unsigned long long)request->checksum_bytes);
  }
  if (request->checksum == LADE_CHECKSUM_NONE && request->checksums != NULL) {
    return ladei_error_argument(call, "transfer.checksums", "NULL without transfer.checksum", "%p",
                                (void *)request->checksums);
  }
  if (request->checksum == LADE_CHECKSUM_NONE) return LADE_OK;
  if (request->checksums == NULL) return ladei_error_null(call, "transfer.checksums");
  return checksum_bytes_check(pipeline, request);
}

static bool dtype_converts(int32_t dtype) { return ladei_number_format_of((lade_dtype)dtype) != NULL; }

static lade_status conversion_check(const lade_pipeline *pipeline, const lade_transfer *request) {
  static const char expected[] = "LADE_DTYPE_F32, _F16, _BF16, _F8_E5M2 or _F8_E4M3";
  const int32_t from = request->host_dtype, to = request->device_dtype;
  if (from == 0 && to == 0) return LADE_OK;
  if (!dtype_converts(from)) return ladei_error_argument(call, "transfer.host_dtype", expected, "%d", from);
  if (!dtype_converts(to)) return ladei_error_argument(call, "transfer.device_dtype", expected, "%d", to);
  if (from == to)
    return ladei_error_argument(call, "transfer.device_dtype", "another than transfer.host_dtype, or both 0", "%d", to);
  if (request->direction != LADE_TO_DEVICE)
    return ladei_error_argument(call, "transfer.direction", "LADE_TO_DEVICE (1) beside transfer.host_dtype", "%d",
                                request->direction);
  if (ladei_copy_kernel_ready(pipeline->runtime, &pipeline->sides[0].copy_streams[0].stream)) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                     "%s: transfer.host_dtype is %d; expected 0 without the kernel that converts, which device %d has "
                     "not loaded: lade_copy_prepare()",
                     call, from, pipeline->options.device);
}

static lade_status request_check(const lade_pipeline *pipeline, const lade_transfer *request) {
  if (request->direction != LADE_TO_DEVICE && request->direction != LADE_TO_HOST) {
    return ladei_error_argument(call, "transfer.direction", "LADE_TO_DEVICE (1) or LADE_TO_HOST (2)", "%d",
                                request->direction);
  }
  if (request->after_stream != 0 && request->after_stream != 1)
    return ladei_error_argument(call, "transfer.after_stream", "0 or 1", "%d", request->after_stream);
  if (request->on_complete_in_calls != 0 && request->on_complete_in_calls != 1)
    return ladei_error_argument(call, "transfer.on_complete_in_calls", "0 or 1", "%d", request->on_complete_in_calls);
  if (request->priority < LADE_PRIORITY_BACKGROUND || request->priority > LADE_PRIORITY_URGENT)
    return ladei_error_argument(call, "transfer.priority", "-1, 0 or 1", "%d", request->priority);
  LADEI_TRY(checksum_check(pipeline, request));
  LADEI_TRY(conversion_check(pipeline, request));
  return destination_check(request);
}

/* --- a place among max_transfers ---------------------------------------------------------------------------------- */

/* Takes a place among max_transfers, waiting for one as the options say. */
static lade_status place_take(lade_pipeline *pipeline, const lade_transfer *request) {
  lade_status status = LADE_OK;
  ladei_pipe_waiting waiting = {.deadline_ns = UINT64_MAX,
                                .ring = ladei_pipe_core_ring(&pipeline->core, request->direction)};
  ladei_lock_acquire(&pipeline->lock);
  while (!pipeline->closed && status == LADE_OK &&
         pipeline->core.unfinished + pipeline->submitting >= pipeline->options.max_transfers)
    status = pipeline->options.no_wait ? LADE_NOT_READY : pipeline->driver->wait(pipeline, &waiting);
  bool closed = pipeline->closed;
  if (status == LADE_OK && !closed) pipeline->submitting++;
  ladei_lock_release(&pipeline->lock);
  if (closed) return ladei_error(LADE_ERR_CANCELLED, 0, "submit: the pipeline is being destroyed");
  if (status == LADE_ERR_TIMEOUT)
    ladei_error(status, 0, "submit: all %u transfers under way can never end", pipeline->options.max_transfers);
  return status;
}

static void place_return(lade_pipeline *pipeline) {
  ladei_lock_acquire(&pipeline->lock);
  pipeline->submitting--;
  ladei_condition_broadcast(&pipeline->changed);
  ladei_lock_release(&pipeline->lock);
}

/* --- the ticket --------------------------------------------------------------------------------------------------- */

/* Whether nothing is left to wait for. With threads only: in virtual time the core asks, when the copies come. */
static bool dependency_has_passed(const lade_pipeline *pipeline, const lade_ticket *ticket) {
  const lade_runtime *runtime = pipeline->runtime;
  lade_error before;
  if (!pipeline->driver->threads) return false;
  ladei_error_save(&before);
  lade_status status = runtime->ops->event_query(runtime->self, ticket->dependency->handle);
  ladei_error_restore(&before);
  return status == LADE_OK; /* an error is the transfer's: a thread asks again */
}

static void dependency_drop(const lade_pipeline *pipeline, lade_ticket *ticket) {
  ladei_event_pool_release(pipeline->events, ticket->dependency);
  ticket->dependency = NULL;
}

/* Marks the work queued on the caller's stream so far, if there is any. */
static lade_status dependency_record(lade_pipeline *pipeline, const lade_transfer *request, lade_ticket *ticket) {
  const lade_runtime *runtime = pipeline->runtime;
  ladei_stream stream;
  if (!request->after_stream && request->allocator == NULL) return LADE_OK;
  lade_status status = ladei_pipe_caller_stream_resolve(runtime, request->stream, &stream);
  if (status == LADE_OK) status = ladei_event_pool_acquire(pipeline->events, stream.context, &ticket->dependency);
  if (status != LADE_OK) return status;
  status = runtime->ops->event_record(runtime->self, ticket->dependency->handle, &stream);
  if (status == LADE_OK) /* an event in a capture that began just now must not be asked about: Note in ops.h */
    status = ladei_stream_uncaptured(runtime, &stream, "transfer");
  if (status != LADE_OK || dependency_has_passed(pipeline, ticket)) {
    dependency_drop(pipeline, ticket);
    return status;
  }
  ticket->transfer.dependency = LADEI_PIPE_DEPENDENCY_UNKNOWN;
  ticket->transfer.after = stream.id;
  return LADE_OK;
}

/*
 * Note [Caller-run transfers]
 * To wake a thread takes longer than to copy 64 KiB, so calls do the work of short transfers themselves (Note [Calls
 * that work] in drivers/threads.c): of those whose orders are driver calls that do not wait, and copies of memory.
 * Pageable memory of more than 64 KiB takes longer to copy than a thread to wake: of that only the first, as readers
 * take those that follow beside it.
 */
enum { CALLER_RUN_BYTES = 1 << 20, CALLER_RUN_BESIDE = 64 << 10 };

static bool is_short_memory(const ladei_pipe_pieces *pieces) {
  return pieces->count <= 1 && pieces->bytes <= CALLER_RUN_BYTES &&
         (pieces->count == 0 || pieces->list[0].host.kind == LADE_ENDPOINT_MEMORY);
}

/* Small transfers overlap, too: at least eight chunks if lade chose their size; four of memory that a call copies, which does
 * nothing else while it queues a chunk and asks for its end, 3 us on an H200, and then waits for the last chunk, 5 us of 256 KiB.
 * Without staging nothing overlaps; chunks are then as long as cancelling and urgent transfers may be kept waiting. */
static size_t chunk_for(const lade_pipeline *pipeline, const ladei_pipe_pieces *pieces, bool unstaged) {
  size_t wanted;
  if (!pipeline->chunk_chosen) return (size_t)pipeline->options.chunk_bytes;
  uint64_t part = pieces->bytes / (is_short_memory(pieces) ? 4 : 8);
  return !unstaged && ladei_size_round_up((size_t)part, LADEI_PIPE_CHUNK_LEAST, &wanted)
             ? ladei_size_min(LADEI_PIPE_CHUNK_MOST, ladei_size_max(wanted, LADEI_PIPE_CHUNK_LEAST))
             : LADEI_PIPE_CHUNK_MOST;
}

/*
 * Note [Fair queues of submitters]
 * Callers' numbers and threads without one have half of the fair queues each, so that a thread's own number is beside
 * those of its program and not among them. Two submitters on one fair queue share its bytes: unfair among themselves,
 * in the order of submission.
 */
static unsigned fair_queue_of(uint64_t submitter) {
  bool thread = submitter == 0;
  if (thread) submitter = ladei_thread_number();
  uint64_t mixed = submitter * UINT64_C(0x9E3779B97F4A7C15);
  return (unsigned)(mixed >> 60) + (thread ? LADEI_PIPE_FAIR_QUEUES / 2 : 0);
}
_Static_assert(LADEI_PIPE_FAIR_QUEUES == 32, "fair_queue_of makes numbers of four bits for each half");

/* Chunks of whole units: sums, or numbers. O_DIRECT's, if any, are as good; a first chunk that ends at one of its blocks is not, unless it
 * has whole numbers. */
static void units_fill(const lade_transfer *request, lade_ticket *ticket) {
  ladei_pipe_core_transfer *transfer = &ticket->transfer;
  const size_t unit = ladei_size_max((size_t)request->checksum_bytes, ticket->pieces.host_unit);
  ticket->checksum = request->checksum;
  ticket->checksum_bytes = request->checksum_bytes;
  ticket->checksums = request->checksums;
  if (unit == 1) return;
  if (transfer->lead_bytes % unit != 0) {
    ladei_pipe_storage_file_set_buffered(ticket->pieces.list[0].file);
    transfer->lead_bytes = 0;
  }
  transfer->unit_bytes = ladei_size_max(transfer->unit_bytes, unit);
  transfer->chunk_bytes = ladei_size_max(transfer->chunk_bytes, transfer->unit_bytes);
}

static void transfer_fill(ladei_pipe_request *submission, lade_ticket *ticket) {
  const lade_pipeline *pipeline = submission->pipeline;
  const lade_transfer *request = submission->transfer;
  ladei_pipe_core_transfer *transfer = &ticket->transfer;
  ticket->pipeline = (lade_pipeline *)pipeline;
  ticket->to_device = request->direction == LADE_TO_DEVICE;
  ticket->on_complete = request->on_complete;
  ticket->on_complete_user = request->on_complete_user;
  ticket->completes_in_calls = request->on_complete == NULL || request->on_complete_in_calls == 1;
  transfer->bytes = ticket->pieces.bytes;
  transfer->unstaged = ladei_pipe_request_find_direct(submission, &ticket->pieces);
  transfer->no_host = transfer->unstaged && request->checksum == LADE_CHECKSUM_NONE;
  transfer->chunk_bytes = chunk_for(pipeline, &ticket->pieces, transfer->unstaged);
  transfer->ordered = ticket->pieces.ordered;
  transfer->joins = ticket->pieces.direct == 0;
  transfer->conversion = 256u * (unsigned)ticket->pieces.host_dtype + (unsigned)ticket->pieces.device_dtype;
  transfer->adapts = pipeline->chunk_adapts && !transfer->ordered;
  transfer->calls = ticket->pieces.calls;
  transfer->level = (unsigned)(LADEI_PIPE_PRIORITY_NORMAL + request->priority);
  transfer->fair_queue = fair_queue_of(request->submitter);
}

/* Allocates the destination where the request says so. */
static lade_status destination_make(const lade_transfer *request, lade_ticket *ticket, void **out) {
  *out = NULL;
  if (request->allocator == NULL) return LADE_OK;
  lade_status status = lade_device_alloc(
      request->allocator, (size_t)ladei_pipe_device_bytes(&ticket->pieces, ticket->pieces.bytes), request->stream, out);
  if (status == LADE_OK) ladei_pipe_pieces_place(&ticket->pieces, *out);
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "submit: allocating the destination: ");
}

static lade_status ticket_create(lade_pipeline *pipeline, const lade_transfer *request, lade_ticket **out) {
  void *destination;
  lade_ticket *ticket = calloc(1, sizeof *ticket);
  if (ticket == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for a ticket");
  ladei_pipe_request submission = {.pipeline = pipeline, .transfer = request};
  lade_status status = ladei_pipe_request_read(&submission, &ticket->pieces);
  if (status != LADE_OK) goto fail_ticket;
  transfer_fill(&submission, ticket);
  status = ladei_pipe_files_open(pipeline, ticket, request);
  if (status != LADE_OK) goto fail_pieces;
  units_fill(request, ticket);
  status = destination_make(request, ticket, &destination);
  if (status != LADE_OK) goto fail_files;
  ladei_pipe_files_write_through(pipeline, ticket, request);
  status = dependency_record(pipeline, request, ticket);
  if (status != LADE_OK) goto fail_destination;
  if (request->allocator != NULL) *request->out_device_memory = destination;
  *out = ticket;
  return LADE_OK;

fail_destination:
  if (request->allocator != NULL) LADEI_ASIDE((void)lade_device_free(request->allocator, destination));
fail_files : { LADEI_ASIDE((void)ladei_pipe_files_close(ticket, false)); }
fail_pieces:
  ladei_pipe_pieces_free(&ticket->pieces);
fail_ticket:
  free(ticket);
  return status;
}

static bool is_caller_run(const ladei_pipe_ring *ring, const lade_ticket *ticket) {
  const ladei_pipe_core_transfer *transfer = &ticket->transfer;
  const ladei_pipe_pieces *pieces = &ticket->pieces;
  bool plain = is_short_memory(pieces) && !pieces->calls && ticket->files == NULL && ticket->completes_in_calls &&
               ticket->checksum == LADE_CHECKSUM_NONE && transfer->dependency == LADEI_PIPE_DEPENDENCY_NONE;
  size_t most = transfer->no_host || TAILQ_EMPTY(&ring->schedule.queue) ? CALLER_RUN_BYTES : CALLER_RUN_BESIDE;
  return plain && transfer->bytes <= most;
}

static lade_status pipeline_submit(lade_pipeline *pipeline, const lade_transfer *transfer, lade_ticket **out_ticket) {
  lade_transfer request;
  lade_ticket *ticket = NULL;
  if (pipeline == NULL) return ladei_error_null(call, "pipeline");
  if (transfer == NULL) return ladei_error_null(call, "transfer");
  if (out_ticket == NULL) return ladei_error_null(call, "out_ticket");
  lade_status status = ladei_options_read("lade_transfer", transfer, &request, sizeof request);
  if (status == LADE_OK) status = request_check(pipeline, &request);
  if (status == LADE_OK) status = ladei_runtime_check_process(pipeline->runtime);
  if (status == LADE_OK) status = place_take(pipeline, &request);
  if (status != LADE_OK) return status;
  status = ticket_create(pipeline, &request, &ticket);
  if (status != LADE_OK) {
    place_return(pipeline);
    return status;
  }
  *out_ticket = ticket; /* before it can be over: its completion may look for it */
  ladei_lock_acquire(&pipeline->lock);
  pipeline->submitting--;
  pipeline->references++;
  if (ticket->write_place.files != 0)
    ticket->transfer.writers = ladei_pipe_writers_begin(&pipeline->writers, &ticket->write_place);
  ladei_pipe_ring *ring = ladei_pipe_core_ring(&pipeline->core, request.direction);
  ticket->caller_run = is_caller_run(ring, ticket);
  ladei_pipe_side_of(pipeline, ring)->others += ticket->caller_run ? 0 : 1;
  ladei_pipe_core_submit(&pipeline->core, &ticket->transfer, (lade_direction)request.direction);
  /* A callback's: destroy has cancelled all that there was since this call had its place. */
  if (pipeline->closed) ladei_pipe_ticket_cancel_locked(pipeline, ticket);
  ring = ticket->caller_run ? ring : NULL;
  ladei_lock_release(&pipeline->lock);
  pipeline->driver->kick(pipeline, ring); /* the ticket may be gone */
  return LADE_OK;
}

lade_status lade_pipeline_submit(lade_pipeline *pipeline, const lade_transfer *transfer, lade_ticket **out_ticket) {
  return LADEI_UNCANCELLED(pipeline_submit(pipeline, transfer, out_ticket));
}
