/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that are ranges of objects that URLs name. */
#include "base/error.h"
#include "base/size.h"
#include "pipeline/endpoints/files.h"
#include "pipeline/endpoints/kinds.h"
#include "sources/url.h"

static const char call[] = "lade_pipeline_submit";

/* The text of a URL may have secrets: a message names the place in it alone. */
static lade_status url_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  ladei_source_url url;
  size_t at, end;
  ladei_pipe_field field = ladei_pipe_field_of(request, "host.name");
  if (request->transfer->direction == LADE_TO_HOST)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: %s is a URL as a sink; URLs are sources alone", call, field.name);
  if (host->name == NULL) return ladei_error_null(call, field.name);
  const char *expected = ladei_source_url_parse(host->name, &url, &at);
  if (expected != NULL) return ladei_error_argument(call, field.name, expected, "wrong at byte %zu of a URL", at);
  if (ladei_size_add(host->offset, bytes, &end) && end <= INT64_MAX) return LADE_OK;
  return ladei_error_argument(call, ladei_pipe_field_of(request, "host.offset").name, "offset + bytes below 2^63",
                              "%llu", (unsigned long long)host->offset);
}

static lade_status url_open(ladei_pipe_opening *opening, ladei_pipe_piece *piece) {
  ladei_pipe_storage_source source = {.name = piece->host.name, .by_url = true, .fd = -1, .version = piece->host.user};
  return ladei_pipe_file_open(opening, &source, &piece->file);
}

const ladei_pipe_endpoint_kind ladei_pipe_endpoint_url = {
    .check = url_check,
    .open = url_open,
};
