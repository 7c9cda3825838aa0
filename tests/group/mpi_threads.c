/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/group/mpi_threads.h"

#include "tests/group/mpi_standin.h"
#include "tests/shim/lade_test.h"

static lade_status make(ranks_one *one, const char *name, lade_group **out) {
  const mpi_threads_tuning *tuning = one->plan->user;
  lade_group_mpi_options options;
  mpi_standin_get()->join(name, one->rank, one->plan->size);
  lade_group_mpi_options_init(&options);
  options.plugin = MPI_STANDIN;
  options.timeout_ns = UINT64_C(20000000000);
  options.slot_bytes = 4096;
  options.slots = 3;
  if (tuning != NULL && tuning->tune != NULL) tuning->tune(one, &options);
  if (tuning != NULL && tuning->begin != NULL) tuning->begin(one);
  return lade_group_create_mpi(one->runtime, &options, out);
}

static void end(ranks_one *one) {
  (void)one;
  mpi_standin_get()->leave();
}

void mpi_threads_take(ranks_plan *plan) {
  LADE_ASSERT(mpi_standin_get() != NULL);
  plan->make = make;
  plan->end = end;
}
