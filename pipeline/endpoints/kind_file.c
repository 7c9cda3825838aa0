/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that are ranges of files: by descriptor, and by path. */
#include "base/error.h"
#include "base/size.h"
#include "pipeline/endpoints/files.h"
#include "pipeline/endpoints/kinds.h"

static lade_status range_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  size_t end;
  if (ladei_size_add(host->offset, bytes, &end) && end <= INT64_MAX) return LADE_OK;
  return ladei_error_argument("lade_pipeline_submit", ladei_pipe_field_of(request, "host.offset").name,
                              "offset + bytes below 2^63", "%llu", (unsigned long long)host->offset);
}

static lade_status file_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  if (host->fd >= 0) return range_check(request, host, bytes);
  return ladei_error_argument("lade_pipeline_submit", ladei_pipe_field_of(request, "host.fd").name,
                              "an open file descriptor", "%d", host->fd);
}

static lade_status path_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  if (host->name != NULL && host->name[0] != '\0') return range_check(request, host, bytes);
  ladei_pipe_field field = ladei_pipe_field_of(request, "host.name");
  if (host->name == NULL) return ladei_error_null("lade_pipeline_submit", field.name);
  return ladei_error_argument("lade_pipeline_submit", field.name, "a path", "empty");
}

static lade_status file_open(ladei_pipe_opening *opening, ladei_pipe_piece *piece) {
  const lade_endpoint *host = &piece->host;
  ladei_pipe_storage_source source = {
      .name = host->name != NULL ? host->name : "file", .fd = host->fd, .flags = host->flags};
  return ladei_pipe_file_open(opening, &source, &piece->file);
}

static lade_status path_open(ladei_pipe_opening *opening, ladei_pipe_piece *piece) {
  ladei_pipe_storage_source source = {.name = piece->host.name, .by_path = true, .fd = -1, .flags = piece->host.flags};
  return ladei_pipe_file_open(opening, &source, &piece->file);
}

const ladei_pipe_endpoint_kind ladei_pipe_endpoint_file = {
    .source_flags = LADE_FILE_DIRECT | LADE_FILE_CACHED,
    .sink_flags = LADE_FILE_DIRECT | LADE_FILE_SYNC,
    .check = file_check,
    .open = file_open,
};

const ladei_pipe_endpoint_kind ladei_pipe_endpoint_path = {
    .source_flags = LADE_FILE_DIRECT | LADE_FILE_CACHED,
    .sink_flags = LADE_FILE_DIRECT | LADE_FILE_SYNC | LADE_FILE_ATOMIC,
    .opens_empty = true,
    .check = path_check,
    .open = path_open,
};
