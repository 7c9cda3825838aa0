/* SPDX-License-Identifier: Apache-2.0 */
/* Implementations whose ranks are threads of the test: local groups, and groups over a stand-in for MPI. */
#include <string.h>

#include "tests/group/conformance.h"
#include "tests/group/mpi_standin.h"
#include "tests/group/mpi_threads.h"
#include "tests/shim/lade_test.h"

const char *const group_implementations[] = {"local on sim", "local on cpu", "mpi on sim", "mpi on cpu", NULL};

void group_implementation_run(const char *name, const ranks_plan *plan) {
  static const uint32_t counts[] = {1, 2, 3, 7};
  for (size_t i = plan->several ? 1 : 0; i < sizeof counts / sizeof *counts; i++) {
    ranks_plan own = *plan;
    own.runtime = strstr(name, "sim") != NULL ? "sim" : "cpu";
    own.size = counts[i];
    if (strncmp(name, "mpi", 3) == 0) mpi_threads_take(&own);
    ranks_run(&own);
  }
}
