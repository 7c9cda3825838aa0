/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files: in one pass where they are as programs write them, else by way of JSON. */
#ifndef LADE_LOADERS_HEADER_PARSE_H
#define LADE_LOADERS_HEADER_PARSE_H

#include "loaders/header.h"

/*
 * Reads and checks a header; `data_bytes` follow it in the file. On failure *out is empty: LADE_ERR_FORMAT with the
 * cause in the text, or LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_loader_header_parse(const char *text, size_t text_bytes, uint64_t data_bytes,
                                      ladei_loader_header *out);

#endif /* LADE_LOADERS_HEADER_PARSE_H */
