/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the processes of a job this one is, as its launcher says: torchrun, mpirun, srun.
 *
 * The library reads no environment by itself: lade_config_from_env() and the tools pass getenv().
 */
#ifndef LADE_BASE_LOCAL_RANKS_H
#define LADE_BASE_LOCAL_RANKS_H

#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_local_ranks {
  const char *launcher; /* static; NULL: none, then the process is one of one */
  uint32_t rank;        /* among the processes of the job on this host, from 0 */
  uint32_t count;       /* of them; at least 1 */
  uint32_t world_rank;  /* among all processes of the job */
  uint32_t world_count; /* of them; 0: the launcher does not say */
  const char
      *lone_rank; /* static; without a launcher: a variable of a rank on the host, whose count is not there; or NULL */
} ladei_local_ranks;

/* More processes than this are no number of processes, but a mistake. */
enum { LADEI_LOCAL_RANKS_MOST = 1 << 20 };

/* As getenv(). */
typedef char *(*ladei_variable_get)(const char *name);

/*
 * Reads the variables of the launchers, innermost first: torchrun started by srun counts, srun does not. A launcher counts if
 * both its variables of the host are set. Errors: LADE_ERR_CONFIG, naming variable, value and what is expected; *out is
 * untouched.
 */
lade_status ladei_local_ranks_read(ladei_variable_get get, ladei_local_ranks *out);

#endif /* LADE_BASE_LOCAL_RANKS_H */
