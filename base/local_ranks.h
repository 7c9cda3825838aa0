/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank of this process among the processes of a job, as its launcher (torchrun, mpirun, srun) gives it.
 *
 * The library reads no environment of its own accord: lade_config_from_env() and the tools pass getenv().
 */
#ifndef LADE_BASE_LOCAL_RANKS_H
#define LADE_BASE_LOCAL_RANKS_H

#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_local_ranks {
  const char *launcher;  /* static; NULL: none, and the process is the only one */
  uint32_t rank;         /* among the processes of the job on this host, from 0 */
  uint32_t count;        /* of these processes; at least 1 */
  uint32_t world_rank;   /* among all processes of the job */
  uint32_t world_count;  /* of these processes; 0: the launcher does not say */
  const char *lone_rank; /* static; set without a launcher: a variable that gives a rank on the host while its count is
                   * missing; or NULL */
} ladei_local_ranks;

/* A higher count of processes is a mistake. */
enum { LADEI_LOCAL_RANKS_MOST = 1 << 20 };

/* As getenv(). */
typedef char *(*ladei_variable_get)(const char *name);

/*
 * Reads the variables of the launchers, innermost first: if srun starts torchrun, torchrun's count, not srun's. A
 * launcher counts if both its variables for the host are set. Errors: LADE_ERR_CONFIG, naming variable, value and what
 * is expected; *out is then unchanged.
 */
lade_status ladei_local_ranks_read(ladei_variable_get get, ladei_local_ranks *out);

#endif /* LADE_BASE_LOCAL_RANKS_H */
