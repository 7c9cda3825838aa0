/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranges of a transfer: checked when it is submitted, looked up for each chunk.
 *
 * I1  list[i].begin + list[i].bytes = list[i + 1].begin; the first begins at 0, the last ends at `bytes`.
 * I2  No piece of the list is empty: pieces of 0 bytes are left out, and paths of such kept in `empty`, behind the list, in
 *     backward order. Together they are no more than there are pieces.
 * Locks: none. Made and freed by one thread; constant in between.
 */
#include "pipeline/state/pieces.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/size.h"

/* Which range a message is about: piece number `index` of the request, or the only one. */
typedef struct place {
  const lade_transfer *request;
  uint64_t index;
} place;

/* Text before the name of a field. */
typedef struct place_text {
  char text[40];
} place_text;

static place_text place_name(const place *at) {
  place_text name = {"transfer: "};
  if (at->request->piece_count > 0)
    (void)snprintf(name.text, sizeof name.text, "transfer: pieces[%llu].", (unsigned long long)at->index);
  return name;
}

static lade_status field_error(const place *at, const char *what) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s%s", place_name(at).text, what);
}

/* Flags that have no meaning here are mistakes. */
static lade_status flags_check(const lade_endpoint *host, bool sink, const place *at) {
  uint32_t allowed = 0;
  if (host->kind == LADE_ENDPOINT_FILE || host->kind == LADE_ENDPOINT_PATH)
    allowed = LADE_FILE_DIRECT | (sink ? (uint32_t)LADE_FILE_SYNC : 0);
  if (host->kind == LADE_ENDPOINT_PATH && sink) allowed |= LADE_FILE_ATOMIC;
  if ((host->flags & ~allowed) == 0) return LADE_OK;
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%shost.flags 0x%x: 0x%x does not apply", place_name(at).text,
                     host->flags, host->flags & ~allowed);
}

static lade_status file_check(const lade_endpoint *host, uint64_t bytes, const place *at) {
  size_t end;
  if (host->kind == LADE_ENDPOINT_FILE && host->fd < 0) return field_error(at, "host.fd is no file descriptor");
  if (host->kind == LADE_ENDPOINT_PATH && (host->name == NULL || host->name[0] == '\0'))
    return field_error(at, "host.name is no path");
  if (!ladei_size_add(host->offset, bytes, &end) || end > INT64_MAX) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%shost.offset %llu + bytes %llu is beyond any file",
                       place_name(at).text, (unsigned long long)host->offset, (unsigned long long)bytes);
  }
  return LADE_OK;
}

static lade_status host_check(const lade_endpoint *host, uint64_t bytes, const place *at) {
  switch (host->kind) {
  case LADE_ENDPOINT_MEMORY:
  case LADE_ENDPOINT_DEVICE:
    return host->memory != NULL || bytes == 0 ? LADE_OK : field_error(at, "host.memory is NULL");
  case LADE_ENDPOINT_FILE:
  case LADE_ENDPOINT_PATH: return file_check(host, bytes, at);
  case LADE_ENDPOINT_CALLBACK:
    if (host->concurrent != 0 && host->concurrent != 1) return field_error(at, "host.concurrent is neither 0 nor 1");
    return host->callback != NULL ? LADE_OK : field_error(at, "host.callback is NULL");
  default:
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%shost.kind %d is no endpoint", place_name(at).text, host->kind);
  }
}

/* Checks one range and puts it behind those there are. `device` is where it lies, or NULL: see ladei_pipe_pieces_place. */
static lade_status piece_add(ladei_pipe_pieces *pieces, const lade_endpoint *host, bool sink, void *device,
                             uint64_t bytes, const place *at) {
  size_t end = 0;
  lade_status status = LADE_OK;
  if (bytes >= LADEI_SIZE_LIMIT || !ladei_size_add(pieces->bytes, bytes, &end) || end >= LADEI_SIZE_LIMIT) {
    status = ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s%llu bytes are too many", place_name(at).text,
                         (unsigned long long)bytes);
  }
  if (status == LADE_OK) status = host_check(host, bytes, at);
  if (status == LADE_OK) status = flags_check(host, sink, at);
  if (status != LADE_OK) return status;
  if (bytes == 0) {
    if (host->kind == LADE_ENDPOINT_PATH) {
      *--pieces->empty = (ladei_pipe_piece){.host = *host, .device = device, .begin = pieces->bytes};
      pieces->empty_count++;
    }
    return LADE_OK;
  }
  pieces->list[pieces->count++] =
      (ladei_pipe_piece){.host = *host, .device = device, .begin = pieces->bytes, .bytes = bytes};
  pieces->bytes = end;
  pieces->calls = pieces->calls || host->kind == LADE_ENDPOINT_CALLBACK;
  return LADE_OK;
}

static lade_status pieces_add(const lade_transfer *request, ladei_pipe_pieces *pieces) {
  if (request->pieces == NULL || request->host.kind != 0) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: %s",
                       request->pieces == NULL ? "pieces is NULL" : "both host and pieces are given");
  }
  if (request->piece_count > 1) {
    size_t bytes;
    pieces->list = ladei_size_mul(request->piece_count, sizeof *pieces->list, &bytes) ? malloc(bytes) : NULL;
    if (pieces->list == NULL) {
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for %llu pieces",
                         (unsigned long long)request->piece_count);
    }
    pieces->empty = pieces->list + request->piece_count;
  }
  lade_status status = LADE_OK;
  for (uint64_t i = 0; i < request->piece_count && status == LADE_OK; i++) {
    const lade_piece *piece = &request->pieces[i];
    place at = {request, i};
    if (piece->device_memory != NULL && request->allocator != NULL) {
      status = field_error(&at, "device_memory is given beside transfer.allocator");
    } else {
      status =
          piece_add(pieces, &piece->host, request->direction == LADE_TO_HOST, piece->device_memory, piece->bytes, &at);
    }
  }
  if (status == LADE_OK && request->bytes != 0 && request->bytes != pieces->bytes) {
    status = ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: bytes is %llu, the sum of the pieces %llu",
                         (unsigned long long)request->bytes, (unsigned long long)pieces->bytes);
  }
  return status;
}

static lade_status device_check(const lade_transfer *request, const ladei_pipe_pieces *pieces) {
  bool given = request->device_memory != NULL || (pieces->count > 0 && pieces->list[0].device != NULL);
  if (!given && request->allocator == NULL && pieces->bytes != 0)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "transfer: device_memory is NULL");
  return LADE_OK;
}

lade_status ladei_pipe_pieces_make(const lade_transfer *request, ladei_pipe_pieces *out) {
  lade_status status;
  out->list = &out->one;
  out->empty = &out->one + 1;
  if (request->piece_count > 0) {
    status = pieces_add(request, out);
  } else {
    place at = {request, 0};
    status = piece_add(out, &request->host, request->direction == LADE_TO_HOST, NULL, request->bytes, &at);
  }
  if (status == LADE_OK) status = device_check(request, out);
  if (status != LADE_OK)
    ladei_pipe_pieces_free(out);
  else if (request->allocator == NULL)
    ladei_pipe_pieces_place(out, request->device_memory);
  return status;
}

void ladei_pipe_pieces_free(ladei_pipe_pieces *pieces) {
  if (pieces->list != &pieces->one) free(pieces->list);
  pieces->list = &pieces->one;
  pieces->count = 0;
  pieces->empty = NULL;
  pieces->empty_count = 0;
}

void ladei_pipe_pieces_place(ladei_pipe_pieces *pieces, void *device) {
  char *next = device;
  for (size_t i = 0; i < pieces->count; i++) {
    ladei_pipe_piece *piece = &pieces->list[i];
    piece->device = piece->device != NULL ? piece->device : next;
    next = piece->device + piece->bytes;
  }
}

/* The piece that byte `offset` of the transfer lies in. */
static const ladei_pipe_piece *piece_find(const ladei_pipe_pieces *pieces, uint64_t offset) {
  size_t low = 0;
  size_t high = pieces->count;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (pieces->list[middle].begin <= offset)
      low = middle;
    else
      high = middle;
  }
  return &pieces->list[low];
}

bool ladei_pipe_pieces_next(const ladei_pipe_pieces *pieces, uint64_t offset, size_t bytes, ladei_pipe_extent *extent) {
  size_t at = extent->at + extent->bytes;
  if (at == bytes) return false;
  extent->piece = extent->piece == NULL ? piece_find(pieces, offset) : extent->piece + 1;
  extent->offset = offset + at - extent->piece->begin;
  extent->at = at;
  extent->bytes = (size_t)ladei_size_min(extent->piece->bytes - extent->offset, bytes - at);
  return true;
}
