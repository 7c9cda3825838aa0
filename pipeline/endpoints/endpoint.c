/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/endpoints/endpoint.h"

#include <stdio.h>

ladei_pipe_field ladei_pipe_field_of(const ladei_pipe_request *request, const char *name) {
  ladei_pipe_field field;
  if (request->transfer->piece_count > 0)
    (void)snprintf(field.name, sizeof field.name, "transfer.pieces[%llu].%s", (unsigned long long)request->index, name);
  else
    (void)snprintf(field.name, sizeof field.name, "transfer.%s", name);
  return field;
}
