/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plug-in for MPI made of threads: liblade_mpi_standin.so. Each thread is a rank of a world, and any of its calls can fail or
 * never end.
 *
 *   mpi_standin *standin = mpi_standin_get();
 *   standin->join("world 1", rank, size);          // in each thread
 *   options.plugin = MPI_STANDIN;
 *   ...
 *   standin->leave();
 */
#ifndef LADE_TESTS_GROUP_MPI_STANDIN_H
#define LADE_TESTS_GROUP_MPI_STANDIN_H

#include <stdint.h>

typedef struct mpi_standin {
  void (*join)(const char *world, uint32_t rank, uint32_t size);
  void (*leave)(void);
  /* The n-th call of this thread from now on that begins something fails; 0: none does. */
  void (*fail)(uint32_t nth);
  /* Nothing that this thread begins from now on ends, as if the other ranks were dead. */
  void (*hang)(void);
  /* Calls of this thread so far that begin something. */
  uint32_t (*calls)(void);
  int version;      /* of the table; 0: the right one */
  int runs;         /* 0: MPI does not run */
  int takes_device; /* memory of devices */
} mpi_standin;

/* Its name: the test has it beside itself, in an rpath. */
#define MPI_STANDIN "liblade_mpi_standin.so"

mpi_standin *mpi_standin_get(void);

#endif /* LADE_TESTS_GROUP_MPI_STANDIN_H */
