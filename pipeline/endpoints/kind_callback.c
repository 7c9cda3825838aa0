/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that are functions of the program. */
#include "base/error.h"
#include "base/lock.h"
#include "pipeline/endpoints/kinds.h"

static lade_status callback_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  (void)bytes;
  if (host->concurrent != 0 && host->concurrent != 1) {
    return ladei_error_argument("lade_pipeline_submit", ladei_pipe_field_of(request, "host.concurrent").name, "0 or 1",
                                "%d", host->concurrent);
  }
  return host->callback != NULL
             ? LADE_OK
             : ladei_error_null("lade_pipeline_submit", ladei_pipe_field_of(request, "host.callback").name);
}

static lade_status callback_move(const ladei_pipe_extent *extent, char *buffer, bool reads) {
  (void)reads;
  const lade_endpoint *host = &extent->piece->host;
  ladei_lock_assert_none_held();
  lade_status status = host->callback(host->user, extent->offset, buffer, extent->bytes);
  if (status == LADE_OK) return LADE_OK;
  return ladei_error(LADE_ERR_CALLBACK, (int64_t)status, "callback returned %s (%d) for %zu bytes at %llu",
                     lade_status_name(status), (int)status, extent->bytes, (unsigned long long)extent->offset);
}

const ladei_pipe_endpoint_kind ladei_pipe_endpoint_callback = {
    .calls = true,
    .check = callback_check,
    .move = callback_move,
};
