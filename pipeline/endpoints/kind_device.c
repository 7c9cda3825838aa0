/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that are memory of a device: the pipeline's own, or a peer of it. The device copies by itself. */
#include <stdio.h>

#include "base/error.h"
#include "pipeline/endpoints/copy.h"
#include "pipeline/endpoints/kinds.h"

static lade_status device_check(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes) {
  if (bytes == 0) return LADE_OK;
  if (host->memory == NULL)
    return ladei_error_null("lade_pipeline_submit", ladei_pipe_field_of(request, "host.memory").name);
  if (host->fd < 0 || host->fd >= request->pipeline->devices) {
    char expected[64];
    (void)snprintf(expected, sizeof expected, "a device from 0 to %d", request->pipeline->devices - 1);
    return ladei_error_argument("lade_pipeline_submit", ladei_pipe_field_of(request, "host.fd").name, expected, "%d",
                                host->fd);
  }
  if (request->transfer->host_dtype != 0)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "lade_pipeline_submit: transfer.host_dtype is %d; expected 0 with memory of a device",
                       request->transfer->host_dtype);
  return request->transfer->checksum == LADE_CHECKSUM_NONE
             ? LADE_OK
             : ladei_error(LADE_ERR_UNSUPPORTED, 0,
                           "lade_pipeline_submit: transfer.checksum is %d; expected 0 with memory of a device",
                           request->transfer->checksum);
}

static bool device_is_direct(ladei_pipe_request *request, ladei_pipe_piece *piece) {
  (void)request;
  (void)piece;
  return true;
}

/* By itself, after the copies before it in the chunk. */
static lade_status device_copy(ladei_pipe_copies *copies, const ladei_pipe_extent *extent) {
  const lade_runtime *runtime = copies->pipeline->runtime;
  int own = copies->pipeline->options.device;
  int other = extent->piece->host.fd;
  char *here = extent->device;
  char *there = (char *)extent->piece->host.memory + extent->offset;
  LADEI_TRY(ladei_pipe_copies_submit(copies));
  char *dst = copies->to_device ? here : there;
  char *src = copies->to_device ? there : here;
  lade_status status = ladei_copy_between(runtime, dst, copies->to_device ? own : other, src,
                                          copies->to_device ? other : own, extent->bytes, copies->stream);
  if (status == LADE_OK) ladei_pipe_copies_count(copies);
  return status;
}

const ladei_pipe_endpoint_kind ladei_pipe_endpoint_device = {
    .check = device_check,
    .is_direct = device_is_direct,
    .copy = device_copy,
};
