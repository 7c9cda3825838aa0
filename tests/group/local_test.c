/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of one host beyond what every group does (conformance.c): many ranks. */
#include "tests/group/conformance.h"
#include "tests/shim/lade_test.h"

LADE_TEST(LocalGroup, ManyRanksMeet) {
  ranks_run(&(ranks_plan){.runtime = "sim", .size = RANKS_MANY, .body = conformance_gathers});
  ranks_run(&(ranks_plan){.runtime = "sim", .size = RANKS_MANY, .body = conformance_broadcasts});
}
