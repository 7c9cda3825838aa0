/* SPDX-License-Identifier: Apache-2.0 */
/* --ranks: several processes measure together. Each function does nothing, and succeeds, in a process that is alone. */
#ifndef LADE_BENCHMARKS_STAGING_RANKS_H
#define LADE_BENCHMARKS_STAGING_RANKS_H

#include "benchmarks/staging.h"

/* Which rank this process is: by its launcher's variables, or it becomes one itself (staging_spawn.c). False: said why. */
bool staging_ranks_begin(staging *s);
/* Joins the others, once the runtime is open, and compares what was asked for. False: said why. */
bool staging_ranks_join(staging *s);
/* Tells the others that this rank has failed. */
void staging_ranks_fail(staging *s);

/* Before a pass: waits for all ranks. */
bool staging_ranks_start(staging *s);
/* After it, by the machine's clock: what all ranks made of it is kept if it `counts`. A variant that ranks run one after
 * another is told by STAGING_ALONE. */
bool staging_ranks_note(staging *s, int direction, staging_variant variant, bool counts, double begin, double end);
/* After all passes: gives rank 0 the rows of all. */
bool staging_ranks_gather(staging *s);
void staging_ranks_close(staging *s);

/* Number of ranks; 1: this process is alone. */
static inline uint32_t staging_ranks_count(const staging *s) { return s->ranks.count > 1 ? s->ranks.count : 1; }
/* Whether it is this process that prints and writes files. */
static inline bool staging_ranks_speaks(const staging *s) { return s->ranks.rank == 0; }

#endif /* LADE_BENCHMARKS_STAGING_RANKS_H */
