/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/endpoints/request.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/size.h"
#include "pipeline/endpoints/kinds.h"
#include "pipeline/endpoints/sinks.h"
#include "pipeline/state/state.h"
#include "runtime/copies/copies.h"

static const char call[] = "lade_pipeline_submit";

/* Flags that have no meaning for the endpoint are mistakes. */
static lade_status flags_check(const ladei_pipe_request *request, const ladei_pipe_endpoint_kind *kind,
                               const lade_endpoint *host) {
  bool sink = request->transfer->direction == LADE_TO_HOST;
  uint32_t allowed = sink ? kind->sink_flags : kind->source_flags;
  char expected[64];
  const uint32_t opposites = LADE_FILE_DIRECT | LADE_FILE_CACHED;
  if ((host->flags & opposites) == opposites)
    return ladei_error_argument(call, ladei_pipe_field_of(request, "host.flags").name,
                                "LADE_FILE_DIRECT or LADE_FILE_CACHED", "0x%x", host->flags);
  if ((host->flags & ~allowed) == 0) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "none but 0x%x for this kind of %s", allowed, sink ? "sink" : "source");
  return ladei_error_argument(call, ladei_pipe_field_of(request, "host.flags").name, expected, "0x%x", host->flags);
}

static lade_status bytes_check(const ladei_pipe_request *request, uint64_t before, uint64_t bytes) {
  size_t end;
  if (bytes < LADEI_SIZE_LIMIT && ladei_size_add(before, bytes, &end) && end < LADEI_SIZE_LIMIT) return LADE_OK;
  return ladei_error_argument(call, ladei_pipe_field_of(request, "bytes").name, "less than 2^60 in all pieces", "%llu",
                              (unsigned long long)bytes);
}

static bool is_placed(const ladei_pipe_pieces *pieces, const void *device) {
  return (uintptr_t)device % pieces->device_unit == 0;
}

static lade_status place_error(const char *field, const ladei_pipe_pieces *pieces, const void *device) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "a multiple of %u with transfer.device_dtype %d", pieces->device_unit,
                 pieces->device_dtype);
  return ladei_error_argument(call, field, expected, "%p", device);
}

/* Whole numbers. Places that follow from others are multiples of their size, too. */
static lade_status numbers_check(const ladei_pipe_request *request, const ladei_pipe_pieces *pieces, uint64_t bytes,
                                 const void *device) {
  char expected[64];
  if (pieces->host_dtype == 0) return LADE_OK;
  if (bytes % pieces->host_unit != 0) {
    (void)snprintf(expected, sizeof expected, "a multiple of %u with transfer.host_dtype %d", pieces->host_unit,
                   pieces->host_dtype);
    return ladei_error_argument(call, ladei_pipe_field_of(request, "bytes").name, expected, "%llu",
                                (unsigned long long)bytes);
  }
  return is_placed(pieces, device) ? LADE_OK
                                   : place_error(ladei_pipe_field_of(request, "device_memory").name, pieces, device);
}

static lade_status endpoint_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t before,
                                  uint64_t bytes) {
  const ladei_pipe_endpoint_kind *kind = ladei_pipe_endpoint_kind_of(host->kind);
  LADEI_TRY(bytes_check(request, before, bytes));
  if (kind == NULL) {
    return ladei_error_argument(call, ladei_pipe_field_of(request, "host.kind").name, "a lade_endpoint_kind", "%d",
                                host->kind);
  }
  lade_status status = kind->check(request, host, bytes);
  return status == LADE_OK ? flags_check(request, kind, host) : status;
}

/* Checks one range and appends it. `device` is its place, or NULL: see ladei_pipe_pieces_place. A range without bytes
 * has a place all the same, that of the next one if it has none of its own. */
static lade_status piece_add(ladei_pipe_request *request, ladei_pipe_pieces *pieces, const lade_endpoint *host,
                             void *device, uint64_t bytes) {
  LADEI_TRY(endpoint_check(request, host, pieces->bytes, bytes));
  LADEI_TRY(numbers_check(request, pieces, bytes, device));
  const ladei_pipe_endpoint_kind *kind = ladei_pipe_endpoint_kind_of(host->kind);
  if (device == NULL) device = request->place;
  request->place = bytes == 0 ? device : NULL;
  ladei_pipe_piece piece = {.host = *host, .kind = kind, .device = device, .begin = pieces->bytes, .bytes = bytes};
  if (bytes > 0) {
    pieces->list[pieces->count++] = piece;
    pieces->bytes += bytes;
    pieces->calls = pieces->calls || kind->calls;
    pieces->ordered = pieces->ordered || (kind->calls && host->concurrent == 0);
  } else if (kind->opens_empty) {
    *--pieces->empty = piece;
    pieces->empty_count++;
  }
  return LADE_OK;
}

static lade_status list_check(const lade_transfer *transfer) {
  if (transfer->pieces == NULL) return ladei_error_null(call, "transfer.pieces");
  if (transfer->host.kind == 0) return LADE_OK;
  return ladei_error_argument(call, "transfer.host.kind", "0 beside transfer.pieces", "%d", transfer->host.kind);
}

static lade_status list_alloc(uint64_t count, ladei_pipe_pieces *pieces) {
  size_t bytes;
  if (count == 1) return LADE_OK;
  pieces->list = ladei_size_mul(count, sizeof *pieces->list, &bytes) ? malloc(bytes) : NULL;
  if (pieces->list == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for %llu pieces", (unsigned long long)count);
  pieces->empty = pieces->list + count;
  return LADE_OK;
}

static lade_status list_add(ladei_pipe_request *request, ladei_pipe_pieces *pieces) {
  const lade_transfer *transfer = request->transfer;
  const lade_piece *piece = &transfer->pieces[request->index];
  if (piece->device_memory != NULL && transfer->allocator != NULL) {
    return ladei_error_argument(call, ladei_pipe_field_of(request, "device_memory").name,
                                "NULL beside transfer.allocator", "%p", piece->device_memory);
  }
  return piece_add(request, pieces, &piece->host, piece->device_memory, piece->bytes);
}

static lade_status sum_check(const lade_transfer *transfer, const ladei_pipe_pieces *pieces) {
  char expected[64];
  if (transfer->bytes == 0 || transfer->bytes == pieces->bytes) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "0 or %llu, the sum of the pieces", (unsigned long long)pieces->bytes);
  return ladei_error_argument(call, "transfer.bytes", expected, "%llu", (unsigned long long)transfer->bytes);
}

static lade_status list_read(ladei_pipe_request *request, ladei_pipe_pieces *pieces) {
  lade_status status = list_check(request->transfer);
  if (status == LADE_OK) status = list_alloc(request->transfer->piece_count, pieces);
  for (request->index = 0; request->index < request->transfer->piece_count && status == LADE_OK; request->index++)
    status = list_add(request, pieces);
  if (status == LADE_OK && request->transfer->direction == LADE_TO_HOST) status = ladei_pipe_sinks_check(request);
  return status == LADE_OK ? sum_check(request->transfer, pieces) : status;
}

static lade_status device_check(const lade_transfer *transfer, const ladei_pipe_pieces *pieces) {
  if (!is_placed(pieces, transfer->device_memory))
    return place_error("transfer.device_memory", pieces, transfer->device_memory);
  bool given = transfer->device_memory != NULL || (pieces->count > 0 && pieces->list[0].device != NULL);
  return given || transfer->allocator != NULL || pieces->bytes == 0 ? LADE_OK
                                                                    : ladei_error_null(call, "transfer.device_memory");
}

lade_status ladei_pipe_request_read(ladei_pipe_request *request, ladei_pipe_pieces *out) {
  const lade_transfer *transfer = request->transfer;
  out->list = &out->one;
  out->empty = &out->one + 1;
  out->host_dtype = transfer->host_dtype;
  out->device_dtype = transfer->device_dtype;
  out->host_unit = out->device_unit = 1;
  if (transfer->host_dtype != 0) {
    out->host_unit = lade_dtype_bits((lade_dtype)transfer->host_dtype) / 8;
    out->device_unit = lade_dtype_bits((lade_dtype)transfer->device_dtype) / 8;
  }
  lade_status status = transfer->piece_count > 0 ? list_read(request, out)
                                                 : piece_add(request, out, &transfer->host, NULL, transfer->bytes);
  if (status == LADE_OK) status = device_check(transfer, out);
  if (status == LADE_OK && transfer->allocator == NULL) ladei_pipe_pieces_place(out, transfer->device_memory);
  if (status != LADE_OK) ladei_pipe_pieces_free(out);
  return status;
}

/* Shorter pieces of pinned memory are gathered all the same. For engines one packed copy costs less than a copy for each, for the kernel
 * it hardly does. */
static uint64_t least_direct(const lade_pipeline *pipeline, const ladei_pipe_pieces *pieces) {
  enum { ENGINE_LEAST = 64 << 10, KERNEL_LEAST = 512 };
  if (pieces->count == 1) return 0;
  return ladei_copy_kernel_ready(pipeline->runtime, &pipeline->sides[0].copy_streams[0].stream) ? KERNEL_LEAST
                                                                                                : ENGINE_LEAST;
}

bool ladei_pipe_request_find_direct(ladei_pipe_request *request, ladei_pipe_pieces *pieces) {
  size_t found = 0;
  request->least_direct = least_direct(request->pipeline, pieces);
  request->number_bytes = pieces->host_unit;
  for (size_t i = 0; i < pieces->count; i++) {
    ladei_pipe_piece *piece = &pieces->list[i];
    piece->direct = piece->kind->is_direct != NULL && piece->kind->is_direct(request, piece);
    found += piece->direct ? 1 : 0;
  }
  pieces->direct = found;
  return found == pieces->count;
}
