/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed output: bytes written to one output go compressed to another. zlib is opened at run time, so that a
 * program which writes no such file does not load it.
 */
#ifndef LADE_INSPECT_DEFLATE_H
#define LADE_INSPECT_DEFLATE_H

#include "base/output.h"

typedef struct ladei_deflate ladei_deflate;

/* `plain` is set up to be written to; its bytes go as gzip to `to`. LADE_ERR_UNSUPPORTED without zlib;
 * LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_deflate_begin(ladei_deflate **out, ladei_output *plain, ladei_output *to);
/* Ends the compressed data, unless `status` is a failure, and frees. Returns `status`, or its failure. */
lade_status ladei_deflate_end(ladei_deflate *deflate, lade_status status);

#endif /* LADE_INSPECT_DEFLATE_H */
