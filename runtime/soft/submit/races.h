/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses within one graph that no order covers (model in races.c). Under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_SUBMIT_RACES_H
#define LADE_RUNTIME_SOFT_SUBMIT_RACES_H

#include "runtime/soft/state/model.h"

/* Counts a finding if two nodes of a captured graph access the same bytes, one of them writes, and neither comes before
 * the other; one per graph. */
void ladei_soft_graph_races(soft_runtime *rt, const soft_graph *graph);

#endif /* LADE_RUNTIME_SOFT_SUBMIT_RACES_H */
