/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables of launchers.
 *
 *   launcher   rank on the host           ranks on the host                                 rank in all   ranks in all
 *   torchrun   LOCAL_RANK                 LOCAL_WORLD_SIZE                                  RANK          WORLD_SIZE
 *   DeepSpeed  LOCAL_RANK                 LOCAL_SIZE                                        RANK          WORLD_SIZE
 *   Open MPI   OMPI_COMM_WORLD_LOCAL_...  OMPI_COMM_WORLD_LOCAL_SIZE                        ..._RANK      ..._SIZE
 *   MPICH      MPI_LOCALRANKID            MPI_LOCALNRANKS                                   PMI_RANK      PMI_SIZE
 *   PALS       PMI_LOCAL_RANK             PMI_LOCAL_SIZE                                    PMI_RANK      PMI_SIZE
 *   Slurm      SLURM_LOCALID              SLURM_STEP_TASKS_PER_NODE, SLURM_NTASKS_PER_NODE  SLURM_PROCID  SLURM_NTASKS
 *   gforker    PMI_RANK                   PMI_SIZE                                          PMI_RANK      PMI_SIZE
 *
 * Slurm's first list covers all nodes of the step, "4(x2),3"; SLURM_NODEID is the position in it. Its second one is the
 * user's request, and may be that of the allocation, of which the step is a part.
 * gforker, of MPICH, starts all processes on one host, and sets no other variables.
 *
 * R1  In every result rank < count, and world_rank < world_count unless that is 0.
 */
#include "base/local_ranks.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct launcher {
  const char *name;
  const char *rank, *count, *world_rank, *world_count;
  const char *list, *node; /* replace `count` if both are set; NULL: the launcher has none */
} launcher;

/* Innermost first. */
static const launcher launchers[] = {
    {"torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", NULL, NULL},
    {"DeepSpeed", "LOCAL_RANK", "LOCAL_SIZE", "RANK", "WORLD_SIZE", NULL, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE", NULL, NULL},
    {"MPICH", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE", NULL, NULL},
    {"PALS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", NULL, NULL},
    {"Slurm", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_NODEID"},
    {"gforker", "PMI_RANK", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", NULL, NULL},
};

enum { LAUNCHER_COUNT = sizeof launchers / sizeof launchers[0] };

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* Reads the digits at the begin of *text; false if there are none, or the number is too large. */
static bool digits_read(const char **text, uint32_t *out) {
  const char *at = *text;
  uint32_t value = 0;
  while (*at >= '0' && *at <= '9' && value <= LADEI_LOCAL_RANKS_MOST) value = value * 10 + (uint32_t)(*at++ - '0');
  if (at == *text || value > LADEI_LOCAL_RANKS_MOST) return false;
  *text = at;
  *out = value;
  return true;
}

static lade_status number_read(const char *name, const char *text, uint32_t least, uint32_t *out) {
  const char *end = text;
  uint32_t value;
  if (!digits_read(&end, &value) || *end != '\0' || value < least)
    return ladei_error(LADE_ERR_CONFIG, 0, "%s is \"%.64s\"; expected a number from %u to %d", name, text, least,
                       LADEI_LOCAL_RANKS_MOST);
  *out = value;
  return LADE_OK;
}

/* A rank and the count that it must be below. */
static lade_status pair_read(ladei_variable_get get, const char *rank_name, const char *count_name, uint32_t *rank,
                             uint32_t *count) {
  LADEI_TRY(number_read(count_name, get(count_name), 1, count));
  LADEI_TRY(number_read(rank_name, get(rank_name), 0, rank));
  if (*rank < *count) return LADE_OK;
  return ladei_error(LADE_ERR_CONFIG, 0, "%s is %u and %s is %u; expected a rank below the count", rank_name, *rank,
                     count_name, *count);
}

/* --- Slurm's list of nodes ---------------------------------------------------------------------------------------- */

/* One part of the list, N or N(xTIMES), with the comma after it. */
static bool part_read(const char **text, uint32_t *out_count, uint32_t *out_times) {
  *out_times = 1;
  if (!digits_read(text, out_count) || *out_count == 0) return false;
  if ((*text)[0] == '(' && (*text)[1] == 'x') {
    *text += 2;
    if (!digits_read(text, out_times) || *out_times == 0 || **text != ')') return false;
    ++*text;
  }
  if (**text == '\0') return true;
  return *(*text)++ == ',' && **text != '\0';
}

/* Processes on the step's node `node`. False: the list is malformed or too short. */
static bool list_find(const char *text, uint32_t node, uint32_t *out) {
  uint32_t count, times;
  for (; *text != '\0'; node -= times) {
    if (!part_read(&text, &count, &times)) return false;
    if (node < times) {
      *out = count;
      return true;
    }
  }
  return false;
}

static lade_status listed_read(ladei_variable_get get, const launcher *l, ladei_local_ranks *own) {
  uint32_t node = 0;
  const char *list = get(l->list);
  LADEI_TRY(number_read(l->node, get(l->node), 0, &node));
  LADEI_TRY(number_read(l->rank, get(l->rank), 0, &own->rank));
  if (!list_find(list, node, &own->count) || own->rank >= own->count)
    return ladei_error(LADE_ERR_CONFIG, 0,
                       "%s is \"%.64s\"; expected the processes of each node, as in 4(x2),3, more than %u for node %u",
                       l->list, list, own->rank, node);
  return LADE_OK;
}

/* --- launchers ---------------------------------------------------------------------------------------------------- */

static bool both_set(ladei_variable_get get, const char *a, const char *b) { return get(a) != NULL && get(b) != NULL; }

static bool is_listed(ladei_variable_get get, const launcher *l) {
  return l->list != NULL && get(l->rank) != NULL && both_set(get, l->list, l->node);
}

static lade_status launcher_read(ladei_variable_get get, const launcher *l, ladei_local_ranks *own) {
  LADEI_TRY(is_listed(get, l) ? listed_read(get, l, own) : pair_read(get, l->rank, l->count, &own->rank, &own->count));
  if (!both_set(get, l->world_rank, l->world_count)) return LADE_OK;
  return pair_read(get, l->world_rank, l->world_count, &own->world_rank, &own->world_count);
}

lade_status ladei_local_ranks_read(ladei_variable_get get, ladei_local_ranks *out) {
  ladei_local_ranks own = {.count = 1};
  for (size_t i = 0; i < LAUNCHER_COUNT && own.launcher == NULL; i++) {
    const launcher *l = &launchers[i];
    if (is_listed(get, l) || both_set(get, l->rank, l->count)) {
      LADEI_TRY(launcher_read(get, l, &own));
      own.launcher = l->name;
      own.lone_rank = NULL;
    } else if (own.lone_rank == NULL && get(l->rank) != NULL) {
      own.lone_rank = l->rank;
    }
  }
  assert(own.rank < own.count && (own.world_count == 0 || own.world_rank < own.world_count)); /* R1 */
  *out = own;
  return LADE_OK;
}
