/* SPDX-License-Identifier: Apache-2.0 */
/* Groups over a real MPI: this process is one rank of a job, and makes the same calls as the others. */
#include <stdio.h>
#include <string.h>

#include "tests/group/conformance.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

const char *const group_implementations[] = {"mpi on sim", "mpi on cpu", NULL};

void group_implementation_run(const char *name, const ranks_plan *plan) {
  ranks_plan own = *plan;
  ranks_one one = {.plan = &own};
  lade_group_mpi_options options;
  own.runtime = strstr(name, "sim") != NULL ? "sim" : "cpu";
  one.runtime = support_runtime_open(own.runtime);
  LADE_EXPECT_OK(lade_stream_create(one.runtime, 0, &one.stream));
  lade_group_mpi_options_init(&options);
  options.initialize = 1;
  options.timeout_ns = UINT64_C(20000000000);
  options.slot_bytes = 4096;
  one.made = lade_group_create_mpi(one.runtime, &options, &one.group);
  if (one.made != LADE_OK) (void)snprintf(one.made_text, sizeof one.made_text, "%s", lade_last_error()->text);
  if (!own.alone) LADE_ASSERT_OK(one.made);
  one.rank = lade_group_rank(one.group);
  own.size = one.group != NULL ? lade_group_size(one.group) : 2;
  if (own.size > 1 || !own.several) own.body(&one);
  LADE_EXPECT_OK(lade_group_destroy(one.group));
  LADE_EXPECT_OK(lade_stream_destroy(one.runtime, one.stream));
  support_runtime_close(one.runtime);
}
