/* SPDX-License-Identifier: Apache-2.0 */
/* One suite for all implementations of groups. A program links it with a list of those that it has. */
#ifndef LADE_TESTS_GROUP_CONFORMANCE_H
#define LADE_TESTS_GROUP_CONFORMANCE_H

#include "tests/group/ranks.h"

/* For LADE_TEST_P; the program's. */
extern const char *const group_implementations[];
/* Runs a body, the plan's, in groups of this implementation, of several sizes: above one if the plan says `several`. */
void group_implementation_run(const char *name, const ranks_plan *plan);

/* Bodies for other numbers of ranks. */
void conformance_broadcasts(ranks_one *one);
void conformance_gathers(ranks_one *one);

#endif /* LADE_TESTS_GROUP_CONFORMANCE_H */
