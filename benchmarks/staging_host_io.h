/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of files as the baselines make them. */
#ifndef LADE_BENCHMARKS_STAGING_HOST_IO_H
#define LADE_BENCHMARKS_STAGING_HOST_IO_H

#include "benchmarks/staging_inputs.h"

/* O_DIRECT asks for less on all file systems known; the baselines' buffers and lengths are rounded to it. */
enum { STAGING_DIRECT_ALIGN = 4096 };

static inline size_t staging_direct_round_up(size_t bytes) {
  return (bytes + STAGING_DIRECT_ALIGN - 1) / STAGING_DIRECT_ALIGN * STAGING_DIRECT_ALIGN;
}

/* Reads (H2D) or writes (D2H) a buffer whole, at `offset` of a piece. On "sim" the time passes that a reader of the
 * pipeline takes. False: said why. */
bool staging_host_move(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                       size_t bytes);

#endif /* LADE_BENCHMARKS_STAGING_HOST_IO_H */
