/* SPDX-License-Identifier: Apache-2.0 */
/* Groups over the stand-in for MPI, for ranks_run(). */
#ifndef LADE_TESTS_GROUP_MPI_THREADS_H
#define LADE_TESTS_GROUP_MPI_THREADS_H

#include "tests/group/ranks.h"

/* Has the plan's ranks make such groups: with slots of 4 KiB and a time limit of 20 s, or as mpi_threads_tune says. */
void mpi_threads_take(ranks_plan *plan);

/* What the plan's `user` points to, if anything. */
typedef struct mpi_threads_tuning {
  void (*tune)(const ranks_one *one, lade_group_mpi_options *options); /* NULL: nothing */
  void (*begin)(ranks_one *one); /* in the world, before the group is made; NULL */
} mpi_threads_tuning;

#endif /* LADE_TESTS_GROUP_MPI_THREADS_H */
