/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual clock (model in sim.c).
 */
#ifndef LADE_RUNTIME_SOFT_RUN_SIM_H
#define LADE_RUNTIME_SOFT_RUN_SIM_H

#include "runtime/soft/state/model.h"

extern const soft_clock ladei_soft_sim_clock;
bool ladei_soft_sim_open(soft_runtime *rt);
bool ladei_soft_sim_add(soft_runtime *rt, const soft_moment *moment);

/* Runs all moments due by `until_ns`, then sets the clock to it. */
void ladei_soft_sim_run_until(soft_runtime *rt, uint64_t until_ns);

/* Runs the next moment; false if there is none. */
bool ladei_soft_sim_step(soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_RUN_SIM_H */
