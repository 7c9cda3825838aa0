/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of endpoints there are: number of lade_endpoint_kind, name of the table. */
#ifndef LADE_PIPELINE_ENDPOINTS_KINDS_H
#define LADE_PIPELINE_ENDPOINTS_KINDS_H

#include "pipeline/endpoints/endpoint.h"

#define LADEI_PIPE_ENDPOINT_KINDS(KIND)                                                                                \
  KIND(LADE_ENDPOINT_MEMORY, memory)                                                                                   \
  KIND(LADE_ENDPOINT_FILE, file)                                                                                       \
  KIND(LADE_ENDPOINT_CALLBACK, callback)                                                                               \
  KIND(LADE_ENDPOINT_PATH, path)                                                                                       \
  KIND(LADE_ENDPOINT_DEVICE, device)                                                                                   \
  KIND(LADE_ENDPOINT_URL, url)

#define LADEI_PIPE_ENDPOINT_KIND(number, name) extern const ladei_pipe_endpoint_kind ladei_pipe_endpoint_##name;
LADEI_PIPE_ENDPOINT_KINDS(LADEI_PIPE_ENDPOINT_KIND)
#undef LADEI_PIPE_ENDPOINT_KIND

/* NULL: there is no kind of that number. */
const ladei_pipe_endpoint_kind *ladei_pipe_endpoint_kind_of(int32_t number);

#endif /* LADE_PIPELINE_ENDPOINTS_KINDS_H */
